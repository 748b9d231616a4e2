//! Rules: memory that is mapped to parts of sparse arrays. The driver does that in stream order: a part
//! holds its memory from the call on, and until an event of ours behind the call that took it off has
//! come to pass.

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use cuda_api::{CuResult, CuStream};
use vgpu_abi::region::SharedKey;

use crate::books::{self, Books, books};
use crate::border;
use crate::guest::Verdict;
use crate::log::line;
use crate::map::{Entry, Space};
use crate::memory::key_of;
use crate::objects::Objects;
use crate::query;

/// One tile of a sparse array (`CUarrayMapInfo`), as far as it is read here.
#[derive(Clone, Copy)]
#[repr(C)]
struct Tile {
    resource_kind: u32,
    resource: u64,
    part: [u64; 5],
    operation: u32,
    handle_kind: u32,
    handle: u64,
    rest: [u64; 3],
}

const TILE_BYTES: usize = 96;
const _: () = assert!(size_of::<Tile>() == TILE_BYTES);
/// `CU_MEM_OPERATION_TYPE_MAP` and `..._UNMAP`.
const MAP: u32 = 1;
const UNMAP: u32 = 2;

fn tile(tiles: *mut c_void, at: u32) -> Option<Tile> {
    if tiles.is_null() {
        return None;
    }
    border::read(tiles.cast::<Tile>().wrapping_add(at as usize))
}

impl Tile {
    fn name(&self) -> u64 {
        let [a, b, c, d, e] = self.part;
        let place = [self.resource, a, b, c, d, e].map(u64::to_ne_bytes);
        let SharedKey([name, _]) = key_of(place.as_flattened());
        name
    }
}

/// Everything that is mapped is held before the driver is called.
pub(crate) fn before_map(tiles: *mut c_void, count: u32) -> Verdict<()> {
    let books = books!(Memory);
    poll(&books);
    let objects = Objects::lock(&books);
    for at in 0..count {
        let Some(tile) = tile(tiles, at) else { break };
        if tile.operation == MAP
            && let Some(memory) = objects.of(tile.handle)
        {
            objects.hold(memory.number);
        }
    }
    Verdict::Call(())
}

pub(crate) fn after_map(
    (): (),
    result: CuResult,
    tiles: *mut c_void,
    count: u32,
    stream: CuStream,
) {
    let Some(books) = books::opened() else { return };
    let map = &books.ledger().map;
    for at in 0..count {
        let Some(tile) = tile(tiles, at) else { break };
        let memory = (tile.operation == MAP)
            .then(|| Objects::lock(&books).of(tile.handle))
            .flatten();
        if result != CuResult::SUCCESS {
            if let Some(memory) = memory {
                Objects::lock(&books).drop_hold(memory.number);
            }
            continue;
        }
        let name = tile.name();
        let before = match memory {
            Some(memory) => {
                let entry = Entry {
                    owner: memory.number,
                    ..Entry::default()
                };
                map.put(Space::Sparse, name, entry).0
            }
            None if matches!(tile.operation, MAP | UNMAP) => map.take(Space::Sparse, name),
            None => None,
        };
        if let Some(before) = before {
            end_behind(&books, before.owner, stream);
        }
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

/// A hold ends when the driver has done what the stream has been given.
fn end_behind(books: &Books, number: u64, stream: CuStream) {
    let event = behind(stream);
    if event == 0 {
        line!(
            Warn,
            "memory of a sparse array stays charged: nothing says when it is taken off"
        );
        return;
    }
    put(books, number, event);
}

fn put(books: &Books, number: u64, event: u64) {
    let ledger = books.ledger();
    let entry = Entry {
        bytes: number,
        ..Entry::default()
    };
    // Relaxed: only says that a look is worth while.
    ledger.endings.fetch_add(1, Ordering::Relaxed);
    // An event's own number: no other hold waits for it.
    ledger.map.put(
        Space::Ending,
        event,
        Entry {
            owner: event,
            ..entry
        },
    );
}

/// Ends the holds whose time has come. True: there were any.
pub(crate) fn poll(books: &Books) -> bool {
    const AT_ONCE: usize = 128;
    let ledger = books.ledger();
    // Relaxed: only says that a look is worth while.
    if ledger.endings.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let mut waiting = [(0u64, 0u64); AT_ONCE];
    let mut count = 0;
    ledger
        .map
        .sweep(|space, entry| match waiting.get_mut(count) {
            Some(place) if space == Space::Ending => {
                *place = (entry.owner, entry.bytes);
                count += 1;
                true
            }
            _ => false,
        });
    let mut ended = false;
    for &(event, number) in waiting.iter().take(count) {
        // Relaxed: as above.
        ledger.endings.fetch_sub(1, Ordering::Relaxed);
        if query::relaxed(|| query::event_is_done(event)) == Some(false) {
            put(books, number, event);
            continue;
        }
        query::destroy_event(event);
        Objects::lock(books).drop_hold(number);
        ended = true;
    }
    ended
}
