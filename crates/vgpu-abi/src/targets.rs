//! The host's knowledge of a container's processes: host pids, measured overhead, the compute
//! arbiter's targets. A second file that the host owns, of the same make as the limits.
//!
//! Never speaks of a process without naming the generation of its slot.

use std::fs::File;
use std::mem::offset_of;
use std::path::Path;
use std::time::Duration;

use crate::file::{FileError, FileKind};
use crate::hostfile::{
    Current, Fields, FieldsMut, HEADER_BYTES, HostFile, Make, Unmapped, bytes_of, checksum,
    heartbeat,
};
use crate::interval::Interval;
use crate::layout::{HostFileHeader, MAX_DEVICES, MAX_SLOTS, TargetsCopy, TargetsEntry};
use crate::map::Words;

/// The host's knowledge of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Target {
    /// Generation of the slot that is meant.
    pub slot_generation: u64,
    /// Process id on the host; 0 where it is not known.
    pub host_pid: u32,
    /// The process is dead, and the driver holds nothing for it any more.
    pub released: bool,
    /// Memory that the driver takes for the process beyond its own allocations, by device, bytes.
    pub overhead_bytes: [u64; MAX_DEVICES],
    /// The compute arbiter's grants, by device; `None` if it has granted nothing.
    pub grants: [Option<Grant>; MAX_DEVICES],
}

/// The compute arbiter's grant to a container on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Thousandths of the device's time, at most 1000; 0: its launches wait.
    pub permille: u16,
    /// The weight of a nanosecond that the container has measured, in parts of [`Grant::ONE`]: more
    /// than one where it measures too little, less where it takes others' time for its own. `own` is a factor of it.
    pub scale: u16,
    /// Of a measured interval that other containers' turns may lie in: the part that is the container's own, in
    /// parts of [`Grant::ONE`]. [`Grant::ONE`] where no other container works, or an older arbiter wrote the file.
    pub own: u16,
    /// Other containers work on the device too, so the time between events may be theirs.
    pub contended: bool,
    /// The container's work is to be measured and bounded although nothing caps it, because others
    /// depend on knowing it.
    pub measured: bool,
    /// A container of a lower priority may work while this one rests: its first launch after each publication rings
    /// the doorbell.
    pub rings: bool,
    /// How much work it may have in flight.
    pub ahead: Ahead,
}

/// How much work a container may have in flight on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ahead {
    /// The bound under an arbiter of an earlier release.
    #[default]
    Usual,
    /// Little: a container of a higher priority may start at any moment, and waits for what is in flight.
    Brief,
    /// As much as alone: containers of a lower priority are on the device, and none is promised time there. A library of
    /// an earlier release takes it for no bound.
    Any,
    /// Much: it is the only container on the device, and another one may come.
    Much,
}

impl Ahead {
    fn bits(self) -> u32 {
        match self {
            Self::Usual => 0,
            Self::Brief => 1,
            Self::Any => 2,
            Self::Much => 3,
        }
    }

    /// The amount of two bits.
    fn of(bits: u32) -> Self {
        match bits {
            1 => Self::Brief,
            2 => Self::Any,
            3 => Self::Much,
            _ => Self::Usual,
        }
    }
}

impl Grant {
    /// A [`Grant::scale`] of one.
    pub const ONE: u16 = 4096;

    /// The grant in one word, for a memory of it; 0 is none.
    #[must_use]
    pub fn to_bits(grant: Option<Self>) -> u64 {
        grant.map_or(0, |grant| {
            u64::from(grant.word()) | u64::from(grant.own) << 32
        })
    }

    /// The grant of such a word.
    #[must_use]
    pub fn of_bits(bits: u64) -> Option<Self> {
        let half = |shift: u32| u32::try_from(bits >> shift & 0xffff_ffff).unwrap_or(0);
        Self::of(half(0), u16::try_from(half(32)).unwrap_or(0))
    }

    fn word(self) -> u32 {
        (u32::from(self.permille.min(1000)) + 1)
            | u32::from(self.contended) << 10
            | u32::from(self.measured) << 11
            | u32::from(self.rings) << 12
            | self.ahead.bits() << 13
            | u32::from(self.scale) << 16
    }

