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
    /// Time in which launches of it waited so far, nanoseconds.
    pub(super) waited_ns: u64,
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
        self.waited_ns = self.waited_ns.saturating_add(throttled_ns);
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

#[cfg(test)]
mod tests {
    use vgpu_abi::limits::Policy;

    use super::super::Process;
    use super::*;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1_000 * MS;

    const IDLE: Process = Process {
        slot: (0, 1),
        host_pid: Some(1),
        launches: 5,
        busy_ns: 50,
        occupied_ns: 0,
        in_flight_ns: 0,
        last_launch_ns: 0,
        expected_by_ns: 0,
        ended_ns: 0,
        waiting_since_ns: 0,
        throttled_ns: 0,
    };

    fn tenant(processes: &[Process]) -> Tenant {
        Tenant {
            id: 1,
            policy: Policy::Default,
            priority: 0,
            cap: 500,
            floor: 0,
            held_bytes: 0,
            oversubscribed_bytes: 0,
            keeps_intervals: true,
            processes: processes.to_vec(),
        }
    }

    /// What is remembered after looks at one process at these times.
    fn after(looks: &[(u64, Process)]) -> ContainerHistory {
        let mut history = ContainerHistory::default();
        for (now_ns, process) in looks {
            history.look(*now_ns, &tenant(&[*process]));
        }
        history
    }

    #[test]
    fn any_count_that_changes_is_work() {
        let changes: [fn(&mut Process); 4] = [
            |process| process.launches += 1,
            |process| process.busy_ns += 1,
            |process| process.throttled_ns += 1,
            // Less is in flight: some of it has ended.
            |process| process.in_flight_ns = 0,
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let was = Process {
                in_flight_ns: 7,
                ..IDLE
            };
            let mut is = was;
            change(&mut is);
            // Later than work in flight that does not change counts.
            let worked = after(&[(SECOND, was), (20 * SECOND, is)]).worked_at_ns;
            assert_eq!(worked, Some(20 * SECOND), "{index}");
        }
        assert_eq!(
            after(&[(SECOND, IDLE), (2 * SECOND, IDLE)]).worked_at_ns,
            None
        );
    }

    #[test]
    fn process_seen_first_worked_when_it_last_launched() {
        let launched_at = |last_launch_ns| Process {
            last_launch_ns,
            ..IDLE
        };
        let worked = |last_launch_ns| after(&[(SECOND, launched_at(last_launch_ns))]).worked_at_ns;
        assert_eq!(worked(300 * MS), Some(300 * MS));
        // The region keeps no such moment, or the tenant has written one to come.
        assert_eq!(worked(0), None);
        assert_eq!(worked(u64::MAX), Some(SECOND));
        // Another process of the container that launched earlier takes nothing back.
        let mut history = after(&[(SECOND, launched_at(300 * MS))]);
        let newcomer = Process {
            slot: (1, 1),
            ..launched_at(200 * MS)
        };
        history.look(2 * SECOND, &tenant(&[launched_at(300 * MS), newcomer]));
        assert_eq!(history.worked_at_ns, Some(300 * MS));
    }

    #[test]
    fn work_in_flight_counts_for_five_seconds_without_a_change() {
        let busy = Process {
            in_flight_ns: 7,
            last_launch_ns: SECOND,
            ..IDLE
        };
        let worked = |last_ns| after(&[(SECOND, busy), (last_ns, busy)]).worked_at_ns;
        assert_eq!(worked(6 * SECOND), Some(6 * SECOND));
        assert_eq!(worked(6 * SECOND + 1), Some(SECOND));
    }

    #[test]
    fn launch_that_waits_is_work_and_holds_the_container_back() {
        let waits = Process {
            waiting_since_ns: SECOND,
            ..IDLE
        };
        let history = after(&[(SECOND, IDLE), (2 * SECOND, waits)]);
        assert_eq!(history.worked_at_ns, Some(2 * SECOND));
        assert_eq!(history.hungry_at_ns, Some(2 * SECOND));
        // A wait that began and ended between two looks does, too; one that ended before the first look does not.
        let waited = |throttled_ns| Process {
            throttled_ns,
            ..IDLE
        };
        let between = after(&[(SECOND, waited(3)), (2 * SECOND, waited(4))]);
        assert_eq!(between.hungry_at_ns, Some(2 * SECOND));
        assert_eq!(after(&[(SECOND, waited(3))]).hungry_at_ns, None);
        assert_eq!(
            after(&[(SECOND, IDLE), (2 * SECOND, IDLE)]).hungry_at_ns,
            None
        );
    }

    #[test]
    fn most_work_in_flight_falls_slowly() {
        let flying = |in_flight_ns| Process {
            in_flight_ns,
            ..IDLE
        };
        let mut history = after(&[(SECOND, flying(1_600))]);
        assert_eq!(history.most_in_flight_ns, 1_600);
        history.look(SECOND + 50 * MS, &tenant(&[flying(100)]));
        assert_eq!(history.most_in_flight_ns, 1_500);
        history.look(SECOND + 100 * MS, &tenant(&[]));
        assert_eq!(history.most_in_flight_ns, 1_500 - 1_500 / 16);
        let second = Process {
            slot: (1, 1),
            ..flying(2_000)
        };
        history.look(SECOND + 150 * MS, &tenant(&[flying(100), second]));
        assert_eq!(history.most_in_flight_ns, 2_000);
    }

    #[test]
    fn waiting_share_is_no_longer_than_the_time_between_two_looks() {
        let waited = |throttled_ns| Process {
            throttled_ns,
            ..IDLE
        };
        // Threads waited for 5 s together, within 100 ms.
        let mut history = after(&[(SECOND, waited(0)), (SECOND + 100 * MS, waited(5 * SECOND))]);
        assert_eq!(history.throttled_permille(SECOND + 100 * MS), 100);
        // It is shown for a second.
        assert_eq!(history.throttled_permille(2 * SECOND + 100 * MS - 1), 100);
        assert_eq!(history.throttled_permille(2 * SECOND + 100 * MS), 0);
        history.look(3 * SECOND, &tenant(&[waited(5 * SECOND + MS)]));
        assert_eq!(history.throttled_permille(3 * SECOND), 1);
    }
}
