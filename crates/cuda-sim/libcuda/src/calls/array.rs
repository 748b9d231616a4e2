//! The functions of arrays and mipmaps.

use cuda_api::driver::*;

use crate::base::border::{Done, check_out, handle, invalid_if, read, refuse_if, write};
use crate::memory::array::{
    self, ARRAYS, Array, DEFERRED, MIPMAPS, Shape, find, keep, keep_mipmap, sparse_properties,
};
use crate::memory::blocks::{self, BlockKind};
use crate::memory::context;
use crate::memory::sparse;
use crate::process::driver;

calls! {
    cuArrayCreate, cuArrayCreate_v2, cuArray3DCreate, cuArray3DCreate_v2(handle, desc) => {
        check_out(handle)?;
        write(handle, create(read(desc)?.into())?)
    };
    cuArrayGetDescriptor, cuArrayGetDescriptor_v2,
    cuArray3DGetDescriptor, cuArray3DGetDescriptor_v2(desc, array)
        => write(desc, find(array)?.desc.into());
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
        let found = MIPMAPS.find(mipmapped_array.addr())?;
        let level = *found.levels.get(level as usize).ok_or(CuResult::INVALID_VALUE)?;
        write(level_array, handle(level))
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
    cuArrayDestroy(array) => {
        context::current()?;
        let found = find(array)?;
        refuse_if(found.is_level, CuResult::INVALID_HANDLE)?;
        ARRAYS.remove(array.addr());
        sparse::forget(array.addr());
        end_block(found.base);
        Ok(())
    };
    cuMipmappedArrayCreate(handle, desc, count_mipmap_levels) => {
        check_out(handle)?;
        let shape = Shape::from(read(desc)?).checked()?;
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
        let found = MIPMAPS.find(mipmapped_array.addr())?;
        MIPMAPS.remove(mipmapped_array.addr());
        for level in &found.levels {
            ARRAYS.remove(*level);
        }
        sparse::forget(mipmapped_array.addr());
        if found.bytes > 0 {
            end_block(found.base);
        }
        Ok(())
    };
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
    blocks::end_at(base, |block| matches!(block.kind, BlockKind::Array));
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
    let found = MIPMAPS.find(mipmap.addr())?;
    let level = found.levels.first().copied().unwrap_or(0);
    Ok((found.bytes, ARRAYS.find(level)?.desc))
}
