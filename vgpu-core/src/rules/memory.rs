//! Rules: plain device memory. Reserve, call, confirm or refund. Arrays, memory shared by IPC, pools,
//! mapped memory, contexts, modules and graphs have files of their own.

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use cuda_api::{CuDevicePtr, CuResult, CuStream};
use vgpu_abi::region::{Charge, Kind};

use crate::base::log::line;
use crate::driver::query;
use crate::figures::sizes::{row, size, taken};
use crate::guest::border::{Address, InPtr, OutPtr};
use crate::guest::manners::{self, Verdict};
use crate::holdings::deferred_free_charges::{ChargedTo, Freed};
use crate::holdings::pointers::{ANY_PAGED, Charged, any_paged, paged};
use crate::holdings::{exports, graph_charges, locate, offer_charges, requests};
use crate::rules::stream_frees;
use crate::state::accounts::{Accounts, Destination, Group};
use crate::state::entries::{Array, External, Pointer, PointerName, Steps, TableName};
use crate::state::standing::{self, accounts};

/// Room for something that the driver is about to give.
#[derive(Clone, Copy)]
pub(crate) struct Reserved {
    charge: Charge,
    /// Our number of the context that it will die with.
    context: u64,
    memory: AskedMemory,
}

/// The memory that the driver is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AskedMemory {
    /// The device's own.
    Own,
    /// Managed memory in place of the device's own.
    Paged,
    /// Managed memory that the program asks for, within the container's share of the device.
    ManagedHere,
    /// The same, past the share.
    Managed,
}

/// Is the driver to be asked for managed memory in place of its own?
pub(crate) fn is_paged(reserved: &Reserved) -> bool {
    reserved.memory == AskedMemory::Paged
}

impl Reserved {
    pub(crate) fn charge(&self) -> Charge {
        self.charge
    }

    /// Index in the region.
    fn device(&self) -> u8 {
        u8::try_from(self.charge.device()).unwrap_or(u8::MAX)
    }

    #[inline(always)]
    fn own(&self, bytes: u64) -> Pointer {
        Pointer::Own {
            bytes,
            context: self.context,
            device: self.device(),
            descriptors: 0,
        }
    }

    fn pointer(&self, bytes: u64) -> Pointer {
        let (context, device) = (self.context, self.device());
        match self.memory {
            AskedMemory::Own => self.own(bytes),
            AskedMemory::Paged => Pointer::Paged {
                bytes,
                context,
                device,
            },
            AskedMemory::ManagedHere => Pointer::ManagedHere {
                bytes,
                context,
                device,
            },
            AskedMemory::Managed => Pointer::Managed {
                bytes,
                context,
                device,
            },
        }
    }

    pub(crate) fn array(&self, bytes: u64, doubtful: Steps) -> Array {
        Array {
            bytes,
            context: self.context,
            doubtful,
            device: self.device(),
        }
    }

    pub(crate) fn external(&self, bytes: u64) -> External {
        External {
            bytes,
            context: self.context,
            device: self.device(),
        }
    }
}

/// Something that the driver is about to take back.
#[derive(Clone, Copy)]
pub(crate) struct Freeing<T = Pointer> {
    number: u64,
    entry: T,
}

/// Room on the current context's device.
#[inline(always)]
pub(crate) fn reserve_here(accounts: &Accounts, call: &str, bytes: u64) -> Verdict<Reserved> {
    match locate::here(accounts) {
        Destination::Device { device, owner } => {
            match requests::reserve(accounts, call, device, bytes) {
                Ok(charge) => Verdict::Call(Reserved {
                    charge,
                    context: owner,
                    memory: AskedMemory::Own,
                }),
                Err(result) => Verdict::Refuse(result),
            }
        }
        Destination::Elsewhere => Verdict::Pass,
        Destination::Denied => Verdict::Refuse(CuResult::NOT_PERMITTED),
    }
}

/// Plain memory, within the share and past it.
const PAGEABLE: (AskedMemory, AskedMemory) = (AskedMemory::Own, AskedMemory::Paged);

/// The same of managed memory.
const MANAGED: (AskedMemory, AskedMemory) = (AskedMemory::ManagedHere, AskedMemory::Managed);

