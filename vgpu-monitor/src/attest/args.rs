//! The settings of attestation: flags, their variables, their defaults.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use events::Events;

use super::cluster::Cluster;
use super::{AttestSettings, Attestation};
use crate::driver_files::DriverFiles;
use crate::gpu::Asker;

/// The reaction to processes that bypass their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// No process is inspected.
    Off,
    /// They are counted and reported in events.
    Report,
    /// Their pods are evicted; see `--attest-evict-dry-run` and `--attest-evict-grace`.
    Evict,
}

/// Attestation.
#[derive(Debug, Clone, Args)]
pub struct Flags {
    /// Inspect every process that holds a GPU: does it use our library and its container's limits?
    #[arg(long, env = "VGPU_ATTEST", value_enum, default_value_t = Mode::Off)]
    pub attest: Mode,

    /// With --attest=evict: only ask the API server whether it would evict; false really evicts, one pod a
    /// minute.
    #[arg(long, env = "VGPU_ATTEST_EVICT_DRY_RUN", value_parser = clap::builder::BoolishValueParser::new(),
          num_args = 0..=1, default_value = "true", default_missing_value = "true", require_equals = true)]
    pub attest_evict_dry_run: bool,

    /// With --attest=evict: how long a refused eviction (by a PodDisruptionBudget) is respected before the pod is
    /// deleted, in seconds.
    #[arg(long, env = "VGPU_ATTEST_EVICT_GRACE", value_name = "SECONDS", default_value_t = 300,
          value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub attest_evict_grace: u32,

    /// Namespaces whose pods may hold GPUs without requesting them, separated by commas: the same as the webhook's
    /// --exempt-namespaces.
    #[arg(
        long,
        env = "VGPU_ATTEST_EXEMPT_NAMESPACES",
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "kube-system,gpu-operator"
    )]
    pub attest_exempt_namespaces: Vec<String>,

    /// Programs that may hold GPUs outside of pods, by file name, separated by commas.
    #[arg(
        long,
        env = "VGPU_ATTEST_EXEMPT_PROGRAMS",
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "nvidia-persistenced,nvidia-smi,nvidia-fabricmanager,nv-fabricmanager,nvidia-imex,\
                         nvidia-powerd,nv-hostengine,dcgm-exporter,nvidia-device-plugin,gpu-feature-discovery,\
                         nvidia-cuda-mps-control,nvidia-cuda-mps-server,vgpu-monitor,vgpu"
    )]
    pub attest_exempt_programs: Vec<String>,

    /// Directory of the installed libraries; by default `lib` beside the containers' directory.
    #[arg(long, env = "VGPU_ATTEST_LIBRARIES", value_name = "DIR")]
    pub attest_libraries: Option<PathBuf>,

    /// Path prefix of GPU devices.
    #[arg(
        long,
        env = "VGPU_ATTEST_DEVICES",
        value_name = "PREFIX",
        default_value = "/dev/nvidia"
    )]
    pub attest_devices: String,

    /// The library of this release: a process with another one counts as stale.
    #[arg(
        long = "attest-library",
        env = "VGPU_LIBRARY",
        value_name = "FILE",
        default_value = "/usr/lib/vgpu/libvgpu.so"
    )]
    pub attest_library: PathBuf,

    /// Write events on pods and on this node, and look up pods on the API server.
    #[arg(long, env = "VGPU_KUBERNETES", value_parser = clap::builder::BoolishValueParser::new(),
          num_args = 0..=1, default_value = "false", default_missing_value = "true", require_equals = true)]
    pub kubernetes: bool,

    /// As --kubernetes, by the plugin's own rights: it makes the calls, and listens on this socket
    /// (vgpu-monitor plugin --exporter-socket).
    #[arg(long, env = "VGPU_PLUGIN_SOCKET", value_name = "FILE")]
    pub plugin_socket: Option<PathBuf>,

    /// With --kubernetes: kubeconfig file; by default the pod's own service account.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

impl Flags {
    /// Starts attestation of the node's processes; `None` if it is off. The driver is asked unless `driver` is
    /// `None`. Needs a running tokio.
    ///
    /// # Errors
    /// `--kubernetes` was given and neither a service account nor a kubeconfig is there; the system gives no
    /// thread.
    pub async fn start(
        &self,
        root: &Path,
        node: &str,
        driver: Option<&DriverFiles>,
    ) -> anyhow::Result<Option<Attestation>> {
        let Some(settings) = AttestSettings::of(self, root, node) else {
            return Ok(None);
        };
        let (events, cluster) = match self.client().await? {
            Some(client) => (
                Events::start(client.clone(), "vgpu-monitor"),
                Cluster::start(client, node),
            ),
            None => (Events::silent(), Cluster::none()),
        };
        let asker = driver.map(|files| Asker::start(files.clone())).transpose();
        let asker = asker.context("cannot start the thread that asks the driver")?;
        let started = Attestation::start(settings, asker, events, cluster);
        Ok(Some(started.context(
            "cannot start the thread that attests processes",
        )?))
    }

    async fn client(&self) -> anyhow::Result<Option<kube::Client>> {
        if let Some(socket) = &self.plugin_socket {
            return Ok(Some(crate::plugin::exporter_calls::client(socket.clone())));
        }
        if !self.kubernetes {
            return Ok(None);
        }
        const OTHERWISE: &str = "--kubernetes needs a pod's service account, or --kubeconfig FILE";
        let config = kube_access::config(self.kubeconfig.as_deref(), None, OTHERWISE).await?;
        Ok(Some(kube::Client::try_from(config)?))
    }
}
