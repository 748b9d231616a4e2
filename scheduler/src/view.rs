//! Keeps the ledger up to date with the API server: nodes, pods, quotas and the Leases of claims, by lists and watches
//! that restart by themselves.

use std::collections::HashSet;
use std::fmt::Debug;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use kube_api::assigner::{Claim, GPU_UUID};
use kube_api::object::{Node, Pod, ResourceQuota};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use crate::Scheduler;
use crate::ledger::{Ledger, named, uid_of};

/// The kinds of watched objects, in the order of the arrays in [`Progress`].
pub(crate) const KINDS: [&str; 4] = ["nodes", "pods", "resourcequotas", "leases"];

/// Pods that have ended hold nothing, and are not read.
pub(crate) const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";

const LOOK_EVERY: Duration = Duration::from_secs(1);
const LEAST_PAUSE: Duration = Duration::from_millis(100);
const MOST_PAUSE: Duration = Duration::from_secs(10);

/// How much has been read of each kind of object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The term of this replica's leadership in which reading began.
    term: Option<u64>,
    /// Whether the kind's first list is complete.
    listed: [bool; 4],
    /// The newest resource version that was read.
    pub(crate) seen: [u64; 4],
    /// Why a kind cannot be read, if known.
    trouble: [String; 4],
    /// Whether the GPUs are known that other drivers give out, as far as they can be known.
    pub(crate) given_out: bool,
}

impl Progress {
    /// Whether the first list of every kind is complete.
    pub fn is_synced(&self) -> bool {
        self.listed.iter().all(|listed| *listed) && self.given_out
    }

    /// Whether the first list of every kind is complete since this term began.
    pub(crate) fn is_of(&self, term: u64) -> bool {
        self.is_synced() && self.term >= Some(term)
    }

    /// The kinds that have not been read yet, and why.
    pub(crate) fn missing(&self) -> String {
        let mut missing: Vec<String> = KINDS
            .iter()
            .zip(self.listed.iter().zip(&self.trouble))
            .filter(|(_, (listed, _))| !**listed)
            .map(|(kind, (_, trouble))| {
                if trouble.is_empty() {
                    (*kind).to_owned()
                } else {
                    format!("{kind} ({trouble})")
                }
            })
            .collect();
        if !self.given_out {
            missing.push("resourceclaims".to_owned());
        }
        missing.join(", ")
    }
}

/// How one kind of object enters the ledger.
trait LedgerObject:
    kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static
{
    /// Position in [`KINDS`].
    const KIND: usize;
    /// The object's identity.
    fn key(&self) -> Arc<str>;
    /// Puts the object into the ledger. `listed` is given for an object that existed before it was watched: how far
    /// this machine's clock and the writer's may differ.
    fn set(self, ledger: &mut Ledger, now: Duration, listed: Option<SignedDuration>);
    fn remove(&self, ledger: &mut Ledger);
    /// Whether the ledger keeps anything of the object, so that its disappearance must be noticed after a list.
    fn matters(key: &str, ledger: &Ledger) -> bool {
        let _ = (key, ledger);
        true
    }
    /// A list is complete: drops the objects that are not in it.
    fn keep(
        ledger: &mut Ledger,
        listed: &HashSet<Arc<str>>,
        known: &HashSet<Arc<str>>,
        began: Duration,
    );
}

impl LedgerObject for Node {
    const KIND: usize = 0;

    fn key(&self) -> Arc<str> {
        self.metadata.name.as_deref().unwrap_or_default().into()
    }

    fn set(self, ledger: &mut Ledger, _: Duration, _: Option<SignedDuration>) {
        ledger.set_node(self);
    }

    fn remove(&self, ledger: &mut Ledger) {
        ledger.remove_node(&self.key());
    }

    fn keep(ledger: &mut Ledger, listed: &HashSet<Arc<str>>, _: &HashSet<Arc<str>>, _: Duration) {
        ledger.keep_nodes(listed);
    }
}

impl LedgerObject for Pod {
    const KIND: usize = 1;

    fn key(&self) -> Arc<str> {
        uid_of(self)
    }

    fn set(self, ledger: &mut Ledger, now: Duration, _: Option<SignedDuration>) {
        ledger.set_pod(&self, now);
    }

    fn remove(&self, ledger: &mut Ledger) {
        ledger.remove_pod(&self.key());
    }

    fn matters(key: &str, ledger: &Ledger) -> bool {
        ledger.knows_pod(key)
    }

