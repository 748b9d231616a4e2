//! Files that have the old or the new content, whenever the agent or the machine dies. Never follows a link as the last
//! part of a path that it writes.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::steps::step;

/// Puts new content under a name, so that every reader sees the old or the new one, also after a power cut.
pub(crate) fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let fresh = beside(path);
    // Of a process that was killed.
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    step();
    create(&fresh, content, mode)?;
    step();
    fs::rename(&fresh, path).inspect_err(|_| drop(fs::remove_file(&fresh)))?;
    step();
    sync_parent(path)
}

/// Writes a file that is not there yet to the disk, with this mode whatever the umask is. A file that cannot be written
/// as a whole is removed.
pub(crate) fn create(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut options = File::options();
    options.write(true).create_new(true).mode(mode);
    options.custom_flags(OFlag::O_NOFOLLOW.bits());
    let mut file = options.open(path)?;
    let mut write = || {
        file.write_all(content)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    };
    // A failure to remove the partial file is not the error to report.
    write().inspect_err(|_| drop(fs::remove_file(path)))
}

/// Waits until the names in the file's directory are on the disk.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// The temporary name of a file: no reader of the directory takes it for one of its own.
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_replaced_and_a_killed_writers_rest_is_no_hindrance() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claims.json");
        fs::write(beside(&path), "half").unwrap();

        replace(&path, b"one", 0o600).unwrap();
        replace(&path, b"two", 0o600).unwrap();

        assert_eq!(fs::read(&path).unwrap(), b"two");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn link_under_the_temporary_name_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("other"));
        fs::write(&other, "theirs").unwrap();
        std::os::unix::fs::symlink(&other, beside(&path)).unwrap();

        create(&beside(&path), b"ours", 0o600).unwrap_err();
        replace(&path, b"ours", 0o600).unwrap();

        assert_eq!(fs::read(&other).unwrap(), b"theirs");
        assert_eq!(fs::read(&path).unwrap(), b"ours");
    }
}
