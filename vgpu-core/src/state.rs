//! What is known: the shared files of the container, and what this process remembers in memory that a fork
//! wipes. Decides nothing.

pub(crate) mod accounts;
pub(crate) mod container;
pub(crate) mod deferred_frees;
pub(crate) mod entries;
pub(crate) mod holdings;
pub(crate) mod launches;
pub(crate) mod leases;
pub(crate) mod process;
pub(crate) mod standing;
