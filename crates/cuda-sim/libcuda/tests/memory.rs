//! Memory as a program sees it, beside what the board holds.

use std::ptr::{null, null_mut};

use crate::common::{CONTEXT, Driver, MIB, TOTAL, alone, board, call, ok};
use cuda_api::driver::*;

#[test]
fn blocks_take_what_the_driver_rounds_them_to() {
    alone(
        "blocks_take_what_the_driver_rounds_them_to",
        &[],
        |driver| {
            driver.context(0);
            let board = board();
            assert_eq!(board.used_bytes(0), CONTEXT);

            for (asked, taken) in [
                (1, 512),
                (513, 1024),
                (MIB - 1, MIB),
                (MIB, 2 * MIB),
                (5 * MIB, 6 * MIB),
            ] {
                let block = driver.alloc(asked).unwrap();
                assert_eq!(board.used_bytes(0) - CONTEXT, taken, "{asked}");
                ok!(driver, cuMemFree_v2(block));
            }
            assert_eq!(board.used_bytes(0), CONTEXT);
            assert_eq!(driver.free_bytes(), TOTAL - CONTEXT);
        },
    );
}

#[test]
fn memory_past_the_gpu_is_refused() {
    alone("memory_past_the_gpu_is_refused", &[], |driver| {
        driver.context(0);
        let rest = TOTAL - CONTEXT;
        assert_eq!(driver.alloc(rest + 1), Err(CuResult::OUT_OF_MEMORY));

        let all = driver.alloc(rest).unwrap();
        assert_eq!(driver.alloc(1), Err(CuResult::OUT_OF_MEMORY));
        ok!(driver, cuMemFree_v2(all));
        driver.alloc(1).unwrap();
    });
}

#[test]
fn managed_memory_lies_on_the_host_where_the_gpu_has_no_room() {
    let name = "managed_memory_lies_on_the_host_where_the_gpu_has_no_room";
    alone(name, &[], |driver| {
        driver.context(0);
        let board = board();
        let managed = |bytes: u64| {
            let mut base = CuDevicePtr(0);
            ok!(driver, cuMemAllocManaged(&raw mut base, bytes as usize, 1));
            base
        };
        let rest = TOTAL - CONTEXT;
        let (first, second) = (managed(rest), managed(rest));
        assert_eq!(board.used_bytes(0), TOTAL);

        let block = driver.alloc(4 * MIB).unwrap();
        assert_eq!(board.used_bytes(0), CONTEXT + 4 * MIB);
        driver.write(second, b"still there");
        assert_eq!(driver.read(second, 11), b"still there");

        for base in [first, second, block] {
            ok!(driver, cuMemFree_v2(base));
        }
        assert_eq!(board.used_bytes(0), CONTEXT);
    });
}

#[test]
fn bytes_come_back_as_they_were_copied() {
    alone("bytes_come_back_as_they_were_copied", &[], |driver| {
        driver.context(0);
        let (one, other) = (driver.alloc(4096).unwrap(), driver.alloc(4096).unwrap());
        let bytes: Vec<u8> = (0..=255).collect();

        driver.write(one, &bytes);
        ok!(driver, cuMemcpyDtoD_v2(CuDevicePtr(other.0 + 8), one, 256));
        ok!(driver, cuMemsetD32_v2(other, 0x0403_0201, 2));

        assert_eq!(driver.read(CuDevicePtr(other.0 + 8), 256), bytes);
        assert_eq!(driver.read(other, 8), [1, 2, 3, 4, 1, 2, 3, 4]);
    });
}

