//! A board whose clock stops while programs compute, containers on it, and an observer that looks at every relevant
//! moment. So the GPU time of programs is known to the nanosecond, on any machine. Asserts nothing, and reads no real
//! time.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cuda_sim::clock::ClockKind;
use cuda_sim::exec::{BusyStretch, Clock, Exec, UtilizationSample};
use cuda_sim::lacks::{self, Lacks};
use cuda_sim::{Board as SimulatedBoard, Config};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use supervisor::arbiter;
use supervisor::gpu::{Busy, Gpu, GpuError, GpuProcess, Gpus, Inventory, ProcessSample};
use vgpu_abi::host::Snapshot;
use vgpu_abi::layout::{RegionLayout, Slot};
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, LimitsFile, Policy};
use vgpu_abi::region::{NewDevice, Region};
use vgpu_abi::targets::TargetsFile;

use crate::boards::Board;
use crate::support::{CONTEXT, GPU_BYTES, World, compiled};

/// A millisecond of the board.
pub(crate) const MS: u64 = 1_000_000;
/// A microsecond of the board.
pub(crate) const US: u64 = 1_000;
/// How far apart looks are.
pub(crate) const LOOK_NS: u64 = 5 * MS;
/// How far apart the beginnings of windows are.
const STEP_NS: u64 = 10 * MS;

/// A container's compute settings.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asks {
    pub(crate) cap: u32,
    pub(crate) floor: u32,
    pub(crate) policy: Policy,
    pub(crate) priority: u32,
}

impl Asks {
    /// A hard cap.
    pub(crate) fn cap(cap: u32) -> Self {
        Self {
            cap,
            policy: Policy::Force,
            ..Self::default()
        }
    }

    /// A guaranteed share.
    pub(crate) fn floor(floor: u32) -> Self {
        Self {
            floor,
            policy: Policy::Floor,
            ..Self::default()
        }
    }

    /// No limit.
    pub(crate) fn nothing() -> Self {
        Self::default()
    }

    pub(crate) fn priority(self, priority: u32) -> Self {
        Self { priority, ..self }
    }

    pub(crate) fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    fn limits(self, uuid: DeviceUuid) -> Limits {
        Limits {
            priority: self.priority,
            policy: self.policy,
            devices: vec![DeviceLimit {
                uuid,
                core_percent: self.cap,
                floor_percent: self.floor,
                physical_bytes: GPU_BYTES,
                context_bytes: CONTEXT,
                ..DeviceLimit::default()
            }],
            ..Limits::default()
        }
    }
}

/// A board and everything on it.
pub(crate) struct Lab {
    world: World,
    exec: Exec,
    /// Whether an MPS server runs the kernels.
    mps: bool,
    /// The program that all containers run.
    launch: PathBuf,
    _processor: Processor,
}

impl Lab {
    /// One GPU, whose kernels take as long as their names say.
    pub(crate) fn new() -> Self {
        Self::with_script("")
    }

    /// One GPU with a script of kernels and calls.
    pub(crate) fn with_script(script: &str) -> Self {
        Self::with(Config {
            script: script.to_owned(),
            ..Config::default()
        })
    }

    /// One GPU of a board, with more lines for its script.
    pub(crate) fn on(board: &Board, script: &str) -> Self {
        Self::with(board.config(script))
    }

    /// One GPU that is cut into MIG devices; a program sees the first.
    pub(crate) fn on_mig(cut: &str) -> Self {
        Self::with(Config {
            mig: cut.to_owned(),
            ..Config::default()
        })
    }

    fn with(config: Config) -> Self {
        let processor = Processor::take();
        let config = Config {
            clock: ClockKind::Lockstep,
            ..config
        };
        let world = World::with_board(1, &config);
        let exec = world.board().exec().unwrap();
        let mut folders = std::fs::DirBuilder::new();
        folders.mode(0o755).recursive(true);
        folders.create(world.path("containers/1000")).unwrap();
        let options: Vec<OsString> = vec![
            "-pthread".into(),
            "-Wno-unused-result".into(),
            {
                let mut folder = OsString::from("-L");
                folder.push(world.path("sim"));
                folder
            },
            "-lcuda".into(),
        ];
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("compute/launch.c");
        let launch = compiled(&source, &world.path(""), &options);
        // Time is stopped until a watch begins.
        exec.clock().expect_threads(u32::MAX);
        Self {
            world,
            exec,
            mps: config.mps,
            launch,
            _processor: processor,
        }
    }

