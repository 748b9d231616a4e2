//! A served cluster, and objects to store in it.
#![allow(dead_code, reason = "each test program uses what it needs")]

use embedded_cluster::{Cluster, Options};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;

/// A cluster behind a listener of its own, until it is dropped.
pub(crate) struct Served {
    pub(crate) cluster: Cluster,
    pub(crate) url: String,
    server: tokio::task::JoinHandle<()>,
}

impl Served {
    pub(crate) async fn start() -> Self {
        Self::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        let cluster = Cluster::new(options);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = embedded_cluster::guard(cluster.router(), address, None).unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self {
            cluster,
            url: format!("http://{address}"),
            server,
        }
    }

    pub(crate) fn client(&self) -> kube::Client {
        kube::Client::try_from(kube::Config::new(self.url.parse().unwrap())).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.abort();
    }
}

pub(crate) fn node(name: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": { "name": name },
        "status": { "allocatable": { "nvidia.com/gpu": "10" }, "conditions": [{ "type": "Ready", "status": "True" }] }
    }))
    .unwrap()
}

pub(crate) fn pod(name: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "containers": [{ "name": "c", "image": "i", "resources": { "limits": { "nvidia.com/gpu": "1" } } }] }
    }))
    .unwrap()
}
