//! The first page: how much of the GPUs is held and used, over time; pods that were refused memory; pending pods; and
//! unused shares.

use super::super::{GpuPendingPod, GpuPod, Monitors, Picture, Total};
use super::gpus::Link;
use super::meter::{self, Meter};
use super::namespaces::{NamespaceRow, namespace_list};
use super::{Sum, at, compute};
use crate::text;
use crate::view::Slice;
use crate::view::line::{Lines, Values, ago, lines};
use crate::view::message;
use crate::view::query::{Filter, Query, has_all};

/// The number of pending pods on the first page, each with the changes that would help it.
const PENDING: usize = 5;
/// The number of pending pods on a page of their list.
const PENDING_ROWS: usize = 10;
/// The number of namespaces on the first page.
const NAMESPACES: usize = 5;
/// The number of pods with memory refusals on the first page.
const OOMS: usize = 5;

/// The first page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overview {
    /// The cluster in a few numbers.
    pub numbers: Vec<String>,
    /// How many pods wait for GPUs.
    pub waiting: usize,
    /// The number of memory refusals.
    pub refusals: u64,
    /// Memory and compute of all GPUs, now and over time; without charts if there is no history yet.
    pub meters: Vec<(&'static str, Meter, Vec<Lines>)>,
    /// The period in which refusals and the highest use are counted, in words.
    pub window: String,
    /// Pods that were refused memory, the most often refused first.
    pub ooms: Vec<(Link, u32)>,
    /// How many of those are not shown.
    pub more_ooms: usize,
    /// The pods that wait.
    pub pending: GpuPendingList,
    /// The namespaces with the most memory that was never used.
    pub namespaces: Vec<NamespaceRow>,
    /// How many namespaces are not shown.
    pub more_namespaces: usize,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// Why some use is not measured; empty if all of it is.
    pub trouble: String,
    /// Whether there are no GPUs.
    pub empty: bool,
}

/// Pods that wait.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuPendingList {
    /// The form above them.
    pub filter: Filter,
    /// The rows of this page.
    pub rows: Vec<PendingRow>,
    /// The position of this page among all pages.
    pub slice: Slice,
    /// The address of this list.
    pub part: String,
    /// How many pods wait.
    pub all: usize,
}

/// A pod that waits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PendingRow {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The most common reason among the nodes.
    pub reason: String,
    /// The address of the advice for this pod.
    pub why: String,
}

/// The first page.
pub fn overview(picture: &Picture) -> Overview {
    let sum = Sum::of(picture.holders.iter().flat_map(|holder| &holder.shares));
    let memory: u64 = picture.gpus.iter().map(|gpu| gpu.memory_bytes).sum();
    let counted = picture
        .gpus
        .iter()
        .filter(|gpu| gpu.given_compute.is_some());
    let whole_compute = u64::try_from(counted.count()).unwrap_or(u64::MAX) * 1000;
    let mut nodes: Vec<&str> = picture.gpus.iter().map(|gpu| &*gpu.node).collect();
    nodes.dedup();
    let mut refused: Vec<&GpuPod> = picture.holders.iter().filter(|pod| pod.ooms > 0).collect();
    refused.sort_by_key(|holder| std::cmp::Reverse(holder.ooms));
    let namespaces = namespace_list(picture, &Query::default());
    let over_time = charts(picture);
    let steps = usize::try_from(picture.steps).unwrap_or(usize::MAX);
    Overview {
        numbers: vec![
            text::count(nodes.len(), "node"),
            text::count(picture.gpus.len(), "GPU"),
            format!("{} with GPUs", text::count(picture.holders.len(), "pod")),
        ],
        waiting: picture.pending.len(),
        refusals: refused.iter().map(|holder| u64::from(holder.ooms)).sum(),
        meters: vec![
            ("GPU memory", meter::memory(memory, &sum), over_time.0),
            (
                "GPU compute",
                meter::compute_of(whole_compute, &sum),
                over_time.1,
            ),
        ],
        window: ago(steps, picture.step_seconds),
        more_ooms: refused.len().saturating_sub(OOMS),
        ooms: refused
            .iter()
            .take(OOMS)
            .map(|pod| (link(pod), pod.ooms))
            .collect(),
        pending: pending_list(picture, &Query::default(), PENDING),
        more_namespaces: namespaces.all.saturating_sub(NAMESPACES),
        namespaces: namespaces.rows.into_iter().take(NAMESPACES).collect(),
        notes: notes(picture),
        trouble: trouble(&picture.monitors),
        empty: picture.gpus.is_empty(),
    }
}

fn link(holder: &GpuPod) -> Link {
    Link {
        text: format!("{}/{}", holder.namespace, holder.pod),
        href: at::pod(&holder.namespace, &holder.pod),
    }
}

fn notes(picture: &Picture) -> Vec<String> {
    let mut notes = picture.notes.clone();
    if !picture.synced {
        notes.push("Some nodes and pods have not been read from the API server yet.".to_owned());
    }
    notes
}

