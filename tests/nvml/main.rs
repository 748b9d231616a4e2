//! NVML in a container: a program under the library sees its share, its own processes and its own devices. The board
//! knows the truth; the program never sees a neighbour on it.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "also in what the tests share"
)]

use std::ffi::{CStr, CString};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cuda_api::nvml::*;
use cuda_sim::board::{Kind as Taken, Member};
use cuda_sim::clock::ClockKind;
use cuda_sim::exec::{Exec, Work};
use cuda_sim::{Board, Config};
use expect_test::expect;
use libloading::Library;
use supervisor::gpu::{Gpus, NvmlGpus};
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, LimitsFile, Unlisted};
use vgpu_abi::region::{Kind, NewDevice, Region};
use vgpu_abi::targets::{Target, TargetsFile};

const GIB: u64 = 1 << 30;
/// On the board: not the container's.
const FOREIGN: usize = 0;
/// The container's, with no cap.
const UNCAPPED: usize = 1;
/// The container's, capped at 4 GiB.
const CAPPED: usize = 2;

/// A container on a board, seen from outside; this process is a member of it.
struct World {
    directory: tempfile::TempDir,
    board: Board,
    work: Exec,
    region: Region,
    uuids: Vec<String>,
}

impl World {
    /// A container with one capped device and one without a cap, and not the third.
    fn new() -> Self {
        Self::with("", |board| {
            vec![(board.uuid(CAPPED), 4 * GIB), (board.uuid(UNCAPPED), 0)]
        })
    }

