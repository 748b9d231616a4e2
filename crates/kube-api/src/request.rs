//! A pod as a question to the engine.

use placement::Request;

use crate::object::Pod;
use crate::vendor::Vendors;

/// What holds where the pod says nothing, by the scheduler's flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// `binpack` or `spread`.
    pub node_policy: String,
    /// `spread`, `binpack`, `mutex`, `topology-aware`, or a list such as `binpack,numa`.
    pub device_policy: String,
}

/// Why a pod's request cannot be understood. It fits nowhere until the pod is written anew.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// An amount that is no amount, or none of this resource.
    #[error("container {container}: {resource}: {problem}")]
    Amount {
        /// Name of the container.
        container: String,
        /// Name of the resource.
        resource: String,
        /// What was read, what is accepted.
        problem: String,
    },
    /// An annotation that says nothing that we know.
    #[error("annotation {key}: {problem}")]
    Annotation {
        /// Its key.
        key: String,
        /// What was read, what is accepted.
        problem: String,
    },
}

/// What the pod asks for. It asks for nothing when `asks_for_devices` says so.
///
/// # Errors
///
/// When an amount or an annotation cannot be read.
pub fn request(pod: &Pod, vendors: &Vendors, defaults: &Defaults) -> Result<Request, RequestError> {
    let _ = (pod, vendors, defaults);
    unimplemented!()
}
