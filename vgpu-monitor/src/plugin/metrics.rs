//! The device plugin's own series at `/metrics`. `docs/metrics.md` explains each series. Never decides.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use server::{Seconds, TraceContext};

use super::allotments::AllotmentStore;
use crate::exporter::Detail;
use crate::proto::front::Told;

/// How one call of the kubelet ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallOutcome {
    /// Answered as asked.
    Ok,
    /// The container is not started now, with a reason for a person.
    Refused,
    /// An error of the plugin or of the kubelet.
    Failed,
}

impl CallOutcome {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    node: String,
    call: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfResource {
    node: String,
    resource: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    node: String,
    resource: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeLabels {
    node: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    node: String,
    outcome: &'static str,
}

/// Clones count together.
#[derive(Clone)]
pub struct PluginMetrics(Arc<PluginSeries>);

struct PluginSeries {
    node: String,
    calls: Family<CallLabels, Seconds>,
    registered: Family<OfResource, Gauge>,
    registrations: Family<OfResource, Counter>,
    restarts: Family<NodeLabels, Counter>,
    slots: Family<OfState, Gauge>,
    pod_resources: Family<OfOutcome, Histogram>,
    pod_resources_refused: Family<NodeLabels, Counter>,
    annotations: Family<OfOutcome, Counter>,
    uncut: Family<NodeLabels, Counter>,
    store: Mutex<Option<Arc<AllotmentStore>>>,
}

impl fmt::Debug for PluginMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// From a call that only looks at memory to one that waits for the API server.
const SECONDS: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];

fn seconds() -> Seconds {
    Seconds::new(SECONDS)
}

fn histogram() -> Histogram {
    Histogram::new(SECONDS)
}

impl PluginMetrics {
    /// Series of this node.
    pub fn new(node: &str) -> Self {
        Self(Arc::new(PluginSeries {
            node: node.to_owned(),
            calls: Family::new_with_constructor(seconds),
            registered: Family::default(),
            registrations: Family::default(),
            restarts: Family::default(),
            slots: Family::default(),
            pod_resources: Family::new_with_constructor(histogram),
            pod_resources_refused: Family::default(),
            annotations: Family::default(),
            uncut: Family::default(),
            store: Mutex::new(None),
        }))
    }

    /// Puts the series into a registry.
    pub fn register(&self, detail: Detail, registry: &mut Registry) {
        self.register_standard(registry);
        if detail == Detail::Full {
            self.register_rest(registry);
        }
        registry.register_collector(Box::new(StoreCollector(self.clone(), detail)));
    }

    fn register_rest(&self, registry: &mut Registry) {
        let series = &self.0;
        registry.register(
            "vgpu_plugin_calls_duration_seconds",
            "Duration of the kubelet's calls, from arrival to answer, in seconds",
            series.calls.clone(),
        );
        registry.register(
            "vgpu_plugin_registrations",
            "Registrations that the kubelet accepted",
            series.registrations.clone(),
        );
        registry.register(
            "vgpu_plugin_pod_resources_duration_seconds",
            "Duration of PodResources queries to the kubelet, including retries, in seconds",
            series.pod_resources.clone(),
        );
        registry.register(
            "vgpu_plugin_annotations",
            "Attempts to write a pod's annotations, by outcome",
            series.annotations.clone(),
        );
    }

    fn register_standard(&self, registry: &mut Registry) {
        let series = &self.0;
        registry.register(
            "vgpu_plugin_registered",
            "1 while the kubelet watches the device list of the resource",
            series.registered.clone(),
        );
        registry.register(
            "vgpu_plugin_restarts",
            "Processes of the plugin that its parent has replaced since the container started",
            series.restarts.clone(),
        );
        registry.register(
            "vgpu_plugin_slots",
            "Slots reported to the kubelet, by state",
            series.slots.clone(),
        );
        registry.register(
            "vgpu_plugin_pod_resources_refused",
            "PodResources queries that the kubelet refused because of its rate limit",
            series.pod_resources_refused.clone(),
        );
        registry.register(
            "vgpu_plugin_regions_uncut",
            "Times that a usage region could not be truncated back to its size",
            series.uncut.clone(),
        );
    }

    /// Shows the memory's figures.
    pub(super) fn watch(&self, store: Arc<AllotmentStore>) {
        *self.0.store.lock() = Some(store);
    }

    pub(super) fn call(
        &self,
        call: &'static str,
        outcome: CallOutcome,
        took: Duration,
        trace: Option<TraceContext>,
    ) {
        let labels = CallLabels {
            node: self.0.node.clone(),
            call,
            outcome: outcome.word(),
        };
        self.0.calls.get_or_create(&labels).observe(took, trace);
    }

