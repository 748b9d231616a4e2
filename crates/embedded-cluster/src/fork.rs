//! Several writes as one, and snapshots to return to. A fork is a separate cluster with the same objects: writes are
//! tried in the fork, and this cluster sees none of them until all have succeeded.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::cluster::{Cluster, Inner};
use crate::crd;
use crate::object::Stored;
use crate::resource::{Registry, Resource};
use crate::state::is_given;
use crate::status::Status;
use crate::store::{Change, Clash, Happened, Objects, Store};
use crate::target::Options;

/// A cluster to try writes on, and the cluster that it was made from.
#[derive(Debug)]
pub struct Fork {
    of: Cluster,
    scratch: Cluster,
    base: u64,
}

/// All objects of a cluster at one version.
#[derive(Debug, Clone)]
pub struct Snapshot {
    version: u64,
    tables: HashMap<Arc<str>, Objects>,
    registry: Registry,
}

impl Cluster {
    /// A fork of the state as it is now, with the same hooks.
    pub fn fork(&self) -> Fork {
        let store: Store = self.0.store.read().fork();
        let base = store.version();
        let scratch = Cluster(Arc::new(Inner {
            options: Options {
                remembered_changes: usize::MAX,
                ..self.0.options.clone()
            },
            store: RwLock::new(store),
            registry: RwLock::new(self.0.registry.read().clone()),
            admission: RwLock::new(self.0.admission.read().clone()),
            webhooks: RwLock::new(self.0.webhooks.read().clone()),
        }));
        Fork {
            of: self.clone(),
            scratch,
            base,
        }
    }

    /// All objects at one version, with no write in between.
    pub fn snapshot(&self) -> Snapshot {
        let store = self.0.store.read();
        let (version, tables) = (store.version(), store.objects());
        drop(store);
        Snapshot {
            version,
            tables,
            registry: self.0.registry.read().clone(),
        }
    }

    /// Returns to a snapshot in one step, and returns the number of changes. Watches see changed objects deleted and
    /// added again, with their uid in the snapshot and a new version. An object without a change since then stays
    /// untouched.
    pub fn restore(&self, snapshot: &Snapshot) -> usize {
        let mut store = self.0.store.write();
        let changed = store.restore(&snapshot.tables);
        *self.0.registry.write() = snapshot.registry.clone();
        changed
    }
}

impl Fork {
    /// The cluster on which the writes are tried.
    pub fn cluster(&self) -> &Cluster {
        &self.scratch
    }

    /// Applies the changes of the fork at once, and returns their number. If the fork changed an object several
    /// times, watches see one change.
    ///
    /// # Errors
    ///
    /// 409 if an object that the fork changed has changed here since; nothing is applied then.
    pub fn commit(self) -> Result<usize, Status> {
        let scratch = self.scratch.0.store.read();
        let (end, changes) = (scratch.version(), scratch.net_changes());
        drop(scratch);
        let taken = self.of.0.store.write().take_over(self.base, end, &changes);
        taken.map_err(|Clash| {
            Status::apply_conflict("another client changed one of these objects at the same time")
        })?;
        self.of.follow_definitions(&changes)?;
        Ok(changes.len())
    }
}

impl Cluster {
    /// Starts or stops serving the custom resources whose definitions came or went with these changes.
    fn follow_definitions(&self, changes: &[(Arc<str>, Change)]) -> Result<(), Status> {
        let Ok(definitions) = self.resource("apiextensions.k8s.io", "customresourcedefinitions")
        else {
            return Ok(());
        };
        for (_, change) in changes
            .iter()
            .filter(|(table, _)| *table == definitions.table)
        {
            let resource = crd::resource(&change.object.value())?;
            let mut registry = self.0.registry.write();
            match change.happened {
                Happened::Deleted => registry.remove(&resource.group, &resource.plural),
                Happened::Added | Happened::Modified => registry.insert(resource),
            }
        }
        Ok(())
    }
}

impl Snapshot {
    /// The version of this state.
    pub fn resource_version(&self) -> u64 {
        self.version
    }

    /// The objects of a resource, by namespace and name.
    pub fn list(&self, resource: &Resource) -> impl Iterator<Item = &Arc<Stored>> {
        self.tables
            .get(&resource.table)
            .into_iter()
            .flat_map(|objects| objects.values())
    }

