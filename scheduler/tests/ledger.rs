//! The ledger's account of a pod's devices, through everything that can happen to the pod.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helpers, too"
)]

use crate::support;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube_api::object::Pod;
use kube_api::request::{Defaults, request};
use kube_api::{allocation, vendor::Vendors};
use placement::{Among, Misfit, Request};
use proptest::prelude::*;
use scheduler::ledger::{Begun, Filtered, Ledger, Notice, identity, uid_of};
use serde_json::{Value, json};
use support::{as_node, as_pod, node, placed, pod, vendors};

const SECOND: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(900);

/// A ledger and a clock.
struct Kept {
    ledger: Ledger,
    vendors: Arc<Vendors>,
    now: Duration,
}

impl Kept {
    /// One node `n1` with one GPU of two slots and 10,000 MiB, and one node `n2` like it.
    fn two_nodes() -> Self {
        let vendors = vendors();
        let mut ledger = Ledger::new(Arc::clone(&vendors), TIMEOUT);
        for name in ["n1", "n2"] {
            ledger.set_node(as_node(node(name, 1, 2, 10_000)));
        }
        Self {
            ledger,
            vendors,
            now: SECOND,
        }
    }

    fn request(&self, pod: &Pod) -> Request {
        let mut request = request(pod, &self.vendors, &Defaults::default()).unwrap();
        request.pod = identity(pod);
        request
    }

    fn filter(&mut self, pod: &Value, among: &[&str]) -> Filtered {
        let pod = Arc::new(as_pod(pod.clone()));
        let request = self.request(&pod);
        self.ledger
            .filter(&request, &pod, Among::Names(among), self.now)
    }

    fn bind(&mut self, pod: &Value, node: &str) -> Begun {
        let pod = as_pod(pod.clone());
        self.ledger.begin_bind(&uid_of(&pod), node, self.now)
    }

    fn tell(&mut self, pod: &Value) {
        self.ledger.set_pod(&as_pod(pod.clone()), self.now);
    }

    /// All pods that hold devices, as `uid@node`.
    fn held(&self) -> Vec<String> {
        let mut held: Vec<String> = self
            .ledger
            .cluster()
            .reservations()
            .map(|held| format!("{}@{}", held.pod.uid, held.placement.node))
            .collect();
        held.sort();
        held
    }

    /// The annotations that the pod's binding would carry.
    fn annotations(&self, pod: &Value) -> Value {
        let pod = as_pod(pod.clone());
        let held = self.ledger.cluster().reservation(&uid_of(&pod)).unwrap();
        let node = self.ledger.cluster().node(&held.placement.node);
        let written = allocation::write(&pod, &held.placement, node, &self.vendors, 1);
        json!(written.annotations)
    }

    /// The pod as the API server shows it after its binding.
    fn bound(&mut self, pod: &Value, node: &str) -> Value {
        assert!(matches!(self.filter(pod, &[node]), Filtered::Placed(_)));
        assert!(matches!(self.bind(pod, node), Begun::Go { .. }));
        let uid = uid_of(&as_pod(pod.clone()));
        let shown = placed(pod.clone(), node, &self.annotations(pod));
        self.ledger.bound(&uid, self.now);
        shown
    }
}

fn node_of(filtered: &Filtered) -> &str {
    match filtered {
        Filtered::Placed(placement) => &placement.node,
        other => panic!("no node: {other:?}"),
    }
}

/// The notices of GPUs that are given out, since this was asked last.
fn given_out(ledger: &mut Ledger) -> Vec<String> {
    let notices = ledger.take_notices().into_iter();
    let given_out = notices.filter_map(|notice| match notice {
        Notice::GivenOut { node, problem } => Some(format!("{node}: {problem}")),
        _ => None,
    });
    given_out.collect()
}

