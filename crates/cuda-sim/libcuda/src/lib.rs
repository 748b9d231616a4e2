//! libcuda.so.1 of the simulated board: the driver API over `cuda_sim`, with every name that the real library
//! exports. Functions that no module implements return `CUDA_ERROR_NOT_SUPPORTED`.
//!
//! The driver's functions are in `calls`. A short one is a row of its file's table `calls!`, which takes the types of
//! the arguments from `cuda_api::driver_functions!`; a longer one is plain Rust under the driver's own name, on a
//! line that begins with `pub(crate) fn cu…`. build.rs finds both and makes the exports around them.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a driver's border: C callers pass pointers and sizes that only their contract vouches for"
)]
#![allow(non_snake_case, reason = "functions carry the driver's names")]
#![allow(
    missing_docs,
    reason = "the exports are the driver's own, documented by its maker"
)]

#[macro_use]
mod signatures {
    include!(concat!(env!("OUT_DIR"), "/typed.rs"));
}

mod base;
mod calls;
mod memory;
pub mod process;
mod streams;

use crate::calls::{export_table, external, green};
use crate::memory::{array, blocks, context, graph_memory, pool_blocks, sparse};
use crate::streams::{capturing, event, module, stream};

/// The functions called at the end of a context, in this order; its memory is the last.
const AT_CONTEXT_END: &[fn(&'static context::Context)] = &[
    capturing::context_gone,
    green::context_gone,
    export_table::context_gone,
    stream::context_gone,
    event::context_gone,
    module::context_gone,
    graph_memory::context_gone,
    sparse::context_gone,
    array::context_gone,
    external::context_gone,
    blocks::context_gone,
    pool_blocks::context_gone,
];

/// A driver function and its address.
pub(crate) struct Address {
    pub(crate) name: &'static str,
    pub(crate) address: *const (),
    /// The same function at another address.
    pub(crate) other: *const (),
}

// SAFETY: addresses of functions; nothing is read through them.
unsafe impl Sync for Address {}

mod exports {
    #![allow(
        non_upper_case_globals,
        clippy::fn_to_numeric_cast_any,
        clippy::zero_ptr,
        unreachable_pub,
        dead_code,
        clippy::redundant_closure,
        unused_qualifications,
        reason = "made by build.rs from the table of signatures"
    )]
    use cuda_api::driver::*;

    use crate::Address;
    use crate::calls::entry;

    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

pub(crate) use exports::ADDRESSES;
