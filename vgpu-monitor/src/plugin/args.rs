//! Every setting of `vgpu-monitor plugin` and `vgpu-monitor install`: a flag, its variable, its default.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Parser, ValueEnum};
use server::{LogFormat, TraceArgs};

use crate::address::address;
use crate::inventory::MigStrategy;

/// Settings of `vgpu-monitor plugin`.
#[derive(Debug, Clone, Parser)]
pub struct PluginArgs {
    /// Name of this node's object.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node_name: String,

    /// Directory of the host that outlives the agent: containers, libraries, what was handed out.
    #[arg(
        long,
        env = "VGPU_STATE_DIR",
        value_name = "DIR",
        default_value = "/var/lib/vgpu"
    )]
    pub state_dir: PathBuf,

    /// The kubelet's directory; read are its device-plugins and pod-resources.
    #[arg(
        long,
        env = "VGPU_KUBELET_DIR",
        value_name = "DIR",
        default_value = "/var/lib/kubelet"
    )]
    pub kubelet_dir: PathBuf,

    /// Where descriptions for the runtime (CDI) are written.
    #[arg(
        long,
        env = "VGPU_CDI_DIR",
        value_name = "DIR",
        default_value = "/var/run/cdi"
    )]
    pub cdi_dir: PathBuf,

    /// How the runtime is told what a container gets; auto asks the Node object which runtime it is.
    #[arg(long, env = "VGPU_MANNER", value_enum, default_value_t = MannerArg::Auto)]
    pub manner: MannerArg,

    /// The device configuration that scheduler and webhook read; by default the standard one.
    #[arg(long, env = "VGPU_DEVICE_CONFIG_FILE", value_name = "FILE")]
    pub device_config_file: Option<PathBuf>,

    /// What holds on single nodes instead of it ({"nodeconfig": […]}); it may be absent.
    #[arg(
        long,
        env = "VGPU_NODE_CONFIG_FILE",
        value_name = "FILE",
        default_value = "/config/config.json"
    )]
    pub node_config_file: PathBuf,

    /// The library that containers get, in this image.
    #[arg(
        long,
        env = "VGPU_LIBRARY",
        value_name = "FILE",
        default_value = "/usr/lib/vgpu/libvgpu.so"
    )]
    pub library: PathBuf,

    /// How cards in MIG mode are offered: none, or mixed (instances are made as pods ask for them).
    #[arg(
        long,
        env = "VGPU_MIG_STRATEGY",
        value_name = "STRATEGY",
        default_value = "none"
    )]
    pub mig_strategy: MigStrategy,

    /// Where to serve `/metrics`, `/healthz` and `/readyz`: ADDRESS:PORT, or :PORT for every address of the node.
    #[arg(
        long,
        env = "VGPU_PLUGIN_METRICS_ADDR",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:31992",
        value_parser = address
    )]
    pub metrics_addr: SocketAddr,

    /// Form of the register annotation; auto writes JSON where a card has what colons cannot say.
    #[arg(long, env = "VGPU_REGISTER_FORMAT", value_enum, default_value_t = FormatArg::Auto)]
    pub register_format: FormatArg,

    /// What a path of the host begins with as this process sees it; by default they are the same.
    #[arg(long, env = "VGPU_HOST_PREFIX", value_name = "DIR")]
    pub host_prefix: Option<PathBuf>,

    /// Words of the vendors whose cards are served, each under its resource of the device configuration.
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

    /// Namespace of the agent's Lease.
    #[arg(
        long,
        env = "POD_NAMESPACE",
        value_name = "NAMESPACE",
        default_value = "kube-system"
    )]
    pub namespace: String,

    /// Keep the node's ComputeNode and ComputeTopology (hcs.io/v1alpha1), whose definitions the cluster has to have.
    #[arg(long, env = "VGPU_HCS", value_name = "BOOL", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, default_missing_value = "true", default_value_t = false, require_equals = true)]
    pub hcs: bool,

    /// Where the kernel tells of devices.
    #[arg(
        long,
        env = "VGPU_SYSFS",
        value_name = "DIR",
        default_value = "/sys",
        hide = true
    )]
    pub sysfs: PathBuf,

    /// Traces.
    #[command(flatten)]
    pub traces: TraceArgs,

    /// What to log: error, warn, info, debug, or directives such as warn,vgpu_monitor=debug.
    #[arg(
        long,
        env = "VGPU_MONITOR_LOG",
        value_name = "FILTER",
        default_value = "info"
    )]
    pub log: String,

    /// How a log line looks.
    #[arg(long, env = "VGPU_MONITOR_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// How the runtime is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MannerArg {
    /// As the runtime can be told.
    Auto,
    /// By CDI: containerd from 2.0, CRI-O from 1.28.
    Cdi,
    /// By mounts, and a variable that the webhook puts into pods: containerd 1.6.
    Mounts,
}

/// Form of the register annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// As the cards need it.
    Auto,
    /// Commas and colons.
    Colon,
    /// A JSON list.
    Json,
}

/// Settings of `vgpu-monitor install`.
#[derive(Debug, Clone, Parser)]
pub struct InstallArgs {
    /// The directory of libraries; each version has one below it.
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
