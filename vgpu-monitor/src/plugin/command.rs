//! `vgpu-monitor plugin`: puts the parts together, and ends them. Never decides what one of them decides.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use events::Events;
use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use kube_api::node::RegisterFormat;
use kube_api::vendor::Vendors;
use nix::fcntl::Flock;
use placement::exchange::{Maker, Table};
use placement::{MigProfile, Span};
use prometheus_client::registry::Registry;
use server::{Listener, Manners, Readiness};
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::args::{FormatArg, MannerArg, PluginArgs};
use super::exporter_calls;
use super::lock;
use super::runtime::{self, RuntimeRecord, RuntimeVerdict, Wishes};
use super::settings::{served, state_dir, vendors};
use super::{
    Giver, InstanceNames, Living, NodePods, Plugin, PluginMetrics, PluginParts, PluginSettings,
};
use crate::collect::LeftoverCollector;
use crate::delivery::{self, Allotted, Delivery, DeliveryError, Given, Manner, Name};
use crate::inventory::mig::{Mig, MigError};
use crate::watched_gpus::WatchedGpus;
use crate::{collect, durable, hcs, inventory};

/// Time between two searches for the remains of dead containers.
const CLEAR: Duration = Duration::from_secs(30);
/// How often is looked whether the runtime's configuration has changed.
const RUNTIME: Duration = Duration::from_secs(30);
/// The file with the Node's words on its runtime.
const SAID: &str = "runtime";
/// Longest wait for one call of the API server.
const PATIENCE: Duration = Duration::from_secs(5);

/// This container's files are too old for the process: another process in it would fare no better.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct ContainerOutdated(String);

