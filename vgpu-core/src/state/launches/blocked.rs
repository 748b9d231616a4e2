//! How long a process is blocked until its own work has ended. Launches that are each waited for are too small to be
//! measured one by one, and other processes' turns pass while the program waits: so the time that the driver holds the
//! program in a call that waits is time in which it has work on the device, measured or not. The numbers and the
//! arithmetic; `rules/compute.rs` reads the clock.

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::spans::uncovered_ns;
use crate::guest::thread::ThreadWait;

/// Work is counted when it is launched, and may be waited for later: as much as may be in flight, nanoseconds.
const MOST_AHEAD_NS: i64 = 10_000_000;

/// A thread that asks whether its work has ended waits for it as long as it asks at least this often, nanoseconds.
const ASKED_NS: u64 = 10_000_000;
/// Work that has ended since the last question ran until now if that was this long ago at most. Otherwise the program
/// did something else meanwhile, and the work may have ended long ago.
const LATELY_NS: u64 = 200_000;

/// What this process remembers of a device. Wiped by a fork; all zeros is the beginning.
#[repr(C)]
pub(crate) struct Blocked {
    /// Up to here waits were counted, of whichever thread.
    covered_ns: AtomicU64,
    /// The occupied time at the last wait, nanoseconds.
    occupied_ns: AtomicU64,
    /// How much more was counted as occupied than the program was blocked, nanoseconds.
    ahead_ns: AtomicI64,
}

impl Blocked {
    /// A thread was blocked from one moment to another, nanoseconds, and `occupied_ns` are counted as occupied so far.
    /// How much more that is.
    pub(crate) fn more_ns(&self, from_ns: u64, until_ns: u64, occupied_ns: u64) -> u64 {
        // Relaxed throughout: numbers. Threads that come back at the same moment may count a little less.
        let covered_ns = self.covered_ns.fetch_max(until_ns, Ordering::Relaxed);
        let blocked_ns = uncovered_ns(until_ns, until_ns.saturating_sub(from_ns), covered_ns);
        let before_ns = self.occupied_ns.load(Ordering::Relaxed);
        let counted_ns = occupied_ns.saturating_sub(before_ns);
        let ahead_ns = self.ahead_ns.load(Ordering::Relaxed);
        let (more_ns, ahead_ns) = beyond(ahead_ns, counted_ns, blocked_ns);
        self.ahead_ns.store(ahead_ns, Ordering::Relaxed);
        self.occupied_ns
            .store(occupied_ns.saturating_add(more_ns), Ordering::Relaxed);
        more_ns
    }
}

impl ThreadWait {
    /// The thread has asked an event or a stream, and heard that work has not ended.
    #[must_use]
    pub(crate) fn not_yet(self, what: u64, now_ns: u64) -> Self {
        if self.since_ns == 0 || now_ns.saturating_sub(self.last_ns) > ASKED_NS {
            return Self {
                what,
                since_ns: now_ns.max(1),
                last_ns: now_ns,
            };
        }
        Self {
            last_ns: now_ns,
            ..self
        }
    }

    /// Whether the thread waits for this event or stream.
    pub(crate) fn is_for(self, what: u64) -> bool {
        self.since_ns != 0 && self.what == what
    }

    /// The thread has asked again, and heard that the work has ended: from when to when it has waited, nanoseconds.
    pub(crate) fn ended(self, what: u64, now_ns: u64) -> Option<(u64, u64)> {
        let until_ns = if now_ns.saturating_sub(self.last_ns) <= LATELY_NS {
            now_ns
        } else {
            self.last_ns
        };
        self.is_for(what).then_some((self.since_ns, until_ns))
    }
}

