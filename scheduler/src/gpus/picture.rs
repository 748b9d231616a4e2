//! The picture for the GPU page: the ledger's reservations with the remembered use. Values in, values out.

use std::collections::HashMap;
use std::sync::Arc;

use pages::gpus::{Gpu, GpuPendingPod, GpuPod, GpuShare, Index, Monitors, Picture, Total};
use placement::{Cluster, Reservation};

use super::history::{History, Now, PodOnGpu, STEPS};
use super::told::{AgentReport, Use};

/// The ledger's part of the picture.
#[derive(Debug, Clone, Default)]
pub(crate) struct LedgerView {
    pub(crate) cluster: Cluster,
    /// The uids of pods that hold devices and are not bound yet.
    pub(crate) unbound: Vec<Arc<str>>,
    /// The namespace, name and reason of each pending pod.
    pub(crate) waiting: Vec<(String, String, &'static str)>,
    pub(crate) synced: bool,
    /// Why another replica answers kube-scheduler; empty where this one does.
    pub(crate) standby: String,
}

/// The node agents' reports in the last round.
#[derive(Debug, Default)]
pub(crate) struct Latest {
    /// By identifier: memory in use, and busy thousandths.
    gpus: HashMap<String, (Option<u64>, Option<u32>)>,
    /// By namespace and pod.
    uses: HashMap<(String, String), Vec<Use>>,
    ooms: HashMap<(String, String), Vec<(super::told::Container, u64)>>,
}

impl Latest {
    /// All reports of a round. If two agents report the same container, the later report counts.
    pub(crate) fn of(told: impl IntoIterator<Item = AgentReport>) -> Self {
        let mut latest = Self::default();
        for told in told {
            for (device, used, busy) in told.gpus {
                latest.gpus.insert(device, (used, busy));
            }
            for used in told.uses {
                let pod = (used.of.namespace.clone(), used.of.pod.clone());
                let uses = latest.uses.entry(pod).or_default();
                uses.retain(|had| had.of != used.of || had.device != used.device);
                uses.push(used);
            }
            for (of, count) in told.ooms {
                let pod = (of.namespace.clone(), of.pod.clone());
                let ooms = latest.ooms.entry(pod).or_default();
                ooms.retain(|(had, _)| *had != of);
                ooms.push((of, count));
            }
        }
        latest
    }
}

fn key(reservation: &Reservation, gpu: &str) -> PodOnGpu {
    PodOnGpu {
        namespace: reservation.pod.namespace.as_str().into(),
        pod: reservation.pod.name.as_str().into(),
        gpu: gpu.into(),
    }
}

/// A pod's use of each GPU that it holds. A device with different names in the container and in the ledger (a MIG
/// instance) is matched with the remaining GPUs, in order.
fn by_gpu(held: &[&str], uses: &[Use]) -> Vec<Option<Now>> {
    let mut now: Vec<Option<Now>> = vec![None; held.len()];
    let mut named: Vec<(&str, usize)> = Vec::new();
    for used in uses {
        let exact = held.iter().position(|gpu| *gpu == used.device);
        let before = named.iter().find(|(device, _)| *device == used.device);
        let at = exact.or(before.map(|(_, at)| *at)).or_else(|| {
            held.iter().enumerate().position(|(at, gpu)| {
                let exactly = uses.iter().any(|other| other.device == *gpu);
                !exactly && !named.iter().any(|(_, taken)| *taken == at)
            })
        });
        let Some(at) = at else { continue };
        if exact.is_none() && before.is_none() {
            named.push((&used.device, at));
        }
        if let Some(place) = now.get_mut(at) {
            let sum = place.get_or_insert_default();
            sum.memory_bytes = sum.memory_bytes.saturating_add(used.memory_bytes);
            if let Some(compute) = used.compute {
                sum.compute = Some(sum.compute.unwrap_or(0).saturating_add(compute));
            }
        }
    }
    now
}

/// Records a step: the use of every pod that holds GPUs.
pub(crate) fn record(history: &mut History, seen: &LedgerView, latest: &Latest) {
    history.begin();
    let mut used_bytes = None;
    let mut used_compute = None;
    for reservation in seen.cluster.reservations() {
        let pod = (
            reservation.pod.namespace.clone(),
            reservation.pod.name.clone(),
        );
        let uid: Arc<str> = reservation.pod.uid.as_str().into();
        let held: Vec<&str> = reservation.devices().map(|(gpu, _)| gpu).collect();
        let uses = latest.uses.get(&pod).map_or(&[][..], Vec::as_slice);
        let mut ooms = 0;
        if let Some(first) = held.first() {
            let fresh = history.is_fresh(&key(reservation, first), &uid);
            for (of, count) in latest.ooms.get(&pod).into_iter().flatten() {
                ooms += history.refused(of, *count, fresh);
            }
        }
        for (gpu, now) in held.iter().zip(by_gpu(&held, uses)) {
            if let Some(now) = now {
                *used_bytes.get_or_insert(0) += now.memory_bytes;
                if let Some(compute) = now.compute {
                    *used_compute.get_or_insert(0) += u64::from(compute);
                }
            }
            // A refusal belongs to the container and not to one GPU, so it is recorded with the first GPU.
            history.record(&key(reservation, gpu), &uid, now, std::mem::take(&mut ooms));
        }
    }
    let sums = seen.cluster.nodes().flat_map(|node| {
        let devices: Vec<_> = node.devices().collect();
        devices.into_iter().map(|view| {
            let (device, used) = (view.device(), view.used());
            Total {
                memory_bytes: device.memory_bytes,
                given_bytes: used.memory_bytes,
                compute: if device.cores > 0 { 1000 } else { 0 },
                given_compute: compute(used.cores, device.cores).map_or(0, u64::from),
                ..Total::default()
            }
        })
    });
    let total = sums.fold(Total::default(), |sum, of| Total {
        memory_bytes: sum.memory_bytes + of.memory_bytes,
        given_bytes: sum.given_bytes + of.given_bytes,
        compute: sum.compute + of.compute,
        given_compute: sum.given_compute + of.given_compute,
        ..sum
    });
    history.total(Total {
        used_bytes,
        used_compute,
        ..total
    });
}

/// Compute in thousandths of a GPU; `None` if the vendor counts none.
fn compute(cores: u32, of: u32) -> Option<u32> {
    if of == 0 {
        return None;
    }
    let thousandths = (u64::from(cores) * 1000).div_ceil(of.into());
    Some(u32::try_from(thousandths).unwrap_or(u32::MAX))
}

/// The picture, without its version.
pub(crate) fn picture(
    seen: &LedgerView,
    history: &History,
    latest: &Latest,
    monitors: &Monitors,
    step_seconds: u32,
) -> Picture {
    let gpus = gpus(&seen.cluster, latest);
    let mut holders: Vec<GpuPod> = seen
        .cluster
        .reservations()
        .map(|reservation| holder(seen, history, reservation))
        .filter(|holder| !holder.shares.is_empty())
        .collect();
    holders.sort_by(|a, b| (&a.namespace, &a.pod).cmp(&(&b.namespace, &b.pod)));
    let mut pending: Vec<GpuPendingPod> = seen
        .waiting
        .iter()
        .map(|(namespace, pod, reason)| GpuPendingPod {
            namespace: namespace.as_str().into(),
            pod: pod.as_str().into(),
            reason: (*reason).to_owned(),
        })
        .collect();
    pending.sort_by(|a, b| (&a.namespace, &a.pod).cmp(&(&b.namespace, &b.pod)));
    let mut notes = Vec::new();
    if !seen.standby.is_empty() {
        notes.push(format!(
            "Another replica answers kube-scheduler and knows which pods wait: {}.",
            seen.standby
        ));
    }
    if history.left_out() > 0 {
        notes.push(format!(
            "There are more pods on GPUs than are followed: the use of {} of them is not remembered.",
            history.left_out()
        ));
    }
    Picture {
        version: 0,
        synced: seen.synced,
        gpus,
        holders,
        pending,
        totals: history.totals(),
        step_seconds,
        steps: u32::try_from(STEPS).unwrap_or(u32::MAX),
        monitors: monitors.clone(),
        notes,
        index: Index::default(),
    }
}

fn gpus(cluster: &Cluster, latest: &Latest) -> Vec<Gpu> {
    let mut gpus = Vec::new();
    for node in cluster.nodes() {
        let name: Arc<str> = node.name().into();
        for view in node.devices() {
            let (device, used) = (view.device(), view.used());
            let told = latest.gpus.get(view.id()).copied().unwrap_or_default();
            gpus.push(Gpu {
                node: Arc::clone(&name),
                id: view.id().into(),
                index: device.index,
                model: device.model.as_str().into(),
                memory_bytes: device.memory_bytes,
                given_bytes: used.memory_bytes,
                used_bytes: told.0,
                given_compute: compute(used.cores, device.cores),
                busy_compute: told.1,
                slots: device.slots,
                slots_taken: used.slots,
                healthy: device.healthy,
                cordoned: device.cordoned,
            });
        }
    }
    gpus
}

fn holder(seen: &LedgerView, history: &History, reservation: &Reservation) -> GpuPod {
    let node = seen.cluster.node(&reservation.placement.node);
    let uid = reservation.pod.uid.as_str();
    let mut ooms = 0_u32;
    let mut shares: Vec<(u32, GpuShare)> = reservation
        .devices()
        .map(|(gpu, load)| {
            let view = node.as_ref().and_then(|node| node.device(gpu));
            let (usage, refused) = history.usage(&key(reservation, gpu), uid);
            ooms = ooms.saturating_add(refused);
            let share = GpuShare {
                gpu: gpu.into(),
                memory_bytes: load.memory_bytes,
                compute: match (load.cores, &view) {
                    (1.., Some(view)) => compute(load.cores, view.device().cores),
                    _ => None,
                },
                usage,
            };
            (view.map_or(u32::MAX, |view| view.device().index), share)
        })
        .collect();
    shares.sort_by_key(|(index, _)| *index);
    GpuPod {
        namespace: reservation.pod.namespace.as_str().into(),
        pod: reservation.pod.name.as_str().into(),
        node: Arc::clone(&reservation.placement.node),
        bound: !seen.unbound.iter().any(|other| **other == *uid),
        shares: shares.into_iter().map(|(_, share)| share).collect(),
        ooms,
    }
}

#[cfg(test)]
mod tests {
    use placement::{Device, Grant, Granted, Kind, Node, Placement, Pod, Vendor};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn device(id: &str, index: u32) -> Device {
        Device {
            id: id.into(),
            index,
            vendor: Vendor::new("NVIDIA"),
            model: "NVIDIA A100".into(),
            slots: 10,
            memory_bytes: 40 * GIB,
            cores: 100,
            numa: 0,
            group: None,
            healthy: true,
            cordoned: false,
            given_out: false,
            mode: "hami-core".into(),
            mig_profiles: Vec::new(),
            tags: Vec::new(),
            gflops: [0; 2],
            module: None,
            core_step: 1,
            appraisal: None,
        }
    }

