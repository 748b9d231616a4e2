//! The delivery to a container, as files of the host: its directory with limits and region, the library, and the
//! description for the runtime (CDI). Never finds out which container it is: the caller passes its name.
//!
//! Never shortens or replaces a file that a running container may have mapped, never maps the region, and
//! never answers before everything that it promised is on the disk.

pub mod cdi;
mod files;
pub mod library;
mod loads;
mod place;
mod record;
#[cfg(test)]
pub(crate) mod tests;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use placement::{Kind, Span};
use supervisor::instance::{
    ClaimLabel, INSIDE, INSIDE_LIBRARY, INSIDE_REGION, InstanceError, Labels, REGION, Workload,
};
use supervisor::library::LibraryError;
use vgpu_abi::limits::{Limits, Policy};

use crate::delivery::loads::{GivenContainer, GpuLoads};
use crate::delivery::record::ContainerRecord;
use crate::delivery::turns::Turns;
use crate::node_gpus::Inventories;
use crate::steps::step;

/// The name of an allotment: new for each one, and of characters that paths, CDI names and annotations accept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub String);

impl Name {
    /// Makes a new name of 80 random bits.
    ///
    /// # Errors
    /// The system gives no random numbers.
    fn fresh() -> Result<Self, DeliveryError> {
        let mut bytes = [0_u8; 10];
        let source = Path::new("/dev/urandom");
        let mut file = std::fs::File::open(source).map_err(files::failed("open", source))?;
        file.read_exact(&mut bytes)
            .map_err(files::failed("read", source))?;
        let hex = bytes.iter().map(|byte| format!("{byte:02x}"));
        Ok(Self(format!("v{}", hex.collect::<String>())))
    }

    /// Checks a name that came from elsewhere and is about to become a part of a path.
    fn check(&self) -> Result<&str, DeliveryError> {
        let text = self.0.as_str();
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let begins = text
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_lowercase());
        if begins && text.len() <= 63 && text.bytes().all(plain) {
            return Ok(text);
        }
        Err(DeliveryError::Name {
            name: text.chars().take(80).collect(),
        })
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.0)
    }
}

/// How the runtime learns what a container gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// `Allocate` names a CDI device, and `PreStartContainer` writes its description (containerd 2, CRI-O).
    Cdi,
    /// `Allocate` gives mounts, and the pod's environment takes the GPUs from an annotation (containerd 1.6).
    Mounts,
    /// A part of a ResourceClaim: a CDI device for each of its GPUs, and what belongs to all of them once.
    Claim,
}

/// The answer to `Allocate` for one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allotted {
    /// Variables.
    pub env: Vec<(String, String)>,
    /// Mounts.
    pub mounts: Vec<Mount>,
    /// CDI devices, as `vendor/class=name`.
    pub cdi_devices: Vec<String>,
}

/// A mount of the host's file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The path on the host.
    pub host: PathBuf,
    /// The path in the container.
    pub container: PathBuf,
    /// Whether the container can only read it.
    pub read_only: bool,
}

/// All that one container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// The pod's uid.
    pub pod_uid: String,
    /// Name of the container.
    pub container: String,
    /// When it runs: an init container shares a GPU only with sidecars of its pod.
    pub kind: Kind,
    /// Its GPUs, in the order in which it sees them.
    pub devices: Vec<GivenDevice>,
    /// The priority; 0 is the highest.
    pub priority: u32,
    /// When its cap on compute time holds.
    pub policy: Policy,
    /// The workload under which metrics sum up the container's use.
    pub workload: Workload,
    /// The pod's trace, as the W3C `traceparent`, where it has one.
    pub traceparent: Option<String>,
    /// The ResourceClaim that gives it, and the pods that may use the claim.
    pub claim: Option<ClaimLabel>,
}

