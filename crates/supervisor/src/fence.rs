//! The driver's own memory limit as a second fence around a container: how high it is, on which control group, and what
//! is known of it afterwards. The library is the first fence; this one also holds for programs that the library does
//! not reach.
//!
//! A container without the second fence runs all the same, and its file says why. Never limits a control group that has
//! other processes than the container's: neither the root group, nor one that this process is in.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use vgpu_abi::host::Snapshot;
use vgpu_abi::limits::{DeviceLimit, Limits};

use crate::fence_file;
pub use crate::fence_file::{Fence, FencedDevice, read};
use crate::gpu::Gpus;
use crate::gpu::group_limit::{GroupLimit, NO_LIMIT};
use crate::instance::{self, INSIDE_LIMITS, Instance, LIMITS};
use crate::view;

/// Memory for a context that has not been measured yet, bytes, and as a part of the GPU: as the library guesses.
const CONTEXT_MOST: u64 = 640 << 20;
const CONTEXT_PART: u64 = 8;
/// How often [`Keeper`] compares limits and fences, nanoseconds.
const EVERY_NS: u64 = 1_000_000_000;
/// How often [`Keeper`] sets an unchanged limit again: a driver that was loaded anew has none, and a driver that refused
/// one may take it.
const AGAIN_NS: u64 = 60 * EVERY_NS;

/// The driver's limit for a container's limit, or none if the container has no cap. The driver counts whole contexts, so
/// there is room for one more than the library charges: `context_bytes` is the largest that the container's processes
/// had, 0 if there was none. Managed memory past the container's share of the GPU is the system's to the driver.
#[must_use]
pub fn limit_for(limit: &DeviceLimit, context_bytes: u64) -> Option<u64> {
    let cap = match (limit.memory_bytes, limit.resident_bytes) {
        (0, _) => return None,
        (bytes, 0) => bytes,
        (bytes, resident) => resident.min(bytes),
    };
    let guess = match limit.physical_bytes {
        0 => CONTEXT_MOST,
        physical => (physical / CONTEXT_PART).min(CONTEXT_MOST),
    };
    let context = match context_bytes {
        0 => guess,
        // A tenant can write any number into its region.
        learned => learned.min(guess.saturating_mul(4)),
    };
    Some(cap.saturating_add(context))
}

/// The path of the control group of version 2 in the text of `/proc/PID/cgroup`.
#[must_use]
pub fn path_in(text: &str) -> Option<&str> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    (path.starts_with('/') && !path.split('/').any(|part| part == "..")).then_some(path)
}

/// Where control groups of version 2 are mounted, in the text of `/proc/PID/mountinfo`.
#[must_use]
pub fn mount_in(text: &str) -> Option<&str> {
    text.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut fields = place.split(' ');
        let (root, at) = (fields.nth(3)?, fields.next()?);
        (kind.starts_with("cgroup2 ") && root == "/").then_some(at)
    })
}

/// The lowest group that contains all of these.
fn common(paths: &[String]) -> Option<PathBuf> {
    let (first, rest) = paths.split_first()?;
    let group = Path::new(first)
        .ancestors()
        .find(|group| rest.iter().all(|path| Path::new(path).starts_with(group)))?;
    Some(group.to_owned())
}

/// Whether a group may be limited for a container, seen from a process in the group `own`.
fn may_limit(group: &Path, own: &str) -> bool {
    group.parent().is_some() && !Path::new(own).starts_with(group)
}

fn group_of(pid: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    path_in(&text).map(str::to_owned)
}

/// The directory of a group.
fn directory(group: &Path) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let below = group.strip_prefix("/").ok()?;
    let directory = Path::new(mount_in(&mounts)?).join(below);
    directory.is_dir().then_some(directory)
}

/// The directory of the control group that these processes are in, if it is theirs alone.
#[must_use]
pub fn group_of_processes(pids: &[u32]) -> Option<PathBuf> {
    let groups: Vec<String> = pids
        .iter()
        .filter_map(|pid| group_of(&pid.to_string()))
        .collect();
    let group = common(&groups)?;
    may_limit(&group, &group_of("self")?)
        .then(|| directory(&group))
        .flatten()
}

