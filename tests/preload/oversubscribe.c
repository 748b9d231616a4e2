/* A program whose memory may exceed its share of the GPU. Line by line like memory.c: "NAME result" is the
 * answer, and allocations are on a stack from which "free" takes the last.
 *
 *   oversubscribe race FILE NUMBER OF-HOW-MANY ROUNDS SHARE-MIB LIMIT-MIB
 *
 * lets several of them take and free memory at once, and counts in the file what the driver gave to all:
 * prints "device D total T over O": the maximum of each, and how often one exceeded its bound. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "driver.h"

typedef void *handle;
typedef struct { int type, id; } location;
typedef struct { int type, handles; location where; void *metadata; unsigned char flags[8]; } alloc_prop;
typedef struct { int type, handles; location where; void *attributes; size_t max; char reserved[56]; } pool_props;
typedef struct { pool_props pool; const void *access; size_t count, bytes; CUdeviceptr pointer; } node_params;
typedef struct { size_t width, height; unsigned format, channels; } array_desc;
typedef struct { char bytes[64]; } ipc_handle;

extern CUresult cuMemAlloc(unsigned *, unsigned);
extern CUresult cuMemFree(unsigned);
extern CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
extern CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
extern CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
extern CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuMemCreate(unsigned long long *, size_t, const alloc_prop *, unsigned long long);
extern CUresult cuMemRelease(unsigned long long);
extern CUresult cuArrayCreate_v2(handle *, const array_desc *);
extern CUresult cuArrayDestroy(handle);
extern CUresult cuIpcGetMemHandle(ipc_handle *, CUdeviceptr);
extern CUresult cuGraphCreate(handle *, unsigned);
extern CUresult cuGraphAddMemAllocNode(handle *, handle, const handle *, size_t, node_params *);
extern CUresult cuGraphInstantiateWithFlags(handle *, handle, unsigned long long);
extern CUresult cuGraphLaunch(handle, CUstream);
extern CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
extern CUresult cuCtxDestroy_v2(CUcontext);
extern CUresult cuPointerGetAttribute(void *, int, CUdeviceptr);
extern CUresult cuPointerGetAttributes(unsigned, int *, void **, CUdeviceptr);
extern CUresult cuMemRangeGetAttribute(void *, size_t, int, CUdeviceptr, size_t);
extern CUresult cuMemsetD8_v2(CUdeviceptr, unsigned char, size_t);
extern CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
extern CUresult cuStreamCreate(CUstream *, unsigned);
extern CUresult cuStreamBeginCapture_v2(CUstream, int);
extern CUresult cuStreamEndCapture(CUstream, handle *);

#define FIRST(a, b) ({ CUresult first_ = (a); first_ != 0 ? first_ : (b); })

static const struct driver driver = LINKED_DRIVER;
static CUcontext primary, context;
static struct thing { char kind; unsigned long long number; size_t bytes, pitch; } things[64];
static int count;

/* Is it managed memory, whatever cuPointerGetAttribute says? Only of that can be told where it belongs. */
static int is_managed(CUdeviceptr pointer) {
    int place;
    return cuMemRangeGetAttribute(&place, sizeof place, 2, pointer, 1) == 0;
}

static CUresult take(char kind, size_t bytes) {
    const alloc_prop prop = {.type = 1, .handles = 1, .where = {1, 0}};
    struct thing *it = &things[count];
    unsigned small = 0;
    CUresult result;
    *it = (struct thing){.kind = kind, .bytes = bytes};
    switch (kind) {
    case 'a': result = driver.alloc(&it->number, bytes); break;
    case 'o': result = cuMemAlloc(&small, (unsigned)bytes); it->number = small; break;
    case 'p': result = cuMemAllocPitch_v2(&it->number, &it->pitch, 1000, bytes / 1024, 4); break;
    case 'm': result = cuMemAllocManaged(&it->number, bytes, 1); break;
    case 's': result = cuMemAllocAsync(&it->number, bytes, NULL); break;
    case 'c': result = cuMemCreate(&it->number, bytes, &prop, 0); break;
    default: result = cuArrayCreate_v2((handle *)&it->number, &(array_desc){1024, bytes / 4096, 0x20, 1});
    }
    count += result == 0;
    return result;
}

