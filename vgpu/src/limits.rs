//! Which GPUs a container gets, and its share of each.
//!
//! [`Wish`] is what the command line asks for, [`Outer`] the limits that already apply to this process, and [`share`]
//! decides from both and from the machine's GPUs. Only [`outer`] and [`read_outer`] read anything; all other functions
//! take values and return values. They never round or clamp: a request that cannot be granted is an error that says
//! what can.

mod device;
mod outer;
mod share;
mod wish;

pub(crate) use device::{cap_of, check_floor, check_memory, percent_of, resident_of, set_memory};
pub(crate) use outer::{Outer, outer, read_outer};
pub(crate) use share::{Share, Shares, find, limits_of, share};
pub(crate) use wish::{Given, Wish};

#[cfg(test)]
mod tests;
