//! The devices that this process sees, and their properties. All GPUs of a board have the same properties except
//! their memory; the figures are those of a data centre GPU of compute capability 9.0.

use core::ffi::{CStr, c_char};

use cuda_api::driver::*;
use cuda_sim::mig::Instance;
use cuda_sim::pci::Address;

use crate::base::border::{Done, check_out, invalid_if, put, write};
use crate::base::model::{MULTIPROCESSORS, NAME};
use crate::memory::context;
use crate::process::driver::{self, Driver};

calls! {
    cuDeviceGetCount(count) => {
        let devices = driver::the()?.device_count() as i32;
        write(count, devices)
    };
    cuDeviceGet(device, ordinal) => {
        check_out(device)?;
        driver_of(CuDevice(ordinal))?;
        write(device, CuDevice(ordinal))
    };
    cuDeviceGetName(name, len, device)
        => { driver_of(device)?; put_text(name, len, NAME.to_bytes()) };
    // The GPU's UUID; from CUDA 13.0 on the MIG device's, if the process works on one.
    cuDeviceGetUuid(uuid, device) => {
        if crate::calls::init::driver_version() >= 13_000 {
            return cuDeviceGetUuid_v2(uuid, device);
        }
        write(uuid, uuid_of(device)?)
    };
    // The MIG device's UUID, if the process works on one.
    cuDeviceGetUuid_v2(uuid, device) => {
        let (driver, gpu) = driver_of(device)?;
        let of_part = |part: Instance| driver.board.instance_uuid_bytes(gpu, part.index);
        let bytes = driver
            .instance
            .map_or_else(|| driver.board.uuid_bytes(gpu), of_part);
        write(uuid, CuUuid { bytes })
    };
    cuDeviceTotalMem, cuDeviceTotalMem_v2(bytes, device) => put(bytes, total_of(device)?);
    cuDeviceComputeCapability(major, minor, device)
        => { driver_of(device)?; write(major, CAPABILITY.0)?; write(minor, CAPABILITY.1) };
    cuDeviceGetPCIBusId(pci_bus_id, len, device) => {
        let (driver, gpu) = driver_of(device)?;
        let text = driver.board.pci(gpu).to_string();
        invalid_if(usize::try_from(len).unwrap_or(0) <= text.len())?;
        put_text(pci_bus_id, len, text.as_bytes())
    };
    cuDeviceCanAccessPeer(can_access_peer, device, peer_dev) => {
        let (_, one) = driver_of(device)?;
        let (_, other) = driver_of(peer_dev)?;
        write(can_access_peer, i32::from(one != other))
    };
    cuDeviceGetP2PAttribute(value, attribute, src, dst) => {
        let (_, one) = driver_of(src)?;
        let (_, other) = driver_of(dst)?;
        invalid_if(one == other || !(1..=4).contains(&attribute))?;
        // Performance rank 0, the best; access, atomics and arrays all work.
        write(value, i32::from(attribute != 1))
    };
    cuDeviceGetExecAffinitySupport(out, kind, device) => {
        driver_of(device)?;
        invalid_if(kind != 0)?;
        write(out, 0)
    };
    cuDeviceGetTexture1DLinearMaxWidth(max_width_in_elements, _format, _count_channels, device)
        => { driver_of(device)?; write(max_width_in_elements, 268_435_456) };
    cuFlushGPUDirectRDMAWrites(_target, _scope) => context::current().map(drop);
    cuProfilerInitialize(_config, _output, _mode) => Err(CuResult::PROFILER_DISABLED);
    cuProfilerStart, cuProfilerStop() => context::current().map(drop);
    cuDeviceGetByPCIBusId(device, pci_bus_id) => {
        let driver = driver::the()?;
        invalid_if(pci_bus_id.is_null() || device.is_null())?;
        // SAFETY: the caller passes a string.
        let text = unsafe { CStr::from_ptr(pci_bus_id) }
            .to_str()
            .unwrap_or_default();
        let place = Address::parse(text).ok_or(CuResult::INVALID_VALUE)?;
        let stands = |gpu| driver.board.pci(gpu) == place;
        let found = (0..driver.device_count() as i32)
            .map(CuDevice)
            .find(|&device| driver.gpu(device).is_ok_and(stands))
            .ok_or(CuResult::INVALID_DEVICE)?;
        write(device, found)
    };
    cuDeviceGetProperties(prop, device) => {
        driver_of(device)?;
        let properties = CuDevprop {
            max_threads_per_block: 1024,
            max_threads_dim: [1024, 1024, 64],
            max_grid_size: [i32::MAX, 65_535, 65_535],
            shared_mem_per_block: 48 << 10,
            total_constant_memory: 64 << 10,
            simd_width: 32,
            mem_pitch: i32::MAX,
            regs_per_block: 65_536,
            clock_rate: 1_980_000,
            texture_align: 512,
        };
        write(prop, properties)
    };
    cuDeviceGetAttribute(out, attribute, device) => {
        let (driver, gpu) = driver_of(device)?;
        let value = match attribute {
            MPS_ENABLED => i32::from(crate::process::work::exec()?.is_mps()),
            PCI_BUS => driver.board.pci(gpu).bus as i32,
            PCI_DEVICE => driver.board.pci(gpu).device as i32,
            PCI_DOMAIN => driver.board.pci(gpu).domain as i32,
            _ => attribute_of(attribute, gpu, driver.device_count())
                .ok_or(CuResult::INVALID_VALUE)?,
        };
        write(out, value)
    };
}

