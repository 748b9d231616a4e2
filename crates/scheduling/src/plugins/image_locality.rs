//! `ImageLocality`: nodes that have the pod's images score higher. An image counts more the larger it is and the more
//! nodes have it.

use super::{Context, MOST_SCORE, Scores, each};
use crate::snapshot::NodeState;

const MIB: i64 = 1024 * 1024;
/// Images whose sum is below this size do not count.
const LEAST: i64 = 23 * MIB;
/// The most that the image of one container counts.
const MOST_EACH: i64 = 1000 * MIB;

pub(crate) fn score(context: &Context<'_>, nodes: &[&NodeState]) -> Scores {
    let images = &context.pod.images;
    let all = context.snapshot.node_count();
    let most = MOST_EACH * i64::try_from(images.len()).unwrap_or(1).max(1);
    Scores::plain(each(nodes, |node| {
        if node.node.images.is_empty() {
            return 0;
        }
        let sum: i64 = images
            .iter()
            .filter_map(|image| {
                let at = node
                    .node
                    .images
                    .binary_search_by_key(image, |(name, _)| *name)
                    .ok()?;
                let (_, bytes) = node.node.images.get(at)?;
                Some(spread(
                    *bytes,
                    context.snapshot.nodes_with_image(*image),
                    all,
                ))
            })
            .sum();
        MOST_SCORE * (sum.clamp(LEAST, most) - LEAST) / (most - LEAST)
    }))
}

/// The size, multiplied by the fraction of the nodes that have the image.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "kube-scheduler computes with the same floats, and scores have to agree with it"
)]
fn spread(bytes: i64, having: u32, all: usize) -> i64 {
    (bytes as f64 * (f64::from(having) / all as f64)) as i64
}
