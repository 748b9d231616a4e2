//! The API server's own rules, by kind: defaults, the parts of an object that a write may change, generations, and the few
//! validations that clients rely on.

use serde_json::{Value, json};

use crate::check::must_be_objects;
use crate::cluster::Cluster;
use crate::object::{default_to, meta, set, unset};
use crate::status::Status;
use crate::target::{Part, Target};
use crate::{crd, pod};

/// Prepares a new object, before any hook sees it.
pub(crate) fn prepare_create(
    cluster: &Cluster,
    target: &Target,
    object: &mut Value,
) -> Result<(), Status> {
    let resource = &target.resource;
    Cluster::stamp(target, object);
    let has_status = target.served()?.status;
    // A node may be created with its status; the status of other kinds is written later by a controller.
    if has_status && !resource.is_core("nodes") {
        unset(object, &["status"]);
    }
    if resource.custom {
        return crd::prepare(target, object);
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => pod::prepare_create(cluster, target, object)?,
        ("", "namespaces") => {
            set(object, &["status", "phase"], "Active".into());
            default_to(object, &["spec", "finalizers"], || json!(["kubernetes"]));
            let name = meta(object, "name").to_owned();
            set(
                object,
                &["metadata", "labels", "kubernetes.io/metadata.name"],
                name.into(),
            );
        }
        ("", "nodes" | "persistentvolumes" | "services") => {
            default_to(object, &["spec"], || json!({}))
        }
        ("", "secrets") => {
            default_to(object, &["type"], || "Opaque".into());
            texts_to_data(object);
        }
        ("", "events") => {
            default_to(object, &["type"], || "Normal".into());
        }
        ("scheduling.k8s.io", "priorityclasses") => {
            default_to(object, &["preemptionPolicy"], || {
                "PreemptLowerPriority".into()
            });
        }
        ("admissionregistration.k8s.io", _) => default_webhooks(object),
        ("apiextensions.k8s.io", "customresourcedefinitions") => crd::default_definition(object),
        _ => {}
    }
    Ok(())
}

/// Prepares an imported object: its own values are kept, and missing ones are filled in.
pub(crate) fn prepare_planted(
    cluster: &Cluster,
    target: &Target,
    object: &mut Value,
) -> Result<(), Status> {
    let given = object.clone();
    if target.resource.is_core("pods") {
        Cluster::stamp(target, object);
        pod::default_planted(cluster, target, object)?;
    } else {
        prepare_create(cluster, target, object)?;
    }
    if let Some(status) = given.get("status").filter(|status| status.is_object()) {
        set(object, &["status"], status.clone());
    }
    for name in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
    ] {
        if let Some(value) = given["metadata"].get(name).filter(|value| !value.is_null()) {
            set(object, &["metadata", name], value.clone());
        }
    }
    if target.resource.is_core("pods") {
        default_to(object, &["status", "phase"], || "Pending".into());
    }
    if target.resource.plural == "customresourcedefinitions" && !target.resource.custom {
        crd::establish(object)?;
    }
    Ok(())
}

/// Prepares the object after the hooks: fills in what they removed, and restores what they may not change.
pub(crate) fn prepare_admitted(
    cluster: &Cluster,
    target: &Target,
    object: &mut Value,
) -> Result<(), Status> {
    if target.resource.is_core("pods") {
        pod::default_spec(cluster, target, object)?;
    }
    if target.resource.custom {
        crd::prepare(target, object)?;
    }
    Ok(())
}

