/* A CUDA program driven by commands: one command on each line, one answer on each line.
 *
 *   total           the GPU's size, MiB
 *   alloc MIB       "ok" or the driver's code
 *   free            frees the last allocation
 *   launch N        N kernels of 1 ms each, to their end: "ok" or the driver's code
 *   busy            starts a thread that runs one such kernel after another
 *   idle            ends that thread
 *
 * Knows nothing of vgpu. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef unsigned long long pointer;

static const char module_text[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                  ".visible .entry step__1ms() { ret; }\n";

static int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     void *, void **, void **);
static int (*synchronize)(void);
static int (*set_current)(void *);
static void *current, *step;
static volatile int is_busy;

static int work(int count) {
    int code = 0;
    while (!code && count-- > 0) code = launch(step, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    return code ? code : synchronize();
}

static void *work_on(void *unused) {
    set_current(current);
    while (is_busy && !work(4)) {}
    return unused;
}

int main(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        printf("no driver: %s\n", dlerror());
        return 1;
    }
    int (*init)(unsigned) = dlsym(cuda, "cuInit");
    int (*device)(int *, int) = dlsym(cuda, "cuDeviceGet");
    int (*total)(size_t *, int) = dlsym(cuda, "cuDeviceTotalMem_v2");
    int (*context)(void **, unsigned, int) = dlsym(cuda, "cuCtxCreate_v2");
    int (*alloc)(pointer *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
    int (*release)(pointer) = dlsym(cuda, "cuMemFree_v2");
    int (*load)(void **, const void *) = dlsym(cuda, "cuModuleLoadData");
    int (*function)(void **, void *, const char *) = dlsym(cuda, "cuModuleGetFunction");
    launch = dlsym(cuda, "cuLaunchKernel");
    synchronize = dlsym(cuda, "cuCtxSynchronize");
    set_current = dlsym(cuda, "cuCtxSetCurrent");
    int gpu;
    pthread_t worker;
    int code = init(0);
    if (!code) code = device(&gpu, 0);
    if (!code) code = context(&current, 0, gpu);
    if (code) {
        printf("no context: %d\n", code);
        return 1;
    }
    pointer held[64];
    int count = 0;
    char line[64];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        size_t mib;
        code = 0;
        if (!strncmp(line, "total", 5)) {
            size_t bytes = 0;
            code = total(&bytes, gpu);
            if (!code) printf("%zu\n", bytes >> 20);
        } else if (sscanf(line, "alloc %zu", &mib) == 1 && count < 64) {
            code = alloc(&held[count], mib << 20);
            if (!code) {
                count++;
                puts("ok");
            }
        } else if (!strncmp(line, "free", 4) && count > 0) {
            code = release(held[--count]);
            if (!code) puts("ok");
        } else if (sscanf(line, "launch %zu", &mib) == 1) {
            void *module;
            if (!step && !(code = load(&module, module_text)))
                code = function(&step, module, "step__1ms");
            if (!code) code = work((int)mib);
            if (!code) puts("ok");
        } else if (!strncmp(line, "busy", 4) && step && !is_busy) {
            is_busy = 1;
            code = pthread_create(&worker, NULL, work_on, NULL);
            if (!code) puts("ok");
        } else if (!strncmp(line, "idle", 4) && is_busy) {
            is_busy = 0;
            code = pthread_join(worker, NULL);
            if (!code) puts("ok");
        } else {
            code = -1;
        }
        if (code) printf("%d\n", code);
        fflush(stdout);
    }
    return 0;
}
