//! The control groups of a process, by the inodes of their directories: the driver's memory limits belong to them. It
//! knows nothing of memory.
//!
//! Control groups of version 2 only, as the driver's limits ask for. A test that may not make one gives
//! `VGPU_SIM_CGROUP`, a directory of any kind that stands for the process's control group.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Control groups above each other that are told apart; what is further up counts as no group.
const DEPTH: usize = 8;

/// A control group and those above it, by number, the lowest first; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Groups([u64; DEPTH]);

impl Groups {
    /// Those of this process.
    #[must_use]
    pub fn own() -> Self {
        own_path().map_or_else(Self::default, |path| Self::from(&path))
    }

    /// Those of the control group with this directory; `None` if it is no control group.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let groups = (path.is_absolute() && is_group(path)).then(|| Self::from(path))?;
        (groups.lowest() != 0).then_some(groups)
    }

    /// Those of these numbers.
    #[cfg(test)]
    pub(crate) fn of_numbers(numbers: &[u64]) -> Self {
        let mut groups = [0; DEPTH];
        groups[..numbers.len()].copy_from_slice(numbers);
        Self(groups)
    }

    fn from(path: &Path) -> Self {
        let mut groups = [0; DEPTH];
        let above = path.ancestors().take_while(|path| is_group(path));
        for (number, path) in groups.iter_mut().zip(above) {
            *number = fs::metadata(path).map_or(0, |data| data.ino());
        }
        Self(groups)
    }

    /// The number of the group itself.
    #[must_use]
    pub fn lowest(&self) -> u64 {
        self.0[0]
    }

    /// The numbers of the group and of those above it.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.0.into_iter().take_while(|&number| number != 0)
    }
}

fn set() -> Option<PathBuf> {
    let path = std::env::var_os("VGPU_SIM_CGROUP")?;
    (!path.is_empty()).then(|| PathBuf::from(path))
}

/// Whether a directory is a control group, or may stand for one.
fn is_group(path: &Path) -> bool {
    const CGROUP2: i64 = 0x6367_7270;
    if set().is_some() {
        return path.is_dir();
    }
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    let mut about = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the path ends in a zero, and the structure is a local one.
    if unsafe { libc::statfs(path.as_ptr(), about.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call has filled it.
    let about = unsafe { about.assume_init() };
    about.f_type == CGROUP2
}

fn own_path() -> Option<PathBuf> {
    if let Some(path) = set() {
        return Some(path);
    }
    let below = path_in(&fs::read_to_string("/proc/self/cgroup").ok()?)?;
    let mount = mount_in(&fs::read_to_string("/proc/self/mountinfo").ok()?)?;
    Some(mount.join(below.trim_start_matches('/')))
}

/// The path of the control group of version 2 in the text of `/proc/PID/cgroup`.
fn path_in(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(line.trim_end_matches(" (deleted)").to_owned())
}

/// Where the control groups of version 2 are mounted, by the text of `/proc/PID/mountinfo`.
fn mount_in(text: &str) -> Option<PathBuf> {
    text.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ")
            .then(|| PathBuf::from(place.split(' ').nth(4).unwrap_or("/")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_version_2_is_found_beside_those_of_version_1() {
        let both = "4:memory:/x\n0::/user.slice/a\n";

        assert_eq!(path_in(both).as_deref(), Some("/user.slice/a"));
        assert_eq!(path_in("4:memory:/x\n"), None);
        let mounts = "30 20 0:9 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      31 20 0:10 / /sys/fs/cgroup/unified rw,relatime shared:1 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            mount_in(mounts),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
    }

    #[test]
    fn a_plain_directory_is_no_control_group() {
        assert_eq!(Groups::of(&std::env::temp_dir()), None);
        assert_eq!(Groups::of(Path::new("relative")), None);
    }
}
