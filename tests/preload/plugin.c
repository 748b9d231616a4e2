/* A library that is linked to libcuda.so.1 and loaded by plugin_host. */
#include "driver.h"

int plugin_trial(void) {
    const struct driver driver = LINKED_DRIVER;
    return trial(&driver);
}
