//! The scheduling loop's writes to the cluster: bindings, conditions, nominations, evictions, events and result
//! annotations. The loop decides what to write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use embedded_cluster::{
    Cluster, Compact, DeleteOptions, Part, Resource, Status, Stored, Target, Write,
};
use kube_api::allocation;
use kube_api::object;
use kube_api::vendor::Vendors;
use parking_lot::Mutex;
use scheduling::compact::Pool;
use scheduling::cycle::{Failed, Placed, Victims};
use scheduling::devices::Devices;
use scheduling::model::Pod;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::results::{Drafts, Prefix, Results};
use super::volumes;

/// The loop's user name.
const OURSELVES: &str = "system:kube-scheduler";

/// How the loop writes its results.
#[derive(Debug, Clone, Default)]
pub struct Scheduling {
    /// The prefix of the result annotations.
    pub prefix: Prefix,
    /// The vendors whose shared devices are known; without it no device is.
    pub vendors: Option<Arc<Vendors>>,
    /// Whether results and events are left out. Pods then get their node or their condition, and nothing else is written.
    pub terse: bool,
}

/// Writes to one cluster.
#[derive(Debug)]
pub(super) struct Writer {
    cluster: Cluster,
    pods: Arc<Resource>,
    nodes: Arc<Resource>,
    events: Arc<Resource>,
    write: Write,
    prefix: Prefix,
    terse: bool,
    vendors: Option<Arc<Vendors>>,
    /// Texts that results share.
    pool: Mutex<Pool>,
}

impl Writer {
    pub(super) fn new(cluster: &Cluster, scheduling: &Scheduling) -> Result<Self, Status> {
        Ok(Self {
            cluster: cluster.clone(),
            pods: cluster.resource("", "pods")?,
            nodes: cluster.resource("", "nodes")?,
            events: cluster.resource("", "events")?,
            write: Write {
                field_manager: "kube-scheduler".into(),
                user: OURSELVES.into(),
                ..Write::default()
            },
            prefix: scheduling.prefix,
            terse: scheduling.terse,
            vendors: scheduling.vendors.clone(),
            pool: Mutex::default(),
        })
    }

    fn target(&self, key: &str) -> Target {
        let (namespace, name) = key.split_once('/').unwrap_or(("default", key));
        Target::object(&self.pods, namespace, name)
    }

    /// The pod's current object, if it is still the same pod and waits for a node.
    pub(super) fn pending(&self, pod: &Pod) -> Option<Arc<Stored>> {
        let there = self.cluster.get(&self.target(&pod.key)).ok()?;
        is_pending(&there.bare(), &pod.uid).then_some(there)
    }

