//! Rules: figures that show memory. The container sees its share as if it were the GPU. The driver
//! has always been asked first, and an answer that it cannot give stays as it is.

use cuda_api::{CuDevice, CuResult};

use crate::driver::device::Device;
use crate::guest::border::OutPtr;
use crate::holdings::locate;
use crate::state::accounts::{Accounts, Destination, Group};
use crate::state::standing::{self, Standing};

fn shown() -> Option<Accounts> {
    match standing::standing() {
        Standing::Ready(container, process) => Some(Accounts { container, process }),
        Standing::Transparent | Standing::Closed => None,
    }
}

/// A figure that both widths of the C interface have.
pub(crate) trait Figure: Copy {
    fn get(self) -> u64;
    fn of(bytes: u64) -> Self;
}

impl Figure for usize {
    fn get(self) -> u64 {
        crate::figures::sizes::size(self)
    }
    fn of(bytes: u64) -> Self {
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

/// The interface before driver 3.2.
impl Figure for u32 {
    fn get(self) -> u64 {
        u64::from(self)
    }
    fn of(bytes: u64) -> Self {
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }
}

/// The share and what is left of it, but never more than the GPU itself has left; where a part of the
/// share is managed memory, the GPU is no bound.
pub(crate) fn after_memory_info<F: Figure>(result: CuResult, free: OutPtr<F>, total: OutPtr<F>) {
    if result != CuResult::SUCCESS {
        return;
    }
    let Some(accounts) = shown() else { return };
    accounts.count(Group::Report);
    accounts.process.tick(accounts.container);
    let Destination::Device { device, .. } = locate::here(&accounts) else {
        return;
    };
    let limit = accounts.process.memory_limit(accounts.container, device);
    if limit == 0 {
        return;
    }
    let room = accounts.process.room(accounts.container, device);
    let left = room.saturating_sub(accounts.container.region.used(device));
    let oversubscribes = accounts.process.resident_limit(device) != 0;
    if let Some(physical) = free.read() {
        let gpu = if oversubscribes {
            u64::MAX
        } else {
            physical.get()
        };
        free.write(F::of(left.min(gpu)));
    }
    if let Some(physical) = total.read() {
        let gpu = if oversubscribes {
            u64::MAX
        } else {
            physical.get()
        };
        total.write(F::of(limit.min(gpu)));
    }
}

/// The share as the GPU's size.
pub(crate) fn after_total<F: Figure>(result: CuResult, bytes: OutPtr<F>, device: CuDevice) {
    if result != CuResult::SUCCESS {
        return;
    }
    let Some(accounts) = shown() else { return };
    accounts.count(Group::Report);
    let Device::Limited(index) = accounts.process.device(accounts.container, device.0) else {
        return;
    };
    let limit = accounts.process.memory_limit(accounts.container, index);
    if limit > 0
        && let Some(physical) = bytes.read()
    {
        let oversubscribes = accounts.process.resident_limit(index) != 0;
        let gpu = if oversubscribes {
            u64::MAX
        } else {
            physical.get()
        };
        bytes.write(F::of(limit.min(gpu)));
    }
}
