//! Advice compared with a brute-force oracle, through the public interface: objects as JSON, `explain`, the advice's
//! edits made to the JSON, and the ledger that `/filter` asks. The advice works, no smaller change of its kind does,
//! and every kind that is enough by itself is found.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube_api::allocation;
use kube_api::object::{Node, Pod, ResourceQuota};
use kube_api::request::{self, Defaults};
use placement::Among;
use proptest::prelude::*;
use scheduler::explain::{Advised, AnswerDetail, Edit, Verdict, View, explain};
use scheduler::ledger::{Filtered, Ledger};
use serde_json::{Map, Value, json};

use crate::beside::support::VENDORS;

const REGISTER: &str = "hami.io/node-nvidia-register";
const CORDON: &str = "hami.io/device-cordon";

/// Nodes, pods and quotas, each an object by its name.
#[derive(Debug, Clone)]
struct State {
    nodes: Vec<Value>,
    pods: Vec<Value>,
    quotas: Vec<Value>,
    /// The one that is asked about.
    asks: Value,
}

fn typed<T: serde::de::DeserializeOwned>(objects: &[Value]) -> Vec<T> {
    objects
        .iter()
        .map(|object| serde_json::from_value(object.clone()).unwrap())
        .collect()
}

impl State {
    fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::new(Arc::clone(&VENDORS), Duration::MAX);
        for node in typed::<Node>(&self.nodes) {
            ledger.set_node(node);
        }
        for quota in typed::<ResourceQuota>(&self.quotas) {
            ledger.set_quota(&quota);
        }
        for pod in typed::<Pod>(&self.pods) {
            ledger.set_pod(&pod, Duration::ZERO);
        }
        ledger
    }

    /// The node on which the pod is placed, asking about the open nodes as kube-scheduler does.
    fn place(&self, pod: &Value) -> Option<(Pod, placement::Placement)> {
        self.place_in(&mut self.ledger(), pod)
    }

    fn place_in(&self, ledger: &mut Ledger, pod: &Value) -> Option<(Pod, placement::Placement)> {
        let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod.clone()).unwrap());
        let request = request::request(&pod, &VENDORS, &Defaults::default()).unwrap();
        let names: Vec<&str> = self
            .nodes
            .iter()
            .filter(|node| node["spec"]["unschedulable"] != true)
            .map(|node| node["metadata"]["name"].as_str().unwrap())
            .collect();
        let answer = ledger.filter(&request, &pod, Among::Names(&names), Duration::ZERO);
        match answer {
            Filtered::Placed(placement) => Some((Pod::clone(&pod), placement)),
            _ => None,
        }
    }

    fn fits(&self) -> bool {
        self.place(&self.asks).is_some()
    }

    /// One of these amounts of a resource with which the pod is placed.
    fn fitting(
        &self,
        container: &str,
        resource: &str,
        amounts: impl Iterator<Item = u64>,
    ) -> Option<u64> {
        let (mut state, mut ledger) = (self.clone(), self.ledger());
        let mut amounts = amounts;
        amounts.find(|amount| {
            state.set_resource(container, resource, &amount.to_string());
            self.place_in(&mut ledger, &state.asks).is_some()
        })
    }

    /// The same, with this changed.
    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut state = self.clone();
        change(&mut state);
        state
    }

    fn node_mut(&mut self, name: &str) -> &mut Value {
        let mut nodes = self.nodes.iter_mut();
        nodes.find(|node| node["metadata"]["name"] == name).unwrap()
    }

    fn set_resource(&mut self, container: &str, resource: &str, to: &str) {
        let containers = self.asks["spec"]["containers"].as_array_mut().unwrap();
        let mut containers = containers.iter_mut();
        let container = containers.find(|spec| spec["name"] == container).unwrap();
        container["resources"]["limits"][resource] = json!(to);
    }

    fn annotations(&mut self) -> &mut Map<String, Value> {
        self.asks["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
    }

    fn delete(&mut self, pods: &BTreeSet<String>) {
        self.pods.retain(|pod| {
            let (namespace, name) = (&pod["metadata"]["namespace"], &pod["metadata"]["name"]);
            let named = format!("{}/{}", namespace.as_str().unwrap(), name.as_str().unwrap());
            !pods.contains(&named)
        });
    }

    fn apply(&mut self, edit: &Edit) {
        match edit {
            Edit::SetResource {
                container,
                resource,
                to,
                ..
            } => self.set_resource(container, resource, to),
            Edit::SetAnnotation { key, to } => {
                self.annotations().insert(key.clone(), json!(to));
            }
            Edit::RemoveAnnotation { key } => {
                self.annotations().remove(key).unwrap();
            }
            Edit::DeletePods { pods } => self.delete(&pods.iter().cloned().collect()),
            Edit::SetNodeAnnotation { node, key, to } => {
                self.node_mut(node)["metadata"]["annotations"][key] = json!(to);
            }
            Edit::OpenNode { node } => {
                self.node_mut(node)["spec"]["unschedulable"] = json!(false);
            }
            Edit::SetQuota { quota, key, to, .. } => {
                let mut quotas = self.quotas.iter_mut();
                let quota = quotas
                    .find(|object| object["metadata"]["name"] == **quota)
                    .unwrap();
                quota["spec"]["hard"][key] = json!(to);
            }
        }
    }

    /// No edit heals an unhealthy device: the sentence names it.
    fn heal(&mut self, text: &str) {
        for node in &mut self.nodes {
            let register = node["metadata"]["annotations"][REGISTER].as_str().unwrap();
            let mut devices: Value = serde_json::from_str(register).unwrap();
            for device in devices.as_array_mut().unwrap() {
                if text.split(' ').any(|word| device["id"] == word) {
                    device["health"] = json!(true);
                }
            }
            node["metadata"]["annotations"][REGISTER] = json!(devices.to_string());
        }
    }

    fn advised(&mut self, advice: &Advised) {
        for change in &advice.changes {
            if change.edits.is_empty() {
                self.heal(&change.text);
            }
            for edit in &change.edits {
                self.apply(edit);
            }
        }
    }

    fn amount(&self, container: &str, resource: &str) -> Option<u64> {
        let mut containers = self.asks["spec"]["containers"].as_array().unwrap().iter();
        let container = containers.find(|spec| spec["name"] == container).unwrap();
        let text = container["resources"]["limits"][resource].as_str()?;
        Some(text.parse().unwrap())
    }
}

