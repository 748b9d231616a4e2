//! CDI for runtimes of engines without it: the edits of a CDI device, applied to a container's `config.json` as an
//! engine with CDI applies them. Values in, values out, except for the numbers of device nodes.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};

/// The edits that are known (CDI 0.5 to 1.0, without Intel's).
const KNOWN: [&str; 5] = ["additionalGids", "deviceNodes", "env", "hooks", "mounts"];

/// The edits for these devices of a specification: those of all its devices, then those of each.
pub(super) fn edits_of<'a>(spec: &'a Value, names: &[String]) -> anyhow::Result<Vec<&'a Value>> {
    let devices = spec.get("devices").and_then(Value::as_array);
    let devices = devices.context("it has no list of devices")?;
    let mut edits: Vec<&Value> = spec.get("containerEdits").into_iter().collect();
    for name in names {
        let is_it = |device: &&Value| device.get("name").and_then(Value::as_str) == Some(name);
        let Some(device) = devices.iter().find(is_it) else {
            let list: Vec<_> = devices
                .iter()
                .filter_map(|device| device.get("name")?.as_str())
                .collect();
            bail!("it has no device {name:?}; there are: {}", list.join(", "));
        };
        edits.extend(device.get("containerEdits"));
    }
    Ok(edits)
}

/// Applies edits to a configuration.
pub(super) fn apply(config: &mut Value, edits: &Value) -> anyhow::Result<()> {
    let edits = edits.as_object().context("containerEdits is no object")?;
    if let Some(unknown) = edits.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        bail!(
            "the edit {unknown:?} is not known; accepted: {}",
            KNOWN.join(", ")
        );
    }
    for entry in list(edits, "env") {
        let text = entry.as_str().context("an entry of env is no text")?;
        let (name, _) = text.split_once('=').unwrap_or((text, ""));
        let all = list_of(config, "/process", "env")?;
        all.retain(|known| {
            let known = known.as_str().unwrap_or_default();
            known.split('=').next() != Some(name)
        });
        all.push(entry.clone());
    }
    for mount in list(edits, "mounts") {
        let all = list_of(config, "", "mounts")?;
        all.retain(|known| known.get("destination") != mount.get("containerPath"));
        let options = mount.get("options").cloned();
        all.push(json!({
            "destination": mount.get("containerPath"),
            "source": mount.get("hostPath"),
            "type": mount.get("type").cloned().unwrap_or_else(|| json!("bind")),
            "options": options.unwrap_or_else(|| json!(["bind"])),
        }));
    }
    for node in list(edits, "deviceNodes") {
        add_node(config, node)?;
    }
    for hook in list(edits, "hooks") {
        let name = hook.get("hookName").and_then(Value::as_str);
        let name = name.context("a hook has no hookName")?;
        let mut hook = hook.as_object().cloned().unwrap_or_default();
        hook.remove("hookName");
        config
            .as_object_mut()
            .context("config.json is no object")?
            .entry("hooks")
            .or_insert_with(|| json!({}));
        list_of(config, "/hooks", name)?.push(Value::Object(hook));
    }
    for gid in list(edits, "additionalGids") {
        list_of(config, "/process/user", "additionalGids")?.push(gid.clone());
    }
    Ok(())
}

fn list<'a>(edits: &'a Map<String, Value>, name: &str) -> impl Iterator<Item = &'a Value> {
    edits
        .get(name)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn add_node(config: &mut Value, node: &Value) -> anyhow::Result<()> {
    let text = |name: &str| node.get(name).and_then(Value::as_str);
    let path = text("path").context("a device node has no path")?;
    let host = text("hostPath").unwrap_or(path);
    let found = fs::metadata(host).with_context(|| format!("cannot look at {host}"))?;
    let kind = found.file_type();
    let kind = match (kind.is_char_device(), kind.is_block_device()) {
        (true, _) => "c",
        (_, true) => "b",
        _ => bail!("{host} is no device"),
    };
    let (major, minor) = numbers(found.rdev());
    let all = list_of(config, "/linux", "devices")?;
    all.retain(|known| known.get("path").and_then(Value::as_str) != Some(path));
    all.push(json!({
        "path": path,
        "type": kind,
        "major": major,
        "minor": minor,
        "fileMode": found.mode() & 0o777,
        "uid": found.uid(),
        "gid": found.gid(),
    }));
    let access = text("permissions").unwrap_or("rwm");
    let rule =
        json!({"allow": true, "type": kind, "major": major, "minor": minor, "access": access});
    config
        .pointer_mut("/linux")
        .and_then(Value::as_object_mut)
        .context("config.json has no object linux")?
        .entry("resources")
        .or_insert_with(|| json!({}));
    list_of(config, "/linux/resources", "devices")?.push(rule);
    Ok(())
}

