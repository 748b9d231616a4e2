//! One directory for each container: `limits`, `targets`, `doorbell` and `container.json`, which the host owns, and
//! `region`, which the container writes. Owns how such a directory is created, found, judged alive and
//! removed.
//!
//! Never follows a symbolic link below the given root, never deletes a name that it does not know, and never
//! trusts a file that another user could have put there.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, openat};
use nix::sys::stat::{FileStat, Mode, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};
use vgpu_abi::limits::{Limits, LimitsFile};
use vgpu_abi::region::{NewDevice, Region};
use vgpu_abi::targets::TargetsFile;

use crate::regular::{self, OpenError};

mod environment;
mod error;

pub use error::InstanceError;

/// The container's limits; host-owned.
pub const LIMITS: &str = "limits";
/// The host's measurements and grants; host-owned.
pub const TARGETS: &str = "targets";
/// An empty file, which the container's processes open when they begin to work: the arbiter sees that. Host-owned.
pub const DOORBELL: &str = vgpu_abi::doorbell::NAME;
/// Memory and compute use of the processes; the container writes it.
pub const REGION: &str = "region";
/// What is known of the driver's own limit on the container's control group; host-owned. Missing if no process has set
/// one.
pub const FENCE: &str = "fence.json";
/// The same while it is written.
pub const FENCE_HALF: &str = ".fence.json";
/// Names the container that the directory is of; host-owned, and locked by the runner while the runner lives.
pub const LABELS: &str = "container.json";

/// Where a container on a node has limits and targets: a directory, read-only. Which files are there
/// decides what the library reads.
pub const INSIDE: &str = "/etc/vgpu";
/// Where a container on a node has its limits.
pub const INSIDE_LIMITS: &str = "/etc/vgpu/limits";
/// Where a container on a node has its region.
pub const INSIDE_REGION: &str = "/run/vgpu/region";
/// Where every container finds the library, and where a package puts it.
pub const INSIDE_LIBRARY: &str = "/usr/local/vgpu/libvgpu.so";

/// Larger label files are not ours.
const LABELS_MOST_BYTES: u64 = 256 << 10;
/// Bytes of a command that labels keep for people, each word counted with [`WORD_BYTES`] more. In JSON a byte takes
/// up to six.
const COMMAND_MOST_BYTES: usize = 16 << 10;
/// Bytes of the file for a word, apart from its letters.
const WORD_BYTES: usize = 16;
/// Directories below a root that are looked into: `board/uid/name`, `root/pod/container`.
const DEPTH: usize = 3;
/// More entries than this in one directory are not read: such a directory was made on purpose.
const ENTRIES_MOST: usize = 65_536;
/// More directories than this of one owner are not looked into. Any user may make directories on a shared
/// board, so the bound is per owner: no user can exhaust another's.
const DIRECTORIES_MOST: usize = 4096;
/// More places than this that could not be read are not remembered.
const COMPLAINTS_MOST: usize = 1000;

/// `container.json`: whose directory it is. Every field may be missing, so that releases can be
/// mixed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// The name that people see; the directory's name under `vgpu run`.
    pub name: String,
    /// Kubernetes namespace; empty under `vgpu run`.
    pub namespace: String,
    /// Pod; empty under `vgpu run`.
    pub pod: String,
    /// Container; the name under `vgpu run`.
    pub container: String,
    /// Pod's uid; empty under `vgpu run`.
    pub pod_uid: String,
    /// The command with its arguments; empty in a pod.
    pub command: Vec<String>,
    /// When it was made, seconds since 1970.
    pub created_unix: u64,
    /// Process that supervises it; 0 where the node agent does. For a container of an engine, its first process.
    pub runner_pid: u32,
    /// The container of a container engine (Podman, Docker) that the directory is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineContainer>,
    /// The job of Slurm that the directory is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm: Option<SlurmJob>,
    /// The workload under which metrics sum up the container's use.
    #[serde(skip_serializing_if = "Workload::is_unknown")]
    pub workload: Workload,
    /// The pod's trace, as the W3C `traceparent`, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Limits file of the container in which this one was started: its limits are a ceiling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outer_limits: Option<PathBuf>,
    /// The ResourceClaim that gave it, whose pods share its limits. `pod` is the first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimLabel>,
}