/// Runs until the process is asked to stop. The kubelet's calls come over `front`.
///
/// # Errors
///
/// When a setting cannot be, or the state directory cannot be used; [`ContainerOutdated`].
pub async fn run(args: PluginArgs, front: UnixStream) -> anyhow::Result<()> {
    let stop = server::asked_to_stop().context("cannot handle signals")?;
    let traces = args
        .traces
        .start("vgpu-plugin", env!("CARGO_PKG_VERSION"))?;
    let vendors = Arc::new(vendors(&args)?);
    let served = served(&args, &vendors)?;
    let listener = Listener::bind(args.agent.metrics_addr)
        .await
        .map_err(|error| {
            anyhow!(
                "{error}; perhaps another vgpu-monitor plugin: --metrics-addr takes another port"
            )
        })?;
    let state = state_dir(&args.agent)?;
    let mut stop = std::pin::pin!(stop);
    let Some((listener, _lock)) = alone(listener, &state, lock::PLUGIN, stop.as_mut()).await?
    else {
        return Ok(());
    };
    let client = client(args.agent.kubeconfig.as_deref()).await?;
    let events = Events::start(client.clone(), "vgpu-monitor");

    let (hindered, hindrance) = watch::channel(None);
    let WatchedGpus { gpus, files, sick } =
        WatchedGpus::start(&args.agent, args.mig_strategy, &state, hindrance, &events)?;
    let mig = Mig::start(&state, None).context("the journal of MIG instances")?;

    let metrics = PluginMetrics::new(&args.agent.node_name);
    let mut registry = Registry::default();
    metrics.register(args.metrics_detail, &mut registry);
    traces.register(&mut registry);
    registry.register_collector(Box::new(sick.collector.with_detail(args.metrics_detail)));
    let reports = args.hcs.then(|| {
        let series = hcs::WriteSeries::new(&args.agent.node_name);
        registry.register_collector(Box::new(series.clone()));
        let sources = hcs::ReportSources {
            inventories: gpus.inventories.clone(),
            healths: sick.healths.clone(),
            scores: sick.scores.clone(),
            vendors: Arc::clone(&vendors),
            speeds: speeds(&vendors),
        };
        let settings = hcs::HcsSettings::new(&args.agent.node_name);
        tokio::spawn(hcs::keep(client.clone(), settings, sources, series))
    });
    let readiness = Readiness::waiting_for("the registration with the kubelet");
    // Probes of this process are answered while it waits for the API server.
    let (stopping, stopped) = watch::channel(false);
    let until = |mut stopped: watch::Receiver<bool>| async move {
        // Cannot fail: the sender outlives its receivers.
        drop(stopped.wait_for(|stopped| *stopped).await);
    };
    let router = server::health(readiness.clone()).merge(server::metrics(registry));
    let address = listener.address();
    let serving = tokio::spawn(listener.serve(router, Manners::default(), until(stopped.clone())));

    tokio::pin!(stop);
    // The process before this one has asked a moment ago: the kubelet's calls wait.
    let asked = (args.restarts > 0).then(|| std::fs::read_to_string(state.join(SAID)));
    let said = tokio::select! {
        said = async {
            match asked {
                Some(Ok(said)) if !said.is_empty() => said,
                _ => said_of_runtime(&args, &client, &state).await,
            }
        } => said,
        _ = &mut stop => return Ok(()),
        why = files.outdated() => return Err(ContainerOutdated(why).into()),
    };
    let served_by = verdict(&args, &said);
    let manner = served_by.manner;
    record(&state, &said, &served_by);
    match &served_by.hindrance {
        None => tracing::info!(runtime = said.trim(), ?manner, "the node's runtime"),
        Some(why) => tracing::error!(
            runtime = said.trim(),
            why,
            "the node's runtime cannot be served: no pod comes here until it can"
        ),
    }
    hindered.send_replace(served_by.hindrance.clone());
    let delivery = Delivery::new(delivery::DeliverySettings {
        state_dir: args.agent.state_dir.clone(),
        host_prefix: args.agent.host_prefix.clone().unwrap_or_default(),
        cdi_dir: args.agent.cdi_dir.clone(),
        vendor_cdi_dirs: vec![PathBuf::from("/etc/cdi"), args.agent.cdi_dir.clone()],
        library: args.agent.library.clone(),
        ..delivery::DeliverySettings::new(manner, gpus.inventories.clone())
    })
    .context("cannot prepare what containers get")?;
    let delivery = Arc::new(delivery);

    let runtime_state = state.clone();
    let settings = PluginSettings {
        node: args.agent.node_name.clone(),
        served,
        state,
        device_plugins: args.agent.kubelet_dir.join("device-plugins"),
        pod_resources: args.agent.kubelet_dir.join("pod-resources/kubelet.sock"),
        team_label: args.agent.team_label.clone(),
    };
    let pods = NodePods::open(&settings, &client, &vendors, &events, &metrics);
    if let Some(socket) = &args.agent.exporter_socket {
        let listener = exporter_calls::listen(socket)?;
        let node = args.agent.node_name.clone();
        tokio::spawn(exporter_calls::serve(
            listener,
            client.clone(),
            node,
            pods.watched(),
        ));
    }
    let collector = Arc::new(LeftoverCollector::new(Arc::clone(&delivery), pods.clone()));
    let giver = Arc::new(Host {
        delivery,
        mig: mig.clone(),
        collector: Arc::clone(&collector),
        pods: pods.clone(),
        turn: parking_lot::Mutex::new(()),
        runtime: Handle::current(),
    });
    let plugin = Plugin::start(
        settings,
        PluginParts {
            vendors,
            pods,
            giver: Arc::clone(&giver) as Arc<dyn Giver>,
            client: client.clone(),
            events: events.clone(),
            inventories: gpus.inventories.clone(),
            healths: sick.healths.clone(),
            metrics,
            traces: traces.clone(),
        },
    );

    tracing::info!(
        %address,
        node = args.agent.node_name,
        manner = ?manner,
        state = %args.agent.state_dir.display(),
        "serving /metrics"
    );
    let registered = register_format(args.register_format);
    let tasks = [serving, {
        let plugin = plugin.clone();
        let until = until(stopped.clone());
        tokio::spawn(async move { plugin.serve(front, until).await })
    }];
    let beside = [
        tokio::spawn(inventory::register(
            client.clone(),
            inventory::RegisterSettings {
                format: registered,
                ..inventory::RegisterSettings::new(
                    args.agent.node_name.clone(),
                    args.namespace.clone(),
                    events,
                )
            },
            gpus.inventories.clone(),
            sick.healths.clone(),
        )),
        tokio::spawn(report_capacity(&args, client.clone(), &gpus)),
        tokio::spawn(clear(plugin.clone(), collector, giver, mig)),
        tokio::spawn(tell_readiness(plugin.clone(), readiness)),
    ];
    let ended = tokio::select! {
        signal = stop => {
            tracing::info!(signal, "stopping");
            Ok(())
        }
        why = files.outdated() => Err(ContainerOutdated(why).into()),
        why = runtime_changed(&args, &client, &runtime_state, said, &served_by) => Err(anyhow::Error::msg(why)),
    };
    stopping.send_replace(true);
    for task in tasks {
        drop(timeout(PATIENCE, task).await);
    }
    for task in beside.into_iter().chain(reports) {
        task.abort();
    }
    traces.stop().await;
    ended
}

