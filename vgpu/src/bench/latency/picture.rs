//! The results as a picture (SVG): a panel for each service, with a bar from p50 to p99 for each setting. Text in,
//! text out; needs no font beyond the viewer's own.

use super::figures::{Latency, LatencyResults, LatencyRow, ServiceFigures, Setting};
use super::table::cells;
use crate::bench::picture::{escaped, put};

const WIDTH: f64 = 1240.0;
const MARGIN: f64 = 28.0;
const CHART_LEFT: f64 = 190.0;
const CHART_WIDTH: f64 = 470.0;
const LINE: f64 = 19.0;
const TITLE: f64 = 30.0;
const GAP: f64 = 52.0;
/// The right edges of the table's columns, and which of the table's cells they hold.
const COLUMNS: [(&str, usize, f64); 8] = [
    ("p50 ms", 2, 730.0),
    ("p90 ms", 3, 800.0),
    ("p99 ms", 4, 870.0),
    ("done/s", 6, 930.0),
    ("unfinished", 7, 1000.0),
    ("training/s", 8, 1075.0),
    ("of alone", 9, 1140.0),
    ("of left", 10, 1205.0),
];

/// The whole picture.
pub(crate) fn svg(results: &LatencyResults) -> String {
    let panels = panels(&results.rows);
    let height = MARGIN + 70.0 + panels.iter().map(ServicePanel::height).sum::<f64>();
    let mut to = String::new();
    put(
        &mut to,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"Helvetica, Arial, sans-serif\" \
             font-size=\"12\" fill=\"#222\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        ),
    );
    let gpu = if results.simulated {
        "a simulated GPU"
    } else {
        "a GPU"
    };
    put(
        &mut to,
        format_args!(
            "<text x=\"{MARGIN}\" y=\"36\" font-size=\"18\" font-weight=\"bold\">Latency of a service beside \
             training</text>\n<text x=\"{MARGIN}\" y=\"56\" fill=\"#555\">{gpu}; {} s each; requests need {} % of \
             the GPU; bars: p50 to p99 with a mark at p90, logarithmic</text>\n",
            results.seconds, results.load_percent
        ),
    );
    let mut left = MARGIN;
    for setting in [Setting::Alone, Setting::Beside, Setting::Vgpu] {
        let text = match setting {
            Setting::Alone => "alone",
            Setting::Beside => "beside training, without vgpu",
            Setting::Vgpu => "beside training, with vgpu",
        };
        put(
            &mut to,
            format_args!(
                "<rect x=\"{left:.1}\" y=\"68\" width=\"14\" height=\"8\" fill=\"{}\"/>\n<text x=\"{:.1}\" \
                 y=\"76\">{text}</text>\n",
                colour(setting),
                left + 20.0
            ),
        );
        left += 220.0;
    }
    let mut top = MARGIN + 70.0;
    for panel in &panels {
        draw(&mut to, panel, top);
        top += panel.height();
    }
    to.push_str("</svg>\n");
    to
}

/// Colours on white that colour-blind readers can distinguish (Okabe and Ito).
fn colour(setting: Setting) -> &'static str {
    match setting {
        Setting::Alone => "#444444",
        Setting::Beside => "#d55e00",
        Setting::Vgpu => "#0072b2",
    }
}

/// The rows of one service.
struct ServicePanel<'a> {
    title: String,
    rows: Vec<(&'a LatencyRow, &'a ServiceFigures)>,
}

impl ServicePanel<'_> {
    fn height(&self) -> f64 {
        let rows = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
        TITLE + LINE * (f64::from(rows) + 1.0) + GAP
    }
}

fn panels(rows: &[LatencyRow]) -> Vec<ServicePanel<'_>> {
    let mut panels: Vec<ServicePanel<'_>> = Vec::new();
    for row in rows {
        let Some(service) = &row.service else {
            continue;
        };
        let title = format!(
            "requests: {}; arrivals: {}",
            service.request, service.arrivals
        );
        match panels.last_mut().filter(|panel| panel.title == title) {
            Some(panel) => panel.rows.push((row, service)),
            None => panels.push(ServicePanel {
                title,
                rows: vec![(row, service)],
            }),
        }
    }
    panels
}

/// The whole powers of ten around all latencies: the ends of a logarithmic axis.
fn decades(latencies: impl Iterator<Item = Latency> + Clone) -> (i32, i32) {
    let exponent = |ms: f64, round: fn(f64) -> f64| whole(round(ms.max(1e-3).log10()));
    let first = latencies.clone().map(|it| exponent(it.p50_ms, f64::floor));
    let last = latencies.map(|it| exponent(it.p99_ms, f64::ceil));
    let first = first.min().unwrap_or(0);
    (first, last.max().unwrap_or(1).max(first + 1))
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "an exponent of a latency is a small number"
)]
fn whole(exponent: f64) -> i32 {
    exponent as i32
}

