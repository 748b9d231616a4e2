//! The work of a board's GPUs, as a value: channels with queues of work, processes that take
//! turns, and the moment at which each thing is done.
//!
//! Exact and lazy: [`WorkState::advance`] plays everything that happens up to a moment, in order of
//! time, whichever process calls it. Pure: no clock, no lock, no system call; the same bytes in every process.
//! It is written so that a process killed between any two of its stores leaves queues that can be
//! read: an item is written before the tail that shows it, and only derived words are rebuilt by
//! [`WorkState::repair`].
//!
//! The model. A channel is a stream: its items run in order. The kernels of one process run side by
//! side, each at full speed; processes share a GPU in slices, as [`crate::slices`] says. Copies have engines of their
//! own and take no turn. Under MPS the kernels of all processes run side by side.

mod channels;
mod events;
mod processes;
mod time;
mod turns;
mod utilisation;

use crate::figures::{Credit, Figures};
use crate::process::Identity;
use crate::slices::{Emptied, Order, Rules};

/// GPUs on a board.
pub const MAX_DEVICES: usize = 16;
/// Processes that work on a board, alive or not yet forgotten.
pub(super) const MAX_PROCESSES: usize = 256;
/// Streams on a board.
pub(super) const MAX_CHANNELS: usize = 2048;
/// Items in a channel's queue; a launch into a full one waits, as in the real driver.
pub const DEPTH: usize = 1024;
/// Events on a board.
pub(super) const MAX_EVENTS: usize = 1 << 17;
/// Samples kept for each GPU.
pub(super) const SAMPLES: usize = 1024;
/// Stretches of work kept for each GPU: which process held it, from when to when.
pub const STRETCHES: usize = 1 << 16;

const NO_PROCESS: u32 = u32::MAX;

/// A piece of work, as it is handed to a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Takes the GPU for so long.
    Kernel {
        /// Nanoseconds alone on the GPU.
        ns: u64,
    },
    /// Takes the GPU until `parties` of the same key have run, then for `ns` more.
    Rendezvous {
        /// Which kernels meet.
        key: u64,
        /// How many it takes.
        parties: u32,
        /// Nanoseconds after they met.
        ns: u64,
    },
    /// Takes the GPU until its owner releases it, then for `ns` more.
    Spin {
        /// The owner's name for it.
        token: u64,
        /// Nanoseconds after its release.
        ns: u64,
    },
    /// Takes a copy engine.
    Copy {
        /// Nanoseconds from its start.
        ns: u64,
    },
    /// Stops the channel until its owner has done something and releases it.
    Host {
        /// The owner's name for it.
        token: u64,
    },
    /// Stops the channel until its owner has seen a condition hold and releases it. Other than with
    /// [`Work::Host`] no process is about to act, so a jumping clock goes on.
    Poll {
        /// The owner's name for it.
        token: u64,
    },
    /// Writes down the time.
    Record {
        /// The event's index.
        event: u32,
        /// Which record of it.
        number: u64,
    },
    /// Stops the channel until an event's record is done.
    WaitEvent {
        /// The event's index.
        event: u32,
        /// The event's generation; a freed event stops no channel.
        generation: u32,
        /// Which record of it.
        number: u64,
    },
    /// Stops the channel until another channel has come past a place.
    WaitChannel {
        /// The place.
        place: Position,
    },
}

/// A place in a channel's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Position {
    /// The channel's index.
    pub channel: u32,
    /// The channel's generation: a closed one is past every place.
    pub generation: u32,
    /// Counted from the channel's beginning.
    pub sequence: u64,
}

const NOWHERE: Position = Position {
    channel: 0,
    generation: 0,
    sequence: 0,
};

const KIND_KERNEL: u32 = 1;
const KIND_RENDEZVOUS: u32 = 2;
const KIND_SPIN: u32 = 3;
const KIND_COPY: u32 = 4;
const KIND_HOST: u32 = 5;
const KIND_RECORD: u32 = 6;
const KIND_WAIT_EVENT: u32 = 7;
const KIND_WAIT_CHANNEL: u32 = 8;
const KIND_POLL: u32 = 9;

