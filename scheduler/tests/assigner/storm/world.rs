//! The API server with its faults, the processes with their delays, and the oracle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube_api::allocation;
use kube_api::assigner::{Claim, Finalize, PodClaim, State, lease_name, pod_claim};
use kube_api::object::Pod;
use kube_api::request::{Defaults, request};
use kube_api::vendor::Vendors;
use placement::Among;
use scheduler::leases::{Found, Sent, Store};
use scheduler::assigner::{Assigner, Books, Settings};
use scheduler::ledger::{Begun, Filtered, Ledger};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::PROPOSAL;
use crate::assigner::support::{labelled, patched, review, wants};
use crate::support::{as_node, vendors};

static VENDORS: LazyLock<Arc<Vendors>> = LazyLock::new(vendors);

const NODES: [&str; 3] = ["a", "b", "c"];
/// How far any two clocks may differ, as the processes are told.
const SKEW: SignedDuration = SignedDuration::from_secs(10);
/// After this time the API server gives a webhook up.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
struct Rng(Arc<Mutex<u64>>);

impl Rng {
    fn below(&self, bound: u64) -> u64 {
        let mut state = self.0.lock().unwrap();
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % bound.max(1)
    }

    fn one_in(&self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    fn pick<'a, T>(&self, all: &'a [T]) -> Option<&'a T> {
        let length = u64::try_from(all.len()).unwrap();
        (length > 0).then(|| &all[usize::try_from(self.below(length)).unwrap()])
    }
}

#[derive(Clone)]
enum Event {
    Pod(Box<Pod>),
    PodGone(String),
    Lease(Box<Lease>),
    LeaseGone(Box<Lease>),
}

/// What a mutation gave.
#[derive(Clone)]
struct Given {
    reservation: String,
    gpus: Vec<String>,
    asked: Instant,
    /// The pod that will be made of it; none where it never will be.
    pod: Option<String>,
    made: bool,
}

/// Everything as it truly is.
#[derive(Default)]
struct Truth {
    version: u64,
    leases: BTreeMap<String, Lease>,
    pods: BTreeMap<String, Value>,
    log: Vec<Event>,
    given: Vec<Given>,
    figures: BTreeMap<&'static str, u64>,
    wrong: Option<String>,
}