    /// A container's directory, as a runner makes it.
    pub(crate) fn container(&self, name: &str, asks: Asks) -> Container<'_> {
        let dir = self.world.path("containers/1000").join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        let uuid = DeviceUuid::new(&self.world.board().uuid(0)).unwrap();
        LimitsFile::create(&dir.join("limits"), &asks.limits(uuid)).unwrap();
        drop(TargetsFile::create(&dir.join("targets")).unwrap());
        std::fs::write(dir.join("doorbell"), "").unwrap();
        let device = NewDevice {
            uuid,
            physical_bytes: GPU_BYTES,
        };
        Region::create(&dir.join("region"), &[device], 0o600).unwrap();
        Container {
            lab: self,
            dir,
            uuid,
            // As `vgpu run` and the node agent do under MPS.
            part_percent: if asks.cap == 0 { 100 } else { asks.cap },
            own_cap: None,
            region: OnceCell::new(),
        }
    }

    /// A container as another vendor's device plugin makes it: it has variables and a folder for its region, and no
    /// process outside of it knows it. A cap of 0 is none.
    pub(crate) fn bare(&self, name: &str, cap: u32) -> Container<'_> {
        let dir = self.world.path("containers/1000").join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        Container {
            lab: self,
            dir,
            uuid: DeviceUuid::new(&self.world.board().uuid(0)).unwrap(),
            part_percent: if cap == 0 { 100 } else { cap },
            own_cap: Some(cap),
            region: OnceCell::new(),
        }
    }

    /// A program without the library.
    pub(crate) fn native(&self, words: &str) -> Program<'_> {
        self.start(words, &[], 100)
    }

    /// Starts a program that an MPS server, if there is one, gives this part of the GPU's multiprocessors.
    fn start(&self, words: &str, env: &[(&str, OsString)], part_percent: u32) -> Program<'_> {
        let mut program = self.world.command(&self.launch).native();
        for word in words.split(' ') {
            program = program.arg(word);
        }
        for (name, value) in env {
            program = program.env(name, value);
        }
        let part_percent = if self.mps { part_percent } else { 100 };
        if part_percent < 100 {
            program = program.env(
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                part_percent.to_string(),
            );
        }
        // Programs take part in the order in which they are started.
        let clock = self.exec.clock();
        let joined = clock.counts().joined;
        let mut child = program
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // And they get their places on the board in that order: the lengths of their kernels, which vary, and the order
        // of their turns follow from the place.
        let has_place = |pid: u32| self.exec.truth(0).iter().any(|one| one.pid == pid);
        while clock.counts().joined == joined || !has_place(child.id()) {
            if let Some(status) = child.try_wait().unwrap() {
                let output = child.wait_with_output().unwrap();
                panic!("the program ended at once: {status} {output:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Program {
            lab: self,
            child: Some(child),
            part_percent,
        }
    }

    /// Advances time by this duration; returns the use of each group of processes.
    pub(crate) fn pass(&self, ms: u64, groups: &[&[&Program<'_>]]) -> Vec<Curve> {
        self.sampled(ms, groups, |clock, until_ns| clock.sleep_until(until_ns))
    }

    /// The same, and calls `at` every `LOOK_NS`, from now on and to the end.
    pub(crate) fn watch(
        &self,
        ms: u64,
        groups: &[&[&Program<'_>]],
        at: impl FnMut(u64),
    ) -> Vec<Curve> {
        self.watch_every(LOOK_NS, ms, groups, at)
    }

    /// The same with another time between two calls, nanoseconds: `LOOK_NS` or a part of it.
    pub(crate) fn watch_every(
        &self,
        look_ns: u64,
        ms: u64,
        groups: &[&[&Program<'_>]],
        mut at: impl FnMut(u64),
    ) -> Vec<Curve> {
        let start_ns = self.exec.clock().now();
        let mut look = 0;
        self.sampled(ms, groups, |clock, until_ns| {
            while start_ns + look * look_ns <= until_ns {
                clock.sleep_until(start_ns + look * look_ns);
                at(look * look_ns);
                look += 1;
            }
        })
    }

    /// Advances time by this duration, with an arbiter that is woken as a real one: it looks when it is time to and after a
    /// program has run, at one of the moments that are `step_ns` apart. Whatever rang, ran.
    pub(crate) fn watch_woken(
        &self,
        step_ns: u64,
        ms: u64,
        groups: &[&[&Program<'_>]],
        arbiter: &mut Arbiter<'_>,
    ) -> Vec<Curve> {
        let start_ns = self.exec.clock().now();
        self.sampled(ms, groups, |clock, until_ns| {
            loop {
                arbiter.look();
                let now_ns = clock.now();
                if now_ns >= until_ns {
                    return;
                }
                let due_ns = arbiter.due_ns.max(now_ns + 1);
                let steps = (due_ns - start_ns).div_ceil(step_ns);
                let due_ns = start_ns + steps * step_ns;
                clock.sleep_until_another_ran(step_ns, due_ns.min(until_ns));
            }
        })
    }

    /// Advances time by this duration, from one sample of the processes' use to the next one. `advance` is called for each
    /// of them, the first one now, and waits for it.
    fn sampled(
        &self,
        ms: u64,
        groups: &[&[&Program<'_>]],
        mut advance: impl FnMut(&Clock<'_>, u64),
    ) -> Vec<Curve> {
        let clock = self.exec.clock();
        let part = clock.join_thread();
        clock.expect_threads(0);
        let start_ns = clock.now();
        let mut curves = vec![Curve::default(); groups.len()];
        // A long time is sampled less often.
        let looks = ms * MS / LOOK_NS;
        let every = (looks / 20_000).max(1);
        for look in 0..=looks {
            if look % every != 0 && look != looks {
                continue;
            }
            let at_ns = look * LOOK_NS;
            advance(&clock, start_ns + at_ns);
            let truth = self.exec.truth_of_known(0);
            for (curve, group) in curves.iter_mut().zip(groups) {
                let busy_ns = truth.iter().map(|one| {
                    let program = group.iter().find(|program| program.pid() == one.pid);
                    let part_percent = program.map_or(0, |program| program.part_percent);
                    one.busy_ns * u64::from(part_percent) / 100
                });
                let busy_ns = busy_ns.sum();
                curve.0.push((at_ns, busy_ns));
            }
        }
        clock.expect_threads(u32::MAX);
        drop(part);
        curves
    }

    /// The stretches in which processes held the GPU, in the last `ms` milliseconds.
    pub(crate) fn held(&self, ms: u64) -> Vec<BusyStretch> {
        let now_ns = self.exec.clock().now();
        let held = self.exec.stretches(0, now_ns - ms * MS, now_ns);
        held.expect("the board keeps 65,536 of them")
    }

    /// Whether no wait took too long, so that times are the board's and not the machine's.
    pub(crate) fn is_exact(&self) -> bool {
        let counts = self.exec.clock().counts();
        (counts.stalls, counts.sleepers) == (0, 0)
    }

    /// Reports a wait that took too long: then the machine was too busy for times to be
    /// exact, and they are only nearly so.
    pub(crate) fn say_if_inexact(&self) {
        let counts = self.exec.clock().counts();
        if (counts.stalls, counts.sleepers) != (0, 0) {
            println!("times are not exact: {counts:?}");
        }
    }

    /// The arbiters here, to be ticked at every look.
    pub(crate) fn arbiter(&self) -> Arbiter<'_> {
        Arbiter {
            lab: self,
            board: arbiter::Board::serve(&self.world.path("containers")),
            next_ns: 0,
            due_ns: 0,
        }
    }
}

/// The arbiter of a board, on the board's clock.
pub(crate) struct Arbiter<'a> {
    lab: &'a Lab,
    board: arbiter::Board,
    /// When it ticks.
    next_ns: u64,
    /// When its next look is due, unless a doorbell rings before that.
    due_ns: u64,
}

impl Arbiter<'_> {
    /// Ticks when it is time to.
    pub(crate) fn look(&mut self) {
        let now_ns = self.lab.exec.clock().now();
        if now_ns >= self.next_ns {
            let ticked = self.board.tick(now_ns, &BoardGpus(self.lab));
            assert_eq!(ticked.failed, 0);
            self.next_ns = now_ns + u64::try_from(ticked.next.as_nanos()).unwrap();
        }
        // A real arbiter is woken by the kernel.
        let due_ns = self.board.answer(now_ns);
        self.due_ns = due_ns.map_or(self.next_ns, |due_ns| due_ns.min(self.next_ns));
    }
}

/// The processor of a board: the one with the fewest boards among those that the thread may use. Of a board's threads one
/// runs at a time, so a second processor would only make each step dearer: one processor has to wake the other.
struct Processor(usize);

/// How many boards each processor has. A test that fails while it holds the lock leaves the counts as they are.
fn boards_of_processors() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    static BOARDS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());
    BOARDS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Processor {
    /// Keeps this thread, and the programs that it starts, on one processor.
    fn take() -> Self {
        thread_local! {
            /// Those that the thread might use at its beginning.
            static PROCESSORS: Vec<usize> = {
                let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
                (0..CpuSet::count()).filter(|&one| set.is_set(one).unwrap()).collect()
            };
        }
        let mut boards = boards_of_processors();
        let count = |one: &usize| boards.get(one).copied().unwrap_or(0);
        let quietest = PROCESSORS.with(|all| all.iter().copied().min_by_key(count));
        let quietest = quietest.expect("the thread runs on one of them");
        *boards.entry(quietest).or_default() += 1;
        let mut set = CpuSet::new();
        set.set(quietest).unwrap();
        sched_setaffinity(Pid::from_raw(0), &set).unwrap();
        Self(quietest)
    }
}

impl Drop for Processor {
    fn drop(&mut self) {
        if let Some(count) = boards_of_processors().get_mut(&self.0) {
            *count -= 1;
        }
    }
}

/// The library that cargo built next to this test, which reads the board's clock; never a shipped one.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let file = own.parent().unwrap().join("libvgpu.so");
    assert!(file.exists(), "{} was not built", file.display());
    file
}

/// A container's directory.
pub(crate) struct Container<'a> {
    lab: &'a Lab,
    dir: PathBuf,
    uuid: DeviceUuid,
    part_percent: u32,
    /// The cap that its variables say, if it has no files of a host.
    own_cap: Option<u32>,
    /// Its region, opened when something is written over it.
    region: OnceCell<File>,
}

impl<'a> Container<'a> {
    /// Starts a program in it; it is stopped until a watch begins.
    pub(crate) fn start(&self, words: &str) -> Program<'a> {
        self.start_with(words, &[])
    }

    /// The same with a variable.
    pub(crate) fn start_with(&self, words: &str, env: &[(&str, &str)]) -> Program<'a> {
        let file = |name: &str| self.dir.join(name).into_os_string();
        let mut all: Vec<(&str, OsString)> = vec![
            ("LD_PRELOAD", library().into_os_string()),
            ("VGPU_LOG", file("log")),
            ("VGPU_LOG_LEVEL", "info".into()),
        ];
        match self.own_cap {
            None => all.extend([
                ("VGPU_LIMITS", file("limits")),
                ("VGPU_REGION", file("region")),
            ]),
            Some(cap) => all.extend([
                ("CUDA_DEVICE_SM_LIMIT", cap.to_string().into()),
                ("CUDA_DEVICE_MEMORY_LIMIT", GPU_BYTES.to_string().into()),
                ("CUDA_DEVICE_MEMORY_SHARED_CACHE", file("region")),
            ]),
        }
        all.extend(
            env.iter()
                .map(|(name, value)| (*name, OsString::from(value))),
        );
        self.lab.start(words, &all, self.part_percent)
    }

    /// Gives it other limits, as `vgpu set` does.
    pub(crate) fn set(&self, asks: Asks) {
        let file = LimitsFile::open(&self.dir.join("limits")).unwrap();
        file.write(&asks.limits(self.uuid)).unwrap();
    }

    /// Its region, as a host reads it.
    pub(crate) fn snapshot(&self) -> Snapshot {
        vgpu_abi::host::snapshot(&self.dir.join("region")).unwrap()
    }

    /// Writes words over the cells of a device in the slot of its first process, as any process of the container can:
    /// pairs of an offset within [`DeviceUse`] and a number.
    pub(crate) fn forge(&self, words: &[(usize, u64)]) {
        let at = offset_of!(RegionLayout, slots) + offset_of!(Slot, devices);
        self.write(at, words);
    }

    /// The same with words of the slot itself.
    pub(crate) fn forge_slot(&self, words: &[(usize, u64)]) {
        self.write(offset_of!(RegionLayout, slots), words);
    }

    fn write(&self, at: usize, words: &[(usize, u64)]) {
        let open = || File::options().write(true).open(self.dir.join("region"));
        let file = self.region.get_or_init(|| open().unwrap());
        for (offset, word) in words {
            let place = u64::try_from(at + offset).unwrap();
            file.write_all_at(&word.to_ne_bytes(), place).unwrap();
        }
    }

    /// Rings its doorbell.
    pub(crate) fn ring(&self) {
        drop(File::open(self.dir.join("doorbell")).unwrap());
    }

    /// The library's log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

/// A program that was started.
pub(crate) struct Program<'a> {
    lab: &'a Lab,
    child: Option<Child>,
    /// How much of the GPU its kernels have while they run: what its time counts for.
    part_percent: u32,
}

impl Program<'_> {
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Advances time until the program ends; returns its output.
    #[track_caller]
    pub(crate) fn end(mut self) -> String {
        self.lab.exec.clock().expect_threads(0);
        self.lab.exec.announce();
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.is_empty(),
            "{:?}\n{text}\n{said}",
            output.status
        );
        text
    }

    /// The number after a word that it prints at its end.
    #[track_caller]
    pub(crate) fn tells(self, word: &str) -> u64 {
        let text = self.end();
        let mut words = text.split_whitespace().skip_while(|found| *found != word);
        let number = words.nth(1).and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("it printed {text:?}"))
    }

    /// Ends it as the kernel's OOM killer would.
    pub(crate) fn kill(mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        self.lab.exec.reap();
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// GPU time used up to each look, in nanoseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Curve(Vec<(u64, u64)>);

impl Curve {
    fn used(&self, at_ns: u64) -> f64 {
        let after = self.0.partition_point(|(at, _)| *at <= at_ns);
        let Some(&(before_at, before)) = after.checked_sub(1).and_then(|i| self.0.get(i)) else {
            return 0.0;
        };
        let Some(&(after_at, after)) = self.0.get(after) else {
            return before as f64;
        };
        let part = (at_ns - before_at) as f64 / (after_at - before_at) as f64;
        before as f64 + part * (after - before) as f64
    }

    /// GPU time used between two moments, milliseconds.
    pub(crate) fn used_ms(&self, from_ms: u64, to_ms: u64) -> f64 {
        (self.used(to_ms * MS) - self.used(from_ms * MS)) / MS as f64
    }

    /// Percent of the GPU between two moments, milliseconds.
    pub(crate) fn share(&self, from_ms: u64, to_ms: u64) -> f64 {
        self.used_ms(from_ms, to_ms) / (to_ms - from_ms) as f64 * 100.0
    }

    /// The lowest and the highest share of windows of this length, between two moments.
    pub(crate) fn windows(&self, from_ms: u64, to_ms: u64, length_ms: u64) -> (f64, f64) {
        let (mut low, mut high) = (f64::MAX, f64::MIN);
        let mut begin_ms = from_ms;
        while begin_ms + length_ms <= to_ms {
            let share = self.share(begin_ms, begin_ms + length_ms);
            (low, high) = (low.min(share), high.max(share));
            begin_ms += STEP_NS / MS;
        }
        (low, high)
    }

    /// Shares of windows of this length, one after another, for the message of a failed test.
    pub(crate) fn shape(&self, to_ms: u64, length_ms: u64) -> String {
        (0..to_ms / length_ms)
            .map(|n| format!("{:.0} ", self.share(n * length_ms, (n + 1) * length_ms)))
            .collect()
    }
}

/// The board as NVML reports it: integer percents of whole sampling periods, late.
struct BoardGpus<'a>(&'a Lab);

impl BoardGpus<'_> {
    /// None where NVML answers `NOT_SUPPORTED` or never has one: the supervisor takes both for no sample.
    fn samples(&self, since_ns: u64) -> Vec<UtilizationSample> {
        let Lacks {
            figures, samples, ..
        } = lacks::of(None, &self.0.world.board().nvml(), false);
        if figures || samples {
            return Vec::new();
        }
        self.0.exec.process_utilization(0, since_ns)
    }
}

