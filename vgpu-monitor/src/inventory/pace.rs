//! When the agent may write its Node again. Values in, values out.

use std::time::Duration;

use tokio::time::Instant;

/// Longest pause between two writes, whether they fail or another program undoes them.
const MOST_PAUSE: Duration = Duration::from_secs(60);

/// When the next write may happen: at once, unless writes fail or another program undoes them repeatedly.
#[derive(Debug)]
pub(super) struct WritePace {
    first: Duration,
    pause: Duration,
    last: Option<Instant>,
    failed: bool,
}

impl WritePace {
    pub(super) fn new(first: Duration) -> Self {
        Self {
            first,
            pause: Duration::ZERO,
            last: None,
            failed: false,
        }
    }

    pub(super) fn next(&self) -> Instant {
        self.last
            .map_or_else(Instant::now, |last| last + self.pause)
    }

    /// A write was tried at this moment. `jitter` is from 0 to 1.
    pub(super) fn wrote(&mut self, well: bool, now: Instant, jitter: f64) {
        let quiet = self
            .last
            .is_none_or(|last| now.duration_since(last) > MOST_PAUSE);
        let longer = (self.pause * 2).clamp(self.first, MOST_PAUSE);
        self.pause = match (well, self.failed) {
            // The first in a while, or the one that ends a row of failures.
            (true, true) => Duration::ZERO,
            (true, false) if quiet => Duration::ZERO,
            (false, false) => self.first,
            _ => longer,
        };
        if !well {
            // A thousand agents that lost one API server do not come back at one moment.
            self.pause = self.pause.mul_f64(1.0 + jitter / 2.0).min(MOST_PAUSE);
        }
        self.failed = !well;
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_and_undone_writes_back_off_until_a_quiet_time() {
        let mut pace = WritePace::new(Duration::from_secs(1));
        let mut now = Instant::now();
        pace.wrote(true, now, 0.0);
        assert_eq!(pace.pause, Duration::ZERO);
        // Undone at once, again and again.
        let mut pauses = Vec::new();
        for _ in 0..8 {
            pace.wrote(true, now, 0.0);
            pauses.push(pace.pause.as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        now += MOST_PAUSE * 2;
        pace.wrote(true, now, 0.0);
        assert_eq!(pace.pause, Duration::ZERO);
        // An API server that is away, and comes back.
        let mut pauses = Vec::new();
        for well in [false, false, false, true] {
            now += MOST_PAUSE * 2;
            pace.wrote(well, now, 0.0);
            pauses.push(pace.pause.as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 0]);
    }
}
