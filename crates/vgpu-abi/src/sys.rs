//! The system calls of this crate, each with its one `unsafe` block. They allocate nothing and go
//! through `syscall(2)`, which is no cancellation point (a cancelled thread must not vanish while it holds a lock of
//! the library) and which no preloaded library interposes.
//!
//! Never retries, never decides: an answer or an `errno`.

use std::ffi::{c_int, c_long};
use std::fs::File;
use std::os::fd::FromRawFd;

/// An `errno` value.
pub(crate) type Errno = i32;

/// The longest path, with its final zero.
pub(crate) const PATH_BYTES: usize = 4096;

/// A path as the kernel takes it: zero-padded, of fixed size.
pub(crate) struct CPath([u8; PATH_BYTES]);

impl CPath {
    /// `None` if the path is too long or holds a zero byte.
    pub(crate) fn new(path: &[u8]) -> Option<Self> {
        let mut bytes = [0; PATH_BYTES];
        if path.len() >= PATH_BYTES || path.is_empty() || path.contains(&0) {
            return None;
        }
        bytes.get_mut(..path.len())?.copy_from_slice(path);
        Some(Self(bytes))
    }
}

fn answer(result: c_long) -> Result<c_long, Errno> {
    if result >= 0 {
        return Ok(result);
    }
    Err(errno())
}

/// This thread's `errno`.
pub(crate) fn errno() -> Errno {
    // SAFETY: glibc's function has no precondition and gives the address of a thread-local.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the address is that of this thread's `errno`, valid as long as the thread runs.
    unsafe { *at }
}

fn fd_of(result: c_long) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}

/// `openat(AT_FDCWD, …)`.
pub(crate) fn open(path: &CPath, flags: c_int) -> Result<c_int, Errno> {
    let at = path.0.as_ptr();
    // SAFETY: `at` is a zero-terminated string (`CPath::new` leaves the last byte zero) that
    // outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, at, flags, 0) };
    answer(result).map(fd_of)
}

/// `close`. No caller could act on an error of the kernel.
pub(crate) fn close(fd: c_int) {
    // SAFETY: closing a descriptor touches no memory of this process; the callers own `fd`.
    let _done = unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// A descriptor that is closed unless it is kept.
pub(crate) struct Descriptor(c_int);

impl Descriptor {
    /// Of one that [`open`] or [`duplicate`] gave, and that nothing else closes.
    pub(crate) fn own(fd: c_int) -> Self {
        Self(fd)
    }

    pub(crate) fn number(&self) -> c_int {
        self.0
    }

    /// Leaves the descriptor open.
    pub(crate) fn keep(self) -> c_int {
        let fd = self.0;
        std::mem::forget(self);
        fd
    }

    pub(crate) fn into_file(self) -> File {
        // SAFETY: open, since `own` was given it and only `drop` closes it; `keep` hands it over.
        unsafe { File::from_raw_fd(self.keep()) }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// `pread`: the number of bytes read, fewer than asked for only at the end of the file.
pub(crate) fn read_at(fd: c_int, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let offset = i64::try_from(offset).map_err(|_| libc::EINVAL)?;
    let at = buffer.as_mut_ptr();
    // SAFETY: the kernel writes at most as many bytes as the buffer has.
    let result = unsafe { libc::syscall(libc::SYS_pread64, fd, at, buffer.len(), offset) };
    answer(result).map(|read| usize::try_from(read).unwrap_or(0))
}

/// A copy of `fd` at `lowest` or above that `exec` closes.
pub(crate) fn duplicate(fd: c_int, lowest: c_int) -> Result<c_int, Errno> {
    // SAFETY: this command of fcntl takes two integers and touches no memory.
    let result = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, lowest) };
    answer(result).map(fd_of)
}

/// The answer of `fstat` about a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) regular: bool,
    pub(crate) bytes: u64,
    pub(crate) allocated_bytes: u64,
}