    /// A container with these devices and caps, on a board divided as `mig` says.
    fn with(mig: &str, devices: impl Fn(&Board) -> Vec<(String, u64)>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            memory_bytes: vec![16 * GIB; 3],
            clock: ClockKind::Virtual,
            mig: mig.to_owned(),
            // Its NVML has every name of the table.
            driver_version: 13_050,
            ..Config::default()
        };
        let board = Board::create(&directory.path().join("board"), &config).unwrap();
        let work = board.exec().unwrap();
        let uuids: Vec<String> = (0..3).map(|gpu| board.uuid(gpu)).collect();
        let (mut limits, mut rows) = (Vec::new(), Vec::new());
        for (uuid, memory_bytes) in devices(&board) {
            let uuid = DeviceUuid::new(&uuid).unwrap();
            let physical_bytes = 16 * GIB;
            limits.push(DeviceLimit {
                uuid,
                memory_bytes,
                physical_bytes,
                ..DeviceLimit::default()
            });
            rows.push(NewDevice {
                uuid,
                physical_bytes,
            });
        }
        let limits = Limits {
            unlisted: Unlisted::Deny,
            devices: limits,
            ..Limits::default()
        };
        LimitsFile::create(&directory.path().join("limits"), &limits).unwrap();
        let path = directory.path().join("region");
        Region::create(&path, &rows, 0o600).unwrap();
        let region = Region::open(&path).unwrap();
        Self {
            directory,
            board,
            work,
            region,
            uuids,
        }
    }

    /// This process takes memory of the capped device, in the books and on the board.
    fn take(&self, bytes: u64) -> Member {
        let charge = self.region.reserve(0, bytes, 0).unwrap();
        self.region.confirm(charge, Kind::Buffer);
        let member = self.board.join().unwrap();
        self.board
            .take(member, CAPPED, bytes, Taken::Alloc)
            .unwrap();
        member
    }

    /// This program again, as another one.
    fn start(&self, role: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "--exact",
                role,
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env("VGPU_SIM_BOARD", self.directory.path().join("board"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    /// The answers that a program in the container gets.
    fn told(&self, about: &str) -> String {
        let output = self
            .start("asks")
            .env("LD_PRELOAD", library("libvgpu.so"))
            .env("VGPU_LIMITS", self.directory.path().join("limits"))
            .env("VGPU_REGION", self.directory.path().join("region"))
            .env("ASK", about)
            .env("UUIDS", self.uuids.join(" "))
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success(),
            "{printed}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let own = std::process::id().to_string();
        printed
            .lines()
            .filter_map(|line| line.strip_prefix("> "))
            .map(|line| line.replace(&own, "PID") + "\n")
            .collect()
    }
}

/// A program on the board that is not in the container; it computes without end.
struct Neighbour(Child);

impl Neighbour {
    fn start(world: &World) -> Self {
        let mut child = world.start("neighbour").spawn().unwrap();
        let ready = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(ready.map_while(Result::ok).any(|line| line == "> ready"));
        Self(child)
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // It is gone already when its test failed in it.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
#[ignore = "a program that other tests start"]
fn neighbour() {
    if std::env::var_os("VGPU_SIM_BOARD").is_none() {
        return;
    }
    let board = Board::from_env().unwrap();
    let member = board.join().unwrap();
    board.take(member, CAPPED, 2 * GIB, Taken::Alloc).unwrap();
    let work = board.exec().unwrap();
    let channel = work.open_channel(work.join().unwrap(), CAPPED).unwrap();
    work.submit(channel, Work::Kernel { ns: u64::MAX / 4 })
        .unwrap();
    println!("\n> ready");
    // Until the parent is done or gone.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// A library that cargo built next to this test program.
fn library(name: &str) -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name(name);
    assert!(
        library.exists(),
        "{} is built together with its tests",
        library.display()
    );
    library
}

macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        #[allow(non_snake_case, dead_code, reason = "named as in C; not every one is asked")]
        struct Nvml { $($name: unsafe extern "C-unwind" fn($($ty),*) -> NvmlReturn,)* }

        impl Nvml {
            fn load(path: &Path) -> Self {
                // SAFETY: our own library, whose initialisers do nothing.
                let library = Box::leak(Box::new(unsafe { Library::new(path) }.unwrap()));
                Nvml {
                    // SAFETY: the table states the type of each function.
                    $($name: *unsafe { library.get(stringify!($name)) }.unwrap(),)*
                }
            }
        }
    };
}
cuda_api::nvml_functions!(functions);

/// Every call into NVML goes through here.
macro_rules! call {
    ($nvml:ident.$function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: pointers are NULL or lead to variables of the test, of the type in the table.
        unsafe { ($nvml.$function)($($argument),*) }
    };
}

#[track_caller]
fn ok(result: NvmlReturn) {
    assert_eq!(result, NvmlReturn::SUCCESS);
}

macro_rules! say {
    ($($part:tt)*) => { println!("> {}", format_args!($($part)*)) };
}

/// The program in the container.
#[test]
#[ignore = "a program that other tests start"]
fn asks() {
    let Ok(about) = std::env::var("ASK") else {
        return;
    };
    println!();
    let nvml = Nvml::load(&library("libnvidia_ml.so"));
    ok(call!(nvml.nvmlInit_v2()));
    let mut count = 0;
    ok(call!(nvml.nvmlDeviceGetCount_v2(&raw mut count)));
    if about == "devices" {
        ask_devices(&nvml, count);
        return;
    }
    if about == "memory" {
        ask_memory(&nvml, count);
        return;
    }
    if about == "parts" {
        ask_parts(&nvml);
        return;
    }
    // The capped device comes after the uncapped one, as on the board.
    let mut device = NvmlDevice::NULL;
    ok(call!(
        nvml.nvmlDeviceGetHandleByIndex_v2(1, &raw mut device)
    ));
    match about.as_str() {
        "processes" => ask_processes(&nvml, device),
        "utilization" => ask_utilization(&nvml, device),
        other => panic!("unknown question {other}"),
    }
}

fn ask_devices(nvml: &Nvml, count: u32) {
    say!("{count} devices");
    let uuids = std::env::var("UUIDS").unwrap();
    let uuids: Vec<CString> = uuids
        .split(' ')
        .map(|uuid| CString::new(uuid).unwrap())
        .collect();
    for index in 0..=count {
        let mut device = NvmlDevice::NULL;
        let result = call!(nvml.nvmlDeviceGetHandleByIndex_v2(index, &raw mut device));
        if result != NvmlReturn::SUCCESS {
            say!("device {index}: {result:?}");
            continue;
        }
        let mut uuid = [0; 96];
        ok(call!(nvml.nvmlDeviceGetUUID(device, uuid.as_mut_ptr(), 96)));
        // SAFETY: NVML closes its texts with a zero.
        let uuid = unsafe { CStr::from_ptr(uuid.as_ptr()) };
        let on_board = uuids
            .iter()
            .position(|known| known.as_c_str() == uuid)
            .unwrap();
        let mut back = 99;
        ok(call!(nvml.nvmlDeviceGetIndex(device, &raw mut back)));
        let mut old = NvmlMemory {
            total: 0,
            free: 0,
            used: 0,
        };
        ok(call!(nvml.nvmlDeviceGetMemoryInfo(device, &raw mut old)));
        let mut new = NvmlMemoryV2 {
            version: NvmlMemoryV2::VERSION,
            total: 0,
            reserved: 0,
            free: 0,
            used: 0,
        };
        ok(call!(nvml.nvmlDeviceGetMemoryInfo_v2(device, &raw mut new)));
        assert_eq!(
            (old.total, old.free, old.used),
            (new.total, new.free, new.used)
        );
        say!(
            "device {index} is the board's {on_board}, says {back}: {} GiB, {} used, {} free",
            old.total / GIB,
            old.used / GIB,
            old.free / GIB
        );
    }
    for (on_board, uuid) in uuids.iter().enumerate() {
        let mut device = NvmlDevice::NULL;
        let result = call!(nvml.nvmlDeviceGetHandleByUUID(uuid.as_ptr(), &raw mut device));
        let mut named = NvmlUuid {
            version: NvmlUuid::VERSION,
            kind: UUID_ASCII,
            value: [0; 41],
        };
        named.value[..40].copy_from_slice(uuid.as_bytes());
        let mut same = NvmlDevice::NULL;
        let again = call!(nvml.nvmlDeviceGetHandleByUUIDV(&raw const named, &raw mut same));
        assert_eq!((again, same), (result, device));
        say!(
            "the board's {on_board} by uuid: {result:?}, handle {}",
            !device.is_null()
        );
    }
    let mut set = NvmlEventSet::NULL;
    ok(call!(nvml.nvmlEventSetCreate(&raw mut set)));
    for (on_board, uuid) in uuids.iter().enumerate() {
        let mut config = NvmlOperationalEventConfig {
            uuid: [0; 96],
            min_log_level: 0,
            min_severity: 0,
        };
        for (to, byte) in config.uuid.iter_mut().zip(uuid.as_bytes()) {
            *to = byte.cast_signed();
        }
        let result =
            call!(nvml.nvmlEventSetRegisterGpuOperationalEvents_v1(set, &raw const config));
        say!("events of the board's {on_board} by uuid: {result:?}");
    }
    ok(call!(nvml.nvmlEventSetFree(set)));
}

/// Prints all NVML figures of a device's memory.
fn say_memory(nvml: &Nvml, name: &str, device: NvmlDevice) {
    let mut window = NvmlBar1Memory {
        total: 0,
        free: 0,
        used: 0,
    };
    ok(call!(
        nvml.nvmlDeviceGetBAR1MemoryInfo(device, &raw mut window)
    ));
    let mut memory = NvmlMemoryV2 {
        version: NvmlMemoryV2::VERSION,
        total: 0,
        reserved: 0,
        free: 0,
        used: 0,
    };
    ok(call!(
        nvml.nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory)
    ));
    say!(
        "{name}: window of {} MiB, {} used, {} free; memory of {} MiB, {} used, {} free, {} reserved",
        window.total >> 20,
        window.used >> 20,
        window.free >> 20,
        memory.total >> 20,
        memory.used >> 20,
        memory.free >> 20,
        memory.reserved >> 20
    );
}

/// For every device, and for every MIG instance of the first one.
fn ask_memory(nvml: &Nvml, count: u32) {
    for index in 0..count {
        let mut device = NvmlDevice::NULL;
        ok(call!(
            nvml.nvmlDeviceGetHandleByIndex_v2(index, &raw mut device)
        ));
        say_memory(nvml, &format!("device {index}"), device);
        for index in 0..3 {
            let mut part = NvmlDevice::NULL;
            let result =
                call!(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index, &raw mut part));
            if result == NvmlReturn::SUCCESS {
                say_memory(nvml, &format!("part {index}"), part);
            }
        }
    }
}

