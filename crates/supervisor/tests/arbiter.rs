//! The arbiter over real files and real processes: which process leads, which containers it serves, what it
//! publishes. The test passes the time in, so nothing here depends on how fast the machine is.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test: a panic is its answer"
)]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use supervisor::arbiter::Board;
use supervisor::gpu::{Busy, GpuError, GpuProcess, Gpus, Inventory, ProcessSample};
use supervisor::instance::{DOORBELL, LIMITS, REGION, TARGETS};
use vgpu_abi::layout::{
    CHARGE_BYTES_MASK, DeviceUse, LOCK_SLOTS, MAX_DEVICES, RegionHeader, RegionLayout, SLOT_USED,
    Slot,
};
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, LimitsFile, Policy};
use vgpu_abi::region::{Kind, NewDevice, Region};
use vgpu_abi::targets::{Ahead, Grant, Head, Target, TargetsFile, TargetsMap, read_head};

const MS: u64 = 1_000_000;
const GIB: u64 = 1 << 30;
const TENANT: &str = "VGPU_TEST_TENANT";

/// A driver that says what the test says.
#[derive(Default)]
struct Driver {
    held: Mutex<Vec<GpuProcess>>,
    samples: Mutex<Vec<ProcessSample>>,
    asked_since: Mutex<Vec<u64>>,
}

impl Gpus for Driver {
    fn inventory(&self) -> Result<Inventory, GpuError> {
        Ok(Inventory::default())
    }

    fn processes(&self) -> Result<Vec<GpuProcess>, GpuError> {
        Ok(self.held.lock().unwrap().clone())
    }

    fn busy(&self, uuid: &str, since_us: u64) -> Busy {
        assert_eq!(uuid, "GPU-a");
        self.asked_since.lock().unwrap().push(since_us);
        let samples = self.samples.lock().unwrap();
        Busy {
            samples: samples
                .iter()
                .copied()
                .filter(|s| s.at_us > since_us)
                .collect(),
            percent: None,
        }
    }
}

/// A board in a directory of its own, below it one user.
struct TestBoard {
    dir: tempfile::TempDir,
    driver: Driver,
    now_ns: u64,
}

impl TestBoard {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("0")).unwrap();
        Self {
            dir,
            driver: Driver::default(),
            now_ns: 1_000_000 * MS,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("0").join(name)
    }

    fn limits(core: u32, floor: u32, priority: u32, policy: Policy) -> Limits {
        Limits {
            priority,
            policy,
            devices: vec![DeviceLimit {
                uuid: DeviceUuid::new("GPU-a").unwrap(),
                memory_bytes: 8 * GIB,
                physical_bytes: 16 * GIB,
                core_percent: core,
                floor_percent: floor,
                ..DeviceLimit::default()
            }],
            ..Limits::default()
        }
    }

    /// A container of this name with its one process.
    fn tenant(&self, name: &str, limits: &Limits) -> Tenant {
        let path = self.path(name);
        std::fs::create_dir(&path).unwrap();
        LimitsFile::create(&path.join(LIMITS), limits).unwrap();
        TargetsFile::create(&path.join(TARGETS)).unwrap();
        std::fs::write(path.join(DOORBELL), "").unwrap();
        let device = NewDevice {
            uuid: limits.devices[0].uuid,
            physical_bytes: 16 * GIB,
        };
        Region::create(&path.join(REGION), &[device], 0o600).unwrap();
        Tenant::start(&path)
    }

    fn tick(&self, board: &mut Board) -> supervisor::arbiter::Ticked {
        board.tick(self.now_ns, &self.driver)
    }

    fn head(&self, name: &str) -> Head {
        let file = std::fs::File::open(self.path(name).join(TARGETS)).unwrap();
        read_head(file).unwrap()
    }

    fn target(&self, name: &str) -> Target {
        let file = TargetsFile::open(&self.path(name).join(TARGETS)).unwrap();
        let targets = file.read().unwrap();
        assert_eq!(targets.len(), 1, "{targets:?}");
        targets[0].1
    }

    /// What its library does at the first launch after a publication.
    fn ring(&self, name: &str) {
        std::fs::File::open(self.path(name).join(DOORBELL)).unwrap();
    }

    fn generation(&self, name: &str) -> u64 {
        let map = TargetsMap::open(&self.path(name).join(TARGETS)).unwrap();
        map.generation()
    }

    /// Lets time pass between two ticks, and answers.
    fn pass(&mut self, board: &mut Board, ns: u64) {
        let end_ns = self.now_ns + ns;
        while self.now_ns < end_ns {
            self.now_ns += 50_000;
            board.answer(self.now_ns);
        }
    }

    fn grant(&self, name: &str) -> Grant {
        self.target(name).grants[0].unwrap()
    }
}

