//! Memory of arrays that are created without any: physical memory that `cuMemMapArrayAsync` maps under a part of one
//! and unmaps again, in stream order. Mapped memory lives for as long as it is mapped. The array's contents are in
//! separate pages: copies do not use this memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::base::border::{Done, invalid_if, lock};
use crate::memory::array::{self, TILE_BYTES};
use crate::memory::context::Context;
use crate::memory::physical::Physical;

/// `CUarrayMapInfo`, word by word.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct MapInfo {
    resource_kind: u32,
    _pad: u32,
    resource: usize,
    part_kind: u32,
    _pad2: u32,
    /// A level, a layer, an offset and an extent; or a layer, an offset and a size of the mipmap's tail.
    part: [u32; 8],
    pub(crate) operation: u32,
    handle_kind: u32,
    pub(crate) handle: u64,
    offset: u64,
    devices: u32,
    flags: u32,
    reserved: [u32; 2],
}

const _: () = assert!(size_of::<MapInfo>() == 96);

/// A tile of an array, or its tail: the array, whether it is the tail, and which tile it is, or where the tail begins.
type Part = (usize, bool, [u32; 5]);

pub(crate) struct Under {
    pub(crate) _memory: Arc<Physical>,
    pub(crate) context: &'static Context,
}

static MAPPED: Mutex<BTreeMap<Part, Under>> = Mutex::new(BTreeMap::new());

/// Maps memory under a part, or removes what is there; returns what was there before.
pub(crate) fn map(part: Part, under: Option<Under>) -> Option<Under> {
    let mut mapped = lock(&MAPPED);
    match under {
        Some(under) => mapped.insert(part, under),
        None => mapped.remove(&part),
    }
}

/// Removes the mappings for which `gone` is true. A mapping may be the last reference to its memory, which is dropped
/// after all locks are released.
fn take_out(gone: impl Fn(&Part, &Under) -> bool) {
    let out: Vec<_> = lock(&MAPPED)
        .extract_if(.., |part, under| gone(part, under))
        .collect();
    drop(out);
}

/// Called at the end of an array: removes its mappings.
pub(crate) fn forget(resource: usize) {
    take_out(|part, _| part.0 == resource);
}

/// A context is gone, and its arrays with it.
pub(crate) fn context_gone(context: &'static Context) {
    take_out(|_, under| std::ptr::eq(under.context, context));
}

impl MapInfo {
    pub(crate) fn parts(&self) -> Vec<Part> {
        let [level, layer, x, y, z, width, height, depth] = self.part;
        if self.part_kind == 1 {
            // Nothing is between layer and offset.
            return vec![(self.resource, true, [level, 0, x, y, z])];
        }
        let Some([wide, high, deep]) = array::tile(self.resource) else {
            return vec![(self.resource, false, [level, layer, 0, 0, 0])];
        };
        let span = |from: u32, length: u32, side: u32| {
            from / side..from.saturating_add(length.max(1)).div_ceil(side)
        };
        let mut parts = Vec::new();
        for slice in span(z, depth, deep) {
            for row in span(y, height, high) {
                let columns = span(x, width, wide);
                parts.extend(
                    columns.map(|it| (self.resource, false, [level, layer, it, row, slice])),
                );
            }
        }
        parts
    }

    pub(crate) fn checked(&self) -> Done {
        const GENERIC: u32 = 0;
        let whole = self.offset.is_multiple_of(TILE_BYTES);
        invalid_if(self.resource_kind > 1 || self.part_kind > 1 || !whole || self.flags != 0)?;
        // No array is larger on any side, nor has as many tiles.
        let [.., width, height, depth] = self.part;
        let texels = u64::from(width.max(1)) * u64::from(height.max(1));
        let is_too_large =
            self.part_kind == 0 && texels.saturating_mul(depth.max(1).into()) > 1 << 32;
        invalid_if(
            is_too_large || self.handle_kind != GENERIC || !array::waits_for_memory(self.resource),
        )
    }
}
