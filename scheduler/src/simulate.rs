//! The simulator as a process: flags, the initial state, listeners, and the signal to stop. Both `vgpu-scheduler
//! simulator` and `vgpu simulate` run it.

mod compare;

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use axum::Router;
use clap::builder::BoolishValueParser;
use clap::{Parser, Subcommand};
use embedded_cluster::{Cluster, Options, guard};
use kube_api::config::DeviceConfig;
use kube_api::vendor::{Switches, Vendors};
use serde_json::Value;
use server::flags::{self, LogArgs};
use server::{Bodies, Listener, Manners};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use self::compare::CompareArgs;

use crate::api::simulator::{Origins, kubernetes as kubernetes_routes, routes};
use crate::simulator::gpus::{GpuPlugins, has_devices};
use crate::simulator::recording::ReplayPace;
use crate::simulator::scenario::Scenario;
use crate::simulator::{Import, Merge, Prefix, Scheduling, Setup, Simulator, outside, recording};

/// How many changes of each kind a stream may lag behind: a large import is many changes at once.
const REMEMBERED: usize = 100_000;

/// How long a real cluster may take to list its objects.
const PATIENCE: Duration = Duration::from_secs(120);

/// Try, replay and explain scheduling without a cluster.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "simulator",
    version,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    mut_arg("log", |flag| flag.env("VGPU_SCHEDULER_LOG")),
    mut_arg("log_format", |flag| flag.env("VGPU_SCHEDULER_LOG_FORMAT"))
)]
pub struct SimulateArgs {
    /// Do this instead of serving.
    #[command(subcommand)]
    pub command: Option<SimulateCommand>,

    /// The address of the simulator's API and its cluster's: ADDRESS:PORT, or :PORT for every address.
    #[arg(
        long,
        env = "VGPU_SIMULATOR_BIND",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:1212",
        value_parser = flags::address
    )]
    pub bind: SocketAddr,

    /// Another port for the simulator's API, on the address of --bind.
    #[arg(long, env = "PORT", value_name = "PORT")]
    pub port: Option<u16>,

    /// A second address for the cluster's API, for kubectl: ADDRESS:PORT, or "off".
    #[arg(
        long,
        env = "VGPU_SIMULATOR_KUBERNETES_BIND",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:3131"
    )]
    pub kubernetes_bind: String,

    /// Require this bearer token. Needed where an address is not a loopback address.
    #[arg(long, env = "VGPU_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<String>,

    /// Origins of web pages that may call the API, separated by commas; * for all.
    #[arg(
        long = "cors-allowed-origins",
        env = "CORS_ALLOWED_ORIGIN_LIST",
        value_name = "ORIGINS",
        value_delimiter = ',',
        default_value = "http://localhost:3000"
    )]
    pub origins: Vec<String>,

    /// The initial scheduler configuration: a KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1, YAML or
    /// JSON. By default kube-scheduler's own defaults.
    #[arg(long, env = "KUBE_SCHEDULER_CONFIG_PATH", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Copy the objects of a real cluster at the start. Nothing is written there.
    #[arg(long, env = "EXTERNAL_IMPORT_ENABLED", value_parser = BoolishValueParser::new(), value_name = "BOOL",
          num_args = 0..=1, default_value = "false", default_missing_value = "true", require_equals = true,
          conflicts_with = "import")]
    pub import_from_cluster: bool,

    /// Repeat every change of a real cluster here, for as long as the simulator runs. Nothing is written there.
    #[arg(long, env = "RESOURCE_SYNC_ENABLED", value_parser = BoolishValueParser::new(), value_name = "BOOL",
          num_args = 0..=1, default_value = "false", default_missing_value = "true", require_equals = true)]
    pub sync_from_cluster: bool,

    /// Record the changes of a real cluster in this file, as JSON lines that --replay reads.
    #[arg(long, value_name = "FILE")]
    pub record_cluster: Option<PathBuf>,

    /// Replay this recording: JSON lines of --record-cluster, or of the reference's recorder.
    #[arg(long, env = "RECORD_FILE_PATH", value_name = "FILE")]
    pub replay: Option<PathBuf>,

    /// The pace of the replay: none (as fast as possible), original, or a factor of the original pace.
    #[arg(long, value_name = "PACE", default_value = "none", requires = "replay")]
    pub replay_pace: ReplayPace,

    /// Play this scenario without serving anything, print the state after each step as JSON, and exit: with code 0 if
    /// it succeeded and every pod has a node, else 1.
    #[arg(long, value_name = "FILE")]
    pub scenario: Option<PathBuf>,

    /// With --scenario: pods may remain without a node.
    #[arg(long, requires = "scenario")]
    pub allow_pending: bool,

    /// How long a step of a scenario may take, in seconds, or as 5m.
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = crate::parse::duration, requires = "scenario")]
    pub step_timeout: Duration,

    /// A kubeconfig for the real cluster; by default $KUBECONFIG, ~/.kube/config, or the pod's own service account.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Copy only objects with these labels from the real cluster: app=web, several separated by commas.
    #[arg(long, value_name = "LABELS", default_value = "")]
    pub cluster_labels: String,

    /// Whether to add the plugins GpuFit and GpuScore, which place shares of GPUs, to the initial configuration: auto
    /// (if a node of --import, the real cluster, the recording or the scenario has GPUs to share), on, or off. By
    /// default auto for vgpu simulate, and off for vgpu-scheduler simulator.
    #[arg(
        long,
        env = "VGPU_SIMULATOR_GPU_PLUGINS",
        value_enum,
        value_name = "WHEN"
    )]
    pub gpu_plugins: Option<GpuPlugins>,

    /// The prefix of the result annotations that are written to pods. Both prefixes are read.
    #[arg(long, value_enum, default_value_t = Prefix::New)]
    pub annotation_prefix: Prefix,

    /// The log.
    #[command(flatten)]
    pub log: LogArgs,

    /// The initial objects and configuration: the output of GET /api/v1/export, JSON or YAML.
    #[arg(long, value_name = "FILE")]
    pub import: Option<PathBuf>,
}

