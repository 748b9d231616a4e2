//! One container as people and metrics see it: limits, labels, targets and region put together. Owns
//! which of them is trusted for which field.
//!
//! A container that cannot be read becomes an entry with the reason, and does not hide the others. Never
//! lets a text through that could move a terminal's cursor.

use std::path::{Path, PathBuf};

use nix::errno::Errno;
use vgpu_abi::host::{
    ComputeSnapshot, Counters, DeviceUseSnapshot, OomSnapshot, SlotSnapshot, Snapshot,
};
use vgpu_abi::limits::{self, Limits, Policy};
use vgpu_abi::region::Why;
use vgpu_abi::targets::{self, ComputeStatus, Head};
use vgpu_abi::waits::Waits;

use crate::ContainerError;
use crate::fence_file;
use crate::instance::{
    self, Broken, Instance, InstanceError, LIMITS, Labels, REGION, TARGETS, Workload,
};

/// A container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerView {
    /// Its directory.
    pub path: PathBuf,
    /// Uid that owns the directory.
    pub owner: u32,
    /// The name that people see.
    pub name: String,
    /// Kubernetes namespace; empty under `vgpu run`.
    pub namespace: String,
    /// Pod; empty under `vgpu run`.
    pub pod: String,
    /// Container; the name under `vgpu run`.
    pub container: String,
    /// Pod's uid; empty under `vgpu run`.
    pub pod_uid: String,
    /// The workload under which metrics sum up the container's use.
    pub workload: Workload,
    /// The ResourceClaim that gave it, in its namespace; `None` without one.
    pub claim: Option<ClaimView>,
    /// The command with its arguments; empty in a pod.
    pub command: Vec<String>,
    /// When it was made, seconds since 1970.
    pub created_unix: u64,
    /// Process that supervises it; 0 where the node agent does.
    pub runner_pid: u32,
    /// Whether that process lives; `None` if the node agent supervises.
    pub runner_alive: Option<bool>,
    /// Limits file of the container in which it was started: its memory is part of that container's, and
    /// counts once.
    pub outer_limits: Option<PathBuf>,
    /// Generation of the limits.
    pub limits_generation: u64,
    /// Priority, 0 is the highest.
    pub priority: u32,
    /// When the compute limits count.
    pub policy: Policy,
    /// When the arbiter last wrote its figures, nanoseconds of the monotonic clock; 0 is never.
    pub arbiter_at_ns: u64,
    /// Its devices, in the order in which it sees them.
    pub devices: Vec<DeviceView>,
    /// Its living processes that have touched a device.
    pub processes: Vec<ProcessView>,
    /// The last refusals, oldest first; at most 64 are kept.
    pub ooms: Vec<OomView>,
    /// Refusals that were recorded, ever.
    pub oom_count: u64,
    /// Requests that were refused, ever.
    pub refused: u64,
    /// Bounded waits for another process that ran out, ever.
    pub waits_ran_out: u64,
    /// Hooked calls, ever, by group ([`vgpu_abi::host::HOOK_GROUP_NAMES`]).
    pub hook_calls: Vec<(&'static str, u64)>,
    /// Every counter of the region.
    pub counters: Counters,
    /// Bytes that NVML sees and the region does not, over all devices; 0 until [`ContainerView::account`] is
    /// called.
    pub unaccounted_bytes: u64,
}

/// A ResourceClaim that gave a container its devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimView {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// A device of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceView {
    /// Its number, as the container counts.
    pub index: usize,
    /// Its UUID; empty where the limits go by index.
    pub uuid: String,
    /// Memory limit, bytes; 0 is no cap.
    pub limit_bytes: u64,
    /// Size of the device, bytes; 0 where it is not known.
    pub physical_bytes: u64,
    /// Compute limit, percent; 0 and 100 are no cap.
    pub core_percent: u32,
    /// Charged, bytes: buffers, contexts, modules, shared objects; of living processes, and of ended ones whose
    /// memory the driver may still hold.
    pub used_bytes: u64,
    /// Of these: of ended processes, bytes.
    pub ended_bytes: u64,
    /// Of these: contexts, bytes.
    pub context_bytes: u64,
    /// Of these: modules, bytes.
    pub module_bytes: u64,
    /// Of these: buffers and shared objects, bytes.
    pub buffer_bytes: u64,
    /// Of the buffers: objects that several processes hold, bytes.
    pub shared_bytes: u64,
    /// Asked for and not answered yet, bytes.
    pub pending_bytes: u64,
    /// More is used than the limit allows: nothing new is granted until it has shrunk.
    pub pending_shrink: bool,
    /// Share of compute time that it gets whenever it wants it, percent; 0 is none.
    pub floor_percent: u32,
    /// Of the limit, what may be memory of the device, bytes; 0 is all.
    pub resident_bytes: u64,
    /// The part of what is used that is managed memory past the container's share of the device, bytes.
    pub oversubscribed_bytes: u64,
    /// Compute credit, nanoseconds; below zero is debt.
    pub credit_ns: i64,
    /// GPU time that the container was charged for, living and dead processes together,
    /// nanoseconds.
    pub busy_ns: u64,
    /// Its launches, of living and dead processes together.
    pub compute: ComputeSnapshot,
    /// How long its launches waited at the gate, of living and dead processes together.
    pub waits: Waits,
    /// The arbiter's view when it last looked.
    pub seen: ComputeStatus,
    /// Bytes that NVML sees and the region does not.
    pub unaccounted_bytes: u64,
    /// The driver's own limit on the container's control group, bytes; 0 if there is none.
    pub driver_limit_bytes: u64,
    /// Why the driver has no limit; empty if it has one, or if none was tried.
    pub driver_limit_reason: String,
}

