//! The device assigner, from outside.

mod flow;
mod quotas;
mod recorded;
mod refusals;
mod storm;
mod support;
