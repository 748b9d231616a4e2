//! The sentences of the scheduler's events.

use events::MOST_MESSAGE_BYTES;
use placement::{Misfit, NodeMisfit};

/// The text of `FilteringFailed`: how many nodes do not meet the request, and the reasons in HAMi's words, the most
/// frequent first. HAMi writes one event for each reason; here one event has them all, so that a pending pod has one
/// event.
pub fn no_node(misfits: &[NodeMisfit]) -> String {
    let mut by_reason: Vec<(&'static str, Vec<&str>)> = Vec::new();
    for node in misfits {
        for code in codes(&node.misfit) {
            match by_reason.iter_mut().find(|(known, _)| *known == code) {
                Some((_, nodes)) => nodes.push(&node.node),
                None => by_reason.push((code, vec![&node.node])),
            }
        }
    }
    by_reason.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then_with(|| a.0.cmp(b.0)));
    let mut text = format!("no available node, {} nodes do not meet", misfits.len());
    // Each reason gets a part of the room that is left, so that the last ones are visible, too.
    for (position, (code, nodes)) in by_reason.iter().enumerate() {
        let separator = if position == 0 { ": " } else { ", " };
        text.push_str(&format!("{separator}{} nodes {code}(", nodes.len()));
        let reasons_left = by_reason.len() - position;
        let room = MOST_MESSAGE_BYTES.saturating_sub(text.len()) / reasons_left;
        text.push_str(&names(nodes, room.saturating_sub(40)));
        text.push(')');
    }
    text
}

/// The reasons on one node, each once.
pub(crate) fn codes(misfit: &Misfit) -> Vec<&'static str> {
    match misfit {
        Misfit::UnknownNode => vec!["node unregistered"],
        Misfit::NoVendor | Misfit::TooFewDevices { .. } => vec!["NodeInsufficientDevice"],
        Misfit::Devices { reasons, .. } => {
            let mut codes: Vec<&'static str> =
                reasons.iter().map(|(_, reason)| reason.code()).collect();
            codes.sort_unstable();
            codes.dedup();
            codes
        }
    }
}

/// As many names as fit, and the number of the others.
fn names(nodes: &[&str], room: usize) -> String {
    let mut text = String::new();
    for (position, node) in nodes.iter().enumerate() {
        if position > 0 && text.len() + node.len() > room {
            return format!("{text} and {} more", nodes.len() - position);
        }
        if position > 0 {
            text.push(',');
        }
        text.push_str(node);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_reason_is_first_and_the_rarest_visible() {
        let unknown = |name: String| NodeMisfit {
            node: name.as_str().into(),
            misfit: Misfit::UnknownNode,
        };
        let few = |name: String| NodeMisfit {
            node: name.as_str().into(),
            misfit: Misfit::TooFewDevices {
                container: 0,
                vendor: placement::Vendor::new("NVIDIA"),
                present: 1,
                asked: 2,
            },
        };
        let one = no_node(&[unknown("n1".into())]);
        assert_eq!(
            one,
            "no available node, 1 nodes do not meet: 1 nodes node unregistered(n1)"
        );

        let mut misfits: Vec<NodeMisfit> = (0..4999)
            .map(|number| few(format!("a-node-with-quite-a-long-name-{number:04}")))
            .collect();
        misfits.push(unknown("rare".into()));
        let text = no_node(&misfits);
        assert!(text.len() <= MOST_MESSAGE_BYTES, "{}", text.len());
        assert!(
            text.starts_with(
                "no available node, 5000 nodes do not meet: 4999 nodes NodeInsufficientDevice(a-node"
            ),
            "{text}"
        );
        assert!(
            text.contains(" more), 1 nodes node unregistered(rare)"),
            "{text}"
        );
    }
}