/// The same for what the driver can give as managed memory: within the container's share of the device
/// it is `here`, past it `past`.
#[inline(always)]
fn reserve_pageable_here(
    accounts: &Accounts,
    call: &str,
    bytes: u64,
    (here, past): (AskedMemory, AskedMemory),
) -> Verdict<Reserved> {
    match locate::here(accounts) {
        Destination::Device { device, owner } => {
            match requests::reserve_pageable(accounts, call, device, bytes) {
                Ok(charge) => Verdict::Call(Reserved {
                    charge,
                    context: owner,
                    memory: if charge.is_beyond() { past } else { here },
                }),
                Err(result) => Verdict::Refuse(result),
            }
        }
        Destination::Elsewhere => Verdict::Pass,
        Destination::Denied => Verdict::Refuse(CuResult::NOT_PERMITTED),
    }
}

/// The driver has given a pointer, to as many bytes.
#[inline(always)]
fn given_pointer(accounts: &Accounts, reserved: Reserved, number: u64, bytes: u64) {
    if reserved.memory == AskedMemory::Own {
        given(accounts, reserved, number, bytes, reserved.own(bytes));
    } else {
        given_managed(accounts, reserved, number, bytes);
    }
}

/// The same of managed memory.
#[inline(never)]
fn given_managed(accounts: &Accounts, reserved: Reserved, number: u64, bytes: u64) {
    given(accounts, reserved, number, bytes, reserved.pointer(bytes));
    if is_paged(&reserved) {
        // Relaxed: see `any_paged`.
        ANY_PAGED.store(1, Ordering::Relaxed);
        query::relaxed(|| query::prefer_device(CuDevicePtr(number), bytes));
    }
}

/// The driver has given it, under this number and as this many bytes.
#[inline(always)]
pub(crate) fn given<T: Charged>(
    accounts: &Accounts,
    reserved: Reserved,
    number: u64,
    bytes: u64,
    entry: T,
) {
    accounts.confirm_as(reserved.charge, Kind::Buffer, bytes);
    if !accounts.holdings().map.put_new(number, entry) {
        remember(accounts, number, bytes, entry);
    }
}

/// Remembers what [`given`] could not put at once: the number has an entry, or the map is to grow.
#[cold]
#[inline(never)]
fn remember<T: Charged>(accounts: &Accounts, number: u64, bytes: u64, entry: T) {
    let (before, kept) = accounts.holdings().map.put(number, entry);
    if let Some(before) = before {
        // The driver has given the same number again: it took the earlier one back past us.
        before.forget(accounts, number);
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

/// Memory that fits the container's share of the device is the device's own; past the share, it is managed.
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
            let bytes = reserved.charge.bytes();
            given_pointer(&accounts, reserved, pointer.number(), bytes);
        }
        _ => accounts.refund(reserved.charge),
    }
}

/// [`before_pageable`] where there is room within the container's share of the device, in the hook's own frame
/// ([`manners::ask_at_once`]). `None`: nothing is reserved, and [`before_pageable`] decides.
#[inline(always)]
pub(crate) fn alloc_at_once(bytes: usize) -> Option<ReservedOwn> {
    if bytes == 0 {
        return None;
    }
    manners::ask_at_once(|| {
        let accounts = standing::ready_now()?;
        if !manners::is_watched() || manners::is_any_pending() {
            return None;
        }
        let (device, context) = locate::here_as_before(&accounts)?;
        if requests::is_any_work_due(&accounts) {
            return None;
        }
        let bounds = accounts.known_bounds(device)?;
        let region = &accounts.container.region;
        let charge = region.reserve_at_once(device, taken(size(bytes)), bounds)?;
        manners::note_pending_at_once(charge);
        accounts.count(Group::Memory);
        Some(ReservedOwn { charge, context })
    })
}

/// Room for plain memory within the container's share: what [`Reserved`] has of it.
#[derive(Clone, Copy)]
pub(crate) struct ReservedOwn {
    charge: Charge,
    context: u64,
}

impl From<ReservedOwn> for Reserved {
    fn from(ReservedOwn { charge, context }: ReservedOwn) -> Self {
        Self {
            charge,
            context,
            memory: AskedMemory::Own,
        }
    }
}

