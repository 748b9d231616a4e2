//! The choices that CUDA's documentation leaves to a driver. The usual driver takes one, the driver of a contrary board
//! the other. Each is documented here with its reason, and in docs/simulated-gpu.md.

use crate::process::driver;

/// Whether this board's driver is contrary.
#[must_use]
pub(crate) fn contrary() -> bool {
    driver::get().is_some_and(|driver| driver.is_contrary)
}

const MIB: u64 = 1 << 20;

/// Choices of which the usual driver takes the first and the contrary one the second: a flag, or a number.
macro_rules! choices {
    ($($(#[$doc:meta])+ $name:ident: $ty:ty = $usual:expr, $contrary:expr;)+) => {$(
        $(#[$doc])+
        #[must_use]
        pub(crate) fn $name() -> $ty {
            if contrary() { $contrary } else { $usual }
        }
    )+};
}

choices! {
    /// The unit in which physical memory is created and mapped, which `cuMemGetAllocationGranularity` returns.
    granularity: u64 = 2 * MIB, 64 << 10;
    /// From which size on plain memory is taken in big steps, and how big those are.
    steps: (u64, u64) = (MIB, 2 * MIB), (64 << 10, 64 << 10);
    /// The least amount by which a pool grows.
    pool_chunk: u64 = 32 * MIB, 2 * MIB;
    /// The steps in which events tell time, in nanoseconds. CUDA promises about half a microsecond.
    event_step_ns: u64 = 1, 1024;
    /// Whether a pool keeps empty memory when its GPU is waited for. A driver tries to free memory above the threshold,
    /// but does not have to.
    pools_keep: bool = false, true;
    /// Whether a function that a node of a graph is given is loaded by that call, or when the graph is launched.
    nodes_load: bool = false, true;
    /// Whether a descriptor that this process has exported itself comes back as the handle that it was, rather than as
    /// another one of the same memory.
    imports_own_handle: bool = false, true;
    /// Whether all exported descriptors are of one inode.
    descriptors_alike: bool = false, true;
    /// Whether the number of a handle is used again at once.
    reuses_handles: bool = false, true;
    /// Whether freeing waits for everything before it in its stream, including kernels, or only for host work.
    frees_wait_for_kernels: bool = false, true;
    /// Whether each allocation node of a graph has memory of its own until the device's graph memory is trimmed, rather
    /// than memory that all graphs use in turn.
    graph_memory_is_apart: bool = false, true;
    /// Whether an executable graph takes over the allocation nodes of another graph of the same shape. The documentation
    /// names no limit for them, and no driver has to do it.
    updates_memory_nodes: bool = false, true;
    /// Whether the reported memory of graphs is the memory that at least one graph has mapped, live or not, as CUDA's
    /// guide says, rather than the memory allocated at the moment.
    graph_figure_is_mapped: bool = true, false;
}

/// The memory of a context, of which a whole one takes `whole`: either contexts share what the first one of a process
/// has made, or not; a green one works in its primary one's memory.
#[must_use]
pub(crate) fn context_bytes(whole: u64, is_green: bool, has_other: bool) -> u64 {
    match (is_green, contrary()) {
        (true, true) => 0,
        (true, false) => (2 * MIB).min(whole),
        (false, true) if has_other => (whole / 2).next_multiple_of(512),
        (false, _) => whole,
    }
}

/// Whether modules take their memory at their first use. The variable decides on every driver; without it, CUDA
/// before 12.2 was eager and is lazy since.
#[must_use]
pub(crate) fn lazy_modules() -> bool {
    match std::env::var("CUDA_MODULE_LOADING").as_deref() {
        Ok("LAZY") => true,
        Ok("EAGER") => false,
        _ => contrary(),
    }
}

/// The loading mode that a program is told. The usual driver reports "lazy" if nothing is set, as CUDA has since 12.2,
/// although its modules take their memory at once.
#[must_use]
pub(crate) fn says_lazy() -> bool {
    std::env::var("CUDA_MODULE_LOADING").as_deref() != Ok("EAGER")
}

/// Whether `cuGetProcAddress` answers with other addresses than the library exports. Asked before `cuInit` too.
#[must_use]
pub(crate) fn hands_out_other_addresses() -> bool {
    match driver::get() {
        Some(driver) => driver.is_contrary,
        None => crate::process::exported::wanted().is_contrary,
    }
}
