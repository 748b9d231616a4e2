//! One look at one process: which GPU devices it holds, which of our files it has mapped, which container it
//! belongs to. Owns the reading of `/proc`. Never follows a link of the process's own file system out of its
//! root, never waits for a file system that a process chose (it reads no byte of a foreign file), and never
//! writes.
//!
//! A mapping is identified by device and inode numbers, which the kernel writes. A path there is only a hint,
//! since the owner of a mount namespace chooses its paths.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, OFlags, ResolveFlags, StatxFlags};

use super::cgroup::{self, PodContainer};

/// A file by what the kernel calls it: major and minor number of its file system, inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Device number, as `/proc/PID/maps` prints it.
    pub device: (u32, u32),
    /// Inode number.
    pub inode: u64,
}

/// The agent's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ours {
    /// The libraries that were installed, with the name of their version.
    pub libraries: HashMap<FileId, String>,
    /// The limits files, with the container's directory.
    pub limits: HashMap<FileId, PathBuf>,
    /// The regions, likewise.
    pub regions: HashMap<FileId, PathBuf>,
}

/// The library that a process has mapped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Library {
    /// Nothing.
    #[default]
    None,
    /// One that was installed here, of this version.
    Installed(String),
    /// A file of its name that was not installed here.
    Foreign,
}

/// The facts that a look at a process found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Process id on the host.
    pub pid: u32,
    /// When it began, in clock ticks since boot: with the pid, it is one process.
    pub started: u64,
    /// Name of the program, as it says; harmless to print.
    pub program: String,
    /// The GPU devices that it holds open or has mapped, such as `nvidia0`.
    pub devices: BTreeSet<String>,
    /// The pod and container that it belongs to; nothing for the host's own.
    pub place: Option<PodContainer>,
    /// The library that it has mapped.
    pub library: Library,
    /// The container whose limits it has mapped.
    pub limits: Option<PathBuf>,
    /// It has mapped a file with the name of limits that is not one of the agent's.
    pub other_limits: bool,
    /// The container whose region it has mapped.
    pub region: Option<PathBuf>,
    /// The container whose limits lie at `/etc/vgpu/limits`, as it sees its files.
    pub sees: Option<PathBuf>,
}

/// Where to look, and what counts as a GPU device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eyes {
    /// `/proc`, with the host's pids.
    pub proc: PathBuf,
    /// The prefix of the paths of GPU devices.
    pub devices: String,
    /// Major numbers of GPU devices, with what each is called; whatever their paths are.
    pub majors: HashMap<u32, String>,
}

impl Eyes {
    /// The host's `/proc`, and NVIDIA's devices: the number that belongs to them, and those that the kernel gave their
    /// drivers.
    #[must_use]
    pub fn of(proc: PathBuf, devices: String) -> Self {
        let mut majors = HashMap::from([(195, String::from("nvidia"))]);
        let text = fs::read_to_string(proc.join("devices")).unwrap_or_default();
        for line in text.lines() {
            if let Some((number, name)) = line.trim().split_once(' ')
                && name.starts_with("nvidia")
                && let Ok(number) = number.parse()
            {
                majors.insert(number, name.to_owned());
            }
        }
        Self {
            proc,
            devices,
            majors,
        }
    }

    fn of_pid(&self, pid: u32, file: &str) -> PathBuf {
        self.proc.join(format!("{pid}/{file}"))
    }

