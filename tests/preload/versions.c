/* A program of CUDA 13: it takes every function from cuGetProcAddress at version 13000, so it gets forms
 * that an older driver does not have. A context, memory up to the limit of 100 MiB beside the context,
 * a batched copy, a wait, and the frees. With "12", the forms of version 12000. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include "driver.h"

static CUresult (*find)(const char *, void **, int, unsigned long long, int *);
static int version = 13000;

static void *look(const char *name) {
    int status = 0;
    void *function = NULL;
    CUresult result = find(name, &function, version, 0, &status);
    if (result != 0 || function == NULL) printf("%s: %u, status %d\n", name, result, status);
    return function;
}

struct attributes {
    int order, source_kind, source_id, to_kind, to_id;
    unsigned flags;
};

int main(int count, char **words) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return printf("%s\n", dlerror()), 1;
    *(void **)&find = dlsym(library, "cuGetProcAddress_v2");
    if (count > 1 && strcmp(words[1], "12") == 0) version = 12000;

    CUresult (*init)(unsigned) = look("cuInit");
    CUresult (*device_get)(CUdevice *, int) = look("cuDeviceGet");
    CUresult (*alloc)(CUdeviceptr *, size_t) = look("cuMemAlloc");
    CUresult (*free_memory)(CUdeviceptr) = look("cuMemFree");
    CUresult (*destroy)(CUcontext) = look("cuCtxDestroy");
    void *create = look("cuCtxCreate"), *wait = look("cuCtxSynchronize");

    CUdevice device = -1;
    CUcontext context = NULL;
    CUdeviceptr one = 0, other = 0;
    CUresult ready = init(0);
    printf("ready %u %u\n", ready, device_get(&device, 0));
    printf("context %u\n",
           version >= 13000 ? ((CUresult(*)(CUcontext *, void *, unsigned, CUdevice))create)(&context, NULL, 0, device)
                            : ((CUresult(*)(CUcontext *, void *, int, unsigned, CUdevice))create)(&context, NULL, 0, 0, device));
    printf("one %u\n", alloc(&one, 60 * MIB));
    printf("other %u\n", alloc(&other, 60 * MIB));
    if (version >= 13000) {
        CUresult (*copy)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, struct attributes *, size_t *, size_t, CUstream) =
            look("cuMemcpyBatchAsync");
        struct attributes how = {.order = 1};
        CUdeviceptr to = one, from = one + MIB;
        size_t bytes = 4096, first = 0;
        printf("batch %u\n", copy(&to, &from, &bytes, 1, &how, &first, 1, (CUstream)2));
        printf("wait %u\n", ((CUresult(*)(CUcontext))wait)(context));
    } else {
        printf("wait %u\n", ((CUresult(*)(void))wait)());
    }
    printf("free %u\n", free_memory(one));
    printf("again %u\n", alloc(&other, 60 * MIB));
    printf("end %u\n", destroy(context));
    if (count > 2) {
        void *all = dlsym(RTLD_DEFAULT, "cuCtxCreate_v4");
        printf("exported %d, known to all %d\n", dlsym(library, "cuCtxCreate_v4") != NULL, all != NULL);
    }
    return fflush(stdout);
}
