//! The invariants. Values in, a sentence out: the oracle knows the API server's true state, and none of the programs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube_api::assigner::PROPOSAL_LASTS;
use kube_api::hcs::{ComputeTask, TaskPhase};
use placement::Grant;
use tokio::time::Instant;

/// How often the assigners look after their reservations.
pub(super) const LOOK: Duration = Duration::from_secs(20);

/// A check comes at most this long after the change that it checks.
const STEP: Duration = Duration::from_secs(21);

/// The capacity of a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) slots: u32,
    pub(super) memory_bytes: u64,
    pub(super) cores: u32,
}

/// The result of a mutation.
#[derive(Debug, Clone)]
pub(super) struct Given {
    pub(super) reservation: String,
    pub(super) gpus: Vec<String>,
    pub(super) asked: Instant,
    /// The pod that will be created from it; none if it never will be.
    pub(super) pod: Option<String>,
    pub(super) made: bool,
}

impl Given {
    pub(super) fn is_in_force(&self, now: Instant, is_there: impl Fn(&String) -> bool) -> bool {
        match &self.pod {
            Some(pod) if self.made => is_there(pod),
            Some(_) => true,
            None => now.duration_since(self.asked) < PROPOSAL_LASTS,
        }
    }
}

/// How far a ComputeTask is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Task {
    attempts: i32,
    retries: i32,
    is_over: bool,
}

impl Task {
    pub(super) fn of(task: &ComputeTask) -> Self {
        let status = task.status.as_ref();
        let phase = status.and_then(|status| status.phase);
        Self {
            attempts: status.and_then(|status| status.attempts).unwrap_or(0),
            retries: task.spec.retries.unwrap_or(0),
            is_over: matches!(phase, Some(TaskPhase::Succeeded | TaskPhase::Failed)),
        }
    }
}

/// Everything that the oracle looks at.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// Bound pods: name, reservation, and grants.
    pub(super) holders: Vec<(String, Option<String>, Vec<Grant>)>,
    /// Reservations by label that are in force.
    pub(super) given: Vec<Given>,
    pub(super) tasks: BTreeMap<String, Task>,
    /// For pods that have not ended: the task, and the pod.
    pub(super) task_pods: Vec<(String, String)>,
}

/// The violated invariant, if any.
pub(super) fn problem(seen: &Seen, sizes: &BTreeMap<String, Size>) -> Option<String> {
    twice_by_label(seen)
        .or_else(|| twice_by_label_and_pod(seen))
        .or_else(|| too_much(seen, sizes))
        .or_else(|| wrong_task(seen))
}

fn twice_by_label(seen: &Seen) -> Option<String> {
    let mut given: BTreeMap<&str, &str> = BTreeMap::new();
    for one in &seen.given {
        for gpu in &one.gpus {
            if let Some(other) = given.insert(gpu, &one.reservation) {
                return Some(format!(
                    "{gpu} was given twice: to {other} and to {}",
                    one.reservation
                ));
            }
        }
    }
    None
}

/// A GPU that is given by label, and that a pod holds which does not carry the reservation.
fn twice_by_label_and_pod(seen: &Seen) -> Option<String> {
    for (name, reservation, grants) in &seen.holders {
        for grant in grants {
            let mut given = seen.given.iter();
            let of_another = given.find(|given| {
                given.gpus.iter().any(|gpu| **gpu == *grant.device)
                    && reservation.as_ref() != Some(&given.reservation)
            });
            if let Some(given) = of_another {
                return Some(format!(
                    "{} was given twice: to {} by label, and pod {name} is bound to it",
                    grant.device, given.reservation
                ));
            }
        }
    }
    None
}

/// A device that is promised beyond its capacity, or that one pod holds whole beside another pod.
fn too_much(seen: &Seen, sizes: &BTreeMap<String, Size>) -> Option<String> {
    let mut by_device: BTreeMap<&str, Vec<(&str, bool, &Grant)>> = BTreeMap::new();
    for (name, reservation, grants) in &seen.holders {
        for grant in grants {
            let holders = by_device.entry(&grant.device).or_default();
            holders.push((name, reservation.is_some(), grant));
        }
    }
    for (device, holders) in by_device {
        let Some(size) = sizes.get(device) else {
            return Some(format!("{device} is held and is not there"));
        };
        let slots: u32 = holders.iter().map(|(.., grant)| grant.slots).sum();
        let memory: u64 = holders.iter().map(|(.., grant)| grant.memory_bytes).sum();
        let cores: u32 = holders.iter().map(|(.., grant)| grant.cores).sum();
        let names: BTreeSet<&str> = holders.iter().map(|(name, ..)| *name).collect();
        let is_whole = holders.iter().any(|(_, is_labelled, _)| *is_labelled);
        if slots > size.slots
            || memory > size.memory_bytes
            || cores > size.cores
            || (is_whole && names.len() > 1)
        {
            return Some(format!("{device} was given twice: {names:?} hold it"));
        }
    }
    None
}

/// A task that runs twice at once, more often than it may, or holds a device after its end.
fn wrong_task(seen: &Seen) -> Option<String> {
    for (name, task) in &seen.tasks {
        let pods = seen.task_pods.iter().filter(|(of, _)| of == name);
        let pods: Vec<&str> = pods.map(|(_, pod)| pod.as_str()).collect();
        if pods.len() > 1 {
            return Some(format!("task {name} runs twice: {pods:?}"));
        }
        if task.is_over && !pods.is_empty() {
            return Some(format!("task {name} is over, and {pods:?} is not"));
        }
        if task.attempts > task.retries + 1 {
            return Some(format!("task {name} is tried too often: {task:?}"));
        }
    }
    None
}