impl Stat {
    fn of(stat: &libc::stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            regular: stat.st_mode & libc::S_IFMT == libc::S_IFREG,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            allocated_bytes: u64::try_from(stat.st_blocks)
                .unwrap_or(0)
                .saturating_mul(512),
        }
    }
}

/// `fstat`.
pub(crate) fn fstat(fd: c_int) -> Result<Stat, Errno> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel writes at most one `struct stat` to the place given, which is one.
    let result = unsafe { libc::syscall(libc::SYS_fstat, fd, stat.as_mut_ptr()) };
    answer(result)?;
    // SAFETY: all fields are integers, and zeroed or written by the kernel.
    let stat = unsafe { stat.assume_init() };
    Ok(Stat::of(&stat))
}

/// The inode behind a path, links followed; for `/proc/self/ns/pid`.
pub(crate) fn inode_of(path: &CPath) -> Result<u64, Errno> {
    let fd = open(path, libc::O_RDONLY | libc::O_CLOEXEC)?;
    let stat = fstat(fd);
    close(fd);
    stat.map(|s| s.inode)
}

/// `fallocate`: room for `bytes` from the start; the present content stays.
pub(crate) fn allocate(fd: c_int, bytes: u64) -> Result<(), Errno> {
    let bytes = i64::try_from(bytes).map_err(|_| libc::EFBIG)?;
    // SAFETY: the call takes integers and touches no memory.
    let result = unsafe { libc::syscall(libc::SYS_fallocate, fd, 0, 0_i64, bytes) };
    answer(result).map(|_| ())
}

/// `posix_fallocate`: as [`allocate`], by writing where the file system cannot otherwise. Only for
/// a file that no other process has open yet.
pub(crate) fn allocate_or_write(fd: c_int, bytes: u64) -> Result<(), Errno> {
    let bytes = i64::try_from(bytes).map_err(|_| libc::EFBIG)?;
    // SAFETY: the call takes integers and touches no memory.
    match unsafe { libc::posix_fallocate(fd, 0, bytes) } {
        0 => Ok(()),
        errno => Err(errno),
    }
}

/// Whether a descriptor lies on an overlay file system.
pub(crate) fn on_overlay(fd: c_int) -> bool {
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the kernel writes at most one `struct statfs` to the place given, which is one.
    let result = unsafe { libc::syscall(libc::SYS_fstatfs, fd, stat.as_mut_ptr()) };
    // SAFETY: all fields are integers, and zeroed or written by the kernel.
    let stat = unsafe { stat.assume_init() };
    result == 0 && stat.f_type == libc::OVERLAYFS_SUPER_MAGIC
}

fn whole_byte(at: u64, kind: c_int) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).unwrap_or(0),
        l_whence: 0, // SEEK_SET
        l_start: i64::try_from(at).unwrap_or(i64::MAX),
        l_len: 1,
        l_pid: 0,
    }
}

/// Takes the record lock on one byte, or says at once that another process has it (`Ok(false)`).
pub(crate) fn try_lock(fd: c_int, at: u64) -> Result<bool, Errno> {
    try_lock_as(fd, at, libc::F_WRLCK)
}

/// The same, of a lock that several processes may have at once.
pub(crate) fn try_read_lock(fd: c_int, at: u64) -> Result<bool, Errno> {
    try_lock_as(fd, at, libc::F_RDLCK)
}

fn try_lock_as(fd: c_int, at: u64, kind: c_int) -> Result<bool, Errno> {
    let lock = whole_byte(at, kind);
    // SAFETY: the kernel reads one `struct flock` from the place given, which is one.
    let result = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETLK, &raw const lock) };
    match answer(result) {
        Ok(_) => Ok(true),
        Err(libc::EAGAIN | libc::EACCES) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Gives the record lock on one byte back.
pub(crate) fn unlock(fd: c_int, at: u64) {
    let lock = whole_byte(at, libc::F_UNLCK);
    // SAFETY: the kernel reads one `struct flock` from the place given, which is one.
    let _done = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETLK, &raw const lock) };
}

