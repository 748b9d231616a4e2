//! Divides each GPU's time between the containers. One process of a board is its arbiter: the node agent if
//! there is one, otherwise one of the `vgpu run` processes. When the arbiter's process dies, another one
//! takes over.
//!
//! [`Board`] is the shell around it: it finds containers, reads them, queries the driver and publishes
//! targets at each tick, and answers doorbells between two ticks. [`device`] decides the grants, values in and values
//! out.
//!
//! Never waits for a container, never writes a region, never maps a file that another user owns, and never
//! reads a clock: the caller passes the time in.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vgpu_abi::targets::{Head, Target};

use crate::ContainerError;
use crate::gpu::{Busy, Gpus};
use crate::instance::{self, Instance};
use crate::{overhead, view};

pub mod shares;

mod arrears;

pub mod scale;

pub mod steady;

pub mod timetable;

pub mod turns;

pub mod device;

pub mod bell;

mod look;

mod served;

mod members;

mod election;

mod doorbells;

mod between;

pub use between::Waker;
use device::{Device, Tenant, Verdict};
use doorbells::Doorbells;
use election::{ContenderKind, SeatCandidate};
use look::{Look, ServedContainer};
use scale::Sample;
use served::{Served, name_of};

/// Between two ticks while several containers work on one device, and for a process that does not lead.
pub const BUSY: Duration = Duration::from_millis(50);
/// Between two ticks otherwise.
pub const IDLE: Duration = Duration::from_millis(100);

/// A board with more containers than this is looked at less often: lent time then still comes back within two
/// ticks, and the containers cost no more than this many cost at the faster pace.
const MANY: usize = 32;

/// How often the directories are read although their change times are the same, nanoseconds.
const SCAN_NS: u64 = 2_000_000_000;
/// How often the driver is asked how busy processes are while the answer decides a grant, nanoseconds.
const ASK_NS: u64 = 190_000_000;
/// How often otherwise, while any container works.
const ASK_IDLE_NS: u64 = 1_000_000_000;
/// How often the memory that the driver holds for processes is measured while charges change, nanoseconds.
const MEASURE_NS: u64 = 95_000_000;
/// How often while charges stay the same.
const MEASURE_IDLE_NS: u64 = 1_000_000_000;
/// Containers that are measured in one tick at most; the others wait for the next tick.
const MEASURED_MOST: usize = 8;
/// After this time without an arbiter a runner serves its own container, nanoseconds.
const UNSERVED_NS: u64 = 250_000_000;

/// A candidate for arbiter of a board.
#[derive(Debug)]
pub struct Board {
    role: Role,
    /// When it leads, it serves the containers below this directory.
    scope: PathBuf,
    candidate: Option<SeatCandidate>,
    arbiter: Arbiter,
    waker: Option<Waker>,
}

#[derive(Debug)]
enum Role {
    /// The node agent, or root's runner: serves all containers.
    All,
    /// A runner: serves the containers of its user while no process serves all containers below `board`.
    Own { board: PathBuf, instance: PathBuf },
}

/// The outcome of a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticked {
    /// When to tick again.
    pub next: Duration,
    /// Whether this process is the arbiter.
    pub leads: bool,
    /// Containers that it serves.
    pub served: usize,
    /// Containers that could not be read or written at this tick.
    pub failed: usize,
}

impl Board {
    /// Joins as the runner of one container, whose directory is `board/uid/name`. It serves the containers of
    /// its own user, or all of the board if it runs as root.
    ///
    /// # Errors
    /// The container's directory cannot be read; the error names the reason.
    pub fn join(own: &Path) -> Result<Self, ContainerError> {
        let instance = Instance::open(own)?;
        // A broken directory is reported here rather than at every tick.
        ServedContainer::open(0, &instance)?;
        let user = own.parent().unwrap_or(own);
        let board = user.parent().unwrap_or(user);
        let is_root = nix::unistd::geteuid().is_root();
        let scope = if is_root { board } else { user };
        Ok(Self {
            role: Role::Own {
                board: board.to_owned(),
                instance: own.to_owned(),
            },
            scope: scope.to_owned(),
            // Without a seat each runner serves its own container.
            candidate: SeatCandidate::open(scope, ContenderKind::Runner).ok(),
            arbiter: Arbiter::default(),
            waker: None,
        })
    }

    /// Joins as the agent of a node, for every container below `root` that it may write. The
    /// directory may appear later.
    #[must_use]
    pub fn serve(root: &Path) -> Self {
        Self {
            role: Role::All,
            scope: root.to_owned(),
            candidate: None,
            arbiter: Arbiter::default(),
            waker: None,
        }
    }

    /// The directory below which it serves all containers when it leads.
    #[must_use]
    pub fn scope(&self) -> &Path {
        &self.scope
    }