#[test]
fn gpu_that_another_driver_gave_out_takes_no_pod_until_it_is_back() {
    let mut kept = Kept::two_nodes();
    let first = pod("first", 4_000);
    let placed = kept.bound(&first, "n1");
    kept.tell(&placed);
    kept.ledger.take_notices();
    let gpu = kept.ledger.cluster().node("n1").unwrap();
    let gpu = gpu.devices().next().unwrap().id().to_owned();
    let claim = "team/c of gpu.nvidia.com".to_owned();

    kept.ledger
        .set_given_out(BTreeMap::from([(gpu.clone(), claim.clone())]));

    let said = given_out(&mut kept.ledger);
    let [problem] = &said[..] else {
        panic!("{said:?}");
    };
    assert!(problem.starts_with("n1: "), "{problem}");
    assert!(
        problem.contains(&gpu) && problem.contains(&claim),
        "{problem}"
    );
    assert!(
        problem.contains("one container of vgpu holds a share"),
        "{problem}"
    );
    let second = pod("second", 1_000);
    let Filtered::Nowhere(misfits) = kept.filter(&second, &["n1"]) else {
        panic!("a GPU of another driver's was given");
    };
    assert!(format!("{misfits:?}").contains("GivenOut"), "{misfits:?}");
    assert_eq!(node_of(&kept.filter(&second, &["n1", "n2"])), "n2");
    // What runs there stays counted, also when the node reports anew.
    assert!(kept.held().contains(&"uid-first@n1".to_owned()));
    kept.ledger.set_node(as_node(node("n1", 1, 3, 10_000)));
    let third = pod("third", 1_000);
    assert!(matches!(kept.filter(&third, &["n1"]), Filtered::Nowhere(_)));

    kept.ledger.set_given_out(BTreeMap::new());

    assert_eq!(given_out(&mut kept.ledger), Vec::<String>::new());
    assert_eq!(node_of(&kept.filter(&third, &["n1"])), "n1");
}

#[test]
fn node_that_comes_after_the_claim_on_its_gpu_is_told_once() {
    let mut kept = Kept::two_nodes();
    let gpu = kept.ledger.cluster().node("n1").unwrap();
    let gpu = gpu.devices().next().unwrap().id().to_owned();
    kept.ledger.remove_node("n1");
    let claim = "team/c of gpu.nvidia.com".to_owned();
    kept.ledger
        .set_given_out(BTreeMap::from([(gpu.clone(), claim.clone())]));
    assert_eq!(given_out(&mut kept.ledger), Vec::<String>::new());

    kept.ledger.set_node(as_node(node("n1", 1, 2, 10_000)));
    let first = given_out(&mut kept.ledger);
    kept.ledger.set_node(as_node(node("n1", 1, 3, 10_000)));

    let [said] = &first[..] else {
        panic!("{first:?}");
    };
    assert!(said.starts_with("n1: ") && said.contains(&gpu) && said.contains(&claim));
    assert_eq!(given_out(&mut kept.ledger), Vec::<String>::new());
}

fn unscheduled(mut pod: Value, version: u64, message: &str) -> Value {
    pod["metadata"]["resourceVersion"] = version.to_string().into();
    pod["status"] = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]});
    pod
}

#[test]
fn the_next_filter_of_a_pod_replaces_its_reservation() {
    let mut kept = Kept::two_nodes();

    assert_eq!(node_of(&kept.filter(&pod("a", 6000), &["n1", "n2"])), "n1");
    assert_eq!(node_of(&kept.filter(&pod("b", 6000), &["n1", "n2"])), "n2");
    assert!(matches!(
        kept.filter(&pod("c", 6000), &["n1", "n2"]),
        Filtered::Nowhere(_)
    ));
    // Its own reservation does not count against it, and goes if it fits nowhere.
    assert_eq!(node_of(&kept.filter(&pod("a", 9000), &["n1"])), "n1");
    assert!(matches!(
        kept.filter(&pod("a", 9000), &["n2"]),
        Filtered::Nowhere(_)
    ));
    assert_eq!(kept.held(), ["uid-b@n2"]);
}

