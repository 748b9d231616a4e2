//! Random cases that a real kube-scheduler 1.35 has decided, from the recording `kube-scheduler.jsonl`. We must
//! produce the same message if it found no node, the same scores of every plugin if it scored, and its node must be
//! among our best.
//!
//! `scripts/lib/scheduler_cases.py` records more cases, and the variable `KUBE_SCHEDULER_CASES` names a recording to
//! compare instead. Two known differences are not in the cases. kube-scheduler's plugin DynamicResources, which was
//! disabled, begins its part of a message with "no new claims to deallocate". And if nodes report different sizes of
//! one image, kube-scheduler uses the size that the first of them reported, while this crate uses each node's own.

use std::collections::BTreeMap;

use scheduling::cycle::Victims;
use scheduling::plugin::Plugin;
use scheduling::snapshot::Snapshot;
use serde_json::{Value, json};

use crate::world::World;

/// The namespaces of every case, with their label `team`.
const NAMESPACES: [(&str, &str); 2] = [("other", "t"), ("default", "")];

/// Name, provisioner, mode, and the zones where volumes can be made.
const CLASSES: [(&str, &str, &str, &[&str]); 4] = [
    ("now", "kubernetes.io/no-provisioner", "Immediate", &[]),
    (
        "wait",
        "kubernetes.io/no-provisioner",
        "WaitForFirstConsumer",
        &[],
    ),
    ("make", "csi.made", "WaitForFirstConsumer", &[]),
    ("zonal", "csi.made", "WaitForFirstConsumer", &["z1", "z2"]),
];

/// The differences in one case; empty if there are none.
fn differences(case: &Value, configuration: &Value) -> Vec<String> {
    let mut objects: Vec<Value> = NAMESPACES
        .iter()
        .map(|(name, team)| {
            let labels = match *team {
                "" => json!({}),
                team => json!({"team": team}),
            };
            json!({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        })
        .collect();
    objects.extend(CLASSES.iter().map(|(name, provisioner, mode, zones)| {
        let mut topologies = Vec::new();
        if !zones.is_empty() {
            let zone = json!({"key": "topology.kubernetes.io/zone", "values": zones});
            topologies.push(json!({"matchLabelExpressions": [zone]}));
        }
        json!({"kind": "StorageClass", "metadata": {"name": name}, "provisioner": provisioner,
            "volumeBindingMode": mode, "allowedTopologies": topologies})
    }));
    objects.extend(case["objects"].as_array().unwrap().iter().cloned());
    let profile = case["pod"]["spec"]["schedulerName"].as_str();
    let profile = profile.unwrap_or("default-scheduler");
    let mut world = World::under(Snapshot::new(), &objects, configuration, profile);
    let answers = world.run(&case["pod"]);
    let mut found = Vec::new();
    match (&answers.0.result, case["node"].as_str()) {
        (Ok(placed), Some(node)) => {
            if !placed.ties.iter().any(|tie| &**tie == node) {
                found.push(format!("chose {node}, we {:?}", placed.ties));
            }
        }
        (Ok(placed), None) => {
            found.push(format!(
                "said {}, we chose {}",
                case["message"], placed.node
            ));
        }
        // It was bound after other pods had been evicted for it.
        (Err(failed), Some(node)) => {
            let makes_room = |victims: &Victims| &*victims.node == node;
            if !failed.candidates.iter().any(makes_room) {
                found.push(format!("chose {node}, we said {}", failed.message));
            }
        }
        (Err(failed), None) => {
            if case["message"].as_str() != Some(&failed.message) {
                found.push(format!("said {}, we {:?}", case["message"], failed.message));
            }
        }
    }
    let theirs: BTreeMap<String, BTreeMap<String, i64>> =
        serde_json::from_value(case["scores"].clone()).unwrap();
    let mut ours: BTreeMap<String, BTreeMap<String, i64>> = BTreeMap::new();
    if let Some(scored) = &answers.record().scored {
        let rows = scored.weighted.chunks(scored.plugins.len());
        for (node, row) in scored.nodes.iter().zip(rows) {
            for ((plugin, _), score) in scored.plugins.iter().zip(row) {
                let of_plugin = ours.entry(plugin.name().to_owned()).or_default();
                of_plugin.insert(node.to_string(), *score);
            }
        }
    }
    // A kube-scheduler plugin that this crate does not have.
    let known = |name: &&String| Plugin::named(name).is_some();
    for plugin in theirs.keys().chain(ours.keys()).filter(known) {
        if theirs.get(plugin) != ours.get(plugin) {
            found.push(format!(
                "{plugin}: {:?}, we {:?}",
                theirs.get(plugin),
                ours.get(plugin)
            ));
        }
    }
    found.sort();
    found.dedup();
    found
}

#[test]
fn decisions_are_those_of_the_real_kube_scheduler() {
    let file = std::env::var("KUBE_SCHEDULER_CASES");
    compare(file.as_deref().unwrap_or("kube-scheduler.jsonl"), 100);
}

#[test]
fn volumes_are_chosen_as_by_the_real_kube_scheduler() {
    compare("kube-scheduler-volumes.jsonl", 60);
}

/// Compares every case of a recording, which must have at least `least` cases.
fn compare(file: &str, least: usize) {
    let root = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/vectors/simulator/"
    );
    let configuration =
        std::fs::read_to_string(format!("{root}kube-scheduler.config.json")).unwrap();
    let configuration: Value = serde_json::from_str(&configuration).unwrap();
    let cases = std::fs::read_to_string(std::path::Path::new(root).join(file)).unwrap();
    let mut wrong = Vec::new();
    let mut count = 0;
    for (line, case) in (1..).zip(cases.lines()) {
        count += 1;
        let case: Value = serde_json::from_str(case).unwrap();
        for difference in differences(&case, &configuration) {
            wrong.push(format!("case {line}: {difference}"));
        }
    }

    assert!(
        wrong.is_empty(),
        "{} differences in {count} cases:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(count >= least, "only {count} cases");
}
