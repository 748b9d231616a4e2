/* vfork and exec, as subprocess libraries do; parent and child share the limit. */
#include <sys/wait.h>
#include <unistd.h>
#include "driver.h"

int main(int count, char **words) {
    const struct driver driver = LINKED_DRIVER;
    CUdeviceptr first = 0, second = 0;
    if (count > 1) {
        printf("child: ready %u\n", ready(&driver));
        printf("child: too much %u\n", driver.alloc(&first, 60 * MIB));
        printf("child: enough %u\n", driver.alloc(&first, 20 * MIB));
        return 0;
    }
    printf("ready %u\n", ready(&driver));
    printf("first %u\n", driver.alloc(&first, 60 * MIB));
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        execl(words[0], words[0], "child", (char *)NULL);
        _exit(99);
    }
    int status = -1;
    waitpid(child, &status, 0);
    printf("child %d\n", status);
    printf("second %u\n", driver.alloc(&second, 60 * MIB));
    printf("third %u\n", driver.alloc(&second, 40 * MIB));
    return 0;
}
