//! Renders a record as the simulator's result annotations: each value is JSON text with sorted keys, byte for byte as
//! the recorded simulator writes it. The caller adds the prefix of the names.

use std::collections::BTreeMap;

use crate::compact::{Kept, Pool, drafts, push_quoted};
use crate::record::Record;

/// Values of the annotations, by the part of their name after the prefix.
pub type Annotations = BTreeMap<&'static str, String>;

/// Every annotation of a cycle except `result-history` and those of extenders. All keys are always present.
pub fn render(record: &Record) -> Annotations {
    let mut pool = Pool::default();
    drafts(record)
        .into_iter()
        .map(|(name, draft)| (name, draft.keep(usize::MAX, &mut pool).render()))
        .collect()
}

/// One entry of `result-history`: the annotations as an object with their full names as keys. The values are sorted by
/// name.
pub fn history_entry<'a>(
    prefix: &str,
    values: impl IntoIterator<Item = (&'a str, &'a Kept)>,
) -> String {
    let mut out = String::from("{");
    for (name, value) in values {
        if out.len() > 1 {
            out.push(',');
        }
        push_quoted(&mut out, &format!("{prefix}{name}"));
        out.push(':');
        push_quoted(&mut out, &value.render());
    }
    out.push('}');
    out
}

/// The length in bytes of [`history_entry`], for a prefix and names of characters that JSON does not escape.
pub fn history_entry_len<'a>(
    prefix: &str,
    values: impl IntoIterator<Item = (&'a str, &'a Kept)>,
) -> usize {
    let sizes = values
        .into_iter()
        .map(|(name, value)| prefix.len() + name.len() + value.quoted_len() + 4);
    // Each entry but the last is followed by a comma, and braces enclose all.
    sizes.sum::<usize>().max(1) + 1
}