/// A part of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenDevice {
    /// UUID of the GPU, or of the MIG instance.
    pub uuid: String,
    /// Memory limit in bytes.
    pub memory_bytes: u64,
    /// The GPU's (or instance's) memory as the driver has it.
    pub physical_bytes: u64,
    /// Percent of the GPU's compute; 0 is no cap.
    pub cores: u32,
    /// Percent of the GPU's compute that the policy `floor` guarantees below the cap; 0 is all of `cores`, without a cap.
    pub floor: u32,
    /// Bytes that the container may have beyond its memory of the GPU, as managed memory.
    pub oversubscribe_bytes: u64,
    /// The instance that was cut out of a GPU for it.
    pub instance: Option<GivenInstance>,
}

/// A MIG instance that was made for a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenInstance {
    /// UUID of the GPU that it is a part of.
    pub gpu: String,
    /// Name of the profile (`3g.40gb`).
    pub profile: String,
    /// The slices that it has of the GPU.
    pub span: Span,
    /// The driver's number of the GPU instance.
    pub gpu_instance: u32,
    /// The driver's number of the compute instance in it.
    pub compute_instance: u32,
}

/// Paths, and how the runtime learns what a container gets.
#[derive(Debug, Clone)]
pub struct DeliverySettings {
    /// The state that outlives the agent, on the host: `containers`, `lib`.
    pub state_dir: PathBuf,
    /// The prefix of every path of the host as this process sees it; empty where the paths are the same.
    pub host_prefix: PathBuf,
    /// Where our CDI specifications are written, on the host.
    pub cdi_dir: PathBuf,
    /// Where the vendor's specification is looked for, on the host; later ones win.
    pub vendor_cdi_dirs: Vec<PathBuf>,
    /// The vendor's kind of CDI device.
    pub vendor_kind: String,
    /// The manner of new allotments.
    pub manner: Manner,
    /// The library, in the agent's own image.
    pub library: PathBuf,
    /// More variables for every container (CDI only).
    pub env: Vec<(String, String)>,
    /// The node's GPUs, with what may be promised of each.
    pub gpus: Inventories,
}

impl DeliverySettings {
    /// The places that the chart mounts.
    #[must_use]
    pub fn new(manner: Manner, gpus: Inventories) -> Self {
        Self {
            state_dir: PathBuf::from("/var/lib/vgpu"),
            host_prefix: PathBuf::new(),
            cdi_dir: PathBuf::from("/var/run/cdi"),
            vendor_cdi_dirs: vec![PathBuf::from("/etc/cdi"), PathBuf::from("/var/run/cdi")],
            vendor_kind: String::from("nvidia.com/gpu"),
            manner,
            library: PathBuf::from("/usr/lib/vgpu/libvgpu.so"),
            env: Vec::new(),
            gpus,
        }
    }

    /// A path of the host as this process sees it.
    fn seen(&self, host: &Path) -> PathBuf {
        if self.host_prefix.as_os_str().is_empty() {
            return host.to_owned();
        }
        let below = host.strip_prefix("/").unwrap_or(host);
        self.host_prefix.join(below)
    }
}

