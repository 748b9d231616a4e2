//! One container's directory on the host: how it is created, repaired, judged used and removed.
//!
//! It appears under its name whole or not at all. A region in which a process holds a lock is never touched.
//! A region that its container has damaged, and that no process uses, is made again, since the container can write
//! it.

use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FcntlArg, fcntl};
use nix::unistd::{UnlinkatFlags, unlinkat};
use supervisor::instance::{
    DOORBELL, FENCE, FENCE_HALF, Instance, InstanceError, LABELS, LIMITS, REGION, TARGETS,
};
use supervisor::{regular, view};
use vgpu_abi::file::{self, Access, FileError};
use vgpu_abi::layout::RegionLayout;
use vgpu_abi::limits::{Limits, LimitsFile};
use vgpu_abi::targets::TargetsFile;

use super::files::{self, failed};
use super::record::ContainerRecord;
use super::{DeliveryError, Name};
use crate::steps::step;

/// A directory that is being made.
const NEW: &str = ".new-";
/// A directory that is being removed.
const OLD: &str = ".old-";
/// A record that is being written, beside the directories: the container would see a file inside its
/// directory.
const RECORD: &str = ".record-";

/// The container's processes must be able to write the region, whatever their uid. No other container can reach it:
/// only the one file is mounted, and the directory above all containers is closed.
const REGION_MODE: u32 = 0o666;
/// The container's processes read these files, whatever their uid.
const SHOWN_MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;
const RECORD_MODE: u32 = 0o600;

/// The agent writes no larger records, bytes.
pub(super) const RECORD_MOST_BYTES: u64 = 256 << 10;

/// Makes a container's directory with all that is in it.
pub(super) fn make(
    root: &Path,
    name: &Name,
    record: &ContainerRecord,
    limits: &Limits,
) -> Result<(), DeliveryError> {
    let new = root.join(format!("{NEW}{name}"));
    take_away(&new)?;
    let made = fill(&new, record, limits).and_then(|()| {
        step();
        files::rename(&new, &root.join(&name.0))
    });
    if made.is_err() {
        // Ignore a failure here: a half-made directory is removed later, and the first error is the one to report.
        take_away(&new).ok();
    }
    step();
    made
}

fn fill(new: &Path, record: &ContainerRecord, limits: &Limits) -> Result<(), DeliveryError> {
    files::make_dir(new, DIR_MODE)?;
    step();
    let instance = Instance::open(new)?;
    instance.make_limits(limits)?;
    step();
    instance.make_targets()?;
    step();
    instance.make_doorbell()?;
    step();
    instance.make_region(limits, REGION_MODE)?;
    step();
    for name in [LIMITS, TARGETS, DOORBELL] {
        show(&new.join(name))?;
    }
    files::write_new(&new.join(LABELS), &text(record), RECORD_MODE)
}

/// Readable by the container, whatever the umask was.
fn show(path: &Path) -> Result<(), DeliveryError> {
    fs::set_permissions(path, Permissions::from_mode(SHOWN_MODE))
        .map_err(failed("set the mode of", path))
}

/// Repairs what is missing or damaged, and changes nothing else.
pub(super) fn repair(
    root: &Path,
    name: &Name,
    before: Option<&ContainerRecord>,
    record: &ContainerRecord,
    limits: &Limits,
) -> Result<(), DeliveryError> {
    let path = root.join(&name.0);
    match fs::symlink_metadata(&path) {
        // The directory was deleted.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return make(root, name, record, limits);
        }
        _ => {}
    }
    let instance = Instance::open(&path)?;
    files::make_dir(&path, DIR_MODE)?;
    let is_same = before.is_some_and(|before| {
        before.devices == record.devices
            && (before.priority, before.policy) == (record.priority, record.policy)
    });
    repair_limits(&instance, limits, is_same)?;
    step();
    repair_targets(&instance)?;
    step();
    repair_doorbell(&instance)?;
    step();
    let was_given = before.is_some_and(|before| !before.devices.is_empty());
    repair_region(&instance, limits, was_given)?;
    step();
    write_record(root, name, record)
}

/// Replaces a container's record if it says something else.
pub(super) fn write_record(
    root: &Path,
    name: &Name,
    record: &ContainerRecord,
) -> Result<(), DeliveryError> {
    let file = root.join(&name.0).join(LABELS);
    let text = text(record);
    if !regular::read(&file, RECORD_MOST_BYTES).is_ok_and(|old| old == text) {
        let temporary = root.join(format!("{RECORD}{name}"));
        files::replace_by(&temporary, &file, &text, RECORD_MODE)?;
    }
    Ok(())
}

/// Whether the error means that no reader can use the host-owned file, so that replacing it harms no process.
fn is_no_use(error: FileError) -> bool {
    matches!(
        error,
        FileError::NotRegular
            | FileError::WrongSize { .. }
            | FileError::WrongMagic { .. }
            | FileError::Unfinished { .. }
    )
}

