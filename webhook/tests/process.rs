//! The program itself, with a cluster in memory over HTTP: it is started, found through the configuration that it
//! wrote, asked, and stopped.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use embedded_cluster::{Cluster, DeleteOptions, Target, Write};
use k8s_openapi::ByteString;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A program that runs until this is dropped.
struct Program {
    child: Child,
    lines: Receiver<String>,
    log: Vec<String>,
}

impl Program {
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_vgpu-webhook"))
            .args(args)
            .args(["--log-format", "json"])
            .env_clear()
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, lines) = channel();
        let log = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in log.lines() {
                if line.is_err() || send.send(line.unwrap()).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            lines,
            log: Vec::new(),
        }
    }

    /// The fields of the first line from here on with this text.
    fn says(&mut self, text: &str) -> Value {
        loop {
            let line = self
                .lines
                .recv_timeout(Duration::from_secs(30))
                .unwrap_or_else(|_| panic!("never {text:?}, but {:#?}", self.log));
            self.log.push(line.clone());
            if line.contains(text) {
                return serde_json::from_str::<Value>(&line).unwrap_or_default()["fields"].take();
            }
        }
    }

    fn is_told_to_stop(&self) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(sent.unwrap().success());
    }

    fn ends(&mut self) -> bool {
        self.is_told_to_stop();
        self.child.wait().unwrap().success()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

struct Served {
    cluster: Cluster,
    directory: tempfile::TempDir,
    address: SocketAddr,
}

impl Served {
    async fn start() -> Self {
        let cluster = Cluster::default();
        cluster
            .import(&json!({
                "namespaces": [
                    { "metadata": { "name": "vgpu-system" } },
                    { "metadata": { "name": "small" } },
                ],
                "resourceQuotas": [{
                    "metadata": { "name": "q", "namespace": "small" },
                    "spec": { "hard": { "limits.nvidia.com/gpumem": "1000" } },
                }],
            }))
            .unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = cluster.router();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let directory = tempfile::tempdir().unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://{address}") } }],
            "users": [{ "name": "u", "user": {} }],
        });
        std::fs::write(directory.path().join("kubeconfig"), config.to_string()).unwrap();
        Self {
            cluster,
            directory,
            address,
        }
    }

    fn kubeconfig(&self) -> String {
        self.directory
            .path()
            .join("kubeconfig")
            .display()
            .to_string()
    }

    async fn delete(&self, group: &str, plural: &str, namespace: &str, name: &str) {
        let resource = self.cluster.resource(group, plural).unwrap();
        let target = Target::object(&resource, namespace, name);
        let (options, write) = (DeleteOptions::default(), Write::default());
        self.cluster
            .delete(&target, &options, &write)
            .await
            .unwrap();
    }

    fn configuration(&self, plural: &str) -> Value {
        let group = "admissionregistration.k8s.io";
        let resource = self.cluster.resource(group, plural).unwrap();
        let target = Target::object(&resource, "", "vgpu-webhook");
        self.cluster.get(&target).unwrap().value().clone()
    }
}

/// Asks as an API server does: at the path of this entry, trusting only its caBundle.
async fn ask(port: SocketAddr, entry: &Value, review: &Value) -> Value {
    let client = &entry["clientConfig"];
    let ByteString(bundle) = serde_json::from_value(client["caBundle"].clone()).unwrap();
    let service = &client["service"];
    let name = format!(
        "{}.{}.svc",
        service["name"].as_str().unwrap(),
        service["namespace"].as_str().unwrap()
    );
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&bundle) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(port).await.unwrap();
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from(name).unwrap(), stream)
        .await
        .unwrap();
    let body = review.to_string();
    let path = service["path"].as_str().unwrap();
    let request = format!(
        "POST {path}?timeout=10s HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    serde_json::from_str(body).unwrap()
}

