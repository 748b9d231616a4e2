//! Where a killed agent may stop. In tests a process ends itself at one of these places; elsewhere they are nothing.

/// A place between two changes of the disk.
#[cfg(not(test))]
#[inline]
pub(crate) fn step() {}

#[cfg(test)]
pub(crate) use armed::{arm, at_each, step};

#[cfg(test)]
mod armed {
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicI64, Ordering};

    static LEFT: AtomicI64 = AtomicI64::new(-1);

    thread_local! {
        static CALLED: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    }

    /// This process ends at the step of this number, counted from 0; a negative number is never.
    pub(crate) fn arm(steps: i64) {
        LEFT.store(steps, Ordering::Relaxed);
    }

    /// This thread calls `act` at each of its steps from here on.
    pub(crate) fn at_each(act: impl FnMut() + 'static) {
        CALLED.set(Some(Box::new(act)));
    }

    pub(crate) fn step() {
        if LEFT.load(Ordering::Relaxed) >= 0 && LEFT.fetch_sub(1, Ordering::Relaxed) == 0 {
            // As a kill does: nothing is cleaned up.
            std::process::abort();
        }
        CALLED.with_borrow_mut(|called| {
            if let Some(act) = called {
                act();
            }
        });
    }
}
