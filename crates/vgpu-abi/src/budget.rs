//! Reserve first: the algorithm that keeps the sum of all charges below the limit while any number
//! of processes race. Owns charge words, reserve, confirm, refund, release, and how a slot changes
//! hands, over small traits for what they need of the outside, so that the same code runs under
//! loom.
//!
//! Never makes a system call, reads a clock or maps a file.

use crate::atomic::{AtomicU32, AtomicU64, Ordering, before_exchange, seq_cst_point};
use crate::crash::crash_point;
use crate::layout::{
    CHARGE_BYTES_MASK, CHARGE_COUNT_SHIFT, CHARGE_TAG_SHIFT, ComputeUse, DeviceUse, SLOT_FREE,
    SLOT_JOINING, SLOT_USED, SLOT_WORDS, SlotHead,
};

/// What memory was taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// What the program asked for.
    Buffer,
    /// Contexts.
    Context,
    /// Modules and libraries.
    Module,
}

/// Room that was reserved: a plain value that may lie on the stack across the driver's call. It
/// must be handed back by `confirm` or `refund`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    pub(crate) device: u32,
    /// Counted as managed memory past the container's share of the device.
    pub(crate) beyond: bool,
    pub(crate) bytes: u64,
    /// The slot and its generation, as the region packs them.
    pub(crate) seat: u64,
}

impl Charge {
    /// The device's index.
    #[must_use]
    pub fn device(&self) -> usize {
        self.device as usize
    }

    /// How much, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there was room only past the container's share of the device: what is to be asked
    /// of the driver is managed memory.
    #[must_use]
    pub fn is_beyond(&self) -> bool {
        self.beyond
    }

    /// So many bytes of it, and the rest: each to be confirmed or refunded by itself.
    #[must_use]
    pub fn split(self, bytes: u64) -> (Self, Self) {
        let bytes = bytes.min(self.bytes);
        let rest = self.bytes - bytes;
        (
            Self { bytes, ..self },
            Self {
                bytes: rest,
                ..self
            },
        )
    }
}

/// What a container may have of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// In all, bytes; 0 is no cap.
    pub limit: u64,
    /// Of that as memory of the device itself, bytes; `u64::MAX` is all of it.
    pub resident: u64,
}

/// A limit, all of which may be memory of the device itself; 0 is no cap.
impl From<u64> for Bounds {
    fn from(limit: u64) -> Self {
        Self {
            limit,
            resident: Self::NO_CAP,
        }
    }
}

/// A request that was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The limit, bytes.
    pub limit: u64,
    /// What was used, bytes.
    pub used: u64,
    /// What was asked for, bytes.
    pub asked: u64,
    /// Of the limit, what could not be given because the driver holds it for the container beyond
    /// the books, bytes.
    pub unaccounted: u64,
    /// Why.
    pub why: Why,
}

/// Why a request was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// What is confirmed and what was asked for exceed the limit.
    Full,
    /// A bounded wait for another process ran out.
    TimedOut,
    /// There is no slot for this process, or no such device.
    Closed,
    /// What is confirmed and what was asked for exceed the container's share of the device itself,
    /// and only memory of the device would do. `limit` and `used` are of that share.
    NotPageable,
}

/// More than one process can be charged on one device: 16 TiB less a byte.
pub const MOST_BYTES: u64 = CHARGE_BYTES_MASK;

const TAG_MASK: u64 = u64::MAX << CHARGE_TAG_SHIFT;
const COUNT_MASK: u64 = !(TAG_MASK | CHARGE_BYTES_MASK);
const ONE_COUNT: u64 = 1 << CHARGE_COUNT_SHIFT;

/// The bytes in a charge word.
#[inline]
pub(crate) fn bytes_in(word: u64) -> u64 {
    word & CHARGE_BYTES_MASK
}

/// How a slot's generation shows in its charge words.
#[inline]
pub(crate) fn tag_of(generation: u64) -> u64 {
    generation << CHARGE_TAG_SHIFT
}

/// The slot has changed hands since this process took it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stale;

/// Why bytes were not added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAdded {
    Stale,
    /// The word has no room for so many.
    Overflow,
}

#[inline]
fn change(
    word: &AtomicU64,
    tag: u64,
    next: impl Fn(u64) -> Result<u64, NotAdded>,
) -> Result<(), NotAdded> {
    let mut old = before_exchange(word);
    loop {
        if old & TAG_MASK != tag {
            return Err(NotAdded::Stale);
        }
        // SeqCst: every process must see all changes of all charge words in one order; the proof
        // that no two can both slip past the limit stands on it.
        match word.compare_exchange(old, next(old)?, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return Ok(()),
            Err(seen) => old = seen,
        }
    }
}

