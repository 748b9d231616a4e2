//! The functions of copies and fills. They move real bytes, in stream order.

use cuda_api::driver::*;

use crate::base::border::{Done, Number, invalid_if, number, read, write_if};
use crate::base::space::address;
use crate::memory::context;
use crate::streams::copies::{Box3, device, either, ends, host, move_rows, within};
use crate::streams::queue;
use crate::streams::stream;

calls! {
    cuMemcpyHtoD, cuMemcpyHtoD_v2(dst, src, bytes)
        => straight(device(dst, bytes), host(src), bytes, Wait::Until);
    cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2(dst, src, bytes, stream)
        => straight(device(dst, bytes), host(src), bytes, Wait::Not(stream));
    cuMemcpyDtoH, cuMemcpyDtoH_v2(dst, src, bytes)
        => straight(host(dst), device(src, bytes), bytes, Wait::Until);
    cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2(dst, src, bytes, stream)
        => straight(host(dst), device(src, bytes), bytes, Wait::Not(stream));
    cuMemcpyDtoD, cuMemcpyDtoD_v2(dst, src, bytes)
        => straight(device(dst, bytes), device(src, bytes), bytes, Wait::Until);
    cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2(dst, src, bytes, stream)
        => straight(device(dst, bytes), device(src, bytes), bytes, Wait::Not(stream));
    cuMemcpy(dst, src, bytes)
        => straight(either(dst, bytes), either(src, bytes), bytes, Wait::Until);
    cuMemcpyAsync(dst, src, bytes, stream)
        => straight(either(dst, bytes), either(src, bytes), bytes, Wait::Not(stream));
    cuMemcpyWithAttributesAsync(dst, src, bytes, _attribute, stream)
        => straight(either(dst, bytes), either(src, bytes), bytes, Wait::Not(stream));
    cuMemcpyPeer(dst, dst_context, src, src_context, bytes) => {
        context::find(dst_context).and_then(|_| context::find(src_context))?;
        straight(device(dst, bytes), device(src, bytes), bytes, Wait::Until)
    };
    cuMemcpyPeerAsync(dst, dst_context, src, src_context, bytes, stream) => {
        context::find(dst_context).and_then(|_| context::find(src_context))?;
        straight(device(dst, bytes), device(src, bytes), bytes, Wait::Not(stream))
    };

    // One-dimensional arrays.
    cuMemcpyHtoA, cuMemcpyHtoA_v2(dst, offset, src, bytes)
        => straight(within(dst, offset, bytes), host(src), bytes, Wait::Until);
    cuMemcpyHtoAAsync, cuMemcpyHtoAAsync_v2(dst, offset, src, bytes, stream)
        => straight(within(dst, offset, bytes), host(src), bytes, Wait::Not(stream));
    cuMemcpyAtoH, cuMemcpyAtoH_v2(dst, src, offset, bytes)
        => straight(host(dst), within(src, offset, bytes), bytes, Wait::Until);
    cuMemcpyAtoHAsync, cuMemcpyAtoHAsync_v2(dst, src, offset, bytes, stream)
        => straight(host(dst), within(src, offset, bytes), bytes, Wait::Not(stream));
    cuMemcpyDtoA, cuMemcpyDtoA_v2(dst, offset, src, bytes)
        => straight(within(dst, offset, bytes), device(src, bytes), bytes, Wait::Until);
    cuMemcpyAtoD, cuMemcpyAtoD_v2(dst, src, offset, bytes)
        => straight(device(dst, bytes), within(src, offset, bytes), bytes, Wait::Until);
    cuMemcpyAtoA, cuMemcpyAtoA_v2(dst, dst_offset, src, src_offset, bytes) => {
        let (dst, src) = (within(dst, dst_offset, bytes), within(src, src_offset, bytes));
        straight(dst, src, bytes, Wait::Until)
    };

    // Boxes.
    cuMemcpy2D, cuMemcpy2D_v2, cuMemcpy2DUnaligned, cuMemcpy2DUnaligned_v2,
    cuMemcpy3D, cuMemcpy3D_v2, cuMemcpy3DPeer(copy) => boxed_from(copy, Wait::Until);
    cuMemcpy2DAsync, cuMemcpy2DAsync_v2, cuMemcpy3DAsync, cuMemcpy3DAsync_v2,
    cuMemcpy3DPeerAsync(copy, stream) => boxed_from(copy, Wait::Not(stream));

    // Batches. The hints about memory locations are ignored.
    cuMemcpyBatchAsync(dsts, srcs, sizes, count, _attributes, _indexes, _hints, failed, stream)
        => batch(dsts, srcs, sizes, count, failed, stream);
    cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, _attributes, _indexes, _hints, stream)
        => batch(dsts, srcs, sizes, count, std::ptr::null_mut(), stream);

    // Fills.
    cuMemsetD8, cuMemsetD8_v2, cuMemsetD16, cuMemsetD16_v2, cuMemsetD32, cuMemsetD32_v2(
        dst, value, count) => fill(number(dst), 0, value, number(count), 1, Wait::Until);
    cuMemsetD8Async, cuMemsetD16Async, cuMemsetD32Async(dst, value, count, stream)
        => fill(number(dst), 0, value, number(count), 1, Wait::Not(stream));
    cuMemsetD2D8, cuMemsetD2D8_v2, cuMemsetD2D16, cuMemsetD2D16_v2,
    cuMemsetD2D32, cuMemsetD2D32_v2(dst, pitch, value, width, height) => {
        let (width, height) = (number(width), number(height));
        fill(number(dst), number(pitch), value, width, height, Wait::Until)
    };
    cuMemsetD2D8Async, cuMemsetD2D16Async, cuMemsetD2D32Async(
        dst, pitch, value, width, height, stream) => {
        let (width, height) = (number(width), number(height));
        fill(number(dst), number(pitch), value, width, height, Wait::Not(stream))
    };
}

/// How a call waits: not at all, or until the bytes are copied.
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

fn straight(dst: Done<u64>, src: Done<u64>, bytes: impl Number, wait: Wait) -> Done {
    context::current()?;
    let bytes = number(bytes);
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

/// Fills `height` rows of `width` elements; the rows are `pitch` bytes apart.
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
    invalid_if(!aligned || (height > 1 && pitch < row))?;
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

/// Makes each copy of a batch in stream order.
fn batch(
    dsts: *mut CuDevicePtr,
    srcs: *mut CuDevicePtr,
    sizes: *mut usize,
    count: usize,
    fail_idx: *mut usize,
    stream: CuStream,
) -> Done {
    invalid_if(count == 0 || stream.is_null())?;
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
