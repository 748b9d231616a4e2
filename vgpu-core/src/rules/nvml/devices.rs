//! Maps NVML handles to devices of the container, and decides which devices the container sees at all. The findings
//! are kept in a table without locks. Changes no answer: the rules do.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use cuda_api::nvml::{NvmlDevice, NvmlReturn};
use vgpu_abi::limits::{LimitsValue, Unlisted};

use crate::driver::device::Device;
use crate::driver::genuine::nvml as driver;
use crate::driver::query;
use crate::state::container::Container;

/// Handles that are remembered: 16 GPUs of 8 MIG devices, and some that came and went.
const REMEMBERED: usize = 256;
/// Being written by another thread: no handle has this value.
const TAKEN: usize = 1;

/// A handle and its device. Written once: value first, handle last. A writer that a fork left behind loses one row,
/// no more.
struct Row {
    handle: AtomicUsize,
    value: AtomicU32,
}

static ROWS: [Row; REMEMBERED] = [const {
    Row {
        handle: AtomicUsize::new(0),
        value: AtomicU32::new(0),
    }
}; REMEMBERED];

/// Counts `nvmlInit` calls: after one, the same handle may be that of another device.
static ROUND: AtomicU32 = AtomicU32::new(1);

/// NVML was initialised: the remembered handles have to be looked up again.
pub(crate) fn forget() {
    // Relaxed: a thread that asks with the old round gets the old answer, which was right then.
    ROUND.fetch_add(1, Ordering::Relaxed);
}

/// How the container may use the device of this handle. `None` when NVML cannot name it.
pub(crate) fn of(container: &Container, handle: NvmlDevice) -> Option<Device> {
    let key = handle.0 as usize;
    if key <= TAKEN {
        return None;
    }
    // Relaxed: see `forget`.
    let round = ROUND.load(Ordering::Relaxed) & 0x00ff_ffff;
    for row in &ROWS {
        // Acquire: the value was stored before the handle.
        match row.handle.load(Ordering::Acquire) {
            0 => {
                let device = look_up(container, handle)?;
                remember(row, key, pack(device, round));
                return Some(device);
            }
            known if known == key => {
                // Relaxed: one word says all.
                let value = row.value.load(Ordering::Relaxed);
                if value >> 8 == round {
                    return Some(unpack(value));
                }
                let device = look_up(container, handle)?;
                // Relaxed: as above.
                row.value.store(pack(device, round), Ordering::Relaxed);
                return Some(device);
            }
            _ => {}
        }
    }
    look_up(container, handle)
}

