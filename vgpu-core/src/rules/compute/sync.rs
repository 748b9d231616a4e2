//! Rules: the program waits for its own work, in a call of the driver or by asking again and again whether it has ended.
//! Such a wait shows when work has ended that has no event of the library behind it, and for how long the program was
//! blocked. Waits for nothing itself.

use core::sync::atomic::Ordering;

use cuda_api::{CuContext, CuEvent, CuResult};
use vgpu_abi::targets::Grant;

use super::{collect, settle};
use crate::base::clock;
use crate::driver::query;
use crate::guest::manners::{self, Verdict};
use crate::guest::thread::{Gate, ThreadWait, thread};
use crate::rules::{pools, stream_frees};
use crate::state::accounts::Accounts;
use crate::state::launches::spans::{Found, Target};
use crate::state::leases::{FREE, tell};
use crate::state::standing;

/// The launches of a thread, as a wait finds them.
#[derive(Clone, Copy, Debug)]
struct ThreadWork {
    /// This process opened the thread's gate. The gate of a forked child's thread is its parent's.
    is_own: bool,
    /// The credit that is left for launches; `FREE`: no launch is counted.
    left_ns: u64,
    /// Launched since the gate was last looked at, nanoseconds.
    work_ns: u64,
}

impl ThreadWork {
    fn of(gate: &Gate, accounts: &Accounts) -> Self {
        Self {
            is_own: gate.owner.get() == accounts.process.number(),
            left_ns: gate.left_ns.get(),
            work_ns: gate.work_ns.get(),
        }
    }

    /// Whether the time of the thread's launches is counted.
    fn counts(self) -> bool {
        self.is_own && self.left_ns != FREE
    }

    /// Whether the program may wait for work of the thread that is counted. `is_any_busy`: some stream of the process
    /// has work that is not known to have ended.
    fn may_wait(self, is_any_busy: bool) -> bool {
        self.counts() && (is_any_busy || self.work_ns > 0)
    }
}

/// What a question whether work has ended means, by the driver's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// The thread waits for its work.
    Waits,
    /// Its work has ended.
    Over,
    /// Nothing: no counted work was waited for.
    Nothing,
}

/// `is_for`: the thread has asked the same before and heard that the work has not ended. `is_awaited`: the arbiter
/// waits for the process to rest.
fn judge(
    result: CuResult,
    is_for: bool,
    is_awaited: bool,
    work: ThreadWork,
    is_any_busy: bool,
) -> Asked {
    match result {
        CuResult::NOT_READY if work.counts() => Asked::Waits,
        CuResult::SUCCESS if (is_for || is_awaited) && work.may_wait(is_any_busy) => Asked::Over,
        _ => Asked::Nothing,
    }
}

/// The stream that may have ended when an event of the program has: the thread's last one. While a stream captures,
/// none is asked, because the question would break the capture.
fn last_stream(work: ThreadWork, stream: u64, captures: u32, is_any_busy: bool) -> Option<u64> {
    (work.counts() && captures == 0 && is_any_busy).then_some(stream)
}

fn work(accounts: &Accounts) -> ThreadWork {
    thread(|thread| ThreadWork::of(&thread.gate, accounts))
}

fn is_any_busy(accounts: &Accounts) -> bool {
    accounts.process.compute.spans.is_anything_busy()
}

/// Before the program waits for the device: since when it waits, if it has launched work that is counted.
pub(crate) fn before_sync() -> Verdict<Option<u64>> {
    let may_count =
        standing::opened().is_some_and(|accounts| work(&accounts).may_wait(is_any_busy(&accounts)));
    Verdict::Call(may_count.then(clock::now_ns))
}

/// After `cuCtxSynchronize`: all of the context's streams have been waited for. `context` is 0 for the current one.
pub(crate) fn after_context_sync(since_ns: Option<u64>, result: CuResult, context: CuContext) {
    let given = (!context.is_null()).then_some(context as u64);
    let context = || given.or_else(query::current_context);
    stream_frees::after_context_sync(result, context);
    show_at_once();
    after_sync(since_ns, result);
    let opened = standing::opened().filter(|_| result == CuResult::SUCCESS);
    let Some(accounts) = opened.filter(|it| it.process.compute.spans.is_anything_busy()) else {
        return;
    };
    if let Some(context) = context() {
        let found = |device, found| settle_ended(&accounts, device, found);
        accounts.process.compute.spans.ended_in(context, found);
    }
}

