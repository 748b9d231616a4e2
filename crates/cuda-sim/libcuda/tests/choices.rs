//! Device memory that goes to anything but plain allocations, and the choices of a contrary driver: each on both
//! kinds of boards.

use std::ffi::CString;
use std::ptr::{null, null_mut};

use crate::common::{CONTEXT, Driver, MIB, alone, board, call, ok};
use cuda_api::driver::*;

/// Runs a body on a usual board and on a contrary one; it is told which.
fn on_both(name: &str, settings: &[(&str, &str)], body: impl Fn(&Driver, bool)) {
    for contrary in ["0", "1"] {
        let mut settings = settings.to_vec();
        settings.push(("VGPU_SIM_CONTRARY", contrary));
        alone(name, &settings, |driver| {
            body(
                driver,
                std::env::var("VGPU_SIM_CONTRARY").as_deref() == Ok("1"),
            );
        });
        if std::env::var("VGPU_TEST_CHILD").is_ok() {
            return;
        }
    }
}

fn used() -> u64 {
    board().used_bytes(0)
}

fn load(driver: &Driver, ptx: &str) -> Result<CuModule, CuResult> {
    let text = CString::new(format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n{ptx}"
    ))
    .unwrap();
    let mut module = null_mut();
    match call!(
        driver,
        cuModuleLoadData(&raw mut module, text.as_ptr().cast())
    ) {
        CuResult::SUCCESS => Ok(module),
        code => Err(code),
    }
}

#[test]
fn what_an_image_declares_takes_memory() {
    let name = "what_an_image_declares_takes_memory";
    on_both(name, &[("CUDA_MODULE_LOADING", "EAGER")], |driver, _| {
        driver.context(0);
        let big = ".global .align 4 .b8 table[0x8000000];\n.const .b32 few[16];";

        let module = load(driver, big).unwrap();
        let taken = used() - CONTEXT;
        assert!((128 * MIB..=130 * MIB).contains(&taken), "{taken}");
        ok!(driver, cuModuleUnload(module));
        assert_eq!(used(), CONTEXT);

        let refused = load(driver, ".global .u8 all[1<<40], more[8];").err();
        assert_eq!(
            refused, None,
            "an expression is not read, and counts for one"
        );
        let refused = load(driver, ".global .u8 all[1099511627776];");
        assert_eq!(refused, Err(CuResult::OUT_OF_MEMORY));
        let refused = load(driver, ".global .u64 all[18446744073709551615];");
        assert_eq!(refused, Err(CuResult::OUT_OF_MEMORY));
    });
}

#[test]
fn a_lazy_module_takes_its_memory_at_its_first_use() {
    let name = "a_lazy_module_takes_its_memory_at_its_first_use";
    on_both(name, &[("CUDA_MODULE_LOADING", "LAZY")], |driver, _| {
        const PTX: &str = ".global .b8 table[67108864];\n.visible .entry run() { ret; }";
        driver.context(0);
        let uses: [&dyn Fn(CuModule); 3] = [
            &|module| {
                let (mut at, mut bytes) = (CuDevicePtr(0), 0);
                let table = c"table".as_ptr();
                ok!(
                    driver,
                    cuModuleGetGlobal_v2(&raw mut at, &raw mut bytes, module, table)
                );
            },
            &|module| {
                let mut function = null_mut();
                ok!(
                    driver,
                    cuModuleGetFunction(&raw mut function, module, c"run".as_ptr())
                );
                assert_eq!(used(), CONTEXT);
                let mut state = 9;
                ok!(driver, cuFuncIsLoaded(&raw mut state, function));
                assert_eq!(state, 0);
                ok!(driver, cuFuncLoad(function));
                ok!(driver, cuFuncIsLoaded(&raw mut state, function));
                assert_eq!(state, 1);
            },
            &|module| {
                let mut function = null_mut();
                ok!(
                    driver,
                    cuModuleGetFunction(&raw mut function, module, c"run".as_ptr())
                );
                let (none, extra) = (null_mut(), null_mut());
                ok!(
                    driver,
                    cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, null_mut(), none, extra)
                );
                ok!(driver, cuCtxSynchronize());
            },
        ];
        for first in uses {
            let module = load(driver, PTX).unwrap();
            assert_eq!(used(), CONTEXT);
            first(module);
            assert!(used() >= CONTEXT + 64 * MIB);
            ok!(driver, cuModuleUnload(module));
            assert_eq!(used(), CONTEXT);
        }
    });
}

