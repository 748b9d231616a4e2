//! The driver's own memory limits, by control group (`nvmlDeviceSetMemoryLimits_v1`): all device memory of a group's
//! processes counts, contexts too. Managed memory does not: the driver counts it as the system's.
//!
//! Drivers differ. The usual one keeps the limits itself (NVIDIA's "misc"): the nearest group with a limit counts, and
//! limits do not nest. The contrary one hands them to the kernel's controller ("dmem"): every limit from the process's
//! own group upwards holds, and only the own group's is reported.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Board, BoardState, MAX_GROUPS, Member, ProcessMemory};
use crate::config::MAX_GPUS;
use crate::groups::Groups;

/// No limit: `NVML_DEVICE_MEMORY_LIMIT_MAX`.
pub const NO_LIMIT: u64 = u64::MAX;

/// A control group's limits on a GPU, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct GroupLimit {
    /// Memory that other groups' needs take nothing of.
    pub soft: u64,
    /// Memory that the group cannot pass, or [`NO_LIMIT`].
    pub hard: u64,
}

impl GroupLimit {
    pub(super) const NONE: Self = Self {
        soft: 0,
        hard: NO_LIMIT,
    };
}

/// A control group with limits.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Group {
    /// The number of its directory; 0 is empty.
    number: u64,
    directory: Directory,
    limits: [GroupLimit; MAX_GPUS],
}

impl Group {
    pub(super) const EMPTY: Self = Self {
        number: 0,
        directory: Directory::UNKNOWN,
        limits: [GroupLimit::NONE; MAX_GPUS],
    };

    /// Whether its directory was removed, and its limits with it.
    fn is_gone(&self, number_of: impl Fn(&Path) -> Option<u64>) -> bool {
        let directory = self.directory.path();
        self.number != 0 && directory.is_some_and(|path| number_of(path) != Some(self.number))
    }
}

/// The path of a control group's directory, ended by zeros. A longer path is not kept, and its group counts as there.
#[derive(Clone, Copy)]
#[repr(C)]
struct Directory([u8; 512]);

impl Directory {
    const UNKNOWN: Self = Self([0; 512]);

    fn of(path: &Path) -> Self {
        let mut directory = Self::UNKNOWN;
        let bytes = path.as_os_str().as_bytes();
        if bytes.len() < directory.0.len() {
            directory.0[..bytes.len()].copy_from_slice(bytes);
        }
        directory
    }

    fn path(&self) -> Option<&Path> {
        let length = self.0.iter().position(|byte| *byte == 0)?;
        let bytes = self.0.get(..length).filter(|bytes| !bytes.is_empty())?;
        Some(Path::new(std::ffi::OsStr::from_bytes(bytes)))
    }
}

/// The number of a directory that is there.
fn number_of(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|data| data.ino())
}

impl BoardState {
    fn limit_of(&self, gpu: usize, number: u64) -> GroupLimit {
        let group = self.groups.iter().find(|group| group.number == number);
        group.map_or(GroupLimit::NONE, |group| group.limits[gpu])
    }

    /// The numbers and hard limits of the groups that bound a process which is in `groups`.
    fn holding(&self, gpu: usize, groups: &Groups, nests: bool) -> Vec<(u64, u64)> {
        let limited = groups.numbers().filter_map(|number| {
            let hard = self.limit_of(gpu, number).hard;
            (hard != NO_LIMIT).then_some((number, hard))
        });
        limited.take(if nests { usize::MAX } else { 1 }).collect()
    }

    /// Bytes that the limit of a group counts: those of its processes, and of the groups below that it holds for.
    fn group_used(&self, gpu: usize, number: u64, nests: bool) -> u64 {
        self.used_by(gpu, |process: &ProcessMemory| {
            let holding = self.holding(gpu, &process.groups, nests);
            let is_own = process.groups.lowest() == number;
            is_own || holding.iter().any(|&(holds, _)| holds == number)
        })
    }

    /// Whether every limit that holds for a process has room for so much more.
    pub(super) fn groups_have_room(
        &self,
        gpu: usize,
        index: usize,
        bytes: u64,
        nests: bool,
    ) -> bool {
        // Without any limit nothing has to be counted.
        if self.groups.iter().all(|group| group.number == 0) {
            return true;
        }
        let groups = self.processes[index].groups;
        let mut holding = self.holding(gpu, &groups, nests).into_iter();
        holding.all(|(number, hard)| {
            let used = self.group_used(gpu, number, nests);
            used.saturating_add(bytes) <= hard
        })
    }
}