fn repair_limits(instance: &Instance, limits: &Limits, is_same: bool) -> Result<(), DeliveryError> {
    let path = instance.path().join(LIMITS);
    match LimitsFile::open(&instance.steady_path(LIMITS)) {
        // Changed by hand since (`vgpu set`), it stays so until something else is given.
        Ok(file) if is_same && file.read().is_ok() => {}
        Ok(file) => {
            file.write(limits).map_err(unfit(&path))?;
        }
        Err(FileError::Missing) => instance.make_limits(limits)?,
        Err(error) if is_no_use(error) => {
            files::remove(&path)?;
            instance.make_limits(limits)?;
        }
        Err(error) => return Err(unfit(&path)(error)),
    }
    show(&path)
}

fn repair_targets(instance: &Instance) -> Result<(), DeliveryError> {
    let path = instance.path().join(TARGETS);
    match TargetsFile::open(&instance.steady_path(TARGETS)) {
        Ok(_) => {}
        Err(FileError::Missing) => instance.make_targets()?,
        Err(error) if is_no_use(error) => {
            files::remove(&path)?;
            instance.make_targets()?;
        }
        Err(error) => return Err(unfit(&path)(error)),
    }
    show(&path)
}

/// The container's programs open it by its name, so a file that the agent did not make is replaced.
fn repair_doorbell(instance: &Instance) -> Result<(), DeliveryError> {
    let path = instance.path().join(DOORBELL);
    match instance.host_file(DOORBELL, false) {
        Ok(_) => {}
        Err(error) if error.errno() == Some(Errno::ENOENT) => instance.make_doorbell()?,
        Err(InstanceError::System { .. }) => {}
        Err(_) => {
            files::remove(&path)?;
            instance.make_doorbell()?;
        }
    }
    show(&path)
}

fn unfit(path: &Path) -> impl FnOnce(FileError) -> DeliveryError {
    let path = path.to_owned();
    move |error| DeliveryError::File {
        path,
        reason: error.to_string(),
    }
}

fn repair_region(
    instance: &Instance,
    limits: &Limits,
    was_given: bool,
) -> Result<(), DeliveryError> {
    let path = instance.path().join(REGION);
    let is_there = fs::symlink_metadata(&path).is_ok();
    if is_there && is_whole(instance, limits) {
        return Ok(());
    }
    if !is_there {
        instance.make_region(limits, REGION_MODE)?;
        return Ok(());
    }
    if let Some(region) = file::open_regular(&path, Access::Read)
        .ok()
        .filter(is_locked)
    {
        // A sidecar may run while another container of the pod is restarted: its damaged region is its own.
        drop(region);
        tracing::warn!(path = %path.display(), "the usage region is damaged and in use: leaving it");
        return Ok(());
    }
    // One that was made before anything was given knows no device, which is as it should be.
    if was_given {
        tracing::warn!(path = %path.display(), "the usage region is damaged: creating it again");
    }
    files::remove(&path)?;
    step();
    instance.make_region(limits, REGION_MODE)?;
    Ok(())
}

/// Whether the library will take it: ours, of the right size and kind, for these devices.
fn is_whole(instance: &Instance, limits: &Limits) -> bool {
    let Ok(is) = fs::symlink_metadata(instance.path().join(REGION)) else {
        return false;
    };
    if is.uid() != instance.owner() || is.mode() & 0o7777 != REGION_MODE {
        return false;
    }
    view::snapshot(instance).is_ok_and(|region| {
        let found = region
            .devices
            .iter()
            .map(|device| (device.uuid, device.physical_bytes));
        let wanted = limits
            .devices
            .iter()
            .map(|device| (device.uuid, device.physical_bytes));
        found.eq(wanted)
    })
}

/// Whether a process holds a lock in a container's region: such a process lives, and has used the GPU. If that
/// cannot be known, the region counts as used, unless the container itself has removed it, put something else in its
/// place, or closed it to us.
pub(super) fn is_used(root: &Path, name: &Name) -> bool {
    match file::open_regular(&root.join(&name.0).join(REGION), Access::Read) {
        Ok(region) => is_locked(&region),
        Err(
            FileError::Missing
            | FileError::NotRegular
            | FileError::System {
                errno: nix::libc::EACCES | nix::libc::EPERM,
                ..
            },
        ) => false,
        Err(_) => true,
    }
}

fn is_locked(region: &File) -> bool {
    // The constants are small positive numbers in every libc.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "F_WRLCK is 1, F_UNLCK is 2"
    )]
    const KINDS: [i16; 2] = [nix::libc::F_WRLCK as i16, nix::libc::F_UNLCK as i16];
    let [write, none] = KINDS;
    // All of it, however far: slots and devices have their bytes beyond the end of the file.
    let mut lock = nix::libc::flock {
        l_type: write,
        l_whence: 0,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    let asked = fcntl(region, FcntlArg::F_OFD_GETLK(&mut lock));
    asked.is_err() || lock.l_type != none
}

