//! Does what a cluster's volume controller and provisioners do for a bound pod: claims get the volumes that the
//! scheduler chose, and a volume is created for a claim whose class creates them on demand. There is no storage behind
//! it.

use embedded_cluster::{Cluster, Part, Reason, Status, Stored, Target, Write};
use scheduling::cycle::VolumeWork;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Binds the claims of a pod, and creates the missing volumes on its node.
pub(super) async fn bind(
    cluster: &Cluster,
    namespace: &str,
    node: &str,
    work: &VolumeWork,
    write: &Write,
) -> Result<(), Status> {
    for (claim, volume) in &work.bind {
        let claim = find(cluster, "persistentvolumeclaims", namespace, claim)?;
        let volume = find(cluster, "persistentvolumes", "", volume)?;
        join(cluster, &claim, &volume, write).await?;
    }
    for claim in &work.provision {
        let claim = find(cluster, "persistentvolumeclaims", namespace, claim)?;
        let volumes = cluster.resource("", "persistentvolumes")?;
        let made = made_for(&claim.value(), node);
        let name = text(&made, "/metadata/name").to_owned();
        let target = Target::object(&volumes, "", &name);
        let volume = match cluster.create(&target, made, write).await {
            Ok(volume) => volume,
            // An earlier try created it.
            Err(status) if status.reason == Reason::AlreadyExists => cluster.get(&target)?,
            Err(status) => return Err(status),
        };
        join(cluster, &claim, &volume, write).await?;
    }
    Ok(())
}

fn find(
    cluster: &Cluster,
    plural: &str,
    namespace: &str,
    name: &str,
) -> Result<Arc<Stored>, Status> {
    cluster.get(&Target::object(
        &cluster.resource("", plural)?,
        namespace,
        name,
    ))
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// A volume as a provisioner creates it.
fn made_for(claim: &Value, node: &str) -> Value {
    let spec = |name: &str| {
        claim
            .pointer(&format!("/spec/{name}"))
            .cloned()
            .unwrap_or_default()
    };
    json!({
        "metadata": {
            "name": format!("pvc-{}", text(claim, "/metadata/uid")),
        },
        "spec": {
            "capacity": { "storage": spec("resources/requests/storage") },
            "accessModes": spec("accessModes"),
            "storageClassName": spec("storageClassName"),
            "persistentVolumeReclaimPolicy": "Delete",
            "hostPath": { "path": format!("/simulated/{node}") },
        },
    })
}

/// Makes the volume name its claim, and the claim its volume.
async fn join(
    cluster: &Cluster,
    claim: &Stored,
    volume: &Stored,
    write: &Write,
) -> Result<(), Status> {
    let (mut claim, mut volume) = (claim.value(), volume.value());
    let reference = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": text(&claim, "/metadata/namespace"), "name": text(&claim, "/metadata/name"),
        "uid": text(&claim, "/metadata/uid"),
    });
    let name = text(&volume, "/metadata/name").to_owned();
    put(&mut volume, "spec", "claimRef", reference);
    put(&mut volume, "status", "phase", "Bound".into());
    put(&mut claim, "spec", "volumeName", name.into());
    put(&mut claim, "status", "phase", "Bound".into());
    for (plural, object) in [
        ("persistentvolumes", volume),
        ("persistentvolumeclaims", claim),
    ] {
        let resource = cluster.resource("", plural)?;
        let (namespace, name) = (
            text(&object, "/metadata/namespace"),
            text(&object, "/metadata/name"),
        );
        let target = Target::object(&resource, namespace, name).part(Part::Internal);
        cluster.update(&target, object, write).await?;
    }
    Ok(())
}

fn put(object: &mut Value, part: &str, name: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        let part = fields
            .entry(part)
            .or_insert_with(|| Value::Object(Map::new()));
        if let Some(part) = part.as_object_mut() {
            part.insert(name.to_owned(), value);
        }
    }
}
