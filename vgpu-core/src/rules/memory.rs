//! Rules: plain device memory. Reserve, call, confirm or refund. Arrays, memory shared by IPC, pools,
//! mapped memory, contexts, modules and graphs have files of their own.

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use cuda_api::{CuDevicePtr, CuResult, CuStream};
use vgpu_abi::region::{Charge, Kind, SharedKey};

use crate::base::log::line;
use crate::base::map::{Entry, Space};
use crate::driver::query;
use crate::figures::sizes::{row, size, taken};
use crate::guest::border::{Address, InPtr, OutPtr};
use crate::guest::manners::Verdict;
use crate::holdings::pointers::{ANY_PAGED, any_paged, forget, paged};
use crate::holdings::{exports, graph_charges, locate, offer_charges, requests};
use crate::rules::stream_frees;
use crate::state::accounts::{Accounts, Destination};
use crate::state::entries::what;
use crate::state::standing::{self, accounts};

/// Room for something that the driver is about to give.
#[derive(Clone, Copy)]
pub(crate) struct Reserved {
    charge: Charge,
    owner: u64,
    what: u8,
}

/// Is the driver to be asked for managed memory in place of its own?
pub(crate) fn is_paged(reserved: Reserved) -> bool {
    reserved.what == what::PAGED
}

impl Reserved {
    pub(crate) fn charge(&self) -> Charge {
        self.charge
    }
}

/// Something that the driver is about to take back.
#[derive(Clone, Copy)]
pub(crate) struct Freeing {
    number: u64,
    entry: Entry,
}

/// Room on the current context's device.
#[inline(always)]
pub(crate) fn reserve_here(accounts: &Accounts, call: &str, bytes: u64) -> Verdict<Reserved> {
    match locate::here(accounts) {
        Destination::Device { device, owner } => {
            match requests::reserve(accounts, call, device, bytes) {
                Ok(charge) => Verdict::Call(Reserved {
                    charge,
                    owner,
                    what: what::OWN,
                }),
                Err(result) => Verdict::Refuse(result),
            }
        }
        Destination::Elsewhere => Verdict::Pass,
        Destination::Denied => Verdict::Refuse(CuResult::NOT_PERMITTED),
    }
}

/// What plain memory is charged as, within the share and past it.
const PAGEABLE: (u8, u8) = (what::OWN, what::PAGED);

/// The same of managed memory.
const MANAGED: (u8, u8) = (what::MANAGED_HERE, what::MANAGED);

/// The same for what the driver can give as managed memory: within the container's share of the device
/// it is `here`, past it `past`.
#[inline(always)]
fn reserve_pageable_here(
    accounts: &Accounts,
    call: &str,
    bytes: u64,
    (here, past): (u8, u8),
) -> Verdict<Reserved> {
    match locate::here(accounts) {
        Destination::Device { device, owner } => {
            match requests::reserve_pageable(accounts, call, device, bytes) {
                Ok(charge) => Verdict::Call(Reserved {
                    charge,
                    owner,
                    what: if charge.is_beyond() { past } else { here },
                }),
                Err(result) => Verdict::Refuse(result),
            }
        }
        Destination::Elsewhere => Verdict::Pass,
        Destination::Denied => Verdict::Refuse(CuResult::NOT_PERMITTED),
    }
}

/// The driver has given it, under this number and as this many bytes.
#[inline(always)]
pub(crate) fn given(
    accounts: &Accounts,
    reserved: Reserved,
    space: Space,
    number: u64,
    bytes: u64,
) {
    given_with(accounts, reserved, space, number, (bytes, 0));
}

/// The same, with a mark of the space's own (`Entry::maps`).
#[inline(always)]
pub(crate) fn given_with(
    accounts: &Accounts,
    reserved: Reserved,
    space: Space,
    number: u64,
    (bytes, maps): (u64, u32),
) {
    let charge = reserved.charge;
    accounts.confirm_as(charge, Kind::Buffer, bytes);
    let entry = Entry {
        bytes,
        owner: reserved.owner,
        device: u8::try_from(charge.device()).unwrap_or(u8::MAX),
        what: reserved.what,
        maps,
        ..Entry::default()
    };
    if reserved.what == what::PAGED {
        // Relaxed: see `any_paged`.
        ANY_PAGED.store(1, Ordering::Relaxed);
        query::relaxed(|| query::prefer_device(CuDevicePtr(number), bytes));
    }
    let (before, kept) = accounts.holdings().map.put(space, number, entry);
    if let Some(before) = before {
        // The driver has given the same number again: what stood there went past us.
        forget(accounts, number, &before);
    }
    if !kept {
        line!(
            Error,
            "{bytes} bytes stay charged until the end: no memory to remember them in"
        );
    }
}