/// Adds bytes to a charge word, and counts that it did.
#[inline]
pub(crate) fn add(word: &AtomicU64, tag: u64, bytes: u64) -> Result<(), NotAdded> {
    change(word, tag, |old| {
        let sum = bytes_in(old)
            .checked_add(bytes)
            .filter(|sum| *sum <= MOST_BYTES);
        let sum = sum.ok_or(NotAdded::Overflow)?;
        Ok(tag | (old.wrapping_add(ONE_COUNT) & COUNT_MASK) | sum)
    })
}

/// Takes bytes from a charge word; never below zero.
#[inline]
pub(crate) fn take(word: &AtomicU64, tag: u64, bytes: u64) -> Result<(), Stale> {
    change(word, tag, |old| {
        Ok(old & !CHARGE_BYTES_MASK | bytes_in(old).saturating_sub(bytes))
    })
    .map_err(|_| Stale)
}

/// Adds to a word that only its own process writes; what does not fit is left out.
#[inline]
fn add_plain(word: &AtomicU64, bytes: u64) {
    // Release: a process that sees the breakdown (and keeps less room for what loads) sees the charge.
    word.fetch_add(bytes, Ordering::Release);
}

#[inline]
fn take_plain(word: &AtomicU64, bytes: u64) {
    let less = |old: u64| Some(old.saturating_sub(bytes));
    // Relaxed: a breakdown for readers; no decision is made on it.
    let _old = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

fn breakdown(cells: &DeviceUse, kind: Kind) -> Option<&AtomicU64> {
    match kind {
        // The rest of `confirmed`: the commonest kind costs nothing.
        Kind::Buffer => None,
        Kind::Context => Some(&cells.contexts),
        Kind::Module => Some(&cells.modules),
    }
}

/// What the algorithm reads of the region.
pub(crate) trait Ledger {
    /// Slots of this word of the bitmap that may hold charges; nothing beyond the last word.
    fn in_use(&self, word: usize) -> Option<u64>;
    /// What a slot uses of a device.
    fn cells(&self, slot: usize, device: usize) -> Option<&DeviceUse>;
    /// The charge word of all shared objects of a device.
    fn shared(&self, device: usize) -> Option<&AtomicU64>;
    /// What contexts and modules of a process will take of a device whose runtime has been loading
    /// since then: what such processes were seen to take, or `guess` before one was seen; 0 when it
    /// has had time enough.
    fn expected(&self, device: usize, since_ns: u64, guess: u64) -> u64;
}

/// What the slow way needs of the outside. All waits end.
pub(crate) trait Outside: Ledger {
    /// How long one request has waited already.
    type Wait;
    fn begin_wait(&self) -> Self::Wait;
    /// Becomes the one process and the one thread that decides about a device. False when the time
    /// is over.
    fn enter(&self, device: usize, wait: &mut Self::Wait) -> bool;
    fn leave(&self, device: usize);
    /// Keeps the shared-object table still. False when the time is over.
    fn enter_shared(&self, wait: &mut Self::Wait) -> bool;
    fn leave_shared(&self);
    /// Clears the slots of the dead; how many.
    fn reap(&self, wait: &mut Self::Wait) -> usize;
    /// Lets others go on. False when the time is over.
    fn pause(&self, wait: &mut Self::Wait) -> bool;
}

/// Calls `each` for every slot that may hold charges.
#[inline]
pub(crate) fn each_slot<L: Ledger + ?Sized>(ledger: &L, mut each: impl FnMut(usize)) {
    for word in 0..SLOT_WORDS {
        let Some(mut bits) = ledger.in_use(word) else {
            break;
        };
        while bits != 0 {
            each(word * 64 + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
}

/// Room that is kept for a process whose runtime is loading past the driver's public interface: what
/// it will take in all, less what its books have of it.
///
/// To be read between the slot's pending and confirmed words: what was reserved leaves pending after
/// the mark was set, and what is settled is in confirmed before the breakdown says so and the mark
/// goes, so it is seen at least once.
#[inline]
pub(crate) fn kept<L: Ledger + ?Sized>(ledger: &L, cells: &DeviceUse, device: usize) -> u64 {
    // SeqCst: stands after our own addition in the one order of all changes, as the charges do.
    match cells.loading_since_ns.load(Ordering::SeqCst) {
        0 => 0,
        since_ns => kept_since(ledger, cells, device, since_ns),
    }
}

#[cold]
fn kept_since<L: Ledger + ?Sized>(
    ledger: &L,
    cells: &DeviceUse,
    device: usize,
    since_ns: u64,
) -> u64 {
    // Acquire: what the breakdown says is in `confirmed`, which is read after it.
    let contexts = cells.contexts.load(Ordering::Acquire);
    let modules = cells.modules.load(Ordering::Acquire);
    // SeqCst: stored before the mark.
    let guess = cells.loading_bytes.load(Ordering::SeqCst);
    let expected = ledger.expected(device, since_ns, guess);
    expected.saturating_sub(contexts.saturating_add(modules))
}

/// Everything that is charged or may become charged: what must not exceed the limit.
///
/// Of each slot pending is read first: a charge is added to confirmed before it is taken from
/// pending, so it is seen at least once. Slots are read before shared objects, for the same reason.
#[inline]
fn charged<L: Ledger + ?Sized>(ledger: &L, device: usize) -> u64 {
    let mut sum = 0_u64;
    each_slot(ledger, |slot| {
        if let Some(cells) = ledger.cells(slot, device) {
            // SeqCst: these loads stand after our own addition in the one order of all changes.
            let pending = bytes_in(cells.pending.load(Ordering::SeqCst));
            let kept = kept(ledger, cells, device);
            let confirmed = bytes_in(cells.confirmed.load(Ordering::SeqCst));
            sum = sum
                .saturating_add(pending)
                .saturating_add(kept)
                .saturating_add(confirmed);
        }
    });
    let shared = ledger
        .shared(device)
        .map_or(0, |word| word.load(Ordering::SeqCst));
    sum.saturating_add(bytes_in(shared))
}

/// Of what is charged: managed memory past the container's share of the device.
///
/// Only added to under the device's lock, after it was added to pending, and taken off before
/// confirmed or pending is. So a process that holds the lock and has read all those words *before* this
/// one never takes more off them than they had in them.
fn beyond<L: Ledger + ?Sized>(ledger: &L, device: usize) -> u64 {
    let mut sum = 0_u64;
    each_slot(ledger, |slot| {
        if let Some(cells) = ledger.cells(slot, device) {
            // SeqCst: stands after the loads of the other words in the one order of all changes.
            sum = sum.saturating_add(bytes_in(cells.oversubscribed.load(Ordering::SeqCst)));
        }
    });
    sum
}

/// Managed memory past the share, one word after the other: not of one moment.
#[cfg(not(loom))]
pub(crate) fn oversubscribed<L: Ledger + ?Sized>(ledger: &L, device: usize) -> u64 {
    beyond(ledger, device)
}

/// What is confirmed or kept for a runtime that is loading, added up one word after the other: not
/// of one moment.
pub(crate) fn confirmed<L: Ledger + ?Sized>(ledger: &L, device: usize) -> u64 {
    look_at_confirmed(ledger, device).0
}

/// The sum of confirmed charges and of what is kept for runtimes that are loading (which may take
/// longer than any wait here), and a fingerprint of how often each word was added to.
fn look_at_confirmed<L: Ledger + ?Sized>(ledger: &L, device: usize) -> (u64, u64) {
    let mut sum = 0_u64;
    let mut print = 0_u64;
    let mut look = |place: u64, word: u64, kept: u64| {
        sum = sum.saturating_add(bytes_in(word)).saturating_add(kept);
        let seen = place << 20 ^ (word & !CHARGE_BYTES_MASK) >> CHARGE_COUNT_SHIFT;
        print = (print.rotate_left(5) ^ seen).wrapping_mul(0x517c_c1b7_2722_0a95);
    };
    each_slot(ledger, |slot| {
        if let Some(cells) = ledger.cells(slot, device) {
            let kept = kept(ledger, cells, device);
            // SeqCst: as in `charged`.
            look(slot as u64, cells.confirmed.load(Ordering::SeqCst), kept);
        }
    });
    if let Some(shared) = ledger.shared(device) {
        // SeqCst: as in `charged`.
        look(u64::MAX, shared.load(Ordering::SeqCst), 0);
    }
    (sum, print)
}

/// How often the slow way looks for one moment before it lets others go on first.
const LOOKS: usize = 16;

/// What is confirmed, of one moment: nothing was added to any word between two looks, so all that
/// the second look found was there when it began. A refusal that stands on this sum is explained
/// by it; a sum read word by word could hold a charge on both sides of a free and an allocation.
fn confirmed_at_one_moment<L: Ledger + ?Sized>(ledger: &L, device: usize) -> Option<u64> {
    let (_, mut before) = look_at_confirmed(ledger, device);
    for _look in 0..LOOKS {
        seq_cst_point();
        let (sum, after) = look_at_confirmed(ledger, device);
        if before == after {
            return Some(sum);
        }
        before = after;
    }
    None
}

/// Why nothing was reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The slot is no longer ours: join and try again.
    Stale,
    Full {
        used: u64,
    },
    TimedOut {
        used: u64,
    },
    /// The container's share of the device itself is full.
    NotPageable {
        used: u64,
    },
    NoSuchDevice,
}

/// A place in the ledger: whose slot, and its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slot: usize,
    pub(crate) tag: u64,
}

/// How often more may be learned while a context is admitted.
const LEARNED: usize = 8;

/// What is asked for a process whose runtime will load past the driver's public interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// At least this much, bytes.
    pub(crate) least: u64,
    /// Kept for it as long as no such process was measured, bytes.
    pub(crate) guess: u64,
}

impl Need {
    /// So much, of which nothing is kept beyond its charge.
    #[cfg(loom)]
    pub(crate) fn of(least: u64) -> Self {
        Self { least, guess: 0 }
    }
}

/// Reserves room for the context of a process whose runtime will load past the driver's public
/// interface: all that it is expected to take, what it needs or more. From here on its slot says that
/// it loads. Gives what was reserved.
pub(crate) fn reserve_loading<O: Outside + ?Sized>(
    outside: &O,
    place: Place,
    device: usize,
    need: Need,
    bounds: Bounds,
    now_ns: u64,
) -> Result<u64, Refused> {
    let Some(own) = outside.cells(place.slot, device) else {
        return Err(Refused::NoSuchDevice);
    };
    for _look in 0..LEARNED {
        let bytes = need.least.max(outside.expected(device, now_ns, 0));
        reserve(outside, place, device, bytes, bounds, false)?;
        crash_point!("loading:reserved");
        // SeqCst: what a process learns before this store is seen by the look below; a process that learns
        // more after it sees this slot when it adds up.
        own.loading_bytes.store(need.guess, Ordering::SeqCst);
        own.loading_since_ns.store(now_ns, Ordering::SeqCst);
        crash_point!("loading:said");
        seq_cst_point();
        let is_enough = outside.expected(device, now_ns, 0) <= bytes;
        // SeqCst: a slot that was taken away must not be left with our mark.
        let is_mine = own.pending.load(Ordering::SeqCst) & TAG_MASK == place.tag & TAG_MASK;
        if is_enough && is_mine {
            return Ok(bytes);
        }
        own.loading_since_ns.store(0, Ordering::SeqCst);
        take(&own.pending, place.tag, bytes).map_err(|Stale| Refused::Stale)?;
    }
    Err(Refused::TimedOut {
        used: confirmed(outside, device),
    })
}

/// Where there was room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// Within the container's share of the device.
    Device,
    /// Past it, as managed memory. Counted so already.
    Beyond,
}

