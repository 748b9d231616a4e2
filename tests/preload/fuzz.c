/* One of several processes that receive a random sequence of calls, line by line:
 *
 *   OP SLOT BYTES TEXT        "@OP ..." makes the call in a thread of its own
 *
 * answers "OP code", and for an export the data that another process needs to open it. Slots 0 to 7 hold
 * allocations; slot 8 is a null pointer, slot 9 an invalid handle. An unknown line answers 999. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "takers.h"

#define SLOTS 10
#define GARBAGE 0x1234567812345000ull

static const struct driver driver = LINKED_DRIVER;
static CUcontext primary, contexts[SLOTS];
static CUdeviceptr pointers[SLOTS], pooled[SLOTS], mapped[SLOTS], imported[SLOTS], flag;
static size_t mapped_bytes[SLOTS];
static u64 created[SLOTS], retained[SLOTS];
static handle arrays[SLOTS], mipmaps[SLOTS], pools[SLOTS], graphs[SLOTS], executables[SLOTS], modules[SLOTS], libraries[SLOTS],
    greens[SLOTS], externals[SLOTS], foreign_pool;
static CUstream free_running, blocked;
static int is_blocked;
static char told[200];

static const alloc_prop in_create = {.type = 1, .handles = 1, .where = {1, 0}};
static const pool_props in_pool = {.type = 1, .handles = 1, .where = {1, 0}};
static const access_desc both_ways = {{1, 0}, 3};
static const char *const images[] = {
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n",
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 ballast[16777216];\n.visible .entry nothing() { ret; }\n",
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 ballast[99999999999999999999];\n",
    ".version 7.0\n.target sm_70\n.visible .global .align 8 .b8 cut[",
    "no image at all",
};

extern CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
extern CUresult cuMemAddressFree(CUdeviceptr, size_t);
extern CUresult cuMemRetainAllocationHandle(u64 *, void *);
extern CUresult cuMemPoolDestroy(handle);
extern CUresult cuMemPoolTrimTo(handle, size_t);
extern CUresult cuArrayDestroy(handle);
extern CUresult cuMipmappedArrayDestroy(handle);
extern CUresult cuIpcCloseMemHandle(CUdeviceptr);
extern CUresult cuGraphClone(handle *, handle);
extern CUresult cuGraphUpload(handle, CUstream);
extern CUresult cuGraphExecUpdate_v2(handle, handle, update_info *);
extern CUresult cuGraphInstantiateWithParams(handle *, handle, instantiate_params *);
extern CUresult cuDeviceGraphMemTrim(CUdevice);
extern CUresult cuCtxDestroy_v2(CUcontext);
extern CUresult cuCtxPushCurrent_v2(CUcontext);
extern CUresult cuCtxPopCurrent_v2(CUcontext *);
extern CUresult cuCtxSetLimit(int, size_t);
extern CUresult cuModuleUnload(handle);
extern CUresult cuLibraryUnload(handle);
extern CUresult cuGreenCtxDestroy(handle);
extern CUresult cuDestroyExternalMemory(handle);
extern CUresult cuStreamSynchronize(CUstream);
extern CUresult cuStreamEndCapture(CUstream, handle *);

/* Lets a stream that waits for a value go on: what waits for it would wait for ever. The thread may have
   entered another context, or none, since the stream was blocked. */
static CUresult unblock(void) {
    CUcontext entered;
    CUresult result;
    if (!is_blocked) return 0;
    is_blocked = 0;
    result = cuCtxPushCurrent_v2(primary);
    if (result != 0) return result;
    result = cuMemsetD32_v2(flag, 1, 1);
    cuCtxPopCurrent_v2(&entered);
    return result;
}

static CUresult block(void) {
    CUresult result = 0;
    if (is_blocked) return 0;
    if (flag == 0) result = cuMemAlloc_v2(&flag, 4);
    if (result != 0) {
        flag = 0;
        return result;
    }
    result = cuMemsetD32_v2(flag, 0, 1);
    if (result == 0) result = cuStreamWaitValue32_v2(blocked, flag, 1, 0);
    is_blocked = result == 0;
    return result;
}

/* A new primary context, with streams of its own. */
static CUresult again(void) {
    CUresult result = driver.retain(&primary, 0);
    if (result == 0) result = driver.set_current(primary);
    flag = 0;
    is_blocked = 0;
    if (result == 0) result = cuStreamCreate(&blocked, 1);
    if (result == 0) result = cuStreamCreate(&free_running, 1);
    return result;
}