#[inline(always)]
pub(crate) fn before_alloc(call: &str, bytes: usize) -> Verdict<Reserved> {
    let accounts = accounts!(Memory);
    if bytes == 0 {
        return Verdict::Pass;
    }
    reserve_here(&accounts, call, taken(size(bytes)))
}

/// What fits the container's share of the device is memory of the device; past it, it is managed.
#[inline(always)]
pub(crate) fn before_pageable(call: &str, bytes: usize) -> Verdict<Reserved> {
    let accounts = accounts!(Memory);
    if bytes == 0 {
        return Verdict::Pass;
    }
    reserve_pageable_here(&accounts, call, taken(size(bytes)), PAGEABLE)
}

/// Managed memory that the program asks for. Its pages lie where they are used, so it is charged as
/// memory of the device as long as it fits the share.
pub(crate) fn before_managed(call: &str, bytes: usize) -> Verdict<Reserved> {
    let accounts = accounts!(Memory);
    if bytes == 0 {
        return Verdict::Pass;
    }
    reserve_pageable_here(&accounts, call, taken(size(bytes)), MANAGED)
}

#[inline(always)]
pub(crate) fn after_alloc<A: Address>(reserved: Reserved, result: CuResult, out: OutPtr<A>) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    match out.read() {
        Some(pointer) if result == CuResult::SUCCESS => {
            given(
                &accounts,
                reserved,
                Space::Pointer,
                pointer.number(),
                reserved.charge.bytes(),
            );
        }
        _ => accounts.refund(reserved.charge),
    }
}

pub(crate) fn before_pitch(call: &str, width: u64, height: u64) -> Verdict<Reserved> {
    let accounts = accounts!(Memory);
    if width == 0 || height == 0 {
        return Verdict::Pass;
    }
    reserve_here(&accounts, call, taken(row(width).saturating_mul(height)))
}

/// As [`before_pitch`], where the driver can be asked for managed memory instead. It refuses other
/// element sizes and a null `pitch` itself.
pub(crate) fn before_pageable_pitch(
    call: &str,
    pitch: OutPtr<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> Verdict<Reserved> {
    if pitch.is_null() || !matches!(element, 4 | 8 | 16) {
        return before_pitch(call, size(width), size(height));
    }
    let accounts = accounts!(Memory);
    if width == 0 || height == 0 {
        return Verdict::Pass;
    }
    let bytes = taken(size(pitched(width, height)));
    reserve_pageable_here(&accounts, call, bytes, PAGEABLE)
}

/// What pitched memory takes when we set the pitch.
pub(crate) fn pitched(width: usize, height: usize) -> usize {
    usize::try_from(row(size(width)).saturating_mul(size(height))).unwrap_or(usize::MAX)
}

/// As [`after_pitch`]; the pitch of managed memory is ours to tell.
pub(crate) fn after_pageable_pitch(
    reserved: Reserved,
    result: CuResult,
    out: OutPtr<CuDevicePtr>,
    pitch: OutPtr<usize>,
    width: usize,
    height: usize,
) {
    if is_paged(reserved) && result == CuResult::SUCCESS {
        pitch.write(usize::try_from(row(size(width))).unwrap_or(usize::MAX));
    }
    after_pitch(reserved, result, out, pitch, size(height));
}

/// Charged is what the driver's own pitch makes of it.
pub(crate) fn after_pitch<A: Address, P: Copy + TryInto<u64>>(
    reserved: Reserved,
    result: CuResult,
    out: OutPtr<A>,
    pitch: OutPtr<P>,
    height: u64,
) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    match out.read() {
        Some(pointer) if result == CuResult::SUCCESS => {
            let bytes = pitch.figure().map_or(reserved.charge.bytes(), |it| {
                taken(it.saturating_mul(height))
            });
            given(&accounts, reserved, Space::Pointer, pointer.number(), bytes);
        }
        _ => accounts.refund(reserved.charge),
    }
}

/// A pointer that we have not seen goes to the driver unchanged. One that we have is taken out before
/// the call: after it another thread may be given the same number.
#[inline(always)]
pub(crate) fn before_free(pointer: impl Address) -> Verdict<Freeing> {
    let accounts = accounts!(Memory);
    freeing(&accounts, Space::Pointer, pointer.number())
}

/// The driver takes plain memory back in stream order, too, but not managed memory: that is freed
/// plainly ([`is_freed_plainly`]), which waits for what still uses it. Never within a capture, which
/// records such a free.
pub(crate) fn before_free_async(pointer: CuDevicePtr, stream: CuStream) -> Verdict<Freeing> {
    let accounts = accounts!(Memory);
    if any_paged()
        && let Some(entry) = accounts.holdings().map.get(Space::Pointer, pointer.0)
        && entry.what == what::PAGED
        && query::relaxed(|| query::is_capturing(stream))
    {
        return Verdict::Pass;
    }
    freeing(&accounts, Space::Pointer, pointer.0)
}

