//! Pods that ask by hcs.io's resource names: amounts of `ai.compute/*` that an API server would refuse become amounts
//! that it accepts, and the pod gets what its vendor's driver and runtime need. Which device the pod gets is decided
//! elsewhere.

use std::collections::BTreeMap;

use kube_api::config::ImageRule;
use kube_api::hcs::rules::{Rules, maker_of};
use kube_api::hcs::{error, keys};
use kube_api::hcs_request::{self as request, Asked, Preferences};
use kube_api::object::{Container, EnvVar, Pod};
use kube_api::quantity::Quantity;
use kube_api::vendor::{Role, Row, Vendors};
use placement::exchange::Maker;
use serde_json::{Value, json};

use crate::denied::Denied;
use crate::inject::set_variable;
use crate::patch::Patch;
use crate::place::At;
use crate::settings::{Agent, Settings};

/// A container of such a pod, and its request.
type Asking = (At, Asked);

/// Whether the container uses hcs.io's resource names.
pub(crate) fn concerns(container: &Container, vendors: &Vendors) -> bool {
    let needs = &container.resources;
    needs
        .limits
        .keys()
        .chain(needs.requests.keys())
        .any(|name| request::is_resource(name, vendors))
}

/// Rewrites the pod's amounts, in `pod` and in `patch`, and adds what its vendors need. Says whether the pod takes
/// devices of several vendors.
pub(crate) fn admit(
    vendors: &Vendors,
    settings: &Settings,
    pod: &mut Pod,
    object: &Value,
    patch: &mut Patch<'_>,
) -> Result<bool, Denied> {
    let Some(rules) = vendors.hcs() else {
        return Ok(false);
    };
    let mut asking: Vec<Asking> = Vec::new();
    for (at, container) in At::of(pod) {
        request::refuse_conflict(container, vendors)?;
        if let Some(asked) = request::asked(container, vendors)? {
            asking.push((at, asked));
        }
    }
    if asking.is_empty() {
        return Ok(false);
    }
    let preferences = request::preferences(pod, &rules.config)?;
    let rows = acceptable(vendors, preferences, &asking);
    let Some(first) = rows.first() else {
        return Err(Denied::pod(
            format!("metadata.annotations[{}]", keys::VENDOR_PREFERENCE),
            format!(
                "{}: no device of this vendor is configured in this cluster; name another vendor, or ask the operator \
                 for its section in the device configuration",
                error::VENDOR_NOT_SUPPORTED
            ),
        ));
    };
    let only = maker_of(&first.word)
        .filter(|maker| (rows.iter()).all(|row| maker_of(&row.word) == Some(*maker)));
    equalise(vendors, &asking, pod, patch)?;
    add_vendor_limits(&rows, &asking, pod, patch);
    inject(rules, settings, &rows, only, &asking, pod, object, patch)?;
    Ok(only.is_none())
}

/// The families of devices that the pod accepts.
fn acceptable<'v>(
    vendors: &'v Vendors,
    preferences: Preferences,
    asking: &[Asking],
) -> Vec<&'v Row> {
    let only = asking.iter().find_map(|(_, asked)| asked.only);
    vendors
        .iter()
        .filter(|row| {
            maker_of(&row.word).is_some_and(|maker| match only {
                Some(only) => only == maker,
                None => preferences.tier(maker).is_some(),
            })
        })
        .collect()
}

