//! Which GPU a device of the driver is. The driver numbers what `CUDA_VISIBLE_DEVICES` shows, in an
//! order of its own, and may show one GPU as several devices; limits name GPUs by UUID, or by the
//! index that NVML gives them. Changes nothing; reads the environment when the driver does, and only
//! then.

use core::sync::atomic::{AtomicU32, Ordering};

use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::limits::{DeviceUuid, LimitsValue, Unlisted};

use crate::driver::device::{Device, MAX_ORDINALS};
use crate::driver::query;

/// `CUDA_VISIBLE_DEVICES` as the driver read it.
struct Visible {
    state: AtomicU32,
    /// By ordinal, the index that the entry names, plus one; 0 for an entry that is no number.
    entries: [AtomicU32; MAX_ORDINALS],
}

const UNKNOWN: u32 = 0;
const UNSET: u32 = 1;
const SET: u32 = 2;

/// Inherited by forked children, as the driver's own reading is.
static VISIBLE: Visible = Visible {
    state: AtomicU32::new(UNKNOWN),
    entries: [const { AtomicU32::new(0) }; MAX_ORDINALS],
};

/// The driver is about to read `CUDA_VISIBLE_DEVICES`: later changes of the variable have no effect.
pub(crate) fn note_visible() {
    let note = |list: &[u8]| {
        let mut entries = list.split(|&byte| byte == b',');
        for word in &VISIBLE.entries {
            let index = entries.next().and_then(index_in);
            // Relaxed: the state publishes it.
            word.store(index.map_or(0, |index| index + 1), Ordering::Relaxed);
        }
    };
    let is_set = query::visible_devices(note).is_some();
    if !is_set {
        note(&[]);
    }
    let state = if is_set { SET } else { UNSET };
    // Release: code that sees the state sees the entries.
    VISIBLE.state.store(state, Ordering::Release);
}

/// The index that an entry of `CUDA_VISIBLE_DEVICES` names; `None` for a UUID.
fn index_in(entry: &[u8]) -> Option<u32> {
    let index = core::str::from_utf8(entry.trim_ascii())
        .ok()?
        .parse()
        .ok()?;
    (index < u32::MAX).then_some(index)
}

impl Visible {
    /// Does the driver show all GPUs in its own order, as far as we know?
    fn is_unset(&self) -> bool {
        // Relaxed: the state alone is asked for.
        self.state.load(Ordering::Relaxed) == UNSET
    }

    fn index_of(&self, ordinal: usize) -> Option<usize> {
        // Acquire: see `note_visible`.
        if self.state.load(Ordering::Acquire) == UNKNOWN {
            let index = query::visible_devices(|list| {
                let entry = list.split(|&byte| byte == b',').nth(ordinal)?;
                index_in(entry)
            });
            return usize::try_from(index??).ok();
        }
        // Relaxed: published by the state.
        let entry = self.entries.get(ordinal)?.load(Ordering::Relaxed);
        usize::try_from(entry.checked_sub(1)?).ok()
    }
}

/// The index of the GPU by which limits without UUIDs name it: NVML's; without NVML the one that
/// `CUDA_VISIBLE_DEVICES` named when the driver read it, or else the driver's own.
fn index_of_gpu(ordinal: i32) -> Option<usize> {
    let ordinal_index = usize::try_from(ordinal).ok()?;
    // One GPU, and all GPUs shown: no need to wake NVML.
    if VISIBLE.is_unset() && query::device_count() == Some(1) {
        return Some(ordinal_index);
    }
    query::nvml_index(ordinal)
        .or_else(|| VISIBLE.index_of(ordinal_index))
        .or(Some(ordinal_index))
}

/// The device's place in limits that come from a file. `None`: the driver does not report its UUID (yet).
pub(crate) fn in_file(limits: &LimitsValue, ordinal: i32) -> Option<Device> {
    let names = query::device_uuids(ordinal)?;
    let found = names
        .iter()
        .find_map(|name| listed(limits, name))
        // A part of a GPU that has a name of its own (a MIG instance, a locality domain).
        .or_else(|| listed(limits, &query::gpu_uuid(ordinal)?))
        .or_else(|| unnamed(limits, ordinal));
    Some(match (found, limits.unlisted) {
        (Some(index), _) => Device::Limited(index),
        (None, Unlisted::Allow) => Device::Unlimited,
        (None, Unlisted::Deny) => Device::Denied,
    })
}

fn listed(limits: &LimitsValue, name: &[u8; 16]) -> Option<usize> {
    let mut devices = limits.devices().iter();
    devices.position(|device| is_uuid(&device.uuid, name))
}

/// The entry of this GPU's index, if the limits name no UUID there.
fn unnamed(limits: &LimitsValue, ordinal: i32) -> Option<usize> {
    if limits
        .devices()
        .iter()
        .all(|device| !device.uuid.is_empty())
    {
        return None;
    }
    let index = index_of_gpu(ordinal)?;
    limits
        .devices()
        .get(index)?
        .uuid
        .is_empty()
        .then_some(index)
}

/// The device's place in limits that the peers' variables give by index.
pub(crate) fn by_index(ordinal: i32) -> Device {
    let index = index_of_gpu(ordinal).filter(|&index| index < MAX_DEVICES);
    index.map_or(Device::Unlimited, Device::Limited)
}

/// Does the text (`GPU-…` or `MIG-…`) name these 16 bytes?
fn is_uuid(text: &DeviceUuid, bytes: &[u8; 16]) -> bool {
    query::parse_uuid(text.as_str()).as_ref() == Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_compared_by_its_digits() {
        let bytes = core::array::from_fn(|at| u8::try_from(at).unwrap() * 17);

        for (text, same) in [
            ("GPU-00112233-4455-6677-8899-aabbccddeeff", true),
            ("MIG-00112233-4455-6677-8899-AABBCCDDEEFF", true),
            ("GPU-00112233-4455-6677-8899-aabbccddeefe", false),
            ("GPU-00112233-4455-6677-8899-aabbccddeeff0", false),
            ("GPU-00112233-4455-6677-8899-aabbccddeef", false),
            ("GPU-g0112233-4455-6677-8899-aabbccddeeff", false),
            ("GPU-", false),
            ("", false),
        ] {
            assert_eq!(
                is_uuid(&DeviceUuid::new(text).unwrap(), &bytes),
                same,
                "{text}"
            );
        }
    }

    #[test]
    fn an_entry_is_an_index_when_it_is_a_number() {
        for (entry, index) in [
            ("0", Some(0)),
            (" 12 ", Some(12)),
            ("4294967295", None),
            ("99999999999", None),
            ("-1", None),
            ("GPU-1", None),
            ("MIG-GPU-1/0/0", None),
            ("", None),
        ] {
            assert_eq!(index_in(entry.as_bytes()), index, "{entry}");
        }
    }
}
