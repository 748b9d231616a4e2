//! Events in streams: recording them, waiting for them; in a stream that captures, both become part
//! of its graph.

use std::sync::Arc;

use cuda_api::driver::*;
use cuda_sim::exec::Record;

use crate::base::border::{Done, invalid_if, lock};
use crate::process::work::{exec, refused};
use crate::streams::capture;
use crate::streams::capturing;
use crate::streams::event::{Event, Last, find};
use crate::streams::graph::Body;
use crate::streams::stream::{self, Stream};

/// For `cuEventRecordWithFlags` and `cuStreamWaitEvent`: the node stands for an event outside.
const EXTERNAL: u32 = 1;

impl Event {
    /// Its last record on the board; `CAPTURED_EVENT` when that lies in a capture.
    fn record(&self) -> Done<Record> {
        match &*lock(&self.last) {
            Last::Recorded(record) => Ok(*record),
            Last::Board => exec()?.last_record(self.id).map_err(refused),
            Last::Captured { .. } => Err(CuResult::CAPTURED_EVENT),
        }
    }

    /// The same for a call that asks how far the GPU is: asking that of a captured event spoils the
    /// capture.
    pub(crate) fn record_to_query(&self) -> Done<Record> {
        if let Last::Captured { capture, .. } = &*lock(&self.last)
            && let Some(capture) = capture::numbered(*capture)
        {
            capture.invalidate();
        }
        self.record()
    }

    /// Records it in a stream, as the program's call and a graph's node do.
    pub(crate) fn record_in(&self, stream: &Stream) -> Done {
        stream::order(stream)?;
        let record = exec()?.record(stream.channel, self.id).map_err(refused)?;
        *lock(&self.last) = Last::Recorded(record);
        Ok(())
    }

    /// Lets a stream wait for its last record.
    pub(crate) fn wait_in(&self, stream: &Stream) -> Done {
        let record = self.record()?;
        stream::order(stream)?;
        let waits = exec()?.wait_for_record(stream.channel, record);
        waits.map_err(refused)
    }
}

/// Records an event in a stream, or in what it captures.
pub(crate) fn record(stream: &Stream, event: CuEvent, flags: u32) -> Done {
    invalid_if(flags & !EXTERNAL != 0)?;
    let event = find(event)?;
    if flags & EXTERNAL != 0 {
        let taken = capturing::takes(stream, || Ok(Body::EventRecord(Arc::clone(&event))))?;
        return if taken {
            Ok(())
        } else {
            event.record_in(stream)
        };
    }
    if let Some((capture, nodes)) = capturing::place(stream)? {
        let capture = capture.id;
        *lock(&event.last) = Last::Captured { capture, nodes };
        return Ok(());
    }
    event.record_in(stream)
}

/// Lets a stream wait for an event; a captured one draws the stream into its capture.
pub(crate) fn wait(stream: &Stream, event: CuEvent, flags: u32) -> Done {
    invalid_if(flags & !EXTERNAL != 0)?;
    let event = find(event)?;
    if flags & EXTERNAL != 0 {
        let taken = capturing::takes(stream, || Ok(Body::EventWait(Arc::clone(&event))))?;
        return if taken { Ok(()) } else { event.wait_in(stream) };
    }
    let last = lock(&event.last).clone();
    match last {
        Last::Captured { capture, nodes } => capturing::join(stream, capture, &nodes),
        Last::Board | Last::Recorded(_) => {
            capturing::waits_outside(stream)?;
            event.wait_in(stream)
        }
    }
}
