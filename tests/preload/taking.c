/* Ways to take memory of pools and graphs past a limit. One line in, one line out: "NAME", the
 * number of tries that returned 0, and the last result. Between two lines the test checks the board. */
#include <pthread.h>
#include <unistd.h>
#include "driver.h"

typedef void *handle;
typedef struct { int type, id; } location;
typedef struct { location where; int flags; } access_desc;
typedef struct { int type, handles; location where; void *attributes; size_t max; char reserved[56]; } pool_props;
typedef struct { pool_props pool; const access_desc *access; size_t count, bytes; CUdeviceptr pointer; } node_params;
typedef struct { unsigned long long flags; CUstream stream; handle error; unsigned result; } instantiate_params;

typedef struct { int result; handle error, from; } update_info;
typedef struct { CUdeviceptr to; size_t pitch; unsigned value, element; size_t width, height; } memset_params;

extern CUresult cuCtxGetCurrent(CUcontext *);
extern CUresult cuGraphAddMemsetNode(handle *, handle, const handle *, size_t, const memset_params *, CUcontext);
extern CUresult cuGraphExecMemsetNodeSetParams(handle, handle, const memset_params *, CUcontext);
extern CUresult cuGraphExecUpdate_v2(handle, handle, update_info *);
extern CUresult cuStreamCreate(CUstream *, unsigned);
extern CUresult cuStreamSynchronize(CUstream);
extern CUresult cuStreamDestroy_v2(CUstream);
extern CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *);
extern CUresult cuStreamBeginCapture_v2(CUstream, int);
extern CUresult cuStreamBeginCapture_v2_ptsz(CUstream, int);
extern CUresult cuStreamEndCapture(CUstream, handle *);
extern CUresult cuStreamEndCapture_ptsz(CUstream, handle *);
extern CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
extern CUresult cuMemAllocAsync_ptsz(CUdeviceptr *, size_t, CUstream);
extern CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
extern CUresult cuMemPoolCreate(handle *, const pool_props *);
extern CUresult cuMemPoolDestroy(handle);
extern CUresult cuMemPoolSetAttribute(handle, int, void *);
extern CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, handle, CUstream);
extern CUresult cuDeviceSetMemPool(CUdevice, handle);
extern CUresult cuDeviceGetMemPool(handle *, CUdevice);
extern CUresult cuDeviceGetDefaultMemPool(handle *, CUdevice);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuGraphCreate(handle *, unsigned);
extern CUresult cuGraphAddMemAllocNode(handle *, handle, const handle *, size_t, node_params *);
extern CUresult cuGraphAddMemFreeNode(handle *, handle, const handle *, size_t, CUdeviceptr);
extern CUresult cuGraphInstantiateWithFlags(handle *, handle, unsigned long long);
extern CUresult cuGraphInstantiateWithParams(handle *, handle, instantiate_params *);
extern CUresult cuGraphUpload(handle, CUstream);
extern CUresult cuGraphLaunch(handle, CUstream);
extern CUresult cuGraphExecDestroy(handle);
extern CUresult cuGraphDestroy(handle);
extern CUresult cuDeviceGraphMemTrim(CUdevice);

#define MOST 256
static const struct driver driver = LINKED_DRIVER;
static CUstream stream, aside;
static handle graphs[MOST], executables[MOST], pool;
static CUdeviceptr pointers[MOST], plain;
static int graph_count, pointer_count;

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static volatile int is_through;

static void wait_at_gate(void *unused) {
    (void)unused;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    is_through = 1;
}

/* Everything that comes into the stream afterwards waits until "open". */
static CUresult block(void) {
    pthread_mutex_lock(&gate);
    return cuLaunchHostFunc(stream, wait_at_gate, NULL);
}

static CUresult open_gate(void) {
    pthread_mutex_unlock(&gate);
    while (!is_through) usleep(1000); /* the stream may be another one by now */
    return cuStreamSynchronize(stream);
}

/* A graph of `nodes` allocations of `bytes` on a device, made executable. */
static CUresult graph(size_t bytes, int nodes, int device, int is_freed, int flags) {
    const access_desc access = {{1, device}, 3};
    handle node = NULL;
    CUresult result = cuGraphCreate(&graphs[graph_count], 0);
    for (int i = 0; i < nodes && result == 0; i++) {
        node_params params = {
            .pool = {.type = 1, .where = {1, device}}, .access = &access, .count = 1, .bytes = bytes};
        handle before = node;
        result = cuGraphAddMemAllocNode(&node, graphs[graph_count], &before, before != NULL, &params);
        pointers[pointer_count] = params.pointer;
        if (is_freed && result == 0) {
            before = node;
            result = cuGraphAddMemFreeNode(&node, graphs[graph_count], &before, 1, params.pointer);
        }
    }
    if (result == 0 && flags & 2) {
        instantiate_params params = {.flags = (unsigned)flags, .stream = stream};
        result = cuGraphInstantiateWithParams(&executables[graph_count], graphs[graph_count], &params);
    } else if (result == 0) {
        result = cuGraphInstantiateWithFlags(&executables[graph_count], graphs[graph_count], (unsigned)flags);
    }
    if (result == 0) {
        graph_count++;
        pointer_count++;
    }
    return result;
}

