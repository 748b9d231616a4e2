//! Rules: memory that is another API's (imported external memory, resources of a graphics API), charged
//! as long as it stands here; and memory that a descriptor keeps after the program has freed it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use cuda_api::{
    CuDevicePtr, CuExternalMemory, CuExternalMemoryHandleDesc, CuGraphicsResource, CuResult,
    CuStream,
};
use vgpu_abi::region::Kind;

use crate::books::{self, Books, Place, books, taken};
use crate::border;
use crate::guest::Verdict;
use crate::map::{Entry, Space, Then};
use crate::memory::{self, Leaving, Reserved, what};
use crate::objects::Objects;
use crate::query;

/// The program says how large it is.
pub(crate) fn before_import(
    call: &str,
    description: *const CuExternalMemoryHandleDesc,
) -> Verdict<Reserved> {
    let books = books!(Memory);
    match border::read(description).map(|it| it.size) {
        None | Some(0) => Verdict::Pass,
        Some(bytes) => memory::reserve_here(&books, call, taken(bytes)),
    }
}

pub(crate) fn after_import(reserved: Reserved, result: CuResult, out: *mut CuExternalMemory) {
    let Some(books) = books::opened() else { return };
    match border::read(out) {
        Some(memory) if result == CuResult::SUCCESS => {
            let bytes = reserved.charge().bytes();
            memory::given(&books, reserved, Space::External, memory as u64, bytes);
        }
        _ => books.refund(reserved.charge()),
    }
}

pub(crate) fn before_destroy(memory: CuExternalMemory) -> Verdict<Leaving> {
    let books = books!(Memory);
    memory::leaving(&books, Space::External, memory as u64)
}

pub(crate) fn after_destroy(leaving: Leaving, result: CuResult) {
    memory::after_leaving(leaving, result, Space::External);
}

// --- resources of a graphics API: their size is known when they are mapped ---------------------------

/// A resource is charged when it is first mapped, and until it is unregistered. Where there is no room
/// for it, it is unmapped again.
pub(crate) fn after_map_resources(
    result: CuResult,
    count: u32,
    resources: *mut CuGraphicsResource,
    stream: CuStream,
    per_thread: bool,
) -> Option<CuResult> {
    if result != CuResult::SUCCESS || resources.is_null() {
        return None;
    }
    let books = books::opened()?;
    books.count(books::Group::Memory);
    let Place::Device { device, owner } = books.here() else {
        return None;
    };
    for at in 0..count as usize {
        let resource = border::read(resources.wrapping_add(at))?;
        let map = &books.ledger().map;
        if map.get(Space::Graphics, resource as u64).is_some() {
            continue;
        }
        let Some(bytes) = query::relaxed(|| query::resource_bytes(resource)) else {
            continue;
        };
        match books.reserve("cuGraphicsMapResources", device, taken(bytes)) {
            Ok(charge) => {
                books.confirm(charge, Kind::Buffer);
                let entry = Entry {
                    bytes: charge.bytes(),
                    owner,
                    device: u8::try_from(device).unwrap_or(u8::MAX),
                    what: what::OWN,
                    ..Entry::default()
                };
                map.put(Space::Graphics, resource as u64, entry);
            }
            Err(refused) => {
                query::unmap_resources(count, resources, stream, per_thread);
                return Some(refused);
            }
        }
    }
    None
}

pub(crate) fn before_unregister(resource: CuGraphicsResource) -> Verdict<Leaving> {
    let books = books!(Memory);
    memory::leaving(&books, Space::Graphics, resource as u64)
}

pub(crate) fn after_unregister(leaving: Leaving, result: CuResult) {
    memory::after_leaving(leaving, result, Space::Graphics);
}

// --- descriptors ------------------------------------------------------------------------------------

/// `Space::Descriptor`: `bytes` tells the file, `owner` what it keeps, `maps` is the descriptor.
/// What it keeps is an object, or, as long as that is not freed, a pointer.
const KEEPS_OBJECT: u8 = 0;
const KEEPS_POINTER: u8 = 1;

/// Which file a descriptor is of; `None`: it is closed.
fn file_of(descriptor: c_int) -> Option<u64> {
    // SAFETY: a C struct of numbers, for which all zeros is a value.
    let mut file: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: writes one stat.
    if unsafe { libc::fstat(descriptor, &raw mut file) } != 0 {
        return None;
    }
    Some(file.st_ino ^ file.st_dev.rotate_left(40) ^ file.st_rdev.rotate_left(20))
}

