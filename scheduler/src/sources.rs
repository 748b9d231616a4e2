//! Read access to the scheduler: for `/metrics`, for `/explain`, and for admission's quota check. Each reader gets a
//! copy, so that it delays an answer to kube-scheduler only for the time of a clone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use kube::Api;
use kube_api::object::{Node, Pod};
use placement::{Cluster, PodTraits, Quota, Vendor};
use tokio::sync::watch;

use crate::access::Access;
use crate::calls::within;
use crate::ledger::{Ledger, identity};
use crate::{Scheduler, assigner, explain, metrics};

/// The number of ComputeQuotas in the metrics. It is limited because tenants that may create quotas could otherwise
/// create any number of series.
const MOST_QUOTAS: usize = 1000;

impl metrics::SnapshotSource for Scheduler {
    fn snapshot(&self) -> metrics::Snapshot {
        let answers = self.0.leadership.answers().is_ok();
        let synced = self.is_synced();
        let now = self.now();
        self.with_ledger(|ledger| {
            let mut pending: BTreeMap<String, u64> = BTreeMap::new();
            for waiting in ledger.waiting() {
                *pending.entry(waiting.reason.to_owned()).or_default() += 1;
            }
            let (broken_nodes, broken_pods) = ledger.broken();
            metrics::Snapshot {
                cluster: if answers {
                    ledger.cluster().clone()
                } else {
                    // Only the replica that answers shows it.
                    Cluster::new()
                },
                vendors: Arc::clone(&self.0.vendors),
                instances: HashMap::new(),
                pending,
                unconfirmed: count(ledger.reserved()),
                broken_nodes: count(broken_nodes),
                broken_pods: count(broken_pods),
                answers,
                synced,
                events: self.0.events.counts(),
                woken: self.0.waker.woken(),
                compute_quotas: self
                    .0
                    .vendors
                    .hcs()
                    .map(|_| ledger.compute_quota_use(MOST_QUOTAS)),
                compute_tasks: self.0.compute_tasks.lock().clone(),
                scheduler: self.0.settings.scheduler_name.clone(),
                accounts: if answers {
                    ledger.accounts(now)
                } else {
                    Vec::new()
                },
            }
        })
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

impl explain::ViewSource for Scheduler {
    fn pod<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Pod>, explain::PodUnread>> {
        Box::pin(async move {
            if !self.is_synced() {
                return Err(explain::PodUnread::NotSynced(self.missing()));
            }
            self.catch_up().await;
            let pods: Api<Pod> = Api::namespaced(self.0.client.clone(), namespace);
            Ok(within(self.0.settings.kube_timeout, pods.get_opt(name)).await?)
        })
    }

    fn view(&self, pod: &Pod) -> explain::View {
        let settings = &self.0.settings;
        let asking = identity(pod);
        let (cluster, compute_quotas, nodes, quotas) = self.with_ledger(|ledger| {
            let nodes: Vec<(Arc<str>, Arc<Node>)> = ledger
                .nodes()
                .map(|(name, node)| (Arc::clone(name), Arc::clone(node)))
                .collect();
            let quotas = ledger.quotas().cloned().collect();
            let cluster = ledger.cluster_for(&asking.uid).into_owned();
            let compute_quotas = ledger.quotas_for(&asking.namespace, &asking.uid);
            (cluster, compute_quotas, nodes, quotas)
        });
        let nodes = nodes
            .into_iter()
            .map(|(name, node)| (name.to_string(), Node::clone(&node)))
            .collect();
        explain::View {
            cluster,
            nodes: Arc::new(nodes),
            quotas,
            compute_quotas,
            vendors: Arc::clone(&self.0.vendors),
            defaults: settings.defaults.clone(),
            // A question to the embedded cluster's scheduler about a pod always means this scheduler, whatever name
            // the pod has.
            scheduler_name: match self.0.embedded {
                Some(_) => String::new(),
                None => settings.scheduler_name.clone(),
            },
            node_selector: settings.node_selector.clone(),
            notes: Vec::new(),
            claims: None,
        }
    }
}

impl Scheduler {
    /// Asks this scheduler's API server about callers.
    pub fn access(&self) -> Access {
        Access::new(self.0.client.clone())
    }

    /// Whether the API server knows match conditions: Kubernetes 1.28 and later. Without them a webhook that is down is
    /// skipped. An API server that does not answer counts as a current one.
    pub async fn has_match_conditions(&self) -> bool {
        let version = self.0.client.apiserver_version();
        let version = tokio::time::timeout(self.0.settings.patience, version).await;
        let Ok(Ok(version)) = version else {
            return true;
        };
        kube_api::version::has_match_conditions(&version.major, &version.minor)
    }
}

impl assigner::ClaimLedger for Scheduler {
    fn change(&self, change: &mut dyn FnMut(&mut Ledger, Duration)) {
        Self::change(self, |ledger, now| change(ledger, now));
    }

    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }

    fn unready(&self) -> Option<String> {
        if !self.is_synced() {
            let missing = self.missing();
            return Some(format!("{missing} not read from the API server yet"));
        }
        let knows_quotas = self.with_ledger(Ledger::knows_compute_quotas);
        (!knows_quotas).then(|| "computequotas not read from the API server yet".to_owned())
    }

    fn catch_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(Self::catch_up(self))
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.claims.subscribe()
    }
}

impl Scheduler {
    /// The assigner over this scheduler's ledger; `None` if claims do not count.
    pub fn assigner(&self, settings: assigner::AssignerSettings) -> Option<assigner::Assigner> {
        let claims = self.0.settings.claims.as_ref()?;
        let store = claims.store(&self.0.client, self.0.settings.kube_timeout);
        let claim_ledger = Arc::new(self.clone());
        Some(assigner::Assigner::new(
            claim_ledger,
            Arc::new(store),
            settings,
        ))
    }
}

impl admission::Quotas for Scheduler {
    fn exceeded(&self, namespace: &str, pod: &Pod) -> Option<String> {
        self.with_ledger(|ledger| ledger.exceeds_compute_quota(namespace, pod))
    }

    fn left(&self, namespace: &str, traits: &PodTraits, vendor: &Vendor) -> Quota {
        let pod = placement::Pod {
            namespace: namespace.to_owned(),
            traits: traits.clone(),
            ..placement::Pod::default()
        };
        self.with_ledger(|ledger| {
            let Some((limit, used)) = ledger.cluster().quota(&pod, vendor) else {
                return Quota::default();
            };
            Quota {
                memory_bytes: limit
                    .memory_bytes
                    .map(|memory| memory.saturating_sub(used.memory_bytes)),
                cores: limit.cores.map(|cores| cores.saturating_sub(used.cores)),
                devices: limit
                    .devices
                    .map(|devices| devices.saturating_sub(used.slots)),
            }
        })
    }
}
