//! Rules: looking up functions and devices. `cuGetProcAddress` is answered by the driver first, and
//! the address that it gave is exchanged for our hook of that very function; devices that are not the
//! container's are not counted and not found.

use core::ffi::{c_char, c_void};

use cuda_api::{CuDevice, CuResult};

use crate::driver::addresses::Lookup;
use crate::driver::device::Device;
use crate::driver::query;
use crate::guest::border;
use crate::guest::manners::Verdict;
use crate::state::books::{self, Group};
use crate::state::standing::{self, Standing, books};

/// Nothing begins with limits that were not understood.
pub(crate) fn before_init() -> Verdict<()> {
    let books = books!(Dispatch);
    books.process.driver_starts();
    Verdict::Call(())
}

pub(crate) fn after_init(_: (), result: CuResult) {
    if result == CuResult::SUCCESS
        && let Some(books) = standing::opened()
    {
        books.process.driver_started();
    }
}

pub(crate) fn after_proc_address(
    result: CuResult,
    lookup: &Lookup,
    symbol: *const c_char,
    out: *mut *mut c_void,
    version: i32,
    flags: u64,
) {
    if result != CuResult::SUCCESS {
        return;
    }
    let (Some(found), Some(symbol)) = (border::read(out), border::text(symbol)) else {
        return;
    };
    if found.is_null() {
        return;
    }
    if let Some(hook) = lookup.hook_of(found, symbol, version, flags) {
        border::write(out, hook.cast_mut());
    }
}

/// Are there devices that the container may not see? Then it counts without them.
fn hidden() -> Option<books::Books> {
    let Standing::Ready(container, process) = standing::standing() else {
        return None;
    };
    let books = books::Books { container, process };
    books.count(Group::Report);
    Some(books)
}

/// The driver's ordinals of the devices that the container may use.
fn allowed(books: &books::Books) -> impl Iterator<Item = i32> {
    let count = query::device_count().unwrap_or(0);
    (0..count).filter(|&it| books.process.device(books.container, it) != Device::Denied)
}

pub(crate) fn after_device_count(result: CuResult, count: *mut i32) {
    if result != CuResult::SUCCESS {
        return;
    }
    let Some(books) = hidden() else { return };
    border::write(count, allowed(&books).fold(0, |count, _| count + 1));
}

/// By the container's numbering, which leaves out what it may not use.
pub(crate) fn after_device_get(
    result: CuResult,
    device: *mut CuDevice,
    ordinal: i32,
) -> Option<CuResult> {
    if result != CuResult::SUCCESS {
        return None;
    }
    let books = hidden()?;
    match allowed(&books).nth(usize::try_from(ordinal).ok()?) {
        Some(real) => border::write(device, CuDevice(real)),
        None => return Some(CuResult::INVALID_DEVICE),
    }
    None
}

/// A device by another name: not found when the container may not use it.
pub(crate) fn after_device_named(result: CuResult, device: *mut CuDevice) -> Option<CuResult> {
    if result != CuResult::SUCCESS {
        return None;
    }
    let books = hidden()?;
    let found = border::read(device)?;
    let denied = books.process.device(books.container, found.0) == Device::Denied;
    denied.then_some(CuResult::INVALID_DEVICE)
}
