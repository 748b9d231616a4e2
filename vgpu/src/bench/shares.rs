//! A measured share: GPU time used over time, and the figures that describe it. Values in, values out.

use serde::Serialize;

/// How long a window is, nanoseconds.
pub(crate) const WINDOW_NS: u64 = 100_000_000;
/// Windows begin so far apart.
const STEP_NS: u64 = 10_000_000;
/// A change has arrived when a whole window is this near, points.
const NEAR: f64 = 5.0;

/// GPU time that a container has used up to each moment: both only rise.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Curve {
    /// Nanoseconds since the start, and nanoseconds used until then.
    points: Vec<(u64, u64)>,
}

impl Curve {
    /// Adds a look.
    pub(crate) fn push(&mut self, at_ns: u64, used_ns: u64) {
        let (last_ns, last_used) = self.points.last().copied().unwrap_or((0, 0));
        if at_ns > last_ns || self.points.is_empty() {
            self.points.push((at_ns, used_ns.max(last_used)));
        }
    }

    /// The use of each bin, nanoseconds, one after another from the start on.
    pub(crate) fn of_bins(bin_ns: u64, bins: &[u64]) -> Self {
        let mut curve = Self::default();
        let (mut at_ns, mut used_ns) = (0, 0);
        curve.push(0, 0);
        for bin in bins {
            at_ns += bin_ns;
            used_ns += bin;
            curve.push(at_ns, used_ns);
        }
        curve
    }

    /// Nanoseconds used until a moment; evenly between two looks, and no more after the last.
    fn used(&self, at_ns: u64) -> f64 {
        let after = self.points.partition_point(|(at, _)| *at <= at_ns);
        let Some(before) = after.checked_sub(1).and_then(|i| self.points.get(i)) else {
            return 0.0;
        };
        let Some(after) = self.points.get(after) else {
            return float(before.1);
        };
        let part = float(at_ns - before.0) / float(after.0 - before.0);
        float(before.1) + part * float(after.1 - before.1)
    }

    /// Percent of the device between two moments.
    pub(crate) fn share(&self, from_ns: u64, to_ns: u64) -> f64 {
        if to_ns <= from_ns {
            return 0.0;
        }
        (self.used(to_ns) - self.used(from_ns)) / float(to_ns - from_ns) * 100.0
    }

    /// Percent of the device in each window of this length that begins between two moments.
    fn windows(&self, from_ns: u64, to_ns: u64, length_ns: u64) -> impl Iterator<Item = f64> {
        let mut begin_ns = from_ns;
        std::iter::from_fn(move || {
            let end_ns = begin_ns + length_ns;
            if end_ns > to_ns {
                return None;
            }
            let share = self.share(begin_ns, end_ns);
            begin_ns += STEP_NS;
            Some(share)
        })
    }

    /// When after `from_ns` the first window lies near the requested share, nanoseconds from there; `None` if no
    /// window does.
    pub(crate) fn reached(&self, from_ns: u64, to_ns: u64, asked: f64) -> Option<u64> {
        let near = |share: f64| (share - asked).abs() <= NEAR;
        let at = self
            .windows(from_ns, to_ns, WINDOW_NS)
            .position(near)
            .and_then(|at| u64::try_from(at).ok())?;
        Some(at * STEP_NS)
    }

    /// Points to draw: the middle of each window in seconds, and its share.
    pub(crate) fn drawn(&self, to_ns: u64) -> Vec<(f64, f64)> {
        let half = float(WINDOW_NS / 2) / 1e9;
        let at = (0_u32..).map(|n| half + f64::from(n) * float(STEP_NS) / 1e9);
        at.zip(self.windows(0, to_ns, WINDOW_NS)).collect()
    }
}

/// The figures of a share; percent and points.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Figures {
    /// Over the whole time.
    pub(crate) mean: f64,
    /// The window of 100 ms that is farthest from what was asked.
    pub(crate) worst_100ms: f64,
    /// The same for windows of max(100 ms, 20 × the longest kernel or graph).
    pub(crate) worst_window: f64,
    /// Mean distance of windows of 100 ms from what was asked.
    pub(crate) mae: f64,
    /// How far the fullest window of max(100 ms, 20 × the longest) lies above what was asked.
    pub(crate) overshoot: f64,
}

