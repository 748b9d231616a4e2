//! The kubelet's device plugin: anonymous slots, and whose they are. Never chooses a GPU: the scheduler has.
//!
//! ```text
//! Allocate        a fresh name, remembered with its slots; it is not said whose they are, and nothing is refused
//! PreStart        the kubelet names the pod of these slots ─► the API server has the pod ─► its containers and its
//!                 allotments are matched ─► all of them are written down and given ─► the container starts, or is
//!                 refused with a text and tried again
//! ```
//!
//! Whatever dies between two steps is caught up with by the next call: what is remembered is in a file before the
//! kubelet has its answer, and everything after that can be done twice.

pub mod allotments;

pub mod checkpoint;

pub mod exporter_calls;

pub mod identity;

pub mod matching;

pub mod room;

pub mod slots;

mod api;

mod handed;

mod listing;

mod node_pods;

pub(crate) mod lock;

mod metrics;

mod pods;

mod prepare;

pub mod runtime;

mod service;

pub(crate) mod settings;

mod socket;

mod tell;

pub mod args;

pub mod command;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use events::Events;
use kube_api::vendor::Vendors;
use parking_lot::Mutex;
use placement::{MigProfile, Span};
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};

use crate::delivery::{Allotted, Given, Name};
use crate::node_gpus::{Healths, Inventories};
use crate::proto::device_plugin::ListAndWatchResponse;

pub use allotments::InstanceNames;
use allotments::{Allotment, AllotmentStore};
pub use identity::Served;
pub use metrics::PluginMetrics;
pub use node_pods::{Living, NodePods};
pub use pods::{AskKubelet, Lister, Pods};
pub(crate) use service::{OPTIONS, RESOURCE, patience};
pub(crate) use socket::connect;

/// The side that gives containers their share on this host. All calls block.
pub trait Giver: Send + Sync + 'static {
    /// A fresh name, and the answer to `Allocate` that carries it.
    ///
    /// # Errors
    ///
    /// When nothing can be allotted at all: the pod fails for good.
    fn allot(&self) -> anyhow::Result<(Name, Allotted)>;

    /// Creates what a container gets, or ensures that it exists. Called again at each start of the container.
    ///
    /// # Errors
    ///
    /// Why it cannot be created, for the pod's event.
    fn give(&self, name: &Name, given: &Given) -> anyhow::Result<()>;

    /// Creates a MIG instance, or finds the one at that position.
    ///
    /// # Errors
    ///
    /// Why it cannot be created, for the pod's event.
    fn make(&self, gpu: &str, profile: &MigProfile, span: Span) -> anyhow::Result<InstanceNames>;

    /// Names of the instances on this host, with what is known of the container: to restore a lost memory.
    fn known(&self) -> Vec<Name>;
}

/// Where things are.
#[derive(Debug, Clone)]
pub struct PluginSettings {
    /// Name of the node.
    pub node: String,
    /// Which resources, one socket each.
    pub served: Vec<Served>,
    /// Folder of our own memory.
    pub state: PathBuf,
    /// The kubelet's folder of device plugins.
    pub device_plugins: PathBuf,
    /// The kubelet's socket that says which pods hold what.
    pub pod_resources: PathBuf,
    /// The key of the pod label that names the pod's team.
    pub team_label: String,
}

/// The parts that the plugin works with.
pub struct PluginParts {
    /// The table of resources and annotations.
    pub vendors: Arc<Vendors>,
    /// The pods of this node and what they hold.
    pub pods: NodePods,
    /// Makes what containers get.
    pub giver: Arc<dyn Giver>,
    /// The API server.
    pub client: kube::Client,
    /// Writes events on pods.
    pub events: Events,
    /// The node's GPUs.
    pub inventories: Inventories,
    /// Which of them are sick.
    pub healths: Healths,
    /// Counts.
    pub metrics: PluginMetrics,
    /// A span for each container that is to start.
    pub traces: server::Traces,
}

impl std::fmt::Debug for PluginParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

/// The device plugin. Clones are the same one.
#[derive(Clone)]
pub struct Plugin(Arc<PluginState>);

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin")
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}

struct PluginState {
    settings: PluginSettings,
    parts: PluginParts,
    store: Arc<AllotmentStore>,
    lister: Lister,
    /// The list for the kubelet by resource; none until something is known about the node.
    lists: BTreeMap<String, watch::Sender<Option<Arc<ListAndWatchResponse>>>>,
    /// Something changed that the lists are made of.
    changed: Notify,
    /// Held from the reading of the allotments to their being recorded as given.
    turn: tokio::sync::Mutex<()>,
    /// The allotments that this process has given; the others may be of an earlier process that died while giving them.
    given: Mutex<BTreeSet<String>>,
    /// Resources whose lists the kubelet watches, as the front says.
    registered: watch::Sender<BTreeSet<String>>,
    /// Pods whose annotations are to be written.
    untold: tokio::sync::mpsc::UnboundedSender<tell::Untold>,
    /// When allotments were made whose pods are not known yet.
    handed: handed::Handed,
}

