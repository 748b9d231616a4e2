//! MIG: which GPUs are in that mode, what they are cut into, and cutting them. The cut is the board's
//! (`cuda_sim::mig`). NVML's call that switches the mode is not simulated: the board does it.

use cuda_api::nvml::*;
use cuda_sim::mig::{Instance, MAX_INSTANCES, SIZES, SLICES, eighths, starts};

use crate::border::{Answer, field, get, put};
use crate::gpu::BoardGpu;
use crate::state::{
    Target, compute_handle, compute_instance, gpu_instance, handle, instance_handle, target, whole,
};

/// Whether a GPU is in MIG mode.
pub(crate) fn enabled(gpu: BoardGpu) -> bool {
    gpu.is_mig()
}

/// Multiprocessors of a part of a GPU.
fn multiprocessors(gpu: BoardGpu, sevenths: u32) -> u32 {
    gpu.multiprocessors() / 8 * sevenths
}

pub(crate) fn nvmlDeviceGetMigMode(
    device: NvmlDevice,
    current: *mut u32,
    pending: *mut u32,
) -> Answer {
    let mode = u32::from(enabled(whole(device)?));
    put(current, mode)?;
    put(pending, mode)
}

pub(crate) fn nvmlDeviceGetMaxMigDeviceCount(device: NvmlDevice, count: *mut u32) -> Answer {
    whole(device)?;
    put(count, MAX_INSTANCES)
}

pub(crate) fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: NvmlDevice,
    index: u32,
    mig: *mut NvmlDevice,
) -> Answer {
    let gpu = whole(device)?;
    if index >= MAX_INSTANCES {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    if !enabled(gpu) {
        return Err(NvmlReturn::NOT_FOUND);
    }
    gpu.instance(index).ok_or(NvmlReturn::NOT_FOUND)?;
    put(mig, handle(gpu, Some(index)))
}

pub(crate) fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    mig: NvmlDevice,
    device: *mut NvmlDevice,
) -> Answer {
    let (gpu, _) = part(mig)?;
    put(device, handle(gpu, None))
}

pub(crate) fn nvmlDeviceIsMigDeviceHandle(device: NvmlDevice, is_mig: *mut u32) -> Answer {
    put(
        is_mig,
        u32::from(matches!(target(device)?, Target::Mig(..))),
    )
}

/// A MIG device, for a question that does not apply to a whole GPU.
fn part(device: NvmlDevice) -> Result<(BoardGpu, Instance), NvmlReturn> {
    match target(device)? {
        Target::Mig(gpu, part) => Ok((gpu, part)),
        Target::Gpu(_) => Err(NvmlReturn::INVALID_ARGUMENT),
    }
}

pub(crate) fn nvmlDeviceGetGpuInstanceId(device: NvmlDevice, id: *mut u32) -> Answer {
    put(id, part(device)?.1.gpu_instance)
}

pub(crate) fn nvmlDeviceGetComputeInstanceId(device: NvmlDevice, id: *mut u32) -> Answer {
    part(device)?;
    put(id, 0)
}

pub(crate) fn nvmlDeviceGetAttributes(
    device: NvmlDevice,
    attributes: *mut NvmlDeviceAttributes,
) -> Answer {
    let (gpu, part) = part(device)?;
    put(
        attributes,
        NvmlDeviceAttributes {
            multiprocessor_count: multiprocessors(gpu, part.sevenths),
            shared_copy_engine_count: part.sevenths,
            shared_decoder_count: part.sevenths / 2,
            shared_encoder_count: 0,
            shared_jpeg_count: u32::from(part.sevenths == SLICES),
            shared_ofa_count: u32::from(part.sevenths == SLICES),
            gpu_instance_slice_count: part.sevenths,
            compute_instance_slice_count: part.sevenths,
            memory_size_mib: part.bytes >> 20,
        },
    )
}

pub(crate) fn nvmlDeviceGetAttributes_v2(
    device: NvmlDevice,
    attributes: *mut NvmlDeviceAttributes,
) -> Answer {
    nvmlDeviceGetAttributes(device, attributes)
}

/// Sizes in sevenths by NVML's number of the profile.
fn profile(number: u32) -> Result<u32, NvmlReturn> {
    match number {
        0 => Ok(1),
        1 => Ok(2),
        2 => Ok(3),
        3 => Ok(4),
        4 => Ok(7),
        5..=9 => Err(NvmlReturn::NOT_SUPPORTED),
        _ => Err(NvmlReturn::INVALID_ARGUMENT),
    }
}

/// The profile's id, as a real A100 numbers them.
fn profile_id(sevenths: u32) -> u32 {
    match sevenths {
        1 => 19,
        2 => 14,
        3 => 9,
        4 => 5,
        _ => 0,
    }
}

fn profile_info(gpu: BoardGpu, sevenths: u32) -> NvmlGpuInstanceProfileInfo {
    let part = Instance::cut(gpu.total(), 0, sevenths);
    NvmlGpuInstanceProfileInfo {
        id: profile_id(sevenths),
        is_p2p_supported: 0,
        slice_count: sevenths,
        instance_count: SLICES / sevenths,
        multiprocessor_count: multiprocessors(gpu, part.sevenths),
        copy_engine_count: sevenths,
        decoder_count: sevenths / 2,
        encoder_count: 0,
        jpeg_count: u32::from(sevenths == SLICES),
        ofa_count: u32::from(sevenths == SLICES),
        memory_size_mib: part.bytes >> 20,
    }
}