/// A ResourceClaim in the namespace of the labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimLabel {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The uids of the pods that may use it.
    pub pods: Vec<String>,
}

impl Labels {
    /// The file's text. A long command is cut: labels that no reader accepts say nothing of whose the directory is, nor
    /// that its container lives.
    fn text(&self) -> serde_json::Result<Vec<u8>> {
        let mut labels = self.clone();
        labels.command.clear();
        let mut room = COMMAND_MOST_BYTES;
        for word in &self.command {
            match room.checked_sub(word.len() + WORD_BYTES) {
                Some(left) => {
                    room = left;
                    labels.command.push(word.clone());
                }
                None => {
                    let kept = word.floor_char_boundary(room);
                    labels.command.push(format!("{}…", &word[..kept]));
                    break;
                }
            }
        }
        let mut text = serde_json::to_vec_pretty(&labels)?;
        text.push(b'\n');
        Ok(text)
    }
}

/// A container of a container engine, as the engine's runtime knows it. It lives as long as its first process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineContainer {
    /// The runtime's id of the container.
    pub id: String,
    /// When its first process started, in clock ticks since boot; 0 is not known.
    pub started_ticks: u64,
    /// The pid namespace in which its first process has its number; 0 is not known.
    pub pid_namespace: u64,
}

impl EngineContainer {
    /// Whether its first process lives, which has this number. A process of another pid namespace cannot see it, so
    /// there it counts as alive.
    fn lives(&self, pid: u32) -> bool {
        let here = pid_namespace();
        let is_hidden = self.pid_namespace != 0 && here != 0 && self.pid_namespace != here;
        is_hidden || process_lives(pid, self.started_ticks)
    }
}

/// The directory beside the instances that holds a record of each job of Slurm between its prolog and its epilog.
pub const SLURM_RECORDS: &str = ".slurm";

/// The kind of the workload of a job of Slurm. The workload's name is the job's, and its team the job's user.
pub const SLURM_WORKLOAD: &str = "slurm";

/// A job of Slurm on this node. No process lives as long as the job does; its record does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlurmJob {
    /// Slurm's number of the job; its record has this name.
    pub id: u32,
    /// The boot of the machine in which the prolog ran.
    pub boot: String,
}

impl SlurmJob {
    /// Whether the job's epilog has not run yet. A job of another boot has ended with the machine.
    fn lives(&self, instance: &OwnedFd) -> bool {
        let record = format!("../{SLURM_RECORDS}/{}", self.id);
        self.boot == boot() && has(instance, &record)
    }
}

/// Which boot of the machine this is; empty if it is not known.
#[must_use]
pub fn boot() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// The pid namespace of this process; 0 is not known.
#[must_use]
pub fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino())
}

/// The workload to which a pod belongs, and its team; all empty under `vgpu run`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Workload {
    /// The value of the pod's team label; empty for none.
    pub team: String,
    /// The kind of the workload in lower case: `deployment`, `job`, `pod`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl Workload {
    /// Whether nothing is known of it.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// An instance's directory, held open, so that no rename can slip another one in.
#[derive(Debug)]
pub struct Instance {
    path: PathBuf,
    dir: OwnedFd,
    owner: u32,
}

impl Instance {
    /// Opens the directory.
    ///
    /// # Errors
    /// It is missing, a link, no directory, or others may write it.
    pub fn open(path: &Path) -> Result<Self, InstanceError> {
        let dir = nix::fcntl::open(path, DIR_FLAGS, Mode::empty())
            .map_err(|errno| InstanceError::directory(path, errno))?;
        Self::adopt(path.to_owned(), dir)
    }

    fn open_at(parent: &OwnedFd, name: &[u8], path: PathBuf) -> Result<Self, InstanceError> {
        let dir = openat(parent, name, DIR_FLAGS, Mode::empty())
            .map_err(|errno| InstanceError::directory(&path, errno))?;
        Self::adopt(path, dir)
    }

