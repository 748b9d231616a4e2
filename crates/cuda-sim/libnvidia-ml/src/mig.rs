//! MIG: which cards are cut, and into what. The cut comes from `VGPU_SIM_MIG`
//! (`0=1g,1g,3g;1=7g`: GPU index, then the size of each MIG device in sevenths of the card) and stays
//! as it is; creating and destroying instances is not simulated.

use cuda_api::nvml::*;

use crate::border::{Answer, field, get, put};
use crate::card::Card;
use crate::state::{Target, handle, target, whole};

/// Sevenths of the multiprocessors that a card has for MIG.
const SLICES: u32 = 7;
/// Most MIG devices on a card.
const MOST: u32 = 7;

/// One MIG device: a GPU instance with one compute instance that fills it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slice {
    /// Among the MIG devices of its card.
    pub(crate) index: u32,
    /// Id of its GPU instance.
    pub(crate) gpu_instance: u32,
    /// Sevenths of the card's multiprocessors.
    pub(crate) sevenths: u32,
    /// Memory in bytes.
    pub(crate) bytes: u64,
    /// Multiprocessors.
    pub(crate) multiprocessors: u32,
}

impl Slice {
    /// "1g.5gb"
    pub(crate) fn name(&self) -> String {
        format!("{}g.{}gb", self.sevenths, (self.bytes >> 30).max(1))
    }
}

/// The slice with `sevenths` of `card`; memory comes in eighths, as on the real cards.
fn cut(card: Card, index: u32, sevenths: u32) -> Slice {
    let eighths = match sevenths {
        1 => 1,
        2 => 2,
        3 | 4 => 4,
        _ => 8,
    };
    // Ids of GPU instances start at 1 on a real card with more than one of them (0 is the whole).
    let gpu_instance = if sevenths == SLICES { 0 } else { index + 1 };
    Slice {
        index,
        gpu_instance,
        sevenths,
        bytes: card.total() / 8 * eighths,
        multiprocessors: card.multiprocessors() / 8 * sevenths,
    }
}

/// How `text` cuts the GPU with this index; empty when it does not, `None` when it is malformed.
pub(crate) fn sizes(text: &str, gpu: usize) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for part in text
        .split(';')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (index, list) = part.split_once('=')?;
        let index: usize = index.trim().parse().ok()?;
        let sizes: Vec<u32> = list
            .split(',')
            .map(|size| {
                let size = size.trim().strip_suffix('g')?.parse().ok()?;
                matches!(size, 1..=4 | 7).then_some(size)
            })
            .collect::<Option<_>>()?;
        if sizes.iter().sum::<u32>() > SLICES {
            return None;
        }
        if index == gpu {
            found = sizes;
        }
    }
    Some(found)
}

/// The MIG devices of a card.
pub(crate) fn slices(card: Card) -> Vec<Slice> {
    sizes(&crate::card::mig_setting(), card.index())
        .unwrap_or_default()
        .into_iter()
        .zip(0..)
        .map(|(sevenths, index)| cut(card, index, sevenths))
        .collect()
}

/// The MIG device `index` of a card.
pub(crate) fn slice(card: Card, index: u32) -> Option<Slice> {
    slices(card).get(index as usize).copied()
}

/// Whether a card is cut.
pub(crate) fn enabled(card: Card) -> bool {
    !slices(card).is_empty()
}

/// The MIG device's name for ever: its card's UUID with the index written over the last digits.
pub(crate) fn uuid(card: Card, index: u32) -> String {
    let own = card.uuid();
    let own = own.strip_prefix("GPU-").unwrap_or(&own);
    let kept = own.len().saturating_sub(4);
    format!("MIG-{}f{:03x}", own.get(..kept).unwrap_or(own), index)
}

/// The MIG device with this UUID.
pub(crate) fn by_uuid(wanted: &str) -> Option<(Card, Slice)> {
    Card::all().find_map(|card| {
        slices(card)
            .into_iter()
            .find(|slice| uuid(card, slice.index) == wanted)
            .map(|slice| (card, slice))
    })
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
    put(count, MOST)
}

pub(crate) fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: NvmlDevice,
    index: u32,
    mig: *mut NvmlDevice,
) -> Answer {
    let card = whole(device)?;
    if index >= MOST {
        return Err(NvmlReturn::INVALID_ARGUMENT);
    }
    if !enabled(card) {
        return Err(NvmlReturn::NOT_FOUND);
    }
    slice(card, index).ok_or(NvmlReturn::NOT_FOUND)?;
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
fn part(device: NvmlDevice) -> Result<(Card, Slice), NvmlReturn> {
    match target(device)? {
        Target::Mig(card, slice) => Ok((card, slice)),
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
    let (_, slice) = part(device)?;
    put(
        attributes,
        NvmlDeviceAttributes {
            multiprocessor_count: slice.multiprocessors,
            shared_copy_engine_count: slice.sevenths,
            shared_decoder_count: slice.sevenths / 2,
            shared_encoder_count: 0,
            shared_jpeg_count: u32::from(slice.sevenths == SLICES),
            shared_ofa_count: u32::from(slice.sevenths == SLICES),
            gpu_instance_slice_count: slice.sevenths,
            compute_instance_slice_count: slice.sevenths,
            memory_size_mib: slice.bytes >> 20,
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
    let slice = cut(card, 0, sevenths);
    NvmlGpuInstanceProfileInfo {
        id: profile_id(sevenths),
        is_p2p_supported: 0,
        slice_count: sevenths,
        instance_count: SLICES / sevenths,
        multiprocessor_count: slice.multiprocessors,
        copy_engine_count: sevenths,
        decoder_count: sevenths / 2,
        encoder_count: 0,
        jpeg_count: u32::from(sevenths == SLICES),
        ofa_count: u32::from(sevenths == SLICES),
        memory_size_mib: slice.bytes >> 20,
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
            name: field(&format!("MIG {}", cut(card, 0, sevenths).name())),
        },
    )
}
