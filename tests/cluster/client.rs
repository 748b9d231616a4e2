//! Clients of the cluster's API server, by the kubeconfigs that `scripts/cluster` writes.

use std::path::Path;

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
