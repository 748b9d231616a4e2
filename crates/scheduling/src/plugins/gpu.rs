//! `GpuFit` and `GpuScore`: the placement engine's answers. Computes no fit itself.

use std::sync::Arc;

use placement::{Among, Cluster, Misfit, NodePolicy, Placement, Request};

use super::{Before, Context, MOST_SCORE, Scores, each};
use crate::model::{DevicesError, Pod};
use crate::plugin::Plugin;
use crate::snapshot::NodeState;
use crate::status::{Code, Reason, Rejection};

/// The engine's answer about one node: how full its devices are with the pod on them, or why they cannot take it.
type Answer = Result<f64, Rejection>;

/// The question to the engine, and its answer about every node in its present state.
#[derive(Debug, Clone)]
pub(crate) struct EngineAnswers {
    request: Arc<Result<Request, DevicesError>>,
    /// By the node's index; none for a node without shared devices.
    answers: Arc<Vec<Option<Answer>>>,
    /// Whether each node needs a question of its own. The engine limits how many choices it tries for one question,
    /// and several containers that ask for devices may need that whole number on a few nodes.
    each: bool,
    /// Uids of pods that are treated as holding nothing in a trial.
    leaving: Vec<Arc<str>>,
    /// Pods that are treated as holding devices of the node in a trial, because they are nominated for it.
    coming: Vec<Arc<Pod>>,
}

pub(crate) fn pre_filter(context: &Context<'_>) -> (Before, Option<EngineAnswers>) {
    let Some(devices) = &context.pod.devices else {
        return (Before::Skip, None);
    };
    let request = match &**devices {
        Ok(request) => request,
        Err(why) => {
            let reason = Reason::Text(why.to_string().into());
            let rejection = Rejection::new(Plugin::GpuFit, Code::Unresolvable, reason);
            return (Before::Refuse(rejection), None);
        }
    };
    let containers = request.containers.iter();
    let asks: usize = containers.map(|container| container.asks.len()).sum();
    let prepared = EngineAnswers {
        request: Arc::clone(devices),
        answers: Arc::new(ask_all(context, request)),
        each: asks > 1,
        leaving: Vec::new(),
        coming: Vec::new(),
    };
    (Before::Run, Some(prepared))
}

/// Asks about all nodes at once, which costs far less than one question for each.
fn ask_all(context: &Context<'_>, request: &Request) -> Vec<Option<Answer>> {
    let snapshot = context.snapshot;
    let mut answers = Vec::new();
    for (name, answer) in snapshot.devices.cluster().rank(request, Among::All) {
        let Some(node) = snapshot.node_named(&name) else {
            continue;
        };
        let at = node.index.at();
        if answers.len() <= at {
            answers.resize(at + 1, None);
        }
        if let Some(place) = answers.get_mut(at) {
            *place = Some(answer.map_err(|misfit| refusal(&misfit)));
        }
    }
    answers
}

fn refusal(misfit: &Misfit) -> Rejection {
    Rejection::new(
        Plugin::GpuFit,
        if misfit.is_cured_by_leaving() {
            Code::Unschedulable
        } else {
            Code::Unresolvable
        },
        Reason::Text(misfit.told().into()),
    )
}

impl EngineAnswers {
    /// Adds a pod (1) or removes it (-1) for a trial.
    pub(crate) fn change(&mut self, pod: &Arc<Pod>, by: i64) {
        let before = self.leaving.len();
        if by < 0 {
            self.leaving.push(Arc::clone(&pod.uid));
        } else {
            self.leaving.retain(|other| *other != pod.uid);
            if self.leaving.len() == before && pod.devices.is_some() {
                self.coming.push(Arc::clone(pod));
            }
        }
    }

    pub(crate) fn filter(&self, context: &Context<'_>, node: &NodeState) -> Result<(), Rejection> {
        if self.each || !self.leaving.is_empty() || !self.coming.is_empty() {
            return self.place(context, node).map(|_| ());
        }
        match self.answers.get(node.index.at()) {
            Some(Some(Ok(_))) => Ok(()),
            Some(Some(Err(rejection))) => Err(rejection.clone()),
            Some(None) | None => Err(refusal(&Misfit::UnknownNode)),
        }
    }

    /// The devices that the pod gets on the node.
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
        let placed = match self.with_coming(cluster, node, &leaving) {
            Some(trial) => trial.place_on(request, &node.node.name),
            None => cluster.place_without(request, &node.node.name, &leaving),
        };
        match placed {
            Ok(placement) => Ok(Some(placement)),
            Err(misfit) => Err(refusal(&misfit)),
        }
    }

    /// The node alone, with the devices that the coming pods would get on it; `None` if no such pod comes. A coming pod
    /// that does not fit there holds nothing.
    fn with_coming(
        &self,
        cluster: &Cluster,
        node: &NodeState,
        leaving: &[&str],
    ) -> Option<Cluster> {
        let devices = node
            .node
            .devices
            .as_ref()
            .filter(|_| !self.coming.is_empty())?;
        let mut trial = Cluster::new();
        let mut only = placement::Node::clone(devices);
        node.node.name.as_ref().clone_into(&mut only.name);
        trial.set_node(only).ok()?;
        for held in cluster.reservations_on(&node.node.name) {
            if !leaving.contains(&&*held.pod.uid) {
                trial.reserve(held.pod.clone(), held.placement.clone());
            }
        }
        for pod in &self.coming {
            let Some(Ok(request)) = pod.devices.as_deref() else {
                continue;
            };
            if let Ok(placement) = trial.place_on(request, &node.node.name) {
                trial.reserve(crate::devices::holder(pod), placement);
            }
        }
        Some(trial)
    }
}

/// How full the node's devices are with the pod on it, scored by the request's node policy: `binpack` prefers full
/// nodes, `spread` empty ones. `known` holds `GpuFit`'s results.
pub(crate) fn score(
    context: &Context<'_>,
    known: Option<&EngineAnswers>,
    nodes: &[&NodeState],
) -> Option<Scores> {
    let devices = context.pod.devices.as_deref()?;
    let request = devices.as_ref().ok()?;
    let answers = match known {
        Some(known) => Arc::clone(&known.answers),
        None => Arc::new(ask_all(context, request)),
    };
    Some(Scores::plain(each(nodes, |node| {
        match answers.get(node.index.at()) {
            Some(Some(Ok(fullness))) => worth(*fullness, request.node_policy),
            _ => 0,
        }
    })))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "it is between 0 and 100, and the float to integer cast saturates"
)]
fn worth(fullness: f64, policy: NodePolicy) -> i64 {
    // The engine's scores range from 0 to 30.
    let percent = ((fullness / 30.0).clamp(0.0, 1.0) * 100.0).round() as i64;
    match policy {
        NodePolicy::Binpack => percent,
        NodePolicy::Spread => MOST_SCORE - percent,
    }
}
