//! Every setting of `vgpu-monitor plugin` and `vgpu-monitor install`: a flag, its variable, its default.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Parser, ValueEnum};
use server::TraceArgs;

use crate::address::address;
use crate::exporter::Detail;
use crate::inventory::MigStrategy;
use crate::logging::LogArgs;

/// Settings of `vgpu-monitor plugin`.
#[derive(Debug, Clone, Parser)]
pub struct PluginArgs {
    /// Name of this node's Node object.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node_name: String,

    /// Directory of the host that outlives the agent: containers, libraries, allotments.
    #[arg(
        long,
        env = "VGPU_STATE_DIR",
        value_name = "DIR",
        default_value = "/var/lib/vgpu"
    )]
    pub state_dir: PathBuf,

    /// The kubelet's directory; its device-plugins and pod-resources are used.
    #[arg(
        long,
        env = "VGPU_KUBELET_DIR",
        value_name = "DIR",
        default_value = "/var/lib/kubelet"
    )]
    pub kubelet_dir: PathBuf,

    /// Directory for CDI descriptions, which the container runtime reads.
    #[arg(
        long,
        env = "VGPU_CDI_DIR",
        value_name = "DIR",
        default_value = "/var/run/cdi"
    )]
    pub cdi_dir: PathBuf,

    /// How the runtime learns what a container gets; auto goes by the runtime's version in the Node object and by its
    /// configuration.
    #[arg(long, env = "VGPU_MANNER", value_enum, default_value_t = MannerArg::Auto)]
    pub manner: MannerArg,

    /// containerd's configuration, which says whether CDI is switched on (it may be absent).
    #[arg(
        long,
        env = "VGPU_RUNTIME_CONFIG",
        value_name = "FILE",
        default_value = "/etc/containerd/config.toml"
    )]
    pub runtime_config: PathBuf,

    /// The webhook adds the variable with a pod's GPUs that mounts need (its flag of this name). Without it a node
    /// whose runtime has no CDI gets no pod.
    #[arg(long, env = "VGPU_DEVICES_BY_ANNOTATION", value_name = "BOOL", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, default_missing_value = "true", default_value_t = true, action = clap::ArgAction::Set,
          require_equals = true)]
    pub devices_by_annotation: bool,

    /// The runtime class that the webhook gives pods with GPUs; none by default.
    #[arg(
        long,
        env = "VGPU_POD_RUNTIME_CLASS",
        value_name = "NAME",
        default_value = ""
    )]
    pub pod_runtime_class: String,

    /// The device configuration that scheduler and webhook also read; by default the standard one.
    #[arg(long, env = "VGPU_DEVICE_CONFIG_FILE", value_name = "FILE")]
    pub device_config_file: Option<PathBuf>,

    /// Per-node overrides of the device configuration ({"nodeconfig": […]}); the file may be absent.
    #[arg(
        long,
        env = "VGPU_NODE_CONFIG_FILE",
        value_name = "FILE",
        default_value = "/config/config.json"
    )]
    pub node_config_file: PathBuf,

    /// The library for containers, in this image.
    #[arg(
        long,
        env = "VGPU_LIBRARY",
        value_name = "FILE",
        default_value = "/usr/lib/vgpu/libvgpu.so"
    )]
    pub library: PathBuf,

    /// How GPUs in MIG mode are offered: none, or mixed (instances are created as pods ask for them).
    #[arg(
        long,
        env = "VGPU_MIG_STRATEGY",
        value_name = "STRATEGY",
        default_value = "none"
    )]
    pub mig_strategy: MigStrategy,

    /// Address to serve `/metrics`, `/healthz` and `/readyz` on: ADDRESS:PORT, or :PORT for every address of
    /// the node.
    #[arg(
        long,
        env = "VGPU_PLUGIN_METRICS_ADDR",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:31992",
        value_parser = address
    )]
    pub metrics_addr: SocketAddr,

    /// How many series are served: full (all of them), or standard (what the alerts and the accounts need).
    #[arg(long, env = "VGPU_METRICS_DETAIL", value_enum, value_name = "DETAIL", default_value_t = Detail::Full)]
    pub metrics_detail: Detail,

    /// Form of the register annotation; auto writes JSON if a GPU has properties that the colon form cannot
    /// express.
    #[arg(long, env = "VGPU_REGISTER_FORMAT", value_enum, default_value_t = FormatArg::Auto)]
    pub register_format: FormatArg,

    /// How many seconds the NVIDIA driver's files in this container may be unusable while the kernel has the driver.
    /// Then the process exits, so that the kubelet restarts the container with the present files. 0: never exit for
    /// this reason.
    #[arg(long, env = "VGPU_DRIVER_PATIENCE", value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub driver_patience: u32,

    /// Prefix under which this process sees the host's paths; none by default.
    #[arg(long, env = "VGPU_HOST_PREFIX", value_name = "DIR")]
    pub host_prefix: Option<PathBuf>,

    /// Vendors whose GPUs are served, by their names in the device configuration.
    #[arg(
        long,
        env = "VGPU_VENDORS",
        value_name = "WORD",
        value_delimiter = ',',
        default_value = "NVIDIA"
    )]
    pub vendors: Vec<String>,

    /// A kubeconfig file; by default the pod's own service account.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Make the exporter's calls of the API server: events, its node's pods, evictions. It connects to this socket, and
    /// needs no token of its own.
    #[arg(long, env = "VGPU_EXPORTER_SOCKET", value_name = "FILE")]
    pub exporter_socket: Option<PathBuf>,

    /// Namespace of the agent's Lease.
    #[arg(
        long,
        env = "POD_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "kube-system"
    )]
    pub namespace: String,

    /// Keep the node's ComputeNode and ComputeTopology (hcs.io/v1alpha1); the cluster must have their
    /// definitions.
    #[arg(long, env = "VGPU_HCS", value_name = "BOOL", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, default_missing_value = "true", default_value_t = false, require_equals = true)]
    pub hcs: bool,

    /// Report memory and compute of the node's GPUs in the Node's capacity, which cluster autoscalers simulate by.
    #[arg(long, env = "VGPU_REPORT_CAPACITY", value_name = "BOOL", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, default_missing_value = "true", default_value_t = false, require_equals = true)]
    pub report_capacity: bool,

    /// The key of the pod label that names the pod's team: metrics sum up by team what pods use.
    #[arg(
        long,
        env = "VGPU_TEAM_LABEL",
        value_name = "LABEL",
        default_value = "team"
    )]
    pub team_label: String,

    /// The kernel's sysfs.
    #[arg(
        long,
        env = "VGPU_SYSFS",
        value_name = "DIR",
        default_value = "/sys",
        hide = true
    )]
    pub sysfs: PathBuf,

    /// This process is the one behind the front of that process number; standard input is its connection.
    #[arg(long, value_name = "PID", hide = true)]
    pub front: Option<u32>,

    /// How many processes the front has replaced.
    #[arg(long, value_name = "COUNT", default_value_t = 0, hide = true)]
    pub restarts: u64,

    /// Traces.
    #[command(flatten)]
    pub traces: TraceArgs,

    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// How the runtime learns what a container gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MannerArg {
    /// Whichever the runtime supports.
    Auto,
    /// By CDI: containerd from 2.0, or 1.7 with enable_cdi, CRI-O from 1.28.
    Cdi,
    /// By mounts, and a variable that the webhook adds to pods: containerd 1.6, or 1.7 without enable_cdi.
    Mounts,
}

