//! The scheduler as a process: flags, the cluster, listeners, and the signal to stop.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::api::Access;
use crate::args::{Args, Command, MetricsAccess};
use crate::assigner::{self, Assigner};
use crate::assigner_program::{self, Serving};
use crate::beside::Beside;
use crate::embedded::Admit;
use crate::events::Events;
use crate::gpus::Gpus;
use crate::leader::{self, Leadership};
use crate::wake::Waker;
use crate::{Company, Scheduler, Settings, api, claim_templates, compute_nodes, limit, simulate};
use admission::Admission;
use anyhow::{Context, anyhow, bail};
use axum::Router;
use clap::Parser;
use kube_api::config::DeviceConfig;
use kube_api::request::Defaults;
use kube_api::vendor::{Switches, Vendors};
use server::{Bodies, Listener, Manners, Traces};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Runs what the command line asks for, and returns the exit status.
#[must_use]
pub fn main() -> ExitCode {
    let mut args = Args::parse();
    match args.command.take() {
        Some(Command::Simulator(args)) => {
            return simulate::program("vgpu-scheduler simulator", *args);
        }
        Some(Command::Assigner(args)) => {
            return assigner_program::program("vgpu-scheduler assigner", *args);
        }
        None => {}
    }
    let (format, filter) = (args.log.log_format, args.log_filter().to_owned());
    let runtime = &mut tokio::runtime::Builder::new_multi_thread();
    server::program("vgpu-scheduler", format, &filter, runtime, run(args))
}

async fn run(args: Args) -> anyhow::Result<()> {
    for said in args.without_effect() {
        tracing::warn!("{said}");
    }
    let vendors = Arc::new(vendors(&args)?);
    let traces = args
        .traces
        .start("vgpu-scheduler", env!("CARGO_PKG_VERSION"))?;
    let settings = settings(&args, traces.clone());
    check_words(&settings)?;
    let stop = server::asked_to_stop().context("cannot handle signals")?;
    let listener = Listener::bind(args.http_bind)
        .await
        .map_err(|error| anyhow!("{error}; --http_bind takes another address"))?;
    let (scheduler, cluster) = match &args.embedded {
        Some(state) => {
            let (scheduler, cluster) = embedded(&args, state, vendors, settings)?;
            (scheduler, Some(cluster))
        }
        None => (on_cluster(&args, vendors, settings).await?, None),
    };
    let admission = Arc::new(
        Admission::new(Arc::clone(scheduler.vendors()), admission_settings(&args))
            .with_quotas(Arc::new(scheduler.clone()))
            .with_traces(traces.clone()),
    );
    if cluster.is_none() && !scheduler.has_match_conditions().await {
        tracing::warn!(
            "this API server skips a webhook that does not answer (it is older than Kubernetes 1.28): pods that did not pass admission fit nowhere"
        );
        scheduler.refuse_unadmitted(Arc::clone(&admission));
    }
    let access = access(&args, &scheduler);
    let work = api::work(
        &scheduler,
        Some(Arc::clone(&admission)),
        args.metrics(),
        access.as_ref().filter(|_| is_reached(&listener)),
    );
    let assigner = beside(&args, &scheduler);
    let work = match &assigner {
        Some(assigner) => work.merge(api::assigner::shared(assigner)),
        None => work,
    };
    let work = match &cluster {
        Some(cluster) => {
            if args.admit {
                cluster.admit_with(Arc::new(Admit::new(admission).after(assigner.clone())));
            }
            let work = work.merge(cluster.api_routes());
            guarded(work, &listener, &args, "--http_bind")?
        }
        None => work,
    };
    let beside = match &args.kube_scheduler_health {
        Some(address) => {
            let made = Beside::new(address);
            Some(made.with_context(|| format!("--kube-scheduler-health {address}"))?)
        }
        None => None,
    };
    let router = api::health(scheduler.clone(), beside.clone()).merge(work);
    tracing::info!(address = %listener.address(), embedded = cluster.is_some(), "serving");
    let follow = {
        let scheduler = scheduler.clone();
        tokio::spawn(async move { scheduler.follow().await })
    };
    let serving = match &assigner {
        Some(assigner) => Some(serve_assigner(&args, assigner).await?),
        None => None,
    };
    let (stopping, stopped) = watch::channel(false);
    let figures = match args.metrics_bind_address {
        Some(address) => {
            let listener = Listener::bind(address).await.map_err(|error| {
                anyhow!("{error}; --metrics-bind-address takes another address")
            })?;
            tracing::info!(address = %listener.address(), "serving /metrics and /explain");
            let guard = access.as_ref().filter(|_| is_reached(&listener));
            let mut router = api::figures(&scheduler, args.metrics(), guard);
            if cluster.is_some() {
                router = guarded(router, &listener, &args, "--metrics-bind-address")?;
            }
            let router = api::health(scheduler.clone(), beside).merge(router);
            let mut stopped = stopped.clone();
            Some(tokio::spawn(async move {
                let stop = async { drop(stopped.wait_for(|stopped| *stopped).await) };
                listener.serve(router, Manners::default(), stop).await;
            }))
        }
        None => None,
    };
    let gpu_page = match args.gpu_page {
        Some(address) => Some(gpu_page(&args, address, &scheduler, stopped.clone()).await?),
        None => None,
    };
    let stop = async {
        let signal = stop.await;
        tracing::info!(signal, "stopping");
        stopping.send_replace(true);
    };
    serve(&args, listener, router, stop).await?;
    for listener in [figures, gpu_page].into_iter().flatten() {
        drop(listener.await);
    }
    if let Some(serving) = serving {
        serving.stop().await;
    }
    follow.abort();
    traces.stop().await;
    Ok(())
}

