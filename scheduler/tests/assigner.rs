//! The device assigner, from outside.

mod flow;
mod recorded;
mod refusals;
mod storm;
mod support;
