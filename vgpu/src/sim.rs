//! `vgpu sim`: a command on simulated GPUs. Owns the directory with the driver's two libraries
//! under the names that programs look for, and the variables that describe the simulated board.
//!
//! Never links the simulated driver: it only starts programs on it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;

use crate::args::{Clock, SimArgs};
use crate::{Failure, child, library};

pub(crate) fn run(args: &SimArgs) -> Result<ExitCode, Failure> {
    let (cuda, nvml) = library::find_simulated()?;
    if let Some(script) = args.script.as_ref().filter(|script| !script.is_file()) {
        return Err(Failure::usage(format!(
            "the script {} is not a file that can be read",
            script.display()
        )));
    }
    check_memory(args)?;
    let signals = child::Signals::hold()?;
    child::adopt_orphans();
    let dir = CallDir::make()?;
    let started = dir
        .variables(args, &cuda, &nvml)
        .map_err(Failure::from)
        .and_then(|variables| child::start(&args.command, &variables, &signals));
    let child = match started {
        Ok(child) => child,
        Err(failure) => {
            dir.end();
            return Err(failure);
        }
    };
    let end = child::wait(child, &signals);
    if !child::has_descendants() {
        dir.end();
    }
    Ok(child::end_alike(end?))
}

/// Checks `--memory` early: the simulated board would refuse it only during the command's first call.
fn check_memory(args: &SimArgs) -> Result<(), Failure> {
    let Some(memory) = &args.memory else {
        return Ok(());
    };
    let around = std::env::var("VGPU_SIM_GPUS")
        .ok()
        .and_then(|text| text.parse().ok());
    let gpus: u32 = args.gpus.or(around).unwrap_or(2);
    for part in memory.0.split(',') {
        let index = part
            .split_once('=')
            .and_then(|(index, _)| index.parse::<u32>().ok());
        if let Some(index) = index.filter(|index| *index >= gpus) {
            return Err(Failure::usage(format!(
                "--memory names GPU {index} of {gpus}; accepted: 0 to {}, or more --gpus",
                gpus - 1
            )));
        }
    }
    Ok(())
}

/// The directory of one `vgpu sim` call.
struct CallDir {
    path: PathBuf,
    /// Shows that this call is alive.
    _lock: Flock<fs::File>,
}

/// The lock file in each call's directory.
const LOCK: &str = "running";

impl CallDir {
    fn make() -> anyhow::Result<Self> {
        let base = base()?;
        clear_ended(&base);
        let path = nix::unistd::mkdtemp(&base.join("run-XXXXXX"))
            .with_context(|| format!("cannot make a directory in {}", base.display()))?;
        let lock = lock(&path.join(LOCK));
        match lock {
            Ok(Some(lock)) => Ok(Self { path, _lock: lock }),
            Ok(None) => bail!("{} was taken by another call; try again", path.display()),
            Err(error) => Err(error),
        }
    }