/// The proof that callers of `/metrics` and `/explain` need; `None` if all may read them. An embedded cluster has a
/// token of its own.
fn access(args: &Args, scheduler: &Scheduler) -> Option<Access> {
    let asks = args.metrics_access == MetricsAccess::Authorized && args.embedded.is_none();
    asks.then(|| scheduler.access())
}

/// Whether other machines reach the address.
fn is_reached(listener: &Listener) -> bool {
    !listener.address().ip().is_loopback()
}

/// Serves the GPU page on its own listener: to this machine, or to clients with the token.
async fn gpu_page(
    args: &Args,
    address: SocketAddr,
    scheduler: &Scheduler,
    mut stopped: watch::Receiver<bool>,
) -> anyhow::Result<JoinHandle<()>> {
    let listener = Listener::bind(address)
        .await
        .map_err(|error| anyhow!("{error}; --gpu-page takes another address"))?;
    let gpus = Gpus::new(
        scheduler,
        args.gpu_page_monitors.clone(),
        args.gpu_page_interval,
    );
    let router = pages::gpus::router(Arc::new(gpus.clone()));
    let token = args.gpu_page_token.as_deref().or(args.token.as_deref());
    let port = listener.address().port();
    let router = embedded_cluster::guard(router, listener.address(), token).map_err(|_| {
        anyhow!(
            "--gpu-page {address} can be reached from other machines: give it a token with --gpu-page-token, or a \
             loopback address (127.0.0.1:{port})"
        )
    })?;
    tracing::info!(address = %listener.address(), "serving the GPU page");
    Ok(tokio::spawn(async move {
        let stop = async { drop(stopped.wait_for(|stopped| *stopped).await) };
        tokio::select! {
            () = listener.serve(router, Manners::default(), stop) => {}
            () = gpus.run() => {}
        }
    }))
}

/// The assigner over the scheduler's ledger; `None` unless the flags ask for one.
fn beside(args: &Args, scheduler: &Scheduler) -> Option<Assigner> {
    let settings = assigner::AssignerSettings {
        pin: args.assigner_pin,
    };
    scheduler.assigner(settings).filter(|_| args.assigner)
}

