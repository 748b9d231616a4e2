//! A cluster in memory, replicas on it that share a clock, and TLS clients for them.
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::{Method, Request, Response, StatusCode};
use axum::routing::get;
use embedded_cluster::Cluster;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use server::{Listener, Manners, Readiness, Tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower::ServiceExt;
use webhook::authority::Lifetimes;
use webhook::configuration::resource;
use webhook::keeper::{Clock, Configurations, Keeper, Settings, Source, Wanted};
use webhook::lease::Contest;
use webhook::metrics::Meters;

pub(crate) const NAMESPACE: &str = "vgpu-system";
pub(crate) const NAME: &str = "vgpu-webhook.vgpu-system.svc";
pub(crate) const MUTATING: &str = "MutatingWebhookConfiguration";
pub(crate) const VALIDATING: &str = "ValidatingWebhookConfiguration";

pub(crate) fn days(days: i32) -> SignedDuration {
    SignedDuration::from_hours(24) * days
}

/// A cluster, its clock, and whether its API server answers.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    now: Arc<Mutex<Timestamp>>,
    gone: Arc<AtomicBool>,
    hangs: Arc<AtomicBool>,
    writes: Arc<AtomicUsize>,
    /// Paths that are refused with 403.
    pub(crate) forbidden: Arc<Mutex<Vec<(Method, String)>>>,
    /// The uid of the ClusterRole that owns the configurations.
    pub(crate) owner: Arc<Mutex<Option<String>>>,
    /// The minor version in `/version`, if it is not the cluster's own.
    pub(crate) minor: Arc<Mutex<Option<String>>>,
}

/// One replica, as in production except for its loop.
pub(crate) struct Replica {
    pub(crate) keeper: Keeper,
    pub(crate) tls: Tls,
    pub(crate) readiness: Readiness,
    pub(crate) meters: Meters,
    pub(crate) address: SocketAddr,
}

/// The tests' wanted configuration.
pub(crate) fn wanted() -> Wanted {
    Arc::new(|match_conditions| {
        let entry = |name: &str, path: &str| {
            let mut entry = json!({
                "name": name,
                "admissionReviewVersions": ["v1", "v1beta1"],
                "clientConfig": { "service": {
                    "namespace": NAMESPACE, "name": "vgpu-webhook", "path": path,
                } },
                "failurePolicy": if match_conditions { "Fail" } else { "Ignore" },
                "namespaceSelector": { "matchExpressions": [
                    { "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"] },
                ] },
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                    "resources": ["pods"],
                }],
                "sideEffects": "None",
            });
            if match_conditions {
                entry["matchConditions"] =
                    json!([{ "name": "asks", "expression": "has(object.spec)" }]);
            }
            entry
        };
        vec![
            json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": MUTATING,
                "webhooks": [entry("pods.vgpu.io", "/webhook"), entry("more.vgpu.io", "/mutate")],
            }),
            json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": VALIDATING,
                "webhooks": [entry("pods.vgpu.io", "/validate-v1-pod")],
            }),
        ]
    })
}

