//! A record as the simulator's result annotations: each value a JSON text with sorted keys, byte for byte as the
//! recorded simulator writes it. Never names an annotation in full: the prefix is the caller's.

use std::collections::BTreeMap;

use crate::compact::{Kept, Pool, drafts, push_quoted};
use crate::record::Record;

/// Values of the annotations, by the part of their name behind the prefix.
pub type Annotations = BTreeMap<&'static str, String>;

/// Every annotation of a cycle but `result-history` and those of extenders. All keys are always there.
pub fn render(record: &Record) -> Annotations {
    let mut pool = Pool::default();
    drafts(record)
        .into_iter()
        .map(|(name, draft)| (name, draft.keep(usize::MAX, &mut pool).render()))
        .collect()
}

/// One entry of `result-history`: annotations as an object with the whole names of their keys. The values are sorted by
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

/// How many bytes [`history_entry`] gives, for a prefix and names of letters that JSON does not escape.
pub fn history_entry_len<'a>(
    prefix: &str,
    values: impl IntoIterator<Item = (&'a str, &'a Kept)>,
) -> usize {
    let sizes = values
        .into_iter()
        .map(|(name, value)| prefix.len() + name.len() + value.quoted_len() + 4);
    // Each but the last has a comma, and around all are the braces.
    sizes.sum::<usize>().max(1) + 1
}