impl Board {
    /// Sets the limits on a GPU of the control group with this directory. Answers whether the board had room for one
    /// more group. A full board first forgets the groups whose directories were removed.
    #[must_use]
    pub fn limit_group(
        &self,
        gpu: usize,
        groups: &Groups,
        directory: &Path,
        limit: GroupLimit,
    ) -> bool {
        let mut state = self.lock();
        let number = groups.lowest();
        let known = |group: &&mut Group| group.number == number;
        if let Some(group) = state.groups.iter_mut().find(known) {
            group.limits[gpu] = limit;
            if group.limits.iter().all(|limit| *limit == GroupLimit::NONE) {
                *group = Group::EMPTY;
            }
            return true;
        }
        if limit == GroupLimit::NONE {
            return true;
        }
        let free = |state: &BoardState| (0..MAX_GROUPS).find(|&at| state.groups[at].number == 0);
        if free(&state).is_none() {
            let gone = state.groups.iter_mut().filter(|it| it.is_gone(number_of));
            gone.for_each(|group| *group = Group::EMPTY);
        }
        let Some(free) = free(&state) else {
            return false;
        };
        state.groups[free].number = number;
        state.groups[free].directory = Directory::of(directory);
        state.groups[free].limits[gpu] = limit;
        true
    }

    /// A control group's limits on a GPU, and the memory that they count. A usual driver without a limit on the group
    /// itself answers with the nearest one above.
    #[must_use]
    pub fn group_limit(&self, gpu: usize, groups: &Groups) -> (GroupLimit, u64) {
        let mut state = self.lock();
        self.look(&mut state);
        let nests = self.is_contrary();
        let number = self.reported(&state, gpu, groups);
        let used = state.group_used(gpu, number, nests);
        (state.limit_of(gpu, number), used)
    }

    /// The number of the group that NVML and `cuMemGetInfo` report to a process which is in `groups`.
    fn reported(&self, state: &BoardState, gpu: usize, groups: &Groups) -> u64 {
        let own = groups.lowest();
        if self.is_contrary() {
            return own;
        }
        let holding = state.holding(gpu, groups, false);
        holding.first().map_or(own, |&(number, _)| number)
    }

    /// The size of a GPU as processes of these groups see it, and how much of it is used: the limit and the group's
    /// use, if a limit is reported to them.
    #[must_use]
    pub fn seen_from(&self, gpu: usize, groups: &Groups) -> Option<(u64, u64)> {
        let total = self.total_bytes(gpu);
        let (limit, used) = self.group_limit(gpu, groups);
        (limit.hard < total).then_some((limit.hard, used))
    }

    /// The same for a process of the board.
    #[must_use]
    pub fn seen_by(&self, gpu: usize, member: Member) -> Option<(u64, u64)> {
        let groups = self.lock().own(member).map(|process| process.groups)?;
        self.seen_from(gpu, &groups)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Kind, MemoryRefused};
    use super::*;
    use crate::Config;

    const MIB: u64 = 1 << 20;

    fn board(directory: &Path, contrary: bool) -> Board {
        let config = Config {
            memory_bytes: vec![1 << 30],
            contrary,
            ..Config::default()
        };
        Board::create(&directory.join("board"), &config).unwrap()
    }

    /// A group of this number below those of the other numbers.
    fn groups(numbers: &[u64]) -> Groups {
        Groups::of_numbers(numbers)
    }

    /// Sets the limit of the control group that has these numbers. The test names no directory of the group.
    fn limit(board: &Board, numbers: &[u64], limit: GroupLimit) -> bool {
        board.limit_group(0, &groups(numbers), Path::new(""), limit)
    }

    fn hard(mib: u64) -> GroupLimit {
        GroupLimit {
            soft: 0,
            hard: mib * MIB,
        }
    }