    fn seen() -> LedgerView {
        let mut cluster = Cluster::new();
        let node = Node {
            name: "n1".into(),
            devices: vec![device("g0", 0), device("g1", 1)],
            pairs: Vec::new(),
        };
        cluster.set_node(node).unwrap();
        let grant = |gpu: &str| Grant::new(Vendor::new("NVIDIA"), gpu, 10 * GIB, 50);
        let granted = Granted {
            kind: Kind::App,
            grants: vec![grant("g1"), grant("g0")],
        };
        let placement = Placement {
            node: "n1".into(),
            containers: vec![granted],
        };
        cluster.reserve(Pod::named("ns", "train"), placement);
        LedgerView {
            cluster,
            waiting: vec![("ns".into(), "large".into(), "CardInsufficientMemory")],
            synced: true,
            ..LedgerView::default()
        }
    }

    fn told(devices: &[(&str, u64)], ooms: u64) -> AgentReport {
        let of = super::super::told::Container {
            namespace: "ns".into(),
            pod: "train".into(),
            container: "main".into(),
        };
        let used = |(index, (device, gib)): (usize, &(&str, u64))| Use {
            of: of.clone(),
            device: (*device).to_owned(),
            index: u32::try_from(index).unwrap(),
            memory_bytes: gib * GIB,
            compute: Some(250),
        };
        AgentReport {
            uses: devices.iter().enumerate().map(used).collect(),
            ooms: vec![(of.clone(), ooms)],
            gpus: vec![("g0".into(), Some(5 * GIB), Some(300))],
        }
    }

