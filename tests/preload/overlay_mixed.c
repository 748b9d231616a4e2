/* Takes memory through linked names and frees it through names that dlsym finds, and the other way
 * round: however many libraries stand in for the driver, there is one account. */
#include <dlfcn.h>
#include "driver.h"

static void *library;

static void *look(const char *name) { return dlsym(library, name); }

static void step(const struct driver *by, const struct driver *back) {
    size_t free_bytes = 0, limit = 0;
    CUdeviceptr pointer = 0;
    printf("took %u", by->alloc(&pointer, 60 * MIB));
    by->info(&free_bytes, &limit);
    printf(", free %zu", free_bytes / MIB);
    back->info(&free_bytes, &limit);
    printf(" and %zu of %zu", free_bytes / MIB, limit / MIB);
    printf(", gave %u", back->free(pointer));
    by->info(&free_bytes, &limit);
    printf(", free %zu\n", free_bytes / MIB);
}

int main(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return printf("%s\n", dlerror()), 1;
    const struct driver linked = LINKED_DRIVER;
    const struct driver found = DRIVER_FROM(look);
    printf("ready %u", ready(&linked));
    printf(" %u\n", ready(&found));
    step(&linked, &found);
    step(&found, &linked);
    fflush(stdout);
    getchar();
    return 0;
}
