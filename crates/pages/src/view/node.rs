//! A node as a card: what it has, who holds how much of it.

use crate::board::{Board, Card, NodeRow, PodRow};
use crate::text;

use super::address;
use super::bar::{self, Bar, Part};

/// A node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeCard {
    /// Its name.
    pub name: String,
    /// Where its page is.
    pub href: String,
    /// What is unusual about it.
    pub badges: Vec<Badge>,
    /// CPU, memory and pods.
    pub resources: Vec<Bar>,
    /// Other resources that it counts, in words.
    pub counted: Vec<String>,
    /// Its GPUs.
    pub cards: Vec<CardView>,
    /// How many GPUs are not shown.
    pub more_cards: usize,
    /// The pods on it.
    pub pods: Vec<Chip>,
    /// How many pods are not shown.
    pub more_pods: usize,
    /// What cannot be read.
    pub problems: Vec<String>,
}

/// A word on a card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Badge {
    /// The word.
    pub text: String,
    /// What it means.
    pub title: String,
}

/// A GPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CardView {
    /// Its position and model.
    pub title: String,
    /// Its identifier.
    pub id: String,
    /// What is unusual about it, and how many share it.
    pub facts: String,
    /// Its memory, then its compute where that is counted; empty where no pod is on it.
    pub bars: Vec<Bar>,
}

/// A pod on a card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chip {
    /// The letter that stands for it on the bars; empty where it holds no GPU.
    pub letter: String,
    /// The number of its tone.
    pub tone: usize,
    /// Its name, with its namespace where that is not `default`.
    pub name: String,
    /// Where its page is.
    pub href: String,
    /// What it holds, in words.
    pub holds: String,
}

/// How much of a node a card shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Most {
    /// GPUs.
    pub cards: usize,
    /// Pods.
    pub pods: usize,
}

impl Most {
    /// What a card in a list shows.
    pub const LIST: Self = Self { cards: 8, pods: 8 };
    /// What the node's own page shows.
    pub const PAGE: Self = Self {
        cards: 1024,
        pods: 1000,
    };
}

/// The card of a node.
pub fn node_card(board: &Board, row: &NodeRow, most: Most) -> NodeCard {
    let mut pods: Vec<&PodRow> = board.pods_on(&row.name).collect();
    // Those with letters first, so that a shortened list explains the bars.
    pods.sort_by_key(|pod| pod.shares.is_empty());
    let sharing = pods.iter().filter(|pod| !pod.shares.is_empty()).count();
    let chips = pods.iter().take(most.pods).enumerate();
    NodeCard {
        name: row.name.clone(),
        href: address::node(&row.name),
        badges: badges(row),
        resources: resources(row, &pods),
        counted: counted(row, &pods),
        cards: row
            .cards
            .iter()
            .take(most.cards)
            .map(|card| card_view(card, &pods))
            .collect(),
        more_cards: row.cards.len().saturating_sub(most.cards),
        pods: chips
            .map(|(position, pod)| chip(row, pod, position, position < sharing))
            .collect(),
        more_pods: pods.len().saturating_sub(most.pods),
        problems: row.problems.clone(),
    }
}

/// How a pod is called where its namespace may go without saying.
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
            title: "Only pods that tolerate this taint come here.".to_owned(),
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
        let part = Part {
            amount: taken.max(0).unsigned_abs(),
            ..Part::default()
        };
        Some(bar::bar(label, words, whole.max(0).unsigned_abs(), &[part]))
    };
    names.into_iter().filter_map(of).collect()
}

fn asked(pods: &[&PodRow], resource: &str) -> i128 {
    let amounts = pods.iter().filter_map(|pod| pod.requests.get(resource));
    amounts.fold(0, |sum, amount| sum.saturating_add(*amount))
}

/// Resources beside CPU, memory and pods. Of a node whose GPUs are shown, the GPUs say it better.
fn counted(row: &NodeRow, pods: &[&PodRow]) -> Vec<String> {
    let shown = ["cpu", "memory", "pods"];
    let others = row.allocatable.iter().filter(|(name, amount)| {
        !shown.contains(&name.as_str())
            && **amount > 0
            && (row.cards.is_empty() || !name.contains(".com/"))
    });
    others
        .map(|(name, whole)| {
            let taken = text::amount(name, asked(pods, name));
            format!("{name}: {taken} of {}", text::amount(name, *whole))
        })
        .collect()
}

