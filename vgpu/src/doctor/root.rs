//! Reads files below a root directory: this system's `/`, a node's file system mounted elsewhere, or a container's.
//!
//! Never follows a link out of that directory, because a tenant controls a container's files. Never reads more than the
//! given size, and never waits for a pipe.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use serde::{Deserialize, Serialize};

/// The most that is read of a text file.
pub(super) const MOST_TEXT: u64 = 4 << 20;

/// Seconds since 1970.
pub(super) fn unix_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// A root directory.
pub(super) struct RootDir {
    path: PathBuf,
    dir: OwnedFd,
}

/// A file's metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct FileFacts {
    /// Whether it exists.
    pub(super) present: bool,
    /// Why it could not be examined.
    pub(super) error: Option<String>,
    pub(super) directory: bool,
    pub(super) regular: bool,
    pub(super) bytes: u64,
    /// Permission bits.
    pub(super) mode: u32,
    pub(super) owner: u32,
}

impl RootDir {
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let dir = nix::fcntl::open(
            path,
            OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
        .with_context(|| format!("cannot open the directory {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            dir,
        })
    }

    /// Whether it is this system's own `/`.
    pub(super) fn is_here(&self) -> bool {
        self.path == Path::new("/")
    }

    fn open_with(&self, path: &str, flags: OFlag) -> Result<OwnedFd, Errno> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT);
        // The path of what would be opened from `/`; the kernel keeps links within the directory.
        let path = if path == "/" { "." } else { path };
        match openat2(&self.dir, path, how) {
            // Linux before 5.6, or a sandbox that lacks the call.
            Err(Errno::ENOSYS | Errno::EPERM) if self.is_here() => {
                nix::fcntl::open(path, flags | OFlag::O_CLOEXEC, Mode::empty())
            }
            opened => opened,
        }
    }

    /// The file, opened for reading; `None` if there is none.
    pub(super) fn file(&self, path: &str) -> Result<Option<File>, Unreadable> {
        match self.open_with(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(errno) => Err(Unreadable::new("open", path, errno.desc())),
        }
    }

    /// The bytes of a file, up to `most`; `None` if there is none.
    pub(super) fn bytes(&self, path: &str, most: u64) -> Result<Option<Vec<u8>>, Unreadable> {
        let Some(file) = self.file(path)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let read = file.take(most).read_to_end(&mut bytes);
        read.map_err(|error| Unreadable::new("read", path, error))?;
        Ok(Some(bytes))
    }

    /// The text of a file; `None` if it is missing or cannot be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let bytes = self.bytes(path, MOST_TEXT).ok()??;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A handle of a directory, which stays valid if its path changes.
    pub(super) fn directory(&self, path: &str) -> Result<OwnedFd, Errno> {
        self.open_with(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)
    }

    /// The sorted names in a directory; empty if there is none.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Ok(dir) = self.directory(path) else {
            return Vec::new();
        };
        let listed = std::fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd()));
        let mut names: Vec<String> = listed
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The metadata of a path, following links.
    pub(super) fn look(&self, path: &str) -> FileFacts {
        match self.stat(path) {
            Ok(Some(stat)) => {
                let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
                FileFacts {
                    present: true,
                    error: None,
                    directory: kind == SFlag::S_IFDIR,
                    regular: kind == SFlag::S_IFREG,
                    bytes: u64::try_from(stat.st_size).unwrap_or(0),
                    mode: stat.st_mode & 0o7777,
                    owner: stat.st_uid,
                }
            }
            Ok(None) => FileFacts::default(),
            Err(error) => FileFacts {
                error: Some(error.to_string()),
                ..FileFacts::default()
            },
        }
    }

    fn stat(&self, path: &str) -> Result<Option<FileStat>, Unreadable> {
        match self.open_with(path, OFlag::O_PATH) {
            Ok(found) => fstat(&found)
                .map(Some)
                .map_err(|errno| Unreadable::new("look at", path, errno.desc())),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Err(errno) => Err(Unreadable::new("look at", path, errno.desc())),
        }
    }

    /// The target of the link at this path.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let found = self
            .open_with(path, OFlag::O_PATH | OFlag::O_NOFOLLOW)
            .ok()?;
        let to = nix::fcntl::readlinkat(&found, "").ok()?;
        to.into_string().ok()
    }
}