const FLAG_ARRIVED: u32 = 1;
const FLAG_RELEASED: u32 = 2;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Item {
    kind: u32,
    flags: u32,
    target: u32,
    extra: u32,
    number: u64,
    ns: u64,
    key: u64,
    end_ns: u64,
    reserved: [u64; 2],
}

impl Item {
    fn of(work: Work) -> Self {
        let mut item = Self {
            kind: KIND_KERNEL,
            flags: 0,
            target: 0,
            extra: 0,
            number: 0,
            ns: 0,
            key: 0,
            end_ns: 0,
            reserved: [0; 2],
        };
        match work {
            Work::Kernel { ns } => item.ns = ns,
            Work::Rendezvous { key, parties, ns } => {
                item.kind = KIND_RENDEZVOUS;
                (item.key, item.extra, item.ns) = (key, parties, ns);
            }
            Work::Spin { token, ns } => {
                item.kind = KIND_SPIN;
                (item.key, item.ns) = (token, ns);
            }
            Work::Copy { ns } => (item.kind, item.ns) = (KIND_COPY, ns),
            Work::Host { token } => (item.kind, item.key) = (KIND_HOST, token),
            Work::Poll { token } => (item.kind, item.key) = (KIND_POLL, token),
            Work::Record { event, number } => {
                item.kind = KIND_RECORD;
                (item.target, item.number) = (event, number);
            }
            Work::WaitEvent {
                event,
                generation,
                number,
            } => {
                item.kind = KIND_WAIT_EVENT;
                (item.target, item.extra, item.number) = (event, generation, number);
            }
            Work::WaitChannel { place } => {
                item.kind = KIND_WAIT_CHANNEL;
                (item.target, item.extra) = (place.channel, place.generation);
                item.number = place.sequence;
            }
        }
        item
    }

