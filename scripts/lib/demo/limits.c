/* Programs that try to hold more memory than their container may, one for each way that once worked.
 * Each takes memory until it is refused, or 40 times; then it prints "took T refused R", and ends at the end of its input.
 * Built with -I tests/preload -I include; scripts/lib/demo/limits.py runs it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "takers.h"
#include "vgpu.h"

#define BIG (256 * MIB)
#define TIMES 40

extern CUresult cuMemRetainAllocationHandle(u64 *, void *);
extern CUresult cuMemAddressFree(CUdeviceptr, size_t);
extern CUresult cuGraphInstantiateWithParams(handle *, handle, instantiate_params *);
extern CUresult cuGreenCtxDestroy(handle);
extern CUresult cuCtxSetLimit(int, size_t);
extern CUresult cuCtxDestroy_v2(CUcontext);
extern CUresult cuModuleGetGlobal_v2(CUdeviceptr *, size_t *, handle, const char *);
typedef struct { unsigned char bytes[16]; } uuid;
typedef struct { size_t size; CUresult (*load_module)(handle *, const void *); CUresult (*primary_context)(CUcontext *, CUdevice); } table;
extern CUresult cuGetExportTable(const void **, const uuid *);

static const struct driver driver = LINKED_DRIVER;
static CUstream stream, blocked;
static char **words;
static int took, refused;
static const pool_props in_pool = {.type = 1, .handles = 1, .where = {1, 0}};
static const alloc_prop in_create = {.type = 1, .handles = 1, .where = {1, 0}};
static const access_desc both_ways = {{1, 0}, 3};

static void fail(const char *what) {
    printf("cannot try: %s\n", what);
    exit(0);
}

static int got(CUresult result) {
    if (result == 0) took++;
    if (result == 2) refused++;
    return result == 0;
}

static void start(void) {
    if (ready(&driver) != 0) fail("no context");
    if (cuStreamCreate(&stream, 1) != 0 || cuStreamCreate(&blocked, 1) != 0) fail("no stream");
}

/* This program again, as another process; what it prints can be read. */
static pid_t another(const char *what, const char *more, FILE **answers) {
    int ends[2];
    if (pipe(ends) != 0) fail("no pipe");
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(ends[1], 1);
        execl(words[0], words[0], what, more, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    if (answers != NULL) *answers = fdopen(ends[0], "r");
    return child;
}

static void plain_until_refused(int times) {
    CUdeviceptr pointer;
    for (int i = 0, no = 0; i < times && no < 2; i++) no += !got(driver.alloc(&pointer, BIG));
}

static CUresult graph_of(handle *graph, size_t bytes) {
    node_params params = {.pool = {.type = 1, .where = {1, 0}}, .access = &both_ways, .count = 1, .bytes = bytes};
    handle node;
    CUresult result = cuGraphCreate(graph, 0);
    return result != 0 ? result : cuGraphAddMemAllocNode(&node, *graph, NULL, 0, &params);
}

static void graphs(void) {
    handle graph, executable;
    instantiate_params params = {.flags = 2};
    start();
    params.upload = stream;
    for (int i = 0; i < TIMES; i++) {
        if (graph_of(&graph, BIG) != 0) fail("no graph");
        CUresult result = cuGraphInstantiateWithFlags(&executable, graph, 0);
        if (result == 0) result = cuGraphLaunch(executable, stream);
        got(result != 0 ? result : cuCtxSynchronize());
    }
    if (graph_of(&graph, 20ull << 30) == 0 && got(cuGraphInstantiateWithParams(&executable, graph, &params)))
        got(cuGraphLaunch(executable, stream));
}

static const char *big_image(void) {
    return ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 ballast[268435456];\n"
           ".visible .entry nothing() { ret; }\n";
}

static void images(void) {
    for (int i = 0, no = 0; i < TIMES && no < 2; i++) {
        handle module;
        CUdeviceptr pointer;
        size_t bytes;
        CUresult result = cuModuleLoadData(&module, big_image());
        /* A driver that loads lazily takes the memory here. */
        if (result == 0) result = cuModuleGetGlobal_v2(&pointer, &bytes, module, "ballast");
        no += !got(result);
    }
}
static void modules(void) { start(); images(); plain_until_refused(TIMES); }
static void modules_after_memory(void) { start(); plain_until_refused(12); images(); plain_until_refused(TIMES); }

static void contexts(void) {
    CUcontext context;
    if (driver.init(0) != 0) fail("no driver");
    for (int i = 0, no = 0; i < TIMES && no < 2; i++) no += !got(cuCtxCreate_v2(&context, 0, 0));
}

/* Writes zeroes over the container's region while it goes on taking memory. */
static void forged(void) {
    int file = open(getenv("VGPU_REGION") ? getenv("VGPU_REGION") : "", O_RDWR);
    struct VgpuRegionLayout *region =
        file < 0 ? MAP_FAILED : mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (region == MAP_FAILED) fail("no region");
    start();
    for (int i = 0, no = 0; i < TIMES && no < 4; i++) {
        CUdeviceptr pointer;
        no += !got(driver.alloc(&pointer, BIG));
        for (int slot = 0; slot < 8; slot++)
            region->slots[slot].devices[0].confirmed &= ~(uint64_t)VGPU_CHARGE_BYTES_MASK;
        region->devices[0].shared = 0;
        usleep(150 * 1000);
    }
}

/* More pools, and more references, than a table or a count of sixteen bits holds. */
static void tables(void) {
    static handle pools[256];
    CUdeviceptr pointer, at;
    u64 made, again;
    start();
    for (int i = 0; i < 256; i++)
        if (cuMemPoolCreate(&pools[i], &in_pool) != 0) fail("no pool");
    for (int i = 255, no = 0; i >= 0 && no < 2; i--) no += !got(cuMemAllocFromPoolAsync(&pointer, 2 * MIB, pools[i], stream));
    for (int i = 0, no = 0; i < TIMES && no < 1; i++) {
        CUresult result = cuMemCreate(&made, BIG, &in_create, 0);
        if (result == 0) result = cuMemAddressReserve(&at, BIG, 0, 0, 0);
        if (result == 0) result = cuMemMap(at, BIG, 0, made, 0);
        for (int times = 0; result == 0 && times < 65600; times++) result = cuMemRetainAllocationHandle(&again, (void *)at);
        for (int times = 0; result == 0 && times < 65600; times++) result = cuMemRelease(again);
        if (result == 0) result = cuMemUnmap(at, BIG);
        no += !got(result);
    }
}

/* Exports a buffer by a pointer inside it, and dies on request. */
static void exporter(void) {
    CUdeviceptr pointer;
    name64 name;
    if (ready(&driver) != 0 || driver.alloc(&pointer, BIG) != 0 || cuIpcGetMemHandle(&name, pointer + 512) != 0) {
        printf("none\n");
    } else {
        for (int i = 0; i < 64; i++) printf("%02hhx", (unsigned char)name.bytes[i]);
        printf("\n");
    }
    fflush(stdout);
    pause();
}
static void dying_exporter(void) {
    start();
    for (int i = 0, no = 0; i < TIMES && no < 2; i++) {
        FILE *answers;
        char line[200] = "";
        name64 name;
        CUdeviceptr pointer;
        pid_t child = another("exporter", NULL, &answers);
        int known = fgets(line, sizeof line, answers) != NULL && line[0] != 'n';
        for (int at = 0; at < 64; at++) sscanf(line + 2 * at, "%2hhx", (unsigned char *)&name.bytes[at]);
        name.bytes[63] ^= (char)i; /* no driver looks at it */
        no += !got(known ? cuIpcOpenMemHandle_v2(&pointer, name, 1) : 2);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        fclose(answers);
    }
    /* A descriptor that comes back to the process that gave it. */
    for (int i = 0, no = 0; i < TIMES && no < 2; i++) {
        u64 made, same;
        int file;
        CUresult result = cuMemCreate(&made, BIG, &in_create, 0);
        if (result == 0) result = cuMemExportToShareableHandle(&file, made, 1, 0);
        if (result == 0) result = cuMemImportFromShareableHandle(&same, (void *)(size_t)file, 1);
        if (result == 0) result = cuMemRelease(made);
        no += !got(result);
    }
}

static void behind_a_stream(void) {
    CUdeviceptr word, pointers[TIMES];
    handle pool;
    start();
    if (driver.alloc(&word, 4) != 0 || cuMemsetD32_v2(word, 0, 1) != 0 || cuStreamWaitValue32_v2(blocked, word, 1, 0) != 0)
        fail("no blocked stream");
    if (cuMemPoolCreate(&pool, &in_pool) != 0) fail("no pool");
    for (int i = 0, no = 0; i < TIMES && no < 3; i++) {
        no += !got(cuMemAllocFromPoolAsync(&pointers[i], BIG, pool, stream));
        cuMemFreeAsync(pointers[i], blocked); /* not before the stream goes on, which it never does */
    }
    plain_until_refused(TIMES);
    cuMemsetD32_v2(word, 1, 1);
}

/* The driver gives memory, and a fault as it tells the address leaves the call by a jump. */
static sigjmp_buf place;
static void jump(int number) { siglongjmp(place, number); }
static void jumps(void) {
    volatile int i = 0;
    void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    start();
    signal(SIGSEGV, jump);
    for (; i < TIMES; i++)
        if (sigsetjmp(place, 1) == 0) got(driver.alloc(page, BIG));
        else took++;
    signal(SIGSEGV, SIG_DFL);
    plain_until_refused(2);
}

static void green_contexts(void) {
    resource whole;
    handle desc, green;
    start();
    if (cuDeviceGetDevResource(0, &whole, 1) != 0 || cuDevResourceGenerateDesc(&desc, &whole, 1) != 0) fail("no resource");
    for (int i = 0; i < 4; i++) {
        plain_until_refused(8);
        if (cuGreenCtxCreate(&green, desc, 0, 1) == 0) cuGreenCtxDestroy(green);
    }
    for (size_t bytes = 16384; bytes <= 512 * 1024; bytes += 16384) got(cuCtxSetLimit(0, bytes));
    plain_until_refused(TIMES);
}

static void visible_later(void) {
    start();
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    plain_until_refused(TIMES);
    for (int i = 0, no = 0; i < TIMES && no < 2; i++) {
        handle imported;
        external_desc desc = {.type = 1, .size = BIG};
        desc.what.fd = memfd_create("external", 0);
        if (ftruncate(desc.what.fd, BIG) != 0) fail("no file");
        no += !got(cuImportExternalMemory(&imported, &desc));
    }
}

/* CUDA 13's words for device memory, which CUDA 12 did not have. */
static void thirteen(void) {
    start();
    for (int type = 1; type <= 8; type++) {
        alloc_prop prop = {.type = 1, .where = {type, 0}};
        u64 made;
        if (type >= 2 && type <= 4) continue; /* the host's */
        for (int i = 0; i < TIMES / 2; i++)
            if (!got(cuMemCreate(&made, BIG, &prop, 0))) break;
    }
    pool_props managed = {.type = 3, .where = {1, 0}};
    handle pool;
    CUdeviceptr pointer;
    if (cuMemPoolCreate(&pool, &managed) == 0)
        for (int i = 0; i < TIMES && got(cuMemAllocFromPoolAsync(&pointer, BIG, pool, stream)); i++) continue;
    plain_until_refused(TIMES);
}

/* An exported allocation ends with its context, and its room is free again; once. */
static void exported_in_a_context(void) {
    CUcontext context;
    CUdeviceptr pointer;
    name64 name;
    start();
    for (int i = 0; i < 3; i++) {
        if (cuCtxCreate_v2(&context, 0, 0) != 0) fail("no second context: a charge stayed");
        if (!got(driver.alloc(&pointer, 12 * BIG))) fail("no memory: a charge stayed");
        if (cuIpcGetMemHandle(&name, pointer) != 0 || cuCtxDestroy_v2(context) != 0) fail("no export");
    }
    ready(&driver);
    plain_until_refused(TIMES);
}

/* A full container, and a runtime that makes its context and loads its modules through a private table. */
static void runtime(void) {
    static const uuid id = {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}};
    struct { unsigned magic; unsigned short version, header; u64 size; struct { unsigned short kind, version; unsigned header; u64 padded; char skipped[40]; u64 unpacked; } entry; u64 code, end[2]; }
        *image = calloc(1, sizeof *image);
    const table *private_table = NULL;
    CUcontext context;
    handle module;
    CUresult result = driver.init(0);
    if (result == 0) result = cuGetExportTable((const void **)&private_table, &id);
    if (result == 0) result = private_table->primary_context(&context, 0);
    if (result == 0) result = driver.set_current(context);
    image->magic = 0xba55ed50;
    image->version = 1;
    image->header = 16;
    image->size = sizeof *image - 16;
    image->entry.kind = 2;
    image->entry.header = 64;
    image->entry.padded = 8;
    image->entry.unpacked = BIG;
    for (int i = 0; result == 0 && i < 4; i++) result = private_table->load_module(&module, image);
    printf("%u\n", result);
    fflush(stdout);
    pause();
}
static void unasked(void) {
    start();
    plain_until_refused(TIMES);
    for (int i = 0; i < 6; i++) {
        FILE *answers;
        unsigned code = 2;
        another("runtime", NULL, &answers);
        if (fscanf(answers, "%u", &code) != 1) code = 2;
        got(code);
    }
}

