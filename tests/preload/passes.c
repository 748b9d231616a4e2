/* Calls each function of echo_rows.inc once, and prints whether the driver saw that very call, whether the
 * program got the driver's answer, and whether the memory that the arguments name is as it was. */
/* Declared below, as the other rows are. */
#define cuCtxSetCurrent declared_elsewhere
#include "driver.h"
#undef cuCtxSetCurrent
#include "echo.h"

#define ROW(name, sizes, answer) unsigned name(word, word, word, word, word, word);
#include "echo_rows.inc"
#undef ROW

/* Memory that each argument of the size of a pointer names. */
static unsigned char memory[6][4096];

static void call(const char *name, unsigned (*function)(word, word, word, word, word, word), const char *sizes,
                 unsigned answer) {
    word args[6] = {0};
    memset(memory, 0xab, sizeof memory);
    /* A number of 32 bits is small, because it may be the length of a list. */
    for (int i = 0; sizes[i] != 0; i++) args[i] = sizes[i] == '4' ? 1 : (word)(size_t)memory[i];
    memset(&echo, 0, sizeof echo);
    echo.first = args[0];
    unsigned result = function(args[0], args[1], args[2], args[3], args[4], args[5]);
    echo.first = 0;
    const char *found = "unchanged";
    if (echo.calls != 1 || strcmp(echo.called, name) != 0) found = "not called once";
    else if (result != answer) found = "another answer";
    for (int i = 0; sizes[i] != 0; i++)
        if (sizes[i] == '4' ? (unsigned)echo.given[i] != 1 : echo.given[i] != args[i]) found = "other arguments";
    for (size_t i = 0; i < sizeof memory; i++)
        if (memory[0][i] != 0xab) found = "changed memory";
    printf("%s: %s\n", name, found);
}

int main(void) {
    CUcontext context;
    CUdeviceptr pointer;
    if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0) return 1;
    if (cuCtxSetCurrent((word)context, 0, 0, 0, 0, 0) != 0) return 1;
    /* The container is known, and limits. */
    CUresult within = cuMemAlloc_v2(&pointer, MIB);
    printf("within the limit %u, beyond it %u\n", within, cuMemAlloc_v2(&pointer, 200 * MIB));
#define ROW(name, sizes, answer) call(#name, name, sizes, answer);
#include "echo_rows.inc"
    return 0;
}
