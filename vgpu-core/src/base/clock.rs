//! Time for everything that compute control decides: the machine's monotonic clock, the same for all
//! processes of a host, and sleeps on it. Both are bare of cancellation points. The clock is read by a system call
//! of our own, since a program may put another `clock_gettime` in the C library's place, and in the host's time
//! namespace, since a tenant may have made one of its own. Built with the feature
//! `virtual-clock` (tests only), it is the simulated driver's clock, so that a test's time is exact; a product has no
//! way to another clock, since a tenant could set it.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Nanoseconds of a clock that only goes forward.
#[inline]
pub(crate) fn now_ns() -> u64 {
    #[cfg(feature = "virtual-clock")]
    if let Some(now) = simulated::now_ns() {
        return now;
    }
    monotonic_ns()
}

/// Sleeps for `ns`, or a little longer, or until a signal comes.
pub(crate) fn sleep_ns(ns: u64) {
    #[cfg(feature = "virtual-clock")]
    if simulated::sleep_ns(ns) {
        return;
    }
    let nap = libc::timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    };
    // A bare system call: the C library's function is a point of cancellation.
    // SAFETY: reads one timespec; what is left of the time after a signal is of no interest.
    unsafe {
        libc::syscall(
            libc::SYS_nanosleep,
            &raw const nap,
            core::ptr::null::<libc::timespec>(),
        )
    };
}

/// The same, but woken within some microseconds: the kernel may otherwise be late by the thread's timer slack, which is
/// 50 us unless the program has set it. Puts back what the program has set.
pub(crate) fn sleep_exactly_ns(ns: u64) {
    #[cfg(feature = "virtual-clock")]
    if simulated::sleep_ns(ns) {
        return;
    }
    const NONE: libc::c_ulong = 0;
    // SAFETY: reads a number of the calling thread, and no memory.
    let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, NONE, NONE, NONE, NONE) };
    let Ok(old) = libc::c_ulong::try_from(slack) else {
        return sleep_ns(ns);
    };
    set_timer_slack(1);
    sleep_ns(ns);
    // A real-time thread's slack reads 0, and setting 0 would set the default.
    set_timer_slack(old.max(1));
}

fn set_timer_slack(ns: libc::c_ulong) {
    const NONE: libc::c_ulong = 0;
    // SAFETY: sets a number of the calling thread, and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ns, NONE, NONE, NONE) };
}

/// The offset of this process's time namespace from the host's monotonic clock, nanoseconds.
static NAMESPACE_NS: AtomicI64 = AtomicI64::new(0);
/// When that was read last, by the namespace's clock, nanoseconds.
static READ_AT_NS: AtomicU64 = AtomicU64::new(0);
/// Another part of the library doubts the clock.
static IS_DOUBTED: AtomicBool = AtomicBool::new(false);

/// A process of one thread may go into another time namespace at any time, if it may make one. So the offset is read
/// again after this time, nanoseconds: it takes some microseconds.
const READ_EVERY_NS: u64 = 1_000_000_000;
/// The same while the clock is doubted, nanoseconds.
const READ_IN_DOUBT_EVERY_NS: u64 = 50_000_000;

/// The kernel's name of the host's time namespace.
const HOSTS: &[u8] = b"time:[4026531834]";

/// Finds out what this process's time namespace adds to the host's clock.
pub(crate) fn set_up() {
    read_offset(namespace_ns());
}

/// The clock may be another one than before: the host's arbiter seems to be silent.
pub(crate) fn doubt() {
    // Relaxed: a hint for the next look at the clock.
    IS_DOUBTED.store(true, Ordering::Relaxed);
}

/// Whether the offset is to be read again, which was read at `read_at_ns`. Both are of the namespace's clock: one that has
/// gone back is another one.
fn is_due(clock_ns: u64, read_at_ns: u64, is_doubted: bool) -> bool {
    let every_ns = if is_doubted {
        READ_IN_DOUBT_EVERY_NS
    } else {
        READ_EVERY_NS
    };
    clock_ns
        .checked_sub(read_at_ns)
        .is_none_or(|passed_ns| passed_ns >= every_ns)
}

/// Reads the offset; the namespace's clock is `clock_ns` at this moment. If the kernel does not say it, the last one stays.
#[cold]
fn read_offset(clock_ns: u64) {
    let mut words = [[0; 40]; 2];
    let [own, of_children] = &mut words;
    let mut text = [0; 256];
    let own = read_link(c"/proc/self/ns/time", own);
    let of_children = read_link(c"/proc/self/ns/time_for_children", of_children);
    let offsets = read_file(c"/proc/self/timens_offsets", &mut text);
    // Relaxed throughout: numbers and a hint; the process is published after the first time.
    if let Some(ns) = offset_of(own, of_children, offsets) {
        NAMESPACE_NS.store(ns, Ordering::Relaxed);
    }
    READ_AT_NS.store(clock_ns, Ordering::Relaxed);
    IS_DOUBTED.store(false, Ordering::Relaxed);
}