/// A file that is there and that could not be read, for the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unreadable {
    attempt: &'static str,
    path: String,
    why: String,
}

impl Unreadable {
    fn new(attempt: &'static str, path: &str, why: impl ToString) -> Self {
        Self {
            attempt,
            path: path.to_owned(),
            why: why.to_string(),
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempt, path, why } = self;
        write!(f, "cannot {attempt} {path}: {why}")
    }
}

/// One line of a mount table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Mount {
    /// Where it is mounted.
    pub(super) point: String,
    /// The part of its file system that is mounted there.
    pub(super) root: String,
    /// Kind of file system.
    pub(super) kind: String,
    pub(super) read_only: bool,
}

/// The mounts of `/proc/PID/mountinfo`.
pub(super) fn mounts(text: &str) -> Vec<Mount> {
    text.lines().filter_map(mount).collect()
}

fn mount(line: &str) -> Option<Mount> {
    // 36 35 98:0 /of-the-file-system /here rw,noatime master:1 - ext4 /dev/root rw
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let root = unescaped(fields.next()?);
    let point = unescaped(fields.next()?);
    let options = fields.next()?;
    let mut last = after.split(' ');
    let kind = last.next()?.to_owned();
    let of_all = last.nth(1).unwrap_or_default();
    let says = |options: &str| options.split(',').any(|option| option == "ro");
    Some(Mount {
        point,
        root,
        kind,
        read_only: says(options) || says(of_all),
    })
}

/// Decodes the escapes of mount tables, such as `\040` for a blank.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\134", "\\")
}

/// The mount that contains the path: the one with the longest matching mount point, the last of several.
pub(super) fn mount_of<'a>(mounts: &'a [Mount], path: &str) -> Option<&'a Mount> {
    let covers = |point: &str| {
        point == "/"
            || path
                .strip_prefix(point)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    mounts
        .iter()
        .filter(|mount| covers(&mount.point))
        .max_by_key(|mount| mount.point.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_lies_on_the_nearest_mount_and_blanks_are_written_out() {
        let table = "\
1 0 0:30 / / rw,relatime - overlay overlay rw,lowerdir=/x
2 1 8:1 /var/lib/vgpu/containers/a /etc/vgpu ro,relatime master:3 - ext4 /dev/sda1 rw
3 1 8:1 /a\\040b /run/vgpu/re\\040gion rw - ext4 /dev/sda1 ro
";
        let mounts = mounts(table);
        let at =
            |path| mount_of(&mounts, path).map(|mount| (mount.point.as_str(), mount.read_only));
        assert_eq!(at("/etc/vgpu/limits"), Some(("/etc/vgpu", true)));
        assert_eq!(at("/etc/vgpux"), Some(("/", false)));
        assert_eq!(at("/run/vgpu/re gion"), Some(("/run/vgpu/re gion", true)));
        assert_eq!(mounts.get(2).map(|mount| mount.root.as_str()), Some("/a b"));
    }

    #[test]
    fn a_link_does_not_lead_out_of_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("etc")).unwrap();
        std::fs::write(dir.path().join("etc/real"), "inside").unwrap();
        for (name, to) in [
            ("a", "/etc/real"),
            ("b", "../../../etc/real"),
            ("c", "/etc/passwd"),
        ] {
            std::os::unix::fs::symlink(to, dir.path().join("etc").join(name)).unwrap();
        }
        let root = RootDir::open(dir.path()).unwrap();
        assert_eq!(root.text("/etc/a").as_deref(), Some("inside"));
        assert_eq!(root.text("/etc/b").as_deref(), Some("inside"));
        assert_eq!(root.text("/etc/c"), None);
        assert_eq!(root.link("/etc/c").as_deref(), Some("/etc/passwd"));
        assert_eq!(root.names("/etc"), ["a", "b", "c", "real"]);
        assert!(root.look("/etc/a").regular && root.look("/").directory);
    }
}
