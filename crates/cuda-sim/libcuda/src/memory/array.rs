//! Arrays and mipmaps: memory with a shape, in rows of 512 bytes' multiples, that ends with its context.

use std::sync::Arc;

use cuda_api::driver::*;

use crate::base::border::{Done, Number, handle, invalid_if, is_within, number};
use crate::base::table::Table;
use crate::memory::blocks::{self, PITCH};
use crate::memory::context::{self, Context};

/// An array, or a level of a mipmapped one.
#[derive(Debug)]
pub(crate) struct Array {
    pub(crate) desc: Shape,
    /// First byte of its first row.
    pub(crate) base: u64,
    pub(crate) context: &'static Context,
    /// A level belongs to its mipmap.
    pub(crate) is_level: bool,
}

#[derive(Debug)]
pub(crate) struct Mipmap {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    context: &'static Context,
    pub(crate) levels: Vec<usize>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shape {
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
    pub(crate) format: u32,
    pub(crate) channels: u32,
    pub(crate) flags: u32,
}

/// CUDA's descriptions and shapes, each from the other. A flat description has no third direction and no flags.
macro_rules! descriptions {
    ($($ty:ident $(, $depth:ident, $flags:ident)?;)*) => {$(
        #[allow(clippy::needless_update, reason = "the flat descriptions lack two fields")]
        impl From<$ty> for Shape {
            fn from(of: $ty) -> Self {
                Self {
                    width: number(of.width),
                    height: number(of.height),
                    format: of.format,
                    channels: of.num_channels,
                    $($depth: number(of.$depth), $flags: of.$flags,)?
                    ..Self::default()
                }
            }
        }

        impl From<Shape> for $ty {
            fn from(shape: Shape) -> Self {
                Self {
                    width: Number::of(shape.width),
                    height: Number::of(shape.height),
                    format: shape.format,
                    num_channels: shape.channels,
                    $($depth: Number::of(shape.$depth), $flags: shape.$flags,)?
                }
            }
        }
    )*};
}

descriptions! {
    CuArrayDescriptorV1;
    CuArrayDescriptor;
    CuArray3DDescriptorV1, depth, flags;
    CuArray3DDescriptor, depth, flags;
}

pub(crate) static ARRAYS: Table<Array> = Table::new(CuResult::INVALID_HANDLE);
pub(crate) static MIPMAPS: Table<Mipmap> = Table::new(CuResult::INVALID_HANDLE);

const LAYERED: u32 = 1;
const CUBEMAP: u32 = 4;

/// Sparse, and mapped later: made without memory, which `cuMemMapArrayAsync` brings.
const WITHOUT_MEMORY: u32 = SPARSE | DEFERRED;
const SPARSE: u32 = 0x40;
pub(crate) const DEFERRED: u32 = 0x80;
const KNOWN_FLAGS: u32 = 0xff;

impl Shape {
    pub(crate) fn checked(self) -> Done<Self> {
        let sides = [self.width, self.height, self.depth];
        let is_cube = self.flags & CUBEMAP != 0;
        let bad_cube = is_cube
            && (self.width != self.height || !self.depth.is_multiple_of(6) || self.depth == 0);
        invalid_if(
            self.width == 0
                || sides.iter().any(|side| *side > 1 << 31)
                || !(matches!(self.channels, 1 | 2 | 4)
                    || self.channels == 3 && picture_bytes(self.format).is_some())
                || self.two_elements().is_none()
                || self.flags & !KNOWN_FLAGS != 0
                || bad_cube
                || (self.flags & LAYERED != 0 && self.depth == 0),
        )?;
        Ok(self)
    }

    /// Bytes of two elements: in a picture with fewer colours than points, one element is not a whole number of
    /// bytes.
    fn two_elements(&self) -> Option<u64> {
        let channel = match self.format {
            // Integers of 8 bits, normalised ones too.
            0x01 | 0x08 | 0xc0..=0xc2 | 0xc6..=0xc8 => 1,
            0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => 2,
            0x03 | 0x0a | 0x20 => 4,
            // Compressed blocks: a byte for each texel, or near enough.
            0x91..=0x9e => 1,
            picture => return picture_bytes(picture),
        };
        Some(2 * channel * u64::from(self.channels))
    }

    fn pitch(&self) -> u64 {
        let two = self.two_elements().unwrap_or(2);
        (self.width * two).div_ceil(2).next_multiple_of(PITCH)
    }

    /// The device memory that it takes when it is created.
    pub(crate) fn taken(&self, bytes: u64) -> u64 {
        if self.flags & WITHOUT_MEMORY != 0 {
            0
        } else {
            blocks::rounded(bytes)
        }
    }

    pub(crate) fn bytes(&self) -> Done<u64> {
        self.pitch()
            .checked_mul(self.height.max(1))
            .and_then(|slice| slice.checked_mul(self.depth.max(1)))
            .ok_or(CuResult::OUT_OF_MEMORY)
    }

