//! Objects that exist before the cluster starts. They pass no hooks; all of them are added or none.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::object::check_name;
use crate::resource::Resource;
use crate::status::Status;
use crate::store::Expect;
use crate::target::Target;
use crate::{crd, kinds};

impl Cluster {
    pub(crate) fn add_what_every_cluster_has(&self) {
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            self.plant("", "namespaces", json!({ "metadata": { "name": name } }));
        }
        for (name, value) in [
            ("system-cluster-critical", 2_000_000_000),
            ("system-node-critical", 2_000_001_000),
        ] {
            let class = json!({ "metadata": { "name": name }, "value": value, "preemptionPolicy": "PreemptLowerPriority" });
            self.plant("scheduling.k8s.io", "priorityclasses", class);
        }
    }

    pub(crate) fn plant(&self, group: &str, plural: &str, object: Value) {
        let planted = self
            .resource(group, plural)
            .and_then(|resource| self.plant_all(&[(resource, &object)]));
        if let Err(status) = planted {
            tracing::error!(%status, plural, "not planted");
        }
    }

    /// Adds objects unchanged, without hooks, as if they had existed before the cluster. All of them are added or
    /// none.
    pub(crate) fn plant_all(&self, objects: &[(Arc<Resource>, &Value)]) -> Result<usize, Status> {
        let mut planned = Vec::with_capacity(objects.len());
        let mut namespaces = Vec::new();
        for (resource, object) in objects {
            let mut target = Target::collection(resource, "");
            let mut object = self.identify(&mut target, (*object).clone())?;
            check_name(resource, &target.name)?;
            kinds::prepare_planted(self, &target, &mut object)?;
            kinds::validate(&target, &object)?;
            self.check_amounts(&target, &object)?;
            if target.resource.namespaced && !namespaces.contains(&target.namespace) {
                namespaces.push(target.namespace.clone());
            }
            planned.push((target, object));
        }
        let home = self.resource("", "namespaces")?;
        for namespace in namespaces {
            let target = Target::object(&home, "", &namespace);
            let named = planned
                .iter()
                .any(|(other, _)| other.resource == home && other.name == namespace);
            if !named && self.find(&target).is_none() {
                let mut object = self.identify(
                    &mut target.clone(),
                    json!({ "metadata": { "name": namespace } }),
                )?;
                kinds::prepare_planted(self, &target, &mut object)?;
                planned.push((target, object));
            }
        }
        let mut store = self.0.store.write();
        let mut keys = std::collections::HashSet::new();
        planned.retain(|(target, _)| {
            // Objects that every cluster has may be in the state too.
            !(matches!(
                target.resource.plural.as_str(),
                "namespaces" | "priorityclasses"
            ) && store.get(&target.resource.table, &target.key()).is_some())
        });
        for (target, _) in &planned {
            let key = (target.resource.table.clone(), target.key());
            if store.get(&key.0, &key.1).is_some() || !keys.insert(key) {
                return Err(Status::already_exists(
                    &target.resource.group,
                    &target.resource.plural,
                    &target.name,
                ));
            }
        }
        for (target, object) in &mut planned {
            let put = store.put(
                &target.resource,
                &target.key(),
                Expect::Absent,
                object,
                None,
            );
            drop(put.expect("its key was free, and the lock is held"));
        }
        drop(store);
        for (target, object) in &planned {
            if target.resource.plural == "customresourcedefinitions" && !target.resource.custom {
                self.0.registry.write().insert(crd::resource(object)?);
            }
        }
        Ok(planned.len())
    }
}
