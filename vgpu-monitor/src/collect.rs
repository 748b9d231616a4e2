//! Garbage collection of what dead containers leave on the node. Owns the rule for when a container counts as
//! dead.
//!
//! Never removes a living container's directory: the kubelet *and* the API server have to say that its pod is
//! gone, for the whole grace period and without a failed look in between, and no process may hold a lock in
//! its region. A source that does not answer has said nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use supervisor::instance::Labels;

use crate::delivery::{Delivery, Name};

/// A pod of this node that is neither deleted nor over (`Succeeded`, `Failed`), as the API server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivingPod {
    /// Its uid.
    pub uid: String,
    /// How many of its containers, init containers included, hold slots of this plugin.
    pub containers: usize,
}

/// Why a source did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The kubelet did not answer.
    #[error("the kubelet: {0}")]
    Kubelet(String),
    /// The API server did not answer.
    #[error("the API server: {0}")]
    ApiServer(String),
}

/// Why a look removed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookError {
    /// A source did not answer.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Neither source answered.
    #[error("{0}; {1}")]
    Both(SourceError, SourceError),
    /// The thread that read the disk ended early.
    #[error("a look at the disk ended early: {0}")]
    Disk(String),
}

/// The two sources that have to agree. An error means that the source cannot be asked now, or has not seen everything yet; an
/// empty answer means that there is nothing.
pub trait LifeSources: Send + Sync {
    /// The kubelet: the allotments whose device IDs a pod holds.
    fn in_use(&self) -> impl Future<Output = Result<BTreeSet<Name>, SourceError>> + Send;

    /// The API server: the pods of this node.
    fn pods(&self) -> impl Future<Output = Result<Vec<LivingPod>, SourceError>> + Send;

    /// Reports a container that extended its usage region where that could not be truncated: the container,
    /// if known, and the reason.
    fn uncut(&self, of: Option<Labels>, reason: &str);
}

/// The results of a look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Looked {
    /// Allotments that were removed.
    pub removed: Vec<Name>,
    /// Partial files, descriptions and versions of the library that were removed.
    pub cleared: Vec<PathBuf>,
    /// Allotments whose pods have ended. They stay until the grace is over or their last process ends.
    pub waiting: Vec<Name>,
    /// Allotments and files that could not be removed, with the reasons.
    pub failed: Vec<String>,
}

/// How long both sources have to say that a pod is gone.
pub const GRACE: Duration = Duration::from_secs(60);

/// Looks for what dead containers have left.
#[derive(Debug)]
pub struct LeftoverCollector<S> {
    delivery: Arc<Delivery>,
    sources: S,
    grace: Duration,
    begun: Instant,
    /// When both sources first said so, by the clock of [`LeftoverCollector::look_at`].
    gone_since: Mutex<BTreeMap<Name, Duration>>,
}

impl<S: LifeSources> LeftoverCollector<S> {
    /// With a [`GRACE`] of a minute.
    pub fn new(delivery: Arc<Delivery>, sources: S) -> Self {
        Self {
            delivery,
            sources,
            grace: GRACE,
            begun: Instant::now(),
            gone_since: Mutex::default(),
        }
    }

