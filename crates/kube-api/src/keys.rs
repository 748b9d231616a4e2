//! Names of annotations and labels that belong to no single vendor. A vendor's own names are in its row.

/// The node of the pod's devices; annotation and label.
pub const VGPU_NODE: &str = "hami.io/vgpu-node";
/// When the devices were chosen, in seconds since 1970.
pub const VGPU_TIME: &str = "hami.io/vgpu-time";
/// The progress of the pod's allocation: `allocating`, `success`, `failed`.
pub const BIND_PHASE: &str = "hami.io/bind-phase";
/// When the pod was bound, in seconds since 1970.
pub const BIND_TIME: &str = "hami.io/bind-time";
/// MIG instances of the pod, as a JSON list.
pub const MIG_ALLOCATIONS: &str = "hami.io/vgpu-mig-allocations";
/// Allocations under the key in the seed's document.
pub const SEED_TO_ALLOCATE: &str = "hami.io/devices-to-allocate";

/// The NVIDIA devices of a node, as its agent registers them.
pub const NVIDIA_REGISTER: &str = "hami.io/node-nvidia-register";
/// How well the NVIDIA devices of a node are connected.
pub const NVIDIA_SCORE: &str = "hami.io/node-nvidia-score";
/// The heartbeat of NVIDIA's agent under the key in the seed's document: `Reported 2024-01-23 04:30:04`.
pub const SEED_HANDSHAKE: &str = "hami.io/node-handshake-nvidia";

/// On the node: the resources that the agent has reported in the node's capacity, separated by commas.
pub const REPORTED_CAPACITY: &str = "vgpu.io/reported-capacity";

/// On a pod: whether Cluster Autoscaler may evict it to remove its node.
pub const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// On a pod: `true` keeps Karpenter from evicting it to remove its node.
pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";

/// The prefix of the annotations that tell one container each which devices it sees, for runtimes without CDI. See
/// [`visible_devices`].
pub const VISIBLE_DEVICES_PREFIX: &str = "vgpu.io/visible-devices-";

/// The pod's trace, as the W3C `traceparent`.
pub const TRACEPARENT: &str = "vgpu.io/traceparent";

/// Which of several nodes a pod prefers: `binpack` or `spread`.
pub const NODE_POLICY: &str = "hami.io/node-scheduler-policy";
/// Which devices of a node a pod prefers: `spread`, `binpack`, `mutex`, `topology-aware`, or a list (`binpack,numa`).
pub const DEVICE_POLICY: &str = "hami.io/gpu-scheduler-policy";
/// The weights in a device's score: `slot=1,core=1,memory=1`.
pub const SCORING_WEIGHTS: &str = "hami.io/device-scoring-weights";

/// Whether all devices of a container must be on one NUMA node; a boolean. NVIDIA's.
pub const NUMA_BIND: &str = "nvidia.com/numa-bind";
/// A text that contains the mode of the device (`hami-core`, `mig`, `mps`). NVIDIA's.
pub const VGPU_MODE: &str = "nvidia.com/vgpu-mode";
/// On the node: changes when the node has room again, so that kube-scheduler retries pending pods; unix milliseconds.
pub const CAPACITY_FREED: &str = "vgpu.io/capacity-freed";

/// Devices of a node that get no new pods, as a list of identifiers.
pub const CORDON: &str = "hami.io/device-cordon";
/// The node lock that the reference takes; vgpu does not.
pub const NODE_LOCK: &str = "hami.io/mutex.lock";

/// On a claim or a volume: its class, as written before `spec.storageClassName` existed.
pub const OLD_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// On a storage class: `true` makes it the class of claims without one.
pub const DEFAULT_STORAGE_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// On a claim: the binding to its volume is complete.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// On a claim: the node for which a volume has to be made.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The prefix of the simulator's results.
pub const SIMULATOR_RESULTS: &str = "kube-scheduler-simulator.sigs.k8s.io/";
/// The prefix before November 2024.
pub const OLD_SIMULATOR_RESULTS: &str = "scheduler-simulator/";

/// A namespace's name; label.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// A node's kind of machine; label.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";

/// `ignore` exempts a pod or a namespace from the webhook; label.
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

/// The annotation with the devices that a container sees, as a value of `NVIDIA_VISIBLE_DEVICES`. Its key is the
/// prefix plus the first ten hex digits of the SHA-256 of the container's name (`printf %s NAME | sha256sum | head -c
/// 10`), because a container's name may be longer than a key may be.
pub fn visible_devices(container: &str) -> String {
    use sha2::Digest as _;
    use std::fmt::Write as _;

    let hash = sha2::Sha256::digest(container.as_bytes());
    let mut key = VISIBLE_DEVICES_PREFIX.to_owned();
    for byte in hash.iter().take(5) {
        // Writing to a String cannot fail.
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
