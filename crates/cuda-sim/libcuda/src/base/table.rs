//! Handles that programs hold: each is the address of an object that the table keeps alive, so an invalid or expired
//! handle is recognised without reading through it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use cuda_api::driver::CuResult;

use crate::base::border::Done;

/// Objects of one kind by their handle.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// What a call with an invalid handle answers.
    invalid: CuResult,
    objects: RwLock<BTreeMap<usize, Arc<T>>>,
}

impl<T> Table<T> {
    /// An empty one; a call with an invalid handle answers `invalid`.
    pub(crate) const fn new(invalid: CuResult) -> Self {
        Self {
            invalid,
            objects: RwLock::new(BTreeMap::new()),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<usize, Arc<T>>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<usize, Arc<T>>> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an object; its handle is unique while it is kept.
    pub(crate) fn insert(&self, object: Arc<T>) -> usize {
        let handle = Arc::as_ptr(&object).addr();
        self.write().insert(handle, object);
        handle
    }

    /// The object of a handle.
    pub(crate) fn get(&self, handle: usize) -> Option<Arc<T>> {
        self.read().get(&handle).cloned()
    }

    /// The object of the handle that a call was passed.
    pub(crate) fn find(&self, handle: usize) -> Done<Arc<T>> {
        self.get(handle).ok_or(self.invalid)
    }

    /// Removes the object of the handle that a call was passed.
    pub(crate) fn end(&self, handle: usize) -> Done {
        self.remove(handle).map(drop).ok_or(self.invalid)
    }

    /// Removes an object; its handle is invalid from then on.
    pub(crate) fn remove(&self, handle: usize) -> Option<Arc<T>> {
        self.write().remove(&handle)
    }

    /// Every object for which `wanted` holds.
    pub(crate) fn select(&self, wanted: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let objects = self.read();
        let wanted = objects.values().filter(|object| wanted(object));
        wanted.cloned().collect()
    }

    /// Takes out every object for which `wanted` holds.
    pub(crate) fn take(&self, wanted: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let chosen = self.select(wanted);
        for object in &chosen {
            self.remove(Arc::as_ptr(object).addr());
        }
        chosen
    }
}
