//! `vgpu-scheduler assigner`: its flags, its credentials and its two listeners.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{CommandFactory, Parser, ValueEnum};
use kube_access::AccessError;
use kube_api::config::DeviceConfig;
use kube_api::vendor::{Switches, Vendors};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use server::flags::CertificateArgs;
use server::{Listener, LogFormat, Manners, Tls};
use tokio::sync::watch;

use crate::assigner::{Assigner, AssignerSettings, Pin};
use crate::{ClaimSettings, Company, Scheduler, api};

/// Hands out whole GPUs to pods that ask by label, at admission, with reservations that are finalized later.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "assigner",
    version,
    max_term_width = 100,
    mut_arg("cert_file", |flag| flag.help(
        "Certificate for HTTPS on --port, PEM; with --key_file. Read again when it changes"
    ))
)]
pub struct AssignerArgs {
    /// File with the token for the API server. Read again when it changes.
    #[arg(short = 't', long, value_name = "FILE")]
    pub access_token: Option<PathBuf>,

    /// File with the API server's CA certificate: base64 of PEM, or PEM.
    #[arg(short = 'c', long, value_name = "FILE")]
    pub ca_certificate: Option<PathBuf>,

    /// URL of the API server.
    #[arg(short = 'k', long, value_name = "URL")]
    pub kubernetes_url: Option<String>,

    /// A kubeconfig, instead of the three flags above; by default $KUBECONFIG, ~/.kube/config, or the pod's own service
    /// account.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["access_token", "ca_certificate", "kubernetes_url"])]
    pub kubeconfig: Option<PathBuf>,

    /// Port of the API: /mutate, /finalize, /devices.
    #[arg(
        long,
        env = "VGPU_ASSIGNER_PORT",
        value_name = "PORT",
        default_value_t = 443
    )]
    pub port: u16,

    /// Port for people: the page, /finalize, /devices.
    #[arg(
        long,
        env = "VGPU_ASSIGNER_UI_PORT",
        value_name = "PORT",
        default_value_t = 8080
    )]
    pub ui_port: u16,

    /// Address of both ports.
    #[arg(
        long,
        env = "VGPU_ASSIGNER_ADDRESS",
        value_name = "ADDRESS",
        default_value = "0.0.0.0"
    )]
    pub address: IpAddr,

    /// The certificate of --port.
    #[command(flatten)]
    pub certificate: CertificateArgs,

    /// Namespace of the Leases, one for each reserved GPU.
    #[arg(
        short = 'C',
        long,
        value_name = "NAMESPACE",
        default_value = "gpu-claims"
    )]
    pub claims_namespace: String,

    /// How often reservations are checked: 20s; a bare number is milliseconds.
    #[arg(short = 'i', long, value_name = "TIME", default_value = "20s", value_parser = crate::parse::renew_interval)]
    pub renew_interval: Duration,

    /// The part of the interval by which it varies, 0 to 1.
    #[arg(short = 'j', long, value_name = "SHARE", default_value_t = 0.2)]
    pub renew_jitter: f64,

    /// How far the clocks of the replicas may differ. Counts only for Leases that are older than this process.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::parse::duration)]
    pub clock_skew: Duration,

    /// How a pod is tied to its node: by a required node affinity, so that the scheduler confirms it, or by
    /// spec.nodeName, with which no scheduler handles the pod.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Pin::Affinity)]
    pub pin: Pin,

    /// A file with the names and units of resources, in the format of HAMi's device-config.yaml; by default HAMi's own
    /// values.
    #[arg(
        long = "device-config-file",
        alias = "device-config",
        value_name = "FILE"
    )]
    pub device_config_file: Option<PathBuf>,

    /// Give only GPUs of nodes with these labels: gpu=on, several separated by commas.
    #[arg(long, value_name = "LABELS", default_value = "")]
    pub node_label_selector: String,

    /// How long a call of the API server may take, in seconds, or as 5s. Must be less than the webhook's own timeout.
    #[arg(long, value_name = "TIME", default_value = "3", value_parser = crate::parse::duration)]
    pub kube_timeout: Duration,

    /// Log level.
    #[arg(short = 'l', long, env = "VGPU_ASSIGNER_LOG_LEVEL", value_enum, value_name = "LEVEL", default_value_t = Level::Warn)]
    pub log_level: Level,

    /// The format of log lines.
    #[arg(long, env = "VGPU_ASSIGNER_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// The log levels. `fatal` and `report` are the reference's, and mean `error` here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Everything.
    Trace,
    /// Also the inputs of decisions.
    Debug,
    /// One line for each decision.
    Info,
    /// Conditions that an operator should check.
    Warn,
    /// Failures.
    Error,
    /// The same as error.
    Fatal,
    /// The same as error.
    Report,
}