pub(crate) fn nvmlDeviceGetGpuInstanceProfileInfo(
    device: NvmlDevice,
    number: u32,
    info: *mut NvmlGpuInstanceProfileInfo,
) -> Answer {
    let gpu = whole(device)?;
    put(info, profile_info(gpu, profile(number)?))
}

pub(crate) fn nvmlDeviceGetGpuInstanceProfileInfoV(
    device: NvmlDevice,
    number: u32,
    info: *mut NvmlGpuInstanceProfileInfoV2,
) -> Answer {
    if get(info)?.version != NvmlGpuInstanceProfileInfoV2::VERSION {
        return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
    }
    let gpu = whole(device)?;
    let sevenths = profile(number)?;
    let plain = profile_info(gpu, sevenths);
    put(
        info,
        NvmlGpuInstanceProfileInfoV2 {
            version: NvmlGpuInstanceProfileInfoV2::VERSION,
            id: plain.id,
            is_p2p_supported: plain.is_p2p_supported,
            slice_count: plain.slice_count,
            instance_count: plain.instance_count,
            multiprocessor_count: plain.multiprocessor_count,
            copy_engine_count: plain.copy_engine_count,
            decoder_count: plain.decoder_count,
            encoder_count: plain.encoder_count,
            jpeg_count: plain.jpeg_count,
            ofa_count: plain.ofa_count,
            memory_size_mib: plain.memory_size_mib,
            name: field(&format!(
                "MIG {}",
                Instance::cut(gpu.total(), 0, sevenths).shape()
            )),
        },
    )
}

/// The size in sevenths of the profile with this id.
fn sevenths_of(id: u32) -> Result<u32, NvmlReturn> {
    SIZES
        .into_iter()
        .find(|&sevenths| profile_id(sevenths) == id)
        .ok_or(NvmlReturn::INVALID_ARGUMENT)
}

/// A GPU in MIG mode.
fn split(device: NvmlDevice) -> Result<BoardGpu, NvmlReturn> {
    let gpu = whole(device)?;
    if enabled(gpu) {
        Ok(gpu)
    } else {
        Err(NvmlReturn::NOT_SUPPORTED)
    }
}

pub(crate) fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    device: NvmlDevice,
    id: u32,
    placements: *mut NvmlInstancePlacement,
    count: *mut u32,
) -> Answer {
    split(device)?;
    let sevenths = sevenths_of(id)?;
    let starts = starts(sevenths);
    put(count, starts.len() as u32)?;
    if placements.is_null() {
        return Ok(());
    }
    for (at, &start) in starts.iter().enumerate() {
        // The caller's array has room for the count that it got before.
        put(
            placements.wrapping_add(at),
            NvmlInstancePlacement {
                start,
                size: eighths(sevenths),
            },
        )?;
    }
    Ok(())
}

pub(crate) fn nvmlDeviceGetGpuInstancePossiblePlacements(
    device: NvmlDevice,
    id: u32,
    placements: *mut NvmlInstancePlacement,
    count: *mut u32,
) -> Answer {
    nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, placements, count)
}

pub(crate) fn nvmlDeviceGetGpuInstanceRemainingCapacity(
    device: NvmlDevice,
    id: u32,
    count: *mut u32,
) -> Answer {
    let gpu = split(device)?;
    let sevenths = sevenths_of(id)?;
    let taken = gpu.gpu_instances();
    let is_free = |&&start: &&u32| {
        taken.iter().all(|part| {
            start + eighths(sevenths) <= part.start || part.start + eighths(part.sevenths) <= start
        })
    };
    put(
        count,
        starts(sevenths).iter().filter(is_free).count() as u32,
    )
}