    /// With another grace.
    #[must_use]
    pub fn with_grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// Looks again and again, and hands over what each look came to.
    pub async fn run(
        &self,
        every: Duration,
        mut told: impl FnMut(&Result<Looked, LookError>) + Send,
    ) {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let looked = self.look().await;
            match &looked {
                Ok(looked) => say(looked),
                Err(reason) => {
                    tracing::warn!(%reason, "garbage collection skipped until the next look")
                }
            }
            told(&looked);
        }
    }

    /// Looks once. Afterwards no GPU counts what pods hold that are gone, even where their directories stay longer.
    ///
    /// # Errors
    /// One of the sources cannot be asked; then nothing was removed.
    pub async fn look(&self) -> Result<Looked, LookError> {
        self.look_at(self.begun.elapsed()).await
    }

    /// The same by another clock.
    ///
    /// # Errors
    /// As [`LeftoverCollector::look`].
    pub async fn look_at(&self, now: Duration) -> Result<Looked, LookError> {
        // Allotments given from here on are not judged by answers from before.
        let delivery = Arc::clone(&self.delivery);
        let (uncut, moment) = blocking(move || (trim(&delivery), delivery.moment())).await?;
        for (of, reason) in uncut {
            self.sources.uncut(of, &reason);
        }
        let asked = tokio::join!(self.sources.in_use(), self.sources.pods());
        let failed = match asked {
            (Ok(in_use), Ok(pods)) => return self.judge(in_use, pods, moment, now).await,
            (Err(one), Ok(_)) | (Ok(_), Err(one)) => LookError::Source(one),
            (Err(kubelet), Err(server)) => LookError::Both(kubelet, server),
        };
        // It is unknown whether the pods were gone all the time.
        self.gone_since.lock().clear();
        Err(failed)
    }

    /// Removes the allotments that both sources have called gone for the whole grace.
    async fn judge(
        &self,
        in_use: BTreeSet<Name>,
        pods: Vec<LivingPod>,
        moment: u64,
        now: Duration,
    ) -> Result<Looked, LookError> {
        let delivery = Arc::clone(&self.delivery);
        let gone = blocking(move || {
            let gone = gone(&delivery.holders(), &in_use, &pods);
            delivery.gone(&gone, moment);
            gone
        })
        .await?;
        let over = self.over(&gone, now);
        let delivery = Arc::clone(&self.delivery);
        let looked = blocking(move || clear(&delivery, gone, &over, moment)).await?;
        let mut since = self.gone_since.lock();
        since.retain(|name, _| !looked.removed.contains(name));
        Ok(looked)
    }

    /// The allotments whose grace is over.
    fn over(&self, gone: &BTreeSet<Name>, now: Duration) -> BTreeSet<Name> {
        let mut since = self.gone_since.lock();
        since.retain(|name, _| gone.contains(name));
        for name in gone {
            since.entry(name.clone()).or_insert(now);
        }
        let over = since
            .iter()
            .filter(|(_, since)| now.saturating_sub(**since) >= self.grace);
        over.map(|(name, _)| name.clone()).collect()
    }
}

/// Runs even if neither source answers: a disk that fills up does not wait. Returns what could not be
/// truncated.
fn trim(delivery: &Delivery) -> Vec<(Option<Labels>, String)> {
    let mut uncut = Vec::new();
    for (name, cut) in delivery.trim() {
        match cut {
            Ok(bytes) => {
                tracing::warn!(%name, bytes, "a container extended its usage region; truncated it")
            }
            Err(error) => {
                tracing::warn!(%name, %error, "cannot truncate a container's usage region");
                uncut.push((delivery.labels(&name), error.to_string()));
            }
        }
    }
    uncut
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, LookError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| LookError::Disk(error.to_string()))
}

/// The containers that both sources call gone.
fn gone(
    holders: &BTreeMap<Name, String>,
    in_use: &BTreeSet<Name>,
    pods: &[LivingPod],
) -> BTreeSet<Name> {
    let living: BTreeSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
    let given = |uid: &str| holders.values().filter(|holder| *holder == uid).count();
    // The kubelet does not name init containers. While a pod still waits for a container of its own, any
    // allotment that has not been given yet may be that container's.
    let is_awaited = pods.iter().any(|pod| given(&pod.uid) < pod.containers);
    let is_gone = |(name, uid): &(&Name, &String)| {
        let is_known_to_server = if uid.is_empty() {
            is_awaited
        } else {
            living.contains(uid.as_str())
        };
        !in_use.contains(*name) && !is_known_to_server
    };
    let gone = holders.iter().filter(is_gone);
    gone.map(|(name, _)| name.clone()).collect()
}

fn clear(delivery: &Delivery, gone: BTreeSet<Name>, over: &BTreeSet<Name>, moment: u64) -> Looked {
    let mut looked = Looked::default();
    for name in gone {
        if !over.contains(&name) {
            looked.waiting.push(name);
            continue;
        }
        match delivery.collect(&name, moment) {
            Ok(true) => looked.removed.push(name),
            Ok(false) => looked.waiting.push(name),
            Err(error) => looked.failed.push(error.to_string()),
        }
    }
    match delivery.tidy() {
        Ok(cleared) => looked.cleared = cleared,
        Err(error) => looked.failed.push(error.to_string()),
    }
    looked
}

pub(crate) fn say(looked: &Looked) {
    for name in &looked.removed {
        tracing::info!(%name, "removed the directory of a container whose pod is gone");
    }
    for path in &looked.cleared {
        tracing::info!(path = %path.display(), "removed: no container needs it any more");
    }
    for reason in &looked.failed {
        tracing::warn!(%reason, "retrying");
    }
}

#[cfg(test)]
mod tests;