/// The offset of the namespace `own`, nanoseconds; `None` if it is not known. `offsets` is of the namespace that the
/// process's children will have. Before Linux 5.6 there are no such namespaces, and all three are empty.
fn offset_of(own: &[u8], of_children: &[u8], offsets: &[u8]) -> Option<i64> {
    if own == HOSTS {
        return Some(0);
    }
    let is_own = own == of_children;
    monotonic_offset_ns(core::str::from_utf8(offsets).ok()?).filter(|_| is_own)
}

/// The target of a link; empty if it cannot be read.
fn read_link<'a>(path: &CStr, into: &'a mut [u8]) -> &'a [u8] {
    // Bare system calls here and below: the C library's functions are points of cancellation.
    // SAFETY: a `CStr` ends in a zero, and the kernel writes at most `into.len()` bytes, all within `into`.
    let read = unsafe {
        libc::syscall(
            libc::SYS_readlinkat,
            libc::AT_FDCWD,
            path.as_ptr(),
            into.as_mut_ptr(),
            into.len(),
        )
    };
    into.get(..usize::try_from(read).unwrap_or(0))
        .unwrap_or(&[])
}

/// The beginning of a file; empty if it cannot be read.
fn read_file<'a>(path: &CStr, into: &'a mut [u8]) -> &'a [u8] {
    const FLAGS: c_int = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path ends in a zero.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), FLAGS, 0) };
    if file < 0 {
        return &[];
    }
    // SAFETY: opened above; the kernel writes at most `into.len()` bytes, all within `into`.
    let read = unsafe { libc::syscall(libc::SYS_read, file, into.as_mut_ptr(), into.len()) };
    // SAFETY: our own descriptor.
    unsafe { libc::syscall(libc::SYS_close, file) };
    into.get(..usize::try_from(read).unwrap_or(0))
        .unwrap_or(&[])
}

/// The line `monotonic SECONDS NANOSECONDS` of a process's `timens_offsets`, in nanoseconds.
fn monotonic_offset_ns(text: &str) -> Option<i64> {
    let mut words = text
        .lines()
        .map(str::split_whitespace)
        .find_map(|mut words| (words.next() == Some("monotonic")).then_some(words))?;
    let seconds: i64 = words.next()?.parse().ok()?;
    let nanoseconds: i64 = words.next()?.parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

fn monotonic_ns() -> u64 {
    let clock_ns = namespace_ns();
    // Relaxed: a number and a hint.
    let read_at_ns = READ_AT_NS.load(Ordering::Relaxed);
    if is_due(clock_ns, read_at_ns, IS_DOUBTED.load(Ordering::Relaxed)) {
        read_offset(clock_ns);
    }
    // Relaxed: see `read_offset`.
    clock_ns.saturating_add_signed(-NAMESPACE_NS.load(Ordering::Relaxed))
}

/// The monotonic clock of this process's time namespace, nanoseconds.
fn namespace_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one `struct timespec` to `now`, which is one.
    unsafe {
        libc::syscall(
            libc::SYS_clock_gettime,
            libc::c_long::from(libc::CLOCK_MONOTONIC),
            &raw mut now,
        )
    };
    nanoseconds(now)
}

/// Nanoseconds of a clock that only goes forward, in the steps of the kernel's timer.
#[inline]
pub(crate) fn coarse_ns() -> u64 {
    nanoseconds(read(libc::CLOCK_MONOTONIC_COARSE))
}

/// Nanoseconds since 1970, by the machine's wall clock.
pub(crate) fn unix_ns() -> u64 {
    nanoseconds(read(libc::CLOCK_REALTIME))
}

#[inline]
fn nanoseconds(time: libc::timespec) -> u64 {
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// The time of a clock of the system.
#[inline]
pub(crate) fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one `struct timespec` to `now`, which is one.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now
}

#[cfg(feature = "virtual-clock")]
mod simulated {
    use core::ffi::{CStr, c_void};
    use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

    use crate::base::{elf, loader};

    static NOW: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    static SLEEP_UNTIL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    /// 0: not looked for, 1: found, 2: the board's clock is the machine's, so ours is to be read.
    static STATE: AtomicU32 = AtomicU32::new(0);

