/* Programs that launch, on a board whose clock all of them share: `launch PATTERN [NAME=NUMBER]...`. Times are
 * the board's: a number that ends a run or a pause is as exact as the clock. Its output is for the test. With
 * idle=MS it first does nothing for that long. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "driver.h"

typedef void *handle;
typedef struct { unsigned id; char pad[4]; unsigned long long value[8]; } attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    CUstream stream;
    attribute *attributes;
    unsigned count;
} launch_config;
typedef struct {
    handle function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    handle kernel, context;
} kernel_node;
typedef struct {
    handle function;
    unsigned grid[3], block[3], shared;
    CUstream stream;
    void **params;
} cooperative_launch;

typedef struct { unsigned char bytes[256]; } dev_resource; /* at least as large as the driver's */
typedef struct {
    int kind, reserved0[3];
    unsigned long long handle;
    unsigned condition, size;
    handle *graphs;
    CUcontext context;
    unsigned long long rest[26];
} conditional_node;

extern uint64_t vgpuSimNow(void);
extern void vgpuSimSleepUntil(uint64_t);
extern void vgpuSimJoin(void);
extern void vgpuSimLeave(void);
extern CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuModuleLoadData(handle *, const void *);
extern CUresult cuModuleGetFunction(handle *, handle, const char *);
extern CUresult cuStreamCreate(CUstream *, unsigned);
extern CUresult cuStreamCreateWithPriority(CUstream *, unsigned, int);
extern CUresult cuStreamSynchronize(CUstream);
extern CUresult cuStreamDestroy_v2(CUstream);
extern CUresult cuEventCreate(handle *, unsigned);
extern CUresult cuEventRecord(handle, CUstream);
extern CUresult cuEventSynchronize(handle);
extern CUresult cuEventQuery(handle);
extern CUresult cuStreamQuery(CUstream);
extern CUresult cuCtxSynchronize_v2(CUcontext);
extern CUresult cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               CUstream, void **, void **);
extern CUresult cuLaunchKernel_ptsz(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                    CUstream, void **, void **);
extern CUresult cuLaunchKernelEx(const launch_config *, handle, void **, void **);
extern CUresult cuLaunchCooperativeKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                          unsigned, CUstream, void **);
extern CUresult cuLaunchCooperativeKernelMultiDevice(cooperative_launch *, unsigned, unsigned);
extern CUresult cuFuncSetBlockShape(handle, int, int, int);
extern CUresult cuLaunch(handle);
extern CUresult cuLaunchGrid(handle, int, int);
extern CUresult cuLaunchGridAsync(handle, int, int, CUstream);
extern CUresult cuStreamBeginCapture_v2(CUstream, int);
extern CUresult cuStreamBeginCaptureToGraph(CUstream, handle, const handle *, const void *, size_t, int);
extern CUresult cuStreamEndCapture(CUstream, handle *);
extern CUresult cuStreamIsCapturing(CUstream, int *);
extern CUresult cuGraphCreate(handle *, unsigned);
extern CUresult cuGraphAddKernelNode_v2(handle *, handle, const handle *, size_t, const kernel_node *);
extern CUresult cuGraphAddChildGraphNode(handle *, handle, const handle *, size_t, handle);
extern CUresult cuGraphConditionalHandleCreate(unsigned long long *, handle, CUcontext, unsigned, unsigned);
extern CUresult cuGraphAddNode(handle *, handle, const handle *, size_t, conditional_node *);
extern CUresult cuDeviceGetDevResource(CUdevice, dev_resource *, int);
extern CUresult cuDevResourceGenerateDesc(handle *, dev_resource *, unsigned);
extern CUresult cuGreenCtxCreate(handle *, handle, CUdevice, unsigned);
extern CUresult cuCtxFromGreenCtx(CUcontext *, handle);
extern CUresult cuGraphGetNodes(handle, handle *, size_t *);
extern CUresult cuGraphInstantiateWithFlags(handle *, handle, unsigned long long);
extern CUresult cuGraphExecUpdate_v2(handle, handle, void *);
extern CUresult cuGraphLaunch(handle, CUstream);
extern CUresult cuGraphLaunch_ptsz(handle, CUstream);
extern CUresult cuLaunchHostFunc(CUstream, void (*)(void *), void *);
extern CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void *, size_t, CUstream);

