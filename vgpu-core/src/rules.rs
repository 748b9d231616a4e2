//! The rules that run before and after each call of the driver. They share only what the layers below provide.

pub(crate) mod arrays;
pub(crate) mod checkpoint;
pub(crate) mod compute;
pub(crate) mod contexts;
pub(crate) mod dispatch;
pub(crate) mod external;
pub(crate) mod first_use;
pub(crate) mod graph_launches;
pub(crate) mod graphs;
pub(crate) mod ipc;
pub(crate) mod libraries;
pub(crate) mod memory;
pub(crate) mod modules;
pub(crate) mod nvml;
pub(crate) mod offers;
pub(crate) mod pools;
pub(crate) mod report;
pub(crate) mod sparse;
pub(crate) mod stream_frees;
pub(crate) mod virtual_memory;
