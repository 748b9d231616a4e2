//! Reports of the region about the container: sums, the largest holders, refusals, and what was learned of the size
//! of contexts and modules.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{MemoryHolder, ProcessUse, Region, slot_tag_of, store_text};
use crate::budget::{self, Charges, Refusal, Why, bytes_in};
use crate::crash::crash_point;
use crate::credit;
use crate::layout::{CALL_BYTES, MAX_HOLDERS, MAX_OOMS, OomEntry, SLOT_USED, WAIT_CAUSES};
use crate::sys;
use crate::waits;

impl Region {
    /// Confirmed charges of all processes and of shared objects on this device, and what is kept for
    /// runtimes that are loading, bytes. Pending ones are not counted.
    #[must_use]
    pub fn used(&self, device: usize) -> u64 {
        budget::confirmed(self, device)
    }

    /// Confirmed charges of this process on this device, bytes; shared objects left out.
    #[must_use]
    pub fn used_by_me(&self, device: usize) -> u64 {
        // Relaxed: a number for a report.
        let own = self.private().own.get(device);
        own.map_or(0, |own| bytes_in(own.confirmed.load(Ordering::Relaxed)))
    }

    /// Pending charges of all processes on this device, bytes.
    #[must_use]
    pub fn pending(&self, device: usize) -> u64 {
        let mut sum = 0_u64;
        budget::each_slot(self, |slot| {
            if let Some(cells) = self.cells(slot, device) {
                // Relaxed: a number for a report.
                sum = sum.saturating_add(bytes_in(cells.pending.load(Ordering::Relaxed)));
            }
        });
        sum
    }

    /// Managed memory of all processes past the container's share of this device, bytes: confirmed
    /// or asked for.
    #[must_use]
    pub fn oversubscribed(&self, device: usize) -> u64 {
        budget::oversubscribed(self, device)
    }

    /// Of this process's memory on this device: managed memory past the container's share, bytes.
    #[must_use]
    pub fn oversubscribed_by_me(&self, device: usize) -> u64 {
        // Relaxed: a number for a report.
        let packed = self.private().packed.load(Ordering::Relaxed);
        self.slot_device(packed, device).map_or(0, |(cells, _)| {
            bytes_in(cells.oversubscribed.load(Ordering::Relaxed))
        })
    }

    /// Whether work of any process of the container, on any device, is overdue by more than
    /// `patience_ns`: the running work may be waiting for a launch that is itself waiting. Returns a number that
    /// identifies this state of overdue work, or 0 if no work is overdue.
    #[must_use]
    pub fn overdue(&self, now_ns: u64, patience_ns: u64) -> u64 {
        let mut sum = 0_u64;
        budget::each_slot(self, |slot| {
            for device in 0..self.device_count() {
                if let Some(cells) = self.cells(slot, device) {
                    let since_ns = credit::overdue(&cells.compute, now_ns, patience_ns);
                    sum = sum.rotate_left(7) ^ since_ns;
                }
            }
        });
        sum
    }

    /// How many processes of the container have work on this device that is overdue by more than `patience_ns`.
    #[must_use]
    pub fn overdue_processes(&self, device: usize, now_ns: u64, patience_ns: u64) -> u32 {
        let mut count = 0;
        budget::each_slot(self, |slot| {
            let cells = self.cells(slot, device);
            let since_ns = cells.map(|cells| credit::overdue(&cells.compute, now_ns, patience_ns));
            count += u32::from(since_ns.is_some_and(|since_ns| since_ns != 0));
        });
        count
    }

    /// Whether another process of the container has work on any device that is overdue by more than `patience_ns`.
    #[must_use]
    pub fn is_overdue_elsewhere(&self, now_ns: u64, patience_ns: u64) -> bool {
        // Relaxed: a number that the process wrote itself.
        let own = slot_tag_of(self.private().packed.load(Ordering::Relaxed)).slot;
        let mut is_any = false;
        budget::each_slot(self, |slot| {
            for device in (0..self.device_count()).filter(|_| slot != own) {
                if let Some(cells) = self.cells(slot, device) {
                    is_any |= credit::overdue(&cells.compute, now_ns, patience_ns) != 0;
                }
            }
        });
        is_any
    }