/// The simulator's subcommands, besides serving.
#[derive(Debug, Clone, Subcommand)]
pub enum SimulateCommand {
    /// Compare configurations, more nodes and drained nodes over one export or recording
    Compare(CompareArgs),
}

/// The whole program: its log, its runtime, its exit code. Errors start with `name`.
pub fn program(name: &str, args: SimulateArgs) -> ExitCode {
    if let Some(SimulateCommand::Compare(args)) = args.command {
        return compare::program(&format!("{name} compare"), args);
    }
    let (format, filter) = (args.log.log_format, args.log.log.clone());
    let runtime = &mut tokio::runtime::Builder::new_multi_thread();
    server::program(name, format, &filter, runtime, run(args))
}

/// Serves until a signal asks it to stop.
///
/// # Errors
///
/// A flag, a file or an address cannot be used.
pub async fn run(args: SimulateArgs) -> anyhow::Result<()> {
    let stop = server::asked_to_stop().context("cannot handle signals")?;
    if let Some(path) = args.scenario.clone() {
        let played = play(&args, &path);
        return tokio::select! {
            played = played => played,
            signal = stop => bail!("{signal} came before the scenario had ended"),
        };
    }
    let mut address = args.bind;
    if let Some(port) = args.port {
        address.set_port(port);
    }
    let listener = bind(address, "--bind or --port").await?;
    let kubernetes = match args.kubernetes_bind.as_str() {
        "off" | "" => None,
        text => {
            let address = flags::address(text)
                .map_err(|why| anyhow!("--kubernetes-bind {text}: {why}, or off"))?;
            Some(bind(address, "--kubernetes-bind").await?)
        }
    };
    let (simulator, from_cluster) = prepare(&args).await?;
    let scheduling = Scheduling {
        prefix: args.annotation_prefix,
        vendors: Some(Arc::new(vendors()?)),
        ..Scheduling::default()
    };
    let turns = {
        let simulator = simulator.clone();
        tokio::spawn(async move { simulator.schedule(&scheduling).await })
    };
    let mut beside = JoinSet::new();
    if args.sync_from_cluster {
        let (simulator, client) = (simulator.clone(), client(args.kubeconfig.as_deref()).await?);
        let labels = args.cluster_labels.clone();
        beside.spawn(async move {
            simulator
                .follow(&client, &labels, from_cluster.as_ref())
                .await;
        });
    }
    if let Some(path) = args.record_cluster.clone() {
        let client = client(args.kubeconfig.as_deref()).await?;
        let labels = args.cluster_labels.clone();
        beside.spawn(async move {
            if let Err(error) = outside::record(&client, &labels, &path).await {
                tracing::error!(path = %path.display(), %error, "the recording ends");
            }
        });
    }
    if let Some(path) = &args.replay {
        let said = || format!("--replay {}", path.display());
        let text = std::fs::read_to_string(path).with_context(said)?;
        let lines = recording::read(&text).with_context(said)?;
        let (simulator, pace) = (simulator.clone(), args.replay_pace);
        beside.spawn(async move {
            let count = lines.len();
            let refused = simulator.replay(lines, pace).await;
            tracing::info!(lines = count, refused, "the recording is replayed");
        });
    }
    let mut origins = Origins::new(args.origins.iter().cloned());
    if args.token.is_some() {
        origins = origins.behind_token();
    }
    let (stopping, stopped) = watch::channel(false);
    let kubernetes = match kubernetes {
        Some(listener) => {
            tracing::info!(address = %listener.address(), "serving the cluster's API");
            let api = kubernetes_routes(&simulator, origins.clone(), Bodies::default());
            let api = guarded(api, &listener, &args, "--kubernetes-bind")?;
            let mut stopped = stopped.clone();
            Some(tokio::spawn(async move {
                let stop = async { drop(stopped.wait_for(|stopped| *stopped).await) };
                listener.serve(api, manners(), stop).await;
            }))
        }
        None => None,
    };
    let router = routes(&simulator, origins, Bodies::default());
    let router = guarded(router, &listener, &args, "--bind")?;
    tracing::info!(page = %format_args!("http://{}", listener.address()), "serving the simulator");
    let stop = async {
        let signal = stop.await;
        tracing::info!(signal, "stopping");
        stopping.send_replace(true);
    };
    listener.serve(router, manners(), stop).await;
    turns.abort();
    beside.abort_all();
    if let Some(kubernetes) = kubernetes {
        drop(kubernetes.await);
    }
    Ok(())
}

