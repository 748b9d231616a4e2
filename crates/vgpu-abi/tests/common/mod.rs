//! Real processes for the tests: this test program again, in another role.
#![allow(dead_code, reason = "each of the two test programs uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use vgpu_abi::limits::DeviceUuid;
use vgpu_abi::region::{NewDevice, Region};

const ROLE: &str = "VGPU_TEST_ROLE";
const REGION: &str = "VGPU_TEST_REGION";
const PATIENCE: (&str, &str) = ("VGPU_CRASH_WAIT_MS", "30000");

/// A region in a directory of its own.
pub(crate) struct RegionDir {
    pub(crate) dir: tempfile::TempDir,
}

impl RegionDir {
    pub(crate) fn new() -> Self {
        let place = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let device = |n: u32| NewDevice {
            uuid: DeviceUuid::new(&format!("GPU-{n}")).unwrap(),
            physical_bytes: 16 << 30,
        };
        Region::create(&place.path(), &[device(0), device(1)], 0o600).unwrap();
        place
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("region")
    }

    pub(crate) fn open(&self) -> Region {
        Region::open(&self.path()).unwrap()
    }

    pub(crate) fn snapshot(&self) -> vgpu_abi::host::Snapshot {
        vgpu_abi::host::snapshot(&self.path()).unwrap()
    }
}

/// The role that a test started this process in, if a test started it.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(REGION)?.into()))
}

/// This program again: it runs the one test `entry`, which looks at [`role`].
pub(crate) fn command(entry: &str, role: &str, region: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", entry, "--nocapture", "--test-threads=1"]);
    command
        .env(ROLE, role)
        .env(REGION, region)
        .env_remove("VGPU_CRASH_AT")
        .env_remove(PATIENCE.0);
    command
}

/// As [`command`], for a process that waits half a minute for other processes and threads. On a busy machine a living
/// owner of a lock may not run for the tenth of a second that the library waits; a lock that is lost never comes back,
/// so the wait for it still runs out.
pub(crate) fn patient_command(entry: &str, role: &str, region: &Path) -> Command {
    let mut command = command(entry, role, region);
    command.env(PATIENCE.0, PATIENCE.1);
    command
}

/// A process that answers lines with lines.
pub(crate) struct Peer {
    pub(crate) child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn start(mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        Self { child, to, from }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    /// The next answer; what the test harness prints in between is left out.
    pub(crate) fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.from.read_line(&mut line).unwrap();
            assert!(read > 0, "the process ended: {:?}", self.child.wait());
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim().to_owned();
            }
        }
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.answer()
    }

    /// As `kill -9`.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let killed = self.child.kill();
        let ended = self.child.wait();
        if !std::thread::panicking() {
            killed.unwrap();
            ended.unwrap();
        }
    }
}

/// The other side of [`Peer::answer`].
pub(crate) fn reply(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@{line}").unwrap();
    out.flush().unwrap();
}

/// The other side of [`Peer::send`]; nothing at the end.
pub(crate) fn next_line() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line).unwrap();
    (read > 0).then(|| line.trim().to_owned())
}

/// Small numbers by chance.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