    /// Reads the two words of a file; an older arbiter leaves the second at 0.
    fn of(word: u32, own: u16) -> Option<Self> {
        let permille = u16::try_from(word & 0x3ff).ok()?.checked_sub(1)?;
        Some(Self {
            permille: permille.min(1000),
            scale: u16::try_from(word >> 16).unwrap_or(Self::ONE),
            own: match own {
                0 => Self::ONE,
                own => own.min(Self::ONE),
            },
            contended: word & 1 << 10 != 0,
            measured: word & 1 << 11 != 0,
            rings: word & 1 << 12 != 0,
            ahead: Ahead::of(word >> 13 & 0b11),
        })
    }
}

/// The compute arbiter's view of a container on one device, for programs that show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ComputeStatus {
    /// The share that the arbiter grants, thousandths; `None` if it has granted none.
    pub granted_permille: Option<u16>,
    /// The share that was used in the last second, thousandths; `None` if it is not known.
    pub used_permille: Option<u16>,
    /// Thousandths of the last second that launches have waited; 1000 at most, however many did.
    pub throttled_permille: u16,
    /// Others work on the device too.
    pub contended: bool,
    /// It waits for its turn, because what the containers hold does not fit the device together.
    pub waits_for_turn: bool,
}

impl ComputeStatus {
    fn word(self) -> u64 {
        let part = |share: Option<u16>| share.map_or(0, |share| u64::from(share.min(1000)) + 1);
        part(self.granted_permille)
            | part(self.used_permille) << 16
            | u64::from(self.throttled_permille.min(1000)) << 32
            | u64::from(self.contended) << 48
            | u64::from(self.waits_for_turn) << 49
    }

    fn of(word: u64) -> Self {
        let part = |shift: u32| u16::try_from(word >> shift & 0xffff).unwrap_or(0).min(1001);
        Self {
            granted_permille: part(0).checked_sub(1),
            used_permille: part(16).checked_sub(1),
            throttled_permille: part(32).min(1000),
            contended: word & 1 << 48 != 0,
            waits_for_turn: word & 1 << 49 != 0,
        }
    }
}

/// Memory of a container that its charges do not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unaccounted {
    /// Bytes that the driver holds beyond the charges.
    pub bytes: u64,
    /// The charges when that was measured, bytes.
    pub beside: u64,
}

/// The head of a targets file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// When the host last wrote, nanoseconds of the monotonic clock; 0 is never.
    pub heartbeat_ns: u64,
    /// The arbiter's view, by device.
    pub seen: [ComputeStatus; MAX_DEVICES],
    /// Memory that the driver holds beyond the container's charges, by device.
    pub unaccounted: [Unaccounted; MAX_DEVICES],
    /// The container's part of the timetable, by device; `None` if there is none.
    pub intervals: [Option<Interval>; MAX_DEVICES],
}

const ENTRY_BYTES: usize = size_of::<TargetsEntry>();
const ENTRY_WORDS: usize = ENTRY_BYTES / 8;
const COPY_BYTES: usize = size_of::<TargetsCopy>();
const MAKE: Make = Make {
    kind: FileKind::Targets,
    copy_bytes: COPY_BYTES,
};

fn encode(target: &Target, generation: u64) -> [u64; ENTRY_WORDS] {
    let mut words = [0; ENTRY_WORDS];
    let mut to = FieldsMut(&mut words);
    to.u64(offset_of!(TargetsEntry, generation), generation);
    to.u64(
        offset_of!(TargetsEntry, slot_generation),
        target.slot_generation,
    );
    to.u32(offset_of!(TargetsEntry, host_pid), target.host_pid);
    to.u32(
        offset_of!(TargetsEntry, released),
        u32::from(target.released),
    );
    for (index, bytes) in target.overhead_bytes.iter().enumerate() {
        to.u64(offset_of!(TargetsEntry, overhead_bytes) + index * 8, *bytes);
    }
    for (index, grant) in target.grants.iter().enumerate() {
        to.u32(
            offset_of!(TargetsEntry, grants) + index * 4,
            grant.map_or(0, Grant::word),
        );
    }
    for (index, parts) in target.grants.chunks(4).enumerate() {
        let word = parts.iter().rev().fold(0_u64, |word, grant| {
            word << 16 | grant.map_or(0, |grant| u64::from(grant.own))
        });
        FieldsMut(&mut words).u64(offset_of!(TargetsEntry, own_parts) + index * 8, word);
    }
    let sum = checksum(words.get(..ENTRY_WORDS - 1).unwrap_or_default());
    FieldsMut(&mut words).u64(offset_of!(TargetsEntry, checksum), sum);
    words
}