fn range(from: u64, length: u64, kind: c_int) -> libc::flock {
    libc::flock {
        l_len: i64::try_from(length).unwrap_or(i64::MAX),
        ..whole_byte(from, kind)
    }
}

/// Takes the record lock for reading on these bytes, beside other processes' locks for reading.
pub(crate) fn read_lock_range(fd: c_int, from: u64, length: u64) -> Result<(), Errno> {
    let lock = range(from, length, libc::F_RDLCK);
    // SAFETY: the kernel reads one `struct flock` from the place given, which is one.
    let result = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETLK, &raw const lock) };
    answer(result).map(|_| ())
}

/// The same as a lock of the open file and not of the process: the kernel shows it to this process as it shows the locks
/// of other processes.
#[cfg(test)]
pub(crate) fn open_file_read_lock(fd: c_int, from: u64, length: u64) -> Result<(), Errno> {
    let lock = range(from, length, libc::F_RDLCK);
    // SAFETY: the kernel reads one `struct flock` from the place given, which is one.
    let result = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_OFD_SETLK, &raw const lock) };
    answer(result).map(|_| ())
}

/// Gives the record locks on these bytes back.
pub(crate) fn unlock_range(fd: c_int, from: u64, length: u64) {
    let lock = range(from, length, libc::F_UNLCK);
    // SAFETY: the kernel reads one `struct flock` from the place given, which is one.
    let _done = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETLK, &raw const lock) };
}

/// One of the record locks that other processes hold on some of these bytes: where it begins and how long it is.
pub(crate) fn locked_range(fd: c_int, from: u64, length: u64) -> Result<Option<(u64, u64)>, Errno> {
    // A lock for writing would wait for every other one. To ask for it, the file need not be writable.
    let mut lock = range(from, length, libc::F_WRLCK);
    // SAFETY: the kernel reads and writes one `struct flock` at the place given, which is one.
    let result = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETLK, &raw mut lock) };
    answer(result)?;
    if c_int::from(lock.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let length = match lock.l_len {
        // To the end of all files.
        0 => u64::MAX,
        length => u64::try_from(length).unwrap_or(0),
    };
    Ok(Some((u64::try_from(lock.l_start).unwrap_or(0), length)))
}

/// The owner of the record lock on one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockOwner {
    None,
    /// The pid is 0 where the owner is not visible from this namespace.
    Process(u32),
}

fn lock_owner_by(fd: c_int, at: u64, command: c_int) -> Result<LockOwner, Errno> {
    let mut lock = whole_byte(at, libc::F_WRLCK);
    // SAFETY: the kernel reads and writes one `struct flock` at the place given, which is one.
    let result = unsafe { libc::syscall(libc::SYS_fcntl, fd, command, &raw mut lock) };
    answer(result)?;
    if c_int::from(lock.l_type) == libc::F_UNLCK {
        return Ok(LockOwner::None);
    }
    Ok(LockOwner::Process(u32::try_from(lock.l_pid).unwrap_or(0)))
}

/// Which other process holds the record lock.
pub(crate) fn lock_owner(fd: c_int, at: u64) -> Result<LockOwner, Errno> {
    lock_owner_by(fd, at, libc::F_GETLK)
}

/// Which process holds the record lock, this one included: asked as an open file, for which the
/// locks of its own process are another owner's.
pub(crate) fn lock_owner_or_me(fd: c_int, at: u64) -> Result<LockOwner, Errno> {
    lock_owner_by(fd, at, libc::F_OFD_GETLK)
}

/// Reads the beginning of a small file.
pub(crate) fn read_small<'a>(path: &CPath, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let fd = open(path, libc::O_RDONLY | libc::O_CLOEXEC)?;
    let at = buffer.as_mut_ptr();
    // SAFETY: the kernel writes at most as many bytes as the buffer has.
    let result = unsafe { libc::syscall(libc::SYS_read, fd, at, buffer.len()) };
    let result = answer(result);
    close(fd);
    let read = usize::try_from(result?).unwrap_or(0);
    Ok(buffer.get(..read).unwrap_or_default())
}

