//! Rules: launches. A program gets its share of a device's time: each launch is charged in advance what
//! it has cost before, from an account that the clock fills (`vgpu_abi::credit`), and waits when the
//! account is in debt; what it really took is settled afterwards. Decides which rate counts, who waits and
//! for how long.
//!
//! A launch that neither has to wait nor is to be measured goes through [`passes`]: no clock, no shared
//! word, no call of the driver.

pub(crate) mod copies;
pub(crate) mod costs;
pub(crate) mod spans;

use core::cell::Cell;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use cuda_api::{CuGraphExec, CuLaunchConfig, CuLaunchParams, CuResult, CuStream};
use vgpu_abi::credit::{Compute, LEASE_NS};
use vgpu_abi::layout::MAX_DEVICES;
use vgpu_abi::limits::Policy;
use vgpu_abi::targets::Grant;

use crate::books::{self, Books, Place, books};
use crate::border;
use crate::clock;
use crate::container::{self, Standing};
use crate::graphs;
use crate::guest::{self, Thread, Verdict};
use crate::pools;
use crate::query;
use costs::{Costs, Expected, Work};
use spans::{Begun, Found, Spans, Target};

/// Work in flight on a device, of one process, beyond which launches wait: what was lent comes back as
/// soon as it is done.
const IN_FLIGHT_NS: u64 = 10_000_000;
/// The most of a long launch that may be in flight before another one.
const AHEAD_NS: u64 = 50_000_000;
/// So much is launched to a stream between two marks: what a mark costs (about 4 microseconds on a real
/// device) is less than half a percent of it.
const DUE_NS: u64 = 1_000_000;
/// What a launch is charged of which nothing is known.
const UNKNOWN_NS: u64 = 100_000;
/// When nothing has ended for so long, a launch is let in all the same: what runs may wait for it.
const PROGRESS_NS: u64 = 100_000_000;
/// A wait looks again at least this often.
const LOOK_NS: u64 = 50_000_000;
/// The same while somebody else decides: the end of other work, a grant.
const WATCH_NS: u64 = 500_000;
/// An arbiter that has not written for so long does not count.
const FRESH_NS: u64 = 300_000_000;

/// What this process knows of its launches. Wiped by a fork; all zeros is the beginning.
#[repr(C)]
pub(crate) struct State {
    /// Changes whenever what threads remember may be void; see [`Gate::epoch`].
    epoch: AtomicU64,
    /// Streams that capture, as far as we saw them begin.
    captures: AtomicU32,
    devices: [DeviceState; MAX_DEVICES],
    spans: Spans,
    costs: Costs,
}

#[repr(C)]
struct DeviceState {
    in_flight_ns: AtomicI64,
    /// When work was last seen to end, or a launch was let in by the progress rule.
    progress_ns: AtomicU64,
    waiting: AtomicU32,
    waiting_since_ns: AtomicU64,
}

/// What a thread remembers, so that most of its launches look at nothing else. All zeros: nothing.
#[repr(C)]
pub(crate) struct Gate {
    /// What [`State::epoch`] was, plus one; 0: closed.
    epoch: Cell<u64>,
    /// The process that opened it: a forked child's threads owe nothing.
    owner: Cell<u32>,
    limits: Cell<u64>,
    targets: Cell<u64>,
    /// The stream that it launched to last; [`ANY`]: every stream of every device is free.
    stream: Cell<u64>,
    /// What may still be launched, nanoseconds; [`FREE`]: whatever comes.
    left_ns: Cell<u64>,
    /// Launched since the slow way was last taken, nanoseconds.
    work_ns: Cell<u64>,
    /// What the lease is beyond what was wanted then, as the account counts.
    more_ns: Cell<u64>,
    /// What a measured nanosecond counts for.
    scale: Cell<u32>,
    launches: Cell<u32>,
    untold: Cell<u32>,
    device: Cell<u32>,
    /// The stream's number plus one.
    place: Cell<u32>,
}

const ANY: u64 = u64::MAX;
const FREE: u64 = u64::MAX;
/// Launches that a thread counts before it tells. It begins with one and doubles, so that a short
/// program is seen, too.
const UNTOLD: u32 = 256;

/// The number by which the rules know a stream: the legacy and the thread's own one are 1 and 2.
#[inline(always)]
pub(crate) fn legacy(stream: CuStream) -> u64 {
    match stream as u64 {
        0 => 1,
        handle => handle,
    }
}

