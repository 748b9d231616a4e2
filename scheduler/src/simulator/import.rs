//! The contents of `POST /api/v1/import`, and the way into the cluster: through a fork, so that all of it is applied or
//! nothing.

use embedded_cluster::{Cluster, Part, Patch, Resource, Status, Target, Write};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::sync::Arc;

use super::Refusal;
use super::kinds::{KINDS, Kind};

/// How often an import is tried while other clients change the same objects.
const TRIES: usize = 5;

/// The objects and the configuration to take over.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Import {
    /// `None` if the current one stays.
    pub configuration: Option<Value>,
    /// Whether objects that cannot be taken over are skipped, with a line in the log, instead of ending the import.
    pub lenient: bool,
    objects: Vec<(Kind, Value)>,
}

/// The treatment of existing objects that the import does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Merge {
    /// They stay.
    #[default]
    Keep,
    /// They are deleted, except for those that every cluster has.
    Replace,
}

impl Import {
    /// The objects of this kind, by namespace and name.
    pub(super) fn names(&self, kind: &Kind) -> BTreeSet<(String, String)> {
        let text = |object: &Value, path: &str| {
            let text = object.pointer(path).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let of_kind = self.objects.iter().filter(|(of, _)| of.key == kind.key);
        of_kind
            .map(|(_, object)| {
                let namespace = text(object, "/metadata/namespace");
                (namespace, text(object, "/metadata/name"))
            })
            .collect()
    }

    /// These objects and no configuration.
    pub(super) fn of(objects: Vec<(Kind, Value)>, lenient: bool) -> Self {
        Self {
            configuration: None,
            lenient,
            objects,
        }
    }

    /// The objects, in the order in which they are taken over.
    pub(super) fn into_objects(self) -> Vec<(Kind, Value)> {
        self.objects
    }

    /// Reads an export. Lists may be missing or null; other keys are ignored.
    ///
    /// # Errors
    ///
    /// The part that has the wrong type.
    pub fn read(value: Value) -> Result<Self, Refusal> {
        let wrong =
            |what: String| Refusal::Unreadable(format!("the import cannot be read: {what}"));
        let Value::Object(mut fields) = value else {
            return Err(wrong(format!(
                "it is {}, not an object such as {{\"nodes\":[],\"pods\":[]}}",
                type_of(&value)
            )));
        };
        let configuration = match fields.remove("schedulerConfig") {
            None | Some(Value::Null) => None,
            Some(configuration @ Value::Object(_)) => Some(configuration),
            Some(other) => {
                return Err(wrong(format!(
                    "schedulerConfig is {}, not an object",
                    type_of(&other)
                )));
            }
        };
        let mut objects = Vec::new();
        for kind in KINDS {
            let list = match fields.remove(kind.key) {
                None | Some(Value::Null) => continue,
                Some(Value::Array(list)) => list,
                Some(other) => {
                    return Err(wrong(format!(
                        "{} is {}, not a list",
                        kind.key,
                        type_of(&other)
                    )));
                }
            };
            for (at, object) in list.into_iter().enumerate() {
                let metadata = object.get("metadata").is_some_and(Value::is_object);
                if !metadata {
                    return Err(wrong(format!(
                        "{}[{at}] is not an object with metadata",
                        kind.key
                    )));
                }
                for name in ["name", "namespace", "resourceVersion"] {
                    let field = object.pointer(&format!("/metadata/{name}"));
                    let field = field.unwrap_or(&Value::Null);
                    if !field.is_null() && !field.is_string() {
                        return Err(wrong(format!(
                            "{}[{at}].metadata.{name} is {}, not a text",
                            kind.key,
                            type_of(field)
                        )));
                    }
                }
                objects.push((kind, object));
            }
        }
        Ok(Self {
            configuration,
            lenient: false,
            objects,
        })
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Takes the objects over, and returns the number of changes.
pub(super) async fn apply(
    cluster: &Cluster,
    import: &Import,
    merge: Merge,
) -> Result<usize, Refusal> {
    for attempt in 1.. {
        let fork = cluster.fork();
        if merge == Merge::Replace {
            let given = cluster.snapshot().only_given();
            fork.cluster().restore(&given);
        }
        for (kind, object) in &import.objects {
            if kind.is_given(text(object, "name")) {
                continue;
            }
            if let Err(status) = put(fork.cluster(), kind, object).await {
                if !import.lenient {
                    return Err(named(kind, object, status));
                }
                let name = text(object, "name");
                tracing::warn!(kind = kind.plural, name, %status, "not taken over");
            }
        }
        match fork.commit() {
            Ok(changes) => return Ok(changes),
            Err(status) if status.code == 409 && attempt < TRIES => {}
            Err(status) => return Err(status.into()),
        }
    }
    unreachable!("the loop ends by itself")
}

fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    let metadata = object.get("metadata");
    metadata
        .and_then(|metadata| metadata.get(name)?.as_str())
        .unwrap_or_default()
}

/// The refusal with the name of its object.
fn named(kind: &Kind, object: &Value, mut status: Status) -> Refusal {
    let (namespace, name) = (text(object, "namespace"), text(object, "name"));
    let slash = if namespace.is_empty() { "" } else { "/" };
    status.message = format!(
        "nothing was imported: {} {namespace}{slash}{name}: {}",
        kind.plural, status.message
    );
    status.into()
}

/// Creates or changes one object, with its status.
pub(super) async fn put(cluster: &Cluster, kind: &Kind, object: &Value) -> Result<(), Status> {
    let resource = kind.resource(cluster)?;
    let mut object = object.clone();
    if let Some(metadata) = fields_mut(&mut object, "/metadata") {
        for name in ["uid", "managedFields", "creationTimestamp", "selfLink"] {
            metadata.remove(name);
        }
        let homeless = metadata
            .get("namespace")
            .and_then(Value::as_str)
            .is_none_or(str::is_empty);
        if resource.namespaced && homeless {
            metadata.insert("namespace".into(), "default".into());
        }
        if !resource.namespaced {
            metadata.remove("namespace");
        }
    }
    if kind.key == "pvs" {
        follow_claim(cluster, &mut object)?;
    }
    let write = Write {
        field_manager: "simulator".into(),
        force: true,
        ..Write::default()
    };
    let target = Target::object(&resource, text(&object, "namespace"), text(&object, "name"));
    let status = object.as_object_mut().and_then(|fields| {
        let creates = kind.key == "nodes" && cluster.get(&target).is_err();
        if creates {
            None
        } else {
            fields.remove("status")
        }
    });
    if target.name.is_empty() {
        // The creation of an object must not name a version.
        drop_field(&mut object, "resourceVersion");
        let made = cluster.create(&target, object, &write).await?;
        return put_status(cluster, &resource, &made.value(), status, &write).await;
    }
    if cluster.get(&target).is_err() {
        drop_field(&mut object, "resourceVersion");
    }
    let stored = cluster
        .patch(&target, &Patch::Apply(object), &write)
        .await?;
    put_status(cluster, &resource, &stored.value(), status, &write).await
}

fn fields_mut<'a>(object: &'a mut Value, path: &str) -> Option<&'a mut Map<String, Value>> {
    object.pointer_mut(path)?.as_object_mut()
}