#define OK(call)                                                                            \
    do {                                                                                    \
        CUresult result_ = (call);                                                          \
        if (result_ != 0) {                                                                 \
            printf("%s: %u\n", #call, result_);                                             \
            fflush(stdout);                                                                 \
            _exit(3);                                                                       \
        }                                                                                   \
    } while (0)
#define MS 1000000ull

static const struct driver driver = LINKED_DRIVER;
static CUcontext context;
static int words_count;
static char **words;
static uint64_t began;

static uint64_t option(const char *name, uint64_t otherwise) {
    size_t length = strlen(name);
    for (int i = 2; i < words_count; i++)
        if (strncmp(words[i], name, length) == 0 && words[i][length] == '=') return strtoull(words[i] + length + 1, NULL, 10);
    return otherwise;
}

static void say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    fflush(stdout);
}

/* A kernel of this length; `name` distinguishes kernels of one length. */
static handle kernel_named(const char *name) {
    char text[400];
    handle module, function;
    snprintf(text, sizeof text, ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry %s() { ret; }\n", name);
    OK(cuModuleLoadData(&module, text));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

static handle kernel(uint64_t ns) {
    char name[64];
    snprintf(name, sizeof name, "k__%lluns", (unsigned long long)ns);
    return kernel_named(name);
}

static CUstream stream(void) {
    CUstream made;
    OK(cuStreamCreate(&made, 1));
    return made;
}

static void run(handle function, CUstream where) {
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, where, NULL, NULL));
}

static uint64_t end(void) { return began + option("for", 1000) * MS; }

/* --- one launch, by each way ------------------------------------------------------------------------------ */

enum { PLAIN, EX, COOPERATIVE, PER_THREAD, LEGACY, LEGACY_GRID, LEGACY_ASYNC, MULTI_DEVICE, GRAPH, CHILD, GRAPH_PER_THREAD, CAPTURED, CONDITIONAL };

static handle graph_of(int way, handle function, unsigned nodes) {
    handle graph, node, before = NULL, executable;
    if (way == CAPTURED) {
        CUstream own = stream();
        OK(cuStreamBeginCapture_v2(own, 1));
        for (unsigned i = 0; i < nodes; i++) run(function, own);
        OK(cuStreamEndCapture(own, &graph));
    } else {
        kernel_node params = {function, {1, 1, 1}, {32, 1, 1}, 0, NULL, NULL, NULL, NULL};
        handle whole = NULL;
        OK(cuGraphCreate(&graph, 0));
        if (way == CONDITIONAL) {
            /* A loop that is run three times, with the kernels in its body. */
            conditional_node loop = {.kind = 13, .condition = 1, .size = 1};
            whole = graph;
            OK(cuGraphConditionalHandleCreate(&loop.handle, whole, context, 3, 1));
            OK(cuGraphAddNode(&node, whole, NULL, 0, &loop));
            graph = loop.graphs[0];
        }
        for (unsigned i = 0; i < nodes; i++) {
            OK(cuGraphAddKernelNode_v2(&node, graph, &before, before != NULL, &params));
            before = node;
        }
        if (whole) graph = whole;
    }
    if (way == CHILD) {
        handle whole;
        OK(cuGraphCreate(&whole, 0));
        OK(cuGraphAddChildGraphNode(&node, whole, NULL, 0, graph));
        graph = whole;
    }
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    return executable;
}

static int is_graph(int way) { return way >= GRAPH; }

