//! Decides which GPUs are sick, from the driver's reports: values in, verdicts out. Never queries a driver,
//! never reads a clock: the caller passes the time in.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use super::score::{self, Vitals};
use super::xid::{self, Checks, Until};
use crate::node_gpus::{Health, Scores, Sick};

/// How patient the judge is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// After this quiet time and a good probe a GPU is healthy again after a transient error.
    pub quiet: Duration,
    /// The same after an error of hardware.
    pub long_quiet: Duration,
    /// A driver that is silent for this long does not answer.
    pub silence: Duration,
    /// The same while it starts: GPUs without persistence take seconds each.
    pub start: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            quiet: Duration::from_secs(60),
            long_quiet: Duration::from_secs(600),
            silence: Duration::from_secs(10),
            start: Duration::from_secs(60),
        }
    }
}

/// A report of the thread that asks the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The thread is about to load the driver's library and start it.
    Starting,
    /// The driver was restarted, and has these GPUs.
    Started(Vec<GpuIdentity>),
    /// The driver cannot be asked: why.
    Down(String),
    /// The driver answered.
    Alive,
    /// A GPU met an XID.
    Xid {
        /// The GPU.
        uuid: String,
        /// Its number.
        number: u64,
    },
    /// A GPU was asked how it is.
    Probed {
        /// The GPU.
        uuid: String,
        /// Its answer, or why there is none.
        found: Result<Vitals, Fault>,
    },
}

/// A GPU that the driver has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuIdentity {
    /// Its UUID.
    pub uuid: String,
    /// Its number.
    pub index: u32,
    /// Its model.
    pub model: String,
}

/// Why a GPU said nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It fell off the bus.
    Lost,
    /// The driver does not list it any more.
    Missing,
    /// The driver wants it reset.
    ResetRequired,
    /// Another error, as the driver words it.
    Other(String),
}

/// A change to be reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// A GPU met an XID.
    Xid {
        /// The GPU.
        gpu: GpuIdentity,
        /// The row of the table.
        xid: xid::Xid,
        /// Whether it makes the GPU sick.
        sick: bool,
    },
    /// A GPU is sick.
    Sick {
        /// The GPU.
        gpu: GpuIdentity,
        /// The reason.
        reason: String,
        /// Whether it may recover by itself.
        recovers: bool,
    },
    /// A GPU is well again.
    Well {
        /// The GPU.
        gpu: GpuIdentity,
        /// Why it was sick.
        was: String,
    },
    /// The driver fails for all GPUs; reported once for the node.
    DriverDown(String),
    /// It answers again.
    DriverUp,
    /// A GPU gives a warning that does not make it sick.
    Warning {
        /// The GPU.
        gpu: GpuIdentity,
        /// The warning.
        text: &'static str,
    },
}

/// A cause that makes a GPU sick.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// It cannot be queried. A GPU that was off the bus and comes back was reset.
    Gone {
        text: String,
        off_the_bus: bool,
    },
    /// Memory that cannot be repaired.
    RemapFailed,
    Xid(u64),
}

#[derive(Debug, Clone, Copy)]
struct Ill {
    since: SystemTime,
    last: Instant,
    until: Until,
    /// How often in a row: it makes quiet times longer.
    times: u32,
}

#[derive(Debug, Default)]
struct GpuState {
    known: GpuIdentity,
    causes: BTreeMap<Cause, Ill>,
    vitals: Vitals,
    /// The last probe succeeded, at that moment.
    probed_well: Option<Instant>,
    /// The last reported reason.
    said: Option<String>,
    recoveries: u64,
    /// Errors of each kind that a long time has not passed over, so that one that comes back waits longer.
    history: BTreeMap<u64, (u32, Instant)>,
}

impl Default for GpuIdentity {
    fn default() -> Self {
        Self {
            uuid: String::new(),
            index: u32::MAX,
            model: String::new(),
        }
    }
}

/// An error that comes back within this waits twice as long as the time before, up to an hour.
const REMEMBERED: Duration = Duration::from_secs(6 * 3600);
const LONGEST_QUIET: Duration = Duration::from_secs(3600);

/// The judge.
#[derive(Debug)]
pub struct Judge {
    checks: Checks,
    patience: Patience,
    gpus: BTreeMap<String, GpuState>,
    heard: Instant,
    starting: bool,
    /// Why the driver cannot be asked, since when.
    down: Option<(String, SystemTime)>,
    xids: BTreeMap<(String, u64), u64>,
}

