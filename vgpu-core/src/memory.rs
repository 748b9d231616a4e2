//! Rules: plain device memory. Reserve, call, confirm or refund. Arrays, memory shared by IPC, pools,
//! mapped memory, contexts, modules and graphs have files of their own.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use cuda_api::{CuDevicePtr, CuResult, CuStream};
use vgpu_abi::region::{Charge, Kind, SharedKey};

use crate::books::{self, Books, Place, books, size, taken};
use crate::border;
use crate::external;
use crate::graphs;
use crate::guest::Verdict;
use crate::ipc;
use crate::leaving;
use crate::log::line;
use crate::map::{Entry, Space};
use crate::offers;
use crate::query;

/// What a pointer is charged as (`Entry::what`).
pub(crate) mod what {
    /// A charge of its own.
    pub(crate) const OWN: u8 = 0;
    /// Out of a pool that cannot be asked what it holds: a charge of its own, which no context takes
    /// along.
    pub(crate) const LOOSE: u8 = 2;
    /// In the shared table, exported from here; `owner` is the context.
    pub(crate) const SHARED: u8 = 3;
    /// In the shared table, opened here: `bytes` is how often, `owner` is the context, `maps` how large
    /// it is.
    pub(crate) const OPENED: u8 = 4;
    /// Managed memory in place of the device's own, which the container's share had no room for.
    pub(crate) const PAGED: u8 = 5;
    /// Managed memory because the program asked for it, charged past the share.
    pub(crate) const MANAGED: u8 = 6;
    /// Of a pool, named to other processes: `owner` is the object that stands in the shared table, `maps`
    /// the place of the pool's books.
    pub(crate) const OFFERED: u8 = 7;
    /// Of another process's pool: `bytes` is how often it was imported, `owner` is the object that holds
    /// it.
    pub(crate) const TAKEN: u8 = 8;
    /// The same within the share.
    pub(crate) const MANAGED_HERE: u8 = 12;
}

/// Is it charged past the container's share of the device?
pub(crate) fn is_past_the_share(entry: &Entry) -> bool {
    matches!(entry.what, what::PAGED | what::MANAGED)
}

/// Has this process (or one that it was forked from) memory that is managed in place of the device's
/// own? Stands outside the wiped memory, so that whoever asks what a pointer is looks at nothing else.
static ANY_PAGED: AtomicU32 = AtomicU32::new(0);

fn any_paged() -> bool {
    // Relaxed: set before the pointer was given to anybody.
    ANY_PAGED.load(Ordering::Relaxed) != 0
}

/// Does the driver free it with the context that it was made in?
pub(crate) fn dies_with_its_context(entry: &Entry) -> bool {
    matches!(
        entry.what,
        what::OWN | what::PAGED | what::MANAGED | what::MANAGED_HERE
    )
}

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
pub(crate) struct Leaving {
    number: u64,
    entry: Entry,
}

/// A device pointer of either width of the C interface.
pub(crate) trait Address: Copy {
    fn number(self) -> u64;
}

impl Address for CuDevicePtr {
    fn number(self) -> u64 {
        self.0
    }
}

/// The interface before driver 3.2.
impl Address for u32 {
    fn number(self) -> u64 {
        u64::from(self)
    }
}

impl<T> Address for *mut T {
    fn number(self) -> u64 {
        self as u64
    }
}

