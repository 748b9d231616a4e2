//! What every rule begins with: how this process stands, which device a call is about, and a charge
//! or a refusal with its record. Calls no hook and no driver function that changes anything.

use core::sync::atomic::{AtomicU64, Ordering};

use cuda_api::CuResult;
use vgpu_abi::region::{Bounds, Charge, Kind, Refusal, Why};

use crate::container::{self, Container, Device, Fact, Process, Standing};
use crate::contexts;
use crate::external;
use crate::guest::{self, Verdict};
use crate::leaving;
use crate::ledger::{CHORE_LEAVING, CHORE_POOLS, Ledger};
use crate::log::line;
use crate::measure;
use crate::pools;
use crate::query;
use crate::sparse;

/// The container's books, open for a call.
#[derive(Clone, Copy)]
pub(crate) struct Books {
    /// The shared files.
    pub(crate) container: &'static Container,
    /// What this process knows.
    pub(crate) process: &'static Process,
}

/// Where a call's memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// To a device with books, in this context.
    Device {
        /// Its index in the region.
        device: usize,
        /// Our number of the context that it dies with; 0 for none.
        owner: u64,
    },
    /// Where nobody counts (no context, an unlimited device): the driver answers.
    Elsewhere,
    /// To a device that the container may not use.
    Denied,
}

/// What a call is counted as, in the region's groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Group {
    /// Memory is given or taken back.
    Memory = 0,
    /// A figure is shown.
    Report = 1,
    /// A context or a module comes or goes.
    Context = 2,
    /// Work is launched.
    Launch = 3,
    /// Work is waited for.
    Sync = 4,
    /// A function is looked up.
    Dispatch = 5,
    /// NVML.
    Nvml = 6,
}

/// Opens the books, or says what a rule answers without them.
#[inline(always)]
pub(crate) fn open<T>(group: Group) -> Result<Books, Verdict<T>> {
    match container::standing() {
        Standing::Ready(container, process) => {
            let books = Books { container, process };
            guest::take_left_behind(|charge| {
                process.ledger.keep_left_behind(container, charge);
            });
            books.count(group);
            Ok(books)
        }
        Standing::Transparent => Err(Verdict::Pass),
        Standing::Closed => Err(Verdict::Refuse(CuResult::NOT_PERMITTED)),
    }
}

/// Opens the books for a rule that stands after the call.
pub(crate) fn opened() -> Option<Books> {
    match container::standing() {
        Standing::Ready(container, process) => Some(Books { container, process }),
        Standing::Transparent | Standing::Closed => None,
    }
}

/// Opens the books or leaves the rule with the answer that stands for it.
macro_rules! books {
    ($group:ident) => {
        match $crate::books::open($crate::books::Group::$group) {
            Ok(books) => books,
            Err(verdict) => return verdict,
        }
    };
}
pub(crate) use books;

