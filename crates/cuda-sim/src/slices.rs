//! How a GPU divides its time between processes: which process has the next slice, from when, and until when. Values in,
//! values out: the engine asks at each moment at which the answer may change, and does as it says.

/// Which of the processes with a kernel to run has the next slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The next one in the order in which they joined the board.
    #[default]
    RoundRobin,
    /// The one that has run for the shortest time. A process that rested counts as at most one slice behind.
    LeastRun,
}

/// The fate of a slice whose process has no kernel to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Emptied {
    /// It ends at once.
    #[default]
    GivenUp,
    /// It lasts until its end; meanwhile the GPU is idle.
    Kept,
}

/// How a board's GPUs divide their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How long a slice lasts while another process waits, nanoseconds.
    pub slice_ns: u64,
    /// How long the GPU runs no kernel when it changes to another process, before the slice begins.
    pub switch_ns: u64,
    /// Which process is next.
    pub order: Order,
    /// The fate of a slice whose process has no kernel to run.
    pub emptied: Emptied,
}

/// The slice that a GPU is in, and what is remembered of earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Slice {
    /// The process that has it; none when the GPU has nothing to run.
    pub(crate) holder: Option<u32>,
    /// The holder of the slice before, while there is no holder: the GPU changes to it without a cost.
    pub(crate) last: Option<u32>,
    /// From when the holder's kernels run: later than the slice was given when the GPU had to change.
    pub(crate) from_ns: u64,
    /// Until when it lasts while another process waits.
    pub(crate) end_ns: u64,
    /// The holder's run time when the slice was given, as the order by run time counts it, nanoseconds.
    pub(crate) ran_ns: u64,
    /// The highest `ran_ns` of all slices: a process that rested is at most one slice behind it.
    pub(crate) reached_ns: u64,
}

/// A process with a kernel to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) process: u32,
    /// For how long its kernels have run on this GPU, as its last slice counted it, and since.
    pub(crate) ran_ns: u64,
}

impl Rules {
    /// The slice that a GPU is in from `now_ns` on; the same one while nothing changes.
    pub(crate) fn next(
        &self,
        now_ns: u64,
        slice: Slice,
        ready: impl Iterator<Item = Ready> + Clone,
    ) -> Slice {
        let is_ready = |process| ready.clone().any(|one| one.process == process);
        let runs = slice.holder.is_some_and(is_ready);
        if slice.holder.is_some()
            && now_ns < slice.end_ns
            && (runs || self.emptied == Emptied::Kept)
        {
            return slice;
        }
        let last = slice.holder.or(slice.last);
        let Some((ran_ns, next)) = self.choose(last, slice.reached_ns, ready) else {
            return Slice {
                holder: None,
                last,
                ..slice
            };
        };
        if runs && slice.holder == Some(next) {
            // Counted from its first slice, so that it does not matter when a process looks.
            let whole = (now_ns - slice.end_ns) / self.slice_ns + 1;
            return Slice {
                end_ns: slice.end_ns + whole * self.slice_ns,
                ran_ns,
                reached_ns: slice.reached_ns.max(ran_ns),
                ..slice
            };
        }
        let changes = last.is_some_and(|last| last != next);
        let from_ns = now_ns + if changes { self.switch_ns } else { 0 };
        Slice {
            holder: Some(next),
            last,
            from_ns,
            end_ns: from_ns + self.slice_ns,
            ran_ns,
            reached_ns: slice.reached_ns.max(ran_ns),
        }
    }

    /// The process with the next slice, behind what its run time counts as.
    fn choose(
        &self,
        last: Option<u32>,
        reached_ns: u64,
        ready: impl Iterator<Item = Ready>,
    ) -> Option<(u64, u32)> {
        let after_last = |process: u32| process.wrapping_sub(last.map_or(0, |last| last + 1));
        match self.order {
            Order::RoundRobin => ready
                .min_by_key(|one| after_last(one.process))
                .map(|one| (0, one.process)),
            Order::LeastRun => {
                let least_ns = reached_ns.saturating_sub(self.slice_ns);
                ready
                    .map(|one| (one.ran_ns.max(least_ns), one.process))
                    .min_by_key(|(ran_ns, process)| (*ran_ns, after_last(*process)))
            }
        }
    }

