/* Takes and frees memory in every way during which a program may be killed, for ever. The argument seeds
 * its choices, so that no two processes do the same at the same time. */
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "driver.h"

extern CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
extern CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
extern CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuDeviceGetDefaultMemPool(void **, int);
extern CUresult cuMemPoolTrimTo(void *, size_t);
extern CUresult cuIpcGetMemHandle(void *, CUdeviceptr);

static unsigned random_number(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

int main(int count, char **words) {
    const struct driver driver = LINKED_DRIVER;
    enum { PIECES = 16 };
    CUdeviceptr pieces[PIECES] = {0};
    int ordered[PIECES] = {0};
    unsigned state = count > 1 ? (unsigned)atoi(words[1]) : 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* never outlives the test */
    CUresult result = ready(&driver);
    while (result == 2) { /* the others hold everything just then, even the room for a context */
        usleep(500);
        result = ready(&driver);
    }
    if (result != 0) return 1;
    void *pool = NULL;
    if (cuDeviceGetDefaultMemPool(&pool, 0) != 0) return 1;
    if (write(1, "up\n", 3) != 3) return 1;
    for (;;) {
        unsigned at = random_number(&state) % PIECES;
        if (pieces[at] != 0) {
            result = ordered[at] ? cuMemFreeAsync(pieces[at], NULL) : driver.free(pieces[at]);
            if (result != 0) return 2;
            if (ordered[at]) {
                cuCtxSynchronize();
                /* A pool may keep what is free in it. Then the others' pools would leave no room for the next process. */
                cuMemPoolTrimTo(pool, 0);
            }
            pieces[at] = 0;
            continue;
        }
        size_t bytes = (size_t)(random_number(&state) % 8192) * 1024 + 1;
        unsigned how = random_number(&state) % 3;
        ordered[at] = how == 2;
        result = how == 0   ? driver.alloc(&pieces[at], bytes)
                          : how == 1 ? cuMemAllocManaged(&pieces[at], bytes, 1)
                                     : cuMemAllocAsync(&pieces[at], bytes, NULL);
        if (result == 2) pieces[at] = 0;
        else if (result != 0) return 3;
        else if (how == 0 && random_number(&state) % 4 == 0) {
            char handle[64]; /* offered to other processes: its charge moves into the shared table */
            if (cuIpcGetMemHandle(handle, pieces[at]) != 0) return 4;
        }
    }
}
