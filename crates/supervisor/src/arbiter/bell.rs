//! The effect of a container's ring: how many rings are answered, for how long the container holds up those of a
//! lower priority, and when it rests. One [`Bell`] for each container and device.
//!
//! A ring says "look now" and nothing else. The container's own figures of its work count only as far as its cap and
//! the driver's figures allow, because its tenant can write any number into its region.
//!
//! Values in, values out: never reads a clock, a file or the driver.

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// One ring in this time is answered, nanoseconds, after [`RINGS_SAVED`] of them.
const RING_NS: u64 = MS;
/// The same for each container that may ring, so that all of them together cost a bounded time.
const RING_EACH_NS: u64 = 250 * US;
/// Rings that are answered one right after another.
const RINGS_SAVED: u64 = 16;

/// Gaps that are remembered.
const GAPS: usize = 64;
/// A longer gap counts as this one, nanoseconds: an hour of rest must not decide for the hour after it.
const LONGEST_GAP_NS: u64 = 1_000 * MS;
/// For how long a container may be at rest until others go on, nanoseconds.
const RESTS: [u64; 11] = [
    250 * US,
    500 * US,
    MS,
    2 * MS,
    3 * MS,
    4 * MS,
    6 * MS,
    8 * MS,
    11 * MS,
    15 * MS,
    20 * MS,
];
/// The usual one.
const USUAL_REST_NS: u64 = MS;
/// Waiting through gaps may take this part of all their time, thousandths.
const WAITED_PERMILLE: u64 = 80;

/// After a ring, the launch may be missing from the region for at most this long, nanoseconds.
const LAUNCHING_NS: u64 = 300 * US;
/// After a ring that no launch followed, no ring is answered for this long, nanoseconds; twice as long after the next
/// such ring, up to [`FALSE_RINGS_MOST`] times.
const FALSE_RING_NS: u64 = 2 * MS;
const FALSE_RINGS_MOST: u32 = 6;
/// Work may end this much later than expected, nanoseconds, or later by half of its own length, or by as much as work of
/// others that was in flight before it.
const LATE_NS: u64 = 500 * US;
/// At least this much later while a launch waits for that work, nanoseconds: the cost of a first launch is not known, and a kernel that
/// never ends is to hold up others no longer.
const LATE_WAITED_NS: u64 = 1_000 * MS;
/// Work of others delays it by this at most, nanoseconds: a figure of a container of a lower priority, which its tenant can
/// write.
const MOST_DELAY_NS: u64 = 50 * MS;
/// Between two looks at a container that works, nanoseconds.
const LOOK_NS: (u64, u64) = (250 * US, MS);

/// A container with a cap may hold others up for this long beyond it, nanoseconds.
const BEYOND_CAP_NS: u64 = 200 * MS;
/// The same beyond what the driver says that it used: its figures are a second late.
const BEYOND_TOLD_NS: u64 = 3_000 * MS;
/// After it has held others up for too long it may do so again from this part of what it may save on, so that it does not
/// begin and end at every look.
const AGAIN_FROM_PART: i64 = 4;
/// Beyond its cap a container may hold others up for this part of the rest of the time: it also does so while it rests for
/// a moment. What the others lose is more by the time until they are awake again, and below a fifth together.
const RESTS_PART: u32 = 6;
/// The driver's figure of its processes may be too low by half, and by so much besides, thousandths.
const TOLD_TIMES: u32 = 2;
const TOLD_MORE: u32 = 200;
/// Floors of others count up to here, thousandths: beside more than that its work would take for ever.
const MOST_FLOORS: u32 = 900;
/// Work may end later than expected by this part of the time that it takes.
const LATE_PART: u64 = 2;

/// Bounds how many rings are answered: a bucket of `RINGS_SAVED`.
#[derive(Debug, Default)]
pub struct RingLimit {
    /// The bucket is full at this moment, nanoseconds.
    full_at_ns: u64,
}

impl RingLimit {
    /// Whether this ring is answered. `listened` is the number of containers that may ring.
    pub fn take(&mut self, now_ns: u64, listened: usize) -> bool {
        let every_ns = every_ns(listened);
        let full_at_ns = self.full_at_ns.max(now_ns).saturating_add(every_ns);
        if full_at_ns.saturating_sub(now_ns) > RINGS_SAVED * every_ns {
            return false;
        }
        self.full_at_ns = full_at_ns;
        true
    }

    /// When a ring is answered again, after one was not.
    #[must_use]
    pub fn open_at_ns(&self, listened: usize) -> u64 {
        let every_ns = every_ns(listened);
        self.full_at_ns.saturating_sub((RINGS_SAVED - 1) * every_ns)
    }
}