/// A process of a container: this program again, in another role.
struct Tenant {
    child: Child,
    from: BufReader<std::process::ChildStdout>,
}

impl Tenant {
    fn start(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "a_process_of_a_container",
                "--ignored",
                "--nocapture",
            ])
            .env(TENANT, path.join(REGION))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        let mut tenant = Self { child, from };
        tenant.done();
        tenant
    }

    fn done(&mut self) {
        loop {
            let mut line = String::new();
            assert!(
                self.from.read_line(&mut line).unwrap() > 0,
                "the process ended"
            );
            if line.contains("@done") {
                return;
            }
        }
    }

    /// It does so, before this comes back.
    fn does(&mut self, what: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{what}").unwrap();
        self.done();
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
#[ignore = "the program that the other tests start as a container's process"]
fn a_process_of_a_container() {
    let Some(path) = std::env::var_os(TENANT) else {
        return;
    };
    use std::sync::atomic::Ordering::Relaxed;
    let region = Region::open(Path::new(&path)).unwrap();
    region.join().unwrap();
    println!("@done");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let compute = region.compute(0).unwrap();
        let (what, number) = line.split_once(' ').unwrap_or((&line, "0"));
        let number: u64 = number.parse().unwrap();
        match what {
            "launch" => {
                compute.own().launches.fetch_add(1, Relaxed);
            }
            "busy" => compute.count_busy(i64::try_from(number).unwrap()),
            "wait" => compute.own().waiting_since_ns.store(number, Relaxed),
            "hold" => {
                let charge = region.reserve(0, number, 0).unwrap();
                region.confirm(charge, Kind::Buffer);
            }
            other => panic!("{other}"),
        }
        println!("@done");
    }
}

#[test]
fn second_runner_takes_over_at_its_next_tick() {
    let mut place = TestBoard::new();
    let limits = TestBoard::limits(30, 0, 0, Policy::Force);
    let _one = place.tenant("one", &limits);
    let _two = place.tenant("two", &limits);
    let mut first = Board::join(&place.path("one")).unwrap();
    let mut second = Board::join(&place.path("two")).unwrap();

    assert!(place.tick(&mut first).leads);
    let ticked = place.tick(&mut second);
    assert!(!ticked.leads);
    assert_eq!(ticked.next, supervisor::arbiter::BUSY);
    assert_eq!(place.tick(&mut first).served, 2);
    assert_eq!(place.head("one").heartbeat_ns, place.now_ns);
    assert_eq!(place.head("two").heartbeat_ns, place.now_ns);

    // A crash: the kernel takes the lock. The other has looked again within a tick.
    drop(first);
    place.now_ns += u64::try_from(ticked.next.as_nanos()).unwrap();
    let ticked = place.tick(&mut second);

    assert!(ticked.leads);
    assert_eq!(ticked.served, 2, "the one whose runner died too");
    assert!(ticked.next.as_millis() <= 100);
    assert_eq!(place.head("one").heartbeat_ns, place.now_ns);
    assert_eq!(place.grant("one").permille, 300);
}

#[test]
fn agent_leads_before_runners_until_it_dies() {
    let mut place = TestBoard::new();
    let _one = place.tenant("one", &TestBoard::limits(30, 0, 0, Policy::Force));
    let mut runner = Board::join(&place.path("one")).unwrap();
    assert!(place.tick(&mut runner).leads);

    let mut agent = Board::serve(place.dir.path());
    assert!(place.tick(&mut agent).leads);
    place.now_ns += 50 * MS;
    assert!(!place.tick(&mut runner).leads);
    drop(agent);
    place.now_ns += 50 * MS;

    assert!(place.tick(&mut runner).leads);
    assert_eq!(place.head("one").heartbeat_ns, place.now_ns);
}