/// Whether a process of this id exists, as far as a signal of number 0 can show.
pub(crate) fn process_exists(pid: u32) -> bool {
    // SAFETY: signal 0 is not delivered; the call takes integers.
    let result = unsafe { libc::syscall(libc::SYS_kill, pid, 0) };
    answer(result) != Err(libc::ESRCH)
}

/// Whether this process has a thread of this id.
pub(crate) fn thread_exists(tid: u32) -> bool {
    // SAFETY: signal 0 is not delivered; the call takes integers.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process_id(), tid, 0) };
    answer(result) != Err(libc::ESRCH)
}

/// This process, asked again each time: a forked child must not use its parent's answer.
pub(crate) fn process_id() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    let result = unsafe { libc::syscall(libc::SYS_getpid) };
    u32::try_from(result).unwrap_or(0)
}

/// This thread.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    let result = unsafe { libc::syscall(libc::SYS_gettid) };
    u32::try_from(result).unwrap_or(0)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the function writes one `struct timespec` to the place given, which is one.
    let _done = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// The monotonic clock, nanoseconds.
pub(crate) fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// The wall clock, nanoseconds since 1970.
pub(crate) fn unix_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(0),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}

/// Sleeps; a signal ends it early.
pub(crate) fn sleep_ns(ns: u64) {
    let time = timespec(ns);
    let rest = std::ptr::null_mut::<libc::timespec>();
    // SAFETY: the kernel reads one `struct timespec` and, the second place being null, writes none.
    let _done = unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, rest) };
}

/// Lets another thread run.
pub(crate) fn give_way() {
    // SAFETY: the call takes nothing.
    let _done = unsafe { libc::syscall(libc::SYS_sched_yield) };
}

/// Sleeps while `word` is `expected`, at most `ns`. Other reasons to wake are the caller's to see.
pub(crate) fn futex_wait(word: &std::sync::atomic::AtomicU32, expected: u32, ns: u64) {
    let time = timespec(ns);
    let command = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let at = word.as_ptr();
    // SAFETY: the kernel reads the word, which lives as long as the reference, and the timespec.
    let _done = unsafe { libc::syscall(libc::SYS_futex, at, command, expected, &raw const time) };
}

/// Wakes one thread that sleeps on `word`.
pub(crate) fn futex_wake(word: &std::sync::atomic::AtomicU32) {
    let command = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let at = word.as_ptr();
    // SAFETY: the kernel takes the word's address as a name and does not write to it.
    let _done = unsafe { libc::syscall(libc::SYS_futex, at, command, 1) };
}

/// Asks that a forked child find these pages filled with zeros.
pub(crate) fn wipe_on_fork(at: *mut u8, bytes: usize) -> Result<(), Errno> {
    // SAFETY: the advice changes what a child will see and nothing here; the caller owns the pages.
    let result = unsafe { libc::syscall(libc::SYS_madvise, at, bytes, libc::MADV_WIPEONFORK) };
    answer(result).map(|_| ())
}

/// Eight of the random bytes that the kernel gave to this program image: others after `exec`.
pub(crate) fn image_token() -> u64 {
    // SAFETY: the function has no precondition.
    let at = unsafe { libc::getauxval(libc::AT_RANDOM) };
    let at = std::ptr::with_exposed_provenance::<u64>(usize::try_from(at).unwrap_or(0));
    if at.is_null() {
        return 0;
    }
    // SAFETY: AT_RANDOM is the address of 16 bytes that the kernel put above the stack and that
    // stay for the life of the image; they need not be aligned.
    unsafe { at.read_unaligned() }
}

/// Dies at once, as by `kill -9`.
#[cfg(feature = "crash-points")]
pub(crate) fn kill_myself() {
    // SAFETY: the call takes integers; it does not come back.
    let _dead = unsafe { libc::syscall(libc::SYS_kill, process_id(), libc::SIGKILL) };
}