    fn find() -> bool {
        // Acquire: the addresses were stored before.
        match STATE.load(Ordering::Acquire) {
            0 => {}
            state => return state == 1,
        }
        let driver = elf::first(|object| object.find(c"vgpuSimNow").is_some().then_some(*object));
        let Some(driver) = driver else {
            return false;
        };
        loader::keep_loaded(&driver);
        let of = |name: &CStr| driver.find(name);
        let (Some(now), Some(sleep), Some(has_own)) = (
            of(c"vgpuSimNow"),
            of(c"vgpuSimSleepUntil"),
            of(c"vgpuSimHasOwnClock"),
        ) else {
            return false;
        };
        // SAFETY: the simulated driver defines it so.
        let has_own =
            unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> u32>(has_own) };
        if has_own() == 0 {
            // Relaxed: no address goes with it.
            STATE.store(2, Ordering::Relaxed);
            return false;
        }
        // Relaxed: the state publishes them.
        NOW.store(now, Ordering::Relaxed);
        SLEEP_UNTIL.store(sleep, Ordering::Relaxed);
        // Release: a thread that sees the state sees the addresses.
        STATE.store(1, Ordering::Release);
        true
    }

    pub(super) fn now_ns() -> Option<u64> {
        if !find() {
            return None;
        }
        // Relaxed: stored before the state.
        let now = NOW.load(Ordering::Relaxed);
        // SAFETY: the simulated driver defines it so.
        let now = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(now) };
        Some(now())
    }

    pub(super) fn sleep_ns(ns: u64) -> bool {
        let Some(now) = now_ns() else { return false };
        // Relaxed: stored before the state.
        let sleep = SLEEP_UNTIL.load(Ordering::Relaxed);
        // SAFETY: the simulated driver defines it so.
        let sleep = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn(u64)>(sleep) };
        sleep(now.saturating_add(ns));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    #[ignore = "not a test by itself: the tests below start it as a program, with another clock_gettime or in a time namespace"]
    fn tells_the_time() {
        set_up();
        println!("told {}", monotonic_ns());
    }

    /// Starts this program again so that it tells the time, and asserts that it tells the host's.
    #[track_caller]
    fn tells_the_hosts_time(mut command: Command) {
        const MINUTES_NS: u64 = 600_000_000_000;
        let output = command
            .args(["--exact", "base::clock::tests::tells_the_time"])
            .args(["--ignored", "--nocapture"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let mut words = text.split_whitespace().skip_while(|word| *word != "told");
        let told: Option<u64> = words.nth(1).and_then(|number| number.parse().ok());
        let told = told.unwrap_or_else(|| panic!("{output:?}"));
        let now_ns = monotonic_ns();
        assert!(
            told <= now_ns && now_ns - told < MINUTES_NS,
            "{told} {now_ns}"
        );
    }

    #[test]
    fn clock_function_that_a_program_replaces_is_not_called() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("clock.so");
        let mut compiler = Command::new("cc")
            .args(["-shared", "-fPIC", "-x", "c", "-o"])
            .args([library.as_os_str(), "-".as_ref()])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        // A day for each call.
        let source = "#include <time.h>\nint clock_gettime(clockid_t id, struct timespec *t) {\n\
                      static long day; (void)id; t->tv_sec = 86400 * ++day; t->tv_nsec = 0; return 0; }\n";
        let mut stdin = compiler.stdin.take().unwrap();
        stdin.write_all(source.as_bytes()).unwrap();
        drop(stdin);
        assert!(compiler.wait().unwrap().success());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("LD_PRELOAD", &library);

        tells_the_hosts_time(command);
    }

    #[test]
    fn time_namespace_of_the_tenants_own_changes_nothing() {
        let within = ["--time", "--monotonic", "1000000", "--fork"];
        let may = Command::new("unshare").args(within).arg("true").status();
        if !may.is_ok_and(|status| status.success()) {
            println!("not allowed to make time namespaces");
            return;
        }
        let mut command = Command::new("unshare");
        command.args(within).arg(std::env::current_exe().unwrap());

        tells_the_hosts_time(command);
    }

    #[test]
    fn offset_is_read_again_each_second_and_sooner_in_doubt() {
        const SECOND: u64 = 1_000_000_000;
        assert!(!is_due(5 * SECOND, 5 * SECOND, true));
        assert!(!is_due(6 * SECOND - 1, 5 * SECOND, false));
        assert!(is_due(6 * SECOND, 5 * SECOND, false));
        assert!(!is_due(5 * SECOND + 49_999_999, 5 * SECOND, true));
        assert!(is_due(5 * SECOND + 50_000_000, 5 * SECOND, true));
        // The clock went back, or far ahead.
        assert!(is_due(5 * SECOND - 1, 5 * SECOND, false));
        assert!(is_due(u64::MAX, 0, false));
    }

    #[test]
    fn offsets_of_a_namespace_for_children_are_not_its_own() {
        let text = b"monotonic 86400 0\nboottime 86400 0\n";
        let (one, other) = (&b"time:[4026532222]"[..], &b"time:[4026533333]"[..]);
        assert_eq!(offset_of(HOSTS, one, text), Some(0));
        assert_eq!(offset_of(one, one, text), Some(86_400_000_000_000));
        assert_eq!(offset_of(one, other, text), None);
        // A kernel without such namespaces, or a process without /proc.
        assert_eq!(offset_of(b"", b"", b""), None);
        assert_eq!(offset_of(b"", b"", text), Some(86_400_000_000_000));
        assert_eq!(offset_of(one, one, b"monotonic \xff"), None);
    }

    #[test]
    fn time_namespace_is_taken_off() {
        let text = "monotonic           -3         250\nboottime      86400           0\n";
        assert_eq!(monotonic_offset_ns(text), Some(-2_999_999_750));
        assert_eq!(monotonic_offset_ns("boottime 1 2\n"), None);
        assert_eq!(monotonic_offset_ns("monotonic 1\n"), None);
        assert_eq!(
            monotonic_offset_ns("monotonic 9223372036854775807 0\n"),
            None
        );
    }
}
