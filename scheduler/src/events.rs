//! What the scheduler says of pods and nodes: [`events`] sends it, the sentences are here. Never waits.

mod words;

pub use events::{About, Counts, Events, Kind, Limits, MOST_MESSAGE_BYTES};

pub(crate) use words::codes;
pub use words::no_node;