    /// Takes in what the front says of the kubelet. Its counts are those since the front began.
    pub(super) fn told(&self, told: &Told) {
        for watched in &told.resources {
            let labels = self.of(&watched.resource);
            let gauge = self.0.registered.get_or_create(&labels).clone();
            gauge.set(i64::from(watched.now));
            let counter = self.0.registrations.get_or_create(&labels).clone();
            counter.inc_by(watched.registrations.saturating_sub(counter.get()));
        }
        let labels = NodeLabels {
            node: self.0.node.clone(),
        };
        let counter = self.0.restarts.get_or_create(&labels).clone();
        counter.inc_by(told.restarts.saturating_sub(counter.get()));
    }

    pub(super) fn slots(&self, resource: &str, well: usize, sick: usize) {
        for (state, count) in [("healthy", well), ("sick", sick)] {
            let labels = OfState {
                node: self.0.node.clone(),
                resource: resource.to_owned(),
                state,
            };
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.0.slots.get_or_create(&labels).set(count);
        }
    }

    pub(super) fn pod_resources_asked(&self, took: Duration, ok: bool) {
        let labels = OfOutcome {
            node: self.0.node.clone(),
            outcome: if ok { "ok" } else { "failed" },
        };
        let histogram = self.0.pod_resources.get_or_create(&labels).clone();
        histogram.observe(took.as_secs_f64());
    }

    pub(super) fn pod_resources_refused(&self) {
        let labels = NodeLabels {
            node: self.0.node.clone(),
        };
        self.0.pod_resources_refused.get_or_create(&labels).inc();
    }

    pub(super) fn uncut(&self) {
        let labels = NodeLabels {
            node: self.0.node.clone(),
        };
        self.0.uncut.get_or_create(&labels).inc();
    }

    pub(super) fn annotations(&self, outcome: &'static str) {
        let labels = OfOutcome {
            node: self.0.node.clone(),
            outcome,
        };
        self.0.annotations.get_or_create(&labels).inc();
    }

    fn of(&self, resource: &str) -> OfResource {
        OfResource {
            node: self.0.node.clone(),
            resource: resource.to_owned(),
        }
    }
}

#[derive(Debug)]
struct StoreCollector(PluginMetrics, Detail);

impl Collector for StoreCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let series = &self.0.0;
        let Some(store) = series.store.lock().clone() else {
            return Ok(());
        };
        let (allotments, errors, unwritten) = store.counts();
        let labels = [("node", series.node.as_str())];
        let mut gauge = |name, help, value: u64| {
            let value = ConstGauge::new(value);
            let family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            let mut family = family;
            value.encode(family.encode_family(&labels)?)
        };
        if self.1 == Detail::Full {
            gauge(
                "vgpu_plugin_allotments",
                "Allotments that the plugin remembers",
                u64::try_from(allotments).unwrap_or(u64::MAX),
            )?;
        }
        gauge(
            "vgpu_plugin_state_unwritten",
            "1 while the plugin's state is not saved in its file",
            u64::from(unwritten),
        )?;
        if self.1 == Detail::Standard && errors == 0 {
            return Ok(());
        }
        let errors = prometheus_client::metrics::counter::ConstCounter::new(errors);
        let mut family = encoder.encode_descriptor(
            "vgpu_plugin_state_errors",
            "Failed writes of the plugin's state file",
            None,
            MetricType::Counter,
        )?;
        errors.encode(family.encode_family(&labels)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::front::Watched;

    /// A node of 8 GPUs on which pods start, without the store's series.
    fn series(detail: Detail) -> usize {
        let metrics = PluginMetrics::new("n1");
        let mut registry = Registry::default();
        metrics.register(detail, &mut registry);
        metrics.told(&Told {
            resources: vec![Watched {
                resource: "nvidia.com/gpu".to_owned(),
                now: true,
                registrations: 1,
            }],
            restarts: 0,
        });
        metrics.slots("nvidia.com/gpu", 80, 0);
        for call in ["allocate", "pre_start_container"] {
            metrics.call(call, CallOutcome::Ok, Duration::from_millis(3), None);
        }
        metrics.pod_resources_asked(Duration::from_millis(3), true);
        metrics.annotations("ok");
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).count()
    }

    #[test]
    fn series_of_a_plugin_are_as_many_as_documented() {
        let page = include_str!("../../../docs/metrics.md");
        let mut rows = page.lines();
        let row = rows.find(|line| line.starts_with("| device plugins, each"));
        let documented: Vec<usize> = row
            .unwrap()
            .split('|')
            .filter_map(|cell| cell.trim().parse().ok())
            .collect();
        // The store's: unwritten; with all details also allotments and errors. The driver's and each GPU's: up and
        // healthy, and with all details recoveries.
        let (of_store, of_health) = ([1, 3], [1 + 8, 1 + 8 + 8]);

        let counted = [Detail::Standard, Detail::Full].map(series);

        assert_eq!(documented[0], counted[0] + of_store[0] + of_health[0]);
        assert_eq!(documented[1], counted[1] + of_store[1] + of_health[1]);
    }
}
