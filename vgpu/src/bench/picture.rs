//! The results as a picture (SVG): for each workload share over time, and its table beside it.
//! Text in, text out; needs no font beyond the viewer's own.

use std::fmt::Write;

use super::table::{NOTHING, cells};
use super::{AccuracyResults, AccuracyRow};

const WIDTH: f64 = 1240.0;
const MARGIN: f64 = 28.0;
const CHART_LEFT: f64 = 64.0;
const CHART_WIDTH: f64 = 560.0;
const CHART_HEIGHT: f64 = 150.0;
const TABLE_LEFT: f64 = 664.0;
const LINE: f64 = 19.0;
const TITLE: f64 = 30.0;
const GAP: f64 = 40.0;
/// Colours on white that colour-blind readers can distinguish (Okabe and Ito).
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a07a00", "#56a8d9", "#444444", "#7a4fb5",
];
/// The table's columns and how wide they are; one with nothing in it is left out.
const COLUMNS: [(&str, f64); 8] = [
    ("asked", 70.0),
    ("mean", 58.0),
    ("worst 100 ms", 94.0),
    ("worst window", 96.0),
    ("MAE", 48.0),
    ("overshoot", 68.0),
    ("reached", 62.0),
    ("slower", 60.0),
];

/// The whole picture.
pub(crate) fn svg(results: &AccuracyResults) -> String {
    let panels = panels(&results.rows);
    let height: f64 = MARGIN + 52.0 + panels.iter().map(|panel| height_of(panel)).sum::<f64>();
    let mut to = String::new();
    put(
        &mut to,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"Helvetica, Arial, sans-serif\" \
         font-size=\"12\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        ),
    );
    let truth = if results.simulated {
        "a simulated GPU, as its board says"
    } else {
        "a GPU, as its kernels wrote it down"
    };
    put(
        &mut to,
        format_args!(
            "<text x=\"{MARGIN}\" y=\"36\" font-size=\"18\" font-weight=\"bold\">Share of GPU time: \
         asked and got</text>\n<text x=\"{MARGIN}\" y=\"56\" fill=\"#555\">{truth}; {} s each; lines: \
         windows of 100 ms; dashes: what was asked; table: percent and points</text>\n",
            results.seconds
        ),
    );
    let mut top = MARGIN + 52.0;
    for panel in &panels {
        draw(&mut to, panel, top, results.seconds);
        top += height_of(panel);
    }
    to.push_str("</svg>\n");
    to
}

/// Writing to a String cannot fail.
pub(crate) fn put(to: &mut String, text: std::fmt::Arguments<'_>) {
    let _done = to.write_fmt(text);
}

struct WorkloadPanel<'a> {
    title: &'a str,
    rows: Vec<&'a AccuracyRow>,
}

/// Rows of one workload stand together; those that have no share over time share a table.
fn panels(rows: &[AccuracyRow]) -> Vec<WorkloadPanel<'_>> {
    let mut panels: Vec<WorkloadPanel<'_>> = Vec::new();
    for row in rows {
        let title = if row.slower_percent.is_some() {
            "programs that ask for less than their cap"
        } else {
            &row.workload
        };
        match panels.last_mut().filter(|panel| panel.title == title) {
            Some(panel) => panel.rows.push(row),
            None => panels.push(WorkloadPanel {
                title,
                rows: vec![row],
            }),
        }
    }
    panels
}

impl WorkloadPanel<'_> {
    fn has_chart(&self) -> bool {
        self.rows.iter().any(|row| !row.shares.is_empty())
    }
}

fn height_of(panel: &WorkloadPanel<'_>) -> f64 {
    let rows = u32::try_from(panel.rows.len()).unwrap_or(u32::MAX);
    let table = LINE * (f64::from(rows) + 1.0);
    let chart = if panel.has_chart() {
        CHART_HEIGHT + 22.0
    } else {
        0.0
    };
    TITLE + table.max(chart) + GAP
}

fn draw(to: &mut String, panel: &WorkloadPanel<'_>, top: f64, seconds: f64) {
    put(
        to,
        format_args!(
            "<text x=\"{MARGIN}\" y=\"{:.1}\" font-size=\"14\" font-weight=\"bold\">{}</text>\n",
            top + 14.0,
            escaped(panel.title)
        ),
    );
    let top = top + TITLE;
    if panel.has_chart() {
        chart(to, panel, top, seconds);
        table(to, panel, TABLE_LEFT, top);
    } else {
        table(to, panel, CHART_LEFT + 150.0, top);
    }
}

fn colour(index: usize) -> &'static str {
    COLOURS
        .get(index % COLOURS.len())
        .copied()
        .unwrap_or("#000")
}

