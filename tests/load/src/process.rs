//! The processes under load. Each ends with its value.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::http::Connection;

pub(crate) struct Scheduler {
    child: Child,
    pub(crate) port: u16,
    pub(crate) log: PathBuf,
    /// Its files, gone with it.
    _folder: tempfile::TempDir,
}

/// What a process takes.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) peak_bytes: u64,
    pub(crate) now_bytes: u64,
}

impl Scheduler {
    /// One that is its own API server.
    pub(crate) async fn embedded(program: &Path, state: &serde_json::Value) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("state.json");
        std::fs::write(&file, serde_json::to_vec(state)?)?;
        let scheduler = Self::start(program, folder, |command| {
            command.arg("--embedded").arg(&file);
        })?;
        scheduler.ready().await?;
        Ok(scheduler)
    }

    /// One on the cluster whose API server the other is.
    pub(crate) async fn beside(program: &Path, api: &Self) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("kubeconfig");
        let server = format!("http://127.0.0.1:{}", api.port);
        std::fs::write(
            &file,
            serde_json::to_vec(&serde_json::json!({
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }))?,
        )?;
        Self::start(program, folder, |command| {
            command.arg("--kubeconfig").arg(&file);
        })
    }

    fn start(
        program: &Path,
        folder: tempfile::TempDir,
        with: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let log = folder.path().join("log");
        let mut command = Command::new(program);
        command
            .arg(format!("--http_bind=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log)?);
        with(&mut command);
        let child = command
            .spawn()
            .with_context(|| format!("{} does not start", program.display()))?;
        Ok(Self {
            child,
            port,
            log,
            _folder: folder,
        })
    }

    /// Waits until it says that it is ready.
    pub(crate) async fn ready(&self) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(120) {
            if let Ok(mut connection) = Connection::open(self.port).await
                && let Ok((200, _)) = connection.get("/readyz").await
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!(
            "not ready within two minutes; it said:\n{}",
            std::fs::read_to_string(&self.log).unwrap_or_default()
        )
    }

    /// What it takes.
    pub(crate) fn memory(&self) -> Result<Memory> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let bytes = |key: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(key))
                .and_then(|rest| rest.split_whitespace().next())
                .and_then(|number| number.parse::<u64>().ok())
                .map(|kib| kib << 10)
                .with_context(|| format!("no {key} in its status"))
        };
        Ok(Memory {
            peak_bytes: bytes("VmHWM:")?,
            now_bytes: bytes("VmRSS:")?,
        })
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // It is over either way, and so is what it wrote.
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}
