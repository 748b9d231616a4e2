//! What launches have cost: by function and shape, and by executable graph. A table of fixed size in
//! memory that a fork wipes; the oldest knowledge makes room. Measures nothing: `spans.rs` does.

use core::sync::atomic::{AtomicU64, Ordering};

/// What is launched, as far as its cost depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// Names function and shape, or the graph; never 0.
    pub(crate) key: u64,
    /// Names the function alone; 0 for a graph.
    pub(crate) function: u64,
    /// Threads that the launch makes.
    pub(crate) threads: u64,
}

/// What is known of a launch's cost, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// It was measured.
    Known(u64),
    /// The same function was measured with another shape.
    Guessed(u64),
    /// Nothing is known.
    Unknown,
}

impl Work {
    /// A kernel with this grid and block.
    #[inline(always)]
    pub(crate) fn kernel(function: usize, grid: [u32; 3], block: [u32; 3]) -> Self {
        let [gx, gy, gz] = grid.map(u64::from);
        let [bx, by, bz] = block.map(u64::from);
        let function = mix(function as u64);
        let shape = gx ^ gy << 31 ^ gz << 47;
        let block_shape = bx ^ by << 11 ^ bz << 22;
        Self {
            key: mix(function ^ shape.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ block_shape << 3) | 1,
            function: function | 1,
            threads: gx
                .wrapping_mul(gy)
                .wrapping_mul(gz)
                .wrapping_mul(bx.wrapping_mul(by).wrapping_mul(bz)),
        }
    }

    /// An executable graph.
    #[inline(always)]
    pub(crate) fn graph(exec: usize) -> Self {
        Self {
            key: mix(exec as u64 ^ 0x6772_6170_6800_0000) | 1,
            function: 0,
            threads: 0,
        }
    }
}

#[inline(always)]
fn mix(value: u64) -> u64 {
    let value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value ^ value >> 29
}

const CELLS: usize = 4096;
/// Places that an entry may stand at, from its home on.
const PROBES: usize = 4;
/// A cost word: nanoseconds from this bit on; how often it was measured (up to 255) below.
const COST_SHIFT: u32 = 8;

/// What takes so many times the least that it ever took is still itself.
const PATIENCE: u64 = 4;
/// Unless that is so much longer: a kernel that waits for another rank's is charged no more for it, else
/// each of the two waits for credit while the other waits for it, and both for longer and longer.
pub(crate) const MOST_WAITING_NS: u64 = 50_000_000;
/// What is shorter than that is never odd.
const MOST_ODD_NS: u64 = 5_000_000;
/// The same for a launch that was never measured before.
const MOST_UNKNOWN_NS: u64 = 200_000_000;

#[repr(C)]
struct Cell {
    key: AtomicU64,
    cost: AtomicU64,
    /// Of a function's own entry: threads of the launch that was measured last.
    threads: AtomicU64,
    /// The least that it was measured at, nanoseconds.
    least: AtomicU64,
}

/// See the module's text. All zeros is an empty one.
#[repr(C)]
pub(crate) struct Costs {
    cells: [Cell; CELLS],
}

impl Costs {
    #[inline(always)]
    fn places(&self, key: u64) -> impl Iterator<Item = &Cell> {
        let home = usize::try_from(key >> 40).unwrap_or(0);
        (0..PROBES).filter_map(move |step| self.cells.get((home + step) % CELLS))
    }

    #[inline(always)]
    fn cell(&self, key: u64) -> Option<&Cell> {
        // Relaxed: an entry that changes hands in this moment gives a wrong estimate, which the next
        // measurement corrects.
        self.places(key)
            .find(|cell| cell.key.load(Ordering::Relaxed) == key)
    }

    /// What this very launch has cost, nanoseconds.
    #[inline(always)]
    pub(crate) fn known(&self, key: u64) -> Option<u64> {
        // Relaxed: see `cell`.
        let cost = self.cell(key)?.cost.load(Ordering::Relaxed);
        (cost != 0).then_some(cost >> COST_SHIFT)
    }

    /// The least that it has ever cost, nanoseconds; 0 where nothing is known.
    pub(crate) fn least(&self, key: u64) -> u64 {
        // Relaxed: see `cell`.
        self.cell(key)
            .map_or(0, |cell| cell.least.load(Ordering::Relaxed))
    }

    /// The most that this launch is charged, whatever was measured, nanoseconds: a kernel that runs so much
    /// longer than its fastest run is waiting for other work.
    fn most(&self, key: u64) -> u64 {
        match self.least(key) {
            0 => MOST_UNKNOWN_NS,
            least => with_patience(least),
        }
    }

    /// What it is expected to cost.
    pub(crate) fn expected(&self, work: &Work) -> Expected {
        if let Some(ns) = self.known(work.key) {
            return Expected::Known(ns);
        }
        let guess = || {
            let cell = self.cell(work.function).filter(|_| work.function != 0)?;
            // Relaxed: see `cell`.
            let cost = cell.cost.load(Ordering::Relaxed);
            let threads = cell.threads.load(Ordering::Relaxed).max(1);
            (cost != 0).then(|| scaled(cost >> COST_SHIFT, work.threads.max(1), threads))
        };
        guess().map_or(Expected::Unknown, Expected::Guessed)
    }

    /// It was measured at this much, nanoseconds. Answers how much of it counts.
    pub(crate) fn learn(&self, work: &Work, ns: u64) -> u64 {
        let ns = ns.min(self.most(work.key));
        self.learn_one(work.key, ns);
        if work.function != 0 {
            self.learn_one(work.function, ns);
            if let Some(cell) = self.cell(work.function) {
                // Relaxed: see `cell`. A function's own entry is the launch that was measured last.
                cell.threads.store(work.threads.max(1), Ordering::Relaxed);
                cell.cost.store(ns << COST_SHIFT | 1, Ordering::Relaxed);
            }
        }
        ns
    }

