//! The command line of `vgpu explain`: flags, help and examples.

use std::path::PathBuf;
use std::time::Duration;

use crate::values;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu explain train                          the pod in the namespace of your kubeconfig
  vgpu explain -n ml train --all              with every node and device
  vgpu explain ml/train --json | jq .advice   for programs; docs/command.md lists the fields
  kubectl -n vgpu-system port-forward deploy/vgpu-scheduler 9395 &
  vgpu explain ml/train --server http://127.0.0.1:9395
                                              ask the running scheduler
  vgpu explain ml/train --state state.json    nodes, pods and quotas from a file: what
                                              vgpu-scheduler --embedded reads, or
                                              kubectl get nodes,pods,quota -A -o json

vgpu explain prints where the pod is or would be placed. If the pod fits nowhere, it prints the
reason for each node and device, and the smallest change of each kind that would be enough: less
memory, another type rule, pods to delete, a larger quota, a GPU to uncordon. It changes nothing.

A scheduler that asks for a token gets that of the kubeconfig's user, or of --token-file. The user
needs a ClusterRole with nonResourceURLs [/explain], verbs [get]: the chart's is NAME-explain. No
token is sent to another machine without TLS.

Without --server it reads nodes, pods and quotas itself and judges them as the scheduler would with
the settings given here. It cannot see what a running scheduler has reserved for pods that are not
bound yet.

Exit code: 0 if the pod is placed, fits, or does not concern the scheduler; 1 if it does not fit,
its request cannot be read, or the scheduler has not seen it; 2 on an error.")]
pub(crate) struct ExplainArgs {
    /// Name of the pod, or NAMESPACE/NAME
    #[arg(value_name = "POD")]
    pub(crate) pod: String,

    /// Its namespace [default: that of the kubeconfig, else default]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Show every node, not only the nodes closest to fitting
    #[arg(long)]
    pub(crate) all: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Ask the scheduler at this URL
    #[arg(long, value_name = "URL", conflicts_with = "state")]
    pub(crate) server: Option<String>,

    /// With --server: send the token in this file [default: that of the kubeconfig's user]
    #[arg(long, value_name = "FILE", requires = "server", value_parser = values::path)]
    pub(crate) token_file: Option<PathBuf>,

    /// Read the cluster from this file; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "context"], value_parser = values::path)]
    pub(crate) state: Option<PathBuf>,

    /// Read the cluster through this kubeconfig; with --server, take its user's token [default: KUBECONFIG, else ~/.kube/config, else
    /// the pod's own service account]
    #[arg(long, value_name = "FILE", value_parser = values::path)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// The scheduler's device-config.yaml: names and units of resources [default: the standard ones]
    #[arg(long, value_name = "FILE", conflicts_with = "server", value_parser = values::path)]
    pub(crate) device_config: Option<PathBuf>,

    /// The scheduler's name in pods' schedulerName
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

    /// How long to wait for a server's answer: 500ms, 2s or a number of seconds
    #[arg(long, default_value = "30s", value_parser = values::interval, allow_hyphen_values = true)]
    pub(crate) timeout: Duration,
}
