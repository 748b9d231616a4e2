//! The assigner's counters for `/metrics`. No decision depends on them.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use kube_api::assigner::State;
use pages::assigner::{DeviceSource, DeviceState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use server::Seconds;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    state: &'static str,
}

/// Counters and durations. Clones share them.
#[derive(Debug, Clone)]
pub struct AssignerMeters {
    reviews: Family<OutcomeLabel, Counter<u64, AtomicU64>>,
    refusals: Family<Reason, Counter<u64, AtomicU64>>,
    released: Family<OfState, Counter<u64, AtomicU64>>,
    finalizes: Family<OutcomeLabel, Counter<u64, AtomicU64>>,
    to_finalize: Seconds,
}

impl Default for AssignerMeters {
    fn default() -> Self {
        Self {
            reviews: Family::default(),
            refusals: Family::default(),
            released: Family::default(),
            finalizes: Family::default(),
            to_finalize: Seconds::new([
                0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0,
            ]),
        }
    }
}

impl AssignerMeters {
    /// Counts an answered review: `reserved`, `passed`, `refused`, `failed`.
    pub fn reviewed(&self, outcome: &'static str) {
        self.reviews.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// Counts a refused pod, by reason.
    pub fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&Reason { reason }).inc();
    }

    /// Counts a claim that became active, with the time since its proposal.
    pub fn finalized(&self, after: Duration) {
        self.to_finalize.observe(after, None);
    }

    /// Counts a finalize request that was answered with this code.
    pub fn asked_to_finalize(&self, outcome: &'static str) {
        self.finalizes
            .get_or_create(&OutcomeLabel { outcome })
            .inc();
    }

    /// Counts a released claim.
    pub fn released(&self, state: State) {
        let state = state.word();
        self.released.get_or_create(&OfState { state }).inc();
    }

    /// All metrics in one registry, with the number of devices in each state.
    pub fn registry(&self, devices: Arc<dyn DeviceSource>) -> Registry {
        let mut all = Registry::default();
        let registry = all.sub_registry_with_prefix("vgpu_assigner");
        registry.register(
            "reviews",
            "Admission reviews answered, by outcome: reserved, passed, refused, failed",
            self.reviews.clone(),
        );
        registry.register("refusals", "Pods refused, by reason", self.refusals.clone());
        registry.register(
            "released",
            "Reservations let go of, by the state that they were in: proposal (ran out), active (pod gone)",
            self.released.clone(),
        );
        registry.register(
            "finalize_requests",
            "Finalize requests answered, by outcome: ok, bad_request, unknown, another, unanswered",
            self.finalizes.clone(),
        );
        registry.register(
            "finalize_seconds",
            "From the proposal of a GPU to its active reservation",
            self.to_finalize.clone(),
        );
        all.register_collector(Box::new(DeviceCounts(devices)));
        all
    }
}

/// Counts the devices at each scrape.
struct DeviceCounts(Arc<dyn DeviceSource>);

impl std::fmt::Debug for DeviceCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DeviceCounts")
    }
}

impl Collector for DeviceCounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let inventory = self.0.inventory();
        let count = |wanted: &dyn Fn(DeviceState) -> bool| {
            let count = inventory
                .devices
                .iter()
                .filter(|row| wanted(row.state))
                .count();
            i64::try_from(count).unwrap_or(i64::MAX)
        };
        let name = "vgpu_assigner_devices";
        let help = "Devices that can be asked for by label, by state: available, proposal, active, expired, shared, out";
        let mut family = encoder.encode_descriptor(
            name,
            help,
            None,
            prometheus_client::metrics::MetricType::Gauge,
        )?;
        for (state, of) in [
            ("available", DeviceState::Available),
            ("proposal", DeviceState::Pending),
            ("active", DeviceState::Assigned),
            ("expired", DeviceState::Expired),
            ("shared", DeviceState::Shared),
            ("out", DeviceState::Out),
        ] {
            let value: ConstGauge<i64> = ConstGauge::new(count(&|state| state == of));
            value.encode(family.encode_family(&OfState { state })?)?;
        }
        Ok(())
    }
}
