/* Takes memory by calls that name none: contexts, modules, libraries, green contexts, limits of a context.
 * One line in, one line out, as in memory.c; sizes are in MiB unless the step says otherwise. */
#include <stdint.h>
#include "driver.h"

typedef void *handle;
typedef struct { unsigned char bytes[16]; } uuid;

extern CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
extern CUresult cuCtxDestroy_v2(CUcontext);
extern CUresult cuCtxSetLimit(int, size_t);
extern CUresult cuCtxGetCurrent(CUcontext *);
extern CUresult cuModuleLoadData(handle *, const void *);
extern CUresult cuModuleLoad(handle *, const char *);
extern CUresult cuModuleUnload(handle);
extern CUresult cuModuleGetFunction(handle *, handle, const char *);
extern CUresult cuModuleGetGlobal_v2(CUdeviceptr *, size_t *, handle, const char *);
extern CUresult cuLibraryLoadData(handle *, const void *, void *, void *, unsigned, void *, void *, unsigned);
extern CUresult cuLibraryGetModule(handle *, handle);
extern CUresult cuLibraryUnload(handle);
extern CUresult cuDeviceGetDevResource(CUdevice, void *, int);
extern CUresult cuDevResourceGenerateDesc(handle *, void *, unsigned);
extern CUresult cuGreenCtxCreate(handle *, handle, CUdevice, unsigned);
extern CUresult cuGreenCtxDestroy(handle);
extern CUresult cuCtxFromGreenCtx(CUcontext *, handle);

#define FIRST(a, b) ({ CUresult first_ = (a); first_ != 0 ? first_ : (b); })

static const struct driver driver = LINKED_DRIVER;
static CUcontext primary, contexts[64], of_green;
static CUdeviceptr pieces[64];
static handle modules[64], library, green;
static size_t made, taken, loaded;
static char resource[4096];

/* A text that declares a variable of that many bytes. */
static const char *text_of(size_t bytes) {
    char *text = malloc(512);
    snprintf(text, 512,
             ".version 7.0\n.target sm_70\n.address_size 64\n.global .align 4 .b8 big[%zu];\n"
             ".visible .entry nothing() { ret; }\n",
             bytes);
    return text;
}

static CUresult step(const char *name, double number) {
    size_t bytes = (size_t)(number * MIB), found = 0;
    CUdeviceptr address = 0;
    handle desc = NULL, function = NULL;
    CUresult result;
#define IS(what) (strcmp(name, what) == 0)
    if (IS("init")) return driver.init(0);
    if (IS("ready"))
        return FIRST(driver.init(0), FIRST(driver.retain(&primary, 0), driver.set_current(primary)));
    if (IS("create")) {
        result = cuCtxCreate_v2(&contexts[made], 0, 0);
        if (result == 0) made++;
        return result;
    }
    if (IS("destroy")) return cuCtxDestroy_v2(contexts[--made]);
    if (IS("reset")) return cuDevicePrimaryCtxReset_v2(0);
    if (IS("alloc")) {
        result = driver.alloc(&pieces[taken], bytes);
        if (result == 0) taken++;
        return result;
    }
    if (IS("free")) return driver.free(pieces[--taken]);
    if (IS("module")) {
        result = cuModuleLoadData(&modules[loaded], text_of(bytes));
        if (result == 0) loaded++;
        return result;
    }
    if (IS("module_file")) {
        FILE *file = fopen("module.ptx", "w");
        fputs(text_of(bytes), file);
        fclose(file);
        result = cuModuleLoad(&modules[loaded], "module.ptx");
        if (result == 0) loaded++;
        return result;
    }
    if (IS("unload")) return cuModuleUnload(modules[--loaded]);
    if (IS("function")) return cuModuleGetFunction(&function, modules[loaded - 1], "nothing");
    if (IS("global")) return cuModuleGetGlobal_v2(&address, &found, modules[loaded - 1], "big");
    if (IS("library")) return cuLibraryLoadData(&library, text_of(bytes), NULL, NULL, 0, NULL, NULL, 0);
    if (IS("library_module")) return cuLibraryGetModule(&function, library);
    if (IS("library_unload")) return cuLibraryUnload(library);
    if (IS("green"))
        return FIRST(cuDeviceGetDevResource(0, resource, 1),
                     FIRST(cuDevResourceGenerateDesc(&desc, resource, 1), cuGreenCtxCreate(&green, desc, 0, 1)));
    if (IS("green_current")) return FIRST(cuCtxFromGreenCtx(&of_green, green), driver.set_current(of_green));
    if (IS("primary_current")) return driver.set_current(primary);
    if (IS("green_destroy")) return cuGreenCtxDestroy(green);
    if (IS("stack")) return cuCtxSetLimit(0, (size_t)number); /* bytes of each thread */
    if (IS("heap")) return cuCtxSetLimit(2, bytes);
    if (IS("pending")) return cuCtxSetLimit(4, (size_t)number); /* launches */
    return 999;
}

int main(void) {
    char name[64], line[128];
    while (fgets(line, sizeof line, stdin) != NULL) {
        double number = 0;
        if (sscanf(line, "%63s %lf", name, &number) < 1) break;
        printf("%s %u\n", name, step(name, number));
        fflush(stdout);
    }
    return 0;
}
