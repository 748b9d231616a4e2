//! Objects that several processes hold: their charge is in the region's table, once, until the last holder releases
//! it. Owns every change of that table, under its one lock.
//!
//! Never leaves a step at which a death would lose a charge or keep one: an object that is going
//! keeps its holders' bits until its bytes are out of the sum.

use std::sync::atomic::Ordering;

use super::imports::Family;
use super::private::{OwnHold, Wait};
use super::{
    Kind, LOCK_SHARED, MAX_SHARED, ObjectCharge, Region, ShareError, SharedKey, bump, slot_tag_of,
};
use crate::budget::{self, MOST_BYTES};
use crate::crash::crash_point;
use crate::layout::{
    CHARGE_BYTES_MASK, CHARGE_COUNT_SHIFT, SHARED_CHANGING, SHARED_FREE, SHARED_LIVE, SharedObject,
};

impl SharedObject {
    // Relaxed in all of these: the table's lock orders its changes; readers without the lock read
    // a number for a report.

    pub(super) fn is_live_at_all(&self) -> bool {
        self.state.load(Ordering::Acquire) == SHARED_LIVE
    }

    pub(super) fn key(&self) -> SharedKey {
        let [high, low] = &self.key;
        SharedKey([high.load(Ordering::Relaxed), low.load(Ordering::Relaxed)])
    }

    fn is_live(&self, key: SharedKey) -> bool {
        let SharedKey([high, low]) = key;
        let [own_high, own_low] = &self.key;
        self.state.load(Ordering::Acquire) == SHARED_LIVE
            && own_high.load(Ordering::Relaxed) == high
            && own_low.load(Ordering::Relaxed) == low
    }

    pub(super) fn device_index(&self) -> usize {
        self.device.load(Ordering::Relaxed) as usize
    }

    pub(super) fn hold_by(&self, slot: usize) {
        if let Some(word) = self.holders.get(slot / 64) {
            word.fetch_or(1 << (slot % 64), Ordering::Relaxed);
        }
    }

    fn is_held_by(&self, slot: usize) -> bool {
        let word = self.holders.get(slot / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (slot % 64) != 0)
    }

    fn is_held_by_others_than(&self, slot: usize) -> bool {
        self.holders.iter().enumerate().any(|(index, word)| {
            let own = if index == slot / 64 {
                1 << (slot % 64)
            } else {
                0
            };
            word.load(Ordering::Relaxed) & !own != 0
        })
    }

    fn drop_by(&self, slot: usize) {
        if let Some(word) = self.holders.get(slot / 64) {
            word.fetch_and(!(1 << (slot % 64)), Ordering::Relaxed);
        }
    }
}

impl OwnHold {
    // Relaxed in all of these: the in-process lock of the table orders them.

    pub(super) fn key(&self) -> SharedKey {
        let [high, low] = &self.key;
        SharedKey([high.load(Ordering::Relaxed), low.load(Ordering::Relaxed)])
    }

    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, key: SharedKey, device: usize, bytes: u64, count: u32) {
        let SharedKey([high, low]) = key;
        let [own_high, own_low] = &self.key;
        own_high.store(high, Ordering::Relaxed);
        own_low.store(low, Ordering::Relaxed);
        self.device
            .store(u32::try_from(device).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.count.store(count, Ordering::Relaxed);
    }
}

impl Region {
    pub(super) fn high_water_shared(&self) -> usize {
        // Acquire: raised before anything is written to a place.
        let above = self
            .layout()
            .header
            .shared_high_water
            .load(Ordering::Acquire);
        (above as usize).min(MAX_SHARED)
    }

    pub(super) fn lock_shared(&self, wait: &mut Wait) -> bool {
        if self.private().shared_lock.lock(wait) {
            if self.lock_record(LOCK_SHARED, wait) {
                return true;
            }
            self.private().shared_lock.unlock();
        }
        false
    }

    pub(super) fn unlock_shared(&self) {
        self.unlock_record(LOCK_SHARED);
        self.private().shared_lock.unlock();
    }

    pub(super) fn find(&self, key: SharedKey) -> Option<(usize, &SharedObject)> {
        let table = self
            .layout()
            .shared
            .iter()
            .enumerate()
            .take(self.high_water_shared());
        table.into_iter().find(|(_, object)| object.is_live(key))
    }

