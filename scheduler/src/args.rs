//! The flags of `vgpu-scheduler`, with HAMi's names where HAMi has the flag. Nothing here acts on them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::Uri;
use clap::builder::BoolishValueParser;
use clap::{Parser, Subcommand};
use server::TraceArgs;
use server::flags::{CertificateArgs, LogArgs, address};

use crate::assigner::Pin;
use crate::metrics::{Choice, Detail};
use crate::{ClaimSettings, parse};

/// Chooses the GPU and the node of every pod that asks for devices, next to a stock kube-scheduler that calls it.
///
/// Serves /filter, /bind, /prioritize and /preempt for kube-scheduler, /webhook for the API server, /explain and
/// /metrics for people, and /healthz and /readyz. With --embedded the program contains a cluster, and serves that
/// cluster's Kubernetes API on the same address. docs/configuration.md explains every flag.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "vgpu-scheduler",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    mut_arg("log", |flag| flag.env("VGPU_SCHEDULER_LOG")),
    mut_arg("log_format", |flag| flag.env("VGPU_SCHEDULER_LOG_FORMAT"))
)]
pub struct Args {
    /// Run another of the program's parts instead of a cluster's scheduler.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Where to serve: ADDRESS:PORT, or :PORT for every address.
    #[arg(
        long = "http_bind",
        alias = "http-bind",
        env = "VGPU_HTTP_BIND",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8080",
        value_parser = address
    )]
    pub http_bind: SocketAddr,

    /// The certificate of --http_bind.
    #[command(flatten)]
    pub certificate: CertificateArgs,

    /// Serve /metrics and /explain here, too: ADDRESS:PORT, or :PORT for every address.
    #[arg(long, env = "VGPU_METRICS_ADDR", value_name = "ADDRESS", value_parser = address)]
    pub metrics_bind_address: Option<SocketAddr>,

    /// Which callers from other machines may read /metrics and /explain, which name pods. No token is asked for on a
    /// loopback address.
    #[arg(long, env = "VGPU_METRICS_ACCESS", value_enum, value_name = "WHICH", default_value_t = MetricsAccess::Authorized)]
    pub metrics_access: MetricsAccess,

    /// Serve the cluster's GPU page here: which pods hold and use which GPUs, over time. ADDRESS:PORT, or :PORT for
    /// every address, which needs --gpu-page-token. Off by default.
    #[arg(long, env = "VGPU_GPU_PAGE", value_name = "ADDRESS", value_parser = address)]
    pub gpu_page: Option<SocketAddr>,

    /// Ask readers of the GPU page for this token: as a bearer token, or as the password that a browser asks for.
    #[arg(
        long,
        env = "VGPU_GPU_PAGE_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    pub gpu_page_token: Option<String>,

    /// The node agents that report what pods use, as HOST:PORT, separated by commas. For a name with several addresses,
    /// such as a headless Service, the agent at each address is asked. Without this flag the page shows only what pods
    /// hold.
    #[arg(long, env = "VGPU_GPU_PAGE_MONITORS", value_name = "PLACES", value_delimiter = ',', value_parser = parse::host_port)]
    pub gpu_page_monitors: Vec<String>,

    /// How often node agents are asked: 30s, 1m; at least 1s. The page remembers 240 answers.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse::interval)]
    pub gpu_page_interval: Duration,

    /// The cluster, as kubectl knows it; by default $KUBECONFIG, ~/.kube/config, or the pod's own service account.
    #[arg(long, value_name = "FILE", conflicts_with = "embedded")]
    pub kubeconfig: Option<PathBuf>,

    /// Run on a cluster inside this process, built from this file: {"nodes":[…],"pods":[…],"resourceQuotas":[…]}. The
    /// file is read once and never written.
    #[arg(long, value_name = "STATE.json")]
    pub embedded: Option<PathBuf>,

    /// With --embedded: pods that are created or changed over the API go through admission, as in a cluster with the
    /// webhook.
    #[arg(long, requires = "embedded")]
    pub admit: bool,

    /// With --embedded: require this bearer token. Needed where --http_bind is not a loopback address.
    #[arg(
        long,
        env = "VGPU_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        requires = "embedded"
    )]
    pub token: Option<String>,

    /// The scheduler name of pods to place, and the source of events. Empty: pods keep the name that they have.
    #[arg(long, value_name = "NAME", default_value = "hami-scheduler")]
    pub scheduler_name: String,

    /// The node policy of pods that name none: binpack (the fullest node) or spread (the emptiest).
    #[arg(long, value_name = "POLICY", default_value = "binpack")]
    pub node_scheduler_policy: String,

    /// The device policy of pods that name none: spread, binpack, mutex, topology-aware, or a list such as
    /// binpack,numa.
    #[arg(long, value_name = "POLICY", default_value = "spread")]
    pub gpu_scheduler_policy: String,

    /// Place pods that ask for devices only on nodes with these labels: gpu=on, several separated by commas.
    #[arg(long, value_name = "LABELS", default_value = "")]
    pub node_label_selector: String,

    /// A file with the names and units of resources, in the format of HAMi's device-config.yaml; by default HAMi's own
    /// values.
    #[arg(
        long = "device-config-file",
        alias = "device-config",
        value_name = "FILE"
    )]
    pub device_config_file: Option<PathBuf>,

    /// Place Huawei Ascend devices. By default only with --embedded.
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub enable_ascend: Option<bool>,

    /// Serve hcs.io/v1alpha1, whose definitions the cluster must have: sets the ComputeNodes of silent agents to
    /// NotReady, and creates ComputeNodes for devices that other vendors' plugins register.
    #[arg(long, env = "VGPU_HCS", value_name = "BOOL", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, default_missing_value = "true", default_value_t = false, require_equals = true)]
    pub hcs: bool,

    /// Place Iluvatar devices. By default only with --embedded.
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub enable_iluvatar: Option<bool>,

    /// Whether admission gives pods of default-scheduler that ask for devices this scheduler's name.
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, default_value = "true", default_missing_value = "true", require_equals = true)]
    pub force_overwrite_default_scheduler: bool,

    /// A user that may write what only the scheduler and the agents write, for admission:
    /// system:serviceaccount:NS:NAME.
    #[arg(long = "own-account", value_name = "USER")]
    pub own_accounts: Vec<String>,

    /// Answer only while the kube-scheduler on the same host holds its Lease. By default on where a Lease is named.
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub leader_elect: Option<bool>,

    /// The name of that Lease; by default the scheduler's name.
    #[arg(long, value_name = "NAME")]
    pub leader_elect_resource_name: Option<String>,

    /// The namespace of that Lease; by default this pod's own, else kube-system.
    #[arg(long, value_name = "NAMESPACE")]
    pub leader_elect_resource_namespace: Option<String>,

    /// The host name with which that kube-scheduler's identity begins; by default this host's.
    #[arg(
        long = "leader-elect-identity",
        env = "HOSTNAME",
        value_name = "NAME",
        hide = true
    )]
    pub host: Option<String>,

    /// The health check of the kube-scheduler in the same pod, which GET /livez/kube-scheduler also asks:
    /// https://127.0.0.1:10259/healthz. Its certificate is not verified. Without this flag /livez/kube-scheduler answers
    /// for this program alone.
    #[arg(long, value_name = "URL", value_parser = parse::health_address)]
    pub kube_scheduler_health: Option<Uri>,

    /// Write a pod's devices to its annotations at the filter, and not only with its binding, for programs that read
    /// them before. --embedded implies it.
    #[arg(long)]
    pub write_at_filter: bool,

    /// How long a reservation made at the filter lasts without a binding: 15m, 900s. kube-scheduler may bind volumes
    /// for ten minutes.
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = parse::duration)]
    pub reservation_timeout: Duration,

    /// The most calls of the API server a second; 0, the recommended value, sets no limit. A limit here also limits how
    /// many pods are bound a second.
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    pub kube_qps: f64,

    /// The most calls of the API server in a burst, where --kube-qps limits them.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub kube_burst: u32,

    /// How long a call of the API server may take, in seconds, or as 30s.
    #[arg(long, value_name = "TIME", default_value = "30", value_parser = parse::duration)]
    pub kube_timeout: Duration,

    /// Serve HAMi's older metric names beside the current ones.
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, default_value = "false", default_missing_value = "true", require_equals = true)]
    pub legacy_metrics: bool,

    /// How many series are served: full (all of them), or standard (what the alerts and the accounts need).
    #[arg(long, env = "VGPU_METRICS_DETAIL", value_enum, value_name = "DETAIL", default_value_t = Detail::Full)]
    pub metrics_detail: Detail,

    /// The key of the pod label that names the pod's team: metrics sum up by team what pods hold.
    #[arg(
        long,
        env = "VGPU_TEAM_LABEL",
        value_name = "LABEL",
        default_value = "team"
    )]
    pub team_label: String,

    /// Run the device assigner, too, which hands out whole GPUs to pods that ask by label. It shares the ledger, so
    /// that no GPU is given twice. Also serves /finalize and /devices on this address.
    #[arg(long)]
    pub assigner: bool,

    /// The namespace of the Leases that hold claims, which are reservations of GPUs by label. GPUs that another
    /// process, the assigner, has claimed are not given to other pods, and the scheduler holds the Lease of a GPU while
    /// it binds a pod to it. With --assigner, the default is gpu-claims. Without a namespace, claims do not count.
    #[arg(long, value_name = "NAMESPACE")]
    pub claims_namespace: Option<String>,

    /// How far the clocks of programs that write Leases may differ. Counts only for Leases that are older than this
    /// process.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse::duration)]
    pub claims_clock_skew: Duration,

    /// Read ResourceClaims and ResourceSlices (resource.k8s.io): a GPU that a claim has is given to no pod, and
    /// /prioritize scores nodes for pods with claims of vgpu's driver. Off with --embedded.
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, default_value = "true", default_missing_value = "true", require_equals = true)]
    pub resource_claims: bool,

    /// Make the ResourceClaimTemplates that the webhook names in pods where it runs with --by-claims, and delete those
    /// that no pod waits for. Off with --embedded.
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, default_value = "false", default_missing_value = "true", require_equals = true)]
    pub claim_templates: bool,

    /// With --assigner: the address of /mutate for the API server, over HTTPS if --cert_file names a certificate. By
    /// default :443; not served by default with --embedded, where --admit needs no webhook.
    #[arg(long, value_name = "ADDRESS", value_parser = address, requires = "assigner")]
    pub assigner_bind: Option<SocketAddr>,

    /// With --assigner: the address of its routes for people.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081", value_parser = address)]
    pub assigner_ui_bind: SocketAddr,

    /// With --assigner: how a pod is tied to its node.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Pin::Affinity)]
    pub assigner_pin: Pin,

    /// Where to send traces.
    #[command(flatten)]
    pub traces: TraceArgs,

    /// The log.
    #[command(flatten)]
    pub log: LogArgs,

    /// Log more, as --log=debug.
    #[arg(long)]
    pub debug: bool,

    /// HAMi's verbosity: 5 and above logs as --log=debug.
    #[arg(short = 'v', long = "v", value_name = "N", default_value_t = 0)]
    pub verbosity: u8,

    /// Accepted for HAMi's charts; does nothing, because there is no profile to serve.
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, default_value = "false", default_missing_value = "true", require_equals = true)]
    pub profiling: bool,

    /// Accepted for HAMi's charts; does nothing, because no node is ever locked.
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub node_lock_timeout: Option<Duration>,

    /// Accepted for HAMi's charts; does nothing, because no node is ever locked.
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub node_lock_retry_timeout: Option<Duration>,
}