    fn on_gpu(&self) -> bool {
        matches!(self.kind, KIND_KERNEL | KIND_RENDEZVOUS | KIND_SPIN)
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// Work whose owner has to act: its channel stands at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Where it stands.
    pub place: Position,
    /// The owner's name for it.
    pub token: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Channel {
    /// 0 free, 1 open, 2 closing: free once empty.
    state: u32,
    process: u32,
    device: u32,
    generation: u32,
    head: u64,
    tail: u64,
    last_wait: Position,
    reserved: [u64; 2],
}

const FREE: u32 = 0;
const OPEN: u32 = 1;
const CLOSING: u32 = 2;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Event {
    process: u32, // owner + 1; 0 is free, so that a zeroed table is an empty one
    generation: u32,
    recorded: u64,
    done: u64,
    time_ns: u64,
    last: Position,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Usage {
    busy_ns: u64,
    copy_ns: u64,
    sampled_busy_ns: u64,
    sampled_copy_ns: u64,
    kernels: u64,
    copies: u64,
    /// Number of its last stretch of work, counted from 1; 0 is none.
    stretch: u64,
    /// Its run time in the order by run time (the process that has run least is first), nanoseconds.
    ran_ns: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ProcessWork {
    /// 0 never used, 1 alive, 2 dead and remembered.
    state: u32,
    reserved: u32,
    identity: Identity,
    usage: [Usage; MAX_DEVICES],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct RawSample {
    time_ns: u64,
    pid: u32,
    sm_percent: u16,
    memory_percent: u16,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DeviceWork {
    holder: u32, // of the slice: process + 1; 0 is none
    last: u32,   // holder of the slice before: process + 1; 0 is none
    slice_from_ns: u64,
    slice_end_ns: u64,
    slice_ran_ns: u64,
    slice_reached_ns: u64,
    /// Of the sampling period and of the slice, at once: what a wrong figure credits to the next process.
    slice_busy_ns: u64,
    /// 1: this period's figures have their error.
    is_credited_wrongly: u64,
    busy_ns: u64,
    copy_ns: u64,
    sampled_busy_ns: u64,
    sampled_copy_ns: u64,
    samples: [RawSample; SAMPLES],
    sample_count: u64,
    totals: [RawSample; 128],
    total_count: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct RawStretch {
    from_ns: u64,
    to_ns: u64,
    process: u32,
    pid: u32,
}

#[repr(C)]
#[derive(Debug)]
struct Log {
    count: u64,
    /// The end of the latest stretch that was overwritten.
    forgotten_until_ns: u64,
    ring: [RawStretch; STRETCHES],
}

/// A process's unbroken hold of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyStretch {
    /// As the process saw itself.
    pub pid: u32,
    /// When it began, on the board's clock.
    pub from_ns: u64,
    /// When it ended, or until when it has been played.
    pub to_ns: u64,
}

/// One process on the board, as the truth has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessTruth {
    /// As the process saw itself.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`.
    pub start_time: u64,
    /// Dead ones are remembered until their room is needed.
    pub alive: bool,
    /// Nanoseconds in which a kernel of it held the GPU.
    pub busy_ns: u64,
    /// Nanoseconds in which a copy of it ran.
    pub copy_ns: u64,
    /// Kernels that it finished.
    pub kernels: u64,
    /// Copies that it finished.
    pub copies: u64,
}

/// One process's use of a GPU during one sampling period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UtilizationSample {
    /// The process; 0 when the sample is of all together.
    pub pid: u32,
    /// When the period ended, on the board's clock.
    pub time_ns: u64,
    /// Percent of the period in which a kernel ran.
    pub sm_percent: u32,
    /// Percent of the period in which a copy ran.
    pub memory_percent: u32,
}

impl From<RawSample> for UtilizationSample {
    fn from(raw: RawSample) -> Self {
        Self {
            pid: raw.pid,
            time_ns: raw.time_ns,
            sm_percent: raw.sm_percent.into(),
            memory_percent: raw.memory_percent.into(),
        }
    }
}

/// The board's work. A zeroed one, started, is an idle board.
#[repr(C)]
#[derive(Debug)]
pub(super) struct WorkState {
    time_ns: u64,
    next_sample_ns: u64,
    slice_ns: u64,
    switch_ns: u64,
    /// 1: the process that has run least is first, instead of round robin.
    least_run_first: u64,
    /// 1: a slice lasts until its end although its process has nothing to run.
    keeps_slices: u64,
    sample_ns: u64,
    /// 1: in each period one slice is credited to the next process.
    credits_next: u64,
    /// A [`crate::figures::Rounding`].
    rounding: u64,
    processes_used: u64,
    events_used: u64,
    event_hint: u64,
    started_ns: u64,
    /// Devices that ever had a channel: the others need no look.
    devices_used: u64,
    /// 1: the kernels of all processes run side by side.
    mps: u64,
    /// How long after its period a sample can be read.
    lag_ns: u64,
    /// Channels at or above this index were never open: the others need no look.
    channels_used: u64,
    /// Which channels have work: derived from heads and tails.
    busy: [u64; MAX_CHANNELS / 64],
    devices: [DeviceWork; MAX_DEVICES],
    processes: [ProcessWork; MAX_PROCESSES],
    channels: [Channel; MAX_CHANNELS],
    events: [Event; MAX_EVENTS],
    rings: [[Item; DEPTH]; MAX_CHANNELS],
    logs: [Log; MAX_DEVICES],
}

/// The settings that a board is started with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    /// How processes divide a GPU's time.
    pub(super) slices: Rules,
    /// How often utilisation is written down, how much later it can be read, and what is wrong with it.
    pub(super) figures: Figures,
    /// Whether the kernels of all processes run side by side.
    pub(super) mps: bool,
}

impl WorkState {
    /// Begins the board's life at `now_ns`.
    pub(super) fn start(&mut self, now_ns: u64, settings: Settings) {
        self.time_ns = now_ns;
        self.started_ns = now_ns;
        let Settings {
            slices, figures, ..
        } = settings;
        self.slice_ns = slices.slice_ns.max(1);
        self.switch_ns = slices.switch_ns;
        self.least_run_first = (slices.order == Order::LeastRun).into();
        self.keeps_slices = (slices.emptied == Emptied::Kept).into();
        self.sample_ns = figures.sample_ns.max(1);
        self.lag_ns = figures.lag_ns;
        self.credits_next = (figures.credit == Credit::NextProcess).into();
        self.rounding = figures.rounding.number();
        self.mps = settings.mps.into();
        self.next_sample_ns = self.sample_after(now_ns);
    }

    /// Brings derived words back in line after a process died while it wrote.
    pub(super) fn repair(&mut self) {
        self.busy = [0; MAX_CHANNELS / 64];
        for index in 0..MAX_CHANNELS {
            let channel = &mut self.channels[index];
            if channel.tail < channel.head || channel.tail - channel.head > DEPTH as u64 {
                channel.tail = channel.head;
            }
            if channel.state != FREE && channel.head != channel.tail {
                self.busy[index / 64] |= 1 << (index % 64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn board() -> Box<WorkState> {
        // SAFETY: a zeroed State is an idle board: it holds only integers.
        let mut state = unsafe { Box::<WorkState>::new_zeroed().assume_init() };
        state.start(1000 * MS, settings(""));
        state
    }

    /// The settings of a script, on top of slices of 2 ms and samples of 100 ms.
    fn settings(script: &str) -> Settings {
        let script = format!("slice 2ms\nsample 100ms\n{script}");
        let script = crate::script::Script::parse(&script).unwrap();
        Settings {
            slices: script.slices,
            figures: script.figures,
            mps: false,
        }
    }

    fn board_with(script: &str) -> Box<WorkState> {
        let mut state = board();
        state.start(1000 * MS, settings(script));
        state
    }

    fn program(pid: u32) -> Identity {
        let mut identity = Identity::default();
        identity.pid = pid;
        identity
    }

    fn since_start(ns: u64) -> u64 {
        1000 * MS + ns
    }

    fn stream(state: &mut WorkState, process: u32) -> u32 {
        state.open_channel(process, 0).unwrap().0
    }

    fn kernel(ms: u64) -> Work {
        Work::Kernel { ns: ms * MS }
    }

    fn record(state: &mut WorkState, channel: u32, process: u32) -> u32 {
        let (event, _) = state.open_event(process).unwrap();
        let number = state.next_record(event);
        state
            .submit(channel, Work::Record { event, number })
            .unwrap();
        event
    }

    #[test]
    fn kernels_of_a_stream_run_one_after_the_other() {
        let mut state = board();
        let process = state.join(program(1)).unwrap();
        let channel = stream(&mut state, process);
        state.submit(channel, kernel(3)).unwrap();
        let first = record(&mut state, channel, process);
        state.submit(channel, kernel(4)).unwrap();
        let second = record(&mut state, channel, process);

        state.advance(since_start(100 * MS));

        assert_eq!(state.event_time_ns(first), since_start(3 * MS));
        assert_eq!(state.event_time_ns(second), since_start(7 * MS));
        assert_eq!(state.truth(0)[0].busy_ns, 7 * MS);
        assert_eq!(state.truth(0)[0].kernels, 2);
    }

    #[test]
    fn streams_of_a_process_run_side_by_side() {
        let mut state = board();
        let process = state.join(program(1)).unwrap();
        let channels = [stream(&mut state, process), stream(&mut state, process)];
        for channel in channels {
            state.submit(channel, kernel(5)).unwrap();
        }

        state.advance(since_start(5 * MS));

        assert!(channels.iter().all(|&channel| state.queued(channel) == 0));
        assert_eq!(state.truth(0)[0].busy_ns, 5 * MS);
    }

    #[test]
    fn processes_take_turns_of_a_slice() {
        let mut state = board();
        let processes = [
            state.join(program(1)).unwrap(),
            state.join(program(2)).unwrap(),
        ];
        let channels = processes.map(|process| stream(&mut state, process));
        for channel in channels {
            state.submit(channel, kernel(6)).unwrap();
        }
        let ends = [0, 1].map(|i| record(&mut state, channels[i], processes[i]));

        state.advance(since_start(5 * MS));
        let busy: Vec<u64> = state.truth(0).iter().map(|truth| truth.busy_ns).collect();
        state.advance(since_start(50 * MS));

        assert_eq!(busy, [3 * MS, 2 * MS]);
        assert_eq!(
            ends.map(|event| state.event_time_ns(event)),
            [10, 12].map(|ms| since_start(ms * MS))
        );
    }

    #[test]
    fn a_process_without_work_loses_its_turn_at_once() {
        let mut state = board();
        let processes = [
            state.join(program(1)).unwrap(),
            state.join(program(2)).unwrap(),
        ];
        let channels = processes.map(|process| stream(&mut state, process));
        state.submit(channels[0], Work::Kernel { ns: 100 }).unwrap();
        state.submit(channels[1], Work::Kernel { ns: 100 }).unwrap();
        let end = record(&mut state, channels[1], processes[1]);

        state.advance(since_start(MS));

        assert_eq!(state.event_time_ns(end), since_start(200));
    }

    /// Two processes, one with kernels of 1 ms that never end, one with a kernel of 1 ms each 5 ms, for 100 ms: what each
    /// ran, and what NVML tells of each.
    fn greedy_and_modest(script: &str) -> ([u64; 2], [u32; 2]) {
        let mut state = board_with(script);
        let processes = [1, 2].map(|pid| state.join(program(pid)).unwrap());
        let channels = processes.map(|process| stream(&mut state, process));
        for _ in 0..200 {
            state.submit(channels[0], kernel(1)).unwrap();
        }
        for begin in 0..20 {
            state.advance(since_start(begin * 5 * MS));
            state.submit(channels[1], kernel(1)).unwrap();
        }
        state.advance(since_start(100 * MS));
        let busy = state.truth(0).into_iter().map(|truth| truth.busy_ns / MS);
        let busy: Vec<u64> = busy.collect();
        let told = |pid| {
            let samples = state.process_utilization(0, 0);
            let own = samples.iter().find(|sample| sample.pid == pid);
            own.map_or(0, |sample| sample.sm_percent)
        };
        (busy.try_into().unwrap(), [told(1), told(2)])
    }

    #[test]
    fn each_setting_of_slices_gives_another_division() {
        // Each look is before the modest process's next kernel, so the greedy one's slice has begun.
        let given_up = greedy_and_modest("").0;
        let kept = greedy_and_modest("slice empty kept").0;
        let switching = greedy_and_modest("slice switch 500us").0;

        assert_eq!(given_up, [80, 20]);
        assert_eq!(kept[1], 20);
        assert!(kept[0] <= 60, "{kept:?}");
        assert_eq!(switching, [60, 20]);
    }

    #[test]
    fn figures_that_are_wrong_by_a_slice_are_wrong_by_one_in_each_period() {
        let (busy, told) = greedy_and_modest("nvml credit next");

        assert_eq!(busy, [80, 20]);
        assert_eq!(told.iter().sum::<u32>(), 100);
        let error = told[1].abs_diff(20);
        assert!((1..=4).contains(&error), "{told:?}");
    }

    #[test]
    fn figures_are_rounded_as_the_board_says() {
        let told = |script: &str| {
            let mut state = board_with(script);
            let process = state.join(program(1)).unwrap();
            let channel = stream(&mut state, process);
            let work = Work::Kernel { ns: 10_400_000 };
            state.submit(channel, work).unwrap();
            state.advance(since_start(100 * MS));
            state.process_utilization(0, 0)[0].sm_percent
        };

        assert_eq!(
            ["", "nvml round nearest", "nvml round up"].map(told),
            [10, 10, 11]
        );
    }

    #[test]
    fn how_often_one_looks_changes_nothing_on_any_board() {
        for script in [
            "",
            "slice order least-run",
            "slice empty kept",
            "slice switch 300us",
            "slice 500us\nslice order least-run\nslice empty kept\nslice switch 50us\nnvml credit next",
        ] {
            let runs = [1, 7, 1000].map(|steps| {
                let mut state = board_with(script);
                let processes = [1, 2].map(|pid| state.join(program(pid)).unwrap());
                let channels = processes.map(|process| stream(&mut state, process));
                for i in 0..40_u64 {
                    let at_ns = i * 1_700_000;
                    for step in 1..=steps {
                        state.advance(since_start(
                            at_ns.saturating_sub(1_700_000) + step * 1_700_000 / steps,
                        ));
                    }
                    let ns = 100_000 + i * 37_919;
                    state.submit(channels[0], Work::Kernel { ns }).unwrap();
                    if i % 3 == 0 {
                        let ns = 2_300_000 - i * 10_007;
                        state.submit(channels[1], Work::Kernel { ns }).unwrap();
                    }
                }
                let ends = [0, 1].map(|i| record(&mut state, channels[i], processes[i]));
                state.advance(since_start(400 * MS));
                let busy: Vec<u64> = state.truth(0).iter().map(|truth| truth.busy_ns).collect();
                let told = state.process_utilization(0, 0);
                (ends.map(|event| state.event_time_ns(event)), busy, told)
            });
            assert_eq!(runs[0], runs[1], "{script}");
            assert_eq!(runs[0], runs[2], "{script}");
        }
    }

    #[test]
    fn a_stream_waits_for_another_streams_event() {
        let mut state = board();
        let process = state.join(program(1)).unwrap();
        let (first, second) = (stream(&mut state, process), stream(&mut state, process));
        state.submit(first, kernel(3)).unwrap();
        let (event, generation) = state.open_event(process).unwrap();
        let number = state.next_record(event);
        state.submit(first, Work::Record { event, number }).unwrap();
        state
            .submit(
                second,
                Work::WaitEvent {
                    event,
                    generation,
                    number,
                },
            )
            .unwrap();
        state.submit(second, kernel(1)).unwrap();
        let end = record(&mut state, second, process);

        assert_eq!(state.at_least_ns(state.event_place(end)), 4 * MS);
        state.advance(since_start(10 * MS));

        assert_eq!(state.event_time_ns(end), since_start(4 * MS));
    }

    #[test]
    fn ranks_that_wait_for_each_other_meet_although_they_take_turns() {
        let mut state = board();
        let processes = [
            state.join(program(1)).unwrap(),
            state.join(program(2)).unwrap(),
        ];
        let channels = processes.map(|process| stream(&mut state, process));
        let work = Work::Rendezvous {
            key: 7,
            parties: 2,
            ns: MS,
        };
        state.submit(channels[0], work).unwrap();
        state.advance(since_start(10 * MS));
        assert_eq!(state.queued(channels[0]), 1);
        assert_eq!(state.truth(0)[0].busy_ns, 10 * MS);

        state.submit(channels[1], work).unwrap();
        state.advance(since_start(30 * MS));

        assert!(channels.iter().all(|&channel| state.queued(channel) == 0));
    }

    #[test]
    fn a_kernel_spins_until_its_owner_releases_it() {
        let mut state = board();
        let process = state.join(program(1)).unwrap();
        let channel = stream(&mut state, process);
        state
            .submit(channel, Work::Spin { token: 9, ns: MS })
            .unwrap();
        state.advance(since_start(5 * MS));
        let waiting = state.waiting(process);
        assert_eq!(
            waiting
                .iter()
                .map(|waiting| waiting.token)
                .collect::<Vec<_>>(),
            [9]
        );

        state.release(waiting[0].place);
        state.advance(since_start(7 * MS));

        assert_eq!(state.queued(channel), 0);
        assert_eq!(state.truth(0)[0].busy_ns, 6 * MS);
    }

    #[test]
    fn host_work_stops_its_stream_and_leaves_the_gpu_to_others() {
        let mut state = board();
        let process = state.join(program(1)).unwrap();
        let channel = stream(&mut state, process);
        state.submit(channel, Work::Host { token: 1 }).unwrap();
        state.submit(channel, kernel(1)).unwrap();
        state.advance(since_start(5 * MS));
        assert_eq!(state.truth(0)[0].busy_ns, 0);

        state.release(state.waiting(process)[0].place);
        state.advance(since_start(6 * MS));

        assert_eq!(state.queued(channel), 0);
    }

    #[test]
    fn under_mps_the_kernels_of_all_processes_run_side_by_side() {
        let mut state = board();
        state.mps = 1;
        for pid in 0..2 {
            let process = state.join(program(pid)).unwrap();
            let channel = stream(&mut state, process);
            state.submit(channel, kernel(10)).unwrap();
        }

        state.advance(1006 * MS);

        let busy: Vec<_> = state.truth(0).iter().map(|one| one.busy_ns).collect();
        assert_eq!(busy, [6 * MS, 6 * MS]);
        assert_eq!(state.device_busy_ns(0), 6 * MS);
        let held = state.stretches(0, 1001 * MS, 1005 * MS).unwrap();
        assert_eq!(held.len(), 2);
        assert!(held.iter().all(|one| one.to_ns - one.from_ns == 4 * MS));
        state.advance(1010 * MS);
        assert!(state.truth(0).iter().all(|one| one.kernels == 1));
    }

    #[test]
    fn what_is_forgotten_is_not_told() {
        let mut state = board();
        let process = state.join(program(1)).unwrap();
        let channel = stream(&mut state, process);
        for _ in 0..=STRETCHES {
            state.submit(channel, Work::Kernel { ns: 1 }).unwrap();
            let now_ns = state.time_ns;
            state.advance(now_ns + 2);
        }
        let (begin, end) = (1000 * MS, state.time_ns);

        assert_eq!(state.stretches(0, begin, end), None);
        let kept = state.stretches(0, begin + 1, end).unwrap();
        assert_eq!(kept.len(), STRETCHES);
    }

    #[test]
    fn a_lagging_sample_is_told_late() {
        let mut state = board();
        state.lag_ns = 50 * MS;
        let process = state.join(program(1)).unwrap();
        let channel = stream(&mut state, process);
        state.submit(channel, kernel(30)).unwrap();

        state.advance(1149 * MS);
        assert_eq!(state.process_utilization(0, 0), []);
        assert_eq!(state.device_utilization(0).sm_percent, 0);
        state.advance(1150 * MS);

        assert_eq!(state.process_utilization(0, 0)[0].sm_percent, 30);
        assert_eq!(state.device_utilization(0).sm_percent, 30);
    }

    #[test]
    fn a_full_queue_takes_no_more() {
        let mut state = board();
        let process = state.join(program(1)).unwrap();
        let channel = stream(&mut state, process);
        for _ in 0..DEPTH {
            state.submit(channel, kernel(1)).unwrap();
        }
        assert_eq!(state.submit(channel, kernel(1)), None);

        state.advance(since_start(MS));

        assert!(state.submit(channel, kernel(1)).is_some());
    }

    #[test]
    fn the_dead_lose_their_queues_and_keep_what_they_used() {
        let mut state = board();
        let processes = [
            state.join(program(1)).unwrap(),
            state.join(program(2)).unwrap(),
        ];
        let channels = processes.map(|process| stream(&mut state, process));
        for channel in channels {
            state.submit(channel, kernel(20)).unwrap();
        }
        state.advance(since_start(4 * MS));

        state.reap(|identity| identity.pid != 1);
        state.advance(since_start(10 * MS));

        let truth = state.truth(0);
        assert_eq!((truth[0].alive, truth[0].busy_ns), (false, 2 * MS));
        assert_eq!((truth[1].alive, truth[1].busy_ns), (true, 8 * MS));
    }

    #[test]
    fn copies_run_beside_kernels() {
        let mut state = board();
        let process = state.join(program(1)).unwrap();
        let (first, second) = (stream(&mut state, process), stream(&mut state, process));
        state.submit(first, kernel(4)).unwrap();
        state.submit(second, Work::Copy { ns: 3 * MS }).unwrap();
        let end = record(&mut state, second, process);

        state.advance(since_start(10 * MS));

        assert_eq!(state.event_time_ns(end), since_start(3 * MS));
        let truth = state.truth(0)[0];
        assert_eq!((truth.busy_ns, truth.copy_ns), (4 * MS, 3 * MS));
    }

    #[test]
    fn utilisation_is_written_down_once_a_period() {
        let mut state = board();
        let processes = [
            state.join(program(11)).unwrap(),
            state.join(program(22)).unwrap(),
        ];
        let channels = processes.map(|process| stream(&mut state, process));
        state.submit(channels[0], kernel(30)).unwrap();
        state.submit(channels[1], kernel(20)).unwrap();

        state.advance(since_start(99 * MS));
        assert_eq!(state.process_utilization(0, 0), []);
        state.advance(since_start(150 * MS));

        let samples = state.process_utilization(0, 0);
        let seen: Vec<_> = samples
            .iter()
            .map(|sample| (sample.pid, sample.sm_percent))
            .collect();
        assert_eq!(seen, [(11, 30), (22, 20)]);
        assert_eq!(state.device_utilization(0).sm_percent, 50);
        state.advance(since_start(250 * MS));
        assert_eq!(state.device_utilization(0).sm_percent, 0);
        assert_eq!(state.process_utilization(0, since_start(100 * MS)), []);
    }

    #[test]
    fn how_often_one_looks_changes_nothing() {
        let ends = [1, 7, 1000].map(|steps| {
            let mut state = board();
            let processes = [
                state.join(program(1)).unwrap(),
                state.join(program(2)).unwrap(),
            ];
            let channels = processes.map(|process| stream(&mut state, process));
            for i in 0..50_u64 {
                state
                    .submit(
                        channels[0],
                        Work::Kernel {
                            ns: 100_000 + i * 7_919,
                        },
                    )
                    .unwrap();
                state
                    .submit(
                        channels[1],
                        Work::Kernel {
                            ns: 1_300_000 - i * 10_007,
                        },
                    )
                    .unwrap();
            }
            let ends = [0, 1].map(|i| record(&mut state, channels[i], processes[i]));
            for step in 1..=steps {
                state.advance(since_start(step * 200 * MS / steps));
            }
            let busy: Vec<u64> = state.truth(0).iter().map(|truth| truth.busy_ns).collect();
            (ends.map(|event| state.event_time_ns(event)), busy)
        });
        assert_eq!(ends[0], ends[1]);
        assert_eq!(ends[0], ends[2]);
    }

    #[test]
    fn a_closed_stream_finishes_its_work_and_is_then_free() {
        let mut state = board();
        let process = state.join(program(1)).unwrap();
        let channel = stream(&mut state, process);
        let place = state.submit(channel, kernel(1)).unwrap();
        state.close_channel(channel);
        assert!(!state.is_past(place));

        state.advance(since_start(MS));

        assert!(state.is_past(place));
        assert_eq!(state.truth(0)[0].busy_ns, MS);
        assert_eq!(stream(&mut state, process), channel);
    }
}
