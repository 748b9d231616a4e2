//! Blocks of addresses over the memory of pools.

use crate::base::border::{Done, invalid_if};
use crate::memory::blocks::{self, BlockKind};
use crate::memory::context::{self, Context};
use crate::memory::pool::{Pool, Sort, with};

/// Called when the last context of a process on a GPU ends: frees the pools' allocations there.
pub(crate) fn context_gone(context: &'static Context) {
    if context::any_on(context.gpu).is_some() {
        return;
    }
    let own = |block: &blocks::Block| {
        block.gpu == context.gpu && matches!(block.kind, BlockKind::Pool(_))
    };
    blocks::end_all(own);
    for pool in with(|pools| pools.all.clone()) {
        if pool.gpu == context.gpu {
            pool.trim(0);
        }
    }
}

impl Pool {
    /// Allocates: a block of addresses over a part of the pool.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn allocate(&'static self, bytes: u64) -> Done<u64> {
        invalid_if(bytes == 0 || self.sort == Sort::Imported)?;
        let piece = self.take(bytes)?;
        let block = blocks::block(bytes, self.gpu, BlockKind::Pool(self));
        let base = blocks::place(block, false).inspect_err(|_| self.give(piece))?;
        self.state().pieces.insert(base, piece);
        Ok(base)
    }
}
