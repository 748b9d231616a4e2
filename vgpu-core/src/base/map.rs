//! A map from the numbers that the driver handed out (pointers, handles) to their entries. O(1), in shards with
//! a lock each, in memory of its own from `mmap` (the caller may be an allocator). All zeros is an empty map,
//! so a forked child, for which the kernel wipes it, begins with none: its frees of inherited pointers find
//! nothing and refund nothing. Waits for no other process.
//!
//! Each kind of entry is a type of its own ([`Kept`]), and its keys are apart from those of all other types: the
//! same number may be a pointer and a handle at once. `state/entries.rs` has the types.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use crate::base::lock::Guarded;

const SHARDS: usize = 64;
const FIRST_CAPACITY: usize = 128;

/// An entry takes this many bytes at most.
pub(crate) const ENTRY_BYTES: usize = 24;

/// A type that the map keeps entries of.
///
/// # Safety
///
/// No other type has the same `SPACE`, and it is not 0. (So a cell whose key is in a space holds a value of that
/// space's type.)
pub(crate) unsafe trait Kept: Copy + 'static {
    /// Distinguishes the type's keys from those of other types.
    const SPACE: u8;
}

/// A value of any type that the map keeps.
type Words = MaybeUninit<[u64; ENTRY_BYTES / size_of::<u64>()]>;

const _: () = assert!(size_of::<MapCell>() == 32);

#[derive(Clone, Copy)]
#[repr(C)]
struct MapCell {
    /// Space and number; 0 is empty.
    key: u64,
    entry: Words,
}

impl MapCell {
    fn new<T: Kept>(key: u64, entry: T) -> Self {
        const { assert!(size_of::<T>() <= ENTRY_BYTES && align_of::<T>() <= align_of::<Words>()) };
        let mut words = Words::uninit();
        // SAFETY: the value fits the words, as asserted, and they are this function's own.
        unsafe { words.as_mut_ptr().cast::<T>().write(entry) };
        Self { key, entry: words }
    }

    /// The entry, if it is one of this type.
    fn entry<T: Kept>(&mut self) -> Option<&mut T> {
        // SAFETY: a key in the space of `T` was put by `MapCell::new::<T>`, since no other type has the space.
        (space_of(self.key) == T::SPACE).then(|| unsafe { &mut *self.entry.as_mut_ptr().cast() })
    }
}

/// An entry of any type, as [`Map::sweep`] visits it.
pub(crate) struct FoundEntry<'a>(&'a mut MapCell);

impl<'a> FoundEntry<'a> {
    pub(crate) fn space(&self) -> u8 {
        space_of(self.0.key)
    }

    /// The entry's number, exact below 2^56.
    pub(crate) fn number(&self) -> u64 {
        self.0.key & NUMBER
    }

    /// The entry, if it is one of this type.
    pub(crate) fn entry<T: Kept>(self) -> Option<&'a mut T> {
        self.0.entry()
    }
}

/// No call of the driver is made while a shard is held.
#[repr(C, align(64))]
struct Shard(Guarded<Table>);

#[repr(C)]
struct Table {
    cells: *mut MapCell,
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

/// The fate of an entry that was looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// The entry stays, as it now is.
    Keep,
    /// The entry is removed.
    Remove,
}

/// The bits of a key that hold the number.
const NUMBER: u64 = (1 << 56) - 1;

/// The number as a key: keys of two spaces are never equal, and no key is 0.
fn key_of<T: Kept>(number: u64) -> u64 {
    // The driver's pointers and handles have at most 57 bits; the fold keeps longer ones apart.
    (number ^ number >> 56 << 48) & NUMBER | u64::from(T::SPACE) << 56
}

fn space_of(key: u64) -> u8 {
    key.to_be_bytes()[0]
}

