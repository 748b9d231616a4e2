//! Rules: memory is freed in the order of a stream. Its charge stays until an event that the library recorded after
//! the free has completed (`deferred_free_charges.rs`). Puts nothing into a stream that captures.

use cuda_api::{CuResult, CuStream};

use crate::driver::query;
use crate::guest::manners;
use crate::holdings::deferred_free_charges::{self, Freed, OfStream};
use crate::holdings::locate;
use crate::state::accounts::{Accounts, Destination};
use crate::state::holdings::CHORE_DEFERRED_FREES;
use crate::state::standing;

/// The program has asked the driver to free an allocation when the stream gets there. `stream` is 2 for the thread's
/// own.
pub(crate) fn leave(accounts: &Accounts, freed: Freed, stream: CuStream) {
    manners::uncancelled(|| {
        query::relaxed(|| {
            let context = query::stream_context(stream).unwrap_or(0);
            let owner = match locate::of_context(accounts, context) {
                Destination::Device { owner, .. } => owner,
                Destination::Elsewhere | Destination::Denied => 0,
            };
            deferred_free_charges::enter(
                accounts,
                freed,
                OfStream {
                    stream,
                    context,
                    owner,
                },
            );
        });
    });
}

/// After `cuCtxSynchronize` of this context.
pub(crate) fn after_context_sync(result: CuResult, context: impl FnOnce() -> Option<u64>) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    if result == CuResult::SUCCESS
        && accounts.holdings().has_chore(CHORE_DEFERRED_FREES)
        && let Some(context) = context()
    {
        deferred_free_charges::context_is_idle(&accounts, context);
    }
}