/// Why a container does not get what it was promised. Each is a sentence for the pod's events.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    /// A system call failed.
    #[error("cannot {action} {path}: {source}{}", if is_full(source) { "; make room on the node's disk" } else { "" },
            path = path.display())]
    System {
        /// The step that failed.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A container's directory cannot be used.
    #[error("{0}")]
    Instance(#[from] InstanceError),
    /// A file of a container that this release does not know.
    #[error("{path}: {reason}", path = path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// The file is no library for this machine.
    #[error("{0}")]
    Library(#[from] LibraryError),
    /// Programs could not load the library from where it would be.
    #[error("{path} is on a file system that is mounted noexec: no program could load the library from it; \
             mount it without, or choose another --state-dir", path = path.display())]
    NoExec {
        /// The directory.
        path: PathBuf,
    },
    /// The library that a container was started with is gone.
    #[error("{path}, the library that this container was allotted, is gone from the node; delete the pod, so that a \
             new one gets the present library", path = path.display())]
    LibraryGone {
        /// The path where it was.
        path: PathBuf,
    },
    /// The vendor's part cannot be found.
    #[error("{0}")]
    Vendor(#[from] cdi::VendorError),
    /// The request cannot become an allotment.
    #[error("{problem}")]
    Nonsense {
        /// The text that was read, and the accepted ones.
        problem: String,
    },
    /// Not a name that this agent makes.
    #[error(
        "{name:?} is no name of an allotment; accepted: at most 63 of a-z, 0-9 and -, a letter first"
    )]
    Name {
        /// The given text.
        name: String,
    },
    /// The GPUs of the node are not known yet.
    #[error("the node's GPUs have not been read yet; it is tried again")]
    NoInventory,
    /// The node has no such GPU.
    #[error("GPU {uuid} is not on this node; there {}", if known.is_empty() { String::from("are none") }
            else { format!("are: {}", known.join(", ")) })]
    UnknownGpu {
        /// The requested GPU.
        uuid: String,
        /// The node's GPUs.
        known: Vec<String>,
    },
    /// The request is for more than the GPU has. A retry may succeed: another container may be gone by then.
    #[error("{0}")]
    Overcommitted(Box<loads::Overcommit>),
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
    )
}

/// The node's deliveries to containers.
#[derive(Debug)]
pub struct Delivery {
    settings: DeliverySettings,
    /// `containers`, as this process sees it.
    root: PathBuf,
    /// The library for new allotments.
    library: library::Installed,
    /// Held while leftovers are cleared, and otherwise for no change of the disk.
    loads: Mutex<GpuLoads>,
    turns: Turns,
}

impl Delivery {
    /// Installs the library and reads what was given before.
    ///
    /// # Errors
    /// The state directory cannot be created or written, or the file is no library.
    pub fn new(settings: DeliverySettings) -> Result<Self, DeliveryError> {
        let state = settings.seen(&settings.state_dir);
        let root = state.join("containers");
        // A process that could pass through it could open other containers' regions.
        files::make_dir(&state, 0o755)?;
        files::make_dir(&root, 0o700)?;
        let library = library::install(&settings.library, &state.join("lib"))?;
        let loads = GpuLoads::read(&root)?;
        for (name, reason) in loads.broken() {
            tracing::warn!(%name, %reason, "a container's directory cannot be read; it stays, and its share counts \
                            as far as it is known");
        }
        Ok(Self {
            settings,
            root,
            library,
            loads: Mutex::new(loads),
            turns: Turns::default(),
        })
    }

    /// The directory below which containers have theirs, as this process sees it.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The name of the library's directory for new allotments.
    #[must_use]
    pub fn library(&self) -> &str {
        &self.library.version
    }

    /// Makes room for a container of which nothing is known yet, under a fresh name. Where the runtime has CDI that is
    /// a name alone; elsewhere a directory whose limits refuse everything until [`Delivery::give`].
    ///
    /// # Errors
    /// The disk is full.
    pub fn allot(&self) -> Result<(Name, Allotted), DeliveryError> {
        let name = Name::fresh()?;
        let mut allotted = Allotted {
            // An image may name GPUs in its own environment, and a runtime that looks there would add them.
            env: vec![cdi::NOTHING_VISIBLE.into_pair()],
            ..Allotted::default()
        };
        match self.settings.manner {
            Manner::Cdi | Manner::Claim => {
                allotted.cdi_devices.push(format!("{}={name}", cdi::KIND));
            }
            Manner::Mounts => {
                let record = ContainerRecord::empty(&name, Manner::Mounts, &self.library.version);
                let _turn = self.turns.of(&name);
                place::make(&self.root, &name, &record, &nothing())?;
                self.loads.lock().hold(&name, record);
                allotted.mounts = self.mounts(&name, &self.library.version);
            }
        }
        Ok((name, allotted))
    }

