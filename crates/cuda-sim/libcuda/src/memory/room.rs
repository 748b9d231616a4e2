//! The memory that a module takes of its GPU, code and variables: at once, or at its first use.

use std::sync::Mutex;

use cuda_sim::board::Kind;

use crate::base::border::{Done, lock, stepped};
use crate::memory::context::Ctx;
use crate::process::choices;
use crate::process::driver;

/// A module's memory.
#[derive(Debug)]
pub(crate) struct Room {
    context: Ctx,
    /// The memory that it takes once it is used.
    bytes: u64,
    /// The memory that it has taken.
    taken: Mutex<u64>,
}

impl Room {
    /// For a module whose memory is counted elsewhere.
    pub(crate) fn none(context: Ctx) -> Self {
        Self {
            context,
            bytes: 0,
            taken: Mutex::new(0),
        }
    }

    /// The room of a module with this many bytes, taken at once unless modules are loaded lazily.
    ///
    /// # Errors
    /// When the GPU has no room for it.
    pub(crate) fn of_module(context: Ctx, bytes: u64) -> Done<Self> {
        let room = Self {
            context,
            bytes: stepped(bytes.max(1), choices::granularity())?,
            ..Self::none(context)
        };
        if !choices::lazy_modules() {
            room.fill()?;
        }
        Ok(room)
    }

    /// Takes it, unless that has been done.
    ///
    /// # Errors
    /// When the GPU has no room for it.
    pub(crate) fn fill(&self) -> Done {
        let mut taken = lock(&self.taken);
        if *taken < self.bytes {
            driver::the()?.take(self.context.gpu, self.bytes, Kind::Overhead)?;
            *taken = self.bytes;
        }
        Ok(())
    }

    /// Whether it is taken.
    pub(crate) fn is_full(&self) -> bool {
        *lock(&self.taken) >= self.bytes
    }

    /// Gives it back.
    pub(crate) fn empty(&self) {
        let taken = std::mem::take(&mut *lock(&self.taken));
        // In a forked child the parent's memory is not the child's to give back.
        if let Some(driver) = driver::get() {
            driver.give(self.context.gpu, taken, Kind::Overhead);
        }
    }
}
