//! NVML's figures of each process's utilisation, on boards whose figures are late, wrong, rounded or missing. A
//! separate process looks at each board, since a process has only one.

use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;

use cuda_api::nvml::*;
use cuda_sim::clock::{ClockKind, START_NS};
use cuda_sim::exec::{Exec, ProcessId, Work};
use cuda_sim::{Board, Config};
use libloading::Library;

const CHILD: &str = "VGPU_TEST_CHILD";
const MS: u64 = 1_000_000;

/// Runs a test's body in a process of its own, on a board with such a script and such an NVML.
fn on(test: &str, script: &str, nvml: &str, body: impl FnOnce(&Nvml, &Exec)) {
    if std::env::var(CHILD).as_deref() == Ok(test) {
        let path = std::env::var("VGPU_SIM_BOARD").unwrap();
        let exec = Board::open(Path::new(&path)).unwrap().exec().unwrap();
        body(&Nvml::load(), &exec);
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("board");
    let config = Config {
        clock: ClockKind::Virtual,
        script: script.to_owned(),
        nvml: nvml.to_owned(),
        ..Config::default()
    };
    Board::create(&path, &config).unwrap();
    let whole = format!("figures::{test}");
    let ran = Command::new(std::env::current_exe().unwrap())
        .args([&*whole, "--exact", "--nocapture"])
        .env(CHILD, test)
        .env("VGPU_SIM_BOARD", &path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

/// A process on the board, with kernels queued for this many milliseconds.
fn busy(exec: &Exec, ms: u64) -> ProcessId {
    let process = exec.join().unwrap();
    let channel = exec.open_channel(process, 0).unwrap();
    exec.submit(channel, Work::Kernel { ns: ms * MS }).unwrap();
    process
}

type Init = unsafe extern "C-unwind" fn() -> NvmlReturn;
type ByIndex = unsafe extern "C-unwind" fn(u32, *mut NvmlDevice) -> NvmlReturn;
type Utilization = unsafe extern "C-unwind" fn(
    NvmlDevice,
    *mut NvmlProcessUtilizationSample,
    *mut u32,
    u64,
) -> NvmlReturn;
type Rates = unsafe extern "C-unwind" fn(NvmlDevice, *mut NvmlUtilization) -> NvmlReturn;

struct Nvml {
    library: Library,
    device: NvmlDevice,
}

impl Nvml {
    fn load() -> Self {
        let path = std::env::current_exe()
            .unwrap()
            .with_file_name("libnvidia_ml.so");
        // SAFETY: our own library, whose initialisers do nothing.
        let library = unsafe { Library::new(path) }.unwrap();
        // SAFETY: NVML's own signature.
        let init = unsafe { library.get::<Init>(b"nvmlInit_v2") }.unwrap();
        // SAFETY: NVML's own signature.
        let by_index = unsafe { library.get::<ByIndex>(b"nvmlDeviceGetHandleByIndex_v2") }.unwrap();
        let mut device = NvmlDevice::NULL;
        // SAFETY: no argument.
        assert_eq!(unsafe { init() }, NvmlReturn::SUCCESS);
        // SAFETY: the pointer leads to a variable of the test.
        assert_eq!(unsafe { by_index(0, &raw mut device) }, NvmlReturn::SUCCESS);
        Self { library, device }
    }

    /// The percents of processes in all samples, in their order, or the refusal.
    fn processes(&self) -> Result<Vec<u32>, NvmlReturn> {
        let name = b"nvmlDeviceGetProcessUtilization";
        // SAFETY: NVML's own signature.
        let ask = unsafe { self.library.get::<Utilization>(name) }.unwrap();
        let mut count = 0;
        // SAFETY: without room it only counts.
        match unsafe { ask(self.device, null_mut(), &raw mut count, 0) } {
            NvmlReturn::INSUFFICIENT_SIZE => {}
            refused => return Err(refused),
        }
        // SAFETY: a structure of numbers, of which zeros are a value.
        let zero: NvmlProcessUtilizationSample = unsafe { std::mem::zeroed() };
        let mut samples = vec![zero; count as usize];
        // SAFETY: there is room for as many as it counted.
        let result = unsafe { ask(self.device, samples.as_mut_ptr(), &raw mut count, 0) };
        assert_eq!(result, NvmlReturn::SUCCESS);
        Ok(samples.iter().map(|sample| sample.sm_util).collect())
    }

    /// The percent of the whole device.
    fn device(&self) -> u32 {
        let name = b"nvmlDeviceGetUtilizationRates";
        // SAFETY: NVML's own signature.
        let ask = unsafe { self.library.get::<Rates>(name) }.unwrap();
        let mut rates = NvmlUtilization { gpu: 0, memory: 0 };
        // SAFETY: the pointer leads to a variable of the test.
        let result = unsafe { ask(self.device, &raw mut rates) };
        assert_eq!(result, NvmlReturn::SUCCESS);
        rates.gpu
    }
}

macro_rules! test {
    ($name:ident($nvml:ident, $exec:ident) on $script:literal, $lacks:literal $body:block) => {
        #[test]
        fn $name() {
            on(stringify!($name), $script, $lacks, |$nvml, $exec| $body);
        }
    };
}

test! { figures_come_once_in_each_period_and_late(nvml, exec) on "sample 170ms\nnvml lag 300ms", "" {
    busy(exec, 85);

    exec.clock().advance(469 * MS);
    assert_eq!((nvml.processes(), nvml.device()), (Err(NvmlReturn::NOT_FOUND), 0));
    exec.clock().advance(MS);

    assert_eq!((nvml.processes(), nvml.device()), (Ok(vec![50]), 50));
}}

test! { missing_figures_are_not_supported(nvml, exec) on "", "no-figures" {
    busy(exec, 1_000);
    exec.clock().advance(500 * MS);

    assert_eq!(nvml.processes(), Err(NvmlReturn::NOT_SUPPORTED));
    assert_eq!(nvml.device(), 100);
}}

test! { figures_without_samples_are_not_found(nvml, exec) on "", "no-samples" {
    busy(exec, 1_000);
    exec.clock().advance(500 * MS);

    assert_eq!(nvml.processes(), Err(NvmlReturn::NOT_FOUND));
    assert_eq!(nvml.device(), 100);
}}

test! { parts_of_a_percent_are_cut_off(nvml, exec) on "slice 1ms\nsample 1s", "" {
    busy(exec, 19);
    exec.clock().advance(1_000 * MS);

    assert_eq!(nvml.processes(), Ok(vec![1]));
}}

test! { parts_of_a_percent_are_rounded_up(nvml, exec) on "slice 1ms\nsample 1s\nnvml round up", "" {
    busy(exec, 11);
    exec.clock().advance(1_000 * MS);

    assert_eq!(nvml.processes(), Ok(vec![2]));
}}

test! { a_slice_is_credited_to_the_next_process(nvml, exec) on "slice 6ms\nsample 100ms\nnvml credit next", "" {
    // The first slice of 6 ms is counted for the second process; both processes have run for equally long.
    busy(exec, 30);
    busy(exec, 30);
    exec.clock().advance(100 * MS);

    assert_eq!(exec.truth(0)[0].busy_ns, exec.truth(0)[1].busy_ns);
    assert_eq!(nvml.processes(), Ok(vec![24, 36]));
    assert_eq!(exec.clock().now(), START_NS + 100 * MS);
}}