/// Form of the register annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// Whichever the GPUs need.
    Auto,
    /// Commas and colons.
    Colon,
    /// A JSON list.
    Json,
}

/// Settings of `vgpu-monitor install`.
#[derive(Debug, Clone, Parser)]
pub struct InstallArgs {
    /// The directory of libraries; each version has a directory of its own in it.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/vgpu/lib")]
    pub to: PathBuf,

    /// The library, in this image.
    #[arg(
        long,
        env = "VGPU_LIBRARY",
        value_name = "FILE",
        default_value = "/usr/lib/vgpu/libvgpu.so"
    )]
    pub library: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};

    #[test]
    fn chart_flags_are_accepted_and_the_rest_has_defaults() {
        let given = [
            "vgpu-monitor",
            "plugin",
            "--node-name=n1",
            "--manner=mounts",
            "--mig-strategy=mixed",
            "--register-format=json",
            "--metrics-addr=:1",
        ];
        let Some(Command::Plugin(args)) = Args::try_parse_from(given).unwrap().command else {
            panic!("no plugin command");
        };

        assert_eq!(args.manner, MannerArg::Mounts);
        assert_eq!(args.mig_strategy, MigStrategy::Mixed);
        assert_eq!(args.register_format, FormatArg::Json);
        assert_eq!(args.kubelet_dir, PathBuf::from("/var/lib/kubelet"));
        assert_eq!(args.host_prefix, None);
        assert_eq!(args.vendors, ["NVIDIA"]);
    }
}