/// The callers that may read `/metrics` and `/explain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MetricsAccess {
    /// Those with a token of the cluster whose account may "get" the path. The scheduler asks the API server, so its
    /// own account needs the right to create tokenreviews and subjectaccessreviews.
    Authorized,
    /// All.
    Open,
}

/// The program's other parts.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Try, replay and explain scheduling without a cluster.
    Simulator(Box<crate::simulate::SimulateArgs>),
    /// Hand out whole GPUs to pods that ask by label.
    Assigner(Box<crate::assigner_program::AssignerArgs>),
}

impl Args {
    /// The log directives.
    pub fn log_filter(&self) -> &str {
        if self.debug || self.verbosity >= 5 {
            "debug,hyper=info,hyper_util=info,tower=info,rustls=info,kube=info,kube_client=info,h2=info"
        } else {
            &self.log.log
        }
    }

    /// Whether only the replica on the Lease holder's host answers.
    pub fn follows_lease(&self) -> bool {
        self.leader_elect
            .unwrap_or(self.leader_elect_resource_name.is_some())
            && self.embedded.is_none()
    }

    /// The series to serve.
    pub fn metrics(&self) -> Choice {
        Choice {
            legacy: self.legacy_metrics,
            detail: self.metrics_detail,
        }
    }

    /// The settings of claims; `None` if they do not count.
    pub fn claims(&self) -> Option<ClaimSettings> {
        let standard = self.assigner.then(|| ClaimSettings::default().namespace);
        let namespace = self.claims_namespace.clone().or(standard)?;
        Some(ClaimSettings {
            namespace,
            clock_skew: self.claims_clock_skew,
        })
    }

