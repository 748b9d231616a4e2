//! A capture, and a stream's membership in a capture. The rules are in `capturing`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::base::border::lock;
use crate::streams::graph::Graph;

pub(crate) const GLOBAL: u32 = 0;
pub(crate) const RELAXED: u32 = 2;

/// A capture that goes on.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) id: u64,
    pub(crate) mode: u32,
    /// The stream in which it began.
    pub(crate) origin: u64,
    pub(crate) thread: u64,
    pub(crate) context: usize,
    pub(crate) invalidated: AtomicBool,
    pub(crate) graph: Arc<Graph>,
    /// The positions of streams that were destroyed since: they must be joined like the others.
    pub(crate) left_behind: Mutex<Vec<usize>>,
}

impl Capture {
    /// Something happened that a capture does not survive.
    pub(crate) fn invalidate(&self) {
        // SeqCst, here and below: another thread's illegal call is seen by the capturing one.
        self.invalidated.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_invalid(&self) -> bool {
        self.invalidated.load(Ordering::SeqCst)
    }
}

/// A stream's membership in a capture.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) capture: Arc<Capture>,
    /// The nodes that its next one comes after.
    pub(crate) after: Vec<usize>,
}

pub(crate) static CAPTURES: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

/// The capture of a number, while it goes on.
pub(crate) fn numbered(id: u64) -> Option<Arc<Capture>> {
    let captures = lock(&CAPTURES);
    captures.iter().find(|capture| capture.id == id).cloned()
}
