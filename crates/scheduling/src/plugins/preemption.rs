//! `DefaultPreemption`: chooses the eviction that does the least harm. Runs no filter: the cycle does.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::model::{Budget, Pod, Selector};
use crate::names::Names;

/// Pods whose eviction from one node would make room.
#[derive(Debug, Clone, PartialEq)]
pub struct Victims {
    /// Name of the node.
    pub node: Arc<str>,
    /// The pods, the most important one first.
    pub pods: Vec<Arc<Pod>>,
    /// How many of them are protected by a disruption budget.
    pub violations: usize,
}

/// How many candidates the search looks for in a cluster of `nodes` nodes.
pub(crate) fn wanted(nodes: usize, percentage: i64, least: i64) -> usize {
    let count = |number: i64| usize::try_from(number).unwrap_or_default();
    (nodes * count(percentage) / 100)
        .max(count(least))
        .min(nodes)
}

/// Sorts by importance: higher priority first, then longer running first. Pods that have not started count as started
/// now; among them the order is by key.
pub(crate) fn by_importance(pods: &mut [Arc<Pod>]) {
    pods.sort_by(|one, other| {
        let rank = |pod: &Pod| (Reverse(pod.priority), started(pod));
        rank(one)
            .cmp(&rank(other))
            .then_with(|| one.key.cmp(&other.key))
    });
}

fn started(pod: &Pod) -> i64 {
    pod.started_ms.unwrap_or(i64::MAX)
}

/// Divides pods into those whose eviction breaks a disruption budget and the others, keeping their order.
pub(crate) fn by_budget(
    names: &Names,
    pods: Vec<Arc<Pod>>,
    budgets: &[Arc<Budget>],
) -> (Vec<Arc<Pod>>, Vec<Arc<Pod>>) {
    let mut allowed: Vec<i64> = budgets.iter().map(|budget| budget.allowed).collect();
    pods.into_iter().partition(|pod| {
        let mut breaks = false;
        if pod.labels.is_empty() {
            return false;
        }
        for (budget, allowed) in budgets.iter().zip(&mut allowed) {
            let selects = |selector: &Selector| {
                !selector.is_everything() && selector.matches(names, &pod.labels)
            };
            if budget.namespace != pod.namespace
                || !selects(&budget.selector)
                || budget.disrupted.contains(&pod.name)
            {
                continue;
            }
            *allowed -= 1;
            breaks |= *allowed < 0;
        }
        breaks
    })
}

/// The candidate that does the least harm. The comparisons are, in order: the fewest broken budgets, the lowest
/// highest priority, the lowest sum of priorities, the fewest pods, the latest start of its most important pods. Of
/// equal candidates it is the first.
pub fn choose(candidates: &[Victims]) -> Option<&Victims> {
    let harm = |victims: &&Victims| {
        let highest = victims.pods.iter().map(|pod| pod.priority).max();
        let sum: i64 = victims
            .pods
            .iter()
            // Shifted so that a pod of negative priority counts too.
            .map(|pod| i64::from(pod.priority) + i64::from(i32::MAX) + 1)
            .sum();
        let start = victims
            .pods
            .iter()
            .filter(|pod| Some(pod.priority) == highest)
            .map(|pod| started(pod))
            .min();
        let first = victims.pods.first().map(|pod| pod.priority);
        (
            victims.violations,
            first,
            sum,
            victims.pods.len(),
            Reverse(start),
        )
    };
    candidates.iter().min_by_key(harm)
}
