/* Descriptors of other processes. */
#ifndef DESCRIPTOR_H
#define DESCRIPTOR_H
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A descriptor of another process, by its name "/proc/PID/fd/NUMBER": a copy of it, which is the same file
 * even where the name cannot be opened. */
static inline int file_of(const char *name) {
    int process, number, file = -1;
    if (sscanf(name, "/proc/%d/fd/%d", &process, &number) != 2) return -1;
    int handle_of_process = (int)syscall(SYS_pidfd_open, process, 0);
    if (handle_of_process >= 0) {
        file = (int)syscall(SYS_pidfd_getfd, handle_of_process, number, 0);
        close(handle_of_process);
    }
    return file >= 0 ? file : open(name, O_RDWR | O_CLOEXEC);
}

#endif
