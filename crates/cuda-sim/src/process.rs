//! The identity of a process, whether it lives, and the locks that survive their holder. It knows nothing
//! of memory or time.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Read};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The identity of a process, different from every other process that has had or will have its number.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Identity {
    /// As it sees itself, or as the node of [`proc`] sees it.
    pub(crate) pid: u32,
    reserved: u32,
    /// In clock ticks since boot.
    pub(crate) start_time: u64,
    /// Inode of its pid namespace, or which numbering [`proc`] has.
    pub(crate) pid_namespace: u64,
    /// The start of its stack: an exec changes it.
    pub(crate) stack: u64,
}

impl Identity {
    /// This process.
    #[must_use]
    pub(crate) fn own() -> Self {
        let pid = own_pid();
        let (start_time, stack) = stat(pid).map_or((0, 0), |stat| (stat.start_time, stat.stack));
        Self {
            pid,
            reserved: 0,
            start_time,
            pid_namespace: own_pid_namespace(),
            stack,
        }
    }

    /// Whether it still runs its program. A process of another pid namespace, which cannot be examined by its number,
    /// counts as alive.
    #[must_use]
    pub(crate) fn is_alive(&self) -> bool {
        if self.pid == own_pid() && self.is_own() {
            return true;
        }
        if self.pid_namespace != own_pid_namespace() {
            return true;
        }
        stat(self.pid).is_some_and(|stat| {
            // A stack of 0 is "not allowed to see it".
            let same_program = stat.stack == 0 || self.stack == 0 || stat.stack == self.stack;
            stat.start_time == self.start_time && same_program && !stat.is_ending
        })
    }
}

impl Identity {
    /// An identity from its parts.
    pub(crate) fn of(pid: u32, start_time: u64, pid_namespace: u64, stack: u64) -> Self {
        Self {
            pid,
            reserved: 0,
            start_time,
            pid_namespace,
            stack,
        }
    }

    /// Whether this process, whose number it has, is the one that it names. Remembered, since it is
    /// asked at every look at the board.
    pub(crate) fn is_own(&self) -> bool {
        static PID: AtomicU32 = AtomicU32::new(0);
        static START_TIME: AtomicU64 = AtomicU64::new(0);
        static NAMESPACE: AtomicU64 = AtomicU64::new(0);
        static STACK: AtomicU64 = AtomicU64::new(0);
        // Release and Acquire: the others are of the process that `PID` names. Threads that write
        // at once write the same.
        if PID.load(Ordering::Acquire) != self.pid {
            let own = Self::own();
            START_TIME.store(own.start_time, Ordering::Relaxed);
            NAMESPACE.store(own.pid_namespace, Ordering::Relaxed);
            STACK.store(own.stack, Ordering::Relaxed);
            PID.store(own.pid, Ordering::Release);
        }
        START_TIME.load(Ordering::Relaxed) == self.start_time
            && NAMESPACE.load(Ordering::Relaxed) == self.pid_namespace
            && STACK.load(Ordering::Relaxed) == self.stack
    }
}

struct Stat {
    start_time: u64,
    stack: u64,
    is_ending: bool,
}

fn stat(pid: u32) -> Option<Stat> {
    // Room for the whole text, which is then read at once: each look at a board asks for every process on it.
    let mut text = Vec::with_capacity(2048);
    let mut file = File::open(format!("{}/{pid}/stat", proc()))
        .ok()?
        .take(2048);
    file.read_to_end(&mut text).ok()?;
    // A process gives itself its name, of any bytes.
    read_stat(&String::from_utf8_lossy(&text))
}

/// Reads the text of `/proc/PID/stat` (proc_pid_stat(5)). A driver takes back what a process has when its last thread
/// closes the device. The kernel calls the process a zombie before that, as soon as its first thread has ended.
fn read_stat(text: &str) -> Option<Stat> {
    // The name in brackets may contain spaces and brackets; the fields after the last bracket are regular. Field 3 is
    // the first of them.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3);
    let state = *field(3)?;
    let threads: u64 = field(20)?.parse().ok()?;
    Some(Stat {
        start_time: field(22)?.parse().ok()?,
        stack: field(28)?.parse().ok()?,
        is_ending: matches!(state, "Z" | "X") && threads <= 1,
    })
}

