//! The events of the storm, step by step: pods that ask in every way, kube-scheduler, tenants that forge, and the end
//! of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use admission::{Admission, Context};
use kube_api::allocation;
use kube_api::assigner::{Claim, Finalize, State, lease_name, pod_claim};
use kube_api::hcs::{Amounts, ComputeTask, ComputeTaskSpec, PodTemplate};
use kube_api::object::Pod;
use kube_api::quantity::Quantity;
use kube_api::request::{Defaults, identity, request};
use placement::{Among, Placement};
use scheduler::assigner::{Assigner, AssignerSettings, ClaimLedger};
use scheduler::compute_tasks::{self, AttemptPod as FoundPod, Next};
use scheduler::leases::Sent;
use scheduler::leases::guards::{GIVE_UP_AFTER, Guard, Guarded, Guards};
use scheduler::ledger::{Begun, Filtered, Ledger};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::Planted;
use super::api::{Flaky, Rng, Truth, has_ended, typed};
use super::oracle::{self, Clock, Given, Idle, LOOK, Size};
use super::process::{NODES, Process, VENDORS, fresh};
use crate::assigner::support::{patched, review, wants};

/// After this time the API server gives a webhook up.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// How late a binding may happen: an API server gives a call up after 34 s.
const BINDING_LATE: Duration = Duration::from_secs(34);

static ADMISSION: LazyLock<Admission> =
    LazyLock::new(|| Admission::new(Arc::clone(&VENDORS), admission::Settings::default()));

/// The capacity of each device.
static SIZES: LazyLock<BTreeMap<String, Size>> = LazyLock::new(|| {
    let ledger = fresh();
    let mut sizes = BTreeMap::new();
    for node in ledger.cluster().nodes() {
        for view in node.devices() {
            let device = view.device();
            let size = Size {
                slots: device.slots,
                memory_bytes: device.memory_bytes,
                cores: device.cores,
            };
            sizes.insert(device.id.to_string(), size);
        }
    }
    sizes
});

pub(super) struct World {
    seed: u64,
    truth: Arc<Mutex<Truth>>,
    rng: Rng,
    faults: Arc<Mutex<bool>>,
    planted: Planted,
    extender: Arc<Process>,
    guards: Arc<Guards>,
    api: Flaky,
    processes: Vec<Arc<Process>>,
    assigners: Vec<Assigner>,
    binding: Arc<Mutex<BTreeSet<String>>>,
    /// Until when a binding may happen whose sender has given up.
    doubted_until: Arc<Mutex<Instant>>,
    /// The number of events when the reservation was first carried by no pod.
    idle_from: Mutex<BTreeMap<(String, String), usize>>,
    clock: Mutex<Clock>,
    pods: Mutex<u64>,
}

impl World {
    pub(super) fn new(seed: u64, combined: bool, planted: Planted) -> Self {
        let began = Instant::now();
        let rng = Rng::new(seed);
        let truth = Arc::new(Mutex::new(Truth::default()));
        let faults = Arc::new(Mutex::new(true));
        let stands = planted == Planted::ClocksStand;
        let extender = Process::new(began, -5, stands);
        let first = if combined {
            Arc::clone(&extender)
        } else {
            Process::new(began, 5, stands)
        };
        let second = Process::new(began, 1, stands);
        let api = Flaky {
            truth: Arc::clone(&truth),
            rng: rng.clone(),
            faults: Arc::clone(&faults),
            planted,
        };
        let assigner = |claim_ledger: &Arc<Process>| {
            let claim_ledger: Arc<dyn ClaimLedger> =
                Arc::clone(claim_ledger) as Arc<dyn ClaimLedger>;
            let assigner = Assigner::new(
                claim_ledger,
                Arc::new(api.clone()),
                AssignerSettings::default(),
            );
            let keeping = assigner.clone();
            tokio::spawn(async move { keeping.keep(LOOK, 0.0).await });
            assigner
        };
        let mut processes = vec![Arc::clone(&extender), Arc::clone(&second)];
        if !combined {
            processes.push(Arc::clone(&first));
        }
        Self {
            seed,
            assigners: vec![assigner(&first), assigner(&second)],
            truth,
            rng,
            faults,
            planted,
            extender,
            guards: Arc::new(Guards::new(Arc::new(api.clone()))),
            api,
            processes,
            binding: Arc::default(),
            doubted_until: Arc::new(Mutex::new(began)),
            idle_from: Mutex::default(),
            clock: Mutex::default(),
            pods: Mutex::new(0),
        }
    }

