//! The compact form of results against a plain one: the same text, the length that it says, the same cut.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use scheduling::annotations::{history_entry, history_entry_len, render};
use scheduling::compact::{Kept, Pool, cut, drafts, quoted};
use scheduling::plugin::Plugin;
use scheduling::record::{PostFilter, Record, Said, Scored, Verdict};
use serde_json::{Map, Value};

const NAMES: [&str; 7] = ["n1", "node-2", "a", "<b&>", "ü\"\\", "z.z", "line\n\u{1}"];
const REASONS: [&str; 4] = [
    "Insufficient cpu",
    "taint {a: \"b\"}",
    "<none> & more",
    "–\t",
];

fn name(at: usize) -> Arc<str> {
    format!("{}{}", NAMES[at % NAMES.len()], at / NAMES.len()).into()
}

fn any_record() -> impl Strategy<Value = Record> {
    let verdicts = prop::collection::vec((0..40_usize, 0..6_u32, 0..6_usize), 0..60);
    let scores = prop::collection::vec(
        (
            0..40_usize,
            prop::collection::vec(
                prop_oneof![-3..101_i64, Just(i64::MIN), Just(i64::MAX), any::<i64>()],
                6,
            ),
        ),
        0..60,
    );
    (verdicts, scores, 0..50_usize, any::<bool>()).prop_map(|(verdicts, scores, all, scored)| {
        let filters = Plugin::ALL[2..8].to_vec();
        let nodes = verdicts.iter().map(|(node, passed, why)| {
            let refused = (*why < REASONS.len()).then_some(u32::try_from(*why).unwrap());
            let passed = if refused.is_some() { *passed } else { 6 };
            (name(*node), Verdict { passed, refused })
        });
        let mut ranked: BTreeMap<usize, Vec<i64>> = scores.into_iter().collect();
        ranked.retain(|at, _| *at > 1);
        Record {
            pre_filter: vec![
                (Plugin::NodeAffinity, Said::Success),
                (Plugin::NodePorts, Said::Skipped),
                (Plugin::GpuFit, Said::No("<no>".into())),
            ],
            only: vec![(Plugin::NodeAffinity, vec![name(4), name(2)])],
            nodes: nodes.collect(),
            filters,
            texts: REASONS.iter().map(|text| (*text).into()).collect(),
            post_filter: (all > 0).then(|| PostFilter {
                plugin: Plugin::DefaultPreemption,
                nominated: (all > 20).then(|| name(all / 2)),
            }),
            all_nodes: (0..all).map(name).collect(),
            scored: scored.then(|| Scored {
                plugins: vec![
                    (Plugin::TaintToleration, 3),
                    (Plugin::NodeResourcesFit, 1),
                    (Plugin::ImageLocality, 1),
                ],
                nodes: ranked.keys().rev().map(|at| name(*at)).collect(),
                raw: ranked
                    .values()
                    .rev()
                    .flat_map(|row| row[..3].to_vec())
                    .collect(),
                weighted: ranked
                    .values()
                    .rev()
                    .flat_map(|row| row[3..].to_vec())
                    .collect(),
            }),
            selected: (all % 2 == 0).then(|| name(all)),
            ..Record::default()
        }
    })
}

/// A map of maps of texts, as `serde_json` prints it, with the further letters that Go escapes.
fn plain(value: &BTreeMap<String, BTreeMap<String, String>>) -> String {
    serde_json::to_string(value)
        .unwrap()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
}

fn filter_result(record: &Record) -> String {
    let mut all: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for (node, verdict) in &record.nodes {
        let row = all.entry(node.to_string()).or_default();
        let passed = verdict.passed as usize;
        for plugin in &record.filters[..passed] {
            row.insert(plugin.name().to_owned(), "passed".to_owned());
        }
        if let Some(why) = verdict.refused {
            let why = record.texts[why as usize].to_string();
            row.insert(record.filters[passed].name().to_owned(), why);
        }
    }
    plain(&all)
}

fn scores(record: &Record, weighted: bool) -> String {
    let mut all: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    if let Some(scored) = &record.scored {
        let values = if weighted {
            &scored.weighted
        } else {
            &scored.raw
        };
        for (node, row) in scored.nodes.iter().zip(values.chunks(scored.plugins.len())) {
            let columns = scored.plugins.iter().zip(row);
            let row =
                columns.map(|((plugin, _), score)| (plugin.name().to_owned(), score.to_string()));
            all.insert(node.to_string(), row.collect());
        }
    }
    plain(&all)
}

fn post_filter(record: &Record) -> String {
    let mut all: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    if let Some(found) = &record.post_filter {
        for node in &record.all_nodes {
            let row = all.entry(node.to_string()).or_default();
            if found.nominated.as_ref() == Some(node) {
                row.insert(
                    found.plugin.name().to_owned(),
                    "preemption victim".to_owned(),
                );
            }
        }
    }
    plain(&all)
}

proptest! {
    #[test]
    fn the_text_is_that_of_a_plain_rendering(record in any_record()) {
        let rendered = render(&record);

        prop_assert_eq!(&rendered["filter-result"], &filter_result(&record));
        prop_assert_eq!(&rendered["score-result"], &scores(&record, false));
        prop_assert_eq!(&rendered["finalscore-result"], &scores(&record, true));
        prop_assert_eq!(&rendered["postfilter-result"], &post_filter(&record));
        prop_assert_eq!(
            &rendered["prefilter-result-status"],
            r#"{"GpuFit":"\u003cno\u003e","NodeAffinity":"success","NodePorts":""}"#
        );
        prop_assert_eq!(rendered.len(), 13);
    }

    #[test]
    fn lengths_are_those_of_the_text(record in any_record(), most in 0..4000_usize) {
        let mut pool = Pool::default();
        let mut kept: Vec<(&str, Kept)> = Vec::new();
        for (name, draft) in drafts(&record) {
            let whole = draft.keep(usize::MAX, &mut pool);
            let short = draft.keep(most, &mut pool);

            let text = whole.render();
            prop_assert_eq!((draft.len(), whole.len()), (text.len(), text.len()));
            prop_assert_eq!(whole.quoted_len(), quoted(&text).len());
            prop_assert_eq!(short.render(), cut(&text, most));
            prop_assert_eq!(short.len(), short.render().len());
            prop_assert_eq!(short.quoted_len(), quoted(&short.render()).len());
            kept.push((name, short));
        }
        let entry = |prefix| {
            let values = || kept.iter().map(|(name, value)| (*name, value));
            (history_entry(prefix, values()).len(), history_entry_len(prefix, values()))
        };
        let (length, said) = entry("prefix.example/");
        prop_assert_eq!(length, said);
    }
}

fn nodes(count: usize) -> String {
    let nodes =
        (0..count).map(|at| format!("\"node-{at:05}\":{{\"NodeName\":\"passed, \\\"so\\\"}}\"}}"));
    format!("{{{}}}", nodes.collect::<Vec<_>>().join(","))
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
