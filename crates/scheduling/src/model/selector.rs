//! Labels, label selectors and node selectors. Does not know where a selector is used.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::names::{Names, Symbol};

/// Labels of one object, sorted by the symbol of their key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels(Box<[(Symbol, Symbol)]>);

impl Labels {
    /// The labels with these keys and values.
    pub fn new<'a>(
        names: &mut Names,
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let mut list: Vec<(Symbol, Symbol)> = labels
            .into_iter()
            .map(|(key, value)| (names.intern(key), names.intern(value)))
            .collect();
        list.sort_unstable();
        list.dedup_by_key(|(key, _)| *key);
        Self(list.into())
    }

    /// The value of this label.
    pub fn get(&self, key: Symbol) -> Option<Symbol> {
        let at = self.0.binary_search_by_key(&key, |(of, _)| *of).ok()?;
        self.0.get(at).map(|(_, value)| *value)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Symbol, Symbol)> {
        self.0.iter().copied()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The condition on a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// One of these values.
    In(Box<[Symbol]>),
    /// None of these values, or absent.
    NotIn(Box<[Symbol]>),
    /// Present, with any value.
    Exists,
    /// Absent.
    DoesNotExist,
    /// A whole number above this one.
    Gt(i64),
    /// A whole number below this one.
    Lt(i64),
}

/// A rule for one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// The label.
    pub key: Symbol,
    /// The condition.
    pub rule: Rule,
}

impl Requirement {
    fn matches(&self, names: &Names, value: Option<Symbol>) -> bool {
        let number = |value: Symbol| names.text(value).parse::<i64>().ok();
        match (&self.rule, value) {
            (Rule::In(values), Some(value)) => values.contains(&value),
            (Rule::NotIn(values), Some(value)) => !values.contains(&value),
            (Rule::Exists, value) => value.is_some(),
            (Rule::NotIn(_), None) => true,
            (Rule::DoesNotExist, value) => value.is_none(),
            (Rule::Gt(bound), Some(value)) => number(value).is_some_and(|number| number > *bound),
            (Rule::Lt(bound), Some(value)) => number(value).is_some_and(|number| number < *bound),
            (Rule::In(_) | Rule::Gt(_) | Rule::Lt(_), None) => false,
        }
    }
}

/// A label selector: all of its rules must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Selector {
    /// Selects no object, as an absent selector does.
    #[default]
    Nothing,
    /// Selects every object that matches all the rules; without rules, every object.
    All(Box<[Requirement]>),
}

impl Selector {
    /// Whether an object with these labels is selected.
    pub fn matches(&self, names: &Names, labels: &Labels) -> bool {
        match self {
            Self::Nothing => false,
            Self::All(rules) => rules
                .iter()
                .all(|rule| rule.matches(names, labels.get(rule.key))),
        }
    }

    /// Whether it selects everything because it has no rule.
    pub fn is_everything(&self) -> bool {
        matches!(self, Self::All(rules) if rules.is_empty())
    }

    /// The same selector with more rules.
    pub(crate) fn with(self, further: Vec<Requirement>) -> Self {
        match self {
            Self::Nothing => Self::Nothing,
            Self::All(rules) => {
                let mut rules = rules.into_vec();
                rules.extend(further);
                Self::All(rules.into())
            }
        }
    }

    /// Selects objects with these values of these labels.
    pub(crate) fn equal(labels: impl IntoIterator<Item = (Symbol, Symbol)>) -> Self {
        Self::All(
            labels
                .into_iter()
                .map(|(key, value)| Requirement {
                    key,
                    rule: Rule::In([value].into()),
                })
                .collect(),
        )
    }
}

fn symbols(names: &mut Names, values: Option<&Vec<String>>) -> Box<[Symbol]> {
    values
        .into_iter()
        .flatten()
        .map(|value| names.intern(value))
        .collect()
}

/// A word in a pod's rules that Kubernetes does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnknownWord {
    #[error("label selector operator {0:?} is unknown; write In, NotIn, Exists or DoesNotExist")]
    Operator(String),
    #[error(
        "topology spread constraint: whenUnsatisfiable {0:?} is unknown; write DoNotSchedule or ScheduleAnyway"
    )]
    WhenUnsatisfiable(String),
}

/// Reads a label selector; an absent one selects nothing. An operator that Kubernetes does not know is an error.
pub(crate) fn selector(
    names: &mut Names,
    written: Option<&LabelSelector>,
) -> Result<Selector, UnknownWord> {
    let Some(written) = written else {
        return Ok(Selector::Nothing);
    };
    let mut rules = Vec::new();
    for (key, value) in written.match_labels.iter().flatten() {
        let value = names.intern(value);
        rules.push(Requirement {
            key: names.intern(key),
            rule: Rule::In([value].into()),
        });
    }
    for expression in written.match_expressions.iter().flatten() {
        let values = symbols(names, expression.values.as_ref());
        let rule = match expression.operator.as_str() {
            "In" => Rule::In(values),
            "NotIn" => Rule::NotIn(values),
            "Exists" => Rule::Exists,
            "DoesNotExist" => Rule::DoesNotExist,
            other => return Err(UnknownWord::Operator(other.to_owned())),
        };
        rules.push(Requirement {
            key: names.intern(&expression.key),
            rule,
        });
    }
    Ok(Selector::All(rules.into()))
}

