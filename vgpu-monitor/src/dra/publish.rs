//! Keeps this node's ResourceSlices as they should be: when a GPU changes, when its health does, when another program
//! makes or removes a MIG instance, and when another client has changed or deleted a slice. Never decides what the slices
//! say: `slices` does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use events::{Events, Kind};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use sha2::Digest as _;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::metrics::Metrics;
use super::slices::{self, Dropped, NodeFacts, Offer, OtherDevice, Others};
use super::{DRIVER, is_claims};
use crate::delivery::Delivery;
use crate::follow::{Told, follow};
use crate::inventory::mig::{Mig, MigError, OtherInstance};
use crate::node_gpus::{Healths, Inventories, Inventory};

/// The slices are listed again after this while the API server lets nothing watch them or drops a part of them.
const AGAIN: Duration = Duration::from_secs(30);
/// The slices are listed again after this while they are watched.
const WATCHED_AGAIN: Duration = Duration::from_secs(300);
/// Other programs' MIG instances are asked for again after this. The driver tells no program of them.
const INSTANCES_AGAIN: Duration = Duration::from_secs(5);
/// The watch ends a wait after this at the earliest. The pause doubles with each failure and each write, up to `AGAIN`:
/// another client may undo each write.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest wait for one answer.
const ONE: Duration = Duration::from_secs(10);
/// How long a driver is asked for MIG instances: one that hangs may not delay the taint of its GPU.
const INSTANCES: Duration = Duration::from_secs(2);
/// Letters of a name that the API server takes.
const LETTERS_MOST: usize = 253;

/// The sources of the slices.
pub struct Publisher {
    /// Name of the node.
    pub node: String,
    /// The API server.
    pub client: kube::Client,
    /// Which GPUs containers of the device plugin still use.
    pub delivery: Arc<Delivery>,
    /// The node's GPUs.
    pub inventories: Inventories,
    /// Which of them are sick.
    pub healths: Healths,
    /// More about them.
    pub facts: watch::Receiver<Arc<NodeFacts>>,
    /// Counts.
    pub metrics: Metrics,
    /// Events of the node.
    pub events: Events,
    /// The GPUs that other drivers publish, as of the last look.
    pub others: Others,
    /// Knows which MIG instances of this node are not ours.
    pub mig: Mig,
    /// Those, as of the last look.
    pub foreign: Vec<OtherInstance>,
    /// Whether the driver did not say so at the last look.
    pub unknown_instances: bool,
    /// Whether the API server dropped counters at the last look, so that GPUs in MIG mode are left out.
    pub without_counters: bool,
    /// `None` until the slices are published for the first time; then why they are not, if they are not.
    pub published: watch::Sender<Option<Result<(), PublishError>>>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").finish_non_exhaustive()
    }
}

