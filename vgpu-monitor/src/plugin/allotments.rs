//! The plugin's memory: the slots of each `Allocate`, and the container that each allotment was given to, in
//! a file that survives the process.
//!
//! One line for each allotment with a checksum of its own, so that a torn or damaged file costs the damaged
//! lines and no others; the file is written beside itself, synced and renamed. Never queries the kubelet or
//! the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use placement::{Grant, Granted, Instance, Kind, MigProfile, Span, Vendor};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use supervisor::instance::Workload;
use vgpu_abi::limits::Policy;

use crate::delivery::{Given, GivenDevice, GivenInstance, Name};
use crate::durable::replace;

/// More allotments are not kept: the oldest whose slots were allotted again since are forgotten first.
const MOST: usize = 8192;
/// A larger file was not written by this program.
const MOST_BYTES: u64 = 64 << 20;

/// The slots of one `Allocate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allotment {
    /// The order of allotments: a greater number is later.
    pub order: u64,
    /// Its name, new for each allotment.
    pub name: String,
    /// The resource that was asked for.
    pub resource: String,
    /// The slots, sorted.
    pub ids: Vec<String>,
    /// The container that it was given to, once that is known.
    #[serde(default, rename = "claim", skip_serializing_if = "Option::is_none")]
    pub recipient: Option<Recipient>,
}

/// The container that an allotment was given to, and its shares. The first written shares stay: later changes of the
/// pod's annotations change nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recipient {
    /// The pod's uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// The container.
    pub container: String,
    /// `app`, `init` or `sidecar`.
    pub kind: String,
    /// Word of the vendor.
    pub vendor: String,
    /// The shares, in the order in which the container sees them.
    pub shares: Vec<GpuShare>,
    /// The priority; 0 is the highest.
    pub priority: u32,
    /// When its cap on compute time holds.
    pub policy: String,
    /// The workload under which metrics sum up the container's use.
    #[serde(default, skip_serializing_if = "Workload::is_unknown")]
    pub workload: Workload,
    /// The pod's trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Whether the pod's annotations name this allotment.
    #[serde(default)]
    pub told: bool,
}

/// A share of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuShare {
    /// UUID of the GPU.
    #[serde(rename = "card")]
    pub gpu: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// The GPU's (or instance's) memory as the driver has it.
    pub physical_bytes: u64,
    /// Compute in the GPU's unit.
    pub cores: u32,
    /// Slots of the GPU.
    pub slots: u32,
    /// The instance that is cut out of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Cut>,
}

/// A MIG instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Name of the profile.
    pub profile: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its compute.
    pub cores: u32,
    /// Its slices of compute.
    pub slices: u32,
    /// First slice.
    pub start: u32,
    /// Number of slices.
    pub size: u32,
    /// The driver's names for it, once it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<InstanceNames>,
}

/// The driver's names for an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceNames {
    /// Its UUID.
    pub uuid: String,
    /// Number of the GPU instance.
    pub gpu_instance: u32,
    /// Number of the compute instance.
    pub compute_instance: u32,
}

impl Cut {
    /// The profile, as far as it matters here.
    pub fn profile(&self) -> MigProfile {
        MigProfile {
            name: self.profile.clone(),
            memory_bytes: self.memory_bytes,
            cores: self.cores,
            slices: self.slices,
            placements: vec![self.span()],
        }
    }

    /// Its position on the GPU.
    pub fn span(&self) -> Span {
        Span {
            start: self.start,
            size: self.size,
        }
    }
}

impl Recipient {
    /// When the container runs.
    pub fn kind(&self) -> Kind {
        match self.kind.as_str() {
            "init" => Kind::Init,
            "sidecar" => Kind::Sidecar,
            _ => Kind::App,
        }
    }

    /// Its devices, as `placement` counts them.
    pub fn granted(&self) -> Granted {
        let vendor = Vendor::new(&self.vendor);
        let grants = self.shares.iter().map(|share| Grant {
            slots: share.slots,
            instance: share.instance.as_ref().map(|cut| Instance {
                profile: cut.profile.as_str().into(),
                span: cut.span(),
            }),
            ..Grant::new(vendor.clone(), &share.gpu, share.memory_bytes, share.cores)
        });
        Granted {
            kind: self.kind(),
            grants: grants.collect(),
        }
    }

    /// The delivery to its container. A share of an instance that is not made yet bears the GPU's name.
    pub fn given(&self) -> Given {
        let devices = self.shares.iter().map(|share| {
            let made = share.instance.as_ref().and_then(|cut| {
                let made = cut.made.as_ref()?;
                let instance = GivenInstance {
                    gpu: share.gpu.clone(),
                    profile: cut.profile.clone(),
                    span: cut.span(),
                    gpu_instance: made.gpu_instance,
                    compute_instance: made.compute_instance,
                };
                Some((made.uuid.clone(), instance))
            });
            let (uuid, instance) = made.unzip();
            GivenDevice {
                uuid: uuid.unwrap_or_else(|| share.gpu.clone()),
                memory_bytes: share.memory_bytes,
                physical_bytes: share.physical_bytes,
                cores: share.cores,
                floor: 0,
                oversubscribe_bytes: 0,
                instance,
            }
        });
        Given {
            namespace: self.namespace.clone(),
            pod: self.pod.clone(),
            pod_uid: self.uid.clone(),
            container: self.container.clone(),
            kind: self.kind(),
            devices: devices.collect(),
            priority: self.priority,
            policy: policy(&self.policy),
            workload: self.workload.clone(),
            traceparent: self.traceparent.clone(),
            claim: None,
        }
    }

