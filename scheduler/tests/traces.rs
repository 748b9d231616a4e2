//! A pod's trace, from its admission to its binding, as a collector in this process receives it.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helpers, too"
)]

use crate::support;

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use base64::Engine as _;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use prost::Message as _;
use scheduler::Settings;
use serde_json::{Value, json};
use server::Traces;
use support::{Served, node, pod};
use tower::ServiceExt as _;

const TRACEPARENT: &str = "vgpu.io/traceparent";

/// One span as it was received.
#[derive(Debug, Clone)]
struct Span {
    name: String,
    trace: String,
    id: String,
    parent: String,
    failed: String,
    attributes: Vec<(String, String)>,
}

impl Span {
    fn says(&self, key: &str) -> &str {
        let found = self.attributes.iter().find(|(known, _)| known == key);
        found.map_or("", |(_, value)| value)
    }
}

#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

impl Collector {
    async fn start(&self) -> Traces {
        let router = Router::new()
            .route("/v1/traces", post(take))
            .with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Traces::start(&endpoint, "vgpu-scheduler", "0").unwrap()
    }

    fn spans(&self) -> Vec<Span> {
        self.0.lock().unwrap().clone()
    }
}

async fn take(State(collector): State<Collector>, body: Bytes) -> StatusCode {
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let scopes = request
        .resource_spans
        .into_iter()
        .flat_map(|r| r.scope_spans);
    for span in scopes.flat_map(|scope| scope.spans) {
        let text = |value: Option<Attribute>| match value {
            Some(Attribute::StringValue(text)) => text,
            Some(Attribute::IntValue(number)) => number.to_string(),
            _ => String::new(),
        };
        let attributes = span.attributes.into_iter();
        let span = Span {
            name: span.name,
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            failed: span.status.map(|status| status.message).unwrap_or_default(),
            attributes: attributes
                .map(|pair| (pair.key, text(pair.value.and_then(|value| value.value))))
                .collect(),
        };
        collector.0.lock().unwrap().push(span);
    }
    StatusCode::OK
}

async fn served(traces: &Traces) -> Served {
    let state = json!({
        "nodes": [node("full", 1, 10, 1000), node("n1", 2, 10, 10_000)], "pods": [], "resourceQuotas": null,
    });
    let settings = Settings {
        traces: traces.clone(),
        ..Settings::default()
    };
    Served::admitting(state, settings).await
}

/// The pod as the webhook changes it, or why it is refused.
async fn admitted(served: &Served, pod: &Value) -> Result<Value, String> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "operation": "CREATE", "kind": { "kind": "Pod" }, "resource": { "resource": "pods" },
            "namespace": "default", "object": pod,
        },
    });
    let answer = served.post("/webhook", &review).await;
    let response = &answer["response"];
    if response["allowed"] != json!(true) {
        return Err(response["status"]["message"].as_str().unwrap().to_owned());
    }
    let patch = response["patch"].as_str().unwrap_or("W10=");
    let patch = base64::engine::general_purpose::STANDARD
        .decode(patch)
        .unwrap();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &patch).unwrap();
    Ok(pod)
}

async fn metrics(served: &Served, accept: &str) -> String {
    let request = http::Request::get("/metrics").header("accept", accept);
    let request = request.body(axum::body::Body::empty()).unwrap();
    let answer = served.router.clone().oneshot(request).await.unwrap();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20)
        .await
        .unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn a_pod_has_one_trace_from_admission_to_binding() {
    let collector = Collector::default();
    let traces = collector.start().await;
    let served = served(&traces).await;

    let pod = admitted(&served, &pod("p", 3000)).await.unwrap();
    served.filter(&pod, &["full"]).await.unwrap_err();
    assert_eq!(served.filter(&pod, &["full", "n1"]).await.unwrap(), "n1");
    assert_eq!(served.bind(&pod, "n1").await, "");
    traces.stop().await;

    let spans = collector.spans();
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(
        names,
        ["admission", "filter", "filter", "bind"],
        "{spans:?}"
    );
    let admission = &spans[0];
    let written = pod["metadata"]["annotations"][TRACEPARENT]
        .as_str()
        .unwrap();
    assert_eq!(
        written,
        format!("00-{}-{}-01", admission.trace, admission.id)
    );
    assert_eq!(admission.parent, "");
    for span in &spans[1..] {
        assert_eq!(
            (&span.trace, &span.parent),
            (&admission.trace, &admission.id),
            "{spans:?}"
        );
        assert_eq!(span.says("k8s.pod.uid"), "uid-p");
    }
    assert_eq!(spans[1].says("vgpu.outcome"), "no_node");
    assert_eq!(spans[1].failed, "1 nodes: 1/1 CardInsufficientMemory");
    assert_eq!(
        (spans[2].says("vgpu.outcome"), spans[2].says("vgpu.nodes")),
        ("ok", "2")
    );
    assert_eq!(spans[2].says("k8s.node.name"), "n1");
    assert_eq!(
        (spans[3].says("k8s.node.name"), spans[3].failed.as_str()),
        ("n1", "")
    );

    // The histograms lead there; the older text has no exemplars.
    let open = metrics(&served, "application/openmetrics-text").await;
    let exemplar = format!("# {{trace_id=\"{}\"}}", admission.trace);
    for verb in ["filter", "bind"] {
        let has =
            |line: &&str| line.contains(&format!("verb=\"{verb}\"")) && line.contains(&exemplar);
        assert!(open.lines().any(|line| has(&line)), "{verb}: {open}");
    }
    assert!(open.contains("vgpu_trace_spans_sent_total 4"), "{open}");
    let plain = metrics(&served, "text/plain").await;
    assert!(plain.contains("verb=\"filter\""), "{plain}");
    assert!(!plain.contains("trace_id"), "{plain}");
}

