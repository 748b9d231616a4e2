//! One case of the bench: starts containers with their workloads by `vgpu run`, lets them begin at one
//! moment, and watches what they use. Knows the protocol of `workload`, and no figures.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use workload::{Arrivals, BIN_NS, Job, Kind, Report, Request, Service, Simulated};

use super::shares::Curve;

/// How often a simulated board is read.
const LOOK: Duration = Duration::from_millis(4);
/// How much longer a workload works at most that ends when it is told to.
pub(crate) const LONGER: Duration = Duration::from_secs(3600);
/// How long a workload may take to start, and to end after its time.
const PATIENCE: Duration = Duration::from_secs(60);

/// The programs and the GPU that all cases use.
pub(crate) struct Setup {
    /// This program.
    pub(crate) exe: PathBuf,
    /// The GPU, by nvidia-smi's number.
    pub(crate) gpu: u32,
    pub(crate) library: Option<PathBuf>,
    pub(crate) board: Option<PathBuf>,
    /// The simulated board, which reports exact times, if the GPU is simulated.
    pub(crate) simulated: Option<Simulated>,
}

/// A container and its job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BenchContainer {
    pub(crate) job: Job,
    /// The settings for `vgpu run`; `None` runs the job without it.
    pub(crate) under: Option<Under>,
}

/// The settings that `vgpu run` gives a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Under {
    /// A cap in percent, which always holds.
    Cap(u32),
    /// A priority without a cap.
    Priority(u32),
}

impl BenchContainer {
    /// The cap, in percent.
    pub(crate) fn cap(&self) -> Option<u32> {
        match self.under {
            Some(Under::Cap(percent)) => Some(percent),
            Some(Under::Priority(_)) | None => None,
        }
    }
}

/// The measurements of a container.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) curve: Curve,
    pub(crate) reports: Vec<Report>,
}

/// The measurements of a case.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) seen: Vec<Observed>,
    /// When each change took place, nanoseconds since the start.
    pub(crate) changed_ns: Vec<u64>,
}

impl Setup {
    /// Runs containers side by side for the shortest of their times, and changes the first one's cap at the given times.
    /// A container with a longer time works until this function ends it, when the shortest time is over. The container whose cap
    /// changes works until then, too: on a busy machine, this function may change the cap later than planned.
    pub(crate) fn run(
        &self,
        containers: &[BenchContainer],
        changes: &[(Duration, u32)],
    ) -> anyhow::Result<Outcome> {
        let time = containers.iter().map(|c| c.job.time).min();
        let time = time.unwrap_or_default();
        let mut containers = containers.to_vec();
        if let (Some(first), false) = (containers.first_mut(), changes.is_empty()) {
            first.job.time += LONGER;
        }
        // One after another: calibration needs the GPU to itself.
        let mut running = Vec::new();
        for (index, container) in containers.iter().enumerate() {
            running.push(self.start(index, container)?);
        }
        let started = Instant::now();
        for one in &mut running {
            one.begin()?;
        }
        let board_start_ns = self.simulated.as_ref().map(Simulated::now_ns);
        let (name, mut changes) = (name_of(0), changes.iter().peekable());
        let mut changed_ns = Vec::new();
        let mut looks = vec![Curve::default(); running.len()];
        while started.elapsed() < time {
            if let Some((_, cap)) = changes.next_if(|(at, _)| started.elapsed() >= *at) {
                self.set(&name, *cap)?;
                changed_ns.push(nanoseconds(started.elapsed()));
            }
            if let (Some(board), Some(start_ns)) = (&self.simulated, board_start_ns) {
                for (one, curve) in running.iter().zip(&mut looks) {
                    let used: u64 = one.pids.iter().map(|p| board.busy_ns(self.gpu, *p)).sum();
                    let at_ns = board.now_ns().saturating_sub(start_ns);
                    curve.push(at_ns, used.saturating_sub(one.used_before));
                }
            }
            std::thread::sleep(LOOK);
        }
        let mut seen = Vec::new();
        for ((mut one, curve), container) in running.into_iter().zip(looks).zip(containers) {
            if container.job.time > time {
                drop(one.stdin.take());
            }
            let reports = one.end()?;
            let curve = match &self.simulated {
                Some(_) => curve,
                None => curve_of(&reports),
            };
            seen.push(Observed { curve, reports });
        }
        Ok(Outcome { seen, changed_ns })
    }