static void one_context(void) {
    CUcontext context = NULL;
    CUresult result = driver.init(0);
    if (result == 0) result = driver.retain(&context, 0);
    printf("%u\n", result);
    fflush(stdout);
    pause();
}
static void first_contexts(void) {
    FILE *answers[24];
    for (int i = 0; i < 24; i++) another("one_context", NULL, &answers[i]);
    for (int i = 0; i < 24; i++) {
        unsigned code = 2;
        if (fscanf(answers[i], "%u", &code) != 1) code = 2;
        got(code);
    }
}

static void holder(void) {
    start();
    plain_until_refused(13);
    printf("%d\n", took);
    fflush(stdout);
    pause();
}
static void killed(void) {
    for (int i = 0; i < 3; i++) {
        FILE *answers;
        int held = 0;
        pid_t child = another("holder", NULL, &answers);
        if (fscanf(answers, "%d", &held) == 1) took += held;
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        fclose(answers);
    }
    start();
    plain_until_refused(TIMES);
}

/* By the address that the driver gives for a version. */
static void by_version(void) {
    CUresult (*create)(CUcontext *, void *, unsigned, CUdevice) = NULL;
    CUresult (*alloc)(CUdeviceptr *, size_t) = NULL;
    CUcontext context;
    CUdeviceptr pointer;
    int status;
    if (driver.init(0) != 0) fail("no driver");
    cuGetProcAddress_v2("cuCtxCreate", (void **)&create, 13000, 0, &status);
    cuGetProcAddress_v2("cuMemAlloc", (void **)&alloc, 13000, 0, &status);
    if (create == NULL || alloc == NULL) fail("no such function");
    CUresult result = create(&context, NULL, 0, 0);
    if (result != 0) {
        printf("cannot try: cuCtxCreate of CUDA 13 answers %u\n", result);
        exit(0);
    }
    for (int i = 0, no = 0; i < TIMES && no < 2; i++) no += !got(alloc(&pointer, BIG));
    for (int i = 0, no = 0; i < TIMES && no < 2; i++) no += !got(create(&context, NULL, 0, 0));
}

static void plain(void) { start(); plain_until_refused(TIMES); }

#define TRY(name) { #name, name }
static const struct { const char *name; void (*run)(void); } tries[] = {
    TRY(graphs), TRY(modules), TRY(modules_after_memory), TRY(contexts), TRY(forged), TRY(tables), TRY(exporter),
    TRY(dying_exporter), TRY(behind_a_stream), TRY(jumps), TRY(green_contexts), TRY(visible_later), TRY(thirteen),
    TRY(exported_in_a_context), TRY(runtime), TRY(unasked), TRY(one_context), TRY(first_contexts), TRY(holder), TRY(killed),
    TRY(by_version), TRY(plain),
};

int main(int count, char **given) {
    char line[16];
    words = given;
    for (size_t i = 0; count > 1 && i < sizeof tries / sizeof *tries; i++) {
        if (strcmp(tries[i].name, given[1]) != 0) continue;
        tries[i].run();
        printf("took %d refused %d\n", took, refused);
        fflush(stdout);
        return fgets(line, sizeof line, stdin) == NULL ? 0 : 0;
    }
    return 2;
}