/// Room on the current context's device.
#[inline(always)]
pub(crate) fn reserve_here(books: &Books, call: &str, bytes: u64) -> Verdict<Reserved> {
    match books.here() {
        Place::Device { device, owner } => match books.reserve(call, device, bytes) {
            Ok(charge) => Verdict::Call(Reserved {
                charge,
                owner,
                what: what::OWN,
            }),
            Err(result) => Verdict::Refuse(result),
        },
        Place::Elsewhere => Verdict::Pass,
        Place::Denied => Verdict::Refuse(CuResult::NOT_PERMITTED),
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
    books: &Books,
    call: &str,
    bytes: u64,
    (here, past): (u8, u8),
) -> Verdict<Reserved> {
    match books.here() {
        Place::Device { device, owner } => match books.reserve_pageable(call, device, bytes) {
            Ok(charge) => Verdict::Call(Reserved {
                charge,
                owner,
                what: if charge.is_beyond() { past } else { here },
            }),
            Err(result) => Verdict::Refuse(result),
        },
        Place::Elsewhere => Verdict::Pass,
        Place::Denied => Verdict::Refuse(CuResult::NOT_PERMITTED),
    }
}

/// The driver has given it, under this number and as this many bytes.
#[inline(always)]
pub(crate) fn given(books: &Books, reserved: Reserved, space: Space, number: u64, bytes: u64) {
    given_with(books, reserved, space, number, (bytes, 0));
}

/// The same, with a mark of the space's own (`Entry::maps`).
#[inline(always)]
pub(crate) fn given_with(
    books: &Books,
    reserved: Reserved,
    space: Space,
    number: u64,
    (bytes, maps): (u64, u32),
) {
    let charge = reserved.charge;
    books.confirm_as(charge, Kind::Buffer, bytes);
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
    let (before, kept) = books.ledger().map.put(space, number, entry);
    if let Some(before) = before {
        // The driver has given the same number again: what stood there went past us.
        forget(books, number, &before);
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
    let books = books!(Memory);
    if bytes == 0 {
        return Verdict::Pass;
    }
    reserve_here(&books, call, taken(size(bytes)))
}

/// What fits the container's share of the device is memory of the device; past it, it is managed.
#[inline(always)]
pub(crate) fn before_pageable(call: &str, bytes: usize) -> Verdict<Reserved> {
    let books = books!(Memory);
    if bytes == 0 {
        return Verdict::Pass;
    }
    reserve_pageable_here(&books, call, taken(size(bytes)), PAGEABLE)
}

/// Managed memory that the program asks for. Its pages lie where they are used, so it is charged as
/// memory of the device as long as it fits the share.
pub(crate) fn before_managed(call: &str, bytes: usize) -> Verdict<Reserved> {
    let books = books!(Memory);
    if bytes == 0 {
        return Verdict::Pass;
    }
    reserve_pageable_here(&books, call, taken(size(bytes)), MANAGED)
}

#[inline(always)]
pub(crate) fn after_alloc<A: Address>(reserved: Reserved, result: CuResult, out: *mut A) {
    let Some(books) = books::opened() else { return };
    match border::read(out) {
        Some(pointer) if result == CuResult::SUCCESS => {
            given(
                &books,
                reserved,
                Space::Pointer,
                pointer.number(),
                reserved.charge.bytes(),
            );
        }
        _ => books.refund(reserved.charge),
    }
}

const ROW_STEP: u64 = 512;

/// The driver's step of rows.
pub(crate) fn row(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(ROW_STEP).unwrap_or(u64::MAX)
}

pub(crate) fn before_pitch(call: &str, width: u64, height: u64) -> Verdict<Reserved> {
    let books = books!(Memory);
    if width == 0 || height == 0 {
        return Verdict::Pass;
    }
    reserve_here(&books, call, taken(row(width).saturating_mul(height)))
}

/// As [`before_pitch`], where the driver can be asked for managed memory instead. It refuses other
/// element sizes and a null `pitch` itself.
pub(crate) fn before_pageable_pitch(
    call: &str,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> Verdict<Reserved> {
    if pitch.is_null() || !matches!(element, 4 | 8 | 16) {
        return before_pitch(call, size(width), size(height));
    }
    let books = books!(Memory);
    if width == 0 || height == 0 {
        return Verdict::Pass;
    }
    let bytes = taken(size(pitched(width, height)));
    reserve_pageable_here(&books, call, bytes, PAGEABLE)
}

/// What pitched memory takes when we set the pitch.
pub(crate) fn pitched(width: usize, height: usize) -> usize {
    usize::try_from(row(size(width)).saturating_mul(size(height))).unwrap_or(usize::MAX)
}

/// As [`after_pitch`]; the pitch of managed memory is ours to tell.
pub(crate) fn after_pageable_pitch(
    reserved: Reserved,
    result: CuResult,
    out: *mut CuDevicePtr,
    pitch: *mut usize,
    width: usize,
    height: usize,
) {
    if is_paged(reserved) && result == CuResult::SUCCESS {
        border::write(
            pitch,
            usize::try_from(row(size(width))).unwrap_or(usize::MAX),
        );
    }
    after_pitch(reserved, result, out, figure(pitch), size(height));
}

/// Charged is what the driver's own pitch makes of it.
pub(crate) fn after_pitch<A: Address>(
    reserved: Reserved,
    result: CuResult,
    out: *mut A,
    pitch: Option<u64>,
    height: u64,
) {
    let Some(books) = books::opened() else { return };
    match border::read(out) {
        Some(pointer) if result == CuResult::SUCCESS => {
            let bytes = pitch.map_or(reserved.charge.bytes(), |it| {
                taken(it.saturating_mul(height))
            });
            given(&books, reserved, Space::Pointer, pointer.number(), bytes);
        }
        _ => books.refund(reserved.charge),
    }
}

/// A pointer that we have not seen goes to the driver unchanged. One that we have is taken out before
/// the call: after it another thread may be given the same number.
#[inline(always)]
pub(crate) fn before_free(pointer: impl Address) -> Verdict<Leaving> {
    let books = books!(Memory);
    leaving(&books, Space::Pointer, pointer.number())
}

/// The driver takes plain memory back in stream order, too, but not managed memory: that is freed
/// plainly ([`is_freed_plainly`]), which waits for what still uses it. Never within a capture, which
/// records such a free.
pub(crate) fn before_free_async(pointer: CuDevicePtr, stream: CuStream) -> Verdict<Leaving> {
    let books = books!(Memory);
    if any_paged()
        && let Some(entry) = books.ledger().map.get(Space::Pointer, pointer.0)
        && entry.what == what::PAGED
        && query::relaxed(|| query::is_capturing(stream))
    {
        return Verdict::Pass;
    }
    leaving(&books, Space::Pointer, pointer.0)
}

/// See [`before_free_async`].
pub(crate) fn is_freed_plainly(leaving: Leaving) -> bool {
    leaving.entry.what == what::PAGED
}

#[inline(always)]
pub(crate) fn leaving(books: &Books, space: Space, number: u64) -> Verdict<Leaving> {
    match books.ledger().map.take(space, number) {
        Some(entry) => Verdict::Call(Leaving { number, entry }),
        None => {
            graphs::freed_outside(books, number);
            Verdict::Pass
        }
    }
}

#[inline(always)]
pub(crate) fn after_free(leaving: Leaving, result: CuResult) {
    after_leaving(leaving, result, Space::Pointer);
}

/// As [`after_free`], of what is known by a number of another kind.
#[inline(always)]
pub(crate) fn after_leaving(leaving: Leaving, result: CuResult, space: Space) {
    let Some(books) = books::opened() else { return };
    let Leaving { number, entry } = leaving;
    if result == CuResult::SUCCESS {
        forget(&books, number, &entry);
    } else {
        books.ledger().map.put(space, number, entry);
    }
}

/// The driver takes it back when the stream gets there: until then it stays charged. A capture only
/// records the free, so nothing is freed there.
pub(crate) fn after_free_async(leaving: Leaving, result: CuResult, stream: CuStream) {
    let Some(books) = books::opened() else { return };
    let Leaving { number, entry } = leaving;
    if result != CuResult::SUCCESS || query::relaxed(|| query::is_capturing(stream)) {
        books.ledger().map.put(Space::Pointer, number, entry);
        return;
    }
    match entry.what {
        // What has no books went to its pool, and `PAGED` was freed at once.
        what::PAGED => forget(&books, number, &entry),
        what::SHARED => {
            ipc::forget_handle(&books, number);
            if let Some(key) = books.ledger().map.take(Space::SharedKey, number) {
                let key = SharedKey([key.bytes, key.owner]);
                leaving::leave(&books, &entry, Some(key), stream);
            }
        }
        what::OPENED | what::OFFERED => forget(&books, number, &entry),
        what::TAKEN => {
            if offers::is_last(&books, number, &entry) {
                leaving::leave(&books, &entry, None, stream);
            }
        }
        what::OWN if entry.maps > 0 => forget(&books, number, &entry),
        _ => leaving::leave(&books, &entry, None, stream),
    }
}

/// The driver has taken it back.
pub(crate) fn forget(books: &Books, number: u64, entry: &Entry) {
    let device = usize::from(entry.device);
    match entry.what {
        what::SHARED => ipc::freed(books, number),
        what::OPENED => ipc::closed(books, number),
        what::OFFERED => offers::freed(books, number, entry),
        what::TAKEN => offers::ended(books, number, entry),
        what::OWN if entry.maps > 0 => external::freed(books, number, entry),
        what::PAGED | what::MANAGED => {
            let region = &books.container.region;
            region.release_beyond(device, entry.bytes, Kind::Buffer);
        }
        _ => books
            .container
            .region
            .release(device, entry.bytes, Kind::Buffer),
    }
}

/// The entry of an allocation that is managed in place of the device's own memory, by any address in
/// it.
pub(crate) fn paged(books: &Books, address: CuDevicePtr) -> Option<Entry> {
    if !any_paged() {
        return None;
    }
    let base = query::relaxed(|| query::allocation_of(address))?;
    let entry = books.ledger().map.get(Space::Pointer, base)?;
    (entry.what == what::PAGED).then_some(entry)
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
    data: *mut c_void,
    attribute: u32,
    address: CuDevicePtr,
) -> Option<CuResult> {
    if result != CuResult::SUCCESS
        || !any_paged()
        || !matches!(attribute, MEMORY_TYPE | HOST_POINTER | IS_MANAGED)
    {
        return None;
    }
    paged(&books::opened()?, address)?;
    match attribute {
        HOST_POINTER => return Some(CuResult::INVALID_VALUE),
        MEMORY_TYPE => border::write(data.cast::<u32>(), DEVICE_MEMORY),
        // A truth value of whatever width, as the driver has just written it.
        _ => border::write(data.cast::<u8>(), 0),
    }
    None
}

/// As [`after_attribute`], of several at once: what does not apply is 0 there, and no error.
pub(crate) fn after_attributes(
    result: CuResult,
    count: u32,
    attributes: *const u32,
    data: *mut *mut c_void,
    address: CuDevicePtr,
) {
    if result != CuResult::SUCCESS || !any_paged() {
        return;
    }
    let Some(books) = books::opened() else { return };
    if paged(&books, address).is_none() {
        return;
    }
    for at in 0..count as usize {
        let attribute = border::read(attributes.wrapping_add(at));
        let Some(to) = border::read(data.wrapping_add(at)) else {
            return;
        };
        match attribute {
            Some(MEMORY_TYPE) => border::write(to.cast::<u32>(), DEVICE_MEMORY),
            Some(HOST_POINTER) => border::write(to.cast::<u64>(), 0),
            Some(IS_MANAGED) => border::write(to.cast::<u8>(), 0),
            _ => {}
        }
    }
}

pub(crate) fn unhold(books: &Books, key: SharedKey) {
    if let Err(error) = books.container.region.unhold(key) {
        line!(Warn, "a shared object stays charged: {error}");
    }
}

/// The name of a shared object, from the bytes by which the driver names it to other processes.
pub(crate) fn key_of(bytes: &[u8]) -> SharedKey {
    let half = |seed: u64| {
        bytes.iter().fold(seed, |hash, &byte| {
            (hash ^ u64::from(byte))
                .wrapping_mul(0x0100_0000_01b3)
                .rotate_left(5)
        })
    };
    SharedKey([half(0xcbf2_9ce4_8422_2325) | 1, half(0x9e37_79b9_7f4a_7c15)])
}

/// A C pointer to a figure of either width.
pub(crate) fn figure<T: Copy + TryInto<u64>>(from: *const T) -> Option<u64> {
    border::read(from)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_as_their_bytes_do() {
        let mut bytes = [0u8; 64];
        let first = key_of(&bytes);
        bytes[63] = 1;

        assert_ne!(first, key_of(&bytes));
    }
}