    fn adopt(path: PathBuf, dir: OwnedFd) -> Result<Self, InstanceError> {
        let stat = fstat(&dir).map_err(InstanceError::system("look at", &path))?;
        let mode = stat.st_mode & 0o7777;
        if mode & 0o022 != 0 {
            return Err(InstanceError::Ownership {
                path,
                owner: stat.st_uid,
                expected: stat.st_uid,
                mode,
            });
        }
        Ok(Self {
            path,
            dir,
            owner: stat.st_uid,
        })
    }

    /// Makes the directory `name` below `parent` with its labels, locked by this process.
    ///
    /// Limits, targets and region are the caller's to put there: it knows the devices.
    ///
    /// # Errors
    /// The name exists, or the disk is full, or the parent cannot be written.
    pub fn create(
        parent: &OwnedFd,
        parent_path: &Path,
        name: &str,
        labels: &Labels,
    ) -> Result<(Self, RunnerLock), InstanceError> {
        let path = parent_path.join(name);
        mkdirat(parent, name, Mode::from_bits_truncate(0o700))
            .map_err(InstanceError::system("make", &path))?;
        let instance = Self::open_at(parent, name.as_bytes(), path)?;
        match instance.write_labels(labels) {
            Ok(lock) => Ok((instance, lock)),
            Err(error) => {
                // A directory that was made a moment ago has no other entries.
                unlinkat(&instance.dir, LABELS, UnlinkatFlags::NoRemoveDir).ok();
                unlinkat(parent, name, UnlinkatFlags::RemoveDir).ok();
                Err(error)
            }
        }
    }