/// Plays a scenario and prints the result.
async fn play(args: &SimulateArgs, path: &Path) -> anyhow::Result<()> {
    let said = || format!("--scenario {}", path.display());
    let scenario = Scenario::read(&read(path).with_context(said)?);
    let scenario = scenario.with_context(said)?;
    let (simulator, _) = prepare(args).await?;
    let scheduling = Scheduling {
        prefix: args.annotation_prefix,
        vendors: Some(Arc::new(vendors()?)),
        ..Scheduling::default()
    };
    let report = tokio::select! {
        report = simulator.play(&scenario, args.step_timeout) => report,
        () = simulator.schedule(&scheduling) => bail!("the scheduler ended"),
    };
    let text = serde_json::to_string_pretty(&report)?;
    writeln!(std::io::stdout(), "{text}")?;
    let pending = report.steps.last().map_or(0, |step| step.pending);
    if report.phase != "Succeeded" {
        bail!("{}: {}", said(), report.message);
    }
    if pending > 0 && !args.allow_pending {
        bail!(
            "{}: {pending} pods have no node (--allow-pending lets them)",
            said()
        );
    }
    Ok(())
}

/// Every vendor's devices, with HAMi's names.
fn vendors() -> anyhow::Result<Vendors> {
    let switches = Switches {
        ascend: true,
        iluvatar: true,
    };
    Vendors::new(DeviceConfig::standard(), switches)
        .context("the device configuration cannot be used")
}