    /// The objects of these nodes.
    pub(super) fn nodes<'n>(&self, names: impl Iterator<Item = &'n str>) -> Vec<Value> {
        let get = |name| self.cluster.get(&Target::object(&self.nodes, "", name));
        names
            .filter_map(|name| get(name).ok())
            .map(|node| node.value())
            .collect()
    }

    /// The objects of these victims.
    pub(super) fn pods(&self, victims: &Victims) -> Vec<Value> {
        let pods = victims.pods.iter();
        pods.filter_map(|pod| self.cluster.get(&self.target(&pod.key)).ok())
            .map(|pod| pod.value())
            .collect()
    }

    /// Gives the pod its node, with its results; `by_us` unless an extender has already bound it.
    pub(super) async fn bound(
        &self,
        there: &Stored,
        placed: &Placed,
        devices: &Devices,
        results: &Drafts<'_>,
        by_us: bool,
    ) -> Result<(), Status> {
        let pod = there.bare();
        let target = self.target(&key(&pod));
        let mut written = BTreeMap::new();
        let mut labels = BTreeMap::new();
        if let (Some(placement), Some(vendors)) = (&placed.devices, &self.vendors) {
            let typed = object::Pod::deserialize(&pod)
                .map_err(|error| Status::internal(format!("the pod cannot be read: {error}")))?;
            let node = devices.cluster().node(&placement.node);
            let given = allocation::write(&typed, placement, node, vendors, nanoseconds());
            written = given.annotations;
            labels.extend(given.labels);
        }
        if let Some(work) = &placed.volumes {
            let namespace = text(&pod, "/metadata/namespace");
            volumes::bind(&self.cluster, &namespace, &placed.node, work, &self.write).await?;
        }
        if by_us {
            let binding = json!({
                "metadata": {
                    "name": text(&pod, "/metadata/name"),
                    "namespace": text(&pod, "/metadata/namespace"),
                    "uid": text(&pod, "/metadata/uid"),
                    "annotations": written,
                    "labels": labels,
                },
                "target": { "apiVersion": "v1", "kind": "Node", "name": &*placed.node },
            });
            let results = |pod: &mut Value, beside: &mut Option<_>| {
                self.put_results(pod, beside, results);
                Ok(())
            };
            let bound = self
                .cluster
                .bind_with(&target, binding, &self.write, results);
            bound.await?;
        } else {
            self.change(
                &target,
                &text(&pod, "/metadata/uid"),
                |pod, beside: &mut _| {
                    put_annotations(pod, &written);
                    self.put_results(pod, beside, results);
                },
            )?;
        }
        let message = format!("Successfully assigned {} to {}", key(&pod), placed.node);
        self.event(&pod, "Normal", "Scheduled", &message).await;
        Ok(())
    }

    /// Writes that the pod found no node, and why; `node` is being freed for it.
    pub(super) async fn refused(
        &self,
        there: &Stored,
        failed: &Failed,
        node: Option<&str>,
        results: &Drafts<'_>,
    ) {
        let pod = there.bare();
        let change = |pod: &mut Value, beside: &mut Option<_>| {
            if !is_pending(pod, &text(pod, "/metadata/uid")) {
                return;
            }
            self.put_results(pod, beside, results);
            put_condition(pod, failed);
            if let Some(status) = fields_mut(pod, "status") {
                match node {
                    Some(node) => drop(status.insert("nominatedNodeName".into(), node.into())),
                    None => drop(status.remove("nominatedNodeName")),
                }
            }
        };
        let target = self.target(&key(&pod));
        match self.change(&target, &text(&pod, "/metadata/uid"), change) {
            Ok(()) => {
                let reason = "FailedScheduling";
                self.event(&pod, "Warning", reason, &failed.message).await;
            }
            Err(status) if status.code == 404 => {}
            Err(status) => {
                tracing::warn!(pod = key(&pod), %status, "why it is not scheduled could not be written");
            }
        }
    }

    /// Deletes the victims, to make room for the pod.
    pub(super) async fn evict(&self, pod: &Pod, victims: &Victims) {
        for victim in &victims.pods {
            let target = self.target(&victim.key);
            let Ok(there) = self.cluster.get(&target) else {
                continue;
            };
            let options = DeleteOptions {
                uid: Some(victim.uid.to_string()),
                ..DeleteOptions::default()
            };
            let message = format!("Preempted by pod {} on node {}", pod.uid, victims.node);
            let object = there.bare();
            match self.cluster.delete(&target, &options, &self.write).await {
                Ok(_) => self.event(&object, "Normal", "Preempted", &message).await,
                Err(status) => tracing::warn!(pod = %victim.key, %status, "not evicted"),
            }
        }
    }

    /// Changes the pod of this uid.
    fn change(
        &self,
        target: &Target,
        uid: &str,
        change: impl Fn(&mut Value, &mut Option<Arc<dyn Compact>>),
    ) -> Result<(), Status> {
        let target = target.clone().part(Part::Internal);
        let changed = self.cluster.change(&target, &self.write, |pod, beside| {
            if text(pod, "/metadata/uid") == uid {
                change(pod, beside);
            }
            Ok(())
        });
        changed.map(drop)
    }

    /// Stores the results of a try beside the pod, replacing those of earlier tries. Values that the new results do not
    /// contain stay, as text.
    fn put_results(
        &self,
        pod: &mut Value,
        beside: &mut Option<Arc<dyn Compact>>,
        results: &Drafts<'_>,
    ) {
        if self.terse {
            return;
        }
        let before = beside.take();
        let earlier = before.as_deref().and_then(Results::beside);
        let mut pool = self.pool.lock();
        let made = Results::of(self.prefix, &annotations(pod), earlier, results, &mut pool);
        drop(pool);
        let left = earlier.filter(|earlier| !earlier.keys().iter().all(|key| made.has(key)));
        if let Some(annotations) = annotations_mut(pod) {
            for (key, value) in left.into_iter().flat_map(Compact::render) {
                annotations.insert(key, value.into());
            }
            annotations.retain(|key, _| !made.has(key));
        }
        *beside = Some(Arc::new(made));
    }

    /// Writes an event about the pod. If an event with the same text exists, its count grows.
    async fn event(&self, pod: &Value, kind: &str, reason: &str, message: &str) {
        if self.terse {
            return;
        }
        let namespace = text(pod, "/metadata/namespace");
        let (name, uid) = (text(pod, "/metadata/name"), text(pod, "/metadata/uid"));
        let digest = digest(&[&uid, reason, message]);
        let short: String = name.chars().take(230).collect();
        let target = Target::object(&self.events, &namespace, &format!("{short}.{digest:016x}"));
        let time = jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string();
        let written = match self.cluster.get(&target) {
            Ok(there) => {
                let mut event = there.value();
                let count = event.get("count").and_then(Value::as_u64).unwrap_or(1) + 1;
                if let Some(fields) = event.as_object_mut() {
                    fields.insert("count".into(), count.into());
                    fields.insert("lastTimestamp".into(), time.into());
                }
                self.cluster.update(&target, event, &self.write).await
            }
            Err(_) => {
                let scheduler = text(pod, "/spec/schedulerName");
                let event = json!({
                    "metadata": { "name": target.name, "namespace": namespace },
                    "involvedObject": {
                        "apiVersion": "v1", "kind": "Pod", "name": name, "namespace": namespace, "uid": uid,
                    },
                    "type": kind, "reason": reason, "message": message, "count": 1,
                    "firstTimestamp": time, "lastTimestamp": time,
                    "source": { "component": scheduler }, "reportingComponent": scheduler, "reportingInstance": "",
                });
                self.cluster.create(&target, event, &self.write).await
            }
        };
        if let Err(status) = written {
            tracing::debug!(%status, pod = name, reason, "an event was not written");
        }
    }
}

