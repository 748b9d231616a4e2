//! The command line: every flag, its help and its examples.
//!
//! This module only parses. Other modules decide what a value means for the GPUs of this machine.

pub(crate) mod bench;
pub(crate) mod containers;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod slurm;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use crate::values::{self, ContainerName, DriverVersion, GpuRef, PerGpu, PolicyName, SimMemory};

/// Share GPUs: give each program a fixed share of memory and compute time.
#[derive(Debug, Parser)]
#[command(
    name = "vgpu",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = "\
Examples:
  vgpu run --gpumem 4Gi -- python train.py     at most 4 GiB of each GPU
  vgpu run --gpucores 30 -- python train.py    at most 30 % of each GPU's time
  vgpu top                                     show what each container uses
  vgpu set python-1 --gpumem 8Gi               change a limit while the container runs
  vgpu oom python-1                            show refused allocations and what held the memory
  vgpu sim -- vgpu run --gpumem 4Gi -- ./app   try it without a GPU
  vgpu cdi                                     share GPUs between containers of Podman or Docker
  vgpu explain train                           explain why a pod of a cluster is pending
  vgpu simulate --import export.json           try scheduling without a cluster
  vgpu doctor                                  find what is wrong, and how to fix it"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command with limited GPU memory and compute time
    Run(RunArgs),
    /// Show containers, their processes and their GPU use
    Top(TopArgs),
    /// Change the limits of a running container
    Set(SetArgs),
    /// Show refused allocations and which processes held the memory
    Oom(OomArgs),
    /// Run a command on simulated GPUs
    Sim(SimArgs),
    /// Describe this machine's GPUs for container engines (Podman, Docker, containerd)
    Cdi(containers::CdiArgs),
    /// Give a container of a container engine its share; container engines run it
    OciHook(containers::OciHookArgs),
    /// Run runc for a container engine without CDI
    OciRuntime(containers::OciRuntimeArgs),
    /// Give jobs of Slurm their shares; slurmd runs it
    Slurm(slurm::SlurmArgs),
    /// Measure how accurately limits hold
    Bench(bench::BenchArgs),
    /// Explain why a pod is not placed, and the smallest change that would place it
    Explain(explain::ExplainArgs),
    /// Try, replay and explain scheduling without a cluster
    Simulate(Box<scheduler::simulate::SimulateArgs>),
    /// Find faults in a container, on a node or in a cluster
    Doctor(doctor::DoctorArgs),
    /// Print a shell completion script
    #[command(after_help = "\
Examples:
  vgpu completions bash > ~/.local/share/bash-completion/completions/vgpu
  vgpu completions zsh > ~/.zfunc/_vgpu
  vgpu completions fish > ~/.config/fish/completions/vgpu.fish")]
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Print the version of vgpu and of its file formats
    Version,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu run --gpumem 4Gi -- python train.py          at most 4 GiB of each GPU
  vgpu run --gpumem 4Gi --gpu 0 -- python train.py  GPU 0 only, 4 GiB of it
  vgpu run --gpumem 0=4Gi,1=8Gi -- ./app            GPUs 0 and 1, with different limits
  vgpu run --gpucores 30 -- ./app                   at most 30 % of each GPU's time
  vgpu run --gpucores 30 --policy default -- ./app  30 % while others use the GPU, else all
  vgpu run --floor 20 -- ./serve                    20 % guaranteed, plus idle time
  vgpu run --priority 9 -- ./background             waits while other containers work
  vgpu run --gpumem 4Gi --oversubscribe 4Gi -- ./app
                                                    sees 8 GiB, 4 of them on the GPU
  vgpu run --name train --gpumem 4Gi -- ./app       a name for top, set and oom

The command and every process that it starts share the limits. vgpu run exits with the command's
exit code: 128 plus the signal's number if a signal killed the command, 126 if it could not be
run, 127 if it was not found. Inside another vgpu run, limits can only be lowered; a limit that
is not named is inherited.

A compute limit is a share of GPU time over any fifth of a second, or over the time of 20 kernels if
they are longer than 10 ms. When several containers want a GPU, floors come first, then priorities.
Idle time is lent in proportion to floors, and is taken back within 200 ms plus the longest running
kernel.

