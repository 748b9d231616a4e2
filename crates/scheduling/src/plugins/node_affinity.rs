//! `NodeAffinity`: the pod's node selector and node affinity, and the affinity that the profile adds.

use super::{Before, Context, Scores, each};
use crate::model::Preferred;
use crate::plugin::Plugin;
use crate::snapshot::NodeState;
use crate::status::Rejection;

pub(crate) fn pre_filter(context: &Context<'_>) -> Before {
    let pod = context.pod;
    let Some(required) = &pod.required_nodes else {
        return if context.settings.added_nodes.is_none() && pod.node_selector.is_none() {
            Before::Skip
        } else {
            Before::Run
        };
    };
    match required.only.as_deref() {
        None => Before::Run,
        Some([]) => Before::Refuse(Rejection::unresolvable(
            Plugin::NodeAffinity,
            "pod affinity terms conflict",
        )),
        Some(names) => Before::Only(names.to_vec()),
    }
}

pub(crate) fn filter(context: &Context<'_>, node: &NodeState) -> Result<(), Rejection> {
    let (names, node) = (context.names(), &node.node);
    if let Some(added) = &context.settings.added_nodes
        && !added.matches(names, node.symbol, &node.labels)
    {
        return Err(Rejection::unresolvable(
            Plugin::NodeAffinity,
            "node(s) didn't match scheduler-enforced node affinity",
        ));
    }
    if !context.pod.allows_node(names, node.symbol, &node.labels) {
        return Err(Rejection::unresolvable(
            Plugin::NodeAffinity,
            "node(s) didn't match Pod's node affinity/selector",
        ));
    }
    Ok(())
}

/// The sum of the weights of the preferred terms that the node matches; `None` if neither pod nor profile has any.
pub(crate) fn score(context: &Context<'_>, nodes: &[&NodeState]) -> Option<Scores> {
    let own = context.pod.preferred_nodes.as_deref();
    let added = context.settings.added_preferred.as_deref();
    if own.is_none() && added.is_none() {
        return None;
    }
    let names = context.names();
    let worth = |node: &NodeState, terms: Option<&[Preferred]>| -> i64 {
        terms
            .into_iter()
            .flatten()
            .filter(|preferred| {
                preferred
                    .term
                    .matches(names, node.node.symbol, &node.node.labels)
            })
            .map(|preferred| preferred.weight)
            .sum()
    };
    let raw = each(nodes, |node| worth(node, own) + worth(node, added));
    Some(Scores::scaled(raw, false))
}
