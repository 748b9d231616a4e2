//! Charge words: bytes, a count of additions and the tag of a slot's generation in 64 bits; and the
//! changes of a process's words when the driver gives, refuses and takes back. Decides no request.

use super::Kind;
use crate::atomic::{AtomicU64, Ordering, before_exchange};
use crate::crash::crash_point;
use crate::layout::{CHARGE_BYTES_MASK, CHARGE_COUNT_SHIFT, CHARGE_TAG_SHIFT, DeviceUse};

/// More than one process can be charged on one device: 16 TiB less a byte.
pub const MOST_BYTES: u64 = CHARGE_BYTES_MASK;

pub(super) const TAG_MASK: u64 = u64::MAX << CHARGE_TAG_SHIFT;

pub(super) const COUNT_MASK: u64 = !(TAG_MASK | CHARGE_BYTES_MASK);

pub(super) const ONE_COUNT: u64 = 1 << CHARGE_COUNT_SHIFT;

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
    /// The word has no room for this many bytes.
    Overflow,
}

#[inline]
pub(super) fn change(
    word: &AtomicU64,
    tag: u64,
    next: impl Fn(u64) -> Result<u64, NotAdded>,
) -> Result<(), NotAdded> {
    let mut old = before_exchange(word);
    loop {
        if old & TAG_MASK != tag {
            return Err(NotAdded::Stale);
        }
        // SeqCst: every process must see all changes of all charge words in one order; the proof that no two can both
        // slip past the limit depends on it.
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

/// Adds to a word that only its own process writes, and leaves out bytes that do not fit.
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

/// The driver may have given a dead process the memory that it asked for, so its pending charge counts as given from
/// here on. Added before it is taken, as in [`confirm`]; the caller holds the slot's lock.
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

/// Adds to confirmed. Memory that the driver holds is charged, whether it fits or not.
#[inline]
pub(crate) fn charge(cells: &DeviceUse, tag: u64, bytes: u64, kind: Kind) -> Result<(), Stale> {
    match add(&cells.confirmed, tag, bytes) {
        Ok(()) => {}
        Err(NotAdded::Stale) => return Err(Stale),
        Err(NotAdded::Overflow) => {
            // No GPU is as large; a full word refuses everything from here on.
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

/// No bytes, another tag; the count stays, so that it only ever grows.
pub(super) fn empty(word: &AtomicU64, tag: u64) {
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