/// The same for functions of per-thread default streams.
#[inline(always)]
pub(crate) fn per_thread(stream: CuStream) -> u64 {
    match stream as u64 {
        0 => 2,
        handle => handle,
    }
}

/// May this launch go at once, without a look at anything that is shared? Then it is counted.
///
/// Stands outside of every rule, since it must cost next to nothing: it neither calls nor can panic, and
/// reads words that only this thread writes, and three that hardly ever change.
#[inline(always)]
pub(crate) fn passes(work: Work, stream: u64) -> bool {
    guest::thread(|thread| {
        let gate = &thread.gate;
        let (container, process) = match container::standing_now() {
            Some(Standing::Ready(container, process)) => (container, process),
            Some(Standing::Transparent) => return true,
            Some(Standing::Closed) | None => return false,
        };
        // Relaxed: whoever changes the word has nothing to tell beside it.
        let is_open = gate.epoch.get() == process.compute.epoch.load(Ordering::Relaxed) + 1
            && gate.limits.get() == container.limits_generation()
            && gate.targets.get() == container.targets_generation();
        if !is_open || gate.launches.get() >= gate.untold.get() {
            return false;
        }
        if gate.left_ns.get() == FREE && (gate.stream.get() == ANY || gate.stream.get() == stream) {
            gate.launches.set(gate.launches.get() + 1);
            return true;
        }
        if gate.stream.get() != stream {
            return false;
        }
        let Some(cost) = process.compute.costs.known(work.key) else {
            return false;
        };
        let (Some(left), work_ns) = (
            gate.left_ns.get().checked_sub(cost),
            gate.work_ns.get() + cost,
        ) else {
            return false;
        };
        if work_ns >= DUE_NS {
            return false;
        }
        gate.left_ns.set(left);
        gate.work_ns.set(work_ns);
        gate.launches.set(gate.launches.get() + 1);
        true
    })
}

/// The same for the structure of `cuLaunchKernelEx`.
#[inline(always)]
pub(crate) fn passes_config(config: *const CuLaunchConfig, function: usize, own: bool) -> bool {
    of_config(config, function, own).is_some_and(|(work, stream)| passes(work, stream))
}

#[inline(always)]
fn of_config(config: *const CuLaunchConfig, function: usize, own: bool) -> Option<(Work, u64)> {
    let config = border::read(config)?;
    let stream = if own {
        per_thread(config.stream)
    } else {
        legacy(config.stream)
    };
    Some((
        Work::kernel(
            function,
            [config.grid_x, config.grid_y, config.grid_z],
            [config.block_x, config.block_y, config.block_z],
        ),
        stream,
    ))
}

/// A launch that was let in and charged.
#[derive(Clone, Copy)]
pub(crate) struct Launched {
    begun: Option<Begun>,
    work: Work,
    charged_ns: u64,
    device: usize,
    scale: u32,
    is_unknown: bool,
}

/// Which rate counts for this container on a device now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rate {
    /// Thousandths of the device.
    permille: u32,
    /// What a measured nanosecond counts for, in [`Grant::ONE`]ths.
    scale: u32,
    /// To be measured and bounded although nothing caps it.
    is_measured: bool,
}

impl Rate {
    const FREE: Self = Self {
        permille: 1000,
        scale: Grant::ONE as u32,
        is_measured: false,
    };

    fn is_free(&self) -> bool {
        self.permille >= 1000 && !self.is_measured
    }

    fn has_cap(&self) -> bool {
        self.permille < 1000
    }

    /// Measured nanoseconds as the account counts.
    fn counted(&self, ns: u64) -> u64 {
        ns.saturating_mul(u64::from(self.scale)) / u64::from(Grant::ONE)
    }
}

/// The rule: what the limits say, and what the arbiter grants while it lives.
fn rate_of(policy: Policy, core_percent: u32, grant: Option<Grant>) -> Rate {
    let cap = match core_percent {
        0 | 100.. => 1000,
        percent => percent * 10,
    };
    if policy == Policy::Disable {
        return Rate::FREE;
    }
    let Some(grant) = grant else {
        return Rate {
            permille: cap,
            ..Rate::FREE
        };
    };
    let granted = u32::from(grant.permille);
    Rate {
        permille: if policy == Policy::Force {
            granted.min(cap)
        } else {
            granted
        },
        scale: u32::from(grant.scale.max(1)),
        is_measured: grant.measured,
    }
}

