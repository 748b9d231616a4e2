//! The functions of plain memory: device, pitched, managed and host memory, hints, free bytes,
//! attributes of pointers.

use cuda_api::driver::*;
use cuda_sim::board;

use crate::base::border::{
    Done, Number, check_out, invalid_if, is_low, number, put, read, refuse_if, stepped, write,
    write_if,
};
use crate::base::space;
use crate::memory::blocks::{
    Block, BlockKind, PITCH, block, end_at, find, make, managed, place_at, rounded,
};
use crate::memory::context;
use crate::memory::graph_memory;
use crate::process::driver::{self, Driver};
use crate::process::location::{self, Location};
use crate::streams::stream;

calls! {
    cuMemAlloc, cuMemAlloc_v2(out, bytes) => {
        check_out(out)?;
        put(out, alloc(number(bytes), BlockKind::Device, is_low(out))?)
    };
    cuMemAllocPitch, cuMemAllocPitch_v2(out, pitch, width_bytes, height, element_bytes) => {
        check_out(out)?;
        check_out(pitch)?;
        let (width, height) = (number(width_bytes), number(height));
        let (base, row) = alloc_pitch(width, height, element_bytes, is_low(out))?;
        put(pitch, row)?;
        put(out, base)
    };
    cuMemAllocManaged(out, bytes, flags) => {
        check_out(out)?;
        invalid_if(flags != ATTACH_GLOBAL && flags != ATTACH_HOST)?;
        let base = alloc(bytes as u64, BlockKind::Managed, false)?;
        write(out, CuDevicePtr(base))
    };
    cuMemFree, cuMemFree_v2(ptr) => free(number(ptr));
    cuMemGetAddressRange, cuMemGetAddressRange_v2(base_out, size_out, ptr) => {
        let (base, bytes) = range_of(number(ptr))?;
        write_if(base_out, Number::of(base));
        write_if(size_out, Number::of(bytes));
        Ok(())
    };
    cuMemGetInfo, cuMemGetInfo_v2(free, total) => {
        let (left, all) = info()?;
        put(free, left)?;
        put(total, all)
    };
    cuMemHostAlloc(out, bytes, flags) => alloc_host(out, bytes as u64, flags);
    cuMemAllocHost, cuMemAllocHost_v2(out, bytes) => alloc_host(out, number(bytes), 0);
    cuMemHostRegister_v2, cuMemHostRegister(p, bytes, flags) => register(p, bytes, flags);
    cuMemHostGetDevicePointer_v2(out, p, flags) => {
        host_block(p)?;
        invalid_if(flags != 0)?;
        write(out, CuDevicePtr(p.addr() as u64))
    };
    cuMemHostGetDevicePointer(out, p, flags) => {
        host_block(p)?;
        let address = u32::try_from(p.addr()).map_err(|_| CuResult::INVALID_VALUE)?;
        invalid_if(flags != 0)?;
        write(out, address)
    };
    cuMemHostGetFlags(flags, p) => {
        let (_, block) = host_block(p)?;
        let BlockKind::Host { flags: own } = block.kind else {
            return Err(CuResult::INVALID_VALUE);
        };
        // With one address space, everything is mapped.
        const DEVICE_MAP: u32 = 2;
        write(flags, own | DEVICE_MAP)
    };
    cuMemAdvise(dev_ptr, count, advice, device) => advise(dev_ptr, count, advice, device.0);
    cuMemAdvise_v2(dev_ptr, count, advice, location)
        => advise(dev_ptr, count, advice, location_device(location)?);
    cuMemPrefetchAsync(dev_ptr, count, dst, _stream) => prefetch(dev_ptr, count, dst.0);
    cuMemPrefetchAsync_v2(dev_ptr, count, location, flags, _stream) => {
        invalid_if(flags != 0)?;
        prefetch(dev_ptr, count, location_device(location)?)
    };
    cuMemDiscardBatchAsync(dptrs, sizes, count, flags, _stream)
        => batch(dptrs, sizes, count, flags);
    cuMemRangeGetAttribute(data, data_size, attribute, dev_ptr, count)
        => range_attribute(data, data_size, attribute, dev_ptr, count);
    cuMemRangeGetAttributes(data, data_sizes, attributes, count_attributes, dev_ptr, count) => {
        for index in 0..count_attributes {
            let data = read(data.wrapping_add(index))?;
            let bytes = read(data_sizes.wrapping_add(index))?;
            let attribute = read(attributes.wrapping_add(index))?;
            range_attribute(data, bytes, attribute, dev_ptr, count)?;
        }
        Ok(())
    };
    cuPointerGetAttribute(data, attribute, ptr) => {
        let value = pointer_attribute(attribute, ptr.0)?;
        put_value(data, &value)
    };
    cuPointerSetAttribute(value, attribute, ptr) => {
        const SYNC_MEMOPS: u32 = 6;
        invalid_if(value.is_null() || attribute != SYNC_MEMOPS || find(ptr.0).is_none())
    };
    cuMemFreeHost(p) => {
        context::current()?;
        if p.is_null() {
            return Ok(());
        }
        let base = p.addr() as u64;
        invalid_if(!end_at(base, |block| matches!(block.kind, BlockKind::Host { .. })))
    };
    cuMemHostUnregister(p) => {
        context::current()?;
        let base = p.addr() as u64;
        let ended = end_at(base, |block| matches!(block.kind, BlockKind::Registered));
        refuse_if(!ended, CuResult::HOST_MEMORY_NOT_REGISTERED)
    };
    cuMemPrefetchBatchAsync(dptrs, sizes, count, _prefetch_locs, _prefetch_loc_idxs,
        _count_prefetch_locs, flags, _stream) => batch(dptrs, sizes, count, flags);
    cuMemDiscardAndPrefetchBatchAsync(dptrs, sizes, count, _prefetch_locs, _prefetch_loc_idxs,
        _count_prefetch_locs, flags, _stream) => batch(dptrs, sizes, count, flags);
    // A pointer that the driver does not know is no error here: its attributes are all zero.
    cuPointerGetAttributes(count_attributes, attributes, data, ptr) => {
        for index in 0..count_attributes as usize {
            let attribute = read(attributes.wrapping_add(index))?;
            let data = read(data.wrapping_add(index))?;
            let nothing = match attribute {
                2 | 6 | 8 | 10 | 13 | 15 | 16 | 21 => AttributeValue::Int(0),
                9 => AttributeValue::Int(-2),
                _ => AttributeValue::Long(0),
            };
            let value = pointer_attribute(attribute, ptr.0).unwrap_or(nothing);
            put_value(data, &value)?;
        }
        Ok(())
    };
}

