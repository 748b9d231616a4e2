/* A libcuda.so.1 that hands everything on to the simulated one, except that a request of 11 MiB throws
 * a C++ exception, one of 12 MiB jumps to odd_place, one of 13 MiB waits to be cancelled, one of 14 MiB
 * gives the memory and then jumps to odd_place, cuInit takes as long as ODD_INIT_MS says, and with
 * ODD_UUID each device is a part of its GPU with a UUID of its own; with ODD_BUS all devices are of the
 * GPU that is the first one, by its place on the bus. It has a graphics API, whose buffers are as many
 * MiB large as their numbers say. odd_names.inc has the driver's names, made by the test. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <stdexcept>

extern "C" {
/* Where the program waits for the jump. */
static jmp_buf place;
void *odd_place(void) { return &place; }

/* Each name jumps to wherever the simulated driver has it; arguments and result pass untouched. */
#define NAME(name)                                                                        \
    __attribute__((visibility("hidden"))) void *odd_##name;                               \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name                 \
            ":\n\tjmp *odd_" #name "(%rip)\n");
#include "odd_names.inc"
#undef NAME

static unsigned (*real_alloc)(unsigned long long *, size_t);
static unsigned (*real_init)(unsigned);
static unsigned (*real_uuid)(unsigned char *, int);
static unsigned (*real_bus)(char *, int, int);

unsigned cuMemAlloc_v2(unsigned long long *pointer, size_t bytes) {
    switch (bytes >> 20) {
    case 11: throw std::runtime_error("odd");
    case 12: longjmp(place, 1);
    case 13:
        for (;;) pause();
    case 14: {
        unsigned result = real_alloc(pointer, bytes);
        if (result == 0) longjmp(place, 1);
        return result;
    }
    default: return real_alloc(pointer, bytes);
    }
}

unsigned cuInit(unsigned flags) {
    const char *wait = getenv("ODD_INIT_MS");
    if (wait != NULL) usleep((unsigned)atoi(wait) * 1000u);
    return real_init(flags);
}

unsigned cuDeviceGetUuid(unsigned char *uuid, int device) {
    unsigned result = real_uuid(uuid, device);
    if (result == 0 && getenv("ODD_UUID") != NULL) uuid[15] ^= 0xff;
    return result;
}

unsigned cuDeviceGetUuid_v2(unsigned char *uuid, int device) { return cuDeviceGetUuid(uuid, device); }

unsigned cuDeviceGetPCIBusId(char *place, int room, int device) {
    return real_bus(place, room, getenv("ODD_BUS") != NULL ? 0 : device);
}

/* Resources of the graphics API: how large, and whether it is mapped. */
static struct { size_t bytes; int is_mapped; } resources[16];
static size_t registered;

static unsigned map_all(unsigned count, size_t *list, int is_mapped) {
    for (unsigned i = 0; i < count; i++)
        if (list[i] == 0 || list[i] > registered) return 400;
    for (unsigned i = 0; i < count; i++) resources[list[i] - 1].is_mapped = is_mapped;
    return 0;
}

unsigned cuGraphicsGLRegisterBuffer(size_t *resource, unsigned buffer, unsigned) {
    if (registered == 16) return 2;
    resources[registered].bytes = (size_t)buffer << 20;
    *resource = ++registered;
    return 0;
}
unsigned cuGraphicsMapResources(unsigned count, size_t *list, void *) { return map_all(count, list, 1); }
unsigned cuGraphicsMapResources_ptsz(unsigned count, size_t *list, void *) { return map_all(count, list, 1); }
unsigned cuGraphicsUnmapResources(unsigned count, size_t *list, void *) { return map_all(count, list, 0); }
unsigned cuGraphicsUnmapResources_ptsz(unsigned count, size_t *list, void *) { return map_all(count, list, 0); }
unsigned cuGraphicsResourceGetMappedPointer_v2(unsigned long long *pointer, size_t *bytes, size_t resource) {
    if (resource == 0 || resource > registered || !resources[resource - 1].is_mapped) return 211;
    *pointer = 0x7000000000ull + (resource << 32);
    *bytes = resources[resource - 1].bytes;
    return 0;
}
unsigned cuGraphicsUnregisterResource(size_t resource) { return resource == 0 || resource > registered ? 400 : 0; }
int odd_is_mapped(size_t resource) { return resources[resource - 1].is_mapped; }

__attribute__((constructor)) static void find_all(void) {
    void *real = dlopen(getenv("ODD_REAL"), RTLD_NOW | RTLD_LOCAL);
    if (real == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
#define NAME(name) odd_##name = dlsym(real, #name);
#include "odd_names.inc"
#undef NAME
    *(void **)&real_alloc = dlsym(real, "cuMemAlloc_v2");
    *(void **)&real_init = dlsym(real, "cuInit");
    *(void **)&real_bus = dlsym(real, "cuDeviceGetPCIBusId");
    *(void **)&real_uuid = dlsym(real, "cuDeviceGetUuid_v2");
}
}