fn create(
    device: NvmlDevice,
    id: u32,
    placement: Option<NvmlInstancePlacement>,
    out: *mut NvmlGpuInstance,
) -> Answer {
    let gpu = split(device)?;
    let sevenths = sevenths_of(id)?;
    if out.is_null() || placement.is_some_and(|placement| placement.size != eighths(sevenths)) {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    let start = placement.map(|placement| placement.start);
    let made = gpu.cut(|board, gpu| board.create_gpu_instance(gpu, sevenths, start))?;
    put(out, instance_handle(gpu, made.index))
}

pub(crate) fn nvmlDeviceCreateGpuInstance(
    device: NvmlDevice,
    id: u32,
    out: *mut NvmlGpuInstance,
) -> Answer {
    create(device, id, None, out)
}

pub(crate) fn nvmlDeviceCreateGpuInstanceWithPlacement(
    device: NvmlDevice,
    id: u32,
    placement: *const NvmlInstancePlacement,
    out: *mut NvmlGpuInstance,
) -> Answer {
    create(device, id, Some(get(placement)?), out)
}

pub(crate) fn nvmlGpuInstanceDestroy(instance: NvmlGpuInstance) -> Answer {
    let (gpu, part) = gpu_instance(instance)?;
    gpu.cut(|board, gpu| board.destroy_gpu_instance(gpu, part.index))
}

/// The caller has made room for as many as the profile allows.
pub(crate) fn nvmlDeviceGetGpuInstances(
    device: NvmlDevice,
    id: u32,
    out: *mut NvmlGpuInstance,
    count: *mut u32,
) -> Answer {
    let gpu = split(device)?;
    let sevenths = sevenths_of(id)?;
    let parts = gpu.gpu_instances();
    let mut found = 0;
    for part in parts.iter().filter(|part| part.sevenths == sevenths) {
        put(
            out.wrapping_add(found as usize),
            instance_handle(gpu, part.index),
        )?;
        found += 1;
    }
    put(count, found)
}

pub(crate) fn nvmlDeviceGetGpuInstanceById(
    device: NvmlDevice,
    id: u32,
    out: *mut NvmlGpuInstance,
) -> Answer {
    let gpu = split(device)?;
    let parts = gpu.gpu_instances();
    let part = parts.iter().find(|part| part.gpu_instance == id);
    let part = part.ok_or(NvmlReturn::NOT_FOUND)?;
    put(out, instance_handle(gpu, part.index))
}

pub(crate) fn nvmlGpuInstanceGetInfo(
    instance: NvmlGpuInstance,
    info: *mut NvmlGpuInstanceInfo,
) -> Answer {
    let (gpu, part) = gpu_instance(instance)?;
    put(
        info,
        NvmlGpuInstanceInfo {
            device: handle(gpu, None),
            id: part.gpu_instance,
            profile_id: profile_id(part.sevenths),
            placement: NvmlInstancePlacement {
                start: part.start,
                size: eighths(part.sevenths),
            },
        },
    )
}

/// The only compute instance profile here fills its GPU instance; a real GPU has smaller ones too.
pub(crate) fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
    instance: NvmlGpuInstance,
    number: u32,
    engines: u32,
    info: *mut NvmlComputeInstanceProfileInfo,
) -> Answer {
    let (gpu, part) = gpu_instance(instance)?;
    if engines != 0 {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    if profile(number)? != part.sevenths {
        return Err(NvmlReturn::NOT_SUPPORTED);
    }
    put(
        info,
        NvmlComputeInstanceProfileInfo {
            id: number,
            slice_count: part.sevenths,
            instance_count: 1,
            multiprocessor_count: multiprocessors(gpu, part.sevenths),
            shared_copy_engine_count: part.sevenths,
            shared_decoder_count: part.sevenths / 2,
            shared_encoder_count: 0,
            shared_jpeg_count: u32::from(part.sevenths == SLICES),
            shared_ofa_count: u32::from(part.sevenths == SLICES),
        },
    )
}

pub(crate) fn nvmlGpuInstanceCreateComputeInstance(
    instance: NvmlGpuInstance,
    number: u32,
    out: *mut NvmlComputeInstance,
) -> Answer {
    let (gpu, part) = gpu_instance(instance)?;
    if out.is_null() || profile(number)? != part.sevenths {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    gpu.cut(|board, gpu| board.create_compute_instance(gpu, part.index))?;
    put(out, compute_handle(gpu, part.index))
}

pub(crate) fn nvmlGpuInstanceGetComputeInstances(
    instance: NvmlGpuInstance,
    number: u32,
    out: *mut NvmlComputeInstance,
    count: *mut u32,
) -> Answer {
    let (gpu, part) = gpu_instance(instance)?;
    let is_there = part.compute && profile(number)? == part.sevenths;
    if is_there {
        put(out, compute_handle(gpu, part.index))?;
    }
    put(count, u32::from(is_there))
}

pub(crate) fn nvmlGpuInstanceGetComputeInstanceById(
    instance: NvmlGpuInstance,
    id: u32,
    out: *mut NvmlComputeInstance,
) -> Answer {
    let (gpu, part) = gpu_instance(instance)?;
    if id != 0 || !part.compute {
        return Err(NvmlReturn::NOT_FOUND);
    }
    put(out, compute_handle(gpu, part.index))
}

pub(crate) fn nvmlComputeInstanceGetInfo_v2(
    instance: NvmlComputeInstance,
    info: *mut NvmlComputeInstanceInfo,
) -> Answer {
    let (gpu, part) = compute_instance(instance)?;
    let number = SIZES.iter().position(|&size| size == part.sevenths);
    put(
        info,
        NvmlComputeInstanceInfo {
            device: handle(gpu, None),
            gpu_instance: instance_handle(gpu, part.index),
            id: 0,
            profile_id: number.map_or(0, |number| number as u32),
            placement: NvmlInstancePlacement {
                start: 0,
                size: part.sevenths,
            },
        },
    )
}

pub(crate) fn nvmlComputeInstanceDestroy(instance: NvmlComputeInstance) -> Answer {
    let (gpu, part) = compute_instance(instance)?;
    gpu.cut(|board, gpu| board.destroy_compute_instance(gpu, part.index))
}
