/* Looks for CUDA and related libraries. Only our library is present. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    printf("cuInit %d\n", dlsym(RTLD_DEFAULT, "cuInit") != NULL);
    printf("nvmlInit_v2 %d\n", dlsym(RTLD_DEFAULT, "nvmlInit_v2") != NULL);
    printf("cudnnCreate %d\n", dlsym(RTLD_DEFAULT, "cudnnCreate") != NULL);
    printf("error for it %d\n", dlerror() != NULL);
    /* Asked twice by one thread, as allocators do. */
    int first = dlsym(RTLD_NEXT, "malloc") != NULL, second = dlsym(RTLD_NEXT, "malloc") != NULL;
    printf("malloc %d %d\n", first, second);
    return 0;
}
