/* Threads are in the middle of calls while main returns. */
#include <pthread.h>
#include <unistd.h>
#include "driver.h"

static const struct driver driver = LINKED_DRIVER;
static CUcontext context;

static void *work(void *unused) {
    (void)unused;
    driver.set_current(context);
    for (;;) {
        CUdeviceptr pointer = 0;
        size_t free_bytes, total;
        if (driver.alloc(&pointer, 3 * MIB) == 0) driver.free(pointer);
        driver.info(&free_bytes, &total);
    }
    return NULL;
}

int main(void) {
    printf("ready %u\n", ready(&driver));
    driver.retain(&context, 0);
    for (int i = 0; i < 4; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, NULL);
    }
    usleep(20000);
    return 0;
}
