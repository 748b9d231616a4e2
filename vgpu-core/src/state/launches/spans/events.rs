//! The library's own events in a context: the base that times are counted from, and the spare ones for the next marks.

use super::stretch::ContextTime;

/// Events that a context keeps for the next marks.
pub(super) const SPARE: usize = 64;

/// The events of one context. All zeros is none.
pub(super) struct Events {
    spare: [u64; SPARE],
    count: usize,
    /// The event that `time` is counted from; 0: none.
    pub(super) base: u64,
    pub(super) time: ContextTime,
}

impl Events {
    pub(super) fn take_spare(&mut self) -> Option<u64> {
        let last = self.count.checked_sub(1)?;
        self.count = last;
        self.spare.get(last).copied()
    }

    pub(super) fn put_spare(&mut self, event: u64) -> bool {
        let Some(place) = self.spare.get_mut(self.count) else {
            return false;
        };
        *place = event;
        self.count += 1;
        true
    }
}