/// Reserves room. What is `pageable` the driver can also give as managed memory, so it gets room past the
/// container's share of the device, too.
///
/// As long as all that is charged fits the smaller bound, a look at the sum decides. From there on one request
/// at a time is decided, under the device's lock: two sums are bounded by one set of words, and only under
/// the lock is nothing added to the word that is subtracted.
#[inline]
pub(crate) fn reserve<O: Outside + ?Sized>(
    outside: &O,
    place: Place,
    device: usize,
    bytes: u64,
    bounds: Bounds,
    pageable: bool,
) -> Result<Room, Refused> {
    let Some(own) = outside.cells(place.slot, device) else {
        return Err(Refused::NoSuchDevice);
    };
    match add(&own.pending, place.tag, bytes) {
        Ok(()) => {}
        Err(NotAdded::Stale) => return Err(Refused::Stale),
        Err(NotAdded::Overflow) => {
            return Err(Refused::Full {
                used: confirmed(outside, device),
            });
        }
    }
    crash_point!("reserve:pending");
    let least = bounds.least();
    if least == Bounds::NO_CAP {
        return Ok(Room::Device);
    }
    seq_cst_point();
    if charged(outside, device) <= least {
        crash_point!("reserve:done");
        return Ok(Room::Device);
    }
    take(&own.pending, place.tag, bytes).map_err(|Stale| Refused::Stale)?;
    crash_point!("reserve:taken-back");
    let mut wait = outside.begin_wait();
    let mut at_once = false;
    loop {
        if !outside.enter(device, &mut wait) {
            return Err(Refused::TimedOut {
                used: confirmed(outside, device),
            });
        }
        crash_point!("slow:locked");
        let request = Request {
            place,
            device,
            bytes,
            bounds,
            pageable,
            at_once,
        };
        let decision = decide(outside, own, request, &mut wait);
        outside.leave(device);
        crash_point!("slow:unlocked");
        if let Some(decision) = decision {
            return decision;
        }
        if !outside.pause(&mut wait) {
            if at_once || !pageable {
                return Err(Refused::TimedOut {
                    used: confirmed(outside, device),
                });
            }
            // Others wait for their driver as long: better managed memory than none.
            at_once = true;
        }
    }
}