/// The fields of an entry, if it is whole and of this generation of the file.
fn whole(words: &[u64; ENTRY_WORDS], generation: u64) -> Option<Fields<'_>> {
    let from = Fields(words);
    let sum = checksum(words.get(..ENTRY_WORDS - 1)?);
    let is_whole = from.u64(offset_of!(TargetsEntry, checksum)) == sum
        && from.u64(offset_of!(TargetsEntry, generation)) == generation;
    is_whole.then_some(from)
}

/// All of an entry.
fn target_in(from: &Fields<'_>) -> Target {
    Target {
        slot_generation: from.u64(offset_of!(TargetsEntry, slot_generation)),
        host_pid: from.u32(offset_of!(TargetsEntry, host_pid)),
        released: from.u32(offset_of!(TargetsEntry, released)) & 1 != 0,
        overhead_bytes: std::array::from_fn(|i| {
            from.u64(offset_of!(TargetsEntry, overhead_bytes) + i * 8)
        }),
        grants: std::array::from_fn(|device| grant_in(from, device)),
    }
}

/// The grant of an entry on one device, which is below [`MAX_DEVICES`].
fn grant_in(from: &Fields<'_>, device: usize) -> Option<Grant> {
    let four = from.u64(offset_of!(TargetsEntry, own_parts) + device / 4 * 8);
    let own = u16::try_from(four >> (device % 4 * 16) & 0xffff).unwrap_or(0);
    Grant::of(from.u32(offset_of!(TargetsEntry, grants) + device * 4), own)
}

/// Reads some of one entry. Each has a checksum of its own, so that a process reads no more than its own. A
/// writer busy with the copy under our eyes has flipped twice since; then we look again.
fn load<T>(words: &Words, slot: usize, read: impl Fn(&Fields<'_>) -> T) -> Option<T> {
    if slot >= MAX_SLOTS {
        return None;
    }
    loop {
        let current = Current::of(words);
        let at = current.offset(COPY_BYTES) + slot * ENTRY_BYTES;
        let entry = words.load_array(at);
        if let Some(from) = whole(&entry, current.generation()) {
            return Some(read(&from));
        }
        if Current::of(words) == current {
            return None;
        }
    }
}

/// The host's side: the one writer.
#[derive(Debug)]
pub struct TargetsFile(HostFile);

impl TargetsFile {
    /// Makes the file, with no targets in it; it must not exist.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn create(path: &Path) -> Result<Self, FileError> {
        HostFile::create(path, &MAKE, |_file| Ok(())).map(Self)
    }

    /// Opens a file that exists.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn open(path: &Path) -> Result<Self, FileError> {
        HostFile::open(path, &MAKE, true).map(Self)
    }

    /// Replaces all targets: pairs of slot and target. `heartbeat_ns` is the monotonic clock. Gives
    /// back the generation. A slot beyond the last is left out. Does not wait: there is one writer,
    /// and a container that keeps a lock on its file must not stop what is done for all.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn write(
        &mut self,
        targets: &[(usize, Target)],
        heartbeat_ns: u64,
    ) -> Result<u64, FileError> {
        let _turn = self.0.exclusive(Duration::ZERO)?;
        let generation = (Current::of(self.0.words()).generation() + 1) & (u64::MAX >> 1);
        for (slot, target) in targets.iter().filter(|(slot, _)| *slot < MAX_SLOTS) {
            let entry = encode(target, generation);
            self.0.write_spare(&bytes_of(&entry), slot * ENTRY_BYTES)?;
        }
        self.0.set_heartbeat(heartbeat_ns);
        self.0.flip(generation);
        Ok(generation)
    }

    /// Says that the targets still hold, when they were looked at last, and what was seen since they
    /// were written; makes no system call.
    pub fn beat(&self, head: &Head) {
        for (place, word) in words_of(head).into_iter().enumerate() {
            self.0
                .set_word(offset_of!(HostFileHeader, heartbeat_ns) + place * 8, word);
        }
    }

    /// The present target of a slot.
    #[must_use]
    pub fn target(&self, slot: usize) -> Option<Target> {
        load(self.0.words(), slot, target_in)
    }

    /// The present targets.
    ///
    /// # Errors
    /// None today; the form leaves room for one.
    pub fn read(&self) -> Result<Vec<(usize, Target)>, FileError> {
        let words = self.0.words();
        Ok((0..MAX_SLOTS)
            .filter_map(|slot| Some((slot, load(words, slot, target_in)?)))
            .collect())
    }
}

