//! A query for a list: a text, a choice, an order, a page. Lists keep it in their addresses, so that a reload and a
//! live change show the same.

use super::{Slice, address};

/// A query for a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    /// Words that a row must all contain.
    pub text: String,
    /// The choice of rows; empty for all.
    pub show: String,
    /// The order; empty for the list's own.
    pub sort: String,
    /// The page, from 1.
    pub page: usize,
}

impl Query {
    /// The address of a page of this list.
    pub fn at(&self, path: &str, page: usize) -> String {
        let page = if page > 1 {
            page.to_string()
        } else {
            String::new()
        };
        let pairs = [
            ("q", self.text.as_str()),
            ("show", &self.show),
            ("sort", &self.sort),
            ("page", &page),
        ];
        format!("{path}{}", address::query(&pairs))
    }

    /// The words in lower case.
    pub fn words(&self) -> Vec<String> {
        self.text
            .split_whitespace()
            .map(str::to_lowercase)
            .collect()
    }

    /// Page `self.page` of a list with this number of rows.
    pub fn slice(&self, path: &str, rows: usize, size: usize) -> Slice {
        Slice::of(rows, self.page, size, |page| self.at(path, page))
    }
}

/// Whether each of the words is in one of the texts. The words are in lower case.
pub fn has_all(words: &[String], texts: &[&str]) -> bool {
    let has = |word: &String| {
        texts.iter().any(|text| {
            // Names in Kubernetes are already in lower case, so they need no copy.
            let is_lower = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase();
            text.contains(word.as_str())
                || (!text.bytes().all(is_lower) && text.to_lowercase().contains(word.as_str()))
        })
    };
    words.iter().all(has)
}

/// The form above a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// The subject of the list.
    pub label: &'static str,
    /// The address of the page with the list.
    pub path: String,
    /// The address of the list itself.
    pub part: String,
    /// The selector of the element that holds the list.
    pub target: &'static str,
    /// The search text.
    pub text: String,
    /// A hint at what can be searched for.
    pub placeholder: &'static str,
    /// The choices.
    pub selects: Vec<Select>,
}

/// One choice in the form above a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Select {
    /// The label.
    pub label: &'static str,
    /// Its name in the address.
    pub name: &'static str,
    /// Value, text, and whether it is chosen.
    pub options: Vec<(String, String, bool)>,
}

impl Select {
    /// A choice among these values, each with its text; `chosen` is the present one.
    pub fn of(
        label: &'static str,
        name: &'static str,
        chosen: &str,
        options: &[(&str, &str)],
    ) -> Self {
        let options = options
            .iter()
            .map(|(value, text)| ((*value).to_owned(), (*text).to_owned(), *value == chosen));
        Self {
            label,
            name,
            options: options.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_to_stand_somewhere() {
        let query = Query {
            text: " A100  Node-7".into(),
            ..Query::default()
        };
        let words = query.words();

        assert!(has_all(&words, &["NVIDIA A100", "node-7"]));
        assert!(!has_all(&words, &["NVIDIA A100", "node-8"]));
        assert!(has_all(&[], &[]));
    }

    #[test]
    fn an_address_keeps_what_was_asked_for() {
        let query = Query {
            text: "a b".into(),
            sort: "used".into(),
            ..Query::default()
        };

        assert_eq!(
            query.at("/page/gpus", 3),
            "/page/gpus?q=a%20b&sort=used&page=3"
        );
        assert_eq!(Query::default().at("/page/gpus", 1), "/page/gpus");
    }
}