/// Prepares an object's next version: restores the parts that this write may not change, and counts generations.
pub(crate) fn prepare_update(target: &Target, old: &Value, new: &mut Value) -> Result<(), Status> {
    let resource = &target.resource;
    let has_status = target.served()?.status;
    match target.part {
        Part::Whole if has_status => keep(old, new, "status"),
        Part::Status => {
            for name in members(old, new) {
                if name != "status" && name != "metadata" {
                    keep(old, new, &name);
                }
            }
            if resource.custom {
                let fields = new["metadata"].get("managedFields").cloned();
                keep(old, new, "metadata");
                if let Some(fields) = fields {
                    set(new, &["metadata", "managedFields"], fields);
                }
            } else {
                for name in ["ownerReferences", "finalizers"] {
                    match old["metadata"].get(name) {
                        Some(value) => set(new, &["metadata", name], value.clone()),
                        None => unset(new, &["metadata", name]),
                    }
                }
            }
        }
        Part::EphemeralContainers => {
            let containers = new["spec"]["ephemeralContainers"].clone();
            *new = old.clone();
            if !containers.is_null() {
                set(new, &["spec", "ephemeralContainers"], containers);
            }
        }
        Part::Resize => {
            let (containers, init) = (
                new["spec"]["containers"].clone(),
                new["spec"]["initContainers"].clone(),
            );
            *new = old.clone();
            pod::resize(new, &containers, "containers");
            pod::resize(new, &init, "initContainers");
        }
        Part::Finalize => {
            let finalizers = new["spec"]["finalizers"].clone();
            *new = old.clone();
            set(new, &["spec", "finalizers"], finalizers);
        }
        Part::Whole | Part::Internal => {}
    }
    if resource.custom {
        crd::prepare(target, new)?;
    }
    if resource.is_core("pods") {
        pod::default_but_priority(new);
    }
    if resource.is_core("secrets") {
        texts_to_data(new);
    }
    if resource.group == "admissionregistration.k8s.io" {
        default_webhooks(new);
    }
    if resource.plural == "customresourcedefinitions" && !resource.custom {
        crd::default_definition(new);
    }
    if (resource.generation || resource.custom) && differs_but_for_status(old, new) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
        set(new, &["metadata", "generation"], generation.into());
    }
    // An object that is on its way out takes no new finalizer.
    if !meta(old, "deletionTimestamp").is_empty() {
        let had = |name: &Value| {
            old["metadata"]["finalizers"]
                .as_array()
                .is_some_and(|had| had.contains(name))
        };
        if let Some(new_one) = new["metadata"]["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|name| !had(name))
        {
            let why = format!(
                "Forbidden: no new finalizers can be added if the object is being deleted, found new {new_one}"
            );
            return Err(target.invalid("metadata.finalizers", why));
        }
    }
    Ok(())
}

/// Validates a version of an object.
pub(crate) fn validate(target: &Target, object: &Value) -> Result<(), Status> {
    if target.resource.custom {
        return crd::validate(target, object);
    }
    match (
        target.resource.group.as_str(),
        target.resource.plural.as_str(),
    ) {
        ("", "pods") => pod::validate(target, object),
        ("", "nodes" | "services" | "resourcequotas") | ("apps", _) => {
            must_be_objects(target, object, &["spec", "status"])
        }
        ("scheduling.k8s.io", "priorityclasses")
            if !object["value"].is_null() && !object["value"].is_i64() =>
        {
            Err(Status::bad_request("value is not an integer"))
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            crd::validate_definition(target, object)
        }
        ("admissionregistration.k8s.io", _) => must_be_array(object, "webhooks"),
        _ => Ok(()),
    }
}

/// Validates the change from an object's last version to its next.
pub(crate) fn validate_update(target: &Target, old: &Value, new: &Value) -> Result<(), Status> {
    let resource = &target.resource;
    if resource.is_core("pods") {
        return pod::validate_update(target, old, new);
    }
    let fixed: &[&str] = match (resource.group.as_str(), resource.plural.as_str()) {
        ("scheduling.k8s.io", "priorityclasses") => &["value", "preemptionPolicy"],
        ("", "secrets") => &["type"],
        _ => &[],
    };
    for field in fixed {
        if old[*field] != new[*field] {
            return Err(target.invalid(field, "Invalid value: field is immutable"));
        }
    }
    let frozen = old["immutable"] == Value::Bool(true)
        && (old["data"] != new["data"] || new["immutable"] != old["immutable"]);
    if frozen && (resource.is_core("configmaps") || resource.is_core("secrets")) {
        return Err(target.invalid(
            "data",
            "Forbidden: field is immutable when `immutable` is set",
        ));
    }
    Ok(())
}

