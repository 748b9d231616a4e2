//! Rules: stream-ordered memory. A pool grows in chunks and shrinks when it likes, so what is charged
//! is what the pool holds: a chunk is reserved before the call, the pool is settled after it, and at
//! every synchronisation. Nothing is held across the driver's call.

use crate::books::Books;
use crate::map::Entry;

pub(crate) fn settle_device(_books: &Books, _device: usize) {}
pub(crate) fn given_back(_books: &Books, _entry: &Entry) {}
