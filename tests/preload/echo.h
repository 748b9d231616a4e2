/* What echo_driver.c remembers of a call. */
#ifndef ECHO_H
#define ECHO_H

typedef unsigned long word;

struct echo {
    /* The first argument of the call that the program makes. */
    word first;
    word given[6];
    unsigned calls;
    const char *called;
};

extern struct echo echo;

#endif
