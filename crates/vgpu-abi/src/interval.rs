//! The part of each period in which a container's launches may go, where the containers of a device work one after the
//! other: one word of the targets file, that the compute arbiter writes and the library reads.
//!
//! Both read the same monotonic clock. So the containers change over at the same moment without a message between
//! processes, and a container needs no message of the arbiter between two periods.

/// The longest interval and the last beginning that a word has room for, microseconds.
const MOST_US: u32 = (1 << 24) - 1;
const US: u64 = 1_000;

/// One container's interval of each period. A period begins whenever the clock is a multiple of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// How long the period is, milliseconds; never 0.
    pub period_ms: u16,
    /// Where in the period the interval begins, microseconds.
    pub from_us: u32,
    /// How long it is, microseconds; it may reach over the end of the period.
    pub length_us: u32,
}

/// Whether an interval is open at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// How long it still lasts, nanoseconds.
    Open {
        /// Nanoseconds.
        left_ns: u64,
    },
    /// The time until it begins, nanoseconds.
    Closed {
        /// Nanoseconds.
        wait_ns: u64,
    },
}

impl Interval {
    /// The interval as its word.
    #[must_use]
    pub fn word(self) -> u64 {
        u64::from(self.period_ms)
            | u64::from(self.from_us.min(MOST_US)) << 16
            | u64::from(self.length_us.min(MOST_US)) << 40
    }

    /// The interval of a word; `None` if the word holds none.
    #[must_use]
    pub fn of(word: u64) -> Option<Self> {
        let part = |shift: u32| u32::try_from(word >> shift & u64::from(MOST_US)).unwrap_or(0);
        let period_ms = u16::try_from(word & 0xffff).unwrap_or(0);
        (period_ms != 0).then(|| Self {
            period_ms,
            from_us: part(16),
            length_us: part(40),
        })
    }

    /// How long the period is, nanoseconds.
    #[must_use]
    pub fn period_ns(self) -> u64 {
        u64::from(self.period_ms.max(1)) * 1_000_000
    }

    /// How long the interval is, nanoseconds: at most the period.
    #[must_use]
    pub fn length_ns(self) -> u64 {
        (u64::from(self.length_us) * US).min(self.period_ns())
    }

    /// Whether a moment of the monotonic clock lies in the interval. For any word, what is left of an interval and the
    /// time until it begins are at most a period.
    #[must_use]
    pub fn at(self, now_ns: u64) -> Moment {
        let (period_ns, length_ns) = (self.period_ns(), self.length_ns());
        let from_ns = u64::from(self.from_us) * US % period_ns;
        let since_ns = (now_ns % period_ns + period_ns - from_ns) % period_ns;
        match length_ns.checked_sub(since_ns) {
            Some(left_ns) if left_ns > 0 => Moment::Open { left_ns },
            _ => Moment::Closed {
                wait_ns: period_ns - since_ns,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// 10 ms of every 50, from the 45th on.
    const OVER_THE_END: Interval = Interval {
        period_ms: 50,
        from_us: 45_000,
        length_us: 10_000,
    };

    #[test]
    fn an_interval_opens_once_in_each_period() {
        for (now_ms, moment) in [
            (0, Moment::Open { left_ns: 5 * MS }),
            (5, Moment::Closed { wait_ns: 40 * MS }),
            (44, Moment::Closed { wait_ns: MS }),
            (45, Moment::Open { left_ns: 10 * MS }),
            (1_000_049, Moment::Open { left_ns: 6 * MS }),
            (1_000_060, Moment::Closed { wait_ns: 35 * MS }),
        ] {
            assert_eq!(OVER_THE_END.at(now_ms * MS), moment, "{now_ms} ms");
        }
    }

    #[test]
    fn an_interval_of_nothing_is_closed_and_one_of_a_period_open() {
        let none = Interval {
            length_us: 0,
            ..OVER_THE_END
        };
        let all = Interval {
            length_us: MOST_US,
            ..OVER_THE_END
        };
        assert_eq!(none.at(45 * MS), Moment::Closed { wait_ns: 50 * MS });
        assert_eq!(all.at(45 * MS), Moment::Open { left_ns: 50 * MS });
        assert_eq!(Interval::of(0), None);
    }

    proptest! {
        #[test]
        fn any_word_is_an_interval_that_waits_at_most_a_period(word: u64, now_ns: u64) {
            if let Some(interval) = Interval::of(word) {
                prop_assert_eq!(Interval::of(interval.word()), Some(interval));
                let period_ns = interval.period_ns();
                match interval.at(now_ns) {
                    Moment::Open { left_ns } => prop_assert!((1..=period_ns).contains(&left_ns)),
                    Moment::Closed { wait_ns } => prop_assert!((1..=period_ns).contains(&wait_ns)),
                }
            }
        }

        #[test]
        fn intervals_one_after_another_are_never_open_at_once(
            period_ms in 1_u16..500, permille in 0_u32..=1_000, now_ns: u64,
        ) {
            let period_us = u32::from(period_ms) * 1_000;
            let first_us = u32::from(period_ms) * permille;
            let first = Interval { period_ms, from_us: 0, length_us: first_us };
            let second = Interval { period_ms, from_us: first_us, length_us: period_us - first_us };
            let open = [first, second].map(|one| matches!(one.at(now_ns), Moment::Open { .. }));
            prop_assert!(open[0] != open[1], "{:?}", open);
        }
    }
}
