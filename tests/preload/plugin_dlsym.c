/* A library that finds the driver with its own dlopen and dlsym, and is loaded by plugin_host. */
#include <dlfcn.h>
#include "driver.h"

static void *library;

static void *look(const char *name) { return dlsym(library, name); }

int plugin_trial(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return printf("%s\n", dlerror()), 1;
    const struct driver driver = DRIVER_FROM(look);
    return trial(&driver);
}