    /// When [`Rules::next`] may say something else although no process's work has changed.
    pub(crate) fn changes_at(&self, now_ns: u64, slice: Slice, others_wait: bool) -> Option<u64> {
        slice.holder?;
        if now_ns < slice.from_ns {
            return Some(slice.from_ns);
        }
        // These two decide at each slice's end, so that it does not matter when a process looks.
        let always = self.order == Order::LeastRun || self.emptied == Emptied::Kept;
        (others_wait || always).then_some(slice.end_ns)
    }
}

impl Slice {
    /// Whether a process's kernels run.
    pub(crate) fn runs(&self, process: u32, now_ns: u64) -> bool {
        self.holder == Some(process) && self.from_ns <= now_ns
    }

    /// The slice after its holder is gone.
    pub(crate) fn without(self, process: u32) -> Slice {
        if self.holder == Some(process) {
            Slice {
                holder: None,
                last: self.holder,
                ..self
            }
        } else {
            self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn rules() -> Rules {
        Rules {
            slice_ns: 2 * MS,
            switch_ns: 0,
            order: Order::RoundRobin,
            emptied: Emptied::GivenUp,
        }
    }

    /// Kernels of a process: it becomes ready at a millisecond, with so much to run.
    type Arrival = (u64, u32, u64);

    fn ready<'a>(
        left: &'a [u64; 4],
        ran: &'a [u64; 4],
    ) -> impl Iterator<Item = Ready> + Clone + 'a {
        let both = left.iter().zip(ran).zip(0..);
        both.filter(|((left, _), _)| **left > 0)
            .map(|((_, ran), process)| Ready {
                process,
                ran_ns: *ran,
            })
    }