#[test]
fn unserved_runner_serves_itself() {
    let mut place = TestBoard::new();
    let _one = place.tenant("one", &TestBoard::limits(30, 0, 0, Policy::Force));
    let _two = place.tenant("two", &TestBoard::limits(30, 0, 0, Policy::Force));
    let mut deaf = Board::join(&place.path("one")).unwrap();
    let mut own = Board::join(&place.path("two")).unwrap();
    place.tick(&mut deaf);
    place.tick(&mut own);
    // It holds the first seat and says that it goes on, but its files are not what they seem.
    let path = place.path("two").join(TARGETS);
    let moved = place.path("two").join("moved");
    std::fs::rename(&path, &moved).unwrap();
    std::fs::copy(&moved, &path).unwrap();
    for _ in 0..6 {
        place.now_ns += 50 * MS;
        place.tick(&mut deaf);
        place.tick(&mut own);
    }

    let age_ns = place.now_ns - place.head("two").heartbeat_ns;

    assert!(age_ns <= 50 * MS, "{age_ns}");
}

#[test]
fn floor_is_kept_from_a_greedy_neighbour_and_lent_when_idle() {
    let mut place = TestBoard::new();
    let mut owner = place.tenant("owner", &TestBoard::limits(0, 70, 0, Policy::Floor));
    let mut greedy = place.tenant("greedy", &TestBoard::limits(0, 0, 0, Policy::Force));
    let mut board = Board::serve(place.dir.path());
    let mut go_on = |place: &mut TestBoard, works: &mut [&mut Tenant]| {
        place.now_ns += 50 * MS;
        for tenant in works {
            tenant.does("launch");
            tenant.does(&format!("busy {}", 50 * MS));
        }
        place.tick(&mut board)
    };

    for _ in 0..10 {
        go_on(&mut place, &mut [&mut greedy]);
    }
    assert_eq!(place.grant("greedy").permille, 1000);
    assert!(
        place.grant("greedy").measured,
        "a container may want its floor back"
    );
    assert!(place.grant("owner").permille >= 700, "it may start at once");

    for _ in 0..10 {
        go_on(&mut place, &mut [&mut greedy, &mut owner]);
    }
    assert!(
        place.grant("owner").permille >= 700,
        "{:?}",
        place.grant("owner")
    );
    assert!(
        place.grant("greedy").permille <= 300,
        "{:?}",
        place.grant("greedy")
    );
    assert!(place.grant("greedy").contended);
    assert!(place.grant("greedy").scale < Grant::ONE);
    assert!(place.head("owner").seen[0].contended);

    // Gone: what it had is lent again, and its slot has no target.
    drop(owner);
    for _ in 0..10 {
        go_on(&mut place, &mut [&mut greedy]);
    }
    assert_eq!(place.grant("greedy").permille, 1000);
}

#[test]
fn lower_priority_waits_until_the_higher_one_is_idle() {
    let mut place = TestBoard::new();
    let mut high = place.tenant("high", &TestBoard::limits(0, 0, 0, Policy::Force));
    let mut low = place.tenant("low", &TestBoard::limits(0, 0, 5, Policy::Force));
    let mut board = Board::serve(place.dir.path());
    place.tick(&mut board);

    for _ in 0..3 {
        place.now_ns += 50 * MS;
        high.does("launch");
        low.does("launch");
        place.tick(&mut board);
    }
    low.does("wait 1");
    let waits = place.grant("low");
    for _ in 0..5 {
        place.now_ns += 50 * MS;
        place.tick(&mut board);
    }

    assert_eq!(waits.permille, 0);
    assert_eq!(place.grant("high").permille, 1000);
    assert_eq!(place.grant("low").permille, 1000);
}