    /// The sum of a device's objects, computed again from the table, so that a half-done change of a dead process
    /// does not last.
    fn sum_up(&self, device: usize) {
        let table = self.layout().shared.iter().take(self.high_water_shared());
        // Relaxed: the table's lock orders its changes.
        let live = table.filter(|object| {
            object.state.load(Ordering::Relaxed) == SHARED_LIVE && object.device_index() == device
        });
        let sum = live.fold(0_u64, |sum, object| {
            sum.saturating_add(object.bytes.load(Ordering::Relaxed))
        });
        if let Some(word) = self.shared_word(device) {
            // Relaxed: only changed under the table's lock.
            let count = (word.load(Ordering::Relaxed) >> CHARGE_COUNT_SHIFT).wrapping_add(1);
            let count =
                count << CHARGE_COUNT_SHIFT & !(u64::MAX << crate::layout::CHARGE_TAG_SHIFT);
            // SeqCst: as every change of a charge word.
            word.store(
                count | sum.min(MOST_BYTES) & CHARGE_BYTES_MASK,
                Ordering::SeqCst,
            );
        }
    }

    /// Puts an object into a free place, held by one slot.
    fn place_object(
        &self,
        key: SharedKey,
        family: Family,
        device: usize,
        bytes: u64,
        slot: usize,
    ) -> Option<usize> {
        let free = |index: &usize| {
            let place = self.layout().shared.get(*index);
            // Relaxed: the table's lock orders its changes. A place that is changing although we
            // hold the lock was left by the dead; its bytes are in no sum as long as no slot's bit
            // stands there for a reaper to find.
            let usable = place.is_some_and(|object| {
                let state = object.state.load(Ordering::Relaxed);
                state == SHARED_FREE
                    || state == SHARED_CHANGING
                        && object
                            .holders
                            .iter()
                            .all(|w| w.load(Ordering::Relaxed) == 0)
            });
            usable
                && self
                    .private()
                    .holds
                    .get(*index)
                    .is_some_and(|hold| hold.count() == 0)
        };
        let index = (0..MAX_SHARED).find(free)?;
        let object = self.layout().shared.get(index)?;
        let above = u32::try_from(index + 1).unwrap_or(u32::MAX);
        // Release: raised before anything is written to the place.
        self.layout()
            .header
            .shared_high_water
            .fetch_max(above, Ordering::Release);
        // Relaxed: the table's lock orders its changes; the state is stored after the rest.
        object.state.store(SHARED_CHANGING, Ordering::Relaxed);
        crash_point!("share:changing");
        let SharedKey([high, low]) = key;
        let [own_high, own_low] = &object.key;
        own_high.store(high, Ordering::Relaxed);
        own_low.store(low, Ordering::Relaxed);
        object
            .device
            .store(u32::try_from(device).unwrap_or(u32::MAX), Ordering::Relaxed);
        object.bytes.store(bytes, Ordering::Relaxed);
        object.family.store(family.0, Ordering::Relaxed);
        object
            .sequence
            .store(self.next_sequence(), Ordering::Relaxed);
        object.hold_by(slot);
        crash_point!("share:held");
        object.state.store(SHARED_LIVE, Ordering::Release);
        crash_point!("share:live");
        self.sum_up(device);
        crash_point!("share:summed");
        Some(index)
    }

    /// Removes one slot from an object's holders; true if it was the last holder.
    pub(super) fn drop_holder(&self, object: &SharedObject, slot: usize) -> bool {
        let last = !object.is_held_by_others_than(slot);
        if last {
            // First out of the sum, then the bit: a reaper that finds the bit does it again.
            // Relaxed: the table's lock orders its changes.
            object.state.store(SHARED_CHANGING, Ordering::Relaxed);
            crash_point!("unshare:changing");
        }
        // Also where others hold it: the process that put it here may have died before it was in the sum.
        self.sum_up(object.device_index());
        crash_point!("unshare:summed");
        object.drop_by(slot);
        crash_point!("unshare:dropped");
        if last {
            // Relaxed: as above.
            object.state.store(SHARED_FREE, Ordering::Relaxed);
            crash_point!("unshare:free");
        }
        last
    }

    /// Whether a slot holds any object.
    pub(super) fn holds_shared(&self, slot: usize) -> bool {
        let mut table = self.layout().shared.iter().take(self.high_water_shared());
        table.any(|object| object.is_held_by(slot))
    }

