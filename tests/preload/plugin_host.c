/* Loads the library that the first argument names, with RTLD_DEEPBIND if there is a second, and
 * calls its trial. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **words) {
    void *plugin = dlopen(words[1], RTLD_NOW | (count > 2 ? RTLD_DEEPBIND : 0));
    if (plugin == NULL) return printf("%s\n", dlerror()), 1;
    int (*plugin_trial)(void) = (int (*)(void))dlsym(plugin, "plugin_trial");
    if (plugin_trial == NULL) return printf("%s\n", dlerror()), 1;
    return plugin_trial();
}
