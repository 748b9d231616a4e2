use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use prometheus_client::encoding::text::encode;
use prost::Message as _;
use tokio::net::TcpListener;

use super::*;

/// A collector in this process: what it was sent.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

impl Collector {
    async fn start(&self) -> String {
        async fn take(State(collector): State<Collector>, body: Bytes) -> StatusCode {
            let request = ExportTraceServiceRequest::decode(body).unwrap();
            collector.0.lock().unwrap().push(request);
            StatusCode::OK
        }
        let router = Router::new()
            .route("/v1/traces", post(take))
            .with_state(self.clone());
        serve(router).await
    }

    /// Each span as `service name trace span<parent key=value… status`.
    fn said(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for resource in self
            .0
            .lock()
            .unwrap()
            .iter()
            .flat_map(|r| &r.resource_spans)
        {
            let attributes = &resource.resource.as_ref().unwrap().attributes;
            let service = attributes.iter().find(|a| a.key == "service.name").unwrap();
            let service = text(service.value.as_ref().unwrap().value.as_ref().unwrap());
            for span in resource.scope_spans.iter().flat_map(|scope| &scope.spans) {
                let hex =
                    |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
                let mut line = format!(
                    "{service} {} {} {}<{}",
                    span.name,
                    hex(&span.trace_id),
                    hex(&span.span_id),
                    hex(&span.parent_span_id)
                );
                for attribute in &span.attributes {
                    let value = text(attribute.value.as_ref().unwrap().value.as_ref().unwrap());
                    line += &format!(" {}={value}", attribute.key);
                }
                if let Some(status) = span.status.as_ref().filter(|status| status.code == 2) {
                    line += &format!(" failed: {}", status.message);
                }
                lines.push(line);
            }
        }
        lines
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    }
}

async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    format!("http://{address}")
}