    /// Whether both give the same shares, apart from instances made and annotations written since.
    pub fn same(&self, other: &Self) -> bool {
        let plain = |recipient: &Self| {
            let mut recipient = recipient.clone();
            recipient.told = false;
            recipient.workload = Workload::default();
            recipient.traceparent = None;
            for share in &mut recipient.shares {
                share.physical_bytes = 0;
                if let Some(cut) = &mut share.instance {
                    cut.made = None;
                }
            }
            recipient
        };
        plain(self) == plain(other)
    }
}

/// The word of a kind of container.
pub fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::App => "app",
        Kind::Init => "init",
        Kind::Sidecar => "sidecar",
    }
}

/// The word of a policy.
pub fn policy_word(policy: Policy) -> &'static str {
    match policy {
        Policy::Default => "default",
        Policy::Force => "force",
        Policy::Floor => "floor",
        Policy::Disable => "disable",
    }
}

fn policy(word: &str) -> Policy {
    match word {
        "force" => Policy::Force,
        "floor" => Policy::Floor,
        "disable" => Policy::Disable,
        _ => Policy::Default,
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    sum: String,
    allotment: serde_json::Value,
}

fn sum(text: &str) -> String {
    use std::fmt::Write as _;
    let mut sum = String::new();
    for byte in Sha256::digest(text.as_bytes()).iter().take(8) {
        // A String takes all that is written to it.
        write!(sum, "{byte:02x}").unwrap_or_default();
    }
    sum
}

/// The allotments in a file's text, and the number of lines that could not be read.
fn decode(text: &[u8]) -> (Vec<Allotment>, usize) {
    let (mut found, mut broken) = (BTreeMap::new(), 0);
    for line in text.split(|byte| *byte == b'\n') {
        if line.is_empty() {
            continue;
        }
        let read = serde_json::from_slice::<Line>(line).ok().and_then(|line| {
            (sum(&line.allotment.to_string()) == line.sum)
                .then(|| serde_json::from_value::<Allotment>(line.allotment).ok())
                .flatten()
        });
        match read {
            Some(allotment) => {
                found.insert(allotment.order, allotment);
            }
            None => broken += 1,
        }
    }
    (found.into_values().collect(), broken)
}

fn encode(allotments: &[Allotment]) -> serde_json::Result<String> {
    let mut text = String::new();
    for allotment in allotments {
        let allotment = serde_json::to_value(allotment)?;
        let line = Line {
            sum: sum(&allotment.to_string()),
            allotment,
        };
        text += &serde_json::to_string(&line)?;
        text.push('\n');
    }
    Ok(text)
}

/// All allotments, in memory and in their file. Calls block for as long as the file takes.
#[derive(Debug)]
pub struct AllotmentStore {
    path: PathBuf,
    inner: Mutex<AllotmentsInner>,
}

#[derive(Debug, Default)]
struct AllotmentsInner {
    /// By order.
    allotments: Vec<Allotment>,
    next: u64,
    /// Memory and file differ.
    unwritten: bool,
    errors: u64,
}

/// The contents of the file at the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Opened {
    /// Allotments that could be read.
    pub read: usize,
    /// Lines that could not.
    pub broken: usize,
    /// There was no file.
    pub absent: bool,
}

