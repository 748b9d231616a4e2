//! How this node's container runtime learns what a container gets, and whether it can at all. Reads what the Node says
//! of its runtime, and containerd's configuration. Never changes either.
//!
//! A runtime that drops a device plugin's answer does so silently: the container starts, without a GPU. So a node whose
//! runtime cannot be served gets no pod, and its event says why.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::args::MannerArg;
use crate::delivery::Manner;

/// An import of an import is followed this deep.
const DEEPEST: usize = 4;
/// At most this many files are read.
const FILES_MOST: usize = 64;

/// The facts of the configuration of containerd that matter here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Containerd {
    /// The file that was read.
    pub file: PathBuf,
    /// Whether CDI is switched on or off; `None` if no file says so.
    pub enable_cdi: Option<bool>,
    /// Directories of CDI specifications; `None` if no file names them.
    pub cdi_spec_dirs: Option<Vec<PathBuf>>,
    /// Whether the runtime of pods that name no class is NVIDIA's.
    pub nvidia_by_default: bool,
}

/// The settings that bear on it.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// The manner that was asked for.
    pub manner: MannerArg,
    /// Where CDI specifications are written.
    pub cdi_dir: PathBuf,
    /// The webhook adds the variable that mounts need to pods.
    pub annotates: bool,
    /// The runtime class that pods with GPUs get; empty where none.
    pub pod_runtime_class: String,
}

/// The decision for this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeVerdict {
    /// How containers get their files.
    pub manner: Manner,
    /// Why no pod can be served, for the Node's event and `vgpu doctor`.
    pub hindrance: Option<String>,
}

/// The verdict in the state directory, for `vgpu doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeRecord {
    /// The Node's words: `containerd://1.7.27 v1.35.4`.
    pub runtime: String,
    /// `cdi` or `mounts`.
    pub manner: String,
    /// Why no pod can be served.
    pub hindrance: Option<String>,
}

/// The file of [`RuntimeRecord`] in the state directory.
pub const RECORD: &str = "runtime.json";

/// Decides by what the Node says of its runtime and its kubelet (`containerd://2.1.4 v1.35.4`) and by containerd's
/// configuration, where it could be read. An unknown runtime is assumed to have CDI.
pub fn decide(said: &str, containerd: Option<&Containerd>, wishes: &Wishes) -> RuntimeVerdict {
    let cdi = has_cdi(said, containerd, &wishes.cdi_dir);
    let manner = match wishes.manner {
        MannerArg::Cdi => Manner::Cdi,
        MannerArg::Mounts => Manner::Mounts,
        MannerArg::Auto if cdi.is_ok() => Manner::Cdi,
        MannerArg::Auto => Manner::Mounts,
    };
    let hindrance = match (manner, cdi) {
        (Manner::Cdi, Err(Lacks::Surely(why))) => {
            Some(format!("{why}, and the agent has --manner=cdi"))
        }
        // A manner that was set explicitly is used unless the runtime is known not to support it.
        (Manner::Cdi | Manner::Claim, _) => None,
        (Manner::Mounts, cdi) => {
            let why = match cdi {
                Ok(()) => String::from("the agent has --manner=mounts"),
                Err(Lacks::Surely(why) | Lacks::Perhaps(why)) => why,
            };
            if !wishes.annotates {
                Some(format!(
                    "{why}, so pods need a variable with their GPUs, and the webhook does not add it \
                     (webhook.devicesByAnnotation)"
                ))
            } else if containerd.is_some_and(|read| !read.nvidia_by_default)
                && wishes.pod_runtime_class.is_empty()
            {
                Some(format!(
                    "{why}, so NVIDIA's runtime has to start pods with GPUs: it is not the default runtime of {}, and \
                     pods get no runtime class (devicePlugin.podRuntimeClassName)",
                    containerd.map_or_else(String::new, |read| read.file.display().to_string())
                ))
            } else {
                None
            }
        }
    };
    RuntimeVerdict { manner, hindrance }
}

/// Why the node's runtime surely has no CDI, which a DRA driver's devices need.
pub(crate) fn lacks_cdi(
    said: &str,
    containerd: Option<&Containerd>,
    cdi_dir: &Path,
) -> Option<String> {
    match has_cdi(said, containerd, cdi_dir) {
        Err(Lacks::Surely(why)) => Some(why),
        Ok(()) | Err(Lacks::Perhaps(_)) => None,
    }
}

