//! The admission webhook as a process: settings, ports, and the signal to stop.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::args::Args;
use crate::authority::Lifetimes;
use crate::keeper::{Configurations, Keeper, Source, Wanted};
use crate::lease::Contest;
use crate::metrics::Meters;
use crate::quotas::Limits;
use crate::run::{Watched, keep};
use crate::{keeper, router};
use admission::{Admission, Settings, webhook_configurations};
use anyhow::Context;
use clap::Parser;
use jiff::Timestamp;
use kube::api::Api;
use kube_api::config::DeviceConfig;
use kube_api::vendor::{Switches, Vendors};
use server::{Listener, Readiness, Tls};
use tokio::sync::watch;

/// A holder of the Lease that is silent for this long loses it to another replica.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs what the command line asks for, and returns the exit status.
#[must_use]
pub fn main() -> ExitCode {
    let args = Args::parse();
    let (format, filter) = (args.log.log_format, args.log.log.clone());
    let runtime = &mut tokio::runtime::Builder::new_multi_thread();
    server::program("vgpu-webhook", format, &filter, runtime, run(args))
}

/// The stages of stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serving,
    /// Another replica takes over writing; reviews that arrive are still answered.
    Leaving,
    Stopped,
}

async fn run(args: Args) -> anyhow::Result<()> {
    let lifetimes = args.lifetimes()?;
    let vendors = Arc::new(vendors(&args)?);
    let tls = match args.certificate.tls(args.client_ca_file.clone())? {
        Some(tls) => tls,
        None => match &args.client_ca_file {
            Some(client_ca) => Tls::for_clients_of(client_ca.clone())?,
            None => Tls::without_certificate(),
        },
    };
    let own = args.certificate.cert_file.is_none();
    let cluster = if own || args.write_configuration || args.check_quotas {
        match cluster(&args).await {
            Ok(config) => Some(config),
            // No cluster was named, and reviews can be answered without one.
            Err(error) if !own && args.kubeconfig.is_none() && !in_a_pod() => {
                tracing::warn!("{error:#}; no configuration is written and no quota is known");
                None
            }
            Err(error) => return Err(error),
        }
    } else {
        None
    };
    let namespace = args
        .namespace
        .clone()
        .filter(|name| !name.trim().is_empty())
        .or_else(|| {
            cluster
                .as_ref()
                .map(|config| config.default_namespace.clone())
        })
        .unwrap_or_else(|| "default".to_owned());
    let settings = args.settings(&namespace);
    let client = cluster
        .map(kube::Client::try_from)
        .transpose()
        .context("cannot make a client of the API server")?;

    let traces = args
        .traces
        .start("vgpu-webhook", env!("CARGO_PKG_VERSION"))?;
    let meters = Meters::default().with_traces(traces.clone());
    let readiness = Readiness::waiting_for("the first look at the cluster");
    let mut admission =
        Admission::new(Arc::clone(&vendors), settings.clone()).with_traces(traces.clone());
    if let Some(client) = client.clone().filter(|_| args.check_quotas) {
        let limits = Arc::new(Limits::new(Arc::clone(&vendors)));
        tokio::spawn(Arc::clone(&limits).follow(client));
        admission = admission.with_quotas(limits);
    }

    let signal = server::asked_to_stop().context("cannot handle signals")?;
    let listener = Listener::bind(args.http_bind)
        .await
        .map_err(|error| anyhow::anyhow!("{error}; --http_bind takes another address"))?;
    let plain = match args.metrics_bind_address.0 {
        Some(address) => Some(Listener::bind(address).await.map_err(|error| {
            anyhow::anyhow!("{error}; --metrics-bind-address takes another address, or 0")
        })?),
        None => None,
    };
    tracing::info!(
        address = %listener.address(),
        metrics = plain.as_ref().map(|plain| plain.address().to_string()),
        namespace,
        own_ca = own,
        "serving reviews over TLS"
    );

    let (stage, stages) = watch::channel(Stage::Serving);
    let stopped = |at: Stage| {
        let mut stages = stages.clone();
        async move { drop(stages.wait_for(|stage| *stage >= at).await) }
    };
    let keeping = async {
        match client {
            Some(client) if own || args.write_configuration => {
                let keeper = keeper(
                    &args, &client, &namespace, vendors, settings, &tls, &readiness, &meters,
                    lifetimes,
                );
                let watched = Watched {
                    secret: own.then(|| (namespace.clone(), args.secret_name.clone())),
                    configurations: args
                        .write_configuration
                        .then(|| args.webhook_config_name.clone()),
                };
                keep(keeper, client, watched, stopped(Stage::Leaving)).await;
                // A look that ended at the same moment may have set it to ready.
                readiness.not_ready("stopping");
            }
            // The certificate was given and there is nothing to keep.
            _ => readiness.ready(),
        }
    };
    let serving = async {
        let reviews = router::tls(Arc::new(admission), &meters, readiness.clone());
        let reviews = listener.serve_tls(
            reviews,
            router::manners(),
            tls.clone(),
            stopped(Stage::Stopped),
        );
        let plain = async {
            if let Some(listener) = plain {
                let router = router::plain(&meters, readiness.clone());
                let manners = server::Manners::default();
                listener
                    .serve(router, manners, stopped(Stage::Stopped))
                    .await;
            }
        };
        tokio::join!(reviews, plain);
    };
    let stop = async {
        let signal = signal.await;
        tracing::info!(signal, "stopping");
        stage.send_replace(Stage::Leaving);
        readiness.not_ready("stopping");
        tokio::time::sleep(Duration::from_secs(args.shutdown_delay.into())).await;
        stage.send_replace(Stage::Stopped);
    };
    tokio::join!(serving, keeping, stop);
    traces.stop().await;
    Ok(())
}

