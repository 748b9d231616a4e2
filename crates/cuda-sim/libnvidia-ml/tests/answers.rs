//! The library as a program sees it: loaded by path, over a board that the test makes and knows.

use std::ffi::{CStr, CString};
use std::sync::{Mutex, MutexGuard, OnceLock};

use cuda_api::nvml::*;
use cuda_sim::board::Kind;
use cuda_sim::{Board, Config};
use libloading::Library;

const GIB: u64 = 1 << 30;
/// On the test's board: a GPU that nothing is done to, one that is cut, one that programs use, one
/// that falls off the bus.
const IDLE: u32 = 0;
const CUT: u32 = 1;
const USED: u32 = 2;
const LOST: u32 = 3;

macro_rules! functions {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        /// The library's functions, by the one table of signatures.
        #[allow(non_snake_case, dead_code, reason = "named as in C; not every one is tested")]
        struct Nvml { $($name: unsafe extern "C-unwind" fn($($ty),*) -> NvmlReturn,)* }

        impl Nvml {
            fn load(library: &'static Library) -> Self {
                Nvml {
                    // SAFETY: the table states the type of each function.
                    $($name: *unsafe { library.get(stringify!($name)) }.expect(stringify!($name)),)*
                }
            }
        }
    };
}
cuda_api::nvml_functions!(functions);

/// Every call into the library goes through here.
macro_rules! call {
    ($function:expr $(, $argument:expr)*) => {
        // SAFETY: pointers are NULL or lead to variables of the test, of the type in the table.
        unsafe { $function($($argument),*) }
    };
}

/// A structure of zeros, for the library to fill.
fn empty<T: Copy>() -> T {
    // SAFETY: used for structures of numbers, of which zeros are a value.
    unsafe { std::mem::zeroed() }
}

struct World {
    nvml: Nvml,
    board: Board,
    _directory: tempfile::TempDir,
}

static WORLD: OnceLock<World> = OnceLock::new();

fn world() -> &'static World {
    WORLD.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("board");
        let config = Config {
            memory_bytes: vec![16 * GIB, 40 * GIB, 16 * GIB, 16 * GIB],
            mig: "1=1g,2g,3g".to_owned(),
            faults: "fail:nvmlDeviceGetPowerUsage=3".to_owned(),
            // Every name of the table is there.
            driver_version: 13_050,
            ..Config::default()
        };
        let board = Board::create(&path, &config).unwrap();
        board.fault(LOST as usize, 79);
        // SAFETY: other threads of this program read the environment through std alone, which locks it; the library,
        // which has a std of its own, is loaded below.
        unsafe { std::env::set_var("VGPU_SIM_BOARD", &path) };
        let library = std::env::current_exe()
            .unwrap()
            .with_file_name("libnvidia_ml.so");
        // SAFETY: our own library, whose initialisers do nothing.
        let library = unsafe { Library::new(library) }.unwrap();
        World {
            nvml: Nvml::load(Box::leak(Box::new(library))),
            board,
            _directory: directory,
        }
    })
}

static TURN: Mutex<()> = Mutex::new(());

/// The library, initialised, for one test at a time.
struct Session {
    world: &'static World,
    _turn: MutexGuard<'static, ()>,
}

fn session() -> Session {
    let turn = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let world = world();
    ok(call!((world.nvml.nvmlInit_v2)));
    Session { world, _turn: turn }
}

impl Drop for Session {
    fn drop(&mut self) {
        ok(call!((self.world.nvml.nvmlShutdown)));
    }
}

impl Session {
    fn nvml(&self) -> &Nvml {
        &self.world.nvml
    }

    fn device(&self, index: u32) -> NvmlDevice {
        let mut device = NvmlDevice::NULL;
        ok(call!(
            (self.nvml().nvmlDeviceGetHandleByIndex_v2),
            index,
            &raw mut device
        ));
        device
    }

    fn text(
        &self,
        get: unsafe extern "C-unwind" fn(NvmlDevice, *mut c_char, u32) -> NvmlReturn,
        device: NvmlDevice,
    ) -> String {
        let mut text = [0; 96];
        ok(call!((get), device, text.as_mut_ptr(), 96));
        string(&text)
    }
}

#[track_caller]
fn ok(result: NvmlReturn) {
    assert_eq!(result, NvmlReturn::SUCCESS);
}

fn string(text: &[c_char]) -> String {
    // SAFETY: the library closes its texts with a zero, and the arrays started as zeros.
    unsafe { CStr::from_ptr(text.as_ptr()) }
        .to_str()
        .unwrap()
        .to_owned()
}