/// A reservation of a GPU in one process's ledger that no pod carries.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Idle {
    pub(super) process: usize,
    pub(super) gpu: String,
    /// A reservation and the version of its Lease.
    pub(super) what: (String, String),
    pub(super) was_active: bool,
}

/// Since when each such reservation has been carried by no pod.
#[derive(Debug, Default)]
pub(super) struct Clock(BTreeMap<Idle, Instant>);

impl Clock {
    /// A reservation that no pod has carried for too long: a GPU may be lost for as long as a proposal lasts. An
    /// assigner releases the reservation of an ended pod at its next look; three looks may fail for lack of an
    /// answer.
    pub(super) fn problem(&mut self, idle: BTreeSet<Idle>, now: Instant) -> Option<String> {
        self.0.retain(|one, _| idle.contains(one));
        for one in idle {
            self.0.entry(one).or_insert(now);
        }
        self.0.iter().find_map(|(one, since)| {
            let looks = if one.was_active {
                LOOK * 3
            } else {
                Duration::ZERO
            };
            let idle = now.duration_since(*since);
            (idle > PROPOSAL_LASTS + looks + STEP).then(|| {
                format!(
                    "{} is lost: {} takes it for {} s, and no pod carries it",
                    one.gpu,
                    one.what.0,
                    idle.as_secs()
                )
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use placement::Vendor;

    use super::*;

    fn given(reservation: &str) -> Given {
        Given {
            reservation: reservation.into(),
            gpus: vec!["g".into()],
            asked: Instant::now(),
            pod: None,
            made: false,
        }
    }

    fn holder(
        name: &str,
        reservation: Option<&str>,
        mib: u64,
    ) -> (String, Option<String>, Vec<Grant>) {
        let grant = Grant::new(Vendor::from("NVIDIA"), "g", mib << 20, 30);
        (name.into(), reservation.map(str::to_owned), vec![grant])
    }

    fn reports(seen: &Seen) -> String {
        let size = Size {
            slots: 10,
            memory_bytes: 1000 << 20,
            cores: 100,
        };
        problem(seen, &BTreeMap::from([("g".to_owned(), size)])).unwrap_or_default()
    }

    #[test]
    fn two_reservations_of_one_gpu_are_reported() {
        let seen = |names: &[&str]| Seen {
            given: names.iter().map(|name| given(name)).collect(),
            ..Seen::default()
        };

        assert_eq!(reports(&seen(&["r-1"])), "");
        assert!(reports(&seen(&["r-1", "r-2"])).starts_with("g was given twice"));
    }

    #[test]
    fn a_pod_on_a_gpu_that_is_given_by_label_is_reported() {
        let seen = |carries: Option<&str>| Seen {
            given: vec![given("r")],
            holders: vec![holder("p", carries, 500)],
            ..Seen::default()
        };

        assert_eq!(reports(&seen(Some("r"))), "");
        assert!(reports(&seen(None)).contains("pod p is bound"));
        assert!(reports(&seen(Some("other"))).contains("pod p is bound"));
    }

    #[test]
    fn more_than_a_device_has_is_reported() {
        let seen = |second: u64, carries: Option<&str>| Seen {
            holders: vec![holder("p", carries, 500), holder("q", None, second)],
            ..Seen::default()
        };

        assert_eq!(reports(&seen(500, None)), "");
        assert!(reports(&seen(501, None)).contains("hold it"));
        assert!(reports(&seen(1, Some("r"))).contains("hold it"));
    }

    #[test]
    fn a_task_that_runs_twice_or_past_its_end_is_reported() {
        let seen = |pods: &[&str], attempts: i32, is_over: bool| {
            let task = Task {
                attempts,
                retries: 1,
                is_over,
            };
            Seen {
                tasks: BTreeMap::from([("t".to_owned(), task)]),
                task_pods: pods.iter().map(|pod| ("t".into(), (*pod).into())).collect(),
                ..Seen::default()
            }
        };

        assert_eq!(reports(&seen(&["t-2"], 2, false)), "");
        assert!(reports(&seen(&["t-1", "t-2"], 2, false)).contains("runs twice"));
        assert!(reports(&seen(&["t-2"], 2, true)).contains("is over"));
        assert!(reports(&seen(&[], 3, false)).contains("too often"));
    }

    #[test]
    fn a_reservation_past_the_proposal_time_is_reported() {
        let idle = BTreeSet::from([Idle {
            process: 0,
            gpu: "g".into(),
            what: ("r".into(), "1".into()),
            was_active: false,
        }]);
        let began = Instant::now();
        let mut clock = Clock::default();
        let after = |seconds: u64| began + Duration::from_secs(seconds);

        assert_eq!(clock.problem(idle.clone(), began), None);
        assert_eq!(clock.problem(idle.clone(), after(81)), None);
        assert!(
            clock
                .problem(idle.clone(), after(82))
                .unwrap()
                .contains("g is lost")
        );
        // The time restarts for a reservation that was released in between.
        assert_eq!(clock.problem(BTreeSet::new(), after(83)), None);
        assert_eq!(clock.problem(idle, after(84)), None);
    }
}