impl Books {
    /// What this process holds.
    pub(crate) fn ledger(&self) -> &'static Ledger {
        &self.process.ledger
    }

    /// Counts a call: in this thread, and from time to time in the region (at 1, 2, 4, … 64 calls,
    /// then every 64, so that a short program is seen, too).
    #[inline]
    pub(crate) fn count(&self, group: Group) {
        guest::thread(|thread| {
            let Some(batch) = thread.calls.get(group as usize) else {
                return;
            };
            let (calls, wanted) = (batch.0.get() + 1, batch.1.get());
            if calls <= wanted {
                batch.0.set(calls);
                return;
            }
            batch.0.set(0);
            batch.1.set((wanted * 2 + 1).min(63));
            self.container
                .region
                .count_hooks(group as usize, u64::from(calls));
        });
    }

    /// The current context's device.
    #[inline]
    pub(crate) fn here(&self) -> Place {
        let Some(context) = query::current_context() else {
            return Place::Elsewhere;
        };
        self.of_context(context)
    }

    /// A context's device.
    #[inline]
    pub(crate) fn of_context(&self, context: u64) -> Place {
        let epoch = self.context_epoch();
        let known = guest::thread(|thread| {
            (thread.context.get() == context && thread.context_epoch.get() == epoch)
                .then(|| (thread.device.get(), thread.context_number.get()))
        });
        match known {
            Some((device, owner)) => Place::Device {
                device: device as usize,
                owner,
            },
            None => self.find_context(context, epoch),
        }
    }

    #[cold]
    fn find_context(&self, context: u64, epoch: u32) -> Place {
        let Some(ordinal) = query::context_ordinal(context) else {
            return Place::Elsewhere;
        };
        match self.process.device(self.container, ordinal) {
            Device::Unlimited => Place::Elsewhere,
            Device::Denied => Place::Denied,
            Device::Limited(device) if !contexts::is_allowed(self, context, device) => {
                Place::Denied
            }
            Device::Limited(device) => {
                let owner = contexts::adopt(self, context, device);
                guest::thread(|thread| {
                    thread.context.set(context);
                    thread.context_epoch.set(epoch);
                    thread.device.set(u32::try_from(device).unwrap_or(0));
                    thread.context_number.set(owner);
                });
                Place::Device { device, owner }
            }
        }
    }

    /// Differs when an address may stand for another context than before.
    #[inline]
    fn context_epoch(&self) -> u32 {
        // Relaxed: a context that is destroyed while it is used is the host's own race.
        let gone = self.ledger().contexts_gone.load(Ordering::Relaxed);
        self.process.epoch.load(Ordering::Relaxed) << 20 | gone & 0xf_ffff
    }

    /// The place of a device that the caller names by the driver's ordinal.
    pub(crate) fn of_ordinal(&self, ordinal: i32) -> Place {
        match self.process.device(self.container, ordinal) {
            Device::Limited(device) => Place::Device { device, owner: 0 },
            Device::Unlimited => Place::Elsewhere,
            Device::Denied => Place::Denied,
        }
    }

    /// The driver's ordinal of a device of the region.
    pub(crate) fn ordinal_of(&self, device: usize) -> Option<i32> {
        (0..query::device_count()?).find(|&ordinal| {
            self.process.device(self.container, ordinal) == Device::Limited(device)
        })
    }

    /// Reserves room, or says what the caller is told instead.
    #[inline(always)]
    pub(crate) fn reserve(
        &self,
        call: &str,
        device: usize,
        bytes: u64,
    ) -> Result<Charge, CuResult> {
        self.try_reserve(device, bytes)
            .or_else(|refusal| self.try_once_more(device, bytes, refusal))
            .map_err(|refusal| self.refuse(call, device, &refusal))
    }

    /// What waits for the driver, or for a descriptor to be closed, may have ended meanwhile.
    #[cold]
    fn try_once_more(
        &self,
        device: usize,
        bytes: u64,
        refusal: Refusal,
    ) -> Result<Charge, Refusal> {
        let ended = sparse::poll(self) | external::poll(self);
        if ended {
            self.try_reserve(device, bytes)
        } else {
            Err(refusal)
        }
    }

    /// Reserves room, without a record of a refusal.
    #[inline(always)]
    pub(crate) fn try_reserve(&self, device: usize, bytes: u64) -> Result<Charge, Refusal> {
        if self.process.is_any_awaited() {
            contexts::loaded(self, device);
        }
        if self.ledger().has_chores() {
            return self.try_reserve_after_chores(device, bytes);
        }
        self.try_reserve_now(device, bytes)
    }

    /// Looks at what may have become free, and at what is to be measured, before room is given.
    #[cold]
    fn try_reserve_after_chores(&self, device: usize, bytes: u64) -> Result<Charge, Refusal> {
        self.do_chores();
        let reserved = self.try_reserve_now(device, bytes);
        if reserved.is_ok() || !self.ledger().has_chore(CHORE_LEAVING) {
            return reserved;
        }
        leaving::wait(self);
        self.try_reserve_now(device, bytes)
    }

    fn do_chores(&self) {
        let ledger = self.ledger();
        if ledger.has_chore(CHORE_LEAVING) {
            leaving::settle(self);
        }
        if ledger.has_chore(CHORE_POOLS) {
            pools::finish(self);
        }
        while let Some(device) = ledger.take_unmeasured() {
            contexts::measure_again(self, device);
        }
    }

    /// Are the device's books above its limit? Then the answer says by what.
    pub(crate) fn above_limit(&self, device: usize) -> Option<Refusal> {
        let region = &self.container.region;
        let used = region.used(device);
        let limit = self.process.room(self.container, device);
        let refusal = |limit, used, why| {
            let refusal = Refusal {
                limit,
                used,
                asked: 0,
                unaccounted: 0,
                why,
            };
            self.with_unaccounted(device, refusal)
        };
        if limit != 0 && used > limit {
            return Some(refusal(limit, used, Why::Full));
        }
        let resident = self.process.resident_room(device);
        let here = used.saturating_sub(region.oversubscribed(device));
        (resident != 0 && here > resident).then(|| refusal(resident, here, Why::NotPageable))
    }

    /// As [`Books::reserve`], for what a context or a module takes: a program that asks for it may not
    /// have loaded all that it brought.
    pub(crate) fn reserve_overhead(
        &self,
        call: &str,
        device: usize,
        bytes: u64,
    ) -> Result<Charge, CuResult> {
        self.try_reserve_now(device, bytes)
            .map_err(|refusal| self.refuse(call, device, &refusal))
    }

    /// Reserves room for the context of a process whose runtime loads past the hooks: `least`, or
    /// what such processes were seen to take. Without a record of a refusal.
    pub(crate) fn try_reserve_loading(&self, device: usize, least: u64) -> Result<Charge, Refusal> {
        self.tick();
        let ask = || {
            let bounds = self.bounds(device);
            self.container.region.reserve_loading(device, least, bounds)
        };
        let charge = ask().or_else(|refusal| self.ask_again(device, refusal, ask))?;
        guest::note_pending(charge);
        Ok(charge)
    }

    /// What the container may have of a device.
    pub(crate) fn bounds(&self, device: usize) -> Bounds {
        Bounds {
            limit: self.process.room(self.container, device),
            resident: match self.process.resident_room(device) {
                0 => u64::MAX,
                resident => resident,
            },
        }
    }

    /// Now and then: looks after our slot, and whether the container is above its limit.
    #[inline(always)]
    pub(crate) fn tick(&self) {
        if self.process.tick(self.container) {
            measure::look_for_excess(self);
        }
    }

    #[inline(always)]
    pub(crate) fn try_reserve_now(&self, device: usize, bytes: u64) -> Result<Charge, Refusal> {
        self.tick();
        let ask = || {
            let limit = self.process.room(self.container, device);
            let region = &self.container.region;
            match self.process.resident_room(device) {
                0 => region.reserve(device, bytes, limit),
                resident => region.reserve_within(device, bytes, Bounds { limit, resident }, false),
            }
        };
        let charge = match ask() {
            Ok(charge) => charge,
            Err(refusal) => self.ask_again(device, refusal, ask)?,
        };
        guest::note_pending(charge);
        Ok(charge)
    }

    /// Reserves room for what the driver can also give as managed memory. Where the container has a
    /// share of the device that is smaller than its limit, there is room past the share, too; the
    /// charge says which it is.
    #[inline(always)]
    pub(crate) fn reserve_pageable(
        &self,
        call: &str,
        device: usize,
        bytes: u64,
    ) -> Result<Charge, CuResult> {
        if self.process.is_any_awaited() {
            contexts::loaded(self, device);
        }
        if self.ledger().has_chores() {
            self.do_chores();
        }
        self.tick();
        let ask = || {
            let limit = self.process.room(self.container, device);
            match self.process.resident_room(device) {
                0 => self.container.region.reserve(device, bytes, limit),
                resident => self.reserve_past(device, bytes, Bounds { limit, resident }),
            }
        };
        let reserved = match ask() {
            Ok(charge) => Ok(charge),
            Err(refusal) => self.ask_again(device, refusal, ask),
        };
        match reserved {
            Ok(charge) => {
                guest::note_pending(charge);
                Ok(charge)
            }
            Err(refusal) => self
                .try_once_more(device, bytes, refusal)
                .map_err(|refusal| self.refuse(call, device, &refusal)),
        }
    }

    #[inline(never)]
    fn reserve_past(&self, device: usize, bytes: u64, bounds: Bounds) -> Result<Charge, Refusal> {
        let pages = self.process.is(device, Fact::Pages, || {
            let ordinal = self.ordinal_of(device)?;
            let pages = query::device_attribute(ordinal, query::CONCURRENT_MANAGED_ACCESS)?;
            if pages == 0 {
                line!(
                    Warn,
                    "device {device}: no memory past the share of {}: it does not page managed memory",
                    bounds.resident
                );
            }
            Some(pages != 0)
        });
        let region = &self.container.region;
        region.reserve_within(device, bytes, bounds, pages)
    }

    /// Refuses to name memory to other processes: the table of what they share is full, or cannot be
    /// had, and what has no place in it would be charged to nobody once its maker is dead.
    #[cold]
    pub(crate) fn refuse_export(&self, call: &str, device: usize, bytes: u64) -> CuResult {
        let refusal = Refusal {
            limit: self.process.memory_limit(self.container, device),
            used: self.container.region.used(device),
            asked: bytes,
            unaccounted: 0,
            why: Why::Closed,
        };
        self.refuse(call, device, &refusal)
    }

    /// Refuses what the driver cannot do with managed memory, as for want of memory of the device.
    #[cold]
    pub(crate) fn refuse_not_pageable(&self, call: &str, device: usize, bytes: u64) -> CuResult {
        let share = self.process.resident_limit(device);
        let refusal = self
            .container
            .region
            .refuse_not_pageable(device, bytes, share);
        self.refuse(call, device, &refusal)
    }

    /// The driver has given what was reserved.
    #[inline]
    pub(crate) fn confirm(&self, charge: Charge, kind: Kind) {
        self.container.region.confirm(charge, kind);
        guest::settle_pending();
    }

    /// The driver has not given what was reserved.
    #[inline]
    pub(crate) fn refund(&self, charge: Charge) {
        self.container.region.refund(charge);
        guest::settle_pending();
    }

    /// Records a refusal, and says what the caller is told.
    #[cold]
    pub(crate) fn refuse(&self, call: &str, device: usize, refusal: &Refusal) -> CuResult {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: writes one timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
        let unix_ns = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
        self.container
            .region
            .record_oom(call, device, refusal, unix_ns);
        // A program that tries again and again fills no log: one line a second, the rest is in the
        // region's counters.
        let second = now.tv_sec.unsigned_abs();
        // Relaxed: guards no other memory.
        if LAST_SAID.swap(second, Ordering::Relaxed) != second {
            line!(
                Warn,
                "{call}: device {device}: {} asked, {} of {} used, {} unaccounted: {:?}",
                refusal.asked,
                refusal.used,
                refusal.limit,
                refusal.unaccounted,
                refusal.why
            );
        }
        CuResult::OUT_OF_MEMORY
    }

    /// The driver has given what was reserved, and it turned out to be `bytes`.
    pub(crate) fn confirm_as(&self, charge: Charge, kind: Kind, bytes: u64) {
        self.confirm(charge, kind);
        if bytes != charge.bytes() {
            self.container
                .region
                .adjust(charge.device(), kind, charge.bytes(), bytes);
        }
    }
}