impl Judge {
    /// A judge without any report yet.
    #[must_use]
    pub fn new(checks: Checks, patience: Patience, now: Instant) -> Self {
        Self {
            checks,
            patience,
            gpus: BTreeMap::new(),
            heard: now,
            starting: true,
            down: None,
            xids: BTreeMap::new(),
        }
    }

    /// Learns of GPUs that the inventory has, also while the driver says nothing.
    pub fn know(&mut self, gpus: impl IntoIterator<Item = GpuIdentity>) {
        for known in gpus {
            let gpu = self.gpus.entry(known.uuid.clone()).or_default();
            gpu.known = known;
        }
    }

    /// Takes a report.
    pub fn take(&mut self, report: Report, now: Instant, wall: SystemTime) -> Vec<News> {
        self.heard = now;
        let mut news = Vec::new();
        match report {
            Report::Starting => self.starting = true,
            Report::Alive => self.driver_is_up(&mut news),
            Report::Down(reason) => {
                self.starting = false;
                self.driver_is_down(reason, wall, &mut news);
            }
            Report::Started(gpus) => {
                self.starting = false;
                let came_back = self.down.is_some();
                self.driver_is_up(&mut news);
                for known in gpus {
                    let gpu = self.gpus.entry(known.uuid.clone()).or_default();
                    gpu.known = known;
                    if came_back {
                        gpu.was_reset();
                    }
                }
            }
            Report::Xid { uuid, number } => {
                self.driver_is_up(&mut news);
                let count = self.xids.entry((uuid.clone(), number)).or_default();
                *count = count.saturating_add(1);
                let until = self.checks.until(&xid::of(number));
                let gpu = self.gpus.entry(uuid.clone()).or_default();
                if gpu.known.uuid.is_empty() {
                    gpu.known.uuid = uuid;
                }
                gpu.met(number, until, now, wall);
                news.push(News::Xid {
                    gpu: gpu.known.clone(),
                    xid: xid::of(number),
                    sick: until != Until::Never,
                });
            }
            Report::Probed { uuid, found } => {
                self.driver_is_up(&mut news);
                let is_off = self.checks.is_off();
                let gpu = self.gpus.entry(uuid.clone()).or_default();
                if gpu.known.uuid.is_empty() {
                    gpu.known.uuid = uuid;
                }
                gpu.probed(found, is_off, now, wall, &mut news);
            }
        }
        self.settle(now, &mut news);
        news
    }

    /// Time went by without a report.
    pub fn tick(&mut self, now: Instant, wall: SystemTime) -> Vec<News> {
        let mut news = Vec::new();
        let patience = if self.starting {
            self.patience.start
        } else {
            self.patience.silence
        };
        let silent = now.saturating_duration_since(self.heard);
        if silent >= patience {
            let reason = format!(
                "the NVIDIA driver does not answer (nothing for more than {} s)",
                patience.as_secs()
            );
            self.driver_is_down(reason, wall, &mut news);
        }
        self.settle(now, &mut news);
        news
    }

    fn driver_is_down(&mut self, reason: String, wall: SystemTime, news: &mut Vec<News>) {
        if self.checks.is_off() {
            return;
        }
        let since = self.down.as_ref().map_or(wall, |(_, since)| *since);
        if self.down.as_ref().is_none_or(|(old, _)| *old != reason) {
            news.push(News::DriverDown(reason.clone()));
        }
        self.down = Some((reason, since));
    }

    fn driver_is_up(&mut self, news: &mut Vec<News>) {
        if self.down.take().is_some() {
            news.push(News::DriverUp);
        }
    }

    fn settle(&mut self, now: Instant, news: &mut Vec<News>) {
        // While the driver is down nothing is known of a GPU, so nothing ends.
        let down = self.down.is_some();
        for gpu in self.gpus.values_mut() {
            if !down {
                gpu.recover(&self.patience, now);
            }
            gpu.say(news);
        }
    }

