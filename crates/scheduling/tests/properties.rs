//! Properties of every cluster: the order of changes does not matter, and an undone change leaves no trace.

use std::sync::Arc;

use proptest::prelude::*;
use scheduling::config::Configuration;
use scheduling::cycle::{Options, Outcome};
use scheduling::profile::Framework;
use scheduling::snapshot::Snapshot;
use serde_json::{Value, json};

use crate::world::set;

fn any_node(at: usize) -> impl Strategy<Value = Value> {
    (0..4_u32, 0..3_u32, 0..4_u32, 1..8_u32, any::<bool>()).prop_map(
        move |(zone, taint, disk, cpu, cordoned)| {
            let mut labels = json!({"kubernetes.io/hostname": format!("n{at}")});
            if zone > 0 {
                labels["zone"] = json!(format!("z{zone}"));
            }
            if disk > 0 {
                labels["disk"] = json!(format!("d{disk}"));
            }
            let effect = ["", "NoSchedule", "PreferNoSchedule"][taint as usize];
            let taints = match effect {
                "" => json!([]),
                effect => json!([{"key": "t", "value": "v", "effect": effect}]),
            };
            json!({
                "metadata": {"name": format!("n{at}"), "labels": labels},
                "spec": {"taints": taints, "unschedulable": cordoned && at.is_multiple_of(3)},
                "status": {
                    "allocatable": {"cpu": cpu.to_string(), "memory": "8Gi", "pods": "10"},
                    "images": [{"names": ["image:latest"], "sizeBytes": 100_000_000 * u64::from(disk)}],
                },
            })
        },
    )
}

fn any_pod(name: String) -> impl Strategy<Value = Value> {
    (0..3_u32, 0..6_u32, 0..5_u32, 0..3_i32, 0..3_u32).prop_map(
        move |(app, kind, cpu, priority, tolerates)| {
            let app = format!("app{app}");
            let selector = json!({"matchLabels": {"app": app}});
            let term = json!({"topologyKey": "zone", "labelSelector": selector});
            let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
            let preferred = json!({"preferredDuringSchedulingIgnoredDuringExecution":
                [{"weight": 10, "podAffinityTerm": term}]});
            let spread = |when: &str| {
                json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when,
                    "labelSelector": selector}])
            };
            let mut pod = json!({
                "metadata": {"name": name, "uid": name, "labels": {"app": app}},
                "spec": {"priority": priority, "containers": [{"name": "c", "image": "image",
                    "resources": {"requests": {"cpu": format!("{}m", cpu * 500)}}}]},
            });
            match kind {
                1 => pod["spec"]["affinity"] = json!({"podAffinity": required}),
                2 => pod["spec"]["affinity"] = json!({"podAntiAffinity": required}),
                3 => pod["spec"]["affinity"] = json!({"podAffinity": preferred}),
                4 => pod["spec"]["topologySpreadConstraints"] = spread("DoNotSchedule"),
                5 => pod["spec"]["topologySpreadConstraints"] = spread("ScheduleAnyway"),
                _ => {}
            }
            match tolerates {
                1 => pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]),
                2 => pod["spec"]["nodeSelector"] = json!({"disk": "d1"}),
                _ => {}
            }
            pod
        },
    )
}

/// Nodes, pods with the number of their node, and a waiting pod.
fn any_cluster() -> impl Strategy<Value = (Vec<Value>, Vec<(Value, usize)>, Value)> {
    let nodes: Vec<_> = (0..6).map(any_node).collect();
    let pods: Vec<_> = (0..8)
        .map(|at| (any_pod(format!("p{at}")), 0..6_usize))
        .collect();
    (nodes, pods, any_pod("new".to_owned()))
}

fn add_pod(snapshot: &mut Snapshot, (pod, node): &(Value, usize)) {
    let pod = snapshot.read_pod(pod).unwrap();
    snapshot.assign(Arc::new(pod), &format!("n{node}"));
}

fn add_node(snapshot: &mut Snapshot, node: &Value) {
    let node = snapshot.read_node(node).unwrap();
    snapshot.set_node(node);
}

fn run(snapshot: &mut Snapshot, pod: &Value) -> Outcome {
    let framework = Framework::all(&Configuration::default(), snapshot.names_mut()).remove(0);
    let pod = Arc::new(snapshot.read_pod(pod).unwrap());
    let options = Options {
        record: true,
        ..Options::default()
    };
    framework.schedule(snapshot, &pod, options)
}

