//! Garbage collection: what dead containers have left on the node. Owns when something counts as dead.
//!
//! Never takes a living container's directory away: the kubelet *and* the API server have to say that its pod is gone,
//! for as long as the grace lasts and without a look between that failed, and no process may hold a lock in its region.
//! Who cannot be asked has said nothing.

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
    /// How many of its containers, init containers too, the kubelet allots something of ours.
    pub containers: usize,
}

/// The two that have to agree. An error means that the source cannot be asked now, or has not seen everything yet; an
/// empty answer means that there is nothing.
pub trait Sources: Send + Sync {
    /// The kubelet: the allotments whose device IDs a pod holds.
    fn in_use(&self) -> impl Future<Output = Result<BTreeSet<Name>, String>> + Send;

    /// The API server: the pods of this node.
    fn pods(&self) -> impl Future<Output = Result<Vec<LivingPod>, String>> + Send;

    /// Hears of a container that has made its usage region longer, where that could not be cut back: whose it is, as
    /// far as that is known, and why.
    fn uncut(&self, of: Option<Labels>, reason: &str);
}

/// What a look has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Looked {
    /// Allotments that were taken away.
    pub removed: Vec<Name>,
    /// Halves, descriptions and versions of the library that were taken away.
    pub cleared: Vec<PathBuf>,
    /// Allotments whose pods are gone, and which stay until the grace is over or their last process ends.
    pub waiting: Vec<Name>,
    /// What could not be taken away, and why.
    pub failed: Vec<String>,
}

/// How long both sources have to say that a pod is gone.
pub const GRACE: Duration = Duration::from_secs(60);

/// Looks for what dead containers have left.
#[derive(Debug)]
pub struct Collector<S> {
    delivery: Arc<Delivery>,
    sources: S,
    grace: Duration,
    begun: Instant,
    /// Since when both have said so, by the clock of [`Collector::look_at`].
    gone_since: Mutex<BTreeMap<Name, Duration>>,
}

impl<S: Sources> Collector<S> {
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
    pub async fn run(&self, every: Duration, mut told: impl FnMut(&Result<Looked, String>) + Send) {
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let looked = self.look().await;
            match &looked {
                Ok(looked) => say(looked),
                Err(reason) => {
                    tracing::warn!(%reason, "nothing is cleared away until the next look")
                }
            }
            told(&looked);
        }
    }

    /// Looks once. Afterwards no card counts what pods hold that are gone, even where their directories stay longer.
    ///
    /// # Errors
    /// One of the sources cannot be asked; then nothing was taken away.
    pub async fn look(&self) -> Result<Looked, String> {
        self.look_at(self.begun.elapsed()).await
    }

    /// The same by another clock.
    ///
    /// # Errors
    /// As [`Collector::look`].
    pub async fn look_at(&self, now: Duration) -> Result<Looked, String> {
        // What is given from here on is not judged by answers from before.
        let delivery = Arc::clone(&self.delivery);
        let (uncut, moment) = blocking(move || (trim(&delivery), delivery.moment())).await?;
        for (of, reason) in uncut {
            self.sources.uncut(of, &reason);
        }
        let asked = tokio::join!(self.sources.in_use(), self.sources.pods());
        let (in_use, pods) = match asked {
            (Ok(in_use), Ok(pods)) => (in_use, pods),
            (in_use, pods) => {
                // Whether they were gone all the time, nobody knows.
                self.gone_since.lock().clear();
                let of_kubelet = in_use.err().map(|error| format!("the kubelet: {error}"));
                let of_server = pods.err().map(|error| format!("the API server: {error}"));
                let reasons: Vec<_> = of_kubelet.into_iter().chain(of_server).collect();
                return Err(reasons.join("; "));
            }
        };
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

    /// Those whose grace is over.
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

/// Whether or not anybody can be asked: a disk that is filled up waits for nobody. Answers what could not be cut.
fn trim(delivery: &Delivery) -> Vec<(Option<Labels>, String)> {
    let mut uncut = Vec::new();
    for (name, cut) in delivery.trim() {
        match cut {
            Ok(bytes) => {
                tracing::warn!(%name, bytes, "a container has made its usage region longer; it was cut back")
            }
            Err(error) => {
                tracing::warn!(%name, %error, "a container's usage region cannot be cut back");
                uncut.push((delivery.labels(&name), error.to_string()));
            }
        }
    }
    uncut
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| format!("a look at the disk ended early: {error}"))
}

/// Those of whom both say that they are gone.
fn gone(
    holders: &BTreeMap<Name, String>,
    in_use: &BTreeSet<Name>,
    pods: &[LivingPod],
) -> BTreeSet<Name> {
    let living: BTreeSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
    let given = |uid: &str| holders.values().filter(|holder| *holder == uid).count();
    // The kubelet does not name init containers. Where a pod still waits for a container of its own, whatever was
    // given to nobody yet may be that container's.
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
        tracing::info!(%name, "its pod is gone: its directory was taken away");
    }
    for path in &looked.cleared {
        tracing::info!(path = %path.display(), "nobody needs it any more: it was taken away");
    }
    for reason in &looked.failed {
        tracing::warn!(%reason, "it is tried again");
    }
}

#[cfg(test)]
mod tests;
