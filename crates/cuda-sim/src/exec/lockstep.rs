//! Time that several processes and threads share in step: the participants, what each waits for, and the moment to
//! which time moves once none of them runs. It decides with the table and the board's work; it takes no lock (the
//! board's is held around every change) and never waits.
//!
//! A participant is a thread. It runs from its joining until it blocks in a wait that the clock knows, leaves,
//! declares itself away, or dies. When none runs, the first by rank and position in the table that can continue at
//! this moment does so, alone; when none can, time moves to the next moment at which something happens that a
//! participant waits for. So the state at a moment does not depend on the machine, once each participant has waited, and as
//! long as none sleeps in something that the clock does not know: after `WATCH_NS` of that, one that can go on at this
//! moment is let go beside it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Record;
use super::model::{Position, WorkState};
use crate::process::{self, Identity};

/// Threads that can take part at a time.
pub const MAX_PARTICIPANTS: usize = 1024;

/// How long all that run must have slept in something that the clock does not know before they count
/// as away.
const ASLEEP_NS: u64 = 250_000_000;
/// How long nothing may happen before the running participant counts as away, busy or not.
const STALLED_NS: u64 = 2_000_000_000;
/// How long participants that have joined wait for the others that are expected.
const EXPECTED_NS: u64 = 30_000_000_000;
/// The interval at which running participants are checked for being alive.
pub(super) const WATCH_NS: u64 = 10_000_000;

const FREE: u32 = 0;
const RUNS: u32 = 1;
/// Waits, and looks at its word.
const WAITS: u32 = 2;
/// Waits, and has to be woken by a futex call on its word.
const SLEEPS: u32 = 3;
const AWAY: u32 = 4;
/// Taken for away: runs again as soon as it is heard of.
const LOST: u32 = 5;

/// The thing that a participant waits for, besides a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// The moment alone.
    Time,
    /// The others that are expected.
    Others,
    /// The next of the moments `from_ns` + n × `step_ns`, for n above 0, once another participant has run.
    Ran { from_ns: u64, step_ns: u64 },
    /// A stream is past a place.
    Position(Position),
    /// A record is reached, or its event is gone.
    Record(Record),
    /// A process's streams have reached work that it must do, or conditions that it must check whenever a participant
    /// has run or time has moved.
    Act {
        /// The process.
        process: u32,
    },
}

const KIND_TIME: u32 = 0;
const KIND_PLACE: u32 = 1;
const KIND_RECORD: u32 = 2;
const KIND_ACT: u32 = 3;
const KIND_OTHERS: u32 = 4;
const KIND_RAN: u32 = 5;

/// The table as it lies in the board's `exec` file, at byte [`super::LOCKSTEP_OFFSET`]: 128 bytes of
/// words, then 1,024 participants of 128 bytes each. Only the participants' words are looked at
/// without the board's lock.
///
/// | offset | type | meaning |
/// |---|---|---|
/// | 0 | u32 | participants that were ever in use at once |
/// | 4 | u32 | time stands still until so many threads have joined |
/// | 8 | u64 | threads that have joined, ever |
/// | 16 | u64 | how often time was moved |
/// | 24 | u64 | participants taken for away since nothing happened for 2 s |
/// | 32 | u64 | participants taken for away since all slept in something unknown for 250 ms |
/// | 40 | u64 | counts each change of the running participant |
#[repr(C, align(64))]
#[derive(Debug)]
pub struct LockstepWords {
    used: AtomicU32,
    expected: AtomicU32,
    joined: AtomicU64,
    moves: AtomicU64,
    stalls: AtomicU64,
    sleepers: AtomicU64,
    steps: AtomicU64,
    /// Changes whenever a polled condition may have.
    epoch: AtomicU64,
    /// Real time of the next look for dead participants.
    watch_ns: AtomicU64,
    seen_steps: AtomicU64,
    seen_ns: AtomicU64,
    asleep_since_ns: AtomicU64,
    switches: AtomicU64,
    reserved: [u64; 4],
    participants: [ParticipantWords; MAX_PARTICIPANTS],
}

