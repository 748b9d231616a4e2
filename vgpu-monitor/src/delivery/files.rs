//! Files that are there as a whole or not at all. Never follows a link as the last part of a path that it writes.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::DeliveryError;
use super::steps::step;

/// The error of an operation on a path.
pub(super) fn failed(
    action: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> DeliveryError {
    let path = path.into();
    move |source| DeliveryError::System {
        action,
        path,
        source,
    }
}

/// Makes a directory with its parents, and sets its mode.
pub(super) fn make_dir(path: &Path, mode: u32) -> Result<(), DeliveryError> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o755);
    builder.create(path).map_err(failed("make", path))?;
    // Independent of the umask and of the process that created it.
    let is = fs::symlink_metadata(path).map_err(failed("look at", path))?;
    if is.permissions().mode() & 0o7777 != mode {
        fs::set_permissions(path, Permissions::from_mode(mode))
            .map_err(failed("set the mode of", path))?;
    }
    Ok(())
}

/// The temporary name of a file: no reader of the directory takes it for one of its own.
fn beside(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

/// Writes a whole file to the disk under a temporary name; a file of a killed process there is removed first.
pub(super) fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), DeliveryError> {
    remove(path)?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    options.custom_flags(OFlag::O_NOFOLLOW.bits());
    let written = options.open(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    });
    written.map_err(|error| {
        // A partial file is of no use; a failure to remove it is not the error to report.
        fs::remove_file(path).ok();
        failed("write", path)(error)
    })
}

/// Replaces a file by one rename, in the same directory, by way of `temporary`.
pub(super) fn replace_by(
    temporary: &Path,
    path: &Path,
    bytes: &[u8],
    mode: u32,
) -> Result<(), DeliveryError> {
    write_new(temporary, bytes, mode)?;
    step();
    rename(temporary, path).inspect_err(|_| drop(fs::remove_file(temporary)))
}

/// Writes a file unless it has these bytes already.
pub(super) fn replace_if_changed(
    path: &Path,
    bytes: &[u8],
    mode: u32,
) -> Result<(), DeliveryError> {
    if read(path, bytes.len() as u64 + 1).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(dir) = path.parent().filter(|dir| !dir.exists()) {
        make_dir(dir, 0o755)?;
    }
    replace_by(&beside(path), path, bytes, mode)
}

/// Renames a file, and waits until the rename is on the disk.
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), DeliveryError> {
    fs::rename(from, to).map_err(failed("make", to))?;
    sync_parent(to)
}

/// Waits until the names of a directory are on the disk.
pub(super) fn sync_parent(path: &Path) -> Result<(), DeliveryError> {
    let Some(dir) = path.parent() else {
        return Ok(());
    };
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(failed("write", dir))
}

/// Reads at most this many bytes of a regular file; follows no link.
pub(super) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = options.read(true).custom_flags(flags.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Deletes a file that may not be there.
pub(super) fn remove(path: &Path) -> Result<(), DeliveryError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

/// The names in a directory, in order; empty if there is no such directory.
pub(super) fn names(dir: &Path) -> Result<Vec<String>, DeliveryError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed("read", dir))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed("read", dir))?.file_name();
        names.extend(name.into_string());
    }
    names.sort();
    Ok(names)
}