/// The figures of a share between two moments; `None` if no time lies between them.
pub(crate) fn figures(
    curve: &Curve,
    (from_ns, to_ns): (u64, u64),
    asked: f64,
    longest_ns: u64,
) -> Option<Figures> {
    let length_ns = to_ns.checked_sub(from_ns).filter(|ns| *ns > 0)?;
    let window_ns = WINDOW_NS.max(20 * longest_ns).min(length_ns);
    let shares = |length_ns: u64| curve.windows(from_ns, to_ns, length_ns);
    let farthest = |length_ns: u64| {
        shares(length_ns)
            .max_by(|a, b| (a - asked).abs().total_cmp(&(b - asked).abs()))
            .unwrap_or(0.0)
    };
    let distances: Vec<f64> = shares(WINDOW_NS).map(|s| (s - asked).abs()).collect();
    let count = u32::try_from(distances.len().max(1)).unwrap_or(u32::MAX);
    let fullest = shares(window_ns).fold(0.0, f64::max);
    Some(Figures {
        mean: curve.share(from_ns, to_ns),
        worst_100ms: farthest(WINDOW_NS),
        worst_window: farthest(window_ns),
        mae: distances.iter().sum::<f64>() / f64::from(count),
        overshoot: (fullest - asked).max(0.0),
    })
}

/// The parts of a measurement between its planned changes, as begin and end in nanoseconds: one more than changes. On a busy
/// machine a change comes late. What comes after the end, or not at all, leaves its part without time.
pub(crate) fn parts(changed_ns: &[u64], planned: usize, end_ns: u64) -> Vec<(u64, u64)> {
    let changes = changed_ns.iter().copied().chain(std::iter::repeat(end_ns));
    let bounds = changes.take(planned).map(|ns| ns.min(end_ns));
    let begins = std::iter::once(0).chain(bounds.clone());
    begins.zip(bounds.chain(std::iter::once(end_ns))).collect()
}

#[allow(
    clippy::cast_precision_loss,
    reason = "nanoseconds of a bench are far below 2^53"
)]
fn float(ns: u64) -> f64 {
    ns as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// So many milliseconds at each share.
    fn curve(parts: &[(u64, u64)]) -> Curve {
        let bins: Vec<u64> = parts
            .iter()
            .flat_map(|(ms, percent)| (0..*ms).map(move |_| percent * MS / 100))
            .collect();
        Curve::of_bins(MS, &bins)
    }

    #[test]
    fn an_even_share_has_no_distance_from_what_was_asked() {
        let figures = figures(&curve(&[(1000, 25)]), (0, 1000 * MS), 25.0, MS).unwrap();

        assert!((figures.mean - 25.0).abs() < 1e-9);
        assert!((figures.worst_100ms - 25.0).abs() < 1e-9);
        assert!(figures.mae < 1e-9 && figures.overshoot < 1e-9);
    }

    #[test]
    fn a_burst_shows_in_the_worst_window_and_as_overshoot() {
        let figures = figures(
            &curve(&[(500, 25), (50, 75), (450, 25)]),
            (0, 1000 * MS),
            25.0,
            MS,
        )
        .unwrap();

        assert!((figures.worst_100ms - 50.0).abs() < 1e-9);
        assert!((figures.overshoot - 25.0).abs() < 1e-9);
        assert!((figures.mean - 27.5).abs() < 1e-9);
    }

    #[test]
    fn long_kernels_are_judged_over_twenty_of_them() {
        let steps: Vec<_> = (0..20).flat_map(|_| [(50, 100), (50, 0)]).collect();

        let figures = figures(&curve(&steps), (0, 2000 * MS), 50.0, 50 * MS).unwrap();

        assert!((figures.worst_window - 50.0).abs() < 5.0);
        assert!((figures.mean - 50.0).abs() < 1e-9);
    }

    #[test]
    fn a_change_has_arrived_with_the_first_whole_window_near_it() {
        let curve = curve(&[(500, 25), (80, 25), (920, 75)]);

        assert_eq!(curve.reached(500 * MS, 1500 * MS, 75.0), Some(70 * MS));
        assert_eq!(curve.reached(500 * MS, 1500 * MS, 90.0), None);
    }

    #[test]
    fn a_part_without_time_has_no_figures() {
        let curve = curve(&[(600, 25)]);

        for (from, to) in [(600, 600), (640, 600)] {
            assert_eq!(figures(&curve, (from * MS, to * MS), 25.0, MS), None);
        }
    }

    #[test]
    fn a_change_that_comes_after_the_end_or_never_leaves_its_part_without_time() {
        let of = |changed: &[u64]| parts(changed, 2, 600);

        assert_eq!(of(&[200, 400]), [(0, 200), (200, 400), (400, 600)]);
        assert_eq!(of(&[410, 640]), [(0, 410), (410, 600), (600, 600)]);
        assert_eq!(of(&[410]), [(0, 410), (410, 600), (600, 600)]);
        assert_eq!(of(&[]), [(0, 600), (600, 600), (600, 600)]);
        assert_eq!(parts(&[], 0, 600), [(0, 600)]);
    }

    #[test]
    fn looks_that_come_late_change_nothing() {
        let mut curve = Curve::default();
        for (at, used) in [(0, 0), (10, 5), (40, 20), (40, 19), (30, 7)] {
            curve.push(at, used);
        }

        assert!((curve.share(0, 40) - 50.0).abs() < 1e-9);
        assert!((curve.share(0, 20) - 50.0).abs() < 1e-9);
    }
}
