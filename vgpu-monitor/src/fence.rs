//! The driver's own memory limit as a second fence around pods: a process of its own with the host's control groups
//! (`vgpu-monitor fence`), because the exporter, which serves HTTP, has no right to set such a limit.
//!
//! Never decides how high a limit is: `supervisor::fence` does.

pub mod args;

pub mod mounts;

pub mod pods;

pub mod command;
