//! The two threads: one that asks the driver and may hang with it, and one that keeps and publishes what is known.
//! `promise` decides how much of a GPU is promised.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use supervisor::gpu::GpuError;
use tokio::sync::watch;

use super::InventorySettings;
use super::promise::promise;
use super::reading::{self, Reading};
use super::rules::{Rules, RulesError, Texts};
use crate::node_gpus::Inventory;

/// An event for the thread that keeps the inventory.
#[derive(Debug)]
pub(super) enum Event {
    /// Query the driver now.
    Rescan,
    /// The driver's answer, or why there is none.
    Answer(Result<Reading, GpuError>),
}

/// A driver that failed is asked again after this: it may be on its way.
const AGAIN: Duration = Duration::from_secs(5);

pub(super) fn start(
    settings: InventorySettings,
    inventories: watch::Sender<Option<Arc<Inventory>>>,
    rules: watch::Sender<Option<Arc<Rules>>>,
) -> io::Result<Sender<Event>> {
    let (events, heard) = channel();
    let (questions, asked) = channel();
    let (library, sysfs) = (settings.library.clone(), settings.sysfs.clone());
    let answers = events.clone();
    std::thread::Builder::new()
        .name("inventory-nvml".to_owned())
        .spawn(move || ask(&asked, &answers, library.as_deref(), &sysfs))?;
    let kept = AnswerFile::new(&settings.state_dir);
    let mut keeper = InventoryKeeper {
        reading: kept.load(),
        kept,
        settings,
        inventories,
        rules,
        texts: None,
        config_problem: None,
        down: None,
        waiting: None,
        due: Instant::now(),
        again: false,
    };
    std::thread::Builder::new()
        .name("inventory".to_owned())
        .spawn(move || keeper.run(&heard, &questions))?;
    Ok(events)
}

/// Answers questions until the sender is dropped.
fn ask(
    questions: &Receiver<Option<Reading>>,
    answers: &Sender<Event>,
    library: Option<&Path>,
    sysfs: &Path,
) {
    let mut nvml = None;
    while let Ok(before) = questions.recv() {
        let opened = match nvml.take() {
            Some(open) => Ok(open),
            None => supervisor::gpu::nvml(library.map(Path::as_os_str)),
        };
        let answer = opened.and_then(|open| {
            let answer = reading::read(&open, sysfs, before.as_ref());
            let answer = answer.map_err(|error| GpuError::Call {
                call: "the NVIDIA driver",
                reason: error.to_string(),
            })?;
            nvml = Some(open);
            Ok(answer)
        });
        // A driver that failed, or was replaced meanwhile, is opened again at the next question.
        if answers.send(Event::Answer(answer)).is_err() {
            return;
        }
    }
}

/// Keeps what is known.
struct InventoryKeeper {
    settings: InventorySettings,
    inventories: watch::Sender<Option<Arc<Inventory>>>,
    rules: watch::Sender<Option<Arc<Rules>>>,
    kept: AnswerFile,
    /// The driver's last word, perhaps from an earlier life.
    reading: Option<Reading>,
    /// The configuration as it was read last, well or not.
    texts: Option<Result<Texts, RulesError>>,
    config_problem: Option<String>,
    /// Why the driver does not answer at all.
    down: Option<GpuError>,
    /// Since when it has not answered, and whether it is said to be silent.
    waiting: Option<Instant>,
    due: Instant,
    /// A scan was requested while one was under way.
    again: bool,
}

