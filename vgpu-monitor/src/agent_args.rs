//! Flags that several of the agent's processes take: each with its variable and its default. Nothing here acts on them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use server::flags::{LogArgs, address};

/// Flags about the NVIDIA driver that every process of the agent takes (`#[command(flatten)]`).
#[derive(Debug, Clone, clap::Args)]
pub struct DriverArgs {
    /// How many seconds the NVIDIA driver's files in this container may be unusable while the kernel has the driver.
    /// Then the process exits, so that the kubelet restarts the container with the present files. 0: never exit for
    /// this reason.
    #[arg(long, env = "VGPU_DRIVER_PATIENCE", value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub driver_patience: u32,

    /// The kernel's sysfs.
    #[arg(
        long,
        env = "VGPU_SYSFS",
        value_name = "DIR",
        default_value = "/sys",
        hide = true
    )]
    pub sysfs: PathBuf,
}

/// The flags of the process that gives containers their devices: the device plugin, or the DRA driver in its place
/// (`#[command(flatten)]`).
#[derive(Debug, Clone, clap::Args)]
#[command(
    mut_arg("log", |flag| flag.env("VGPU_MONITOR_LOG")),
    mut_arg("log_format", |flag| flag.env("VGPU_MONITOR_LOG_FORMAT"))
)]
pub struct AgentArgs {
    /// Name of this node's Node object.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node_name: String,

    /// Directory of the host that outlives the agent: containers, libraries, the record of what was given.
    #[arg(
        long,
        env = "VGPU_STATE_DIR",
        value_name = "DIR",
        default_value = "/var/lib/vgpu"
    )]
    pub state_dir: PathBuf,

    /// The kubelet's directory; its folders for plugins and pod-resources are used.
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

    /// containerd's configuration, which says whether CDI is switched on (it may be absent).
    #[arg(
        long,
        env = "VGPU_RUNTIME_CONFIG",
        value_name = "FILE",
        default_value = "/etc/containerd/config.toml"
    )]
    pub runtime_config: PathBuf,

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

    /// Prefix under which this process sees the host's paths; none by default.
    #[arg(long, env = "VGPU_HOST_PREFIX", value_name = "DIR")]
    pub host_prefix: Option<PathBuf>,

    /// A kubeconfig file; by default the pod's own service account.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Make the exporter's calls of the API server: events, its node's pods, evictions. It connects to this socket, and
    /// needs no token of its own.
    #[arg(long, env = "VGPU_EXPORTER_SOCKET", value_name = "FILE")]
    pub exporter_socket: Option<PathBuf>,

    /// The key of the pod label that names the pod's team: metrics sum up by team what pods use.
    #[arg(
        long,
        env = "VGPU_TEAM_LABEL",
        value_name = "LABEL",
        default_value = "team"
    )]
    pub team_label: String,

    /// The driver.
    #[command(flatten)]
    pub driver: DriverArgs,

    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}

impl AgentArgs {
    /// A path of the host as this process sees it.
    #[must_use]
    pub fn seen(&self, host: &Path) -> PathBuf {
        match &self.host_prefix {
            Some(prefix) => prefix.join(host.strip_prefix("/").unwrap_or(host)),
            None => host.to_owned(),
        }
    }
}
