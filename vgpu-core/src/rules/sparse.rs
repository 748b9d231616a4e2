//! Rules: memory that is mapped to parts of sparse arrays. The driver does that in stream order: each tile
//! of a part holds its memory from the call on, and until an event that the library recorded after the call that
//! unmapped it has completed.

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use cuda_api::{CuResult, CuStream};
use vgpu_abi::region::SharedKey;

use crate::base::log::line;
use crate::driver::query;
use crate::guest::border::OutPtr;
use crate::guest::manners::Verdict;
use crate::holdings::objects::Objects;
use crate::holdings::sparse_charges::{poll, put};
use crate::rules::virtual_memory;
use crate::state::accounts::Accounts;
use crate::state::entries::{Ending, SparsePart, key_of};
use crate::state::standing::{self, accounts};

/// `CUarrayMapInfo`: a part of a sparse array.
#[derive(Clone, Copy)]
#[repr(C)]
struct MapInfo {
    resource_kind: u32,
    resource: u64,
    part_kind: u32,
    /// Padding.
    _between: u32,
    /// Of a level: level, layer, offsets and extents. Of a mipmap's tail: layer, an unused word, offset and size in
    /// two words each.
    place: [u32; 8],
    operation: u32,
    handle_kind: u32,
    handle: u64,
    offset: u64,
    devices: u32,
    flags: u32,
    reserved: [u32; 2],
}

const PART_BYTES: usize = 96;

const _: () = assert!(size_of::<MapInfo>() == PART_BYTES);

/// `CU_MEM_OPERATION_TYPE_MAP` and `..._UNMAP`.
const MAP: u32 = 1;

const UNMAP: u32 = 2;

/// `CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL`.
const TAIL: u32 = 1;

/// `CU_RESOURCE_TYPE_MIPMAPPED_ARRAY`.
const MIPMAPPED: u32 = 1;

/// A part of more tiles is remembered as a whole: it stays charged until it is taken off as a whole.
const MOST_TILES: u64 = 1 << 20;

fn part(parts: OutPtr<c_void>, at: u32) -> Option<MapInfo> {
    parts.cast::<MapInfo>().at(at as usize).read()
}

/// The part of an array that is remembered under one name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ArrayPiece {
    /// Level, layer, and the tile's place.
    Tile([u32; 5]),
    /// Layer, and the offset in two halves.
    Tail([u32; 3]),
    /// A level as the call gives it.
    Whole([u32; 8]),
}

impl ArrayPiece {
    fn name(self, resource: u64) -> u64 {
        let (kind, place) = match self {
            Self::Tile([a, b, c, d, e]) => (0, [a, b, c, d, e, 0, 0, 0]),
            Self::Tail([a, b, c]) => (1, [a, b, c, 0, 0, 0, 0, 0]),
            Self::Whole(place) => (2, place),
        };
        let [a, b, c, d, e, f, g, h] = place;
        let words = [kind, a, b, c, d, e, f, g, h].map(u32::to_ne_bytes);
        let mut bytes = [0; 44];
        let (first, rest) = bytes.split_at_mut(8);
        first.copy_from_slice(&resource.to_ne_bytes());
        rest.copy_from_slice(words.as_flattened());
        let SharedKey([name, _]) = key_of(&bytes);
        name
    }
}

/// The pieces of a part, of an array whose tiles are so wide, high and deep; `None`: that is not known.
fn pieces(
    part_kind: u32,
    place: [u32; 8],
    tile: Option<[u32; 3]>,
    mut each: impl FnMut(ArrayPiece),
) {
    let [level, layer, x, y, z, width, height, depth] = place;
    if part_kind == TAIL {
        // The word between layer and offset is unused.
        return each(ArrayPiece::Tail([level, x, y]));
    }
    let tile = tile.filter(|sides| sides.iter().all(|side| *side != 0));
    let Some([wide, high, deep]) = tile else {
        return each(ArrayPiece::Whole(place));
    };
    // The tiles from the first one to the last one, which may be cut by the array's end.
    let span = |from: u32, length: u32, side: u32| {
        let end = u64::from(from) + u64::from(length.max(1));
        u64::from(from / side)..end.div_ceil(u64::from(side))
    };
    let (columns, rows, slices) = (
        span(x, width, wide),
        span(y, height, high),
        span(z, depth, deep),
    );
    let count = |range: &core::ops::Range<u64>| range.end - range.start;
    let tiles = count(&columns)
        .saturating_mul(count(&rows))
        .saturating_mul(count(&slices));
    if tiles > MOST_TILES {
        return each(ArrayPiece::Whole(place));
    }
    let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    for slice in slices {
        for row in rows.clone() {
            for column in columns.clone() {
                let [column, row, slice] = [column, row, slice].map(narrow);
                each(ArrayPiece::Tile([level, layer, column, row, slice]));
            }
        }
    }
}

impl MapInfo {
    fn each_name(&self, mut each: impl FnMut(u64)) {
        let is_mipmapped = self.resource_kind == MIPMAPPED;
        let tile = query::relaxed(|| query::sparse_tile(self.resource, is_mipmapped));
        pieces(self.part_kind, self.place, tile, |piece| {
            each(piece.name(self.resource));
        });
    }
}

/// Everything that is mapped is held before the driver is called. Memory that no hook saw made is not charged yet, and is
/// not mapped.
pub(crate) fn before_map(parts: OutPtr<c_void>, count: u32) -> Verdict<()> {
    let accounts = accounts!(Memory);
    poll(&accounts);
    for at in 0..count {
        let Some(part) = part(parts, at) else { break };
        if part.operation == MAP
            && Objects::lock(&accounts).of(part.handle).is_none()
            && virtual_memory::is_of_a_device(&accounts, part.handle)
        {
            line!(
                Error,
                "cuMemMapArrayAsync: refused, since nothing is known of the memory {:#x}",
                part.handle
            );
            return Verdict::Refuse(CuResult::INVALID_VALUE);
        }
    }
    let objects = Objects::lock(&accounts);
    for at in 0..count {
        let Some(part) = part(parts, at) else { break };
        if part.operation == MAP
            && let Some(memory) = objects.of(part.handle)
        {
            objects.hold(memory.number);
        }
    }
    Verdict::Call(())
}

