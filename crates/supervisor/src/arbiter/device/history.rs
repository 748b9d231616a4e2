//! What an arbiter remembers of a container from tick to tick: when it last worked, when it was last held back, and how
//! long its launches waited. Values in, values out.

use std::collections::HashMap;

use super::Tenant;

/// A container that was held back within this time wants more than it gets.
pub(super) const HUNGRY_NS: u64 = 100_000_000;
/// Work in flight that has not changed for this long was abandoned.
const STALE_NS: u64 = 5_000_000_000;
/// At each tick the most work in flight that is remembered falls by one part in this many: a launch that is over between
/// two ticks counts for a second.
const IN_FLIGHT_FALLS: u64 = 16;
/// The span of the throttled share that is shown.
const SHOWN_NS: u64 = 1_000_000_000;

/// The facts about a container that one tick keeps for the next.
#[derive(Debug, Default)]
pub(super) struct ContainerHistory {
    /// When it last worked, or waited to.
    pub(super) worked_at_ns: Option<u64>,
    /// When it was last held back.
    pub(super) hungry_at_ns: Option<u64>,
    /// The most work that a process lately had in flight, nanoseconds.
    pub(super) most_in_flight_ns: u64,
    throttled: Vec<(u64, u64)>,
    looked_at_ns: Option<u64>,
    processes: HashMap<(usize, u64), Moved>,
}

#[derive(Debug, Clone, Copy)]
struct Moved {
    launches: u64,
    busy_ns: u64,
    in_flight_ns: u64,
    throttled_ns: u64,
    waited_ns: u64,
    at_ns: u64,
}

impl ContainerHistory {
    /// What its processes have done since the last look.
    pub(super) fn look(&mut self, now_ns: u64, tenant: &Tenant) {
        let mut processes = HashMap::with_capacity(tenant.processes.len());
        let mut throttled_ns = 0_u64;
        let in_flight = tenant.processes.iter().map(|process| process.in_flight_ns);
        let fallen_ns = self.most_in_flight_ns - self.most_in_flight_ns / IN_FLIGHT_FALLS;
        self.most_in_flight_ns = fallen_ns.max(in_flight.max().unwrap_or(0));
        for process in &tenant.processes {
            let was = self.processes.get(&process.slot);
            let same = was.filter(|was| {
                was.launches == process.launches
                    && was.busy_ns == process.busy_ns
                    && was.in_flight_ns == process.in_flight_ns
                    && was.throttled_ns == process.throttled_ns
            });
            let moved_at_ns = match (same, was) {
                (Some(same), _) => same.at_ns,
                (None, Some(_)) => now_ns,
                // Seen for the first time: the region's own moment, where it keeps one.
                (None, None) => process.last_launch_ns.min(now_ns),
            };
            let moved = same.is_none() && was.is_some();
            let in_flight =
                process.in_flight_ns > 0 && now_ns.saturating_sub(moved_at_ns) <= STALE_NS;
            if moved || in_flight || process.is_waiting() {
                self.worked_at_ns = Some(now_ns);
            } else if was.is_none() && process.last_launch_ns != 0 {
                self.worked_at_ns = self.worked_at_ns.max(Some(moved_at_ns));
            }
            let waited_ns = process.waited_ns(now_ns);
            let held = waited_ns.saturating_sub(was.map_or(waited_ns, |was| was.waited_ns));
            if process.is_waiting() || held > 0 {
                self.hungry_at_ns = Some(now_ns);
            }
            throttled_ns = throttled_ns.saturating_add(held);
            processes.insert(
                process.slot,
                Moved {
                    launches: process.launches,
                    busy_ns: process.busy_ns,
                    in_flight_ns: process.in_flight_ns,
                    throttled_ns: process.throttled_ns,
                    waited_ns,
                    at_ns: moved_at_ns,
                },
            );
        }
        self.processes = processes;
        // Threads that wait at the same moment do not make the time since the last look longer.
        let passed_ns = self.looked_at_ns.map_or(0, |at| now_ns.saturating_sub(at));
        let throttled_ns = throttled_ns.min(passed_ns);
        self.looked_at_ns = Some(now_ns);
        self.throttled
            .retain(|(at, _)| now_ns.saturating_sub(*at) < SHOWN_NS);
        if throttled_ns > 0 {
            self.throttled.push((now_ns, throttled_ns));
        }
    }

    /// How long launches have waited in the last second, thousandths.
    pub(super) fn throttled_permille(&self, now_ns: u64) -> u16 {
        let recent = self
            .throttled
            .iter()
            .filter(|(at, _)| now_ns.saturating_sub(*at) < SHOWN_NS);
        let sum = recent.fold(0_u64, |sum, (_, ns)| sum.saturating_add(*ns));
        u16::try_from((sum.saturating_mul(1000) / SHOWN_NS).min(1000)).unwrap_or(1000)
    }
}
