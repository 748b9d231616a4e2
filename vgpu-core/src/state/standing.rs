//! The state of this process: it has limits, it has none, or they were not understood. Set up at the first hooked
//! call, again in a forked child (whose memory of it the kernel wipes), and never in a constructor.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use cuda_api::CuResult;
use vgpu_abi::region::Charge;

use crate::base::lock::ProcessLock;
use crate::base::log::line;
use crate::base::walks::WALKS;
use crate::base::{clock, loader, map};
use crate::driver::genuine;
use crate::guest::manners::{self, Verdict};
use crate::guest::settings::{Settings, ThisProcess as Here};
use crate::guest::thread::thread;
use crate::state::accounts::{Accounts, Group};
use crate::state::container::Container;
use crate::state::leases;
use crate::state::process::ProcessState;

/// The state of this process.
#[derive(Clone, Copy)]
pub(crate) enum Standing {
    /// There are limits, and they are understood.
    Ready(&'static Container, &'static ProcessState),
    /// No limit is set: every call goes to the driver unchanged.
    Transparent,
    /// There are limits that were not understood: every request is refused.
    Closed,
}

const UNSET: u32 = 0;

const READY: u32 = 1;

const TRANSPARENT: u32 = 2;

const CLOSED: u32 = 3;

static CONTAINER: AtomicPtr<Container> = AtomicPtr::new(core::ptr::null_mut());

/// The container, once it is made (by this process, or by the one that it was forked from).
#[inline(always)]
fn container() -> Option<&'static Container> {
    // Acquire: the container was made before its pointer was stored.
    let container = CONTAINER.load(Ordering::Acquire);
    // SAFETY: null, or what `open` leaked: `CONTAINER` is stored there alone, and once.
    unsafe { container.as_ref() }
}

static PROCESS: AtomicPtr<ProcessState> = AtomicPtr::new(core::ptr::null_mut());

/// Held while the process is set up, which opens files. No call of the driver is made meanwhile.
static SET_UP: ProcessLock = ProcessLock::new();

static EPOCH: AtomicU32 = AtomicU32::new(0);

static ONCE: AtomicU32 = AtomicU32::new(0);

/// Another thread's set-up is waited for this long; it opens files, no more.
const LONGEST_SET_UP_MS: i64 = 10_000;

/// The state of this process. Sets it up at the first call.
#[inline(always)]
pub(crate) fn standing() -> Standing {
    match ready_now() {
        Some(Accounts { container, process }) => Standing::Ready(container, process),
        None => standing_apart(),
    }
}

/// The accounts of a process that is set up and has limits: what nearly every call finds.
#[inline(always)]
pub(crate) fn ready_now() -> Option<Accounts> {
    let process = process()?;
    // Acquire: the state behind this phase was made before.
    if process.phase.load(Ordering::Acquire) != READY {
        return None;
    }
    let container = container()?;
    Some(Accounts { container, process })
}

/// The state of a process for which [`ready_now`] has no accounts.
#[cold]
#[inline(never)]
fn standing_apart() -> Standing {
    let Some(process) = process() else {
        return set_up();
    };
    // Acquire: as above.
    match process.phase.load(Ordering::Acquire) {
        READY => ready(process),
        TRANSPARENT => Standing::Transparent,
        CLOSED => Standing::Closed,
        _ => set_up(),
    }
}

/// This process and its container for a path that neither sets up nor waits. `None` before they are set
/// up; whether there are limits at all is not asked.
#[inline(always)]
pub(crate) fn known_now() -> Option<(&'static Container, &'static ProcessState)> {
    let process = process()?;
    Some((container()?, process))
}

/// Has this process been set up, and found that no limit is set?
#[inline]
pub(crate) fn is_transparent_now() -> bool {
    // Acquire: the state behind this phase was made before.
    process().is_some_and(|process| process.phase.load(Ordering::Acquire) == TRANSPARENT)
}

#[inline]
fn process() -> Option<&'static ProcessState> {
    // Acquire: the memory was mapped before.
    let process = PROCESS.load(Ordering::Acquire);
    // SAFETY: mapped once and never unmapped; all its words are atomics.
    unsafe { process.as_ref() }
}

#[inline]
fn ready(process: &'static ProcessState) -> Standing {
    container().map_or(Standing::Closed, |it| Standing::Ready(it, process))
}

#[cold]
#[inline(never)]
fn set_up() -> Standing {
    manners::uncancelled(set_up_once)
}

fn set_up_once() -> Standing {
    let Some(_held) = SET_UP.hold(LONGEST_SET_UP_MS) else {
        return Standing::Closed;
    };
    once_for_a_family();
    let Some(process) = process().or_else(map_process) else {
        return Standing::Closed;
    };
    // Relaxed: under the lock.
    match process.phase.load(Ordering::Relaxed) {
        UNSET => {}
        READY => return ready(process),
        TRANSPARENT => return Standing::Transparent,
        _ => return Standing::Closed,
    }
    // Relaxed: the phase publishes it.
    let number = EPOCH.fetch_add(1, Ordering::Relaxed) + 1;
    process.epoch.store(number, Ordering::Relaxed);
    process.compute.set_up(number);
    clock::set_up();
    let phase = match open() {
        Ok(Some(container)) => {
            if let Err(error) = container.region.join() {
                line!(Error, "no slot: {error}");
            }
            process.refresh_limits(container);
            // Limits that could not be read are not "no limit".
            // Relaxed: stored by this thread.
            match process.limits_known.load(Ordering::Relaxed) {
                0 => CLOSED,
                _ => READY,
            }
        }
        Ok(None) => TRANSPARENT,
        Err(()) => CLOSED,
    };
    // Release: a thread that sees the phase sees what was made before.
    process.phase.store(phase, Ordering::Release);
    match phase {
        READY => ready(process),
        TRANSPARENT => Standing::Transparent,
        _ => Standing::Closed,
    }
}