/// Whether a living process has that thread. One of another pid namespace counts as alive.
pub(crate) fn has_thread(process: &Identity, tid: u32) -> bool {
    if process.pid_namespace != own_pid_namespace() {
        return true;
    }
    // SAFETY: signal 0 is not delivered: it only asks whether there is such a thread.
    let answer = unsafe { libc::syscall(libc::SYS_tgkill, process.pid, tid, 0) };
    answer == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// The number of times that a thread has given up the processor, if it sleeps; `None` if it does not, or cannot be
/// examined.
pub(crate) fn sleeping(pid: u32, tid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next())
    };
    if field("State:")? != "S" {
        return None;
    }
    field("voluntary_ctxt_switches:")?.parse().ok()
}

/// The rank among processes that can continue at one moment: `VGPU_SIM_RANK`, the lowest first; without it a process
/// comes after all that have one.
pub(crate) fn rank() -> u32 {
    std::env::var("VGPU_SIM_RANK")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(u32::MAX)
}

/// This thread's number, remembered; a forked child's is its own.
pub(crate) fn tid() -> u32 {
    thread_local! {
        static KNOWN: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }
    let forks = FORKS.load(Ordering::Relaxed);
    let (seen, tid) = KNOWN.get();
    if tid != 0 && seen == forks {
        return tid;
    }
    if !WATCHES_FORKS.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler touches an atomic only; this code is never unloaded while it may run.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
    // SAFETY: no argument, no failure.
    let tid = unsafe { libc::gettid() } as u32;
    KNOWN.set((forks, tid));
    tid
}

// Relaxed, both: a fork's child has one thread.
static FORKS: AtomicU32 = AtomicU32::new(0);
static WATCHES_FORKS: AtomicBool = AtomicBool::new(false);

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The number of this process's pid namespace. Remembered, because a look at a board asks for it once for each process
/// there; a forked child, which may be in another namespace, asks the kernel anew.
fn own_pid_namespace() -> u64 {
    static OF: AtomicU32 = AtomicU32::new(0);
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let own = std::process::id();
    // Acquire and Release: the number is of the process that `OF` names. Threads that write at once write the same.
    if OF.load(Ordering::Acquire) == own {
        return KNOWN.load(Ordering::Relaxed);
    }
    let number = match node_proc() {
        // One mount has one numbering, wherever it is bound.
        Some(proc) => fs::metadata(proc).map_or(0, |data| data.dev()),
        None => fs::metadata("/proc/self/ns/pid").map_or(0, |data| data.ino()),
    };
    KNOWN.store(number, Ordering::Relaxed);
    OF.store(own, Ordering::Release);
    number
}

/// The node's `/proc`, for a process in a container: `VGPU_SIM_PROC`, a mount of it. There a process has the node's
/// number, as the real driver knows it, and all processes can see which ones live.
fn node_proc() -> Option<&'static str> {
    static NODE: OnceLock<Option<String>> = OnceLock::new();
    NODE.get_or_init(|| {
        let proc = std::env::var("VGPU_SIM_PROC").ok()?;
        (!proc.is_empty()).then_some(proc)
    })
    .as_deref()
}

fn proc() -> &'static str {
    node_proc().unwrap_or("/proc")
}

/// This process's number, as the board knows it. Remembered for the process that asks: a fork's child has another one.
pub(crate) fn own_pid() -> u32 {
    // Our number in the upper half, the node's in the lower; one word, so that both belong together.
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let own = std::process::id();
    let Some(proc) = node_proc() else {
        return own;
    };
    let known = KNOWN.load(Ordering::Relaxed);
    if known >> 32 == u64::from(own) {
        return known as u32;
    }
    let link = fs::read_link(format!("{proc}/self")).ok();
    let pid = link.and_then(|link| link.to_str()?.parse().ok());
    let pid: u32 = pid.unwrap_or(own);
    KNOWN.store(u64::from(own) << 32 | u64::from(pid), Ordering::Relaxed);
    pid
}