impl AllotmentStore {
    /// Opens the file, or begins one. A file that cannot be read is kept aside as `….broken`, and never in the way.
    pub fn open(path: &Path) -> (Self, Opened) {
        let mut opened = Opened::default();
        let mut allotments = Vec::new();
        match read(path) {
            Ok(text) => {
                (allotments, opened.broken) = decode(&text);
                opened.read = allotments.len();
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => opened.absent = true,
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "cannot read the file of allotments");
                opened.broken = 1;
            }
        }
        if opened.broken > 0 {
            let aside = path.with_extension("broken");
            if let Err(error) = std::fs::rename(path, &aside) {
                tracing::warn!(%error, "cannot move the broken file aside");
            }
            tracing::warn!(
                broken = opened.broken,
                read = opened.read,
                kept = %aside.display(),
                "the file of allotments is damaged; missing ones are restored from the kubelet's record"
            );
        }
        let next = allotments.last().map_or(1, |last| last.order + 1);
        let inner = AllotmentsInner {
            allotments,
            next,
            unwritten: opened.broken > 0,
            errors: 0,
        };
        let store = Self {
            path: path.to_path_buf(),
            inner: Mutex::new(inner),
        };
        (store, opened)
    }

    /// Remembers an allotment. If the file cannot be written it is remembered nevertheless, written with the
    /// next change, and counted.
    ///
    /// # Errors
    ///
    /// When the file could not be written.
    pub fn add(&self, name: &Name, resource: &str, ids: &[String]) -> io::Result<u64> {
        let mut inner = self.inner.lock();
        let order = inner.next;
        inner.next += 1;
        let mut ids = ids.to_vec();
        ids.sort();
        ids.dedup();
        inner.allotments.push(Allotment {
            order,
            name: name.0.clone(),
            resource: resource.to_owned(),
            ids,
            recipient: None,
        });
        inner.forget_superseded();
        self.write(&mut inner)?;
        Ok(order)
    }

    /// Adds allotments that directories and the kubelet's record name, in the order of the slice. Names that are known
    /// already are skipped. The added ones count as older than all known ones.
    pub fn recover(&self, found: Vec<Allotment>) -> usize {
        let mut inner = self.inner.lock();
        let known: BTreeSet<String> = inner.allotments.iter().map(|a| a.name.clone()).collect();
        let mut found: Vec<Allotment> = found
            .into_iter()
            .filter(|allotment| !known.contains(&allotment.name))
            .collect();
        let count = found.len();
        if count == 0 {
            return 0;
        }
        found.append(&mut inner.allotments);
        for (order, allotment) in (1_u64..).zip(&mut found) {
            allotment.order = order;
        }
        inner.next = found.last().map_or(1, |last| last.order + 1);
        inner.allotments = found;
        drop(self.write(&mut inner));
        count
    }

    /// Records the containers that allotments were given to, by the allotments' names: a recovery changes orders. Names
    /// that are gone are skipped.
    ///
    /// # Errors
    ///
    /// When the file could not be written. It is remembered nevertheless.
    pub fn record(&self, recipients: &[(Name, Recipient)]) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let mut changed = false;
        for (name, recipient) in recipients {
            let found = inner.allotments.iter_mut().find(|a| a.name == name.0);
            if let Some(allotment) = found
                && allotment.recipient.as_ref() != Some(recipient)
            {
                allotment.recipient = Some(recipient.clone());
                changed = true;
            }
        }
        if changed || inner.unwritten {
            self.write(&mut inner)?;
        }
        Ok(())
    }

    /// Says that the pod's annotations are written.
    pub fn told(&self, uid: &str) {
        let mut inner = self.inner.lock();
        let mut changed = false;
        for recipient in inner
            .allotments
            .iter_mut()
            .filter_map(|a| a.recipient.as_mut())
        {
            changed |= recipient.uid == uid && !recipient.told;
            recipient.told |= recipient.uid == uid;
        }
        if changed {
            drop(self.write(&mut inner));
        }
    }

    /// Forgets allotments whose directories are gone.
    pub fn forget(&self, names: &[Name]) {
        let names: BTreeSet<&str> = names.iter().map(|name| name.0.as_str()).collect();
        let mut inner = self.inner.lock();
        let before = inner.allotments.len();
        inner
            .allotments
            .retain(|allotment| !names.contains(allotment.name.as_str()));
        if inner.allotments.len() != before {
            drop(self.write(&mut inner));
        }
    }

    /// Tries again to write what could not be written.
    pub fn catch_up(&self) {
        let mut inner = self.inner.lock();
        if inner.unwritten {
            drop(self.write(&mut inner));
        }
    }

    /// All of them, by order.
    pub fn all(&self) -> Vec<Allotment> {
        self.inner.lock().allotments.clone()
    }

    /// How many there are, how often the file could not be written, and whether it lacks something now.
    pub fn counts(&self) -> (usize, u64, bool) {
        let inner = self.inner.lock();
        (inner.allotments.len(), inner.errors, inner.unwritten)
    }

    fn write(&self, inner: &mut AllotmentsInner) -> io::Result<()> {
        let written = encode(&inner.allotments)
            .map_err(io::Error::other)
            .and_then(|text| replace(&self.path, text.as_bytes(), 0o644));
        inner.unwritten = written.is_err();
        if let Err(error) = &written {
            inner.errors += 1;
            tracing::error!(path = %self.path.display(), %error, "cannot write the file of allotments");
        }
        written
    }
}

impl AllotmentsInner {
    fn forget_superseded(&mut self) {
        while self.allotments.len() > MOST {
            let mut since = BTreeSet::new();
            let mut oldest = 0;
            for (at, allotment) in self.allotments.iter().enumerate().rev() {
                let resource = allotment.resource.as_str();
                if allotment
                    .ids
                    .iter()
                    .all(|id| since.contains(&(resource, id.as_str())))
                {
                    oldest = at;
                }
                since.extend(allotment.ids.iter().map(|id| (resource, id.as_str())));
            }
            self.allotments.remove(oldest);
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(MOST_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests;
