//! An OCI runtime's description of a container: its state, and its `config.json`. Owns how much of it is read, and
//! what is accepted.
//!
//! Never uses a size, a kind or a path without a check: a state may come from anywhere.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail};
use nix::unistd::Uid;
use serde::Deserialize;
use serde_json::Value;
use supervisor::regular::{self, OpenError};

use crate::failure::Misuse;

/// Larger states are refused, bytes.
const STATE_MOST: u64 = 1 << 20;
/// Larger `config.json` files are refused, bytes.
const CONFIG_MOST: u64 = 16 << 20;
/// Longer ids are refused, bytes.
const ID_MOST: usize = 1024;

/// The state that the runtime gives a hook (OCI runtime specification, "State").
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct ContainerState {
    pub(super) id: String,
    /// The container's first process; 0 where there is none any more.
    #[serde(default)]
    pub(super) pid: u32,
    pub(super) bundle: PathBuf,
}

/// Reads a state, and refuses what no runtime writes.
pub(super) fn state(from: impl Read) -> Result<ContainerState, Misuse> {
    let mut bytes = Vec::new();
    from.take(STATE_MOST + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| {
            Misuse::new(format!(
                "cannot read the container's state from standard input: {error}"
            ))
        })?;
    if bytes.len() as u64 > STATE_MOST {
        return Err(Misuse::new(format!(
            "the container's state on standard input is larger than {STATE_MOST} bytes; accepted: the JSON \
             object that an OCI runtime gives its hooks"
        )));
    }
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Result<ContainerState, Misuse> {
    let state: ContainerState = serde_json::from_slice(bytes).map_err(|error| {
        Misuse::new(format!(
            "standard input is not the state of a container ({error}); accepted: the JSON object that an OCI \
             runtime gives its hooks, with id, pid and bundle. Container engines run this command, by the file \
             of vgpu cdi"
        ))
    })?;
    if !is_id(&state.id) {
        return Err(Misuse::new(format!(
            "the state's id {:?} is not a container's; accepted: 1 to {ID_MOST} of a-z A-Z 0-9 . _ + -, not \
             beginning with a dot",
            cut(&state.id)
        )));
    }
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !state.bundle.is_absolute() || !state.bundle.components().all(is_plain) {
        return Err(Misuse::new(format!(
            "the state's bundle {:?} is not accepted; accepted: an absolute path without ..",
            cut(&state.bundle.to_string_lossy())
        )));
    }
    Ok(state)
}

fn is_id(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= ID_MOST
        && !id.starts_with('.')
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte))
}

/// The beginning of a text for an error.
fn cut(text: &str) -> String {
    text.chars().take(100).collect()
}

/// A bundle's configuration, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BundleConfig {
    /// `NAME=VALUE`, as the container's first process gets them.
    pub(super) env: Vec<String>,
    /// The command with its arguments.
    pub(super) args: Vec<String>,
    /// The container's root directory on the host.
    pub(super) root: PathBuf,
    /// The engine's annotations of the container.
    pub(super) annotations: Vec<(String, String)>,
    /// Where the file is from that the container has as `/etc/hostname`.
    pub(super) hostname_file: Option<PathBuf>,
}

/// Reads a bundle's configuration.
pub(super) fn config(bundle: &Path) -> anyhow::Result<BundleConfig> {
    let path = bundle.join("config.json");
    config_of(&read(&path)?, bundle).with_context(|| path.display().to_string())
}

/// Reads `config.json` as it is.
pub(super) fn read(path: &Path) -> anyhow::Result<Value> {
    let file = match regular::open(path) {
        Err(OpenError::NotRegular) => bail!("{} is not a regular file", path.display()),
        opened => opened.with_context(|| {
            format!(
                "cannot open {} (the state's bundle must be an OCI bundle)",
                path.display()
            )
        })?,
    };
    let is = file
        .metadata()
        .with_context(|| format!("cannot look at {}", path.display()))?;
    let me = Uid::effective().as_raw();
    if (is.uid() != me && is.uid() != 0) || is.mode() & 0o022 != 0 {
        bail!(
            "{} belongs to uid {} with mode {:04o}; it must belong to root or to uid {me}, and no other user may \
             write it",
            path.display(),
            is.uid(),
            is.mode() & 0o7777
        );
    }
    let bytes = regular::first(file, CONFIG_MOST + 1)
        .with_context(|| format!("cannot read {}", path.display()))?;
    if bytes.len() as u64 > CONFIG_MOST {
        bail!("{} is larger than {CONFIG_MOST} bytes", path.display());
    }
    serde_json::from_slice(&bytes).with_context(|| format!("{} is not JSON", path.display()))
}

