//! What can be typed after `vgpu doctor`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::values;

/// Where to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Place {
    /// What this container was given, and whether it holds
    Container,
    /// Driver, runtime, kubelet, agent and directories of this node
    Node,
    /// What was installed on the cluster, its nodes and its pods
    Cluster,
}

impl Place {
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
  vgpu doctor                            where it is: a container, a node, else a cluster
  vgpu doctor cluster                    through KUBECONFIG, ~/.kube/config, or the pod's account
  vgpu doctor node                       on the node, or in the agent's pod
  vgpu doctor container --pid 4711       from the node: the container of that process
  vgpu doctor --list                     every check, with its cure
  vgpu doctor --only VGPU-K19,VGPU-K21   two of them
  vgpu doctor cluster --facts f.json     gather only: for a colleague, or a support case
  vgpu doctor --from f.json              judge what was gathered elsewhere

Nothing is changed by asking. The cluster's checks send one pod as a dry run, which the webhook
answers and nobody keeps.

Exit code: 0 no failure; 1 a failure, or nothing could be looked at; 2 with --strict, warnings and
no failure (also what was typed cannot be meant). What is skipped does not count.")]
pub(crate) struct DoctorArgs {
    /// Where to look [default: by where it runs, and it says why]
    #[arg(value_enum, value_name = "PLACE")]
    pub(crate) place: Option<Place>,

    /// Print JSON; docs/doctor.md has the fields
    #[arg(long)]
    pub(crate) json: bool,

    /// Show the checks and their cures, and look at nothing
    #[arg(long, conflicts_with_all = ["facts", "from"])]
    pub(crate) list: bool,

    /// Only these checks
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    /// Warnings make it fail, with exit code 2
    #[arg(long)]
    pub(crate) strict: bool,

    /// Show those that are well and those that were skipped in full, too
    #[arg(long, short)]
    pub(crate) all: bool,

    /// Write what was seen to this file instead of judging it; - is standard output
    #[arg(long, value_name = "FILE", value_parser = values::path, conflicts_with_all = ["from", "json"])]
    pub(crate) facts: Option<PathBuf>,

    /// Judge what --facts has written; - is standard input
    #[arg(long, value_name = "FILE", value_parser = values::path, conflicts_with_all = ["root", "pid", "kubeconfig", "context"])]
    pub(crate) from: Option<PathBuf>,

    /// Look at files below this directory as if it were / (a node's, mounted elsewhere)
    #[arg(long, value_name = "DIR", value_parser = values::path, conflicts_with = "pid")]
    pub(crate) root: Option<PathBuf>,

    /// Look at the container of this process
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

    /// Namespace that vgpu is installed in [default: where its parts are found]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// The name that the scheduler has [default: as its configuration says, else hami-scheduler]
    #[arg(long, value_name = "NAME")]
    pub(crate) scheduler_name: Option<String>,

    /// How long one question may take: 500ms, 2s or seconds
    #[arg(long, default_value = "10s", value_parser = values::interval, allow_hyphen_values = true)]
    pub(crate) timeout: Duration,
}
