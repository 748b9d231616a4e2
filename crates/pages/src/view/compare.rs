//! The results of several runs: a table, and charts. The same input gives the same bytes.

use crate::source::{Comparison, Run};

/// The contents of the comparison.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Compared {
    /// The names of the runs, which are the columns.
    pub runs: Vec<String>,
    /// The measures.
    pub rows: Vec<ComparedLine>,
    /// The reasons for which pods wait, by run.
    pub reasons: Vec<ComparedLine>,
    /// A group of bars for each measure that is drawn.
    pub charts: Vec<Chart>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// A line of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ComparedLine {
    /// The measure, with its unit.
    pub label: String,
    /// One value for each run.
    pub cells: Vec<RunValue>,
}

/// A value of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunValue {
    /// The value.
    pub text: String,
    /// Whether no other run is better and at least one is worse.
    pub best: bool,
}

/// Bars of one measure.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chart {
    /// The measure, with its unit.
    pub label: String,
    /// One bar for each run.
    pub bars: Vec<Column>,
    /// The height of the drawing, in pixels.
    pub height: usize,
    /// The chart in words.
    pub spoken: String,
}

/// A bar.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Column {
    /// The run.
    pub name: String,
    /// The value.
    pub text: String,
    /// The length of the bar, in percent of the longest possible one.
    pub width: String,
    /// The top of the bar, in pixels.
    pub top: usize,
    /// The baseline of its text, in pixels.
    pub baseline: usize,
}

