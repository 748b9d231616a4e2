//! The API server as it truly is, and as each process reaches it: late, twice or not at all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use k8s_openapi::api::coordination::v1::Lease;
use kube_api::allocation;
use kube_api::assigner::{Claim, PodGpuClaim, lease_name, pod_claim};
use kube_api::hcs::{ComputeTask, keys};
use kube_api::object::Pod;
use placement::Grant;
use scheduler::calls::CallError;
use scheduler::leases::{FoundLease, Sent, Store};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::Planted;
use super::oracle::{self, Given, Seen};
use super::process::VENDORS;

#[derive(Clone)]
pub(super) struct Rng(Arc<Mutex<u64>>);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(
            seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        )))
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        let mut state = self.0.lock().unwrap();
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % bound.max(1)
    }

    pub(super) fn one_in(&self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    pub(super) fn pick<'a, T>(&self, all: &'a [T]) -> Option<&'a T> {
        let length = u64::try_from(all.len()).unwrap();
        (length > 0).then(|| &all[usize::try_from(self.below(length)).unwrap()])
    }
}

#[derive(Clone)]
pub(super) enum Event {
    Pod(Box<Pod>),
    PodGone(String),
    Lease(Box<Lease>),
    LeaseGone(Box<Lease>),
}

/// The fields of a pod that the storm reads.
struct Read {
    pod: Pod,
    claim: Option<PodGpuClaim>,
    grants: Vec<Grant>,
    task: Option<String>,
    has_ended: bool,
}

/// Everything as it truly is.
#[derive(Default)]
pub(super) struct Truth {
    version: u64,
    pub(super) leases: BTreeMap<String, Lease>,
    pub(super) pods: BTreeMap<String, Value>,
    /// The same pods, read.
    read: BTreeMap<String, Read>,
    pub(super) tasks: BTreeMap<String, ComputeTask>,
    pub(super) log: Vec<Event>,
    pub(super) given: Vec<Given>,
    pub(super) figures: BTreeMap<&'static str, u64>,
    pub(super) wrong: Option<String>,
    /// The writes, in words. A failure prints the last of them.
    trail: Vec<(Instant, String)>,
}

impl Truth {
    fn next(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    pub(super) fn tell(&mut self, what: String) {
        self.trail.push((Instant::now(), what));
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.figures.entry(what).or_default() += 1;
    }

    pub(super) fn set_pod(&mut self, mut pod: Value) {
        pod["metadata"]["resourceVersion"] = self.next().into();
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let read = typed(&pod);
        self.log.push(Event::Pod(Box::new(read.clone())));
        let placement = allocation::read(&read, &VENDORS).unwrap();
        let containers = placement.into_iter().flat_map(|one| one.containers);
        let task = pod["metadata"]["labels"][keys::TASK].as_str();
        let read = Read {
            claim: pod_claim(&read),
            grants: containers.flat_map(|one| one.grants).collect(),
            task: task.map(str::to_owned),
            has_ended: has_ended(&pod),
            pod: read,
        };
        self.read.insert(name.clone(), read);
        self.pods.insert(name, pod);
    }

    pub(super) fn delete_pod(&mut self, name: &str) {
        self.read.remove(name);
        if let Some(pod) = self.pods.remove(name) {
            let uid = pod["metadata"]["uid"].as_str().unwrap();
            self.tell(format!("pod {name} deleted"));
            self.log.push(Event::PodGone(uid.to_owned()));
        }
    }

    fn create(&mut self, claim: &Claim, planted: Planted) -> Sent<Claim> {
        let name = lease_name(&claim.gpu);
        if self.leases.contains_key(&name) && planted != Planted::LeaseIsMadeTwice {
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
        let (state, reservation) = (claim.state.word(), &claim.reservation);
        self.tell(format!("Lease of {}: {state} {reservation}", claim.gpu));
        self.leases.insert(name, lease);
        Sent::Done(claim)
    }

    /// Checks that the Lease is still the one that the caller has read.
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

    fn delete(&mut self, claim: &Claim, planted: Planted) -> Sent<()> {
        if let Err(sent) = self.unchanged(claim) {
            return sent;
        }
        if planted == Planted::DeletesAreLost {
            return Sent::Done(());
        }
        if let Some(mut lease) = self.leases.remove(&lease_name(&claim.gpu)) {
            lease.metadata.resource_version = Some(self.next());
            self.tell(format!(
                "Lease of {} deleted: {}",
                claim.gpu, claim.reservation
            ));
            self.log.push(Event::LeaseGone(Box::new(lease)));
        }
        Sent::Done(())
    }

    fn read(&self) -> impl Iterator<Item = (&String, &Read)> {
        self.read.iter().filter(|(_, read)| !read.has_ended)
    }

    /// The pods that wait for a node.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &String> {
        let unbound = self
            .read()
            .filter(|(_, read)| read.pod.spec.node_name.is_empty());
        unbound.map(|(name, _)| name)
    }

    /// The pods that carry a reservation.
    pub(super) fn labelled(&self) -> Vec<&Pod> {
        let labelled = self.read().filter(|(_, read)| read.claim.is_some());
        labelled.map(|(_, read)| &read.pod).collect()
    }

    /// The reservations of pods that have not ended.
    pub(super) fn carried(&self) -> impl Iterator<Item = &PodGpuClaim> {
        self.read().filter_map(|(_, read)| read.claim.as_ref())
    }

    pub(super) fn claims(&self) -> Vec<Claim> {
        let leases = self.leases.values();
        leases.map(|lease| Claim::read(lease).unwrap()).collect()
    }

    /// As the oracle looks at it.
    pub(super) fn seen(&self) -> Seen {
        let bound = (self.read()).filter(|(_, read)| !read.pod.spec.node_name.is_empty());
        let holders = bound.map(|(name, read)| {
            let reservation = read.claim.as_ref().map(|claim| claim.reservation.clone());
            (name.clone(), reservation, read.grants.clone())
        });
        let now = Instant::now();
        let in_force = self.given.iter().filter(|given| {
            let is_there = |pod: &String| self.read.get(pod).is_some_and(|read| !read.has_ended);
            given.is_in_force(now, is_there)
        });
        Seen {
            holders: holders.collect(),
            given: in_force.cloned().collect(),
            tasks: (self.tasks.iter())
                .map(|(name, task)| (name.clone(), oracle::Task::of(task)))
                .collect(),
            task_pods: (self.read())
                .filter_map(|(name, read)| Some((read.task.clone()?, name.clone())))
                .collect(),
        }
    }

    pub(super) fn note(&mut self, wrong: Option<String>) {
        if let Some(wrong) = wrong
            && self.wrong.is_none()
        {
            let now = Instant::now();
            let trail = self.trail.iter().rev().take(60).rev();
            let trail = trail.map(|(at, what)| {
                let ago = now.duration_since(*at).as_secs_f64();
                format!("\n{ago:.1} s ago: {what}")
            });
            self.wrong = Some(format!("{wrong}{}", trail.collect::<String>()));
        }
    }
}

pub(super) fn has_ended(pod: &Value) -> bool {
    matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    )
}