fn vendors(args: &Args) -> anyhow::Result<Vendors> {
    let switches = Switches {
        ascend: args.enable_ascend,
        iluvatar: args.enable_iluvatar,
    };
    let Some(path) = &args.device_config_file else {
        return Vendors::new(DeviceConfig::standard(), switches)
            .context("the standard device config");
    };
    let place = || format!("--device-config-file {}", path.display());
    let text = std::fs::read_to_string(path).with_context(place)?;
    let config = DeviceConfig::parse(&text).with_context(place)?;
    Vendors::new(config, switches).with_context(place)
}

/// Whether a kubelet has set the address of an API server.
fn in_a_pod() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

async fn cluster(args: &Args) -> anyhow::Result<kube::Config> {
    const OTHERWISE: &str = "--kubeconfig FILE, KUBECONFIG or a pod's service account is needed, unless --cert_file is given";
    let mut config = kube_access::config(args.kubeconfig.as_deref(), None, OTHERWISE).await?;
    config.connect_timeout = Some(Duration::from_secs(5));
    Ok(config)
}

#[expect(
    clippy::too_many_arguments,
    reason = "the one place where everything meets"
)]
fn keeper(
    args: &Args,
    client: &kube::Client,
    namespace: &str,
    vendors: Arc<Vendors>,
    settings: Settings,
    tls: &Tls,
    readiness: &Readiness,
    meters: &Meters,
    lifetimes: Lifetimes,
) -> Keeper {
    let source = if args.certificate.cert_file.is_some() {
        Source::Given {
            bundle: args.ca_file.clone(),
        }
    } else {
        Source::Own {
            secret: args.secret_name.clone(),
            names: args.names(namespace),
            lifetimes,
        }
    };
    let at = args.client_config(namespace);
    let wanted: Wanted = Arc::new(move |match_conditions| {
        let settings = Settings {
            match_conditions,
            ..settings.clone()
        };
        let (mutating, validating) = webhook_configurations(&vendors, &settings, &at);
        vec![mutating, validating]
    });
    let contest = Contest::new(
        Api::namespaced(client.clone(), namespace),
        args.lease_name.clone(),
        identity(args),
        PATIENCE,
    );
    let settings = keeper::Settings {
        namespace: namespace.to_owned(),
        source,
        configurations: args.write_configuration.then(|| Configurations {
            name: args.webhook_config_name.clone(),
            wanted,
            owner: args
                .owner_cluster_role
                .clone()
                .filter(|name| !name.is_empty()),
        }),
        clock: Arc::new(Timestamp::now),
    };
    Keeper::new(
        client.clone(),
        settings,
        contest,
        tls.clone(),
        readiness.clone(),
        meters.clone(),
    )
}

/// Unique to this process: a pod's name is the same after its container has restarted.
fn identity(args: &Args) -> String {
    let host = || {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_owned()
    };
    let name = args.identity.clone().filter(|name| !name.trim().is_empty());
    let name = name.unwrap_or_else(host);
    let began = Timestamp::now().as_nanosecond();
    format!("{name}_{}_{began:x}", std::process::id())
}
