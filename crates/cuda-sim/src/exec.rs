//! The board's work, shared: one file that every process maps, a lock that survives its holder, and
//! the waits. `model` owns the meaning of the file; this module never decides which process runs.
//!
//! Nothing drives the GPUs: the next process that looks plays what has happened since the last look.
//! The lock is a robust one: when its holder is killed, the next one repairs what is derived and goes
//! on. No process waits for the GPU while it holds the lock.

mod board_clock;
mod lockstep;
mod model;
mod resting;
mod streams;
mod truth;

use std::cell::Cell;
use std::error::Error;
use std::fs::{OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::clock::{ClockKind, ClockWords, monotonic_ns, wall_ns};
use crate::process::{self, Identity};
use crate::script::{MAX_SCRIPT_BYTES, Script};
pub use board_clock::{Away, Clock, LockstepCounts, Participant};
pub use lockstep::{LockstepWords, MAX_PARTICIPANTS};
pub use model::{
    BusyStretch, DEPTH, MAX_DEVICES, Position, ProcessTruth, STRETCHES, UtilizationSample, Waiting,
    Work,
};
use model::{Settings, WorkState};

const MAGIC: u64 = u64::from_le_bytes(*b"vgpuexec");
const VERSION: u32 = 4;

/// Where the clock's words lie in the file: see [`ClockWords`].
pub const CLOCK_OFFSET: usize = 64;

/// Where the words of a clock in lockstep lie in the file: see [`LockstepWords`].
pub const LOCKSTEP_OFFSET: usize = 128;

/// Read by the process that creates the file; later ones join it as it is.
#[derive(Debug, Clone, Default)]
pub struct ExecConfig {
    /// Where time comes from.
    pub clock: ClockKind,
    /// The text of the script; checked by [`Script::parse`] before.
    pub script: String,
    /// Whether the kernels of all processes run side by side, as under an MPS server.
    pub mps: bool,
}

#[repr(C)]
struct WorkArea {
    magic: AtomicU64,
    version: AtomicU32,
    reserved0: u32,
    /// Nanoseconds since 1970 when the board's clock stood at zero: fixed, so that a time that is told
    /// twice is the same.
    unix_at_zero_ns: u64,
    reserved: [u32; 10],
    clock: ClockWords,
    reserved1: [u64; 6],
    lockstep: LockstepWords,
    boot_id: [u8; 40],
    next_reap_ns: AtomicU64,
    script_len: u64,
    script: [u8; MAX_SCRIPT_BYTES],
    lock: libc::pthread_mutex_t,
    state: WorkState,
}

const _: () = assert!(
    std::mem::offset_of!(WorkArea, clock) == CLOCK_OFFSET
        && std::mem::offset_of!(WorkArea, lockstep) == LOCKSTEP_OFFSET,
    "documented"
);

/// One process's view of the board's work.
#[derive(Debug)]
pub struct Exec {
    map: MmapRaw,
    script: Script,
    in_lockstep: bool,
}

/// A process's place on the board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessId(u32);

impl ProcessId {
    /// In the order in which places were given.
    pub fn index(self) -> u32 {
        self.0
    }
}

/// A stream's place on the board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelId {
    index: u32,
    generation: u32,
}

/// An event's place on the board, the same for all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventId {
    /// Index in the board's table.
    pub index: u32,
    /// Tells it from an earlier event at that index.
    pub generation: u32,
}

/// A record of an event, as a waiter or a reader of times remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The event.
    pub event: EventId,
    /// Which record of it; 0 is "never recorded", which is done.
    pub number: u64,
}

/// Why work was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkRefused {
    /// The stream is gone, with its context or its process's place.
    Closed,
    /// The board has no room for another process, stream or event.
    NoRoom,
}