    /// Looks at the containers and, if this process is the arbiter, publishes grants. Call it again after
    /// [`Ticked::next`]. `now_ns` is the monotonic clock. An error of one container does not affect the
    /// others.
    pub fn tick(&mut self, now_ns: u64, gpus: &dyn Gpus) -> Ticked {
        if self.leads(now_ns) {
            return self.arbiter.tick(now_ns, gpus, &self.scope, Scope::All);
        }
        if let Role::Own { instance, .. } = &self.role
            && is_unserved(instance, now_ns)
        {
            let ticked = self
                .arbiter
                .tick(now_ns, gpus, &instance.clone(), Scope::One);
            return Ticked {
                leads: false,
                ..ticked
            };
        }
        self.arbiter.rest();
        Ticked {
            next: BUSY,
            leads: false,
            served: 0,
            failed: 0,
        }
    }

    fn leads(&mut self, now_ns: u64) -> bool {
        match &self.role {
            // A process that serves all containers comes before one that serves only its user's.
            Role::Own { board, .. }
                if *board != self.scope && election::is_taken(board, now_ns) =>
            {
                if let Some(candidate) = &mut self.candidate {
                    candidate.leave();
                }
                return false;
            }
            Role::Own { .. } => {}
            Role::All => {
                if self.candidate.is_none() {
                    self.candidate = SeatCandidate::open(&self.scope, ContenderKind::Agent).ok();
                }
            }
        }
        self.candidate
            .as_mut()
            .is_some_and(|candidate| candidate.tick(now_ns))
    }
}

/// Whether this container's targets have not been written for [`UNSERVED_NS`].
fn is_unserved(own: &Path, now_ns: u64) -> bool {
    let Ok(instance) = Instance::open(own) else {
        return false;
    };
    view::targets_head(&instance)
        .is_ok_and(|head| now_ns.saturating_sub(head.heartbeat_ns) > UNSERVED_NS)
}

/// Which containers are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Everything below a directory.
    All,
    /// The container whose directory it is.
    One,
}

/// The arbiter's state: what it knows of the containers and devices that it serves.
#[derive(Debug, Default)]
struct Arbiter {
    containers: Vec<Served>,
    devices: HashMap<String, BoardDevice>,
    next_id: u64,
    scanned: Option<Scanned>,
    measured_at_ns: u64,
    /// The driver did not answer the last question about memory.
    silent: bool,
    failed: usize,
    doorbells: Doorbells,
}

#[derive(Debug)]
struct Scanned {
    at_ns: u64,
    scope: PathBuf,
    /// Directories that hold containers, with the time of their last change.
    directories: Vec<(PathBuf, Option<(i64, i64)>)>,
}

/// A device of the board.
#[derive(Debug, Default)]
struct BoardDevice {
    device: Device,
    asked_at_ns: u64,
    told_until_us: u64,
    /// At least two containers work on it.
    shared: bool,
    active: bool,
}

impl Arbiter {
    /// Forgets everything, because another process leads.
    fn rest(&mut self) {
        if self.scanned.is_some() {
            *self = Self {
                next_id: self.next_id,
                ..Self::default()
            };
        }
    }

    fn tick(&mut self, now_ns: u64, gpus: &dyn Gpus, root: &Path, scope: Scope) -> Ticked {
        self.failed = 0;
        self.find(now_ns, root, scope);
        let oversubscribes = |served: &Served| {
            let mut limits = served.container.limits.devices.iter();
            limits.any(|limit| limit.resident_bytes != 0)
        };
        let shared = self.containers.iter().any(oversubscribes);
        for served in &mut self.containers {
            // A container at rest may start with the share it has, so noticing its start a little later is
            // early enough.
            if served.rests(now_ns) {
                continue;
            }
            served.looked_at_ns = now_ns;
            match served.container.look(now_ns, shared) {
                Ok(look) => served.meet(look, now_ns),
                Err(_) => {
                    // A region that its tenant broke has no living process that could be granted anything.
                    served.look = Look::default();
                    self.failed += 1;
                }
            }
        }
        self.measure(now_ns, gpus);
        let verdicts = self.decide(now_ns, gpus);
        // The doorbell is watched before its library is asked to ring.
        let ringing = verdicts.values().filter(|verdict| verdict.rings);
        let ringing: Vec<u64> = ringing.map(|verdict| verdict.id).collect();
        self.listen(now_ns, &ringing);
        self.publish(now_ns, &verdicts);
        let busy = self
            .devices
            .values()
            .any(|known| known.shared && known.active);
        Ticked {
            next: if busy && self.containers.len() <= MANY {
                BUSY
            } else {
                IDLE
            },
            leads: true,
            served: self
                .containers
                .iter()
                .filter(|served| served.container.is_served())
                .count(),
            failed: self.failed,
        }
    }

