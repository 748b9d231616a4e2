//! The memory that this process holds, kept in step with the driver's figures, and requests for more.

pub(crate) mod deferred_free_charges;
pub(crate) mod descriptors;
pub(crate) mod exports;
pub(crate) mod graph_charges;
pub(crate) mod known_contexts;
pub(crate) mod locate;
pub(crate) mod location;
pub(crate) mod measure;
pub(crate) mod module_charges;
pub(crate) mod mps;
pub(crate) mod objects;
pub(crate) mod offer_charges;
pub(crate) mod patience;
pub(crate) mod pointers;
pub(crate) mod pool_charges;
pub(crate) mod requests;
pub(crate) mod sparse_charges;