    fn shown(history: &History, latest: &Latest) -> Picture {
        picture(&seen(), history, latest, &Monitors::default(), 30)
    }

    #[test]
    fn held_and_used_amounts_are_shown_together() {
        let mut history = History::default();
        let latest = Latest::of([told(&[("g0", 3), ("g1", 4)], 0)]);
        record(&mut history, &seen(), &latest);

        let picture = shown(&history, &latest);

        let pod = &picture.holders[0];
        assert!(pod.bound);
        let used: Vec<_> = pod
            .shares
            .iter()
            .map(|share| (&*share.gpu, share.usage.unwrap().memory_bytes / GIB))
            .collect();
        assert_eq!(used, [("g0", 3), ("g1", 4)]);
        assert_eq!(pod.shares[0].compute, Some(500));
        assert_eq!(picture.gpus[0].used_bytes, Some(5 * GIB));
        assert_eq!(picture.gpus[0].given_compute, Some(500));
        assert_eq!(picture.totals[0].used_bytes, Some(7 * GIB));
        assert_eq!(picture.totals[0].given_bytes, 20 * GIB);
        assert_eq!(&*picture.pending[0].pod, "large");
    }

    #[test]
    fn an_instance_is_the_gpu_that_is_left() {
        let uses = told(&[("MIG-1", 1), ("g1", 2), ("MIG-1", 3)], 0).uses;

        let now = by_gpu(&["g0", "g1"], &uses);

        assert_eq!(now[0].unwrap().memory_bytes, 4 * GIB);
        assert_eq!(now[1].unwrap().memory_bytes, 2 * GIB);
        assert_eq!(
            by_gpu(&["g0"], &told(&[("x", 1), ("y", 2)], 0).uses)[0]
                .unwrap()
                .memory_bytes,
            GIB
        );
    }

    #[test]
    fn refusals_are_counted_once_for_a_pod() {
        let mut history = History::default();
        let first = Latest::of([told(&[("g0", 1), ("g1", 1)], 5)]);
        record(&mut history, &seen(), &first);
        let then = Latest::of([told(&[("g0", 1), ("g1", 1)], 7)]);
        record(&mut history, &seen(), &then);

        assert_eq!(shown(&history, &then).holders[0].ooms, 2);
    }

    #[test]
    fn without_monitors_what_is_held_is_shown() {
        let mut history = History::default();
        let latest = Latest::default();
        record(&mut history, &seen(), &latest);

        let picture = shown(&history, &latest);

        assert_eq!(picture.holders[0].shares[0].usage, None);
        assert_eq!(picture.totals[0].used_bytes, None);
    }

    #[test]
    fn a_container_that_two_monitors_tell_of_counts_once() {
        let twice = [told(&[("g0", 3)], 1), told(&[("g0", 3)], 1)];

        let latest = Latest::of(twice);

        assert_eq!(latest.uses.values().map(Vec::len).sum::<usize>(), 1);
    }
}
