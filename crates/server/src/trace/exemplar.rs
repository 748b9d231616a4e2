//! A histogram of durations whose buckets each remember the trace of a request that fell into them. OpenMetrics shows
//! it as an exemplar; the older text has none. Never keeps a trace that is not sent.

use std::time::{Duration, SystemTime};

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::{Span, TraceContext};

/// How an exemplar names its trace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TraceLabel {
    trace_id: String,
}

/// Durations in seconds, with exemplars where traces are on.
#[derive(Debug, Clone)]
pub struct Seconds(HistogramWithExemplars<TraceLabel>);

impl Seconds {
    /// With these bounds of buckets, in seconds.
    #[must_use]
    pub fn new(bounds: impl IntoIterator<Item = f64>) -> Self {
        Self(HistogramWithExemplars::new(bounds.into_iter()))
    }

    /// Something took so long; the trace that it was a part of, where there is one that is kept.
    pub fn observe(&self, took: Duration, trace: Option<TraceContext>) {
        let kept = trace.filter(|context| context.is_sampled());
        let label = kept.map(|context| TraceLabel {
            trace_id: context.trace_id(),
        });
        let now = label.is_some().then(SystemTime::now);
        self.0.observe(took.as_secs_f64(), label, now);
    }

    /// The same for what a span is about.
    pub fn observe_span(&self, took: Duration, span: &Span) {
        self.observe(took, span.context());
    }
}

impl TypedMetric for Seconds {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Seconds {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.0.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}
