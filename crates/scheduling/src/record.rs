//! The answers of all plugins at every extension point, in a compact form: texts that many nodes share are stored once,
//! and a node takes a few bytes. `annotations` renders a record when it is read.

use std::collections::HashMap;
use std::sync::Arc;

use crate::plugin::Plugin;

/// The answer of a plugin that is called once for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// Yes.
    Success,
    /// The plugin does not apply to this pod.
    Skipped,
    /// Refused, with the reason.
    No(Arc<str>),
}

/// The filters' answers about one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// How many of [`Record::filters`] the node passed.
    pub passed: u32,
    /// The text of the filter that refused it, as an index into [`Record::texts`]; `None` if all passed.
    pub refused: Option<u32>,
}

/// The result of the search for pods to evict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostFilter {
    /// The plugin that searched.
    pub plugin: Plugin,
    /// The node from which pods are evicted; `None` if an eviction does not help.
    pub nominated: Option<Arc<str>>,
}

/// Scores of the nodes that fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scored {
    /// The plugins that scored, in their order, with their weights.
    pub plugins: Vec<(Plugin, i64)>,
    /// Names of the nodes.
    pub nodes: Vec<Arc<str>>,
    /// For each node one number for each plugin: the plugin's own score.
    pub raw: Vec<i64>,
    /// For each node one number for each plugin: the normalised score times the weight.
    pub weighted: Vec<i64>,
}

/// The answers of all plugins about one pod in one cycle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// The answers before any node was examined.
    pub pre_filter: Vec<(Plugin, Said)>,
    /// The nodes to which a plugin restricted the search.
    pub only: Vec<(Plugin, Vec<Arc<str>>)>,
    /// The filters that ran, in their order.
    pub filters: Vec<Plugin>,
    /// The nodes that were examined.
    pub nodes: Vec<(Arc<str>, Verdict)>,
    /// Texts of refusals.
    pub texts: Vec<Arc<str>>,
    /// The search for pods to evict.
    pub post_filter: Option<PostFilter>,
    /// All nodes of the cluster, if a search for pods to evict took place.
    pub all_nodes: Vec<Arc<str>>,
    /// The answers before scoring.
    pub pre_score: Vec<(Plugin, Said)>,
    /// Scores, where at least two nodes fit.
    pub scored: Option<Scored>,
    /// Plugins that reserved something.
    pub reserve: Vec<(Plugin, Said)>,
    /// Plugins that acted before the binding.
    pub pre_bind: Vec<(Plugin, Said)>,
    /// The plugin that binds.
    pub bind: Vec<(Plugin, Said)>,
    /// The chosen node.
    pub selected: Option<Arc<str>>,
}

/// Numbers the texts while a record is built.
#[derive(Debug, Default)]
pub(crate) struct Texts(HashMap<String, u32>);

impl Texts {
    pub(crate) fn number(&mut self, record: &mut Record, text: String) -> u32 {
        if let Some(number) = self.0.get(&text) {
            return *number;
        }
        let number = u32::try_from(record.texts.len()).unwrap_or(u32::MAX);
        record.texts.push(text.as_str().into());
        self.0.insert(text, number);
        number
    }
}
