/* Opens the driver, uses it, closes it, and opens it again. */
#include <dlfcn.h>
#include "driver.h"

static void *library;

static void *look(const char *name) { return dlsym(library, name); }

int main(void) {
    for (int round = 0; round < 3; round++) {
        library = dlopen("libcuda.so.1", RTLD_NOW);
        if (library == NULL) return printf("%s\n", dlerror()), 1;
        const struct driver driver = DRIVER_FROM(look);
        trial(&driver);
        printf("closed %d\n", dlclose(library));
    }
    return 0;
}