#[test]
fn a_box_is_copied_row_by_row() {
    alone("a_box_is_copied_row_by_row", &[], |driver| {
        driver.context(0);
        let (mut base, mut pitch) = (CuDevicePtr(0), 0);
        ok!(
            driver,
            cuMemAllocPitch_v2(&raw mut base, &raw mut pitch, 10, 3, 4)
        );
        assert_eq!(pitch, 512);
        let rows: Vec<u8> = (0..30).collect();
        let mut copy = CuMemcpy2D::zeroed();
        (copy.src_memory_type, copy.src_host, copy.src_pitch) = (1, rows.as_ptr().cast(), 10);
        (copy.dst_memory_type, copy.dst_device, copy.dst_pitch) = (2, base, pitch);
        (copy.width_bytes, copy.height) = (10, 3);

        ok!(driver, cuMemcpy2D_v2(&raw const copy));

        assert_eq!(driver.read(CuDevicePtr(base.0 + 1024), 10), &rows[20..]);
        copy.height = 4;
        assert_eq!(
            call!(driver, cuMemcpy2D_v2(&raw const copy)),
            CuResult::INVALID_VALUE
        );
    });
}

#[test]
fn wrong_calls_get_the_drivers_codes() {
    alone("wrong_calls_get_the_drivers_codes", &[], |driver| {
        let mut ptr = CuDevicePtr(0);
        assert_eq!(
            call!(driver, cuMemAlloc_v2(&raw mut ptr, 1)),
            CuResult::NOT_INITIALIZED
        );
        ok!(driver, cuInit(0));
        assert_eq!(call!(driver, cuInit(1)), CuResult::INVALID_VALUE);
        assert_eq!(
            call!(driver, cuMemAlloc_v2(&raw mut ptr, 1)),
            CuResult::INVALID_CONTEXT
        );
        assert_eq!(
            call!(driver, cuDeviceGet(null_mut(), 0)),
            CuResult::INVALID_VALUE
        );
        let mut device = CuDevice(0);
        assert_eq!(
            call!(driver, cuDeviceGet(&raw mut device, 2)),
            CuResult::INVALID_DEVICE
        );

        let context = driver.context(0);
        assert_eq!(
            call!(driver, cuMemAlloc_v2(null_mut(), 1)),
            CuResult::INVALID_VALUE
        );
        assert_eq!(
            call!(driver, cuMemAlloc_v2(&raw mut ptr, 0)),
            CuResult::INVALID_VALUE
        );
        let block = driver.alloc(4096).unwrap();
        assert_eq!(
            call!(driver, cuMemFree_v2(CuDevicePtr(block.0 + 8))),
            CuResult::INVALID_VALUE
        );
        ok!(driver, cuMemFree_v2(block));
        assert_eq!(call!(driver, cuMemFree_v2(block)), CuResult::INVALID_VALUE);
        ok!(driver, cuMemFree_v2(CuDevicePtr(0)));
        let byte = 0_u8;
        let wild = call!(driver, cuMemcpyHtoD_v2(block, (&raw const byte).cast(), 1));
        assert_eq!(wild, CuResult::INVALID_VALUE);

        ok!(driver, cuCtxDestroy_v2(context));
        assert_eq!(
            call!(driver, cuCtxDestroy_v2(context)),
            CuResult::INVALID_CONTEXT
        );
        assert_eq!(
            call!(driver, cuMemAlloc_v2(&raw mut ptr, 1)),
            CuResult::INVALID_CONTEXT
        );
    });
}

#[test]
fn a_context_ends_with_all_that_is_in_it() {
    alone("a_context_ends_with_all_that_is_in_it", &[], |driver| {
        let context = driver.context(1);
        let board = board();
        driver.alloc(MIB).unwrap();
        let (mut managed, mut array) = (CuDevicePtr(0), null_mut());
        ok!(driver, cuMemAllocManaged(&raw mut managed, 4096, 1));
        let mut shape = CuArrayDescriptor::zeroed();
        (shape.width, shape.height, shape.format, shape.num_channels) = (100, 10, 0x20, 4);
        ok!(driver, cuArrayCreate_v2(&raw mut array, &raw const shape));
        // 100 floats of 4 channels are 1,600 bytes, which makes rows of 2,048.
        assert_eq!(board.used_bytes(1), CONTEXT + 2 * MIB + 4096 + 20_480);

        ok!(driver, cuCtxDestroy_v2(context));

        assert_eq!(board.used_bytes(1), 0);
    });
}

