//! ComputeQuotas in the ledger: the charges of pods, and whether another pod is allowed. The check and the change
//! happen in one step with the reservation, so pods that race cannot exceed a quota together.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube_api::assigner::pod_claim;
use kube_api::hcs::{ComputeQuota, ComputeQuotaStatus};
use kube_api::hcs_quota::{Charge, Counted, Limit, charge, share};
use kube_api::object::Pod;
use kube_api::vendor::Vendors;
use placement::{Cluster, Grant, Placement};

use super::Ledger;
use super::claims::{ClaimAsk, claim_uid};

/// The quotas, and the pods and claims that count in each namespace.
#[derive(Debug, Clone, Default)]
pub(super) struct ComputeQuotas {
    limits: BTreeMap<(String, String), Limit>,
    /// By namespace, then by uid. A reservation by label is counted in addition to its pod, under its own uid.
    counted: HashMap<String, HashMap<Arc<str>, Counted>>,
    /// The namespace of each claim that counts.
    claims: HashMap<Arc<str>, String>,
    /// Whether all quotas have been read, so that a quota that is not here does not exist.
    read: bool,
}

/// One amount of a ComputeQuota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaUse {
    /// Namespace of the quota.
    pub namespace: String,
    /// Its name.
    pub quota: String,
    /// `vram` in bytes, `tflops-fp16` and `tflops-fp32` in GFLOPS, or `devices`.
    pub resource: &'static str,
    /// The limit.
    pub hard: u64,
    /// The use of its pods.
    pub used: u64,
}

/// The quotas for one pod: without the charges of the pod itself, or of a reservation for it.
#[derive(Debug, Clone, Default)]
pub struct QuotaView {
    quotas: ComputeQuotas,
    /// The charges of the reservations for the pod.
    reserved: Charge,
}

impl QuotaView {
    /// Why the pod with this placement would exceed a quota; `None` if it would not.
    pub fn exceeded(
        &self,
        pod: &placement::Pod,
        object: &Pod,
        placement: &Placement,
        cluster: &Cluster,
        vendors: &Vendors,
    ) -> Option<String> {
        vendors.hcs()?;
        let counted = counted(object, placement, cluster, vendors);
        let counted = counted.with(counted.charge.at_least(self.reserved));
        self.quotas.exceeded(&pod.namespace, &[], &counted)
    }
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

    /// The devices of the pods that the quota counts, without these uids.
    fn used(&self, limit: &Limit, without: &[&str]) -> Charge {
        let counted = self.counted.get(&limit.namespace).into_iter().flatten();
        counted
            .filter(|(uid, counted)| !without.contains(&&***uid) && limit.counts(counted))
            .fold(Charge::default(), |sum, (_, counted)| {
                sum.plus(counted.charge)
            })
    }

    fn exceeded(&self, namespace: &str, without: &[&str], counted: &Counted) -> Option<String> {
        self.limits
            .values()
            .filter(|limit| limit.namespace == namespace && limit.counts(counted))
            .find_map(|limit| limit.exceeded(self.used(limit, without), counted.charge))
    }
}

fn counted(pod: &Pod, placement: &Placement, cluster: &Cluster, vendors: &Vendors) -> Counted {
    let node = cluster.node(&placement.node);
    let device = |id: &str| Some(node?.device(id)?.device());
    Counted::new(pod, charge(pod, Some(placement), vendors, device))
}

impl Ledger {
    /// Adds or updates a ComputeQuota.
    pub fn set_compute_quota(&mut self, quota: &ComputeQuota) {
        let limit = Limit::read(quota);
        let key = (limit.namespace.clone(), limit.name.clone());
        let before = self.compute.limits.insert(key, limit.clone());
        if before.as_ref() != Some(&limit) {
            self.wake_for_quota();
        }
    }

    /// Removes a ComputeQuota.
    pub fn remove_compute_quota(&mut self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        if self.compute.limits.remove(&key).is_some() {
            self.wake_for_quota();
        }
    }

    /// Replaces all ComputeQuotas by these.
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

    /// Whether all ComputeQuotas have been read, or are not used.
    pub fn knows_compute_quotas(&self) -> bool {
        self.compute.read || self.vendors.hcs().is_none()
    }

    /// Each ComputeQuota with the status that it should have.
    pub fn compute_quotas(&self) -> Vec<(String, String, ComputeQuotaStatus)> {
        let limits = self.compute.limits.values();
        limits
            .map(|limit| {
                let used = self.compute.used(limit, &[]);
                let status = limit.status(used);
                (limit.namespace.clone(), limit.name.clone(), status)
            })
            .collect()
    }

