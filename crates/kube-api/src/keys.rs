//! Names of annotations and labels that belong to no single vendor. Those of a vendor stand in its row.

/// Node that the pod's devices lie on; annotation and label.
pub const VGPU_NODE: &str = "hami.io/vgpu-node";
/// When the devices were chosen, in seconds since 1970.
pub const VGPU_TIME: &str = "hami.io/vgpu-time";
/// How far the pod's devices are: `allocating`, `success`, `failed`.
pub const BIND_PHASE: &str = "hami.io/bind-phase";
/// When the pod was bound, in seconds since 1970.
pub const BIND_TIME: &str = "hami.io/bind-time";
/// MIG instances of the pod, as a JSON list.
pub const MIG_ALLOCATIONS: &str = "hami.io/vgpu-mig-allocations";
/// Allocations under the key that the seed's document names.
pub const SEED_TO_ALLOCATE: &str = "hami.io/devices-to-allocate";

/// NVIDIA cards of a node, as its agent registers them.
pub const NVIDIA_REGISTER: &str = "hami.io/node-nvidia-register";
/// How well NVIDIA cards of a node reach each other.
pub const NVIDIA_SCORE: &str = "hami.io/node-nvidia-score";
/// Sign of life of NVIDIA's agent under the key that the seed's document names: `Reported 2024-01-23 04:30:04`.
pub const SEED_HANDSHAKE: &str = "hami.io/node-handshake-nvidia";

/// How the annotations begin that tell one container each which cards it sees, where the runtime has no CDI. See
/// [`visible_devices`].
pub const VISIBLE_DEVICES_PREFIX: &str = "vgpu.io/visible-devices-";

/// The trace that a pod's way through our parts belongs to, as the W3C `traceparent`.
pub const TRACEPARENT: &str = "vgpu.io/traceparent";

/// Which of several nodes a pod prefers: `binpack` or `spread`.
pub const NODE_POLICY: &str = "hami.io/node-scheduler-policy";
/// Which cards of a node a pod prefers: `spread`, `binpack`, `mutex`, `topology-aware`, or a list (`binpack,numa`).
pub const DEVICE_POLICY: &str = "hami.io/gpu-scheduler-policy";
/// What counts how much in a card's score: `slot=1,core=1,memory=1`.
pub const SCORING_WEIGHTS: &str = "hami.io/device-scoring-weights";

/// All cards of a container on one NUMA node; a truth value. NVIDIA's.
pub const NUMA_BIND: &str = "nvidia.com/numa-bind";
/// A text of which the mode of a card is a part (`hami-core`, `mig`, `mps`). NVIDIA's.
pub const VGPU_MODE: &str = "nvidia.com/vgpu-mode";
/// On the node: changes when it has room again, so that kube-scheduler looks at pending pods; unix milliseconds.
pub const CAPACITY_FREED: &str = "vgpu.io/capacity-freed";

/// Cards of a node that get nothing new, as a list of identifiers.
pub const CORDON: &str = "hami.io/device-cordon";
/// The lock of a node that the reference takes; nothing of ours does.
pub const NODE_LOCK: &str = "hami.io/mutex.lock";

/// On a claim: its class, as written before `spec.storageClassName` was there; on a volume likewise.
pub const OLD_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// On a storage class: `true` gives it to claims without a class.
pub const DEFAULT_STORAGE_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// On a claim: the binding to its volume is complete.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// On a claim: the node for which a volume has to be made.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// What the results of the simulator begin with.
pub const SIMULATOR_RESULTS: &str = "kube-scheduler-simulator.sigs.k8s.io/";
/// What they began with before November 2024.
pub const OLD_SIMULATOR_RESULTS: &str = "scheduler-simulator/";

/// A namespace's name; label.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// A node's kind of machine; label.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";

/// `ignore` keeps the webhook away from a pod or a namespace; label.
pub const WEBHOOK: &str = "hami.io/webhook";
/// Pods that are placed together; label.
pub const POD_GROUP: &str = "scheduling.x-k8s.io/pod-group";

/// Annotations of a pod that only the scheduler and the node agents write, whatever the vendor.
pub const ALLOCATION: [&str; 6] = [
    VGPU_NODE,
    VGPU_TIME,
    BIND_PHASE,
    BIND_TIME,
    MIG_ALLOCATIONS,
    SEED_TO_ALLOCATE,
];

/// The annotation that says which cards a container sees, as a value of `NVIDIA_VISIBLE_DEVICES`: the prefix and the
/// first ten hex digits of the SHA-256 of the container's name (`printf %s NAME | sha256sum | head -c 10`), since a
/// container's name may be longer than a key may be.
pub fn visible_devices(container: &str) -> String {
    use sha2::Digest as _;
    use std::fmt::Write as _;

    let hash = sha2::Sha256::digest(container.as_bytes());
    let mut key = VISIBLE_DEVICES_PREFIX.to_owned();
    for byte in hash.iter().take(5) {
        // A String takes all that is written to it.
        write!(key, "{byte:02x}").unwrap_or_default();
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_container_is_what_sha256sum_says() {
        assert_eq!(
            visible_devices("main"),
            "vgpu.io/visible-devices-0d6e4079e3"
        );
        let longest = "c".repeat(63);
        assert!(visible_devices(&longest).len() - "vgpu.io/".len() <= 63);
    }
}
