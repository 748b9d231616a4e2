/* Steps around the driver's own memory limit: "ready", "alloc MIB", "free", "managed MIB", "info", "nvml",
 * "set DIRECTORY MIB" (0: no limit), "get DIRECTORY", "drop" (no longer root). One line is the answer to each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
#include "driver.h"

extern CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);

static const struct driver driver = LINKED_DRIVER;

struct set { const char *directory; unsigned long long soft, hard; };
struct get { const char *directory; unsigned long long soft, hard, used; };

static void *library, *device;

static void *function(const char *name) {
    if (library == NULL) {
        library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        unsigned (*init)(void) = (unsigned (*)(void))dlsym(library, "nvmlInit_v2");
        unsigned (*find)(unsigned, void **) =
            (unsigned (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
        if (init() != 0 || find(0, &device) != 0) printf("no NVML\n");
    }
    return dlsym(library, name);
}

static unsigned set(const char *directory, unsigned long long mib) {
    unsigned (*call)(void *, const struct set *) =
        (unsigned (*)(void *, const struct set *))function("nvmlDeviceSetMemoryLimits_v1");
    struct set wanted = {directory, 0, mib == 0 ? ~0ULL : mib * MIB};
    return call == NULL ? 13 : call(device, &wanted);
}

int main(void) {
    char line[4096];
    CUdeviceptr pointer = 0, managed = 0;
    while (fgets(line, sizeof line, stdin) != NULL) {
        char name[32] = "", directory[3072] = "";
        unsigned long long mib = 0;
        sscanf(line, "%31s", name);
        sscanf(line, "%*s %llu", &mib);
        sscanf(line, "%*s %3071s %llu", directory, &mib);
        printf("%s", name);
        if (strcmp(name, "ready") == 0) printf(" %u", ready(&driver));
        else if (strcmp(name, "alloc") == 0) printf(" %u", driver.alloc(&pointer, mib * MIB));
        else if (strcmp(name, "free") == 0) printf(" %u", driver.free(pointer));
        else if (strcmp(name, "managed") == 0) printf(" %u", cuMemAllocManaged(&managed, mib * MIB, 1));
        else if (strcmp(name, "set") == 0) printf(" %u", set(directory, mib));
        else if (strcmp(name, "drop") == 0) printf(" %d", seteuid(65534));
        else if (strcmp(name, "info") == 0) {
            size_t left = 0, total = 0;
            unsigned result = driver.info(&left, &total);
            printf(" %u: %zu of %zu", result, left / MIB, total / MIB);
        } else if (strcmp(name, "nvml") == 0) {
            struct { unsigned version; unsigned long long total, reserved, left, used; } memory = {0x02000028};
            unsigned (*ask)(void *, void *) = (unsigned (*)(void *, void *))function("nvmlDeviceGetMemoryInfo_v2");
            unsigned result = ask(device, &memory);
            printf(" %u: %llu of %llu, used %llu", result, memory.left / MIB, memory.total / MIB, memory.used / MIB);
        } else if (strcmp(name, "get") == 0) {
            struct get limits = {directory, 9, 9, 9};
            unsigned (*ask)(void *, struct get *) =
                (unsigned (*)(void *, struct get *))function("nvmlDeviceGetMemoryLimits_v1");
            unsigned result = ask == NULL ? 13 : ask(device, &limits);
            if (result == 0 && limits.hard == ~0ULL) printf(" 0: none, used %llu", limits.used / MIB);
            else if (result == 0) printf(" 0: %llu, used %llu", limits.hard / MIB, limits.used / MIB);
            else printf(" %u", result);
        }
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
