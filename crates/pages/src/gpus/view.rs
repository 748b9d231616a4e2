//! The contents of each GPU page, as values that a template only has to print. Values in, values out: no clock, no I/O.

pub mod detail;
pub mod gpus;
pub mod meter;
pub mod namespaces;
pub mod overview;
pub mod pods;

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

use super::{GpuPod, GpuShare, Picture};
use crate::view::address::segment;

/// The addresses of pages and parts.
pub mod at {
    use super::segment;

    /// The list of GPUs.
    pub const GPUS: &str = "/page/gpus";
    /// The list of pods that hold GPUs.
    pub const PODS: &str = "/page/pods";
    /// The list of namespaces.
    pub const NAMESPACES: &str = "/page/namespaces";
    /// The list of pods that wait.
    pub const PENDING: &str = "/page/pending";

    /// The live part of the page at `path`.
    pub fn part(path: &str) -> String {
        path.replacen("/page/", "/page/part/", 1)
    }

    /// The page of a GPU.
    pub fn gpu(node: &str, id: &str) -> String {
        format!("{GPUS}/{}/{}", segment(node), segment(id))
    }

    /// The page of a pod.
    pub fn pod(namespace: &str, pod: &str) -> String {
        format!("{PODS}/{}/{}", segment(namespace), segment(pod))
    }

    /// The explanation why a pod waits.
    pub fn why(namespace: &str, pod: &str) -> String {
        format!("/page/part/why/{}/{}", segment(namespace), segment(pod))
    }

    /// The pods of a namespace.
    pub fn pods_of(namespace: &str) -> String {
        format!("{PODS}?q={}", segment(namespace))
    }
}

/// Thousandths of a GPU in words: `1 GPU`, `2.5 GPUs`, `0.35 GPUs`.
pub fn compute(thousandths: u64) -> String {
    let hundredths = (thousandths + 5) / 10;
    let number = crate::text::milli(i128::from(hundredths) * 10);
    let end = if hundredths == 100 { "" } else { "s" };
    format!("{number} GPU{end}")
}

/// The index of a [`Picture`]: the texts that lists look up, by the position of each GPU. It is computed once for each
/// picture, so that a list of thousands copies nothing.
#[derive(Default)]
pub struct Index(OnceLock<Vec<Indexed>>);

/// A GPU in the form that lists search.
pub(crate) struct Indexed {
    /// Every text that a search finds it by, in lower case, one on each line.
    pub(crate) text: String,
    /// The pods on it, each as the positions of the holder and of its share.
    pods: Vec<(usize, usize)>,
    /// The sums of what these pods hold and use.
    pub(crate) sum: Sum,
}

impl Clone for Index {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// The index follows from the rest of the picture, so two indices are always equal.
impl PartialEq for Index {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").finish_non_exhaustive()
    }
}

impl Picture {
    /// Computes the index now, so that the first list does not wait for it.
    pub fn prepare(&self) {
        self.indexed();
    }

    /// The index of each GPU.
    pub(crate) fn indexed(&self) -> &[Indexed] {
        self.index.0.get_or_init(|| {
            let mut positions = HashMap::with_capacity(self.gpus.len());
            for (at, gpu) in self.gpus.iter().enumerate() {
                positions.insert((&*gpu.node, &*gpu.id), at);
            }
            let mut pods = vec![Vec::new(); self.gpus.len()];
            for (holder_at, holder) in self.holders.iter().enumerate() {
                for (share_at, share) in holder.shares.iter().enumerate() {
                    let at = positions.get(&(&*holder.node, &*share.gpu));
                    if let Some(on) = at.and_then(|at| pods.get_mut(*at)) {
                        on.push((holder_at, share_at));
                    }
                }
            }
            let gpus = self.gpus.iter().zip(pods);
            gpus.map(|(gpu, pods)| {
                let mut text = format!("{}\n{}\n{}", gpu.node, gpu.id, gpu.model);
                for (holder, _) in self.at(&pods) {
                    text.push('\n');
                    text.push_str(&holder.namespace);
                    text.push('\n');
                    text.push_str(&holder.pod);
                }
                Indexed {
                    text: text.to_lowercase(),
                    sum: Sum::of(self.at(&pods).map(|(_, share)| share)),
                    pods,
                }
            })
            .collect()
        })
    }

    /// The pods on a GPU.
    pub(crate) fn pods_on<'a>(
        &'a self,
        gpu: &'a Indexed,
    ) -> impl ExactSizeIterator<Item = (&'a GpuPod, &'a GpuShare)> {
        let pods: Vec<(&GpuPod, &GpuShare)> = self.at(&gpu.pods).collect();
        pods.into_iter()
    }

    fn at<'a>(
        &'a self,
        pods: &'a [(usize, usize)],
    ) -> impl Iterator<Item = (&'a GpuPod, &'a GpuShare)> {
        pods.iter().filter_map(|(holder, share)| {
            let holder = self.holders.get(*holder)?;
            Some((holder, holder.shares.get(*share)?))
        })
    }
}

