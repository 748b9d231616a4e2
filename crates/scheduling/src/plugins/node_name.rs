//! `NodeName`: a pod that names its node fits on no other node.

use super::Context;
use crate::names::Symbol;
use crate::plugin::Plugin;
use crate::snapshot::NodeState;
use crate::status::Rejection;

pub(crate) fn filter(context: &Context<'_>, node: &NodeState) -> Result<(), Rejection> {
    let wanted = context.pod.node;
    if wanted != Symbol::EMPTY && wanted != node.node.symbol {
        return Err(Rejection::unresolvable(
            Plugin::NodeName,
            "node(s) didn't match the requested node name",
        ));
    }
    Ok(())
}
