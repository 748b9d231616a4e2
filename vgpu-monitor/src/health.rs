//! Which GPUs must not be used now, and why (XIDs, a driver that stops answering, a GPU that is lost), and
//! when they are healthy again. Never changes what is promised of a GPU, and never queries the driver on a
//! thread that another thread waits for.
//!
//! Two threads: one queries the driver ([`driver`]) and may hang as long as the driver does; the other judges
//! what was reported ([`judge`], values in and values out), and takes a silence of the first for an answer.

pub mod driver;

pub mod judge;

pub mod score;

pub mod series;

pub mod tell;

pub mod xid;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

use events::Events;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::driver_files::DriverFiles;
use crate::node_gpus::{Health, Healths, Inventories, Scores};
use driver::QueryPace;
use judge::{Figures, GpuIdentity, Judge, Patience, Report};
use series::HealthCollector;
use xid::Checks;

/// The settings of the health check.
#[derive(Debug, Clone)]
pub struct HealthSettings {
    /// Name of the node, for its events and the label of its series.
    pub node: String,
    /// The directory of the containers: their labels say which pods get events.
    pub root: PathBuf,
    /// Which XIDs count.
    pub checks: Checks,
    /// How patient it is.
    pub patience: Patience,
    /// How often it asks.
    pub pace: QueryPace,
    /// NVML's library; nothing is the driver's own, by its name.
    pub library: Option<OsString>,
    /// Hears how opening the driver ends.
    pub files: DriverFiles,
}

impl HealthSettings {
    /// As the environment says (`DP_DISABLE_HEALTHCHECKS`, `DP_ENABLE_HEALTHCHECKS`), the rest by default.
    #[must_use]
    pub fn of(node: &str, root: PathBuf, files: DriverFiles) -> Self {
        let read = |name: &str| std::env::var(name).unwrap_or_default();
        Self {
            node: node.to_owned(),
            root,
            checks: Checks::parse(
                &read("DP_DISABLE_HEALTHCHECKS"),
                &read("DP_ENABLE_HEALTHCHECKS"),
            ),
            patience: Patience::default(),
            pace: QueryPace::default(),
            library: None,
            files,
        }
    }
}

/// The running health check.
#[derive(Debug)]
pub struct Started {
    /// Which GPUs are sick, as it changes.
    pub healths: Healths,
    /// How well each GPU is, as it changes.
    pub scores: watch::Receiver<Arc<Scores>>,
    /// For a registry of series.
    pub collector: HealthCollector,
}

/// Looks this often whether the driver has gone silent.
const TICK: Duration = Duration::from_millis(250);

/// Starts the two threads. They end when the last receiver of the verdicts is dropped; the thread that
/// queries may stay in the driver as long as that hangs.
///
/// # Errors
/// The system gives no thread.
pub fn start(
    settings: HealthSettings,
    inventories: Inventories,
    events: Events,
) -> std::io::Result<Started> {
    let (reports, reported) = channel();
    let (verdicts, healths) = watch::channel(Arc::new(Health::new()));
    let (scored, scores) = watch::channel(Arc::default());
    let figures = Arc::new(Mutex::new(Figures::default()));
    let collector = HealthCollector {
        node: settings.node.clone(),
        detail: crate::exporter::Detail::Full,
        figures: Arc::clone(&figures),
    };
    let (library, pace, known) = (settings.library.clone(), settings.pace, inventories.clone());
    let files = settings.files.clone();
    std::thread::Builder::new()
        .name(String::from("health-driver"))
        .spawn(move || driver::ask(library.as_deref(), pace, &files, &known, &reports))?;
    std::thread::Builder::new()
        .name(String::from("health"))
        .spawn(move || {
            judge_all(
                &settings,
                &inventories,
                &reported,
                &verdicts,
                &scored,
                &figures,
                &events,
            );
        })?;
    Ok(Started {
        healths,
        scores,
        collector,
    })
}

fn judge_all(
    settings: &HealthSettings,
    inventories: &Inventories,
    reported: &Receiver<Report>,
    verdicts: &watch::Sender<Arc<Health>>,
    scored: &watch::Sender<Arc<Scores>>,
    figures: &Mutex<Figures>,
    events: &Events,
) {
    let mut judge = Judge::new(settings.checks.clone(), settings.patience, Instant::now());
    loop {
        let report = match reported.recv_timeout(TICK) {
            Ok(report) => Some(report),
            Err(RecvTimeoutError::Timeout) => None,
            // The other thread ended, which it does only where this one has: nothing more will be known.
            Err(RecvTimeoutError::Disconnected) => return,
        };
        judge.know(known(inventories));
        let (now, wall) = (Instant::now(), SystemTime::now());
        let news = match report {
            Some(report) => judge.take(report, now, wall),
            None => judge.tick(now, wall),
        };
        let health = judge.health();
        *figures.lock() = judge.figures();
        verdicts.send_if_modified(|old| {
            let changed = **old != health;
            if changed {
                *old = Arc::new(health);
            }
            changed
        });
        let uuids = |uuid: &str| {
            let mut uuids = judge.instances(uuid);
            uuids.insert(uuid.to_owned());
            uuids
        };
        let scores = judge.scores();
        scored.send_if_modified(|old| {
            let changed = **old != scores;
            if changed {
                *old = Arc::new(scores);
            }
            changed
        });
        for news in &news {
            tell::tell(news, &settings.root, &settings.node, &uuids, events);
        }
        if verdicts.is_closed() {
            return;
        }
    }
}

fn known(inventories: &Inventories) -> Vec<GpuIdentity> {
    let inventory = inventories.borrow();
    let gpus = inventory.iter().flat_map(|inventory| &inventory.gpus);
    gpus.filter(|gpu| gpu.device.vendor.as_str() == "NVIDIA")
        .map(|gpu| GpuIdentity {
            uuid: gpu.device.id.clone(),
            index: gpu.device.index,
            model: gpu.device.model.clone(),
        })
        .collect()
}
