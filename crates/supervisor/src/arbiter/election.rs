//! Elects one of several processes as the arbiter. A file has a few seats: each is a byte that one process
//! can lock, and a word in which that process writes the time. The kernel frees a seat when its holder dies.
//! A process that was stopped keeps its seat, and the holder of the next seat serves as long as it is silent.
//!
//! Never waits: each look is a few system calls, and says at once whether this process leads.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open, openat};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{Uid, UnlinkatFlags, unlinkat};

use crate::regular;

/// The file's name in its directory.
const NAME: &str = ".arbiter";
/// Seats; a process beyond them looks on.
const SEATS: usize = 8;
/// A holder that has not written the time for this long does not serve at the moment.
const SILENT_NS: u64 = 180_000_000;

/// A candidate for the seats of one file.
#[derive(Debug)]
pub(super) struct SeatCandidate {
    file: File,
    held: Option<usize>,
    kind: ContenderKind,
}

/// The kinds of candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContenderKind {
    /// The node agent: the first seat is kept for it, so that it goes before all others.
    Agent,
    /// A runner.
    Runner,
}

impl SeatCandidate {
    /// Opens the file in a directory, making it where there is none.
    pub(super) fn open(directory: &Path, kind: ContenderKind) -> Result<Self, Errno> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = open(directory, flags, Mode::empty())?;
        let file = match Self::at(&dir) {
            Err(Errno::EPERM) if Uid::effective().is_root() => {
                // Another user put the file there first: on a shared board any user may.
                unlinkat(&dir, NAME, UnlinkatFlags::NoRemoveDir)?;
                Self::at(&dir)
            }
            file => file,
        };
        Ok(Self {
            file: file?,
            held: None,
            kind,
        })
    }

    fn at(dir: &OwnedFd) -> Result<File, Errno> {
        let flags = OFlag::O_RDWR
            | OFlag::O_CREAT
            | OFlag::O_NOFOLLOW
            | OFlag::O_NONBLOCK
            | OFlag::O_CLOEXEC;
        // Every user may read which process leads.
        let mode = Mode::from_bits_truncate(0o644);
        let file = File::from(openat(dir, NAME, flags, mode)?);
        if is_trusted(&file) {
            Ok(file)
        } else {
            Err(Errno::EPERM)
        }
    }

    /// Writes the time, and returns whether this process leads: it has a seat, and every seat before it is
    /// free or silent.
    pub(super) fn tick(&mut self, now_ns: u64) -> bool {
        let said = said(&self.file);
        let speaks = |seat: usize| {
            said.get(seat)
                .is_some_and(|at| now_ns.saturating_sub(*at) < SILENT_NS)
                && is_held(&self.file, seat)
        };
        if let Some(held) = self.held {
            if (0..held).any(speaks) {
                self.leave();
                return false;
            }
            self.say(held, now_ns);
            return true;
        }
        for seat in 0..SEATS {
            let may_sit = seat > 0 || self.kind == ContenderKind::Agent;
            if may_sit && take(&self.file, seat) {
                self.held = Some(seat);
                self.say(seat, now_ns);
                return true;
            }
            if speaks(seat) {
                return false;
            }
        }
        false
    }

    fn say(&self, seat: usize, now_ns: u64) {
        // A disk that is full lets others think that we are silent; then they serve too.
        self.file
            .write_all_at(&now_ns.to_ne_bytes(), seat as u64 * 8)
            .ok();
    }

    /// Gives the seat free.
    pub(super) fn leave(&mut self) {
        if let Some(seat) = self.held.take() {
            let lock = byte(seat, nix::libc::F_UNLCK);
            fcntl(&self.file, FcntlArg::F_OFD_SETLK(&lock)).ok();
        }
    }
}

