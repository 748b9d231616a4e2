//! The command line of what serves jobs of Slurm: `vgpu slurm prolog`, `task`, `epilog`.

use std::path::PathBuf;

use clap::Subcommand;

use super::BoardArg;
use crate::values::{self, PerGpu};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
In slurm.conf, with a script for each of the two that runs it (examples/slurm):
  Prolog=/etc/slurm/vgpu-prolog      vgpu slurm prolog --shards 16
  Epilog=/etc/slurm/vgpu-epilog      vgpu slurm epilog
In plugstack.conf:
  required /usr/local/lib/vgpu/vgpu_spank.so
Then a job gets 4 of 16 shards of a GPU, a quarter of its memory and of its time:
  srun --gres=shard:4 COMMAND
docs/slurm.md has the rest.")]
pub(crate) struct SlurmArgs {
    #[command(subcommand)]
    pub(crate) moment: SlurmMoment,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SlurmMoment {
    /// Make the limits of a job that is about to start on this node
    Prolog(PrologArgs),
    /// Put a task under its job's limits; the plugin vgpu_spank.so runs it
    Task(TaskArgs),
    /// Remove the limits of a job that has ended on this node
    Epilog(EpilogArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
slurmd runs it as root, with the job's variables (SLURM_JOB_ID, SLURM_JOB_GPUS, …). How many shards the
job has is asked of slurmctld, by scontrol. Options of the job (--gpumem, --gpucores, --gpupriority)
can only lower its share.

Exit code: 0 also for a job that asks for more than its shards give: none of its tasks starts, and the
job's output says why. 1 if this node cannot give shares: slurmd then drains the node. 2 if the
arguments are wrong.")]
pub(crate) struct PrologArgs {
    /// Shards of each GPU, as in gres.conf: a number, or GPU=NUMBER,…
    #[arg(long, value_name = "NUMBER|GPU=NUMBER,…", value_parser = values::shards)]
    pub(crate) shards: PerGpu,

    /// Slurm's scontrol; a name without a slash is looked for in PATH
    #[arg(long, value_name = "FILE", default_value = "scontrol", value_parser = values::path)]
    pub(crate) scontrol: PathBuf,

    /// The library to preload [default: beside this program, else /usr/local/vgpu]
    #[arg(long, env = "VGPU_LIBRARY", value_name = "FILE", value_parser = values::path)]
    pub(crate) library: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) board: BoardArg,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It mounts the job's limits in its own mount namespace, which has to be another one than the machine's.
Exit code: 0 if the task may start, also for a job without a share of a GPU; 1 if it may not.")]
pub(crate) struct TaskArgs {
    /// Slurm's number of the job
    #[arg(long, value_name = "NUMBER")]
    pub(crate) job: u32,

    /// --gpumem of the step
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) gpumem: Option<String>,

    /// --gpucores of the step
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub(crate) gpucores: Option<String>,

    /// --gpupriority of the step
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub(crate) gpupriority: Option<String>,

    #[command(flatten)]
    pub(crate) board: BoardArg,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
slurmd runs it as root, with the job's number in SLURM_JOB_ID. It may be run again, and for a job that
never had a share. Processes of the job that could not be ended keep its limits; the limits are
removed when these processes are gone.

Exit code: 0; 1 if the limits could not be removed: slurmd then drains the node.")]
pub(crate) struct EpilogArgs {
    #[command(flatten)]
    pub(crate) board: BoardArg,
}