    /// Finds the containers.
    fn find(&mut self, now_ns: u64, root: &Path, scope: Scope) {
        let is_due = self.scanned.as_ref().is_none_or(|scanned| {
            scanned.scope != root
                || now_ns.saturating_sub(scanned.at_ns) >= SCAN_NS
                || scanned
                    .directories
                    .iter()
                    .any(|(path, was)| changed(path) != *was)
        });
        if !is_due {
            return;
        }
        let mut old: HashMap<PathBuf, Served> = self
            .containers
            .drain(..)
            .map(|served| (served.container.path.clone(), served))
            .collect();
        let mut directories = vec![(root.to_owned(), changed(root))];
        let mut found = Vec::new();
        let mut visit = |instance: Instance| {
            // A change in any directory above it may be another container.
            for above in instance.path().ancestors().skip(1) {
                let known = directories.iter().any(|(path, _)| path == above);
                if known || !above.starts_with(root) {
                    break;
                }
                directories.push((above.to_owned(), changed(above)));
            }
            found.push(instance);
        };
        match scope {
            Scope::All => {
                // An unreadable directory is skipped, and an empty user directory may fill later.
                instance::scan(root, &mut visit).ok();
                directories.extend(children(root).into_iter().map(|path| {
                    let at = changed(&path);
                    (path, at)
                }));
            }
            Scope::One => {
                if let Ok(instance) = Instance::open(root) {
                    visit(instance);
                }
            }
        }
        for instance in found {
            let known = old.remove(instance.path());
            if let Some(served) = known.filter(|served| served.container.is_at(&instance)) {
                self.containers.push(served);
                continue;
            }
            self.next_id += 1;
            // An instance that is being created or removed: the next scan sees it.
            if let Ok(container) = ServedContainer::open(self.next_id, &instance) {
                self.containers.push(Served::new(container));
            }
        }
        self.scanned = Some(Scanned {
            at_ns: now_ns,
            scope: root.to_owned(),
            directories,
        });
    }

    /// Measures what the driver holds for processes, if it is time to.
    fn measure(&mut self, now_ns: u64, gpus: &dyn Gpus) {
        if now_ns.saturating_sub(self.measured_at_ns) < MEASURE_NS {
            return;
        }
        let mut due: Vec<&mut Served> = self
            .containers
            .iter_mut()
            .filter(|served| served.wants_measure(now_ns))
            .collect();
        if due.is_empty() {
            return;
        }
        self.measured_at_ns = now_ns;
        // The container that has waited longest comes first.
        due.sort_by_key(|served| served.measured.as_ref().map_or(0, |(at, _)| *at));
        due.truncate(MEASURED_MOST);
        // If the driver did not answer last time, ask it first, before reading anything for the comparison.
        if self.silent && gpus.processes().is_err() {
            for served in due {
                served.measured = Some((now_ns, served.charges()));
            }
            return;
        }
        let before: Vec<_> = due
            .iter()
            .map(|served| (served.snapshot(), served.container.charge_sums().ok()))
            .collect();
        let held = gpus.processes();
        self.silent = held.is_err();
        let answered = held.is_ok();
        let held = held.unwrap_or_default();
        for (served, (before, sums)) in due.into_iter().zip(before) {
            if answered {
                served.compare(&held, sums);
            }
            // The second look shows what changed while the driver was asked.
            let Ok(look) = served.container.look(now_ns, false) else {
                continue;
            };
            served.look.processes = look.processes;
            let (Some(before), Some(after)) = (before, served.snapshot()) else {
                continue;
            };
            let limits = &served.container.limits;
            let uuids: Vec<_> = limits.devices.iter().map(|device| device.uuid).collect();
            let targets = overhead::measure(&before, &held, &after, &uuids, &served.known);
            served.known = targets
                .into_iter()
                .map(|(slot, t)| ((slot, t.slot_generation), t))
                .collect();
            served.measured = Some((now_ns, served.charges()));
        }
    }

    /// The grant of every container, by container and by its device.
    fn decide(&mut self, now_ns: u64, gpus: &dyn Gpus) -> HashMap<(u64, usize), Verdict> {
        let mut tenants: HashMap<String, Tenants> = HashMap::new();
        for served in &self.containers {
            for (index, limit) in served.container.limits.devices.iter().enumerate() {
                let on = tenants.entry(name_of(limit, index)).or_default();
                on.uuid = !limit.uuid.is_empty();
                on.bytes = on.bytes.max(limit.physical_bytes);
                on.tenants.push(served.tenant(index, limit));
                on.indexes.push(index);
            }
        }
        self.devices.retain(|name, _| tenants.contains_key(name));
        let mut all = HashMap::new();
        for (name, on) in tenants {
            let known = self.devices.entry(name.clone()).or_default();
            let samples = if on.uuid {
                known.ask(now_ns, &name, gpus)
            } else {
                Vec::new()
            };
            let verdicts = known.device.tick(now_ns, on.bytes, &on.tenants, &samples);
            known.active = verdicts.iter().any(|verdict| verdict.active);
            known.shared = on.tenants.len() > 1;
            for (verdict, index) in verdicts.into_iter().zip(on.indexes) {
                all.insert((verdict.id, index), verdict);
            }
        }
        all
    }

