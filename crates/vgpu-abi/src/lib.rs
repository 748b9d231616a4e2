//! The files that the host and a container share: limits and targets (the host writes), usage
//! region (the container writes). Owns their layout, the reserve algorithm, slots and liveness.
//!
//! Never logs, never allocates on a hot path, never waits longer than 100 ms for another process,
//! and knows nothing of CUDA or Kubernetes: a device is an index and a text, a charge is bytes.

#![deny(unsafe_code)]
#![cfg_attr(
    all(loom, not(test)),
    allow(dead_code, reason = "under loom only the tests use it")
)]

pub mod size;

pub mod layout;

#[cfg(not(loom))]
pub mod doorbell;
#[cfg(not(loom))]
pub mod file;
#[cfg(not(loom))]
pub mod interval;
#[cfg(not(loom))]
pub mod limits;
#[cfg(not(loom))]
pub mod peers;
#[cfg(not(loom))]
pub mod period;
#[cfg(not(loom))]
pub mod roster;
#[cfg(not(loom))]
pub mod targets;

pub mod budget;
pub mod credit;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod waits;

#[cfg(not(loom))]
pub mod host;

pub use crash::CRASH_POINTS;

mod atomic;
mod crash;
#[cfg(not(loom))]
mod hostfile;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "shared mappings become references here")]
mod map;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "system calls are made here")]
mod sys;
#[cfg(not(loom))]
mod uuid;
