/* Times one kind of call from within the process that makes it. Prints, in nanoseconds and without the clock's own
 * cost: the median over batches, the 99.9th percentile of single calls, and the mean processor time over all batches,
 * which a busy machine changes least. */
#include <time.h>
#include <unistd.h>
#include "../preload/driver.h"

enum { BATCH = 64 };

static const struct driver driver = LINKED_DRIVER;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static double processor(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void alloc_and_free(void) {
    CUdeviceptr pointer = 0;
    if (driver.alloc(&pointer, 4096) != 0 || driver.free(pointer) != 0) exit(3);
}

static void info(void) {
    size_t free_bytes, total;
    if (driver.info(&free_bytes, &total) != 0) exit(3);
}

static void get_proc_address(void) {
    void *found = NULL;
    int status;
    if (cuGetProcAddress_v2("cuMemAlloc", &found, 12000, 0, &status) != 0) exit(3);
}

extern CUresult cuModuleLoadData(void **, const void *);
extern CUresult cuModuleGetFunction(void **, void *, const char *);
extern CUresult cuStreamCreate(CUstream *, unsigned);
extern CUresult cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                               void **, void **);

static void *function;
static CUstream stream;

/* A kernel of 1 us. */
static void launch_ready(void) {
    static const char text[] =
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k__1us() { ret; }\n";
    void *module;
    if (cuModuleLoadData(&module, text) != 0 || cuModuleGetFunction(&function, module, "k__1us") != 0 ||
        cuStreamCreate(&stream, 1) != 0)
        exit(5);
}

extern CUresult cuModuleUnload(void *);
extern CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
extern CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
extern CUresult cuStreamSynchronize(CUstream);

/* Text that declares a variable and so many entries. */
static char *image;

static void image_ready(size_t entries) {
    static const char head[] = ".version 7.0\n.target sm_70\n.address_size 64\n.global .align 4 .b8 table[4096];\n";
    static const char entry[] = ".visible .entry k%08zu(.param .u64 a) { .reg .b64 %%rd<4>; ld.param.u64 %%rd1, [a]; ret; }\n";
    size_t room = sizeof head + entries * (sizeof entry + 16), used;
    image = malloc(room);
    used = (size_t)snprintf(image, room, "%s", head);
    for (size_t i = 0; i < entries; i++) used += (size_t)snprintf(image + used, room - used, entry, i);
}

static void load_and_unload(void) {
    void *module;
    if (cuModuleLoadData(&module, image) != 0 || cuModuleUnload(module) != 0) exit(3);
}

static void pool_alloc_and_free(void) {
    CUdeviceptr pointer;
    if (cuMemAllocAsync(&pointer, 4096, stream) != 0 || cuMemFreeAsync(pointer, stream) != 0) exit(3);
}

static void launch(void) {
    if (cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL) != 0) exit(3);
}

/* Between two batches, so that the GPU has done with one before the next and no launch waits for it. */
static void pause_for(void (*call)(void)) {
    if (call != launch) return;
    for (double until = now() + 3 * BATCH * 1e3; now() < until;) continue;
}

static void nothing(void) {}

static int by_size(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static void measure(void (*call)(void), size_t calls, double *median, double *worst, double *mean) {
    double *batches = malloc(sizeof(double) * (calls / BATCH + 1)), *singles = malloc(sizeof(double) * calls);
    size_t count = 0;
    *mean = 0;
    for (size_t i = 0; i < 1000 && i < calls; i++) call();
    pause_for(call);
    for (size_t i = 0; i + BATCH <= calls; i += BATCH) {
        double used = processor(), start = now();
        for (int j = 0; j < BATCH; j++) call();
        batches[count++] = (now() - start) / BATCH;
        *mean += processor() - used;
        pause_for(call);
    }
    for (size_t i = 0; i < calls; i++) {
        double start = now();
        call();
        singles[i] = now() - start;
        if (i % BATCH == 0) pause_for(call);
    }
    *mean /= (double)count * BATCH;
    qsort(batches, count, sizeof *batches, by_size);
    qsort(singles, calls, sizeof *singles, by_size);
    *median = batches[count / 2];
    *worst = singles[calls - 1 - calls / 1000];
    free(batches);
    free(singles);
}

/* calls KIND COUNT [LIVE]: LIVE allocations stand while it measures; with "module", its text has so many entries.
 * With "init", the time of cuInit and the first context. */
int main(int count, char **words) {
    if (count < 3) return 2;
    const char *kind = words[1];
    size_t calls = (size_t)atol(words[2]), live = count > 3 ? (size_t)atol(words[3]) : 0;
    double start = now();
    if (ready(&driver) != 0) return 1;
    if (strcmp(kind, "init") == 0) {
        printf("%.0f 0 0\n", now() - start);
        return 0;
    }
    for (size_t i = 0; i < live && strcmp(kind, "module") != 0; i++) {
        CUdeviceptr pointer = 0;
        if (driver.alloc(&pointer, 512) != 0) return 4;
    }
    void (*call)(void) = strcmp(kind, "alloc") == 0  ? alloc_and_free
                         : strcmp(kind, "info") == 0 ? info
                         : strcmp(kind, "launch") == 0 ? launch
                         : strcmp(kind, "module") == 0 ? load_and_unload
                         : strcmp(kind, "pool") == 0   ? pool_alloc_and_free
                                                     : get_proc_address;
    if (call == launch) launch_ready();
    if (call == load_and_unload) image_ready(live);
    if (call == pool_alloc_and_free && cuStreamCreate(&stream, 1) != 0) return 5;
    double median, worst, mean, clock_median, clock_worst, clock_mean;
    measure(nothing, 100000, &clock_median, &clock_worst, &clock_mean);
    measure(call, calls, &median, &worst, &mean);
    printf("%.1f %.1f %.1f\n", median - clock_median, worst, mean - clock_mean);
    return 0;
}
