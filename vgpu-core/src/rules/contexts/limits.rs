//! Rules: `cuCtxSetLimit`. Stacks, the heap and the print buffer of kernels, and what kernels that launch
//! kernels need are memory of the device: more than the defaults, which are a part of every context, is
//! reserved before it is set, by a formula where the driver takes it only when a kernel needs it.

use cuda_api::CuResult;
use vgpu_abi::region::{Charge, Kind};

use crate::driver::query;
use crate::figures::sizes;
use crate::guest::manners::Verdict;
use crate::holdings::known_contexts::recharge;
use crate::holdings::measure::{self, Look};
use crate::holdings::{locate, requests};
use crate::state::accounts::Destination;
use crate::state::standing::{self, accounts};

/// Numbers of the limits that are memory (`CU_LIMIT_*`).
const STACK: u32 = 0;
const PRINTF: u32 = 1;
const HEAP: u32 = 2;
const SYNC_DEPTH: u32 = 3;
const PENDING_LAUNCHES: u32 = 4;

/// Values of these limits, and what they are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Values {
    /// Bytes of each thread.
    stack: u64,
    printf: u64,
    heap: u64,
    /// Levels of kernels that wait for kernels.
    sync_depth: u64,
    pending_launches: u64,
    /// Threads that a device can have at once.
    threads: u64,
}

/// The driver's defaults.
const DEFAULTS: Values = Values {
    stack: 1 << 10,
    printf: 1 << 20,
    heap: 8 << 20,
    sync_depth: 2,
    pending_launches: 2048,
    threads: 0,
};
/// Kept for each thread of a kernel that waits for another one, bytes.
const STATE_OF_A_THREAD: u64 = 1 << 10;
/// Kept for each launch that may be pending, bytes.
const PENDING_LAUNCH: u64 = 1 << 10;

impl Values {
    /// As they are in the current context. A limit that the driver does not know counts as its default.
    fn now(ordinal: i32) -> Self {
        let value = |limit, default| query::context_limit(limit).unwrap_or(default);
        let figure = |attribute, default: u64| {
            query::device_attribute(ordinal, attribute)
                .and_then(|it| u64::try_from(it).ok())
                .filter(|&it| it > 0)
                .unwrap_or(default)
        };
        let threads = figure(query::THREADS_PER_MULTIPROCESSOR, 2048);
        Self {
            stack: value(STACK, DEFAULTS.stack),
            printf: value(PRINTF, DEFAULTS.printf),
            heap: value(HEAP, DEFAULTS.heap),
            sync_depth: value(SYNC_DEPTH, DEFAULTS.sync_depth),
            pending_launches: value(PENDING_LAUNCHES, DEFAULTS.pending_launches),
            threads: figure(query::MULTIPROCESSORS, 160).saturating_mul(threads),
        }
    }

    /// The same with another value of one limit; `None` where that is no memory.
    fn with(mut self, limit: u32, value: u64) -> Option<Self> {
        let changed = match limit {
            STACK => &mut self.stack,
            PRINTF => &mut self.printf,
            HEAP => &mut self.heap,
            SYNC_DEPTH => &mut self.sync_depth,
            PENDING_LAUNCHES => &mut self.pending_launches,
            _ => return None,
        };
        *changed = value;
        Some(self)
    }

    /// The memory that they take beyond a context with the defaults, bytes.
    fn beyond_the_defaults(&self) -> u64 {
        let stacks = self.stack.saturating_sub(DEFAULTS.stack);
        let levels = self.sync_depth.saturating_sub(DEFAULTS.sync_depth);
        let launches = self
            .pending_launches
            .saturating_sub(DEFAULTS.pending_launches);
        let buffers = self
            .printf
            .saturating_sub(DEFAULTS.printf)
            .saturating_add(self.heap.saturating_sub(DEFAULTS.heap));
        let of_threads = stacks
            .saturating_add(levels.saturating_mul(STATE_OF_A_THREAD))
            .saturating_mul(self.threads);
        sizes::mapped(buffers)
            .saturating_add(sizes::mapped(of_threads))
            .saturating_add(sizes::mapped(launches.saturating_mul(PENDING_LAUNCH)))
    }
}