/// Refuses to delete the few objects that every cluster keeps.
pub(crate) fn check_deletable(target: &Target) -> Result<(), Status> {
    let kept = (target.resource.is_core("namespaces")
        && matches!(
            target.name.as_str(),
            "default" | "kube-system" | "kube-public"
        ))
        || (target.resource.plural == "priorityclasses" && target.name.starts_with("system-"));
    if kept {
        return Err(target.forbidden("this object may not be deleted"));
    }
    Ok(())
}

/// Whether a finalizer holds the object.
pub(crate) fn is_held(object: &Value) -> bool {
    object["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|finalizers| !finalizers.is_empty())
}

/// Whether an object that was marked for deletion has nothing left to wait for.
pub(crate) fn is_released(cluster: &Cluster, target: &Target, object: &Value) -> bool {
    if meta(object, "deletionTimestamp").is_empty() || is_held(object) {
        return false;
    }
    if target.resource.is_core("namespaces") {
        // Marking a namespace does not remove it: the write that empties it does.
        return object["status"]["phase"] == "Terminating" && !target.name.is_empty() && {
            let marked_before = cluster
                .find(target)
                .is_some_and(|there| !meta(&there.value(), "deletionTimestamp").is_empty());
            marked_before && cluster.is_namespace_empty(&target.name)
        };
    }
    object["metadata"]["deletionGracePeriodSeconds"]
        .as_i64()
        .unwrap_or(0)
        == 0
}

fn must_be_array(object: &Value, name: &str) -> Result<(), Status> {
    if object[name].is_null() || object[name].is_array() {
        Ok(())
    } else {
        Err(Status::bad_request(format!("{name} is not a list")))
    }
}

fn keep(old: &Value, new: &mut Value, name: &str) {
    match old.get(name) {
        Some(value) => set(new, &[name], value.clone()),
        None => unset(new, &[name]),
    }
}

fn members(old: &Value, new: &Value) -> Vec<String> {
    let names = |value: &Value| {
        value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect::<Vec<_>>()
    };
    let mut all = names(old);
    all.extend(names(new));
    all.sort_unstable();
    all.dedup();
    all
}

fn differs_but_for_status(old: &Value, new: &Value) -> bool {
    members(old, new)
        .iter()
        .any(|name| name != "status" && name != "metadata" && old[name] != new[name])
}

/// `stringData` is a way to write `data`.
fn texts_to_data(secret: &mut Value) {
    let Some(Value::Object(texts)) = secret
        .as_object_mut()
        .and_then(|secret| secret.remove("stringData"))
    else {
        return;
    };
    for (key, text) in texts {
        let encoded = base64(text.as_str().unwrap_or_default().as_bytes());
        set(secret, &["data", &key], encoded.into());
    }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4_usize {
            let index = (bits >> (18 - 6 * at)) & 63;
            let letter = LETTERS.get(index as usize).copied().map_or('=', char::from);
            text.push(if at <= three.len() { letter } else { '=' });
        }
    }
    text
}

fn default_webhooks(configuration: &mut Value) {
    for webhook in configuration
        .get_mut("webhooks")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        default_to(webhook, &["failurePolicy"], || "Fail".into());
        default_to(webhook, &["matchPolicy"], || "Equivalent".into());
        default_to(webhook, &["timeoutSeconds"], || 10.into());
        default_to(webhook, &["namespaceSelector"], || json!({}));
        default_to(webhook, &["objectSelector"], || json!({}));
        if webhook["clientConfig"]["service"].is_object() {
            default_to(webhook, &["clientConfig", "service", "port"], || 443.into());
        }
        let rules = webhook.get_mut("rules").and_then(Value::as_array_mut);
        for rule in rules.into_iter().flatten() {
            default_to(rule, &["scope"], || "*".into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_as_the_standard_says() {
        for (text, encoded) in [
            ("", ""),
            ("a", "YQ=="),
            ("ab", "YWI="),
            ("abc", "YWJj"),
            ("hunter2?", "aHVudGVyMj8="),
        ] {
            assert_eq!(base64(text.as_bytes()), encoded);
        }
    }
}