fn remember(row: &Row, key: usize, value: u32) {
    // Relaxed: no thread reads the value before the handle is there. A thread that loses the exchange gets a
    // row the next time.
    if row
        .handle
        .compare_exchange(0, TAKEN, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
    {
        // Relaxed: the handle publishes it.
        row.value.store(value, Ordering::Relaxed);
        // Release: a thread that sees the handle sees the value.
        row.handle.store(key, Ordering::Release);
    }
}

fn pack(device: Device, round: u32) -> u32 {
    let code = match device {
        Device::Unlimited => 0,
        Device::Denied => 1,
        Device::Limited(index) => u32::try_from(index).map_or(1, |index| index + 2),
    };
    round << 8 | code & 0xff
}

fn unpack(value: u32) -> Device {
    match value & 0xff {
        0 => Device::Unlimited,
        1 => Device::Denied,
        index => Device::Limited((index - 2) as usize),
    }
}

#[cold]
fn look_up(container: &Container, handle: NvmlDevice) -> Option<Device> {
    let Some(limits) = container.limits() else {
        // The peers' variables number GPUs as NVML does; a part counts as its GPU.
        let index = index_of(query::gpu_of(handle).unwrap_or(handle))? as usize;
        return Some(if index < vgpu_abi::layout::MAX_DEVICES {
            Device::Limited(index)
        } else {
            Device::Unlimited
        });
    };
    let mut name = Name::EMPTY;
    let uuid = name.read(handle)?;
    if let Some(index) = listed(&limits, uuid) {
        return Some(Device::Limited(index));
    }
    // A MIG device that has no entry of its own is charged to its GPU.
    if let Some(gpu) = query::gpu_of(handle) {
        return of(container, gpu);
    }
    let index = index_of(handle)? as usize;
    if limits
        .devices()
        .get(index)
        .is_some_and(|device| device.uuid.is_empty())
    {
        return Some(Device::Limited(index));
    }
    Some(match limits.unlisted {
        Unlisted::Allow => Device::Unlimited,
        Unlisted::Deny => Device::Denied,
    })
}

fn listed(limits: &LimitsValue, uuid: &[u8]) -> Option<usize> {
    limits.devices().iter().position(|device| {
        !device.uuid.is_empty() && device.uuid.as_str().as_bytes().eq_ignore_ascii_case(uuid)
    })
}

/// A device's UUID, on the stack.
struct Name([c_char; 96]);

impl Name {
    const EMPTY: Self = Self([0; 96]);

    fn read(&mut self, handle: NvmlDevice) -> Option<&[u8]> {
        // SAFETY: 95 bytes of room, so the last one stays zero.
        let result = unsafe { driver::nvmlDeviceGetUUID(handle, self.0.as_mut_ptr(), 95) };
        if result != NvmlReturn::SUCCESS {
            return None;
        }
        // SAFETY: ends in a zero, see above.
        Some(unsafe { CStr::from_ptr(self.0.as_ptr()) }.to_bytes())
    }
}

/// NVML's own index of a GPU.
pub(crate) fn index_of(handle: NvmlDevice) -> Option<u32> {
    let mut index = 0;
    // SAFETY: NVML checks the handle, and writes to the local `index` alone.
    let result = unsafe { driver::nvmlDeviceGetIndex(handle, &raw mut index) };
    result.is_success().then_some(index)
}

/// Does the container see this GPU or MIG device? A GPU whose MIG devices are listed is seen,
/// since one gets to those through it.
pub(crate) fn is_visible(container: &Container, handle: NvmlDevice) -> bool {
    // A device that cannot be named is left to the driver's own answer.
    of(container, handle) != Some(Device::Denied) || has_listed_part(container, handle)
}

fn has_listed_part(container: &Container, gpu: NvmlDevice) -> bool {
    let any_mig = container.limits().is_some_and(|limits| {
        limits
            .devices()
            .iter()
            .any(|device| device.uuid.as_str().starts_with("MIG-"))
    });
    if !any_mig {
        return false;
    }
    let mut most = 0;
    // SAFETY: NVML checks the handle, and writes to the local `most` alone.
    if !unsafe { driver::nvmlDeviceGetMaxMigDeviceCount(gpu, &raw mut most) }.is_success() {
        return false;
    }
    (0..most.min(64)).any(|index| {
        let mut part = NvmlDevice::NULL;
        // SAFETY: NVML checks the handle and the index, and writes to the local `part` alone.
        let result =
            unsafe { driver::nvmlDeviceGetMigDeviceHandleByIndex(gpu, index, &raw mut part) };
        result.is_success() && matches!(of(container, part), Some(Device::Limited(_)))
    })
}

/// Does the container hide devices at all?
pub(crate) fn hides(container: &Container) -> bool {
    container
        .limits()
        .is_some_and(|limits| limits.unlisted == Unlisted::Deny)
}

/// GPUs of the machine, as NVML counts them.
fn all() -> u32 {
    let mut count = 0;
    // SAFETY: NVML writes to the local `count` alone.
    let result = unsafe { driver::nvmlDeviceGetCount_v2(&raw mut count) };
    if result.is_success() { count } else { 0 }
}

fn at(index: u32) -> Option<NvmlDevice> {
    let mut handle = NvmlDevice::NULL;
    // SAFETY: NVML checks the index, and writes to the local `handle` alone.
    let result = unsafe { driver::nvmlDeviceGetHandleByIndex_v2(index, &raw mut handle) };
    result.is_success().then_some(handle)
}

/// NVML's own indices of the GPUs that the container sees, in NVML's order. A GPU without a handle (a lost one) may
/// be a neighbour's, so it is not among them.
fn visible(container: &Container) -> impl Iterator<Item = u32> {
    (0..all()).filter(|&index| at(index).is_some_and(|handle| is_visible(container, handle)))
}

/// Is this the UUID of a GPU that the container sees? Also while NVML knows no GPU, which it answers itself.
pub(crate) fn is_named(container: &Container, uuid: &[c_char]) -> bool {
    let gpus = all();
    gpus == 0
        || visible(container).filter_map(at).any(|handle| {
            let mut name = Name::EMPTY;
            name.read(handle).is_some_and(|known| is_same(known, uuid))
        })
}

/// Whether a text that a zero ends is this one, whatever the case of its letters. A text without a zero is none.
fn is_same(known: &[u8], text: &[c_char]) -> bool {
    let Some(length) = text.iter().position(|&byte| byte == 0) else {
        return false;
    };
    let text = text.get(..length).unwrap_or_default();
    known.len() == length
        && known
            .iter()
            .zip(text)
            .all(|(known, byte)| known.eq_ignore_ascii_case(&byte.to_ne_bytes()[0]))
}

/// GPUs that the container sees.
pub(crate) fn count(container: &Container) -> u32 {
    visible(container).fold(0, |count, _| count + 1)
}

/// NVML's own index of the GPU that the container knows by `index`.
pub(crate) fn real_index(container: &Container, index: u32) -> Option<u32> {
    visible(container).nth(index as usize)
}

/// The index by which the container knows the GPU that NVML has at `real`.
pub(crate) fn shown_index(container: &Container, real: u32) -> Option<u32> {
    visible(container)
        .zip(0..)
        .find_map(|(index, shown)| (index == real).then_some(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembered_handle_is_found_again() {
        for device in [
            Device::Unlimited,
            Device::Denied,
            Device::Limited(0),
            Device::Limited(15),
        ] {
            assert_eq!(unpack(pack(device, 0x00ab_cdef)), device);
            assert_eq!(pack(device, 0x00ab_cdef) >> 8, 0x00ab_cdef);
        }
    }

    #[test]
    fn uuid_of_a_caller_is_compared_up_to_its_zero() {
        let text = |uuid: &str| {
            let mut text: [c_char; 96] = [0x41; 96];
            for (to, byte) in text.iter_mut().zip(uuid.bytes().chain([0])) {
                *to = c_char::from_ne_bytes([byte]);
            }
            text
        };
        let same = |uuid: &str| is_same(b"GPU-1a", &text(uuid));
        assert!(same("GPU-1a") && same("gpu-1A"));
        assert!(!same("GPU-1") && !same("GPU-1ab") && !same("GPU-1b") && !same(""));
        assert!(!is_same(b"A", &[0x41; 96]), "no zero ends it");
        assert!(!is_same(b"A", &[]));
    }

    #[test]
    fn a_row_that_is_being_written_is_left_alone() {
        let row = Row {
            handle: AtomicUsize::new(TAKEN),
            value: AtomicU32::new(7),
        };

        remember(&row, 4096, 9);

        assert_eq!(row.handle.into_inner(), TAKEN);
        assert_eq!(row.value.into_inner(), 7);
    }
}
