//! The results as lines of text, printed as they come.

use std::io::Write;

use super::figures::LatencyRow;

/// Where there is nothing to say.
const NOTHING: &str = "–";

pub(crate) fn begin(to: &mut impl Write) -> std::io::Result<()> {
    writeln!(
        to,
        "{:7} {:28} {:16} {:>9} {:>9} {:>9} {:>7} {:>7} {:>10} {:>11} {:>9} {:>8}",
        "setting",
        "requests",
        "training",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "count",
        "done/s",
        "unfinished",
        "training/s",
        "of alone",
        "of left"
    )
}

pub(crate) fn row(to: &mut impl Write, row: &LatencyRow) -> std::io::Result<()> {
    let [
        requests,
        training,
        p50,
        p90,
        p99,
        count,
        rate,
        unfinished,
        pieces,
        alone,
        left,
    ] = cells(row);
    writeln!(
        to,
        "{:7} {requests:28} {training:16} {p50:>9} {p90:>9} {p99:>9} {count:>7} {rate:>7} \
         {unfinished:>10} {pieces:>11} {alone:>9} {left:>8}",
        row.setting.name()
    )?;
    to.flush()
}

/// The cells of a row after its setting.
pub(crate) fn cells(row: &LatencyRow) -> [String; 11] {
    let nothing = || String::from(NOTHING);
    let percent = |value: f64| format!("{value:.1}%");
    let [requests, p50, p90, p99, count, rate, unfinished] =
        row.service
            .as_ref()
            .map_or_else(Default::default, |service| {
                let latency = &service.latency;
                [
                    format!("{}, {}", service.request, service.arrivals),
                    format!("{:.2}", latency.p50_ms),
                    format!("{:.2}", latency.p90_ms),
                    format!("{:.2}", latency.p99_ms),
                    service.requests.to_string(),
                    format!("{:.1}", service.per_second),
                    service.unfinished.to_string(),
                ]
            });
    let [training, pieces, alone, left] =
        row.training
            .as_ref()
            .map_or_else(Default::default, |training| {
                [
                    training.name.clone(),
                    format!("{:.1}", training.per_second),
                    percent(training.of_alone_percent),
                    training.of_left_percent.map_or_else(nothing, percent),
                ]
            });
    [
        requests, training, p50, p90, p99, count, rate, unfinished, pieces, alone, left,
    ]
    .map(|cell| if cell.is_empty() { nothing() } else { cell })
}
