//! The keeper's rhythm: it looks when something has changed, when time has passed, and again soon
//! when a look failed.
//!
//! Never decides what there is to do.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::Config;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::configuration::{KINDS, resource};
use crate::keeper::Keeper;

/// Between two looks that changes ask for; up to the keeper's rhythm while what we write is changed
/// again each time.
const GAP: Duration = Duration::from_secs(1);
/// After a look that failed; doubled each time.
const AGAIN: Duration = Duration::from_secs(1);
const LONGEST_AGAIN: Duration = Duration::from_secs(30);

/// Objects whose changes the keeper wants to see at once.
#[derive(Debug, Clone, Default)]
pub struct Watched {
    /// Namespace and name.
    pub secret: Option<(String, String)>,
    /// Name of both.
    pub configurations: Option<String>,
}

/// Keeps, until `stop` is ready; then leaves the Lease to another replica.
pub async fn keep(mut keeper: Keeper, client: kube::Client, watched: Watched, stop: impl Future) {
    let changed = Arc::new(Notify::new());
    let mut watchers = JoinSet::new();
    if let Some((namespace, name)) = &watched.secret {
        let secrets = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Secret"));
        let api = Api::namespaced_with(client.clone(), namespace, &secrets);
        watchers.spawn(follow(api, name.clone(), Arc::clone(&changed)));
    }
    if let Some(name) = &watched.configurations {
        for kind in KINDS {
            let api = Api::all_with(client.clone(), &resource(kind));
            watchers.spawn(follow(api, name.clone(), Arc::clone(&changed)));
        }
    }
    tokio::select! {
        () = look_on(&mut keeper, &changed) => {}
        _ = stop => {}
    }
    watchers.shutdown().await;
    keeper.let_go().await;
}

/// Never ends.
async fn look_on(keeper: &mut Keeper, changed: &Notify) {
    let mut gap = GAP;
    let mut again = AGAIN;
    let mut failing = None;
    loop {
        let wait = match keeper.look().await {
            Ok(wrote) => {
                if failing.take().is_some() {
                    tracing::info!("the cluster is as it has to be again");
                }
                again = AGAIN;
                // Somebody who undoes each of our writes is not answered ever faster.
                if wrote {
                    gap = (gap * 2).min(keeper.rhythm());
                }
                keeper.rhythm()
            }
            Err(error) => {
                let error = format!("{error:#}");
                // The same failure every few seconds is one failure.
                if failing.as_ref() == Some(&error) {
                    tracing::debug!(error, "it fails still");
                } else {
                    tracing::warn!(error, "not everything could be done; it is tried again");
                    failing = Some(error);
                }
                let wait = again;
                again = (again * 2).min(LONGEST_AGAIN);
                wait.min(keeper.rhythm())
            }
        };
        let looked = Instant::now();
        if timeout_at(looked + wait, changed.notified()).await.is_ok() {
            sleep_until(looked + gap).await;
        } else {
            gap = GAP;
        }
    }
}

/// Tells of every change. Never ends; a watch that breaks is begun again.
async fn follow(api: Api<DynamicObject>, name: String, changed: Arc<Notify>) {
    let config = Config::default().fields(&format!("metadata.name={name}"));
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(_) => changed.notify_one(),
            Err(error) => tracing::debug!(%error, name, "a watch broke"),
        }
    }
}
