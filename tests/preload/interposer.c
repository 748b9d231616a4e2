/* A second preloaded library, such as a profiler or an allocator: wraps malloc and cuMemAlloc_v2 and
 * finds the next definition of each with dlsym(RTLD_NEXT), again at every call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include "driver.h"

unsigned interposer_mallocs;

void *malloc(size_t bytes) {
    void *(*next)(size_t) = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    interposer_mallocs++;
    return next(bytes);
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    CUresult (*next)(CUdeviceptr *, size_t) =
        (CUresult(*)(CUdeviceptr *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    printf("wrapped\n");
    return next == NULL ? 999 : next(pointer, bytes);
}
