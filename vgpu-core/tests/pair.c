// Two processes that hold memory together. Like charges.c: a step, its result, and a line to continue.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t Ptr;
typedef struct { char bytes[64]; } Ipc;
typedef struct { int kind, handles, location_kind, location; void *win32; uint8_t rest[8]; } Prop;
typedef struct { int order; int fd; int pid; Ipc ipc; } Order;

static void *driver;
static int orders[2], answers[2];
#define MIB ((size_t)1 << 20)
#define CALL(name, type, ...) ((int (*) type)find(#name))(__VA_ARGS__)

static void *find(const char *name) {
    void *function = dlsym(driver, name);
    if (!function) { printf("no %s\n", name); exit(3); }
    return function;
}

static void step(const char *name, int result) {
    char line[8];
    printf("%s %d\n", name, result);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(4);
}

static void begin(void) {
    void *context;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    CALL(cuInit, (unsigned), 0);
    CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, 0);
    CALL(cuCtxSetCurrent, (void *), context);
}

static int other(void) {
    Order order;
    uint64_t memory = 0;
    Ptr ptr = 0;
    begin();
    while (read(orders[0], &order, sizeof order) == sizeof order) {
        int result = -1;
        char path[64];
        switch (order.order) {
        case 'b': result = 0; break;
        case 'i':
            snprintf(path, sizeof path, "/proc/%d/fd/%d", order.pid, order.fd);
            int fd = open(path, O_RDWR);
            result = CALL(cuMemImportFromShareableHandle, (uint64_t *, void *, int), &memory, (void *)(long)fd, 1);
            close(fd);
            break;
        case 'r': result = CALL(cuMemRelease, (uint64_t), memory); break;
        case 'o': result = CALL(cuIpcOpenMemHandle_v2, (Ptr *, Ipc, unsigned), &ptr, order.ipc, 1); break;
        case 'c': result = CALL(cuIpcCloseMemHandle, (Ptr), ptr); break;
        }
        if (write(answers[1], &result, sizeof result) != sizeof result) return 1;
    }
    return 0;
}

static int ask(Order order) {
    int result = -2;
    if (write(orders[1], &order, sizeof order) != sizeof order) return -3;
    if (read(answers[0], &result, sizeof result) != sizeof result) return -4;
    return result;
}

int main(void) {
    Order order;
    memset(&order, 0, sizeof order);
    if (pipe(orders) || pipe(answers)) return 1;
    pid_t child = fork();
    if (!child) { close(orders[1]); close(answers[0]); return other(); }
    order.pid = getpid();
    begin();
    order.order = 'b';
    step("both begin", ask(order));

    Prop prop;
    uint64_t memory;
    memset(&prop, 0, sizeof prop);
    prop.kind = prop.handles = prop.location_kind = 1;
    step("create", CALL(cuMemCreate, (uint64_t *, size_t, Prop *, uint64_t), &memory, 6 * MIB, &prop, 0));
    step("export", CALL(cuMemExportToShareableHandle, (void *, uint64_t, int, uint64_t), &order.fd, memory, 1, 0));
    order.order = 'i';
    step("other imports", ask(order));
    close(order.fd);
    step("release here", CALL(cuMemRelease, (uint64_t), memory));
    order.order = 'r';
    step("release there", ask(order));

    Ptr ptr;
    step("alloc", CALL(cuMemAlloc_v2, (Ptr *, size_t), &ptr, 8 * MIB));
    step("ipc handle", CALL(cuIpcGetMemHandle, (Ipc *, Ptr), &order.ipc, ptr));
    order.order = 'o';
    step("other opens", ask(order));
    order.order = 'c';
    step("other closes", ask(order));
    order.order = 'o';
    step("other opens again", ask(order));
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
    CALL(cuMemGetInfo_v2, (size_t *, size_t *), (size_t[1]){0}, (size_t[1]){0});
    usleep(60000);
    CALL(cuMemGetInfo_v2, (size_t *, size_t *), (size_t[1]){0}, (size_t[1]){0});
    step("other is killed", 0);
    step("free", CALL(cuMemFree_v2, (Ptr), ptr));
    puts("end");
    return 0;
}
