//! A container as the arbiter sees it many times a second: the few words of its region that say what
//! it does, its limits when they change, and its targets, which are written here.
//!
//! Never maps a file, never reads more of a region than its used slots' words, and never waits for
//! whoever owns a file.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, openat};
use nix::sys::stat::Mode;
use vgpu_abi::layout::{
    CHARGE_BYTES_MASK, ComputeUse, DeviceUse, LOCK_SLOTS, MAX_DEVICES, MAX_SLOTS, RegionDevice,
    RegionHeader, RegionLayout, SLOT_USED, SLOT_WORDS, Slot, SlotHead,
};
use vgpu_abi::limits::{self, Limits};
use vgpu_abi::targets::{Seen, Target, TargetsWriter};

use crate::instance::{Instance, LIMITS, REGION, TARGETS};

/// Slots of one container that are looked at; the rest has no word of the arbiter, and its own caps.
const SLOTS_MOST: usize = 256;
/// A scale that differs by less than this is not written anew.
const SCALE_STEP: u16 = 16;

/// A container that is looked after.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) id: u64,
    pub(super) path: PathBuf,
    /// What tells this directory from a later one of the same name.
    place: (u64, u64),
    region: File,
    limits_file: File,
    limits_word: Option<u64>,
    pub(super) limits: Limits,
    /// Nothing where this process may not write it: then it is a neighbour only.
    targets: Option<TargetsWriter>,
    /// As written last.
    written: Option<Vec<(usize, Target)>>,
}

/// A living process of a container.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) slot: usize,
    pub(super) generation: u64,
    pub(super) host_pid: Option<u32>,
    pub(super) devices: Vec<Use>,
}

/// What it does on a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// The charge words as they stand: they differ when anything was charged in between.
    pub(super) charges: [u64; 4],
    pub(super) held_bytes: u64,
    pub(super) oversubscribed_bytes: u64,
    pub(super) launches: u64,
    pub(super) busy_ns: u64,
    pub(super) in_flight_ns: u64,
    pub(super) last_launch_ns: u64,
    pub(super) waiting_since_ns: u64,
    pub(super) throttled_ns: u64,
}

/// A container at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Look {
    pub(super) processes: Vec<Process>,
    /// Objects that several processes hold, by device, bytes.
    pub(super) shared_bytes: [u64; MAX_DEVICES],
}