impl Gpus for BoardGpus<'_> {
    fn inventory(&self) -> Result<Inventory, GpuError> {
        let board: SimulatedBoard = self.0.world.board();
        Ok(Inventory {
            gpus: vec![Gpu {
                index: 0,
                uuid: board.uuid(0),
                name: "simulated".to_owned(),
                memory_bytes: board.total_bytes(0),
                used_bytes: board.used_bytes(0),
                utilization_percent: Some(self.0.exec.device_utilization(0).sm_percent),
                memory_utilization_percent: None,
                instances: vec![],
            }],
            faults: vec![],
        })
    }

    fn processes(&self) -> Result<Vec<GpuProcess>, GpuError> {
        let board: SimulatedBoard = self.0.world.board();
        let samples = self.samples(0);
        let each = board.processes(0).into_iter().map(|process| {
            let newest = samples
                .iter()
                .filter(|sample| sample.pid == process.pid)
                .max_by_key(|sample| sample.time_ns);
            GpuProcess {
                uuid: board.uuid(0),
                pid: process.pid,
                used_bytes: Some(process.alloc_bytes + process.overhead_bytes),
                utilization_percent: newest.map(|sample| sample.sm_percent),
            }
        });
        Ok(each.collect())
    }

    fn busy(&self, _uuid: &str, since_us: u64) -> Busy {
        let exec = &self.0.exec;
        let samples = self.samples(exec.board_ns(since_us));
        let told = samples.into_iter().map(|sample| ProcessSample {
            pid: sample.pid,
            at_us: exec.unix_us(sample.time_ns),
            percent: sample.sm_percent,
        });
        Busy {
            samples: told.collect(),
            percent: Some(exec.device_utilization(0).sm_percent),
        }
    }
}
