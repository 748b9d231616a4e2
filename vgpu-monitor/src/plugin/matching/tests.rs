use proptest::prelude::*;

use super::*;

/// A kubelet in values: it hands out slots as the real one does, and remembers whose they are.
#[derive(Default)]
struct Kubelet {
    lots: Vec<Handed>,
    pods: Vec<Running>,
    made: u64,
}

struct Handed {
    order: u64,
    ids: Vec<String>,
    owner: Option<(String, String)>,
}

#[derive(Clone)]
struct Running {
    uid: String,
    asking: Vec<Asking>,
    /// The truth: order and slots of each container.
    got: Vec<(u64, Vec<String>)>,
}

#[derive(Debug, Clone)]
enum Step {
    /// A pod of these containers is admitted; its slots are picked by the number. The kubelet may give it up after so
    /// many allotments.
    Admit(Vec<(u8, usize)>, usize, Option<usize>),
    /// A container of a pod starts, or starts again.
    Start(usize, usize),
    /// A pod ends.
    End(usize),
}

const SLOTS: usize = 9;

impl Kubelet {
    fn free(&self) -> Vec<String> {
        let held: Vec<&String> = self
            .pods
            .iter()
            .flat_map(|pod| pod.got.iter().flat_map(|(_, ids)| ids))
            .collect();
        let all = (0..SLOTS).map(|number| format!("vgpu-{number}"));
        all.filter(|id| !held.contains(&id)).collect()
    }

    fn admit(&mut self, containers: &[(u8, usize)], pick: usize, given_up: Option<usize>) {
        self.made += 1;
        let kind = |word: u8| match word % 3 {
            0 => Kind::Init,
            1 => Kind::Sidecar,
            _ => Kind::App,
        };
        // Init containers and sidecars stand before the others.
        let mut containers: Vec<(Kind, usize)> = containers
            .iter()
            .map(|(word, n)| (kind(*word), *n))
            .collect();
        containers.sort_by_key(|(kind, _)| *kind == Kind::App);
        let mut free = self.free();
        let mut reusable: Vec<String> = Vec::new();
        let mut pod = Running {
            uid: format!("uid-{}", self.made),
            asking: Vec::new(),
            got: Vec::new(),
        };
        for (at, (kind, count)) in containers.into_iter().enumerate() {
            if given_up == Some(at) {
                return;
            }
            // The slots of init containers go first, in any order.
            let mut ids: Vec<String> = Vec::new();
            for number in 0..count {
                let from = if reusable.iter().any(|id| !ids.contains(id)) {
                    reusable.clone()
                } else {
                    free.clone()
                };
                let from: Vec<String> = from.into_iter().filter(|id| !ids.contains(id)).collect();
                let Some(id) = from.get((pick + number) % from.len().max(1)) else {
                    return;
                };
                ids.push(id.clone());
                free.retain(|other| other != id);
            }
            for id in &ids {
                reusable.retain(|other| other != id);
                if kind == Kind::Init {
                    reusable.push(id.clone());
                }
            }
            ids.sort();
            let order = u64::try_from(self.lots.len()).unwrap() + 1;
            self.lots.push(Handed {
                order,
                ids: ids.clone(),
                owner: None,
            });
            pod.asking.push(Asking {
                container: format!("c{at}"),
                kind,
                count,
            });
            pod.got.push((order, ids));
        }
        self.pods.push(pod);
    }

    /// The allotments found when this container starts, with or without the kubelet's record.
    fn find(&self, pod: &Running, starts: usize, with_record: bool) -> Result<Vec<u64>, Unknown> {
        let containers = || pod.asking.iter().zip(&pod.got);
        let listed = containers()
            .filter(|(asking, _)| asking.kind != Kind::Init)
            .map(|(asking, (_, ids))| (asking.container.clone(), ids.clone()))
            .collect();
        let recorded = containers()
            .filter(|_| with_record)
            .map(|(asking, (order, _))| (asking.container.clone(), *order))
            .collect();
        let lots: Vec<Lot<'_>> = self
            .lots
            .iter()
            .map(|lot| Lot {
                order: lot.order,
                ids: &lot.ids,
                owner: lot
                    .owner
                    .as_ref()
                    .map(|(uid, name)| (uid.as_str(), name.as_str())),
            })
            .collect();
        let evidence = Evidence {
            uid: &pod.uid,
            listed: &listed,
            called: &pod.got[starts].1,
            recorded: &recorded,
        };
        assign(&pod.asking, &lots, evidence)
    }

