//! The host's side of containers: finds their directories, reads their regions safely, asks NVML what the
//! processes really hold, and publishes what only the host can know (targets). Used by the node agent and by
//! `vgpu run`, `vgpu top`, `vgpu set` and `vgpu oom` alike.
//!
//! Never maps a file that a tenant can write, never takes a container's lock, never prints, and knows nothing
//! of Kubernetes except the labels that its caller passes.

// Not `forbid`: the files that call C lift it (below `gpu`).
#![deny(unsafe_code)]

mod container_error;

pub mod clock;

pub mod regular;

pub mod instance;

pub mod library;

pub mod vendor;

mod fence_file;

pub mod view;

pub mod gpu;

pub mod fence;

pub mod overhead;

pub mod excess;

pub mod arbiter;

pub use container_error::ContainerError;
