//! The memory that arrays take: their shapes, and the bytes of a texel by its format. Calls nothing.

use cuda_api::{
    CuArray3DDescriptor, CuArray3DDescriptorV1, CuArrayDescriptor, CuArrayDescriptorV1,
};

use crate::figures::sizes::{row, size, taken};

/// An array's shape, of whichever version of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    width: u64,
    height: u64,
    depth: u64,
    format: u32,
    channels: u32,
    flags: u32,
}

/// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`: memory comes later, as mapped memory.
const COMES_LATER: u32 = 0x40 | 0x80;

/// `CUDA_ARRAY3D_LAYERED` and `CUDA_ARRAY3D_CUBEMAP`: depth counts layers, which every level has.
const LAYERS: u32 = 0x01 | 0x04;

/// A plane of a format: bytes for each texel, and how often its width and height are halved.
type Plane = (u64, u32, u32);

/// The sizes of the formats of images (`CU_AD_FORMAT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// This many bytes for each channel.
    Channels(u64),
    /// Planes, however many channels are named.
    Planes(&'static [Plane]),
}

fn format(number: u32) -> Format {
    use Format::{Channels, Planes};
    match number {
        // Integers and normalised integers of 8 bits; compressed blocks, which take a byte for each
        // texel or less.
        0x01 | 0x08 | 0xc0..=0xc2 | 0xc6..=0xc8 | 0x91..=0x9e => Channels(1),
        // Of 16 bits.
        0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => Channels(2),
        // 4:2:0 of 8 bits in two planes (NV12) and of 16 (P010, P016).
        0xb0 | 0x53 => Planes(&[(1, 0, 0), (2, 1, 1)]),
        0x9f | 0xa1 | 0x54 => Planes(&[(2, 0, 0), (4, 1, 1)]),
        // 4:2:2 of 8 bits in two planes (NV16) and of 16 (P210, P216).
        0xa2 | 0x55 => Planes(&[(1, 0, 0), (2, 1, 0)]),
        0xa3 | 0xa4 | 0x56 => Planes(&[(2, 0, 0), (4, 1, 0)]),
        // 4:2:2 in one plane, of 8 bits (YUYV) and of 16 (Y210, Y216).
        0xa5 | 0x51 => Planes(&[(2, 0, 0)]),
        0xa6 | 0xa7 => Planes(&[(4, 0, 0)]),
        // 4:4:4 in one plane (AYUV, Y410, 10 10 10 2; Y416).
        0xa8 | 0xa9 | 0x50 | 0x52 => Planes(&[(4, 0, 0)]),
        0xb1 => Planes(&[(8, 0, 0)]),
        // 4:4:4 in three planes, of 8 bits and of 10 to 16.
        0xb2 | 0x5d => Planes(&[(1, 0, 0), (1, 0, 0), (1, 0, 0)]),
        0xb3 | 0x5e => Planes(&[(2, 0, 0), (2, 0, 0), (2, 0, 0)]),
        // 4:4:4 in two planes.
        0xb4 | 0x57 => Planes(&[(1, 0, 0), (2, 0, 0)]),
        0xb5 | 0x58 => Planes(&[(2, 0, 0), (4, 0, 0)]),
        // 4:2:0 and 4:2:2 in three planes.
        0x59 => Planes(&[(1, 0, 0), (1, 1, 1), (1, 1, 1)]),
        0x5a => Planes(&[(2, 0, 0), (2, 1, 1), (2, 1, 1)]),
        0x5b => Planes(&[(1, 0, 0), (1, 1, 0), (1, 1, 0)]),
        0x5c => Planes(&[(2, 0, 0), (2, 1, 0), (2, 1, 0)]),
        // Integers and floats of 32 bits, and what a later driver has: nothing known takes more.
        _ => Channels(4),
    }
}

/// Is the figure of the table the driver's own to the byte?
fn is_exact(number: u32) -> bool {
    matches!(number, 0x01..=0x03 | 0x08..=0x0a | 0x10 | 0x20)
}

