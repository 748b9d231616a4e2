//! The scheduler's answers in hcs.io's words. Only the words differ.

use std::collections::HashMap;
use std::sync::Arc;

use kube_api::hcs::error;
use placement::exchange::spread_out;
use placement::{Misfit, NodeMisfit, Reason, Request};

/// The documented error for a misfit; `None` if hcs.io defines no error for it.
fn word(misfit: &Misfit) -> Option<&'static str> {
    match misfit {
        Misfit::UnknownNode => Some(error::AGENT_NOT_CONNECTED),
        Misfit::NoVendor | Misfit::TooFewDevices { present: 0, .. } => {
            Some(error::VENDOR_NOT_SUPPORTED)
        }
        Misfit::TooFewDevices { .. } => None,
        Misfit::Devices { reasons, .. } => {
            let is_sick =
                |reason: Reason| matches!(reason, Reason::Unhealthy | Reason::ModeConflict);
            let is_short = |reason: Reason| {
                matches!(reason, Reason::Memory { .. } | Reason::NoInstance { .. })
            };
            if reasons.iter().all(|(_, reason)| is_sick(reason)) {
                Some(error::DEVICE_UNHEALTHY)
            } else if reasons.iter().any(|(_, reason)| is_short(reason)) {
                Some(error::INSUFFICIENT_VRAM)
            } else {
                None
            }
        }
    }
}

/// Why a node does not fit: hcs.io's word, if the request uses hcs.io's names and there is one, and HAMi's.
pub(crate) fn text(misfit: &Misfit, request: &Request) -> String {
    match word(misfit).filter(|_| request.any.is_some()) {
        Some(word) => format!("{word}: {}", misfit.summary()),
        None => misfit.summary(),
    }
}

/// The text of an event about a pod that fits nowhere: the most frequent word comes first.
pub(crate) fn event(misfits: &[NodeMisfit], request: &Request, text: String) -> String {
    if request.any.is_none() {
        return text;
    }
    let mut counts: Vec<(&'static str, usize)> = Vec::new();
    for word in misfits.iter().filter_map(|one| word(&one.misfit)) {
        match counts.iter_mut().find(|(known, _)| *known == word) {
            Some((_, count)) => *count += 1,
            None => counts.push((word, 1)),
        }
    }
    match counts.iter().max_by_key(|(_, count)| *count) {
        Some((word, _)) => format!("{word}: {text}"),
        None => text,
    }
}

/// Converts scores of 0 to 100 to kube-scheduler's 0 to 10. A node without a score does not fit.
pub(crate) fn priorities(ranked: &[(Arc<str>, Result<f64, Misfit>)]) -> HashMap<Arc<str>, i64> {
    let fitting: Vec<(&Arc<str>, i64)> = ranked
        .iter()
        .filter_map(|(node, result)| Some((node, rounded(*result.as_ref().ok()?))))
        .collect();
    let raw: Vec<i64> = fitting.iter().map(|(_, score)| *score).collect();
    fitting
        .iter()
        .zip(spread_out(&raw))
        .map(|((node, _), score)| (Arc::clone(node), score / 10))
        .collect()
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "it is between 0 and 100, and the cast saturates"
)]
fn rounded(score: f64) -> i64 {
    score.round() as i64
}
