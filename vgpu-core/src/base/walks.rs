//! Walks over the loaded objects beside forks. During a walk glibc holds a lock of its loader that a fork neither waits for
//! nor resets in the child. A child that was forked during another thread's walk would wait for that lock for ever, at its own
//! first walk or `dlopen`. So a fork waits for the library's walks, and a new walk waits for a fork. Both waits end after a
//! while: the forking thread itself may hold the loader's lock that a walk waits for.

use core::sync::atomic::{AtomicU32, Ordering};

/// What a thread that forks adds to [`Walks`]. A thread that walks adds 1.
const FORK: u32 = 1 << 16;
/// How often a thread looks whether its wait is over. Each look gives the processor away and takes a third of a microsecond at
/// least, and a walk some tens of microseconds.
const LOOKS: u32 = 100_000;

/// How many threads walk and how many fork.
pub(crate) struct Walks(AtomicU32);

/// The walks and forks of this process.
pub(crate) static WALKS: Walks = Walks::new();

/// A walk, until it is dropped.
pub(crate) struct Walk<'a>(&'a Walks);

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        // Release: what the walk did comes before a fork that has waited for it.
        self.0.0.fetch_sub(1, Ordering::Release);
    }
}

impl Walks {
    const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Begins a walk, after the forks that have begun.
    pub(crate) fn begin(&self) -> Walk<'_> {
        let more = |state: u32| (state < FORK).then_some(state + 1);
        for _ in 0..LOOKS {
            // Acquire: see `Walk::drop`. Relaxed: the next look decides.
            let begun = self
                .0
                .fetch_update(Ordering::Acquire, Ordering::Relaxed, more);
            if begun.is_ok() {
                return Walk(self);
            }
            std::thread::yield_now();
        }
        // Acquire: as above.
        self.0.fetch_add(1, Ordering::Acquire);
        Walk(self)
    }

    /// A thread is about to fork: waits for the walks of others.
    pub(crate) fn before_fork(&self) {
        // Acquire, here and below: see `Walk::drop`.
        let mut state = self.0.fetch_add(FORK, Ordering::Acquire);
        for _ in 0..LOOKS {
            if state.is_multiple_of(FORK) {
                return;
            }
            std::thread::yield_now();
            state = self.0.load(Ordering::Acquire);
        }
    }

    /// It has forked, in the parent.
    pub(crate) fn after_fork_in_parent(&self) {
        // Release: a walk that waits may begin.
        self.0.fetch_sub(FORK, Ordering::Release);
    }

    /// It has forked, in the child: other threads are not there, nor their walks.
    pub(crate) fn after_fork_in_child(&self) {
        // Relaxed: the child has one thread.
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    const SHORT: Duration = Duration::from_millis(5);

    #[test]
    fn fork_waits_for_a_walk_and_a_new_walk_for_the_fork() {
        let walks = Walks::new();
        let (said, heard) = channel();
        std::thread::scope(|scope| {
            let walk = walks.begin();
            let says = said.clone();
            scope.spawn(|| {
                let says = says;
                walks.before_fork();
                says.send("forks").unwrap();
                std::thread::sleep(SHORT);
                says.send("has forked").unwrap();
                walks.after_fork_in_parent();
            });
            while walks.0.load(Ordering::Relaxed) < FORK {
                std::thread::yield_now();
            }
            said.send("walked").unwrap();
            drop(walk);
            let _later = walks.begin();
            said.send("walks again").unwrap();
        });
        drop(said);

        let order: Vec<_> = heard.iter().collect();
        assert_eq!(order, ["walked", "forks", "has forked", "walks again"]);
        assert_eq!(walks.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn walks_do_not_wait_for_each_other() {
        let walks = Walks::new();
        let (_one, _other) = (walks.begin(), walks.begin());
    }

    #[test]
    fn forked_child_knows_no_walk_and_no_fork() {
        let walks = Walks::new();
        core::mem::forget(walks.begin());
        walks.before_fork();
        walks.after_fork_in_child();
        assert_eq!(walks.0.load(Ordering::Relaxed), 0);
    }
}
