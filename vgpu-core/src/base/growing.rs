//! A table that grows: its first places lie in the process's own state, further ones in memory of their
//! own. Places are never given back, so a reference to one stays good. All zeros is an empty table, so
//! a forked child begins with one. Takes no lock and never allocates from the host's allocator.

use core::sync::atomic::{AtomicPtr, Ordering};

use crate::base::map;

/// Places in the state itself.
const FIRST: usize = 32;
/// Places of each further piece.
const MORE: usize = 128;

/// A record for which all zeros is an unused place.
///
/// # Safety
/// Zeroed memory must be a value of the type, and all changes must go through atomics.
pub(crate) unsafe trait Element: Sync + 'static {}

/// See the module's text.
#[repr(C)]
pub(crate) struct Growing<T: Element> {
    first: [T; FIRST],
    more: AtomicPtr<GrowingPiece<T>>,
}

#[repr(C)]
struct GrowingPiece<T> {
    places: [T; MORE],
    more: AtomicPtr<GrowingPiece<T>>,
}

impl<T: Element> Growing<T> {
    /// Every place, used or not, in an order that stays.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let pieces = core::iter::successors(next(&self.more), |piece| next(&piece.more));
        self.first
            .iter()
            .chain(pieces.flat_map(|piece| &piece.places))
    }

    /// Adds places. False where there is no memory for them. Only under the table's own lock.
    pub(crate) fn grow(&self) -> bool {
        let mut end = &self.more;
        while let Some(piece) = next(end) {
            end = &piece.more;
        }
        let Some(memory) = map::zeroed(size_of::<GrowingPiece<T>>()) else {
            return false;
        };
        // Release: the places are zeros before they are seen.
        end.store(memory.cast(), Ordering::Release);
        true
    }
}

fn next<T: Element>(link: &AtomicPtr<GrowingPiece<T>>) -> Option<&GrowingPiece<T>> {
    // Acquire: see `grow`.
    let piece = link.load(Ordering::Acquire);
    // SAFETY: null, or mapped as zeros by `grow` with the size of a piece, and never unmapped.
    unsafe { piece.as_ref() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    // SAFETY: an atomic word of which zero is a value.
    unsafe impl Element for AtomicU64 {}

    #[test]
    fn a_table_grows_and_keeps_its_places() {
        // SAFETY: all zeros is an empty table.
        let table = unsafe { Box::<Growing<AtomicU64>>::new_zeroed().assume_init() };
        let first: *const AtomicU64 = table.iter().next().unwrap();
        assert_eq!(table.iter().count(), FIRST);

        assert!(table.grow());
        assert!(table.grow());
        for (at, place) in table.iter().enumerate() {
            // Relaxed: one thread.
            place.store(at as u64, Ordering::Relaxed);
        }

        assert_eq!(table.iter().count(), FIRST + 2 * MORE);
        assert!(core::ptr::eq(table.iter().next().unwrap(), first));
        let last = table.iter().last().unwrap();
        assert_eq!(
            // Relaxed: one thread.
            last.load(Ordering::Relaxed),
            (FIRST + 2 * MORE - 1) as u64
        );
    }
}