/// Waits until no other process holds the lock `name` of the state directory. Until then this one is alive, and not
/// ready. Returns `None` if it was asked to stop first.
pub(crate) async fn alone(
    listener: Listener,
    state: &Path,
    name: &str,
    stop: impl Future<Output = &'static str>,
) -> anyhow::Result<Option<(Listener, Flock<File>)>> {
    if let Some(lock) = lock::at_once(state, name)? {
        return Ok(Some((listener, lock)));
    }
    // The port stays ours between the two servers.
    let kept = listener
        .try_clone()
        .context("cannot keep the port of --metrics-addr")?;
    let lock = lock::serving_meanwhile(state, name, listener, stop).await?;
    Ok(lock.map(|lock| (kept, lock)))
}

/// The speeds of NVIDIA's models in the exchange table: the configured one, else the built-in one.
fn speeds(vendors: &Vendors) -> hcs::compose::Speeds {
    let table = vendors
        .hcs()
        .map_or_else(|| Arc::new(Table::default()), |hcs| Arc::clone(&hcs.table));
    Arc::new(move |model, bytes| {
        let profile = table.find(Maker::Nvidia, model, bytes)?;
        Some(hcs::compose::Speed {
            model: profile.model.clone(),
            gflops: profile.gflops(),
        })
    })
}

/// The client of the cluster that a kubeconfig names; without one, of the cluster in which this process runs.
pub(crate) async fn client(kubeconfig: Option<&Path>) -> anyhow::Result<kube::Client> {
    let mut config = kube_access::config(kubeconfig, None, "--kubeconfig FILE names one").await?;
    config.connect_timeout = Some(PATIENCE);
    kube::Client::try_from(config).context("no client for the cluster")
}