pub(super) fn typed(pod: &Value) -> Pod {
    serde_json::from_value(pod.clone()).unwrap()
}

/// The API server as one process reaches it.
#[derive(Clone)]
pub(super) struct Flaky {
    pub(super) truth: Arc<Mutex<Truth>>,
    pub(super) rng: Rng,
    pub(super) faults: Arc<Mutex<bool>>,
    pub(super) planted: Planted,
}

impl Flaky {
    /// A write that happens, or does not, and is answered, or is not. A late write happens within `latest`.
    pub(super) async fn write<T: Clone + Send + 'static>(
        &self,
        latest: Duration,
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
                let latest = u64::try_from(latest.as_millis()).unwrap();
                let (truth, after) = (Arc::clone(&self.truth), self.rng.below(latest));
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

    async fn read<T>(&self, look: impl FnOnce(&Truth) -> T) -> Result<T, CallError> {
        sleep(Duration::from_millis(self.rng.below(100))).await;
        if *self.faults.lock().unwrap() && self.rng.one_in(20) {
            return Err(CallError::NoAnswer(Duration::from_secs(1)));
        }
        Ok(look(&self.truth.lock().unwrap()))
    }
}

/// How late a write of a Lease may happen.
const LATE: Duration = Duration::from_secs(5);

impl Store for Flaky {
    fn create(&self, claim: Claim) -> BoxFuture<'_, Sent<Claim>> {
        let planted = self.planted;
        Box::pin(self.write(LATE, move |truth| truth.create(&claim, planted)))
    }

    fn replace(&self, claim: Claim) -> BoxFuture<'_, Sent<Claim>> {
        Box::pin(self.write(LATE, move |truth| truth.replace(&claim)))
    }

    fn delete(&self, claim: Claim) -> BoxFuture<'_, Sent<()>> {
        let planted = self.planted;
        Box::pin(self.write(LATE, move |truth| truth.delete(&claim, planted)))
    }

    fn find<'a>(&'a self, gpu: &'a str) -> BoxFuture<'a, Result<FoundLease, CallError>> {
        Box::pin(
            self.read(move |truth| match truth.leases.get(&lease_name(gpu)) {
                Some(lease) => FoundLease::Claim(Box::new(Claim::read(lease).unwrap())),
                None => FoundLease::Nothing,
            }),
        )
    }

    fn pod<'a>(
        &'a self,
        _: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Pod>, CallError>> {
        Box::pin(self.read(move |truth| truth.pods.get(name).map(typed)))
    }

    fn carriers<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<PodGpuClaim>, CallError>> {
        Box::pin(self.read(|truth| truth.carried().cloned().collect()))
    }

    fn bound<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<Vec<Pod>, CallError>> {
        Box::pin(self.read(move |truth| {
            let there = truth
                .read()
                .filter(|(_, read)| read.pod.spec.node_name == node);
            there.map(|(_, read)| read.pod.clone()).collect()
        }))
    }
}
