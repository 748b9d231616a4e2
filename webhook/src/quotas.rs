//! Whether the quotas of a namespace allow a pod that is being created.
//!
//! A pod that alone exceeds a ResourceQuota is refused here, where its author sees the error at once. So is a pod that
//! exceeds a ComputeQuota together with the use in the quota's status, which the scheduler writes within a second or
//! two. This process keeps no ledger: the scheduler's filter and bind decide.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use admission::Quotas;
use futures_util::StreamExt;
use kube::api::Api;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube_api::assigner::pod_claim;
use kube_api::hcs::ComputeQuota;
use kube_api::hcs_quota::{Charge, Counted, Limit, charge, used};
use kube_api::object::{Pod, ResourceQuota};
use kube_api::quota::limits;
use kube_api::quota_scopes::scopes;
use kube_api::vendor::Vendors;
use placement::{PodTraits, Quota, QuotaScope, Vendor, counts};

/// By namespace, then by the quota's name.
type Known = HashMap<String, HashMap<String, KnownQuota>>;

/// A ResourceQuota: the pods that it counts, and what each vendor's devices are limited to.
struct KnownQuota {
    scopes: Vec<QuotaScope>,
    allowed: Vec<(Vendor, Quota)>,
}

/// ComputeQuotas by namespace, then by name, each with the use in its status.
type KnownCompute = HashMap<String, HashMap<String, (Limit, Charge)>>;

/// The wait after an error before quotas are read again. A lasting error, such as a kind that the cluster does not
/// have, occurs at this interval.
const PAUSE: Duration = Duration::from_secs(5);

/// The quotas of all namespaces; empty until the first list has arrived.
pub struct Limits {
    known: RwLock<Known>,
    compute: RwLock<KnownCompute>,
    vendors: Arc<Vendors>,
}

impl Limits {
    /// The quotas of a cluster with devices of these vendors.
    pub fn new(vendors: Arc<Vendors>) -> Self {
        Self {
            known: RwLock::default(),
            compute: RwLock::default(),
            vendors,
        }
    }

    /// Follows the quotas in the cluster. Never returns.
    pub async fn follow(self: Arc<Self>, client: kube::Client) {
        if self.vendors.hcs().is_some() {
            tokio::join!(
                self.follow_resource(client.clone()),
                self.follow_compute(client)
            );
        } else {
            self.follow_resource(client).await;
        }
    }

