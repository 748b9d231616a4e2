//! The memory that pools and graphs may take: pure rules on the driver's figures. By how much memory that grows in
//! chunks can grow, whether a request fits what the driver has reserved already, and which graphs may
//! lose their memory to a launch. Calls nothing.

use core::sync::atomic::{AtomicU64, Ordering};

use vgpu_abi::region::{Refusal, Why};

use crate::figures::sizes;

/// Pools and graph memory grow by this much, or by a bigger request.
const CHUNK: u64 = 32 << 20;

/// The chunk by which a pool grows for a request that it has no room for.
pub(crate) fn grown_by(bytes: u64) -> u64 {
    if bytes <= CHUNK {
        CHUNK
    } else {
        sizes::mapped(bytes)
    }
}

/// The memory that a graph's nodes want of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Want {
    /// The nodes' bytes, as the driver steps them.
    pub(crate) bytes: u64,
    /// The memory that the nodes take when each of them makes the memory grow.
    each_grown: u64,
}

impl Want {
    /// One more allocation node.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(sizes::mapped(bytes));
        self.each_grown = self.each_grown.saturating_add(grown_by(bytes));
    }

    /// By how much the device's graph memory can grow at most. Growth starts only when what is there
    /// is used up, so only the last chunk can be larger than what is missing.
    pub(crate) fn growth(self) -> u64 {
        self.each_grown.min(self.bytes.saturating_add(CHUNK))
    }

    pub(crate) fn is_nothing(self) -> bool {
        self.bytes == 0
    }
}

/// The driver's figures of a pool or of a device's graph memory, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Taken from the device.
    pub(crate) reserved: u64,
    /// The part of that in use.
    pub(crate) used: u64,
}

impl Figures {
    /// Does a request fit what is reserved and not in use, less what was promised to other calls?
    pub(crate) fn have_room(self, bytes: u64, promised: u64) -> bool {
        let free = self.reserved.saturating_sub(self.used);
        free.checked_sub(promised).is_some_and(|room| room >= bytes)
    }

    /// Does a graph still have the memory that it had after its last launch? A driver may report as "in use" all
    /// memory mapped by graphs, as CUDA documents, or only the memory of running graphs (`counts_live`).
    pub(crate) fn have_own(self, bytes: u64, promised: u64, counts_live: bool) -> bool {
        self.have_room(bytes, promised) || (!counts_live && self.used >= bytes)
    }

    /// Right after the launch of a graph with memory that made its memory grow by `grown`: whether the driver does
    /// not report mapped memory as in use.
    pub(crate) fn count_live(self, grown: u64) -> bool {
        let free = self.reserved.saturating_sub(self.used);
        self.reserved > 0 && (self.used == 0 || (grown > 0 && free >= grown))
    }
}

/// May a request pass that the container has no room to grow for? Only while the charges are within the
/// limit: otherwise no request is granted, not even out of memory that the driver has reserved already.
pub(crate) fn may_pass_without_growth(refusal: &Refusal) -> bool {
    matches!(refusal.why, Why::Full | Why::NotPageable) && refusal.used <= refusal.limit
}

/// Bytes that were promised to calls which are under way. A call that was left by a jump never takes
/// its promise back, so promises older than [`LONGEST_MS`] are void.
#[repr(C)]
pub(crate) struct Promised {
    bytes: AtomicU64,
    since_ms: AtomicU64,
}

/// No call that takes memory is under way for longer than this without the driver's figures showing it.
const LONGEST_MS: u64 = 10_000;

impl Promised {
    /// The bytes that are promised.
    pub(crate) fn bytes(&self, now_ms: u64) -> u64 {
        // Relaxed: under the lock of the figures that it is compared with, as all below.
        let since = self.since_ms.load(Ordering::Relaxed);
        if now_ms.saturating_sub(since) > LONGEST_MS {
            self.bytes.store(0, Ordering::Relaxed);
        }
        self.bytes.load(Ordering::Relaxed)
    }

    /// Promises `bytes` more.
    pub(crate) fn add(&self, now_ms: u64, bytes: u64) {
        let before = self.bytes(now_ms);
        if before == 0 {
            // Relaxed: see `bytes`.
            self.since_ms.store(now_ms, Ordering::Relaxed);
        }
        // Relaxed: see `bytes`.
        self.bytes
            .store(before.saturating_add(bytes), Ordering::Relaxed);
    }

    /// The call has come back.
    pub(crate) fn take_back(&self, bytes: u64) {
        // Relaxed: see `bytes`.
        let before = self.bytes.load(Ordering::Relaxed);
        self.bytes
            .store(before.saturating_sub(bytes), Ordering::Relaxed);
    }
}

/// The effect of a launch on memory that other graphs of the device have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moves {
    /// The driver leaves it where it is.
    Nothing,
    /// Graphs whose memory is not their own may have to get other memory.
    Shared,
    /// Any other graph may.
    All,
}

/// A graph that was launched or uploaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchedGraph {
    /// The graph has had its memory since its last launch.
    pub(crate) was_mapped: bool,
    /// No other graph had any of this memory when the graph got it.
    pub(crate) is_own: bool,
    /// Something that it allocates outlives the launch.
    pub(crate) keeps: bool,
    /// Graphs with memory were launched in several streams.
    pub(crate) in_streams: bool,
}

