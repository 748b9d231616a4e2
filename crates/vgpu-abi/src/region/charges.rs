//! Reserving, confirming and giving back charges, in this process's slot and in its own sum.

use std::sync::atomic::{AtomicU64, Ordering};

use super::private::OwnUse;
use super::slots::LOADING_NS;
use super::{Region, TRIES, bump, slot_tag_of};
use crate::budget::{
    self, Bounds, Charge, Charges, Kind, Need, NotAdded, Refusal, Refused, Room, Stale, Why,
};
use crate::crash::crash_point;
use crate::layout::DeviceUse;
use crate::sys;

impl Region {
    /// Reserves room before the driver is asked. `bounds` may be a limit alone, in bytes; 0 is no cap.
    ///
    /// At no moment does what is charged of the device's own memory exceed `bounds.resident`, nor
    /// all that is charged `bounds.limit`, however many processes race; what is charged without
    /// being asked for ([`Region::charge`]) is left aside.
    ///
    /// # Errors
    /// [`Refusal`]; it is counted, and nothing is charged.
    #[inline]
    pub fn reserve(
        &self,
        device: usize,
        bytes: u64,
        bounds: impl Into<Bounds>,
    ) -> Result<Charge, Refusal> {
        self.reserve_as(device, bytes, bounds.into(), false)
    }

    /// The common case of [`Region::reserve`] and [`Region::reserve_pageable`]: all charges fit the smaller bound. `None`:
    /// nothing is reserved, and nothing is decided or counted; those two answer.
    #[inline(always)]
    #[must_use]
    pub fn reserve_at_once(&self, device: usize, bytes: u64, bounds: Bounds) -> Option<Charge> {
        // Acquire: as in `join`. Of no slot, there is no place.
        let packed = self.private().packed.load(Ordering::Acquire);
        budget::reserve_at_once(self, slot_tag_of(packed), device, bytes, bounds)
            .then(|| Charge::new(device, false, bytes, packed))
    }

    /// As [`Region::reserve`], for memory that the driver can also give as managed memory: it gets room past
    /// `bounds.resident`, too, and its charge shows that ([`Charge::is_beyond`]).
    ///
    /// # Errors
    /// As [`Region::reserve`].
    #[inline]
    pub fn reserve_pageable(
        &self,
        device: usize,
        bytes: u64,
        bounds: Bounds,
    ) -> Result<Charge, Refusal> {
        self.reserve_as(device, bytes, bounds, true)
    }

    #[inline]
    fn reserve_as(
        &self,
        device: usize,
        bytes: u64,
        bounds: Bounds,
        pageable: bool,
    ) -> Result<Charge, Refusal> {
        let packed = self.packed_slot();
        match budget::reserve(self, slot_tag_of(packed), device, bytes, bounds, pageable) {
            Ok(room) => Ok(Charge::new(device, room == Room::Beyond, bytes, packed)),
            Err(refused) => self.ask_again(device, bytes, bounds, pageable, packed, refused),
        }
    }

    /// As `reserve`, for the context of a process whose runtime loads modules past the driver's
    /// public interface: reserves what such processes were seen to take, `least` or more. From here
    /// until `loaded` the others leave that much free for it, also what is learned meanwhile; not
    /// for longer than a minute.
    ///
    /// # Errors
    /// [`Refusal`]; it is counted, and nothing is charged.
    pub fn reserve_loading(
        &self,
        device: usize,
        least: u64,
        bounds: Bounds,
    ) -> Result<Charge, Refusal> {
        let need = Need { least, guess: 0 };
        self.reserve_need(device, need, bounds, sys::now_ns())
    }

    fn reserve_need(
        &self,
        device: usize,
        need: Need,
        bounds: Bounds,
        since_ns: u64,
    ) -> Result<Charge, Refusal> {
        let mut packed = self.packed_slot();
        let mut refused = Refused::Stale;
        for _try in 0..TRIES {
            match budget::reserve_loading(self, slot_tag_of(packed), device, need, bounds, since_ns)
            {
                Ok(bytes) => {
                    return Ok(Charge::new(device, false, bytes, packed));
                }
                Err(Refused::Stale) => match self.take_slot(packed) {
                    Ok(next) => packed = next,
                    Err(_) => break,
                },
                Err(other) => {
                    refused = other;
                    break;
                }
            }
        }
        let asked = need.least.max(self.learned_runtime_bytes(device));
        Err(self.refusal(device, asked, bounds, refused))
    }

