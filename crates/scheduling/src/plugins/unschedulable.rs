//! `NodeUnschedulable`: a cordoned node accepts only pods that tolerate it.

use super::Context;
use crate::model::{Effect, Taint};
use crate::names::Symbol;
use crate::plugin::Plugin;
use crate::snapshot::NodeState;
use crate::status::Rejection;

pub(crate) fn filter(context: &Context<'_>, node: &NodeState) -> Result<(), Rejection> {
    let taint = Taint {
        key: Symbol::UNSCHEDULABLE,
        value: Symbol::EMPTY,
        effect: Effect::NoSchedule,
    };
    if node.node.unschedulable && !context.pod.tolerates(&taint) {
        return Err(Rejection::unresolvable(
            Plugin::NodeUnschedulable,
            "node(s) were unschedulable",
        ));
    }
    Ok(())
}