/// A device: memory in MiB, model, unhealthy, cordoned, mode.
fn device() -> impl Strategy<Value = (u64, &'static str, bool, bool, &'static str)> {
    (
        8_u64..25,
        prop_oneof![3 => Just("NVIDIA A100"), 2 => Just("NVIDIA H100"), 1 => Just("Tesla T4")],
        prop::bool::weighted(0.12),
        prop::bool::weighted(0.12),
        prop_oneof![8 => Just("hami-core"), 1 => Just("mps"), 1 => Just("mig")],
    )
}

/// Two slices of half the device each, or the whole.
fn profiles(memory: u64) -> Value {
    let placement = |start: u64, size: u64| json!({ "start": start, "size": size });
    json!([
        { "name": "1g.half", "memoryMB": memory / 2, "core": 50, "sliceCount": 1, "placements": [placement(0, 1), placement(1, 1)] },
        { "name": "2g.whole", "memoryMB": memory, "core": 100, "sliceCount": 2, "placements": [placement(0, 2)] },
    ])
}

/// A container's request: devices, memory in MiB or percent, cores.
fn limits() -> impl Strategy<Value = Value> {
    let memory = prop_oneof![
        4 => (1_u64..26).prop_map(|mib| Some(("nvidia.com/gpumem", mib))),
        1 => (10_u64..101).prop_map(|percent| Some(("nvidia.com/gpumem-percentage", percent))),
        1 => Just(None),
    ];
    let cores = prop_oneof![2 => Just(None), 3 => (1_u64..101).prop_map(Some)];
    (1_u64..4, memory, cores).prop_map(|(count, memory, cores)| {
        let mut limits = json!({ "nvidia.com/gpu": count.to_string() });
        if let Some((resource, amount)) = memory {
            limits[resource] = json!(amount.to_string());
        }
        if let Some(cores) = cores {
            limits["nvidia.com/gpucores"] = json!(cores.to_string());
        }
        limits
    })
}

