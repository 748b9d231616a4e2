//! Partitions of a GPU in MIG mode: the profiles that it offers, its instances, creating and destroying one.
//! The calls that nvml-wrapper lacks, through its own bindings, as safe functions.
//!
//! Never decides which instance is created where, and never keeps a handle: an instance is identified by its
//! ids, and looked up in each call.

#![allow(
    unsafe_code,
    reason = "calls into NVML by its C interface; nvml-wrapper has none for instances"
)]

use std::ffi::CStr;
use std::ptr;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstanceProfileInfo_t,
    nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_v2_t,
};

/// A shape that a GPU can be cut into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The driver's id of it on this GPU.
    pub id: u32,
    /// Its name, as `nvidia-smi mig -lgip` has it without the word MIG: `1g.10gb`, `1g.10gb+me`.
    pub name: String,
    /// Slices of compute.
    pub slices: u32,
    /// How many fit on the GPU.
    pub most: u32,
    /// Memory of one, MiB.
    pub memory_mib: u64,
    /// Where one can lie, in slices of memory: first slice and number of slices. Empty if the driver does not say, as
    /// before the GPU is in MIG mode.
    pub placements: Vec<(u32, u32)>,
}

/// A GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInstance {
    /// Its id on the GPU.
    pub id: u32,
    /// The id of its profile.
    pub profile: u32,
    /// First slice of memory.
    pub start: u32,
    /// Number of slices of memory.
    pub size: u32,
    /// Ids of its compute instances.
    pub compute: Vec<u32>,
}

// NVML numbers the kinds of profiles: 17 of GPU instances and 8 of compute instances today; the next driver may have
// more, and returns an error for a number that it does not know.
const PROFILE_KINDS: u32 = 32;
const COMPUTE_KINDS: u32 = 16;
/// The one kind of engines that NVML knows.
const ENGINES_SHARED: u32 = 0;
/// More of anything is not believed of a GPU.
const MOST: u32 = 64;

/// The shapes that the GPU offers; empty if it cannot be split.
///
/// # Errors
/// The GPU is lost, or NVML fails otherwise.
pub fn profiles(device: &Device<'_>) -> Result<Vec<Profile>, NvmlError> {
    let mut profiles: Vec<Profile> = Vec::new();
    for kind in 0..PROFILE_KINDS {
        let info = match device.profile_info(kind) {
            Ok(info) => info,
            // A kind that this GPU, or this driver, does not have.
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => continue,
            Err(error) => return Err(error),
        };
        if profiles.iter().any(|known| known.id == info.id) {
            continue;
        }
        let gib = info.memory_size_mb.div_ceil(1024);
        profiles.push(Profile {
            id: info.id,
            name: profile_name(device, kind)
                .unwrap_or_else(|| format!("{}g.{gib}gb", info.slice_count)),
            slices: info.slice_count,
            most: info.instance_count,
            memory_mib: info.memory_size_mb,
            placements: placements(device, info.id)?,
        });
    }
    Ok(profiles)
}

/// The profile's name; `None` if the driver is too old to say.
fn profile_name(device: &Device<'_>, kind: u32) -> Option<String> {
    let library = device.nvml().lib();
    let call = nvml_sym(library.nvmlDeviceGetGpuInstanceProfileInfoV.as_ref()).ok()?;
    // The version word: the structure's size, and 2 above it.
    let version = size_of::<nvmlGpuInstanceProfileInfo_v2_t>() | 2 << 24;
    // SAFETY: numbers and characters, of which zeros are a value (C's own declaration).
    let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
    info.version = u32::try_from(version).ok()?;
    // SAFETY: the device is alive as long as its NVML, which `device` borrows; `info` is a local of the type that the
    // version word names.
    nvml_try(unsafe { call(handle(device), kind, &raw mut info) }).ok()?;
    let bytes: Vec<u8> = info.name.iter().map(|byte| byte.to_ne_bytes()[0]).collect();
    let name = CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?;
    let name = name.strip_prefix("MIG ").unwrap_or(name).trim();
    (!name.is_empty()).then(|| name.to_owned())
}

fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: only read out; every use below is a call of the NVML that `device` borrows.
    unsafe { device.handle() }
}

