//! One claim is made ready or taken away by one task at a time; different claims are at the same time.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// The turns of all claims. A task that has a claim's turn takes no other claim's.
#[derive(Debug, Default)]
pub(super) struct ClaimTurns {
    /// By the claim's uid. A claim that no task has or waits for may be missing.
    claims: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl ClaimTurns {
    /// Waits until no other task has this claim's turn.
    pub(super) async fn of(&self, uid: &str) -> OwnedMutexGuard<()> {
        self.one(uid).lock_owned().await
    }

    /// The claim's turn, if no task has it.
    pub(super) fn free(&self, uid: &str) -> Option<OwnedMutexGuard<()>> {
        self.one(uid).try_lock_owned().ok()
    }

    fn one(&self, uid: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut claims = self.claims.lock();
        // Copies are made under this lock alone, so a single one is that of the map.
        claims.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(claims.entry(uid.to_owned()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turn_is_one_tasks_and_no_other_claims() {
        let turns = ClaimTurns::default();
        let first = turns.of("u1").await;

        assert!(turns.free("u1").is_none());
        let second = turns.of("u2").await;

        drop(first);
        drop(turns.free("u1").expect("it has been given back"));
        drop(second);
        assert!(turns.free("u3").is_some());
        assert_eq!(turns.claims.lock().len(), 1, "the others are forgotten");
    }
}