    /// A runtime of this process is about to make its context and to load, both past the driver's
    /// public interface: keeps room for it, as much as such processes were seen to take, or `guess`
    /// bytes before one was seen. Not for longer than `for_ns`, unless [`Region::loading`] follows. The room is kept
    /// from here on, so the charge is to be refunded at once.
    ///
    /// # Errors
    /// [`Refusal`]; it is counted, and nothing is kept.
    pub fn keep_for_loading(
        &self,
        device: usize,
        guess: u64,
        bounds: Bounds,
        for_ns: u64,
    ) -> Result<Charge, Refusal> {
        let least = match self.learned_runtime_bytes(device) {
            0 => guess,
            learned => learned,
        };
        let need = Need {
            least,
            guess: least,
        };
        let since_ns = sys::now_ns().saturating_sub(LOADING_NS.saturating_sub(for_ns));
        self.reserve_need(device, need, bounds, since_ns.max(1))
    }

    /// Room that is kept for runtimes that are loading, bytes, beyond what their charges have.
    #[must_use]
    pub fn kept(&self, device: usize) -> u64 {
        let mut sum = 0_u64;
        budget::each_slot(self, |slot| {
            if let Some(cells) = self.cells(slot, device) {
                sum = sum.saturating_add(budget::kept(self, cells, device));
            }
        });
        sum
    }

    /// A context of this process was made past the driver's public interface, and its runtime loads
    /// there, too: as after `reserve_loading`.
    pub fn loading(&self, device: usize) {
        if let Some((cells, _)) = self.slot_device(self.packed_slot(), device) {
            // SeqCst: as in `budget::reserve_loading`.
            cells
                .loading_since_ns
                .store(sys::now_ns(), Ordering::SeqCst);
        }
    }

    /// The memory that this process's runtime has loaded is charged, or its context is gone.
    pub fn loaded(&self, device: usize) {
        // Acquire: as in `join`.
        let packed = self.private().packed.load(Ordering::Acquire);
        if let Some((cells, _)) = self.slot_device(packed, device) {
            // SeqCst: after the charges that it stood for.
            cells.loading_since_ns.store(0, Ordering::SeqCst);
        }
    }

    /// The rare ends of `reserve`: a slot that was taken away, a refusal.
    #[cold]
    #[inline(never)]
    fn ask_again(
        &self,
        device: usize,
        bytes: u64,
        bounds: Bounds,
        pageable: bool,
        mut packed: u64,
        mut refused: Refused,
    ) -> Result<Charge, Refusal> {
        for _try in 0..TRIES {
            if refused != Refused::Stale {
                break;
            }
            packed = match self.take_slot(packed) {
                Ok(packed) => packed,
                Err(_) => break,
            };
            match budget::reserve(self, slot_tag_of(packed), device, bytes, bounds, pageable) {
                Ok(room) => {
                    return Ok(Charge::new(device, room == Room::Beyond, bytes, packed));
                }
                Err(again) => refused = again,
            }
        }
        Err(self.refusal(device, bytes, bounds, refused))
    }

