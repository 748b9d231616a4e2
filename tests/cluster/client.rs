//! Clients of the cluster's API server, by the kubeconfigs that `scripts/cluster` writes, and how tests ask them.

use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// A client as this account.
pub(crate) async fn client_of(run: &Path, account: &str) -> Client {
    let file = Kubeconfig::read_from(run.join(format!("{account}.kubeconfig"))).unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .unwrap();
    Client::try_from(config).unwrap()
}

/// The notes of all events about an object with this name, each after its reason.
pub(crate) async fn events_of(api: &Api<Event>, name: &str) -> kube::Result<Vec<String>> {
    let of = ListParams::default().fields(&format!("involvedObject.name={name}"));
    let notes = api.list(&of).await?.items.into_iter().map(|event| {
        let reason = event.reason.unwrap_or_default();
        format!("{reason}: {}", event.message.unwrap_or_default())
    });
    Ok(notes.collect())
}

/// Asks until there is an answer; `None` if there is none within `patience`. The pause between two questions is an eighth of
/// the time waited so far, at least 50 ms and at most a second: a wait that takes long asks seldom.
pub(crate) async fn asked<T>(
    patience: Duration,
    mut ask: impl AsyncFnMut() -> Option<T>,
) -> Option<T> {
    let (shortest, longest) = (Duration::from_millis(50), Duration::from_secs(1));
    let began = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return Some(answer);
        }
        let waited = began.elapsed();
        if waited >= patience {
            return None;
        }
        tokio::time::sleep((waited / 8).clamp(shortest, longest)).await;
    }
}
