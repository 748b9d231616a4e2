//! Time: plays what happens on a board, in order, up to a moment.

use super::turns::{Turns, bits};
use super::{
    CLOSING, Channel, DEPTH, FLAG_ARRIVED, FLAG_RELEASED, FREE, Item, KIND_COPY, KIND_HOST,
    KIND_KERNEL, KIND_POLL, KIND_RECORD, KIND_RENDEZVOUS, KIND_SPIN, KIND_WAIT_CHANNEL,
    KIND_WAIT_EVENT, MAX_PROCESSES, Position, WorkState,
};

impl WorkState {
    /// Plays everything that happens up to `now_ns`.
    pub(in crate::exec) fn advance(&mut self, now_ns: u64) {
        if self.next_busy(0).is_none() && self.nothing_sampled() {
            self.pass_idle(now_ns);
            return;
        }
        let mut turns = Turns::default();
        loop {
            self.arrange(&mut turns);
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
    pub(super) fn pass_idle(&mut self, now_ns: u64) {
        if self.time_ns >= now_ns {
            return;
        }
        self.take_turns(&Turns::NONE);
        self.time_ns = now_ns;
        // A slice that was kept may have ended.
        self.take_turns(&Turns::NONE);
        if now_ns >= self.next_sample_ns {
            self.next_sample_ns = self.sample_after(now_ns);
        }
    }

    /// When something happens next without a process's help; `None` when nothing would.
    pub(in crate::exec) fn next_event_ns(&mut self) -> Option<u64> {
        let mut turns = Turns::default();
        self.arrange(&mut turns);
        self.next_change(&turns)
    }

    /// Finishes what takes no more time and gives each device its turn, until nothing moves. The turns are the caller's,
    /// which uses them again: they are large, and a board is arranged at each thing that happens on it.
    pub(super) fn arrange(&mut self, turns: &mut Turns) {
        loop {
            while self.settle() {}
            self.find_turns(turns);
            self.take_turns(turns);
            if !self.arrive() {
                self.fill_current(turns);
                return;
            }
        }
    }

    pub(super) fn next_busy(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut mask = u64::MAX << (from % 64);
        let words = (self.channels_used as usize).div_ceil(64);
        while word < words.min(self.busy.len()) {
            let bits = self.busy[word] & mask;
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            word += 1;
            mask = u64::MAX;
        }
        None
    }

    pub(super) fn settle(&mut self) -> bool {
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
    pub(super) fn settle_head(&mut self, index: usize) -> bool {
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
            KIND_WAIT_CHANNEL => self.is_past(Position {
                channel: item.target,
                generation: item.extra,
                sequence: item.number,
            }),
            // An item that was not written whole: its writer died.
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

    pub(super) fn parties_met(&self, item: &Item) -> bool {
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
    pub(super) fn release_party(&mut self, item: &Item, index: usize, slot: usize) {
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

    pub(super) fn head_item(&self, index: usize) -> &Item {
        &self.rings[index][self.channels[index].head as usize % DEPTH]
    }

    /// Finds out which processes have a kernel to run, for each device.
    pub(super) fn find_turns(&self, turns: &mut Turns) {
        turns.clear(self.devices_used);
        turns.all_run = self.is_mps();
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
    }

    /// Marks spinning kernels that run for the first time; says whether there were any.
    pub(super) fn arrive(&mut self) -> bool {
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
            let device = device as usize;
            if !self.is_mps() && !self.slice(device).runs(process, self.time_ns) {
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

    pub(super) fn next_change(&self, turns: &Turns) -> Option<u64> {
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
            if let Some(time_ns) = self.slice_changes_at(device, turns) {
                earlier(time_ns);
            }
        }
        next
    }

    /// Lets what runs go on up to `to_ns`, at which nothing has changed yet.
    pub(super) fn run_to(&mut self, to_ns: u64, turns: &Turns) {
        let passed = to_ns - self.time_ns;
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
            if item.kind == KIND_KERNEL && turns.runs(device as usize, process) {
                item.ns = item.ns.saturating_sub(passed);
            }
        }
        for device in bits(self.devices_used) {
            let running = turns.running_on(device);
            if running.iter().any(|&word| word != 0) {
                let device = &mut self.devices[device];
                device.busy_ns += passed;
                device.sampled_busy_ns += passed;
                device.slice_busy_ns += passed;
            }
            for (word, &running) in running.iter().enumerate() {
                for process in bits(running).map(|bit| word * 64 + bit) {
                    let usage = &mut self.processes[process].usage[device];
                    usage.busy_ns += passed;
                    usage.sampled_busy_ns += passed;
                    usage.ran_ns += passed;
                    self.held(device, process, self.time_ns, to_ns);
                }
            }
            if !turns.copying {
                continue;
            }
            let copies = self.copying_on(device);
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

    /// The processes of which a copy runs on a device.
    fn copying_on(&self, device: usize) -> [u64; MAX_PROCESSES / 64] {
        let mut words = [0; MAX_PROCESSES / 64];
        let mut from = 0;
        while let Some(index) = self.next_busy(from) {
            from = index + 1;
            let channel = &self.channels[index];
            if channel.device as usize == device && self.head_item(index).kind == KIND_COPY {
                let process = channel.process as usize;
                words[process / 64] |= 1 << (process % 64);
            }
        }
        words
    }
}
