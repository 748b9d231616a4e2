//! The result annotations of a pod: their prefix, how much of them fits, and earlier ones. Values in, values out.
//!
//! A real API server accepts at most 256 KiB of annotations on one object. The results of a try get the room that other
//! annotations leave, and the history gets the room that the results leave. A value that is too long loses whole
//! entries, and an extra entry gives their number; it stays valid JSON.
//!
//! Results are stored beside the pod in a compact form (`scheduling::compact`), and are expanded when the pod is read.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use embedded_cluster::Compact;
use kube_api::keys::{OLD_SIMULATOR_RESULTS as OLD_PREFIX, SIMULATOR_RESULTS as PREFIX};
use scheduling::annotations::{history_entry, history_entry_len};
use scheduling::compact::{Draft, Kept, Pool};
use serde_json::{Map, Value};

/// A real API server's limit on the keys and values of all annotations together.
const LIMIT: usize = 256 << 10;
/// The part of it that is left to annotations that other programs add later.
const SPARE: usize = 8 << 10;
/// The largest part of the rest that the results of one cycle take; the history gets the remainder.
const RESULTS: usize = 128 << 10;

const HISTORY: &str = "result-history";

/// The prefix of written results. Both prefixes are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Prefix {
    /// `kube-scheduler-simulator.sigs.k8s.io/`
    #[default]
    New,
    /// `scheduler-simulator/`
    Old,
}

impl Prefix {
    /// The text.
    pub fn text(self) -> &'static str {
        match self {
            Self::New => PREFIX,
            Self::Old => OLD_PREFIX,
        }
    }
}

/// The results of a try, by the part of the annotation's name after the prefix.
pub(super) type Drafts<'r> = BTreeMap<&'static str, Draft<'r>>;

/// The results of one try, cut to fit.
#[derive(Debug, PartialEq)]
struct Try {
    prefix: Prefix,
    /// Sorted by name.
    values: Box<[(&'static str, Kept)]>,
}

impl Try {
    fn values(&self) -> impl Iterator<Item = (&str, &Kept)> {
        self.values.iter().map(|(name, value)| (*name, value))
    }

    /// The length in bytes of its entry in the history.
    fn entry_len(&self) -> usize {
        history_entry_len(self.prefix.text(), self.values())
    }
}

/// An entry of the history.
#[derive(Debug, Clone, PartialEq)]
enum Entry {
    /// An entry that came with the pod.
    Text(Arc<str>),
    Try(Arc<Try>),
}

impl Entry {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Try(of) => of.entry_len(),
        }
    }
}

/// All result annotations of a pod: those of its latest try, and the history.
#[derive(Debug)]
pub(super) struct Results {
    latest: Arc<Try>,
    /// The oldest first; `None` if there is no room for the annotation.
    history: Option<Box<[Entry]>>,
    size: usize,
}

impl Results {
    /// The results of a try for a pod that has the annotations `present` and, in addition, the results `before`.
    pub(super) fn of(
        prefix: Prefix,
        present: &Map<String, Value>,
        before: Option<&Self>,
        drafts: &Drafts<'_>,
        pool: &mut Pool,
    ) -> Self {
        let ours = |key: &str| key.starts_with(PREFIX) || key.starts_with(OLD_PREFIX);
        let others: usize = present
            .iter()
            .filter(|(key, _)| !ours(key))
            .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
            .sum();
        let room = (LIMIT - SPARE).saturating_sub(others);
        let keys: usize = drafts
            .keys()
            .map(|key| prefix.text().len() + key.len())
            .sum();
        let most = share(drafts, RESULTS.min(room).saturating_sub(keys));
        let values = drafts
            .iter()
            .map(|(name, draft)| (*name, draft.keep(most, pool)));
        let latest = Arc::new(Try {
            prefix,
            values: values.collect(),
        });
        let used: usize = keys + latest.values().map(|(_, value)| value.len()).sum::<usize>();
        let named = prefix.text().len() + HISTORY.len();
        let left = room.saturating_sub(used + named);
        let mut entries = entries(present, before);
        entries.push(Entry::Try(latest.clone()));
        let history = bounded(entries, left);
        let told = history.as_deref().map_or(0, |told| named + list_len(told));
        Self {
            latest,
            history,
            size: used + told,
        }
    }

