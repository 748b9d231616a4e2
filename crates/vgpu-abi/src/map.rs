//! Shared mappings as typed references. Owns the step from bytes in a file to atomics.
//!
//! Never hands out anything but atomics over a file: other processes write to it at any moment.

use std::fs::File;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::layout::RegionLayout;

fn errno_of(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// A file as 64-bit words, for files that the host owns.
#[derive(Debug)]
pub(crate) struct Words {
    map: MmapRaw,
    writable: bool,
}

impl Words {
    /// Maps the first `bytes` of a file. The caller has checked that it has as many.
    pub(crate) fn map(file: &File, bytes: usize, writable: bool) -> Result<Self, i32> {
        let mut options = MmapOptions::new();
        options.len(bytes);
        let map = if writable {
            options.map_raw(file)
        } else {
            options.map_raw_read_only(file)
        };
        map.map(|map| Self { map, writable })
            .map_err(|e| errno_of(&e))
    }

    #[inline]
    fn word(&self, offset: usize) -> Option<&AtomicU64> {
        self.words(offset).map(|[word]| word)
    }

    /// As many words from a byte offset on; `None` where one of them lies outside.
    #[inline]
    fn words<const N: usize>(&self, offset: usize) -> Option<&[AtomicU64; N]> {
        if !offset.is_multiple_of(8) || offset.checked_add(N * 8)? > self.map.len() {
            return None;
        }
        let at = self.map.as_ptr().wrapping_add(offset).cast();
        // SAFETY: the words lie inside the mapping, which lives as long as `self`; the mapping is
        // page-aligned and `offset` a multiple of 8. The file is never made shorter (its owner
        // writes in place). A word of a read-only mapping is only ever loaded from.
        Some(unsafe { &*at })
    }

    /// The word at a byte offset; 0 outside.
    #[inline]
    pub(crate) fn load(&self, offset: usize) -> u64 {
        // Acquire: what the writer stored before it flipped the copies is seen after the flip.
        self.word(offset)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// The words from a byte offset on; zeros where one of them lies outside.
    #[inline]
    pub(crate) fn load_array<const N: usize>(&self, offset: usize) -> [u64; N] {
        let Some(words) = self.words::<N>(offset) else {
            return [0; N];
        };
        // Acquire: as in `load`.
        words.each_ref().map(|word| word.load(Ordering::Acquire))
    }

    /// Stores the word at a byte offset; nothing outside, and nothing in a read-only mapping.
    pub(crate) fn store(&self, offset: usize, value: u64) {
        if let (true, Some(word)) = (self.writable, self.word(offset)) {
            // Release: the copy was written before.
            word.store(value, Ordering::Release);
        }
    }
}

/// The usage region, mapped for reading and writing.
#[derive(Debug)]
pub(crate) struct RegionMap(MmapRaw);

impl RegionMap {
    /// Maps the file. The caller has checked that it has the size of a [`RegionLayout`] and its
    /// room on the disk.
    pub(crate) fn map(fd: RawFd) -> Result<Self, i32> {
        let mut options = MmapOptions::new();
        options.len(size_of::<RegionLayout>());
        options.map_raw(fd).map(Self).map_err(|e| errno_of(&e))
    }

    /// The region.
    #[inline]
    pub(crate) fn layout(&self) -> &RegionLayout {
        let at = self.0.as_ptr().cast::<RegionLayout>();
        // SAFETY: the mapping is as long as the type, page-aligned, lives as long as `self`, and
        // the type is made of atomics only, for which every bit pattern is a value and every
        // concurrent write is a race that atomics allow.
        unsafe { &*at }
    }
}

/// Memory of this process alone that a forked child finds zeroed.
#[derive(Debug)]
pub(crate) struct PrivateMap<T> {
    map: MmapRaw,
    of: std::marker::PhantomData<T>,
}

/// A type that may stand in a [`PrivateMap`].
///
/// # Safety
/// All zeros is a value of the type, it is made of atomics only, and its alignment is at most that
/// of a page.
pub(crate) unsafe trait Zeroed {}

impl<T: Zeroed> PrivateMap<T> {
    /// Maps zeroed memory. If the kernel cannot wipe it in a child (before Linux 4.14), the child
    /// has to do so.
    pub(crate) fn new() -> Result<Self, i32> {
        let map = MmapOptions::new()
            .len(size_of::<T>())
            .map_anon()
            .map_err(|e| errno_of(&e))?;
        let map = MmapRaw::from(map);
        // Without the wipe, `Region::after_fork_in_child` clears it in the child.
        let _wiped = crate::sys::wipe_on_fork(map.as_mut_ptr(), map.len());
        Ok(Self {
            map,
            of: std::marker::PhantomData,
        })
    }

    /// The value.
    #[inline]
    pub(crate) fn get(&self) -> &T {
        let at = self.map.as_ptr().cast::<T>();
        // SAFETY: the mapping is as long as the type and page-aligned, lives as long as `self`,
        // and `Zeroed` promises that zeros are a value and that all access is atomic.
        unsafe { &*at }
    }
}
