/* Forks while another thread is in the program's first call to the driver. The child also calls, and
 * must get an answer, although it cannot finish the work of the parent's other thread. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "driver.h"

static const struct driver driver = LINKED_DRIVER;

static void *first_call(void *unused) {
    (void)unused;
    driver.init(0);
    return NULL;
}

int main(int count, char **words) {
    pthread_t thread;
    pthread_create(&thread, NULL, first_call, NULL);
    usleep(count > 1 ? (unsigned)atoi(words[1]) : 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        CUdeviceptr pointer = 0, second = 0;
        CUresult result = ready(&driver);
        if (result != 0) _exit(result == 3 ? 0 : (int)result); /* not initialised: an answer */
        if (driver.alloc(&pointer, 60 * MIB) != 0) _exit(101);
        _exit(driver.alloc(&second, 60 * MIB) == 2 ? 0 : 102);
    }
    int status = -1;
    waitpid(child, &status, 0);
    pthread_join(thread, NULL);
    printf("child %d\n", status);
    return 0;
}
