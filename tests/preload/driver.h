/* The few declarations of the CUDA driver that these programs need, and the trial that each of them
 * runs once it has found the driver in its own way. The vendor's headers may not be copied. */
#ifndef DRIVER_H
#define DRIVER_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef unsigned CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext;
typedef void *CUstream;

#define MIB ((size_t)1 << 20)

extern CUresult cuInit(unsigned flags);
extern CUresult cuDeviceGet(CUdevice *device, int index);
extern CUresult cuDeviceGetCount(int *count);
extern CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
extern CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
extern CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
extern CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
extern CUresult cuCtxSetCurrent(CUcontext context);
extern CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
extern CUresult cuMemFree_v2(CUdeviceptr pointer);
extern CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
extern CUresult cuGetProcAddress_v2(const char *name, void **function, int version,
                                    unsigned long long flags, int *status);

struct driver {
    CUresult (*init)(unsigned);
    CUresult (*device_get)(CUdevice *, int);
    CUresult (*total_mem)(size_t *, CUdevice);
    CUresult (*retain)(CUcontext *, CUdevice);
    CUresult (*set_current)(CUcontext);
    CUresult (*alloc)(CUdeviceptr *, size_t);
    CUresult (*free)(CUdeviceptr);
    CUresult (*info)(size_t *, size_t *);
};

/* Takes every function from `look`, which is the program's own way to find one. */
#define DRIVER_FROM(look)                                                            \
    {                                                                                \
        (CUresult(*)(unsigned))look("cuInit"),                                       \
            (CUresult(*)(CUdevice *, int))look("cuDeviceGet"),                       \
            (CUresult(*)(size_t *, CUdevice))look("cuDeviceTotalMem_v2"),            \
            (CUresult(*)(CUcontext *, CUdevice))look("cuDevicePrimaryCtxRetain"),    \
            (CUresult(*)(CUcontext))look("cuCtxSetCurrent"),                         \
            (CUresult(*)(CUdeviceptr *, size_t))look("cuMemAlloc_v2"),               \
            (CUresult(*)(CUdeviceptr))look("cuMemFree_v2"),                          \
            (CUresult(*)(size_t *, size_t *))look("cuMemGetInfo_v2"),                \
    }

/* A context on GPU 0, made current. */
static inline CUresult ready(const struct driver *driver) {
    CUdevice device = -1;
    CUcontext context = NULL;
    CUresult result = driver->init(0);
    if (result == 0) result = driver->device_get(&device, 0);
    if (result == 0) result = driver->retain(&context, device);
    if (result == 0) result = driver->set_current(context);
    return result;
}

/* Under a limit with room for 100 MiB beside the context: 60 go in, 60 more do not, and after a free
 * they do. */
static inline int trial(const struct driver *driver) {
    CUdeviceptr first = 0, second = 0;
    size_t total = 0, free_bytes = 0, limit = 0;
    printf("ready %u\n", ready(driver));
    driver->total_mem(&total, 0);
    printf("total %zu\n", total / MIB);
    printf("first %u\n", driver->alloc(&first, 60 * MIB));
    driver->info(&free_bytes, &limit);
    printf("free %zu of %zu\n", free_bytes / MIB, limit / MIB);
    printf("second %u\n", driver->alloc(&second, 60 * MIB));
    printf("freed %u\n", driver->free(first));
    printf("again %u\n", driver->alloc(&second, 60 * MIB));
    printf("freed %u\n", driver->free(second));
    fflush(stdout);
    return 0;
}

#ifdef __cplusplus
}
#endif

#define LINKED_DRIVER                                                                          \
    {                                                                                          \
        cuInit, cuDeviceGet, cuDeviceTotalMem_v2, cuDevicePrimaryCtxRetain, cuCtxSetCurrent,   \
            cuMemAlloc_v2, cuMemFree_v2, cuMemGetInfo_v2                                       \
    }

#endif