fn annotations() -> impl Strategy<Value = Value> {
    let maybe = |weight: f64, key: &'static str, values: Vec<&'static str>| {
        prop::option::weighted(weight, prop::sample::select(values))
            .prop_map(move |value| value.map(|value| (key, value)))
    };
    (
        maybe(
            0.25,
            "nvidia.com/use-gputype",
            vec!["A100", "h100", "T4,V100", "V100"],
        ),
        maybe(
            0.15,
            "nvidia.com/nouse-gputype",
            vec!["A100", "H100,T4", "Tesla"],
        ),
        maybe(
            0.1,
            "nvidia.com/use-gpuuuid",
            vec!["GPU-0-0", "GPU-1-0,GPU-0-1"],
        ),
        maybe(0.1, "nvidia.com/nouse-gpuuuid", vec!["GPU-0-0"]),
        maybe(0.1, "nvidia.com/vgpu-mode", vec!["mps", "hami-core"]),
        maybe(0.1, "nvidia.com/numa-bind", vec!["true"]),
        maybe(
            0.15,
            "hami.io/gpu-scheduler-policy",
            vec!["mutex", "binpack", "topology-aware"],
        ),
    )
        .prop_map(|(a, b, c, d, e, f, g)| {
            [a, b, c, d, e, f, g]
                .into_iter()
                .flatten()
                .map(|(key, value)| (key.to_owned(), json!(value)))
                .collect::<Map<_, _>>()
                .into()
        })
}

fn pod(name: &str, containers: &[Value], annotations: &Value) -> Value {
    let containers: Vec<Value> = containers
        .iter()
        .enumerate()
        .map(|(number, limits)| {
            json!({ "name": format!("c{number}"), "resources": { "limits": limits } })
        })
        .collect();
    json!({
        "metadata": { "name": name, "namespace": "default", "uid": name, "annotations": annotations },
        "spec": { "schedulerName": "hami-scheduler", "containers": containers },
    })
}

fn states() -> impl Strategy<Value = State> {
    let nodes = prop::collection::vec(
        (
            prop::collection::vec(device(), 1..4),
            prop::bool::weighted(0.15),
        ),
        1..4,
    );
    let running = prop::collection::vec(limits(), 0..5);
    let containers = prop::collection::vec(limits(), 1..3);
    let quota = prop::option::weighted(0.25, (5_u64..60, prop::option::of(20_u64..150)));
    (nodes, running, containers, annotations(), quota).prop_map(
        |(nodes, running, containers, annotations, quota)| {
            let nodes = nodes.iter().enumerate().map(|(number, (devices, closed))| {
                let mut cordoned = Vec::new();
                let register: Vec<Value> = devices
                    .iter()
                    .enumerate()
                    .map(|(index, (memory, model, sick, cordon, mode))| {
                        let id = format!("GPU-{number}-{index}");
                        if *cordon {
                            cordoned.push(id.clone());
                        }
                        json!({
                            "id": id, "index": index, "count": 3, "devmem": memory, "devcore": 100,
                            "type": model, "numa": index % 2, "health": !sick,
                            "mode": mode,
                            "migProfiles": if *mode == "mig" { profiles(*memory) } else { json!([]) },
                        })
                    })
                    .collect();
                json!({
                    "metadata": {
                        "name": format!("n{number}"),
                        "annotations": {
                            REGISTER: Value::from(register).to_string(),
                            CORDON: cordoned.join(","),
                        },
                    },
                    "spec": { "unschedulable": closed },
                })
            });
            let mut state = State {
                nodes: nodes.collect(),
                pods: Vec::new(),
                quotas: Vec::new(),
                asks: pod("asks", &containers, &annotations),
            };
            for (number, limits) in running.iter().enumerate() {
                let name = format!("r{number}");
                let mut runs = pod(&name, std::slice::from_ref(limits), &json!({}));
                if let Some((typed, placement)) = state.place(&runs) {
                    let written = allocation::write(&typed, &placement, None, &VENDORS, 1);
                    runs["metadata"]["annotations"] = json!(written.annotations);
                    runs["spec"]["nodeName"] = json!(&*placement.node);
                    state.pods.push(runs);
                }
            }
            if let Some((memory, cores)) = quota {
                let mut hard = json!({ "limits.nvidia.com/gpumem": memory.to_string() });
                if let Some(cores) = cores {
                    hard["limits.nvidia.com/gpucores"] = json!(cores.to_string());
                }
                state.quotas.push(json!({
                    "metadata": { "name": "q", "namespace": "default" },
                    "spec": { "hard": hard },
                }));
            }
            state
        },
    )
}