    /// The limits and the use of the first `most` ComputeQuotas, by namespace and name.
    pub fn compute_quota_use(&self, most: usize) -> Vec<QuotaUse> {
        let limits = self.compute.limits.values().take(most);
        limits
            .flat_map(|limit| {
                let amounts = limit.amounts(self.compute.used(limit, &[]));
                amounts.map(|(resource, hard, used)| QuotaUse {
                    namespace: limit.namespace.clone(),
                    quota: limit.name.clone(),
                    resource,
                    hard,
                    used,
                })
            })
            .collect()
    }

    /// Why the pod's request alone would exceed a quota on any node; `None` if it would not. Devices that the assigner
    /// has reserved for the pod are not counted twice.
    pub fn exceeds_compute_quota(&self, namespace: &str, pod: &Pod) -> Option<String> {
        self.vendors.hcs()?;
        let said = pod_claim(pod);
        let own = said.map_or_else(Vec::new, |said| self.claimed_by(&said.reservation));
        let own = own.into_iter().map(|held| &held.claim);
        let own = own.filter(|claim| claim.namespace == namespace);
        let own: Vec<String> = own.map(|claim| claim_uid(&claim.gpu)).collect();
        let without: Vec<&str> = own.iter().map(String::as_str).collect();
        let counted = Counted::new(pod, charge(pod, None, &self.vendors, |_| None));
        self.compute.exceeded(namespace, &without, &counted)
    }

    /// Why a reservation of these whole GPUs would exceed a quota; `None` if it would not. The remains of an earlier
    /// choice for the same reservation are being released, and do not count.
    pub(super) fn claim_exceeds_compute_quota(
        &self,
        ask: &ClaimAsk,
        gpus: &[Arc<str>],
    ) -> Option<String> {
        self.vendors.hcs()?;
        let before = self.claimed_by(&ask.reservation);
        let before: Vec<String> = before
            .iter()
            .map(|held| claim_uid(&held.claim.gpu))
            .collect();
        let without: Vec<&str> = before.iter().map(String::as_str).collect();
        let counted = ask.counted.with(self.whole(gpus));
        self.compute.exceeded(&ask.namespace, &without, &counted)
    }

    /// Why the pod with this placement would exceed a quota; `None` if it would not.
    pub(super) fn over_compute_quota(
        &self,
        namespace: &str,
        uid: &str,
        pod: &Pod,
        placement: &Placement,
    ) -> Option<String> {
        self.vendors.hcs()?;
        let own = self.own_claims(uid);
        let counted = counted(pod, placement, &self.cluster, &self.vendors);
        let counted = counted.with(counted.charge.at_least(self.whole(&own)));
        let own: Vec<String> = own.iter().map(|gpu| claim_uid(gpu)).collect();
        let without: Vec<&str> = own.iter().map(String::as_str).chain([uid]).collect();
        self.compute.exceeded(namespace, &without, &counted)
    }

    /// The quotas as the pod meets them.
    pub fn quotas_for(&self, namespace: &str, uid: &str) -> QuotaView {
        let own = self.own_claims(uid);
        let mut quotas = self.compute.clone();
        quotas.forget(namespace, uid);
        for gpu in &own {
            quotas.forget(namespace, &claim_uid(gpu));
        }
        QuotaView {
            quotas,
            reserved: self.whole(&own),
        }
    }

    /// The charge of these whole GPUs.
    fn whole(&self, gpus: &[Arc<str>]) -> Charge {
        gpus.iter().fold(Charge::default(), |sum, gpu| {
            let Some((_, view)) = self.gpu(gpu) else {
                return sum;
            };
            let device = view.device();
            let all = Grant::new(
                device.vendor.clone(),
                gpu,
                device.memory_bytes,
                device.cores,
            );
            sum.plus(share(&all, Some(device)))
        })
    }

    /// A reservation by label is charged for the part of the GPU that its pod does not hold: this grant.
    pub(super) fn count_claim(&mut self, gpu: &str, rest: Option<&Grant>) {
        if self.vendors.hcs().is_none() {
            return;
        }
        let uid = claim_uid(gpu);
        let claimed = rest.and_then(|rest| {
            let held = self.claim(gpu)?;
            let device = self.gpu(gpu)?.1.device();
            let charge = Charge {
                // If the pod holds a part of the GPU, the pod is charged for the device.
                devices: u64::from(rest.slots >= device.slots),
                ..share(rest, Some(device))
            };
            let namespace = held.claim.namespace.clone();
            Some((namespace, self.counted_as(held).with(charge)))
        });
        if let Some(before) = self.compute.claims.remove(&*uid) {
            self.compute.forget(&before, &uid);
        }
        if let Some((namespace, counted)) = claimed {
            self.compute.count(&namespace, &uid, counted);
            self.compute.claims.insert(uid.into(), namespace);
        }
    }

    /// Counts the pod with this placement.
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

    /// Pods that wait may fit after a change of a quota. A change of a node makes kube-scheduler try them again.
    fn wake_for_quota(&mut self) {
        let node = self.nodes.keys().min().cloned();
        if let Some(node) = node {
            self.freed(node);
        }
    }
}