/* A graph that allocates on two devices, one after the other. */
static CUresult on_both(size_t bytes) {
    handle node = NULL;
    CUresult result = cuGraphCreate(&graphs[graph_count], 0);
    for (int device = 0; device < 2 && result == 0; device++) {
        const access_desc access = {{1, device}, 3};
        node_params params = {
            .pool = {.type = 1, .where = {1, device}}, .access = &access, .count = 1, .bytes = bytes};
        handle before = node;
        result = cuGraphAddMemAllocNode(&node, graphs[graph_count], &before, before != NULL, &params);
        pointers[pointer_count++] = params.pointer;
    }
    if (result == 0) result = cuGraphInstantiateWithFlags(&executables[graph_count], graphs[graph_count], 0);
    if (result == 0) graph_count++;
    return result;
}

/* A graph that frees what another one has allocated. */
static CUresult freeing(int at) {
    handle node;
    CUresult result = cuGraphCreate(&graphs[graph_count], 0);
    if (result == 0) result = cuGraphAddMemFreeNode(&node, graphs[graph_count], NULL, 0, pointers[at]);
    if (result == 0) result = cuGraphInstantiateWithFlags(&executables[graph_count], graphs[graph_count], 0);
    if (result == 0) {
        graph_count++;
        pointer_count++; /* the numbers of graphs and pointers stay the same */
    }
    return result;
}

/* An executable graph takes over another graph, of this size. */
static CUresult updated(int at, size_t bytes) {
    update_info info;
    handle executable = executables[at];
    CUresult result = graph(bytes, 1, 0, 1, 0);
    if (result == 0) result = cuGraphExecDestroy(executables[graph_count - 1]);
    return result != 0 ? result : cuGraphExecUpdate_v2(executable, graphs[graph_count - 1], &info);
}

/* A graph that allocates and fills what it has allocated, and is then set to fill something else. */
static CUresult refilled(size_t bytes) {
    memset_params fill = {.pitch = 4, .value = 1, .element = 4, .width = 1, .height = 1};
    const access_desc access = {{1, 0}, 3};
    node_params params = {.pool = {.type = 1, .where = {1, 0}}, .access = &access, .count = 1, .bytes = bytes};
    handle made, node;
    CUcontext context;
    CUresult result = cuCtxGetCurrent(&context);
    if (result == 0) result = cuGraphCreate(&graphs[graph_count], 0);
    if (result == 0) result = cuGraphAddMemAllocNode(&made, graphs[graph_count], NULL, 0, &params);
    fill.to = params.pointer;
    if (result == 0) result = cuGraphAddMemsetNode(&node, graphs[graph_count], &made, 1, &fill, context);
    if (result == 0) result = cuGraphInstantiateWithFlags(&executables[graph_count], graphs[graph_count], 0);
    fill.to += bytes / 2;
    if (result == 0) result = cuGraphExecMemsetNodeSetParams(executables[graph_count], node, &fill, context);
    if (result == 0) pointers[pointer_count++] = params.pointer;
    if (result == 0) result = cuGraphLaunch(executables[graph_count++], stream);
    return result;
}

static CUresult launch(int at) { return cuGraphLaunch(executables[at], stream); }

