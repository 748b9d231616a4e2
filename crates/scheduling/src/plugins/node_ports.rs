//! `NodePorts`: two pods cannot have the same port of a node.

use super::{Before, Context};
use crate::plugin::Plugin;
use crate::snapshot::NodeState;
use crate::status::Rejection;

pub(crate) fn pre_filter(context: &Context<'_>) -> Before {
    if context.pod.ports.is_empty() {
        Before::Skip
    } else {
        Before::Run
    }
}

pub(crate) fn filter(context: &Context<'_>, node: &NodeState) -> Result<(), Rejection> {
    let wanted = &context.pod.ports;
    let taken = |port| node.ports.iter().any(|other| other.conflicts(port));
    if wanted.iter().any(taken) {
        return Err(Rejection::unschedulable(
            Plugin::NodePorts,
            "node(s) didn't have free ports for the requested pod ports",
        ));
    }
    Ok(())
}