/// One alternative of a node selector: all its rules must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTerm {
    /// Rules for the node's labels.
    pub labels: Box<[Requirement]>,
    /// Rules for `metadata.name`: the name, and whether the node must have it.
    pub fields: Box<[(Symbol, bool)]>,
    /// Whether Kubernetes cannot read the term. Such a term matches no node.
    pub broken: bool,
}

impl NodeTerm {
    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty() && !self.broken
    }

    /// Whether the term selects the node. A term without rules selects none.
    pub fn matches(&self, names: &Names, name: Symbol, labels: &Labels) -> bool {
        !self.broken
            && !self.is_empty()
            && self
                .labels
                .iter()
                .all(|rule| rule.matches(names, labels.get(rule.key)))
            && self
                .fields
                .iter()
                .all(|(wanted, equal)| (*wanted == name) == *equal)
    }
}

/// Alternatives, of which at least one must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSelector {
    /// The alternatives. An empty list selects no node.
    pub terms: Box<[NodeTerm]>,
    /// For each term the names of the nodes that its `metadata.name In` rules allow. `None` unless every term has such
    /// rules.
    pub(crate) only: Option<Box<[Symbol]>>,
}

impl NodeSelector {
    /// Whether one of the alternatives selects the node.
    pub fn matches(&self, names: &Names, name: Symbol, labels: &Labels) -> bool {
        self.terms
            .iter()
            .any(|term| term.matches(names, name, labels))
    }
}

/// A preferred alternative and its weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preferred {
    /// 1 to 100.
    pub weight: i64,
    /// The rules for the node.
    pub term: NodeTerm,
}

const NAME_FIELD: &str = "metadata.name";

fn node_rule(names: &mut Names, written: &core::NodeSelectorRequirement) -> Option<Requirement> {
    let values = symbols(names, written.values.as_ref());
    let number = || match written.values.as_deref() {
        Some([one]) => one.parse::<i64>().ok(),
        _ => None,
    };
    let rule = match written.operator.as_str() {
        "In" if !values.is_empty() => Rule::In(values),
        "NotIn" if !values.is_empty() => Rule::NotIn(values),
        "Exists" if values.is_empty() => Rule::Exists,
        "DoesNotExist" if values.is_empty() => Rule::DoesNotExist,
        "Gt" => Rule::Gt(number()?),
        "Lt" => Rule::Lt(number()?),
        _ => return None,
    };
    Some(Requirement {
        key: names.intern(&written.key),
        rule,
    })
}

fn node_term(names: &mut Names, written: &core::NodeSelectorTerm) -> NodeTerm {
    let mut term = NodeTerm {
        labels: Box::new([]),
        fields: Box::new([]),
        broken: false,
    };
    let mut labels = Vec::new();
    for expression in written.match_expressions.iter().flatten() {
        match node_rule(names, expression) {
            Some(rule) => labels.push(rule),
            None => term.broken = true,
        }
    }
    let mut fields = Vec::new();
    for field in written.match_fields.iter().flatten() {
        let value = match field.values.as_deref() {
            Some([one]) => Some(names.intern(one)),
            _ => None,
        };
        match (field.key.as_str(), field.operator.as_str(), value) {
            (NAME_FIELD, "In", Some(value)) => fields.push((value, true)),
            (NAME_FIELD, "NotIn", Some(value)) => fields.push((value, false)),
            _ => term.broken = true,
        }
    }
    term.labels = labels.into();
    term.fields = fields.into();
    term
}

/// Reads a node selector. A term that cannot be read matches no node, as in kube-scheduler.
pub(crate) fn node_selector(names: &mut Names, written: &core::NodeSelector) -> NodeSelector {
    let terms: Box<[NodeTerm]> = written
        .node_selector_terms
        .iter()
        .map(|term| node_term(names, term))
        .collect();
    NodeSelector {
        terms,
        only: only(names, &written.node_selector_terms),
    }
}

/// The names that the `metadata.name In` rules of all terms allow; `None` if a term has no such rule.
fn only(names: &mut Names, terms: &[core::NodeSelectorTerm]) -> Option<Box<[Symbol]>> {
    let mut all: Vec<Symbol> = Vec::new();
    for term in terms {
        let mut of_term: Option<Vec<Symbol>> = None;
        for field in term.match_fields.iter().flatten() {
            if field.key != NAME_FIELD || field.operator != "In" {
                continue;
            }
            let values = symbols(names, field.values.as_ref());
            of_term = Some(match of_term {
                None => values.into_vec(),
                Some(before) => before
                    .into_iter()
                    .filter(|name| values.contains(name))
                    .collect(),
            });
        }
        all.extend(of_term?);
    }
    if terms.is_empty() {
        return None;
    }
    all.sort_unstable();
    all.dedup();
    Some(all.into())
}

/// Reads preferred terms. Terms without weight or without rules have no effect and are left out.
pub(crate) fn preferred(
    names: &mut Names,
    written: &[core::PreferredSchedulingTerm],
) -> Box<[Preferred]> {
    written
        .iter()
        .map(|preferred| Preferred {
            weight: i64::from(preferred.weight),
            term: node_term(names, &preferred.preference),
        })
        .filter(|preferred| preferred.weight != 0 && !preferred.term.is_empty())
        .collect()
}
