/* The small driver, with calls that remember their arguments and answer with a number of their own.
 * echo_rows.inc, made by the test, has a row for each of these calls. */
#define cuCtxSetCurrent small_set_current
#define cuCtxPushCurrent_v2 small_push
#define cuCtxPopCurrent_v2 small_pop
#include "small_driver.c"
#undef cuCtxSetCurrent
#undef cuCtxPushCurrent_v2
#undef cuCtxPopCurrent_v2
#include "echo.h"

struct echo echo;

/* The library asks the driver, too: such a call has another first argument. */
static unsigned of_the_library(const char *name, word first) {
    if (strcmp(name, "cuCtxSetCurrent") == 0) return small_set_current((CUcontext)first);
    if (strcmp(name, "cuCtxPushCurrent_v2") == 0) return small_push((CUcontext)first);
    if (strcmp(name, "cuCtxPopCurrent_v2") == 0) return small_pop((CUcontext *)first);
    return 1;
}

#define ROW(name, sizes, answer)                                                     \
    unsigned name(word a, word b, word c, word d, word e, word f) {                  \
        if (a != echo.first) return of_the_library(#name, a);                        \
        word given[6] = {a, b, c, d, e, f};                                          \
        memcpy(echo.given, given, sizeof given);                                     \
        echo.calls++;                                                                \
        echo.called = #name;                                                         \
        return answer;                                                               \
    }
#include "echo_rows.inc"
