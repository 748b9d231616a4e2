//! The real `vgpu-scheduler --embedded` as a child of the test: started on a port of its own, ended with the test.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::http;

/// A scheduler on an embedded cluster.
pub(crate) struct Program {
    /// The address at which it listens.
    pub(crate) address: SocketAddr,
    child: Child,
    folder: tempfile::TempDir,
}

impl Program {
    /// Starts it on this state, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// With its output, if it ends or is not ready after a minute.
    pub(crate) fn start(
        state: &serde_json::Value,
        device_config: Option<&Path>,
        flags: &[String],
    ) -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.json");
        std::fs::write(&file, state.to_string()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu-scheduler"));
        command
            .arg("--embedded")
            .arg(&file)
            // Any free port; the program prints which.
            .arg("--http_bind=127.0.0.1:0")
            .args(flags);
        // No environment of the user that runs the test.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("VGPU_") {
                command.env_remove(name);
            }
        }
        if let Some(config) = device_config {
            command.arg("--device-config-file").arg(config);
        }
        let printed = File::create(folder.path().join("printed")).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(printed.try_clone().unwrap())
            .stderr(printed);
        let mut program = Self {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            child: command.spawn().map_err(|error| error.to_string())?,
            folder,
        };
        let patience = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = program.child.try_wait().unwrap() {
                return Err(format!("it ended with {status}: {}", program.printed()));
            }
            if let Some(address) = program.served() {
                program.address = address;
                let answer = http::send(address, "GET", "/readyz", "", b"");
                if answer.is_ok_and(|answer| answer.status == 200) {
                    return Ok(program);
                }
            }
            if Instant::now() > patience {
                return Err(format!("not ready after a minute: {}", program.printed()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The address at which it serves, from its output.
    fn served(&self) -> Option<SocketAddr> {
        let printed = self.printed();
        let line = printed.lines().find(|line| line.contains(": serving "))?;
        line.split_once("address=")?
            .1
            .split(' ')
            .next()?
            .parse()
            .ok()
    }

    /// Its output so far.
    pub(crate) fn printed(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("printed")).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let ended = self.child.kill().and_then(|()| self.child.wait());
        drop(ended);
    }
}
