//! The device assigner, from outside.

mod flow;
mod refusals;
mod storm;
mod support;
