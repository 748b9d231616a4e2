//! The scheduler's view of the cluster: watches of every kind that a plugin uses, the snapshot that they keep up to
//! date, and the events for the queue.

use std::sync::Arc;

use embedded_cluster::{
    Cluster, Event as Told, Happened, Selector, Start, Status, Stored, Target, Watch,
};
use futures_util::future::select_all;
use scheduling::model::{Node, Pod};
use scheduling::queue::{Event, Queue};
use scheduling::snapshot::{Kind, Snapshot};

/// The kind of object that a watch delivers.
#[derive(Debug, Clone, Copy)]
enum WatchedKind {
    Nodes,
    Pods,
    Others(Kind, Option<Event>),
}

/// Group, plural, kind of object. Pods come last, so that the objects that they name are known before.
const WATCHED: [(&str, &str, WatchedKind); 13] = {
    use Event::{Claim, CsiNode, Namespace, StorageClass, Volume};
    use WatchedKind::{Nodes, Others, Pods};
    [
        (
            "scheduling.k8s.io",
            "priorityclasses",
            Others(Kind::PriorityClass, None),
        ),
        ("", "namespaces", Others(Kind::Namespace, Some(Namespace))),
        (
            "storage.k8s.io",
            "storageclasses",
            Others(Kind::StorageClass, Some(StorageClass)),
        ),
        (
            "storage.k8s.io",
            "csinodes",
            Others(Kind::CsiNode, Some(CsiNode)),
        ),
        (
            "",
            "persistentvolumes",
            Others(Kind::PersistentVolume, Some(Volume)),
        ),
        (
            "",
            "persistentvolumeclaims",
            Others(Kind::PersistentVolumeClaim, Some(Claim)),
        ),
        (
            "policy",
            "poddisruptionbudgets",
            Others(Kind::PodDisruptionBudget, None),
        ),
        ("", "services", Others(Kind::Service, None)),
        (
            "",
            "replicationcontrollers",
            Others(Kind::ReplicationController, None),
        ),
        ("apps", "replicasets", Others(Kind::ReplicaSet, None)),
        ("apps", "statefulsets", Others(Kind::StatefulSet, None)),
        ("", "nodes", Nodes),
        ("", "pods", Pods),
    ]
};

/// The watches and the snapshot.
#[derive(Debug)]
pub(super) struct SnapshotFeed {
    watches: Vec<(WatchedKind, Watch)>,
    pub(super) snapshot: Snapshot,
    /// Only pods of these schedulers enter the queue.
    schedulers: Vec<Arc<str>>,
}

impl SnapshotFeed {
    pub(super) fn open(
        cluster: &Cluster,
        snapshot: Snapshot,
        schedulers: Vec<Arc<str>>,
    ) -> Result<Self, Status> {
        let mut watches = Vec::new();
        for (group, plural, watched) in WATCHED {
            let target = Target::collection(&cluster.resource(group, plural)?, "");
            let watch = cluster.watch(&target, Selector::default(), Start::Now)?;
            watches.push((watched, watch));
        }
        Ok(Self {
            watches,
            snapshot,
            schedulers,
        })
    }

    /// Processes everything that has happened. Fails if a watch fell behind the changes that the cluster keeps.
    pub(super) fn catch_up(&mut self, queue: &mut Queue, now: u64) -> Result<(), Status> {
        for at in 0..self.watches.len() {
            while let Some((watched, watch)) = self.watches.get_mut(at)
                && let Some(event) = watch.try_next()?
            {
                let watched = *watched;
                self.take(watched, &event, queue, now);
            }
        }
        Ok(())
    }