impl DeviceView {
    /// Which fences keep the container to its limit on the device: `both`, `library`, `driver`, or `none`.
    /// `is_reached` says whether the library reaches the container's processes.
    #[must_use]
    pub fn fences(&self, is_reached: bool) -> &'static str {
        match (
            is_reached && self.limit_bytes != 0,
            self.driver_limit_bytes != 0,
        ) {
            (true, true) => "both",
            (true, false) => "library",
            (false, true) => "driver",
            (false, false) => "none",
        }
    }
}

/// A process of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessView {
    /// Its slot in the region.
    pub slot: usize,
    /// Process id in its own namespace, as it says.
    pub pid: u32,
    /// Process id on the host, as the kernel says; `None` if it is not visible from here.
    pub host_pid: Option<u32>,
    /// Name of the program, as it says.
    pub name: String,
    /// When it joined, seconds since 1970, as it says.
    pub joined_unix: u64,
    /// Its use, by the container's device number.
    pub devices: Vec<DeviceUseSnapshot>,
    /// Hooked calls.
    pub hook_calls: u64,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomView {
    /// Its number, from 0.
    pub number: u64,
    /// When, nanoseconds since 1970.
    pub time_unix_ns: u64,
    /// Process that made the request: its id in its own namespace.
    pub pid: u32,
    /// The refused call.
    pub call: String,
    /// The container's device number.
    pub device: usize,
    /// Asked for, bytes.
    pub asked: u64,
    /// The limit then, bytes.
    pub limit: u64,
    /// Used then, bytes.
    pub used: u64,
    /// Memory that the driver held beyond the charges at that moment, bytes; that part of the limit was not
    /// available.
    pub unaccounted: u64,
    /// Why it was refused.
    pub why: Why,
    /// The largest holders, largest first.
    pub holders: Vec<HolderView>,
}

impl OomView {
    /// The smallest limit under which the request would have been let in, bytes.
    #[must_use]
    pub fn would_fit(&self) -> u64 {
        self.used
            .saturating_add(self.unaccounted)
            .saturating_add(self.asked)
    }
}

/// A process that held memory when a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HolderView {
    /// Process id in its own namespace; nothing for objects that several processes hold.
    pub pid: Option<u32>,
    /// The memory it held, bytes.
    pub bytes: u64,
}

/// Everything below a root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Views {
    /// Containers, in order of path.
    pub containers: Vec<ContainerView>,
    /// Directories that looked like a container and could not be read.
    pub broken: Vec<Broken>,
    /// Directories that this process may not read: other users' ones.
    pub unreadable: Vec<PathBuf>,
}

impl Views {
    /// The memory of a GPU that all containers together may have, bytes. One that was started
    /// inside another has its part of that one's.
    #[must_use]
    pub fn limits_bytes(&self, uuid: &str) -> u64 {
        self.containers
            .iter()
            .filter(|container| container.outer_limits.is_none())
            .flat_map(|container| &container.devices)
            .filter(|device| device.uuid == uuid)
            .map(|device| match device.resident_bytes {
                0 => device.limit_bytes,
                bytes => bytes,
            })
            .fold(0, |sum: u64, bytes| sum.saturating_add(bytes))
    }
}

