//! The kubelet's device plugin: anonymous slots, and whose they are. Never chooses a card: the scheduler has.
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

pub mod identity;

pub mod matching;

pub mod room;

pub mod slots;

mod api;

mod handed;

mod listing;

mod living;

mod lock;

mod metrics;

mod pods;

mod prepare;

mod registration;

mod service;

mod socket;

mod tell;

pub mod args;

pub mod command;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use events::{About, Events};
use kube_api::vendor::Vendors;
use parking_lot::Mutex;
use placement::{MigProfile, Span};
use supervisor::instance::Labels;
use tokio::sync::{Notify, watch};

use crate::card::{Healths, Inventories};
use crate::collect::LivingPod;
use crate::delivery::{Allotted, Given, Name};
use crate::proto::device_plugin::ListAndWatchResponse;

pub use allotments::Made;
use allotments::{Allotment, Book};
pub use identity::Served;
pub use metrics::Metrics;
pub use pods::{Ask, Lister, Pods};

/// What a container gets, made on this host. All calls block.
pub trait Giver: Send + Sync + 'static {
    /// A fresh name, and what the kubelet is told for it.
    ///
    /// # Errors
    ///
    /// When nothing can be handed out at all: the pod fails for good.
    fn allot(&self) -> Result<(Name, Allotted), String>;

    /// Makes what a container gets, or makes sure that it is there. Is called again at each start of the container.
    ///
    /// # Errors
    ///
    /// Why it cannot be made, for whoever looks at the pod.
    fn give(&self, name: &Name, given: &Given) -> Result<(), String>;

    /// Makes a MIG instance, or finds the one that lies there.
    ///
    /// # Errors
    ///
    /// Why it cannot be made, for whoever looks at the pod.
    fn make(&self, card: &str, profile: &MigProfile, span: Span) -> Result<Made, String>;

    /// Names of which something is on this host, with what is known of the container: for a memory that was lost.
    fn known(&self) -> Vec<Name>;
}

/// Where things are.
#[derive(Debug, Clone)]
pub struct Settings {
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
}

/// What the plugin works with.
pub struct Parts {
    /// The table of resources and annotations.
    pub vendors: Arc<Vendors>,
    /// Makes what containers get.
    pub giver: Arc<dyn Giver>,
    /// The API server.
    pub client: kube::Client,
    /// Says what happened to a pod.
    pub events: Events,
    /// The node's cards.
    pub inventories: Inventories,
    /// Which of them are sick.
    pub healths: Healths,
    /// Counts.
    pub metrics: Metrics,
    /// A span for each container that is to start.
    pub traces: server::Traces,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

/// The device plugin. Clones are the same one.
#[derive(Clone)]
pub struct Plugin(Arc<Shared>);

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin")
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}

struct Shared {
    settings: Settings,
    parts: Parts,
    book: Arc<Book>,
    lister: Lister,
    /// The list for the kubelet by resource; none until something is known about the node.
    lists: BTreeMap<String, watch::Sender<Option<Arc<ListAndWatchResponse>>>>,
    /// Something changed that the lists are made of.
    changed: Notify,
    /// Held from the look at what is held to its being written down.
    turn: tokio::sync::Mutex<()>,
    /// What this process has given; the rest may be of an earlier one that died at it.
    given: Mutex<BTreeSet<String>>,
    /// Resources whose lists the kubelet watches.
    registered: watch::Sender<BTreeSet<String>>,
    /// Pods whose annotations are to be written.
    untold: tokio::sync::mpsc::UnboundedSender<tell::Untold>,
    /// When what was handed out whose pod is not known yet.
    handed: handed::Handed,
}

/// What lives, for whoever clears away the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Living {
    /// Names of living containers' allotments, and of those of which nothing is known yet.
    pub names: BTreeSet<Name>,
    /// Names of the allotments whose pods are known: nobody else has to say what those hold.
    pub claimed: BTreeSet<Name>,
    /// Where instances lie that pods hold which are not over: card and place.
    pub instances: BTreeSet<(String, Span)>,
    /// What was handed out after this moment is not among them.
    pub as_of: Instant,
}