    fn write_labels(&self, labels: &Labels) -> Result<RunnerLock, InstanceError> {
        let path = self.path.join(LABELS);
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let file = openat(&self.dir, LABELS, flags, Mode::from_bits_truncate(0o600))
            .map_err(InstanceError::system("make", &path))?;
        let mut file = File::from(file);
        let lock = nix::libc::flock {
            l_type: LOCK_WRITE,
            ..whole_file()
        };
        fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)).map_err(InstanceError::system("lock", &path))?;
        let text = labels.text().map_err(|error| InstanceError::Labels {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        file.write_all(&text)
            .map_err(|error| InstanceError::System {
                action: "write",
                path,
                errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)),
            })?;
        Ok(RunnerLock { file })
    }

    /// Makes limits, targets, doorbell and region, for the devices that the limits name.
    ///
    /// # Errors
    /// One of them is there already, or the disk is full.
    pub fn fill(&self, limits: &Limits, region_mode: u32) -> Result<(), InstanceError> {
        self.make_limits(limits)?;
        self.make_targets()?;
        self.make_doorbell()?;
        self.make_region(limits, region_mode)
    }

    /// Makes the limits file.
    ///
    /// # Errors
    /// It is there already, or the disk is full.
    pub fn make_limits(&self, limits: &Limits) -> Result<(), InstanceError> {
        let made = LimitsFile::create(&self.steady_path(LIMITS), limits);
        made.map(drop).map_err(|error| self.unmade(LIMITS, &error))
    }

    /// Makes the targets file, with no targets in it.
    ///
    /// # Errors
    /// It is there already, or the disk is full.
    pub fn make_targets(&self) -> Result<(), InstanceError> {
        let made = TargetsFile::create(&self.steady_path(TARGETS));
        made.map(drop).map_err(|error| self.unmade(TARGETS, &error))
    }

    /// Makes the doorbell.
    ///
    /// # Errors
    /// It is there already, or the disk is full.
    pub fn make_doorbell(&self) -> Result<(), InstanceError> {
        let flags = OFlag::O_RDONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(0o644);
        let made = openat(&self.dir, DOORBELL, flags, mode);
        made.map(drop)
            .map_err(InstanceError::system("make", self.path.join(DOORBELL)))
    }

    /// Makes the region for the devices that the limits name; `mode` is its permission bits.
    ///
    /// # Errors
    /// It is there already, or the disk is full.
    pub fn make_region(&self, limits: &Limits, mode: u32) -> Result<(), InstanceError> {
        let devices = limits.devices.iter().map(|device| NewDevice {
            uuid: device.uuid,
            physical_bytes: device.physical_bytes,
        });
        let devices: Vec<_> = devices.collect();
        Region::create(&self.steady_path(REGION), &devices, mode)
            .map_err(|error| self.unmade(REGION, &error))
    }

    fn unmade(&self, name: &str, error: &dyn std::fmt::Display) -> InstanceError {
        InstanceError::File {
            path: self.path.join(name),
            reason: error.to_string(),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Uid that owns the directory.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// The directory itself.
    #[must_use]
    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// A path of one of its files that leads through the open directory, whatever was renamed
    /// since.
    #[must_use]
    pub fn steady_path(&self, name: &str) -> PathBuf {
        use std::os::fd::AsRawFd;
        PathBuf::from(format!(
            "/proc/self/fd/{}/{name}",
            self.dir.as_fd().as_raw_fd()
        ))
    }

    /// Opens a file that the host owns, and checks that it does.
    ///
    /// # Errors
    /// It is missing, a link, no regular file, or another user could have written it.
    pub fn host_file(&self, name: &str, write: bool) -> Result<File, InstanceError> {
        let path = self.path.join(name);
        let access = if write {
            OFlag::O_RDWR
        } else {
            OFlag::O_RDONLY
        };
        let opened = regular::open_at(&self.dir, Path::new(name), access);
        let file = opened.map_err(|error| match error {
            OpenError::NotRegular => InstanceError::Kind {
                path: path.clone(),
                expected: "regular file",
            },
            OpenError::System(errno) => InstanceError::System {
                action: "open",
                path: path.clone(),
                errno,
            },
        })?;
        let stat = fstat(&file).map_err(InstanceError::system("look at", &path))?;
        self.check_owner(&path, &stat)?;
        Ok(file)
    }

    fn check_owner(&self, path: &Path, stat: &FileStat) -> Result<(), InstanceError> {
        let mode = stat.st_mode & 0o7777;
        if (stat.st_uid != self.owner && stat.st_uid != 0) || mode & 0o022 != 0 {
            return Err(InstanceError::Ownership {
                path: path.to_owned(),
                owner: stat.st_uid,
                expected: self.owner,
                mode,
            });
        }
        Ok(())
    }

    /// The labels of the container that the directory is of.
    ///
    /// # Errors
    /// There are no labels, or they cannot be read.
    pub fn labels(&self) -> Result<Labels, InstanceError> {
        let path = self.path.join(LABELS);
        let file = self.host_file(LABELS, false)?;
        let mut text = Vec::new();
        file.take(LABELS_MOST_BYTES + 1)
            .read_to_end(&mut text)
            .map_err(|error| InstanceError::System {
                action: "read",
                path: path.clone(),
                errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)),
            })?;
        if text.len() as u64 > LABELS_MOST_BYTES {
            let reason = format!("it is larger than {LABELS_MOST_BYTES} bytes");
            return Err(InstanceError::Labels { path, reason });
        }
        serde_json::from_slice(&text).map_err(|error| InstanceError::Labels {
            path,
            reason: error.to_string(),
        })
    }

    /// Whether the container is still supervised: the runner that made the directory lives, or the first process of
    /// the engine's container does, or Slurm's job has not had its epilog.
    #[must_use]
    pub fn runner_lives(&self) -> bool {
        if self.is_locked() {
            return true;
        }
        let Ok(labels) = self.labels() else {
            return false;
        };
        let engine = labels.engine.as_ref();
        engine.is_some_and(|engine| engine.lives(labels.runner_pid))
            || labels.slurm.is_some_and(|job| job.lives(&self.dir))
    }

    /// Whether the directory is one that a killed command has half made, or half removed: no program can be under its
    /// limits, and no scan shows it.
    #[must_use]
    pub fn is_half(&self) -> bool {
        !has(&self.dir, LIMITS) && !has(&self.dir, REGION) && !self.runner_lives()
    }

    /// Whether the runner holds its lock: the kernel drops the lock on any death.
    fn is_locked(&self) -> bool {
        let Ok(file) = self.host_file(LABELS, false) else {
            return false;
        };
        let mut lock = nix::libc::flock {
            l_type: LOCK_WRITE,
            ..whole_file()
        };
        match fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock)) {
            Ok(_) => lock.l_type != LOCK_NONE,
            // A file system without such locks: we cannot know, so nothing is taken away.
            Err(_) => true,
        }
    }

    /// Ids of the processes that were started under the limits of this directory, by the environments that this process may
    /// read. `None` if the search had to give up.
    ///
    /// A program that was started under the limits but has not touched the GPU yet holds no slot,
    /// and still must find its files.
    #[must_use]
    pub fn started_under(&self) -> Option<Vec<u32>> {
        let mut wanted = b"VGPU_LIMITS=".to_vec();
        wanted.extend_from_slice(self.path.join(LIMITS).as_os_str().as_bytes());
        environment::started_with(Path::new("/proc"), &wanted)
    }

    /// Whether no process is left that was started under the limits of this directory. False if the search had to give up.
    #[must_use]
    pub fn is_deserted(&self) -> bool {
        self.started_under().is_some_and(|pids| pids.is_empty())
    }

    /// Takes the directory away: the names that we know, then the directory. A directory with anything else in it stays.
    ///
    /// # Errors
    /// Something could not be deleted.
    pub fn remove(self, parent: &OwnedFd) -> Result<(), InstanceError> {
        let Some(name) = self.path.file_name() else {
            return Err(InstanceError::Kind {
                path: self.path,
                expected: "directory with a name",
            });
        };
        // The labels go last: they say whose the rest is, should this process die here.
        let names = [REGION, DOORBELL, TARGETS, FENCE_HALF, FENCE, LIMITS, LABELS];
        for file in names {
            match unlinkat(&self.dir, file, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => {
                    let path = self.path.join(file);
                    return Err(InstanceError::System {
                        action: "remove",
                        path,
                        errno,
                    });
                }
            }
        }
        self.remove_half_regions();
        unlinkat(parent, name, UnlinkatFlags::RemoveDir)
            .map_err(InstanceError::system("remove", &self.path))
    }

    /// Removes what a command leaves that is killed while it makes the region.
    fn remove_half_regions(&self) {
        for entry in std::fs::read_dir(&self.path)
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name
                .strip_prefix('.')
                .is_some_and(|name| name.starts_with(REGION))
            {
                unlinkat(&self.dir, name.as_ref(), UnlinkatFlags::NoRemoveDir).ok();
            }
        }
    }
}