    /// How long launches of the container's other processes have waited for credit so far, nanoseconds.
    #[must_use]
    pub fn waited_elsewhere_ns(&self) -> u64 {
        // Relaxed throughout: numbers that decide what is charged at once, and what later.
        let own = slot_tag_of(self.private().packed.load(Ordering::Relaxed)).slot;
        let mut sum = 0_u64;
        budget::each_slot(self, |slot| {
            for device in (0..self.device_count()).filter(|_| slot != own) {
                if let Some(cells) = self.cells(slot, device) {
                    sum = sum.wrapping_add(cells.compute.throttled_ns.load(Ordering::Relaxed));
                }
            }
        });
        sum
    }

    /// Counts a wait at the gate that has ended: how long it was for each cause, by [`WaitCause`], nanoseconds.
    ///
    /// [`WaitCause`]: crate::waits::WaitCause
    pub fn count_wait(&self, device: usize, ns_by_cause: [u64; WAIT_CAUSES]) {
        if let Some(counters) = self.layout().header.gate_waits.get(device) {
            waits::count(counters, ns_by_cause);
        }
    }

    /// Counts hooked calls; `group` is below [`HOOK_GROUPS`](crate::layout::HOOK_GROUPS).
    #[inline]
    pub fn count_hooks(&self, group: usize, calls: u64) {
        // Relaxed: the counter guards no other memory, nor does the packed slot here: a call counted in
        // a slot that was just given away is a call counted.
        let place = slot_tag_of(self.private().packed.load(Ordering::Relaxed));
        let slot = self
            .layout()
            .slots
            .get(place.slot)
            .map(|slot| &slot.head.hook_calls);
        let counters = slot.unwrap_or(&self.layout().header.past_hook_calls);
        if let Some(counter) = counters.get(group) {
            // Relaxed: as above.
            counter.fetch_add(calls, Ordering::Relaxed);
        }
    }

    /// Remembers a refusal, with the largest holders as they are now. `call` is the name of the
    /// refused function, cut at 47 bytes; `time_unix_ns` is nanoseconds since 1970.
    pub fn record_oom(&self, call: &str, device: usize, refusal: &Refusal, time_unix_ns: u64) {
        let holders = self.holders(device);
        let header = &self.layout().header;
        // Relaxed: takes a number; the entry says by itself when it is finished.
        let number = header.ooms.fetch_add(1, Ordering::Relaxed);
        let index = usize::try_from(number % MAX_OOMS as u64).unwrap_or(0);
        let Some(entry) = self.layout().ooms.get(index) else {
            return;
        };
        // Release twice: odd before the fields, even after them.
        entry
            .sequence
            .store(number.wrapping_mul(2).wrapping_add(1), Ordering::Release);
        crash_point!("oom:begun");
        fill_oom(entry, call, device, refusal, time_unix_ns);
        for (to, from) in entry.holders.iter().zip(&holders) {
            // Relaxed: the sequence is stored after.
            to.pid.store(from.pid, Ordering::Relaxed);
            to.slot.store(from.slot, Ordering::Relaxed);
            to.bytes.store(from.bytes, Ordering::Relaxed);
        }
        crash_point!("oom:filled");
        entry
            .sequence
            .store(number.wrapping_mul(2).wrapping_add(2), Ordering::Release);
        crash_point!("oom:done");
    }

    /// The largest holders of this device, largest first.
    #[must_use]
    pub fn holders(&self, device: usize) -> [MemoryHolder; MAX_HOLDERS] {
        let mut largest = [MemoryHolder::default(); MAX_HOLDERS];
        let mut rank = |mut next: MemoryHolder| {
            for place in &mut largest {
                if next.bytes > place.bytes {
                    std::mem::swap(&mut next, place);
                }
            }
        };
        for process in self.processes() {
            let bytes = process.used_bytes.get(device).copied().unwrap_or(0);
            let slot = u32::try_from(process.slot).unwrap_or(u32::MAX);
            rank(MemoryHolder {
                pid: process.pid,
                slot,
                bytes,
            });
        }
        // Relaxed: a number for a report.
        let shared = self
            .shared_word(device)
            .map_or(0, |word| word.load(Ordering::Relaxed));
        rank(MemoryHolder {
            pid: u32::MAX,
            slot: u32::MAX,
            bytes: bytes_in(shared),
        });
        largest
    }

