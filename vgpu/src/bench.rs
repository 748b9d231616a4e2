//! `vgpu bench accuracy`: the list of cases and the report of them. The programs that keep the
//! GPU busy are `workload`'s, run by `vgpu run` like any other. `vgpu bench latency` is in `latency`.
//!
//! Never judges: it prints what was asked and what was got.

mod latency;
mod measure;
mod picture;
mod shares;
mod table;

use std::io::Write;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use supervisor::gpu::{Gpus, NvmlGpus};
use workload::{Job, Kind, Service, Simulated};

use crate::args::bench::{
    AccuracyArgs, BenchArgs, BenchCommand, BenchGpu, WorkerArgs, WorkerKind, WorkloadName,
};
use crate::values::GpuRef;
use crate::{Failure, library, limits};
use measure::{BenchContainer, Outcome, Setup, Under};
use shares::{Curve, Figures, figures, parts};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const CAPS: [u32; 6] = [5, 10, 25, 50, 75, 90];

pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode, Failure> {
    match &args.what {
        BenchCommand::Accuracy(args) => accuracy(args),
        BenchCommand::Latency(args) => latency::run(args, setup(&args.on, "latency")?),
        BenchCommand::Worker(args) => worker(args),
    }
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AccuracyRow {
    /// The workload's name.
    pub(crate) workload: String,
    /// Percent that was asked for.
    pub(crate) asked: u32,
    /// The measured share. There is none in a row about a slowdown, nor where a busy machine changed the cap only after the
    /// end.
    #[serde(flatten)]
    pub(crate) figures: Option<Figures>,
    /// From the end of `vgpu set` to the first window near what was asked, milliseconds.
    pub(crate) reach_ms: Option<u64>,
    /// How much longer it took than without a cap, percent.
    pub(crate) slower_percent: Option<f64>,
    /// The middle of each window of 100 ms in seconds, and its share in percent.
    pub(crate) shares: Vec<(f64, f64)>,
}

/// All that was measured.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AccuracyResults {
    /// Raised where a field changes its meaning.
    pub(crate) version: u32,
    /// Whether the GPU was a simulated one.
    pub(crate) simulated: bool,
    /// How long each case ran, seconds.
    pub(crate) seconds: f64,
    pub(crate) rows: Vec<AccuracyRow>,
}

