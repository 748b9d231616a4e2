//! Identifies a span of a trace, in the format of W3C's `traceparent`. The text is a tenant's and is not trusted.

use std::fmt;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// A span of a trace, or a trace that has no span yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    trace: TraceId,
    span: SpanId,
    sampled: bool,
}

impl TraceContext {
    pub(super) fn new(trace: TraceId, span: SpanId) -> Self {
        Self {
            trace,
            span,
            sampled: true,
        }
    }

    /// Reads `00-<32 hex digits>-<16 hex digits>-<2 hex digits>`: lower case, neither identifier all zeros, as the
    /// recommendation requires. Other versions and longer forms are not read. Anything else gives no parent.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split('-').take(5).collect();
        let [version, trace, span, flags] = fields.as_slice() else {
            return None;
        };
        let hex = |field: &str, length: usize| {
            field.len() == length
                && field
                    .bytes()
                    .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        if *version != "00" || !hex(trace, 32) || !hex(span, 16) || !hex(flags, 2) {
            return None;
        }
        let trace = TraceId::from_hex(trace).ok()?;
        let span = SpanId::from_hex(span).ok()?;
        let flags = u8::from_str_radix(flags, 16).ok()?;
        if trace == TraceId::INVALID || span == SpanId::INVALID {
            return None;
        }
        Some(Self {
            trace,
            span,
            sampled: flags & 1 == 1,
        })
    }

    /// The trace of a pod that has no `traceparent`: its uid, so that all programs that see the pod use the same trace.
    /// `None` if the uid is not a UUID.
    #[must_use]
    pub fn of_uid(uid: &str) -> Option<Self> {
        let digits: String = uid.chars().filter(|letter| *letter != '-').collect();
        if digits.len() != 32 || uid.len() != 36 {
            return None;
        }
        let trace = TraceId::from_hex(&digits).ok()?;
        (trace != TraceId::INVALID).then_some(Self {
            trace,
            span: SpanId::INVALID,
            sampled: true,
        })
    }

    /// The parent of spans about a pod: the span in its annotation, or else its uid's trace.
    #[must_use]
    pub fn of_pod(annotation: Option<&str>, uid: &str) -> Option<Self> {
        annotation
            .and_then(Self::parse)
            .or_else(|| Self::of_uid(uid))
    }

    /// The same span in the trace of `parent`.
    pub(super) fn within(self, parent: Self) -> Self {
        Self {
            trace: parent.trace,
            span: self.span,
            sampled: parent.sampled,
        }
    }

    pub(super) fn span_id(self) -> SpanId {
        self.span
    }

    pub(super) fn span_context(self) -> SpanContext {
        SpanContext::new(
            self.trace,
            self.span,
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        )
    }

    /// Whether the program that started the trace wants it kept.
    #[must_use]
    pub fn is_sampled(self) -> bool {
        self.sampled
    }

    /// The trace in 32 hex digits: the text that a person types into a search.
    #[must_use]
    pub fn trace_id(self) -> String {
        self.trace.to_string()
    }
}

impl fmt::Display for TraceContext {
    /// Formats as `traceparent`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.sampled);
        write!(formatter, "00-{}-{}-{flags:02x}", self.trace, self.span)
    }
}
