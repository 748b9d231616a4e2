/* Gets dlsym itself with dlvsym, from the C library, and uses that. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include "driver.h"

static void *library;
static void *(*found)(void *, const char *);

static void *look(const char *name) { return found(library, name); }

int main(void) {
    found = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (found == NULL) return printf("%s\n", dlerror()), 1;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return printf("%s\n", dlerror()), 1;
    /* The driver's symbols have no version, and glibc finds them under none. */
    printf("by version %d\n", dlvsym(library, "cuMemAlloc_v2", "CUDA_12") != NULL);
    const struct driver driver = DRIVER_FROM(look);
    return trial(&driver);
}
