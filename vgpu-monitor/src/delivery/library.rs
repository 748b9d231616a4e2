//! The library on the host: one directory for each version of it, never changed once it is there. An upgrade adds one;
//! what runs keeps the file that it has mapped.
//!
//! Never delivers what the dynamic loader could not load: it would only print a warning, and run the program without a
//! limit.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};
use sha2::{Digest, Sha256};
use supervisor::instance::INSIDE_LIBRARY;
use supervisor::regular;

use super::DeliveryError;
use super::files::{self, failed};
use crate::steps::step;

/// The library in its directory.
pub const FILE: &str = "libvgpu.so";
/// Beside it: what a container has as `/etc/ld.so.preload`.
pub const PRELOAD: &str = "ld.so.preload";

/// A version that is being put in its place.
const NEW: &str = ".new-";
/// A version that is being removed.
const OLD: &str = ".old-";
/// Larger than any build of the library, with all optional features, bytes.
const MOST_BYTES: u64 = 256 << 20;

/// A version that is in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// Name of its directory: the release, and the beginning of the file's SHA-256.
    pub version: String,
    /// The directory.
    pub dir: PathBuf,
}

/// Installs a library below `to`, in a directory named after its version and content. An existing one is not
/// written again.
///
/// # Errors
/// The file is no library for this machine, the disk is full, or programs could not load it from there.
pub fn install(from: &Path, to: &Path) -> Result<Installed, DeliveryError> {
    supervisor::library::check(from)?;
    let bytes = fs::read(from).map_err(failed("read", from))?;
    files::make_dir(to, 0o755)?;
    if statvfs(to).is_ok_and(|system| system.flags().contains(FsFlags::ST_NOEXEC)) {
        return Err(DeliveryError::NoExec {
            path: to.to_owned(),
        });
    }
    let hash = Sha256::digest(&bytes);
    let hex = hash.iter().take(6).map(|byte| format!("{byte:02x}"));
    let name = format!("{}-{}", env!("CARGO_PKG_VERSION"), hex.collect::<String>());
    // A directory whose files were changed may still be mapped: another one is created beside it.
    for attempt in 0..100 {
        let version = match attempt {
            0 => name.clone(),
            attempt => format!("{name}-{attempt}"),
        };
        let dir = to.join(&version);
        if !dir.exists() {
            put(to, &version, &bytes)?;
            return Ok(Installed { version, dir });
        }
        if holds(&dir, &bytes) {
            return Ok(Installed { version, dir });
        }
        tracing::warn!(path = %dir.display(), "these are not the files that were installed there; they stay, and the \
                       library is installed beside them");
    }
    Err(DeliveryError::File {
        path: to.join(name),
        reason: String::from(
            "is there a hundred times, never as it was installed; delete those that no container uses",
        ),
    })
}

fn put(to: &Path, version: &str, bytes: &[u8]) -> Result<(), DeliveryError> {
    let new = to.join(format!("{NEW}{version}"));
    clear_one(&new)?;
    let made = files::make_dir(&new, 0o755).and_then(|()| {
        step();
        files::write_new(&new.join(FILE), bytes, 0o444)?;
        step();
        files::write_new(&new.join(PRELOAD), preload().as_bytes(), 0o444)?;
        step();
        // The names in it, before its own.
        files::sync_parent(&new.join(FILE))?;
        files::rename(&new, &to.join(version))
    });
    if made.is_err() {
        clear_one(&new).ok();
    }
    made
}

fn preload() -> String {
    format!("{INSIDE_LIBRARY}\n")
}

fn holds(dir: &Path, bytes: &[u8]) -> bool {
    let is = |name: &str, wanted: &[u8]| {
        regular::read(&dir.join(name), MOST_BYTES).is_ok_and(|found| found == wanted)
    };
    is(FILE, bytes) && is(PRELOAD, preload().as_bytes())
}

/// Whether a version is below `lib`, and can be loaded.
pub(super) fn is_there(lib: &Path, version: &str) -> bool {
    let dir = lib.join(version);
    supervisor::library::check(&dir.join(FILE)).is_ok() && dir.join(PRELOAD).is_file()
}

/// Removes the remains of a killed agent, and every version but these.
pub(super) fn clear(lib: &Path, kept: &BTreeSet<&str>) -> Result<Vec<PathBuf>, DeliveryError> {
    let mut cleared = Vec::new();
    for name in files::names(lib)? {
        let path = lib.join(&name);
        let is_half = name.starts_with(NEW) || name.starts_with(OLD);
        // A directory of another form was not put there by this program.
        let is_ours = path.join(FILE).exists() && path.join(PRELOAD).exists();
        if !is_half && (kept.contains(name.as_str()) || !is_ours) {
            continue;
        }
        if is_half {
            clear_one(&path)?;
        } else {
            let old = lib.join(format!("{OLD}{name}"));
            clear_one(&old)?;
            files::rename(&path, &old)?;
            step();
            clear_one(&old)?;
        }
        cleared.push(path);
    }
    Ok(cleared)
}

fn clear_one(dir: &Path) -> Result<(), DeliveryError> {
    for name in [FILE, PRELOAD] {
        match files::remove(&dir.join(name)) {
            Err(DeliveryError::System { source, .. })
                if source.kind() == ErrorKind::NotADirectory => {}
            removed => removed?,
        }
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(failed("remove", dir)),
    }
}
