//! When the keeper looks: after a change, at intervals, and soon again when a look failed.
//!
//! The keeper decides what to do.

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

/// The pause between two looks caused by changes. It grows up to the keeper's interval while
/// another program undoes what this one writes.
const GAP: Duration = Duration::from_secs(1);
/// The pause after a look that failed; doubled each time.
const AGAIN: Duration = Duration::from_secs(1);
const LONGEST_AGAIN: Duration = Duration::from_secs(30);

/// The objects whose changes the keeper wants to see at once.
#[derive(Debug, Clone, Default)]
pub struct Watched {
    /// Namespace and name.
    pub secret: Option<(String, String)>,
    /// The name of both configurations.
    pub configurations: Option<String>,
}

/// Keeps everything until `stop` is ready, then gives the Lease up.
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

/// Never returns.
async fn look_on(keeper: &mut Keeper, changed: &Notify) {
    let mut gap = GAP;
    let mut again = AGAIN;
    let mut failing = None;
    loop {
        let wait = match keeper.look().await {
            Ok(wrote) => {
                if failing.take().is_some() {
                    tracing::info!("the Secret and the configurations are as wanted again");
                }
                again = AGAIN;
                // A program that undoes every write is answered more slowly each time.
                if wrote {
                    gap = (gap * 2).min(keeper.rhythm());
                }
                keeper.rhythm()
            }
            Err(error) => {
                let error = format!("{error:#}");
                // A failure that repeats every few seconds is logged once.
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

/// Signals every change. Never returns; a watch that breaks is started again.
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
