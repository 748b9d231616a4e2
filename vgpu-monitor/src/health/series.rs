//! The series about the GPUs' health. Never queries a driver.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::DescriptorEncoder;

use super::judge::{Figures, GpuFigures};
use super::xid;
use crate::exporter::Detail;
use crate::families::{Labels, counter, gauge};

/// Writes the figures as they are at a scrape.
#[derive(Debug, Clone)]
pub struct HealthCollector {
    pub(super) node: String,
    pub(super) detail: Detail,
    pub(super) figures: Arc<Mutex<Figures>>,
}

impl prometheus_client::collector::Collector for HealthCollector {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let figures = self.figures.lock().clone();
        let gpus = &figures.gpus;
        gauge(
            &mut out,
            "vgpu_gpu_healthy",
            None,
            "1 if the GPU is healthy enough to take new pods",
            gpus.iter().map(|gpu| {
                let mut labels = self.labels(gpu);
                labels.push(("device_index", Cow::Owned(gpu.known.index.to_string())));
                labels.push(("device_type", Cow::Owned(format!("NVIDIA-{}", model(gpu)))));
                (labels, u64::from(gpu.sick.is_none()))
            }),
        )?;
        gauge(
            &mut out,
            "vgpu_gpu_sick_info",
            None,
            "Reason why the GPU takes no new pods, and whether a probe may find it healthy again; always 1",
            gpus.iter().filter_map(|gpu| {
                let sick = gpu.sick.as_ref()?;
                let mut labels = self.labels(gpu);
                labels.push(("reason", Cow::Owned(sick.reason.clone())));
                labels.push(("recovers", Cow::Owned(sick.recovers.to_string())));
                Some((labels, 1))
            }),
        )?;
        gauge(
            &mut out,
            "vgpu_gpu_warning",
            None,
            "Warning of a GPU that is still healthy, by kind (remap_pending, pages_pending); always 1",
            gpus.iter().flat_map(|gpu| {
                gpu.warnings.iter().map(|kind| {
                    let mut labels = self.labels(gpu);
                    labels.push(("kind", Cow::Borrowed(*kind)));
                    (labels, 1)
                })
            }),
        )?;
        counter(
            &mut out,
            "vgpu_gpu_recoveries",
            "Times that the GPU became healthy again since the agent started",
            gpus.iter()
                .filter(|gpu| self.detail == Detail::Full || gpu.recoveries > 0)
                .map(|gpu| (self.labels(gpu), gpu.recoveries)),
        )?;
        counter(
            &mut out,
            "vgpu_gpu_xid",
            "XID errors of the GPU since the agent started, by number and by kind (application, hardware, transient)",
            figures.xids.iter().map(|((uuid, number), count)| {
                let labels = vec![
                    ("node", Cow::Borrowed(self.node.as_str())),
                    ("device_uuid", Cow::Borrowed(uuid.as_str())),
                    ("xid", Cow::Owned(number.to_string())),
                    ("kind", Cow::Borrowed(xid::of(*number).class.as_str())),
                ];
                (labels, *count)
            }),
        )?;
        gauge(
            &mut out,
            "vgpu_gpu_driver_up",
            None,
            "1 if the NVIDIA driver answers the health check",
            [(
                vec![("node", Cow::Borrowed(self.node.as_str()))],
                u64::from(figures.driver_up),
            )],
        )
    }
}

fn model(gpu: &GpuFigures) -> &str {
    let model = gpu.known.model.as_str();
    model.strip_prefix("NVIDIA ").unwrap_or(model)
}

impl HealthCollector {
    /// The same with this much detail.
    #[must_use]
    pub fn with_detail(self, detail: Detail) -> Self {
        Self { detail, ..self }
    }

    fn labels<'a>(&'a self, gpu: &'a GpuFigures) -> Labels<'a> {
        vec![
            ("node", Cow::Borrowed(self.node.as_str())),
            ("device_uuid", Cow::Borrowed(gpu.known.uuid.as_str())),
        ]
    }
}