    fn variables(
        &self,
        args: &SimArgs,
        cuda: &Path,
        nvml: &Path,
    ) -> anyhow::Result<Vec<(&'static str, OsString)>> {
        let libs = self.path.join("lib");
        fs::create_dir(&libs).with_context(|| format!("cannot make {}", libs.display()))?;
        for (name, target) in [
            ("libcuda.so", cuda),
            ("libcuda.so.1", cuda),
            ("libnvidia-ml.so", nvml),
            ("libnvidia-ml.so.1", nvml),
        ] {
            let link = libs.join(name);
            symlink(target, &link).with_context(|| format!("cannot make {}", link.display()))?;
        }
        let mut path = libs.into_os_string();
        if let Some(old) = std::env::var_os("LD_LIBRARY_PATH").filter(|old| !old.is_empty()) {
            path.push(":");
            path.push(old);
        }
        let mut variables = vec![("LD_LIBRARY_PATH", path)];
        let board = match &args.board {
            Some(board) => Some(
                std::path::absolute(board)
                    .with_context(|| format!("board {}: not a path", board.display()))?,
            ),
            None if joins_outer(args) => None,
            None => Some(self.path.join("board")),
        };
        let Some(board) = board else {
            return Ok(variables);
        };
        variables.push(("VGPU_SIM_BOARD", board.into_os_string()));
        if let Some(gpus) = args.gpus {
            variables.push(("VGPU_SIM_GPUS", gpus.to_string().into()));
        }
        if let Some(memory) = &args.memory {
            variables.push(("VGPU_SIM_MEMORY", memory.0.clone().into()));
        }
        if let Some(driver) = args.driver {
            variables.push(("VGPU_SIM_DRIVER", driver.0.to_string().into()));
        }
        if let Some(clock) = args.clock {
            let clock = match clock {
                Clock::Real => "real",
                Clock::Virtual => "lockstep",
            };
            variables.push(("VGPU_SIM_CLOCK", clock.into()));
        }
        if args.contrary {
            variables.push(("VGPU_SIM_CONTRARY", "1".into()));
        }
        if let Some(script) = &args.script {
            let script = std::path::absolute(script)
                .with_context(|| format!("script {}: not a path", script.display()))?;
            variables.push(("VGPU_SIM_SCRIPT", script.into_os_string()));
        }
        Ok(variables)
    }

    fn end(self) {
        // The next call removes what cannot be removed here.
        fs::remove_dir_all(&self.path).ok();
    }
}

/// Whether the call joins the outer `vgpu sim`: it does if it gives no settings of its own.
fn joins_outer(args: &SimArgs) -> bool {
    let describes = args.gpus.is_some()
        || args.memory.is_some()
        || args.driver.is_some()
        || args.clock.is_some()
        || args.contrary
        || args.script.is_some();
    !describes && std::env::var_os("VGPU_SIM_BOARD").is_some_and(|board| !board.is_empty())
}

/// The directory of all calls of this user.
fn base() -> anyhow::Result<PathBuf> {
    let uid = Uid::effective();
    let path = PathBuf::from(format!("/tmp/vgpu-sim-{uid}"));
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => {
            return Err(error).with_context(|| format!("cannot make {}", path.display()));
        }
    }
    let found = fs::symlink_metadata(&path)
        .with_context(|| format!("cannot look at {}", path.display()))?;
    if !found.is_dir() || found.uid() != uid.as_raw() || found.mode() & 0o022 != 0 {
        bail!(
            "{} must be your directory, and no other user may write to it (it belongs to uid {}, \
             mode {:04o}); remove it",
            path.display(),
            found.uid(),
            found.mode() & 0o7777
        );
    }
    Ok(path)
}

/// Removes the directories of killed calls, unless a program still uses them.
fn clear_ended(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        let is_call = entry.file_name().to_string_lossy().starts_with("run-")
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_call {
            continue;
        }
        let path = entry.path();
        // A call that is just starting has no lock file yet, or holds its lock.
        let is_young = entry
            .metadata()
            .and_then(|m| m.modified())
            .is_ok_and(|modified| {
                modified
                    .elapsed()
                    .is_ok_and(|age| age < std::time::Duration::from_secs(10))
            });
        if is_young || in_use(&path) {
            continue;
        }
        if let Ok(Some(lock)) = lock(&path.join(LOCK)) {
            fs::remove_dir_all(&path).ok();
            drop(lock);
        }
    }
}

fn lock(path: &Path) -> anyhow::Result<Option<Flock<fs::File>>> {
    let file = fs::File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .with_context(|| format!("cannot make {}", path.display()))?;
    Ok(Flock::lock(file, FlockArg::LockExclusiveNonblock).ok())
}

/// Whether a program's environment names the libraries of this call.
fn in_use(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let wanted = path.join("lib");
    let wanted = wanted.as_os_str().as_bytes();
    let Ok(processes) = fs::read_dir("/proc") else {
        return true;
    };
    processes.flatten().any(|process| {
        let Ok(environ) = fs::read(process.path().join("environ")) else {
            return false;
        };
        environ.windows(wanted.len()).any(|part| part == wanted)
    })
}