impl InventoryKeeper {
    fn run(&mut self, heard: &Receiver<Event>, questions: &Sender<Option<Reading>>) {
        loop {
            if self.inventories.is_closed() {
                return;
            }
            self.look_at_configuration();
            if self.waiting.is_none() && Instant::now() >= self.due {
                if questions.send(self.reading.clone()).is_err() {
                    tracing::error!("the thread that queries the NVIDIA driver has ended");
                    return;
                }
                self.waiting = Some(Instant::now());
            }
            self.publish();
            match heard.recv_timeout(self.settings.look) {
                Ok(Event::Rescan) if self.waiting.is_some() => self.again = true,
                Ok(Event::Rescan) => self.due = Instant::now(),
                Ok(Event::Answer(answer)) => self.answered(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn answered(&mut self, answer: Result<Reading, GpuError>) {
        self.waiting = None;
        let pause = match answer {
            Ok(reading) => {
                if self.down.take().is_some() {
                    tracing::info!("the NVIDIA driver answers again");
                }
                if self.reading.as_ref() != Some(&reading) {
                    tracing::info!(gpus = reading.gpus.len(), "read the node's GPUs");
                    self.kept.save(&reading);
                    self.reading = Some(reading);
                }
                self.settings.rescan
            }
            Err(reason) => {
                if self.down.as_ref() != Some(&reason) {
                    tracing::warn!(%reason, "no answer from the NVIDIA driver");
                }
                self.down = Some(reason);
                AGAIN.min(self.settings.rescan)
            }
        };
        self.due = Instant::now() + pause;
        if std::mem::take(&mut self.again) {
            self.due = Instant::now();
        }
    }

    /// Reads the configuration where it has changed. A configuration that cannot be used is only reported.
    fn look_at_configuration(&mut self) {
        let settings = &self.settings;
        let read = Texts::read(
            settings.device_config.as_deref(),
            settings.node_config.as_deref(),
        );
        if self.texts.as_ref() == Some(&read) {
            return;
        }
        let rules = read.as_ref().map_err(Clone::clone).and_then(|texts| {
            Rules::parse(
                texts.device.as_deref(),
                texts.node.as_deref(),
                &settings.node,
                settings.mig_strategy,
            )
        });
        self.texts = Some(read);
        match rules {
            Ok(rules) => {
                self.config_problem = None;
                let changed = self.rules.borrow().as_deref() != Some(&rules);
                if changed {
                    tracing::info!(node = %settings.node, "the configuration is in effect");
                    self.rules.send_replace(Some(Arc::new(rules)));
                }
            }
            Err(problem) => {
                let what = if self.rules.borrow().is_some() {
                    "keeping the previous configuration"
                } else {
                    "no GPU is offered until it is cured"
                };
                tracing::error!(%problem, "the configuration cannot be used: {what}");
                self.config_problem = Some(format!("{problem}; {what}"));
            }
        }
    }

    fn publish(&self) {
        let silent = self
            .waiting
            .map(|since| since.elapsed())
            .filter(|elapsed| *elapsed >= self.settings.patience);
        let rules = self.rules.borrow().clone();
        let mut inventory = match (&self.reading, rules) {
            (Some(reading), Some(rules)) => promise(reading, &rules),
            // There has been no report yet.
            (None, Some(_)) if self.down.is_none() && silent.is_none() => return,
            _ => Inventory::default(),
        };
        inventory.problems.extend(self.config_problem.clone());
        let hindrance = self.settings.hindrance.borrow().clone();
        let sick = if let Some(reason) = hindrance {
            Some(format!(
                "{reason}; no pod gets a GPU of this node until then"
            ))
        } else if let Some(reason) = &self.down {
            Some(format!("{reason}; no GPU can be used until it answers"))
        } else if silent.is_some_and(|elapsed| elapsed >= self.settings.silence) {
            Some("the NVIDIA driver hangs: its GPUs are out of use until it answers".to_owned())
        } else {
            if silent.is_some() {
                inventory.problems.push(
                    "the NVIDIA driver does not answer in time; what it said last still holds"
                        .to_owned(),
                );
            }
            None
        };
        if let Some(reason) = sick {
            inventory.problems.push(reason);
            for gpu in &mut inventory.gpus {
                gpu.device.healthy = false;
            }
        }
        self.inventories.send_if_modified(|known| {
            let changed = known.as_deref() != Some(&inventory);
            if changed {
                for problem in &inventory.problems {
                    let said = known
                        .as_deref()
                        .is_some_and(|known| known.problems.contains(problem));
                    if !said {
                        tracing::warn!(%problem, "the node's GPUs have problems");
                    }
                }
                *known = Some(Arc::new(inventory));
            }
            changed
        });
    }
}

/// The driver's last answer, on disk.
struct AnswerFile {
    path: PathBuf,
}

/// The file's form.
const FORM: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct AnswerDocument {
    form: u32,
    reading: Reading,
}

impl AnswerFile {
    fn new(state_dir: &Path) -> Self {
        Self {
            path: state_dir.join("inventory.json"),
        }
    }

    /// The kept answer, if it can be read. An unreadable one is no error: the driver gives the answer again.
    fn load(&self) -> Option<Reading> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(file = %self.path.display(), %error, "cannot read the saved inventory");
                return None;
            }
        };
        match serde_json::from_str::<AnswerDocument>(&text) {
            Ok(kept) if kept.form == FORM => Some(kept.reading),
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(file = %self.path.display(), %error, "the saved inventory is damaged");
                None
            }
        }
    }

    fn save(&self, reading: &Reading) {
        let kept = AnswerDocument {
            form: FORM,
            reading: reading.clone(),
        };
        if let Err(error) = super::write_whole(&self.path, &kept) {
            // A full disk costs a restart its memory, and nothing now.
            tracing::warn!(file = %self.path.display(), %error, "cannot save the inventory");
        }
    }
}
