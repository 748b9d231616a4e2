//! MIG: which cards are cut, and into what. The cut is the board's (`cuda_sim::mig`); creating and
//! destroying instances is not simulated.

use cuda_api::nvml::*;
use cuda_sim::mig::{Instance, MAX_INSTANCES, SLICES};

use crate::border::{Answer, field, get, put};
use crate::card::Card;
use crate::state::{Target, handle, target, whole};

/// Whether a card is cut.
pub(crate) fn enabled(card: Card) -> bool {
    !card.instances().is_empty()
}

/// Multiprocessors of a part of a card.
fn multiprocessors(card: Card, sevenths: u32) -> u32 {
    card.multiprocessors() / 8 * sevenths
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
    let card = whole(device)?;
    if index >= MAX_INSTANCES {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    if !enabled(card) {
        return Err(NvmlReturn::NOT_FOUND);
    }
    card.instance(index).ok_or(NvmlReturn::NOT_FOUND)?;
    put(mig, handle(card, Some(index)))
}

pub(crate) fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    mig: NvmlDevice,
    device: *mut NvmlDevice,
) -> Answer {
    let (card, _) = part(mig)?;
    put(device, handle(card, None))
}

pub(crate) fn nvmlDeviceIsMigDeviceHandle(device: NvmlDevice, is_mig: *mut u32) -> Answer {
    put(
        is_mig,
        u32::from(matches!(target(device)?, Target::Mig(..))),
    )
}

/// A MIG device; what is asked of it does not exist for a whole card.
fn part(device: NvmlDevice) -> Result<(Card, Instance), NvmlReturn> {
    match target(device)? {
        Target::Mig(card, part) => Ok((card, part)),
        Target::Card(_) => Err(NvmlReturn::INVALID_ARGUMENT),
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
    let (card, part) = part(device)?;
    put(
        attributes,
        NvmlDeviceAttributes {
            multiprocessor_count: multiprocessors(card, part.sevenths),
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

fn profile_info(card: Card, sevenths: u32) -> NvmlGpuInstanceProfileInfo {
    let part = Instance::cut(card.total(), 0, sevenths);
    NvmlGpuInstanceProfileInfo {
        id: profile_id(sevenths),
        is_p2p_supported: 0,
        slice_count: sevenths,
        instance_count: SLICES / sevenths,
        multiprocessor_count: multiprocessors(card, part.sevenths),
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
    let card = whole(device)?;
    put(info, profile_info(card, profile(number)?))
}

pub(crate) fn nvmlDeviceGetGpuInstanceProfileInfoV(
    device: NvmlDevice,
    number: u32,
    info: *mut NvmlGpuInstanceProfileInfoV2,
) -> Answer {
    if get(info)?.version != NvmlGpuInstanceProfileInfoV2::VERSION {
        return Err(NvmlReturn::ARGUMENT_VERSION_MISMATCH);
    }
    let card = whole(device)?;
    let sevenths = profile(number)?;
    let plain = profile_info(card, sevenths);
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
                Instance::cut(card.total(), 0, sevenths).shape()
            )),
        },
    )
}