fn draw(to: &mut String, panel: &ServicePanel<'_>, top: f64) {
    let (first, last) = decades(panel.rows.iter().map(|(_, service)| service.latency));
    let x = |ms: f64| {
        let part = (ms.max(1e-3).log10() - f64::from(first)) / f64::from(last - first);
        CHART_LEFT + part.clamp(0.0, 1.0) * CHART_WIDTH
    };
    put(
        to,
        format_args!(
            "<text x=\"{MARGIN}\" y=\"{:.1}\" font-size=\"14\" font-weight=\"bold\">{}</text>\n",
            top + 14.0,
            escaped(&panel.title)
        ),
    );
    let top = top + TITLE;
    let bottom = top + panel.height() - TITLE - GAP + 6.0;
    for exponent in first..=last {
        let at = x(10_f64.powi(exponent));
        put(
            to,
            format_args!(
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\" \
                 stroke=\"#ddd\"/>\n<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\" \
                 font-size=\"11\">{} ms</text>\n",
                bottom + 14.0,
                10_f64.powi(exponent)
            ),
        );
    }
    for (name, _, right) in COLUMNS {
        put(
            to,
            format_args!(
                "<text x=\"{right:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\" \
                 font-size=\"11\">{name}</text>\n",
                top + 4.0
            ),
        );
    }
    let mut base = top + 4.0;
    for (row, service) in &panel.rows {
        base += LINE;
        let beside = row.training.as_ref().map(|training| &training.name);
        let label = beside.map_or_else(
            || String::from("alone"),
            |name| format!("{}, {name}", row.setting.name()),
        );
        let latency = &service.latency;
        let [p50, p90, p99] = [latency.p50_ms, latency.p90_ms, latency.p99_ms].map(x);
        put(
            to,
            format_args!(
                "<text x=\"{:.1}\" y=\"{base:.1}\" text-anchor=\"end\">{}</text>\n\
                 <rect class=\"bar\" x=\"{p50:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"8\" \
                 fill=\"{colour}\"/>\n\
                 <rect x=\"{p90:.1}\" y=\"{:.1}\" width=\"2\" height=\"14\" fill=\"{colour}\"/>\n",
                CHART_LEFT - 12.0,
                escaped(&label),
                base - 8.0,
                (p99 - p50).max(2.0),
                base - 11.0,
                colour = colour(row.setting)
            ),
        );
        let cells = cells(row);
        for (_, cell, right) in COLUMNS {
            let text = cells.get(cell).map_or("", String::as_str);
            put(
                to,
                format_args!(
                    "<text x=\"{right:.1}\" y=\"{base:.1}\" text-anchor=\"end\">{text}</text>\n"
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(setting: Setting, request: &str, p99_ms: f64) -> LatencyRow {
        LatencyRow {
            setting,
            service: Some(ServiceFigures {
                request: request.to_owned(),
                arrivals: String::from("poisson"),
                requests: 10,
                unfinished: 0,
                latency: Latency {
                    p50_ms: 2.0,
                    p90_ms: 3.0,
                    p99_ms,
                },
                per_second: 5.0,
                share_percent: 30.0,
            }),
            training: None,
        }
    }

    #[test]
    fn each_service_has_a_panel_with_a_bar_for_each_row() {
        let results = LatencyResults {
            version: 1,
            simulated: true,
            seconds: 1.0,
            load_percent: 30,
            seed: 1,
            rows: vec![
                row(Setting::Alone, "a & b", 4.0),
                row(Setting::Vgpu, "a & b", 40.0),
                row(Setting::Alone, "c", 4.0),
            ],
        };

        let picture = svg(&results);

        assert_eq!(picture.matches("class=\"bar\"").count(), 3);
        assert_eq!(picture.matches("font-size=\"14\"").count(), 2);
        assert!(picture.contains("requests: a &amp; b; arrivals: poisson"));
        assert!(picture.ends_with("</svg>\n"));
    }

    #[test]
    fn the_axis_spans_whole_powers_of_ten() {
        let of = |p50_ms, p99_ms| Latency {
            p50_ms,
            p90_ms: p50_ms,
            p99_ms,
        };

        assert_eq!(decades([of(2.1, 7.0), of(2.3, 40.0)].into_iter()), (0, 2));
        assert_eq!(decades([of(0.5, 0.6)].into_iter()), (-1, 0));
        assert_eq!(decades([of(10.0, 10.0)].into_iter()), (1, 2));
    }
}