/// The second (since 1970) in which a refusal was last logged.
static LAST_SAID: AtomicU64 = AtomicU64::new(0);

const SMALL_STEP: u64 = 512;
/// The driver's granularity from 1 MiB on, and of everything that is mapped.
pub(crate) const STEP: u64 = 2 << 20;

/// The smallest granularity that a driver's device has told, bytes. A forked child has the same devices.
static GRANULARITY: AtomicU64 = AtomicU64::new(STEP);

/// A device's granularity is known.
pub(crate) fn note_granularity(bytes: u64) {
    // Relaxed: the word says all.
    GRANULARITY.fetch_min(bytes.max(SMALL_STEP), Ordering::Relaxed);
}

/// The smallest granularity that a driver's device has told, bytes.
pub(crate) fn granularity() -> u64 {
    // Relaxed: as above.
    GRANULARITY.load(Ordering::Relaxed)
}

/// What the driver takes for a plain allocation.
#[inline]
pub(crate) fn taken(bytes: u64) -> u64 {
    // Relaxed: as above.
    taken_of(bytes, GRANULARITY.load(Ordering::Relaxed))
}

/// The same on a device of this granularity: steps of 2 MiB from 1 MiB on, below that the granularity's
/// steps from the granularity on, else steps of 512 bytes.
#[inline]
fn taken_of(bytes: u64, granularity: u64) -> u64 {
    let step = if bytes >= 1 << 20 {
        STEP
    } else if bytes >= granularity {
        granularity
    } else {
        SMALL_STEP
    };
    bytes.checked_next_multiple_of(step).unwrap_or(u64::MAX)
}

/// What the driver takes for mapped memory: steps of 2 MiB.
#[inline]
pub(crate) fn mapped(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(STEP).unwrap_or(u64::MAX)
}

/// A size of C as ours.
#[inline]
pub(crate) fn size(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_takes() {
        for (asked, expected) in [
            (1, 512),
            (512, 512),
            (513, 1024),
            ((1 << 20) - 1, 1 << 20),
            (1 << 20, 2 << 20),
            ((2 << 20) + 1, 4 << 20),
            (u64::MAX, u64::MAX),
        ] {
            assert_eq!(taken_of(asked, STEP), expected, "{asked}");
        }
    }

    #[test]
    fn a_driver_of_small_steps_takes_small_memory_in_them() {
        for (asked, expected) in [
            (1, 512),
            ((64 << 10) - 1, 64 << 10),
            (64 << 10, 64 << 10),
            ((64 << 10) + 1, 128 << 10),
            ((1 << 20) - 1, 1 << 20),
            (1 << 20, 2 << 20),
            (u64::MAX, u64::MAX),
        ] {
            assert_eq!(taken_of(asked, 64 << 10), expected, "{asked}");
        }
    }
}
