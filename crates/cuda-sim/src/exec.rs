//! The board's work, shared: one file that every process maps, a lock that survives its holder, and
//! the waits. What happens in it is `model`'s; this file never decides who runs.
//!
//! Nothing drives the GPUs: whoever looks first plays what has happened since somebody looked last.
//! The lock is a robust one: when its holder is killed, the next one repairs what is derived and goes
//! on. Nobody waits for the GPU while he holds it.

mod lockstep;
mod model;

use std::cell::Cell;
use std::fs::{OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};

use crate::clock::{Clock, ClockKind, ClockWords, monotonic_ns, wall_ns};
use crate::process::{self, Identity};
use crate::script::{MAX_SCRIPT_BYTES, Script};
pub use lockstep::{LockstepWords, MAX_PARTICIPANTS};
use lockstep::{Wait, Woken};
pub use model::{
    BusyStretch, DEPTH, MAX_DEVICES, Place, ProcessTruth, STRETCHES, UtilizationSample, Waiting,
    Work,
};
use model::{Settings, State};

const MAGIC: u64 = u64::from_le_bytes(*b"vgpuexec");
const VERSION: u32 = 2;

/// Where the clock's words lie in the file: see [`ClockWords`].
pub const CLOCK_OFFSET: usize = 64;

/// Where the words of a clock in lockstep lie in the file: see [`LockstepWords`].
pub const LOCKSTEP_OFFSET: usize = 128;

/// What counts for whoever creates the file; later ones join it as it is.
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
struct Area {
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
    state: State,
}

