//! Memory and its contexts: the table of all blocks, pools, physical memory, arrays, and the memory of graphs
//! and modules. Knows nothing about streams.

pub(crate) mod array;
pub(crate) mod blocks;
pub(crate) mod context;
pub(crate) mod graph_memory;
pub(crate) mod physical;
pub(crate) mod pool;
pub(crate) mod pool_blocks;
pub(crate) mod room;
pub(crate) mod shared;
pub(crate) mod sparse;
