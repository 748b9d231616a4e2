//! The board: a directory that all users of a machine's GPUs share. It holds a directory for each user, and that
//! holds an instance directory for each running container. Owns the board's location, the required owners and modes,
//! and the removal of ended containers.
//!
//! Never follows a link to it, never works below a directory in which another user could rename things, and never
//! removes an instance that still has a living process.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fchmod, fstat, mkdirat};
use nix::unistd::{AccessFlags, Uid, access};
use supervisor::fence;
use supervisor::instance::{self, Instance, RunnerLock};
use supervisor::view::{self, ContainerView, Views};

/// The board if the machine's administrator created one.
const SYSTEM: &str = "/run/vgpu";
/// The board otherwise.
const FALLBACK: &str = "/tmp/vgpu";

const DIR: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// This user's directory on a board, held open.
#[derive(Debug)]
pub(crate) struct UserDir {
    path: PathBuf,
    dir: OwnedFd,
    board: PathBuf,
}

/// While it is held, no other command of this user creates or removes instance directories.
#[derive(Debug)]
pub(crate) struct UserLock<'a> {
    user: &'a UserDir,
    _lock: Flock<OwnedFd>,
}

impl UserDir {
    /// Opens this user's directory on the board, making both where they are missing.
    pub(crate) fn open(board: Option<&Path>) -> anyhow::Result<Self> {
        let board = match board {
            Some(path) => open_board(path, true)?,
            None => default_board()?,
        };
        let uid = Uid::effective();
        let name = uid.to_string();
        let path = board.path.join(&name);
        match mkdirat(&board.dir, name.as_str(), Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => {
                return Err(errno).with_context(|| {
                    format!(
                        "cannot make {}; choose another board with --board",
                        path.display()
                    )
                });
            }
        }
        let dir = openat(&board.dir, name.as_str(), DIR, Mode::empty())
            .map_err(|errno| not_a_directory(&path, errno))?;
        check_own(&path, &dir)?;
        let board = board.path;
        Ok(Self { path, dir, board })
    }

    /// The path of the board.
    pub(crate) fn board(&self) -> &Path {
        &self.board
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits at most 5 s for other commands of this user to finish creating or removing directories.
    pub(crate) fn lock(&self) -> anyhow::Result<UserLock<'_>> {
        let path = self.path.join(".lock");
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&self.dir, ".lock", flags, Mode::S_IRUSR | Mode::S_IWUSR)
            .with_context(|| format!("cannot open {}", path.display()))?;
        Ok(UserLock {
            user: self,
            _lock: wait_for(file, &path, PATIENCE)?,
        })
    }
}

/// How long a command waits for a lock that another command holds.
const PATIENCE: Duration = Duration::from_secs(5);

