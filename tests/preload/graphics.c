/* Registers and maps buffers of a graphics API, on the odd driver, which has one. One line in ("NAME NUMBER MIB"), one
 * line out ("NAME result"). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include "driver.h"

extern CUresult cuGraphicsGLRegisterBuffer(size_t *, unsigned, unsigned);
extern CUresult cuGraphicsMapResources(unsigned, size_t *, CUstream);
extern CUresult cuGraphicsUnmapResources(unsigned, size_t *, CUstream);
extern CUresult cuGraphicsUnregisterResource(size_t);

int main(void) {
    const struct driver driver = LINKED_DRIVER;
    int (*is_mapped)(size_t) = (int (*)(size_t))dlsym(RTLD_DEFAULT, "odd_is_mapped");
    size_t resources[16] = {0};
    CUdeviceptr piece = 0;
    char line[128], name[32];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin) != NULL) {
        unsigned n = 0, mib = 0, result = 999;
        sscanf(line, "%31s %u %u", name, &n, &mib);
        n %= 16;
#define IS(what) (strcmp(name, what) == 0)
        if (IS("ready")) result = ready(&driver);
        if (IS("register")) result = cuGraphicsGLRegisterBuffer(&resources[n], mib, 0);
        if (IS("map")) result = cuGraphicsMapResources(1, &resources[n], NULL);
        if (IS("map_all")) result = cuGraphicsMapResources(n, &resources[1], NULL);
        if (IS("unmap")) result = cuGraphicsUnmapResources(1, &resources[n], NULL);
        if (IS("unregister")) result = cuGraphicsUnregisterResource(resources[n]);
        if (IS("alloc")) result = driver.alloc(&piece, mib * MIB);
        if (IS("free")) result = driver.free(piece);
        if (IS("reset")) result = cuDevicePrimaryCtxReset_v2(0);
        if (IS("is_mapped")) result = is_mapped != NULL && is_mapped(resources[n]) ? 0 : 1;
        printf("%s %u\n", name, result);
    }
    return 0;
}