static void once(int way, handle what, CUstream where) {
    launch_config config = {{1, 1, 1}, {32, 1, 1}, 0, where, NULL, 0};
    cooperative_launch each = {what, {1, 1, 1}, {32, 1, 1}, 0, where, NULL};
    switch (way) {
    case PLAIN: run(what, where); break;
    case EX: OK(cuLaunchKernelEx(&config, what, NULL, NULL)); break;
    case COOPERATIVE: OK(cuLaunchCooperativeKernel(what, 1, 1, 1, 32, 1, 1, 0, where, NULL)); break;
    case PER_THREAD: OK(cuLaunchKernel_ptsz(what, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL)); break;
    case LEGACY: OK(cuLaunch(what)); break;
    case LEGACY_GRID: OK(cuLaunchGrid(what, 1, 1)); break;
    case LEGACY_ASYNC: OK(cuLaunchGridAsync(what, 1, 1, where)); break;
    case MULTI_DEVICE: OK(cuLaunchCooperativeKernelMultiDevice(&each, 1, 0)); break;
    case GRAPH: case CHILD: case CAPTURED: case CONDITIONAL: OK(cuGraphLaunch(what, where)); break;
    case GRAPH_PER_THREAD: OK(cuGraphLaunch_ptsz(what, NULL)); break;
    }
}

/* --- patterns --------------------------------------------------------------------------------------------- */

/* A context of its own that has all multiprocessors of the device. */
static CUcontext green_context(void) {
    dev_resource all;
    handle description, green;
    CUcontext made;
    OK(cuDeviceGetDevResource(0, &all, 1));
    OK(cuDevResourceGenerateDesc(&description, &all, 1));
    OK(cuGreenCtxCreate(&green, description, 0, 1));
    OK(cuCtxFromGreenCtx(&made, green));
    return made;
}

/* How a program waits for what it launched: not at all, in a call of the driver, or by asking every 5 us (ask=US). */
enum { NOT, STREAM, STREAM_ASKED, EVENT, EVENT_ASKED, CONTEXT, CONTEXT_V2 };

static void asked(CUresult (*ask)(void *), void *what) {
    CUresult result;
    uint64_t pause = option("ask", 5) * 1000;
    while ((result = ask(what)) == 600) vgpuSimSleepUntil(vgpuSimNow() + pause);
    OK(result);
}

static void wait_for(int how, CUstream own) {
    static handle event;
    if (how == EVENT || how == EVENT_ASKED) {
        if (!event) OK(cuEventCreate(&event, 2));
        OK(cuEventRecord(event, own));
    }
    switch (how) {
    case STREAM: OK(cuStreamSynchronize(own)); break;
    case STREAM_ASKED: asked((CUresult (*)(void *))cuStreamQuery, own); break;
    case EVENT: OK(cuEventSynchronize(event)); break;
    case EVENT_ASKED: asked(cuEventQuery, event); break;
    case CONTEXT: OK(cuCtxSynchronize()); break;
    case CONTEXT_V2: OK(cuCtxSynchronize_v2(context)); break;
    }
}

/* steady way=W ns=N nodes=N streams=N sync=HOW ask=US priority=0|1 contexts=N green=0|1 for=MS: one launch after another. */
static void steady(void) {
    enum { MOST = 16 };
    int way = (int)option("way", PLAIN), sync = (int)option("sync", 0);
    unsigned streams = (unsigned)option("streams", 1), contexts = (unsigned)option("contexts", 1);
    CUstream where[MOST];
    handle what[MOST];
    CUcontext in[MOST] = {option("green", 0) ? green_context() : context};
    uint64_t launches = 0;
    for (unsigned c = 0; c < contexts; c++) {
        if (c > 0) OK(cuCtxCreate_v2(&in[c], 0, 0));
        OK(driver.set_current(in[c]));
        handle function = kernel(option("ns", MS));
        if (way == LEGACY || way == LEGACY_GRID || way == LEGACY_ASYNC) OK(cuFuncSetBlockShape(function, 32, 1, 1));
        what[c] = is_graph(way) ? graph_of(way, function, (unsigned)option("nodes", 20)) : function;
        for (unsigned s = c; s < streams; s += contexts) {
            if (option("priority", 0)) OK(cuStreamCreateWithPriority(&where[s], 1, s % 2 ? -5 : 0));
            else where[s] = stream();
        }
    }
    while (vgpuSimNow() < end()) {
        for (unsigned s = 0; s < streams; s++) {
            unsigned c = s % contexts;
            if (contexts > 1) OK(driver.set_current(in[c]));
            once(way, what[c], where[s]);
            wait_for(sync, where[s]);
            launches++;
        }
    }
    say("launches %llu\n", (unsigned long long)launches);
}

