//! The command line of what serves container engines: `vgpu cdi`, `vgpu oci-hook`, `vgpu oci-runtime`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Subcommand;

use super::BoardArg;
use crate::values::{self, EngineGpu, Shown};

/// The share of a container that names none of its own.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct DefaultShare {
    /// Memory limit of containers without VGPU_MEMORY [default: none]
    #[arg(long, value_name = "SIZE|GPU=SIZE,…", value_parser = values::shown(values::gpu_mem), allow_hyphen_values = true)]
    pub(crate) gpumem: Option<Shown<values::PerGpu>>,

    /// Compute limit of containers without VGPU_CORES, percent [default: none]
    #[arg(long, value_name = "PERCENT|GPU=PERCENT,…", value_parser = values::shown(values::gpu_cores), allow_hyphen_values = true)]
    pub(crate) gpucores: Option<Shown<values::PerGpu>>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu cdi                            write /etc/cdi/vgpu.json, once and after a change of GPUs
  podman run --device vgpu.io/gpu=0 -e VGPU_MEMORY=4Gi -e VGPU_CORES=30 IMAGE COMMAND
  vgpu cdi --gpumem 2Gi               containers that name no memory limit get 2 GiB
  vgpu cdi --print                    show the file instead of writing it

The devices are vgpu.io/gpu=N (nvidia-smi's number), =UUID and =all. Each contains what NVIDIA's CDI
specification gives for that GPU, the library, and a hook that makes the container's limits before
the container starts. docs/containers.md has the variables, and Docker, containerd and Compose.

The container engine has to run as root.")]
pub(crate) struct CdiArgs {
    /// The file to write; engines read /etc/cdi and /var/run/cdi
    #[arg(long, value_name = "FILE", default_value = "/etc/cdi/vgpu.json", value_parser = values::path)]
    pub(crate) output: PathBuf,

    /// Print the specification and write nothing
    #[arg(long)]
    pub(crate) print: bool,

    #[command(flatten)]
    pub(crate) default_share: DefaultShare,

    /// Directory for the small files that every container gets
    #[arg(long, value_name = "DIR", default_value = "/var/lib/vgpu/containers", value_parser = values::path)]
    pub(crate) files: PathBuf,

    /// Directory of NVIDIA's CDI specification; may be repeated, and later ones win
    #[arg(long, value_name = "DIR", default_values = ["/etc/cdi", "/var/run/cdi"], value_parser = values::path)]
    pub(crate) vendor_dir: Vec<PathBuf>,

    /// Kind of NVIDIA's CDI devices
    #[arg(long, value_name = "KIND", default_value = "nvidia.com/gpu")]
    pub(crate) vendor_kind: String,

    /// The library to preload [default: beside this program, else /usr/local/vgpu]
    #[arg(long, env = "VGPU_LIBRARY", value_name = "FILE", value_parser = values::path)]
    pub(crate) library: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) board: BoardArg,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Container engines run it: the file of vgpu cdi names it. It reads the container's state as JSON from
standard input. Exit code: 0; 1 if the container cannot be given its share; 2 if its share cannot be
understood. A failed create keeps the container from starting.")]
pub(crate) struct OciHookArgs {
    #[command(subcommand)]
    pub(crate) moment: HookMoment,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HookMoment {
    /// Make a container's limits and mount them (OCI hook createRuntime)
    Create(HookCreateArgs),
    /// Remove the limits of a container that has ended (OCI hook poststop)
    Remove(HookRemoveArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct HookCreateArgs {
    /// A GPU of this machine, as vgpu cdi found it; may be repeated
    #[arg(long, value_name = "INDEX=UUID=BYTES", value_parser = values::engine_gpu)]
    pub(crate) gpu: Vec<EngineGpu>,

    #[command(flatten)]
    pub(crate) default_share: DefaultShare,

    #[command(flatten)]
    pub(crate) board: BoardArg,
}

#[derive(Debug, clap::Args)]
pub(crate) struct HookRemoveArgs {
    #[command(flatten)]
    pub(crate) board: BoardArg,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
For container engines without CDI, such as Docker 20.10. In /etc/docker/daemon.json:
  {\"runtimes\": {\"vgpu\": {\"path\": \"/usr/local/bin/vgpu\", \"runtimeArgs\": [\"oci-runtime\", \"--\"]}}}
Then:
  docker run --runtime vgpu -e VGPU_GPU=0 -e VGPU_MEMORY=4Gi -e VGPU_CORES=30 IMAGE COMMAND

For a container with VGPU_GPU it applies the file of vgpu cdi to the container's config.json; then it
becomes runc. A container without VGPU_GPU is not changed. A link to this program that is called
vgpu-runtime does the same without flags.")]
pub(crate) struct OciRuntimeArgs {
    /// The file of vgpu cdi
    #[arg(long, value_name = "FILE", default_value = "/etc/cdi/vgpu.json", value_parser = values::path)]
    pub(crate) spec: PathBuf,

    /// The OCI runtime that makes the container [default: runc, else crun, of PATH]
    #[arg(long, value_name = "FILE", value_parser = values::path)]
    pub(crate) runtime: Option<PathBuf>,

    /// What the container engine asks of the runtime
    #[arg(
        value_name = "ARGUMENT",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) words: Vec<OsString>,
}
