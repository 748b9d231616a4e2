//! The real `vgpu-scheduler --embedded` as a child of the test: started on a port of its own, ended with the test.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::http;

/// A scheduler on an embedded cluster.
pub(crate) struct Program {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    child: Child,
    folder: tempfile::TempDir,
}

impl Program {
    /// Starts it on this state, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// With what it printed, when it ends or is not ready after a minute.
    pub(crate) fn start(
        state: &serde_json::Value,
        device_config: Option<&Path>,
        flags: &[String],
    ) -> Result<Self, String> {
        let mut last = String::new();
        // Somebody else may take the port between our look and its start.
        for _ in 0..3 {
            match Self::try_start(state, device_config, flags) {
                Ok(program) => return Ok(program),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn try_start(
        state: &serde_json::Value,
        device_config: Option<&Path>,
        flags: &[String],
    ) -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.json");
        std::fs::write(&file, state.to_string()).unwrap();
        let address = {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            free.local_addr().unwrap()
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu-scheduler"));
        command
            .arg("--embedded")
            .arg(&file)
            .arg(format!("--http_bind={address}"))
            .args(flags);
        if let Some(config) = device_config {
            command.arg("--device-config-file").arg(config);
        }
        let printed = File::create(folder.path().join("printed")).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(printed.try_clone().unwrap())
            .stderr(printed);
        let child = command.spawn().map_err(|error| error.to_string())?;
        let mut program = Self {
            address,
            child,
            folder,
        };
        let patience = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = program.child.try_wait().unwrap() {
                return Err(format!("it ended with {status}: {}", program.printed()));
            }
            let answer = http::send(address, "GET", "/readyz", "", b"");
            if answer.is_ok_and(|answer| answer.status == 200) {
                return Ok(program);
            }
            if Instant::now() > patience {
                return Err(format!("not ready after a minute: {}", program.printed()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What it printed so far.
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
