/* An interpreter of allocation calls: one line in, one line out. Between two lines the test compares
 * our charges with the simulated driver's memory. "NAME result" is the answer to every line. */
#include <fcntl.h>
#include <unistd.h>
#include "descriptor.h"
#include "driver.h"

typedef void *handle;
typedef struct { int type, id; } location;
typedef struct { location where; int flags; } access_desc;
typedef struct { int type, handles; location where; void *metadata; unsigned char flags[8]; } alloc_prop;
typedef struct { int type, handles; location where; void *attributes; size_t max; char reserved[56]; } pool_props;
typedef struct { pool_props pool; const access_desc *access; size_t count, bytes; CUdeviceptr pointer; } node_params;
typedef struct { size_t width, height; unsigned format, channels; } array_desc;
typedef struct { size_t width, height, depth; unsigned format, channels, flags; } array3d_desc;
typedef struct { char bytes[64]; } ipc_handle;

extern CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
extern CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
extern CUresult cuMemAllocHost_v2(void **, size_t);
extern CUresult cuMemFreeHost(void *);
extern CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
extern CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
extern CUresult cuMemPoolCreate(handle *, const pool_props *);
extern CUresult cuMemPoolDestroy(handle);
extern CUresult cuMemPoolTrimTo(handle, size_t);
extern CUresult cuMemPoolSetAttribute(handle, int, void *);
extern CUresult cuDeviceGetDefaultMemPool(handle *, CUdevice);
extern CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, handle, CUstream);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuMemCreate(unsigned long long *, size_t, const alloc_prop *, unsigned long long);
extern CUresult cuMemRelease(unsigned long long);
extern CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
extern CUresult cuMemAddressFree(CUdeviceptr, size_t);
extern CUresult cuMemMap(CUdeviceptr, size_t, size_t, unsigned long long, unsigned long long);
extern CUresult cuMemUnmap(CUdeviceptr, size_t);
extern CUresult cuMemSetAccess(CUdeviceptr, size_t, const access_desc *, size_t);
extern CUresult cuMemRetainAllocationHandle(unsigned long long *, void *);
extern CUresult cuArrayCreate_v2(handle *, const array_desc *);
extern CUresult cuArray3DCreate_v2(handle *, const array3d_desc *);
extern CUresult cuArrayDestroy(handle);
extern CUresult cuMipmappedArrayCreate(handle *, const array3d_desc *, unsigned);
extern CUresult cuMipmappedArrayDestroy(handle);
extern CUresult cuIpcGetMemHandle(ipc_handle *, CUdeviceptr);
extern CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, ipc_handle, unsigned);
extern CUresult cuIpcCloseMemHandle(CUdeviceptr);
extern CUresult cuGraphCreate(handle *, unsigned);
extern CUresult cuGraphAddMemAllocNode(handle *, handle, const handle *, size_t, node_params *);
extern CUresult cuGraphInstantiateWithFlags(handle *, handle, unsigned long long);
extern CUresult cuGraphLaunch(handle, CUstream);
extern CUresult cuGraphExecDestroy(handle);
extern CUresult cuGraphDestroy(handle);
extern CUresult cuDeviceGraphMemTrim(CUdevice);
extern CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
extern CUresult cuCtxDestroy_v2(CUcontext);
extern CUresult cuModuleLoadData(handle *, const void *);
extern CUresult cuModuleUnload(handle);

#define FIRST(a, b) ({ CUresult first_ = (a); first_ != 0 ? first_ : (b); })

extern CUresult cuMemExportToShareableHandle(void *, unsigned long long, int, unsigned long long);
extern CUresult cuMemImportFromShareableHandle(unsigned long long *, void *, int);