/// The host's side for a process that serves containers of other users: reads and writes, and never maps
/// what its owner could make shorter.
#[derive(Debug)]
pub struct TargetsWriter(Unmapped);

impl TargetsWriter {
    /// Takes an open file, for reading and writing.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn new(file: File) -> Result<Self, FileError> {
        Unmapped::new(file, &MAKE).map(Self)
    }

    /// Replaces all targets, as [`TargetsFile::write`], but waits for no other writer: the owner of the
    /// file could keep its lock for ever. Where two write at once, a reader may find no target until
    /// one of them writes again.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn write(&self, targets: &[(usize, Target)], head: &Head) -> Result<(), FileError> {
        let current = self.0.current()?;
        let generation = (current.generation() + 1) & (u64::MAX >> 1);
        for (slot, target) in targets.iter().filter(|(slot, _)| *slot < MAX_SLOTS) {
            let at = current.other_offset(COPY_BYTES) + slot * ENTRY_BYTES;
            self.0.write(&encode(target, generation), at)?;
        }
        // The word that flips the copies, the heartbeat and the other words of the head are next to each other: one
        // write.
        let mut words = [0; 1 + HEAD_WORDS];
        let [flip, rest @ ..] = &mut words;
        *flip = current.flipped(generation);
        rest.copy_from_slice(&words_of(head));
        self.0.write(&words, offset_of!(HostFileHeader, current))
    }

    /// Says that the targets still hold, when they were looked at last, and what was seen since they
    /// were written.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn beat(&self, head: &Head) -> Result<(), FileError> {
        let words = words_of(head);
        self.0
            .write(&words, offset_of!(HostFileHeader, heartbeat_ns))
    }

    /// The present target of a slot.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn target(&self, slot: usize) -> Result<Option<Target>, FileError> {
        if slot >= MAX_SLOTS {
            return Ok(None);
        }
        let current = self.0.current()?;
        let entry = self
            .0
            .words(current.offset(COPY_BYTES) + slot * ENTRY_BYTES)?;
        Ok(whole(&entry, current.generation()).map(|from| target_in(&from)))
    }
}

/// The heartbeat, what was seen, the two tables of unaccounted bytes, and the intervals.
const HEAD_WORDS: usize = 1 + 4 * MAX_DEVICES;

/// The words of the head in file order: heartbeat, compute status, unaccounted bytes, intervals.
fn words_of(head: &Head) -> [u64; HEAD_WORDS] {
    let seen = head.seen.iter().map(|seen| seen.word());
    let bytes = head.unaccounted.iter().map(|at| at.bytes);
    let beside = head.unaccounted.iter().map(|at| at.beside);
    let intervals = head.intervals.iter();
    let intervals = intervals.map(|interval| interval.map_or(0, Interval::word));
    let mut words = std::iter::once(head.heartbeat_ns)
        .chain(seen)
        .chain(bytes)
        .chain(beside)
        .chain(intervals);
    std::array::from_fn(|_| words.next().unwrap_or(0))
}