impl Truth {
    fn next(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn count(&mut self, what: &'static str) {
        *self.figures.entry(what).or_default() += 1;
    }

    fn set_pod(&mut self, mut pod: Value) {
        pod["metadata"]["resourceVersion"] = self.next().into();
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        self.log.push(Event::Pod(Box::new(typed(&pod))));
        self.pods.insert(name, pod);
    }

    fn delete_pod(&mut self, name: &str) {
        if let Some(pod) = self.pods.remove(name) {
            let uid = pod["metadata"]["uid"].as_str().unwrap();
            self.log.push(Event::PodGone(uid.to_owned()));
        }
    }

    fn create(&mut self, claim: &Claim) -> Sent<Claim> {
        let name = lease_name(&claim.gpu);
        if self.leases.contains_key(&name) {
            return Sent::Conflict;
        }
        let mut lease = claim.lease();
        let version = self.next();
        lease.metadata.uid = Some(format!("lease-{version}"));
        lease.metadata.resource_version = Some(version);
        self.written(name, lease)
    }

    fn written(&mut self, name: String, lease: Lease) -> Sent<Claim> {
        self.log.push(Event::Lease(Box::new(lease.clone())));
        let claim = Claim::read(&lease).unwrap();
        self.leases.insert(name, lease);
        Sent::Done(claim)
    }

    /// What is there, where it is what the caller has read.
    fn unchanged(&self, claim: &Claim) -> Result<(), Sent<()>> {
        let Some(there) = self.leases.get(&lease_name(&claim.gpu)) else {
            return Err(Sent::Gone);
        };
        let same = there.metadata.resource_version.as_deref() == Some(&claim.version)
            && there.metadata.uid.as_deref() == Some(&claim.lease_uid);
        if same { Ok(()) } else { Err(Sent::Conflict) }
    }

    fn replace(&mut self, claim: &Claim) -> Sent<Claim> {
        match self.unchanged(claim) {
            Ok(()) => {}
            Err(Sent::Gone) => return Sent::Gone,
            Err(_) => return Sent::Conflict,
        }
        let mut lease = claim.lease();
        lease.metadata.resource_version = Some(self.next());
        self.written(lease_name(&claim.gpu), lease)
    }

    fn delete(&mut self, claim: &Claim) -> Sent<()> {
        if let Err(sent) = self.unchanged(claim) {
            return sent;
        }
        if let Some(mut lease) = self.leases.remove(&lease_name(&claim.gpu)) {
            lease.metadata.resource_version = Some(self.next());
            self.log.push(Event::LeaseGone(Box::new(lease)));
        }
        Sent::Done(())
    }

    /// GPUs that a pod that is bound holds.
    fn holds(pod: &Value) -> BTreeSet<String> {
        let placement = allocation::read(&typed(pod), &VENDORS).unwrap();
        let containers = placement.into_iter().flat_map(|one| one.containers);
        let grants = containers.flat_map(|one| one.grants);
        grants.map(|grant| grant.device.to_string()).collect()
    }

    fn in_force(&self, given: &Given) -> bool {
        match &given.pod {
            Some(pod) if given.made => self.pods.contains_key(pod),
            Some(_) => true,
            None => given.asked.elapsed() < PROPOSAL,
        }
    }

    fn note(&mut self, wrong: String) {
        self.wrong.get_or_insert(wrong);
    }
}

fn typed(pod: &Value) -> Pod {
    serde_json::from_value(pod.clone()).unwrap()
}

/// One process's books, and how far its watch has come.
struct Process {
    ledger: Mutex<Ledger>,
    seen: Mutex<usize>,
    began: Instant,
    epoch: Timestamp,
    /// What this machine's clock is off by.
    off: SignedDuration,
    changes: watch::Sender<u64>,
}

impl Process {
    fn new(began: Instant, off: i64) -> Arc<Self> {
        Arc::new(Self {
            ledger: Mutex::new(fresh()),
            seen: Mutex::new(0),
            began,
            epoch: Timestamp::from_second(1_700_000_000).unwrap(),
            off: SignedDuration::from_secs(off),
            changes: watch::Sender::new(0),
        })
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn with<T>(&self, change: impl FnOnce(&mut Ledger, Duration) -> T) -> T {
        let result = change(&mut self.ledger.lock().unwrap(), self.now());
        self.ledger.lock().unwrap().take_notices();
        result
    }

    fn deliver(&self, truth: &Mutex<Truth>, most: usize) {
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

    /// The process ends and begins anew: it knows what the API server lists.
    fn restart(&self, truth: &Mutex<Truth>) {
        let truth = truth.lock().unwrap();
        *self.ledger.lock().unwrap() = fresh();
        *self.seen.lock().unwrap() = truth.log.len();
        for pod in truth.pods.values() {
            self.with(|ledger, now| ledger.set_pod(&typed(pod), now));
        }
        for lease in truth.leases.values() {
            let claim = Claim::read(lease).unwrap();
            let age = claim.least_age(self.wall(), SKEW);
            self.with(|ledger, now| ledger.set_claim(claim, age, now));
        }
    }
}

impl Books for Process {
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

fn fresh() -> Ledger {
    let mut ledger = Ledger::new(Arc::clone(&VENDORS), Duration::from_secs(120)).with_claims();
    for node in NODES {
        let labels: [&[&str]; 4] = [&["x"], &["x"], &["x", "y"], &["y"]];
        ledger.set_node(as_node(labelled(node, &labels)));
    }
    ledger
}

/// The API server as one process reaches it.
struct Flaky {
    truth: Arc<Mutex<Truth>>,
    rng: Rng,
    faults: Arc<Mutex<bool>>,
}

impl Flaky {
    /// A write that happens, or does not, and is answered, or is not.
    async fn write<T: Clone + Send + 'static>(
        &self,
        act: impl Fn(&mut Truth) -> Sent<T> + Send + 'static,
    ) -> Sent<T> {
        let lost = || Sent::Unknown("no answer".to_owned());
        sleep(Duration::from_millis(self.rng.below(150))).await;
        let faults = *self.faults.lock().unwrap();
        match self.rng.below(if faults { 20 } else { 1 << 40 }) {
            0 => lost(),
            1 => {
                self.truth.lock().unwrap().count("answer lost");
                act(&mut self.truth.lock().unwrap());
                lost()
            }
            2 => {
                let (truth, after) = (Arc::clone(&self.truth), self.rng.below(5000));
                tokio::spawn(async move {
                    sleep(Duration::from_millis(after)).await;
                    let mut truth = truth.lock().unwrap();
                    truth.count("written late");
                    act(&mut truth);
                });
                lost()
            }
            3 => {
                let mut truth = self.truth.lock().unwrap();
                truth.count("written twice");
                act(&mut truth);
                act(&mut truth)
            }
            4 => {
                let sent = act(&mut self.truth.lock().unwrap());
                sleep(Duration::from_millis(self.rng.below(4000))).await;
                sent
            }
            _ => act(&mut self.truth.lock().unwrap()),
        }
    }

    async fn read<T>(&self, look: impl FnOnce(&Truth) -> T) -> Result<T, String> {
        sleep(Duration::from_millis(self.rng.below(100))).await;
        if *self.faults.lock().unwrap() && self.rng.one_in(20) {
            return Err("no answer".to_owned());
        }
        Ok(look(&self.truth.lock().unwrap()))
    }
}

impl Store for Flaky {
    fn create(&self, claim: Claim) -> BoxFuture<'_, Sent<Claim>> {
        Box::pin(self.write(move |truth| truth.create(&claim)))
    }

    fn replace(&self, claim: Claim) -> BoxFuture<'_, Sent<Claim>> {
        Box::pin(self.write(move |truth| truth.replace(&claim)))
    }

