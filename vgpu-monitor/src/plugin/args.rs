//! Every setting of `vgpu-monitor plugin` and `vgpu-monitor install`: a flag, its variable, its default.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Parser, ValueEnum};
use server::TraceArgs;

use crate::agent_args::AgentArgs;
use crate::exporter::Detail;
use crate::inventory::MigStrategy;

/// Settings of `vgpu-monitor plugin`.
#[derive(Debug, Clone, Parser)]
pub struct PluginArgs {
    /// The flags that the DRA driver takes, too.
    #[command(flatten)]
    pub agent: AgentArgs,

    /// How the runtime learns what a container gets; auto goes by the runtime's version in the Node object and by its
    /// configuration.
    #[arg(long, env = "VGPU_MANNER", value_enum, default_value_t = MannerArg::Auto)]
    pub manner: MannerArg,

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

    /// How GPUs in MIG mode are offered: none, or mixed (instances are created as pods ask for them).
    #[arg(
        long,
        env = "VGPU_MIG_STRATEGY",
        value_name = "STRATEGY",
        default_value = "none"
    )]
    pub mig_strategy: MigStrategy,

    /// How many series are served: full (all of them), or standard (what the alerts and the accounts need).
    #[arg(long, env = "VGPU_METRICS_DETAIL", value_enum, value_name = "DETAIL", default_value_t = Detail::Full)]
    pub metrics_detail: Detail,

    /// Form of the register annotation; auto writes JSON if a GPU has properties that the colon form cannot
    /// express.
    #[arg(long, env = "VGPU_REGISTER_FORMAT", value_enum, default_value_t = FormatArg::Auto)]
    pub register_format: FormatArg,

    /// Vendors whose GPUs are served, by their names in the device configuration.
    #[arg(
        long,
        env = "VGPU_VENDORS",
        value_name = "WORD",
        value_delimiter = ',',
        default_value = "NVIDIA"
    )]
    pub vendors: Vec<String>,

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

    /// This process is the one behind the front of that process number; standard input is its connection.
    #[arg(long, value_name = "PID", hide = true)]
    pub front: Option<u32>,

    /// How many processes the front has replaced.
    #[arg(long, value_name = "COUNT", default_value_t = 0, hide = true)]
    pub restarts: u64,

    /// Traces.
    #[command(flatten)]
    pub traces: TraceArgs,
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
        assert_eq!(args.agent.kubelet_dir, PathBuf::from("/var/lib/kubelet"));
        assert_eq!(args.agent.host_prefix, None);
        assert_eq!(args.vendors, ["NVIDIA"]);
    }
}