/// Major and minor, as Linux packs them.
fn numbers(device: u64) -> (u64, u64) {
    let major = (device >> 8) & 0xfff | (device >> 32) & 0xffff_f000;
    let minor = device & 0xff | (device >> 12) & 0xffff_ff00;
    (major, minor)
}

/// The list `name` of the object at `place`, made if it is not there.
fn list_of<'a>(
    config: &'a mut Value,
    place: &str,
    name: &str,
) -> anyhow::Result<&'a mut Vec<Value>> {
    let object = config
        .pointer_mut(place)
        .and_then(Value::as_object_mut)
        .with_context(|| {
            format!(
                "config.json has no object {}",
                place.trim_start_matches('/')
            )
        })?;
    let list = object.entry(name).or_insert_with(|| json!([]));
    if list.is_null() {
        *list = json!([]);
    }
    list.as_array_mut()
        .with_context(|| format!("config.json: {place}/{name} is no list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Value {
        json!({
            "process": {"env": ["A=1", "B=1"], "user": {}},
            "linux": {"devices": null},
            "mounts": [{"destination": "/x", "source": "/old"}],
        })
    }

    #[test]
    fn edits_replace_what_is_at_their_place_and_add_the_rest() {
        let edits = json!({
            "env": ["A=2", "C=3"],
            "mounts": [{"hostPath": "/h", "containerPath": "/x", "options": ["ro", "bind"]}],
            "deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/null"}],
            "hooks": [{"hookName": "createRuntime", "path": "/v", "args": ["v", "create"]}],
            "additionalGids": [7],
        });
        let mut config = config();

        apply(&mut config, &edits).unwrap();

        assert_eq!(config["process"]["env"], json!(["B=1", "A=2", "C=3"]));
        assert_eq!(
            config["mounts"],
            json!([{"destination": "/x", "source": "/h", "type": "bind", "options": ["ro", "bind"]}])
        );
        let node = &config["linux"]["devices"][0];
        assert_eq!((&node["major"], &node["minor"]), (&json!(1), &json!(3)));
        assert_eq!(config["linux"]["resources"]["devices"][0]["access"], "rwm");
        assert_eq!(
            config["hooks"]["createRuntime"],
            json!([{"path": "/v", "args": ["v", "create"]}])
        );
        assert_eq!(config["process"]["user"]["additionalGids"], json!([7]));
    }

    #[test]
    fn edits_that_cannot_be_applied_are_refused() {
        for (edits, part) in [
            (json!([]), "no object"),
            (
                json!({"netDevices": []}),
                r#"the edit "netDevices" is not known; accepted: "#,
            ),
            (json!({"env": [3]}), "no text"),
            (json!({"hooks": [{}]}), "no hookName"),
            (
                json!({"deviceNodes": [{"path": "/etc/passwd"}]}),
                "/etc/passwd is no device",
            ),
            (
                json!({"deviceNodes": [{"path": "/nonexistent"}]}),
                "cannot look at /nonexistent",
            ),
        ] {
            let error = format!("{:#}", apply(&mut config(), &edits).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
        let error = apply(&mut json!({}), &json!({"env": ["A=1"]})).unwrap_err();
        assert!(error.to_string().contains("no object process"), "{error}");
    }

    #[test]
    fn devices_are_found_by_name() {
        let spec = json!({
            "containerEdits": {"env": ["ALL=1"]},
            "devices": [{"name": "0", "containerEdits": {"env": ["ZERO=1"]}}, {"name": "all"}],
        });

        let edits = edits_of(&spec, &[String::from("0")]).unwrap();
        assert_eq!(
            edits,
            [&json!({"env": ["ALL=1"]}), &json!({"env": ["ZERO=1"]})]
        );
        let error = edits_of(&spec, &[String::from("7")])
            .unwrap_err()
            .to_string();
        assert_eq!(error, r#"it has no device "7"; there are: 0, all"#);
    }
}
