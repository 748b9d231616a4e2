//! The atomics that the crate uses: the machine's, or loom's model of them under `--cfg loom`.
//! Owns nothing else.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Orders an earlier read-modify-write before later loads.
///
/// On the machine the `SeqCst` accesses around it do that already and this is nothing. loom treats
/// a `SeqCst` access as `AcqRel` and models only the fence, so under loom it is the fence.
#[inline(always)]
pub(crate) fn seq_cst_point() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// The value of a word that is about to be exchanged; a wrong answer costs a round.
///
/// loom remembers one last access to a word, and a plain look by the same thread would make it
/// forget the reader that the exchange races with: orders that matter would not be tried. Under loom
/// the look is a read-modify-write.
#[inline(always)]
pub(crate) fn before_exchange(word: &AtomicU64) -> u64 {
    // Relaxed: the exchange is what counts.
    #[cfg(not(loom))]
    return word.load(Ordering::Relaxed);
    #[cfg(loom)]
    word.fetch_add(0, Ordering::Relaxed)
}
