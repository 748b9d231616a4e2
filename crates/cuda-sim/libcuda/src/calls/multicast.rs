//! Multicast objects: addresses that stand for the memory of several devices. Memory that is bound to one lives until
//! it is unbound, or the object is gone. Copies through a multicast address stay in the object's own pages.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_api::driver::*;

use crate::base::border::{Done, check_out, invalid_if, is_within, lock, read, write};
use crate::memory::blocks::{self, BlockKind};
use crate::memory::physical::{self, Binding, Multicast, Physical, held};
use crate::process::choices::granularity;
use crate::process::driver;

calls! {
    cuMulticastGetGranularity(out, prop, option) => {
        let prop = read(prop)?;
        invalid_if(option > 1 || prop.num_devices == 0)?;
        write(out, granularity() as usize)
    };
    cuMulticastBindMem(mc_handle, mc_offset, mem_handle, mem_offset, size, flags)
        => bind_memory(mc_handle, None, mc_offset, mem_handle, mem_offset, size, flags);
    cuMulticastBindMem_v2(mc_handle, device, mc_offset, mem_handle, mem_offset, size, flags) => {
        let device = Some(device);
        bind_memory(
            mc_handle, device, mc_offset, mem_handle, mem_offset, size, flags,
        )
    };
    cuMulticastBindAddr(mc_handle, mc_offset, memptr, size, flags)
        => bind_address(mc_handle, None, mc_offset, memptr.0, size, flags);
    cuMulticastBindAddr_v2(mc_handle, device, mc_offset, memptr, size, flags)
        => bind_address(mc_handle, Some(device), mc_offset, memptr.0, size, flags);
    // A multicast object: addresses without memory of their own.
    cuMulticastCreate(mc_handle, prop) => {
        check_out(mc_handle)?;
        let prop = read(prop)?;
        let bytes = prop.size as u64;
        let shareable = prop.handle_types & FILE_DESCRIPTOR != 0;
        let whole = bytes > 0 && bytes.is_multiple_of(granularity());
        invalid_if(prop.num_devices == 0 || !whole || prop.flags != 0)?;
        let object = Multicast {
            count: prop.num_devices,
            devices: AtomicU32::new(0),
            bound: Mutex::default(),
        };
        let made = physical::make_multicast(bytes, shareable, object)?;
        write(mc_handle, made)
    };
    cuMulticastAddDevice(mc_handle, device) => {
        let object = found(mc_handle)?;
        let object = of(&object)?;
        let bit = 1 << driver::the()?.gpu(device)?;
        // Relaxed: a mask, and nothing else.
        let joined = object.devices.load(Ordering::Relaxed);
        let room = joined.count_ones() < object.count;
        invalid_if(joined & bit != 0 || !room)?;
        object.devices.fetch_or(bit, Ordering::Relaxed);
        Ok(())
    };
    cuMulticastUnbind(mc_handle, device, mc_offset, size) => {
        let gpu = driver::the()?.gpu(device)?;
        let object = found(mc_handle)?;
        let (offset, bytes) = part(&object, mc_offset, size)?;
        let gone: Vec<Binding> = lock(&of(&object)?.bound)
            .extract_if(.., |binding| {
                let inside =
                    binding.offset >= offset && binding.offset + binding.bytes <= offset + bytes;
                binding.gpu == gpu && inside
            })
            .collect();
        // May be the last that held the memory; nothing is locked here.
        for binding in gone {
            drop(binding.memory);
        }
        Ok(())
    };
}

const FILE_DESCRIPTOR: u64 = 1;

fn found(handle: CuMemAllocationHandle) -> Done<Arc<Physical>> {
    let physical = held(handle)?;
    invalid_if(physical.multicast.is_none())?;
    Ok(physical)
}

fn of(object: &Physical) -> Done<&Multicast> {
    object.multicast.as_ref().ok_or(CuResult::INVALID_VALUE)
}

/// A part of an object, if it is one.
fn part(object: &Physical, offset: usize, bytes: usize) -> Done<(u64, u64)> {
    let (offset, bytes) = (offset as u64, bytes as u64);
    let whole = bytes.is_multiple_of(granularity()) && offset.is_multiple_of(granularity());
    let inside = is_within(offset, bytes, object.bytes);
    invalid_if(bytes == 0 || !whole || !inside)?;
    Ok((offset, bytes))
}

fn bind(
    handle: CuMemAllocationHandle,
    offset: usize,
    bytes: usize,
    gpu: usize,
    memory: Option<Arc<Physical>>,
) -> Done {
    let object = found(handle)?;
    let (offset, bytes) = part(&object, offset, bytes)?;
    lock(&of(&object)?.bound).push(Binding {
        gpu,
        offset,
        bytes,
        memory,
    });
    Ok(())
}

/// The GPU that a call names, or else its memory's own.
fn gpu_or(device: Option<CuDevice>, own: usize) -> Done<usize> {
    device.map_or(Ok(own), |device| driver::the()?.gpu(device))
}

fn bind_memory(
    mc_handle: CuMemAllocationHandle,
    device: Option<CuDevice>,
    mc_offset: usize,
    mem_handle: CuMemAllocationHandle,
    mem_offset: usize,
    size: usize,
    flags: u64,
) -> Done {
    let memory = held(mem_handle)?;
    let inside = is_within(mem_offset as u64, size as u64, memory.bytes);
    invalid_if(flags != 0 || !inside || memory.multicast.is_some())?;
    bind(
        mc_handle,
        mc_offset,
        size,
        gpu_or(device, memory.gpu)?,
        Some(memory),
    )
}

fn bind_address(
    mc_handle: CuMemAllocationHandle,
    device: Option<CuDevice>,
    mc_offset: usize,
    address: u64,
    size: usize,
    flags: u64,
) -> Done {
    invalid_if(flags != 0 || !blocks::is_reachable(address, size as u64))?;
    let (_, block) = blocks::find(address).ok_or(CuResult::INVALID_VALUE)?;
    let memory = match &block.kind {
        BlockKind::Mapped(mapping) => Some(Arc::clone(&mapping.physical)),
        _ => None,
    };
    bind(
        mc_handle,
        mc_offset,
        size,
        gpu_or(device, block.gpu)?,
        memory,
    )
}
