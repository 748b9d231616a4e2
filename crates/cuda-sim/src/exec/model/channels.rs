//! Channels: queues of work in which one item comes after the other.

use super::{
    CLOSING, Channel, DEPTH, FLAG_ARRIVED, FLAG_RELEASED, FREE, Item, KIND_COPY, KIND_HOST,
    KIND_KERNEL, KIND_POLL, KIND_RENDEZVOUS, KIND_SPIN, KIND_WAIT_CHANNEL, KIND_WAIT_EVENT,
    MAX_CHANNELS, MAX_DEVICES, NOWHERE, OPEN, Position, Waiting, Work, WorkState,
};

impl WorkState {
    /// Opens a channel of a process on a device; `None` when there is no room.
    pub(in crate::exec) fn open_channel(
        &mut self,
        process: u32,
        device: u32,
    ) -> Option<(u32, u32)> {
        self.devices_used |= 1_u64
            .checked_shl(device)
            .filter(|_| device < MAX_DEVICES as u32)?;
        let index = (0..MAX_CHANNELS).find(|&i| self.channels[i].state == FREE)?;
        self.channels_used = self.channels_used.max(index as u64 + 1);
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
    pub(in crate::exec) fn close_channel(&mut self, channel: u32) {
        let channel = &mut self.channels[channel as usize];
        channel.state = if channel.head == channel.tail {
            FREE
        } else {
            CLOSING
        };
    }

    /// Closes a channel and forgets what it has queued, as the end of a context does.
    pub(in crate::exec) fn drop_channel(&mut self, index: usize) {
        self.busy[index / 64] &= !(1 << (index % 64));
        let channel = &mut self.channels[index];
        channel.state = FREE;
        channel.head = channel.tail;
    }

    /// Puts work at the end of a channel; `None` when 1,024 items wait there.
    pub(in crate::exec) fn submit(&mut self, index: u32, work: Work) -> Option<Position> {
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
        let place = Position {
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
    pub(in crate::exec) fn submit_after(
        &mut self,
        index: u32,
        after: &[(u32, u32)],
        work: Work,
    ) -> Option<Position> {
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
            let place = Position {
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
    pub(in crate::exec) fn acts_in_ns(&self, process: u32) -> Option<u64> {
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
                let place = Position {
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
    pub(in crate::exec) fn end_of(&self, index: u32) -> Position {
        let channel = &self.channels[index as usize];
        Position {
            channel: index,
            generation: channel.generation,
            sequence: channel.tail,
        }
    }

    /// Items that wait in a channel or run at its head.
    pub(in crate::exec) fn queued(&self, index: u32) -> u64 {
        let channel = &self.channels[index as usize];
        channel.tail - channel.head
    }

    /// Whether the item at a place is done.
    pub(in crate::exec) fn is_past(&self, place: Position) -> bool {
        let channel = &self.channels[place.channel as usize];
        channel.state == FREE
            || channel.generation != place.generation
            || channel.head > place.sequence
    }

    /// Nanoseconds that must at least go by before the item at a place is done.
    pub(in crate::exec) fn at_least_ns(&self, place: Position) -> u64 {
        self.at_least(place, 4)
    }

    pub(super) fn at_least(&self, place: Position, depth: u32) -> u64 {
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
                    let place = Position {
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
    pub(in crate::exec) fn waiting(&self, process: u32) -> Vec<Waiting> {
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
                let place = Position {
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
    pub(in crate::exec) fn has_to_act(&self, process: u32, looks: bool) -> bool {
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
    pub(in crate::exec) fn any_process_acts(&self) -> bool {
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
    pub(in crate::exec) fn release(&mut self, place: Position) {
        if self.is_past(place) {
            return;
        }
        let slot = place.sequence as usize % DEPTH;
        self.rings[place.channel as usize][slot].flags |= FLAG_RELEASED;
    }
}