const _: () = assert!(
    offset_of!(HostFileHeader, heartbeat_ns) == offset_of!(HostFileHeader, current) + 8
        && offset_of!(HostFileHeader, seen) == offset_of!(HostFileHeader, current) + 16
        && offset_of!(HostFileHeader, unaccounted)
            == offset_of!(HostFileHeader, seen) + 8 * MAX_DEVICES
        && offset_of!(HostFileHeader, unaccounted_beside)
            == offset_of!(HostFileHeader, unaccounted) + 8 * MAX_DEVICES
        && offset_of!(HostFileHeader, intervals)
            == offset_of!(HostFileHeader, unaccounted_beside) + 8 * MAX_DEVICES
);

/// Reads the targets of some slots without mapping the file, as [`read_head`].
///
/// # Errors
/// See [`FileError`].
pub fn read_targets(
    file: File,
    slots: impl IntoIterator<Item = usize>,
) -> Result<Vec<(usize, Target)>, FileError> {
    let file = Unmapped::new(file, &MAKE)?;
    let current = file.current()?;
    let mut found = Vec::new();
    for slot in slots.into_iter().filter(|slot| *slot < MAX_SLOTS) {
        let entry = file.words(current.offset(COPY_BYTES) + slot * ENTRY_BYTES)?;
        let target = whole(&entry, current.generation()).map(|from| target_in(&from));
        found.extend(target.map(|target| (slot, target)));
    }
    Ok(found)
}

/// Reads the head of a targets file without mapping it: for a file that belongs to another user,
/// that may make it shorter at any moment.
///
/// # Errors
/// See [`FileError`].
pub fn read_head(file: File) -> Result<Head, FileError> {
    const WORDS: usize = HEADER_BYTES / 8;
    let words: [u64; WORDS] = Unmapped::new(file, &MAKE)?.words(0)?;
    let from = Fields(&words);
    Ok(Head {
        heartbeat_ns: from.u64(offset_of!(HostFileHeader, heartbeat_ns)),
        seen: std::array::from_fn(|device| {
            ComputeStatus::of(from.u64(offset_of!(HostFileHeader, seen) + device * 8))
        }),
        unaccounted: std::array::from_fn(|device| Unaccounted {
            bytes: from.u64(offset_of!(HostFileHeader, unaccounted) + device * 8),
            beside: from.u64(offset_of!(HostFileHeader, unaccounted_beside) + device * 8),
        }),
        intervals: std::array::from_fn(|device| {
            Interval::of(from.u64(offset_of!(HostFileHeader, intervals) + device * 8))
        }),
    })
}

/// The container's side: a read-only mapping.
#[derive(Debug)]
pub struct TargetsMap(Words);

