//! The list of namespaces, with the GPU shares that they hold and do not use.

use std::collections::BTreeMap;

use super::super::Picture;
use super::meter::{self, Meter};
use super::{Sum, at, compute};
use crate::text;
use crate::view::Slice;
use crate::view::query::{Filter, Query, Select, has_all};

/// The number of namespaces on a page of the list.
const ROWS: usize = 25;

/// The namespaces that match a query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamespaceList {
    /// The form above them.
    pub filter: Filter,
    /// The rows of this page.
    pub rows: Vec<NamespaceRow>,
    /// The position of this page among all pages.
    pub slice: Slice,
    /// The address of this list.
    pub part: String,
    /// How many namespaces hold GPUs.
    pub all: usize,
}

/// A namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamespaceRow {
    /// Its name.
    pub name: String,
    /// The address of its pods.
    pub href: String,
    /// How many of its pods hold GPUs.
    pub pods: usize,
    /// Memory that it holds and uses.
    pub memory: Meter,
    /// Memory that it holds and never used, with its percentage of all memory that it holds; empty if nothing is
    /// measured.
    pub memory_unused: String,
    /// Compute that it holds and uses.
    pub compute: Meter,
    /// Compute that it holds and does not use on average; empty if nothing is measured.
    pub compute_unused: String,
    /// How many of its shares are not measured, in words; empty for none.
    pub unmeasured: String,
}

/// The namespaces that match the query. `sort`: `compute` (most unused compute first), `held`, `name`; else those with
/// the most memory that was never used first.
pub fn namespace_list(picture: &Picture, query: &Query) -> NamespaceList {
    let mut sums: BTreeMap<&str, (usize, Sum)> = BTreeMap::new();
    for holder in &picture.holders {
        let (pods, sum) = sums.entry(&holder.namespace).or_default();
        *pods += 1;
        for share in &holder.shares {
            sum.add(share);
        }
    }
    let all = sums.len();
    let words = query.words();
    let mut rows: Vec<(&str, (usize, Sum))> = sums
        .into_iter()
        .filter(|(name, _)| has_all(&words, &[name]))
        .collect();
    match query.sort.as_str() {
        "name" => {}
        "held" => rows.sort_by_key(|(_, (_, sum))| std::cmp::Reverse(sum.memory)),
        "compute" => rows.sort_by_key(|(_, (_, sum))| std::cmp::Reverse(sum.compute_unused)),
        _ => rows.sort_by_key(|(_, (_, sum))| std::cmp::Reverse(sum.unused)),
    }
    let slice = query.slice(at::NAMESPACES, rows.len(), ROWS);
    let shown = rows.iter().skip(slice.skipped()).take(slice.len());
    NamespaceList {
        rows: shown
            .map(|(name, (pods, sum))| row(name, *pods, sum))
            .collect(),
        part: query.at(&at::part(at::NAMESPACES), slice.page),
        slice,
        all,
        filter: Filter {
            label: "Namespaces",
            path: at::NAMESPACES.to_owned(),
            part: at::part(at::NAMESPACES),
            target: "#namespaces",
            text: query.text.clone(),
            placeholder: "name",
            selects: vec![Select::of(
                "Order",
                "sort",
                &query.sort,
                &[
                    ("", "most memory never used first"),
                    ("compute", "most compute not used first"),
                    ("held", "most memory held first"),
                    ("name", "by name"),
                ],
            )],
        },
    }
}

fn row(name: &str, pods: usize, sum: &Sum) -> NamespaceRow {
    let part = |unused: u64, of: u64| text::percent(unused.into(), of.into());
    let missing = sum.shares - sum.known;
    NamespaceRow {
        name: name.to_owned(),
        href: at::pods_of(name),
        pods,
        memory: meter::memory(0, sum),
        memory_unused: if sum.is_measured() {
            let percent = part(sum.unused, sum.measured);
            format!("{} ({percent} %)", text::bytes(sum.unused))
        } else {
            String::new()
        },
        compute: meter::compute_of(0, sum),
        compute_unused: if sum.compute_measured > 0 {
            let percent = part(sum.compute_unused, sum.compute_measured);
            format!("{} ({percent} %)", compute(sum.compute_unused))
        } else {
            String::new()
        },
        unmeasured: match missing {
            0 => String::new(),
            _ => format!(
                "{missing} of {} not measured",
                text::count(sum.shares, "share")
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::picture;
    use super::*;

    #[test]
    fn the_largest_waste_comes_first() {
        let list = namespace_list(&picture(), &Query::default());

        let said: Vec<_> = list
            .rows
            .iter()
            .map(|row| (&*row.name, &*row.memory_unused, &*row.compute_unused))
            .collect();
        assert_eq!(
            said,
            [
                ("team-a", "12 GiB (60 %)", "0.4 GPUs (80 %)"),
                ("team-b", "", ""),
            ]
        );
        assert_eq!(list.rows[1].unmeasured, "1 of 1 share not measured");
    }

    #[test]
    fn a_namespace_is_found_by_its_name() {
        let query = Query {
            text: "B".into(),
            ..Query::default()
        };

        let list = namespace_list(&picture(), &query);

        assert_eq!((list.rows.len(), list.all), (1, 2));
        assert_eq!(list.rows[0].name, "team-b");
    }
}