impl World {
    pub(crate) fn new() -> Self {
        let cluster = Cluster::default();
        cluster
            .import(&json!({ "namespaces": [{ "metadata": { "name": NAMESPACE } }] }))
            .unwrap();
        Self {
            cluster,
            now: Arc::new(Mutex::new("2026-11-21T12:00:00Z".parse().unwrap())),
            gone: Arc::default(),
            hangs: Arc::default(),
            writes: Arc::default(),
            forbidden: Arc::default(),
            owner: Arc::default(),
            minor: Arc::default(),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        *self.now.lock().unwrap()
    }

    pub(crate) fn pass(&self, time: SignedDuration) {
        *self.now.lock().unwrap() += time;
    }

    /// Advances both clocks: this one and the runtime's, which must be paused.
    pub(crate) async fn wait(&self, seconds: u64) {
        self.pass(SignedDuration::from_secs(i64::try_from(seconds).unwrap()));
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    pub(crate) fn api_server_is_gone(&self, gone: bool) {
        self.gone.store(gone, Ordering::SeqCst);
    }

    pub(crate) fn api_server_hangs(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::SeqCst);
    }

    /// The number of writes of all replicas so far, without those to the Lease.
    pub(crate) fn writes(&self) -> usize {
        self.writes.load(Ordering::SeqCst)
    }

    pub(crate) fn client(&self) -> kube::Client {
        let router = self.cluster.router();
        let world = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (router, world) = (router.clone(), world.clone());
            async move {
                if world.hangs.load(Ordering::SeqCst) {
                    std::future::pending::<()>().await;
                }
                if world.gone.load(Ordering::SeqCst) {
                    return Err(std::io::Error::other("connection refused"));
                }
                let (parts, body) = request.into_parts();
                let path = parts.uri.path().to_owned();
                if path == "/version"
                    && let Some(minor) = world.minor.lock().unwrap().clone()
                {
                    let version = json!({
                        "major": "1", "minor": minor, "gitVersion": "", "gitCommit": "",
                        "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "",
                        "platform": "",
                    });
                    return Ok(Response::new(axum::body::Body::from(version.to_string())));
                }
                if path == "/apis/rbac.authorization.k8s.io/v1/clusterroles/vgpu-webhook"
                    && let Some(uid) = world.owner.lock().unwrap().clone()
                {
                    let role = json!({
                        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                        "metadata": { "name": "vgpu-webhook", "uid": uid },
                    });
                    return Ok(Response::new(axum::body::Body::from(role.to_string())));
                }
                let forbidden = world.forbidden.lock().unwrap().clone();
                if forbidden
                    .iter()
                    .any(|(method, part)| parts.method == *method && path.contains(part.as_str()))
                {
                    let status = json!({
                        "kind": "Status", "apiVersion": "v1", "status": "Failure",
                        "reason": "Forbidden", "code": 403, "message": format!("{path} is forbidden"),
                    });
                    let mut answer = Response::new(axum::body::Body::from(status.to_string()));
                    *answer.status_mut() = StatusCode::FORBIDDEN;
                    return Ok(answer);
                }
                if parts.method != Method::GET
                    && !path.contains("/leases")
                    && !path.contains("/events")
                {
                    world.writes.fetch_add(1, Ordering::SeqCst);
                }
                let request = Request::from_parts(parts, axum::body::Body::new(body));
                let answer: Result<_, Infallible> = router.oneshot(request).await;
                Ok(answer.unwrap())
            }
        });
        kube::Client::new(service, "default")
    }

    fn clock(&self) -> Clock {
        let world = self.clone();
        Arc::new(move || world.now())
    }

    /// A replica that already serves, and has not looked at the cluster yet.
    pub(crate) async fn replica(&self, identity: &str) -> Replica {
        self.replica_of(identity, wanted(), Duration::from_secs(3600))
            .await
    }

    pub(crate) async fn replica_of(
        &self,
        identity: &str,
        wanted: Wanted,
        patience: Duration,
    ) -> Replica {
        let own = Source::Own {
            secret: "vgpu-webhook-ca".to_owned(),
            names: vec![NAME.to_owned(), "127.0.0.1".to_owned()],
            lifetimes: Lifetimes::default(),
        };
        let tls = Tls::without_certificate();
        self.replica_with(identity, wanted, patience, own, tls)
            .await
    }

    pub(crate) async fn replica_with(
        &self,
        identity: &str,
        wanted: Wanted,
        patience: Duration,
        source: Source,
        tls: Tls,
    ) -> Replica {
        let readiness = Readiness::waiting_for("the first look");
        let meters = Meters::default();
        let contest = Contest::new(
            Api::namespaced(self.client(), NAMESPACE),
            "vgpu-webhook".to_owned(),
            identity.to_owned(),
            patience,
        );
        let settings = Settings {
            namespace: NAMESPACE.to_owned(),
            source,
            configurations: Some(Configurations {
                name: "vgpu-webhook".to_owned(),
                wanted,
                owner: Some("vgpu-webhook".to_owned()),
            }),
            clock: self.clock(),
        };
        let keeper = Keeper::new(
            self.client(),
            settings,
            contest,
            tls.clone(),
            readiness.clone(),
            meters.clone(),
        );
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let address = listener.address();
        let router = Router::new().route("/", get(async || "hello"));
        let never = std::future::pending::<()>();
        tokio::spawn(listener.serve_tls(router, Manners::default(), tls.clone(), never));
        Replica {
            keeper,
            tls,
            readiness,
            meters,
            address,
        }
    }

    pub(crate) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client(), NAMESPACE)
    }

    pub(crate) fn leases(&self) -> Api<k8s_openapi::api::coordination::v1::Lease> {
        Api::namespaced(self.client(), NAMESPACE)
    }

    /// The Secret's texts.
    pub(crate) async fn secret(&self) -> BTreeMap<String, String> {
        let secret = self.secrets().get("vgpu-webhook-ca").await.unwrap();
        let texts = secret.data.unwrap().into_iter();
        texts
            .map(|(key, ByteString(bytes))| (key, String::from_utf8(bytes).unwrap()))
            .collect()
    }

    pub(crate) async fn set_secret(&self, key: &str, value: Option<&str>) {
        let value = value.map(|text| ByteString(text.as_bytes().to_vec()));
        let patch = json!({ "data": { key: value } });
        let params = PatchParams::default();
        self.secrets()
            .patch("vgpu-webhook-ca", &params, &Patch::Merge(patch))
            .await
            .unwrap();
    }

    pub(crate) fn configurations(&self, kind: &str) -> Api<DynamicObject> {
        Api::all_with(self.client(), &resource(kind))
    }

    pub(crate) async fn configuration(&self, kind: &str) -> Value {
        let live = self.configurations(kind).get("vgpu-webhook").await.unwrap();
        serde_json::to_value(live).unwrap()
    }

    pub(crate) async fn event_notes(&self) -> Vec<String> {
        let api: Api<k8s_openapi::api::events::v1::Event> =
            Api::namespaced(self.client(), NAMESPACE);
        let events = api.list(&Default::default()).await.unwrap();
        events
            .into_iter()
            .map(|event| event.note.unwrap_or_default())
            .collect()
    }

    /// Edits a configuration, as a user would by hand.
    pub(crate) async fn edit(&self, kind: &str, edit: impl FnOnce(&mut Value)) {
        let mut live = self.configuration(kind).await;
        edit(&mut live);
        let live: DynamicObject = serde_json::from_value(live).unwrap();
        self.configurations(kind)
            .replace("vgpu-webhook", &Default::default(), &live)
            .await
            .unwrap();
    }

    /// Every `caBundle` there is, as PEM.
    pub(crate) async fn bundles(&self) -> Vec<String> {
        let mut bundles = Vec::new();
        for kind in [MUTATING, VALIDATING] {
            let live = self.configuration(kind).await;
            for entry in live["webhooks"].as_array().unwrap() {
                let bundle = entry["clientConfig"]["caBundle"].clone();
                let ByteString(bytes) = serde_json::from_value(bundle).unwrap();
                bundles.push(String::from_utf8(bytes).unwrap());
            }
        }
        bundles
    }

    /// The `caBundle` that all entries share.
    pub(crate) async fn bundle(&self) -> String {
        let bundles = self.bundles().await;
        assert_eq!(bundles.len(), 3);
        assert!(bundles.iter().all(|bundle| *bundle == bundles[0]));
        bundles[0].clone()
    }

    /// Whether a client that trusts this bundle is served, at this world's present time.
    pub(crate) async fn is_served(&self, replica: &Replica, bundle: &str) -> bool {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client =
            ClientConfig::builder_with_details(provider, Arc::new(WorldTime(self.clone())))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
        let stream = TcpStream::connect(replica.address).await.unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        let Ok(mut stream) = TlsConnector::from(Arc::new(client))
            .connect(name, stream)
            .await
        else {
            return false;
        };
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.ends_with("hello")
    }
}

impl Replica {
    /// Looks until there is nothing more to do.
    pub(crate) async fn settles(&mut self) {
        for _ in 0..8 {
            if !self.keeper.look().await.unwrap() {
                return;
            }
        }
        panic!("it writes and writes");
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.readiness.reason().is_none()
    }

    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.meters.registry()).unwrap();
        text
    }
}

/// The world's clock, for a client's judgement of certificates.
struct WorldTime(World);

impl std::fmt::Debug for WorldTime {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("WorldTime")
    }
}

impl TimeProvider for WorldTime {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = self.0.now().as_second();
        Some(UnixTime::since_unix_epoch(Duration::from_secs(
            u64::try_from(seconds).unwrap(),
        )))
    }
}