/// How much longer a program was blocked than was counted as occupied, and how much was counted ahead of that, both
/// nanoseconds. `ahead_ns`: the same at the last wait; since then `counted_ns` were counted and it was blocked for
/// `blocked_ns`.
fn beyond(ahead_ns: i64, counted_ns: u64, blocked_ns: u64) -> (u64, i64) {
    let ahead_ns = ahead_ns
        .saturating_add_unsigned(counted_ns)
        .saturating_sub_unsigned(blocked_ns);
    if ahead_ns < 0 {
        (ahead_ns.unsigned_abs().min(blocked_ns), 0)
    } else {
        (0, ahead_ns.min(MOST_AHEAD_NS))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;

    fn blocked() -> Box<Blocked> {
        // SAFETY: numbers, for which all zeros is a value.
        unsafe { Box::<Blocked>::new_zeroed().assume_init() }
    }

    #[test]
    fn time_that_was_counted_is_counted_once() {
        // Counted before the wait, after it, and not at all.
        assert_eq!(beyond(0, MS, MS), (0, 0));
        assert_eq!(beyond(0, 5 * MS, MS), (0, 4 * MS.cast_signed()));
        assert_eq!(beyond(4 * MS.cast_signed(), 0, 4 * MS), (0, 0));
        assert_eq!(beyond(0, 20 * US, MS), (MS - 20 * US, 0));
        // What was counted long ago says nothing of this wait.
        assert_eq!(beyond(0, 1_000 * MS, MS), (0, MOST_AHEAD_NS));
    }

    #[test]
    fn thread_that_asks_until_its_work_has_ended_has_waited() {
        let wait = ThreadWait::default().not_yet(7, 5 * MS);
        assert!(wait.is_for(7) && !wait.is_for(8));
        // Of several events, the first one that it asked ends the wait.
        let wait = wait.not_yet(8, 6 * MS).not_yet(7, 7 * MS);
        assert_eq!(wait.ended(8, 7 * MS), None);
        assert_eq!(
            wait.ended(7, 7 * MS + 200 * US),
            Some((5 * MS, 7 * MS + 200 * US))
        );
        // It did something else before it asked again.
        assert_eq!(wait.ended(7, 7 * MS + 201 * US), Some((5 * MS, 7 * MS)));
        assert_eq!(wait.not_yet(7, 17 * MS).since_ns, 5 * MS);
        let later = wait.not_yet(8, 17 * MS + 1);
        assert_eq!((later.what, later.since_ns), (8, 17 * MS + 1));
        // A thread that never heard "not yet" has not waited.
        assert_eq!(ThreadWait::default().ended(0, MS), None);
        assert!(ThreadWait::default().not_yet(0, 0).is_for(0));
    }

    #[test]
    fn small_launches_beside_turns_of_others_are_blocked_most_of_the_time() {
        let blocked = blocked();
        let (mut now_ns, mut occupied_ns) = (MS, 0);
        for _ in 0..1_000 {
            // 20 us of work, of which the event behind it says nothing, after a turn of a neighbour.
            now_ns += 3 * US;
            occupied_ns += 20 * US;
            let from_ns = now_ns;
            now_ns += MS + 20 * US;
            occupied_ns += blocked.more_ns(from_ns, now_ns, occupied_ns);
        }
        assert_eq!(occupied_ns, 1_000 * (MS + 20 * US));
    }

    #[test]
    fn waits_of_several_threads_at_a_time_count_once() {
        let blocked = blocked();
        assert_eq!(blocked.more_ns(MS, 3 * MS, 0), 2 * MS);
        assert_eq!(blocked.more_ns(2 * MS, 4 * MS, 2 * MS), MS);
        assert_eq!(blocked.more_ns(MS, 2 * MS, 3 * MS), 0);
    }

    proptest! {
        /// However its threads wait, and whatever was counted before: waits add no more than the time that passed.
        #[test]
        fn waits_add_no_more_than_the_wall_time(
            steps in prop::collection::vec((0..2 * MS, 0..2 * MS, 0..4 * MS), 1..50),
        ) {
            let blocked = blocked();
            let begin_ns = 4 * MS;
            let (mut now_ns, mut occupied_ns, mut added_ns) = (begin_ns, 0, 0);
            for (passed_ns, counted_ns, waited_ns) in steps {
                now_ns += passed_ns;
                occupied_ns += counted_ns;
                let from_ns = now_ns.saturating_sub(waited_ns).max(begin_ns);
                let more_ns = blocked.more_ns(from_ns, now_ns, occupied_ns);
                occupied_ns += more_ns;
                added_ns += more_ns;
            }
            prop_assert!(added_ns <= now_ns - begin_ns, "{added_ns}");
        }

        /// However a thread asks, it has waited for no longer than from its first question to its last.
        #[test]
        fn questions_add_no_time(steps in prop::collection::vec((0..20 * MS, 0..3_u64), 1..50)) {
            let (mut now_ns, mut wait) = (MS, ThreadWait::default());
            for (passed_ns, what) in steps {
                now_ns += passed_ns;
                if let Some((since_ns, until_ns)) = wait.ended(what, now_ns) {
                    prop_assert!(MS <= since_ns && since_ns <= until_ns && until_ns <= now_ns);
                }
                wait = wait.not_yet(what, now_ns);
            }
        }

        /// Of a program whose work is counted whole before it is waited for, waits add nothing.
        #[test]
        fn counted_work_is_not_counted_again(
            steps in prop::collection::vec(0..10 * MS, 1..50),
        ) {
            let blocked = blocked();
            let (mut now_ns, mut occupied_ns) = (MS, 0);
            for ns in steps {
                occupied_ns += ns;
                prop_assert_eq!(blocked.more_ns(now_ns, now_ns + ns, occupied_ns), 0);
                now_ns += ns;
            }
        }

        #[test]
        fn no_number_overflows(ahead_ns: i64, counted_ns: u64, blocked_ns: u64) {
            let (more_ns, next_ns) = beyond(ahead_ns, counted_ns, blocked_ns);
            prop_assert!(more_ns <= blocked_ns && (0..=MOST_AHEAD_NS).contains(&next_ns));
        }
    }
}
