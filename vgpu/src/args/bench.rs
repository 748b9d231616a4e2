//! The command line of `vgpu bench`: flags, help and examples.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};

use super::BoardArg;
use crate::values;

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: Bench,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Compare the compute shares that programs asked for with the shares they got
    Accuracy(AccuracyArgs),
    /// Keep a GPU busy with a known load
    #[command(hide = true)]
    Worker(WorkerArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu bench accuracy                          all cases: about 8 minutes
  vgpu bench accuracy --svg accuracy.svg       with a chart of share over time
  vgpu bench accuracy --workload graphs,small --caps 10,50 --time 3s
  vgpu sim -- vgpu bench accuracy              on a simulated GPU, which reports exact times

Each case runs real kernels under vgpu run and compares --gpucores with the GPU time that they
had. The kernels record this time themselves; a simulated board reports it exactly. Nothing else
should use the GPU while the benchmark runs.")]
pub(crate) struct AccuracyArgs {
    /// Workloads [default: all]
    #[arg(long, value_name = "NAME,…", value_enum, value_delimiter = ',')]
    pub(crate) workload: Vec<WorkloadName>,

    /// Caps, percent [default: 5,10,25,50,75,90]
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) caps: Vec<u32>,

    /// How long each case runs: 500ms, 2s or a number of seconds
    #[arg(long, default_value = "5s", value_parser = values::interval, allow_hyphen_values = true)]
    pub(crate) time: Duration,

    /// The GPU, by nvidia-smi's number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) gpu: u32,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Also write a chart of share over time to this file
    #[arg(long, value_name = "FILE", value_parser = values::path)]
    pub(crate) svg: Option<PathBuf>,

    /// The library to preload [default: beside this program, else /usr/local/vgpu]
    #[arg(long, env = "VGPU_LIBRARY", value_name = "FILE", value_parser = values::path)]
    pub(crate) library: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) board: BoardArg,
}

/// A workload by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkloadName {
    /// Kernels of 20 µs
    Small,
    /// Kernels of 5 ms
    Large,
    /// Kernels of 50 ms
    VeryLarge,
    /// Kernels of 1 ms, with a wait after each
    Synchronising,
    /// Graphs of 10 ms
    Graphs,
    /// Kernels of 250 µs in four streams
    Streams,
    /// Kernels of 1 ms in four processes under one cap
    Processes,
    /// Kernels of 20 µs to 5 ms, graphs, waits and pauses, in random order
    Mixed,
    /// Kernels of 1 ms in two containers: 10/90, 30/70, 50/50
    Pairs,
    /// Kernels of 1 ms, and graphs, while vgpu set changes the cap
    Change,
    /// Kernels and pauses that need less than the cap: measures how much the cap slows them
    Sparse,
}

#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    #[arg(long, value_enum)]
    pub(crate) kind: WorkerKind,
    #[arg(long, default_value_t = 0)]
    pub(crate) kernel_ns: u64,
    #[arg(long, default_value_t = 0)]
    pub(crate) pause_ns: u64,
    #[arg(long)]
    pub(crate) time_ms: u64,
    #[arg(long, default_value_t = 1)]
    pub(crate) processes: u32,
    #[arg(long, default_value_t = 0)]
    pub(crate) device: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkerKind {
    Kernels,
    Synchronising,
    Graphs,
    Streams,
    Mixed,
    Sparse,
}
