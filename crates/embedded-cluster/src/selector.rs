//! Label and field selectors. Text in, yes or no out.

use crate::status::Status;

/// The conditions on an object to be listed or watched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    labels: Vec<LabelTerm>,
    fields: Vec<FieldTerm>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct LabelTerm {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldTerm {
    path: String,
    equal: bool,
    value: String,
}

impl Selector {
    /// Parses the query parameters `labelSelector` and `fieldSelector`; empty text selects all objects.
    pub fn parse(labels: &str, fields: &str) -> Result<Self, Status> {
        let labels = split(labels)
            .into_iter()
            .map(label_term)
            .collect::<Result<_, _>>()?;
        let fields = split(fields)
            .into_iter()
            .map(field_term)
            .collect::<Result<_, _>>()?;
        Ok(Self { labels, fields })
    }

    /// Reads an object such as `{"matchLabels":{…},"matchExpressions":[…]}`; missing parts select all objects.
    pub fn from_object(object: &serde_json::Value) -> Self {
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let mut labels = Vec::new();
        for (key, value) in object["matchLabels"].as_object().into_iter().flatten() {
            labels.push(LabelTerm {
                key: key.clone(),
                test: Test::In(vec![text(value)]),
            });
        }
        for expression in object["matchExpressions"].as_array().into_iter().flatten() {
            let values = || {
                expression["values"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(text)
                    .collect()
            };
            let test = match expression["operator"].as_str() {
                Some("In") => Test::In(values()),
                Some("NotIn") => Test::NotIn(values()),
                Some("DoesNotExist") => Test::Absent,
                _ => Test::Exists,
            };
            labels.push(LabelTerm {
                key: text(&expression["key"]),
                test,
            });
        }
        Self {
            labels,
            fields: Vec::new(),
        }
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The field paths that it uses.
    pub(crate) fn field_paths(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|term| term.path.as_str())
    }

    /// The same selector, restricted to the object with this name.
    pub(crate) fn and_name(mut self, name: &str) -> Self {
        self.fields.push(FieldTerm {
            path: "metadata.name".into(),
            equal: true,
            value: name.to_owned(),
        });
        self
    }

    /// `label` and `field` return an object's values; a missing field is the empty text.
    pub fn matches<'a>(
        &self,
        label: impl Fn(&str) -> Option<&'a str>,
        field: impl Fn(&str) -> Option<&'a str>,
    ) -> bool {
        let number = |text: &str| text.parse::<i64>().ok();
        let labels = self.labels.iter().all(|LabelTerm { key, test }| {
            let value = label(key);
            match test {
                Test::In(values) => {
                    value.is_some_and(|value| values.iter().any(|one| one == value))
                }
                Test::NotIn(values) => {
                    !value.is_some_and(|value| values.iter().any(|one| one == value))
                }
                Test::Exists => value.is_some(),
                Test::Absent => value.is_none(),
                Test::Greater(bound) => value.and_then(number).is_some_and(|value| value > *bound),
                Test::Less(bound) => value.and_then(number).is_some_and(|value| value < *bound),
            }
        });
        labels
            && self
                .fields
                .iter()
                .all(|term| (field(&term.path).unwrap_or_default() == term.value) == term.equal)
    }
}

/// Splits at commas that are not inside brackets.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_u32, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.extend(text.get(start..at));
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.extend(text.get(start..));
    parts
        .into_iter()
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}

fn label_term(text: &str) -> Result<LabelTerm, Status> {
    let wrong = || {
        Status::bad_request(format!(
            "unable to parse requirement: \"{text}\" is not a label selector"
        ))
    };
    let term = |key: &str, test| {
        let key = key.trim();
        if is_label_key(key) {
            Ok(LabelTerm {
                key: key.to_owned(),
                test,
            })
        } else {
            Err(wrong())
        }
    };
    if let Some((key, value)) = text.split_once("!=") {
        return term(key, Test::NotIn(vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return term(key, Test::In(vec![value.trim().to_owned()]));
    }
    if let Some((head, values)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let values = values
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        return match head.split_whitespace().collect::<Vec<_>>().as_slice() {
            [key, "in"] => term(key, Test::In(values)),
            [key, "notin"] => term(key, Test::NotIn(values)),
            _ => Err(wrong()),
        };
    }
    for (sign, greater) in [('>', true), ('<', false)] {
        if let Some((key, bound)) = text.split_once(sign) {
            let bound = bound.trim().parse().map_err(|_| wrong())?;
            return term(
                key,
                if greater {
                    Test::Greater(bound)
                } else {
                    Test::Less(bound)
                },
            );
        }
    }
    match text.strip_prefix('!') {
        Some(key) => term(key, Test::Absent),
        None => term(text, Test::Exists),
    }
}

fn is_label_key(key: &str) -> bool {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    !key.is_empty() && key.len() <= 317 && key.chars().all(plain)
}

fn field_term(text: &str) -> Result<FieldTerm, Status> {
    let (path, equal, value) = match (
        text.split_once("!="),
        text.split_once("=="),
        text.split_once('='),
    ) {
        (Some((path, value)), _, _) => (path, false, value),
        (_, Some((path, value)), _) | (_, _, Some((path, value))) => (path, true, value),
        _ => {
            return Err(Status::bad_request(format!(
                "invalid selector: '{text}'; can't understand '{text}'"
            )));
        }
    };
    let value = value
        .trim()
        .replace("\\,", ",")
        .replace("\\=", "=")
        .replace("\\\\", "\\");
    Ok(FieldTerm {
        path: path.trim().to_owned(),
        equal,
        value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(selector: &str, labels: &[(&str, &str)]) -> bool {
        let find = |key: &str| {
            labels
                .iter()
                .find(|(name, _)| *name == key)
                .map(|(_, value)| *value)
        };
        Selector::parse(selector, "")
            .unwrap()
            .matches(find, |_| None)
    }

    #[test]
    fn every_label_operator_says_what_kubernetes_says() {
        let labels = [("app", "a"), ("n", "5")];
        for yes in [
            "",
            "app",
            "app=a",
            "app==a",
            "app!=b",
            "other!=b",
            "!other",
            "app in (a, b)",
            "app notin (c)",
            "n>4",
            "n<6",
            "app=a,n",
        ] {
            assert!(check(yes, &labels), "{yes}");
        }
        for no in [
            "app=b",
            "app!=a",
            "!app",
            "other",
            "app in (b)",
            "app notin (a,b)",
            "n>5",
            "other>1",
            "app=a,x",
        ] {
            assert!(!check(no, &labels), "{no}");
        }
    }

    #[test]
    fn a_broken_selector_is_a_bad_request() {
        for broken in ["app in a", "a b", "=x", "app > x", "app in (", "ü"] {
            assert_eq!(
                Selector::parse(broken, "").unwrap_err().code,
                400,
                "{broken}"
            );
        }
        assert_eq!(Selector::parse("", "spec.nodeName").unwrap_err().code, 400);
    }

    #[test]
    fn a_field_that_is_absent_is_empty() {
        let unbound = Selector::parse("", "spec.nodeName=").unwrap();
        assert!(unbound.matches(|_| None, |_| None));
        assert!(!unbound.matches(|_| None, |_| Some("n1")));
    }
}