impl Level {
    fn filter(self) -> &'static str {
        match self {
            Self::Trace => "trace,hyper=info,hyper_util=info,tower=info,rustls=info,h2=info",
            Self::Debug => "debug,hyper=info,hyper_util=info,tower=info,rustls=info,h2=info",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error | Self::Fatal | Self::Report => "error",
        }
    }
}

/// The way to reach the API server.
#[derive(Debug, PartialEq, Eq)]
enum Credentials {
    /// Given by the three flags.
    Given {
        token: PathBuf,
        ca: PathBuf,
        url: String,
    },
    /// A kubeconfig.
    Kubeconfig(PathBuf),
    /// Found as kubectl and pods find it.
    Inferred,
}

/// The credentials from the flags; `inferable` says whether there is a cluster without them.
fn credentials(args: &AssignerArgs, inferable: bool) -> Result<Credentials, Vec<String>> {
    if let Some(path) = &args.kubeconfig {
        return Ok(Credentials::Kubeconfig(path.clone()));
    }
    match (
        &args.access_token,
        &args.ca_certificate,
        &args.kubernetes_url,
    ) {
        (None, None, None) if inferable => Ok(Credentials::Inferred),
        (Some(token), Some(ca), Some(url)) => {
            let unreadable = [("access-token", token), ("ca-certificate", ca)]
                .into_iter()
                .filter_map(|(flag, path)| {
                    let problem = std::fs::read(path).err()?;
                    Some(format!("--{flag} {}: {problem}", path.display()))
                });
            let problems: Vec<String> = unreadable.collect();
            if problems.is_empty() {
                Ok(Credentials::Given {
                    token: token.clone(),
                    ca: ca.clone(),
                    url: url.clone(),
                })
            } else {
                Err(problems)
            }
        }
        (token, ca, url) => {
            let missing = [
                ("access-token", token.is_none()),
                ("ca-certificate", ca.is_none()),
                ("kubernetes-url", url.is_none()),
            ];
            let missing = missing.into_iter().filter(|(_, is_missing)| *is_missing);
            Err(missing
                .map(|(flag, _)| format!("missing required parameter: {flag}"))
                .collect())
        }
    }
}

/// Whether kubectl or a pod would find a cluster.
fn inferable() -> bool {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let config = home.map(|home| home.join(".kube/config"));
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
        || std::env::var_os("KUBECONFIG").is_some()
        || config.is_some_and(|config| config.exists())
}

/// The whole program: its log, its runtime, its exit code. Errors start with `name`.
#[expect(
    clippy::print_stderr,
    reason = "what is wrong with the flags, for the caller of the program"
)]
pub fn program(name: &str, args: AssignerArgs) -> ExitCode {
    let credentials = match credentials(&args, inferable()) {
        Ok(credentials) => credentials,
        Err(problems) => {
            for problem in problems {
                eprintln!("{name}: {problem}");
            }
            eprintln!(
                "\n{}",
                AssignerArgs::command()
                    .name("vgpu-scheduler assigner")
                    .render_help()
            );
            return ExitCode::FAILURE;
        }
    };
    let (format, filter) = (args.log_format, args.log_level.filter());
    let runtime = &mut tokio::runtime::Builder::new_multi_thread();
    server::program(name, format, filter, runtime, run(args, credentials))
}

