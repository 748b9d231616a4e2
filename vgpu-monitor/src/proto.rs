//! The kubelet's two protocols, as they go over its sockets. Never what they mean: see `plugin`.
//!
//! The code below is made by `cargo xtask protogen` from `vgpu-monitor/proto`.

/// What the kubelet and a device plugin say to each other.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::str_to_string,
    clippy::allow_attributes_without_reason,
    reason = "generated; its comments stand in the .proto file"
)]
pub mod device_plugin;

/// What the kubelet says of pods and the devices that they hold.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::str_to_string,
    clippy::allow_attributes_without_reason,
    reason = "generated; its comments stand in the .proto file"
)]
pub mod pod_resources;