If an MPS control daemon runs (its control file is in CUDA_MPS_PIPE_DIRECTORY or
/tmp/nvidia-mps), --gpucores N also sets CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=N for the command,
unless a lower value is set. MPS gives a program one share for all its GPUs, fixed when the program
starts, and cannot make one program wait for another. Therefore vgpu run refuses compute limits
that differ by GPU, --policy default and --floor there.

The limits are cooperative: the command runs as the same user, and that user could remove the
library from its environment. Limits that hold against a tenant need the node agent.")]
pub(crate) struct RunArgs {
    /// Memory limit: SIZE for every GPU, or GPU=SIZE,… (Ki Mi Gi Ti are 1024-based, K M G T 1000)
    #[arg(long, value_name = "SIZE|GPU=SIZE,…", value_parser = values::gpu_mem, allow_hyphen_values = true)]
    pub(crate) gpumem: Vec<PerGpu>,

    #[command(flatten)]
    pub(crate) compute: ComputeArgs,

    /// GPUs that the command may use, by nvidia-smi's number or by UUID [default: the GPUs that
    /// --gpumem names, else --gpucores, else --floor, else all]
    #[arg(long, value_name = "GPU,…", value_parser = values::gpu_ref, value_delimiter = ',', allow_hyphen_values = true)]
    pub(crate) gpu: Vec<GpuRef>,

    /// Name for top, set and oom [default: the command's name and a number]
    #[arg(long, value_parser = values::container_name, allow_hyphen_values = true)]
    pub(crate) name: Option<ContainerName>,

    /// The library to preload [default: beside this program, else /usr/local/vgpu]
    #[arg(long, env = "VGPU_LIBRARY", value_name = "FILE", value_parser = values::path)]
    pub(crate) library: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) board: BoardArg,

    /// The command and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

/// The directory of the running containers.
#[derive(Debug, clap::Args)]
pub(crate) struct BoardArg {
    /// Directory of the running containers [default: /run/vgpu, else /tmp/vgpu]
    #[arg(long, env = "VGPU_BOARD", value_name = "DIR", value_parser = values::path)]
    pub(crate) board: Option<PathBuf>,
}

/// Flags that set the share of a GPU's time, and what happens when there is too little of it.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ComputeArgs {
    /// Compute limit, percent of the GPU's time, 1 to 100 (100: no cap): PERCENT of every GPU, or
    /// GPU=PERCENT,…
    #[arg(long, value_name = "PERCENT|GPU=PERCENT,…", value_parser = values::gpu_cores, allow_hyphen_values = true)]
    pub(crate) gpucores: Vec<PerGpu>,

    /// When the compute limit holds: force (always), default (while another container uses the
    /// GPU), floor (--floor is guaranteed, idle time is lent up to --gpucores), disable (never)
    /// [at the start: floor if --floor is given, else force]
    #[arg(
        long,
        value_name = "POLICY",
        ignore_case = true,
        hide_possible_values = true
    )]
    pub(crate) policy: Option<PolicyName>,

    /// Guaranteed share, percent of the GPU's time, 1 to 100: PERCENT of every GPU, or
    /// GPU=PERCENT,… The floors of a GPU add up to at most 100
    #[arg(long, value_name = "PERCENT|GPU=PERCENT,…", value_parser = values::floor, allow_hyphen_values = true)]
    pub(crate) floor: Vec<PerGpu>,

    /// Priority, 0 (the highest) to 1000: a container with a larger number waits while one with a
    /// smaller number works, capped or not, but keeps its own floor [at the start: 1]
    #[arg(long, value_name = "N", value_parser = values::priority, allow_hyphen_values = true)]
    pub(crate) priority: Option<u32>,

    /// Memory beyond --gpumem, kept on the host and moved in as needed: SIZE for every GPU, or
    /// GPU=SIZE,… The program sees the sum, and runs slower when it needs both at once
    #[arg(long, value_name = "SIZE|GPU=SIZE,…", value_parser = values::oversubscribe, allow_hyphen_values = true)]
    pub(crate) oversubscribe: Vec<PerGpu>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu set train --gpumem 8Gi        every GPU of the container
  vgpu set train --gpumem 0=8Gi      GPU 0 only; other GPUs keep their limits
  vgpu set train --gpucores 50       half of each GPU's time; 100 removes the cap
  vgpu set train --floor 20          20 % guaranteed, plus idle time
  vgpu set train --policy force      no guarantee any more: the cap always holds
  vgpu set train --priority 0        ahead of all other containers
  vgpu set train --oversubscribe none