#[test]
fn bigger_stacks_take_memory_for_every_thread() {
    on_both(
        "bigger_stacks_take_memory_for_every_thread",
        &[],
        |driver, _| {
            driver.context(0);

            ok!(driver, cuCtxSetLimit(0, 2048));
            assert_eq!(used() - CONTEXT, 1024 * 132 * 2048);
            assert_eq!(
                call!(driver, cuCtxSetLimit(0, 1 << 20)),
                CuResult::OUT_OF_MEMORY
            );
            assert_eq!(
                call!(driver, cuCtxSetLimit(0, usize::MAX)),
                CuResult::OUT_OF_MEMORY
            );
            ok!(driver, cuCtxSetLimit(0, 1024));
            assert_eq!(used(), CONTEXT);
        },
    );
}

#[test]
fn a_dma_buf_keeps_memory_until_it_is_closed() {
    on_both(
        "a_dma_buf_keeps_memory_until_it_is_closed",
        &[],
        |driver, _| {
            driver.context(0);
            let block = driver.alloc(4 * MIB).unwrap();
            let mut fd: i32 = -1;
            let out = (&raw mut fd).cast();

            ok!(
                driver,
                cuMemGetHandleForAddressRange(out, block, 4 << 20, 1, 0)
            );
            ok!(driver, cuMemFree_v2(block));
            assert_eq!(used(), CONTEXT + 4 * MIB);
            // SAFETY: the descriptor that was just made.
            unsafe { libc::close(fd) };
            assert_eq!(used(), CONTEXT);

            let bad = CuDevicePtr(block.0 + 1);
            let range = call!(driver, cuMemGetHandleForAddressRange(out, bad, 4096, 1, 0));
            assert_eq!(range, CuResult::INVALID_VALUE);
        },
    );
}

fn green(driver: &Driver) -> CuGreenCtx {
    let mut all = CuDevResource::zeroed();
    ok!(driver, cuDeviceGetDevResource(CuDevice(0), &raw mut all, 1));
    let mut description = null_mut();
    ok!(
        driver,
        cuDevResourceGenerateDesc(&raw mut description, &raw mut all, 1)
    );
    let mut green = null_mut();
    ok!(
        driver,
        cuGreenCtxCreate(&raw mut green, description, CuDevice(0), 1)
    );
    green
}

#[test]
fn memory_made_in_a_green_context_is_the_primary_ones() {
    let name = "memory_made_in_a_green_context_is_the_primary_ones";
    on_both(name, &[], |driver, _| {
        ok!(driver, cuInit(0));
        let mut primary = null_mut();
        ok!(
            driver,
            cuDevicePrimaryCtxRetain(&raw mut primary, CuDevice(0))
        );
        ok!(driver, cuCtxSetCurrent(primary));
        let alone = used();
        let green = green(driver);
        let mut inside = null_mut();
        ok!(driver, cuCtxFromGreenCtx(&raw mut inside, green));
        ok!(driver, cuCtxSetCurrent(inside));
        assert!(used() - alone <= 2 * MIB, "a green context is no whole one");

        let block = driver.alloc(8 * MIB).unwrap();
        ok!(driver, cuGreenCtxDestroy(green));
        assert_eq!(used(), alone + 8 * MIB);

        ok!(driver, cuCtxSetCurrent(primary));
        driver.write(block, b"still here");
        ok!(driver, cuMemFree_v2(block));
        assert_eq!(used(), alone);
    });
}