    fn name(&self) -> String {
        let mut pods = self.pods.lock().unwrap();
        *pods += 1;
        format!("p{pods}")
    }

    pub(super) async fn step(&self) {
        match self.rng.below(26) {
            0..=3 => self.mutate(),
            4 => self.share(),
            5 => self.hcs_share(),
            6 => self.task(),
            7..=8 => self.finalize(),
            9 => self.forge(),
            10..=13 => self.schedule(),
            14..=15 => self.end_pod(),
            16 => {
                let assigner = self.rng.pick(&self.assigners).unwrap().clone();
                tokio::spawn(async move { assigner.tend().await });
            }
            17 if self.rng.one_in(5) => self.restart(),
            17 if self.rng.one_in(2) => {
                let process = self.rng.pick(&self.processes).unwrap();
                process.stick(Duration::from_millis(self.rng.below(90_000)));
            }
            17 => sleep(Duration::from_millis(self.rng.below(20_000))).await,
            18..=19 => self.run_tasks(),
            20..=21 => self.end_pod(),
            _ => {
                let process = self.rng.pick(&self.processes).unwrap();
                let most = usize::try_from(self.rng.below(8)).unwrap();
                process.deliver(&self.truth, most + 1);
            }
        }
        if self.rng.one_in(10) {
            for process in &self.processes {
                process.deliver(&self.truth, usize::MAX);
            }
        }
        sleep(Duration::from_millis(self.rng.below(700))).await;
    }

    fn restart(&self) {
        let process = self.rng.pick(&self.processes).unwrap();
        // Only the process that sent a binding knows its outcome while it is under way.
        let busy = !self.binding.lock().unwrap().is_empty()
            || *self.doubted_until.lock().unwrap() > Instant::now();
        if !busy || !Arc::ptr_eq(process, &self.extender) {
            process.restart(&self.truth);
            self.truth.lock().unwrap().count("restarted");
        }
    }

