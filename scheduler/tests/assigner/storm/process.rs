//! One process: its ledger, its clock, and how far its watch has come.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use kube_api::assigner::Claim;
use kube_api::vendor::Vendors;
use scheduler::assigner::ClaimLedger;
use scheduler::leases::guards::LeaseKnowledge;
use scheduler::ledger::Ledger;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::api::{Event, Truth, typed};
use crate::assigner::support::labelled;
use crate::hcs;
use crate::support::as_node;

/// All vendors, with requests of hcs.io switched on.
pub(super) static VENDORS: LazyLock<Arc<Vendors>> = LazyLock::new(|| hcs::vendors(|_| ()));

/// Three nodes of four NVIDIA GPUs, and one of two devices of another vendor, which only hcs.io asks for.
pub(super) const NODES: [&str; 4] = ["a", "b", "c", "k100"];

/// The largest difference between any two clocks, as the processes are configured.
const SKEW: SignedDuration = SignedDuration::from_secs(10);

pub(super) struct Process {
    pub(super) ledger: Mutex<Ledger>,
    seen: Mutex<usize>,
    /// Until when nothing of the watch arrives.
    stuck: Mutex<Option<Instant>>,
    began: Instant,
    epoch: Timestamp,
    /// The error of this machine's clock.
    off: SignedDuration,
    /// Whether the clock is stopped.
    stands: bool,
    changes: watch::Sender<u64>,
}

impl Process {
    pub(super) fn new(began: Instant, off: i64, stands: bool) -> Arc<Self> {
        Arc::new(Self {
            ledger: Mutex::new(fresh()),
            seen: Mutex::new(0),
            stuck: Mutex::new(None),
            began,
            epoch: Timestamp::from_second(1_700_000_000).unwrap(),
            off: SignedDuration::from_secs(off),
            stands,
            changes: watch::Sender::new(0),
        })
    }

    pub(super) fn now(&self) -> Duration {
        if self.stands {
            Duration::ZERO
        } else {
            self.began.elapsed()
        }
    }

    pub(super) fn with<T>(&self, change: impl FnOnce(&mut Ledger, Duration) -> T) -> T {
        let result = change(&mut self.ledger.lock().unwrap(), self.now());
        self.ledger.lock().unwrap().take_notices();
        result
    }

    /// For so long nothing of the watch arrives.
    pub(super) fn stick(&self, time: Duration) {
        *self.stuck.lock().unwrap() = Some(Instant::now() + time);
    }

    pub(super) fn unstick(&self) {
        *self.stuck.lock().unwrap() = None;
    }

    /// How many events of the log have arrived.
    pub(super) fn seen(&self) -> usize {
        *self.seen.lock().unwrap()
    }

    pub(super) fn deliver(&self, truth: &Mutex<Truth>, most: usize) {
        if (self.stuck.lock().unwrap()).is_some_and(|until| until > Instant::now()) {
            return;
        }
        let events: Vec<Event> = {
            let truth = truth.lock().unwrap();
            let mut seen = self.seen.lock().unwrap();
            let until = seen.saturating_add(most).min(truth.log.len());
            let events = truth.log[*seen..until].to_vec();
            *seen = until;
            events
        };
        for event in events {
            self.with(|ledger, now| match event {
                Event::Pod(pod) => ledger.set_pod(&pod, now),
                Event::PodGone(uid) => ledger.remove_pod(&uid),
                Event::Lease(lease) => {
                    ledger.set_claim(Claim::read(&lease).unwrap(), Duration::ZERO, now);
                }
                Event::LeaseGone(lease) => {
                    let claim = Claim::read(&lease).unwrap();
                    ledger.remove_claim(&claim.gpu, &claim.lease_uid, &claim.version);
                }
            });
        }
    }

    /// The process ends and restarts: it then knows only what the API server lists.
    pub(super) fn restart(&self, truth: &Mutex<Truth>) {
        let truth = truth.lock().unwrap();
        self.unstick();
        *self.ledger.lock().unwrap() = fresh();
        *self.seen.lock().unwrap() = truth.log.len();
        for pod in truth.pods.values() {
            self.with(|ledger, now| ledger.set_pod(&typed(pod), now));
        }
        for lease in truth.leases.values() {
            let claim = Claim::read(lease).unwrap();
            let age = claim.least_age(ClaimLedger::wall(self), SKEW);
            self.with(|ledger, now| ledger.set_claim(claim, age, now));
        }
    }
}

impl LeaseKnowledge for Process {
    fn has_run_out(&self, claim: &Claim) -> bool {
        self.with(|ledger, now| {
            ledger.expire(now);
            let held = ledger.claim(&claim.gpu);
            held.is_some_and(|held| held.lapsed && held.claim.version == claim.version)
        })
    }

    fn wall(&self) -> Timestamp {
        ClaimLedger::wall(self)
    }
}

impl ClaimLedger for Process {
    fn change(&self, change: &mut dyn FnMut(&mut Ledger, Duration)) {
        self.with(|ledger, now| change(ledger, now));
    }

    fn wall(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.now()).unwrap();
        self.epoch + elapsed + self.off
    }

    fn unready(&self) -> Option<String> {
        None
    }

    fn catch_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

pub(super) fn fresh() -> Ledger {
    let mut ledger = Ledger::new(Arc::clone(&VENDORS), Duration::from_secs(120)).with_claims();
    for node in nodes() {
        ledger.set_node(as_node(node));
    }
    ledger
}

fn nodes() -> Vec<Value> {
    let labels: [&[&str]; 4] = [&["x"], &["x"], &["x", "y"], &["y"]];
    let mut nodes: Vec<Value> = ["a", "b", "c"].map(|node| labelled(node, &labels)).into();
    nodes.push(hcs::node("k100", hcs::HYGON, "K100-64GB", 2, 64, true));
    nodes
}
