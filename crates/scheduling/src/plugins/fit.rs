//! `NodeResourcesFit`: whether resources suffice, and how full the node gets.

use super::{Context, MOST_SCORE, Scores, each};
use crate::model::{Resources, is_extended};
use crate::plugin::Plugin;
use crate::profile::{Counted, Settings, Strategy};
use crate::snapshot::NodeState;
use crate::status::{Code, Reason, Reasons, Rejection};

const TOO_MANY_PODS: Reason = Reason::Fixed("Too many pods");

pub(crate) fn filter(context: &Context<'_>, node: &NodeState) -> Result<(), Rejection> {
    let asked = &context.pod.requests;
    let offered = &node.node.allocatable;
    let taken = &node.requested;
    let mut reasons: Vec<Reason> = Vec::new();
    let mut hopeless = false;
    let pods = i64::try_from(node.pods.len()).unwrap_or(i64::MAX);
    if pods >= node.node.allowed_pods {
        reasons.push(TOO_MANY_PODS);
    }
    if !asked.is_nothing() {
        let mut look = |asked: i64, offered: i64, taken: i64, reason: Reason| {
            if asked > 0 && asked > offered.saturating_sub(taken) {
                reasons.push(reason);
                hopeless |= asked > offered;
            }
        };
        look(
            asked.cpu_milli,
            offered.cpu_milli,
            taken.cpu_milli,
            Reason::Fixed("Insufficient cpu"),
        );
        look(
            asked.memory_bytes,
            offered.memory_bytes,
            taken.memory_bytes,
            Reason::Fixed("Insufficient memory"),
        );
        look(
            asked.ephemeral_bytes,
            offered.ephemeral_bytes,
            taken.ephemeral_bytes,
            Reason::Fixed("Insufficient ephemeral-storage"),
        );
        for (name, amount) in &asked.scalars {
            if *amount == 0 || is_ignored(context, *name) {
                continue;
            }
            look(
                *amount,
                offered.scalar(*name).unwrap_or_default(),
                taken.scalar(*name).unwrap_or_default(),
                Reason::Insufficient(*name),
            );
        }
    }
    if reasons.is_empty() {
        return Ok(());
    }
    Err(Rejection {
        plugin: Some(Plugin::NodeResourcesFit),
        code: if hopeless {
            Code::Unresolvable
        } else {
            Code::Unschedulable
        },
        reasons: match reasons.len() {
            1 => Reasons::One(reasons.pop().unwrap_or(TOO_MANY_PODS)),
            _ => Reasons::Several(reasons.into()),
        },
    })
}

fn is_ignored(context: &Context<'_>, name: crate::names::Symbol) -> bool {
    let Settings {
        ignored,
        ignored_groups,
        ..
    } = context.settings;
    // With GpuFit, the placement engine judges requests for shared devices.
    if context.settings.engine_fits && context.snapshot.managed.contains(&name) {
        return true;
    }
    if ignored.is_empty() && ignored_groups.is_empty() {
        return false;
    }
    let text = context.names().text(name);
    let group = text.split('/').next().unwrap_or_default();
    is_extended(text)
        && (ignored.contains(&name) || ignored_groups.iter().any(|other| other == group))
}

/// The amount of a resource that a node offers, and the amount requested with the pod on it; `None` if the resource
/// does not count.
pub(crate) fn use_of(
    node: &NodeState,
    resource: Counted,
    pod: i64,
    non_zero: bool,
) -> Option<(i64, i64)> {
    let offered = &node.node.allocatable;
    let taken = &node.requested;
    let (offered, taken) = match resource {
        Counted::Cpu if non_zero => (offered.cpu_milli, node.non_zero.0),
        Counted::Cpu => (offered.cpu_milli, taken.cpu_milli),
        Counted::Memory if non_zero => (offered.memory_bytes, node.non_zero.1),
        Counted::Memory => (offered.memory_bytes, taken.memory_bytes),
        Counted::Ephemeral => (offered.ephemeral_bytes, taken.ephemeral_bytes),
        Counted::Scalar(name) => {
            if pod == 0 {
                return None;
            }
            (
                offered.scalar(name)?,
                taken.scalar(name).unwrap_or_default(),
            )
        }
        Counted::Unknown => return None,
    };
    (offered != 0).then(|| (offered, taken.saturating_add(pod)))
}

/// The amount of a resource that a pod asks for.
pub(crate) fn asked(requests: &Resources, resource: Counted) -> i64 {
    match resource {
        Counted::Cpu => requests.cpu_milli,
        Counted::Memory => requests.memory_bytes,
        Counted::Ephemeral => requests.ephemeral_bytes,
        Counted::Scalar(name) => requests.scalar(name).unwrap_or_default(),
        Counted::Unknown => 0,
    }
}

/// Scores by the profile's strategy. Containers that ask for no CPU or no memory count with kube-scheduler's default
/// amounts.
pub(crate) fn score(context: &Context<'_>, nodes: &[&NodeState]) -> Scores {
    let pod = context.pod;
    let settings = context.settings;
    let wanted: Vec<(Counted, i64, i64)> = settings
        .fit
        .iter()
        .map(|(resource, weight)| {
            let amount = match resource {
                Counted::Cpu => pod.non_zero.0,
                Counted::Memory => pod.non_zero.1,
                other => asked(&pod.requests, *other),
            };
            (*resource, *weight, amount)
        })
        .collect();
    Scores::plain(each(nodes, |node| {
        let (mut sum, mut weights) = (0_i64, 0_i64);
        for (resource, weight, amount) in &wanted {
            let Some((offered, taken)) = use_of(node, *resource, *amount, true) else {
                continue;
            };
            let score = match &settings.strategy {
                Strategy::Least => least(taken, offered),
                Strategy::Most => most(taken, offered),
                Strategy::Ratio(shape) => {
                    let score = ratio(taken, offered, shape);
                    if score <= 0 {
                        continue;
                    }
                    score
                }
            };
            sum += score * weight;
            weights += weight;
        }
        match (weights, &settings.strategy) {
            (0, _) => 0,
            // Only this strategy rounds the mean.
            (_, Strategy::Ratio(_)) => rounded(sum, weights),
            _ => sum / weights,
        }
    }))
}

/// `part * 100 / whole`, even if the product needs more than 64 bits.
fn percent(part: i64, whole: i64) -> i64 {
    let wide = i128::from(part) * i128::from(MOST_SCORE) / i128::from(whole.max(1));
    i64::try_from(wide).unwrap_or(MOST_SCORE)
}

fn least(taken: i64, offered: i64) -> i64 {
    if taken > offered {
        0
    } else {
        percent(offered - taken, offered)
    }
}

fn most(taken: i64, offered: i64) -> i64 {
    percent(taken.min(offered), offered)
}

/// The value of the broken line through the shape's points, at this utilisation.
fn ratio(taken: i64, offered: i64, shape: &[(i64, i64)]) -> i64 {
    let utilisation = if taken > offered {
        MOST_SCORE
    } else {
        percent(taken, offered)
    };
    let mut before: Option<(i64, i64)> = None;
    for (at, score) in shape {
        if utilisation <= *at {
            return match before {
                None => *score,
                Some((from, low)) => {
                    low + (score - low) * (utilisation - from) / (at - from).max(1)
                }
            };
        }
        before = Some((*at, *score));
    }
    before.map_or(0, |(_, score)| score)
}

/// `sum / weights`, with halves rounded away from 0, as Go's `math.Round` does. Both are positive.
fn rounded(sum: i64, weights: i64) -> i64 {
    (2 * sum + weights) / (2 * weights)
}
