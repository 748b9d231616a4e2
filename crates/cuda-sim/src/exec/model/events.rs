//! Events: records of the time at which a channel came past a place.

use super::{Event, MAX_EVENTS, NOWHERE, Position, WorkState};

impl WorkState {
    /// A new event: its index and generation; `None` when there is no room.
    pub(in crate::exec) fn open_event(&mut self, process: u32) -> Option<(u32, u32)> {
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

    /// Forgets an event; its waiters go on.
    pub(in crate::exec) fn close_event(&mut self, event: u32, generation: u32) {
        if let Some(slot) = self.events.get_mut(event as usize)
            && slot.generation == generation
        {
            slot.process = 0;
            self.event_hint = event.into();
        }
    }

    /// The number for the next record of an event.
    pub(in crate::exec) fn next_record(&mut self, event: u32) -> u64 {
        let event = &mut self.events[event as usize];
        event.recorded += 1;
        event.recorded
    }

    /// How often an event was recorded; `None` when it is not this event any more.
    pub(in crate::exec) fn records(&self, event: u32, generation: u32) -> Option<u64> {
        let slot = self.events.get(event as usize)?;
        (slot.generation == generation && slot.process != 0).then_some(slot.recorded)
    }

    /// Whether that record of an event is done.
    pub(in crate::exec) fn event_done(&self, event: u32, number: u64) -> bool {
        self.events[event as usize].done >= number
    }

    /// When an event's last finished record was reached.
    pub(in crate::exec) fn event_time_ns(&self, event: u32) -> u64 {
        self.events[event as usize].time_ns
    }

    /// Where an event was recorded last.
    pub(in crate::exec) fn event_place(&self, event: u32) -> Position {
        self.events[event as usize].last
    }
}
