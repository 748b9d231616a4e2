//! The driver's own memory limits, by control group (`nvmlDeviceSetMemoryLimits_v1`, from CUDA 13.4 on): the calls, which
//! nvml-wrapper does not have, as safe functions.
//!
//! Never decides which group gets which limit.

#![allow(
    unsafe_code,
    reason = "calls into NVML by its C interface; nvml-wrapper lacks these two"
)]

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::libc;
use nvml_wrapper_sys::bindings::nvmlDevice_t;

use super::NvmlGpus;

/// No hard limit: the size of the GPU.
pub const NO_LIMIT: u64 = u64::MAX;

/// A control group's limits on a GPU, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupLimit {
    /// Memory that the driver keeps for the group; 0 is none.
    pub soft_bytes: u64,
    /// Memory that the group's processes cannot pass together, or [`NO_LIMIT`].
    pub hard_bytes: u64,
}

/// Why the driver limits no control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GroupLimitError {
    /// An older driver.
    #[error(
        "this driver has no limits for control groups (nvmlDeviceSetMemoryLimits_v1); they come with CUDA 13.4, driver 615"
    )]
    Missing,
    /// The GPU is not there.
    #[error("the driver does not find the GPU")]
    NoGpu,
    /// Only root may.
    #[error("the driver lets only root limit a control group")]
    NoPermission,
    /// A MIG instance, or a GPU in MIG mode.
    #[error("the driver limits no control group on this device, as on a MIG instance")]
    NotSupported,
    /// No control group of version 2.
    #[error("the driver does not accept the directory as a control group of version 2")]
    NoGroup,
    /// The kernel counts device memory, but not for this group.
    #[error(
        "the kernel does not count device memory for the control group: +dmem is missing in cgroup.subtree_control of the group above"
    )]
    NotCounted,
    /// Anything else.
    #[error("the driver answered {0}")]
    Code(u32),
}

impl GroupLimitError {
    fn of(code: u32) -> Result<(), Self> {
        match code {
            0 => Ok(()),
            2 => Err(Self::NoGroup),
            3 => Err(Self::NotSupported),
            4 => Err(Self::NoPermission),
            6 => Err(Self::NotCounted),
            13 => Err(Self::Missing),
            code => Err(Self::Code(code)),
        }
    }
}

#[repr(C)]
struct SetLimits {
    name_space: *const c_char,
    soft: u64,
    hard: u64,
}

type Set = unsafe extern "C" fn(nvmlDevice_t, *const SetLimits) -> u32;

/// The address of a function of the loaded NVML; null if it has none.
fn symbol(name: &CStr) -> *mut libc::c_void {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: the name ends in a zero. `RTLD_NOLOAD` loads nothing, so no code of the library runs.
    let library = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), flags) };
    if library.is_null() {
        return library;
    }
    // SAFETY: the handle is of the call above, and the name ends in a zero.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: the handle is of the call above; the caller's own handle keeps the library loaded.
    unsafe { libc::dlclose(library) };
    found
}

fn set_function() -> Option<Set> {
    let found = symbol(c"nvmlDeviceSetMemoryLimits_v1");
    if found.is_null() {
        return None;
    }
    // SAFETY: NVML exports this name with this signature (nvml.h of CUDA 13.4).
    Some(unsafe { std::mem::transmute::<*mut libc::c_void, Set>(found) })
}

/// Whether the driver of this machine can limit control groups. NVML is loaded for that and not started: it asks each GPU
/// when it starts, which takes tens of milliseconds, and seconds where no process keeps the driver awake.
#[must_use]
pub fn driver_has_group_limits() -> bool {
    // SAFETY: the name ends in a zero. Loading runs NVML's initialisers, as opening an `NvmlGpus` does. The handle is never
    // closed, so NVML is not unloaded and they run once.
    let library = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_LAZY) };
    !library.is_null() && set_function().is_some()
}

impl NvmlGpus {
    pub(super) fn has_group_limits(&self) -> bool {
        set_function().is_some()
    }

    pub(super) fn set_group_limit(
        &self,
        uuid: &str,
        group: &Path,
        limit: GroupLimit,
    ) -> Result<(), GroupLimitError> {
        let set = set_function().ok_or(GroupLimitError::Missing)?;
        let device = self.device(uuid).ok_or(GroupLimitError::NoGpu)?;
        let group =
            CString::new(group.as_os_str().as_bytes()).map_err(|_| GroupLimitError::NoGroup)?;
        let wanted = SetLimits {
            name_space: group.as_ptr(),
            soft: limit.soft_bytes,
            hard: limit.hard_bytes,
        };
        // SAFETY: only read out, and used within this call.
        let handle = unsafe { device.handle() };
        // SAFETY: the device is alive as long as its NVML, which self keeps; the structure is a local one, and its text
        // lives until the end of this function.
        GroupLimitError::of(unsafe { set(handle, &raw const wanted) })
    }
}
