//! The data of the cluster's GPU page: joins the ledger with the reports of the node agents, and remembers two hours of
//! them. It works on copies, so that answers to kube-scheduler are not delayed. The page's look is in `pages`.
//!
//! One loop asks the agents and adds a step to the history. The picture is made when a page asks for it; while a page
//! listens, it is made once a second, and its version grows when it differs from the one before.

mod history;
mod picture;
mod scrape;
mod told;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube_api::object::Pod;
use pages::Why;
use pages::gpus::{GpuPod, GpuShare, GpuSource, Monitors, OfGpu, Picture};
use parking_lot::Mutex;
use tokio::sync::{Mutex as Turn, Semaphore, watch};

use self::history::{History, PodOnGpu};
use self::picture::{Latest, LedgerView};
use self::scrape::Scraper;
use crate::Scheduler;
use crate::explain::{AnswerDetail, ViewSource as _, explain};
use crate::shown::why;

/// How often the picture is made while a page listens.
const FRESH: Duration = Duration::from_secs(1);

/// The greatest age of a picture that a page is given, so that no page waits for the next one while another listens.
const OLD: Duration = Duration::from_secs(3);

/// How often the first step checks whether the cluster has been read.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The source of the GPU page. Clones share it.
#[derive(Clone)]
pub struct Gpus(Arc<GpusInner>);

struct GpusInner {
    scheduler: Scheduler,
    scraper: Scraper,
    interval: Duration,
    remembered: Mutex<Remembered>,
    /// The last picture and the time at which it was made.
    kept: Mutex<(Option<Instant>, Arc<Picture>)>,
    /// Lets one new picture be made at a time.
    turn: Turn<()>,
    changes: watch::Sender<u64>,
    /// An answer examines every node, so only one is made at a time.
    explaining: Semaphore,
}

#[derive(Default)]
struct Remembered {
    history: History,
    latest: Latest,
    monitors: Monitors,
}

impl fmt::Debug for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpus").finish_non_exhaustive()
    }
}

impl Gpus {
    /// The GPU page of this scheduler, with node agents at these addresses (`HOST:PORT`), each asked once in an
    /// interval.
    pub fn new(scheduler: &Scheduler, monitors: Vec<String>, interval: Duration) -> Self {
        let remembered = Remembered {
            monitors: Monitors {
                configured: !monitors.is_empty(),
                ..Monitors::default()
            },
            ..Remembered::default()
        };
        Self(Arc::new(GpusInner {
            scheduler: scheduler.clone(),
            scraper: Scraper::new(monitors),
            interval,
            remembered: Mutex::new(remembered),
            kept: Mutex::new((None, Arc::new(Picture::default()))),
            turn: Turn::new(()),
            changes: watch::Sender::new(0),
            explaining: Semaphore::new(1),
        }))
    }

    /// Asks the node agents in each interval, and makes new pictures while a page listens. Never returns.
    pub async fn run(&self) {
        tokio::join!(self.remember(), self.look_for_listeners());
    }

    async fn remember(&self) {
        while !self.0.scheduler.is_synced() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let mut tick = tokio::time::interval(self.0.interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let (told, monitors) = self.0.scraper.round().await;
            let this = self.clone();
            let done = tokio::task::spawn_blocking(move || {
                let seen = this.seen();
                let latest = Latest::of(told);
                let mut remembered = this.0.remembered.lock();
                picture::record(&mut remembered.history, &seen, &latest);
                (remembered.latest, remembered.monitors) = (latest, monitors);
            });
            if let Err(error) = done.await {
                tracing::error!(%error, "a step of the GPU page's history is lost");
            }
        }
    }

    async fn look_for_listeners(&self) {
        let mut tick = tokio::time::interval(FRESH);
        loop {
            tick.tick().await;
            if self.0.changes.receiver_count() > 0 {
                self.fresh(FRESH).await;
            }
        }
    }

