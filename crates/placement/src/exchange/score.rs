//! The score of a node for a request, 0 to 100, as the published scheduler counts it. Compares nodes that fit; does not
//! decide whether one does.

use super::{Profile, Table};

/// The part of a request that the score uses.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Wanted {
    /// Whether it asks for memory or 16-bit compute. For other requests every node scores the same.
    pub anything: bool,
    /// TFLOPS of 16-bit floats; 0 for none.
    pub fp16_tflops: f64,
}

/// The figures of a node that the score uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeFigures<'a> {
    /// The number of devices.
    pub devices: u32,
    /// The model of its devices, if the table knows it.
    pub profile: Option<&'a Profile>,
    /// Memory of all devices, in bytes.
    pub vram_bytes: u64,
    /// The used part of it, in bytes.
    pub vram_used_bytes: u64,
    /// TFLOPS of 16-bit floats of all devices.
    pub fp16_tflops: f64,
    /// Mean health of its devices, 0 to 100; 100 if it has none.
    pub health: f64,
    /// Whether at least one device reaches another over a link of its vendor.
    pub fast_link: bool,
}

/// The score of every node if the request asks for nothing that is scored.
const INDIFFERENT: i64 = 50;

/// The score of one node is the sum of: 25 for compute and 15 for memory, in devices of the base model (for an unknown
/// model, 40 for the share of memory that is free); 30 for health; 20 for the part of the node's compute that the
/// request uses (10 if the request asks for none or the node's is unknown, 0 if it asks for more than the node has); 10
/// for links.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "parts of a score are cut to whole points, as recorded"
)]
pub fn raw(table: &Table, wanted: Wanted, node: &NodeFigures<'_>) -> i64 {
    if !wanted.anything {
        return INDIFFERENT;
    }
    let size = match node.profile {
        Some(profile) => {
            let worth = table.normalise(profile, node.devices);
            (worth.tflops.min(1.0) * 25.0) as i64 + (worth.vram.min(1.0) * 15.0) as i64
        }
        None if node.vram_bytes == 0 => 0,
        None => {
            let free = node.vram_bytes.saturating_sub(node.vram_used_bytes);
            (free as f64 / node.vram_bytes as f64 * 40.0) as i64
        }
    };
    let health = (node.health.clamp(0.0, 100.0) * 0.3) as i64;
    let used = if wanted.fp16_tflops <= 0.0 || node.fp16_tflops <= 0.0 {
        10
    } else if node.fp16_tflops >= wanted.fp16_tflops {
        (wanted.fp16_tflops / node.fp16_tflops * 20.0) as i64
    } else {
        0
    };
    size + health + used + if node.fast_link { 10 } else { 0 }
}

/// The scores spread over 0 to 100: the least becomes 0, the greatest 100. If all are equal, each becomes 50.
pub fn spread_out(scores: &[i64]) -> Vec<i64> {
    let (Some(least), Some(most)) = (scores.iter().min(), scores.iter().max()) else {
        return Vec::new();
    };
    scores
        .iter()
        .map(|score| match most - least {
            0 => INDIFFERENT,
            range => (score - least) * 100 / range,
        })
        .collect()
}