impl Bounds {
    /// `resident`, where all of the limit may be memory of the device itself.
    pub(crate) const NO_CAP: u64 = u64::MAX;

    /// The smaller one of the two; [`Bounds::NO_CAP`] is none.
    #[inline]
    fn least(&self) -> u64 {
        match self.limit {
            0 => self.resident,
            limit => limit.min(self.resident),
        }
    }

    /// Where there is room, when that much is charged and that much of it is past the share.
    fn room(&self, charged: u64, beyond: u64, pageable: bool) -> Option<Room> {
        if self.limit != 0 && charged > self.limit {
            return None;
        }
        if charged.saturating_sub(beyond) <= self.resident {
            return Some(Room::Device);
        }
        pageable.then_some(Room::Beyond)
    }
}

/// A request of [`reserve`].
#[derive(Clone, Copy)]
struct Request {
    place: Place,
    device: usize,
    bytes: u64,
    bounds: Bounds,
    pageable: bool,
    /// Past the share also where others may only be in the way for a moment.
    at_once: bool,
}

/// Yes, no, or (nothing) "not as long as others wait for their driver". The caller holds the device's lock.
fn decide<O: Outside + ?Sized>(
    outside: &O,
    own: &DeviceUse,
    request: Request,
    wait: &mut O::Wait,
) -> Option<Result<Room, Refused>> {
    let Request {
        place,
        device,
        bytes,
        bounds,
        pageable,
        at_once,
    } = request;
    match add(&own.pending, place.tag, bytes) {
        Ok(()) => {}
        Err(NotAdded::Stale) => return Some(Err(Refused::Stale)),
        Err(NotAdded::Overflow) => {
            return Some(Err(Refused::Full {
                used: confirmed(outside, device),
            }));
        }
    }
    crash_point!("slow:pending");
    seq_cst_point();
    // Where the whole limit may be memory of the device, nothing is past it.
    let past_share = || match bounds.resident {
        Bounds::NO_CAP => 0,
        _ => beyond(outside, device),
    };
    let look = || {
        // In this order: see `beyond`.
        let charged = charged(outside, device);
        bounds.room(charged, past_share(), pageable)
    };
    let mut room = look();
    if room != Some(Room::Device) && outside.reap(wait) > 0 {
        room = look();
    }
    if room == Some(Room::Device) {
        return Some(Ok(Room::Device));
    }
    // Read first, it may hold what is not confirmed yet or no longer: the share looks emptier than
    // it is, and the request is tried again rather than refused, or paged, for nothing.
    let past = past_share();
    let used = if outside.enter_shared(wait) {
        let used = confirmed_at_one_moment(outside, device);
        outside.leave_shared();
        used
    } else {
        None
    };
    crash_point!("slow:decided");
    let resident = used.map(|used| used.saturating_sub(past));
    let is_full = resident.is_some_and(|it| it.saturating_add(bytes) > bounds.resident);
    if room == Some(Room::Beyond) && (is_full || at_once) {
        match add(&own.oversubscribed, place.tag, bytes) {
            Ok(()) => {
                crash_point!("slow:beyond");
                return Some(Ok(Room::Beyond));
            }
            Err(NotAdded::Stale) => return Some(Err(Refused::Stale)),
            // No card is as large, nor what a host can page.
            Err(NotAdded::Overflow) => {}
        }
    }
    if take(&own.pending, place.tag, bytes).is_err() {
        return Some(Err(Refused::Stale));
    }
    crash_point!("slow:taken-back");
    let (used, resident) = (used?, resident?);
    if bounds.limit != 0 && used.saturating_add(bytes) > bounds.limit {
        return Some(Err(Refused::Full { used }));
    }
    (!pageable && is_full).then_some(Err(Refused::NotPageable { used: resident }))
}

