/* Linked to libcuda.so.1: the way of pycuda. */
#include "driver.h"

int main(void) {
    const struct driver driver = LINKED_DRIVER;
    return trial(&driver);
}