fn hash(key: u64) -> u64 {
    let mixed = (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

impl Map {
    #[inline(always)]
    fn shard(&self, hash: u64) -> Option<&Shard> {
        self.shards.get(usize::try_from(hash >> 58).unwrap_or(0))
    }

    #[inline(always)]
    fn with<T>(&self, key: u64, work: impl FnOnce(&mut Table, usize) -> T) -> Option<T> {
        let hash = hash(key);
        let shard = self.shard(hash)?;
        let mut table = shard.0.hold()?;
        Some(work(&mut table, usize::try_from(hash).unwrap_or(0)))
    }

    /// Remembers an entry. Replaces and returns the entry that this number has already. False as the second: there
    /// was no memory to remember it in.
    pub(crate) fn put<T: Kept>(&self, number: u64, entry: T) -> (Option<T>, bool) {
        let key = key_of::<T>(number);
        self.with(key, |table, hash| table.put(key, hash, entry))
            .unwrap_or((None, false))
    }

    /// Remembers an entry under a number that has none, the common case of [`Map::put`]; does not wait. False: the number
    /// has one, the table is to grow first, or another thread holds it; then nothing is changed.
    #[inline(always)]
    pub(crate) fn put_new<T: Kept>(&self, number: u64, entry: T) -> bool {
        let key = key_of::<T>(number);
        let hash = hash(key);
        let table = self.shard(hash).and_then(|shard| shard.0.try_hold());
        table.is_some_and(|mut table| table.put_new(key, hash, entry))
    }

    /// Takes an entry out.
    #[inline(always)]
    pub(crate) fn take<T: Kept>(&self, number: u64) -> Option<T> {
        let key = key_of::<T>(number);
        let hash = hash(key);
        let mut table = self.shard(hash)?.0.hold()?;
        let at = table.find(key, usize::try_from(hash).unwrap_or(0))?;
        let entry = *table.cell(at)?.entry::<T>()?;
        table.remove(at);
        Some(entry)
    }

    /// Takes an entry out if `look` has an answer for it, which is returned in its place. Does not wait: `None` also when
    /// another thread holds the table.
    #[inline(always)]
    pub(crate) fn take_if<T: Kept, A>(
        &self,
        number: u64,
        look: impl FnOnce(&T) -> Option<A>,
    ) -> Option<A> {
        let key = key_of::<T>(number);
        let hash = hash(key);
        let mut table = self.shard(hash)?.0.try_hold()?;
        let at = table.find(key, usize::try_from(hash).unwrap_or(0))?;
        let answer = look(table.cell(at)?.entry::<T>()?)?;
        table.remove(at);
        Some(answer)
    }

    /// Looks at an entry.
    pub(crate) fn get<T: Kept>(&self, number: u64) -> Option<T> {
        let key = key_of::<T>(number);
        self.with(key, |table, hash| {
            let at = table.find(key, hash)?;
            table.cell(at)?.entry::<T>().copied()
        })?
    }

    /// Changes an entry, or takes it out, under the lock. `None`: there is none.
    pub(crate) fn change<T: Kept, A>(
        &self,
        number: u64,
        change: impl FnOnce(&mut T) -> (Then, A),
    ) -> Option<A> {
        let key = key_of::<T>(number);
        self.with(key, |table, hash| {
            let at = table.find(key, hash)?;
            let (then, answer) = change(table.cell(at)?.entry()?);
            if then == Then::Remove {
                table.remove(at);
            }
            Some(answer)
        })?
    }

    /// Takes out all entries for which `goes` returns true, and lets it change the others. Linear in the number of
    /// entries.
    pub(crate) fn sweep(&self, mut goes: impl FnMut(FoundEntry<'_>) -> bool) {
        for shard in &self.shards {
            let Some(mut table) = shard.0.hold() else {
                continue;
            };
            let mut at = 0;
            while at < table.capacity {
                let found = table.cell(at).filter(|cell| cell.key != 0);
                if found.is_some_and(|cell| goes(FoundEntry(cell))) {
                    // The entry that moves into the gap is looked at next.
                    table.remove(at);
                } else {
                    at += 1;
                }
            }
        }
    }

    /// As [`Map::sweep`], of the entries of one type, with their numbers.
    pub(crate) fn sweep_of<T: Kept>(&self, mut goes: impl FnMut(u64, &mut T) -> bool) {
        self.sweep(|found| {
            let number = found.number();
            found.entry().is_some_and(|entry| goes(number, entry))
        });
    }
}

impl Table {
    #[inline(always)]
    fn cell(&mut self, at: usize) -> Option<&mut MapCell> {
        if at >= self.capacity {
            return None;
        }
        // SAFETY: below the capacity that the cells were mapped with, and borrowed exclusively.
        Some(unsafe { &mut *self.cells.wrapping_add(at) })
    }

    #[inline(always)]
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

    fn put<T: Kept>(&mut self, key: u64, hash: usize, entry: T) -> (Option<T>, bool) {
        if let Some(at) = self.find(key, hash) {
            let old = self.cell(at).and_then(MapCell::entry);
            return (old.map(|old| core::mem::replace(old, entry)), true);
        }
        if (self.live + 1) * 4 > self.capacity * 3 && !self.grow() {
            // Full to the last free cell, which ends every search.
            if self.live + 1 >= self.capacity {
                return (None, false);
            }
        }
        self.place(MapCell::new(key, entry), hash);
        self.live += 1;
        (None, true)
    }

    #[inline(always)]
    fn put_new<T: Kept>(&mut self, key: u64, hash: u64, entry: T) -> bool {
        if (self.live + 1) * 4 > self.capacity * 3 {
            return false;
        }
        // A table without cells is full.
        let mask = self.capacity - 1;
        let mut at = usize::try_from(hash).unwrap_or(0) & mask;
        while let Some(cell) = self.cell(at) {
            if cell.key == 0 {
                *cell = MapCell::new(key, entry);
                self.live += 1;
                return true;
            }
            if cell.key == key {
                return false;
            }
            at = (at + 1) & mask;
        }
        false
    }

    fn place(&mut self, new: MapCell, hash: usize) {
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
            // Whether it may move into the gap: its home is not between the gap and its place.
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
        let size = capacity * size_of::<MapCell>();
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
            unsafe { libc::munmap(old.cells.cast(), old.capacity * size_of::<MapCell>()) };
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

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Pointer(u64);

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Handle(u64, u64, u32);

    // SAFETY: no other type in this module's tests has space 1.
    unsafe impl Kept for Pointer {
        const SPACE: u8 = 1;
    }

    // SAFETY: no other type in this module's tests has space 2.
    unsafe impl Kept for Handle {
        const SPACE: u8 = 2;
    }

    #[test]
    fn entry_is_taken_out_once() {
        let map = empty();
        let handle = Handle(1, 2, 3);

        assert_eq!(map.put(0x7f00, Pointer(1)), (None, true));
        assert_eq!(map.put(0x7f00, handle), (None, true));

        assert_eq!(map.take(0x7f00), Some(Pointer(1)));
        assert_eq!(map.take::<Pointer>(0x7f00), None);
        assert_eq!(map.get(0x7f00), Some(handle));
    }

    #[test]
    fn a_new_entry_takes_no_others_place() {
        let map = empty();
        assert!(!map.put_new(0x7f00, Pointer(1)), "there are no cells yet");
        assert_eq!(map.get::<Pointer>(0x7f00), None);
        map.put(0x7f00, Pointer(2));
        map.put(0x7f00, Handle(4, 5, 6));

        assert!(!map.put_new(0x7f00, Pointer(3)));
        assert!(!map.put_new(0x7f00, Handle(7, 8, 9)));

        assert_eq!(map.take(0x7f00), Some(Pointer(2)));
        assert!(map.put_new(0x7f00, Pointer(10)));
        assert_eq!(map.take(0x7f00), Some(Pointer(10)));
        assert_eq!(map.take(0x7f00), Some(Handle(4, 5, 6)));
    }

    #[test]
    fn an_entry_goes_only_if_there_is_an_answer() {
        let map = empty();
        map.put(0x7f00, Pointer(1));

        let no = map.take_if(0x7f00, |_: &Pointer| None::<()>);
        let elsewhere = map.take_if(0x7e00, |_: &Pointer| Some(()));
        let other = map.take_if(0x7f00, |_: &Handle| Some(()));
        assert_eq!((no, elsewhere, other), (None, None, None));

        assert_eq!(map.take_if(0x7f00, |it: &Pointer| Some(it.0)), Some(1));
        assert_eq!(map.get::<Pointer>(0x7f00), None);
    }

    #[test]
    fn a_table_that_another_thread_holds_is_not_waited_for() {
        let map = empty();
        map.put(0x7f00, Pointer(1));
        let held: Vec<_> = map.shards.iter().map(|shard| shard.0.hold()).collect();

        assert_eq!(map.take_if(0x7f00, |_: &Pointer| Some(())), None);
        assert!(!map.put_new(0x7f00, Handle(1, 2, 3)));

        drop(held);
        assert_eq!(map.take(0x7f00), Some(Pointer(1)));
        assert_eq!(map.get::<Handle>(0x7f00), None);
    }

    #[test]
    fn a_hundred_thousand_are_all_found() {
        let map = empty();
        for number in 0..100_000u64 {
            map.put(number << 9, Pointer(number));
        }

        for number in 0..100_000u64 {
            assert_eq!(map.take(number << 9), Some(Pointer(number)));
        }
    }

    #[test]
    fn sweep_takes_out_the_chosen_entries() {
        let map = empty();
        for number in 1..=1000u64 {
            map.put(number << 9, Pointer(number % 2));
            map.put(number << 9, Handle(number % 2, 0, 0));
        }

        let mut sum = 0;
        map.sweep_of(|number, entry: &mut Pointer| {
            sum += if entry.0 == 1 { number >> 9 } else { 0 };
            entry.0 == 1
        });

        assert_eq!(sum, 250_000);
        let left = (1..=1000u64).filter(|n| map.get::<Pointer>(n << 9).is_some());
        assert_eq!(left.count(), 500);
        let others = (1..=1000u64).filter(|n| map.get::<Handle>(n << 9).is_some());
        assert_eq!(others.count(), 1000);
    }

    proptest! {
        #[test]
        fn behaves_like_a_hash_map(steps in prop::collection::vec((0u64..300, any::<bool>()), 0..2000)) {
            let map = empty();
            let mut model = HashMap::new();
            for (step, (number, put)) in steps.into_iter().enumerate() {
                let number = number << 9;
                if put {
                    let new = Pointer(step as u64);
                    if map.put_new(number, new) {
                        prop_assert_eq!(model.insert(number, new), None);
                    } else {
                        prop_assert_eq!(map.put(number, new).0, model.insert(number, new));
                    }
                } else if step % 2 == 0 {
                    let taken = map.take_if(number, |it: &Pointer| Some(*it));
                    prop_assert_eq!(taken, model.remove(&number));
                } else {
                    prop_assert_eq!(map.take(number), model.remove(&number));
                }
            }
            for (number, entry) in model {
                prop_assert_eq!(map.get(number), Some(entry));
            }
        }
    }
}
