//! The container runtime's view of the node's GPUs: CDI specs, and its default runtime. Owns how these files are
//! read.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::root::RootDir;

/// Where specs are looked for.
const CDI_DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// Files of the host that a spec names are looked for up to here.
const MOST_PATHS: usize = 2_000;

/// A CDI spec of GPUs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct CdiSpec {
    pub(super) path: String,
    pub(super) error: Option<String>,
    /// `nvidia.com/gpu`.
    pub(super) kind: String,
    /// Names of its devices.
    pub(super) devices: Vec<String>,
    /// Files of the host that it names and that are not there.
    pub(super) missing: Vec<String>,
}

/// The settings of the container runtime.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Runtime {
    /// The file that was read.
    pub(super) path: Option<String>,
    pub(super) default_runtime: Option<String>,
    /// Whether CDI is switched on or off; `None` if the file does not say.
    pub(super) enable_cdi: Option<bool>,
}

/// How the agent serves the runtime, by its own record in the state directory.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ServedRuntime {
    /// The Node's words.
    pub(super) runtime: String,
    /// `cdi` or `mounts`.
    pub(super) manner: String,
    /// Why no pod can be served.
    pub(super) hindrance: Option<String>,
}

/// The specs of kinds that begin with `nvidia.com/`.
pub(super) fn cdi(root: &RootDir) -> Vec<CdiSpec> {
    let mut found = Vec::new();
    for directory in CDI_DIRECTORIES {
        for name in root.names(directory) {
            let path = format!("{directory}/{name}");
            let is_json = name.ends_with(".json");
            if !is_json && !name.ends_with(".yaml") {
                continue;
            }
            // Ours, one for each container.
            if name.starts_with("vgpu-") {
                continue;
            }
            let Some(text) = root.text(&path) else {
                continue;
            };
            let mut spec = if is_json {
                of_json(root, &text)
            } else {
                of_yaml(root, &text)
            };
            if spec.error.is_some() || spec.kind.starts_with("nvidia.com/") {
                spec.path = path;
                found.push(spec);
            }
        }
    }
    found
}

fn of_json(root: &RootDir, text: &str) -> CdiSpec {
    let read: Value = match serde_json::from_str(text) {
        Ok(read) => read,
        Err(error) => {
            return CdiSpec {
                error: Some(error.to_string()),
                ..CdiSpec::default()
            };
        }
    };
    let text_of = |value: &Value, key: &str| {
        value
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let devices = read.get("devices").and_then(Value::as_array);
    let mut paths = Vec::new();
    host_paths(&read, &mut paths);
    CdiSpec {
        kind: text_of(&read, "kind"),
        devices: devices
            .into_iter()
            .flatten()
            .map(|device| text_of(device, "name"))
            .collect(),
        missing: missing(root, paths),
        ..CdiSpec::default()
    }
}

fn host_paths(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(path) if key == "hostPath" => into.push(path.to_owned()),
                    _ => host_paths(value, into),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| host_paths(value, into)),
        _ => {}
    }
}

/// The few keys that matter, by lines: NVIDIA's toolkit writes one key to a line.
fn of_yaml(root: &RootDir, text: &str) -> CdiSpec {
    let mut spec = CdiSpec::default();
    let mut paths = Vec::new();
    let mut in_devices = false;
    for line in text.lines() {
        let bare = line.trim_start().trim_start_matches("- ").trim();
        let Some((key, value)) = bare.split_once(':') else {
            continue;
        };
        let value = value.trim().trim_matches(['"', '\'']);
        if !line.starts_with([' ', '-']) {
            in_devices = key == "devices";
        }
        // A device's own name is indented by one step; deeper names are of device nodes and hooks.
        let indent = line.len() - line.trim_start().len();
        match key {
            "kind" if indent == 0 => value.clone_into(&mut spec.kind),
            "name" if in_devices && indent <= 4 => spec.devices.push(value.to_owned()),
            "hostPath" => paths.push(value.to_owned()),
            _ => {}
        }
    }
    spec.missing = missing(root, paths);
    spec
}

fn missing(root: &RootDir, mut paths: Vec<String>) -> Vec<String> {
    paths.sort();
    paths.dedup();
    paths.truncate(MOST_PATHS);
    paths.retain(|path| !root.look(path).present);
    paths
}

/// Reads containerd's file, or docker's.
pub(super) fn read(root: &RootDir) -> Runtime {
    for path in [
        "/etc/containerd/config.toml",
        "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        "/etc/docker/daemon.json",
    ] {
        let Some(text) = root.text(path) else {
            continue;
        };
        let mut runtime = Runtime {
            path: Some(path.to_owned()),
            ..Runtime::default()
        };
        for line in text.lines() {
            let line = line.trim().trim_end_matches(',');
            if line.starts_with('#') {
                continue;
            }
            let Some((key, value)) = line.split_once(['=', ':']) else {
                continue;
            };
            let value = value.trim().trim_matches('"').to_owned();
            match key.trim().trim_matches('"') {
                "default_runtime_name" | "default-runtime" => runtime.default_runtime = Some(value),
                "enable_cdi" => runtime.enable_cdi = Some(value == "true"),
                _ => {}
            }
        }
        return runtime;
    }
    Runtime::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_is_read_in_both_forms_and_names_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["etc/cdi", "etc/containerd", "lib"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("lib/here.so"), "").unwrap();
        let json = r#"{"cdiVersion":"0.6.0","kind":"nvidia.com/gpu","devices":[{"name":"GPU-1","containerEdits":{"mounts":[{"hostPath":"/lib/here.so"},{"hostPath":"/lib/gone.so"}]}}]}"#;
        let yaml = "cdiVersion: 0.5.0\ncontainerEdits:\n  mounts:\n  - containerPath: /x\n    hostPath: /lib/gone.so\ndevices:\n- containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n  name: \"0\"\n- name: all\nkind: nvidia.com/gpu\n";
        std::fs::write(dir.path().join("etc/cdi/a.json"), json).unwrap();
        std::fs::write(dir.path().join("etc/cdi/b.yaml"), yaml).unwrap();
        std::fs::write(dir.path().join("etc/cdi/vgpu-x.json"), "{}").unwrap();
        std::fs::write(
            dir.path().join("etc/containerd/config.toml"),
            "[plugins]\n  # enable_cdi = true\n  enable_cdi = false\n  default_runtime_name = \"nvidia\"\n",
        )
        .unwrap();
        let root = RootDir::open(dir.path()).unwrap();

        let specs = cdi(&root);
        let names: Vec<_> = specs.iter().map(|spec| spec.devices.join(" ")).collect();
        assert_eq!(names, ["GPU-1", "0 all"]);
        assert!(
            specs
                .iter()
                .all(|spec| spec.kind == "nvidia.com/gpu" && spec.missing == ["/lib/gone.so"])
        );
        let runtime = read(&root);
        assert_eq!(runtime.default_runtime.as_deref(), Some("nvidia"));
        assert_eq!(runtime.enable_cdi, Some(false));
    }
}
