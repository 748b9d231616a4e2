//! The webhook's command-line flags, their environment variables and defaults. Names are HAMi's
//! where HAMi has the flag. Nothing here acts on them.

use std::net::SocketAddr;
use std::path::PathBuf;

use admission::{Agent, ClientConfig, Settings};
use clap::{ArgAction, Parser, ValueEnum};
use jiff::SignedDuration;
use kube_api::request::Defaults;
use server::TraceArgs;
use server::flags::{AddressError, CertificateArgs, LogArgs, address};

use crate::authority::{Lifetimes, LifetimesError};

/// Answers the API server's admission reviews over TLS, with a certificate authority of its own,
/// and keeps its own webhook configurations.
///
/// It needs, in its namespace: get, list, watch, create and patch on its Secret, get, create and
/// update on its Lease, create on events; and in the cluster: get, list, watch, create and patch
/// on both kinds of webhook configurations, list and watch on resource quotas (and on ComputeQuotas,
/// where the device config has hcs), and get on the ClusterRole of --owner-cluster-role.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "vgpu-webhook",
    version,
    mut_arg("cert_file", |flag| flag.help(
        "Show this certificate instead of one from the webhook's own CA: PEM, the server's certificate first; with \
         --key_file. Read again when it changes"
    )),
    mut_arg("log", |flag| flag.env("VGPU_WEBHOOK_LOG")),
    mut_arg("log_format", |flag| flag.env("VGPU_WEBHOOK_LOG_FORMAT"))
)]
pub struct Args {
    /// Where to serve reviews over TLS: ADDRESS:PORT, or :PORT for every address.
    #[arg(
        long = "http_bind",
        alias = "http-bind",
        env = "VGPU_WEBHOOK_BIND",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:9443",
        value_parser = address
    )]
    pub http_bind: SocketAddr,

    /// Where to serve /metrics, /healthz and /readyz without TLS; 0 for nowhere.
    #[arg(
        long,
        env = "VGPU_WEBHOOK_METRICS",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:8081",
        value_parser = address_or_none
    )]
    pub metrics_bind_address: Address,

    /// The certificate to show.
    #[command(flatten)]
    pub certificate: CertificateArgs,

    /// With --cert_file: the CA to write into the caBundle. Without this flag the webhook does not
    /// touch the caBundle; another program (cert-manager does it) must fill it in.
    #[arg(long, value_name = "FILE", requires = "cert_file")]
    pub ca_file: Option<PathBuf>,

    /// Serve only clients with a certificate of these CAs: PEM. The API server then needs such a
    /// certificate in its admission kubeconfig. The file is re-read when it changes.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,

    /// The scheduler name to write into pods that ask for vgpu's devices; empty leaves their own
    /// name.
    #[arg(long, default_value = "hami-scheduler", value_name = "NAME")]
    pub scheduler_name: String,

    /// Whether pods of default-scheduler get this scheduler's name, too.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = true,
          default_missing_value = "true", require_equals = true)]
    pub force_overwrite_default_scheduler: bool,

    /// A device-config.yaml in HAMi's format; without it the built-in one.
    #[arg(
        long,
        alias = "device-config",
        env = "VGPU_DEVICE_CONFIG",
        value_name = "FILE"
    )]
    pub device_config_file: Option<PathBuf>,

    /// Whether to admit Huawei Ascend devices.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false,
          default_missing_value = "true", require_equals = true)]
    pub enable_ascend: bool,

    /// Whether to admit Iluvatar devices.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false,
          default_missing_value = "true", require_equals = true)]
    pub enable_iluvatar: bool,

    /// A kubeconfig; without it the pod's service account is used, or KUBECONFIG.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The webhook's namespace, which holds the Secret, the Lease and the Service. By default the
    /// pod's.
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,

    /// This replica's name in the Lease; by default the host name, which is the pod's name.
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub identity: Option<String>,

    /// The Service through which the API server reaches the webhook.
    #[arg(long, default_value = "vgpu-webhook", value_name = "NAME")]
    pub service_name: String,

    /// The Service's port.
    #[arg(long, default_value_t = 443, value_name = "PORT")]
    pub service_port: u16,

    /// The URL at which the API server reaches the webhook, instead of a Service:
    /// https://HOST:PORT.
    #[arg(long, value_name = "URL", value_parser = url)]
    pub webhook_url: Option<String>,

    /// Further DNS names and IP addresses for the webhook's certificate.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub certificate_names: Vec<String>,

    /// The Secret that holds the webhook's CA.
    #[arg(long, default_value = "vgpu-webhook-ca", value_name = "NAME")]
    pub secret_name: String,

    /// The Lease of the one replica that writes to the cluster.
    #[arg(long, default_value = "vgpu-webhook", value_name = "NAME")]
    pub lease_name: String,

    /// Name of both webhook configurations.
    #[arg(long, default_value = "vgpu-webhook", value_name = "NAME")]
    pub webhook_config_name: String,

    /// A ClusterRole that owns the webhook configurations: deleting it deletes them, too. The chart
    /// names its own, so that uninstalling leaves nothing behind.
    #[arg(long, value_name = "NAME")]
    pub owner_cluster_role: Option<String>,

    /// Whether the webhook creates and updates its own webhook configurations.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = true,
          default_missing_value = "true", require_equals = true)]
    pub write_configuration: bool,

    /// How long the webhook's CA is valid. It is replaced when a third of that time is left.
    #[arg(long, default_value = "365d", value_name = "TIME", value_parser = duration)]
    pub ca_lifetime: SignedDuration,

    /// How long a serving certificate is valid. It is replaced when a third of that time is left.
    #[arg(long, default_value = "30d", value_name = "TIME", value_parser = duration)]
    pub certificate_lifetime: SignedDuration,

    /// How long a CA stays trusted after it was replaced.
    #[arg(long, default_value = "24h", value_name = "TIME", value_parser = duration)]
    pub ca_overlap: SignedDuration,

    /// How long a new CA is trusted before the webhook shows a certificate signed by it, so that
    /// all API servers have seen the new CA.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = duration)]
    pub ca_settle: SignedDuration,

    /// Namespaces whose pods are not checked or changed. The webhook's own namespace is always
    /// among them. Name the same ones in the exporter's --attest-exempt-namespaces.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "kube-system,gpu-operator",
        value_name = "NAME"
    )]
    pub exempt_namespaces: Vec<String>,

    /// The product's own service accounts, which may write what only the scheduler and the node
    /// agents write: NAME (in the webhook's namespace), NAMESPACE/NAME, or a user name with a
    /// colon.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME",
        default_value = "vgpu-scheduler,vgpu-monitor,vgpu-webhook"
    )]
    pub own_service_accounts: Vec<String>,

    /// Accounts that may exempt a pod from the webhook by the label hami.io/webhook=ignore, named
    /// as in --own-service-accounts.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub ignore_label_accounts: Vec<String>,

    /// Let every account do so, as HAMi does: a label in a pod then switches the pod's limits off.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false,
          default_missing_value = "true", require_equals = true)]
    pub ignore_label_for_all: bool,

    /// Whether the label hami.io/webhook=ignore of a namespace exempts its pods. Set false where
    /// tenants may label namespaces; --exempt-namespaces then names all that are exempt.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = true,
          default_missing_value = "true", require_equals = true)]
    pub ignore_namespace_label: bool,

    /// Runtime classes of NVIDIA's runtime, besides the one that the device configuration gives
    /// pods: containers of such a pod that get no GPU also see none that their image names.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME",
        default_value = "nvidia,nvidia-cdi,nvidia-legacy",
        value_parser = runtime_class
    )]
    pub gpu_runtime_classes: Vec<String>,

    /// In which pods to set NVIDIA_VISIBLE_DEVICES=void in containers that get no GPU and do not
    /// set it: those of --gpu-runtime-classes, or all, for nodes whose default runtime is NVIDIA's.
    #[arg(long, value_enum, value_name = "PODS", default_value_t = HideDevices::RuntimeClasses)]
    pub hide_devices: HideDevices,

    /// The agent that gives containers their devices.
    #[arg(long, value_enum, default_value_t = NodeAgent::Vgpu)]
    pub node_agent: NodeAgent,

    /// Set LD_PRELOAD in every container with a GPU, and not only in containers that set it
    /// themselves.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false,
          default_missing_value = "true", require_equals = true)]
    pub always_preload: bool,

    /// The path of vgpu's library in the container.
    #[arg(
        long,
        default_value = "/usr/local/vgpu/libvgpu.so",
        value_name = "PATH"
    )]
    pub library: String,

    /// Set NVIDIA_VISIBLE_DEVICES in containers from their pod's annotation, for nodes whose
    /// runtime has no CDI (containerd 1.6).
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false,
          default_missing_value = "true", require_equals = true)]
    pub devices_by_annotation: bool,

    /// What pods with a GPU say to cluster autoscalers that want to remove their node, unless they say it themselves:
    /// false keeps the node, true lets it go. Without it nothing is written.
    #[arg(long, value_name = "BOOL")]
    pub safe_to_evict: Option<bool>,

    /// Whether the cluster gives NVIDIA's GPUs by ResourceClaims: a pod's GPU resources are replaced by claims, whose
    /// templates vgpu-scheduler makes with --claim-templates.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false,
          default_missing_value = "true", require_equals = true)]
    pub by_claims: bool,

    /// Whether pods with a GPU may use the host's process ids.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false,
          default_missing_value = "true", require_equals = true)]
    pub allow_host_pid: bool,

    /// Whether to refuse a pod at creation when it alone exceeds a ResourceQuota of its namespace, or a
    /// ComputeQuota together with the use in the quota's status.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = true,
          default_missing_value = "true", require_equals = true)]
    pub check_quotas: bool,

    /// The node policy of pods that name none: binpack or spread.
    #[arg(long, default_value = "binpack", value_name = "POLICY")]
    pub node_scheduler_policy: String,

    /// The device policy of pods that name none: spread, binpack, mutex, topology-aware, or a list
    /// such as binpack,numa.
    #[arg(long, default_value = "spread", value_name = "POLICY")]
    pub gpu_scheduler_policy: String,

    /// How long the API server waits for an answer, in seconds.
    #[arg(long, default_value_t = 10, value_name = "SECONDS",
          value_parser = clap::value_parser!(u8).range(1..=30))]
    pub webhook_timeout: u8,

    /// How long to go on serving after the signal to stop, in seconds. The webhook is not ready
    /// during that time; the API servers learn of it little by little, and refuse pods that they
    /// cannot send for review.
    #[arg(long, default_value_t = 5, value_name = "SECONDS",
          value_parser = clap::value_parser!(u8).range(0..=120))]
    pub shutdown_delay: u8,

    /// Where to send traces.
    #[command(flatten)]
    pub traces: TraceArgs,

    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// An address, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address(pub Option<SocketAddr>);

