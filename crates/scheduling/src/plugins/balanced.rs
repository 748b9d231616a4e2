//! `NodeResourcesBalancedAllocation`: nodes with evenly used resources score higher.

use super::{Context, Scores, each, fit};
use crate::profile::Counted;
use crate::snapshot::NodeState;

/// 100 minus the standard deviation of the used fractions, in percent; `None` if the pod asks for none of these
/// resources.
pub(crate) fn score(context: &Context<'_>, nodes: &[&NodeState]) -> Option<Scores> {
    let wanted: Vec<(Counted, i64)> = context
        .settings
        .balanced
        .iter()
        .map(|resource| (*resource, fit::asked(&context.pod.requests, *resource)))
        .collect();
    if wanted.iter().all(|(_, amount)| *amount == 0) {
        return None;
    }
    Some(Scores::plain(each(nodes, |node| {
        let uses = wanted.iter().filter_map(|(resource, amount)| {
            let (offered, taken) = fit::use_of(node, *resource, *amount, false)?;
            Some(fraction(taken, offered).min(1.0))
        });
        evenness(&uses.collect::<Vec<f64>>())
    })))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "kube-scheduler divides the same floats, and scores have to agree with it"
)]
fn fraction(taken: i64, offered: i64) -> f64 {
    taken as f64 / offered as f64
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a few resources, and a result from 0 to 100"
)]
fn evenness(fractions: &[f64]) -> i64 {
    let deviation = match fractions {
        [one, other] => ((one - other) / 2.0).abs(),
        [] | [_] => 0.0,
        more => {
            let count = more.len() as f64;
            let mean = more.iter().sum::<f64>() / count;
            let mut sum = 0.0;
            for fraction in more {
                sum += (fraction - mean) * (fraction - mean);
            }
            (sum / count).sqrt()
        }
    };
    ((1.0 - deviation) * 100.0) as i64
}