/// Why the slices are not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The GPUs are not known yet.
    #[error("the node's GPUs have not been read yet")]
    NotRead,
    /// The API server would keep the slices without their sharing. They are deleted.
    #[error(
        "the API server drops allowMultipleAllocations, so every GPU would be given out as a whole. The feature gate \
             DRAConsumableCapacity has to be on in kube-apiserver and kube-scheduler (by default from Kubernetes 1.36)"
    )]
    DropsSharing,
    /// The API server refuses, or cannot be reached.
    #[error("the API server: {0}")]
    Api(#[from] kube::Error),
    /// The API server does not answer.
    #[error("the API server: no answer in time")]
    Late(#[from] Elapsed),
}

/// Why the MIG instances of other programs are not known.
#[derive(Debug, thiserror::Error)]
enum InstancesError {
    /// The driver refuses, or is still at an earlier question.
    #[error(transparent)]
    Driver(#[from] MigError),
    /// The driver hangs.
    #[error("no answer within {INSTANCES:?}")]
    Late(#[from] Elapsed),
    /// A fault of this program.
    #[error("the thread that asks the driver has ended: {0}")]
    Thread(#[from] JoinError),
}

/// What a look at the slices has found and done.
#[derive(Debug, Clone, Copy)]
struct Publication {
    /// Whether they were not as they should be.
    has_written: bool,
    /// Whether only changes that are heard of can change them. Not while the API server drops a part of them (a feature gate
    /// is off), while containers of the device plugin use a GPU, or while the driver does not name the MIG instances.
    is_settled: bool,
}

/// How long to wait after a look.
#[derive(Debug, Clone, Copy)]
struct Wait {
    /// The watch ends the wait no earlier.
    pause: Duration,
    /// Whether the look has failed. The watch does not end the wait then: each failure may have begun with a write.
    has_failed: bool,
    /// As [`Publication::is_settled`].
    is_settled: bool,
}

impl Wait {
    /// How long, if no change is heard of.
    fn longest(self, is_watched: bool) -> Duration {
        if self.has_failed {
            self.pause
        } else if is_watched && self.is_settled {
            WATCHED_AGAIN
        } else {
            AGAIN
        }
    }
}

/// The pause after a look, given the one before it. It grows as long as the slices are not as they should be.
fn pause_after(before: Duration, looked: &Result<Publication, PublishError>) -> Duration {
    match looked {
        Ok(looked) if !looked.has_written => PAUSE,
        _ => (before * 2).min(AGAIN),
    }
}

/// The watch of this node's slices, of all drivers.
struct WatchedSlices {
    told: mpsc::Receiver<Told<ResourceSlice>>,
    /// Whether changes are heard of. At the start they are: the first message is all slices or says why not.
    stands: bool,
}

impl WatchedSlices {
    fn start(client: &kube::Client, of_node: &str) -> Self {
        let told = follow(client.clone(), Api::all(client.clone()), of_node);
        Self { told, stands: true }
    }

    /// Waits for the next message.
    async fn heard(&mut self) -> Heard {
        let why = match self.told.recv().await {
            Some(Told::Down(why)) => why,
            Some(Told::Up) => {
                self.stands = true;
                return Heard::GoesOn;
            }
            Some(Told::All(_) | Told::Put(_) | Told::Gone(_)) => {
                self.stands = true;
                return Heard::Changed;
            }
            // It ends with this receiver alone.
            None => std::future::pending().await,
        };
        if std::mem::take(&mut self.stands) {
            tracing::warn!(%why, "the ResourceSlices of this node are not watched: they are listed every {AGAIN:?}");
        }
        Heard::Down
    }
}

/// A message of the watch.
enum Heard {
    /// The slices may have changed.
    Changed,
    /// The watch goes on where it was. A thousand agents hear this at one moment, and none lists its slices for it: what has
    /// changed meanwhile is heard next.
    GoesOn,
    /// The watch is down.
    Down,
}

/// The changes to make to slices.
#[derive(Debug, Clone, PartialEq)]
struct Plan {
    /// Written, by name; those that are there with their versions.
    writes: Vec<(String, Option<String>, ResourceSliceSpec)>,
    /// Deleted, by name.
    deletes: Vec<String>,
}

/// The changes that turn the present slices into the wanted ones; `None` if there are none.
fn plan(node: &str, there: &[ResourceSlice], wanted: Vec<ResourceSliceSpec>) -> Option<Plan> {
    let name = |slice: &ResourceSlice| slice.metadata.name.clone().unwrap_or_default();
    let find = |wanted: &str| there.iter().find(|slice| name(slice) == wanted);
    let names: Vec<String> = (0..wanted.len()).map(|at| slice_name(node, at)).collect();
    let newest = there.iter().map(|slice| slice.spec.pool.generation).max();
    let is_done = there.len() == wanted.len()
        && names.iter().zip(&wanted).all(|(name, spec)| {
            find(name).is_some_and(|slice| {
                slices::same(&slice.spec, spec) && Some(slice.spec.pool.generation) == newest
            })
        });
    if is_done {
        return None;
    }
    // All slices of a pool are of one generation: the scheduler waits until it has seen all of the newest.
    let generation = newest.unwrap_or(0).saturating_add(1);
    let writes = names.iter().zip(wanted).map(|(name, mut spec)| {
        spec.pool.generation = generation;
        let version = find(name).and_then(|slice| slice.metadata.resource_version.clone());
        (name.clone(), version, spec)
    });
    Some(Plan {
        writes: writes.collect(),
        deletes: there
            .iter()
            .map(name)
            .filter(|it| !names.contains(it))
            .collect(),
    })
}

/// The name of a slice of this node.
fn slice_name(node: &str, at: usize) -> String {
    let name = format!("{node}-{DRIVER}-{at}");
    if name.len() <= LETTERS_MOST {
        return name;
    }
    let hash = sha2::Sha256::digest(node.as_bytes());
    let hash: String = hash
        .iter()
        .take(5)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let end = format!("-{hash}-{DRIVER}-{at}");
    let kept: String = node.chars().take(LETTERS_MOST - end.len()).collect();
    format!("{}{end}", kept.trim_end_matches(['-', '.']))
}

impl Publisher {
    /// Publishes for as long as the task lives.
    pub async fn run(mut self) {
        let mut watched = WatchedSlices::start(&self.client, &self.of_node());
        let mut pause = PAUSE;
        loop {
            let looked = self.once().await;
            pause = pause_after(pause, &looked);
            let wait = Wait {
                pause,
                has_failed: looked.is_err(),
                is_settled: looked.as_ref().is_ok_and(|looked| looked.is_settled),
            };
            if let Err(why) = &looked {
                if matches!(why, PublishError::DropsSharing) {
                    self.metrics.devices(0);
                }
                tracing::warn!(%why, "the ResourceSlices of this node are not published");
            }
            self.published.send_replace(Some(looked.map(drop)));
            if !self.until_changed(&mut watched, wait).await {
                return;
            }
        }
    }

    /// Waits until the slices have to be looked at again. False: the agent ends.
    async fn until_changed(&mut self, watched: &mut WatchedSlices, wait: Wait) -> bool {
        let now = Instant::now();
        let mut due = now + wait.longest(watched.stands);
        loop {
            tokio::select! {
                () = sleep_until(due) => return true,
                changed = self.inventories.changed() => return changed.is_ok(),
                changed = self.healths.changed() => return changed.is_ok(),
                changed = self.facts.changed() => {
                    if changed.is_err() {
                        sleep(AGAIN).await;
                    }
                    return true;
                }
                heard = watched.heard() => match heard {
                    Heard::Changed if !wait.has_failed => due = due.min(now + wait.pause),
                    Heard::Changed | Heard::GoesOn => {}
                    Heard::Down => due = due.min(now + wait.longest(false)),
                },
                () = sleep(INSTANCES_AGAIN), if wait.is_settled => {
                    let inventory = self.inventories.borrow().clone();
                    let Some(inventory) = inventory else { continue };
                    // No answer is told by the next look at the slices.
                    if self.instances(&inventory).await.is_ok_and(|found| found != self.foreign) {
                        return true;
                    }
                }
            }
        }
    }

    /// The field selector of this node's slices, of all drivers.
    fn of_node(&self) -> String {
        format!("spec.nodeName={}", self.node)
    }

    async fn once(&mut self) -> Result<Publication, PublishError> {
        let Some(inventory) = self.inventories.borrow_and_update().clone() else {
            return Err(PublishError::NotRead);
        };
        let health = self.healths.borrow_and_update().clone();
        let facts = self.facts.borrow_and_update().clone();
        let taken: BTreeSet<String> = self.delivery.gpus_but(is_claims);
        let api: Api<ResourceSlice> = Api::all(self.client.clone());
        let of_node = ListParams::default().fields(&self.of_node());
        let there = timeout(ONE, api.list(&of_node)).await??.items;
        let others = slices::others(&there, &inventory);
        self.tell_others(&others);
        self.others = others;
        self.look_at_instances(&inventory).await;
        let ours = |slice: &ResourceSlice| slice.spec.driver == DRIVER;
        let there: Vec<ResourceSlice> = there.into_iter().filter(ours).collect();
        let mut offer = Offer {
            node: &self.node,
            inventory: &inventory,
            health: &health,
            facts: &facts,
            taken: &taken,
            others: &self.others,
            foreign: &self.foreign,
            taints: true,
            counters: true,
        };
        let mut wanted = slices::slices(&offer);
        if plan(&self.node, &there, wanted.clone()).is_some() {
            let dropped = self.tried(&api, &wanted).await?;
            if dropped.sharing {
                for slice in &there {
                    delete(&api, slice.metadata.name.as_deref().unwrap_or_default()).await?;
                }
                return Err(PublishError::DropsSharing);
            }
            if dropped.taints || dropped.counters {
                offer.taints = !dropped.taints;
                offer.counters = !dropped.counters;
                wanted = slices::slices(&offer);
            }
        }
        let (taints, counters) = (offer.taints, offer.counters);
        self.tell_counters(!counters);
        let count = wanted
            .iter()
            .flat_map(|spec| &spec.devices)
            .flatten()
            .count();
        let plan = plan(&self.node, &there, wanted);
        let has_written = plan.is_some();
        if let Some(plan) = plan {
            self.carry_out(&api, plan).await?;
            tracing::info!(devices = count, "published the ResourceSlices of this node");
        }
        self.metrics.devices(count);
        Ok(Publication {
            has_written,
            is_settled: taints && counters && taken.is_empty() && !self.unknown_instances,
        })
    }

    /// The MIG instances that other programs have made, or why the driver does not say.
    async fn instances(&self, inventory: &Inventory) -> Result<Vec<OtherInstance>, InstancesError> {
        let cut = inventory.gpus.iter().filter(|gpu| gpu.device.is_mig());
        let cut: Vec<String> = cut.map(|gpu| gpu.device.id.clone()).collect();
        if cut.is_empty() {
            return Ok(Vec::new());
        }
        let mig = self.mig.clone();
        let asked = timeout(INSTANCES, spawn_blocking(move || mig.others(cut)));
        Ok(asked.await???)
    }

    /// Learns which MIG instances other programs have made: the scheduler must give none that overlaps one of them. While
    /// the driver does not say, the last answer holds.
    async fn look_at_instances(&mut self, inventory: &Inventory) {
        let found = match self.instances(inventory).await {
            Ok(found) => found,
            Err(reason) => return self.tell_unknown(&reason),
        };
        self.unknown_instances = false;
        for other in found.iter().filter(|it| !self.foreign.contains(it)) {
            tracing::info!(
                gpu = other.gpu,
                profile = other.profile,
                start = other.span.start,
                "another program has made a MIG instance: what overlaps it is not offered to claims"
            );
        }
        self.foreign = found;
    }

    /// Says once that the driver does not name the MIG instances.
    fn tell_unknown(&mut self, reason: &InstancesError) {
        if !std::mem::replace(&mut self.unknown_instances, true) {
            tracing::warn!(
                %reason,
                "the MIG instances of other programs are not known: the last answer holds"
            );
        }
    }

    /// Says when GPUs in MIG mode are left out because the API server keeps no counters, and when they are back.
    fn tell_counters(&mut self, are_dropped: bool) {
        if std::mem::replace(&mut self.without_counters, are_dropped) == are_dropped {
            return;
        }
        if are_dropped {
            let text = "GPUs in MIG mode are not offered: the API server drops the counters by which their instances \
                        exclude each other. The feature gate DRAPartitionableDevices has to be on in kube-apiserver and \
                        kube-scheduler (Kubernetes 1.35 or newer; by default from 1.36)";
            tracing::error!("{text}");
            let kind = Kind::Warning;
            self.events
                .node(&self.node, kind, "MigNotOffered", text.to_owned());
        } else {
            let text = "GPUs in MIG mode are offered: the API server keeps counters";
            tracing::info!("{text}");
            self.events
                .node(&self.node, Kind::Normal, "MigOffered", text.to_owned());
        }
    }

    /// Says which GPUs other drivers publish, and which ones they do not publish any more.
    fn tell_others(&self, others: &Others) {
        self.metrics
            .others(others.values().map(|of| of.driver.as_str()));
        for (gpu, of) in others {
            if self.others.get(gpu) == Some(of) {
                continue;
            }
            let OtherDevice {
                driver,
                pool,
                device,
            } = of;
            let text = format!(
                "GPU {gpu} is not offered by {DRIVER}: the DRA driver {driver} publishes it, too (device {device} of pool \
                 {pool}), and each driver would give out all of it. Take the label vgpu.io/dra from this node, or let \
                 {driver} leave this GPU out"
            );
            tracing::error!(gpu, driver, "{text}");
            self.events
                .node(&self.node, Kind::Warning, "GPUOfTwoDrivers", text);
        }
        for (gpu, of) in &self.others {
            if !others.contains_key(gpu) {
                let text = format!(
                    "GPU {gpu} can be offered by {DRIVER} again: {} does not publish it any more",
                    of.driver
                );
                tracing::info!(gpu, "{text}");
                self.events
                    .node(&self.node, Kind::Normal, "GPUOfOneDriver", text);
            }
        }
    }

    /// The fields that the API server would drop of these slices, without writing them.
    async fn tried(
        &self,
        api: &Api<ResourceSlice>,
        wanted: &[ResourceSliceSpec],
    ) -> Result<Dropped, PublishError> {
        let mut all = Dropped::default();
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        for spec in wanted {
            let slice = ResourceSlice {
                metadata: ObjectMeta {
                    generate_name: Some(String::from("vgpu-dry-run-")),
                    ..ObjectMeta::default()
                },
                spec: spec.clone(),
            };
            let kept = match timeout(ONE, api.create(&params, &slice)).await? {
                // Kubernetes 1.34 has counters of another form, with their devices in one slice, and refuses ours.
                Err(kube::Error::Api(status)) if status.code == 422 && has_counters(spec) => {
                    all.counters = true;
                    continue;
                }
                answer => answer?,
            };
            let dropped = slices::dropped(spec, &kept.spec);
            all.sharing |= dropped.sharing;
            all.taints |= dropped.taints;
            all.counters |= dropped.counters;
        }
        Ok(all)
    }

    async fn carry_out(&self, api: &Api<ResourceSlice>, plan: Plan) -> Result<(), PublishError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = timeout(ONE, nodes.get_metadata(&self.node)).await??;
        let owner = OwnerReference {
            api_version: String::from("v1"),
            kind: String::from("Node"),
            name: self.node.clone(),
            uid: node.metadata.uid.unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: None,
        };
        let params = PostParams::default();
        for (name, version, spec) in plan.writes {
            let slice = ResourceSlice {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    resource_version: version.clone(),
                    owner_references: Some(vec![owner.clone()]),
                    ..ObjectMeta::default()
                },
                spec,
            };
            let written = match version {
                Some(_) => timeout(ONE, api.replace(&name, &params, &slice)).await,
                None => timeout(ONE, api.create(&params, &slice)).await,
            };
            written??;
        }
        for name in plan.deletes {
            delete(api, &name).await?;
        }
        Ok(())
    }
}

/// Whether a slice has counters, or a device that consumes some.
fn has_counters(spec: &ResourceSliceSpec) -> bool {
    let mut devices = spec.devices.iter().flatten();
    spec.shared_counters.is_some() || devices.any(|device| device.consumes_counters.is_some())
}

async fn delete(api: &Api<ResourceSlice>, name: &str) -> Result<(), PublishError> {
    match timeout(ONE, api.delete(name, &DeleteParams::default())).await {
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(()),
        answer => {
            answer??;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, ResourcePool};

    use super::*;
    use crate::delivery::Manner;
    use crate::delivery::tests::{GPUS, NodeDir};

    fn spec(devices: &[&str], generation: i64) -> ResourceSliceSpec {
        let device = |name: &&str| Device {
            name: (*name).to_owned(),
            ..Device::default()
        };
        ResourceSliceSpec {
            driver: DRIVER.to_owned(),
            pool: ResourcePool {
                name: String::from("n"),
                generation,
                resource_slice_count: 1,
            },
            devices: Some(devices.iter().map(device).collect()),
            ..ResourceSliceSpec::default()
        }
    }

    fn there(name: &str, spec: ResourceSliceSpec) -> ResourceSlice {
        ResourceSlice {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                resource_version: Some(String::from("7")),
                ..ObjectMeta::default()
            },
            spec,
        }
    }

    #[test]
    fn first_slice_has_generation_one() {
        let plan = plan("n", &[], vec![spec(&["a"], 0)]).unwrap();

        assert_eq!(plan.writes, [(slice_name("n", 0), None, spec(&["a"], 1))]);
        assert!(plan.deletes.is_empty());
    }

    #[test]
    fn slices_that_are_as_wanted_are_left_alone() {
        let there = [there(&slice_name("n", 0), spec(&["a"], 4))];

        assert_eq!(plan("n", &there, vec![spec(&["a"], 0)]), None);
    }

    #[test]
    fn change_is_a_new_generation_and_removes_foreign_names() {
        let there = [
            there(&slice_name("n", 0), spec(&["a"], 4)),
            there("other", spec(&["b"], 5)),
        ];

        let plan = plan("n", &there, vec![spec(&["a"], 0)]).unwrap();

        let version = Some(String::from("7"));
        assert_eq!(
            plan.writes,
            [(slice_name("n", 0), version, spec(&["a"], 6))]
        );
        assert_eq!(plan.deletes, ["other"]);
    }

    #[test]
    fn long_names_of_nodes_are_shortened() {
        let node = "n".repeat(253);
        assert!(slice_name(&node, 0).len() <= LETTERS_MOST);
        let other = format!("{}m", "n".repeat(252));
        assert_ne!(slice_name(&node, 0), slice_name(&other, 0));
        assert_eq!(slice_name("one", 2), "one-gpu.vgpu.io-2");
    }

    /// ResourceSlices, which the embedded API server does not have by itself.
    const DEFINITION: &str = r#"{
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "resourceslices.resource.k8s.io"},
        "spec": {
            "group": "resource.k8s.io", "scope": "Cluster",
            "names": {"kind": "ResourceSlice", "plural": "resourceslices", "singular": "resourceslice",
                "listKind": "ResourceSliceList"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
                    "properties": {"nodeName": {"type": "string"}}, "x-kubernetes-preserve-unknown-fields": true}}}},
                "selectableFields": [{"jsonPath": ".spec.nodeName"}]}]
        }
    }"#;

    /// The UUIDs of the GPUs in our slices.
    async fn offered(api: &Api<ResourceSlice>) -> Vec<String> {
        let slices = api.list(&ListParams::default()).await.unwrap().items;
        let ours = slices.iter().filter(|slice| slice.spec.driver == DRIVER);
        let devices = ours.flat_map(|slice| slice.spec.devices.iter().flatten());
        devices
            .map(|it| {
                it.attributes.as_ref().unwrap()["uuid"]
                    .string
                    .clone()
                    .unwrap()
            })
            .collect()
    }

    /// A cluster with one node and the definition.
    fn cluster() -> embedded_cluster::Cluster {
        let cluster = embedded_cluster::Cluster::default();
        let definition: serde_json::Value = serde_json::from_str(DEFINITION).unwrap();
        cluster
            .import(&serde_json::json!({
                "customResourceDefinitions": [definition], "nodes": [{"metadata": {"name": "n1"}}],
            }))
            .unwrap();
        cluster
    }

    /// The publisher of a node's two GPUs. The senders of their health and facts are gone.
    fn publisher(client: &kube::Client, node: &NodeDir, metrics: &Metrics) -> Publisher {
        let (_, facts) = watch::channel(Arc::default());
        Publisher {
            node: String::from("n1"),
            client: client.clone(),
            delivery: Arc::new(node.delivery(Manner::Claim)),
            inventories: node.settings(Manner::Claim).gpus,
            healths: watch::Sender::default().subscribe(),
            facts,
            metrics: metrics.clone(),
            events: Events::silent(),
            others: Others::new(),
            mig: Mig::start(&node.path("var/lib/vgpu"), None).unwrap(),
            foreign: Vec::new(),
            unknown_instances: false,
            without_counters: false,
            published: watch::Sender::default(),
        }
    }

    /// A slice in which another driver publishes the second of the node's GPUs.
    fn slice_of_another_driver() -> ResourceSlice {
        let mut other = there("n1-gpu.nvidia.com", spec(&["gpu-1"], 1));
        other.metadata.resource_version = None;
        other.spec.driver = String::from("gpu.nvidia.com");
        other.spec.node_name = Some(String::from("n1"));
        let uuid = DeviceAttribute {
            string: Some(GPUS[1].to_owned()),
            ..DeviceAttribute::default()
        };
        other.spec.devices.as_mut().unwrap()[0].attributes =
            Some(BTreeMap::from([(String::from("uuid"), uuid)]));
        other
    }

    #[tokio::test]
    async fn gpu_of_another_driver_is_left_out_until_that_lets_it_go() {
        let cluster = cluster();
        let client = kube::Client::new(cluster.router(), "default");
        let api: Api<ResourceSlice> = Api::all(client.clone());
        let node = NodeDir::new();
        let metrics = Metrics::new("n1");
        let mut publisher = publisher(&client, &node, &metrics);
        publisher.once().await.unwrap();
        assert_eq!(offered(&api).await, GPUS);

        let other = slice_of_another_driver();
        api.create(&PostParams::default(), &other).await.unwrap();
        publisher.once().await.unwrap();

        assert_eq!(offered(&api).await, [GPUS[0]]);
        let series = |metrics: &Metrics| {
            let mut registry = prometheus_client::registry::Registry::default();
            metrics.register(&mut registry);
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            text
        };
        let one = "vgpu_dra_devices_of_other_drivers{node=\"n1\",driver=\"gpu.nvidia.com\"} 1";
        assert!(series(&metrics).contains(one), "{}", series(&metrics));
        // The other driver's slice stays as it is.
        let name = "n1-gpu.nvidia.com";
        assert_eq!(api.get(name).await.unwrap().spec, other.spec);

        delete(&api, name).await.unwrap();
        publisher.once().await.unwrap();

        assert_eq!(offered(&api).await, GPUS);
        assert!(!series(&metrics).contains("gpu.nvidia.com"));
    }

    /// Waits until our slices offer these GPUs. Without a watch that is so after `AGAIN` at the earliest.
    async fn until_offered(api: &Api<ResourceSlice>, gpus: &[&str]) {
        let wait = async {
            while offered(api).await != gpus {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(AGAIN * 2 / 3, wait)
            .await
            .unwrap_or_else(|_| panic!("{gpus:?} are not offered"));
    }

    #[tokio::test]
    async fn what_other_clients_do_to_the_slices_is_seen_at_once() {
        let cluster = cluster();
        let client = kube::Client::new(cluster.router(), "default");
        let api: Api<ResourceSlice> = Api::all(client.clone());
        let node = NodeDir::new();
        let (facts_of, facts) = watch::channel(Arc::default());
        let (healths_of, healths) = watch::channel(Arc::default());
        let publishing = tokio::spawn(
            Publisher {
                facts,
                healths,
                ..publisher(&client, &node, &Metrics::new("n1"))
            }
            .run(),
        );
        until_offered(&api, &GPUS).await;

        delete(&api, &slice_name("n1", 0)).await.unwrap();
        until_offered(&api, &GPUS).await;

        let other = slice_of_another_driver();
        api.create(&PostParams::default(), &other).await.unwrap();
        until_offered(&api, &GPUS[..1]).await;

        publishing.abort();
        drop((facts_of, healths_of));
    }

    #[test]
    fn slices_are_listed_rarely_only_while_all_changes_are_heard_of() {
        let settled = Wait {
            pause: PAUSE,
            has_failed: false,
            is_settled: true,
        };

        assert_eq!(settled.longest(true), WATCHED_AGAIN);
        assert_eq!(settled.longest(false), AGAIN);
        let unsettled = Wait {
            is_settled: false,
            ..settled
        };
        assert_eq!(unsettled.longest(true), AGAIN);
        let failed = Wait {
            has_failed: true,
            ..settled
        };
        assert_eq!(failed.longest(true), PAUSE);
    }

    #[test]
    fn pause_grows_while_each_look_has_to_write() {
        let wrote = |has_written| {
            Ok(Publication {
                has_written,
                is_settled: true,
            })
        };

        let mut pause = PAUSE;
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            pause = pause_after(pause, &wrote(true));
            assert_eq!(pause, Duration::from_secs(seconds));
        }
        assert_eq!(
            pause_after(pause, &Err(PublishError::NotRead)),
            AGAIN,
            "a failure is no better"
        );
        assert_eq!(pause_after(pause, &wrote(false)), PAUSE);
    }
}