#[test]
fn a_reservation_goes_back_by_everything_that_ends_it() {
    let asked = || {
        let mut asked = pod("a", 6000);
        asked["metadata"]["resourceVersion"] = "10".into();
        asked
    };
    type Step = fn(&mut Kept, Value);
    let ends: [(&str, Step); 8] = [
        ("deletion", |kept, _| kept.ledger.remove_pod("uid-a")),
        ("a terminal phase", |kept, mut pod| {
            pod["status"] = json!({"phase": "Failed"});
            kept.tell(&pod);
        }),
        ("being deleted before it is bound", |kept, mut pod| {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            kept.tell(&pod);
        }),
        ("a later PodScheduled=False", |kept, pod| {
            kept.tell(&unscheduled(pod, 11, "volumes"));
        }),
        ("expiry", |kept, _| kept.ledger.expire(kept.now + TIMEOUT)),
        ("a refused binding", |kept, pod| {
            assert!(matches!(kept.bind(&pod, "n1"), Begun::Go { .. }));
            kept.ledger.bind_refused("uid-a");
        }),
        ("a write that failed", |kept, _| kept.ledger.undo("uid-a")),
        ("another replica's leadership", |kept, _| {
            kept.ledger.forget_unbound();
        }),
    ];
    for (what, end) in ends {
        let mut kept = Kept::two_nodes();
        kept.filter(&asked(), &["n1"]);
        assert_eq!(kept.held(), ["uid-a@n1"], "{what}");

        end(&mut kept, asked());

        assert!(kept.held().is_empty(), "{what}");
        assert_eq!(kept.ledger.reserved(), 0, "{what}");
    }
}

#[test]
fn news_from_before_the_filter_keeps_the_reservation() {
    let mut kept = Kept::two_nodes();
    let asked = unscheduled(pod("a", 6000), 10, "0/2 nodes");
    kept.filter(&asked, &["n1"]);

    // Late news; as old as the question; and the same condition again after the pod was labelled.
    for version in [9, 10, 11] {
        kept.tell(&unscheduled(pod("a", 6000), version, "0/2 nodes"));
        assert_eq!(kept.held(), ["uid-a@n1"]);
    }
    kept.tell(&unscheduled(pod("a", 6000), 12, "volume binding failed"));
    assert!(kept.held().is_empty());
}

#[test]
fn a_repeated_failure_without_an_event_frees_the_reservation() {
    let mut kept = Kept::two_nodes();
    kept.filter(&unscheduled(pod("a", 6000), 10, "0/2 nodes"), &["n1"]);
    kept.now += 20 * SECOND;
    let failed = unscheduled(pod("a", 6000), 11, "volume binding failed");
    kept.tell(&failed);

    // kube-scheduler writes a condition only when it changes.
    kept.filter(&failed, &["n1"]);
    kept.ledger.expire(kept.now + 20 * SECOND);
    assert_eq!(kept.held(), ["uid-a@n1"]);
    kept.ledger.expire(kept.now + 22 * SECOND);
    assert!(kept.held().is_empty());

    // A failure that differs from the last one would emit an event.
    kept.filter(&unscheduled(pod("a", 6000), 12, "0/2 nodes"), &["n1"]);
    kept.ledger.expire(kept.now + 22 * SECOND);
    assert_eq!(kept.held(), ["uid-a@n1"]);
}

