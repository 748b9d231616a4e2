//! The use of this node's GPUs by its workloads: seconds of GPU time, and memory over time. Owns the sums, which
//! outlive the containers that they are of, and the agent.
//!
//! GPU time is what the library counted in each container's region, so a container that ends between two looks loses
//! none of it. Memory is what the container held at each look. Never shows more than there can have been: a container
//! writes its region itself.

mod state;
mod sums;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use supervisor::clock::monotonic_ns;

pub use sums::{Seen, Sums};

use crate::exporter::{Account, Used};
use crate::regions::{self, Budget, Found};

/// How often the containers are looked at.
const EVERY: Duration = Duration::from_secs(5);
/// The sums are written to their file after this many looks.
const LOOKS_TO_WRITE: u32 = 6;

/// The sums of this node, and the thread that makes them.
#[derive(Debug)]
pub struct Usage {
    shared: Arc<UsageState>,
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct UsageState {
    root: PathBuf,
    sums: Mutex<Sums>,
}

impl Usage {
    /// Reads what an earlier agent has written below `root`, and starts the thread.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(root: &Path) -> std::io::Result<Self> {
        let sums = state::read(root).unwrap_or_else(|error| {
            if error.kind() != std::io::ErrorKind::NotFound {
                tracing::warn!(%error, "the sums of what workloads used cannot be read: they begin at 0");
            }
            Sums::default()
        });
        let shared = Arc::new(UsageState {
            root: root.to_owned(),
            sums: Mutex::new(sums),
        });
        let (stop, stopped) = channel::<()>();
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("usage".to_owned())
            .spawn(move || {
                let mut looks: u32 = 0;
                let mut is_writable = true;
                while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                    of_thread.look();
                    looks = looks.wrapping_add(1);
                    if looks.is_multiple_of(LOOKS_TO_WRITE) {
                        of_thread.write(&mut is_writable);
                    }
                }
                of_thread.look();
                of_thread.write(&mut is_writable);
            })?;
        Ok(Self {
            shared,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The sums, up to now.
    #[must_use]
    pub fn used(&self) -> Vec<Used> {
        self.shared.look();
        self.shared.sums.lock().used(unix_now())
    }
}

impl Drop for Usage {
    /// Waits until the sums are in their file.
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl UsageState {
    fn look(&self) {
        let our_uid = nix::unistd::geteuid().as_raw();
        // Without a root there are no containers; the scrape says that it cannot be read.
        let Ok(census) =
            regions::read(&self.root, None, our_uid, monotonic_ns(), Budget::default())
        else {
            return;
        };
        let seen: Vec<Seen> = census.found.iter().map(seen).collect();
        self.sums.lock().look(&seen, unix_now());
    }

    fn write(&self, is_writable: &mut bool) {
        let text = state::text(&self.sums.lock());
        let written = state::write(&self.root, &text);
        if let Err(error) = &written
            && *is_writable
        {
            let root = self.root.display();
            tracing::warn!(%error, %root, "the sums of what workloads used cannot be written: they begin at 0 with the next agent");
        }
        *is_writable = written.is_ok();
    }
}

fn seen(found: &Found) -> Seen {
    let workload = &found.workload;
    let key = if workload.is_unknown() {
        Account {
            namespace: found.shown.namespace.clone(),
            team: String::new(),
            kind: String::new(),
            workload: found.shown.container.clone(),
        }
    } else {
        Account {
            namespace: found.shown.namespace.clone(),
            team: workload.team.clone(),
            kind: workload.kind.clone(),
            workload: workload.name.clone(),
        }
    };
    let bytes = |sum: u64, bytes: u64| sum.saturating_add(bytes);
    Seen {
        path: found.path.clone(),
        created_unix: found.created_unix,
        key,
        busy_ns: found.work.iter().map(|(_, busy_ns)| *busy_ns).collect(),
        used_bytes: found
            .shown
            .devices
            .iter()
            .map(|device| device.used_bytes)
            .fold(0, bytes),
    }
}

fn unix_now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