    /// Every process, by id.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn pids(&self) -> std::io::Result<Vec<u32>> {
        let mut pids = Vec::new();
        for entry in fs::read_dir(&self.proc)? {
            if let Some(pid) = entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            {
                pids.push(pid);
            }
        }
        Ok(pids)
    }

    /// When the process began, and whether it is a thread of the kernel; `None` if it has ended.
    #[must_use]
    pub fn begun(&self, pid: u32) -> Option<(u64, bool)> {
        const KERNEL_THREAD: u64 = 0x0020_0000;
        let text = fs::read_to_string(self.of_pid(pid, "stat")).ok()?;
        // The name is in parentheses and may contain any character, also parentheses.
        let rest = text.rsplit_once(')')?.1;
        let mut fields = rest.split_ascii_whitespace();
        let flags: u64 = fields.nth(6)?.parse().ok()?;
        let started = fields.nth(12)?.parse().ok()?;
        Some((started, flags & KERNEL_THREAD != 0))
    }

    /// The GPU devices that it holds open, and how many files it has open in all.
    ///
    /// # Errors
    /// It is gone, or this process may not look (CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH).
    pub fn open_devices(&self, pid: u32) -> std::io::Result<(BTreeSet<String>, usize)> {
        let mut held = BTreeSet::new();
        let mut count: usize = 0;
        for entry in fs::read_dir(self.of_pid(pid, "fd"))? {
            let path = entry?.path();
            count = count.saturating_add(1);
            let target = match fs::read_link(&path) {
                Ok(target) => target,
                // Closed since the directory was read.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let target = target.to_string_lossy();
            if let Some(name) = self.named(&target) {
                held.insert(name);
            } else if target.starts_with('/') || target.starts_with('(') {
                held.extend(self.numbered(&path));
            }
        }
        Ok((held, count))
    }

    /// A device by its path, without its folder.
    fn named(&self, path: &str) -> Option<String> {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        path.starts_with(&self.devices)
            .then(|| path.rsplit('/').next().unwrap_or(path).to_owned())
    }

    /// A device by its number, whatever its path: a node can be made anywhere.
    fn numbered(&self, link: &Path) -> Option<String> {
        // Only facts that the kernel knows without asking a server: a file system that hangs does not hang us.
        let stat = rustix::fs::statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
        let mode = rustix::fs::RawMode::from(stat.stx_mode);
        if FileType::from_raw_mode(mode) != FileType::CharacterDevice {
            return None;
        }
        let driver = self.majors.get(&stat.stx_rdev_major)?;
        Some(match stat.stx_rdev_minor {
            255 if driver == "nvidia" => String::from("nvidiactl"),
            254 if driver == "nvidia" => String::from("nvidia-modeset"),
            minor if driver == "nvidia" => format!("nvidia{minor}"),
            _ => driver.clone(),
        })
    }

    /// The agent's files that it has mapped, devices that it has mapped and perhaps closed, and the number of its
    /// mappings.
    ///
    /// # Errors
    /// As [`Self::open_devices`].
    pub fn mapped(&self, facts: &mut ProcessFacts, ours: &Ours) -> std::io::Result<usize> {
        let file = fs::File::open(self.of_pid(facts.pid, "maps"))?;
        let mut lines = BufReader::with_capacity(64 << 10, file);
        let mut line = Vec::new();
        let mut count: usize = 0;
        loop {
            line.clear();
            if lines.read_until(b'\n', &mut line)? == 0 {
                return Ok(count);
            }
            count = count.saturating_add(1);
            if let Some((id, path)) = mapping(&String::from_utf8_lossy(&line)) {
                self.mapping(facts, ours, id, path);
            }
        }
    }

    fn mapping(&self, facts: &mut ProcessFacts, ours: &Ours, id: FileId, path: &str) {
        if let Some(version) = ours.libraries.get(&id) {
            facts.library = Library::Installed(version.clone());
        } else if let Some(dir) = ours.limits.get(&id) {
            facts.limits = Some(dir.clone());
        } else if let Some(dir) = ours.regions.get(&id) {
            facts.region = Some(dir.clone());
        } else if facts.library == Library::None && is_library(path) {
            facts.library = Library::Foreign;
        } else if path.ends_with("/limits") || path.ends_with("/limits (deleted)") {
            facts.other_limits = true;
        } else if let Some(name) = self.named(path) {
            facts.devices.insert(name);
        }
    }

    /// Fills in the process's identity and the container that it belongs to.
    pub fn introduce(&self, facts: &mut ProcessFacts, ours: &Ours) {
        let program = fs::read_to_string(self.of_pid(facts.pid, "comm")).unwrap_or_default();
        facts.program = plain(program.trim_end());
        let cgroup = fs::read_to_string(self.of_pid(facts.pid, "cgroup")).unwrap_or_default();
        facts.place = cgroup::of(&cgroup);
        facts.sees = self
            .limits_seen(facts.pid)
            .and_then(|id| ours.limits.get(&id).cloned());
    }

    /// The file at `/etc/vgpu/limits` as the process sees it. The way to it ends at the process's root, whatever links
    /// lie there.
    fn limits_seen(&self, pid: u32) -> Option<FileId> {
        let root = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root =
            rustix::fs::open(self.of_pid(pid, "root"), root, rustix::fs::Mode::empty()).ok()?;
        let found = rustix::fs::openat2(
            &root,
            "etc/vgpu/limits",
            OFlags::PATH | OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        );
        let file = found.ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        Some(FileId {
            device: (
                rustix::fs::major(stat.st_dev),
                rustix::fs::minor(stat.st_dev),
            ),
            inode: stat.st_ino,
        })
    }

    /// Path of the program's file, as the process's own root has it.
    #[must_use]
    pub fn executable(&self, pid: u32) -> Option<PathBuf> {
        fs::read_link(self.of_pid(pid, "exe")).ok()
    }
}

