//! The environment that admission gives a container: the GPUs that it sees, and the library that keeps its limits. Only
//! changes the patch; variables that a pod sets itself were checked before.

use kube_api::keys;
use kube_api::object::{Container, EnvVar, Pod};
use kube_api::shares::template;
use placement::Request;
use serde_json::{Value, json};

use crate::checks::{PRELOAD, VISIBLE_DEVICES};
use crate::patch::Patch;
use crate::place::At;
use crate::settings::{Agent, Settings};

/// The vendor whose GPUs the library supports.
pub(crate) const NVIDIA: &str = "NVIDIA";

/// Adds the environment of containers besides their amounts.
pub(crate) fn inject(
    settings: &Settings,
    pod: &Pod,
    object: &Value,
    request: &Request,
    patch: &mut Patch<'_>,
) {
    // The request lists its containers in the same order.
    let containers: Vec<(At, &Container)> = At::of(pod).collect();
    let has = |index: usize| {
        let by_claim = |(_, container): &(At, &Container)| template::is_used(pod, container);
        gets_gpu(request, index) || containers.get(index).is_some_and(by_claim)
    };
    if !(0..containers.len()).any(has) {
        return;
    }
    for (index, (at, container)) in containers.iter().copied().enumerate() {
        if !has(index) {
            hide_devices(patch, at);
            continue;
        }
        // Variables from `envFrom` are invisible here. They override the node agent's, and variables in `env` override
        // them.
        let unseen = at
            .value(object)
            .get("envFrom")
            .and_then(Value::as_array)
            .is_some_and(|sources| !sources.is_empty());
        if settings.devices_by_annotation {
            set_variable(patch, at, VISIBLE_DEVICES, &reference(&container.name));
        } else if unseen && settings.agent == Agent::Ours {
            hide_devices(patch, at);
        }
        let always = settings.always_preload || settings.agent == Agent::None;
        preload(&settings.library, patch, at, always);
    }
}

/// Whether the container at `index` gets a GPU that the library supports, or may get one.
pub(crate) fn gets_gpu(request: &Request, index: usize) -> bool {
    let may_get_any = request
        .any
        .as_deref()
        .filter(|any| (any.families.iter()).any(|family| family.vendor.as_str() == NVIDIA));
    let mut wishes = may_get_any.into_iter().flat_map(|any| &any.wishes);
    if wishes.any(|wish| wish.container == index) {
        return true;
    }
    request.containers.get(index).is_some_and(|container| {
        container
            .asks
            .iter()
            .any(|ask| ask.count > 0 && ask.vendor.as_str() == NVIDIA)
    })
}

/// Puts the library before the other libraries that the pod preloads. Where the pod preloads none, the library is set
/// only if `always` says so.
fn preload(library: &str, patch: &mut Patch<'_>, at: At, always: bool) {
    let index = at.index.to_string();
    let env = ["spec", at.list, index.as_str(), "env"];
    let set: Vec<(usize, String)> = patch
        .get(&env)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .enumerate()
        .filter(|(_, variable)| variable.get("name").is_some_and(|name| name == PRELOAD))
        .map(|(place, variable)| {
            let value = variable.get("value").and_then(Value::as_str);
            (place, value.unwrap_or_default().to_owned())
        })
        .collect();
    if set.is_empty() && always {
        let variable = json!({ "name": PRELOAD, "value": library });
        patch.append(&env, variable);
    }
    for (place, value) in set {
        let place = place.to_string();
        let path = ["spec", at.list, index.as_str(), "env", &place, "value"];
        patch.set(&path, json!(first(library, &value)));
    }
}

/// Whether this variable is the reference that admission sets for the node agent to fill.
pub(crate) fn is_own_reference(container: &Container, variable: &EnvVar) -> bool {
    variable.name == VISIBLE_DEVICES
        && variable
            .value_from
            .as_ref()
            .and_then(|from| from.pointer("/fieldRef/fieldPath"))
            .is_some_and(|path| *path == field_path(&container.name))
}

/// The last variable of a name; it is the one that counts.
fn variable<'p>(patch: &'p Patch<'_>, at: At, name: &str) -> Option<(usize, &'p Value)> {
    let index = at.index.to_string();
    patch
        .get(&["spec", at.list, &index, "env"])?
        .as_array()?
        .iter()
        .enumerate()
        .rfind(|(_, variable)| variable.get("name").is_some_and(|its| its == name))
}

/// Sets the variable: the last one of its name is replaced if it differs.
pub(crate) fn set_variable(patch: &mut Patch<'_>, at: At, name: &str, wanted: &Value) {
    let index = at.index.to_string();
    let path = ["spec", at.list, index.as_str(), "env"];
    let Some((place, is)) = variable(patch, at, name) else {
        return patch.append(&path, wanted.clone());
    };
    if says(is) == says(wanted) {
        return;
    }
    let place = place.to_string();
    let value_only = is.get("valueFrom").is_none() && wanted.get("valueFrom").is_none();
    let path = ["spec", at.list, &index, "env", &place, "value"];
    match wanted.get("value") {
        Some(value) if value_only => patch.set(&path, value.clone()),
        _ => patch.set(path.get(..5).unwrap_or(&path), wanted.clone()),
    }
}

/// The content of a variable: its value, or the field that it refers to. The API server adds to the latter the version
/// of the object that is meant.
fn says(variable: &Value) -> (&str, Option<&Value>) {
    let value = variable.get("value").and_then(Value::as_str);
    let from = variable.get("valueFrom").filter(|from| !from.is_null());
    let field = from.map(|from| from.pointer("/fieldRef/fieldPath").unwrap_or(from));
    (value.unwrap_or_default(), field)
}

/// Makes all GPUs invisible to a container that does not set the variable itself. A value that it sets was checked
/// before.
pub(crate) fn hide_devices(patch: &mut Patch<'_>, at: At) {
    if variable(patch, at, VISIBLE_DEVICES).is_none() {
        let void = json!({ "name": VISIBLE_DEVICES, "value": "void" });
        set_variable(patch, at, VISIBLE_DEVICES, &void);
    }
}

fn field_path(container: &str) -> String {
    format!(
        "metadata.annotations['{}']",
        keys::visible_devices(container)
    )
}

fn reference(container: &str) -> Value {
    json!({
        "name": VISIBLE_DEVICES,
        "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": field_path(container) } },
    })
}

/// A list of libraries that starts with ours, once. The dynamic linker accepts spaces as well as colons.
fn first(library: &str, value: &str) -> String {
    let mut names = value.split([':', ' ']).filter(|name| !name.is_empty());
    if names.next() == Some(library) {
        return value.to_owned();
    }
    let others = value
        .split([':', ' '])
        .filter(|name| !name.is_empty() && *name != library);
    let all: Vec<&str> = std::iter::once(library).chain(others).collect();
    all.join(":")
}

/// Tells cluster autoscalers whether the pod may be evicted to remove its node; what the pod says itself stays.
pub(crate) fn say_evictable(safe: Option<bool>, patch: &mut Patch<'_>) {
    let Some(safe) = safe else { return };
    let known = [keys::SAFE_TO_EVICT, keys::DO_NOT_DISRUPT];
    if known
        .iter()
        .any(|key| patch.get(&["metadata", "annotations", key]).is_some())
    {
        return;
    }
    let text = if safe { "true" } else { "false" };
    patch.set(
        &["metadata", "annotations", keys::SAFE_TO_EVICT],
        json!(text),
    );
    if !safe {
        patch.set(
            &["metadata", "annotations", keys::DO_NOT_DISRUPT],
            json!("true"),
        );
    }
}
