//! Keeps the node's ComputeNode and ComputeTopology. Watches the Node and its pods, and writes what changed: at once
//! where a pod, a GPU's health or the cordon did, with the next heartbeat where only a health score moved.
//!
//! | what happens | what is done |
//! |---|---|
//! | nothing changes | one write of the status each [`HcsSettings::heartbeat`], a tenth earlier or later |
//! | something changes | it is written [`HcsSettings::settle`] later, with all that changed meanwhile |
//! | another writer changed or deleted an object | it is put right with the next write |
//! | the API server is late or away | tried again after a second, then after twice as long each time, a minute at most |
//! | the definitions are not installed | said once; looked for again after [`HcsSettings::absent`] |
//! | the Node is deleted | nothing is written until it is there again; the objects go with it |

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::Api;
use kube_api::hcs::observed::{self, Observed};
use kube_api::hcs::{ComputeNode, ComputeNodeStatus, ComputeTopology, ComputeTopologyStatus};
use kube_api::object::Pod;
use kube_api::vendor::Vendors;
use serde::Deserialize as _;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::compose::{self, Held, NodeSeen, Speeds};
use super::object::{Failed, Object, WantedObject};
use super::series::WriteSeries;
use crate::follow::{Told, follow};
use crate::node_gpus::{Healths, Inventories, Scores};

/// How the objects are kept.
#[derive(Debug, Clone)]
pub struct HcsSettings {
    /// Name of the Kubernetes node.
    pub node: String,
    /// The status is written this often where nothing changes. The scheduler takes an agent for gone that has not
    /// reported for three times as long.
    pub heartbeat: Duration,
    /// Changes within this time are written together.
    pub settle: Duration,
    /// The first pause after a write that failed.
    pub pause: Duration,
    /// Definitions that are not installed are looked for again after this.
    pub absent: Duration,
    /// The time in the ComputeTopology's status is renewed this often.
    pub topology: Duration,
}

impl HcsSettings {
    /// With what holds where nothing else is said. 5,000 nodes are 125 writes a second.
    pub fn new(node: impl Into<String>) -> Self {
        Self {
            node: node.into(),
            heartbeat: Duration::from_secs(40),
            settle: Duration::from_secs(1),
            pause: Duration::from_secs(1),
            absent: Duration::from_secs(300),
            topology: Duration::from_secs(600),
        }
    }
}

/// Longest pause after writes that failed.
const MOST_PAUSE: Duration = Duration::from_secs(60);

/// Sources of the values.
#[derive(Clone)]
pub struct ReportSources {
    /// The GPUs.
    pub inventories: Inventories,
    /// Which of them are sick.
    pub healths: Healths,
    /// How well each is.
    pub scores: watch::Receiver<Arc<Scores>>,
    /// The table of annotations, to read what pods hold.
    pub vendors: Arc<Vendors>,
    /// The exchange table.
    pub speeds: Speeds,
}

impl std::fmt::Debug for ReportSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