    /// Takes a dead slot out of all objects. False if the table's lock cannot be taken.
    pub(super) fn let_go_of_all(&self, slot: usize, wait: &mut Wait) -> bool {
        let held = || {
            let table = self.layout().shared.iter().take(self.high_water_shared());
            table.filter(move |object| object.is_held_by(slot))
        };
        // Only its owner sets a bit, and that is dead: what is not there will not come.
        if held().next().is_none() {
            return true;
        }
        if !self.lock_shared(wait) {
            return false;
        }
        for object in held() {
            self.drop_holder(object, slot);
        }
        self.unlock_shared();
        true
    }

    /// After a slot was taken away: enters this process's holds for its new slot.
    pub(super) fn bring_holds(&self, slot: usize) {
        let holds = &self.private().holds;
        if holds.iter().all(|hold| hold.count() == 0) {
            return;
        }
        let mut wait = Wait::new();
        if !self.lock_shared(&mut wait) {
            self.ran_out(&mut wait);
            return;
        }
        for hold in holds.iter().filter(|hold| hold.count() > 0) {
            if let Some((_, object)) = self.find(hold.key()) {
                object.hold_by(slot);
                continue;
            }
            // Relaxed: the in-process lock of the table orders them.
            let (device, bytes) = (
                hold.device.load(Ordering::Relaxed),
                hold.bytes.load(Ordering::Relaxed),
            );
            let count = hold.count();
            // How it was passed on is not remembered here: it is found by any import.
            let placed = self.place_object(hold.key(), Family::ANY, device as usize, bytes, slot);
            if let Some(new) = placed.and_then(|index| holds.get(index)) {
                new.set(hold.key(), device as usize, bytes, count);
                hold.count.store(0, Ordering::Relaxed);
            }
        }
        self.unlock_shared();
    }

    /// Joins if need be, and takes the table's lock. The packed slot of this process, or why there is none.
    pub(super) fn begin_change(&self) -> Result<u64, ShareError> {
        // Before the lock: joining takes it too.
        let packed = self.packed_slot();
        if packed == 0 {
            return Err(ShareError::NoSlot);
        }
        let mut wait = Wait::new();
        if !self.lock_shared(&mut wait) {
            self.ran_out(&mut wait);
            return Err(ShareError::TimedOut);
        }
        crash_point!("shared:locked");
        Ok(packed)
    }

    /// Moves a confirmed charge of this process into the shared-object table, held by this
    /// process.
    ///
    /// # Errors
    /// See [`ShareError`]; the charge then stays with this process.
    pub fn share(
        &self,
        key: SharedKey,
        device: usize,
        bytes: u64,
        kind: Kind,
    ) -> Result<(), ShareError> {
        self.share_by(device, bytes, kind, || match self.find(key) {
            Some(_) => Err(ShareError::Exists),
            None => Ok((key, Family::ANY)),
        })?;
        Ok(())
    }

    /// As `share`, under the name and in the family that `name` says under the table's lock.
    pub(super) fn share_by(
        &self,
        device: usize,
        bytes: u64,
        kind: Kind,
        name: impl FnOnce() -> Result<(SharedKey, Family), ShareError>,
    ) -> Result<SharedKey, ShareError> {
        if device >= crate::layout::MAX_DEVICES {
            return Err(ShareError::Unknown);
        }
        let packed = self.begin_change()?;
        let named = name();
        let key = named.map_or(SharedKey([0; 2]), |(key, _)| key);
        let placed = named.and_then(|(key, family)| {
            self.place_object(key, family, device, bytes, slot_tag_of(packed).slot)
                .ok_or(ShareError::TableFull)
        });
        let mut moved = true;
        match placed {
            Ok(index) => {
                if let Some(hold) = self.private().holds.get(index) {
                    hold.set(key, device, bytes, 1);
                }
                // Out of the slot after it is in the table: a sum may see it twice, never not.
                moved = self.take_out(packed, device, bytes, kind).is_ok();
                crash_point!("share:moved");
            }
            Err(ShareError::TableFull) => bump(&self.layout().header.shared_full),
            Err(_) => {}
        }
        self.unlock_shared();
        crash_point!("shared:unlocked");
        if !moved {
            // The slot was taken away just now; the next one was given the charge that moved.
            self.release(device, bytes, kind);
        }
        placed.map(|_| key)
    }

