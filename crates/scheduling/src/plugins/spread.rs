//! `PodTopologySpread`: how evenly pods are spread over the domains of a label. One difference from kube-scheduler:
//! this plugin always searches for the emptiest domain, while kube-scheduler keeps the two emptiest ones.

use std::sync::Arc;

use super::{Before, Context, MOST_SCORE, Scores};
use crate::model::{Labels, Pod, Selector, Spread};
use crate::names::{Names, Numbered, Symbol};
use crate::plugin::Plugin;
use crate::snapshot::NodeState;
use crate::status::Rejection;

/// A constraint that must hold, and the number of pods in each domain.
#[derive(Debug, Clone)]
struct Hard {
    constraint: Spread,
    pods: Numbered<Symbol, i64>,
    /// The number of pods in the emptiest domain.
    least: i64,
    /// Whether the pod itself counts.
    counts_itself: bool,
}

/// All constraints that must hold.
#[derive(Debug, Clone)]
pub(crate) struct HardConstraints(Vec<Hard>);

/// Selects the pods that are like this one, if it has no constraint of its own: those of its services and its
/// controller.
fn selector_of(context: &Context<'_>) -> Selector {
    let names = context.names();
    let pod = context.pod;
    let mut rules = Vec::new();
    let mut take = |selector: &Selector| {
        if let Selector::All(more) = selector {
            rules.extend(more.iter().cloned());
        }
    };
    for workload in &context.snapshot.workloads {
        if workload.namespace != pod.namespace {
            continue;
        }
        let controls = pod.controller == Some((workload.api_version, workload.kind, workload.name))
            && names.text(workload.kind) != "Service";
        let serves =
            names.text(workload.kind) == "Service" && workload.selector.matches(names, &pod.labels);
        if controls || serves {
            take(&workload.selector);
        }
    }
    Selector::All(rules.into())
}

/// The pod's own constraints, else the profile's with a selector derived from the pod.
fn constraints(context: &Context<'_>, hard: bool) -> Vec<Spread> {
    let of = |list: &[Spread]| -> Vec<Spread> {
        list.iter()
            .filter(|constraint| constraint.hard == hard)
            .cloned()
            .collect()
    };
    let own = &context.pod.spread;
    if !own.is_empty() {
        return of(own);
    }
    let mut defaults = of(&context.settings.default_spread);
    if defaults.is_empty() {
        return defaults;
    }
    let selector = selector_of(context);
    if selector.is_everything() {
        return Vec::new();
    }
    for constraint in &mut defaults {
        constraint.selector = selector.clone();
    }
    defaults
}

fn has_all_keys(labels: &Labels, constraints: &[Spread]) -> bool {
    constraints
        .iter()
        .all(|constraint| labels.get(constraint.topology_key).is_some())
}

/// Whether the node is part of a domain for this pod.
fn counts(context: &Context<'_>, constraint: &Spread, node: &NodeState) -> bool {
    let (pod, node) = (context.pod, &node.node);
    (!constraint.honor_affinity || pod.allows_node(context.names(), node.symbol, &node.labels))
        && (!constraint.honor_taints || pod.untolerated(&node.taints).is_none())
}

fn matching(names: &Names, node: &NodeState, selector: &Selector, namespace: Symbol) -> i64 {
    if selector.is_everything() {
        return 0;
    }
    let count = node
        .pods
        .iter()
        .filter(|pod| {
            !pod.terminating && pod.namespace == namespace && selector.matches(names, &pod.labels)
        })
        .count();
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Hard {
    fn settle(&mut self) {
        let domains = i64::try_from(self.pods.len()).unwrap_or(i64::MAX);
        self.least = if domains < self.constraint.min_domains {
            0
        } else {
            // A constraint without any domain is always met.
            self.pods.values().copied().min().unwrap_or(i64::MAX / 2)
        };
    }
}

pub(crate) fn pre_filter(context: &Context<'_>) -> (Before, Option<HardConstraints>) {
    let constraints = constraints(context, true);
    if constraints.is_empty() {
        return (Before::Skip, None);
    }
    let names = context.names();
    let pod = context.pod;
    let mut prepared: Vec<Hard> = constraints
        .iter()
        .map(|constraint| Hard {
            counts_itself: constraint.selector.matches(names, &pod.labels),
            constraint: constraint.clone(),
            pods: Numbered::default(),
            least: 0,
        })
        .collect();
    for node in context.snapshot.nodes() {
        if !has_all_keys(&node.node.labels, &constraints) {
            continue;
        }
        for hard in &mut prepared {
            let constraint = &hard.constraint;
            if !counts(context, constraint, node) {
                continue;
            }
            if let Some(value) = node.node.labels.get(constraint.topology_key) {
                *hard.pods.entry(value).or_default() +=
                    matching(names, node, &constraint.selector, pod.namespace);
            }
        }
    }
    prepared.iter_mut().for_each(Hard::settle);
    (Before::Run, Some(HardConstraints(prepared)))
}

impl HardConstraints {
    /// Adds a pod to the node (1) or removes it (-1) for a trial.
    pub(crate) fn change(
        &mut self,
        context: &Context<'_>,
        node: &NodeState,
        pod: &Arc<Pod>,
        by: i64,
    ) {
        if pod.namespace != context.pod.namespace {
            return;
        }
        let labels = &node.node.labels;
        let has = |hard: &Hard| labels.get(hard.constraint.topology_key).is_some();
        if !self.0.iter().all(has) {
            return;
        }
        for hard in &mut self.0 {
            let constraint = &hard.constraint;
            if !constraint.selector.matches(context.names(), &pod.labels)
                || !counts(context, constraint, node)
            {
                continue;
            }
            if let Some(value) = labels.get(constraint.topology_key) {
                *hard.pods.entry(value).or_default() += by;
                hard.settle();
            }
        }
    }

    pub(crate) fn filter(&self, node: &NodeState) -> Result<(), Rejection> {
        for hard in &self.0 {
            let Some(value) = node.node.labels.get(hard.constraint.topology_key) else {
                return Err(Rejection::unresolvable(
                    Plugin::PodTopologySpread,
                    "node(s) didn't match pod topology spread constraints (missing required label)",
                ));
            };
            let pods = hard.pods.get(&value).copied().unwrap_or_default();
            let skew = pods + i64::from(hard.counts_itself) - hard.least;
            if skew > hard.constraint.max_skew {
                return Err(Rejection::unschedulable(
                    Plugin::PodTopologySpread,
                    "node(s) didn't match pod topology spread constraints",
                ));
            }
        }
        Ok(())
    }
}

/// The counts of a constraint that need not hold: the pods of each domain, and the domain's weight.
struct Soft<'a> {
    constraint: &'a Spread,
    pods: Numbered<Symbol, i64>,
    weight: f64,
}