fn every_ns(listened: usize) -> u64 {
    let all = u64::try_from(listened).unwrap_or(u64::MAX);
    RING_NS
        .max(RING_EACH_NS.saturating_mul(all))
        .min(1_000 * MS)
}

/// The gaps between two pieces of work that a container has shown lately, newest last.
#[derive(Debug, Default)]
pub struct Gaps(std::collections::VecDeque<u64>);

impl Gaps {
    /// Remembers one.
    pub fn note(&mut self, gap_ns: u64) {
        if self.0.len() == GAPS {
            self.0.pop_front();
        }
        self.0.push_back(gap_ns.min(LONGEST_GAP_NS));
    }

    /// For how long the container is to be at rest until others go on. Waiting longer spares its next piece of work
    /// the end of a neighbour's, if that piece comes within the time, and leaves the device unused until then.
    ///
    /// So it is the shortest time that covers the gaps which can be covered with a bounded part of all time in gaps:
    /// a millisecond, up to 20 ms where the container has such gaps between long ones, and less where all its gaps
    /// are short.
    #[must_use]
    pub fn rest_ns(&self) -> u64 {
        if self.0.is_empty() {
            return USUAL_REST_NS;
        }
        let all: u64 = self.0.iter().sum();
        let allowed = all * WAITED_PERMILLE / 1_000;
        let covered = |rest: u64| self.0.iter().filter(|gap| **gap < rest).count();
        let [mut best, ..] = RESTS;
        for rest in RESTS {
            let waited: u64 = self.0.iter().map(|gap| (*gap).min(rest)).sum();
            if waited > allowed {
                break;
            }
            if rest <= USUAL_REST_NS || covered(rest) > covered(best) {
                best = rest;
            }
        }
        best
    }
}

/// The time for which a container may hold others up: it grows with the time that it is allowed, and is spent while
/// it holds them up.
#[derive(Debug)]
struct Allowance {
    /// Below zero: it held others up for longer, until it was looked at.
    left_ns: i64,
    most_ns: i64,
    is_spent: bool,
}

impl Allowance {
    fn new(most_ns: u64) -> Self {
        let most_ns = i64::try_from(most_ns).unwrap_or(i64::MAX);
        Self {
            left_ns: most_ns,
            most_ns,
            is_spent: false,
        }
    }

    fn pass(&mut self, ns: u64, permille: u32, holds: bool) {
        let earned = u128::from(ns) * u128::from(permille.min(1_000)) / 1_000;
        let earned = i64::try_from(earned).unwrap_or(i64::MAX);
        let spent = if holds {
            i64::try_from(ns).unwrap_or(i64::MAX)
        } else {
            0
        };
        self.left_ns = self
            .left_ns
            .saturating_add(earned - spent)
            .min(self.most_ns);
        if self.left_ns <= 0 {
            self.is_spent = true;
        } else if self.left_ns >= self.most_ns / AGAIN_FROM_PART {
            self.is_spent = false;
        }
    }
}

/// The most of the device's time for which a container may hold others up, thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowed {
    /// By its cap.
    pub by_cap: u32,
    /// By the driver's figures of its processes; 1000 where it has none.
    pub by_driver: u32,
}

impl Allowed {
    /// For a container with this cap, beside lower ones whose floors add up to `lower_floors`. `told` is the share
    /// that the driver reports for it, if the driver has figures for each process. Thousandths throughout.
    ///
    /// A container that holds others up also does so while it rests for a moment, and its work takes longer while the
    /// floors of others are served.
    #[must_use]
    pub fn of(cap: u32, lower_floors: u32, told: Option<u32>) -> Self {
        let cap = cap.min(1_000);
        let with_rests = cap + (1_000 - cap) / RESTS_PART;
        let beside_floors = with_rests * 1_000 / (1_000 - lower_floors.min(MOST_FLOORS));
        Self {
            by_cap: beside_floors.min(1_000),
            by_driver: told.map_or(1_000, |told| (told * TOLD_TIMES + TOLD_MORE).min(1_000)),
        }
    }
}

/// A container's work on the device, as its region shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// Kernels and graphs launched.
    pub launches: u64,
    /// Estimated time of the work in flight, nanoseconds; 0 is none.
    pub in_flight_ns: u64,
    /// When that work ought to have ended, nanoseconds.
    pub expected_by_ns: u64,
    /// When something was last launched, nanoseconds.
    pub launched_ns: u64,
    /// When work was last seen to end, nanoseconds.
    pub ended_ns: u64,
    /// A launch waits because the container is at its cap.
    pub is_at_cap: bool,
    /// A launch waits because a container of a higher priority works.
    pub is_closed: bool,
    /// A launch waits for nothing but the end of work of its own.
    pub waits_for_itself: bool,
    /// Work that containers of a lower priority may have had in flight when it began, nanoseconds. The driver gives it
    /// turns, or lets it end first.
    pub delay_ns: u64,
}