/// The Node's words on its runtime and its kubelet. They are remembered, since the API server may be away when the
/// agent starts.
async fn said_of_runtime(args: &PluginArgs, client: &kube::Client, state: &Path) -> String {
    let file = state.join(SAID);
    let nodes: Api<Node> = Api::all(client.clone());
    loop {
        let said = match timeout(PATIENCE, nodes.get(&args.agent.node_name)).await {
            Ok(Ok(node)) => Ok(node
                .status
                .and_then(|status| status.node_info)
                .map(|info| {
                    format!(
                        "{} {}",
                        info.container_runtime_version, info.kubelet_version
                    )
                })
                .unwrap_or_default()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer in time".to_owned()),
        };
        match said {
            Ok(runtime) if !runtime.is_empty() => {
                if let Err(error) = durable::replace(&file, runtime.as_bytes(), 0o644) {
                    tracing::warn!(%error, "cannot save which runtime the node has");
                }
                return runtime;
            }
            Ok(_) => tracing::warn!("the Node does not name its runtime"),
            Err(why) => tracing::warn!(why, "cannot read the Node"),
        }
        if let Ok(runtime) = std::fs::read_to_string(&file) {
            return runtime;
        }
        // Without the Node an explicit manner is all that there is to go by.
        if args.manner != MannerArg::Auto {
            return String::new();
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// How containers get their files on this node, and whether they can.
fn verdict(args: &PluginArgs, said: &str) -> RuntimeVerdict {
    let file = &args.agent.runtime_config;
    let read = said
        .starts_with("containerd://")
        .then(|| runtime::read(file, &|path| args.agent.seen(path)))
        .flatten();
    let wishes = Wishes {
        manner: args.manner,
        cdi_dir: args.agent.cdi_dir.clone(),
        annotates: args.devices_by_annotation,
        pod_runtime_class: args.pod_runtime_class.clone(),
    };
    runtime::decide(said, read.as_ref(), &wishes)
}

/// Keeps the verdict for `vgpu doctor`.
fn record(state: &Path, said: &str, verdict: &RuntimeVerdict) {
    let record = RuntimeRecord {
        runtime: said.trim().to_owned(),
        manner: match verdict.manner {
            Manner::Cdi | Manner::Claim => String::from("cdi"),
            Manner::Mounts => String::from("mounts"),
        },
        hindrance: verdict.hindrance.clone(),
    };
    let text = serde_json::to_vec_pretty(&record).unwrap_or_default();
    if let Err(error) = durable::replace(&state.join(runtime::RECORD), &text, 0o644) {
        tracing::warn!(%error, "cannot save how the node's runtime is served");
    }
}

/// Waits until the node's runtime has to be served in another way. The process ends with the returned text. The Node
/// is asked again only while no pod can be served.
async fn runtime_changed(
    args: &PluginArgs,
    client: &kube::Client,
    state: &Path,
    mut said: String,
    decided: &RuntimeVerdict,
) -> String {
    loop {
        sleep(RUNTIME).await;
        if decided.hindrance.is_some() {
            said = said_of_runtime(args, client, state).await;
        }
        let now = verdict(args, &said);
        if now != *decided {
            return format!(
                "the configuration of the node's container runtime ({}) has changed: this process ends, so that the \
                 kubelet starts it anew and containers are given their GPUs accordingly; running containers are not \
                 affected",
                said.trim()
            );
        }
    }
}

/// Keeps memory and compute in the Node's capacity, or takes out what an agent with other settings has reported.
fn report_capacity(
    args: &PluginArgs,
    client: kube::Client,
    gpus: &inventory::Watcher,
) -> impl Future<Output = ()> + Send + 'static {
    let (node, report) = (args.agent.node_name.clone(), args.report_capacity);
    let (inventories, rules) = (gpus.inventories.clone(), gpus.rules.clone());
    let pause = Duration::from_secs(1);
    async move {
        if report {
            inventory::capacity::keep(client, node, pause, inventories, rules).await;
        } else {
            inventory::capacity::take_back(client, node, pause).await;
        }
    }
}

fn register_format(format: FormatArg) -> RegisterFormat {
    match format {
        FormatArg::Auto => RegisterFormat::Auto,
        FormatArg::Colon => RegisterFormat::Colon,
        FormatArg::Json => RegisterFormat::Json,
    }
}

/// The deliveries to containers, on this host.
struct Host {
    delivery: Arc<Delivery>,
    mig: Mig,
    /// Frees the memory of dead containers when a GPU is full.
    collector: Arc<LeftoverCollector<NodePods>>,
    /// Says which MIG instances are still held when a position is taken.
    pods: NodePods,
    /// One thread at a time waits for the collector.
    turn: parking_lot::Mutex<()>,
    runtime: Handle,
}

impl Giver for Host {
    fn allot(&self) -> anyhow::Result<(Name, Allotted)> {
        Ok(self.delivery.allot()?)
    }

    fn give(&self, name: &Name, given: &Given) -> anyhow::Result<()> {
        let mut done = self.delivery.give(name, given);
        if let Err(DeliveryError::Overcommitted(_)) = &done {
            // The GPU may be full of containers that are over. This thread may wait. All but one of the few
            // blocking threads stay free for other calls, and the kubelet retries.
            let turn = self.turn.try_lock();
            if turn.is_some() && self.runtime.block_on(self.collector.look()).is_ok() {
                done = self.delivery.give(name, given);
            }
        }
        Ok(done?)
    }

    fn make(&self, gpu: &str, profile: &MigProfile, span: Span) -> anyhow::Result<InstanceNames> {
        let mut made = self.mig.make(gpu, &profile.name, span);
        if let Err(MigError::Occupied { .. }) = &made {
            // The instance may be of a pod that has ended since the last look.
            if let Ok(living) = self.runtime.block_on(self.pods.living()) {
                keep_only(&self.mig, &held(&living, &self.delivery), living.as_of);
                made = self.mig.make(gpu, &profile.name, span);
            }
        }
        let made = made?;
        Ok(InstanceNames {
            uuid: made.uuid,
            gpu_instance: made.gpu_instance,
            compute_instance: made.compute_instance,
        })
    }

    fn known(&self) -> Vec<Name> {
        self.delivery.known().unwrap_or_default()
    }
}

/// Runs the garbage collection for as long as the agent lives.
async fn clear(
    plugin: Plugin,
    collector: Arc<LeftoverCollector<NodePods>>,
    giver: Arc<Host>,
    mig: Mig,
) {
    loop {
        // The look itself logs what it could not do.
        let looked = collector.look().await;
        if let Ok(looked) = &looked {
            collect::say(looked);
            plugin.forget(&looked.removed);
            if let Ok(living) = plugin.pods().living().await {
                let known = giver.known();
                plugin.forget_all_but(&living.names, &known);
                let (mig, giver) = (mig.clone(), Arc::clone(&giver));
                let kept = tokio::task::spawn_blocking(move || {
                    keep_only(&mig, &held(&living, &giver.delivery), living.as_of);
                });
                drop(kept.await);
            }
        } else if let Err(reason) = looked {
            tracing::warn!(%reason, "garbage collection skipped until the next look");
        }
        sleep(CLEAR).await;
    }
}

/// The positions of instances that containers hold. If the plugin has lost its memory of which container an
/// allotment is, the record beside the container's limits says what it was given: it may run, and be idle.
fn held(living: &Living, delivery: &Delivery) -> BTreeSet<(String, Span)> {
    let mut held = delivery.instances_but(&living.given);
    held.extend(living.instances.iter().cloned());
    held
}

/// Removes the instances that no container holds.
fn keep_only(mig: &Mig, held: &BTreeSet<(String, Span)>, as_of: Instant) {
    for error in mig
        .keep_only(held, as_of)
        .unwrap_or_else(|error| vec![error])
    {
        tracing::warn!(%error, "cannot remove a MIG instance that no container holds");
    }
}

/// Ready means: the kubelet knows the plugin under every resource.
async fn tell_readiness(plugin: Plugin, readiness: Readiness) {
    let mut registered = plugin.registered();
    loop {
        let missing: Vec<String> = {
            let registered = registered.borrow_and_update();
            let all = plugin.resources();
            all.filter(|resource| !registered.contains(*resource))
                .map(str::to_owned)
                .collect()
        };
        if missing.is_empty() {
            readiness.ready();
        } else {
            readiness.not_ready(format!(
                "the kubelet does not watch {} yet",
                missing.join(", ")
            ));
        }
        if registered.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::tests::{GIB, NodeDir, given};

    #[test]
    fn forgotten_containers_instance_is_held_until_its_pod_is_gone() {
        let node = NodeDir::new();
        let delivery = node.delivery(Manner::Mounts);
        let (name, _) = delivery.allot().unwrap();
        delivery.give(&name, &given("notebook", GIB)).unwrap();
        let file = delivery.root().join(&name.0).join("container.json");
        let mut record: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        record["devices"][0]["instance"] = serde_json::json!({
            "card": "GPU-1", "profile": "1g.10gb", "start": 2, "size": 1,
        });
        std::fs::write(&file, record.to_string()).unwrap();
        // The agent restarts, and its memory is empty.
        let delivery = node.delivery(Manner::Mounts);
        let place = |start| (String::from("GPU-1"), Span { start, size: 1 });
        let mut living = Living {
            names: BTreeSet::from([name.clone()]),
            given: BTreeSet::new(),
            instances: BTreeSet::from([place(0)]),
            as_of: Instant::now(),
        };
        assert_eq!(
            held(&living, &delivery),
            BTreeSet::from([place(0), place(2)])
        );

        // The known container counts: its pod may be over.
        living.given.insert(name.clone());
        assert_eq!(held(&living, &delivery), BTreeSet::from([place(0)]));
        living.given.clear();
        delivery.gone(&BTreeSet::from([name]), delivery.moment());
        assert_eq!(held(&living, &delivery), BTreeSet::from([place(0)]));
    }
}