    /// Takes back the count of a refusal: the request is made again.
    pub fn ask_once_more(&self) {
        let less = |count: u64| Some(count.saturating_sub(1));
        let refused = &self.layout().header.refused;
        // Relaxed: the counter guards no other memory.
        let _old = refused.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Counts a refusal, and returns it with the figures that it is based on.
    fn refusal(&self, device: usize, asked: u64, bounds: Bounds, refused: Refused) -> Refusal {
        bump(&self.layout().header.refused);
        let (limit, used, why) = match refused {
            Refused::Full { used } => (bounds.limit, used, Why::Full),
            Refused::TimedOut { used } => (bounds.limit, used, Why::TimedOut),
            Refused::NotPageable { used } => (bounds.resident, used, Why::NotPageable),
            Refused::Stale | Refused::NoSuchDevice => {
                (bounds.limit, self.used(device), Why::Closed)
            }
        };
        Refusal {
            limit,
            used,
            asked,
            unaccounted: 0,
            why,
        }
    }

    /// A request refused although no sum was too large: the driver cannot page the memory. Counted as any
    /// other refusal; `asked` bytes are what it was about, `resident` is the container's share.
    pub fn refuse_not_pageable(&self, device: usize, asked: u64, resident: u64) -> Refusal {
        bump(&self.layout().header.refused);
        let past = self.oversubscribed(device);
        Refusal {
            limit: resident,
            used: self.used(device).saturating_sub(past),
            asked,
            unaccounted: 0,
            why: Why::NotPageable,
        }
    }

    /// The driver has given what was reserved.
    #[inline(always)]
    pub fn confirm(&self, charge: Charge, kind: Kind) {
        if !self.confirm_at_once(charge, kind) {
            self.confirm_elsewhere(charge, kind);
        }
    }

    /// The common case of [`Region::confirm`]: the slot is still ours. Makes no system call. False: to be confirmed by
    /// [`Region::confirm`], which is right also if a part was done here, since that part goes with the slot.
    #[inline(always)]
    #[must_use]
    pub fn confirm_at_once(&self, charge: Charge, kind: Kind) -> bool {
        // Acquire: as in `join`.
        let packed = self.private().packed.load(Ordering::Acquire);
        packed == charge.packed
            && self.on_own_slot(packed, charge.device(), |cells, own, tag| {
                budget::confirm(cells, tag, charge.bytes, kind)?;
                note(own, tag, charge.bytes, kind)
            })
    }

    /// The slot was taken away, or this is a forked child: what the driver gave is charged to the slot that we have.
    /// The pending charge went with the old one.
    #[cold]
    #[inline(never)]
    fn confirm_elsewhere(&self, charge: Charge, kind: Kind) {
        self.charge(charge.device(), charge.bytes, kind);
    }

    /// The driver has refused what was reserved.
    #[inline]
    pub fn refund(&self, charge: Charge) {
        // Acquire: as in `join`.
        let packed = self.private().packed.load(Ordering::Acquire);
        if packed == charge.packed
            && let Some((cells, tag)) = self.slot_device(packed, charge.device())
        {
            // A slot that was taken away took the pending charge with it.
            if charge.is_beyond() {
                let _stale = budget::not_beyond(cells, tag, charge.bytes);
            }
            let _stale = budget::refund(cells, tag, charge.bytes);
        }
    }

    /// The driver has taken back what was confirmed. Never goes below zero.
    #[inline(always)]
    pub fn release(&self, device: usize, bytes: u64, kind: Kind) {
        self.on_own(device, |cells, own, tag| {
            release_in(cells, own, tag, bytes, kind)
        });
    }

    /// The common case of [`Region::release`]: the slot is still ours. Makes no system call. False: to be released by
    /// [`Region::release`], which is right also if a part was done here, since that part goes with the slot.
    #[inline(always)]
    #[must_use]
    pub fn release_at_once(&self, device: usize, bytes: u64, kind: Kind) -> bool {
        // Acquire: as in `join`.
        let packed = self.private().packed.load(Ordering::Acquire);
        self.on_own_slot(packed, device, |cells, own, tag| {
            release_in(cells, own, tag, bytes, kind)
        })
    }

    /// As [`Region::release`], of what was charged past the container's share of the device
    /// ([`Charge::is_beyond`]).
    pub fn release_beyond(&self, device: usize, bytes: u64, kind: Kind) {
        // Acquire: as in `join`. A process that had to join again has nothing there: what it had is
        // counted as memory of the device from then on, which errs on the safe side.
        let packed = self.private().packed.load(Ordering::Acquire);
        if let Some((cells, tag)) = self.slot_device(packed, device) {
            let _stale = budget::not_beyond(cells, tag, bytes);
        }
        self.release(device, bytes, kind);
    }

    /// Charges what the driver holds already (an estimate that is settled): no limit is looked at.
    #[inline(never)]
    pub fn charge(&self, device: usize, bytes: u64, kind: Kind) {
        self.on_own(device, |cells, own, tag| {
            budget::charge(cells, tag, bytes, kind)?;
            note(own, tag, bytes, kind)
        });
    }

    /// Settles an estimate: `from` bytes are charged, `to` is what it turned out to be.
    pub fn adjust(&self, device: usize, kind: Kind, from: u64, to: u64) {
        if to > from {
            self.charge(device, to - from, kind);
        } else if from > to {
            self.release(device, from - to, kind);
        }
    }

    /// Changes this process's slot and its own sum alike. When the slot turns out to be taken away
    /// between the two, what was done to the old one is lost with it and is done to the new one.
    #[inline(always)]
    fn on_own(
        &self,
        device: usize,
        change: impl Fn(&DeviceUse, &OwnUse, u64) -> Result<(), Stale>,
    ) {
        // Acquire: as in `join`.
        let packed = self.private().packed.load(Ordering::Acquire);
        if !self.on_own_slot(packed, device, &change) {
            self.on_own_elsewhere(packed, device, change);
        }
    }

    /// The same in this slot alone. False: it is none, or was taken away.
    #[inline(always)]
    fn on_own_slot(
        &self,
        packed: u64,
        device: usize,
        change: impl Fn(&DeviceUse, &OwnUse, u64) -> Result<(), Stale>,
    ) -> bool {
        if let Some((cells, tag)) = self.slot_device(packed, device)
            && let Some(own) = self.private().own.get(device)
        {
            change(cells, own, tag).is_ok()
        } else {
            false
        }
    }

    /// The rare ends of `on_own`: no slot yet, or one that was taken away.
    #[cold]
    #[inline(never)]
    fn on_own_elsewhere(
        &self,
        stale: u64,
        device: usize,
        change: impl Fn(&DeviceUse, &OwnUse, u64) -> Result<(), Stale>,
    ) {
        let mut packed = self.take_slot(stale).unwrap_or(0);
        for _try in 0..TRIES {
            let Some((cells, tag)) = self.slot_device(packed, device) else {
                return;
            };
            let Some(own) = self.private().own.get(device) else {
                return;
            };
            if change(cells, own, tag).is_ok() {
                return;
            }
            packed = self.take_slot(packed).unwrap_or(0);
        }
    }
}

#[inline(always)]
fn release_in(
    cells: &DeviceUse,
    own: &OwnUse,
    tag: u64,
    bytes: u64,
    kind: Kind,
) -> Result<(), Stale> {
    budget::release(cells, tag, bytes, kind)?;
    crash_point!("release:slot");
    forget(own, tag, bytes, kind)
}

/// Adds to this process's own sum.
#[inline]
pub(super) fn note(own: &OwnUse, tag: u64, bytes: u64, kind: Kind) -> Result<(), Stale> {
    match budget::add(&own.confirmed, tag, bytes) {
        Err(NotAdded::Stale) => return Err(Stale),
        // A sum beyond all GPUs; the slot's word is full too.
        Ok(()) | Err(NotAdded::Overflow) => {}
    }
    if let Some(word) = part(own, kind) {
        // Relaxed: a breakdown for a report.
        word.fetch_add(bytes, Ordering::Relaxed);
    }
    Ok(())
}

/// Takes from this process's own sum.
#[inline]
pub(super) fn forget(own: &OwnUse, tag: u64, bytes: u64, kind: Kind) -> Result<(), Stale> {
    budget::take(&own.confirmed, tag, bytes)?;
    if let Some(word) = part(own, kind) {
        let less = |old: u64| Some(old.saturating_sub(bytes));
        // Relaxed: a breakdown for a report.
        let _old = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
    Ok(())
}

fn part(own: &OwnUse, kind: Kind) -> Option<&AtomicU64> {
    match kind {
        Kind::Buffer => None,
        Kind::Context => Some(&own.contexts),
        Kind::Module => Some(&own.modules),
    }
}