/// Closing the file would not always give the seat free: a process that was forked, and that has not begun its program yet,
/// holds the same open file.
impl Drop for SeatCandidate {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Whether a process leads by the file in this directory, if this process trusts the file: it belongs to root
/// or to the same user.
pub(super) fn is_taken(directory: &Path, now_ns: u64) -> bool {
    let Ok(file) = regular::open(&directory.join(NAME)) else {
        return false;
    };
    let said = said(&file);
    let speaks =
        |(seat, at): (usize, &u64)| now_ns.saturating_sub(*at) < SILENT_NS && is_held(&file, seat);
    is_trusted(&file) && said.iter().enumerate().any(speaks)
}

/// Only root and this user can write it.
fn is_trusted(file: &File) -> bool {
    fstat(file).is_ok_and(|stat| {
        let regular = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
        let ours = stat.st_uid == 0 || stat.st_uid == Uid::effective().as_raw();
        regular && ours && stat.st_mode & 0o022 == 0
    })
}

/// When the holder of each seat last spoke.
fn said(file: &File) -> [u64; SEATS] {
    let mut bytes = [[0; 8]; SEATS];
    // A file that has not been written is shorter; the rest stays 0.
    file.read_at(bytes.as_flattened_mut(), 0).ok();
    bytes.map(u64::from_ne_bytes)
}

fn take(file: &File, seat: usize) -> bool {
    fcntl(file, FcntlArg::F_OFD_SETLK(&byte(seat, nix::libc::F_WRLCK))).is_ok()
}

fn is_held(file: &File, seat: usize) -> bool {
    let mut lock = byte(seat, nix::libc::F_WRLCK);
    // On a file system without such locks the time that the holder writes is trusted.
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)).is_err()
        || lock.l_type != lock_type(nix::libc::F_UNLCK)
}

fn byte(seat: usize, of: i32) -> nix::libc::flock {
    nix::libc::flock {
        l_type: lock_type(of),
        l_whence: 0,
        l_start: i64::try_from(seat).unwrap_or(0),
        l_len: 1,
        l_pid: 0,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "lock types are 0, 1 and 2")]
fn lock_type(of: i32) -> i16 {
    of as i16
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn next_candidate_leads_when_the_leader_dies() {
        let dir = tempfile::tempdir().unwrap();
        let mut one = SeatCandidate::open(dir.path(), ContenderKind::Runner).unwrap();
        let mut two = SeatCandidate::open(dir.path(), ContenderKind::Runner).unwrap();
        assert!(one.tick(1000 * MS));
        assert!(!two.tick(1000 * MS));
        assert!(is_taken(dir.path(), 1000 * MS));

        drop(one);

        assert!(!is_taken(dir.path(), 1001 * MS));
        assert!(two.tick(1001 * MS));
    }

    #[test]
    fn stopped_leader_is_replaced_until_it_resumes() {
        let dir = tempfile::tempdir().unwrap();
        let mut one = SeatCandidate::open(dir.path(), ContenderKind::Runner).unwrap();
        let mut two = SeatCandidate::open(dir.path(), ContenderKind::Runner).unwrap();
        let mut three = SeatCandidate::open(dir.path(), ContenderKind::Runner).unwrap();
        assert!(one.tick(1000 * MS));

        assert!(!two.tick(1100 * MS));
        assert!(two.tick(1200 * MS));
        assert!(!three.tick(1200 * MS));
        assert!(is_taken(dir.path(), 1200 * MS));
        assert!(one.tick(1300 * MS), "it has the first seat still");

        assert!(!two.tick(1310 * MS));
        assert!(!three.tick(1310 * MS));
        drop(one);
        assert!(three.tick(1320 * MS));
        assert!(!two.tick(1320 * MS));
    }

    #[test]
    fn agent_leads_before_earlier_runners() {
        let dir = tempfile::tempdir().unwrap();
        let mut runner = SeatCandidate::open(dir.path(), ContenderKind::Runner).unwrap();
        assert!(runner.tick(1000 * MS));
        let mut agent = SeatCandidate::open(dir.path(), ContenderKind::Agent).unwrap();

        assert!(agent.tick(1010 * MS));
        assert!(!runner.tick(1050 * MS));
        drop(agent);

        assert!(runner.tick(1100 * MS));
    }

    #[test]
    fn file_writable_by_others_is_not_trusted() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mut one = SeatCandidate::open(dir.path(), ContenderKind::Runner).unwrap();
        assert!(one.tick(MS));
        assert!(is_taken(dir.path(), MS));

        let open = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(dir.path().join(NAME), open).unwrap();

        assert!(!is_taken(dir.path(), MS));
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(dir.path().join(NAME), elsewhere.path().join(NAME)).unwrap();
        assert!(SeatCandidate::open(elsewhere.path(), ContenderKind::Runner).is_err());
        assert!(!is_taken(elsewhere.path(), MS));
    }
}