    fn delete(&self, claim: Claim) -> BoxFuture<'_, Sent<()>> {
        Box::pin(self.write(move |truth| truth.delete(&claim)))
    }

    fn find<'a>(&'a self, gpu: &'a str) -> BoxFuture<'a, Result<Found, String>> {
        Box::pin(
            self.read(move |truth| match truth.leases.get(&lease_name(gpu)) {
                Some(lease) => Found::Claim(Box::new(Claim::read(lease).unwrap())),
                None => Found::Nothing,
            }),
        )
    }

    fn pod<'a>(&'a self, _: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Pod>, String>> {
        Box::pin(self.read(move |truth| truth.pods.get(name).map(typed)))
    }

    fn carriers<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<PodClaim>, String>> {
        Box::pin(self.read(|truth| {
            let pods = truth.pods.values();
            pods.filter_map(|pod| pod_claim(&typed(pod))).collect()
        }))
    }
}

pub(super) struct World {
    seed: u64,
    combined: bool,
    truth: Arc<Mutex<Truth>>,
    rng: Rng,
    faults: Arc<Mutex<bool>>,
    extender: Arc<Process>,
    processes: Vec<Arc<Process>>,
    assigners: Vec<Assigner>,
    binding: Arc<Mutex<BTreeSet<String>>>,
    pods: Mutex<u64>,
}

