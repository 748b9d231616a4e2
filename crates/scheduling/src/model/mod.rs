//! Compact values of what a scheduler reads of a cluster, and how they are read from Kubernetes objects. Never the
//! whole object: what no plugin reads is left out.
//!
//! Objects come in as [`serde_json::Value`], since that is how the embedded cluster, exports and recordings hold them.
//! Reading is as lenient as Go's decoder: what is null or absent is empty, quantities may be numbers, unknown fields
//! are skipped.

mod node;
mod pod;
mod resources;
mod selector;
mod storage;
mod wire;

pub use node::{Effect, Node, Taint};
pub use pod::{
    AffinityTerm, Claim, HostPort, Pod, PodAffinity, Protocol, Spread, Toleration, Volume, Weighted,
};
pub use resources::{Resources, is_extended, is_scalar};
pub use selector::{Labels, NodeSelector, NodeTerm, Preferred, Requirement, Rule, Selector};
pub use storage::{
    BindingMode, Budget, CsiDriver, CsiNode, PersistentVolume, PersistentVolumeClaim, StorageClass,
    TopologyTerm, Workload,
};

pub(crate) use pod::spread;
pub(crate) use selector::{node_selector, preferred};
pub(crate) use storage::namespace;

/// Why an object cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// A field has another type than Kubernetes gives it, or a value that Kubernetes does not know.
    #[error("{object}: {problem}")]
    Malformed {
        /// Kind and name of the object, as far as they are known.
        object: String,
        /// What was read, and what is accepted.
        problem: String,
    },
    /// An amount cannot be read.
    #[error("{object}: {field}: {problem}")]
    Amount {
        /// Kind and name of the object.
        object: String,
        /// Where the amount stands.
        field: String,
        /// What was read, and what is accepted.
        problem: String,
    },
    /// The object has no name.
    #[error("a {kind} has no metadata.name; give it one")]
    Nameless {
        /// Its kind.
        kind: &'static str,
    },
}