    /// The given flags that do nothing here, with the reason.
    pub fn without_effect(&self) -> Vec<&'static str> {
        let mut said = Vec::new();
        if self.profiling {
            said.push("--profiling does nothing: there is no profile to serve");
        }
        if self.node_lock_timeout.is_some() || self.node_lock_retry_timeout.is_some() {
            said.push(
                "--node-lock-timeout and --node-lock-retry-timeout do nothing: no node is locked",
            );
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_reference_are_accepted_in_each_of_their_forms() {
        let args = Args::try_parse_from([
            "vgpu-scheduler",
            "--http_bind=0.0.0.0:443",
            "--cert_file=/tls/tls.crt",
            "--key_file=/tls/tls.key",
            "--scheduler-name=",
            "--metrics-bind-address=:9395",
            "--node-scheduler-policy=spread",
            "--gpu-scheduler-policy=binpack",
            "--force-overwrite-default-scheduler=false",
            "--device-config-file=/device-config.yaml",
            "--enable-ascend=true",
            "--enable-iluvatar",
            "--leader-elect",
            "--leader-elect-resource-name=hami-scheduler",
            "--leader-elect-resource-namespace=kube-system",
            "--legacy-metrics=false",
            "--profiling",
            "--node-lock-timeout=5m",
            "--kube-qps=5",
            "--kube-burst=10",
            "--kube-timeout=30",
            "--debug",
            "-v=4",
        ])
        .unwrap();

        assert!(args.follows_lease());
        assert!(!args.force_overwrite_default_scheduler);
        assert_eq!(args.enable_ascend, Some(true));
        assert_eq!(args.enable_iluvatar, Some(true));
        assert_eq!(args.kube_timeout, Duration::from_secs(30));
        assert_eq!(args.without_effect().len(), 2);
    }

    #[test]
    fn flags_that_exclude_each_other_are_refused() {
        for wrong in [
            &["vgpu-scheduler", "--token", "x"][..],
            &["vgpu-scheduler", "--admit"],
            &["vgpu-scheduler", "--cert_file", "x"],
            &["vgpu-scheduler", "--embedded", "a", "--kubeconfig", "b"],
        ] {
            assert!(Args::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }
}
