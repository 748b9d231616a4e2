//! Which changes of the disk exclude each other: two of one container, and any of them while all leftovers are cleared.
//! Changes of different containers run at the same time.
//!
//! A thread takes its turn first and the lock on the loads afterwards, and holds that lock for no change of the disk.

use std::collections::BTreeSet;

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Name;

/// The turns of one state directory.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Held for reading by each change of a container, and for writing while leftovers are cleared.
    quiet: RwLock<()>,
    /// The containers that are being changed.
    busy: Mutex<BTreeSet<Name>>,
    /// A container is no longer being changed.
    ended: Condvar,
}

/// The right to change one container's files, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    name: &'a Name,
    _changes: RwLockReadGuard<'a, ()>,
}

impl Turns {
    /// Waits until no other thread changes this container's files. A thread has one turn at a time.
    pub(super) fn of<'a>(&'a self, name: &'a Name) -> Turn<'a> {
        let changes = self.quiet.read();
        let mut busy = self.busy.lock();
        while busy.contains(name) {
            self.ended.wait(&mut busy);
        }
        busy.insert(name.clone());
        Turn {
            turns: self,
            name,
            _changes: changes,
        }
    }

    /// Waits until no thread changes any container's files, and lets none begin.
    pub(super) fn all(&self) -> RwLockWriteGuard<'_, ()> {
        self.quiet.write()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.busy.lock().remove(self.name);
        self.turns.ended.notify_all();
    }
}