    fn take_out(
        &self,
        packed: u64,
        device: usize,
        bytes: u64,
        kind: Kind,
    ) -> Result<(), budget::Stale> {
        let (cells, tag) = self.slot_device(packed, device).ok_or(budget::Stale)?;
        let own = self.private().own.get(device).ok_or(budget::Stale)?;
        budget::release(cells, tag, bytes, kind)?;
        super::charges::forget(own, tag, bytes, kind)
    }

    /// This process holds the object too. Each hold wants an `unhold`.
    ///
    /// # Errors
    /// See [`ShareError`].
    pub fn hold(&self, key: SharedKey) -> Result<ObjectCharge, ShareError> {
        let slot = slot_tag_of(self.begin_change()?).slot;
        let found = self.find(key).and_then(|(index, object)| {
            object.hold_by(slot);
            crash_point!("hold:held");
            self.count_hold(index, object)
        });
        self.unlock_shared();
        crash_point!("shared:unlocked");
        found.ok_or(ShareError::Unknown)
    }

    /// One more hold of this process, whose bit is set in the object. `None` where no more can be counted.
    pub(super) fn count_hold(&self, index: usize, object: &SharedObject) -> Option<ObjectCharge> {
        let hold = self.private().holds.get(index)?;
        // Relaxed: the table's lock orders its changes.
        let bytes = object.bytes.load(Ordering::Relaxed);
        let device = object.device_index();
        let key = object.key();
        let count = if hold.key() == key { hold.count() } else { 0 };
        hold.set(key, device, bytes, count.checked_add(1)?);
        Some(ObjectCharge { device, bytes })
    }

    /// This process holds the object once less. The last holder of all ends the charge; then returns true.
    ///
    /// # Errors
    /// [`ShareError::Unknown`] where this process does not hold it. [`ShareError::TimedOut`] where
    /// the table could not be changed in time: the hold is gone all the same, and a later `tick`
    /// takes it out of the table.
    pub fn unhold(&self, key: SharedKey) -> Result<bool, ShareError> {
        let holds = &self.private().holds;
        let held = |hold: &&OwnHold| hold.count() > 0 && hold.key() == key;
        let slot = match self.begin_change() {
            Ok(packed) => slot_tag_of(packed).slot,
            Err(ShareError::TimedOut) => {
                let Some(hold) = holds.iter().find(held) else {
                    return Err(ShareError::Unknown);
                };
                // Relaxed: the sweep takes the table's lock.
                hold.count.fetch_sub(1, Ordering::Relaxed);
                self.private().sweep.store(1, Ordering::Relaxed);
                return Err(ShareError::TimedOut);
            }
            Err(error) => return Err(error),
        };
        let mut last = None;
        if let Some(hold) = holds.iter().find(held) {
            // Relaxed: the in-process lock of the table orders them.
            let left = hold.count.fetch_sub(1, Ordering::Relaxed).saturating_sub(1);
            crash_point!("unhold:counted");
            let object = self.find(key);
            last =
                Some(left == 0 && object.is_some_and(|(_, object)| self.drop_holder(object, slot)));
        }
        self.unlock_shared();
        crash_point!("shared:unlocked");
        last.ok_or(ShareError::Unknown)
    }

    /// Lets go of what could not be let go of in time.
    pub(super) fn sweep(&self) {
        // Relaxed: a hint.
        if self.private().sweep.swap(0, Ordering::Relaxed) == 0 {
            return;
        }
        let Ok(packed) = self.begin_change() else {
            self.private().sweep.store(1, Ordering::Relaxed);
            return;
        };
        let slot = slot_tag_of(packed).slot;
        let table = self.layout().shared.iter().zip(&self.private().holds);
        for (object, hold) in table.take(self.high_water_shared()) {
            if hold.count() == 0 && object.is_held_by(slot) {
                self.drop_holder(object, slot);
            }
        }
        self.unlock_shared();
    }

    /// The object of this name.
    #[must_use]
    pub fn shared(&self, key: SharedKey) -> Option<ObjectCharge> {
        let (_, object) = self.find(key)?;
        // Relaxed: a number for a report.
        let bytes = object.bytes.load(Ordering::Relaxed);
        Some(ObjectCharge {
            device: object.device_index(),
            bytes,
        })
    }
}