// --- device memory ------------------------------------------------------------------------------

fn alloc(bytes: u64, kind: BlockKind, low: bool) -> Done<u64> {
    let context = context::current()?;
    invalid_if(bytes == 0)?;
    make(context, bytes, rounded(bytes), kind, low)
}

fn alloc_pitch(width: u64, height: u64, element: u32, low: bool) -> Done<(u64, u64)> {
    invalid_if(width == 0 || height == 0 || !matches!(element, 4 | 8 | 16))?;
    let pitch = stepped(width, PITCH)?;
    let bytes = pitch.checked_mul(height).ok_or(CuResult::OUT_OF_MEMORY)?;
    Ok((alloc(bytes, BlockKind::Device, low)?, pitch))
}

const ATTACH_GLOBAL: u32 = 1;
const ATTACH_HOST: u32 = 2;

fn free(base: u64) -> Done {
    let context = context::current()?;
    if base == 0 {
        return Ok(());
    }
    stream::before_free(context)?;
    if graph_memory::is_graphs(base) {
        return invalid_if(!graph_memory::free(base));
    }
    use BlockKind::{Device, External, Managed, Pool};
    let is_own = |block: &Block| matches!(block.kind, Device | Managed | Pool(_) | External);
    invalid_if(!end_at(base, is_own))
}

