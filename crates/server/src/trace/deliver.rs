//! The task that sends spans from the queue to the collector, in batches, with time limits and counters. Holds at most
//! the queue and one batch.

use std::time::Duration;

use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

/// The time that the collector may take for a batch.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long the first span of a batch waits for others.
const LINGER: Duration = Duration::from_secs(1);
/// The most spans in a batch.
const BATCH: usize = 512;
/// How often the log reports that spans are lost.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// An item of the queue.
pub(super) enum Item {
    Span(Box<SpanData>),
    /// The sender waits until all spans before this item have been sent or lost.
    Flush(oneshot::Sender<()>),
}

/// Why a span was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// The queue was full.
    Queue,
    /// The collector did not accept it.
    Collector,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

impl From<Lost> for Reason {
    fn from(lost: Lost) -> Self {
        Self {
            reason: match lost {
                Lost::Queue => "queue",
                Lost::Collector => "collector",
            },
        }
    }
}

/// Counters of sent and lost spans. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Counts {
    sent: Counter,
    lost: Family<Reason, Counter>,
}

impl Default for Counts {
    fn default() -> Self {
        let lost = Family::<Reason, Counter>::default();
        for reason in [Lost::Queue, Lost::Collector] {
            // A series that starts at 0 shows an increase from its first event on.
            drop(lost.get_or_create(&reason.into()));
        }
        Self {
            sent: Counter::default(),
            lost,
        }
    }
}

impl Counts {
    pub(super) fn lost(&self, reason: Lost, spans: usize) {
        let spans = u64::try_from(spans).unwrap_or(u64::MAX);
        self.lost.get_or_create(&reason.into()).inc_by(spans);
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "vgpu_trace_spans_sent",
            "Spans that the collector took",
            self.sent.clone(),
        );
        registry.register(
            "vgpu_trace_spans_dropped",
            "Spans that were lost, by where: in the full queue, or at the collector",
            self.lost.clone(),
        );
    }
}

/// Sends until the last sender of the queue is dropped.
pub(super) async fn deliver(
    mut queue: mpsc::Receiver<Item>,
    exporter: SpanExporter,
    endpoint: String,
    counts: Counts,
) {
    let mut said: Option<Instant> = None;
    loop {
        let mut batch = Vec::new();
        let mut waits = None;
        match queue.recv().await {
            None => return,
            Some(Item::Flush(told)) => waits = Some(told),
            Some(Item::Span(span)) => batch.push(*span),
        }
        let end = Instant::now() + LINGER;
        while waits.is_none() && batch.len() < BATCH {
            match timeout_at(end, queue.recv()).await {
                Ok(Some(Item::Span(span))) => batch.push(*span),
                Ok(Some(Item::Flush(told))) => waits = Some(told),
                Ok(None) | Err(_) => break,
            }
        }
        if !batch.is_empty() {
            let spans = batch.len();
            match send(&exporter, batch).await {
                Ok(()) => {
                    counts.sent.inc_by(u64::try_from(spans).unwrap_or(u64::MAX));
                    if said.take().is_some() {
                        tracing::info!(endpoint, "the collector takes spans again");
                    }
                }
                Err(problem) => {
                    counts.lost(Lost::Collector, spans);
                    if said.is_none_or(|at| at.elapsed() >= SAID_EVERY) {
                        said = Some(Instant::now());
                        tracing::warn!(
                            endpoint,
                            spans,
                            %problem,
                            "the collector does not take spans: they are dropped"
                        );
                    }
                }
            }
        }
        if let Some(told) = waits {
            // The caller may have given up.
            told.send(()).ok();
        }
    }
}

/// Why a batch of spans is lost.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    Refused(#[from] OTelSdkError),
    #[error("no answer within {} s", PATIENCE.as_secs())]
    NoAnswer,
}

async fn send(exporter: &SpanExporter, batch: Vec<SpanData>) -> Result<(), SendError> {
    match timeout(PATIENCE, exporter.export(batch)).await {
        Ok(sent) => Ok(sent?),
        Err(_elapsed) => Err(SendError::NoAnswer),
    }
}
