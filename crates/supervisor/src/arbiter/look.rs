//! A container as the arbiter sees it many times a second: the few words of its region that say what it does,
//! its limits when they change, and its targets, which this module writes.
//!
//! Never maps a file that a user other than root could shorten, never reads more of a region than the words of its
//! used slots, and never waits for a file's owner.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use vgpu_abi::file::{self, Access, FileKind};
use vgpu_abi::host::{Counters, DeviceUseSnapshot, SlotSnapshot, Snapshot};
use vgpu_abi::layout::{
    CHARGE_BYTES_MASK, ComputeUse, DeviceUse, HOOK_GROUPS, KEEPS_INTERVALS, LOCK_SLOTS,
    MAX_DEVICES, MAX_SLOTS, RegionDevice, RegionHeader, RegionLayout, SLOT_USED, SLOT_WORDS, Slot,
    SlotHead,
};
use vgpu_abi::limits::{self, Limits, LimitsMap};
use vgpu_abi::targets::{Head, Target, TargetsFile, TargetsWriter};

use crate::ContainerError;
use crate::instance::{DOORBELL, Instance, InstanceError, LIMITS, REGION, TARGETS};

/// Owners of one container's slots that the kernel is asked for at one look; the others are asked for
/// at the next ones, so that a container of a thousand processes delays no other.
const OWNERS_MOST: usize = 256;
/// Processes of a container whose cells are read between two ticks at most; one with more is looked at in ticks alone.
const PEEKED_MOST: usize = 64;
/// A scale that differs by less than this is not published again.
const SCALE_STEP: u16 = 16;

/// A container that is served.
#[derive(Debug)]
pub(super) struct ServedContainer {
    pub(super) id: u64,
    pub(super) path: PathBuf,
    /// Device and inode of the directory: they distinguish it from a later one of the same name.
    place: (u64, u64),
    region: File,
    limits_file: LimitsSource,
    limits_word: Option<u64>,
    pub(super) limits: Limits,
    /// `None` if this process may not write them: the container then counts only as a neighbour.
    targets: Option<Targets>,
    /// The targets as last written, and the moment of the last write.
    written: Option<Vec<(usize, Target)>>,
    wrote_at_ns: u64,
    /// The head as last published.
    head: Head,
    /// When the parts that are not read at every look were last read.
    checked_at_ns: u64,
    /// The slots in use then.
    slots: Vec<usize>,
    /// Those whose owners lived when they were asked for last, with their process ids; oldest first.
    owners: VecDeque<(usize, u32)>,
    /// Process ids by slot, for the same.
    owner_of: HashMap<usize, u32>,
    /// Whether it ever had an object that several processes hold.
    has_shared: bool,
}

/// The limits. A file of root's is mapped and read without a system call. A file of another user is never
/// mapped: its owner can shorten it, and that kills every process that has it mapped.
#[derive(Debug)]
enum LimitsSource {
    Root(LimitsMap),
    Users(File),
}

/// The same for the targets.
#[derive(Debug)]
enum Targets {
    Root(TargetsFile),
    Users(TargetsWriter),
}

/// How often limits are looked at, owners asked for and heartbeats written, nanoseconds: less often
/// than a busy board is looked at, and often enough that a reader is never in doubt.
const CHECK_NS: u64 = 95_000_000;

/// A living process of a container.
#[derive(Debug, Clone)]
pub(super) struct LivingProcess {
    pub(super) slot: usize,
    pub(super) generation: u64,
    pub(super) host_pid: Option<u32>,
    /// Its library keeps to the container's interval of a timetable.
    pub(super) keeps_intervals: bool,
    pub(super) devices: Vec<Use>,
}

/// A process's use of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// The charge words: they differ when anything was charged in between.
    pub(super) charges: [u64; 4],
    /// Its runtime is loading what no call names.
    pub(super) loading: bool,
    pub(super) held_bytes: u64,
    pub(super) oversubscribed_bytes: u64,
    pub(super) launches: u64,
    pub(super) busy_ns: u64,
    pub(super) occupied_ns: u64,
    pub(super) in_flight_ns: u64,
    pub(super) last_launch_ns: u64,
    pub(super) expected_by_ns: u64,
    pub(super) ended_ns: u64,
    pub(super) waiting_since_ns: u64,
    pub(super) throttled_ns: u64,
}