#[test]
fn the_primary_context_lives_while_it_is_retained() {
    alone(
        "the_primary_context_lives_while_it_is_retained",
        &[],
        |driver| {
            ok!(driver, cuInit(0));
            let (mut first, mut second) = (null_mut(), null_mut());
            ok!(
                driver,
                cuDevicePrimaryCtxRetain(&raw mut first, CuDevice(0))
            );
            ok!(
                driver,
                cuDevicePrimaryCtxRetain(&raw mut second, CuDevice(0))
            );
            assert_eq!(first, second);
            ok!(driver, cuCtxSetCurrent(first));
            driver.alloc(1).unwrap();

            ok!(driver, cuDevicePrimaryCtxRelease_v2(CuDevice(0)));
            driver.alloc(1).unwrap();
            ok!(driver, cuDevicePrimaryCtxRelease_v2(CuDevice(0)));

            assert_eq!(board().used_bytes(0), 0);
            assert_eq!(driver.alloc(1), Err(CuResult::CONTEXT_IS_DESTROYED));
            let again = call!(driver, cuDevicePrimaryCtxRelease_v2(CuDevice(0)));
            assert_eq!(again, CuResult::INVALID_CONTEXT);
            ok!(
                driver,
                cuDevicePrimaryCtxRetain(&raw mut second, CuDevice(0))
            );
            assert_eq!(first, second);
            driver.alloc(1).unwrap();
            ok!(driver, cuDevicePrimaryCtxReset_v2(CuDevice(0)));
            assert_eq!(board().used_bytes(0), 0);
        },
    );
}

#[test]
fn a_pool_grows_in_chunks_and_shrinks_at_a_wait() {
    alone(
        "a_pool_grows_in_chunks_and_shrinks_at_a_wait",
        &[],
        |driver| {
            driver.context(0);
            let board = board();
            let used = || (board.used_bytes(0) - CONTEXT) / MIB;
            let mut ptr = CuDevicePtr(0);
            ok!(driver, cuMemAllocAsync(&raw mut ptr, 1000, null_mut()));
            assert_eq!(used(), 32);
            let mut big = CuDevicePtr(0);
            ok!(driver, cuMemAllocAsync(&raw mut big, 41 << 20, null_mut()));
            assert_eq!(used(), 32 + 42);

            ok!(driver, cuMemFreeAsync(ptr, null_mut()));
            ok!(driver, cuMemFreeAsync(big, null_mut()));
            assert_eq!(used(), 32 + 42);
            assert_eq!(
                call!(driver, cuMemFreeAsync(big, null_mut())),
                CuResult::INVALID_VALUE
            );
            ok!(driver, cuStreamSynchronize(null_mut()));
            assert_eq!(used(), 0);

            let (mut pool, mut keep) = (null_mut(), 64 * MIB);
            ok!(
                driver,
                cuDeviceGetDefaultMemPool(&raw mut pool, CuDevice(0))
            );
            ok!(
                driver,
                cuMemPoolSetAttribute(pool, 4, (&raw mut keep).cast())
            );
            ok!(driver, cuMemAllocAsync(&raw mut ptr, 1, null_mut()));
            ok!(driver, cuMemFreeAsync(ptr, null_mut()));
            ok!(driver, cuCtxSynchronize());
            assert_eq!(used(), 32);
            let mut reserved = 0_u64;
            ok!(
                driver,
                cuMemPoolGetAttribute(pool, 5, (&raw mut reserved).cast())
            );
            assert_eq!(reserved, 32 * MIB);
            ok!(driver, cuMemPoolTrimTo(pool, 0));
            assert_eq!(used(), 0);
        },
    );
}

fn properties(device: i32, handle_types: u32) -> CuMemAllocationProp {
    let mut prop = CuMemAllocationProp::zeroed();
    prop.kind = 1;
    prop.location = CuMemLocation {
        kind: 1,
        id: device,
    };
    prop.requested_handle_types = handle_types;
    prop
}

fn read_write(device: i32) -> CuMemAccessDesc {
    CuMemAccessDesc {
        location: CuMemLocation {
            kind: 1,
            id: device,
        },
        flags: 3,
    }
}