fn upload(driver: &Driver, bytes: usize) -> Result<CuGraphExec, CuResult> {
    const UPLOAD: u64 = 2;
    let mut graph = null_mut();
    ok!(driver, cuGraphCreate(&raw mut graph, 0));
    let mut params = CuMemAllocNodeParams::zeroed();
    params.pool.kind = 1;
    params.pool.location.kind = 1;
    params.bytes = bytes;
    let mut node = null_mut();
    ok!(
        driver,
        cuGraphAddMemAllocNode(&raw mut node, graph, null(), 0, &raw mut params)
    );
    let mut asked = CuGraphInstantiateParams::zeroed();
    asked.flags = UPLOAD;
    let mut exec = null_mut();
    match call!(
        driver,
        cuGraphInstantiateWithParams(&raw mut exec, graph, &raw mut asked)
    ) {
        CuResult::SUCCESS => Ok(exec),
        code => Err(code),
    }
}

#[test]
fn a_graph_that_is_uploaded_takes_its_memory_then() {
    let name = "a_graph_that_is_uploaded_takes_its_memory_then";
    on_both(name, &[], |driver, contrary| {
        driver.context(0);

        let exec = upload(driver, 64 << 20).unwrap();
        assert_eq!(used(), CONTEXT + 64 * MIB);
        ok!(driver, cuGraphLaunch(exec, null_mut()));
        assert_eq!(used(), CONTEXT + 64 * MIB, "the launch uses what is there");
        assert_eq!(upload(driver, 4 << 30), Err(CuResult::OUT_OF_MEMORY));

        // A second graph beside one whose memory is not freed.
        let other = upload(driver, 64 << 20).unwrap();
        assert_eq!(used(), CONTEXT + 128 * MIB);
        ok!(driver, cuGraphExecDestroy(other));
        ok!(driver, cuDeviceGraphMemTrim(CuDevice(0)));
        let kept = if contrary { 128 } else { 64 };
        assert!(used() <= CONTEXT + kept * MIB);
    });
}

#[test]
fn plain_memory_is_freed_when_the_stream_gets_there() {
    let name = "plain_memory_is_freed_when_the_stream_gets_there";
    on_both(name, &[], |driver, _| {
        driver.context(0);
        let mut stream = null_mut();
        ok!(driver, cuStreamCreate(&raw mut stream, 1));
        let flag = driver.alloc(4).unwrap();
        driver.write(flag, &[0; 4]);
        let block = driver.alloc(8 * MIB).unwrap();
        let before = used();

        ok!(driver, cuStreamWaitValue32_v2(stream, flag, 1, 0));
        ok!(driver, cuMemFreeAsync(block, stream));
        assert_eq!(used(), before);

        driver.write(flag, &[1, 0, 0, 0]);
        ok!(driver, cuStreamSynchronize(stream));
        assert_eq!(used(), before - 8 * MIB);
    });
}

fn device_memory() -> CuMemAllocationProp {
    let mut prop = CuMemAllocationProp::zeroed();
    prop.kind = 1;
    prop.location.kind = 1;
    prop.requested_handle_types = 1;
    prop
}

fn create(driver: &Driver, bytes: u64) -> CuMemAllocationHandle {
    let mut handle = CuMemAllocationHandle(0);
    let prop = device_memory();
    ok!(
        driver,
        cuMemCreate(&raw mut handle, bytes as usize, &raw const prop, 0)
    );
    handle
}

