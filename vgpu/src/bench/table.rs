//! The results as lines of text, printed as they come.

use std::io::Write;

use super::AccuracyRow;

const NAME: usize = 26;
/// Where there is nothing to say.
pub(crate) const NOTHING: &str = "–";

pub(crate) fn begin(to: &mut impl Write) -> std::io::Result<()> {
    writeln!(
        to,
        "{:NAME$} {:>6} {:>6} {:>12} {:>12} {:>6} {:>10} {:>9} {:>7}",
        "workload",
        "asked",
        "mean",
        "worst 100 ms",
        "worst window",
        "MAE",
        "overshoot",
        "reached",
        "slower"
    )
}

pub(crate) fn rows(to: &mut impl Write, rows: &[AccuracyRow]) -> std::io::Result<()> {
    for row in rows {
        let [mean, worst, window, mae, overshoot, reached, slower] = cells(row);
        writeln!(
            to,
            "{:NAME$} {:>5}% {mean:>6} {worst:>12} {window:>12} {mae:>6} {overshoot:>10} \
             {reached:>9} {slower:>7}",
            row.workload, row.asked
        )?;
    }
    to.flush()
}

/// The cells of a row after its name and the requested share.
pub(crate) fn cells(row: &AccuracyRow) -> [String; 7] {
    let point = |value: f64| format!("{value:.1}");
    let figure = |of: fn(&super::Figures) -> f64| {
        row.figures
            .as_ref()
            .map_or_else(|| String::from(NOTHING), |figures| point(of(figures)))
    };
    [
        figure(|figures| figures.mean),
        figure(|figures| figures.worst_100ms),
        figure(|figures| figures.worst_window),
        figure(|figures| figures.mae),
        figure(|figures| figures.overshoot),
        row.reach_ms
            .map_or_else(|| String::from(NOTHING), |ms| format!("{ms} ms")),
        row.slower_percent
            .map_or_else(|| String::from(NOTHING), |percent| format!("{percent:.2}%")),
    ]
}
