/* Stream-ordered allocation in its per-thread-stream form, by name and through cuGetProcAddress with
 * the flag for it. Both must be the same function, and both must keep to the limit. */
#include <dlfcn.h>
#include "driver.h"

typedef CUresult (*alloc_async)(CUdeviceptr *, size_t, CUstream);
typedef CUresult (*free_async)(CUdeviceptr, CUstream);

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = NULL, *plain = NULL;
    int status = 0;
    const struct driver driver = LINKED_DRIVER;
    CUdeviceptr first = 0, second = 0;
    printf("ready %u\n", ready(&driver));

    alloc_async by_name = (alloc_async)dlsym(library, "cuMemAllocAsync_ptsz");
    free_async freeing = (free_async)dlsym(library, "cuMemFreeAsync_ptsz");
    printf("asked %u\n", cuGetProcAddress_v2("cuMemAllocAsync", &found, 12000, 2, &status));
    cuGetProcAddress_v2("cuMemAllocAsync", &plain, 12000, 1, &status);
    printf("same %d, its own %d\n", (void *)by_name == found, found != plain);

    printf("first %u\n", by_name(&first, 60 * MIB, NULL));
    printf("second %u\n", ((alloc_async)found)(&second, 60 * MIB, NULL));
    printf("freed %u\n", freeing(first, NULL));
    return 0;
}