    fn start(&self, index: usize, container: &BenchContainer) -> anyhow::Result<Running> {
        let mut command = Command::new(&self.exe);
        if let Some(under) = container.under {
            command.args(["run", "--name", &name_of(index)]);
            command.args(["--gpu", &self.gpu.to_string()]);
            match under {
                Under::Cap(cap) => {
                    command.args(["--gpucores", &cap.to_string(), "--policy", "force"]);
                }
                Under::Priority(priority) => {
                    command.args(["--priority", &priority.to_string()]);
                }
            }
            for (flag, path) in [("--library", &self.library), ("--board", &self.board)] {
                if let Some(path) = path {
                    command.arg(flag).arg(path);
                }
            }
            command.arg("--").arg(&self.exe);
        } else {
            command.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
            command.env("CUDA_VISIBLE_DEVICES", self.gpu.to_string());
        }
        command.args(words_of(&container.job));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", self.exe.display()))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("the worker has no output")?;
        let (told, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if told.send(line).is_err() {
                    return;
                }
            }
        });
        let mut running = Running {
            child,
            stdin,
            lines,
            pids: Vec::new(),
            used_before: 0,
        };
        for _ in 0..container.job.processes {
            let line = running.line()?;
            let pid = line.strip_prefix("ready ").and_then(|pid| pid.parse().ok());
            let Some(pid) = pid else {
                bail!("the worker said {line:?} where it should be ready");
            };
            running.pids.push(pid);
        }
        if let Some(board) = &self.simulated {
            running.used_before = running
                .pids
                .iter()
                .map(|pid| board.busy_ns(self.gpu, *pid))
                .sum();
        }
        Ok(running)
    }

    fn set(&self, name: &str, cap: u32) -> anyhow::Result<()> {
        let mut command = Command::new(&self.exe);
        command.args(["set", name, "--gpucores", &cap.to_string()]);
        if let Some(board) = &self.board {
            command.arg("--board").arg(board);
        }
        let output = command.output().context("cannot start vgpu set")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}

fn name_of(index: usize) -> String {
    format!("bench-{}-{index}", std::process::id())
}

/// The hidden command that does a job.
pub(crate) fn words_of(job: &Job) -> Vec<String> {
    let (kind, kernel_ns, pause_ns) = match job.kind {
        Kind::Kernels { ns } => ("kernels", ns, 0),
        Kind::Synchronising { ns } => ("synchronising", ns, 0),
        Kind::Graphs => ("graphs", 0, 0),
        Kind::Streams => ("streams", 0, 0),
        Kind::Mixed => ("mixed", 0, 0),
        Kind::Sparse { ns, pause_ns } => ("sparse", ns, pause_ns),
        Kind::Service(_) => ("service", 0, 0),
    };
    let numbers = [
        ("--kernel-ns", kernel_ns),
        ("--pause-ns", pause_ns),
        (
            "--time-ms",
            u64::try_from(job.time.as_millis()).unwrap_or(u64::MAX),
        ),
        ("--processes", u64::from(job.processes)),
        ("--device", u64::from(job.device)),
    ];
    let mut words: Vec<String> = ["bench", "worker", "--kind", kind].map(String::from).into();
    for (flag, number) in numbers {
        words.push(flag.to_owned());
        words.push(number.to_string());
    }
    if job.shares_input {
        words.push("--shares-input".to_owned());
    }
    if let Kind::Service(service) = &job.kind {
        words.extend(words_of_service(service));
    }
    words
}

fn words_of_service(service: &Service) -> [String; 8] {
    let arrivals = match service.arrivals {
        Arrivals::Poisson => "poisson",
        Arrivals::Bursts => "bursts",
    };
    let request = match service.request {
        Request::Kernels => "kernels",
        Request::SmallModel => "small-model",
        Request::Generation => "generation",
    };
    let (load, seed) = (service.load_percent.to_string(), service.seed.to_string());
    [
        "--arrivals",
        arrivals,
        "--request",
        request,
        "--load",
        &load,
        "--seed",
        &seed,
    ]
    .map(String::from)
}

/// The use of several processes of one container, together.
fn curve_of(reports: &[Report]) -> Curve {
    let first_ns = reports
        .iter()
        .map(|report| report.bins.begin_ns)
        .filter(|ns| *ns != 0)
        .min()
        .unwrap_or(0);
    let mut sum: Vec<u64> = Vec::new();
    for report in reports {
        let offset = report.bins.begin_ns.saturating_sub(first_ns) / BIN_NS;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, busy_ns) in report.bins.busy_ns.iter().enumerate() {
            let index = index.saturating_add(offset);
            if index >= sum.len() {
                sum.resize(index + 1, 0);
            }
            if let Some(bin) = sum.get_mut(index) {
                *bin += busy_ns;
            }
        }
    }
    Curve::of_bins(BIN_NS, &sum)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A container that runs; ended with this value.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    pids: Vec<u32>,
    used_before: u64,
}

impl Running {
    fn line(&mut self) -> anyhow::Result<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => bail!("the worker said nothing for a minute"),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().context("cannot wait for the worker")?;
                bail!("the worker ended early ({status})")
            }
        }
    }

    fn begin(&mut self) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("the worker does not listen")?;
        let bytes = vec![b'\n'; self.pids.len()];
        stdin
            .write_all(&bytes)
            .context("the worker does not listen")
    }

    fn end(mut self) -> anyhow::Result<Vec<Report>> {
        let mut reports = Vec::new();
        while reports.len() < self.pids.len() {
            let line = self.line()?;
            let report = Report::parse(&line);
            reports.push(report.with_context(|| format!("the worker said {line:?}"))?);
        }
        drop(self.stdin.take());
        self.child.wait().context("cannot wait for the worker")?;
        Ok(reports)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A case that failed half-way leaves nothing behind; `vgpu run` passes the signal on.
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            drop(self.stdin.take());
            let pid = i32::try_from(self.child.id()).unwrap_or(0);
            if pid > 0 {
                let pid = nix::unistd::Pid::from_raw(pid);
                nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).ok();
            }
            self.child.wait().ok();
        }
    }
}

/// Fails where the file could not be written later, and changes nothing in a file that exists.
pub(crate) fn writable(path: &Path) -> anyhow::Result<()> {
    let opened = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path);
    opened
        .map(drop)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a new file at this path.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