impl TargetsMap {
    /// Maps the file.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn open(path: &Path) -> Result<Self, FileError> {
        HostFile::open(path, &MAKE, false).map(|file| Self(file.into_words()))
    }

    /// A number that differs when the targets were written again: one atomic load.
    #[must_use]
    #[inline]
    pub fn generation(&self) -> u64 {
        Current::of(&self.0).raw()
    }

    /// Two numbers of which one differs when the entry of a slot is another one: [`TargetsMap::generation`], and the entry's
    /// checksum, since two writers at once may have chosen the same generation. Two atomic loads.
    #[must_use]
    pub fn written(&self, slot: usize) -> (u64, u64) {
        let current = Current::of(&self.0);
        let at = current.offset(COPY_BYTES) + slot.min(MAX_SLOTS - 1) * ENTRY_BYTES;
        let checksum = self.0.load(at + offset_of!(TargetsEntry, checksum));
        (current.raw(), checksum)
    }

    /// When the host last wrote, nanoseconds of the monotonic clock.
    #[must_use]
    pub fn heartbeat_ns(&self) -> u64 {
        heartbeat(&self.0)
    }

    /// Memory that the driver holds beyond the container's charges on a device, as the host last wrote; a host of an
    /// earlier release writes nothing, which reads as 0.
    #[must_use]
    pub fn unaccounted(&self, device: usize) -> Unaccounted {
        if device >= MAX_DEVICES {
            return Unaccounted::default();
        }
        let at = |field: usize| self.0.load(field + device * 8);
        Unaccounted {
            bytes: at(offset_of!(HostFileHeader, unaccounted)),
            beside: at(offset_of!(HostFileHeader, unaccounted_beside)),
        }
    }

    /// The container's part of the timetable on a device; an arbiter of an earlier release has none.
    #[must_use]
    pub fn interval(&self, device: usize) -> Option<Interval> {
        let at = (device < MAX_DEVICES).then_some(device * 8)?;
        Interval::of(self.0.load(offset_of!(HostFileHeader, intervals) + at))
    }

    /// The host's knowledge of the process that has this slot in this generation; allocates
    /// nothing and makes no system call.
    #[must_use]
    pub fn target(&self, slot: usize, slot_generation: u64) -> Option<Target> {
        load(&self.0, slot, target_in).filter(|target| target.slot_generation == slot_generation)
    }

    /// The arbiter's grant to that process on one device: a part of [`TargetsMap::target`], for which the rest is not
    /// decoded.
    #[must_use]
    pub fn grant(&self, slot: usize, slot_generation: u64, device: usize) -> Option<Grant> {
        let read = |from: &Fields<'_>| {
            let is_meant = from.u64(offset_of!(TargetsEntry, slot_generation)) == slot_generation;
            (is_meant && device < MAX_DEVICES)
                .then(|| grant_in(from, device))
                .flatten()
        };
        load(&self.0, slot, read).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_release_reads_and_writes_the_same_words() {
        // 400 thousandths, contended and measured, counted once: as it was before there were doorbells.
        let earlier = 401 | 1 << 10 | 1 << 11 | u32::from(Grant::ONE) << 16;
        let grant = Grant::of(earlier, 0).unwrap();
        assert_eq!((grant.rings, grant.ahead), (false, Ahead::Usual));
        assert_eq!(grant.word(), earlier);

        let now = Grant {
            rings: true,
            ahead: Ahead::Any,
            ..grant
        };
        assert_eq!(now.word() & !(0b111 << 12), earlier);
        assert_eq!(Grant::of(now.word(), 0), Some(now));
        // An earlier release takes this one for the usual amount.
        let alone = Grant::of(earlier | 0b11 << 13, 0).unwrap();
        assert_eq!(alone.ahead, Ahead::Much);
    }

    fn target(number: u64) -> Target {
        Target {
            slot_generation: 7,
            host_pid: 4711,
            released: number % 2 == 1,
            overhead_bytes: [number; MAX_DEVICES],
            grants: std::array::from_fn(|device| {
                let device = u16::try_from(device).unwrap();
                (device != 3).then_some(Grant {
                    permille: 1000 - device * 66,
                    scale: Grant::ONE + device,
                    own: Grant::ONE - device,
                    contended: device % 2 == 0,
                    measured: device % 3 == 0,
                    rings: device % 4 == 0,
                    ahead: [Ahead::Usual, Ahead::Brief, Ahead::Any, Ahead::Much]
                        [usize::from(device % 4)],
                })
            }),
        }
    }

    #[test]
    fn a_target_is_read_by_the_generation_of_its_slot_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("targets");
        let mut file = TargetsFile::create(&path).unwrap();
        let map = TargetsMap::open(&path).unwrap();
        assert_eq!(map.target(3, 7), None);

        file.write(
            &[(3, target(300)), (1023, target(1)), (1024, target(2))],
            99,
        )
        .unwrap();

        assert_eq!(map.target(3, 7), Some(target(300)));
        assert_eq!(map.target(3, 8), None);
        assert_eq!(map.target(1024, 7), None);
        for (device, grant) in target(300).grants.into_iter().enumerate() {
            assert_eq!(map.grant(3, 7, device), grant, "{device}");
            assert_eq!(map.grant(3, 8, device), None);
            assert_eq!(Grant::of_bits(Grant::to_bits(grant)), grant);
        }
        assert_eq!(map.grant(3, 7, MAX_DEVICES), None);
        assert_eq!(map.grant(1024, 7, 0), None);
        assert_eq!(map.heartbeat_ns(), 99);
        assert_eq!(file.read().unwrap(), [(3, target(300)), (1023, target(1))]);
    }

    #[test]
    fn a_target_that_is_not_written_again_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("targets");
        let mut file = TargetsFile::create(&path).unwrap();
        let map = TargetsMap::open(&path).unwrap();

        for round in 1..5 {
            let before = [0, 1].map(|slot| map.written(slot));
            file.write(&[(0, target(round)), (1, target(round))], round)
                .unwrap();
            assert!([0, 1].map(|slot| map.written(slot)) != before);
            assert_eq!(map.written(1), map.written(1));
        }
        file.write(&[(1, target(9))], 9).unwrap();

        assert_eq!(map.target(0, 7), None);
        assert_eq!(map.target(1, 7), Some(target(9)));
    }

    #[test]
    fn a_writer_that_maps_nothing_says_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("targets");
        let mut owner = TargetsFile::create(&path).unwrap();
        owner.write(&[(3, target(1))], 1).unwrap();
        let map = TargetsMap::open(&path).unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let writer = TargetsWriter::new(open()).unwrap();
        assert_eq!(writer.target(3).unwrap(), Some(target(1)));
        let mut seen = [ComputeStatus::default(); MAX_DEVICES];
        seen[15] = ComputeStatus {
            granted_permille: Some(0),
            used_permille: Some(1000),
            throttled_permille: 7,
            contended: true,
            waits_for_turn: true,
        };

        let mut head = Head {
            seen,
            ..Head::default()
        };
        for (device, at) in head.unaccounted.iter_mut().enumerate() {
            *at = Unaccounted {
                bytes: device as u64 + 1,
                beside: device as u64 + 100,
            };
        }

        head.intervals[15] = Some(Interval {
            period_ms: 50,
            from_us: 40_000,
            length_us: 10_000,
        });

        for round in 2..5 {
            let targets = [(3, target(round)), (7, target(9))];
            head.heartbeat_ns = round;
            writer.write(&targets, &head).unwrap();
            assert_eq!(map.target(3, 7), Some(target(round)));
        }
        head.heartbeat_ns = 99;
        writer.beat(&head).unwrap();

        assert_eq!(read_head(open()).unwrap(), head);
        assert_eq!(map.heartbeat_ns(), 99);
        assert_eq!(map.unaccounted(15), head.unaccounted[15]);
        assert_eq!(map.unaccounted(16), Unaccounted::default());
        assert_eq!(map.interval(15), head.intervals[15]);
        assert_eq!((map.interval(14), map.interval(16)), (None, None));
        assert_eq!(writer.target(7).unwrap(), Some(target(9)));
        owner.write(&[], 100).unwrap();
        assert_eq!(map.target(3, 7), None);
    }

    #[test]
    fn unmapped_writer_survives_a_shortened_file_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("targets");
        TargetsFile::create(&path).unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let writer = TargetsWriter::new(open()).unwrap();
        let owner = open();
        owner.lock().unwrap();

        writer.write(&[], &Head::default()).unwrap();
        owner.set_len(100).unwrap();

        assert!(writer.target(0).is_err());
        assert!(read_head(open()).is_err());
    }

    #[test]
    fn a_reader_never_sees_half_a_target() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("targets");
        let mut file = TargetsFile::create(&path).unwrap();
        file.write(&[(5, target(0))], 0).unwrap();
        let map = TargetsMap::open(&path).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);

        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..5_000 {
                    file.write(&[(5, target(round))], round).unwrap();
                }
                done.store(true, std::sync::atomic::Ordering::Release);
            });
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                let seen = map.target(5, 7).expect("it is in every generation");
                assert_eq!(seen.overhead_bytes, [seen.overhead_bytes[0]; MAX_DEVICES]);
            }
        });
    }
}
