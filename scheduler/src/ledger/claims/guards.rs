//! Leases that keep GPUs from assigners while the extender binds pods to them, as the API server shows them. They take
//! no part of a GPU: the pod's own reservation counts. Does not write any.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube_api::assigner::{BINDING_LASTS, Claim, lease_name};

use super::number;
use crate::ledger::Ledger;

/// The Leases by GPU, each with the time from when its age counts.
#[derive(Debug, Default)]
pub(super) struct BindingLeases(BTreeMap<Arc<str>, (Claim, Duration)>);

impl BindingLeases {
    pub(super) fn set(&mut self, claim: Claim, since: Duration) {
        let known = self.0.get(claim.gpu.as_str());
        let is_known = known.is_some_and(|(known, _)| {
            let version = number(&claim.version);
            known.version == claim.version
                || (version.is_some() && version < number(&known.version))
        });
        if !is_known {
            self.0.insert(claim.gpu.as_str().into(), (claim, since));
        }
    }

    /// The GPU's Lease is another one from this version on.
    pub(super) fn is_over(&mut self, gpu: &str, version: Option<u64>) {
        let is_newer = |(known, _): &(Claim, Duration)| {
            version.is_none_or(|version| number(&known.version).is_none_or(|known| known < version))
        };
        if self.0.get(gpu).is_some_and(is_newer) {
            self.0.remove(gpu);
        }
    }

    /// The Lease is gone.
    pub(super) fn remove(&mut self, gpu: &str, lease_uid: &str) {
        let is_it = |(known, _): &(Claim, Duration)| {
            lease_uid.is_empty() || known.lease_uid.is_empty() || known.lease_uid == lease_uid
        };
        if self.0.get(gpu).is_some_and(is_it) {
            self.0.remove(gpu);
        }
    }

    /// A list of all Leases is complete that began at `began`.
    pub(super) fn keep(&mut self, listed: &HashSet<Arc<str>>, began: Duration) {
        self.0
            .retain(|gpu, (_, since)| *since >= began || listed.contains(&*lease_name(gpu)));
    }

    /// The GPUs that are kept from assigners.
    pub(super) fn standing(&self, now: Duration) -> impl Iterator<Item = &Arc<str>> {
        self.0
            .iter()
            .filter(move |(_, (_, since))| now.saturating_sub(*since) < BINDING_LASTS)
            .map(|(gpu, _)| gpu)
    }

    fn over(&self, now: Duration) -> impl Iterator<Item = &Claim> {
        self.0
            .values()
            .filter(move |(_, since)| now.saturating_sub(*since) >= BINDING_LASTS)
            .map(|(claim, _)| claim)
    }
}

impl Ledger {
    /// The Leases of bindings that ended long ago, or whose extender has.
    pub fn guards_run_out(&self, now: Duration) -> Vec<Claim> {
        self.claims.guards.over(now).cloned().collect()
    }

    /// Whether this Lease of a binding has existed unchanged for longer than it lasts.
    pub fn guard_has_run_out(&self, claim: &Claim, now: Duration) -> bool {
        let mut over = self.claims.guards.over(now);
        over.any(|known| known.gpu == claim.gpu && known.version == claim.version)
    }

    /// The GPUs that are kept from assigners because a pod is bound to them.
    pub fn guarded(&self) -> impl Iterator<Item = &Arc<str>> {
        self.claims.guards.standing(self.latest)
    }
}
