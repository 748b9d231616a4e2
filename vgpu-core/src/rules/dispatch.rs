//! Rules: looking up functions and devices. `cuGetProcAddress` is answered by the driver first, and
//! the address that it gave is exchanged for our hook of that very function; devices that are not the
//! container's are not counted and not found.

use core::ffi::{c_char, c_void};

use cuda_api::{CuDevice, CuResult};

use crate::driver::addresses::Lookup;
use crate::driver::device::Device;
use crate::driver::query;
use crate::guest::border::{InPtr, OutPtr};
use crate::guest::manners::Verdict;
use crate::state::accounts::{self, Group};
use crate::state::standing::{self, Standing, accounts};

/// Nothing begins with limits that were not understood.
pub(crate) fn before_init() -> Verdict<()> {
    let accounts = accounts!(Dispatch);
    accounts.process.driver_starts();
    Verdict::Call(())
}

pub(crate) fn after_init(_: (), result: CuResult) {
    if result == CuResult::SUCCESS
        && let Some(accounts) = standing::opened()
    {
        accounts.process.driver_started();
    }
}

pub(crate) fn after_proc_address(
    result: CuResult,
    lookup: &Lookup,
    symbol: InPtr<c_char>,
    out: OutPtr<*mut c_void>,
    version: i32,
    flags: u64,
) {
    if result != CuResult::SUCCESS {
        return;
    }
    let (Some(found), Some(symbol)) = (out.read(), symbol.text()) else {
        return;
    };
    if found.is_null() {
        return;
    }
    if let Some(hook) = lookup.hook_of(found, symbol, version, flags) {
        out.write(hook.cast_mut());
    }
}

/// Are there devices that the container may not see? Then it counts without them.
fn hidden() -> Option<accounts::Accounts> {
    let Standing::Ready(container, process) = standing::standing() else {
        return None;
    };
    let accounts = accounts::Accounts { container, process };
    accounts.count(Group::Report);
    Some(accounts)
}

/// The driver's ordinals of the devices that the container may use.
fn allowed(accounts: &accounts::Accounts) -> impl Iterator<Item = i32> {
    let count = query::device_count().unwrap_or(0);
    (0..count).filter(|&it| accounts.process.device(accounts.container, it) != Device::Denied)
}

pub(crate) fn after_device_count(result: CuResult, count: OutPtr<i32>) {
    if result != CuResult::SUCCESS {
        return;
    }
    let Some(accounts) = hidden() else { return };
    count.write(allowed(&accounts).fold(0, |count, _| count + 1));
}

/// By the container's numbering, which leaves out what it may not use.
pub(crate) fn after_device_get(
    result: CuResult,
    device: OutPtr<CuDevice>,
    ordinal: i32,
) -> Option<CuResult> {
    if result != CuResult::SUCCESS {
        return None;
    }
    let accounts = hidden()?;
    match allowed(&accounts).nth(usize::try_from(ordinal).ok()?) {
        Some(real) => device.write(CuDevice(real)),
        None => return Some(CuResult::INVALID_DEVICE),
    }
    None
}

/// A device by another name: not found when the container may not use it.
pub(crate) fn after_device_named(result: CuResult, device: OutPtr<CuDevice>) -> Option<CuResult> {
    if result != CuResult::SUCCESS {
        return None;
    }
    let accounts = hidden()?;
    let found = device.read()?;
    let denied = accounts.process.device(accounts.container, found.0) == Device::Denied;
    denied.then_some(CuResult::INVALID_DEVICE)
}
