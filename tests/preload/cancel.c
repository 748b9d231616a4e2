/* A thread is cancelled inside the driver's call, below us, and the limit still holds in the others. */
#include <pthread.h>
#include <unistd.h>
#include "driver.h"

static const struct driver driver = LINKED_DRIVER;
static CUcontext context;

static void *wait_inside(void *unused) {
    CUdeviceptr pointer = 0;
    (void)unused;
    driver.set_current(context);
    driver.alloc(&pointer, 13 * MIB);
    return NULL;
}

int main(void) {
    CUdeviceptr pointer = 0, second = 0;
    printf("ready %u\n", ready(&driver));
    driver.retain(&context, 0);
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        void *end = NULL;
        pthread_create(&thread, NULL, wait_inside, NULL);
        usleep(50000);
        pthread_cancel(thread);
        pthread_join(thread, &end);
        printf("cancelled %d\n", end == PTHREAD_CANCELED);
    }
    printf("first %u\n", driver.alloc(&pointer, 60 * MIB));
    printf("second %u\n", driver.alloc(&second, 60 * MIB));
    return 0;
}
