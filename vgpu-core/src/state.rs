//! State: the container's shared files, and this process's own tables, which a fork clears. Makes no decisions.

pub(crate) mod accounts;
pub(crate) mod container;
pub(crate) mod deferred_free_table;
pub(crate) mod entries;
pub(crate) mod holdings;
pub(crate) mod launches;
pub(crate) mod leases;
pub(crate) mod process;
pub(crate) mod standing;
