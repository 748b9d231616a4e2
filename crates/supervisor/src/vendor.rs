//! The GPU vendor's CDI specification: where it is looked for, how its devices are identified, and the additions to a
//! container that it states for them.
//!
//! The vendor's edits for a device are passed on unchanged, including fields that this release does not know.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Where the driver says which device node opens a MIG instance.
pub const CAPABILITIES: &str = "/proc/driver/nvidia/capabilities";

/// The version that our own part of a specification needs.
pub const LEAST_VERSION: Version = Version([0, 5, 0]);
/// Larger files are not read as specifications, bytes.
const MOST_BYTES: u64 = 8 << 20;
/// The kernel's major number of capability nodes is the driver's to choose; the runtime asks the node itself.
const CAPABILITY_NODES: &str = "/dev/nvidia-caps/nvidia-cap";

/// Why the vendor's part of a description cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum VendorError {
    /// There is no specification.
    #[error(
        "there is no CDI specification of {kind} on this node: looked in {looked}. Make one there: nvidia-ctk cdi \
             generate --output=/etc/cdi/nvidia.yaml"
    )]
    Missing {
        /// The vendor's kind.
        kind: String,
        /// The directories, and what was found there.
        looked: String,
    },
    /// The specification does not describe the GPU.
    #[error("{path} describes no device for GPU {uuid} (it has {devices}). It is older than the GPU or its present \
             number; make it anew: nvidia-ctk cdi generate --output={path}", path = path.display())]
    NoDevice {
        /// The specification.
        path: PathBuf,
        /// The GPU.
        uuid: String,
        /// Its devices.
        devices: String,
    },
    /// The driver does not say how a MIG instance is opened.
    #[error("the driver does not say how MIG instance {uuid} is opened: {reason}")]
    Capability {
        /// The instance.
        uuid: String,
        /// The fault.
        reason: String,
    },
}

/// A version of the CDI specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version([u32; 3]);

impl Version {
    fn of(text: &str) -> Option<Self> {
        let mut parts = text.trim().trim_start_matches('v').splitn(3, '.');
        let mut next = || parts.next()?.parse().ok();
        Some(Self([next()?, next()?, next()?]))
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// The additions to a container.
#[derive(Debug, Clone, PartialEq)]
pub struct Edits {
    /// The version of the specification that they need.
    pub version: Version,
    /// The edits, as the specification writes them.
    pub edits: Map<String, Value>,
}

/// The vendor's edits for a container with several GPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct Parts {
    /// Those for every container.
    pub all: Edits,
    /// Those for each of the GPUs, in the order in which they were asked for.
    pub each: Vec<Map<String, Value>>,
}

/// A GPU that is looked for in the vendor's specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// UUID of the GPU, or of the MIG instance.
    pub uuid: String,
    /// UUID of the GPU.
    pub gpu: String,
    /// The GPU's number, as the driver counts; `None` if the GPU is not known now.
    pub index: Option<u32>,
    /// The number in `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// The instance that was made on it.
    pub instance: Option<InstanceIds>,
}

/// The driver's numbers of a MIG instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstanceIds {
    /// Id of the GPU instance.
    pub gpu_instance: u32,
    /// Id of the compute instance.
    pub compute_instance: u32,
}

/// Where the vendor's specification is.
pub struct Vendor<'a> {
    /// The directories as this process sees them; later ones win, as with the runtimes.
    pub dirs: &'a [PathBuf],
    /// The vendor's kind, such as `nvidia.com/gpu`.
    pub kind: &'a str,
    /// Where the driver says which node opens what.
    pub capabilities: &'a Path,
    /// Files of the directories that describe our own devices, by name: they are not read.
    pub is_ours: fn(&str) -> bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    cdi_version: Value,
    kind: String,
    #[serde(default)]
    devices: Vec<SpecDevice>,
    #[serde(default)]
    container_edits: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecDevice {
    name: Value,
    #[serde(default)]
    container_edits: Map<String, Value>,
}

impl SpecDevice {
    fn name(&self) -> String {
        match &self.name {
            Value::String(name) => name.clone(),
            // A list written by hand says 0 where "0" is meant.
            other => other.to_string(),
        }
    }

    fn has_node(&self, path: &str) -> bool {
        let nodes = self
            .container_edits
            .get("deviceNodes")
            .and_then(Value::as_array);
        let mut nodes = nodes.into_iter().flatten();
        nodes.any(|node| node.get("path").and_then(Value::as_str) == Some(path))
    }

    fn has_a_gpu(&self) -> bool {
        let nodes = self
            .container_edits
            .get("deviceNodes")
            .and_then(Value::as_array);
        let mut nodes = nodes.into_iter().flatten();
        nodes.any(|node| {
            let path = node.get("path").and_then(Value::as_str).unwrap_or_default();
            let number = path.strip_prefix("/dev/nvidia");
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        })
    }
}

