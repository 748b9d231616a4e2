/* Tries to get more of a GPU than its container has, in the way that its first argument names. Prints the result
 * (refused, got, or held if it only opened the device), then waits until its input ends. Environment: DRIVER is the
 * path of the driver's library, DEVICE that of a device, INNER that of a plugin that finds the driver by itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vgpu.h"

typedef unsigned CUresult;
typedef void *(*look_fn)(void *, const char *);

static int trial(look_fn look, void *handle)
{
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))look(handle, "cuInit");
    CUresult (*get)(int *, int) = (CUresult(*)(int *, int))look(handle, "cuDeviceGet");
    CUresult (*retain)(void **, int) = (CUresult(*)(void **, int))look(handle, "cuDevicePrimaryCtxRetain");
    CUresult (*set)(void *) = (CUresult(*)(void *))look(handle, "cuCtxSetCurrent");
    CUresult (*alloc)(unsigned long long *, size_t) =
        (CUresult(*)(unsigned long long *, size_t))look(handle, "cuMemAlloc_v2");
    int device = 0;
    void *context = NULL;
    unsigned long long pointer = 0;
    if (!init || !get || !retain || !set || !alloc)
        return printf("no driver\n"), 1;
    if (init(0) || get(&device, 0) || retain(&context, device) || set(context))
        return printf("failed\n"), 1;
    /* The container has 1 GiB. */
    printf(alloc(&pointer, (size_t)3 << 30) ? "refused\n" : "got\n");
    return 0;
}

static void *by_dlsym(void *handle, const char *name) { return dlsym(handle, name); }
static void *by_next(void *handle, const char *name) { (void)handle; return dlsym(RTLD_NEXT, name); }

/* Reads the symbol table out of the driver's file and adds where the file was loaded. */
static void *by_walk(void *base, const char *name)
{
    int file = open(getenv("DRIVER"), O_RDONLY);
    struct stat stat;
    if (file < 0 || fstat(file, &stat))
        return NULL;
    const char *image = mmap(NULL, stat.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    const Elf64_Ehdr *head = (const void *)image;
    const Elf64_Shdr *sections = (const void *)(image + head->e_shoff);
    void *found = NULL;
    for (int i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type != SHT_DYNSYM)
            continue;
        const Elf64_Sym *symbols = (const void *)(image + sections[i].sh_offset);
        const char *names = image + sections[sections[i].sh_link].sh_offset;
        for (size_t n = 0; n < sections[i].sh_size / sizeof *symbols; n++)
            if (symbols[n].st_value && !strcmp(names + symbols[n].st_name, name))
                found = (char *)base + symbols[n].st_value;
    }
    munmap((void *)image, stat.st_size);
    return found;
}

static int find_base(struct dl_phdr_info *info, size_t size, void *base)
{
    (void)size;
    if (info->dlpi_name && strstr(info->dlpi_name, "libcuda.so"))
        *(void **)base = (void *)info->dlpi_addr;
    return 0;
}

/* Overwrites this process's entries in the container's region: each slot's charges, and with `vanish` the slots
 * themselves. */
static void clear_books(int vanish)
{
    static const char zeros[sizeof(VgpuSlot)];
    int region = open("/run/vgpu/region", O_RDWR);
    for (size_t slot = 0; slot < 8; slot++) {
        off_t at = offsetof(VgpuRegionLayout, slots) + slot * sizeof(VgpuSlot);
        if (!vanish)
            at += offsetof(VgpuSlot, devices);
        if (pwrite(region, zeros, vanish ? sizeof(VgpuSlot) : sizeof(VgpuDeviceUse), at) < 0)
            perror("region");
    }
    if (vanish)
        pwrite(region, zeros, sizeof(uint64_t) * VGPU_SLOT_WORDS,
               offsetof(VgpuRegionLayout, header) + offsetof(VgpuRegionHeader, slots_in_use));
    /* Its descriptor stays open: closing it would drop the slot's lock. */
}