fn card_view(card: &Card, pods: &[&PodRow]) -> CardView {
    let mut memory = Vec::new();
    let mut cores = Vec::new();
    let mut sharing = 0;
    for (position, pod) in pods.iter().enumerate() {
        let Some(share) = pod.shares.iter().find(|share| share.card == card.id) else {
            continue;
        };
        sharing += 1;
        let letter = bar::letter(position);
        let name = short_name(&pod.namespace, &pod.name);
        memory.push(Part {
            amount: u128::from(share.memory_bytes),
            title: format!("{letter} {name}: {}", text::bytes(share.memory_bytes)),
            letter: letter.clone(),
            position,
        });
        cores.push(Part {
            amount: u128::from(share.cores),
            title: format!("{letter} {name}: {}", units(share.cores, card.cores)),
            letter,
            position,
        });
    }
    let sum = |parts: &[Part]| parts.iter().map(|part| part.amount).sum::<u128>();
    let held = text::bytes(u64::try_from(sum(&memory)).unwrap_or(u64::MAX));
    let mut bars = vec![bar::bar(
        "Memory",
        format!("{held} of {}", text::bytes(card.memory_bytes)),
        u128::from(card.memory_bytes),
        &memory,
    )];
    if card.cores > 0 {
        let whole = u128::from(card.cores);
        let words = match (card.cores, sum(&cores)) {
            (100, taken) => format!("{taken} of 100 %"),
            (_, taken) => format!("{taken} of {whole}"),
        };
        bars.push(bar::bar("Compute", words, whole, &cores));
    }
    CardView {
        title: format!("GPU {} {}", card.index, short_model(&card.model)),
        id: card.id.clone(),
        facts: facts(card, sharing),
        // An empty bar says less than the word, and a node with idle GPUs stays short.
        bars: if sharing == 0 { Vec::new() } else { bars },
    }
}

/// A model without the name of its vendor, which is the same on every card.
fn short_model(model: &str) -> &str {
    model.strip_prefix("NVIDIA ").unwrap_or(model)
}

fn facts(card: &Card, sharing: usize) -> String {
    let mut facts = Vec::new();
    if !card.healthy {
        facts.push("sick: takes no new pods".to_owned());
    }
    if card.cordoned {
        facts.push("closed: takes no new pods".to_owned());
    }
    if !matches!(card.mode.as_str(), "" | "hami-core") {
        facts.push(format!("mode {}", card.mode));
    }
    facts.push(match sharing {
        0 => format!("no pod, {} free", text::bytes(card.memory_bytes)),
        _ => format!("{sharing} of {} pods", card.slots),
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
            let card = row.cards.iter().find(|card| card.id == share.card);
            let whole = card.map_or(0, |card| card.cores);
            let name =
                card.map_or_else(|| share.card.clone(), |card| format!("GPU {}", card.index));
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

/// What a pod asks for, in words; the first `most` resources of it.
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

    fn node(cards: &str) -> Value {
        json!({
            "metadata": { "name": "n1", "annotations": { "hami.io/node-nvidia-register": cards } },
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
        let cards = "GPU-0,10,80000,100,A100,0,true:GPU-1,10,80000,100,A100,0,true:";

        let card = card(
            node(cards),
            &[
                pod("a", "GPU-0,NVIDIA,20000,30:;"),
                json!({ "metadata": { "name": "plain", "namespace": "x" }, "spec": { "nodeName": "n1" } }),
                pod("z", "GPU-0,NVIDIA,40000,0:;"),
            ],
        );

        let [first, second] = &card.cards[..] else {
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
    fn what_keeps_pods_away_is_on_the_card() {
        let mut node = node("");
        node["spec"] = json!({ "unschedulable": true, "taints": [{ "key": "x", "value": "y", "effect": "NoSchedule" }] });
        node["status"]["conditions"] = json!([{ "type": "Ready", "status": "Unknown" }]);

        let card = card(node, &[]);

        let badges: Vec<_> = card.badges.iter().map(|badge| &*badge.text).collect();
        assert_eq!(badges, ["not ready", "closed", "taint x=y:NoSchedule"]);
    }
}