    /// Gives a container what it was promised. Called again (after a restart of the container or of the
    /// agent) it repairs what is missing and changes only what differs; limits change while the container
    /// runs.
    ///
    /// # Errors
    /// See [`DeliveryError`]: nothing is then promised of any GPU, and the container keeps what it had
    /// before.
    pub fn give(&self, name: &Name, given: &Given) -> Result<(), DeliveryError> {
        name.check()?;
        let inventory = self.settings.gpus.borrow().clone();
        let _turn = self.turns.of(name);
        let before = self.loads.lock().get(name).cloned();
        let old = before.as_ref().map(|held| &held.record);
        let manner = old.map_or(self.settings.manner, ContainerRecord::manner);
        let version = self.version_for(old, manner)?;
        let record = ContainerRecord::of(name, given, manner, &version, old)?;
        self.reserve(name, &record, inventory.as_deref())?;
        let placed = self.place(name, old, &record, inventory.as_deref());
        {
            let mut loads = self.loads.lock();
            match &placed {
                Ok(_) => loads.hold(name, record),
                Err(_) => loads.put_back(name, before),
            }
        }
        if let Some(spec) = placed? {
            step();
            files::replace_if_changed(&self.spec_path(name), &spec, 0o644)?;
            step();
        }
        Ok(())
    }

    /// Counts what a container is about to be given together with what it has, so that no other container is promised
    /// either while its files are written.
    fn reserve(
        &self,
        name: &Name,
        record: &ContainerRecord,
        inventory: Option<&crate::node_gpus::Inventory>,
    ) -> Result<(), DeliveryError> {
        let mut loads = self.loads.lock();
        // A container keeps what it was given, whatever has become of the GPUs or of the configuration.
        if loads.has_more(name, record) {
            let inventory = inventory.ok_or(DeliveryError::NoInventory)?;
            loads.check(name, record, inventory, &self.root)?;
        }
        loads.reserve(name, record);
        Ok(())
    }

    /// Makes or repairs a container's directory; returns the description for the runtime, which is to be written next.
    fn place(
        &self,
        name: &Name,
        before: Option<&ContainerRecord>,
        record: &ContainerRecord,
        inventory: Option<&crate::node_gpus::Inventory>,
    ) -> Result<Option<Vec<u8>>, DeliveryError> {
        let limits = record.limits()?;
        let limits = match inventory {
            Some(inventory) => loads::shared_out(limits, inventory),
            None => limits,
        };
        // Before anything is written: a refusal must leave no half.
        let spec = match record.manner() {
            Manner::Cdi | Manner::Claim => Some(self.spec(name, record, inventory)?),
            Manner::Mounts => None,
        };
        if before.is_some() {
            place::repair(&self.root, name, before, record, &limits)?;
        } else {
            place::make(&self.root, name, record, &limits)?;
        }
        Ok(spec)
    }

    /// The names of the allotments that have a directory.
    ///
    /// # Errors
    /// None today; the form leaves room for one.
    pub fn known(&self) -> Result<Vec<Name>, DeliveryError> {
        Ok(self.loads.lock().names())
    }

    /// Removes a container's allotment. Does nothing if there is none.
    ///
    /// # Errors
    /// Something cannot be deleted.
    pub fn remove(&self, name: &Name) -> Result<(), DeliveryError> {
        name.check()?;
        let _turn = self.turns.of(name);
        self.take_away(name)
    }

    /// The caller has the container's turn. What is not removed yet counts.
    fn take_away(&self, name: &Name) -> Result<(), DeliveryError> {
        // The description first: then no container can be started with the files that are removed next.
        step();
        files::remove(&self.spec_path(name))?;
        step();
        place::remove(&self.root, name)?;
        self.loads.lock().forget(name);
        Ok(())
    }

    fn spec_path(&self, name: &Name) -> PathBuf {
        let dir = self.settings.seen(&self.settings.cdi_dir);
        dir.join(format!("vgpu-{name}.json"))
    }