    #[test]
    fn a_hard_limit_counts_contexts_and_leaves_managed_memory_out() {
        let directory = tempfile::tempdir().unwrap();
        let board = board(directory.path(), false);
        let me = board.join_groups(groups(&[7, 1])).unwrap();
        assert!(limit(&board, &[7, 1], hard(100)));

        board.take(me, 0, 60 * MIB, Kind::Overhead).unwrap();
        let more = board.take(me, 0, 41 * MIB, Kind::Alloc);
        assert_eq!(more, Err(MemoryRefused::NoMemory));
        board.take(me, 0, 500 * MIB, Kind::Managed).unwrap();
        board.take(me, 0, 40 * MIB, Kind::Alloc).unwrap();

        assert_eq!(board.seen_by(0, me), Some((100 * MIB, 100 * MIB)));
        assert_eq!(board.used_bytes(0), 600 * MIB);
        board.give(me, 0, 500 * MIB, Kind::Managed);
        assert_eq!(board.group_limit(0, &groups(&[7, 1])).1, 100 * MIB);
        // Another group has the rest of the GPU.
        let other = board.join_groups(groups(&[8, 1])).unwrap();
        board.take(other, 0, 900 * MIB, Kind::Alloc).unwrap();
        assert_eq!(board.seen_by(0, other), None);
    }

    #[test]
    fn the_nearest_limit_counts_on_the_usual_driver_and_all_on_the_contrary() {
        for contrary in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let board = board(directory.path(), contrary);
            let me = board.join_groups(groups(&[7, 1])).unwrap();
            assert!(limit(&board, &[1], hard(100)));

            assert_eq!(
                board.take(me, 0, 101 * MIB, Kind::Alloc),
                Err(MemoryRefused::NoMemory)
            );
            // A parent's limit is not what a leaf of the kernel's controller reports.
            let seen = board.seen_by(0, me);
            assert_eq!(seen.is_none(), contrary);

            assert!(limit(&board, &[7, 1], hard(200)));
            let nested = board.take(me, 0, 101 * MIB, Kind::Alloc);
            assert_eq!(nested.is_err(), contrary);
            assert!(limit(&board, &[1], GroupLimit::NONE));
            assert!(limit(&board, &[7, 1], GroupLimit::NONE));
            board.take(me, 0, 500 * MIB, Kind::Alloc).unwrap();
        }
    }

    #[test]
    fn limits_of_a_removed_group_leave_their_place_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let board = board(directory.path(), false);
        let make = |name: usize| {
            let path = directory.path().join(name.to_string());
            fs::create_dir(&path).unwrap();
            let groups = groups(&[number_of(&path).unwrap()]);
            let has_room = board.limit_group(0, &groups, &path, hard(100));
            (path, groups, has_room)
        };
        let made: Vec<_> = (0..MAX_GROUPS).map(make).collect();
        assert!(made.iter().all(|(_, _, has_room)| *has_room));
        assert!(!make(MAX_GROUPS).2, "all of them are there");

        let kept = make(MAX_GROUPS + 1);
        assert!(!kept.2);
        for (path, _, _) in &made[..2] {
            fs::remove_dir(path).unwrap();
        }
        // Another directory may get the number of a removed one, so this one has been there before.
        assert!(board.limit_group(0, &kept.1, &kept.0, hard(50)));

        assert_eq!(board.group_limit(0, &kept.1).0, hard(50));
        assert_eq!(board.group_limit(0, &made[0].1).0, GroupLimit::NONE);
        assert_eq!(board.group_limit(0, &made[2].1).0, hard(100));
    }

    #[test]
    fn group_is_gone_with_its_directory() {
        let group = |path: &Path| Group {
            number: 7,
            directory: Directory::of(path),
            ..Group::EMPTY
        };
        let known = Path::new("/sys/fs/cgroup/a");
        assert!(!group(known).is_gone(|path| (path == known).then_some(7)));
        assert!(group(known).is_gone(|_| None));
        assert!(
            group(known).is_gone(|_| Some(8)),
            "a new directory of its name"
        );
        // The path is not known, so nothing is known of the directory.
        let long = format!("/{}", "a".repeat(511));
        for path in ["", &long] {
            assert!(!group(Path::new(path)).is_gone(|_| None), "{path}");
        }
        assert!(group(Path::new(&long[..511])).is_gone(|_| None));
        assert!(!Group::EMPTY.is_gone(|_| None));
    }
}
