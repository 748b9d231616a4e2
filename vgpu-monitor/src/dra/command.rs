//! `vgpu-monitor dra`: puts the parts together, and ends them. Never decides what one of them decides.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use events::Events;
use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use nix::fcntl::Flock;
use prometheus_client::registry::Registry;
use server::{Listener, Manners, Readiness};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::args::DraArgs;
use super::checkpoint::{self, Checkpoint};
use super::leftovers::Leftovers;
use super::prepare::{Parts, Preparer};
use super::publish::{PublishError, Publisher};
use super::service::{Registered, Service};
use super::sharers::Sharers;
use super::slices::Others;
use super::{DRIVER, Metrics, Sockets, facts};
use crate::collect::{self, LeftoverCollector};
use crate::delivery::{self, Delivery, Manner};
use crate::inventory::{self, mig::Mig};
use crate::own_pods::OwnPods;
use crate::plugin::command::{alone, client};
use crate::plugin::settings::state_dir;
use crate::plugin::{self, Lister, exporter_calls, lock, runtime};
use crate::watched_gpus::WatchedGpus;

/// Time between two searches for the remains of ended claims.
const CLEAR: Duration = Duration::from_secs(30);
/// How often is looked whether the container runtime can serve claims.
const RUNTIME: Duration = Duration::from_secs(30);
/// Longest wait for one call of the API server.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs until the process is asked to stop.
///
/// # Errors
///
/// When a setting cannot be, or the state directory cannot be used.
pub async fn run(args: DraArgs) -> anyhow::Result<()> {
    let stop = server::asked_to_stop().context("cannot handle signals")?;
    let mut stop = std::pin::pin!(stop);
    let sockets = Sockets::new(&args.agent.kubelet_dir)?;
    let listener = Listener::bind(args.agent.metrics_addr)
        .await
        .map_err(|error| {
            anyhow!("{error}; perhaps another vgpu-monitor: --metrics-addr takes another port")
        })?;
    let state = state_dir(&args.agent)?;
    let Some((listener, _locks)) = without_plugin(listener, &state, stop.as_mut()).await? else {
        return Ok(());
    };
    let client = client(args.agent.kubeconfig.as_deref()).await?;
    let events = Events::start(client.clone(), "vgpu-monitor");

    let (hindered, hindrance) = watch::channel(None);
    let WatchedGpus { gpus, files, sick } =
        WatchedGpus::start(&args.agent, args.mig_strategy, &state, hindrance, &events)?;

    let metrics = Metrics::new(&args.agent.node_name);
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    registry.register_collector(Box::new(sick.collector));
    let readiness = Readiness::waiting_for("the registration with the kubelet");
    let (stopping, stopped) = watch::channel(false);
    let until = |mut stopped: watch::Receiver<bool>| async move {
        // Cannot fail: the sender outlives its receivers.
        drop(stopped.wait_for(|stopped| *stopped).await);
    };
    let router = server::health(readiness.clone()).merge(server::metrics(registry));
    let address = listener.address();
    let serving = tokio::spawn(listener.serve(router, Manners::default(), until(stopped.clone())));

    let delivery = Delivery::new(delivery::DeliverySettings {
        state_dir: args.agent.state_dir.clone(),
        host_prefix: args.agent.host_prefix.clone().unwrap_or_default(),
        cdi_dir: args.agent.cdi_dir.clone(),
        vendor_cdi_dirs: vec![PathBuf::from("/etc/cdi"), args.agent.cdi_dir.clone()],
        library: args.agent.library.clone(),
        ..delivery::DeliverySettings::new(Manner::Claim, gpus.inventories.clone())
    })
    .context("cannot prepare what containers get")?;
    let delivery = Arc::new(delivery);
    let checkpoint = Checkpoint::open(&state).with_context(|| {
        format!(
            "cannot read the records of claims in {}",
            state.join(checkpoint::FOLDER).display()
        )
    })?;
    let checkpoint = Arc::new(checkpoint);
    let mig =
        Mig::start(&state, None).context("cannot start the thread that makes MIG instances")?;
    let preparer = Preparer::new(Parts {
        node: args.agent.node_name.clone(),
        client: client.clone(),
        delivery: Arc::clone(&delivery),
        checkpoint: Arc::clone(&checkpoint),
        inventories: gpus.inventories.clone(),
        healths: sick.healths.clone(),
        team_label: args.agent.team_label.clone(),
        mig: mig.clone(),
    });
    let pods = OwnPods::start(&client, &args.agent.node_name);
    if let Some(socket) = &args.agent.exporter_socket {
        let listener = exporter_calls::listen(socket)?;
        let node = args.agent.node_name.clone();
        tokio::spawn(exporter_calls::serve(
            listener,
            client.clone(),
            node,
            pods.clone(),
        ));
    }
    let published = watch::Sender::new(None);
    let publisher = Publisher {
        node: args.agent.node_name.clone(),
        client: client.clone(),
        delivery: Arc::clone(&delivery),
        inventories: gpus.inventories.clone(),
        healths: sick.healths.clone(),
        facts: facts::start(gpus.inventories.clone(), args.agent.driver.sysfs.clone()),
        metrics: metrics.clone(),
        events: events.clone(),
        others: Others::new(),
        mig,
        foreign: Vec::new(),
        unknown_instances: false,
        without_counters: false,
        published: published.clone(),
    };
    let service = Service {
        preparer: preparer.clone(),
        checkpoint: Arc::clone(&checkpoint),
        node: args.agent.node_name.clone(),
        inventories: gpus.inventories.clone(),
        healths: sick.healths.clone(),
        metrics,
    };
    let sharers = Sharers {
        client: client.clone(),
        delivery: Arc::clone(&delivery),
        checkpoint: Arc::clone(&checkpoint),
        pods: pods.clone(),
    };
    let leftovers = Leftovers {
        client: client.clone(),
        delivery: Arc::clone(&delivery),
        checkpoint,
        pods,
        lister: Lister::start(
            args.agent.kubelet_dir.join("pod-resources/kubelet.sock"),
            plugin::PluginMetrics::new(&args.agent.node_name),
        ),
    };
    tracing::info!(
        %address, driver = DRIVER, node = args.agent.node_name, state = %args.agent.state_dir.display(),
        "serving claims, and /metrics"
    );
    let registration = sockets.registration();
    let until_stopped = until(stopped.clone());
    let called = tokio::spawn(async move { sockets.serve(service, until_stopped).await });
    let beside = [
        tokio::spawn(publisher.run()),
        tokio::spawn(sharers.run()),
        tokio::spawn(clear(
            LeftoverCollector::new(Arc::clone(&delivery), leftovers),
            preparer,
        )),
        tokio::spawn(withdraw(client.clone(), args.agent.node_name.clone())),
        tokio::spawn(watch_runtime(args, client, hindered)),
        tokio::spawn(tell_readiness(
            registration,
            published.subscribe(),
            readiness,
        )),
    ];
    let ended = tokio::select! {
        signal = stop => {
            tracing::info!(signal, "stopping");
            Ok(())
        }
        why = files.outdated() => Err(anyhow::Error::msg(why)),
    };
    stopping.send_replace(true);
    for task in [serving, called] {
        drop(timeout(PATIENCE, task).await);
    }
    for task in beside {
        task.abort();
    }
    ended
}

