/* A static program with a second thread and a child: its fork and its threads are those of its own C
 * library, of which the opened libraries' C library knows nothing. */
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "driver.h"

static void *library;
static struct driver driver;

static void *look(const char *name) { return dlsym(library, name); }

static void *another_thread(void *unused) {
    CUdeviceptr second = 0;
    printf("thread: ready %u,", ready(&driver));
    printf(" second %u\n", driver.alloc(&second, 60 * MIB));
    return unused;
}

int main(void) {
    CUdeviceptr first = 0;
    pthread_t thread;
    int status = 0;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return printf("%s\n", dlerror()), 1;
    driver = (struct driver)DRIVER_FROM(look);
    printf("ready %u,", ready(&driver));
    printf(" first %u\n", driver.alloc(&first, 60 * MIB));
    pthread_create(&thread, NULL, another_thread, NULL);
    pthread_join(thread, NULL);
    fflush(stdout);
    if (fork() == 0) {
        CUdeviceptr pointer = 0;
        printf("child: beside the parent %u,", driver.alloc(&pointer, 60 * MIB));
        printf(" less %u\n", driver.alloc(&pointer, 20 * MIB));
        fflush(stdout);
        _exit(0);
    }
    wait(&status);
    printf("child ended %d, freed %u", status, driver.free(first));
    printf(", again %u\n", driver.alloc(&first, 90 * MIB));
    return 0;
}