impl World {
    pub(super) fn new(seed: u64, combined: bool) -> Self {
        let began = Instant::now();
        let rng = Rng(Arc::new(Mutex::new(
            seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        )));
        let truth = Arc::new(Mutex::new(Truth::default()));
        let faults = Arc::new(Mutex::new(true));
        let extender = Process::new(began, -5);
        let first = if combined {
            Arc::clone(&extender)
        } else {
            Process::new(began, 5)
        };
        let second = Process::new(began, 1);
        let assigner = |books: &Arc<Process>| {
            let store = Flaky {
                truth: Arc::clone(&truth),
                rng: rng.clone(),
                faults: Arc::clone(&faults),
            };
            let books: Arc<dyn Books> = Arc::clone(books) as Arc<dyn Books>;
            Assigner::new(books, Arc::new(store), Settings::default())
        };
        let mut processes = vec![Arc::clone(&extender), Arc::clone(&second)];
        if !combined {
            processes.push(Arc::clone(&first));
        }
        Self {
            seed,
            combined,
            assigners: vec![assigner(&first), assigner(&second)],
            truth,
            rng,
            faults,
            extender,
            processes,
            binding: Arc::default(),
            pods: Mutex::new(0),
        }
    }

    fn name(&self) -> String {
        let mut pods = self.pods.lock().unwrap();
        *pods += 1;
        format!("p{pods}")
    }

    pub(super) async fn step(&self) {
        match self.rng.below(20) {
            0..=3 => self.mutate(),
            4 => self.share(),
            5..=6 => self.finalize(),
            7 => self.forge(),
            8..=10 => self.schedule(),
            11..=12 => self.end_pod(),
            13 => {
                let assigner = self.rng.pick(&self.assigners).unwrap().clone();
                tokio::spawn(async move { assigner.tend().await });
            }
            14 if self.rng.one_in(5) => {
                let process = self.rng.pick(&self.processes).unwrap();
                // What a binding on its way becomes, only the process that sent it knows.
                let busy = !self.binding.lock().unwrap().is_empty();
                if !busy || !Arc::ptr_eq(process, &self.extender) {
                    process.restart(&self.truth);
                    self.truth.lock().unwrap().count("restarted");
                }
            }
            14 => sleep(Duration::from_millis(self.rng.below(20_000))).await,
            _ => {
                let process = self.rng.pick(&self.processes).unwrap();
                let most = usize::try_from(self.rng.below(8)).unwrap();
                process.deliver(&self.truth, most + 1);
            }
        }
        // Watches are late, but not by minutes.
        if self.rng.one_in(10) {
            for process in &self.processes {
                process.deliver(&self.truth, usize::MAX);
            }
        }
        sleep(Duration::from_millis(self.rng.below(700))).await;
    }

