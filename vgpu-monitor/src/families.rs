//! Families of series that are left out while they have no sample. Never decides what one of them says.

use std::borrow::Cow;
use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// The labels of a sample, by name.
pub(crate) type Labels<'a> = Vec<(&'static str, Cow<'a, str>)>;

/// A family of gauges.
pub(crate) fn gauge<'a>(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    unit: Option<Unit>,
    help: &str,
    samples: impl IntoIterator<Item = (Labels<'a>, u64)>,
) -> fmt::Result {
    let mut samples = samples.into_iter().peekable();
    if samples.peek().is_none() {
        return Ok(());
    }
    let mut family = out.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
    for (labels, value) in samples {
        family.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}

/// A family of counters.
pub(crate) fn counter<'a>(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels<'a>, u64)>,
) -> fmt::Result {
    let mut samples = samples.into_iter().peekable();
    if samples.peek().is_none() {
        return Ok(());
    }
    let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in samples {
        family
            .encode_family(&labels)?
            .encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
    }
    Ok(())
}