    fn spec(
        &self,
        name: &Name,
        record: &ContainerRecord,
        inventory: Option<&crate::node_gpus::Inventory>,
    ) -> Result<Vec<u8>, DeliveryError> {
        let dirs = self.settings.vendor_cdi_dirs.iter();
        let dirs: Vec<_> = dirs.map(|dir| self.settings.seen(dir)).collect();
        let vendor = cdi::Vendor {
            dirs: &dirs,
            kind: &self.settings.vendor_kind,
            capabilities: &self.settings.seen(Path::new(cdi::CAPABILITIES)),
            is_ours: |file| cdi::own_name(file).is_some(),
        };
        let wanted = record.wanted(inventory);
        let mounts = self.mounts(name, &record.library);
        let env = &self.settings.env;
        if record.manner() == Manner::Claim {
            let parts = vendor.parts(&wanted)?;
            return Ok(cdi::describe_claim(name, parts, &mounts, env));
        }
        let edits = vendor.edits(&wanted)?;
        Ok(cdi::describe(name, edits, &mounts, env))
    }

    /// The library: a container keeps the one that it had.
    fn version_for(
        &self,
        before: Option<&ContainerRecord>,
        manner: Manner,
    ) -> Result<String, DeliveryError> {
        let Some(before) = before.filter(|before| !before.library.is_empty()) else {
            return Ok(self.library.version.clone());
        };
        let lib = self.settings.seen(&self.settings.state_dir).join("lib");
        if library::is_there(&lib, &before.library) {
            return Ok(before.library.clone());
        }
        match manner {
            Manner::Cdi | Manner::Claim => Ok(self.library.version.clone()),
            // The kubelet keeps the paths of the first answer.
            Manner::Mounts => Err(DeliveryError::LibraryGone {
                path: lib.join(&before.library),
            }),
        }
    }

    /// The mounts of a container.
    fn mounts(&self, name: &Name, version: &str) -> Vec<Mount> {
        let place = self.settings.state_dir.join("containers").join(&name.0);
        let lib = self.settings.state_dir.join("lib").join(version);
        let mount = |host: PathBuf, container: &str, read_only| Mount {
            host,
            container: PathBuf::from(container),
            read_only,
        };
        vec![
            mount(place.clone(), INSIDE, true),
            mount(place.join(REGION), INSIDE_REGION, false),
            mount(lib.join(library::FILE), INSIDE_LIBRARY, true),
            mount(lib.join(library::PRELOAD), "/etc/ld.so.preload", true),
        ]
    }
}

/// The collector's questions and reports.
impl Delivery {
    /// A moment. An allotment given later is not removed because of what was known at this moment.
    pub(crate) fn moment(&self) -> u64 {
        self.loads.lock().moment()
    }

    /// The allotments that have a directory, with the pod's uid; empty where the allotment was given to no pod.
    pub(crate) fn holders(&self) -> BTreeMap<Name, String> {
        let loads = self.loads.lock();
        let pair = |(name, held): (&Name, &GivenContainer)| {
            (name.clone(), held.record.labels.pod_uid.clone())
        };
        loads.iter().map(pair).collect()
    }

    /// The shares that it was given, if it was given any.
    pub(crate) fn given(&self, name: &Name) -> Option<Given> {
        self.loads.lock().get(name)?.record.given()
    }

    /// The CDI device of a claim's part, by its place among the part's GPUs.
    pub(crate) fn claim_device(name: &Name, at: usize) -> String {
        format!("{}={}", cdi::KIND, cdi::claim_device(name, at))
    }

    /// The container that it was given to, if it was given.
    pub(crate) fn labels(&self, name: &Name) -> Option<Labels> {
        let loads = self.loads.lock();
        let labels = &loads.get(name)?.record.labels;
        (!labels.pod.is_empty()).then(|| labels.clone())
    }

