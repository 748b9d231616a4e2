/* A longjmp leaves the driver's call, through us, and the limit still holds in this thread. */
#include <setjmp.h>
#include "driver.h"

extern void *odd_place(void);

int main(void) {
    const struct driver driver = LINKED_DRIVER;
    CUdeviceptr pointer = 0, second = 0;
    volatile int round = 0;
    printf("ready %u\n", ready(&driver));
    for (; round < 3; round++) {
        if (setjmp(*(jmp_buf *)odd_place()) == 0) {
            printf("answered %u\n", driver.alloc(&pointer, 12 * MIB));
        } else {
            printf("jumped\n");
        }
    }
    printf("first %u\n", driver.alloc(&pointer, 60 * MIB));
    printf("second %u\n", driver.alloc(&second, 60 * MIB));
    return 0;
}
