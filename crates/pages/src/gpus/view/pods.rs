//! The list of pods that hold GPUs.

use super::super::{Gpu, GpuPod, OfGpu, Picture, Point};
use super::meter::{self, Meter};
use super::{Sum, at, compute};
use crate::text;
use crate::view::Slice;
use crate::view::line::{Lines, Values, lines};
use crate::view::query::{Filter, Query, Select, has_all};

/// The number of pods on a page of the list.
const ROWS: usize = 25;

/// The pods that match a query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuPodList {
    /// The form above them.
    pub filter: Filter,
    /// The rows of this page.
    pub rows: Vec<GpuPodRow>,
    /// The position of this page among all pages.
    pub slice: Slice,
    /// The address of this list.
    pub part: String,
    /// How many pods hold GPUs.
    pub all: usize,
}

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuPodRow {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The address of its page.
    pub href: String,
    /// Its node.
    pub node: String,
    /// Its GPUs.
    pub gpus: String,
    /// Whether its GPUs are only reserved so far.
    pub reserved: bool,
    /// Memory that it holds and uses.
    pub memory: Meter,
    /// The most memory that it used; empty if that is not measured.
    pub most: String,
    /// Compute that it holds and uses.
    pub compute: String,
    /// Its memory use over time; `None` if nothing was measured.
    pub chart: Option<Lines>,
    /// How often it was refused memory.
    pub ooms: u32,
}

/// The pods that match the query. `show`: `unused` (uses less than half of what it holds), `oom`, `unmeasured`. `sort`:
/// `held`, `used`, `unused`, `oom`; else by name. `history` gives a pod's use of each of its GPUs.
pub fn pod_list(
    picture: &Picture,
    query: &Query,
    history: impl Fn(&GpuPod) -> Vec<OfGpu>,
) -> GpuPodList {
    let words = query.words();
    let mut rows: Vec<(&GpuPod, Sum)> = picture
        .holders
        .iter()
        .filter(|holder| has_all(&words, &[&holder.namespace, &holder.pod, &holder.node]))
        .map(|holder| (holder, Sum::of(&holder.shares)))
        .filter(|(holder, sum)| match query.show.as_str() {
            "unused" => sum.is_measured() && sum.unused > sum.measured / 2,
            "oom" => holder.ooms > 0,
            "unmeasured" => !sum.is_measured(),
            _ => true,
        })
        .collect();
    match query.sort.as_str() {
        "held" => rows.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.memory)),
        "used" => rows.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.used)),
        "unused" => rows.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.unused)),
        "oom" => rows.sort_by_key(|(holder, _)| std::cmp::Reverse(holder.ooms)),
        _ => {}
    }
    let slice = query.slice(at::PODS, rows.len(), ROWS);
    let shown = rows.iter().skip(slice.skipped()).take(slice.len());
    GpuPodList {
        rows: shown
            .map(|(holder, sum)| row(picture, holder, sum, &history(holder)))
            .collect(),
        part: query.at(&at::part(at::PODS), slice.page),
        slice,
        all: picture.holders.len(),
        filter: Filter {
            label: "Pods",
            path: at::PODS.to_owned(),
            part: at::part(at::PODS),
            target: "#pods",
            text: query.text.clone(),
            placeholder: "name, namespace or node",
            selects: vec![
                Select::of(
                    "Show",
                    "show",
                    &query.show,
                    &[
                        ("", "all pods"),
                        ("unused", "never used half of its memory"),
                        ("oom", "refused memory lately"),
                        ("unmeasured", "not measured"),
                    ],
                ),
                Select::of(
                    "Order",
                    "sort",
                    &query.sort,
                    &[
                        ("", "by name"),
                        ("held", "most memory held first"),
                        ("used", "most memory used first"),
                        ("unused", "most never used first"),
                        ("oom", "most refusals first"),
                    ],
                ),
            ],
        },
    }
}

fn row(picture: &Picture, holder: &GpuPod, sum: &Sum, history: &[OfGpu]) -> GpuPodRow {
    GpuPodRow {
        namespace: holder.namespace.to_string(),
        name: holder.pod.to_string(),
        href: at::pod(&holder.namespace, &holder.pod),
        node: holder.node.to_string(),
        gpus: which(picture, holder),
        reserved: !holder.bound,
        memory: meter::memory(0, sum),
        most: if sum.is_measured() {
            format!("{} at most", text::bytes(sum.most))
        } else {
            String::new()
        },
        compute: compute_words(sum),
        chart: sum
            .is_measured()
            .then(|| small_chart(picture, sum.memory, history)),
        ooms: holder.ooms,
    }
}

