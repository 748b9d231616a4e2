/* Forks before any call to the driver; the child takes 60 MiB, and the parent finds them taken until
 * the child is gone. */
#include <sys/wait.h>
#include <unistd.h>
#include "driver.h"

int main(void) {
    const struct driver driver = LINKED_DRIVER;
    int up[2], down[2];
    char byte = 0;
    CUdeviceptr pointer = 0;
    if (pipe(up) != 0 || pipe(down) != 0) return 1;
    pid_t child = fork();
    if (child == 0) {
        CUresult result = ready(&driver);
        if (result == 0) result = driver.alloc(&pointer, 60 * MIB);
        if (write(up[1], "x", 1) != 1 || read(down[0], &byte, 1) != 1) _exit(98);
        _exit((int)result);
    }
    if (read(up[0], &byte, 1) != 1) return 1;
    printf("ready %u\n", ready(&driver));
    printf("beside the child %u\n", driver.alloc(&pointer, 60 * MIB));
    int status = -1;
    if (write(down[1], "x", 1) != 1) return 1;
    waitpid(child, &status, 0);
    printf("child %d\n", status);
    printf("after the child %u\n", driver.alloc(&pointer, 60 * MIB));
    return 0;
}
