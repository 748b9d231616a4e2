//! The card of a node: its resources, and the pods that hold them.

use crate::board::{Board, NodeGpu, NodeRow, PodRow};
use crate::text;

use super::address;
use super::bar::{self, Bar, BarPart};

/// A node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeCard {
    /// Its name.
    pub name: String,
    /// The address of its page.
    pub href: String,
    /// Anything unusual about it.
    pub badges: Vec<Badge>,
    /// CPU, memory and pods.
    pub resources: Vec<Bar>,
    /// Other resources that are counted, in words.
    pub counted: Vec<String>,
    /// Its GPUs.
    pub gpus: Vec<GpuView>,
    /// The number of GPUs that are not shown.
    pub more_gpus: usize,
    /// The pods on it.
    pub pods: Vec<Chip>,
    /// The number of pods that are not shown.
    pub more_pods: usize,
    /// The errors in its annotations.
    pub problems: Vec<String>,
}

/// A word on a node's card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Badge {
    /// The word.
    pub text: String,
    /// Its explanation.
    pub title: String,
}

/// A GPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GpuView {
    /// Its position and model.
    pub title: String,
    /// Its identifier.
    pub id: String,
    /// Anything unusual about it, and the number of pods that share it.
    pub facts: String,
    /// Its memory, then its compute if that is counted; empty if no pod is on it.
    pub bars: Vec<Bar>,
}

/// A pod on a node's card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chip {
    /// The letter that stands for it on the bars; empty if it holds no GPU.
    pub letter: String,
    /// The number of its tone.
    pub tone: usize,
    /// Its name, with its namespace unless that is `default`.
    pub name: String,
    /// The address of its page.
    pub href: String,
    /// The GPUs or resources that it holds, in words.
    pub holds: String,
}

/// The most entries that a node's card shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Most {
    /// GPUs.
    pub gpus: usize,
    /// Pods.
    pub pods: usize,
}

impl Most {
    /// The limits for a card in a list.
    pub const LIST: Self = Self { gpus: 8, pods: 8 };
    /// The limits on the node's own page.
    pub const PAGE: Self = Self {
        gpus: 1024,
        pods: 1000,
    };
}

/// The card of a node.
pub fn node_card(board: &Board, row: &NodeRow, most: Most) -> NodeCard {
    let mut pods: Vec<&PodRow> = board.pods_on(&row.name).collect();
    // Pods with letters come first, so that a shortened list explains the bars.
    pods.sort_by_key(|pod| pod.shares.is_empty());
    let sharing = pods.iter().filter(|pod| !pod.shares.is_empty()).count();
    let chips = pods.iter().take(most.pods).enumerate();
    NodeCard {
        name: row.name.clone(),
        href: address::node(&row.name),
        badges: badges(row),
        resources: resources(row, &pods),
        counted: counted(row, &pods),
        gpus: row
            .gpus
            .iter()
            .take(most.gpus)
            .map(|gpu| gpu_view(gpu, &pods))
            .collect(),
        more_gpus: row.gpus.len().saturating_sub(most.gpus),
        pods: chips
            .map(|(position, pod)| chip(row, pod, position, position < sharing))
            .collect(),
        more_pods: pods.len().saturating_sub(most.pods),
        problems: row.problems.clone(),
    }
}

/// The name of a pod, with its namespace unless that is `default`.
pub(crate) fn short_name(namespace: &str, name: &str) -> String {
    if matches!(namespace, "" | "default") {
        name.to_owned()
    } else {
        format!("{namespace}/{name}")
    }
}

fn badges(row: &NodeRow) -> Vec<Badge> {
    let badge = |text: &str, title: &str| Badge {
        text: text.to_owned(),
        title: title.to_owned(),
    };
    let mut badges = Vec::new();
    if row.ready == Some(false) {
        badges.push(badge(
            "not ready",
            "The node's condition Ready is not True.",
        ));
    }
    if row.unschedulable {
        badges.push(badge(
            "closed",
            "The node takes no new pods (spec.unschedulable).",
        ));
    }
    for taint in &row.taints {
        badges.push(Badge {
            text: format!("taint {taint}"),
            title: "Only pods that tolerate this taint are placed here.".to_owned(),
        });
    }
    badges
}

fn resources(row: &NodeRow, pods: &[&PodRow]) -> Vec<Bar> {
    let names = [("CPU", "cpu"), ("Memory", "memory"), ("Pods", "pods")];
    let of = |(label, resource): (&str, &str)| {
        let whole = *row.allocatable.get(resource)?;
        let taken: i128 = if resource == "pods" {
            i128::try_from(pods.len())
                .unwrap_or(i128::MAX)
                .saturating_mul(1000)
        } else {
            asked(pods, resource)
        };
        let words = format!(
            "{} of {}",
            text::amount(resource, taken),
            text::amount(resource, whole)
        );
        let part = BarPart {
            amount: taken.max(0).unsigned_abs(),
            ..BarPart::default()
        };
        Some(bar::bar(label, words, whole.max(0).unsigned_abs(), &[part]))
    };
    names.into_iter().filter_map(of).collect()
}

