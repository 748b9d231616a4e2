//! Rules: launches. A program gets its share of a device's time: each launch is charged in advance what
//! it has cost before, from an account that the clock fills (`vgpu_abi::credit`), and waits when the
//! account is in debt; what it really took is settled afterwards. Owns the way of a launch and of whatever
//! ends one: graphs, captures, streams and contexts that go. `rate` says which rate counts, `timetable` at
//! which times, `wait` how long a launch waits, `costs` what work costs, `spans` what it took.
//!
//! A launch that neither has to wait nor is to be measured goes through [`look`] and [`pays`] (`gate`): no clock, no
//! shared word, no call of the driver.

use core::sync::atomic::Ordering;
pub(crate) use gate::{look, look_config, pays, pays_config};

use cuda_api::{CuLaunchConfig, CuLaunchParams, CuResult, CuStream};
use gate::{of_config, open_gate, remember_free};
use rate::{Rate, rate};
pub(crate) use sync::{
    after_context_sync, after_event_query, after_event_sync, after_stream_query, after_stream_sync,
    before_sync,
};
use vgpu_abi::credit::Compute;
use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::targets::Grant;
use wait::{Admitted, Wait};

use crate::base::clock;
use crate::driver::query;
use crate::guest::border::{DefaultStream, InPtr, Legacy};
use crate::guest::manners::{self, Verdict};
use crate::guest::thread::thread;
use crate::holdings::deferred_free_charges;
use crate::holdings::locate;
use crate::holdings::requests;
use crate::rules::first_use::{self, FirstUse};
use crate::state::accounts::{Accounts, Destination};
use crate::state::launches::State;
use crate::state::launches::costs::Work;
use crate::state::launches::costs::estimate::{Beside, MOST_ODD_NS, OwnTime};
use crate::state::launches::spans::{Begun, Found, Measured, Target};
use crate::state::leases::{add_in_flight, add_launched, tell};
use crate::state::standing::{self, Standing, accounts};

pub(crate) mod copies;

mod decisions;

mod gate;

mod rate;

mod roster;

mod sync;

mod timetable;

mod wait;

/// A launch that was let in and charged.
#[derive(Clone, Copy)]
pub(crate) struct Launched {
    /// The memory of its first launch is to be measured.
    first: Option<FirstUse>,
    begun: Option<Begun>,
    work: Work,
    charged_ns: u64,
    device: usize,
    scale: u32,
    is_unknown: bool,
}

impl Launched {
    /// A launch whose time is not counted.
    pub(crate) fn uncharged(first: Option<FirstUse>, work: Work) -> Self {
        Self {
            first,
            begun: None,
            work,
            charged_ns: 0,
            device: 0,
            scale: 0,
            is_unknown: false,
        }
    }
}

/// A thread has another current context than before: what it remembers of streams is void.
pub(crate) fn context_changed(_result: CuResult) {
    thread(|thread| thread.gate.epoch.set(0));
}

/// Before a kernel is launched.
pub(crate) fn before(work: Work, stream: u64) -> Verdict<Launched> {
    let accounts = accounts!(Launch);
    launch(&accounts, work, stream)
}

/// Before `cuLaunchKernelEx`.
pub(crate) fn before_config(
    config: InPtr<CuLaunchConfig>,
    function: usize,
    default: impl DefaultStream,
) -> Verdict<Launched> {
    let accounts = accounts!(Launch);
    match of_config(config, function, default) {
        Some((work, stream)) => launch(&accounts, work, stream),
        None => Verdict::Pass,
    }
}

/// The way of a launch that `gate` did not let through.
pub(crate) fn launch(accounts: &Accounts, work: Work, stream: u64) -> Verdict<Launched> {
    let verdict = in_its_turn(accounts, work, stream);
    if matches!(verdict, Verdict::Refuse(_)) {
        return verdict;
    }
    let first = first_use::before_launch(accounts, work, stream);
    match (first, verdict) {
        (None, verdict) => verdict,
        (first, Verdict::Call(launched)) => Verdict::Call(Launched { first, ..launched }),
        (first, _) => Verdict::Call(Launched::uncharged(first, work)),
    }
}

/// Waits for its turn, and charges it.
fn in_its_turn(accounts: &Accounts, work: Work, stream: u64) -> Verdict<Launched> {
    requests::tick(accounts);
    tell(accounts);
    let Some(target) = target(accounts, stream) else {
        return Verdict::Pass;
    };
    let Some(compute) = accounts.container.region.compute(target.device) else {
        return Verdict::Pass;
    };
    let counter = if work.function == 0 {
        &compute.own().graph_launches
    } else {
        &compute.own().launches
    };
    // Relaxed: a counter.
    counter.fetch_add(1, Ordering::Relaxed);
    let looked = roster::rate_now(accounts, &compute, target.device);
    let (rate, now_ns) = looked;
    let state = &accounts.process.compute;
    state.set_awaited(rate.rings);
    if rate.rings && state.is_first_since(accounts.container.targets_generation()) {
        accounts.container.ring();
    }
    if rate.is_free() {
        remember_free(accounts, &target, stream, now_ns);
        return Verdict::Pass;
    }
    let metered = || metered(accounts, &compute, work, &target, stream, looked);
    manners::uncancelled(|| query::relaxed(metered))
}

