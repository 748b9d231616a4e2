//! `vgpu bench latency`: the combinations of a service and training, and the report of them.
//!
//! Never judges: it prints what the service measured and what the training got.

mod figures;
mod picture;
mod table;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use workload::{Arrivals, Job, Kind, Request, Service};

use super::measure::{self, BenchContainer, LONGER, Observed, Setup, Under};
use crate::Failure;
use crate::args::bench::{ArrivalsName, LatencyArgs, RequestName, TrainingName};
use figures::{LatencyResults, LatencyRow, ServiceFigures, Setting, TrainingFigures};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// For how long requests arrive.
const TIME: Duration = Duration::from_secs(10);
/// The same with `--quick`.
const QUICK_TIME: Duration = Duration::from_secs(2);
/// The priorities of the service and of the training.
const FIRST: u32 = 0;
const LAST: u32 = 9;

impl From<ArrivalsName> for Arrivals {
    fn from(name: ArrivalsName) -> Self {
        match name {
            ArrivalsName::Poisson => Self::Poisson,
            ArrivalsName::Bursts => Self::Bursts,
        }
    }
}

impl From<RequestName> for Request {
    fn from(name: RequestName) -> Self {
        match name {
            RequestName::Kernels => Self::Kernels,
            RequestName::SmallModel => Self::SmallModel,
            RequestName::Generation => Self::Generation,
        }
    }
}

impl TrainingName {
    fn kind(self) -> Kind {
        let kernels = |ns| Kind::Kernels { ns };
        match self {
            Self::Short => kernels(100 * US),
            Self::Middle => kernels(MS),
            Self::Long => kernels(5 * MS),
            Self::Graphs => Kind::Graphs,
        }
    }

    /// The duration of a kernel, or of a graph.
    fn piece_ns(self) -> u64 {
        match self.kind() {
            Kind::Kernels { ns } => ns,
            _ => 10 * MS,
        }
    }
}