    async fn follow_compute(&self, client: kube::Client) {
        let mut events =
            std::pin::pin!(watcher(Api::<ComputeQuota>::all(client), Config::default()));
        let mut coming = KnownCompute::new();
        let mut is_told = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => coming = KnownCompute::new(),
                Ok(Event::InitApply(quota)) => put_compute(&mut coming, &quota),
                Ok(Event::InitDone) => {
                    *self.write_compute() = std::mem::take(&mut coming);
                    is_told = false;
                }
                Ok(Event::Apply(quota)) => put_compute(&mut self.write_compute(), &quota),
                Ok(Event::Delete(quota)) => take_compute(&mut self.write_compute(), &quota),
                Err(error) => {
                    if !is_told {
                        tracing::warn!(%error, "ComputeQuotas could not be read; the last known ones stay in force");
                        is_told = true;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn write_compute(&self) -> std::sync::RwLockWriteGuard<'_, KnownCompute> {
        self.compute.write().unwrap_or_else(PoisonError::into_inner)
    }

    async fn follow_resource(&self, client: kube::Client) {
        let vendors = &self.vendors;
        let events = watcher(Api::<ResourceQuota>::all(client), Config::default());
        let mut events = std::pin::pin!(events.default_backoff());
        let mut coming = Known::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => coming = Known::new(),
                Ok(Event::InitApply(quota)) => put(&mut coming, &quota, vendors),
                Ok(Event::InitDone) => *self.write() = std::mem::take(&mut coming),
                Ok(Event::Apply(quota)) => put(&mut self.write(), &quota, vendors),
                Ok(Event::Delete(quota)) => take(&mut self.write(), &quota),
                Err(error) => {
                    tracing::debug!(%error, "quotas could not be read; the last known ones stay in force")
                }
            }
        }
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Known> {
        // The map is consistent after every statement, so a poisoned lock can be used.
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn names(quota: &ResourceQuota) -> (String, String) {
    let metadata = &quota.metadata;
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

fn put(known: &mut Known, quota: &ResourceQuota, vendors: &Vendors) {
    let (allowed, errors) = limits(quota, vendors);
    let (namespace, name) = names(quota);
    for error in errors {
        tracing::warn!(namespace, quota = name, %error, "this line of the quota cannot be read and limits nothing");
    }
    if allowed.is_empty() {
        return take(known, quota);
    }
    let scopes = scopes(quota);
    let quota = KnownQuota { scopes, allowed };
    known.entry(namespace).or_default().insert(name, quota);
}

fn take(known: &mut Known, quota: &ResourceQuota) {
    let (namespace, name) = names(quota);
    if let Some(quotas) = known.get_mut(&namespace) {
        quotas.remove(&name);
        if quotas.is_empty() {
            known.remove(&namespace);
        }
    }
}

fn put_compute(known: &mut KnownCompute, quota: &ComputeQuota) {
    let limit = Limit::read(quota);
    known
        .entry(limit.namespace.clone())
        .or_default()
        .insert(limit.name.clone(), (limit, used(quota)));
}

fn take_compute(known: &mut KnownCompute, quota: &ComputeQuota) {
    let limit = Limit::read(quota);
    if let Some(quotas) = known.get_mut(&limit.namespace) {
        quotas.remove(&limit.name);
        if quotas.is_empty() {
            known.remove(&limit.namespace);
        }
    }
}

impl Quotas for Limits {
    fn exceeded(&self, namespace: &str, pod: &Pod) -> Option<String> {
        // The status counts a reservation by label, and with it what its pod asks for.
        if pod_claim(pod).is_some() {
            return None;
        }
        let known = self.compute.read().unwrap_or_else(PoisonError::into_inner);
        let quotas = known.get(namespace)?;
        let counted = Counted::new(pod, charge(pod, None, &self.vendors, |_| None));
        let mut quotas: Vec<_> = quotas.values().collect();
        quotas.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        let mut quotas = quotas
            .into_iter()
            .filter(|(limit, _)| limit.counts(&counted));
        quotas.find_map(|(limit, used)| limit.exceeded(*used, counted.charge))
    }

    fn left(&self, namespace: &str, traits: &PodTraits, vendor: &Vendor) -> Quota {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let quotas = known.get(namespace).into_iter().flat_map(HashMap::values);
        let all = quotas
            .filter(|quota| counts(&quota.scopes, traits))
            .flat_map(|quota| &quota.allowed)
            .filter(|(of, _)| of == vendor)
            .map(|(_, quota)| *quota);
        all.fold(Quota::default(), |one, other| Quota {
            memory_bytes: least(one.memory_bytes, other.memory_bytes),
            cores: least(one.cores, other.cores),
            devices: least(one.devices, other.devices),
        })
    }
}

/// If there are several quotas, the lowest one counts.
fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use kube_api::config::{DeviceConfig, Hcs};
    use kube_api::vendor::Switches;
    use serde_json::{Value, json};

    use super::*;

    fn limits_with(quotas: &[Value]) -> Limits {
        let config = DeviceConfig {
            hcs: Some(Hcs::default()),
            ..DeviceConfig::standard()
        };
        let switches = Switches {
            ascend: true,
            iluvatar: false,
        };
        let limits = Limits::new(Arc::new(Vendors::new(config, switches).unwrap()));
        for quota in quotas {
            let quota = serde_json::from_value(quota.clone()).unwrap();
            put_compute(&mut limits.write_compute(), &quota);
        }
        limits
    }

    fn quota(hard: &str, used: Option<&str>) -> Value {
        let status = used.map(|used| json!({"used": {"vram": used}, "hard": {"vram": hard}}));
        json!({"apiVersion": "hcs.io/v1alpha1", "kind": "ComputeQuota",
            "metadata": {"name": "q", "namespace": "team"}, "spec": {"hard": {"vram": hard}}, "status": status})
    }

    fn exceeded(
        limits: &Limits,
        namespace: &str,
        vram: &str,
        annotations: &Value,
    ) -> Option<String> {
        let pod = json!({"metadata": {"annotations": annotations}, "spec": {"containers": [
            {"name": "c", "resources": {"limits": {"ai.compute/vram": vram}}}]}});
        limits.exceeded(namespace, &serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_quota_for_a_priority_class_limits_no_other_pod() {
        let limits = limits_with(&[]);
        let quota = json!({"metadata": {"name": "low", "namespace": "team"}, "spec": {
            "hard": {"limits.nvidia.com/gpumem": "1000"},
            "scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": "In", "values": ["low"]}]}}});
        let quota = serde_json::from_value(quota).unwrap();
        put(&mut limits.write(), &quota, &limits.vendors);
        let left = |class: &str| {
            let traits = PodTraits {
                priority_class: class.to_owned(),
                ..PodTraits::default()
            };
            let left = limits.left("team", &traits, &Vendor::new("NVIDIA"));
            left.memory_bytes.map(|bytes| bytes >> 20)
        };

        assert_eq!(left("low"), Some(1000));
        assert_eq!(left("high"), None);
        assert_eq!(left(""), None);
    }

    #[test]
    fn use_in_the_status_counts() {
        let none = json!({});
        let limits = limits_with(&[quota("32Gi", Some("20Gi"))]);

        assert_eq!(exceeded(&limits, "team", "12Gi", &none), None);
        assert_eq!(
            exceeded(&limits, "team", "13Gi", &none).unwrap(),
            "exceeded quota: ComputeQuota q allows 32768 MiB of vram in namespace team, its pods hold 20480 MiB, and \
             this pod asks for 13312 MiB"
        );
        assert_eq!(exceeded(&limits, "other", "13Gi", &none), None);
    }

    #[test]
    fn a_quota_without_a_status_limits_each_pod() {
        let limits = limits_with(&[quota("32Gi", None)]);

        assert_eq!(exceeded(&limits, "team", "32Gi", &json!({})), None);
        assert!(exceeded(&limits, "team", "33Gi", &json!({})).is_some());
    }

    #[test]
    fn a_pod_with_a_reservation_by_label_is_not_counted_twice() {
        let limits = limits_with(&[quota("80Gi", Some("80Gi"))]);
        let reserved = json!({"fudo.org/gpu.uuid": "GPU-1", "fudo.org/gpu.reservation-id": "r"});

        assert_eq!(exceeded(&limits, "team", "16Gi", &reserved), None);
        assert!(exceeded(&limits, "team", "16Gi", &json!({})).is_some());
    }
}
