/* Loads images whose code is larger than their text says, in every possible way, and uses their
 * functions for the first time in every possible way. One line in, one line out; sizes are in MiB. */
#include <stdint.h>
#include "driver.h"

typedef void *handle;
typedef struct { unsigned grid[3], block[3], shared; CUstream stream; void *attributes; unsigned count; } config;
typedef struct {
    handle function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    handle kernel, context;
} kernel_node;
typedef struct { int kind, reserved[3]; kernel_node kernel; long long more[21]; } any_node;
typedef struct { int result; handle error_node, error_from_node; } update_info;

extern CUresult cuModuleLoad(handle *, const char *);
extern CUresult cuModuleLoadData(handle *, const void *);
extern CUresult cuModuleLoadDataEx(handle *, const void *, unsigned, int *, void **);
extern CUresult cuModuleLoadFatBinary(handle *, const void *);
extern CUresult cuModuleUnload(handle);
extern CUresult cuModuleGetFunction(handle *, handle, const char *);
extern CUresult cuModuleEnumerateFunctions(handle *, unsigned, handle);
extern CUresult cuModuleGetGlobal_v2(CUdeviceptr *, size_t *, handle, const char *);
extern CUresult cuFuncLoad(handle);
extern CUresult cuLibraryLoadData(handle *, const void *, void *, void *, unsigned, void *, void *, unsigned);
extern CUresult cuLibraryUnload(handle);
extern CUresult cuLibraryGetKernel(handle *, handle, const char *);
extern CUresult cuLibraryEnumerateKernels(handle *, unsigned, handle);
extern CUresult cuKernelGetFunction(handle *, handle);
extern CUresult cuLinkCreate_v2(unsigned, int *, void **, handle *);
extern CUresult cuLinkAddData_v2(handle, int, void *, size_t, const char *, unsigned, int *, void **);
extern CUresult cuLinkComplete(handle, void **, size_t *);
extern CUresult cuLinkDestroy(handle);
extern CUresult cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
extern CUresult cuLaunchCooperativeKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **);
extern CUresult cuLaunchKernelEx(const config *, handle, void **, void **);
extern CUresult cuLaunch(handle);
extern CUresult cuStreamCreate(CUstream *, unsigned);
extern CUresult cuStreamBeginCapture_v2(CUstream, int);
extern CUresult cuStreamEndCapture(CUstream, handle *);
extern CUresult cuGraphCreate(handle *, unsigned);
extern CUresult cuGraphAddKernelNode(handle *, handle, const handle *, size_t, const kernel_node *);
extern CUresult cuGraphAddNode(handle *, handle, const handle *, size_t, any_node *);
extern CUresult cuGraphAddKernelNode_v2(handle *, handle, const handle *, size_t, const kernel_node *);
extern CUresult cuGraphKernelNodeSetParams(handle, const kernel_node *);
extern CUresult cuGraphKernelNodeSetParams_v2(handle, const kernel_node *);
extern CUresult cuGraphNodeSetParams(handle, any_node *);
extern CUresult cuGraphInstantiateWithFlags(handle *, handle, unsigned long long);
extern CUresult cuGraphExecKernelNodeSetParams(handle, handle, const kernel_node *);
extern CUresult cuGraphExecKernelNodeSetParams_v2(handle, handle, const kernel_node *);
extern CUresult cuGraphExecNodeSetParams(handle, handle, any_node *);
extern CUresult cuGraphExecUpdate(handle, handle, handle *, int *);
extern CUresult cuGraphExecUpdate_v2(handle, handle, update_info *);
extern CUresult cuGraphLaunch(handle, CUstream);
extern CUresult cuGraphUpload(handle, CUstream);

#define FIRST(a, b) ({ CUresult first_ = (a); first_ != 0 ? first_ : (b); })

static const struct driver driver = LINKED_DRIVER;
static CUcontext primary;
static CUdeviceptr piece;
static CUstream stream;
static handle module, library, kernel, function, graph, node, executable;

/* A text whose code takes that many bytes, of which it does not tell. */
static char *text_of(size_t bytes) {
    char *text = malloc(512);
    snprintf(text, 512,
             "//code %zu\n.version 7.0\n.target sm_70\n.address_size 64\n.global .align 4 .b8 small[8];\n"
             ".visible .entry nothing() { ret; }\n",
             bytes);
    return text;
}

static CUresult linked(char *text) {
    handle link;
    void *image;
    size_t length;
    CUresult result = cuLinkCreate_v2(0, NULL, NULL, &link);
    if (result == 0) result = cuLinkAddData_v2(link, 1, text, strlen(text) + 1, "text", 0, NULL, NULL);
    if (result == 0) result = cuLinkComplete(link, &image, &length);
    if (result == 0) result = cuModuleLoadData(&module, image);
    cuLinkDestroy(link);
    return result;
}

