//! What can be typed. Owns every flag, its help and its examples.
//!
//! Never decides: a value that parses is a value, and what it means for the GPUs that there are
//! is decided elsewhere.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use crate::bench::args::BenchArgs;
use crate::doctor::args::DoctorArgs;
use crate::explain::args::ExplainArgs;
use crate::values::{self, ContainerName, DriverVersion, GpuRef, PerGpu, PolicyName, SimMemory};

/// Give each program its share of a GPU's memory and time, and no more.
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
  vgpu top                                     who uses what
  vgpu set python-1 --gpumem 8Gi               more, while it runs
  vgpu oom python-1                            what was refused, and who held the memory
  vgpu sim -- vgpu run --gpumem 4Gi -- ./app   all of it without a GPU
  vgpu explain train                           why a pod of a cluster is pending
  vgpu simulate --import export.json           try scheduling without a cluster
  vgpu doctor                                  what is wrong here, and what to do about it"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command under limits of GPU memory and compute time
    Run(RunArgs),
    /// Show containers, their processes, and what they use
    Top(TopArgs),
    /// Change the limits of a running container
    Set(SetArgs),
    /// Show refused requests, and who held the memory
    Oom(OomArgs),
    /// Run a command on simulated GPUs
    Sim(SimArgs),
    /// Measure how well limits hold
    Bench(BenchArgs),
    /// Say why a pod is not placed, and the smallest change after which it would be
    Explain(ExplainArgs),
    /// Try, replay and explain scheduling without a cluster
    Simulate(Box<scheduler::simulate::Args>),
    /// Look for what is wrong: in a container, on a node, of a cluster
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    #[command(after_help = "\
Examples:
  vgpu completions bash > ~/.local/share/bash-completion/completions/vgpu
  vgpu completions zsh > ~/.zfunc/_vgpu
  vgpu completions fish > ~/.config/fish/completions/vgpu.fish")]
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Print the version, and those of the files that it reads and writes
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
  vgpu run --gpumem 0=4Gi,1=8Gi -- ./app            GPUs 0 and 1, a limit each
  vgpu run --gpucores 30 -- ./app                   at most 30 % of each GPU's time
  vgpu run --gpucores 30 --policy default -- ./app  30 % while others use it, else all
  vgpu run --floor 20 -- ./serve                    20 % guaranteed, and what is idle
  vgpu run --priority 9 -- ./background             waits while others work
  vgpu run --gpumem 4Gi --oversubscribe 4Gi -- ./app
                                                    sees 8 GiB, 4 of them on the GPU
  vgpu run --name train --gpumem 4Gi -- ./app       a name for top, set and oom

The command and everything that it starts share the limits. The exit code is the command's:
128 and the signal's number when a signal killed it, 126 when it could not be run, 127 when
it was not found. Inside a vgpu run, limits can only be lowered; what is not named there stays
as it is around.

A compute limit counts GPU time over any second, whatever the kernels look like. Where several
containers want a GPU, floors come first, then priorities; what nobody uses is lent in proportion
to floors, and is back within 200 ms plus the longest running kernel.

Where an MPS control daemon runs (CUDA_MPS_PIPE_DIRECTORY or /tmp/nvidia-mps has its control),
--gpucores N also sets CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=N for the command, unless a lower one is
set. MPS has one share for all GPUs of a program, fixed when it starts, and lets none wait for another:
compute limits that differ by GPU, --policy default and --floor are refused there.

The limits are cooperative: the command runs as the same user, who could take the library out of
its environment. Limits that hold against a tenant are the node agent's.")]
pub(crate) struct RunArgs {
    /// Memory limit: SIZE for every GPU, or GPU=SIZE,… (Ki Mi Gi Ti are 1024-based, K M G T 1000)
    #[arg(long, value_name = "SIZE|GPU=SIZE,…", value_parser = values::gpu_mem, allow_hyphen_values = true)]
    pub(crate) gpumem: Vec<PerGpu>,

    #[command(flatten)]
    pub(crate) compute: ComputeArgs,