/// nvml-wrapper has this one, but forgets to say how long the list is that the driver filled.
fn placements(device: &Device<'_>, profile: u32) -> Result<Vec<(u32, u32)>, NvmlError> {
    let library = device.nvml().lib();
    let call = nvml_sym(
        library
            .nvmlDeviceGetGpuInstancePossiblePlacements_v2
            .as_ref(),
    )?;
    let mut count = 0;
    // SAFETY: the device lives as long as its NVML, which `device` borrows; NULL asks for the number alone.
    let asked = unsafe { call(handle(device), profile, ptr::null_mut(), &raw mut count) };
    match nvml_try(asked) {
        Ok(()) => {}
        // The GPU is not in MIG mode.
        Err(NvmlError::NotSupported | NvmlError::InvalidArg) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    let room = count.min(MOST);
    let empty = nvmlGpuInstancePlacement_t { start: 0, size: 0 };
    let mut list = vec![empty; usize::try_from(room).unwrap_or_default()];
    count = room;
    // SAFETY: the device is alive; the list has room for the `count` that NVML has just named.
    let asked = unsafe { call(handle(device), profile, list.as_mut_ptr(), &raw mut count) };
    nvml_try(asked)?;
    list.truncate(usize::try_from(count).unwrap_or_default());
    Ok(list.iter().map(|place| (place.start, place.size)).collect())
}

/// The existing GPU instances, by whatever process they were created.
///
/// # Errors
/// The GPU is not in MIG mode, is lost, or NVML fails otherwise.
pub fn instances(device: &Device<'_>) -> Result<Vec<GpuInstance>, NvmlError> {
    let library = device.nvml().lib();
    let call = nvml_sym(library.nvmlDeviceGetGpuInstances.as_ref())?;
    let inform = nvml_sym(library.nvmlGpuInstanceGetInfo.as_ref())?;
    let mut found: Vec<GpuInstance> = Vec::new();
    for profile in profiles(device)? {
        let mut list: [nvmlGpuInstance_t; MOST as usize] = [ptr::null_mut(); MOST as usize];
        let mut count = 0;
        // SAFETY: the device is alive; NVML asks for room for as many as the profile allows, which is far below 64.
        let asked = unsafe {
            call(
                handle(device),
                profile.id,
                list.as_mut_ptr(),
                &raw mut count,
            )
        };
        nvml_try(asked)?;
        let count = usize::try_from(count).unwrap_or_default();
        for &instance in list.iter().take(count) {
            // SAFETY: numbers and handles, of which zeros are a value.
            let mut info: nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: a handle that NVML has just given.
            match nvml_try(unsafe { inform(instance, &raw mut info) }) {
                Ok(()) => {}
                // It was destroyed in between.
                Err(NvmlError::NotFound | NvmlError::InvalidArg) => continue,
                Err(error) => return Err(error),
            }
            found.push(GpuInstance {
                id: info.id,
                profile: info.profileId,
                start: info.placement.start,
                size: info.placement.size,
                compute: compute_instances(device, instance)?,
            });
        }
    }
    found.sort_by_key(|instance| instance.id);
    Ok(found)
}

/// The profiles of compute instances of a GPU instance: id and slices.
fn compute_profiles(
    device: &Device<'_>,
    instance: nvmlGpuInstance_t,
) -> Result<Vec<(u32, u32)>, NvmlError> {
    let library = device.nvml().lib();
    let call = nvml_sym(
        library
            .nvmlGpuInstanceGetComputeInstanceProfileInfo
            .as_ref(),
    )?;
    let mut profiles = Vec::new();
    for kind in 0..COMPUTE_KINDS {
        // SAFETY: numbers, of which zeros are a value.
        let mut info: nvmlComputeInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the callers hand in a handle that NVML has just given them.
        match nvml_try(unsafe { call(instance, kind, ENGINES_SHARED, &raw mut info) }) {
            Ok(()) => profiles.push((info.id, info.sliceCount)),
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(profiles)
}

fn compute_instances(
    device: &Device<'_>,
    instance: nvmlGpuInstance_t,
) -> Result<Vec<u32>, NvmlError> {
    let library = device.nvml().lib();
    let call = nvml_sym(library.nvmlGpuInstanceGetComputeInstances.as_ref())?;
    let inform = nvml_sym(library.nvmlComputeInstanceGetInfo_v2.as_ref())?;
    let mut ids = Vec::new();
    for (profile, _) in compute_profiles(device, instance)? {
        let mut list: [nvmlComputeInstance_t; MOST as usize] = [ptr::null_mut(); MOST as usize];
        let mut count = 0;
        // SAFETY: the callers hand in a handle that NVML has just given them; an instance has at most seven.
        nvml_try(unsafe { call(instance, profile, list.as_mut_ptr(), &raw mut count) })?;
        let count = usize::try_from(count).unwrap_or_default();
        for &compute in list.iter().take(count) {
            // SAFETY: numbers and handles, of which zeros are a value.
            let mut info: nvmlComputeInstanceInfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: a handle that NVML has just given.
            nvml_try(unsafe { inform(compute, &raw mut info) })?;
            ids.push(info.id);
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Makes a GPU instance of this profile there, without a compute instance. Answers its id.
///
/// # Errors
/// `InsufficientResources` where there is no room; others as NVML has them.
pub fn create(device: &Device<'_>, profile: u32, start: u32, size: u32) -> Result<u32, NvmlError> {
    let library = device.nvml().lib();
    let call = nvml_sym(library.nvmlDeviceCreateGpuInstanceWithPlacement.as_ref())?;
    let inform = nvml_sym(library.nvmlGpuInstanceGetInfo.as_ref())?;
    let placement = nvmlGpuInstancePlacement_t { start, size };
    let mut instance: nvmlGpuInstance_t = ptr::null_mut();
    // SAFETY: the device is alive; both pointers lead to locals of the types that the call names.
    let made = unsafe {
        call(
            handle(device),
            profile,
            &raw const placement,
            &raw mut instance,
        )
    };
    nvml_try(made)?;
    // SAFETY: numbers and handles, of which zeros are a value.
    let mut info: nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the handle that NVML has just given.
    nvml_try(unsafe { inform(instance, &raw mut info) })?;
    Ok(info.id)
}

fn gpu_instance(device: &Device<'_>, id: u32) -> Result<nvmlGpuInstance_t, NvmlError> {
    let library = device.nvml().lib();
    let call = nvml_sym(library.nvmlDeviceGetGpuInstanceById.as_ref())?;
    let mut instance: nvmlGpuInstance_t = ptr::null_mut();
    // SAFETY: the device is alive; the pointer leads to a local.
    nvml_try(unsafe { call(handle(device), id, &raw mut instance) })?;
    Ok(instance)
}

/// Gives a GPU instance the compute instance that fills it. Answers its id.
///
/// # Errors
/// [`NvmlError::NotFound`] where there is no such GPU instance; others as NVML has them.
pub fn create_compute(device: &Device<'_>, id: u32) -> Result<u32, NvmlError> {
    let library = device.nvml().lib();
    let call = nvml_sym(library.nvmlGpuInstanceCreateComputeInstance.as_ref())?;
    let inform = nvml_sym(library.nvmlComputeInstanceGetInfo_v2.as_ref())?;
    let instance = gpu_instance(device, id)?;
    let profiles = compute_profiles(device, instance)?;
    // The first of several profiles of one size: the others have engines that were not requested.
    let fills = profiles.iter().rev().max_by_key(|(_, slices)| *slices);
    let (profile, _) = *fills.ok_or(NvmlError::NotSupported)?;
    let mut compute: nvmlComputeInstance_t = ptr::null_mut();
    // SAFETY: a handle that NVML has just given; the pointer leads to a local.
    nvml_try(unsafe { call(instance, profile, &raw mut compute) })?;
    // SAFETY: numbers and handles, of which zeros are a value.
    let mut info: nvmlComputeInstanceInfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the handle that NVML has just given.
    nvml_try(unsafe { inform(compute, &raw mut info) })?;
    Ok(info.id)
}

/// Destroys a compute instance.
///
/// # Errors
/// [`NvmlError::InUse`] while a process works on it; [`NvmlError::NotFound`] where it is gone.
pub fn destroy_compute(device: &Device<'_>, id: u32, compute: u32) -> Result<(), NvmlError> {
    let library = device.nvml().lib();
    let find = nvml_sym(library.nvmlGpuInstanceGetComputeInstanceById.as_ref())?;
    let destroy = nvml_sym(library.nvmlComputeInstanceDestroy.as_ref())?;
    let instance = gpu_instance(device, id)?;
    let mut found: nvmlComputeInstance_t = ptr::null_mut();
    // SAFETY: a handle that NVML has just given; the pointer leads to a local.
    nvml_try(unsafe { find(instance, compute, &raw mut found) })?;
    // SAFETY: a handle that NVML has just given.
    nvml_try(unsafe { destroy(found) })
}

/// Destroys a GPU instance that has no compute instance any more.
///
/// # Errors
/// [`NvmlError::InUse`] where it has; [`NvmlError::NotFound`] where it is gone.
pub fn destroy(device: &Device<'_>, id: u32) -> Result<(), NvmlError> {
    let library = device.nvml().lib();
    let destroy = nvml_sym(library.nvmlGpuInstanceDestroy.as_ref())?;
    let instance = gpu_instance(device, id)?;
    // SAFETY: a handle that NVML has just given.
    nvml_try(unsafe { destroy(instance) })
}

/// Ids of the GPU instance and the compute instance of a MIG device.
///
/// # Errors
/// It is no MIG device, or NVML fails otherwise.
pub fn ids(device: &Device<'_>) -> Result<(u32, u32), NvmlError> {
    let library = device.nvml().lib();
    let of_gpu = nvml_sym(library.nvmlDeviceGetGpuInstanceId.as_ref())?;
    let of_compute = nvml_sym(library.nvmlDeviceGetComputeInstanceId.as_ref())?;
    let (mut gpu, mut compute) = (0, 0);
    // SAFETY: the device lives as long as its NVML, which `device` borrows; NVML writes to the local `gpu` alone.
    nvml_try(unsafe { of_gpu(handle(device), &raw mut gpu) })?;
    // SAFETY: the device lives as long as its NVML, which `device` borrows; NVML writes to the local `compute` alone.
    nvml_try(unsafe { of_compute(handle(device), &raw mut compute) })?;
    Ok((gpu, compute))
}
