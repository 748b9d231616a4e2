//! Memory, and the contexts that it belongs to: the table of all blocks, pools, physical memory,
//! arrays, the memory of graphs and modules. Knows no stream.

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
