//! The plugins: each file is one, and each function a question with values in and an answer out. Never the order in
//! which they are asked: that is the cycle's.

pub(crate) mod balanced;
pub(crate) mod fit;
pub(crate) mod gpu;
pub(crate) mod image_locality;
pub(crate) mod inter_pod;
pub(crate) mod node_affinity;
pub(crate) mod node_name;
pub(crate) mod node_ports;
pub(crate) mod preemption;
pub(crate) mod spread;
pub(crate) mod taints;
pub(crate) mod unschedulable;
pub(crate) mod volume_binding;
pub(crate) mod volume_limits;
pub(crate) mod volume_restrictions;
pub(crate) mod volume_zone;
mod volumes;

use std::sync::Arc;

use crate::model::Pod;
use crate::names::{Names, Symbol};
use crate::profile::Settings;
use crate::snapshot::{NodeState, Snapshot};
use crate::status::Rejection;

/// The most that a plugin may give a node.
pub(crate) const MOST_SCORE: i64 = 100;

/// What every question is about.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) pod: &'a Arc<Pod>,
    pub(crate) settings: &'a Settings,
}

impl<'a> Context<'a> {
    pub(crate) fn names(&self) -> &'a Names {
        &self.snapshot.names
    }
}

/// What a plugin says of a pod before any node is looked at.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Before {
    /// Its filter has to be asked.
    Run,
    /// Its filter has nothing to say.
    Skip,
    /// Only these nodes come into question.
    Only(Vec<Symbol>),
    /// The pod fits nowhere.
    Refuse(Rejection),
}

/// What a plugin says of nodes that fit: a score each, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scores {
    /// As the plugin gives them.
    pub(crate) raw: Vec<i64>,
    /// From 0 to 100.
    pub(crate) normal: Vec<i64>,
}

impl Scores {
    /// Scores that are from 0 to 100 as they are.
    pub(crate) fn plain(raw: Vec<i64>) -> Self {
        Self {
            normal: raw.clone(),
            raw,
        }
    }

    /// Scores of which the largest becomes 100, or 0 where less is better. The rule is kube-scheduler's
    /// `DefaultNormalizeScore`.
    pub(crate) fn scaled(raw: Vec<i64>, less_is_better: bool) -> Self {
        let most = raw.iter().copied().max().unwrap_or_default().max(0);
        let normal = raw
            .iter()
            .map(|score| {
                let share = if most == 0 {
                    *score
                } else {
                    MOST_SCORE * score / most
                };
                match (less_is_better, most) {
                    (true, 0) => MOST_SCORE,
                    (true, _) => MOST_SCORE - share,
                    (false, _) => share,
                }
            })
            .collect();
        Self { raw, normal }
    }
}

/// A score for each node.
pub(crate) fn each(nodes: &[&NodeState], score: impl Fn(&NodeState) -> i64) -> Vec<i64> {
    nodes.iter().map(|node| score(node)).collect()
}