fn chart(to: &mut String, panel: &WorkloadPanel<'_>, top: f64, seconds: f64) {
    let x = |at: f64| CHART_LEFT + at / seconds * CHART_WIDTH;
    let y = |share: f64| top + CHART_HEIGHT - share.clamp(0.0, 105.0) / 100.0 * CHART_HEIGHT;
    for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
        let at = y(percent);
        put(
            to,
            format_args!(
                "<line x1=\"{CHART_LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" \
             stroke=\"#ddd\"/>\n<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\" \
             font-size=\"11\">{percent}%</text>\n",
                CHART_LEFT + CHART_WIDTH,
                CHART_LEFT - 6.0,
                at + 4.0
            ),
        );
    }
    let step = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0]
        .into_iter()
        .find(|step| seconds / step <= 10.0)
        .unwrap_or(600.0);
    for tick in 0_u32.. {
        let at = f64::from(tick) * step;
        if at > seconds + 1e-9 {
            break;
        }
        let decimals = usize::from(step < 1.0);
        put(
            to,
            format_args!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\" \
             font-size=\"11\">{at:.decimals$} s</text>\n",
                x(at),
                top + CHART_HEIGHT + 16.0
            ),
        );
    }
    for (index, row) in panel.rows.iter().enumerate() {
        let at = y(f64::from(row.asked));
        put(
            to,
            format_args!(
                "<line x1=\"{CHART_LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{}\" \
             stroke-dasharray=\"5 4\" stroke-opacity=\"0.6\"/>\n",
                CHART_LEFT + CHART_WIDTH,
                colour(index)
            ),
        );
    }
    for (index, row) in panel.rows.iter().enumerate() {
        if row.shares.is_empty() {
            continue;
        }
        put(
            to,
            format_args!(
                "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\" \
             stroke-linejoin=\"round\" points=\"",
                colour(index)
            ),
        );
        for (at, share) in &row.shares {
            put(to, format_args!("{:.1},{:.1} ", x(*at), y(*share)));
        }
        to.push_str("\"/>\n");
    }
}

fn table(to: &mut String, panel: &WorkloadPanel<'_>, left: f64, top: f64) {
    let alone = !panel.has_chart();
    let texts: Vec<Vec<String>> = panel
        .rows
        .iter()
        .map(|row| {
            let asked = std::iter::once(format!("{}%", row.asked));
            asked.chain(cells(row)).collect()
        })
        .collect();
    let mut columns = Vec::new();
    let mut right = left;
    for (index, (name, width)) in COLUMNS.into_iter().enumerate() {
        let is_empty = |row: &Vec<String>| row.get(index).is_none_or(|text| text == NOTHING);
        if !texts.iter().all(is_empty) {
            right += width;
            columns.push((index, name, right));
        }
    }
    for (_, name, right) in &columns {
        put(
            to,
            format_args!(
                "<text x=\"{right:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\" \
                 font-size=\"11\">{name}</text>\n",
                top + 4.0
            ),
        );
    }
    let mut bottom = top + 4.0;
    for (number, (row, texts)) in panel.rows.iter().zip(&texts).enumerate() {
        bottom += LINE;
        if alone {
            put(
                to,
                format_args!(
                    "<text x=\"{:.1}\" y=\"{bottom:.1}\" text-anchor=\"end\">{}</text>\n",
                    left + 20.0,
                    escaped(&row.workload)
                ),
            );
        } else {
            put(
                to,
                format_args!(
                    "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"14\" height=\"4\" fill=\"{}\"/>\n",
                    bottom - 6.0,
                    colour(number)
                ),
            );
        }
        for (index, _, right) in &columns {
            let text = texts.get(*index).map_or(NOTHING, String::as_str);
            put(
                to,
                format_args!(
                    "<text x=\"{right:.1}\" y=\"{bottom:.1}\" text-anchor=\"end\">{text}</text>\n"
                ),
            );
        }
    }
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(workload: &str, asked: u32) -> AccuracyRow {
        AccuracyRow {
            workload: workload.to_owned(),
            asked,
            figures: None,
            reach_ms: None,
            slower_percent: None,
            shares: vec![(0.05, 10.0), (0.06, 12.0)],
        }
    }

    #[test]
    fn each_workload_has_a_panel_with_a_line_for_each_cap() {
        let results = AccuracyResults {
            version: 1,
            simulated: true,
            seconds: 1.0,
            rows: vec![row("a & b", 10), row("a & b", 50), row("c", 5)],
        };

        let picture = svg(&results);

        assert_eq!(picture.matches("<polyline").count(), 3);
        assert_eq!(picture.matches("font-size=\"14\"").count(), 2);
        assert!(picture.contains("a &amp; b"));
        assert!(picture.ends_with("</svg>\n"));
    }
}
