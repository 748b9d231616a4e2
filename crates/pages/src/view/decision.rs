//! A scheduling decision as tables: the answer of each plugin about each node, from the result annotations of a pod.

use std::collections::{BTreeMap, BTreeSet};

use kube_api::results;

use super::{Slice, address};
use crate::text;

/// The number of nodes that a table shows at once.
const ROWS: usize = 25;

type ByNode = BTreeMap<String, BTreeMap<String, String>>;

/// The pod's last scheduling attempt, as far as it is recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// The decision and its reason, in a sentence; empty if the pod has no recorded result.
    pub sentence: String,
    /// The node that was chosen; empty for none.
    pub selected: String,
    /// The number of nodes that were examined.
    pub nodes: usize,
    /// The number of nodes that passed every filter.
    pub passed: usize,
    /// The reasons of refusals with the number of nodes for each, the most frequent first.
    pub refusals: Vec<RefusedNodes>,
    /// The refusals of plugins before any node was examined.
    pub before: Vec<(String, String)>,
    /// The nodes and the filters that refused them.
    pub filter: Table,
    /// The plugins' scores before they are normalised and weighted.
    pub score: Table,
    /// The final scores.
    pub last: Table,
    /// The number of recorded attempts.
    pub attempts: usize,
    /// The errors in the annotations.
    pub problems: Vec<String>,
    /// The nodes that the tables show.
    pub rows: Slice,
}

/// A reason with the nodes that have it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefusedNodes {
    /// The plugin that refuses.
    pub plugin: String,
    /// Its reason.
    pub reason: String,
    /// The number of nodes.
    pub nodes: usize,
    /// The names of the first of them.
    pub first: String,
}

/// A table of nodes and plugins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// The plugins, which are its columns.
    pub plugins: Vec<String>,
    /// The nodes.
    pub rows: Vec<Row>,
}

/// A node in a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// Its name.
    pub node: String,
    /// The address of its page.
    pub href: String,
    /// Whether it was chosen.
    pub chosen: bool,
    /// Whether a filter refused it.
    pub refused: bool,
    /// One cell for each plugin.
    pub cells: Vec<PluginAnswer>,
    /// The sum, in tables of scores.
    pub total: String,
}

/// The answer of one plugin about one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PluginAnswer {
    /// It was not asked.
    #[default]
    Unasked,
    /// The plugin lets the node pass.
    Passed,
    /// The plugin refused the node, for this reason.
    Refused(String),
    /// The plugin gave the node this score.
    Number(String),
}

impl PluginAnswer {
    /// Whether a filter lets the node pass.
    pub fn is_passed(&self) -> bool {
        *self == Self::Passed
    }

    /// The reason of a refusal; empty otherwise.
    pub fn reason(&self) -> &str {
        match self {
            Self::Refused(reason) => reason,
            _ => "",
        }
    }

    /// The number; empty otherwise.
    pub fn number(&self) -> &str {
        match self {
            Self::Number(number) => number,
            _ => "",
        }
    }
}

