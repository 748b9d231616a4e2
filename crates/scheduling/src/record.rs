//! What every plugin said at every extension point, kept small: texts that many nodes share are kept once, and a node
//! is a few bytes. Never rendered before it is read: that is `annotations`'.

use std::collections::HashMap;
use std::sync::Arc;

use crate::plugin::Plugin;

/// What a plugin said where it answers once for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// Yes.
    Success,
    /// That it has nothing to say of this pod.
    Skipped,
    /// No, and why.
    No(Arc<str>),
}

/// What the filters said of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// How many of [`Record::filters`] the node passed.
    pub passed: u32,
    /// The text of the filter that refused it, as a place in [`Record::texts`]; none where all passed.
    pub refused: Option<u32>,
}

/// What was found when no node fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostFilter {
    /// Which plugin looked for a way.
    pub plugin: Plugin,
    /// The node from which pods are evicted; none where that does not help.
    pub nominated: Option<Arc<str>>,
}

/// Scores of the nodes that fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scored {
    /// The plugins that scored, in their order, with their weights.
    pub plugins: Vec<(Plugin, i64)>,
    /// Names of the nodes.
    pub nodes: Vec<Arc<str>>,
    /// For each node one number for each plugin, as the plugin gave it.
    pub raw: Vec<i64>,
    /// For each node one number for each plugin: normalised, and multiplied with the weight.
    pub weighted: Vec<i64>,
}

/// What every plugin said of one pod in one cycle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// Before any node was looked at.
    pub pre_filter: Vec<(Plugin, Said)>,
    /// Nodes to which a plugin narrowed the search.
    pub only: Vec<(Plugin, Vec<Arc<str>>)>,
    /// The filters that were asked, in their order.
    pub filters: Vec<Plugin>,
    /// The nodes that were looked at.
    pub nodes: Vec<(Arc<str>, Verdict)>,
    /// Texts of refusals.
    pub texts: Vec<Arc<str>>,
    /// The search for pods to evict.
    pub post_filter: Option<PostFilter>,
    /// All nodes of the cluster, where a search for pods to evict took place.
    pub all_nodes: Vec<Arc<str>>,
    /// Before scores.
    pub pre_score: Vec<(Plugin, Said)>,
    /// Scores, where at least two nodes fit.
    pub scored: Option<Scored>,
    /// Plugins that reserved something.
    pub reserve: Vec<(Plugin, Said)>,
    /// Plugins that did something before the binding.
    pub pre_bind: Vec<(Plugin, Said)>,
    /// The plugin that binds.
    pub bind: Vec<(Plugin, Said)>,
    /// The chosen node.
    pub selected: Option<Arc<str>>,
}

/// Numbers texts while a record is made.
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
