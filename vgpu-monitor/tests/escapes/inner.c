/* A plugin that finds the driver by itself, from a separate namespace of the dynamic loader. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

typedef unsigned CUresult;

int inner(void)
{
    void *driver = dlopen(getenv("DRIVER"), RTLD_NOW);
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))dlsym(driver, "cuInit");
    CUresult (*get)(int *, int) = (CUresult(*)(int *, int))dlsym(driver, "cuDeviceGet");
    CUresult (*retain)(void **, int) = (CUresult(*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
    CUresult (*set)(void *) = (CUresult(*)(void *))dlsym(driver, "cuCtxSetCurrent");
    CUresult (*alloc)(unsigned long long *, size_t) =
        (CUresult(*)(unsigned long long *, size_t))dlsym(driver, "cuMemAlloc_v2");
    int device = 0;
    void *context = NULL;
    unsigned long long pointer = 0;
    if (!init || !get || !retain || !set || !alloc || init(0) || get(&device, 0) || retain(&context, device) ||
        set(context))
        return 2;
    return alloc(&pointer, (size_t)3 << 30) ? 1 : 0;
}