/// All sets of `count` of them.
fn sets(of: &[String], count: usize) -> Vec<BTreeSet<String>> {
    (0_u32..1 << of.len())
        .filter(|bits| bits.count_ones() as usize == count)
        .map(|bits| {
            of.iter()
                .enumerate()
                .filter(|(at, _)| bits & (1 << at) != 0)
                .map(|(_, name)| name.clone())
                .collect()
        })
        .collect()
}

fn names(state: &State) -> Vec<String> {
    let name = |pod: &Value| format!("default/{}", pod["metadata"]["name"].as_str().unwrap());
    state.pods.iter().map(name).collect()
}

/// No smaller edit of the same kind is enough.
fn nothing_smaller(state: &State, node: &str, edit: &Edit) -> Result<(), TestCaseError> {
    match edit {
        Edit::SetResource {
            container,
            resource,
            from,
            to,
        } => {
            let to: u64 = to.parse().unwrap();
            let from = from.as_ref().map_or(100, |from| from.parse().unwrap());
            let smaller = state.fitting(container, resource, to + 1..from);
            prop_assert_eq!(smaller, None, "{}", edit);
        }
        Edit::DeletePods { pods } => {
            let mut on_node = state.clone();
            // A pod that leaves another node may free quota. Advice never asks for that, nor that a pod leaves this
            // node so that the pod fits on another.
            if !state.quotas.is_empty() {
                on_node.pods.retain(|pod| pod["spec"]["nodeName"] == node);
            }
            for set in (0..pods.len()).flat_map(|count| sets(&names(&on_node), count)) {
                let fewer = state.with(|state| {
                    state.delete(&set);
                    let is_elsewhere = |there: &&mut Value| there["metadata"]["name"] != node;
                    if !state.quotas.is_empty() {
                        let others = state.nodes.iter_mut().filter(is_elsewhere);
                        others.for_each(|other| other["spec"]["unschedulable"] = json!(true));
                    }
                });
                prop_assert!(!fewer.fits(), "{edit}, but {set:?} is enough");
            }
        }
        Edit::SetNodeAnnotation { node, to, .. } => {
            let before =
                state.with(|_| ()).node_mut(node)["metadata"]["annotations"][CORDON].clone();
            let list = |text: &str| -> BTreeSet<String> {
                text.split(',')
                    .filter(|id| !id.is_empty())
                    .map(str::to_owned)
                    .collect()
            };
            let opened = list(before.as_str().unwrap()).len() - list(to).len();
            for object in &state.nodes {
                let name = object["metadata"]["name"].as_str().unwrap();
                let cordoned = list(object["metadata"]["annotations"][CORDON].as_str().unwrap());
                let cordoned: Vec<String> = cordoned.into_iter().collect();
                for set in (0..opened).flat_map(|count| sets(&cordoned, count)) {
                    let left: Vec<&String> =
                        cordoned.iter().filter(|id| !set.contains(*id)).collect();
                    let left = left.into_iter().cloned().collect::<Vec<_>>().join(",");
                    let fewer = state.with(|state| {
                        state.node_mut(name)["metadata"]["annotations"][CORDON] = json!(left);
                    });
                    prop_assert!(!fewer.fits(), "{edit}, but {set:?} is enough");
                }
            }
        }
        Edit::SetQuota {
            quota,
            key,
            to,
            from,
            namespace,
        } => {
            let to: u64 = to.parse().unwrap();
            let less = state.with(|state| {
                state.apply(&Edit::SetQuota {
                    namespace: namespace.clone(),
                    quota: quota.clone(),
                    key: key.clone(),
                    from: from.clone(),
                    to: (to - 1).to_string(),
                });
            });
            prop_assert!(!less.fits(), "{edit}, but one less is enough");
        }
        Edit::SetAnnotation { .. } | Edit::RemoveAnnotation { .. } | Edit::OpenNode { .. } => {}
    }
    Ok(())
}