#[test]
fn nothing_is_answered_before_init_and_after_the_last_shutdown() {
    let _turn = TURN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let nvml = &world().nvml;
    let mut count = 0;
    let mut count = || call!((nvml.nvmlDeviceGetCount_v2), &raw mut count);

    assert_eq!(count(), NvmlReturn::UNINITIALIZED);
    ok(call!((nvml.nvmlInit_v2)));
    ok(call!((nvml.nvmlInitWithFlags), 0));
    ok(call!((nvml.nvmlShutdown)));
    assert_eq!(count(), NvmlReturn::SUCCESS);
    ok(call!((nvml.nvmlShutdown)));
    assert_eq!(count(), NvmlReturn::UNINITIALIZED);
    assert_eq!(call!((nvml.nvmlShutdown)), NvmlReturn::UNINITIALIZED);
}

#[test]
fn a_gpu_is_found_by_index_uuid_serial_and_bus_id() {
    let session = session();
    let nvml = session.nvml();
    let device = session.device(USED);
    let uuid = CString::new(session.text(nvml.nvmlDeviceGetUUID, device)).unwrap();
    let serial = CString::new(session.text(nvml.nvmlDeviceGetSerial, device)).unwrap();
    let mut pci: NvmlPciInfo = empty();
    ok(call!((nvml.nvmlDeviceGetPciInfo_v3), device, &raw mut pci));

    let found = |get: unsafe extern "C-unwind" fn(*const c_char, *mut NvmlDevice) -> NvmlReturn,
                 text: &CStr| {
        let mut device = NvmlDevice::NULL;
        let result = call!((get), text.as_ptr(), &raw mut device);
        (result, device)
    };
    let here = (NvmlReturn::SUCCESS, device);
    assert_eq!(
        uuid.to_str().unwrap(),
        session.world.board.uuid(USED as usize)
    );
    assert_eq!(found(nvml.nvmlDeviceGetHandleByUUID, &uuid), here);
    assert_eq!(found(nvml.nvmlDeviceGetHandleBySerial, &serial), here);
    for id in [string(&pci.bus_id), string(&pci.bus_id_legacy)] {
        let id = CString::new(id).unwrap();
        assert_eq!(found(nvml.nvmlDeviceGetHandleByPciBusId_v2, &id), here);
    }
    assert_eq!(
        found(nvml.nvmlDeviceGetHandleByUUID, c"GPU-unknown").0,
        NvmlReturn::NOT_FOUND
    );
}

#[test]
fn made_up_handles_and_null_pointers_are_invalid_arguments() {
    let session = session();
    let nvml = session.nvml();
    let mut index = 0;
    for made_up in [0_usize, 1, 0x1000, usize::MAX] {
        let made_up = NvmlDevice(std::ptr::without_provenance_mut(made_up));
        let result = call!((nvml.nvmlDeviceGetIndex), made_up, &raw mut index);
        assert_eq!(result, NvmlReturn::INVALID_ARGUMENT);
    }
    let device = session.device(IDLE);
    let nowhere = std::ptr::null_mut();
    assert_eq!(
        call!((nvml.nvmlDeviceGetIndex), device, nowhere),
        NvmlReturn::INVALID_ARGUMENT
    );
}

