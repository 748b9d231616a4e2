//! The `scale` subresource: the number of replicas that an object wants, in the same form for every kind.

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::managed::How;
use crate::object::{meta, set};
use crate::patch::Patch;
use crate::status::Status;
use crate::target::{Part, Target, Write};

pub(crate) fn read(cluster: &Cluster, target: &Target) -> Result<Value, Status> {
    scale_of(target, &cluster.get(target)?.value())
}

pub(crate) async fn update(
    cluster: &Cluster,
    target: &Target,
    scale: &Value,
    write: &Write,
) -> Result<Value, Status> {
    change(cluster, target, write, |_| Ok(scale.clone())).await
}

pub(crate) async fn patch(
    cluster: &Cluster,
    target: &Target,
    patch: &Patch,
    write: &Write,
) -> Result<Value, Status> {
    change(cluster, target, write, |scale| {
        patch.to(&target.resource, &scale)
    })
    .await
}

async fn change(
    cluster: &Cluster,
    target: &Target,
    write: &Write,
    wanted: impl Fn(Value) -> Result<Value, Status>,
) -> Result<Value, Status> {
    let target = target.clone().part(Part::Whole);
    let path = path(&target, "specReplicasPath")?;
    let stored = cluster
        .modify(&target, write, How::Update, |object| {
            let scale = wanted(scale_of(&target, object)?)?;
            let replicas = match &scale["spec"]["replicas"] {
                Value::Null => 0,
                value => value
                    .as_i64()
                    .filter(|replicas| *replicas >= 0)
                    .ok_or_else(|| {
                        target.invalid(
                            "spec.replicas",
                            format!(
                                "Invalid value: {value}: must be a number that is not negative"
                            ),
                        )
                    })?,
            };
            let mut new = object.clone();
            let steps: Vec<&str> = path.split('.').collect();
            set(&mut new, &steps, replicas.into());
            set(
                &mut new,
                &["metadata", "resourceVersion"],
                meta(&scale, "resourceVersion").into(),
            );
            Ok(new)
        })
        .await?;
    scale_of(&target, &stored.value())
}

fn scale_of(target: &Target, object: &Value) -> Result<Value, Status> {
    let at = |path: &str| path.split('.').fold(object, |value, name| &value[name]);
    let replicas = |name: &str| path(target, name).map(|path| at(&path).as_i64().unwrap_or(0));
    let selector = match path(target, "labelSelectorPath").map(|path| at(&path).clone()) {
        Ok(Value::String(text)) => text,
        Ok(Value::Object(selector)) => {
            let labels = selector
                .get("matchLabels")
                .and_then(Value::as_object)
                .into_iter()
                .flatten();
            labels
                .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
                .collect::<Vec<_>>()
                .join(",")
        }
        _ => String::new(),
    };
    let metadata = &object["metadata"];
    Ok(json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": { "replicas": replicas("specReplicasPath")? },
        "status": { "replicas": replicas("statusReplicasPath")?, "selector": selector },
    }))
}

fn path(target: &Target, name: &str) -> Result<String, Status> {
    let scale = target.served()?.scale.as_ref();
    let path = scale
        .and_then(|scale| scale[name].as_str())
        .ok_or_else(Status::no_such_path)?;
    Ok(path.trim_start_matches('.').to_owned())
}