impl Seen {
    fn works(&self, now_ns: u64) -> bool {
        let late_ns = match (self.is_at_cap, self.waits_for_itself) {
            // It looks at its work only now and then, and it could not go on anyway.
            (true, _) => 0,
            (false, true) => LATE_WAITED_NS.max(self.in_flight_ns / LATE_PART),
            (false, false) => LATE_NS
                .max(self.in_flight_ns / LATE_PART)
                .max(self.delay_ns.min(MOST_DELAY_NS)),
        };
        self.is_closed
            || self.in_flight_ns > 0 && now_ns < self.expected_by_ns.saturating_add(late_ns)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Others go on.
    Rests { since_ns: u64 },
    /// It holds those of a lower priority up.
    Holds {
        /// When it was last known to work.
        worked_ns: u64,
        /// When it rang for this; 0: it was found to work.
        rang_ns: u64,
        /// Since when it does not work.
        since_ns: Option<u64>,
        look_at_ns: u64,
    },
}

/// The decision after a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BellStep {
    /// As it was.
    Stays,
    /// It works: those of a lower priority wait from now on.
    Close,
    /// It rests. Arm its doorbell, look again, and call [`Bell::open`] with what that look found.
    Open,
}

/// A container on a device that comes before others.
#[derive(Debug)]
pub struct Bell {
    limit: RingLimit,
    gaps: Gaps,
    by_cap: Allowance,
    by_driver: Allowance,
    allowed: Allowed,
    /// Its library rings. Until it did, it is noticed at ticks alone.
    has_rung: bool,
    state: State,
    launches: Option<u64>,
    /// Rings in succession that no launch followed.
    false_rings: u32,
    at_ns: u64,
    /// Its rings are not listened to until then; 0: they are.
    muted_until_ns: u64,
}

impl Bell {
    /// A container that was just met.
    #[must_use]
    pub fn new(now_ns: u64) -> Self {
        Self {
            limit: RingLimit::default(),
            gaps: Gaps::default(),
            by_cap: Allowance::new(BEYOND_CAP_NS),
            by_driver: Allowance::new(BEYOND_TOLD_NS),
            allowed: Allowed {
                by_cap: 1_000,
                by_driver: 1_000,
            },
            has_rung: false,
            state: State::Rests { since_ns: now_ns },
            launches: None,
            false_rings: 0,
            at_ns: now_ns,
            muted_until_ns: 0,
        }
    }

    /// Sets for how much of the time it may hold others up from now on.
    pub fn allow(&mut self, now_ns: u64, allowed: Allowed) {
        self.pass(now_ns);
        self.allowed = allowed;
    }

    fn pass(&mut self, now_ns: u64) {
        let ns = now_ns.saturating_sub(self.at_ns);
        self.at_ns = self.at_ns.max(now_ns);
        let holds = self.holds();
        self.by_cap.pass(ns, self.allowed.by_cap, holds);
        self.by_driver.pass(ns, self.allowed.by_driver, holds);
    }

    fn is_spent(&self) -> bool {
        self.by_cap.is_spent || self.by_driver.is_spent
    }

    /// Whether those of a lower priority wait for it.
    #[must_use]
    pub fn holds(&self) -> bool {
        matches!(self.state, State::Holds { .. })
    }

    /// When to look at it again: nanoseconds, or nothing before the next tick.
    #[must_use]
    pub fn look_at_ns(&self) -> Option<u64> {
        let held = match self.state {
            State::Holds { look_at_ns, .. } => Some(look_at_ns),
            State::Rests { .. } => None,
        };
        let muted = Some(self.muted_until_ns).filter(|at| *at != 0);
        held.into_iter().chain(muted).min()
    }

    /// Whether its rings are not listened to at the moment.
    #[must_use]
    pub fn is_muted(&self) -> bool {
        self.muted_until_ns != 0
    }

    /// It rang. `listened` is the number of containers that may ring.
    pub fn rang(&mut self, now_ns: u64, listened: usize) -> BellStep {
        self.pass(now_ns);
        self.has_rung = true;
        if self.is_muted() {
            // Heard before that, and not read until now.
            return BellStep::Stays;
        }
        if !self.limit.take(now_ns, listened) {
            self.muted_until_ns = self.limit.open_at_ns(listened).max(now_ns + 1);
            return BellStep::Stays;
        }
        match self.state {
            State::Rests { since_ns } if !self.is_spent() => {
                self.gaps.note(now_ns.saturating_sub(since_ns));
                self.state = State::Holds {
                    worked_ns: now_ns,
                    rang_ns: now_ns,
                    since_ns: None,
                    look_at_ns: now_ns + LAUNCHING_NS,
                };
                BellStep::Close
            }
            State::Rests { .. } | State::Holds { .. } => BellStep::Stays,
        }
    }