/// Reads every container below a root.
///
/// # Errors
/// The root itself cannot be read.
pub fn read_all(root: &Path) -> Result<Views, InstanceError> {
    let mut views = Views::default();
    let mut broken = Vec::new();
    let scan = instance::scan(root, &mut |instance| match read(&instance) {
        Ok(view) => views.containers.push(view),
        Err(reason) => broken.push(Broken {
            path: instance.path().to_owned(),
            reason: reason.to_string(),
        }),
    })?;
    views.broken = broken;
    views.broken.extend(scan.broken);
    views.unreadable = scan.unreadable;
    Ok(views)
}

/// Reads one container.
///
/// # Errors
/// A file is missing, of the wrong kind, owned by another user, or invalid; the error says which.
pub fn read(instance: &Instance) -> Result<ContainerView, ContainerError> {
    let limits = read_limits(instance)?;
    let labels = match instance.labels() {
        Ok(labels) => labels,
        Err(error) if error.errno() == Some(Errno::ENOENT) => Labels::default(),
        Err(error) => return Err(error.into()),
    };
    let snapshot = snapshot(instance)?;
    let runner_alive = (labels.runner_pid != 0).then(|| instance.runner_lives());
    // Without targets no arbiter serves the container; the rest can still be shown.
    let head = targets_head(instance).unwrap_or_default();
    let ended = ended(instance, &snapshot, &head);
    let mut view = compose(
        instance,
        &limits,
        labels,
        &snapshot,
        &ended,
        &head,
        runner_alive,
    );
    // Only root sets limits of the driver; what another user wrote there is no fence.
    if let Some(fence) = fence_file::read(instance).filter(|_| instance.owner() == 0) {
        for device in &mut view.devices {
            let known = fence.devices.iter().find(|it| it.uuid == device.uuid);
            device.driver_limit_bytes = known.map_or(0, |known| known.limit_bytes);
            device.driver_limit_reason = known.map_or_else(String::new, |it| plain(&it.reason));
        }
    }
    Ok(view)
}

/// Reads the limits of an instance, checking first that its owner wrote them.
///
/// # Errors
/// As [`read`].
pub fn read_limits(instance: &Instance) -> Result<Limits, ContainerError> {
    let file = instance.host_file(LIMITS, false)?;
    // Never mapped: on a shared board the owner is another user that could shorten the file.
    limits::read_file(&file).map_err(ContainerError::Limits)
}

/// Reads the region of an instance.
///
/// # Errors
/// As [`read`].
pub fn snapshot(instance: &Instance) -> Result<Snapshot, ContainerError> {
    use std::os::fd::AsFd;
    vgpu_abi::host::snapshot_at(instance.dir().as_fd(), REGION).map_err(ContainerError::Region)
}

/// Reads the region of the instance at a path.
///
/// # Errors
/// As [`read`].
pub fn snapshot_at(path: &Path) -> Result<Snapshot, ContainerError> {
    let instance = Instance::open(path)?;
    snapshot(&instance)
}

/// Reads what the arbiter published of an instance as a whole.
///
/// # Errors
/// As [`read`].
pub fn targets_head(instance: &Instance) -> Result<Head, ContainerError> {
    let file = instance.host_file(TARGETS, false)?;
    targets::read_head(file).map_err(ContainerError::Targets)
}

/// The arbiter's word of an ended process counts as long as the arbiter has spoken within this time.
const SILENT_NS: u64 = 2_000_000_000;

/// Slots of ended processes whose charges still count.
fn ended(instance: &Instance, snapshot: &Snapshot, head: &Head) -> Vec<usize> {
    let dead = || snapshot.slots.iter().filter(|slot| !slot.alive);
    if dead().next().is_none() {
        return Vec::new();
    }
    let now_ns = snapshot.read_at_ns;
    let told = if now_ns.saturating_sub(head.heartbeat_ns) < SILENT_NS {
        let file = instance.host_file(TARGETS, false).ok();
        file.and_then(|file| targets::read_targets(file, dead().map(|slot| slot.slot)).ok())
            .unwrap_or_default()
    } else {
        Vec::new()
    };
    let released = |slot: &SlotSnapshot| {
        told.iter()
            .find(|(at, target)| *at == slot.slot && target.slot_generation == slot.generation)
            .map(|(_, target)| target.released)
    };
    dead()
        .filter(|slot| slot.is_kept(released(slot), now_ns))
        .map(|slot| slot.slot)
        .collect()
}