/// Why the node has no CDI.
enum Lacks {
    /// It is known.
    Surely(String),
    /// It is assumed: the configuration could not be read.
    Perhaps(String),
}

fn has_cdi(said: &str, containerd: Option<&Containerd>, cdi_dir: &Path) -> Result<(), Lacks> {
    let (runtime, kubelet) = said.split_once(' ').unwrap_or((said, ""));
    let kubelet = kubelet.trim();
    if numbers(kubelet.trim_start_matches('v')).is_some_and(|has| has < (1, 29)) {
        return Err(Lacks::Surely(format!(
            "the kubelet {kubelet} does not pass on the CDI names of a device plugin (1.29 does)"
        )));
    }
    let (name, version) = runtime.split_once("://").unwrap_or((runtime, ""));
    let version = numbers(version.trim_start_matches('v'));
    match (name, version) {
        ("containerd", Some(version)) if version < (1, 7) => {
            Err(Lacks::Surely(format!("{runtime} has no CDI")))
        }
        ("containerd", version) => {
            let Some(read) = containerd else {
                if version.is_some_and(|version| version < (2, 0)) {
                    return Err(Lacks::Perhaps(format!(
                        "{runtime} has CDI only where enable_cdi = true is set, and its configuration cannot be read \
                         (--runtime-config)"
                    )));
                }
                return Ok(());
            };
            let file = read.file.display();
            let is_on = read
                .enable_cdi
                .unwrap_or_else(|| version.is_none_or(|version| version >= (2, 0)));
            if !is_on {
                return Err(Lacks::Surely(format!(
                    "{runtime} has CDI switched off (set enable_cdi = true in {file} and restart containerd)"
                )));
            }
            // `/var/run` is a link to `/run`.
            let plain = |path: &Path| match path.strip_prefix("/var/run") {
                Ok(rest) => Path::new("/run").join(rest),
                Err(_) => path.to_owned(),
            };
            match &read.cdi_spec_dirs {
                Some(folders) if !folders.iter().any(|one| plain(one) == plain(cdi_dir)) => {
                    Err(Lacks::Surely(format!(
                        "{runtime} does not read {} (add it to cdi_spec_dirs in {file} and restart containerd)",
                        cdi_dir.display()
                    )))
                }
                _ => Ok(()),
            }
        }
        ("cri-o", Some(version)) if version < (1, 28) => {
            Err(Lacks::Surely(format!("{runtime} has no CDI")))
        }
        ("docker", _) => Err(Lacks::Surely(format!("{runtime} has no CDI"))),
        _ => Ok(()),
    }
}

/// The first two numbers of a version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|part| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    });
    let major = numbers.next().flatten()?;
    Some((major, numbers.next().flatten().unwrap_or(0)))
}

/// Reads containerd's configuration with what it imports. `seen` turns a path of the host into one of this process.
/// `None` if the file is not there or is no TOML.
pub fn read(file: &Path, seen: &dyn Fn(&Path) -> PathBuf) -> Option<Containerd> {
    let mut merged = Merged::default();
    let mut files = 0;
    if !merge(file, seen, &mut merged, &mut files, 0) {
        return None;
    }
    let default = merged.default_runtime.as_deref().unwrap_or("runc");
    let program = merged.programs.get(default).map_or("", String::as_str);
    Some(Containerd {
        file: file.to_owned(),
        enable_cdi: merged.enable_cdi,
        cdi_spec_dirs: merged.cdi_spec_dirs,
        nvidia_by_default: default.contains("nvidia") || program.contains("nvidia"),
    })
}

#[derive(Debug, Default)]
struct Merged {
    enable_cdi: Option<bool>,
    cdi_spec_dirs: Option<Vec<PathBuf>>,
    default_runtime: Option<String>,
    /// The program of each runtime.
    programs: BTreeMap<String, String>,
}

/// The CRI plugin's tables in the forms 1, 2 and 3 of the file.
const TABLES: [&str; 3] = [
    "cri",
    "io.containerd.grpc.v1.cri",
    "io.containerd.cri.v1.runtime",
];

