//! An API server in this process that can be away, hang, or be counted.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use embedded_cluster::Cluster;
use kube::client::Body;
use kube_api::config::DeviceConfig;
use kube_api::vendor::{Switches, Vendors};
use tower::ServiceExt;

/// The standard ones.
pub(crate) static VENDORS: LazyLock<Arc<Vendors>> = LazyLock::new(|| {
    let switches = Switches {
        ascend: false,
        iluvatar: false,
    };
    Arc::new(Vendors::new(DeviceConfig::standard(), switches).unwrap())
});

/// How the API server behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    /// As it should.
    Up,
    /// No server answers: an error at once.
    Away,
    /// Requests get no answer at all.
    Hangs,
}

/// The embedded cluster, and how it is reached.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) cluster: Cluster,
    server: Arc<AtomicU8>,
    calls: Arc<AtomicU64>,
    /// What the tested program is told of the server's version, if not the embedded cluster's own.
    minor: Option<&'static str>,
}

impl Api {
    pub(crate) fn with(state: &serde_json::Value) -> Self {
        let cluster = Cluster::default();
        cluster.import(state).unwrap();
        Self {
            cluster,
            server: Arc::default(),
            calls: Arc::default(),
            minor: None,
        }
    }

    /// The same, which says that it is Kubernetes 1.`minor`.
    pub(crate) fn of_minor(self, minor: &'static str) -> Self {
        Self {
            minor: Some(minor),
            ..self
        }
    }

    pub(crate) fn is(&self, server: Server) {
        self.server.store(server as u8, Ordering::SeqCst);
    }

    /// Requests so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// A client that never is away, for the test itself.
    pub(crate) fn direct(&self) -> kube::Client {
        kube::Client::new(self.cluster.router(), "default")
    }

    /// The client of the tested program.
    pub(crate) fn client(&self) -> kube::Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let this = this.clone();
            async move {
                this.calls.fetch_add(1, Ordering::SeqCst);
                let server = this.server.load(Ordering::SeqCst);
                if server == Server::Hangs as u8 {
                    std::future::pending::<()>().await;
                }
                if server == Server::Away as u8 {
                    return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
                }
                if let Some(minor) = this.minor.filter(|_| request.uri().path() == "/version") {
                    let answer = k8s_openapi::apimachinery::pkg::version::Info {
                        major: "1".to_owned(),
                        minor: minor.to_owned(),
                        ..Default::default()
                    };
                    let body = axum::body::Body::from(serde_json::to_vec(&answer).unwrap());
                    return Ok(http::Response::new(body));
                }
                let answer = this.cluster.router().oneshot(request).await;
                Ok(answer.unwrap())
            }
        });
        kube::Client::new(service, "default")
    }
}