fn asked(pods: &[&PodRow], resource: &str) -> i128 {
    let amounts = pods.iter().filter_map(|pod| pod.requests.get(resource));
    amounts.fold(0, |sum, amount| sum.saturating_add(*amount))
}

/// Resources other than CPU, memory and pods. For a node whose GPUs are shown, the counts of GPUs are left out.
fn counted(row: &NodeRow, pods: &[&PodRow]) -> Vec<String> {
    let shown = ["cpu", "memory", "pods"];
    let others = row.allocatable.iter().filter(|(name, amount)| {
        !shown.contains(&name.as_str())
            && **amount > 0
            && (row.gpus.is_empty() || !name.contains(".com/"))
    });
    others
        .map(|(name, whole)| {
            let taken = text::amount(name, asked(pods, name));
            format!("{name}: {taken} of {}", text::amount(name, *whole))
        })
        .collect()
}

fn gpu_view(gpu: &NodeGpu, pods: &[&PodRow]) -> GpuView {
    let mut memory = Vec::new();
    let mut cores = Vec::new();
    let mut sharing = 0;
    for (position, pod) in pods.iter().enumerate() {
        let Some(share) = pod.shares.iter().find(|share| share.gpu == gpu.id) else {
            continue;
        };
        sharing += 1;
        let letter = bar::letter(position);
        let name = short_name(&pod.namespace, &pod.name);
        memory.push(BarPart {
            amount: u128::from(share.memory_bytes),
            title: format!("{letter} {name}: {}", text::bytes(share.memory_bytes)),
            letter: letter.clone(),
            position,
        });
        cores.push(BarPart {
            amount: u128::from(share.cores),
            title: format!("{letter} {name}: {}", units(share.cores, gpu.cores)),
            letter,
            position,
        });
    }
    let sum = |parts: &[BarPart]| parts.iter().map(|part| part.amount).sum::<u128>();
    let held = text::bytes(u64::try_from(sum(&memory)).unwrap_or(u64::MAX));
    let mut bars = vec![bar::bar(
        "Memory",
        format!("{held} of {}", text::bytes(gpu.memory_bytes)),
        u128::from(gpu.memory_bytes),
        &memory,
    )];
    if gpu.cores > 0 {
        let whole = u128::from(gpu.cores);
        let words = match (gpu.cores, sum(&cores)) {
            (100, taken) => format!("{taken} of 100 %"),
            (_, taken) => format!("{taken} of {whole}"),
        };
        bars.push(bar::bar("Compute", words, whole, &cores));
    }
    GpuView {
        title: format!("GPU {} {}", gpu.index, short_model(&gpu.model)),
        id: gpu.id.clone(),
        facts: facts(gpu, sharing),
        // Without pods a word says more than an empty bar, and a node with idle GPUs stays short.
        bars: if sharing == 0 { Vec::new() } else { bars },
    }
}

/// A model without the name of its vendor, which is the same on every GPU.
fn short_model(model: &str) -> &str {
    model.strip_prefix("NVIDIA ").unwrap_or(model)
}

fn facts(gpu: &NodeGpu, sharing: usize) -> String {
    let mut facts = Vec::new();
    if !gpu.healthy {
        facts.push("sick: takes no new pods".to_owned());
    }
    if gpu.cordoned {
        facts.push("closed: takes no new pods".to_owned());
    }
    if !matches!(gpu.mode.as_str(), "" | "hami-core") {
        facts.push(format!("mode {}", gpu.mode));
    }
    facts.push(match sharing {
        0 => format!("no pod, {} free", text::bytes(gpu.memory_bytes)),
        _ => format!("{sharing} of {} pods", gpu.slots),
    });
    facts.join(" · ")
}

fn units(cores: u32, whole: u32) -> String {
    match (cores, whole) {
        (0, _) => "no compute promised".to_owned(),
        (_, 100) => format!("{cores} %"),
        _ => format!("{cores} of {whole}"),
    }
}

fn chip(row: &NodeRow, pod: &PodRow, position: usize, shares: bool) -> Chip {
    let held: Vec<String> = pod
        .shares
        .iter()
        .map(|share| {
            let gpu = row.gpus.iter().find(|gpu| gpu.id == share.gpu);
            let whole = gpu.map_or(0, |gpu| gpu.cores);
            let name = gpu.map_or_else(|| share.gpu.clone(), |gpu| format!("GPU {}", gpu.index));
            let memory = text::bytes(share.memory_bytes);
            if whole == 0 {
                format!("{name}: {memory}")
            } else {
                format!("{name}: {memory}, {}", units(share.cores, whole))
            }
        })
        .collect();
    Chip {
        letter: if shares {
            bar::letter(position)
        } else {
            String::new()
        },
        tone: bar::tone(position),
        name: short_name(&pod.namespace, &pod.name),
        href: address::pod(&pod.namespace, &pod.name),
        holds: if held.is_empty() {
            asks(pod, 2)
        } else {
            held.join(" · ")
        },
    }
}

