//! The functions of copies and fills. They move real bytes, in stream order.

use cuda_api::driver::*;

use crate::base::border::{Done, read, write_if};
use crate::base::space::address;
use crate::memory::array;
use crate::memory::context;
use crate::streams::copies::{Box3, device, either, ends, host, move_rows};
use crate::streams::queue;
use crate::streams::stream;

/// How a call waits: not at all, or until the bytes are there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Until,
    Not(CuStream),
}

/// Moves bytes in stream order.
fn run(wait: Wait, bytes: u64, act: impl Fn() + Send + Sync + 'static) -> Done {
    match wait {
        Wait::Until => {
            let default = stream::find(std::ptr::null_mut())?;
            queue::copy(&default, bytes, act)
        }
        Wait::Not(handle) => queue::copy_async(&*stream::find(handle)?, bytes, act),
    }
}

fn straight(dst: Done<u64>, src: Done<u64>, bytes: u64, wait: Wait) -> Done {
    context::current()?;
    if bytes == 0 {
        return Ok(());
    }
    let (dst, src) = (dst?, src?);
    run(wait, bytes, move || {
        // SAFETY: device addresses were checked against the blocks; host addresses are good for
        // that many bytes, as the caller vouches, until the copy is done.
        unsafe { std::ptr::copy(address::<u8>(src), address::<u8>(dst), bytes as usize) };
    })
}

/// Fills `height` rows of `width` elements; `pitch` bytes lie between rows.
fn fill<T: Copy + Send + Sync + 'static>(
    dst: u64,
    pitch: u64,
    value: T,
    width: u64,
    height: u64,
    wait: Wait,
) -> Done {
    context::current()?;
    let size = size_of::<T>() as u64;
    let row = width.checked_mul(size).ok_or(CuResult::INVALID_VALUE)?;
    if row == 0 || height == 0 {
        return Ok(());
    }
    let aligned = dst.is_multiple_of(size) && (height == 1 || pitch.is_multiple_of(size));
    if !aligned || (height > 1 && pitch < row) {
        return Err(CuResult::INVALID_VALUE);
    }
    let between = pitch
        .checked_mul(height - 1)
        .ok_or(CuResult::INVALID_VALUE)?;
    device(
        dst,
        between.checked_add(row).ok_or(CuResult::INVALID_VALUE)?,
    )?;
    run(wait, row * height, move || {
        for line in 0..height {
            for column in 0..width {
                let at = dst + line * pitch + column * size;
                // SAFETY: checked against the blocks, and aligned.
                unsafe { address::<T>(at).write(value) };
            }
        }
    })
}

fn boxed(copy: &Box3, wait: Wait) -> Done {
    context::current()?;
    let Some((from, to)) = ends(copy)? else {
        return Ok(());
    };
    let (width, height, depth) = (copy.width, copy.height, copy.depth);
    run(wait, width * height * depth, move || {
        move_rows(from, to, width, height, depth)
    })
}

/// The same for a description that the caller passes.
fn boxed_from<T: Copy>(copy: *const T, wait: Wait) -> Done
where
    Box3: From<T>,
{
    boxed(&Box3::from(read(copy)?), wait)
}


pub(crate) fn cuMemcpyHtoD(dst: u32, src: *const c_void, bytes: u32) -> Done {
    let bytes = u64::from(bytes);
    straight(device(dst.into(), bytes), host(src), bytes, Wait::Until)
}

