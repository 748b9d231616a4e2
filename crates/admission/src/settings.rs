//! The operator's settings of admission. Which resources exist is not among them: the device configuration says that.

use kube_api::request::Defaults;

/// The agent that gives containers on the nodes their devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Agent {
    /// `vgpu-monitor`: it mounts `/etc/ld.so.preload` and chooses the devices when the container starts, so
    /// `NVIDIA_VISIBLE_DEVICES=void` in the pod does no harm.
    #[default]
    Ours,
    /// HAMi's device plugin: it passes the devices in `NVIDIA_VISIBLE_DEVICES`. A value in the pod would override it,
    /// so containers with a GPU get none from admission.
    Peer,
    /// No agent: the library must be in the image, and `LD_PRELOAD` is set in each container with a GPU.
    None,
}

/// The settings of admission. The chart installs the values of `Default`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The scheduler of pods that ask for our devices. If empty, pods keep their own scheduler, and may name their
    /// node.
    pub scheduler_name: String,
    /// Whether pods of `default-scheduler` get our scheduler. An API server writes that name into every pod without one
    /// before it calls a webhook, so with `false` only pods that name our scheduler are admitted as ours.
    pub force_overwrite_default_scheduler: bool,
    /// The users that may write what only the scheduler and the node agents write, such as
    /// `system:serviceaccount:vgpu-system:vgpu-scheduler`.
    pub own_accounts: Vec<String>,
    /// Namespaces whose pods are neither checked nor changed. The product's own namespace belongs here, because its
    /// agents see all GPUs, and that of NVIDIA's GPU operator.
    pub exempt_namespaces: Vec<String>,
    /// The users that may exempt a pod by the label `hami.io/webhook: ignore`, written as in `own_accounts`. A pod that
    /// a controller creates is created by the controller's account.
    pub ignore_label_accounts: Vec<String>,
    /// Whether every user may exempt a pod, as in HAMi, where the label in a tenant's pod switches all limits off.
    pub ignore_label_for_all: bool,
    /// Whether the label `hami.io/webhook: ignore` of a namespace exempts its pods. Where tenants may label their
    /// namespaces it must not.
    pub ignore_namespace_label: bool,
    /// The runtime classes of NVIDIA's runtime, besides those that the device configuration gives pods. The runtime shows
    /// a container the GPUs that its image asks for, so every pod of these classes is reviewed.
    pub gpu_runtime_classes: Vec<String>,
    /// Whether containers without a GPU see none in all pods, and not only under `gpu_runtime_classes`: for nodes whose
    /// default runtime is NVIDIA's.
    pub hide_everywhere: bool,
    /// The agent that gives containers their devices.
    pub agent: Agent,
    /// Whether `LD_PRELOAD` is set in every container with a GPU, and not only in containers that set it themselves.
    pub always_preload: bool,
    /// The path of the library in the container.
    pub library: String,
    /// Whether containers with a GPU get `NVIDIA_VISIBLE_DEVICES` from the pod's annotation, for nodes whose runtime
    /// has no CDI (containerd 1.6).
    pub devices_by_annotation: bool,
    /// The answer of pods with a GPU to cluster autoscalers that want to remove their node; if it is not set, nothing
    /// is written.
    pub safe_to_evict: Option<bool>,
    /// Whether pods with a GPU may use the host's process ids.
    pub allow_host_pid: bool,
    /// The policies of pods that name none. They decide nothing in admission. The policies that a pod names are read
    /// only to refuse invalid ones.
    pub defaults: Defaults,
    /// The name of both webhook configurations.
    pub configuration_name: String,
    /// Whether the API server knows match conditions (Kubernetes 1.28 and later). Without them every pod is sent, so a
    /// webhook that is down is ignored.
    pub match_conditions: bool,
    /// Whether the cluster gives NVIDIA's GPUs by ResourceClaims: a pod's resources are replaced by claims.
    pub by_claims: bool,
    /// How long the API server waits for an answer, in seconds: 1 to 30.
    pub timeout_seconds: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            scheduler_name: "hami-scheduler".into(),
            force_overwrite_default_scheduler: true,
            own_accounts: Vec::new(),
            exempt_namespaces: vec!["kube-system".into(), "gpu-operator".into()],
            ignore_label_accounts: Vec::new(),
            ignore_label_for_all: false,
            ignore_namespace_label: true,
            gpu_runtime_classes: ["nvidia", "nvidia-cdi", "nvidia-legacy"]
                .map(str::to_owned)
                .to_vec(),
            hide_everywhere: false,
            agent: Agent::Ours,
            always_preload: false,
            library: "/usr/local/vgpu/libvgpu.so".into(),
            devices_by_annotation: false,
            safe_to_evict: None,
            allow_host_pid: false,
            defaults: Defaults {
                node_policy: "binpack".into(),
                device_policy: "spread".into(),
            },
            configuration_name: "vgpu-webhook".into(),
            match_conditions: true,
            by_claims: false,
            timeout_seconds: 10,
        }
    }
}