/// [`after_alloc`] of memory that the driver has given, in the hook's own frame ([`manners::at_once`]). False: nothing is done
/// that [`after_alloc`] does not do.
#[inline(always)]
pub(crate) fn given_at_once<A: Address>(
    reserved: ReservedOwn,
    result: CuResult,
    out: OutPtr<A>,
) -> bool {
    if result != CuResult::SUCCESS {
        return false;
    }
    let reserved = Reserved::from(reserved);
    let Some(pointer) = out.read() else {
        return false;
    };
    let (number, bytes) = (pointer.number(), reserved.charge.bytes());
    let is_put = manners::at_once(|| {
        let accounts = standing::ready_now()?;
        let region = &accounts.container.region;
        if !region.confirm_at_once(reserved.charge, Kind::Buffer) {
            return None;
        }
        manners::settle_pending();
        Some(accounts.holdings().map.put_new(number, reserved.own(bytes)))
    });
    if is_put == Some(false) {
        remember_with_manners(number, bytes, reserved.own(bytes));
    }
    is_put.is_some()
}

#[cold]
#[inline(never)]
fn remember_with_manners(number: u64, bytes: u64, entry: Pointer) {
    manners::after((), || {
        if let Some(accounts) = standing::opened() {
            remember(&accounts, number, bytes, entry);
        }
    });
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

/// The size of pitched memory when we set the pitch.
pub(crate) fn pitched(width: usize, height: usize) -> usize {
    usize::try_from(row(size(width)).saturating_mul(size(height))).unwrap_or(usize::MAX)
}

/// As [`after_pitch`]; of managed memory the library computes the pitch.
pub(crate) fn after_pageable_pitch(
    reserved: Reserved,
    result: CuResult,
    out: OutPtr<CuDevicePtr>,
    pitch: OutPtr<usize>,
    width: usize,
    height: usize,
) {
    if is_paged(&reserved) && result == CuResult::SUCCESS {
        pitch.write(usize::try_from(row(size(width))).unwrap_or(usize::MAX));
    }
    after_pitch(reserved, result, out, pitch, size(height));
}

/// Confirms the charge at the size that follows from the driver's pitch.
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
            given_pointer(&accounts, reserved, pointer.number(), bytes);
        }
        _ => accounts.refund(reserved.charge),
    }
}

/// A pointer that the library has not seen is passed to the driver unchanged. One that we have is taken out before
/// the call: after it another thread may be given the same number.
#[inline(always)]
pub(crate) fn before_free(pointer: impl Address) -> Verdict<Freeing> {
    let accounts = accounts!(Memory);
    freeing(&accounts, pointer.number())
}

/// Plain memory that the driver is about to take back: what [`Freeing`] has of it.
#[derive(Clone, Copy)]
pub(crate) struct FreeingOwn {
    number: u64,
    bytes: u64,
    context: u64,
    device: u8,
}

impl From<FreeingOwn> for Freeing {
    fn from(own: FreeingOwn) -> Self {
        let FreeingOwn {
            number,
            bytes,
            context,
            device,
        } = own;
        let entry = Pointer::Own {
            bytes,
            context,
            device,
            descriptors: 0,
        };
        Self { number, entry }
    }
}

/// [`before_free`] of plain memory in the hook's own frame ([`manners::at_once`]). `None`: [`before_free`] decides.
#[inline(always)]
pub(crate) fn free_at_once(pointer: impl Address) -> Option<FreeingOwn> {
    let number = pointer.number();
    manners::at_once(|| {
        let accounts = standing::ready_now()?;
        if manners::is_any_pending() {
            return None;
        }
        let own = accounts.holdings().map.take_if(number, |entry| {
            let Pointer::Own {
                bytes,
                context,
                device,
                descriptors: 0,
            } = *entry
            else {
                return None;
            };
            Some(FreeingOwn {
                number,
                bytes,
                context,
                device,
            })
        })?;
        accounts.count(Group::Memory);
        Some(own)
    })
}

