//! The series of what workloads have used, for accounts.

use std::fmt;

use super::out::{Labels, Out, text};
use super::{Shown, Used};

pub(super) fn write(shown: &Shown, out: &mut Out<'_>) -> fmt::Result {
    let all = || {
        shown
            .workloads
            .iter()
            .map(|used| (labels(&shown.node, used), used))
    };
    out.counter(
        "vgpu_workload_gpu_used_seconds",
        "GPU time that the workload's containers on this node have used, those that have ended too, in seconds",
        all().map(|(labels, used)| (labels, used.gpu_seconds)),
    )?;
    out.counter(
        "vgpu_workload_memory_used_gibibyte_seconds",
        "GPU memory that the workload's containers on this node have held, those that have ended too, in GiB times seconds",
        all().map(|(labels, used)| (labels, used.gib_seconds)),
    )
}

fn labels<'a>(node: &'a str, used: &'a Used) -> Labels<'a> {
    vec![
        ("node", text(node)),
        ("namespace", text(&used.key.namespace)),
        ("team", text(&used.key.team)),
        ("workload_type", text(&used.key.kind)),
        ("workload", text(&used.key.workload)),
    ]
}