async fn get(port: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(port).await.unwrap();
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes(),
        )
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn becomes_ready(port: SocketAddr) {
    for _ in 0..600 {
        if get(port, "/readyz").await.ends_with("ready\n")
            && get(port, "/readyz").await.starts_with("HTTP/1.1 200 ")
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never ready: {}", get(port, "/readyz").await);
}

fn ports(program: &mut Program) -> (SocketAddr, SocketAddr) {
    let fields = program.says("serving reviews over TLS");
    (
        fields["address"].as_str().unwrap().parse().unwrap(),
        fields["metrics"].as_str().unwrap().parse().unwrap(),
    )
}

fn review(namespace: &str, gpumem: &str) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "operation": "CREATE", "namespace": namespace, "name": "p",
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "userInfo": { "username": "jane" },
            "object": {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": "p", "namespace": namespace },
                "spec": { "containers": [{
                    "name": "c", "image": "i",
                    "resources": { "limits": { "nvidia.com/gpu": "1", "nvidia.com/gpumem": gpumem } },
                }] },
            },
        },
    })
}

const COMMON: [&str; 10] = [
    "--shutdown-delay",
    "0",
    "--http_bind",
    "127.0.0.1:0",
    "--metrics-bind-address",
    "127.0.0.1:0",
    "--namespace",
    "vgpu-system",
    "--identity",
    "pod-0",
];

