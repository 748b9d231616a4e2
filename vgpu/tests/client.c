/* A CUDA program that does as it is told: one command a line, one answer a line.
 *
 *   total           the GPU's size, MiB
 *   alloc MIB       "ok" or the driver's code
 *   free            what was allocated last
 *
 * Knows nothing of vgpu. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef unsigned long long pointer;

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
    int gpu;
    void *current;
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
        } else {
            code = -1;
        }
        if (code) printf("%d\n", code);
        fflush(stdout);
    }
    return 0;
}
