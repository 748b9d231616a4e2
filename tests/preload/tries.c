/* Tries to take twice the container's limit by one name of the driver alone.
 *
 *   tries NAME BASE VERSION FLAGS RECIPE       calls NAME, found by dlsym or else by cuGetProcAddress(BASE)
 *
 * It prints a line "LABEL CODE" after each step and waits for a line before the next, so that the test can
 * compare the charges with the simulated driver's memory in between. A step that takes memory after some was
 * freed has the label "retake". The last line is "done 0".
 *
 *   tries serve KIND                           a process outside the container that exports its memory
 *   tries hold NAME                            a process of the container with one primary context */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "takers.h"

#define PIECE (16 * MIB)
#define PIECES 20
#define MANY 160

static const struct driver driver = LINKED_DRIVER;
static void *f; /* the name that is tried */
static const char *self_path;
static const alloc_prop created_props = {.type = 1, .handles = 1, .where = {1, 0}};
static const pool_props in_pool = {.type = 1, .where = {1, 0}};
static const pool_props shared_pool = {.type = 1, .handles = 1, .where = {1, 0}};
static const access_desc both_ways = {{1, 0}, 3};

/* Sixteen mebibytes in a variable, and some code. */
static const char image[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 ballast[16777216];\n"
    ".visible .entry nothing() { ret; }\n";

static CUresult did(const char *label, CUresult result) {
    char line[16];
    printf("%s %u\n", label, result);
    if (fgets(line, sizeof line, stdin) == NULL) exit(3);
    return result;
}

/* --- what can be taken and given back, by number ------------------------------------------------- */

static CUdeviceptr pointers[MANY];
static u64 created[MANY];
static handle handles[MANY], others[MANY];
static CUcontext contexts[MANY], primary;
static handle pool;
static CUstream stream, blocked;
static CUdeviceptr flag;

#define AS(type) ((CUresult(*) type)f)

static CUresult map_at(CUresult (*map)(CUdeviceptr, size_t, size_t, u64, u64), int i) {
    CUresult result = cuMemAddressReserve(&pointers[i], PIECE, 0, 0, 0);
    if (result == 0) result = map(pointers[i], PIECE, 0, created[i], 0);
    if (result == 0) result = cuMemSetAccess(pointers[i], PIECE, &both_ways, 1);
    return result;
}

/* A graph that allocates a piece and keeps it, there. */
static CUdeviceptr kept;
static CUresult allocating(handle *graph, size_t bytes) {
    node_params params = {.pool = in_pool, .access = &both_ways, .count = 1, .bytes = bytes};
    handle node;
    CUresult result = cuGraphCreate(graph, 0);
    if (result == 0) result = cuGraphAddMemAllocNode(&node, *graph, NULL, 0, &params);
    kept = params.pointer;
    return result;
}

static CUresult launched(handle graph, handle *executable) {
    CUresult result = cuGraphInstantiateWithFlags(executable, graph, 0);
    if (result == 0) result = cuGraphLaunch(*executable, stream);
    return result != 0 ? result : cuCtxSynchronize();
}

#define TAKE(name) static CUresult take_##name(int i)
TAKE(alloc) { return cuMemAlloc_v2(&pointers[i], PIECE); }
TAKE(alloc_v1) { return ((CUresult(*)(unsigned *, unsigned))dlsym(RTLD_DEFAULT, "cuMemAlloc"))((unsigned *)&pointers[i], PIECE); }
TAKE(async) { return cuMemAllocAsync(&pointers[i], PIECE, stream); }
TAKE(pooled) { return cuMemAllocFromPoolAsync(&pointers[i], PIECE, pool, stream); }
TAKE(in_pools) {
    CUresult result = cuMemPoolCreate(&handles[i], &in_pool);
    return result != 0 ? result : cuMemAllocFromPoolAsync(&pointers[i], PIECE, handles[i], stream);
}
TAKE(created) { return cuMemCreate(&created[i], PIECE, &created_props, 0); }
TAKE(mapped) {
    CUresult result = cuMemCreate(&created[i], PIECE, &created_props, 0);
    if (result == 0) result = map_at(cuMemMap, i);
    return result != 0 ? result : cuMemRelease(created[i]);
}
TAKE(array) { return cuArrayCreate_v2(&handles[i], &(array_desc){2048, PIECE / 8192, 0x20, 1}); }
TAKE(mipmap) { return cuMipmappedArrayCreate(&handles[i], &(array3d_desc){2048, PIECE / 8192, 0, 0x20, 1, 0}, 4); }
TAKE(context) {
    CUresult result = cuCtxCreate_v2(&contexts[i], 0, 0);
    driver.set_current(primary);
    return result;
}
TAKE(green) {
    resource whole;
    handle desc;
    CUresult result = cuDeviceGetDevResource(0, &whole, 1);
    if (result == 0) result = cuDevResourceGenerateDesc(&desc, &whole, 1);
    return result != 0 ? result : cuGreenCtxCreate(&handles[i], desc, 0, 1);
}
TAKE(module) { return cuModuleLoadData(&handles[i], image); }
TAKE(library) {
    handle module;
    CUresult result = cuLibraryLoadData(&handles[i], image, NULL, NULL, 0, NULL, NULL, 0);
    return result != 0 ? result : cuLibraryGetModule(&module, handles[i]);
}
TAKE(graph) {
    CUresult result = allocating(&handles[i], PIECE);
    pointers[i] = kept;
    return result != 0 ? result : launched(handles[i], &others[i]);
}
TAKE(bound) {
    multicast_prop prop = {.devices = 1, .size = PIECE};
    CUresult result = cuMulticastCreate((u64 *)&handles[i], &prop);
    if (result == 0) result = cuMulticastAddDevice((u64)handles[i], 0);
    if (result == 0) result = cuMemCreate(&created[i], PIECE, &created_props, 0);
    if (result == 0) result = cuMulticastBindMem((u64)handles[i], 0, created[i], 0, PIECE, 0);
    return result != 0 ? result : cuMemRelease(created[i]);
}
static CUresult external(CUresult (*import)(handle *, const external_desc *), int i) {
    external_desc desc = {.type = 1, .size = PIECE};
    desc.what.fd = memfd_create("external", 0);
    if (ftruncate(desc.what.fd, PIECE) != 0) return 999;
    return import(&handles[i], &desc);
}
TAKE(external) { return external(cuImportExternalMemory, i); }

/* --- memory of a process outside the container ------------------------------------------------------ */

static FILE *served;
static pid_t server;

/* Starts "tries serve KIND" without the library. */
static void ask_outside(const char *kind) {
    int ends[2];
    if (pipe(ends) != 0) exit(4);
    server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        unsetenv("LD_PRELOAD");
        dup2(ends[1], 1);
        execl(self_path, "tries", "serve", kind, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    served = fdopen(ends[0], "r");
}

static void end_outside(void) {
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    did("dead", 0);
}

static int serve(const char *kind) {
    CUcontext context;
    name64 name;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (driver.init(0) != 0 || driver.retain(&context, 0) != 0 || driver.set_current(context) != 0) return 1;
    if (kind[0] == 'p') {
        int fd;
        if (cuMemPoolCreate(&pool, &shared_pool) != 0) return 1;
        if (cuMemPoolExportToShareableHandle(&fd, pool, 1, 0) != 0) return 1;
        printf("/proc/%d/fd/%d\n", getpid(), fd);
    }
    for (int i = 0; i < PIECES; i++) {
        int fd;
        CUresult result = 0;
        switch (kind[0]) {
        case 'i':
            result = cuMemAlloc_v2(&pointers[i], PIECE);
            if (result == 0) result = cuIpcGetMemHandle(&name, pointers[i]);
            break;
        case 'p':
            result = cuMemAllocFromPoolAsync(&pointers[i], PIECE, pool, NULL);
            if (result == 0) result = cuMemPoolExportPointer(&name, pointers[i]);
            break;
        default:
            result = cuMemCreate(&created[i], PIECE, &created_props, 0);
            if (result == 0) result = cuMemExportToShareableHandle(&fd, created[i], 1, 0);
            if (result == 0) printf("/proc/%d/fd/%d\n", getpid(), fd);
            break;
        }
        if (result != 0) return 1;
        if (kind[0] != 'f') {
            for (int at = 0; at < 64; at++) printf("%02hhx", (unsigned char)name.bytes[at]);
            printf("\n");
        }
    }
    pause();
    return 0;
}

static name64 next_name(void) {
    name64 name;
    char line[160] = "";
    if (fgets(line, sizeof line, served) == NULL) exit(5);
    for (int i = 0; i < 64; i++) sscanf(line + 2 * i, "%2hhx", (unsigned char *)&name.bytes[i]);
    return name;
}

static int next_file(void) {
    char line[160] = "";
    if (fgets(line, sizeof line, served) == NULL) exit(5);
    line[strcspn(line, "\n")] = 0;
    return file_of(line);
}

TAKE(opened) { return cuIpcOpenMemHandle_v2(&pointers[i], next_name(), 1); }

/* --- recipes ------------------------------------------------------------------------------------------ */

/* Takes by the name until it has been refused three times, or as often as there are pieces. */
static int until_refused(const char *label, CUresult (*take)(int), int from, int to) {
    int refused = 0;
    for (; from < to && refused < 3; from++)
        if (did(label, take(from)) != 0) refused++;
    return from;
}

/* Takes all that there is, gives back every second piece by the name, twice and with others that are
 * none, takes again; gives everything back, and takes again. */
static void gives(CUresult (*take)(int), CUresult (*give)(int), CUresult (*garbage)(void), int pieces) {
    int taken[MANY], count = 0, refused = 0;
    for (int i = 0; i < pieces && refused < 1; i++) {
        if (did("take", take(i)) == 0) taken[count++] = i; else refused++;
    }
    for (int i = count - 1; i > 0; i -= 2) did("give", give(taken[i]));
    for (int i = count - 1; i > 0; i -= 2) did("twice", give(taken[i]));
    if (garbage != NULL) did("garbage", garbage());
    if (flag != 0) {
        for (int i = pieces; i < pieces + 12; i++) did("early", take(i)); /* nothing has happened yet */
        did("open", cuMemsetD32_v2(flag, 1, 1));
        flag = 0;
    }
    did("wait", cuCtxSynchronize());
    int last = until_refused("retake", take, pieces + 12, pieces + 22);
    for (int i = 0; i < count; i += 2) did("give", give(taken[i]));
    did("wait", cuCtxSynchronize());
    until_refused("retake", take, last, last + 14);
}

#define TRY(name) static void try_##name(void)
#define BY(name) static CUresult by_##name(int i)
#define NONE static CUresult

BY(alloc) { return AS((CUdeviceptr *, size_t))(&pointers[i], PIECE); }
TRY(alloc) { until_refused("take", by_alloc, 0, PIECES); }
BY(alloc_v1) { return AS((unsigned *, unsigned))((unsigned *)&pointers[i], PIECE); }
TRY(alloc_v1) { until_refused("take", by_alloc_v1, 0, PIECES); }
BY(pitch) { size_t pitch; return AS((CUdeviceptr *, size_t *, size_t, size_t, unsigned))(&pointers[i], &pitch, 1000, PIECE / 1024, 4); }
TRY(pitch) { until_refused("take", by_pitch, 0, PIECES); }
BY(pitch_v1) { unsigned pitch; return AS((unsigned *, unsigned *, unsigned, unsigned, unsigned))((unsigned *)&pointers[i], &pitch, 1000, PIECE / 1024, 4); }
TRY(pitch_v1) { until_refused("take", by_pitch_v1, 0, PIECES); }
BY(managed) { return AS((CUdeviceptr *, size_t, unsigned))(&pointers[i], PIECE, 1); }
TRY(managed) { until_refused("take", by_managed, 0, PIECES); }
BY(async) { return AS((CUdeviceptr *, size_t, CUstream))(&pointers[i], PIECE, stream); }
TRY(async) { until_refused("take", by_async, 0, PIECES); }
BY(from_pool) { return AS((CUdeviceptr *, size_t, handle, CUstream))(&pointers[i], PIECE, pool, stream); }
TRY(from_pool) { until_refused("take", by_from_pool, 0, PIECES); }

/* More pools than a table of a fixed length would hold, then memory from each, the last ones first. */
BY(pools) { return cuMemAllocFromPoolAsync(&pointers[i], PIECE, handles[MANY - 1 - i], stream); }
TRY(pool_create) {
    for (int i = 0; i < MANY; i++) {
        CUresult result = AS((handle *, const pool_props *))(&handles[i], &in_pool);
        if (i % 20 == 0) did("pool", result);
    }
    until_refused("take", by_pools, 0, MANY);
}
BY(array) { return AS((handle *, const array_desc *))(&handles[i], &(array_desc){2048, PIECE / 8192, 0x20, 1}); }
TRY(array) { until_refused("take", by_array, 0, PIECES); }
BY(array_v1) { return AS((handle *, const array_v1 *))(&handles[i], &(array_v1){2048, PIECE / 8192, 0x20, 1}); }
TRY(array_v1) { until_refused("take", by_array_v1, 0, PIECES); }
BY(array3d) { return AS((handle *, const array3d_desc *))(&handles[i], &(array3d_desc){256, 256, PIECE / 262144, 0x20, 1, 0}); }
TRY(array3d) { until_refused("take", by_array3d, 0, PIECES); }
BY(array3d_v1) { return AS((handle *, const array3d_v1 *))(&handles[i], &(array3d_v1){256, 256, PIECE / 262144, 0x20, 1, 0}); }
TRY(array3d_v1) { until_refused("take", by_array3d_v1, 0, PIECES); }
BY(mipmap) { return AS((handle *, const array3d_desc *, unsigned))(&handles[i], &(array3d_desc){2048, PIECE / 8192, 0, 0x20, 1, 0}, 4); }
TRY(mipmap) { until_refused("take", by_mipmap, 0, PIECES); }
BY(create) { return AS((u64 *, size_t, const alloc_prop *, u64))(&created[i], PIECE, &created_props, 0); }
TRY(create) { until_refused("take", by_create, 0, PIECES); }

/* Mapped, and its handle released: the mapping alone holds it. */
BY(map) {
    CUresult result = cuMemCreate(&created[i], PIECE, &created_props, 0);
    if (result != 0) return result;
    result = map_at((CUresult(*)(CUdeviceptr, size_t, size_t, u64, u64))f, i);
    cuMemRelease(created[i]);
    return result;
}
TRY(map) { until_refused("take", by_map, 0, PIECES); }

/* Retained many times, then released as often less one, and unmapped: the last reference holds it. */
BY(retain) {
    u64 again = 0;
    CUresult result = cuMemCreate(&created[i], PIECE, &created_props, 0);
    if (result == 0) result = map_at(cuMemMap, i);
    for (int times = 0; result == 0 && times < 300; times++) result = AS((u64 *, void *))(&again, (void *)pointers[i]);
    for (int times = 0; result == 0 && times < 300; times++) result = cuMemRelease(again);
    return result != 0 ? result : cuMemUnmap(pointers[i], PIECE);
}
TRY(retain) { until_refused("take", by_retain, 0, PIECES); }

/* A sparse array's tiles hold what was mapped to them. */
BY(map_array) {
    map_info info = {.type = 0, .sub = 0, .w = 2048, .h = PIECE / 8192, .d = 1, .operation = 1, .handle_type = 0, .devices = 1};
    CUresult result = cuMemCreate(&created[i], PIECE, &created_props, 0);
    if (result != 0) return result;
    result = cuArray3DCreate_v2(&handles[i], &(array3d_desc){2048, PIECE / 8192, 0, 0x20, 1, 0x40});
    info.array = handles[i];
    info.memory = created[i];
    if (result == 0) result = AS((map_info *, unsigned, CUstream))(&info, 1, stream);
    cuMemRelease(created[i]);
    return result;
}
TRY(map_array) { until_refused("take", by_map_array, 0, PIECES); }

BY(import) { return AS((u64 *, void *, int))(&created[i], (void *)(size_t)next_file(), 1); }
TRY(import) {
    ask_outside("f");
    until_refused("+take", by_import, 0, PIECES);
    end_outside();
}
BY(ipc_open) { return AS((CUdeviceptr *, name64, unsigned))(&pointers[i], next_name(), 1); }
TRY(ipc_open) {
    ask_outside("i");
    until_refused("+take", by_ipc_open, 0, PIECES);
    end_outside();
}
BY(imported) { name64 name = next_name(); return cuMemPoolImportPointer(&pointers[i], pool, &name); }
TRY(pool_import) {
    ask_outside("p");
    if (did("+pool", AS((handle *, void *, int, u64))(&pool, (void *)(size_t)next_file(), 1, 0)) == 0)
        until_refused("+take", by_imported, 0, PIECES);
    end_outside();
}
BY(import_pointer) { name64 name = next_name(); return AS((CUdeviceptr *, handle, name64 *))(&pointers[i], pool, &name); }
TRY(import_pointer) {
    ask_outside("p");
    if (did("+pool", cuMemPoolImportFromShareableHandle(&pool, (void *)(size_t)next_file(), 1, 0)) == 0)
        until_refused("+take", by_import_pointer, 0, PIECES);
    end_outside();
}
BY(external) { return external((CUresult(*)(handle *, const external_desc *))f, i); }
TRY(external) { until_refused("take", by_external, 0, PIECES); }

/* The pool that a location names, or that was made the current one of the device by the name. */
TRY(get_pool) {
    location where = {1, 0};
    if (did("pool", AS((handle *, location *, int))(&pool, &where, 1)) == 0) until_refused("take", take_pooled, 0, PIECES);
}
TRY(default_pool) {
    if (did("pool", AS((handle *, CUdevice))(&pool, 0)) == 0) until_refused("take", take_pooled, 0, PIECES);
}
TRY(set_pool) {
    location where = {1, 0};
    did("pool", AS((location *, int, handle))(&where, 1, pool));
    until_refused("take", take_async, 0, PIECES);
}
TRY(device_set_pool) {
    did("pool", AS((CUdevice, handle))(0, pool));
    until_refused("take", take_async, 0, PIECES);
}

/* A pool that keeps what is freed has given nothing back. */
TRY(pool_attribute) {
    u64 all = ~0ull;
    did("keep", AS((handle, int, void *))(pool, 4, &all));
    int count = until_refused("take", take_pooled, 0, PIECES);
    for (int i = 0; i < count; i++) did("give", cuMemFreeAsync(pointers[i], stream));
    did("wait", cuCtxSynchronize());
    until_refused("take", take_alloc, count, count + PIECES);
}

static CUresult prefetched(int i, int kind) {
    location where = {1, 0};
    size_t bytes = PIECE, index = 0;
    CUresult result = cuMemAllocManaged(&pointers[i], PIECE, 1);
    if (result != 0) return result;
    if (kind == 1) return AS((CUdeviceptr, size_t, CUdevice, CUstream))(pointers[i], PIECE, 0, stream);
    if (kind == 2) return AS((CUdeviceptr, size_t, location, unsigned, CUstream))(pointers[i], PIECE, where, 0, stream);
    return AS((CUdeviceptr *, size_t *, size_t, location *, size_t *, size_t, u64, CUstream))(&pointers[i], &bytes, 1, &where, &index, 1, 0, stream);
}
BY(prefetch) { return prefetched(i, 1); }
BY(prefetch_v2) { return prefetched(i, 2); }
BY(prefetch_batch) { return prefetched(i, 3); }
TRY(prefetch) { until_refused("take", by_prefetch, 0, PIECES); }
TRY(prefetch_v2) { until_refused("take", by_prefetch_v2, 0, PIECES); }
TRY(prefetch_batch) { until_refused("take", by_prefetch_batch, 0, PIECES); }

/* Heap, printf buffer and stack of the device, each larger from call to call. */
TRY(checkpoint) {
    unsigned long long none[8] = {0};
    did("call", AS((int, void *))(getpid(), none));
}
TRY(checkpoint_complete) { did("call", AS((handle))(NULL)); }
TRY(set_limit) {
    for (int kind = 2; kind >= 0; kind--)
        for (size_t i = 1; i <= PIECES; i++)
            if (did("take", AS((int, size_t))(kind, kind == 0 ? i * 16384 : i * PIECE)) != 0) break;
}

/* Contexts: each form has arguments of its own. */
static CUresult made_context(int i, int form) {
    CUresult result;
    if (form == 3) result = AS((CUcontext *, void *, int, unsigned, CUdevice))(&contexts[i], NULL, 0, 0, 0);
    else if (form == 4) result = AS((CUcontext *, void *, unsigned, CUdevice))(&contexts[i], NULL, 0, 0);
    else result = AS((CUcontext *, unsigned, CUdevice))(&contexts[i], 0, 0);
    driver.set_current(primary);
    return result;
}
BY(context) { return made_context(i, 2); }
BY(context_v3) { return made_context(i, 3); }
BY(context_v4) { return made_context(i, 4); }
TRY(context) { until_refused("take", by_context, 0, MANY); }
TRY(context_v3) { until_refused("take", by_context_v3, 0, MANY); }
TRY(context_v4) { until_refused("take", by_context_v4, 0, MANY); }

/* The primary context is one for each process: so many processes. */
static int hold(void) {
    CUcontext context = NULL;
    int code = driver.init(0);
    if (code == 0) code = AS((CUcontext *, CUdevice))(&context, 0);
    printf("%d\n", code);
    fflush(stdout);
    return code == 0 ? pause() : 0;
}
static char *const *hold_words;
static CUresult one_more(int i) {
    int ends[2], code = 999;
    if (pipe(ends) != 0) exit(4);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(ends[1], 1);
        execv(self_path, hold_words);
        _exit(127);
    }
    close(ends[1]);
    FILE *answer = fdopen(ends[0], "r");
    if (fscanf(answer, "%d", &code) != 1) code = 999;
    fclose(answer);
    if (code != 0) waitpid(child, NULL, 0);
    (void)i;
    return (CUresult)code;
}
TRY(retain_primary) {
    CUcontext same;
    for (int i = 0; i < 4; i++) did("same", AS((CUcontext *, CUdevice))(&same, 0));
    until_refused("take", one_more, 0, PIECES);
}

static handle description(void) {
    resource whole;
    handle made = NULL;
    if (cuDeviceGetDevResource(0, &whole, 1) == 0) cuDevResourceGenerateDesc(&made, &whole, 1);
    return made;
}
BY(green) { return AS((handle *, handle, CUdevice, unsigned))(&handles[i], description(), 0, 1); }
TRY(green) { until_refused("take", by_green, 0, MANY); }
BY(from_green) {
    CUresult result = take_green(i);
    return result != 0 ? result : AS((CUcontext *, handle))(&contexts[i], handles[i]);
}
TRY(from_green) { until_refused("take", by_from_green, 0, MANY); }
BY(green_stream) {
    CUresult result = take_green(i);
    return result != 0 ? result : AS((CUstream *, handle, unsigned, int))(&others[i], handles[i], 1, 0);
}
TRY(green_stream) { until_refused("take", by_green_stream, 0, MANY); }

/* Modules: an image that declares more than it is long. */
BY(module) { return AS((handle *, const void *))(&handles[i], image); }
TRY(module) { until_refused("take", by_module, 0, MANY); }
BY(module_ex) { return AS((handle *, const void *, unsigned, int *, void **))(&handles[i], image, 0, NULL, NULL); }
TRY(module_ex) { until_refused("take", by_module_ex, 0, MANY); }
static char file_name[64];
static const char *in_file(void) {
    if (file_name[0] == 0) {
        snprintf(file_name, sizeof file_name, "image-%d.ptx", getpid());
        FILE *out = fopen(file_name, "w");
        fputs(image, out);
        fclose(out);
    }
    return file_name;
}
BY(module_file) { return AS((handle *, const char *))(&handles[i], in_file()); }
TRY(module_file) { until_refused("take", by_module_file, 0, MANY); }
static CUresult in_context(int i) {
    handle module;
    return cuLibraryGetModule(&module, handles[i]);
}
BY(library) {
    CUresult result = AS((handle *, const void *, int *, void **, unsigned, int *, void **, unsigned))(&handles[i], image, NULL, NULL, 0, NULL, NULL, 0);
    return result != 0 ? result : in_context(i);
}
TRY(library) { until_refused("take", by_library, 0, MANY); }
BY(library_file) {
    CUresult result = AS((handle *, const void *, int *, void **, unsigned, int *, void **, unsigned))(&handles[i], in_file(), NULL, NULL, 0, NULL, NULL, 0);
    return result != 0 ? result : in_context(i);
}
TRY(library_file) { until_refused("take", by_library_file, 0, MANY); }
/* The ways in which a library or a function is loaded at its first use, by name. */
static CUresult empty_library(int i) { return cuLibraryLoadData(&handles[i], image, NULL, NULL, 0, NULL, NULL, 0); }
BY(library_module) {
    CUresult result = empty_library(i);
    return result != 0 ? result : AS((handle *, handle))(&others[i], handles[i]);
}
TRY(library_module) { until_refused("take", by_library_module, 0, MANY); }
BY(library_kernel) {
    handle function;
    CUresult result = empty_library(i);
    if (result == 0) result = AS((handle *, handle, const char *))(&others[i], handles[i], "nothing");
    if (result != 0) return result;
    result = ((CUresult(*)(handle *, handle))dlsym(RTLD_DEFAULT, "cuKernelGetFunction"))(&function, others[i]);
    return result != 0 ? result : cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}
TRY(library_kernel) { until_refused("take", by_library_kernel, 0, MANY); }
BY(kernel_function) {
    handle kernel;
    CUresult result = empty_library(i);
    if (result == 0) result = cuLibraryGetKernel(&kernel, handles[i], "nothing");
    if (result == 0) result = AS((handle *, handle))(&others[i], kernel);
    return result != 0 ? result : cuLaunchKernel(others[i], 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}
TRY(kernel_function) { until_refused("take", by_kernel_function, 0, MANY); }
BY(library_global) {
    size_t bytes;
    CUresult result = empty_library(i);
    return result != 0 ? result : AS((CUdeviceptr *, size_t *, handle, const char *))(&pointers[i], &bytes, handles[i], "ballast");
}
TRY(library_global) { until_refused("take", by_library_global, 0, MANY); }
BY(module_global) {
    size_t bytes;
    CUresult result = take_module(i);
    return result != 0 ? result : AS((CUdeviceptr *, size_t *, handle, const char *))(&pointers[i], &bytes, handles[i], "ballast");
}
TRY(module_global) { until_refused("take", by_module_global, 0, MANY); }
BY(module_global_v1) {
    unsigned pointer, bytes;
    CUresult result = take_module(i);
    return result != 0 ? result : AS((unsigned *, unsigned *, handle, const char *))(&pointer, &bytes, handles[i], "ballast");
}
TRY(module_global_v1) { until_refused("take", by_module_global_v1, 0, MANY); }
static CUresult function_of(int i, handle *function) {
    CUresult result = take_module(i);
    return result != 0 ? result : cuModuleGetFunction(function, handles[i], "nothing");
}
BY(get_function) {
    CUresult result = take_module(i);
    return result != 0 ? result : AS((handle *, handle, const char *))(&others[i], handles[i], "nothing");
}
TRY(get_function) { until_refused("take", by_get_function, 0, MANY); }
BY(func_load) {
    handle function;
    CUresult result = function_of(i, &function);
    return result != 0 ? result : AS((handle))(function);
}
TRY(func_load) { until_refused("take", by_func_load, 0, MANY); }
BY(launch) {
    handle function;
    CUresult result = function_of(i, &function);
    return result != 0 ? result : AS((handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}
TRY(launch) { until_refused("take", by_launch, 0, MANY); }

/* Graphs: an allocation that is not freed within the graph stays after the launch. */
BY(graph_alloc) {
    node_params params = {.pool = in_pool, .access = &both_ways, .count = 1, .bytes = PIECE};
    handle node;
    CUresult result = cuGraphCreate(&handles[i], 0);
    if (result == 0) result = AS((handle *, handle, const handle *, size_t, node_params *))(&node, handles[i], NULL, 0, &params);
    return result != 0 ? result : launched(handles[i], &others[i]);
}
TRY(graph_alloc) { until_refused("take", by_graph_alloc, 0, PIECES); }
static CUresult any_alloc(int i, int with_edges) {
    any_node params = {.type = 10, .alloc = {.pool = in_pool, .access = &both_ways, .count = 1, .bytes = PIECE}};
    handle node;
    CUresult result = cuGraphCreate(&handles[i], 0);
    if (result == 0)
        result = with_edges ? AS((handle *, handle, const handle *, const void *, size_t, any_node *))(&node, handles[i], NULL, NULL, 0, &params)
                            : AS((handle *, handle, const handle *, size_t, any_node *))(&node, handles[i], NULL, 0, &params);
    return result != 0 ? result : launched(handles[i], &others[i]);
}
BY(graph_node) { return any_alloc(i, 0); }
BY(graph_node_v2) { return any_alloc(i, 1); }
TRY(graph_node) { until_refused("take", by_graph_node, 0, PIECES); }
TRY(graph_node_v2) { until_refused("take", by_graph_node_v2, 0, PIECES); }
BY(graph_clone) {
    handle copy;
    CUresult result = allocating(&handles[i], PIECE);
    if (result == 0) result = AS((handle *, handle))(&copy, handles[i]);
    return result != 0 ? result : launched(copy, &others[i]);
}
TRY(graph_clone) { until_refused("take", by_graph_clone, 0, PIECES); }
BY(child_graph) {
    handle child, node;
    CUresult result = allocating(&child, PIECE);
    if (result == 0) result = cuGraphCreate(&handles[i], 0);
    if (result == 0) result = AS((handle *, handle, const handle *, size_t, handle))(&node, handles[i], NULL, 0, child);
    return result != 0 ? result : launched(handles[i], &others[i]);
}
TRY(child_graph) { until_refused("take", by_child_graph, 0, PIECES); }
static CUresult executable(int i, int form) {
    instantiate_params params = {.flags = 2, .upload = stream};
    CUresult result = allocating(&handles[i], PIECE);
    if (result != 0) return result;
    if (form == 1) result = AS((handle *, handle, handle *, char *, size_t))(&others[i], handles[i], NULL, NULL, 0);
    if (form == 2) result = AS((handle *, handle, u64))(&others[i], handles[i], 0);
    if (form == 3) result = AS((handle *, handle, instantiate_params *))(&others[i], handles[i], &params);
    if (result == 0 && form != 3) result = cuGraphLaunch(others[i], stream);
    return result != 0 ? result : cuCtxSynchronize();
}
BY(instantiate) { return executable(i, 1); }
BY(instantiate_flags) { return executable(i, 2); }
BY(instantiate_params) { return executable(i, 3); }
TRY(instantiate) { until_refused("take", by_instantiate, 0, PIECES); }
TRY(instantiate_flags) { until_refused("take", by_instantiate_flags, 0, PIECES); }
/* Uploads at once; then one graph that is larger than the limit by itself. */
TRY(instantiate_params) {
    instantiate_params params = {.flags = 2, .upload = stream};
    if (did("graph", allocating(&handles[PIECES], PIECES * PIECE)) == 0)
        did("take", AS((handle *, handle, instantiate_params *))(&others[PIECES], handles[PIECES], &params));
    until_refused("take", by_instantiate_params, 0, PIECES);
}
/* Uploaded, or launched, without a wait between them. */
BY(graph_work) {
    CUresult result = allocating(&handles[i], PIECE);
    if (result == 0) result = cuGraphInstantiateWithFlags(&others[i], handles[i], 0);
    return result != 0 ? result : AS((handle, CUstream))(others[i], stream);
}
TRY(graph_work) { until_refused("take", by_graph_work, 0, PIECES); }
BY(graph_upload) {
    CUresult result = by_graph_work(i);
    return result != 0 ? result : cuGraphLaunch(others[i], stream);
}
TRY(graph_upload) { until_refused("take", by_graph_upload, 0, PIECES); }
/* One graph that is small when it is instantiated and large when it is updated. */
static void updated(int form) {
    handle error;
    int how;
    update_info info;
    size_t sizes[] = {PIECE, 2 * PIECE, 10 * PIECE, 19 * PIECE};
    if (did("take", take_graph(0)) != 0) return;
    for (int i = 1; i < 4; i++) {
        if (allocating(&handles[i], sizes[i]) != 0) continue;
        did("update", form == 2 ? AS((handle, handle, update_info *))(others[0], handles[i], &info)
                                : AS((handle, handle, handle *, int *))(others[0], handles[i], &error, &how));
        did("take", cuGraphLaunch(others[0], stream));
        did("wait", cuCtxSynchronize());
    }
}
TRY(graph_update) { updated(1); }
TRY(graph_update_v2) { updated(2); }
/* Captured: the allocation becomes a node. */
BY(end_capture) {
    CUresult result = cuStreamBeginCapture_v2(blocked, 2);
    if (result == 0) result = cuMemAllocAsync(&pointers[i], PIECE, blocked);
    CUresult ended = AS((CUstream, handle *))(blocked, &handles[i]);
    if (result == 0) result = ended;
    return result != 0 ? result : launched(handles[i], &others[i]);
}
TRY(end_capture) { until_refused("take", by_end_capture, 0, PIECES); }

BY(multicast) {
    multicast_prop prop = {.devices = 1, .size = PIECE};
    return AS((u64 *, const multicast_prop *))(&created[i], &prop);
}
TRY(multicast) { until_refused("take", by_multicast, 0, PIECES); }
/* Memory that is bound to a multicast object, and whose handle and mapping are gone. */
static CUresult bound(int i, int form) {
    multicast_prop prop = {.devices = 1, .size = PIECE};
    u64 object = 0;
    CUresult result = cuMulticastCreate(&object, &prop);
    if (result == 0) result = cuMulticastAddDevice(object, 0);
    if (result == 0) result = cuMemCreate(&created[i], PIECE, &created_props, 0);
    if (result == 0) result = map_at(cuMemMap, i);
    if (result != 0) return result;
    if (form == 1) result = AS((u64, size_t, u64, size_t, size_t, u64))(object, 0, created[i], 0, PIECE, 0);
    if (form == 2) result = AS((u64, CUdevice, size_t, u64, size_t, size_t, u64))(object, 0, 0, created[i], 0, PIECE, 0);
    if (form == 3) result = AS((u64, size_t, CUdeviceptr, size_t, u64))(object, 0, pointers[i], PIECE, 0);
    if (form == 4) result = AS((u64, CUdevice, size_t, CUdeviceptr, size_t, u64))(object, 0, 0, pointers[i], PIECE, 0);
    cuMemUnmap(pointers[i], PIECE);
    cuMemRelease(created[i]);
    return result;
}
BY(bind_mem) { return bound(i, 1); }
BY(bind_mem_v2) { return bound(i, 2); }
BY(bind_addr) { return bound(i, 3); }
BY(bind_addr_v2) { return bound(i, 4); }
TRY(bind_mem) { until_refused("take", by_bind_mem, 0, PIECES); }
TRY(bind_mem_v2) { until_refused("take", by_bind_mem_v2, 0, PIECES); }
TRY(bind_addr) { until_refused("take", by_bind_addr, 0, PIECES); }
TRY(bind_addr_v2) { until_refused("take", by_bind_addr_v2, 0, PIECES); }

/* --- names that give back ------------------------------------------------------------------------------ */

BY(free) { return AS((CUdeviceptr))(pointers[i]); }
NONE free_garbage(void) { return AS((CUdeviceptr))(0x1234567812345678ull); }
TRY(free) { gives(take_alloc, by_free, free_garbage, PIECES); }
BY(free_v1) { return AS((unsigned))((unsigned)pointers[i]); }
NONE free_v1_garbage(void) { return AS((unsigned))(0x12345678u); }
TRY(free_v1) { gives(take_alloc_v1, by_free_v1, free_v1_garbage, PIECES); }
static CUstream free_stream;
BY(free_async) { return AS((CUdeviceptr, CUstream))(pointers[i], free_stream); }
NONE free_async_garbage(void) { return AS((CUdeviceptr, CUstream))(0x1234567812345678ull, stream); }
static void behind_a_value(void) {
    static CUdeviceptr word;
    if (cuMemAlloc_v2(&word, 4) != 0 || cuMemsetD32_v2(word, 0, 1) != 0) exit(6);
    did("block", cuStreamWaitValue32_v2(blocked, word, 1, 0));
    flag = word;
    free_stream = blocked;
}
TRY(free_async) { gives(take_async, by_free_async, free_async_garbage, PIECES); }
TRY(free_async_blocked) {
    behind_a_value();
    gives(take_async, by_free_async, free_async_garbage, PIECES);
}
TRY(free_plain_blocked) {
    behind_a_value();
    gives(take_alloc, by_free_async, free_async_garbage, PIECES);
}
BY(destroy) { return AS((handle))(handles[i]); }
NONE destroy_garbage(void) { return AS((handle))(NULL); }
TRY(array_destroy) { gives(take_array, by_destroy, destroy_garbage, PIECES); }
TRY(mipmap_destroy) { gives(take_mipmap, by_destroy, destroy_garbage, PIECES); }
TRY(external_destroy) { gives(take_external, by_destroy, destroy_garbage, PIECES); }
/* Allocations of a destroyed pool live until they are freed. */
BY(pool_destroy) {
    CUresult result = AS((handle))(handles[i]);
    did("destroyed", result);
    cuMemFreeAsync(pointers[i], stream);
    return result;
}
TRY(pool_destroy) { gives(take_in_pools, by_pool_destroy, destroy_garbage, PIECES); }
TRY(green_destroy) {
    did("take", take_alloc(MANY - 1)); /* of the primary context: no green one's to give back */
    gives(take_green, by_destroy, destroy_garbage, PIECES);
    until_refused("take", take_alloc, 0, PIECES);
}
TRY(module_unload) { gives(take_module, by_destroy, destroy_garbage, MANY - 50); }
TRY(library_unload) { gives(take_library, by_destroy, destroy_garbage, MANY - 50); }
/* Allocations of a destroyed graph live until they are freed. */
static CUresult destroyed(int i, handle graph) {
    CUresult result = AS((handle))(graph);
    did("destroyed", result);
    cuMemFreeAsync(pointers[i], stream);
    return result;
}
BY(graph_destroy) { return destroyed(i, handles[i]); }
TRY(graph_destroy) { gives(take_graph, by_graph_destroy, destroy_garbage, PIECES); }
BY(exec_destroy) { return destroyed(i, others[i]); }
TRY(exec_destroy) { gives(take_graph, by_exec_destroy, destroy_garbage, PIECES); }
BY(release) { return AS((u64))(created[i]); }
NONE release_garbage(void) { return AS((u64))(~0ull); }
TRY(release) { gives(take_created, by_release, release_garbage, PIECES); }
BY(unmap) { return AS((CUdeviceptr, size_t))(pointers[i], PIECE); }
NONE unmap_garbage(void) { return AS((CUdeviceptr, size_t))(pointers[0], ~(size_t)0); }
TRY(unmap) { gives(take_mapped, by_unmap, unmap_garbage, PIECES); }
BY(unbind) { return AS((u64, CUdevice, size_t, size_t))((u64)handles[i], 0, 0, PIECE); }
TRY(unbind) { gives(take_bound, by_unbind, NULL, PIECES); }
BY(close) { return AS((CUdeviceptr))(pointers[i]); }
/* Opened while the maker lives, which is outside; after its death, the open memory is charged to the container. */
TRY(ipc_close) {
    ask_outside("i");
    int taken = 0;
    while (taken < PIECES && did("+take", take_opened(taken)) == 0) taken++;
    end_outside();
    for (int i = taken - 1; i >= 0; i -= 2) did("give", by_close(i));
    for (int i = taken - 1; i >= 0; i -= 2) did("twice", by_close(i));
    did("garbage", AS((CUdeviceptr))(1));
    until_refused("retake", take_alloc, PIECES, 2 * PIECES);
}
BY(trim) { cuMemFreeAsync(pointers[i], stream); cuCtxSynchronize(); return AS((handle, size_t))(pool, 0); }
NONE trim_garbage(void) { return AS((handle, size_t))((handle)8, 0); }
TRY(trim) {
    u64 all = ~0ull;
    did("keep", cuMemPoolSetAttribute(pool, 4, &all));
    gives(take_pooled, by_trim, trim_garbage, PIECES);
}
BY(graph_trim) {
    cuGraphExecDestroy(others[i]);
    cuGraphDestroy(handles[i]);
    did("destroyed", AS((CUdevice))(0)); /* what they have allocated is not trimmed */
    cuMemFreeAsync(pointers[i], stream);
    cuCtxSynchronize();
    return AS((CUdevice))(0);
}
NONE graph_trim_garbage(void) { return AS((CUdevice))(99); }
TRY(graph_trim) { gives(take_graph, by_graph_trim, graph_trim_garbage, PIECES); }
BY(context_destroy) {
    CUresult result = AS((CUcontext))(contexts[i]);
    driver.set_current(primary);
    return result;
}
NONE context_garbage(void) { return AS((CUcontext))((CUcontext)16); }
TRY(context_destroy) { gives(take_context, by_context_destroy, context_garbage, MANY - 50); }
/* The primary context's memory goes with it. */
static CUresult primary_again(void) {
    CUresult result = driver.retain(&primary, 0);
    return result != 0 ? result : driver.set_current(primary);
}
TRY(primary_release) {
    int taken = until_refused("take", take_alloc, 0, PIECES);
    did("give", AS((CUdevice))(0));
    did("twice", AS((CUdevice))(0));
    did("garbage", AS((CUdevice))(-1));
    did("again", primary_again());
    until_refused("retake", take_alloc, taken, taken + PIECES);
}

/* --- names that take nothing ----------------------------------------------------------------------------- */

TRY(attach) { for (int i = 0; i < PIECES; i++) did("nothing", AS((CUcontext *, unsigned))(&contexts[i], 0)); }
TRY(register) {
    for (int i = 0; i < PIECES; i++) {
        void *host = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        did("nothing", AS((void *, size_t, unsigned))(host, PIECE, 0));
    }
}
TRY(graphics_map) { for (int i = 0; i < 4; i++) did("nothing", AS((unsigned, handle *, CUstream))(1, &handles[i], stream)); }
TRY(graphics_unregister) { for (int i = 0; i < 4; i++) did("nothing", AS((handle))(handles[i])); }
/* Asks a free node for its pointer; the graph holds nothing before and after. */
TRY(free_node_params) {
    node_params params = {.pool = in_pool, .access = &both_ways, .count = 1, .bytes = PIECE};
    handle graph, node, freeing = NULL;
    CUdeviceptr told = 0;
    CUresult result = cuGraphCreate(&graph, 0);
    if (result == 0) result = cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params);
    if (result == 0) result = cuGraphAddMemFreeNode(&freeing, graph, &node, 1, params.pointer);
    did("nothing", result);
    for (int i = 0; i < PIECES; i++) did("nothing", AS((handle, CUdeviceptr *))(freeing, &told));
}

#define RECIPE(name) { #name, try_##name }
static const struct { const char *name; void (*run)(void); } recipes[] = {
    RECIPE(alloc), RECIPE(alloc_v1), RECIPE(pitch), RECIPE(pitch_v1), RECIPE(managed), RECIPE(async), RECIPE(from_pool),
    RECIPE(pool_create), RECIPE(array), RECIPE(array_v1), RECIPE(array3d), RECIPE(array3d_v1), RECIPE(mipmap), RECIPE(create),
    RECIPE(map), RECIPE(retain), RECIPE(map_array), RECIPE(import), RECIPE(ipc_open), RECIPE(pool_import),
    RECIPE(import_pointer), RECIPE(external), RECIPE(get_pool), RECIPE(default_pool), RECIPE(set_pool),
    RECIPE(device_set_pool), RECIPE(pool_attribute), RECIPE(prefetch), RECIPE(prefetch_v2), RECIPE(prefetch_batch),
    RECIPE(checkpoint), RECIPE(checkpoint_complete), RECIPE(set_limit), RECIPE(context), RECIPE(context_v3), RECIPE(context_v4), RECIPE(retain_primary), RECIPE(green),
    RECIPE(from_green), RECIPE(green_stream), RECIPE(module), RECIPE(module_ex), RECIPE(module_file), RECIPE(library),
    RECIPE(library_file), RECIPE(library_module), RECIPE(library_kernel), RECIPE(kernel_function), RECIPE(library_global),
    RECIPE(module_global), RECIPE(module_global_v1), RECIPE(get_function), RECIPE(func_load), RECIPE(launch),
    RECIPE(graph_alloc), RECIPE(graph_node), RECIPE(graph_node_v2), RECIPE(graph_clone), RECIPE(child_graph),
    RECIPE(instantiate), RECIPE(instantiate_flags), RECIPE(instantiate_params), RECIPE(graph_work), RECIPE(graph_upload), RECIPE(graph_update), RECIPE(graph_update_v2),
    RECIPE(end_capture), RECIPE(multicast), RECIPE(bind_mem), RECIPE(bind_mem_v2), RECIPE(bind_addr), RECIPE(bind_addr_v2),
    RECIPE(free), RECIPE(free_v1), RECIPE(free_async), RECIPE(free_async_blocked), RECIPE(free_plain_blocked),
    RECIPE(array_destroy), RECIPE(mipmap_destroy), RECIPE(external_destroy), RECIPE(pool_destroy), RECIPE(green_destroy),
    RECIPE(module_unload), RECIPE(library_unload), RECIPE(graph_destroy), RECIPE(exec_destroy), RECIPE(release),
    RECIPE(unmap), RECIPE(unbind), RECIPE(ipc_close), RECIPE(trim), RECIPE(graph_trim), RECIPE(context_destroy),
    RECIPE(primary_release), RECIPE(attach), RECIPE(register), RECIPE(graphics_map), RECIPE(graphics_unregister),
    RECIPE(free_node_params),
};

static void *look(char **words) {
    void *found = dlsym(RTLD_DEFAULT, words[0]);
    int status;
    if (found == NULL) cuGetProcAddress_v2(words[1], &found, atoi(words[2]), strtoull(words[3], NULL, 10), &status);
    return found;
}

int main(int count, char **words) {
    self_path = words[0];
    if (count > 2 && strcmp(words[1], "serve") == 0) return serve(words[2]);
    if (count > 5 && strcmp(words[1], "hold") == 0) {
        f = look(words + 2);
        return f == NULL ? 1 : hold();
    }
    if (count < 6) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    f = look(words + 1);
    if (f == NULL) {
        did("absent", 0);
        return 0;
    }
    char *again[] = {words[0], "hold", words[1], words[2], words[3], words[4], NULL};
    hold_words = again;
    alarm(120);
    /* These load; what loads later is tried by the names that do it. */
    static const char *const loaders[] = {"module", "module_ex", "module_file", "library", "library_file", "library_module",
                                          "get_function", "module_unload", "library_unload"};
    for (size_t i = 0; i < sizeof loaders / sizeof *loaders; i++)
        if (strcmp(loaders[i], words[5]) == 0) setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    if (did("begin", driver.init(0)) != 0 || did("begin", primary_again()) != 0) return 1;
    cuStreamCreate(&blocked, 1);
    cuMemPoolCreate(&pool, &in_pool);
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        if (strcmp(recipes[i].name, words[5]) != 0) continue;
        did("ready", 0);
        recipes[i].run();
        did("done", 0);
        if (file_name[0] != 0) unlink(file_name);
        return 0;
    }
    return 2;
}
