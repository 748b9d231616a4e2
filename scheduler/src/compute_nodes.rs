//! The leader's work on the cluster's ComputeNodes. An agent maintains its own node's. The leader marks a silent agent
//! as not connected, and describes devices that no vgpu agent describes: those that another vendor's device plugin
//! has registered on the Node. An agent's description of its devices is never changed.
//! | ComputeNode | what the leader does |
//! |---|---|
//! | written by an agent, its heartbeat moves | nothing |
//! | written by an agent, no new heartbeat for [`SILENCE`] | phase `NotReady`; `Ready`, `AgentConnected` and `Schedulable` are false for `AgentNotConnected` |
//! | for devices that are registered on the Node, and that no agent describes | writes it when it changes |
//! | written here, but its devices are not registered any more | deletes it |
//!
//! The silence of an agent is measured by this machine's clock, from the moment at which the heartbeat was seen to
//! change, so a node with a wrong clock does not count as dead. The measurement restarts after the watch was
//! interrupted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use futures_util::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube_api::hcs::observed::{self, Observed, ObservedDevice, ObservedLink};
use kube_api::hcs::{API_VERSION, ComputeNode, ComputeTopology, LinkType, Vendor};
use kube_api::object::Node;
use placement::{DeviceView, NodeView};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::Scheduler;
use crate::calls::{CallError, within};
use crate::ledger::Ledger;

/// An agent without a new heartbeat for this long is not connected. It is three times the heartbeat's interval.
pub const SILENCE: Duration = Duration::from_secs(120);
/// The interval of the leader's checks.
const EVERY: Duration = Duration::from_secs(10);
/// The most ComputeNodes that are written in one check; the rest wait for the next.
const MOST_WRITES: usize = 100;
/// The time limit of one call.
const CALL: Duration = Duration::from_secs(5);
/// The field manager of our writes.
const MANAGER: &str = "vgpu-scheduler";

/// The timing of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCheckPace {
    /// See [`SILENCE`].
    pub silence: Duration,
    /// The time between two checks.
    pub every: Duration,
}

impl Default for NodeCheckPace {
    fn default() -> Self {
        Self {
            silence: SILENCE,
            every: EVERY,
        }
    }
}

/// A ComputeNode from the watch.
#[derive(Debug, Clone)]
struct WatchedNode {
    object: ComputeNode,
    /// When its heartbeat was seen to change.
    beat: Instant,
}

impl WatchedNode {
    fn is_by_agent(&self) -> bool {
        writer(&self.object) == Some("agent")
    }

    fn heartbeat(&self) -> Option<&String> {
        self.object.status.as_ref()?.last_heartbeat.as_ref()
    }
}

fn writer(object: &ComputeNode) -> Option<&str> {
    let labels = object.metadata.labels.as_ref()?;
    labels.get(observed::WRITER).map(String::as_str)
}

/// All ComputeNodes.
#[derive(Debug, Default)]
struct KnownNodes {
    nodes: HashMap<String, WatchedNode>,
    /// The names in a list that is in progress.
    listing: Option<BTreeSet<String>>,
    listed: bool,
}

impl KnownNodes {
    fn take(&mut self, event: Event<ComputeNode>, now: Instant) {
        match event {
            Event::Init => {
                self.listing = Some(BTreeSet::new());
                self.listed = false;
            }
            Event::InitApply(object) => {
                if let Some(listing) = &mut self.listing {
                    listing.extend(object.metadata.name.clone());
                }
                self.set(object, now);
            }
            Event::InitDone => {
                let named = self.listing.take().unwrap_or_default();
                self.nodes.retain(|name, _| named.contains(name));
                // While the watch was interrupted, agents may have reported, or may have been unable to reach the API
                // server.
                for stands in self.nodes.values_mut() {
                    stands.beat = now;
                }
                self.listed = true;
            }
            Event::Apply(object) => self.set(object, now),
            Event::Delete(object) => {
                self.nodes
                    .remove(object.metadata.name.as_deref().unwrap_or_default());
            }
        }
    }

    fn set(&mut self, object: ComputeNode, now: Instant) {
        let name = object.metadata.name.clone().unwrap_or_default();
        let fresh = WatchedNode { object, beat: now };
        let before = self.nodes.get(&name);
        let beat = match before {
            Some(before) if before.heartbeat() == fresh.heartbeat() => before.beat,
            _ => now,
        };
        self.nodes.insert(name, WatchedNode { beat, ..fresh });
    }

