// One step after another, each through a different part of the driver's interface. After each step it
// prints the step's name and waits for a line, so that the test can compare the charges.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t Ptr;
typedef struct { char bytes[64]; } Ipc;
typedef struct { int kind, handles, location_kind, location; void *win32; uint8_t rest[8]; } Prop;
typedef struct { int kind, handles, location_kind, location; void *win32; size_t most; uint16_t usage; uint8_t rest[54]; } PoolProps;
typedef struct { size_t width, height, depth; int format; unsigned channels, flags; } Array3D;
typedef struct { PoolProps pool; void *access; size_t access_count, bytes; Ptr ptr; } AllocNode;

static void *driver;
#define MIB ((size_t)1 << 20)
#define CALL(name, type, ...) ((int (*) type)find(#name))(__VA_ARGS__)

static void *find(const char *name) {
    void *function = dlsym(driver, name);
    if (!function) { printf("no %s\n", name); exit(3); }
    return function;
}

static void step(const char *name, int result) {
    char line[8];
    printf("%s %d\n", name, result);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(4);
}

static Prop device_memory(int handles) {
    Prop prop;
    memset(&prop, 0, sizeof prop);
    prop.kind = 1;
    prop.handles = handles;
    prop.location_kind = 1;
    return prop;
}

static void plain(void) {
    Ptr a, b, c, d;
    size_t pitch;
    step("small", CALL(cuMemAlloc_v2, (Ptr *, size_t), &a, 1000));
    step("large", CALL(cuMemAlloc_v2, (Ptr *, size_t), &b, 3 * MIB + 1));
    step("managed", CALL(cuMemAllocManaged, (Ptr *, size_t, unsigned), &c, 5 * MIB, 1));
    step("pitch", CALL(cuMemAllocPitch_v2, (Ptr *, size_t *, size_t, size_t, unsigned), &d, &pitch, 1000, 3000, 4));
    step("free small", CALL(cuMemFree_v2, (Ptr), a));
    step("free large", CALL(cuMemFree_v2, (Ptr), b));
    step("free again", CALL(cuMemFree_v2, (Ptr), b));
    step("free managed", CALL(cuMemFree_v2, (Ptr), c));
    step("free pitch", CALL(cuMemFree_v2, (Ptr), d));
    step("too much", CALL(cuMemAlloc_v2, (Ptr *, size_t), &a, 900 * MIB));
}

static void arrays(void) {
    void *a, *b, *m;
    Array3D flat = {1000, 30, 0, 0x20, 4, 0}, deep = {100, 100, 10, 0x10, 2, 0}, levels = {256, 256, 0, 0x01, 4, 0};
    struct { size_t width, height; int format; unsigned channels; } old = {640, 480, 0x20, 1};
    step("array", CALL(cuArrayCreate_v2, (void **, void *), &a, &old));
    step("free array", CALL(cuArrayDestroy, (void *), a));
    step("array 3d", CALL(cuArray3DCreate_v2, (void **, Array3D *), &a, &flat));
    step("array deep", CALL(cuArray3DCreate_v2, (void **, Array3D *), &b, &deep));
    step("mipmap", CALL(cuMipmappedArrayCreate, (void **, Array3D *, unsigned), &m, &levels, 5));
    step("free array 3d", CALL(cuArrayDestroy, (void *), a));
    step("free array deep", CALL(cuArrayDestroy, (void *), b));
    step("free mipmap", CALL(cuMipmappedArrayDestroy, (void *), m));
}

