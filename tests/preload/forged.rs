//! Usage regions that another process writes to, under the shipped arbiter: the memory that the driver really holds
//! for the container bounds what its processes still get. And the memory that the driver holds for dead processes.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cuda_sim::Config;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use supervisor::arbiter::Board;
use supervisor::gpu::{GpuError, GpuProcess, Gpus, Inventory};
use vgpu_abi::layout::{
    CHARGE_BYTES_MASK, DeviceUse, MAX_SHARED, MAX_SLOTS, RegionDevice as DeviceLayout,
    RegionLayout, SHARED_FREE, SharedObject, Slot,
};
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, LimitsFile};
use vgpu_abi::region::{NewDevice, Region};
use vgpu_abi::targets::{Head, TargetsFile, read_head};

use crate::support::{CONTEXT, GPU_BYTES, MIB, Program, Running, World};

/// A container that an arbiter looks after.
struct Hosted {
    world: World,
    dir: PathBuf,
    arbiter: Board,
    now_ns: u64,
}

/// NVML's figures, which are the board's.
struct BoardGpus<'a>(&'a World);

impl Gpus for BoardGpus<'_> {
    fn inventory(&self) -> Result<Inventory, GpuError> {
        Ok(Inventory::default())
    }

    fn processes(&self) -> Result<Vec<GpuProcess>, GpuError> {
        let board = self.0.board();
        let each = board.processes(0).into_iter().map(|process| GpuProcess {
            uuid: board.uuid(0),
            pid: process.pid,
            used_bytes: Some(process.alloc_bytes + process.overhead_bytes),
            utilization_percent: None,
        });
        Ok(each.collect())
    }
}

impl Hosted {
    /// Room for `bytes` and `contexts`.
    fn with_room(bytes: u64, contexts: u64) -> Self {
        let world = World::with_room(bytes);
        let dir = world.path("hosted/0/c");
        std::fs::create_dir_all(&dir).unwrap();
        let uuid = DeviceUuid::new(&world.board().uuid(0)).unwrap();
        let limits = Limits {
            devices: vec![DeviceLimit {
                uuid,
                memory_bytes: bytes + contexts * CONTEXT,
                physical_bytes: GPU_BYTES,
                context_bytes: CONTEXT,
                ..DeviceLimit::default()
            }],
            ..Limits::default()
        };
        LimitsFile::create(&dir.join("limits"), &limits).unwrap();
        drop(TargetsFile::create(&dir.join("targets")).unwrap());
        let device = NewDevice {
            uuid,
            physical_bytes: GPU_BYTES,
        };
        Region::create(&dir.join("region"), &[device], 0o600).unwrap();
        let arbiter = Board::serve(&world.path("hosted"));
        Self {
            world,
            dir,
            arbiter,
            now_ns: 0,
        }
    }

    fn program(&self) -> Program<'_> {
        let program = self.world.program("memory").linked();
        program
            .env("VGPU_LIMITS", self.dir.join("limits"))
            .env("VGPU_REGION", self.dir.join("region"))
    }

    fn ready(&self) -> Running {
        let mut running = self.program().start();
        assert_eq!(running.step("ready"), "ready 0");
        running
    }

    /// The arbiter looks `times` times, a tenth of a second of its time apart; then the library is due to read the
    /// result.
    fn looks(&mut self, times: u32) {
        for _ in 0..times {
            self.now_ns = monotonic_ns().max(self.now_ns + 100_000_000);
            let ticked = self.arbiter.tick(self.now_ns, &BoardGpus(&self.world));
            assert_eq!((ticked.served, ticked.failed), (1, 0));
        }
        std::thread::sleep(Duration::from_millis(60));
    }

    fn head(&self) -> Head {
        read_head(File::open(self.dir.join("targets")).unwrap()).unwrap()
    }

    fn unaccounted(&self) -> u64 {
        self.head().unaccounted[0].bytes
    }

    fn held(&self) -> u64 {
        self.world.board().used_bytes(0)
    }

    fn region(&self) -> File {
        let path = self.dir.join("region");
        File::options().read(true).write(true).open(path).unwrap()
    }

    /// Overwrites the charges of all processes, from outside.
    fn forge_charges(&self, bytes: u64) {
        let file = self.region();
        for slot in 0..MAX_SLOTS {
            let at = offset_of!(RegionLayout, slots)
                + slot * size_of::<Slot>()
                + offset_of!(Slot, devices)
                + offset_of!(DeviceUse, confirmed);
            change(&file, at, |word| word & !CHARGE_BYTES_MASK | bytes);
        }
        let at = offset_of!(RegionLayout, devices) + offset_of!(DeviceLayout, shared);
        change(&file, at, |word| word & !CHARGE_BYTES_MASK);
        for object in 0..MAX_SHARED {
            let at = offset_of!(RegionLayout, shared) + object * size_of::<SharedObject>();
            file.write_all_at(&SHARED_FREE.to_ne_bytes(), at as u64)
                .unwrap();
        }
    }
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

