//! A comparison as lines of text: the measure, then one value for each run. Values in, text out.

use std::collections::BTreeSet;

use super::tally::Figures;
use super::{Column, Comparison};

/// The unit of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Whole numbers of pods.
    Pods,
    /// Percent, with one decimal.
    Percent,
    /// 0 to 1, with three decimals.
    Index,
    /// Seconds, with two decimals.
    Seconds,
}

/// A measured quantity.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measure {
    pub(super) label: &'static str,
    pub(super) unit: Unit,
    pub(super) value: fn(&Figures) -> Option<f64>,
}

pub(super) const PLACED: Measure = measure("pods placed", Unit::Pods, |of| Some(count(of.placed)));
pub(super) const PENDING: Measure =
    measure("pods pending", Unit::Pods, |of| Some(count(of.pending)));

/// All measures except the numbers of placed and pending pods.
pub(super) const MEASURES: [Measure; 11] = [
    measure("GPU memory promised", Unit::Percent, |of| {
        of.utilisation.gpu_memory
    }),
    measure("GPU cores promised", Unit::Percent, |of| {
        of.utilisation.gpu_cores
    }),
    measure("CPU requested", Unit::Percent, |of| of.utilisation.cpu),
    measure("memory requested", Unit::Percent, |of| {
        of.utilisation.memory
    }),
    measure("fragmentation of GPU memory", Unit::Percent, |of| {
        of.fragmentation
    }),
    measure("fairness between namespaces", Unit::Index, |of| of.fairness),
    measure("waiting, half of the pods", Unit::Seconds, |of| {
        of.waiting.p50_seconds
    }),
    measure("waiting, 95 of 100 pods", Unit::Seconds, |of| {
        of.waiting.p95_seconds
    }),
    measure("waiting, longest", Unit::Seconds, |of| {
        of.waiting.max_seconds
    }),
    measure("evicted, drained nodes", Unit::Pods, |of| {
        Some(count(of.evicted.drained))
    }),
    measure("evicted, preempted", Unit::Pods, |of| {
        Some(count(of.evicted.preempted))
    }),
];

const fn measure(label: &'static str, unit: Unit, value: fn(&Figures) -> Option<f64>) -> Measure {
    Measure { label, unit, value }
}

#[expect(clippy::cast_precision_loss, reason = "a number of pods")]
fn count(pods: u64) -> f64 {
    pods as f64
}

impl Measure {
    /// A value with its unit; `–` if there is none.
    pub(super) fn text(&self, figures: &Figures) -> String {
        match ((self.value)(figures), self.unit) {
            (None, _) => "–".to_owned(),
            (Some(value), Unit::Pods) => format!("{value:.0}"),
            (Some(value), Unit::Percent) => format!("{value:.1} %"),
            (Some(value), Unit::Index) => format!("{value:.3}"),
            (Some(value), Unit::Seconds) => format!("{value:.2} s"),
        }
    }
}

/// The greatest width of the first column, in characters.
const LABEL: usize = 46;
/// The greatest width of a run's name.
const NAME: usize = 24;

