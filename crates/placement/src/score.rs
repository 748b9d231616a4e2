//! How full a device or a node is, as one number computed from integers, so that it does not depend on the order of
//! events. Does not compare with devices that do not fit.

use crate::request::Weights;
use crate::reservation::Load;

/// Ten times `part / whole`; 0 if the whole is 0.
#[allow(
    clippy::cast_precision_loss,
    reason = "a score is a ratio: what is lost above 2^53 bytes is no device's size"
)]
fn tenths(used: u64, total: u64) -> f64 {
    if total == 0 {
        0.0
    } else {
        10.0 * used as f64 / total as f64
    }
}

/// How full a device is with `used` of `total`: 0 to 10 for each unit of weight.
pub(crate) fn device(used: Load, total: Load, weights: Weights) -> f64 {
    f64::from(weights.slots) * tenths(u64::from(used.slots), u64::from(total.slots))
        + f64::from(weights.cores) * tenths(u64::from(used.cores), u64::from(total.cores))
        + f64::from(weights.memory) * tenths(used.memory_bytes, total.memory_bytes)
}

/// The sum over all devices of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) slots: u64,
    pub(crate) cores: u64,
    pub(crate) memory_bytes: u64,
}

impl Sum {
    pub(crate) fn add(&mut self, load: Load) {
        self.slots = self.slots.wrapping_add(u64::from(load.slots));
        self.cores = self.cores.wrapping_add(u64::from(load.cores));
        self.memory_bytes = self.memory_bytes.wrapping_add(load.memory_bytes);
    }
}

/// How full a node is with `used` and `more` of `total`: 0 to 30.
pub(crate) fn node(used: Sum, more: Sum, total: Sum) -> f64 {
    tenths(used.slots.saturating_add(more.slots), total.slots)
        + tenths(used.cores.saturating_add(more.cores), total.cores)
        + tenths(
            used.memory_bytes.saturating_add(more.memory_bytes),
            total.memory_bytes,
        )
}