Limits that are not named stay as they are. The container's processes see a new memory limit
within 100 ms, and a new compute limit takes effect within 200 ms. A memory limit below the present
use frees nothing: new allocations are refused until the processes have freed enough, and
vgpu top shows pending-shrink.")]
pub(crate) struct SetArgs {
    /// Name of the container, or UID/NAME if several users have a container of this name
    pub(crate) name: String,

    /// New memory limit: SIZE for each of its GPUs, or GPU=SIZE,… for some
    #[arg(long, value_name = "SIZE|GPU=SIZE,…", value_parser = values::gpu_mem, allow_hyphen_values = true)]
    pub(crate) gpumem: Vec<PerGpu>,

    #[command(flatten)]
    pub(crate) compute: ComputeArgs,

    #[command(flatten)]
    pub(crate) board: BoardArg,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu top                    live; q or Ctrl-C ends it
  vgpu top --once             print once
  vgpu top --waits            with how long launches waited, and for what
  vgpu top --json | jq .      for programs; docs/command.md lists the fields

When output is not a terminal, vgpu top prints once. NO_COLOR switches colour off.")]
pub(crate) struct TopArgs {
    /// Print once instead of live
    #[arg(long)]
    pub(crate) once: bool,

    /// Print once, as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Add a table of how long launches waited, and for what
    #[arg(long)]
    pub(crate) waits: bool,

    /// How often to redraw the live table: 500ms, 2s or a number of seconds
    #[arg(long, default_value = "1s", value_parser = values::interval, allow_hyphen_values = true)]
    pub(crate) interval: Duration,

    #[command(flatten)]
    pub(crate) board: BoardArg,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu oom                 refused allocations of all containers
  vgpu oom train           refused allocations of one container
  vgpu oom --json          for programs; docs/command.md lists the fields

Each container keeps its last 64 refusals.")]
pub(crate) struct OomArgs {
    /// Name of the container [default: all]
    pub(crate) name: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) board: BoardArg,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu sim -- ./app                                        2 GPUs of 16 GiB
  vgpu sim --gpus 8 --memory 80Gi -- ./app
  vgpu sim --memory 0=16Gi,1=40Gi -- python -c 'import numba.cuda'
  vgpu sim -- vgpu run --gpumem 4Gi -- ./app               with a limit
  vgpu sim --contrary -- vgpu run --gpumem 4Gi -- ./app    on a driver that chooses differently
  vgpu sim --board /tmp/b -- ./app                         keep the simulated board: a later call
                                                           with the same file joins it
Inside another vgpu sim, a call without settings of its own joins the outer simulated board.")]
pub(crate) struct SimArgs {
    /// Number of GPUs, 1 to 16 [default: 2]
    #[arg(long, value_name = "N", value_parser = values::sim_gpus, allow_hyphen_values = true)]
    pub(crate) gpus: Option<u32>,

    /// Memory of each GPU, or GPU=SIZE,… [default: 16Gi]
    #[arg(long, value_name = "SIZE|GPU=SIZE,…", value_parser = values::sim_memory, allow_hyphen_values = true)]
    pub(crate) memory: Option<SimMemory>,

    /// CUDA version that the driver reports [default: 12.4]
    #[arg(long, value_name = "MAJOR.MINOR", value_parser = values::driver_version, allow_hyphen_values = true)]
    pub(crate) driver: Option<DriverVersion>,

    /// File of the simulated board, kept at the end [default: a new file, removed at the end]
    #[arg(long, value_name = "FILE", value_parser = values::path)]
    pub(crate) board: Option<PathBuf>,

    /// Clock of the simulated board. A virtual clock advances when all programs wait for it;
    /// compute limits have no effect then, because they use the machine's clock [default: real]
    #[arg(long, value_name = "CLOCK")]
    pub(crate) clock: Option<Clock>,

    /// File with the duration of each kernel, by function name
    #[arg(long, value_name = "FILE", value_parser = values::path)]
    pub(crate) script: Option<PathBuf>,

    /// Wherever CUDA's documentation leaves the driver a choice, make the opposite of the usual one
    #[arg(long)]
    pub(crate) contrary: bool,

    /// The command and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Clock {
    Real,
    Virtual,
}
