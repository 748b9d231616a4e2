/* Loads the library that the first argument names into a separate namespace, and calls its trial,
 * which uses that namespace's own dlopen and dlsym. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **words) {
    void *plugin = count > 1 ? dlmopen(LM_ID_NEWLM, words[1], RTLD_NOW) : NULL;
    if (plugin == NULL) return printf("%s\n", dlerror()), 1;
    int (*plugin_trial)(void) = (int (*)(void))dlsym(plugin, "plugin_trial");
    if (plugin_trial == NULL) return printf("%s\n", dlerror()), 1;
    return plugin_trial();
}
