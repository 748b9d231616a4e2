/* An interpreter of calls that make, map, share and free memory: one line in ("NAME NUMBER..."), one line
 * out ("NAME result"). Handles and pointers are kept in numbered slots. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#include "descriptor.h"
#include "driver.h"

typedef void *handle;
typedef unsigned long long memory;
typedef struct { int type, id; } location;
typedef struct { location where; int flags; } access_desc;
typedef struct { int type, handles; location where; void *metadata; unsigned char flags[8]; } alloc_prop;
typedef struct { unsigned devices; size_t bytes; unsigned long long handles, flags; } multicast_prop;
typedef struct { char bytes[64]; } ipc_handle;
typedef struct { size_t width, height, depth; unsigned format, channels, flags; } array3d_desc;
typedef struct {
    int type;
    union { int file; const void *other[2]; } handle;
    unsigned long long bytes;
    unsigned flags, reserved[16];
} external_desc;

typedef struct {
    int type; handle array; int sub, pad; unsigned level, layer, x, y, z, w, h, d;
    int operation, handle_type; memory memory; unsigned long long offset; unsigned devices, flags, reserved[2];
} map_info;
typedef struct { unsigned char old[16], new[16]; } gpu_pair;

extern CUresult cuMemMapArrayAsync(map_info *, unsigned, CUstream);
extern CUresult cuStreamCreate(CUstream *, unsigned);
extern CUresult cuStreamSynchronize(CUstream);
extern CUresult cuStreamWaitValue32_v2(CUstream, CUdeviceptr, unsigned, unsigned);
extern CUresult cuMemsetD32_v2(CUdeviceptr, unsigned, size_t);
extern CUresult cuDeviceGetUuid_v2(unsigned char *, CUdevice);
extern CUresult cuCheckpointProcessLock(int, void *);
extern CUresult cuCheckpointProcessCheckpoint(int, void *);
extern CUresult cuCheckpointProcessRestore(int, void *);
extern CUresult cuCheckpointProcessUnlock(int, void *);
extern CUresult cuMemCreate(memory *, size_t, const alloc_prop *, unsigned long long);
extern CUresult cuMemRelease(memory);
extern CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
extern CUresult cuMemAddressFree(CUdeviceptr, size_t);
extern CUresult cuMemMap(CUdeviceptr, size_t, size_t, memory, unsigned long long);
extern CUresult cuMemUnmap(CUdeviceptr, size_t);
extern CUresult cuMemSetAccess(CUdeviceptr, size_t, const access_desc *, size_t);
extern CUresult cuMemRetainAllocationHandle(memory *, void *);
extern CUresult cuMemExportToShareableHandle(void *, memory, int, unsigned long long);
extern CUresult cuMemImportFromShareableHandle(memory *, void *, int);
extern CUresult cuMemGetHandleForAddressRange(void *, CUdeviceptr, size_t, int, unsigned long long);
extern CUresult cuIpcGetMemHandle(ipc_handle *, CUdeviceptr);
extern CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, ipc_handle, unsigned);
extern CUresult cuIpcCloseMemHandle(CUdeviceptr);
extern CUresult cuMulticastCreate(memory *, const multicast_prop *);
extern CUresult cuMulticastAddDevice(memory, CUdevice);
extern CUresult cuMulticastBindMem(memory, size_t, memory, size_t, size_t, unsigned long long);
extern CUresult cuMulticastUnbind(memory, CUdevice, size_t, size_t);
extern CUresult cuArray3DCreate_v2(handle *, const array3d_desc *);
extern CUresult cuArrayDestroy(handle);
extern CUresult cuImportExternalMemory(handle *, const external_desc *);
extern CUresult cuDestroyExternalMemory(handle);
extern CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
extern CUresult cuCtxDestroy_v2(CUcontext);

#define FIRST(a, b) ({ CUresult first_ = (a); first_ != 0 ? first_ : (b); })
#define IS(what) (strcmp(name, what) == 0)

static const struct driver driver = LINKED_DRIVER;
static CUcontext primary, context;
static memory handles[16];
static CUdeviceptr pointers[16];
static handle externals[16], arrays[16];
static int files[16];
static CUstream stream;
static CUdeviceptr word;
static pthread_t thread;

static void *release_in_a_thread(void *of) { return (void *)(size_t)cuMemRelease(*(memory *)of); }

/* A function of the driver itself, as a program finds it that reads the driver's symbols: no hook is in the way. */
static const char *sought;
static int find_in(struct dl_phdr_info *library, size_t size, void *found) {
    const char *texts = NULL;
    const ElfW(Sym) *symbols = NULL;
    size_t length = 0;
    (void)size;
    if (strstr(library->dlpi_name, "libcuda.so") == NULL) return 0;
    for (int i = 0; i < library->dlpi_phnum; i++) {
        if (library->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        const ElfW(Dyn) *entry = (const void *)(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++) {
            if (entry->d_tag == DT_STRTAB) texts = (const void *)entry->d_un.d_ptr;
            if (entry->d_tag == DT_STRSZ) length = entry->d_un.d_val;
            if (entry->d_tag == DT_SYMTAB) symbols = (const void *)entry->d_un.d_ptr;
        }
    }
    /* The texts stand behind the symbols, with other tables between them. */
    for (; symbols != NULL && (const char *)symbols < texts && *(void **)found == NULL; symbols++)
        if (symbols->st_value != 0 && symbols->st_name < length && strcmp(texts + symbols->st_name, sought) == 0)
            *(void **)found = (void *)(library->dlpi_addr + symbols->st_value);
    return 1;
}
static void *past(const char *name) {
    void *found = NULL;
    sought = name;
    dl_iterate_phdr(find_in, &found);
    return found;
}

/* The megabytes of a call. */
static size_t mib(double number) { return (size_t)(number * (double)MIB); }

static CUresult create(memory *out, size_t bytes, location where) {
    const alloc_prop prop = {.type = 1, .handles = 1, .where = where};
    return cuMemCreate(out, bytes, &prop, 0);
}

static CUresult map(CUdeviceptr *out, size_t bytes, size_t offset, memory of) {
    const access_desc access = {{1, 0}, 3};
    CUresult result = cuMemAddressReserve(out, bytes, 0, 0, 0);
    if (result != 0) return result;
    result = cuMemMap(*out, bytes, offset, of, 0);
    if (result != 0) {
        cuMemAddressFree(*out, bytes);
        return result;
    }
    return cuMemSetAccess(*out, bytes, &access, 1);
}

/* Rows of a sparse array, a MiB each; what lies between the fields of the structure means nothing. */
static CUresult rows(handle array, double from, double count, memory of) {
    static int noise;
    map_info info = {.array = array, .pad = ++noise, .y = (unsigned)(from * 128), .w = 2048, .h = (unsigned)(count * 128), .d = 1,
                     .operation = of != 0 ? 1 : 2, .memory = of, .devices = 1};
    return cuMemMapArrayAsync(&info, 1, stream);
}

/* Restores a process, the first GPU's memory onto the second. */
static CUresult restore_elsewhere(int process) {
    gpu_pair pairs[2];
    struct { gpu_pair *pairs; unsigned count; unsigned reserved[11]; unsigned long long rest[2]; } args = {.pairs = pairs, .count = 2};
    for (int gpu = 0; gpu < 2; gpu++) {
        cuDeviceGetUuid_v2(pairs[gpu].old, gpu);
        cuDeviceGetUuid_v2(pairs[gpu].new, 1 - gpu);
    }
    return cuCheckpointProcessRestore(process, &args);
}

static CUresult step(const char *name, int n, double a, double b, double c) {
    CUresult result = 0;
    if (IS("ready")) return FIRST(ready(&driver), driver.retain(&primary, 0));
    if (IS("create")) return create(&handles[n], mib(a), (location){1, 0});
    if (IS("create_past")) {
        const alloc_prop prop = {.type = 1, .handles = 1, .where = {1, 0}};
        CUresult (*create_past)(memory *, size_t, const alloc_prop *, unsigned long long) = past("cuMemCreate");
        return create_past == NULL ? 998 : create_past(&handles[n], mib(a), &prop, 0);
    }
    if (IS("create_on")) return create(&handles[n], mib(a), (location){1, (int)b});
    if (IS("create_at")) return create(&handles[n], mib(a), (location){(int)b, (int)c});
    if (IS("release")) return cuMemRelease(handles[n]);
    if (IS("release_slowly")) return pthread_create(&thread, NULL, release_in_a_thread, &handles[n]);
    if (IS("released")) {
        void *answer;
        pthread_join(thread, &answer);
        return (CUresult)(size_t)answer;
    }
    if (IS("map")) return map(&pointers[n], mib(b), 0, handles[(int)a]);
    if (IS("map_number")) return map(&pointers[n], mib(b), 0, (memory)a);
    if (IS("unmap")) return FIRST(cuMemUnmap(pointers[n], mib(a)), cuMemAddressFree(pointers[n], mib(a)));
    if (IS("retain")) return cuMemRetainAllocationHandle(&handles[n], (void *)pointers[(int)a]);
    if (IS("retain_often")) {
        for (int i = 0; i < (int)b && result == 0; i++)
            result = cuMemRetainAllocationHandle(&handles[n], (void *)pointers[(int)a]);
        return result;
    }
    if (IS("release_often")) {
        for (int i = 0; i < (int)a && result == 0; i++) result = cuMemRelease(handles[n]);
        return result;
    }
    if (IS("export")) return cuMemExportToShareableHandle(&files[n], handles[(int)a], 1, 0);
    if (IS("import")) return cuMemImportFromShareableHandle(&handles[n], (void *)(size_t)files[(int)a], 1);
    if (IS("import_often")) {
        for (int i = 0; i < (int)b && result == 0; i++)
            result = cuMemImportFromShareableHandle(&handles[n], (void *)(size_t)files[(int)a], 1);
        return result;
    }
    if (IS("range")) return cuMemGetHandleForAddressRange(&files[n], pointers[(int)a], mib(b), 1, 0);
    if (IS("close_file")) return close(files[n]);
    if (IS("alloc")) return driver.alloc(&pointers[n], mib(a));
    if (IS("free")) return driver.free(pointers[n]);
    if (IS("close")) return cuIpcCloseMemHandle(pointers[n]);
    if (IS("close_often")) {
        for (int i = 0; i < (int)a && result == 0; i++) result = cuIpcCloseMemHandle(pointers[n]);
        return result;
    }
    if (IS("multicast")) {
        const multicast_prop prop = {.devices = (unsigned)b, .bytes = mib(a)};
        result = cuMulticastCreate(&handles[n], &prop);
        for (int i = 0; i < (int)b && result == 0; i++) result = cuMulticastAddDevice(handles[n], i);
        return result;
    }
    if (IS("bind")) return cuMulticastBindMem(handles[n], 0, handles[(int)a], 0, mib(b), 0);
    if (IS("unbind")) return cuMulticastUnbind(handles[n], (int)a, 0, mib(b));
    if (IS("array")) return cuArray3DCreate_v2(&arrays[n], &(array3d_desc){1024, mib(c) / 1024, 0, (unsigned)a, (unsigned)b, 0});
    if (IS("array_destroy")) return cuArrayDestroy(arrays[n]);
    if (IS("external")) {
        int file = memfd_create("external", 0);
        if (file < 0 || ftruncate(file, (off_t)mib(a)) != 0) return 998;
        external_desc desc = {.type = b != 0 ? (int)b : 1, .handle.file = file, .bytes = mib(a)};
        return cuImportExternalMemory(&externals[n], &desc);
    }
    if (IS("external_bytes")) { /* as large as the words say, in bytes */
        external_desc desc = {.type = 1, .handle.file = memfd_create("external", 0), .bytes = ~0ull - (unsigned long long)a};
        return cuImportExternalMemory(&externals[n], &desc);
    }
    if (IS("sparse")) return cuArray3DCreate_v2(&arrays[n], &(array3d_desc){2048, mib(a) / 8192, 0, 0x20, 1, 0x40});
    if (IS("under")) return rows(arrays[n], b, c, handles[(int)a]);
    if (IS("off")) return rows(arrays[n], a, b, 0);
    if (IS("block"))
        return FIRST(driver.alloc(&word, 4), FIRST(cuMemsetD32_v2(word, 0, 1),
               FIRST(cuStreamCreate(&stream, 1), cuStreamWaitValue32_v2(stream, word, 1, 0))));
    if (IS("open_stream")) return FIRST(cuMemsetD32_v2(word, 1, 1), cuStreamSynchronize(stream));
    if (IS("lock")) return cuCheckpointProcessLock((int)a, NULL);
    if (IS("checkpoint")) return cuCheckpointProcessCheckpoint((int)a, NULL);
    if (IS("restore")) return cuCheckpointProcessRestore((int)a, NULL);
    if (IS("restore_elsewhere")) return restore_elsewhere((int)a);
    if (IS("unlock")) return cuCheckpointProcessUnlock((int)a, NULL);
    if (IS("external_destroy")) return cuDestroyExternalMemory(externals[n]);
    if (IS("context")) return cuCtxCreate_v2(&context, 0, 0);
    if (IS("context_destroy")) return FIRST(cuCtxDestroy_v2(context), driver.set_current(primary));
    return 999;
}

int main(void) {
    char line[512], name[32], text[400];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin) != NULL) {
        ipc_handle named;
        int n = 0;
        double a = 0, b = 0, c = 0;
        text[0] = 0;
        sscanf(line, "%31s %d %lf %lf %lf", name, &n, &a, &b, &c);
        sscanf(line, "%*s %*d %399s", text);
        n &= 15;
        if (IS("offer")) { /* a descriptor that others may copy */
            printf("offer 0 /proc/%d/fd/%d\n", getpid(), files[n]);
        } else if (IS("accept")) {
            int file = file_of(text);
            printf("accept %u\n", file < 0 ? 998 : cuMemImportFromShareableHandle(&handles[n], (void *)(size_t)file, 1));
            close(file);
        } else if (IS("name")) { /* at an offset of so many KiB */
            printf("name %u ", cuIpcGetMemHandle(&named, pointers[n] + (size_t)a * 1024));
            for (int i = 0; i < 64; i++) printf("%02hhx", (unsigned char)named.bytes[i]);
            printf("\n");
        } else if (IS("open") || IS("open_often")) {
            double times = 1;
            CUresult result = 0;
            sscanf(line, "%*s %*d %*s %lf", &times);
            for (int i = 0; i < 64; i++) sscanf(text + 2 * i, "%2hhx", (unsigned char *)&named.bytes[i]);
            for (int i = 0; i < (int)times && result == 0; i++) result = cuIpcOpenMemHandle_v2(&pointers[n], named, 1);
            printf("%s %u\n", name, result);
        } else {
            printf("%s %u\n", name, step(name, n, a, b, c));
        }
    }
    return 0;
}