    /// The processes that have a slot.
    pub fn processes(&self) -> impl Iterator<Item = ProcessUse> + '_ {
        let above = self.high_water_slots();
        let slots = self.layout().slots.iter().enumerate().take(above);
        slots.filter_map(|(index, slot)| {
            // Acquire: the identity was stored before the state. Relaxed below: numbers for a
            // report.
            if slot.head.state.load(Ordering::Acquire) != SLOT_USED {
                return None;
            }
            let used = |device: usize| {
                let cells = slot.devices.get(device);
                cells.map_or(0, |c| bytes_in(c.confirmed.load(Ordering::Relaxed)))
            };
            Some(ProcessUse {
                slot: index,
                generation: slot.head.generation.load(Ordering::Relaxed),
                pid: slot.head.pid.load(Ordering::Relaxed),
                pid_namespace: slot.head.pid_namespace.load(Ordering::Relaxed),
                used_bytes: std::array::from_fn(used),
            })
        })
    }

    fn learned(&self, device: usize, of: fn(&crate::layout::RegionDevice) -> &AtomicU64) -> u64 {
        // Relaxed: an estimate; it guards nothing.
        self.layout()
            .devices
            .get(device)
            .map_or(0, |d| of(d).load(Ordering::Relaxed))
    }

    fn learn(&self, device: usize, of: fn(&crate::layout::RegionDevice) -> &AtomicU64, bytes: u64) {
        if let Some(device) = self.layout().devices.get(device) {
            // Relaxed: an estimate; it guards nothing.
            of(device).store(bytes, Ordering::Relaxed);
        }
    }

    /// Size of a context on this device as measured, bytes; 0 where it was not measured yet.
    #[must_use]
    pub fn learned_context_bytes(&self, device: usize) -> u64 {
        self.learned(device, |d| &d.context_bytes)
    }

    /// Remembers what a context was seen to take.
    pub fn learn_context_bytes(&self, device: usize, bytes: u64) {
        self.learn(device, |d| &d.context_bytes, bytes);
    }

    /// The most that contexts and modules were seen to take on this device, bytes, of a process whose
    /// runtime loads past the driver's public interface; 0 where it was not measured yet.
    #[must_use]
    pub fn learned_runtime_bytes(&self, device: usize) -> u64 {
        self.layout().devices.get(device).map_or(0, |device| {
            // SeqCst: as in `budget::reserve_loading`.
            bytes_in(device.runtime_bytes.load(Ordering::SeqCst))
        })
    }

    /// Remembers what contexts and modules of such a process were seen to take.
    pub fn learn_runtime_bytes(&self, device: usize, bytes: u64) {
        if let Some(device) = self.layout().devices.get(device) {
            // SeqCst: as in `budget::reserve_loading`.
            device
                .runtime_bytes
                .fetch_max(bytes.min(budget::MOST_BYTES), Ordering::SeqCst);
        }
    }

    /// Size of a module on this device as measured, bytes; 0 where it was not measured yet.
    #[must_use]
    pub fn learned_module_bytes(&self, device: usize) -> u64 {
        self.learned(device, |d| &d.module_bytes)
    }

    /// Remembers what a module was seen to take.
    pub fn learn_module_bytes(&self, device: usize, bytes: u64) {
        self.learn(device, |d| &d.module_bytes, bytes);
    }
}

fn fill_oom(entry: &OomEntry, call: &str, device: usize, refusal: &Refusal, time_unix_ns: u64) {
    // Relaxed: the sequence is stored after.
    let order = Ordering::Relaxed;
    entry.time_unix_ns.store(time_unix_ns, order);
    entry.pid.store(sys::process_id(), order);
    entry
        .device
        .store(u32::try_from(device).unwrap_or(u32::MAX), order);
    entry.asked.store(refusal.asked, order);
    entry.limit.store(refusal.limit, order);
    entry.used.store(refusal.used, order);
    entry.unaccounted.store(refusal.unaccounted, order);
    let why = match refusal.why {
        Why::Full => 0,
        Why::TimedOut => 1,
        Why::Closed => 2,
        Why::NotPageable => 3,
    };
    entry.why.store(why, order);
    let call = call.as_bytes();
    store_text(&entry.call, call.get(..CALL_BYTES - 1).unwrap_or(call));
}
