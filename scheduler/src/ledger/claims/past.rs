//! The history of each GPU, as far back as it is remembered. No decision depends on it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kube_api::assigner::Claim;
use pages::assigner::{Happened, MOST_HISTORY};

/// An entry of a GPU's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    /// The time, as the ledger counts it.
    pub at: Duration,
    /// The event.
    pub what: Happened,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod; empty where it was not known.
    pub pod: String,
    /// The reservation.
    pub reservation: String,
}

impl Past {
    fn new(what: Happened, claim: &Claim, at: Duration) -> Self {
        Self {
            at,
            what,
            namespace: claim.namespace.clone(),
            pod: claim.pod.clone(),
            reservation: claim.reservation.clone(),
        }
    }

    pub(super) fn proposed(claim: &Claim, at: Duration) -> Self {
        Self::new(Happened::Proposed, claim, at)
    }

    pub(super) fn finalized(claim: &Claim, at: Duration) -> Self {
        Self::new(Happened::Finalized, claim, at)
    }

    pub(super) fn expired(claim: &Claim, at: Duration) -> Self {
        Self::new(Happened::Expired, claim, at)
    }

    pub(super) fn released(claim: &Claim, at: Duration) -> Self {
        Self::new(Happened::Released, claim, at)
    }
}

/// The last entries of each GPU.
#[derive(Debug, Default)]
pub(super) struct Pasts(HashMap<Arc<str>, VecDeque<Past>>);

impl Pasts {
    pub(super) fn note(&mut self, gpu: &str, past: Past) {
        let of_gpu = self.0.entry(gpu.into()).or_default();
        if of_gpu.len() >= MOST_HISTORY {
            of_gpu.pop_front();
        }
        of_gpu.push_back(past);
    }

    pub(super) fn of(&self, gpu: &str) -> impl DoubleEndedIterator<Item = &Past> {
        self.0.get(gpu).into_iter().flatten()
    }
}