/// Makes a control group below this process's own, for a command that is about to start.
///
/// # Errors
/// There are no control groups of version 2 here, or they cannot be written.
pub fn make_group(name: &str) -> std::io::Result<PathBuf> {
    let missing = || std::io::Error::from_raw_os_error(Errno::ENOENT as i32);
    let own = group_of("self").ok_or_else(missing)?;
    let group = directory(Path::new(&own))
        .ok_or_else(missing)?
        .join(format!("vgpu.{name}"));
    match fs::create_dir(&group) {
        // Of a command that was killed.
        Err(error) if error.raw_os_error() == Some(Errno::EEXIST as i32) => {}
        made => made?,
    }
    Ok(group)
}

/// This process in a control group, so that a command that it starts is there from its first moment. Dropped, the
/// process goes back to its own group.
#[derive(Debug)]
pub struct Entered {
    own: PathBuf,
}

/// Moves this process into a control group for a moment.
///
/// # Errors
/// The group cannot be entered.
pub fn enter(group: &Path) -> std::io::Result<Entered> {
    let missing = || std::io::Error::from_raw_os_error(Errno::ENOENT as i32);
    let own = group_of("self").and_then(|own| directory(Path::new(&own)));
    let own = own.ok_or_else(missing)?;
    move_to(group)?;
    Ok(Entered { own })
}

fn move_to(group: &Path) -> std::io::Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}

impl Drop for Entered {
    fn drop(&mut self) {
        // A process that cannot leave counts in the command's group, and takes no memory there.
        move_to(&self.own).ok();
    }
}

/// Sets the driver's limits on the container's control groups, and writes down how that went. The driver knows no limit
/// for several groups together, so each gets the whole one.
pub fn raise(
    gpus: &dyn Gpus,
    instance: &Instance,
    limits: &Limits,
    region: Option<&Snapshot>,
    groups: Result<&[PathBuf], &str>,
    is_made: bool,
) -> Fence {
    let known = read(instance);
    let devices = limits.devices.iter().enumerate().map(|(index, limit)| {
        let uuid = limit.uuid.as_str();
        let learned = region.and_then(|region| region.devices.get(index));
        let learned = learned.map_or(0, |device| device.context_bytes.max(device.module_bytes));
        let was = known.as_ref().map_or(0, |known| known.limit_bytes(uuid));
        let wanted = limit_for(limit, learned);
        let done = match (groups, wanted) {
            // Nothing to lift.
            (_, None) if was == 0 => Ok(()),
            (Err(reason), _) => Err(reason.to_owned()),
            (Ok(groups), wanted) => {
                let limit = GroupLimit {
                    // Nothing is kept for it: what is kept would stay kept if the group went without us.
                    soft_bytes: 0,
                    hard_bytes: wanted.unwrap_or(NO_LIMIT),
                };
                let mut groups = groups.iter();
                let set = groups.try_for_each(|group| gpus.limit_group(uuid, group, limit));
                set.map_err(|error| error.to_string())
            }
        };
        let limit_bytes = done.as_ref().map_or(0, |()| wanted.unwrap_or(0));
        FencedDevice {
            uuid: uuid.to_owned(),
            limit_bytes,
            reason: done.err().unwrap_or_default(),
        }
    });
    let fence = Fence {
        control_groups: groups.map(<[PathBuf]>::to_vec).unwrap_or_default(),
        is_made,
        devices: devices.collect(),
    };
    if known.as_ref() != Some(&fence) {
        // Unwritten, the fence holds, and is not shown.
        fence_file::write(instance, &fence).ok();
    }
    fence
}

/// Whether this process's user owns the directory. Another user could name any control group in it.
fn is_ours(instance: &Instance) -> bool {
    instance.owner() == nix::unistd::geteuid().as_raw()
}

