//! A map from what the driver handed out (pointers, handles) to its charge. O(1), in shards with
//! a lock each, in memory of its own from `mmap` (the caller may be an allocator). All zeros is an
//! empty map, so a forked child, for whom the kernel wipes it, begins with none: its frees of
//! inherited pointers find nothing and refund nothing. Waits for no other process.

use core::ffi::c_void;

use crate::base::lock::Guarded;

const SHARDS: usize = 64;
const FIRST_CAPACITY: usize = 128;

/// What kind of thing a key is. The same number may be a pointer and a handle at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Space {
    /// A device pointer.
    Pointer = 1,
    /// A memory handle of `cuMemCreate` or an import: which object it stands for, and how many
    /// references it has.
    Handle = 2,
    /// An address range that a memory handle is mapped to.
    Mapping = 3,
    /// An array or a mipmapped array.
    Array = 4,
    /// A module.
    Module = 5,
    /// A context.
    Context = 6,
    /// An executable graph with memory nodes.
    GraphExec = 7,
    /// The name under which an object stands in the region's shared table.
    SharedKey = 8,
    /// What a multicast object holds, by object, device and offset.
    Multicast = 9,
    /// Imported external memory.
    External = 10,
    /// A green context.
    Green = 11,
    /// As `SharedKey`, of an object.
    HandleKey = 12,
    /// Memory of a graph that may outlive the launch.
    GraphMemory = 13,
    /// An object that was made apart from addresses, by our number.
    Object = 14,
    /// The handle of an object.
    HandleOf = 15,
    /// Of an import that stands at a pointer in `SharedKey`: what it may be.
    SharedUntil = 16,
    /// As `SharedUntil`, of an object in `HandleKey`.
    HandleUntil = 17,
    /// The handle under which memory was exported by IPC, in four parts.
    IpcHandle = 18,
    /// A resource of another API that was mapped.
    Graphics = 19,
    /// What a sparse array holds until an event of ours has come to pass.
    Ending = 20,
    /// A descriptor that keeps memory after it was freed.
    Descriptor = 21,
    /// A part of a sparse array that memory is mapped to.
    Sparse = 22,
    /// A library.
    Library = 23,
    /// What a context has of a library.
    Copy = 24,
}

/// What is known of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Entry {
    /// What was charged for it, bytes.
    pub(crate) bytes: u64,
    /// The context that it dies with, the pool that it came from, or the object that backs it.
    pub(crate) owner: u64,
    /// Region index of its device.
    pub(crate) device: u8,
    /// What the rules mean by it.
    pub(crate) what: u8,
    /// References of a context; a count that has reached the largest number stays there.
    pub(crate) handles: u16,
    /// A count, or a mark.
    pub(crate) maps: u32,
}

/// `Entry::maps` holds bytes in such steps.
const BYTES_STEP: u64 = 512;

impl Entry {
    /// A number of bytes as `maps` keeps it, rounded up.
    pub(crate) fn as_maps(bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(BYTES_STEP)).unwrap_or(u32::MAX)
    }

    /// The bytes that `maps` keeps.
    pub(crate) fn maps_as_bytes(&self) -> u64 {
        u64::from(self.maps) * BYTES_STEP
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Cell {
    /// Space and number; 0 is empty.
    key: u64,
    entry: Entry,
}

/// No call of the driver is made while a shard is held.
#[repr(C, align(64))]
struct Shard(Guarded<Table>);

#[repr(C)]
struct Table {
    cells: *mut Cell,
    capacity: usize,
    live: usize,
}

// SAFETY: the cells are a mapping of the table's own, which any thread may use.
unsafe impl Send for Table {}

/// See the module's text. Lives in memory that begins as zeros.
#[repr(C)]
pub(crate) struct Map {
    shards: [Shard; SHARDS],
}

/// What to do with an entry that was looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// It stays, as it now is.
    Keep,
    /// It goes.
    Remove,
}

/// The number as a key: spaces do not meet, and nothing is 0.
fn key_of(space: Space, number: u64) -> u64 {
    // The driver's pointers and handles have at most 57 bits; the fold keeps longer ones apart.
    (number ^ number >> 56 << 48) & 0x00ff_ffff_ffff_ffff | (space as u64) << 56
}