fn is_pending(pod: &Value, uid: &str) -> bool {
    let metadata = |name: &str| text(pod, &format!("/metadata/{name}"));
    metadata("uid") == uid
        && metadata("deletionTimestamp").is_empty()
        && text(pod, "/spec/nodeName").is_empty()
}

fn text(object: &Value, path: &str) -> String {
    let text = object.pointer(path).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

fn key(pod: &Value) -> String {
    format!(
        "{}/{}",
        text(pod, "/metadata/namespace"),
        text(pod, "/metadata/name")
    )
}

fn annotations(pod: &Value) -> Map<String, Value> {
    let annotations = pod.pointer("/metadata/annotations");
    annotations
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default()
}

/// A field of an object, created if it is missing.
fn fields_mut<'a>(object: &'a mut Value, name: &str) -> Option<&'a mut Map<String, Value>> {
    let part = object
        .as_object_mut()?
        .entry(name)
        .or_insert_with(|| json!({}));
    part.as_object_mut()
}

fn annotations_mut(pod: &mut Value) -> Option<&mut Map<String, Value>> {
    fields_mut(pod.get_mut("metadata")?, "annotations")
}

fn put_annotations(pod: &mut Value, written: &BTreeMap<String, String>) {
    for (key, value) in written {
        if let Some(annotations) = annotations_mut(pod) {
            annotations.insert(key.clone(), value.as_str().into());
        }
    }
}

/// Sets `PodScheduled` to false, with the reason. The transition time stays if it was false before.
fn put_condition(pod: &mut Value, failed: &Failed) {
    let now = jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    let Some(status) = fields_mut(pod, "status") else {
        return;
    };
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else {
        return;
    };
    let mut condition = json!({
        "type": "PodScheduled", "status": "False", "reason": failed.reason, "message": failed.message,
        "lastProbeTime": null, "lastTransitionTime": now,
    });
    match conditions
        .iter_mut()
        .find(|of| text(of, "/type") == "PodScheduled")
    {
        Some(there) => {
            let since = there.get("lastTransitionTime").cloned();
            if let (Some(since), Some(fields), "False") = (
                since,
                condition.as_object_mut(),
                text(there, "/status").as_str(),
            ) {
                fields.insert("lastTransitionTime".into(), since);
            }
            *there = condition;
        }
        None => conditions.push(condition),
    }
}

fn nanoseconds() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// A hash of these texts (FNV-1a).
fn digest(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