/// The name of a measure, its value, and whether more is better. `None` if neither direction is better: a run that
/// places fewer pods has shorter waits.
type Measure = (&'static str, fn(&Run) -> f64, Option<bool>);

const MEASURES: [Measure; 13] = [
    ("Pods placed", placed, Some(true)),
    ("Pods pending", pending, Some(false)),
    (
        "GPU memory promised, %",
        |run| run.memory_percent,
        Some(true),
    ),
    (
        "GPU compute promised, %",
        |run| run.compute_percent,
        Some(true),
    ),
    ("CPU requested, %", |run| run.cpu_percent, Some(true)),
    (
        "Memory requested, %",
        |run| run.node_memory_percent,
        Some(true),
    ),
    (
        "Free GPU memory on GPUs too full for a typical pod, %",
        |run| run.fragmentation_percent,
        Some(false),
    ),
    (
        "Fairness between namespaces, 0 to 1",
        |run| run.fairness,
        Some(true),
    ),
    (
        "Wait, 50th percentile, seconds",
        |run| run.waited_p50_seconds,
        None,
    ),
    (
        "Wait, 95th percentile, seconds",
        |run| run.waited_p95_seconds,
        None,
    ),
    ("Longest wait, seconds", |run| run.waited_max_seconds, None),
    ("Evicted from drained nodes, pods", drained, Some(false)),
    (
        "Evicted for a higher priority, pods",
        preempted,
        Some(false),
    ),
];

/// The measures that are drawn, each with the end of its scale; none for the largest value.
const CHARTS: [(usize, Option<f64>); 6] = [
    (0, None),
    (1, None),
    (2, Some(100.0)),
    (3, Some(100.0)),
    (6, Some(100.0)),
    (7, Some(1.0)),
];

#[expect(clippy::cast_precision_loss, reason = "a number of pods")]
fn placed(run: &Run) -> f64 {
    run.placed as f64
}

#[expect(clippy::cast_precision_loss, reason = "a number of pods")]
fn pending(run: &Run) -> f64 {
    run.pending.iter().map(|(_, pods)| *pods).sum::<u64>() as f64
}

#[expect(clippy::cast_precision_loss, reason = "a number of pods")]
fn drained(run: &Run) -> f64 {
    run.drained as f64
}

#[expect(clippy::cast_precision_loss, reason = "a number of pods")]
fn preempted(run: &Run) -> f64 {
    run.preempted as f64
}

/// The contents of the comparison.
pub fn compared(comparison: &Comparison) -> Compared {
    let runs = &comparison.runs;
    let rows = MEASURES.iter().map(|measure| line(measure, runs));
    let mut reasons: Vec<&str> = runs
        .iter()
        .flat_map(|run| run.pending.iter().map(|(reason, _)| reason.as_str()))
        .collect();
    reasons.sort_unstable();
    reasons.dedup();
    let reason_line = |reason: &str| ComparedLine {
        label: reason.to_owned(),
        cells: runs
            .iter()
            .map(|run| {
                let pods = run.pending.iter().find(|(other, _)| other == reason);
                RunValue {
                    text: pods.map_or(0, |(_, pods)| *pods).to_string(),
                    best: false,
                }
            })
            .collect(),
    };
    // A measure without any value, such as GPU memory if there are no GPUs, is not drawn.
    let is_known = |(_, value, _): &&Measure| runs.iter().any(|run| value(run).is_finite());
    let charts = CHARTS.iter().filter_map(|(position, end)| {
        let measure = MEASURES.get(*position).filter(is_known)?;
        Some(chart(measure, *end, runs))
    });
    Compared {
        runs: runs.iter().map(|run| run.name.clone()).collect(),
        rows: rows.collect(),
        reasons: reasons.into_iter().map(reason_line).collect(),
        charts: charts.collect(),
        notes: comparison.notes.clone(),
    }
}

fn line((label, value, more_is_better): &Measure, runs: &[Run]) -> ComparedLine {
    let values: Vec<f64> = runs.iter().map(value).collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let best = more_is_better.map(|more| if more { most } else { least });
    let cells = values.iter().map(|value| RunValue {
        text: number(*value),
        best: least < most && best.is_some_and(|best| value.total_cmp(&best).is_eq()),
    });
    ComparedLine {
        label: (*label).to_owned(),
        cells: cells.collect(),
    }
}

/// The height of the text above a bar, of a bar, and of the gap below it, in pixels.
const TEXT: usize = 22;
const BAR: usize = 12;
const GAP: usize = 6;

fn chart((label, value, _): &Measure, end: Option<f64>, runs: &[Run]) -> Chart {
    let most = runs.iter().map(value).fold(0.0, f64::max);
    let end = end.unwrap_or(most).max(f64::MIN_POSITIVE);
    let bars: Vec<Column> = runs
        .iter()
        .enumerate()
        .map(|(position, run)| {
            let value = value(run);
            let above = position * (TEXT + BAR + GAP);
            Column {
                name: run.name.clone(),
                text: number(value),
                width: format!("{:.2}", percent(value, end)),
                top: above + TEXT,
                baseline: above + TEXT - 6,
            }
        })
        .collect();
    let words: Vec<String> = bars
        .iter()
        .map(|bar| format!("{} {}", bar.name, bar.text))
        .collect();
    Chart {
        label: (*label).to_owned(),
        height: (bars.len() * (TEXT + BAR + GAP)).saturating_sub(GAP),
        spoken: format!("{label}: {}", words.join(", ")),
        bars,
    }
}

/// The length of a bar; 0 if the value is unknown.
fn percent(value: f64, end: f64) -> f64 {
    if value.is_finite() {
        (value / end * 100.0).clamp(0.0, 100.0)
    } else {
        0.0
    }
}

/// At most two decimals, without trailing zeros.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return "not known".to_owned();
    }
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" {
        "0".to_owned()
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, placed: u64, memory_percent: f64) -> Run {
        Run {
            name: name.into(),
            placed,
            memory_percent,
            pending: vec![("Insufficient cpu".into(), 10 - placed)],
            ..Run::default()
        }
    }

    #[test]
    fn the_better_run_is_marked_and_a_tie_is_not() {
        let comparison = Comparison {
            runs: vec![run("now", 6, 50.0), run("binpack", 9, 50.0)],
            ..Comparison::default()
        };

        let compared = compared(&comparison);

        let best =
            |line: &ComparedLine| line.cells.iter().map(|cell| cell.best).collect::<Vec<_>>();
        assert_eq!(best(&compared.rows[0]), [false, true]);
        assert_eq!(best(&compared.rows[1]), [false, true]);
        assert_eq!(best(&compared.rows[2]), [false, false]);
        assert_eq!(compared.reasons[0].cells[0].text, "4");
        assert_eq!(compared.charts[0].bars[0].width, "66.67");
        assert_eq!(compared.charts[2].bars[0].width, "50.00");
        assert_eq!(
            compared.charts[2].spoken,
            "GPU memory promised, %: now 50, binpack 50"
        );
    }

    #[test]
    fn no_run_and_odd_numbers_do_no_harm() {
        assert_eq!(compared(&Comparison::default()).charts, []);
        let unknown = Comparison {
            runs: vec![
                run("a", 1, f64::NAN),
                run("b", 1, 20.0),
                run("c", 1, f64::NAN),
            ],
            ..Comparison::default()
        };
        let shown = compared(&unknown);
        assert_eq!(shown.rows[2].cells[0].text, "not known");
        assert_eq!(shown.charts[2].bars[0].width, "0.00");
        assert_eq!(shown.charts[2].bars[1].width, "20.00");
        let without = Comparison {
            runs: vec![run("a", 1, f64::NAN)],
            ..Comparison::default()
        };
        assert!(
            compared(&without)
                .charts
                .iter()
                .all(|chart| !chart.label.contains("GPU memory promised"))
        );
        assert_eq!(number(f64::NAN), "not known");
        assert_eq!(
            [number(0.0), number(-0.001), number(12.5)],
            ["0", "0", "12.5"]
        );
    }
}