/// Reads the annotations of a pod that is on `node` (empty for none). Tables show page `page`; `link` returns the
/// address of a page.
pub fn decision(
    annotations: &BTreeMap<String, String>,
    node: &str,
    page: usize,
    link: impl Fn(usize) -> String,
) -> Decision {
    let mut problems = Vec::new();
    let filter: ByNode = read(annotations, results::FILTER, &mut problems);
    let score: ByNode = read(annotations, results::SCORE, &mut problems);
    let last: ByNode = read(annotations, results::FINAL_SCORE, &mut problems);
    let before: BTreeMap<String, String> =
        read(annotations, results::PREFILTER_STATUS, &mut problems);
    let history: Vec<serde::de::IgnoredAny> = read(annotations, results::HISTORY, &mut problems);
    let selected = results::read(annotations, results::SELECTED_NODE).unwrap_or_default();
    let totals: BTreeMap<&str, i64> = last
        .iter()
        .map(|(node, scores)| (node.as_str(), total(scores)))
        .collect();
    let nodes: BTreeSet<&str> = [&filter, &score, &last]
        .into_iter()
        .flat_map(BTreeMap::keys)
        .map(String::as_str)
        .collect();
    let is_refused = |node: &str| {
        filter
            .get(node)
            .is_some_and(|plugins| plugins.values().any(|said| said != "passed"))
    };
    let passed = filter.keys().filter(|node| !is_refused(node)).count();
    let before: Vec<(String, String)> = before
        .into_iter()
        .filter(|(_, said)| !matches!(said.as_str(), "" | "success"))
        .collect();
    let known = results::read(annotations, results::FILTER).is_some();
    let story = Story {
        selected,
        node,
        nodes: filter.len(),
        passed,
        totals: &totals,
        before: &before,
    };
    let sentence = if known { story.tell() } else { String::new() };

    let mut order: Vec<&str> = nodes.into_iter().collect();
    order.sort_by_key(|name| {
        let total = totals.get(name).copied().unwrap_or(i64::MIN);
        (
            *name != selected,
            is_refused(name),
            std::cmp::Reverse(total),
            *name,
        )
    });
    let rows = Slice::of(order.len(), page, ROWS, link);
    let shown: Vec<&str> = order
        .into_iter()
        .skip(rows.skipped())
        .take(rows.len())
        .collect();
    let table = |by_node: &ByNode, cell: fn(&str) -> PluginAnswer, sum: bool| {
        let plugins: BTreeSet<&String> = by_node.values().flat_map(BTreeMap::keys).collect();
        let of_node = |name: &&str| {
            let said = by_node.get(*name)?;
            let cells = plugins.iter().map(|plugin| {
                said.get(*plugin)
                    .map_or(PluginAnswer::Unasked, |said| cell(said))
            });
            Some(Row {
                node: (*name).to_owned(),
                href: address::node(name),
                chosen: *name == selected,
                refused: is_refused(name),
                cells: cells.collect(),
                total: if sum {
                    total(said).to_string()
                } else {
                    String::new()
                },
            })
        };
        Table {
            rows: shown.iter().filter_map(of_node).collect(),
            plugins: plugins.into_iter().cloned().collect(),
        }
    };
    Decision {
        sentence,
        selected: selected.to_owned(),
        nodes: filter.len(),
        passed,
        refusals: refusals(&filter),
        before,
        filter: table(&filter, filtered, false),
        score: table(&score, number, false),
        last: table(&last, number, true),
        attempts: history.len(),
        problems,
        rows,
    }
}

/// Only the sentence of a decision.
pub fn sentence(annotations: &BTreeMap<String, String>, node: &str) -> String {
    decision(annotations, node, 1, |_| String::new()).sentence
}

fn filtered(said: &str) -> PluginAnswer {
    if said == "passed" {
        PluginAnswer::Passed
    } else {
        PluginAnswer::Refused(said.to_owned())
    }
}

fn number(said: &str) -> PluginAnswer {
    PluginAnswer::Number(said.to_owned())
}

fn total(scores: &BTreeMap<String, String>) -> i64 {
    scores
        .values()
        .filter_map(|score| score.parse::<i64>().ok())
        .fold(0, i64::saturating_add)
}

fn read<T: serde::de::DeserializeOwned + Default>(
    annotations: &BTreeMap<String, String>,
    name: &str,
    problems: &mut Vec<String>,
) -> T {
    let Some(text) = results::read(annotations, name) else {
        return T::default();
    };
    serde_json::from_str(text).unwrap_or_else(|error| {
        problems.push(format!("annotation {name} cannot be read: {error}"));
        T::default()
    })
}

