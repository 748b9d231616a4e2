/* Preloaded into vgpu, kills it (SIGKILL) just before change number KILL_BEFORE of what is on a board or in /etc: a file
 * or a directory that is made, written, renamed or removed. So a test can end the program between any two changes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static void change(const char *path) {
    static long left = -1;
    char own[64] = "";
    if (strncmp(path, "/run/vgpu", 9) != 0 && strncmp(path, "/etc/", 5) != 0) return;
    if (left < 0) {
        const char *text = getenv("KILL_BEFORE");
        FILE *name = fopen("/proc/self/comm", "r");
        if (name != NULL && fgets(own, sizeof own, name) == NULL) own[0] = 0;
        if (name != NULL) fclose(name);
        left = text != NULL && strcmp(own, "vgpu\n") == 0 ? atol(text) : 0;
    }
    if (left > 0 && --left == 0) kill(getpid(), SIGKILL);
}

/* The path of a name below an open directory, or of an open file. */
static void change_at(int dir, const char *name) {
    char link[64], path[4096];
    ssize_t length;
    if (name != NULL && name[0] == '/') {
        change(name);
        return;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0) return;
    path[length] = 0;
    change(path);
}

#define NEXT(name, type) ((type)dlsym(RTLD_NEXT, name))
#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list more;                                                                                                  \
        mode_t mode;                                                                                                   \
        va_start(more, flags);                                                                                         \
        mode = va_arg(more, mode_t);                                                                                   \
        va_end(more);                                                                                                  \
        if (flags & O_CREAT) change(path);                                                                             \
        return NEXT(#name, int (*)(const char *, int, ...))(path, flags, mode);                                        \
    }
#define OPENAT(name)                                                                                                   \
    int name(int dir, const char *path, int flags, ...) {                                                              \
        va_list more;                                                                                                  \
        mode_t mode;                                                                                                   \
        va_start(more, flags);                                                                                         \
        mode = va_arg(more, mode_t);                                                                                   \
        va_end(more);                                                                                                  \
        if (flags & O_CREAT) change_at(dir, path);                                                                     \
        return NEXT(#name, int (*)(int, const char *, int, ...))(dir, path, flags, mode);                              \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int mkdir(const char *path, mode_t mode) {
    change(path);
    return NEXT("mkdir", int (*)(const char *, mode_t))(path, mode);
}
int mkdirat(int dir, const char *path, mode_t mode) {
    change_at(dir, path);
    return NEXT("mkdirat", int (*)(int, const char *, mode_t))(dir, path, mode);
}
int rename(const char *from, const char *to) {
    change(from);
    return NEXT("rename", int (*)(const char *, const char *))(from, to);
}
int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    change_at(from_dir, from);
    return NEXT("renameat", int (*)(int, const char *, int, const char *))(from_dir, from, to_dir, to);
}
int unlink(const char *path) {
    change(path);
    return NEXT("unlink", int (*)(const char *))(path);
}
int unlinkat(int dir, const char *path, int flags) {
    change_at(dir, path);
    return NEXT("unlinkat", int (*)(int, const char *, int))(dir, path, flags);
}
ssize_t write(int file, const void *data, size_t size) {
    change_at(file, NULL);
    return NEXT("write", ssize_t(*)(int, const void *, size_t))(file, data, size);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    change_at(file, NULL);
    return NEXT("pwrite64", ssize_t(*)(int, const void *, size_t, off64_t))(file, data, size, at);
}
int ftruncate64(int file, off64_t size) {
    change_at(file, NULL);
    return NEXT("ftruncate64", int (*)(int, off64_t))(file, size);
}
