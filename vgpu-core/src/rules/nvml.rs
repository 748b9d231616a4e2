//! The NVML that a container sees: its share as if it were the GPU, its processes as if there were no
//! others. The real function has always been called first; a rule here changes an answer that the
//! driver gave, or translates a failure that comes from the container's own numbering. Allocates nothing, and leaves
//! the driver's answers about devices that are not the container's as they are.
//!
//! `nvmlInternalGetExportTable` and everything that has no row in `hooks/nvml.rs` is the driver's alone.

pub(crate) mod devices;
pub(crate) mod lists;
pub(crate) mod names;

use cuda_api::nvml::*;

use crate::driver::device::Device;
use crate::driver::genuine::nvml as driver;
use crate::driver::query;
use crate::guest::border::{InPtr, OutPtr};
use crate::guest::manners::Verdict;
use crate::state::accounts::{Accounts, Group};
use crate::state::standing;

/// A device that is charged, and the container's accounts.
#[derive(Clone, Copy)]
struct Limited {
    accounts: Accounts,
    /// Index in limits and region.
    index: usize,
}

/// The container's accounts, if there is a container; the call is counted.
fn here() -> Option<Accounts> {
    let accounts = standing::opened()?;
    accounts.count(Group::Nvml);
    Some(accounts)
}

/// The container's device behind a handle; `None` if the driver's answer is not changed.
fn limited(device: NvmlDevice) -> Option<Limited> {
    let accounts = here()?;
    match devices::of(accounts.container, device)? {
        Device::Limited(index) => {
            accounts.process.tick(accounts.container);
            Some(Limited { accounts, index })
        }
        Device::Unlimited | Device::Denied => None,
    }
}

/// How much room the caller has for a list, before the driver overwrites it.
pub(crate) fn room(count: OutPtr<u32>) -> Verdict<u32, NvmlReturn> {
    match count.read() {
        Some(room) if standing::opened().is_some() => Verdict::Call(room),
        _ => Verdict::Pass,
    }
}

pub(crate) fn after_init(result: NvmlReturn) {
    if result.is_success() {
        devices::forget();
    }
}

/// A GPU's memory as the container has it: total, used, free. `physical` and `physical_free` are the
/// driver's. Without a cap the whole GPU is there, but no more is free than the GPU has.
fn share(limit: u64, used: u64, physical: u64, physical_free: u64) -> NvmlMemory {
    if limit == 0 {
        let free = physical.saturating_sub(used).min(physical_free);
        return NvmlMemory {
            total: physical,
            used,
            free,
        };
    }
    let total = limit.min(physical);
    let left = total.saturating_sub(used);
    // A GPU smaller than the limit, or one that the driver itself limits further, is the driver's.
    let free = if physical < limit {
        left.min(physical_free)
    } else {
        left
    };
    NvmlMemory { total, used, free }
}

/// The window onto a GPU as the container has it: no larger than its share, and no more of it in use
/// than the container holds. Without a cap it is the driver's.
fn window(limit: u64, held: u64, driver: &NvmlBar1Memory) -> NvmlBar1Memory {
    if limit == 0 || limit >= driver.total {
        return *driver;
    }
    let used = driver.used.min(held).min(limit);
    NvmlBar1Memory {
        total: limit,
        free: limit - used,
        used,
    }
}

impl Limited {
    /// Bytes that the container holds, as far as the library or the host knows.
    fn used(&self) -> u64 {
        let Accounts { container, process } = self.accounts;
        let beyond = process.unaccounted(self.index);
        container.region.used(self.index).saturating_add(beyond)
    }

    fn share(&self, physical: u64, physical_free: u64) -> NvmlMemory {
        let Accounts { container, process } = self.accounts;
        let limit = process.memory_limit(container, self.index);
        let used = self.used();
        // Where a part of the share is managed memory, the GPU is no bound.
        let physical = match process.resident_limit(self.index) {
            0 => physical,
            _ => physical.max(limit),
        };
        share(limit, used, physical, physical_free)
    }
}