impl Plugin {
    /// A plugin with the memory that it finds. Starts the tasks beside it. Needs a running tokio.
    pub fn start(settings: Settings, parts: Parts) -> Self {
        let socket = settings.pod_resources.clone();
        let lister = Lister::start(socket, parts.metrics.clone());
        Self::start_with(settings, parts, lister)
    }

    /// The same with somebody else to ask which pods there are.
    pub fn start_with(settings: Settings, parts: Parts, lister: Lister) -> Self {
        let (book, opened) = Book::open(&settings.state.join("allotments.json"));
        let book = Arc::new(book);
        parts.metrics.watch(Arc::clone(&book));
        let lists = settings
            .served
            .iter()
            .map(|served| (served.resource.clone(), watch::Sender::new(None)));
        let (untold, telling) = tokio::sync::mpsc::unbounded_channel();
        let plugin = Self(Arc::new(Shared {
            lists: lists.collect(),
            settings,
            parts,
            book,
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
            "what was handed out"
        );
        if opened.broken > 0 || opened.absent {
            plugin.recover();
        }
        tokio::spawn(tell::run(Arc::downgrade(&plugin.0), telling));
        tokio::spawn(listing::run(Arc::downgrade(&plugin.0)));
        plugin
    }

    /// Serves every resource on its socket and registers it, again whenever the kubelet begins anew. Ends with `stop`.
    pub async fn serve(&self, stop: impl Future<Output = ()>) {
        registration::serve(self, stop).await;
    }

    /// Takes over from the kubelet's own record what our memory lacks.
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
                claim: None,
            })
        });
        let served: BTreeSet<&str> = self.0.lists.keys().map(String::as_str).collect();
        let found = found
            .filter(|found| served.contains(found.resource.as_str()))
            .collect();
        let count = self.0.book.recover(found);
        if count > 0 {
            tracing::info!(
                count,
                "took what was handed out from the kubelet's own record"
            );
        }
        count
    }

    /// What lives. Both the kubelet and the API server have to say that a pod is gone, and be there to be asked.
    ///
    /// # Errors
    ///
    /// Who did not answer. Nothing may be cleared away then.
    pub async fn living(&self) -> Result<Living, String> {
        living::living(self).await
    }

    /// Counts a usage region that could not be cut back, and tells the pod that has it.
    pub fn uncut(&self, of: Option<Labels>, reason: &str) {
        self.0.parts.metrics.uncut();
        if let Some(of) = of {
            let about = About::pod(&of.namespace, &of.pod, &of.pod_uid);
            let what = format!(
                "container {} lets its usage region take up the node's disk, and it cannot be cut back: {reason}",
                of.container
            );
            let events = &self.0.parts.events;
            events.pod(about, events::Kind::Warning, "UsageRegionTooLong", what);
        }
    }

    /// Names of the allotments whose slots the kubelet says are held.
    ///
    /// # Errors
    ///
    /// Why the kubelet did not answer.
    pub async fn in_use(&self) -> Result<BTreeSet<Name>, String> {
        living::in_use(self).await
    }

    /// The pods of this node that are not over, as the API server has them.
    ///
    /// # Errors
    ///
    /// Why the API server did not answer.
    pub async fn living_pods(&self) -> Result<Vec<LivingPod>, String> {
        living::living_pods(self).await
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
        let all = self.0.book.all().into_iter().map(|lot| Name(lot.name));
        let over: Vec<Name> = all
            .filter(|name| !living.contains(name) && !known.contains(name))
            .collect();
        if !over.is_empty() {
            self.forget(&over);
        }
    }

    /// Forgets allotments whose directories are cleared away.
    pub fn forget(&self, names: &[Name]) {
        self.0.book.forget(names);
        let mut given = self.0.given.lock();
        for name in names {
            given.remove(&name.0);
        }
        drop(given);
        self.0.changed.notify_one();
    }

    /// All that is remembered, by order.
    pub fn allotments(&self) -> Vec<Allotment> {
        self.0.book.all()
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
fn mounts(entry: &checkpoint::Entry, name: &Name) -> bool {
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
