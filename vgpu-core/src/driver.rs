//! The real driver and NVML: the addresses of their functions, the queries that the library makes itself, the
//! definition of a hook, and which GPU a device is.

pub(crate) mod addresses;
pub(crate) mod device;
pub(crate) mod genuine;
pub(crate) mod gpus;
pub(crate) mod hook;
pub(crate) mod query;
