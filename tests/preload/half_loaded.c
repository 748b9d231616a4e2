/* Threads that need the memory of a killed process at one moment (`hold` is that process). The library asks NVML whether the
 * driver has freed it, and has to load NVML for that. This file is also that NVML (-DNVML), and a library on which it depends
 * (-DPART). */
#if defined(PART)

/* The loader calls the resolver before it relocates what depends on this library. It takes a while, and calls nothing:
 * the addresses of this library are not filled in yet. */
static int nothing(void) { return 0; }

static int (*resolve(void))(void) {
    for (volatile unsigned long turns = 0; turns < 100000000ul; turns++) {}
    return nothing;
}

int part(void) __attribute__((ifunc("resolve")));
int (*const part_address)(void) = part;

#elif defined(NVML)

/* It supports nothing, and says so through an address in its data, which is wrong before it is relocated. */
static int not_supported(void) { return 3; }
static int (*volatile answer)(void) = not_supported;

int nvmlInit_v2(void) { return answer(); }
int nvmlShutdown(void) { return answer(); }

#else

#include <dlfcn.h>
#include <pthread.h>
#include "driver.h"

static const struct driver driver = LINKED_DRIVER;
static CUcontext context;
static pthread_barrier_t barrier;

static void *work(void *unused) {
    (void)unused;
    CUdeviceptr pointer = 0;
    driver.set_current(context);
    pthread_barrier_wait(&barrier);
    if (driver.alloc(&pointer, 60 * MIB) == 0) driver.free(pointer);
    return NULL;
}

int main(int count, char **words) {
    (void)words;
    CUdeviceptr pointer = 0;
    pthread_t threads[8];
    CUresult result = ready(&driver);
    if (result == 0 && count > 1) result = driver.alloc(&pointer, 60 * MIB);
    printf("ready %u\n", result);
    fflush(stdout);
    getchar();
    driver.retain(&context, 0);
    pthread_barrier_init(&barrier, NULL, 8);
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    printf("NVML is %s\n", dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD) ? "loaded" : "not loaded");
    return 0;
}

#endif