    /// The results stored beside an object.
    pub(super) fn beside(compact: &dyn Compact) -> Option<&Self> {
        let any: &dyn Any = compact;
        any.downcast_ref()
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.latest.prefix.text())
    }
}

impl Compact for Results {
    fn render(&self) -> Vec<(String, String)> {
        let values = self.latest.values();
        let mut rendered: Vec<(String, String)> = values
            .map(|(name, value)| (self.key(name), value.render()))
            .collect();
        if let Some(entries) = &self.history {
            let texts: Vec<String> = entries
                .iter()
                .map(|entry| match entry {
                    Entry::Text(text) => text.to_string(),
                    Entry::Try(of) => history_entry(of.prefix.text(), of.values()),
                })
                .collect();
            rendered.push((self.key(HISTORY), format!("[{}]", texts.join(","))));
        }
        rendered
    }

    fn keys(&self) -> Vec<String> {
        let names = self.latest.values().map(|(name, _)| name);
        let history = self.history.is_some().then_some(HISTORY);
        names.chain(history).map(|name| self.key(name)).collect()
    }

    fn has(&self, key: &str) -> bool {
        key.strip_prefix(self.latest.prefix.text())
            .is_some_and(|name| {
                (name == HISTORY && self.history.is_some())
                    || self.latest.values().any(|(of, _)| of == name)
            })
    }

    fn size(&self) -> usize {
        self.size
    }

    fn same(&self, other: &dyn Compact) -> bool {
        if self.size != other.size() {
            return false;
        }
        let equal = Self::beside(other)
            .is_some_and(|other| self.latest == other.latest && self.history == other.history);
        equal || self.render() == other.render()
    }
}

/// The newest entries that fit into a list of this many bytes: the oldest are dropped first. `None` if not even an
/// empty list fits.
fn bounded(mut entries: Vec<Entry>, most: usize) -> Option<Box<[Entry]>> {
    let mut length = list_len(&entries);
    let mut gone = 0;
    for entry in &entries {
        if length <= most {
            break;
        }
        length -= entry.len() + usize::from(gone + 1 < entries.len());
        gone += 1;
    }
    entries.drain(..gone);
    (length <= most).then(|| entries.into())
}

/// The length in bytes of a JSON list of these entries.
fn list_len(entries: &[Entry]) -> usize {
    2 + entries.iter().map(Entry::len).sum::<usize>() + entries.len().saturating_sub(1)
}

/// The entries of the history under either prefix; `None` if it cannot be parsed.
fn entries(present: &Map<String, Value>, before: Option<&Results>) -> Vec<Entry> {
    for prefix in [Prefix::New, Prefix::Old] {
        if let Some(before) = before.filter(|before| before.latest.prefix == prefix)
            && let Some(entries) = &before.history
        {
            return entries.to_vec();
        }
        let text = present
            .get(&format!("{}{HISTORY}", prefix.text()))
            .and_then(Value::as_str);
        let list = text.map(serde_json::from_str::<Vec<&serde_json::value::RawValue>>);
        if let Some(Ok(list)) = list {
            let entries = list.iter().map(|entry| Entry::Text(entry.get().into()));
            return entries.collect();
        }
    }
    Vec::new()
}