/* The driver gives memory, and a fault as it tells the address leaves its call by a jump. */
static sigjmp_buf place;
static void jump(int number) { siglongjmp(place, number); }
static CUresult jumped(size_t bytes) {
    static void *page;
    CUresult result = 0;
    if (page == NULL) page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGSEGV, jump);
    if (sigsetjmp(place, 1) == 0) result = cuMemAlloc_v2(page, bytes);
    signal(SIGSEGV, SIG_DFL);
    /* The library notices at the thread's next request that its call was left. */
    CUdeviceptr next;
    if (driver.alloc(&next, 4) == 0) driver.free(next);
    return result;
}

static name64 name_in(const char *text) {
    name64 name = {{0}};
    for (int i = 0; i < 64; i++) sscanf(text + 2 * i, "%2hhx", (unsigned char *)&name.bytes[i]);
    return name;
}

static void tell(const name64 *name) {
    for (int i = 0; i < 64; i++) sprintf(told + 2 * i, "%02hhx", (unsigned char)name->bytes[i]);
}

static CUresult step(const char *op, int slot, size_t bytes, const char *text) {
    int null = slot == 8;
    CUstream stream = bytes & 1 ? blocked : free_running;
    node_params node_in = {.pool = {.type = 1, .where = {1, 0}}, .access = &both_ways, .count = 1, .bytes = bytes};
    handle node;
    size_t pitch;
    int file;
    CUresult result;
#define IS(what) (strcmp(op, what) == 0)
    /* These do not wait for a stream, so they are tried behind one that is blocked. */
    if (IS("block")) return block();
    if (IS("unblock")) return unblock();
    if (IS("alloc")) return cuMemAlloc_v2(null ? NULL : &pointers[slot], bytes);
    if (IS("pitch")) return cuMemAllocPitch_v2(null ? NULL : &pointers[slot], &pitch, 1 + bytes % 4096, bytes / 4096, 4);
    if (IS("managed")) return cuMemAllocManaged(null ? NULL : &pointers[slot], bytes, 1);
    if (IS("async")) return cuMemAllocAsync(null ? NULL : &pointers[slot], bytes, stream);
    /* A stale pointer may be what a stream waits for by now: without that it would wait for ever. */
    if (flag != 0 && pointers[slot] == flag && (IS("free") || IS("async_free"))) return 999;
    if (IS("async_free")) return cuMemFreeAsync(pointers[slot], stream);
    if (IS("pool")) return cuMemPoolCreate(null ? NULL : &pools[slot], &in_pool);
    if (IS("pooled")) return cuMemAllocFromPoolAsync(null ? NULL : &pooled[slot], bytes, pools[(slot + 1) % 8], stream);
    if (IS("pooled_free")) return cuMemFreeAsync(pooled[slot], stream);
    if (IS("keep")) return cuMemPoolSetAttribute(pools[slot], 4, &bytes);
    if (IS("trim")) return cuMemPoolTrimTo(pools[slot], bytes);
    if (IS("pool_destroy")) return cuMemPoolDestroy(pools[slot]);
    if (IS("create")) return cuMemCreate(null ? NULL : &created[slot], bytes, &in_create, 0);
    if (IS("release")) return cuMemRelease(created[slot]);
    if (IS("map")) {
        result = cuMemAddressReserve(&mapped[slot], bytes, 0, 0, 0);
        mapped_bytes[slot] = bytes;
        if (result == 0) result = cuMemMap(mapped[slot], bytes, 0, created[slot], 0);
        return result != 0 ? result : cuMemSetAccess(mapped[slot], bytes, &both_ways, 1);
    }
    if (IS("unmap")) return cuMemUnmap(mapped[slot], mapped_bytes[slot]);
    if (IS("retain")) return cuMemRetainAllocationHandle(null ? NULL : &retained[slot], (void *)mapped[slot]);
    if (IS("release_retained")) return cuMemRelease(retained[slot]);
    if (IS("array")) return cuArrayCreate_v2(null ? NULL : &arrays[slot], &(array_desc){1 + bytes % 2000, bytes / 4096, 0x20, 1});
    if (IS("mipmap")) return cuMipmappedArrayCreate(null ? NULL : &mipmaps[slot], &(array3d_desc){64 + bytes % 2000, bytes / 8192, 0, 0x20, 1, 0}, 3);
    if (IS("graph")) {
        result = cuGraphCreate(null ? NULL : &graphs[slot], 0);
        return result != 0 ? result : cuGraphAddMemAllocNode(&node, graphs[slot], NULL, 0, &node_in);
    }
    if (IS("graph_in_pairs")) { /* allocates and frees within the graph */
        result = cuGraphCreate(null ? NULL : &graphs[slot], 0);
        if (result == 0) result = cuGraphAddMemAllocNode(&node, graphs[slot], NULL, 0, &node_in);
        handle freeing;
        return result != 0 ? result : cuGraphAddMemFreeNode(&freeing, graphs[slot], &node, 1, node_in.pointer);
    }
    if (IS("more")) {
        result = cuGraphAddMemAllocNode(&node, graphs[slot], NULL, 0, &node_in);
        if (result == 0) pointers[slot % 8] = node_in.pointer;
        return result;
    }
    if (IS("clone")) return cuGraphClone(null ? NULL : &graphs[slot], graphs[(slot + 1) % 8]);
    if (IS("instantiate")) return cuGraphInstantiateWithFlags(null ? NULL : &executables[slot], graphs[slot], bytes % 2);
    if (IS("instantiate_upload")) {
        instantiate_params params = {.flags = 2, .upload = stream};
        return cuGraphInstantiateWithParams(null ? NULL : &executables[slot], graphs[slot], &params);
    }
    if (IS("upload")) return cuGraphUpload(executables[slot], stream);
    if (IS("launch")) return cuGraphLaunch(executables[slot], stream);
    if (IS("update")) {
        update_info info;
        return cuGraphExecUpdate_v2(executables[slot], graphs[(slot + 1) % 8], &info);
    }
    if (IS("export") || IS("export_inside")) { /* by a pointer that is not the base */
        name64 name = {{0}};
        result = cuIpcGetMemHandle(null ? NULL : &name, pointers[slot] + (IS("export") ? 0 : 256));
        if (result == 0) tell(&name);
        return result;
    }
    if (IS("open") || IS("open_changed")) { /* by a name with bytes that no driver looks at */
        name64 name = name_in(text);
        if (!IS("open")) name.bytes[63] ^= 1;
        return cuIpcOpenMemHandle_v2(null ? NULL : &imported[slot], name, 1);
    }
    if (IS("offer")) {
        result = cuMemExportToShareableHandle(null ? NULL : (void *)&file, created[slot], 1, 0);
        if (result == 0 && !null) sprintf(told, "/proc/%d/fd/%d", getpid(), file);
        return result;
    }
    if (IS("accept")) {
        file = file_of(text);
        result = cuMemImportFromShareableHandle(null ? NULL : &created[slot], (void *)(size_t)file, 1);
        close(file);
        return result;
    }
    if (IS("pool_offer")) {
        result = cuMemPoolExportToShareableHandle(null ? NULL : (void *)&file, pools[slot], 1, 0);
        if (result == 0 && !null) sprintf(told, "/proc/%d/fd/%d", getpid(), file);
        return result;
    }
    if (IS("pool_accept")) {
        file = file_of(text);
        result = cuMemPoolImportFromShareableHandle(null ? NULL : &foreign_pool, (void *)(size_t)file, 1, 0);
        close(file);
        return result;
    }
    if (IS("pointer_offer")) {
        name64 name = {{0}};
        result = cuMemPoolExportPointer(null ? NULL : &name, pooled[slot]);
        if (result == 0) tell(&name);
        return result;
    }
    if (IS("pointer_accept")) {
        name64 name = name_in(text);
        return cuMemPoolImportPointer(null ? NULL : &pooled[slot], foreign_pool, &name);
    }
    if (IS("external")) {
        external_desc desc = {.type = 1, .size = bytes};
        desc.what.fd = memfd_create("external", 0);
        if (ftruncate(desc.what.fd, (off_t)(bytes % (1ull << 40))) != 0) return 999;
        result = cuImportExternalMemory(null ? NULL : &externals[slot], &desc);
        if (result != 0) close(desc.what.fd);
        return result;
    }
    if (IS("external_destroy")) return cuDestroyExternalMemory(externals[slot]);
    /* These may wait for all streams. */
    unblock();
    if (IS("jump")) return jumped(bytes);
    if (IS("sync")) return cuCtxSynchronize();
    if (IS("stream_sync")) return cuStreamSynchronize(stream);
    if (IS("free")) return cuMemFree_v2(pointers[slot]);
    if (IS("close")) return cuIpcCloseMemHandle(imported[slot]);
    if (IS("array_destroy")) return cuArrayDestroy(arrays[slot]);
    if (IS("mipmap_destroy")) return cuMipmappedArrayDestroy(mipmaps[slot]);
    if (IS("graph_destroy")) return cuGraphDestroy(graphs[slot]);
    if (IS("exec_destroy")) return cuGraphExecDestroy(executables[slot]);
    if (IS("graph_trim")) return cuDeviceGraphMemTrim((CUdevice)(slot < 8 ? 0 : slot * 11));
    if (IS("capture")) {
        result = cuStreamBeginCapture_v2(free_running, (int)(bytes % 3));
        if (result == 0) result = cuMemAllocAsync(&pointers[slot % 8], bytes, free_running);
        CUresult ended = cuStreamEndCapture(free_running, null ? NULL : &graphs[slot]);
        return result != 0 ? result : ended;
    }
    if (IS("context")) {
        result = cuCtxCreate_v2(null ? NULL : &contexts[slot], 0, 0);
        driver.set_current(primary);
        return result;
    }
    if (IS("enter")) return driver.set_current(contexts[slot]);
    if (IS("leave")) return driver.set_current(primary);
    if (IS("context_destroy")) {
        result = cuCtxDestroy_v2(contexts[slot]);
        driver.set_current(primary);
        return result;
    }
    if (IS("limit")) return cuCtxSetLimit(slot % 3, bytes);
    if (IS("reset")) {
        result = cuDevicePrimaryCtxReset_v2(0);
        CUresult after = again();
        return result != 0 ? result : after;
    }
    if (IS("again")) return again();
    if (IS("module")) return cuModuleLoadData(null ? NULL : &modules[slot], images[bytes % 5]);
    if (IS("module_unload")) return cuModuleUnload(modules[slot]);
    if (IS("library")) {
        result = cuLibraryLoadData(null ? NULL : &libraries[slot], images[bytes % 5], NULL, NULL, 0, NULL, NULL, 0);
        return result != 0 ? result : cuLibraryGetModule(&node, libraries[slot]);
    }
    if (IS("library_unload")) return cuLibraryUnload(libraries[slot]);
    if (IS("green")) {
        resource whole;
        handle desc = NULL;
        result = cuDeviceGetDevResource(0, &whole, 1);
        if (result == 0) result = cuDevResourceGenerateDesc(&desc, &whole, 1);
        return result != 0 ? result : cuGreenCtxCreate(null ? NULL : &greens[slot], desc, 0, 1);
    }
    if (IS("green_destroy")) return cuGreenCtxDestroy(greens[slot]);
    if (IS("fork")) { /* the child has no driver; what it tries is not the parent's */
        pid_t child = fork();
        if (child == 0) {
            cuMemFree_v2(pointers[slot]);
            cuMemAlloc_v2(&pointers[slot], bytes);
            driver.init(0);
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        return (CUresult)(WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : 0);
    }
    return 999;
}

struct told_step {
    const char *op, *text;
    int slot;
    size_t bytes;
    CUresult result;
};

static void *in_thread(void *given) {
    struct told_step *told_step = given;
    driver.set_current(primary);
    told_step->result = step(told_step->op, told_step->slot, told_step->bytes, told_step->text);
    return NULL;
}

int main(void) {
    char line[400], op[40], text[300];
    setvbuf(stdout, NULL, _IOLBF, 0);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* the others copy descriptors */
    pointers[9] = pooled[9] = mapped[9] = imported[9] = created[9] = retained[9] = GARBAGE;
    mapped_bytes[9] = ~(size_t)0;
    handle *kinds[] = {arrays, mipmaps, pools, graphs, executables, modules, libraries, greens, externals, contexts};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) kinds[i][9] = (handle)GARBAGE;
    while (fgets(line, sizeof line, stdin) != NULL) {
        unsigned slot = 0;
        alarm(10);
        struct told_step now = {op, text, 0, 0, 999};
        text[0] = told[0] = 0;
        sscanf(line, "%39s %u %zu %299s", op, &slot, &now.bytes, text);
        now.slot = (int)(slot % SLOTS);
        if (strcmp(op, "begin") == 0) {
            now.result = driver.init(0);
            if (now.result == 0) now.result = again();
        } else if (op[0] == '@') {
            pthread_t thread;
            now.op = op + 1;
            if (pthread_create(&thread, NULL, in_thread, &now) == 0) pthread_join(thread, NULL);
        } else {
            now.result = step(op, now.slot, now.bytes, text);
        }
        alarm(0); /* a step may hang, and the pause between two may be long */
        printf("%s %u %s\n", op, now.result, told);
    }
    return 0;
}
