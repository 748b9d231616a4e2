//! The functions of arrays and mipmaps.

use std::sync::Arc;

use cuda_api::driver::*;

use crate::base::border::{Done, check_out, invalid_if, number, read, refuse_if, write};
use crate::memory::array::{
    self, Array, DEFERRED, Mipmap, Shape, find, keep, keep_mipmap, shape_3d, sparse_properties,
    with,
};
use crate::memory::blocks::{self, BlockKind};
use crate::memory::context;
use crate::memory::sparse;
use crate::process::driver;

calls! {
    cuArray3DCreate_v2(handle, desc) => {
        check_out(handle)?;
        let desc = read(desc)?;
        write(handle, create(shape_3d(&desc))?)
    };
    cuArrayGetDescriptor_v2(desc, array) => {
        let told = find(array)?.desc.told();
        let told = CuArrayDescriptor {
            width: told.width,
            height: told.height,
            format: told.format,
            num_channels: told.num_channels,
        };
        write(desc, told)
    };
    cuArrayGetDescriptor(desc, array) => {
        let told = find(array)?.desc.told();
        let told = CuArrayDescriptorV1 {
            width: told.width as u32,
            height: told.height as u32,
            format: told.format,
            num_channels: told.num_channels,
        };
        write(desc, told)
    };
    cuArray3DGetDescriptor_v2(desc, array) => write(desc, find(array)?.desc.told());
    // How much memory an array wants that was made without memory (`cuArrayGetMemoryRequirements`).
    cuArrayGetMemoryRequirements(memory_requirements, array, device) => {
        driver::the()?.gpu(device)?;
        let desc = find(array)?.desc;
        let told = requirements(desc.flags, desc.bytes()?)?;
        write(memory_requirements, told)
    };
    cuArrayGetSparseProperties(out, array) => {
        let told = sparse_properties(&find(array)?.desc)?;
        write(out, told)
    };
    // Planes are for video formats of several.
    cuArrayGetPlane(_plane_array, array, _plane_idx)
        => { find(array)?; Err(CuResult::INVALID_VALUE) };
    cuMipmappedArrayGetLevel(level_array, mipmapped_array, level) => {
        let found = find_mipmap(mipmapped_array)?;
        let handle = *found
            .levels
            .get(level as usize)
            .ok_or(CuResult::INVALID_VALUE)?;
        write(level_array, std::ptr::without_provenance_mut(handle))
    };
    // How much memory a mipmapped array wants that was made without memory (`cuMipmappedArrayGetMemoryRequirements`).
    cuMipmappedArrayGetMemoryRequirements(memory_requirements, mipmap, device) => {
        driver::the()?.gpu(device)?;
        let (bytes, shape) = first_level(mipmap)?;
        let told = requirements(shape.flags, bytes)?;
        write(memory_requirements, told)
    };
    cuMipmappedArrayGetSparseProperties(out, mipmap) => {
        let told = sparse_properties(&first_level(mipmap)?.1)?;
        write(out, told)
    };
    cuArrayCreate, cuArrayCreate_v2(handle, desc) => {
        check_out(handle)?;
        let desc = read(desc)?;
        let shape = Shape {
            width: number(desc.width),
            height: number(desc.height),
            depth: 0,
            format: desc.format,
            channels: desc.num_channels,
            flags: 0,
        };
        write(handle, create(shape)?)
    };
    cuArray3DCreate(handle, desc) => {
        check_out(handle)?;
        let desc = read(desc)?;
        let shape = Shape {
            width: desc.width.into(),
            height: desc.height.into(),
            depth: desc.depth.into(),
            format: desc.format,
            channels: desc.num_channels,
            flags: desc.flags,
        };
        write(handle, create(shape)?)
    };
    cuArrayDestroy(array) => {
        context::current()?;
        let found = find(array)?;
        refuse_if(found.is_level, CuResult::INVALID_HANDLE)?;
        with(|arrays| arrays.arrays.remove(&array.addr()));
        sparse::forget(array.addr());
        end_block(found.base);
        Ok(())
    };
    cuArray3DGetDescriptor(desc, array) => {
        let told = find(array)?.desc.told();
        let told = CuArray3DDescriptorV1 {
            width: told.width as u32,
            height: told.height as u32,
            depth: told.depth as u32,
            format: told.format,
            num_channels: told.num_channels,
            flags: told.flags,
        };
        write(desc, told)
    };
    cuMipmappedArrayCreate(handle, desc, count_mipmap_levels) => {
        check_out(handle)?;
        let shape = shape_3d(&read(desc)?).checked()?;
        let context = context::current()?.home();
        let longest = shape.width.max(shape.height).max(shape.depth).max(1);
        let most = longest.ilog2() + 1;
        invalid_if(count_mipmap_levels == 0)?;
        let levels = count_mipmap_levels.min(most);
        let mut bytes = 0;
        for level in 0..levels {
            bytes += shape.level(level).bytes()?;
        }
        let base = blocks::make(context, bytes, shape.taken(bytes), BlockKind::Array, false)?;
        let made = keep_mipmap(base, bytes, context, shape, levels);
        write(handle, made)
    };
    cuMipmappedArrayDestroy(mipmapped_array) => {
        context::current()?;
        let found = find_mipmap(mipmapped_array)?;
        with(|arrays| {
            arrays.mipmaps.remove(&mipmapped_array.addr());
            for level in &found.levels {
                arrays.arrays.remove(level);
            }
        });
        sparse::forget(mipmapped_array.addr());
        if found.bytes > 0 {
            end_block(found.base);
        }
        Ok(())
    };
}

fn find_mipmap(handle: CuMipmappedArray) -> Done<Arc<Mipmap>> {
    with(|arrays| arrays.mipmaps.get(&handle.addr()).cloned()).ok_or(CuResult::INVALID_HANDLE)
}

fn create(shape: Shape) -> Done<CuArray> {
    let context = context::current()?.home();
    let desc = shape.checked()?;
    let bytes = desc.bytes()?;
    let base = blocks::make(context, bytes, desc.taken(bytes), BlockKind::Array, false)?;
    Ok(keep(Array {
        desc,
        base,
        context,
        is_level: false,
    }))
}

fn end_block(base: u64) {
    if let Some(block) = blocks::remove(base, |block| matches!(block.kind, BlockKind::Array)) {
        blocks::end(base, &block);
    }
}

// --- arrays -----------------------------------------------------------------------------------------

fn requirements(flags: u32, bytes: u64) -> Done<CuArrayMemoryRequirements> {
    invalid_if(flags & DEFERRED == 0)?;
    Ok(CuArrayMemoryRequirements {
        size: bytes.next_multiple_of(array::TILE_BYTES) as usize,
        alignment: array::TILE_BYTES as usize,
        reserved: [0; 4],
    })
}

// --- mipmaps ----------------------------------------------------------------------------------------

fn first_level(mipmap: CuMipmappedArray) -> Done<(u64, Shape)> {
    let found = find_mipmap(mipmap)?;
    let level = found.levels.first().copied().unwrap_or(0);
    Ok((
        found.bytes,
        find(std::ptr::without_provenance_mut(level))?.desc,
    ))
}