/// Takes off what is counted as past the share. Before it leaves confirmed or pending: see
/// [`beyond`].
#[inline]
pub(crate) fn not_beyond(cells: &DeviceUse, tag: u64, bytes: u64) -> Result<(), Stale> {
    take(&cells.oversubscribed, tag, bytes)?;
    crash_point!("beyond:taken");
    Ok(())
}

/// The driver has given what was reserved: added to confirmed before it leaves pending, so that
/// every sum has it.
#[inline]
pub(crate) fn confirm(cells: &DeviceUse, tag: u64, bytes: u64, kind: Kind) -> Result<(), Stale> {
    charge(cells, tag, bytes, kind)?;
    crash_point!("confirm:added");
    // The word may have been cleared in between; then there is nothing to take.
    let _stale = take(&cells.pending, tag, bytes);
    crash_point!("confirm:done");
    Ok(())
}

/// A dead process's driver may have given what was asked for: it stands as given from here on. Added
/// before it is taken, as in [`confirm`]; the caller holds the slot's lock.
pub(crate) fn confirm_for_the_dead(cells: &DeviceUse) {
    // SeqCst: as every look at a charge word that decides.
    let pending = cells.pending.load(Ordering::SeqCst);
    let (tag, bytes) = (pending & TAG_MASK, bytes_in(pending));
    if bytes == 0 {
        return;
    }
    // A word that is full refuses everything already.
    let _full = add(&cells.confirmed, tag, bytes);
    crash_point!("keep:added");
    let _stale = take(&cells.pending, tag, bytes);
}