    /// Which GPUs are sick.
    #[must_use]
    pub fn health(&self) -> Health {
        let mut health = Health::new();
        for (uuid, gpu) in &self.gpus {
            let own = gpu.worst();
            let sick = match (&self.down, own) {
                (Some((reason, since)), _) => Some(Sick {
                    reason: reason.clone(),
                    since: *since,
                    recovers: true,
                }),
                (None, Some((cause, ill))) => Some(Sick {
                    reason: cause.text(),
                    since: ill.since,
                    recovers: gpu.recovers(),
                }),
                (None, None) => None,
            };
            if let Some(sick) = sick {
                health.insert(uuid.clone(), sick);
            }
        }
        health
    }

    /// How well each known GPU is, from 0 to 100; see [`super::score`].
    #[must_use]
    pub fn scores(&self) -> Scores {
        let health = self.health();
        let gpus = self.gpus.iter();
        gpus.map(|(uuid, gpu)| (uuid.clone(), score::of(&gpu.vitals, health.get(uuid))))
            .collect()
    }

    /// Whether there is any GPU that is known, sick or well.
    pub fn gpus(&self) -> impl Iterator<Item = &GpuIdentity> {
        self.gpus.values().map(|gpu| &gpu.known)
    }

    /// Numbers for the metrics.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let health = self.health();
        Figures {
            gpus: self
                .gpus
                .values()
                .map(|gpu| GpuFigures {
                    known: gpu.known.clone(),
                    sick: health.get(&gpu.known.uuid).cloned(),
                    warnings: gpu.warnings().map(|(kind, _)| kind).collect(),
                    recoveries: gpu.recoveries,
                })
                .collect(),
            xids: self.xids.clone(),
            driver_up: self.down.is_none(),
        }
    }

    /// The parts that a GPU is cut into.
    #[must_use]
    pub fn instances(&self, uuid: &str) -> BTreeSet<String> {
        let gpu = self.gpus.get(uuid);
        gpu.map(|gpu| gpu.vitals.instances.iter().cloned().collect())
            .unwrap_or_default()
    }
}

/// Numbers for the metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// By UUID.
    pub gpus: Vec<GpuFigures>,
    /// How often each GPU met each XID.
    pub xids: BTreeMap<(String, u64), u64>,
    /// Whether the driver answers.
    pub driver_up: bool,
}

/// The figures of one GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuFigures {
    /// The GPU.
    pub known: GpuIdentity,
    /// Why it is not to be used.
    pub sick: Option<Sick>,
    /// Its warnings.
    pub warnings: Vec<&'static str>,
    /// How often it became well again.
    pub recoveries: u64,
}

impl Cause {
    fn text(&self) -> String {
        match self {
            Self::Gone { text, .. } => text.clone(),
            Self::RemapFailed => String::from("a memory row of the GPU could not be replaced"),
            Self::Xid(number) => format!("XID {number}: {}", xid::of(*number).meaning),
        }
    }
}

impl GpuState {
    fn met(&mut self, number: u64, until: Until, now: Instant, wall: SystemTime) {
        if until == Until::Never {
            return;
        }
        let times = match self.history.get(&number) {
            Some((times, at)) if now.saturating_duration_since(*at) < REMEMBERED => {
                times.saturating_add(1)
            }
            _ => 1,
        };
        self.history.insert(number, (times, now));
        let ill = self.causes.entry(Cause::Xid(number)).or_insert(Ill {
            since: wall,
            last: now,
            until,
            times,
        });
        (ill.last, ill.until, ill.times) = (now, until, times);
    }

