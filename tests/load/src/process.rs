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

/// The memory of a process.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) peak_bytes: u64,
    pub(crate) now_bytes: u64,
}

impl Scheduler {
    /// A scheduler that is its own API server.
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
        std::fs::write(&file, kubeconfig_of(api)?)?;
        Self::start(program, folder, |command| {
            command.arg("--kubeconfig").arg(&file);
        })
    }

    /// A simulator with these objects and this scheduler configuration.
    pub(crate) fn simulator(
        program: &Path,
        objects: &serde_json::Value,
        configuration: &serde_json::Value,
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let [file, config] = ["objects", "config"].map(|name| folder.path().join(name));
        std::fs::write(&file, serde_json::to_vec(objects)?)?;
        std::fs::write(&config, serde_json::to_vec(configuration)?)?;
        let port = free_port()?;
        Self::spawn(program, folder, port, |command| {
            command
                .args(["simulator", "--bind=127.0.0.1:0", "--log=warn"])
                .arg(format!("--kubernetes-bind=127.0.0.1:{port}"))
                .arg("--import")
                .arg(&file)
                .arg("--config")
                .arg(&config);
        })
    }

    /// A kube-scheduler on the cluster whose API server the other is. Its client is not throttled.
    pub(crate) fn kube(program: &Path, api: &Self) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let [kubeconfig, config] = ["kubeconfig", "config"].map(|name| folder.path().join(name));
        std::fs::write(&kubeconfig, kubeconfig_of(api)?)?;
        let client = serde_json::json!({
            "kubeconfig": &kubeconfig, "qps": 100_000, "burst": 100_000,
            "contentType": "application/json", "acceptContentTypes": "application/json",
        });
        std::fs::write(
            &config,
            serde_json::to_vec(&serde_json::json!({
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "leaderElection": {"leaderElect": false},
                "clientConnection": client,
            }))?,
        )?;
        Self::spawn(program, folder, 0, |command| {
            command.arg("--config").arg(&config).arg("--secure-port=0");
        })
    }

    fn start(
        program: &Path,
        folder: tempfile::TempDir,
        with: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let port = free_port()?;
        Self::spawn(program, folder, port, |command| {
            command.arg(format!("--http_bind=127.0.0.1:{port}"));
            with(command);
        })
    }

    fn spawn(
        program: &Path,
        folder: tempfile::TempDir,
        port: u16,
        with: impl FnOnce(&mut Command),
    ) -> Result<Self> {
        let log = folder.path().join("log");
        let mut command = Command::new(program);
        command
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

    /// Waits until it is ready.
    pub(crate) async fn ready(&self) -> Result<()> {
        self.answers("/readyz").await
    }

    /// Waits until it answers 200 to a GET of this path.
    pub(crate) async fn answers(&self, path: &str) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(120) {
            if let Ok(mut connection) = Connection::open(self.port).await
                && let Ok((200, _)) = connection.get(path).await
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bail!("not ready within two minutes; it said:\n{}", self.said())
    }

    /// Its log.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// How long it has computed, all threads together.
    pub(crate) fn computed(&self) -> Result<Duration> {
        /// The kernel's unit of CPU time.
        const TICKS_PER_SECOND: u64 = 100;
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = stat.rsplit_once(") ").context("no name in its stat")?;
        let ticks: u64 = fields
            .split(' ')
            .skip(11)
            .take(2)
            .filter_map(|number| number.parse::<u64>().ok())
            .sum();
        Ok(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
    }

    /// Its memory.
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

fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.port())
}

fn kubeconfig_of(api: &Scheduler) -> Result<Vec<u8>> {
    let server = format!("http://127.0.0.1:{}", api.port);
    let config = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    });
    Ok(serde_json::to_vec(&config)?)
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // It has ended in both cases, and everything that it wrote is complete.
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}