    fn keep(
        ledger: &mut Ledger,
        listed: &HashSet<Arc<str>>,
        _: &HashSet<Arc<str>>,
        began: Duration,
    ) {
        ledger.keep_pods(listed, began);
    }
}

impl LedgerObject for ResourceQuota {
    const KIND: usize = 2;

    fn key(&self) -> Arc<str> {
        let (namespace, name) = named(self);
        format!("{namespace}/{name}").into()
    }

    fn set(self, ledger: &mut Ledger, _: Duration, _: Option<SignedDuration>) {
        ledger.set_quota(&self);
    }

    fn remove(&self, ledger: &mut Ledger) {
        let (namespace, name) = named(self);
        ledger.remove_quota(namespace, name);
    }

    fn keep(
        ledger: &mut Ledger,
        listed: &HashSet<Arc<str>>,
        known: &HashSet<Arc<str>>,
        _: Duration,
    ) {
        for gone in known.difference(listed) {
            if let Some((namespace, name)) = gone.split_once('/') {
                ledger.remove_quota(namespace, name);
            }
        }
    }
}

impl LedgerObject for Lease {
    const KIND: usize = 3;

    fn key(&self) -> Arc<str> {
        self.metadata.name.as_deref().unwrap_or_default().into()
    }

    fn set(self, ledger: &mut Ledger, now: Duration, listed: Option<SignedDuration>) {
        match Claim::read(&self) {
            Ok(claim) => {
                let age = listed.map_or(Duration::ZERO, |skew| {
                    claim.least_age(Timestamp::now(), skew)
                });
                ledger.set_claim(claim, age, now);
            }
            Err(problem) => tracing::warn!(%problem, "a Lease is no reservation; it is left alone"),
        }
    }

    fn remove(&self, ledger: &mut Ledger) {
        let metadata = &self.metadata;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        if let Ok(claim) = Claim::read(self) {
            let (uid, version) = (text(&metadata.uid), text(&metadata.resource_version));
            ledger.remove_claim(&claim.gpu, &uid, &version);
        }
    }

    fn keep(
        ledger: &mut Ledger,
        listed: &HashSet<Arc<str>>,
        _: &HashSet<Arc<str>>,
        began: Duration,
    ) {
        ledger.keep_claims(listed, began);
    }
}

impl Scheduler {
    /// Keeps the ledger up to date with the API server until the future is dropped. A replica that begins to answer
    /// first reads everything again; a replica that stops answering drops the reservations without a binding.
    pub async fn follow(&self) {
        let mut term = self.0.leadership.terms();
        let mut tasks = self.start_view(term);
        loop {
            let now = self.0.leadership.terms();
            if now != term {
                tracing::info!("this replica answers from here on");
                // Reservations of an earlier term will not be bound any more.
                self.change(|ledger, _| ledger.forget_unbound());
                term = now;
                tasks = self.start_view(term);
            }
            tokio::select! {
                () = self.0.leadership.changed() => {
                    if let Err(why) = self.0.leadership.answers() {
                        tracing::info!(%why, "this replica stands by from here on");
                        self.change(|ledger, _| ledger.forget_unbound());
                    }
                }
                // A change of leadership between two checks shows in the term.
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.0.broke.notified() => {
                    tracing::error!("the ledger is built again");
                    drop(tasks);
                    *self.0.ledger.lock() = self.0.settings.ledger(&self.0.vendors);
                    tasks = self.start_view(term);
                }
                ended = tasks.join_next() => {
                    // A watch never ends by itself, so this is a defect.
                    tracing::error!(?ended, "a view ended");
                    tokio::time::sleep(LEAST_PAUSE).await;
                    self.break_off();
                }
            }
        }
    }

