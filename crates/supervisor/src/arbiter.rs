//! Who gets how much of a GPU's time, and who says so. One process of a board is its arbiter: the
//! node agent where there is one, else one of the `vgpu run`s, and when that dies another one.
//!
//! [`Board`] is the shell around it: finds containers, reads them, asks the driver, publishes. What
//! is granted is decided by [`device`], which is values in and values out.
//!
//! Never waits for a container, never writes a region, never maps a file that somebody else owns, and
//! never reads a clock: the time is handed in.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vgpu_abi::host::Snapshot;
use vgpu_abi::layout::{CHARGE_BYTES_MASK, MAX_DEVICES};
use vgpu_abi::limits::{DeviceLimit, Policy};
use vgpu_abi::targets::{Head, Target, Unaccounted};

use crate::excess::{self, Excess};
use crate::gpu::{Busy, GpuProcess, Gpus};
use crate::instance::{self, Instance};
use crate::{overhead, view};

pub mod shares;

pub mod scale;

pub mod turns;

pub mod device;

mod look;

mod members;

mod seat;

use device::{Device, Tenant, Verdict};
use look::{Books, Container, Look, Use};
use members::{Graves, Members};
use scale::Sample;
use seat::{Kind, Seat};

/// Between two ticks where somebody works beside somebody else, and for those who do not lead.
pub const BUSY: Duration = Duration::from_millis(50);
/// Between two ticks otherwise.
pub const IDLE: Duration = Duration::from_millis(100);

/// More containers than this are looked at less often: what was lent is back within two ticks then,
/// too, and they cost no more than so many cost at the other pace.
const MANY: usize = 32;

/// How often the directories are read though nothing in them seems to have changed, nanoseconds.
const SCAN_NS: u64 = 2_000_000_000;
/// How often the driver is asked how busy processes are, where that decides something, nanoseconds.
const ASK_NS: u64 = 190_000_000;
/// How often otherwise, while anybody works.
const ASK_IDLE_NS: u64 = 1_000_000_000;
/// How often what the driver holds for processes is measured, where they move, nanoseconds.
const MEASURE_NS: u64 = 95_000_000;
/// How often where they are at rest.
const MEASURE_IDLE_NS: u64 = 1_000_000_000;
/// Containers that are measured at one tick, at most: the others wait for the next.
const MEASURED_MOST: usize = 8;
/// A runner whose container nobody has served for so long serves it itself, nanoseconds.
const UNSERVED_NS: u64 = 250_000_000;

/// A place among those who may be the arbiter of a board.
#[derive(Debug)]
pub struct Board {
    role: Role,
    /// Below this lies what it serves when it leads.
    scope: PathBuf,
    seat: Option<Seat>,
    arbiter: Arbiter,
}

#[derive(Debug)]
enum Role {
    /// The node agent, or root's: serves all.
    All,
    /// A runner: serves its user's, as long as nobody serves all below `board`.
    Own { board: PathBuf, instance: PathBuf },
}

/// What a tick came to.
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
    /// Joins as the runner of one container, whose directory lies at `board/uid/name`. It serves the
    /// containers of its own user, all of the board where it is root's.
    ///
    /// # Errors
    /// The directory cannot be looked after; the text says why.
    pub fn join(own: &Path) -> Result<Self, String> {
        let instance = Instance::open(own).map_err(|error| error.to_string())?;
        // Said at once rather than at every tick.
        Container::open(0, &instance)?;
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
            // Without a seat everybody serves its own.
            seat: Seat::open(scope, Kind::Runner).ok(),
            arbiter: Arbiter::default(),
        })
    }

    /// Joins as the agent of a node, for every container below `root` that it may write. The
    /// directory may appear later.
    #[must_use]
    pub fn serve(root: &Path) -> Self {
        Self {
            role: Role::All,
            scope: root.to_owned(),
            seat: None,
            arbiter: Arbiter::default(),
        }
    }

    /// Looks, and where this process is the arbiter grants. Call it again after [`Ticked::next`].
    /// `now_ns` is the monotonic clock. What goes wrong with one container is in nobody else's way.
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
            // Who serves all goes before who serves his own.
            Role::Own { board, .. } if *board != self.scope && seat::is_taken(board, now_ns) => {
                if let Some(seat) = &mut self.seat {
                    seat.leave();
                }
                return false;
            }
            Role::Own { .. } => {}
            Role::All => {
                if self.seat.is_none() {
                    self.seat = Seat::open(&self.scope, Kind::Agent).ok();
                }
            }
        }
        self.seat.as_mut().is_some_and(|seat| seat.tick(now_ns))
    }
}