/// Makes limits equal to requests, as the API server requires. A limit above its request is kept in an annotation.
fn equalise(
    vendors: &Vendors,
    asking: &[Asking],
    pod: &mut Pod,
    patch: &mut Patch<'_>,
) -> Result<(), Denied> {
    let mut bursts: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for (at, _) in asking {
        let index = at.index.to_string();
        let Some(container) = at.mut_in(pod) else {
            continue;
        };
        let name_of_container = container.name.clone();
        let needs = &mut container.resources;
        let names: Vec<String> = needs
            .limits
            .keys()
            .chain(needs.requests.keys())
            .filter(|name| request::is_resource(name, vendors))
            .cloned()
            .collect();
        for name in names {
            let Some(request) = needs
                .requests
                .get(&name)
                .or(needs.limits.get(&name))
                .cloned()
            else {
                continue;
            };
            if let Some(limit) = needs.limits.get(&name)
                && let (Ok(most), Ok(least)) = (limit.parse(), request.parse())
            {
                if most.nano() < least.nano() {
                    return Err(Denied::container(
                        &name_of_container,
                        format!("resources.limits[{name}]"),
                        format!(
                            "{limit} is below the request of {request}; write the same or more"
                        ),
                    ));
                }
                if most.nano() > least.nano() {
                    bursts
                        .entry(name_of_container.clone())
                        .or_default()
                        .insert(name.clone(), limit.0.clone());
                }
            }
            for (kind, amounts) in [
                ("limits", &mut needs.limits),
                ("requests", &mut needs.requests),
            ] {
                if amounts.get(&name) == Some(&request) {
                    continue;
                }
                // A request that is left out equals the limit.
                if kind == "requests" && !amounts.contains_key(&name) {
                    continue;
                }
                let path = ["spec", at.list, &index, "resources", kind, &name];
                patch.set(&path, json!(request.0));
                amounts.insert(name.clone(), request.clone());
            }
        }
    }
    let path = ["metadata", "annotations", keys::BURST_LIMITS];
    if !bursts.is_empty() && patch.get(&path).is_none() {
        patch.set(&path, json!(json!(bursts).to_string()));
    }
    Ok(())
}

/// The count that each vendor's device plugin expects. A kubelet ignores counts of devices that its node does not have.
fn add_vendor_limits(rows: &[&Row], asking: &[Asking], pod: &mut Pod, patch: &mut Patch<'_>) {
    for (at, asked) in asking {
        let index = at.index.to_string();
        let count = Quantity::from(u64::from(asked.demand.devices.max(1)));
        let Some(container) = at.mut_in(pod) else {
            continue;
        };
        for name in rows.iter().filter_map(|row| row.resource(Role::Count)) {
            if container.resources.limits.contains_key(name) {
                continue;
            }
            let path = ["spec", at.list, &index, "resources", "limits", name];
            patch.set(&path, json!(count.0));
            container
                .resources
                .limits
                .insert(name.to_owned(), count.clone());
        }
    }
}

/// The variable that tells each vendor's driver or runtime which devices a container sees.
const VISIBLE: [(Maker, &str); 4] = [
    (Maker::Nvidia, "NVIDIA_VISIBLE_DEVICES"),
    (Maker::Huawei, "ASCEND_VISIBLE_DEVICES"),
    (Maker::Hygon, "DCU_VISIBLE_DEVICES"),
    (Maker::Cambricon, "MLU_VISIBLE_DEVICES"),
];
const DRIVER_CAPABILITIES: &str = "NVIDIA_DRIVER_CAPABILITIES";
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

