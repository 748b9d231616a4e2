//! Copies and fills: real bytes, moved in stream order. Checks every device address against the table of
//! blocks, as the device's own page tables would; host addresses are the caller's word.

use cuda_api::driver::*;

use crate::memory;
use crate::space::address;
use crate::{array, border, context, stream};

/// How a call waits: not at all, or until the bytes are there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Until,
    Not(CuStream),
}

/// Moves bytes in stream order.
fn run(wait: Wait, bytes: u64, act: impl Fn() + Send + Sync + 'static) -> Result<(), CuResult> {
    match wait {
        Wait::Until => {
            let default = stream::find(std::ptr::null_mut())?;
            stream::copy(&default, bytes, act)
        }
        Wait::Not(handle) => stream::copy_async(&*stream::find(handle)?, bytes, act),
    }
}

fn device(at: u64, bytes: u64) -> Result<u64, CuResult> {
    if memory::is_reachable(at, bytes) {
        Ok(at)
    } else {
        Err(CuResult::INVALID_VALUE)
    }
}

/// An address of which a call does not say where it lies: known ones are checked.
fn either(at: u64, bytes: u64) -> Result<u64, CuResult> {
    let known = memory::find(at).is_some();
    if at == 0 || known && !memory::is_reachable(at, bytes) {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(at)
}

fn host<T>(at: *const T) -> Result<u64, CuResult> {
    if at.is_null() {
        Err(CuResult::INVALID_VALUE)
    } else {
        Ok(at.expose_provenance() as u64)
    }
}

fn straight(
    dst: Result<u64, CuResult>,
    src: Result<u64, CuResult>,
    bytes: u64,
    wait: Wait,
) -> CuResult {
    border::answer(|| {
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
) -> CuResult {
    border::answer(|| {
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
    fn place(&self, width: u64, height: u64, depth: u64) -> Result<Place, CuResult> {
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

fn boxed(copy: &Box3, wait: Wait) -> Result<(), CuResult> {
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
unsafe fn boxed_from<T: Copy>(copy: *const T, wait: Wait) -> Result<(), CuResult>
where
    Box3: From<T>,
{
    // SAFETY: the caller's pointer.
    boxed(&Box3::from(unsafe { border::get(copy) }?), wait)
}

fn ends(copy: &Box3) -> Result<Option<(Place, Place)>, CuResult> {
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
pub(crate) fn perform_3d(copy: &CuMemcpy3D) -> Result<(), CuResult> {
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

pub(crate) unsafe fn cuMemcpyHtoD(dst: u32, src: *const c_void, bytes: u32) -> CuResult {
    let bytes = u64::from(bytes);
    straight(device(dst.into(), bytes), host(src), bytes, Wait::Until)
}

pub(crate) unsafe fn cuMemcpyHtoDAsync(
    dst: u32,
    src: *const c_void,
    bytes: u32,
    stream: CuStream,
) -> CuResult {
    let bytes = u64::from(bytes);
    straight(
        device(dst.into(), bytes),
        host(src),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) unsafe fn cuMemcpyHtoD_v2(
    dst: CuDevicePtr,
    src: *const c_void,
    bytes: usize,
) -> CuResult {
    let bytes = bytes as u64;
    straight(device(dst.0, bytes), host(src), bytes, Wait::Until)
}

pub(crate) unsafe fn cuMemcpyHtoDAsync_v2(
    dst: CuDevicePtr,
    src: *const c_void,
    bytes: usize,
    stream: CuStream,
) -> CuResult {
    let bytes = bytes as u64;
    straight(device(dst.0, bytes), host(src), bytes, Wait::Not(stream))
}

pub(crate) unsafe fn cuMemcpyDtoH(dst: *mut c_void, src: u32, bytes: u32) -> CuResult {
    let bytes = u64::from(bytes);
    straight(
        host(dst.cast_const()),
        device(src.into(), bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemcpyDtoHAsync(
    dst: *mut c_void,
    src: u32,
    bytes: u32,
    stream: CuStream,
) -> CuResult {
    let bytes = u64::from(bytes);
    straight(
        host(dst.cast_const()),
        device(src.into(), bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) unsafe fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CuDevicePtr, bytes: usize) -> CuResult {
    let bytes = bytes as u64;
    straight(
        host(dst.cast_const()),
        device(src.0, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemcpyDtoHAsync_v2(
    dst: *mut c_void,
    src: CuDevicePtr,
    bytes: usize,
    stream: CuStream,
) -> CuResult {
    let bytes = bytes as u64;
    straight(
        host(dst.cast_const()),
        device(src.0, bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) unsafe fn cuMemcpyDtoD(dst: u32, src: u32, bytes: u32) -> CuResult {
    let bytes = u64::from(bytes);
    straight(
        device(dst.into(), bytes),
        device(src.into(), bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemcpyDtoDAsync(
    dst: u32,
    src: u32,
    bytes: u32,
    stream: CuStream,
) -> CuResult {
    let bytes = u64::from(bytes);
    straight(
        device(dst.into(), bytes),
        device(src.into(), bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) unsafe fn cuMemcpyDtoD_v2(dst: CuDevicePtr, src: CuDevicePtr, bytes: usize) -> CuResult {
    let bytes = bytes as u64;
    straight(
        device(dst.0, bytes),
        device(src.0, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemcpyDtoDAsync_v2(
    dst: CuDevicePtr,
    src: CuDevicePtr,
    bytes: usize,
    stream: CuStream,
) -> CuResult {
    let bytes = bytes as u64;
    straight(
        device(dst.0, bytes),
        device(src.0, bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) unsafe fn cuMemcpy(dst: CuDevicePtr, src: CuDevicePtr, bytes: usize) -> CuResult {
    let bytes = bytes as u64;
    straight(
        either(dst.0, bytes),
        either(src.0, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemcpyPeer(
    dst: CuDevicePtr,
    dst_context: CuContext,
    src: CuDevicePtr,
    src_context: CuContext,
    bytes: usize,
) -> CuResult {
    let bytes = bytes as u64;
    if let Err(code) = context::find(dst_context).and_then(|_| context::find(src_context)) {
        return code;
    }
    straight(
        device(dst.0, bytes),
        device(src.0, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemcpyAsync(
    dst: CuDevicePtr,
    src: CuDevicePtr,
    bytes: usize,
    stream: CuStream,
) -> CuResult {
    let bytes = bytes as u64;
    straight(
        either(dst.0, bytes),
        either(src.0, bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) unsafe fn cuMemcpyPeerAsync(
    dst: CuDevicePtr,
    dst_context: CuContext,
    src: CuDevicePtr,
    src_context: CuContext,
    bytes: usize,
    stream: CuStream,
) -> CuResult {
    let bytes = bytes as u64;
    if let Err(code) = context::find(dst_context).and_then(|_| context::find(src_context)) {
        return code;
    }
    straight(
        device(dst.0, bytes),
        device(src.0, bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) unsafe fn cuMemcpyWithAttributesAsync(
    dst: CuDevicePtr,
    src: CuDevicePtr,
    size: usize,
    _attribute: *mut CuMemcpyAttributes,
    stream: CuStream,
) -> CuResult {
    let bytes = size as u64;
    straight(
        either(dst.0, bytes),
        either(src.0, bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) unsafe fn cuMemcpyHtoA(
    dst: CuArray,
    dst_offset: u32,
    src: *const c_void,
    bytes: u32,
) -> CuResult {
    let bytes = u64::from(bytes);
    straight(
        array::place(dst, u64::from(dst_offset), bytes),
        host(src),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemcpyHtoAAsync(
    dst: CuArray,
    dst_offset: u32,
    src: *const c_void,
    bytes: u32,
    stream: CuStream,
) -> CuResult {
    let bytes = u64::from(bytes);
    straight(
        array::place(dst, u64::from(dst_offset), bytes),
        host(src),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) unsafe fn cuMemcpyAtoH(
    dst: *mut c_void,
    src: CuArray,
    src_offset: u32,
    bytes: u32,
) -> CuResult {
    let bytes = u64::from(bytes);
    straight(
        host(dst.cast_const()),
        array::place(src, u64::from(src_offset), bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemcpyAtoHAsync(
    dst: *mut c_void,
    src: CuArray,
    src_offset: u32,
    bytes: u32,
    stream: CuStream,
) -> CuResult {
    let bytes = u64::from(bytes);
    straight(
        host(dst.cast_const()),
        array::place(src, u64::from(src_offset), bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) unsafe fn cuMemcpyDtoA(dst: CuArray, dst_offset: u32, src: u32, bytes: u32) -> CuResult {
    let bytes = u64::from(bytes);
    straight(
        array::place(dst, u64::from(dst_offset), bytes),
        device(src.into(), bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemcpyAtoD(dst: u32, src: CuArray, src_offset: u32, bytes: u32) -> CuResult {
    let bytes = u64::from(bytes);
    straight(
        device(dst.into(), bytes),
        array::place(src, u64::from(src_offset), bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemcpyAtoA(
    dst: CuArray,
    dst_offset: u32,
    src: CuArray,
    src_offset: u32,
    bytes: u32,
) -> CuResult {
    let bytes = u64::from(bytes);
    straight(
        array::place(dst, u64::from(dst_offset), bytes),
        array::place(src, u64::from(src_offset), bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemcpyHtoA_v2(
    dst: CuArray,
    dst_offset: usize,
    src: *const c_void,
    bytes: usize,
) -> CuResult {
    let bytes = bytes as u64;
    straight(
        array::place(dst, dst_offset as u64, bytes),
        host(src),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemcpyHtoAAsync_v2(
    dst: CuArray,
    dst_offset: usize,
    src: *const c_void,
    bytes: usize,
    stream: CuStream,
) -> CuResult {
    let bytes = bytes as u64;
    straight(
        array::place(dst, dst_offset as u64, bytes),
        host(src),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) unsafe fn cuMemcpyAtoH_v2(
    dst: *mut c_void,
    src: CuArray,
    src_offset: usize,
    bytes: usize,
) -> CuResult {
    let bytes = bytes as u64;
    straight(
        host(dst.cast_const()),
        array::place(src, src_offset as u64, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemcpyAtoHAsync_v2(
    dst: *mut c_void,
    src: CuArray,
    src_offset: usize,
    bytes: usize,
    stream: CuStream,
) -> CuResult {
    let bytes = bytes as u64;
    straight(
        host(dst.cast_const()),
        array::place(src, src_offset as u64, bytes),
        bytes,
        Wait::Not(stream),
    )
}

pub(crate) unsafe fn cuMemcpyDtoA_v2(
    dst: CuArray,
    dst_offset: usize,
    src: CuDevicePtr,
    bytes: usize,
) -> CuResult {
    let bytes = bytes as u64;
    straight(
        array::place(dst, dst_offset as u64, bytes),
        device(src.0, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemcpyAtoD_v2(
    dst: CuDevicePtr,
    src: CuArray,
    src_offset: usize,
    bytes: usize,
) -> CuResult {
    let bytes = bytes as u64;
    straight(
        device(dst.0, bytes),
        array::place(src, src_offset as u64, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemcpyAtoA_v2(
    dst: CuArray,
    dst_offset: usize,
    src: CuArray,
    src_offset: usize,
    bytes: usize,
) -> CuResult {
    let bytes = bytes as u64;
    straight(
        array::place(dst, dst_offset as u64, bytes),
        array::place(src, src_offset as u64, bytes),
        bytes,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemsetD8(dst: u32, value: u8, count: u32) -> CuResult {
    fill(dst.into(), 0, value, count.into(), 1, Wait::Until)
}

pub(crate) unsafe fn cuMemsetD2D8(
    dst: u32,
    dst_pitch: u32,
    value: u8,
    width: u32,
    height: u32,
) -> CuResult {
    fill(
        dst.into(),
        dst_pitch.into(),
        value,
        width.into(),
        height.into(),
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemsetD8_v2(dst: CuDevicePtr, value: u8, count: usize) -> CuResult {
    fill(dst.0, 0, value, count as u64, 1, Wait::Until)
}

pub(crate) unsafe fn cuMemsetD2D8_v2(
    dst: CuDevicePtr,
    dst_pitch: usize,
    value: u8,
    width: usize,
    height: usize,
) -> CuResult {
    fill(
        dst.0,
        dst_pitch as u64,
        value,
        width as u64,
        height as u64,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemsetD8Async(
    dst: CuDevicePtr,
    value: u8,
    count: usize,
    stream: CuStream,
) -> CuResult {
    fill(dst.0, 0, value, count as u64, 1, Wait::Not(stream))
}

pub(crate) unsafe fn cuMemsetD2D8Async(
    dst: CuDevicePtr,
    dst_pitch: usize,
    value: u8,
    width: usize,
    height: usize,
    stream: CuStream,
) -> CuResult {
    fill(
        dst.0,
        dst_pitch as u64,
        value,
        width as u64,
        height as u64,
        Wait::Not(stream),
    )
}

pub(crate) unsafe fn cuMemsetD16(dst: u32, value: u16, count: u32) -> CuResult {
    fill(dst.into(), 0, value, count.into(), 1, Wait::Until)
}

pub(crate) unsafe fn cuMemsetD2D16(
    dst: u32,
    dst_pitch: u32,
    value: u16,
    width: u32,
    height: u32,
) -> CuResult {
    fill(
        dst.into(),
        dst_pitch.into(),
        value,
        width.into(),
        height.into(),
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemsetD16_v2(dst: CuDevicePtr, value: u16, count: usize) -> CuResult {
    fill(dst.0, 0, value, count as u64, 1, Wait::Until)
}

pub(crate) unsafe fn cuMemsetD2D16_v2(
    dst: CuDevicePtr,
    dst_pitch: usize,
    value: u16,
    width: usize,
    height: usize,
) -> CuResult {
    fill(
        dst.0,
        dst_pitch as u64,
        value,
        width as u64,
        height as u64,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemsetD16Async(
    dst: CuDevicePtr,
    value: u16,
    count: usize,
    stream: CuStream,
) -> CuResult {
    fill(dst.0, 0, value, count as u64, 1, Wait::Not(stream))
}

pub(crate) unsafe fn cuMemsetD2D16Async(
    dst: CuDevicePtr,
    dst_pitch: usize,
    value: u16,
    width: usize,
    height: usize,
    stream: CuStream,
) -> CuResult {
    fill(
        dst.0,
        dst_pitch as u64,
        value,
        width as u64,
        height as u64,
        Wait::Not(stream),
    )
}

pub(crate) unsafe fn cuMemsetD32(dst: u32, value: u32, count: u32) -> CuResult {
    fill(dst.into(), 0, value, count.into(), 1, Wait::Until)
}

pub(crate) unsafe fn cuMemsetD2D32(
    dst: u32,
    dst_pitch: u32,
    value: u32,
    width: u32,
    height: u32,
) -> CuResult {
    fill(
        dst.into(),
        dst_pitch.into(),
        value,
        width.into(),
        height.into(),
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemsetD32_v2(dst: CuDevicePtr, value: u32, count: usize) -> CuResult {
    fill(dst.0, 0, value, count as u64, 1, Wait::Until)
}

pub(crate) unsafe fn cuMemsetD2D32_v2(
    dst: CuDevicePtr,
    dst_pitch: usize,
    value: u32,
    width: usize,
    height: usize,
) -> CuResult {
    fill(
        dst.0,
        dst_pitch as u64,
        value,
        width as u64,
        height as u64,
        Wait::Until,
    )
}

pub(crate) unsafe fn cuMemsetD32Async(
    dst: CuDevicePtr,
    value: u32,
    count: usize,
    stream: CuStream,
) -> CuResult {
    fill(dst.0, 0, value, count as u64, 1, Wait::Not(stream))
}

pub(crate) unsafe fn cuMemsetD2D32Async(
    dst: CuDevicePtr,
    dst_pitch: usize,
    value: u32,
    width: usize,
    height: usize,
    stream: CuStream,
) -> CuResult {
    fill(
        dst.0,
        dst_pitch as u64,
        value,
        width as u64,
        height as u64,
        Wait::Not(stream),
    )
}

pub(crate) unsafe fn cuMemcpy2D(copy: *const CuMemcpy2DV1) -> CuResult {
    // SAFETY: the caller's pointer.
    border::answer(|| unsafe { boxed_from(copy, Wait::Until) })
}

pub(crate) unsafe fn cuMemcpy2DAsync(copy: *const CuMemcpy2DV1, stream: CuStream) -> CuResult {
    // SAFETY: the caller's pointer.
    border::answer(|| unsafe { boxed_from(copy, Wait::Not(stream)) })
}

pub(crate) unsafe fn cuMemcpy2DUnaligned(copy: *const CuMemcpy2DV1) -> CuResult {
    // SAFETY: the caller's pointer.
    border::answer(|| unsafe { boxed_from(copy, Wait::Until) })
}

pub(crate) unsafe fn cuMemcpy2D_v2(copy: *const CuMemcpy2D) -> CuResult {
    // SAFETY: the caller's pointer.
    border::answer(|| unsafe { boxed_from(copy, Wait::Until) })
}

pub(crate) unsafe fn cuMemcpy2DAsync_v2(copy: *const CuMemcpy2D, stream: CuStream) -> CuResult {
    // SAFETY: the caller's pointer.
    border::answer(|| unsafe { boxed_from(copy, Wait::Not(stream)) })
}

pub(crate) unsafe fn cuMemcpy2DUnaligned_v2(copy: *const CuMemcpy2D) -> CuResult {
    // SAFETY: the caller's pointer.
    border::answer(|| unsafe { boxed_from(copy, Wait::Until) })
}

pub(crate) unsafe fn cuMemcpy3D(copy: *const CuMemcpy3DV1) -> CuResult {
    // SAFETY: the caller's pointer.
    border::answer(|| unsafe { boxed_from(copy, Wait::Until) })
}

pub(crate) unsafe fn cuMemcpy3DAsync(copy: *const CuMemcpy3DV1, stream: CuStream) -> CuResult {
    // SAFETY: the caller's pointer.
    border::answer(|| unsafe { boxed_from(copy, Wait::Not(stream)) })
}

pub(crate) unsafe fn cuMemcpy3D_v2(copy: *const CuMemcpy3D) -> CuResult {
    // SAFETY: the caller's pointer.
    border::answer(|| unsafe { boxed_from(copy, Wait::Until) })
}

pub(crate) unsafe fn cuMemcpy3DAsync_v2(copy: *const CuMemcpy3D, stream: CuStream) -> CuResult {
    // SAFETY: the caller's pointer.
    border::answer(|| unsafe { boxed_from(copy, Wait::Not(stream)) })
}

pub(crate) unsafe fn cuMemcpy3DPeer(copy: *const CuMemcpy3DPeer) -> CuResult {
    // SAFETY: the caller's pointer.
    border::answer(|| unsafe { boxed_from(copy, Wait::Until) })
}

pub(crate) unsafe fn cuMemcpy3DPeerAsync(
    copy: *const CuMemcpy3DPeer,
    stream: CuStream,
) -> CuResult {
    // SAFETY: the caller's pointer.
    border::answer(|| unsafe { boxed_from(copy, Wait::Not(stream)) })
}

/// Each copy of a batch in stream order; the hints of where memory lies change nothing here.
unsafe fn batch(
    dsts: *mut CuDevicePtr,
    srcs: *mut CuDevicePtr,
    sizes: *mut usize,
    count: usize,
    fail_idx: *mut usize,
    stream: CuStream,
) -> CuResult {
    border::answer(|| {
        if count == 0 || stream.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        for index in 0..count {
            let one = || {
                // SAFETY: the caller's arrays have that many entries.
                let (dst, src, bytes) = unsafe {
                    (
                        border::get(dsts.wrapping_add(index))?,
                        border::get(srcs.wrapping_add(index))?,
                        border::get(sizes.wrapping_add(index))? as u64,
                    )
                };
                match straight(
                    either(dst.0, bytes),
                    either(src.0, bytes),
                    bytes,
                    Wait::Not(stream),
                ) {
                    CuResult::SUCCESS => Ok(()),
                    code => Err(code),
                }
            };
            if let Err(code) = one() {
                // SAFETY: null, or the caller's pointer.
                unsafe { border::put_if(fail_idx, index) };
                return Err(code);
            }
        }
        Ok(())
    })
}

pub(crate) unsafe fn cuMemcpyBatchAsync(
    dsts: *mut CuDevicePtr,
    srcs: *mut CuDevicePtr,
    sizes: *mut usize,
    count: usize,
    _attrs: *mut CuMemcpyAttributes,
    _attrs_idxs: *mut usize,
    _count_attrs: usize,
    fail_idx: *mut usize,
    stream: CuStream,
) -> CuResult {
    // SAFETY: the caller's arrays.
    unsafe { batch(dsts, srcs, sizes, count, fail_idx, stream) }
}

pub(crate) unsafe fn cuMemcpyBatchAsync_v2(
    dsts: *mut CuDevicePtr,
    srcs: *mut CuDevicePtr,
    sizes: *mut usize,
    count: usize,
    _attrs: *mut CuMemcpyAttributes,
    _attrs_idxs: *mut usize,
    _count_attrs: usize,
    stream: CuStream,
) -> CuResult {
    // SAFETY: the caller's arrays.
    unsafe { batch(dsts, srcs, sizes, count, std::ptr::null_mut(), stream) }
}