/// The agent that gives containers their devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NodeAgent {
    /// vgpu-monitor.
    Vgpu,
    /// HAMi's device plugin.
    Hami,
    /// No agent: LD_PRELOAD is set in each container with a GPU.
    None,
}

/// The pods in which containers without a GPU see none that their image names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HideDevices {
    /// Pods of NVIDIA's runtime classes.
    RuntimeClasses,
    /// All pods: the API server sends every pod that is created.
    Everywhere,
}

impl Args {
    /// The settings for admission. `namespace` is the webhook's own.
    #[must_use]
    pub fn settings(&self, namespace: &str) -> Settings {
        let named = |names: &[String]| {
            let names = names.iter().filter(|name| !name.is_empty());
            names.map(|name| user_name(name, namespace)).collect()
        };
        let mut exempt: Vec<String> = vec![namespace.to_owned()];
        for name in &self.exempt_namespaces {
            if !name.is_empty() && !exempt.contains(name) {
                exempt.push(name.clone());
            }
        }
        Settings {
            scheduler_name: self.scheduler_name.clone(),
            force_overwrite_default_scheduler: self.force_overwrite_default_scheduler,
            own_accounts: named(&self.own_service_accounts),
            exempt_namespaces: exempt,
            ignore_label_accounts: named(&self.ignore_label_accounts),
            ignore_label_for_all: self.ignore_label_for_all,
            ignore_namespace_label: self.ignore_namespace_label,
            gpu_runtime_classes: {
                let named = self.gpu_runtime_classes.iter();
                named.filter(|name| !name.is_empty()).cloned().collect()
            },
            hide_everywhere: self.hide_devices == HideDevices::Everywhere,
            agent: match self.node_agent {
                NodeAgent::Vgpu => Agent::Ours,
                NodeAgent::Hami => Agent::Peer,
                NodeAgent::None => Agent::None,
            },
            always_preload: self.always_preload,
            library: self.library.clone(),
            devices_by_annotation: self.devices_by_annotation,
            safe_to_evict: self.safe_to_evict,
            by_claims: self.by_claims,
            allow_host_pid: self.allow_host_pid,
            defaults: Defaults {
                node_policy: self.node_scheduler_policy.clone(),
                device_policy: self.gpu_scheduler_policy.clone(),
            },
            configuration_name: self.webhook_config_name.clone(),
            timeout_seconds: self.webhook_timeout,
            ..Settings::default()
        }
    }

