//! The container's accounts, open for a call: which device an ordinal is, confirming a charge, refunding it, and
//! refusing with a record. Calls no hook and no driver function that changes anything.

use core::sync::atomic::{AtomicU64, Ordering};

use cuda_api::CuResult;
use vgpu_abi::region::{Bounds, Charge, Kind, Refusal, Why};

use crate::base::clock;
use crate::base::log::line;
use crate::driver::device::Device;
use crate::driver::query;
use crate::guest::manners;
use crate::guest::thread::thread;
use crate::state::container::Container;
use crate::state::holdings::Holdings;
use crate::state::process::ProcessState;

/// The container's accounts, open for a call.
#[derive(Clone, Copy)]
pub(crate) struct Accounts {
    /// The shared files.
    pub(crate) container: &'static Container,
    /// This process's own state.
    pub(crate) process: &'static ProcessState,
}

/// Where a call's memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// To a device that is charged, in this context.
    Device {
        /// Its index in the region.
        device: usize,
        /// Our number of the context that it dies with; 0 for none.
        owner: u64,
    },
    /// Nothing is charged (no context, an unlimited device): the driver answers.
    Elsewhere,
    /// To a device that the container may not use.
    Denied,
}

/// The group of the region under which a call is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Group {
    /// Memory is given or taken back.
    Memory = 0,
    /// A figure is shown.
    Report = 1,
    /// A context or a module is made or destroyed.
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

impl Accounts {
    /// The memory that this process holds.
    pub(crate) fn holdings(&self) -> &'static Holdings {
        &self.process.holdings
    }

    /// Counts a call: in this thread, and from time to time in the region (at 1, 2, 4, … 64 calls,
    /// then every 64, so that a short program is seen, too).
    #[inline(always)]
    pub(crate) fn count(&self, group: Group) {
        thread(|thread| {
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
            self.count_in_region(group, calls);
        });
    }

    #[cold]
    #[inline(never)]
    fn count_in_region(&self, group: Group, calls: u32) {
        let region = &self.container.region;
        region.count_hooks(group as usize, u64::from(calls));
    }

    /// The place of a device that the caller names by the driver's ordinal.
    pub(crate) fn of_ordinal(&self, ordinal: i32) -> Destination {
        match self.process.device(self.container, ordinal) {
            Device::Limited(device) => Destination::Device { device, owner: 0 },
            Device::Unlimited => Destination::Elsewhere,
            Device::Denied => Destination::Denied,
        }
    }

    /// The driver's ordinal of a device of the region.
    pub(crate) fn ordinal_of(&self, device: usize) -> Option<i32> {
        (0..query::device_count()?).find(|&ordinal| {
            self.process.device(self.container, ordinal) == Device::Limited(device)
        })
    }

    /// The bounds of the container on a device.
    #[inline(always)]
    pub(crate) fn bounds(&self, device: usize) -> Bounds {
        self.bounds_within(device, self.process.room(self.container, device))
    }

    /// [`Accounts::bounds`], if the process has taken over the limits of now.
    #[inline(always)]
    pub(crate) fn known_bounds(&self, device: usize) -> Option<Bounds> {
        self.process
            .knows_limits(self.container)
            .then(|| self.bounds_within(device, self.process.known_room(device)))
    }

    #[inline(always)]
    fn bounds_within(&self, device: usize, limit: u64) -> Bounds {
        Bounds {
            limit,
            resident: match self.process.resident_room(device) {
                0 => u64::MAX,
                resident => resident,
            },
        }
    }

    /// Refuses to name memory to other processes: the table of shared objects is full, or its lock cannot be
    /// had. Memory without an entry there would be charged to no process once its maker is dead.
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
    #[inline(always)]
    pub(crate) fn confirm(&self, charge: Charge, kind: Kind) {
        self.container.region.confirm(charge, kind);
        manners::settle_pending();
    }

    /// The driver has not given what was reserved.
    #[inline]
    pub(crate) fn refund(&self, charge: Charge) {
        self.container.region.refund(charge);
        manners::settle_pending();
    }

    /// Records a refusal, and returns the error for the caller.
    #[cold]
    pub(crate) fn refuse(&self, call: &str, device: usize, refusal: &Refusal) -> CuResult {
        let unix_ns = clock::unix_ns();
        self.container
            .region
            .record_oom(call, device, refusal, unix_ns);
        // A program that tries again and again fills no log: one line a second, the rest is in the
        // region's counters.
        let second = unix_ns / 1_000_000_000;
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
    #[inline(always)]
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