/// The running kernel's boot id: the contents that an earlier boot left in a file belong to no process.
#[must_use]
pub(crate) fn boot_id() -> [u8; 40] {
    let mut id = [0; 40];
    if let Ok(text) = fs::read("/proc/sys/kernel/random/boot_id") {
        let length = text.len().min(id.len());
        id[..length].copy_from_slice(&text[..length]);
    }
    id
}

/// A file's lock, while it is made; the kernel drops it when its holder dies.
#[derive(Debug)]
pub(crate) struct FileLock<'a>(&'a File);

impl<'a> FileLock<'a> {
    /// Waits for it.
    ///
    /// # Errors
    /// When the file system has no locks.
    pub(crate) fn take(file: &'a File) -> io::Result<Self> {
        loop {
            // SAFETY: a call on a descriptor that the caller keeps open.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
                return Ok(Self(file));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

impl Drop for FileLock<'_> {
    fn drop(&mut self) {
        // SAFETY: `self` borrows the file, so its descriptor is open; if the call fails, the close unlocks.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// Makes a mutex that processes share and that tells the next one when its holder died.
///
/// # Errors
/// When the C library has none.
pub(crate) fn init_robust(lock: &mut libc::pthread_mutex_t) -> io::Result<()> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    let check = |code: i32| match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    };
    // SAFETY: makes the attributes, which live on this stack.
    check(unsafe { libc::pthread_mutexattr_init(attributes) })?;
    // SAFETY: they were made above.
    check(unsafe { libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED) })?;
    // SAFETY: they were made above.
    check(unsafe { libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST) })?;
    // SAFETY: the mutex is the caller's alone until this returns.
    check(unsafe { libc::pthread_mutex_init(lock, attributes) })?;
    // SAFETY: they were made above and are not used again.
    check(unsafe { libc::pthread_mutexattr_destroy(attributes) })
}

/// The value guarded by a robust mutex, while it is held.
#[derive(Debug)]
pub(crate) struct Locked<'a, T> {
    lock: *mut libc::pthread_mutex_t,
    state: *mut T,
    lives: PhantomData<&'a mut T>,
}

impl<T> Locked<'_, T> {
    /// Waits for the mutex; `repair` runs when its last holder died.
    ///
    /// # Safety
    /// Both pointers are valid for the lifetime, the mutex was made by [`init_robust`], and the
    /// state is reached through it alone.
    pub(crate) unsafe fn take(
        lock: *mut libc::pthread_mutex_t,
        state: *mut T,
        repair: impl FnOnce(&mut T),
    ) -> Self {
        // SAFETY: the caller vouches for the mutex.
        let answer = unsafe { libc::pthread_mutex_lock(lock) };
        let mut locked = Self {
            lock,
            state,
            lives: PhantomData,
        };
        if answer == libc::EOWNERDEAD {
            repair(&mut locked);
            // SAFETY: its holder died, we hold it, and the state is in order.
            unsafe { libc::pthread_mutex_consistent(lock) };
        }
        locked
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mutex is held, and `take`'s caller vouched for the pointer.
        unsafe { &*self.state }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the mutex is held, `take`'s caller vouched for the pointer, and `&mut self` is exclusive.
        unsafe { &mut *self.state }
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        // SAFETY: `take` locked it in this thread.
        unsafe { libc::pthread_mutex_unlock(self.lock) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_ends_with_its_last_thread() {
        let ending = |state: &str, threads: u32| {
            let stat = format!(
                "7 (a) b) {state} 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 {threads} 0 4711 0 0 0 0 0 815 0"
            );
            let stat = read_stat(&stat).unwrap();
            assert_eq!((stat.start_time, stat.stack), (4711, 815));
            stat.is_ending
        };
        assert!(!ending("S", 1) && !ending("Z", 2));
        assert!(ending("Z", 1) && ending("Z", 0) && ending("X", 0));
        assert!(read_stat("7 (a) S 1").is_none());
    }
    #[test]
    fn process_with_a_name_of_any_bytes_lives() {
        let before = fs::read("/proc/self/comm").unwrap();
        fs::write("/proc/self/comm", b"\xff) (\xfe").unwrap();
        let seen = stat(std::process::id());
        fs::write("/proc/self/comm", before.trim_ascii_end()).unwrap();
        assert_eq!(seen.unwrap().start_time, Identity::own().start_time);
    }
}
