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

/// Whether the time of this thread's launches is counted.
fn counts(gate: &Gate, accounts: &Accounts) -> bool {
    gate.owner.get() == accounts.process.number() && gate.left_ns.get() != FREE
}

/// Whether the program may wait for work of this thread that is counted.
fn may_wait(accounts: &Accounts) -> bool {
    thread(|thread| {
        let is_told = accounts.process.compute.spans.is_anything_busy();
        counts(&thread.gate, accounts) && (is_told || thread.gate.work_ns.get() > 0)
    })
}

/// Before the program waits for the device: since when it waits, if it has launched work that is counted.
pub(crate) fn before_sync() -> Verdict<Option<u64>> {
    let may_count = standing::opened().is_some_and(|accounts| may_wait(&accounts));
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
    match result {
        CuResult::NOT_READY => {
            thread(|thread| {
                if counts(&thread.gate, &accounts) {
                    let wait = thread.wait.get().not_yet(what, clock::now_ns());
                    thread.wait.set(wait);
                }
            });
            None
        }
        CuResult::SUCCESS => {
            let wait = thread(|thread| thread.wait.get());
            let is_awaited = accounts.process.compute.is_awaited();
            if !wait.is_for(what) && !is_awaited || !may_wait(&accounts) {
                return None;
            }
            thread(|thread| thread.wait.set(ThreadWait::default()));
            show_at_once();
            settle_all(&accounts);
            if let Some((since_ns, until_ns)) = wait.ended(what, clock::now_ns()) {
                count_blocked(&accounts, since_ns, until_ns);
            }
            Some(accounts)
        }
        _ => None,
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
    let stream = thread(|thread| {
        let gate = &thread.gate;
        counts(gate, accounts).then(|| gate.stream.get())
    });
    // Relaxed: see `target`. A stream that captures is not asked.
    let captures = accounts.process.compute.captures.load(Ordering::Relaxed);
    let is_busy = accounts.process.compute.spans.is_anything_busy();
    if let Some(stream) = stream.filter(|_| captures == 0 && is_busy) {
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
    let context = if stream > 2 {
        0
    } else {
        query::current_context().unwrap_or(0)
    };
    let target = Target {
        handle: stream,
        context,
        device: 0,
    };
    if let Some((device, found)) = spans.ended(&target, has_ended) {
        settle_ended(accounts, device, found);
    }
}

fn settle_ended(accounts: &Accounts, device: usize, found: Found) {
    let scale = u32::from(Grant::ONE);
    settle(accounts, device, found, scale, clock::now_ns());
}
