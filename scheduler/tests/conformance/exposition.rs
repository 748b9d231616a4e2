//! `/metrics`, line by line. Knows no series.

use std::collections::BTreeMap;

/// One line of an exposition.
pub(crate) struct Sample<'a> {
    pub(crate) name: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    pub(crate) value: f64,
}

impl<'a> Sample<'a> {
    /// Parses `name{key="value",…} number`; none for a comment. No label here contains a quote.
    pub(crate) fn read(line: &'a str) -> Option<Self> {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        if name.starts_with('#') {
            return None;
        }
        let labels = labels
            .trim_end_matches('}')
            .split("\",")
            .filter_map(|label| label.split_once("=\""))
            .map(|(key, value)| (key, value.trim_end_matches('"')))
            .collect();
        Some(Self {
            name,
            labels,
            value: value.parse().ok()?,
        })
    }

    pub(crate) fn label(&self, key: &str) -> String {
        self.labels.get(key).copied().unwrap_or_default().to_owned()
    }
}