/// The visible part of an outcome. Symbols are left out, because they depend on the order in which texts were seen.
fn seen(outcome: &Outcome) -> (String, Vec<String>, String) {
    let rendered = scheduling::annotations::render(outcome.record.as_ref().unwrap());
    let said = match &outcome.result {
        Ok(placed) => (placed.node.to_string(), placed.ties.clone()),
        Err(failed) => (failed.message.clone(), Vec::new()),
    };
    let victims = match &outcome.result {
        Err(failed) => failed.preemption.as_ref().map(|victims| {
            let names: Vec<&str> = victims.pods.iter().map(|pod| &*pod.key).collect();
            format!("{} {names:?} {}", victims.node, victims.violations)
        }),
        Ok(_) => None,
    };
    (
        format!("{rendered:?}"),
        said.1
            .iter()
            .map(ToString::to_string)
            .chain([said.0])
            .collect(),
        victims.unwrap_or_default(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn order_of_insertion_does_not_matter((nodes, pods, new) in any_cluster(), seed in any::<u64>()) {
        let mut one = Snapshot::new();
        nodes.iter().for_each(|node| add_node(&mut one, node));
        pods.iter().for_each(|pod| add_pod(&mut one, pod));

        // Pods first, then nodes, each in a different order.
        let mut other = Snapshot::new();
        let mixed = |at: usize| (at as u64).wrapping_mul(seed | 1).rotate_left(17);
        let mut by_chance: Vec<usize> = (0..pods.len()).collect();
        by_chance.sort_by_key(|at| mixed(*at));
        by_chance.iter().for_each(|at| add_pod(&mut other, &pods[*at]));
        let mut by_chance: Vec<usize> = (0..nodes.len()).collect();
        by_chance.sort_by_key(|at| mixed(*at));
        by_chance.iter().for_each(|at| add_node(&mut other, &nodes[*at]));

        prop_assert_eq!(seen(&run(&mut one, &new)), seen(&run(&mut other, &new)));
    }

    #[test]
    fn what_is_taken_back_leaves_no_trace(
        (nodes, pods, new) in any_cluster(),
        further in any_pod("further".to_owned()),
        at in 0..6_usize,
    ) {
        let mut snapshot = Snapshot::new();
        nodes.iter().for_each(|node| add_node(&mut snapshot, node));
        pods.iter().for_each(|pod| add_pod(&mut snapshot, pod));
        let before = seen(&run(&mut snapshot, &new));

        add_pod(&mut snapshot, &(further, at));
        add_node(&mut snapshot, &set(nodes[0].clone(), "/metadata/name", json!("extra")));
        snapshot.remove_node("n1");
        add_node(&mut snapshot, &nodes[1]);
        snapshot.remove_pod("default/further").unwrap();
        prop_assert!(snapshot.remove_node("extra"));

        prop_assert_eq!(seen(&run(&mut snapshot, &new)), before);
    }

    #[test]
    fn other_names_in_another_order_fit_alike((nodes, pods, new) in any_cluster()) {
        // The same cluster with its nodes named in reverse.
        let renamed = |name: &str| {
            let at: usize = name.trim_start_matches('n').parse().unwrap();
            format!("n{}", nodes.len() - 1 - at)
        };
        let mut one = Snapshot::new();
        nodes.iter().for_each(|node| add_node(&mut one, node));
        pods.iter().for_each(|pod| add_pod(&mut one, pod));
        let mut other = Snapshot::new();
        for node in &nodes {
            let name = renamed(node["metadata"]["name"].as_str().unwrap());
            let node = set(node.clone(), "/metadata/name", json!(name));
            add_node(&mut other, &node);
        }
        for (pod, at) in &pods {
            add_pod(&mut other, &(pod.clone(), nodes.len() - 1 - at));
        }

        let fit = |outcome: &Outcome| -> Vec<String> {
            let record = outcome.record.as_ref().unwrap();
            let fit = record.nodes.iter().filter(|(_, verdict)| verdict.refused.is_none());
            fit.map(|(node, _)| node.to_string()).collect()
        };
        let mut here = fit(&run(&mut one, &new));
        let mut there: Vec<String> = fit(&run(&mut other, &new)).iter().map(|name| renamed(name)).collect();
        here.sort();
        there.sort();
        prop_assert_eq!(here, there);
    }
}
