//! An event, and its last record. Its times are the board's, exact in its model.

use std::sync::{Arc, Mutex};

use cuda_api::driver::*;
use cuda_sim::exec::{EventId, Record};

use crate::base::border::Done;
use crate::base::table::Table;
use crate::memory::context::Ctx;
use crate::process::work::exec;

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: EventId,
    pub(crate) context: Ctx,
    pub(crate) flags: u32,
    /// It is another process's.
    pub(crate) opened: bool,
    pub(crate) last: Mutex<Last>,
}

/// The last record of an event.
#[derive(Debug, Clone)]
pub(crate) enum Last {
    /// Nowhere, or in another process: the board knows.
    Board,
    /// In a stream of this process.
    Recorded(Record),
    /// In a stream that captured: in the capture of this number, after these nodes.
    Captured { capture: u64, nodes: Vec<usize> },
}

pub(crate) static EVENTS: Table<Event> = Table::new(CuResult::INVALID_HANDLE);

impl Drop for Event {
    fn drop(&mut self) {
        if !self.opened
            && let Ok(exec) = exec()
        {
            exec.close_event(self.id);
        }
    }
}

/// The event that a program means.
pub(crate) fn find(event: CuEvent) -> Done<Arc<Event>> {
    EVENTS.find(event.addr())
}

/// A context is gone: its events are dropped with it.
pub(crate) fn context_gone(context: Ctx) {
    EVENTS.take(|event| event.context.handle == context.handle);
}