/// State that forked children inherit and must not set up again.
fn once_for_a_family() {
    // Relaxed: under the lock of the set-up.
    if ONCE.swap(1, Ordering::Relaxed) != 0 {
        return;
    }
    watch_forks();
    manners::silence_panics();
    manners::watch_threads(at_thread_end);
    if let Some((path, level)) = Settings::log_of(&Here) {
        crate::base::log::write_to(&path, level);
    }
}

/// Has the C library call our handlers at each fork. Called before the first walk over the loaded objects (`base::walks`).
fn watch_forks() {
    // Not linked: musl has no such symbol, and there we must load, too.
    if let Some(register) = loader::libc_function(c"__register_atfork") {
        type Handler = Option<unsafe extern "C" fn()>;
        type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> i32;
        // SAFETY: glibc defines it so; its name and signature are part of its ABI.
        let register = unsafe { core::mem::transmute::<*mut c_void, Register>(register) };
        let (before, parent, child) = (before_fork, in_forking_parent, in_forked_child);
        // SAFETY: the handlers live as long as the process (the library is never unloaded).
        unsafe {
            register(
                Some(before),
                Some(parent),
                Some(child),
                core::ptr::null_mut(),
            )
        };
    }
}

unsafe extern "C" fn before_fork() {
    WALKS.before_fork();
}

unsafe extern "C" fn in_forking_parent() {
    WALKS.after_fork_in_parent();
}

/// For kernels that cannot wipe the memory themselves (before Linux 4.14). Does not run in a `vfork`
/// child, which shares its parent's memory and must not touch it.
unsafe extern "C" fn in_forked_child() {
    WALKS.after_fork_in_child();
    // Relaxed: a forked child has one thread.
    let process = PROCESS.load(Ordering::Relaxed);
    if !process.is_null() {
        // SAFETY: our own mapping of that size, for which all zeros is a value.
        unsafe { process.write_bytes(0, 1) };
    }
    if let Some(container) = container() {
        container.region.after_fork_in_child();
    }
}

/// A thread ends: keeps a charge that it left behind, and returns what it leased.
unsafe extern "C" fn at_thread_end(_value: *mut c_void) {
    manners::surround(|| {
        let left_behind = manners::thread_ended();
        let Standing::Ready(container, process) = standing() else {
            return;
        };
        if let Some(charge) = left_behind {
            process.holdings.keep_left_behind(&container.region, charge);
        }
        leases::tell(&Accounts { container, process });
        thread(|thread| thread.gate.epoch.set(0));
    });
}

fn map_process() -> Option<&'static ProcessState> {
    let size = size_of::<ProcessState>();
    let Some(memory) = map::zeroed(size) else {
        line!(Error, "no memory for the holdings");
        return None;
    };
    // An older kernel refuses; the handler at fork does it then.
    // SAFETY: our own mapping.
    unsafe { libc::madvise(memory, size, libc::MADV_WIPEONFORK) };
    // Release: a thread that sees the pointer sees the zeros.
    PROCESS.store(memory.cast(), Ordering::Release);
    process()
}

/// The container's files: `None` when no limit is set.
fn open() -> Result<Option<&'static Container>, ()> {
    if let Some(container) = container() {
        return Ok(Some(container));
    }
    if genuine::elder().is_some() {
        line!(Info, "another copy of the library keeps the accounts");
        return Ok(None);
    }
    let Some(container) = Container::open()? else {
        return Ok(None);
    };
    let container = Box::leak(Box::new(container));
    // Release: code that sees the pointer sees the container.
    CONTAINER.store(container, Ordering::Release);
    Ok(Some(container))
}

/// Opens the accounts, or says what a rule answers without them.
#[inline(always)]
pub(crate) fn open_accounts<T>(group: Group) -> Result<Accounts, Verdict<T>> {
    let accounts = match ready_now() {
        Some(accounts) => accounts,
        None => match standing_apart() {
            Standing::Ready(container, process) => Accounts { container, process },
            Standing::Transparent => return Err(Verdict::Pass),
            Standing::Closed => return Err(Verdict::Refuse(CuResult::NOT_PERMITTED)),
        },
    };
    manners::take_left_behind(|charge| keep_left_behind(&accounts, charge));
    accounts.count(group);
    Ok(accounts)
}

#[cold]
#[inline(never)]
fn keep_left_behind(accounts: &Accounts, charge: Charge) {
    let region = &accounts.container.region;
    accounts.holdings().keep_left_behind(region, charge);
}

/// Opens the accounts for a rule that runs after the call.
#[inline(always)]
pub(crate) fn opened() -> Option<Accounts> {
    match ready_now() {
        Some(accounts) => Some(accounts),
        None => match standing_apart() {
            Standing::Ready(container, process) => Some(Accounts { container, process }),
            Standing::Transparent | Standing::Closed => None,
        },
    }
}

/// Opens the accounts, or returns from the rule with the answer that takes their place.
macro_rules! accounts {
    ($group:ident) => {
        match $crate::state::standing::open_accounts($crate::state::accounts::Group::$group) {
            Ok(accounts) => accounts,
            Err(verdict) => return verdict,
        }
    };
}
pub(crate) use accounts;
