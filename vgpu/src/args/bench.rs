//! The command line of `vgpu bench`: flags, help and examples.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};

use super::BoardArg;
use crate::values;

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Compare the compute shares that programs asked for with the shares they got
    Accuracy(AccuracyArgs),
    /// Measure how long a service's requests take beside training of a lower priority
    Latency(LatencyArgs),
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

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Also write a chart of share over time to this file
    #[arg(long, value_name = "FILE", value_parser = values::path)]
    pub(crate) svg: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) on: BenchGpu,
}

/// The GPU that a benchmark uses, and what it runs containers with.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchGpu {
    /// The GPU, by nvidia-smi's number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) gpu: u32,

    /// The library to preload [default: beside this program, else /usr/local/vgpu]
    #[arg(long, env = "VGPU_LIBRARY", value_name = "FILE", value_parser = values::path)]
    pub(crate) library: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) board: BoardArg,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu bench latency                       all combinations: about 12 minutes
  vgpu bench latency --quick               one combination in a few seconds
  vgpu bench latency --svg latency.svg     with a chart
  vgpu bench latency --request kernels --training 1ms,graphs --time 30s --json latency.json
  vgpu sim -- vgpu bench latency           on a simulated GPU

A service answers requests one at a time, in the order of their arrival. The latency of a request
is the time from its arrival to the end of its last kernel, by the service's own clock. Each
combination of a service and training runs in three settings:

  alone    the service alone, and the training alone, without vgpu
  beside   the service beside the training, without vgpu
  vgpu     the service beside the training, under vgpu run --priority 0 and --priority 9

The requests arrive at the same moments in each setting. Nothing else should use the GPU while the
benchmark runs.")]
pub(crate) struct LatencyArgs {
    /// When requests arrive [default: all]
    #[arg(long, value_name = "NAME,…", value_enum, value_delimiter = ',')]
    pub(crate) arrivals: Vec<ArrivalsName>,

    /// The work of a request [default: all]
    #[arg(long, value_name = "NAME,…", value_enum, value_delimiter = ',')]
    pub(crate) request: Vec<RequestName>,

    /// The work of the training [default: all]
    #[arg(long, value_name = "NAME,…", value_enum, value_delimiter = ',')]
    pub(crate) training: Vec<TrainingName>,

    /// One combination in a few seconds: poisson, kernels, 1ms, 2s, where no other flag says
    /// otherwise
    #[arg(long)]
    pub(crate) quick: bool,

    /// For how long requests arrive in each setting: 500ms, 2s or a number of seconds [default: 10s]
    #[arg(long, value_parser = values::interval, allow_hyphen_values = true)]
    pub(crate) time: Option<Duration>,

    /// Mean share of the GPU that the requests need, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=90))]
    pub(crate) load: u32,

    /// The same seed gives the same arrivals
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Print JSON instead of the table, or write it to this file beside the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", value_parser = values::path)]
    pub(crate) json: Option<PathBuf>,

    /// Also write a chart of the latencies to this file
    #[arg(long, value_name = "FILE", value_parser = values::path)]
    pub(crate) svg: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) on: BenchGpu,
}

/// When requests arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArrivalsName {
    /// One at a time, independently of each other
    Poisson,
    /// Eight at one moment, then a pause
    Bursts,
}

/// The work of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RequestName {
    /// 10 kernels of 200 µs
    Kernels,
    /// 60 kernels of 50 µs
    SmallModel,
    /// A prefill of 40 ms and 100 decode steps of 8 ms, each waited for
    Generation,
}

/// The work of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TrainingName {
    /// Kernels of 100 µs
    #[value(name = "100us")]
    Short,
    /// Kernels of 1 ms
    #[value(name = "1ms")]
    Middle,
    /// Kernels of 5 ms
    #[value(name = "5ms")]
    Long,
    /// Graphs of 20 kernels, 10 ms together
    Graphs,
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
    #[arg(long)]
    pub(crate) shares_input: bool,
    #[arg(long, default_value_t = 0)]
    pub(crate) device: u32,
    #[arg(long, value_enum, default_value_t = ArrivalsName::Poisson)]
    pub(crate) arrivals: ArrivalsName,
    #[arg(long, value_enum, default_value_t = RequestName::Kernels)]
    pub(crate) request: RequestName,
    #[arg(long, default_value_t = 1)]
    pub(crate) load: u32,
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkerKind {
    Kernels,
    Synchronising,
    Graphs,
    Streams,
    Mixed,
    Sparse,
    Service,
}
