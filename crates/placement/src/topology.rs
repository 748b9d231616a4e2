//! Which devices are connected best: the best subset of a given size. Does not ask whether they fit.

/// The search examines at most this many partial choices. Only dozens of devices with unusual scores reach the limit;
/// then the best choice found so far is taken.
const MOST_STEPS: u32 = 400_000;

/// Of `count` devices, the `take` with the greatest sum of pair scores, as positions in ascending order. Of several
/// such choices, it is the first in lexicographic order. `pair` is symmetric.
///
/// Branch and bound over the choices in lexicographic order. A partial choice is dropped when even the most that each
/// remaining device could add would not beat the best choice found.
pub(crate) fn best_subset(
    count: usize,
    take: usize,
    pair: impl Fn(usize, usize) -> i64,
) -> Vec<usize> {
    if take >= count {
        return (0..count).collect();
    }
    if take == 0 {
        return Vec::new();
    }
    let mut search = GroupSearch::new(count, take, pair);
    search.best_sum = search.greedy_sum().saturating_sub(1);
    search.extend(0, 0);
    if search.best.len() == take {
        search.best
    } else {
        search.greedy()
    }
}

/// The one device that the others miss least: the position with the smallest sum of pair scores, the first of
/// several.
pub(crate) fn least_missed(count: usize, pair: impl Fn(usize, usize) -> i64) -> usize {
    (0..count)
        .min_by_key(|&device| {
            (0..count)
                .filter(|&other| other != device)
                .map(|other| pair(device, other))
                .sum::<i64>()
        })
        .unwrap_or(0)
}

struct GroupSearch<F> {
    count: usize,
    take: usize,
    pair: F,
    /// For each device: the sum of its greatest 0, 1, … pair scores, over all other devices.
    greatest: Vec<Vec<i64>>,
    chosen: Vec<usize>,
    /// For each device: the sum of its pair scores with the chosen ones.
    gain: Vec<i64>,
    best: Vec<usize>,
    best_sum: i64,
    steps: u32,
    scratch: Vec<i64>,
}

#[allow(
    clippy::indexing_slicing,
    reason = "positions are below `count`, which is the length of every list here"
)]
impl<F: Fn(usize, usize) -> i64> GroupSearch<F> {
    fn new(count: usize, take: usize, pair: F) -> Self {
        let greatest = (0..count)
            .map(|device| {
                let mut scores: Vec<i64> = (0..count)
                    .filter(|&other| other != device)
                    .map(|other| pair(device, other))
                    .collect();
                scores.sort_unstable_by(|a, b| b.cmp(a));
                let mut sums = vec![0];
                let mut sum = 0;
                for score in scores {
                    sum += score;
                    sums.push(sum);
                }
                sums
            })
            .collect();
        Self {
            count,
            take,
            pair,
            greatest,
            chosen: Vec::with_capacity(take),
            gain: vec![0; count],
            best: Vec::new(),
            best_sum: 0,
            steps: 0,
            scratch: Vec::with_capacity(count),
        }
    }

    /// Extends the choice with devices from `from` on; `sum` is the choice's present sum.
    fn extend(&mut self, from: usize, sum: i64) {
        let missing = self.take - self.chosen.len();
        if missing == 0 {
            if sum > self.best_sum {
                self.best_sum = sum;
                self.best.clone_from(&self.chosen);
            }
            return;
        }
        self.steps += 1;
        if self.steps > MOST_STEPS || sum + self.most_to_add(from, missing) <= self.best_sum {
            return;
        }
        for device in from..=self.count - missing {
            let added = self.gain[device];
            self.choose(device, 1);
            self.extend(device + 1, sum + added);
            self.choose(device, -1);
        }
    }