/// The name by which the command line, the table and the JSON call a choice.
fn name_of(choice: &impl ValueEnum) -> String {
    let value = choice.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn chosen<T: ValueEnum + Clone>(names: &[T], quick: Option<T>) -> Vec<T> {
    match (names, quick) {
        ([], Some(quick)) => vec![quick],
        ([], None) => T::value_variants().to_vec(),
        (names, _) => names.to_vec(),
    }
}

pub(crate) fn run(args: &LatencyArgs, setup: Setup) -> Result<ExitCode, Failure> {
    let time = if args.quick { QUICK_TIME } else { TIME };
    let bench = LatencyBench {
        setup,
        time: args.time.unwrap_or(time),
        load_percent: args.load,
        seed: args.seed,
    };
    let to_stdout = args.json.as_deref() == Some(Path::new("-"));
    let json_file = args.json.as_deref().filter(|_| !to_stdout);
    for path in [json_file, args.svg.as_deref()].into_iter().flatten() {
        measure::writable(path)?;
    }
    let mut results = LatencyResults {
        version: 1,
        simulated: bench.setup.simulated.is_some(),
        seconds: bench.time.as_secs_f64(),
        load_percent: args.load,
        seed: args.seed,
        rows: Vec::new(),
    };
    if !to_stdout {
        table::begin(&mut std::io::stdout().lock())?;
    }
    bench.measure(args, |row| {
        if !to_stdout {
            table::row(&mut std::io::stdout().lock(), &row)?;
        }
        results.rows.push(row);
        Ok(())
    })?;
    let text = serde_json::to_string(&results).context("the results are no JSON")?;
    if to_stdout {
        writeln!(std::io::stdout(), "{text}")?;
    }
    if let Some(path) = json_file {
        measure::write(path, &format!("{text}\n"))?;
    }
    if let Some(path) = &args.svg {
        measure::write(path, &picture::svg(&results))?;
    }
    Ok(ExitCode::SUCCESS)
}

struct LatencyBench {
    setup: Setup,
    time: Duration,
    load_percent: u32,
    seed: u64,
}

impl LatencyBench {
    fn measure(
        &self,
        args: &LatencyArgs,
        mut tell: impl FnMut(LatencyRow) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let quick = args.quick;
        let trainings = chosen(&args.training, quick.then_some(TrainingName::Middle));
        let requests = chosen(&args.request, quick.then_some(RequestName::Kernels));
        let arrivals = chosen(&args.arrivals, quick.then_some(ArrivalsName::Poisson));
        let mut alone = Vec::new();
        for training in trainings {
            let share = self.training_alone(training)?;
            alone.push((training, share));
            tell(LatencyRow {
                setting: Setting::Alone,
                service: None,
                training: Some(of_training(training, share, share, None)),
            })?;
        }
        for request in &requests {
            for arrivals in &arrivals {
                let load = Load {
                    bench: self,
                    request: *request,
                    arrivals: *arrivals,
                };
                tell(load.alone()?)?;
                for (training, share) in &alone {
                    for setting in [Setting::Beside, Setting::Vgpu] {
                        tell(load.beside(*training, *share, setting)?)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn job(&self, kind: Kind) -> Job {
        Job {
            kind,
            time: self.time,
            processes: 1,
            shares_input: false,
            device: 0,
        }
    }

    /// The percentage of the GPU that training uses alone.
    fn training_alone(&self, training: TrainingName) -> anyhow::Result<f64> {
        let container = BenchContainer {
            job: self.job(training.kind()),
            under: None,
        };
        let outcome = self.setup.run(&[container], &[]);
        let outcome = outcome.with_context(|| format!("training {} alone", name_of(&training)))?;
        let seen = outcome.seen.first().context("the training was not seen")?;
        Ok(self.share(seen))
    }

    fn share(&self, seen: &Observed) -> f64 {
        seen.curve.share(0, self.time_ns())
    }

    fn time_ns(&self) -> u64 {
        u64::try_from(self.time.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A service and how its requests arrive.
struct Load<'a> {
    bench: &'a LatencyBench,
    request: RequestName,
    arrivals: ArrivalsName,
}

impl Load<'_> {
    fn name(&self) -> String {
        let (request, arrivals) = (name_of(&self.request), name_of(&self.arrivals));
        format!("requests {request}, {arrivals}")
    }

    fn container(&self, under: Option<Under>) -> BenchContainer {
        let service = Service {
            arrivals: self.arrivals.into(),
            request: self.request.into(),
            load_percent: self.bench.load_percent,
            seed: self.bench.seed,
        };
        BenchContainer {
            job: self.bench.job(Kind::Service(service)),
            under,
        }
    }

    fn alone(&self) -> anyhow::Result<LatencyRow> {
        let outcome = self.bench.setup.run(&[self.container(None)], &[]);
        let outcome = outcome.with_context(|| format!("{} alone", self.name()))?;
        let [seen] = &outcome.seen[..] else {
            anyhow::bail!("the service was not seen");
        };
        Ok(LatencyRow {
            setting: Setting::Alone,
            service: Some(self.figures(seen)?),
            training: None,
        })
    }

    /// Both programs. The service is the first one, so that the training works until the service has ended.
    fn beside(
        &self,
        training: TrainingName,
        alone_percent: f64,
        setting: Setting,
    ) -> anyhow::Result<LatencyRow> {
        let under = |priority| (setting == Setting::Vgpu).then_some(Under::Priority(priority));
        let job = self.bench.job(training.kind());
        let containers = [
            self.container(under(FIRST)),
            BenchContainer {
                job: Job {
                    time: job.time + LONGER,
                    ..job
                },
                under: under(LAST),
            },
        ];
        let outcome = self.bench.setup.run(&containers, &[]);
        let outcome = outcome.with_context(|| {
            format!(
                "{} beside training {} ({})",
                self.name(),
                name_of(&training),
                setting.name()
            )
        })?;
        let [service, work] = &outcome.seen[..] else {
            anyhow::bail!("two programs were started and {} seen", outcome.seen.len());
        };
        let service = self.figures(service)?;
        let share = self.bench.share(work);
        let left = figures::percent_of(share, alone_percent - service.share_percent);
        Ok(LatencyRow {
            setting,
            service: Some(service),
            training: Some(of_training(training, share, alone_percent, left)),
        })
    }

    fn figures(&self, seen: &Observed) -> anyhow::Result<ServiceFigures> {
        let report = seen
            .reports
            .first()
            .context("the service reported nothing")?;
        let served = &report.served;
        let latency = figures::latency(served).context("the service answered no request")?;
        let finished = served.finished_ns.len();
        Ok(ServiceFigures {
            request: name_of(&self.request),
            arrivals: name_of(&self.arrivals),
            requests: finished + served.unfinished_ns.len(),
            unfinished: served.unfinished_ns.len(),
            latency,
            per_second: figures::per_second(finished, self.bench.time_ns(), report.wall_ns),
            share_percent: self.bench.share(seen),
        })
    }
}

fn of_training(
    training: TrainingName,
    share_percent: f64,
    alone_percent: f64,
    of_left_percent: Option<f64>,
) -> TrainingFigures {
    TrainingFigures {
        name: name_of(&training),
        per_second: figures::pieces_per_second(share_percent, training.piece_ns()),
        share_percent,
        of_alone_percent: figures::percent_of(share_percent, alone_percent).unwrap_or(0.0),
        of_left_percent,
    }
}
