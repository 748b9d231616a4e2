//! The choices that CUDA's documentation leaves to a driver. The usual driver takes one, the driver of a contrary board
//! the other. Each is documented here with its reason, and in docs/simulated-gpu.md.

use crate::process::driver;

/// Whether this board's driver is contrary.
#[must_use]
pub(crate) fn contrary() -> bool {
    driver::get().is_some_and(|driver| driver.is_contrary)
}

const MIB: u64 = 1 << 20;

/// The unit in which physical memory is created and mapped, which `cuMemGetAllocationGranularity` returns.
#[must_use]
pub(crate) fn granularity() -> u64 {
    if contrary() { 64 << 10 } else { 2 * MIB }
}

/// From which size on plain memory is taken in big steps, and how big those are.
#[must_use]
pub(crate) fn steps() -> (u64, u64) {
    if contrary() {
        (64 << 10, 64 << 10)
    } else {
        (MIB, 2 * MIB)
    }
}

/// The least amount by which a pool grows.
#[must_use]
pub(crate) fn pool_chunk() -> u64 {
    if contrary() { 2 * MIB } else { 32 * MIB }
}

/// Whether a pool keeps empty memory when its GPU is waited for. A driver tries to free memory above the threshold,
/// but does not have to.
#[must_use]
pub(crate) fn pools_keep() -> bool {
    contrary()
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

/// Whether a function that a node of a graph is given is loaded by that call, or when the graph is launched.
#[must_use]
pub(crate) fn nodes_load() -> bool {
    contrary()
}

/// Whether a descriptor that this process has exported itself comes back as the handle that it was, rather than as
/// another one of the same memory.
#[must_use]
pub(crate) fn imports_own_handle() -> bool {
    contrary()
}

/// Whether all exported descriptors are of one inode.
#[must_use]
pub(crate) fn descriptors_alike() -> bool {
    contrary()
}

/// Whether the number of a handle is used again at once.
#[must_use]
pub(crate) fn reuses_handles() -> bool {
    contrary()
}

/// Whether freeing waits for everything before it in its stream, including kernels, or only for host work.
#[must_use]
pub(crate) fn frees_wait_for_kernels() -> bool {
    contrary()
}

/// Whether each allocation node of a graph has memory of its own until the device's graph memory is trimmed, rather
/// than memory that all graphs use in turn.
#[must_use]
pub(crate) fn graph_memory_is_apart() -> bool {
    contrary()
}

/// Whether an executable graph takes over the allocation nodes of another graph of the same shape. The documentation
/// names no limit for them, and no driver has to do it.
#[must_use]
pub(crate) fn updates_memory_nodes() -> bool {
    contrary()
}

/// Whether the reported memory of graphs is the memory that at least one graph has mapped, live or not, as CUDA's
/// guide says, rather than the memory allocated at the moment.
#[must_use]
pub(crate) fn graph_figure_is_mapped() -> bool {
    !contrary()
}

/// The steps in which events tell time, in nanoseconds. CUDA promises about half a microsecond.
#[must_use]
pub(crate) fn event_step_ns() -> u64 {
    if contrary() { 1024 } else { 1 }
}

/// Whether `cuGetProcAddress` answers with other addresses than the library exports. Asked before `cuInit` too.
#[must_use]
pub(crate) fn hands_out_other_addresses() -> bool {
    match driver::get() {
        Some(driver) => driver.is_contrary,
        None => crate::process::exported::wanted().is_contrary,
    }
}