async fn serve_assigner(args: &Args, assigner: &Assigner) -> anyhow::Result<Serving> {
    let bind = |address, flag: &'static str| async move {
        let bound = Listener::bind(address).await;
        bound.map_err(|error| anyhow!("{error}; {flag} takes another address"))
    };
    let standard = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 443));
    let here = args.embedded.is_none().then_some(standard);
    let api = match args.assigner_bind.or(here) {
        Some(address) => Some((
            bind(address, "--assigner-bind").await?,
            args.certificate.tls(None)?,
        )),
        None => None,
    };
    let ui = bind(args.assigner_ui_bind, "--assigner-ui-bind").await?;
    tracing::info!(ui = %ui.address(), "serving the assigner");
    let interval = Duration::from_secs(20);
    Ok(Serving::start(assigner, api, Some(ui), interval, 0.2))
}

/// Restricts an embedded cluster to clients with the token, or to this machine.
fn guarded(router: Router, listener: &Listener, args: &Args, flag: &str) -> anyhow::Result<Router> {
    embedded_cluster::guard(router, listener.address(), args.token.as_deref())
        .map_err(|error| anyhow!("{error} (--token, or {flag} 127.0.0.1:PORT)"))
}

async fn serve(
    args: &Args,
    listener: Listener,
    router: Router,
    stop: impl Future,
) -> anyhow::Result<()> {
    let router = Bodies::default().limit(router);
    let manners = Manners {
        connections: 4096,
        connections_per_address: 2048,
        // Go's clients drop an idle connection after 90 s. A server that drops it earlier can lose a request.
        head_timeout: Duration::from_secs(120),
        ..Manners::default()
    };
    match args.certificate.tls(None)? {
        Some(tls) => listener.serve_tls(router, manners, tls, stop).await,
        None => listener.serve(router, manners, stop).await,
    }
    Ok(())
}

fn vendors(args: &Args) -> anyhow::Result<Vendors> {
    let config = match &args.device_config_file {
        Some(path) => {
            let said = || format!("--device-config-file {}", path.display());
            let text = std::fs::read_to_string(path).with_context(said)?;
            DeviceConfig::parse(&text).with_context(said)?
        }
        None => DeviceConfig::standard(),
    };
    let here = args.embedded.is_some();
    let switches = Switches {
        ascend: args.enable_ascend.unwrap_or(here),
        iluvatar: args.enable_iluvatar.unwrap_or(here),
    };
    Vendors::new(config, switches).context("the device configuration cannot be used")
}

fn settings(args: &Args, traces: Traces) -> Settings {
    if args.reservation_timeout <= Duration::from_secs(600) {
        tracing::warn!(
            seconds = args.reservation_timeout.as_secs_f64(),
            "--reservation-timeout is not above the 600 s for which kube-scheduler may bind volumes: a pod that waits so long is fitted again when it is bound, and may be refused then"
        );
    }
    Settings {
        scheduler_name: args.scheduler_name.clone(),
        defaults: defaults(args),
        node_selector: args.node_label_selector.clone(),
        write_at_filter: args.write_at_filter,
        reads_resource_claims: args.resource_claims,
        kube_timeout: args.kube_timeout,
        traces,
        reservation_timeout: args.reservation_timeout,
        claims: args.claims(),
        team_label: args.team_label.clone(),
        ..Settings::default()
    }
}

fn defaults(args: &Args) -> Defaults {
    Defaults {
        node_policy: args.node_scheduler_policy.clone(),
        device_policy: args.gpu_scheduler_policy.clone(),
    }
}

/// Refuses unknown words in the flags at the start, before a pod needs them. (In a pod's annotations unknown words mean
/// the default, as in HAMi, because there they affect only one pod.)
fn check_words(settings: &Settings) -> anyhow::Result<()> {
    let node = settings.defaults.node_policy.as_str();
    if !["binpack", "spread"].contains(&node) {
        bail!("--node-scheduler-policy {node}: expected binpack or spread");
    }
    let device = settings.defaults.device_policy.as_str();
    let alone = ["spread", "binpack", "mutex", "topology-aware"].contains(&device);
    let words = ["spread", "binpack", "mutex", "numa"];
    if !alone && !device.split(',').all(|word| words.contains(&word.trim())) {
        bail!(
            "--gpu-scheduler-policy {device}: expected spread, binpack, mutex or topology-aware, or a list such as \
             binpack,numa"
        );
    }
    let selector = settings.node_selector.as_str();
    if let Err(why) = embedded_cluster::Selector::parse(selector, "") {
        bail!("--node-label-selector {selector}: {why}; expected labels such as gpu=on,zone!=a");
    }
    Ok(())
}