#[test]
fn binding_in_doubt_counts_until_the_cluster_answers() {
    let doubt = |kept: &mut Kept| {
        kept.filter(&pod("a", 6000), &["n1"]);
        assert!(matches!(kept.bind(&pod("a", 6000), "n1"), Begun::Go { .. }));
        assert!(matches!(kept.bind(&pod("a", 6000), "n1"), Begun::UnderWay));
        kept.ledger.bind_in_doubt("uid-a", kept.now);
    };
    let mut kept = Kept::two_nodes();
    doubt(&mut kept);
    let annotations = kept.annotations(&pod("a", 6000));

    // No other pod gets its devices, and it gets no others.
    assert!(matches!(
        kept.filter(&pod("b", 6000), &["n1"]),
        Filtered::Nowhere(_)
    ));
    assert!(matches!(
        kept.filter(&pod("a", 6000), &["n2"]),
        Filtered::Elsewhere { certain: false, .. }
    ));
    kept.tell(&unscheduled(pod("a", 6000), 99, "binding failed"));
    assert_eq!(node_of(&kept.filter(&pod("a", 6000), &["n1", "n2"])), "n1");
    // A binding that may have happened is tried again.
    assert!(matches!(kept.bind(&pod("a", 6000), "n1"), Begun::Go { .. }));
    kept.ledger.bind_in_doubt("uid-a", kept.now);
    kept.tell(&placed(pod("a", 6000), "n1", &annotations));
    assert!(matches!(kept.bind(&pod("a", 6000), "n1"), Begun::Done));
    assert_eq!(kept.ledger.reserved(), 0);

    // A silent watch proves nothing, however long it is silent.
    let mut kept = Kept::two_nodes();
    doubt(&mut kept);
    let listed = HashSet::from([Arc::from("uid-a")]);
    let early = kept.now;
    kept.now += TIMEOUT + 100 * SECOND;
    kept.ledger.expire(kept.now);
    kept.ledger.keep_pods(&listed, early);
    kept.ledger.expire(kept.now);
    assert!(!kept.held().is_empty());
    // A list that began when it was too late for the binding, and shows the pod without a node, does.
    kept.ledger.keep_pods(&listed, kept.now);
    kept.ledger.expire(kept.now);
    assert!(kept.held().is_empty());

    let mut kept = Kept::two_nodes();
    doubt(&mut kept);
    kept.ledger.remove_pod("uid-a");
    assert!(kept.held().is_empty());
}

#[test]
fn a_bound_pods_devices_are_read_once() {
    let mut kept = Kept::two_nodes();
    let shown = kept.bound(&pod("a", 6000), "n1");
    kept.tell(&shown);
    assert_eq!(kept.ledger.take_notices(), []);

    let changes = [
        json!({}),
        json!({"hami.io/vgpu-devices-allocated": "n1-gpu-0,NVIDIA,1,0:;"}),
        json!({"hami.io/vgpu-devices-allocated": "n2-gpu-0,NVIDIA,6000,0:;", "hami.io/vgpu-node": "n2"}),
        json!({"hami.io/vgpu-devices-allocated": "nonsense"}),
    ];
    for annotations in &changes {
        kept.tell(&placed(pod("a", 6000), "n1", annotations));
        let held = kept.ledger.cluster().reservation("uid-a").unwrap();
        assert_eq!(held.load().memory_bytes, 6000 << 20, "{annotations}");
    }
    // Said once, not with every change.
    let notices = kept.ledger.take_notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(matches!(&notices[0], Notice::PodBroken { problem, .. } if problem.contains("given")));
    assert_eq!(kept.ledger.broken(), (0, 1));
}

#[test]
fn pod_bound_meanwhile_is_not_bound_again() {
    let mut other = Kept::two_nodes();
    let theirs = other.bound(&pod("theirs", 6000), "n1");
    let mut kept = Kept::two_nodes();
    let ours = Arc::new(as_pod(pod("ours", 6000)));
    let request = kept.request(&ours);
    kept.filter(&pod("ours", 6000), &["n1"]);

    kept.tell(&theirs);

    assert!(matches!(
        kept.bind(&pod("ours", 6000), "n1"),
        Begun::NotReserved
    ));
    let anew = kept.ledger.begin_bind_anew(&request, &ours, "n1", kept.now);
    assert!(anew.is_err(), "{anew:?}");
    assert_eq!(kept.held(), ["uid-theirs@n1"]);

    // The same if the GPU has become unhealthy, or the node is gone.
    kept.filter(&pod("ours", 6000), &["n2"]);
    kept.ledger.remove_node("n2");
    assert!(matches!(
        kept.bind(&pod("ours", 6000), "n2"),
        Begun::NotReserved
    ));
}