/// A node's GPUs are given by the device plugin or by this driver: both take both locks. Waits for them in the order in
/// which the plugin takes them, the front's first. A driver that held the plugin's lock while it waits for the front's
/// would keep the front from starting its process again.
async fn without_plugin(
    listener: Listener,
    state: &Path,
    mut stop: Pin<&mut impl Future<Output = &'static str>>,
) -> anyhow::Result<Option<(Listener, [Flock<File>; 2])>> {
    let front = alone(listener, state, lock::FRONT, stop.as_mut()).await?;
    let Some((listener, front)) = front else {
        return Ok(None);
    };
    let plugin = alone(listener, state, lock::PLUGIN, stop).await?;
    Ok(plugin.map(|(listener, plugin)| (listener, [front, plugin])))
}

/// Runs the garbage collection for as long as the driver lives.
async fn clear(collector: LeftoverCollector<Leftovers>, preparer: Preparer) {
    loop {
        match collector.look().await {
            Ok(looked) => {
                collect::say(&looked);
                preparer.forget_gone().await;
                preparer.clear_instances().await;
            }
            Err(reason) => {
                tracing::warn!(%reason, "garbage collection skipped until the next look");
            }
        }
        sleep(CLEAR).await;
    }
}

/// Takes back what vgpu's device plugin has registered on this node.
async fn withdraw(client: kube::Client, node: String) {
    loop {
        match timeout(PATIENCE, inventory::withdraw(&client, &node)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => tracing::warn!(
                %error,
                "cannot remove the annotations by which the device plugin registered this node's GPUs: trying again"
            ),
            Err(_) => {}
        }
        sleep(RUNTIME).await;
    }
}