async fn run(args: AssignerArgs, credentials: Credentials) -> anyhow::Result<()> {
    let stop = server::asked_to_stop().context("cannot handle signals")?;
    let bind = |port, flag: &'static str| {
        let address = SocketAddr::new(args.address, port);
        async move {
            let bound = Listener::bind(address).await;
            bound.map_err(|error| anyhow!("{error}; {flag} takes another port"))
        }
    };
    let (api, ui) = (
        bind(args.port, "--port").await?,
        bind(args.ui_port, "--ui-port").await?,
    );
    let client = kube::Client::try_from(config(credentials).await?);
    let client = client.context("no client for the cluster")?;
    let settings = crate::Settings {
        claims: Some(ClaimSettings {
            namespace: args.claims_namespace.clone(),
            clock_skew: args.clock_skew,
        }),
        kube_timeout: args.kube_timeout,
        node_selector: args.node_label_selector.clone(),
        keeps_hcs: false,
        ..crate::Settings::default()
    };
    let vendors = Arc::new(vendors(args.device_config_file.as_deref())?);
    let scheduler = Scheduler::new(client, vendors, settings, Company::none());
    let assigner = scheduler
        .assigner(AssignerSettings { pin: args.pin })
        .context("reservations do not count")?;
    let tls = args.certificate.tls(None)?;
    if tls.is_none() {
        tracing::warn!("no --cert_file: an API server calls a webhook over HTTPS only");
    }
    tracing::info!(api = %api.address(), ui = %ui.address(), "serving");
    let following = {
        let scheduler = scheduler.clone();
        tokio::spawn(async move { scheduler.follow().await })
    };
    let serving = Serving::start(
        &assigner,
        Some((api, tls)),
        Some(ui),
        args.renew_interval,
        args.renew_jitter,
    );
    let signal = stop.await;
    tracing::info!(signal, "stopping");
    serving.stop().await;
    following.abort();
    Ok(())
}

/// The assigner's listeners and its periodic check, while they run.
#[derive(Debug)]
pub struct Serving {
    stopping: watch::Sender<bool>,
    listeners: Vec<tokio::task::JoinHandle<()>>,
    keeping: tokio::task::JoinHandle<()>,
}

impl Serving {
    /// Serves the API and the routes for people, and checks the reservations periodically.
    pub fn start(
        assigner: &Assigner,
        api: Option<(Listener, Option<Tls>)>,
        ui: Option<Listener>,
        interval: Duration,
        jitter: f64,
    ) -> Self {
        let (stopping, stopped) = watch::channel(false);
        let until = || {
            let mut stopped = stopped.clone();
            async move { drop(stopped.wait_for(|stopped| *stopped).await) }
        };
        // API servers use HTTP/1.1 with one connection for each review, and keep idle ones for 90 s.
        let manners = Manners {
            connections: 4096,
            connections_per_address: 1024,
            head_timeout: Duration::from_secs(120),
            ..Manners::default()
        };
        let mut listeners = Vec::new();
        if let Some((listener, tls)) = api {
            let (router, until) = (api::assigner::api(assigner), until());
            listeners.push(tokio::spawn(async move {
                match tls {
                    Some(tls) => listener.serve_tls(router, manners, tls, until).await,
                    None => listener.serve(router, manners, until).await,
                }
            }));
        }
        if let Some(listener) = ui {
            let (router, until) = (api::assigner::ui(assigner), until());
            listeners.push(tokio::spawn(async move {
                listener.serve(router, Manners::default(), until).await;
            }));
        }
        let keeping = {
            let assigner = assigner.clone();
            tokio::spawn(async move { assigner.keep(interval, jitter).await })
        };
        Self {
            stopping,
            listeners,
            keeping,
        }
    }

    /// Stops serving, and waits for the end.
    pub async fn stop(self) {
        self.stopping.send_replace(true);
        self.keeping.abort();
        for listener in self.listeners {
            drop(listener.await);
        }
    }
}

fn vendors(path: Option<&Path>) -> anyhow::Result<Vendors> {
    let config = match path {
        Some(path) => {
            let said = || format!("--device-config-file {}", path.display());
            let text = std::fs::read_to_string(path).with_context(said)?;
            DeviceConfig::parse(&text).with_context(said)?
        }
        None => DeviceConfig::standard(),
    };
    let switches = Switches {
        ascend: false,
        iluvatar: false,
    };
    Vendors::new(config, switches).context("the device configuration cannot be used")
}