/// `ended`: slots of ended processes whose charges count.
fn compose(
    instance: &Instance,
    limits: &Limits,
    labels: Labels,
    snapshot: &Snapshot,
    ended: &[usize],
    head: &Head,
    runner_alive: Option<bool>,
) -> ContainerView {
    let name = if labels.name.is_empty() {
        instance
            .path()
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default()
    } else {
        labels.name
    };
    let hook_calls = vgpu_abi::host::HOOK_GROUP_NAMES
        .into_iter()
        .zip(snapshot.counters.hook_calls)
        .collect();
    ContainerView {
        path: instance.path().to_owned(),
        owner: instance.owner(),
        name: plain(&name),
        namespace: plain(&labels.namespace),
        pod: plain(&labels.pod),
        container: plain(&labels.container),
        pod_uid: plain(&labels.pod_uid),
        workload: Workload {
            team: plain(&labels.workload.team),
            kind: plain(&labels.workload.kind),
            name: plain(&labels.workload.name),
        },
        claim: labels.claim.as_ref().map(|claim| ClaimView {
            name: plain(&claim.name),
            uid: plain(&claim.uid),
        }),
        command: labels.command.iter().map(|word| plain(word)).collect(),
        created_unix: labels.created_unix,
        runner_pid: labels.runner_pid,
        runner_alive,
        outer_limits: labels.outer_limits,
        limits_generation: limits.generation,
        priority: limits.priority,
        policy: limits.policy,
        arbiter_at_ns: head.heartbeat_ns,
        devices: (0..limits.devices.len())
            .filter_map(|index| device(index, limits, snapshot, ended, head))
            .collect(),
        processes: snapshot
            .slots
            .iter()
            .filter(|slot| slot.alive)
            .map(|slot| process(slot, limits.devices.len()))
            .collect(),
        ooms: snapshot.ooms.iter().map(oom).collect(),
        oom_count: snapshot.counters.ooms,
        refused: snapshot.counters.refused,
        waits_ran_out: snapshot.counters.waits_ran_out,
        hook_calls,
        counters: snapshot.counters,
        unaccounted_bytes: (0..limits.devices.len())
            .filter_map(|index| head.unaccounted.get(index))
            .fold(0, |sum, at| sum.saturating_add(at.bytes)),
    }
}

fn device(
    index: usize,
    limits: &Limits,
    snapshot: &Snapshot,
    ended: &[usize],
    head: &Head,
) -> Option<DeviceView> {
    let limit = limits.devices.get(index)?;
    let mut sum = DeviceUseSnapshot::default();
    let mut ended_bytes = 0_u64;
    let counts = |slot: &&SlotSnapshot| slot.alive || ended.contains(&slot.slot);
    for slot in snapshot.slots.iter().filter(counts) {
        let Some(used) = slot.devices.get(index) else {
            continue;
        };
        if !slot.alive {
            ended_bytes = ended_bytes.saturating_add(used.confirmed_bytes);
        }
        sum.pending_bytes = sum.pending_bytes.saturating_add(used.pending_bytes);
        sum.buffer_bytes = sum.buffer_bytes.saturating_add(used.buffer_bytes);
        sum.context_bytes = sum.context_bytes.saturating_add(used.context_bytes);
        sum.module_bytes = sum.module_bytes.saturating_add(used.module_bytes);
        sum.oversubscribed_bytes = sum
            .oversubscribed_bytes
            .saturating_add(used.oversubscribed_bytes);
        sum.compute = sum.compute.and(&used.compute);
    }
    let region = snapshot.devices.get(index);
    let shared_bytes = region.map_or(0, |device| device.shared_bytes);
    let used_bytes = snapshot.used_bytes(index).saturating_add(ended_bytes);
    Some(DeviceView {
        index,
        uuid: limit.uuid.as_str().to_owned(),
        limit_bytes: limit.memory_bytes,
        physical_bytes: limit.physical_bytes,
        core_percent: limit.core_percent,
        used_bytes,
        ended_bytes,
        context_bytes: sum.context_bytes,
        module_bytes: sum.module_bytes,
        buffer_bytes: sum.buffer_bytes.saturating_add(shared_bytes),
        shared_bytes,
        pending_bytes: sum.pending_bytes,
        pending_shrink: limit.memory_bytes != 0 && used_bytes > limit.memory_bytes,
        floor_percent: limit.floor_percent,
        resident_bytes: limit.resident_bytes,
        oversubscribed_bytes: sum.oversubscribed_bytes,
        credit_ns: region.map_or(0, |device| device.credit_ns),
        busy_ns: region.map_or(0, |device| device.busy_ns),
        compute: region.map_or(sum.compute, |device| sum.compute.and(&device.past)),
        waits: region.map_or_else(Waits::default, |device| device.waits),
        seen: head.seen.get(index).copied().unwrap_or_default(),
        unaccounted_bytes: head.unaccounted.get(index).map_or(0, |at| at.bytes),
        driver_limit_bytes: 0,
        driver_limit_reason: String::new(),
    })
}

