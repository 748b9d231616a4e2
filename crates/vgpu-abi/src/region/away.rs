//! Processes that were checkpointed: their memory on a device is taken off their charges and
//! remembered in their slot, and is charged again before they are restored. Any process of the container may do both.
//!
//! Never gives back without a reservation, and never uses what an earlier owner of the slot left.

use std::sync::atomic::Ordering;

use super::{ProcessUse, Region};
use crate::budget::{self, bytes_in, tag_of};
use crate::crash::crash_point;
use crate::layout::{CHARGE_TAG_SHIFT, DeviceUse};

const TAG_MASK: u64 = u64::MAX << CHARGE_TAG_SHIFT;

impl Region {
    /// The process of this number, if it has a slot and this process can recognise it by that number.
    #[must_use]
    pub fn process(&self, pid: u32) -> Option<ProcessUse> {
        let namespace = self.identity().pid_namespace;
        self.processes()
            .find(|process| process.pid == pid && process.pid_namespace == namespace)
    }

    fn cells_of(&self, process: &ProcessUse, device: usize) -> Option<(&DeviceUse, u64)> {
        let slot = self.layout().slots.get(process.slot)?;
        Some((slot.devices.get(device)?, tag_of(process.generation)))
    }

    /// The driver has taken the process's memory off all devices: its charges stand aside.
    pub fn put_away(&self, process: &ProcessUse) {
        for device in 0..self.device_count() {
            let Some((cells, tag)) = self.cells_of(process, device) else {
                return;
            };
            // SeqCst, as every read of a charge word that is changed by what it says.
            let bytes = bytes_in(cells.confirmed.load(Ordering::SeqCst));
            if bytes == 0 || self.away(process, device) != 0 {
                continue;
            }
            // Remembered before it is taken off: a process that dies between the two leaves too much charged.
            // SeqCst: before the charge is taken off.
            cells.away.store(tag | bytes, Ordering::SeqCst);
            crash_point!("away:stored");
            if budget::take(&cells.confirmed, tag, bytes).is_err() {
                // SeqCst: as above. The slot is another process's now.
                cells.away.store(0, Ordering::SeqCst);
            }
        }
    }

    /// The part of the process's memory that a checkpoint has taken off, bytes.
    #[must_use]
    pub fn away(&self, process: &ProcessUse, device: usize) -> u64 {
        self.cells_of(process, device).map_or(0, |(cells, tag)| {
            // SeqCst: as in `put_away`.
            let word = cells.away.load(Ordering::SeqCst);
            if word & TAG_MASK == tag {
                bytes_in(word)
            } else {
                0
            }
        })
    }

    /// The driver has brought the process's memory back, to the device `to`. The process that asked for it
    /// had reserved the room, and gives the reservation back after this.
    pub fn bring_back(&self, process: &ProcessUse, from: usize, to: usize) {
        let bytes = self.away(process, from);
        let (Some((cells, tag)), Some((target, _))) =
            (self.cells_of(process, from), self.cells_of(process, to))
        else {
            return;
        };
        if bytes == 0 {
            return;
        }
        let charged = budget::add(&target.confirmed, tag, bytes);
        crash_point!("away:charged");
        if charged.is_ok() {
            // SeqCst: as in `put_away`.
            cells.away.store(0, Ordering::SeqCst);
        }
    }
}