/// One participant.
///
/// | offset | type | meaning |
/// |---|---|---|
/// | 0 | u32 | 0 free, 1 runs, 2 waits, 3 waits in a futex call on this word, 4 away, 5 taken for away |
/// | 4 | u32 | thread |
/// | 8 | u32, u64 ×3 | process: number, then at 16 start time, pid namespace, stack |
/// | 40 | u64 | the moment that it waits for |
/// | 48 | u32 | what else it waits for: 0 nothing, 1 a place, 2 a record, 3 host work, 4 others, 5 that another ran |
/// | 60 | u32 | rank: the lowest of those that can go on at a moment goes first |
#[repr(C, align(64))]
#[derive(Debug)]
struct ParticipantWords {
    state: AtomicU32,
    tid: AtomicU32,
    pid: AtomicU32,
    generation: AtomicU32,
    start_time: AtomicU64,
    pid_namespace: AtomicU64,
    stack: AtomicU64,
    until_ns: AtomicU64,
    kind: AtomicU32,
    target: AtomicU32,
    target_generation: AtomicU32,
    rank: AtomicU32,
    number: AtomicU64,
    from_ns: AtomicU64,
    reserved: [u64; 5],
}

const _: () = assert!(
    std::mem::offset_of!(LockstepWords, participants) == 128
        && size_of::<ParticipantWords>() == 128
        && std::mem::offset_of!(ParticipantWords, until_ns) == 40
        && std::mem::offset_of!(ParticipantWords, rank) == 60,
    "documented"
);

// Relaxed everywhere but on a participant's state: the board's lock orders the rest.
const LOCKED: Ordering = Ordering::Relaxed;

impl ParticipantWords {
    fn identity(&self) -> Identity {
        Identity::of(
            self.pid.load(LOCKED),
            self.start_time.load(LOCKED),
            self.pid_namespace.load(LOCKED),
            self.stack.load(LOCKED),
        )
    }

    fn wait(&self) -> Wait {
        let (target, generation) = (
            self.target.load(LOCKED),
            self.target_generation.load(LOCKED),
        );
        let number = self.number.load(LOCKED);
        match self.kind.load(LOCKED) {
            KIND_PLACE => Wait::Position(Position {
                channel: target,
                generation,
                sequence: number,
            }),
            KIND_RECORD => Wait::Record(Record {
                event: super::EventId {
                    index: target,
                    generation,
                },
                number,
            }),
            KIND_ACT => Wait::Act { process: target },
            KIND_OTHERS => Wait::Others,
            KIND_RAN => Wait::Ran {
                from_ns: self.from_ns.load(LOCKED),
                step_ns: number,
            },
            _ => Wait::Time,
        }
    }

    fn set_wait(&self, wait: Wait, epoch: u64) {
        let (kind, target, generation, number) = match wait {
            Wait::Time => (KIND_TIME, 0, 0, 0),
            Wait::Others => (KIND_OTHERS, 0, 0, 0),
            Wait::Ran { from_ns, step_ns } => {
                self.from_ns.store(from_ns, LOCKED);
                (KIND_RAN, 0, 0, step_ns)
            }
            Wait::Position(place) => (KIND_PLACE, place.channel, place.generation, place.sequence),
            Wait::Record(Record { event, number }) => {
                (KIND_RECORD, event.index, event.generation, number)
            }
            Wait::Act { process } => (KIND_ACT, process, 0, epoch),
        };
        self.kind.store(kind, LOCKED);
        self.target.store(target, LOCKED);
        self.target_generation.store(generation, LOCKED);
        self.number.store(number, LOCKED);
    }

    fn waits(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), WAITS | SLEEPS)
    }

    fn runs(&self) -> bool {
        self.state.load(Ordering::Acquire) == RUNS
    }
}

/// A participant that may go on and sleeps in the kernel: the thread that changed it wakes it, without the
/// board's lock.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct Woken(Option<usize>);

impl LockstepWords {
    fn participants(&self) -> &[ParticipantWords] {
        &self.participants[..(self.used.load(LOCKED) as usize).min(MAX_PARTICIPANTS)]
    }

    fn step(&self) {
        self.steps.store(self.steps.load(LOCKED) + 1, LOCKED);
    }

    fn changed(&self) {
        self.epoch.store(self.epoch.load(LOCKED) + 1, LOCKED);
    }

    // --- taking part -----------------------------------------------------------------------

