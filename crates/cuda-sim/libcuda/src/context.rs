//! Contexts: made and destroyed, primary or the program's own, and which one each thread has current.
//! What lives in a context belongs to other modules; `AT_END` tells them that it ends.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_api::driver::*;
use cuda_sim::board::Kind;

use crate::border::{Done, read, write, write_if};
use crate::{choices, driver};

/// Called with each context that ends, in this order, while its memory is still there.
const AT_END: &[fn(Ctx)] = crate::AT_CONTEXT_END;

pub(crate) type Ctx = &'static Context;

/// A context. Never freed: a handle that outlives it still says what became of it.
#[derive(Debug)]
pub(crate) struct Context {
    /// The number that programs hold.
    pub(crate) handle: usize,
    pub(crate) id: u64,
    /// As this process numbers its devices.
    pub(crate) device: CuDevice,
    /// The board's GPU.
    pub(crate) gpu: usize,
    pub(crate) is_primary: bool,
    flags: AtomicU32,
    alive: AtomicBool,
    attached: AtomicU32,
    version: u32,
    /// Green contexts: how many multiprocessors; 0 is all.
    pub(crate) multiprocessors: AtomicU32,
    /// The primary context that a green one works in.
    primary: Option<Ctx>,
    /// Bytes that it takes of its GPU.
    taken: AtomicU64,
    settings: Mutex<Settings>,
}

#[derive(Debug, Clone)]
struct Settings {
    cache: u32,
    shared: u32,
    limits: [usize; LIMITS],
    peers: Vec<usize>,
    /// Bytes taken of the GPU for limits that were raised.
    heap_bytes: u64,
}

/// Stack, printf buffer, heap, sync depth, pending launches, L2 granularity, persisting L2.
const LIMITS: usize = 7;
const LIMIT_DEFAULTS: [usize; LIMITS] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0];
const STACK_LIMIT: usize = 0;
const PRINTF_LIMIT: usize = 1;
const HEAP_LIMIT: usize = 2;

struct Primary {
    context: Option<Ctx>,
    retained: u32,
    flags: u32,
}

#[derive(Default)]
struct Contexts {
    all: HashMap<usize, Ctx>,
    primaries: HashMap<usize, Primary>,
}

static CONTEXTS: Mutex<Option<Contexts>> = Mutex::new(None);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Contexts that a thread can have pushed; a real driver has no such end.
const DEPTH: usize = 256;

/// What is current in a thread. Nothing to destroy: a thread's exit may still ask for it.
struct Stack {
    depth: Cell<usize>,
    contexts: [Cell<Option<Ctx>>; DEPTH],
}

thread_local! {
    static STACK: Stack = const {
        Stack { depth: Cell::new(0), contexts: [const { Cell::new(None) }; DEPTH] }
    };
}

impl Context {
    /// The number as programs pass it.
    pub(crate) fn as_handle(&self) -> CuContext {
        std::ptr::without_provenance_mut(self.handle)
    }

    /// The context that memory and modules made in it belong to: a green one's are its primary one's.
    pub(crate) fn home(&'static self) -> Ctx {
        self.primary.unwrap_or(self)
    }