    /// A pod asks by label; what it gets becomes a pod, or does not.
    fn mutate(&self) {
        let which = usize::from(self.rng.one_in(2));
        let assigner = self.assigners[which].clone();
        // The first assigner may share the extender's ledger: then the two never give one GPU.
        let shares = self.combined && which == 0;
        let label = *self.rng.pick(&["x", "y", "assign"]).unwrap();
        let count = u32::try_from(1 + self.rng.below(4) / 3).unwrap();
        let (name, rng) = (self.name(), self.rng.clone());
        let (truth, extender) = (Arc::clone(&self.truth), Arc::clone(&self.extender));
        tokio::spawn(async move {
            let pod = wants(&name, &[label], count);
            let asked = Instant::now();
            let body = review(&format!("r-{name}"), &pod).to_string();
            let answer = assigner.mutate(body.as_bytes()).await;
            if answer["response"]["allowed"] != true {
                let code = answer["response"]["status"]["code"].as_u64().unwrap();
                let word = if code == 429 { "refused" } else { "failed" };
                truth.lock().unwrap().count(word);
                return;
            }
            let mut pod = patched(&pod, &answer["response"]);
            pod["metadata"]["uid"] = format!("uid-{name}").into();
            let text = |key: &str| {
                pod["metadata"]["annotations"][key]
                    .as_str()
                    .unwrap()
                    .to_owned()
            };
            let gpus: Vec<String> = text("fudo.org/gpu.uuid")
                .split(',')
                .map(str::to_owned)
                .collect();
            let given_up = asked.elapsed() > WEBHOOK_TIMEOUT;
            let is_made = !given_up && !rng.one_in(4);
            {
                let mut truth = truth.lock().unwrap();
                truth.count("given");
                let others: Vec<Given> = truth
                    .given
                    .iter()
                    .filter(|one| truth.in_force(one))
                    .cloned()
                    .collect();
                for other in &others {
                    if let Some(gpu) = gpus.iter().find(|gpu| other.gpus.contains(gpu)) {
                        truth.note(format!(
                            "{gpu} was given to {name} and to {}",
                            other.reservation
                        ));
                    }
                }
                if shares {
                    let taken = extender.with(|ledger, _| {
                        let mut taken = gpus.iter().filter(|gpu| ledger.is_taken_by_others(gpu));
                        taken.next().cloned()
                    });
                    if let Some(gpu) = taken {
                        truth.note(format!("{gpu} was given to {name} and by the extender"));
                    }
                }
                truth.given.push(Given {
                    reservation: format!("r-{name}"),
                    gpus,
                    asked,
                    pod: is_made.then(|| name.clone()),
                    made: false,
                });
            }
            if is_made {
                sleep(Duration::from_millis(rng.below(20_000))).await;
                let mut truth = truth.lock().unwrap();
                truth.set_pod(pod);
                let mut given = truth.given.iter_mut();
                given
                    .find(|one| one.pod.as_ref() == Some(&name))
                    .unwrap()
                    .made = true;
            }
        });
    }

    /// A pod that asks the extender for a share, or for a whole card.
    fn share(&self) {
        let name = self.name();
        let mib = if self.rng.one_in(3) { "40000" } else { "9000" };
        let pod = json!({
            "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
            "spec": { "containers": [{ "name": "c", "image": "i",
                "resources": { "limits": { "nvidia.com/gpu": "1", "nvidia.com/gpumem": mib } } }] },
        });
        self.truth.lock().unwrap().set_pod(pod);
    }

    fn labelled_pod(&self) -> Option<Value> {
        let truth = self.truth.lock().unwrap();
        let pods: Vec<&Value> = truth
            .pods
            .values()
            .filter(|pod| pod_claim(&typed(pod)).is_some())
            .collect();
        self.rng.pick(&pods).map(|pod| (*pod).clone())
    }

    fn finalize(&self) {
        let Some(pod) = self.labelled_pod() else {
            return;
        };
        let asked = Finalize::of_pod(&typed(&pod)).unwrap();
        let assigner = self.rng.pick(&self.assigners).unwrap().clone();
        let truth = Arc::clone(&self.truth);
        tokio::spawn(async move {
            let answer = assigner.finalize(asked.clone()).await;
            let mut truth = truth.lock().unwrap();
            let is_there = truth.pods.contains_key(&asked.name);
            if answer.is_ok() && is_there {
                truth.count("finalized");
                for gpu in &asked.gpus {
                    let claim = truth
                        .leases
                        .get(&lease_name(gpu))
                        .map(|lease| Claim::read(lease).unwrap());
                    let is_its = claim.is_some_and(|claim| {
                        claim.state == State::Active && claim.holder == asked.uid
                    });
                    if !is_its {
                        truth.note(format!(
                            "{gpu} was finalized for {} and is not its",
                            asked.name
                        ));
                    }
                }
            }
        });
    }

