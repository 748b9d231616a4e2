/* Memory of pools that processes export to each other. One line in, one line out: "NAME code", and the data
 * for another process. */
#include <pthread.h>
#include <unistd.h>
#include "takers.h"

extern CUresult cuMemPoolDestroy(handle);

#define MOST 128
static const struct driver driver = LINKED_DRIVER;
static const pool_props shared_pool = {.type = 1, .handles = 1, .where = {1, 0}};
static CUdeviceptr pointers[MOST], plain, flag;
static handle pool, foreign;
static CUstream blocked;

static void tell(const name64 *name) {
    printf(" ");
    for (int at = 0; at < 64; at++) printf("%02hhx", (unsigned char)name->bytes[at]);
}

/* Draws, names and frees, beside others that do the same: addresses come again at once. Answers the
 * first result that is not 0, and in which call it was. */
static CUresult draw_name_free(size_t turn) {
    CUdeviceptr piece = 0;
    name64 name;
    CUresult result = cuMemAllocFromPoolAsync(&piece, 2 * MIB, pool, NULL);
    if (result != 0) return 10000 + result;
    if (turn % 3 != 0) result = cuMemPoolExportPointer(&name, piece);
    if (result != 0) return 20000 + result;
    result = turn % 2 == 0 ? driver.free(piece) : cuMemFreeAsync(piece, NULL);
    return result != 0 ? 30000 + result : 0;
}

static void *draws(void *times) {
    CUresult result = ready(&driver);
    for (size_t left = (size_t)times; left > 0 && result == 0; left--) result = draw_name_free(left);
    return (void *)(size_t)result;
}

static CUresult race(size_t times) {
    pthread_t threads[4];
    size_t wrong = 0;
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, draws, (void *)times);
    for (int i = 0; i < 4; i++) {
        void *answer;
        pthread_join(threads[i], &answer);
        if (answer != NULL) wrong = (size_t)answer;
    }
    return wrong != 0 ? (CUresult)wrong : cuCtxSynchronize();
}

static CUresult step(const char *name, int slot, size_t bytes, const char *text, name64 *told, char *path) {
    CUresult result;
    int file;
#define IS(what) (strcmp(name, what) == 0)
    if (IS("ready")) {
        result = ready(&driver);
        return result != 0 ? result : cuStreamCreate(&blocked, 1);
    }
    if (IS("pool")) return cuMemPoolCreate(&pool, &shared_pool);
    if (IS("pool_end")) return cuMemPoolDestroy(pool);
    if (IS("draw")) return cuMemAllocFromPoolAsync(&pointers[slot], bytes, pool, NULL);
    if (IS("alloc")) return driver.alloc(&plain, bytes);
    if (IS("free")) return driver.free(pointers[slot]);
    if (IS("free_async")) return cuMemFreeAsync(pointers[slot], NULL);
    if (IS("free_blocked")) return cuMemFreeAsync(pointers[slot], blocked);
    if (IS("block")) {
        result = driver.alloc(&flag, 4);
        if (result == 0) result = cuMemsetD32_v2(flag, 0, 1);
        return result != 0 ? result : cuStreamWaitValue32_v2(blocked, flag, 1, 0);
    }
    if (IS("open")) return cuMemsetD32_v2(flag, 1, 1);
    if (IS("sync")) return cuCtxSynchronize();
    if (IS("reset")) return cuDevicePrimaryCtxReset_v2(0);
    if (IS("offer_pool")) {
        result = cuMemPoolExportToShareableHandle(&file, pool, 1, 0);
        if (result == 0) sprintf(path, " /proc/%d/fd/%d", getpid(), file);
        return result;
    }
    if (IS("take_pool")) return cuMemPoolImportFromShareableHandle(&foreign, (void *)(size_t)file_of(text), 1, 0);
    if (IS("offer")) return cuMemPoolExportPointer(told, pointers[slot]);
    if (IS("take")) {
        name64 given;
        for (int at = 0; at < 64; at++) sscanf(text + 2 * at, "%2hhx", (unsigned char *)&given.bytes[at]);
        return cuMemPoolImportPointer(&pointers[slot], foreign, &given);
    }
    if (IS("race")) return race((size_t)slot);
    if (IS("offer_null")) return cuMemPoolExportPointer(NULL, pointers[slot]);
    if (IS("take_null")) return cuMemPoolImportPointer(NULL, foreign, NULL);
    return 999;
}

/* "NAME SLOT MIB TEXT" */
int main(void) {
    char line[400], name[32], text[300], path[64];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin) != NULL) {
        name64 told = {{0}};
        int slot = 0;
        double mib = 0;
        text[0] = path[0] = 0;
        sscanf(line, "%31s %d %lf %299s", name, &slot, &mib, text);
        printf("%s %u", name, step(name, slot, (size_t)(mib * (double)MIB), text, &told, path));
        if (strcmp(name, "offer") == 0) tell(&told);
        printf("%s\n", path);
    }
    return 0;
}