/// Keeps the two objects for as long as the agent lives.
pub async fn keep(
    client: kube::Client,
    settings: HcsSettings,
    sources: ReportSources,
    series: WriteSeries,
) {
    let ReportSources {
        mut inventories,
        mut healths,
        scores,
        vendors,
        speeds,
    } = sources;
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::all(client.clone());
    let own = format!("metadata.name={}", settings.node);
    let here = format!("spec.nodeName={}", settings.node);
    let mut nodes = follow(client.clone(), nodes, &own);
    let mut pods = follow(client.clone(), pods, &here);
    let mut node: Option<NodeSeen> = None;
    let mut held = Tracked::default();
    let mut writer = Writer::new(client, settings, series);
    loop {
        let observed = match (&node, &*inventories.borrow_and_update(), held.known()) {
            (Some(node), Some(inventory), Some(held)) => Some(compose::observed(
                &writer.settings.node,
                node,
                inventory,
                &healths.borrow_and_update(),
                &scores.borrow(),
                held,
                &*speeds,
            )),
            _ => None,
        };
        let due = observed.as_ref().map(|it| writer.due(it));
        if let (Some(observed), Some(node), Some(due)) = (&observed, &node, due)
            && due <= Instant::now()
        {
            writer.write(observed, &node.uid).await;
            continue;
        }
        tokio::select! {
            told = nodes.recv() => match told {
                Some(Told::All(all)) => match all.into_iter().next() {
                    Some(it) => node = Some(it.into()),
                    None => {
                        node = None;
                        writer.forget();
                    }
                },
                Some(Told::Put(it)) => node = Some(it.into()),
                Some(Told::Gone(_)) => {
                    node = None;
                    writer.forget();
                }
                Some(Told::Up) => {}
                Some(Told::Down(why)) => tracing::debug!(why, "cannot watch the own node"),
                None => return,
            },
            told = pods.recv() => match told {
                Some(told) => held.take(told, &writer.settings.node, &vendors),
                None => return,
            },
            // Fails once the inventory thread has ended; the state of the GPUs is then unknown.
            changed = inventories.changed() => if changed.is_err() { return },
            changed = healths.changed() => if changed.is_err() { return },
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
    }
}

/// The devices that the node's pods hold, as the watch reports them.
#[derive(Debug, Default)]
struct Tracked {
    held: Held,
    listed: bool,
}

impl Tracked {
    fn take(&mut self, told: Told<Pod>, node: &str, vendors: &Vendors) {
        let uid = |pod: &Pod| kube_api::request::identity(pod).uid;
        match told {
            Told::All(pods) => {
                let held = pods
                    .iter()
                    .filter_map(|pod| Some((uid(pod), compose::held(pod, node, vendors)?)));
                self.held = held.collect();
                self.listed = true;
            }
            Told::Put(pod) => {
                match compose::held(&pod, node, vendors) {
                    Some(placement) => self.held.insert(uid(&pod), placement),
                    None => self.held.remove(&uid(&pod)),
                };
            }
            Told::Gone(pod) => drop(self.held.remove(&uid(&pod))),
            Told::Up => {}
            Told::Down(why) => tracing::debug!(why, "cannot watch the pods of the node"),
        }
    }

    /// `None` until all pods were listed once: an unknown amount is not 0.
    fn known(&self) -> Option<&Held> {
        self.listed.then_some(&self.held)
    }
}

/// Writes, and remembers when to write next.
struct Writer {
    settings: HcsSettings,
    series: WriteSeries,
    node: Object,
    topology: Object,
    /// The last written values, without scores.
    written: Option<Observed>,
    /// When something first differed from that.
    changed: Option<Instant>,
    next: Instant,
    topology_at: Option<Instant>,
    /// Not before this, after a failure.
    not_before: Instant,
    pause: Duration,
    said: Option<Failed>,
}

impl Writer {
    fn new(client: kube::Client, settings: HcsSettings, series: WriteSeries) -> Self {
        let now = Instant::now();
        Self {
            node: Object::new::<ComputeNode>(client.clone(), &settings.node),
            topology: Object::new::<ComputeTopology>(client, &settings.node),
            settings,
            series,
            written: None,
            changed: None,
            next: now,
            topology_at: None,
            not_before: now,
            pause: Duration::ZERO,
            said: None,
        }
    }

    fn forget(&mut self) {
        self.written = None;
        self.changed = None;
        self.next = Instant::now();
    }

    /// When this has to be written.
    fn due(&mut self, observed: &Observed) -> Instant {
        let differs = self.written.as_ref() != Some(&scoreless(observed));
        let at = if differs {
            let since = *self.changed.get_or_insert_with(Instant::now);
            self.next.min(since + self.settings.settle)
        } else {
            self.changed = None;
            self.next
        };
        at.max(self.not_before)
    }

    async fn write(&mut self, observed: &Observed, uid: &str) {
        match self.bring(observed, uid).await {
            Ok(writes) => {
                if self.said.take().is_some() {
                    tracing::info!(
                        node = self.settings.node,
                        "the ComputeNode is written again"
                    );
                }
                let now = Instant::now();
                let unix = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
                self.series.reported(u64::from(writes), unix);
                self.written = Some(scoreless(observed));
                self.changed = None;
                self.pause = Duration::ZERO;
                self.not_before = now;
                self.next = now + spread(self.settings.heartbeat);
            }
            Err(failed) => {
                self.series.failed();
                let pause = match &failed {
                    Failed::NotInstalled => self.settings.absent,
                    Failed::Other(_) => {
                        self.pause = (self.pause * 2).clamp(self.settings.pause, MOST_PAUSE);
                        self.pause
                    }
                };
                self.not_before = Instant::now() + spread(pause);
                if self.said.as_ref() != Some(&failed) {
                    let node = &self.settings.node;
                    match &failed {
                        Failed::NotInstalled => tracing::warn!(
                            %node,
                            again_s = pause.as_secs(),
                            "the definitions of hcs.io are not installed, so no ComputeNode is written; the chart installs them with hcs.enabled"
                        ),
                        Failed::Other(error) => {
                            tracing::warn!(%node, %error, "cannot write the ComputeNode; tried again");
                        }
                    }
                    self.said = Some(failed);
                }
            }
        }
    }

    async fn bring(&mut self, observed: &Observed, uid: &str) -> Result<u32, Failed> {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let beat = Instant::now() >= self.next;
        let wanted = |spec| WantedObject {
            labels: observed.object_labels("agent"),
            owner: OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: observed.node.clone(),
                uid: uid.to_owned(),
                ..OwnerReference::default()
            },
            spec,
        };
        let written = self
            .node
            .bring(&wanted(value(observed::spec(observed))), |before| {
                let before = before.and_then(|it| ComputeNodeStatus::deserialize(it).ok());
                let status = observed::status(observed, before.as_ref(), &now);
                let same = before.is_some_and(|before| {
                    if beat {
                        before == status
                    } else {
                        observed::same_but_heartbeat(&before, &status)
                    }
                });
                (!same).then(|| value(status))
            })
            .await?;
        let spec = observed::topology(observed);
        let renew = self
            .topology_at
            .is_none_or(|at| at.elapsed() >= self.settings.topology);
        let drawn = self
            .topology
            .bring(&wanted(value(spec)), |before| {
                let status = value(ComputeTopologyStatus {
                    last_heartbeat: Some(now.clone()),
                });
                let due = renew && before != Some(&status);
                (due || before.is_none()).then_some(status)
            })
            .await?;
        if renew {
            self.topology_at = Some(Instant::now());
        }
        Ok(written + drawn)
    }
}

fn value(of: impl serde::Serialize) -> Value {
    serde_json::to_value(of).unwrap_or_default()
}

/// Without the values that only a heartbeat writes.
fn scoreless(observed: &Observed) -> Observed {
    let mut observed = observed.clone();
    for device in &mut observed.devices {
        device.score = 0;
    }
    observed
}

/// A tenth shorter or longer, so that agents do not march in step.
fn spread(pause: Duration) -> Duration {
    let part = f64::from(Timestamp::now().subsec_nanosecond() % 1_000_000) / 1_000_000.0;
    pause.mul_f64(0.9 + 0.2 * part)
}
