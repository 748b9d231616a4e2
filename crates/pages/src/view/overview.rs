//! The first page: how full the cluster is, which pods wait and why, the nodes, the pods.

use crate::board::{Board, NodeRow, PodRow, State};
use crate::kind::Kind;
use crate::text;

use super::bar::{self, Bar, BarPart};
use super::message;
use super::node::{Most, NodeCard, asks, node_card, short_name};
use super::{Slice, address};

/// The number of nodes on a page of the list.
const NODES: usize = 12;
/// The number of pods on a page of the list.
const PODS: usize = 15;
/// The number of pending pods on the first page.
const PENDING: usize = 5;

/// The cluster in a few numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// The number of nodes.
    pub nodes: String,
    /// The number of pods with a node.
    pub placed: String,
    /// The number of pods that wait for one.
    pub pending: usize,
    /// The number of GPUs; empty for none.
    pub gpus: String,
    /// The promised part of their memory and compute.
    pub bars: Vec<Bar>,
    /// Whether the cluster has no objects.
    pub empty: bool,
}

/// The cluster in a few numbers.
pub fn summary(board: &Board) -> Summary {
    let pending = board.pods().filter(|pod| pod.state.is_pending()).count();
    let placed = board
        .pods()
        .filter(|pod| pod.state == State::Placed)
        .count();
    let gpus = board.nodes().flat_map(|node| &node.gpus);
    let (mut count, mut memory, mut cores) = (0, 0_u128, 0_u128);
    for gpu in gpus {
        count += 1;
        memory += u128::from(gpu.memory_bytes);
        cores += u128::from(gpu.cores);
    }
    let shares = board.pods().flat_map(|pod| &pod.shares);
    let (mut memory_held, mut cores_held) = (0_u128, 0_u128);
    for share in shares {
        memory_held += u128::from(share.memory_bytes);
        cores_held += u128::from(share.cores);
    }
    let mut bars = Vec::new();
    if count > 0 {
        let words = |bytes: u128| text::bytes(u64::try_from(bytes).unwrap_or(u64::MAX));
        let part = |amount| BarPart {
            amount,
            ..BarPart::default()
        };
        bars.push(bar::bar(
            "GPU memory",
            format!("{} of {}", words(memory_held), words(memory)),
            memory,
            &[part(memory_held)],
        ));
        bars.push(bar::bar(
            "GPU compute",
            format!("{} %", text::percent(cores_held, cores)),
            cores,
            &[part(cores_held)],
        ));
    }
    Summary {
        nodes: text::count(board.nodes().len(), "node"),
        placed: format!("{} placed", text::count(placed, "pod")),
        pending,
        gpus: if count == 0 {
            String::new()
        } else {
            text::count(count, "GPU")
        },
        bars,
        empty: board.nodes().len() == 0 && board.count(Kind::Pods) == 0,
    }
}

/// A pod that waits for a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PendingPod {
    /// Its name, with its namespace unless that is `default`.
    pub name: String,
    /// The address of its page.
    pub href: String,
    /// The address of the part with the changes that would help.
    pub why: String,
    /// The amounts that it asks for.
    pub asks: String,
    /// Its state, in a sentence.
    pub state: String,
    /// Why the nodes refuse it.
    pub refusals: Vec<message::Refusal>,
    /// The result of preemption; empty if nothing is known of it.
    pub preemption: String,
}

/// The pods that wait, those of the highest priority first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PendingList {
    /// The first of them.
    pub pods: Vec<PendingPod>,
    /// The number of pods that are not shown.
    pub more: usize,
    /// The address of the list of all of them.
    pub all: String,
}

/// The pods that wait.
pub fn pending_list(board: &Board) -> PendingList {
    let mut waiting: Vec<&PodRow> = board.pods().filter(|pod| pod.state.is_pending()).collect();
    waiting.sort_by_key(|pod| std::cmp::Reverse(pod.priority));
    PendingList {
        pods: waiting
            .iter()
            .take(PENDING)
            .map(|pod| pending(pod))
            .collect(),
        more: waiting.len().saturating_sub(PENDING),
        all: pods_address("", "pending", 1),
    }
}