fn hash(key: u64) -> u64 {
    let mixed = (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

impl Map {
    fn shard(&self, hash: u64) -> Option<&Shard> {
        self.shards.get(usize::try_from(hash >> 58).unwrap_or(0))
    }

    fn with<T>(&self, key: u64, work: impl FnOnce(&mut Table, usize) -> T) -> Option<T> {
        let hash = hash(key);
        let shard = self.shard(hash)?;
        let mut table = shard.0.hold()?;
        Some(work(&mut table, usize::try_from(hash).unwrap_or(0)))
    }

    /// Remembers an entry; one that stands under this number already is replaced and comes back.
    /// False as the second: there was no memory to remember it in.
    pub(crate) fn put(&self, space: Space, number: u64, entry: Entry) -> (Option<Entry>, bool) {
        let key = key_of(space, number);
        self.with(key, |table, hash| table.put(key, hash, entry))
            .unwrap_or((None, false))
    }

    /// Takes an entry out.
    pub(crate) fn take(&self, space: Space, number: u64) -> Option<Entry> {
        let key = key_of(space, number);
        self.with(key, |table, hash| {
            let at = table.find(key, hash)?;
            let entry = table.cell(at)?.entry;
            table.remove(at);
            Some(entry)
        })?
    }

    /// Looks at an entry.
    pub(crate) fn get(&self, space: Space, number: u64) -> Option<Entry> {
        let key = key_of(space, number);
        self.with(key, |table, hash| {
            let at = table.find(key, hash)?;
            Some(table.cell(at)?.entry)
        })?
    }

    /// Changes an entry, or takes it out, under the lock. `None`: there is none.
    pub(crate) fn change<T>(
        &self,
        space: Space,
        number: u64,
        change: impl FnOnce(&mut Entry) -> (Then, T),
    ) -> Option<T> {
        let key = key_of(space, number);
        self.with(key, |table, hash| {
            let at = table.find(key, hash)?;
            let (then, answer) = change(&mut table.cell(at)?.entry);
            if then == Then::Remove {
                table.remove(at);
            }
            Some(answer)
        })?
    }

    /// Takes out all entries that `goes` points at, and lets it change the others. Linear in the number
    /// of entries.
    pub(crate) fn sweep(&self, mut goes: impl FnMut(Space, &mut Entry) -> bool) {
        self.sweep_numbers(|space, _, entry| goes(space, entry));
    }

    /// As [`Map::sweep`], with the number of each entry (exact below 2^56).
    pub(crate) fn sweep_numbers(&self, mut goes: impl FnMut(Space, u64, &mut Entry) -> bool) {
        for shard in &self.shards {
            let Some(mut table) = shard.0.hold() else {
                continue;
            };
            let mut at = 0;
            while at < table.capacity {
                let found = table
                    .cell(at)
                    .filter(|cell| cell.key != 0)
                    .and_then(|cell| {
                        let number = cell.key & 0x00ff_ffff_ffff_ffff;
                        Some(goes(space_of(cell.key)?, number, &mut cell.entry))
                    });
                if found == Some(true) {
                    // What moves into the gap is looked at next.
                    table.remove(at);
                } else {
                    at += 1;
                }
            }
        }
    }
}

fn space_of(key: u64) -> Option<Space> {
    SPACES.into_iter().find(|&space| space as u64 == key >> 56)
}

const SPACES: [Space; 24] = {
    use Space::{
        Array, Context, Copy, Descriptor, Ending, External, GraphExec, GraphMemory, Graphics,
        Green, Handle, HandleKey, HandleOf, HandleUntil, IpcHandle, Library, Mapping, Module,
        Multicast, Object, Pointer, SharedKey, SharedUntil, Sparse,
    };
    [
        Pointer,
        Handle,
        Mapping,
        Array,
        Module,
        Context,
        GraphExec,
        SharedKey,
        Multicast,
        External,
        Green,
        HandleKey,
        Object,
        HandleOf,
        SharedUntil,
        HandleUntil,
        IpcHandle,
        Graphics,
        Ending,
        Descriptor,
        Sparse,
        GraphMemory,
        Library,
        Copy,
    ]
};

impl Table {
    fn cell(&mut self, at: usize) -> Option<&mut Cell> {
        if at >= self.capacity {
            return None;
        }
        // SAFETY: below the capacity that the cells were mapped with, and borrowed exclusively.
        Some(unsafe { &mut *self.cells.wrapping_add(at) })
    }

    fn find(&mut self, key: u64, hash: usize) -> Option<usize> {
        let mask = self.capacity.checked_sub(1)?;
        let mut at = hash & mask;
        loop {
            match self.cell(at)?.key {
                0 => return None,
                found if found == key => return Some(at),
                _ => at = (at + 1) & mask,
            }
        }
    }

    fn put(&mut self, key: u64, hash: usize, entry: Entry) -> (Option<Entry>, bool) {
        if let Some(at) = self.find(key, hash) {
            let old = self
                .cell(at)
                .map(|cell| core::mem::replace(&mut cell.entry, entry));
            return (old, true);
        }
        if (self.live + 1) * 4 > self.capacity * 3 && !self.grow() {
            // Full to the last free cell, which ends every search.
            if self.live + 1 >= self.capacity {
                return (None, false);
            }
        }
        self.place(Cell { key, entry }, hash);
        self.live += 1;
        (None, true)
    }

    fn place(&mut self, new: Cell, hash: usize) {
        let mask = self.capacity - 1;
        let mut at = hash & mask;
        while let Some(cell) = self.cell(at) {
            if cell.key == 0 {
                *cell = new;
                return;
            }
            at = (at + 1) & mask;
        }
    }

    /// Empties a cell and closes the gap, so that no search ends too early.
    fn remove(&mut self, at: usize) {
        let mask = self.capacity - 1;
        let mut gap = at;
        let mut next = (at + 1) & mask;
        while let Some(&mut moved) = self.cell(next) {
            if moved.key == 0 {
                break;
            }
            let home = usize::try_from(hash(moved.key)).unwrap_or(0) & mask;
            // Does it lie in the gap's way, that is, not between the gap and where it stands?
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(gap) & mask) {
                if let Some(cell) = self.cell(gap) {
                    *cell = moved;
                }
                gap = next;
            }
            next = (next + 1) & mask;
        }
        if let Some(cell) = self.cell(gap) {
            cell.key = 0;
        }
        self.live -= 1;
    }

    fn grow(&mut self) -> bool {
        let capacity = (self.capacity * 2).max(FIRST_CAPACITY);
        let size = capacity * size_of::<Cell>();
        let Some(memory) = zeroed(size) else {
            return false;
        };
        let old = Table { ..*self };
        self.cells = memory.cast();
        self.capacity = capacity;
        for at in 0..old.capacity {
            // SAFETY: below the capacity that the old cells were mapped with, and borrowed exclusively.
            let cell = unsafe { old.cells.wrapping_add(at).read() };
            if cell.key != 0 {
                self.place(cell, usize::try_from(hash(cell.key)).unwrap_or(0));
            }
        }
        if !old.cells.is_null() {
            // SAFETY: our own mapping of that size, and no reference to it is left.
            unsafe { libc::munmap(old.cells.cast(), old.capacity * size_of::<Cell>()) };
        }
        true
    }
}

/// Fresh pages of zeros, this process's own. Not from the allocator, which may be our caller.
pub(crate) fn zeroed(size: usize) -> Option<*mut c_void> {
    // SAFETY: a new private mapping.
    let memory = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    (memory != libc::MAP_FAILED).then_some(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn empty() -> Box<Map> {
        // SAFETY: all zeros is an empty map.
        unsafe { Box::<Map>::new_zeroed().assume_init() }
    }

    fn entry(bytes: u64) -> Entry {
        Entry {
            bytes,
            ..Entry::default()
        }
    }

    #[test]
    fn what_was_put_comes_back_once() {
        let map = empty();

        assert_eq!(map.put(Space::Pointer, 0x7f00, entry(1)), (None, true));
        assert_eq!(map.put(Space::Handle, 0x7f00, entry(2)), (None, true));

        assert_eq!(map.take(Space::Pointer, 0x7f00), Some(entry(1)));
        assert_eq!(map.take(Space::Pointer, 0x7f00), None);
        assert_eq!(map.get(Space::Handle, 0x7f00), Some(entry(2)));
    }

    #[test]
    fn a_hundred_thousand_are_all_found() {
        let map = empty();
        for number in 0..100_000u64 {
            map.put(Space::Pointer, number << 9, entry(number));
        }

        for number in 0..100_000u64 {
            assert_eq!(map.take(Space::Pointer, number << 9), Some(entry(number)));
        }
    }

    #[test]
    fn a_sweep_takes_what_it_is_told_to() {
        let map = empty();
        for number in 1..=1000u64 {
            map.put(
                Space::Pointer,
                number << 9,
                Entry {
                    owner: number % 2,
                    ..entry(number)
                },
            );
        }

        let mut sum = 0;
        map.sweep(|_, entry| {
            let goes = entry.owner == 1;
            sum += if goes { entry.bytes } else { 0 };
            goes
        });

        assert_eq!(sum, 250_000);
        assert_eq!(
            (1..=1000u64)
                .filter(|n| map.get(Space::Pointer, n << 9).is_some())
                .count(),
            500
        );
    }

    proptest! {
        #[test]
        fn behaves_like_a_hash_map(steps in prop::collection::vec((0u64..300, any::<bool>()), 0..2000)) {
            let map = empty();
            let mut model = HashMap::new();
            for (step, (number, put)) in steps.into_iter().enumerate() {
                let number = number << 9;
                if put {
                    let new = entry(step as u64);
                    prop_assert_eq!(map.put(Space::Pointer, number, new).0, model.insert(number, new));
                } else {
                    prop_assert_eq!(map.take(Space::Pointer, number), model.remove(&number));
                }
            }
            for (number, entry) in model {
                prop_assert_eq!(map.get(Space::Pointer, number), Some(entry));
            }
        }
    }
}