const _: () = assert!(
    std::mem::offset_of!(Area, clock) == CLOCK_OFFSET
        && std::mem::offset_of!(Area, lockstep) == LOCKSTEP_OFFSET,
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
pub enum Refused {
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
            file.set_len(size_of::<Area>() as u64)?;
        } else if file.metadata()?.len() != size_of::<Area>() as u64 {
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
            // All zeros again: nobody is left who works on what was there.
            file.set_len(0)?;
            file.set_len(size_of::<Area>() as u64)?;
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
        let area = self.map.as_mut_ptr().cast::<Area>();
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
            slice_ns: script.slice_ns,
            sample_ns: script.sample_ns,
            lag_ns: script.lag_ns,
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

    fn area(&self) -> &Area {
        // SAFETY: the mapping has an Area's size and lives as long as self; what others write in it
        // is atomic, or under the lock, or was written before the magic.
        unsafe { &*self.map.as_ptr().cast::<Area>() }
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
        // Read under the lock, so that nobody plays a time that another has gone past.
        let now_ns = self.clock().now();
        self.reap_sometimes(&mut guard, now_ns);
        guard.advance(now_ns);
        guard
    }

    fn lock(&self) -> Guard<'_> {
        let area = self.map.as_mut_ptr().cast::<Area>();
        // SAFETY: the mapping holds an Area; only the address is taken.
        let lock = unsafe { &raw mut (*area).lock };
        // SAFETY: as above.
        let state = unsafe { &raw mut (*area).state };
        // SAFETY: both live in the mapping, which self keeps; the mutex was made by `create` and
        // guards this state.
        unsafe { process::Locked::take(lock, state, State::repair) }
    }

    /// Looks whether those who have work are alive, at most every 10 ms of real time.
    fn reap_sometimes(&self, state: &mut State, board_ns: u64) {
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

    // --- processes and streams --------------------------------------------------------------

    /// Gives this process its place on the board.
    ///
    /// # Errors
    /// When 256 living processes are there.
    pub fn join(&self) -> Result<ProcessId, Refused> {
        let mut state = self.now();
        state.reap(Identity::is_alive);
        state
            .join(Identity::own())
            .map(ProcessId)
            .ok_or(Refused::NoRoom)
    }

    /// Gives the place back.
    pub fn leave(&self, process: ProcessId) {
        self.now().leave(process.0);
    }

    /// Opens a stream on a device.
    ///
    /// # Errors
    /// When the board has no room for one more.
    pub fn open_channel(&self, process: ProcessId, device: usize) -> Result<ChannelId, Refused> {
        let device = u32::try_from(device).map_err(|_| Refused::NoRoom)?;
        let opened = self
            .now()
            .open_channel(process.0, device)
            .ok_or(Refused::NoRoom)?;
        Ok(ChannelId {
            index: opened.0,
            generation: opened.1,
        })
    }

    /// Closes a stream; what it has queued is still done.
    pub fn close_channel(&self, channel: ChannelId) {
        let mut state = self.now();
        if state.end_of(channel.index).generation == channel.generation {
            state.close_channel(channel.index);
        }
    }

    /// Closes a stream and drops what it has queued.
    pub fn drop_channel(&self, channel: ChannelId) {
        let mut state = self.now();
        if state.end_of(channel.index).generation == channel.generation {
            state.drop_channel(channel.index as usize);
        }
        drop(state);
        self.announce();
    }

    /// Puts work at a stream's end. While 1,024 items wait there it waits, without the lock.
    ///
    /// # Errors
    /// When the stream is closed.
    pub fn submit(&self, channel: ChannelId, work: Work) -> Result<Place, Refused> {
        self.submit_after(channel, &[], work)
    }

    /// The same, but the work starts only after all that the streams `after` have been given.
    ///
    /// # Errors
    /// When the stream is closed.
    pub fn submit_after(
        &self,
        channel: ChannelId,
        after: &[ChannelId],
        work: Work,
    ) -> Result<Place, Refused> {
        let after: &[(u32, u32)] = &after
            .iter()
            .map(|id| (id.index, id.generation))
            .collect::<Vec<_>>();
        loop {
            let seen = self.clock().changes();
            let mut state = self.now();
            let end = state.end_of(channel.index);
            if end.generation != channel.generation {
                return Err(Refused::Closed);
            }
            if let Some(place) = state.submit_after(channel.index, after, work) {
                return Ok(place);
            }
            let first = Place {
                sequence: end.sequence - state.queued(channel.index),
                ..end
            };
            let hint = state.at_least_ns(first);
            self.rest(state, seen, hint, Wait::Place(first));
        }
    }

    /// Lets what a stream is given next come after all that another has been given so far.
    ///
    /// # Errors
    /// When the stream is closed.
    pub fn order(&self, channel: ChannelId, after: ChannelId) -> Result<(), Refused> {
        if let Some(place) = self.last_place(after) {
            self.submit(channel, Work::WaitChannel { place })?;
        }
        Ok(())
    }

    /// The place before which everything lies that a stream has been given; `None` when all of it
    /// is done.
    pub fn last_place(&self, channel: ChannelId) -> Option<Place> {
        let state = self.now();
        let end = state.end_of(channel.index);
        if end.generation != channel.generation || state.queued(channel.index) == 0 {
            return None;
        }
        Some(Place {
            sequence: end.sequence - 1,
            ..end
        })
    }

    /// Whether everything that the streams have been given is done.
    pub fn is_idle(&self, channel: ChannelId) -> bool {
        let idle = self.last_place(channel).is_none();
        self.looked(idle);
        idle
    }

    /// Whether the item at a place is done.
    pub fn is_past(&self, place: Place) -> bool {
        self.now().is_past(place)
    }

    /// Waits until the item at a place is done.
    pub fn wait(&self, place: Place) {
        loop {
            let seen = self.clock().changes();
            let state = self.now();
            if state.is_past(place) {
                return;
            }
            let hint = state.at_least_ns(place);
            self.rest(state, seen, hint, Wait::Place(place));
        }
    }

    /// Waits until everything that the stream has been given so far is done.
    pub fn drain(&self, channel: ChannelId) {
        if let Some(place) = self.last_place(channel) {
            self.wait(place);
        }
    }

    // --- events -----------------------------------------------------------------------------

    /// A new event.
    ///
    /// # Errors
    /// When the board has no room for one more.
    pub fn open_event(&self, process: ProcessId) -> Result<EventId, Refused> {
        let (index, generation) = self.lock().open_event(process.0).ok_or(Refused::NoRoom)?;
        Ok(EventId { index, generation })
    }

    /// Forgets an event.
    pub fn close_event(&self, event: EventId) {
        self.lock().close_event(event.index, event.generation);
    }

    /// Records an event at a stream's end.
    ///
    /// # Errors
    /// When the stream or the event is closed.
    pub fn record(&self, channel: ChannelId, event: EventId) -> Result<Record, Refused> {
        let number = {
            let mut state = self.lock();
            state
                .records(event.index, event.generation)
                .ok_or(Refused::Closed)?;
            state.next_record(event.index)
        };
        self.submit(
            channel,
            Work::Record {
                event: event.index,
                number,
            },
        )?;
        Ok(Record { event, number })
    }

    /// The last record of an event, in whatever process; number 0 when there was none.
    ///
    /// # Errors
    /// When the event is closed.
    pub fn last_record(&self, event: EventId) -> Result<Record, Refused> {
        let number = self
            .lock()
            .records(event.index, event.generation)
            .ok_or(Refused::Closed)?;
        Ok(Record { event, number })
    }

    /// Lets a stream wait for a record.
    ///
    /// # Errors
    /// When the stream is closed.
    pub fn wait_for_record(&self, channel: ChannelId, record: Record) -> Result<(), Refused> {
        if record.number == 0 || self.lock().event_done(record.event.index, record.number) {
            return Ok(());
        }
        let EventId { index, generation } = record.event;
        self.submit(
            channel,
            Work::WaitEvent {
                event: index,
                generation,
                number: record.number,
            },
        )?;
        Ok(())
    }

    /// When a record was reached, on the board's clock; `None` while it is not.
    pub fn record_time_ns(&self, record: Record) -> Option<u64> {
        let state = self.now();
        let done = state.event_done(record.event.index, record.number);
        let time_ns = state.event_time_ns(record.event.index);
        drop(state);
        self.looked(done);
        done.then_some(time_ns)
    }

    /// Waits until a record is reached.
    pub fn wait_record(&self, record: Record) {
        loop {
            let seen = self.clock().changes();
            let state = self.now();
            let EventId { index, generation } = record.event;
            if state.records(index, generation).is_none() || state.event_done(index, record.number)
            {
                return;
            }
            let hint = state.at_least_ns(state.event_place(index));
            self.rest(state, seen, hint, Wait::Record(record));
        }
    }

    // --- work that its owner does -------------------------------------------------------------

    /// Work of this process at which a stream stands until it is released.
    pub fn waiting(&self, process: ProcessId) -> Vec<Waiting> {
        self.now().waiting(process.0)
    }

    /// The owner has done what a stream stood at.
    pub fn release(&self, place: Place) {
        let mut state = self.now();
        state.release(place);
        state.advance(self.clock().now());
        drop(state);
        self.announce();
    }

    /// A helper's sleep between two looks at [`Exec::waiting`]: until this process may have to act,
    /// or something was announced since `seen`. `polls` says that it has conditions to look at.
    pub fn rest_until_needed(&self, process: ProcessId, seen: u32, polls: bool) {
        let state = self.now();
        let wait = Wait::Act { process: process.0 };
        match state.acts_in_ns(process.0) {
            _ if self.in_lockstep => self.rest(state, seen, 0, wait),
            Some(ns) if !polls && ns > 0 => self.rest(state, seen, ns, wait),
            _ => {
                drop(state);
                self.clock()
                    .wait(seen, Duration::from_micros(if polls { 50 } else { 2_000 }));
            }
        }
    }

    /// Wakes helpers and waiters of all processes: something changed that they cannot foresee.
    pub fn announce(&self) {
        if self.in_lockstep {
            self.go_on(self.lock());
        } else {
            self.area().clock.announce();
        }
    }

    /// Nanoseconds that must at least go by before a place is past.
    pub fn at_least_ns(&self, place: Place) -> u64 {
        self.now().at_least_ns(place)
    }

    // --- waiting ------------------------------------------------------------------------------

    /// A look that found the GPU busy moves a jumping clock, or a program that polls would do so
    /// for ever. In lockstep the eighth such look of a thread at one moment is a wait.
    fn looked(&self, done: bool) {
        thread_local! {
            static LOOKS: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
        }
        if done {
            return;
        }
        match self.clock().kind() {
            ClockKind::Real | ClockKind::Virtual => {}
            ClockKind::Jump => {
                self.clock().advance(1_000);
            }
            ClockKind::Lockstep => {
                let now_ns = self.clock().now();
                let (at_ns, looks) = LOOKS.get();
                let looks = if at_ns == now_ns { looks + 1 } else { 1 };
                LOOKS.set((now_ns, looks));
                if looks >= 8 {
                    self.sleep_until(now_ns + 1_000);
                }
            }
        }
    }

    /// Lets time go by: lets go of the lock, then sleeps until what is awaited can have happened.
    fn rest(&self, mut state: Guard<'_>, seen: u32, hint_ns: u64, wait: Wait) {
        let clock = self.clock();
        match clock.kind() {
            ClockKind::Real => {
                drop(state);
                self.rest_real(seen, hint_ns);
            }
            ClockKind::Virtual => {
                drop(state);
                clock.wait(seen, Duration::from_millis(20));
            }
            ClockKind::Jump => {
                let next = if state.anybody_acts() {
                    None
                } else {
                    state.next_event_ns()
                };
                drop(state);
                match next {
                    Some(next) => clock.advance_to(next),
                    None => clock.wait(seen, Duration::from_millis(1)),
                }
            }
            ClockKind::Lockstep => self.rest_in_step(state, wait, u64::MAX),
        }
    }

    fn rest_real(&self, seen: u32, hint_ns: u64) {
        const SPIN_NS: u64 = 60_000;
        if hint_ns > SPIN_NS {
            // Woken late is slow, woken early costs a look: so the last stretch is spun.
            let sleep_ns = (hint_ns - SPIN_NS).min(20_000_000);
            self.clock().wait(seen, Duration::from_nanos(sleep_ns));
        } else if hint_ns == 0 {
            // Somebody has to act, and announces it; or another process's turn has to end.
            self.clock().wait(seen, Duration::from_micros(50));
        } else {
            let until = monotonic_ns() + hint_ns;
            while monotonic_ns() < until {
                std::thread::yield_now();
            }
        }
    }

    // --- time in step ---------------------------------------------------------------------------

    pub(crate) fn lockstep(&self) -> &LockstepWords {
        &self.area().lockstep
    }

    /// The participant that this thread is, running or away.
    fn own_part(&self) -> Option<usize> {
        let tid = process::tid();
        let part = PART.get();
        if part.board == self.map.as_ptr().addr()
            && self.lockstep().is(part.slot, tid, part.generation)
        {
            return Some(part.slot);
        }
        let slot = self.lockstep().find(tid)?;
        self.remember(slot);
        Some(slot)
    }

    fn remember(&self, slot: usize) {
        PART.set(Part {
            board: self.map.as_ptr().addr(),
            slot,
            generation: self.lockstep().generation(slot),
        });
    }

    /// Makes this thread a participant that runs; says whether it was not one. Does nothing, and says
    /// no, when the clock is not in lockstep.
    #[inline]
    pub fn take_part(&self) -> bool {
        self.in_lockstep && self.take_part_in_step()
    }

    fn take_part_in_step(&self) -> bool {
        match self.own_part() {
            Some(slot) if self.lockstep().runs(slot) => false,
            Some(slot) => {
                let _state = self.lock();
                self.lockstep().come_back(slot);
                true
            }
            None => self.take_part_as(process::rank()),
        }
    }

    /// Makes this thread a participant of that rank, if it is none; who has a rank waits for those that
    /// are expected.
    pub(crate) fn take_part_as(&self, rank: u32) -> bool {
        if !self.in_lockstep || self.own_part().is_some() {
            return false;
        }
        let identity = Identity::own();
        let state = self.lock();
        let Some(slot) = self.lockstep().join(process::tid(), identity, rank) else {
            return false;
        };
        self.remember(slot);
        if rank != u32::MAX && self.lockstep().was_expected() {
            self.rest_in_step(state, Wait::Others, u64::MAX);
        }
        true
    }

    /// Ends this thread's part.
    pub fn part(&self) {
        if self.in_lockstep
            && let Some(slot) = self.own_part()
        {
            let state = self.lock();
            self.lockstep().leave(slot);
            self.go_on(state);
        }
    }

    /// Takes this thread for away until it takes part again; says whether it ran.
    pub fn go_away(&self) -> bool {
        if !self.in_lockstep {
            return false;
        }
        let Some(slot) = self.own_part().filter(|&slot| self.lockstep().runs(slot)) else {
            return false;
        };
        let state = self.lock();
        self.lockstep().go_away(slot);
        self.go_on(state);
        true
    }

    /// Lets time move on if nobody runs.
    fn go_on(&self, mut state: Guard<'_>) {
        let woken = self.lockstep().go_on(&mut state, self.area().clock.word());
        drop(state);
        self.lockstep().wake(&woken);
    }

    /// Waits as a participant; a thread that is none becomes one for that wait.
    fn rest_in_step(&self, mut state: Guard<'_>, wait: Wait, until_ns: u64) {
        let table = self.lockstep();
        let known = self.own_part();
        let for_now = known.is_none_or(|slot| table.is_away(slot));
        let slot = known.or_else(|| {
            let slot = table.join(process::tid(), Identity::own(), process::rank())?;
            self.remember(slot);
            Some(slot)
        });
        let Some(slot) = slot else {
            // No room for one more: it only looks again.
            drop(state);
            std::thread::yield_now();
            return;
        };
        table.block(slot, wait, until_ns);
        let woken: Woken = table.go_on(&mut state, self.area().clock.word());
        drop(state);
        table.wake(&woken);
        while !table.wait(slot, SPINS, Duration::from_nanos(lockstep::WATCH_NS)) {
            self.watch();
        }
        if for_now {
            let state = self.lock();
            if known.is_some() {
                table.go_away(slot);
            } else {
                table.leave(slot);
            }
            self.go_on(state);
        }
    }

    /// A waiter's look at those who keep time standing still.
    fn watch(&self) {
        let real_ns = monotonic_ns();
        if !self.lockstep().is_watch_due(real_ns) {
            return;
        }
        let mut state = self.lock();
        if !self.lockstep().is_watch_due(real_ns) {
            return;
        }
        let word = self.area().clock.word();
        state.advance(word.load(Ordering::SeqCst));
        state.reap(Identity::is_alive);
        let woken = self.lockstep().watch(&mut state, word, real_ns);
        drop(state);
        self.lockstep().wake(&woken);
    }

    /// Moves a clock in lockstep by hand.
    pub(crate) fn move_by(&self, ns: u64) -> u64 {
        let mut state = self.lock();
        let now_ns = self.area().clock.word().fetch_add(ns, Ordering::SeqCst) + ns;
        state.advance(now_ns);
        self.go_on(state);
        now_ns
    }

    /// Waits until it is that late on the board's clock.
    pub(crate) fn sleep_until(&self, ns: u64) {
        let clock = self.clock();
        loop {
            let seen = clock.changes();
            let now_ns = clock.now();
            if now_ns >= ns {
                return;
            }
            match clock.kind() {
                ClockKind::Real => crate::clock::sleep_real(ns - now_ns),
                ClockKind::Virtual => clock.wait(seen, Duration::from_millis(20)),
                ClockKind::Jump => {
                    let mut state = self.now();
                    let acts = state.anybody_acts();
                    let next = state.next_event_ns().map_or(ns, |next| next.min(ns));
                    drop(state);
                    if acts {
                        clock.wait(seen, Duration::from_millis(1));
                    } else {
                        clock.advance_to(next);
                    }
                }
                ClockKind::Lockstep => self.rest_in_step(self.lock(), Wait::Time, ns),
            }
        }
    }

    // --- truth --------------------------------------------------------------------------------

    /// What each process has done to a device, the dead included.
    pub fn truth(&self, device: usize) -> Vec<ProcessTruth> {
        if device >= MAX_DEVICES {
            return Vec::new();
        }
        let mut state = self.now();
        state.reap(Identity::is_alive);
        state.truth(device)
    }

    /// Nanoseconds in which any kernel held the device.
    pub fn device_busy_ns(&self, device: usize) -> u64 {
        if device < MAX_DEVICES {
            self.now().device_busy_ns(device)
        } else {
            0
        }
    }

    /// Whether the kernels of all processes run side by side, as under an MPS server.
    pub fn is_mps(&self) -> bool {
        // Without the lock: written once, before the file's magic was published.
        self.area().state.is_mps()
    }

    /// Who held a device between two moments of the board's clock, cut at both, in the order in which
    /// each began; what is in the future is not there. `None` when the board has forgotten a part of
    /// it: it keeps the last [`STRETCHES`] unbroken holds of each device.
    pub fn stretches(&self, device: usize, from_ns: u64, to_ns: u64) -> Option<Vec<BusyStretch>> {
        if device >= MAX_DEVICES {
            return Some(Vec::new());
        }
        self.now().stretches(device, from_ns, to_ns)
    }

    /// Nanoseconds in which a kernel of the process held the device between two moments, exactly;
    /// `None` when the board has forgotten a part of it.
    pub fn busy_between(&self, device: usize, pid: u32, from_ns: u64, to_ns: u64) -> Option<u64> {
        let stretches = self.stretches(device, from_ns, to_ns)?;
        Some(busy_ns(&stretches, pid, from_ns, to_ns))
    }

    /// The same for each of the windows of that length that lie whole between the moments; the first
    /// begins at `from_ns`.
    pub fn busy_windows(
        &self,
        device: usize,
        pid: u32,
        from_ns: u64,
        to_ns: u64,
        window_ns: u64,
    ) -> Option<Vec<u64>> {
        let stretches = self.stretches(device, from_ns, to_ns)?;
        let window_ns = window_ns.max(1);
        let count = to_ns.saturating_sub(from_ns) / window_ns;
        let mut windows = vec![0; count as usize];
        for stretch in stretches.iter().filter(|stretch| stretch.pid == pid) {
            let mut at_ns = stretch.from_ns;
            while at_ns < stretch.to_ns {
                let index = (at_ns - from_ns) / window_ns;
                let end_ns = stretch.to_ns.min(from_ns + (index + 1) * window_ns);
                if let Some(window) = windows.get_mut(index as usize) {
                    *window += end_ns - at_ns;
                }
                at_ns = end_ns;
            }
        }
        Some(windows)
    }

    /// Samples of each process's use that ended after `since_ns` (board's clock), oldest first; as
    /// coarse and as late as NVML's.
    pub fn process_utilization(&self, device: usize, since_ns: u64) -> Vec<UtilizationSample> {
        if device >= MAX_DEVICES {
            return Vec::new();
        }
        self.now().process_utilization(device, since_ns)
    }

    /// Samples of the whole device that ended after `since_ns`, oldest first.
    pub fn device_samples(&self, device: usize, since_ns: u64) -> Vec<UtilizationSample> {
        if device >= MAX_DEVICES {
            return Vec::new();
        }
        self.now().device_samples(device, since_ns)
    }

    /// The last whole sampling period of a device.
    pub fn device_utilization(&self, device: usize) -> UtilizationSample {
        self.now().device_utilization(device.min(MAX_DEVICES - 1))
    }

    /// A moment of the board's clock as microseconds since 1970, as NVML states times.
    pub fn unix_us(&self, board_ns: u64) -> u64 {
        (self.area().unix_at_zero_ns + board_ns) / 1_000
    }

    /// The other way round: the last moment of the board's clock that is told as this microsecond.
    pub fn board_ns(&self, unix_us: u64) -> u64 {
        let last_ns = unix_us.saturating_mul(1_000).saturating_add(999);
        last_ns.saturating_sub(self.area().unix_at_zero_ns)
    }
}

/// What a process has of stretches between two moments.
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

/// How often a waiter looks at its word before it sleeps in the kernel.
const SPINS: u32 = 20;

/// Which participant this thread is, on the board that it looked at last.
#[derive(Clone, Copy)]
struct Part {
    board: usize,
    slot: usize,
    generation: u32,
}

thread_local! {
    static PART: Cell<Part> = const { Cell::new(Part { board: 0, slot: 0, generation: 0 }) };
}

/// The state, locked.
type Guard<'a> = process::Locked<'a, State>;

fn invalid(what: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
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

        assert_eq!(second.script().slice_ns, 1_000_000);
        assert_eq!(first.clock().now(), START_NS + 300);
        assert_eq!(second.truth(0)[0].busy_ns, 300);
    }

    #[test]
    fn who_waits_on_a_jumping_clock_comes_out_at_the_exact_time() {
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
        // SAFETY: as above; nothing is asked of its status.
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

    /// What a process does in the tests below: kernels and sleeps whose moments interleave with the
    /// others'. Answers its own end on the board's clock.
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

    /// One run of so many processes: what each used, and when all had ended.
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
    fn processes_in_lockstep_do_the_same_at_the_same_moments_each_time() {
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
    fn time_in_lockstep_moves_to_the_earliest_sleeper_and_no_further() {
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
    fn time_in_lockstep_stands_still_while_a_thread_runs_and_goes_on_while_it_is_away() {
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
    fn a_killed_participant_keeps_nobody() {
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
    fn a_participant_that_waits_for_something_unknown_is_taken_for_away_and_counted() {
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