#[test]
fn memory_under_a_sparse_array_stays_until_the_stream_unmaps_it() {
    let name = "memory_under_a_sparse_array_stays_until_the_stream_unmaps_it";
    on_both(name, &[], |driver, _| {
        driver.context(0);
        let shape = CuArray3DDescriptor {
            width: 1024,
            height: 1024,
            depth: 0,
            format: 1,
            num_channels: 4,
            flags: 0x40,
        };
        let mut array = null_mut();
        ok!(driver, cuArray3DCreate_v2(&raw mut array, &raw const shape));
        assert_eq!(used(), CONTEXT);
        let mut tiles = CuArraySparseProperties::zeroed();
        ok!(driver, cuArrayGetSparseProperties(&raw mut tiles, array));
        assert_eq!(tiles.tile_width * tiles.tile_height * 4, 64 << 10);
        let mut stream = null_mut();
        ok!(driver, cuStreamCreate(&raw mut stream, 1));
        let flag = driver.alloc(4).unwrap();
        driver.write(flag, &[0; 4]);
        let before = used();

        let handle = create(driver, 2 * MIB);
        // `CUarrayMapInfo`: the array, a level's part, then map (1) or unmap (2) of a handle.
        let mut info = [0_u64; 12];
        info[1] = array.addr() as u64;
        info[7] = 1;
        info[8] = handle.0;
        info[10] = 1;
        ok!(
            driver,
            cuMemMapArrayAsync(info.as_mut_ptr().cast(), 1, stream)
        );
        ok!(driver, cuStreamSynchronize(stream));
        ok!(driver, cuMemRelease(handle));
        assert_eq!(used(), before + 2 * MIB);

        ok!(driver, cuStreamWaitValue32_v2(stream, flag, 1, 0));
        info[7] = 2;
        ok!(
            driver,
            cuMemMapArrayAsync(info.as_mut_ptr().cast(), 1, stream)
        );
        assert_eq!(used(), before + 2 * MIB);
        driver.write(flag, &[1, 0, 0, 0]);
        ok!(driver, cuStreamSynchronize(stream));
        assert_eq!(used(), before);
        ok!(driver, cuArrayDestroy(array));
    });
}

#[test]
fn memory_that_is_bound_to_a_multicast_object_stays() {
    let name = "memory_that_is_bound_to_a_multicast_object_stays";
    on_both(name, &[], |driver, _| {
        driver.context(0);
        let mut prop = CuMulticastObjectProp::zeroed();
        prop.num_devices = 1;
        prop.size = 2 << 20;
        let mut object = CuMemAllocationHandle(0);
        ok!(driver, cuMulticastCreate(&raw mut object, &raw const prop));
        ok!(driver, cuMulticastAddDevice(object, CuDevice(0)));
        let before = used();
        let handle = create(driver, 2 * MIB);

        ok!(driver, cuMulticastBindMem(object, 0, handle, 0, 2 << 20, 0));
        ok!(driver, cuMemRelease(handle));
        assert_eq!(used(), before + 2 * MIB);
        ok!(driver, cuMulticastUnbind(object, CuDevice(1), 0, 2 << 20));
        assert_eq!(used(), before + 2 * MIB);
        ok!(driver, cuMulticastUnbind(object, CuDevice(0), 0, 2 << 20));
        assert_eq!(used(), before);
    });
}

fn export(driver: &Driver, handle: CuMemAllocationHandle) -> i32 {
    let mut fd: i32 = -1;
    ok!(
        driver,
        cuMemExportToShareableHandle((&raw mut fd).cast(), handle, 1, 0)
    );
    fd
}

#[test]
fn an_imported_descriptor_is_memory_held_once_more() {
    let name = "an_imported_descriptor_is_memory_held_once_more";
    on_both(name, &[], |driver, contrary| {
        driver.context(0);
        let handle = create(driver, 2 * MIB);
        let fd = export(driver, handle);
        let mut again = CuMemAllocationHandle(0);
        let os_handle = std::ptr::without_provenance_mut(fd as usize);

        ok!(
            driver,
            cuMemImportFromShareableHandle(&raw mut again, os_handle, 1)
        );
        assert_eq!(again == handle, contrary);
        ok!(driver, cuMemRelease(handle));
        assert_eq!(used(), CONTEXT + 2 * MIB);
        ok!(driver, cuMemRelease(again));
        assert_eq!(used(), CONTEXT);
    });
}

#[test]
fn descriptors_of_a_contrary_driver_tell_nothing_apart() {
    let name = "descriptors_of_a_contrary_driver_tell_nothing_apart";
    on_both(name, &[], |driver, contrary| {
        driver.context(0);
        let (one, other) = (create(driver, 2 * MIB), create(driver, 4 * MIB));
        let inode = |handle| {
            let fd = export(driver, handle);
            let link = format!("/proc/self/fd/{fd}");
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(link).unwrap().ino()
        };

        assert_eq!(inode(one) == inode(other), contrary);
    });
}