#[test]
fn room_made_by_eviction_is_kept_for_its_pod() {
    let with = |name: &str, mib: u32, priority: i32| {
        let mut pod = pod(name, mib);
        pod["spec"]["priority"] = priority.into();
        pod
    };
    let mut kept = Kept::two_nodes();
    let mut low = kept.bound(&with("low", 9000, 0), "n1");
    kept.tell(&low);
    let mut high = with("high", 8000, 100);
    assert!(matches!(kept.filter(&high, &["n1"]), Filtered::Nowhere(_)));
    high["status"] = json!({"nominatedNodeName": "n1"});
    kept.tell(&high);

    // While the victim leaves and when it is gone, less important pods go elsewhere or wait.
    low["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    kept.tell(&low);
    assert!(matches!(
        kept.filter(&with("small", 900, 0), &["n1"]),
        Filtered::Nowhere(_)
    ));
    kept.ledger.remove_pod("uid-low");
    assert!(matches!(
        kept.filter(&with("small", 3000, 0), &["n1"]),
        Filtered::Nowhere(_)
    ));
    assert_eq!(
        node_of(&kept.filter(&with("small", 3000, 0), &["n1", "n2"])),
        "n2"
    );
    // The rest beside it is available to any pod, and the whole to a more important one.
    assert_eq!(node_of(&kept.filter(&with("tiny", 2000, 0), &["n1"])), "n1");
    assert_eq!(kept.held(), ["uid-small@n2", "uid-tiny@n1"]);
    assert_eq!(node_of(&kept.filter(&high, &["n1"])), "n1");

    // A pod that is not nominated any more keeps nothing.
    kept.ledger.undo("uid-high");
    assert!(matches!(
        kept.filter(&with("other", 3000, 100), &["n1"]),
        Filtered::Nowhere(_)
    ));
    assert_eq!(
        node_of(&kept.filter(&with("other", 3000, 101), &["n1"])),
        "n1"
    );
    kept.ledger.undo("uid-other");
    high["status"] = json!({});
    kept.tell(&high);
    assert_eq!(
        node_of(&kept.filter(&with("other", 3000, 0), &["n1"])),
        "n1"
    );
}

#[test]
fn annotations_of_a_pod_without_a_node_hold_nothing() {
    let mut kept = Kept::two_nodes();
    let shown = kept.bound(&pod("a", 6000), "n1");
    let annotations = &shown["metadata"]["annotations"];

    let mut anew = Kept::two_nodes();
    anew.tell(&placed(pod("a", 6000), "", annotations));
    assert!(anew.held().is_empty());

    anew.tell(&shown);
    assert_eq!(anew.held(), ["uid-a@n1"]);
}

#[test]
fn a_pod_bound_elsewhere_holds_what_its_annotations_say() {
    let mut other = Kept::two_nodes();
    let elsewhere = other.bound(&pod("a", 3000), "n2");

    let mut kept = Kept::two_nodes();
    kept.filter(&pod("a", 3000), &["n1"]);
    kept.tell(&elsewhere);
    assert_eq!(kept.held(), ["uid-a@n2"]);

    // Without any devices, it holds none.
    kept.filter(&pod("b", 3000), &["n1"]);
    kept.tell(&placed(pod("b", 3000), "n1", &json!({})));
    assert_eq!(kept.held(), ["uid-a@n2"]);

    // A terminating pod counts, even if it is first seen terminating.
    let mut terminating = elsewhere.clone();
    terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let mut anew = Kept::two_nodes();
    anew.tell(&terminating);
    assert_eq!(anew.held(), ["uid-a@n2"]);
}

#[test]
fn an_earlier_list_keeps_later_reservations_and_bindings() {
    let mut kept = Kept::two_nodes();
    let old = kept.bound(&pod("old", 1000), "n1");
    kept.tell(&old);
    kept.filter(&pod("asked", 1000), &["n1"]);
    kept.now += SECOND;
    let began = kept.now;
    kept.now += SECOND;
    kept.filter(&pod("later", 1000), &["n2"]);
    kept.bound(&pod("bound", 1000), "n2");
    let none = HashSet::new();

    kept.ledger.keep_pods(&none, began);

    assert_eq!(kept.held(), ["uid-bound@n2", "uid-later@n2"]);
}

#[test]
fn a_broken_node_is_out_and_said_once_until_it_is_mended() {
    let mut kept = Kept::two_nodes();
    let mut broken = node("n1", 1, 2, 10_000);
    broken["metadata"]["annotations"]["hami.io/node-nvidia-register"] = "[{".into();
    kept.ledger.set_node(as_node(broken.clone()));
    broken["metadata"]["resourceVersion"] = "77".into();
    kept.ledger.set_node(as_node(broken));

    let notices = kept.ledger.take_notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert_eq!(kept.ledger.broken(), (1, 0));
    let Filtered::Nowhere(misfits) = kept.filter(&pod("a", 1), &["n1"]) else {
        panic!("placed on a broken node")
    };
    assert_eq!(misfits[0].misfit, Misfit::UnknownNode);

    kept.ledger.set_node(as_node(node("n1", 1, 2, 10_000)));
    assert_eq!(node_of(&kept.filter(&pod("a", 1), &["n1"])), "n1");
    assert_eq!(kept.ledger.broken(), (0, 0));
}

#[test]
fn a_node_that_goes_and_comes_back_has_its_pods_still() {
    let mut kept = Kept::two_nodes();
    let shown = kept.bound(&pod("a", 6000), "n1");
    kept.tell(&shown);

    kept.ledger.keep_nodes(&HashSet::from(["n2".into()]));
    assert!(kept.ledger.cluster().node("n1").is_none());
    kept.ledger.set_node(as_node(node("n1", 1, 2, 10_000)));

    assert!(matches!(
        kept.filter(&pod("b", 6000), &["n1"]),
        Filtered::Nowhere(_)
    ));
}

#[test]
fn waiting_pods_are_woken_for_room_that_no_event_shows() {
    let freed = |kept: &mut Kept| {
        let notices = kept.ledger.take_notices();
        notices
            .iter()
            .filter(|notice| matches!(notice, Notice::Freed { .. }))
            .count()
    };
    let mut kept = Kept::two_nodes();
    kept.filter(&pod("a", 6000), &["n1"]);
    kept.ledger.undo("uid-a");
    // No pod waits.
    assert_eq!(freed(&mut kept), 0);

    kept.filter(&pod("a", 6000), &["n1"]);
    kept.filter(&pod("b", 6000), &["n1"]);
    assert_eq!(kept.ledger.waiting().count(), 1);
    kept.now += TIMEOUT;
    kept.ledger.expire(kept.now);
    assert_eq!(freed(&mut kept), 1);

    // A bound pod's end is an event that kube-scheduler has itself; but it may have asked before we had it.
    for (seconds, told) in [(1, 1), (60, 0)] {
        let shown = kept.bound(&pod("c", 6000), "n2");
        kept.tell(&shown);
        kept.filter(&pod("b", 6000), &["n2"]);
        kept.now += SECOND * seconds;
        kept.ledger.expire(kept.now);
        freed(&mut kept);
        kept.ledger.remove_pod("uid-c");
        assert_eq!(freed(&mut kept), told, "after {seconds} s");
    }

    // A pod that is placed, or gone, does not wait.
    kept.filter(&pod("b", 6000), &["n1"]);
    assert_eq!(kept.ledger.waiting().count(), 0);
}

/// The same node with this many slots by the kubelet's count.
fn with_slots(slots: u32) -> kube_api::object::Node {
    let mut node = node("n1", 1, 2, 10_000);
    node["status"]["allocatable"]["nvidia.com/gpu"] = slots.to_string().into();
    as_node(node)
}

fn tells_of_more_slots(ledger: &mut Ledger) -> bool {
    ledger
        .take_notices()
        .iter()
        .any(|notice| matches!(notice, Notice::MoreSlots { node } if **node == *"n1"))
}

#[test]
fn pods_refused_without_asking_us_hear_of_more_slots() {
    let mut kept = Kept::two_nodes();
    kept.ledger.set_node(with_slots(0));
    kept.now = 60 * SECOND;
    kept.ledger.expire(kept.now);
    kept.tell(&unscheduled(
        pod("p", 100),
        2,
        "Insufficient nvidia.com/gpu",
    ));
    kept.ledger.take_notices();
    kept.ledger.set_node(with_slots(0));
    assert!(!tells_of_more_slots(&mut kept.ledger), "nothing came");

    kept.ledger.set_node(with_slots(2));

    assert!(tells_of_more_slots(&mut kept.ledger));
    let first = kept.ledger.first_unplaced("hami-scheduler").unwrap();
    assert_eq!(first.name, "p");
    assert_eq!(kept.ledger.first_unplaced("another-scheduler"), None);
    kept.ledger.set_node(with_slots(1));
    assert!(!tells_of_more_slots(&mut kept.ledger), "slots went");
}

#[test]
fn a_pod_refused_just_after_slots_came_hears_of_them() {
    let mut kept = Kept::two_nodes();
    kept.now = 60 * SECOND;
    kept.ledger.expire(kept.now);
    kept.ledger.set_node(with_slots(0));
    kept.ledger.set_node(with_slots(2));
    assert!(!tells_of_more_slots(&mut kept.ledger), "no pod waits");

    kept.now += SECOND;
    kept.tell(&unscheduled(
        pod("p", 100),
        2,
        "Insufficient nvidia.com/gpu",
    ));
    assert!(tells_of_more_slots(&mut kept.ledger));

    kept.now += 60 * SECOND;
    kept.tell(&unscheduled(
        pod("q", 100),
        3,
        "Insufficient nvidia.com/gpu",
    ));
    assert!(!tells_of_more_slots(&mut kept.ledger), "that was long ago");
}

#[test]
fn the_most_important_refused_pod_is_tried_for_all() {
    let mut kept = Kept::two_nodes();
    let refused = |name: &str, priority: i32| {
        let mut pod = unscheduled(pod(name, 100), 2, "Insufficient nvidia.com/gpu");
        pod["spec"]["priority"] = priority.into();
        pod
    };
    let mut nominated = refused("nominated", 100);
    nominated["status"]["nominatedNodeName"] = "n2".into();
    let mut plain = refused("plain", 100);
    plain["spec"]["containers"][0]["resources"] = json!({});
    for pod in [
        refused("b", 5),
        refused("a", 5),
        refused("low", 0),
        nominated,
        plain,
    ] {
        kept.tell(&pod);
    }
    let first = |kept: &Kept| {
        let first = kept.ledger.first_unplaced("hami-scheduler");
        first.map(|pod| pod.name.clone())
    };
    assert_eq!(first(&kept).as_deref(), Some("a"));
    let in_order = |scheduler: &str, most: usize| -> Vec<String> {
        let refused = kept.ledger.first_refused(scheduler, most);
        refused.into_iter().map(|pod| pod.name).collect()
    };
    assert_eq!(
        in_order("hami-scheduler", 9),
        ["nominated", "a", "b", "low"]
    );
    assert_eq!(in_order("", 3), ["nominated", "a", "b"]);
    assert_eq!(in_order("another-scheduler", 9), [""; 0]);
    assert_eq!(in_order("hami-scheduler", 0), [""; 0]);

    // A pod that is placed, that goes, or that is no more in the list is not among them.
    let bound = kept.bound(&refused("a", 5), "n1");
    kept.tell(&bound);
    assert_eq!(first(&kept).as_deref(), Some("b"));
    kept.ledger.remove_pod("uid-b");
    assert_eq!(first(&kept).as_deref(), Some("low"));
    kept.ledger.keep_pods(&HashSet::new(), kept.now);
    assert_eq!(first(&kept), None);
}

#[test]
fn init_containers_that_are_over_give_back_what_only_they_took() {
    let mut both = pod("a", 2000);
    both["spec"]["initContainers"] = json!([{
        "name": "init", "image": "i",
        "resources": { "limits": { "nvidia.com/gpu": "1", "nvidia.com/gpumem": "9000" } },
    }]);
    let mut kept = Kept::two_nodes();
    let mut shown = kept.bound(&both, "n1");
    kept.tell(&shown);
    kept.filter(&pod("b", 5000), &["n1"]);
    kept.ledger.take_notices();
    let holds = |kept: &Kept| {
        let held = kept.ledger.cluster().reservation("uid-a").unwrap();
        held.load().memory_bytes >> 20
    };
    assert_eq!(holds(&kept), 9000);

    shown["status"] = json!({"initContainerStatuses": [
        {"name": "init", "state": {"terminated": {"exitCode": 1}}}
    ]});
    kept.tell(&shown);
    assert_eq!(holds(&kept), 9000);
    shown["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] = 0.into();
    kept.tell(&shown);

    assert_eq!(holds(&kept), 2000);
    assert!(matches!(
        kept.ledger.take_notices().as_slice(),
        [Notice::Freed { .. }]
    ));
}

/// Texts that annotations may contain, some close to valid ones.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[GPUn1-2,:;\\[\\]{}\"a-z0-9.-]{0,120}",
        "(GPU-[01],NVIDIA,[0-9]{1,20},-?[0-9]{1,12}:;?){0,4}",
        "(GPU-[01],[0-9]{0,12},-?[0-9]{0,20},[0-9]{0,12},A,[0-9-]{0,4},(true|false|x):){0,4}",
        "\\[(\\{\"id\":\"[ab]\",\"count\":-?[0-9]{1,12},\"devmem\":[0-9]{1,19},\"mode\":\"mig\",\"health\":true\\},?){0,3}\\]",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn no_text_on_a_node_or_a_pod_stops_the_others(texts in prop::collection::vec(text(), 8)) {
        let mut kept = Kept::two_nodes();
        let mut hostile = node("n1", 1, 2, 10_000);
        for (key, text) in [
            "hami.io/node-nvidia-register", "hami.io/node-nvidia-score", "hami.io/device-cordon", "hami.io/node-handshake",
            "hami.io/node-dcu-register", "metax-tech.com/node-gpu-devices", "enflame.com/gcu-drs-capacity",
        ].into_iter().zip(&texts) {
            hostile["metadata"]["annotations"][key] = text.as_str().into();
        }
        hostile["status"]["capacity"] = json!({ "cambricon.com/mlu.smlu.vcore": texts[0], "mthreads.com/sgpu-core": texts[1] });
        kept.ledger.set_node(as_node(hostile));
        for (at, text) in texts.iter().enumerate() {
            let annotations = json!({
                "hami.io/vgpu-node": text, "hami.io/vgpu-devices-allocated": text,
                "hami.io/vgpu-mig-allocations": texts[7], "hami.io/dcu-devices-allocated": texts[6],
            });
            kept.tell(&placed(pod(&format!("hostile-{at}"), 1), "n1", &annotations));
        }
        kept.ledger.set_quota(&serde_json::from_value(json!({
            "metadata": {"name": "q", "namespace": "elsewhere"},
            "spec": {"hard": {"limits.nvidia.com/gpumem": texts[2], "limits.nvidia.com/gpucores": texts[3]}},
        })).unwrap());

        drop(kept.filter(&pod("a", 6000), &["n1"]));
        let other = kept.filter(&pod("b", 6000), &["n2"]);
        prop_assert_eq!(node_of(&other), "n2");
        for at in 0..texts.len() {
            kept.ledger.remove_pod(&format!("uid-hostile-{at}"));
        }
        prop_assert!(kept.held().iter().all(|held| !held.contains("hostile")));
    }
}