    fn start_view(&self, term: u64) -> JoinSet<()> {
        self.0.progress.send_modify(|progress| {
            *progress = Progress {
                term: Some(term),
                listed: [false, false, false, self.0.settings.claims.is_none()],
                given_out: !self.0.settings.reads_resource_claims,
                ..Progress::default()
            };
        });
        let client = || self.0.client.clone();
        let mut tasks = JoinSet::new();
        let nodes = watcher::Config::default().labels(&self.0.settings.node_selector);
        let pods = watcher::Config::default().fields(NOT_ENDED);
        tasks.spawn(self.clone().watch::<Node>(Api::all(client()), nodes));
        tasks.spawn(self.clone().watch::<Pod>(Api::all(client()), pods));
        let quotas = watcher::Config::default();
        tasks.spawn(
            self.clone()
                .watch::<ResourceQuota>(Api::all(client()), quotas),
        );
        if let Some(claims) = &self.0.settings.claims {
            let leases = watcher::Config::default().labels(GPU_UUID);
            let api: Api<Lease> = Api::namespaced(client(), &claims.namespace);
            tasks.spawn(self.clone().watch(api, leases));
        }
        if self.0.settings.reads_resource_claims {
            tasks.spawn(self.clone().watch_resource_claims());
        }
        tasks.spawn(self.clone().expire());
        if self.0.vendors.hcs().is_some() {
            tasks.spawn(self.clone().watch_compute_quotas());
            if self.0.settings.keeps_hcs {
                tasks.spawn(self.clone().keep_compute_quotas());
                tasks.spawn(self.clone().run_compute_tasks());
            }
        }
        tasks
    }

    async fn watch<K: LedgerObject>(self, api: Api<K>, config: watcher::Config) {
        let mut stream = std::pin::pin!(watcher(api, config));
        let mut pause = LEAST_PAUSE;
        let mut listed = HashSet::new();
        let mut known = HashSet::new();
        let mut began = Duration::ZERO;
        let mut version_at_list = 0;
        let claims = self.0.settings.claims.as_ref();
        let skew = claims.map(|claims| claims.clock_skew).unwrap_or_default();
        let skew = Some(SignedDuration::try_from(skew).unwrap_or(SignedDuration::MAX));
        while let Some(event) = stream.next().await {
            let version = match event {
                Ok(Event::Init) => {
                    began = self.now();
                    listed.clear();
                    version_at_list = self.version();
                    continue;
                }
                Ok(Event::InitApply(object)) => {
                    let version = version_of(&object);
                    let key = object.key();
                    self.set(object, skew);
                    if self.with_ledger(|ledger| K::matters(&key, ledger)) {
                        listed.insert(key);
                    }
                    version
                }
                Ok(Event::InitDone) => {
                    self.change(|ledger, _| K::keep(ledger, &listed, &known, began));
                    known = std::mem::take(&mut listed);
                    self.note(K::KIND, |listed, _| *listed = true);
                    tracing::info!(kind = KINDS.get(K::KIND), "read from the API server");
                    version_at_list
                }
                Ok(Event::Apply(object)) => {
                    let version = version_of(&object);
                    if K::KIND == ResourceQuota::KIND {
                        known.insert(object.key());
                    }
                    self.set(object, None);
                    version
                }
                Ok(Event::Delete(object)) => {
                    self.change(|ledger, _| object.remove(ledger));
                    version_of(&object)
                }
                Err(error) => {
                    tracing::warn!(kind = KINDS.get(K::KIND), %error, "cannot read from the API server; trying again");
                    self.note(K::KIND, |_, trouble| *trouble = error.to_string());
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MOST_PAUSE);
                    continue;
                }
            };
            pause = LEAST_PAUSE;
            self.saw(K::KIND, version);
        }
    }

    /// Puts the object into the ledger. If our code panics on one object, that object is left out and the others are
    /// not affected.
    fn set<K: LedgerObject>(&self, object: K, listed: Option<SignedDuration>) {
        let key = object.key();
        let set = AssertUnwindSafe(|| self.change(|ledger, now| object.set(ledger, now, listed)));
        if std::panic::catch_unwind(set).is_err() {
            let kind = KINDS.get(K::KIND);
            tracing::error!(kind, %key, "a defect in the scheduler: it is left out");
        }
    }

    fn note(&self, kind: usize, note: impl FnOnce(&mut bool, &mut String)) {
        self.0.progress.send_modify(|progress| {
            if let (Some(listed), Some(trouble)) = (
                progress.listed.get_mut(kind),
                progress.trouble.get_mut(kind),
            ) {
                note(listed, trouble);
            }
        });
    }

    fn saw(&self, kind: usize, version: u64) {
        self.0.progress.send_if_modified(|progress| {
            let Some(seen) = progress.seen.get_mut(kind) else {
                return false;
            };
            let newer = version > *seen;
            *seen = version.max(*seen);
            newer
        });
    }

    /// The version of the embedded cluster; 0 elsewhere.
    fn version(&self) -> u64 {
        self.0
            .embedded
            .as_ref()
            .map_or(0, |embedded| embedded.version())
    }
}

fn version_of(object: &impl kube::Resource) -> u64 {
    let version = object.meta().resource_version.as_deref();
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}