fn merge(
    file: &Path,
    seen: &dyn Fn(&Path) -> PathBuf,
    into: &mut Merged,
    files: &mut usize,
    depth: usize,
) -> bool {
    *files += 1;
    if *files > FILES_MOST || depth > DEEPEST {
        return false;
    }
    let Ok(text) = std::fs::read_to_string(seen(file)) else {
        return false;
    };
    let Ok(read) = text.parse::<toml::Table>() else {
        tracing::warn!(file = %file.display(), "the container runtime's configuration is no TOML");
        return false;
    };
    let plugins = read.get("plugins").and_then(toml::Value::as_table);
    for table in TABLES {
        let Some(cri) = plugins.and_then(|plugins| plugins.get(table)) else {
            continue;
        };
        if let Some(on) = cri.get("enable_cdi").and_then(toml::Value::as_bool) {
            into.enable_cdi = Some(on);
        }
        if let Some(folders) = cri.get("cdi_spec_dirs").and_then(toml::Value::as_array) {
            let folders = folders.iter().filter_map(toml::Value::as_str);
            into.cdi_spec_dirs = Some(folders.map(PathBuf::from).collect());
        }
        let Some(containerd) = cri.get("containerd") else {
            continue;
        };
        let name = containerd.get("default_runtime_name");
        if let Some(name) = name.and_then(toml::Value::as_str) {
            into.default_runtime = Some(name.to_owned());
        }
        let runtimes = containerd.get("runtimes").and_then(toml::Value::as_table);
        for (name, runtime) in runtimes.into_iter().flatten() {
            let options = runtime.get("options");
            let program = options.and_then(|options| options.get("BinaryName"));
            if let Some(program) = program.and_then(toml::Value::as_str) {
                into.programs.insert(name.clone(), program.to_owned());
            }
        }
    }
    let imports = read.get("imports").and_then(toml::Value::as_array);
    let imports = imports
        .into_iter()
        .flatten()
        .filter_map(toml::Value::as_str);
    for import in imports {
        let folder = file.parent().unwrap_or(Path::new("/"));
        for path in named(&folder.join(import), seen) {
            // A later file's words hold.
            merge(&path, seen, into, files, depth + 1);
        }
    }
    true
}

