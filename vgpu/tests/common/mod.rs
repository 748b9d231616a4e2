//! A machine for the command: a board, simulated GPUs, and the real binary. Shared by the tests.
//!
//! Nothing of the caller's environment reaches the command, and nothing is written outside a
//! temporary directory.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test that is wrong about its own machine has failed"
)]

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub(crate) const VGPU: &str = env!("CARGO_BIN_EXE_vgpu");

/// How a command ended, and its output.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) struct Machine {
    pub(crate) dir: TempDir,
    pub(crate) board: PathBuf,
    /// The CUDA version of its driver.
    driver: &'static str,
}

/// The directory of the test binary, in which cargo puts the libraries.
pub(crate) fn libraries() -> PathBuf {
    std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_owned()
}

/// The library that is preloaded.
pub(crate) fn library() -> PathBuf {
    libraries().join("libvgpu.so")
}

impl Machine {
    /// Two simulated GPUs of 16 GiB.
    pub(crate) fn new() -> Self {
        let dir = TempDir::with_prefix("vgpu-test-").unwrap();
        let libs = dir.path().join("sim");
        fs::create_dir(&libs).unwrap();
        for (link, file) in [
            ("libcuda.so.1", "libcuda.so"),
            ("libnvidia-ml.so.1", "libnvidia_ml.so"),
        ] {
            let file = libraries().join(file);
            assert!(file.exists(), "{} is not built", file.display());
            symlink(file, libs.join(link)).unwrap();
        }
        let board = dir.path().join("board");
        Self {
            dir,
            board,
            driver: "12.4",
        }
    }

    /// The same with another driver.
    pub(crate) fn with_driver(driver: &'static str) -> Self {
        Self {
            driver,
            ..Self::new()
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The directory of this user's containers.
    pub(crate) fn containers(&self) -> PathBuf {
        self.board.join(nix::unistd::geteuid().to_string())
    }

    /// Names of this user's containers that are on disk.
    pub(crate) fn names(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.containers()) else {
            return Vec::new();
        };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        names
    }

    /// A command with the machine's environment and nothing else. No signal is ignored in it, as it is in the tests
    /// themselves if they run under `nohup` or in the background of a script: a shell cannot trap such a signal.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("env");
        command
            .arg("--default-signal")
            .arg(program)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", "/nonexistent")
            .env("VGPU_BOARD", &self.board)
            .env("VGPU_LIBRARY", library())
            .env("VGPU_SIM_LIBS", self.path("sim"))
            .env("LD_LIBRARY_PATH", self.path("sim"))
            .env("VGPU_SIM_BOARD", self.path("sim-board"))
            .env("VGPU_SIM_DRIVER", self.driver)
            .stdin(Stdio::null());
        command
    }

    /// `vgpu` with these words.
    pub(crate) fn vgpu<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.command(VGPU);
        command.args(words);
        command
    }

    /// Runs `vgpu` with these words to its end.
    pub(crate) fn run(&self, words: &[&str]) -> Ended {
        ended(&mut self.vgpu(words))
    }

    /// Starts a shell script under `vgpu run` with these flags, and waits until it prints `ready`.
    pub(crate) fn start(&self, flags: &[&str], script: &str) -> Running {
        let words = [&["run"], flags, &["--", "sh", "-c", script]].concat();
        Running::start(&mut self.vgpu(words))
    }

    pub(crate) fn top(&self) -> serde_json::Value {
        let ended = self.run(&["top", "--json"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        serde_json::from_str(&ended.out).unwrap()
    }
}

/// Runs a command to its end.
pub(crate) fn ended(command: &mut Command) -> Ended {
    let output = command.output().unwrap();
    Ended {
        code: output.status.code(),
        signal: output.status.signal(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A command that has printed `ready`.
pub(crate) struct Running {
    pub(crate) child: Child,
    out: Vec<u8>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = Vec::new();
        let mut byte = [0];
        let stdout = child.stdout.as_mut().unwrap();
        while !out.ends_with(b"ready\n") {
            if stdout.read(&mut byte).unwrap() == 0 {
                let mut err = String::new();
                child
                    .stderr
                    .as_mut()
                    .unwrap()
                    .read_to_string(&mut err)
                    .unwrap();
                panic!("never ready; {} {err}", String::from_utf8_lossy(&out));
            }
            out.push(byte[0]);
        }
        Self { child, out }
    }

    /// Its output up to `ready`.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    pub(crate) fn pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(self.pid(), signal).unwrap();
    }

    pub(crate) fn end(mut self) -> Ended {
        let mut out = std::mem::take(&mut self.out);
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_end(&mut out)
            .unwrap();
        let mut err = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        let status = self.child.wait().unwrap();
        Ended {
            code: status.code(),
            signal: status.signal(),
            out: String::from_utf8_lossy(&out).into_owned(),
            err,
        }
    }

    /// Asks it to end, and waits.
    pub(crate) fn stop(self) -> Ended {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        self.end()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // If a test fails, this child may not have been waited for.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            nix::sys::signal::kill(self.pid(), nix::sys::signal::Signal::SIGTERM).ok();
            drop(self.child.wait());
        }
    }
}

/// Waits until something is true; fails the test with `what` after half a minute.
pub(crate) fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_true() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process with this id exists.
pub(crate) fn lives(pid: &str) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    !stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .trim_start()
        .starts_with('Z')
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Copies a program that a test executes. `cp` writes the copy: what this process has open for writing may also be open in a
/// child that another test has just forked, and the kernel executes no such file ("Text file busy").
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(copied.success(), "{} to {}", from.display(), to.display());
}