    /// The participant that a thread of this process is, running or not. Needs no lock: no other thread
    /// makes or ends it while the thread lives.
    pub(super) fn find(&self, tid: u32) -> Option<usize> {
        self.participants().iter().position(|participant| {
            participant.tid.load(LOCKED) == tid
                && participant.state.load(Ordering::Acquire) != FREE
                && participant.pid.load(LOCKED) == process::own_pid()
                && participant.identity().is_own()
        })
    }

    /// Whether a participant is this thread of this process, judged by its numbers.
    pub(super) fn is(&self, slot: usize, tid: u32, generation: u32) -> bool {
        let participant = &self.participants[slot];
        participant.tid.load(LOCKED) == tid
            && participant.generation.load(LOCKED) == generation
            && participant.state.load(Ordering::Acquire) != FREE
    }

    pub(super) fn generation(&self, slot: usize) -> u32 {
        self.participants[slot].generation.load(LOCKED)
    }

    /// Makes a thread a participant that runs; `None` when there is no room.
    pub(super) fn join(&self, tid: u32, identity: Identity, rank: u32) -> Option<usize> {
        let free = |words: &Self| {
            words
                .participants
                .iter()
                .position(|participant| participant.state.load(Ordering::Acquire) == FREE)
        };
        let slot = free(self).or_else(|| {
            self.forget_dead(|_| true);
            free(self)
        })?;
        let participant = &self.participants[slot];
        participant.tid.store(tid, LOCKED);
        participant.rank.store(rank, LOCKED);
        participant.pid.store(identity.pid, LOCKED);
        participant.start_time.store(identity.start_time, LOCKED);
        participant
            .pid_namespace
            .store(identity.pid_namespace, LOCKED);
        participant.stack.store(identity.stack, LOCKED);
        let generation = participant.generation.load(LOCKED).wrapping_add(1);
        participant.generation.store(generation, LOCKED);
        participant.state.store(RUNS, Ordering::Release);
        let used = self.used.load(LOCKED).max(slot as u32 + 1);
        self.used.store(used, LOCKED);
        self.joined.store(self.joined.load(LOCKED) + 1, LOCKED);
        self.step();
        Some(slot)
    }

    /// A participant's thread ends or leaves.
    pub(super) fn leave(&self, slot: usize) {
        self.participants[slot].state.store(FREE, Ordering::Release);
        self.changed();
        self.step();
    }

    /// A participant blocks in something that the clock does not know.
    pub(super) fn go_away(&self, slot: usize) {
        self.participants[slot].state.store(AWAY, Ordering::Release);
        self.changed();
        self.step();
    }

    /// A participant that was away, or taken for it, runs again.
    pub(super) fn come_back(&self, slot: usize) {
        self.participants[slot].state.store(RUNS, Ordering::Release);
        self.step();
    }

    /// Whether a participant runs. Needs no lock.
    pub(super) fn runs(&self, slot: usize) -> bool {
        self.participants[slot].runs()
    }

    /// Whether a participant is away by its own word. Needs no lock.
    pub(super) fn is_away(&self, slot: usize) -> bool {
        self.participants[slot].state.load(Ordering::Acquire) == AWAY
    }

    /// Threads that run or wait.
    pub(crate) fn present(&self) -> usize {
        let here = |participant: &&ParticipantWords| participant.runs() || participant.waits();
        self.participants().iter().filter(here).count()
    }

    /// Whether more threads are expected than have joined.
    pub(super) fn expects_more(&self) -> bool {
        self.joined.load(LOCKED) < u64::from(self.expected.load(LOCKED))
    }

    /// Whether the thread that has just joined is one of those that are expected.
    pub(super) fn was_expected(&self) -> bool {
        self.joined.load(LOCKED) <= u64::from(self.expected.load(LOCKED))
    }

    /// Stops the time until this many threads have joined, earlier ones included.
    pub(crate) fn expect(&self, threads: u32) {
        self.expected.store(threads, LOCKED);
    }

