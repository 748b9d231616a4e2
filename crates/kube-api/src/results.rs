//! The annotations in which a simulated scheduler writes the answers of all plugins about a pod, with the names of
//! kube-scheduler-simulator. The pages give them their meaning.

use std::collections::BTreeMap;

pub use crate::keys::{OLD_SIMULATOR_RESULTS as OLD_PREFIX, SIMULATOR_RESULTS as PREFIX};

/// By plugin: `success`, or the plugin's message.
pub const PREFILTER_STATUS: &str = "prefilter-result-status";
/// By node and plugin: `passed`, or the reason of the refusal. Plugins after the first refusal are absent.
pub const FILTER: &str = "filter-result";
/// By node and plugin: the score before it is normalised.
pub const SCORE: &str = "score-result";
/// By node and plugin: the final score, normalised and weighted.
pub const FINAL_SCORE: &str = "finalscore-result";
/// By node: the plugin that would evict pods there.
pub const POSTFILTER: &str = "postfilter-result";
/// The node that was chosen; empty for none.
pub const SELECTED_NODE: &str = "selected-node";
/// The results of earlier attempts, as a JSON list.
pub const HISTORY: &str = "result-history";

/// The value under this name, with the new prefix or else the old one.
pub fn read<'a>(annotations: &'a BTreeMap<String, String>, name: &str) -> Option<&'a str> {
    let under = |prefix: &str| annotations.get(&format!("{prefix}{name}"));
    under(PREFIX)
        .or_else(|| under(OLD_PREFIX))
        .map(String::as_str)
}

/// Whether this key is one of them.
pub fn is_result(key: &str) -> bool {
    key.starts_with(PREFIX) || key.starts_with(OLD_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_prefix_comes_before_the_old_one() {
        let both = BTreeMap::from([
            (format!("{PREFIX}{FILTER}"), "new".to_owned()),
            (format!("{OLD_PREFIX}{FILTER}"), "old".to_owned()),
            (format!("{OLD_PREFIX}{SCORE}"), "old".to_owned()),
        ]);

        assert_eq!(read(&both, FILTER), Some("new"));
        assert_eq!(read(&both, SCORE), Some("old"));
        assert_eq!(read(&both, HISTORY), None);
    }
}
