//! The functions of memory pools: create, destroy, trim, attributes, access, export, import.

use cuda_api::driver::*;

use crate::base::border::{Done, check_out, invalid_if, read, refuse_if, write};
use crate::memory::blocks::{self, BlockKind};
use crate::memory::context;
use crate::memory::pool::{
    HANDLE_FILE_DESCRIPTOR, Sort, current_at, current_of, default_at, default_of, find, new, with,
};
use crate::memory::shared;
use crate::process::driver;
use crate::process::files;
use crate::process::location::{self, Location};

calls! {
    cuMemPoolTrimTo(pool, min_bytes_to_keep)
        => { find(pool)?.trim(min_bytes_to_keep as u64); Ok(()) };
    cuDeviceGetDefaultMemPool(pool_out, device) => {
        let gpu = driver::the()?.gpu(device)?;
        write(pool_out, default_of(gpu).as_handle())
    };
    cuDeviceGetMemPool(pool, device) => {
        let gpu = driver::the()?.gpu(device)?;
        write(pool, current_of(gpu).as_handle())
    };
    cuDeviceSetMemPool(device, pool)
        => set_current(driver::the()?.gpu(device)?, Sort::Device, pool);
    cuMemGetDefaultMemPool(pool_out, location, kind) => {
        let (gpu, sort) = sort_at(location, kind)?;
        write(pool_out, default_at(gpu, sort).as_handle())
    };
    cuMemGetMemPool(pool, location, kind) => {
        let (gpu, sort) = sort_at(location, kind)?;
        write(pool, current_at(gpu, sort).as_handle())
    };
    cuMemSetMemPool(location, kind, pool) => {
        let (gpu, sort) = sort_at(location, kind)?;
        set_current(gpu, sort, pool)
    };
    cuMemPoolCreate(pool, pool_props) => {
        check_out(pool)?;
        let props = read(pool_props)?;
        let types = u64::from(props.handle_types);
        refuse_if(types & !HANDLE_FILE_DESCRIPTOR != 0, CuResult::NOT_SUPPORTED)?;
        let (gpu, sort) = sort_of(props.location, props.kind)?;
        let made = new(gpu, sort, false, types, props.max_size as u64);
        with(|pools| pools.all.push(made));
        write(pool, made.as_handle())
    };
    cuMemPoolDestroy(pool) => {
        let found = find(pool)?;
        invalid_if(found.is_default)?;
        with(|pools| {
            pools.all.retain(|other| !std::ptr::eq(*other, found));
            pools
                .current
                .retain(|_, other| !std::ptr::eq(*other, found));
        });
        found.state().is_destroyed = true;
        found.trim(0);
        Ok(())
    };
    // An attribute is a 32-bit or a 64-bit number, depending on the attribute.
    cuMemPoolGetAttribute(pool, attribute, value) => {
        let pool = find(pool)?;
        let [used, used_high, reserved, reserved_high] = pool.figures();
        let state = pool.state();
        let number = match attribute {
            1..=3 => {
                let set = state.reuse[attribute as usize - 1];
                return write(value.cast::<i32>(), set);
            }
            4 => state.threshold,
            5 => reserved,
            6 => reserved_high,
            7 => used,
            8 => used_high,
            _ => return Err(CuResult::INVALID_VALUE),
        };
        write(value.cast::<u64>(), number)
    };
    cuMemPoolSetAttribute(pool, attribute, value) => {
        let pool = find(pool)?;
        if let 1..=3 = attribute {
            // SAFETY: the caller's pointer, of the attribute's type.
            pool.state().reuse[attribute as usize - 1] = read(value.cast::<i32>())?;
            return Ok(());
        }
        let number = read(value.cast::<u64>())?;
        match attribute {
            4 => pool.state().threshold = number,
            6 | 8 if number == 0 => pool.reset_marks(attribute == 8, attribute == 6),
            _ => return Err(CuResult::INVALID_VALUE),
        }
        Ok(())
    };
    cuMemPoolSetAccess(pool, map, count) => {
        let pool = find(pool)?;
        for index in 0..count {
            let desc = read(map.wrapping_add(index))?;
            let gpu = location::gpu_of(desc.location)?;
            invalid_if(desc.flags == 0 && gpu == pool.gpu)?;
            let mut state = pool.state();
            state
                .access
                .retain(|(device, _)| *device != desc.location.id);
            state.access.push((desc.location.id, desc.flags));
        }
        Ok(())
    };
    cuMemPoolGetAccess(flags, pool, location) => {
        const READ_WRITE: u32 = 3;
        let pool = find(pool)?;
        let location = read(location)?;
        let gpu = driver::the()?.gpu(CuDevice(location.id))?;
        let set = pool
            .state()
            .access
            .iter()
            .find(|(device, _)| *device == location.id)
            .map(|(_, f)| *f);
        let own = if gpu == pool.gpu { READ_WRITE } else { 0 };
        write(flags, set.unwrap_or(own))
    };
    cuMemPoolExportToShareableHandle(handle_out, pool, handle_type, flags) => {
        let pool = find(pool)?;
        let wanted = u64::from(handle_type);
        invalid_if(flags != 0 || wanted != HANDLE_FILE_DESCRIPTOR || pool.handle_types & wanted == 0)?;
        check_out(handle_out)?;
        let token = PoolToken {
            magic: POOL_MAGIC,
            gpu: pool.gpu as u64,
            handle_types: pool.handle_types,
        };
        let length = size_of::<PoolToken>() as u64;
        let (file, number) = files::shareable_file(c"vgpu-sim-pool", length)?;
        files::write_record(&file, 0, &token)?;
        let fd = files::exported(&file, number)?;
        write(handle_out.cast::<i32>(), fd)
    };
    cuMemPoolImportFromShareableHandle(pool_out, handle, handle_type, flags) => {
        check_out(pool_out)?;
        invalid_if(flags != 0 || u64::from(handle_type) != HANDLE_FILE_DESCRIPTOR)?;
        let (file, _) = files::imported(handle.addr() as i32)?;
        let token: PoolToken = files::read_record(&file, 0)?;
        let driver = driver::the()?;
        let gpu = token.gpu as usize;
        invalid_if(token.magic != POOL_MAGIC || driver.ordinal(gpu).is_none())?;
        let pool = new(gpu, Sort::Imported, false, token.handle_types, 0);
        with(|pools| pools.all.push(pool));
        write(pool_out, pool.as_handle())
    };
    cuMemPoolExportPointer(share_data_out, ptr) => {
        check_out(share_data_out)?;
        let (base, block) = blocks::find(ptr.0).ok_or(CuResult::INVALID_VALUE)?;
        let BlockKind::Pool(pool) = block.kind else {
            return Err(CuResult::INVALID_VALUE);
        };
        invalid_if(base != ptr.0 || pool.handle_types & HANDLE_FILE_DESCRIPTOR == 0)?;
        let name = shared::share(base, &block, || pool.detach(base))?;
        let mut data = CuMemPoolPtrExportData { reserved: [0; 64] };
        name.write(&mut data.reserved);
        write(share_data_out, data)
    };
    cuMemPoolImportPointer(ptr_out, pool, share_data) => {
        check_out(ptr_out)?;
        let pool = find(pool)?;
        let data = read(share_data)?;
        let name = files::Name::read(&data.reserved).ok_or(CuResult::INVALID_VALUE)?;
        invalid_if(pool.sort != Sort::Imported || name.gpu != pool.gpu as u64)?;
        let base = shared::open(&name, BlockKind::Pool(pool), None)?;
        write(ptr_out, CuDevicePtr(base))
    };
}

