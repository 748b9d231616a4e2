//! Events are one table that two groups show under different field names: the core group and `events.k8s.io`. They
//! are stored with the core group's names.

use serde_json::Value;

/// The fields, with the core group's names and those of `events.k8s.io`.
const NAMES: [(&str, &str); 8] = [
    ("message", "note"),
    ("involvedObject", "regarding"),
    ("reportingComponent", "reportingController"),
    ("reportingInstance", "reportingInstance"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// Renames the fields to the core group's names.
pub(crate) fn to_core(event: &mut Value) {
    if event["apiVersion"] == "v1" {
        return;
    }
    rename(event, |(core, new)| (new, core));
    crate::object::set(event, &["apiVersion"], "v1".into());
}

/// Renames the fields to the names of `events.k8s.io`.
pub(crate) fn to_new(event: &mut Value) {
    rename(event, |(core, new)| (core, new));
    crate::object::set(event, &["apiVersion"], "events.k8s.io/v1".into());
}

fn rename(
    event: &mut Value,
    direction: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
) {
    let Some(event) = event.as_object_mut() else {
        return;
    };
    for (from, to) in NAMES.map(direction) {
        if let Some(value) = event.remove(from) {
            event.insert(to.to_owned(), value);
        }
    }
}