    pub(crate) fn joined(&self) -> u64 {
        self.joined.load(LOCKED)
    }

    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(LOCKED)
    }

    /// How often a participant was taken for away: since nothing happened, since it slept.
    pub(crate) fn taken_for_away(&self) -> (u64, u64) {
        (self.stalls.load(LOCKED), self.sleepers.load(LOCKED))
    }

    // --- going on --------------------------------------------------------------------------

    /// A participant blocks.
    pub(super) fn block(&self, slot: usize, wait: Wait, until_ns: u64) {
        let participant = &self.participants[slot];
        if !matches!(wait, Wait::Act { .. }) {
            self.changed();
        }
        participant.set_wait(wait, self.epoch.load(LOCKED));
        participant.until_ns.store(until_ns, LOCKED);
        participant.state.store(WAITS, Ordering::Release);
        self.step();
    }

    fn any_participant_runs(&self) -> bool {
        self.participants().iter().any(ParticipantWords::runs)
    }

    fn can_go_on(&self, participant: &ParticipantWords, state: &WorkState, now_ns: u64) -> bool {
        if !participant.waits() {
            return false;
        }
        if participant.until_ns.load(LOCKED) <= now_ns {
            return true;
        }
        match participant.wait() {
            // When another has run, `until_ns` has come nearer.
            Wait::Time | Wait::Ran { .. } => false,
            Wait::Others => !self.expects_more(),
            Wait::Position(place) => state.is_past(place),
            Wait::Record(Record { event, number }) => {
                state.records(event.index, event.generation).is_none()
                    || state.event_done(event.index, number)
            }
            Wait::Act { process } => {
                let looks = participant.number.load(LOCKED) != self.epoch.load(LOCKED);
                state.has_to_act(process, looks)
            }
        }
    }

    fn let_go(&self, slot: usize) -> Woken {
        let before = self.participants[slot].state.swap(RUNS, Ordering::AcqRel);
        self.step();
        Woken((before == SLEEPS).then_some(slot))
    }

    fn first_that_can(&self, state: &WorkState, now_ns: u64) -> Option<usize> {
        self.participants()
            .iter()
            .enumerate()
            .filter(|(_, participant)| self.can_go_on(participant, state, now_ns))
            // The first of several that are equal.
            .min_by_key(|(_, participant)| participant.rank.load(LOCKED))
            .map(|(slot, _)| slot)
    }

    /// A participant may have run at this moment. Those that wait for that go on at the next of their moments; the one that
    /// blocks itself now does not wait for itself.
    fn ran(&self, now_ns: u64, blocks: Option<usize>) {
        for (slot, participant) in self.participants().iter().enumerate() {
            if participant.kind.load(LOCKED) != KIND_RAN
                || Some(slot) == blocks
                || !participant.waits()
            {
                continue;
            }
            let from_ns = participant.from_ns.load(LOCKED);
            let step_ns = participant.number.load(LOCKED).max(1);
            let steps = now_ns.saturating_sub(from_ns).div_ceil(step_ns).max(1);
            let next_ns = from_ns.saturating_add(steps.saturating_mul(step_ns));
            let until_ns = participant.until_ns.load(LOCKED).min(next_ns);
            participant.until_ns.store(until_ns, LOCKED);
        }
    }

    /// When no participant runs, lets one go on: at this moment, or else at the next one at which one can. `blocks` is the
    /// participant that has just blocked itself.
    pub(super) fn go_on(
        &self,
        state: &mut WorkState,
        now: &AtomicU64,
        blocks: Option<usize>,
    ) -> Woken {
        if self.any_participant_runs() {
            return Woken::default();
        }
        let mut now_ns = now.load(Ordering::SeqCst);
        self.ran(now_ns, blocks);
        let (mut soonest, mut for_the_board) = (u64::MAX, false);
        for participant in self.participants().iter().filter(|some| some.waits()) {
            soonest = soonest.min(participant.until_ns.load(LOCKED));
            let kind = participant.kind.load(LOCKED);
            for_the_board |= !matches!(kind, KIND_TIME | KIND_OTHERS | KIND_RAN);
        }
        loop {
            if for_the_board {
                state.advance(now_ns);
            }
            if let Some(slot) = self.first_that_can(state, now_ns) {
                return self.let_go(slot);
            }
            if self.expects_more() {
                return Woken::default();
            }
            let happens = if for_the_board {
                state.next_event_ns().unwrap_or(u64::MAX)
            } else {
                u64::MAX
            };
            let next_ns = soonest.min(happens);
            if next_ns == u64::MAX || next_ns <= now_ns {
                return Woken::default();
            }
            now_ns = next_ns;
            now.store(now_ns, Ordering::SeqCst);
            self.moves.store(self.moves.load(LOCKED) + 1, LOCKED);
            self.changed();
        }
    }

    /// Wakes the participant that may go on.
    pub(super) fn wake(&self, woken: &Woken) {
        if let Some(slot) = woken.0 {
            crate::clock::futex_wake_all(&self.participants[slot].state);
        }
    }

    /// Waits until a participant runs again, or has been taken for away; about so long at most.
    pub(super) fn wait(&self, slot: usize, longest: std::time::Duration) -> bool {
        let state = &self.participants[slot].state;
        let asleep = state.compare_exchange(WAITS, SLEEPS, Ordering::AcqRel, Ordering::Acquire);
        if matches!(asleep, Ok(_) | Err(SLEEPS)) {
            crate::clock::futex_wait(state, SLEEPS, longest);
        }
        !matches!(state.load(Ordering::Acquire), WAITS | SLEEPS)
    }

    // --- the dead, and those that stand still ---------------------------------------------------

    /// Whether it is time to look for dead participants; needs no lock.
    pub(super) fn is_watch_due(&self, real_ns: u64) -> bool {
        real_ns >= self.watch_ns.load(LOCKED)
    }

    /// Forgets participants that have died, among those that are asked for.
    fn forget_dead(&self, asked: impl Fn(&ParticipantWords) -> bool) {
        for (slot, participant) in self.participants().iter().enumerate() {
            if participant.state.load(Ordering::Acquire) != FREE
                && asked(participant)
                && !(participant.identity().is_alive()
                    && process::has_thread(&participant.identity(), participant.tid.load(LOCKED)))
            {
                self.leave(slot);
            }
        }
    }

    /// Looks after participants that keep time standing still: the dead are forgotten, and one that has made no progress
    /// for too long is taken for away. The caller has let the board forget dead processes.
    pub(super) fn watch(&self, state: &mut WorkState, now: &AtomicU64, real_ns: u64) -> Woken {
        self.watch_ns.store(real_ns + WATCH_NS, LOCKED);
        self.forget_dead(ParticipantWords::runs);
        let steps = self.steps.load(LOCKED);
        let got_on = steps != self.seen_steps.load(LOCKED);
        if got_on {
            self.seen_steps.store(steps, LOCKED);
            self.seen_ns.store(real_ns, LOCKED);
            self.asleep_since_ns.store(real_ns, LOCKED);
        }
        let stalled = real_ns.saturating_sub(self.seen_ns.load(LOCKED));
        if self.expects_more() {
            // Programs may take their time to start.
            if stalled >= EXPECTED_NS && self.expected.load(LOCKED) != u32::MAX {
                self.expected.store(0, LOCKED);
                self.stalls.store(self.stalls.load(LOCKED) + 1, LOCKED);
            }
            return self.go_on(state, now, None);
        }
        if !self.any_participant_runs() {
            return self.go_on(state, now, None);
        }
        let switches = self.asleep();
        let same = switches == Some(self.switches.load(LOCKED));
        self.switches.store(switches.unwrap_or(0), LOCKED);
        if got_on {
            return Woken::default();
        }
        if !same {
            self.asleep_since_ns.store(real_ns, LOCKED);
        }
        let asleep = real_ns.saturating_sub(self.asleep_since_ns.load(LOCKED));
        if asleep >= ASLEEP_NS {
            self.take_for_away(&self.sleepers);
        } else if stalled >= STALLED_NS {
            self.take_for_away(&self.stalls);
        } else if asleep > WATCH_NS {
            // It may wait for one that could go on at this moment.
            let now_ns = now.load(Ordering::SeqCst);
            state.advance(now_ns);
            return self
                .first_that_can(state, now_ns)
                .map_or_else(Woken::default, |slot| self.let_go(slot));
        }
        self.go_on(state, now, None)
    }

    fn take_for_away(&self, counter: &AtomicU64) {
        for participant in self.participants() {
            if participant.runs() {
                participant.state.store(LOST, Ordering::Release);
                self.changed();
                self.step();
                counter.store(counter.load(LOCKED) + 1, LOCKED);
            }
        }
    }

    /// How often the running participants have given up the processor, when all of them sleep.
    fn asleep(&self) -> Option<u64> {
        self.participants()
            .iter()
            .filter(|participant| participant.runs())
            .map(|participant| {
                process::sleeping(participant.pid.load(LOCKED), participant.tid.load(LOCKED))
            })
            .sum()
    }
}