fn is_library(path: &str) -> bool {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.ends_with("/libvgpu.so")
}

/// A line of `maps`: which file it is of, and the path that the kernel prints.
fn mapping(line: &str) -> Option<(FileId, &str)> {
    // address perms offset major:minor inode path
    let mut fields = line.trim_end().splitn(6, ' ');
    let device = fields.nth(3)?;
    let inode: u64 = fields.next()?.parse().ok()?;
    if inode == 0 {
        return None;
    }
    let (major, minor) = device.split_once(':')?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let device = (number(major)?, number(minor)?);
    let path = fields.next().unwrap_or_default().trim_start();
    Some((FileId { device, inode }, path))
}

/// The identity of the file at this path; `None` if there is none. A link counts as none.
#[must_use]
pub fn file_id(path: &Path) -> Option<FileId> {
    let stat = fs::symlink_metadata(path).ok()?;
    stat.is_file().then(|| FileId {
        device: (rustix::fs::major(stat.dev()), rustix::fs::minor(stat.dev())),
        inode: stat.ino(),
    })
}

/// A name that a process chose, without what a terminal would act on.
fn plain(name: &str) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    name.chars().take(64).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_line_names_device_and_inode() {
        let line = "7f3c5a000000-7f3c5a200000 r-xp 00000000 fd:1b 131085                     /usr/local/vgpu/my lib vgpu.so\n";
        let (id, path) = mapping(line).unwrap();
        assert_eq!(id.device, (0xfd, 0x1b));
        assert_eq!(id.inode, 131_085);
        assert_eq!(path, "/usr/local/vgpu/my lib vgpu.so");
        assert_eq!(
            mapping("7ffc-7ffd rw-p 00000000 00:00 0      [stack]\n"),
            None
        );
        assert_eq!(mapping("nonsense"), None);
        assert_eq!(mapping(""), None);
    }

    #[test]
    fn own_process_is_read_with_its_open_devices() {
        let directory = tempfile::tempdir().unwrap();
        let device = directory.path().join("nvidia3");
        fs::write(&device, "").unwrap();
        let held = fs::File::open(&device).unwrap();
        let prefix = directory
            .path()
            .join("nvidia")
            .to_string_lossy()
            .into_owned();
        let eyes = Eyes::of(PathBuf::from("/proc"), prefix);
        let pid = std::process::id();

        let (devices, files) = eyes.open_devices(pid).unwrap();
        assert!(files > 3);
        assert_eq!(devices.into_iter().collect::<Vec<_>>(), ["nvidia3"]);
        drop(held);
        assert!(eyes.open_devices(pid).unwrap().0.is_empty());
        assert!(eyes.pids().unwrap().contains(&pid));
        assert!(!eyes.begun(pid).unwrap().1);

        // Its own program is one of its mappings.
        let program = eyes.executable(pid).unwrap();
        let mut ours = Ours::default();
        ours.libraries
            .insert(file_id(&program).unwrap(), "0.1".to_owned());
        let mut facts = ProcessFacts {
            pid,
            ..ProcessFacts::default()
        };
        assert!(eyes.mapped(&mut facts, &ours).unwrap() > 3);
        assert_eq!(facts.library, Library::Installed("0.1".to_owned()));
    }
}
