/* Leaves the driver's call by a jump, repeatedly: argument 1 is the MiB of each call, argument 2 the
 * maximum number of calls. */
#include <setjmp.h>
#include "driver.h"

extern void *odd_place(void);

int main(int count, char **arguments) {
    const struct driver driver = LINKED_DRIVER;
    const size_t bytes = count > 1 ? (size_t)atoi(arguments[1]) * MIB : 0;
    const int most = count > 2 ? atoi(arguments[2]) : 0;
    char line[16];
    CUdeviceptr pointer = 0;
    volatile int jumps = 0;
    volatile CUresult result = 0;
    printf("ready %u\n", ready(&driver));
    while (jumps < most && result == 0) {
        if (setjmp(*(jmp_buf *)odd_place()) == 0) {
            result = driver.alloc(&pointer, bytes);
        } else {
            jumps++;
        }
    }
    printf("jumped %d, answered %u\n", jumps, result);
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL) return 1;
    printf("more %u\n", driver.alloc(&pointer, 60 * MIB));
    return 0;
}