    /// The lifetimes of certificates.
    ///
    /// # Errors
    ///
    /// They contradict each other.
    pub fn lifetimes(&self) -> Result<Lifetimes, LifetimesError> {
        let lifetimes = Lifetimes {
            ca: self.ca_lifetime,
            serving: self.certificate_lifetime,
            overlap: self.ca_overlap,
            settle: self.ca_settle,
        };
        lifetimes.checked()
    }

    /// The address at which the API server finds the webhook.
    #[must_use]
    pub fn client_config(&self, namespace: &str) -> ClientConfig {
        match &self.webhook_url {
            Some(url) => ClientConfig::Url {
                base: url.clone(),
                ca_bundle: None,
            },
            None => ClientConfig::Service {
                namespace: namespace.to_owned(),
                name: self.service_name.clone(),
                port: self.service_port,
                ca_bundle: None,
            },
        }
    }

    /// The names in the webhook's certificate: the Service's full and short names, the URL's host,
    /// and the names given by flag.
    #[must_use]
    pub fn names(&self, namespace: &str) -> Vec<String> {
        let service = &self.service_name;
        let mut names = vec![
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
            format!("{service}.{namespace}"),
            service.clone(),
        ];
        names.extend(self.webhook_url.as_deref().and_then(host));
        for name in self
            .certificate_names
            .iter()
            .filter(|name| !name.is_empty())
        {
            names.push(name.clone());
        }
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names
    }
}

