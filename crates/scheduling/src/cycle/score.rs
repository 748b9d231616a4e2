//! The second half of a cycle: scores the nodes that fit.

use std::sync::Arc;

use super::Cycle;
use super::filter::State;
use crate::plugin::{Plugin, Point};
use crate::plugins::{
    Context, Scores, balanced, fit, gpu, image_locality, inter_pod, node_affinity, spread, taints,
};
use crate::record::{Said, Scored};
use crate::snapshot::NodeState;

/// A plugin's scores of the nodes; `None` if the plugin does not apply to the pod.
fn ask(
    context: &Context<'_>,
    state: &State,
    plugin: Plugin,
    nodes: &[&NodeState],
) -> Option<Scores> {
    match plugin {
        Plugin::TaintToleration => Some(taints::score(context, nodes)),
        Plugin::NodeAffinity => node_affinity::score(context, nodes),
        Plugin::NodeResourcesFit => Some(fit::score(context, nodes)),
        Plugin::NodeResourcesBalancedAllocation => balanced::score(context, nodes),
        Plugin::ImageLocality => Some(image_locality::score(context, nodes)),
        Plugin::PodTopologySpread => spread::score(context, nodes),
        Plugin::InterPodAffinity => inter_pod::score(context, nodes),
        Plugin::GpuScore => gpu::score(context, state.devices.as_ref(), nodes),
        _ => None,
    }
}

impl Cycle<'_> {
    /// The sum of all weighted scores of each node.
    pub(super) fn score(&mut self, nodes: &[&NodeState]) -> Vec<i64> {
        let context = self.context();
        let mut totals = vec![0_i64; nodes.len()];
        let mut columns: Vec<(Plugin, i64, Scores)> = Vec::new();
        for (plugin, weight) in self.framework.weights() {
            let Some(scores) = ask(&context, &self.state, *plugin, nodes) else {
                continue;
            };
            for (total, score) in totals.iter_mut().zip(&scores.normal) {
                *total += score * weight;
            }
            if self.record.is_some() {
                columns.push((*plugin, *weight, scores));
            }
        }
        if let Some((record, _)) = &mut self.record {
            for plugin in self.framework.plugins(Point::PreScore) {
                let scored = columns.iter().any(|(other, _, _)| other == plugin);
                record
                    .pre_score
                    .push((*plugin, if scored { Said::Success } else { Said::Skipped }));
            }
            let mut scored = Scored {
                plugins: columns
                    .iter()
                    .map(|(plugin, weight, _)| (*plugin, *weight))
                    .collect(),
                nodes: nodes
                    .iter()
                    .map(|node| Arc::clone(&node.node.name))
                    .collect(),
                raw: Vec::with_capacity(nodes.len() * columns.len()),
                weighted: Vec::with_capacity(nodes.len() * columns.len()),
            };
            for at in 0..nodes.len() {
                for (_, weight, scores) in &columns {
                    let of = |list: &[i64]| list.get(at).copied().unwrap_or_default();
                    scored.raw.push(of(&scores.raw));
                    scored.weighted.push(of(&scores.normal) * weight);
                }
            }
            record.scored = Some(scored);
        }
        totals
    }
}
