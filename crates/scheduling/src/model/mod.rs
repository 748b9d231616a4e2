//! Compact values of the parts of a cluster that a scheduler reads, and how they are read from Kubernetes objects.
//! Fields that no plugin reads are left out.
//!
//! Objects come in as [`serde_json::Value`], because the embedded cluster, exports and recordings hold them so.
//! Reading is as lenient as Go's decoder: a null or absent field is empty, quantities may be numbers, unknown fields
//! are skipped.

mod node;
mod pod;
mod resources;
mod selector;
mod storage;
mod wire;

use kube_api::allocation::AllocationError;
use kube_api::request::RequestError;

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
    /// A field's type differs from the one in Kubernetes, or its value is not one that Kubernetes knows.
    #[error("{object}: {problem}")]
    Malformed {
        /// Kind and name of the object, as far as they are known.
        object: String,
        /// The value that was read and the values that are accepted.
        problem: String,
    },
    /// An amount cannot be read.
    #[error("{object}: {field}: {problem}")]
    Amount {
        /// Kind and name of the object.
        object: String,
        /// The path of the field.
        field: String,
        /// The value that was read and the values that are accepted.
        problem: String,
    },
    /// The object has no name.
    #[error("a {kind} has no metadata.name; give it one")]
    Nameless {
        /// Its kind.
        kind: &'static str,
    },
}

/// Why the shared devices of a pod cannot be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DevicesError {
    /// The pod has another form than Kubernetes gives it.
    #[error("{0}")]
    Malformed(String),
    /// Its request.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The annotations that say what it holds.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
}