pub(crate) fn after_map(
    (): (),
    result: CuResult,
    parts: OutPtr<c_void>,
    count: u32,
    stream: CuStream,
) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let map = &accounts.holdings().map;
    let mut endings = Endings::default();
    for at in 0..count {
        let Some(part) = part(parts, at) else { break };
        let memory = (part.operation == MAP)
            .then(|| Objects::lock(&accounts).of(part.handle))
            .flatten();
        if result == CuResult::SUCCESS && matches!(part.operation, MAP | UNMAP) {
            part.each_name(|name| {
                let before = match memory {
                    Some(memory) => {
                        Objects::lock(&accounts).hold(memory.number);
                        let mapped = SparsePart {
                            array: part.resource,
                            object: memory.number,
                        };
                        // Relaxed: only says that a look is worth while.
                        accounts
                            .holdings()
                            .sparse_parts
                            .fetch_add(1, Ordering::Relaxed);
                        map.put(name, mapped).0
                    }
                    None => map.take(name),
                };
                if let Some(before) = before {
                    // Relaxed: as above.
                    accounts
                        .holdings()
                        .sparse_parts
                        .fetch_sub(1, Ordering::Relaxed);
                    endings.add(&accounts, before.object, stream);
                }
            });
        }
        // Its pieces hold it now, or it was not mapped.
        if let Some(memory) = memory {
            Objects::lock(&accounts).drop_hold(memory.number);
        }
    }
    endings.flush(&accounts, stream);
}

/// Holds that end when the stream gets there: by object, how many.
#[derive(Default)]
struct Endings {
    of: [(u64, u32); 8],
    count: usize,
}

impl Endings {
    fn add(&mut self, accounts: &Accounts, number: u64, stream: CuStream) {
        let known = self.of.iter_mut().take(self.count);
        if let Some((_, holds)) = known.into_iter().find(|(known, _)| *known == number) {
            *holds = holds.saturating_add(1);
            return;
        }
        if self.count == self.of.len() {
            self.flush(accounts, stream);
        }
        if let Some(place) = self.of.get_mut(self.count) {
            *place = (number, 1);
            self.count += 1;
        }
    }

    fn flush(&mut self, accounts: &Accounts, stream: CuStream) {
        for &(number, holds) in self.of.iter().take(self.count) {
            end_behind(accounts, number, holds, stream);
        }
        self.count = 0;
    }
}

/// An event behind all that was given to the stream; 0: there is none, and nothing says when it ends.
fn behind(stream: CuStream) -> u64 {
    query::relaxed(|| {
        if !query::is_out_of_captures(stream as u64) {
            return 0;
        }
        let Some(event) = query::create_event() else {
            return 0;
        };
        if query::record_event(event, stream as u64) {
            return event;
        }
        query::destroy_event(event);
        0
    })
}

/// Holds end when the driver has done what the stream has been given.
fn end_behind(accounts: &Accounts, number: u64, holds: u32, stream: CuStream) {
    let event = behind(stream);
    if event == 0 {
        line!(
            Warn,
            "memory of a sparse array stays charged: nothing says when it is taken off"
        );
        return;
    }
    let ending = Ending {
        object: number,
        event,
        holds,
    };
    put(accounts, ending);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(place: [u32; 8], tile: Option<[u32; 3]>) -> Vec<ArrayPiece> {
        let mut found = Vec::new();
        pieces(0, place, tile, |piece| found.push(piece));
        found
    }

    #[test]
    fn a_part_is_its_tiles() {
        let found = all([1, 2, 128, 64, 0, 200, 64, 1], Some([128, 64, 1]));

        let tile = |column| ArrayPiece::Tile([1, 2, column, 1, 0]);
        assert_eq!(found, [tile(1), tile(2)]);
    }

    #[test]
    fn halves_of_a_part_are_the_tiles_of_the_whole() {
        let tile = Some([128, 128, 1]);
        let whole = all([0, 0, 0, 0, 0, 512, 512, 1], tile);
        let mut halves = all([0, 0, 0, 0, 0, 512, 256, 1], tile);
        halves.extend(all([0, 0, 0, 256, 0, 512, 256, 1], tile));

        assert_eq!(whole, halves);
    }

    #[test]
    fn a_part_without_known_tiles_or_with_too_many_is_whole() {
        let place = [0, 0, 0, 0, 0, u32::MAX, u32::MAX, u32::MAX];
        for tile in [None, Some([0, 1, 1]), Some([1, 1, 1])] {
            assert_eq!(all(place, tile), [ArrayPiece::Whole(place)], "{tile:?}");
        }
        let edge = [u32::MAX; 8];
        // From the tile 1 to the tile 3, in each direction.
        assert_eq!(all(edge, Some([1 << 31, 1 << 31, 1 << 31])).len(), 27);
    }

    #[test]
    fn bytes_between_the_fields_of_a_tail_are_ignored() {
        let tail = |noise| {
            let mut found = Vec::new();
            pieces(TAIL, [3, noise, 5, 0, 64, 0, 0, 0], None, |piece| {
                found.push(piece)
            });
            found
        };

        assert_eq!(tail(0), tail(7));
        assert_eq!(tail(0), [ArrayPiece::Tail([3, 5, 0])]);
    }
}
