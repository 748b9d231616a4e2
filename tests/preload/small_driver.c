/* A libcuda.so.1 of a dozen functions in plain C, with one GPU of 1024 MiB. Static programs cannot give
 * thread-local storage to the libraries that they open (glibc then has two accounts of it), so they
 * cannot load the simulated driver. */
#include "driver.h"

static size_t used;
static int current;

CUresult cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
CUresult cuDriverGetVersion(int *version) { return *version = 12040, 0; }
CUresult cuDeviceGetCount(int *count) { return *count = 1, 0; }
CUresult cuDeviceGet(CUdevice *device, int index) { return *device = index, index == 0 ? 0 : 101; }
CUresult cuDeviceGetUuid(char *uuid, CUdevice device) { return memset(uuid, 7, 16), device == 0 ? 0 : 101; }
CUresult cuDeviceGetUuid_v2(char *uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) { return *bytes = 1024 * MIB, device == 0 ? 0 : 101; }
CUresult cuCtxSetCurrent(CUcontext context) { return current = context != NULL, 0; }
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = current ? &current : NULL, 0; }
static int before[8], depth;
CUresult cuCtxPushCurrent_v2(CUcontext context) {
    before[depth++ % 8] = current;
    return cuCtxSetCurrent(context);
}
CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (context != NULL) *context = current ? &current : NULL;
    return current = before[--depth % 8], 0;
}
CUresult cuCtxGetDevice(CUdevice *device) { return *device = 0, current ? 0 : 201; }

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    static int retained;
    if (retained++ == 0) used += 16 * MIB;
    *context = &current;
    return device == 0 ? 0 : 101;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    size_t *block = malloc(sizeof *block);
    *block = bytes;
    used += bytes;
    *pointer = (CUdeviceptr)(size_t)block;
    return 0;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    size_t *block = (size_t *)(size_t)pointer;
    used -= *block;
    free(block);
    return 0;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = 1024 * MIB;
    *free_bytes = *total_bytes - used;
    return 0;
}