impl Soft<'_> {
    fn by_host(&self) -> bool {
        self.constraint.topology_key == Symbol::HOSTNAME
    }
}

/// Nodes with fewer pods in their domains score higher; `None` if no constraint is soft.
pub(crate) fn score(context: &Context<'_>, nodes: &[&NodeState]) -> Option<Scores> {
    let constraints = constraints(context, false);
    if constraints.is_empty() {
        return None;
    }
    let names = context.names();
    let namespace = context.pod.namespace;
    let all_keys = !context.pod.spread.is_empty() || !context.settings.system_spread;
    let ignored: Vec<bool> = nodes
        .iter()
        .map(|node| all_keys && !has_all_keys(&node.node.labels, &constraints))
        .collect();
    let counted = nodes.iter().zip(&ignored).filter(|(_, ignored)| !**ignored);
    let counted: Vec<&NodeState> = counted.map(|(node, _)| *node).collect();
    let mut softs: Vec<Soft<'_>> = constraints
        .iter()
        .map(|constraint| {
            let mut soft = Soft {
                constraint,
                pods: Numbered::default(),
                weight: 0.0,
            };
            if !soft.by_host() {
                for node in &counted {
                    // A node without the label is in the domain of the empty text.
                    let value = node.node.labels.get(constraint.topology_key);
                    soft.pods.entry(value.unwrap_or(Symbol::EMPTY)).or_default();
                }
            }
            let domains = if soft.by_host() {
                counted.len()
            } else {
                soft.pods.len()
            };
            soft.weight = weight(domains);
            soft
        })
        .collect();
    if !softs.iter().all(Soft::by_host) {
        for node in context.snapshot.nodes() {
            if all_keys && !has_all_keys(&node.node.labels, &constraints) {
                continue;
            }
            for soft in softs.iter_mut().filter(|soft| !soft.by_host()) {
                if !counts(context, soft.constraint, node) {
                    continue;
                }
                let value = node.node.labels.get(soft.constraint.topology_key);
                if let Some(pods) = soft.pods.get_mut(&value.unwrap_or(Symbol::EMPTY)) {
                    *pods += matching(names, node, &soft.constraint.selector, namespace);
                }
            }
        }
    }
    let raw: Vec<i64> = nodes
        .iter()
        .zip(&ignored)
        .map(|(node, ignored)| {
            if *ignored {
                return 0;
            }
            let mut score = 0.0;
            for soft in &softs {
                let constraint = soft.constraint;
                let Some(value) = node.node.labels.get(constraint.topology_key) else {
                    continue;
                };
                let pods = if soft.by_host() {
                    matching(names, node, &constraint.selector, namespace)
                } else {
                    soft.pods.get(&value).copied().unwrap_or_default()
                };
                score += worth(pods, constraint.max_skew, soft.weight);
            }
            rounded(score)
        })
        .collect();
    Some(Scores {
        normal: normal(&raw, &ignored),
        raw,
    })
}

/// The node with the most pods gets the lowest score; ignored nodes get 0.
fn normal(raw: &[i64], ignored: &[bool]) -> Vec<i64> {
    let kept = || {
        raw.iter()
            .zip(ignored)
            .filter(|(_, ignored)| !**ignored)
            .map(|(score, _)| *score)
    };
    let least = kept().min().unwrap_or_default();
    let most = kept().max().unwrap_or_default().max(0);
    raw.iter()
        .zip(ignored)
        .map(|(score, ignored)| match (ignored, most) {
            (true, _) => 0,
            (false, 0) => MOST_SCORE,
            (false, _) => MOST_SCORE * (most + least - score) / most,
        })
        .collect()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "kube-scheduler computes with the same floats, and scores have to agree with it"
)]
fn weight(domains: usize) -> f64 {
    ((domains + 2) as f64).ln()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "kube-scheduler computes with the same floats, and scores have to agree with it"
)]
fn worth(pods: i64, max_skew: i64, weight: f64) -> f64 {
    pods as f64 * weight + (max_skew - 1) as f64
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a count of pods times a small weight"
)]
fn rounded(score: f64) -> i64 {
    score.round() as i64
}