fn accuracy(args: &AccuracyArgs) -> Result<ExitCode, Failure> {
    let setup = setup(&args.on, "accuracy")?;
    let mut results = AccuracyResults {
        version: 1,
        simulated: setup.simulated.is_some(),
        seconds: args.time.as_secs_f64(),
        rows: Vec::new(),
    };
    let caps = if args.caps.is_empty() {
        CAPS.to_vec()
    } else {
        args.caps.clone()
    };
    let bench = Accuracy {
        setup,
        time: args.time,
        caps,
    };
    if !args.json {
        table::begin(&mut std::io::stdout().lock())?;
    }
    for name in chosen(&args.workload) {
        for case in bench.cases(name) {
            let rows = bench.measure(&case)?;
            if !args.json {
                table::rows(&mut std::io::stdout().lock(), &rows)?;
            }
            results.rows.extend(rows);
        }
    }
    if args.json {
        let text = serde_json::to_string(&results).context("the results are no JSON")?;
        writeln!(std::io::stdout(), "{text}")?;
    }
    if let Some(path) = &args.svg {
        measure::write(path, &picture::svg(&results))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn setup(on: &BenchGpu, bench: &str) -> Result<Setup, Failure> {
    let simulated = Simulated::open().map_err(|error| {
        anyhow::anyhow!(
            "{error}. On a machine without an NVIDIA driver: vgpu sim -- vgpu bench {bench}"
        )
    })?;
    // Before the first case: the GPU and the library may be needed minutes later. Without NVML's answer, the first
    // program on the GPU says what is wrong.
    if let Ok(inventory) = NvmlGpus::open().and_then(|gpus| gpus.inventory()) {
        limits::find(&inventory.gpus, &GpuRef::Index(on.gpu))?;
    }
    let library = library::find(on.library.as_deref())?;
    Ok(Setup {
        exe: std::env::current_exe().context("this program has no path")?,
        gpu: on.gpu,
        library: Some(library),
        board: on.board.board.clone(),
        simulated,
    })
}

fn chosen(names: &[WorkloadName]) -> Vec<WorkloadName> {
    use clap::ValueEnum;
    if names.is_empty() {
        WorkloadName::value_variants().to_vec()
    } else {
        names.to_vec()
    }
}

/// Containers that run side by side.
struct Case {
    name: String,
    containers: Vec<BenchContainer>,
    /// The longest kernel or graph, nanoseconds.
    longest_ns: u64,
    what: What,
}

enum What {
    /// Each container gets what it asked for.
    Shares,
    /// The first one's cap changes.
    Change(Vec<(Duration, u32)>),
    /// A program is not slower than without a cap.
    Slower,
}

struct Accuracy {
    setup: Setup,
    time: Duration,
    caps: Vec<u32>,
}

impl Accuracy {
    fn job(&self, kind: Kind) -> Job {
        Job {
            kind,
            time: self.time,
            processes: 1,
            shares_input: false,
            device: 0,
        }
    }

    fn alone(&self, name: &str, job: Job, longest_ns: u64) -> Vec<Case> {
        let case = |cap: &u32| Case {
            name: name.to_owned(),
            containers: vec![BenchContainer {
                job,
                under: Some(Under::Cap(*cap)),
            }],
            longest_ns,
            what: What::Shares,
        };
        self.caps.iter().map(case).collect()
    }

    fn cases(&self, name: WorkloadName) -> Vec<Case> {
        let kernels = |ns| self.job(Kind::Kernels { ns });
        match name {
            WorkloadName::Small => self.alone("kernels of 20 µs", kernels(20 * US), 20 * US),
            WorkloadName::Large => self.alone("kernels of 5 ms", kernels(5 * MS), 5 * MS),
            WorkloadName::VeryLarge => self.alone("kernels of 50 ms", kernels(50 * MS), 50 * MS),
            WorkloadName::Synchronising => {
                let job = self.job(Kind::Synchronising { ns: MS });
                self.alone("1 ms, each waited for", job, MS)
            }
            WorkloadName::Graphs => self.alone("graphs of 10 ms", self.job(Kind::Graphs), 10 * MS),
            WorkloadName::Streams => {
                self.alone("250 µs in four streams", self.job(Kind::Streams), 250 * US)
            }
            WorkloadName::Processes => {
                let job = Job {
                    processes: 4,
                    ..kernels(MS)
                };
                self.alone("1 ms in four processes", job, MS)
            }
            WorkloadName::Mixed => self.alone("mixed", self.job(Kind::Mixed), 5 * MS),
            WorkloadName::Pairs => [(10, 90), (30, 70), (50, 50)]
                .map(|(a, b)| Case {
                    name: format!("two containers, {a}/{b}"),
                    containers: [a, b]
                        .map(|cap| BenchContainer {
                            job: kernels(MS),
                            under: Some(Under::Cap(cap)),
                        })
                        .into(),
                    longest_ns: MS,
                    what: What::Shares,
                })
                .into(),
            WorkloadName::Change => [
                ("1 ms, cap changed", kernels(MS), MS),
                ("graphs, cap changed", self.job(Kind::Graphs), 10 * MS),
            ]
            .map(|(name, job, longest_ns)| Case {
                name: name.to_owned(),
                containers: vec![BenchContainer {
                    job,
                    under: Some(Under::Cap(25)),
                }],
                longest_ns,
                what: What::Change(vec![(self.time / 3, 75), (self.time * 2 / 3, 10)]),
            })
            .into(),
            WorkloadName::Sparse => self.sparse(),
        }
    }

    /// Kernels and pauses, under the lowest cap that they ask less for.
    fn sparse(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for ns in [20 * US, 200 * US, MS, 5 * MS] {
            for pause_ns in [100 * US, MS, 10 * MS, 50 * MS] {
                let asks = ns * 100 / (ns + pause_ns) + 1;
                let lowest = self.caps.iter().filter(|cap| u64::from(**cap) > asks).min();
                let Some(cap) = lowest else { continue };
                cases.push(Case {
                    name: format!("{} and {} of pause", time(ns), time(pause_ns)),
                    containers: vec![BenchContainer {
                        job: self.job(Kind::Sparse { ns, pause_ns }),
                        under: Some(Under::Cap(*cap)),
                    }],
                    longest_ns: ns,
                    what: What::Slower,
                });
            }
        }
        cases
    }

    fn measure(&self, case: &Case) -> anyhow::Result<Vec<AccuracyRow>> {
        let run = |containers: &[BenchContainer], changes: &[(Duration, u32)]| {
            self.setup
                .run(containers, changes)
                .with_context(|| case.name.clone())
        };
        match &case.what {
            What::Shares => Ok(self.shares(case, &run(&case.containers, &[])?)),
            What::Change(changes) => {
                Ok(self.changes(case, changes, &run(&case.containers, changes)?))
            }
            What::Slower => {
                // In turn, and the better of two of each: whatever else the machine does only adds.
                let mut best = [f64::INFINITY; 2];
                for round in 0..4 {
                    let capped = round % 2 == 1;
                    let containers: Vec<_> = case
                        .containers
                        .iter()
                        .map(|container| BenchContainer {
                            under: container.under.filter(|_| capped),
                            ..*container
                        })
                        .collect();
                    let outcome = run(&containers, &[])?;
                    let reports = outcome.seen.iter().flat_map(|seen| &seen.reports);
                    let took = reports.map(|r| Duration::from_nanos(r.wall_ns)).max();
                    let took = took.unwrap_or_default().as_secs_f64();
                    if let Some(best) = best.get_mut(usize::from(capped)) {
                        *best = best.min(took);
                    }
                }
                let [native, capped] = best;
                Ok(case
                    .containers
                    .iter()
                    .map(|container| AccuracyRow {
                        workload: case.name.clone(),
                        asked: container.cap().unwrap_or(100),
                        figures: None,
                        reach_ms: None,
                        slower_percent: Some((capped / native - 1.0) * 100.0),
                        shares: Vec::new(),
                    })
                    .collect())
            }
        }
    }

    fn shares(&self, case: &Case, outcome: &Outcome) -> Vec<AccuracyRow> {
        let end_ns = self.end_ns();
        let each = case.containers.iter().zip(&outcome.seen);
        each.map(|(container, seen)| {
            let asked = container.cap().unwrap_or(100);
            AccuracyRow {
                workload: case.name.clone(),
                asked,
                figures: figures(&seen.curve, (0, end_ns), f64::from(asked), case.longest_ns),
                reach_ms: None,
                slower_percent: None,
                shares: seen.curve.drawn(end_ns),
            }
        })
        .collect()
    }

    /// A row for each part of the time between changes.
    fn changes(
        &self,
        case: &Case,
        changes: &[(Duration, u32)],
        outcome: &Outcome,
    ) -> Vec<AccuracyRow> {
        let nothing = Curve::default();
        let curve = outcome.seen.first().map_or(&nothing, |seen| &seen.curve);
        let first = case.containers.first().and_then(BenchContainer::cap);
        let caps = first.into_iter().chain(changes.iter().map(|(_, cap)| *cap));
        let parts = parts(&outcome.changed_ns, changes.len(), self.end_ns());
        let mut rows = Vec::new();
        for (asked, (begin_ns, end_ns)) in caps.zip(parts) {
            let after = begin_ns != 0;
            let reached_ns = curve.reached(begin_ns, end_ns, f64::from(asked));
            let settled_ns = if after {
                begin_ns + reached_ns.unwrap_or(0)
            } else {
                0
            };
            rows.push(AccuracyRow {
                workload: case.name.clone(),
                asked,
                figures: figures(
                    curve,
                    (settled_ns, end_ns),
                    f64::from(asked),
                    case.longest_ns,
                ),
                reach_ms: reached_ns.filter(|_| after).map(|ns| ns / MS),
                slower_percent: None,
                shares: Vec::new(),
            });
        }
        if let Some(row) = rows.first_mut() {
            row.shares = curve.drawn(self.end_ns());
        }
        rows
    }

    fn end_ns(&self) -> u64 {
        u64::try_from(self.time.as_nanos()).unwrap_or(u64::MAX)
    }
}

fn time(ns: u64) -> String {
    if ns >= MS {
        format!("{} ms", ns / MS)
    } else {
        format!("{} µs", ns / US)
    }
}

/// A process of a workload, as this program starts it.
fn worker(args: &WorkerArgs) -> Result<ExitCode, Failure> {
    let kind = match args.kind {
        WorkerKind::Kernels => Kind::Kernels { ns: args.kernel_ns },
        WorkerKind::Synchronising => Kind::Synchronising { ns: args.kernel_ns },
        WorkerKind::Graphs => Kind::Graphs,
        WorkerKind::Streams => Kind::Streams,
        WorkerKind::Mixed => Kind::Mixed,
        WorkerKind::Sparse => Kind::Sparse {
            ns: args.kernel_ns,
            pause_ns: args.pause_ns,
        },
        WorkerKind::Service => Kind::Service(Service {
            arrivals: args.arrivals.into(),
            request: args.request.into(),
            load_percent: args.load,
            seed: args.seed,
        }),
    };
    let job = Job {
        kind,
        time: Duration::from_millis(args.time_ms),
        processes: args.processes,
        shares_input: args.shares_input,
        device: args.device,
    };
    let exe = std::env::current_exe().context("this program has no path")?;
    workload::run(&job, |job| {
        let mut command = Command::new(exe);
        command.args(measure::words_of(job));
        command
    })
    .map_err(anyhow::Error::from)?;
    Ok(ExitCode::SUCCESS)
}