/// After `cuStreamSynchronize`.
pub(crate) fn after_stream_sync(since_ns: Option<u64>, result: CuResult, stream: u64) {
    show_at_once();
    after_sync(since_ns, result);
    if let Some(accounts) = standing::opened().filter(|_| result == CuResult::SUCCESS) {
        stream_has_ended(&accounts, stream);
    }
}

/// After `cuEventSynchronize`.
pub(crate) fn after_event_sync(since_ns: Option<u64>, result: CuResult) {
    show_at_once();
    after_sync(since_ns, result);
    if let Some(accounts) = standing::opened().filter(|_| result == CuResult::SUCCESS) {
        last_stream_may_have_ended(&accounts);
    }
}

/// After `cuStreamQuery`.
pub(crate) fn after_stream_query(result: CuResult, stream: u64) {
    if let Some(accounts) = asked(result, stream) {
        stream_has_ended(&accounts, stream);
    }
}

/// After `cuEventQuery`.
pub(crate) fn after_event_query(result: CuResult, event: CuEvent) {
    if let Some(accounts) = asked(result, event as u64) {
        last_stream_may_have_ended(&accounts);
    }
}

/// The program has asked whether work has ended, by a stream or an event. Returns something if a wait is over by that:
/// the thread has asked before, or the arbiter waits for the process to rest.
fn asked(result: CuResult, what: u64) -> Option<Accounts> {
    let accounts = standing::opened()?;
    let wait = thread(|thread| thread.wait.get());
    let asked = judge(
        result,
        wait.is_for(what),
        accounts.process.compute.is_awaited(),
        work(&accounts),
        is_any_busy(&accounts),
    );
    match asked {
        Asked::Waits => {
            let wait = wait.not_yet(what, clock::now_ns());
            thread(|thread| thread.wait.set(wait));
            None
        }
        Asked::Over => {
            thread(|thread| thread.wait.set(ThreadWait::default()));
            show_at_once();
            settle_all(&accounts);
            if let Some((since_ns, until_ns)) = wait.ended(what, clock::now_ns()) {
                count_blocked(&accounts, since_ns, until_ns);
            }
            Some(accounts)
        }
        Asked::Nothing => None,
    }
}

/// If the arbiter waits for this container to rest, the region shows at once which work has ended, although the last
/// launches have no mark behind them.
fn show_at_once() {
    if let Some(accounts) = standing::opened()
        && accounts.process.compute.is_awaited()
    {
        tell(&accounts);
    }
}

/// The program has waited for the device: pools give memory back, and work that has ended is settled.
fn after_sync(since_ns: Option<u64>, result: CuResult) {
    pools::after_sync(result);
    let Some(accounts) = standing::opened() else {
        return;
    };
    settle_all(&accounts);
    if let Some(since_ns) = since_ns {
        count_blocked(&accounts, since_ns, clock::now_ns());
    }
}

fn settle_all(accounts: &Accounts) {
    if accounts.process.compute.spans.is_anything_busy() {
        manners::uncancelled(|| query::relaxed(|| collect(accounts, clock::now_ns())));
    }
}

/// A thread has waited for the device that it launched to last.
fn count_blocked(accounts: &Accounts, since_ns: u64, until_ns: u64) {
    let device = thread(|thread| thread.gate.device.get()) as usize;
    let state = accounts.process.compute.device(device);
    let (Some(state), Some(compute)) = (state, accounts.container.region.compute(device)) else {
        return;
    };
    // Relaxed: a number.
    let occupied_ns = compute.own().occupied_ns.load(Ordering::Relaxed);
    let more_ns = state.blocked.more_ns(since_ns, until_ns, occupied_ns);
    if more_ns > 0 {
        compute.count_occupied(i64::try_from(more_ns).unwrap_or(i64::MAX));
    }
}

/// The program has seen for itself that all work of a stream has ended, and no event says how long it took.
fn stream_has_ended(accounts: &Accounts, stream: u64) {
    settle_stream(accounts, stream, |_| true);
}

/// An event of the program has happened. The driver does not say which stream it was recorded in; mostly it is the one
/// that the thread launched to last, and the driver says whether that has ended.
fn last_stream_may_have_ended(accounts: &Accounts) {
    let stream = thread(|thread| thread.gate.stream.get());
    // Relaxed: see `target`.
    let captures = accounts.process.compute.captures.load(Ordering::Relaxed);
    let asked = last_stream(work(accounts), stream, captures, is_any_busy(accounts));
    if let Some(stream) = asked {
        manners::uncancelled(|| {
            query::relaxed(|| settle_stream(accounts, stream, query::stream_has_ended));
        });
    }
}