/// Every kind of change that is enough by itself is in the advice.
fn nothing_overlooked(state: &State, advice: &[Advised]) -> Result<(), TestCaseError> {
    let single: Vec<&Edit> = advice
        .iter()
        .filter_map(|advice| match advice.changes.as_slice() {
            [change] => change.edits.first(),
            _ => None,
        })
        .collect();
    let containers = state.asks["spec"]["containers"].as_array().unwrap();
    for container in containers.iter().filter_map(|spec| spec["name"].as_str()) {
        for (resource, least) in [
            ("nvidia.com/gpu", 1),
            ("nvidia.com/gpumem", 1),
            ("nvidia.com/gpumem-percentage", 1),
            ("nvidia.com/gpucores", 0),
        ] {
            let said = single.iter().any(|edit| {
                matches!(edit, Edit::SetResource { container: of, resource: what, .. } if of == container && what == resource)
            });
            let Some(from) = state.amount(container, resource) else {
                continue;
            };
            if !said {
                let overlooked = state.fitting(container, resource, least..from);
                prop_assert_eq!(overlooked, None, "{} of {}", resource, container);
            }
        }
    }
    let said = |kind: fn(&Edit) -> bool| single.iter().any(|edit| kind(edit));
    // A pod that leaves may free quota, too, which the advice does not count on.
    if state.quotas.is_empty() && !said(|edit| matches!(edit, Edit::DeletePods { .. })) {
        let gone = state.with(|state| state.pods.clear());
        prop_assert!(!gone.fits(), "no pod was advised to leave");
    }
    if !said(|edit| matches!(edit, Edit::SetNodeAnnotation { .. })) {
        let opened = state.with(|state| {
            for node in &mut state.nodes {
                node["metadata"]["annotations"][CORDON] = json!("");
            }
        });
        prop_assert!(!opened.fits(), "no device was advised to be opened");
    }
    if !said(|edit| matches!(edit, Edit::SetQuota { .. })) {
        let free = state.with(|state| state.quotas.clear());
        prop_assert!(!free.fits(), "the quota was not advised to grow");
    }
    if !said(|edit| matches!(edit, Edit::OpenNode { .. })) {
        let open = state.with(|state| {
            for node in &mut state.nodes {
                node["spec"]["unschedulable"] = json!(false);
            }
        });
        prop_assert!(!open.fits(), "no node was advised to be opened");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn advice_works_nothing_smaller_does_and_nothing_is_overlooked(state in states()) {
        let view = View::of(
            typed(&state.nodes),
            &typed::<Pod>(&state.pods),
            typed(&state.quotas),
            Arc::clone(&VENDORS),
            Defaults::default(),
        );
        let asks: Pod = serde_json::from_value(state.asks.clone()).unwrap();

        let explained = explain(&view, &asks, AnswerDetail { nodes: usize::MAX, patience: Duration::MAX });

        prop_assert_eq!(explained.verdict == Verdict::Fits, state.fits());
        if explained.verdict == Verdict::Fits {
            return Ok(());
        }
        prop_assert_eq!(explained.verdict, Verdict::DoesNotFit);
        prop_assert_eq!(explained.nodes.len(), state.nodes.len());
        // At the top and node by node.
        let of_nodes = explained.nodes.iter().flat_map(|node| &node.advice);
        for advice in explained.advice.iter().chain(of_nodes) {
            let mut after = state.clone();
            after.advised(advice);
            // Advice about a closed node names what the node lacks besides being open.
            after.node_mut(&advice.node)["spec"]["unschedulable"] = json!(false);
            prop_assert!(after.fits(), "{} does not help", advice.text);
        }
        for advice in &explained.advice {
            if let [change] = advice.changes.as_slice()
                && let [edit] = change.edits.as_slice()
            {
                nothing_smaller(&state, &advice.node, edit)?;
            }
            if advice.changes.len() > 1 {
                for left_out in &advice.changes {
                    let mut fewer = advice.clone();
                    fewer.changes.retain(|change| change != left_out);
                    let mut after = state.clone();
                    after.advised(&fewer);
                    prop_assert!(!after.fits(), "{} without {}", advice.text, left_out.text);
                }
            }
        }
        nothing_overlooked(&state, &explained.advice)?;
    }
}