/// Says whether the node's container runtime can serve claims: without CDI all GPUs count as sick.
async fn watch_runtime(
    args: DraArgs,
    client: kube::Client,
    hindered: watch::Sender<Option<String>>,
) {
    let nodes: Api<Node> = Api::all(client);
    loop {
        if let Ok(Ok(node)) = timeout(PATIENCE, nodes.get(&args.agent.node_name)).await {
            let info = node.status.and_then(|status| status.node_info);
            let said = info.map(|info| {
                format!(
                    "{} {}",
                    info.container_runtime_version, info.kubelet_version
                )
            });
            let said = said.unwrap_or_default();
            let read = said
                .starts_with("containerd://")
                .then(|| runtime::read(&args.agent.runtime_config, &|path| args.agent.seen(path)))
                .flatten();
            let why = runtime::lacks_cdi(&said, read.as_ref(), &args.agent.cdi_dir)
                .map(|why| format!("{why}, and claims are served by CDI alone"));
            hindered.send_if_modified(|known| {
                let changed = *known != why;
                if changed {
                    match &why {
                        Some(why) => tracing::error!(why, "no claim can be served on this node"),
                        None => tracing::info!(runtime = said, "the node's runtime has CDI"),
                    }
                    *known = why;
                }
                changed
            });
        }
        sleep(RUNTIME).await;
    }
}

/// Ready means: the kubelet has taken the driver, and the slices are published.
async fn tell_readiness(
    mut registration: watch::Receiver<Registered>,
    mut published: watch::Receiver<Option<Result<(), PublishError>>>,
    readiness: Readiness,
) {
    loop {
        let missing = {
            let (registration, published) = (
                registration.borrow_and_update(),
                published.borrow_and_update(),
            );
            match (&*registration, &*published) {
                (Registered::Accepted, Some(Ok(()))) => None,
                (Registered::Refused(why), _) => {
                    Some(format!("the kubelet does not take the driver: {why}"))
                }
                (Registered::NotYet, _) => {
                    Some(String::from("the kubelet has not found the driver yet"))
                }
                (_, Some(Err(why))) => Some(format!("the ResourceSlices are not published: {why}")),
                (_, None) => Some(String::from("the ResourceSlices are not published yet")),
            }
        };
        match missing {
            None => readiness.ready(),
            Some(why) => readiness.not_ready(why),
        }
        tokio::select! {
            changed = registration.changed() => if changed.is_err() { return },
            changed = published.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    /// The answer of `/healthz` at this address.
    async fn health(address: std::net::SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let asked = b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n";
        stream.write_all(asked).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn waiting_driver_leaves_the_plugins_lock_free() {
        let state = tempfile::tempdir().unwrap();
        let front = lock::take(state.path(), lock::FRONT).await.unwrap();
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let address = listener.address();
        let path = state.path().to_owned();
        let waiting = tokio::spawn(async move {
            let stop = std::pin::pin!(std::future::pending());
            let taken = without_plugin(listener, &path, stop).await.unwrap();
            taken.is_some()
        });

        // It is alive, so it waits for the front.
        let answer = timeout(Duration::from_secs(20), health(address))
            .await
            .unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let plugin = lock::try_take(state.path(), lock::PLUGIN).unwrap();
        assert!(matches!(plugin, lock::Tried::Ours(_)), "{plugin:?}");

        drop((front, plugin));
        assert!(
            timeout(Duration::from_secs(20), waiting)
                .await
                .unwrap()
                .unwrap()
        );
    }
}