pub(crate) trait Described: Copy {
    fn shape(self) -> Shape;
}

impl Described for CuArrayDescriptorV1 {
    fn shape(self) -> Shape {
        Shape {
            width: self.width.into(),
            height: self.height.into(),
            depth: 0,
            format: self.format,
            channels: self.num_channels,
            flags: 0,
        }
    }
}

impl Described for CuArrayDescriptor {
    fn shape(self) -> Shape {
        Shape {
            width: size(self.width),
            height: size(self.height),
            depth: 0,
            format: self.format,
            channels: self.num_channels,
            flags: 0,
        }
    }
}

impl Described for CuArray3DDescriptorV1 {
    fn shape(self) -> Shape {
        Shape {
            width: self.width.into(),
            height: self.height.into(),
            depth: self.depth.into(),
            format: self.format,
            channels: self.num_channels,
            flags: self.flags,
        }
    }
}

impl Described for CuArray3DDescriptor {
    fn shape(self) -> Shape {
        Shape {
            width: size(self.width),
            height: size(self.height),
            depth: size(self.depth),
            format: self.format,
            channels: self.num_channels,
            flags: self.flags,
        }
    }
}

impl Shape {
    /// Is the figure of the table the driver's own to the byte?
    pub(crate) fn is_exact(&self) -> bool {
        is_exact(self.format)
    }

    /// Rows of 512-byte steps, by height and depth, of all levels; 0 where memory comes later.
    pub(crate) fn bytes(&self, levels: u32) -> u64 {
        if self.flags & COMES_LATER != 0 || self.width == 0 {
            return 0;
        }
        let longest = self.width.max(self.height).max(self.depth);
        let levels = levels.clamp(1, longest.ilog2() + 1);
        let sum = (0..levels).fold(0u64, |sum, level| {
            sum.saturating_add(self.level_bytes(level))
        });
        taken(sum)
    }

    /// The least that it takes: its texels, where their size is known.
    pub(crate) fn least_bytes(&self) -> u64 {
        if !is_exact(self.format) || self.flags & COMES_LATER != 0 {
            return 0;
        }
        let Format::Channels(texel) = format(self.format) else {
            return 0;
        };
        [self.height.max(1), self.depth.max(1)].iter().fold(
            self.width.saturating_mul(texel * u64::from(self.channels)),
            |sum, &side| sum.saturating_mul(side),
        )
    }

    /// Each level has half the sides of the one before.
    fn level_bytes(&self, level: u32) -> u64 {
        let half = |side: u64| (side >> level).max(1);
        let depth = if self.flags & LAYERS != 0 {
            self.depth.max(1)
        } else {
            half(self.depth)
        };
        let plane = |texel: u64, narrower: u32, lower: u32| {
            let halved = |side: u64, times: u32| side.div_ceil(1 << times).max(1);
            row(halved(half(self.width), narrower).saturating_mul(texel))
                .saturating_mul(halved(half(self.height), lower))
                .saturating_mul(depth)
        };
        match format(self.format) {
            Format::Channels(bytes) => plane(bytes * u64::from(self.channels), 0, 0),
            Format::Planes(planes) => planes.iter().fold(0, |sum: u64, &(texel, w, h)| {
                sum.saturating_add(plane(texel, w, h))
            }),
        }
    }
}

