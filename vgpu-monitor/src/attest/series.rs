//! The series about processes that hold GPUs. Never looks at a process.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::verdict::Verdict;
use crate::exporter::Detail;
use crate::families::{Labels, gauge};
use crate::reconcile::Owners;

/// The processes of the node at one moment.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    /// Name of the node.
    pub node: String,
    /// Processes that hold a GPU.
    pub holders: Vec<Row>,
    /// Memory held by processes outside the managed containers.
    pub unmanaged_bytes: BTreeMap<(String, Owner), u64>,
    /// The managed container that each process belongs to.
    pub owners: Owners,
    /// Processes of the node.
    pub processes: u64,
    /// Of them: those that could not be looked at.
    pub unreadable: u64,
    /// Turns since the start.
    pub turns: u64,
}

/// Owner a process is; empty where that is not known, all empty for the host's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Namespace of the pod.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container.
    pub container: String,
}

/// A process that holds a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its host pid.
    pub pid: u32,
    /// Its verdict. A bad verdict that is not confirmed yet counts as none: see `GpuHolder`.
    pub verdict: Verdict,
    /// Why.
    pub reason: &'static str,
    /// The pod and container that the process belongs to.
    pub owner: Owner,
    /// The directory of its container.
    pub container: Option<PathBuf>,
}

impl Picture {
    /// Writes every series.
    ///
    /// # Errors
    /// The encoder's writer fails.
    pub fn encode(&self, detail: Detail, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = detail == Detail::Full;
        let mut by_verdict = BTreeMap::from(Verdict::ALL.map(|verdict| (verdict, 0_u64)));
        let mut by_container: BTreeMap<(&Owner, Verdict), u64> = BTreeMap::new();
        let mut unmanaged: BTreeMap<(&Owner, &str), u64> = BTreeMap::new();
        for row in &self.holders {
            let one = |count: &mut u64| *count = count.saturating_add(1);
            one(by_verdict.entry(row.verdict).or_default());
            if row.container.is_some() {
                one(by_container.entry((&row.owner, row.verdict)).or_default());
            }
            if row.verdict.is_bad() {
                one(unmanaged.entry((&row.owner, row.reason)).or_default());
            }
        }
        gauge(
            out,
            "vgpu_node_gpu_processes",
            None,
            "Processes on the node that hold a GPU, by verdict",
            by_verdict
                .iter()
                .filter(|(_, count)| all || **count > 0)
                .map(|(verdict, count)| {
                    let labels = vec![
                        ("node", Cow::Borrowed(self.node.as_str())),
                        ("verdict", Cow::Borrowed(verdict.as_str())),
                    ];
                    (labels, *count)
                }),
        )?;
        gauge(
            out,
            "vgpu_node_unmanaged_processes",
            None,
            "Processes that hold a GPU without the library or with limits other than their container's, by reason",
            unmanaged.iter().map(|((owner, reason), count)| {
                let mut labels = self.labels(owner);
                labels.push(("reason", Cow::Borrowed(*reason)));
                (labels, *count)
            }),
        )?;
        gauge(
            out,
            "vgpu_container_gpu_processes",
            None,
            "Processes of the container that hold a GPU, by verdict",
            by_container
                .iter()
                .filter(|((_, verdict), _)| all || *verdict != Verdict::Managed)
                .map(|((owner, verdict), count)| {
                    let mut labels = self.labels(owner);
                    labels.push(("verdict", Cow::Borrowed(verdict.as_str())));
                    (labels, *count)
                }),
        )?;
        gauge(
            out,
            "vgpu_node_unaccounted",
            Some(Unit::Bytes),
            "GPU memory held by processes outside the containers that vgpu manages, in bytes",
            self.unmanaged_bytes
                .iter()
                .filter(|(_, bytes)| all || **bytes > 0)
                .map(|((uuid, owner), bytes)| {
                    let mut labels = self.labels(owner);
                    labels.push(("device_uuid", Cow::Borrowed(uuid.as_str())));
                    (labels, *bytes)
                }),
        )?;
        let one = |value: u64| [(vec![("node", Cow::Borrowed(self.node.as_str()))], value)];
        gauge(
            out,
            "vgpu_monitor_attested_processes",
            None,
            "Processes on the node that attestation tracks",
            one(self.processes).into_iter().filter(|_| all),
        )?;
        gauge(
            out,
            "vgpu_monitor_unreadable_processes",
            None,
            "Processes that attestation is not permitted to inspect",
            one(self.unreadable)
                .into_iter()
                .filter(|(_, count)| all || *count > 0),
        )?;
        if !all {
            return Ok(());
        }
        let mut family = out.encode_descriptor(
            "vgpu_monitor_attest_turns",
            "Rounds of attestation since the agent started",
            None,
            MetricType::Counter,
        )?;
        for (labels, value) in one(self.turns) {
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
        }
        Ok(())
    }

    fn labels<'a>(&'a self, owner: &'a Owner) -> Labels<'a> {
        vec![
            ("node", Cow::Borrowed(self.node.as_str())),
            ("namespace", Cow::Borrowed(owner.namespace.as_str())),
            ("pod", Cow::Borrowed(owner.pod.as_str())),
            ("container", Cow::Borrowed(owner.container.as_str())),
        ]
    }
}
