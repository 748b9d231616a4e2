//! Checks for every object, whatever its kind.

use serde_json::Value;

use crate::compact::Beside;
use crate::object::{Stored, meta, metadata_mut, set, unset};
use crate::resource::Resource;
use crate::selector::Selector;
use crate::status::Status;
use crate::target::{DeleteOptions, Target};

/// Checks that `metadata` has the types that Kubernetes gives it.
pub(crate) fn check_metadata(target: &Target, object: &Value) -> Result<(), Status> {
    let metadata = &object["metadata"];
    for name in [
        "name",
        "namespace",
        "generateName",
        "uid",
        "resourceVersion",
    ] {
        if !(metadata[name].is_null() || metadata[name].is_string()) {
            return Err(Status::bad_request(format!(
                "metadata.{name} is not a text"
            )));
        }
    }
    for name in ["labels", "annotations"] {
        let texts = match &metadata[name] {
            Value::Null => true,
            Value::Object(map) => map
                .values()
                .all(|value| value.is_string() || value.is_null()),
            _ => false,
        };
        if !texts {
            return Err(Status::bad_request(format!(
                "metadata.{name} is not a map of texts"
            )));
        }
    }
    check_size(target, object, &None)
}

/// Checks that all annotations of an object, including the compact ones, take at most 256 KiB.
pub(crate) fn check_size(target: &Target, object: &Value, beside: &Beside) -> Result<(), Status> {
    let text: usize = object["metadata"]["annotations"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    let compact = beside.as_ref().map_or(0, |compact| compact.size());
    if text + compact > 256 << 10 {
        return Err(target.invalid(
            "metadata.annotations",
            "Too long: may not be more than 262144 bytes",
        ));
    }
    Ok(())
}

pub(crate) fn check_fields(resource: &Resource, selector: &Selector) -> Result<(), Status> {
    let known = |path: &str| {
        matches!(path, "metadata.name" | "metadata.namespace")
            || resource.fields.iter().any(|field| **field == *path)
    };
    match selector.field_paths().find(|path| !known(path)) {
        None => Ok(()),
        Some(path) => Err(Status::bad_request(format!(
            "field label not supported: {path}"
        ))),
    }
}

pub(crate) fn check_preconditions(
    target: &Target,
    options: &DeleteOptions,
    object: &Value,
) -> Result<(), Status> {
    for (what, asked, field) in [
        ("UID", &options.uid, "uid"),
        (
            "ResourceVersion",
            &options.resource_version,
            "resourceVersion",
        ),
    ] {
        let there = meta(object, field);
        if let Some(asked) = asked.as_deref().filter(|asked| *asked != there) {
            return Err(target.conflict(format!(
                "Precondition failed: {what} in precondition: {asked}, {what} in object meta: {there}"
            )));
        }
    }
    Ok(())
}

/// Checks that an update is for the existing object, and for the version that the client read.
pub(crate) fn check_same_object(
    target: &Target,
    current: &Stored,
    old: &Value,
    new: &mut Value,
) -> Result<(), Status> {
    let Some(metadata) = metadata_mut(new) else {
        return Err(Status::bad_request(
            "the result is not an object with metadata",
        ));
    };
    let text = |name: &str| {
        metadata
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let version = text("resourceVersion");
    if !version.is_empty() && version != "0" && version != current.resource_version().to_string() {
        return Err(target.conflict(
            "the object has been modified; please apply your changes to the latest version and try again",
        ));
    }
    let (uid, there) = (text("uid"), meta(old, "uid"));
    if !uid.is_empty() && uid != there {
        return Err(target.conflict(format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {there}"
        )));
    }
    if text("name") != meta(old, "name") || text("namespace") != meta(old, "namespace") {
        return Err(target.invalid("metadata.name", "Invalid value: field is immutable"));
    }
    if new["kind"] != old["kind"] || new["apiVersion"] != old["apiVersion"] {
        return Err(Status::bad_request("kind and apiVersion cannot be changed"));
    }
    check_metadata(target, new)?;
    for name in [
        "uid",
        "creationTimestamp",
        "resourceVersion",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
    ] {
        match old["metadata"].get(name) {
            Some(value) => set(new, &["metadata", name], value.clone()),
            None => unset(new, &["metadata", name]),
        }
    }
    Ok(())
}

/// Refuses an object in which one of these fields is present and not an object.
pub(crate) fn must_be_objects(
    target: &Target,
    object: &Value,
    names: &[&str],
) -> Result<(), Status> {
    match names
        .iter()
        .find(|name| !(object[**name].is_null() || object[**name].is_object()))
    {
        Some(name) => Err(Status::bad_request(format!(
            "{}: {name} is not an object",
            target.resource.kind
        ))),
        None => Ok(()),
    }
}