/* mixed for=MS seed=N: kernels of five lengths, graphs, waits and pauses in three streams, by chance. */
static void mixed(void) {
    static const uint64_t lengths[] = {20000, 100000, 500000, 1000000, 5000000};
    handle kernels[5], graph;
    CUstream where[3] = {stream(), stream(), stream()};
    uint64_t chance = 88172645463325252ull + option("seed", 0);
    for (int i = 0; i < 5; i++) kernels[i] = kernel(lengths[i]);
    graph = graph_of(GRAPH, kernels[2], 6);
    while (vgpuSimNow() < end()) {
        chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
        CUstream own = where[chance % 3];
        unsigned dice = (unsigned)(chance >> 8) % 100;
        if (dice < 6) OK(cuStreamSynchronize(own));
        else if (dice < 8) vgpuSimSleepUntil(vgpuSimNow() + (chance >> 16) % MS);
        else if (dice < 12) OK(cuGraphLaunch(graph, own));
        else run(kernels[(chance >> 24) % 5], own);
    }
    say("mixed\n");
}

/* sparse ns=N pause=NS steps=N ns2=N pause2=NS: kernels and pauses that ask for less than the cap; says how long
 * it took. Each step is waited for, as a program does that answers requests. */
static void sparse(void) {
    handle first = kernel(option("ns", MS)), second = kernel(option("ns2", option("ns", MS)));
    CUstream own = stream();
    uint64_t steps = option("steps", 100), pause = option("pause", MS), pause2 = option("pause2", pause);
    uint64_t wait = option("wait", 1), start = vgpuSimNow();
    for (uint64_t i = 0; i < steps; i++) {
        run(i % 2 ? second : first, own);
        if (wait) OK(cuStreamSynchronize(own));
        vgpuSimSleepUntil(vgpuSimNow() + (i % 2 ? pause2 : pause));
    }
    OK(cuStreamSynchronize(own));
    say("took %llu\n", (unsigned long long)(vgpuSimNow() - start));
}

/* requests ns=N kernels=N pause=US steps=N sync=HOW [every=US]: a service. Each request launches kernels and waits for them
 * once; the next one arrives after a pause of up to a tenth more or less. With every=US requests arrive by themselves, that
 * far apart on average and at most twice as far, and wait for the ones before them. Prints how long each took from its
 * arrival, microseconds. */
static void requests(void) {
    enum { MOST = 4096 };
    static uint64_t took[MOST];
    handle function = kernel(option("ns", MS));
    CUstream own = stream();
    uint64_t steps = option("steps", 100), kernels = option("kernels", 10), pause = option("pause", 10000) * 1000;
    uint64_t every = option("every", 0) * 1000, start = vgpuSimNow();
    int sync = (int)option("sync", STREAM);
    uint64_t chance = 88172645463325252ull;
    if (steps > MOST) steps = MOST;
    for (uint64_t i = 0; i < steps; i++) {
        if (every == 0)
            start = vgpuSimNow();
        else if (start > vgpuSimNow())
            vgpuSimSleepUntil(start);
        for (uint64_t k = 0; k < kernels; k++) run(function, own);
        wait_for(sync, own);
        took[i] = (vgpuSimNow() - start) / 1000;
        chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
        if (every == 0)
            vgpuSimSleepUntil(vgpuSimNow() + pause * 9 / 10 + chance % (pause / 5 + 1));
        else
            start += chance % (2 * every + 1);
    }
    for (uint64_t i = 0; i < steps; i++) say("%llu\n", (unsigned long long)took[i]);
}