fn range_of(address: u64) -> Done<(u64, u64)> {
    context::current()?;
    let (base, block) = find(address)
        .filter(|(_, block)| !matches!(block.kind, BlockKind::Array | BlockKind::Registered))
        .ok_or(CuResult::NOT_FOUND)?;
    Ok((base, block.bytes))
}

fn info() -> Done<(u64, u64)> {
    let context = context::current()?;
    let driver = driver::the()?;
    let board = &driver.board;
    if let Some(part) = driver.instance {
        let own = |other: &board::ProcessUse| other.instance == Some(part.index);
        let used: u64 = board
            .processes(context.gpu)
            .iter()
            .filter(|process| own(process))
            .map(|process| process.alloc_bytes + process.overhead_bytes)
            .sum();
        return Ok((part.bytes.saturating_sub(used), part.bytes));
    }
    // A limit of the driver on the process's control group is the size that the process sees.
    if let Some((limit, used)) = board.seen_by(context.gpu, driver.member) {
        let physical = board.total_bytes(context.gpu) - board.used_bytes(context.gpu);
        return Ok((limit.saturating_sub(used).min(physical), limit));
    }
    let total = board.total_bytes(context.gpu);
    Ok((total.saturating_sub(board.used_bytes(context.gpu)), total))
}

// --- host memory --------------------------------------------------------------------------------

/// Portable, device map, write combined.
const HOST_FLAGS: u32 = 7;

/// Portable, device map, I/O memory, read only.
const REGISTER_FLAGS: u32 = 15;

fn alloc_host(out: *mut *mut c_void, bytes: u64, flags: u32) -> Done {
    check_out(out)?;
    let context = context::current()?;
    invalid_if(bytes == 0 || flags & !HOST_FLAGS != 0)?;
    let base = make(context, bytes, 0, BlockKind::Host { flags }, false)?;
    write(out, space::address(base))
}

fn register(p: *mut c_void, bytes: usize, flags: u32) -> Done {
    let context = context::current()?;
    invalid_if(p.is_null() || bytes == 0 || flags & !REGISTER_FLAGS != 0)?;
    let mut block = block(bytes as u64, context.gpu, BlockKind::Registered);
    block.context = Some(context);
    place_at(p.addr() as u64, block).map_err(|_| CuResult::HOST_MEMORY_ALREADY_REGISTERED)
}

fn host_block(p: *mut c_void) -> Done<(u64, Block)> {
    context::current()?;
    find(p.addr() as u64)
        .filter(|(_, block)| block.kind.is_host())
        .ok_or(CuResult::INVALID_VALUE)
}

// --- managed memory: hints ------------------------------------------------------------------------

fn advise(address: CuDevicePtr, bytes: usize, advice: u32, device: i32) -> Done {
    const HOST: i32 = -1;
    managed(address.0, bytes)?;
    invalid_if(!(1..=6).contains(&advice))?;
    if advice >= 3 && device != HOST {
        driver::the()?.gpu(CuDevice(device))?;
    }
    Ok(())
}

/// The device of a location, -1 for the host.
fn location_device(location: CuMemLocation) -> Done<i32> {
    const NOWHERE: u32 = 0;
    if location.kind == NOWHERE {
        return Ok(-1);
    }
    Ok(match location::of(location)? {
        Location::Gpu(gpu) => driver::the()?.ordinal(gpu).map_or(-1, |device| device.0),
        Location::Host => -1,
    })
}

fn prefetch(address: CuDevicePtr, bytes: usize, device: i32) -> Done {
    context::current()?;
    managed(address.0, bytes)?;
    if device != -1 {
        driver::the()?.gpu(CuDevice(device))?;
    }
    Ok(())
}