/// See [`before_free_async`].
pub(crate) fn is_freed_plainly(freeing: Freeing) -> bool {
    freeing.entry.what == what::PAGED
}

#[inline(always)]
pub(crate) fn freeing(accounts: &Accounts, space: Space, number: u64) -> Verdict<Freeing> {
    match accounts.holdings().map.take(space, number) {
        Some(entry) => Verdict::Call(Freeing { number, entry }),
        None => {
            graph_charges::freed_outside(accounts, number);
            Verdict::Pass
        }
    }
}

#[inline(always)]
pub(crate) fn after_free(freeing: Freeing, result: CuResult) {
    after_freeing(freeing, result, Space::Pointer);
}

/// As [`after_free`], of what is known by a number of another kind.
#[inline(always)]
pub(crate) fn after_freeing(freeing: Freeing, result: CuResult, space: Space) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let Freeing { number, entry } = freeing;
    if result == CuResult::SUCCESS {
        forget(&accounts, number, &entry);
    } else {
        accounts.holdings().map.put(space, number, entry);
    }
}

/// The driver takes it back when the stream gets there: until then it stays charged. A capture only
/// records the free, so nothing is freed there.
pub(crate) fn after_free_async(freeing: Freeing, result: CuResult, stream: CuStream) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let Freeing { number, entry } = freeing;
    if result != CuResult::SUCCESS || query::relaxed(|| query::is_capturing(stream)) {
        accounts.holdings().map.put(Space::Pointer, number, entry);
        return;
    }
    match entry.what {
        // Memory without a charge of its own went to its pool, and `PAGED` was freed at once.
        what::PAGED => forget(&accounts, number, &entry),
        what::SHARED => {
            exports::forget_handle(&accounts, number);
            if let Some(key) = accounts.holdings().map.take(Space::SharedKey, number) {
                let key = SharedKey([key.bytes, key.owner]);
                stream_frees::leave(&accounts, &entry, Some(key), stream);
            }
        }
        what::OPENED | what::OFFERED => forget(&accounts, number, &entry),
        what::TAKEN => {
            if offer_charges::is_last(&accounts, number, &entry) {
                stream_frees::leave(&accounts, &entry, None, stream);
            }
        }
        what::OWN if entry.maps > 0 => forget(&accounts, number, &entry),
        _ => stream_frees::leave(&accounts, &entry, None, stream),
    }
}

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, `…_HOST_POINTER` and `…_IS_MANAGED`.
const MEMORY_TYPE: u32 = 2;

const HOST_POINTER: u32 = 4;

const IS_MANAGED: u32 = 8;

/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE_MEMORY: u32 = 2;

/// What a program asked for as memory of the device is that to it, whatever stands behind it: it asks
/// to choose a way of copying, or to tell another library what it holds. (Of managed memory the driver
/// says where the page is.) That it cannot be shared by IPC the driver says when it is asked that.
pub(crate) fn after_attribute(
    result: CuResult,
    data: OutPtr<c_void>,
    attribute: u32,
    address: CuDevicePtr,
) -> Option<CuResult> {
    if result != CuResult::SUCCESS
        || !any_paged()
        || !matches!(attribute, MEMORY_TYPE | HOST_POINTER | IS_MANAGED)
    {
        return None;
    }
    paged(&standing::opened()?, address)?;
    match attribute {
        HOST_POINTER => return Some(CuResult::INVALID_VALUE),
        MEMORY_TYPE => data.cast::<u32>().write(DEVICE_MEMORY),
        // A truth value of whatever width, as the driver has just written it.
        _ => data.cast::<u8>().write(0),
    }
    None
}

/// As [`after_attribute`], of several at once: what does not apply is 0 there, and no error.
pub(crate) fn after_attributes(
    result: CuResult,
    count: u32,
    attributes: InPtr<u32>,
    data: OutPtr<*mut c_void>,
    address: CuDevicePtr,
) {
    if result != CuResult::SUCCESS || !any_paged() {
        return;
    }
    let Some(accounts) = standing::opened() else {
        return;
    };
    if paged(&accounts, address).is_none() {
        return;
    }
    for at in 0..count as usize {
        let attribute = attributes.at(at).read();
        let Some(to) = data.at(at).follow(|&to| to) else {
            return;
        };
        match attribute {
            Some(MEMORY_TYPE) => to.cast::<u32>().write(DEVICE_MEMORY),
            Some(HOST_POINTER) => to.cast::<u64>().write(0),
            Some(IS_MANAGED) => to.cast::<u8>().write(0),
            _ => {}
        }
    }
}