/* bursts ns=N on=MS off=MS for=MS: busy and idle in turn, from fixed moments on. */
static void bursts(void) {
    handle function = kernel(option("ns", MS));
    CUstream own = stream();
    uint64_t on = option("on", 500) * MS, off = option("off", 500) * MS;
    for (uint64_t start = vgpuSimNow(); start < end(); start += on + off) {
        vgpuSimSleepUntil(start);
        while (vgpuSimNow() < start + on) {
            run(function, own);
            OK(cuStreamSynchronize(own));
        }
    }
    say("bursts\n");
}

/* late ns=N after=MS idle=MS for=MS: idle at first, then one launch after another. */
static void late(void) {
    handle function = kernel(option("ns", MS));
    CUstream own = stream();
    vgpuSimSleepUntil(vgpuSimNow() + option("after", 1000) * MS);
    while (vgpuSimNow() < end()) run(function, own);
    say("late\n");
}

/* fresh ns=N for=MS: each launch goes to a stream of its own, which is destroyed at once. */
static void fresh(void) {
    handle function = kernel(option("ns", MS));
    while (vgpuSimNow() < end()) {
        CUstream own = stream();
        run(function, own);
        OK(cuStreamDestroy_v2(own));
    }
    say("fresh\n");
}

/* taught short=NS ns=N for=MS: one function that took little time at its first launch, and much ever since. */
static void taught(void) {
    handle function = kernel(option("ns", MS));
    CUstream own = stream();
    attribute time = {.id = 0x56475055};
    launch_config config = {{1, 1, 1}, {32, 1, 1}, 0, own, &time, 1};
    time.value[0] = option("short", 10000);
    OK(cuLaunchKernelEx(&config, function, NULL, NULL));
    OK(cuStreamSynchronize(own));
    time.value[0] = option("ns", MS);
    while (vgpuSimNow() < end()) OK(cuLaunchKernelEx(&config, function, NULL, NULL));
    say("taught\n");
}

/* novel way=0|1|2 ns=N for=MS: no launch is like one before: another shape, another function, or another graph. */
static void novel(void) {
    int way = (int)option("way", 0);
    uint64_t ns = option("ns", MS);
    handle function = kernel(ns);
    CUstream own = stream();
    for (unsigned i = 0; vgpuSimNow() < end(); i++) {
        /* Many threads at first, and few ever since. */
        unsigned threads = i == 0 ? 60000 : 1 + i % 4096;
        if (way == 0) OK(cuLaunchKernel(function, threads, 1 + i / 4096, 1, 32, 1, 1, 0, own, NULL, NULL));
        if (way == 1) run(kernel(ns), own);
        if (way == 2) OK(cuGraphLaunch(graph_of(GRAPH, function, 1), own));
    }
    say("novel\n");
}

/* flood launches=N ns=N for=MS: launches at once all that it ever will, and stays. */
static void flood(void) {
    handle function = kernel(option("ns", MS));
    CUstream own = stream();
    for (uint64_t i = 0; i < option("launches", 1000); i++) run(function, own);
    vgpuSimSleepUntil(end());
    say("flood\n");
}

/* ahead ns=N kernels=N pause=MS steps=N: launches the kernels of a step, does something else for a while, and goes on
 * with the next step without a wait; says how long all took. */
