//! Questions that we ask the driver ourselves, as safe functions: the genuine ones only, never through a hook.
//! Answers `None` where the driver does not know. Changes nothing in the driver, and runs what could
//! disturb a capture under the relaxed capture mode.

mod contexts;
mod devices;
mod graphs;
mod memory;
mod modules;
mod nvml;
mod pools;
mod streams;

pub(crate) use contexts::{
    context_limit, context_ordinal, current_context, current_ordinal, destroy_context,
    destroy_green, memory_info, primary_context, primary_is_active, release_primary,
    stream_context,
};
pub(crate) use devices::{
    CONCURRENT_MANAGED_ACCESS, MULTIPROCESSORS, THREADS_PER_MULTIPROCESSOR, device_attribute,
    device_count, device_granularity, device_uuids, driver_version, proc_address, process_state,
    total_bytes, visible_devices,
};
pub(crate) use graphs::{
    MemoryNode, NODE_ALLOC, child_of, destroy_graph_exec, graph_figures, graph_reserved, kernel_of,
    memory_nodes, trim_graphs,
};
pub(crate) use memory::{
    allocation_bytes, allocation_of, allocation_properties, array_bytes, close_ipc, free_async,
    free_import, imported_bytes, mipmapped_bytes, ordinal_of_pointer, pool_of_pointer,
    prefer_device, release_memory, resource_bytes, sparse_tile, unmap_resources,
};
pub(crate) use modules::{
    LoadingMode, function_count, is_loaded, kernel_count, library_of, loading_mode, module_of,
    unload_library, unload_module,
};
pub(crate) use nvml::{
    gpu_of, gpu_uuid, lists_process, nvml_index, own_bytes, parse_uuid, used_bytes,
};
pub(crate) use pools::{
    default_pool, destroy_pool, device_pool, is_host_pool, keep_nothing, pool_figures,
    pool_location, pool_reserved, trim_pool, use_default_pool,
};
pub(crate) use streams::{
    PER_THREAD, StreamMark, create_event, destroy_event, elapsed_ns, event_is_done, is_capturing,
    is_out_of_captures, launches_block, mark, passed, record_event, relaxed, stream,
    stream_has_ended,
};

use cuda_api::CuResult;

fn ok(result: CuResult) -> Option<()> {
    (result == CuResult::SUCCESS).then_some(())
}

fn handle<T>(number: u64) -> *mut T {
    core::ptr::with_exposed_provenance_mut(usize::try_from(number).unwrap_or(0))
}
