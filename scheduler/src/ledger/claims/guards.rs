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

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    const NANOSECOND: Duration = Duration::from_nanos(1);

    fn lease(gpu: &str, version: &str, uid: &str) -> Claim {
        Claim {
            version: version.to_owned(),
            lease_uid: uid.to_owned(),
            ..Claim::binding(gpu, "binding-1", "default", Timestamp::UNIX_EPOCH)
        }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The version that is known of the GPU's Lease, and since when its age counts.
    fn known(leases: &BindingLeases, gpu: &str) -> Option<(String, u64)> {
        let (claim, since) = leases.0.get(gpu)?;
        Some((claim.version.clone(), since.as_secs()))
    }

    #[test]
    fn older_version_of_a_lease_changes_nothing() {
        let mut leases = BindingLeases::default();
        leases.set(lease("g", "9", "u"), at(1));
        // 10 is newer than 9, though "10" sorts before "9".
        for (version, expected) in [
            ("9", ("9", 1)),
            ("8", ("9", 1)),
            ("10", ("10", 2)),
            ("9", ("10", 2)),
        ] {
            leases.set(lease("g", version, "u"), at(2));
            let (version, since) = expected;
            assert_eq!(known(&leases, "g"), Some((version.to_owned(), since)));
        }
        // A version that is no number cannot be compared, so it counts as news.
        leases.set(lease("g", "x", "u"), at(3));
        assert_eq!(known(&leases, "g"), Some(("x".to_owned(), 3)));
    }

    #[test]
    fn lease_is_over_from_a_newer_version_on() {
        for (version, stays) in [
            (Some(4), true),
            (Some(5), true),
            (Some(6), false),
            (None, false),
        ] {
            let mut leases = BindingLeases::default();
            leases.set(lease("g", "5", "u"), at(1));
            leases.is_over("other", version);
            leases.is_over("g", version);
            assert_eq!(known(&leases, "g").is_some(), stays, "{version:?}");
        }
    }

    #[test]
    fn only_the_lease_that_is_gone_is_removed() {
        for (known_uid, gone_uid, stays) in [
            ("u", "u", false),
            ("u", "another", true),
            // Where one of the two is not known, the GPU's name decides.
            ("u", "", false),
            ("", "u", false),
        ] {
            let mut leases = BindingLeases::default();
            leases.set(lease("g", "5", known_uid), at(1));
            leases.remove("g", gone_uid);
            assert_eq!(
                known(&leases, "g").is_some(),
                stays,
                "{known_uid} {gone_uid}"
            );
        }
    }

    #[test]
    fn list_removes_older_leases_that_it_lacks() {
        let mut leases = BindingLeases::default();
        leases.set(lease("listed", "1", "u"), at(1));
        leases.set(lease("old", "2", "u"), at(1));
        leases.set(lease("during", "3", "u"), at(5));
        let listed = HashSet::from([Arc::from(lease_name("listed"))]);

        leases.keep(&listed, at(5));

        let left: Vec<_> = leases.0.keys().map(|gpu| &**gpu).collect();
        assert_eq!(left, ["during", "listed"]);
    }

    #[test]
    fn lease_keeps_its_gpu_for_a_minute() {
        let mut leases = BindingLeases::default();
        leases.set(lease("g", "1", "u"), at(100));
        let look = |now: Duration| {
            let standing = leases.standing(now).count();
            (standing, leases.over(now).count())
        };
        assert_eq!(look(at(100)), (1, 0));
        assert_eq!(look(at(160) - NANOSECOND), (1, 0));
        assert_eq!(look(at(160)), (0, 1));
        // Its age counts from a moment to come: it is new.
        assert_eq!(look(at(50)), (1, 0));
    }
}