    /// Writes down the claim that gave an allotment, with its pods; nothing else of the allotment changes.
    pub(crate) fn label_claim(&self, name: &Name, claim: &ClaimLabel) -> Result<(), DeliveryError> {
        name.check()?;
        let _turn = self.turns.of(name);
        let Some(mut record) = self.loads.lock().get(name).map(|held| held.record.clone()) else {
            return Ok(());
        };
        if record.labels.claim.as_ref() == Some(claim) {
            return Ok(());
        }
        record.labels.claim = Some(claim.clone());
        place::write_record(&self.root, name, &record)?;
        self.loads.lock().hold(name, record);
        Ok(())
    }

    /// Cuts back regions that their containers have made longer, and returns the names of the containers.
    pub(crate) fn trim(&self) -> Vec<(Name, Result<u64, DeliveryError>)> {
        let names = self.loads.lock().names();
        let cut = |name: Name| match place::trim(&self.root, &name) {
            Ok(0) => None,
            cut => Some((name, cut)),
        };
        names.into_iter().filter_map(cut).collect()
    }

    /// Positions of the instances given under names other than these, whose containers may still live: GPU
    /// and position.
    pub(crate) fn instances_but(&self, names: &BTreeSet<Name>) -> BTreeSet<(String, Span)> {
        let loads = self.loads.lock();
        let held = loads
            .iter()
            .filter(|(name, held)| !held.gone && !names.contains(*name));
        let devices = held.flat_map(|(_, held)| &held.record.devices);
        devices
            .filter_map(|device| {
                let instance = device.instance.as_ref()?;
                let (start, size) = (instance.start, instance.size);
                Some((instance.gpu.clone(), Span { start, size }))
            })
            .collect()
    }

    /// UUIDs of the GPUs of which a container has a share that was given under none of these names.
    pub(crate) fn gpus_but(&self, is_among: impl Fn(&Name) -> bool) -> BTreeSet<String> {
        let loads = self.loads.lock();
        let held = loads
            .iter()
            .filter(|(name, held)| !held.gone && !is_among(name));
        let devices = held.flat_map(|(_, held)| &held.record.devices);
        let gpu = |device: &record::RecordDevice| match &device.instance {
            Some(instance) => instance.gpu.clone(),
            None => device.uuid.clone(),
        };
        devices.map(gpu).collect()
    }

    /// Stops counting the containers whose pods both sources call gone.
    pub(crate) fn gone(&self, names: &BTreeSet<Name>, moment: u64) {
        self.loads.lock().gone(names, moment);
    }

    /// Whether a process holds a lock in its region.
    pub(crate) fn is_used(&self, name: &Name) -> bool {
        place::is_used(&self.root, name)
    }

    /// Removes the directory, unless it was given again since the moment.
    pub(crate) fn collect(&self, name: &Name, moment: u64) -> Result<bool, DeliveryError> {
        name.check()?;
        let _turn = self.turns.of(name);
        let is_later = |loads: &GpuLoads| loads.get(name).is_some_and(|held| held.touched > moment);
        if is_later(&self.loads.lock()) || self.is_used(name) {
            return Ok(false);
        }
        self.take_away(name)?;
        Ok(true)
    }

    /// Clears what a killed agent left half created or half removed, descriptions without a directory, and
    /// versions of the library that no container was given. Returns what it removed.
    pub(crate) fn tidy(&self) -> Result<Vec<PathBuf>, DeliveryError> {
        let _quiet = self.turns.all();
        let loads = self.loads.lock();
        let mut cleared = place::clear_halves(&self.root)?;
        let cdi = self.settings.seen(&self.settings.cdi_dir);
        cleared.extend(cdi::clear(&cdi, |name| loads.get(name).is_some())?);
        // A container whose directory cannot be read may use any of them.
        if loads.broken().next().is_none() {
            let mut kept: BTreeSet<&str> = BTreeSet::from([self.library.version.as_str()]);
            kept.extend(loads.iter().map(|(_, held)| held.record.library.as_str()));
            let lib = self.settings.seen(&self.settings.state_dir).join("lib");
            cleared.extend(library::clear(&lib, &kept)?);
        }
        Ok(cleared)
    }
}

/// Limits under which nothing is allowed.
fn nothing() -> Limits {
    Limits::default()
}
