//! The limits of one device: how they are set, and whether they hold together.

use vgpu_abi::limits::DeviceLimit;
use vgpu_abi::size::Size;

use crate::failure::Misuse;

/// Percent from the command line, at most 100.
pub(crate) fn percent_of(percent: u64) -> u32 {
    u32::try_from(percent).unwrap_or(100)
}

/// A cap of 100 % is no cap.
pub(crate) fn cap_of(percent: u32) -> u32 {
    if percent >= 100 { 0 } else { percent }
}

/// Sets the memory limit: `bytes` of the GPU, and `more` of managed memory.
pub(crate) fn set_memory(limit: &mut DeviceLimit, bytes: u64, more: u64) {
    limit.memory_bytes = bytes.saturating_add(more);
    limit.resident_bytes = if more == 0 { 0 } else { bytes };
}

/// The part of a limit that may be memory of the GPU, bytes; 0 is no limit.
pub(crate) fn resident_of(limit: &DeviceLimit) -> u64 {
    match limit.resident_bytes {
        0 => limit.memory_bytes,
        bytes => bytes,
    }
}

/// The largest memory limit that the region can count.
const MEMORY_MOST: u64 = 8 << 40;

pub(crate) fn check_memory(
    limit: &DeviceLimit,
    number: u32,
    model: Option<&str>,
) -> Result<(), Misuse> {
    let bytes = resident_of(limit);
    if limit.physical_bytes != 0 && bytes > limit.physical_bytes {
        let model = model.map_or_else(String::new, |model| format!(" ({model})"));
        return Err(Misuse::new(format!(
            "{} is more than GPU {number} has: {}{model}; give at most that",
            Size(bytes),
            Size(limit.physical_bytes),
        )));
    }
    if limit.memory_bytes > MEMORY_MOST {
        return Err(Misuse::new(format!(
            "--gpumem and --oversubscribe add up to {} on GPU {number}; give at most {} together",
            Size(limit.memory_bytes),
            Size(MEMORY_MOST)
        )));
    }
    Ok(())
}

pub(crate) fn check_floor(limit: &DeviceLimit, number: u32) -> Result<(), Misuse> {
    let (floor, cap) = (limit.floor_percent, cap_of(limit.core_percent));
    if cap != 0 && floor > cap {
        return Err(Misuse::new(format!(
            "the floor of {floor} % of GPU {number} is above its cap of {cap} %; give --floor {cap} or \
             less, or --gpucores {floor} or more"
        )));
    }
    Ok(())
}
