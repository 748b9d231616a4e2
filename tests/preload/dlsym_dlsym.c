/* Gets dlsym with dlsym, from the C library's own handle. */
#include <dlfcn.h>
#include "driver.h"

static void *library;
static void *(*found)(void *, const char *);

static void *look(const char *name) { return found(library, name); }

int main(void) {
    found = (void *(*)(void *, const char *))dlsym(dlopen("libc.so.6", RTLD_LAZY), "dlsym");
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (found == NULL || library == NULL) return printf("%s\n", dlerror()), 1;
    const struct driver driver = DRIVER_FROM(look);
    return trial(&driver);
}
