//! This process's driver: the board that it has joined, the devices that it may see. Made by `cuInit`,
//! gone in a forked child. It knows no context and no pointer.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use cuda_api::driver::{CuDevice, CuResult};
use cuda_sim::Board;
use cuda_sim::board::{Kind, Member, MemoryRefused};
use cuda_sim::faults::Faults;
use cuda_sim::mig::Instance;
use cuda_sim::nodes::Nodes;

use crate::base::border::{Done, refuse_if};
use crate::process::visible::Visible;

/// An initialised driver.
pub(crate) struct Driver {
    pub(crate) board: Board,
    pub(crate) member: Member,
    /// GPUs of the board that this process sees, in its order.
    visible: Vec<usize>,
    /// The MIG device that it works on, if its GPU is cut and it asked for one.
    pub(crate) instance: Option<Instance>,
    faults: Faults,
    /// Whether it does the opposite of its usual choices.
    pub(crate) is_contrary: bool,
    /// Open as long as the process lives.
    _nodes: Nodes,
}

static DRIVER: AtomicPtr<Driver> = AtomicPtr::new(std::ptr::null_mut());

/// An ancestor had initialised the driver: this process cannot use it, nor initialise it again.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Held while the driver is made. A word of our own: a fork may find it held, and resets it.
static MAKING: AtomicBool = AtomicBool::new(false);
static WATCHING_FORKS: AtomicBool = AtomicBool::new(false);

/// The driver, once `cuInit` has succeeded in this process.
#[inline]
#[must_use]
pub(crate) fn get() -> Option<&'static Driver> {
    // Acquire: the driver's fields were written before the pointer. It is never freed.
    let driver = DRIVER.load(Ordering::Acquire);
    // SAFETY: null, or a leaked box.
    unsafe { driver.as_ref() }
}

/// The same, as a driver function needs it.
///
/// # Errors
/// When the driver is not initialised.
#[inline]
pub(crate) fn the() -> Done<&'static Driver> {
    get().ok_or(CuResult::NOT_INITIALIZED)
}

/// Makes the driver, unless it exists.
///
/// # Errors
/// When no device is visible, or the board cannot be joined.
pub(crate) fn init() -> Done {
    // Relaxed, here and below: the flags guard no other memory.
    refuse_if(FORKED.load(Ordering::Relaxed), CuResult::NOT_INITIALIZED)?;
    if let Some(driver) = get() {
        return refuse_if(driver.visible.is_empty(), CuResult::NO_DEVICE);
    }
    if !WATCHING_FORKS.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler touches atomics only, and this library is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
    // Acquire and Release: a lock.
    while MAKING
        .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
        .is_err()
    {
        std::thread::yield_now();
    }
    let made = if get().is_some() { Ok(()) } else { make() };
    MAKING.store(false, Ordering::Release);
    made
}

fn make() -> Done {
    let board = Board::from_env().map_err(|error| {
        // The real driver does not report the reason either; set the variable to learn it.
        if let Some(path) = std::env::var_os("VGPU_SIM_LOG") {
            drop(std::fs::write(path, format!("cuInit: {error}\n")));
        }
        CuResult::SYSTEM_NOT_READY
    })?;
    let faults = Faults::parse(&board.faults());
    let nodes = Nodes::from_env(board.gpus(), true).ok_or(CuResult::NO_DEVICE)?;
    let Visible {
        gpus: visible,
        instance,
    } = crate::process::visible::devices(&board, &nodes);
    refuse_if(visible.is_empty(), CuResult::NO_DEVICE)?;
    let member = board.join().map_err(|_| CuResult::OUT_OF_MEMORY)?;
    if let Some(instance) = instance {
        board.settle(member, instance.index);
    }
    let driver = Box::into_raw(Box::new(Driver {
        is_contrary: board.is_contrary(),
        board,
        member,
        visible,
        instance,
        faults,
        _nodes: nodes,
    }));
    DRIVER.store(driver, Ordering::Release);
    Ok(())
}

extern "C" fn forked() {
    if !DRIVER
        .swap(std::ptr::null_mut(), Ordering::Relaxed)
        .is_null()
    {
        FORKED.store(true, Ordering::Relaxed);
    }
    MAKING.store(false, Ordering::Relaxed);
}

impl Driver {
    /// How many devices this process sees.
    #[must_use]
    pub(crate) fn device_count(&self) -> usize {
        self.visible.len()
    }

    /// The board's GPU behind an ordinal.
    ///
    /// # Errors
    /// When there is no such device.
    pub(crate) fn gpu(&self, device: CuDevice) -> Done<usize> {
        let ordinal = usize::try_from(device.0).unwrap_or(usize::MAX);
        let gpu = self.visible.get(ordinal).copied();
        gpu.ok_or(CuResult::INVALID_DEVICE)
    }

    /// The ordinal under which this process sees a GPU of the board.
    #[must_use]
    pub(crate) fn ordinal(&self, gpu: usize) -> Option<CuDevice> {
        let index = self.visible.iter().position(|&visible| visible == gpu)?;
        Some(CuDevice(index as i32))
    }

    /// Takes memory of a GPU.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn take(&self, gpu: usize, bytes: u64, kind: Kind) -> Done {
        let taken = self.board.take(self.member, gpu, bytes, kind);
        taken.map_err(refusal)
    }

    /// Gives memory of a GPU back.
    pub(crate) fn give(&self, gpu: usize, bytes: u64, kind: Kind) {
        self.board.give(self.member, gpu, bytes, kind);
    }

    /// Waits while a checkpoint has taken this process off its GPUs.
    #[inline]
    pub(crate) fn wait_while_locked(&self) {
        while self.board.is_halted(self.member) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// The faults of the board that a call meets before its module runs.
    ///
    /// # Errors
    /// With the code that a fault makes the call answer.
    #[inline]
    pub(crate) fn toll(&self, name: &str) -> Done {
        if self.faults.is_empty() {
            Ok(())
        } else {
            let spend = |ns| {
                if let Some(exec) = crate::process::ours::board_work() {
                    exec.clock().spend(ns);
                }
            };
            self.faults.meet(name, spend).map_err(CuResult)
        }
    }
}

/// The board's refusal as a driver code.
pub(crate) fn refusal(refused: MemoryRefused) -> CuResult {
    match refused {
        MemoryRefused::NoMemory | MemoryRefused::NoRoom => CuResult::OUT_OF_MEMORY,
        MemoryRefused::Unknown => CuResult::INVALID_VALUE,
    }
}