fn change(file: &File, at: usize, to: impl Fn(u64) -> u64) {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, at as u64).unwrap();
    let word = to(u64::from_ne_bytes(word)).to_ne_bytes();
    file.write_all_at(&word, at as u64).unwrap();
}

#[test]
fn zeroed_charges_of_an_exporter_make_no_room() {
    let mut hosted = Hosted::with_room(100 * MIB, 2);
    let limit = 100 * MIB + 2 * CONTEXT;
    let mut exporter = hosted.ready();
    let mut other = hosted.ready();
    assert_eq!(exporter.step("alloc 80"), "alloc 0");
    assert!(exporter.step("export").starts_with("export 0 "));
    hosted.looks(6);
    assert_eq!(hosted.unaccounted(), 0);

    for _ in 0..4 {
        hosted.forge_charges(0);
        hosted.looks(6);
        assert_eq!(other.step("alloc 60"), "alloc 2");
        assert!(hosted.held() <= limit, "{} MiB", hosted.held() >> 20);
    }

    assert!(hosted.unaccounted() >= 80 * MIB, "{}", hosted.unaccounted());
    let snapshot = vgpu_abi::host::snapshot(&hosted.dir.join("region")).unwrap();
    let record = snapshot.ooms.last().unwrap();
    assert!(record.unaccounted >= 80 * MIB, "{record:?}");
    assert_eq!(record.limit, limit);
    let info = other.step("info");
    let free: u64 = info.split(' ').nth(2).unwrap().parse().unwrap();
    assert!(free <= 20 * MIB, "{info}");
}

#[test]
fn charges_forged_larger_hide_nothing_past_the_limit() {
    let mut hosted = Hosted::with_room(100 * MIB, 2);
    let mut one = hosted.ready();
    let mut other = hosted.ready();
    assert_eq!(one.step("alloc 80"), "alloc 0");
    hosted.forge_charges(0);
    assert_eq!(other.step("alloc 80"), "alloc 0");

    // The driver holds more than the limit, and the books claim to explain it.
    hosted.forge_charges(1 << 40);
    hosted.looks(1);
    hosted.forge_charges(0);
    std::thread::sleep(Duration::from_millis(60));

    assert!(hosted.unaccounted() >= 60 * MIB, "{}", hosted.unaccounted());
    assert_eq!(other.step("module"), "module 0");
    assert_eq!(one.step("create 80"), "create 2");
}

#[test]
fn processes_that_share_memory_honestly_get_all_of_their_limit() {
    let mut hosted = Hosted::with_room(100 * MIB, 3);
    let mut exporter = hosted.ready();
    let mut importer = hosted.ready();
    let mut third = hosted.ready();

    assert_eq!(exporter.step("alloc 40"), "alloc 0");
    let named = exporter.step("export");
    let name = named.strip_prefix("export 0 ").unwrap();
    assert_eq!(importer.step(&format!("import {name}")), "import 0");
    hosted.looks(6);
    assert_eq!(hosted.unaccounted(), 0);
    assert_eq!(third.step("alloc 61"), "alloc 2");
    assert_eq!(third.step("alloc 60"), "alloc 0");
    hosted.looks(6);
    assert_eq!(hosted.unaccounted(), 0);

    assert_eq!(importer.step("close"), "close 0");
    assert_eq!(exporter.step("free"), "free 0");
    hosted.looks(1);
    assert_eq!(importer.step("alloc 40"), "alloc 0");
    hosted.looks(6);
    assert_eq!(hosted.unaccounted(), 0);
}

