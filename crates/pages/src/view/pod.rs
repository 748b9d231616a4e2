//! One pod: its state, the reason, and what would help.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::board::{Board, PodRow, text};
use crate::kind::Kind;

use super::address;
use super::decision::{self, Decision};
use super::node::asks;
use super::overview::{PendingPod, pending, state_word};

/// The page of a pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodPage {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its state, in one word.
    pub state: &'static str,
    /// Its node; empty if it has none.
    pub node: String,
    /// The address of its node's page.
    pub node_href: String,
    /// The amounts that it asks for.
    pub asks: String,
    /// Facts about it, as pairs of name and value.
    pub facts: Vec<(&'static str, String)>,
    /// Its shares of GPUs.
    pub shares: Vec<ShareLine>,
    /// Why it waits; `None` if it does not.
    pub pending: Option<PendingPod>,
    /// The answers of the scheduler's plugins.
    pub decision: Decision,
    /// The errors in its annotations.
    pub problem: String,
    /// The address of the page to edit it.
    pub edit: String,
    /// The address of the page to delete it.
    pub delete: String,
    /// The address of the live part of this page, with the page number of its tables.
    pub part: String,
    /// The same address without the page number.
    pub part_path: String,
}

/// A share of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShareLine {
    /// The GPU.
    pub gpu: String,
    /// The amount of memory.
    pub memory: String,
    /// The amount of compute.
    pub cores: String,
}

/// The page of a pod: `object` is the pod's present state, `page` the page number of its tables.
pub fn pod_page(board: &Board, row: &PodRow, object: &Value, page: usize) -> PodPage {
    let annotations: BTreeMap<String, String> = object
        .pointer("/metadata/annotations")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect();
    let href = address::pod(&row.namespace, &row.name);
    let link = |page: usize| {
        let page = if page > 1 {
            page.to_string()
        } else {
            String::new()
        };
        format!("{href}{}#decision", address::query(&[("page", &page)]))
    };
    let mut facts = Vec::new();
    let named = [
        ("Priority", priority(row, object)),
        ("Scheduler", text(object, "/spec/schedulerName").to_owned()),
        (
            "Created",
            text(object, "/metadata/creationTimestamp").to_owned(),
        ),
        ("Phase", text(object, "/status/phase").to_owned()),
    ];
    facts.extend(named.into_iter().filter(|(_, value)| !value.is_empty()));
    PodPage {
        namespace: row.namespace.clone(),
        name: row.name.clone(),
        state: state_word(row.state),
        node: row.node.clone(),
        node_href: if row.node.is_empty() {
            String::new()
        } else {
            address::node(&row.node)
        },
        asks: asks(row, usize::MAX),
        facts,
        shares: shares(board, row),
        pending: row.state.is_pending().then(|| pending(row)),
        decision: decision::decision(&annotations, &row.node, page, link),
        problem: row.problem.clone(),
        edit: address::edit(Kind::Pods, &row.namespace, &row.name),
        delete: address::delete(Kind::Pods, &row.namespace, &row.name),
        part_path: address::pod_part(&row.namespace, &row.name),
        part: format!(
            "{}{}",
            address::pod_part(&row.namespace, &row.name),
            address::query(&[("page", &page.to_string())])
        ),
    }
}

fn priority(row: &PodRow, object: &Value) -> String {
    let class = text(object, "/spec/priorityClassName");
    match (row.priority, class) {
        (0, "") => String::new(),
        (priority, "") => priority.to_string(),
        (priority, class) => format!("{priority} ({class})"),
    }
}

fn shares(board: &Board, row: &PodRow) -> Vec<ShareLine> {
    let node = board.node(&row.node);
    let line = |share: &crate::board::RequestedShare| {
        let gpu = node.and_then(|node| node.gpus.iter().find(|gpu| gpu.id == share.gpu));
        ShareLine {
            gpu: match gpu {
                Some(gpu) => format!("GPU {} {} ({})", gpu.index, gpu.model, gpu.id),
                None => format!("{}, which {} does not report", share.gpu, row.node),
            },
            memory: crate::text::bytes(share.memory_bytes),
            cores: match share.cores {
                0 => "none promised".to_owned(),
                cores if gpu.is_some_and(|gpu| gpu.cores == 100) => format!("{cores} %"),
                cores => cores.to_string(),
            },
        }
    };
    row.shares.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::source::Change;

    fn sample() -> Vec<Value> {
        let text = include_str!("../../../../tests/vectors/simulator/export-sample.json");
        let export: Value = serde_json::from_str(text).unwrap();
        export["pods"].as_array().unwrap().clone()
    }

    #[test]
    fn the_recorded_sample_is_explained() {
        let mut board = Board::default();
        let pods = sample();
        for pod in &pods {
            board.apply(&Change::Put(Kind::Pods, Arc::new(pod.clone())));
        }

        let told: Vec<_> = board
            .pods()
            .zip(&pods)
            .map(|(row, _)| {
                let object = pods
                    .iter()
                    .find(|pod| pod["metadata"]["name"] == *row.name)
                    .unwrap();
                let page = pod_page(&board, row, object, 1);
                (page.name, page.state, page.decision.sentence)
            })
            .collect();

        expect_test::expect![[r#"
            [
                (
                    "pod-1",
                    "placed",
                    "node-2 was chosen: 2 of 3 nodes passed every filter, and it has the highest score, 495, together with node-1.",
                ),
                (
                    "pod-gpu",
                    "placed",
                    "node-2 was chosen: it is the only one of 3 nodes that passed every filter, so no score was needed.",
                ),
            ]
        "#]]
        .assert_debug_eq(&told);
    }

    #[test]
    fn a_pod_that_waits_says_why() {
        let text = include_str!("../../../../tests/vectors/simulator/pod-annotations.json");
        let recorded: Value = serde_json::from_str(text).unwrap();
        let recorded = &recorded[0];
        let pod = serde_json::json!({
            "metadata": { "name": "pod-1", "namespace": "default", "annotations": recorded["annotations"] },
            "status": { "conditions": recorded["conditions"] },
        });
        let mut board = Board::default();
        board.apply(&Change::Put(Kind::Pods, Arc::new(pod.clone())));

        let page = pod_page(&board, board.pod("default", "pod-1").unwrap(), &pod, 1);

        let pending = page.pending.unwrap();
        assert_eq!(pending.state, "None of 3 nodes takes it:");
        assert_eq!(pending.refusals.len(), 2);
        assert_eq!(page.decision.sentence, "All 3 nodes refuse it.");
        assert_eq!(page.decision.refusals[0].plugin, "TaintToleration");
    }
}
