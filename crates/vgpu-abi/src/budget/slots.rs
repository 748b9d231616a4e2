//! How a slot changes hands: a process takes one, and a reaper clears the slot of a dead process, even if either of
//! them is killed between two steps.

use super::Charges;
use super::words::{empty, tag_of};
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::crash::crash_point;
use crate::layout::{ABILITIES, ComputeUse, SLOT_FREE, SLOT_JOINING, SLOT_USED, SlotHead};

/// The owner of a slot, as the slot states it.
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
        let is_owned = *self != Self::default();
        let abilities = if is_owned { ABILITIES } else { 0 };
        // Relaxed: as above.
        head.abilities.store(abilities, Ordering::Relaxed);
    }
}

/// The operations by which a slot changes hands.
pub(crate) trait Slots: Charges {
    fn slot_count(&self) -> usize;
    fn device_count(&self) -> usize;
    fn head(&self, slot: usize) -> Option<&SlotHead>;
    /// The word of the bitmap that has this slot's bit.
    fn in_use_word(&self, slot: usize) -> Option<&AtomicU64>;
    fn high_water(&self) -> &AtomicU32;
    /// Takes the slot's own lock, or says at once that it is held.
    fn try_lock(&self, slot: usize) -> bool;
    fn unlock(&self, slot: usize);
    /// The second check, after the lock was found free: whether the owner has ended.
    fn is_gone(&self, owner: &Identity) -> bool;
    /// Whether the charges of a dead owner stay for the moment, because the driver may still hold the charged memory.
    /// The caller holds the slot's lock.
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

/// Clears a slot whose lock the caller holds and whose owner has ended. False when it has to wait.
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

/// Clears a slot if its owner has ended. `me` is never taken for gone.
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

/// Takes a slot for `me` and keeps its lock. `None` if all are used by living processes.
pub(crate) fn claim<S: Slots + ?Sized>(slots: &S, me: &Identity) -> Option<(usize, u64)> {
    for slot in 0..slots.slot_count() {
        let Some(head) = slots.head(slot) else { break };
        // SeqCst: a look without the lock. A slot that this process already has (by another copy of the library) must
        // not be locked: unlocking it would drop the other's lock.
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
        return Some((slot, occupy(slots, slot, head, me)));
    }
    None
}

fn occupy<S: Slots + ?Sized>(slots: &S, slot: usize, head: &SlotHead, me: &Identity) -> u64 {
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
    // SeqCst: last, after the identity was written.
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
