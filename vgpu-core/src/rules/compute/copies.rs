//! Rules: what is put into streams and is no launch: copies and fills (counted with their bytes), host
//! functions (counted), waits. None is charged: copies have engines of their own. Decides nothing.

use core::sync::atomic::Ordering;

use cuda_api::{CuMemcpy2D, CuMemcpy2DV1, CuMemcpy3D, CuMemcpy3DPeer, CuMemcpy3DV1, CuResult};

use super::interrupted;
use crate::figures::sizes;
use crate::guest::border::InPtr;
use crate::holdings::locate;
use crate::state::accounts::{Accounts, Destination, Group};
use crate::state::standing;

/// The number of bytes copied or filled: a number, or read from a structure of the program.
pub(crate) trait Extent {
    fn bytes(self) -> u64;
}

impl Extent for usize {
    fn bytes(self) -> u64 {
        sizes::size(self)
    }
}

impl Extent for u32 {
    fn bytes(self) -> u64 {
        u64::from(self)
    }
}

macro_rules! extents {
    ($($structure:ty: $($field:ident)*;)*) => {$(
        impl Extent for $structure {
            fn bytes(self) -> u64 {
                1_u64 $(.saturating_mul(self.$field as u64))*
            }
        }
    )*};
}
extents! {
    CuMemcpy2DV1: width_bytes height;
    CuMemcpy2D: width_bytes height;
    CuMemcpy3DV1: width_bytes height depth;
    CuMemcpy3D: width_bytes height depth;
    CuMemcpy3DPeer: width_bytes height depth;
}

/// The bytes of a fill of this many elements of a width.
pub(crate) fn elements(count: usize, width: usize) -> usize {
    count.saturating_mul(width)
}

/// The sizes of a batch, bytes.
fn batch(sizes: InPtr<usize>, count: usize) -> usize {
    if sizes.is_null() {
        return 0;
    }
    let size = |at: usize| sizes.at(at).read().unwrap_or(0);
    (0..count).fold(0_usize, |sum, at| sum.saturating_add(size(at)))
}

/// As [`after`]; a structure of the program says the bytes.
pub(crate) fn after_shape<E: Extent + Copy>(
    result: CuResult,
    shape: InPtr<E>,
    count: usize,
    stream: u64,
) {
    let bytes = shape.read().map_or(0, Extent::bytes);
    after(
        result,
        usize::try_from(bytes).unwrap_or(usize::MAX),
        count,
        stream,
    );
}

/// As [`after`], of a batch of `count` copies.
pub(crate) fn after_batch(result: CuResult, sizes: InPtr<usize>, count: usize, stream: u64) {
    after(result, batch(sizes, count), count, stream);
}

fn opened(result: CuResult) -> Option<Accounts> {
    if result != CuResult::SUCCESS {
        return None;
    }
    let accounts = standing::opened()?;
    accounts.count(Group::Launch);
    Some(accounts)
}

/// A copy or a fill went into the stream. Of some (`count` of them) the bytes are not known.
pub(crate) fn after(result: CuResult, extent: impl Extent, count: usize, stream: u64) {
    let Some(accounts) = opened(result) else {
        return;
    };
    interrupted(&accounts, stream);
    if let Destination::Device { device, .. } = locate::here(&accounts)
        && let Some(compute) = accounts.container.region.compute(device)
    {
        let own = compute.own();
        // Relaxed: counters.
        own.copies.fetch_add(sizes::size(count), Ordering::Relaxed);
        own.copy_bytes.fetch_add(extent.bytes(), Ordering::Relaxed);
    }
}

/// A host function went into the stream.
pub(crate) fn after_host_function(result: CuResult, stream: u64) {
    let Some(accounts) = opened(result) else {
        return;
    };
    interrupted(&accounts, stream);
    if let Destination::Device { device, .. } = locate::here(&accounts)
        && let Some(compute) = accounts.container.region.compute(device)
    {
        // Relaxed: a counter.
        compute.own().host_functions.fetch_add(1, Ordering::Relaxed);
    }
}

/// A wait for an event or a value went into the stream, or a batch with some.
pub(crate) fn after_wait(result: CuResult, stream: u64) {
    if let Some(accounts) = opened(result) {
        interrupted(&accounts, stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::border::test;

    #[test]
    fn an_extent_is_what_its_structure_says() {
        // SAFETY: plain numbers and pointers, for which all zeros is a value.
        let mut copy: CuMemcpy3D = unsafe { core::mem::zeroed() };
        copy.width_bytes = 100;
        copy.height = 20;
        copy.depth = 3;

        assert_eq!(copy.bytes(), 6_000);
        assert_eq!(elements(10, 4).bytes(), 40);
        assert_eq!(batch(test::input(&[1_usize, 2, 3]), 3), 6);
        assert_eq!(batch(test::null().as_in(), 3), 0);
    }
}