#[tokio::test]
async fn a_tenants_trace_is_continued_and_an_invalid_one_replaced() {
    let collector = Collector::default();
    let traces = collector.start().await;
    let served = served(&traces).await;
    let with = |name: &str, value: Value| {
        let mut pod = pod(name, 100);
        pod["metadata"]["annotations"] = json!({ TRACEPARENT: value });
        pod
    };
    let theirs = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    let given = admitted(&served, &with("a", theirs.into())).await.unwrap();
    let unkept = admitted(&served, &with("b", theirs.replace("-01", "-00").into()))
        .await
        .unwrap();
    let broken = admitted(&served, &with("c", "\" ; drop".into()))
        .await
        .unwrap();
    served
        .filter(&with("d", "x".repeat(4096).into()), &["n1"])
        .await
        .unwrap();
    let refused = admitted(&served, &pod("e", 0)).await;
    traces.stop().await;

    let of = |pod: &Value| {
        pod["metadata"]["annotations"][TRACEPARENT]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let spans = collector.spans();
    assert_eq!(spans[0].trace, "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(spans[0].parent, "00f067aa0ba902b7");
    assert_eq!(
        of(&given),
        format!("00-{}-{}-01", spans[0].trace, spans[0].id)
    );
    assert!(
        of(&unkept).starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-")
            && of(&unkept).ends_with("-00")
    );
    assert!(of(&broken).contains(&spans[1].trace), "{spans:?}");
    assert_eq!(spans[1].parent, "");
    assert_eq!(
        (spans[2].name.as_str(), spans[2].parent.as_str()),
        ("filter", "")
    );
    match refused {
        Err(why) => assert!(spans[3].failed.starts_with(&why), "{spans:?}"),
        Ok(pod) => assert!(of(&pod).contains(&spans[3].trace), "{spans:?}"),
    }
}

#[tokio::test]
async fn a_pod_that_passed_no_webhook_of_ours_has_its_uids_trace() {
    let collector = Collector::default();
    let traces = collector.start().await;
    let served = served(&traces).await;
    let mut pod = pod("p", 100);
    pod["metadata"]["uid"] = "0f1e2d3c-0000-4000-8000-000000000001".into();

    served.filter(&pod, &["n1"]).await.unwrap();
    served.bind(&pod, "n1").await;
    let mut plain = pod.clone();
    plain["spec"]["containers"][0]["resources"] = json!({});
    served.filter(&plain, &["n1"]).await.unwrap();
    traces.stop().await;

    let spans = collector.spans();
    assert_eq!(
        spans.len(),
        2,
        "a pod without devices has no span: {spans:?}"
    );
    for span in &spans {
        assert_eq!(span.trace, "0f1e2d3c000040008000000000000001");
    }
}

#[tokio::test]
async fn a_hanging_collector_delays_no_pod() {
    let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", hangs.local_addr().unwrap());
    for traces in [
        Traces::start(&endpoint, "vgpu-scheduler", "0").unwrap(),
        Traces::off(),
    ] {
        let served = served(&traces).await;
        let pod = admitted(&served, &pod("p", 3000)).await.unwrap();
        assert_eq!(served.filter(&pod, &["n1"]).await.unwrap(), "n1");
        assert_eq!(served.bind(&pod, "n1").await, "");

        let written = &pod["metadata"]["annotations"][TRACEPARENT];
        assert_eq!(written.is_string(), traces.is_on(), "{written}");
    }
    drop(hangs);
}
