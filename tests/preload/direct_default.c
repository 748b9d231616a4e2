/* Linked to libcuda.so.1, and asks for the global scope with dlsym(RTLD_DEFAULT). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include "driver.h"

static void *look(const char *name) { return dlsym(RTLD_DEFAULT, name); }

int main(void) {
    const struct driver driver = DRIVER_FROM(look);
    cuInit(0); /* so that the linker keeps the dependency */
    return trial(&driver);
}
