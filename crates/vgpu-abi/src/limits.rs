//! The limits of one container: a file that one host-side writer owns and the container maps
//! read-only. Owns its meaning, its two copies and what counts as a valid one.
//!
//! Never truncates and never renames (the first kills every reader, the second is invisible
//! through a mapping), and never lets a reader see half a change.

use std::mem::offset_of;
use std::path::Path;
use std::time::Duration;

use crate::file::{FileError, FileKind};
use crate::hostfile::{
    Copied, Current, Fields, FieldsMut, HostFile, Make, Source, bytes_of, checksum, current_word,
};
use crate::layout::{LIMITS_VERSION, LimitsCopy, LimitsDevice, MAX_DEVICES, UUID_BYTES};
use crate::map::Words;

pub use crate::uuid::{DeviceUuid, UuidError};

/// When the compute limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Only while another container wants the device.
    #[default]
    Default,
    /// Always.
    Force,
    /// The limit is a guaranteed share; what is idle is lent.
    Floor,
    /// Never.
    Disable,
}

/// The treatment of a device that the limits do not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unlisted {
    /// The container may not use it.
    #[default]
    Deny,
    /// The container may use it without a limit.
    Allow,
}

/// The limits of a container on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceLimit {
    /// Which device; empty: the one at this index.
    pub uuid: DeviceUuid,
    /// Memory, bytes; 0 is no cap.
    pub memory_bytes: u64,
    /// Compute time, percent; 0 and 100 are no cap.
    pub core_percent: u32,
    /// Compute time that the container gets whenever it wants it, percent; 0 is none.
    pub floor_percent: u32,
    /// Of `memory_bytes`, what may be memory of the device, bytes; the rest is managed memory.
    /// 0 is all: no oversubscription.
    pub resident_bytes: u64,
    /// Size of the device, bytes; 0 where it is not known.
    pub physical_bytes: u64,
    /// Expected size of a context, bytes; 0 where it is not known.
    pub context_bytes: u64,
    /// Expected size of a module, bytes; 0 where it is not known.
    pub module_bytes: u64,
}

/// The limits of one container, for the host that writes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    /// Raised with every change; set by [`LimitsFile::write`].
    pub generation: u64,
    /// Priority, 0 is the highest.
    pub priority: u32,
    /// When the compute limit counts.
    pub policy: Policy,
    /// The treatment of devices that are not named.
    pub unlisted: Unlisted,
    /// By container-visible index; at most [`MAX_DEVICES`].
    pub devices: Vec<DeviceLimit>,
}

/// The limits of one container, for the container: a plain value that was read without allocating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitsValue {
    /// Raised with every change.
    pub generation: u64,
    /// Priority, 0 is the highest.
    pub priority: u32,
    /// When the compute limit counts.
    pub policy: Policy,
    /// The treatment of devices that are not named.
    pub unlisted: Unlisted,
    pub(crate) device_count: usize,
    pub(crate) devices: [DeviceLimit; MAX_DEVICES],
}

impl LimitsValue {
    /// By container-visible index.
    #[must_use]
    pub fn devices(&self) -> &[DeviceLimit] {
        self.devices.get(..self.device_count).unwrap_or_default()
    }
}

impl From<&LimitsValue> for Limits {
    fn from(value: &LimitsValue) -> Self {
        Self {
            generation: value.generation,
            priority: value.priority,
            policy: value.policy,
            unlisted: value.unlisted,
            devices: value.devices().to_vec(),
        }
    }
}

/// How long a writer waits for another one: changes are a matter of microseconds, and a container
/// could keep the lock for ever.
const TURN: Duration = Duration::from_secs(1);

/// How often a reader looks again before it takes what it sees for damage.
const LOOKS: usize = 4;
/// The same while the writer goes on and on.
const MOST_LOOKS: usize = 1_000;

const COPY_BYTES: usize = size_of::<LimitsCopy>();
const COPY_WORDS: usize = COPY_BYTES / 8;
const MAKE: Make = Make {
    kind: FileKind::Limits,
    copy_bytes: COPY_BYTES,
};

impl Policy {
    /// Its number in the files.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Default => 0,
            Self::Force => 1,
            Self::Floor => 2,
            Self::Disable => 3,
        }
    }

    /// The meaning of a number of the files.
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        [Self::Default, Self::Force, Self::Floor, Self::Disable]
            .get(number as usize)
            .copied()
    }
}

impl Unlisted {
    fn number(self) -> u32 {
        match self {
            Self::Deny => 0,
            Self::Allow => 1,
        }
    }