    fn learn_one(&self, key: u64, ns: u64) {
        let Some(cell) = self.cell(key).or_else(|| self.take(key)) else {
            return;
        };
        // Relaxed: see `cell`.
        let old = cell.cost.load(Ordering::Relaxed);
        let least = cell.least.load(Ordering::Relaxed);
        if old == 0 || ns < least {
            cell.least.store(ns.max(1), Ordering::Relaxed);
        }
        let next = next_cost(old >> COST_SHIFT, old & 0xff, ns);
        let times = ((old & 0xff) + 1).min(0xff);
        cell.cost
            .store(next << COST_SHIFT | times, Ordering::Relaxed);
    }

    /// A place for a new entry: a free one, else that of the entry that was measured least.
    fn take(&self, key: u64) -> Option<&Cell> {
        // Relaxed throughout: see `cell`.
        let rank = |cell: &&Cell| match cell.key.load(Ordering::Relaxed) {
            0 => 0,
            _ => 1 + (cell.cost.load(Ordering::Relaxed) & 0xff),
        };
        let cell = self.places(key).min_by_key(rank)?;
        cell.cost.store(0, Ordering::Relaxed);
        cell.least.store(0, Ordering::Relaxed);
        cell.key.store(key, Ordering::Relaxed);
        Some(cell)
    }

    /// Nothing is known of it any more: its name now stands for something else.
    pub(crate) fn forget(&self, key: u64) {
        if let Some(cell) = self.cell(key) {
            // Relaxed: see `cell`.
            cell.cost.store(0, Ordering::Relaxed);
            cell.least.store(0, Ordering::Relaxed);
            cell.key.store(0, Ordering::Relaxed);
        }
    }
}

/// How long what takes so long at least may take and still be itself, nanoseconds.
fn with_patience(ns: u64) -> u64 {
    let longer = ns
        .saturating_mul(PATIENCE - 1)
        .clamp(MOST_ODD_NS, MOST_WAITING_NS);
    ns.saturating_add(longer)
}

/// A cost for other threads than were measured: in proportion upwards; downwards no less than a
/// sixteenth, since every launch has a part that does not depend on its size.
fn scaled(ns: u64, threads: u64, measured_threads: u64) -> u64 {
    let scaled = u128::from(ns) * u128::from(threads) / u128::from(measured_threads);
    u64::try_from(scaled)
        .unwrap_or(u64::MAX)
        .clamp(ns / 16, ns.saturating_mul(64))
}

fn next_cost(old: u64, times: u64, ns: u64) -> u64 {
    if times == 0 {
        return ns;
    }
    let weight = (times + 1).min(4);
    if ns > old {
        old + (ns - old) / weight
    } else {
        old - (old - ns) / weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Box<Costs> {
        // SAFETY: all zeros is an empty table.
        unsafe { Box::<Costs>::new_zeroed().assume_init() }
    }

    fn kernel(function: usize, blocks: u32) -> Work {
        Work::kernel(function, [blocks, 1, 1], [256, 1, 1])
    }

    #[test]
    fn what_was_measured_is_known_and_another_shape_is_guessed() {
        let costs = empty();
        costs.learn(&kernel(0x7000, 100), 20_000);

        assert_eq!(
            costs.expected(&kernel(0x7000, 100)),
            Expected::Known(20_000)
        );
        assert_eq!(
            costs.expected(&kernel(0x7000, 200)),
            Expected::Guessed(40_000)
        );
        assert_eq!(costs.expected(&kernel(0x7000, 1)), Expected::Guessed(1_250));
        assert_eq!(costs.expected(&kernel(0x7010, 100)), Expected::Unknown);
        assert_eq!(costs.expected(&Work::graph(0x7000)), Expected::Unknown);
    }

    #[test]
    fn what_takes_far_longer_than_it_ever_did_waits_for_somebody() {
        let costs = empty();
        let work = kernel(0x7000, 100);

        assert_eq!(costs.learn(&work, 50_000), 50_000);
        assert_eq!(costs.learn(&work, 7_000_000_000), 50_000 + MOST_ODD_NS);
        assert_eq!(costs.learn(&work, 150_000), 150_000);
        assert_eq!(costs.least(work.key), 50_000);
    }

    #[test]
    fn an_estimate_follows_what_is_measured() {
        let costs = empty();
        let work = kernel(0x7000, 100);
        costs.learn(&work, 10_000);
        for _ in 0..40 {
            costs.learn(&work, 50_000);
        }

        let ns = costs.known(work.key).unwrap();
        assert!((49_900..=50_000).contains(&ns), "{ns}");
    }

    #[test]
    fn a_name_that_stands_for_something_else_is_unknown_again() {
        let costs = empty();
        let work = Work::graph(0x7000);
        costs.learn(&work, 10_000);
        costs.forget(work.key);

        assert_eq!(costs.expected(&work), Expected::Unknown);
    }

    #[test]
    fn more_launches_than_there_is_room_for_are_remembered_as_far_as_it_goes() {
        let costs = empty();
        for function in 0..20_000 {
            costs.learn(&kernel(0x1000 + function * 16, 7), 5_000);
        }
        let newest = kernel(0x1000 + 19_999 * 16, 7);

        assert_eq!(costs.expected(&newest), Expected::Known(5_000));
    }
}