/// The files of a pattern with one `*` in its last part.
fn named(pattern: &Path, seen: &dyn Fn(&Path) -> PathBuf) -> Vec<PathBuf> {
    let (Some(folder), Some(last)) = (pattern.parent(), pattern.file_name()) else {
        return Vec::new();
    };
    let last = last.to_string_lossy();
    let Some((before, after)) = last.split_once('*') else {
        return vec![pattern.to_owned()];
    };
    let entries = std::fs::read_dir(seen(folder)).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut files: Vec<PathBuf> = names
        .filter(|name| {
            name.strip_prefix(before)
                .is_some_and(|rest| rest.ends_with(after))
        })
        .map(|name| folder.join(name))
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes(manner: MannerArg) -> Wishes {
        Wishes {
            manner,
            cdi_dir: PathBuf::from("/var/run/cdi"),
            annotates: true,
            pod_runtime_class: String::from("nvidia"),
        }
    }

    fn cdi(on: Option<bool>) -> Containerd {
        Containerd {
            file: PathBuf::from("/etc/containerd/config.toml"),
            enable_cdi: on,
            ..Containerd::default()
        }
    }

    #[test]
    fn manner_follows_runtime_and_kubelet_version() {
        for (runtime, manner) in [
            ("containerd://2.1.4", Manner::Cdi),
            ("containerd://1.6.20~ds1", Manner::Mounts),
            ("containerd://1.7.27", Manner::Mounts),
            ("containerd://2.0.0-rc.1", Manner::Cdi),
            ("cri-o://1.27.1", Manner::Mounts),
            ("cri-o://1.28.0", Manner::Cdi),
            ("docker://20.10.1", Manner::Mounts),
            ("unknown://0.1", Manner::Cdi),
            ("containerd://2.1.4 v1.35.4", Manner::Cdi),
            ("containerd://2.1.4 v1.29.0-eks-1", Manner::Cdi),
            ("containerd://2.1.4 v1.28.15", Manner::Mounts),
            ("containerd://1.6.20 v1.35.4", Manner::Mounts),
            ("cri-o://1.30.0 v1.30.1\n", Manner::Cdi),
            ("", Manner::Cdi),
        ] {
            let verdict = decide(runtime, None, &wishes(MannerArg::Auto));
            assert_eq!(verdict.manner, manner, "{runtime}");
            assert_eq!(verdict.hindrance, None, "{runtime}");
        }
    }

    #[test]
    fn containerds_switch_decides_from_1_7_on() {
        for (runtime, switch, manner) in [
            ("containerd://1.7.27 v1.35.4", Some(true), Manner::Cdi),
            ("containerd://1.7.27 v1.35.4", Some(false), Manner::Mounts),
            ("containerd://1.7.27 v1.35.4", None, Manner::Mounts),
            ("containerd://1.7.27 v1.28.0", Some(true), Manner::Mounts),
            ("containerd://1.6.20 v1.35.4", Some(true), Manner::Mounts),
            ("containerd://2.1.4 v1.35.4", None, Manner::Cdi),
            ("containerd://2.1.4 v1.35.4", Some(false), Manner::Mounts),
        ] {
            let verdict = decide(runtime, Some(&cdi(switch)), &wishes(MannerArg::Auto));
            assert_eq!(verdict.manner, manner, "{runtime} {switch:?}");
        }
    }

    #[test]
    fn runtime_that_cannot_be_served_is_a_hindrance() {
        let old = "containerd://1.7.27 v1.35.4";
        let hindrance = |wishes: &Wishes, read: Option<&Containerd>| {
            decide(old, read, wishes).hindrance.unwrap_or_default()
        };

        let asked = hindrance(&wishes(MannerArg::Cdi), Some(&cdi(None)));
        assert_eq!(
            asked,
            "containerd://1.7.27 has CDI switched off (set enable_cdi = true in /etc/containerd/config.toml and restart \
             containerd), and the agent has --manner=cdi"
        );
        // Nothing is known against it.
        assert_eq!(hindrance(&wishes(MannerArg::Cdi), None), "");
        let mute = Wishes {
            annotates: false,
            ..wishes(MannerArg::Auto)
        };
        let said = hindrance(&mute, Some(&cdi(Some(false))));
        assert!(said.contains("webhook.devicesByAnnotation"), "{said}");
        assert!(hindrance(&mute, None).contains("--runtime-config"));
        assert_eq!(hindrance(&mute, Some(&cdi(Some(true)))), "");
        let classless = Wishes {
            pod_runtime_class: String::new(),
            ..wishes(MannerArg::Auto)
        };
        let said = hindrance(&classless, Some(&cdi(None)));
        assert!(said.contains("not the default runtime of"), "{said}");
        let nvidia = Containerd {
            nvidia_by_default: true,
            ..cdi(None)
        };
        assert_eq!(hindrance(&classless, Some(&nvidia)), "");
    }

    #[test]
    fn runtime_that_does_not_read_our_folder_has_no_cdi_for_us() {
        let with = |folders: &[&str]| Containerd {
            cdi_spec_dirs: Some(folders.iter().map(PathBuf::from).collect()),
            ..cdi(Some(true))
        };
        let runtime = "containerd://1.7.27 v1.35.4";
        let manner =
            |read: &Containerd| decide(runtime, Some(read), &wishes(MannerArg::Auto)).manner;

        assert_eq!(manner(&with(&["/etc/cdi", "/run/cdi"])), Manner::Cdi);
        assert_eq!(manner(&with(&["/etc/cdi"])), Manner::Mounts);
    }

    #[test]
    fn configuration_is_read_with_its_imports() {
        let folder = tempfile::tempdir().unwrap();
        let host = |path: &str| folder.path().join(path);
        std::fs::create_dir_all(host("etc/containerd/conf.d")).unwrap();
        let main = Path::new("/etc/containerd/config.toml");
        let seen = |path: &Path| folder.path().join(path.strip_prefix("/").unwrap());
        assert_eq!(read(main, &seen), None);
        std::fs::write(
            host("etc/containerd/config.toml"),
            r#"
version = 2
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.grpc.v1.cri"]
  enable_cdi = false
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "gpu"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gpu.options]
      BinaryName = "/usr/bin/nvidia-container-runtime"
"#,
        )
        .unwrap();
        let first = read(main, &seen).unwrap();
        assert_eq!(first.enable_cdi, Some(false));
        assert!(first.nvidia_by_default);

        std::fs::write(
            host("etc/containerd/conf.d/99-cdi.toml"),
            "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = true\n",
        )
        .unwrap();

        let second = read(main, &seen).unwrap();
        assert_eq!(second.enable_cdi, Some(true));
        assert_eq!(second.cdi_spec_dirs.unwrap().len(), 2);
        std::fs::write(host("etc/containerd/config.toml"), "no [toml").unwrap();
        assert_eq!(read(main, &seen), None);
    }
}