    /// GPUs that the command may use, by number as nvidia-smi shows it or by UUID [default: all,
    /// or those that --gpumem names, else --gpucores, else --floor]
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

/// Where running containers are found.
#[derive(Debug, clap::Args)]
pub(crate) struct BoardArg {
    /// Directory of the running containers [default: /run/vgpu, else /tmp/vgpu]
    #[arg(long, env = "VGPU_BOARD", value_name = "DIR", value_parser = values::path)]
    pub(crate) board: Option<PathBuf>,
}

/// Flags that say how much of a GPU's time, and what happens when there is too little of it.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ComputeArgs {
    /// Compute limit, percent of the GPU's time, 1 to 100 (100: no cap): PERCENT of every GPU, or
    /// GPU=PERCENT,…
    #[arg(long, value_name = "PERCENT|GPU=PERCENT,…", value_parser = values::gpu_cores, allow_hyphen_values = true)]
    pub(crate) gpucores: Vec<PerGpu>,

    /// When the compute limit holds: force (always), default (while another container uses the
    /// GPU), floor (--floor is guaranteed, what is idle is lent up to --gpucores), disable (never)
    /// [at the start: force, with --floor floor]
    #[arg(
        long,
        value_name = "POLICY",
        ignore_case = true,
        hide_possible_values = true
    )]
    pub(crate) policy: Option<PolicyName>,

    /// Guaranteed share, percent of the GPU's time, 1 to 100: PERCENT of every GPU, or
    /// GPU=PERCENT,… All floors of a GPU together are at most 100
    #[arg(long, value_name = "PERCENT|GPU=PERCENT,…", value_parser = values::floor, allow_hyphen_values = true)]
    pub(crate) floor: Vec<PerGpu>,

    /// Priority, 0 (the highest) to 1000: who has a larger number waits while a smaller one works,
    /// capped or not, but keeps its own floor [at the start: 1]
    #[arg(long, value_name = "N", value_parser = values::priority, allow_hyphen_values = true)]
    pub(crate) priority: Option<u32>,

    /// Memory beyond --gpumem, kept on the host and moved in as needed: SIZE for every GPU, or
    /// GPU=SIZE,… The program sees the sum, and runs slower where it needs both at once
    #[arg(long, value_name = "SIZE|GPU=SIZE,…", value_parser = values::oversubscribe, allow_hyphen_values = true)]
    pub(crate) oversubscribe: Vec<PerGpu>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu set train --gpumem 8Gi        every GPU of the container
  vgpu set train --gpumem 0=8Gi      GPU 0 only; the others stay as they are
  vgpu set train --gpucores 50       half of each GPU's time; 100 takes the cap away
  vgpu set train --floor 20          20 % guaranteed, and what is idle
  vgpu set train --policy force      no guarantee any more: the cap always holds
  vgpu set train --priority 0        before all others
  vgpu set train --oversubscribe none

What is not named stays as it is. The container's processes see a new memory limit within 100 ms,
and work under a new compute limit within 200 ms. A memory limit below what is used takes nothing
away: new requests are refused until enough was freed, and top says pending-shrink.")]
pub(crate) struct SetArgs {
    /// Name of the container, or UID/NAME where several users have one of this name
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
  vgpu top --json | jq .      for programs; docs/command.md has the fields

Without a terminal it prints once. NO_COLOR switches colour off.")]
pub(crate) struct TopArgs {
    /// Print once instead of live
    #[arg(long)]
    pub(crate) once: bool,

    /// Print once, as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// How often the live table is drawn: 500ms, 2s or seconds
    #[arg(long, default_value = "1s", value_parser = values::interval, allow_hyphen_values = true)]
    pub(crate) interval: Duration,

    #[command(flatten)]
    pub(crate) board: BoardArg,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu oom                 every container's refused requests
  vgpu oom train           those of one
  vgpu oom --json          for programs; docs/command.md has the fields

A container keeps its last 64.")]
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
  vgpu sim --contrary -- vgpu run --gpumem 4Gi -- ./app    on another kind of driver
  vgpu sim --board /tmp/b -- ./app                         keep the board: a later call with
                                                           the same file joins it as it is
Inside another vgpu sim, a call without settings of its own joins the outer board.")]
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

    /// File of the board, kept at the end [default: one of its own, removed at the end]
    #[arg(long, value_name = "FILE", value_parser = values::path)]
    pub(crate) board: Option<PathBuf>,

    /// Clock of the board: with the virtual one, time passes when all programs wait for it, and
    /// compute limits, which go by the machine's clock, mean nothing [default: real]
    #[arg(long, value_name = "CLOCK")]
    pub(crate) clock: Option<Clock>,

    /// File that says how long kernels take, by function name
    #[arg(long, value_name = "FILE", value_parser = values::path)]
    pub(crate) script: Option<PathBuf>,

    /// The driver does the opposite of its usual choice wherever CUDA's documentation leaves one
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