/// A pod that waits.
pub fn pending(pod: &PodRow) -> PendingPod {
    let message = message::read(&pod.message);
    let state = match pod.state {
        State::Gated => {
            "A scheduling gate holds it back: remove spec.schedulingGates to let it in.".to_owned()
        }
        State::Unschedulable if message.refusals.is_empty() => {
            "The scheduler found no node for it.".to_owned()
        }
        State::Unschedulable => match message.nodes {
            Some(1) => "The only node refuses it:".to_owned(),
            Some(nodes) => format!("None of {nodes} nodes takes it:"),
            None => "The scheduler says:".to_owned(),
        },
        _ => "The scheduler has not tried to place it yet.".to_owned(),
    };
    let nominated = if pod.nominated.is_empty() {
        message.preemption
    } else {
        format!("Room is being made for it on {}.", pod.nominated)
    };
    PendingPod {
        name: short_name(&pod.namespace, &pod.name),
        href: address::pod(&pod.namespace, &pod.name),
        why: address::why(&pod.namespace, &pod.name),
        asks: asks(pod, 6),
        state,
        refusals: message.refusals,
        preemption: nominated,
    }
}

/// A query for nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeQuery {
    /// A text that the name, a label or a GPU's model contains.
    pub text: String,
    /// `gpu` for nodes with GPUs only.
    pub only: String,
    /// `name`, `full` or `free`.
    pub sort: String,
    /// The page, from 1.
    pub page: usize,
}

impl NodeQuery {
    fn address(&self, page: usize) -> String {
        let page = if page > 1 {
            page.to_string()
        } else {
            String::new()
        };
        let pairs = [
            ("nodes", self.text.as_str()),
            ("only", &self.only),
            ("sort", &self.sort),
            ("page", &page),
        ];
        format!("/{}", address::query(&pairs))
    }

    fn takes(&self, node: &NodeRow) -> bool {
        if self.only == "gpu" && node.gpus.is_empty() {
            return false;
        }
        let wanted = self.text.trim().to_lowercase();
        let has = |text: &String| text.to_lowercase().contains(&wanted);
        wanted.is_empty()
            || has(&node.name)
            || node.labels.iter().any(has)
            || node.gpus.iter().any(|gpu| has(&gpu.model))
    }
}

/// The nodes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeList {
    /// Those on this page.
    pub cards: Vec<NodeCard>,
    /// The position of this page among all pages.
    pub slice: Slice,
    /// The number of nodes without the filter.
    pub all: usize,
    /// The query.
    pub query: NodeQuery,
    /// The address of this list, to refresh it.
    pub part: String,
}

/// The nodes that match the query.
pub fn node_list(board: &Board, query: &NodeQuery) -> NodeList {
    let mut found: Vec<&NodeRow> = board.nodes().filter(|node| query.takes(node)).collect();
    match query.sort.as_str() {
        "full" => found
            .sort_by_cached_key(|node| (std::cmp::Reverse(fill(board, node)), node.name.clone())),
        "free" => found.sort_by_cached_key(|node| (fill(board, node), node.name.clone())),
        _ => {}
    }
    let slice = Slice::of(found.len(), query.page, NODES, |page| query.address(page));
    let shown = found.into_iter().skip(slice.skipped()).take(slice.len());
    let own = query.address(slice.page);
    NodeList {
        cards: shown
            .map(|node| node_card(board, node, Most::LIST))
            .collect(),
        all: board.nodes().len(),
        query: query.clone(),
        part: format!("/page/part/nodes{}", own.trim_start_matches('/')),
        slice,
    }
}

