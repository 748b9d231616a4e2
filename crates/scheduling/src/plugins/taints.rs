//! `TaintToleration`: taints keep pods away, or lower a node's score.

use super::{Context, Scores, each};
use crate::model::{Effect, Taint, Toleration};
use crate::plugin::Plugin;
use crate::snapshot::NodeState;
use crate::status::{Code, Reason, Rejection};

pub(crate) fn filter(context: &Context<'_>, node: &NodeState) -> Result<(), Rejection> {
    match context.pod.untolerated(&node.node.taints) {
        None => Ok(()),
        Some(taint) => Err(Rejection::new(
            Plugin::TaintToleration,
            Code::Unresolvable,
            Reason::Taint {
                key: taint.key,
                value: taint.value,
            },
        )),
    }
}

/// Nodes with fewer `PreferNoSchedule` taints that the pod does not tolerate score higher.
pub(crate) fn score(context: &Context<'_>, nodes: &[&NodeState]) -> Scores {
    let preferring: Vec<&Toleration> = context
        .pod
        .tolerations
        .iter()
        .filter(|toleration| matches!(toleration.effect, None | Some(Effect::PreferNoSchedule)))
        .collect();
    let counts = |taint: &&Taint| {
        taint.effect == Effect::PreferNoSchedule
            && !preferring
                .iter()
                .any(|toleration| toleration.tolerates(taint))
    };
    let raw = each(nodes, |node| {
        i64::try_from(node.node.taints.iter().filter(counts).count()).unwrap_or(i64::MAX)
    });
    Scores::scaled(raw, true)
}
