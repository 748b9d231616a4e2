//! ComputeQuotas: reads them into the ledger, and keeps their status while this replica answers. The ledger decides.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube_api::hcs::{ComputeQuota, ComputeQuotaStatus};
use serde_json::json;

use crate::Scheduler;
use crate::calls::{CallError, within};
use crate::ledger::Ledger;

/// How often the use is compared with the statuses.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The wait before a failed watch restarts. In a cluster without the definition every watch fails.
const PAUSE: Duration = Duration::from_secs(5);

type QuotaName = (String, String);

fn name_of(quota: &ComputeQuota) -> QuotaName {
    let metadata = &quota.metadata;
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

/// Whether the API server does not know the kind at all.
fn is_unknown(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) =
        error
    else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

impl Scheduler {
    /// Reads every ComputeQuota into the ledger, until the future is dropped.
    pub(crate) async fn watch_compute_quotas(self) {
        let quotas: Api<ComputeQuota> = Api::all(self.0.client.clone());
        let mut events = std::pin::pin!(watcher(quotas, watcher::Config::default()));
        let mut listed: Vec<ComputeQuota> = Vec::new();
        let mut told = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(quota)) => listed.push(quota),
                Ok(Event::InitDone) => {
                    let quotas = std::mem::take(&mut listed);
                    self.change(|ledger, _| ledger.keep_compute_quotas(&quotas));
                    told = false;
                }
                Ok(Event::Apply(quota)) => {
                    self.change(|ledger, _| ledger.set_compute_quota(&quota));
                }
                Ok(Event::Delete(quota)) => {
                    let (namespace, name) = name_of(&quota);
                    self.change(|ledger, _| ledger.remove_compute_quota(&namespace, &name));
                }
                Err(error) => {
                    if is_unknown(&error) {
                        // Without the kind there are no quotas.
                        self.change(|ledger, _| ledger.keep_compute_quotas(&[]));
                    }
                    if !told {
                        tracing::warn!(%error, "cannot read ComputeQuotas; trying again");
                        told = true;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Writes changed use into the quotas' statuses, while this replica answers.
    pub(crate) async fn keep_compute_quotas(self) {
        let mut written: HashMap<QuotaName, ComputeQuotaStatus> = HashMap::new();
        let mut tick = tokio::time::interval(LOOK_EVERY);
        loop {
            tick.tick().await;
            if self.answers().is_err() {
                // Another replica writes now, so what was written here may be outdated later.
                written.clear();
                continue;
            }
            let wanted = self.with_ledger(Ledger::compute_quotas);
            let there: Vec<QuotaName> = wanted
                .iter()
                .map(|(namespace, name, _)| (namespace.clone(), name.clone()))
                .collect();
            written.retain(|name, _| there.contains(name));
            for (namespace, name, status) in wanted {
                let key = (namespace, name);
                if written.get(&key) == Some(&status) {
                    continue;
                }
                match self.write_compute_quota(&key, &status).await {
                    Ok(()) => drop(written.insert(key, status)),
                    Err(error) => {
                        let (namespace, name) = key;
                        tracing::debug!(namespace, quota = name, %error, "the status of a ComputeQuota is not written");
                    }
                }
            }
        }
    }

    async fn write_compute_quota(
        &self,
        (namespace, name): &QuotaName,
        status: &ComputeQuotaStatus,
    ) -> Result<(), CallError> {
        let quotas: Api<ComputeQuota> = Api::namespaced(self.0.client.clone(), namespace);
        let mut value = json!({ "errors": null });
        if let (Some(into), Ok(serde_json::Value::Object(from))) =
            (value.as_object_mut(), serde_json::to_value(status))
        {
            into.extend(from);
        }
        let patch = Patch::Merge(json!({ "status": value }));
        let params = PatchParams::default();
        let call = quotas.patch_status(name, &params, &patch);
        within(self.0.settings.kube_timeout, call).await.map(drop)
    }
}