    /// A level of a mipmap: each side halved that often.
    pub(crate) fn level(&self, level: u32) -> Self {
        let half = |side: u64| if side == 0 { 0 } else { (side >> level).max(1) };
        let layers = self.flags & (LAYERED | CUBEMAP) != 0;
        Self {
            width: half(self.width),
            height: half(self.height),
            depth: if layers { self.depth } else { half(self.depth) },
            ..*self
        }
    }
}

/// Bytes of two points of a picture, in the formats that keep brightness and colour apart.
fn picture_bytes(format: u32) -> Option<u64> {
    Some(match format {
        // A colour for four points: NV12; P010 and P016 with 16 bits.
        0xb0 => 3,
        0x9f | 0xa1 => 6,
        // A colour for two points: NV16, YUY2; P210, P216, Y210, Y216 with 16 bits.
        0xa2 | 0xa5 => 4,
        0xa3 | 0xa4 | 0xa6 | 0xa7 => 8,
        // A colour for each point: planes of 8 and 16 bits, then packed, some with a fourth channel.
        0xb2 | 0xb4 => 6,
        0xb3 | 0xb5 => 12,
        0xa8 | 0xa9 | 0x50 => 8,
        0xb1 => 16,
        _ => return None,
    })
}

pub(crate) fn find(handle: CuArray) -> Done<Arc<Array>> {
    ARRAYS.find(handle.addr())
}

/// First byte, bytes between rows, rows of a slice.
///
/// # Errors
/// When the handle is none.
pub(crate) fn layout(handle: CuArray) -> Done<(u64, u64, u64)> {
    let array = find(handle)?;
    Ok((array.base, array.desc.pitch(), array.desc.height.max(1)))
}

/// Address of a stretch of a one-dimensional array.
///
/// # Errors
/// When the handle is none, or the stretch is not inside.
pub(crate) fn place(handle: CuArray, offset: u64, bytes: u64) -> Done<u64> {
    let array = find(handle)?;
    let whole = array.desc.bytes().unwrap_or(0);
    invalid_if(!is_within(offset, bytes, whole))?;
    Ok(array.base + offset)
}

pub(crate) fn keep(array: Array) -> CuArray {
    handle(ARRAYS.insert(Arc::new(array)))
}

/// A context ends: its arrays end with it (their memory is a block of the context's).
pub(crate) fn context_gone(context: &'static Context) {
    ARRAYS.take(|array| std::ptr::eq(array.context, context));
    MIPMAPS.take(|mipmap| std::ptr::eq(mipmap.context, context));
}

pub(crate) fn sparse_properties(shape: &Shape) -> Done<CuArraySparseProperties> {
    invalid_if(shape.flags & SPARSE == 0)?;
    // Tiles of 64 KiB, of the form that elements of their size have on a GPU.
    let element = shape.two_elements().unwrap_or(2).div_ceil(2).max(1);
    let side = (TILE_BYTES / element).isqrt().next_power_of_two() as u32;
    Ok(CuArraySparseProperties {
        tile_width: side,
        tile_height: (TILE_BYTES / element) as u32 / side.max(1),
        tile_depth: 1,
        miptail_first_level: u32::MAX,
        miptail_size: 0,
        flags: 0,
        reserved: [0; 4],
    })
}

/// How wide, high and deep the tiles of a sparse array or mipmap are; one that gets its memory in whole has none.
pub(crate) fn tile(handle: usize) -> Option<[u32; 3]> {
    let told = sparse_properties(&first(handle)?.desc).ok()?;
    Some([told.tile_width, told.tile_height, told.tile_depth])
}

/// An array, or the first level of a mipmap.
fn first(handle: usize) -> Option<Arc<Array>> {
    let levels = MIPMAPS
        .get(handle)
        .map(|mipmap| mipmap.levels.first().copied());
    ARRAYS.get(levels.flatten().unwrap_or(handle))
}

/// Whether an array or a mipmap was made without memory.
pub(crate) fn waits_for_memory(handle: usize) -> bool {
    first(handle).is_some_and(|array| array.desc.flags & WITHOUT_MEMORY != 0)
}

// --- mipmaps ----------------------------------------------------------------------------------------

pub(crate) fn keep_mipmap(
    base: u64,
    bytes: u64,
    context: &'static Context,
    shape: Shape,
    levels: u32,
) -> CuMipmappedArray {
    let mut at = base;
    let keep_level = |level| {
        let desc = shape.level(level);
        let base = at;
        at += desc.bytes().unwrap_or(0);
        keep(Array {
            desc,
            base,
            context,
            is_level: true,
        })
        .addr()
    };
    let levels = (0..levels).map(keep_level).collect();
    handle(MIPMAPS.insert(Arc::new(Mipmap {
        base,
        bytes,
        context,
        levels,
    })))
}

/// A mipmap over memory that something else owns.
///
/// # Errors
/// When the shape is none.
pub(crate) fn mipmap_over(
    base: u64,
    desc: &CuArray3DDescriptor,
    levels: u32,
) -> Done<CuMipmappedArray> {
    let context = context::current()?.home();
    let shape = Shape::from(*desc).checked()?;
    Ok(keep_mipmap(base, 0, context, shape, levels.max(1)))
}

/// Whether a number is a mipmap's handle.
pub(crate) fn is_mipmap(handle: usize) -> bool {
    MIPMAPS.get(handle).is_some()
}

/// The unit in which memory is mapped.
pub(crate) const TILE_BYTES: u64 = 64 << 10;
