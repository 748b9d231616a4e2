//! Functions and executable graphs that were handed out and not launched yet, in a table by the number under which
//! launches name them. Looked at without a lock; calls the driver once, for how it loads.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cuda_api::CuGraphExec;

use crate::base::lock::Lock;
use crate::driver::query::{self, LoadingMode};
use crate::state::launches::costs::Work;

/// Functions that can be remembered, those included that were launched since. One that finds no place is
/// measured when memory is next asked for.
const PLACES: usize = 4096;

/// Places that a number may have, from its home on.
const PROBES: usize = 32;

/// FirstUse::number: nothing, ever; nothing any more.
const EMPTY: u64 = 0;

const GONE: u64 = 2;

/// FirstUse::state.
const WAITS: u32 = 0;

const USED: u32 = 1;

/// The functions and graphs that wait for their first use. All zeros is an empty table.
#[repr(C)]
pub(crate) struct FirstUses {
    /// How many wait.
    waiting: AtomicU32,
    /// How the driver loads modules: 0 is not known, else a `LoadingMode` plus one.
    mode: AtomicU32,
    /// Held while a place is given to a number, or taken from it. No call of the driver is made meanwhile.
    lock: Lock,
    places: [FirstUsePlace; PLACES],
}

#[repr(C)]
struct FirstUsePlace {
    /// The function or graph as launches name it (`Work`); odd.
    number: AtomicU64,
    /// The module or library that it is of; 0 is none.
    owner: AtomicU64,
    /// The other number of the same function: a library's kernel has one for itself and one for its
    /// function in the context.
    twin: AtomicU64,
    state: AtomicU32,
}

fn home(number: u64) -> usize {
    // The numbers are mixed already.
    (number >> 8) as usize % PLACES
}

