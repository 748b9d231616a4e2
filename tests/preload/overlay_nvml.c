/* Prints NVML's figures of the process's container, with both libraries opened by name, in the order of
 * the arguments. */
#include <dlfcn.h>
#include "driver.h"

struct memory {
    unsigned long long total, free, used;
};

static void *cuda, *nvml;

static void *look(const char *name) { return dlsym(cuda, name); }

int main(int count, char **words) {
    void *device = NULL;
    struct memory memory = {0, 0, 0};
    CUdeviceptr pointer = 0;
    for (int word = 1; word < count; word++) {
        void *library = dlopen(words[word], RTLD_NOW);
        if (library == NULL) return printf("%s\n", dlerror()), 1;
        *(strstr(words[word], "cuda") != NULL ? &cuda : &nvml) = library;
    }
    const struct driver driver = DRIVER_FROM(look);
    unsigned (*init)(void) = (unsigned (*)(void))dlsym(nvml, "nvmlInit_v2");
    unsigned (*by_index)(unsigned, void **) =
        (unsigned (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    unsigned (*info)(void *, struct memory *) =
        (unsigned (*)(void *, struct memory *))dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    printf("ready %u\n", ready(&driver));
    printf("first %u\n", driver.alloc(&pointer, 60 * MIB));
    printf("nvml %u", init());
    printf(" %u", by_index(0, &device));
    printf(" %u\n", info(device, &memory));
    printf("used %llu of %llu\n", memory.used / MIB, memory.total / MIB);
    return 0;
}