/// Adds to confirmed. What the driver holds is charged, whether it fits or not.
#[inline]
pub(crate) fn charge(cells: &DeviceUse, tag: u64, bytes: u64, kind: Kind) -> Result<(), Stale> {
    match add(&cells.confirmed, tag, bytes) {
        Ok(()) => {}
        Err(NotAdded::Stale) => return Err(Stale),
        Err(NotAdded::Overflow) => {
            // No card is as large; a full word refuses everything from here on.
            change(&cells.confirmed, tag, |old| Ok(old | CHARGE_BYTES_MASK)).map_err(|_| Stale)?;
        }
    }
    if let Some(word) = breakdown(cells, kind) {
        crash_point!("charge:confirmed");
        add_plain(word, bytes);
    }
    Ok(())
}

/// The driver has refused what was reserved.
#[inline]
pub(crate) fn refund(cells: &DeviceUse, tag: u64, bytes: u64) -> Result<(), Stale> {
    crash_point!("refund:begin");
    take(&cells.pending, tag, bytes)?;
    crash_point!("refund:done");
    Ok(())
}

/// The driver has taken back what was confirmed.
#[inline]
pub(crate) fn release(cells: &DeviceUse, tag: u64, bytes: u64, kind: Kind) -> Result<(), Stale> {
    crash_point!("release:begin");
    take(&cells.confirmed, tag, bytes)?;
    if let Some(word) = breakdown(cells, kind) {
        crash_point!("release:taken");
        take_plain(word, bytes);
    }
    crash_point!("release:done");
    Ok(())
}

/// The owner of a slot, as it stands there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    pub(crate) start_time: u64,
    pub(crate) pid_namespace: u64,
    pub(crate) start_stack: u64,
    pub(crate) image: u64,
}

impl Identity {
    fn of(head: &SlotHead) -> Self {
        // Relaxed: a process that decides by an identity holds the slot's lock; others only look.
        Self {
            pid: head.pid.load(Ordering::Relaxed),
            start_time: head.start_time.load(Ordering::Relaxed),
            pid_namespace: head.pid_namespace.load(Ordering::Relaxed),
            start_stack: head.start_stack.load(Ordering::Relaxed),
            image: head.image.load(Ordering::Relaxed),
        }
    }

