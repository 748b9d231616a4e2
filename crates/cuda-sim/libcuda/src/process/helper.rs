//! Work that happens on the host in stream order: callbacks, copies that have to wait for them,
//! values that a stream waits for or writes. One thread of the driver's own does it, as in the real
//! driver; it is started at the first such work and blocks every signal.
//!
//! It never calls the driver itself, and never runs anything while a lock is held.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, PoisonError};

use cuda_sim::clock::ClockKind;
use cuda_sim::exec::{Exec, ProcessId};

use crate::base::border::lock;

/// The helper's action once a stream has reached it.
pub(crate) enum Action {
    /// Runs once, then the stream goes on.
    Call(Box<dyn FnOnce() + Send>),
    /// Checked until it is true; then the stream continues.
    Poll(Box<dyn Fn() -> bool + Send + Sync>),
}

struct Helper {
    actions: BTreeMap<u64, Action>,
    started: bool,
}

static HELPER: Mutex<Helper> = Mutex::new(Helper {
    actions: BTreeMap::new(),
    started: false,
});
static ARRIVED: Condvar = Condvar::new();
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);
static PENDING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IS_HELPER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a host function, in which the driver may not be called.
pub(crate) fn is_helper() -> bool {
    IS_HELPER.get()
}

/// Whether some stream of this process has host work that is not done: then memory must not be
/// touched out of stream order.
pub(crate) fn anything_pending() -> bool {
    // SeqCst: a copy that is made at once must not pass a callback that was queued before it.
    PENDING.load(Ordering::SeqCst) != 0
}

/// Keeps an action until its stream reaches the token that this returns.
pub(crate) fn keep(exec: &'static Exec, process: ProcessId, action: Action) -> u64 {
    // Relaxed: only has to differ from every other.
    let token = NEXT_TOKEN.fetch_add(1, Ordering::Relaxed);
    PENDING.fetch_add(1, Ordering::SeqCst);
    let mut helper = lock(&HELPER);
    helper.actions.insert(token, action);
    if !helper.started {
        helper.started = start(exec, process);
    }
    token
}

/// The work with that token is in its stream's queue.
pub(crate) fn wake(exec: &Exec) {
    ARRIVED.notify_one();
    exec.announce();
}

/// Forgets an action whose work was not taken, or was dropped with its context.
pub(crate) fn forget(token: u64) {
    if lock(&HELPER).actions.remove(&token).is_some() {
        PENDING.fetch_sub(1, Ordering::SeqCst);
    }
}

fn start(exec: &'static Exec, process: ProcessId) -> bool {
    with_signals_blocked(|| {
        let both = Arc::new(Barrier::new(2));
        let there = Arc::clone(&both);
        std::thread::Builder::new()
            .name("cuda-host".to_owned())
            .spawn(move || {
                IS_HELPER.set(true);
                // The thread that queued the work goes on, and may wait, only once the clock counts this thread.
                let _part = exec.clock().join_thread();
                there.wait();
                run(exec, process);
            })
            .inspect(|_| {
                both.wait();
            })
            .is_ok()
    })
}

/// A thread inherits the mask of the one that starts it: the program's signals are the program's.
fn with_signals_blocked<T>(body: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills a set of ours.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: both sets are ours; the first was filled above, the second is only written.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr()) };
    let result = body();
    // SAFETY: the set was written by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

fn run(exec: &Exec, process: ProcessId) {
    let in_lockstep = exec.clock().kind() == ClockKind::Lockstep;
    loop {
        let mut helper = lock(&HELPER);
        // In lockstep it waits as all threads do: the clock knows when a stream reaches its work.
        while !in_lockstep && helper.actions.is_empty() {
            helper = ARRIVED.wait(helper).unwrap_or_else(PoisonError::into_inner);
        }
        drop(helper);
        let seen = exec.clock().changes();
        let waiting = exec.waiting(process);
        let mut did = look_at_conditions(exec, &waiting);
        let mut polls = false;
        for work in &waiting {
            match take_call(work.token) {
                Taken::Call(call) => {
                    call();
                    PENDING.fetch_sub(1, Ordering::SeqCst);
                    // Others may wait for the memory that it wrote: they continue at the same moment.
                    look_at_conditions(exec, &exec.waiting(process));
                    exec.release(work.place);
                    did = true;
                }
                Taken::Poll => polls = true,
                Taken::Nothing => {
                    // Its action was forgotten, so it will never be done.
                    exec.release(work.place);
                }
            }
        }
        if !did {
            exec.rest_until_needed(process, seen, polls);
        }
    }
}

enum Taken {
    Call(Box<dyn FnOnce() + Send>),
    Poll,
    Nothing,
}

fn take_call(token: u64) -> Taken {
    let mut helper = lock(&HELPER);
    match helper.actions.remove(&token) {
        Some(Action::Call(call)) => Taken::Call(call),
        Some(poll @ Action::Poll(_)) => {
            helper.actions.insert(token, poll);
            Taken::Poll
        }
        None => Taken::Nothing,
    }
}

/// Releases the streams whose condition is true; returns whether there were any.
fn look_at_conditions(exec: &Exec, waiting: &[cuda_sim::exec::Waiting]) -> bool {
    let mut any = false;
    for work in waiting {
        let mut helper = lock(&HELPER);
        let holds = match helper.actions.get(&work.token) {
            Some(Action::Poll(holds)) => holds(),
            _ => false,
        };
        if holds {
            helper.actions.remove(&work.token);
            PENDING.fetch_sub(1, Ordering::SeqCst);
            drop(helper);
            exec.release(work.place);
            any = true;
        }
    }
    any
}