/// A service and training on one GPU, of which the training works.
fn service_and_training(floor: u32) -> (TestBoard, Tenant, Tenant, Board) {
    let mut place = TestBoard::new();
    let policy = if floor == 0 {
        Policy::Force
    } else {
        Policy::Floor
    };
    let high = place.tenant("high", &TestBoard::limits(0, 0, 0, Policy::Force));
    let mut low = place.tenant("low", &TestBoard::limits(0, floor, 9, policy));
    let mut board = Board::serve(place.dir.path());
    for _ in 0..3 {
        place.now_ns += 50 * MS;
        low.does("launch");
        low.does("wait 1");
        place.tick(&mut board);
    }
    (place, high, low, board)
}

#[test]
fn ring_closes_the_gate_of_a_lower_container_before_the_next_tick() {
    let (mut place, mut high, _low, mut board) = service_and_training(0);
    let told = (place.grant("high"), place.grant("low"));
    assert_eq!((told.0.rings, told.0.ahead), (true, Ahead::Any));
    assert_eq!((told.1.rings, told.1.ahead), (false, Ahead::Brief));
    assert_eq!(told.1.permille, 1000);
    let generation = place.generation("high");

    place.ring("high");
    high.does("launch");
    place.pass(&mut board, MS / 20);

    assert_eq!(place.grant("low").permille, 0);
    assert_eq!(place.grant("high").permille, 1000);
    place.pass(&mut board, MS / 2);
    assert_eq!(place.grant("low").permille, 0, "more may come");
    place.pass(&mut board, 2 * MS);
    assert_eq!(place.grant("low").permille, 1000);
    assert_ne!(place.generation("high"), generation, "it is to ring again");
}

#[test]
#[ignore = "a measurement, for docs/performance.md: run it with --release"]
fn cpu_of_answering_a_request() {
    let cpu_ns = || {
        let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
        let now = nix::time::clock_gettime(clock).unwrap();
        u64::try_from(now.tv_sec() * 1_000_000_000 + now.tv_nsec()).unwrap()
    };
    let (mut place, mut high, _low, mut board) = service_and_training(0);
    let (mut spent_ns, mut cycles) = (0, 0);
    for _ in 0..500 {
        high.does("launch");
        place.ring("high");
        let before = cpu_ns();
        // The ring, looks while it works for a millisecond and rests, and its end.
        for _ in 0..6 {
            place.now_ns += MS / 2;
            board.answer(place.now_ns);
        }
        spent_ns += cpu_ns() - before;
        cycles += 1;
        place.now_ns += 5 * MS;
        board.answer(place.now_ns);
        assert_eq!(place.grant("low").permille, 1000);
    }
    let each_us = spent_ns / cycles / 1_000;
    println!(
        "{each_us} us of CPU for each request: {} % of a core at 500 a second",
        each_us / 20
    );
}

#[test]
#[ignore = "a measurement by the machine's clock, for docs/performance.md: run it with --release"]
fn time_from_a_ring_to_new_targets() {
    const ROUNDS: usize = 1_000;
    let (mut place, mut high, _low, mut board) = service_and_training(0);
    let waker = board.waker().unwrap();
    // The clock that the arbiter reads is the test's, moved on between two rounds, plus the machine's.
    let began = std::time::Instant::now();
    let mut took_us = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        high.does("launch");
        let ticked = supervisor::arbiter::Ticked {
            next: std::time::Duration::from_secs(60),
            leads: true,
            served: 2,
            failed: 0,
        };
        let (start_ns, start) = (place.now_ns, std::time::Instant::now());
        let clock = move || start_ns + u64::try_from(start.elapsed().as_nanos()).unwrap();
        let map = TargetsMap::open(&place.path("low").join(TARGETS)).unwrap();
        let us = std::thread::scope(|scope| {
            let ringer = scope.spawn(|| {
                // The arbiter sleeps in `pause` by then.
                std::thread::sleep(std::time::Duration::from_millis(2));
                let generation = map.generation();
                let rang = std::time::Instant::now();
                place.ring("high");
                while map.generation() == generation {
                    assert!(began.elapsed().as_secs() < 300, "no new targets");
                    // A thread that spins may keep the processor on which the kernel has put the arbiter.
                    std::thread::yield_now();
                }
                let us = rang.elapsed().as_micros();
                waker.wake();
                us
            });
            board.pause(&ticked, clock);
            ringer.join().unwrap()
        });
        took_us.push(us);
        // It rests, and the lower one goes on.
        place.now_ns = clock() + 10 * MS;
        board.answer(place.now_ns);
        place.pass(&mut board, 20 * MS);
        assert_eq!(place.grant("low").permille, 1000);
    }
    took_us.sort_unstable();
    let at = |percent: usize| took_us[ROUNDS * percent / 100];
    println!(
        "from a ring to new targets: p50 {} us, p99 {} us of {ROUNDS}",
        at(50),
        at(99)
    );
}

