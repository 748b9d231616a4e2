//! ComputeQuotas in the ledger: what pods count for, and whether one more is allowed. It is asked and changed in the
//! same step as the reservations, so pods that race cannot exceed a quota together.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube_api::hcs::quota::{Charge, Counted, Limit, charge};
use kube_api::hcs::{ComputeQuota, ComputeQuotaStatus};
use kube_api::object::Pod;
use placement::{Cluster, Placement};

use super::Ledger;

/// The quotas and what counts in each namespace.
#[derive(Debug, Default)]
pub(super) struct ComputeQuotas {
    limits: BTreeMap<(String, String), Limit>,
    /// By namespace, then by uid.
    counted: HashMap<String, HashMap<Arc<str>, Counted>>,
    /// Whether all quotas have been read, so that what is not there does not exist.
    read: bool,
}

impl ComputeQuotas {
    fn count(&mut self, namespace: &str, uid: &str, counted: Counted) {
        self.counted
            .entry(namespace.to_owned())
            .or_default()
            .insert(uid.into(), counted);
    }

    pub(super) fn forget(&mut self, namespace: &str, uid: &str) {
        if let Some(of_namespace) = self.counted.get_mut(namespace) {
            of_namespace.remove(uid);
            if of_namespace.is_empty() {
                self.counted.remove(namespace);
            }
        }
    }

    /// What the pods that the quota counts hold, but for this one.
    fn used(&self, limit: &Limit, without: &str) -> Charge {
        let counted = self.counted.get(&limit.namespace).into_iter().flatten();
        counted
            .filter(|(uid, counted)| ***uid != *without && limit.counts(counted))
            .fold(Charge::default(), |sum, (_, counted)| {
                sum.plus(counted.charge)
            })
    }

    fn exceeded(&self, namespace: &str, uid: &str, counted: &Counted) -> Option<String> {
        self.limits
            .values()
            .filter(|limit| limit.namespace == namespace && limit.counts(counted))
            .find_map(|limit| limit.exceeded(self.used(limit, uid), counted.charge))
    }
}

fn counted(
    pod: &Pod,
    placement: &Placement,
    cluster: &Cluster,
    vendors: &kube_api::vendor::Vendors,
) -> Counted {
    let node = cluster.node(&placement.node);
    let device = |id: &str| Some(node?.device(id)?.device());
    Counted::new(pod, charge(pod, Some(placement), vendors, device))
}

impl Ledger {
    /// Takes a ComputeQuota in, or its new state.
    pub fn set_compute_quota(&mut self, quota: &ComputeQuota) {
        let limit = Limit::read(quota);
        let key = (limit.namespace.clone(), limit.name.clone());
        let before = self.compute.limits.insert(key, limit.clone());
        if before.as_ref() != Some(&limit) {
            self.wake_for_quota();
        }
    }

    /// Takes a ComputeQuota out.
    pub fn remove_compute_quota(&mut self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        if self.compute.limits.remove(&key).is_some() {
            self.wake_for_quota();
        }
    }

    /// These are all ComputeQuotas that there are.
    pub fn keep_compute_quotas(&mut self, quotas: &[ComputeQuota]) {
        let before = std::mem::take(&mut self.compute.limits);
        for quota in quotas {
            let limit = Limit::read(quota);
            let key = (limit.namespace.clone(), limit.name.clone());
            self.compute.limits.insert(key, limit);
        }
        self.compute.read = true;
        if before != self.compute.limits {
            self.wake_for_quota();
        }
    }

    /// Whether all ComputeQuotas have been read, or are not looked at.
    pub fn knows_compute_quotas(&self) -> bool {
        self.compute.read || self.vendors.hcs().is_none()
    }

    /// Each ComputeQuota with the status that it should have.
    pub fn compute_quotas(&self) -> Vec<(String, String, ComputeQuotaStatus)> {
        let limits = self.compute.limits.values();
        limits
            .map(|limit| {
                let used = self.compute.used(limit, "");
                let status = limit.status(used);
                (limit.namespace.clone(), limit.name.clone(), status)
            })
            .collect()
    }

    /// Why the pod, as it is written, would exceed a quota wherever it goes; none where it would not.
    pub fn exceeds_compute_quota(&self, namespace: &str, pod: &Pod) -> Option<String> {
        self.vendors.hcs()?;
        let counted = Counted::new(pod, charge(pod, None, &self.vendors, |_| None));
        self.compute.exceeded(namespace, "", &counted)
    }

    /// Why the pod with this placement would exceed a quota; none where it would not.
    pub(super) fn over_compute_quota(
        &self,
        namespace: &str,
        uid: &str,
        pod: &Pod,
        placement: &Placement,
    ) -> Option<String> {
        self.vendors.hcs()?;
        let counted = counted(pod, placement, &self.cluster, &self.vendors);
        self.compute.exceeded(namespace, uid, &counted)
    }

    /// The pod counts for this placement from here on.
    pub(super) fn count_compute(
        &mut self,
        namespace: &str,
        uid: &str,
        pod: &Pod,
        placement: &Placement,
    ) {
        if self.vendors.hcs().is_none() {
            return;
        }
        let counted = counted(pod, placement, &self.cluster, &self.vendors);
        self.compute.count(namespace, uid, counted);
    }

    /// Pods that wait may fit after a change of a quota; kube-scheduler looks again at what a node's change could help.
    fn wake_for_quota(&mut self) {
        let node = self.nodes.keys().min().cloned();
        if let Some(node) = node {
            self.freed(node);
        }
    }
}