fn ask_parts(nvml: &Nvml) {
    let mut whole = NvmlDevice::NULL;
    ok(call!(nvml.nvmlDeviceGetHandleByIndex_v2(0, &raw mut whole)));
    for index in 0..3 {
        let mut part = NvmlDevice::NULL;
        let result = call!(nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, index, &raw mut part));
        if result != NvmlReturn::SUCCESS {
            say!("part {index}: {result:?}, handle {}", !part.is_null());
            continue;
        }
        let mut memory = NvmlMemory {
            total: 0,
            free: 0,
            used: 0,
        };
        ok(call!(nvml.nvmlDeviceGetMemoryInfo(part, &raw mut memory)));
        let mut list = [NvmlProcessInfo::new(0, 0); 1];
        let (mut count, first) = (1, list.as_mut_ptr());
        ok(call!(nvml.nvmlDeviceGetComputeRunningProcesses_v3(
            part,
            &raw mut count,
            first
        )));
        say!(
            "part {index}: {} MiB, {} used; {count} process on instance {} of it",
            memory.total >> 20,
            memory.used >> 20,
            list[0].gpu_instance_id
        );
    }
}

fn ask_processes(nvml: &Nvml, device: NvmlDevice) {
    let (mut count, none) = (0, std::ptr::null_mut());
    let result = call!(nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut count, none));
    say!("asked for the number: {result:?}, {count}");
    let mut list = [NvmlProcessInfo::new(0, 0); 2];
    // As much room as for the container's own, and less than the driver's list wants.
    let first = list.as_mut_ptr();
    let result = call!(nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut count, first));
    say!(
        "asked for the list: {result:?}, {count}: {}, {} GiB",
        list[0].pid,
        list[0].used_gpu_memory / GIB
    );

    let mut old = [NvmlProcessInfoV1::new(0, 0); 1];
    count = 1;
    let first = old.as_mut_ptr();
    let result = call!(nvml.nvmlDeviceGetComputeRunningProcesses(device, &raw mut count, first));
    say!(
        "asked as of old: {result:?}, {count}: {}, {} GiB",
        old[0].pid,
        old[0].used_gpu_memory / GIB
    );

    let mut details = [NvmlProcessDetail::new(0, 0); 1];
    let mut request = NvmlProcessDetailList {
        version: NvmlProcessDetailList::VERSION,
        mode: 0,
        count: 1,
        array: details.as_mut_ptr(),
    };
    let result = call!(nvml.nvmlDeviceGetRunningProcessDetailList(device, &raw mut request));
    say!(
        "asked for details: {result:?}, {}: {}, {} GiB",
        request.count,
        details[0].pid,
        details[0].used_gpu_memory / GIB
    );

    let mut pids = [0; 1];
    count = 1;
    let result = call!(nvml.nvmlDeviceGetAccountingPids(device, &raw mut count, pids.as_mut_ptr()));
    say!("accounted for: {result:?}, {:?}", &pids[..count as usize]);
    // The last one is this program, which holds nothing and is no member.
    for (who, pid) in [("the member", pids[0]), ("no member", std::process::id())] {
        let mut newer = NvmlAccountingStatsV2 {
            pid,
            is_running: 0,
            gpu_utilization: 0,
            memory_utilization: 0,
            max_memory_usage: 0,
            sample_count: 0,
            sum_gpu_util: 0,
            sum_fb_util: 0,
            time: 0,
            start_time: 0,
        };
        let result = call!(nvml.nvmlDeviceGetAccountingStats_v2(device, &raw mut newer));
        assert_eq!(newer.pid, pid);
        say!(
            "account of {who}: {result:?}, {} MiB",
            newer.max_memory_usage >> 20
        );
    }
}