/// The sums of a container's charges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ChargeSums {
    pub(super) devices: [DeviceCharges; MAX_DEVICES],
}

/// The charges on one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DeviceCharges {
    /// Confirmed, shared, and kept for runtimes that load, bytes.
    pub(super) used: u64,
    /// Asked of the driver and not answered yet, bytes.
    pub(super) pending: u64,
    /// Differs when anything was charged or released in between.
    print: u64,
}

impl DeviceCharges {
    fn add(&mut self, charged: u64, pending: u64, kept: u64) {
        let bytes = charged & CHARGE_BYTES_MASK;
        self.used = self.used.saturating_add(bytes).saturating_add(kept);
        self.pending = self.pending.saturating_add(pending & CHARGE_BYTES_MASK);
        self.print = self.print.rotate_left(7) ^ charged;
    }
}

/// A container at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Look {
    pub(super) processes: Vec<LivingProcess>,
    /// Objects that several processes hold, by device, bytes.
    pub(super) shared_bytes: [u64; MAX_DEVICES],
    /// Whether there ever was one.
    pub(super) has_shared: bool,
}

impl Look {
    /// The charges, in the form of a whole snapshot without shared objects.
    pub(super) fn charges(&self) -> Snapshot {
        let slot = |process: &LivingProcess| SlotSnapshot {
            slot: process.slot,
            generation: process.generation,
            pid: 0,
            start_time: 0,
            pid_namespace: 0,
            name: String::new(),
            joined_unix_ns: 0,
            alive: true,
            gone_since_ns: 0,
            has_family: false,
            host_pid: process.host_pid,
            devices: std::array::from_fn(|device| {
                let used = process.devices.get(device).copied().unwrap_or_default();
                let [confirmed, contexts, modules, pending] = used.charges;
                let confirmed = confirmed & CHARGE_BYTES_MASK;
                let contexts = contexts.min(confirmed);
                let modules = modules.min(confirmed - contexts);
                DeviceUseSnapshot {
                    confirmed_bytes: confirmed,
                    pending_bytes: pending & CHARGE_BYTES_MASK,
                    buffer_bytes: confirmed - contexts - modules,
                    context_bytes: contexts,
                    module_bytes: modules,
                    ..DeviceUseSnapshot::default()
                }
            }),
            hook_calls: [0; HOOK_GROUPS],
        };
        Snapshot {
            created_unix_ns: 0,
            read_at_ns: 0,
            devices: Vec::new(),
            slots: self.processes.iter().map(slot).collect(),
            shared: Vec::new(),
            ooms: Vec::new(),
            counters: Counters::default(),
        }
    }
}

impl ServedContainer {
    /// Opens the files of an instance.
    pub(super) fn open(id: u64, instance: &Instance) -> Result<Self, ContainerError> {
        let region = instance.steady_path(REGION);
        let region =
            file::open(&region, FileKind::Region, Access::Read).map_err(ContainerError::Region)?;
        let stat = region.metadata().map_err(unreadable)?;
        let limits_file = instance.host_file(LIMITS, false)?;
        let limits_file = if is_roots(&limits_file) {
            let map = LimitsMap::open(&instance.steady_path(LIMITS));
            LimitsSource::Root(map.map_err(ContainerError::Limits)?)
        } else {
            LimitsSource::Users(limits_file)
        };
        let unfit = ContainerError::Targets;
        let targets = match instance.host_file(TARGETS, true) {
            Ok(file) if is_roots(&file) => {
                let file = TargetsFile::open(&instance.steady_path(TARGETS)).map_err(unfit)?;
                Some(Targets::Root(file))
            }
            Ok(file) => Some(Targets::Users(TargetsWriter::new(file).map_err(unfit)?)),
            Err(error) if matches!(error.errno(), Some(Errno::EACCES | Errno::EROFS)) => None,
            Err(error) => return Err(error.into()),
        };
        let mut container = Self {
            id,
            path: instance.path().to_owned(),
            place: (stat.dev(), stat.ino()),
            region,
            limits_file,
            limits_word: None,
            limits: Limits::default(),
            targets,
            written: None,
            wrote_at_ns: 0,
            head: Head::default(),
            checked_at_ns: 0,
            slots: Vec::new(),
            owners: VecDeque::new(),
            owner_of: HashMap::new(),
            has_shared: false,
        };
        container.read_limits()?;
        Ok(container)
    }

