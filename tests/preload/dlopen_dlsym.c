/* dlopen and dlsym by the library's name: PyTorch's old runtime, ctypes, cudarc. With an argument,
 * by that path instead. */
#include <dlfcn.h>
#include "driver.h"

static void *library;

static void *look(const char *name) { return dlsym(library, name); }

int main(int count, char **words) {
    library = dlopen(count > 1 ? words[1] : "libcuda.so.1", RTLD_NOW);
    if (library == NULL) return printf("%s\n", dlerror()), 1;
    const struct driver driver = DRIVER_FROM(look);
    return trial(&driver);
}