/// When a process started, in clock ticks since boot; `None` if there is no such process, or only its remains that
/// its parent has not collected yet.
#[must_use]
pub fn started_ticks(pid: u32) -> Option<u64> {
    started_ticks_in(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The same by the text of `/proc/PID/stat` (proc_pid_stat(5)). The kernel calls a process a zombie as soon as its first
/// thread has ended, also if its other threads run on.
fn started_ticks_in(stat: &str) -> Option<u64> {
    // The process's name comes before and may contain any character. Field 3 is the first.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3);
    let threads: u64 = field(20)?.parse().ok()?;
    if matches!(*field(3)?, "Z" | "X") && threads <= 1 {
        return None;
    }
    field(22)?.parse().ok()
}

/// Whether this process lives, and is the one that started then.
fn process_lives(pid: u32, ticks: u64) -> bool {
    started_ticks(pid).is_some_and(|started| ticks == 0 || started == ticks)
}

/// Says that the runner lives, until it is dropped or the process dies.
#[derive(Debug)]
pub struct RunnerLock {
    file: File,
}

impl RunnerLock {
    /// Replaces the labels, keeping the lock.
    ///
    /// # Errors
    /// The disk is full.
    pub fn rewrite(&mut self, labels: &Labels) -> std::io::Result<()> {
        let text = labels.text().map_err(std::io::Error::other)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&text)?;
        self.file.set_len(text.len() as u64)
    }
}

const DIR_FLAGS: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

// The constants are small positive numbers in every libc.
#[expect(clippy::cast_possible_truncation, reason = "F_WRLCK is 1")]
const LOCK_WRITE: i16 = nix::libc::F_WRLCK as i16;
#[expect(clippy::cast_possible_truncation, reason = "F_UNLCK is 2")]
const LOCK_NONE: i16 = nix::libc::F_UNLCK as i16;

fn whole_file() -> nix::libc::flock {
    nix::libc::flock {
        l_type: LOCK_NONE,
        l_whence: 0,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Something below a root that could not be read as an instance, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// Where it is.
    pub path: PathBuf,
    /// The fault.
    pub reason: String,
}

/// Things that a scan met besides instances; the first 1,000 of each kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// Directories that this process may not read: other users' ones.
    pub unreadable: Vec<PathBuf>,
    /// Directories that look like instances and are none.
    pub broken: Vec<Broken>,
}

/// Hands every instance below `root` to `visit`, in order of path.
///
/// A directory with a `limits` or a `region` in it is an instance, and is not looked into further.
/// Names that begin with a dot are left alone. At most three levels are read, 65,536 entries of
/// each directory, and 4,096 directories of each owner.
///
/// # Errors
/// The root itself cannot be read.
pub fn scan(root: &Path, visit: &mut dyn FnMut(Instance)) -> Result<Scan, InstanceError> {
    let flags = DIR_FLAGS.difference(OFlag::O_NOFOLLOW);
    let dir = nix::fcntl::open(root, flags, Mode::empty())
        .map_err(|errno| InstanceError::directory(root, errno))?;
    let mut found = Scan::default();
    let mut walk = Walk {
        visit,
        found: &mut found,
        of_owner: HashMap::new(),
    };
    walk.dir(&dir, root, 0)?;
    Ok(found)
}

struct Walk<'a> {
    visit: &'a mut dyn FnMut(Instance),
    found: &'a mut Scan,
    /// Directories looked into so far, by owner.
    of_owner: HashMap<u32, usize>,
}