static void pools(void) {
    Ptr a, b, c;
    void *pool;
    PoolProps props;
    step("async", CALL(cuMemAllocAsync, (Ptr *, size_t, void *), &a, 1 * MIB, 0));
    step("async in the same chunk", CALL(cuMemAllocAsync, (Ptr *, size_t, void *), &b, 2 * MIB, 0));
    step("async big", CALL(cuMemAllocAsync, (Ptr *, size_t, void *), &c, 70 * MIB, 0));
    step("free async", CALL(cuMemFreeAsync, (Ptr, void *), a, 0));
    step("free async big", CALL(cuMemFreeAsync, (Ptr, void *), c, 0));
    step("free async plainly", CALL(cuMemFree_v2, (Ptr), b));
    step("synchronize", CALL(cuCtxSynchronize, (void)));
    memset(&props, 0, sizeof props);
    props.kind = 1;
    props.location_kind = 1;
    step("pool", CALL(cuMemPoolCreate, (void **, PoolProps *), &pool, &props));
    uint64_t keep = 1 << 30;
    step("pool keeps", CALL(cuMemPoolSetAttribute, (void *, int, void *), pool, 4, &keep));
    step("from pool", CALL(cuMemAllocFromPoolAsync, (Ptr *, size_t, void *, void *), &a, 40 * MIB, pool, 0));
    step("free from pool", CALL(cuMemFreeAsync, (Ptr, void *), a, 0));
    step("synchronize kept", CALL(cuStreamSynchronize, (void *), 0));
    step("trim", CALL(cuMemPoolTrimTo, (void *, size_t), pool, 0));
    step("from pool again", CALL(cuMemAllocFromPoolAsync, (Ptr *, size_t, void *, void *), &a, 3 * MIB, pool, 0));
    step("destroy pool", CALL(cuMemPoolDestroy, (void *), pool));
    step("free the last of it", CALL(cuMemFreeAsync, (Ptr, void *), a, 0));
    step("synchronize after", CALL(cuCtxSynchronize, (void)));
}

static void virtual_memory(void) {
    Prop prop = device_memory(1);
    uint64_t a, b, again;
    Ptr range;
    int fd;
    step("create", CALL(cuMemCreate, (uint64_t *, size_t, Prop *, uint64_t), &a, 4 * MIB, &prop, 0));
    step("reserve", CALL(cuMemAddressReserve, (Ptr *, size_t, size_t, Ptr, uint64_t), &range, 8 * MIB, 0, 0, 0));
    step("map", CALL(cuMemMap, (Ptr, size_t, size_t, uint64_t, uint64_t), range, 4 * MIB, 0, a, 0));
    step("release while mapped", CALL(cuMemRelease, (uint64_t), a));
    step("retain", CALL(cuMemRetainAllocationHandle, (uint64_t *, void *), &again, (void *)range));
    step("map twice", CALL(cuMemMap, (Ptr, size_t, size_t, uint64_t, uint64_t), range + 4 * MIB, 4 * MIB, 0, again, 0));
    step("unmap both", CALL(cuMemUnmap, (Ptr, size_t), range, 8 * MIB));
    step("release last", CALL(cuMemRelease, (uint64_t), again));
    step("create to share", CALL(cuMemCreate, (uint64_t *, size_t, Prop *, uint64_t), &a, 6 * MIB, &prop, 0));
    step("export", CALL(cuMemExportToShareableHandle, (void *, uint64_t, int, uint64_t), &fd, a, 1, 0));
    step("import", CALL(cuMemImportFromShareableHandle, (uint64_t *, void *, int), &b, (void *)(long)fd, 1));
    step("release exported", CALL(cuMemRelease, (uint64_t), a));
    step("release imported", CALL(cuMemRelease, (uint64_t), b));
    close(fd);
    prop.location_kind = 2;
    prop.handles = 0;
    CALL(cuMemAddressFree, (Ptr, size_t), range, 8 * MIB);
    step("create on the host", CALL(cuMemCreate, (uint64_t *, size_t, Prop *, uint64_t), &a, 4 * MIB, &prop, 0));
    CALL(cuMemRelease, (uint64_t), a);
}

static const char *PTX = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing()\n{\nret;\n}\n";

static void modules(void) {
    void *module, *library;
    step("module", CALL(cuModuleLoadData, (void **, const void *), &module, PTX));
    step("unload", CALL(cuModuleUnload, (void *), module));
    // Charged when it is loaded, taken when it is first used: compared then.
    CALL(cuLibraryLoadData, (void **, const void *, void *, void *, unsigned, void *, void *, unsigned), &library, PTX, 0, 0, 0, 0, 0, 0);
    step("library used", CALL(cuLibraryGetModule, (void **, void *), &module, library));
    step("unload library", CALL(cuLibraryUnload, (void *), library));
    step("module left to its context", CALL(cuModuleLoadData, (void **, const void *), &module, PTX));
}

