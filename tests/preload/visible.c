/* Prints the total of each device that the driver shows. The steps, one for each word:
 *   set=LIST    sets CUDA_VISIBLE_DEVICES (unset without a list)
 *   init        cuInit
 *   ask         makes the library resolve functions, as a runtime does before cuInit
 *   fork        continues in a child, for which the parent waits
 *   totals      prints each device's size, in MiB */
#include <sys/wait.h>
#include <unistd.h>
#include "driver.h"

extern CUresult cuDriverGetVersion(int *version);

int main(int count, char **words) {
    for (int at = 1; at < count; at++) {
        const char *word = words[at];
        if (strncmp(word, "set=", 4) == 0) {
            if (word[4] == 0) {
                unsetenv("CUDA_VISIBLE_DEVICES");
            } else {
                setenv("CUDA_VISIBLE_DEVICES", word + 4, 1);
            }
        } else if (strcmp(word, "init") == 0) {
            CUresult result = cuInit(0);
            if (result != 0) printf("init %u ", result);
        } else if (strcmp(word, "ask") == 0) {
            int version = 0, status = 0;
            void *function = NULL;
            cuDriverGetVersion(&version);
            cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &status);
            CUresult early = cuDeviceGetCount(&version);
            if (early == 0) printf("early ");
        } else if (strcmp(word, "fork") == 0) {
            fflush(stdout);
            int status = 0;
            pid_t child = fork();
            if (child != 0) return waitpid(child, &status, 0) == child ? WEXITSTATUS(status) : 1;
        } else {
            int devices = 0;
            size_t total = 0;
            cuDeviceGetCount(&devices);
            for (int device = 0; device < devices; device++) {
                CUresult result = cuDeviceTotalMem_v2(&total, device);
                if (result == 0) printf("%zu ", total / MIB);
                else printf("error %u ", result);
            }
        }
    }
    printf("\n");
    return fflush(stdout);
}