/// The stream's context and device; `None`: it is none of our business (no device of the container,
/// or it captures).
fn target(accounts: &Accounts, stream: u64) -> Option<Target> {
    let state = &accounts.process.compute;
    // Relaxed: the thread that launches into a capture has begun it, or got the stream from the thread that has.
    if state.captures.load(Ordering::Relaxed) > 0 && !query::is_out_of_captures(stream) {
        return None;
    }
    let handle = core::ptr::with_exposed_provenance_mut(usize::try_from(stream).ok()?);
    // A stream of a green context may belong to none that the driver names.
    let context = query::stream_context(handle).or_else(query::current_context)?;
    match locate::of_context(accounts, context) {
        Destination::Device { device, .. } => Some(Target {
            handle: stream,
            context,
            device,
        }),
        Destination::Elsewhere | Destination::Denied => None,
    }
}

/// A launch on a device where time is counted.
fn metered(
    accounts: &Accounts,
    compute: &Compute<'_>,
    work: Work,
    target: &Target,
    stream: u64,
    looked: (Rate, u64),
) -> Verdict<Launched> {
    let state = &accounts.process.compute;
    let at = state.spans.stream(target);
    let mut wait = Wait::new(accounts, compute, target.device, at);
    let admitted = wait.admit(&work, looked);
    let Some(admitted) = admitted else {
        // The limit went away while it waited.
        return Verdict::Pass;
    };
    let Admitted {
        charged_ns,
        more_ns,
        most_ns,
        left_ns,
        is_unknown,
        is_guess,
        rate,
        now_ns,
    } = admitted;
    // Relaxed: a time for a report.
    compute
        .own()
        .last_launch_ns
        .store(now_ns, Ordering::Relaxed);
    compute.count_busy(i64::try_from(charged_ns).unwrap_or(i64::MAX));
    compute.count_occupied(i64::try_from(charged_ns).unwrap_or(i64::MAX));
    let least_ns = state.costs.least(work.key);
    let in_flight_ns = add_launched(accounts, compute, target.device, charged_ns, now_ns);
    // The work that was in flight before, and the least that this launch takes.
    let ahead_ns = decisions::ahead_ns(in_flight_ns, charged_ns, least_ns);
    // Relaxed: a time.
    compute.own().expected_by_ns.fetch_max(
        now_ns.saturating_add(rate.with_turns(ahead_ns)),
        Ordering::Relaxed,
    );
    let is_well_known = !is_unknown && !is_guess;
    let is_due = |at: usize| {
        let unmarked_ns = state.spans.unmarked_ns(at);
        let due_ns = decisions::due_ns(rate.ahead, rate.has_cap(), left_ns, in_flight_ns);
        decisions::is_measured(is_well_known, unmarked_ns, charged_ns, due_ns)
    };
    let begun = at
        .filter(|at| is_due(*at))
        .and_then(|at| state.spans.begin(at));
    if begun.is_none() {
        if is_unknown {
            // The launch cannot be measured: no launch is to wait for its end.
            compute.end_unknown();
        }
        let noted = at.is_some_and(|at| state.spans.launched(at, charged_ns, now_ns));
        if !noted {
            add_in_flight(
                accounts,
                compute,
                target.device,
                -i64::try_from(charged_ns).unwrap_or(0),
            );
        }
    }
    let is_charged = rate.has_cap() && rate.interval.is_none();
    let lease_ns = decisions::thread_lease_ns(is_charged, more_ns, most_ns, rate.scale);
    if more_ns > 0 {
        manners::watch_thread();
    }
    open_gate(accounts, |gate| {
        gate.stream.set(stream);
        gate.left_ns.set(lease_ns);
        gate.more_ns.set(more_ns);
        gate.scale.set(rate.scale);
        gate.device.set(u32::try_from(target.device).unwrap_or(0));
        gate.place
            .set(at.and_then(|at| u32::try_from(at + 1).ok()).unwrap_or(0));
    });
    let launched = Launched {
        first: None,
        begun,
        work,
        charged_ns,
        device: target.device,
        scale: rate.charged(),
        is_unknown,
    };
    if begun.is_some() {
        Verdict::Call(launched)
    } else {
        Verdict::Pass
    }
}

