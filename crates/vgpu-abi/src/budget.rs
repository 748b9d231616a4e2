//! Reserve first: the algorithm that keeps the sum of all charges below the limit while any number
//! of processes race. Owns charge words, reserve, confirm, refund, release, join and reap, over a
//! small trait for what they need of the outside, so that the same code runs under loom.
//!
//! Never makes a system call, reads a clock or maps a file.

/// What memory was taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// What the program asked for.
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
    pub(crate) device: u32,
    pub(crate) bytes: u64,
    pub(crate) me: u64,
}

impl Charge {
    /// The device's index.
    #[must_use]
    pub fn device(&self) -> usize {
        self.device as usize
    }

    /// How much, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A request that was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The limit, bytes.
    pub limit: u64,
    /// What was used, bytes.
    pub used: u64,
    /// What was asked for, bytes.
    pub asked: u64,
    /// Why.
    pub why: Why,
}

/// Why a request was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// What is confirmed and what was asked for exceed the limit.
    Full,
    /// A bounded wait for another process ran out.
    TimedOut,
    /// There is no slot for this process, no such device, or more bytes than any device has.
    Closed,
}
