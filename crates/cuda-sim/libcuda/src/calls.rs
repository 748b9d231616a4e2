//! The driver's functions, one file for each topic. They check the program's arguments and call the layers
//! below. `entry` wraps each of them.

/// Driver functions, a row for each: its names, its arguments, and what it does. The types of the
/// arguments are those of its row in `cuda_api::driver_functions!`, so functions that differ in types
/// alone share a row here.
macro_rules! calls {
    (@row [$($name:ident)+] $arguments:tt $body:expr) => {
        $(typed! { $name $arguments $body })+
    };
    ($($($name:ident),+ ($($argument:ident),*) => $body:expr;)*) => {
        $(calls! { @row [$($name)+] ($($argument),*) $body })*
    };
}

pub(crate) mod array;
pub(crate) mod capture;
pub(crate) mod checkpoint;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod dmabuf;
pub(crate) mod entry;
pub(crate) mod event;
pub(crate) mod export_table;
pub(crate) mod external;
pub(crate) mod graph;
pub(crate) mod graph_exec;
pub(crate) mod graph_memory;
pub(crate) mod green;
pub(crate) mod init;
pub(crate) mod ipc;
pub(crate) mod launch;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod multicast;
pub(crate) mod newer;
pub(crate) mod ordered;
pub(crate) mod pool;
pub(crate) mod procaddr;
pub(crate) mod sparse;
pub(crate) mod stream;
pub(crate) mod texture;
pub(crate) mod vmm;