/// The sums of several shares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// Memory that they hold.
    pub memory: u64,
    /// Memory that they hold and whose use is measured.
    pub measured: u64,
    /// Memory that they use now.
    pub used: u64,
    /// The sum of the most memory that each one used.
    pub most: u64,
    /// Memory that they hold and have not used at any moment that the history covers.
    pub unused: u64,
    /// Compute that they hold.
    pub compute: u64,
    /// Compute that they hold and whose use is measured.
    pub compute_measured: u64,
    /// Compute that they use now, including use without a compute share.
    pub compute_used: u64,
    /// Compute that they hold and do not use on average.
    pub compute_unused: u64,
    /// The number of shares.
    pub shares: usize,
    /// The number of measured shares.
    pub known: usize,
}

impl Sum {
    /// The sum over these shares.
    pub fn of<'a>(shares: impl IntoIterator<Item = &'a GpuShare>) -> Self {
        let mut sum = Self::default();
        for share in shares {
            sum.add(share);
        }
        sum
    }

    fn add(&mut self, share: &GpuShare) {
        let held = share.compute.map_or(0, u64::from);
        self.shares += 1;
        self.memory += share.memory_bytes;
        self.compute += held;
        let Some(usage) = share.usage else { return };
        let most = usage.most_bytes.max(usage.memory_bytes);
        self.known += 1;
        self.measured += share.memory_bytes;
        self.used += usage.memory_bytes;
        self.most += most;
        self.unused += share.memory_bytes.saturating_sub(most);
        self.compute_used += usage.compute.map_or(0, u64::from);
        if let Some(mean) = usage.mean_compute {
            self.compute_measured += held;
            self.compute_unused += held.saturating_sub(mean.into());
        }
    }

    /// Whether the use of any share is measured.
    pub fn is_measured(&self) -> bool {
        self.known > 0
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::{Gpu, GpuPendingPod, Usage};
    use super::*;

    pub(crate) const GIB: u64 = 1 << 30;

    pub(crate) fn gpu(node: &str, index: u32) -> Gpu {
        Gpu {
            node: node.into(),
            id: format!("{node}-{index}").into(),
            index,
            model: "NVIDIA A100-PCIE-40GB".into(),
            memory_bytes: 40 * GIB,
            given_bytes: 0,
            used_bytes: None,
            given_compute: Some(0),
            busy_compute: None,
            slots: 10,
            slots_taken: 0,
            healthy: true,
            cordoned: false,
        }
    }

    pub(crate) fn share(gpu: &str, held: u64, used: Option<(u64, u64)>) -> GpuShare {
        GpuShare {
            gpu: gpu.into(),
            memory_bytes: held * GIB,
            compute: Some(500),
            usage: used.map(|(now, most)| Usage {
                memory_bytes: now * GIB,
                most_bytes: most * GIB,
                compute: Some(200),
                mean_compute: Some(100),
            }),
        }
    }

    pub(crate) fn holder(namespace: &str, pod: &str, node: &str, shares: Vec<GpuShare>) -> GpuPod {
        GpuPod {
            namespace: namespace.into(),
            pod: pod.into(),
            node: node.into(),
            bound: true,
            shares,
            ooms: 0,
        }
    }

    /// Two nodes of two GPUs; a measured pod, a pod that is not measured, and a pending pod.
    pub(crate) fn picture() -> Picture {
        let mut gpus = vec![gpu("n1", 0), gpu("n1", 1), gpu("n2", 0), gpu("n2", 1)];
        gpus[0].given_bytes = 30 * GIB;
        gpus[0].slots_taken = 2;
        gpus[3].healthy = false;
        Picture {
            version: 7,
            synced: true,
            gpus,
            holders: vec![
                GpuPod {
                    ooms: 3,
                    ..holder(
                        "team-a",
                        "train",
                        "n1",
                        vec![share("n1-0", 20, Some((5, 8)))],
                    )
                },
                holder("team-b", "serve", "n1", vec![share("n1-0", 10, None)]),
            ],
            pending: vec![GpuPendingPod {
                namespace: "team-b".into(),
                pod: "large".into(),
                reason: "CardInsufficientMemory".into(),
            }],
            step_seconds: 30,
            steps: 240,
            ..Picture::default()
        }
    }

    #[test]
    fn memory_never_used_counts_as_unused() {
        let sum = Sum::of(picture().holders.iter().flat_map(|holder| &holder.shares));

        assert_eq!((sum.memory, sum.measured), (30 * GIB, 20 * GIB));
        assert_eq!((sum.used, sum.unused), (5 * GIB, 12 * GIB));
        assert_eq!((sum.compute, sum.compute_unused), (1000, 400));
        assert_eq!((sum.shares, sum.known), (2, 1));
    }

    #[test]
    fn compute_is_said_in_gpus() {
        let said = [0, 4, 350, 999, 1000, 2500].map(compute);
        assert_eq!(
            said,
            [
                "0 GPUs",
                "0 GPUs",
                "0.35 GPUs",
                "1 GPU",
                "1 GPU",
                "2.5 GPUs"
            ]
        );
    }
}
