//! Copies and fills: real bytes, moved in stream order. Checks every device address against the table of
//! blocks, as the device's own page tables would; host addresses are the caller's word.

use cuda_api::driver::*;

use crate::border::{Done, read, write_if};
use crate::memory;
use crate::space::address;
use crate::{array, context, stream};

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
            stream::copy(&default, bytes, act)
        }
        Wait::Not(handle) => stream::copy_async(&*stream::find(handle)?, bytes, act),
    }
}

fn device(at: u64, bytes: u64) -> Done<u64> {
    if memory::is_reachable(at, bytes) {
        Ok(at)
    } else {
        Err(CuResult::INVALID_VALUE)
    }
}

/// An address of which a call does not say where it lies: known ones are checked.
fn either(at: u64, bytes: u64) -> Done<u64> {
    let known = memory::find(at).is_some();
    if at == 0 || known && !memory::is_reachable(at, bytes) {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(at)
}

fn host<T>(at: *const T) -> Done<u64> {
    if at.is_null() {
        Err(CuResult::INVALID_VALUE)
    } else {
        Ok(at.expose_provenance() as u64)
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

/// A copy of a box, from and to anything.
struct Box3 {
    src: Side,
    dst: Side,
    width: u64,
    height: u64,
    depth: u64,
}

/// One end of it.
struct Side {
    /// 1 host, 2 device, 3 array, 4 either.
    kind: u32,
    host: u64,
    device: u64,
    array: CuArray,
    pitch: u64,
    /// Rows of a slice.
    rows: u64,
    x: u64,
    y: u64,
    z: u64,
}

/// Where a side's rows lie.
#[derive(Clone, Copy)]
struct Place {
    start: u64,
    pitch: u64,
    slice: u64,
}

impl Side {
    fn place(&self, width: u64, height: u64, depth: u64) -> Done<Place> {
        let small = |at: u64| at < 1 << 40;
        if ![self.x, self.y, self.z, self.pitch, self.rows]
            .into_iter()
            .all(small)
        {
            return Err(CuResult::INVALID_VALUE);
        }
        let (base, pitch, rows) = match self.kind {
            1 => (self.host, self.pitch, self.rows),
            2 | 4 => (self.device, self.pitch, self.rows),
            3 => {
                let (base, pitch, rows) = array::layout(self.array)?;
                (base, pitch, rows)
            }
            _ => return Err(CuResult::INVALID_VALUE),
        };
        // One row, one slice: the caller need not say how far apart they would be.
        let pitch = if pitch == 0 { self.x + width } else { pitch };
        let rows = if rows == 0 { self.y + height } else { rows };
        if pitch < self.x + width && height * depth > 1 || rows < self.y + height && depth > 1 {
            return Err(CuResult::INVALID_VALUE);
        }
        let slice = pitch * rows;
        let start = base + self.z * slice + self.y * pitch + self.x;
        let bytes = (depth - 1) * slice + (height - 1) * pitch + width;
        match self.kind {
            1 if base == 0 => return Err(CuResult::INVALID_VALUE),
            1 => {}
            4 => {
                either(start, bytes)?;
            }
            _ => {
                device(start, bytes)?;
            }
        }
        Ok(Place {
            start,
            pitch,
            slice,
        })
    }
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

fn ends(copy: &Box3) -> Done<Option<(Place, Place)>> {
    let (width, height, depth) = (copy.width, copy.height, copy.depth);
    if width == 0 || height == 0 || depth == 0 {
        return Ok(None);
    }
    if [width, height, depth]
        .into_iter()
        .any(|side| side >= 1 << 40)
    {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(Some((
        copy.src.place(width, height, depth)?,
        copy.dst.place(width, height, depth)?,
    )))
}

fn move_rows(from: Place, to: Place, width: u64, height: u64, depth: u64) {
    for z in 0..depth {
        for y in 0..height {
            let src = from.start + z * from.slice + y * from.pitch;
            let dst = to.start + z * to.slice + y * to.pitch;
            // SAFETY: device and array addresses were checked against the blocks; host addresses are
            // good for the box that the caller describes.
            unsafe { std::ptr::copy(address::<u8>(src), address::<u8>(dst), width as usize) };
        }
    }
}

/// Makes a copy of a graph, now.
///
/// # Errors
/// When its addresses are none.
pub(crate) fn perform_3d(copy: &CuMemcpy3D) -> Done {
    let copy = Box3::from(*copy);
    if let Some((from, to)) = ends(&copy)? {
        move_rows(from, to, copy.width, copy.height, copy.depth);
    }
    Ok(())
}

/// A description of CUDA's as a box; the fields of all its forms have the same names.
macro_rules! boxes {
    ($($ty:ty: $device:expr, $z:expr, $rows:expr, $depth:expr;)*) => {$(
        impl From<$ty> for Box3 {
            fn from(copy: $ty) -> Self {
                let wide = |value| -> u64 { number(value) };
                let device = $device;
                let (src_z, dst_z) = $z(&copy);
                let (src_rows, dst_rows) = $rows(&copy);
                Self {
                    src: Side {
                        kind: copy.src_memory_type,
                        host: copy.src_host.expose_provenance() as u64,
                        device: device(copy.src_device),
                        array: copy.src_array,
                        pitch: wide(copy.src_pitch),
                        rows: src_rows,
                        x: wide(copy.src_x_bytes),
                        y: wide(copy.src_y),
                        z: src_z,
                    },
                    dst: Side {
                        kind: copy.dst_memory_type,
                        host: copy.dst_host.expose_provenance() as u64,
                        device: device(copy.dst_device),
                        array: copy.dst_array,
                        pitch: wide(copy.dst_pitch),
                        rows: dst_rows,
                        x: wide(copy.dst_x_bytes),
                        y: wide(copy.dst_y),
                        z: dst_z,
                    },
                    width: wide(copy.width_bytes),
                    height: wide(copy.height),
                    depth: $depth(&copy),
                }
            }
        }
    )*};
}

/// A size of either width.
trait Number {
    fn wide(self) -> u64;
}

impl Number for u32 {
    fn wide(self) -> u64 {
        self.into()
    }
}

impl Number for usize {
    fn wide(self) -> u64 {
        self as u64
    }
}

fn number(value: impl Number) -> u64 {
    value.wide()
}

boxes! {
    CuMemcpy2DV1: u64::from, |_: &CuMemcpy2DV1| (0, 0), |_: &CuMemcpy2DV1| (0, 0), |_: &CuMemcpy2DV1| 1;
    CuMemcpy2D: |at: CuDevicePtr| at.0, |_: &CuMemcpy2D| (0, 0), |_: &CuMemcpy2D| (0, 0), |_: &CuMemcpy2D| 1;
    CuMemcpy3DV1: u64::from, |c: &CuMemcpy3DV1| (number(c.src_z), number(c.dst_z)),
        |c: &CuMemcpy3DV1| (number(c.src_height), number(c.dst_height)), |c: &CuMemcpy3DV1| number(c.depth);
    CuMemcpy3D: |at: CuDevicePtr| at.0, |c: &CuMemcpy3D| (number(c.src_z), number(c.dst_z)),
        |c: &CuMemcpy3D| (number(c.src_height), number(c.dst_height)), |c: &CuMemcpy3D| number(c.depth);
    CuMemcpy3DPeer: |at: CuDevicePtr| at.0, |c: &CuMemcpy3DPeer| (number(c.src_z), number(c.dst_z)),
        |c: &CuMemcpy3DPeer| (number(c.src_height), number(c.dst_height)), |c: &CuMemcpy3DPeer| number(c.depth);
}

// --- the driver's functions -----------------------------------------------------------------------

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
