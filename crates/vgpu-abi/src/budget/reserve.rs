//! The decision about a request: reserve first, look at the sum, and where it is too large one process at a
//! time decides under the device's lock.

use super::sums::{beyond, charged, confirmed, confirmed_at_one_moment};
use super::words::{NotAdded, Stale, TAG_MASK, add, take};
use super::{Bounds, Outside};
use crate::atomic::{Ordering, seq_cst_point};
use crate::crash::crash_point;
use crate::layout::DeviceUse;

/// Why nothing was reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The slot no longer belongs to this process: join and try again.
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

/// A slot, and the tag that its charge words have in its present generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotTag {
    pub(crate) slot: usize,
    pub(crate) tag: u64,
}

/// How often more may be learned while a context is admitted.
const LEARNED: usize = 8;

/// The request for a process whose runtime will load past the driver's public interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// At least this much, bytes.
    pub(crate) least: u64,
    /// Kept for it as long as no such process was measured, bytes.
    pub(crate) guess: u64,
}

impl Need {
    /// A need of this many bytes, with no room kept beyond the charge.
    #[cfg(loom)]
    pub(crate) fn of(least: u64) -> Self {
        Self { least, guess: 0 }
    }
}

/// Where there was room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// Within the container's share of the device.
    Device,
    /// Past it, as managed memory. Counted so already.
    Beyond,
}

/// Reserves room. The driver can give `pageable` memory as managed memory too, so such a request also gets room
/// past the container's share of the device.
///
/// As long as all charges fit the smaller bound, the sum alone decides. From there on one request at a time is
/// decided, under the device's lock: two sums are bounded by one set of words, and only under the lock is nothing
/// added to the word that is subtracted.
#[inline(always)]
pub(crate) fn reserve<O: Outside + ?Sized>(
    outside: &O,
    place: SlotTag,
    device: usize,
    bytes: u64,
    bounds: Bounds,
    pageable: bool,
) -> Result<Room, Refused> {
    let Some(own) = outside.cells(place.slot, device) else {
        return Err(Refused::NoSuchDevice);
    };
    match add_and_look(outside, own, place, device, bytes, bounds) {
        Ok(true) => return Ok(Room::Device),
        Ok(false) => {}
        Err(why) => return Err(not_added(outside, device, why)),
    }
    let request = Request {
        place,
        device,
        bytes,
        bounds,
        pageable,
        at_once: false,
    };
    reserve_slowly(outside, own, request)
}

/// The common case of [`reserve`]: the sum alone decides, and there is room. False: nothing is reserved, and only
/// [`reserve`] can say whether there is room.
#[inline(always)]
pub(crate) fn reserve_at_once<O: Outside + ?Sized>(
    outside: &O,
    place: SlotTag,
    device: usize,
    bytes: u64,
    bounds: Bounds,
) -> bool {
    let Some(own) = outside.cells(place.slot, device) else {
        return false;
    };
    match add_and_look(outside, own, place, device, bytes, bounds) {
        Ok(true) => true,
        Ok(false) => {
            // A slot that was taken away took the pending charge with it.
            let _stale = take(&own.pending, place.tag, bytes);
            false
        }
        Err(_) => false,
    }
}

/// Reserves first, and then looks whether the sum fits the smaller bound. If it does not, the reservation stands all
/// the same: the caller decides further, or takes it back.
#[inline(always)]
fn add_and_look<O: Outside + ?Sized>(
    outside: &O,
    own: &DeviceUse,
    place: SlotTag,
    device: usize,
    bytes: u64,
    bounds: Bounds,
) -> Result<bool, NotAdded> {
    add(&own.pending, place.tag, bytes)?;
    crash_point!("reserve:pending");
    let least = bounds.least();
    if least == Bounds::NO_CAP {
        return Ok(true);
    }
    seq_cst_point();
    let fits = charged(outside, device) <= least;
    if fits {
        crash_point!("reserve:done");
    }
    Ok(fits)
}

#[cold]
fn not_added<O: Outside + ?Sized>(outside: &O, device: usize, why: NotAdded) -> Refused {
    match why {
        NotAdded::Stale => Refused::Stale,
        NotAdded::Overflow => Refused::Full {
            used: confirmed(outside, device),
        },
    }
}

/// The rest of [`reserve`] where the sum is too large: under the device's lock.
#[cold]
#[inline(never)]
fn reserve_slowly<O: Outside + ?Sized>(
    outside: &O,
    own: &DeviceUse,
    mut request: Request,
) -> Result<Room, Refused> {
    let Request {
        place,
        device,
        bytes,
        pageable,
        ..
    } = request;
    take(&own.pending, place.tag, bytes).map_err(|Stale| Refused::Stale)?;
    crash_point!("reserve:taken-back");
    let mut wait = outside.begin_wait();
    loop {
        if !outside.enter(device, &mut wait) {
            return Err(Refused::TimedOut {
                used: confirmed(outside, device),
            });
        }
        crash_point!("slow:locked");
        let decision = decide(outside, own, request, &mut wait);
        outside.leave(device);
        crash_point!("slow:unlocked");
        if let Some(decision) = decision {
            return decision;
        }
        if !outside.pause(&mut wait) {
            if request.at_once || !pageable {
                return Err(Refused::TimedOut {
                    used: confirmed(outside, device),
                });
            }
            // Others wait for their driver as long: better managed memory than none.
            request.at_once = true;
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
    place: SlotTag,
    device: usize,
    bytes: u64,
    bounds: Bounds,
    pageable: bool,
    /// Past the share also where others may only be in the way for a moment.
    at_once: bool,
}

/// Yes, no, or (`None`) "not as long as others wait for their driver". The caller holds the device's lock.
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
    if let Err(why) = add(&own.pending, place.tag, bytes) {
        return Some(Err(not_added(outside, device, why)));
    }
    crash_point!("slow:pending");
    seq_cst_point();
    // If the whole limit may be memory of the device, no request is past the share.
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
            // No GPU is as large, nor what a host can page.
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

/// Reserves room for the context of a process whose runtime will load past the driver's public
/// interface: all that it is expected to take, what it needs or more. From here on its slot says that
/// it loads. Gives what was reserved.
pub(crate) fn reserve_loading<O: Outside + ?Sized>(
    outside: &O,
    place: SlotTag,
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