    /// A pod asks by label; its reservation becomes a pod, or does not.
    fn mutate(&self) {
        let which = usize::from(self.rng.one_in(2));
        let assigner = self.assigners[which].clone();
        let label = *self.rng.pick(&["x", "y", "assign"]).unwrap();
        let count = u32::try_from(1 + self.rng.below(4) / 3).unwrap();
        let (name, rng) = (self.name(), self.rng.clone());
        let truth = Arc::clone(&self.truth);
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
                truth.tell(format!("{gpus:?} given to {name}"));
                truth.given.push(Given {
                    reservation: format!("r-{name}"),
                    gpus,
                    asked,
                    pod: is_made.then(|| name.clone()),
                    made: false,
                });
                let wrong = oracle::problem(&truth.seen(), &SIZES);
                truth.note(wrong);
            }
            if is_made {
                sleep(Duration::from_millis(rng.below(20_000))).await;
                let mut truth = truth.lock().unwrap();
                truth.tell(format!("pod {name} made"));
                truth.set_pod(pod);
                let mut given = truth.given.iter_mut();
                given
                    .find(|one| one.pod.as_ref() == Some(&name))
                    .unwrap()
                    .made = true;
            }
        });
    }

    /// A pod that asks the extender for a share, or for a whole GPU.
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

    fn amounts(&self) -> BTreeMap<&'static str, &'static str> {
        let vram = ["9Gi", "30Gi", "50Gi"];
        let vram = *self.rng.pick(&vram).unwrap();
        let mut amounts = BTreeMap::from([("ai.compute/vram", vram)]);
        if vram == "50Gi" {
            amounts.insert("ai.compute/devices", "2");
        } else if self.rng.one_in(3) {
            amounts.insert("ai.compute/tflops-fp16", "60");
        }
        amounts
    }

    /// A pod that asks by the resources of hcs.io, as admission lets it in.
    fn hcs_share(&self) {
        let name = self.name();
        let vendor = *self.rng.pick(&["nvidia", "hygon", "any"]).unwrap();
        let mut pod = json!({
            "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}"),
                "labels": { "asks": "hcs" }, "annotations": { "hcs.io/vendor-preference": vendor } },
            "spec": { "schedulerName": "hami-scheduler", "containers": [{ "name": "c", "image": "i",
                "resources": { "limits": self.amounts() } }] },
        });
        admit(&mut pod);
        self.truth.lock().unwrap().set_pod(pod);
    }

    /// A ComputeTask is made.
    fn task(&self) {
        let name = self.name();
        let text = self.amounts();
        let amount = |key: &str| text.get(key).map(|text| Quantity::from(*text));
        let mut task = ComputeTask::new(
            &name,
            ComputeTaskSpec {
                resources: Amounts {
                    vram: amount("ai.compute/vram"),
                    tflops_fp16: amount("ai.compute/tflops-fp16"),
                    devices: amount("ai.compute/devices"),
                    ..Amounts::default()
                },
                retries: Some(i32::try_from(self.rng.below(3)).unwrap()),
                template: PodTemplate {
                    spec: json!({ "containers": [{ "name": "c", "image": "i" }] }),
                    ..PodTemplate::default()
                },
                ..ComputeTaskSpec::default()
            },
        );
        task.metadata.uid = Some(format!("uid-{name}"));
        task.metadata.namespace = Some("default".into());
        self.truth.lock().unwrap().tasks.insert(name, task);
    }

    /// The scheduler looks at every ComputeTask. A pod that is made, and a status that is written, may be lost.
    fn run_tasks(&self) {
        let mut truth = self.truth.lock().unwrap();
        let faults = *self.faults.lock().unwrap();
        let names: Vec<String> = truth.tasks.keys().cloned().collect();
        for name in names {
            let task = truth.tasks[&name].clone();
            if compute_tasks::is_over(&task) {
                continue;
            }
            let pod = compute_tasks::pod_name(&name, compute_tasks::attempt(&task));
            let found = match truth.pods.get(&pod) {
                Some(pod) => FoundPod::Own(Box::new(typed(pod))),
                None => FoundPod::None,
            };
            let status = match compute_tasks::next(&task, &found, "2026-01-01T00:00:00Z") {
                Next::Wait => continue,
                Next::Report(status) => status,
                Next::Make(mut pod, status) => {
                    if faults && self.rng.one_in(10) {
                        continue;
                    }
                    let made = pod["metadata"]["name"].as_str().unwrap().to_owned();
                    pod["metadata"]["uid"] = format!("uid-{made}").into();
                    pod["spec"]["schedulerName"] = "hami-scheduler".into();
                    pod["metadata"]["labels"]["asks"] = "hcs".into();
                    admit(&mut pod);
                    if !truth.pods.contains_key(&made) {
                        truth.set_pod(*pod);
                    }
                    status
                }
            };
            if faults && self.rng.one_in(10) {
                continue;
            }
            let task = task.with_status(*status);
            if compute_tasks::is_over(&task) {
                truth.count("task over");
            }
            truth.tasks.insert(name, task);
        }
    }

    fn labelled_pod(&self) -> Option<Pod> {
        let truth = self.truth.lock().unwrap();
        self.rng.pick(&truth.labelled()).map(|pod| (*pod).clone())
    }

    fn finalize(&self) {
        let Some(pod) = self.labelled_pod() else {
            return;
        };
        let asked = Finalize::of_pod(&pod).unwrap();
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
                        let name = &asked.name;
                        truth.note(Some(format!(
                            "{gpu} was finalized for {name} and is not its"
                        )));
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
        let mut asked = Finalize::of_pod(&pod).unwrap();
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
                truth.note(Some(format!(
                    "a forged finalize was answered with ok: {asked:?}"
                )));
            }
        });
    }

    /// kube-scheduler takes a pod that has no node: /filter, a while, /bind.
    fn schedule(&self) {
        let pod = {
            let truth = self.truth.lock().unwrap();
            let binding = self.binding.lock().unwrap();
            let names = truth.waiting().filter(|name| !binding.contains(*name));
            let names: Vec<&String> = names.collect();
            self.rng.pick(&names).map(|name| truth.pods[*name].clone())
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
        let bind = Bind {
            extender: Arc::clone(&self.extender),
            guards: Arc::clone(&self.guards),
            api: self.api.clone(),
            planted: self.planted,
            doubted_until: Arc::clone(&self.doubted_until),
        };
        let (binding, wait) = (Arc::clone(&self.binding), self.rng.below(3000));
        tokio::spawn(async move {
            sleep(Duration::from_millis(wait)).await;
            let uid = asks.pod.uid.clone();
            let extender = &bind.extender;
            let begun = extender.with(|ledger, now| ledger.begin_bind(&uid, &placement.node, now));
            let begun = match begun {
                Begun::NotReserved => extender
                    .with(|ledger, now| ledger.begin_bind_anew(&asks, &read, &placement.node, now))
                    .unwrap_or(Begun::NotReserved),
                begun => begun,
            };
            if let Begun::Go { pod, placement } = begun {
                bind.guarded(&typed_name(&pod), &pod, &placement).await;
            }
            binding.lock().unwrap().remove(&name);
        });
    }

    /// A pod is deleted, or has run to its end.
    fn end_pod(&self) {
        let mut truth = self.truth.lock().unwrap();
        let names: Vec<&String> = truth.pods.keys().collect();
        let Some(name) = self.rng.pick(&names).map(|name| (*name).clone()) else {
            return;
        };
        let mut pod = truth.pods[&name].clone();
        if !pod["spec"]["nodeName"].is_null() && !has_ended(&pod) && self.rng.one_in(2) {
            let phase = if self.rng.one_in(2) {
                "Succeeded"
            } else {
                "Failed"
            };
            pod["status"] = json!({ "phase": phase });
            truth.set_pod(pod);
        } else {
            truth.delete_pod(&name);
        }
    }

    /// Checks the invariants against the API server's state.
    pub(super) fn check(&self) -> Result<(), String> {
        let idle = self.idle();
        let mut truth = self.truth.lock().unwrap();
        let wrong = oracle::problem(&truth.seen(), &SIZES);
        truth.note(wrong);
        truth.note(self.clock.lock().unwrap().problem(idle, Instant::now()));
        match &truth.wrong {
            Some(wrong) => Err(format!("seed {}: {wrong}", self.seed)),
            None => Ok(()),
        }
    }

    /// The reservations in the processes' ledgers that no pod carries, if the process has received the pods' state.
    fn idle(&self) -> BTreeSet<Idle> {
        let truth = self.truth.lock().unwrap();
        let carried = truth.carried().map(|claim| claim.reservation.as_str());
        let carried: BTreeSet<&str> = carried.collect();
        let mut idle_from = self.idle_from.lock().unwrap();
        let mut idle = BTreeSet::new();
        let mut there = BTreeSet::new();
        for (at, process) in self.processes.iter().enumerate() {
            let taking: Vec<Claim> = process.with(|ledger, now| {
                ledger.expire(now);
                let claims = ledger.claims().filter(|(_, held)| !held.lapsed);
                let mut taking: Vec<Claim> = claims.map(|(_, held)| held.claim.clone()).collect();
                taking.extend(ledger.guarded().map(|gpu| {
                    let lease = truth.leases.get(&lease_name(gpu));
                    let claim = lease.map(|lease| Claim::read(lease).unwrap());
                    let unknown =
                        || Claim::binding(gpu, "binding", "", ClaimLedger::wall(&**process));
                    claim.unwrap_or_else(unknown)
                }));
                taking
            });
            for claim in taking {
                let lease = truth.leases.get(&lease_name(&claim.gpu));
                let version = lease.and_then(|lease| lease.metadata.resource_version.clone());
                let is_late = !claim.version.is_empty()
                    && version.as_deref() != Some(&claim.version)
                    && process.seen() < truth.log.len();
                if is_late || carried.contains(claim.reservation.as_str()) {
                    continue;
                }
                let what = (claim.reservation.clone(), claim.version.clone());
                let from = *idle_from.entry(what.clone()).or_insert(truth.log.len());
                there.insert(what.clone());
                // An assigner releases it, but only once it has received the change.
                let others = self.processes.iter().all(|process| process.seen() >= from);
                if process.seen() >= from && (others || claim.state != State::Active) {
                    idle.insert(Idle {
                        process: at,
                        gpu: claim.gpu,
                        what,
                        was_active: claim.state == State::Active,
                    });
                }
            }
        }
        idle_from.retain(|what, _| there.contains(what));
        idle
    }

    /// Without faults and new pods, everything that no pod holds is free within the proposal's time.
    pub(super) async fn settle(&self) -> Result<(), String> {
        *self.faults.lock().unwrap() = false;
        sleep(Duration::from_secs(40)).await;
        for _ in 0..5 {
            for process in &self.processes {
                process.unstick();
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
        self.check()?;
        {
            let truth = self.truth.lock().unwrap();
            for claim in truth.claims() {
                let mut carriers = truth.carried();
                if !carriers
                    .any(|pod| pod.reservation == claim.reservation && pod.uid == claim.holder)
                {
                    return Err(format!("seed {}: {claim:?} is of no pod", self.seed));
                }
            }
            for process in &self.processes {
                let known: Vec<Claim> = process.with(|ledger, _| {
                    let claims = ledger.claims();
                    claims.map(|(_, held)| held.claim.clone()).collect()
                });
                let mut there = truth.claims();
                there.sort_by(|a, b| a.gpu.cmp(&b.gpu));
                if known != there {
                    return Err(format!(
                        "seed {}: {known:?} is known, not {there:?}",
                        self.seed
                    ));
                }
            }
        }
        self.give_the_rest().await
    }

    /// Gives every free GPU to pods that ask for any.
    async fn give_the_rest(&self) -> Result<(), String> {
        let free = {
            let truth = self.truth.lock().unwrap();
            let seen = truth.seen();
            let grants = seen.holders.iter().flat_map(|(.., grants)| grants);
            let mut taken: BTreeSet<String> = grants.map(|one| one.device.to_string()).collect();
            taken.extend(truth.claims().into_iter().map(|claim| claim.gpu));
            let gpus = SIZES.keys().filter(|gpu| !gpu.starts_with("k100"));
            gpus.filter(|gpu| !taken.contains(*gpu)).count()
        };
        let mut given = 0;
        while given <= free {
            let name = self.name();
            let body = review(&format!("r-{name}"), &wants(&name, &["assign"], 1)).to_string();
            let answer = self.assigners[1].mutate(body.as_bytes()).await;
            if answer["response"]["allowed"] != true {
                break;
            }
            given += 1;
        }
        if given == free {
            Ok(())
        } else {
            Err(format!(
                "seed {}: {free} GPUs are free, and {given} are given; some are lost",
                self.seed
            ))
        }
    }

    pub(super) fn figures(&self) -> BTreeMap<&'static str, u64> {
        let truth = self.truth.lock().unwrap();
        let wanted = [
            "given",
            "refused",
            "finalized",
            "forged",
            "bound",
            "hcs bound",
            "guarded out",
            "task over",
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

fn admit(pod: &mut Value) {
    let changes = ADMISSION.mutate(pod, &Context::default()).unwrap();
    json_patch::patch(pod, &json_patch::Patch(changes)).unwrap();
}

fn typed_name(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap()
}

/// The extender's /bind, as `scheduler::bind` does it over a real API server.
struct Bind {
    extender: Arc<Process>,
    guards: Arc<Guards>,
    api: Flaky,
    planted: Planted,
    doubted_until: Arc<Mutex<Instant>>,
}

impl Bind {
    async fn guarded(&self, name: &str, pod: &Pod, placement: &Placement) {
        let of = identity(pod);
        let grants = placement.containers.iter().flat_map(|one| &one.grants);
        let gpus: BTreeSet<String> = grants
            .filter(|grant| grant.vendor.as_str() == "NVIDIA")
            .map(|grant| grant.device.to_string())
            .collect();
        let gpus: Vec<String> = match self.planted {
            Planted::BindsUnguarded => Vec::new(),
            _ => gpus.into_iter().collect(),
        };
        let guarded = Guarded {
            uid: of.uid.clone(),
            namespace: of.namespace,
            claim: pod_claim(pod),
        };
        let guard = match self.guards.take(&gpus, &guarded, &*self.extender).await {
            Ok(guard) if guard.holds() => guard,
            refused => {
                if let Ok(guard) = refused {
                    self.guards.give_back(guard, true).await;
                }
                self.api.truth.lock().unwrap().count("guarded out");
                self.extender.with(|ledger, _| ledger.bind_refused(&of.uid));
                return;
            }
        };
        self.extender.with(|ledger, now| {
            for claim in &guard.renewed {
                ledger.set_claim(claim.clone(), Duration::ZERO, now);
            }
        });
        self.send(name, &of.uid, pod, placement, guard).await;
    }

    async fn send(&self, name: &str, uid: &str, pod: &Pod, placement: &Placement, guard: Guard) {
        let written = self.extender.with(|ledger, _| {
            let node = ledger.cluster().node(&placement.node);
            allocation::write(pod, placement, node, &VENDORS, 0).annotations
        });
        let (of, node) = (name.to_owned(), placement.node.to_string());
        let annotations = written.clone();
        let sending = self.api.write(BINDING_LATE, move |truth| {
            land(truth, &of, &node, &annotations)
        });
        let sent = timeout(GIVE_UP_AFTER, sending).await;
        let sent = sent.unwrap_or_else(|_| Sent::Unknown("no answer".into()));
        let settled = match sent {
            Sent::Done(()) => {
                self.extender.with(|ledger, now| ledger.bound(uid, now));
                true
            }
            Sent::Gone | Sent::Refused(_) => {
                self.extender.with(|ledger, _| ledger.bind_refused(uid));
                true
            }
            Sent::Conflict => {
                let there = self.api.truth.lock().unwrap().pods.get(name).cloned();
                match there.map(|there| typed(&there)) {
                    Some(there) if there.spec.node_name == *placement.node => {
                        let empty = BTreeMap::new();
                        let said = there.metadata.annotations.as_ref().unwrap_or(&empty);
                        let is_ours = written
                            .iter()
                            .all(|(key, value)| said.get(key) == Some(value));
                        self.extender.with(|ledger, now| match is_ours {
                            true => ledger.bound(uid, now),
                            false => ledger.bound_otherwise(&there, now),
                        });
                    }
                    Some(there) if !there.spec.node_name.is_empty() => {
                        let bound = |ledger: &mut Ledger, now| ledger.bound_otherwise(&there, now);
                        self.extender.with(bound);
                    }
                    _ => self.extender.with(|ledger, _| ledger.bind_refused(uid)),
                }
                true
            }
            Sent::Unknown(_) => {
                *self.doubted_until.lock().unwrap() = Instant::now() + BINDING_LATE;
                self.extender
                    .with(|ledger, now| ledger.bind_in_doubt(uid, now));
                false
            }
        };
        let is_hcs = pod
            .metadata
            .labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key("asks"));
        if self.planted == Planted::HcsIsNotCounted && is_hcs {
            self.extender.with(|ledger, _| ledger.remove_pod(uid));
        }
        self.guards.give_back(guard, settled).await;
    }
}

/// The binding happens.
fn land(truth: &mut Truth, name: &str, node: &str, written: &BTreeMap<String, String>) -> Sent<()> {
    let Some(mut pod) = truth.pods.get(name).cloned() else {
        return Sent::Gone;
    };
    if !pod["spec"]["nodeName"].is_null() {
        return Sent::Conflict;
    }
    truth.tell(format!(
        "pod {name} bound to {node}: {:?}",
        written.get("hami.io/vgpu-devices-allocated")
    ));
    let is_hcs = !pod["metadata"]["labels"]["asks"].is_null();
    pod["spec"]["nodeName"] = node.into();
    for (key, value) in written {
        pod["metadata"]["annotations"][key] = value.clone().into();
    }
    truth.set_pod(pod);
    truth.count(if is_hcs { "hcs bound" } else { "bound" });
    let wrong = oracle::problem(&truth.seen(), &SIZES);
    truth.note(wrong);
    Sent::Done(())
}
