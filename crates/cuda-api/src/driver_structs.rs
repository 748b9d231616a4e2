//! The driver's structures that our code reads or writes, in the layout of its callers. Plain values, all `Copy`;
//! structures that we do not read are passed as bare pointers.
#![allow(
    missing_docs,
    reason = "the fields are CUDA's own, and its documentation describes them"
)]

use crate::driver_types::*;

/// States the size and the offsets of a structure beside it: a change that moves a field does not compile.
macro_rules! assert_layout {
    ($name:ty: size $size:literal $(, $field:ident @ $offset:literal)*) => {
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };
    };
}

macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty),* $(,)? } size $size:literal $(, $at:ident @ $offset:literal)*;)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name { $(pub $field: $ty),* }
        assert_layout!($name: size $size $(, $at @ $offset)*);

        impl $name {
            /// All bytes zero, as a C caller's `memset` leaves it.
            #[must_use]
            pub const fn zeroed() -> Self {
                // SAFETY: every field is a number, an array of numbers, a pointer or a union of
                // those; all zeroes is a value of each.
                unsafe { core::mem::zeroed() }
            }
        }
    )*};
}

structs! {
    /// A device's identity, 16 bytes.
    CuUuid { bytes: [u8; 16] } size 16;
    /// Names device memory to another process.
    CuIpcMemHandle { reserved: [u8; 64] } size 64;
    /// Names an event to another process.
    CuIpcEventHandle { reserved: [u8; 64] } size 64;

    /// An array before driver 3.2: 32-bit sizes.
    CuArrayDescriptorV1 { width: u32, height: u32, format: CuArrayFormat, num_channels: u32 } size 16;
    CuArrayDescriptor { width: usize, height: usize, format: CuArrayFormat, num_channels: u32 } size 24, num_channels @ 20;
    /// A 3D array before driver 3.2: 32-bit sizes.
    CuArray3DDescriptorV1 { width: u32, height: u32, depth: u32, format: CuArrayFormat, num_channels: u32, flags: u32 } size 24;
    CuArray3DDescriptor { width: usize, height: usize, depth: usize, format: CuArrayFormat, num_channels: u32, flags: u32 } size 40, flags @ 32;
    CuArrayMemoryRequirements { size: usize, alignment: usize, reserved: [u32; 4] } size 32;
    CuArraySparseProperties { tile_width: u32, tile_height: u32, tile_depth: u32, miptail_first_level: u32, miptail_size: u64, flags: u32, reserved: [u32; 4] } size 48, miptail_size @ 16;

    /// A 2D copy before driver 3.2: 32-bit sizes and addresses.
    CuMemcpy2DV1 {
        src_x_bytes: u32, src_y: u32, src_memory_type: CuMemoryType, src_host: *const c_void, src_device: u32, src_array: CuArray, src_pitch: u32,
        dst_x_bytes: u32, dst_y: u32, dst_memory_type: CuMemoryType, dst_host: *mut c_void, dst_device: u32, dst_array: CuArray, dst_pitch: u32,
        width_bytes: u32, height: u32,
    } size 96;
    CuMemcpy2D {
        src_x_bytes: usize, src_y: usize, src_memory_type: CuMemoryType, src_host: *const c_void, src_device: CuDevicePtr, src_array: CuArray, src_pitch: usize,
        dst_x_bytes: usize, dst_y: usize, dst_memory_type: CuMemoryType, dst_host: *mut c_void, dst_device: CuDevicePtr, dst_array: CuArray, dst_pitch: usize,
        width_bytes: usize, height: usize,
    } size 128;
    /// A 3D copy before driver 3.2: 32-bit sizes and addresses.
    CuMemcpy3DV1 {
        src_x_bytes: u32, src_y: u32, src_z: u32, src_lod: u32, src_memory_type: CuMemoryType, src_host: *const c_void, src_device: u32, src_array: CuArray, reserved0: *mut c_void, src_pitch: u32, src_height: u32,
        dst_x_bytes: u32, dst_y: u32, dst_z: u32, dst_lod: u32, dst_memory_type: CuMemoryType, dst_host: *mut c_void, dst_device: u32, dst_array: CuArray, reserved1: *mut c_void, dst_pitch: u32, dst_height: u32,
        width_bytes: u32, height: u32, depth: u32,
    } size 144;
    CuMemcpy3D {
        src_x_bytes: usize, src_y: usize, src_z: usize, src_lod: usize, src_memory_type: CuMemoryType, src_host: *const c_void, src_device: CuDevicePtr, src_array: CuArray, reserved0: *mut c_void, src_pitch: usize, src_height: usize,
        dst_x_bytes: usize, dst_y: usize, dst_z: usize, dst_lod: usize, dst_memory_type: CuMemoryType, dst_host: *mut c_void, dst_device: CuDevicePtr, dst_array: CuArray, reserved1: *mut c_void, dst_pitch: usize, dst_height: usize,
        width_bytes: usize, height: usize, depth: usize,
    } size 200;
    /// `CuMemcpy3D` with a context for each side in place of the reserved words.
    CuMemcpy3DPeer {
        src_x_bytes: usize, src_y: usize, src_z: usize, src_lod: usize, src_memory_type: CuMemoryType, src_host: *const c_void, src_device: CuDevicePtr, src_array: CuArray, src_context: CuContext, src_pitch: usize, src_height: usize,
        dst_x_bytes: usize, dst_y: usize, dst_z: usize, dst_lod: usize, dst_memory_type: CuMemoryType, dst_host: *mut c_void, dst_device: CuDevicePtr, dst_array: CuArray, dst_context: CuContext, dst_pitch: usize, dst_height: usize,
        width_bytes: usize, height: usize, depth: usize,
    } size 200;
    CuMemcpyAttributes { src_access_order: u32, src_location: CuMemLocation, dst_location: CuMemLocation, flags: u32 } size 24;

    CuMemLocation { kind: CuMemLocationType, id: i32 } size 8;
    CuMemAccessDesc { location: CuMemLocation, flags: CuMemAccessFlags } size 12;
    CuMemAllocationProp {
        kind: CuMemAllocationType, requested_handle_types: CuMemAllocationHandleType, location: CuMemLocation, win32_metadata: *mut c_void,
        compression_type: u8, gpu_direct_rdma_capable: u8, usage: u16, reserved: [u8; 4],
    } size 32, win32_metadata @ 16, usage @ 26;
    CuMemPoolProps {
        kind: CuMemAllocationType, handle_types: CuMemAllocationHandleType, location: CuMemLocation, win32_attributes: *mut c_void,
        max_size: usize, usage: u16, reserved: [u8; 54],
    } size 88, max_size @ 24, usage @ 32;
    CuMemPoolPtrExportData { reserved: [u8; 64] } size 64;
    CuMulticastObjectProp { num_devices: u32, size: usize, handle_types: u64, flags: u64 } size 32;
    CuExternalMemoryHandleDesc { kind: u32, handle: CuExternalHandle, size: u64, flags: u32, reserved: [u32; 16] } size 104, handle @ 8, size @ 24;
    CuExternalMemoryBufferDesc { offset: u64, size: u64, flags: u32, reserved: [u32; 16] } size 88;
    CuExternalMemoryMipmappedArrayDesc { offset: u64, array: CuArray3DDescriptor, num_levels: u32, reserved: [u32; 16] } size 120;
    /// Same layout as the semaphore's handle; only the descriptor's kind and handle are read.
    CuExternalSemaphoreHandleDesc { kind: u32, handle: CuExternalHandle, flags: u32, reserved: [u32; 16] } size 96;

    CuLaunchConfig {
        grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32,
        stream: CuStream, attributes: *mut CuLaunchAttribute, num_attributes: u32,
    } size 56, stream @ 32;
    CuLaunchAttribute { id: CuLaunchAttributeId, pad: [u8; 4], value: CuLaunchAttributeValue } size 72, value @ 8;
    /// Sixty-four bytes whose meaning the attribute's id gives.
    CuLaunchAttributeValue { words: [u64; 8] } size 64;
    CuLaunchParams {
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32,
        stream: CuStream, params: *mut *mut c_void,
    } size 56, stream @ 40;

    CuKernelNodeParamsV1 {
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32,
        params: *mut *mut c_void, extra: *mut *mut c_void,
    } size 56;
    CuKernelNodeParams {
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32,
        params: *mut *mut c_void, extra: *mut *mut c_void, kernel: CuKernel, context: CuContext,
    } size 72;
    CuMemsetNodeParams { dst: CuDevicePtr, pitch: usize, value: u32, element_size: u32, width: usize, height: usize } size 40;
    /// As inside `CuGraphNodeParams`: with its context.
    CuMemsetNodeParamsV2 { dst: CuDevicePtr, pitch: usize, value: u32, element_size: u32, width: usize, height: usize, context: CuContext } size 48;
    /// As inside `CuGraphNodeParams`.
    CuMemcpyNodeParams { flags: i32, reserved: i32, context: CuContext, copy: CuMemcpy3D } size 216, copy @ 16;
    CuHostNodeParams { callback: CuHostFn, data: *mut c_void } size 16;
    CuMemAllocNodeParams { pool: CuMemPoolProps, access: *const CuMemAccessDesc, access_count: usize, bytes: usize, ptr: CuDevicePtr } size 120, bytes @ 104, ptr @ 112;
    CuChildGraphNodeParams { graph: CuGraph, ownership: u32 } size 16;
    CuConditionalNodeParams { handle: u64, kind: u32, size: u32, graphs_out: *mut CuGraph, context: CuContext } size 32;
    CuBatchMemOpNodeParams { context: CuContext, count: u32, ops: *mut CuStreamBatchMemOpParams, flags: u32 } size 32;
    /// A node of any kind: `words` is read as the structure that `kind` names, see [`CuGraphNodeParams::body`].
    CuGraphNodeParams { kind: CuGraphNodeType, reserved0: [i32; 3], words: [u64; 29], reserved2: i64 } size 256, words @ 16;
    CuGraphInstantiateParams { flags: u64, upload_stream: CuStream, error_node: CuGraphNode, result: u32 } size 32;
    CuGraphEdgeData { from_port: u8, to_port: u8, kind: u8, reserved: [u8; 5] } size 8;
    CuGraphExecUpdateResultInfo { result: CuGraphExecUpdateResult, error_node: CuGraphNode, error_from_node: CuGraphNode } size 24;
    /// One operation of a batch. `value` holds 32 or 64 bits as the operation says.
    CuStreamBatchMemOpParams { operation: u32, address: CuDevicePtr, value: u64, flags: u32, alias: CuDevicePtr, reserved: u64 } size 48, address @ 8, value @ 16, flags @ 24;

    CuExecAffinityParam { kind: CuExecAffinityType, sm_count: u32 } size 8;
    CuCtxCreateParams { affinity: *mut CuExecAffinityParam, num_affinity: i32, cig: *mut c_void } size 24;
    /// A share of a device; `sm` counts when `kind` is 1 (SM).
    CuDevResource { kind: CuDevResourceType, internal: [u8; 92], sm: CuDevSmResource, pad: [u8; 20], next: *mut CuDevResource } size 144, sm @ 96, next @ 136;
    /// Drivers before 13 write the first three words only.
    CuDevSmResource { sm_count: u32, min_partition: u32, alignment: u32, flags: u32, locality_domain: u32 } size 20;
    CuDevSmResourceGroupParams { sm_count: u32, coscheduled: u32, preferred_coscheduled: u32, flags: u32, locality_domain: u32, reserved: [u32; 11] } size 64;
    /// The properties that drivers reported before attributes existed.
    CuDevprop {
        max_threads_per_block: i32, max_threads_dim: [i32; 3], max_grid_size: [i32; 3], shared_mem_per_block: i32,
        total_constant_memory: i32, simd_width: i32, mem_pitch: i32, regs_per_block: i32, clock_rate: i32, texture_align: i32,
    } size 56;
}

/// The operating system's handle of foreign memory: the kind says which.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CuExternalHandle {
    pub fd: i32,
    pub win32: [*const c_void; 2],
}

impl CuGraphNodeParams {
    /// The structure inside, to be read as `T`; the caller has looked at `kind`.
    #[must_use]
    pub const fn body<T: Copy>(&self) -> *const T {
        const { assert!(size_of::<T>() <= 29 * 8) };
        self.words.as_ptr().cast::<T>()
    }

    /// The structure inside, to be written as `T`.
    #[must_use]
    pub const fn body_mut<T: Copy>(&mut self) -> *mut T {
        const { assert!(size_of::<T>() <= 29 * 8) };
        self.words.as_mut_ptr().cast::<T>()
    }
}
