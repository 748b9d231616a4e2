/* Linked to libcuda.so.1, and asks with dlsym(RTLD_NEXT) from the program itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include "driver.h"

static void *look(const char *name) { return dlsym(RTLD_NEXT, name); }

int main(void) {
    const struct driver driver = DRIVER_FROM(look);
    cuInit(0);
    return trial(&driver);
}
