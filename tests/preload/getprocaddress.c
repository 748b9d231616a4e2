/* One dlsym, for cuGetProcAddress_v2, and everything else through that, as cuda-python does. With
 * "itself", cuGetProcAddress_v2 is asked for cuGetProcAddress first; with "v1", the older entry. */
#include <dlfcn.h>
#include "driver.h"

static CUresult (*v2)(const char *, void **, int, unsigned long long, int *);
static CUresult (*v1)(const char *, void **, int, unsigned long long);

static void *look(const char *name) {
    /* The driver picks the _v2 by the version that is asked for; its names here have no suffix. */
    char base[64];
    int status = 0;
    void *function = NULL;
    snprintf(base, sizeof base, "%s", name);
    if (strlen(base) > 3 && strcmp(base + strlen(base) - 3, "_v2") == 0) base[strlen(base) - 3] = 0;
    CUresult result = v2 != NULL ? v2(base, &function, 12000, 0, &status) : v1(base, &function, 11030, 0);
    if (result != 0) printf("%s: %u, status %d\n", base, result, status);
    return function;
}

int main(int count, char **words) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return printf("%s\n", dlerror()), 1;
    const char *how = count > 1 ? words[1] : "";
    if (strcmp(how, "v1") == 0) {
        *(void **)&v1 = dlsym(library, "cuGetProcAddress");
    } else {
        *(void **)&v2 = dlsym(library, "cuGetProcAddress_v2");
    }
    if (strcmp(how, "itself") == 0) *(void **)&v2 = look("cuGetProcAddress");
    const struct driver driver = DRIVER_FROM(look);
    return trial(&driver);
}
