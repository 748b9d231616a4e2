//! The genuine driver and NVML: where their functions are, what we ask them ourselves, what a hook of one of
//! them is, and which card a device is.

pub(crate) mod addresses;
pub(crate) mod cards;
pub(crate) mod device;
pub(crate) mod genuine;
pub(crate) mod hook;
pub(crate) mod query;