    /// Silent agents that are not marked as such yet, by name of their ComputeNode.
    fn silent(&self, silence: Duration, now: Instant) -> Vec<(&String, &WatchedNode)> {
        let all = self.nodes.iter().filter(|(_, stands)| {
            let said = stands.object.status.as_ref();
            stands.is_by_agent()
                && now.saturating_duration_since(stands.beat) >= silence
                && said.is_some_and(|status| !observed::is_disconnected(status))
        });
        let mut silent: Vec<_> = all.collect();
        silent.sort_by_key(|(name, _)| *name);
        silent
    }
}

/// Checks them periodically. Never returns.
pub async fn keep(client: kube::Client, scheduler: Scheduler, pace: NodeCheckPace) {
    let api: Api<ComputeNode> = Api::all(client.clone());
    let topologies: Api<ComputeTopology> = Api::all(client);
    let mut watch =
        std::pin::pin!(watcher(api.clone(), watcher::Config::default()).default_backoff());
    let mut known = KnownNodes::default();
    let mut look = interval(pace.every);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut said: Option<String> = None;
    loop {
        tokio::select! {
            event = watch.next() => match event {
                Some(Ok(event)) => {
                    known.take(event, Instant::now());
                    said = None;
                }
                Some(Err(error)) => {
                    known.listed = false;
                    let error = error.to_string();
                    if said.as_ref() != Some(&error) {
                        tracing::warn!(error, "ComputeNodes cannot be watched, so none is judged; are the definitions of hcs.io installed?");
                        said = Some(error);
                    }
                }
                None => return,
            },
            _ = look.tick(), if known.listed => {
                if scheduler.answers().is_ok() {
                    say_silent(&api, &known, pace).await;
                    mirror(&api, &topologies, &known, &scheduler).await;
                }
            }
        }
    }
}

async fn say_silent(api: &Api<ComputeNode>, known: &KnownNodes, pace: NodeCheckPace) {
    let now = Instant::now();
    for (name, stands) in known
        .silent(pace.silence, now)
        .into_iter()
        .take(MOST_WRITES)
    {
        let Some(before) = &stands.object.status else {
            continue;
        };
        let silent = now.saturating_duration_since(stands.beat);
        let status = observed::disconnected(before, silent.as_secs(), &written_now());
        // Tied to this version, so that an agent's report in the meantime wins.
        let version = stands.object.metadata.resource_version.clone();
        let patch = Patch::Merge(json!({
            "metadata": { "resourceVersion": version },
            "status": status,
        }));
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        match done(api.patch_status(name, &params, &patch)).await {
            Ok(()) => tracing::warn!(
                node = name,
                silent_s = silent.as_secs(),
                "the node's agent does not report"
            ),
            Err(error) => tracing::warn!(node = name, %error, "cannot write the ComputeNode"),
        }
    }
}

async fn mirror(
    api: &Api<ComputeNode>,
    topologies: &Api<ComputeTopology>,
    known: &KnownNodes,
    scheduler: &Scheduler,
) {
    let wanted = mirrored(&scheduler.0.ledger.lock(), known);
    let now = written_now();
    let apply = PatchParams::apply(MANAGER).force();
    let mut writes = 0;
    for (name, (uid, observed)) in &wanted {
        if writes >= MOST_WRITES {
            return;
        }
        let stands = known.nodes.get(name).map(|stands| &stands.object);
        let before = stands.and_then(|stands| stands.status.as_ref());
        let spec = observed::spec(observed);
        let status = observed::status(observed, before, &now);
        let same_spec = stands.is_some_and(|stands| stands.spec == spec);
        let same_status = before.is_some_and(|it| observed::same_but_heartbeat(it, &status));
        if same_spec && same_status {
            continue;
        }
        writes += 1;
        let metadata = json!({
            "name": name,
            "labels": observed.object_labels("scheduler"),
            "ownerReferences": [OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: observed.node.clone(),
                uid: uid.clone(),
                ..OwnerReference::default()
            }],
        });
        let written = async {
            if !same_spec {
                let object = json!({ "apiVersion": API_VERSION, "kind": "ComputeNode", "metadata": metadata, "spec": spec });
                done(api.patch(name, &apply, &Patch::Apply(object))).await?;
                let object = json!({ "apiVersion": API_VERSION, "kind": "ComputeTopology", "metadata": metadata, "spec": observed::topology(observed) });
                done(topologies.patch(name, &apply, &Patch::Apply(object))).await?;
                let object = json!({ "apiVersion": API_VERSION, "kind": "ComputeTopology", "metadata": { "name": name }, "status": { "lastHeartbeat": now } });
                done(topologies.patch_status(name, &apply, &Patch::Apply(object))).await?;
            }
            let object = json!({ "apiVersion": API_VERSION, "kind": "ComputeNode", "metadata": { "name": name }, "status": status });
            done(api.patch_status(name, &apply, &Patch::Apply(object))).await
        };
        if let Err(error) = written.await {
            tracing::warn!(
                node = name,
                %error,
                "cannot write the ComputeNode; tried again"
            );
        }
    }
    let ours = known
        .nodes
        .iter()
        .filter(|(_, stands)| writer(&stands.object) == Some("scheduler"));
    for (name, _) in ours.filter(|(name, _)| !wanted.contains_key(*name)) {
        let params = DeleteParams::default();
        let deleted = async {
            done(api.delete(name, &params)).await?;
            done(topologies.delete(name, &params)).await
        };
        if let Err(error) = deleted.await {
            tracing::warn!(
                node = name,
                %error,
                "cannot delete the ComputeNode; tried again"
            );
        }
    }
}