    /// A tenant finalizes the reservation of another one.
    fn forge(&self) {
        let Some(pod) = self.labelled_pod() else {
            return;
        };
        let mut asked = Finalize::of_pod(&typed(&pod)).unwrap();
        match self.rng.below(4) {
            0 => asked.uid = "forged".into(),
            1 => asked.reservation = "forged".into(),
            2 => asked.namespace = "theirs".into(),
            _ => asked.gpus = vec!["GPU-forged".into()],
        }
        let assigner = self.rng.pick(&self.assigners).unwrap().clone();
        let truth = Arc::clone(&self.truth);
        tokio::spawn(async move {
            let answer = assigner.finalize(asked.clone()).await;
            let mut truth = truth.lock().unwrap();
            truth.count("forged");
            if answer.is_ok() {
                truth.note(format!("a forged finalize was answered with ok: {asked:?}"));
            }
        });
    }

    /// kube-scheduler takes a pod that has no node: /filter, a while, /bind.
    fn schedule(&self) {
        let pod = {
            let truth = self.truth.lock().unwrap();
            let binding = self.binding.lock().unwrap();
            let pods: Vec<&Value> = truth
                .pods
                .iter()
                .filter(|(name, pod)| pod["spec"]["nodeName"].is_null() && !binding.contains(*name))
                .map(|(_, pod)| pod)
                .collect();
            self.rng.pick(&pods).map(|pod| (*pod).clone())
        };
        let Some(pod) = pod else { return };
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let read = Arc::new(typed(&pod));
        let asks = request(&read, &VENDORS, &Defaults::default()).unwrap();
        let among = Among::Names(&NODES);
        let filtered = self
            .extender
            .with(|ledger, now| ledger.filter(&asks, &read, among, now));
        let Filtered::Placed(placement) = filtered else {
            return;
        };
        self.binding.lock().unwrap().insert(name.clone());
        let (extender, truth, rng) = (
            Arc::clone(&self.extender),
            Arc::clone(&self.truth),
            self.rng.clone(),
        );
        let (binding, faults) = (Arc::clone(&self.binding), Arc::clone(&self.faults));
        tokio::spawn(async move {
            sleep(Duration::from_millis(rng.below(3000))).await;
            let uid = asks.pod.uid.clone();
            let begun = extender.with(|ledger, now| ledger.begin_bind(&uid, &placement.node, now));
            let begun = match begun {
                Begun::NotReserved => extender
                    .with(|ledger, now| ledger.begin_bind_anew(&asks, &read, &placement.node, now))
                    .unwrap_or(Begun::NotReserved),
                begun => begun,
            };
            if let Begun::Go {
                pod: read,
                placement,
            } = begun
            {
                Self::bind(
                    &extender,
                    &truth,
                    &rng,
                    *faults.lock().unwrap(),
                    &name,
                    &read,
                    &placement,
                );
            }
            binding.lock().unwrap().remove(&name);
        });
    }

    fn bind(
        extender: &Process,
        truth: &Mutex<Truth>,
        rng: &Rng,
        faults: bool,
        name: &str,
        read: &Pod,
        placement: &placement::Placement,
    ) {
        let uid = read.metadata.uid.clone().unwrap();
        let mut truth = truth.lock().unwrap();
        let granted = placement.containers.iter().flat_map(|one| &one.grants);
        for gpu in granted.map(|grant| grant.device.to_string()) {
            let others = extender.with(|ledger, _| {
                let held = ledger.claim(&gpu).filter(|held| !held.lapsed)?;
                let pod = ledger.claimant(&held.claim);
                (pod.is_none_or(|pod| pod.uid != uid)).then(|| held.claim.reservation.clone())
            });
            if let Some(other) = others {
                truth.note(format!(
                    "{gpu} is bound to {name}, and the extender knew it was reserved by {other}"
                ));
            }
        }
        let written = extender.with(|ledger, _| {
            let node = ledger.cluster().node(&placement.node);
            allocation::write(read, placement, node, &VENDORS, 0)
        });
        if faults && rng.one_in(12) {
            extender.with(|ledger, _| ledger.bind_refused(&uid));
            return;
        }
        let there = truth.pods.get(name).cloned();
        let Some(mut pod) = there.filter(|pod| pod["spec"]["nodeName"].is_null()) else {
            extender.with(|ledger, _| ledger.bind_refused(&uid));
            return;
        };
        pod["spec"]["nodeName"] = placement.node.to_string().into();
        for (key, value) in written.annotations {
            pod["metadata"]["annotations"][key] = value.into();
        }
        truth.set_pod(pod);
        truth.count("bound");
        if faults && rng.one_in(12) {
            extender.with(|ledger, now| ledger.bind_in_doubt(&uid, now));
        } else {
            extender.with(|ledger, now| ledger.bound(&uid, now));
        }
    }

