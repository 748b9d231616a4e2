/* Opens the driver in a separate link-map namespace. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include "driver.h"

static void *library;

static void *look(const char *name) { return dlsym(library, name); }

int main(void) {
    library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    if (library == NULL) return printf("%s\n", dlerror()), 1;
    const struct driver driver = DRIVER_FROM(look);
    return trial(&driver);
}
