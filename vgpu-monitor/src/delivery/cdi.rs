//! CDI: the description of one container for the runtime, with the vendor's own edits for its GPUs
//! (`supervisor::vendor`). Owns what our edits are.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
pub use supervisor::vendor::VendorError;
pub(super) use supervisor::vendor::{CAPABILITIES, Edits, InstanceIds, Parts, Vendor, Wanted};

use super::{DeliveryError, Mount, Name, files};

/// Kind of our devices; an allotment's name is the device's.
pub const KIND: &str = "vgpu.io/container";

/// NVIDIA's runtime adds nothing because of the environment: the description has everything that the
/// container gets.
pub(super) const NOTHING_VISIBLE: Variable = Variable("NVIDIA_VISIBLE_DEVICES", "void");

pub(super) struct Variable(&'static str, &'static str);

impl Variable {
    pub(super) fn into_pair(self) -> (String, String) {
        (self.0.to_owned(), self.1.to_owned())
    }
}

/// Our description: one device of the allotment's name, with everything that the container gets.
pub(super) fn describe(
    name: &Name,
    vendor: Edits,
    mounts: &[Mount],
    env: &[(String, String)],
) -> Vec<u8> {
    let Edits { version, edits } = vendor;
    let edits = with_ours(edits, mounts, env);
    text(&json!({
        "cdiVersion": version.to_string(),
        "kind": KIND,
        "devices": [{ "name": name.0, "containerEdits": edits }],
    }))
}

/// Our description of a claim's part: a device for each GPU, and once what belongs to all of them. A container may get
/// some of the devices, or all.
pub(super) fn describe_claim(
    name: &Name,
    vendor: Parts,
    mounts: &[Mount],
    env: &[(String, String)],
) -> Vec<u8> {
    let Parts { all, each } = vendor;
    let Edits { version, edits } = all;
    let edits = with_ours(edits, mounts, env);
    let ours = mounts.iter().map(|mount| json!(mount.container));
    let ours: Vec<Value> = ours.collect();
    let devices = each.into_iter().enumerate().map(|(at, mut edits)| {
        // A device's own edits are added last, and would win.
        if let Some(Value::Array(mounts)) = edits.get_mut("mounts") {
            mounts.retain(|mount| !ours.contains(&mount["containerPath"]));
        }
        if let Some(Value::Array(variables)) = edits.get_mut("env") {
            without_ours(variables, env);
        }
        json!({ "name": claim_device(name, at), "containerEdits": edits })
    });
    text(&json!({
        "cdiVersion": version.to_string(),
        "kind": KIND,
        "devices": devices.collect::<Vec<_>>(),
        "containerEdits": edits,
    }))
}

/// The name of the device of a claim's part, by its place among the part's GPUs.
pub(super) fn claim_device(name: &Name, at: usize) -> String {
    format!("{name}-{at}")
}

/// The vendor's edits, with our mounts and variables in the place of others for the same.
fn with_ours(
    mut edits: Map<String, Value>,
    mounts: &[Mount],
    env: &[(String, String)],
) -> Map<String, Value> {
    let ours = mounts.iter().map(|mount| {
        let mut options = vec![if mount.read_only { "ro" } else { "rw" }, "nosuid", "nodev"];
        // The library alone is loaded.
        if mount.container != Path::new(supervisor::instance::INSIDE_LIBRARY) {
            options.push("noexec");
        }
        options.push("rbind");
        json!({
            "hostPath": mount.host,
            "containerPath": mount.container,
            "options": options,
        })
    });
    let ours: Vec<_> = ours.collect();
    let mine = |item: &Value| {
        ours.iter()
            .any(|ours| ours["containerPath"] == item["containerPath"])
    };
    let list = |value: Option<Value>| match value {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    let mut all = list(edits.remove("mounts"));
    all.retain(|item| !mine(item));
    all.extend(ours.iter().cloned());
    edits.insert(String::from("mounts"), Value::Array(all));

    let mut variables = list(edits.remove("env"));
    without_ours(&mut variables, env);
    let pairs = our_variables(env).map(|(name, value)| Value::String(format!("{name}={value}")));
    variables.extend(pairs);
    edits.insert(String::from("env"), Value::Array(variables));
    edits
}

fn our_variables(env: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    let Variable(visible, nothing) = NOTHING_VISIBLE;
    let pairs = env
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    pairs.chain([(visible, nothing)])
}

fn without_ours(variables: &mut Vec<Value>, env: &[(String, String)]) {
    variables.retain(|variable| {
        let name = variable.as_str().unwrap_or_default().split('=').next();
        !our_variables(env).any(|(ours, _)| Some(ours) == name)
    });
}

fn text(spec: &Value) -> Vec<u8> {
    // The value holds only strings and parsed JSON, so it can always be written.
    let mut text = serde_json::to_vec_pretty(spec).unwrap_or_default();
    text.push(b'\n');
    text
}

/// The allotment that a file of the CDI directory describes, if the agent wrote it.
pub(super) fn own_name(file: &str) -> Option<Name> {
    let name = file.strip_prefix("vgpu-")?.strip_suffix(".json")?;
    let name = Name(name.to_owned());
    name.check().is_ok().then_some(name)
}

/// Removes our descriptions of unknown allotments, and partial files of a killed agent.
pub(super) fn clear(
    dir: &Path,
    is_known: impl Fn(&Name) -> bool,
) -> Result<Vec<PathBuf>, DeliveryError> {
    let mut cleared = Vec::new();
    for file in files::names(dir)? {
        let half = file
            .strip_prefix('.')
            .and_then(|file| file.strip_suffix(".new"));
        let is_half = half.is_some_and(|file| own_name(file).is_some());
        if is_half || own_name(&file).is_some_and(|name| !is_known(&name)) {
            let path = dir.join(&file);
            files::remove(&path)?;
            cleared.push(path);
        }
    }
    Ok(cleared)
}

#[cfg(test)]
mod tests;
