//! The last span of a pod's trace: what the agent sends of containers that launch while it looks, that have
//! launched before, that never do, and that belong to an untrusted user.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helpers, too"
)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::{Value, json};
use server::Traces;
use supervisor::clock::monotonic_ns;
use vgpu_abi::budget::Kind;
use vgpu_abi::region::Region;
use vgpu_monitor::first_kernel::FirstKernels;

use crate::common::Board;
use crate::harness::only;

#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

impl Collector {
    async fn start(&self) -> Traces {
        async fn take(State(collector): State<Collector>, body: Bytes) {
            let request = ExportTraceServiceRequest::decode(body).unwrap();
            let scopes = request
                .resource_spans
                .into_iter()
                .flat_map(|r| r.scope_spans);
            let mut spans = collector.0.lock().unwrap();
            spans.extend(scopes.flat_map(|scope| scope.spans));
        }
        let router = Router::new()
            .route("/v1/traces", post(take))
            .with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Traces::start(&endpoint, "vgpu-monitor", "0").unwrap()
    }

    /// Container, trace, parent, and where the time is from.
    fn said(&self) -> Vec<String> {
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        let spans = self.0.lock().unwrap();
        let say = |span: &Span| {
            let text = |key: &str| {
                let found = span.attributes.iter().find(|pair| pair.key == key).unwrap();
                format!(
                    "{:?}",
                    found.value.as_ref().unwrap().value.as_ref().unwrap()
                )
            };
            let word = |key: &str| text(key).split('"').nth(1).unwrap().to_owned();
            let (trace, parent) = (hex(&span.trace_id), hex(&span.parent_span_id));
            let from = word("vgpu.time_from");
            format!(
                "{} {} {trace}<{parent} {from}",
                span.name,
                word("k8s.container.name")
            )
        };
        spans.iter().map(say).collect()
    }
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn labels(container: &str, traceparent: &str) -> Value {
    json!({
        "name": container, "container": container, "pod": "p", "namespace": "ml", "created_unix": 1000,
        "pod_uid": "0f1e2d3c-0000-4000-8000-000000000001", "traceparent": traceparent,
    })
}

/// Another process, like a tenant's: a region's locks belong to a process, and reading the region here would
/// release ours.
struct Tenant {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Tenant {
    fn start() -> Self {
        let mut child = only("first_kernel::tenant")
            .env(TENANT, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    fn launches(&mut self, dir: &Path, times: u64) {
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{times} {}", dir.display()).unwrap();
        let mut line = String::new();
        while !line.contains("launched") {
            line.clear();
            assert_ne!(
                self.answers.read_line(&mut line).unwrap(),
                0,
                "the tenant has ended"
            );
        }
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        drop(self.child.wait());
    }
}

const TENANT: &str = "VGPU_TEST_TENANT";

/// The tenant's process; returns at once in a normal test run.
#[test]
fn tenant() {
    if std::env::var_os(TENANT).is_none() {
        return;
    }
    let mut regions: Vec<(String, Region)> = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (times, dir) = line.split_once(' ').unwrap();
        if !regions.iter().any(|(known, _)| known == dir) {
            let region = Region::open(&Path::new(dir).join("region")).unwrap();
            // Its first charge gives a process its slot.
            region.confirm(region.reserve(0, 1 << 20, 1 << 30).unwrap(), Kind::Buffer);
            regions.push((dir.to_owned(), region));
        }
        let (_, region) = regions.iter().find(|(known, _)| known == dir).unwrap();
        let compute = region.compute(0).unwrap();
        compute
            .own()
            .launches
            .fetch_add(times.parse().unwrap(), Relaxed);
        compute.own().last_launch_ns.store(monotonic_ns(), Relaxed);
        let mut out = std::io::stdout();
        out.write_all(b"launched\n").unwrap();
        out.flush().unwrap();
    }
}

#[tokio::test]
async fn first_kernel_ends_the_pods_trace_once() {
    let collector = Collector::default();
    let traces = collector.start().await;
    let board = Board::new();
    let mut tenant = Tenant::start();
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let make = |name: &str, labels: &Value| board.container_with(name, 1 << 30, labels);
    let before = make("before", &labels("before", &parent));
    tenant.launches(&before, 7);
    let once = make("once", &labels("once", &parent));
    let often = make("often", &labels("often", &parent));
    make("never", &labels("never", &parent));
    let broken = make("broken", &labels("broken", "'; --"));
    let run = make(
        "run",
        &json!({ "name": "run", "container": "run", "created_unix": 1 }),
    );
    let mut kernels = FirstKernels::new(board.root(), "gpu-1", traces.clone());

    kernels.look();
    tenant.launches(&once, 1);
    tenant.launches(&often, 5);
    tenant.launches(&broken, 5);
    tenant.launches(&run, 1);
    let began = SystemTime::now();
    for _ in 0..3 {
        kernels.look();
    }
    tenant.launches(&often, 5);
    kernels.look();
    traces.stop().await;

    let mut said = collector.said();
    said.sort();
    assert_eq!(
        said,
        [
            "first_kernel broken 0f1e2d3c000040008000000000000001< look".to_owned(),
            format!("first_kernel often {TRACE}<00f067aa0ba902b7 look"),
            format!("first_kernel once {TRACE}<00f067aa0ba902b7 region"),
        ]
    );
    let spans = collector.0.lock().unwrap();
    let began = began.duration_since(UNIX_EPOCH).unwrap().as_nanos();
    for span in spans.iter() {
        assert_eq!(span.start_time_unix_nano, 1000 * 1_000_000_000);
        let exact = span.end_time_unix_nano as u128;
        let of_region = span
            .attributes
            .iter()
            .any(|pair| format!("{:?}", pair.value).contains("region"));
        assert_eq!(exact <= began, of_region, "{span:?}");
    }
}

/// More containers than one look reads.
#[tokio::test]
async fn containers_that_launched_before_the_first_whole_look_have_no_first_kernel() {
    let collector = Collector::default();
    let traces = collector.start().await;
    let board = Board::new();
    let mut tenant = Tenant::start();
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let make = |name: &str| board.container_with(name, 1 << 30, &labels(name, &parent));
    for number in 0..300 {
        tenant.launches(&make(&format!("old-{number}")), 5);
    }
    let mut kernels = FirstKernels::new(board.root(), "gpu-1", traces.clone());
    for _ in 0..3 {
        kernels.look();
    }
    tenant.launches(&make("new"), 5);
    kernels.look();
    traces.stop().await;

    let said = collector.said();
    assert_eq!(
        said,
        [format!("first_kernel new {TRACE}<00f067aa0ba902b7 look")]
    );
}

#[tokio::test]
async fn new_container_under_an_old_name_has_its_own_first_kernel() {
    let collector = Collector::default();
    let traces = collector.start().await;
    let board = Board::new();
    let parent = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let mut kernels = FirstKernels::new(board.root(), "gpu-1", traces.clone());
    kernels.look();

    for _ in 0..2 {
        let mut tenant = Tenant::start();
        let dir = board.container_with("c", 1 << 30, &labels("c", &parent));
        tenant.launches(&dir, 3);
        kernels.look();
        std::fs::remove_dir_all(&dir).unwrap();
        kernels.look();
    }
    traces.stop().await;

    assert_eq!(collector.said().len(), 2);
}
