//! Containers of container engines (Podman, Docker, containerd): each gets the share that its environment names.
//! `hook` runs when such a container is made and when it has ended; `runtime` is for engines without CDI.
//!
//! Never changes a file of the container's image, and never lets a container start whose share it did not understand.

mod asked;
mod bundle;
mod engine;
mod hook;
mod inject;
mod wrapper;

pub(crate) use hook::{fill, run as hook};
pub(crate) use wrapper::{as_runtime, run as runtime};

/// What `vgpu cdi` writes in front of a GPU's number: the variable that says which GPUs a container was given.
pub(crate) const GIVEN: &str = "VGPU_GPU_";

/// The kind of our CDI devices.
pub(crate) const KIND: &str = "vgpu.io/gpu";