    /// It was looked at. `idle_ns` is the rest of a container whose library does not ring.
    pub fn look(&mut self, now_ns: u64, seen: &Seen, idle_ns: u64) -> BellStep {
        self.pass(now_ns);
        if self.muted_until_ns <= now_ns {
            self.muted_until_ns = 0;
        }
        let moved = self.launches.is_some_and(|was| was != seen.launches);
        self.launches = Some(seen.launches);
        let works = seen.works(now_ns);
        if moved || works {
            self.false_rings = 0;
        }
        match self.state {
            State::Rests { .. } if !(works || moved) || self.is_spent() => BellStep::Stays,
            State::Rests { .. } => {
                self.state = State::Holds {
                    worked_ns: now_ns,
                    rang_ns: 0,
                    since_ns: None,
                    look_at_ns: now_ns + LOOK_NS.0,
                };
                BellStep::Close
            }
            State::Holds { .. } if self.is_spent() => BellStep::Open,
            State::Holds {
                worked_ns,
                rang_ns,
                since_ns,
                ..
            } => {
                if works || (moved && !self.has_rung) {
                    if let Some(since_ns) = since_ns {
                        let resumed_ns = seen.launched_ns.clamp(since_ns, now_ns);
                        self.gaps.note(resumed_ns - since_ns);
                    }
                    let (least, most) = LOOK_NS;
                    let end_ns = seen.expected_by_ns;
                    self.state = State::Holds {
                        worked_ns: now_ns,
                        rang_ns,
                        since_ns: None,
                        look_at_ns: end_ns.clamp(now_ns + least, now_ns + most),
                    };
                    return BellStep::Stays;
                }
                let mut from_ns = since_ns.unwrap_or(seen.ended_ns.clamp(worked_ns, now_ns));
                if let (true, Some(since_ns)) = (moved, since_ns) {
                    // It worked, and rests again.
                    let resumed_ns = seen.launched_ns.clamp(since_ns, now_ns);
                    self.gaps.note(resumed_ns - since_ns);
                    from_ns = seen.ended_ns.clamp(resumed_ns, now_ns);
                }
                // Nothing was launched since it rang.
                let is_false = rang_ns != 0 && worked_ns == rang_ns && since_ns.is_none() && !moved;
                let rest_ns = match self.has_rung {
                    true if seen.is_at_cap || is_false => 0,
                    true => self.gaps.rest_ns(),
                    false => idle_ns,
                };
                let open_at_ns = from_ns
                    .saturating_add(rest_ns)
                    .max(rang_ns.saturating_add(LAUNCHING_NS));
                if now_ns >= open_at_ns {
                    if is_false {
                        let ns = FALSE_RING_NS << self.false_rings.min(FALSE_RINGS_MOST);
                        self.false_rings = self.false_rings.saturating_add(1);
                        self.muted_until_ns = now_ns + ns;
                    }
                    return BellStep::Open;
                }
                self.state = State::Holds {
                    worked_ns,
                    rang_ns,
                    since_ns: Some(from_ns),
                    look_at_ns: open_at_ns,
                };
                BellStep::Stays
            }
        }
    }

    /// It cannot be looked at before the next tick.
    pub fn look_later(&mut self, now_ns: u64) {
        /// Longer than two ticks are apart.
        const LATER_NS: u64 = 1_000 * MS;
        if let State::Holds { look_at_ns, .. } = &mut self.state {
            *look_at_ns = now_ns + LATER_NS;
        }
        if self.muted_until_ns != 0 {
            self.muted_until_ns = now_ns + LATER_NS;
        }
    }

    /// Whether others go on now: after [`BellStep::Open`], once its doorbell was armed and it was looked at again.
    pub fn open(&mut self, now_ns: u64, seen: &Seen) -> bool {
        let moved = self.launches != Some(seen.launches);
        self.launches = Some(seen.launches);
        if (moved || seen.works(now_ns)) && !self.is_spent() {
            self.state = State::Holds {
                worked_ns: now_ns,
                rang_ns: 0,
                since_ns: None,
                look_at_ns: now_ns + LOOK_NS.0,
            };
            return false;
        }
        if let State::Holds {
            since_ns,
            worked_ns,
            ..
        } = self.state
        {
            let since_ns = since_ns.unwrap_or(seen.ended_ns.clamp(worked_ns, now_ns));
            self.state = State::Rests { since_ns };
        }
        true
    }
}

#[cfg(test)]
mod tests;