/// Whether nobody has written the targets of this container for a while.
fn is_unserved(own: &Path, now_ns: u64) -> bool {
    let Ok(instance) = Instance::open(own) else {
        return false;
    };
    view::targets_head(&instance)
        .is_ok_and(|head| now_ns.saturating_sub(head.heartbeat_ns) > UNSERVED_NS)
}

/// What is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Everything below a directory.
    All,
    /// The container whose directory it is.
    One,
}

/// The arbiter at work: what it knows of the containers and devices that it serves.
#[derive(Debug, Default)]
struct Arbiter {
    containers: Vec<Served>,
    devices: HashMap<String, Known>,
    next_id: u64,
    scanned: Option<Scanned>,
    measured_at_ns: u64,
    /// The driver did not answer when it was asked what processes hold.
    silent: bool,
    failed: usize,
}

#[derive(Debug)]
struct Scanned {
    at_ns: u64,
    scope: PathBuf,
    /// Directories that containers stand in, with the time of their last change.
    directories: Vec<(PathBuf, Option<(i64, i64)>)>,
}

/// A container that is served.
#[derive(Debug)]
struct Served {
    container: Container,
    look: Look,
    /// What the driver holds for its processes, by slot and generation.
    known: HashMap<(usize, u64), Target>,
    /// The charges as they were when that was measured, and when.
    measured: Option<(u64, Charges)>,
    /// Its processes, whatever its region says of them.
    members: Members,
    graves: Graves,
    /// What the driver holds beyond the books, by device: the last looks, and what is believed.
    excess: [Excess; MAX_DEVICES],
    unaccounted: [Unaccounted; MAX_DEVICES],
    looked_at_ns: u64,
    active_at_ns: u64,
}

/// Charge words and launches, by slot, generation and device.
type Charges = Vec<(usize, u64, Vec<([u64; 4], u64)>)>;

/// A device of the board.
#[derive(Debug, Default)]
struct Known {
    device: Device,
    asked_at_ns: u64,
    told_until_us: u64,
    /// Somebody works beside somebody else.
    shared: bool,
    active: bool,
}