pub(super) fn table(comparison: &Comparison) -> String {
    let runs = &comparison.runs;
    let mut lines: Vec<(String, Vec<String>)> = Vec::new();
    let names = runs.iter().map(|run| shortened(&run.name, NAME)).collect();
    lines.push((String::new(), names));
    let row = |measure: &Measure| {
        let values = runs.iter().map(|run| measure.text(&run.figures));
        (measure.label.to_owned(), values.collect())
    };
    lines.push(row(&PLACED));
    lines.push(row(&PENDING));
    for reason in reasons(runs) {
        let values = runs.iter().map(|run| {
            let pods = run.figures.reasons.get(reason).copied();
            pods.unwrap_or_default().to_string()
        });
        let wrapped = wrapped(reason, LABEL - 4);
        for (at, part) in wrapped.into_iter().enumerate() {
            let indent = if at == 0 { "  " } else { "    " };
            let values = if at == 0 {
                values.clone().collect()
            } else {
                Vec::new()
            };
            lines.push((format!("{indent}{part}"), values));
        }
    }
    lines.extend(MEASURES.iter().map(row));
    let label = lines.iter().map(|(label, _)| width(label)).max();
    let label = label.unwrap_or_default();
    let widths: Vec<usize> = (0..runs.len())
        .map(|at| {
            let cells = lines.iter().filter_map(|(_, cells)| cells.get(at));
            cells.map(|cell| width(cell)).max().unwrap_or_default()
        })
        .collect();
    let mut text = String::new();
    for (name, cells) in &lines {
        let mut line = padded(name, label, false);
        for (cell, width) in cells.iter().zip(&widths) {
            line.push_str("  ");
            line.push_str(&padded(cell, *width, true));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    if let Some(typical) = &comparison.typical_request {
        text.push_str(&format!(
            "\nfragmentation is judged by {} MiB and {} cores of one {} device\n",
            typical.memory_mib, typical.cores, typical.vendor
        ));
    }
    for note in &comparison.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

/// The reasons of all runs, by name.
pub(super) fn reasons(runs: &[Column]) -> BTreeSet<&str> {
    let all = runs.iter().flat_map(|run| run.figures.reasons.keys());
    all.map(String::as_str).collect()
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn padded(text: &str, to: usize, right: bool) -> String {
    let space = " ".repeat(to.saturating_sub(width(text)));
    if right {
        format!("{space}{text}")
    } else {
        format!("{text}{space}")
    }
}

/// The start of a text, ending in `…` if it was cut. Control characters are dropped.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control()).collect();
    if width(&plain) <= most {
        return plain;
    }
    let mut short: String = plain.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Lines of at most `most` characters, broken between words; a longer word is broken inside.
fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let word: Vec<char> = word.chars().filter(|c| !c.is_control()).collect();
        for piece in word.chunks(most.max(1)) {
            let Some(line) = lines.last_mut() else {
                continue;
            };
            if line.is_empty() {
                line.extend(piece);
            } else if width(line) + 1 + piece.len() <= most {
                line.push(' ');
                line.extend(piece);
            } else {
                lines.push(piece.iter().collect());
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use expect_test::expect;

    use super::super::TypicalRequest;
    use super::*;

    fn column(name: &str, placed: u64, reasons: &[(&str, u64)]) -> Column {
        let reasons: BTreeMap<String, u64> = reasons
            .iter()
            .map(|(reason, pods)| ((*reason).to_owned(), *pods))
            .collect();
        Column {
            name: name.to_owned(),
            figures: Figures {
                placed,
                pending: reasons.values().sum(),
                reasons,
                fairness: Some(0.975),
                ..Figures::default()
            },
        }
    }

    #[test]
    fn every_run_is_a_column_and_long_reasons_are_wrapped() {
        let comparison = Comparison {
            base: "base.yaml".into(),
            typical_request: Some(TypicalRequest {
                vendor: "NVIDIA".into(),
                memory_mib: 8192,
                cores: 30,
            }),
            runs: vec![
                column("base", 9, &[("CardInsufficientMemory", 1)]),
                column(
                    "policy-b",
                    7,
                    &[(
                        "node(s) didn't match Pod's node affinity/selector; node unregistered",
                        3,
                    )],
                ),
            ],
            notes: vec!["a note".into()],
            ..Comparison::default()
        };

        expect![[r#"
                                                       base  policy-b
            pods placed                                   9         7
            pods pending                                  1         3
              CardInsufficientMemory                      1         0
              node(s) didn't match Pod's node             0         3
                affinity/selector; node unregistered
            GPU memory promised                           –         –
            GPU cores promised                            –         –
            CPU requested                                 –         –
            memory requested                              –         –
            fragmentation of GPU memory                   –         –
            fairness between namespaces               0.975     0.975
            waiting, half of the pods                     –         –
            waiting, 95 of 100 pods                       –         –
            waiting, longest                              –         –
            evicted, drained nodes                        0         0
            evicted, preempted                            0         0

            fragmentation is judged by 8192 MiB and 30 cores of one NVIDIA device
            note: a note
        "#]]
        .assert_eq(&table(&comparison));
    }

    #[test]
    fn odd_names_break_no_line() {
        let long = "x".repeat(200);
        let comparison = Comparison {
            runs: vec![column(
                "a\nb\u{1b}[31m",
                1,
                &[(&long, 1), ("", 2), ("\u{7}", 1)],
            )],
            ..Comparison::default()
        };

        let table = table(&comparison);

        assert!(table.lines().all(|line| width(line) < 90), "{table}");
        assert!(!table.contains('\u{1b}') && !table.contains('\u{7}'));
    }
}
