/* Forks after it has taken memory. The child has no GPU (CUDA does not survive a fork), and the parent's
 * memory stays charged whatever the child tries with its parent's pointer. */
#include <sys/wait.h>
#include <unistd.h>
#include "driver.h"

int main(void) {
    const struct driver driver = LINKED_DRIVER;
    CUdeviceptr first = 0, second = 0;
    printf("ready %u\n", ready(&driver));
    printf("first %u\n", driver.alloc(&first, 60 * MIB));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        driver.free(first);
        driver.alloc(&second, 8 * MIB);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    printf("child %d\n", status);
    printf("second %u\n", driver.alloc(&second, 60 * MIB));
    printf("freed %u\n", driver.free(first));
    printf("again %u\n", driver.alloc(&second, 60 * MIB));
    return 0;
}