impl Arbiter {
    /// Forgets everything: somebody else leads.
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
            // Who has been at rest may start with what he has: it is early enough to see that soon.
            if served.rests(now_ns) {
                continue;
            }
            served.looked_at_ns = now_ns;
            match served.container.look(now_ns, shared) {
                Ok(look) => served.meet(look, now_ns),
                Err(_) => {
                    // A region that its tenant broke has no living process to grant anything to.
                    served.look = Look::default();
                    self.failed += 1;
                }
            }
        }
        self.measure(now_ns, gpus);
        let verdicts = self.decide(now_ns, gpus);
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

    /// Which containers there are.
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
                // What cannot be read is nobody's to serve, and empty user directories fill later.
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
            // One that is being made or taken away: the next scan sees it.
            if let Ok(container) = Container::open(self.next_id, &instance) {
                self.containers.push(Served::new(container));
            }
        }
        self.scanned = Some(Scanned {
            at_ns: now_ns,
            scope: root.to_owned(),
            directories,
        });
    }

    /// What the driver holds for processes, where it is time to look again.
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
        // Who waited longest comes first.
        due.sort_by_key(|served| served.measured.as_ref().map_or(0, |(at, _)| *at));
        due.truncate(MEASURED_MOST);
        // A driver that did not answer is asked before anything is read for it.
        if self.silent && gpus.processes().is_err() {
            for served in due {
                served.measured = Some((now_ns, served.charges()));
            }
            return;
        }
        let before: Vec<_> = due
            .iter()
            .map(|served| (served.snapshot(), served.container.books().ok()))
            .collect();
        let held = gpus.processes();
        self.silent = held.is_err();
        let answered = held.is_ok();
        let held = held.unwrap_or_default();
        for (served, (before, books)) in due.into_iter().zip(before) {
            if answered {
                served.compare(&held, books);
            }
            // What moved while the driver was asked shows in a second look.
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

    /// What everybody is granted: by container and its device.
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
            for ((slot, generation), dead) in served.graves.all() {
                let target = Target {
                    slot_generation: generation,
                    host_pid: dead.host_pid,
                    released: dead.released,
                    ..Target::default()
                };
                targets.push((slot, target));
            }
            let awaited =
                (0..devices).any(|device| own(device).is_some_and(|verdict| verdict.awaited));
            if served.container.publish(targets, &head, awaited).is_err() {
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

impl Known {
    /// What the driver says since it was asked last.
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
            // What lies longer back than anybody has looked tells nothing.
            periods.retain(|period| Some(period.at_us) == newest);
        }
        if samples.is_empty() && self.told_until_us == 0 && percent.is_some() {
            // The driver does not tell processes apart: its figure is of now, on our clock.
            periods.push(Sample {
                at_us: now_ns / 1000,
                processes: Vec::new(),
                device: percent,
            });
        }
        periods
    }
}

impl Served {
    fn new(container: Container) -> Self {
        Self {
            container,
            look: Look::default(),
            known: HashMap::new(),
            measured: None,
            members: Members::default(),
            graves: Graves::default(),
            excess: std::array::from_fn(|_| Excess::default()),
            unaccounted: [Unaccounted::default(); MAX_DEVICES],
            looked_at_ns: 0,
            active_at_ns: 0,
        }
    }

    /// Whether it did nothing for a second, and was looked at a moment ago.
    fn rests(&self, now_ns: u64) -> bool {
        const REST_NS: u64 = 1_000_000_000;
        const AGAIN_NS: u64 = 95_000_000;
        now_ns.saturating_sub(self.active_at_ns) > REST_NS
            && now_ns.saturating_sub(self.looked_at_ns) < AGAIN_NS
    }

    /// Takes a look. Of a process that it has not met it believes what was published before.
    fn meet(&mut self, look: Look, now_ns: u64) {
        self.graves.meet(&self.look, &look, now_ns);
        self.look = look;
        let key = |process: &look::Process| (process.slot, process.generation);
        let mut old = std::mem::take(&mut self.known);
        for process in &self.look.processes {
            let inherited = || {
                let published = self.container.published(process.slot);
                published.filter(|target| target.slot_generation == process.generation)
            };
            let known = old.remove(&key(process)).or_else(inherited);
            self.known.insert(key(process), known.unwrap_or_default());
        }
    }

    /// Compares what the driver holds for the container's processes with its books.
    fn compare(&mut self, held: &[GpuProcess], before: Option<Books>) {
        self.graves.told(held);
        self.members
            .meet(&self.container.members(), held, members::start_time);
        let (Some(before), Ok(after)) = (before, self.container.books()) else {
            return;
        };
        let limits = &self.container.limits.devices;
        let each = limits.iter().zip(&mut self.excess);
        let each = each.zip(&mut self.unaccounted);
        let books = before.devices.iter().zip(&after.devices);
        for (((limit, excess), unaccounted), (was, is)) in each.zip(books) {
            let quiet = was == is && is.pending == 0;
            let bytes = excess.look(&excess::Look {
                held: self.members.held_bytes(held, limit.uuid.as_str()),
                before: was.used.saturating_add(was.pending),
                after: is.used.saturating_add(is.pending),
                limit: limit.memory_bytes,
                quiet,
            });
            *unaccounted = Unaccounted {
                bytes,
                beside: if bytes == 0 { 0 } else { is.used },
            };
        }
    }