#[test]
fn physical_memory_lives_until_its_last_mapping_is_gone() {
    alone(
        "physical_memory_lives_until_its_last_mapping_is_gone",
        &[],
        |driver| {
            driver.context(0);
            let board = board();
            let size = 4 << 20;
            let (prop, access) = (properties(0, 0), read_write(0));
            let (mut base, mut handle) = (CuDevicePtr(0), CuMemAllocationHandle(0));
            let odd = call!(
                driver,
                cuMemCreate(&raw mut handle, 4096, &raw const prop, 0)
            );
            assert_eq!(odd, CuResult::INVALID_VALUE);
            ok!(
                driver,
                cuMemAddressReserve(&raw mut base, 2 * size, 0, CuDevicePtr(0), 0)
            );
            ok!(
                driver,
                cuMemCreate(&raw mut handle, size, &raw const prop, 0)
            );
            assert_eq!(board.used_bytes(0) - CONTEXT, size as u64);
            ok!(driver, cuMemMap(base, size, 0, handle, 0));
            let second = CuDevicePtr(base.0 + size as u64);
            ok!(driver, cuMemMap(second, size, 0, handle, 0));
            assert_eq!(
                call!(driver, cuMemMap(base, size, 0, handle, 0)),
                CuResult::INVALID_VALUE
            );

            // No GPU may touch it yet.
            let byte = 7_u8;
            let early = call!(driver, cuMemcpyHtoD_v2(base, (&raw const byte).cast(), 1));
            assert_eq!(early, CuResult::INVALID_VALUE);
            ok!(driver, cuMemSetAccess(base, 2 * size, &raw const access, 1));
            driver.write(base, &[1, 2, 3]);
            assert_eq!(driver.read(second, 3), [1, 2, 3]);

            ok!(driver, cuMemRelease(handle));
            assert_eq!(call!(driver, cuMemRelease(handle)), CuResult::INVALID_VALUE);
            let mut again = CuMemAllocationHandle(0);
            let at = std::ptr::without_provenance_mut(base.0 as usize);
            ok!(driver, cuMemRetainAllocationHandle(&raw mut again, at));
            assert_eq!(again, handle);
            ok!(driver, cuMemRelease(again));
            ok!(driver, cuMemUnmap(base, size));
            assert_eq!(board.used_bytes(0) - CONTEXT, size as u64);
            assert_eq!(
                call!(driver, cuMemAddressFree(base, 2 * size)),
                CuResult::INVALID_VALUE
            );
            ok!(driver, cuMemUnmap(second, size));
            assert_eq!(board.used_bytes(0), CONTEXT);
            ok!(driver, cuMemAddressFree(base, 2 * size));
        },
    );
}

#[test]
fn pointers_say_what_they_are() {
    alone("pointers_say_what_they_are", &[], |driver| {
        let context = driver.context(1);
        let block = driver.alloc(5000).unwrap();
        let inside = CuDevicePtr(block.0 + 100);
        let word = |attribute| {
            let mut value = 0_u64;
            ok!(
                driver,
                cuPointerGetAttribute((&raw mut value).cast(), attribute, inside)
            );
            value
        };
        assert_eq!(word(1), context.addr() as u64);
        assert_eq!((word(2), word(9)), (2, 1));
        assert_eq!((word(11), word(12)), (block.0, 5000));

        let mut host = null_mut();
        ok!(driver, cuMemHostAlloc(&raw mut host, 4096, 0));
        let host = CuDevicePtr(host.addr() as u64);
        let mut kind = 0_u32;
        ok!(
            driver,
            cuPointerGetAttribute((&raw mut kind).cast(), 2, host)
        );
        assert_eq!(kind, 1);
        assert_eq!(board().used_bytes(1), CONTEXT + 5120);

        let unknown_address = CuDevicePtr(64);
        let unknown = call!(
            driver,
            cuPointerGetAttribute((&raw mut kind).cast(), 2, unknown_address)
        );
        assert_eq!(unknown, CuResult::INVALID_VALUE);
        let (mut which, mut into) = (2, (&raw mut kind).cast());
        ok!(
            driver,
            cuPointerGetAttributes(1, &raw mut which, &raw mut into, unknown_address)
        );
        assert_eq!(kind, 0);
    });
}

