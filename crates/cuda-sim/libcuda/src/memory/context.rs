//! Contexts: their creation and end, the primary ones, and each thread's current one. The objects in a context belong
//! to other modules; `AT_END` tells these when it ends.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use cuda_api::driver::*;
use cuda_sim::board::Kind;

use crate::base::border::{Done, lock, refuse_if};
use crate::base::model::MULTIPROCESSORS;
use crate::process::choices;
use crate::process::driver;

/// Called with each context that ends, in this order, while its memory is still there.
const AT_END: &[fn(Ctx)] = crate::AT_CONTEXT_END;

pub(crate) type Ctx = &'static Context;

/// A context. Never freed: a handle that outlives it still shows its state.
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
    pub(crate) flags: AtomicU32,
    alive: AtomicBool,
    pub(crate) attached: AtomicU32,
    pub(crate) version: u32,
    /// Green contexts: how many multiprocessors; 0 is all.
    pub(crate) multiprocessors: AtomicU32,
    /// The primary context that a green one works in.
    pub(crate) primary: Option<Ctx>,
    /// Bytes that it takes of its GPU.
    taken: AtomicU64,
    settings: Mutex<Settings>,
}

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) cache: u32,
    pub(crate) shared: u32,
    pub(crate) limits: [usize; LIMITS],
    pub(crate) peers: Vec<usize>,
    /// Bytes taken of the GPU for limits that were raised.
    pub(crate) heap_bytes: u64,
}

/// Stack, printf buffer, heap, sync depth, pending launches, L2 granularity, persisting L2.
pub(crate) const LIMITS: usize = 7;
pub(crate) const LIMIT_DEFAULTS: [usize; LIMITS] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0];

#[derive(Default)]
pub(crate) struct Primary {
    pub(crate) context: Option<Ctx>,
    pub(crate) retained: u32,
    pub(crate) flags: u32,
}

pub(crate) struct Contexts {
    pub(crate) all: BTreeMap<usize, Ctx>,
    primaries: BTreeMap<usize, Primary>,
}

static CONTEXTS: Mutex<Contexts> = Mutex::new(Contexts {
    all: BTreeMap::new(),
    primaries: BTreeMap::new(),
});
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Contexts that a thread can have pushed; a real driver has no such end.
const DEPTH: usize = 256;

/// The current contexts of a thread. It needs no destructor, because a thread's exit may still ask for it.
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
        // Acquire: pairs with the Release of the thread that makes or ends it.
        self.alive.load(Ordering::Acquire)
    }

    pub(crate) fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    pub(crate) fn checked(&'static self) -> Done<Ctx> {
        refuse_if(
            !(self.is_alive() && self.home().is_alive()),
            CuResult::CONTEXT_IS_DESTROYED,
        )?;
        Ok(self)
    }
}

pub(crate) fn with<T>(body: impl FnOnce(&mut Contexts) -> T) -> T {
    body(&mut lock(&CONTEXTS))
}

// --- the calling thread's context -----------------------------------------------------------

pub(crate) fn top() -> Option<Ctx> {
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

pub(crate) fn push(context: Option<Ctx>) -> Done {
    STACK.with(|stack| {
        let depth = stack.depth.get();
        let slot = stack.contexts.get(depth).ok_or(CuResult::OUT_OF_MEMORY)?;
        slot.set(context);
        stack.depth.set(depth + 1);
        Ok(())
    })
}

pub(crate) fn pop() -> Option<Ctx> {
    STACK.with(|stack| {
        let depth = stack.depth.get().checked_sub(1)?;
        stack.depth.set(depth);
        stack.contexts[depth].take()
    })
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

pub(crate) fn known(handle: CuContext) -> Done<Ctx> {
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
        let primary = contexts.primaries.get(&gpu).and_then(|it| it.context);
        let mut all = primary.into_iter().chain(contexts.all.values().copied());
        all.find(|context| context.gpu == gpu && context.is_alive())
    })
}

// --- making and ending ------------------------------------------------------------------------

pub(crate) fn make(
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

/// Takes a context's device memory, and returns the amount.
fn charge(gpu: usize, is_green: bool) -> Done<u64> {
    let driver = driver::the()?;
    refuse_if(driver.board.is_lost(gpu), CuResult::DEVICE_UNAVAILABLE)?;
    let whole = driver.board.context_bytes();
    let bytes = choices::context_bytes(whole, is_green, any_on(gpu).is_some());
    driver.take(gpu, bytes, Kind::Overhead)?;
    Ok(bytes)
}

/// Ends a context and everything in it. Its object stays, and is marked as ended.
pub(crate) fn end(context: Ctx) {
    // AcqRel: the first thread to end it does the rest, after everything that made it.
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
        // Its handle is invalid from now on, except for threads that still have it current.
        with(|contexts| contexts.all.remove(&context.handle));
    }
}

/// Makes a context that belongs to a green one; [`end`] destroys it.
///
/// # Errors
/// When the device has no room for it.
pub(crate) fn make_green(device: CuDevice, multiprocessors: u32) -> Done<Ctx> {
    let primary = retain_primary(device)?;
    let context = make(device, 0, 3020, false, Some(primary)).inspect_err(|_| {
        release_primary(device).ok();
    })?;
    let share = &context.multiprocessors;
    // Relaxed: read only after this call has returned the context.
    share.store(multiprocessors, Ordering::Relaxed);
    Ok(context)
}

// --- primary contexts -----------------------------------------------------------------------------

/// Retains a device's primary context, making or reviving it: its handle stays the same.
pub(crate) fn retain_primary(device: CuDevice) -> Done<Ctx> {
    let gpu = driver::the()?.gpu(device)?;
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = lock(&ONE_AT_A_TIME);
    let (known, flags) = with(|contexts| {
        let primary = primary_of(contexts, gpu);
        (primary.context, primary.flags)
    });
    let context = match known {
        Some(context) if context.is_alive() => context,
        Some(context) => {
            let taken = charge(gpu, false)?;
            context.taken.store(taken, Ordering::Relaxed);
            // Relaxed and Release: the flags are visible before it is alive.
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

pub(crate) fn primary_of(contexts: &mut Contexts, gpu: usize) -> &mut Primary {
    contexts.primaries.entry(gpu).or_default()
}

/// Releases a device's primary context; with the last holder it ends.
pub(crate) fn release_primary(device: CuDevice) -> Done {
    let gpu = driver::the()?.gpu(device)?;
    let last = with(|contexts| {
        let primary = primary_of(contexts, gpu);
        let left = primary.retained.checked_sub(1);
        primary.retained = left.ok_or(CuResult::INVALID_CONTEXT)?;
        Ok::<_, CuResult>(primary.context.filter(|_| primary.retained == 0))
    })?;
    if let Some(context) = last {
        end(context);
    }
    Ok(())
}

/// The multiprocessors of a context: a green one's share, else all.
pub(crate) fn share_of(context: Ctx) -> u32 {
    // Relaxed: written before the program had the context.
    match context.multiprocessors.load(Ordering::Relaxed) {
        0 => MULTIPROCESSORS as u32,
        share => share,
    }
}