/// How full a node is, by its GPUs' memory, or by its CPU if it has no GPU; in hundredths of a percent.
fn fill(board: &Board, node: &NodeRow) -> u128 {
    let pods = || board.pods_on(&node.name);
    let gpus = node.gpus.iter();
    let memory: u128 = gpus.map(|gpu| u128::from(gpu.memory_bytes)).sum();
    let held = pods()
        .flat_map(|pod| &pod.shares)
        .map(|share| u128::from(share.memory_bytes));
    let by_memory = (held.sum::<u128>() * 10_000).checked_div(memory);
    by_memory.unwrap_or_else(|| {
        let cpu = node.allocatable.get("cpu").copied().unwrap_or_default();
        let asked = pods().filter_map(|pod| pod.requests.get("cpu"));
        let asked: u128 = asked.map(|amount| amount.max(&0).unsigned_abs()).sum();
        (asked * 10_000)
            .checked_div(cpu.max(0).unsigned_abs())
            .unwrap_or_default()
    })
}

/// A query for pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodQuery {
    /// A text that the name, the namespace or the node contains.
    pub text: String,
    /// `pending`, `placed`, `finished`, or empty for all.
    pub state: String,
    /// The page, from 1.
    pub page: usize,
}

fn pods_address(text: &str, state: &str, page: usize) -> String {
    let page = if page > 1 {
        page.to_string()
    } else {
        String::new()
    };
    let pairs = [("pods", text), ("state", state), ("page", &page)];
    format!("{}{}", address::list(Kind::Pods), address::query(&pairs))
}

impl PodQuery {
    fn takes(&self, pod: &PodRow) -> bool {
        let in_state = match self.state.as_str() {
            "pending" => pod.state.is_pending(),
            "placed" => pod.state == State::Placed,
            "finished" => pod.state == State::Finished,
            _ => true,
        };
        let wanted = self.text.trim().to_lowercase();
        let has = |text: &String| text.to_lowercase().contains(&wanted);
        in_state && (wanted.is_empty() || has(&pod.name) || has(&pod.namespace) || has(&pod.node))
    }
}

/// The pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodList {
    /// Those on this page.
    pub pods: Vec<PodLine>,
    /// The position of this page among all pages.
    pub slice: Slice,
    /// The number of pods without the filter.
    pub all: usize,
    /// The query.
    pub query: PodQuery,
    /// The address of this list, to refresh it.
    pub part: String,
}

/// A pod in a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodLine {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The address of its page.
    pub href: String,
    /// Its state, in one word.
    pub state: &'static str,
    /// Its node; empty if it has none.
    pub node: String,
    /// The address of its node's page.
    pub node_href: String,
    /// The amounts that it asks for.
    pub asks: String,
    /// Why it is in this state; filled in by [`PodLine::explain`].
    pub reason: String,
}

/// The pods that match the query.
pub fn pod_list(board: &Board, query: &PodQuery) -> PodList {
    let found: Vec<&PodRow> = board.pods().filter(|pod| query.takes(pod)).collect();
    let link = |page| pods_address(&query.text, &query.state, page);
    let slice = Slice::of(found.len(), query.page, PODS, link);
    let shown = found.into_iter().skip(slice.skipped()).take(slice.len());
    let own = link(slice.page);
    let asked = own.split_once('?').map_or("", |(_, asked)| asked);
    let mark = if asked.is_empty() { "" } else { "?" };
    PodList {
        pods: shown.map(pod_line).collect(),
        all: board.count(Kind::Pods),
        query: query.clone(),
        part: format!("/page/part/pods{mark}{asked}"),
        slice,
    }
}

/// The state of a pod in one word.
pub fn state_word(state: State) -> &'static str {
    match state {
        State::Waiting => "waiting",
        State::Unschedulable => "pending",
        State::Gated => "gated",
        State::Placed => "placed",
        State::Finished => "finished",
    }
}

