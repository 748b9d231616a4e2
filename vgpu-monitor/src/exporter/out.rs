//! How a family is written: labels, values, units. Never which families there are.

use std::borrow::Cow;
use std::fmt;

use prometheus_client::encoding::{
    CounterValueEncoder, DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue,
    GaugeValueEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::detail::Detail;
use super::shown::{Device, Gpu, Instance, Shown, ShownContainer};

pub(super) use crate::families::Labels;

pub(super) const BYTES: Option<Unit> = Some(Unit::Bytes);

pub(super) fn text(text: &str) -> Cow<'_, str> {
    Cow::Borrowed(text)
}

pub(super) fn number<'a>(number: impl ToString) -> Cow<'a, str> {
    Cow::Owned(number.to_string())
}

/// Ids of the GPU instance and the compute instance, as labels.
pub(super) fn ids<'a>(instance: &Instance) -> (Cow<'a, str>, Cow<'a, str>) {
    instance.ids.map_or((text(""), text("")), |(gpu, compute)| {
        (number(gpu), number(compute))
    })
}

pub(super) fn device_type(gpu: &Gpu) -> Cow<'_, str> {
    Cow::Owned(format!("NVIDIA-{}", gpu.model))
}

pub(super) fn devices(shown: &Shown) -> impl Iterator<Item = (&ShownContainer, &Device)> {
    shown
        .containers
        .iter()
        .flat_map(|c| c.devices.iter().map(move |device| (c, device)))
}

pub(super) fn gpu_labels<'a>(node: Option<&'a str>, gpu: &'a Gpu) -> Labels<'a> {
    let mut labels: Labels<'a> = node.map(|node| ("node", text(node))).into_iter().collect();
    labels.extend([
        ("device_index", number(gpu.index)),
        ("device_uuid", text(&gpu.uuid)),
        ("device_type", device_type(gpu)),
    ]);
    labels
}

pub(super) fn legacy_gpu_labels<'a>(node: &'a str, gpu: &'a Gpu) -> Labels<'a> {
    vec![
        ("nodeid", text(node)),
        ("deviceidx", number(gpu.index)),
        ("deviceuuid", text(&gpu.uuid)),
        ("devicetype", device_type(gpu)),
    ]
}

pub(super) fn container_labels<'a>(node: &'a str, container: &'a ShownContainer) -> Labels<'a> {
    vec![
        ("node", text(node)),
        ("namespace", text(&container.namespace)),
        ("pod", text(&container.pod)),
        ("container", text(&container.container)),
    ]
}

pub(super) fn labels<'a>(
    node: &'a str,
    container: &'a ShownContainer,
    device: &'a Device,
) -> Labels<'a> {
    let mut labels = container_labels(node, container);
    labels.extend([
        ("vdevice_index", number(device.index)),
        ("device_uuid", text(&device.uuid)),
    ]);
    labels
}

pub(super) fn legacy_labels<'a>(container: &'a ShownContainer, device: &'a Device) -> Labels<'a> {
    vec![
        ("podnamespace", text(&container.namespace)),
        ("podname", text(&container.pod)),
        ("ctrname", text(&container.container)),
        ("vdeviceid", number(device.index)),
        ("deviceuuid", text(&device.uuid)),
    ]
}

/// A gauge's value: bytes stay whole, so that no digit is lost on the way out.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl EncodeGaugeValue for Value {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => EncodeGaugeValue::encode(value, encoder),
            Self::Real(value) => EncodeGaugeValue::encode(value, encoder),
        }
    }
}

impl EncodeCounterValue for Value {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => EncodeCounterValue::encode(value, encoder),
            Self::Real(value) => EncodeCounterValue::encode(value, encoder),
        }
    }
}

impl Value {
    fn is_zero(self) -> bool {
        match self {
            Self::Whole(value) => value == 0,
            Self::Real(value) => value == 0.0,
        }
    }
}

/// Writes families; one without a sample is left out, and so is one that the detail leaves out.
pub(super) struct Out<'a> {
    pub(super) encoder: DescriptorEncoder<'a>,
    pub(super) detail: Detail,
}

impl Out<'_> {
    pub(super) fn gauge<'l>(
        &mut self,
        name: &str,
        unit: Option<Unit>,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l>, Value)>,
    ) -> fmt::Result {
        let detail = self.detail;
        let shows = |(_, value): &(Labels<'l>, Value)| detail.shows(name, value.is_zero());
        let mut samples = samples.into_iter().filter(shows).peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let mut family =
            self.encoder
                .encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in samples {
            if labels.is_empty() {
                family.encode_gauge(&value)?;
            } else {
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    /// A histogram whose bounds are seconds. A sample is the sum in seconds and the number of observations below
    /// each bound and above the one before it; the last one has no bound.
    pub(super) fn histogram<'l>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l>, f64, Vec<(f64, u64)>)>,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() || !self.detail.shows(name, false) {
            return Ok(());
        }
        let mut family = self.encoder.encode_descriptor(
            name,
            help,
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for (labels, sum, buckets) in samples {
            let count = buckets
                .iter()
                .fold(0, |sum: u64, (_, n)| sum.saturating_add(*n));
            family
                .encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }

    pub(super) fn counter<'l, V: Into<Value>>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'l>, V)>,
    ) -> fmt::Result {
        let detail = self.detail;
        let samples = samples
            .into_iter()
            .map(|(labels, value)| (labels, value.into()));
        let shows = |(_, value): &(Labels<'l>, Value)| detail.shows(name, value.is_zero());
        let mut samples = samples.filter(shows).peekable();
        if samples.peek().is_none() {
            return Ok(());
        }
        let mut family = self
            .encoder
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            if labels.is_empty() {
                family.encode_counter::<NoLabelSet, Value, u64>(&value, None)?;
                continue;
            }
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, Value, u64>(&value, None)?;
        }
        Ok(())
    }
}