/// Sets a container's second fence again, after its limits have changed, and returns the first device on which that
/// failed. Nothing happens if the container has none.
pub fn renew(gpus: &dyn Gpus, instance: &Instance) -> Option<FencedDevice> {
    let fence = read(instance).filter(|fence| {
        // A fence without a group holds nothing.
        is_ours(instance) && !fence.control_groups.is_empty()
    })?;
    let limits = view::read_limits(instance).ok()?;
    let region = view::snapshot(instance).ok();
    let now = raise(
        gpus,
        instance,
        &limits,
        region.as_ref(),
        Ok(&fence.control_groups),
        fence.is_made,
    );
    now.devices.into_iter().find(|it| !it.reason.is_empty())
}

/// Takes the driver's limits off the container's control group, and removes a group that `vgpu run` has made. A group
/// with processes stays.
pub fn lower(gpus: Option<&dyn Gpus>, instance: &Instance) {
    let Some(Fence {
        control_groups,
        is_made,
        devices,
    }) = read(instance).filter(|_| is_ours(instance))
    else {
        return;
    };
    let limited = devices.iter().filter(|device| device.limit_bytes != 0);
    for (gpus, device) in limited.filter_map(|device| Some((gpus?, device))) {
        let none = GroupLimit {
            soft_bytes: 0,
            hard_bytes: NO_LIMIT,
        };
        for group in &control_groups {
            // A group that is gone has no limits.
            gpus.limit_group(&device.uuid, group, none).ok();
        }
    }
    if is_made {
        for group in &control_groups {
            fs::remove_dir(group).ok();
        }
    }
}

/// What a look has found of a container's control groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundGroups {
    /// The directories of the groups that have the container's processes, and no others.
    Groups(Vec<PathBuf>),
    /// The container has no control group at the moment: no process of it runs.
    Gone,
    /// This process cannot tell; the text says why.
    Unseen(&'static str),
}

/// Finds the control groups of containers.
pub trait Finder {
    /// A look at these containers begins.
    fn begin(&mut self, now_ns: u64, instances: &[Instance]);

    /// The container's groups; `known` are those of the look before.
    fn find(&mut self, instance: &Instance, known: &[PathBuf]) -> FoundGroups;
}

/// The control groups of containers, by the device and inode of the limits file that their processes see. `None` for a
/// container if a group has a process with other limits, or with none.
type GroupsByLimits = HashMap<(u64, u64), Option<Vec<PathBuf>>>;

/// Finds a container's group by the limits that its processes see, or by the first process of an engine's container.
/// For a process in the host's control groups.
#[derive(Debug, Default)]
pub struct ByLimits {
    groups: Option<GroupsByLimits>,
}

impl Finder for ByLimits {
    fn begin(&mut self, _: u64, _: &[Instance]) {
        self.groups = None;
    }

    fn find(&mut self, instance: &Instance, known: &[PathBuf]) -> FoundGroups {
        // A step of a job has a control group of its own, and the next step another one.
        let is_job = instance.labels().is_ok_and(|labels| labels.slurm.is_some());
        let are_known = !known.is_empty();
        if are_known && !is_job && known.iter().all(|group| group.is_dir()) {
            return FoundGroups::Groups(known.to_vec());
        }
        let by_limits = || {
            let groups = self.groups.get_or_insert_with(groups_by_limits);
            let limits = fs::metadata(instance.steady_path(LIMITS)).ok()?;
            groups.get(&(limits.dev(), limits.ino())).cloned()
        };
        let of_engine = of_engine(instance).map(|group| Some(vec![group]));
        match of_engine.or_else(by_limits) {
            Some(Some(groups)) => FoundGroups::Groups(groups),
            // Processes of it run, and one of their groups is not its own.
            Some(None) => FoundGroups::Unseen(NO_GROUP),
            None if is_job && are_known => FoundGroups::Gone,
            None => FoundGroups::Unseen(NO_GROUP),
        }
    }
}

/// What is to be done about a container's second fence.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FenceStep {
    /// It is as it should be.
    Nothing,
    /// The limit is set on these groups.
    Set(Vec<PathBuf>),
    /// It is written down that there is none, and why.
    Tell(&'static str),
    /// The group was removed, and its limit with it.
    Forget,
}

