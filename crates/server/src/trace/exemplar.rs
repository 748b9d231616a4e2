//! A histogram of durations in which each bucket remembers the trace of one of its requests. OpenMetrics shows it as an
//! exemplar; the older text format has none. Traces that are not sent are not remembered.

use std::time::{Duration, SystemTime};

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::{Span, TraceContext};

/// The labels of an exemplar.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TraceLabel {
    trace_id: String,
}

/// Durations in seconds, with exemplars where traces are on.
#[derive(Debug, Clone)]
pub struct Seconds(HistogramWithExemplars<TraceLabel>);

impl Seconds {
    /// A histogram with these bucket bounds, in seconds.
    #[must_use]
    pub fn new(bounds: impl IntoIterator<Item = f64>) -> Self {
        Self(HistogramWithExemplars::new(bounds.into_iter()))
    }

    /// Records a duration, with its trace where there is one that is kept.
    pub fn observe(&self, took: Duration, trace: Option<TraceContext>) {
        let kept = trace.filter(|context| context.is_sampled());
        let label = kept.map(|context| TraceLabel {
            trace_id: context.trace_id(),
        });
        let now = label.is_some().then(SystemTime::now);
        self.0.observe(took.as_secs_f64(), label, now);
    }

    /// As [`Seconds::observe`], with the trace of a span.
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