    fn claim(&mut self, pod: &Running) {
        for (asking, (order, _)) in pod.asking.iter().zip(&pod.got) {
            let lot = self.lots.iter_mut().find(|lot| lot.order == *order);
            lot.unwrap().owner = Some((pod.uid.clone(), asking.container.clone()));
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let containers = prop::collection::vec((0_u8..3, 1_usize..4), 1..5);
    let step = prop_oneof![
        4 => (containers, 0_usize..SLOTS, prop::option::weighted(0.2, 1_usize..4))
            .prop_map(|(containers, pick, up)| Step::Admit(containers, pick, up)),
        4 => (0_usize..8, 0_usize..4).prop_map(|(pod, container)| Step::Start(pod, container)),
        2 => (0_usize..8).prop_map(Step::End),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_container_gets_the_allotment_of_another(steps in steps()) {
        let mut kubelet = Kubelet::default();
        for step in steps {
            match step {
                Step::Admit(containers, pick, up) => kubelet.admit(&containers, pick, up),
                Step::End(at) if at < kubelet.pods.len() => {
                    kubelet.pods.remove(at);
                }
                Step::Start(at, container) if !kubelet.pods.is_empty() => {
                    let pod = kubelet.pods[at % kubelet.pods.len()].clone();
                    let claimed = kubelet.lots.iter().any(|lot| {
                        lot.owner.as_ref().is_some_and(|(uid, _)| *uid == pod.uid)
                    });
                    // The first that starts is the first of the spec.
                    let starts = if claimed { container % pod.asking.len() } else { 0 };
                    let truth: Vec<u64> = pod.got.iter().map(|(order, _)| *order).collect();

                    prop_assert_eq!(&kubelet.find(&pod, starts, true), &Ok(truth.clone()));
                    if let Ok(guess) = kubelet.find(&pod, starts, false) {
                        prop_assert_eq!(&guess, &truth);
                    } else {
                        // Without the record only what no list has is not found.
                        prop_assert!(pod.asking.iter().any(|asking| asking.kind == Kind::Init));
                    }
                    kubelet.claim(&pod);
                }
                _ => {}
            }
        }
    }
}

#[test]
fn unclaimed_allotment_of_another_pod_is_not_taken() {
    // Found by the test above: three pods of init containers, one that the kubelet gave up, then the pod that starts.
    let mut kubelet = Kubelet::default();
    let admitted: [(&[(u8, usize)], usize); 5] = [
        (&[(0, 1)], 0),
        (&[(0, 1)], 0),
        (&[(0, 2)], 0),
        (&[(2, 3), (2, 2), (1, 1)], 5),
        (&[(0, 1), (2, 1), (0, 3), (0, 1)], 1),
    ];
    for (containers, pick) in admitted {
        kubelet.admit(containers, pick, None);
    }
    let pod = kubelet.pods[3].clone();

    let found = kubelet.find(&pod, 0, false);

    let truth: Vec<u64> = pod.got.iter().map(|(order, _)| *order).collect();
    assert!(found.is_err() || found == Ok(truth), "{found:?}");
}

fn holder(name: &str, slots: &[(&str, &[&str])]) -> PodSlots {
    PodSlots {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        slots: slots
            .iter()
            .map(|(container, ids)| {
                let ids = ids.iter().map(|id| (*id).to_owned()).collect();
                ((*container).to_owned(), ids)
            })
            .collect(),
    }
}

#[test]
fn init_containers_pod_is_found_by_slots_passed_on() {
    let pods = [
        holder("a", &[("app", &["vgpu-1"])]),
        holder("b", &[("app", &["vgpu-2", "vgpu-3"])]),
    ];
    let called = ["vgpu-1".to_owned(), "vgpu-7".to_owned()];

    let found = holders(&pods, &called);

    assert_eq!(found, [&pods[0]]);
}

#[test]
fn another_pods_allotment_is_not_passed_on() {
    // The memory lost what the kubelet handed out last: the older one of the same slots is another pod's.
    let ids = ["vgpu-1".to_owned()];
    let lots = [Lot {
        order: 3,
        ids: &ids,
        owner: Some(("old", "main")),
    }];
    let asking = [Asking {
        container: "main".to_owned(),
        kind: Kind::App,
        count: 1,
    }];
    let listed = [("main".to_owned(), ids.to_vec())].into();

    let found = assign(
        &asking,
        &lots,
        Evidence {
            uid: "new",
            listed: &listed,
            called: &ids,
            recorded: &BTreeMap::new(),
        },
    );

    let text = found.unwrap_err().to_string();
    assert!(text.contains("no allotment of 1 slots"), "{text}");
    assert!(text.contains("Delete the pod"), "{text}");
}