impl Plugin {
    /// Starts the plugin and the tasks beside it. Needs a running tokio.
    pub fn start(settings: PluginSettings, parts: PluginParts) -> Self {
        let (store, lister) = (Arc::clone(&parts.pods.store), parts.pods.lister.clone());
        let opened = parts.pods.opened;
        let lists = settings
            .served
            .iter()
            .map(|served| (served.resource.clone(), watch::Sender::new(None)));
        let (untold, telling) = tokio::sync::mpsc::unbounded_channel();
        let plugin = Self(Arc::new(PluginState {
            lists: lists.collect(),
            settings,
            parts,
            store,
            lister,
            changed: Notify::new(),
            turn: tokio::sync::Mutex::new(()),
            given: Mutex::default(),
            registered: watch::Sender::default(),
            untold,
            handed: handed::Handed::default(),
        }));
        tracing::info!(
            allotments = opened.read,
            broken = opened.broken,
            "read the allotments"
        );
        if opened.broken > 0 || opened.absent {
            plugin.recover();
        }
        tokio::spawn(tell::run(Arc::downgrade(&plugin.0), telling));
        tokio::spawn(listing::run(Arc::downgrade(&plugin.0)));
        plugin
    }

    /// Serves every resource to the front at the other end of this connection, which keeps them registered. Ends with
    /// `stop`.
    pub async fn serve(&self, front: UnixStream, stop: impl Future<Output = ()> + Send + 'static) {
        service::serve(self, front, stop).await;
    }

    /// Restores missing allotments from the kubelet's own record.
    fn recover(&self) -> usize {
        let Some(entries) = checkpoint::read(&self.0.settings.device_plugins) else {
            return 0;
        };
        let known = self.0.parts.giver.known();
        let found = entries.into_iter().filter_map(|entry| {
            let name = answered_name(entry.answer.as_ref()?)
                .or_else(|| known.iter().find(|name| mounts(&entry, name)).cloned())?;
            Some(Allotment {
                order: 0,
                name: name.0,
                resource: entry.resource,
                ids: entry.ids,
                recipient: None,
            })
        });
        let served: BTreeSet<&str> = self.0.lists.keys().map(String::as_str).collect();
        let found = found
            .filter(|found| served.contains(found.resource.as_str()))
            .collect();
        let count = self.0.store.recover(found);
        if count > 0 {
            tracing::info!(count, "restored allotments from the kubelet's own record");
        }
        count
    }

    /// The pods of this node.
    pub fn pods(&self) -> &NodePods {
        &self.0.parts.pods
    }

    /// The resources that are served.
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        self.0.lists.keys().map(String::as_str)
    }

    /// Resources whose lists the kubelet watches, as it changes.
    pub fn registered(&self) -> watch::Receiver<BTreeSet<String>> {
        self.0.registered.subscribe()
    }

    /// Forgets what neither lives nor has a directory.
    pub fn forget_all_but(&self, living: &BTreeSet<Name>, known: &[Name]) {
        let all = self.0.store.all().into_iter().map(|lot| Name(lot.name));
        let over: Vec<Name> = all
            .filter(|name| !living.contains(name) && !known.contains(name))
            .collect();
        if !over.is_empty() {
            self.forget(&over);
        }
    }

    /// Forgets allotments whose directories are cleared away.
    pub fn forget(&self, names: &[Name]) {
        self.0.store.forget(names);
        let mut given = self.0.given.lock();
        for name in names {
            given.remove(&name.0);
        }
        drop(given);
        self.0.changed.notify_one();
    }

    /// All that is remembered, by order.
    pub fn allotments(&self) -> Vec<Allotment> {
        self.0.store.all()
    }
}

/// Our name in an answer that was given by CDI.
fn answered_name(answer: &crate::proto::device_plugin::ContainerAllocateResponse) -> Option<Name> {
    answer.cdi_devices.iter().find_map(|device| {
        let name = device.name.strip_prefix("vgpu.io/container=")?;
        Some(Name(name.to_owned()))
    })
}

/// Whether the answer mounts this name's directory.
fn mounts(entry: &checkpoint::CheckpointEntry, name: &Name) -> bool {
    entry
        .answer
        .iter()
        .flat_map(|answer| &answer.mounts)
        .any(|mount| {
            std::path::Path::new(&mount.host_path)
                .components()
                .any(|part| part.as_os_str() == name.0.as_str())
        })
}