struct FoundSpec {
    path: PathBuf,
    version: Version,
    spec: Spec,
}

impl Vendor<'_> {
    /// The vendor's edits for these GPUs: those for every container, and those for each GPU.
    ///
    /// # Errors
    /// There is no specification, or it does not describe one of the GPUs.
    pub fn edits(&self, wanted: &[Wanted]) -> Result<Edits, VendorError> {
        let Parts { mut all, each } = self.parts(wanted)?;
        for edits in &each {
            add(&mut all.edits, edits);
        }
        Ok(all)
    }

    /// The same, with the edits for each GPU apart.
    ///
    /// # Errors
    /// As [`Vendor::edits`].
    pub fn parts(&self, wanted: &[Wanted]) -> Result<Parts, VendorError> {
        let specs = self.specs()?;
        let mut all = Edits {
            version: LEAST_VERSION,
            edits: Map::new(),
        };
        let mut each = Vec::new();
        let mut used: Vec<&Path> = Vec::new();
        for wanted in wanted {
            let found = specs
                .iter()
                .find_map(|found| Some((found, find(&found.spec, wanted)?)));
            let Some((found, (device, is_instance))) = found else {
                return Err(no_device(&specs, wanted));
            };
            if !used.contains(&found.path.as_path()) {
                used.push(&found.path);
                all.version = all.version.max(found.version);
                add(&mut all.edits, &found.spec.container_edits);
            }
            let mut edits = device.container_edits.clone();
            if let Some(instance) = wanted.instance.filter(|_| !is_instance) {
                let nodes = self.capability_nodes(wanted, instance)?;
                add(&mut edits, &nodes);
            }
            each.push(edits);
        }
        Ok(Parts { all, each })
    }

    /// Every specification of the kind, the one that wins first.
    fn specs(&self) -> Result<Vec<FoundSpec>, VendorError> {
        let mut specs = Vec::new();
        let mut looked = Vec::new();
        for dir in self.dirs.iter().rev() {
            let names = match names(dir) {
                Ok(names) => names,
                Err(error) => {
                    looked.push(format!("{} (cannot be read: {error})", dir.display()));
                    continue;
                }
            };
            let is_spec = |name: &&String| {
                let ends = [".json", ".yaml", ".yml"]
                    .iter()
                    .any(|end| name.ends_with(end));
                ends && !name.starts_with('.') && !(self.is_ours)(name)
            };
            let mut of_another_kind = 0;
            for name in names.iter().filter(is_spec) {
                let path = dir.join(name);
                match read(&path) {
                    Ok((version, spec)) if spec.kind == self.kind => specs.push(FoundSpec {
                        path,
                        version,
                        spec,
                    }),
                    Ok(_) => of_another_kind += 1,
                    Err(reason) => {
                        looked.push(format!("{} (cannot be read: {reason})", path.display()))
                    }
                }
            }
            looked.push(match of_another_kind {
                0 if dir.exists() => format!("{} (nothing)", dir.display()),
                0 => format!("{} (not there)", dir.display()),
                others => format!("{} ({others} of other kinds)", dir.display()),
            });
        }
        if specs.is_empty() {
            return Err(VendorError::Missing {
                kind: self.kind.to_owned(),
                looked: looked.join(", "),
            });
        }
        Ok(specs)
    }

    /// The nodes that open a MIG instance. The GPU's own node is in the GPU's edits.
    fn capability_nodes(
        &self,
        wanted: &Wanted,
        instance: InstanceIds,
    ) -> Result<Map<String, Value>, VendorError> {
        // A driver without MIG does not make this directory. The simulated driver is one, and a process opens its
        // instances by the GPU's own node.
        if !self.capabilities.is_dir() {
            return Ok(Map::new());
        }
        let error = |reason: String| VendorError::Capability {
            uuid: wanted.uuid.clone(),
            reason,
        };
        let minor = wanted
            .minor
            .ok_or_else(|| error(format!("GPU {} is not known at the moment", wanted.gpu)))?;
        let gpu = format!("gpu{minor}/mig/gi{}", instance.gpu_instance);
        let compute = format!("{gpu}/ci{}", instance.compute_instance);
        let mut nodes = Vec::new();
        for place in [gpu, compute] {
            let path = self.capabilities.join(place).join("access");
            let text = std::fs::read_to_string(&path)
                .map_err(|reason| error(format!("{}: {reason}", path.display())))?;
            let number = text
                .lines()
                .find_map(|line| line.strip_prefix("DeviceFileMinor:"))
                .and_then(|number| number.trim().parse::<u32>().ok());
            let number = number.ok_or_else(|| {
                error(format!(
                    "{} has no line DeviceFileMinor: NUMBER",
                    path.display()
                ))
            })?;
            nodes.push(json!({ "path": format!("{CAPABILITY_NODES}{number}") }));
        }
        let mut edits = Map::new();
        edits.insert(String::from("deviceNodes"), Value::Array(nodes));
        Ok(edits)
    }
}

