//! The series about the writes of ComputeNodes. Never their content.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Counts of writes, and when the last report went well. Clones count together.
#[derive(Debug, Clone)]
pub struct WriteSeries(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    node: String,
    writes: AtomicU64,
    failures: AtomicU64,
    reported: AtomicU64,
}

impl WriteSeries {
    /// The series of this node.
    pub fn new(node: &str) -> Self {
        Self(Arc::new(Counts {
            node: node.to_owned(),
            writes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            reported: AtomicU64::new(0),
        }))
    }

    /// Counts this many writes; the objects are up to date since `unix` (seconds).
    pub(super) fn reported(&self, writes: u64, unix: u64) {
        // Relaxed: the counters guard no other memory.
        self.0.writes.fetch_add(writes, Ordering::Relaxed);
        self.0.reported.store(unix, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        self.0.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes that were made since the start.
    pub fn writes(&self) -> u64 {
        self.0.writes.load(Ordering::Relaxed)
    }
}

impl Collector for WriteSeries {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let labels = [("node", self.0.node.as_str())];
        for (name, help, value) in [
            (
                "vgpu_plugin_hcs_writes",
                "Successful writes of the node's ComputeNode and ComputeTopology objects",
                &self.0.writes,
            ),
            (
                "vgpu_plugin_hcs_failures",
                "Failed writes of the node's ComputeNode or ComputeTopology object",
                &self.0.failures,
            ),
        ] {
            let count = ConstCounter::new(value.load(Ordering::Relaxed));
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            count.encode(family.encode_family(&labels)?)?;
        }
        let reported = ConstGauge::new(self.0.reported.load(Ordering::Relaxed));
        let mut family = encoder.encode_descriptor(
            "vgpu_plugin_hcs_reported_timestamp_seconds",
            "Unix time at which the node's ComputeNode was last known to be up to date; 0 if it never was",
            None,
            MetricType::Gauge,
        )?;
        reported.encode(family.encode_family(&labels)?)
    }
}