#[expect(
    clippy::too_many_arguments,
    reason = "what is injected depends on all of them, and on nothing else"
)]
fn inject(
    rules: &Rules,
    settings: &Settings,
    rows: &[&Row],
    only: Option<Maker>,
    asking: &[Asking],
    pod: &Pod,
    object: &Value,
    patch: &mut Patch<'_>,
) -> Result<(), Denied> {
    let config = &rules.config;
    let switch = |key: &str, default: bool| -> Result<bool, Denied> {
        Ok(request::switch(pod, key)?.unwrap_or(default))
    };
    let driver = switch(keys::INJECT_DRIVER, config.inject_driver)?;
    let runtime = switch(keys::INJECT_RUNTIME, config.inject_runtime)?;
    let rebind = switch(keys::IMAGE_REBINDING, config.image_rebinding)?;
    if driver {
        for (at, _) in asking {
            for (maker, name) in VISIBLE {
                let of_maker = |row: &&&Row| maker_of(&row.word) == Some(maker);
                let Some(row) = rows.iter().find(of_maker) else {
                    continue;
                };
                // The vendor's device plugin sets the variable itself and knows better. A variable in the pod would
                // override it.
                let has_plugin = row.resource(Role::Count).is_some()
                    && (maker != Maker::Nvidia || settings.agent != Agent::None);
                if !has_plugin && lacks(patch, *at, name) {
                    set_variable(patch, *at, name, &assigned_devices(name));
                }
            }
            if only == Some(Maker::Nvidia) && lacks(patch, *at, DRIVER_CAPABILITIES) {
                let variable = json!({ "name": DRIVER_CAPABILITIES, "value": "compute,utility" });
                set_variable(patch, *at, DRIVER_CAPABILITIES, &variable);
            }
            if let Some(path) = only.and_then(|maker| config.library_paths.get(maker.as_str()))
                && lacks(patch, *at, LIBRARY_PATH)
            {
                let variable = json!({ "name": LIBRARY_PATH, "value": path });
                set_variable(patch, *at, LIBRARY_PATH, &variable);
            }
        }
    }
    let path = ["spec", "runtimeClassName"];
    if runtime
        && let Some(class) = only.and_then(|maker| config.runtime_classes.get(maker.as_str()))
        && patch.get(&path).and_then(Value::as_str).unwrap_or_default() == ""
    {
        patch.set(&path, json!(class));
    }
    if rebind && let Some(maker) = only {
        rebind_images(&config.images, maker, asking, object, patch);
    }
    Ok(())
}

/// Replaces images by the vendor's first rule that matches, and notes the original images.
fn rebind_images(
    images: &[ImageRule],
    maker: Maker,
    asking: &[Asking],
    object: &Value,
    patch: &mut Patch<'_>,
) {
    let noted = ["metadata", "annotations", keys::ORIGINAL_IMAGES];
    // If the note exists, this pod has been admitted before.
    if patch.get(&noted).is_some() {
        return;
    }
    let mut originals: BTreeMap<String, String> = BTreeMap::new();
    for (at, _) in asking {
        let text = |key: &str| at.value(object).get(key).and_then(Value::as_str);
        let (Some(name), Some(image)) = (text("name"), text("image")) else {
            continue;
        };
        let other = images
            .iter()
            .filter(|rule| rule.vendor == maker.as_str())
            .find_map(|rule| rule.apply(image));
        if let Some(other) = other.filter(|other| other != image) {
            let index = at.index.to_string();
            patch.set(&["spec", at.list, &index, "image"], json!(other));
            originals.insert(name.to_owned(), image.to_owned());
        }
    }
    if !originals.is_empty() {
        patch.set(&noted, json!(json!(originals).to_string()));
    }
}

fn lacks(patch: &Patch<'_>, at: At, name: &str) -> bool {
    let index = at.index.to_string();
    !patch
        .get(&["spec", at.list, &index, "env"])
        .and_then(Value::as_array)
        .is_some_and(|env| {
            env.iter()
                .any(|variable| variable.get("name").is_some_and(|its| its == name))
        })
}

fn assigned_devices(name: &str) -> Value {
    json!({
        "name": name,
        "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": field_path() } },
    })
}

fn field_path() -> String {
    format!("metadata.annotations['{}']", keys::ASSIGNED_DEVICES)
}

/// Whether this reference to an annotation is the one that admission sets. Only the scheduler writes the annotation.
pub(crate) fn is_own_reference(variable: &EnvVar, vendors: &Vendors) -> bool {
    vendors.hcs().is_some()
        && VISIBLE.iter().any(|(_, name)| *name == variable.name)
        && variable
            .value_from
            .as_ref()
            .and_then(|from| from.pointer("/fieldRef/fieldPath"))
            .is_some_and(|path| *path == field_path())
}