async fn done<T>(call: impl Future<Output = kube::Result<T>>) -> Result<(), CallError> {
    within(CALL, call).await.map(drop)
}

fn written_now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The devices that no agent describes: by name of the ComputeNode, the node's uid and its devices.
fn mirrored(ledger: &Ledger, known: &KnownNodes) -> BTreeMap<String, (String, Observed)> {
    let mut wanted = BTreeMap::new();
    for (name, node) in ledger.nodes() {
        let Some(view) = ledger.cluster().node(name) else {
            continue;
        };
        let vendors: BTreeSet<Vendor> = view.devices().filter_map(|it| vendor(&it)).collect();
        let Some(first) = vendors.first().copied() else {
            continue;
        };
        for vendor in vendors {
            let object = observed::name(name, vendor, first);
            let by_agent = known
                .nodes
                .get(&object)
                .is_some_and(WatchedNode::is_by_agent);
            if !by_agent {
                let uid = node.metadata.uid.clone().unwrap_or_default();
                wanted.insert(object, (uid, of_node(node, view, vendor)));
            }
        }
    }
    wanted
}

/// The vendor of a device in hcs.io's words; none for a vendor that hcs.io does not name.
fn vendor(device: &DeviceView<'_>) -> Option<Vendor> {
    match device.device().vendor.as_str() {
        "NVIDIA" => Some(Vendor::Nvidia),
        "DCU" => Some(Vendor::Hygon),
        "MLU" => Some(Vendor::Cambricon),
        word if word.starts_with("Ascend") => Some(Vendor::Huawei),
        _ => None,
    }
}

/// The devices of one vendor, from the Node's annotations.
fn of_node(node: &Node, view: NodeView<'_>, of: Vendor) -> Observed {
    let devices: Vec<DeviceView<'_>> = view.devices().filter(|it| vendor(it) == Some(of)).collect();
    // A vendor may number the devices of each model from 0; then the position among all of them is the index.
    let own: BTreeSet<u32> = devices.iter().map(|it| it.device().index).collect();
    let are_own = own.len() == devices.len();
    let indexed: Vec<(u32, &DeviceView<'_>)> = (0..)
        .zip(&devices)
        .map(|(place, view)| (if are_own { view.device().index } else { place }, view))
        .collect();
    let each = indexed.iter().map(|(index, view)| {
        let device = view.device();
        let joined = indexed.iter().filter(|(other, view)| {
            let group = view.device().group;
            of == Vendor::Huawei && group.is_some() && group == device.group && other != index
        });
        ObservedDevice {
            index: *index,
            uuid: device.id.clone(),
            model: device.model.clone(),
            memory_bytes: device.memory_bytes,
            promised_bytes: device.memory_bytes,
            allocated_bytes: view.used().memory_bytes,
            gflops: device.gflops,
            numa: device.numa,
            // Chips in one network plane are connected by HCCS.
            links: joined
                .map(|(peer, _)| ObservedLink {
                    kind: LinkType::Hccs,
                    peer: *peer,
                    count: 1,
                    mb_s: 0,
                    version: (0, 0),
                })
                .collect(),
            score: if device.healthy { 100 } else { 0 },
            sick: (!device.healthy)
                .then(|| "its device plugin says that it is not healthy".to_owned()),
            cordoned: device.cordoned,
            ..ObservedDevice::default()
        }
    });
    Observed {
        node: node.metadata.name.clone().unwrap_or_default(),
        labels: node.metadata.labels.clone().unwrap_or_default(),
        vendor: of,
        devices: each.collect(),
        ports: Vec::new(),
        cordoned: node.spec.unschedulable,
        problems: Vec::new(),
        registered: true,
    }
}
