//! The webhook's own metrics at `/metrics`.
//!
//! No decision depends on them.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use server::{Seconds, TraceContext, Traces};

/// One review.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Review {
    /// `CREATE`, `UPDATE`, …; `unknown` where the body could not be read.
    operation: &'static str,
    /// `allowed`, `mutated`, `denied`, or `broken` for a body that could not be judged.
    outcome: &'static str,
}

/// Why an object was written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// Counters and durations. Clones share them.
#[derive(Debug, Clone)]
pub struct Meters {
    reviews: Family<Review, Counter>,
    seconds: Seconds,
    certificate_end: Gauge<f64, AtomicU64>,
    ca_end: Gauge<f64, AtomicU64>,
    certificates: Counter,
    rotations: Family<Reason, Counter>,
    writes: Family<Reason, Counter>,
    failures: Counter,
    holder: Gauge<u64, AtomicU64>,
    traces: Traces,
}

impl Default for Meters {
    fn default() -> Self {
        // The target in DESIGN is 0.15 ms at p50 and 0.5 ms at p99; the API server gives up after
        // seconds.
        let bounds = [
            0.000_05, 0.000_1, 0.000_15, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.1,
            0.5, 1.0, 5.0,
        ];
        Self {
            reviews: Family::default(),
            seconds: Seconds::new(bounds),
            certificate_end: Gauge::default(),
            ca_end: Gauge::default(),
            certificates: Counter::default(),
            rotations: Family::default(),
            writes: Family::default(),
            failures: Counter::default(),
            holder: Gauge::default(),
            traces: Traces::off(),
        }
    }
}

impl Meters {
    /// Adds the counters of these spans.
    #[must_use]
    pub fn with_traces(mut self, traces: Traces) -> Self {
        self.traces = traces;
        self
    }

    /// All metrics in one registry.
    #[must_use]
    pub fn registry(&self) -> Registry {
        let mut all = Registry::default();
        self.traces.register(&mut all);
        let registry = all.sub_registry_with_prefix("vgpu_webhook");
        registry.register(
            "reviews",
            "Admission reviews answered, by operation and outcome",
            self.reviews.clone(),
        );
        registry.register(
            "review_duration_seconds",
            "Time from a review's arrival to its answer",
            self.seconds.clone(),
        );
        registry.register(
            "certificate_expiry_timestamp_seconds",
            "When the certificate on the port expires",
            self.certificate_end.clone(),
        );
        registry.register(
            "ca_expiry_timestamp_seconds",
            "When the CA that signs expires; 0 where the certificate is given as a file",
            self.ca_end.clone(),
        );
        registry.register(
            "certificates_shown",
            "Certificates that this replica has put on its port",
            self.certificates.clone(),
        );
        registry.register(
            "ca_rotations",
            "CAs that this replica has made, by reason: created, due, deleted, broken",
            self.rotations.clone(),
        );
        registry.register(
            "configuration_writes",
            "Webhook configurations that this replica has written, by reason: created, changed",
            self.writes.clone(),
        );
        registry.register(
            "cluster_failures",
            "Looks at the cluster that failed and were repeated",
            self.failures.clone(),
        );
        registry.register(
            "holder",
            "1 in the replica that holds the Lease and writes",
            self.holder.clone(),
        );
        all
    }

    /// Counts an answered review, with the trace of its pod where there is one.
    pub fn reviewed(
        &self,
        operation: &'static str,
        outcome: &'static str,
        took: Duration,
        trace: Option<TraceContext>,
    ) {
        self.reviews
            .get_or_create(&Review { operation, outcome })
            .inc();
        self.seconds.observe(took, trace);
    }

    /// Counts a new certificate on the port.
    pub fn shown(&self, until: Timestamp) {
        self.certificates.inc();
        self.certificate_end.set(seconds(until));
    }

    /// Records the expiry of a certificate (DER) that another program renews.
    pub(crate) fn given(&self, certificate: Option<&[u8]>) {
        let parsed = certificate.map(x509_parser::parse_x509_certificate);
        if let Some(Ok((_, certificate))) = parsed {
            let end = certificate.validity().not_after.timestamp();
            if let Ok(end) = Timestamp::from_second(end) {
                self.certificate_end.set(seconds(end));
            }
        }
    }

    /// Records the expiry of the CA that signs.
    pub fn signs(&self, until: Timestamp) {
        self.ca_end.set(seconds(until));
    }

    pub(crate) fn rotated(&self, reason: &'static str) {
        self.rotations.get_or_create(&Reason { reason }).inc();
    }

    pub(crate) fn wrote(&self, reason: &'static str) {
        self.writes.get_or_create(&Reason { reason }).inc();
    }

    pub(crate) fn failed(&self) {
        self.failures.inc();
    }

    pub(crate) fn holds(&self, ours: bool) {
        self.holder.set(u64::from(ours));
    }
}

fn seconds(at: Timestamp) -> f64 {
    at.as_duration().as_secs_f64()
}
