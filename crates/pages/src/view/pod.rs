//! One pod: where it stands, why, and what would help.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::board::{Board, PodRow, text};
use crate::kind::Kind;

use super::address;
use super::decision::{self, Decision};
use super::node::asks;
use super::overview::{Pending, pending, state_word};

/// The page of a pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodPage {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Where it stands, in one word.
    pub state: &'static str,
    /// Its node; empty while it has none.
    pub node: String,
    /// Where the page of its node is.
    pub node_href: String,
    /// What it asks for.
    pub asks: String,
    /// Facts about it, as pairs of name and value.
    pub facts: Vec<(&'static str, String)>,
    /// What it holds of GPUs.
    pub shares: Vec<ShareLine>,
    /// Why it waits, where it does.
    pub pending: Option<Pending>,
    /// What the scheduler's plugins said.
    pub decision: Decision,
    /// What of its annotations cannot be read.
    pub problem: String,
    /// Where it is edited.
    pub edit: String,
    /// Where it is deleted.
    pub delete: String,
    /// Where the live part of this page is, with the page of its tables.
    pub part: String,
    /// The same without the page.
    pub part_path: String,
}

/// A share of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShareLine {
    /// Which GPU.
    pub card: String,
    /// How much memory.
    pub memory: String,
    /// How much compute.
    pub cores: String,
}

/// The page of a pod: `object` is the pod as it is, `page` which page of its tables is shown.
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
    let line = |share: &crate::board::Share| {
        let card = node.and_then(|node| node.cards.iter().find(|card| card.id == share.card));
        ShareLine {
            card: match card {
                Some(card) => format!("GPU {} {} ({})", card.index, card.model, card.id),
                None => format!("{}, which {} does not report", share.card, row.node),
            },
            memory: crate::text::bytes(share.memory_bytes),
            cores: match share.cores {
                0 => "none promised".to_owned(),
                cores if card.is_some_and(|card| card.cores == 100) => format!("{cores} %"),
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
