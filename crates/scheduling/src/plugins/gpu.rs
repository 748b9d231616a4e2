//! `GpuFit` and `GpuScore`: the placement engine's answers. Never computes a fit itself.

use std::sync::Arc;

use placement::{Among, NodePolicy, Placement, Request};

use super::{Before, Context, MOST_SCORE, Scores};
use crate::plugin::Plugin;
use crate::snapshot::NodeState;
use crate::status::{Code, Reason, Rejection};

/// What is asked of the engine.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    request: Arc<Result<Request, String>>,
    /// Uids of pods that hold nothing in a trial.
    leaving: Vec<Arc<str>>,
}

pub(crate) fn pre_filter(context: &Context<'_>) -> (Before, Option<Prepared>) {
    let Some(devices) = &context.pod.devices else {
        return (Before::Skip, None);
    };
    if let Err(why) = &**devices {
        let reason = Reason::Text(why.as_str().into());
        let rejection = Rejection::new(Plugin::GpuFit, Code::Unresolvable, reason);
        return (Before::Refuse(rejection), None);
    }
    let prepared = Prepared {
        request: Arc::clone(devices),
        leaving: Vec::new(),
    };
    (Before::Run, Some(prepared))
}

impl Prepared {
    /// Takes into account that a pod comes (1) or leaves (-1). A pod that has never held anything changes nothing.
    pub(crate) fn change(&mut self, uid: &Arc<str>, by: i64) {
        if by < 0 {
            self.leaving.push(Arc::clone(uid));
        } else {
            self.leaving.retain(|other| other != uid);
        }
    }

    pub(crate) fn filter(&self, context: &Context<'_>, node: &NodeState) -> Result<(), Rejection> {
        self.place(context, node).map(|_| ())
    }

    /// The cards that the pod gets on the node.
    pub(crate) fn place(
        &self,
        context: &Context<'_>,
        node: &NodeState,
    ) -> Result<Option<Placement>, Rejection> {
        let Ok(request) = &*self.request else {
            return Ok(None);
        };
        let leaving: Vec<&str> = self.leaving.iter().map(|uid| &**uid).collect();
        let cluster = context.snapshot.devices.cluster();
        match cluster.place_without(request, &node.node.name, &leaving) {
            Ok(placement) => Ok(Some(placement)),
            Err(misfit) => Err(Rejection::new(
                Plugin::GpuFit,
                if misfit.is_cured_by_leaving() {
                    Code::Unschedulable
                } else {
                    Code::Unresolvable
                },
                Reason::Text(misfit.summary().into()),
            )),
        }
    }
}

/// How full the node's devices are with the pod on it, by the request's node policy: the fuller the better for
/// `binpack`, the emptier for `spread`.
pub(crate) fn score(context: &Context<'_>, nodes: &[&NodeState]) -> Option<Scores> {
    let devices = context.pod.devices.as_deref()?;
    let request = devices.as_ref().ok()?;
    let names: Vec<&str> = nodes.iter().map(|node| &*node.node.name).collect();
    let cluster = context.snapshot.devices.cluster();
    let ranked = cluster.rank(request, Among::Names(&names));
    let raw = names
        .iter()
        .map(|name| {
            let at = ranked.binary_search_by(|(other, _)| (**other).cmp(name));
            match at.ok().and_then(|at| ranked.get(at)) {
                Some((_, Ok(fullness))) => worth(*fullness, request.node_policy),
                _ => 0,
            }
        })
        .collect();
    Some(Scores::plain(raw))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "it is between 0 and 100, and the float to integer cast saturates"
)]
fn worth(fullness: f64, policy: NodePolicy) -> i64 {
    // The engine's scores go from 0 to 30.
    let percent = ((fullness / 30.0).clamp(0.0, 1.0) * 100.0).round() as i64;
    match policy {
        NodePolicy::Binpack => percent,
        NodePolicy::Spread => MOST_SCORE - percent,
    }
}
