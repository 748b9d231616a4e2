/* Linked to libcuda.so.1, as pycuda is. */
#include "driver.h"

int main(void) {
    const struct driver driver = LINKED_DRIVER;
    return trial(&driver);
}