/// Why some use is not measured; empty if all of it is.
pub fn trouble(monitors: &Monitors) -> String {
    if !monitors.configured {
        return "Only what pods hold is shown: the flag --gpu-page-monitors names no node monitor \
                that could say what they use."
            .to_owned();
    }
    if !monitors.asked {
        return "The node monitors are being asked for the use of pods for the first time."
            .to_owned();
    }
    if monitors.known == 0 {
        return format!("No node monitor was found: {}.", monitors.problem);
    }
    if monitors.answered < monitors.known {
        return format!(
            "{} of {} did not answer, so the use of some pods is not known: {}.",
            monitors.known - monitors.answered,
            text::count(monitors.known, "node monitor"),
            monitors.problem
        );
    }
    String::new()
}

/// Memory and compute of all GPUs over time.
fn charts(picture: &Picture) -> (Vec<Lines>, Vec<Lines>) {
    if picture.totals.len() < 2 {
        return (Vec::new(), Vec::new());
    }
    let of = |name, class, value: fn(&Total) -> Option<u64>| Values {
        name,
        class,
        values: picture.totals.iter().map(value).collect(),
    };
    let last = picture.totals.last().copied().unwrap_or_default();
    let step = picture.step_seconds;
    let memory = [
        of("held", "line-held", |total| Some(total.given_bytes)),
        of("used", "line-used", |total| total.used_bytes),
    ];
    let busy = [
        of("held", "line-held", |total| Some(total.given_compute)),
        of("used", "line-used", |total| total.used_compute),
    ];
    let top = last.memory_bytes;
    (
        vec![lines("GPU memory", step, top, &memory, &[], text::bytes)],
        vec![lines(
            "GPU compute",
            step,
            last.compute,
            &busy,
            &[],
            compute,
        )],
    )
}

/// The pending pods that match the query, on a page of their own.
pub fn pending(picture: &Picture, query: &Query) -> GpuPendingList {
    pending_list(picture, query, PENDING_ROWS)
}

fn pending_list(picture: &Picture, query: &Query, size: usize) -> GpuPendingList {
    let words = query.words();
    let takes = |pod: &&GpuPendingPod| has_all(&words, &[&pod.namespace, &pod.pod, &pod.reason]);
    let rows: Vec<&GpuPendingPod> = picture.pending.iter().filter(takes).collect();
    let slice = query.slice(at::PENDING, rows.len(), size);
    let shown = rows.iter().skip(slice.skipped()).take(slice.len());
    let row = |pod: &&GpuPendingPod| PendingRow {
        namespace: pod.namespace.to_string(),
        name: pod.pod.to_string(),
        reason: message::of_engine(&pod.reason).map_or_else(
            || pod.reason.clone(),
            |words| format!("On most nodes: {words}"),
        ),
        why: at::why(&pod.namespace, &pod.pod),
    };
    GpuPendingList {
        rows: shown.map(row).collect(),
        part: query.at(&at::part(at::PENDING), slice.page),
        slice,
        all: picture.pending.len(),
        filter: Filter {
            label: "Pending pods",
            path: at::PENDING.to_owned(),
            part: at::part(at::PENDING),
            target: "#pending",
            text: query.text.clone(),
            placeholder: "name, namespace or reason",
            selects: Vec::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::picture;
    use super::*;

    #[test]
    fn the_first_page_adds_up() {
        let page = overview(&picture());

        assert_eq!(page.numbers, ["2 nodes", "4 GPUs", "2 pods with GPUs"]);
        assert_eq!((page.waiting, page.refusals), (1, 3));
        assert_eq!(
            page.meters[0].1.spoken,
            "Memory: 30 GiB of 160 GiB held, 5 GiB used"
        );
        assert_eq!(page.meters[1].1.held, "1 GPU of 4 GPUs held");
        assert_eq!(
            page.pending.rows[0].reason,
            "On most nodes: Too little memory is free on these GPUs."
        );
        assert_eq!(page.ooms[0].0.text, "team-a/train");
        assert_eq!(page.namespaces[0].name, "team-a");
        assert!(page.meters[0].2.is_empty());
    }

    #[test]
    fn one_pod_is_not_several() {
        let mut picture = picture();
        picture.holders.truncate(1);

        assert_eq!(overview(&picture).numbers[2], "1 pod with GPUs");
    }

    #[test]
    fn trouble_with_monitors_is_said() {
        let mut monitors = Monitors::default();
        assert!(trouble(&monitors).contains("--gpu-page-monitors"));
        monitors.configured = true;
        assert!(trouble(&monitors).contains("first time"));
        monitors.asked = true;
        monitors.problem = "no such host".into();
        assert_eq!(
            trouble(&monitors),
            "No node monitor was found: no such host."
        );
        (monitors.known, monitors.answered) = (3, 2);
        assert!(trouble(&monitors).starts_with("1 of 3 node monitors did not answer"));
        monitors.answered = 3;
        assert_eq!(trouble(&monitors), "");
    }

    #[test]
    fn totals_are_drawn_over_time() {
        let mut picture = picture();
        let total = Total {
            memory_bytes: 100 << 30,
            given_bytes: 50 << 30,
            used_bytes: Some(10 << 30),
            ..Total::default()
        };
        picture.totals = vec![total; 30];

        let meters = overview(&picture).meters;

        assert_eq!(meters[1].2.len(), 1);
        assert_eq!(
            meters[0].2[0].spoken,
            "GPU memory over the last 15 min; now: held 50 GiB, used 10 GiB"
        );
    }
}
