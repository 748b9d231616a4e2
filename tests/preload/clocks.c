/* Launches kernels of 1 ms without end under a clock of its own choice, and prints at each line that it reads how long
 * the board says that it held the GPU, nanoseconds. With `leap`, it goes to and fro between two time namespaces that are
 * a day apart, before each launch. Prints "not allowed" if it may not make them. Has one thread: only such a process may
 * change its time namespace.
 *
 * Compiled with -shared, it is a clock_gettime that is a day further at each call, but for the simulated driver, which
 * stands for hardware. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifdef CLOCK
int clock_gettime(clockid_t id, struct timespec *time) {
    static long days;
    Dl_info caller;
    long failed = syscall(SYS_clock_gettime, id, time);
    int is_driver = dladdr(__builtin_return_address(0), &caller) && strstr(caller.dli_fname, "libcuda");
    if (!failed && !is_driver) time->tv_sec += 86400 * ++days;
    return (int)failed;
}
#else
#include "driver.h"
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

extern CUresult cuModuleLoadData(void **, const void *);
extern CUresult cuModuleGetFunction(void **, void *, const char *);
extern CUresult cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                               void **, void **);
extern unsigned long long vgpuSimBusyNs(unsigned, unsigned);

static const char module_text[] = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry step__1ms() { ret; }\n";

/* A time namespace so many seconds ahead. The process stays where it is; its children would be born there. */
static int ahead(const char *seconds) {
    if (unshare(CLONE_NEWTIME)) return -1;
    int offsets = open("/proc/self/timens_offsets", O_WRONLY);
    if (offsets < 0 || dprintf(offsets, "monotonic %s 0\n", seconds) < 0) return -1;
    close(offsets);
    return open("/proc/self/ns/time_for_children", O_RDONLY);
}

#define OK(call)                                                                            \
    do {                                                                                    \
        CUresult result_ = (call);                                                          \
        if (result_ != 0) {                                                                 \
            printf("%s: %u\n", #call, result_);                                             \
            return 3;                                                                       \
        }                                                                                   \
    } while (0)

int main(int count, char **words) {
    int leaps = count > 1 && strcmp(words[1], "leap") == 0, to[2] = {-1, -1};
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(60); /* a library that believes such clocks may wait for ever */
    if (leaps && ((to[0] = ahead("86400")) < 0 || (to[1] = ahead("0")) < 0)) {
        puts("not allowed");
        return 0;
    }
    CUcontext context;
    CUdevice device;
    void *module, *step;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, module_text));
    OK(cuModuleGetFunction(&step, module, "step__1ms"));
    puts("ready");
    for (unsigned launches = 0;; launches++) {
        if (leaps && setns(to[launches % 2], CLONE_NEWTIME)) {
            printf("setns: %s\n", strerror(errno));
            return 3;
        }
        OK(cuLaunchKernel(step, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
        struct pollfd input = {.fd = 0, .events = POLLIN};
        char line[16];
        if (poll(&input, 1, 0) == 1) {
            if (read(0, line, sizeof line) <= 0) return 0;
            printf("%llu\n", vgpuSimBusyNs(0, (unsigned)getpid()));
        }
    }
}
#endif
