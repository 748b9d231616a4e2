//! The launches of a workload, and its protocol with the program that started it: it writes a line `ready PID`, reads
//! one byte, works, and reports. Owns the protocol and the patterns.
//!
//! Does not measure a share itself on a simulated GPU, because the board measures it better.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::chance::Chance;
use crate::driver::{Done, Driver, DriverError, Event, Graph, Kernel, Stream};
use crate::service::Service;
use crate::truth::{self, Bins};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
/// The most work that is queued, as in programs that bound their memory.
const QUEUED_NS: u64 = 100 * MILLISECOND;
/// How much longer than its time a service works on the requests that arrived within it, at most.
const LATE: Duration = Duration::from_secs(30);
/// The number of records on a real GPU: 20 seconds of the smallest kernels.
const RECORDS: usize = 1 << 20;

/// The pattern of a workload's launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Kernels of this length, one after another in one stream.
    Kernels {
        /// The duration of each, in nanoseconds.
        ns: u64,
    },
    /// As `Kernels`, but waits for each one.
    Synchronising {
        /// The duration of each, in nanoseconds.
        ns: u64,
    },
    /// Graphs of 20 kernels, 10 ms in all.
    Graphs,
    /// Kernels of 250 µs in four streams.
    Streams,
    /// A random mix of kernels of 20 µs to 5 ms in two streams, graphs, waits and pauses.
    Mixed,
    /// One kernel and a pause, repeated.
    Sparse {
        /// The duration of each kernel, in nanoseconds.
        ns: u64,
        /// The duration of each pause, in nanoseconds.
        pause_ns: u64,
    },
    /// A service that answers requests, one after another in the order of their arrival.
    Service(Service),
}

/// The work of one process.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// The pattern of its launches.
    pub kind: Kind,
    /// The duration. A job of `Kernels` or `Graphs` in one process ends earlier if its input is closed.
    pub time: Duration,
    /// The number of processes with this job, including this one; it starts the others.
    pub processes: u32,
    /// Another process has started this one and reads from the same pipe.
    pub shares_input: bool,
    /// The device's CUDA ordinal.
    pub device: u32,
}

/// The requests of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Served {
    /// From the arrival of each finished request to its end, in nanoseconds.
    pub finished_ns: Vec<u64>,
    /// From the arrival of each other request to the moment in which the service gave up, in nanoseconds.
    pub unfinished_ns: Vec<u64>,
}

/// The report of one process.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Its process id in its own namespace.
    pub pid: u32,
    /// The number of kernels and graphs launched.
    pub launches: u64,
    /// The time from the first launch to the end of the last, in nanoseconds.
    pub wall_ns: u64,
    /// The requests that it answered, if it is a service.
    pub served: Served,
    /// Its kernels' records; empty on a simulated GPU.
    pub bins: Bins,
}

impl Report {
    /// Parses the last line of a worker.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let numbers = line.strip_prefix("done ")?.split(' ');
        let numbers: Option<Vec<u64>> = numbers.map(|word| word.parse().ok()).collect();
        let mut numbers = numbers?.into_iter();
        let (pid, launches, wall_ns) = (numbers.next()?, numbers.next()?, numbers.next()?);
        let mut list = || {
            let count = usize::try_from(numbers.next()?).ok()?;
            let list: Vec<u64> = numbers.by_ref().take(count).collect();
            (list.len() == count).then_some(list)
        };
        let served = Served {
            finished_ns: list()?,
            unfinished_ns: list()?,
        };
        Some(Self {
            pid: u32::try_from(pid).ok()?,
            launches,
            wall_ns,
            served,
            bins: Bins {
                begin_ns: numbers.next()?,
                busy_ns: numbers.collect(),
            },
        })
    }

    fn line(&self) -> String {
        let Self {
            pid,
            launches,
            wall_ns,
            served,
            bins,
        } = self;
        let mut line = format!("done {pid} {launches} {wall_ns}");
        for list in [&served.finished_ns, &served.unfinished_ns] {
            put(&mut line, list.len() as u64);
            list.iter().for_each(|ns| put(&mut line, *ns));
        }
        put(&mut line, bins.begin_ns);
        bins.busy_ns.iter().for_each(|ns| put(&mut line, *ns));
        line
    }
}

