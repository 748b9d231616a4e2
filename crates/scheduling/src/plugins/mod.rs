//! The plugins: each file is one, and each function takes values and returns an answer. The cycle decides the order
//! in which they are asked.

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

/// The subject of every question to a plugin.
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

/// A plugin's answer about a pod before any node is examined.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Before {
    /// The plugin's filter must be asked.
    Run,
    /// The plugin's filter does not apply.
    Skip,
    /// Only these nodes are candidates.
    Only(Vec<Symbol>),
    /// The pod fits nowhere.
    Refuse(Rejection),
}

/// A plugin's scores of the nodes that fit, in the order of the nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scores {
    /// As the plugin computes them.
    pub(crate) raw: Vec<i64>,
    /// Normalised, from 0 to 100.
    pub(crate) normal: Vec<i64>,
}

impl Scores {
    /// Scores that already range from 0 to 100.
    pub(crate) fn plain(raw: Vec<i64>) -> Self {
        Self {
            normal: raw.clone(),
            raw,
        }
    }

    /// Scores scaled so that the largest becomes 100, or 0 if less is better. The rule is kube-scheduler's
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
