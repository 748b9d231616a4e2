//! What can be typed after `vgpu explain`.
//!
//! Never decides: see the other files of this folder.

use std::path::PathBuf;
use std::time::Duration;

use crate::values;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu explain train                          the pod in the namespace of your kubeconfig
  vgpu explain -n ml train --all              with every node and device
  vgpu explain ml/train --json | jq .advice   for programs; docs/command.md has the fields
  vgpu explain ml/train --server http://127.0.0.1:8080
                                              ask the running scheduler
  vgpu explain ml/train --state state.json    nodes, pods and quotas from a file: what
                                              vgpu-scheduler --embedded reads, or
                                              kubectl get nodes,pods,quota -A -o json

It says where the pod is or would be; or, by node and device, why it is nowhere, and the smallest
change of each kind that would be enough: less memory, another type rule, which pods leave, a
quota, a card to uncordon. It changes nothing.

Without --server it reads nodes, pods and quotas itself and judges as the scheduler does, with the
settings given here. What a running scheduler has reserved for pods that are not bound yet, only
that scheduler knows.

Exit code: 0 the pod is placed, or fits, or does not concern the scheduler; 1 it does not fit, or
cannot be understood, or the scheduler has not seen it; 2 an error.")]
pub(crate) struct ExplainArgs {
    /// Name of the pod, or NAMESPACE/NAME
    #[arg(value_name = "POD")]
    pub(crate) pod: String,

    /// Its namespace [default: that of the kubeconfig, else default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Show every node, not only those that come nearest
    #[arg(long)]
    pub(crate) all: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Ask the scheduler at this address
    #[arg(long, value_name = "URL", conflicts_with_all = ["state", "kubeconfig", "context"])]
    pub(crate) server: Option<String>,

    /// Read the cluster from this file; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "context"], value_parser = values::path)]
    pub(crate) state: Option<PathBuf>,

    /// Read the cluster through this kubeconfig [default: KUBECONFIG, else ~/.kube/config, else
    /// the pod's own service account]
    #[arg(long, value_name = "FILE", value_parser = values::path)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// The scheduler's device-config.yaml: names and units of resources [default: the standard ones]
    #[arg(long, value_name = "FILE", conflicts_with = "server", value_parser = values::path)]
    pub(crate) device_config: Option<PathBuf>,

    /// The name that the scheduler has
    #[arg(long, value_name = "NAME", default_value = "hami-scheduler")]
    pub(crate) scheduler_name: String,

    /// The scheduler's --node-scheduler-policy
    #[arg(long, value_name = "POLICY", default_value = "binpack")]
    pub(crate) node_scheduler_policy: String,

    /// The scheduler's --gpu-scheduler-policy
    #[arg(long, value_name = "POLICY", default_value = "spread")]
    pub(crate) gpu_scheduler_policy: String,

    /// The scheduler's --node-label-selector
    #[arg(long, value_name = "KEY=VALUE,…", default_value = "")]
    pub(crate) node_label_selector: String,

    /// How long an answer of a server may take: 500ms, 2s or seconds
    #[arg(long, default_value = "30s", value_parser = values::interval, allow_hyphen_values = true)]
    pub(crate) timeout: Duration,
}
