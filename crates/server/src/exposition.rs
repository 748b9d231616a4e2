//! The two text formats of metrics, and the choice between them.
//!
//! `prometheus-client` writes OpenMetrics; the older Prometheus text is derived from it, so both
//! always have the same values.

use std::borrow::Cow;

/// A text format for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// The Prometheus text format 0.0.4, which every collector can read.
    PrometheusText,
}

impl Format {
    /// The format that the client prefers, by the values of its `Accept` headers.
    ///
    /// OpenMetrics only for clients that name it; all others get the Prometheus text, also those
    /// that ask for a format that does not exist here.
    pub fn wanted<'a>(accept: impl Iterator<Item = &'a str>) -> Self {
        let mut open_metrics: u16 = 0;
        let mut text: u16 = 0;
        for range in accept.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let mut quality = 1000;
            let mut version = None;
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name.trim().to_ascii_lowercase().as_str() {
                    "q" => quality = thousandths(value.trim()),
                    "version" => version = Some(value.trim().trim_matches('"')),
                    _ => {}
                }
            }
            match (kind.as_str(), version) {
                ("application/openmetrics-text", None | Some("1.0.0")) => {
                    open_metrics = open_metrics.max(quality);
                }
                ("text/plain", None | Some("0.0.4")) => text = text.max(quality),
                _ => {}
            }
        }
        if open_metrics > 0 && open_metrics >= text {
            Self::OpenMetrics
        } else {
            Self::PrometheusText
        }
    }

    /// The `Content-Type` of the answer.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::PrometheusText => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// A quality of `Accept` in thousandths; 0 where it cannot be read.
fn thousandths(text: &str) -> u16 {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 3 {
        return 0;
    }
    match (whole, fraction) {
        ("1", _) => 1000,
        ("0", fraction) => format!("{fraction:0<3}").parse().unwrap_or(0),
        _ => 0,
    }
}

/// Converts OpenMetrics to Prometheus text 0.0.4: counters are declared under the name of their
/// sample, types that the old format lacks become the nearest one, exemplars and units are dropped.
#[must_use]
pub fn prometheus_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help: Option<(&str, &str)> = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = Some(rest.split_once(' ').unwrap_or((rest, "")));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, "unknown"));
            let (name, kind) = declared(name, kind);
            // The format requires the help first, under the same name.
            if let Some((_, help)) = help.take() {
                push_line(&mut text, &["# HELP ", &name, " ", help]);
            }
            push_line(&mut text, &["# TYPE ", &name, " ", kind]);
        } else if !line.starts_with('#') {
            push_line(&mut text, &[without_exemplar(line)]);
        }
    }
    text
}

fn declared<'a>(name: &'a str, kind: &'a str) -> (Cow<'a, str>, &'a str) {
    match kind {
        "counter" => (format!("{name}_total").into(), "counter"),
        "info" => (format!("{name}_info").into(), "gauge"),
        "stateset" => (name.into(), "gauge"),
        "gauge" | "histogram" | "summary" => (name.into(), kind),
        _ => (name.into(), "untyped"),
    }
}

fn push_line(text: &mut String, parts: &[&str]) {
    for part in parts {
        text.push_str(part);
    }
    text.push('\n');
}

/// The sample without its exemplar: everything after a ` # ` that is not inside a label's value.
fn without_exemplar(sample: &str) -> &str {
    let mut quoted = false;
    let mut escaped = false;
    for (at, byte) in sample.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'#' if !quoted => return sample.get(..at).unwrap_or(sample).trim_end(),
            _ => {}
        }
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn a_scraper_gets_open_metrics_only_when_it_names_it() {
        let wanted = |accept: &[&'static str]| Format::wanted(accept.iter().copied());
        let prometheus = "application/openmetrics-text;version=1.0.0,\
            application/openmetrics-text;version=0.0.1;q=0.75,\
            text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

        assert_eq!(wanted(&[prometheus]), Format::OpenMetrics);
        assert_eq!(
            wanted(&["text/plain", "Application/OpenMetrics-Text"]),
            Format::OpenMetrics
        );
        for other in [
            &[][..],
            &["*/*"],
            &["text/plain"],
            &["application/json"],
            &["application/openmetrics-text;q=0"],
            &["application/openmetrics-text;q=0.4, text/plain;q=0.5"],
            &["application/openmetrics-text;version=2.0.0"],
            &["application/openmetrics-text;q=high"],
            &[";;;=,,q=1"],
        ] {
            assert_eq!(wanted(other), Format::PrometheusText, "{other:?}");
        }
    }

    #[test]
    fn the_old_format_says_the_same_in_its_own_words() {
        let open_metrics = concat!(
            "# HELP calls Calls.\n# TYPE calls counter\ncalls_total{a=\"x # y\"} 3 # {id=\"1\"} 1\n",
            "# HELP used_bytes Used.\n# TYPE used_bytes gauge\n# UNIT used_bytes bytes\n",
            "used_bytes{a=\"quote \\\" # \\\\\"} 5\n",
            "# HELP build Build.\n# TYPE build info\nbuild_info{v=\"1\"} 1\n",
            "# TYPE what unknown\nwhat 1\n",
            "# EOF\n",
        );

        expect![[r##"
            # HELP calls_total Calls.
            # TYPE calls_total counter
            calls_total{a="x # y"} 3
            # HELP used_bytes Used.
            # TYPE used_bytes gauge
            used_bytes{a="quote \" # \\"} 5
            # HELP build_info Build.
            # TYPE build_info gauge
            build_info{v="1"} 1
            # TYPE what untyped
            what 1
        "##]]
        .assert_eq(&prometheus_text(open_metrics));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_negotiation_or_the_conversion_panic(text in "\\PC*") {
            Format::wanted([text.as_str()].into_iter());
            drop(prometheus_text(&text));
        }
    }
}
