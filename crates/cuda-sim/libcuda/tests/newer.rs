//! The meaning of CUDA 13's calls: locations, pools, UUIDs, checkpoints.

use std::ptr::null_mut;

use crate::common::{CONTEXT, Driver, MIB, alone, board, call, ok};
use cuda_api::driver::*;

const NEWEST: [(&str, &str); 1] = [("VGPU_SIM_DRIVER", "13.5")];

fn used() -> u64 {
    board().used_bytes(0)
}

fn create(driver: &Driver, kind: u32, id: i32) -> Result<CuMemAllocationHandle, CuResult> {
    let mut prop = CuMemAllocationProp::zeroed();
    prop.kind = 1;
    prop.location = CuMemLocation { kind, id };
    let mut handle = CuMemAllocationHandle(0);
    match call!(
        driver,
        cuMemCreate(&raw mut handle, 2 << 20, &raw const prop, 0)
    ) {
        CuResult::SUCCESS => Ok(handle),
        code => Err(code),
    }
}

#[test]
fn a_locality_domain_is_memory_of_its_device() {
    let name = "a_locality_domain_is_memory_of_its_device";
    alone(name, &NEWEST, |driver| {
        driver.context(0);

        // Domain 3 of device 1: the bytes of the second word.
        create(driver, 6, 0x0301).unwrap();
        assert_eq!(board().used_bytes(1), 2 * MIB);
        assert_eq!(
            create(driver, 6, 0x02).err(),
            Some(CuResult::INVALID_DEVICE)
        );
        create(driver, 4, 0).unwrap();
        assert_eq!(used(), CONTEXT);
    });
}

fn pool(driver: &Driver, location: CuMemLocation, kind: u32) -> CuMemoryPool {
    let (mut pool, mut location) = (null_mut(), location);
    ok!(
        driver,
        cuMemGetDefaultMemPool(&raw mut pool, &raw mut location, kind)
    );
    pool
}

fn taken_from(driver: &Driver, pool: CuMemoryPool) -> u64 {
    let before = used();
    let mut block = CuDevicePtr(0);
    ok!(
        driver,
        cuMemAllocFromPoolAsync(&raw mut block, 4 << 20, pool, null_mut())
    );
    let taken = used() - before;
    ok!(driver, cuMemFreeAsync(block, null_mut()));
    ok!(driver, cuCtxSynchronize());
    taken
}

#[test]
fn default_pools_are_of_a_place_and_a_kind_of_memory() {
    let name = "default_pools_are_of_a_place_and_a_kind_of_memory";
    alone(name, &NEWEST, |driver| {
        const PINNED: u32 = 1;
        const MANAGED: u32 = 2;
        driver.context(0);
        let at = |kind, id| CuMemLocation { kind, id };
        let mut own = null_mut();
        ok!(driver, cuDeviceGetDefaultMemPool(&raw mut own, CuDevice(0)));

        assert_eq!(pool(driver, at(1, 0), PINNED), own);
        let host = pool(driver, at(2, 0), PINNED);
        let managed = pool(driver, at(1, 0), MANAGED);
        assert!(host != own && managed != own && host != managed);
        assert_eq!(pool(driver, at(0, 0), MANAGED), managed);
        assert_eq!(taken_from(driver, host), 0);
        assert_eq!(taken_from(driver, managed), 32 * MIB);

        let mut props = CuMemPoolProps::zeroed();
        props.kind = MANAGED;
        let mut made = null_mut();
        ok!(driver, cuMemPoolCreate(&raw mut made, &raw const props));
        assert_eq!(taken_from(driver, made), 32 * MIB);
        assert_eq!(
            call!(driver, cuMemPoolDestroy(host)),
            CuResult::INVALID_VALUE
        );
    });
}

#[test]
fn a_managed_pool_lies_on_the_host_where_the_gpu_has_no_room() {
    let name = "a_managed_pool_lies_on_the_host_where_the_gpu_has_no_room";
    alone(name, &NEWEST, |driver| {
        driver.context(0);
        let _all = driver.alloc(crate::common::TOTAL - CONTEXT).unwrap();
        let location = CuMemLocation { kind: 1, id: 0 };

        assert_eq!(taken_from(driver, pool(driver, location, 2)), 0);
    });
}

#[test]
fn a_process_checkpoints_itself() {
    alone("a_process_checkpoints_itself", &NEWEST, |driver| {
        driver.context(0);
        driver.alloc(64 * MIB).unwrap();
        let (pid, mut state) = (std::process::id() as i32, 9);

        let none = null_mut();
        assert_eq!(
            call!(driver, cuCheckpointProcessCheckpoint(pid, none)),
            CuResult::ILLEGAL_STATE
        );
        ok!(driver, cuCheckpointProcessLock(pid, none));
        ok!(driver, cuCheckpointProcessCheckpoint(pid, none));
        assert_eq!(used(), 0);
        ok!(driver, cuCheckpointProcessGetState(pid, &raw mut state));
        assert_eq!(state, 2);
        ok!(driver, cuCheckpointProcessRestore(pid, none));
        assert_eq!(used(), CONTEXT + 64 * MIB);
        ok!(driver, cuCheckpointProcessUnlock(pid, none));
        driver.alloc(MIB).unwrap();
        assert_eq!(
            call!(driver, cuCheckpointProcessLock(1 << 30, none)),
            CuResult::INVALID_VALUE
        );
    });
}

#[test]
fn calls_of_a_locked_process_wait() {
    alone("calls_of_a_locked_process_wait", &NEWEST, |driver| {
        driver.context(0);
        let pid = std::process::id() as i32;
        ok!(driver, cuCheckpointProcessLock(pid, null_mut()));
        let done = std::sync::atomic::AtomicBool::new(false);

        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let mut count = 0;
                ok!(driver, cuDeviceGetCount(&raw mut count));
                done.store(true, std::sync::atomic::Ordering::SeqCst);
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!done.load(std::sync::atomic::Ordering::SeqCst));
            ok!(driver, cuCheckpointProcessUnlock(pid, null_mut()));
            waits.join().unwrap();
        });
    });
}

#[test]
fn the_uuid_is_the_mig_devices_from_13_0_on() {
    let name = "the_uuid_is_the_mig_devices_from_13_0_on";
    for version in ["12.4", "13.0"] {
        let directory = tempfile::tempdir().unwrap();
        if std::env::var("VGPU_TEST_CHILD").is_err() {
            let mut command = crate::common::command(name, &directory.path().join("board"));
            command
                .env("VGPU_SIM_MIG", "0=7g")
                .env("VGPU_SIM_MEMORY", "16Gi")
                .env("VGPU_SIM_DRIVER", version);
            assert!(command.status().unwrap().success());
            continue;
        }
        let made = cuda_sim::Board::from_env().unwrap();
        let instance = made.instance_uuid(0, 0);
        // SAFETY: no other thread of this process reads its environment yet.
        unsafe { std::env::set_var("CUDA_VISIBLE_DEVICES", instance) };
        let driver = Driver::load();
        ok!(driver, cuInit(0));
        let mut both = [CuUuid { bytes: [0; 16] }; 2];
        ok!(driver, cuDeviceGetUuid(&raw mut both[0], CuDevice(0)));
        ok!(driver, cuDeviceGetUuid_v2(&raw mut both[1], CuDevice(0)));
        let is_newer = std::env::var("VGPU_SIM_DRIVER").as_deref() == Ok("13.0");
        assert_eq!(both[0].bytes == both[1].bytes, is_newer);
        return;
    }
}
