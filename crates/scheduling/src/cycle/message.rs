//! Why a pod found no node, in kube-scheduler's words.

use std::collections::BTreeMap;

use super::{Cycle, Failed, choose_victims};
use crate::names::Names;
use crate::status::{Rejection, Wording};

impl Cycle<'_> {
    pub(super) fn fail(&mut self) -> Failed {
        let nodes = self.snapshot.node_count();
        let mut failed = Failed {
            reason: "Unschedulable",
            message: String::new(),
            plugins: self.unschedulable,
            by_extender: self.by_extender,
            preemption: None,
            candidates: Vec::new(),
            nodes,
            reasons: BTreeMap::new(),
        };
        if let Some(error) = self.error.take() {
            failed.reason = "SchedulerError";
            failed.message = error;
            return failed;
        }
        if nodes == 0 {
            "no nodes available to schedule pods".clone_into(&mut failed.message);
            return failed;
        }
        let (candidates, post_filter) = self.post_filter();
        failed.preemption = choose_victims(&candidates).cloned();
        failed.candidates = candidates;
        failed.reasons = self.reasons(nodes);
        let pre_filter = self.refused.as_ref().map(|refused| self.text(refused));
        failed.message = summary(nodes, pre_filter.as_deref(), &failed.reasons, &post_filter);
        failed
    }

    /// Each reason with the number of nodes that have it.
    fn reasons(&self, nodes: usize) -> BTreeMap<String, usize> {
        let mut reasons = BTreeMap::new();
        let absent = nodes.saturating_sub(self.rejected.len());
        let names = &self.snapshot.names;
        let wording = self.framework.wording;
        for (_, rejection) in &self.rejected {
            count(&mut reasons, names, wording, rejection, 1);
        }
        if let Some(rejection) = &self.absent
            && absent > 0
        {
            count(&mut reasons, names, wording, rejection, absent);
        }
        reasons
    }
}

/// Counts the reasons of a refusal once for each of `nodes` nodes.
pub(super) fn count(
    reasons: &mut BTreeMap<String, usize>,
    names: &Names,
    wording: Wording,
    rejection: &Rejection,
    nodes: usize,
) {
    for reason in rejection.reasons.iter() {
        let text = reason.text(names, wording);
        match reasons.get_mut(&*text) {
            Some(count) => *count += nodes,
            None => {
                reasons.insert(text.into_owned(), nodes);
            }
        }
    }
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable. preemption: …`.
pub(super) fn summary(
    nodes: usize,
    pre_filter: Option<&str>,
    reasons: &BTreeMap<String, usize>,
    post_filter: &str,
) -> String {
    let mut text = format!("0/{nodes} nodes are available:");
    match pre_filter {
        Some(why) => text = format!("{text} {why}."),
        None => {
            let mut counted: Vec<String> = reasons
                .iter()
                .map(|(reason, count)| format!("{count} {reason}"))
                .collect();
            counted.sort_unstable();
            if !counted.is_empty() {
                text = format!("{text} {}.", counted.join(", "));
            }
        }
    }
    if !post_filter.is_empty() {
        text = format!("{text} {post_filter}");
    }
    text
}