fn rate(books: &Books, device: usize, now_ns: u64) -> Rate {
    let (policy, percent) = books.process.compute_limit(books.container, device);
    let is_fresh = |at: u64| now_ns.saturating_sub(at) < FRESH_NS;
    let grant = books
        .container
        .arbiter_heartbeat_ns()
        .filter(|at| is_fresh(*at))
        .and_then(|_| books.container.target())
        .and_then(|target| target.grants.get(device).copied().flatten());
    rate_of(policy, percent, grant)
}

impl State {
    fn forget_gates(&self) {
        // Relaxed: see `passes`.
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    fn device(&self, device: usize) -> Option<&DeviceState> {
        self.devices.get(device)
    }
}

/// A thread has another current context than before: what it remembers of streams is void.
pub(crate) fn context_changed(_result: CuResult) {
    guest::thread(|thread| thread.gate.epoch.set(0));
}

/// Before a kernel is launched.
pub(crate) fn before(work: Work, stream: u64) -> Verdict<Launched> {
    let books = books!(Launch);
    launch(&books, work, stream)
}

/// Before `cuLaunchKernelEx`.
pub(crate) fn before_config(
    config: *const CuLaunchConfig,
    function: usize,
    own: bool,
) -> Verdict<Launched> {
    let books = books!(Launch);
    match of_config(config, function, own) {
        Some((work, stream)) => launch(&books, work, stream),
        None => Verdict::Pass,
    }
}

/// The way of a launch that [`passes`] did not let through.
fn launch(books: &Books, work: Work, stream: u64) -> Verdict<Launched> {
    books.process.tick(books.container);
    tell(books);
    let Some(target) = target(books, stream) else {
        return Verdict::Pass;
    };
    let Some(compute) = books.container.region.compute(target.device) else {
        return Verdict::Pass;
    };
    let counter = if work.function == 0 {
        &compute.own().graph_launches
    } else {
        &compute.own().launches
    };
    // Relaxed: a counter.
    counter.fetch_add(1, Ordering::Relaxed);
    let now_ns = clock::now_ns();
    let rate = rate(books, target.device, now_ns);
    if rate.is_free() {
        remember_free(books, &target, stream, now_ns);
        return Verdict::Pass;
    }
    guest::uncancelled(|| query::relaxed(|| metered(books, &compute, work, &target, stream)))
}

/// The stream's context and device; `None`: it is none of our business (no device of the container,
/// or it captures).
fn target(books: &Books, stream: u64) -> Option<Target> {
    let state = &books.process.compute;
    // Relaxed: a capture is begun by whoever launches into it, or tells him.
    if state.captures.load(Ordering::Relaxed) > 0 && !query::is_out_of_captures(stream) {
        return None;
    }
    let handle = core::ptr::with_exposed_provenance_mut(usize::try_from(stream).ok()?);
    // A stream of a green context may belong to none that the driver names.
    let context = query::stream_context(handle).or_else(query::current_context)?;
    match books.of_context(context) {
        Place::Device { device, .. } => Some(Target {
            handle: stream,
            context,
            device,
        }),
        Place::Elsewhere | Place::Denied => None,
    }
}

/// Nothing stands in the way of launches to this stream, or to any.
fn remember_free(books: &Books, target: &Target, stream: u64, now_ns: u64) {
    let devices = books.container.region.device_count();
    let all = (0..devices).all(|device| {
        device == target.device || {
            let (_, percent) = books.process.compute_limit(books.container, device);
            matches!(percent, 0 | 100..) && rate(books, device, now_ns).is_free()
        }
    });
    open_gate(books, |gate| {
        gate.stream.set(if all { ANY } else { stream });
        gate.left_ns.set(FREE);
        gate.device.set(u32::try_from(target.device).unwrap_or(0));
        gate.place.set(0);
    });
}

/// Remembers that nothing has changed up to here. Not while somebody captures.
fn open_gate(books: &Books, set: impl FnOnce(&Gate)) {
    let state = &books.process.compute;
    guest::thread(|thread| {
        let gate = &thread.gate;
        set(gate);
        gate.limits.set(books.container.limits_generation());
        gate.targets.set(books.container.targets_generation());
        // Relaxed: see `passes`.
        let captures = state.captures.load(Ordering::Relaxed) > 0;
        let epoch = state.epoch.load(Ordering::Relaxed) + 1;
        gate.epoch.set(if captures { 0 } else { epoch });
        gate.owner.set(books.process.number());
        gate.untold.set((gate.untold.get() * 2).clamp(1, UNTOLD));
    });
}

/// Tells the region and the stream what this thread has launched since, and gives its lease back.
fn tell(books: &Books) {
    guest::thread(|thread| {
        let gate = &thread.gate;
        let launches = gate.launches.replace(0);
        let work_ns = gate.work_ns.replace(0);
        let more_ns = gate.more_ns.replace(0);
        let left_ns = gate.left_ns.replace(0);
        if launches == 0 && more_ns == 0 || gate.owner.get() != books.process.number() {
            return;
        }
        let device = gate.device.get() as usize;
        let Some(compute) = books.container.region.compute(device) else {
            return;
        };
        // Relaxed: a counter.
        compute
            .own()
            .launches
            .fetch_add(u64::from(launches), Ordering::Relaxed);
        let region = &books.container.region;
        region.count_hooks(books::Group::Launch as usize, u64::from(launches));
        if left_ns == FREE {
            return;
        }
        let scale = u64::from(gate.scale.get());
        let unused = left_ns.saturating_mul(scale) / u64::from(Grant::ONE);
        compute.end_lease(more_ns, unused);
        if work_ns > 0 {
            compute.count_busy(i64::try_from(work_ns).unwrap_or(i64::MAX));
            let at = gate.place.get().checked_sub(1);
            let noted = at.is_some_and(|at| {
                let now_ns = clock::now_ns();
                books
                    .process
                    .compute
                    .spans
                    .launched(at as usize, work_ns, now_ns)
            });
            if noted {
                add_in_flight(books, &compute, device, i64::try_from(work_ns).unwrap_or(0));
            }
        }
    });
}

/// A thread ends: what it holds goes back.
pub(crate) fn thread_ends(_thread: &Thread) {
    if let Standing::Ready(container, process) = container::standing() {
        tell(&Books { container, process });
        guest::thread(|thread| thread.gate.epoch.set(0));
    }
}

fn add_in_flight(books: &Books, compute: &Compute<'_>, device: usize, ns: i64) -> u64 {
    let Some(state) = books.process.compute.device(device) else {
        return 0;
    };
    // Relaxed: a number; launches that race for it pass the bound by one each.
    let sum = state.in_flight_ns.fetch_add(ns, Ordering::Relaxed) + ns;
    let sum = u64::try_from(sum).unwrap_or(0);
    compute.own().in_flight_ns.store(sum, Ordering::Relaxed);
    sum
}

/// A launch on a device where time is counted.
fn metered(
    books: &Books,
    compute: &Compute<'_>,
    work: Work,
    target: &Target,
    stream: u64,
) -> Verdict<Launched> {
    let state = &books.process.compute;
    let mut wait = Wait::new(books, compute, target.device);
    let admitted = wait.admit(&work);
    let Some(admitted) = admitted else {
        // The limit went away while it waited.
        return Verdict::Pass;
    };
    let Admitted {
        charged_ns,
        more_ns,
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
    add_in_flight(
        books,
        compute,
        target.device,
        i64::try_from(charged_ns).unwrap_or(0),
    );
    let at = state.spans.stream(target);
    let is_due =
        |at: usize| is_unknown || is_guess || state.spans.unmarked_ns(at) + charged_ns >= DUE_NS;
    let begun = at
        .filter(|at| is_due(*at))
        .and_then(|at| state.spans.begin(at));
    if begun.is_none() {
        if is_unknown {
            // It cannot be measured: nobody is to wait for it.
            compute.end_unknown();
        }
        let noted = at.is_some_and(|at| state.spans.launched(at, charged_ns, now_ns));
        if !noted {
            add_in_flight(
                books,
                compute,
                target.device,
                -i64::try_from(charged_ns).unwrap_or(0),
            );
        }
    }
    let left_ns = if rate.has_cap() {
        more_ns.saturating_mul(u64::from(Grant::ONE)) / u64::from(rate.scale)
    } else {
        // Measured, and not limited.
        LEASE_NS
    };
    if more_ns > 0 {
        guest::watch_thread();
    }
    open_gate(books, |gate| {
        gate.stream.set(stream);
        gate.left_ns.set(left_ns);
        gate.more_ns.set(more_ns);
        gate.scale.set(rate.scale);
        gate.device.set(u32::try_from(target.device).unwrap_or(0));
        gate.place
            .set(at.and_then(|at| u32::try_from(at + 1).ok()).unwrap_or(0));
    });
    let launched = Launched {
        begun,
        work,
        charged_ns,
        device: target.device,
        scale: rate.scale,
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
    let (Some(books), Some(begun)) = (books::opened(), launched.begun) else {
        return;
    };
    guest::uncancelled(|| {
        query::relaxed(|| {
            if result == CuResult::SUCCESS {
                close(&books, &launched, &begun);
            } else {
                undo(&books, &launched, &begun);
            }
        });
    });
}

fn close(books: &Books, launched: &Launched, begun: &Begun) {
    let state = &books.process.compute;
    let is_marked = state.spans.end(
        begun,
        launched.work,
        launched.charged_ns,
        launched.is_unknown,
    );
    if !is_marked
        && launched.is_unknown
        && let Some(compute) = books.container.region.compute(launched.device)
    {
        compute.end_unknown();
    }
}

/// The driver refused it: nothing was used.
fn undo(books: &Books, launched: &Launched, begun: &Begun) {
    books.process.compute.spans.cancel(begun);
    let Some(compute) = books.container.region.compute(launched.device) else {
        return;
    };
    let ns = i64::try_from(launched.charged_ns).unwrap_or(i64::MAX);
    compute.count_busy(-ns);
    add_in_flight(books, &compute, launched.device, -ns);
    compute.settle(-counted(ns, launched.scale));
    if launched.is_unknown {
        compute.end_unknown();
    }
}

fn counted(ns: i64, scale: u32) -> i64 {
    ns.saturating_mul(i64::from(scale)) / i64::from(Grant::ONE)
}

/// Settles what has ended since, on all devices.
fn collect(books: &Books, now_ns: u64) {
    let state = &books.process.compute;
    if !state.spans.is_anything_busy() {
        return;
    }
    state.spans.collect(
        now_ns,
        |work, ns| state.costs.learn(work, ns),
        |device, found| {
            let scale = rate(books, device, now_ns).scale;
            settle(books, device, found, scale, now_ns);
        },
    );
}

fn settle(books: &Books, device: usize, found: Found, scale: u32, now_ns: u64) {
    let Some(compute) = books.container.region.compute(device) else {
        return;
    };
    if found.more_ns != 0 {
        compute.count_busy(found.more_ns);
        compute.settle(counted(found.more_ns, scale));
    }
    if found.done_ns > 0 {
        add_in_flight(
            books,
            &compute,
            device,
            -i64::try_from(found.done_ns).unwrap_or(0),
        );
        if let Some(state) = books.process.compute.device(device) {
            // Relaxed: a time.
            state.progress_ns.store(now_ns, Ordering::Relaxed);
        }
    }
    if found.ended_unknown {
        compute.end_unknown();
    }
}

/// A launch that waits until it may go.
struct Wait<'a> {
    books: &'a Books,
    compute: &'a Compute<'a>,
    device: usize,
    /// Since when it waits; 0: it does not.
    since_ns: u64,
    has_mark: bool,
    rounds: u32,
}

struct Admitted {
    charged_ns: u64,
    more_ns: u64,
    is_unknown: bool,
    is_guess: bool,
    rate: Rate,
    now_ns: u64,
}

impl<'a> Wait<'a> {
    fn new(books: &'a Books, compute: &'a Compute<'a>, device: usize) -> Self {
        Self {
            books,
            compute,
            device,
            since_ns: 0,
            has_mark: false,
            rounds: 0,
        }
    }

    /// Waits for its turn; `None` when there is nothing to wait for any more.
    fn admit(&mut self, work: &Work) -> Option<Admitted> {
        let mut overdue_ns = 0;
        loop {
            let now_ns = clock::now_ns();
            let rate = rate(self.books, self.device, now_ns);
            if rate.is_free() {
                self.end(now_ns);
                if self.has_mark {
                    self.compute.end_unknown();
                }
                return None;
            }
            collect(self.books, now_ns);
            let expected = self.books.process.compute.costs.expected(work);
            if expected != Expected::Unknown && self.has_mark {
                self.has_mark = false;
                self.compute.end_unknown();
            }
            let cost_ns = match expected {
                Expected::Known(ns) | Expected::Guessed(ns) => ns,
                Expected::Unknown => UNKNOWN_NS.max(overdue_ns),
            };
            let turn = self.turn(expected, &mut overdue_ns, now_ns);
            let lease = turn
                .and_then(|()| self.room(cost_ns, now_ns))
                .and_then(|()| {
                    let wanted = rate.counted(cost_ns).max(1);
                    if rate.has_cap() {
                        self.compute.lease(wanted, now_ns, rate.permille)
                    } else {
                        Ok(0)
                    }
                });
            match lease {
                Ok(more_ns) => {
                    self.end(now_ns);
                    return Some(Admitted {
                        charged_ns: cost_ns,
                        more_ns,
                        is_unknown: self.has_mark,
                        is_guess: matches!(expected, Expected::Guessed(_)),
                        rate,
                        now_ns,
                    });
                }
                Err(wait_ns) => {
                    // Who waits has nothing in flight.
                    if core::mem::take(&mut self.has_mark) {
                        self.compute.end_unknown();
                    }
                    self.sleep(wait_ns, now_ns);
                }
            }
        }
    }

    /// Of launches whose cost nobody knows one is in flight at a time.
    fn turn(&mut self, expected: Expected, overdue_ns: &mut u64, now_ns: u64) -> Result<(), u64> {
        if expected != Expected::Unknown || self.has_mark {
            return Ok(());
        }
        if self.compute.begin_unknown(now_ns) {
            self.has_mark = true;
            return Ok(());
        }
        let Some((since_ns, _)) = self.compute.unknown_since_ns() else {
            return Err(0);
        };
        let quiet_ns = now_ns.saturating_sub(since_ns.max(self.progress_ns()));
        if quiet_ns < PROGRESS_NS {
            return Err(WATCH_NS / 5);
        }
        // Whoever has it shows no life, or its launch waits for this one.
        *overdue_ns = quiet_ns;
        self.compute.forget_unknown();
        self.made_progress(now_ns);
        Err(0)
    }

    fn progress_ns(&self) -> u64 {
        let state = self.books.process.compute.device(self.device);
        // Relaxed: a time.
        state.map_or(0, |state| state.progress_ns.load(Ordering::Relaxed))
    }

    fn made_progress(&self, now_ns: u64) {
        if let Some(state) = self.books.process.compute.device(self.device) {
            // Relaxed: a time.
            state.progress_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Is there room for it in flight?
    fn room(&self, cost_ns: u64, now_ns: u64) -> Result<(), u64> {
        let Some(state) = self.books.process.compute.device(self.device) else {
            return Ok(());
        };
        // Relaxed: a number.
        let in_flight = u64::try_from(state.in_flight_ns.load(Ordering::Relaxed)).unwrap_or(0);
        let bound = IN_FLIGHT_NS.max(cost_ns + cost_ns.min(AHEAD_NS));
        if in_flight == 0 || in_flight + cost_ns <= bound {
            return Ok(());
        }
        let quiet_ns = now_ns.saturating_sub(self.progress_ns());
        if self.since_ns != 0
            && now_ns.saturating_sub(self.since_ns) >= PROGRESS_NS
            && quiet_ns >= PROGRESS_NS
        {
            self.made_progress(now_ns);
            return Ok(());
        }
        Err(((in_flight + cost_ns - bound) / 2).clamp(WATCH_NS / 10, WATCH_NS))
    }

    fn sleep(&mut self, wait_ns: u64, now_ns: u64) {
        self.begin(now_ns);
        self.rounds += 1;
        let state = &self.books.process.compute;
        let longest_ns = if state.spans.is_anything_busy() || wait_ns == u64::MAX {
            // What has ended may have cost less than was charged; a grant may come.
            WATCH_NS * 2
        } else {
            LOOK_NS
        };
        let ns = wait_ns.min(longest_ns);
        if ns > 0 {
            clock::sleep_ns(ns);
        }
        // A fork's child, or a slot that was taken away, is looked after here too.
        self.books.process.tick(self.books.container);
    }

    fn begin(&mut self, now_ns: u64) {
        if self.since_ns != 0 {
            return;
        }
        self.since_ns = now_ns;
        let own = self.compute.own();
        // Relaxed throughout: numbers for the arbiter and for reports.
        own.waits.fetch_add(1, Ordering::Relaxed);
        if let Some(state) = self.books.process.compute.device(self.device)
            && state.waiting.fetch_add(1, Ordering::Relaxed) == 0
        {
            state.waiting_since_ns.store(now_ns, Ordering::Relaxed);
            own.waiting_since_ns.store(now_ns.max(1), Ordering::Relaxed);
        }
    }

    fn end(&mut self, now_ns: u64) {
        if self.since_ns == 0 {
            return;
        }
        let own = self.compute.own();
        let waited_ns = now_ns.saturating_sub(self.since_ns);
        self.since_ns = 0;
        // Relaxed throughout: as in `begin`.
        own.throttled_ns.fetch_add(waited_ns, Ordering::Relaxed);
        if let Some(state) = self.books.process.compute.device(self.device)
            && state.waiting.fetch_sub(1, Ordering::Relaxed) <= 1
        {
            own.waiting_since_ns.store(0, Ordering::Relaxed);
        }
    }
}

/// A graph's launch: its turn, then the memory that its nodes want.
#[derive(Clone, Copy)]
pub(crate) struct GraphLaunched {
    time: Option<Launched>,
    memory: Option<graphs::Launching>,
}

/// Before `cuGraphLaunch`.
pub(crate) fn before_graph(call: &str, exec: CuGraphExec, stream: u64) -> Verdict<GraphLaunched> {
    let books = books!(Launch);
    let time = match launch(&books, Work::graph(exec as usize), stream) {
        Verdict::Call(launched) => Some(launched),
        Verdict::Pass => None,
        Verdict::Refuse(result) => return Verdict::Refuse(result),
    };
    match (time, graphs::before_launch(call, exec)) {
        (time, Verdict::Call(memory)) => Verdict::Call(GraphLaunched {
            time,
            memory: Some(memory),
        }),
        (Some(time), Verdict::Refuse(result)) => {
            after(time, result);
            Verdict::Refuse(result)
        }
        (None, Verdict::Refuse(result)) => Verdict::Refuse(result),
        (None, Verdict::Pass) => Verdict::Pass,
        (time, Verdict::Pass) => Verdict::Call(GraphLaunched { time, memory: None }),
    }
}

/// After `cuGraphLaunch`.
pub(crate) fn after_graph(launched: GraphLaunched, result: CuResult) {
    if let Some(time) = launched.time {
        after(time, result);
    }
    if let Some(memory) = launched.memory {
        graphs::after_launch(memory, result);
    }
}

/// An executable graph is gone, or made: its name stands for something else.
pub(crate) fn forget_graph(exec: CuGraphExec) {
    if let Standing::Ready(_, process) = container::standing() {
        process.compute.costs.forget(Work::graph(exec as usize).key);
    }
}

/// Most devices that one call launches to.
const MOST_AT_ONCE: usize = 16;

/// Launches to several devices in one call.
#[derive(Clone, Copy)]
pub(crate) struct ManyLaunched([Option<Launched>; MOST_AT_ONCE]);

/// Before `cuLaunchCooperativeKernelMultiDevice`.
pub(crate) fn before_many(params: *const CuLaunchParams, count: u32) -> Verdict<ManyLaunched> {
    let books = books!(Launch);
    let mut all = [None; MOST_AT_ONCE];
    for (index, place) in all.iter_mut().enumerate().take(count as usize) {
        let Some(one) = border::read(params.wrapping_add(index)).filter(|_| !params.is_null())
        else {
            break;
        };
        let work = Work::kernel(
            one.function as usize,
            [one.grid_x, one.grid_y, one.grid_z],
            [one.block_x, one.block_y, one.block_z],
        );
        if let Verdict::Call(launched) = launch(&books, work, legacy(one.stream)) {
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

/// Somebody waited for the device: pools give back, and what has ended is settled.
pub(crate) fn after_sync(result: CuResult) {
    pools::after_sync(result);
    let Some(books) = books::opened() else { return };
    if books.process.compute.spans.is_anything_busy() {
        guest::uncancelled(|| query::relaxed(|| collect(&books, clock::now_ns())));
    }
}

/// A capture begins: from here on each launch asks whether its stream captures.
pub(crate) fn after_capture_begin(result: CuResult) {
    if result == CuResult::SUCCESS
        && let Standing::Ready(_, process) = container::standing()
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
    if is_over && let Standing::Ready(_, process) = container::standing() {
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
    let books = match books::opened() {
        Some(books) => books,
        None => return Verdict::Pass,
    };
    let state = &books.process.compute;
    // Relaxed: see `target`.
    if state.captures.load(Ordering::Relaxed) > 0 && query::is_capturing(stream) {
        capture_is_over(state);
    }
    let stream = stream as u64;
    if stream > 2 {
        tell(&books);
        state.forget_gates();
        let target = Target {
            handle: stream,
            context: 0,
            device: 0,
        };
        guest::uncancelled(|| {
            query::relaxed(|| {
                let now_ns = clock::now_ns();
                collect(&books, now_ns);
                let found = |device, found| {
                    settle(&books, device, found, u32::from(Grant::ONE), now_ns);
                };
                state.spans.forget_stream(&target, found);
            });
        });
    }
    Verdict::Pass
}

/// A context is about to go, with all its streams and our events in it.
pub(crate) fn context_goes(books: &Books, context: u64) {
    let state = &books.process.compute;
    tell(books);
    state.forget_gates();
    guest::uncancelled(|| {
        query::relaxed(|| {
            let now_ns = clock::now_ns();
            let found = |device, found| settle(books, device, found, u32::from(Grant::ONE), now_ns);
            state.spans.forget_context(context, found);
        });
    });
}

/// Something that takes time of its own was put into a stream: what lies between two marks around it
/// is not only launches.
fn interrupted(books: &Books, stream: u64) {
    if !books.process.compute.spans.is_anything_busy() {
        return;
    }
    let handle = core::ptr::with_exposed_provenance_mut(usize::try_from(stream).unwrap_or(0));
    if stream > 2 || query::stream_context(handle).is_some() {
        let context = if stream > 2 {
            0
        } else {
            query::current_context().unwrap_or(0)
        };
        books.process.compute.spans.interrupted(&Target {
            handle: stream,
            context,
            device: 0,
        });
    }
}

impl State {
    /// Sets the process up; `number` differs between a process and its forked child, so that what a
    /// thread remembers does not count in the child.
    pub(crate) fn set_up(&self, number: u32) {
        // Relaxed: published with the process.
        self.epoch.store(u64::from(number) << 32, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANT: Grant = Grant {
        permille: 400,
        scale: Grant::ONE,
        contended: true,
        measured: true,
    };

    #[test]
    fn without_an_arbiter_the_cap_counts_whatever_the_policy() {
        for policy in [Policy::Force, Policy::Default, Policy::Floor] {
            assert_eq!(rate_of(policy, 30, None).permille, 300);
            assert!(rate_of(policy, 0, None).is_free());
            assert!(rate_of(policy, 100, None).is_free());
        }
        assert!(rate_of(Policy::Disable, 30, None).is_free());
    }

    #[test]
    fn what_the_arbiter_grants_counts_and_a_forced_cap_holds_all_the_same() {
        assert_eq!(rate_of(Policy::Force, 30, Some(GRANT)).permille, 300);
        assert_eq!(rate_of(Policy::Force, 50, Some(GRANT)).permille, 400);
        assert_eq!(rate_of(Policy::Default, 30, Some(GRANT)).permille, 400);
        assert_eq!(rate_of(Policy::Floor, 0, Some(GRANT)).permille, 400);
        assert!(rate_of(Policy::Disable, 30, Some(GRANT)).is_free());
    }

    #[test]
    fn who_has_to_wait_is_not_free_and_who_is_measured_is_not_either() {
        let waits = Grant {
            permille: 0,
            ..GRANT
        };
        assert_eq!(rate_of(Policy::Floor, 0, Some(waits)).permille, 0);
        let whole = Grant {
            permille: 1000,
            ..GRANT
        };
        assert!(!rate_of(Policy::Default, 0, Some(whole)).is_free());
        let unmeasured = Grant {
            measured: false,
            ..whole
        };
        assert!(rate_of(Policy::Default, 0, Some(unmeasured)).is_free());
    }

    #[test]
    fn a_scale_turns_what_was_measured_into_what_is_counted() {
        let rate = Rate {
            scale: u32::from(Grant::ONE / 2),
            ..Rate::FREE
        };
        assert_eq!(rate.counted(1_000_000), 500_000);
        assert_eq!(counted(-1_000_000, rate.scale), -500_000);
    }
}
