//! Times as floating-point numbers, and back. Values in, values out.

/// Nanoseconds of a run.
#[allow(
    clippy::cast_precision_loss,
    reason = "times of a run are far below 2^53 ns"
)]
pub(crate) fn float(ns: u64) -> f64 {
    ns as f64
}

/// Whole nanoseconds, rounded down.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a negative number becomes 0, and a larger one the largest u64"
)]
pub(crate) fn whole(ns: f64) -> u64 {
    ns as u64
}