/// The values of a configuration that was read.
pub(super) fn config_of(config: &Value, bundle: &Path) -> anyhow::Result<BundleConfig> {
    let texts = |place: &str| -> Vec<String> {
        let list = config.pointer(place).and_then(Value::as_array);
        let texts = list.into_iter().flatten().filter_map(Value::as_str);
        texts.map(str::to_owned).collect()
    };
    let root = config.pointer("/root/path").and_then(Value::as_str);
    let root = root.context("it has no root.path, so the container has no root directory")?;
    let annotations = config.get("annotations").and_then(Value::as_object);
    let annotations = annotations.into_iter().flatten();
    let mounts = config.get("mounts").and_then(Value::as_array);
    let hostname = mounts
        .into_iter()
        .flatten()
        .find(|mount| mount.get("destination").and_then(Value::as_str) == Some("/etc/hostname"));
    let source = hostname.and_then(|mount| mount.get("source")?.as_str());
    Ok(BundleConfig {
        env: texts("/process/env"),
        args: texts("/process/args"),
        root: bundle.join(root),
        annotations: annotations
            .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
            .collect(),
        hostname_file: source.map(PathBuf::from),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use serde_json::json;

    #[test]
    fn state_is_read_as_runtimes_write_it() {
        let text = r#"{"ociVersion":"1.0.2","id":"web_1.a","status":"creating","pid":42,"bundle":"/run/b","annotations":{}}"#;

        let found = state(text.as_bytes()).unwrap();

        assert_eq!((found.id.as_str(), found.pid), ("web_1.a", 42));
        assert_eq!(found.bundle, Path::new("/run/b"));
        // After the end of a container there is no process.
        let ended = state(&br#"{"id":"a","bundle":"/b"}"#[..]).unwrap();
        assert_eq!(ended.pid, 0);
    }

    #[test]
    fn a_state_that_no_runtime_writes_is_refused_with_what_is_accepted() {
        let huge = vec![b'{'; (1 << 20) + 10];
        let long = format!(r#"{{"id":"{}","bundle":"/b"}}"#, "x".repeat(ID_MOST + 1));
        for (text, part) in [
            (&b""[..], "not the state of a container (EOF"),
            (b"hello", "not the state of a container"),
            (b"[1]", "not the state of a container"),
            (br#"{"id":"a"}"#, "missing field `bundle`"),
            (br#"{"id":"a","pid":-1,"bundle":"/b"}"#, "invalid value"),
            (
                br#"{"id":"../a","bundle":"/b"}"#,
                r#"the state's id "../a""#,
            ),
            (br#"{"id":"","bundle":"/b"}"#, r#"the state's id """#),
            (br#"{"id":"a/b","bundle":"/b"}"#, r#"the state's id "a/b""#),
            (long.as_bytes(), "is not a container's"),
            (br#"{"id":"a","bundle":"b"}"#, r#"the state's bundle "b""#),
            (br#"{"id":"a","bundle":"/b/../etc"}"#, "without .."),
            (&huge, "larger than 1048576 bytes"),
        ] {
            let error = state(text).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
            assert!(error.contains("accepted: "), "{error}");
            assert!(error.len() < 600, "{error}");
        }
    }

    #[test]
    fn configuration_with_odd_parts_is_read_as_far_as_it_goes() {
        let config = json!({
            "process": {"env": ["A=1", 7, "B=2"], "args": "no list"},
            "root": {"path": "rootfs"},
            "annotations": {"x": "y", "n": 3},
            "mounts": [{"destination": "/etc/hostname", "source": "/d/hostname"}],
        });

        let found = config_of(&config, Path::new("/b")).unwrap();

        assert_eq!(found.env, ["A=1", "B=2"]);
        assert_eq!(found.args, [""; 0]);
        assert_eq!(found.root, Path::new("/b/rootfs"));
        assert_eq!(found.annotations, [(String::from("x"), String::from("y"))]);
        assert_eq!(found.hostname_file, Some(PathBuf::from("/d/hostname")));
        let error = config_of(&json!([]), Path::new("/b")).unwrap_err();
        assert!(error.to_string().contains("no root.path"), "{error}");
    }

    #[test]
    fn a_bundle_that_is_not_one_is_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let error = |bundle: &Path| format!("{:#}", config(bundle).unwrap_err());
        assert!(error(dir.path()).contains("cannot open"));
        let file = dir.path().join("config.json");
        symlink("/etc/passwd", &file).unwrap();
        assert!(error(dir.path()).contains("not a regular file"));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(error(dir.path()).contains("not a regular file"));
        fs::remove_dir(&file).unwrap();
        fs::write(&file, "{").unwrap();
        assert!(error(dir.path()).contains("is not JSON"));
        fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
        assert!(error(dir.path()).contains("no other user may write it"));
    }
}