static CUresult step(const char *name, double number) {
    size_t bytes = (size_t)(number * MIB), found;
    config one = {{1, 1, 1}, {1, 1, 1}, 0, NULL, NULL, 0};
    kernel_node node_in = {.function = function, .grid = {1, 1, 1}, .block = {1, 1, 1}};
    any_node any_in = {.kernel = node_in};
    update_info update;
    CUdeviceptr address;
    CUresult result;
#define IS(what) (strcmp(name, what) == 0)
    if (IS("ready"))
        return FIRST(driver.init(0), FIRST(driver.retain(&primary, 0),
                     FIRST(driver.set_current(primary), cuStreamCreate(&stream, 1))));
    if (IS("alloc")) return driver.alloc(&piece, bytes);
    if (IS("free")) return driver.free(piece);
    /* An image of this many MiB of code, which nothing in it states. */
    if (IS("file")) {
        FILE *file = fopen("lazy.ptx", "w");
        fputs(text_of(bytes), file);
        fclose(file);
        return cuModuleLoad(&module, "lazy.ptx");
    }
    if (IS("data")) return cuModuleLoadData(&module, text_of(bytes));
    if (IS("data_ex")) return cuModuleLoadDataEx(&module, text_of(bytes), 0, NULL, NULL);
    if (IS("fat_binary")) return cuModuleLoadFatBinary(&module, text_of(bytes));
    if (IS("linked")) return linked(text_of(bytes));
    if (IS("library")) return cuLibraryLoadData(&library, text_of(bytes), NULL, NULL, 0, NULL, NULL, 0);
    if (IS("unload")) return cuModuleUnload(module);
    if (IS("library_unload")) return cuLibraryUnload(library);
    if (IS("is_none")) return module != NULL || library != NULL;
    /* A function that was not launched. */
    if (IS("function")) return cuModuleGetFunction(&function, module, "nothing");
    if (IS("functions")) return cuModuleEnumerateFunctions(&function, 1, module);
    if (IS("kernel")) return FIRST(cuLibraryGetKernel(&kernel, library, "nothing"), (function = kernel, 0));
    if (IS("kernels")) return FIRST(cuLibraryEnumerateKernels(&kernel, 1, library), (function = kernel, 0));
    if (IS("kernel_function")) return FIRST(cuLibraryGetKernel(&kernel, library, "nothing"), cuKernelGetFunction(&function, kernel));
    /* Its first use. */
    if (IS("global")) return cuModuleGetGlobal_v2(&address, &found, module, "small");
    if (IS("load")) return cuFuncLoad(function);
    if (IS("launch")) return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    if (IS("cooperative")) return cuLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL);
    if (IS("launch_ex")) return cuLaunchKernelEx(&one, function, NULL, NULL);
    if (IS("launch_old")) return cuLaunch(function);
    if (IS("captured")) {
        result = cuStreamBeginCapture_v2(stream, 0);
        if (result == 0) result = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        CUresult ended = cuStreamEndCapture(stream, &graph);
        return result != 0 ? result : ended;
    }
    if (IS("graph")) return FIRST(cuGraphCreate(&graph, 0), cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &node_in));
    if (IS("graph_old")) return FIRST(cuGraphCreate(&graph, 0), cuGraphAddKernelNode(&node, graph, NULL, 0, &node_in));
    if (IS("graph_any")) return FIRST(cuGraphCreate(&graph, 0), cuGraphAddNode(&node, graph, NULL, 0, &any_in));
    if (IS("change")) return cuGraphKernelNodeSetParams_v2(node, &node_in);
    if (IS("change_old")) return cuGraphKernelNodeSetParams(node, &node_in);
    if (IS("change_any")) return cuGraphNodeSetParams(node, &any_in);
    if (IS("change_newest")) {
        CUresult (*set)(handle, any_node *) = NULL;
        int status;
        result = cuGetProcAddress_v2("cuGraphNodeSetParams", (void **)&set, 13040, 0, &status);
        return result != 0 ? result : set(node, &any_in);
    }
    if (IS("instantiate")) return cuGraphInstantiateWithFlags(&executable, graph, 0);
    if (IS("exchange")) return cuGraphExecKernelNodeSetParams_v2(executable, node, &node_in);
    if (IS("exchange_any")) return cuGraphExecNodeSetParams(executable, node, &any_in);
    if (IS("exchange_old")) return cuGraphExecKernelNodeSetParams(executable, node, &node_in);
    if (IS("update")) return cuGraphExecUpdate_v2(executable, graph, &update);
    if (IS("update_old")) return cuGraphExecUpdate(executable, graph, &node, &update.result);
    if (IS("graph_launch")) return cuGraphLaunch(executable, stream);
    if (IS("upload")) return cuGraphUpload(executable, stream);
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