/// A user name as the API server writes it, from `name`, `namespace/name` or a user name.
fn user_name(name: &str, namespace: &str) -> String {
    if name.contains(':') {
        return name.to_owned();
    }
    let (namespace, name) = name.split_once('/').unwrap_or((namespace, name));
    format!("system:serviceaccount:{namespace}:{name}")
}

/// The host of an `https://` URL, without port and brackets.
fn host(url: &str) -> Option<String> {
    let rest = url.strip_prefix("https://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next()?,
        None => authority.split(':').next()?,
    };
    (!host.is_empty()).then(|| host.to_owned())
}

/// Why a flag's value cannot be read: what it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum FlagError {
    #[error("accepted: https://HOST, https://HOST:PORT or one with a path before ours")]
    Url,
    #[error(
        "accepted: a whole number of days, hours, minutes or seconds above 0, such as 365d, 24h, 10m, 30s; at most 3650d"
    )]
    Duration,
    #[error(
        "accepted: names of RuntimeClass objects (lower-case letters, digits, - and .), separated by commas"
    )]
    RuntimeClass,
    #[error("{0}; or 0 for nowhere")]
    AddressOrNone(AddressError),
}

fn url(text: &str) -> Result<String, FlagError> {
    if text.contains(['?', '#', '@']) || host(text).is_none() {
        return Err(FlagError::Url);
    }
    Ok(text.trim_end_matches('/').to_owned())
}

