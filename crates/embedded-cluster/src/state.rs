//! Import and export of whole states: `{"nodes":[…],"pods":[…],"resourceQuotas":[…]}` and other kinds by their names.

use serde_json::{Map, Value, json};

use crate::cluster::Cluster;
use crate::object::{meta, metadata_mut};
use crate::status::Status;
use crate::target::{ListOptions, Target};

/// Kinds that a state may contain under a key other than their plural.
const SPELLINGS: [(&str, &str); 10] = [
    ("resourceQuotas", "resourcequotas"),
    ("priorityClasses", "priorityclasses"),
    ("storageClasses", "storageclasses"),
    ("podDisruptionBudgets", "poddisruptionbudgets"),
    ("configMaps", "configmaps"),
    ("daemonSets", "daemonsets"),
    ("pvs", "persistentvolumes"),
    ("pvcs", "persistentvolumeclaims"),
    ("customResourceDefinitions", "customresourcedefinitions"),
    ("serviceAccounts", "serviceaccounts"),
];

impl Cluster {
    /// Adds every object of a state, with its status, without admission hooks, and returns their number. Either all are
    /// added or none: an object that cannot be read, or that exists already, leaves the cluster as it was. Only custom
    /// resource definitions, which come first, may stay. Missing namespaces of the objects are created.
    pub fn import(&self, state: &Value) -> Result<usize, Status> {
        let Value::Object(state) = state else {
            return Err(Status::bad_request(
                "the state is not an object such as {\"nodes\":[],\"pods\":[],\"resourceQuotas\":[]}",
            ));
        };
        let mut count = 0;
        // Definitions come first, because other keys may use the kinds that they define.
        for definitions in [true, false] {
            let mut planned = Vec::new();
            for (key, objects) in state {
                if (plural_of(key) == "customresourcedefinitions") != definitions {
                    continue;
                }
                let objects = match objects {
                    Value::Array(objects) => objects,
                    // Go prints an empty list as null.
                    Value::Null => continue,
                    _ => return Err(Status::bad_request(format!("{key} is not a list"))),
                };
                let resource = self.resource_of_key(key)?;
                planned.extend(objects.iter().map(|object| (resource.clone(), object)));
            }
            count += self.plant_all(&planned)?;
        }
        Ok(count)
    }

    fn resource_of_key(
        &self,
        key: &str,
    ) -> Result<std::sync::Arc<crate::resource::Resource>, Status> {
        let plural = plural_of(key);
        let found = self
            .resources()
            .into_iter()
            .find(|resource| resource.plural == plural);
        found.ok_or_else(|| Status::bad_request(format!("{key}: no kind of that name is known")))
    }

    /// Every object, under the keys that [`Cluster::import`] reads. Kinds without objects are left out, except nodes,
    /// pods and quotas. Objects that every cluster has are left out.
    pub fn export(&self) -> Value {
        let mut state = Map::new();
        for key in ["nodes", "pods", "resourceQuotas"] {
            state.insert(key.into(), json!([]));
        }
        for resource in self.resources() {
            let Ok(listed) = self.list(&Target::collection(&resource, ""), &ListOptions::default())
            else {
                continue;
            };
            let spelling = SPELLINGS
                .iter()
                .find(|(_, plural)| *plural == resource.plural);
            let key = spelling.map_or(resource.plural.as_str(), |(key, _)| *key);
            let objects = listed
                .items
                .iter()
                .map(|object| object.value())
                .filter(|object| !is_given(&resource.plural, object));
            let objects: Vec<Value> = objects
                .map(|mut object| {
                    if let Some(metadata) = metadata_mut(&mut object) {
                        metadata.remove("resourceVersion");
                        metadata.remove("managedFields");
                    }
                    object
                })
                .collect();
            // Two groups can show one table.
            if !objects.is_empty() && resource.group != "events.k8s.io" {
                state.insert(key.to_owned(), objects.into());
            }
        }
        Value::Object(state)
    }
}

fn plural_of(key: &str) -> String {
    let known = SPELLINGS.iter().find(|(spelling, _)| *spelling == key);
    known.map_or(key, |(_, plural)| plural).to_lowercase()
}

pub(crate) fn is_given(plural: &str, object: &Value) -> bool {
    let name = meta(object, "name");
    match plural {
        "namespaces" => name == "default" || name.starts_with("kube-"),
        "priorityclasses" => name.starts_with("system-"),
        _ => false,
    }
}
