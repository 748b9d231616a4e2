//! The remains of a dead process: its charges, until the driver has let go of its memory, or for
//! a bounded time. And its family: processes that were forked from it and hold that memory, too.
//!
//! Never asks a driver: its caller says what the driver has let go of.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use super::{Dead, LOCK_FAMILY, Region, slot_tag_of};
use crate::budget::{self, Charges, Slots, bytes_in};
use crate::crash::crash_point;
use crate::layout::{MAX_DEVICES, SlotHead};
use crate::sys::{self, LockOwner};

/// A time of death that lies longer back than any charge is kept.
const LONG_GONE_NS: u64 = 1;

fn family_byte(slot: usize) -> u64 {
    LOCK_FAMILY + slot as u64
}

impl Region {
    /// Says whose device memory a child of this process would hold.
    pub(super) fn name_in_family(&self, packed: u64) {
        if let Some(own) = self.family.first() {
            // Relaxed: read by a forked child, which has all of its parent's stores.
            own.store(packed, Ordering::Relaxed);
        }
    }

    /// In a forked child: the driver frees the memory of its parent, and of the parent's parent, when
    /// this child has ended too. One lock for each shows that.
    pub(super) fn follow_family(&self) {
        // Relaxed in both: a forked child has one thread, and all of its parent's stores.
        for index in (1..self.family.len()).rev() {
            let (Some(older), Some(younger)) = (self.family.get(index), self.family.get(index - 1))
            else {
                continue;
            };
            older.store(younger.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.name_in_family(0);
        if let Some(fd) = self.descriptor_as_is() {
            self.lock_family(fd);
        }
    }

    pub(super) fn lock_family(&self, fd: c_int) {
        for slot in self.forebears() {
            // One that cannot be taken leaves the bounded time.
            let _locked = sys::try_read_lock(fd, family_byte(slot));
        }
    }

    /// Slots of the processes that this one was forked from.
    fn forebears(&self) -> impl Iterator<Item = usize> + '_ {
        let older = self.family.iter().skip(1);
        // Relaxed: only changed before this process has threads.
        let seats = older.map(|packed| packed.load(Ordering::Relaxed));
        seats
            .filter(|packed| *packed != 0)
            .map(|packed| slot_tag_of(packed).slot)
    }

    /// Dead processes whose charges stay until the driver has released their memory.
    pub fn dead(&self) -> impl Iterator<Item = Dead> + '_ {
        (0..self.high_water_slots()).filter_map(|slot| {
            let head = self.head(slot)?;
            // Relaxed: a look; `let_go` looks again under the slot's lock.
            if head.gone_since_ns.load(Ordering::Relaxed) == 0 {
                return None;
            }
            let devices = (0..MAX_DEVICES).filter(|device| self.is_charged(slot, *device));
            Some(Dead {
                slot,
                generation: head.generation.load(Ordering::Relaxed),
                pid: head.pid.load(Ordering::Relaxed),
                pid_namespace: head.pid_namespace.load(Ordering::Relaxed),
                devices: devices.fold(0, |bits, device| bits | 1 << device),
                has_family: self.family_lives(slot),
            })
        })
    }

    /// The charges on a device for dead processes, bytes; where they hold shared objects, all of those
    /// count.
    #[must_use]
    pub fn dead_bytes(&self, device: usize) -> u64 {
        let shared = self.shared_word(device).map_or(0, |word| {
            // Relaxed: a number for a decision that is made again.
            bytes_in(word.load(Ordering::Relaxed))
        });
        let mut sum = 0_u64;
        let mut shares = false;
        for dead in self.dead() {
            shares |= self.holds_shared(dead.slot);
            let cells = self.cells(dead.slot, device);
            // Relaxed: as above.
            let charged = cells.map_or(0, |it| bytes_in(it.confirmed.load(Ordering::Relaxed)));
            sum = sum.saturating_add(charged);
        }
        sum.saturating_add(if shares { shared } else { 0 })
    }

    /// The driver holds nothing more for a dead process: clears its slot, unless the slot has changed
    /// hands or a process lives that was forked from it. Returns whether it did.
    pub fn let_go(&self, dead: &Dead) -> bool {
        let Some(head) = self.head(dead.slot) else {
            return false;
        };
        // Relaxed in both: a mark that the reaper below judges under the slot's lock.
        let since = head.gone_since_ns.load(Ordering::Relaxed);
        if since == 0 || head.generation.load(Ordering::Relaxed) != dead.generation {
            return false;
        }
        let _changed = head.gone_since_ns.compare_exchange(
            since,
            LONG_GONE_NS,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        self.reap();
        // Relaxed: a look.
        head.generation.load(Ordering::Relaxed) != dead.generation
    }

    fn is_charged(&self, slot: usize, device: usize) -> bool {
        let cells = self.cells(slot, device);
        cells.is_some_and(|cells| {
            // SeqCst: as every look at a charge word that decides.
            let charged = cells.confirmed.load(Ordering::SeqCst);
            bytes_in(charged) != 0 || bytes_in(cells.pending.load(Ordering::SeqCst)) != 0
        })
    }

    /// Whether the charges of a dead owner stay for the moment. The caller holds the slot's lock.
    pub(super) fn keeps_charges(&self, slot: usize, head: &SlotHead) -> bool {
        // Relaxed: a setting.
        let most_ns = self.keep_dead_ns.load(Ordering::Relaxed);
        let holds = || (0..MAX_DEVICES).any(|device| self.is_charged(slot, device));
        if most_ns == 0 || !holds() && !self.holds_shared(slot) {
            return false;
        }
        let now_ns = sys::now_ns();
        // Relaxed in all of these: only changed under the slot's lock, which the caller holds.
        if self.family_lives(slot) {
            head.gone_since_ns.store(now_ns, Ordering::Relaxed);
            return true;
        }
        match head.gone_since_ns.load(Ordering::Relaxed) {
            0 => {
                // The driver may have given the requested memory.
                for device in 0..MAX_DEVICES {
                    if let Some(cells) = self.cells(slot, device) {
                        budget::confirm_for_the_dead(cells);
                    }
                }
                head.gone_since_ns.store(now_ns, Ordering::Relaxed);
                crash_point!("keep:marked");
                true
            }
            // A time to come is of another clock.
            since_ns => since_ns <= now_ns && now_ns - since_ns < most_ns,
        }
    }

    /// Whether processes live that were forked from an owner of this slot.
    pub(super) fn family_lives(&self, slot: usize) -> bool {
        // The kernel does not report a process's own locks to it. Relaxed: the number that `descriptor` has checked
        // before the slots were looked at.
        self.forebears().any(|own| own == slot)
            || matches!(
                sys::lock_owner(self.fd.load(Ordering::Relaxed), family_byte(slot)),
                Ok(LockOwner::Process(_))
            )
    }
}