    /// Whether it is the instance that is at its path now.
    pub(super) fn is_at(&self, instance: &Instance) -> bool {
        let flags = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
        nix::sys::stat::fstatat(instance.dir(), REGION, flags)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.place)
    }

    /// Reads the limits again where they were written since.
    fn read_limits(&mut self) -> Result<(), ContainerError> {
        let text = ContainerError::Limits;
        let word = match &self.limits_file {
            LimitsSource::Root(map) => map.generation(),
            LimitsSource::Users(file) => limits::file_generation(file).map_err(text)?,
        };
        if self.limits_word != Some(word) {
            self.limits = match &self.limits_file {
                LimitsSource::Root(map) => Limits::from(&map.load().map_err(text)?),
                LimitsSource::Users(file) => limits::read_file(file).map_err(text)?,
            };
            self.limits_word = Some(word);
        }
        Ok(())
    }

    /// Looks at it; where `shared`, at objects that several processes hold too.
    pub(super) fn look(&mut self, now_ns: u64, shared: bool) -> Result<Look, ContainerError> {
        let is_due = now_ns.saturating_sub(self.checked_at_ns) >= CHECK_NS;
        if is_due {
            self.checked_at_ns = now_ns;
            self.read_limits()?;
            let asked_again = self.owners.len().min(OWNERS_MOST);
            for (slot, _) in self.owners.drain(..asked_again) {
                self.owner_of.remove(&slot);
            }
            self.read_slots()?;
        }
        let devices = self.limits.devices.len().min(MAX_DEVICES);
        let mut look = Look {
            has_shared: self.has_shared,
            ..Look::default()
        };
        for (device, bytes) in look.shared_bytes.iter_mut().enumerate().take(devices) {
            if !shared || !self.has_shared {
                break;
            }
            let mut charge = [0; 8];
            let at = DEVICES_AT + device * size_of::<RegionDevice>();
            self.read(&mut charge, at + offset_of!(RegionDevice, shared))?;
            *bytes = u64::from_ne_bytes(charge) & CHARGE_BYTES_MASK;
        }
        for slot in std::mem::take(&mut self.slots) {
            self.slots.push(slot);
            look.processes.extend(self.process(slot, devices)?);
        }
        Ok(look)
    }

    /// Which slots are in use.
    fn read_slots(&mut self) -> Result<(), ContainerError> {
        let mut head = [0; HEAD_BYTES];
        self.read(&mut head, HEAD_AT)?;
        self.has_shared = half(&head, offset_of!(RegionHeader, shared_high_water) - HEAD_AT) > 0;
        self.slots = in_use(&head).collect();
        Ok(())
    }

    fn process(
        &mut self,
        slot: usize,
        devices: usize,
    ) -> Result<Option<LivingProcess>, ContainerError> {
        let mut buffer = [0; size_of::<Slot>()];
        let bytes = offset_of!(Slot, devices) + devices * size_of::<DeviceUse>();
        let buffer = buffer.get_mut(..bytes).unwrap_or_default();
        let at = offset_of!(RegionLayout, slots) + slot * size_of::<Slot>();
        self.read(buffer, at)?;
        if half(buffer, offset_of!(SlotHead, state)) != SLOT_USED {
            return Ok(None);
        }
        let known = self.owner_of.get(&slot).copied();
        let Some(host_pid) = known.or_else(|| self.owner(slot)) else {
            return Ok(None);
        };
        if known.is_none() {
            self.owners.push_back((slot, host_pid));
            self.owner_of.insert(slot, host_pid);
        }
        let of_device = |device: usize| {
            let at = offset_of!(Slot, devices) + device * size_of::<DeviceUse>();
            let charge = |offset: usize| word(buffer, at + offset);
            let confirmed = charge(offset_of!(DeviceUse, confirmed));
            let oversubscribed = charge(offset_of!(DeviceUse, oversubscribed)) & CHARGE_BYTES_MASK;
            Use {
                charges: [
                    confirmed,
                    charge(offset_of!(DeviceUse, contexts)),
                    charge(offset_of!(DeviceUse, modules)),
                    charge(offset_of!(DeviceUse, pending)),
                ],
                loading: charge(offset_of!(DeviceUse, loading_since_ns)) != 0,
                held_bytes: confirmed & CHARGE_BYTES_MASK,
                oversubscribed_bytes: oversubscribed.min(confirmed & CHARGE_BYTES_MASK),
                ..compute_of(buffer, at + offset_of!(DeviceUse, compute))
            }
        };
        Ok(Some(LivingProcess {
            slot,
            generation: word(buffer, offset_of!(SlotHead, generation)),
            host_pid: Some(host_pid).filter(|pid| *pid != 0),
            keeps_intervals: word(buffer, offset_of!(SlotHead, abilities)) & KEEPS_INTERVALS != 0,
            devices: (0..devices).map(of_device).collect(),
        }))
    }

    /// The present work on one device of the processes of the last look. `None` if they are too many to be read
    /// between two ticks.
    pub(super) fn peek(&self, known: &[LivingProcess], device: usize) -> Option<Vec<Use>> {
        if known.len() > PEEKED_MOST || device >= MAX_DEVICES {
            return None;
        }
        let one = |process: &LivingProcess| {
            let mut buffer = [0; size_of::<ComputeUse>()];
            let at = offset_of!(RegionLayout, slots)
                + process.slot * size_of::<Slot>()
                + offset_of!(Slot, devices)
                + device * size_of::<DeviceUse>()
                + offset_of!(DeviceUse, compute);
            self.read(&mut buffer, at).ok()?;
            Some(compute_of(&buffer, 0))
        };
        known.iter().map(one).collect()
    }

    fn read(&self, buffer: &mut [u8], at: usize) -> Result<(), ContainerError> {
        let read = self.region.read_exact_at(buffer, at as u64);
        read.map_err(unreadable)
    }

    /// The process that holds the slot's lock, as the kernel reports it: its process id on the host, 0 if it is not
    /// visible from here, or `None` if the process has ended.
    fn owner(&self, slot: usize) -> Option<u32> {
        let mut lock = nix::libc::flock {
            l_type: lock_type(nix::libc::F_WRLCK),
            l_whence: 0,
            l_start: i64::try_from(LOCK_SLOTS).unwrap_or(0) + i64::try_from(slot).unwrap_or(0),
            l_len: 1,
            l_pid: 0,
        };
        match fcntl(&self.region, FcntlArg::F_OFD_GETLK(&mut lock)) {
            Ok(_) if lock.l_type == lock_type(nix::libc::F_UNLCK) => None,
            Ok(_) => Some(u32::try_from(lock.l_pid).unwrap_or(0)),
            // The state is unknown; the process then counts as alive.
            Err(_) => Some(0),
        }
    }

    /// The sums of the charges, as the library adds them up: every slot that is in use, whether its owner lives or
    /// not, and shared objects once.
    pub(super) fn charge_sums(&self) -> Result<ChargeSums, ContainerError> {
        let mut head = [0; HEAD_BYTES];
        self.read(&mut head, HEAD_AT)?;
        let devices = self.limits.devices.len().min(MAX_DEVICES);
        let mut table = [0; MAX_DEVICES * size_of::<RegionDevice>()];
        let table = table
            .get_mut(..devices * size_of::<RegionDevice>())
            .unwrap_or_default();
        self.read(table, DEVICES_AT)?;
        let of_device =
            |device: usize, offset: usize| word(table, device * size_of::<RegionDevice>() + offset);
        let mut sums = ChargeSums::default();
        for (device, sum) in sums.devices.iter_mut().enumerate().take(devices) {
            let shared = of_device(device, offset_of!(RegionDevice, shared));
            sum.add(shared, 0, 0);
        }
        let mut buffer = [0; size_of::<Slot>()];
        let bytes = offset_of!(Slot, devices) + devices * size_of::<DeviceUse>();
        let buffer = buffer.get_mut(..bytes).unwrap_or_default();
        for slot in in_use(&head) {
            let at = offset_of!(RegionLayout, slots) + slot * size_of::<Slot>();
            self.read(buffer, at)?;
            for (device, sum) in sums.devices.iter_mut().enumerate().take(devices) {
                let at = offset_of!(Slot, devices) + device * size_of::<DeviceUse>();
                let cell = |offset: usize| word(buffer, at + offset);
                let loads = cell(offset_of!(DeviceUse, loading_since_ns)) != 0;
                let loaded = cell(offset_of!(DeviceUse, contexts))
                    .saturating_add(cell(offset_of!(DeviceUse, modules)));
                let expected = of_device(device, offset_of!(RegionDevice, runtime_bytes));
                let kept = if loads {
                    (expected & CHARGE_BYTES_MASK).saturating_sub(loaded)
                } else {
                    0
                };
                let confirmed = cell(offset_of!(DeviceUse, confirmed));
                sum.add(confirmed, cell(offset_of!(DeviceUse, pending)), kept);
            }
        }
        Ok(sums)
    }

    /// Processes that hold the lock of any slot, whatever the region says of that slot: process ids
    /// on the host.
    pub(super) fn members(&self) -> HashSet<u32> {
        let mut found = HashSet::new();
        let mut open = vec![(0, MAX_SLOTS as u64)];
        while let Some((from, until)) = open.pop() {
            let Some((pid, first, end)) = self.lock_within(from, until) else {
                continue;
            };
            if pid != 0 {
                found.insert(pid);
            }
            let (first, end) = (first.clamp(from, until), end.clamp(from, until));
            for (from, until) in [(from, first), (end.max(first + 1), until)] {
                if from < until {
                    open.push((from, until));
                }
            }
        }
        found
    }

    /// A lock among those of these slots: its owner's process id, the first slot, the one behind the
    /// last.
    fn lock_within(&self, from: u64, until: u64) -> Option<(u32, u64, u64)> {
        let mut lock = nix::libc::flock {
            l_type: lock_type(nix::libc::F_WRLCK),
            l_whence: 0,
            l_start: i64::try_from(LOCK_SLOTS + from).ok()?,
            l_len: i64::try_from(until - from).ok()?,
            l_pid: 0,
        };
        fcntl(&self.region, FcntlArg::F_OFD_GETLK(&mut lock)).ok()?;
        if lock.l_type == lock_type(nix::libc::F_UNLCK) {
            return None;
        }
        let first = u64::try_from(lock.l_start).unwrap_or(0);
        let end = match u64::try_from(lock.l_len) {
            // To the end of the file, wherever that is.
            Ok(0) | Err(_) => u64::MAX,
            Ok(bytes) => first.saturating_add(bytes),
        };
        Some((
            u32::try_from(lock.l_pid).unwrap_or(0),
            first.saturating_sub(LOCK_SLOTS),
            end.saturating_sub(LOCK_SLOTS),
        ))
    }

    /// The last target published for a slot, by this or an earlier arbiter.
    pub(super) fn published(&self, slot: usize) -> Option<Target> {
        match self.targets.as_ref()? {
            Targets::Root(file) => file.target(slot),
            Targets::Users(writer) => writer.target(slot).ok().flatten(),
        }
    }

    /// Whether this process may publish its targets.
    pub(super) fn is_served(&self) -> bool {
        self.targets.is_some()
    }

    /// Publishes if anything differs from what was published last, and updates the heartbeat in any case.
    /// With `anew`, publishes the same again: a thread of a process whose launches do not wait counts them only after
    /// a publication, or after many launches.
    pub(super) fn publish(
        &mut self,
        targets: Vec<(usize, Target)>,
        head: &Head,
        anew: bool,
    ) -> Result<(), ContainerError> {
        let now_ns = head.heartbeat_ns;
        let Some(writer) = &mut self.targets else {
            return Ok(());
        };
        let was = self.written.as_ref().filter(|_| !anew);
        let same = was.is_some_and(|was| alike(was, &targets));
        let same_room = self.head.unaccounted == head.unaccounted;
        let same_intervals = self.head.intervals == head.intervals;
        if same && same_room && same_intervals && now_ns.saturating_sub(self.wrote_at_ns) < CHECK_NS
        {
            return Ok(());
        }
        self.wrote_at_ns = now_ns;
        self.head = *head;
        let text = ContainerError::Targets;
        match (writer, same) {
            (Targets::Root(file), true) => file.beat(head),
            (Targets::Root(file), false) => {
                file.write(&targets, now_ns).map_err(text)?;
                file.beat(head);
            }
            (Targets::Users(writer), true) => writer.beat(head).map_err(text)?,
            (Targets::Users(writer), false) => {
                writer.write(&targets, head).map_err(text)?;
            }
        }
        if !same {
            self.written = Some(targets);
        }
        Ok(())
    }
}