    /// Whether it has not been destroyed.
    pub(crate) fn is_alive(&self) -> bool {
        // Acquire: pairs with the Release of whoever makes or ends it.
        self.alive.load(Ordering::Acquire)
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn checked(&'static self) -> Done<Ctx> {
        if self.is_alive() && self.home().is_alive() {
            Ok(self)
        } else {
            Err(CuResult::CONTEXT_IS_DESTROYED)
        }
    }
}

fn with<T>(body: impl FnOnce(&mut Contexts) -> T) -> T {
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    body(contexts.get_or_insert_with(Contexts::default))
}

// --- the calling thread's context -----------------------------------------------------------

fn top() -> Option<Ctx> {
    STACK.with(|stack| match stack.depth.get() {
        0 => None,
        depth => stack.contexts[depth - 1].get(),
    })
}

/// The calling thread's context.
///
/// # Errors
/// When it has none, or it was destroyed.
#[inline]
pub(crate) fn current() -> Done<Ctx> {
    top().ok_or(CuResult::INVALID_CONTEXT)?.checked()
}

/// The context of a handle, alive.
///
/// # Errors
/// When the handle is none, or its context was destroyed.
pub(crate) fn find(handle: CuContext) -> Done<Ctx> {
    known(handle)?.checked()
}

/// The same, where null means the calling thread's.
///
/// # Errors
/// As for [`find`] and [`current`].
pub(crate) fn find_or_current(handle: CuContext) -> Done<Ctx> {
    if handle.is_null() {
        current()
    } else {
        find(handle)
    }
}

fn known(handle: CuContext) -> Done<Ctx> {
    with(|contexts| contexts.all.get(&handle.addr()).copied()).ok_or(CuResult::INVALID_CONTEXT)
}

/// Every living context of this process.
pub(crate) fn all() -> Vec<Ctx> {
    with(|contexts| {
        let all = contexts.all.values().copied();
        all.filter(|context| context.is_alive()).collect()
    })
}

/// Some living context of this process on a GPU, the primary one first.
pub(crate) fn any_on(gpu: usize) -> Option<Ctx> {
    with(|contexts| {
        let primary = contexts
            .primaries
            .get(&gpu)
            .and_then(|primary| primary.context);
        primary.filter(|context| context.is_alive()).or_else(|| {
            contexts
                .all
                .values()
                .copied()
                .find(|c| c.gpu == gpu && c.is_alive())
        })
    })
}

fn push(context: Option<Ctx>) -> Done {
    STACK.with(|stack| {
        let depth = stack.depth.get();
        let slot = stack.contexts.get(depth).ok_or(CuResult::OUT_OF_MEMORY)?;
        slot.set(context);
        stack.depth.set(depth + 1);
        Ok(())
    })
}

fn pop() -> Option<Ctx> {
    STACK.with(|stack| {
        let depth = stack.depth.get().checked_sub(1)?;
        stack.depth.set(depth);
        stack.contexts[depth].take()
    })
}

// --- making and ending ------------------------------------------------------------------------

fn make(
    device: CuDevice,
    flags: u32,
    version: u32,
    is_primary: bool,
    primary: Option<Ctx>,
) -> Done<Ctx> {
    let gpu = driver::the()?.gpu(device)?;
    let taken = charge(gpu, primary.is_some())?;
    let context = Box::leak(Box::new(Context {
        handle: 0,
        // Relaxed: only has to differ from every other.
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        device,
        gpu,
        is_primary,
        flags: AtomicU32::new(flags),
        alive: AtomicBool::new(true),
        attached: AtomicU32::new(1),
        version,
        multiprocessors: AtomicU32::new(0),
        primary,
        taken: AtomicU64::new(taken),
        settings: Mutex::new(fresh_settings()),
    }));
    context.handle = std::ptr::from_ref(context).addr();
    let context: Ctx = context;
    with(|contexts| contexts.all.insert(context.handle, context));
    Ok(context)
}

fn fresh_settings() -> Settings {
    Settings {
        cache: 0,
        shared: 0,
        limits: LIMIT_DEFAULTS,
        peers: Vec::new(),
        heap_bytes: 0,
    }
}

/// Takes what a context takes of its GPU, and says how much that is.
fn charge(gpu: usize, is_green: bool) -> Done<u64> {
    let driver = driver::the()?;
    if driver.board.is_lost(gpu) {
        return Err(CuResult::DEVICE_UNAVAILABLE);
    }
    let whole = driver.board.context_bytes();
    let bytes = choices::context_bytes(whole, is_green, any_on(gpu).is_some());
    driver.take(gpu, bytes, Kind::Overhead)?;
    Ok(bytes)
}

/// Ends a context and everything in it. Its object stays, and says that it is gone.
fn end(context: Ctx) {
    // AcqRel: whoever ends it first does the rest, after everything that made it.
    if !context.alive.swap(false, Ordering::AcqRel) {
        return;
    }
    for gone in AT_END {
        gone(context);
    }
    let settings = std::mem::replace(&mut *context.settings(), fresh_settings());
    if let Some(driver) = driver::get() {
        // Relaxed: written before the program had the context.
        let bytes = context.taken.load(Ordering::Relaxed) + settings.heap_bytes;
        driver.give(context.gpu, bytes, Kind::Overhead);
    }
    if context.primary.is_some() {
        release_primary(context.device).ok();
    }
    if !context.is_primary {
        // Its handle says "invalid" from now on, except to threads that still have it current.
        with(|contexts| contexts.all.remove(&context.handle));
    }
}

/// Makes a context that belongs to a green one; destroyed by [`destroy_green`].
///
/// # Errors
/// When the device has no room for it.
pub(crate) fn make_green(device: CuDevice, multiprocessors: u32) -> Done<Ctx> {
    let primary = retain_primary(device)?;
    let context = make(device, 0, 3020, false, Some(primary)).inspect_err(|_| {
        release_primary(device).ok();
    })?;
    // Relaxed: read by whoever got the context from us.
    context
        .multiprocessors
        .store(multiprocessors, Ordering::Relaxed);
    Ok(context)
}

/// Ends a green context's context.
pub(crate) fn destroy_green(context: Ctx) {
    end(context);
}

fn create(out: *mut CuContext, flags: u32, device: CuDevice, version: u32) -> Done {
    if out.is_null() || flags & !FLAGS != 0 || flags & SCHEDULING > BLOCKING {
        return Err(CuResult::INVALID_VALUE);
    }
    let context = make(device, flags & FLAGS, version, false, None)?;
    push(Some(context))?;
    write(out, context.as_handle())
}

/// Scheduling, mapped host memory, local memory kept, core dumps, memory synchronised.
const FLAGS: u32 = 0xff;
const SCHEDULING: u32 = 7;
const BLOCKING: u32 = 4;

pub(crate) fn cuCtxCreate(out: *mut CuContext, flags: u32, device: CuDevice) -> Done {
    create(out, flags, device, 3010)
}

pub(crate) fn cuCtxCreate_v2(out: *mut CuContext, flags: u32, device: CuDevice) -> Done {
    create(out, flags, device, 3020)
}

pub(crate) fn cuCtxCreate_v3(
    out: *mut CuContext,
    _params_array: *mut CuExecAffinityParam,
    count_params: i32,
    flags: u32,
    device: CuDevice,
) -> Done {
    if count_params > 0 {
        // Limits by MPS; there is none.
        return Err(CuResult::UNSUPPORTED_EXEC_AFFINITY);
    }
    create(out, flags, device, 3020)
}

pub(crate) fn cuCtxCreate_v4(
    out: *mut CuContext,
    params: *mut CuCtxCreateParams,
    flags: u32,
    device: CuDevice,
) -> Done {
    if !params.is_null() {
        let params = read(params.cast_const())?;
        if params.num_affinity > 0 {
            return Err(CuResult::UNSUPPORTED_EXEC_AFFINITY);
        }
        if !params.cig.is_null() {
            return Err(CuResult::NOT_SUPPORTED);
        }
    }
    create(out, flags, device, 3020)
}

fn destroy(handle: CuContext) -> Done {
    let context = known(handle)?;
    if context.is_primary {
        return Err(CuResult::INVALID_CONTEXT);
    }
    let context = context.checked()?;
    if top().is_some_and(|current| std::ptr::eq(current, context)) {
        pop();
    }
    end(context);
    Ok(())
}

pub(crate) fn cuCtxDestroy(context: CuContext) -> Done {
    destroy(context)
}

pub(crate) fn cuCtxDestroy_v2(context: CuContext) -> Done {
    destroy(context)
}

pub(crate) fn cuCtxAttach(out: *mut CuContext, flags: u32) -> Done {
    let context = current()?;
    if flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    write(out, context.as_handle())?;
    // Relaxed: a count.
    context.attached.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn cuCtxDetach(context: CuContext) -> Done {
    match find(context) {
        // AcqRel: the last one ends it, after the others.
        Ok(found) if found.attached.fetch_sub(1, Ordering::AcqRel) == 1 => destroy(context),
        Ok(_) => Ok(()),
        Err(code) => Err(code),
    }
}

// --- the stack --------------------------------------------------------------------------------

fn push_current(context: CuContext) -> Done {
    push(Some(find(context)?))
}

pub(crate) fn cuCtxPushCurrent(context: CuContext) -> Done {
    push_current(context)
}

pub(crate) fn cuCtxPushCurrent_v2(context: CuContext) -> Done {
    push_current(context)
}

fn pop_current(out: *mut CuContext) -> Done {
    let context = pop().ok_or(CuResult::INVALID_CONTEXT)?;
    write_if(out, context.as_handle());
    Ok(())
}

pub(crate) fn cuCtxPopCurrent(out: *mut CuContext) -> Done {
    pop_current(out)
}

pub(crate) fn cuCtxPopCurrent_v2(out: *mut CuContext) -> Done {
    pop_current(out)
}

pub(crate) fn cuCtxSetCurrent(context: CuContext) -> Done {
    if context.is_null() {
        pop();
        return Ok(());
    }
    let found = find(context)?;
    pop();
    push(Some(found))
}

pub(crate) fn cuCtxGetCurrent(out: *mut CuContext) -> Done {
    let handle = top().map_or(std::ptr::null_mut(), Context::as_handle);
    write(out, handle)
}

pub(crate) fn cuCtxGetDevice(device: *mut CuDevice) -> Done {
    write(device, current()?.device)
}

pub(crate) fn cuCtxGetDevice_v2(device: *mut CuDevice, context: CuContext) -> Done {
    write(device, find_or_current(context)?.device)
}

// --- what a context says of itself --------------------------------------------------------------

pub(crate) fn cuCtxGetFlags(flags: *mut u32) -> Done {
    // Relaxed: one number.
    write(flags, current()?.flags.load(Ordering::Relaxed))
}

pub(crate) fn cuCtxSetFlags(flags: u32) -> Done {
    if flags & !FLAGS != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    // Relaxed: one number.
    current()?.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn cuCtxGetId(context: CuContext, ctx_id: *mut u64) -> Done {
    write(ctx_id, find_or_current(context)?.id)
}

pub(crate) fn cuCtxGetApiVersion(context: CuContext, version: *mut u32) -> Done {
    write(version, find_or_current(context)?.version)
}

pub(crate) fn cuCtxGetCacheConfig(config: *mut CuFuncCache) -> Done {
    write(config, current()?.settings().cache)
}

pub(crate) fn cuCtxSetCacheConfig(config: CuFuncCache) -> Done {
    if config > 3 {
        return Err(CuResult::INVALID_VALUE);
    }
    current()?.settings().cache = config;
    Ok(())
}

pub(crate) fn cuCtxGetSharedMemConfig(config: *mut CuSharedconfig) -> Done {
    write(config, current()?.settings().shared)
}

pub(crate) fn cuCtxSetSharedMemConfig(config: CuSharedconfig) -> Done {
    if config > 2 {
        return Err(CuResult::INVALID_VALUE);
    }
    current()?.settings().shared = config;
    Ok(())
}

pub(crate) fn cuCtxResetPersistingL2Cache() -> Done {
    current().map(drop)
}

pub(crate) fn cuCtxGetStreamPriorityRange(
    least_priority: *mut i32,
    greatest_priority: *mut i32,
) -> Done {
    current()?;
    write_if(least_priority, 0);
    write_if(greatest_priority, -5);
    Ok(())
}

pub(crate) fn cuCtxGetExecAffinity(
    exec_affinity: *mut CuExecAffinityParam,
    kind: CuExecAffinityType,
) -> Done {
    current()?;
    let _nobody_sets_one = (exec_affinity, kind);
    Err(CuResult::UNSUPPORTED_EXEC_AFFINITY)
}

pub(crate) fn cuCtxGetLimit(value: *mut usize, limit: CuLimit) -> Done {
    let limits = current()?.settings().limits;
    let found = *limits
        .get(limit as usize)
        .ok_or(CuResult::UNSUPPORTED_LIMIT)?;
    write(value, found)
}

/// Threads that a GPU runs at once, each with a stack.
const RESIDENT_THREADS: u64 = crate::device::MULTIPROCESSORS as u64 * 2048;

/// Bigger stacks, a bigger heap or printf buffer are taken of the GPU at once; a smaller one gives it back.
pub(crate) fn cuCtxSetLimit(limit: CuLimit, value: usize) -> Done {
    let context = current()?;
    let driver = driver::the()?;
    let mut settings = context.settings();
    let index = limit as usize;
    if index >= LIMITS {
        return Err(CuResult::UNSUPPORTED_LIMIT);
    }
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
        None => {
            driver.give(
                context.gpu,
                settings.heap_bytes - heap_bytes,
                Kind::Overhead,
            );
        }
    }
    settings.heap_bytes = heap_bytes;
    settings.limits = limits;
    Ok(())
}

pub(crate) fn cuCtxEnablePeerAccess(peer_context: CuContext, flags: u32) -> Done {
    let context = current()?;
    let peer = find(peer_context)?;
    if flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    if peer.gpu == context.gpu {
        return Err(CuResult::INVALID_CONTEXT);
    }
    let mut settings = context.settings();
    if settings.peers.contains(&peer.gpu) {
        return Err(CuResult::PEER_ACCESS_ALREADY_ENABLED);
    }
    settings.peers.push(peer.gpu);
    Ok(())
}

pub(crate) fn cuCtxDisablePeerAccess(peer_context: CuContext) -> Done {
    let peer = find(peer_context)?;
    let mut settings = current()?.settings();
    let found = settings.peers.iter().position(|&gpu| gpu == peer.gpu);
    settings
        .peers
        .swap_remove(found.ok_or(CuResult::PEER_ACCESS_NOT_ENABLED)?);
    Ok(())
}

// --- primary contexts -----------------------------------------------------------------------------

pub(crate) fn cuDevicePrimaryCtxRetain(out: *mut CuContext, device: CuDevice) -> Done {
    if out.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let context = retain_primary(device)?;
    write(out, context.as_handle())
}

/// Retains a device's primary context, making or reviving it: its handle stays the same.
pub(crate) fn retain_primary(device: CuDevice) -> Done<Ctx> {
    let gpu = driver::the()?.gpu(device)?;
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (known, flags) = with(|contexts| {
        let primary = primary_of(contexts, gpu);
        (primary.context, primary.flags)
    });
    let context = match known {
        Some(context) if context.is_alive() => context,
        Some(context) => {
            let taken = charge(gpu, false)?;
            context.taken.store(taken, Ordering::Relaxed);
            // Relaxed and Release: the flags are there before it is alive.
            context.flags.store(flags, Ordering::Relaxed);
            context.alive.store(true, Ordering::Release);
            context
        }
        None => make(device, flags, 3020, true, None)?,
    };
    with(|contexts| {
        let primary = primary_of(contexts, gpu);
        primary.context = Some(context);
        primary.retained += 1;
    });
    Ok(context)
}

fn primary_of(contexts: &mut Contexts, gpu: usize) -> &mut Primary {
    contexts.primaries.entry(gpu).or_insert(Primary {
        context: None,
        retained: 0,
        flags: 0,
    })
}

/// Releases a device's primary context; with the last holder it ends.
pub(crate) fn release_primary(device: CuDevice) -> Done {
    let gpu = driver::the()?.gpu(device)?;
    let last = with(|contexts| {
        let primary = primary_of(contexts, gpu);
        primary.retained = primary
            .retained
            .checked_sub(1)
            .ok_or(CuResult::INVALID_CONTEXT)?;
        Ok::<_, CuResult>(primary.context.filter(|_| primary.retained == 0))
    })?;
    if let Some(context) = last {
        end(context);
    }
    Ok(())
}

/// Ends a device's primary context, however often it is held, and the green ones over it: a reset cleans up all resources of the
/// device in this process.
fn reset_primary(device: CuDevice) -> Done {
    let gpu = driver::the()?.gpu(device)?;
    let over_it: Vec<_> = with(|contexts| {
        let all = contexts.all.values().copied();
        all.filter(|context| context.gpu == gpu && context.primary.is_some())
            .collect()
    });
    for green in over_it {
        end(green);
    }
    let context = with(|contexts| {
        let primary = primary_of(contexts, gpu);
        primary.retained = 0;
        primary.context
    });
    if let Some(context) = context {
        end(context);
    }
    Ok(())
}

fn set_primary_flags(device: CuDevice, flags: u32) -> Done {
    let gpu = driver::the()?.gpu(device)?;
    if flags & !FLAGS != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
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

pub(crate) fn cuDevicePrimaryCtxRelease(device: CuDevice) -> Done {
    release_primary(device)
}

pub(crate) fn cuDevicePrimaryCtxRelease_v2(device: CuDevice) -> Done {
    release_primary(device)
}

pub(crate) fn cuDevicePrimaryCtxReset(device: CuDevice) -> Done {
    reset_primary(device)
}

pub(crate) fn cuDevicePrimaryCtxReset_v2(device: CuDevice) -> Done {
    reset_primary(device)
}

/// The first form refuses to change the flags of a context that is there.
pub(crate) fn cuDevicePrimaryCtxSetFlags(device: CuDevice, flags: u32) -> Done {
    let gpu = driver::the()?.gpu(device)?;
    let active = with(|contexts| primary_of(contexts, gpu).context).is_some_and(Context::is_alive);
    if active {
        return Err(CuResult::PRIMARY_CONTEXT_ACTIVE);
    }
    set_primary_flags(device, flags)
}

pub(crate) fn cuDevicePrimaryCtxSetFlags_v2(device: CuDevice, flags: u32) -> Done {
    set_primary_flags(device, flags)
}

pub(crate) fn cuDevicePrimaryCtxGetState(
    device: CuDevice,
    flags: *mut u32,
    active: *mut i32,
) -> Done {
    let gpu = driver::the()?.gpu(device)?;
    let (set, alive) = with(|contexts| {
        let primary = primary_of(contexts, gpu);
        (
            primary.flags,
            primary.context.is_some_and(Context::is_alive),
        )
    });
    write(flags, set)?;
    write(active, i32::from(alive))
}
