//! Real processes for the tests: this test program again, in another role.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use vgpu_abi::limits::DeviceUuid;
use vgpu_abi::region::{Region, RegionDevice};

const ROLE: &str = "VGPU_TEST_ROLE";
const REGION: &str = "VGPU_TEST_REGION";

/// A region in a directory of its own.
pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let place = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let device = |n: u32| RegionDevice {
            uuid: DeviceUuid::new(&format!("GPU-{n}")).unwrap(),
            physical_bytes: 16 << 30,
        };
        Region::create(&place.path(), &[device(0), device(1)], 0o600).unwrap();
        place
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("region")
    }

    pub fn snapshot(&self) -> vgpu_abi::host::Snapshot {
        vgpu_abi::host::snapshot(&self.path()).unwrap()
    }
}

/// What this process was started as, if it was started by a test.
pub fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(REGION)?.into()))
}

/// This program again: it runs the one test `entry`, which looks at [`role`].
pub fn command(entry: &str, role: &str, region: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", entry, "--nocapture", "--test-threads=1"]);
    command
        .env(ROLE, role)
        .env(REGION, region)
        .env_remove("VGPU_CRASH_AT");
    command
}

/// A process that answers lines with lines.
pub struct Peer {
    pub child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Peer {
    pub fn start(mut command: Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        Self { child, to, from }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn send(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    /// The next answer; what the test harness prints in between is left out.
    pub fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.from.read_line(&mut line).unwrap();
            assert!(read > 0, "the process ended: {:?}", self.child.wait());
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim().to_owned();
            }
        }
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.answer()
    }

    /// As `kill -9`.
    pub fn kill(self) {
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
pub fn reply(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@{line}").unwrap();
    out.flush().unwrap();
}

/// The other side of [`Peer::send`]; nothing at the end.
pub fn next_line() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line).unwrap();
    (read > 0).then(|| line.trim().to_owned())
}

/// Small numbers by chance.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
