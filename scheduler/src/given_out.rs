//! ResourceClaims (dynamic resource allocation): which GPUs of the ledger they have, and what those of our own driver
//! ask for and hold. Reads slices and claims by a watch each; the ledger and [`ClaimScores`] decide. Nothing is written.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, Event, watcher};
use kube_api::resource_claims::{GROUP, ResourceClaims, VERSIONS, name_of};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::Scheduler;
use crate::calls::{CallError, within};
use crate::claim_scores::ClaimScores;

/// How often is looked whether the API server has the group.
const LOOK_EVERY: Duration = Duration::from_secs(300);
/// The wait before a failed watch restarts.
const PAUSE: Duration = Duration::from_secs(5);
/// How long the first lists may take before pods are placed without them.
const PATIENCE: Duration = Duration::from_secs(30);

/// A message of a watch.
enum WatchMessage {
    Slice(Value),
    SliceGone(String),
    Slices(BTreeSet<String>),
    Claim(Value),
    ClaimGone((String, String)),
    Claims(BTreeSet<(String, String)>),
    /// The API server does not show it, for this reason.
    Refused(String),
}

impl ClaimScores {
    fn take(&mut self, message: &WatchMessage) {
        match message {
            WatchMessage::Slice(slice) => self.set_slice(slice),
            WatchMessage::SliceGone(name) => self.remove_slice(name),
            WatchMessage::Slices(listed) => self.keep_slices(listed),
            WatchMessage::Claim(claim) => self.set_claim(claim),
            WatchMessage::ClaimGone(name) => self.remove_claim(name),
            WatchMessage::Claims(listed) => self.keep_claims(listed),
            WatchMessage::Refused(_) => {}
        }
    }
}

impl Scheduler {
    /// Keeps the ledger's GPUs that other drivers give out, until the future is dropped.
    pub(crate) async fn watch_resource_claims(self) {
        loop {
            match self.version_of_claims().await {
                Ok(Some(version)) => self.follow_resource_claims(&version).await,
                Ok(None) => self.given_out_is_known(),
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "cannot see whether the API server has ResourceClaims"
                    );
                    self.given_out_is_known();
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn given_out_is_known(&self) {
        self.0.progress.send_if_modified(|progress| {
            let changed = !progress.given_out;
            progress.given_out = true;
            changed
        });
    }

    /// The best version of the group that the API server has; `None` if it has none.
    async fn version_of_claims(&self) -> Result<Option<String>, CallError> {
        let groups = self.0.client.list_api_groups();
        let groups = within(self.0.settings.kube_timeout, groups).await?.groups;
        let group = groups.into_iter().find(|group| group.name == GROUP);
        let versions = group.map(|group| group.versions).unwrap_or_default();
        let best = VERSIONS
            .iter()
            .find(|best| versions.iter().any(|version| version.version == **best));
        Ok(best.map(|version| (*version).to_owned()))
    }

    async fn follow_resource_claims(&self, version: &str) {
        let (says, mut said) = mpsc::channel(64);
        let slices = self.watch_kind(version, "ResourceSlice", says.clone());
        let claims = self.watch_kind(version, "ResourceClaim", says);
        let mut known = ResourceClaims::default();
        *self.0.claim_scores.lock() = ClaimScores::default();
        let mut missing = 2;
        let mut refused = false;
        let keeping = async {
            let begun = tokio::time::Instant::now();
            loop {
                let next = if missing > 0 {
                    let next = tokio::time::timeout_at(begun + PATIENCE, said.recv());
                    let Ok(next) = next.await else {
                        tracing::warn!(
                            "ResourceClaims are not read in time; pods are placed without them"
                        );
                        self.given_out_is_known();
                        missing = 0;
                        continue;
                    };
                    next
                } else {
                    said.recv().await
                };
                let Some(next) = next else { return };
                self.0.claim_scores.lock().take(&next);
                match next {
                    WatchMessage::Slice(slice) => known.set_slice(&slice),
                    WatchMessage::SliceGone(name) => known.remove_slice(&name),
                    WatchMessage::Claim(claim) => known.set_claim(&claim),
                    WatchMessage::ClaimGone(name) => known.remove_claim(&name),
                    WatchMessage::Slices(listed) => {
                        known.keep_slices(&listed);
                        missing -= usize::from(missing > 0);
                    }
                    WatchMessage::Claims(listed) => {
                        known.keep_claims(&listed);
                        missing -= usize::from(missing > 0);
                    }
                    WatchMessage::Refused(why) => {
                        if !refused {
                            tracing::warn!(
                                why,
                                "cannot read ResourceClaims; GPUs that they have are not known"
                            );
                        }
                        refused = true;
                        self.given_out_is_known();
                        missing = 0;
                    }
                }
                if missing == 0 {
                    let given_out = known.given_out();
                    self.change(|ledger, _| ledger.set_given_out(given_out));
                    self.given_out_is_known();
                }
            }
        };
        tokio::join!(slices, claims, keeping);
    }

    async fn watch_kind(&self, version: &str, kind: &str, says: mpsc::Sender<WatchMessage>) {
        let is_slice = kind == "ResourceSlice";
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, version, kind));
        let api: Api<DynamicObject> = Api::all_with(self.0.client.clone(), &resource);
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
        let mut listed = BTreeSet::new();
        while let Some(event) = events.next().await {
            let said = match event {
                Ok(Event::Init) => {
                    listed.clear();
                    continue;
                }
                Ok(Event::InitApply(object)) => {
                    let value = value(object);
                    listed.insert(name_of(&value));
                    if is_slice {
                        WatchMessage::Slice(value)
                    } else {
                        WatchMessage::Claim(value)
                    }
                }
                Ok(Event::InitDone) => {
                    let listed = std::mem::take(&mut listed);
                    if is_slice {
                        WatchMessage::Slices(listed.into_iter().map(|(_, name)| name).collect())
                    } else {
                        WatchMessage::Claims(listed)
                    }
                }
                Ok(Event::Apply(object)) => {
                    let value = value(object);
                    if is_slice {
                        WatchMessage::Slice(value)
                    } else {
                        WatchMessage::Claim(value)
                    }
                }
                Ok(Event::Delete(object)) => {
                    let name = name_of(&value(object));
                    if is_slice {
                        WatchMessage::SliceGone(name.1)
                    } else {
                        WatchMessage::ClaimGone(name)
                    }
                }
                Err(error) => {
                    tokio::time::sleep(PAUSE).await;
                    WatchMessage::Refused(error.to_string())
                }
            };
            if says.send(said).await.is_err() {
                return;
            }
        }
    }
}

fn value(object: DynamicObject) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}
