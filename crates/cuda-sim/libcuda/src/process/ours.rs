//! The only names here that no real driver has: the marker, the board's clock for libraries under
//! test, and the truth for tests that measure. All of them may be called from any thread at any time, before
//! `cuInit` too; they keep `errno` and take no lock that is held during a wait.

use std::sync::OnceLock;

use cuda_sim::Board;
use cuda_sim::clock::{ClockKind, monotonic_ns};
use cuda_sim::exec::Exec;

/// Tells libraries that look for the real driver that this one is simulated.
#[allow(non_upper_case_globals, reason = "a symbol's name")]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub static vgpu_simulated_driver: u32 = 1;

/// Nanoseconds on the board's clock; `CLOCK_MONOTONIC` when that is real or there is no board.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn vgpuSimNow() -> u64 {
    keeping_errno(|| match board_work() {
        Some(exec) => {
            take_part(exec);
            exec.clock().now()
        }
        None => monotonic_ns(),
    })
}

/// Whether the clock of [`vgpuSimNow`] is another one than `CLOCK_MONOTONIC`: 1 or 0.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn vgpuSimHasOwnClock() -> u32 {
    keeping_errno(|| {
        board_work().map_or(0, |exec| u32::from(exec.clock().kind() != ClockKind::Real))
    })
}

/// Waits until it is `ns` on the clock of [`vgpuSimNow`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn vgpuSimSleepUntil(ns: u64) {
    keeping_errno(|| match board_work() {
        Some(exec) => {
            take_part(exec);
            exec.clock().sleep_until(ns);
        }
        None => {
            while let Some(left) = ns.checked_sub(monotonic_ns()).filter(|&left| left > 0) {
                cuda_sim::clock::sleep_real(left);
            }
        }
    });
}

/// Stops a lockstep clock while this thread runs; every other call here and every driver call does so too.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn vgpuSimJoin() {
    keeping_errno(|| board_work().map(take_part));
}

/// Lets a lockstep clock move without this thread, until its next call here or into the driver: for waits that the
/// clock does not know.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn vgpuSimLeave() {
    keeping_errno(|| board_work().map(Exec::go_away));
}

/// Nanoseconds in which a kernel of the process `pid` (its own pid) has held the device, up to this moment: the exact
/// figure, for tests that measure shares. 0 if there is no such process.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn vgpuSimBusyNs(device: u32, pid: u32) -> u64 {
    keeping_errno(|| {
        let truth = board_work().map_or_else(Vec::new, |exec| exec.truth(device as usize));
        let own = truth.iter().filter(|process| process.pid == pid);
        own.map(|process| process.busy_ns).sum()
    })
}

/// The board's work, whether or not this process has initialised the driver; the board is created if there is none,
/// as by `cuInit`.
pub(crate) fn board_work() -> Option<&'static Exec> {
    static WORK: OnceLock<Option<Exec>> = OnceLock::new();
    WORK.get_or_init(|| Board::from_env().ok()?.exec().ok())
        .as_ref()
}

/// This thread takes part in a clock in lockstep, until it ends. The first thread's end is its
/// process's, which the other processes notice.
#[inline]
pub(crate) fn take_part(exec: &'static Exec) {
    if exec.take_part() {
        // A thread that is ending, and has forgotten this already, is noticed by its end.
        LEAVES.try_with(|_| ()).unwrap_or_default();
    }
}

struct Leaves;

thread_local! {
    static LEAVES: Leaves = const { Leaves };
}

impl Drop for Leaves {
    fn drop(&mut self) {
        // SAFETY: no argument, no failure.
        let is_first = unsafe { libc::gettid() } == unsafe { libc::getpid() };
        if let Some(exec) = board_work().filter(|_| !is_first) {
            exec.part();
        }
    }
}

fn keeping_errno<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: the address of this thread's errno, good as long as the thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: this thread's errno, read by this thread.
    let before = unsafe { errno.read() };
    let result = body();
    // SAFETY: this thread's errno, written by this thread.
    unsafe { errno.write(before) };
    result
}
