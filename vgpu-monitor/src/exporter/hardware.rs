//! The series of the GPUs' hardware.

use std::fmt;

use prometheus_client::registry::Unit;
use supervisor::gpu::hardware::{Hardware, Pcie};

use super::Shown;
use super::out::{Labels, Out, number, text};

pub(super) fn write(shown: &Shown, out: &mut Out<'_>) -> fmt::Result {
    let all = || {
        shown
            .hardware
            .iter()
            .map(|gpu| (labels(&shown.node, gpu), gpu))
    };
    let mut gauge = |name, unit, help, value: &dyn Fn(&Hardware) -> Option<f64>| {
        let samples = all().filter_map(|(labels, gpu)| Some((labels, value(gpu)?.into())));
        out.gauge(name, unit, help, samples)
    };
    let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
    let hertz = |mhz: u32| f64::from(mhz) * 1e6;
    gauge(
        "vgpu_gpu_power_watts",
        None,
        "Power that the GPU draws, in watts",
        &|gpu| gpu.power_mw.map(watts),
    )?;
    gauge(
        "vgpu_gpu_power_limit_watts",
        None,
        "Power limit that the driver enforces, in watts",
        &|gpu| gpu.power_limit_mw.map(watts),
    )?;
    gauge(
        "vgpu_gpu_temperature",
        Some(Unit::Celsius),
        "Temperature of the GPU, in degrees Celsius",
        &|gpu| gpu.celsius.map(f64::from),
    )?;
    gauge(
        "vgpu_gpu_memory_temperature",
        Some(Unit::Celsius),
        "Temperature of the GPU's memory, in degrees Celsius",
        &|gpu| gpu.memory_celsius.map(f64::from),
    )?;
    gauge(
        "vgpu_gpu_sm_clock_hertz",
        None,
        "Clock of the GPU's multiprocessors, in hertz",
        &|gpu| gpu.sm_mhz.map(hertz),
    )?;
    gauge(
        "vgpu_gpu_memory_clock_hertz",
        None,
        "Clock of the GPU's memory, in hertz",
        &|gpu| gpu.memory_mhz.map(hertz),
    )?;
    out.counter(
        "vgpu_gpu_energy_joules",
        "Energy that the GPU has used since its driver was loaded, in joules",
        all().filter_map(|(labels, gpu)| Some((labels, joules(gpu.energy_mj?)))),
    )?;
    out.counter(
        "vgpu_gpu_ecc_errors",
        "Memory errors that ECC found since the driver was loaded, by kind (corrected, uncorrected)",
        all().flat_map(|(labels, gpu)| {
            by_kind(&labels, gpu.ecc_corrected, gpu.ecc_uncorrected)
        }),
    )?;
    out.counter(
        "vgpu_gpu_remapped_rows",
        "Memory rows of the GPU that were replaced, by the kind of error that caused it (corrected, uncorrected)",
        all().flat_map(|(labels, gpu)| {
            by_kind(&labels, gpu.rows_corrected, gpu.rows_uncorrected)
        }),
    )?;
    out.counter(
        "vgpu_gpu_pcie_replays",
        "PCIe packets of the GPU that were sent again",
        all().filter_map(|(labels, gpu)| Some((labels, u64::from(gpu.pcie_replays?)))),
    )?;
    pcie(shown, out)?;
    out.counter(
        "vgpu_gpu_nvlink_bytes",
        "Bytes that the GPU sent and received over all its NVLinks",
        all().filter_map(|(labels, gpu)| {
            let (sent, received) = gpu.nvlink_bytes?;
            Some((labels, sent.saturating_add(received)))
        }),
    )?;
    out.gauge(
        "vgpu_gpu_throttled",
        None,
        "1 while the GPU's clocks are lower than they could be for this reason",
        all().flat_map(|(labels, gpu)| {
            gpu.throttled_by.iter().map(move |reason| {
                let labels = [labels.clone(), vec![("reason", text(reason))]].concat();
                (labels, 1_u64.into())
            })
        }),
    )?;
    out.counter(
        "vgpu_gpu_throttled_seconds",
        "How long the GPU's clocks have been lowered since its driver was loaded, by cause, in seconds",
        all().flat_map(|(labels, gpu)| {
            gpu.throttled_ns.iter().map(move |(cause, ns)| {
                let labels = [labels.clone(), vec![("cause", text(cause))]].concat();
                let seconds = std::time::Duration::from_nanos(*ns).as_secs_f64();
                (labels, seconds)
            })
        }),
    )
}

/// Counters where the driver counts, else what it measured.
fn pcie(shown: &Shown, out: &mut Out<'_>) -> fmt::Result {
    let all = || {
        shown
            .hardware
            .iter()
            .filter_map(|gpu| Some((labels(&shown.node, gpu), gpu.pcie?)))
    };
    let counted = |pcie| match pcie {
        Pcie::Counted { sent, received } => Some((sent, received)),
        Pcie::Measured { .. } => None,
    };
    let measured = |pcie| match pcie {
        Pcie::Measured { sent, received } => Some((sent, received)),
        Pcie::Counted { .. } => None,
    };
    out.counter(
        "vgpu_gpu_pcie_sent_bytes",
        "Bytes that the GPU sent over PCIe",
        all().filter_map(|(labels, pcie)| Some((labels, counted(pcie)?.0))),
    )?;
    out.counter(
        "vgpu_gpu_pcie_received_bytes",
        "Bytes that the GPU received over PCIe",
        all().filter_map(|(labels, pcie)| Some((labels, counted(pcie)?.1))),
    )?;
    out.gauge(
        "vgpu_gpu_pcie_sent_bytes_per_second",
        None,
        "Bytes a second that the GPU sent over PCIe in the 20 ms in which its driver measured",
        all().filter_map(|(labels, pcie)| Some((labels, measured(pcie)?.0.into()))),
    )?;
    out.gauge(
        "vgpu_gpu_pcie_received_bytes_per_second",
        None,
        "Bytes a second that the GPU received over PCIe in the 20 ms in which its driver measured",
        all().filter_map(|(labels, pcie)| Some((labels, measured(pcie)?.1.into()))),
    )
}

fn labels<'a>(node: &'a str, gpu: &'a Hardware) -> Labels<'a> {
    vec![
        ("node", text(node)),
        ("device_index", number(gpu.index)),
        ("device_uuid", text(&gpu.uuid)),
    ]
}

fn by_kind<'a>(
    labels: &Labels<'a>,
    corrected: Option<u64>,
    uncorrected: Option<u64>,
) -> Vec<(Labels<'a>, u64)> {
    let kinds = [("corrected", corrected), ("uncorrected", uncorrected)];
    let known = kinds.into_iter().filter_map(|(kind, count)| {
        let labels = [labels.clone(), vec![("kind", text(kind))]].concat();
        Some((labels, count?))
    });
    known.collect()
}

#[allow(
    clippy::cast_precision_loss,
    reason = "exact to 285 years at 1,000 watts"
)]
fn joules(millijoules: u64) -> f64 {
    millijoules as f64 / 1e3
}