fn put(line: &mut String, number: u64) {
    line.push(' ');
    line.push_str(&number.to_string());
}

/// Why a workload ended early.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The driver refused a call.
    #[error("{0}")]
    Driver(#[from] DriverError),
    /// The other end of the pipe is closed.
    #[error("cannot talk with the program that started it: {0}")]
    Talk(#[from] std::io::Error),
}

/// Does a job in this process. `again` returns the command for another process with the given job.
///
/// # Errors
/// The driver refused a call, or the other end of the pipe is closed.
pub fn run(job: &Job, again: impl FnOnce(&Job) -> Command) -> Result<(), WorkError> {
    let mut worker = Worker::start(job)?;
    say(&format!("ready {}", std::process::id()))?;
    let mut other = None;
    if job.processes > 1 {
        let rest = Job {
            processes: job.processes - 1,
            shares_input: true,
            ..*job
        };
        other = Some(Other(again(&rest).stdin(Stdio::inherit()).spawn()?));
    }
    // Reads one byte for each process that shares the pipe. Rust's own stdin would buffer the bytes of the others.
    let mut input = std::fs::File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    input.read_exact(&mut [0])?;
    // The last of several processes would take the bytes that the others have not read yet.
    if job.processes == 1
        && !job.shares_input
        && matches!(job.kind, Kind::Kernels { .. } | Kind::Graphs)
    {
        let told_to_end = Arc::clone(&worker.told_to_end);
        std::thread::spawn(move || {
            while matches!(input.read(&mut [0]), Ok(1)) {}
            told_to_end.store(true, Ordering::Relaxed);
        });
    }
    let launches = worker.work(job)?;
    let report = worker.report(launches);
    say(&report.line())?;
    if let Some(other) = &mut other {
        other.0.wait()?;
    }
    Ok(())
}

/// A process that is killed when this value is dropped.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // It has normally ended already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Writes whole lines, because several processes write into one pipe.
fn say(line: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(format!("{line}\n").as_bytes())?;
    stdout.flush()
}

struct Worker {
    driver: Driver,
    streams: Vec<Stream>,
    kernels: Vec<Kernel>,
    graph: Option<Graph>,
    round_ns: f64,
    started: Instant,
    served: Served,
    /// Set when the program that started this process closes its input.
    told_to_end: Arc<AtomicBool>,
}

impl Worker {
    fn start(job: &Job) -> Done<Self> {
        let durations = durations(job.kind);
        let mut driver = Driver::open(job.device, &durations)?;
        let count = match job.kind {
            Kind::Streams => 4,
            Kind::Mixed => 2,
            _ => 1,
        };
        let streams = (0..count)
            .map(|_| driver.stream())
            .collect::<Done<Vec<_>>>()?;
        let mut kernels = durations
            .iter()
            .map(|ns| driver.kernel(*ns))
            .collect::<Done<Vec<_>>>()?;
        let mut round_ns = 0.0;
        if let (false, Some(stream), Some(kernel)) =
            (driver.simulated, streams.first(), kernels.first())
        {
            round_ns = calibrate(&driver, *stream, *kernel)?;
            driver.keep_records(RECORDS)?;
        }
        for kernel in &mut kernels {
            kernel.rounds = rounds(kernel.ns, round_ns);
        }
        let graph = match (job.kind, streams.first(), kernels.last()) {
            (Kind::Graphs, Some(stream), Some(kernel)) => {
                Some(driver.graph(&[*kernel; 20], *stream)?)
            }
            (Kind::Mixed, Some(stream), Some(kernel)) => {
                Some(driver.graph(&[*kernel; 3], *stream)?)
            }
            _ => None,
        };
        let worker = Self {
            driver,
            streams,
            kernels,
            graph,
            round_ns,
            started: Instant::now(),
            served: Served::default(),
            told_to_end: Arc::default(),
        };
        if let (Kind::Service(service), Some(stream), Some(kernel)) =
            (job.kind, worker.streams.first(), worker.kernels.first())
        {
            // The first launches load the module, which no request should wait for.
            worker.answer(&service.request.steps(), *stream, *kernel)?;
        }
        Ok(worker)
    }

    fn work(&mut self, job: &Job) -> Done<u64> {
        self.started = Instant::now();
        let launches = match (job.kind, self.streams.first(), self.kernels.first()) {
            (Kind::Synchronising { .. }, Some(stream), Some(kernel)) => {
                self.synchronising(job, *stream, *kernel)?
            }
            (Kind::Sparse { pause_ns, .. }, Some(stream), Some(kernel)) => {
                self.sparse(job, *stream, *kernel, pause_ns)?
            }
            (Kind::Mixed, ..) => self.mixed(job)?,
            (Kind::Service(service), Some(stream), Some(kernel)) => {
                let (stream, kernel) = (*stream, *kernel);
                self.serve(job, &service, stream, kernel)?
            }
            (_, _, Some(kernel)) => self.one_after_another(job, *kernel)?,
            _ => 0,
        };
        self.driver.synchronise_all()?;
        Ok(launches)
    }

    /// Launches in batches, so that the queued work stays bounded.
    fn one_after_another(&self, job: &Job, kernel: Kernel) -> Done<u64> {
        let each_ns = self.graph.map_or(kernel.ns, |_| 20 * kernel.ns);
        let batch = (QUEUED_NS / each_ns / 2).clamp(1, 250);
        let mut queue = Queue::new(self)?;
        let mut launches = 0;
        while self.started.elapsed() < job.time && !self.told_to_end.load(Ordering::Relaxed) {
            for _ in 0..batch {
                for stream in &self.streams {
                    match self.graph {
                        Some(graph) => self.driver.launch_graph(graph, *stream)?,
                        None => self.driver.launch(kernel, *stream)?,
                    }
                    launches += 1;
                }
            }
            queue.bound(self)?;
        }
        Ok(launches)
    }

    fn synchronising(&self, job: &Job, stream: Stream, kernel: Kernel) -> Done<u64> {
        let mut launches = 0;
        while self.started.elapsed() < job.time {
            self.driver.launch(kernel, stream)?;
            self.driver.synchronise(stream)?;
            launches += 1;
        }
        Ok(launches)
    }

    /// A number of steps that does not depend on their duration.
    fn sparse(&self, job: &Job, stream: Stream, kernel: Kernel, pause_ns: u64) -> Done<u64> {
        let steps = job.time.as_nanos() / u128::from(kernel.ns + pause_ns);
        let steps = u64::try_from(steps).unwrap_or(u64::MAX).max(1);
        for _ in 0..steps {
            self.driver.launch(kernel, stream)?;
            self.driver.synchronise(stream)?;
            std::thread::sleep(Duration::from_nanos(pause_ns));
        }
        Ok(steps)
    }

    fn mixed(&self, job: &Job) -> Done<u64> {
        let mut chance = Chance::seeded(0);
        let mut queue = Queue::new(self)?;
        let (mut launches, mut queued_ns) = (0, 0);
        while self.started.elapsed() < job.time {
            let stream = chance.one_of(&self.streams);
            let kernel = chance.one_of(&self.kernels);
            let (Some(stream), Some(kernel)) = (stream, kernel) else {
                break;
            };
            match (chance.below(100), self.graph) {
                (0..6, _) => self.driver.synchronise(stream)?,
                (6..8, _) => {
                    let pause_ns = chance.below(2 * MILLISECOND);
                    std::thread::sleep(Duration::from_nanos(pause_ns));
                }
                (8..12, Some(graph)) => {
                    self.driver.launch_graph(graph, stream)?;
                    queued_ns += self.kernels.last().map_or(0, |last| 3 * last.ns);
                    launches += 1;
                }
                _ => {
                    self.driver.launch(kernel, stream)?;
                    queued_ns += kernel.ns;
                    launches += 1;
                }
            }
            if queued_ns > QUEUED_NS / 2 {
                queue.bound(self)?;
                queued_ns = 0;
            }
        }
        Ok(launches)
    }

    /// Answers each request in the order of arrival. Gives up on the requests that are still waiting a while after the
    /// end.
    fn serve(&mut self, job: &Job, service: &Service, stream: Stream, kernel: Kernel) -> Done<u64> {
        let steps = service.request.steps();
        let gives_up = job.time + job.time.min(LATE);
        let mut launches = 0;
        for at_ns in service.moments(job.time) {
            let at = Duration::from_nanos(at_ns);
            if let Some(early) = at.checked_sub(self.started.elapsed()) {
                std::thread::sleep(early);
            }
            let answered = self.started.elapsed() < gives_up;
            if answered {
                launches += self.answer(&steps, stream, kernel)?;
            }
            let took = self.started.elapsed().saturating_sub(at);
            let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            if answered {
                self.served.finished_ns.push(took_ns);
            } else {
                self.served.unfinished_ns.push(took_ns);
            }
        }
        Ok(launches)
    }

    /// Launches the kernels of one request and waits after each step.
    fn answer(&self, steps: &[u64], stream: Stream, kernel: Kernel) -> Done<u64> {
        for count in steps {
            for _ in 0..*count {
                self.driver.launch(kernel, stream)?;
            }
            self.driver.synchronise(stream)?;
        }
        Ok(steps.iter().sum())
    }

    fn report(&self, launches: u64) -> Report {
        let wall_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Report {
            pid: std::process::id(),
            launches,
            wall_ns,
            served: self.served.clone(),
            bins: truth::bins(self.driver.records(), self.round_ns),
        }
    }
}

fn durations(kind: Kind) -> Vec<u64> {
    match kind {
        Kind::Kernels { ns } | Kind::Synchronising { ns } | Kind::Sparse { ns, .. } => vec![ns],
        Kind::Service(service) => vec![service.request.kernel_ns()],
        Kind::Graphs => vec![500 * MICROSECOND],
        Kind::Streams => vec![250 * MICROSECOND],
        Kind::Mixed => vec![
            20 * MICROSECOND,
            100 * MICROSECOND,
            500 * MICROSECOND,
            MILLISECOND,
            5 * MILLISECOND,
        ],
    }
}

/// The duration of a round on a real GPU: the difference between two lengths, so that the cost of a launch is
/// excluded. It is the shortest of a few tries, because other work can only add time.
fn calibrate(driver: &Driver, stream: Stream, kernel: Kernel) -> Done<f64> {
    let (begin, end) = (driver.event(true)?, driver.event(true)?);
    let took = |rounds: u64| -> Done<f64> {
        driver.record(begin, stream)?;
        driver.launch(Kernel { rounds, ..kernel }, stream)?;
        driver.record(end, stream)?;
        driver.synchronise(stream)?;
        driver.between_ns(begin, end)
    };
    const SHORT: u64 = 1_000;
    const LONG: u64 = 41_000;
    took(LONG)?;
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let (short, long) = (took(SHORT)?, took(LONG)?);
        best = best.min((long - short) / 40_000.0);
    }
    Ok(best.max(0.1))
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of rounds is far below 2^53 and not negative"
)]
fn rounds(ns: u64, round_ns: f64) -> u64 {
    if round_ns > 0.0 {
        (ns as f64 / round_ns).max(1.0) as u64
    } else {
        1
    }
}

