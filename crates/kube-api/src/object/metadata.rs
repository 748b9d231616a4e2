//! An object's metadata without `managedFields`: vgpu does not read it, and it is most of the object.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Deserializer};

/// Reads the fields of [`ObjectMeta`] except `managedFields`. Null counts as absent, as in Go.
pub(super) fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let read = Option::<Metadata>::deserialize(deserializer)?.unwrap_or_default();
    Ok(ObjectMeta {
        annotations: read.annotations.map(or_empty),
        creation_timestamp: read.creation_timestamp,
        deletion_grace_period_seconds: read.deletion_grace_period_seconds,
        deletion_timestamp: read.deletion_timestamp,
        finalizers: read.finalizers,
        generate_name: read.generate_name,
        generation: read.generation,
        labels: read.labels.map(or_empty),
        managed_fields: None,
        name: read.name,
        namespace: read.namespace,
        owner_references: read.owner_references,
        resource_version: read.resource_version,
        self_link: None,
        uid: read.uid,
    })
}

type Texts = BTreeMap<String, Option<String>>;

fn or_empty(texts: Texts) -> BTreeMap<String, String> {
    texts
        .into_iter()
        .map(|(key, text)| (key, text.unwrap_or_default()))
        .collect()
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    annotations: Option<Texts>,
    creation_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    generate_name: Option<String>,
    generation: Option<i64>,
    labels: Option<Texts>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    uid: Option<String>,
}
