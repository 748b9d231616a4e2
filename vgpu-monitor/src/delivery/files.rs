//! Files that are there as a whole or not at all. Never follows a link as the last part of a path that it writes.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use supervisor::regular;

use super::DeliveryError;
use crate::durable;
use crate::steps::step;

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

/// Writes a whole file to the disk under a temporary name; a file of a killed process there is removed first.
pub(super) fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), DeliveryError> {
    remove(path)?;
    durable::create(path, bytes, mode).map_err(failed("write", path))
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
    if regular::read(path, bytes.len() as u64 + 1).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(dir) = path.parent().filter(|dir| !dir.exists()) {
        make_dir(dir, 0o755)?;
    }
    replace_by(&durable::beside(path), path, bytes, mode)
}

/// Renames a file, and waits until the rename is on the disk.
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), DeliveryError> {
    fs::rename(from, to).map_err(failed("make", to))?;
    sync_parent(to)
}

/// Waits until the names of a directory are on the disk.
pub(super) fn sync_parent(path: &Path) -> Result<(), DeliveryError> {
    let dir = path.parent().unwrap_or(path);
    durable::sync_parent(path).map_err(failed("write", dir))
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