fn drop_field(object: &mut Value, name: &str) {
    if let Some(metadata) = fields_mut(object, "/metadata") {
        metadata.remove(name);
    }
}

async fn put_status(
    cluster: &Cluster,
    resource: &Arc<Resource>,
    stored: &Value,
    status: Option<Value>,
    write: &Write,
) -> Result<(), Status> {
    let Some(status) = status.filter(|status| status.as_object().is_some_and(|s| !s.is_empty()))
    else {
        return Ok(());
    };
    if stored.get("status") == Some(&status) {
        return Ok(());
    }
    let target = Target::object(resource, text(stored, "namespace"), text(stored, "name"));
    let mut whole = stored.clone();
    if let Some(fields) = whole.as_object_mut() {
        fields.insert("status".into(), status);
    }
    cluster
        .update(&target.part(Part::Status), whole, write)
        .await?;
    Ok(())
}

/// A bound volume names its claim by uid; the uid is replaced by the claim's uid in this cluster.
fn follow_claim(cluster: &Cluster, volume: &mut Value) -> Result<(), Status> {
    let phase = volume.pointer("/status/phase");
    let bound = phase.is_some_and(|phase| phase == "Bound");
    let Some(claim) = fields_mut(volume, "/spec/claimRef") else {
        return Ok(());
    };
    let field = |claim: &Map<String, Value>, name: &str| {
        claim
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let claims = cluster.resource("", "persistentvolumeclaims")?;
    let target = Target::object(&claims, &field(claim, "namespace"), &field(claim, "name"));
    claim.remove("resourceVersion");
    match cluster.get(&target) {
        Ok(there) if bound => {
            let there = there.value();
            claim.insert("uid".into(), text(&there, "uid").into());
        }
        // The uid of another cluster's claim would keep this cluster's claim from being bound.
        _ => drop(claim.remove("uid")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(value: Value) -> String {
        Import::read(value).unwrap_err().to_string()
    }

    #[test]
    fn a_wrong_type_is_refused_with_its_place() {
        assert!(refused(json!([])).contains("it is a list"));
        assert!(refused(json!({ "pods": {} })).contains("pods is an object, not a list"));
        assert!(refused(json!({ "pods": [{ "metadata": {} }, 3] })).contains("pods[1]"));
        assert!(
            refused(json!({ "nodes": [{ "metadata": { "name": 3 } }] }))
                .contains("nodes[0].metadata.name is a number")
        );
        assert!(refused(json!({ "schedulerConfig": "x" })).contains("schedulerConfig is a text"));
        assert_eq!(
            Import::read(json!({ "pods": null, "schedulerConfig": null, "else": 1 })).unwrap(),
            Import::default()
        );
    }
}