    fn publish(&mut self, now_ns: u64, verdicts: &HashMap<(u64, usize), Verdict>) {
        for served in &mut self.containers {
            let id = served.container.id;
            let own = |device: usize| verdicts.get(&(id, device));
            let devices = served.container.limits.devices.len();
            if (0..devices).any(|device| own(device).is_some_and(|verdict| verdict.active)) {
                served.active_at_ns = now_ns;
            }
            let mut head = Head {
                heartbeat_ns: now_ns,
                unaccounted: served.unaccounted,
                ..Head::default()
            };
            let mut targets = Vec::with_capacity(served.look.processes.len());
            for (place, process) in served.look.processes.iter().enumerate() {
                let key = (process.slot, process.generation);
                let mut target = Target {
                    slot_generation: process.generation,
                    host_pid: process.host_pid.unwrap_or(0),
                    released: false,
                    ..served.known.get(&key).copied().unwrap_or_default()
                };
                for (device, grant) in target.grants.iter_mut().enumerate() {
                    *grant = own(device)
                        .and_then(|verdict| verdict.grants.get(place))
                        .copied();
                }
                targets.push((process.slot, target));
            }
            for (device, seen) in head.seen.iter_mut().enumerate() {
                if let Some(verdict) = own(device) {
                    *seen = verdict.seen;
                }
            }
            for (device, interval) in head.intervals.iter_mut().enumerate() {
                *interval = own(device).and_then(|verdict| verdict.interval);
            }
            for ((slot, generation), dead) in served.dead.all() {
                let target = Target {
                    slot_generation: generation,
                    host_pid: dead.host_pid,
                    released: dead.released,
                    ..Target::default()
                };
                targets.push((slot, target));
            }
            let anew = (0..devices).any(|device| own(device).is_some_and(|verdict| verdict.anew));
            if served.container.publish(targets, &head, anew).is_err() {
                self.failed += 1;
            }
        }
    }
}

/// Those on one device.
#[derive(Default)]
struct Tenants {
    uuid: bool,
    bytes: u64,
    tenants: Vec<Tenant>,
    indexes: Vec<usize>,
}

impl BoardDevice {
    /// The driver's samples since it was last asked.
    fn ask(&mut self, now_ns: u64, uuid: &str, gpus: &dyn Gpus) -> Vec<Sample> {
        let every_ns = if self.shared { ASK_NS } else { ASK_IDLE_NS };
        if !self.active || now_ns.saturating_sub(self.asked_at_ns) < every_ns {
            return Vec::new();
        }
        self.asked_at_ns = now_ns;
        let Busy { samples, percent } = gpus.busy(uuid, self.told_until_us);
        let mut periods: HashMap<u64, Sample> = HashMap::new();
        for sample in &samples {
            let period = periods.entry(sample.at_us).or_default();
            period.at_us = sample.at_us;
            period.processes.push((sample.pid, sample.percent));
        }
        let newest = samples.iter().map(|sample| sample.at_us).max();
        let is_first = self.told_until_us == 0;
        self.told_until_us = newest.unwrap_or(self.told_until_us);
        let mut periods: Vec<Sample> = periods.into_values().collect();
        if is_first {
            // Samples older than the longest gap between two looks carry no information.
            periods.retain(|period| Some(period.at_us) == newest);
        }
        if samples.is_empty() && self.told_until_us == 0 && percent.is_some() {
            // The driver has no figures for each process, so its figure is of this moment, on the arbiter's clock.
            periods.push(Sample {
                at_us: now_ns / 1000,
                processes: Vec::new(),
                device: percent,
            });
        }
        periods
    }
}

/// When a directory's entries last changed.
fn changed(path: &Path) -> Option<(i64, i64)> {
    let stat = std::fs::symlink_metadata(path).ok()?;
    Some((stat.mtime(), stat.mtime_nsec()))
}

/// Directories right below one: those of users, in which containers appear.
fn children(root: &Path) -> Vec<PathBuf> {
    const MOST: usize = 256;
    let Ok(entries) = std::fs::read_dir(root) else {
        return Vec::new();
    };
    let directories = entries
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.take(MOST).map(|entry| entry.path()).collect()
}
