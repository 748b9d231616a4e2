//! The changes that NVIDIA's runtime makes to a container before its creation, for simulated GPUs: the edits of a CDI
//! specification, applied to the `config.json` of an OCI bundle. The two switches of NVIDIA's configuration file that
//! say where a container may name its GPUs mean here what they mean there.

use std::fmt;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The node's specification of kind `nvidia.com/gpu`.
pub const NODE: &str = "/run/cdi/nvidia.json";

/// The configuration file of NVIDIA's runtime.
pub const SWITCHES: &str = "/etc/nvidia-container-runtime/config.toml";

/// The directory below which mounts of `/dev/null` name GPUs.
const NAMING_MOUNTS: &str = "/var/run/nvidia-container-devices/";

/// Why a bundle is not edited; containerd shows the text.
#[derive(Debug)]
pub enum CdiError {
    /// A file cannot be read or written, or holds no JSON.
    File(PathBuf, String),
    /// The node does not have this GPU.
    UnknownDevice(String),
    /// The node's file of a GPU is no character device.
    NoDevice(PathBuf),
    /// `config.json` has no object here.
    NoObject(String),
    /// `config.json` has something else than a list here.
    NoList(String),
}

impl CdiError {
    fn file(path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::File(path.as_ref().to_owned(), error.to_string())
    }
}

impl fmt::Display for CdiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, why) => write!(f, "{}: {why}", path.display()),
            Self::UnknownDevice(name) => write!(
                f,
                "nvidia-container-cli: device error: {name}: unknown device"
            ),
            Self::NoDevice(path) => write!(f, "{} is not a character device", path.display()),
            Self::NoObject(place) => write!(f, "config.json has no object {place}"),
            Self::NoList(place) => write!(f, "config.json: {place} is not a list"),
        }
    }
}

impl std::error::Error for CdiError {}

/// Edits the bundle as its environment asks, or its mounts, if the file of switches allows it.
///
/// # Errors
/// When a GPU is named that the node does not have, or a file is not what it should be.
pub fn show_gpus(bundle: &Path, specification: &Path, switches: &Path) -> Result<(), CdiError> {
    let file = bundle.join("config.json");
    let mut config = read(&file)?;
    // NVIDIA's runtime works without the file, too.
    let switches = fs::read_to_string(switches).unwrap_or_default();
    let by_mounts = is_on(&switches, "accept-nvidia-visible-devices-as-volume-mounts")
        .unwrap_or(false)
        .then(|| mounted(&config))
        .flatten();
    let by_variable = || {
        let key = "accept-nvidia-visible-devices-envvar-when-unprivileged";
        let accepted = is_on(&switches, key).unwrap_or(true) || is_privileged(&config);
        visible(&config).filter(|_| accepted)
    };
    let Some(wanted) = by_mounts
        .or_else(by_variable)
        .filter(|wanted| !matches!(wanted.as_str(), "" | "void"))
    else {
        return Ok(());
    };
    let specification = read(specification)?;
    for edits in chosen(&specification, &wanted)? {
        apply(&mut config, edits)?;
    }
    fs::write(&file, config.to_string()).map_err(CdiError::file(&file))
}

fn read(file: &Path) -> Result<Value, CdiError> {
    let text = fs::read(file).map_err(CdiError::file(file))?;
    serde_json::from_slice(&text).map_err(|error| CdiError::file(file)(error.into()))
}

/// The last `NVIDIA_VISIBLE_DEVICES` of the container's environment, as a program would see it.
fn visible(config: &Value) -> Option<String> {
    let list = config.pointer("/process/env")?.as_array()?;
    list.iter()
        .rev()
        .find_map(|entry| entry.as_str()?.strip_prefix("NVIDIA_VISIBLE_DEVICES="))
        .map(str::to_owned)
}

/// A boolean of the file of switches, which is TOML without sections above these keys.
fn is_on(switches: &str, key: &str) -> Option<bool> {
    let mut lines = switches.lines().filter_map(|line| line.split_once('='));
    let (_, value) = lines.find(|(name, _)| name.trim() == key)?;
    value.trim().parse().ok()
}

