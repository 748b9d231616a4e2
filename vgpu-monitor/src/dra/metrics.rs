//! The DRA driver's own series at `/metrics`. `docs/metrics.md` explains each series. Never decides.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCall {
    node: String,
    call: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfNode {
    node: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOther {
    node: String,
    driver: String,
}

/// Clones count together.
#[derive(Clone)]
pub struct Metrics(Arc<Series>);

struct Series {
    node: String,
    claims: Family<OfNode, Gauge>,
    calls: Family<OfCall, Histogram>,
    devices: Family<OfNode, Gauge>,
    others: Family<OfOther, Gauge>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// From a call that only looks at memory to one that waits for the API server.
/// 30 ms is what half of all claims may take.
const SECONDS: [f64; 11] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.03, 0.05, 0.1, 0.5, 2.5, 10.0,
];

fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}

impl Metrics {
    /// Series of this node.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self(Arc::new(Series {
            node: node.to_owned(),
            claims: Family::default(),
            calls: Family::new_with_constructor(histogram),
            devices: Family::default(),
            others: Family::default(),
        }))
    }

    /// Puts the series into a registry.
    pub fn register(&self, registry: &mut Registry) {
        let series = &self.0;
        registry.register(
            "vgpu_dra_claims",
            "ResourceClaims that are ready on this node",
            series.claims.clone(),
        );
        registry.register(
            "vgpu_dra_devices",
            "GPUs that this node's ResourceSlices offer",
            series.devices.clone(),
        );
        registry.register(
            "vgpu_dra_devices_of_other_drivers",
            "GPUs that are not offered because another DRA driver publishes them on this node",
            series.others.clone(),
        );
        registry.register(
            "vgpu_dra_call_seconds",
            "How long the kubelet's calls took, for each claim",
            series.calls.clone(),
        );
    }

    /// How many claims are ready.
    pub(super) fn claims(&self, count: usize) {
        let of = OfNode {
            node: self.0.node.clone(),
        };
        let gauge = self.0.claims.get_or_create(&of);
        gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// How many GPUs the slices offer.
    pub(super) fn devices(&self, count: usize) {
        let of = OfNode {
            node: self.0.node.clone(),
        };
        let gauge = self.0.devices.get_or_create(&of);
        gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// How many GPUs each other driver publishes. A driver that publishes none any more has no series.
    pub(super) fn others<'a>(&self, drivers: impl Iterator<Item = &'a str>) {
        let family = &self.0.others;
        family.clear();
        for driver in drivers {
            let of = OfOther {
                node: self.0.node.clone(),
                driver: driver.to_owned(),
            };
            family.get_or_create(&of).inc();
        }
    }

    /// One claim of one call.
    pub(super) fn called(&self, call: &'static str, took: Duration, ok: bool) {
        let of = OfCall {
            node: self.0.node.clone(),
            call,
            outcome: if ok { "ok" } else { "refused" },
        };
        self.0.calls.get_or_create(&of).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_is_on_the_page() {
        let metrics = Metrics::new("n1");
        metrics.claims(1);
        metrics.devices(2);
        metrics.others(["gpu.nvidia.com"].into_iter());
        metrics.called("prepare", Duration::from_millis(3), true);
        let mut registry = Registry::default();
        metrics.register(&mut registry);

        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();

        let page = include_str!("../../../docs/metrics.md");
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let mut names = types.filter_map(|line| line.split(' ').next());
        assert!(
            names.all(|name| page.contains(&format!("`{name}`"))),
            "{text}"
        );
        assert!(text.contains("vgpu_dra_claims{node=\"n1\"} 1"), "{text}");
    }
}