    fn end_pod(&self) {
        let name = {
            let truth = self.truth.lock().unwrap();
            let names: Vec<&String> = truth.pods.keys().collect();
            self.rng.pick(&names).map(|name| (*name).clone())
        };
        if let Some(name) = name {
            self.truth.lock().unwrap().delete_pod(&name);
        }
    }

    /// What may never be, as the API server has it.
    pub(super) fn check(&self) {
        let truth = self.truth.lock().unwrap();
        if let Some(wrong) = &truth.wrong {
            panic!("seed {}: {wrong}", self.seed);
        }
        let mut holders: BTreeMap<String, Vec<(&str, bool)>> = BTreeMap::new();
        for (name, pod) in &truth.pods {
            if pod["spec"]["nodeName"].is_null() {
                continue;
            }
            let is_labelled = pod_claim(&typed(pod)).is_some();
            for gpu in Truth::holds(pod) {
                holders.entry(gpu).or_default().push((name, is_labelled));
            }
        }
        for (gpu, holders) in holders {
            let alone = holders.len() == 1 || holders.iter().all(|(_, is_labelled)| !is_labelled);
            assert!(alone, "seed {}: {gpu} is held by {holders:?}", self.seed);
            assert!(
                holders.len() <= 4,
                "seed {}: {gpu} is held by {holders:?}",
                self.seed
            );
        }
    }

    /// Without faults and new pods, everything that no pod holds is free within the proposal's time.
    pub(super) async fn settle(&self) {
        *self.faults.lock().unwrap() = false;
        sleep(Duration::from_secs(40)).await;
        for _ in 0..4 {
            for process in &self.processes {
                process.deliver(&self.truth, usize::MAX);
                process.with(Ledger::expire);
            }
            for assigner in &self.assigners {
                assigner.tend().await;
            }
            sleep(Duration::from_secs(20)).await;
        }
        for process in &self.processes {
            process.deliver(&self.truth, usize::MAX);
        }
        self.check();
        let truth = self.truth.lock().unwrap();
        for lease in truth.leases.values() {
            let claim = Claim::read(lease).unwrap();
            let pods = truth.pods.values().filter_map(|pod| pod_claim(&typed(pod)));
            let mut carriers = pods.filter(|pod| pod.reservation == claim.reservation);
            assert!(
                carriers.any(|pod| pod.uid == claim.holder),
                "seed {}: {claim:?} is nobody's",
                self.seed
            );
        }
        for process in &self.processes {
            process.with(|ledger, _| {
                for (gpu, held) in ledger.claims() {
                    let lease = truth.leases.get(&lease_name(gpu));
                    let claim = lease.map(|lease| Claim::read(lease).unwrap());
                    assert_eq!(claim.as_ref(), Some(&held.claim), "seed {}", self.seed);
                }
            });
        }
    }

    pub(super) fn figures(&self) -> Vec<(&'static str, u64)> {
        let truth = self.truth.lock().unwrap();
        let wanted = [
            "given",
            "refused",
            "finalized",
            "forged",
            "bound",
            "restarted",
            "answer lost",
            "written late",
            "written twice",
        ];
        wanted
            .into_iter()
            .map(|what| (what, truth.figures.get(what).copied().unwrap_or_default()))
            .collect()
    }
}
