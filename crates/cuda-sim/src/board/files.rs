//! Open descriptors, which keep memory beyond a process's life: a process's own descriptor, which its forked children
//! have too, and those of memory exported as a dma-buf. Each is locked for as long as any copy of it is open
//! anywhere, so that others see it by trying the lock.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Board, BoardState, SharedId};

/// Our descriptors are high numbers, out of the way of programs that rely on low ones.
const LEAST_DESCRIPTOR: i32 = 512;

/// The directory beside a board.
///
/// # Errors
/// When it cannot be made.
pub(super) fn directory(board: &Path) -> io::Result<PathBuf> {
    let directory = name_of(board);
    if !directory.is_dir() {
        fs::create_dir_all(&directory)?;
        // Best effort: other users' programs share the board.
        drop(fs::set_permissions(
            &directory,
            fs::Permissions::from_mode(0o1777),
        ));
    }
    Ok(directory)
}

fn name_of(board: &Path) -> PathBuf {
    let mut name = board.to_owned().into_os_string();
    name.push(".d");
    PathBuf::from(name)
}

fn process_file(board: &Path, generation: u64) -> PathBuf {
    name_of(board).join(format!("process-{generation}"))
}

fn try_lock(file: &File) -> bool {
    // SAFETY: a call on a descriptor that is open.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// Opens this process's descriptor, for as long as it or a forked child of it lives. Best effort: without it the
/// process's own life decides.
pub(super) fn stand(board: &Path, generation: u64) {
    if directory(board).is_err() {
        return;
    }
    let made = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o666)
        .open(process_file(board, generation));
    let Ok(file) = made else { return };
    if !try_lock(&file) {
        return;
    }
    // SAFETY: a copy of an open descriptor, closed by exec as the first one is.
    let high = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LEAST_DESCRIPTOR) };
    if high < 0 {
        // It stays open under the number that it has.
        let _open_for_life = file.into_raw_fd();
    }
}

/// Whether a process's descriptor is open somewhere.
pub(super) fn stands(board: &Path, generation: u64) -> bool {
    is_open(&process_file(board, generation))
}

/// A process is gone, and its file with it.
pub(super) fn leave(board: &Path, generation: u64) {
    // It may never have had one.
    drop(fs::remove_file(process_file(board, generation)));
}

/// Whether a process has the file open and locked.
fn is_open(file: &Path) -> bool {
    let Ok(file) = OpenOptions::new().read(true).write(true).open(file) else {
        return false;
    };
    !try_lock(&file)
}

impl Board {
    /// The file with the contents of memory that processes hold together.
    #[must_use]
    pub fn shared_file(&self, id: SharedId) -> PathBuf {
        name_of(self.path()).join(format!("memory-{}", id.0))
    }

    /// A descriptor that keeps shared memory until its last copy is closed, even after all processes release it. The
    /// file must exist.
    ///
    /// # Errors
    /// The memory is gone, or the file cannot be opened.
    pub fn export(&self, id: SharedId) -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.shared_file(id))?;
        // Descriptors of several exports are locked together.
        // SAFETY: a call on a descriptor that is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut state = self.lock();
        let shared = state
            .shared_mut(id)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        if shared.exported == 0 {
            shared.exported = 1;
            state.exports += 1;
        }
        Ok(file)
    }

    /// A number that nothing else on the board has.
    #[must_use]
    pub fn number(&self) -> u64 {
        let mut state = self.lock();
        state.next_shared += 1;
        state.next_shared - 1
    }

    /// A descriptor that says a number by its place in a file that is the same for all numbers, as descriptors of
    /// the real device node are.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn token(&self, number: u64) -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o666)
            .open(directory(self.path())?.join("device"))?;
        seek(&file, libc::SEEK_SET, number)?;
        Ok(file)
    }

    /// The number in a descriptor of [`Self::token`].
    ///
    /// # Errors
    /// When the descriptor is none.
    pub fn token_number(&self, fd: i32) -> io::Result<u64> {
        // SAFETY: looked at and left open; a number that is no descriptor fails.
        let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(fd.max(0)) });
        seek(&file, libc::SEEK_CUR, 0)
    }
}

