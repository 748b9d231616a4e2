//! The costs of past launches: by function and shape, and by executable graph. A table of fixed size in
//! memory that a fork wipes; the oldest knowledge makes room. Measures nothing: `spans.rs` does.

use core::sync::atomic::{AtomicU64, Ordering};

use self::estimate::{Beside, Estimate, OwnTime};

pub(crate) mod estimate;

/// A piece of work, by all that its cost depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// Names function and shape, or the graph; never 0.
    pub(crate) key: u64,
    /// Names the function alone; 0 for a graph.
    pub(crate) function: u64,
    /// Threads that the launch makes.
    pub(crate) threads: u64,
}

/// The expected cost of a launch, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// It was measured.
    Known(u64),
    /// It was measured a few times only, or the same function was with another shape.
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
/// Places that an entry may have, from its home on.
const PROBES: usize = 4;
/// A cost word: nanoseconds from this bit on; how often it was measured (up to 255) below.
const COST_SHIFT: u32 = 8;
const TIMES: u64 = (1 << COST_SHIFT) - 1;
/// A launch is measured each time until it has this many measurements: one that took little time once may take much.
const WELL_KNOWN: u64 = 4;
const MOST_COST_NS: u64 = u64::MAX >> COST_SHIFT;

#[repr(C)]
struct CostCell {
    key: AtomicU64,
    cost: AtomicU64,
    /// Of a function's own entry: threads of the launch that was measured last.
    threads: AtomicU64,
    /// The least that it was measured at, nanoseconds.
    least: AtomicU64,
    /// The rest of its [`Estimate`]: from the lowest byte on `is_spanning`, `window`, `short`, `long`, `odd`.
    doubts: AtomicU64,
}

/// See the module's text. All zeros is an empty one.
#[repr(C)]
pub(crate) struct Costs {
    cells: [CostCell; CELLS],
}

impl CostCell {
    fn estimate(&self) -> Estimate {
        // Relaxed throughout: see `Costs::cell`.
        let cost = self.cost.load(Ordering::Relaxed);
        let [is_spanning, window, short, long, odd, ..] =
            self.doubts.load(Ordering::Relaxed).to_le_bytes();
        let [times, ..] = cost.to_le_bytes();
        Estimate {
            cost_ns: cost >> COST_SHIFT,
            times,
            least_ns: self.least.load(Ordering::Relaxed),
            is_spanning: is_spanning != 0,
            window,
            short,
            long,
            odd,
        }
    }

    fn keep(&self, estimate: &Estimate) {
        let Estimate {
            cost_ns,
            times,
            least_ns,
            is_spanning,
            window,
            short,
            long,
            odd,
        } = *estimate;
        let doubts = [u8::from(is_spanning), window, short, long, odd, 0, 0, 0];
        // Relaxed throughout: see `Costs::cell`.
        self.doubts
            .store(u64::from_le_bytes(doubts), Ordering::Relaxed);
        self.least.store(least_ns, Ordering::Relaxed);
        self.cost.store(
            cost_ns.min(MOST_COST_NS) << COST_SHIFT | u64::from(times.max(1)),
            Ordering::Relaxed,
        );
    }
}

impl Costs {
    #[inline(always)]
    fn places(&self, key: u64) -> impl Iterator<Item = &CostCell> {
        let home = usize::try_from(key >> 40).unwrap_or(0);
        (0..PROBES).filter_map(move |step| self.cells.get((home + step) % CELLS))
    }

    #[inline(always)]
    fn cell(&self, key: u64) -> Option<&CostCell> {
        // Relaxed: an entry that changes hands in this moment gives a wrong estimate, which the next
        // measurement corrects.
        self.places(key)
            .find(|cell| cell.key.load(Ordering::Relaxed) == key)
    }

    /// The cost of this launch, nanoseconds, once it was measured often enough.
    #[inline(always)]
    pub(crate) fn known(&self, key: u64) -> Option<u64> {
        // Relaxed: see `cell`.
        let cost = self.cell(key)?.cost.load(Ordering::Relaxed);
        (cost & TIMES >= WELL_KNOWN).then_some(cost >> COST_SHIFT)
    }

    /// The measured cost of this launch so far, nanoseconds.
    fn measured(&self, key: u64) -> Option<u64> {
        // Relaxed: see `cell`.
        let cost = self.cell(key)?.cost.load(Ordering::Relaxed);
        (cost != 0).then_some(cost >> COST_SHIFT)
    }

    /// Its lowest cost so far, nanoseconds; 0 if it has none.
    pub(crate) fn least(&self, key: u64) -> u64 {
        // Relaxed: see `cell`.
        self.cell(key)
            .map_or(0, |cell| cell.least.load(Ordering::Relaxed))
    }