pub(crate) fn after_memory(result: NvmlReturn, device: NvmlDevice, memory: OutPtr<NvmlMemory>) {
    if !result.is_success() {
        return;
    }
    if let (Some(limited), Some(driver)) = (limited(device), memory.read()) {
        memory.write(limited.share(driver.total, driver.free));
    }
}

pub(crate) fn after_memory_v2(
    result: NvmlReturn,
    device: NvmlDevice,
    memory: OutPtr<NvmlMemoryV2>,
) {
    if !result.is_success() {
        return;
    }
    if let (Some(limited), Some(driver)) = (limited(device), memory.read()) {
        let NvmlMemory { total, used, free } = limited.share(driver.total, driver.free);
        // The driver's reserved memory is no part of a share that is smaller than the GPU.
        let reserved = if total < driver.total {
            0
        } else {
            driver.reserved
        };
        let free = free.min(total.saturating_sub(reserved));
        memory.write(NvmlMemoryV2 {
            version: driver.version,
            total,
            reserved,
            free,
            used,
        });
    }
}

/// A control group's limits as the container has them: its share where that is smaller, and its own use instead of the
/// group's, which may be a neighbour's. Without a cap the driver's limits stay.
fn limits(limit: u64, used: u64, driver: &NvmlMemoryLimits) -> NvmlMemoryLimits {
    let cap = if limit == 0 { MEMORY_LIMIT_MAX } else { limit };
    NvmlMemoryLimits {
        soft_limit: driver.soft_limit.min(cap),
        hard_limit: driver.hard_limit.min(cap),
        current_used: used,
        ..*driver
    }
}

pub(crate) fn after_limits(
    result: NvmlReturn,
    device: NvmlDevice,
    answer: OutPtr<NvmlMemoryLimits>,
) {
    if !result.is_success() {
        return;
    }
    if let (Some(limited), Some(driver)) = (limited(device), answer.read()) {
        let Accounts { container, process } = limited.accounts;
        let limit = process.memory_limit(container, limited.index);
        answer.write(limits(limit, limited.used(), &driver));
    }
}

/// A container's root could otherwise raise the limit that the host has set.
pub(crate) fn before_set_limits(device: NvmlDevice) -> Verdict<(), NvmlReturn> {
    match limited(device) {
        Some(_) => Verdict::Refuse(NvmlReturn::NO_PERMISSION),
        None => Verdict::Pass,
    }
}

pub(crate) fn after_bar1(result: NvmlReturn, device: NvmlDevice, memory: OutPtr<NvmlBar1Memory>) {
    if !result.is_success() {
        return;
    }
    if let (Some(limited), Some(driver)) = (limited(device), memory.read()) {
        let Accounts { container, process } = limited.accounts;
        let limit = process.memory_limit(container, limited.index);
        let held = container.region.used(limited.index);
        memory.write(window(limit, held, &driver));
    }
}

pub(crate) fn after_count(result: NvmlReturn, count: OutPtr<u32>) {
    if !result.is_success() {
        return;
    }
    if let Some(Accounts { container, .. }) = here()
        && devices::hides(container)
    {
        count.write(devices::count(container));
    }
}

pub(crate) fn after_handle_by_index(
    result: NvmlReturn,
    index: u32,
    device: OutPtr<NvmlDevice>,
) -> Option<NvmlReturn> {
    let Accounts { container, .. } = here()?;
    if result == NvmlReturn::UNINITIALIZED || device.is_null() || !devices::hides(container) {
        return None;
    }
    let Some(real) = devices::real_index(container, index) else {
        device.write(NvmlDevice::NULL);
        return Some(NvmlReturn::INVALID_ARGUMENT);
    };
    if real == index && result.is_success() {
        return None;
    }
    // SAFETY: `device` is the program's, for a call that writes a handle there.
    Some(unsafe { driver::nvmlDeviceGetHandleByIndex_v2(real, device.raw()) })
}

