/* Opens the driver with RTLD_DEEPBIND. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include "driver.h"

static void *library;

static void *look(const char *name) { return dlsym(library, name); }

int main(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND);
    if (library == NULL) return printf("%s\n", dlerror()), 1;
    const struct driver driver = DRIVER_FROM(look);
    return trial(&driver);
}