impl Walk<'_> {
    fn dir(&mut self, dir: &OwnedFd, path: &Path, depth: usize) -> Result<(), InstanceError> {
        let copy = dir.try_clone().map_err(|error| InstanceError::System {
            action: "open",
            path: path.to_owned(),
            errno: Errno::from_raw(error.raw_os_error().unwrap_or(0)),
        })?;
        let mut entries =
            nix::dir::Dir::from_fd(copy).map_err(InstanceError::system("read", path))?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        for entry in entries.iter().flatten() {
            let name = entry.file_name().to_bytes();
            let may_be_dir = !matches!(
                entry.file_type(),
                Some(kind) if kind != nix::dir::Type::Directory && kind != nix::dir::Type::Symlink
            );
            if name.first() == Some(&b'.') || !may_be_dir {
                continue;
            }
            if names.len() == ENTRIES_MOST {
                self.broken(
                    path,
                    format!("more than {ENTRIES_MOST} entries, the rest was not read"),
                );
                break;
            }
            names.push(name.to_owned());
        }
        names.sort();
        for name in names {
            let path = path.join(std::ffi::OsStr::from_bytes(&name));
            match Instance::open_at(dir, &name, path.clone()) {
                Ok(child) => self.child(child, path, depth),
                // Gone since the directory was read.
                Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                Err(error) if error.errno() == Some(Errno::EACCES) => {
                    if self.found.unreadable.len() < COMPLAINTS_MOST {
                        self.found.unreadable.push(path);
                    }
                }
                Err(error) => self.broken(&path, error.to_string()),
            }
        }
        Ok(())
    }

    fn child(&mut self, child: Instance, path: PathBuf, depth: usize) {
        let owner = child.owner();
        let looked_into = self.of_owner.entry(owner).or_default();
        *looked_into = looked_into.saturating_add(1);
        if *looked_into > DIRECTORIES_MOST {
            // Said once: the list must not grow with what it bounds.
            if *looked_into == DIRECTORIES_MOST + 1 {
                let reason = format!(
                    "uid {owner} has more than {DIRECTORIES_MOST} directories, this one and all further ones were not read"
                );
                self.broken(&path, reason);
            }
        } else if has(&child.dir, LIMITS) || has(&child.dir, REGION) {
            (self.visit)(child);
        } else if depth + 1 < DEPTH
            && let Err(error) = self.dir(&child.dir, &path, depth + 1)
        {
            self.broken(&path, error.to_string());
        }
    }

    fn broken(&mut self, path: &Path, reason: String) {
        if self.found.broken.len() < COMPLAINTS_MOST {
            self.found.broken.push(Broken {
                path: path.to_owned(),
                reason,
            });
        }
    }
}

fn has(dir: &OwnedFd, name: &str) -> bool {
    nix::sys::stat::fstatat(dir, name, nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
}

#[cfg(test)]
mod tests;