fn seek(file: &File, from: i32, offset: u64) -> io::Result<u64> {
    // SAFETY: a call on a descriptor that is open.
    let at = unsafe { libc::lseek(file.as_raw_fd(), offset as libc::off_t, from) };
    if at < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(at as u64)
}

impl BoardState {
    /// Gives back shared memory that only descriptors had kept, once they are closed.
    pub(super) fn collect(&mut self, board: &Path) {
        if self.exports == 0 {
            return;
        }
        for slot in 0..self.shared().len() {
            let shared = &mut self.shared[slot];
            let is_held = shared.holders.iter().any(|holder| holder.process != 0);
            if shared.id == 0 || shared.exported == 0 || is_held {
                continue;
            }
            let file = name_of(board).join(format!("memory-{}", shared.id));
            if is_open(&file) {
                continue;
            }
            drop(fs::remove_file(file));
            shared.exported = 0;
            let id = SharedId(shared.id);
            self.exports = self.exports.saturating_sub(1);
            self.drop_if_unheld(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;
    use crate::Config;

    fn board() -> (tempfile::TempDir, Board) {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            memory_bytes: vec![1 << 30],
            ..Config::default()
        };
        let board = Board::create(&directory.path().join("board"), &config).unwrap();
        (directory, board)
    }

    #[test]
    fn exported_memory_stays_until_the_last_descriptor_is_closed() {
        let (_directory, board) = board();
        let me = board.join().unwrap();
        board.take(me, 0, 4096, Kind::Alloc).unwrap();
        let id = board.share(me, 0, 4096).unwrap();
        fs::write(board.shared_file(id), "").unwrap();
        let one = board.export(id).unwrap();
        let other = one.try_clone().unwrap();

        board.let_go(me, id);
        drop(one);
        assert_eq!(board.used_bytes(0), 4096);

        drop(other);
        // A child that another test has forked meanwhile may have a copy until it ends.
        while board.used_bytes(0) != 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_token_says_its_number_and_has_the_inode_of_every_other() {
        use std::os::unix::fs::MetadataExt;
        let (_directory, board) = board();
        let (one, other) = (board.token(7).unwrap(), board.token(9).unwrap());

        assert_eq!(board.token_number(one.as_raw_fd()).unwrap(), 7);
        assert_eq!(board.token_number(other.as_raw_fd()).unwrap(), 9);
        assert_eq!(
            one.metadata().unwrap().ino(),
            other.metadata().unwrap().ino()
        );
    }

    #[test]
    fn a_forked_child_keeps_the_memory_of_its_dead_parent() {
        let (_directory, board) = board();
        // SAFETY: the child uses the board alone, and is killed.
        let parent = unsafe { libc::fork() };
        if parent == 0 {
            if let Ok(me) = board.join() {
                board.take(me, 0, 4096, Kind::Alloc).ok();
            }
            // SAFETY: the child leads a group of its own.
            unsafe { libc::setpgid(0, 0) };
            // SAFETY: the grandchild only waits, as the child does.
            unsafe { libc::fork() };
            loop {
                // SAFETY: both wait until they are killed.
                unsafe { libc::pause() };
            }
        }
        // SAFETY: our own child; the group may be made from either side.
        unsafe { libc::setpgid(parent, parent) };
        while board.used_bytes(0) == 0 {
            std::thread::yield_now();
        }
        let children = format!("/proc/{parent}/task/{parent}/children");
        while fs::read_to_string(&children).unwrap_or_default().is_empty() {
            std::thread::yield_now();
        }
        // SAFETY: our own child, and then what is left of its group.
        unsafe { libc::kill(parent, libc::SIGKILL) };
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(parent, std::ptr::null_mut(), 0) };
        assert_eq!(board.used_bytes(0), 4096);

        // SAFETY: the group that the child made.
        unsafe { libc::kill(-parent, libc::SIGKILL) };
        while board.used_bytes(0) != 0 {
            std::thread::yield_now();
        }
    }
}
