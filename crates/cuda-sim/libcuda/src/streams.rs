//! Work for the device: modules and kernels, launches, events, graphs, captures, and streams.

pub(crate) mod capture;
pub(crate) mod capturing;
pub(crate) mod copies;
pub(crate) mod event;
pub(crate) mod execs;
pub(crate) mod graph;
pub(crate) mod launch;
pub(crate) mod launching;
pub(crate) mod module;
pub(crate) mod queue;
pub(crate) mod recording;
pub(crate) mod stream;