/// Keeps at most two batches in the streams.
struct Queue {
    ends: Vec<(Event, Event)>,
    recorded: bool,
}

impl Queue {
    fn new(worker: &Worker) -> Done<Self> {
        let pair = |_| Ok((worker.driver.event(false)?, worker.driver.event(false)?));
        Ok(Self {
            ends: worker.streams.iter().map(pair).collect::<Done<_>>()?,
            recorded: false,
        })
    }

    /// Called after a batch is launched: waits for the batch before it.
    fn bound(&mut self, worker: &Worker) -> Done {
        for ((now, _), stream) in self.ends.iter().zip(&worker.streams) {
            worker.driver.record(*now, *stream)?;
        }
        for (now, before) in &mut self.ends {
            if self.recorded {
                worker.driver.wait(*before)?;
            }
            std::mem::swap(now, before);
        }
        self.recorded = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_told() {
        let report = Report {
            pid: 7,
            launches: 12,
            wall_ns: 5_000,
            served: Served {
                finished_ns: vec![5, 6],
                unfinished_ns: vec![70],
            },
            bins: Bins {
                begin_ns: 99,
                busy_ns: vec![1, 0, 3],
            },
        };

        assert_eq!(Report::parse(&report.line()), Some(report));
        assert_eq!(Report::parse("ready 7"), None);
        assert_eq!(Report::parse("done 7 x"), None);
        assert_eq!(Report::parse("done 7 1 5000 2 9"), None);
    }
}