/// The GPUs that mounts of `/dev/null` name, as NVIDIA's runtime reads them.
fn mounted(config: &Value) -> Option<String> {
    let mounts = config.pointer("/mounts")?.as_array()?;
    let named: Vec<&str> = mounts
        .iter()
        .filter(|mount| mount["source"] == "/dev/null")
        .filter_map(|mount| mount["destination"].as_str()?.strip_prefix(NAMING_MOUNTS))
        .collect();
    (!named.is_empty()).then(|| named.join(","))
}

/// Whether NVIDIA's runtime treats the container as privileged: it has `CAP_SYS_ADMIN`.
fn is_privileged(config: &Value) -> bool {
    let bounding = config.pointer("/process/capabilities/bounding");
    let bounding = bounding.and_then(Value::as_array);
    bounding.is_some_and(|all| all.iter().any(|one| one == "CAP_SYS_ADMIN"))
}

/// The edits of all GPUs together, then those of each that is named. `none` means the driver without a GPU.
fn chosen<'a>(specification: &'a Value, wanted: &str) -> Result<Vec<&'a Value>, CdiError> {
    let devices = specification["devices"].as_array();
    let mut edits = vec![&specification["containerEdits"]];
    if wanted == "none" {
        return Ok(edits);
    }
    for name in wanted.split(',').map(str::trim) {
        let device = devices
            .into_iter()
            .flatten()
            .find(|device| device["name"] == name)
            .ok_or_else(|| CdiError::UnknownDevice(name.to_owned()))?;
        edits.push(&device["containerEdits"]);
    }
    Ok(edits)
}

fn apply(config: &mut Value, edits: &Value) -> Result<(), CdiError> {
    for entry in edits["env"].as_array().into_iter().flatten() {
        // The list that the container asked by stays as it is, as with NVIDIA's runtime.
        let own = entry
            .as_str()
            .is_some_and(|text| text.starts_with("NVIDIA_VISIBLE_DEVICES="));
        if !own {
            add(config, "/process", "env", entry.clone())?;
        }
    }
    for mount in edits["mounts"].as_array().into_iter().flatten() {
        let mount = json!({
            "destination": mount["containerPath"],
            "source": mount["hostPath"],
            "type": "bind",
            "options": mount["options"],
        });
        add(config, "", "mounts", mount)?;
    }
    for node in edits["deviceNodes"].as_array().into_iter().flatten() {
        let path = node["path"].as_str().unwrap_or_default();
        let host = node["hostPath"].as_str().unwrap_or(path);
        let found = fs::metadata(host).map_err(CdiError::file(host))?;
        if !found.file_type().is_char_device() {
            return Err(CdiError::NoDevice(host.into()));
        }
        let (major, minor) = numbers(found.rdev());
        let device = json!({
            "path": path, "type": "c", "major": major, "minor": minor, "fileMode": 0o666, "uid": 0, "gid": 0,
        });
        add(config, "/linux", "devices", device)?;
        let rule =
            json!({"allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm"});
        add(config, "/linux/resources", "devices", rule)?;
    }
    Ok(())
}

/// Major and minor, as Linux packs them.
fn numbers(device: u64) -> (u64, u64) {
    (
        (device >> 8) & 0xfff | (device >> 32) & 0xffff_f000,
        device & 0xff | (device >> 12) & 0xffff_ff00,
    )
}