fn refusals(filter: &ByNode) -> Vec<RefusedNodes> {
    const FIRST: usize = 5;
    let mut by_reason: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (node, plugins) in filter {
        for (plugin, said) in plugins.iter().filter(|(_, said)| *said != "passed") {
            by_reason.entry((plugin, said)).or_default().push(node);
        }
    }
    let mut refusals: Vec<RefusedNodes> = by_reason
        .into_iter()
        .map(|((plugin, reason), nodes)| {
            let first: Vec<&str> = nodes.iter().take(FIRST).copied().collect();
            let more = nodes.len().saturating_sub(FIRST);
            let mut first = first.join(", ");
            if more > 0 {
                first.push_str(&format!(" and {more} more"));
            }
            RefusedNodes {
                plugin: plugin.to_owned(),
                reason: reason.to_owned(),
                nodes: nodes.len(),
                first,
            }
        })
        .collect();
    refusals.sort_by(|a, b| b.nodes.cmp(&a.nodes).then_with(|| a.reason.cmp(&b.reason)));
    refusals
}

/// The parts of a sentence about a decision.
struct Story<'a> {
    selected: &'a str,
    node: &'a str,
    nodes: usize,
    passed: usize,
    totals: &'a BTreeMap<&'a str, i64>,
    before: &'a [(String, String)],
}

