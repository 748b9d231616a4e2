//! What the GPUs of a board do, as a value: channels with queues of work, processes that take
//! turns, and the moment at which each thing is done.
//!
//! Exact and lazy: [`State::advance`] plays everything that happens up to a moment, in order of
//! time, whoever calls it. Pure: no clock, no lock, no system call; the same bytes in every process.
//! It is written so that a process killed between any two of its stores leaves queues that can be
//! read: an item is written before the tail that shows it, and only derived words are rebuilt by
//! [`State::repair`].
//!
//! The model. A channel is a stream: its items run in order. The kernels of one process run side by
//! side, each at full speed; processes share a GPU in turns of a slice, round robin among those
//! that have a kernel to run, and an idle one loses its turn at once. Copies have engines of their
//! own and take no turn. Under MPS the kernels of all processes run side by side.

use crate::process::Identity;

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
/// Stretches of work kept for each GPU: who held it, from when to when.
pub const STRETCHES: usize = 1 << 16;

const NOBODY: u32 = u32::MAX;

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
    /// [`Work::Host`] nobody is about to act, so a jumping clock goes on.
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
        /// The event's generation; a freed event stops nobody.
        generation: u32,
        /// Which record of it.
        number: u64,
    },
    /// Stops the channel until another channel has come past a place.
    WaitChannel {
        /// The place.
        place: Place,
    },
}

/// A place in a channel's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Place {
    /// The channel's index.
    pub channel: u32,
    /// The channel's generation: a closed one is past every place.
    pub generation: u32,
    /// Counted from the channel's beginning.
    pub sequence: u64,
}