pub(crate) fn cuMemcpyHtoDAsync(
    dst: u32,
    src: *const c_void,
    bytes: u32,
    stream: CuStream,
) -> Done {
    let bytes = u64::from(bytes);
    straight(
        device(dst.into(), bytes),
        host(src),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) fn cuMemcpyHtoD_v2(dst: CuDevicePtr, src: *const c_void, bytes: usize) -> Done {
    let bytes = bytes as u64;
    straight(device(dst.0, bytes), host(src), bytes, Wait::Until)
}

pub(crate) fn cuMemcpyHtoDAsync_v2(
    dst: CuDevicePtr,
    src: *const c_void,
    bytes: usize,
    stream: CuStream,
) -> Done {
    let bytes = bytes as u64;
    straight(device(dst.0, bytes), host(src), bytes, Wait::Not(stream))
}

pub(crate) fn cuMemcpyDtoH(dst: *mut c_void, src: u32, bytes: u32) -> Done {
    let bytes = u64::from(bytes);
    straight(
        host(dst.cast_const()),
        device(src.into(), bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemcpyDtoHAsync(dst: *mut c_void, src: u32, bytes: u32, stream: CuStream) -> Done {
    let bytes = u64::from(bytes);
    straight(
        host(dst.cast_const()),
        device(src.into(), bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CuDevicePtr, bytes: usize) -> Done {
    let bytes = bytes as u64;
    straight(
        host(dst.cast_const()),
        device(src.0, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemcpyDtoHAsync_v2(
    dst: *mut c_void,
    src: CuDevicePtr,
    bytes: usize,
    stream: CuStream,
) -> Done {
    let bytes = bytes as u64;
    straight(
        host(dst.cast_const()),
        device(src.0, bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) fn cuMemcpyDtoD(dst: u32, src: u32, bytes: u32) -> Done {
    let bytes = u64::from(bytes);
    straight(
        device(dst.into(), bytes),
        device(src.into(), bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemcpyDtoDAsync(dst: u32, src: u32, bytes: u32, stream: CuStream) -> Done {
    let bytes = u64::from(bytes);
    straight(
        device(dst.into(), bytes),
        device(src.into(), bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) fn cuMemcpyDtoD_v2(dst: CuDevicePtr, src: CuDevicePtr, bytes: usize) -> Done {
    let bytes = bytes as u64;
    straight(
        device(dst.0, bytes),
        device(src.0, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemcpyDtoDAsync_v2(
    dst: CuDevicePtr,
    src: CuDevicePtr,
    bytes: usize,
    stream: CuStream,
) -> Done {
    let bytes = bytes as u64;
    straight(
        device(dst.0, bytes),
        device(src.0, bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) fn cuMemcpy(dst: CuDevicePtr, src: CuDevicePtr, bytes: usize) -> Done {
    let bytes = bytes as u64;
    straight(
        either(dst.0, bytes),
        either(src.0, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemcpyPeer(
    dst: CuDevicePtr,
    dst_context: CuContext,
    src: CuDevicePtr,
    src_context: CuContext,
    bytes: usize,
) -> Done {
    let bytes = bytes as u64;
    context::find(dst_context).and_then(|_| context::find(src_context))?;
    straight(
        device(dst.0, bytes),
        device(src.0, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemcpyAsync(
    dst: CuDevicePtr,
    src: CuDevicePtr,
    bytes: usize,
    stream: CuStream,
) -> Done {
    let bytes = bytes as u64;
    straight(
        either(dst.0, bytes),
        either(src.0, bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) fn cuMemcpyPeerAsync(
    dst: CuDevicePtr,
    dst_context: CuContext,
    src: CuDevicePtr,
    src_context: CuContext,
    bytes: usize,
    stream: CuStream,
) -> Done {
    let bytes = bytes as u64;
    context::find(dst_context).and_then(|_| context::find(src_context))?;
    straight(
        device(dst.0, bytes),
        device(src.0, bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) fn cuMemcpyWithAttributesAsync(
    dst: CuDevicePtr,
    src: CuDevicePtr,
    size: usize,
    _attribute: *mut CuMemcpyAttributes,
    stream: CuStream,
) -> Done {
    let bytes = size as u64;
    straight(
        either(dst.0, bytes),
        either(src.0, bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) fn cuMemcpyHtoA(dst: CuArray, dst_offset: u32, src: *const c_void, bytes: u32) -> Done {
    let bytes = u64::from(bytes);
    straight(
        array::place(dst, u64::from(dst_offset), bytes),
        host(src),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemcpyHtoAAsync(
    dst: CuArray,
    dst_offset: u32,
    src: *const c_void,
    bytes: u32,
    stream: CuStream,
) -> Done {
    let bytes = u64::from(bytes);
    straight(
        array::place(dst, u64::from(dst_offset), bytes),
        host(src),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) fn cuMemcpyAtoH(dst: *mut c_void, src: CuArray, src_offset: u32, bytes: u32) -> Done {
    let bytes = u64::from(bytes);
    straight(
        host(dst.cast_const()),
        array::place(src, u64::from(src_offset), bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemcpyAtoHAsync(
    dst: *mut c_void,
    src: CuArray,
    src_offset: u32,
    bytes: u32,
    stream: CuStream,
) -> Done {
    let bytes = u64::from(bytes);
    straight(
        host(dst.cast_const()),
        array::place(src, u64::from(src_offset), bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) fn cuMemcpyDtoA(dst: CuArray, dst_offset: u32, src: u32, bytes: u32) -> Done {
    let bytes = u64::from(bytes);
    straight(
        array::place(dst, u64::from(dst_offset), bytes),
        device(src.into(), bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemcpyAtoD(dst: u32, src: CuArray, src_offset: u32, bytes: u32) -> Done {
    let bytes = u64::from(bytes);
    straight(
        device(dst.into(), bytes),
        array::place(src, u64::from(src_offset), bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemcpyAtoA(
    dst: CuArray,
    dst_offset: u32,
    src: CuArray,
    src_offset: u32,
    bytes: u32,
) -> Done {
    let bytes = u64::from(bytes);
    straight(
        array::place(dst, u64::from(dst_offset), bytes),
        array::place(src, u64::from(src_offset), bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemcpyHtoA_v2(
    dst: CuArray,
    dst_offset: usize,
    src: *const c_void,
    bytes: usize,
) -> Done {
    let bytes = bytes as u64;
    straight(
        array::place(dst, dst_offset as u64, bytes),
        host(src),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemcpyHtoAAsync_v2(
    dst: CuArray,
    dst_offset: usize,
    src: *const c_void,
    bytes: usize,
    stream: CuStream,
) -> Done {
    let bytes = bytes as u64;
    straight(
        array::place(dst, dst_offset as u64, bytes),
        host(src),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) fn cuMemcpyAtoH_v2(
    dst: *mut c_void,
    src: CuArray,
    src_offset: usize,
    bytes: usize,
) -> Done {
    let bytes = bytes as u64;
    straight(
        host(dst.cast_const()),
        array::place(src, src_offset as u64, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemcpyAtoHAsync_v2(
    dst: *mut c_void,
    src: CuArray,
    src_offset: usize,
    bytes: usize,
    stream: CuStream,
) -> Done {
    let bytes = bytes as u64;
    straight(
        host(dst.cast_const()),
        array::place(src, src_offset as u64, bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) fn cuMemcpyDtoA_v2(
    dst: CuArray,
    dst_offset: usize,
    src: CuDevicePtr,
    bytes: usize,
) -> Done {
    let bytes = bytes as u64;
    straight(
        array::place(dst, dst_offset as u64, bytes),
        device(src.0, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemcpyAtoD_v2(
    dst: CuDevicePtr,
    src: CuArray,
    src_offset: usize,
    bytes: usize,
) -> Done {
    let bytes = bytes as u64;
    straight(
        device(dst.0, bytes),
        array::place(src, src_offset as u64, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemcpyAtoA_v2(
    dst: CuArray,
    dst_offset: usize,
    src: CuArray,
    src_offset: usize,
    bytes: usize,
) -> Done {
    let bytes = bytes as u64;
    straight(
        array::place(dst, dst_offset as u64, bytes),
        array::place(src, src_offset as u64, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) fn cuMemsetD8(dst: u32, value: u8, count: u32) -> Done {
    fill(dst.into(), 0, value, count.into(), 1, Wait::Until)
}

pub(crate) fn cuMemsetD2D8(dst: u32, dst_pitch: u32, value: u8, width: u32, height: u32) -> Done {
    fill(
        dst.into(),
        dst_pitch.into(),
        value,
        width.into(),
        height.into(),
        Wait::Until,
    )
}

pub(crate) fn cuMemsetD8_v2(dst: CuDevicePtr, value: u8, count: usize) -> Done {
    fill(dst.0, 0, value, count as u64, 1, Wait::Until)
}

pub(crate) fn cuMemsetD2D8_v2(
    dst: CuDevicePtr,
    dst_pitch: usize,
    value: u8,
    width: usize,
    height: usize,
) -> Done {
    fill(
        dst.0,
        dst_pitch as u64,
        value,
        width as u64,
        height as u64,
        Wait::Until,
    )
}

pub(crate) fn cuMemsetD8Async(dst: CuDevicePtr, value: u8, count: usize, stream: CuStream) -> Done {
    fill(dst.0, 0, value, count as u64, 1, Wait::Not(stream))
}

pub(crate) fn cuMemsetD2D8Async(
    dst: CuDevicePtr,
    dst_pitch: usize,
    value: u8,
    width: usize,
    height: usize,
    stream: CuStream,
) -> Done {
    fill(
        dst.0,
        dst_pitch as u64,
        value,
        width as u64,
        height as u64,
        Wait::Not(stream),
    )
}

pub(crate) fn cuMemsetD16(dst: u32, value: u16, count: u32) -> Done {
    fill(dst.into(), 0, value, count.into(), 1, Wait::Until)
}

pub(crate) fn cuMemsetD2D16(dst: u32, dst_pitch: u32, value: u16, width: u32, height: u32) -> Done {
    fill(
        dst.into(),
        dst_pitch.into(),
        value,
        width.into(),
        height.into(),
        Wait::Until,
    )
}

pub(crate) fn cuMemsetD16_v2(dst: CuDevicePtr, value: u16, count: usize) -> Done {
    fill(dst.0, 0, value, count as u64, 1, Wait::Until)
}

pub(crate) fn cuMemsetD2D16_v2(
    dst: CuDevicePtr,
    dst_pitch: usize,
    value: u16,
    width: usize,
    height: usize,
) -> Done {
    fill(
        dst.0,
        dst_pitch as u64,
        value,
        width as u64,
        height as u64,
        Wait::Until,
    )
}

pub(crate) fn cuMemsetD16Async(
    dst: CuDevicePtr,
    value: u16,
    count: usize,
    stream: CuStream,
) -> Done {
    fill(dst.0, 0, value, count as u64, 1, Wait::Not(stream))
}

pub(crate) fn cuMemsetD2D16Async(
    dst: CuDevicePtr,
    dst_pitch: usize,
    value: u16,
    width: usize,
    height: usize,
    stream: CuStream,
) -> Done {
    fill(
        dst.0,
        dst_pitch as u64,
        value,
        width as u64,
        height as u64,
        Wait::Not(stream),
    )
}

pub(crate) fn cuMemsetD32(dst: u32, value: u32, count: u32) -> Done {
    fill(dst.into(), 0, value, count.into(), 1, Wait::Until)
}

pub(crate) fn cuMemsetD2D32(dst: u32, dst_pitch: u32, value: u32, width: u32, height: u32) -> Done {
    fill(
        dst.into(),
        dst_pitch.into(),
        value,
        width.into(),
        height.into(),
        Wait::Until,
    )
}

pub(crate) fn cuMemsetD32_v2(dst: CuDevicePtr, value: u32, count: usize) -> Done {
    fill(dst.0, 0, value, count as u64, 1, Wait::Until)
}

pub(crate) fn cuMemsetD2D32_v2(
    dst: CuDevicePtr,
    dst_pitch: usize,
    value: u32,
    width: usize,
    height: usize,
) -> Done {
    fill(
        dst.0,
        dst_pitch as u64,
        value,
        width as u64,
        height as u64,
        Wait::Until,
    )
}

pub(crate) fn cuMemsetD32Async(
    dst: CuDevicePtr,
    value: u32,
    count: usize,
    stream: CuStream,
) -> Done {
    fill(dst.0, 0, value, count as u64, 1, Wait::Not(stream))
}

pub(crate) fn cuMemsetD2D32Async(
    dst: CuDevicePtr,
    dst_pitch: usize,
    value: u32,
    width: usize,
    height: usize,
    stream: CuStream,
) -> Done {
    fill(
        dst.0,
        dst_pitch as u64,
        value,
        width as u64,
        height as u64,
        Wait::Not(stream),
    )
}

pub(crate) fn cuMemcpy2D(copy: *const CuMemcpy2DV1) -> Done {
    boxed_from(copy, Wait::Until)
}

pub(crate) fn cuMemcpy2DAsync(copy: *const CuMemcpy2DV1, stream: CuStream) -> Done {
    boxed_from(copy, Wait::Not(stream))
}

pub(crate) fn cuMemcpy2DUnaligned(copy: *const CuMemcpy2DV1) -> Done {
    boxed_from(copy, Wait::Until)
}

pub(crate) fn cuMemcpy2D_v2(copy: *const CuMemcpy2D) -> Done {
    boxed_from(copy, Wait::Until)
}

pub(crate) fn cuMemcpy2DAsync_v2(copy: *const CuMemcpy2D, stream: CuStream) -> Done {
    boxed_from(copy, Wait::Not(stream))
}

pub(crate) fn cuMemcpy2DUnaligned_v2(copy: *const CuMemcpy2D) -> Done {
    boxed_from(copy, Wait::Until)
}

pub(crate) fn cuMemcpy3D(copy: *const CuMemcpy3DV1) -> Done {
    boxed_from(copy, Wait::Until)
}

pub(crate) fn cuMemcpy3DAsync(copy: *const CuMemcpy3DV1, stream: CuStream) -> Done {
    boxed_from(copy, Wait::Not(stream))
}

pub(crate) fn cuMemcpy3D_v2(copy: *const CuMemcpy3D) -> Done {
    boxed_from(copy, Wait::Until)
}

pub(crate) fn cuMemcpy3DAsync_v2(copy: *const CuMemcpy3D, stream: CuStream) -> Done {
    boxed_from(copy, Wait::Not(stream))
}

pub(crate) fn cuMemcpy3DPeer(copy: *const CuMemcpy3DPeer) -> Done {
    boxed_from(copy, Wait::Until)
}

pub(crate) fn cuMemcpy3DPeerAsync(copy: *const CuMemcpy3DPeer, stream: CuStream) -> Done {
    boxed_from(copy, Wait::Not(stream))
}

/// Each copy of a batch in stream order; the hints of where memory lies change nothing here.
fn batch(
    dsts: *mut CuDevicePtr,
    srcs: *mut CuDevicePtr,
    sizes: *mut usize,
    count: usize,
    fail_idx: *mut usize,
    stream: CuStream,
) -> Done {
    if count == 0 || stream.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    for index in 0..count {
        let one = || {
            let dst = read(dsts.wrapping_add(index))?.0;
            let src = read(srcs.wrapping_add(index))?.0;
            let bytes = read(sizes.wrapping_add(index))? as u64;
            straight(
                either(dst, bytes),
                either(src, bytes),
                bytes,
                Wait::Not(stream),
            )
        };
        if let Err(code) = one() {
            write_if(fail_idx, index);
            return Err(code);
        }
    }
    Ok(())
}

pub(crate) fn cuMemcpyBatchAsync(
    dsts: *mut CuDevicePtr,
    srcs: *mut CuDevicePtr,
    sizes: *mut usize,
    count: usize,
    _attrs: *mut CuMemcpyAttributes,
    _attrs_idxs: *mut usize,
    _count_attrs: usize,
    fail_idx: *mut usize,
    stream: CuStream,
) -> Done {
    batch(dsts, srcs, sizes, count, fail_idx, stream)
}

pub(crate) fn cuMemcpyBatchAsync_v2(
    dsts: *mut CuDevicePtr,
    srcs: *mut CuDevicePtr,
    sizes: *mut usize,
    count: usize,
    _attrs: *mut CuMemcpyAttributes,
    _attrs_idxs: *mut usize,
    _count_attrs: usize,
    stream: CuStream,
) -> Done {
    batch(dsts, srcs, sizes, count, std::ptr::null_mut(), stream)
}