/// The bytes that an array of this description takes.
pub(crate) fn bytes_of(description: CuArray3DDescriptor) -> u64 {
    description.shape().bytes(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_charged_by_its_rows() {
        let shape = Shape {
            width: 100,
            height: 10,
            depth: 0,
            format: 0x20,
            channels: 1,
            flags: 0,
        };

        assert_eq!(shape.bytes(1), 512 * 10);
        assert_eq!(
            Shape { depth: 4, ..shape }.bytes(2),
            512 * 10 * 4 + 512 * 5 * 2
        );
        assert_eq!(
            Shape {
                depth: 4,
                flags: 1,
                ..shape
            }
            .bytes(2),
            512 * 10 * 4 + 512 * 5 * 4
        );
        assert_eq!(shape.bytes(99), 512 * (10 + 5 + 2 + 1 + 1 + 1 + 1));
        assert_eq!(
            Shape {
                flags: 0x40,
                ..shape
            }
            .bytes(1),
            0
        );
        assert_eq!(
            Shape {
                width: u64::MAX,
                ..shape
            }
            .bytes(9),
            u64::MAX
        );
    }

    #[test]
    fn an_array_takes_its_texels_at_least() {
        let shape = Shape {
            width: 100,
            height: 10,
            depth: 0,
            format: 0x20,
            channels: 2,
            flags: 0,
        };
        assert_eq!(shape.least_bytes(), 100 * 10 * 8);
        assert_eq!(Shape { depth: 3, ..shape }.least_bytes(), 100 * 30 * 8);
        // Blocks that are compressed; planes; memory that comes later.
        for (format, flags) in [(0x9d, 0), (0xb0, 0), (0x20, 0x40)] {
            let shape = Shape {
                format,
                flags,
                ..shape
            };
            assert_eq!(shape.least_bytes(), 0, "{format:#x} {flags:#x}");
        }
        let largest = Shape {
            width: u64::MAX,
            channels: u32::MAX,
            ..shape
        };
        assert_eq!(largest.least_bytes(), u64::MAX);
    }

    fn of(format: u32, channels: u32) -> u64 {
        let shape = Shape {
            width: 1024,
            height: 100,
            depth: 0,
            format,
            channels,
            flags: 0,
        };
        // Tenths of bytes for each texel.
        shape.level_bytes(0) * 10 / 1024 / 100
    }

    #[test]
    fn a_format_is_charged_by_its_planes() {
        for (name, number, channels, tenths) in [
            ("UNSIGNED_INT8", 0x01, 4, 40),
            ("HALF", 0x10, 2, 40),
            ("FLOAT", 0x20, 1, 40),
            ("NV12", 0xb0, 3, 15),
            ("P010", 0x9f, 3, 30),
            ("P016", 0xa1, 3, 30),
            ("NV16", 0xa2, 3, 20),
            ("P210", 0xa3, 3, 40),
            ("P216", 0xa4, 3, 40),
            ("YUYV_422", 0xa5, 3, 20),
            ("Y210", 0xa6, 3, 40),
            ("Y216", 0xa7, 3, 40),
            ("AYUV", 0xa8, 4, 40),
            ("Y410", 0xa9, 4, 40),
            ("Y416", 0xb1, 4, 80),
            ("YUV444_PLANAR8", 0xb2, 3, 30),
            ("YUV444_PLANAR10", 0xb3, 3, 60),
            ("UNORM_INT_101010_2", 0x50, 4, 40),
            ("UNORM_INT8X4", 0xc2, 4, 40),
            ("UNORM_INT16X1", 0xc3, 1, 20),
            ("UNORM_INT16X4", 0xc5, 4, 80),
            ("SNORM_INT8X4", 0xc8, 4, 40),
            ("SNORM_INT16X4", 0xcb, 4, 80),
            ("BC7_UNORM", 0x9d, 4, 40),
            ("of a later driver", 0x7777, 4, 160),
        ] {
            assert_eq!(of(number, channels), tenths, "{name}");
        }
    }

    #[test]
    fn odd_sides_and_the_largest_numbers_are_not_cut() {
        let shape = Shape {
            width: 3,
            height: 3,
            depth: 0,
            format: 0xb0,
            channels: 3,
            flags: 0,
        };
        assert_eq!(shape.level_bytes(0), 512 * 3 + 512 * 2);
        let largest = Shape {
            width: u64::MAX,
            height: u64::MAX,
            depth: u64::MAX,
            channels: u32::MAX,
            ..shape
        };
        assert_eq!(largest.bytes(u32::MAX), u64::MAX);
    }
}
