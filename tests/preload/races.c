/* One of several processes that allocate at the same moment, round after round, more than half of the
 * free memory. They meet at a barrier in a file that all map; after each round the first of them counts
 * which of them got memory: exactly one, never two, and never none.
 *
 *   races FILE NUMBER OF-HOW-MANY ROUNDS CALL MIB        prints "rounds R over O none N" */
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "driver.h"

typedef struct { int type, id; } location;
typedef struct { int type, handles; location where; void *metadata; unsigned char flags[8]; } alloc_prop;
typedef struct { size_t width, height; unsigned format, channels; } array_desc;

extern CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
extern CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
extern CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
extern CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuMemCreate(unsigned long long *, size_t, const alloc_prop *, unsigned long long);
extern CUresult cuMemRelease(unsigned long long);
extern CUresult cuArrayCreate_v2(void **, const array_desc *);
extern CUresult cuArrayDestroy(void *);

struct meeting {
    int arrived, round, winners;
};

static void meet(struct meeting *meeting, int parties) {
    int round = __atomic_load_n(&meeting->round, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&meeting->arrived, 1, __ATOMIC_ACQ_REL) == parties) {
        __atomic_store_n(&meeting->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&meeting->round, round + 1, __ATOMIC_RELEASE);
        syscall(SYS_futex, &meeting->round, FUTEX_WAKE, INT_MAX, NULL);
        return;
    }
    /* Those that spin for a while set out at the same moment. */
    for (int i = 0; __atomic_load_n(&meeting->round, __ATOMIC_ACQUIRE) == round; i++) {
        if (i > 1000) syscall(SYS_futex, &meeting->round, FUTEX_WAIT, round, NULL);
    }
}

static CUdeviceptr pointer;
static unsigned long long created;
static void *array;

static CUresult take(char call, size_t bytes) {
    const alloc_prop prop = {.type = 1, .where = {1, 0}};
    size_t pitch;
    switch (call) {
    case 'a': return cuMemAlloc_v2(&pointer, bytes);
    case 'm': return cuMemAllocManaged(&pointer, bytes, 1);
    case 'p': return cuMemAllocPitch_v2(&pointer, &pitch, 1024, bytes / 1024, 4);
    case 's': return cuMemAllocAsync(&pointer, bytes, NULL);
    case 'c': return cuMemCreate(&created, bytes, &prop, 0);
    default: return cuArrayCreate_v2(&array, &(array_desc){1024, bytes / 4096, 0x20, 1});
    }
}

static CUresult give(char call) {
    switch (call) {
    case 's': {
        CUresult result = cuMemFreeAsync(pointer, NULL);
        return result != 0 ? result : cuCtxSynchronize();
    }
    case 'c': return cuMemRelease(created);
    case 'y': return cuArrayDestroy(array);
    default: return cuMemFree_v2(pointer);
    }
}

int main(int count, char **words) {
    if (count < 7) return 2;
    const struct driver driver = LINKED_DRIVER;
    int number = atoi(words[2]), parties = atoi(words[3]), rounds = atoi(words[4]);
    char call = words[5][0];
    size_t bytes = (size_t)atoi(words[6]) * MIB;
    int file = open(words[1], O_RDWR | O_CREAT, 0600), over = 0, none = 0;
    if (file < 0 || ftruncate(file, 4096) != 0) return 1;
    struct meeting *meeting = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (meeting == MAP_FAILED || ready(&driver) != 0) return 1;
    alarm(300);
    for (int round = 0; round < rounds; round++) {
        meet(meeting, parties);
        CUresult result = take(call, bytes);
        if (result != 0 && result != 2) return 3;
        if (result == 0) __atomic_add_fetch(&meeting->winners, 1, __ATOMIC_ACQ_REL);
        meet(meeting, parties);
        if (number == 0) {
            int winners = __atomic_load_n(&meeting->winners, __ATOMIC_ACQUIRE);
            over += winners > 1;
            none += winners == 0;
            __atomic_store_n(&meeting->winners, 0, __ATOMIC_RELEASE);
        }
        if (result == 0 && give(call) != 0) return 4;
        meet(meeting, parties);
    }
    if (number == 0) printf("rounds %d over %d none %d\n", rounds, over, none);
    return 0;
}