static void ahead(void) {
    handle function = kernel(option("ns", MS));
    CUstream own = stream();
    uint64_t start = vgpuSimNow();
    for (uint64_t i = 0; i < option("steps", 10); i++) {
        for (uint64_t k = 0; k < option("kernels", 100); k++) run(function, own);
        vgpuSimSleepUntil(vgpuSimNow() + option("pause", 100) * MS);
    }
    OK(cuStreamSynchronize(own));
    say("took %llu\n", (unsigned long long)(vgpuSimNow() - start));
}

/* ranks rounds=N: this process's half of kernels that wait for each other; the other half is another process's,
 * or with streams=2 another stream's. Says when the last was done. */
static void ranks(void) {
    handle meet = kernel_named("meet"), work = kernel(option("ns", 200000));
    unsigned streams = (unsigned)option("streams", 1);
    CUstream where[2] = {stream(), stream()};
    for (uint64_t i = 0; i < option("rounds", 20); i++) {
        for (unsigned s = 0; s < streams; s++) {
            run(work, where[s]);
            run(meet, where[s]);
        }
        for (unsigned s = 0; s < streams; s++) OK(cuStreamSynchronize(where[s]));
    }
    say("met %llu\n", (unsigned long long)(vgpuSimNow() - began));
}

static volatile unsigned joined;

/* A thread that others wait for takes part in the clock before time can go on without it. */
static void joins(void) {
    vgpuSimJoin();
    __sync_fetch_and_add(&joined, 1);
}

static void start(pthread_t *thread, void *(*body)(void *)) {
    unsigned before = joined;
    pthread_create(thread, NULL, body, NULL);
    while (joined == before) sched_yield();
}

/* --- captures ----------------------------------------------------------------------------------------------- */

static volatile int capturing = 1;

static void *launches_beside(void *unused) {
    (void)unused;
    joins();
    OK(driver.set_current(context));
    handle function = kernel(option("ns", MS));
    CUstream own = stream();
    uint64_t launches = 0;
    while (capturing) {
        run(function, own);
        launches++;
        vgpuSimSleepUntil(vgpuSimNow() + 200000);
    }
    say("beside %llu\n", (unsigned long long)(launches > 0));
    return NULL;
}

/* capture mode=0|1|2 to=0|1: captures for half a second while another thread launches under the cap; the graph has
 * what was launched and nothing else, and runs. */
static void capture(void) {
    int mode = (int)option("mode", 0);
    handle graph = NULL, executable, function = kernel(2 * MS), first = kernel(option("ns", MS));
    CUstream own = stream();
    size_t count = 0;
    pthread_t other;
    /* Its cost is known before, so that launches really wait for credit while we capture. */
    for (int i = 0; i < 20; i++) run(first, own);
    OK(cuStreamSynchronize(own));
    start(&other, launches_beside);
    vgpuSimSleepUntil(vgpuSimNow() + 50 * MS);
    if (option("to", 0)) {
        OK(cuGraphCreate(&graph, 0));
        OK(cuStreamBeginCaptureToGraph(own, graph, NULL, NULL, 0, mode));
    } else {
        OK(cuStreamBeginCapture_v2(own, mode));
    }
    for (int i = 0; i < 50; i++) {
        run(function, own);
        vgpuSimSleepUntil(vgpuSimNow() + 10 * MS);
    }
    int status = -1;
    OK(cuStreamIsCapturing(own, &status));
    CUresult ended = cuStreamEndCapture(own, &graph);
    capturing = 0;
    vgpuSimLeave();
    pthread_join(other, NULL);
    vgpuSimJoin();
    say("status %d ended %u\n", status, ended);
    if (ended != 0) return;
    OK(cuGraphGetNodes(graph, NULL, &count));
    say("nodes %zu\n", count);
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    OK(cuCtxSynchronize());
    OK(cuGraphLaunch(executable, own));
    OK(cuStreamSynchronize(own));
    say("launched\n");
}

