//! The name that a container engine gave a container. An OCI runtime knows only an id, so the name is found where each
//! engine keeps it.

use std::fs;
use std::path::Path;

use serde_json::Value;
use supervisor::regular;

use super::bundle::{BundleConfig, ContainerState};
use crate::values::{self, ContainerName, NAME_MOST};

/// Annotations with the container's name: nerdctl's, and those of Kubernetes' runtimes.
const ANNOTATIONS: [&str; 2] = ["nerdctl/name", "io.kubernetes.cri.container-name"];
/// Podman's monitor is the runtime's parent; an engine's wrapper may stand between them.
const ANCESTORS: usize = 4;
/// Docker's description of a container is not read beyond this, bytes.
const DOCKER_MOST: u64 = 4 << 20;
/// An id of an engine is this many hexadecimal digits, and people see the first of them.
const ENGINE_ID: usize = 64;
const SHORT_ID: usize = 12;

/// The container's name: the engine's if it is known, else the runtime's id, both in the form of a name.
pub(super) fn name(state: &ContainerState, config: &BundleConfig) -> ContainerName {
    let annotation = || {
        let known = config.annotations.iter();
        let mut named = known.filter(|(key, _)| ANNOTATIONS.contains(&key.as_str()));
        named.next().map(|(_, name)| name.clone())
    };
    let found = podman(&state.id)
        .or_else(|| docker(&state.id, config.hostname_file.as_deref()?))
        .or_else(annotation);
    found
        .and_then(|name| as_name(&name))
        .or_else(|| as_name(short(&state.id)))
        .unwrap_or_else(|| ContainerName::of_parts("container", ""))
}

/// The name of a second container of the same name.
pub(super) fn other_name(name: &ContainerName, id: &str) -> ContainerName {
    ContainerName::of_parts(name.as_str(), short(id))
}

/// The id as engines show it.
fn short(id: &str) -> &str {
    let is_engines = id.len() == ENGINE_ID && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let end = if is_engines {
        SHORT_ID
    } else {
        id.len().min(NAME_MOST)
    };
    id.get(..end).unwrap_or_default()
}

fn as_name(text: &str) -> Option<ContainerName> {
    let text = text.trim_start_matches('/');
    let end = text.len().min(NAME_MOST);
    values::container_name(text.get(..end)?).ok()
}

/// Podman's monitor (`conmon`) has the container's id and name as arguments, and starts the runtime.
fn podman(id: &str) -> Option<String> {
    let mut pid = nix::unistd::getppid().as_raw();
    for _ in 0..ANCESTORS {
        if pid <= 1 {
            return None;
        }
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        if let Some(name) = of_conmon(&words, id) {
            return Some(name);
        }
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        pid = stat
            .rsplit(')')
            .next()?
            .split_whitespace()
            .nth(1)?
            .parse()
            .ok()?;
    }
    None
}

fn of_conmon(words: &[u8], id: &str) -> Option<String> {
    let words = String::from_utf8_lossy(words);
    let words: Vec<&str> = words.split('\0').collect();
    let program = Path::new(words.first()?).file_name()?;
    let value = |flag: &str| {
        let at = words.iter().position(|word| *word == flag)?;
        words.get(at + 1).copied()
    };
    (program == "conmon" && value("-c") == Some(id)).then(|| value("-n").map(str::to_owned))?
}

/// Docker keeps a container's description beside the file that the container has as `/etc/hostname`.
fn docker(id: &str, hostname_file: &Path) -> Option<String> {
    let dir = hostname_file.parent()?;
    if dir.file_name()? != id {
        return None;
    }
    let text = regular::read(&dir.join("config.v2.json"), DOCKER_MOST).ok()?;
    let description: Value = serde_json::from_slice(&text).ok()?;
    Some(description.get("Name")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const ID: &str = "3fcc3d39e951139515fc0be707c9a4f3077f6178399386316067ef88e08bd885";

    fn state(id: &str) -> ContainerState {
        ContainerState {
            id: id.to_owned(),
            pid: 1,
            bundle: PathBuf::from("/b"),
        }
    }

    fn config(annotations: &[(&str, &str)], hostname_file: Option<PathBuf>) -> BundleConfig {
        BundleConfig {
            env: Vec::new(),
            args: Vec::new(),
            root: PathBuf::from("/r"),
            annotations: annotations
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            hostname_file,
        }
    }

    #[test]
    fn podmans_name_is_an_argument_of_its_monitor() {
        let words = |program: &str, id: &str| {
            format!(
                "{program}\0--api-version\x001\0-c\0{id}\0-u\0{id}\0-n\0web\0--exit-dir\0/run\0"
            )
        };
        assert_eq!(
            of_conmon(words("/usr/bin/conmon", ID).as_bytes(), ID).as_deref(),
            Some("web")
        );
        assert_eq!(
            of_conmon(words("/usr/bin/conmon", "x").as_bytes(), ID),
            None
        );
        assert_eq!(of_conmon(words("/bin/sh", ID).as_bytes(), ID), None);
        assert_eq!(of_conmon(b"", ID), None);
    }

    #[test]
    fn dockers_name_is_in_its_own_directory_of_the_container() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join(ID);
        fs::create_dir(&own).unwrap();
        fs::write(own.join("config.v2.json"), r#"{"Name":"/shop_web_1"}"#).unwrap();
        let named = |id: &str, file: PathBuf| name(&state(id), &config(&[], Some(file)));

        assert_eq!(named(ID, own.join("hostname")).as_str(), "shop_web_1");
        // A file of the user's in its place says nothing.
        assert_eq!(
            named(ID, dir.path().join("hostname")).as_str(),
            "3fcc3d39e951"
        );
    }

    #[test]
    fn without_an_engines_name_it_is_the_id() {
        let named = |id: &str, annotations: &[(&str, &str)]| {
            name(&state(id), &config(annotations, None))
                .as_str()
                .to_owned()
        };

        assert_eq!(named("train", &[]), "train");
        assert_eq!(named(ID, &[]), "3fcc3d39e951");
        assert_eq!(named(ID, &[("nerdctl/name", "web")]), "web");
        assert_eq!(named(ID, &[("nerdctl/name", "../../etc")]), "3fcc3d39e951");
        assert_eq!(named(&"x".repeat(200), &[]).len(), NAME_MOST);
        assert_eq!(named("+", &[]), "container");
    }

    #[test]
    fn second_name_has_the_id_and_fits() {
        let name = |text: &str| values::container_name(text).unwrap();
        assert_eq!(other_name(&name("web"), ID).as_str(), "web-3fcc3d39e951");
        let long = other_name(&name(&"x".repeat(63)), ID);
        assert_eq!(long.as_str().len(), NAME_MOST);
        assert!(long.as_str().ends_with("-3fcc3d39e951"));
    }
}
