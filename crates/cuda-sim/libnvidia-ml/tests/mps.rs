//! The library's answers on a board whose processes share GPUs through an MPS server.

use std::process::Command;
use std::ptr::null_mut;

use cuda_api::nvml::*;
use cuda_sim::board::Kind;
use cuda_sim::{Board, Config};
use libloading::Library;

#[test]
fn under_mps_a_computing_process_stands_in_both_lists() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("board");
    let config = Config {
        mps: true,
        ..Config::default()
    };
    let _board = Board::create(&path, &config).unwrap();

    let asked = Command::new(std::env::current_exe().unwrap())
        .args(["mps::ask", "--exact", "--nocapture", "--ignored"])
        .env("VGPU_SIM_BOARD", &path)
        .output()
        .unwrap();

    let printed = String::from_utf8_lossy(&asked.stdout);
    assert!(
        asked.status.success() && printed.contains("1 passed"),
        "{printed}{}",
        String::from_utf8_lossy(&asked.stderr)
    );
}

#[test]
#[ignore = "runs in a process of its own, for the test above"]
fn ask() {
    let path = std::env::var_os("VGPU_SIM_BOARD").unwrap();
    let board = Board::open(path.as_ref()).unwrap();
    let member = board.join().unwrap();
    board.take(member, 0, 1 << 20, Kind::Overhead).unwrap();
    let library = std::env::current_exe()
        .unwrap()
        .with_file_name("libnvidia_ml.so");
    // SAFETY: our own library, whose initialisers do nothing.
    let library = unsafe { Library::new(library) }.unwrap();
    type Init = unsafe extern "C-unwind" fn() -> NvmlReturn;
    type ByIndex = unsafe extern "C-unwind" fn(u32, *mut NvmlDevice) -> NvmlReturn;
    type List =
        unsafe extern "C-unwind" fn(NvmlDevice, *mut u32, *mut NvmlProcessInfo) -> NvmlReturn;
    // SAFETY: NVML's own signature.
    let init = unsafe { library.get::<Init>(b"nvmlInit_v2") }.unwrap();
    // SAFETY: NVML's own signature.
    let by_index = unsafe { library.get::<ByIndex>(b"nvmlDeviceGetHandleByIndex_v2") }.unwrap();
    // SAFETY: no argument.
    assert_eq!(unsafe { init() }, NvmlReturn::SUCCESS);
    let mut device = NvmlDevice::NULL;
    // SAFETY: the pointer leads to a variable of the test.
    assert_eq!(unsafe { by_index(0, &raw mut device) }, NvmlReturn::SUCCESS);

    for name in [
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    ] {
        // SAFETY: NVML's own signature.
        let list = unsafe { library.get::<List>(name.as_bytes()) }.unwrap();
        let mut count = 0;
        // SAFETY: without room it only counts.
        let asked = unsafe { list(device, &raw mut count, null_mut()) };
        assert_eq!((asked, count), (NvmlReturn::INSUFFICIENT_SIZE, 1), "{name}");
    }
}