impl Container {
    /// Opens what is needed of an instance.
    pub(super) fn open(id: u64, instance: &Instance) -> Result<Self, String> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let region = openat(instance.dir(), REGION, flags, Mode::empty())
            .map_err(|errno| format!("region: {}", errno.desc()))?;
        let region = File::from(region);
        let stat = region
            .metadata()
            .map_err(|error| format!("region: {error}"))?;
        if !stat.is_file() || stat.len() != size_of::<RegionLayout>() as u64 {
            return Err(String::from("region: not a usage region"));
        }
        let text = |error: crate::instance::InstanceError| error.to_string();
        let limits_file = instance.host_file(LIMITS, false).map_err(text)?;
        let targets = match instance.host_file(TARGETS, true) {
            Ok(file) => {
                Some(TargetsWriter::new(file).map_err(|error| format!("targets: {error}"))?)
            }
            Err(error) if matches!(error.errno(), Some(Errno::EACCES | Errno::EROFS)) => None,
            Err(error) => return Err(text(error)),
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
        };
        container.read_limits()?;
        Ok(container)
    }

    /// Whether it is the one that lies at its path at the moment.
    pub(super) fn is_at(&self, instance: &Instance) -> bool {
        let flags = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
        nix::sys::stat::fstatat(instance.dir(), REGION, flags)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.place)
    }

    /// Reads the limits again where they were written since.
    fn read_limits(&mut self) -> Result<(), String> {
        let text = |error| format!("limits: {error}");
        let word = limits::file_generation(&self.limits_file).map_err(text)?;
        if self.limits_word != Some(word) {
            self.limits = limits::read_file(&self.limits_file).map_err(text)?;
            self.limits_word = Some(word);
        }
        Ok(())
    }

    /// Looks at it.
    pub(super) fn look(&mut self) -> Result<Look, String> {
        self.read_limits()?;
        let devices = self.limits.devices.len().min(MAX_DEVICES);
        let mut head = [0; HEAD_MOST];
        let bytes = DEVICES_AT - HEAD_AT + devices * size_of::<RegionDevice>();
        let head = head.get_mut(..bytes).unwrap_or_default();
        self.read(head, HEAD_AT)?;
        let mut look = Look::default();
        for (device, shared) in look.shared_bytes.iter_mut().enumerate().take(devices) {
            let at = DEVICES_AT - HEAD_AT + device * size_of::<RegionDevice>();
            *shared = word(head, at + offset_of!(RegionDevice, shared)) & CHARGE_BYTES_MASK;
        }
        let above = half(head, offset_of!(RegionHeader, slots_high_water) - HEAD_AT) as usize;
        let in_use = |slot: &usize| {
            let at = offset_of!(RegionHeader, slots_in_use) - HEAD_AT + slot / 64 * 8;
            word(head, at) & 1 << (slot % 64) != 0
        };
        let slots = (0..above.min(MAX_SLOTS)).filter(in_use).take(SLOTS_MOST);
        for slot in slots {
            look.processes.extend(self.process(slot, devices)?);
        }
        Ok(look)
    }

    fn process(&self, slot: usize, devices: usize) -> Result<Option<Process>, String> {
        let mut buffer = [0; size_of::<Slot>()];
        let bytes = offset_of!(Slot, devices) + devices * size_of::<DeviceUse>();
        let buffer = buffer.get_mut(..bytes).unwrap_or_default();
        let at = offset_of!(RegionLayout, slots) + slot * size_of::<Slot>();
        self.read(buffer, at)?;
        if half(buffer, offset_of!(SlotHead, state)) != SLOT_USED {
            return Ok(None);
        }
        let Some(host_pid) = self.owner(slot) else {
            return Ok(None);
        };
        let of_device = |device: usize| {
            let at = offset_of!(Slot, devices) + device * size_of::<DeviceUse>();
            let charge = |offset: usize| word(buffer, at + offset);
            let compute = |offset: usize| charge(offset_of!(DeviceUse, compute) + offset);
            let confirmed = charge(offset_of!(DeviceUse, confirmed));
            let oversubscribed = charge(offset_of!(DeviceUse, oversubscribed)) & CHARGE_BYTES_MASK;
            Use {
                charges: [
                    confirmed,
                    charge(offset_of!(DeviceUse, contexts)),
                    charge(offset_of!(DeviceUse, modules)),
                    charge(offset_of!(DeviceUse, pending)),
                ],
                held_bytes: confirmed & CHARGE_BYTES_MASK,
                oversubscribed_bytes: oversubscribed.min(confirmed & CHARGE_BYTES_MASK),
                launches: compute(offset_of!(ComputeUse, launches))
                    .wrapping_add(compute(offset_of!(ComputeUse, graph_launches))),
                busy_ns: compute(offset_of!(ComputeUse, busy_ns)),
                in_flight_ns: compute(offset_of!(ComputeUse, in_flight_ns)),
                last_launch_ns: compute(offset_of!(ComputeUse, last_launch_ns)),
                waiting_since_ns: compute(offset_of!(ComputeUse, waiting_since_ns)),
                throttled_ns: compute(offset_of!(ComputeUse, throttled_ns)),
            }
        };
        Ok(Some(Process {
            slot,
            generation: word(buffer, offset_of!(SlotHead, generation)),
            host_pid: Some(host_pid).filter(|pid| *pid != 0),
            devices: (0..devices).map(of_device).collect(),
        }))
    }

    fn read(&self, buffer: &mut [u8], at: usize) -> Result<(), String> {
        let read = self.region.read_exact_at(buffer, at as u64);
        read.map_err(|error| format!("region: {error}"))
    }

    /// Who holds the slot's lock, as the kernel says: a process id on the host, 0 where it is not
    /// visible from here; nothing where the process is gone.
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
            // Nobody knows: then it counts as alive.
            Err(_) => Some(0),
        }
    }

    /// What was published for a slot last, by whoever was the arbiter before.
    pub(super) fn published(&self, slot: usize) -> Option<Target> {
        self.targets.as_ref()?.target(slot).ok().flatten()
    }

    /// Whether this process may say what is granted.
    pub(super) fn is_served(&self) -> bool {
        self.targets.is_some()
    }

    /// Publishes, where anything differs from what stands there, and says in any case that the
    /// arbiter lives.
    pub(super) fn publish(
        &mut self,
        targets: Vec<(usize, Target)>,
        seen: &[Seen; MAX_DEVICES],
        now_ns: u64,
    ) -> Result<(), String> {
        let Some(writer) = &self.targets else {
            return Ok(());
        };
        let same = self
            .written
            .as_ref()
            .is_some_and(|was| alike(was, &targets));
        let text = |error| format!("targets: {error}");
        if same {
            writer.beat(seen, now_ns).map_err(text)?;
        } else if writer.write(&targets, seen, now_ns).map_err(text)? {
            self.written = Some(targets);
        } else {
            // Somebody else was writing: the next tick says it again.
            self.written = None;
        }
        Ok(())
    }
}

const HEAD_AT: usize = offset_of!(RegionHeader, slots_high_water);
const DEVICES_AT: usize = offset_of!(RegionLayout, devices);
const HEAD_MOST: usize = DEVICES_AT - HEAD_AT + MAX_DEVICES * size_of::<RegionDevice>();
const _: () = assert!(offset_of!(RegionHeader, slots_in_use) + SLOT_WORDS * 8 <= DEVICES_AT);

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

/// Whether nobody would act differently on the one than on the other.
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