#[test]
fn a_contrary_driver_uses_the_numbers_of_handles_again() {
    let name = "a_contrary_driver_uses_the_numbers_of_handles_again";
    on_both(name, &[], |driver, contrary| {
        driver.context(0);
        let first = create(driver, 2 * MIB);
        ok!(driver, cuMemRelease(first));

        assert_eq!(create(driver, 2 * MIB) == first, contrary);
    });
}

#[test]
fn pictures_take_their_true_size() {
    on_both("pictures_take_their_true_size", &[], |driver, _| {
        driver.context(0);
        // Format, and bytes of 1024 x 1024 points in halves of MiB.
        for (format, halves) in [
            (0xb0, 3),
            (0x9f, 6),
            (0xa1, 6),
            (0xa2, 4),
            (0xa3, 8),
            (0xa5, 4),
            (0xa6, 8),
            (0xa8, 8),
            (0xa9, 8),
            (0xb1, 16),
            (0xb2, 6),
            (0xb3, 12),
            (0xb4, 6),
            (0xb5, 12),
        ] {
            let shape = CuArray3DDescriptor {
                width: 1024,
                height: 1024,
                depth: 0,
                format,
                num_channels: 3,
                flags: 0,
            };
            let mut array = null_mut();
            ok!(driver, cuArray3DCreate_v2(&raw mut array, &raw const shape));
            let taken = used() - CONTEXT;
            let true_size = halves * MIB / 2;
            assert!(
                (true_size..true_size + 2 * MIB).contains(&taken),
                "{format:#x}: {taken}"
            );
            ok!(driver, cuArrayDestroy(array));
        }
    });
}

#[test]
fn imported_memory_of_another_api_takes_memory() {
    let name = "imported_memory_of_another_api_takes_memory";
    on_both(name, &[], |driver, _| {
        use std::os::fd::IntoRawFd;
        driver.context(0);
        let file = tempfile::tempfile().unwrap();
        file.set_len(4 << 20).unwrap();
        let mut desc = CuExternalMemoryHandleDesc::zeroed();
        desc.kind = 1;
        desc.handle.fd = file.into_raw_fd();
        desc.size = 4 << 20;
        let mut memory = null_mut();

        ok!(
            driver,
            cuImportExternalMemory(&raw mut memory, &raw const desc)
        );
        assert_eq!(used(), CONTEXT + 4 * MIB);
        ok!(driver, cuDestroyExternalMemory(memory));
        assert_eq!(used(), CONTEXT);
    });
}

#[test]
fn a_contrary_driver_has_smaller_contexts_and_grains() {
    let name = "a_contrary_driver_has_smaller_contexts_and_grains";
    on_both(name, &[], |driver, contrary| {
        driver.context(0);
        driver.context(0);
        let second = if contrary { CONTEXT / 2 } else { CONTEXT };
        assert_eq!(used(), CONTEXT + second);

        let block = driver.alloc(MIB + 1).unwrap();
        let taken = if contrary { MIB + (64 << 10) } else { 2 * MIB };
        assert_eq!(used(), CONTEXT + second + taken);
        ok!(driver, cuMemFree_v2(block));

        let (mut grain, prop) = (0, device_memory());
        ok!(
            driver,
            cuMemGetAllocationGranularity(&raw mut grain, &raw const prop, 0)
        );
        assert_eq!(grain, if contrary { 64 << 10 } else { 2 << 20 });
    });
}

#[test]
fn a_contrary_pool_keeps_what_is_empty() {
    on_both(
        "a_contrary_pool_keeps_what_is_empty",
        &[],
        |driver, contrary| {
            driver.context(0);
            let mut block = CuDevicePtr(0);
            ok!(
                driver,
                cuMemAllocAsync(&raw mut block, 64 << 20, null_mut())
            );
            ok!(driver, cuMemFreeAsync(block, null_mut()));
            ok!(driver, cuCtxSynchronize());

            assert_eq!(used() == CONTEXT, !contrary);
            let mut pool = null_mut();
            ok!(
                driver,
                cuDeviceGetDefaultMemPool(&raw mut pool, CuDevice(0))
            );
            ok!(driver, cuMemPoolTrimTo(pool, 0));
            assert_eq!(used(), CONTEXT);
        },
    );
}