/// Appends to the list `name` of the object at `place`, which is made if it is not there.
fn add(config: &mut Value, place: &str, name: &str, entry: Value) -> Result<(), CdiError> {
    let object = config
        .pointer_mut(place)
        .and_then(Value::as_object_mut)
        .ok_or_else(|| CdiError::NoObject(place.to_owned()))?;
    let list = object.entry(name).or_insert_with(|| json!([]));
    if list.is_null() {
        *list = json!([]);
    }
    list.as_array_mut()
        .ok_or_else(|| CdiError::NoList(format!("{place}/{name}")))?
        .push(entry);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specification() -> Value {
        json!({
            "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=void", "BOARD=/b"],
                "mounts": [{"hostPath": "/h/lib", "containerPath": "/c/lib", "options": ["ro", "bind"]}],
            },
            "devices": [
                {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/null"}]}},
                {"name": "GPU-1", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1", "hostPath": "/dev/null"}]}},
                {"name": "all", "containerEdits": {"deviceNodes": [
                    {"path": "/dev/nvidia0", "hostPath": "/dev/null"}, {"path": "/dev/nvidia1", "hostPath": "/dev/null"},
                ]}},
            ],
        })
    }

    fn edited(environment: &[&str]) -> Result<Value, CdiError> {
        let config = json!({"process": {"env": environment}, "linux": {"resources": {}}});
        edited_by(&config, "")
    }

    fn edited_by(config: &Value, switches: &str) -> Result<Value, CdiError> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("vgpu-cdi-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        fs::write(folder.join("spec.json"), specification().to_string()).unwrap();
        fs::write(folder.join("config.toml"), switches).unwrap();
        let files = ["spec.json", "config.toml"].map(|name| folder.join(name));
        let answer = show_gpus(&folder, &files[0], &files[1]);
        let config = read(&folder.join("config.json")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        answer.map(|()| config)
    }

    fn nodes(config: &Value) -> Vec<&str> {
        config["linux"]["devices"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|device| {
                assert_eq!(
                    (device["major"].as_u64(), device["minor"].as_u64()),
                    (Some(1), Some(3))
                );
                device["path"].as_str().unwrap()
            })
            .collect()
    }

    #[test]
    fn container_gets_the_gpus_of_its_variables_last_value() {
        for (environment, expected) in [
            (&["NVIDIA_VISIBLE_DEVICES=GPU-1"][..], &["/dev/nvidia1"][..]),
            (
                &["NVIDIA_VISIBLE_DEVICES=GPU-1,0"],
                &["/dev/nvidia1", "/dev/nvidia0"],
            ),
            (
                &["NVIDIA_VISIBLE_DEVICES=all"],
                &["/dev/nvidia0", "/dev/nvidia1"],
            ),
            (
                &["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0"],
                &["/dev/nvidia0"],
            ),
            (&["NVIDIA_VISIBLE_DEVICES=none"], &[]),
        ] {
            let config = edited(environment).unwrap();

            assert_eq!(nodes(&config), expected, "{environment:?}");
            assert_eq!(config["mounts"][0]["destination"], "/c/lib");
            let variables = config["process"]["env"].as_array().unwrap();
            assert_eq!(
                variables[..variables.len() - 1],
                *json!(environment).as_array().unwrap()
            );
            assert_eq!(variables.last().unwrap(), "BOARD=/b");
        }
    }

    #[test]
    fn a_container_that_asks_for_none_is_left_as_it_is() {
        for environment in [
            &[][..],
            &["NVIDIA_VISIBLE_DEVICES="],
            &["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"],
        ] {
            let config = edited(environment).unwrap();

            assert_eq!(
                config,
                json!({"process": {"env": environment}, "linux": {"resources": {}}})
            );
        }
    }

    #[test]
    fn switches_say_where_an_unprivileged_container_names_its_gpus() {
        let strict = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n";
        let mounts = "accept-nvidia-visible-devices-as-volume-mounts = true\n";
        let config = |privileged: bool| {
            let held = if privileged {
                vec!["CAP_SYS_ADMIN"]
            } else {
                vec![]
            };
            json!({
                "process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"], "capabilities": {"bounding": held}},
                "mounts": [
                    {"source": "/dev/null", "destination": "/var/run/nvidia-container-devices/0"},
                    {"source": "/tmp", "destination": "/var/run/nvidia-container-devices/GPU-1"},
                ],
                "linux": {"resources": {}},
            })
        };
        let all = &["/dev/nvidia0", "/dev/nvidia1"][..];
        for (switches, privileged, expected) in [
            (String::new(), false, all),
            (strict.to_owned(), false, &[]),
            (strict.to_owned(), true, all),
            (mounts.to_owned(), false, &["/dev/nvidia0"]),
            (format!("{strict}{mounts}"), false, &["/dev/nvidia0"]),
        ] {
            let config = edited_by(&config(privileged), &switches).unwrap();
            assert_eq!(nodes(&config), expected, "{switches} {privileged}");
        }
    }

    #[test]
    fn a_gpu_that_the_node_does_not_have_is_refused_by_name() {
        let refused = edited(&["NVIDIA_VISIBLE_DEVICES=0,GPU-9"]).unwrap_err();

        assert!(matches!(refused, CdiError::UnknownDevice(name) if name == "GPU-9"));
    }
}