const NOWHERE: Place = Place {
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
    pub place: Place,
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
    last_wait: Place,
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
    last: Place,
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
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Process {
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
struct Device {
    current: u32, // process + 1; 0 is nobody
    reserved: u32,
    slice_end_ns: u64,
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
pub(super) struct State {
    time_ns: u64,
    next_sample_ns: u64,
    slice_ns: u64,
    sample_ns: u64,
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
    reserved: [u64; 5],
    /// Which channels have work: derived from heads and tails.
    busy: [u64; MAX_CHANNELS / 64],
    devices: [Device; MAX_DEVICES],
    processes: [Process; MAX_PROCESSES],
    channels: [Channel; MAX_CHANNELS],
    events: [Event; MAX_EVENTS],
    rings: [[Item; DEPTH]; MAX_CHANNELS],
    logs: [Log; MAX_DEVICES],
}

/// What a board is started with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    /// How long a process keeps a GPU while another one waits for it.
    pub(super) slice_ns: u64,
    /// How often utilisation is written down, and how much later it can be read.
    pub(super) sample_ns: u64,
    pub(super) lag_ns: u64,
    /// Whether the kernels of all processes run side by side.
    pub(super) mps: bool,
}

impl State {
    /// Begins the board's life at `now_ns`.
    pub(super) fn start(&mut self, now_ns: u64, settings: Settings) {
        self.time_ns = now_ns;
        self.started_ns = now_ns;
        self.slice_ns = settings.slice_ns.max(1);
        self.sample_ns = settings.sample_ns.max(1);
        self.lag_ns = settings.lag_ns;
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

    // --- processes -------------------------------------------------------------------------

    /// Gives a process its place; `None` when there is no room.
    pub(super) fn join(&mut self, identity: Identity) -> Option<u32> {
        let free = (0..MAX_PROCESSES)
            .find(|&i| self.processes[i].state == 0)
            .or_else(|| (0..MAX_PROCESSES).find(|&i| self.processes[i].state == 2))?;
        let zero = Usage {
            busy_ns: 0,
            copy_ns: 0,
            sampled_busy_ns: 0,
            sampled_copy_ns: 0,
            kernels: 0,
            copies: 0,
            stretch: 0,
        };
        let usage = [zero; MAX_DEVICES];
        self.processes[free] = Process {
            state: 1,
            reserved: 0,
            identity,
            usage,
        };
        self.processes_used = self.processes_used.max(free as u64 + 1);
        Some(free as u32)
    }

    /// Drops what a process has queued; what it used is remembered.
    pub(super) fn leave(&mut self, process: u32) {
        for index in 0..MAX_CHANNELS {
            if self.channels[index].state != FREE && self.channels[index].process == process {
                self.drop_channel(index);
            }
        }
        for index in 0..self.events_used as usize {
            if self.events[index].process == process + 1 {
                self.events[index].process = 0;
            }
        }
        if let Some(process) = self.processes.get_mut(process as usize) {
            process.state = 2;
        }
    }

    /// Looks for processes that are gone, and lets them leave.
    pub(super) fn reap(&mut self, is_alive: impl Fn(&Identity) -> bool) {
        for index in 0..self.processes_used as usize {
            let process = &self.processes[index];
            if process.state == 1 && !is_alive(&process.identity) {
                self.leave(index as u32);
            }
        }
    }

    /// The same, but looks only at processes that have work queued: the others hold nobody up.
    pub(super) fn reap_busy(&mut self, is_alive: impl Fn(&Identity) -> bool) {
        let mut looked_at = [0_u64; MAX_PROCESSES / 64];
        let mut from = 0;
        while let Some(index) = self.next_busy(from) {
            from = index + 1;
            let owner = self.channels[index].process as usize;
            if owner >= MAX_PROCESSES || looked_at[owner / 64] >> (owner % 64) & 1 == 1 {
                continue;
            }
            looked_at[owner / 64] |= 1 << (owner % 64);
            let process = &self.processes[owner];
            if !is_alive(&process.identity) {
                self.leave(owner as u32);
            }
        }
    }

    /// What each process did to a device, dead ones included.
    pub(super) fn truth(&self, device: usize) -> Vec<ProcessTruth> {
        let known = &self.processes[..self.processes_used as usize];
        known
            .iter()
            .filter(|process| process.state != 0)
            .map(|process| {
                let usage = &process.usage[device];
                ProcessTruth {
                    pid: process.identity.pid,
                    start_time: process.identity.start_time,
                    alive: process.state == 1,
                    busy_ns: usage.busy_ns,
                    copy_ns: usage.copy_ns,
                    kernels: usage.kernels,
                    copies: usage.copies,
                }
            })
            .collect()
    }

    /// Nanoseconds in which any kernel held the device.
    pub(super) fn device_busy_ns(&self, device: usize) -> u64 {
        self.devices[device].busy_ns
    }

    /// Whether the kernels of all processes run side by side.
    pub(super) fn is_mps(&self) -> bool {
        self.mps != 0
    }

    /// Who held the device between two moments, cut at both, in the order in which each began; `None`
    /// when that is longer ago than what is kept.
    pub(super) fn stretches(
        &self,
        device: usize,
        from_ns: u64,
        to_ns: u64,
    ) -> Option<Vec<BusyStretch>> {
        let log = &self.logs[device];
        if from_ns < log.forgotten_until_ns {
            return None;
        }
        let first = log.count.saturating_sub(STRETCHES as u64);
        Some(
            (first..log.count)
                .map(|count| log.ring[count as usize % STRETCHES])
                .map(|raw| BusyStretch {
                    pid: raw.pid,
                    from_ns: raw.from_ns.max(from_ns),
                    to_ns: raw.to_ns.min(to_ns),
                })
                .filter(|stretch| stretch.from_ns < stretch.to_ns)
                .collect(),
        )
    }

    /// Writes down that a process has held a device from this moment to the next.
    fn held(&mut self, device: usize, process: usize, from_ns: u64, to_ns: u64) {
        let log = &mut self.logs[device];
        let Process {
            identity, usage, ..
        } = &mut self.processes[process];
        let last = &mut usage[device].stretch;
        if *last != 0 && log.count - *last < STRETCHES as u64 {
            let raw = &mut log.ring[(*last - 1) as usize % STRETCHES];
            if raw.to_ns == from_ns && raw.process as usize == process {
                raw.to_ns = to_ns;
                return;
            }
        }
        let slot = log.count as usize % STRETCHES;
        log.forgotten_until_ns = log.forgotten_until_ns.max(log.ring[slot].to_ns);
        log.ring[slot] = RawStretch {
            from_ns,
            to_ns,
            process: process as u32,
            pid: identity.pid,
        };
        log.count += 1;
        *last = log.count;
    }

    // --- channels --------------------------------------------------------------------------

    /// Opens a channel of a process on a device; `None` when there is no room.
    pub(super) fn open_channel(&mut self, process: u32, device: u32) -> Option<(u32, u32)> {
        self.devices_used |= 1_u64
            .checked_shl(device)
            .filter(|_| device < MAX_DEVICES as u32)?;
        let index = (0..MAX_CHANNELS).find(|&i| self.channels[i].state == FREE)?;
        let generation = self.channels[index].generation.wrapping_add(1);
        self.channels[index] = Channel {
            state: OPEN,
            process,
            device,
            generation,
            head: 0,
            tail: 0,
            last_wait: NOWHERE,
            reserved: [0; 2],
        };
        Some((index as u32, generation))
    }

    /// Closes a channel once what it has queued is done.
    pub(super) fn close_channel(&mut self, channel: u32) {
        let channel = &mut self.channels[channel as usize];
        channel.state = if channel.head == channel.tail {
            FREE
        } else {
            CLOSING
        };
    }

    /// Closes a channel and forgets what it has queued, as the end of a context does.
    pub(super) fn drop_channel(&mut self, index: usize) {
        self.busy[index / 64] &= !(1 << (index % 64));
        let channel = &mut self.channels[index];
        channel.state = FREE;
        channel.head = channel.tail;
    }

    /// Puts work at the end of a channel; `None` when 1,024 items wait there.
    pub(super) fn submit(&mut self, index: u32, work: Work) -> Option<Place> {
        let index = index as usize;
        let Channel {
            generation,
            head,
            tail,
            ..
        } = self.channels[index];
        if tail - head >= DEPTH as u64 {
            return None;
        }
        let place = Place {
            channel: index as u32,
            generation,
            sequence: tail,
        };
        if let Work::Record { event, .. } = work
            && let Some(event) = self.events.get_mut(event as usize)
        {
            event.last = place;
        }
        self.rings[index][tail as usize % DEPTH] = Item::of(work);
        self.channels[index].tail = tail + 1;
        self.busy[index / 64] |= 1 << (index % 64);
        Some(place)
    }

    /// Puts work at the end of a channel, after everything that `after` have been given so far;
    /// `None` when there is no room for it and the waits.
    pub(super) fn submit_after(
        &mut self,
        index: u32,
        after: &[(u32, u32)],
        work: Work,
    ) -> Option<Place> {
        let channel = &self.channels[index as usize];
        if channel.tail - channel.head + after.len() as u64 + 1 > DEPTH as u64 {
            return None;
        }
        for &(other, generation) in after {
            let other_channel = &self.channels[other as usize];
            if other == index
                || other_channel.generation != generation
                || other_channel.head == other_channel.tail
            {
                continue;
            }
            let place = Place {
                channel: other,
                generation,
                sequence: other_channel.tail - 1,
            };
            // The same wait twice says nothing: the first one stands before it in the queue.
            if self.channels[index as usize].last_wait != place {
                self.channels[index as usize].last_wait = place;
                self.submit(index, Work::WaitChannel { place })?;
            }
        }
        self.submit(index, work)
    }

    /// Nanoseconds that must at least go by before this process has to act; `None` when nothing
    /// that is queued asks for it.
    pub(super) fn acts_in_ns(&self, process: u32) -> Option<u64> {
        let mut soonest: Option<u64> = None;
        let mut from = 0;
        while let Some(index) = self.next_busy(from) {
            from = index + 1;
            let channel = &self.channels[index];
            if channel.process != process {
                continue;
            }
            let first = (channel.head..channel.tail).find(|&sequence| {
                let item = &self.rings[index][sequence as usize % DEPTH];
                matches!(item.kind, KIND_HOST | KIND_POLL | KIND_SPIN) && !item.has(FLAG_RELEASED)
            });
            if let Some(sequence) = first {
                let generation = channel.generation;
                let place = Place {
                    channel: index as u32,
                    generation,
                    sequence,
                };
                // A spin's own time comes after it was released.
                let own = self.rings[index][sequence as usize % DEPTH].ns;
                let ns = self.at_least_ns(place).saturating_sub(own);
                soonest = Some(soonest.map_or(ns, |soonest| soonest.min(ns)));
            }
        }
        soonest
    }

    /// Where the next item of a channel will stand.
    pub(super) fn end_of(&self, index: u32) -> Place {
        let channel = &self.channels[index as usize];
        Place {
            channel: index,
            generation: channel.generation,
            sequence: channel.tail,
        }
    }

    /// Items that wait in a channel or run at its head.
    pub(super) fn queued(&self, index: u32) -> u64 {
        let channel = &self.channels[index as usize];
        channel.tail - channel.head
    }

    /// Whether the item at a place is done.
    pub(super) fn is_past(&self, place: Place) -> bool {
        let channel = &self.channels[place.channel as usize];
        channel.state == FREE
            || channel.generation != place.generation
            || channel.head > place.sequence
    }

    /// Nanoseconds that must at least go by before the item at a place is done.
    pub(super) fn at_least_ns(&self, place: Place) -> u64 {
        self.at_least(place, 4)
    }

    fn at_least(&self, place: Place, depth: u32) -> u64 {
        if self.is_past(place) {
            return 0;
        }
        let channel = &self.channels[place.channel as usize];
        let ring = &self.rings[place.channel as usize];
        let mut sum = 0_u64;
        for sequence in channel.head..=place.sequence.min(channel.tail.saturating_sub(1)) {
            let item = &ring[sequence as usize % DEPTH];
            let own = match item.kind {
                KIND_COPY if item.has(FLAG_ARRIVED) => item.end_ns.saturating_sub(self.time_ns),
                KIND_KERNEL | KIND_COPY | KIND_RENDEZVOUS | KIND_SPIN => item.ns,
                KIND_WAIT_EVENT if depth > 0 => {
                    let event = &self.events[item.target as usize];
                    if event.generation == item.extra && event.done < item.number {
                        self.at_least(event.last, depth - 1).saturating_sub(sum)
                    } else {
                        0
                    }
                }
                KIND_WAIT_CHANNEL if depth > 0 => {
                    let place = Place {
                        channel: item.target,
                        generation: item.extra,
                        sequence: item.number,
                    };
                    self.at_least(place, depth - 1).saturating_sub(sum)
                }
                _ => 0,
            };
            sum = sum.saturating_add(own);
        }
        sum
    }

    /// Work of a process that stands at the head of its channel until the process acts.
    pub(super) fn waiting(&self, process: u32) -> Vec<Waiting> {
        let mut found = Vec::new();
        let mut from = 0;
        while let Some(index) = self.next_busy(from) {
            from = index + 1;
            let channel = &self.channels[index];
            if channel.process != process {
                continue;
            }
            let item = &self.rings[index][channel.head as usize % DEPTH];
            if matches!(item.kind, KIND_HOST | KIND_POLL | KIND_SPIN)
                && item.has(FLAG_ARRIVED)
                && !item.has(FLAG_RELEASED)
            {
                let place = Place {
                    channel: index as u32,
                    generation: channel.generation,
                    sequence: channel.head,
                };
                found.push(Waiting {
                    place,
                    token: item.key,
                });
            }
        }
        found
    }

    /// Whether a process has to act: a stream of it stands at work that it has not done. With
    /// `looks` what it would only have to look at counts too.
    pub(super) fn has_to_act(&self, process: u32, looks: bool) -> bool {
        let mut from = 0;
        while let Some(index) = self.next_busy(from) {
            from = index + 1;
            if self.channels[index].process != process {
                continue;
            }
            let item = self.head_item(index);
            let acts = match item.kind {
                KIND_HOST => true,
                KIND_POLL | KIND_SPIN => looks,
                _ => false,
            };
            if acts && item.has(FLAG_ARRIVED) && !item.has(FLAG_RELEASED) {
                return true;
            }
        }
        false
    }

    /// Whether any process is about to act, so that its channel goes on.
    pub(super) fn anybody_acts(&self) -> bool {
        let mut from = 0;
        while let Some(index) = self.next_busy(from) {
            from = index + 1;
            let item = self.head_item(index);
            if item.kind == KIND_HOST && item.has(FLAG_ARRIVED) && !item.has(FLAG_RELEASED) {
                return true;
            }
        }
        false
    }

    /// The owner has acted: the item at a place may go on.
    pub(super) fn release(&mut self, place: Place) {
        if self.is_past(place) {
            return;
        }
        let slot = place.sequence as usize % DEPTH;
        self.rings[place.channel as usize][slot].flags |= FLAG_RELEASED;
    }

    // --- events ----------------------------------------------------------------------------

    /// A new event: its index and generation; `None` when there is no room.
    pub(super) fn open_event(&mut self, process: u32) -> Option<(u32, u32)> {
        let hint = self.event_hint as usize % MAX_EVENTS;
        let index = (hint..MAX_EVENTS)
            .chain(0..hint)
            .find(|&index| self.events[index].process == 0)?;
        let generation = self.events[index].generation.wrapping_add(1);
        self.events[index] = Event {
            process: process + 1,
            generation,
            recorded: 0,
            done: 0,
            time_ns: 0,
            last: NOWHERE,
        };
        self.event_hint = index as u64 + 1;
        self.events_used = self.events_used.max(index as u64 + 1);
        Some((index as u32, generation))
    }

    /// Forgets an event; who waits for it goes on.
    pub(super) fn close_event(&mut self, event: u32, generation: u32) {
        if let Some(slot) = self.events.get_mut(event as usize)
            && slot.generation == generation
        {
            slot.process = 0;
            self.event_hint = event.into();
        }
    }

    /// The number for the next record of an event.
    pub(super) fn next_record(&mut self, event: u32) -> u64 {
        let event = &mut self.events[event as usize];
        event.recorded += 1;
        event.recorded
    }

    /// How often an event was recorded; `None` when it is not this event any more.
    pub(super) fn records(&self, event: u32, generation: u32) -> Option<u64> {
        let slot = self.events.get(event as usize)?;
        (slot.generation == generation && slot.process != 0).then_some(slot.recorded)
    }

    /// Whether that record of an event is done.
    pub(super) fn event_done(&self, event: u32, number: u64) -> bool {
        self.events[event as usize].done >= number
    }

    /// When an event's last finished record was reached.
    pub(super) fn event_time_ns(&self, event: u32) -> u64 {
        self.events[event as usize].time_ns
    }

    /// Where an event was recorded last.
    pub(super) fn event_place(&self, event: u32) -> Place {
        self.events[event as usize].last
    }

    // --- time ------------------------------------------------------------------------------

    /// Plays everything that happens up to `now_ns`.
    pub(super) fn advance(&mut self, now_ns: u64) {
        if self.next_busy(0).is_none() && self.nothing_sampled() {
            self.pass_idle(now_ns);
            return;
        }
        loop {
            let turns = self.arrange();
            if self.time_ns >= now_ns {
                return;
            }
            let next = self
                .next_change(&turns)
                .map_or(now_ns, |next| next.min(now_ns));
            if turns.idle() && self.nothing_sampled() {
                // Nothing can happen before `next`, and no sample would say anything.
                self.time_ns = next;
                self.next_sample_ns = self.sample_after(next);
                continue;
            }
            self.run_to(next.min(self.next_sample_ns), &turns);
            if self.time_ns == self.next_sample_ns {
                self.sample();
            }
        }
    }

    /// Nothing is queued and nothing is to be written down: time only passes.
    fn pass_idle(&mut self, now_ns: u64) {
        if self.time_ns >= now_ns {
            return;
        }
        self.take_turns(&Turns::default());
        self.time_ns = now_ns;
        if now_ns >= self.next_sample_ns {
            self.next_sample_ns = self.sample_after(now_ns);
        }
    }

    /// When something happens next that needs nobody's help; `None` when nothing would.
    pub(super) fn next_event_ns(&mut self) -> Option<u64> {
        let turns = self.arrange();
        self.next_change(&turns)
    }

    /// Finishes what takes no more time and gives each device its turn, until nothing moves.
    fn arrange(&mut self) -> Turns {
        loop {
            while self.settle() {}
            let turns = self.turns();
            self.take_turns(&turns);
            if !self.arrive() {
                return self.turns_taken(turns);
            }
        }
    }

    fn next_busy(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut mask = u64::MAX << (from % 64);
        while word < self.busy.len() {
            let bits = self.busy[word] & mask;
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            word += 1;
            mask = u64::MAX;
        }
        None
    }

    fn settle(&mut self) -> bool {
        let mut moved = false;
        let mut from = 0;
        while let Some(index) = self.next_busy(from) {
            from = index + 1;
            while self.settle_head(index) {
                moved = true;
            }
        }
        moved
    }

    /// Takes a channel's head off when it is done; says whether it did.
    fn settle_head(&mut self, index: usize) -> bool {
        let Channel {
            head,
            tail,
            process,
            device,
            state,
            ..
        } = self.channels[index];
        if head == tail {
            self.busy[index / 64] &= !(1 << (index % 64));
            if state == CLOSING {
                self.channels[index].state = FREE;
            }
            return false;
        }
        let slot = head as usize % DEPTH;
        let item = self.rings[index][slot];
        let done = match item.kind {
            KIND_KERNEL => item.ns == 0,
            KIND_RENDEZVOUS | KIND_SPIN => {
                if item.has(FLAG_RELEASED) || self.parties_met(&item) {
                    self.release_party(&item, index, slot);
                    return true;
                }
                false
            }
            KIND_COPY => {
                if !item.has(FLAG_ARRIVED) {
                    let arrived = &mut self.rings[index][slot];
                    arrived.end_ns = self.time_ns.saturating_add(item.ns);
                    arrived.flags |= FLAG_ARRIVED;
                    item.ns == 0
                } else {
                    item.end_ns <= self.time_ns
                }
            }
            KIND_HOST | KIND_POLL => {
                self.rings[index][slot].flags |= FLAG_ARRIVED;
                item.has(FLAG_RELEASED)
            }
            KIND_RECORD => {
                let time_ns = self.time_ns;
                if let Some(event) = self.events.get_mut(item.target as usize) {
                    event.time_ns = time_ns;
                    event.done = event.done.max(item.number);
                }
                true
            }
            KIND_WAIT_EVENT => self.events.get(item.target as usize).is_none_or(|event| {
                event.process == 0 || event.generation != item.extra || event.done >= item.number
            }),
            KIND_WAIT_CHANNEL => self.is_past(Place {
                channel: item.target,
                generation: item.extra,
                sequence: item.number,
            }),
            // An item that nobody wrote whole: its writer died.
            _ => true,
        };
        if !done {
            return false;
        }
        let usage = self
            .processes
            .get_mut(process as usize)
            .and_then(|process| process.usage.get_mut(device as usize));
        if let Some(usage) = usage {
            usage.kernels += u64::from(item.kind == KIND_KERNEL);
            usage.copies += u64::from(item.kind == KIND_COPY);
        }
        self.channels[index].head = head + 1;
        true
    }

    fn parties_met(&self, item: &Item) -> bool {
        if item.kind != KIND_RENDEZVOUS || !item.has(FLAG_ARRIVED) {
            return false;
        }
        let mut met = 0;
        let mut from = 0;
        while let Some(index) = self.next_busy(from) {
            from = index + 1;
            let other = &self.rings[index][self.channels[index].head as usize % DEPTH];
            met += u32::from(
                other.kind == KIND_RENDEZVOUS && other.key == item.key && other.has(FLAG_ARRIVED),
            );
        }
        met >= item.extra
    }

    /// Turns a spinning kernel into one that only takes time, and with it all that it met.
    fn release_party(&mut self, item: &Item, index: usize, slot: usize) {
        if item.kind == KIND_SPIN {
            self.rings[index][slot].kind = KIND_KERNEL;
            return;
        }
        let mut left = item.extra;
        let mut from = 0;
        while let Some(other) = self.next_busy(from) {
            from = other + 1;
            let head = self.channels[other].head as usize % DEPTH;
            let party = &mut self.rings[other][head];
            if left > 0
                && party.kind == KIND_RENDEZVOUS
                && party.key == item.key
                && party.has(FLAG_ARRIVED)
            {
                party.kind = KIND_KERNEL;
                left -= 1;
            }
        }
    }

    fn head_item(&self, index: usize) -> &Item {
        &self.rings[index][self.channels[index].head as usize % DEPTH]
    }

    /// Which processes have a kernel to run, for each device.
    fn turns(&self) -> Turns {
        let mut turns = Turns {
            all_run: self.is_mps(),
            ..Turns::default()
        };
        let mut from = 0;
        while let Some(index) = self.next_busy(from) {
            from = index + 1;
            let Channel {
                device, process, ..
            } = self.channels[index];
            let item = self.head_item(index);
            if item.on_gpu() {
                turns.add(device as usize, process);
            } else if item.kind == KIND_COPY {
                turns.copying = true;
            }
        }
        turns
    }

    fn take_turns(&mut self, turns: &Turns) {
        if self.is_mps() {
            return;
        }
        for device in bits(self.devices_used) {
            let current = self.devices[device].current;
            if !turns.any(device) {
                if current != 0 {
                    self.devices[device].current = 0;
                    // Kept for the round: the next turn is the next process's.
                    self.devices[device].reserved = current;
                }
                continue;
            }
            let runs = current != 0 && turns.has(device, current - 1);
            if runs && self.time_ns < self.devices[device].slice_end_ns {
                continue;
            }
            let last = if current != 0 {
                current
            } else {
                self.devices[device].reserved
            };
            let next = turns.after(device, last);
            let (end_ns, slice_ns) = (self.devices[device].slice_end_ns, self.slice_ns);
            self.devices[device].current = next + 1;
            self.devices[device].slice_end_ns = if runs && next + 1 == current {
                // Counted from its first slice, so that it does not matter when somebody looks.
                end_ns + ((self.time_ns - end_ns) / slice_ns + 1) * slice_ns
            } else {
                self.time_ns + slice_ns
            };
        }
    }

    fn turns_taken(&self, mut turns: Turns) -> Turns {
        for device in bits(self.devices_used) {
            turns.current[device] = match self.devices[device].current {
                0 => NOBODY,
                process => process - 1,
            };
        }
        turns
    }

    /// Marks spinning kernels that run for the first time; says whether there were any.
    fn arrive(&mut self) -> bool {
        let mut any = false;
        let mut from = 0;
        while let Some(index) = self.next_busy(from) {
            from = index + 1;
            let Channel {
                device,
                process,
                head,
                ..
            } = self.channels[index];
            if !self.is_mps() && self.devices[device as usize].current != process + 1 {
                continue;
            }
            let item = &mut self.rings[index][head as usize % DEPTH];
            if matches!(item.kind, KIND_RENDEZVOUS | KIND_SPIN) && !item.has(FLAG_ARRIVED) {
                item.flags |= FLAG_ARRIVED;
                any = true;
            }
        }
        any
    }

    fn next_change(&self, turns: &Turns) -> Option<u64> {
        let mut next: Option<u64> = None;
        let mut earlier = |time: u64| next = Some(next.map_or(time, |next| next.min(time)));
        let mut from = 0;
        while let Some(index) = self.next_busy(from) {
            from = index + 1;
            let Channel {
                device, process, ..
            } = self.channels[index];
            let item = self.head_item(index);
            match item.kind {
                KIND_KERNEL if turns.runs(device as usize, process) => {
                    earlier(self.time_ns.saturating_add(item.ns));
                }
                KIND_COPY => earlier(item.end_ns),
                _ => {}
            }
        }
        for device in bits(self.devices_used) {
            if turns.contended(device) {
                earlier(self.devices[device].slice_end_ns);
            }
        }
        next
    }

    /// Lets what runs go on up to `to_ns`, at which nothing has changed yet.
    fn run_to(&mut self, to_ns: u64, turns: &Turns) {
        let passed = to_ns - self.time_ns;
        let mut copies: [[u64; MAX_PROCESSES / 64]; MAX_DEVICES] = Default::default();
        let mut from = 0;
        while let Some(index) = self.next_busy(from) {
            from = index + 1;
            let Channel {
                device,
                process,
                head,
                ..
            } = self.channels[index];
            let item = &mut self.rings[index][head as usize % DEPTH];
            match item.kind {
                KIND_KERNEL if turns.runs(device as usize, process) => {
                    item.ns = item.ns.saturating_sub(passed);
                }
                KIND_COPY => {
                    let (device, process) = (device as usize, process as usize);
                    copies[device][process / 64] |= 1 << (process % 64);
                }
                _ => {}
            }
        }
        for device in bits(self.devices_used) {
            let copies = &copies[device];
            let running = turns.running_on(device);
            if running.iter().any(|&word| word != 0) {
                self.devices[device].busy_ns += passed;
                self.devices[device].sampled_busy_ns += passed;
            }
            for (word, &running) in running.iter().enumerate() {
                for process in bits(running).map(|bit| word * 64 + bit) {
                    let usage = &mut self.processes[process].usage[device];
                    usage.busy_ns += passed;
                    usage.sampled_busy_ns += passed;
                    self.held(device, process, self.time_ns, to_ns);
                }
            }
            if !turns.copying {
                continue;
            }
            let mut any = false;
            for process in 0..self.processes_used as usize {
                if copies[process / 64] >> (process % 64) & 1 == 1 {
                    let usage = &mut self.processes[process].usage[device];
                    usage.copy_ns += passed;
                    usage.sampled_copy_ns += passed;
                    any = true;
                }
            }
            if any {
                self.devices[device].copy_ns += passed;
                self.devices[device].sampled_copy_ns += passed;
            }
        }
        self.time_ns = to_ns;
    }

    // --- utilisation -----------------------------------------------------------------------

    fn sample_after(&self, time_ns: u64) -> u64 {
        let periods = (time_ns - self.started_ns) / self.sample_ns;
        self.started_ns + (periods + 1) * self.sample_ns
    }

    fn nothing_sampled(&self) -> bool {
        bits(self.devices_used).all(|device| {
            let device = &self.devices[device];
            device.sampled_busy_ns == 0 && device.sampled_copy_ns == 0
        })
    }

    /// Writes down the period that ends here.
    fn sample(&mut self) {
        let (time_ns, period) = (self.time_ns, self.sample_ns);
        let percent = |ns: u64| (ns * 100 / period).min(100) as u16;
        for device in bits(self.devices_used) {
            if self.devices[device].sampled_busy_ns == 0
                && self.devices[device].sampled_copy_ns == 0
            {
                continue;
            }
            for index in 0..self.processes_used as usize {
                let process = &mut self.processes[index];
                let usage = &mut process.usage[device];
                if usage.sampled_busy_ns == 0 && usage.sampled_copy_ns == 0 {
                    continue;
                }
                let raw = RawSample {
                    time_ns,
                    pid: process.identity.pid,
                    sm_percent: percent(usage.sampled_busy_ns),
                    memory_percent: percent(usage.sampled_copy_ns),
                };
                (usage.sampled_busy_ns, usage.sampled_copy_ns) = (0, 0);
                let device = &mut self.devices[device];
                device.samples[device.sample_count as usize % SAMPLES] = raw;
                device.sample_count += 1;
            }
            let device = &mut self.devices[device];
            let raw = RawSample {
                time_ns,
                pid: 0,
                sm_percent: percent(device.sampled_busy_ns),
                memory_percent: percent(device.sampled_copy_ns),
            };
            (device.sampled_busy_ns, device.sampled_copy_ns) = (0, 0);
            device.totals[device.total_count as usize % 128] = raw;
            device.total_count += 1;
        }
        self.next_sample_ns = self.sample_after(time_ns);
    }

    /// The samples of each process that ended after `since_ns`, oldest first.
    pub(super) fn process_utilization(
        &self,
        device: usize,
        since_ns: u64,
    ) -> Vec<UtilizationSample> {
        let device = &self.devices[device];
        let first = device.sample_count.saturating_sub(SAMPLES as u64);
        (first..device.sample_count)
            .map(|count| device.samples[count as usize % SAMPLES])
            .filter(|sample| sample.time_ns > since_ns && self.is_told(sample.time_ns))
            .map(Into::into)
            .collect()
    }

    /// The samples of the whole device that ended after `since_ns`, oldest first. A period in which
    /// nothing ran has none.
    pub(super) fn device_samples(&self, device: usize, since_ns: u64) -> Vec<UtilizationSample> {
        let device = &self.devices[device];
        let first = device.total_count.saturating_sub(128);
        (first..device.total_count)
            .map(|count| device.totals[count as usize % 128])
            .filter(|sample| sample.time_ns > since_ns && self.is_told(sample.time_ns))
            .map(Into::into)
            .collect()
    }

    /// The last whole period of a device that can be read.
    pub(super) fn device_utilization(&self, device: usize) -> UtilizationSample {
        let told_ns = self.time_ns.saturating_sub(self.lag_ns);
        let end_ns = if told_ns < self.started_ns {
            0
        } else {
            self.sample_after(told_ns).saturating_sub(self.sample_ns)
        };
        let device = &self.devices[device];
        let first = device.total_count.saturating_sub(128);
        let found = (first..device.total_count)
            .rev()
            .map(|count| device.totals[count as usize % 128])
            .find(|sample| sample.time_ns <= end_ns);
        if let Some(sample) = found.filter(|sample| sample.time_ns == end_ns && end_ns != 0) {
            return sample.into();
        }
        UtilizationSample {
            pid: 0,
            time_ns: end_ns,
            sm_percent: 0,
            memory_percent: 0,
        }
    }

    /// Whether a sample of that moment can be read.
    fn is_told(&self, time_ns: u64) -> bool {
        time_ns.saturating_add(self.lag_ns) <= self.time_ns
    }
}

/// The places of a word's set bits, lowest first.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if word == 0 {
            return None;
        }
        let bit = word.trailing_zeros() as usize;
        word &= word - 1;
        Some(bit)
    })
}