/// A simulator with the contents of the files, and what it imported from a real cluster.
async fn prepare(args: &SimulateArgs) -> anyhow::Result<(Simulator, Option<Import>)> {
    let setup = match &args.config {
        Some(path) => {
            let said = || format!("--config {}", path.display());
            Setup::read(&read(path).with_context(said)?).with_context(said)?
        }
        None => Setup::defaults(),
    };
    let cluster = Cluster::new(Options {
        remembered_changes: REMEMBERED,
        ..Options::default()
    });
    let simulator = Simulator::new(cluster, setup);
    if let Some(path) = &args.import {
        let said = || format!("--import {}", path.display());
        let import = Import::read(read(path).with_context(said)?).with_context(said)?;
        let imported = simulator.import(&import, Merge::Keep).await;
        imported.with_context(said)?;
        simulator.start_from_here().await;
    }
    let mut from_cluster = None;
    if args.import_from_cluster {
        let import = of_cluster(args.kubeconfig.as_deref(), &args.cluster_labels)
            .await
            .context("--import-from-cluster")?;
        let imported = simulator.import(&import, Merge::Keep).await;
        imported.context("--import-from-cluster")?;
        simulator.start_from_here().await;
        from_cluster = Some(import);
    }
    let vendors = vendors()?;
    let later = || -> anyhow::Result<bool> {
        let has = |node: &Value| has_devices(node, &vendors);
        let in_scenario = match &args.scenario {
            // A file that cannot be read is reported when it is replayed.
            Some(path) => {
                Scenario::read(&read(path)?).is_ok_and(|scenario| scenario.created("Node").any(has))
            }
            None => false,
        };
        let in_recording = match &args.replay {
            Some(path) => recording::read(&std::fs::read_to_string(path)?)
                .is_ok_and(|lines| lines.iter().any(|line| has(&line.object))),
            None => false,
        };
        Ok(in_scenario || in_recording)
    };
    let wanted = match args.gpu_plugins.unwrap_or_default() {
        GpuPlugins::Off => false,
        GpuPlugins::On => true,
        GpuPlugins::Auto => simulator.has_devices(&vendors) || later().unwrap_or_default(),
    };
    if wanted && simulator.share_gpus().await? {
        tracing::info!(
            "GpuFit and GpuScore share GPUs out (--gpu-plugins=off leaves the configuration as it is)"
        );
    }
    Ok((simulator, from_cluster))
}

/// The current objects of a real cluster.
async fn of_cluster(kubeconfig: Option<&Path>, labels: &str) -> anyhow::Result<Import> {
    let client = client(kubeconfig).await?;
    let read = tokio::time::timeout(PATIENCE, outside::read(&client, labels)).await;
    let seconds = PATIENCE.as_secs();
    let mut import =
        read.map_err(|_| anyhow!("the real cluster did not answer within {seconds} s"))??;
    import.lenient = true;
    Ok(import)
}

/// A file of JSON or YAML.
fn read(path: &Path) -> anyhow::Result<Value> {
    parse(&std::fs::read_to_string(path)?)
}

/// JSON or YAML.
fn parse(text: &str) -> anyhow::Result<Value> {
    match serde_json::from_str(text) {
        Ok(value) => Ok(value),
        Err(json) => match serde_saphyr::from_str::<Value>(text) {
            Ok(value) if value.is_object() => Ok(value),
            Ok(_) => bail!("it is neither JSON ({json}) nor a YAML object"),
            Err(yaml) => {
                let yaml = yaml.to_string();
                let yaml = yaml.lines().next().unwrap_or_default();
                bail!("it is neither JSON ({json}) nor YAML ({yaml})")
            }
        },
    }
}

/// A client of the real cluster.
async fn client(kubeconfig: Option<&Path>) -> anyhow::Result<kube::Client> {
    let config = kube_access::config(kubeconfig, None, "--kubeconfig FILE names one").await?;
    kube::Client::try_from(config).context("no client for the real cluster")
}

async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<Listener> {
    Listener::bind(address)
        .await
        .map_err(|error| anyhow!("{error}; {flag} takes another address"))
}

/// Restricts the routes to clients with the token, or to this machine.
fn guarded(
    router: Router,
    listener: &Listener,
    args: &SimulateArgs,
    flag: &str,
) -> anyhow::Result<Router> {
    let address = listener.address();
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
    guard(router, address, args.token.as_deref())
        .map_err(|error| anyhow!("{error} (--token, or {flag} {loopback})"))
}

fn manners() -> Manners {
    Manners {
        connections: 1024,
        connections_per_address: 1024,
        ..Manners::default()
    }
}
