/* Prints for each name the folder of the library in which dlsym finds it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include "driver.h"

static const char *folder_of(void *address) {
    static char path[4096];
    Dl_info info;
    if (address == NULL) return "nowhere";
    if (dladdr(address, &info) == 0) return "unknown";
    snprintf(path, sizeof path, "%s", info.dli_fname);
    char *end = strrchr(path, '/');
    if (end == NULL) return path;
    *end = 0;
    end = strrchr(path, '/');
    return end == NULL ? path : end + 1;
}

int main(int count, char **words) {
    void *library = dlopen(words[1], RTLD_NOW);
    if (library == NULL) return printf("%s\n", dlerror()), 1;
    for (int word = 2; word < count; word++) {
        printf("%s %s\n", words[word], folder_of(dlsym(library, words[word])));
    }
    return 0;
}
