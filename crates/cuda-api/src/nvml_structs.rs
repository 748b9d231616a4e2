//! NVML's structures in C's layout, as far as a hook or the simulated library reads or writes them. Plain values; the
//! caller knows the owner of the memory behind a pointer.

use crate::nvml_types::{
    NO_INSTANCE, NvmlDevice, NvmlGpuInstance, NvmlReturn, c_char, struct_version,
};

macro_rules! structs {
    ($($(#[$doc:meta])* struct $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* } size $size:literal;)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, PartialEq, Debug)]
        pub struct $name { $($(#[$field_doc])* pub $field: $ty,)* }
        // The size that a C compiler gives the same declaration on 64-bit Linux.
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

structs! {
    /// Memory of a device, in bytes: what `nvmlDeviceGetMemoryInfo` fills.
    struct NvmlMemory {
        /// All of it.
        total: u64,
        /// Not in use.
        free: u64,
        /// Used, the driver's reserve included.
        used: u64,
    } size 24;

    /// Memory of a device, in bytes, with the driver's reserve apart.
    struct NvmlMemoryV2 {
        /// [`NvmlMemoryV2::VERSION`], set by the caller.
        version: u32,
        /// All of it.
        total: u64,
        /// Kept by driver and firmware.
        reserved: u64,
        /// Not in use.
        free: u64,
        /// Used, without the reserve.
        used: u64,
    } size 40;

    /// The window through which the CPU sees device memory, in bytes.
    struct NvmlBar1Memory {
        /// All of it.
        total: u64,
        /// Not mapped.
        free: u64,
        /// Mapped.
        used: u64,
    } size 24;

    /// A process on a device, first version.
    struct NvmlProcessInfoV1 {
        /// Process id in the namespace of the driver (the host's).
        pid: u32,
        /// Device memory in bytes, or [`crate::nvml_types::VALUE_NOT_AVAILABLE`].
        used_gpu_memory: u64,
    } size 16;

    /// A process on a device, second and third version.
    struct NvmlProcessInfo {
        /// Process id in the namespace of the driver (the host's).
        pid: u32,
        /// Device memory in bytes, or [`crate::nvml_types::VALUE_NOT_AVAILABLE`].
        used_gpu_memory: u64,
        /// MIG GPU instance, or [`NO_INSTANCE`].
        gpu_instance_id: u32,
        /// MIG compute instance, or [`NO_INSTANCE`].
        compute_instance_id: u32,
    } size 24;

    /// A process in a detail list.
    struct NvmlProcessDetail {
        /// Process id in the namespace of the driver (the host's).
        pid: u32,
        /// Device memory in bytes, or [`crate::nvml_types::VALUE_NOT_AVAILABLE`].
        used_gpu_memory: u64,
        /// MIG GPU instance, or [`NO_INSTANCE`].
        gpu_instance_id: u32,
        /// MIG compute instance, or [`NO_INSTANCE`].
        compute_instance_id: u32,
        /// Memory under confidential computing's protection, in bytes.
        used_gpu_cc_protected_memory: u64,
    } size 32;

    /// The request and the answer of `nvmlDeviceGetRunningProcessDetailList`.
    struct NvmlProcessDetailList {
        /// [`NvmlProcessDetailList::VERSION`], set by the caller.
        version: u32,
        /// 0 compute, 1 graphics, 2 MPS.
        mode: u32,
        /// Room in the array before the call, entries after it.
        count: u32,
        /// The caller's array.
        array: *mut NvmlProcessDetail,
    } size 24;

    /// How busy a device was in its last sampling period, in percent.
    struct NvmlUtilization {
        /// Time in which any kernel ran.
        gpu: u32,
        /// Time in which memory was read or written.
        memory: u32,
    } size 8;

    /// How busy a process kept a device in one sampling period, in percent.
    struct NvmlProcessUtilizationSample {
        /// Process id in the namespace of the driver (the host's).
        pid: u32,
        /// CPU time of the sample, microseconds since the epoch.
        time_stamp: u64,
        /// Multiprocessors.
        sm_util: u32,
        /// Memory.
        mem_util: u32,
        /// Encoder.
        enc_util: u32,
        /// Decoder.
        dec_util: u32,
    } size 32;

    /// The same for `nvmlDeviceGetProcessesUtilizationInfo`, with two engines more.
    struct NvmlProcessUtilizationInfo {
        /// CPU time of the sample, microseconds since the epoch.
        time_stamp: u64,
        /// Process id in the namespace of the driver (the host's).
        pid: u32,
        /// Multiprocessors.
        sm_util: u32,
        /// Memory.
        mem_util: u32,
        /// Encoder.
        enc_util: u32,
        /// Decoder.
        dec_util: u32,
        /// JPEG decoder.
        jpg_util: u32,
        /// Optical flow.
        ofa_util: u32,
    } size 40;

    /// The request and the answer of `nvmlDeviceGetProcessesUtilizationInfo`.
    struct NvmlProcessesUtilizationInfo {
        /// [`NvmlProcessesUtilizationInfo::VERSION`], set by the caller.
        version: u32,
        /// Room in the array before the call, entries after it.
        count: u32,
        /// Only samples after this time are asked for, microseconds since the epoch.
        last_seen: u64,
        /// The caller's array.
        array: *mut NvmlProcessUtilizationInfo,
    } size 24;

    /// One sample of `nvmlDeviceGetSamples`.
    struct NvmlSample {
        /// CPU time of the sample, microseconds since the epoch.
        time_stamp: u64,
        /// The value; its type is given beside the array.
        value: NvmlValue,
    } size 16;

    /// A device's address on the PCI bus, for `nvmlDeviceGetPciInfo_v3`.
    struct NvmlPciInfo {
        /// Bus id with a domain of four digits.
        bus_id_legacy: [c_char; 16],
        /// Domain.
        domain: u32,
        /// Bus.
        bus: u32,
        /// Device on the bus.
        device: u32,
        /// Device and vendor id.
        device_id: u32,
        /// Subsystem ids.
        subsystem_id: u32,
        /// Bus id with a domain of eight digits.
        bus_id: [c_char; 32],
    } size 68;

    /// The same, as of the unversioned `nvmlDeviceGetPciInfo`.
    struct NvmlPciInfoV1 {
        /// Bus id with a domain of four digits.
        bus_id: [c_char; 16],
        /// Domain.
        domain: u32,
        /// Bus.
        bus: u32,
        /// Device on the bus.
        device: u32,
        /// Device and vendor id.
        device_id: u32,
    } size 32;

    /// The same, as of `nvmlDeviceGetPciInfo_v2`.
    struct NvmlPciInfoV2 {
        /// Bus id with a domain of four digits.
        bus_id: [c_char; 16],
        /// Domain.
        domain: u32,
        /// Bus.
        bus: u32,
        /// Device on the bus.
        device: u32,
        /// Device and vendor id.
        device_id: u32,
        /// Subsystem ids.
        subsystem_id: u32,
        /// For the driver's own use.
        reserved: [u32; 4],
    } size 52;

    /// The same with the PCI class, as of `nvmlDeviceGetPciInfoExt`.
    struct NvmlPciInfoExt {
        /// [`NvmlPciInfoExt::VERSION`], set by the caller.
        version: u32,
        /// Domain.
        domain: u32,
        /// Bus.
        bus: u32,
        /// Device on the bus.
        device: u32,
        /// Device and vendor id.
        device_id: u32,
        /// Subsystem ids.
        subsystem_id: u32,
        /// Class: 3 is a display controller.
        base_class: u32,
        /// Subclass: 2 is a 3D controller.
        sub_class: u32,
        /// Bus id with a domain of eight digits.
        bus_id: [c_char; 32],
    } size 64;

    /// The figures of a process in accounting mode.
    struct NvmlAccountingStats {
        /// Percent of its life in which one of its kernels ran.
        gpu_utilization: u32,
        /// Percent of its life in which it used memory.
        memory_utilization: u32,
        /// The most memory that it held, in bytes.
        max_memory_usage: u64,
        /// Milliseconds that it has had a context.
        time: u64,
        /// When it began, microseconds since the epoch.
        start_time: u64,
        /// 1 while it lives.
        is_running: u32,
        /// For later.
        reserved: [u32; 5],
    } size 56;

    /// The figures of a process in accounting mode, for drivers from CUDA 13.3 on.
    struct NvmlAccountingStatsV2 {
        /// The process that is asked about, set by the caller.
        pid: u32,
        /// 1 while it lives.
        is_running: u32,
        /// Percent of its life in which one of its kernels ran.
        gpu_utilization: u32,
        /// Percent of its life in which it used memory.
        memory_utilization: u32,
        /// The most memory that it held, in bytes.
        max_memory_usage: u64,
        /// Samples since it began.
        sample_count: u32,
        /// Sum of its use of the multiprocessors, in hundredths of a percent.
        sum_gpu_util: u64,
        /// Sum of its use of the memory's bandwidth, in hundredths of a percent.
        sum_fb_util: u64,
        /// Milliseconds that it has had a context.
        time: u64,
        /// When it began, microseconds since the epoch.
        start_time: u64,
    } size 64;

    /// The memory limits of a control group on a device.
    struct NvmlMemoryLimits {
        /// The directory of the control group, set by the caller.
        name_space: *const c_char,
        /// Bytes that are guaranteed; 0 is none.
        soft_limit: u64,
        /// Bytes that the group cannot pass, or `MEMORY_LIMIT_MAX`.
        hard_limit: u64,
        /// Bytes that count against the limits.
        current_used: u64,
    } size 32;

    /// The memory limits that a control group gets on a device.
    struct NvmlSetMemoryLimits {
        /// The directory of the control group.
        name_space: *const c_char,
        /// Bytes that are guaranteed; 0 is none.
        soft_limit: u64,
        /// Bytes that the group cannot pass, or `MEMORY_LIMIT_MAX`.
        hard_limit: u64,
    } size 24;

    /// Which structured events of a GPU a program waits for.
    struct NvmlOperationalEventConfig {
        /// The GPU's UUID, `GPU-…`, with a closing zero.
        uuid: [c_char; 96],
        /// The lowest level of the log; 0 is every one.
        min_log_level: u32,
        /// The least severity; 0 is every one.
        min_severity: u32,
    } size 104;

    /// The UUID of a device, as text or as its 16 bytes.
    struct NvmlUuid {
        /// [`NvmlUuid::VERSION`].
        version: u32,
        /// `UUID_ASCII` or `UUID_BINARY`.
        kind: u32,
        /// Text with a closing zero, or 16 bytes.
        value: [u8; 41],
    } size 52;

    /// The shape of a MIG device.
    struct NvmlDeviceAttributes {
        /// Multiprocessors.
        multiprocessor_count: u32,
        /// Copy engines, shared with siblings.
        shared_copy_engine_count: u32,
        /// Decoders.
        shared_decoder_count: u32,
        /// Encoders.
        shared_encoder_count: u32,
        /// JPEG engines.
        shared_jpeg_count: u32,
        /// Optical flow engines.
        shared_ofa_count: u32,
        /// Slices of the GPU instance.
        gpu_instance_slice_count: u32,
        /// Slices of the compute instance.
        compute_instance_slice_count: u32,
        /// Memory, in MiB.
        memory_size_mib: u64,
    } size 40;

    /// One question and answer of `nvmlDeviceGetFieldValues`.
    struct NvmlFieldValue {
        /// The requested field.
        field_id: u32,
        /// The link, memory or other part that it is about.
        scope_id: u32,
        /// When it was read, microseconds since the epoch.
        timestamp: i64,
        /// How long reading took, in microseconds.
        latency_us: i64,
        /// Which kind the value is, see [`NvmlValue`].
        value_type: u32,
        /// Whether there is a value.
        result: NvmlReturn,
        /// The value.
        value: NvmlValue,
    } size 40;

    /// An event that a set waited for.
    struct NvmlEventData {
        /// The device.
        device: NvmlDevice,
        /// One bit: which kind.
        event_type: u64,
        /// For an XID event, the XID.
        event_data: u64,
        /// MIG GPU instance, or [`NO_INSTANCE`].
        gpu_instance_id: u32,
        /// MIG compute instance, or [`NO_INSTANCE`].
        compute_instance_id: u32,
    } size 32;

    /// How long a device ran slower for some reason.
    struct NvmlViolationTime {
        /// CPU time of the reading, microseconds since the epoch.
        reference_time: u64,
        /// Nanoseconds in violation.
        violation_time: u64,
    } size 16;

    /// How many banks have how many spare rows left.
    struct NvmlRowRemapperHistogram {
        /// All spare rows left.
        max: u32,
        /// Many.
        high: u32,
        /// Some.
        partial: u32,
        /// Few.
        low: u32,
        /// None.
        none: u32,
    } size 20;

    /// A legacy interconnect card.
    struct NvmlHwbcEntry {
        /// Its id.
        id: u32,
        /// Its firmware.
        firmware_version: [c_char; 32],
    } size 36;

    /// A profile of GPU instances into which a GPU can be divided.
    struct NvmlGpuInstanceProfileInfo {
        /// Its id.
        id: u32,
        /// 1 when peers can be reached from it.
        is_p2p_supported: u32,
        /// Slices that it takes.
        slice_count: u32,
        /// The number that fits on an empty GPU.
        instance_count: u32,
        /// Multiprocessors.
        multiprocessor_count: u32,
        /// Copy engines.
        copy_engine_count: u32,
        /// Decoders.
        decoder_count: u32,
        /// Encoders.
        encoder_count: u32,
        /// JPEG engines.
        jpeg_count: u32,
        /// Optical flow engines.
        ofa_count: u32,
        /// Memory, in MiB.
        memory_size_mib: u64,
    } size 48;

    /// The same with a name.
    struct NvmlGpuInstanceProfileInfoV2 {
        /// [`NvmlGpuInstanceProfileInfoV2::VERSION`], set by the caller.
        version: u32,
        /// Its id.
        id: u32,
        /// 1 when peers can be reached from it.
        is_p2p_supported: u32,
        /// Slices that it takes.
        slice_count: u32,
        /// The number that fits on an empty GPU.
        instance_count: u32,
        /// Multiprocessors.
        multiprocessor_count: u32,
        /// Copy engines.
        copy_engine_count: u32,
        /// Decoders.
        decoder_count: u32,
        /// Encoders.
        encoder_count: u32,
        /// JPEG engines.
        jpeg_count: u32,
        /// Optical flow engines.
        ofa_count: u32,
        /// Memory, in MiB.
        memory_size_mib: u64,
        /// "MIG 1g.5gb".
        name: [c_char; 96],
    } size 152;

    /// The placement of an instance on a GPU (in slices of its memory) or on a GPU instance (in slices of compute).
    struct NvmlInstancePlacement {
        /// First slice.
        start: u32,
        /// Number of slices.
        size: u32,
    } size 8;

    /// A GPU instance.
    struct NvmlGpuInstanceInfo {
        /// The GPU.
        device: NvmlDevice,
        /// Its id on that GPU.
        id: u32,
        /// Id of its profile.
        profile_id: u32,
        /// Its placement.
        placement: NvmlInstancePlacement,
    } size 24;

    /// A compute instance.
    struct NvmlComputeInstanceInfo {
        /// The GPU.
        device: NvmlDevice,
        /// The GPU instance.
        gpu_instance: NvmlGpuInstance,
        /// Its id on that GPU instance.
        id: u32,
        /// Id of its profile.
        profile_id: u32,
        /// Its placement.
        placement: NvmlInstancePlacement,
    } size 32;

    /// A shape that a compute instance can have.
    struct NvmlComputeInstanceProfileInfo {
        /// Id of the profile.
        id: u32,
        /// Slices of compute.
        slice_count: u32,
        /// How many fit into the GPU instance.
        instance_count: u32,
        /// Multiprocessors.
        multiprocessor_count: u32,
        /// Copy engines, shared.
        shared_copy_engine_count: u32,
        /// Decoders, shared.
        shared_decoder_count: u32,
        /// Encoders, shared.
        shared_encoder_count: u32,
        /// JPEG engines, shared.
        shared_jpeg_count: u32,
        /// Optical flow engines, shared.
        shared_ofa_count: u32,
    } size 36;

    /// Whether a device has the GPM counters.
    struct NvmlGpmSupport {
        /// 1, set by the caller.
        version: u32,
        /// 1 when it has them.
        is_supported: u32,
    } size 8;
}

macro_rules! versions {
    ($($name:ident = $version:literal;)*) => {$(
        impl $name {
            /// The version word that a caller sets.
            pub const VERSION: u32 = struct_version::<$name>($version);
        }
    )*};
}

versions! {
    NvmlMemoryV2 = 2;
    NvmlProcessDetailList = 1;
    NvmlProcessesUtilizationInfo = 1;
    NvmlPciInfoExt = 1;
    NvmlGpuInstanceProfileInfoV2 = 2;
    NvmlUuid = 1;
}

/// A value whose type is given elsewhere: C's union, kept as its eight bytes so that no reader has to read a union.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NvmlValue(pub u64);

impl NvmlValue {
    /// Kind 0: a floating-point number.
    pub const DOUBLE: u32 = 0;
    /// Kind 1: 32 bits without a sign.
    pub const UNSIGNED_INT: u32 = 1;
    /// Kind 3: 64 bits without a sign.
    pub const UNSIGNED_LONG_LONG: u32 = 3;
}

/// The operations that the hooks need on every version of the process list.
pub trait ProcessEntry: Copy {
    /// An entry for a process that runs on no MIG instance.
    fn new(pid: u32, used_gpu_memory: u64) -> Self;
    /// The process id.
    fn pid(&self) -> u32;
    /// Device memory in bytes.
    fn memory(&self) -> u64;
    /// The same entry (its MIG instances too) with another pid and memory.
    #[must_use]
    fn with(self, pid: u32, used_gpu_memory: u64) -> Self;
    /// The same entry on a MIG instance, where this version can say so.
    #[must_use]
    fn on_instance(self, gpu_instance_id: u32, compute_instance_id: u32) -> Self;
}

impl ProcessEntry for NvmlProcessInfoV1 {
    fn new(pid: u32, used_gpu_memory: u64) -> Self {
        NvmlProcessInfoV1 {
            pid,
            used_gpu_memory,
        }
    }
    fn pid(&self) -> u32 {
        self.pid
    }
    fn memory(&self) -> u64 {
        self.used_gpu_memory
    }
    fn with(self, pid: u32, used_gpu_memory: u64) -> Self {
        NvmlProcessInfoV1 {
            pid,
            used_gpu_memory,
        }
    }
    fn on_instance(self, _gpu_instance_id: u32, _compute_instance_id: u32) -> Self {
        self
    }
}

impl ProcessEntry for NvmlProcessInfo {
    fn new(pid: u32, used_gpu_memory: u64) -> Self {
        NvmlProcessInfo {
            pid,
            used_gpu_memory,
            gpu_instance_id: NO_INSTANCE,
            compute_instance_id: NO_INSTANCE,
        }
    }
    fn pid(&self) -> u32 {
        self.pid
    }
    fn memory(&self) -> u64 {
        self.used_gpu_memory
    }
    fn with(self, pid: u32, used_gpu_memory: u64) -> Self {
        NvmlProcessInfo {
            pid,
            used_gpu_memory,
            ..self
        }
    }
    fn on_instance(self, gpu_instance_id: u32, compute_instance_id: u32) -> Self {
        NvmlProcessInfo {
            gpu_instance_id,
            compute_instance_id,
            ..self
        }
    }
}

impl ProcessEntry for NvmlProcessDetail {
    fn new(pid: u32, used_gpu_memory: u64) -> Self {
        NvmlProcessDetail {
            pid,
            used_gpu_memory,
            gpu_instance_id: NO_INSTANCE,
            compute_instance_id: NO_INSTANCE,
            used_gpu_cc_protected_memory: 0,
        }
    }
    fn pid(&self) -> u32 {
        self.pid
    }
    fn memory(&self) -> u64 {
        self.used_gpu_memory
    }
    fn with(self, pid: u32, used_gpu_memory: u64) -> Self {
        NvmlProcessDetail {
            pid,
            used_gpu_memory,
            ..self
        }
    }
    fn on_instance(self, gpu_instance_id: u32, compute_instance_id: u32) -> Self {
        NvmlProcessDetail {
            gpu_instance_id,
            compute_instance_id,
            ..self
        }
    }
}
