//! How well a GPU is, as one number from 0 to 100: what `ComputeNode` and its readers want. Never decides whether a
//! GPU may be used: the judge does, and the number follows its verdict.

use crate::node_gpus::Sick;

/// The figures that a GPU reports about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Memory rows wait for a reset to be replaced.
    pub remap_pending: bool,
    /// A memory row could not be replaced.
    pub remap_failed: bool,
    /// Memory pages wait for a reset to be retired (GPUs before Ampere).
    pub pages_pending: bool,
    /// The parts that it is cut into (MIG).
    pub instances: Vec<String>,
    /// Degrees Celsius; `None` if the GPU does not report them.
    pub celsius: Option<u32>,
    /// Errors of memory that could not be corrected, since the driver was started.
    pub uncorrected: u64,
}

/// A GPU that may be used has at least this; one that may not has less.
pub const USABLE: u8 = 60;
/// A sick GPU that may recover by itself.
pub const RECOVERS: u8 = 30;
/// A GPU of which nothing is amiss.
pub const WELL: u8 = 100;

/// | the GPU | score |
/// |---|---|
/// | is sick, and only a reset or a person cures it | 0 |
/// | is sick, and may recover | 30 |
/// | may be used | 100, less 2 for each degree from 81 °C to 90 °C and 5 for each above, less 3 for each uncorrected memory error since the driver was started (30 at most), less 10 where memory rows or pages wait for a reset; never below 60 |
#[must_use]
pub fn of(vitals: &Vitals, sick: Option<&Sick>) -> u8 {
    match sick {
        Some(sick) if sick.recovers => return RECOVERS,
        Some(_) => return 0,
        None => {}
    }
    let celsius = vitals.celsius.unwrap_or(0);
    let warm = celsius.clamp(80, 90) - 80;
    let hot = celsius.saturating_sub(90).saturating_mul(5);
    let heat = hot.saturating_add(2 * warm);
    let errors = u32::try_from(vitals.uncorrected.min(10)).unwrap_or(10) * 3;
    let waits = u32::from(vitals.remap_pending || vitals.pages_pending) * 10;
    let lost = heat.saturating_add(errors).saturating_add(waits);
    u8::try_from(u32::from(WELL).saturating_sub(lost)).map_or(USABLE, |score| score.max(USABLE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    fn sick(recovers: bool) -> Sick {
        Sick {
            reason: "lost".to_owned(),
            since: SystemTime::UNIX_EPOCH,
            recovers,
        }
    }

    #[test]
    fn score_falls_with_heat_errors_and_pending_rows() {
        for (celsius, uncorrected, remap_pending, score) in [
            (None, 0, false, 100),
            (Some(45), 0, false, 100),
            (Some(80), 0, false, 100),
            (Some(81), 0, false, 98),
            (Some(90), 0, false, 80),
            (Some(92), 0, false, 70),
            (Some(45), 2, false, 94),
            (Some(45), 400, false, 70),
            (Some(45), 0, true, 90),
            (Some(85), 1, true, 77),
            // The GPU is in use, so its score is never that of a sick one.
            (Some(u32::MAX), u64::MAX, true, 60),
        ] {
            let vitals = Vitals {
                celsius,
                uncorrected,
                remap_pending,
                ..Vitals::default()
            };
            assert_eq!(of(&vitals, None), score, "{vitals:?}");
        }
    }

    #[test]
    fn sick_gpu_scores_below_every_usable_one() {
        let cool = Vitals::default();
        assert_eq!(of(&cool, Some(&sick(true))), 30);
        assert_eq!(of(&cool, Some(&sick(false))), 0);
    }
}