    /// Keeps only the namespaces and priority classes that every cluster has.
    #[must_use]
    pub fn only_given(mut self) -> Self {
        let kept: Vec<_> = [("", "namespaces"), ("scheduling.k8s.io", "priorityclasses")]
            .iter()
            .filter_map(|(group, plural)| self.registry.get(group, plural).cloned())
            .collect();
        self.tables.retain(|name, objects| {
            let Some(resource) = kept.iter().find(|resource| resource.table == *name) else {
                return false;
            };
            objects.retain(|_, object| is_given(&resource.plural, &object.value()));
            true
        });
        self.registry = Registry::built_in();
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::selector::Selector;
    use crate::target::{Target, Write};
    use crate::watch::{Event, Start, Watch};

    fn nodes(cluster: &Cluster, name: &str) -> Target {
        Target::object(&cluster.resource("", "nodes").unwrap(), "", name)
    }

    async fn make(cluster: &Cluster, name: &str) -> Arc<Stored> {
        let node = json!({ "metadata": { "name": name } });
        let target = nodes(cluster, name);
        let made = cluster.create(&target, node, &Write::default()).await;
        made.unwrap()
    }

    async fn label(cluster: &Cluster, name: &str, value: &str) {
        let patch = crate::Patch::parse(
            "application/merge-patch+json",
            json!({ "metadata": { "labels": { "a": value } } }),
        );
        let target = nodes(cluster, name);
        let changed = cluster
            .patch(&target, &patch.unwrap(), &Write::default())
            .await;
        changed.unwrap();
    }

    fn watch(cluster: &Cluster) -> Watch {
        let start = Start::After(cluster.resource_version());
        cluster
            .watch(&nodes(cluster, ""), Selector::default(), start)
            .unwrap()
    }

    fn told(watch: &mut Watch) -> Vec<(Happened, String, Value)> {
        let mut told = Vec::new();
        while let Some(event) = watch.try_next().unwrap() {
            if let Event::Object(happened, object) = event {
                let label = object.value()["metadata"]["labels"]["a"].clone();
                assert_eq!(
                    object.value()["metadata"]["resourceVersion"],
                    object.resource_version().to_string()
                );
                told.push((happened, object.name().to_owned(), label));
            }
        }
        told
    }

    #[tokio::test]
    async fn a_fork_is_seen_only_once_it_is_committed() {
        let cluster = Cluster::default();
        make(&cluster, "old").await;
        let mut watch = watch(&cluster);

        let fork = cluster.fork();
        make(fork.cluster(), "new").await;
        label(fork.cluster(), "new", "1").await;
        label(fork.cluster(), "old", "2").await;
        assert!(cluster.get(&nodes(&cluster, "new")).is_err());
        assert!(told(&mut watch).is_empty());
        assert_eq!(fork.commit().unwrap(), 2);

        assert_eq!(
            told(&mut watch),
            [
                (Happened::Added, "new".into(), json!("1")),
                (Happened::Modified, "old".into(), json!("2"))
            ]
        );
        make(&cluster, "later").await;
        assert_eq!(told(&mut watch).len(), 1);
    }

    #[tokio::test]
    async fn a_fork_that_was_overtaken_commits_beside_other_objects_only() {
        let cluster = Cluster::default();
        make(&cluster, "old").await;
        let (beside, against) = (cluster.fork(), cluster.fork());
        make(beside.cluster(), "new").await;
        label(against.cluster(), "old", "mine").await;
        make(against.cluster(), "other").await;
        label(&cluster, "old", "theirs").await;
        let mut watch = watch(&cluster);

        assert_eq!(against.commit().unwrap_err().code, 409);
        assert!(told(&mut watch).is_empty());
        assert_eq!(beside.commit().unwrap(), 1);

        let told = told(&mut watch);
        assert_eq!(told, [(Happened::Added, "new".into(), Value::Null)]);
    }

    #[tokio::test]
    async fn restore_brings_back_what_differs_and_touches_nothing_else() {
        let cluster = Cluster::default();
        let (same, changed) = (
            make(&cluster, "same").await,
            make(&cluster, "changed").await,
        );
        let start = cluster.snapshot();
        label(&cluster, "changed", "1").await;
        make(&cluster, "extra").await;
        let mut watch = watch(&cluster);

        assert_eq!(cluster.restore(&start), 3);

        let told = told(&mut watch);
        assert_eq!(
            told,
            [
                (Happened::Deleted, "changed".into(), json!("1")),
                (Happened::Deleted, "extra".into(), Value::Null),
                (Happened::Added, "changed".into(), Value::Null),
            ]
        );
        let now = cluster.get(&nodes(&cluster, "changed")).unwrap();
        assert_eq!(
            now.value()["metadata"]["uid"],
            changed.value()["metadata"]["uid"]
        );
        assert!(now.resource_version() > changed.resource_version());
        let untouched = cluster.get(&nodes(&cluster, "same")).unwrap();
        assert_eq!(untouched.resource_version(), same.resource_version());
        assert_eq!(cluster.restore(&start), 0, "it is there already");
    }

    #[tokio::test]
    async fn a_snapshot_of_what_is_given_empties_a_cluster() {
        let cluster = Cluster::default();
        make(&cluster, "n").await;
        let given = cluster.snapshot().only_given();

        assert_eq!(cluster.restore(&given), 1);

        let namespaces = cluster.resource("", "namespaces").unwrap();
        assert_eq!(cluster.snapshot().list(&namespaces).count(), 4);
    }
}
