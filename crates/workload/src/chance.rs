//! Random numbers that are the same in each run.

/// A random generator with the same numbers in each run.
pub(crate) struct Chance(u64);

impl Chance {
    /// A generator whose numbers depend on the seed alone.
    pub(crate) fn seeded(seed: u64) -> Self {
        // SplitMix64 spreads neighbouring seeds; a state of zero would stay zero.
        let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((state ^ (state >> 31)).max(1))
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }

    /// A number from an exponential distribution with this mean.
    #[allow(
        clippy::cast_precision_loss,
        reason = "the random number is below 2^53"
    )]
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        const STEPS: u64 = 1 << 53;
        let above_zero = (self.below(STEPS) + 1) as f64 / STEPS as f64;
        -above_zero.ln() * mean
    }

    pub(crate) fn one_of<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        let count = u64::try_from(list.len()).unwrap_or(1);
        let index = usize::try_from(self.below(count)).unwrap_or(0);
        list.get(index).copied()
    }
}
