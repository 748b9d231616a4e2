//! Spans for an OpenTelemetry collector, by OTLP over HTTP in protobuf: one trace for each pod, across our programs.
//!
//! Off where nobody names a collector; then a span is nothing. Never waits: a span that does not fit into the queue, or
//! that no collector takes, is dropped and counted. Never lets a trace's identifier decide anything: it comes from a
//! pod's annotation, which its owner may write.

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

use client::Client;
use deliver::{Counts, Item};

/// Spans that wait for the collector; further ones are dropped. A few megabytes at most.
const QUEUE: usize = 2048;
/// What is longer is cut: reasons name every node of a cluster.
const LONGEST_VALUE: usize = 1024;
/// How long the last spans may take when a program ends.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// The setting that turns traces on, for a daemon's `Args` (`#[command(flatten)]`).
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TraceArgs {
    /// Send traces there by OTLP/HTTP (http://collector:4318; /v1/traces is added). By default nowhere.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

impl TraceArgs {
    /// Begins to send, or does nothing where no endpoint is named.
    ///
    /// # Errors
    ///
    /// The endpoint is no URL, or its certificates cannot be read.
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
    /// What was given is no URL of a collector.
    #[error(
        "--otlp-endpoint {given:?}: expected http:// or https://, a host and a port, such as http://collector:4318"
    )]
    Endpoint {
        /// As it was given.
        given: String,
    },
    /// No certificates to know the collector by.
    #[error("--otlp-endpoint {given:?}: {why}")]
    Certificates {
        /// As it was given.
        given: String,
        /// Which, and what is wrong with them.
        why: String,
    },
    /// The exporter refuses its settings, which come from `OTEL_…` variables.
    #[error("traces cannot be sent: {0}")]
    Settings(String),
}

/// Where spans go. Cheap to clone; clones share one queue.
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
    /// Every span is nothing.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Sends to the collector at `endpoint`, in the name of `service`. Needs a tokio runtime, on which it goes on until
    /// [`Traces::stop`].
    ///
    /// # Errors
    ///
    /// The endpoint is no URL, or its certificates cannot be read. That nobody listens there is no error.
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
            // What the collector does not take at once is dropped: what comes after it is worth as much.
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

    /// Whether a span is anything.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins a span. Without a parent, or with one that says so, it is the first of a new trace. It is sent when it
    /// is dropped.
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

    /// Counters of what was sent and what was lost; nothing where traces are off.
    pub fn register(&self, registry: &mut Registry) {
        if let Some(on) = &self.0 {
            on.counts.register(registry);
        }
    }

    /// Sends what waits, for a few seconds at most.
    pub async fn stop(&self) {
        let Some(on) = &self.0 else { return };
        let (sent, all_sent) = oneshot::channel();
        let flushed = async {
            if on.queue.send(Item::Flush(sent)).await.is_ok() {
                // An error: the task is gone, and there is nobody to wait for.
                drop(all_sent.await);
            }
        };
        if tokio::time::timeout(LAST_SPANS, flushed).await.is_err() {
            tracing::warn!("the last spans did not reach the collector in time");
        }
    }
}

/// Something that takes time, on its way to the collector. Nothing at all where traces are off.
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
    /// Makes it a part of the parent's trace.
    pub fn adopt(&mut self, parent: TraceContext) {
        if let Some(live) = &mut self.0 {
            live.own = live.own.within(parent);
            live.parent = Some(parent);
        }
    }

    /// Gives it this name for itself, which was handed out before.
    pub fn be(&mut self, own: TraceContext) {
        if let Some(live) = &mut self.0 {
            live.own = own;
        }
    }

    /// Says something more of it; long texts are cut.
    pub fn set(&mut self, key: &'static str, value: impl Into<String>) {
        if let Some(live) = &mut self.0 {
            live.attributes.push(KeyValue::new(key, cut(value.into())));
        }
    }

    /// A number that belongs to it.
    pub fn count(&mut self, key: &'static str, value: u64) {
        if let Some(live) = &mut self.0 {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            live.attributes.push(KeyValue::new(key, value));
        }
    }

    /// It did not come to what it was begun for.
    pub fn fail(&mut self, why: impl Into<String>) {
        if let Some(live) = &mut self.0 {
            live.status = Status::error(cut(why.into()));
        }
    }

    /// It was at this time, and not now.
    pub fn lasted(&mut self, began: SystemTime, ended: SystemTime) {
        if let Some(live) = &mut self.0 {
            live.began = began;
            // Two clocks, or one that was set back: a span that ends before it begins is read by nobody.
            live.ended = Some(ended.max(began));
        }
    }

    /// What others name as their parent; nothing where traces are off.
    #[must_use]
    pub fn context(&self) -> Option<TraceContext> {
        self.0.as_ref().map(|live| live.own)
    }

    /// Nothing came of it: it is not sent.
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
        // Whoever began the trace has said that it is not to be kept.
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

/// The URL for spans under that of a collector.
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
