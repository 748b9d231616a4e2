//! The agent's program as a process on a loopback port, for tests and the bench.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Far more than anything here takes.
pub(crate) const HANGS: Duration = Duration::from_secs(60);

/// The program with these arguments.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu-monitor"));
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // Variables of the caller's shell must not choose what is tested.
    for variable in [
        "VGPU_ROOT",
        "VGPU_METRICS_ADDR",
        "VGPU_LEGACY_METRICS",
        "NODE_NAME",
    ] {
        command.env_remove(variable);
    }
    command
}

/// The exporter as it ships. Killed with its value.
pub(crate) struct Agent {
    pub(crate) child: Child,
    address: SocketAddr,
}

impl Agent {
    /// Serves the containers below this directory on a loopback port; returns when it does.
    pub(crate) fn start(root: &Path, more: &[&str]) -> Self {
        Self::start_in(root, more, &[])
    }

    /// The same with these variables.
    pub(crate) fn start_in(root: &Path, more: &[&str], env: &[(&str, &Path)]) -> Self {
        let root = root.to_str().unwrap();
        let args = [
            "--root",
            root,
            "--metrics-addr",
            "127.0.0.1:0",
            "--log-format",
            "json",
        ];
        let mut command = command(&[&args, more].concat());
        command.env("NODE_NAME", "here").envs(env.iter().copied());
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert_ne!(
                log.read_line(&mut line).unwrap(),
                0,
                "it serves before it ends"
            );
            let event: serde_json::Value = serde_json::from_str(&line).unwrap();
            if let Some(address) = event["fields"]["address"].as_str() {
                break address.parse().unwrap();
            }
        };
        // A reader that is slow must not stop the writer of the log.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self { child, address }
    }

    /// The whole answer: head and body.
    pub(crate) fn get(&self, path: &str) -> String {
        self.get_as(path, "*/*")
    }

    pub(crate) fn get_as(&self, path: &str, accept: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(HANGS)).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The samples of a series.
    pub(crate) fn series(&self, name: &str) -> Vec<String> {
        let answer = self.get("/metrics");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let of_it = |line: &&str| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        };
        answer.lines().filter(of_it).map(str::to_owned).collect()
    }

    pub(crate) fn stop(mut self, signal: Signal) -> ExitStatus {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < HANGS, "it stops");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}
