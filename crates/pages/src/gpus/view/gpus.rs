//! The list of GPUs.

use super::super::{Gpu, Picture};
use super::meter::{self, Meter};
use super::{Indexed, at};
use crate::text;
use crate::view::Slice;
use crate::view::query::{Filter, Query, Select};

/// The number of GPUs on a page of the list.
const ROWS: usize = 25;

/// The most pods that a list names for a GPU.
const PODS: usize = 3;

/// The GPUs that match a query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuList {
    /// The form above them.
    pub filter: Filter,
    /// The rows of this page.
    pub rows: Vec<GpuRow>,
    /// The position of this page among all pages.
    pub slice: Slice,
    /// The address of this list.
    pub part: String,
    /// The number of GPUs without the filter.
    pub all: usize,
}

/// A GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuRow {
    /// Its position on its node and its model.
    pub title: String,
    /// Its identifier.
    pub id: String,
    /// The address of its page.
    pub href: String,
    /// Its node.
    pub node: String,
    /// Its memory.
    pub memory: Meter,
    /// Its compute; `None` if its vendor counts none.
    pub compute: Option<Meter>,
    /// How many containers share it.
    pub slots: String,
    /// The first of the pods on it.
    pub pods: Vec<Link>,
    /// How many more pods there are.
    pub more: usize,
    /// An unusual state; empty for none.
    pub state: &'static str,
}

/// A link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Its text.
    pub text: String,
    /// Its address.
    pub href: String,
}

/// The position and model of a GPU.
pub fn title(gpu: &Gpu) -> String {
    format!("GPU {} · {}", gpu.index, text::model(&gpu.model))
}

/// A GPU's unusual state; empty for none.
pub fn state(gpu: &Gpu) -> &'static str {
    match (gpu.healthy, gpu.cordoned) {
        (false, _) => "sick",
        (true, true) => "cordoned",
        (true, false) => "",
    }
}

/// The GPUs that match the query. `show`: `held`, `free`, `unused` (held, and no pod on it uses memory), `out`
/// (unhealthy or cordoned). `sort`: `full` (most memory held first), `used`, `unused`; else by node.
pub fn gpu_list(picture: &Picture, query: &Query) -> GpuList {
    let words = query.words();
    let mut rows: Vec<(&Gpu, &Indexed)> = picture
        .gpus
        .iter()
        .zip(picture.indexed())
        .filter(|(gpu, indexed)| match query.show.as_str() {
            "held" => gpu.slots_taken > 0,
            "free" => gpu.slots_taken == 0 && state(gpu).is_empty(),
            "unused" => indexed.sum.is_measured() && indexed.sum.used == 0,
            "out" => !state(gpu).is_empty(),
            _ => true,
        })
        .filter(|(_, indexed)| {
            words
                .iter()
                .all(|word| indexed.text.contains(word.as_str()))
        })
        .collect();
    match query.sort.as_str() {
        "full" => rows.sort_by_key(|(gpu, _)| std::cmp::Reverse(percent(gpu, gpu.given_bytes))),
        "used" => rows.sort_by_key(|(gpu, one)| std::cmp::Reverse(percent(gpu, one.sum.used))),
        "unused" => rows.sort_by_key(|(_, one)| std::cmp::Reverse(one.sum.unused)),
        _ => {}
    }
    let slice = query.slice(at::GPUS, rows.len(), ROWS);
    let shown = rows.iter().skip(slice.skipped()).take(slice.len());
    GpuList {
        rows: shown.map(|(gpu, one)| row(picture, gpu, one)).collect(),
        part: query.at(&at::part(at::GPUS), slice.page),
        slice,
        all: picture.gpus.len(),
        filter: Filter {
            label: "GPUs",
            path: at::GPUS.to_owned(),
            part: at::part(at::GPUS),
            target: "#gpus",
            text: query.text.clone(),
            placeholder: "node, model, UUID, pod or namespace",
            selects: vec![
                Select::of(
                    "Show",
                    "show",
                    &query.show,
                    &[
                        ("", "all GPUs"),
                        ("held", "held by pods"),
                        ("unused", "held, and not used now"),
                        ("free", "held by no pod"),
                        ("out", "sick or cordoned"),
                    ],
                ),
                Select::of(
                    "Order",
                    "sort",
                    &query.sort,
                    &[
                        ("", "by node"),
                        ("full", "most held first"),
                        ("used", "most used first"),
                        ("unused", "most never used first"),
                    ],
                ),
            ],
        },
    }
}

fn percent(gpu: &Gpu, part: u64) -> u16 {
    text::percent(part.into(), gpu.memory_bytes.into())
}

fn row(picture: &Picture, gpu: &Gpu, indexed: &Indexed) -> GpuRow {
    let pods = picture.pods_on(indexed);
    let more = pods.len().saturating_sub(PODS);
    let link = |(holder, _): (&super::GpuPod, &super::GpuShare)| Link {
        text: format!("{}/{}", holder.namespace, holder.pod),
        href: at::pod(&holder.namespace, &holder.pod),
    };
    GpuRow {
        title: title(gpu),
        id: gpu.id.to_string(),
        href: at::gpu(&gpu.node, &gpu.id),
        node: gpu.node.to_string(),
        memory: meter::memory(gpu.memory_bytes, &indexed.sum),
        compute: (gpu.given_compute).map(|_| meter::compute_of_one(&indexed.sum)),
        slots: format!("{} of {}", gpu.slots_taken, gpu.slots),
        pods: pods.take(PODS).map(link).collect(),
        more,
        state: state(gpu),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::picture;
    use super::*;

    fn names(query: &Query) -> Vec<String> {
        let list = gpu_list(&picture(), query);
        list.rows.into_iter().map(|row| row.id).collect()
    }

    fn of(text: &str, show: &str, sort: &str) -> Query {
        Query {
            text: text.into(),
            show: show.into(),
            sort: sort.into(),
            page: 1,
        }
    }

    #[test]
    fn a_gpu_is_found_by_its_pod_and_its_node() {
        assert_eq!(names(&of("train", "", "")), ["n1-0"]);
        assert_eq!(names(&of("N2 a100", "", "")), ["n2-0", "n2-1"]);
        assert!(names(&of("nothing", "", "")).is_empty());
    }

    #[test]
    fn choices_and_orders_hold() {
        assert_eq!(names(&of("", "held", "")), ["n1-0"]);
        assert_eq!(names(&of("", "free", "")), ["n1-1", "n2-0"]);
        assert_eq!(names(&of("", "out", "")), ["n2-1"]);
        assert_eq!(names(&of("", "", "full"))[0], "n1-0");
    }

    #[test]
    fn a_row_says_what_is_held_and_used() {
        let list = gpu_list(&picture(), &Query::default());
        let row = &list.rows[0];

        assert_eq!(row.title, "GPU 0 · A100-PCIE-40GB");
        assert_eq!(
            row.memory.spoken,
            "Memory: 30 GiB of 40 GiB held, 5 GiB used"
        );
        assert_eq!(row.pods[0].text, "team-a/train");
        assert_eq!(row.slots, "2 of 10");
    }
}