#[test]
fn floor_of_a_lower_container_outlives_rings_without_end() {
    let (mut place, mut high, mut low, mut board) = service_and_training(30);
    let mut least = u16::MAX;
    for round in 0..2_000 {
        place.ring("high");
        if round % 4 == 0 {
            high.does("launch");
        }
        if round % 500 == 0 {
            low.does("launch");
            place.tick(&mut board);
        }
        place.pass(&mut board, MS / 10);
        least = least.min(place.grant("low").permille);
    }
    assert!(least >= 300, "{least}");
    assert_eq!(
        place.head("low").heartbeat_ns / (100 * MS),
        place.now_ns / (100 * MS)
    );
}

#[test]
fn rings_without_end_and_without_work_cost_a_lower_container_nothing() {
    let (mut place, _high, mut low, mut board) = service_and_training(0);
    let mut closed = 0;
    for round in 0..5_000 {
        place.ring("high");
        if round % 500 == 0 {
            low.does("launch");
            place.tick(&mut board);
        }
        place.pass(&mut board, MS / 10);
        closed += u32::from(place.grant("low").permille == 0);
    }
    assert!(closed <= 200, "in {closed} of 5,000 looks");
}

#[test]
fn container_that_never_rests_closes_the_gate_for_its_share() {
    use std::mem::offset_of;
    use vgpu_abi::layout::ComputeUse;
    let mut place = TestBoard::new();
    let mut high = place.tenant("high", &TestBoard::limits(20, 0, 0, Policy::Force));
    let mut low = place.tenant("low", &TestBoard::limits(0, 0, 9, Policy::Force));
    let compute = offset_of!(DeviceUse, compute);
    let forged = [
        (compute + offset_of!(ComputeUse, in_flight_ns), u64::MAX),
        (compute + offset_of!(ComputeUse, expected_by_ns), u64::MAX),
        (compute + offset_of!(ComputeUse, progress_ns), u64::MAX),
    ];
    forge(&place, "high", 0, &forged);
    let mut board = Board::serve(place.dir.path());
    let (mut closed, mut looks) = (0, 0);
    for _ in 0..100 {
        high.does("launch");
        low.does("launch");
        place.tick(&mut board);
        for _ in 0..10 {
            place.ring("high");
            place.pass(&mut board, 5 * MS);
            looks += 1;
            closed += u32::from(place.grant("low").permille == 0);
        }
    }
    let percent = closed * 100 / looks;
    // Its cap, a sixth of the rest, and 0.2 s of 5 s.
    assert!(percent <= 39, "{percent} %");
    assert!(percent >= 30, "{percent} %");
}

#[test]
fn doorbells_of_an_earlier_release_are_missing_and_nothing_fails() {
    let (mut place, mut high, _low, mut board) = service_and_training(0);
    std::fs::remove_file(place.path("high").join(DOORBELL)).unwrap();
    place.pass(&mut board, MS);
    // A container that has done nothing for a second is looked at ten times a second.
    place.now_ns += 100 * MS;
    high.does("launch");

    let ticked = place.tick(&mut board);

    assert_eq!(ticked.failed, 0);
    assert_eq!(place.grant("low").permille, 0, "noticed at the tick");
    // The agent repairs it.
    std::fs::write(place.path("high").join(DOORBELL), "").unwrap();
    for _ in 0..60 {
        place.now_ns += 50 * MS;
        place.tick(&mut board);
    }
    assert_eq!(place.grant("low").permille, 1000);
    place.ring("high");
    place.pass(&mut board, MS / 20);
    assert_eq!(place.grant("low").permille, 0);
}