fn wait_for(mut file: OwnedFd, path: &Path, patience: Duration) -> anyhow::Result<Flock<OwnedFd>> {
    let until = Instant::now() + patience;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((again, Errno::EWOULDBLOCK)) if Instant::now() < until => {
                file = again;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err((_, Errno::EWOULDBLOCK)) => bail!(
                "another vgpu command has held {} for {} s; end it and try again",
                path.display(),
                patience.as_secs_f32()
            ),
            Err((_, errno)) => {
                return Err(errno).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
    }
}

/// The right to change floors on a board. One command of all users has it at a time.
#[derive(Debug)]
pub(crate) struct BoardLock {
    path: PathBuf,
    dir: OwnedFd,
    _lock: Flock<OwnedFd>,
}

impl BoardLock {
    /// Waits at most [`PATIENCE`] for other commands that change floors. Take it before a [`UserLock`].
    pub(crate) fn take(board: &Path) -> anyhow::Result<Self> {
        Self::take_within(board, PATIENCE)
    }

    /// The same with another patience.
    pub(crate) fn take_within(board: &Path, patience: Duration) -> anyhow::Result<Self> {
        let Board { path, dir } = open_board(board, false)?;
        // The lock is on the directory itself: a file in it would belong to one user, and other
        // users could not open it.
        let locked = dir
            .try_clone()
            .with_context(|| format!("cannot open {}", path.display()))?;
        let _lock = wait_for(locked, &path, patience)?;
        Ok(Self { path, dir, _lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn dir(&self) -> &OwnedFd {
        &self.dir
    }
}

impl UserLock<'_> {
    /// Removes the directories of containers whose runner and processes have all ended, and those that killed commands
    /// have left half made or half removed.
    pub(crate) fn clear_ended(&self) -> anyhow::Result<()> {
        let mut ended = Vec::new();
        instance::scan(&self.user.path, &mut |instance| {
            if has_ended(&instance) {
                ended.push(instance);
            }
        })?;
        // A process in the middle of `exec` shows no environment for a moment.
        if !ended.is_empty() {
            std::thread::sleep(Duration::from_millis(20));
        }
        for instance in ended {
            let is_direct_child = instance.path().parent() == Some(&self.user.path);
            if is_direct_child && has_ended(&instance) {
                // The control group of its command is empty by now, and goes with its limit.
                fence::lower(None, &instance);
                // A directory that cannot be removed does no harm; `top` keeps showing it.
                instance.remove(&self.user.dir).ok();
            }
        }
        // A scan shows none of these.
        for entry in std::fs::read_dir(&self.user.path)
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if let Some(name) = name
                .to_str()
                .filter(|name| is_dir && !name.starts_with('.'))
            {
                self.remove_half(name);
            }
        }
        Ok(())
    }

    /// Creates an instance directory of this name, locked by this process.
    pub(crate) fn create(
        &self,
        name: &str,
        labels: &instance::Labels,
    ) -> Result<(Instance, RunnerLock), instance::InstanceError> {
        let create = || Instance::create(&self.user.dir, &self.user.path, name, labels);
        match create() {
            Err(error) if error.errno() == Some(Errno::EEXIST) && self.remove_half(name) => {
                create()
            }
            made => made,
        }
    }

    /// Removes a directory of this name that a killed command has left half made or half removed. Under the lock no
    /// command is about to make it.
    fn remove_half(&self, name: &str) -> bool {
        Instance::open(&self.user.path.join(name))
            .ok()
            .filter(Instance::is_half)
            .is_some_and(|half| half.remove(&self.user.dir).is_ok())
    }

    /// Removes the directory of a container of an engine that has ended, by the runtime's id.
    pub(crate) fn remove_of_engine(&self, id: &str) -> Result<(), instance::InstanceError> {
        let mut ended = Vec::new();
        let is_it = |instance: &Instance| {
            let labels = instance.labels().ok();
            let engine = labels.and_then(|labels| labels.engine);
            engine.is_some_and(|engine| engine.id == id)
        };
        instance::scan(&self.user.path, &mut |instance| {
            let is_direct_child = instance.path().parent() == Some(&self.user.path);
            if is_direct_child && is_it(&instance) && !instance.runner_lives() {
                ended.push(instance);
            }
        })?;
        for instance in ended {
            self.remove(instance)?;
        }
        Ok(())
    }

    /// Removes the directory of this name, unless a living process needs it. Says whether it is gone.
    pub(crate) fn remove_ended_name(&self, name: &str) -> Result<bool, instance::InstanceError> {
        match Instance::open(&self.user.path.join(name)) {
            Ok(instance) if has_ended(&instance) => self.remove(instance).map(|()| true),
            Ok(_) => Ok(false),
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Removes an instance directory of this user.
    pub(crate) fn remove(&self, instance: Instance) -> Result<(), instance::InstanceError> {
        instance.remove(&self.user.dir)
    }
}

/// Whether no living process needs this directory any more.
pub(crate) fn has_ended(instance: &Instance) -> bool {
    if instance.runner_lives() {
        return false;
    }
    // A region that cannot be read was never completed, or is damaged, so it names no living process.
    let slot_lives =
        view::snapshot(instance).is_ok_and(|region| region.slots.iter().any(|slot| slot.alive));
    !slot_lives && instance.is_deserted()
}

struct Board {
    path: PathBuf,
    dir: OwnedFd,
}

fn default_board() -> anyhow::Result<Board> {
    let system = Path::new(SYSTEM);
    if (Uid::effective().is_root() || usable(system))
        && let Ok(board) = open_board(system, true)
    {
        return Ok(board);
    }
    match open_board(Path::new(FALLBACK), true) {
        Ok(board) => Ok(board),
        // Another user owns the directory and could rename ours away, so a private board is used.
        Err(_) => open_board(&private_board(), true),
    }
}

fn private_board() -> PathBuf {
    PathBuf::from(format!("{FALLBACK}-{}", Uid::effective()))
}

fn usable(path: &Path) -> bool {
    access(path, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

/// Opens a board; with `make`, creates it first if it is missing.
fn open_board(path: &Path, make: bool) -> anyhow::Result<Board> {
    let path = std::path::absolute(path)
        .with_context(|| format!("board {}: not a path", path.display()))?;
    // The library's settings and LD_PRELOAD carry these paths from here on.
    let mut made = false;
    if make {
        match nix::unistd::mkdir(&path, Mode::from_bits_truncate(0o755)) {
            Ok(()) => made = true,
            Err(Errno::EEXIST) => {}
            Err(errno) => {
                return Err(errno).with_context(|| {
                    format!(
                        "cannot make the board {}; give another with --board",
                        path.display()
                    )
                });
            }
        }
    }
    let dir = nix::fcntl::open(&path, DIR, Mode::empty())
        .map_err(|errno| not_a_directory(&path, errno))?;
    let stat = fstat(&dir).with_context(|| format!("cannot look at {}", path.display()))?;
    let me = Uid::effective().as_raw();
    if stat.st_uid != me && stat.st_uid != 0 {
        bail!(
            "the board {} belongs to uid {}, and that user could replace your files; it must \
             belong to root or to you (uid {me}). Give another with --board, or have root \
             run: install -d -m 1777 {SYSTEM}",
            path.display(),
            stat.st_uid
        );
    }
    if made {
        // Regardless of the umask, every user may create a directory in it, and none may touch
        // another user's.
        let mode = Mode::from_bits_truncate(0o1777);
        fchmod(&dir, mode).with_context(|| format!("cannot open up {}", path.display()))?;
    } else if stat.st_mode & 0o022 != 0 && stat.st_mode & 0o1000 == 0 {
        bail!(
            "the board {} has mode {:04o}: others may write to it and it is not sticky, so they could \
             replace your files. Run: chmod +t {}",
            path.display(),
            stat.st_mode & 0o7777,
            path.display()
        );
    }
    Ok(Board { path, dir })
}

fn not_a_directory(path: &Path, errno: Errno) -> anyhow::Error {
    match errno {
        Errno::ELOOP | Errno::ENOTDIR => anyhow!(
            "{} is not a directory, or is a link, which vgpu does not follow; remove it, or give \
             another board with --board",
            path.display()
        ),
        errno => anyhow::Error::new(errno).context(format!("cannot open {}", path.display())),
    }
}

fn check_own(path: &Path, dir: &OwnedFd) -> anyhow::Result<()> {
    let stat = fstat(dir).with_context(|| format!("cannot look at {}", path.display()))?;
    let me = Uid::effective().as_raw();
    if stat.st_uid != me {
        bail!(
            "{} belongs to uid {}, not to you (uid {me}); another user took your place on this \
             board. Give another with --board",
            path.display(),
            stat.st_uid
        );
    }
    if stat.st_mode & 0o022 != 0 {
        bail!(
            "{} has mode {:04o}: others may write to it. Run: chmod go-w {}",
            path.display(),
            stat.st_mode & 0o7777,
            path.display()
        );
    }
    Ok(())
}

/// Boards to read: the one that was named, else every default one that exists.
fn boards_to_read(named: Option<&Path>) -> anyhow::Result<Vec<PathBuf>> {
    if let Some(path) = named {
        // No command has run there yet: there are no containers, and this is no error.
        let is_missing = nix::sys::stat::lstat(path) == Err(Errno::ENOENT);
        return if is_missing {
            Ok(Vec::new())
        } else {
            Ok(vec![open_board(path, false)?.path])
        };
    }
    let mut candidates = vec![PathBuf::from(SYSTEM), PathBuf::from(FALLBACK)];
    if Uid::effective().is_root() {
        candidates.extend(private_boards());
    } else {
        candidates.push(private_board());
    }
    Ok(candidates
        .into_iter()
        .filter(|path| is_readable_board(path))
        .collect())
}

/// The private boards of all users, which only root reads.
fn private_boards() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir("/tmp") else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let uid = name.as_bytes().strip_prefix(b"vgpu-").unwrap_or_default();
            !uid.is_empty() && uid.iter().all(u8::is_ascii_digit)
        })
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// Reading needs fewer checks than writing, because each user's directory is checked by itself.
fn is_readable_board(path: &Path) -> bool {
    nix::sys::stat::lstat(path)
        .is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR)
}

/// Reads every container that this user may see.
pub(crate) fn read(named: Option<&Path>) -> anyhow::Result<Views> {
    let mut all = Views::default();
    for board in boards_to_read(named)? {
        let views = match view::read_all(&board) {
            Ok(views) => views,
            Err(error) if named.is_some() => return Err(error.into()),
            Err(_) => continue,
        };
        for container in views.containers {
            match misplaced(&board, &container) {
                Some(reason) => {
                    let path = container.path;
                    all.broken.push(instance::Broken { path, reason });
                }
                None => all.containers.push(container),
            }
        }
        all.broken.extend(views.broken);
        all.unreadable.extend(views.unreadable);
    }
    Ok(all)
}

/// Why a directory is refused that lies in one user's place and belongs to another user.
fn misplaced(board: &Path, container: &ContainerView) -> Option<String> {
    let below = container.path.strip_prefix(board).ok()?;
    let user = below.components().next()?.as_os_str().to_str()?;
    let uid: u32 = user.parse().ok()?;
    (uid != container.owner).then(|| {
        format!(
            "belongs to uid {}, in the place of uid {uid}",
            container.owner
        )
    })
}

/// Removes this user's ended containers from every board. Errors are ignored, because a directory that
/// stays does no harm.
pub(crate) fn clear_own(named: Option<&Path>) {
    let Ok(boards) = boards_to_read(named) else {
        return;
    };
    for board in boards {
        if !board.join(Uid::effective().to_string()).is_dir() {
            continue;
        }
        let Ok(user) = UserDir::open(Some(&board)) else {
            continue;
        };
        let Ok(lock) = user.lock() else { continue };
        lock.clear_ended().ok();
    }
}

/// A container and its directory, found by its name.
pub(crate) struct Found {
    pub(crate) view: ContainerView,
    pub(crate) instance: Instance,
}

/// Finds the container of this name; the error lists the names that exist.
pub(crate) fn find(named: Option<&Path>, name: &str) -> Result<Found, crate::Failure> {
    let views = read(named)?;
    let (uid, wanted) = match name.split_once('/') {
        Some((uid, name)) => match uid.parse::<u32>() {
            Ok(uid) => (Some(uid), name),
            Err(_) => {
                return Err(crate::Failure::usage(format!(
                    "{name:?} is not a container's name; accepted: NAME or UID/NAME"
                )));
            }
        },
        None => (None, name),
    };
    let mut matching: Vec<&ContainerView> = views
        .containers
        .iter()
        .filter(|c| c.name == wanted && uid.is_none_or(|uid| uid == c.owner))
        .collect();
    let me = Uid::effective().as_raw();
    if matching.len() > 1 && matching.iter().filter(|c| c.owner == me).count() == 1 {
        matching.retain(|c| c.owner == me);
    }
    match matching.as_slice() {
        [one] => {
            let instance = Instance::open(&one.path)?;
            Ok(Found {
                view: (*one).clone(),
                instance,
            })
        }
        [] => Err(crate::Failure::Failed(anyhow!(unknown(name, &views)))),
        several => {
            let list: Vec<_> = several
                .iter()
                .map(|c| format!("{}/{}", c.owner, c.name))
                .collect();
            Err(crate::Failure::usage(format!(
                "several containers are called {wanted:?}; choose one: {}",
                list.join(", ")
            )))
        }
    }
}

fn unknown(name: &str, views: &Views) -> String {
    let mut names: Vec<&str> = views.containers.iter().map(|c| c.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let mut text = if names.is_empty() {
        format!("no container is called {name:?}: none is running")
    } else {
        format!(
            "no container is called {name:?}; running: {}",
            names.join(", ")
        )
    };
    if !views.unreadable.is_empty() {
        let hidden = views.unreadable.len();
        text.push_str(&format!(
            " (and the containers of {hidden} other users, which only root can read)"
        ));
    }
    if !views.broken.is_empty() {
        text.push_str(&format!(
            " ({} could not be read; vgpu top says why)",
            views.broken.len()
        ));
    }
    text
}