    fn of(number: u32) -> Option<Self> {
        [Self::Deny, Self::Allow].get(number as usize).copied()
    }
}

fn encode(limits: &Limits, generation: u64) -> Result<[u64; COPY_WORDS], FileError> {
    if limits.devices.len() > MAX_DEVICES {
        return Err(FileError::TooManyDevices {
            asked: limits.devices.len(),
        });
    }
    let mut words = [0; COPY_WORDS];
    let mut to = FieldsMut(&mut words);
    to.u32(offset_of!(LimitsCopy, version), LIMITS_VERSION);
    let count = u32::try_from(limits.devices.len()).unwrap_or(0);
    to.u32(offset_of!(LimitsCopy, device_count), count);
    to.u64(offset_of!(LimitsCopy, generation), generation);
    to.u32(offset_of!(LimitsCopy, priority), limits.priority);
    to.u32(offset_of!(LimitsCopy, policy), limits.policy.number());
    to.u32(offset_of!(LimitsCopy, unlisted), limits.unlisted.number());
    for (index, device) in limits.devices.iter().enumerate() {
        let at = offset_of!(LimitsCopy, devices) + index * size_of::<LimitsDevice>();
        to.bytes(at + offset_of!(LimitsDevice, uuid), device.uuid.bytes());
        to.u64(
            at + offset_of!(LimitsDevice, memory_bytes),
            device.memory_bytes,
        );
        to.u64(
            at + offset_of!(LimitsDevice, physical_bytes),
            device.physical_bytes,
        );
        to.u64(
            at + offset_of!(LimitsDevice, context_bytes),
            device.context_bytes,
        );
        to.u64(
            at + offset_of!(LimitsDevice, module_bytes),
            device.module_bytes,
        );
        to.u32(
            at + offset_of!(LimitsDevice, core_percent),
            device.core_percent.min(100),
        );
        to.u32(
            at + offset_of!(LimitsDevice, floor_percent),
            device.floor_percent.min(100),
        );
        to.u64(
            at + offset_of!(LimitsDevice, resident_bytes),
            device.resident_bytes,
        );
    }
    let sum = checksum(words.get(..COPY_WORDS - 1).unwrap_or_default());
    FieldsMut(&mut words).u64(offset_of!(LimitsCopy, checksum), sum);
    Ok(words)
}

/// The content of a copy, if it is whole and contains only what a writer of this version writes.
fn decode(words: &[u64; COPY_WORDS]) -> Option<LimitsValue> {
    let from = Fields(words);
    let sum = checksum(words.get(..COPY_WORDS - 1)?);
    if from.u64(offset_of!(LimitsCopy, checksum)) != sum
        || from.u32(offset_of!(LimitsCopy, version)) != LIMITS_VERSION
    {
        return None;
    }
    let device_count = from.u32(offset_of!(LimitsCopy, device_count)) as usize;
    if device_count > MAX_DEVICES {
        return None;
    }
    let mut devices = [DeviceLimit::default(); MAX_DEVICES];
    for (index, device) in devices.iter_mut().enumerate().take(device_count) {
        let at = offset_of!(LimitsCopy, devices) + index * size_of::<LimitsDevice>();
        let uuid: [u8; UUID_BYTES] = from.bytes(at + offset_of!(LimitsDevice, uuid));
        *device = DeviceLimit {
            uuid: DeviceUuid::from_bytes(&uuid),
            memory_bytes: from.u64(at + offset_of!(LimitsDevice, memory_bytes)),
            core_percent: from.u32(at + offset_of!(LimitsDevice, core_percent)),
            floor_percent: from.u32(at + offset_of!(LimitsDevice, floor_percent)),
            resident_bytes: from.u64(at + offset_of!(LimitsDevice, resident_bytes)),
            physical_bytes: from.u64(at + offset_of!(LimitsDevice, physical_bytes)),
            context_bytes: from.u64(at + offset_of!(LimitsDevice, context_bytes)),
            module_bytes: from.u64(at + offset_of!(LimitsDevice, module_bytes)),
        };
        if device.core_percent > 100 || device.floor_percent > 100 || *device.uuid.bytes() != uuid {
            return None;
        }
    }
    Some(LimitsValue {
        generation: from.u64(offset_of!(LimitsCopy, generation)),
        priority: from.u32(offset_of!(LimitsCopy, priority)),
        policy: Policy::of(from.u32(offset_of!(LimitsCopy, policy)))?,
        unlisted: Unlisted::of(from.u32(offset_of!(LimitsCopy, unlisted)))?,
        device_count,
        devices,
    })
}

