//! Spans for an OpenTelemetry collector, by OTLP over HTTP in protobuf: one trace for each pod, across our programs.
//!
//! Off unless a collector is configured; a span is then empty. Callers never wait: a span that does not fit into the
//! queue, or that the collector refuses, is dropped and counted. A trace's identifier comes from a pod's annotation,
//! which the pod's owner may write, so no decision depends on it.

mod client;
mod context;
mod deliver;
mod exemplar;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanKind, Status};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{
    Protocol, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    IdGenerator as _, RandomIdGenerator, SpanData, SpanEvents, SpanExporter as _, SpanLinks,
};
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, oneshot};

pub use context::TraceContext;
pub use exemplar::Seconds;

use client::{Client, ClientError};
use deliver::{Counts, Item};

/// Spans that wait for the collector; further ones are dropped. A few megabytes at most.
const QUEUE: usize = 2048;
/// Longer values are cut: reasons may name every node of a cluster.
const LONGEST_VALUE: usize = 1024;
/// The time limit for sending the last spans when a program ends.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// The flag that turns traces on, for a daemon's `Args` (`#[command(flatten)]`).
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TraceArgs {
    /// Send traces to this collector by OTLP/HTTP (http://collector:4318; /v1/traces is added). By default no traces
    /// are sent.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

impl TraceArgs {
    /// Starts to send, or returns a disabled `Traces` where no endpoint is configured.
    ///
    /// # Errors
    ///
    /// The endpoint is not a URL, or its certificates cannot be read.
    pub fn start(&self, service: &str, version: &str) -> Result<Traces, TraceError> {
        let endpoint = self.otlp_endpoint.as_deref().unwrap_or_default().trim();
        if endpoint.is_empty() {
            return Ok(Traces::off());
        }
        Traces::start(endpoint, service, version)
    }
}

/// Why traces cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The endpoint is not the URL of a collector.
    #[error(
        "--otlp-endpoint {given:?}: expected http:// or https://, a host and a port, such as http://collector:4318"
    )]
    Endpoint {
        /// The endpoint as given.
        given: String,
    },
    /// There are no certificates to verify the collector with.
    #[error("--otlp-endpoint {given:?}: {why}")]
    Certificates {
        /// The endpoint as given.
        given: String,
        /// The file or the certificates, and what is wrong with them.
        why: ClientError,
    },
    /// The exporter refuses its settings, which come from `OTEL_…` variables.
    #[error("traces cannot be sent: {0}")]
    Settings(String),
}

/// The destination of spans. Cheap to clone; clones share one queue.
#[derive(Clone, Default)]
pub struct Traces(Option<Arc<On>>);

struct On {
    queue: mpsc::Sender<Item>,
    ids: RandomIdGenerator,
    scope: InstrumentationScope,
    counts: Counts,
}

impl fmt::Debug for Traces {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.is_on() {
            "Traces(on)"
        } else {
            "Traces(off)"
        })
    }
}

impl Traces {
    /// Disabled: every span is empty.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Sends to the collector at `endpoint`, with `service` as the service name. Needs a tokio runtime, on which it
    /// runs until [`Traces::stop`].
    ///
    /// # Errors
    ///
    /// The endpoint is not a URL, or its certificates cannot be read. An endpoint where no collector listens is not an
    /// error.
    pub fn start(endpoint: &str, service: &str, version: &str) -> Result<Self, TraceError> {
        let url = traces_url(endpoint)?;
        let client = Client::for_url(&url).map_err(|why| TraceError::Certificates {
            given: endpoint.to_owned(),
            why,
        })?;
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(url)
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(deliver::PATIENCE)
            // A batch that the collector does not accept at once is dropped: the next spans are worth as much.
            .with_retry_policy(RetryPolicy::disabled())
            .build()
            .map_err(|error| TraceError::Settings(error.to_string()))?;
        let attributes = [("service.version", version.to_owned())]
            .into_iter()
            .chain(host_name().map(|name| ("service.instance.id", name)))
            .map(|(key, value)| KeyValue::new(key, value));
        exporter.set_resource(
            &Resource::builder()
                .with_service_name(service.to_owned())
                .with_attributes(attributes)
                .build(),
        );
        let counts = Counts::default();
        let (queue, waiting) = mpsc::channel(QUEUE);
        tokio::spawn(deliver::deliver(
            waiting,
            exporter,
            endpoint.to_owned(),
            counts.clone(),
        ));
        tracing::info!(endpoint, service, "sending traces");
        Ok(Self(Some(Arc::new(On {
            queue,
            ids: RandomIdGenerator::default(),
            scope: InstrumentationScope::builder("vgpu").build(),
            counts,
        }))))
    }

    /// Whether traces are on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Starts a span. Without a parent, or with one that has no span, it is the first of a new trace. It is sent when
    /// it is dropped.
    pub fn span(&self, name: &'static str, parent: Option<TraceContext>) -> Span {
        let Some(on) = &self.0 else {
            return Span(None);
        };
        let own = TraceContext::new(on.ids.new_trace_id(), on.ids.new_span_id());
        let mut span = Span(Some(Box::new(Live {
            on: Arc::clone(on),
            name,
            own,
            parent: None,
            began: SystemTime::now(),
            ended: None,
            attributes: Vec::new(),
            status: Status::Unset,
        })));
        if let Some(parent) = parent {
            span.adopt(parent);
        }
        span
    }