/// After a launch that is to be measured.
pub(crate) fn after(launched: Launched, result: CuResult) {
    if let Some(first) = launched.first {
        first_use::after(first, result);
    }
    let (Some(accounts), Some(begun)) = (standing::opened(), launched.begun) else {
        return;
    };
    manners::uncancelled(|| {
        query::relaxed(|| {
            if result == CuResult::SUCCESS {
                close(&accounts, &launched, &begun);
            } else {
                undo(&accounts, &launched, &begun);
            }
        });
    });
}

fn close(accounts: &Accounts, launched: &Launched, begun: &Begun) {
    let state = &accounts.process.compute;
    let is_marked = state.spans.end(
        begun,
        launched.work,
        launched.charged_ns,
        launched.is_unknown,
    );
    if !is_marked
        && launched.is_unknown
        && let Some(compute) = accounts.container.region.compute(launched.device)
    {
        compute.end_unknown();
    }
}

/// The driver refused it: nothing was used.
fn undo(accounts: &Accounts, launched: &Launched, begun: &Begun) {
    accounts.process.compute.spans.cancel(begun);
    let Some(compute) = accounts.container.region.compute(launched.device) else {
        return;
    };
    let ns = i64::try_from(launched.charged_ns).unwrap_or(i64::MAX);
    compute.count_busy(-ns);
    compute.count_occupied(-ns);
    add_in_flight(accounts, &compute, launched.device, -ns);
    compute.settle(-counted(ns, launched.scale));
    if launched.is_unknown {
        compute.end_unknown();
    }
}

fn counted(ns: i64, scale: u32) -> i64 {
    ns.saturating_mul(i64::from(scale)) / i64::from(Grant::ONE)
}

/// Settles what has ended since, on all devices.
fn collect(accounts: &Accounts, now_ns: u64) {
    let state = &accounts.process.compute;
    if !state.spans.is_anything_busy() {
        return;
    }
    let mut left_ns = [0_u64; MAX_DEVICES];
    state.spans.collect(
        now_ns,
        |device| rate(accounts, device, now_ns).beside,
        |work, measured, beside| {
            let (ns, follows) = match measured {
                Measured::Took { ns, follows } => (ns, follows),
                Measured::InDoubt { most_ns } => {
                    state.costs.met(work.key, most_ns);
                    return OwnTime::default();
                }
            };
            let beside = Beside {
                // A shorter one is charged whole, so the question is kept for one that is not.
                has_waiters: ns > MOST_ODD_NS && has_waiters(accounts),
                follows,
                ..beside
            };
            state.costs.learn(work, ns, beside)
        },
        |device, found| {
            if let Some(sum) = left_ns.get_mut(device) {
                *sum += found.left_ns;
            }
            if let Some(state) = state.device(device) {
                let owed_ns = i64::try_from(found.owed_ns).unwrap_or(i64::MAX);
                state.learn_pace(found.done_ns, found.more_ns.saturating_add(owed_ns));
            }
            let rate = rate(accounts, device, now_ns);
            if let (Some(interval), Some(compute)) =
                (rate.interval, accounts.container.region.compute(device))
            {
                compute.settle(timetable::outside(interval, found.more_ns));
                compute.owe(found.owed_ns);
            }
            settle(accounts, device, found, rate.charged(), now_ns);
        },
    );
    for (device, ns) in left_ns.into_iter().enumerate().filter(|(_, ns)| *ns > 0) {
        if let Some(state) = state.device(device) {
            // Relaxed: a time.
            let ends_ns = now_ns.saturating_add(state.paced(ns));
            state.ends_at_ns.fetch_max(ends_ns, Ordering::Relaxed);
        }
    }
}

/// Have other processes of the container waited for credit since this was last asked?
fn has_waiters(accounts: &Accounts) -> bool {
    let waited_ns = accounts.container.region.waited_elsewhere_ns();
    let before = &accounts.process.compute.waited_elsewhere_ns;
    // Relaxed: a number.
    before.swap(waited_ns, Ordering::Relaxed) != waited_ns
}

fn settle(accounts: &Accounts, device: usize, found: Found, scale: u32, now_ns: u64) {
    let Some(compute) = accounts.container.region.compute(device) else {
        return;
    };
    if found.more_ns != 0 {
        compute.count_busy(found.more_ns);
        compute.settle(counted(found.more_ns, scale));
    }
    if found.owed_ns > 0 {
        let owed_ns = i64::try_from(found.owed_ns).unwrap_or(i64::MAX);
        compute.count_busy(owed_ns);
        compute.owe(counted(owed_ns, scale).unsigned_abs());
    }
    if found.more_occupied_ns != 0 {
        compute.count_occupied(found.more_occupied_ns);
    }
    if found.done_ns > 0 {
        add_in_flight(
            accounts,
            &compute,
            device,
            -i64::try_from(found.done_ns).unwrap_or(0),
        );
        // Relaxed: a time.
        compute.own().progress_ns.store(now_ns, Ordering::Relaxed);
        if let Some(state) = accounts.process.compute.device(device) {
            state.progress_ns.store(now_ns, Ordering::Relaxed);
            state.stalls.store(0, Ordering::Relaxed);
        }
    }
    if found.ended_unknown {
        compute.end_unknown();
    }
}