#[test]
fn first_forms_get_addresses_of_32_bits() {
    alone("first_forms_get_addresses_of_32_bits", &[], |driver| {
        driver.context(0);
        let (mut ptr, mut free, mut total) = (0, 0, 0);
        ok!(driver, cuMemAlloc(&raw mut ptr, 4096));
        assert_ne!(ptr, 0);
        ok!(driver, cuMemGetInfo(&raw mut free, &raw mut total));
        assert_eq!(u64::from(total - free), CONTEXT + 4096);
        driver.write(CuDevicePtr(ptr.into()), &[9]);
        let mut byte = 0_u8;
        ok!(driver, cuMemcpyDtoH((&raw mut byte).cast(), ptr, 1));
        assert_eq!(byte, 9);
        ok!(driver, cuMemFree(ptr));
    });
}

#[test]
fn a_hundred_thousand_blocks_are_told_apart() {
    alone("a_hundred_thousand_blocks_are_told_apart", &[], |driver| {
        driver.context(0);
        let blocks: Vec<CuDevicePtr> = (0..100_000).map(|_| driver.alloc(512).unwrap()).collect();
        assert_eq!(board().used_bytes(0), CONTEXT + 100_000 * 512);
        for block in blocks {
            ok!(driver, cuMemFree_v2(block));
        }
        assert_eq!(board().used_bytes(0), CONTEXT);
    });
}

#[test]
fn a_bigger_heap_is_taken_of_the_gpu() {
    alone("a_bigger_heap_is_taken_of_the_gpu", &[], |driver| {
        driver.context(0);
        const HEAP: u32 = 2;
        ok!(driver, cuCtxSetLimit(HEAP, 108 << 20));
        assert_eq!(board().used_bytes(0), CONTEXT + 100 * MIB);
        let too_much = call!(driver, cuCtxSetLimit(HEAP, 4 << 30));
        assert_eq!(too_much, CuResult::OUT_OF_MEMORY);
        ok!(driver, cuCtxSetLimit(HEAP, 8 << 20));
        assert_eq!(board().used_bytes(0), CONTEXT);
    });
}

fn device_names(driver: &Driver) -> (i32, Vec<[u8; 16]>) {
    let mut count = 0;
    ok!(driver, cuDeviceGetCount(&raw mut count));
    let uuid = |device| {
        let mut uuid = CuUuid { bytes: [0; 16] };
        ok!(driver, cuDeviceGetUuid(&raw mut uuid, CuDevice(device)));
        uuid.bytes
    };
    (count, (0..count).map(uuid).collect())
}

#[test]
fn a_program_sees_the_devices_that_its_environment_names() {
    let name = "a_program_sees_the_devices_that_its_environment_names";
    alone(name, &[("CUDA_VISIBLE_DEVICES", "1")], |driver| {
        ok!(driver, cuInit(0));
        let (count, uuids) = device_names(driver);
        assert_eq!((count, uuids), (1, vec![board().uuid_bytes(1)]));
        driver.context(0);
        driver.alloc(1).unwrap();
        assert_eq!(
            (board().used_bytes(0), board().used_bytes(1)),
            (0, CONTEXT + 512)
        );
    });
}

#[test]
fn a_program_without_devices_is_told_so() {
    alone(
        "a_program_without_devices_is_told_so",
        &[("CUDA_VISIBLE_DEVICES", "")],
        |driver| {
            assert_eq!(call!(driver, cuInit(0)), CuResult::NO_DEVICE);
        },
    );
}

