//! The region's file: made whole or not at all, opened only when it is what it should be.

use std::ffi::c_int;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use super::{NewDevice, Region};
use crate::file::{self, Access, FileError, FileKind, refused, refused_io};
use crate::layout::{
    MAX_DEVICES, MAX_OOMS, MAX_SHARED, MAX_SLOTS, REGION_MAGIC, REGION_VERSION, RegionHeader,
    RegionLayout, Slot,
};
use crate::map::{PrivateMap, RegionMap};
use crate::sys::{self, CPath, Descriptor, Stat};

/// Our descriptor is not below this where the limit on descriptors lets us.
const LOWEST_FD: c_int = 1000;

/// The header and the device table of a new region, as bytes.
fn new_head(devices: &[NewDevice]) -> Vec<u8> {
    use std::mem::offset_of;

    const DEVICE: usize = size_of::<crate::layout::RegionDevice>();
    let mut head = vec![0; offset_of!(RegionLayout, devices) + DEVICE * devices.len()];
    let mut put = |offset: usize, bytes: &[u8]| {
        for (to, from) in head.iter_mut().skip(offset).zip(bytes) {
            *to = *from;
        }
    };
    let small = |value: usize| u32::try_from(value).unwrap_or(u32::MAX).to_ne_bytes();
    put(offset_of!(RegionHeader, magic), &REGION_MAGIC.to_ne_bytes());
    put(
        offset_of!(RegionHeader, header_bytes),
        &small(size_of::<RegionHeader>()),
    );
    let bytes = size_of::<RegionLayout>() as u64;
    put(offset_of!(RegionHeader, region_bytes), &bytes.to_ne_bytes());
    put(
        offset_of!(RegionHeader, device_count),
        &small(devices.len()),
    );
    put(
        offset_of!(RegionHeader, device_capacity),
        &small(MAX_DEVICES),
    );
    put(offset_of!(RegionHeader, slot_capacity), &small(MAX_SLOTS));
    put(
        offset_of!(RegionHeader, slot_bytes),
        &small(size_of::<Slot>()),
    );
    put(
        offset_of!(RegionHeader, shared_capacity),
        &small(MAX_SHARED),
    );
    put(offset_of!(RegionHeader, oom_capacity), &small(MAX_OOMS));
    put(
        offset_of!(RegionHeader, created_unix_ns),
        &sys::unix_ns().to_ne_bytes(),
    );
    for (index, device) in devices.iter().enumerate() {
        let at = offset_of!(RegionLayout, devices) + DEVICE * index;
        put(
            at + offset_of!(crate::layout::RegionDevice, uuid),
            device.uuid.bytes(),
        );
        let physical = at + offset_of!(crate::layout::RegionDevice, physical_bytes);
        put(physical, &device.physical_bytes.to_ne_bytes());
    }
    head
}

/// Opens the region and moves the descriptor to where a program that closes what it did not open
/// hardly looks.
pub(super) fn open_high(path: &CPath) -> Result<(Descriptor, Stat), FileError> {
    let (low, stat) = file::open_at(path, Access::ReadWrite)?;
    for lowest in [LOWEST_FD, 512, 256, 64] {
        if let Ok(high) = sys::duplicate(low.number(), lowest) {
            return Ok((Descriptor::own(high), stat));
        }
    }
    Ok((low, stat))
}