    fn store(&self, head: &SlotHead) {
        // Relaxed: the slot's state is stored after them.
        head.pid.store(self.pid, Ordering::Relaxed);
        head.start_time.store(self.start_time, Ordering::Relaxed);
        head.pid_namespace
            .store(self.pid_namespace, Ordering::Relaxed);
        head.start_stack.store(self.start_stack, Ordering::Relaxed);
        head.image.store(self.image, Ordering::Relaxed);
    }
}

/// What a slot needs to change hands.
pub(crate) trait Slots: Ledger {
    fn slot_count(&self) -> usize;
    fn device_count(&self) -> usize;
    fn head(&self, slot: usize) -> Option<&SlotHead>;
    /// The word of the bitmap that has this slot's bit.
    fn in_use_word(&self, slot: usize) -> Option<&AtomicU64>;
    fn high_water(&self) -> &AtomicU32;
    /// Takes the slot's own lock, or says at once that it is held.
    fn try_lock(&self, slot: usize) -> bool;
    fn unlock(&self, slot: usize);
    /// The second look: whether the owner is gone although, or because, its lock is free.
    fn is_gone(&self, owner: &Identity) -> bool;
    /// Whether the charges of a dead owner stay for the moment, because the driver may still hold the
    /// memory that they stand for. The caller holds the slot's lock.
    fn keeps(&self, slot: usize, head: &SlotHead) -> bool;
    /// Whether processes that were forked from an earlier owner of the slot live.
    fn has_family(&self, slot: usize) -> bool;
    /// Takes the slot out of all shared objects. False when that has to wait.
    fn let_go_of_shared(&self, slot: usize) -> bool;
    /// Keeps what a slot launched, and empties it.
    fn keep_compute(&self, device: usize, of: &ComputeUse);
    /// Keeps what a slot counted.
    fn keep_counts(&self, slot: usize);
}

/// Clears a slot whose lock the caller holds and whose owner is gone. False when it has to wait.
fn clear<S: Slots + ?Sized>(slots: &S, slot: usize, head: &SlotHead) -> bool {
    crash_point!("clear:begin");
    if !slots.let_go_of_shared(slot) {
        return false;
    }
    crash_point!("clear:shared");
    // SeqCst: with the generation all words change their tag; an owner that is alive after all
    // finds that out at its next change and joins again.
    let generation = head.generation.load(Ordering::SeqCst).wrapping_add(1);
    head.generation.store(generation, Ordering::SeqCst);
    crash_point!("clear:generation");
    for device in 0..slots.device_count() {
        if let Some(cells) = slots.cells(slot, device) {
            // First: see `beyond`.
            empty(&cells.oversubscribed, tag_of(generation));
            empty(&cells.confirmed, tag_of(generation));
            empty(&cells.pending, tag_of(generation));
            // SeqCst: as the charges; a dead process loads nothing.
            cells.loading_since_ns.store(0, Ordering::SeqCst);
            cells.loading_bytes.store(0, Ordering::SeqCst);
            // Relaxed: breakdowns and measurements; no decision is made on them.
            cells.contexts.store(0, Ordering::Relaxed);
            cells.modules.store(0, Ordering::Relaxed);
            slots.keep_compute(device, &cells.compute);
        }
        crash_point!("clear:device");
    }
    slots.keep_counts(slot);
    crash_point!("clear:counts");
    Identity::default().store(head);
    // Relaxed: only changed under the slot's lock, which the caller holds.
    head.gone_since_ns.store(0, Ordering::Relaxed);
    // SeqCst: after everything else; a slot that is free is empty.
    head.state.store(SLOT_FREE, Ordering::SeqCst);
    crash_point!("clear:free");
    if let Some(word) = slots.in_use_word(slot) {
        // SeqCst: the slot must be empty before sums leave it out.
        word.fetch_and(!(1 << (slot % 64)), Ordering::SeqCst);
    }
    true
}

/// No bytes, another tag; the count stays, so that it only ever grows.
fn empty(word: &AtomicU64, tag: u64) {
    let mut old = before_exchange(word);
    loop {
        let next = old & COUNT_MASK | tag & TAG_MASK;
        // SeqCst: as every change of a charge word.
        match word.compare_exchange(old, next, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return,
            Err(seen) => old = seen,
        }
    }
}