/// Decides that. `known` is what is written down, `is_set` whether these groups have had this limit lately, and `is_lost`
/// whether the container is a pod's that runs: it has a control group, seen or not.
fn step(found: FoundGroups, known: Option<&Fence>, is_set: bool, is_lost: bool) -> FenceStep {
    let was_limited = known.is_some_and(|known| !known.control_groups.is_empty());
    match found {
        FoundGroups::Groups(groups) if is_set && was_limited && !groups.is_empty() => {
            FenceStep::Nothing
        }
        FoundGroups::Groups(groups) if !groups.is_empty() => FenceStep::Set(groups),
        FoundGroups::Groups(_) | FoundGroups::Gone if was_limited => FenceStep::Forget,
        FoundGroups::Groups(_) | FoundGroups::Gone if is_lost && known.is_none() => {
            FenceStep::Tell(NO_GROUP)
        }
        FoundGroups::Unseen(reason) if is_lost && known.is_none() => FenceStep::Tell(reason),
        FoundGroups::Groups(_) | FoundGroups::Gone | FoundGroups::Unseen(_) => FenceStep::Nothing,
    }
}

/// Keeps the second fences of all containers of a board as high as their limits.
#[derive(Debug, Default)]
pub struct Keeper {
    next_ns: u64,
    /// What was set, by directory.
    set: HashMap<PathBuf, LastSet>,
}

/// What the keeper has set for a container, and when.
#[derive(Debug)]
struct LastSet {
    /// The limits' generation, the sizes of contexts, and the groups.
    state: (u64, Vec<u64>, Vec<PathBuf>),
    at_ns: u64,
}

/// What a look of [`Keeper`] has done about one container: it has set the limit, or could not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceOutcome {
    /// Its directory.
    pub path: PathBuf,
    /// Its fence.
    pub fence: Fence,
}

impl Keeper {
    /// The keeper reads the containers' directories below `root`, at most once a second, and sets the limits that have
    /// changed. The answer has an outcome for each container whose limit is new, or could not be set. `now_ns` is the
    /// monotonic clock.
    pub fn tick(
        &mut self,
        now_ns: u64,
        gpus: &dyn Gpus,
        root: &Path,
        finder: &mut dyn Finder,
    ) -> Vec<FenceOutcome> {
        if now_ns < self.next_ns || !gpus.limits_groups() {
            return Vec::new();
        }
        self.next_ns = now_ns.saturating_add(EVERY_NS);
        let mut instances = Vec::new();
        instance::scan(root, &mut |instance| instances.push(instance)).ok();
        instances.retain(is_ours);
        self.set
            .retain(|path, _| instances.iter().any(|instance| instance.path() == path));
        finder.begin(now_ns, &instances);
        let kept = instances
            .iter()
            .filter_map(|instance| self.look(now_ns, gpus, instance, finder));
        kept.collect()
    }

    fn look(
        &mut self,
        now_ns: u64,
        gpus: &dyn Gpus,
        instance: &Instance,
        finder: &mut dyn Finder,
    ) -> Option<FenceOutcome> {
        let limits = view::read_limits(instance).ok()?;
        let region = view::snapshot(instance).ok();
        let known = read(instance);
        let found = {
            let known = known.as_ref().map(|known| known.control_groups.as_slice());
            finder.find(instance, known.unwrap_or_default())
        };
        let sizes = region.iter().flat_map(|region| &region.devices);
        let sizes = sizes.map(|device| device.context_bytes.max(device.module_bytes));
        let groups = match &found {
            FoundGroups::Groups(groups) => groups.clone(),
            FoundGroups::Gone | FoundGroups::Unseen(_) => Vec::new(),
        };
        let state = (limits.generation, sizes.collect(), groups);
        let last = self.set.get(instance.path());
        let is_same = last.is_some_and(|last| last.state == state);
        let is_set =
            is_same && last.is_some_and(|last| now_ns < last.at_ns.saturating_add(AGAIN_NS));
        let mut slots = region.iter().flat_map(|region| &region.slots);
        let is_lost = slots.any(|slot| slot.alive)
            && instance.labels().is_ok_and(|it| !it.pod_uid.is_empty());
        let path = instance.path().to_owned();
        let (groups, is_made) = match step(found, known.as_ref(), is_set, is_lost) {
            FenceStep::Nothing => return None,
            FenceStep::Forget => {
                self.set.remove(&path);
                fence_file::remove(instance);
                return None;
            }
            FenceStep::Tell(reason) => (Err(reason), false),
            FenceStep::Set(groups) => (Ok(groups), known.as_ref().is_some_and(|it| it.is_made)),
        };
        let fence = raise(
            gpus,
            instance,
            &limits,
            region.as_ref(),
            groups.as_deref().map_err(|reason| *reason),
            is_made,
        );
        let at_ns = now_ns;
        self.set.insert(path.clone(), LastSet { state, at_ns });
        // The same limit once more is no news.
        (!is_same || known.as_ref() != Some(&fence)).then_some(FenceOutcome { path, fence })
    }
}