fn pod_line(pod: &PodRow) -> PodLine {
    let message = message::read(&pod.message);
    let refusals: Vec<String> = message
        .refusals
        .iter()
        .map(|refusal| match refusal.nodes {
            Some(nodes) => format!(
                "{}: {}",
                text::count(usize::try_from(nodes).unwrap_or(usize::MAX), "node"),
                refusal.text
            ),
            None => refusal.text.clone(),
        })
        .collect();
    PodLine {
        href: address::pod(&pod.namespace, &pod.name),
        node_href: if pod.node.is_empty() {
            String::new()
        } else {
            address::node(&pod.node)
        },
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        state: state_word(pod.state),
        node: pod.node.clone(),
        asks: asks(pod, 4),
        reason: refusals.join("; "),
    }
}

impl PodLine {
    /// Adds the sentence of its decision, if the pod has a node or the scheduler wrote no other reason.
    pub fn explain(&mut self, sentence: String) {
        if !self.node.is_empty() || self.reason.is_empty() {
            self.reason = sentence;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::source::Change;

    fn board(nodes: usize, pods: &[Value]) -> Board {
        let mut board = Board::default();
        for number in 0..nodes {
            let node = json!({
                "metadata": { "name": format!("n{number:04}"), "labels": { "zone": format!("z{}", number % 3) } },
                "status": { "allocatable": { "cpu": "4" } },
            });
            board.apply(&Change::Put(Kind::Nodes, Arc::new(node)));
        }
        for pod in pods {
            board.apply(&Change::Put(Kind::Pods, Arc::new(pod.clone())));
        }
        board
    }

    fn refused(name: &str, priority: i32) -> Value {
        json!({
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "priority": priority },
            "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "0/2 nodes are available: 2 Insufficient cpu. preemption: no." }] },
        })
    }

    #[test]
    fn a_thousand_nodes_are_shown_twelve_at_a_time() {
        let board = board(1000, &[]);
        let query = NodeQuery {
            page: 2,
            ..NodeQuery::default()
        };

        let list = node_list(&board, &query);

        assert_eq!(list.cards.len(), 12);
        assert_eq!(list.cards[0].name, "n0012");
        assert_eq!(
            (&*list.slice.previous, &*list.slice.next),
            ("/", "/?page=3")
        );
        assert_eq!(list.part, "/page/part/nodes?page=2");
    }

    #[test]
    fn a_filter_looks_at_names_and_labels() {
        let board = board(9, &[]);
        let found = |text: &str| {
            let query = NodeQuery {
                text: text.into(),
                ..NodeQuery::default()
            };
            node_list(&board, &query).slice.total
        };

        assert_eq!(found("ZONE=z1"), 3);
        assert_eq!(found("n0003"), 1);
        assert_eq!(found("nothing"), 0);
    }

    #[test]
    fn the_fullest_node_comes_first_when_it_is_asked_for() {
        let pod = json!({
            "metadata": { "name": "a", "namespace": "default" },
            "spec": { "nodeName": "n0002", "containers": [{ "name": "c", "resources": { "requests": { "cpu": "2" } } }] },
        });
        let board = board(3, &[pod]);
        let first = |sort: &str| {
            let query = NodeQuery {
                sort: sort.into(),
                ..NodeQuery::default()
            };
            node_list(&board, &query).cards[0].name.clone()
        };

        assert_eq!(
            (&*first("full"), &*first("free"), &*first("")),
            ("n0002", "n0000", "n0000")
        );
    }

    #[test]
    fn pending_pods_stand_by_priority_with_their_reasons() {
        let pods: Vec<Value> = (0..7)
            .map(|number| refused(&format!("p{number}"), number))
            .collect();

        let list = pending_list(&board(2, &pods));

        assert_eq!((list.pods[0].name.as_str(), list.more), ("p6", 2));
        assert_eq!(list.pods[0].state, "None of 2 nodes takes it:");
        assert_eq!(list.pods[0].refusals[0].nodes, Some(2));
        assert_eq!(list.all, "/page/objects/pods?state=pending");
    }

    #[test]
    fn an_empty_cluster_says_so() {
        assert!(summary(&board(0, &[])).empty);
        assert!(!summary(&board(1, &[])).empty);
    }
}
