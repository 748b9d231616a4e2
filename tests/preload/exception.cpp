/* A C++ exception leaves the driver's call, through us, and the limit still holds in this thread. */
#include <stdexcept>
#include "driver.h"

int main() {
    const struct driver driver = LINKED_DRIVER;
    CUdeviceptr pointer = 0, second = 0;
    printf("ready %u\n", ready(&driver));
    for (int i = 0; i < 3; i++) {
        try {
            printf("answered %u\n", driver.alloc(&pointer, 11 * MIB));
        } catch (const std::runtime_error &error) {
            printf("caught %s\n", error.what());
        }
    }
    printf("first %u\n", driver.alloc(&pointer, 60 * MIB));
    printf("second %u\n", driver.alloc(&second, 60 * MIB));
    return 0;
}