fn copy_out(words: &impl Source, offset: usize) -> [u64; COPY_WORDS] {
    std::array::from_fn(|word| words.load(offset + word * 8))
}

/// The limits that count. A writer that overwrites the copy while it is read has flipped twice since the
/// read began, so there is a newer copy to read. A copy that stays wrong while the writer does not flip is
/// damaged; then the other copy counts.
fn settled<S: Source>(
    mut source: impl FnMut() -> Result<S, FileError>,
) -> Result<LimitsValue, FileError> {
    let mut words = source()?;
    let mut same = 0;
    for _look in 0..MOST_LOOKS {
        let current = Current::of(&words);
        if let Some(value) = look(&words) {
            return Ok(value);
        }
        words = source()?;
        same = if Current::of(&words) == current {
            same + 1
        } else {
            0
        };
        if same == LOOKS {
            break;
        }
    }
    salvage(&words)
}

fn load(words: &Words) -> Result<LimitsValue, FileError> {
    settled(|| Ok(words))
}

fn look(words: &impl Source) -> Option<LimitsValue> {
    let current = Current::of(words);
    let value = decode(&copy_out(words, current.offset(COPY_BYTES)))?;
    (value.generation == current.generation()).then_some(value)
}

fn salvage(words: &impl Source) -> Result<LimitsValue, FileError> {
    let current = Current::of(words);
    let one = decode(&copy_out(words, current.offset(COPY_BYTES)));
    let other = decode(&copy_out(words, current.other_offset(COPY_BYTES)));
    match (one, other) {
        (Some(one), Some(other)) if one.generation >= other.generation => Ok(one),
        (_, Some(other)) => Ok(other),
        (Some(one), None) => Ok(one),
        (None, None) => Err(FileError::Corrupt {
            kind: FileKind::Limits,
        }),
    }
}

/// Reads the limits out of an open file without mapping it: for a file that belongs to another
/// user that may make it shorter at any moment.
///
/// # Errors
/// See [`FileError`].
pub fn read_file(file: &std::fs::File) -> Result<Limits, FileError> {
    settled(|| Copied::read(file, &MAKE)).map(|value| Limits::from(&value))
}

/// A number that differs when the limits in an open file were written again: one short read.
///
/// # Errors
/// See [`FileError`].
pub fn file_generation(file: &std::fs::File) -> Result<u64, FileError> {
    current_word(file)
}

/// The host's side: the one writer.
#[derive(Debug)]
pub struct LimitsFile(HostFile);

impl LimitsFile {
    /// Makes the file; it must not exist.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn create(path: &Path, limits: &Limits) -> Result<Self, FileError> {
        let first = encode(limits, 1)?;
        let file = HostFile::create(path, &MAKE, |file| {
            file.write_spare(&bytes_of(&first), 0)?;
            file.flip(1);
            Ok(())
        })?;
        Ok(Self(file))
    }

    /// Opens a file that exists, for reading and, where the file's mode lets us, writing.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn open(path: &Path) -> Result<Self, FileError> {
        HostFile::open(path, &MAKE, true).map(Self)
    }

    /// The limits as they stand.
    ///
    /// # Errors
    /// [`FileError::Corrupt`] when neither copy is valid.
    pub fn read(&self) -> Result<Limits, FileError> {
        load(self.0.words()).map(|value| Limits::from(&value))
    }

    /// Replaces the limits and gives back their generation. Readers see the old ones or the new
    /// ones. `limits.generation` is not looked at. Writers in several processes take turns; one that
    /// has kept its turn for a second is waited for no longer.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn write(&self, limits: &Limits) -> Result<u64, FileError> {
        self.update(|_old| limits.clone())
    }

    /// Replaces the limits by what `change` makes of those that stand, in one turn: no other
    /// writer comes between. Where neither copy is valid, `change` gets nothing.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn update(&self, change: impl FnOnce(Option<Limits>) -> Limits) -> Result<u64, FileError> {
        let _turn = self.0.exclusive(TURN)?;
        let old = self.read().ok();
        let last = old.as_ref().map_or(0, |old| old.generation);
        let last = last.max(Current::of(self.0.words()).generation());
        // A generation is 63 bits wide beside the bit that names the copy.
        let generation = last.wrapping_add(1) & (u64::MAX >> 1);
        let words = encode(&change(old), generation)?;
        self.0.write_spare(&bytes_of(&words), 0)?;
        self.0.flip(generation);
        Ok(generation)
    }
}

/// The container's side: a read-only mapping.
#[derive(Debug)]
pub struct LimitsMap(Words);