pub(crate) fn after_index(result: NvmlReturn, device: NvmlDevice, index: OutPtr<u32>) {
    if !result.is_success() {
        return;
    }
    let Some(Accounts { container, .. }) = here() else {
        return;
    };
    if !devices::hides(container) || query::gpu_of(device).is_some() {
        return;
    }
    if let Some(shown) = index
        .read()
        .and_then(|real| devices::shown_index(container, real))
    {
        index.write(shown);
    }
}

pub(crate) fn after_handle(result: NvmlReturn, device: OutPtr<NvmlDevice>) -> Option<NvmlReturn> {
    if !result.is_success() {
        return None;
    }
    let Accounts { container, .. } = here()?;
    let handle = device.read()?;
    if !devices::hides(container) || devices::is_visible(container, handle) {
        return None;
    }
    device.write(NvmlDevice::NULL);
    Some(NvmlReturn::NOT_FOUND)
}

/// Events of a GPU that the caller names by its UUID, as if it looked the GPU up.
pub(crate) fn before_events_by_uuid(
    config: InPtr<NvmlOperationalEventConfig>,
) -> Verdict<(), NvmlReturn> {
    let Some(Accounts { container, .. }) = here() else {
        return Verdict::Pass;
    };
    match config.read() {
        Some(config)
            if devices::hides(container) && !devices::is_named(container, &config.uuid) =>
        {
            Verdict::Refuse(NvmlReturn::NOT_FOUND)
        }
        _ => Verdict::Pass,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn memory(total: u64, used: u64, free: u64) -> NvmlMemory {
        NvmlMemory {
            total: total * GIB,
            free: free * GIB,
            used: used * GIB,
        }
    }

    #[test]
    fn a_limit_is_the_size_of_the_gpu() {
        assert_eq!(share(4 * GIB, GIB, 16 * GIB, 2 * GIB), memory(4, 1, 3));
    }

    #[test]
    fn a_limit_above_the_gpu_is_the_gpu() {
        assert_eq!(share(64 * GIB, GIB, 16 * GIB, 15 * GIB), memory(16, 1, 15));
    }

    #[test]
    fn free_memory_is_never_more_than_the_driver_reports() {
        assert_eq!(share(4 * GIB, GIB, 3 * GIB, GIB), memory(3, 1, 1));
    }

    #[test]
    fn limits_of_a_group_are_the_share_and_the_own_use() {
        let driver = |soft, hard, current_used| NvmlMemoryLimits {
            name_space: core::ptr::null(),
            soft_limit: soft,
            hard_limit: hard,
            current_used,
        };
        for (limit, hard, seen) in [
            (4 * GIB, 5 * GIB, 4 * GIB),
            (4 * GIB, 3 * GIB, 3 * GIB),
            (4 * GIB, MEMORY_LIMIT_MAX, 4 * GIB),
            (0, MEMORY_LIMIT_MAX, MEMORY_LIMIT_MAX),
        ] {
            let answer = limits(limit, GIB, &driver(0, hard, 9 * GIB));
            assert_eq!(answer, driver(0, seen, GIB), "{limit} {hard}");
        }
    }

    #[test]
    fn the_window_is_no_larger_than_the_share() {
        let bar = |total: u64, used: u64| NvmlBar1Memory {
            total: total * GIB,
            free: (total - used) * GIB,
            used: used * GIB,
        };
        for (limit, held, driver, seen) in [
            (4, 2, bar(16, 1), bar(4, 1)),
            (4, 2, bar(16, 9), bar(4, 2)),
            (4, 6, bar(16, 9), bar(4, 4)),
            (32, 2, bar(16, 9), bar(16, 9)),
            (0, 2, bar(16, 9), bar(16, 9)),
        ] {
            assert_eq!(window(limit * GIB, held * GIB, &driver), seen);
        }
    }

    #[test]
    fn use_above_a_lowered_limit_leaves_zero_bytes_free() {
        assert_eq!(share(4 * GIB, 6 * GIB, 16 * GIB, 2 * GIB), memory(4, 6, 0));
    }

    #[test]
    fn without_a_cap_no_more_is_free_than_the_gpu_has() {
        assert_eq!(share(0, GIB, 16 * GIB, 2 * GIB), memory(16, 1, 2));
    }
}