fn process(slot: &SlotSnapshot, devices: usize) -> ProcessView {
    ProcessView {
        slot: slot.slot,
        pid: slot.pid,
        host_pid: slot.host_pid,
        name: plain(&slot.name),
        joined_unix: slot.joined_unix_ns / 1_000_000_000,
        devices: slot.devices.iter().take(devices).copied().collect(),
        hook_calls: slot
            .hook_calls
            .iter()
            .fold(0, |sum, n| sum.saturating_add(*n)),
    }
}

fn oom(record: &OomSnapshot) -> OomView {
    OomView {
        number: record.number,
        time_unix_ns: record.time_unix_ns,
        pid: record.pid,
        call: plain(&record.call),
        device: record.device,
        asked: record.asked,
        limit: record.limit,
        used: record.used,
        unaccounted: record.unaccounted,
        why: record.why,
        holders: record
            .holders
            .iter()
            .filter(|holder| holder.pid != 0)
            .map(|holder| HolderView {
                pid: (holder.pid != SHARED_HOLDER).then_some(holder.pid),
                bytes: holder.bytes,
            })
            .collect(),
    }
}

/// Stands for shared objects in a list of holders.
const SHARED_HOLDER: u32 = u32::MAX;

/// Texts longer than this are cut.
const LONGEST_TEXT: usize = 253;

/// A text that a tenant may have written, without what a terminal or a log would act on.
fn plain(text: &str) -> String {
    let harmful = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    text.chars()
        .take(LONGEST_TEXT)
        .map(|c| if harmful(c) { '?' } else { c })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;

    /// A container's view without its files.
    pub(crate) fn view(instance: &Instance, limits: &Limits, region: &Snapshot) -> ContainerView {
        let head = Head::default();
        compose(
            instance,
            limits,
            Labels::default(),
            region,
            &[],
            &head,
            None,
        )
    }

    #[test]
    fn tenant_texts_lose_control_characters() {
        assert_eq!(plain("a\u{1b}[2J\nb\u{202e}c"), "a?[2J?b?c");
        assert_eq!(plain("größe 🦀"), "größe 🦀");
        assert_eq!(plain(&"x".repeat(1000)).len(), LONGEST_TEXT);
    }

    #[test]
    fn broken_container_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("limits"), "nonsense").unwrap();
        }
        let path = dir.path().join("b");
        fs::remove_file(path.join("limits")).unwrap();
        make(&path);

        let views = read_all(dir.path()).unwrap();

        let names: Vec<_> = views.containers.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["b"]);
        assert_eq!(views.containers[0].devices[0].limit_bytes, 1 << 30);
        assert_eq!(views.broken.len(), 2);
        assert!(views.broken[0].reason.starts_with("limits: "), "{views:?}");
    }

    fn make(path: &Path) {
        use vgpu_abi::limits::{DeviceLimit, LimitsFile};
        use vgpu_abi::region::{NewDevice, Region};
        let limits = Limits {
            devices: vec![DeviceLimit {
                memory_bytes: 1 << 30,
                ..DeviceLimit::default()
            }],
            ..Limits::default()
        };
        LimitsFile::create(&path.join(LIMITS), &limits).unwrap();
        Region::create(&path.join(REGION), &[NewDevice::default()], 0o600).unwrap();
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]
        #[test]
        fn random_file_bytes_never_panic_the_reader(
            spots in proptest::collection::vec((0_usize..2_777_088, proptest::num::u8::ANY), 1..200),
            limits_spots in proptest::collection::vec((0_usize..12_288, proptest::num::u8::ANY), 0..20),
            labels in "\\PC{0,60}",
        ) {
            let dir = tempfile::tempdir().unwrap();
            make(dir.path());
            for (file, spots) in [(REGION, &spots), (LIMITS, &limits_spots)] {
                let path = dir.path().join(file);
                let mut bytes = fs::read(&path).unwrap();
                for (at, byte) in spots {
                    if let Some(place) = bytes.get_mut(*at) {
                        *place = *byte;
                    }
                }
                fs::write(&path, bytes).unwrap();
            }
            fs::write(dir.path().join(instance::LABELS), labels).unwrap();
            let instance = Instance::open(dir.path()).unwrap();

            if let Ok(mut view) = read(&instance) {
                view.account(&[]);
                proptest::prop_assert!(view.devices.len() <= vgpu_abi::layout::MAX_DEVICES);
                proptest::prop_assert!(view.processes.len() <= vgpu_abi::layout::MAX_SLOTS);
            }
        }
    }
}