/// Clears a slot if its owner is gone. `me` is never taken for gone.
pub(crate) fn reap_slot<S: Slots + ?Sized>(slots: &S, slot: usize, me: &Identity) -> bool {
    let Some(head) = slots.head(slot) else {
        return false;
    };
    // SeqCst: a look without the lock, to spare the lock; the one that counts comes below.
    if head.state.load(Ordering::SeqCst) == SLOT_FREE || Identity::of(head) == *me {
        return false;
    }
    if !slots.try_lock(slot) {
        return false;
    }
    crash_point!("reap:locked");
    // SeqCst: the look that counts: the slot cannot change hands while we hold its lock.
    let state = head.state.load(Ordering::SeqCst);
    let owner = Identity::of(head);
    let gone = match state {
        SLOT_FREE => false,
        SLOT_USED => owner != *me && slots.is_gone(&owner) && !slots.keeps(slot, head),
        // Killed while it joined: its lock is free, and nothing is charged yet.
        _ => true,
    };
    let cleared = gone && clear(slots, slot, head);
    slots.unlock(slot);
    crash_point!("reap:unlocked");
    cleared
}

/// Takes a slot for `me` and keeps its lock. Nothing when all are used by living processes.
pub(crate) fn claim<S: Slots + ?Sized>(slots: &S, me: &Identity) -> Option<(usize, u64)> {
    for slot in 0..slots.slot_count() {
        let Some(head) = slots.head(slot) else { break };
        // SeqCst: a look without the lock. A slot that is ours already (another copy of the
        // library in this process) must not be locked: unlocking it would drop the other's lock.
        if head.state.load(Ordering::SeqCst) == SLOT_USED && Identity::of(head) == *me {
            continue;
        }
        if !slots.try_lock(slot) {
            continue;
        }
        crash_point!("join:locked");
        // SeqCst: the look that counts, under the lock.
        let state = head.state.load(Ordering::SeqCst);
        let free = match state {
            // The family of its last owner would keep the charges of the next one.
            SLOT_FREE => !slots.has_family(slot),
            SLOT_USED => {
                slots.is_gone(&Identity::of(head))
                    && !slots.keeps(slot, head)
                    && clear(slots, slot, head)
            }
            _ => clear(slots, slot, head),
        };
        if !free {
            slots.unlock(slot);
            continue;
        }
        return Some((slot, take_seat(slots, slot, head, me)));
    }
    None
}

fn take_seat<S: Slots + ?Sized>(slots: &S, slot: usize, head: &SlotHead, me: &Identity) -> u64 {
    let above = u32::try_from(slot + 1).unwrap_or(u32::MAX);
    // SeqCst: raised before anything is written to the slot.
    slots.high_water().fetch_max(above, Ordering::SeqCst);
    crash_point!("join:high-water");
    // SeqCst: from here on, a process that finds the lock free clears the slot.
    head.state.store(SLOT_JOINING, Ordering::SeqCst);
    crash_point!("join:joining");
    let generation = head.generation.load(Ordering::SeqCst).wrapping_add(1);
    head.generation.store(generation, Ordering::SeqCst);
    for device in 0..slots.device_count() {
        if let Some(cells) = slots.cells(slot, device) {
            empty(&cells.oversubscribed, tag_of(generation));
            empty(&cells.confirmed, tag_of(generation));
            empty(&cells.pending, tag_of(generation));
            // SeqCst: as above.
            cells.loading_since_ns.store(0, Ordering::SeqCst);
            cells.loading_bytes.store(0, Ordering::SeqCst);
        }
    }
    crash_point!("join:emptied");
    me.store(head);
    // Relaxed: only changed under the slot's lock, which the caller holds.
    head.gone_since_ns.store(0, Ordering::Relaxed);
    crash_point!("join:named");
    if let Some(word) = slots.in_use_word(slot) {
        // SeqCst: set before the first charge, so that every sum that must see it does.
        word.fetch_or(1 << (slot % 64), Ordering::SeqCst);
    }
    crash_point!("join:in-use");
    // SeqCst: last; the identity stands.
    head.state.store(SLOT_USED, Ordering::SeqCst);
    crash_point!("join:done");
    generation
}

/// Gives a slot back whose lock the caller holds.
#[cfg(not(loom))]
pub(crate) fn vacate<S: Slots + ?Sized>(slots: &S, slot: usize) -> bool {
    slots
        .head(slot)
        .is_some_and(|head| clear(slots, slot, head))
}

/// Leaves a slot that could not be cleared to the next reaper, although its owner lives on.
#[cfg(not(loom))]
pub(crate) fn disown<S: Slots + ?Sized>(slots: &S, slot: usize) {
    if let Some(head) = slots.head(slot) {
        Identity::default().store(head);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