impl LimitsMap {
    /// Maps the file.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn open(path: &Path) -> Result<Self, FileError> {
        HostFile::open(path, &MAKE, false).map(|file| Self(file.into_words()))
    }

    /// A number that differs when the limits have changed: one atomic load. Compare it with what
    /// it was before the last [`LimitsMap::load`], not with a generation in a value.
    #[must_use]
    #[inline]
    pub fn generation(&self) -> u64 {
        Current::of(&self.0).raw()
    }

    /// Reads the limits; allocates nothing and makes no system call.
    ///
    /// # Errors
    /// [`FileError::Corrupt`] when neither copy is valid: the caller keeps what it has, or refuses.
    pub fn load(&self) -> Result<LimitsValue, FileError> {
        load(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn limits(memory_bytes: u64) -> Limits {
        let device = DeviceLimit {
            uuid: DeviceUuid::new("GPU-12345678-aaaa-bbbb-cccc-0123456789ab").unwrap(),
            memory_bytes,
            core_percent: 30,
            floor_percent: 20,
            resident_bytes: 3 << 30,
            physical_bytes: 16 << 30,
            context_bytes: 300 << 20,
            module_bytes: 2 << 20,
        };
        let devices = vec![device; 3];
        Limits {
            generation: 0,
            priority: 1,
            policy: Policy::Floor,
            unlisted: Unlisted::Allow,
            devices,
        }
    }

    #[test]
    fn written_limits_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("limits");

        let file = LimitsFile::create(&path, &limits(4 << 30)).unwrap();
        let map = LimitsMap::open(&path).unwrap();
        let before = map.generation();
        let generation = file.write(&limits(8 << 30)).unwrap();

        assert_eq!(generation, 2);
        assert_ne!(map.generation(), before);
        let value = map.load().unwrap();
        assert_eq!(
            Limits::from(&value),
            Limits {
                generation: 2,
                ..limits(8 << 30)
            }
        );
        assert_eq!(
            LimitsFile::open(&path).unwrap().read().unwrap().devices[2].memory_bytes,
            8 << 30
        );
    }

    #[test]
    fn a_damaged_copy_falls_back_to_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("limits");
        let file = LimitsFile::create(&path, &limits(1 << 30)).unwrap();
        file.write(&limits(2 << 30)).unwrap();
        let map = LimitsMap::open(&path).unwrap();
        let bytes = std::fs::OpenOptions::new().write(true).open(&path).unwrap();

        // The second write landed in the first copy: the first one of all went to the second.
        bytes.write_all_at(&[0xff; 7], 4096 + 64 + 96).unwrap();
        assert_eq!(map.load().unwrap().devices()[0].memory_bytes, 1 << 30);

        bytes.write_all_at(&[0xff; 7], 8192 + 64 + 96).unwrap();
        assert_eq!(
            map.load(),
            Err(FileError::Corrupt {
                kind: FileKind::Limits,
            })
        );
        assert_eq!(
            file.read(),
            Err(FileError::Corrupt {
                kind: FileKind::Limits,
            })
        );

        assert_eq!(file.write(&limits(3 << 30)), Ok(3));
        assert_eq!(map.load().unwrap().devices()[0].memory_bytes, 3 << 30);
    }

    #[test]
    fn a_reader_never_sees_half_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("limits");
        let file = LimitsFile::create(&path, &limits(1)).unwrap();
        let map = LimitsMap::open(&path).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);

        std::thread::scope(|scope| {
            scope.spawn(|| {
                for bytes in 2..3_000 {
                    file.write(&limits(bytes)).unwrap();
                }
                done.store(true, std::sync::atomic::Ordering::Release);
            });
            let mut last = 0;
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                let value = map.load().unwrap();
                let seen: Vec<_> = value.devices().iter().map(|d| d.memory_bytes).collect();
                assert_eq!(seen, [value.generation; 3]);
                assert!(value.generation >= last);
                last = value.generation;
            }
        });
    }

    #[test]
    fn limits_read_without_a_mapping_are_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("limits");
        let file = LimitsFile::create(&path, &limits(1 << 30)).unwrap();
        let raw = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        for bytes in 2..5_u64 {
            file.write(&limits(bytes << 30)).unwrap();
            assert_eq!(read_file(&raw), file.read());
        }

        // The fourth write landed in the second copy, and counts no longer: the third does.
        raw.write_all_at(&[0xff; 7], 8192 + 64 + 96).unwrap();
        assert_eq!(read_file(&raw), file.read());
        drop(file);

        raw.write_all_at(&[0xff; 7], 4096 + 64 + 96).unwrap();
        assert_eq!(
            read_file(&raw),
            Err(FileError::Corrupt {
                kind: FileKind::Limits,
            })
        );
        raw.set_len(100).unwrap();
        assert!(matches!(
            read_file(&raw),
            Err(FileError::WrongSize { found: 100, .. })
        ));
    }

    #[test]
    fn a_reader_who_keeps_the_lock_stops_no_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("limits");
        let file = LimitsFile::create(&path, &limits(1 << 30)).unwrap();
        let targets = dir.path().join("targets");
        let mut targets_file = crate::targets::TargetsFile::create(&targets).unwrap();
        let held = [&path, &targets].map(|path| std::fs::File::open(path).unwrap());
        held.iter().for_each(|held| held.lock().unwrap());

        assert_eq!(file.write(&limits(2 << 30)), Ok(2));
        assert_eq!(file.read().unwrap().devices[0].memory_bytes, 2 << 30);
        assert_eq!(targets_file.write(&[], 7), Ok(1));
    }

    #[test]
    fn writers_take_turns() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("limits");
        LimitsFile::create(&path, &limits(0)).unwrap();

        std::thread::scope(|scope| {
            for _writer in 0..4 {
                scope.spawn(|| {
                    let file = LimitsFile::open(&path).unwrap();
                    for _ in 0..50 {
                        let more =
                            |old: Option<Limits>| limits(old.unwrap().devices[0].memory_bytes + 1);
                        file.update(more).unwrap();
                    }
                });
            }
        });

        let last = LimitsMap::open(&path).unwrap().load().unwrap();
        assert_eq!(
            (last.devices()[0].memory_bytes, last.generation),
            (200, 201)
        );
    }

    #[test]
    fn other_file_is_refused_as_limits_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let good = at("good");
        LimitsFile::create(&good, &limits(1)).unwrap();
        let changed = |name: &str, offset: u64, bytes: &[u8]| {
            std::fs::copy(&good, at(name)).unwrap();
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(at(name))
                .unwrap();
            file.write_all_at(bytes, offset).unwrap();
            LimitsMap::open(&at(name)).unwrap_err()
        };
        std::os::unix::fs::symlink(&good, at("link")).unwrap();
        std::fs::write(at("empty"), b"").unwrap();
        std::fs::write(at("text"), b"this is no limits file at all").unwrap();
        std::process::Command::new("mkfifo")
            .arg(at("pipe"))
            .status()
            .unwrap();

        let kind = FileKind::Limits;
        let open = |name: &str| LimitsMap::open(&at(name)).unwrap_err();
        assert_eq!(open("nothing"), FileError::Missing);
        assert_eq!(open("link"), FileError::NotRegular);
        assert_eq!(open("pipe"), FileError::NotRegular);
        assert_eq!(
            LimitsMap::open(dir.path()).unwrap_err(),
            FileError::NotRegular
        );
        assert_eq!(
            LimitsFile::open(&at("pipe")).unwrap_err(),
            FileError::NotRegular
        );
        assert_eq!(open("empty"), FileError::WrongSize { kind, found: 0 });
        assert_eq!(open("text"), FileError::WrongMagic { kind });
        assert_eq!(
            changed("long", 12_288, &[0]),
            FileError::WrongSize {
                kind,
                found: 12_289,
            }
        );
        assert_eq!(changed("other", 0, b"x"), FileError::WrongMagic { kind });
        assert_eq!(changed("half", 8, &[0; 4]), FileError::Unfinished { kind });
        assert_eq!(
            changed("new", 8, &2_u32.to_ne_bytes()),
            FileError::WrongVersion { kind, found: 2 }
        );
        assert_eq!(
            LimitsFile::create(&good, &limits(1)).unwrap_err(),
            FileError::Exists
        );
        let many = Limits {
            devices: vec![DeviceLimit::default(); 17],
            ..limits(1)
        };
        assert_eq!(
            LimitsFile::create(&at("many"), &many).unwrap_err(),
            FileError::TooManyDevices { asked: 17 }
        );
        assert!(!at("many").exists());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_in_the_file_make_a_reader_panic(
            at in 4096_u64..12_200,
            noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 1..64),
            head in proptest::prelude::any::<u64>(),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("limits");
            LimitsFile::create(&path, &limits(5)).unwrap();
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&head.to_ne_bytes(), 24).unwrap();
            file.write_all_at(&noise, at).unwrap();

            if let Ok(value) = LimitsMap::open(&path).unwrap().load() {
                proptest::prop_assert_eq!(value.devices()[0].memory_bytes, 5);
            }
        }
    }
}