fn admission_settings(args: &Args) -> admission::Settings {
    admission::Settings {
        scheduler_name: args.scheduler_name.clone(),
        force_overwrite_default_scheduler: args.force_overwrite_default_scheduler,
        own_accounts: args.own_accounts.clone(),
        defaults: defaults(args),
        ..admission::Settings::default()
    }
}

fn component(args: &Args) -> &str {
    if args.scheduler_name.is_empty() {
        "vgpu-scheduler"
    } else {
        &args.scheduler_name
    }
}

fn embedded(
    args: &Args,
    path: &Path,
    vendors: Arc<Vendors>,
    settings: Settings,
) -> anyhow::Result<(Scheduler, embedded_cluster::Cluster)> {
    let said = || format!("--embedded {}", path.display());
    let text = std::fs::read(path).with_context(said)?;
    let state: serde_json::Value = serde_json::from_slice(&text).with_context(said)?;
    let cluster = embedded_cluster::Cluster::new(embedded_cluster::Options {
        any_amount: true,
        ..embedded_cluster::Options::default()
    });
    cluster
        .import(&state)
        .map_err(|status| anyhow!("{}: {status}", said()))?;
    let component = component(args);
    let scheduler = Scheduler::embedded(&cluster, vendors, settings, |client| {
        Events::start(client, component)
    });
    Ok((scheduler, cluster))
}

async fn on_cluster(
    args: &Args,
    vendors: Arc<Vendors>,
    settings: Settings,
) -> anyhow::Result<Scheduler> {
    const OTHERWISE: &str = "--kubeconfig FILE names one, --embedded STATE.json runs without one";
    let mut config = kube_access::config(args.kubeconfig.as_deref(), None, OTHERWISE).await?;
    // Repeating a call whose result is unknown would get a binding refused, so the caller of each call decides about
    // retries.
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let client = limit::client(config, args.kube_qps, args.kube_burst)
        .context("no client for the cluster")?;
    let leadership = if args.follows_lease() {
        Leadership::follow(client.clone(), lease(args, &namespace)?)
    } else {
        Leadership::always()
    };
    let company = Company {
        events: Events::start(client.clone(), component(args)),
        waker: Waker::start(client.clone()),
        leadership,
    };
    let scheduler = Scheduler::new(client.clone(), vendors, settings, company);
    if args.claim_templates {
        let pace = claim_templates::Pace::default();
        tokio::spawn(claim_templates::keep(
            client.clone(),
            scheduler.clone(),
            pace,
        ));
    }
    if args.hcs {
        let keeping = compute_nodes::keep(
            client,
            scheduler.clone(),
            compute_nodes::NodeCheckPace::default(),
        );
        tokio::spawn(keeping);
    }
    Ok(scheduler)
}

fn lease(args: &Args, namespace: &str) -> anyhow::Result<leader::LeaderSettings> {
    let host = match &args.host {
        Some(host) if !host.is_empty() => host.clone(),
        _ => std::fs::read_to_string("/proc/sys/kernel/hostname")
            .context("the host's name cannot be read; $HOSTNAME may say it")?
            .trim()
            .to_owned(),
    };
    let in_cluster = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let namespace = match &args.leader_elect_resource_namespace {
        Some(namespace) => namespace,
        None if in_cluster => namespace,
        None => "kube-system",
    };
    let name = match &args.leader_elect_resource_name {
        Some(name) => name,
        None => component(args),
    };
    Ok(leader::LeaderSettings::new(namespace, name, &host))
}