static CUresult give_it(const struct thing *it) {
    switch (it->kind) {
    case 'o': return cuMemFree((unsigned)it->number);
    case 's': return FIRST(cuMemFreeAsync(it->number, NULL), cuCtxSynchronize());
    case 'c': return cuMemRelease(it->number);
    case 'y': return cuArrayDestroy((handle)it->number);
    default: return driver.free(it->number);
    }
}

static CUresult give(void) {
    if (count == 0) return 997;
    count--;
    return give_it(&things[count]);
}

static CUresult step(const char *name, size_t bytes) {
    struct thing *top = &things[count > 0 ? count - 1 : 0];
#define IS(what) (strcmp(name, what) == 0)
    if (IS("ready")) return FIRST(ready(&driver), driver.retain(&primary, 0));
    if (IS("alloc")) return take('a', bytes);
    if (IS("old")) return take('o', bytes);
    if (IS("pitch")) return take('p', bytes);
    if (IS("managed")) return take('m', bytes);
    if (IS("async")) return take('s', bytes);
    if (IS("create")) return take('c', bytes);
    if (IS("array")) return take('y', bytes);
    if (IS("free")) return give();
    if (IS("free_async")) return count--, cuMemFreeAsync(top->number, NULL);
    if (IS("free_null")) return driver.free(0);
    if (IS("null")) return driver.alloc(NULL, bytes);
    if (IS("odd_pitch")) return cuMemAllocPitch_v2(&top->number, &top->pitch, 1000, bytes / 1024, 5);
    if (IS("pitch_is")) return (CUresult)top->pitch;
    if (IS("use")) { /* what is written there is read there, at its end as well */
        unsigned char byte = 0;
        CUresult result = cuMemsetD8_v2(top->number, 0x5a, top->bytes);
        if (result == 0) result = cuMemcpyDtoH_v2(&byte, top->number + top->bytes - 1, 1);
        return result != 0 ? result : byte == 0x5a ? 0 : 998;
    }
    if (IS("is_managed")) return (CUresult)is_managed(top->number);
    if (IS("export")) {
        ipc_handle named;
        return cuIpcGetMemHandle(&named, top->number + (bytes != 0));
    }
    if (IS("graph")) {
        node_params params = {.pool = {.type = 1, .where = {1, 0}}, .bytes = bytes};
        handle graph, node, executable;
        CUresult result = cuGraphCreate(&graph, 0);
        if (result == 0) result = cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params);
        if (result == 0) result = cuGraphInstantiateWithFlags(&executable, graph, 0);
        return result != 0 ? result : cuGraphLaunch(executable, NULL);
    }
    if (IS("captured_free")) { /* recorded or refused by the driver, and never done */
        CUstream stream;
        handle graph = NULL;
        CUresult result = FIRST(cuStreamCreate(&stream, 1), cuStreamBeginCapture_v2(stream, 2));
        if (result != 0) return 996;
        result = cuMemFreeAsync(top->number, stream);
        (void)cuStreamEndCapture(stream, &graph);
        return result;
    }
    if (IS("context")) return cuCtxCreate_v2(&context, 0, 0);
    if (IS("context_destroy")) return count = 0, FIRST(cuCtxDestroy_v2(context), driver.set_current(primary));
    if (IS("reset")) return count = 0, cuDevicePrimaryCtxReset_v2(0);
    return 999;
}

