//! The compute arbiter of this node, on a thread of its own: it publishes a share for every container below
//! the root. `supervisor` decides; this module has the thread, its clock, and the driver handle.
//!
//! Never waits for a scrape, and no scrape waits for it. If the driver hangs, the arbiter's heartbeat grows
//! old, and another process of the board takes over.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use supervisor::arbiter::{Board, Waker};
use supervisor::clock::monotonic_ns;
use supervisor::fence::{ByLimits, Keeper};
use supervisor::gpu::{GpuError, GpuProcess, Gpus, Inventory, NvmlGpus};

use crate::fence_log;

/// A driver that is not there is looked for again after this.
const RETRY: Duration = Duration::from_secs(10);

/// The thread.
#[derive(Debug)]
pub struct Arbiter {
    state: Arc<ArbiterState>,
}

#[derive(Debug, Default)]
struct ArbiterState {
    leads: AtomicBool,
    served: AtomicU64,
    failed: AtomicU64,
    ticks: AtomicU64,
    stop: AtomicBool,
    waker: OnceLock<Waker>,
}

/// How the arbiter does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArbiterStatus {
    /// This process is the node's arbiter.
    pub leads: bool,
    /// Containers that it serves.
    pub served: u64,
    /// Containers that it could not read or write at its last tick.
    pub failed: u64,
    /// Ticks since the agent started.
    pub ticks: u64,
}

impl Arbiter {
    /// Starts the thread, for the containers below `root`. Without `nvml` it goes by what programs
    /// measure themselves. With `fences` it sets the driver's own limits, too.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(root: &Path, nvml: bool, fences: bool) -> std::io::Result<Self> {
        let state = Arc::new(ArbiterState::default());
        let (seen, root) = (Arc::clone(&state), root.to_owned());
        std::thread::Builder::new()
            .name("arbiter".to_owned())
            .spawn(move || serve(root, nvml, fences, &seen))?;
        Ok(Self { state })
    }

    /// How it does at the moment.
    #[must_use]
    pub fn status(&self) -> ArbiterStatus {
        // Relaxed: numbers for a scrape; they guard no other memory.
        ArbiterStatus {
            leads: self.state.leads.load(Ordering::Relaxed),
            served: self.state.served.load(Ordering::Relaxed),
            failed: self.state.failed.load(Ordering::Relaxed),
            ticks: self.state.ticks.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Arbiter {
    fn drop(&mut self) {
        // Relaxed: the flag guards no other memory.
        self.state.stop.store(true, Ordering::Relaxed);
        if let Some(waker) = self.state.waker.get() {
            waker.wake();
        }
    }
}

fn serve(root: PathBuf, nvml: bool, fences: bool, state: &ArbiterState) {
    let mut board = Board::serve(&root);
    if let Some(waker) = board.waker() {
        state.waker.set(waker).ok();
    }
    let mut driver = ArbiterDriver {
        nvml,
        gpus: None,
        failed_at: None,
    };
    let (mut keeper, mut finder) = (Keeper::default(), ByLimits::default());
    let mut led = None;
    // Relaxed throughout: see `Arbiter`.
    while !state.stop.load(Ordering::Relaxed) {
        let ticked = board.tick(monotonic_ns(), driver.open());
        state.leads.store(ticked.leads, Ordering::Relaxed);
        state.served.store(ticked.served as u64, Ordering::Relaxed);
        state.failed.store(ticked.failed as u64, Ordering::Relaxed);
        state.ticks.fetch_add(1, Ordering::Relaxed);
        if led != Some(ticked.leads) {
            led = Some(ticked.leads);
            tracing::info!(leads = ticked.leads, root = %root.display(), "arbiter of compute time");
        }
        if ticked.leads && fences {
            let kept = keeper.tick(monotonic_ns(), driver.open(), &root, &mut finder);
            kept.iter().for_each(fence_log::outcome);
        }
        board.pause(&ticked, monotonic_ns);
    }
}

/// The driver, once it is there. Stays open: the exporter, whose process this is, watches the driver's files.
struct ArbiterDriver {
    nvml: bool,
    gpus: Option<NvmlGpus>,
    failed_at: Option<Instant>,
}

impl ArbiterDriver {
    fn open(&mut self) -> &dyn Gpus {
        let is_due = self.failed_at.is_none_or(|at| at.elapsed() >= RETRY);
        if self.nvml && self.gpus.is_none() && is_due {
            self.gpus = NvmlGpus::open().ok();
            self.failed_at = self.gpus.is_none().then(Instant::now);
        }
        self.gpus.as_ref().map_or(&NoDriver, |gpus| gpus)
    }
}

/// No driver that could be asked.
struct NoDriver;

impl Gpus for NoDriver {
    fn inventory(&self) -> Result<Inventory, GpuError> {
        Err(GpuError::NoLibrary(String::from("not asked")))
    }

    fn processes(&self) -> Result<Vec<GpuProcess>, GpuError> {
        Err(GpuError::NoLibrary(String::from("not asked")))
    }
}