impl FirstUses {
    /// Does anything wait for its first launch?
    #[inline(always)]
    pub(crate) fn is_any_waiting(&self) -> bool {
        // Relaxed: the thread that launches a function was given it before.
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Does this wait for its first launch?
    #[inline(always)]
    pub(crate) fn waits(&self, number: u64) -> bool {
        self.is_any_waiting() && self.is_waiting(number)
    }

    #[inline(never)]
    fn is_waiting(&self, number: u64) -> bool {
        self.find(number).is_some_and(|place| {
            // Relaxed: as above.
            place.state.load(Ordering::Relaxed) == WAITS
        })
    }

    fn probes(&self, number: u64) -> impl Iterator<Item = &FirstUsePlace> {
        let places = self.places.iter().cycle().skip(home(number));
        places.take(PROBES)
    }

    fn find(&self, number: u64) -> Option<&FirstUsePlace> {
        for place in self.probes(number) {
            // Acquire: the words beside the number were written before it.
            match place.number.load(Ordering::Acquire) {
                EMPTY => return None,
                found if found == number => return Some(place),
                _ => {}
            }
        }
        None
    }

    /// Remembers it, unless it is known. False where there is no place for it.
    pub(crate) fn insert(&self, number: u64, owner: u64, twin: u64) -> bool {
        let Some(_held) = self.lock.hold_briefly() else {
            return false;
        };
        if let Some(place) = self.find(number) {
            if twin != 0 {
                // Relaxed: under the lock, and read by the thread that is given the twin after this.
                place.twin.store(twin, Ordering::Relaxed);
            }
            return true;
        }
        let free = self.probes(number).find(|place| {
            // Relaxed: under the lock.
            place.number.load(Ordering::Relaxed) <= GONE
        });
        let Some(place) = free else { return false };
        // Relaxed: the number is stored last.
        place.owner.store(owner, Ordering::Relaxed);
        place.twin.store(twin, Ordering::Relaxed);
        place.state.store(WAITS, Ordering::Relaxed);
        // Relaxed: see `waits`.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Release: pairs with the Acquire of `find`.
        place.number.store(number, Ordering::Release);
        true
    }

    /// Is this one of the table, whether it was used or not?
    pub(crate) fn knows(&self, number: u64) -> bool {
        self.find(number).is_some()
    }

    /// The module or library that this is of; `None` where the table does not know.
    pub(crate) fn owner(&self, number: u64) -> Option<u64> {
        let place = self.find(number)?;
        // Relaxed: written before the number.
        Some(place.owner.load(Ordering::Relaxed)).filter(|&owner| owner != 0)
    }

    /// It is used now, for the first time: returns its owner. Once for each, in one thread.
    pub(crate) fn take(&self, number: u64) -> Option<u64> {
        // Relaxed: as in `waits`.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let place = self.find(number)?;
        if !self.use_up(place) {
            return None;
        }
        // Relaxed: written before the number.
        if let Some(twin) = self.find(place.twin.load(Ordering::Relaxed)) {
            self.use_up(twin);
        }
        Some(place.owner.load(Ordering::Relaxed))
    }

    fn use_up(&self, place: &FirstUsePlace) -> bool {
        // Relaxed: one of the threads that launch it wins.
        let won = place
            .state
            .compare_exchange(WAITS, USED, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if won {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        won
    }

    /// Waits again for a first use: the function was not used after all, or its number may now be that of another
    /// function.
    pub(crate) fn wait_again(&self, number: u64) {
        let Some(place) = self.find(number) else {
            return;
        };
        // Relaxed: as in `use_up`.
        if place
            .state
            .compare_exchange(USED, WAITS, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Those that this says are gone: their numbers may come again.
    fn forget(&self, places: &[FirstUsePlace], is_gone: impl Fn(u64, u64) -> bool) {
        let Some(_held) = self.lock.hold() else {
            return;
        };
        for place in places {
            // Relaxed: under the lock, as all below.
            let number = place.number.load(Ordering::Relaxed);
            if number > GONE && is_gone(number, place.owner.load(Ordering::Relaxed)) {
                self.use_up(place);
                place.number.store(GONE, Ordering::Relaxed);
            }
        }
    }

    /// A module or a library was unloaded, and its functions with it.
    pub(crate) fn forget_owner(&self, owner: u64) {
        if owner != 0 {
            self.forget(&self.places, |_, its_owner| its_owner == owner);
        }
    }

    /// An executable graph was destroyed or made: from now on its number is that of another graph.
    pub(crate) fn forget_graph(&self, exec: CuGraphExec) {
        let number = Work::graph(exec as usize).key;
        if self.find(number).is_some() {
            self.forget(&self.places, |its_number, _| its_number == number);
        }
    }

    /// Does the driver load modules lazily?
    pub(crate) fn is_lazy(&self) -> bool {
        // Relaxed: every thread finds the same.
        let known = match self.mode.load(Ordering::Relaxed) {
            0 => {
                let mode = query::loading_mode();
                self.mode.store(mode as u32 + 1, Ordering::Relaxed);
                mode as u32 + 1
            }
            known => known,
        };
        known == LoadingMode::Lazy as u32 + 1
    }
}

/// The number under which launches name a function.
pub(crate) fn number_of<F>(function: *mut F) -> u64 {
    Work::kernel(function as usize, [1; 3], [1; 3]).function
}

/// The number of the function or graph whose first use a launch may be.
pub(crate) fn number_in(work: Work) -> u64 {
    match work.function {
        0 => work.key,
        function => function,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Box<FirstUses> {
        // SAFETY: all zeros is an empty table.
        unsafe { Box::<FirstUses>::new_zeroed().assume_init() }
    }

    fn number(name: usize) -> u64 {
        Work::kernel(name, [1; 3], [1; 3]).function
    }

    #[test]
    fn a_function_waits_until_its_first_use() {
        let uses = table();
        assert!(!uses.waits(number(1)));
        assert!(uses.insert(number(1), 7, 0));
        assert!(uses.insert(number(1), 7, 0));

        assert!(uses.waits(number(1)));
        assert!(!uses.waits(number(2)));
        assert_eq!(uses.take(number(2)), None);
        assert_eq!(uses.take(number(1)), Some(7));
        assert_eq!(uses.take(number(1)), None);
        assert!(!uses.waits(number(1)));
        // Handed out again: it was launched.
        assert!(uses.insert(number(1), 7, 0));
        assert!(!uses.waits(number(1)));

        uses.wait_again(number(1));
        assert_eq!(uses.take(number(1)), Some(7));
    }

    #[test]
    fn a_kernel_and_its_function_are_used_at_once() {
        let uses = table();
        assert!(uses.insert(number(1), 7, 0));
        assert!(uses.insert(number(2), 7, number(1)));
        assert!(uses.insert(number(1), 7, number(2)));

        assert_eq!(uses.take(number(2)), Some(7));
        assert!(!uses.waits(number(1)));
        // Relaxed: one thread.
        assert_eq!(uses.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_unloaded_module_takes_its_functions_along() {
        let uses = table();
        for name in 1..=6 {
            assert!(uses.insert(number(name), 7 + name as u64 % 2, 0));
        }
        assert_eq!(uses.take(number(1)), Some(8));

        uses.forget_owner(8);

        assert!(!uses.waits(number(3)));
        assert!(uses.waits(number(2)));
        // Relaxed: one thread.
        assert_eq!(uses.waiting.load(Ordering::Relaxed), 3);
        // The number comes again.
        assert!(uses.insert(number(1), 9, 0));
        assert_eq!(uses.take(number(1)), Some(9));
    }

    #[test]
    fn a_table_that_is_full_says_so() {
        let uses = table();
        let kept = (1..=2 * PLACES).filter(|&name| uses.insert(number(name), 1, 0));
        let kept: Vec<_> = kept.collect();

        assert!(kept.len() > PLACES / 2 && kept.len() <= PLACES);
        assert!(kept.iter().all(|&name| uses.take(number(name)) == Some(1)));
        // Relaxed: one thread.
        assert_eq!(uses.waiting.load(Ordering::Relaxed), 0);
    }
}
