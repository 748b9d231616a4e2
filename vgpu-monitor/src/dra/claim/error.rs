//! Why a claim gives nothing on this node. The kubelet shows these texts at the pod and asks again.

use kube_api::shares::parameters::ParametersError;

use super::Asked;
use crate::dra::DRIVER;

/// Why a claim has no shares here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The claim was replaced by another one of its name.
    #[error(
        "{asked} has the uid {found:?}, and the kubelet asks about {:?}: the claim was deleted and another one of \
             this name made. Delete the pod, so that one comes with the present claim", asked.uid
    )]
    OtherUid {
        /// The claim that the kubelet asks about.
        asked: Asked,
        /// The uid of the claim that has this name.
        found: String,
    },
    /// The claim has no allocation.
    #[error("{0} has no allocation: no scheduler has given it a device, or it was taken back")]
    NoAllocation(Asked),
    /// All its devices are other drivers'.
    #[error(
        "{asked} has no device of {DRIVER}; its devices are of: {}",
        listed(others)
    )]
    NoneOfOurs {
        /// The claim.
        asked: Asked,
        /// The drivers of its devices.
        others: Vec<String>,
    },
    /// One of its devices cannot be given.
    #[error("{asked}: request {request}: {why}")]
    Share {
        /// The claim.
        asked: Asked,
        /// The request that the device is for.
        request: String,
        /// Why not.
        why: Box<ShareError>,
    },
}

/// Why one device of a claim cannot be given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// The device is another node's.
    #[error("its device {device} is in the pool {found:?}, and this node's is {ours:?}")]
    OtherPool {
        /// The device.
        device: String,
        /// Its pool.
        found: String,
        /// This node's pool.
        ours: String,
    },
    /// The request asks for a device without a limit.
    #[error("adminAccess is not served: a share is always limited. Leave adminAccess out")]
    AdminAccess,
    /// The node has no such device.
    #[error("device {device} is not on this node; there are: {}", listed(known))]
    NotHere {
        /// The device.
        device: String,
        /// The node's devices.
        known: Vec<String>,
    },
    /// The scheduler has charged nothing.
    #[error(
        "its allocation of device {device} has no consumedCapacity, so the share is not known. The feature gate \
             DRAConsumableCapacity has to be on in kube-apiserver and kube-scheduler (by default from Kubernetes 1.36)"
    )]
    NothingConsumed {
        /// The device.
        device: String,
    },
    /// The scheduler has charged nothing of this capacity.
    #[error("its consumedCapacity has no {capacity}; it has {}", listed(known))]
    NotConsumed {
        /// The capacity.
        capacity: String,
        /// The capacities that it has charged.
        known: Vec<String>,
    },
    /// The memory that was charged is none.
    #[error(
        "its consumedCapacity has memory {0:?}; accepted: a number of bytes above 0, such as 4Gi"
    )]
    Memory(String),
    /// The cores that were charged are none.
    #[error(
        "its consumedCapacity has cores {0:?}; accepted: a whole number of percent from 0 to 100"
    )]
    Cores(String),
    /// The parameters of the claim or of its class are not ours.
    #[error("the parameters of {of} {why}")]
    Parameters {
        /// `the claim` or `the DeviceClass`.
        of: &'static str,
        /// What is wrong with them.
        why: ParametersError,
    },
}

/// Why a claim's shares cannot be divided among containers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// A container would have two shares of one GPU.
    #[error(
        "one container would get GPU {gpu} twice (requests {first} and {second}). Ask for different GPUs by the \
             constraint distinctAttribute: {DRIVER}/uuid, or for one larger share"
    )]
    SameGpu {
        /// The GPU.
        gpu: String,
        /// A request that it was given for.
        first: String,
        /// The other one.
        second: String,
    },
    /// A container would have two sets of parameters.
    #[error(
        "request {second} has other parameters than {first}, and a container uses both: give both the same"
    )]
    OtherParameters {
        /// A request.
        first: String,
        /// The request with other parameters.
        second: String,
    },
}

fn listed(words: &[String]) -> String {
    if words.is_empty() {
        String::from("none")
    } else {
        words.join(", ")
    }
}
