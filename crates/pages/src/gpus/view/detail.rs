//! The page of one pod, and the page of one GPU: the shares that pods hold, and their use over time.

use super::super::{GpuPod, GpuShare, OfGpu, Picture};
use super::gpus::{state, title};
use super::meter::{self, Meter};
use super::pods::gpu_of;
use super::{Sum, at};
use crate::text;
use crate::view::line::{Lines, Values, lines};

/// A pod's page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuPodDetail {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its node; empty for a pod that holds no GPU any more.
    pub node: String,
    /// Whether its GPUs are only reserved so far.
    pub reserved: bool,
    /// How often it was refused memory.
    pub ooms: u32,
    /// Its share of each GPU.
    pub gpus: Vec<OfOne>,
    /// The address of the live part.
    pub part: String,
}

/// One pod's share of one GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OfOne {
    /// The GPU on a pod's page, the pod on a GPU's.
    pub title: String,
    /// The address of its page; empty if it has none.
    pub href: String,
    /// Its identifier on a pod's page.
    pub id: String,
    /// Memory that the pod holds and uses.
    pub memory: Meter,
    /// The most memory that it used; empty if that is not measured.
    pub most: String,
    /// Compute that the pod holds and uses.
    pub compute: Option<Meter>,
    /// Its average compute; empty if that is not measured.
    pub mean: String,
    /// Memory and compute over time.
    pub charts: Vec<Lines>,
}

/// A GPU's page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuDetail {
    /// Its position and model.
    pub title: String,
    /// Its identifier.
    pub id: String,
    /// Its node.
    pub node: String,
    /// An unusual state; empty for none.
    pub state: &'static str,
    /// Its memory.
    pub memory: Meter,
    /// Its compute; `None` if its vendor counts none.
    pub compute: Option<Meter>,
    /// Facts about it, as pairs of name and value.
    pub facts: Vec<(&'static str, String)>,
    /// The pods on it.
    pub pods: Vec<OfOne>,
    /// The address of the live part.
    pub part: String,
}

/// A pod's page; none for a pod that holds nothing and has no history.
pub fn pod_detail(
    picture: &Picture,
    namespace: &str,
    name: &str,
    history: &[OfGpu],
) -> Option<GpuPodDetail> {
    let holder = holder(picture, namespace, name);
    if holder.is_none() && history.is_empty() {
        return None;
    }
    let mut gpus: Vec<OfOne> = holder
        .into_iter()
        .flat_map(|holder| holder.shares.iter().map(move |share| (holder, share)))
        .map(|(holder, share)| {
            let gpu = gpu_of(picture, &holder.node, &share.gpu);
            let past = history.iter().find(|past| *past.gpu == *share.gpu);
            OfOne {
                title: gpu.map_or_else(|| share.gpu.to_string(), title),
                href: gpu.map_or_else(String::new, |gpu| at::gpu(&gpu.node, &gpu.id)),
                id: share.gpu.to_string(),
                ..of_one(picture, share, past)
            }
        })
        .collect();
    if holder.is_none() {
        // The pod has ended, but its history is still remembered.
        gpus.extend(history.iter().map(|past| OfOne {
            title: past.gpu.clone(),
            id: past.gpu.clone(),
            charts: charts(picture, None, past),
            ..OfOne::default()
        }));
    }
    Some(GpuPodDetail {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        node: holder.map_or_else(String::new, |holder| holder.node.to_string()),
        reserved: holder.is_some_and(|holder| !holder.bound),
        ooms: holder.map_or(0, |holder| holder.ooms),
        gpus,
        part: at::part(&at::pod(namespace, name)),
    })
}

fn holder<'a>(picture: &'a Picture, namespace: &str, name: &str) -> Option<&'a GpuPod> {
    let key = |holder: &GpuPod| (&*holder.namespace, &*holder.pod).cmp(&(namespace, name));
    let at = picture.holders.binary_search_by(key).ok()?;
    picture.holders.get(at)
}