#[test]
fn the_host_says_when_the_driver_has_let_go_of_a_dead_process() {
    let mut hosted = Hosted::with_room(100 * MIB, 1);
    let mut victim = hosted.ready();
    assert_eq!(victim.step("alloc 80"), "alloc 0");
    hosted.looks(2);
    let seat = vgpu_abi::host::snapshot(&hosted.dir.join("region")).unwrap();
    let slot = seat.slots[0].slot;

    victim.kill();
    hosted.world.board().reap();
    hosted.looks(3);

    let file = TargetsFile::open(&hosted.dir.join("targets")).unwrap();
    assert!(file.target(slot).is_some_and(|target| target.released));
    let mut next = hosted.ready();
    assert_eq!(next.step("alloc 100"), "alloc 0");
}

/// The most that the driver held while a program did a step.
fn most_held(world: &World, program: &mut Running, step: &str) -> (String, u64) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let board = world.board();
            let mut most = 0;
            // Relaxed: a flag.
            while !done.load(Ordering::Relaxed) {
                most = board.used_bytes(0).max(most);
                std::thread::sleep(Duration::from_millis(1));
            }
            board.used_bytes(0).max(most)
        });
        let said = program.step(step);
        // Relaxed: a flag.
        done.store(true, Ordering::Relaxed);
        (said, watch.join().unwrap())
    })
}

#[test]
fn a_dead_process_keeps_its_charge_until_the_driver_lets_go() {
    let config = Config {
        release_delay_ms: 500,
        ..Config::default()
    };
    let limit = 100 * MIB + 2 * CONTEXT;
    let world = World::with_limits_on(&config, &[limit]);
    let mut next = world.program("memory").linked().start();
    assert_eq!(next.step("ready"), "ready 0");
    let mut victim = world.program("memory").linked().start();
    assert_eq!(victim.step("ready"), "ready 0");
    assert_eq!(victim.step("alloc 80"), "alloc 0");

    victim.kill();
    let (done, most) = most_held(&world, &mut next, "alloc 90");

    assert_eq!(done, "alloc 0", "it waited for the driver");
    assert!(most <= limit, "{} of {} MiB", most >> 20, limit >> 20);
}

#[test]
fn driver_that_never_frees_keeps_the_room_for_a_bounded_time() {
    let config = Config {
        release_delay_ms: 3_600_000,
        ..Config::default()
    };
    let world = World::with_limits_on(&config, &[100 * MIB + 2 * CONTEXT]);
    let mut next = world.program("memory").linked().start();
    assert_eq!(next.step("ready"), "ready 0");
    let mut victim = world.program("memory").linked().start();
    assert_eq!(victim.step("ready"), "ready 0");
    assert_eq!(victim.step("alloc 80"), "alloc 0");

    victim.kill();

    // A request that would not fit even without the dead process is refused at once, without a wait.
    assert_eq!(next.step("alloc 200"), "alloc 2");
    assert_eq!(next.step("alloc 90"), "alloc 0");
}

#[test]
fn a_forked_child_keeps_the_charge_of_its_dead_parent() {
    let world = World::with_limits(&[100 * MIB + 2 * CONTEXT]);
    let mut next = world.program("memory").linked().start();
    assert_eq!(next.step("ready"), "ready 0");
    let mut parent = world.program("memory").linked().start();
    assert_eq!(parent.step("ready"), "ready 0");
    assert_eq!(parent.step("alloc 80"), "alloc 0");
    let forked = parent.step("fork");
    let child: i32 = forked.strip_prefix("fork ").unwrap().parse().unwrap();

    parent.kill();

    assert_eq!(next.step("alloc 90"), "alloc 2");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(next.step("alloc 90"), "alloc 2");
    kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
    // The kernel ends it a moment later.
    let mut tries = (0..1_000).map(|_| next.step("alloc 90"));
    assert!(tries.any(|answer| answer == "alloc 0"));
}