    fn seen(&self) -> LedgerView {
        let scheduler = &self.0.scheduler;
        let synced = scheduler.is_synced();
        let standby = match scheduler.0.leadership.answers() {
            Ok(()) => String::new(),
            Err(why) => why.to_string(),
        };
        scheduler.with_ledger(|ledger| {
            let cluster = ledger.cluster().clone();
            let unbound = cluster
                .reservations()
                .filter(|held| !ledger.is_bound(&held.pod.uid))
                .map(|held| held.pod.uid.as_str().into());
            LedgerView {
                unbound: unbound.collect(),
                waiting: ledger
                    .waiting()
                    .map(|waiting| {
                        let pod = &waiting.pod;
                        (pod.namespace.clone(), pod.name.clone(), waiting.reason)
                    })
                    .collect(),
                cluster,
                synced,
                standby,
            }
        })
    }

    /// The last picture, if it is younger than `age`.
    fn younger(&self, age: Duration) -> Option<Arc<Picture>> {
        let kept = self.0.kept.lock();
        let young = kept.0.is_some_and(|made| made.elapsed() < age);
        young.then(|| kept.1.clone())
    }

    /// A picture that is younger than `age`.
    async fn fresh(&self, age: Duration) -> Arc<Picture> {
        if let Some(picture) = self.younger(age) {
            return picture;
        }
        let _turn = self.0.turn.lock().await;
        if let Some(picture) = self.younger(age) {
            return picture;
        }
        let this = self.clone();
        let made = tokio::task::spawn_blocking(move || {
            let seen = this.seen();
            let step = u32::try_from(this.0.interval.as_secs().max(1)).unwrap_or(u32::MAX);
            let mut made = {
                let remembered = this.0.remembered.lock();
                let (history, latest) = (&remembered.history, &remembered.latest);
                picture::picture(&seen, history, latest, &remembered.monitors, step)
            };
            let before = this.0.kept.lock().1.clone();
            made.version = before.version;
            if made == *before {
                return before;
            }
            made.version += 1;
            made.prepare();
            Arc::new(made)
        });
        match made.await {
            Ok(made) => {
                *self.0.kept.lock() = (Some(Instant::now()), made.clone());
                self.0.changes.send_if_modified(|version| {
                    std::mem::replace(version, made.version) != made.version
                });
                made
            }
            Err(error) => {
                tracing::error!(%error, "the GPU page shows what was last known");
                self.0.kept.lock().1.clone()
            }
        }
    }

    /// Why a pod is not placed.
    async fn explained(&self, namespace: &str, name: &str) -> Option<Why> {
        let _turn = self.0.explaining.acquire().await.ok()?;
        let pod: Pod = match self.0.scheduler.pod(namespace, name).await {
            Ok(pod) => pod?,
            Err(unread) => {
                return Some(Why {
                    summary: unread.to_string(),
                    ..Why::default()
                });
            }
        };
        let scheduler = self.0.scheduler.clone();
        let explained = tokio::task::spawn_blocking(move || {
            explain(&scheduler.view(&pod), &pod, AnswerDetail::default())
        });
        why(explained.await.ok()?)
    }
}

impl GpuSource for Gpus {
    fn picture(&self) -> pages::Future<'_, Arc<Picture>> {
        Box::pin(self.fresh(OLD))
    }

    fn history(&self, namespace: &str, pod: &str) -> Vec<OfGpu> {
        // The GPUs of an existing pod are known; those of a pod that has ended are looked up in the history.
        let picture = self.0.kept.lock().1.clone();
        let order = |holder: &GpuPod| (&*holder.namespace, &*holder.pod).cmp(&(namespace, pod));
        let held = picture.holders.binary_search_by(order).ok();
        let held = held.and_then(|at| picture.holders.get(at));
        let remembered = self.0.remembered.lock();
        match held {
            Some(holder) => {
                let key = |share: &GpuShare| PodOnGpu {
                    namespace: Arc::clone(&holder.namespace),
                    pod: Arc::clone(&holder.pod),
                    gpu: Arc::clone(&share.gpu),
                };
                let keys: Vec<PodOnGpu> = holder.shares.iter().map(key).collect();
                remembered.history.of_gpus(&keys)
            }
            None => remembered.history.of_pod(namespace, pod),
        }
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn why<'a>(&'a self, namespace: &'a str, pod: &'a str) -> pages::Future<'a, Option<Why>> {
        Box::pin(self.explained(namespace, pod))
    }
}
