//! libcuda.so.1 of the simulated board: the driver API over `cuda_sim`, with every name that the
//! real library exports. What no module writes answers `CUDA_ERROR_NOT_SUPPORTED`.
//!
//! A module writes a driver function under the driver's own name, as plain Rust, beginning its line
//! with `pub(crate) fn cu…`; build.rs finds it there and makes the export around it.
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

mod border;
mod driver;
mod entry;
mod visible;

mod array;
mod capture;
mod checkpoint;
mod choices;
mod context;
mod copy;
mod device;
mod dmabuf;
mod event;
mod export_table;
mod exported;
mod external;
mod gpu;
mod graph;
mod graph_exec;
mod green;
mod helper;
mod image;
mod init;
mod ipc;
mod launch;
mod location;
mod memory;
mod memory_node;
mod module;
mod multicast;
mod newer;
mod ordered;
pub mod ours;
mod pool;
mod procaddr;
mod room;
mod space;
mod sparse;
mod stream;
mod table;
mod texture;
mod vmm;

/// What ends with a context, in this order; its memory is the last.
const AT_CONTEXT_END: &[fn(&'static context::Context)] = &[
    capture::context_gone,
    green::context_gone,
    export_table::context_gone,
    stream::context_gone,
    event::context_gone,
    module::context_gone,
    memory_node::context_gone,
    sparse::context_gone,
    array::context_gone,
    external::context_gone,
    memory::context_gone,
    pool::context_gone,
];

/// A driver function and where it is.
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

    use crate::{Address, entry};

    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

pub(crate) use exports::ADDRESSES;