    /// The expected cost of the work.
    pub(crate) fn expected(&self, work: &Work) -> Expected {
        if let Some(ns) = self.known(work.key) {
            return Expected::Known(ns);
        }
        if let Some(ns) = self.measured(work.key) {
            return Expected::Guessed(ns);
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

    /// It was measured at this much, nanoseconds. Answers how much of that is its own time.
    pub(crate) fn learn(&self, work: &Work, ns: u64, beside: Beside) -> OwnTime {
        let own = self.learn_one(work.key, ns, beside);
        if work.function != 0
            && let Some(cell) = self
                .cell(work.function)
                .or_else(|| self.take(work.function))
        {
            // Relaxed: see `cell`. A function's own entry is the launch that was measured last.
            cell.threads.store(work.threads.max(1), Ordering::Relaxed);
            let ns = own.now_ns.min(MOST_COST_NS);
            cell.cost.store(ns << COST_SHIFT | 1, Ordering::Relaxed);
        }
        own
    }

    /// Notes that a launch was measured and took too little time for a figure: no longer than `most_ns`.
    pub(crate) fn met(&self, key: u64, most_ns: u64) {
        let Some(cell) = self.cell(key) else {
            return;
        };
        let estimate = cell.estimate();
        if estimate.times > 0 {
            cell.keep(&estimate.bounded(most_ns));
        }
    }

    fn learn_one(&self, key: u64, ns: u64, beside: Beside) -> OwnTime {
        let Some(cell) = self.cell(key).or_else(|| self.take(key)) else {
            let (_, own) = Estimate::default().learn(ns, beside);
            return own;
        };
        let (next, own) = cell.estimate().learn(ns, beside);
        cell.keep(&next);
        own
    }

    /// A place for a new entry: a free one, else that of the entry that was measured least.
    fn take(&self, key: u64) -> Option<&CostCell> {
        // Relaxed throughout: see `cell`.
        let rank = |cell: &&CostCell| match cell.key.load(Ordering::Relaxed) {
            0 => 0,
            _ => 1 + (cell.cost.load(Ordering::Relaxed) & 0xff),
        };
        let cell = self.places(key).min_by_key(rank)?;
        cell.cost.store(0, Ordering::Relaxed);
        cell.least.store(0, Ordering::Relaxed);
        cell.doubts.store(0, Ordering::Relaxed);
        cell.key.store(key, Ordering::Relaxed);
        Some(cell)
    }

    /// Forgets it, because its name now means another launch.
    pub(crate) fn forget(&self, key: u64) {
        if let Some(cell) = self.cell(key) {
            // Relaxed: see `cell`.
            cell.cost.store(0, Ordering::Relaxed);
            cell.least.store(0, Ordering::Relaxed);
            cell.key.store(0, Ordering::Relaxed);
        }
    }
}

/// A cost for other threads than were measured: in proportion upwards; downwards no less than a
/// sixteenth, since every launch has a part that does not depend on its size.
fn scaled(ns: u64, threads: u64, measured_threads: u64) -> u64 {
    let scaled = u128::from(ns) * u128::from(threads) / u128::from(measured_threads);
    u64::try_from(scaled)
        .unwrap_or(u64::MAX)
        .clamp(ns / 16, ns.saturating_mul(64))
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
    fn measured_shape_is_known_and_another_is_guessed() {
        let costs = empty();
        for ns in [10_000, 30_000, 20_000, 20_000] {
            let guessed = costs.expected(&kernel(0x7000, 100));
            assert!(!matches!(guessed, Expected::Known(_)), "{guessed:?}");
            costs.learn(&kernel(0x7000, 100), ns, Beside::NOTHING);
        }

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
    fn an_estimate_follows_what_is_measured() {
        let costs = empty();
        let work = kernel(0x7000, 100);
        costs.learn(&work, 10_000, Beside::NOTHING);
        for _ in 0..40 {
            costs.learn(&work, 50_000, Beside::NOTHING);
        }

        let ns = costs.known(work.key).unwrap();
        assert!((49_900..=50_000).contains(&ns), "{ns}");
    }

    #[test]
    fn a_name_that_stands_for_something_else_is_unknown_again() {
        let costs = empty();
        let work = Work::graph(0x7000);
        costs.learn(&work, 10_000, Beside::NOTHING);
        costs.forget(work.key);

        assert_eq!(costs.expected(&work), Expected::Unknown);
    }

    #[test]
    fn newest_launch_is_remembered_in_a_full_table() {
        let costs = empty();
        for function in 0..20_000 {
            costs.learn(&kernel(0x1000 + function * 16, 7), 5_000, Beside::NOTHING);
        }
        let newest = kernel(0x1000 + 19_999 * 16, 7);

        assert_eq!(costs.expected(&newest), Expected::Guessed(5_000));
    }
}