/* update for=MS: a graph whose executable form is replaced by one of another length half-way. */
static void update(void) {
    struct { int result; char rest[64]; } outcome;
    handle graph, node, executable, longer;
    kernel_node params = {kernel(option("ns", MS)), {1, 1, 1}, {32, 1, 1}, 0, NULL, NULL, NULL, NULL};
    kernel_node other = {kernel(option("ns2", 5 * MS)), {1, 1, 1}, {32, 1, 1}, 0, NULL, NULL, NULL, NULL};
    CUstream own = stream();
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &params));
    OK(cuGraphCreate(&longer, 0));
    OK(cuGraphAddKernelNode_v2(&node, longer, NULL, 0, &other));
    OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    uint64_t half = began + option("for", 1000) * MS / 2;
    while (vgpuSimNow() < half) OK(cuGraphLaunch(executable, own));
    memset(&outcome, 0, sizeof outcome);
    OK(cuGraphExecUpdate_v2(executable, longer, &outcome));
    while (vgpuSimNow() < end()) OK(cuGraphLaunch(executable, own));
    say("updated\n");
}

/* --- several threads ---------------------------------------------------------------------------------------- */

static void *launches_by_thread(void *number) {
    (void)number;
    joins();
    OK(driver.set_current(context));
    handle function = kernel(option("ns", MS));
    int way = (int)option("way", PLAIN);
    CUstream own = stream();
    while (vgpuSimNow() < end()) once(way, function, own);
    return NULL;
}

/* threads count=N way=W ns=N for=MS: each launches into a stream of its own. */
static void threads(void) {
    enum { MOST = 32 };
    pthread_t others[MOST];
    unsigned count = (unsigned)option("count", 4);
    for (unsigned i = 0; i < count; i++) start(&others[i], launches_by_thread);
    vgpuSimLeave();
    for (unsigned i = 0; i < count; i++) pthread_join(others[i], NULL);
    vgpuSimJoin();
    say("threads\n");
}

static void counted(void *count) { ++*(uint64_t *)count; }

/* beside for=MS: host functions and copies, which are counted and not charged. */
static void beside(void) {
    CUdeviceptr memory;
    static char bytes[4096];
    static uint64_t called;
    CUstream own = stream();
    OK(driver.alloc(&memory, sizeof bytes));
    uint64_t functions = 0, copies = 0;
    while (vgpuSimNow() < end()) {
        OK(cuLaunchHostFunc(own, counted, &called));
        OK(cuMemcpyHtoDAsync_v2(memory, bytes, sizeof bytes, own));
        functions++, copies++;
        OK(cuStreamSynchronize(own));
        vgpuSimSleepUntil(vgpuSimNow() + MS);
    }
    say("functions %llu called %llu copies %llu\n", (unsigned long long)functions, (unsigned long long)called,
        (unsigned long long)copies);
}

int main(int count, char **given) {
    static const struct { const char *name; void (*run)(void); } patterns[] = {
        {"steady", steady}, {"mixed", mixed},     {"sparse", sparse}, {"requests", requests}, {"bursts", bursts},   {"late", late},     {"fresh", fresh},  {"taught", taught},
        {"novel", novel},   {"flood", flood},     {"ahead", ahead},
        {"ranks", ranks},   {"capture", capture}, {"update", update}, {"threads", threads}, {"beside", beside},
    };
    words_count = count, words = given;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that is killed takes it along */
    vgpuSimJoin();
    OK(driver.init(0));
    CUdevice device;
    OK(driver.device_get(&device, 0));
    OK(driver.retain(&context, device));
    OK(driver.set_current(context));
    began = vgpuSimNow();
    vgpuSimSleepUntil(began + option("idle", 0) * MS);
    for (size_t i = 0; count > 1 && i < sizeof patterns / sizeof *patterns; i++)
        if (strcmp(patterns[i].name, given[1]) == 0) {
            patterns[i].run();
            fflush(stdout);
            _exit(0); /* what is still queued goes with the process */
        }
    return 2;
}