fn put(books: &Books, objects: &Objects<'_>, descriptor: c_int, owner: u64, what: u8) {
    let (Some(file), Ok(number)) = (file_of(descriptor), u32::try_from(descriptor)) else {
        return;
    };
    let entry = Entry {
        bytes: file,
        owner,
        what,
        maps: number,
        ..Entry::default()
    };
    let ledger = books.ledger();
    // Relaxed: only says that a look is worth while.
    ledger.descriptors.fetch_add(1, Ordering::Relaxed);
    let (before, _) = ledger.map.put(Space::Descriptor, u64::from(number), entry);
    if let Some(before) = before {
        // The number was closed and is another file's now.
        ended(books, objects, &before);
    }
}

/// A descriptor is gone, and what it kept. Under the lock of the objects.
fn ended(books: &Books, objects: &Objects<'_>, entry: &Entry) {
    // Relaxed: as above.
    books.ledger().descriptors.fetch_sub(1, Ordering::Relaxed);
    if entry.what == KEEPS_OBJECT {
        objects.drop_hold(entry.owner);
    } else {
        let less = |entry: &mut Entry| {
            entry.maps = entry.maps.saturating_sub(1);
            (Then::Keep, ())
        };
        let map = &books.ledger().map;
        map.change(Space::Pointer, entry.owner, less);
    }
}

/// A descriptor keeps an object, from which the objects' lock was let go.
pub(crate) fn keeps_object(books: &Books, descriptor: c_int, number: u64) {
    let objects = Objects::lock(books);
    if objects.hold(number) {
        put(books, &objects, descriptor, number, KEEPS_OBJECT);
    }
}

/// `cuMemGetHandleForAddressRange`: a DMA-BUF keeps its memory until it is closed.
pub(crate) fn after_range(result: CuResult, out: *mut c_void, pointer: CuDevicePtr) {
    let Some(books) = books::opened() else { return };
    let Some(descriptor) =
        border::read(out.cast::<c_int>()).filter(|_| result == CuResult::SUCCESS)
    else {
        return;
    };
    let base = query::relaxed(|| query::allocation_of(pointer)).unwrap_or(pointer.0);
    let objects = Objects::lock(&books);
    let map = &books.ledger().map;
    if let Some(mapping) = map.get(Space::Mapping, base) {
        if objects.hold(mapping.owner) {
            put(&books, &objects, descriptor, mapping.owner, KEEPS_OBJECT);
        }
        return;
    }
    let more = |entry: &mut Entry| {
        let is_own = entry.what == what::OWN;
        entry.maps = entry.maps.saturating_add(u32::from(is_own));
        (Then::Keep, is_own)
    };
    if map.change(Space::Pointer, base, more) == Some(true) {
        put(&books, &objects, descriptor, base, KEEPS_POINTER);
    }
}

/// Plain memory is freed that a descriptor may keep: it is charged until that is closed.
pub(crate) fn freed(books: &Books, pointer: u64, entry: &Entry) {
    poll(books);
    let objects = Objects::lock(books);
    let number = objects.make_unnamed(usize::from(entry.device), entry.bytes, what::OWN);
    books.ledger().map.sweep(|space, kept| {
        if space == Space::Descriptor && kept.what == KEEPS_POINTER && kept.owner == pointer {
            kept.what = KEEPS_OBJECT;
            kept.owner = number;
        }
        false
    });
    // One hold for each descriptor, and the one that it was made with, which ends here.
    let kept = |space: Space, kept: &Entry| {
        space == Space::Descriptor && kept.what == KEEPS_OBJECT && kept.owner == number
    };
    let mut count = 0u32;
    books.ledger().map.sweep(|space, entry| {
        count += u32::from(kept(space, entry));
        false
    });
    for _ in 0..count {
        objects.hold(number);
    }
    objects.drop_hold(number);
}

/// Looks which descriptors were closed. True: something is charged no more.
pub(crate) fn poll(books: &Books) -> bool {
    const AT_ONCE: usize = 64;
    let ledger = books.ledger();
    // Relaxed: only says that a look is worth while.
    if ledger.descriptors.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let objects = Objects::lock(books);
    let mut any = false;
    loop {
        let mut closed = [Entry::default(); AT_ONCE];
        let mut count = 0;
        ledger.map.sweep(|space, entry| {
            if space != Space::Descriptor {
                return false;
            }
            let now = c_int::try_from(entry.maps).ok().and_then(file_of);
            match closed.get_mut(count) {
                Some(place) if now != Some(entry.bytes) => {
                    *place = *entry;
                    count += 1;
                    true
                }
                _ => false,
            }
        });
        for entry in closed.iter().take(count) {
            ended(books, &objects, entry);
            any |= entry.what == KEEPS_OBJECT;
        }
        if count < AT_ONCE {
            return any;
        }
    }
}