/// The compute cells of a process, which stand at this place.
fn compute_of(bytes: &[u8], at: usize) -> Use {
    let cell = |offset: usize| word(bytes, at + offset);
    Use {
        launches: cell(offset_of!(ComputeUse, launches))
            .wrapping_add(cell(offset_of!(ComputeUse, graph_launches))),
        busy_ns: cell(offset_of!(ComputeUse, busy_ns)),
        occupied_ns: cell(offset_of!(ComputeUse, occupied_ns)),
        in_flight_ns: cell(offset_of!(ComputeUse, in_flight_ns)),
        last_launch_ns: cell(offset_of!(ComputeUse, last_launch_ns)),
        expected_by_ns: cell(offset_of!(ComputeUse, expected_by_ns)),
        ended_ns: cell(offset_of!(ComputeUse, progress_ns)),
        waiting_since_ns: cell(offset_of!(ComputeUse, waiting_since_ns)),
        throttled_ns: cell(offset_of!(ComputeUse, throttled_ns)),
        ..Use::default()
    }
}

impl ServedContainer {
    /// Publishes the last targets again between two ticks, with another share on one device where one is given.
    pub(super) fn republish(
        &mut self,
        now_ns: u64,
        share: Option<(usize, u16)>,
    ) -> Result<(), ContainerError> {
        let Some(mut targets) = self.written.clone() else {
            return Ok(());
        };
        let mut head = self.head;
        head.heartbeat_ns = now_ns;
        if let Some((device, permille)) = share {
            for (_, target) in &mut targets {
                if let Some(Some(grant)) = target.grants.get_mut(device) {
                    grant.permille = permille;
                }
            }
            if let Some(seen) = head.seen.get_mut(device) {
                seen.granted_permille = Some(permille);
            }
        }
        self.publish(targets, &head, true)
    }

