//! What the operator decides. Never which resources there are: that is the device configuration's.

use kube_api::request::Defaults;

/// Who gives the containers on the nodes their devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Agent {
    /// `vgpu-monitor`: it mounts `/etc/ld.so.preload` and chooses the devices at the last moment, so
    /// `NVIDIA_VISIBLE_DEVICES=void` in the pod does no harm.
    #[default]
    Ours,
    /// The reference's device plugin: it says the devices in `NVIDIA_VISIBLE_DEVICES`, which a value in the pod would
    /// beat, so containers with a GPU are left without one.
    Peer,
    /// None: the library must be in the image, and `LD_PRELOAD` is set in each container with a GPU.
    None,
}

/// Settings of admission. `Default` is what the chart installs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The scheduler of pods that ask for our devices. Empty: pods keep theirs, and may name their node.
    pub scheduler_name: String,
    /// Whether pods of `default-scheduler` are taken. An API server writes that name into every pod that names none
    /// before it asks a webhook, so without this only pods that name our scheduler are ours.
    pub force_overwrite_default_scheduler: bool,
    /// Who may write what only the scheduler and the node agents write: user names, such as
    /// `system:serviceaccount:vgpu-system:vgpu-scheduler`.
    pub own_accounts: Vec<String>,
    /// Namespaces whose pods are neither looked at nor changed. The product's own namespace belongs here: its agents
    /// are privileged.
    pub exempt_namespaces: Vec<String>,
    /// Who may keep a pod from us by the label `hami.io/webhook: ignore`: user names, as in `own_accounts`. A pod that
    /// a controller makes is made by the controller's account.
    pub ignore_label_accounts: Vec<String>,
    /// Whether everybody may, as in the reference, where the label in a tenant's pod switches all limits off. The label
    /// of a namespace always counts.
    pub ignore_label_for_all: bool,
    /// Who gives the devices.
    pub agent: Agent,
    /// Whether `LD_PRELOAD` is set in every container with a GPU, and not only in those that set it themselves.
    pub always_preload: bool,
    /// The library, as a path in the container.
    pub library: String,
    /// Whether containers with a GPU get `NVIDIA_VISIBLE_DEVICES` from the pod's annotation, for nodes whose runtime
    /// has no CDI (containerd 1.6).
    pub devices_by_annotation: bool,
    /// Whether pods with a GPU may share the host's process ids.
    pub allow_host_pid: bool,
    /// Policies that hold where a pod names none. They decide nothing here; a pod's own are read to see that they can
    /// be.
    pub defaults: Defaults,
    /// Names of both webhook configurations.
    pub configuration_name: String,
    /// Whether the API server knows match conditions (Kubernetes 1.28 and later). Without them every pod is sent, so a
    /// webhook that is down is ignored.
    pub match_conditions: bool,
    /// How long the API server waits for an answer, in seconds: 1 to 30.
    pub timeout_seconds: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            scheduler_name: "hami-scheduler".into(),
            force_overwrite_default_scheduler: true,
            own_accounts: Vec::new(),
            exempt_namespaces: vec!["kube-system".into()],
            ignore_label_accounts: Vec::new(),
            ignore_label_for_all: false,
            agent: Agent::Ours,
            always_preload: false,
            library: "/usr/local/vgpu/libvgpu.so".into(),
            devices_by_annotation: false,
            allow_host_pid: false,
            defaults: Defaults {
                node_policy: "binpack".into(),
                device_policy: "spread".into(),
            },
            configuration_name: "vgpu-webhook".into(),
            match_conditions: true,
            timeout_seconds: 10,
        }
    }
}