#[test]
fn pause_ends_at_a_wake_and_answers_a_ring_meanwhile() {
    let (place, _high, _low, mut board) = service_and_training(0);
    let waker = board.waker().unwrap();
    let ticked = supervisor::arbiter::Ticked {
        next: std::time::Duration::from_secs(60),
        leads: true,
        served: 2,
        failed: 0,
    };
    let start = std::time::Instant::now();
    let start_ns = place.now_ns;
    let clock = move || start_ns + u64::try_from(start.elapsed().as_nanos()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let until = |condition: &dyn Fn() -> bool| {
                while !condition() {
                    assert!(start.elapsed().as_secs() < 50, "nothing happened");
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            };
            let generation = place.generation("low");
            place.ring("high");
            until(&|| place.generation("low") != generation);
            waker.wake();
        });
        board.pause(&ticked, clock);
    });
    assert!(start.elapsed().as_secs() < 50);
}

#[test]
fn new_limits_and_containers_count_at_the_next_tick() {
    let mut place = TestBoard::new();
    let _one = place.tenant("one", &TestBoard::limits(30, 0, 0, Policy::Force));
    let mut board = Board::serve(place.dir.path());
    place.tick(&mut board);
    assert_eq!(place.grant("one").permille, 300);

    let file = LimitsFile::open(&place.path("one").join(LIMITS)).unwrap();
    file.write(&TestBoard::limits(50, 0, 0, Policy::Force))
        .unwrap();
    let _two = place.tenant("two", &TestBoard::limits(20, 0, 0, Policy::Force));
    place.now_ns += 100 * MS;
    place.tick(&mut board);

    assert_eq!(place.grant("one").permille, 500);
    assert_eq!(place.grant("two").permille, 200);
}

#[test]
fn overhead_is_published_and_outlives_the_arbiter() {
    let mut place = TestBoard::new();
    let mut one = place.tenant("one", &TestBoard::limits(30, 0, 0, Policy::Force));
    one.does(&format!("hold {GIB}"));
    place.driver.held.lock().unwrap().push(GpuProcess {
        uuid: String::from("GPU-a"),
        pid: one.pid(),
        used_bytes: Some(GIB + 300),
        utilization_percent: None,
    });
    let mut board = Board::serve(place.dir.path());
    place.tick(&mut board);
    let target = place.target("one");
    assert_eq!(
        (target.host_pid, target.overhead_bytes[0]),
        (one.pid(), 300)
    );
    assert_eq!(target.overhead_bytes[1..], [0; MAX_DEVICES - 1]);

    // The next arbiter cannot ask the driver, and takes nothing back.
    drop(board);
    place.driver.held.lock().unwrap().clear();
    let mut next = Board::serve(place.dir.path());
    place.now_ns += 50 * MS;
    place.tick(&mut next);

    assert_eq!(place.target("one").overhead_bytes[0], 300);
}

#[test]
fn driver_is_asked_only_for_newer_samples() {
    let mut place = TestBoard::new();
    let mut one = place.tenant("one", &TestBoard::limits(30, 0, 0, Policy::Force));
    let mut two = place.tenant("two", &TestBoard::limits(70, 0, 0, Policy::Force));
    let mut board = Board::serve(place.dir.path());

    for round in 1..=40_u64 {
        place.now_ns += 50 * MS;
        for tenant in [&mut one, &mut two] {
            tenant.does("launch");
            tenant.does(&format!("busy {}", 25 * MS));
        }
        let sample = |tenant: &Tenant| ProcessSample {
            pid: tenant.pid(),
            at_us: 1_700_000_000_000_000 + round * 50_000,
            percent: 50,
        };
        *place.driver.samples.lock().unwrap() = vec![sample(&one), sample(&two)];
        place.tick(&mut board);
    }

    let asked = place.driver.asked_since.lock().unwrap();
    assert_eq!(asked[0], 0);
    assert!(
        asked[1..]
            .iter()
            .all(|since| *since > 1_700_000_000_000_000),
        "{asked:?}"
    );
    assert!(asked.is_sorted());
    assert!(
        (5..=11).contains(&asked.len()),
        "four or five times a second: {asked:?}"
    );
    // Half of the time measured, half of the time told: what they measured was their own.
    assert!(
        place.grant("one").scale >= Grant::ONE / 10 * 9,
        "{:?}",
        place.grant("one")
    );
}