/* Asks the library as it should, and then takes memory past it, or takes what is left in the books out of them. */
static int mixed(const char *trick, const char *path)
{
    void *handle = dlopen(path, RTLD_NOW), *base = NULL, *context = NULL;
    unsigned long long pointer = 0;
    int device = 0;
    CUresult (*alloc)(unsigned long long *, size_t) =
        (CUresult(*)(unsigned long long *, size_t))dlsym(handle, "cuMemAlloc_v2");
    if (((CUresult(*)(unsigned))dlsym(handle, "cuInit"))(0) ||
        ((CUresult(*)(int *, int))dlsym(handle, "cuDeviceGet"))(&device, 0) ||
        ((CUresult(*)(void **, int))dlsym(handle, "cuDevicePrimaryCtxRetain"))(&context, device) ||
        ((CUresult(*)(void *))dlsym(handle, "cuCtxSetCurrent"))(context) ||
        alloc(&pointer, (size_t)600 << 20))
        return printf("failed\n"), 1;
    if (!strcmp(trick, "mixed")) {
        dl_iterate_phdr(find_base, &base);
        alloc = (CUresult(*)(unsigned long long *, size_t))by_walk(base, "cuMemAlloc_v2");
    } else {
        clear_books(!strcmp(trick, "vanish"));
    }
    /* Its next call would enter it into the books again. */
    if (!strcmp(trick, "vanish"))
        return printf("cleared\n"), 0;
    printf(alloc(&pointer, (size_t)800 << 20) ? "refused\n" : "got\n");
    return 0;
}

static int is(const char *trick, const char *name) { return !strcmp(trick, name); }

int main(int argc, char **argv)
{
    const char *trick = argc > 1 ? argv[1] : "plain", *driver = getenv("DRIVER");
    int failed = 0;
    if (is(trick, "again")) {
        /* exec of itself with what is left of the environment */
        execv(argv[0], (char *[]){argv[0], "plain", NULL});
        return 1;
    } else if (is(trick, "empty")) {
        setenv("LD_PRELOAD", "", 1);
        execv(argv[0], (char *[]){argv[0], "plain", NULL});
        return 1;
    } else if (is(trick, "unset")) {
        unsetenv("LD_PRELOAD");
        execv(argv[0], (char *[]){argv[0], "plain", NULL});
        return 1;
    } else if (is(trick, "fork")) {
        pid_t child = fork();
        if (child) {
            char byte;
            while (read(0, &byte, 1) > 0) {}
            return 0;
        }
        printf("pid %d\n", getpid());
        fflush(stdout);
        execv(argv[0], (char *[]){argv[0], "plain", NULL});
        return 1;
    } else if (is(trick, "raw")) {
        /* Speaks to the kernel itself, as a hand-made driver does. */
        printf(open(getenv("DEVICE"), O_RDWR) < 0 ? "failed\n" : "held\n");
    } else if (is(trick, "limits")) {
        /* The file is not the container's to write. */
        int limits = open("/etc/vgpu/limits", O_RDWR);
        if (limits >= 0 && pwrite(limits, "\0\0\0\0\0\0\0\0", 8, 0) == 8)
            return printf("wrote\n"), 1;
        failed = trial(by_dlsym, dlopen(driver, RTLD_NOW));
    } else if (is(trick, "inner")) {
        void *plugin = dlmopen(LM_ID_NEWLM, getenv("INNER"), RTLD_NOW | RTLD_LOCAL);
        int (*run)(void) = plugin ? (int (*)(void))dlsym(plugin, "inner") : NULL;
        printf(!run ? "failed\n" : run() == 0 ? "got\n" : "refused\n");
    } else if (is(trick, "mixed") || is(trick, "zero") || is(trick, "vanish")) {
        failed = mixed(trick, driver);
    } else if (is(trick, "next")) {
        failed = trial(by_next, dlopen(driver, RTLD_NOW | RTLD_GLOBAL));
    } else if (is(trick, "deepbind")) {
        failed = trial(by_dlsym, dlopen(driver, RTLD_NOW | RTLD_DEEPBIND));
    } else if (is(trick, "dlmopen")) {
        failed = trial(by_dlsym, dlmopen(LM_ID_NEWLM, driver, RTLD_NOW));
    } else if (is(trick, "walk")) {
        void *base = NULL;
        if (!dlopen(driver, RTLD_NOW))
            return printf("no driver\n"), 1;
        dl_iterate_phdr(find_base, &base);
        failed = trial(by_walk, base);
    } else {
        failed = trial(by_dlsym, dlopen(driver, RTLD_NOW));
    }
    fflush(stdout);
    char byte;
    while (!failed && read(0, &byte, 1) > 0) {}
    return failed;
}
