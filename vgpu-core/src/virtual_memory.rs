//! Rules: memory that is made, mapped, exported and bound apart. It lives as long as a handle, a
//! mapping or a binding holds it, and is charged that long, to the device that it was asked for on.

use core::ffi::{c_int, c_void};

use cuda_api::{CuDevice, CuDevicePtr, CuMemAllocationHandle, CuMemAllocationProp, CuResult};
use vgpu_abi::region::{Charge, Kind, SharedKey};

use crate::books::{self, Books, Place, STEP, books, mapped, size};
use crate::border;
use crate::guest::Verdict;
use crate::log::line;
use crate::map::{Entry, Space, Then};
use crate::memory::{key_of, what};
use crate::query;

/// Memory of somebody else: never charged here.
const FOREIGN: u8 = 8;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR` and `CU_MEM_HANDLE_TYPE_FABRIC`.
const FILE_DESCRIPTOR: u32 = 1;
const FABRIC: u32 = 8;

pub(crate) fn before_create(
    call: &str,
    bytes: usize,
    properties: *const CuMemAllocationProp,
) -> Verdict<Charge> {
    let books = books!(Memory);
    let Some(properties) = border::read(properties) else {
        return Verdict::Pass;
    };
    if bytes == 0 || properties.location.kind != query::DEVICE {
        return Verdict::Pass;
    }
    match books.of_ordinal(properties.location.id) {
        Place::Device { device, .. } => match books.reserve(call, device, mapped(size(bytes))) {
            Ok(charge) => Verdict::Call(charge),
            Err(result) => Verdict::Refuse(result),
        },
        Place::Elsewhere => Verdict::Pass,
        // A device that is not there is the driver's to answer for.
        Place::Denied if query::device_uuids(properties.location.id).is_none() => Verdict::Pass,
        Place::Denied => Verdict::Refuse(CuResult::INVALID_DEVICE),
    }
}

pub(crate) fn after_create(charge: Charge, result: CuResult, out: *mut CuMemAllocationHandle) {
    let Some(books) = books::opened() else { return };
    let Some(handle) = border::read(out).filter(|_| result == CuResult::SUCCESS) else {
        return books.refund(charge);
    };
    books.confirm(charge, Kind::Buffer);
    let entry = Entry {
        bytes: charge.bytes(),
        device: u8::try_from(charge.device()).unwrap_or(u8::MAX),
        handles: 1,
        ..Entry::default()
    };
    books.ledger().map.put(Space::Handle, handle.0, entry);
}

/// Nothing holds it any more: the driver has freed it.
fn let_go(books: &Books, handle: u64, entry: &Entry) {
    match entry.what {
        what::SHARED => {
            let Some(key) = books.ledger().map.take(Space::HandleKey, handle) else {
                return;
            };
            if let Err(error) = books
                .container
                .region
                .unhold(SharedKey([key.bytes, key.owner]))
            {
                line!(Warn, "a shared object stays charged: {error}");
            }
        }
        FOREIGN => {}
        _ => {
            books
                .container
                .region
                .release(usize::from(entry.device), entry.bytes, Kind::Buffer);
        }
    }
}

/// A reference about to go, with the entry if it is the last.
#[derive(Clone, Copy)]
pub(crate) struct Releasing {
    handle: u64,
    last: Option<Entry>,
}

/// The reference is taken off before the call: after it another thread may be given the same handle.
pub(crate) fn before_release(handle: CuMemAllocationHandle) -> Verdict<Releasing> {
    let books = books!(Memory);
    let taken = books.ledger().map.change(Space::Handle, handle.0, |entry| {
        if entry.handles == 0 {
            return (Then::Keep, None);
        }
        entry.handles -= 1;
        if entry.handles == 0 && entry.maps == 0 {
            (Then::Remove, Some(Some(*entry)))
        } else {
            (Then::Keep, Some(None))
        }
    });
    match taken.flatten() {
        Some(last) => Verdict::Call(Releasing {
            handle: handle.0,
            last,
        }),
        None => Verdict::Pass,
    }
}

pub(crate) fn after_release(releasing: Releasing, result: CuResult) {
    let Some(books) = books::opened() else { return };
    let Releasing { handle, last } = releasing;
    match (result == CuResult::SUCCESS, last) {
        (true, Some(entry)) => let_go(&books, handle, &entry),
        (true, None) => {}
        (false, Some(entry)) => {
            books.ledger().map.put(
                Space::Handle,
                handle,
                Entry {
                    handles: 1,
                    ..entry
                },
            );
        }
        (false, None) => {
            let again = |entry: &mut Entry| {
                entry.handles = entry.handles.saturating_add(1);
                (Then::Keep, ())
            };
            books.ledger().map.change(Space::Handle, handle, again);
        }
    }
}

/// One more mapping or binding holds it. False: we do not know it.
fn add_hold(books: &Books, handle: u64) -> bool {
    let more = |entry: &mut Entry| {
        entry.maps = entry.maps.saturating_add(1);
        (Then::Keep, ())
    };
    books
        .ledger()
        .map
        .change(Space::Handle, handle, more)
        .is_some()
}

/// One mapping or binding holds it no more.
fn drop_hold(books: &Books, handle: u64) {
    let last = books.ledger().map.change(Space::Handle, handle, |entry| {
        entry.maps = entry.maps.saturating_sub(1);
        if entry.handles == 0 && entry.maps == 0 {
            (Then::Remove, Some(*entry))
        } else {
            (Then::Keep, None)
        }
    });
    if let Some(entry) = last.flatten() {
        let_go(books, handle, &entry);
    }
}

/// The hold is taken before the call, so that a release meanwhile does not refund what is mapped.
pub(crate) fn before_map(handle: CuMemAllocationHandle) -> Verdict<()> {
    let books = books!(Memory);
    if add_hold(&books, handle.0) {
        Verdict::Call(())
    } else {
        Verdict::Pass
    }
}

pub(crate) fn after_map(
    (): (),
    result: CuResult,
    pointer: CuDevicePtr,
    bytes: usize,
    handle: CuMemAllocationHandle,
) {
    let Some(books) = books::opened() else { return };
    if result != CuResult::SUCCESS {
        return drop_hold(&books, handle.0);
    }
    let entry = Entry {
        bytes: size(bytes),
        owner: handle.0,
        ..Entry::default()
    };
    if let (Some(before), _) = books.ledger().map.put(Space::Mapping, pointer.0, entry) {
        drop_hold(&books, before.owner);
    }
}

/// One call may take several mappings off.
pub(crate) fn after_unmap(result: CuResult, pointer: CuDevicePtr, bytes: usize) {
    let Some(books) = books::opened() else { return };
    books.count(books::Group::Memory);
    if result != CuResult::SUCCESS {
        return;
    }
    let end = pointer.0.saturating_add(size(bytes));
    let mut at = pointer.0;
    while at < end {
        let mut step = STEP;
        if let Some(mapping) = books.ledger().map.take(Space::Mapping, at) {
            drop_hold(&books, mapping.owner);
            step = mapping.bytes.max(1);
        }
        at = at.saturating_add(step);
    }
}

/// The driver gives the handle that the memory was mapped with, as one more reference.
pub(crate) fn after_retain(result: CuResult, out: *mut CuMemAllocationHandle) {
    let Some(books) = books::opened() else { return };
    let Some(handle) = border::read(out).filter(|_| result == CuResult::SUCCESS) else {
        return;
    };
    let more = |entry: &mut Entry| {
        entry.handles = entry.handles.saturating_add(1);
        (Then::Keep, ())
    };
    books.ledger().map.change(Space::Handle, handle.0, more);
}

/// What names exported memory to every process, if anything does: the file behind the descriptor, or
/// the fabric's own name. (The real driver's descriptors are of its device node, which names nothing.)
fn key_of_descriptor(descriptor: c_int) -> Option<SharedKey> {
    // SAFETY: a C struct of numbers, for which all zeros is a value.
    let mut file: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: writes one stat.
    if unsafe { libc::fstat(descriptor, &raw mut file) } != 0 {
        return None;
    }
    if file.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    let name = [file.st_dev.to_ne_bytes(), file.st_ino.to_ne_bytes()];
    Some(key_of(name.as_flattened()))
}

/// Others may import it from now on: its charge moves to the shared table.
pub(crate) fn after_export(
    result: CuResult,
    out: *mut c_void,
    handle: CuMemAllocationHandle,
    kind: u32,
) {
    let Some(books) = books::opened() else { return };
    if result != CuResult::SUCCESS {
        return;
    }
    let key = match kind {
        FILE_DESCRIPTOR => border::read(out.cast::<c_int>()).and_then(key_of_descriptor),
        FABRIC => border::read(out.cast::<[u8; 64]>()).map(|name| key_of(&name)),
        _ => None,
    };
    let Some(key) = key else { return };
    let Some(entry) = books.ledger().map.get(Space::Handle, handle.0) else {
        return;
    };
    if entry.what != what::OWN {
        return;
    }
    let device = usize::from(entry.device);
    match books
        .container
        .region
        .share(key, device, entry.bytes, Kind::Buffer)
    {
        Ok(()) => share(&books, handle.0, key),
        Err(error) => {
            line!(
                Warn,
                "cuMemExportToShareableHandle: charged to this process alone: {error}"
            );
        }
    }
}

fn share(books: &Books, handle: u64, key: SharedKey) {
    let SharedKey([first, second]) = key;
    let named = Entry {
        bytes: first,
        owner: second,
        ..Entry::default()
    };
    books.ledger().map.put(Space::HandleKey, handle, named);
    let shared = |entry: &mut Entry| {
        entry.what = what::SHARED;
        (Then::Keep, ())
    };
    books.ledger().map.change(Space::Handle, handle, shared);
}

/// Memory that another process made. If that one is of this container, its charge is held together;
/// if not, it is charged there.
pub(crate) fn after_import(
    result: CuResult,
    out: *mut CuMemAllocationHandle,
    name: *mut c_void,
    kind: u32,
) {
    let Some(books) = books::opened() else { return };
    let Some(handle) = border::read(out).filter(|_| result == CuResult::SUCCESS) else {
        return;
    };
    let key = match kind {
        // The descriptor itself is passed in the pointer's place.
        FILE_DESCRIPTOR => c_int::try_from(name as isize)
            .ok()
            .and_then(key_of_descriptor),
        FABRIC => border::read(name.cast::<[u8; 64]>()).map(|name| key_of(&name)),
        _ => None,
    };
    let known = books.ledger().map.change(Space::Handle, handle.0, |entry| {
        // The driver gave a handle that this process has already: one more reference.
        entry.handles = entry.handles.saturating_add(1);
        (Then::Keep, ())
    });
    if known.is_some() {
        return;
    }
    let held = key.and_then(|key| Some((key, books.container.region.hold(key).ok()?)));
    let entry = Entry {
        handles: 1,
        what: FOREIGN,
        ..Entry::default()
    };
    let Some((key, shared)) = held else {
        books.ledger().map.put(Space::Handle, handle.0, entry);
        return;
    };
    let entry = Entry {
        bytes: shared.bytes,
        device: u8::try_from(shared.device).unwrap_or(u8::MAX),
        ..entry
    };
    books.ledger().map.put(Space::Handle, handle.0, entry);
    share(&books, handle.0, key);
}

/// What names a binding to a multicast object.
fn binding(object: CuMemAllocationHandle, offset: usize) -> u64 {
    let name = [object.0.to_ne_bytes(), size(offset).to_ne_bytes()];
    let SharedKey([first, _]) = key_of(name.as_flattened());
    first
}

pub(crate) fn before_bind(memory: CuMemAllocationHandle) -> Verdict<u64> {
    let books = books!(Memory);
    if add_hold(&books, memory.0) {
        Verdict::Call(memory.0)
    } else {
        Verdict::Pass
    }
}

/// Bound by address: it is the mapping's memory that is held.
pub(crate) fn before_bind_address(pointer: CuDevicePtr) -> Verdict<u64> {
    let books = books!(Memory);
    match books.ledger().map.get(Space::Mapping, pointer.0) {
        Some(mapping) if add_hold(&books, mapping.owner) => Verdict::Call(mapping.owner),
        _ => Verdict::Pass,
    }
}

pub(crate) fn after_bind(
    memory: u64,
    result: CuResult,
    object: CuMemAllocationHandle,
    offset: usize,
) {
    let Some(books) = books::opened() else { return };
    if result != CuResult::SUCCESS {
        return drop_hold(&books, memory);
    }
    let entry = Entry {
        owner: memory,
        ..Entry::default()
    };
    let (before, _) = books
        .ledger()
        .map
        .put(Space::Multicast, binding(object, offset), entry);
    if let Some(before) = before {
        drop_hold(&books, before.owner);
    }
}

pub(crate) fn after_unbind(
    result: CuResult,
    object: CuMemAllocationHandle,
    _device: CuDevice,
    offset: usize,
) {
    let Some(books) = books::opened() else { return };
    if result != CuResult::SUCCESS {
        return;
    }
    if let Some(bound) = books
        .ledger()
        .map
        .take(Space::Multicast, binding(object, offset))
    {
        drop_hold(&books, bound.owner);
    }
}

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
/// `CU_MEM_OPERATION_TYPE_MAP` and `…_UNMAP`.
const MAP: u32 = 1;
const UNMAP: u32 = 2;

/// Memory mapped to parts of a sparse array is held by it until it is unmapped.
pub(crate) fn after_map_array(result: CuResult, tiles: *mut c_void, count: u32) {
    let Some(books) = books::opened() else { return };
    if result != CuResult::SUCCESS || tiles.is_null() {
        return;
    }
    for at in 0..count as usize {
        let Some(tile) = border::read(tiles.cast::<Tile>().wrapping_add(at)) else {
            return;
        };
        let [a, b, c, d, e] = tile.part;
        let place = [tile.resource, a, b, c, d, e].map(u64::to_ne_bytes);
        let SharedKey([name, _]) = key_of(place.as_flattened());
        let before = books.ledger().map.take(Space::Multicast, name);
        if tile.operation == MAP && add_hold(&books, tile.handle) {
            let entry = Entry {
                owner: tile.handle,
                ..Entry::default()
            };
            books.ledger().map.put(Space::Multicast, name, entry);
        }
        if let Some(before) = before.filter(|_| matches!(tile.operation, MAP | UNMAP)) {
            drop_hold(&books, before.owner);
        }
    }
}