/// Most devices that one call launches to.
const MOST_AT_ONCE: usize = 16;

/// Launches to several devices in one call.
#[derive(Clone, Copy)]
pub(crate) struct ManyLaunched([Option<Launched>; MOST_AT_ONCE]);

/// Before `cuLaunchCooperativeKernelMultiDevice`.
pub(crate) fn before_many(params: InPtr<CuLaunchParams>, count: u32) -> Verdict<ManyLaunched> {
    let accounts = accounts!(Launch);
    let mut all = [None; MOST_AT_ONCE];
    for (index, place) in all.iter_mut().enumerate().take(count as usize) {
        let Some(one) = params.at(index).read() else {
            break;
        };
        let work = Work::kernel(
            one.function as usize,
            [one.grid_x, one.grid_y, one.grid_z],
            [one.block_x, one.block_y, one.block_z],
        );
        if let Verdict::Call(launched) = launch(&accounts, work, Legacy.number(one.stream)) {
            *place = Some(launched);
        }
    }
    Verdict::Call(ManyLaunched(all))
}

/// After it.
pub(crate) fn after_many(launched: ManyLaunched, result: CuResult) {
    for one in launched.0.into_iter().flatten() {
        after(one, result);
    }
}

/// A capture begins: from here on each launch asks whether its stream captures.
pub(crate) fn after_capture_begin(result: CuResult) {
    if result == CuResult::SUCCESS
        && let Standing::Ready(_, process) = standing::standing()
    {
        // Relaxed: see `target`.
        process.compute.captures.fetch_add(1, Ordering::Relaxed);
        process.compute.forget_gates();
    }
}

/// A capture ends, in whatever way, unless this was not the thread to end it.
pub(crate) fn after_capture_end(result: CuResult) {
    let is_over = !matches!(
        result,
        CuResult::STREAM_CAPTURE_WRONG_THREAD
            | CuResult::ILLEGAL_STATE
            | CuResult::INVALID_VALUE
            | CuResult::INVALID_HANDLE
            | CuResult::STREAM_CAPTURE_UNMATCHED
    );
    if is_over && let Standing::Ready(_, process) = standing::standing() {
        capture_is_over(&process.compute);
    }
}

fn capture_is_over(state: &State) {
    let less = |count: u32| count.checked_sub(1);
    // Relaxed: see `target`.
    let _old = state
        .captures
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    state.forget_gates();
}

/// A stream is about to go.
pub(crate) fn before_stream_destroy(stream: CuStream) -> Verdict<()> {
    let accounts = match standing::opened() {
        Some(accounts) => accounts,
        None => return Verdict::Pass,
    };
    let state = &accounts.process.compute;
    // Relaxed: see `target`.
    if state.captures.load(Ordering::Relaxed) > 0 && query::is_capturing(stream) {
        capture_is_over(state);
    }
    let stream = stream as u64;
    if stream > 2 {
        deferred_free_charges::stream_goes(&accounts, stream);
        tell(&accounts);
        state.forget_gates();
        let target = Target::of_handle(stream, || None);
        manners::uncancelled(|| {
            query::relaxed(|| {
                collect(&accounts, clock::now_ns());
                state.spans.forget_stream(&target);
            });
        });
    }
    Verdict::Pass
}

/// A context is about to go, with all its streams and our events in it.
pub(crate) fn context_goes(accounts: &Accounts, context: u64) {
    deferred_free_charges::context_goes(accounts, context);
    let state = &accounts.process.compute;
    tell(accounts);
    state.forget_gates();
    manners::uncancelled(|| {
        query::relaxed(|| {
            let now_ns = clock::now_ns();
            let found =
                |device, found| settle(accounts, device, found, u32::from(Grant::ONE), now_ns);
            state.spans.forget_context(context, found);
        });
    });
}

/// Something that takes time of its own was put into a stream: what lies between two marks around it
/// is not only launches.
fn interrupted(accounts: &Accounts, stream: u64) {
    if !accounts.process.compute.spans.is_anything_busy() {
        return;
    }
    let handle = core::ptr::with_exposed_provenance_mut(usize::try_from(stream).unwrap_or(0));
    if stream > 2 || query::stream_context(handle).is_some() {
        let target = Target::of_handle(stream, query::current_context);
        accounts.process.compute.spans.interrupted(&target);
    }
}