async fn config(credentials: Credentials) -> anyhow::Result<kube::Config> {
    let mut config = match credentials {
        Credentials::Given { token, ca, url } => {
            let url = url
                .parse()
                .with_context(|| format!("--kubernetes-url {url}"))?;
            let mut config = kube::Config::new(url);
            let said = || format!("--ca-certificate {}", ca.display());
            let bytes = std::fs::read(&ca).with_context(said)?;
            config.root_cert = Some(certificates(&bytes).with_context(said)?);
            config.auth_info.token_file = Some(token.display().to_string());
            config
        }
        Credentials::Kubeconfig(path) => of_cluster(Some(&path)).await?,
        Credentials::Inferred => of_cluster(None).await?,
    };
    // A call whose outcome is unknown must not be repeated blindly: it may have happened already.
    config.default_retry = false;
    Ok(config)
}

async fn of_cluster(kubeconfig: Option<&Path>) -> Result<kube::Config, AccessError> {
    kube_access::config(kubeconfig, None, "--kubeconfig FILE names one").await
}

/// The certificates of a file: base64 of PEM, or PEM.
fn certificates(bytes: &[u8]) -> anyhow::Result<Vec<Vec<u8>>> {
    let is_pem = bytes.windows(11).any(|window| window == b"-----BEGIN ");
    let decoded;
    let pem = if is_pem {
        bytes
    } else {
        let text: Vec<u8> = bytes
            .iter()
            .copied()
            .filter(|byte| !byte.is_ascii_whitespace())
            .collect();
        decoded = STANDARD
            .decode(text)
            .context("it is neither PEM nor base64 of PEM")?;
        &decoded
    };
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem)
        .map(|der| der.map(|der| der.to_vec()))
        .collect();
    let read = read.context("its PEM cannot be read")?;
    if read.is_empty() {
        bail!("no certificate in it; expected PEM, or base64 of PEM");
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(flags: &[&str]) -> AssignerArgs {
        let flags = ["assigner"].iter().chain(flags);
        AssignerArgs::try_parse_from(flags).unwrap()
    }

    #[test]
    fn documented_flags_have_their_defaults() {
        let args = args(&[
            "-t",
            "a",
            "-c",
            "b",
            "-k",
            "https://c",
            "-l",
            "report",
            "-i",
            "60000",
        ]);

        assert_eq!((args.port, args.ui_port), (443, 8080));
        assert_eq!(args.renew_interval, Duration::from_secs(60));
        assert_eq!(args.log_level.filter(), "error");
        assert_eq!(self::args(&[]).log_level, Level::Warn);
    }

    #[test]
    fn missing_credentials_are_named() {
        let missing = |flags: &[&str], inferable| credentials(&args(flags), inferable);

        assert_eq!(
            missing(&[], false),
            Err(vec![
                "missing required parameter: access-token".to_owned(),
                "missing required parameter: ca-certificate".to_owned(),
                "missing required parameter: kubernetes-url".to_owned(),
            ])
        );
        assert_eq!(
            missing(&["-t", "a", "-k", "https://c"], true),
            Err(vec![
                "missing required parameter: ca-certificate".to_owned()
            ])
        );
        assert_eq!(missing(&[], true), Ok(Credentials::Inferred));
        let unreadable = missing(&["-t", "/no/a", "-c", "/no/b", "-k", "https://c"], true);
        let unreadable = unreadable.unwrap_err();
        assert!(
            unreadable[0].starts_with("--access-token /no/a: "),
            "{unreadable:?}"
        );
        assert_eq!(unreadable.len(), 2);
    }

    #[test]
    fn a_ca_is_read_as_pem_and_as_base64_of_it() {
        let pem = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n";
        let encoded = STANDARD.encode(pem);

        assert_eq!(certificates(pem.as_bytes()).unwrap(), [[1, 2, 3]]);
        assert_eq!(certificates(encoded.as_bytes()).unwrap(), [[1, 2, 3]]);
        assert!(certificates(b"%").is_err());
        assert!(certificates(b"AQID").is_err());
    }
}
