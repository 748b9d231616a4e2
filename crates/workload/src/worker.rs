//! What a workload launches, and how it talks with the program that started it: a line `ready PID`, then it reads one
//! byte, works, and tells what it did. Owns the protocol and the patterns.
//!
//! Never measures a share itself on a simulated GPU: the board knows better.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::driver::{Done, Driver, DriverError, Event, Graph, Kernel, Stream};
use crate::truth::{self, Bins};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
/// So much work is queued at most, as programs do that look after their memory.
const QUEUED_NS: u64 = 100 * MILLISECOND;
/// Records kept on a real GPU: 20 seconds of the smallest kernels.
const RECORDS: usize = 1 << 20;

/// What a workload launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Kernels of this length, one after another in one stream.
    Kernels {
        /// Nanoseconds of each.
        ns: u64,
    },
    /// The same, each waited for.
    Synchronising {
        /// Nanoseconds of each.
        ns: u64,
    },
    /// Graphs of 20 kernels, 10 ms together.
    Graphs,
    /// Kernels of 250 µs in four streams.
    Streams,
    /// Kernels of 20 µs to 5 ms in two streams, graphs, waits and pauses, by chance.
    Mixed,
    /// One kernel and a pause, so many times.
    Sparse {
        /// Nanoseconds of each kernel.
        ns: u64,
        /// Nanoseconds of each pause.
        pause_ns: u64,
    },
}

/// What one process does.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// What it launches.
    pub kind: Kind,
    /// For how long.
    pub time: Duration,
    /// Processes that do so, this one and others that it starts.
    pub processes: u32,
    /// On which device, as the driver counts.
    pub device: u32,
}

/// What one process did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Process id, as it sees itself.
    pub pid: u32,
    /// Kernels and graphs launched.
    pub launches: u64,
    /// From the first launch to the end of the last, nanoseconds.
    pub wall_ns: u64,
    /// What its kernels wrote down; nothing on a simulated GPU.
    pub bins: Bins,
}

impl Report {
    /// Reads the line that a worker ends with.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("done ")?.split(' ');
        let mut next = || words.next()?.parse::<u64>().ok();
        Some(Self {
            pid: u32::try_from(next()?).ok()?,
            launches: next()?,
            wall_ns: next()?,
            bins: Bins {
                begin_ns: next()?,
                busy_ns: std::iter::from_fn(next).collect(),
            },
        })
    }

    fn line(&self) -> String {
        let Self {
            pid,
            launches,
            wall_ns,
            bins,
        } = self;
        let mut line = format!("done {pid} {launches} {wall_ns} {}", bins.begin_ns);
        for busy_ns in &bins.busy_ns {
            line.push(' ');
            line.push_str(&busy_ns.to_string());
        }
        line
    }
}

/// Why a workload ended early.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The driver refused.
    #[error("{0}")]
    Driver(#[from] DriverError),
    /// The other end is closed.
    #[error("cannot talk with the program that started it: {0}")]
    Talk(#[from] std::io::Error),
}

/// Does a job in this process. `again` starts another process for the job that it is given.
///
/// # Errors
/// The driver refused something, or the other end is closed.
pub fn run(job: &Job, again: impl FnOnce(&Job) -> Command) -> Result<(), WorkError> {
    let mut worker = Worker::start(job)?;
    say(&format!("ready {}", std::process::id()))?;
    let mut other = None;
    if job.processes > 1 {
        let rest = Job {
            processes: job.processes - 1,
            ..*job
        };
        other = Some(Other(again(&rest).stdin(Stdio::inherit()).spawn()?));
    }
    // One byte for each process that shares the pipe: Rust's own stdin would take those of others.
    std::fs::File::from(std::io::stdin().as_fd().try_clone_to_owned()?).read_exact(&mut [0])?;
    let launches = worker.work(job)?;
    let report = worker.report(launches)?;
    say(&report.line())?;
    if let Some(other) = &mut other {
        other.0.wait()?;
    }
    Ok(())
}

/// A process that ends with this one.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // Ended already where all is well.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Whole lines, since several processes write into one pipe.
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
        Ok(Self {
            driver,
            streams,
            kernels,
            graph,
            round_ns,
            started: Instant::now(),
        })
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
            (_, _, Some(kernel)) => self.one_after_another(job, *kernel)?,
            _ => 0,
        };
        self.driver.synchronise_all()?;
        Ok(launches)
    }

    /// Batches, so that what is queued stays bounded.
    fn one_after_another(&self, job: &Job, kernel: Kernel) -> Done<u64> {
        let each_ns = self.graph.map_or(kernel.ns, |_| 20 * kernel.ns);
        let batch = (QUEUED_NS / each_ns / 2).clamp(1, 250);
        let mut queue = Queue::new(self)?;
        let mut launches = 0;
        while self.started.elapsed() < job.time {
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

    /// A number of steps that does not depend on how long they take.
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
        let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
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

    fn report(&self, launches: u64) -> Done<Report> {
        let wall_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(Report {
            pid: std::process::id(),
            launches,
            wall_ns,
            bins: truth::bins(self.driver.records(), self.round_ns),
        })
    }
}

fn durations(kind: Kind) -> Vec<u64> {
    match kind {
        Kind::Kernels { ns } | Kind::Synchronising { ns } | Kind::Sparse { ns, .. } => vec![ns],
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

/// How long a round takes on a real GPU: the difference of two lengths, so that what a launch costs
/// is not in it; the best of a few, since others only add.
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

/// Two batches are in the streams at most.
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

    /// A batch is launched: waits for the one before.
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

/// The same numbers in each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        let count = u64::try_from(list.len()).unwrap_or(1);
        let index = usize::try_from(self.below(count)).unwrap_or(0);
        list.get(index).copied()
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
            bins: Bins {
                begin_ns: 99,
                busy_ns: vec![1, 0, 3],
            },
        };

        assert_eq!(Report::parse(&report.line()), Some(report));
        assert_eq!(Report::parse("ready 7"), None);
        assert_eq!(Report::parse("done 7 x"), None);
    }
}