impl Exec {
    /// Opens the board's work at `path`, and makes it when there is none.
    ///
    /// # Errors
    /// When the file cannot be opened, made or mapped, is another program's, or the script in
    /// `config` cannot be read (then nothing is made).
    pub fn open(path: &Path, config: &ExecConfig) -> io::Result<Self> {
        let script = Script::parse(&config.script).map_err(invalid)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o666)
            .open(path)?;
        let _locked = process::FileLock::take(&file)?;
        let fresh = file.metadata()?.len() == 0;
        if fresh {
            file.set_len(size_of::<WorkArea>() as u64)?;
        } else if file.metadata()?.len() != size_of::<WorkArea>() as u64 {
            return Err(invalid(format!(
                "{} is not a board's work of this version",
                path.display()
            )));
        }
        // Best effort: the creator's umask must not keep another user's programs off the board.
        drop(file.set_permissions(Permissions::from_mode(0o666)));
        let map = MmapOptions::new().map_raw(&file)?;
        let mut exec = Self {
            map,
            script,
            in_lockstep: false,
        };
        if fresh || exec.area().magic.load(Ordering::Acquire) == 0 || exec.is_of_an_earlier_boot() {
            // All zeros again: no process is left that works on what was there.
            file.set_len(0)?;
            file.set_len(size_of::<WorkArea>() as u64)?;
            exec.create(config)?;
        } else if exec.area().magic.load(Ordering::Acquire) != MAGIC
            || exec.area().version.load(Ordering::Acquire) != VERSION
        {
            return Err(invalid(format!(
                "{} is not a board's work of this version",
                path.display()
            )));
        }
        exec.script = exec.shared_script()?;
        exec.in_lockstep = exec.area().clock.kind() == ClockKind::Lockstep;
        Ok(exec)
    }

    fn create(&mut self, config: &ExecConfig) -> io::Result<()> {
        let area = self.map.as_mut_ptr().cast::<WorkArea>();
        // SAFETY: the file has an Area's size, and the file lock keeps every other process out of
        // it until the magic is published; what was there before belongs to an earlier boot.
        let area = unsafe { &mut *area };
        area.magic.store(0, Ordering::SeqCst);
        area.boot_id = process::boot_id();
        area.script_len = config.script.len() as u64;
        area.script[..config.script.len()].copy_from_slice(config.script.as_bytes());
        process::init_robust(&mut area.lock)?;
        area.clock.init(config.clock);
        let now_ns = area.clock.now();
        let unix_at_zero_ns = wall_ns().saturating_sub(now_ns);
        let script = Script::parse(&config.script).map_err(invalid)?;
        let settings = Settings {
            slices: script.slices,
            figures: script.figures,
            mps: config.mps,
        };
        area.state.start(now_ns, settings);
        area.unix_at_zero_ns = unix_at_zero_ns;
        area.version.store(VERSION, Ordering::SeqCst);
        area.magic.store(MAGIC, Ordering::Release);
        Ok(())
    }

    fn is_of_an_earlier_boot(&self) -> bool {
        // The monotonic clock began anew, and every process on the board is gone.
        self.area().boot_id != process::boot_id()
    }

    fn shared_script(&self) -> io::Result<Script> {
        let area = self.area();
        let length = usize::try_from(area.script_len).unwrap_or(usize::MAX);
        let bytes = area
            .script
            .get(..length)
            .ok_or_else(|| invalid("script too long".to_owned()))?;
        Script::parse(&String::from_utf8_lossy(bytes)).map_err(invalid)
    }

    fn area(&self) -> &WorkArea {
        // SAFETY: the mapping has an Area's size and lives as long as self; what others write in it
        // is atomic, or under the lock, or was written before the magic.
        unsafe { &*self.map.as_ptr().cast::<WorkArea>() }
    }

    /// The board's clock.
    pub fn clock(&self) -> Clock<'_> {
        Clock::new(&self.area().clock, self)
    }

    /// How long kernels, copies and calls take here.
    pub fn script(&self) -> &Script {
        &self.script
    }

    /// Takes the lock and plays everything up to now.
    fn now(&self) -> Guard<'_> {
        let mut guard = self.lock();
        // Read under the lock, so that no process plays a time that another has gone past.
        let now_ns = self.clock().now();
        self.reap_sometimes(&mut guard, now_ns);
        guard.advance(now_ns);
        guard
    }

    fn lock(&self) -> Guard<'_> {
        let area = self.map.as_mut_ptr().cast::<WorkArea>();
        // SAFETY: the mapping holds an Area; only the address is taken.
        let lock = unsafe { &raw mut (*area).lock };
        // SAFETY: the mapping holds an Area; only the address of another field is taken.
        let state = unsafe { &raw mut (*area).state };
        // SAFETY: both live in the mapping, which self keeps; the mutex was made by `create` and
        // guards this state.
        unsafe { process::Locked::take(lock, state, WorkState::repair) }
    }

    /// Looks whether the processes that have work are alive, at most every 10 ms of real time.
    fn reap_sometimes(&self, state: &mut WorkState, board_ns: u64) {
        let now_ns = match self.clock().kind() {
            ClockKind::Real => board_ns,
            ClockKind::Virtual | ClockKind::Jump | ClockKind::Lockstep => monotonic_ns(),
        };
        let next = &self.area().next_reap_ns;
        // Relaxed: only read and written under the lock.
        if now_ns >= next.load(Ordering::Relaxed) {
            next.store(now_ns + 10_000_000, Ordering::Relaxed);
            state.reap_busy(Identity::is_alive);
        }
    }

    /// Looks for dead processes now, and drops what they have queued.
    pub fn reap(&self) {
        let mut state = self.now();
        state.reap(Identity::is_alive);
    }
}

