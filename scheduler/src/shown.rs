//! Turns the explanation of a pod into the words of a web page.

use pages::{Reason, Way, Why};

use crate::explain::{Advised, Explained, OfNode, Verdict};

/// The explanation as a page shows it; `None` if GPUs are not the reason.
pub(crate) fn why(explained: Explained) -> Option<Why> {
    let summary = match explained.verdict {
        Verdict::NotOurs | Verdict::Placed | Verdict::Reserved | Verdict::Finished => return None,
        // The page also shows kube-scheduler's own reasons, which keep such a pod pending.
        Verdict::Fits => {
            let node = explained
                .placed
                .map(|placed| placed.node)
                .unwrap_or_default();
            return Some(Why {
                summary: format!("As far as GPUs go, it fits on {node}."),
                ..Why::default()
            });
        }
        Verdict::DoesNotFit | Verdict::Unreadable | Verdict::Missed => {
            format!("The pod {}.", explained.summary)
        }
    };
    Some(Why {
        summary,
        ways: explained.advice.into_iter().map(way).collect(),
        nodes: explained.nodes.into_iter().map(reason).collect(),
        notes: explained.notes,
    })
}

fn way(advised: Advised) -> Way {
    let edits = advised.changes.iter().flat_map(|change| &change.edits);
    Way {
        edits: edits.map(ToString::to_string).collect(),
        text: advised.text,
        node: advised.node,
    }
}

fn reason(node: OfNode) -> Reason {
    let devices = node.devices.iter().map(|device| {
        let model = if device.model.is_empty() {
            String::new()
        } else {
            format!(" ({})", device.model)
        };
        format!("{}{model}: {}", device.device, device.text)
    });
    let mut text = vec![node.reason];
    text.extend(node.notes);
    Reason {
        devices: devices.collect(),
        text: text.join("; "),
        node: node.node,
    }
}