fn compute_words(sum: &Sum) -> String {
    let held = if sum.compute == 0 {
        "no share of its own".to_owned()
    } else {
        format!("{} held", compute(sum.compute))
    };
    if sum.is_measured() {
        format!("{held}, {} used", compute(sum.compute_used))
    } else {
        held
    }
}

/// The GPU of this identifier on a node.
pub(super) fn gpu_of<'a>(picture: &'a Picture, node: &str, id: &str) -> Option<&'a Gpu> {
    // GPUs are ordered by node.
    let from = picture.gpus.partition_point(|gpu| &*gpu.node < node);
    let on = picture.gpus.iter().skip(from);
    on.take_while(|gpu| &*gpu.node == node)
        .find(|gpu| &*gpu.id == id)
}

/// `GPU 0` or `GPUs 0, 1, 2`.
fn which(picture: &Picture, holder: &GpuPod) -> String {
    let index = |share: &super::GpuShare| {
        gpu_of(picture, &holder.node, &share.gpu)
            .map_or_else(|| share.gpu.to_string(), |gpu| gpu.index.to_string())
    };
    let indexes: Vec<String> = holder.shares.iter().map(index).collect();
    let end = if indexes.len() == 1 { "" } else { "s" };
    format!("GPU{end} {}", indexes.join(", "))
}

/// The memory that a pod used on all its GPUs together.
fn small_chart(picture: &Picture, held: u64, history: &[OfGpu]) -> Lines {
    let steps = history
        .iter()
        .map(|gpu| gpu.points.len())
        .max()
        .unwrap_or(0);
    let mut values = vec![None; steps];
    let mut marks = Vec::new();
    for gpu in history {
        let late = steps - gpu.points.len();
        for (at, point) in gpu.points.iter().enumerate() {
            let Some(point) = point else { continue };
            if let Some(value) = values.get_mut(late + at) {
                *value = Some(value.unwrap_or(0) + point.memory_bytes);
            }
            if refused(point) {
                marks.push(late + at);
            }
        }
    }
    let used = Values {
        name: "used",
        class: "line-used",
        values,
    };
    lines(
        "Memory",
        picture.step_seconds,
        held,
        &[used],
        &marks,
        text::bytes,
    )
}

fn refused(point: &Point) -> bool {
    point.ooms > 0
}

#[cfg(test)]
mod tests {
    use super::super::tests::{GIB, picture};
    use super::*;

    fn listed(show: &str, sort: &str) -> GpuPodList {
        let query = Query {
            show: show.into(),
            sort: sort.into(),
            ..Query::default()
        };
        let point = |memory: u64| {
            Some(Point {
                memory_bytes: memory * GIB,
                compute: None,
                ooms: 1,
            })
        };
        pod_list(&picture(), &query, |_| {
            vec![
                OfGpu {
                    gpu: "n1-0".into(),
                    points: vec![point(1), point(2)],
                },
                OfGpu {
                    gpu: "n1-1".into(),
                    points: vec![point(4)],
                },
            ]
        })
    }

    #[test]
    fn a_row_says_what_the_pod_holds_uses_and_used_at_most() {
        let list = listed("", "");
        let row = &list.rows[0];

        assert_eq!((&*row.name, &*row.gpus), ("train", "GPU 0"));
        assert_eq!(row.memory.spoken, "Memory: 20 GiB held, 5 GiB used");
        assert_eq!(row.most, "8 GiB at most");
        assert_eq!(row.compute, "0.5 GPUs held, 0.2 GPUs used");
        let chart = row.chart.as_ref().unwrap();
        assert_eq!(chart.lines[0].now, "6 GiB");
        assert_eq!(chart.marks, ["18", "19", "19"]);
    }

    #[test]
    fn a_pod_that_nothing_measures_has_no_chart() {
        let list = listed("unmeasured", "");

        assert_eq!(list.rows.len(), 1);
        assert_eq!(list.rows[0].chart, None);
        assert!(!list.rows[0].memory.measured);
        assert_eq!(list.all, 2);
    }

    #[test]
    fn choices_and_orders_hold() {
        let names = |list: GpuPodList| -> Vec<String> {
            list.rows.into_iter().map(|row| row.name).collect()
        };

        assert_eq!(names(listed("", "")), ["train", "serve"]);
        assert_eq!(names(listed("oom", "")), ["train"]);
        assert_eq!(names(listed("unused", "")), ["train"]);
        assert_eq!(names(listed("", "used")), ["train", "serve"]);
    }
}