/// The greatest length of each value so that all together have at most `most` bytes. Shorter values stay whole.
fn share(values: &Drafts<'_>, most: usize) -> usize {
    let all: usize = values.values().map(Draft::len).sum();
    if all <= most {
        return usize::MAX;
    }
    let mut lengths: Vec<usize> = values.values().map(Draft::len).collect();
    lengths.sort_unstable();
    // The long values share the room that the short ones leave.
    let (mut left, mut share) = (most, 0);
    let count = lengths.len();
    for (at, length) in lengths.into_iter().enumerate() {
        share = left / (count - at);
        if length > share {
            break;
        }
        left -= length;
    }
    share
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize) -> String {
        let nodes = (0..count)
            .map(|at| format!("\"node-{at:05}\":{{\"NodeName\":\"passed, \\\"so\\\"}}\"}}"));
        format!("{{{}}}", nodes.collect::<Vec<_>>().join(","))
    }

    fn drafts(texts: &[(&'static str, String)]) -> Drafts<'static> {
        let texts = texts.iter();
        texts
            .map(|(name, text)| (*name, Draft::text(text.clone())))
            .collect()
    }

    fn annotate(
        prefix: Prefix,
        present: &Map<String, Value>,
        results: &Drafts<'_>,
    ) -> BTreeMap<String, String> {
        let made = Results::of(prefix, present, None, results, &mut Pool::default());
        let rendered: BTreeMap<String, String> = made.render().into_iter().collect();
        assert_eq!(made.size(), size(&rendered));
        rendered
    }

    fn size(annotations: &BTreeMap<String, String>) -> usize {
        annotations
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum()
    }

    #[test]
    fn five_thousand_nodes_pass_the_limit_of_an_api_server() {
        let results = drafts(&[
            ("filter-result", nodes(5000)),
            ("score-result", nodes(5000)),
            ("finalscore-result", nodes(5000)),
            ("bind-result", "{}".to_owned()),
            ("selected-node", "node-00007".to_owned()),
        ]);
        let mut present = Map::new();
        present.insert("mine".into(), "x".repeat(40_000).into());

        for _ in 0..4 {
            let written = annotate(Prefix::New, &present, &results);
            assert!(size(&written) + 40_004 <= LIMIT, "{}", size(&written));
            assert_eq!(written[&format!("{PREFIX}selected-node")], "node-00007");
            assert_eq!(written[&format!("{PREFIX}bind-result")], "{}");
            for (key, value) in written {
                if !key.ends_with("selected-node") {
                    assert!(serde_json::from_str::<Value>(&value).is_ok(), "{key}");
                }
                present.insert(key, value.into());
            }
        }
    }

    #[test]
    fn a_pod_full_of_other_annotations_gets_what_is_left() {
        let results = drafts(&[
            ("filter-result", nodes(5000)),
            ("selected-node", "n".to_owned()),
        ]);
        let mut present = Map::new();
        present.insert("mine".into(), "x".repeat(LIMIT - SPARE - 300).into());

        let written = annotate(Prefix::New, &present, &results);

        assert!(size(&written) <= 300 + SPARE, "{}", size(&written));
    }

    #[test]
    fn history_goes_on_from_either_prefix() {
        let results = drafts(&[("selected-node", "n".to_owned())]);
        let first = annotate(Prefix::Old, &Map::new(), &results);
        let old = format!("{OLD_PREFIX}{HISTORY}");
        let mut present = Map::new();
        present.insert(old.clone(), first[&old].clone().into());

        let second = annotate(Prefix::New, &present, &results);

        let entries: Vec<Map<String, Value>> =
            serde_json::from_str(&second[&format!("{PREFIX}{HISTORY}")]).unwrap();
        assert_eq!(entries.len(), 2);
        assert!(entries[0].contains_key("scheduler-simulator/selected-node"));
        assert!(entries[1].contains_key("kube-scheduler-simulator.sigs.k8s.io/selected-node"));
    }

    #[test]
    fn results_beside_a_pod_and_its_text_lead_to_the_same() {
        let mut pool = Pool::default();
        let mut present = Map::new();
        present.insert("mine".into(), "x".repeat(100_000).into());
        let (mut text, mut beside): (_, Option<Results>) = (present.clone(), None);
        let mut lengths = Vec::new();

        for at in 0..40 {
            let prefix = if at < 5 { Prefix::Old } else { Prefix::New };
            let results = drafts(&[
                ("filter-result", nodes(20 * at)),
                ("selected-node", format!("n{at}")),
            ]);
            let by_text: BTreeMap<_, _> = annotate(prefix, &text, &results);
            let made = Results::of(prefix, &present, beside.as_ref(), &results, &mut pool);

            let rendered: BTreeMap<_, _> = made.render().into_iter().collect();
            assert!(rendered == by_text, "try {at}");
            assert!(rendered.keys().all(|key| made.has(key)));
            assert!(!made.has("mine") && !made.has(PREFIX));
            lengths.push(made.history.as_ref().map_or(0, |entries| entries.len()));
            text.extend(by_text.into_iter().map(|(key, value)| (key, value.into())));
            beside = Some(made);
        }

        assert_eq!(lengths[..3], [1, 2, 3]);
        assert!(lengths[39] < 10, "old entries have gone: {lengths:?}");
    }
}