/// A limit about to be set.
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    call: &'static str,
    charge: Option<Charge>,
    less: u64,
    device: usize,
    context: u64,
    before: Option<Look>,
}

/// Reserves what a larger value takes, and refunds what a smaller one leaves.
pub(crate) fn before_set_limit(call: &'static str, limit: u32, value: usize) -> Verdict<Setting> {
    let accounts = accounts!(Context);
    let Destination::Device { device, .. } = locate::here(&accounts) else {
        return Verdict::Pass;
    };
    let (Some(context), Some(ordinal)) = (query::current_context(), query::current_ordinal())
    else {
        return Verdict::Pass;
    };
    let now = Values::now(ordinal);
    let Some(then) = now.with(limit, sizes::size(value)) else {
        return Verdict::Pass;
    };
    let (before, then) = (now.beyond_the_defaults(), then.beyond_the_defaults());
    let setting = Setting {
        call,
        charge: None,
        less: before.saturating_sub(then),
        device,
        context,
        before: None,
    };
    if then <= before {
        return Verdict::Call(setting);
    }
    let look = measure::before(&accounts, device);
    match requests::reserve_overhead(&accounts, call, device, then - before) {
        Ok(charge) => Verdict::Call(Setting {
            charge: Some(charge),
            before: look,
            ..setting
        }),
        Err(result) => Verdict::Refuse(result),
    }
}

pub(crate) fn after_set_limit(setting: Setting, result: CuResult) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let Setting {
        call,
        charge,
        less,
        device,
        context,
        before,
    } = setting;
    if result != CuResult::SUCCESS {
        if let Some(charge) = charge {
            accounts.refund(charge);
        }
        return;
    }
    let mut more = charge.map_or(0, |charge| charge.bytes());
    if let Some(charge) = charge {
        let beyond = measure::taken(&accounts, device, before, more).beyond;
        accounts.confirm(charge, Kind::Context);
        if beyond > 0 {
            // The driver has given it.
            accounts
                .container
                .region
                .charge(device, beyond, Kind::Context);
            more = more.saturating_add(beyond);
        }
    }
    accounts
        .holdings()
        .resize_context(&accounts.container.region, device, more, less);
    recharge(&accounts, context, |bytes| {
        bytes.saturating_add(more).saturating_sub(less)
    });
    if more > 0 {
        measure::record_excess(&accounts, call, device, more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Values = Values {
        threads: 132 * 2048,
        ..DEFAULTS
    };

    #[track_caller]
    fn takes(limit: u32, value: u64, bytes: u64) {
        let changed = H200.with(limit, value).unwrap();
        assert_eq!(changed.beyond_the_defaults(), bytes, "{limit} {value}");
    }

    #[test]
    fn defaults_and_less_take_nothing_more() {
        assert_eq!(H200.beyond_the_defaults(), 0);
        takes(STACK, 0, 0);
        takes(HEAP, 1, 0);
        takes(SYNC_DEPTH, 0, 0);
    }

    #[test]
    fn a_stack_is_taken_for_every_thread_of_the_device() {
        takes(STACK, 2048, 132 * 2048 * 1024);
        takes(STACK, 512 << 10, 132 * 2048 * (511 << 10));
        takes(STACK, u64::MAX, u64::MAX);
    }

    #[test]
    fn buffers_are_taken_as_they_are() {
        takes(HEAP, (8 << 20) + 1, 2 << 20);
        takes(PRINTF, 11 << 20, 10 << 20);
        // All but the default, in whole steps.
        takes(HEAP, u64::MAX, u64::MAX - (8 << 20) + 1);
        takes(PENDING_LAUNCHES, 4096, 2 << 20);
        takes(SYNC_DEPTH, 3, 132 * 2048 * 1024);
    }

    #[test]
    fn a_limit_that_is_no_memory_is_left_alone() {
        assert_eq!(H200.with(5, 1 << 40), None);
        assert_eq!(H200.with(u32::MAX, 1), None);
    }
}