    /// Registers the counters of sent and lost spans; does nothing where traces are off.
    pub fn register(&self, registry: &mut Registry) {
        if let Some(on) = &self.0 {
            on.counts.register(registry);
        }
    }

    /// Sends the spans that wait, for a few seconds at most.
    pub async fn stop(&self) {
        let Some(on) = &self.0 else { return };
        let (sent, all_sent) = oneshot::channel();
        let flushed = async {
            if on.queue.send(Item::Flush(sent)).await.is_ok() {
                // An error means that the task is gone, so there is nothing to wait for.
                drop(all_sent.await);
            }
        };
        if tokio::time::timeout(LAST_SPANS, flushed).await.is_err() {
            tracing::warn!("the last spans did not reach the collector in time");
        }
    }
}

/// A timed operation that will be sent to the collector. Empty where traces are off.
#[must_use = "a span ends when it is dropped"]
pub struct Span(Option<Box<Live>>);

struct Live {
    on: Arc<On>,
    name: &'static str,
    own: TraceContext,
    parent: Option<TraceContext>,
    began: SystemTime,
    ended: Option<SystemTime>,
    attributes: Vec<KeyValue>,
    status: Status,
}

impl fmt::Debug for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.as_ref().map(|live| live.name);
        formatter.debug_tuple("Span").field(&name).finish()
    }
}

impl Span {
    /// Moves the span into the parent's trace.
    pub fn adopt(&mut self, parent: TraceContext) {
        if let Some(live) = &mut self.0 {
            live.own = live.own.within(parent);
            live.parent = Some(parent);
        }
    }

    /// Gives the span this identifier, which was handed out before.
    pub fn be(&mut self, own: TraceContext) {
        if let Some(live) = &mut self.0 {
            live.own = own;
        }
    }

    /// Adds an attribute; a long text is cut.
    pub fn set(&mut self, key: &'static str, value: impl Into<String>) {
        if let Some(live) = &mut self.0 {
            live.attributes.push(KeyValue::new(key, cut(value.into())));
        }
    }

    /// Adds a number as an attribute.
    pub fn count(&mut self, key: &'static str, value: u64) {
        if let Some(live) = &mut self.0 {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            live.attributes.push(KeyValue::new(key, value));
        }
    }

    /// Marks the span as failed.
    pub fn fail(&mut self, why: impl Into<String>) {
        if let Some(live) = &mut self.0 {
            live.status = Status::error(cut(why.into()));
        }
    }

    /// Sets the start and the end, instead of the current times.
    pub fn lasted(&mut self, began: SystemTime, ended: SystemTime) {
        if let Some(live) = &mut self.0 {
            live.began = began;
            // The times may come from two clocks, or from one that was set back. Readers ignore a span that ends before
            // it begins.
            live.ended = Some(ended.max(began));
        }
    }

    /// The identifier that other spans name as their parent; `None` if traces are off.
    #[must_use]
    pub fn context(&self) -> Option<TraceContext> {
        self.0.as_ref().map(|live| live.own)
    }

    /// Discards the span: it is not sent.
    pub fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(live) = self.0.take() else { return };
        let Live {
            on,
            name,
            own,
            parent,
            began,
            ended,
            attributes,
            status,
        } = *live;
        // The program that started the trace has marked it as not sampled.
        if !own.is_sampled() {
            return;
        }
        let data = SpanData {
            span_context: own.span_context(),
            parent_span_id: parent.map_or(opentelemetry::trace::SpanId::INVALID, |parent| {
                parent.span_id()
            }),
            parent_span_is_remote: parent.is_some(),
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time: began,
            end_time: ended.unwrap_or_else(SystemTime::now).max(began),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status,
            instrumentation_scope: on.scope.clone(),
        };
        if on.queue.try_send(Item::Span(Box::new(data))).is_err() {
            on.counts.lost(deliver::Lost::Queue, 1);
        }
    }
}

fn cut(mut text: String) -> String {
    if text.len() > LONGEST_VALUE {
        let end = (0..=LONGEST_VALUE)
            .rev()
            .find(|at| text.is_char_boundary(*at))
            .unwrap_or_default();
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The URL for spans, derived from the collector's.
fn traces_url(endpoint: &str) -> Result<String, TraceError> {
    let wrong = || TraceError::Endpoint {
        given: endpoint.to_owned(),
    };
    let url: axum::http::Uri = endpoint.parse().map_err(|_| wrong())?;
    if !matches!(url.scheme_str(), Some("http" | "https"))
        || url.host().is_none_or(str::is_empty)
        || url.query().is_some()
    {
        return Err(wrong());
    }
    let base = endpoint.trim_end_matches('/');
    Ok(if base.ends_with("/v1/traces") {
        base.to_owned()
    } else {
        format!("{base}/v1/traces")
    })
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests;
