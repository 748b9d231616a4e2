//! Loads the library as a program does, each test in a process of its own with a board of its own.
//! Knows the driver by its table of signatures only.

use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr::null_mut;

use cuda_api::driver::*;
use cuda_sim::Board;
use libloading::Library;

pub(crate) const MIB: u64 = 1 << 20;
/// The memory of a context in these tests.
pub(crate) const CONTEXT: u64 = 64 * MIB;
/// Memory of each GPU in these tests.
pub(crate) const TOTAL: u64 = 1024 * MIB;

const CHILD: &str = "VGPU_TEST_CHILD";

/// Runs a test's body in a process of its own, on a fresh board of two GPUs. The caller stands in the test's own file.
#[track_caller]
pub(crate) fn alone(name: &str, settings: &[(&str, &str)], body: impl FnOnce(&Driver)) {
    if std::env::var(CHILD).as_deref() == Ok(name) {
        body(&Driver::load());
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let ran = command(name, &directory.path().join("board"))
        .envs(settings.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && said.contains("1 passed"),
        "{name} in its process: {}\n{said}{}",
        ran.status,
        String::from_utf8_lossy(&ran.stderr)
    );
}

/// This test binary again, for one test of the caller's file, on a board.
#[track_caller]
pub(crate) fn command(name: &str, board: &Path) -> Command {
    // A file of this program is the module of its tests.
    let file = Path::new(Location::caller().file());
    let module = file.file_stem().unwrap().to_str().unwrap();
    let whole = format!("{module}::{name}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([&*whole, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, name)
        .env("VGPU_SIM_BOARD", board)
        .env("VGPU_SIM_GPUS", "2")
        .env("VGPU_SIM_MEMORY", "1Gi")
        .env("VGPU_SIM_CONTEXT", "64Mi")
        .env_remove("CUDA_VISIBLE_DEVICES")
        .stdin(Stdio::piped());
    command
}

/// The library beside this test binary.
pub(crate) fn path() -> PathBuf {
    let directory = std::env::current_exe().unwrap();
    directory.parent().unwrap().join("libcuda.so")
}

/// The library, as a program sees it.
pub(crate) struct Driver(Library);

/// Calls a driver function by its exact name, with its signature from the table.
macro_rules! call {
    ($driver:expr, $name:ident ( $($arg:expr),* $(,)? )) => {{
        let function: cuda_api::driver::signature::$name = $driver.find(stringify!($name));
        // SAFETY: the table's signature; each test keeps to the driver's contract, or breaks it where
        // the driver says what happens.
        unsafe { function($($arg),*) }
    }};
}
pub(crate) use call;

/// The same, which must succeed.
macro_rules! ok {
    ($driver:expr, $name:ident ( $($arg:expr),* $(,)? )) => {
        assert_eq!($crate::common::call!($driver, $name($($arg),*)), CuResult::SUCCESS, stringify!($name))
    };
}
pub(crate) use ok;

impl Driver {
    pub(crate) fn load() -> Self {
        // SAFETY: loading it runs nothing of its own.
        Self(unsafe { Library::new(path()) }.unwrap())
    }

    pub(crate) fn find<T: Copy>(&self, name: &str) -> T {
        // SAFETY: the caller's type is the table's for that name.
        *unsafe { self.0.get::<T>(name.as_bytes()) }.unwrap()
    }

    /// Whether the library has a name.
    pub(crate) fn has(&self, name: &str) -> bool {
        // SAFETY: looked for, and not called.
        unsafe { self.0.get::<*const ()>(name.as_bytes()) }.is_ok()
    }

    /// Initialises, and makes a context on a device.
    pub(crate) fn context(&self, device: i32) -> CuContext {
        let mut context = null_mut();
        ok!(self, cuInit(0));
        ok!(self, cuCtxCreate_v2(&raw mut context, 0, CuDevice(device)));
        context
    }

    pub(crate) fn alloc(&self, bytes: u64) -> Result<CuDevicePtr, CuResult> {
        let mut ptr = CuDevicePtr(0);
        match call!(self, cuMemAlloc_v2(&raw mut ptr, bytes as usize)) {
            CuResult::SUCCESS => Ok(ptr),
            code => Err(code),
        }
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        let (mut free, mut total) = (0, 0);
        ok!(self, cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!(total as u64, TOTAL);
        free as u64
    }

    pub(crate) fn write(&self, at: CuDevicePtr, bytes: &[u8]) {
        ok!(
            self,
            cuMemcpyHtoD_v2(at, bytes.as_ptr().cast(), bytes.len())
        );
    }

    pub(crate) fn read(&self, at: CuDevicePtr, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        ok!(self, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), at, length));
        bytes
    }
}

/// The board of the test that runs.
pub(crate) fn board() -> Board {
    Board::open(Path::new(&std::env::var("VGPU_SIM_BOARD").unwrap())).unwrap()
}