/// Who has kernels to run, and whose turn it is.
#[derive(Debug)]
struct Turns {
    waiting: [[u64; MAX_PROCESSES / 64]; MAX_DEVICES],
    current: [u32; MAX_DEVICES],
    copying: bool,
    running: bool,
    /// Nobody waits for a turn.
    all_run: bool,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            waiting: Default::default(),
            current: [NOBODY; MAX_DEVICES],
            copying: false,
            running: false,
            all_run: false,
        }
    }
}

impl Turns {
    fn add(&mut self, device: usize, process: u32) {
        self.running = true;
        self.waiting[device][process as usize / 64] |= 1 << (process % 64);
    }

    fn any(&self, device: usize) -> bool {
        self.waiting[device].iter().any(|&word| word != 0)
    }

    fn has(&self, device: usize, process: u32) -> bool {
        self.waiting[device][process as usize / 64] >> (process % 64) & 1 == 1
    }

    /// Whether a process's kernels run.
    fn runs(&self, device: usize, process: u32) -> bool {
        self.all_run && self.has(device, process) || self.current[device] == process
    }

    /// The processes whose kernels run.
    fn running_on(&self, device: usize) -> [u64; MAX_PROCESSES / 64] {
        if self.all_run {
            return self.waiting[device];
        }
        let mut words = [0; MAX_PROCESSES / 64];
        let current = self.current[device];
        if current != NOBODY {
            words[current as usize / 64] = 1 << (current % 64);
        }
        words
    }

    fn contended(&self, device: usize) -> bool {
        if self.all_run {
            return false;
        }
        self.waiting[device]
            .iter()
            .map(|word| word.count_ones())
            .sum::<u32>()
            > 1
    }

    fn idle(&self) -> bool {
        !self.copying && !self.running
    }

    /// The first process with work from `from` on, round robin.
    fn after(&self, device: usize, from: u32) -> u32 {
        let all = MAX_PROCESSES as u32;
        (0..all)
            .map(|step| (from + step) % all)
            .find(|&p| self.has(device, p))
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn board() -> Box<State> {
        // SAFETY: a zeroed State is an idle board: it holds only integers.
        let mut state = unsafe { Box::<State>::new_zeroed().assume_init() };
        let settings = Settings {
            slice_ns: 2 * MS,
            sample_ns: 100 * MS,
            lag_ns: 0,
            mps: false,
        };
        state.start(1000 * MS, settings);
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

    fn stream(state: &mut State, process: u32) -> u32 {
        state.open_channel(process, 0).unwrap().0
    }

    fn kernel(ms: u64) -> Work {
        Work::Kernel { ns: ms * MS }
    }

    fn record(state: &mut State, channel: u32, process: u32) -> u32 {
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