/// The device of a GPU, and whether it is that of its MIG instance itself.
fn find<'a>(spec: &'a Spec, wanted: &Wanted) -> Option<(&'a SpecDevice, bool)> {
    let named = |name: &str| spec.devices.iter().find(|device| device.name() == name);
    if let Some(device) = named(&wanted.uuid) {
        return Some((device, wanted.instance.is_some()));
    }
    // A MIG instance that is neither in the inventory nor just created has to be named.
    if wanted.uuid != wanted.gpu && wanted.instance.is_none() {
        return None;
    }
    if let Some(device) = named(&wanted.gpu) {
        return Some((device, false));
    }
    // Numbers change when a GPU is added or lost; the device node says which GPU is meant.
    let node = wanted.minor.map(|minor| format!("/dev/nvidia{minor}"));
    let is_it = |device: &&SpecDevice| match &node {
        Some(node) => device.has_node(node) || !device.has_a_gpu(),
        None => true,
    };
    let index = wanted.index?;
    let by_number = [index.to_string(), format!("gpu{index}")];
    let found = by_number.iter().find_map(|name| named(name).filter(is_it));
    let by_node = || {
        let node = node.as_deref()?;
        let mut devices = spec.devices.iter().filter(|device| device.name() != "all");
        devices.find(|device| device.has_node(node) && !device.name().contains(':'))
    };
    let only = || {
        let all = named("all")?;
        // On a node with several GPUs, the device `all` would give every one of them.
        let nodes = all
            .container_edits
            .get("deviceNodes")
            .and_then(Value::as_array)?;
        let gpus = nodes.iter().filter_map(|node| node.get("path")?.as_str());
        let gpus = gpus.filter(|path| {
            let number = path.strip_prefix("/dev/nvidia");
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        });
        let gpus: Vec<_> = gpus.collect();
        (gpus == [node.as_deref()?]).then_some(all)
    };
    found
        .or_else(by_node)
        .or_else(only)
        .map(|device| (device, false))
}

fn no_device(specs: &[FoundSpec], wanted: &Wanted) -> VendorError {
    let names = |found: &FoundSpec| {
        let names: Vec<_> = found.spec.devices.iter().map(SpecDevice::name).collect();
        if names.is_empty() {
            String::from("none")
        } else {
            names.join(", ")
        }
    };
    let first = specs.first();
    VendorError::NoDevice {
        path: first.map(|found| found.path.clone()).unwrap_or_default(),
        uuid: wanted.uuid.clone(),
        devices: first.map(names).unwrap_or_default(),
    }
}

/// Why a file is no specification.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error(transparent)]
    File(#[from] std::io::Error),
    #[error("it is larger than {MOST_BYTES} bytes")]
    TooLarge,
    #[error(transparent)]
    Utf8(#[from] std::string::FromUtf8Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Yaml(#[from] serde_saphyr::Error),
    #[error("cdiVersion {0:?} is no version")]
    Version(String),
}

fn read(path: &Path) -> Result<(Version, Spec), Unreadable> {
    let bytes = read_following(path)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Unreadable::TooLarge);
    }
    let text = String::from_utf8(bytes)?;
    let is_json = path.extension().is_some_and(|end| end == "json");
    let spec: Spec = if is_json {
        serde_json::from_str(&text)?
    } else {
        let options = serde_saphyr::options! { with_snippet: false };
        serde_saphyr::from_str_with_options(&text, options)?
    };
    let version = match &spec.cdi_version {
        Value::String(version) => version.clone(),
        other => other.to_string(),
    };
    match Version::of(&version) {
        Some(known) => Ok((known, spec)),
        None => Err(Unreadable::Version(version)),
    }
}

/// The directory is root's, and its files may be links (`/etc/cdi` as packages and operators lay it out).
fn read_following(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Adds edits to edits: lists get the entries that they lack, everything else keeps its first value.
pub fn add(into: &mut Map<String, Value>, edits: &Map<String, Value>) {
    for (key, value) in edits {
        match (into.get_mut(key), value) {
            (Some(Value::Array(list)), Value::Array(more)) => {
                for item in more {
                    if !list.iter().any(|known| is_same(key, known, item)) {
                        list.push(item.clone());
                    }
                }
            }
            (None, Value::Null) | (Some(_), _) => {}
            (None, value) => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Whether two entries of a list are for the same thing. A path in the container takes one node or mount.
fn is_same(list: &str, one: &Value, other: &Value) -> bool {
    let place = match list {
        "deviceNodes" => "path",
        "mounts" => "containerPath",
        _ => return one == other,
    };
    one == other || (one.get(place).is_some() && one.get(place) == other.get(place))
}

/// The names in a directory, in order; empty if there is no such directory.
fn names(dir: &Path) -> std::io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}
