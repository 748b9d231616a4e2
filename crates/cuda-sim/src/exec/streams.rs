//! Processes, streams and events: giving work to the board, and seeing it done.

use std::time::Duration;

use super::lockstep::Wait;
use super::model::{Position, Waiting, Work};
use super::{ChannelId, EventId, Exec, ProcessId, Record, WorkRefused};
use crate::process::Identity;

impl Exec {
    /// Gives this process its place on the board.
    ///
    /// # Errors
    /// When 256 living processes are there.
    pub fn join(&self) -> Result<ProcessId, WorkRefused> {
        let mut state = self.now();
        state.reap(Identity::is_alive);
        state
            .join(Identity::own())
            .map(ProcessId)
            .ok_or(WorkRefused::NoRoom)
    }

    /// Gives the place back.
    pub fn leave(&self, process: ProcessId) {
        self.now().leave(process.0);
    }

    /// Opens a stream on a device.
    ///
    /// # Errors
    /// When the board has no room for one more.
    pub fn open_channel(
        &self,
        process: ProcessId,
        device: usize,
    ) -> Result<ChannelId, WorkRefused> {
        let device = u32::try_from(device).map_err(|_| WorkRefused::NoRoom)?;
        let opened = self
            .now()
            .open_channel(process.0, device)
            .ok_or(WorkRefused::NoRoom)?;
        Ok(ChannelId {
            index: opened.0,
            generation: opened.1,
        })
    }

    /// Closes a stream; its queued work is still done.
    pub fn close_channel(&self, channel: ChannelId) {
        let mut state = self.now();
        if state.end_of(channel.index).generation == channel.generation {
            state.close_channel(channel.index);
        }
    }

    /// Closes a stream and drops its queued work.
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
    pub fn submit(&self, channel: ChannelId, work: Work) -> Result<Position, WorkRefused> {
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
    ) -> Result<Position, WorkRefused> {
        let after: &[(u32, u32)] = &after
            .iter()
            .map(|id| (id.index, id.generation))
            .collect::<Vec<_>>();
        loop {
            let seen = self.clock().changes();
            let mut state = self.now();
            let end = state.end_of(channel.index);
            if end.generation != channel.generation {
                return Err(WorkRefused::Closed);
            }
            if let Some(place) = state.submit_after(channel.index, after, work) {
                return Ok(place);
            }
            let first = Position {
                sequence: end.sequence - state.queued(channel.index),
                ..end
            };
            let hint = state.at_least_ns(first);
            self.rest(state, seen, hint, Wait::Position(first));
        }
    }

    /// Lets what a stream is given next come after all that another has been given so far.
    ///
    /// # Errors
    /// When the stream is closed.
    pub fn order(&self, channel: ChannelId, after: ChannelId) -> Result<(), WorkRefused> {
        if let Some(place) = self.last_place(after) {
            self.submit(channel, Work::WaitChannel { place })?;
        }
        Ok(())
    }

    /// The position after all work that a stream has been given; `None` if all of it is done.
    pub fn last_place(&self, channel: ChannelId) -> Option<Position> {
        let state = self.now();
        let end = state.end_of(channel.index);
        if end.generation != channel.generation || state.queued(channel.index) == 0 {
            return None;
        }
        Some(Position {
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
    pub fn is_past(&self, place: Position) -> bool {
        self.now().is_past(place)
    }

    /// Waits until the item at a place is done.
    pub fn wait(&self, place: Position) {
        loop {
            let seen = self.clock().changes();
            let state = self.now();
            if state.is_past(place) {
                return;
            }
            let hint = state.at_least_ns(place);
            self.rest(state, seen, hint, Wait::Position(place));
        }
    }

    /// Waits until everything that the stream has been given so far is done.
    pub fn drain(&self, channel: ChannelId) {
        if let Some(place) = self.last_place(channel) {
            self.wait(place);
        }
    }

    /// A new event.
    ///
    /// # Errors
    /// When the board has no room for one more.
    pub fn open_event(&self, process: ProcessId) -> Result<EventId, WorkRefused> {
        let (index, generation) = self
            .lock()
            .open_event(process.0)
            .ok_or(WorkRefused::NoRoom)?;
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
    pub fn record(&self, channel: ChannelId, event: EventId) -> Result<Record, WorkRefused> {
        let number = {
            let mut state = self.lock();
            state
                .records(event.index, event.generation)
                .ok_or(WorkRefused::Closed)?;
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

    /// The last record of an event, in any process; number 0 if there was none.
    ///
    /// # Errors
    /// The event is closed.
    pub fn last_record(&self, event: EventId) -> Result<Record, WorkRefused> {
        let number = self
            .lock()
            .records(event.index, event.generation)
            .ok_or(WorkRefused::Closed)?;
        Ok(Record { event, number })
    }

    /// Lets a stream wait for a record.
    ///
    /// # Errors
    /// When the stream is closed.
    pub fn wait_for_record(&self, channel: ChannelId, record: Record) -> Result<(), WorkRefused> {
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

    /// Work of this process at which a stream waits until it is released.
    pub fn waiting(&self, process: ProcessId) -> Vec<Waiting> {
        self.now().waiting(process.0)
    }

    /// Records that the owner has done the work that a stream waited at.
    pub fn release(&self, place: Position) {
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
    pub fn at_least_ns(&self, place: Position) -> u64 {
        self.now().at_least_ns(place)
    }
}