/// Writes words over one device's cells of a slot, as any process of the container can.
fn forge(place: &TestBoard, name: &str, slot: usize, words: &[(usize, u64)]) {
    use std::os::unix::fs::FileExt;
    let path = place.path(name).join(REGION);
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let cells = std::mem::offset_of!(RegionLayout, slots)
        + slot * size_of::<Slot>()
        + std::mem::offset_of!(Slot, devices);
    for (offset, word) in words {
        file.write_all_at(&word.to_ne_bytes(), (cells + offset) as u64)
            .unwrap();
    }
}

fn oversubscribed_limits() -> Limits {
    let mut limits = TestBoard::limits(0, 50, 0, Policy::Floor);
    limits.devices[0].memory_bytes = 12 * GIB;
    limits.devices[0].resident_bytes = 8 * GIB;
    limits
}

/// How often each of two containers was granted the device in ten seconds, both always at work.
fn turns_of(place: &mut TestBoard, tenants: &mut [Tenant; 2], board: &mut Board) -> [u32; 2] {
    let mut had = [0; 2];
    for _ in 0..200 {
        place.now_ns += 50 * MS;
        for tenant in tenants.iter_mut() {
            tenant.does("launch");
        }
        place.tick(board);
        for (name, had) in ["honest", "other"].into_iter().zip(&mut had) {
            *had += u32::from(place.grant(name).permille > 0);
        }
    }
    had
}

#[test]
fn memory_forged_beyond_the_limit_steals_no_turns() {
    use std::mem::offset_of;
    let confirmed = offset_of!(DeviceUse, confirmed);
    let oversubscribed = offset_of!(DeviceUse, oversubscribed);
    let run = |held: u64, past: u64| {
        let mut place = TestBoard::new();
        let limits = oversubscribed_limits();
        let mut tenants = [
            place.tenant("honest", &limits),
            place.tenant("other", &limits),
        ];
        let full = [(confirmed, 12 * GIB), (oversubscribed, 4 * GIB)];
        forge(&place, "honest", 0, &full);
        forge(
            &place,
            "other",
            0,
            &[(confirmed, held), (oversubscribed, past)],
        );
        let mut board = Board::serve(place.dir.path());
        turns_of(&mut place, &mut tenants, &mut board)
    };

    let fair = run(12 * GIB, 4 * GIB);
    let forged = run(CHARGE_BYTES_MASK, CHARGE_BYTES_MASK);

    assert!(fair[0].abs_diff(100) <= 20, "{fair:?}");
    assert_eq!(forged, fair);
}

#[test]
fn container_without_oversubscription_takes_no_turns() {
    use std::mem::offset_of;
    let mut place = TestBoard::new();
    let honest = oversubscribed_limits();
    let plain = TestBoard::limits(0, 50, 0, Policy::Floor);
    let mut tenants = [
        place.tenant("honest", &honest),
        place.tenant("other", &plain),
    ];
    let full = [
        (offset_of!(DeviceUse, confirmed), 12 * GIB),
        (offset_of!(DeviceUse, oversubscribed), 4 * GIB),
    ];
    forge(&place, "honest", 0, &full);
    let all = [
        (offset_of!(DeviceUse, confirmed), CHARGE_BYTES_MASK),
        (offset_of!(DeviceUse, oversubscribed), CHARGE_BYTES_MASK),
    ];
    forge(&place, "other", 0, &all);
    let mut board = Board::serve(place.dir.path());

    let had = turns_of(&mut place, &mut tenants, &mut board);

    assert_eq!(had, [200, 200]);
}