#[test]
fn a_mipmap_takes_all_its_levels() {
    alone("a_mipmap_takes_all_its_levels", &[], |driver| {
        driver.context(0);
        let mut shape = CuArray3DDescriptor::zeroed();
        (shape.width, shape.height, shape.format, shape.num_channels) = (4, 4, 0x01, 1);
        let (mut mipmap, mut level) = (null_mut(), null_mut());
        ok!(
            driver,
            cuMipmappedArrayCreate(&raw mut mipmap, &raw const shape, 9)
        );
        // 4, 2 and 1 rows of 512 bytes.
        assert_eq!(board().used_bytes(0), CONTEXT + 7 * 512);
        ok!(driver, cuMipmappedArrayGetLevel(&raw mut level, mipmap, 2));
        assert_eq!(
            call!(driver, cuArrayDestroy(level)),
            CuResult::INVALID_HANDLE
        );
        let bytes = [5_u8];
        ok!(driver, cuMemcpyHtoA_v2(level, 0, bytes.as_ptr().cast(), 1));
        ok!(driver, cuMipmappedArrayDestroy(mipmap));
        assert_eq!(board().used_bytes(0), CONTEXT);
        assert_eq!(
            call!(driver, cuMemcpyHtoA_v2(level, 0, null(), 0)),
            CuResult::SUCCESS
        );
    });
}

#[test]
fn a_texture_tells_what_it_was_made_of() {
    alone("a_texture_tells_what_it_was_made_of", &[], |driver| {
        driver.context(0);
        let mut shape = CuArrayDescriptor::zeroed();
        (shape.width, shape.height, shape.format, shape.num_channels) = (8, 8, 0x20, 1);
        let mut array = null_mut();
        ok!(driver, cuArrayCreate_v2(&raw mut array, &raw const shape));
        let (mut resource, texture) = ([0_u64; 18], [0_u64; 13]);
        resource[1] = array.addr() as u64;
        let (mut made, mut told) = (0, [0_u64; 18]);
        let from = (&raw const resource).cast();

        ok!(
            driver,
            cuTexObjectCreate(&raw mut made, from, (&raw const texture).cast(), null())
        );
        ok!(
            driver,
            cuTexObjectGetResourceDesc((&raw mut told).cast(), made)
        );

        assert_eq!(told, resource);
        ok!(driver, cuTexObjectDestroy(made));
        assert_eq!(
            call!(driver, cuTexObjectDestroy(made)),
            CuResult::INVALID_VALUE
        );
        ok!(driver, cuArrayDestroy(array));
        let gone = call!(
            driver,
            cuTexObjectCreate(&raw mut made, from, (&raw const texture).cast(), null())
        );
        assert_eq!(gone, CuResult::INVALID_VALUE);
    });
}

#[test]
fn host_memory_is_known_once_and_costs_no_device_memory() {
    alone(
        "host_memory_is_known_once_and_costs_no_device_memory",
        &[],
        |driver| {
            driver.context(0);
            let mut bytes = vec![0_u8; 8192];
            let at = bytes.as_mut_ptr().cast();
            ok!(driver, cuMemHostRegister_v2(at, 8192, 0));
            let again = call!(driver, cuMemHostRegister_v2(at, 4096, 0));
            assert_eq!(again, CuResult::HOST_MEMORY_ALREADY_REGISTERED);
            let mut device = CuDevicePtr(0);
            ok!(driver, cuMemHostGetDevicePointer_v2(&raw mut device, at, 0));
            assert_eq!(device.0, at.addr() as u64);
            ok!(driver, cuMemHostUnregister(at));
            let gone = call!(driver, cuMemHostUnregister(at));
            assert_eq!(gone, CuResult::HOST_MEMORY_NOT_REGISTERED);
            assert_eq!(board().used_bytes(0), CONTEXT);
        },
    );
}

#[test]
fn a_fault_on_demand_makes_one_call_fail() {
    let faults = [("VGPU_SIM_FAULTS", "fail:cuMemAlloc_v2=2@2")];
    alone("a_fault_on_demand_makes_one_call_fail", &faults, |driver| {
        driver.context(0);
        driver.alloc(1).unwrap();
        assert_eq!(driver.alloc(1), Err(CuResult::OUT_OF_MEMORY));
        driver.alloc(1).unwrap();
    });
}
