//! Result annotations on a pod: which prefix, how much of them fits, what was there before. Values in, values out.
//!
//! A real API server takes at most 256 KiB of annotations on one object. The results of a cycle get what other
//! annotations leave, and its history gets what the results leave. A value that is too long loses whole entries, and one
//! entry more says how many; it stays JSON.

use std::collections::BTreeMap;

use kube_api::keys::{OLD_SIMULATOR_RESULTS as OLD_PREFIX, SIMULATOR_RESULTS as PREFIX};
use scheduling::annotations::{history, history_entry};
use serde_json::{Map, Value};

/// What a real API server takes: keys and values of all annotations together.
const LIMIT: usize = 256 << 10;
/// Of that, what is left to annotations that others add later.
const SPARE: usize = 8 << 10;
/// The largest part of the rest that the results of one cycle take; the history has what is left.
const RESULTS: usize = 128 << 10;

const HISTORY: &str = "result-history";

/// Under which prefix results are written. Both are read.
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

/// The annotations of a cycle for a pod that has these annotations: its results and its history.
pub(super) fn annotate(
    prefix: Prefix,
    present: &Map<String, Value>,
    results: &BTreeMap<&str, String>,
) -> BTreeMap<String, String> {
    let ours = |key: &str| key.starts_with(PREFIX) || key.starts_with(OLD_PREFIX);
    let others: usize = present
        .iter()
        .filter(|(key, _)| !ours(key))
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    let room = (LIMIT - SPARE).saturating_sub(others);
    let keys: usize = results
        .keys()
        .map(|key| prefix.text().len() + key.len())
        .sum();
    let kept = fit(results, RESULTS.min(room).saturating_sub(keys));
    let used: usize = keys + kept.values().map(String::len).sum::<usize>();
    let left = room.saturating_sub(used + prefix.text().len() + HISTORY.len());
    let before = entries(present);
    let entry = history_entry(prefix.text(), &kept);
    let (mut told, _) = history(&before, &entry, left);
    if told.len() > left {
        told = if left >= 2 {
            "[]".to_owned()
        } else {
            String::new()
        };
    }
    let mut written: BTreeMap<String, String> = kept
        .iter()
        .map(|(key, value)| (format!("{}{key}", prefix.text()), value.clone()))
        .collect();
    if !told.is_empty() {
        written.insert(format!("{}{HISTORY}", prefix.text()), told);
    }
    written
}

/// The entries of the history under either prefix; none where it cannot be read.
fn entries(present: &Map<String, Value>) -> Vec<String> {
    let texts = [PREFIX, OLD_PREFIX]
        .iter()
        .filter_map(|prefix| present.get(&format!("{prefix}{HISTORY}"))?.as_str());
    for text in texts {
        if let Ok(list) = serde_json::from_str::<Vec<&serde_json::value::RawValue>>(text) {
            return list.iter().map(|entry| entry.get().to_owned()).collect();
        }
    }
    Vec::new()
}

/// The same values, cut so that together they have at most so many bytes. Short values stay whole.
fn fit<'a>(values: &BTreeMap<&'a str, String>, most: usize) -> BTreeMap<&'a str, String> {
    let all: usize = values.values().map(String::len).sum();
    if all <= most {
        return values.clone();
    }
    let mut lengths: Vec<usize> = values.values().map(String::len).collect();
    lengths.sort_unstable();
    // The share of the long ones is what the short ones leave.
    let (mut left, mut share) = (most, 0);
    let count = lengths.len();
    for (at, length) in lengths.into_iter().enumerate() {
        share = left / (count - at);
        if length > share {
            break;
        }
        left -= length;
    }
    values
        .iter()
        .map(|(key, value)| (*key, cut(value, share)))
        .collect()
}

/// A JSON object with as many of its first entries as fit into so many bytes, and one that says how many are missing.
/// Other texts are cut at a letter.
pub(super) fn cut(value: &str, most: usize) -> String {
    if value.len() <= most {
        return value.to_owned();
    }
    let ends = entry_ends(value);
    let marker = |missing: usize| {
        format!(
            "\"…\":\"cut: {missing} of {} entries are left out\"}}",
            ends.len()
        )
    };
    if value.starts_with('{') && !ends.is_empty() {
        let fits = |kept: usize| {
            let end = kept.checked_sub(1).and_then(|at| ends.get(at)).copied();
            let end = end.map_or(1, |end| end + 1);
            (end, end + marker(ends.len() - kept).len() <= most)
        };
        let kept = (0..ends.len()).rev().find(|kept| fits(*kept).1);
        if let Some(kept) = kept {
            let (end, _) = fits(kept);
            let comma = if kept > 0 { "," } else { "" };
            let first = value
                .get(1..end.saturating_sub(1).max(1))
                .unwrap_or_default();
            return format!("{{{first}{comma}{}", marker(ends.len() - kept));
        }
        return if most >= 2 {
            "{}".to_owned()
        } else {
            String::new()
        };
    }
    let end = (0..=most.saturating_sub(3))
        .rev()
        .find(|at| value.is_char_boundary(*at))
        .unwrap_or(0);
    format!("{}…", value.get(..end).unwrap_or_default())
}

/// Where the entries of an object end: the place of the comma, or of the brace, behind each.
fn entry_ends(object: &str) -> Vec<usize> {
    let (mut depth, mut inside, mut escaped) = (0_u32, false, false);
    let mut ends = Vec::new();
    for (at, byte) in object.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if inside => escaped = true,
            b'"' => inside = !inside,
            _ if inside => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    ends.push(at);
                }
            }
            b',' if depth == 1 => ends.push(at),
            _ => {}
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize) -> String {
        let nodes = (0..count)
            .map(|at| format!("\"node-{at:05}\":{{\"NodeName\":\"passed, \\\"so\\\"}}\"}}"));
        format!("{{{}}}", nodes.collect::<Vec<_>>().join(","))
    }

    fn size(annotations: &BTreeMap<String, String>) -> usize {
        annotations
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum()
    }

    #[test]
    fn a_cut_value_is_json_with_whole_entries_and_a_marker() {
        let whole = nodes(100);

        let short = cut(&whole, 500);

        let parsed: Map<String, Value> = serde_json::from_str(&short).unwrap();
        assert!(short.len() <= 500 && parsed.len() > 5, "{short}");
        assert_eq!(parsed["node-00000"]["NodeName"], "passed, \"so\"}");
        let missing = 100 - (parsed.len() - 1);
        assert_eq!(
            parsed["…"],
            format!("cut: {missing} of 100 entries are left out")
        );
        assert_eq!(cut(&whole, whole.len()), whole);
        assert_eq!(cut(&whole, 3), "{}");
        assert_eq!(cut("größer", 6), "gr…");
    }

    #[test]
    fn five_thousand_nodes_pass_the_limit_of_an_api_server() {
        let results = BTreeMap::from([
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
        let results = BTreeMap::from([
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
        let results = BTreeMap::from([("selected-node", "n".to_owned())]);
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
}