#[test]
fn memory_and_processes_are_what_the_board_says() {
    let session = session();
    let nvml = session.nvml();
    let device = session.device(USED);
    let member = session.world.board.join().unwrap();
    session
        .world
        .board
        .take(member, USED as usize, 3 * GIB, Kind::Alloc)
        .unwrap();

    let mut memory: NvmlMemory = empty();
    ok(call!(
        (nvml.nvmlDeviceGetMemoryInfo),
        device,
        &raw mut memory
    ));
    assert_eq!(
        (memory.total, memory.used, memory.free),
        (16 * GIB, 3 * GIB, 13 * GIB)
    );

    let mut memory = NvmlMemoryV2 {
        version: 0,
        ..empty()
    };
    let v2 = |memory: &mut NvmlMemoryV2| {
        call!(
            (nvml.nvmlDeviceGetMemoryInfo_v2),
            device,
            std::ptr::from_mut(memory)
        )
    };
    assert_eq!(v2(&mut memory), NvmlReturn::ARGUMENT_VERSION_MISMATCH);
    memory.version = NvmlMemoryV2::VERSION;
    ok(v2(&mut memory));
    assert_eq!(memory.total, memory.free + memory.used + memory.reserved);

    // The number first, then the list, as every client does.
    let mut count = 0;
    let none = std::ptr::null_mut();
    let list = nvml.nvmlDeviceGetComputeRunningProcesses_v3;
    assert_eq!(
        call!((list), device, &raw mut count, none),
        NvmlReturn::INSUFFICIENT_SIZE
    );
    assert_eq!(count, 1);
    let mut infos = [NvmlProcessInfo::new(0, 0); 4];
    count = 4;
    ok(call!((list), device, &raw mut count, infos.as_mut_ptr()));
    assert_eq!(count, 1);
    assert_eq!(infos[0], NvmlProcessInfo::new(std::process::id(), 3 * GIB));

    let mut old = [NvmlProcessInfoV1::new(0, 0); 4];
    count = 4;
    ok(call!(
        (nvml.nvmlDeviceGetComputeRunningProcesses),
        device,
        &raw mut count,
        old.as_mut_ptr()
    ));
    assert_eq!((count, old[0].used_gpu_memory), (1, 3 * GIB));

    let mut details = [NvmlProcessDetail::new(0, 0); 4];
    let mut request = NvmlProcessDetailList {
        version: NvmlProcessDetailList::VERSION,
        mode: 0,
        count: 4,
        array: details.as_mut_ptr(),
    };
    ok(call!(
        (nvml.nvmlDeviceGetRunningProcessDetailList),
        device,
        &raw mut request
    ));
    assert_eq!((request.count, details[0].used_gpu_memory), (1, 3 * GIB));

    let mut name = [0; 8];
    let own = std::process::id();
    ok(call!(
        (nvml.nvmlSystemGetProcessName),
        own,
        name.as_mut_ptr(),
        8
    ));
    assert_eq!(string(&name).len(), 7, "cut to the room there is");
    session.world.board.leave(member);
}

#[test]
fn an_idle_gpu_has_no_processes_and_no_samples() {
    let session = session();
    let nvml = session.nvml();
    let device = session.device(IDLE);
    let mut count = 0;
    let none = std::ptr::null_mut();
    ok(call!(
        (nvml.nvmlDeviceGetComputeRunningProcesses_v2),
        device,
        &raw mut count,
        none
    ));
    assert_eq!(count, 0);

    let none = std::ptr::null_mut();
    let result = call!(
        (nvml.nvmlDeviceGetProcessUtilization),
        device,
        none,
        &raw mut count,
        0
    );
    assert_eq!(result, NvmlReturn::NOT_FOUND);

    let mut utilization = NvmlUtilization { gpu: 7, memory: 7 };
    ok(call!(
        (nvml.nvmlDeviceGetUtilizationRates),
        device,
        &raw mut utilization
    ));
    assert_eq!(utilization, NvmlUtilization { gpu: 0, memory: 0 });
}

#[test]
fn a_cut_gpu_shows_its_mig_devices_each_with_its_shape() {
    let session = session();
    let nvml = session.nvml();
    let gpu = session.device(CUT);
    let (mut mode, mut pending) = (0, 0);
    ok(call!(
        (nvml.nvmlDeviceGetMigMode),
        gpu,
        &raw mut mode,
        &raw mut pending
    ));
    assert_eq!((mode, pending), (1, 1));

    let shapes: Vec<_> = (0..3)
        .map(|index| {
            let mut part = NvmlDevice::NULL;
            ok(call!(
                (nvml.nvmlDeviceGetMigDeviceHandleByIndex),
                gpu,
                index,
                &raw mut part
            ));
            let mut memory: NvmlMemory = empty();
            ok(call!((nvml.nvmlDeviceGetMemoryInfo), part, &raw mut memory));
            let mut parent = NvmlDevice::NULL;
            ok(call!(
                (nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle),
                part,
                &raw mut parent
            ));
            assert_eq!(parent, gpu);
            let uuid = session.text(nvml.nvmlDeviceGetUUID, part);
            let uuid = CString::new(uuid).unwrap();
            let mut found = NvmlDevice::NULL;
            ok(call!(
                (nvml.nvmlDeviceGetHandleByUUID),
                uuid.as_ptr(),
                &raw mut found
            ));
            assert_eq!(found, part);
            (
                session.text(nvml.nvmlDeviceGetName, part),
                memory.total / GIB,
            )
        })
        .collect();

    let name = session.text(nvml.nvmlDeviceGetName, gpu);
    let expected = [("1g.5gb", 5), ("2g.10gb", 10), ("3g.20gb", 20)]
        .map(|(shape, gib)| (format!("{name} MIG {shape}"), gib));
    assert_eq!(shapes, expected);

    let mut part = NvmlDevice::NULL;
    let fourth = call!(
        (nvml.nvmlDeviceGetMigDeviceHandleByIndex),
        gpu,
        3,
        &raw mut part
    );
    assert_eq!(fourth, NvmlReturn::NOT_FOUND);
}

