/* The driver's calls that take and free memory, with their structures in NVIDIA's layout, for the programs
 * that try them all. */
#ifndef TAKERS_H
#define TAKERS_H
#include "descriptor.h"
#include "driver.h"

typedef void *handle;
typedef unsigned long long u64;
typedef struct { int type, id; } location;
typedef struct { location where; int flags; } access_desc;
typedef struct { int type, handles; location where; void *metadata; unsigned char flags[8]; } alloc_prop;
typedef struct { int type, handles; location where; void *attributes; size_t max; char reserved[56]; } pool_props;
typedef struct { pool_props pool; const access_desc *access; size_t count, bytes; CUdeviceptr pointer; } node_params;
typedef struct { int type, reserved[3]; node_params alloc; u64 rest[29 - sizeof(node_params) / 8]; u64 last; } any_node;
typedef struct { u64 flags; CUstream upload; handle error; int result; } instantiate_params;
typedef struct { int result; handle error, from; } update_info;
typedef struct { unsigned width, height, format, channels; } array_v1;
typedef struct { size_t width, height; unsigned format, channels; } array_desc;
typedef struct { unsigned width, height, depth, format, channels, flags; } array3d_v1;
typedef struct { size_t width, height, depth; unsigned format, channels, flags; } array3d_desc;
typedef struct { char bytes[64]; } name64;
typedef struct { int type; int pad; union { int fd; void *both[2]; } what; u64 size; unsigned flags, reserved[16]; } external_desc;
typedef struct { unsigned devices; size_t size; u64 handles, flags; } multicast_prop;
typedef struct {
    int type; handle array; int sub, pad; unsigned level, layer, x, y, z, w, h, d;
    int operation, handle_type; u64 memory, offset; unsigned devices, flags, reserved[2];
} map_info;
typedef struct { int type; char internal[92]; unsigned sm[5]; char rest[20]; void *next; } resource;

extern CUresult cuGetProcAddress_v2(const char *, void **, int, u64, int *);
extern CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
extern CUresult cuCtxSynchronize(void);
extern CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
extern CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
extern CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
extern CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, handle, CUstream);
extern CUresult cuMemPoolCreate(handle *, const pool_props *);
extern CUresult cuMemPoolSetAttribute(handle, int, void *);
extern CUresult cuMemPoolExportToShareableHandle(void *, handle, int, u64);
extern CUresult cuMemPoolExportPointer(name64 *, CUdeviceptr);
extern CUresult cuMemPoolImportFromShareableHandle(handle *, void *, int, u64);
extern CUresult cuMemPoolImportPointer(CUdeviceptr *, handle, name64 *);
extern CUresult cuMemCreate(u64 *, size_t, const alloc_prop *, u64);
extern CUresult cuMemRelease(u64);
extern CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, u64);
extern CUresult cuMemMap(CUdeviceptr, size_t, size_t, u64, u64);
extern CUresult cuMemUnmap(CUdeviceptr, size_t);
extern CUresult cuMemSetAccess(CUdeviceptr, size_t, const access_desc *, size_t);
extern CUresult cuMemExportToShareableHandle(void *, u64, int, u64);
extern CUresult cuMemImportFromShareableHandle(u64 *, void *, int);
extern CUresult cuIpcGetMemHandle(name64 *, CUdeviceptr);
extern CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, name64, unsigned);
extern CUresult cuArrayCreate_v2(handle *, const array_desc *);
extern CUresult cuArray3DCreate_v2(handle *, const array3d_desc *);
extern CUresult cuMipmappedArrayCreate(handle *, const array3d_desc *, unsigned);
extern CUresult cuGraphCreate(handle *, unsigned);
extern CUresult cuGraphAddMemAllocNode(handle *, handle, const handle *, size_t, node_params *);
extern CUresult cuGraphAddMemFreeNode(handle *, handle, const handle *, size_t, CUdeviceptr);
extern CUresult cuGraphAddChildGraphNode(handle *, handle, const handle *, size_t, handle);
extern CUresult cuGraphInstantiateWithFlags(handle *, handle, u64);
extern CUresult cuGraphLaunch(handle, CUstream);
extern CUresult cuGraphExecDestroy(handle);
extern CUresult cuGraphDestroy(handle);
extern CUresult cuStreamCreate(CUstream *, unsigned);
extern CUresult cuStreamBeginCapture_v2(CUstream, int);
extern CUresult cuStreamWaitValue32_v2(CUstream, CUdeviceptr, unsigned, unsigned);
extern CUresult cuMemsetD32_v2(CUdeviceptr, unsigned, size_t);
extern CUresult cuModuleLoadData(handle *, const void *);
extern CUresult cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
extern CUresult cuModuleGetFunction(handle *, handle, const char *);
extern CUresult cuLibraryLoadData(handle *, const void *, int *, void **, unsigned, int *, void **, unsigned);
extern CUresult cuLibraryGetModule(handle *, handle);
extern CUresult cuLibraryGetKernel(handle *, handle, const char *);
extern CUresult cuDeviceGetDevResource(CUdevice, resource *, int);
extern CUresult cuDevResourceGenerateDesc(handle *, resource *, unsigned);
extern CUresult cuGreenCtxCreate(handle *, handle, CUdevice, unsigned);
extern CUresult cuMulticastCreate(u64 *, const multicast_prop *);
extern CUresult cuMulticastAddDevice(u64, CUdevice);
extern CUresult cuMulticastBindMem(u64, size_t, u64, size_t, size_t, u64);
extern CUresult cuImportExternalMemory(handle *, const external_desc *);

#endif