/// A GPU's page; none for a GPU that does not exist. `history` gives a pod's use of each of its GPUs.
pub fn gpu_detail(
    picture: &Picture,
    node: &str,
    id: &str,
    history: impl Fn(&GpuPod) -> Vec<OfGpu>,
) -> Option<GpuDetail> {
    let mut gpus = picture.gpus.iter().zip(picture.indexed());
    let (gpu, indexed) = gpus.find(|(gpu, _)| *gpu.node == *node && *gpu.id == *id)?;
    let held = indexed.sum;
    let pods = picture.pods_on(indexed).map(|(holder, share)| {
        let past = history(holder);
        let past = past.iter().find(|past| past.gpu == id);
        OfOne {
            title: format!("{}/{}", holder.namespace, holder.pod),
            href: at::pod(&holder.namespace, &holder.pod),
            ..of_one(picture, share, past)
        }
    });
    let mut facts = vec![(
        "Containers that share it",
        format!("{} of at most {}", gpu.slots_taken, gpu.slots),
    )];
    if let Some(used) = gpu.used_bytes {
        facts.push(("Memory in use, by its driver", text::bytes(used)));
    }
    if let Some(busy) = gpu.busy_compute {
        facts.push(("Busy, by its driver", format!("{} %", busy.div_ceil(10))));
    }
    Some(GpuDetail {
        title: title(gpu),
        id: id.to_owned(),
        node: node.to_owned(),
        state: state(gpu),
        memory: meter::memory(gpu.memory_bytes, &held),
        compute: gpu.given_compute.map(|_| meter::compute_of_one(&held)),
        facts,
        pods: pods.collect(),
        part: at::part(&at::gpu(node, id)),
    })
}

fn of_one(picture: &Picture, share: &GpuShare, past: Option<&OfGpu>) -> OfOne {
    let sum = Sum::of([share]);
    let mean = share.usage.and_then(|usage| usage.mean_compute);
    OfOne {
        memory: meter::memory(0, &sum),
        most: if sum.is_measured() {
            format!("{} at most", text::bytes(sum.most))
        } else {
            String::new()
        },
        compute: (share.compute.is_some() || mean.is_some()).then(|| meter::compute_of_one(&sum)),
        mean: mean.map_or_else(String::new, |mean| {
            format!("{} % on average", (mean + 5) / 10)
        }),
        charts: past.map_or_else(Vec::new, |past| charts(picture, Some(share), past)),
        ..OfOne::default()
    }
}

fn charts(picture: &Picture, share: Option<&GpuShare>, past: &OfGpu) -> Vec<Lines> {
    let of = |class, values| Values {
        name: "used",
        class,
        values,
    };
    let points = || past.points.iter();
    let memory = points().map(|point| point.map(|point| point.memory_bytes));
    let busy: Vec<Option<u64>> = points()
        .map(|point| point.and_then(|point| point.compute).map(u64::from))
        .collect();
    let marks: Vec<usize> = points()
        .enumerate()
        .filter(|(_, point)| point.is_some_and(|point| point.ooms > 0))
        .map(|(at, _)| at)
        .collect();
    let step = picture.step_seconds;
    let mut charts = vec![lines(
        "Memory over time",
        step,
        share.map_or(0, |share| share.memory_bytes),
        &[of("line-used", memory.collect())],
        &marks,
        text::bytes,
    )];
    if busy.iter().any(Option::is_some) {
        let top = share.and_then(|share| share.compute).unwrap_or(1000);
        charts.push(lines(
            "Compute over time",
            step,
            top.into(),
            &[of("line-used", busy)],
            &[],
            |thousandths| format!("{} %", (thousandths + 5) / 10),
        ));
    }
    charts
}

#[cfg(test)]
mod tests {
    use super::super::super::Point;
    use super::super::tests::{GIB, picture};
    use super::*;

    fn past() -> Vec<OfGpu> {
        let point = Point {
            memory_bytes: 8 * GIB,
            compute: Some(300),
            ooms: 2,
        };
        vec![OfGpu {
            gpu: "n1-0".into(),
            points: vec![None, Some(point)],
        }]
    }

    #[test]
    fn a_pod_says_what_it_used_over_time() {
        let pod = pod_detail(&picture(), "team-a", "train", &past()).unwrap();
        let gpu = &pod.gpus[0];

        assert_eq!((&*pod.node, pod.ooms), ("n1", 3));
        assert_eq!(gpu.title, "GPU 0 · A100-PCIE-40GB");
        assert_eq!(gpu.charts.len(), 2);
        assert_eq!(gpu.charts[0].top, "20 GiB");
        assert_eq!(gpu.charts[0].marks, ["19"]);
        assert_eq!(gpu.mean, "10 % on average");
    }

    #[test]
    fn a_pod_that_has_ended_is_remembered() {
        let pod = pod_detail(&picture(), "team-a", "ended", &past()).unwrap();

        assert_eq!((&*pod.node, &*pod.gpus[0].title), ("", "n1-0"));
        assert_eq!(pod_detail(&picture(), "team-a", "never", &[]), None);
    }

    #[test]
    fn a_gpu_names_its_pods() {
        let gpu = gpu_detail(&picture(), "n1", "n1-0", |_| past()).unwrap();

        let names: Vec<&str> = gpu.pods.iter().map(|pod| &*pod.title).collect();
        assert_eq!(names, ["team-a/train", "team-b/serve"]);
        assert_eq!(gpu.facts[0].1, "2 of at most 10");
        assert_eq!(gpu_detail(&picture(), "n1", "n2-0", |_| past()), None);
    }
}
