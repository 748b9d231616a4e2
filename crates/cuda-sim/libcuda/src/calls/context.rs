//! The functions of contexts: create, destroy, push and pop, limits, peers, primary contexts.

use std::sync::atomic::Ordering;

use cuda_api::driver::*;
use cuda_sim::board::Kind;

use crate::base::border::{Done, check_out, invalid_if, read, refuse_if, write, write_if};
use crate::memory::context::{
    Context, Ctx, LIMIT_DEFAULTS, LIMITS, current, end, find, find_or_current, known, make, pop,
    primary_of, push, release_primary, retain_primary, top, with,
};
use crate::process::driver;

calls! {
    cuCtxCreate(out, flags, device) => create(out, flags, device, 3010);
    cuCtxCreate_v2(out, flags, device) => create(out, flags, device, 3020);
    cuCtxCreate_v3(out, _params_array, count_params, flags, device) => {
        // Limits by MPS, which is not running.
        refuse_if(count_params > 0, CuResult::UNSUPPORTED_EXEC_AFFINITY)?;
        create(out, flags, device, 3020)
    };
    cuCtxDestroy, cuCtxDestroy_v2(context) => destroy(context);
    cuCtxAttach(out, flags) => {
        let context = current()?;
        invalid_if(flags != 0)?;
        write(out, context.as_handle())?;
        // Relaxed: a count.
        context.attached.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    cuCtxDetach(context) => {
        match find(context) {
            // AcqRel: the last one ends it, after the others.
            Ok(found) if found.attached.fetch_sub(1, Ordering::AcqRel) == 1 => destroy(context),
            Ok(_) => Ok(()),
            Err(code) => Err(code),
        }
    };
    cuCtxPushCurrent, cuCtxPushCurrent_v2(context) => push(Some(find(context)?));
    cuCtxPopCurrent, cuCtxPopCurrent_v2(out) => pop_current(out);
    cuCtxSetCurrent(context) => {
        if context.is_null() {
            pop();
            return Ok(());
        }
        let found = find(context)?;
        pop();
        push(Some(found))
    };
    cuCtxGetCurrent(out) => {
        let handle = top().map_or(std::ptr::null_mut(), Context::as_handle);
        write(out, handle)
    };
    cuCtxGetDevice(device) => write(device, current()?.device);
    cuCtxGetDevice_v2(device, context) => write(device, find_or_current(context)?.device);
    // Relaxed: one number.
    cuCtxGetFlags(flags) => write(flags, current()?.flags.load(Ordering::Relaxed));
    cuCtxSetFlags(flags) => {
        invalid_if(flags & !FLAGS != 0)?;
        // Relaxed: one number.
        current()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    };
    cuCtxGetId(context, ctx_id) => write(ctx_id, find_or_current(context)?.id);
    cuCtxGetApiVersion(context, version) => write(version, find_or_current(context)?.version);
    cuCtxGetCacheConfig(config) => write(config, current()?.settings().cache);
    cuCtxSetCacheConfig(config) => {
        invalid_if(config > 3)?;
        current()?.settings().cache = config;
        Ok(())
    };
    cuCtxGetSharedMemConfig(config) => write(config, current()?.settings().shared);
    cuCtxSetSharedMemConfig(config) => {
        invalid_if(config > 2)?;
        current()?.settings().shared = config;
        Ok(())
    };
    cuCtxResetPersistingL2Cache() => current().map(drop);
    cuCtxGetExecAffinity(exec_affinity, kind) => {
        current()?;
        let _no_context_has_one = (exec_affinity, kind);
        Err(CuResult::UNSUPPORTED_EXEC_AFFINITY)
    };
    cuCtxGetLimit(value, limit) => {
        let found = current()?.settings().limits.get(limit as usize).copied();
        write(value, found.ok_or(CuResult::UNSUPPORTED_LIMIT)?)
    };
    cuCtxDisablePeerAccess(peer_context) => {
        let peer = find(peer_context)?;
        let mut settings = current()?.settings();
        let found = settings.peers.iter().position(|&gpu| gpu == peer.gpu);
        let found = found.ok_or(CuResult::PEER_ACCESS_NOT_ENABLED)?;
        settings.peers.swap_remove(found);
        Ok(())
    };
    cuDevicePrimaryCtxRetain(out, device) => {
        check_out(out)?;
        let context = retain_primary(device)?;
        write(out, context.as_handle())
    };
    cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2(device) => release_primary(device);
    cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2(device) => reset_primary(device);
    cuDevicePrimaryCtxSetFlags_v2(device, flags) => set_primary_flags(device, flags);
    cuCtxCreate_v4(out, params, flags, device) => {
        if !params.is_null() {
            let params = read(params.cast_const())?;
            refuse_if(params.num_affinity > 0, CuResult::UNSUPPORTED_EXEC_AFFINITY)?;
            refuse_if(!params.cig.is_null(), CuResult::NOT_SUPPORTED)?;
        }
        create(out, flags, device, 3020)
    };
    cuCtxGetStreamPriorityRange(least_priority, greatest_priority) => {
        current()?;
        write_if(least_priority, 0);
        write_if(greatest_priority, -5);
        Ok(())
    };
    // The GPU gives the memory of a bigger stack, heap or printf buffer at once, and gets it back of a smaller one.
    cuCtxSetLimit(limit, value) => {
        let context = current()?;
        let driver = driver::the()?;
        let mut settings = context.settings();
        let index = limit as usize;
        refuse_if(index >= LIMITS, CuResult::UNSUPPORTED_LIMIT)?;
        let mut limits = settings.limits;
        limits[index] = value;
        let over = |index: usize| limits[index].saturating_sub(LIMIT_DEFAULTS[index]) as u64;
        let stacks = over(STACK_LIMIT).saturating_mul(RESIDENT_THREADS);
        let heap_bytes = over(PRINTF_LIMIT)
            .saturating_add(over(HEAP_LIMIT))
            .saturating_add(stacks)
            .checked_next_multiple_of(2 << 20)
            .ok_or(CuResult::OUT_OF_MEMORY)?;
        match heap_bytes.checked_sub(settings.heap_bytes) {
            Some(more) => driver.take(context.gpu, more, Kind::Overhead)?,
            None => driver.give(context.gpu, settings.heap_bytes - heap_bytes, Kind::Overhead),
        }
        settings.heap_bytes = heap_bytes;
        settings.limits = limits;
        Ok(())
    };
    cuCtxEnablePeerAccess(peer_context, flags) => {
        let context = current()?;
        let peer = find(peer_context)?;
        invalid_if(flags != 0)?;
        refuse_if(peer.gpu == context.gpu, CuResult::INVALID_CONTEXT)?;
        let mut settings = context.settings();
        refuse_if(settings.peers.contains(&peer.gpu), CuResult::PEER_ACCESS_ALREADY_ENABLED)?;
        settings.peers.push(peer.gpu);
        Ok(())
    };
    // The first form refuses to change the flags of an existing context.
    cuDevicePrimaryCtxSetFlags(device, flags) => {
        let gpu = driver::the()?.gpu(device)?;
        let primary = with(|contexts| primary_of(contexts, gpu).context);
        let active = primary.is_some_and(Context::is_alive);
        refuse_if(active, CuResult::PRIMARY_CONTEXT_ACTIVE)?;
        set_primary_flags(device, flags)
    };
    cuDevicePrimaryCtxGetState(device, flags, active) => {
        let gpu = driver::the()?.gpu(device)?;
        let (set, alive) = with(|contexts| {
            let primary = primary_of(contexts, gpu);
            (primary.flags, primary.context.is_some_and(Context::is_alive))
        });
        write(flags, set)?;
        write(active, i32::from(alive))
    };
}

const STACK_LIMIT: usize = 0;
const PRINTF_LIMIT: usize = 1;
const HEAP_LIMIT: usize = 2;

// --- making and ending ------------------------------------------------------------------------

fn create(out: *mut CuContext, flags: u32, device: CuDevice, version: u32) -> Done {
    invalid_if(out.is_null() || flags & !FLAGS != 0 || flags & SCHEDULING > BLOCKING)?;
    let context = make(device, flags & FLAGS, version, false, None)?;
    push(Some(context))?;
    write(out, context.as_handle())
}

/// Scheduling, mapped host memory, local memory kept, core dumps, memory synchronised.
const FLAGS: u32 = 0xff;
const SCHEDULING: u32 = 7;
const BLOCKING: u32 = 4;

fn destroy(handle: CuContext) -> Done {
    let context = known(handle)?;
    refuse_if(context.is_primary, CuResult::INVALID_CONTEXT)?;
    let context = context.checked()?;
    if top().is_some_and(|current| std::ptr::eq(current, context)) {
        pop();
    }
    end(context);
    Ok(())
}

// --- the stack --------------------------------------------------------------------------------

fn pop_current(out: *mut CuContext) -> Done {
    let context = pop().ok_or(CuResult::INVALID_CONTEXT)?;
    write_if(out, context.as_handle());
    Ok(())
}

// --- what a context says of itself --------------------------------------------------------------

/// Threads that a GPU runs at once, each with a stack.
const RESIDENT_THREADS: u64 = crate::base::model::MULTIPROCESSORS as u64 * 2048;

// --- primary contexts -----------------------------------------------------------------------------

/// Ends a device's primary context, however often it is held, and its green contexts: a reset releases all resources of
/// the device in this process.
fn reset_primary(device: CuDevice) -> Done {
    let gpu = driver::the()?.gpu(device)?;
    let is_green = |context: &Ctx| context.gpu == gpu && context.primary.is_some();
    let over_it: Vec<_> =
        with(|contexts| contexts.all.values().copied().filter(is_green).collect());
    over_it.into_iter().for_each(end);
    let context = with(|contexts| {
        let primary = primary_of(contexts, gpu);
        primary.retained = 0;
        primary.context
    });
    context.into_iter().for_each(end);
    Ok(())
}

fn set_primary_flags(device: CuDevice, flags: u32) -> Done {
    let gpu = driver::the()?.gpu(device)?;
    invalid_if(flags & !FLAGS != 0)?;
    with(|contexts| {
        let primary = primary_of(contexts, gpu);
        primary.flags = flags;
        if let Some(context) = primary.context {
            // Relaxed: one number.
            context.flags.store(flags, Ordering::Relaxed);
        }
    });
    Ok(())
}
