//! What a container is given, as files of the host: its directory with limits and region, the library, the
//! description for the runtime (CDI). Never asks who a container is: it is told.

use std::path::PathBuf;

use placement::{MigProfile, Span};
use vgpu_abi::limits::Policy;

/// Name of an allotment: fresh for each, and of letters that a path, a CDI name and an annotation take.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub String);

/// How the runtime is told what a container gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// `Allocate` names a CDI device, and `PreStartContainer` writes what that is (containerd 2, CRI-O).
    Cdi,
    /// `Allocate` gives mounts, and the pod's environment takes the cards from an annotation (containerd 1.6).
    Mounts,
}

/// What `Allocate` answers for one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allotted {
    /// Variables.
    pub env: Vec<(String, String)>,
    /// Mounts.
    pub mounts: Vec<Mount>,
    /// CDI devices, as `vendor/class=name`.
    pub cdi_devices: Vec<String>,
}

/// A mount of the host's file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// On the host.
    pub host: PathBuf,
    /// In the container.
    pub container: PathBuf,
    /// Whether it cannot be written there.
    pub read_only: bool,
}

/// All that one container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// The pod's uid.
    pub pod_uid: String,
    /// Name of the container.
    pub container: String,
    /// Its cards, in the order in which it sees them.
    pub devices: Vec<GivenDevice>,
    /// 0 is high.
    pub priority: u32,
    /// How its share of compute holds.
    pub policy: Policy,
    /// The pod's trace, as the W3C `traceparent`, where it has one.
    pub traceparent: Option<String>,
}

/// A part of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenDevice {
    /// Of the card, or of the MIG instance.
    pub uuid: String,
    /// Memory limit in bytes.
    pub memory_bytes: u64,
    /// The card's (or instance's) memory as the driver has it.
    pub physical_bytes: u64,
    /// Percent of the card's compute; 0 is no cap.
    pub cores: u32,
    /// The instance that was cut out of a card for it.
    pub instance: Option<(MigProfile, Span)>,
}