/// Settles the work of a stream that has no event behind it, if the stream with this handle has ended.
fn settle_stream(accounts: &Accounts, stream: u64, has_ended: impl Fn(u64) -> bool) {
    let spans = &accounts.process.compute.spans;
    if !spans.is_anything_busy() {
        return;
    }
    let target = Target::of_handle(stream, query::current_context);
    if let Some((device, found)) = spans.ended(&target, has_ended) {
        settle_ended(accounts, device, found);
    }
}

fn settle_ended(accounts: &Accounts, device: usize, found: Found) {
    let scale = u32::from(Grant::ONE);
    settle(accounts, device, found, scale, clock::now_ns());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COUNTED: ThreadWork = ThreadWork {
        is_own: true,
        left_ns: 0,
        work_ns: 1,
    };
    /// A thread of a forked child, which has its parent's gate.
    const FORKED: ThreadWork = ThreadWork {
        is_own: false,
        ..COUNTED
    };
    const UNLIMITED: ThreadWork = ThreadWork {
        left_ns: FREE,
        ..COUNTED
    };
    const IDLE: ThreadWork = ThreadWork {
        work_ns: 0,
        ..COUNTED
    };

    #[test]
    fn launches_count_with_an_own_gate_that_has_a_limit() {
        assert!(COUNTED.counts() && IDLE.counts());
        assert!(!FORKED.counts() && !UNLIMITED.counts());
        let almost = ThreadWork {
            left_ns: FREE - 1,
            ..COUNTED
        };
        assert!(almost.counts());
    }

    #[test]
    fn a_wait_counts_while_counted_work_may_run() {
        // Work of this thread, of any stream, of both, of none.
        assert!(COUNTED.may_wait(false) && IDLE.may_wait(true) && COUNTED.may_wait(true));
        assert!(!IDLE.may_wait(false));
        for of in [FORKED, UNLIMITED] {
            assert!(!of.may_wait(true) && !of.may_wait(false), "{of:?}");
        }
    }

    #[test]
    fn work_that_has_not_ended_begins_a_wait_if_it_counts() {
        for (is_for, is_awaited, is_any_busy) in [
            (false, false, false),
            (true, false, true),
            (false, true, true),
        ] {
            let ask = |of| judge(CuResult::NOT_READY, is_for, is_awaited, of, is_any_busy);
            assert_eq!(ask(COUNTED), Asked::Waits);
            assert_eq!(ask(IDLE), Asked::Waits);
            assert_eq!(ask(FORKED), Asked::Nothing);
            assert_eq!(ask(UNLIMITED), Asked::Nothing);
        }
    }

    #[test]
    fn ended_work_ends_a_wait_that_there_was_or_that_the_arbiter_needs() {
        let ask = |is_for, is_awaited| judge(CuResult::SUCCESS, is_for, is_awaited, COUNTED, false);
        assert_eq!(ask(true, false), Asked::Over);
        assert_eq!(ask(false, true), Asked::Over);
        assert_eq!(ask(false, false), Asked::Nothing);
        let idle = |is_any_busy| judge(CuResult::SUCCESS, true, true, IDLE, is_any_busy);
        assert_eq!(idle(true), Asked::Over);
        assert_eq!(idle(false), Asked::Nothing);
    }

    #[test]
    fn the_last_stream_is_asked_outside_of_captures() {
        assert_eq!(last_stream(COUNTED, 7, 0, true), Some(7));
        assert_eq!(last_stream(IDLE, 7, 0, true), Some(7));
        assert_eq!(last_stream(COUNTED, 7, 1, true), None);
        assert_eq!(last_stream(COUNTED, 7, 0, false), None);
        assert_eq!(last_stream(FORKED, 7, 0, true), None);
        assert_eq!(last_stream(UNLIMITED, 7, 0, true), None);
    }

    proptest! {
        /// Every other answer of the driver is an error, and says nothing about work.
        #[test]
        fn an_error_neither_begins_nor_ends_a_wait(
            code in any::<u32>(), is_for: bool, is_awaited: bool, is_own: bool, is_any_busy: bool,
            left_ns in prop_oneof![Just(FREE), any::<u64>()], work_ns in 0..3_u64,
        ) {
            let result = CuResult(code);
            let work = ThreadWork { is_own, left_ns, work_ns };
            let asked = judge(result, is_for, is_awaited, work, is_any_busy);
            if result != CuResult::SUCCESS && result != CuResult::NOT_READY {
                prop_assert_eq!(asked, Asked::Nothing);
            }
            if asked != Asked::Nothing {
                prop_assert!(work.counts());
            }
        }
    }
}
