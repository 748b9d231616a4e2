//! A comparison as an SVG document: one panel for each group of measures, one bar for each run. Values in, text out.
//! The document has no script and loads nothing; colours follow the reader's light or dark scheme.

use std::fmt::Write as _;

use super::table::{MEASURES, Measure, PENDING, PLACED, Unit, shortened};
use super::{Column, Comparison};

const WIDTH: usize = 760;
const MARGIN: usize = 24;
/// The x of the bars. The names are to their left.
const LEFT: usize = 200;
/// The length of the longest bar. The value is to its right.
const LENGTH: usize = 430;
const ROW: usize = 24;
const BAR: usize = 16;
const TITLE: usize = 34;
const NAME: usize = 24;

const STYLE: &str = "\
.back{fill:#ffffff}.track{fill:#e3e7ed}.bar{fill:#1f5fbf}.text{fill:#1a1f27;font:14px system-ui,sans-serif}\
.head{font-size:20px;font-weight:700}.title{font-weight:600}.muted{fill:#525c6b}\
@media (prefers-color-scheme:dark){.back{fill:#12161c}.track{fill:#313a46}.bar{fill:#7fb0ff}.text{fill:#e6eaf0}\
.muted{fill:#a9b3c1}}";

pub(super) fn chart(comparison: &Comparison) -> String {
    let runs = &comparison.runs;
    // A measure without a value in any run, such as GPU memory if there are no GPUs, has no panel.
    let is_known = |measure: &&Measure| {
        let mut values = runs.iter().map(|run| (measure.value)(&run.figures));
        values.any(|value| value.is_some())
    };
    let all = [&PLACED, &PENDING].into_iter().chain(&MEASURES);
    let measures: Vec<&Measure> = all.filter(is_known).collect();
    let panel = TITLE + runs.len() * ROW;
    let height = 2 * MARGIN + 24 + measures.len() * panel;
    let title = format!("What-if over {}", comparison.base);
    let mut words = String::new();
    for measure in &measures {
        let values: Vec<String> = runs
            .iter()
            .map(|run| format!("{} {}", run.name, measure.text(&run.figures)))
            .collect();
        write!(words, "{}: {}. ", measure.label, values.join(", ")).unwrap_or_default();
    }
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"title desc\">\n\
         <title id=\"title\">{}</title>\n<desc id=\"desc\">{}</desc>\n<style>{STYLE}</style>\n\
         <rect class=\"back\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text class=\"text head\" x=\"{MARGIN}\" y=\"{}\">{}</text>\n",
        escaped(&title),
        escaped(words.trim_end()),
        MARGIN + 16,
        escaped(&shortened(&title, 60)),
    );
    let mut top = 2 * MARGIN + 16;
    for measure in measures {
        group(&mut svg, measure, runs, top);
        top += panel;
    }
    svg.push_str("</svg>\n");
    svg
}

fn group(svg: &mut String, measure: &Measure, runs: &[Column], top: usize) {
    let values = runs.iter().map(|run| (measure.value)(&run.figures));
    let most = values.flatten().fold(0.0, f64::max);
    let end = match measure.unit {
        Unit::Percent => 100.0_f64.max(most),
        Unit::Index => 1.0,
        Unit::Pods | Unit::Seconds => most,
    };
    let head = top + 20;
    writeln!(
        svg,
        "<text class=\"text title\" x=\"{MARGIN}\" y=\"{head}\">{}</text>",
        escaped(measure.label)
    )
    .unwrap_or_default();
    for (at, run) in runs.iter().enumerate() {
        let y = top + TITLE - 4 + at * ROW;
        let base = y + 13;
        let value = (measure.value)(&run.figures).unwrap_or_default();
        let length = length(value, end);
        let behind = LEFT + LENGTH + 8;
        writeln!(
            svg,
            "<g><title>{}: {}</title><text class=\"text muted\" x=\"{MARGIN}\" y=\"{base}\">{}</text>\
             <rect class=\"track\" x=\"{LEFT}\" y=\"{y}\" width=\"{LENGTH}\" height=\"{BAR}\" rx=\"2\"/>\
             <rect class=\"bar\" x=\"{LEFT}\" y=\"{y}\" width=\"{length:.1}\" height=\"{BAR}\" rx=\"2\"/>\
             <text class=\"text\" x=\"{behind}\" y=\"{base}\">{}</text></g>",
            escaped(&run.name),
            escaped(&measure.text(&run.figures)),
            escaped(&shortened(&run.name, NAME)),
            escaped(&measure.text(&run.figures)),
        )
        .unwrap_or_default();
    }
}

#[expect(clippy::cast_precision_loss, reason = "a few hundred pixels")]
fn length(value: f64, end: f64) -> f64 {
    if end > 0.0 {
        (value / end).clamp(0.0, 1.0) * LENGTH as f64
    } else {
        0.0
    }
}

/// Text escaped for XML; characters that XML does not allow are dropped.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => {}
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::super::tally::{Figures, Utilisation};
    use super::*;

    fn comparison(names: &[&str]) -> Comparison {
        let run = |(at, name): (usize, &&str)| Column {
            name: (*name).to_owned(),
            figures: Figures {
                placed: 5 * (at as u64 + 1),
                utilisation: Utilisation {
                    cpu: Some(50.0),
                    ..Utilisation::default()
                },
                ..Figures::default()
            },
        };
        Comparison {
            base: "base.yaml".to_owned(),
            runs: names.iter().enumerate().map(run).collect(),
            ..Comparison::default()
        }
    }

    #[test]
    fn every_run_has_a_bar_with_its_name_and_value() {
        let svg = chart(&comparison(&["base", "policy-b"]));

        assert!(svg.contains("<title>policy-b: 10</title>"));
        // Half of the longest, and all of it.
        assert!(svg.contains("width=\"215.0\"") && svg.contains("width=\"430.0\""));
        assert!(svg.contains("CPU requested: base 50.0 %, policy-b 50.0 %."));
        assert_eq!(svg.matches("class=\"bar\"").count(), 2 * 5);
        assert!(svg.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn names_cannot_leave_their_place() {
        let svg = chart(&comparison(&[
            "</text><script>alert(1)</script>",
            "a\u{0}\"b&c",
        ]));

        assert!(!svg.contains("<script") && !svg.contains('\u{0}'));
        assert!(svg.contains("&lt;script&gt;") && svg.contains("a &quot;b&amp;c"));
    }

    #[test]
    fn no_run_and_unknown_values_do_no_harm() {
        assert!(chart(&comparison(&[])).ends_with("</svg>\n"));
        let mut some = comparison(&["base", "other"]);
        some.runs[0].figures.fairness = Some(0.5);
        let svg = chart(&some);
        assert!(svg.contains(">–</text>") && !svg.contains("NaN"));
        assert!(!svg.contains("GPU"), "no run knows of GPUs");
    }
}