    /// An upper bound on what any `missing` of the devices from `from` on could add.
    fn most_to_add(&mut self, from: usize, missing: usize) -> i64 {
        // Twice the value that a device adds, because each pair among the missing ones is counted at both its ends.
        self.scratch.clear();
        self.scratch.extend(
            (from..self.count)
                .map(|device| 2 * self.gain[device] + self.greatest[device][missing - 1]),
        );
        if self.scratch.len() > missing {
            self.scratch
                .select_nth_unstable_by(missing - 1, |a, b| b.cmp(a));
        }
        let twice: i64 = self.scratch.iter().take(missing).sum();
        twice.div_euclid(2) + i64::from(twice.rem_euclid(2) != 0)
    }

    fn choose(&mut self, device: usize, sign: i64) {
        if sign > 0 {
            self.chosen.push(device);
        } else {
            self.chosen.pop();
        }
        for other in 0..self.count {
            if other != device {
                self.gain[other] += sign * (self.pair)(device, other);
            }
        }
    }

    /// The best pair, then always the device that adds most.
    fn greedy(&self) -> Vec<usize> {
        let mut chosen: Vec<usize> = Vec::with_capacity(self.take);
        while chosen.len() < self.take {
            let worth = |device: usize| -> i64 {
                if chosen.is_empty() {
                    self.greatest[device][1.min(self.greatest[device].len() - 1)]
                } else {
                    chosen.iter().map(|&other| (self.pair)(device, other)).sum()
                }
            };
            let next = (0..self.count)
                .filter(|device| !chosen.contains(device))
                .max_by(|&a, &b| worth(a).cmp(&worth(b)).then(b.cmp(&a)));
            match next {
                Some(device) => chosen.push(device),
                None => break,
            }
        }
        chosen.sort_unstable();
        chosen
    }

    fn greedy_sum(&self) -> i64 {
        let chosen = self.greedy();
        let mut sum = 0;
        for (position, &one) in chosen.iter().enumerate() {
            for &other in &chosen[position + 1..] {
                sum += (self.pair)(one, other);
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exhaustive(count: usize, take: usize, pair: &dyn Fn(usize, usize) -> i64) -> Vec<usize> {
        fn go(
            from: usize,
            count: usize,
            take: usize,
            chosen: &mut Vec<usize>,
            all: &mut Vec<Vec<usize>>,
        ) {
            if chosen.len() == take {
                all.push(chosen.clone());
                return;
            }
            for device in from..count {
                chosen.push(device);
                go(device + 1, count, take, chosen, all);
                chosen.pop();
            }
        }
        let mut all = Vec::new();
        go(0, count, take.min(count), &mut Vec::new(), &mut all);
        let sum = |set: &Vec<usize>| -> i64 {
            let mut sum = 0;
            for (at, &one) in set.iter().enumerate() {
                for &other in &set[at + 1..] {
                    sum += pair(one, other);
                }
            }
            sum
        };
        let mut best = all[0].clone();
        for set in all {
            if sum(&set) > sum(&best) {
                best = set;
            }
        }
        best
    }

    proptest! {
        #[test]
        fn branch_and_bound_chooses_what_exhaustive_search_chooses(
            count in 1_usize..9,
            take in 0_usize..9,
            scores in proptest::collection::vec(prop_oneof![Just(10_i64), Just(20), Just(100), -50_i64..300], 81),
        ) {
            let pair = |a: usize, b: usize| scores[a.min(b) * 9 + a.max(b)];

            let found = best_subset(count, take, pair);

            prop_assert_eq!(found, exhaustive(count, take, &pair));
        }
    }

    #[test]
    fn thirty_two_of_64_devices_are_four_whole_boards_of_eight() {
        let pair = |a: usize, b: usize| if a / 8 == b / 8 { 300 } else { 20 };

        let found = best_subset(64, 32, pair);

        assert_eq!(found, (0..32).collect::<Vec<_>>());
    }

    #[test]
    fn least_missed_device_is_the_one_without_fast_links() {
        let pair = |a: usize, b: usize| if a == 2 || b == 2 { 10 } else { 100 };

        assert_eq!(least_missed(4, pair), 2);
    }
}