static CUresult once(const char *name, size_t bytes, int second) {
    const pool_props in_pool = {.type = 1, .where = {1, second}};
    unsigned long long all = ~0ull;
    handle other, captured;
    CUresult result;
#define IS(what) (strcmp(name, what) == 0)
#define THEN(call) (result != 0 ? result : (call))
    if (IS("ready")) {
        result = ready(&driver);
        return THEN(cuStreamCreate(&stream, 1));
    }
    if (IS("block")) return block();
    if (IS("open")) return open_gate();
    if (IS("sync")) return cuCtxSynchronize();
    if (IS("alloc")) return driver.alloc(&plain, bytes);
    if (IS("free")) return driver.free(plain);
    if (IS("free_in_order")) return cuMemFreeAsync(plain, stream);
    if (IS("new_stream")) {
        result = cuStreamDestroy_v2(stream);
        return THEN(cuStreamCreate(&stream, 1));
    }

    if (IS("graph")) return graph(bytes, 1, second, 0, 0);
    if (IS("freed_graph")) return graph(bytes, 1, second, 1, 0);
    if (IS("many_nodes")) return graph(bytes, second, 0, 0, 0);
    if (IS("uploaded")) return graph(bytes, 1, second, 0, 2);
    if (IS("launch")) return launch((int)bytes);
    if (IS("upload")) return cuGraphUpload(executables[bytes], stream);
    if (IS("kept_graph")) {
        result = graph(bytes, 1, 0, 0, 0);
        return THEN(launch(graph_count - 1));
    }
    if (IS("launch_aside")) return cuGraphLaunch(executables[bytes], aside);
    if (IS("aside")) return cuStreamCreate(&aside, 1);
    if (IS("on_both")) return on_both(bytes);
    if (IS("freeing")) return freeing((int)bytes);
    if (IS("updated")) return updated((int)bytes, (size_t)second * MIB);
    if (IS("refilled")) return refilled(bytes);
    if (IS("exec_end")) return cuGraphExecDestroy(executables[bytes]);
    if (IS("graph_only_end")) return cuGraphDestroy(graphs[bytes]);
    if (IS("graph_free_now")) return driver.free(pointers[bytes]);
    if (IS("graph_free")) return cuMemFreeAsync(pointers[bytes], stream);
    if (IS("graph_end")) {
        result = cuGraphExecDestroy(executables[bytes]);
        return THEN(cuGraphDestroy(graphs[bytes]));
    }
    if (IS("graph_trim")) return cuDeviceGraphMemTrim(0);
    if (IS("captured")) {
        result = cuStreamBeginCapture_v2(stream, 2);
        if (result == 0) result = cuMemAllocAsync(&pointers[pointer_count], bytes, stream);
        if (result == 0) result = cuStreamEndCapture(stream, &captured);
        if (result == 0) result = cuGraphInstantiateWithFlags(&executables[graph_count], captured, 0);
        if (result == 0) result = launch(graph_count++);
        return result;
    }
    if (IS("captured_per_thread")) {
        result = cuStreamBeginCapture_v2_ptsz(NULL, 2);
        if (result == 0) result = cuMemAllocAsync_ptsz(&pointers[pointer_count], bytes, NULL);
        if (result == 0) result = cuStreamEndCapture_ptsz(NULL, &captured);
        if (result == 0) result = cuGraphInstantiateWithFlags(&executables[graph_count], captured, 0);
        if (result == 0) result = launch(graph_count++);
        return result;
    }

    if (IS("pool")) return cuMemPoolCreate(&pool, &in_pool);
    if (IS("keep_all")) return cuMemPoolSetAttribute(pool, 4, &all);
    if (IS("draw")) return cuMemAllocFromPoolAsync(&pointers[pointer_count++], bytes, pool, stream);
    if (IS("give")) return cuMemFreeAsync(pointers[--pointer_count], stream);
    if (IS("pool_end")) return cuMemPoolDestroy(pool);
    if (IS("churn")) {
        result = cuMemAllocFromPoolAsync(&pointers[0], bytes, pool, stream);
        return THEN(cuMemFreeAsync(pointers[0], stream));
    }
    if (IS("draw_from_another")) {
        result = cuMemPoolCreate(&other, &in_pool);
        return THEN(cuMemAllocFromPoolAsync(&pointers[pointer_count++], bytes, other, stream));
    }
    if (IS("use_pool")) return cuDeviceSetMemPool(0, pool);
    if (IS("is_default_used")) {
        result = cuDeviceGetMemPool(&other, 0);
        if (result == 0) result = cuDeviceGetDefaultMemPool(&captured, 0);
        return THEN(other == captured ? 0 : 1);
    }
    if (IS("draw_from_nothing")) return cuMemAllocFromPoolAsync(&pointers[0], bytes, (handle)0x1230, stream);
    if (IS("plain_in_order")) {
        result = driver.alloc(&plain, bytes);
        return THEN(cuMemFreeAsync(plain, stream));
    }
    return 999;
}

/* "TIMES NAME MIB SECOND": as often as it is answered with 0. */
int main(void) {
    char line[256], name[32];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin) != NULL) {
        int times = 0, second = 0, done = 0;
        double mib = 0;
        CUresult result = 0;
        sscanf(line, "%d %31s %lf %d", &times, name, &mib, &second);
        static const char *const of_a_graph[] = {"launch", "upload", "graph_free", "graph_end", "launch_aside", "freeing",
                                                 "updated", "exec_end", "graph_only_end", "graph_free_now"};
        int is_index = 0;
        for (size_t i = 0; i < sizeof of_a_graph / sizeof *of_a_graph; i++)
            if (strcmp(name, of_a_graph[i]) == 0) is_index = 1;
        while (done < times && result == 0) {
            result = once(name, is_index ? (size_t)mib : (size_t)(mib * (double)MIB), second);
            if (result == 0) done++;
        }
        printf("%s %d %u\n", name, done, result);
    }
    return 0;
}