const CAPABILITY: (i32, i32) = (9, 0);

/// File descriptors: the handle type that VMM and pools can be exported as.
const HANDLE_FILE_DESCRIPTOR: i32 = 1;

fn driver_of(device: CuDevice) -> Done<(&'static Driver, usize)> {
    let driver = driver::the()?;
    Ok((driver, driver.gpu(device)?))
}

/// Writes the part of a text that fits, and its terminating zero.
fn put_text(out: *mut c_char, len: i32, text: &[u8]) -> Done {
    let room = usize::try_from(len).unwrap_or(0);
    invalid_if(out.is_null() || room == 0)?;
    let fitting = text.len().min(room - 1);
    // SAFETY: the caller's buffer has `room` bytes.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast::<u8>(), fitting) };
    // SAFETY: `fitting` is less than `room`, the bytes of the caller's buffer.
    unsafe { out.cast::<u8>().add(fitting).write(0) };
    Ok(())
}

fn uuid_of(device: CuDevice) -> Done<CuUuid> {
    let (driver, gpu) = driver_of(device)?;
    Ok(CuUuid {
        bytes: driver.board.uuid_bytes(gpu),
    })
}

fn total_of(device: CuDevice) -> Done<u64> {
    let (driver, gpu) = driver_of(device)?;
    Ok(driver
        .instance
        .map_or_else(|| driver.board.total_bytes(gpu), |part| part.bytes))
}

const MPS_ENABLED: u32 = 133;
const PCI_BUS: u32 = 33;
const PCI_DEVICE: u32 = 34;
const PCI_DOMAIN: u32 = 50;

/// The last attribute that CUDA 13.5 knows.
const LAST_ATTRIBUTE: u32 = 161;

fn attribute_of(attribute: u32, gpu: usize, devices: usize) -> Option<i32> {
    Some(match attribute {
        // Threads of a block, block and grid dimensions.
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        // Shared and constant memory, warp size, pitch, registers.
        8 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 65_536,
        // Clock in kHz, texture alignment, overlap, multiprocessors.
        13 => 1_980_000,
        14 | 30 => 512,
        15 => 1,
        16 => MULTIPROCESSORS,
        19 => 1,
        // Textures and surfaces, in elements.
        21 | 22 => 131_072,
        23 => 65_536,
        24..=26 => 16_384,
        27 | 28 | 42 | 45 | 46 | 52 | 53 | 57..=61 | 67 => 32_768,
        29 | 43 | 62 | 65 => 2048,
        55 | 56 => 131_072,
        54 | 68 => 2046,
        63 | 64 | 66 | 73 | 74 | 77 => 32_768,
        44 => 1,
        47 | 48 => 8192,
        49 => 32_768,
        51 => 32,
        69 => 268_435_456,
        70 => 131_072,
        71 => 65_000,
        72 => 2_097_120,
        // Concurrent kernels, ECC, bus, TCC, memory clock in kHz and width in bits, L2.
        31 | 32 => 1,
        36 => 2_619_000,
        37 => 5120,
        38 => 50 << 20,
        39 => 2048,
        40 => 3,
        41 => 1,
        75 => CAPABILITY.0,
        76 => CAPABILITY.1,
        78..=80 => 1,
        81 => 228 << 10,
        // Managed memory, board group, precision ratio.
        83 => 1,
        85 => gpu as i32,
        87 => 2,
        // Host memory as the device sees it: as of a discrete GPU without HMM.
        89..=96 => 1,
        97 => 227 << 10,
        98 | 99 => 1,
        // VMM, its handles, blocks, compression, persisting L2, access window.
        102 | 103 => 1,
        106 => 32,
        107 => 1,
        108 => 31 << 20,
        109 => 128 << 20,
        111 => 1024,
        // Sparse arrays and timeline semaphores are not simulated.
        113 | 115 => 1,
        119 => HANDLE_FILE_DESCRIPTOR,
        120 => 1,
        122..=125 => 1,
        126 => 4,
        127 | 129 => 1,
        131 | 134 => -1,
        132 => i32::from(devices > 1),
        139 => 0x2330_10de_u32 as i32,
        140 => 0x16c1_10de,
        149 => 1,
        157 => MULTIPROCESSORS,
        known if known != 0 && known <= LAST_ATTRIBUTE => 0,
        _ => return None,
    })
}