/* Total, used and free as NVML reports them, MiB. */
static void nvml(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *device = NULL;
    unsigned long long memory[3] = {0};
    unsigned (*init)(void) = (unsigned (*)(void))dlsym(library, "nvmlInit_v2");
    unsigned (*find)(unsigned, void **) = (unsigned (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    unsigned (*ask)(void *, void *) = (unsigned (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo");
    unsigned result = FIRST(init(), FIRST(find(0, &device), ask(device, memory)));
    printf("nvml %u %llu %llu %llu\n", result, memory[0] / MIB, memory[2] / MIB, memory[1] / MIB);
}

/* Memory type, host pointer, managed, ordinal, may be shared: one by one ("-" where that is an error),
 * then all at once. */
static void what(void) {
    static const int asked[] = {2, 4, 8, 9, 10};
    unsigned long long all[5];
    void *to[5];
    CUdeviceptr inside = things[count - 1].number + 4096;
    printf("what");
    for (int i = 0; i < 5; i++) {
        unsigned long long value = 0;
        CUresult result = cuPointerGetAttribute(&value, asked[i], inside);
        if (result != 0) printf(" -");
        else if (asked[i] == 4) printf(" %s", value == inside ? "same" : "other");
        else printf(" %llu", value);
        all[i] = 0;
        to[i] = &all[i];
    }
    CUresult result = cuPointerGetAttributes(5, (int *)asked, to, inside);
    printf(" all %u %llu %s %llu %llu %llu\n", result, all[0],
           all[1] == 0 ? "null" : all[1] == inside ? "same" : "other", all[2], all[3], all[4]);
}

struct truth { long long device, total, most_device, most_total, over; int arrived; };

/* Every one of them has a context, from the first allocation to the last. */
static void meet(struct truth *truth, int parties) {
    __atomic_add_fetch(&truth->arrived, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&truth->arrived, __ATOMIC_SEQ_CST) < parties) usleep(1000);
}

static void add(long long *sum, long long *most, long long bytes) {
    long long now = __atomic_add_fetch(sum, bytes, __ATOMIC_SEQ_CST);
    long long seen = __atomic_load_n(most, __ATOMIC_RELAXED);
    while (now > seen && !__atomic_compare_exchange_n(most, &seen, now, 1, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {}
}

/* Counted after the driver has given it and until it is about to take it back: never more than there is. */
static void note(struct truth *truth, const struct thing *it, int sign) {
    long long bytes = sign * (long long)it->bytes;
    add(&truth->total, &truth->most_total, bytes);
    if (strchr("apm", it->kind) == NULL || !is_managed(it->number)) add(&truth->device, &truth->most_device, bytes);
}

static int race(char **words) {
    static const char kinds[] = "aaapmcy";
    int file = open(words[2], O_RDWR | O_CREAT, 0600), rounds = atoi(words[5]);
    long long share = atoll(words[6]) * (long long)MIB, limit = atoll(words[7]) * (long long)MIB;
    if (file < 0 || ftruncate(file, 4096) != 0) return 1;
    struct truth *truth = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (truth == MAP_FAILED || ready(&driver) != 0) return 1;
    srand((unsigned)atoi(words[3]));
    alarm(300);
    meet(truth, atoi(words[4]));
    for (int round = 0; round < rounds || count > 0; round++) {
        if (round < rounds && count < 8 && rand() % 3 != 0) {
            CUresult result = take(kinds[rand() % 7], (size_t)(2 + 2 * (rand() % 12)) * MIB);
            if (result == 2) continue;
            if (result != 0) return 3;
            note(truth, &things[count - 1], 1);
        } else if (count > 0) {
            int which = rand() % count;
            struct thing it = things[which];
            things[which] = things[--count];
            note(truth, &it, -1);
            if (give_it(&it) != 0) return 4;
        }
        long long device = __atomic_load_n(&truth->device, __ATOMIC_SEQ_CST);
        long long total = __atomic_load_n(&truth->total, __ATOMIC_SEQ_CST);
        if (device > share || total > limit) __atomic_add_fetch(&truth->over, 1, __ATOMIC_RELAXED);
    }
    meet(truth, 2 * atoi(words[4]));
    printf("device %lld total %lld over %lld\n", truth->most_device / (long long)MIB,
           truth->most_total / (long long)MIB, truth->over);
    return 0;
}

int main(int words, char **word) {
    char line[256], name[32], text[200];
    if (words == 8) return race(word);
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin) != NULL) {
        text[0] = 0;
        sscanf(line, "%31s %199s", name, text);
        if (strcmp(name, "info") == 0) {
            size_t free_bytes = 0, total = 0, whole = 0;
            CUresult result = FIRST(driver.info(&free_bytes, &total), driver.total_mem(&whole, 0));
            printf("info %u %zu %zu %zu\n", result, free_bytes / MIB, total / MIB, whole / MIB);
        } else if (strcmp(name, "what") == 0) {
            what();
        } else if (strcmp(name, "nvml") == 0) {
            nvml();
        } else {
            printf("%s %u\n", name, step(name, (size_t)(atof(text) * (double)MIB)));
        }
    }
    return 0;
}