/// Checks every range of a batch. The location of managed memory costs nothing here.
fn batch(ptrs: *mut CuDevicePtr, sizes: *mut usize, count: usize, flags: u64) -> Done {
    context::current()?;
    invalid_if(count == 0 || flags != 0)?;
    for index in 0..count {
        let ptr = read(ptrs.wrapping_add(index))?;
        managed(ptr.0, read(sizes.wrapping_add(index))?)?;
    }
    Ok(())
}

fn range_attribute(
    data: *mut c_void,
    bytes: usize,
    attribute: u32,
    address: CuDevicePtr,
    count: usize,
) -> Done {
    const NOWHERE: i32 = -2;
    managed(address.0, count)?;
    check_out(data)?;
    let value = match attribute {
        // Read mostly: no advice has set it.
        1 => 0,
        // Preferred, accessed by, last prefetched to: nowhere.
        2..=4 => NOWHERE,
        5..=8 => 0,
        _ => return Err(CuResult::INVALID_VALUE),
    };
    invalid_if(bytes == 0 || !bytes.is_multiple_of(4))?;
    for index in 0..bytes / 4 {
        write(data.cast::<i32>().wrapping_add(index), value)?;
    }
    Ok(())
}

// --- what a pointer is ------------------------------------------------------------------------------

/// An attribute's value, in its C type.
enum AttributeValue {
    Int(i32),
    Long(u64),
}

fn pointer_attribute(attribute: u32, address: u64) -> Done<AttributeValue> {
    const HOST: i32 = 1;
    const DEVICE: i32 = 2;
    let driver = driver::the()?;
    let (base, block) = find(address)
        .filter(|(_, block)| !matches!(block.kind, BlockKind::Array))
        .ok_or(CuResult::INVALID_VALUE)?;
    let is_host = block.kind.is_host();
    let yes = |yes: bool| AttributeValue::Int(i32::from(yes));
    Ok(match attribute {
        1 => {
            let context = block.context.or_else(|| context::any_on(block.gpu));
            AttributeValue::Long(context.map_or(0, |context| context.handle as u64))
        }
        2 => AttributeValue::Int(if is_host { HOST } else { DEVICE }),
        3 => AttributeValue::Long(address),
        4 if is_host || matches!(block.kind, BlockKind::Managed) => AttributeValue::Long(address),
        6 | 15 | 21 => yes(false),
        7 => AttributeValue::Long(block.id),
        8 => yes(matches!(block.kind, BlockKind::Managed)),
        9 => AttributeValue::Int(ordinal(driver, &block)),
        10 => yes(matches!(block.kind, BlockKind::Device)),
        11 => AttributeValue::Long(base),
        12 | 18 => AttributeValue::Long(block.bytes),
        13 => yes(true),
        14 => AttributeValue::Long(match &block.kind {
            BlockKind::Mapped(mapping) => mapping.handle_types(),
            BlockKind::Pool(pool) => pool.handle_types(),
            _ => 0,
        }),
        16 => AttributeValue::Int(match &block.kind {
            BlockKind::Mapped(mapping) => mapping.access_of(context::current()?.gpu) as i32,
            _ => 3,
        }),
        17 => AttributeValue::Long(match &block.kind {
            BlockKind::Pool(pool) => pool.as_handle().addr() as u64,
            _ => 0,
        }),
        19 => AttributeValue::Long(base),
        20 => AttributeValue::Long(block.id),
        _ => return Err(CuResult::INVALID_VALUE),
    })
}

fn ordinal(driver: &Driver, block: &Block) -> i32 {
    driver.ordinal(block.gpu).map_or(-1, |device| device.0)
}

fn put_value(data: *mut c_void, value: &AttributeValue) -> Done {
    match *value {
        AttributeValue::Int(value) => write(data.cast::<i32>(), value),
        AttributeValue::Long(value) => write(data.cast::<u64>(), value),
    }
}
