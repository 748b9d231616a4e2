/* Loads images that end early, and images with one wrong number: a text, a cubin, and a fat binary of both. The
 * missing part of an image does not exist: the page after the image cannot be read, or is full of noise.
 *
 *   lies HOW     "early", "early noise", "numbers"; prints "ready", "loads N good M", and "after" with what is free */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
#include "driver.h"

typedef void *handle;
extern CUresult cuModuleLoad(handle *, const char *);
extern CUresult cuModuleLoadData(handle *, const void *);
extern CUresult cuModuleLoadDataEx(handle *, const void *, unsigned, int *, void **);
extern CUresult cuModuleLoadFatBinary(handle *, const void *);
extern CUresult cuModuleUnload(handle);
extern CUresult cuLibraryLoadData(handle *, const void *, void *, void *, unsigned, void *, void *, unsigned);
extern CUresult cuLibraryLoadFromFile(handle *, const char *, void *, void *, unsigned, void *, void *, unsigned);
extern CUresult cuLibraryGetModule(handle *, handle);
extern CUresult cuLibraryUnload(handle);

static const struct driver driver = LINKED_DRIVER;
static const char text[] = ".version 7.0\n.target sm_70\n.address_size 64\n.global .align 4 .b8 big[1048576];\n"
                           ".visible .entry nothing() { ret; }\n";
static unsigned loads, good;

static void put(unsigned char *at, uint64_t number, size_t bytes) { memcpy(at, &number, bytes); }

/* An ELF file of two sections: a variable of 1 MiB, and the names. */
static size_t make_cubin(unsigned char *out) {
    static const char names[] = "\0.nv.global\0.shstrtab";
    enum { TABLE = 64 + 24, ENTRY = 64 };
    memset(out, 0, TABLE + 3 * ENTRY);
    memcpy(out, "\177ELF\2\1\1", 7);
    put(out + 16, 2, 2);    /* linked */
    put(out + 18, 190, 2);  /* CUDA */
    put(out + 40, TABLE, 8);
    put(out + 52, 64, 2);
    put(out + 58, ENTRY, 2);
    put(out + 60, 3, 2);
    put(out + 62, 2, 2);
    memcpy(out + 64, names, sizeof names);
    unsigned char *section = out + TABLE + ENTRY;
    put(section, 1, 4);
    put(section + 4, 8, 4); /* no bits */
    put(section + 8, 3, 8);
    put(section + 24, 64, 8);
    put(section + 32, 1 << 20, 8);
    put(section + 48, 16, 8);
    section += ENTRY;
    put(section, 12, 4);
    put(section + 4, 3, 4);
    put(section + 24, 64, 8);
    put(section + 32, sizeof names, 8);
    return TABLE + 3 * ENTRY;
}

static size_t add_entry(unsigned char *at, unsigned kind, const void *content, size_t bytes) {
    size_t padded = (bytes + 7) / 8 * 8;
    memset(at, 0, 64 + padded);
    put(at, kind, 2);
    put(at + 2, 0x101, 2);
    put(at + 4, 64, 4);
    put(at + 8, padded, 8);
    put(at + 28, 70, 4); /* for devices of this kind */
    memcpy(at + 64, content, bytes);
    return 64 + padded;
}

static size_t make_fat_binary(unsigned char *out) {
    unsigned char cubin[512];
    size_t bytes = 16 + add_entry(out + 16, 2, cubin, make_cubin(cubin));
    bytes += add_entry(out + bytes, 1, text, sizeof text);
    put(out, 0xba55ed50, 4);
    put(out + 4, 1, 2);
    put(out + 6, 16, 2);
    put(out + 8, bytes - 16, 8);
    return bytes;
}

static void unload_library(handle library) {
    handle module = NULL;
    cuLibraryGetModule(&module, library);
    cuLibraryUnload(library);
    good++;
}

static void unload(handle module) {
    cuModuleUnload(module);
    good++;
}

static void load(const void *image) {
    handle made = NULL;
    if (cuModuleLoadData(&made, image) == 0) unload(made);
    if (cuModuleLoadDataEx(&made, image, 0, NULL, NULL) == 0) unload(made);
    if (cuModuleLoadFatBinary(&made, image) == 0) unload(made);
    if (cuLibraryLoadData(&made, image, NULL, NULL, 0, NULL, NULL, 0) == 0) unload_library(made);
    loads += 4;
}

static void load_file(const void *image, size_t bytes) {
    handle made = NULL;
    FILE *file = fopen("lies.image", "w");
    if (file == NULL || fwrite(image, 1, bytes, file) != bytes) exit(3);
    fclose(file);
    if (cuModuleLoad(&made, "lies.image") == 0) unload(made);
    if (cuLibraryLoadFromFile(&made, "lies.image", NULL, NULL, 0, NULL, NULL, 0) == 0) unload_library(made);
    loads += 2;
}

static void all_ends(const unsigned char *image, size_t bytes, unsigned char *page, size_t length) {
    for (size_t end = 0; end <= bytes; end++) {
        memcpy(page + length - end, image, end);
        load(page + length - end);
        load_file(image, end);
    }
}

static void all_numbers(const unsigned char *image, size_t bytes) {
    static const uint64_t numbers[] = {0, 1, 0x7fffffff, 0xffffffff, 0x8000000000000000, ~0ull - 7, ~0ull};
    unsigned char changed[2048];
    for (size_t at = 0; at + 8 <= bytes; at += 2)
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
            for (size_t width = 2; width <= 8; width *= 4) {
                memset(changed, 0, sizeof changed);
                memcpy(changed, image, bytes);
                put(changed + at, numbers[i], width);
                if (at % 16 == 0) load_file(changed, bytes);
                handle made = NULL;
                if (cuModuleLoadData(&made, changed) == 0) unload(made);
                loads++;
            }
}

int main(int count, char **words) {
    unsigned char image[2048];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), free_bytes = 0, total = 0;
    int is_noise = count > 2;
    unsigned char *room = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(room + page, 0xa5, page);
    if (!is_noise) mprotect(room + page, page, PROT_NONE);
    printf("ready %u\n", ready(&driver));
    fflush(stdout);
    for (int kind = 0; kind < 3; kind++) {
        size_t bytes = kind == 0 ? sizeof text : kind == 1 ? make_cubin(image) : make_fat_binary(image);
        if (kind == 0) memcpy(image, text, bytes);
        unsigned before = good;
        load(image);
        printf("whole %u\n", good - before);
        fflush(stdout);
        if (strcmp(words[1], "early") == 0) all_ends(image, bytes, room, page);
        else all_numbers(image, bytes);
    }
    fprintf(stderr, "%u loads, %u good\n", loads, good);
    driver.info(&free_bytes, &total);
    printf("after %zu of %zu\n", free_bytes / MIB, total / MIB);
    return 0;
}