#[test]
fn a_partitioned_device_has_no_use_by_process() {
    let session = session();
    let nvml = session.nvml();
    let gpu = session.device(CUT);
    let mut part = NvmlDevice::NULL;
    ok(call!(
        (nvml.nvmlDeviceGetMigDeviceHandleByIndex),
        gpu,
        0,
        &raw mut part
    ));

    for device in [gpu, part] {
        let (none, mut count, mut rates) = (std::ptr::null_mut(), 0, empty());
        let samples = call!(
            (nvml.nvmlDeviceGetProcessUtilization),
            device,
            none,
            &raw mut count,
            0
        );
        assert_eq!(samples, NvmlReturn::NOT_SUPPORTED);
        let rates = call!((nvml.nvmlDeviceGetUtilizationRates), device, &raw mut rates);
        assert_eq!(rates, NvmlReturn::NOT_SUPPORTED);
    }
}

#[test]
fn a_gpu_that_fell_off_the_bus_says_so_and_is_an_event() {
    let session = session();
    let nvml = session.nvml();
    let mut device = NvmlDevice::NULL;
    let lost = call!((nvml.nvmlDeviceGetHandleByIndex_v2), LOST, &raw mut device);
    assert_eq!(lost, NvmlReturn::GPU_IS_LOST);

    let mut set = NvmlEventSet::NULL;
    ok(call!((nvml.nvmlEventSetCreate), &raw mut set));
    let device = session.device(USED);
    ok(call!((nvml.nvmlDeviceRegisterEvents), device, 8, set));
    let mut event: NvmlEventData = empty();
    let quiet = call!((nvml.nvmlEventSetWait_v2), set, &raw mut event, 0);
    assert_eq!(quiet, NvmlReturn::TIMEOUT);

    session.world.board.fault(USED as usize, 31);

    ok(call!((nvml.nvmlEventSetWait_v2), set, &raw mut event, 0));
    assert_eq!(
        (event.device, event.event_type, event.event_data),
        (device, 8, 31)
    );
    ok(call!((nvml.nvmlEventSetFree), set));
}

#[test]
fn structured_events_are_registered_by_uuid() {
    let session = session();
    let nvml = session.nvml();
    let mut set = NvmlEventSet::NULL;
    ok(call!((nvml.nvmlEventSetCreate), &raw mut set));
    let register = |uuid: &str| {
        let mut config: NvmlOperationalEventConfig = empty();
        for (to, byte) in config.uuid.iter_mut().zip(uuid.bytes()) {
            *to = byte.cast_signed();
        }
        call!(
            (nvml.nvmlEventSetRegisterGpuOperationalEvents_v1),
            set,
            &raw const config
        )
    };
    let used = session.world.board.uuid(USED as usize);

    assert_eq!(register(&used), NvmlReturn::SUCCESS);
    assert_eq!(register(&used), NvmlReturn::SUCCESS, "registered twice");
    let lost = session.world.board.uuid(LOST as usize);
    assert_eq!(register(&lost), NvmlReturn::GPU_IS_LOST);
    assert_eq!(register("GPU-none"), NvmlReturn::NOT_FOUND);
    assert_eq!(register(&"G".repeat(96)), NvmlReturn::INVALID_ARGUMENT);
    ok(call!((nvml.nvmlEventSetFree), set));
}

#[test]
fn versions_follow_the_boards_driver() {
    let session = session();
    let nvml = session.nvml();
    let (mut cuda, mut text) = (0, [0; 80]);
    ok(call!(
        (nvml.nvmlSystemGetCudaDriverVersion_v2),
        &raw mut cuda
    ));
    assert_eq!(cuda, 13_050);
    ok(call!(
        (nvml.nvmlSystemGetDriverVersion),
        text.as_mut_ptr(),
        80
    ));
    assert_eq!(string(&text), "615.71.09");
    let short = call!((nvml.nvmlSystemGetDriverVersion), text.as_mut_ptr(), 4);
    assert_eq!(short, NvmlReturn::INSUFFICIENT_SIZE);
}

#[test]
fn a_call_fails_when_the_board_has_that_fault() {
    let session = session();
    let nvml = session.nvml();
    let device = session.device(IDLE);
    let mut milliwatts = 0;
    assert_eq!(
        call!((nvml.nvmlDeviceGetPowerUsage), device, &raw mut milliwatts),
        NvmlReturn::NOT_SUPPORTED
    );
}