impl Region {
    /// Makes the file and gives it its room on the disk; it must not exist. It appears finished or
    /// not at all. `mode` is the file's permission bits, whatever the umask says.
    ///
    /// # Errors
    /// See [`FileError`]; [`FileError::NoSpace`] where the disk is full.
    pub fn create(path: &Path, devices: &[NewDevice], mode: u32) -> Result<(), FileError> {
        if devices.len() > MAX_DEVICES {
            return Err(FileError::TooManyDevices {
                asked: devices.len(),
            });
        }
        let Some(name) = path.file_name() else {
            return Err(FileError::BadPath);
        };
        if path.symlink_metadata().is_ok() {
            return Err(FileError::Exists);
        }
        let mut new = std::ffi::OsString::from(".");
        new.push(name);
        new.push(format!(".{}.{}.new", sys::process_id(), sys::unix_ns()));
        let new = path.with_file_name(new);
        let made = Self::create_at(&new, devices, mode).and_then(|()| {
            // A link, not a rename: it never replaces a file that another process made meanwhile.
            match std::fs::hard_link(&new, path) {
                Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP)) => {
                    std::fs::rename(&new, path).map_err(refused_io("rename"))
                }
                linked => linked.map_err(refused_io("link")),
            }
        });
        // It is gone already where it was renamed, or was never made.
        let _gone = std::fs::remove_file(&new);
        made
    }

    fn create_at(path: &Path, devices: &[NewDevice], mode: u32) -> Result<(), FileError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(path).map_err(refused_io("open"))?;
        sys::allocate_or_write(file.as_raw_fd(), size_of::<RegionLayout>() as u64)
            .map_err(refused("fallocate"))?;
        file.write_all_at(&new_head(devices), 0)
            .map_err(refused_io("write"))?;
        // Last: a region without a version was never finished.
        let version = std::mem::offset_of!(RegionHeader, version) as u64;
        file.write_all_at(&REGION_VERSION.to_ne_bytes(), version)
            .map_err(refused_io("write"))?;
        let permissions = std::fs::Permissions::from_mode(mode);
        file.set_permissions(permissions)
            .map_err(refused_io("chmod"))
    }

    /// Maps a file that exists.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let path = std::path::absolute(path).map_err(refused_io("getcwd"))?;
        let path = file::c_path(&path)?;
        let (fd, stat) = open_high(&path)?;
        let expected = FileKind::Region.bytes();
        if stat.bytes == expected && stat.allocated_bytes < expected {
            // A hole that the disk has no room for would kill us when we write to it.
            match sys::allocate(fd.number(), expected) {
                Ok(()) | Err(libc::EOPNOTSUPP | libc::ENOSYS) => {}
                Err(errno) => return Err(refused("fallocate")(errno)),
            }
        }
        file::check_at(fd.number(), FileKind::Region)?;
        let map = RegionMap::map(fd.number()).map_err(refused("mmap"))?;
        let private = PrivateMap::new().map_err(refused("mmap"))?;
        check_tables(&map.layout().header)?;
        let on_overlay = sys::on_overlay(fd.number());
        Ok(Self {
            map,
            private,
            fd: AtomicI32::new(fd.keep()),
            path: Box::new(path),
            device: stat.device,
            inode: stat.inode,
            on_overlay,
            keep_dead_ns: AtomicU64::new(0),
            family: std::array::from_fn(|_| AtomicU64::new(0)),
        })
    }

    /// Maps the file, and makes it first where there is none. Several processes may do so at once.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn open_or_create(
        path: &Path,
        devices: &[NewDevice],
        mode: u32,
    ) -> Result<Self, FileError> {
        match Self::open(path) {
            Err(FileError::Missing) => {}
            opened => return opened,
        }
        match Self::create(path, devices, mode) {
            Ok(()) | Err(FileError::Exists) => Self::open(path),
            Err(error) => Err(error),
        }
    }
}

/// Whether the tables have the sizes of this release.
fn check_tables(header: &RegionHeader) -> Result<(), FileError> {
    // Relaxed: written before the file got its name.
    let same = header.region_bytes.load(Ordering::Relaxed) == size_of::<RegionLayout>() as u64
        && header.slot_bytes.load(Ordering::Relaxed) as usize == size_of::<Slot>()
        && header.slot_capacity.load(Ordering::Relaxed) as usize == MAX_SLOTS;
    if same {
        Ok(())
    } else {
        let kind = FileKind::Region;
        Err(FileError::WrongTables { kind })
    }
}
