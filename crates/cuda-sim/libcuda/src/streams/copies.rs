//! Copies: each end is checked against the table of blocks, as the device's page tables would; host addresses are
//! trusted.

use cuda_api::driver::*;

use crate::base::border::{Done, Number, invalid_if, number};
use crate::base::space::address;
use crate::memory::array;
use crate::memory::blocks;

/// An address in device memory.
pub(crate) fn device(at: impl Number, bytes: impl Number) -> Done<u64> {
    let (at, bytes) = (number(at), number(bytes));
    invalid_if(!(blocks::is_reachable(at, bytes)))?;
    Ok(at)
}

/// An address whose side the call does not give: known ones are checked.
pub(crate) fn either(at: impl Number, bytes: impl Number) -> Done<u64> {
    let (at, bytes) = (number(at), number(bytes));
    let known = blocks::find(at).is_some();
    invalid_if(at == 0 || known && !blocks::is_reachable(at, bytes))?;
    Ok(at)
}

pub(crate) fn host<T>(at: *const T) -> Done<u64> {
    invalid_if(at.is_null())?;
    Ok(at.expose_provenance() as u64)
}

/// The address of a stretch of a one-dimensional array.
pub(crate) fn within(array: CuArray, offset: impl Number, bytes: impl Number) -> Done<u64> {
    array::place(array, number(offset), number(bytes))
}

/// A copy of a box, from and to anything.
pub(crate) struct Box3 {
    src: Side,
    dst: Side,
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
}

/// One end of a copy.
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

/// The rows of one side.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    start: u64,
    pitch: u64,
    slice: u64,
}

impl Side {
    fn place(&self, width: u64, height: u64, depth: u64) -> Done<Rows> {
        let small = |at: u64| at < 1 << 40;
        let all = [self.x, self.y, self.z, self.pitch, self.rows];
        invalid_if(!all.into_iter().all(small))?;
        let (base, pitch, rows) = match self.kind {
            1 => (self.host, self.pitch, self.rows),
            2 | 4 => (self.device, self.pitch, self.rows),
            3 => array::layout(self.array)?,
            _ => return Err(CuResult::INVALID_VALUE),
        };
        // One row, one slice: the caller need not give the distance between rows.
        let pitch = if pitch == 0 { self.x + width } else { pitch };
        let rows = if rows == 0 { self.y + height } else { rows };
        invalid_if(
            pitch < self.x + width && height * depth > 1 || rows < self.y + height && depth > 1,
        )?;
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
        Ok(Rows {
            start,
            pitch,
            slice,
        })
    }
}

pub(crate) fn ends(copy: &Box3) -> Done<Option<(Rows, Rows)>> {
    let (width, height, depth) = (copy.width, copy.height, copy.depth);
    if width == 0 || height == 0 || depth == 0 {
        return Ok(None);
    }
    let mut sides = [width, height, depth].into_iter();
    invalid_if(sides.any(|side| side >= 1 << 40))?;
    let from = copy.src.place(width, height, depth)?;
    Ok(Some((from, copy.dst.place(width, height, depth)?)))
}

pub(crate) fn move_rows(from: Rows, to: Rows, width: u64, height: u64, depth: u64) {
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

/// Performs a copy of a graph, now.
///
/// # Errors
/// Its addresses are invalid.
pub(crate) fn perform_3d(copy: &CuMemcpy3D) -> Done {
    let copy = Box3::from(*copy);
    if let Some((from, to)) = ends(&copy)? {
        move_rows(from, to, copy.width, copy.height, copy.depth);
    }
    Ok(())
}

/// A description of CUDA's as a box; the fields of all its forms have the same names, those of a
/// two-dimensional one but for the third direction.
macro_rules! boxes {
    (@from $ty:ty, |$copy:ident| $z:expr, $rows:expr, $depth:expr) => {
        impl From<$ty> for Box3 {
            fn from($copy: $ty) -> Self {
                let ((src_z, dst_z), (src_rows, dst_rows)) = ($z, $rows);
                Self {
                    src: Side {
                        kind: $copy.src_memory_type,
                        host: $copy.src_host.expose_provenance() as u64,
                        device: number($copy.src_device),
                        array: $copy.src_array,
                        pitch: number($copy.src_pitch),
                        rows: src_rows,
                        x: number($copy.src_x_bytes),
                        y: number($copy.src_y),
                        z: src_z,
                    },
                    dst: Side {
                        kind: $copy.dst_memory_type,
                        host: $copy.dst_host.expose_provenance() as u64,
                        device: number($copy.dst_device),
                        array: $copy.dst_array,
                        pitch: number($copy.dst_pitch),
                        rows: dst_rows,
                        x: number($copy.dst_x_bytes),
                        y: number($copy.dst_y),
                        z: dst_z,
                    },
                    width: number($copy.width_bytes),
                    height: number($copy.height),
                    depth: $depth,
                }
            }
        }
    };
    (flat: $($flat:ty),*; deep: $($deep:ty),*;) => {
        $(boxes! { @from $flat, |copy| (0, 0), (0, 0), 1 })*
        $(boxes! { @from $deep, |copy| (number(copy.src_z), number(copy.dst_z)),
            (number(copy.src_height), number(copy.dst_height)), number(copy.depth) })*
    };
}

boxes! {
    flat: CuMemcpy2DV1, CuMemcpy2D;
    deep: CuMemcpy3DV1, CuMemcpy3D, CuMemcpy3DPeer;
}