impl LaunchedGraph {
    /// Graphs may use the same memory as long as one of them ends before the next begins, and frees all
    /// that it has allocated. A graph that is launched while its memory is used by another one gets
    /// other memory.
    pub(crate) fn moves(self) -> Moves {
        let takes_over = !self.is_own;
        if takes_over && (self.keeps || (!self.was_mapped && self.in_streams)) {
            Moves::All
        } else if self.keeps {
            Moves::Shared
        } else {
            Moves::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn want(nodes: &[u64]) -> Want {
        let mut want = Want::default();
        for &mib in nodes {
            want.add(mib * MIB);
        }
        want
    }

    #[test]
    fn a_pool_grows_by_chunks_or_by_a_bigger_request() {
        assert_eq!(grown_by(1), 32 << 20);
        assert_eq!(grown_by(32 << 20), 32 << 20);
        assert_eq!(grown_by((32 << 20) + 1), 34 << 20);
    }

    #[test]
    fn a_graph_grows_by_its_nodes_and_one_chunk_at_most() {
        for (nodes, growth) in [
            (&[][..], 0),
            (&[1], 32),
            (&[100], 100),
            (&[1, 34], 66),
            (&[40, 40], 80),
            (&[2; 50], 132),
        ] {
            assert_eq!(want(nodes).growth(), growth * MIB, "{nodes:?}");
        }
    }

    #[test]
    fn sizes_at_the_edge_of_integers_saturate() {
        let mut want = want(&[1]);
        want.add(u64::MAX);
        want.add(u64::MAX);

        assert_eq!(want.growth(), u64::MAX);
    }

    #[test]
    fn room_is_what_is_reserved_and_neither_used_nor_promised() {
        let figures = |reserved, used| Figures { reserved, used };
        for (figures, promised, bytes, fits) in [
            (figures(10, 4), 0, 6, true),
            (figures(10, 4), 0, 7, false),
            (figures(10, 4), 1, 6, false),
            (figures(10, 4), 7, 0, false),
            (figures(4, 10), 0, 1, false),
            (figures(u64::MAX, 0), u64::MAX, 1, false),
        ] {
            assert_eq!(
                figures.have_room(bytes, promised),
                fits,
                "{figures:?} {promised} {bytes}"
            );
        }
    }

    #[test]
    fn a_graph_has_its_memory_by_either_meaning_of_the_figure() {
        let figures = |reserved, used| Figures { reserved, used };
        for (figures, counts_live, has) in [
            (figures(10, 0), true, true),
            (figures(10, 10), false, true),
            (figures(10, 10), true, false),
            (figures(10, 4), false, true),
            (figures(8, 4), false, false),
        ] {
            assert_eq!(figures.have_own(5, 0, counts_live), has, "{figures:?}");
        }
    }

    #[test]
    fn drivers_way_of_counting_is_learned_from_a_launch() {
        let figures = |reserved, used| Figures { reserved, used };
        for (figures, grown, counts_live) in [
            (figures(0, 0), 0, false),
            (figures(32, 0), 32, true),
            (figures(32, 1), 32, false),
            (figures(33, 1), 32, true),
            (figures(64, 33), 32, false),
            (figures(64, 33), 0, false),
        ] {
            assert_eq!(figures.count_live(grown), counts_live, "{figures:?}");
        }
    }

    #[test]
    fn no_request_passes_while_charges_exceed_the_limit() {
        let refusal = |used, why| Refusal {
            limit: 10,
            used,
            asked: 5,
            unaccounted: 0,
            why,
        };
        assert!(may_pass_without_growth(&refusal(10, Why::Full)));
        assert!(!may_pass_without_growth(&refusal(11, Why::Full)));
        assert!(!may_pass_without_growth(&refusal(5, Why::TimedOut)));
        assert!(!may_pass_without_growth(&refusal(5, Why::Closed)));
    }

    #[test]
    fn a_promise_is_taken_back_or_expires() {
        // All zeros is a value of it.
        let promised = Promised {
            bytes: AtomicU64::new(0),
            since_ms: AtomicU64::new(0),
        };
        promised.add(1_000, 5);
        promised.add(2_000, 7);
        assert_eq!(promised.bytes(2_000), 12);

        promised.take_back(5);
        assert_eq!(promised.bytes(2_000), 7);
        promised.take_back(100);
        assert_eq!(promised.bytes(2_000), 0);

        promised.add(3_000, 9);
        assert_eq!(promised.bytes(3_000 + LONGEST_MS), 9);
        assert_eq!(promised.bytes(3_001 + LONGEST_MS), 0);
    }

    #[test]
    fn graphs_lose_memory_to_what_keeps_it_or_runs_beside_them() {
        use Moves::{All, Nothing, Shared};
        // Had its memory, its own, keeps it, several streams.
        for (was_mapped, is_own, keeps, in_streams, moves) in [
            (false, true, false, true, Nothing),
            (false, false, false, false, Nothing),
            (false, false, false, true, All),
            (true, false, false, true, Nothing),
            (false, false, true, false, All),
            (true, false, true, false, All),
            (false, true, true, false, Shared),
            (true, true, true, true, Shared),
        ] {
            let launched = LaunchedGraph {
                was_mapped,
                is_own,
                keeps,
                in_streams,
            };
            assert_eq!(launched.moves(), moves, "{launched:?}");
        }
    }
}