/// A pod's requests in words; only the first `most` resources.
pub(crate) fn asks(pod: &PodRow, most: usize) -> String {
    let first = ["cpu", "memory"];
    let mut named: Vec<(&String, &i128)> = pod.requests.iter().collect();
    named.sort_by_key(|(name, _)| {
        let place = first.iter().position(|first| first == name);
        (place.unwrap_or(first.len()), name.as_str())
    });
    let words: Vec<String> = named
        .into_iter()
        .take(most)
        .map(|(name, amount)| {
            let amount = text::amount(name, *amount);
            match name.as_str() {
                "cpu" => format!("{amount} CPU"),
                "memory" => format!("{amount} memory"),
                "nvidia.com/gpumem" => format!("{amount} MiB GPU memory"),
                "nvidia.com/gpucores" => format!("{amount} % GPU compute"),
                "nvidia.com/gpumem-percentage" => format!("{amount} % GPU memory"),
                "nvidia.com/gpu" => format!("{amount} GPU"),
                _ => format!("{amount} {name}"),
            }
        })
        .collect();
    if words.is_empty() {
        "no request".to_owned()
    } else {
        words.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::kind::Kind;
    use crate::source::Change;

    fn node(gpus: &str) -> Value {
        json!({
            "metadata": { "name": "n1", "annotations": { "hami.io/node-nvidia-register": gpus } },
            "status": { "allocatable": { "cpu": "4", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "20" } },
        })
    }

    fn pod(name: &str, held: &str) -> Value {
        json!({
            "metadata": { "name": name, "namespace": "default", "annotations": {
                "hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": held,
            } },
            "spec": { "nodeName": "n1", "containers": [
                { "name": "c", "resources": { "limits": { "nvidia.com/gpu": "1", "cpu": "500m" } } },
            ] },
        })
    }

    fn card(node: Value, pods: &[Value]) -> NodeCard {
        let mut board = Board::default();
        board.apply(&Change::Put(Kind::Nodes, Arc::new(node)));
        for pod in pods {
            board.apply(&Change::Put(Kind::Pods, Arc::new(pod.clone())));
        }
        node_card(&board, board.node("n1").unwrap(), Most::LIST)
    }

    #[test]
    fn a_gpu_shows_the_memory_and_compute_of_each_pod() {
        let gpus = "GPU-0,10,80000,100,A100,0,true:GPU-1,10,80000,100,A100,0,true:";

        let card = card(
            node(gpus),
            &[
                pod("a", "GPU-0,NVIDIA,20000,30:;"),
                json!({ "metadata": { "name": "plain", "namespace": "x" }, "spec": { "nodeName": "n1" } }),
                pod("z", "GPU-0,NVIDIA,40000,0:;"),
            ],
        );

        let [first, second] = &card.gpus[..] else {
            panic!("two GPUs")
        };
        assert_eq!(first.title, "GPU 0 A100");
        assert_eq!(first.facts, "2 of 10 pods");
        assert_eq!(first.bars[0].text, "58.6 GiB of 78.1 GiB");
        assert_eq!(first.bars[0].segments[1].letter, "B");
        assert_eq!(first.bars[0].segments[1].title, "B z: 39.1 GiB");
        assert_eq!(first.bars[1].text, "30 of 100 %");
        assert_eq!(first.bars[1].segments.len(), 1);
        assert_eq!(second.facts, "no pod, 78.1 GiB free");
        assert!(second.bars.is_empty());
        let chips: Vec<_> = card
            .pods
            .iter()
            .map(|chip| (&*chip.letter, &*chip.name))
            .collect();
        assert_eq!(chips, [("A", "a"), ("B", "z"), ("", "x/plain")]);
        assert_eq!(card.pods[0].holds, "GPU 0: 19.5 GiB, 30 %");
        assert_eq!(card.resources[0].text, "1 of 4");
        assert_eq!(card.counted, Vec::<String>::new());
    }

    #[test]
    fn a_resource_that_is_only_counted_is_said_in_words() {
        let mut node = node("");
        node["metadata"]["annotations"] = json!({});

        let card = card(node, &[pod("a", "")]);

        assert_eq!(card.counted, ["nvidia.com/gpu: 1 of 20"]);
    }

    #[test]
    fn a_long_list_is_cut_and_counted() {
        let pods: Vec<Value> = (0..20)
            .map(|number| pod(&format!("p{number}"), ""))
            .collect();

        let card = card(node(""), &pods);

        assert_eq!((card.pods.len(), card.more_pods), (8, 12));
    }

    #[test]
    fn reasons_that_keep_pods_away_are_on_the_card() {
        let mut node = node("");
        node["spec"] = json!({ "unschedulable": true, "taints": [{ "key": "x", "value": "y", "effect": "NoSchedule" }] });
        node["status"]["conditions"] = json!([{ "type": "Ready", "status": "Unknown" }]);

        let card = card(node, &[]);

        let badges: Vec<_> = card.badges.iter().map(|badge| &*badge.text).collect();
        assert_eq!(badges, ["not ready", "closed", "taint x=y:NoSchedule"]);
    }
}