/// [`after_free`] of memory that the driver has taken back, in the hook's own frame ([`manners::at_once`]). False: nothing
/// is done that [`after_free`] does not do.
#[inline(always)]
pub(crate) fn freed_at_once(freeing: FreeingOwn, result: CuResult) -> bool {
    if result != CuResult::SUCCESS {
        return false;
    }
    let released = manners::at_once(|| {
        let region = &standing::ready_now()?.container.region;
        region
            .release_at_once(usize::from(freeing.device), freeing.bytes, Kind::Buffer)
            .then_some(())
    });
    released.is_some()
}

/// The driver takes plain memory back in stream order, too, but not managed memory: that is freed
/// plainly ([`is_freed_plainly`]), which waits for what still uses it. Never within a capture, which
/// records such a free.
pub(crate) fn before_free_async(pointer: CuDevicePtr, stream: CuStream) -> Verdict<Freeing> {
    let accounts = accounts!(Memory);
    if any_paged()
        && let Some(Pointer::Paged { .. }) = accounts.holdings().map.get(pointer.0)
        && query::relaxed(|| query::is_capturing(stream))
    {
        return Verdict::Pass;
    }
    freeing(&accounts, pointer.0)
}

/// See [`before_free_async`].
pub(crate) fn is_freed_plainly(freeing: &Freeing) -> bool {
    matches!(freeing.entry, Pointer::Paged { .. })
}

#[inline(always)]
pub(crate) fn freeing<T: Charged>(accounts: &Accounts, number: u64) -> Verdict<Freeing<T>> {
    match accounts.holdings().map.take(number) {
        Some(entry) => Verdict::Call(Freeing { number, entry }),
        None => {
            graph_charges::freed_outside(accounts, number);
            Verdict::Pass
        }
    }
}

#[inline(always)]
pub(crate) fn after_free<T: Charged>(freeing: Freeing<T>, result: CuResult) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let Freeing { number, entry } = freeing;
    if result == CuResult::SUCCESS {
        entry.forget(&accounts, number);
    } else {
        accounts.holdings().map.put(number, entry);
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
        accounts.holdings().map.put(number, entry);
        return;
    }
    let leave = |bytes, device, context, charged| {
        let freed = Freed {
            bytes,
            device,
            context,
            charged,
        };
        stream_frees::leave(&accounts, freed, stream);
    };
    match entry {
        // Memory without a charge of its own went to its pool, and `Paged` was freed at once.
        Pointer::Paged { .. }
        | Pointer::Opened { .. }
        | Pointer::Offered { .. }
        | Pointer::Own {
            descriptors: 1.., ..
        } => entry.forget(&accounts, number),
        Pointer::Exported {
            bytes,
            context,
            device,
            ..
        } => {
            exports::forget_handle(&accounts, number);
            if let Some(PointerName(TableName::Exported(key))) =
                accounts.holdings().map.take(number)
            {
                leave(bytes, device, context, ChargedTo::Table(key));
            }
        }
        // An import of a pool's memory is held by an object, and dies with no context.
        Pointer::Taken { object, device, .. } => {
            if offer_charges::is_last(&accounts, number, &entry) {
                leave(0, device, 0, ChargedTo::Object(object));
            }
        }
        Pointer::Own {
            bytes,
            context,
            device,
            ..
        }
        | Pointer::ManagedHere {
            bytes,
            context,
            device,
        } => leave(bytes, device, context, ChargedTo::Slot),
        Pointer::Loose { bytes, device } => leave(bytes, device, 0, ChargedTo::Slot),
        Pointer::Managed {
            bytes,
            context,
            device,
        } => leave(bytes, device, context, ChargedTo::SlotPastTheShare),
    }
}

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, `…_HOST_POINTER` and `…_IS_MANAGED`.
const MEMORY_TYPE: u32 = 2;

const HOST_POINTER: u32 = 4;

const IS_MANAGED: u32 = 8;

/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE_MEMORY: u32 = 2;

/// Memory that a program requested as device memory looks like device memory to it, even if it is managed: the program
/// asks in order to choose a way of copying, or to tell another library about its memory. (The driver says where a page
/// of managed memory is.) When the program tries to share it by IPC, the driver answers that it cannot.
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

/// As [`after_attribute`], of several at once: an attribute that does not apply is 0 there, and no error.
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