#[tokio::test(flavor = "multi_thread")]
async fn it_is_found_by_what_it_wrote_and_answers_reviews() {
    let served = Served::start().await;
    let config = served.kubeconfig();
    let mut program = Program::start(&[&COMMON[..], &["--kubeconfig", &config]].concat());
    let (port, plain) = ports(&mut program);
    becomes_ready(plain).await;

    let mutating = served.configuration("mutatingwebhookconfigurations");
    let validating = served.configuration("validatingwebhookconfigurations");
    let entry = &mutating["webhooks"][0];
    let answer = ask(port, entry, &review("default", "3000")).await;
    assert_eq!(answer["response"]["uid"], "u-1");
    assert_eq!(answer["response"]["allowed"], true);
    assert_eq!(answer["response"]["patchType"], "JSONPatch");

    let answer = ask(port, entry, &review("default", "-1")).await;
    assert_eq!(answer["response"]["allowed"], false, "{answer}");
    let entry = &validating["webhooks"][0];
    let answer = ask(port, entry, &review("default", "3000")).await;
    assert_eq!(answer["response"]["uid"], "u-1");

    // More than the namespace's whole quota. Quotas arrive by a separate watch.
    let entry = &mutating["webhooks"][0];
    while ask(port, entry, &review("small", "3000")).await["response"]["allowed"] == true {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let answer = ask(port, entry, &review("small", "1000")).await;
    assert_eq!(answer["response"]["allowed"], true, "{answer}");

    let metrics = get(plain, "/metrics").await;
    for series in [
        "vgpu_webhook_reviews_total{operation=\"CREATE\",outcome=\"mutated\"} 2",
        "vgpu_webhook_reviews_total{operation=\"CREATE\",outcome=\"allowed\"} 1",
        "vgpu_webhook_reviews_total{operation=\"CREATE\",outcome=\"denied\"}",
        "vgpu_webhook_review_duration_seconds_count",
        "vgpu_webhook_ca_rotations_total{reason=\"created\"} 1",
        "vgpu_webhook_configuration_writes_total{reason=\"created\"} 2",
    ] {
        assert!(metrics.contains(series), "{series} in {metrics}");
    }
    assert!(metrics.contains("vgpu_webhook_holder 1"), "{metrics}");
    assert!(get(plain, "/healthz").await.starts_with("HTTP/1.1 200 "));
    assert!(program.ends());
}

#[tokio::test(flavor = "multi_thread")]
async fn edited_or_deleted_objects_come_back_while_it_runs() {
    let served = Served::start().await;
    let config = served.kubeconfig();
    let mut program = Program::start(&[&COMMON[..], &["--kubeconfig", &config]].concat());
    let (_, plain) = ports(&mut program);
    becomes_ready(plain).await;
    program.says("\"kind\":\"ValidatingWebhookConfiguration\"");

    served
        .delete(
            "admissionregistration.k8s.io",
            "mutatingwebhookconfigurations",
            "",
            "vgpu-webhook",
        )
        .await;
    // The watch triggers it long before the next periodic look. The test only requires that it happens.
    let fields = program.says("\"message\":\"created\"");
    assert_eq!(fields["kind"], "MutatingWebhookConfiguration");

    served
        .delete("", "secrets", "vgpu-system", "vgpu-webhook-ca")
        .await;
    program.says("the Secret of the webhook's CA was deleted; it holds a new CA");
    program.says("changed to what it has to be");
    assert!(program.ends());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_api_server_it_is_alive_and_not_ready() {
    let served = Served::start().await;
    let config = std::fs::read_to_string(served.kubeconfig()).unwrap();
    // A port without a listener.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed_at = closed.local_addr().unwrap();
    drop(closed);
    let config = config.replace(&served.address.to_string(), &closed_at.to_string());
    std::fs::write(served.directory.path().join("kubeconfig"), config).unwrap();
    let config = served.kubeconfig();
    let mut program = Program::start(&[&COMMON[..], &["--kubeconfig", &config]].concat());
    let (_, plain) = ports(&mut program);
    program.says("it is tried again");

    assert!(get(plain, "/healthz").await.starts_with("HTTP/1.1 200 "));
    let answer = get(plain, "/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(
        answer.contains("cannot read the Secret vgpu-webhook-ca"),
        "{answer}"
    );

    // The listener starts late.
    let listener = tokio::net::TcpListener::bind(closed_at).await.unwrap();
    let router = served.cluster.router();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    becomes_ready(plain).await;
    assert!(program.ends());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_given_certificate_needs_no_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["vgpu-webhook.vgpu-system.svc".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    std::fs::write(at("tls.crt"), certificate.pem()).unwrap();
    std::fs::write(at("tls.key"), key.serialize_pem()).unwrap();
    let (crt, key) = (at("tls.crt"), at("tls.key"));
    let given = ["--cert_file", &crt, "--key_file", &key];
    let mut program = Program::start(&[&COMMON[..], &given].concat());
    program.says("no configuration is written and no quota is known");
    let (port, plain) = ports(&mut program);
    becomes_ready(plain).await;

    let entry = json!({ "clientConfig": {
        "caBundle": ByteString(certificate.pem().into_bytes()),
        "service": { "name": "vgpu-webhook", "namespace": "vgpu-system", "path": "/mutate" },
    } });
    let answer = ask(port, &entry, &review("default", "3000")).await;

    assert_eq!(answer["response"]["allowed"], true);
    assert!(program.ends());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_signal_it_serves_on_and_releases_the_lease() {
    let served = Served::start().await;
    let config = served.kubeconfig();
    let last = ["--kubeconfig", &config, "--shutdown-delay", "4"];
    let mut program = Program::start(&[&COMMON[2..], &last].concat());
    let (port, plain) = ports(&mut program);
    becomes_ready(plain).await;
    let mutating = served.configuration("mutatingwebhookconfigurations");
    let holder = || {
        let leases = served
            .cluster
            .resource("coordination.k8s.io", "leases")
            .unwrap();
        let target = Target::object(&leases, "vgpu-system", "vgpu-webhook");
        served.cluster.get(&target).unwrap().value()["spec"]["holderIdentity"].clone()
    };
    assert!(
        holder().is_string(),
        "no replica holds the lease: {}",
        holder()
    );

    program.is_told_to_stop();
    program.says("stopping");

    while get(plain, "/readyz").await.starts_with("HTTP/1.1 200 ") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let answer = ask(port, &mutating["webhooks"][0], &review("default", "1")).await;
    assert_eq!(answer["response"]["allowed"], true);
    assert!(program.child.wait().unwrap().success());
    assert_eq!(holder(), Value::Null);
}

#[test]
fn reason_for_not_starting_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(at("config.yaml"), "nvidia:\n  resourceCounter: x\n").unwrap();
    let config = at("config.yaml");
    let missing = at("missing");
    for (args, expected) in [
        (&["--device-config-file", &config][..], "resourceCounter"),
        (&["--device-config-file", &missing], "missing"),
        (&["--kubeconfig", &missing], "--kubeconfig"),
        (
            &["--cert_file", &missing, "--key_file", &missing],
            "cannot read",
        ),
        (&[], "--kubeconfig FILE"),
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_vgpu-webhook"))
            .args(args)
            .args(["--log", "error"])
            .env_clear()
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(
            said.starts_with("vgpu-webhook: ") && said.contains(expected),
            "{said}"
        );
    }
}