    /// The file that its processes open to ring.
    pub(super) fn doorbell(&self) -> Result<File, ContainerError> {
        let instance = Instance::open(&self.path)?;
        if !self.is_at(&instance) {
            return Err(ContainerError::Instance(InstanceError::Kind {
                path: self.path.clone(),
                expected: "directory that was there before",
            }));
        }
        Ok(instance.host_file(DOORBELL, false)?)
    }
}

fn unreadable(error: std::io::Error) -> ContainerError {
    ContainerError::Region(error.into())
}

/// The slots that the head of a region calls used.
fn in_use(head: &[u8; HEAD_BYTES]) -> impl Iterator<Item = usize> + '_ {
    let above = half(head, offset_of!(RegionHeader, slots_high_water) - HEAD_AT) as usize;
    (0..above.min(MAX_SLOTS)).filter(|slot| {
        let at = offset_of!(RegionHeader, slots_in_use) - HEAD_AT + slot / 64 * 8;
        word(head, at) & 1 << (slot % 64) != 0
    })
}

/// Whether only root can shorten the file, and this process is root.
fn is_roots(file: &File) -> bool {
    nix::unistd::geteuid().is_root() && file.metadata().is_ok_and(|stat| stat.uid() == 0)
}

const HEAD_AT: usize = offset_of!(RegionHeader, slots_high_water);
const DEVICES_AT: usize = offset_of!(RegionLayout, devices);
/// From the number of slots to the end of the map of those in use.
const HEAD_BYTES: usize = offset_of!(RegionHeader, slots_in_use) + SLOT_WORDS * 8 - HEAD_AT;

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.copied().map_or(0, u64::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    let half = bytes.get(at..).and_then(|rest| rest.first_chunk());
    half.copied().map_or(0, u32::from_ne_bytes)
}

#[expect(clippy::cast_possible_truncation, reason = "lock types are 0, 1 and 2")]
fn lock_type(kind: i32) -> i16 {
    kind as i16
}

/// Whether the two lists would make every reader act the same.
fn alike(one: &[(usize, Target)], other: &[(usize, Target)]) -> bool {
    let same = |((slot, one), (place, other)): (&(usize, Target), &(usize, Target))| {
        let mut rest = *one;
        let grants = rest.grants.iter_mut().zip(&other.grants);
        for (grant, other) in grants {
            if let (Some(grant), Some(other)) = (grant, other)
                && grant.scale.abs_diff(other.scale) < SCALE_STEP
            {
                grant.scale = other.scale;
            }
        }
        slot == place && rest == *other
    };
    one.len() == other.len() && one.iter().zip(other).all(same)
}
