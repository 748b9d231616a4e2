/* A CUDA runtime older than 11.2, as the driver sees it: the context through the public interface, the
 * modules through a private table, past all hooks. One line in, one line out, as in memory.c. */
#include <stdint.h>
#include "driver.h"

typedef void *handle;
typedef struct { unsigned char bytes[16]; } uuid;
typedef struct {
    size_t size;
    CUresult (*load_module)(handle *, const void *);
    CUresult (*primary_context)(CUcontext *, CUdevice);
} table;

typedef struct { int type, handles, where, device; void *attributes; size_t max; char reserved[56]; } pool_props;

extern CUresult cuMemPoolCreate(handle *, const pool_props *);
extern CUresult cuMemPoolSetAttribute(handle, int, void *);
extern CUresult cuMemPoolGetAttribute(handle, int, void *);
extern CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, handle, CUstream);
extern CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuGetExportTable(const void **, const uuid *);

static const struct driver driver = LINKED_DRIVER;
static const table *runtime;
static CUdeviceptr pieces[64];
static size_t taken;

static CUresult find_table(void) {
    static const uuid id = {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12,
                             0xfd, 0x9d, 0xf9}};
    return cuGetExportTable((const void **)&runtime, &id);
}

/* A fat binary whose one entry says that it unpacks to that many bytes; its contents are never read. */
static CUresult load(size_t bytes) {
    struct {
        uint32_t magic; uint16_t version, header; uint64_t size;
        struct { uint16_t kind, version; uint32_t header; uint64_t padded; char skipped[40]; uint64_t unpacked; } entry;
        uint64_t code, end[2];
    } *image = calloc(1, sizeof *image);
    handle module = NULL;
    image->magic = 0xba55ed50;
    image->version = 1;
    image->header = 16;
    image->size = sizeof *image - 16;
    image->entry.kind = 2;
    image->entry.header = 64;
    image->entry.padded = 8;
    image->entry.unpacked = bytes;
    return runtime->load_module(&module, image);
}

/* A pool that keeps what it was given: so much of it, none in use. */
static handle pool;
static CUresult keep(size_t bytes) {
    static const pool_props props = {.type = 1, .where = 1};
    unsigned long long all = ~0ull;
    CUdeviceptr piece;
    CUresult result = cuMemPoolCreate(&pool, &props);
    if (result == 0) result = cuMemPoolSetAttribute(pool, 4, &all);
    if (result == 0) result = cuMemAllocFromPoolAsync(&piece, bytes, pool, NULL);
    if (result == 0) result = cuMemFreeAsync(piece, NULL);
    return result != 0 ? result : cuCtxSynchronize();
}

static CUresult kept_nothing(void) {
    unsigned long long reserved = 1;
    CUresult result = cuMemPoolGetAttribute(pool, 5, &reserved);
    return result != 0 ? result : reserved != 0;
}

static CUresult step(const char *name, size_t bytes) {
    CUcontext context = NULL;
    CUresult result;
#define IS(what) (strcmp(name, what) == 0)
    if (IS("table")) return (result = driver.init(0)) != 0 ? result : find_table();
    if (IS("init")) return driver.init(0);
    if (IS("context")) {
        result = driver.retain(&context, 0);
        return result != 0 ? result : driver.set_current(context);
    }
    if (IS("private_context")) {
        result = runtime->primary_context(&context, 0);
        return result != 0 ? result : driver.set_current(context);
    }
    if (IS("reset")) return cuDevicePrimaryCtxReset_v2(0);
    if (IS("load")) return load(bytes);
    if (IS("keep")) return keep(bytes);
    if (IS("kept_nothing")) return kept_nothing();
    if (IS("sync")) return cuCtxSynchronize();
    if (IS("alloc")) {
        result = driver.alloc(&pieces[taken], bytes);
        if (result == 0) taken++;
        return result;
    }
    if (IS("free")) return driver.free(pieces[--taken]);
    return 999;
}

int main(void) {
    char name[64], line[128];
    while (fgets(line, sizeof line, stdin) != NULL) {
        double mib = 0;
        if (sscanf(line, "%63s %lf", name, &mib) < 1) break;
        printf("%s %u\n", name, step(name, (size_t)(mib * MIB)));
        fflush(stdout);
    }
    return 0;
}