fn counted(traces: &Traces) -> String {
    let mut registry = Registry::default();
    traces.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    lines.sort_unstable();
    lines.join("\n")
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[tokio::test]
async fn a_span_arrives_under_its_parent_with_what_was_said_of_it() {
    let collector = Collector::default();
    let traces = Traces::start(&collector.start().await, "vgpu-test", "1.2.3").unwrap();

    let mut span = traces.span("filter", TraceContext::parse(PARENT));
    span.set("node", "gpu-1");
    span.count("nodes", 3);
    span.fail("fits nowhere");
    let own = span.context().unwrap();
    drop(traces.span("bind", Some(own)));
    drop(span);
    let mut past = traces.span(
        "allocate",
        TraceContext::of_uid("0f1e2d3c-0000-4000-8000-000000000001"),
    );
    past.lasted(UNIX_EPOCH, UNIX_EPOCH);
    drop(past);
    traces.span("nothing came of it", None).forget();
    traces.stop().await;

    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let own = own.to_string();
    let own = own.split('-').nth(2).unwrap();
    let said = collector.said();
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(
        said[0].starts_with(&format!("vgpu-test bind {trace} ")),
        "{said:?}"
    );
    assert!(said[0].ends_with(&format!("<{own}")), "{said:?}");
    assert_eq!(
        said[1],
        format!(
            "vgpu-test filter {trace} {own}<00f067aa0ba902b7 node=gpu-1 nodes=3 failed: fits nowhere"
        )
    );
    assert!(
        said[2].starts_with("vgpu-test allocate 0f1e2d3c000040008000000000000001 "),
        "{said:?}"
    );
    assert!(said[2].ends_with('<'), "{said:?}");
    assert!(
        counted(&traces).contains("vgpu_trace_spans_sent_total 3"),
        "{}",
        counted(&traces)
    );
}

#[tokio::test]
async fn a_trace_that_its_owner_does_not_want_kept_is_not_sent() {
    let collector = Collector::default();
    let traces = Traces::start(&collector.start().await, "vgpu-test", "1").unwrap();
    let parent = TraceContext::parse(&PARENT.replace("-01", "-00"));

    let span = traces.span("filter", parent);
    let own = span.context().unwrap();
    drop(span);
    traces.stop().await;

    assert_eq!(collector.said(), Vec::<String>::new());
    assert!(own.to_string().ends_with("-00"), "{own}");
}

#[tokio::test]
async fn spans_lost_at_the_collector_are_counted() {
    let refuses = Router::new().route("/v1/traces", post(StatusCode::SERVICE_UNAVAILABLE));
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let away = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    for endpoint in [serve(refuses).await, away] {
        let traces = Traces::start(&endpoint, "vgpu-test", "1").unwrap();
        drop(traces.span("filter", None));
        traces.stop().await;

        let counted = counted(&traces);
        assert!(
            counted.contains("vgpu_trace_spans_dropped_total{reason=\"collector\"} 1"),
            "{endpoint}: {counted}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_hangs_never_makes_a_span_wait() {
    // It takes the connection and says nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let traces = Traces::start(&endpoint, "vgpu-test", "1").unwrap();

    // More than the queue and a batch hold; the clock stands still, so a caller that waited would wait for ever.
    for _ in 0..QUEUE + 100 {
        drop(traces.span("filter", None));
    }

    let counted = counted(&traces);
    assert!(
        counted.contains("vgpu_trace_spans_dropped_total{reason=\"queue\"} 100"),
        "{counted}"
    );
    traces.stop().await;
    drop(listener);
}

#[tokio::test]
async fn without_an_endpoint_a_span_is_nothing() {
    for given in [None, Some(String::new()), Some("  ".to_owned())] {
        let args = TraceArgs {
            otlp_endpoint: given,
        };
        let traces = args.start("vgpu-test", "1").unwrap();
        let mut span = traces.span("filter", TraceContext::parse(PARENT));
        span.set("node", "n");

        assert_eq!(span.context(), None);
        assert!(!traces.is_on());
        traces.stop().await;
    }
}

#[tokio::test]
async fn an_endpoint_that_is_none_says_what_is_accepted() {
    for given in [
        "collector:4317",
        "grpc://collector:4317",
        "http://",
        "/v1",
        "http://c:1?a=b",
        "x",
    ] {
        let error = Traces::start(given, "vgpu-test", "1")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(given) && error.contains("http://collector:4318"),
            "{error}"
        );
    }
    for (given, url) in [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("https://c:4318/", "https://c:4318/v1/traces"),
        ("http://c/otlp", "http://c/otlp/v1/traces"),
        ("http://c/otlp/v1/traces", "http://c/otlp/v1/traces"),
    ] {
        assert_eq!(traces_url(given).unwrap(), url);
    }
}

#[test]
fn a_traceparent_is_read_as_w3c_writes_it_and_nothing_else_is() {
    assert_eq!(TraceContext::parse(PARENT).unwrap().to_string(), PARENT);
    let long = format!("{PARENT}-what-a-later-version-adds");
    let upper = PARENT.to_uppercase();
    for wrong in [
        "",
        "00",
        &upper,
        &long,
        "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
        "00-4bf92f3577b34da6a3ce929d0e0e47é6-00f067aa0ba902b7-01",
        "{\"a\": 1}",
    ] {
        assert_eq!(TraceContext::parse(wrong), None, "{wrong}");
        // A pod whose annotation says nothing has its uid's trace; one without a uid has none.
        let of_pod = TraceContext::of_pod(Some(wrong), "0f1e2d3c-0000-4000-8000-000000000001");
        assert_eq!(
            of_pod.unwrap().trace_id(),
            "0f1e2d3c000040008000000000000001"
        );
        assert_eq!(TraceContext::of_pod(Some(wrong), "not a uid"), None);
    }
}

#[test]
fn a_histogram_shows_the_trace_of_what_fell_into_a_bucket() {
    let seconds = Seconds::new([0.1, 1.0]);
    let mut registry = Registry::default();
    registry.register("took_seconds", "How long", seconds.clone());

    seconds.observe(Duration::from_millis(50), None);
    seconds.observe(Duration::from_millis(500), TraceContext::parse(PARENT));
    let unsampled = TraceContext::parse(&PARENT.replace("-01", "-00"));
    seconds.observe(Duration::from_secs(5), unsampled);

    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let exemplars: Vec<&str> = text.lines().filter(|line| line.contains(" # {")).collect();
    assert_eq!(exemplars.len(), 1, "{text}");
    let expected =
        "took_seconds_bucket{le=\"1.0\"} 2 # {trace_id=\"4bf92f3577b34da6a3ce929d0e0e4736\"} 0.5 ";
    assert!(exemplars[0].starts_with(expected), "{text}");
    let old = crate::prometheus_text(&text);
    assert!(!old.contains("trace_id"), "{old}");
}

#[test]
fn a_long_text_is_cut_between_letters() {
    let text = cut("é".repeat(2000));
    assert_eq!(text.len(), LONGEST_VALUE + '…'.len_utf8());
}

proptest::proptest! {
    #[test]
    fn whatever_is_read_is_written_the_same(text in "00-[0-9a-f]{31,33}-[0-9a-f]{16}-0[01]|\\PC*") {
        let read = TraceContext::of_pod(Some(&text), &text);
        if let Some(read) = read {
            proptest::prop_assert!(read.to_string() == text || text.replace('-', "") == read.trace_id());
        }
    }
}
