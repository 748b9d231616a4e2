//! What the ResourceQuotas of a namespace allow a single pod.
//!
//! Never what the namespace uses already: that is the scheduler's ledger's to know, and its to
//! refuse. A pod that alone exceeds its quota is refused here, where its author sees it at once.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use admission::Quotas;
use futures_util::StreamExt;
use kube::api::Api;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube_api::object::ResourceQuota;
use kube_api::quota::limits;
use kube_api::vendor::Vendors;
use placement::{Quota, Vendor};

/// By namespace, then by the quota's name.
type Known = HashMap<String, HashMap<String, Vec<(Vendor, Quota)>>>;

/// The quotas of all namespaces, as far as they are known: none, until the first list has come.
#[derive(Default)]
pub struct Limits {
    known: RwLock<Known>,
}

impl Limits {
    /// Follows the cluster's quotas. Never ends.
    pub async fn follow(self: Arc<Self>, client: kube::Client, vendors: Arc<Vendors>) {
        let events = watcher(Api::<ResourceQuota>::all(client), Config::default());
        let mut events = std::pin::pin!(events.default_backoff());
        let mut coming = Known::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => coming = Known::new(),
                Ok(Event::InitApply(quota)) => put(&mut coming, &quota, &vendors),
                Ok(Event::InitDone) => *self.write() = std::mem::take(&mut coming),
                Ok(Event::Apply(quota)) => put(&mut self.write(), &quota, &vendors),
                Ok(Event::Delete(quota)) => take(&mut self.write(), &quota),
                Err(error) => tracing::debug!(%error, "quotas are as they were known last"),
            }
        }
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Known> {
        // A map is whole between two lines.
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
        tracing::warn!(namespace, quota = name, %error, "this line limits nothing");
    }
    if allowed.is_empty() {
        return take(known, quota);
    }
    known.entry(namespace).or_default().insert(name, allowed);
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

impl Quotas for Limits {
    fn left(&self, namespace: &str, vendor: &Vendor) -> Quota {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let quotas = known.get(namespace).into_iter().flat_map(HashMap::values);
        let all = quotas
            .flatten()
            .filter(|(of, _)| of == vendor)
            .map(|(_, quota)| *quota);
        all.fold(Quota::default(), |one, other| Quota {
            memory_bytes: least(one.memory_bytes, other.memory_bytes),
            cores: least(one.cores, other.cores),
            devices: least(one.devices, other.devices),
        })
    }
}

/// Of several quotas the narrowest counts.
fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