static const struct driver driver = LINKED_DRIVER;
static CUcontext primary, context;
static CUdeviceptr plain, pitched, managed, ordered, pooled, mapped, imported, in_graph;
static unsigned long long created, retained;
static handle pool, array, volume, mipmap, graph, executable, module;
static void *host;
static const char image[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

static CUresult step(const char *name, size_t bytes, const char *text) {
    const alloc_prop prop = {.type = 1, .handles = 1, .where = {1, 0}};
    const pool_props in_pool = {.type = 1, .where = {1, 0}};
    const access_desc access = {{1, 0}, 3};
    size_t number = bytes;
#define IS(what) (strcmp(name, what) == 0)
    if (IS("ready")) return FIRST(ready(&driver), driver.retain(&primary, 0));
    if (IS("alloc")) return driver.alloc(&plain, bytes);
    if (IS("free")) return driver.free(plain);
    if (IS("pitch")) return cuMemAllocPitch_v2(&pitched, &number, 1000, bytes / 1024, 4);
    if (IS("pitch_free")) return driver.free(pitched);
    if (IS("managed")) return cuMemAllocManaged(&managed, bytes, 1);
    if (IS("managed_free")) return driver.free(managed);
    if (IS("host")) return cuMemAllocHost_v2(&host, bytes);
    if (IS("host_free")) return cuMemFreeHost(host);
    if (IS("async")) return cuMemAllocAsync(&ordered, bytes, NULL);
    if (IS("async_free")) return cuMemFreeAsync(ordered, NULL);
    if (IS("async_free_plainly")) return driver.free(ordered);
    if (IS("sync")) return cuCtxSynchronize();
    if (IS("pool")) return cuMemPoolCreate(&pool, &in_pool);
    if (IS("keep")) return cuMemPoolSetAttribute(pool, 4, &number); /* the release threshold */
    if (IS("pool_alloc")) return cuMemAllocFromPoolAsync(&pooled, bytes, pool, NULL);
    if (IS("pool_free")) return cuMemFreeAsync(pooled, NULL);
    if (IS("trim")) return cuMemPoolTrimTo(pool, 0);
    if (IS("pool_destroy")) return cuMemPoolDestroy(pool);
    if (IS("create")) return cuMemCreate(&created, bytes, &prop, 0);
    if (IS("map"))
        return FIRST(cuMemAddressReserve(&mapped, bytes, 0, 0, 0),
                     FIRST(cuMemMap(mapped, bytes, 0, created, 0), cuMemSetAccess(mapped, bytes, &access, 1)));
    if (IS("retain")) return cuMemRetainAllocationHandle(&retained, (void *)mapped);
    if (IS("release_retained")) return cuMemRelease(retained);
    if (IS("release")) return cuMemRelease(created);
    if (IS("unmap")) return FIRST(cuMemUnmap(mapped, bytes), cuMemAddressFree(mapped, bytes));
    if (IS("array")) return cuArrayCreate_v2(&array, &(array_desc){1000, bytes / 4000, 0x20, 1});
    if (IS("array_destroy")) return cuArrayDestroy(array);
    if (IS("volume")) return cuArray3DCreate_v2(&volume, &(array3d_desc){100, 100, bytes / 40000, 0x20, 1, 0});
    if (IS("volume_destroy")) return cuArrayDestroy(volume);
    if (IS("mipmap")) return cuMipmappedArrayCreate(&mipmap, &(array3d_desc){1024, bytes / 4096, 0, 0x20, 1, 0}, 4);
    if (IS("mipmap_destroy")) return cuMipmappedArrayDestroy(mipmap);
    if (IS("import")) {
        ipc_handle named;
        for (int i = 0; i < 64; i++) sscanf(text + 2 * i, "%2hhx", (unsigned char *)&named.bytes[i]);
        return cuIpcOpenMemHandle_v2(&imported, named, 1);
    }
    if (IS("accept")) { /* a descriptor of another process: a copy of it is ours */
        int file = file_of(text);
        CUresult result = file < 0 ? 998 : cuMemImportFromShareableHandle(&created, (void *)(size_t)file, 1);
        close(file);
        return result;
    }
    if (IS("close")) return cuIpcCloseMemHandle(imported);
    if (IS("graph")) {
        node_params params = {.pool = in_pool, .access = &access, .count = 1, .bytes = bytes};
        handle node;
        CUresult result = cuGraphCreate(&graph, 0);
        if (result == 0) result = cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params);
        in_graph = params.pointer;
        return result != 0 ? result : cuGraphInstantiateWithFlags(&executable, graph, 0);
    }
    if (IS("launch")) return FIRST(cuGraphLaunch(executable, NULL), cuCtxSynchronize());
    if (IS("graph_free")) return FIRST(cuMemFreeAsync(in_graph, NULL), cuCtxSynchronize());
    if (IS("graph_destroy")) return FIRST(cuGraphExecDestroy(executable), cuGraphDestroy(graph));
    if (IS("graph_trim")) return cuDeviceGraphMemTrim(0);
    if (IS("context")) return cuCtxCreate_v2(&context, 0, 0);
    if (IS("context_destroy")) return FIRST(cuCtxDestroy_v2(context), driver.set_current(primary));
    if (IS("reset")) return cuDevicePrimaryCtxReset_v2(0);
    if (IS("module")) return cuModuleLoadData(&module, image);
    if (IS("module_unload")) return cuModuleUnload(module);
    return 999;
}

int main(void) {
    char line[256], name[32], text[200];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin) != NULL) {
        ipc_handle named;
        text[0] = 0;
        sscanf(line, "%31s %199s", name, text);
        if (strcmp(name, "offer") == 0) {
            int file = -1;
            CUresult result = cuMemExportToShareableHandle(&file, created, 1, 0);
            printf("offer %u /proc/%d/fd/%d\n", result, getpid(), file);
        } else if (strcmp(name, "export") == 0) {
            printf("export %u ", cuIpcGetMemHandle(&named, plain));
            for (int i = 0; i < 64; i++) printf("%02hhx", (unsigned char)named.bytes[i]);
            printf("\n");
        } else if (strcmp(name, "fork") == 0) { /* a child that outlives us and asks the driver nothing */
            int ready[2] = {-1, -1};
            char byte = 0;
            pid_t child = pipe(ready) == 0 ? fork() : -1;
            if (child == 0) {
                if (write(ready[1], &byte, 1) != 1) _exit(1);
                for (int file = 0; file < 3; file++) close(file);
                for (;;) pause();
            }
            printf("fork %d\n", read(ready[0], &byte, 1) == 1 ? child : -1);
        } else if (strcmp(name, "info") == 0) {
            size_t free_bytes = 0, total = 0;
            CUresult result = driver.info(&free_bytes, &total);
            printf("info %u %zu %zu\n", result, free_bytes, total);
        } else {
            printf("%s %u\n", name, step(name, (size_t)(atof(text) * (double)MIB), text));
        }
    }
    return 0;
}
