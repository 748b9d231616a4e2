//! The node's GPUs as the driver and the configuration describe them, and their registration on the Node
//! object: what is promised of each, how they are connected, MIG profiles. Never decides which of them a pod
//! gets.
//!
//! Two threads: one queries the driver, and may hang with it. The other keeps the results, reads the
//! configuration again when it changes, reports a silent driver, and never waits for the first. The driver's
//! last answer is kept in the state directory, so that an agent that starts while the driver is slow knows
//! its GPUs at once.

pub mod capacity;
pub mod lease;
pub mod mig;
pub mod promise;
pub mod reading;
pub mod registration;
pub mod rules;

mod pace;
mod thread;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use tokio::sync::watch;

use crate::durable;
use crate::node_gpus::Inventories;

pub(crate) use registration::withdraw;
pub use registration::{RegisterSettings, register, unregister};
pub use rules::{MigStrategy, Rules};

/// Where everything is.
#[derive(Debug, Clone)]
pub struct InventorySettings {
    /// Name of this node, by which its entry in the per-node file is found.
    pub node: String,
    /// Directory that outlives the agent.
    pub state_dir: PathBuf,
    /// `device-config.yaml`; the standard one holds without.
    pub device_config: Option<PathBuf>,
    /// The per-node file, `{"nodeconfig": […]}`. It may be absent, and appear later.
    pub node_config: Option<PathBuf>,
    /// The MIG strategy of nodes for which the per-node file sets none.
    pub mig_strategy: MigStrategy,
    /// The kernel's directory of devices.
    pub sysfs: PathBuf,
    /// The driver's library; without, `libnvidia-ml.so.1` where the loader finds it.
    pub library: Option<PathBuf>,
    /// The driver is asked again after this.
    pub rescan: Duration,
    /// A driver that has not answered for this long is reported as silent.
    pub patience: Duration,
    /// GPUs of a driver that has been silent for this long are sick.
    pub silence: Duration,
    /// Files of the configuration are looked at this often.
    pub look: Duration,
    /// Why this node's container runtime cannot give a container its GPU: all GPUs are unhealthy while there is a
    /// reason.
    pub hindrance: watch::Receiver<Option<String>>,
}

impl InventorySettings {
    /// With the defaults.
    pub fn new(node: impl Into<String>, state_dir: impl Into<PathBuf>) -> Self {
        Self {
            node: node.into(),
            state_dir: state_dir.into(),
            device_config: None,
            node_config: None,
            mig_strategy: MigStrategy::None,
            sysfs: PathBuf::from("/sys"),
            library: None,
            rescan: Duration::from_secs(30),
            patience: Duration::from_secs(10),
            silence: Duration::from_secs(60),
            look: Duration::from_secs(2),
            hindrance: watch::channel(None).1,
        }
    }
}

/// The current inventory and configuration. The threads end with the last clone.
#[derive(Debug, Clone)]
pub struct Watcher {
    /// The GPUs; `None` until the driver, or the state directory, has said what there is.
    pub inventories: Inventories,
    /// The rules of this node; `None` until the configuration could be read for the first time.
    pub rules: watch::Receiver<Option<Arc<Rules>>>,
    events: Sender<thread::Event>,
}

impl Watcher {
    /// Asks the driver now, and not only when it is time. Does not wait for the answer.
    pub fn rescan(&self) {
        // The thread lives as long as the receivers that this holds.
        drop(self.events.send(thread::Event::Rescan));
    }
}

/// Starts the two threads. Neither waits for the driver nor needs one.
///
/// # Errors
/// The system gives no thread.
pub fn start(settings: InventorySettings) -> io::Result<Watcher> {
    let (inventories, seen) = watch::channel(None);
    let (rules, ruled) = watch::channel(None);
    let events = thread::start(settings, inventories, rules)?;
    Ok(Watcher {
        inventories: seen,
        rules: ruled,
        events,
    })
}

/// Writes a file of the state directory, and makes the directory where it is missing.
fn write_whole(path: &std::path::Path, value: &impl serde::Serialize) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    durable::replace(path, &serde_json::to_vec_pretty(value)?, 0o644)
}