/// The part of the stretches between two moments that belongs to a process.
fn busy_ns(stretches: &[BusyStretch], pid: u32, from_ns: u64, to_ns: u64) -> u64 {
    stretches
        .iter()
        .filter(|stretch| stretch.pid == pid)
        .map(|stretch| {
            let from_ns = stretch.from_ns.max(from_ns);
            stretch.to_ns.min(to_ns).saturating_sub(from_ns)
        })
        .sum()
}

/// Which participant this thread is, on the board that it looked at last.
#[derive(Clone, Copy)]
struct ThreadSlot {
    board: usize,
    slot: usize,
    generation: u32,
}

thread_local! {
    static PART: Cell<ThreadSlot> = const { Cell::new(ThreadSlot { board: 0, slot: 0, generation: 0 }) };
}

/// The state, locked.
type Guard<'a> = process::Locked<'a, WorkState>;

fn invalid(why: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::START_NS;

    fn board(clock: ClockKind) -> (tempfile::TempDir, Exec) {
        let directory = tempfile::tempdir().unwrap();
        let config = ExecConfig {
            clock,
            script: "slice 1ms".to_owned(),
            mps: false,
        };
        let exec = Exec::open(&directory.path().join("exec"), &config).unwrap();
        (directory, exec)
    }

    #[test]
    fn a_second_opener_sees_the_same_clock_script_and_work() {
        let (directory, first) = board(ClockKind::Virtual);
        let config = ExecConfig {
            clock: ClockKind::Real,
            script: "slice 7ms".to_owned(),
            mps: true,
        };
        let second = Exec::open(&directory.path().join("exec"), &config).unwrap();
        let process = first.join().unwrap();
        let channel = first.open_channel(process, 0).unwrap();
        first.submit(channel, Work::Kernel { ns: 500 }).unwrap();

        second.clock().advance(300);

        assert_eq!(second.script().slices.slice_ns, 1_000_000);
        assert_eq!(first.clock().now(), START_NS + 300);
        assert_eq!(second.truth(0)[0].busy_ns, 300);
    }

    #[test]
    fn a_wait_on_a_jumping_clock_ends_at_the_exact_time() {
        let (_directory, exec) = board(ClockKind::Jump);
        let process = exec.join().unwrap();
        let channel = exec.open_channel(process, 0).unwrap();
        for _ in 0..5 {
            exec.submit(channel, Work::Kernel { ns: 250_000 }).unwrap();
        }

        exec.drain(channel);

        assert_eq!(exec.clock().now(), START_NS + 1_250_000);
    }

    #[test]
    fn a_launch_into_a_full_queue_waits_for_the_first_to_finish() {
        let (_directory, exec) = board(ClockKind::Jump);
        let process = exec.join().unwrap();
        let channel = exec.open_channel(process, 0).unwrap();

        for _ in 0..=DEPTH {
            exec.submit(channel, Work::Kernel { ns: 1_000 }).unwrap();
        }

        assert_eq!(exec.clock().now(), START_NS + 1_000);
    }

    #[test]
    fn events_tell_the_time_between_two_places_of_a_stream() {
        let (_directory, exec) = board(ClockKind::Jump);
        let process = exec.join().unwrap();
        let channel = exec.open_channel(process, 3).unwrap();
        let [start, end] = [
            exec.open_event(process).unwrap(),
            exec.open_event(process).unwrap(),
        ];
        let start = exec.record(channel, start).unwrap();
        exec.submit(channel, Work::Kernel { ns: 123_456 }).unwrap();
        let end = exec.record(channel, end).unwrap();
        assert_eq!(exec.record_time_ns(end), None);

        exec.wait_record(end);

        let times = [start, end].map(|record| exec.record_time_ns(record).unwrap());
        assert_eq!(times[1] - times[0], 123_456);
    }

    #[test]
    fn a_killed_process_leaves_the_gpu_to_the_others() {
        let (directory, exec) = board(ClockKind::Virtual);
        let path = directory.path().join("exec");
        // SAFETY: the child only works on a mapping of its own and waits for its end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let exec = Exec::open(&path, &ExecConfig::default()).unwrap();
            let process = exec.join().unwrap();
            let channel = exec.open_channel(process, 0).unwrap();
            exec.submit(channel, Work::Kernel { ns: u64::MAX / 4 })
                .unwrap();
            loop {
                std::thread::park();
            }
        }
        while exec.truth(0).is_empty() || exec.device_busy_ns(0) == 0 {
            exec.clock().advance(10);
        }
        // SAFETY: our own child.
        unsafe { libc::kill(child, libc::SIGKILL) };
        // SAFETY: our own child, not yet waited for; NULL asks for no status.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };

        exec.reap();
        let busy_ns = exec.device_busy_ns(0);
        exec.clock().advance(1_000_000);

        assert_eq!(exec.device_busy_ns(0), busy_ns);
        assert!(!exec.truth(0)[0].alive);
    }

    #[test]
    fn the_lock_of_a_dead_holder_is_taken_over() {
        let (_directory, exec) = board(ClockKind::Virtual);
        std::thread::scope(|scope| {
            scope.spawn(|| std::mem::forget(exec.lock()));
        });

        assert_eq!(exec.truth(0), []);
    }

    #[test]
    fn a_share_can_be_asked_for_any_window_after_it_has_passed() {
        let (_directory, exec) = board(ClockKind::Virtual);
        const MS: u64 = 1_000_000;
        let own = std::process::id();
        let process = exec.join().unwrap();
        let channel = exec.open_channel(process, 0).unwrap();
        // Three of 4 ms, 6 ms apart: from 0, 10 and 20.
        for _ in 0..3 {
            exec.submit(channel, Work::Kernel { ns: 4 * MS }).unwrap();
            exec.clock().advance(10 * MS);
        }

        let busy = |from, to| {
            exec.busy_between(0, own, START_NS + from, START_NS + to)
                .unwrap()
        };

        assert_eq!(busy(0, 30 * MS), 12 * MS);
        assert_eq!(busy(MS, 11 * MS), 4 * MS);
        assert_eq!(busy(4 * MS, 10 * MS), 0);
        assert_eq!(busy(12 * MS + 1, 12 * MS + 3), 2);
        let windows = exec.busy_windows(0, own, START_NS + MS, START_NS + 30 * MS, 7 * MS);
        assert_eq!(windows.unwrap(), [3 * MS, 4 * MS, 2 * MS, 2 * MS]);
        assert_eq!(
            exec.busy_between(0, own + 1, START_NS, START_NS + 30 * MS),
            Some(0)
        );
    }

    #[test]
    fn a_time_that_is_told_is_not_told_again() {
        let (_directory, exec) = board(ClockKind::Virtual);
        let process = exec.join().unwrap();
        let channel = exec.open_channel(process, 0).unwrap();
        exec.submit(channel, Work::Kernel { ns: 50_000_000 })
            .unwrap();
        exec.clock().advance(1_000_000_000);
        let samples = exec.process_utilization(0, 0);
        assert_eq!(samples.len(), 1);

        let told_us = exec.unix_us(samples[0].time_ns);

        assert_eq!(exec.process_utilization(0, exec.board_ns(told_us)), []);
        assert_eq!(
            exec.process_utilization(0, exec.board_ns(told_us - 1))
                .len(),
            1
        );
    }

    /// A process of its own on the board, which ends with the body.
    fn fork(body: impl FnOnce()) -> libc::pid_t {
        // SAFETY: the child works on mappings of its own and ends without running anything of ours.
        let child = unsafe { libc::fork() };
        if child == 0 {
            body();
            // SAFETY: no failure, no return.
            unsafe { libc::_exit(0) };
        }
        child
    }

    fn end_of(child: libc::pid_t) {
        // SAFETY: our own child; nothing is asked of its status.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }

    /// A process of the tests below: kernels and sleeps whose moments interleave with those of the other processes.
    /// Returns the moment at which it ends, on the board's clock.
    fn kernels_and_sleeps(exec: &Exec, number: u64) -> u64 {
        let _part = exec.clock().join_thread();
        let process = exec.join().unwrap();
        let channel = exec.open_channel(process, 0).unwrap();
        for round in 0..200 {
            let ns = 10_000 + 7_919 * ((round * (number + 3)) % 11);
            exec.submit(channel, Work::Kernel { ns }).unwrap();
            exec.submit(channel, Work::Kernel { ns: ns / 2 }).unwrap();
            if round % 3 == number % 3 {
                exec.clock().sleep(31_337 * (number + 1));
            }
            exec.drain(channel);
        }
        exec.clock().now()
    }

    /// One run of this many processes: the time that each used, and the moment when all had ended.
    fn run_in_lockstep(processes: u64) -> (Vec<(u64, u64)>, u64) {
        let (directory, exec) = board(ClockKind::Lockstep);
        let path = directory.path().join("exec");
        let part = exec.clock().join_thread();
        let children: Vec<_> = (0..processes)
            .map(|number| {
                let child = fork(|| {
                    let exec = Exec::open(&path, &ExecConfig::default()).unwrap();
                    kernels_and_sleeps(&exec, number);
                });
                // One after the other, so that their places in the table are the same each time.
                while exec.truth(0).len() as u64 <= number {
                    std::thread::yield_now();
                }
                child
            })
            .collect();
        drop(part);
        for child in children {
            end_of(child);
        }
        let counts = exec.clock().counts();
        assert_eq!((counts.stalls, counts.sleepers), (0, 0));
        let truth = exec.truth(0);
        let used = truth.iter().map(|one| (one.busy_ns, one.kernels)).collect();
        (used, exec.clock().now())
    }

    #[test]
    fn processes_in_lockstep_have_the_same_history_each_time() {
        for processes in [2, 4] {
            let first = run_in_lockstep(processes);
            for _ in 0..5 {
                assert_eq!(run_in_lockstep(processes), first);
            }
            assert_eq!(first.0.len() as u64, processes);
            assert!(first.0.iter().all(|&(_, kernels)| kernels == 400));
        }
    }

    #[test]
    fn lockstep_time_moves_to_the_earliest_sleeper() {
        let (_directory, exec) = board(ClockKind::Lockstep);
        let clock = exec.clock();
        clock.expect_threads(2);
        let (mut early, mut late) = (Vec::new(), Vec::new());

        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _part = clock.join_thread();
                for _ in 0..3 {
                    clock.sleep(100);
                    early.push(clock.now() - START_NS);
                }
            });
            scope.spawn(|| {
                let _part = clock.join_thread();
                clock.sleep_until(START_NS + 250);
                late.push(clock.now() - START_NS);
            });
        });

        assert_eq!((early, late), (vec![100, 200, 300], vec![250]));
    }

    #[test]
    fn watcher_in_lockstep_looks_after_another_ran() {
        let (_directory, exec) = board(ClockKind::Lockstep);
        let clock = exec.clock();
        clock.expect_threads(2);
        let mut looks = Vec::new();

        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _part = clock.join_thread();
                for ns in [10, 35, 50] {
                    clock.sleep_until(START_NS + ns);
                }
            });
            scope.spawn(|| {
                let _part = clock.join_thread();
                while clock.now() < START_NS + 200 {
                    clock.sleep_until_another_ran(20, START_NS + 200);
                    looks.push(clock.now() - START_NS);
                }
            });
        });

        assert_eq!(looks, [20, 40, 60, 200]);
    }

    #[test]
    fn lockstep_time_stands_still_while_a_participant_runs() {
        let (_directory, exec) = board(ClockKind::Lockstep);
        let clock = exec.clock();
        let part = clock.join_thread();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let _part = clock.join_thread();
                clock.sleep(1_000);
            });
            while clock.counts().joined < 2 {
                std::thread::yield_now();
            }
            assert_eq!(clock.now(), START_NS);

            let away = clock.away();
            sleeper.join().unwrap();
            drop(away);
        });

        assert_eq!(clock.now(), START_NS + 1_000);
        clock.sleep(5);
        assert_eq!(clock.now(), START_NS + 1_005);
        drop(part);
        assert_eq!(clock.counts().present, 0);
    }

    #[test]
    fn a_killed_participant_holds_up_no_other() {
        let (directory, exec) = board(ClockKind::Lockstep);
        let path = directory.path().join("exec");
        let clock = exec.clock();
        let part = clock.join_thread();
        let child = fork(|| {
            let exec = Exec::open(&path, &ExecConfig::default()).unwrap();
            let _part = exec.clock().join_thread();
            loop {
                std::hint::spin_loop();
            }
        });
        while clock.counts().joined < 2 {
            std::thread::yield_now();
        }

        // SAFETY: our own child.
        unsafe { libc::kill(child, libc::SIGKILL) };
        clock.sleep(77);

        assert_eq!(clock.now(), START_NS + 77);
        assert_eq!(clock.counts().stalls, 0);
        end_of(child);
        drop(part);
    }

    #[test]
    fn a_participant_in_an_unknown_wait_counts_as_away() {
        let (_directory, exec) = board(ClockKind::Lockstep);
        let clock = exec.clock();
        let _part = clock.join_thread();

        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let _part = clock.join_thread();
                clock.sleep(1_000);
            });
            sleeper.join().unwrap();
        });

        assert_eq!(clock.now(), START_NS + 1_000);
        let counts = clock.counts();
        assert_eq!((counts.stalls, counts.sleepers), (0, 1));
        clock.sleep(1);
        assert_eq!(clock.now(), START_NS + 1_001);
    }

    #[test]
    fn a_foreign_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("exec");
        std::fs::write(&path, "something else").unwrap();

        let error = Exec::open(&path, &ExecConfig::default()).unwrap_err();

        assert!(error.to_string().contains("not a board's work"), "{error}");
    }
}
