//! The command line of `vgpu doctor`: flags, help and examples.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::values;

/// A place that `vgpu doctor` checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scope {
    /// This container's limits, and whether they hold
    Container,
    /// This node's driver, runtime, kubelet, agent and directories
    Node,
    /// The cluster's installation, nodes and pods
    Cluster,
}

impl Scope {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Node => "node",
            Self::Cluster => "cluster",
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu doctor                            check where it runs: container, node, else the cluster
  vgpu doctor cluster                    through KUBECONFIG, ~/.kube/config, or the pod's account
  vgpu doctor node                       on the node, or in the agent's pod
  vgpu doctor container --pid 4711       from the node: check the container of that process
  vgpu doctor --list                     list every check with its cure
  vgpu doctor --only VGPU-K19,VGPU-K21   run two checks
  vgpu doctor cluster --facts f.json     only gather facts, for a colleague or a support case
  vgpu doctor --from f.json              judge facts that were gathered elsewhere

vgpu doctor changes nothing. The cluster checks create one pod as a dry run: the webhook answers,
and the API server does not store the pod.

Exit code: 0 if no check failed; 1 if a check failed, or nothing could be checked; 2 with --strict
if there are warnings and no failure, and on invalid arguments. Skipped checks do not count.")]
pub(crate) struct DoctorArgs {
    /// The place to check [default: chosen by where the command runs; it prints the reason]
    #[arg(value_enum, value_name = "PLACE")]
    pub(crate) place: Option<Scope>,

    /// Print JSON; docs/doctor.md lists the fields
    #[arg(long)]
    pub(crate) json: bool,

    /// List the checks and their cures without running them
    #[arg(long, conflicts_with_all = ["facts", "from"])]
    pub(crate) list: bool,

    /// Run only these checks
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    /// Exit with code 2 if there are warnings
    #[arg(long)]
    pub(crate) strict: bool,

    /// Also show passed and skipped checks in full
    #[arg(long, short)]
    pub(crate) all: bool,

    /// Write the gathered facts to this file instead of judging them; - is standard output
    #[arg(long, value_name = "FILE", value_parser = values::path, conflicts_with_all = ["from", "json"])]
    pub(crate) facts: Option<PathBuf>,

    /// Judge the facts in this file, which --facts wrote; - is standard input
    #[arg(long, value_name = "FILE", value_parser = values::path, conflicts_with_all = ["root", "pid", "kubeconfig", "context"])]
    pub(crate) from: Option<PathBuf>,

    /// Read files below this directory as if it were / (a node's file system, mounted elsewhere)
    #[arg(long, value_name = "DIR", value_parser = values::path, conflicts_with = "pid")]
    pub(crate) root: Option<PathBuf>,

    /// Check the container of this process
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,

    /// The agent's state directory on the node
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/vgpu",
        hide_default_value = false
    )]
    pub(crate) state_dir: String,

    /// Read the cluster through this kubeconfig [default: KUBECONFIG, else ~/.kube/config, else
    /// the pod's own service account]
    #[arg(long, value_name = "FILE", value_parser = values::path)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// Namespace of the vgpu installation [default: where its parts are found]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// The scheduler's name [default: from its configuration, else hami-scheduler]
    #[arg(long, value_name = "NAME")]
    pub(crate) scheduler_name: Option<String>,

    /// How long to wait for each answer: 500ms, 2s or a number of seconds
    #[arg(long, default_value = "10s", value_parser = values::interval, allow_hyphen_values = true)]
    pub(crate) timeout: Duration,
}