    fn probed(
        &mut self,
        found: Result<Vitals, Fault>,
        is_off: bool,
        now: Instant,
        wall: SystemTime,
        news: &mut Vec<News>,
    ) {
        match found {
            Ok(vitals) => {
                let was_off = matches!(
                    self.gone(),
                    Some((
                        Cause::Gone {
                            off_the_bus: true,
                            ..
                        },
                        _
                    ))
                );
                self.causes
                    .retain(|cause, _| !matches!(cause, Cause::Gone { .. }));
                if was_off {
                    self.was_reset();
                }
                let before: Vec<&'static str> = self.warnings().map(|(_, text)| text).collect();
                self.vitals = vitals;
                let warnings = self.warnings().map(|(_, text)| text);
                for text in warnings.filter(|text| !before.contains(text)) {
                    news.push(News::Warning {
                        gpu: self.known.clone(),
                        text,
                    });
                }
                if self.vitals.remap_failed && !is_off {
                    self.causes.entry(Cause::RemapFailed).or_insert(Ill {
                        since: wall,
                        last: now,
                        until: Until::Reset,
                        times: 1,
                    });
                } else {
                    self.causes.remove(&Cause::RemapFailed);
                }
                self.probed_well = Some(now);
            }
            Err(fault) => {
                self.probed_well = None;
                let off_the_bus = !matches!(fault, Fault::Other(_));
                let text = match fault {
                    Fault::Lost => format!("the GPU is lost: {}", xid::of(79).meaning),
                    Fault::Missing => String::from("the driver does not list the GPU any more"),
                    Fault::ResetRequired => String::from("the driver wants the GPU reset"),
                    Fault::Other(text) => format!("the GPU does not answer: {text}"),
                };
                let since = self.gone().map_or(wall, |(_, ill)| ill.since);
                self.causes
                    .retain(|cause, _| !matches!(cause, Cause::Gone { .. }));
                if !is_off {
                    let ill = Ill {
                        since,
                        last: now,
                        until: Until::Quiet,
                        times: 1,
                    };
                    self.causes.insert(Cause::Gone { text, off_the_bus }, ill);
                }
            }
        }
    }

    fn gone(&self) -> Option<(&Cause, &Ill)> {
        self.causes
            .iter()
            .find(|(cause, _)| matches!(cause, Cause::Gone { .. }))
    }

    /// The GPU went and came back: faults that only a reset cures are cured.
    fn was_reset(&mut self) {
        self.causes
            .retain(|cause, ill| !matches!(cause, Cause::Xid(_)) || ill.until != Until::Reset);
    }

    fn recover(&mut self, patience: &Patience, now: Instant) {
        let Some(probed) = self.probed_well else {
            return;
        };
        let waits_for_reset = self.vitals.remap_pending || self.vitals.pages_pending;
        self.causes.retain(|cause, ill| {
            let Cause::Xid(_) = cause else {
                return true;
            };
            let quiet = match ill.until {
                Until::Never => return false,
                Until::Reset => return true,
                Until::Quiet => patience.quiet,
                // Memory that failed and waits to be replaced may fail again.
                Until::LongQuiet if waits_for_reset => return true,
                Until::LongQuiet => patience.long_quiet,
            };
            let doublings = ill.times.saturating_sub(1).min(8);
            let quiet = quiet.saturating_mul(1 << doublings);
            let quiet = quiet.min(LONGEST_QUIET.max(patience.long_quiet));
            // The probe that counts is one after the quiet time, not one before the error.
            probed.saturating_duration_since(ill.last) < quiet
                || now.saturating_duration_since(ill.last) < quiet
        });
    }

    fn worst(&self) -> Option<(&Cause, &Ill)> {
        self.causes.iter().min_by_key(|(cause, ill)| {
            let is_there = !matches!(cause, Cause::Gone { .. });
            (is_there, std::cmp::Reverse(ill.until), *cause)
        })
    }

    fn recovers(&self) -> bool {
        !self.causes.iter().any(|(cause, ill)| {
            matches!(cause, Cause::RemapFailed | Cause::Xid(_)) && ill.until == Until::Reset
        })
    }

    fn warnings(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        [
            (
                self.vitals.remap_pending,
                "remap_pending",
                "memory rows of the GPU wait for a reset to be replaced",
            ),
            (
                self.vitals.pages_pending,
                "pages_pending",
                "memory pages of the GPU wait for a reset to be retired",
            ),
        ]
        .into_iter()
        .filter(|(is, _, _)| *is)
        .map(|(_, kind, text)| (kind, text))
    }

    fn say(&mut self, news: &mut Vec<News>) {
        let now = self.worst().map(|(cause, _)| cause.text());
        if now == self.said {
            return;
        }
        match (&self.said, &now) {
            (_, Some(reason)) => news.push(News::Sick {
                gpu: self.known.clone(),
                reason: reason.clone(),
                recovers: self.recovers(),
            }),
            (Some(was), None) => {
                self.recoveries = self.recoveries.saturating_add(1);
                news.push(News::Well {
                    gpu: self.known.clone(),
                    was: was.clone(),
                });
            }
            (None, None) => {}
        }
        self.said = now;
    }
}

#[cfg(test)]
mod tests;