    /// Waits until something happens. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<(usize, Told), Status> {
        let each = self
            .watches
            .iter_mut()
            .map(|(_, watch)| Box::pin(watch.next()));
        let (event, at, _) = select_all(each).await;
        Ok((at, event?))
    }

    /// Processes an event from [`SnapshotFeed::next`].
    pub(super) fn take_next(&mut self, at: usize, event: &Told, queue: &mut Queue, now: u64) {
        if let Some((watched, _)) = self.watches.get(at) {
            self.take(*watched, event, queue, now);
        }
    }

    fn take(&mut self, watched: WatchedKind, event: &Told, queue: &mut Queue, now: u64) {
        let Told::Object(happened, object) = event else {
            return;
        };
        let gone = *happened == Happened::Deleted;
        match watched {
            WatchedKind::Pods => self.pod(object, gone, queue, now),
            WatchedKind::Nodes => self.node(object, gone, queue, now),
            WatchedKind::Others(kind, happening) => {
                if gone {
                    self.snapshot
                        .remove_object(kind, object.namespace(), object.name());
                } else if let Err(error) = self.snapshot.set_object(kind, &object.value()) {
                    tracing::warn!(%error, "an object cannot be parsed and is ignored");
                }
                if let Some(happening) = happening {
                    queue.event(happening, now);
                }
            }
        }
    }

    fn node(&mut self, object: &Stored, gone: bool, queue: &mut Queue, now: u64) {
        if gone {
            self.snapshot.remove_node(object.name());
            queue.event(Event::NodeRemoved, now);
            return;
        }
        let node = match self.snapshot.read_node(&object.value()) {
            Ok(node) => node,
            Err(error) => {
                tracing::warn!(%error, "a node that cannot be read takes no pods");
                return;
            }
        };
        let before = self.snapshot.node_named(object.name());
        let events = node_events(before.map(|state| state.node()), &node);
        self.snapshot.set_node(node);
        for event in events {
            queue.event(event, now);
        }
    }

    fn pod(&mut self, object: &Stored, gone: bool, queue: &mut Queue, now: u64) {
        let key = format!("{}/{}", object.namespace(), object.name());
        if gone {
            return self.forget(&key, queue, now);
        }
        let value = object.bare();
        let pod = match self.snapshot.read_pod(&value) {
            Ok(pod) => pod,
            Err(error) => {
                tracing::warn!(%error, "a pod that cannot be read is not scheduled");
                return self.forget(&key, queue, now);
            }
        };
        if pod.ended {
            return self.forget(&key, queue, now);
        }
        let node = self.snapshot.names().text(pod.node).to_owned();
        if !node.is_empty() {
            let held = match self.snapshot.devices().held(&value) {
                Ok(held) => held,
                Err(error) => {
                    tracing::warn!(pod = key, %error, "what the pod holds of shared devices cannot be read");
                    None
                }
            };
            let devices = self.snapshot.devices_mut();
            match held {
                Some(placement) => devices.reserve(&pod, placement),
                None => drop(devices.release(&pod)),
            }
            let events = pod_events(self.snapshot.pod(&key), &pod);
            self.snapshot.assign(Arc::new(pod), &node);
            queue.remove(&key);
            for event in events {
                queue.event(event, now);
            }
            return;
        }
        if pod.terminating || !self.schedulers.contains(&pod.scheduler) {
            queue.remove(&key);
            self.snapshot.clear_nomination(&key);
            return;
        }
        let pod = Arc::new(pod);
        let nominated = self.snapshot.names().text(pod.nominated).to_owned();
        if nominated.is_empty() {
            self.snapshot.clear_nomination(&key);
        } else {
            self.snapshot.nominate(pod.clone(), &nominated);
        }
        queue.update(pod, now);
    }

    /// A pod is gone, has ended, or cannot be parsed.
    fn forget(&mut self, key: &str, queue: &mut Queue, now: u64) {
        queue.remove(key);
        self.snapshot.clear_nomination(key);
        if let Some(pod) = self.snapshot.remove_pod(key) {
            self.snapshot.devices_mut().release(&pod);
            queue.event(Event::PodRemoved, now);
        }
    }
}

/// The changes of a node for which a pod may be placed.
fn node_events(before: Option<&Node>, node: &Node) -> Vec<Event> {
    let Some(before) = before else {
        return vec![Event::NodeAdded];
    };
    let tainted = |of: &Node| (of.taints.clone(), of.unschedulable);
    let offered = |of: &Node| (of.allocatable.clone(), of.allowed_pods);
    [
        (before.labels != node.labels, Event::NodeLabels),
        (tainted(before) != tainted(node), Event::NodeTaints),
        (offered(before) != offered(node), Event::NodeAllocatable),
        (before.devices != node.devices, Event::NodeDevices),
    ]
    .into_iter()
    .filter_map(|(differs, event)| differs.then_some(event))
    .collect()
}

/// The changes of a pod that has a node.
fn pod_events(before: Option<&Arc<Pod>>, pod: &Pod) -> Vec<Event> {
    let Some(before) = before else {
        return vec![Event::PodAssigned];
    };
    [
        (before.labels != pod.labels, Event::PodLabels),
        (before.requests != pod.requests, Event::PodScaledDown),
    ]
    .into_iter()
    .filter_map(|(differs, event)| differs.then_some(event))
    .collect()
}