    /// Plays arrivals for `ms` milliseconds, and says which process ran from when to when: `0:0-2` is process 0 in the
    /// first two milliseconds.
    fn played(rules: &Rules, arrivals: &[Arrival], ms: u64) -> String {
        let mut left = [0_u64; 4];
        let mut ran = [0_u64; 4];
        let mut slice = Slice::default();
        let mut runs: Vec<(u32, u64, u64)> = Vec::new();
        let mut now = 0;
        loop {
            let before = slice;
            // As the engine does: a process looks before it adds work.
            slice = rules.next(now, slice, ready(&left, &ran));
            for (at, process, ms) in arrivals {
                if at * MS == now {
                    left[*process as usize] += ms * MS;
                }
            }
            slice = rules.next(now, slice, ready(&left, &ran));
            let others = ready(&left, &ran).any(|one| Some(one.process) != slice.holder);
            if let Some(holder) = slice.holder.filter(|_| slice != before) {
                ran[holder as usize] = slice.ran_ns;
            }
            if now >= ms * MS {
                break;
            }
            let running = slice
                .holder
                .filter(|holder| slice.runs(*holder, now) && left[*holder as usize] > 0);
            let next = arrivals
                .iter()
                .map(|(at, ..)| at * MS)
                .chain(rules.changes_at(now, slice, others))
                .chain(running.map(|process| now + left[process as usize]))
                .chain([ms * MS])
                .filter(|at| *at > now)
                .min()
                .unwrap();
            if let Some(process) = running {
                left[process as usize] -= next - now;
                ran[process as usize] += next - now;
                match runs.last_mut() {
                    Some((last, _, to)) if *last == process && *to == now => *to = next,
                    _ => runs.push((process, now, next)),
                }
            }
            now = next;
        }
        let told = |ns: u64| ns as f64 / MS as f64;
        let each = runs
            .iter()
            .map(|(process, from, to)| format!("{process}:{}-{}", told(*from), told(*to)));
        each.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn round_robin_gives_each_process_a_slice_in_turn() {
        let arrivals = [(0, 0, 100), (0, 1, 100), (0, 2, 100)];

        assert_eq!(
            played(&rules(), &arrivals, 10),
            "0:0-2 1:2-4 2:4-6 0:6-8 1:8-10"
        );
    }

    #[test]
    fn slice_of_another_length_lasts_that_long() {
        let rules = Rules {
            slice_ns: MS / 2,
            ..rules()
        };

        assert_eq!(
            played(&rules, &[(0, 0, 9), (0, 1, 9)], 2),
            "0:0-0.5 1:0.5-1 0:1-1.5 1:1.5-2"
        );
    }

    #[test]
    fn slice_is_given_up_when_the_queue_is_empty() {
        let arrivals = [(0, 0, 1), (0, 1, 100), (4, 0, 1)];

        assert_eq!(played(&rules(), &arrivals, 8), "0:0-1 1:1-5 0:5-6 1:6-8");
    }

    #[test]
    fn kept_slice_leaves_the_gpu_idle_until_its_end() {
        let rules = Rules {
            emptied: Emptied::Kept,
            ..rules()
        };

        // Process 0 has nothing to run from 1 to 2, and from 5 to 6.
        assert_eq!(
            played(&rules, &[(0, 0, 1), (0, 1, 100), (3, 0, 1)], 8),
            "0:0-1 1:2-4 0:4-5 1:6-8"
        );
        // Work that arrives within the slice runs in it.
        assert_eq!(
            played(
                &Rules {
                    slice_ns: 4 * MS,
                    ..rules
                },
                &[(0, 0, 1), (0, 1, 100), (2, 0, 1)],
                8
            ),
            "0:0-1 0:2-3 1:4-8"
        );
    }

    #[test]
    fn kept_slice_ends_although_no_process_waits() {
        let rules = Rules {
            emptied: Emptied::Kept,
            ..rules()
        };

        // Process 1 arrives after the slice of process 0, and waits for nothing.
        assert_eq!(played(&rules, &[(0, 0, 1), (3, 1, 1)], 6), "0:0-1 1:3-4");
    }

    #[test]
    fn change_of_process_costs_the_switch_before_the_slice() {
        let rules = Rules {
            switch_ns: MS,
            ..rules()
        };

        assert_eq!(
            played(&rules, &[(0, 0, 100), (0, 1, 100)], 9),
            "0:0-2 1:3-5 0:6-8"
        );
        // The same process again is no change.
        assert_eq!(
            played(&rules, &[(0, 0, 1), (3, 0, 1), (6, 1, 1)], 9),
            "0:0-1 0:3-4 1:7-8"
        );
    }

    #[test]
    fn least_run_first_lets_the_process_that_ran_less_catch_up() {
        let least = Rules {
            order: Order::LeastRun,
            ..rules()
        };
        // Process 2 rests after each of its kernels; the two others always have work.
        let arrivals = [(0, 0, 100), (0, 1, 100), (0, 2, 1), (6, 2, 1)];

        // In turn, it waits for both; as the one that ran least, only for the slice that has begun.
        assert_eq!(
            played(&rules(), &arrivals, 12),
            "0:0-2 1:2-4 2:4-5 0:5-7 1:7-9 2:9-10 0:10-12"
        );
        assert_eq!(
            played(&least, &arrivals, 12),
            "0:0-2 1:2-4 2:4-5 0:5-7 2:7-8 1:8-10 0:10-12"
        );
    }

    #[test]
    fn rested_process_is_at_most_one_slice_behind() {
        let least = Rules {
            order: Order::LeastRun,
            ..rules()
        };
        let arrivals = [(0, 0, 100), (21, 1, 100)];

        // It has two slices in succession, not ten.
        assert_eq!(played(&least, &arrivals, 28), "0:0-22 1:22-26 0:26-28");
    }

    #[test]
    fn looking_more_often_changes_nothing() {
        for order in [Order::RoundRobin, Order::LeastRun] {
            for emptied in [Emptied::GivenUp, Emptied::Kept] {
                let rules = Rules {
                    slice_ns: 3 * MS,
                    switch_ns: MS,
                    order,
                    emptied,
                };
                let arrivals = [(0, 0, 5), (7, 0, 8), (9, 1, 7), (11, 2, 2), (30, 0, 1)];
                let often: Vec<Arrival> = arrivals
                    .into_iter()
                    .chain((0..40).map(|at| (at, 3, 0)))
                    .collect();

                let rarely = played(&rules, &arrivals, 40);

                assert_eq!(played(&rules, &often, 40), rarely);
            }
        }
    }

    #[test]
    fn dead_holder_leaves_the_gpu_at_once() {
        let slice = Slice {
            holder: Some(1),
            end_ns: 9,
            ..Slice::default()
        };

        assert_eq!(slice.without(1).holder, None);
        assert_eq!(slice.without(1).last, Some(1));
        assert_eq!(slice.without(0), slice);
    }
}