fn ask_utilization(nvml: &Nvml, device: NvmlDevice) {
    let mut rates = NvmlUtilization {
        gpu: 999,
        memory: 999,
    };
    let result = call!(nvml.nvmlDeviceGetUtilizationRates(device, &raw mut rates));
    say!("the device is busy: {result:?}, {} %", rates.gpu);
    let (mut count, none) = (0, std::ptr::null_mut());
    let result = call!(nvml.nvmlDeviceGetProcessUtilization(device, none, &raw mut count, 0));
    say!(
        "asked for the number of samples: {result:?}, any {}",
        count > 0
    );
    let mut samples = vec![
        NvmlProcessUtilizationSample {
            pid: 0,
            time_stamp: 0,
            sm_util: 0,
            mem_util: 0,
            enc_util: 0,
            dec_util: 0
        };
        count as usize
    ];
    let first = samples.as_mut_ptr();
    let result = call!(nvml.nvmlDeviceGetProcessUtilization(device, first, &raw mut count, 0));
    let mut pids: Vec<u32> = samples[..count as usize]
        .iter()
        .map(|sample| sample.pid)
        .collect();
    pids.dedup();
    say!("samples: {result:?}, of {pids:?}");
}

#[test]
fn container_sees_its_devices_renumbered_and_as_its_shares() {
    let world = World::new();
    let _member = world.take(GIB);
    let _neighbour = Neighbour::start(&world);

    expect![[r#"
        2 devices
        device 0 is the board's 1, says 0: 16 GiB, 0 used, 16 free
        device 1 is the board's 2, says 1: 4 GiB, 1 used, 3 free
        device 2: NvmlReturn(2)
        the board's 0 by uuid: NvmlReturn(6), handle false
        the board's 1 by uuid: NvmlReturn(0), handle true
        the board's 2 by uuid: NvmlReturn(0), handle true
        events of the board's 0 by uuid: NvmlReturn(6)
        events of the board's 1 by uuid: NvmlReturn(0)
        events of the board's 2 by uuid: NvmlReturn(0)
    "#]]
    .assert_eq(&world.told("devices"));
    assert_eq!(
        world.board.used_bytes(CAPPED),
        3 * GIB,
        "the truth has the neighbour, too"
    );
    assert_eq!(world.board.used_bytes(FOREIGN), 0);
}

#[test]
fn container_sees_only_its_own_processes() {
    let world = World::new();
    let _member = world.take(GIB);
    let _neighbour = Neighbour::start(&world);

    expect![[r#"
        asked for the number: NvmlReturn(7), 1
        asked for the list: NvmlReturn(0), 1: PID, 1 GiB
        asked as of old: NvmlReturn(0), 1: PID, 1 GiB
        asked for details: NvmlReturn(0), 1: PID, 1 GiB
        accounted for: NvmlReturn(0), [PID]
        account of the member: NvmlReturn(0), 1024 MiB
        account of no member: NvmlReturn(6), 0 MiB
    "#]]
    .assert_eq(&world.told("processes"));
}

#[test]
fn a_neighbours_work_keeps_no_device_of_the_container_busy() {
    let world = World::new();
    world.region.join().unwrap();
    let _neighbour = Neighbour::start(&world);
    world.work.clock().advance(500_000_000);

    expect![[r#"
        the device is busy: NvmlReturn(0), 0 %
        asked for the number of samples: NvmlReturn(6), any false
        samples: NvmlReturn(6), of []
    "#]]
    .assert_eq(&world.told("utilization"));
}

#[test]
fn bar1_memory_is_the_containers() {
    let world = World::new();
    let _member = world.take(GIB);
    let _neighbour = Neighbour::start(&world);

    expect![[r#"
        device 0: window of 16384 MiB, 2 used, 16382 free; memory of 16384 MiB, 0 used, 16384 free, 0 reserved
        device 1: window of 4096 MiB, 2 used, 4094 free; memory of 4096 MiB, 1024 used, 3072 free, 0 reserved
    "#]].assert_eq(&world.told("memory"));
}

#[test]
fn the_window_onto_a_mig_device_is_the_containers() {
    let world = World::with("1=1g,3g,1g", |board| {
        vec![(board.instance_uuid(1, 1), 2 * GIB)]
    });
    let charge = world.region.reserve(0, GIB, 0).unwrap();
    world.region.confirm(charge, Kind::Buffer);

    expect![[r#"
        device 0: window of 16384 MiB, 2 used, 16382 free; memory of 16384 MiB, 0 used, 16384 free, 0 reserved
        part 1: window of 2048 MiB, 2 used, 2046 free; memory of 2048 MiB, 1024 used, 1024 free, 0 reserved
    "#]].assert_eq(&world.told("memory"));
}

/// A program outside the containers, like the arbiter.
#[test]
#[ignore = "a program that other tests start"]
fn looks_how_busy() {
    let Ok(uuids) = std::env::var("UUIDS") else {
        return;
    };
    println!();
    let gpus = NvmlGpus::open().unwrap();
    for uuid in uuids.split(' ') {
        let busy = gpus.busy(uuid, 0);
        let pids: Vec<u32> = busy.samples.iter().map(|sample| sample.pid).collect();
        say!("{:?} %, {pids:?}", busy.percent);
    }
}

#[test]
fn the_host_sees_busy_processes_without_a_uuid_lookup() {
    let world = World::new();
    let neighbour = Neighbour::start(&world);
    world.work.clock().advance(500_000_000);
    let libraries = world.directory.path().join("libraries");
    std::fs::create_dir(&libraries).unwrap();
    std::os::unix::fs::symlink(
        library("libnvidia_ml.so"),
        libraries.join("libnvidia-ml.so.1"),
    )
    .unwrap();

    for lacks in ["whole", "no-uuid"] {
        let output = world
            .start("looks_how_busy")
            .env("LD_LIBRARY_PATH", &libraries)
            .env("VGPU_SIM_NVML", lacks)
            .env("UUIDS", world.uuids.join(" ") + " GPU-of-another-board")
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let mut told: Vec<_> = printed
            .lines()
            .filter_map(|line| line.strip_prefix("> "))
            .collect();
        told.dedup();
        let pid = neighbour.0.id().to_string();
        let told = told.join("\n").replace(&pid, "PID");
        assert_eq!(
            told, "Some(0) %, []\nSome(100) %, [PID, PID]\nNone %, []",
            "NVML: {lacks}"
        );
    }
}

#[test]
fn process_is_shown_by_its_own_pid_and_not_the_hosts() {
    let world = World::new();
    let seat = world.region.join().unwrap();
    let neighbour = Neighbour::start(&world);
    world.work.clock().advance(500_000_000);

    // As if the driver's name for our slot were that other process's pid.
    let target = Target {
        slot_generation: seat.generation,
        host_pid: neighbour.0.id(),
        ..Target::default()
    };
    let mut targets = TargetsFile::create(&world.directory.path().join("targets")).unwrap();
    targets.write(&[(seat.slot, target)], 1).unwrap();

    expect![[r#"
        the device is busy: NvmlReturn(0), 100 %
        asked for the number of samples: NvmlReturn(7), any true
        samples: NvmlReturn(0), of [PID]
    "#]]
    .assert_eq(&world.told("utilization"));
}

#[test]
fn mig_device_of_a_container_is_shown_without_its_siblings() {
    let world = World::with("1=1g,3g,1g", |board| {
        vec![(board.instance_uuid(1, 1), 2 * GIB)]
    });
    let charge = world.region.reserve(0, GIB, 0).unwrap();
    world.region.confirm(charge, Kind::Buffer);

    expect![[r#"
        part 0: NvmlReturn(6), handle false
        part 1: 2048 MiB, 1024 used; 1 process on instance 2 of it
        part 2: NvmlReturn(6), handle false
    "#]]
    .assert_eq(&world.told("parts"));
}
