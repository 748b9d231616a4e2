//! A record as the simulator's result annotations: each value a JSON text with sorted keys, byte for byte as the
//! recorded simulator writes it. Never names an annotation in full: the prefix is the caller's.

use std::collections::BTreeMap;

use crate::record::{Record, Said};

/// Values of the annotations, by the part of their name behind the prefix.
pub type Annotations = BTreeMap<&'static str, String>;

/// Every annotation of a cycle but `result-history` and those of extenders. All keys are always there.
pub fn render(record: &Record) -> Annotations {
    let mut filter: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for (node, verdict) in &record.nodes {
        let of_node = filter.entry(node).or_default();
        let passed = usize::try_from(verdict.passed).unwrap_or(usize::MAX);
        for plugin in record.filters.iter().take(passed) {
            of_node.insert(plugin.name(), "passed");
        }
        let text = verdict
            .refused
            .and_then(|at| record.texts.get(usize::try_from(at).ok()?));
        if let (Some(text), Some(plugin)) = (text, record.filters.get(passed)) {
            of_node.insert(plugin.name(), text);
        }
    }
    let mut post_filter: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    if let Some(found) = &record.post_filter {
        for node in &record.all_nodes {
            let of_node = post_filter.entry(node).or_default();
            if found.nominated.as_ref() == Some(node) {
                of_node.insert(found.plugin.name(), "preemption victim");
            }
        }
    }
    let mut narrowed = BTreeMap::new();
    for (plugin, nodes) in &record.only {
        let nodes: Vec<String> = nodes.iter().map(|node| quoted(node)).collect();
        narrowed.insert(plugin.name(), format!("[{}]", nodes.join(",")));
    }
    let scored = |weighted: bool| {
        let mut scores: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
        if let Some(scored) = &record.scored {
            let values = if weighted {
                &scored.weighted
            } else {
                &scored.raw
            };
            let rows = values.chunks(scored.plugins.len().max(1));
            for (node, row) in scored.nodes.iter().zip(rows) {
                let of_node = scores.entry(node).or_default();
                for ((plugin, _), score) in scored.plugins.iter().zip(row) {
                    of_node.insert(plugin.name(), score.to_string());
                }
            }
        }
        nested(&scores)
    };
    BTreeMap::from([
        ("bind-result", said(&record.bind)),
        ("filter-result", nested(&filter)),
        ("finalscore-result", scored(true)),
        ("permit-result", "{}".to_owned()),
        ("permit-result-timeout", "{}".to_owned()),
        ("postfilter-result", nested(&post_filter)),
        ("prebind-result", said(&record.pre_bind)),
        ("prefilter-result", object(narrowed)),
        ("prefilter-result-status", said(&record.pre_filter)),
        ("prescore-result", said(&record.pre_score)),
        ("reserve-result", said(&record.reserve)),
        ("score-result", scored(false)),
        (
            "selected-node",
            record.selected.as_deref().unwrap_or_default().to_owned(),
        ),
    ])
}

/// One entry of `result-history`: annotations as an object with the whole names of their keys.
pub fn history_entry(prefix: &str, annotations: &BTreeMap<&str, String>) -> String {
    let whole: BTreeMap<String, String> = annotations
        .iter()
        .map(|(name, value)| (format!("{prefix}{name}"), quoted(value)))
        .collect();
    object(
        whole
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone())),
    )
}

/// `result-history` with a further entry. The oldest entries go until the text has at most `most_bytes`; the newest one
/// stays in any case.
pub fn history(before: &[String], entry: &str, most_bytes: usize) -> (String, usize) {
    let mut entries: Vec<&str> = before.iter().map(String::as_str).collect();
    entries.push(entry);
    let length = |entries: &[&str]| entries.iter().map(|entry| entry.len() + 1).sum::<usize>() + 1;
    let mut dropped = 0;
    while let Some((_, rest)) = entries.split_first()
        && !rest.is_empty()
        && length(&entries) > most_bytes
    {
        entries.remove(0);
        dropped += 1;
    }
    (format!("[{}]", entries.join(",")), dropped)
}

fn said(list: &[(crate::plugin::Plugin, Said)]) -> String {
    let texts: BTreeMap<&str, String> = list
        .iter()
        .map(|(plugin, said)| {
            let text = match said {
                Said::Success => "success",
                Said::Skipped => "",
                Said::No(why) => why,
            };
            (plugin.name(), quoted(text))
        })
        .collect();
    object(texts)
}

fn nested<T: AsRef<str>>(nodes: &BTreeMap<&str, BTreeMap<&str, T>>) -> String {
    object(nodes.iter().map(|(node, of_node)| {
        let inner = of_node
            .iter()
            .map(|(plugin, text)| (*plugin, quoted(text.as_ref())));
        (*node, object(inner))
    }))
}

/// A JSON object of values that are JSON already.
fn object<'a>(fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut text = String::from("{");
    for (name, value) in fields {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&quoted(name));
        text.push(':');
        text.push_str(&value);
    }
    text.push('}');
    text
}

/// A JSON text as Go's encoder writes it: `<`, `>`, `&` and two line separators are escaped, too.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}
