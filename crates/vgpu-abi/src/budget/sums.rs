//! Sums over all slots and the shared objects: the charges, the room kept for runtimes that load, and the part
//! past the share. Changes nothing.

use super::Charges;
use super::words::bytes_in;
use crate::atomic::{Ordering, seq_cst_point};
use crate::layout::{CHARGE_BYTES_MASK, CHARGE_COUNT_SHIFT, DeviceUse, SLOT_WORDS};

/// Calls `each` for every slot that may hold charges.
#[inline(always)]
pub(crate) fn each_slot<L: Charges + ?Sized>(charges: &L, mut each: impl FnMut(usize)) {
    for word in 0..SLOT_WORDS {
        let Some(mut bits) = charges.in_use(word) else {
            break;
        };
        while bits != 0 {
            each(word * 64 + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
}

/// Room that is kept for a process whose runtime is loading past the driver's public interface: the total that the
/// runtime is expected to take, minus what the process is already charged.
///
/// To be read between the slot's pending and confirmed words: what was reserved leaves pending after
/// the mark was set, and what is settled is in confirmed before the breakdown says so and the mark
/// goes, so it is seen at least once.
#[inline(always)]
pub(crate) fn kept<L: Charges + ?Sized>(charges: &L, cells: &DeviceUse, device: usize) -> u64 {
    // SeqCst: comes after this process's own addition in the one order of all changes, as the charges do.
    match cells.loading_since_ns.load(Ordering::SeqCst) {
        0 => 0,
        since_ns => kept_since(charges, cells, device, since_ns),
    }
}

#[cold]
fn kept_since<L: Charges + ?Sized>(
    charges: &L,
    cells: &DeviceUse,
    device: usize,
    since_ns: u64,
) -> u64 {
    // Acquire: all bytes of the breakdown are in `confirmed`, which is read after it.
    let contexts = cells.contexts.load(Ordering::Acquire);
    let modules = cells.modules.load(Ordering::Acquire);
    // SeqCst: stored before the mark.
    let guess = cells.loading_bytes.load(Ordering::SeqCst);
    let expected = charges.expected(device, since_ns, guess);
    expected.saturating_sub(contexts.saturating_add(modules))
}

/// Everything that is charged or may become charged. This sum must not exceed the limit.
///
/// Of each slot pending is read first: a charge is added to confirmed before it is taken from
/// pending, so it is seen at least once. Slots are read before shared objects, for the same reason.
#[inline(always)]
pub(super) fn charged<L: Charges + ?Sized>(charges: &L, device: usize) -> u64 {
    let mut sum = 0_u64;
    each_slot(charges, |slot| {
        if let Some(cells) = charges.cells(slot, device) {
            // SeqCst: these loads come after this process's own addition in the one order of all changes.
            let pending = bytes_in(cells.pending.load(Ordering::SeqCst));
            let kept = kept(charges, cells, device);
            let confirmed = bytes_in(cells.confirmed.load(Ordering::SeqCst));
            // Both have 44 bits.
            let asked_or_given = pending + confirmed;
            sum = sum.saturating_add(asked_or_given).saturating_add(kept);
        }
    });
    let shared = charges
        .shared(device)
        .map_or(0, |word| word.load(Ordering::SeqCst));
    sum.saturating_add(bytes_in(shared))
}

/// Of what is charged: managed memory past the container's share of the device.
///
/// Only added to under the device's lock, after it was added to pending, and taken off before
/// confirmed or pending is. So a process that holds the lock and has read all those words *before* this
/// one never takes more off them than they had in them.
pub(super) fn beyond<L: Charges + ?Sized>(charges: &L, device: usize) -> u64 {
    let mut sum = 0_u64;
    each_slot(charges, |slot| {
        if let Some(cells) = charges.cells(slot, device) {
            // SeqCst: comes after the loads of the other words in the one order of all changes.
            sum = sum.saturating_add(bytes_in(cells.oversubscribed.load(Ordering::SeqCst)));
        }
    });
    sum
}

/// Managed memory past the share, one word after the other: not of one moment.
#[cfg(not(loom))]
pub(crate) fn oversubscribed<L: Charges + ?Sized>(charges: &L, device: usize) -> u64 {
    beyond(charges, device)
}

/// The sum of the memory confirmed or kept for a runtime that is loading, one word after the other: not
/// of one moment.
pub(crate) fn confirmed<L: Charges + ?Sized>(charges: &L, device: usize) -> u64 {
    look_at_confirmed(charges, device).0
}

/// The sum of confirmed charges and of what is kept for runtimes that are loading (which may take
/// longer than any wait here), and a fingerprint of how often each word was added to.
fn look_at_confirmed<L: Charges + ?Sized>(charges: &L, device: usize) -> (u64, u64) {
    let mut sum = 0_u64;
    let mut print = 0_u64;
    let mut look = |place: u64, word: u64, kept: u64| {
        sum = sum.saturating_add(bytes_in(word)).saturating_add(kept);
        let seen = place << 20 ^ (word & !CHARGE_BYTES_MASK) >> CHARGE_COUNT_SHIFT;
        print = (print.rotate_left(5) ^ seen).wrapping_mul(0x517c_c1b7_2722_0a95);
    };
    each_slot(charges, |slot| {
        if let Some(cells) = charges.cells(slot, device) {
            let kept = kept(charges, cells, device);
            // SeqCst: as in `charged`.
            look(slot as u64, cells.confirmed.load(Ordering::SeqCst), kept);
        }
    });
    if let Some(shared) = charges.shared(device) {
        // SeqCst: as in `charged`.
        look(u64::MAX, shared.load(Ordering::SeqCst), 0);
    }
    (sum, print)
}

/// How often the slow way looks for one moment before it lets others go on first.
const LOOKS: usize = 16;

/// The sum of the confirmed memory at one moment: nothing was added to any word between two looks, so all that
/// the second look found was there when it began. A refusal that uses this sum is explained by it; a sum read word by
/// word could hold a charge on both sides of a free and an allocation.
pub(super) fn confirmed_at_one_moment<L: Charges + ?Sized>(
    charges: &L,
    device: usize,
) -> Option<u64> {
    let (_, mut before) = look_at_confirmed(charges, device);
    for _look in 0..LOOKS {
        seq_cst_point();
        let (sum, after) = look_at_confirmed(charges, device);
        if before == after {
            return Some(sum);
        }
        before = after;
    }
    None
}