#[test]
fn slot_after_many_idle_ones_still_gets_its_grant() {
    use std::os::unix::fs::FileExt;
    let mut place = TestBoard::new();
    let _one = place.tenant("one", &TestBoard::limits(30, 0, 0, Policy::Force));
    let path = place.path("one").join(REGION);
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    // One process that calls all slots its own, as 1,024 children would.
    let lock = nix::libc::flock {
        l_type: i16::try_from(nix::libc::F_WRLCK).unwrap(),
        l_whence: 0,
        l_start: i64::try_from(LOCK_SLOTS + 1).unwrap(),
        l_len: 1023,
        l_pid: 0,
    };
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETLK(&lock)).unwrap();
    for slot in 1..1024_usize {
        let at = std::mem::offset_of!(RegionLayout, slots) + slot * size_of::<Slot>();
        file.write_all_at(&SLOT_USED.to_ne_bytes(), at as u64)
            .unwrap();
    }
    let bits = std::mem::offset_of!(RegionHeader, slots_in_use);
    file.write_all_at(&[0xff; 128], bits as u64).unwrap();
    let above = std::mem::offset_of!(RegionHeader, slots_high_water);
    file.write_all_at(&1024_u32.to_ne_bytes(), above as u64)
        .unwrap();
    let mut board = Board::serve(place.dir.path());
    for _ in 0..3 {
        place.now_ns += 100 * MS;
        assert_eq!(place.tick(&mut board).failed, 0);
    }

    let targets = TargetsFile::open(&place.path("one").join(TARGETS)).unwrap();
    for slot in [0, 255, 256, 1023] {
        let target = targets.target(slot).unwrap();
        assert_eq!(target.grants[0].unwrap().permille, 300, "slot {slot}");
    }
}

#[test]
fn memory_beyond_the_charges_is_published() {
    let mut place = TestBoard::new();
    let mut one = place.tenant("one", &TestBoard::limits(30, 0, 0, Policy::Force));
    one.does(&format!("hold {GIB}"));
    place.driver.held.lock().unwrap().push(GpuProcess {
        uuid: String::from("GPU-a"),
        pid: one.pid(),
        used_bytes: Some(3 * GIB),
        utilization_percent: None,
    });
    let mut board = Board::serve(place.dir.path());
    let mut published = Vec::new();
    for _ in 0..6 {
        place.now_ns += 100 * MS;
        place.tick(&mut board);
        published.push(place.head("one").unaccounted[0].bytes / GIB);
    }

    assert_eq!(published, [0, 0, 0, 2, 2, 2]);
    assert_eq!(place.head("one").unaccounted[0].beside, GIB);
    // The tenant clears its slot, and even its lock is gone: the driver still knows the process.
    use std::os::unix::fs::FileExt;
    let path = place.path("one").join(REGION);
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let bits = std::mem::offset_of!(RegionHeader, slots_in_use);
    file.write_all_at(&[0; 128], bits as u64).unwrap();
    for _ in 0..20 {
        place.now_ns += 100 * MS;
        place.tick(&mut board);
    }
    assert_eq!(place.head("one").unaccounted[0].bytes, 3 * GIB);

    place.driver.held.lock().unwrap().clear();
    for _ in 0..20 {
        place.now_ns += 100 * MS;
        place.tick(&mut board);
    }
    assert_eq!(place.head("one").unaccounted[0].bytes, 0);
}

#[test]
fn broken_tenant_files_do_not_affect_others() {
    let mut place = TestBoard::new();
    let _one = place.tenant("one", &TestBoard::limits(30, 0, 0, Policy::Force));
    let _two = place.tenant("two", &TestBoard::limits(30, 0, 0, Policy::Force));
    // Files of a user, whichever user runs this: root's own are out of its tenants' reach.
    for name in ["", LIMITS, TARGETS, REGION] {
        let path = place.path("two").join(name);
        std::os::unix::fs::chown(path, Some(65_534), None).ok();
    }
    let mut board = Board::serve(place.dir.path());
    place.tick(&mut board);

    std::fs::File::options()
        .write(true)
        .open(place.path("two").join(REGION))
        .unwrap()
        .set_len(5000)
        .unwrap();
    std::fs::File::options()
        .write(true)
        .open(place.path("two").join(TARGETS))
        .unwrap()
        .set_len(100)
        .unwrap();
    place.now_ns += 100 * MS;
    let ticked = place.tick(&mut board);

    assert!(ticked.failed >= 1);
    assert_eq!(place.head("one").heartbeat_ns, place.now_ns);
    assert_eq!(place.grant("one").permille, 300);
}
