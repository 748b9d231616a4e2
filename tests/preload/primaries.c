/* Primary contexts of several devices. One line in, one line out:
 *
 *   OP DEVICE MIB
 */
#include "driver.h"

static CUcontext primaries[2];

static CUresult step(const char *op, int device, size_t bytes) {
    CUdeviceptr pointer;
#define IS(what) (strcmp(op, what) == 0)
    if (IS("init")) return cuInit(0);
    if (IS("retain")) return cuDevicePrimaryCtxRetain(&primaries[device], device);
    if (IS("release")) return cuDevicePrimaryCtxRelease_v2(device);
    if (IS("reset")) return cuDevicePrimaryCtxReset_v2(device);
    if (IS("alloc")) {
        CUresult result = cuCtxSetCurrent(primaries[device]);
        return result != 0 ? result : cuMemAlloc_v2(&pointer, bytes);
    }
    return 999;
}

int main(void) {
    char op[40], line[128];
    while (fgets(line, sizeof line, stdin) != NULL) {
        int device = 0;
        size_t mib = 0;
        if (sscanf(line, "%39s %d %zu", op, &device, &mib) < 1) break;
        printf("%s %u\n", op, step(op, device & 1, mib * MIB));
        fflush(stdout);
    }
    return 0;
}
