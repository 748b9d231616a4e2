//! Reserve first: the algorithm that keeps the sum of all charges below the limit while any number
//! of processes race. Owns charge words, reserve, confirm, refund, release, and how a slot changes
//! hands, over small traits for the functions that they need from outside, so that the same code
//! runs under loom.
//!
//! Never makes a system call, reads a clock or maps a file.

mod reserve;
mod slots;
mod sums;
mod words;

use crate::atomic::AtomicU64;
use crate::layout::DeviceUse;

pub(crate) use self::reserve::*;
pub(crate) use self::slots::*;
pub(crate) use self::sums::*;
pub use self::words::MOST_BYTES;
pub(crate) use self::words::*;

/// The purpose of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Memory that the program asked for.
    Buffer,
    /// Contexts.
    Context,
    /// Modules and libraries.
    Module,
}

/// Room that was reserved: a plain value that may lie on the stack across the driver's call. It
/// must be handed back by `confirm` or `refund`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    pub(crate) bytes: u64,
    /// The slot and its generation, as the region packs them.
    pub(crate) packed: u64,
    /// The device's index, and [`Charge::BEYOND`]: whole words, so that copies of it are cheap.
    place: u64,
}

impl Charge {
    /// Counted as managed memory past the container's share of the device.
    const BEYOND: u64 = 1 << 32;

    #[inline(always)]
    pub(crate) fn new(device: usize, beyond: bool, bytes: u64, packed: u64) -> Self {
        let device = u64::from(u32::try_from(device).unwrap_or(u32::MAX));
        Self {
            bytes,
            packed,
            place: device | if beyond { Self::BEYOND } else { 0 },
        }
    }

    /// The device's index.
    #[must_use]
    #[inline]
    pub fn device(&self) -> usize {
        usize::try_from(self.place & u64::from(u32::MAX)).unwrap_or(usize::MAX)
    }

    /// How much, bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there was room only past the container's share of the device. The caller then asks the driver for
    /// managed memory.
    #[must_use]
    #[inline]
    pub fn is_beyond(&self) -> bool {
        self.place & Self::BEYOND != 0
    }

    /// Splits the charge into one of `bytes` and the rest. Each part is confirmed or refunded separately.
    #[must_use]
    pub fn split(self, bytes: u64) -> (Self, Self) {
        let bytes = bytes.min(self.bytes);
        let rest = self.bytes - bytes;
        (
            Self { bytes, ..self },
            Self {
                bytes: rest,
                ..self
            },
        )
    }
}

/// The bounds of a container on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The limit in all, bytes; 0 is no cap.
    pub limit: u64,
    /// The part of the limit that may be memory of the device itself, bytes; `u64::MAX` is all of it.
    pub resident: u64,
}

/// A limit, all of which may be memory of the device itself; 0 is no cap.
impl From<u64> for Bounds {
    fn from(limit: u64) -> Self {
        Self {
            limit,
            resident: Self::NO_CAP,
        }
    }
}

/// A request that was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The limit, bytes.
    pub limit: u64,
    /// Memory used, bytes.
    pub used: u64,
    /// Memory asked for, bytes.
    pub asked: u64,
    /// Of the limit, what could not be given because the driver holds it for the container beyond
    /// the charges, bytes.
    pub unaccounted: u64,
    /// Why.
    pub why: Why,
}

/// Why a request was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The confirmed memory and the request together exceed the limit.
    Full,
    /// A bounded wait for another process ran out.
    TimedOut,
    /// There is no slot for this process, or no such device.
    Closed,
    /// The confirmed memory and the request together exceed the container's share of the device itself,
    /// and only memory of the device would do. `limit` and `used` are of that share.
    NotPageable,
}

/// The words of the region that the algorithm reads.
pub(crate) trait Charges {
    /// Slots of this word of the bitmap that may hold charges; nothing beyond the last word.
    fn in_use(&self, word: usize) -> Option<u64>;
    /// The words of a slot's use of a device.
    fn cells(&self, slot: usize, device: usize) -> Option<&DeviceUse>;
    /// The charge word of all shared objects of a device.
    fn shared(&self, device: usize) -> Option<&AtomicU64>;
    /// The memory that contexts and modules of a process will take of a device whose runtime has been loading since
    /// `since_ns`: the most that such processes were seen to take, or `guess` before one was seen; 0 when the runtime
    /// has had enough time.
    fn expected(&self, device: usize, since_ns: u64, guess: u64) -> u64;
}

/// The locks and waits of the slow way. All waits end.
pub(crate) trait Outside: Charges {
    /// How long one request has waited already.
    type Wait;
    fn begin_wait(&self) -> Self::Wait;
    /// Becomes the one process and the one thread that decides about a device. False when the time
    /// is over.
    fn enter(&self, device: usize, wait: &mut Self::Wait) -> bool;
    fn leave(&self, device: usize);
    /// Keeps the shared-object table still. False when the time is over.
    fn enter_shared(&self, wait: &mut Self::Wait) -> bool;
    fn leave_shared(&self);
    /// Clears the slots of the dead; how many.
    fn reap(&self, wait: &mut Self::Wait) -> usize;
    /// Lets others go on. False when the time is over.
    fn pause(&self, wait: &mut Self::Wait) -> bool;
}

#[cfg(all(test, loom))]
mod loom_tests;