/// Bytes of the disk that a file has, whatever its length.
fn taken(is: &fs::Metadata) -> u64 {
    is.blocks().saturating_mul(512)
}

/// Truncates a region that its container has extended, or for which it has allocated blocks beyond its end
/// (`fallocate` with `FALLOC_FL_KEEP_SIZE`): it is the only file of the agent that a tenant can grow, on the node's
/// disk. The library maps only the part before that end. Returns how many bytes were cut.
pub(super) fn trim(root: &Path, name: &Name) -> Result<u64, DeliveryError> {
    let path = root.join(&name.0).join(REGION);
    let end = size_of::<RegionLayout>() as u64;
    // File systems round up, and some store data twice or more.
    let most = end * 2;
    let is = match fs::symlink_metadata(&path) {
        Ok(is) if is.is_file() && (is.len() > end || taken(&is) > most) => is,
        Ok(_) => return Ok(0),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(failed("look at", path)(error)),
    };
    if is.mode() & 0o600 != 0o600 {
        // Its container has taken the permission away; the name is not followed anywhere else.
        fs::set_permissions(&path, Permissions::from_mode(REGION_MODE))
            .map_err(failed("set the mode of", &path))?;
    }
    let file = file::open_regular(&path, Access::ReadWrite).map_err(unfit(&path))?;
    // Setting the length that a file already has frees the blocks beyond it.
    file.set_len(end).map_err(failed("cut", &path))?;
    let left = file.metadata().map_err(failed("look at", &path))?;
    if taken(&left) > most {
        let source = std::io::Error::other(format!(
            "{} bytes of the disk are still set aside for it",
            taken(&left)
        ));
        return Err(failed("cut", path)(source));
    }
    let longer = is.len().saturating_sub(end);
    Ok(longer.max(taken(&is).saturating_sub(taken(&left))))
}

/// Takes a container's directory away.
pub(super) fn remove(root: &Path, name: &Name) -> Result<(), DeliveryError> {
    let path = root.join(&name.0);
    let old = root.join(format!("{OLD}{name}"));
    take_away(&old)?;
    match fs::rename(&path, &old) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("remove", &path)(error)),
    }
    step();
    files::sync_parent(&old)?;
    take_away(&old)
}

/// Deletes the names that we know of a directory, then the directory. Any other entry in the directory keeps it.
fn take_away(path: &Path) -> Result<(), DeliveryError> {
    for name in [REGION, DOORBELL, TARGETS, FENCE_HALF, FENCE, LIMITS, LABELS] {
        let file = path.join(name);
        match fs::remove_file(&file) {
            Err(error)
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Err(failed("remove", file)(error));
            }
            _ => step(),
        }
    }
    // A region is made under a name of its own first, which a killed agent leaves.
    for name in files::names(path).unwrap_or_default() {
        if name.starts_with(&format!(".{REGION}.")) {
            files::remove(&path.join(name))?;
        }
    }
    match unlinkat(AT_FDCWD, path, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        // A file of that name, or a link.
        Err(Errno::ENOTDIR) => files::remove(path),
        Err(errno) => Err(failed("remove", path)(errno.into())),
    }
}

/// Removes what a killed agent left between two steps. The caller ensures that nothing is being created.
pub(super) fn clear_halves(root: &Path) -> Result<Vec<PathBuf>, DeliveryError> {
    let mut cleared = Vec::new();
    for name in files::names(root)? {
        let path = root.join(&name);
        if name.starts_with(NEW) || name.starts_with(OLD) {
            take_away(&path)?;
        } else if name.starts_with(RECORD) {
            files::remove(&path)?;
        } else {
            // A region that a repair did not finish.
            for half in files::names(&path).unwrap_or_default() {
                if half.starts_with(&format!(".{REGION}.")) {
                    files::remove(&path.join(&half))?;
                    cleared.push(path.join(half));
                }
            }
            continue;
        }
        cleared.push(path);
    }
    Ok(cleared)
}

/// The record of a directory.
pub(super) fn read(root: &Path, name: &Name) -> anyhow::Result<ContainerRecord> {
    let instance = Instance::open(&root.join(&name.0))?;
    let path = instance.path().join(LABELS);
    let bytes = regular::read(&path, RECORD_MOST_BYTES)
        .with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| path.display().to_string())
}

/// Reads the limits of a directory, where its record says nothing.
pub(super) fn read_limits(root: &Path, name: &Name) -> Option<Limits> {
    let instance = Instance::open(&root.join(&name.0)).ok()?;
    view::read_limits(&instance).ok()
}

fn text(record: &ContainerRecord) -> Vec<u8> {
    // A record is made of texts and numbers, which all can be written.
    let mut text = serde_json::to_vec_pretty(record).unwrap_or_default();
    text.push(b'\n');
    text
}