fn runtime_class(text: &str) -> Result<String, FlagError> {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    if text.len() <= 253 && text.bytes().all(is_allowed) {
        Ok(text.to_owned())
    } else {
        Err(FlagError::RuntimeClass)
    }
}

/// `365d`, `24h`, `10m`, `30s`: one number and its unit.
fn duration(text: &str) -> Result<SignedDuration, FlagError> {
    let longest = SignedDuration::from_hours(3650 * 24);
    let read = || {
        let number = text.get(..text.len().checked_sub(1)?)?;
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let number: i64 = number.parse().ok()?;
        let unit = match text.as_bytes().last()? {
            b'd' => 24 * 3600,
            b'h' => 3600,
            b'm' => 60,
            b's' => 1,
            _ => return None,
        };
        let read = SignedDuration::from_secs(number.checked_mul(unit)?);
        (read.is_positive() && read <= longest).then_some(read)
    };
    read().ok_or(FlagError::Duration)
}

fn address_or_none(text: &str) -> Result<Address, FlagError> {
    if text == "0" {
        return Ok(Address(None));
    }
    let found = address(text).map_err(FlagError::AddressOrNone)?;
    Ok(Address(Some(found)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from([&["vgpu-webhook"], args].concat())
    }

    #[test]
    fn switches_are_read_as_the_reference_reads_them() {
        let args = parse(&[]).unwrap();
        assert!(args.force_overwrite_default_scheduler && args.write_configuration);
        assert!(!args.enable_ascend && !args.enable_iluvatar);
        let args = parse(&[
            "--enable-ascend",
            "--enable-iluvatar=true",
            "--force-overwrite-default-scheduler=false",
        ]);
        let args = args.unwrap();
        assert!(!args.force_overwrite_default_scheduler);
        assert!(args.enable_ascend && args.enable_iluvatar);
        assert!(parse(&["--enable-ascend=perhaps"]).is_err());
    }

    #[test]
    fn addresses_may_be_a_port_alone_or_none() {
        let args = parse(&["--http_bind=:443", "--metrics-bind-address", "0"]).unwrap();
        assert_eq!(args.http_bind, "0.0.0.0:443".parse().unwrap());
        assert_eq!(args.metrics_bind_address, Address(None));
        let args = parse(&["--http-bind=[::1]:443", "--metrics-bind-address=:9395"]).unwrap();
        assert_eq!(args.http_bind, "[::1]:443".parse().unwrap());
        let metrics = args.metrics_bind_address.0.unwrap();
        assert_eq!(metrics, "0.0.0.0:9395".parse().unwrap());
        let args = parse(&["--http_bind=localhost:443"]).unwrap();
        assert_eq!(args.http_bind, "127.0.0.1:443".parse().unwrap());
        for bad in ["", "0", "443", "localhost", ":70000"] {
            let error = parse(&[&format!("--http_bind={bad}")]).unwrap_err();
            assert!(
                error.to_string().contains("such as 127.0.0.1:8080"),
                "{error}"
            );
        }
    }

    #[test]
    fn times_have_a_unit_and_go_together() {
        let args = parse(&["--ca-lifetime=7d", "--ca-settle=1s", "--ca-overlap", "90m"]);
        let lifetimes = args.unwrap().lifetimes().unwrap();
        assert_eq!(lifetimes.ca, SignedDuration::from_hours(7 * 24));
        assert_eq!(lifetimes.overlap, SignedDuration::from_mins(90));
        assert_eq!(parse(&[]).unwrap().lifetimes(), Ok(Lifetimes::default()));
        for bad in [
            "",
            "d",
            "7",
            "0d",
            "-1d",
            "1.5h",
            "1w",
            "\u{664}d",
            "3651d",
            "99999999999999999999s",
        ] {
            let error = parse(&[&format!("--ca-lifetime={bad}")]).unwrap_err();
            assert!(error.to_string().contains("such as 365d, 24h"), "{error}");
        }
        let error = parse(&["--ca-settle=1d"]).unwrap().lifetimes().unwrap_err();
        assert!(
            matches!(error, LifetimesError::OverlapTooShort(_)),
            "{error}"
        );
    }

    #[test]
    fn a_certificate_needs_its_key_and_the_other_way_round() {
        assert!(parse(&["--cert_file", "c"]).is_err());
        assert!(parse(&["--key_file", "k"]).is_err());
        assert!(parse(&["--ca-file", "ca"]).is_err());
        assert!(parse(&["--cert_file", "c", "--key_file", "k", "--ca-file", "ca"]).is_ok());
    }

    #[test]
    fn accounts_have_short_or_full_names() {
        let args = parse(&[
            "--own-service-accounts=one,other/two,system:node:n1,",
            "--exempt-namespaces=kube-system,vgpu,monitoring",
        ]);
        let settings = args.unwrap().settings("vgpu");

        assert_eq!(
            settings.own_accounts,
            [
                "system:serviceaccount:vgpu:one",
                "system:serviceaccount:other:two",
                "system:node:n1"
            ]
        );
        assert_eq!(
            settings.exempt_namespaces,
            ["vgpu", "kube-system", "monitoring"]
        );
        let standard = parse(&[]).unwrap().settings("vgpu");
        assert_eq!(
            standard.exempt_namespaces,
            ["vgpu", "kube-system", "gpu-operator"]
        );
        assert_eq!(standard.own_accounts.len(), 3);
        assert!(standard.ignore_label_accounts.is_empty());
    }

    #[test]
    fn pods_that_nvidias_runtime_starts_are_named_by_class_or_are_all() {
        let standard = parse(&[]).unwrap().settings("vgpu");
        assert_eq!(
            standard.gpu_runtime_classes,
            Settings::default().gpu_runtime_classes
        );
        assert!(!standard.hide_everywhere && standard.ignore_namespace_label);
        let args = parse(&[
            "--gpu-runtime-classes=gpus,nvidia.v2,",
            "--hide-devices=everywhere",
            "--ignore-namespace-label=false",
        ]);
        let settings = args.unwrap().settings("vgpu");
        assert_eq!(settings.gpu_runtime_classes, ["gpus", "nvidia.v2"]);
        assert!(settings.hide_everywhere && !settings.ignore_namespace_label);
        for bad in ["--gpu-runtime-classes=a b", "--gpu-runtime-classes=NVIDIA"] {
            let error = parse(&[bad]).unwrap_err().to_string();
            assert!(error.contains("RuntimeClass"), "{error}");
        }
        let error = parse(&["--hide-devices=all"]).unwrap_err().to_string();
        assert!(error.contains("runtime-classes"), "{error}");
    }

    #[test]
    fn a_certificate_is_for_every_name_that_leads_to_us() {
        let args = parse(&[
            "--webhook-url=https://[2001:db8::1]:9443/",
            "--certificate-names=10.0.0.7,gate.example.org,vgpu-webhook",
        ]);
        assert_eq!(
            args.unwrap().names("vgpu"),
            [
                "vgpu-webhook.vgpu.svc",
                "vgpu-webhook.vgpu.svc.cluster.local",
                "vgpu-webhook.vgpu",
                "vgpu-webhook",
                "2001:db8::1",
                "10.0.0.7",
                "gate.example.org",
            ]
        );
        for bad in [
            "http://a",
            "https://",
            "https://:1",
            "a:1",
            "https://a?b",
            "https://u@h",
        ] {
            assert!(parse(&[&format!("--webhook-url={bad}")]).is_err(), "{bad}");
        }
    }
}