// --- pools ----------------------------------------------------------------------------------------

const PINNED: u32 = 1;
const MANAGED: u32 = 2;

/// The GPU and the sort that a location and a kind of memory mean.
fn sort_of(location: CuMemLocation, kind: u32) -> Done<(usize, Sort)> {
    const NOWHERE: u32 = 0;
    match kind {
        PINNED => Ok(match location::of(location)? {
            Location::Gpu(gpu) => (gpu, Sort::Device),
            Location::Host => (0, Sort::Host),
        }),
        // Managed memory moves to the GPU that uses it first; here that is the calling thread's GPU.
        MANAGED if location.kind == NOWHERE => {
            Ok((context::current().map_or(0, |it| it.gpu), Sort::Managed))
        }
        MANAGED => Ok(match location::of(location)? {
            Location::Gpu(gpu) => (gpu, Sort::Managed),
            Location::Host => (0, Sort::Managed),
        }),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn set_current(gpu: usize, sort: Sort, pool: CuMemoryPool) -> Done {
    let pool = find(pool)?;
    invalid_if(pool.gpu != gpu || pool.sort != sort)?;
    with(|pools| pools.current.insert((gpu, sort), pool));
    Ok(())
}

/// The same in the forms of CUDA 13.
fn sort_at(location: *mut CuMemLocation, kind: u32) -> Done<(usize, Sort)> {
    sort_of(read(location)?, kind)
}

// --- pools that processes share -------------------------------------------------------------------

/// The contents of an exported pool's descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
struct PoolToken {
    magic: u64,
    gpu: u64,
    handle_types: u64,
}

const POOL_MAGIC: u64 = u64::from_le_bytes(*b"vgpupool");