impl Story<'_> {
    fn tell(&self) -> String {
        let Self {
            selected,
            node,
            nodes,
            passed,
            ..
        } = self;
        if selected.is_empty() {
            if let Some((plugin, said)) = self.before.first() {
                return format!("{plugin} refused the pod before any node was examined: {said}.");
            }
            let nodes = match nodes {
                0 => "There was no node to look at.".to_owned(),
                1 => "The only node refuses it.".to_owned(),
                _ if *passed == 0 => format!("All {nodes} nodes refuse it."),
                _ => format!("{passed} of {nodes} nodes passed every filter, and none was chosen."),
            };
            return nodes;
        }
        let mut sentence = format!("{selected} was chosen: {}", self.reason());
        if !node.is_empty() && node != selected {
            sentence.push_str(&format!(" The pod is on {node} all the same."));
        }
        sentence
    }

    fn reason(&self) -> String {
        let Self {
            selected,
            nodes,
            passed,
            ..
        } = self;
        let mut others: Vec<(&str, i64)> = self
            .totals
            .iter()
            .filter(|(name, _)| **name != *selected)
            .map(|(name, total)| (*name, *total))
            .collect();
        others.sort_by_key(|(name, total)| (std::cmp::Reverse(*total), *name));
        let next = others.first().copied();
        match (self.totals.get(selected).copied(), next) {
            (Some(own), Some((next, other))) => {
                let looked = format!(
                    "{passed} of {} passed every filter",
                    text::count(*nodes, "node")
                );
                match own.cmp(&other) {
                    std::cmp::Ordering::Greater => {
                        format!(
                            "{looked}, and it has the highest score, {own} (next: {next} with {other})."
                        )
                    }
                    std::cmp::Ordering::Equal => {
                        let ties = others.iter().filter(|(_, total)| *total == own).count();
                        let with = if ties == 1 {
                            next.to_owned()
                        } else {
                            text::count(ties, "other node")
                        };
                        format!(
                            "{looked}, and it has the highest score, {own}, together with {with}."
                        )
                    }
                    std::cmp::Ordering::Less => format!(
                        "{looked}. Its score by plugins is {own}; {next} has {other}, so something else decided, such as an extender."
                    ),
                }
            }
            _ if *passed == 1 && *nodes > 1 => {
                format!(
                    "it is the only one of {nodes} nodes that passed every filter, so no score was needed."
                )
            }
            _ if *nodes == 1 => "it is the only node, so no score was needed.".to_owned(),
            _ => "no scores are recorded.".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)], node: &str) -> Decision {
        let annotations = pairs
            .iter()
            .map(|(name, text)| (format!("{}{name}", results::PREFIX), (*text).to_owned()))
            .collect();
        decision(&annotations, node, 1, |page| page.to_string())
    }

    const FILTER: &str = r#"{"n1":{"A":"passed","B":"passed"},"n2":{"A":"passed","B":"passed"},"n3":{"A":"no room"}}"#;

    #[test]
    fn the_highest_score_is_said_with_the_next_one() {
        let scores = r#"{"n1":{"X":"10","Y":"5"},"n2":{"X":"7","Y":"5"}}"#;

        let decision = of(
            &[
                ("filter-result", FILTER),
                ("finalscore-result", scores),
                ("selected-node", "n1"),
            ],
            "n1",
        );

        assert_eq!(
            decision.sentence,
            "n1 was chosen: 2 of 3 nodes passed every filter, and it has the highest score, 15 (next: n2 with 12)."
        );
        let totals: Vec<_> = decision
            .last
            .rows
            .iter()
            .map(|row| (&*row.node, &*row.total, row.chosen))
            .collect();
        assert_eq!(totals, [("n1", "15", true), ("n2", "12", false)]);
    }

    #[test]
    fn a_tie_is_called_a_tie() {
        let scores = r#"{"n1":{"X":"7"},"n2":{"X":"7"}}"#;

        let decision = of(
            &[
                ("filter-result", FILTER),
                ("finalscore-result", scores),
                ("selected-node", "n2"),
            ],
            "n2",
        );

        assert!(
            decision
                .sentence
                .ends_with("the highest score, 7, together with n1.")
        );
    }

    #[test]
    fn the_only_node_that_passes_needs_no_score() {
        let filter = r#"{"n1":{"A":"passed"},"n2":{"A":"full"},"n3":{"A":"full"}}"#;

        let decision = of(
            &[
                ("filter-result", filter),
                ("finalscore-result", "{}"),
                ("selected-node", "n1"),
            ],
            "n1",
        );

        assert!(decision.sentence.contains("the only one of 3 nodes"));
        assert_eq!(decision.refusals[0].nodes, 2);
        assert_eq!(decision.refusals[0].first, "n2, n3");
        assert_eq!(decision.filter.rows[0].node, "n1");
        assert!(decision.filter.rows[1].refused);
    }

    #[test]
    fn plugins_after_a_refusal_were_not_asked() {
        let decision = of(&[("filter-result", FILTER), ("selected-node", "")], "");

        let row = &decision.filter.rows[2];
        assert_eq!(row.node, "n3");
        assert_eq!(
            row.cells,
            [
                PluginAnswer::Refused("no room".into()),
                PluginAnswer::Unasked
            ]
        );
    }

    #[test]
    fn a_pod_without_results_has_no_sentence() {
        assert_eq!(of(&[], "n1").sentence, "");
    }

    #[test]
    fn an_annotation_that_cannot_be_read_is_named() {
        let decision = of(&[("filter-result", "{"), ("selected-node", "")], "");

        assert!(decision.problems[0].contains("filter-result"));
        assert_eq!(decision.sentence, "There was no node to look at.");
    }

    #[test]
    fn a_refusal_before_any_node_is_named() {
        let status = r#"{"NodeAffinity":"","VolumeBinding":"unbound claim"}"#;

        let decision = of(
            &[
                ("filter-result", "{}"),
                ("prefilter-result-status", status),
                ("selected-node", ""),
            ],
            "",
        );

        assert_eq!(
            decision.sentence,
            "VolumeBinding refused the pod before any node was examined: unbound claim."
        );
    }

    #[test]
    fn a_thousand_nodes_are_shown_in_pages() {
        let nodes: Vec<String> = (0..1000)
            .map(|number| format!(r#""n{number:04}":{{"A":"no room"}}"#))
            .collect();
        let filter = format!("{{{}}}", nodes.join(","));

        let decision = of(&[("filter-result", &filter), ("selected-node", "")], "");

        assert_eq!(decision.filter.rows.len(), ROWS);
        assert_eq!((decision.rows.total, &*decision.rows.next), (1000, "2"));
        assert!(decision.refusals[0].first.ends_with("and 995 more"));
    }
}
