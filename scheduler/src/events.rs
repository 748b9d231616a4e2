//! The scheduler's messages about pods and nodes: the sentences are here, and [`events`] sends them. Callers never
//! wait.

mod words;

pub use events::{About, Counts, Events, Kind, Limits, MOST_MESSAGE_BYTES};

pub(crate) use words::codes;
pub use words::no_node;
