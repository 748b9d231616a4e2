//! The contents of each page, as values that a template only has to print. Values in, values out: no clock, no I/O.

pub mod bar;
pub mod compare;
pub mod decision;
pub mod line;
pub mod message;
pub mod node;
pub mod overview;
pub mod pod;
pub mod query;

/// The addresses of pages and their parts. Templates contain no address of their own.
pub mod address {
    use crate::kind::Kind;

    /// Characters that stay as they are in a path; all others are percent-encoded.
    pub(crate) fn segment(text: &str) -> String {
        let mut written = String::with_capacity(text.len());
        for byte in text.bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
                written.push(char::from(byte));
            } else {
                written.push_str(&format!("%{byte:02X}"));
            }
        }
        written
    }

    /// The page of a node.
    pub fn node(name: &str) -> String {
        format!("/page/nodes/{}", segment(name))
    }

    /// The page of a pod.
    pub fn pod(namespace: &str, name: &str) -> String {
        format!("/page/pods/{}/{}", segment(namespace), segment(name))
    }

    /// The live part of a node's page.
    pub fn node_part(name: &str) -> String {
        format!("/page/part/node/{}", segment(name))
    }

    /// The live part of a pod's page.
    pub fn pod_part(namespace: &str, name: &str) -> String {
        format!("/page/part/pod/{}/{}", segment(namespace), segment(name))
    }

    /// The explanation why a pending pod is not placed, as a part of a page.
    pub fn why(namespace: &str, name: &str) -> String {
        format!("/page/part/why/{}/{}", segment(namespace), segment(name))
    }

    /// The list of a kind.
    pub fn list(kind: Kind) -> String {
        format!("/page/objects/{}", kind.plural())
    }

    /// The live part of the list of a kind.
    pub fn list_part(kind: Kind) -> String {
        format!("/page/part/objects/{}", kind.plural())
    }

    /// The page to create an object.
    pub fn new(kind: Kind) -> String {
        format!("/page/new/{}", kind.plural())
    }

    /// The page to edit an object. A kind without namespaces has `-` in place of the namespace.
    pub fn edit(kind: Kind, namespace: &str, name: &str) -> String {
        object("edit", kind, namespace, name)
    }

    /// The page to confirm a deletion.
    pub fn delete(kind: Kind, namespace: &str, name: &str) -> String {
        object("delete", kind, namespace, name)
    }

    fn object(verb: &str, kind: Kind, namespace: &str, name: &str) -> String {
        let namespace = if namespace.is_empty() { "-" } else { namespace };
        let (plural, namespace, name) = (kind.plural(), segment(namespace), segment(name));
        format!("/page/{verb}/{plural}/{namespace}/{name}")
    }

    /// A query string from pairs; empty values are left out.
    pub fn query(pairs: &[(&str, &str)]) -> String {
        let said: Vec<String> = pairs
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(key, value)| format!("{key}={}", segment(value)))
            .collect();
        if said.is_empty() {
            String::new()
        } else {
            format!("?{}", said.join("&"))
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_name_cannot_leave_its_segment() {
            assert_eq!(pod("a/b", "../c?d"), "/page/pods/a%2Fb/..%2Fc%3Fd");
            assert_eq!(edit(Kind::Nodes, "", "n 1"), "/page/edit/nodes/-/n%201");
            assert_eq!(query(&[("q", "a&b"), ("page", "")]), "?q=a%26b");
        }
    }
}

/// One page of a longer list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slice {
    /// The number of this page, from 1.
    pub page: usize,
    /// How many pages there are; at least 1.
    pub pages: usize,
    /// How many entries all pages have together.
    pub total: usize,
    /// The number of the first entry on this page, from 1; 0 if there is none.
    pub first: usize,
    /// The number of the last entry on this page.
    pub last: usize,
    /// The address of the previous page; empty on the first.
    pub previous: String,
    /// The address of the next page; empty on the last.
    pub next: String,
}

impl Slice {
    /// Page `page` of `total` entries in pages of `size`; `link` returns the address of a page. If the page does not
    /// exist, it is the nearest one that does.
    pub fn of(total: usize, page: usize, size: usize, link: impl Fn(usize) -> String) -> Self {
        let size = size.max(1);
        let pages = total.div_ceil(size).max(1);
        let page = page.clamp(1, pages);
        let begin = (page - 1) * size;
        let last = (begin + size).min(total);
        let other = |page: usize, there: bool| if there { link(page) } else { String::new() };
        Self {
            page,
            pages,
            total,
            first: if total == 0 { 0 } else { begin + 1 },
            last,
            previous: other(page.saturating_sub(1), page > 1),
            next: other(page + 1, page < pages),
        }
    }

    /// Whether there is more than one page.
    pub fn is_paged(&self) -> bool {
        self.pages > 1
    }

    /// The query in the address of the previous page, with its question mark; empty if there is none.
    pub fn previous_query(&self) -> &str {
        query_of(&self.previous)
    }

    /// The query in the address of the next page, with its question mark; empty if there is none.
    pub fn next_query(&self) -> &str {
        query_of(&self.next)
    }

    /// The number of entries before this page.
    pub(crate) fn skipped(&self) -> usize {
        self.first.saturating_sub(1)
    }

    /// The number of entries on this page.
    pub(crate) fn len(&self) -> usize {
        if self.first == 0 {
            0
        } else {
            self.last + 1 - self.first
        }
    }
}

fn query_of(address: &str) -> &str {
    let path = address.split('#').next().unwrap_or_default();
    path.find('?')
        .and_then(|at| path.get(at..))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_of_a_page_is_without_its_anchor() {
        let link = |page: usize| format!("/pods/a?page={page}#decision");

        let slice = Slice::of(30, 2, 10, link);

        assert_eq!(slice.next_query(), "?page=3");
        assert_eq!(Slice::of(30, 1, 10, link).previous_query(), "");
    }

    #[test]
    fn a_page_that_does_not_exist_is_the_nearest_one() {
        let link = |page: usize| page.to_string();

        let last = Slice::of(25, 99, 10, link);
        let none = Slice::of(0, 0, 10, link);

        assert_eq!((last.page, last.first, last.last), (3, 21, 25));
        assert_eq!((&*last.previous, &*last.next), ("2", ""));
        assert_eq!((none.page, none.pages, none.first, none.last), (1, 1, 0, 0));
        assert_eq!((none.skipped(), none.len()), (0, 0));
    }
}