/// The control group of a container engine's container, by its first process.
fn of_engine(instance: &Instance) -> Option<PathBuf> {
    let labels = instance.labels().ok()?;
    let is_here = labels.engine?.pid_namespace == instance::pid_namespace();
    let lives = is_here && instance.runner_lives();
    lives.then(|| group_of_processes(&[labels.runner_pid]))?
}

/// The control groups of the containers that see a limits file where the agent and the OCI hook mount it.
fn groups_by_limits() -> GroupsByLimits {
    let mut pids: HashMap<(u64, u64), Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let inside = format!("/proc/{pid}/root{INSIDE_LIMITS}");
        if let Ok(found) = fs::symlink_metadata(inside) {
            pids.entry((found.dev(), found.ino()))
                .or_default()
                .push(pid);
        }
    }
    pids.into_iter()
        .map(|(file, pids)| (file, groups_of_these(&pids)))
        .collect()
}

/// The group that has these processes and no others. Where the lowest group of all of them has others, too, as that of a
/// job of Slurm has Slurm's own processes, then the groups in which they are.
fn groups_of_these(pids: &[u32]) -> Option<Vec<PathBuf>> {
    let is_theirs = |group: &PathBuf| {
        let all = processes_below(group, NESTED_MOST);
        all.iter().all(|pid| pids.contains(pid))
    };
    if let Some(group) = group_of_processes(pids).filter(is_theirs) {
        return Some(vec![group]);
    }
    let mut groups = Vec::new();
    for pid in pids {
        // A process that has ended meanwhile has no group.
        let Some(path) = group_of(&pid.to_string()) else {
            continue;
        };
        if groups.iter().any(|(known, _)| *known == path) {
            continue;
        }
        let group = group_of_processes(&[*pid]).filter(is_theirs)?;
        groups.push((path, group));
    }
    let mut groups: Vec<PathBuf> = groups.into_iter().map(|(_, group)| group).collect();
    groups.sort_unstable();
    (!groups.is_empty()).then_some(groups)
}

/// Groups below each other that are looked into.
const NESTED_MOST: u32 = 8;

/// The processes of a group and of the groups below it.
fn processes_below(group: &Path, depth: u32) -> Vec<u32> {
    let mut pids = processes_of(group);
    let below = fs::read_dir(group).into_iter().flatten().flatten();
    let below = below.filter(|entry| depth > 0 && entry.file_type().is_ok_and(|it| it.is_dir()));
    for entry in below {
        pids.extend(processes_below(&entry.path(), depth - 1));
    }
    pids
}

/// The processes of a control group, without those of the groups below it. A process of a pid namespace that this process
/// does not see has no number here, and is left out.
#[must_use]
pub fn processes_of(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let pids = text.lines().filter_map(|line| line.parse().ok());
    pids.filter(|&pid| pid != 0).collect()
}

/// Why a container has no second fence, if no group could be found or made.
pub const NO_GROUP: &str =
    "this process sees no control group of version 2 that is the container's alone";

/// Whether the driver of these GPUs can limit control groups at all.
#[must_use]
pub fn is_possible(gpus: &dyn Gpus) -> bool {
    gpus.limits_groups() && nix::unistd::geteuid().is_root()
}

#[cfg(test)]
mod tests;