    /// The charges as they were looked at; of a container with objects that several processes hold,
    /// everything.
    fn snapshot(&self) -> Option<Snapshot> {
        if self.look.has_shared {
            view::snapshot_at(&self.container.path).ok()
        } else {
            Some(self.look.charges())
        }
    }

    fn charges(&self) -> Charges {
        let of_process = |process: &look::Process| {
            let charges = process.devices.iter();
            let charges = charges.map(|used| (used.charges, used.launches)).collect();
            (process.slot, process.generation, charges)
        };
        self.look.processes.iter().map(of_process).collect()
    }

    fn wants_measure(&self, now_ns: u64) -> bool {
        let Some((at_ns, charges)) = &self.measured else {
            return !self.look.processes.is_empty();
        };
        let age_ns = now_ns.saturating_sub(*at_ns);
        let holds = self.container.is_served()
            && (!self.look.processes.is_empty() || !self.members.is_empty());
        // Another look decides soon what is believed, or for whom the driver holds something.
        let is_open = self.graves.is_waiting() || self.excess.iter().any(Excess::is_undecided);
        // What is loaded past every call shows in nothing but the driver's figure, and is loaded by
        // those who launch.
        let mut uses = self
            .look
            .processes
            .iter()
            .flat_map(|process| &process.devices);
        let loads = uses.any(|used| used.loading);
        holds && (age_ns >= MEASURE_IDLE_NS || loads || is_open || *charges != self.charges())
    }

    fn tenant(&self, index: usize, limit: &DeviceLimit) -> Tenant {
        let limits = &self.container.limits;
        let used =
            |process: &look::Process| process.devices.get(index).copied().unwrap_or_default();
        let sum = |part: &dyn Fn(&Use) -> u64| {
            let parts = self
                .look
                .processes
                .iter()
                .map(|process| part(&used(process)));
            parts.fold(0_u64, u64::saturating_add)
        };
        let shared = self.look.shared_bytes.get(index).copied().unwrap_or(0);
        let process = |process: &look::Process| {
            let used = used(process);
            device::Process {
                slot: (process.slot, process.generation),
                host_pid: process.host_pid,
                launches: used.launches,
                busy_ns: used.busy_ns,
                in_flight_ns: used.in_flight_ns,
                last_launch_ns: used.last_launch_ns,
                waiting: used.waiting_since_ns != 0,
                throttled_ns: used.throttled_ns,
            }
        };
        // No more than the limits allow: a region says what its tenant likes.
        let (most, past) = most_bytes(limit);
        Tenant {
            id: self.container.id,
            policy: limits.policy,
            priority: limits.priority,
            cap: cap_permille(limit, limits.policy),
            floor: limit.floor_percent.min(100) * 10,
            held_bytes: sum(&|used| used.held_bytes)
                .saturating_add(shared)
                .min(most),
            oversubscribed_bytes: sum(&|used| used.oversubscribed_bytes).min(past),
            processes: self.look.processes.iter().map(process).collect(),
        }
    }
}

/// The most that a container can hold of a device, and the most of that past its share of the
/// device's own memory, bytes.
fn most_bytes(limit: &DeviceLimit) -> (u64, u64) {
    let most = match (limit.memory_bytes, limit.resident_bytes) {
        (0, 0) if limit.physical_bytes != 0 => limit.physical_bytes,
        (0, _) => CHARGE_BYTES_MASK,
        (memory, _) => memory,
    };
    let past = match limit.resident_bytes {
        0 => 0,
        resident => most.saturating_sub(resident),
    };
    (most, past)
}

fn cap_permille(limit: &DeviceLimit, policy: Policy) -> u32 {
    match limit.core_percent {
        _ if policy == Policy::Disable => shares::WHOLE,
        0 | 100.. => shares::WHOLE,
        percent => percent * 10,
    }
}

/// What devices are told apart by: the UUID, or where limits go by index that.
fn name_of(limit: &DeviceLimit, index: usize) -> String {
    if limit.uuid.is_empty() {
        format!("#{index}")
    } else {
        limit.uuid.as_str().to_owned()
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