static void graphs(void) {
    void *graph, *node, *exec, *stream;
    AllocNode alloc;
    Ptr ptr;
    step("graph", CALL(cuGraphCreate, (void **, unsigned), &graph, 0));
    memset(&alloc, 0, sizeof alloc);
    alloc.pool.kind = 1;
    alloc.pool.location_kind = 1;
    alloc.bytes = 40 * MIB;
    step("memory node", CALL(cuGraphAddMemAllocNode, (void **, void *, void *, size_t, AllocNode *), &node, graph, 0, 0, &alloc));
    void *free_node;
    step("free node", CALL(cuGraphAddMemFreeNode, (void **, void *, void **, size_t, Ptr), &free_node, graph, &node, 1, alloc.ptr));
    step("instantiate", CALL(cuGraphInstantiateWithFlags, (void **, void *, uint64_t), &exec, graph, 0));
    step("graph launch", CALL(cuGraphLaunch, (void *, void *), exec, 0));
    step("graph synchronize", CALL(cuCtxSynchronize, (void)));
    step("graph launch again", CALL(cuGraphLaunch, (void *, void *), exec, 0));
    step("graph synchronize again", CALL(cuCtxSynchronize, (void)));
    step("graph trim", CALL(cuDeviceGraphMemTrim, (int), 0));
    step("exec destroy", CALL(cuGraphExecDestroy, (void *), exec));
    step("graph destroy", CALL(cuGraphDestroy, (void *), graph));
    step("graph trim after", CALL(cuDeviceGraphMemTrim, (int), 0));
    step("stream", CALL(cuStreamCreate, (void **, unsigned), &stream, 1));
    step("capture", CALL(cuStreamBeginCapture_v2, (void *, int), stream, 0));
    step("captured async", CALL(cuMemAllocAsync, (Ptr *, size_t, void *), &ptr, 20 * MIB, stream));
    step("captured free", CALL(cuMemFreeAsync, (Ptr, void *), ptr, stream));
    step("end capture", CALL(cuStreamEndCapture, (void *, void **), stream, &graph));
    step("captured instantiate", CALL(cuGraphInstantiateWithFlags, (void **, void *, uint64_t), &exec, graph, 0));
    step("captured launch", CALL(cuGraphLaunch, (void *, void *), exec, stream));
    step("captured synchronize", CALL(cuStreamSynchronize, (void *), stream));
    CALL(cuGraphExecDestroy, (void *), exec);
    CALL(cuGraphDestroy, (void *), graph);
    step("captured trim", CALL(cuDeviceGraphMemTrim, (int), 0));
}

static void contexts(void) {
    void *own, *before;
    Ptr ptr;
    CALL(cuCtxGetCurrent, (void **), &before);
    step("context", CALL(cuCtxCreate_v2, (void **, unsigned, int), &own, 0, 0));
    step("in it", CALL(cuMemAlloc_v2, (Ptr *, size_t), &ptr, 10 * MIB));
    step("heap", CALL(cuCtxSetLimit, (int, size_t), 2, 20 * MIB));
    step("less heap", CALL(cuCtxSetLimit, (int, size_t), 2, 12 * MIB));
    step("destroy context", CALL(cuCtxDestroy_v2, (void *), own));
    CALL(cuCtxSetCurrent, (void *), before);
    step("left in the primary", CALL(cuMemAlloc_v2, (Ptr *, size_t), &ptr, 7 * MIB));
    step("reset", CALL(cuDevicePrimaryCtxReset_v2, (int), 0));
}

static void ipc(void) {
    Ipc handle;
    Ptr ptr;
    step("to share", CALL(cuMemAlloc_v2, (Ptr *, size_t), &ptr, 8 * MIB));
    step("ipc handle", CALL(cuIpcGetMemHandle, (Ipc *, Ptr), &handle, ptr));
    step("ipc handle again", CALL(cuIpcGetMemHandle, (Ipc *, Ptr), &handle, ptr));
    step("free shared", CALL(cuMemFree_v2, (Ptr), ptr));
}

int main(void) {
    void *context;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return 2;
    step("init", CALL(cuInit, (unsigned), 0));
    step("retain", CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, 0));
    step("current", CALL(cuCtxSetCurrent, (void *), context));
    plain();
    arrays();
    pools();
    virtual_memory();
    graphs();
    ipc();
    modules();
    contexts();
    puts("end");
    return 0;
}
