//! `InterPodAffinity`: which pods a pod wants near it or far from it, and which pods the running pods want near or
//! far.

use std::sync::Arc;

use super::{Before, Context, MOST_SCORE, Scores, each};
use crate::model::{AffinityTerm, Labels, Pod, Weighted};
use crate::names::{Numbered, Symbol};
use crate::plugin::Plugin;
use crate::snapshot::NodeState;
use crate::status::Rejection;

/// A number for each domain, which is a label with a value.
type Domains = Numbered<(Symbol, Symbol), i64>;

/// The owner of a term. It decides how the term's namespace selector matches a namespace that is not known.
#[derive(Clone, Copy, PartialEq)]
enum TermOwner {
    Incoming,
    Existing,
}

fn selects(context: &Context<'_>, owner: TermOwner, term: &AffinityTerm, pod: &Pod) -> bool {
    let names = context.names();
    let by_labels = || {
        let selector = &term.namespace_selector;
        match context.snapshot.namespace(pod.namespace) {
            Some(labels) => selector.matches(names, labels),
            None if owner == TermOwner::Incoming => selector.is_everything(),
            None => selector.matches(names, &Labels::default()),
        }
    };
    (term.namespaces.contains(&pod.namespace) || by_labels())
        && term.selector.matches(names, &pod.labels)
}

fn selects_all(context: &Context<'_>, terms: &[AffinityTerm], pod: &Pod) -> bool {
    !terms.is_empty()
        && terms
            .iter()
            .all(|term| selects(context, TermOwner::Incoming, term, pod))
}

fn add(domains: &mut Domains, node: &NodeState, key: Symbol, by: i64) {
    let Some(value) = node.node.labels.get(key) else {
        return;
    };
    let count = domains.entry((key, value)).or_default();
    *count += by;
    if *count == 0 {
        domains.remove(&(key, value));
    }
}

/// The terms of a pod; empty if it has none.
struct Terms<'a> {
    required: &'a [AffinityTerm],
    required_anti: &'a [AffinityTerm],
    preferred: &'a [Weighted],
    preferred_anti: &'a [Weighted],
}

fn affinity(pod: &Pod) -> Terms<'_> {
    let terms = pod.affinity.as_deref();
    Terms {
        required: terms.map_or(&[], |terms| &terms.required),
        required_anti: terms.map_or(&[], |terms| &terms.required_anti),
        preferred: terms.map_or(&[], |terms| &terms.preferred),
        preferred_anti: terms.map_or(&[], |terms| &terms.preferred_anti),
    }
}

/// The domains that matter to the pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct AffinityDomains {
    /// Domains with running pods that do not want this one near them.
    unwelcome: Domains,
    /// Domains with running pods that this one wants near it.
    wanted: Domains,
    /// Domains with running pods that this one wants far from it.
    unwanted: Domains,
}

impl AffinityDomains {
    fn of_existing(&mut self, context: &Context<'_>, node: &NodeState, pod: &Pod, by: i64) {
        for term in affinity(pod).required_anti {
            if selects(context, TermOwner::Existing, term, context.pod) {
                add(&mut self.unwelcome, node, term.topology_key, by);
            }
        }
    }

    fn of_incoming(&mut self, context: &Context<'_>, node: &NodeState, pod: &Pod, by: i64) {
        let own = affinity(context.pod);
        if selects_all(context, own.required, pod) {
            for term in own.required {
                add(&mut self.wanted, node, term.topology_key, by);
            }
        }
        for term in own.required_anti {
            if selects(context, TermOwner::Incoming, term, pod) {
                add(&mut self.unwanted, node, term.topology_key, by);
            }
        }
    }

    /// Adds a pod to the node (1) or removes it (-1) for a trial.
    pub(crate) fn change(
        &mut self,
        context: &Context<'_>,
        node: &NodeState,
        pod: &Arc<Pod>,
        by: i64,
    ) {
        self.of_existing(context, node, pod, by);
        self.of_incoming(context, node, pod, by);
    }

    pub(crate) fn filter(&self, context: &Context<'_>, node: &NodeState) -> Result<(), Rejection> {
        let own = affinity(context.pod);
        let labels = &node.node.labels;
        if !self.has_wanted(context, &own, labels) {
            return Err(Rejection::unresolvable(
                Plugin::InterPodAffinity,
                "node(s) didn't match pod affinity rules",
            ));
        }
        let counted = |domains: &Domains, key: Symbol, value: Symbol| {
            domains.get(&(key, value)).is_some_and(|count| *count > 0)
        };
        let unwanted = own.required_anti.iter().any(|term| {
            labels
                .get(term.topology_key)
                .is_some_and(|value| counted(&self.unwanted, term.topology_key, value))
        });
        if unwanted {
            return Err(Rejection::unschedulable(
                Plugin::InterPodAffinity,
                "node(s) didn't match pod anti-affinity rules",
            ));
        }
        if !self.unwelcome.is_empty()
            && labels
                .iter()
                .any(|(key, value)| counted(&self.unwelcome, key, value))
        {
            return Err(Rejection::unschedulable(
                Plugin::InterPodAffinity,
                "node(s) didn't satisfy existing pods anti-affinity rules",
            ));
        }
        Ok(())
    }

    fn has_wanted(&self, context: &Context<'_>, own: &Terms<'_>, labels: &Labels) -> bool {
        let mut all = true;
        for term in own.required {
            let Some(value) = labels.get(term.topology_key) else {
                return false;
            };
            let domain = (term.topology_key, value);
            all &= self.wanted.get(&domain).is_some_and(|count| *count > 0);
        }
        // The first pod of a group that wants its own kind near it must be able to start.
        all || (self.wanted.is_empty() && selects_all(context, own.required, context.pod))
    }
}

pub(crate) fn pre_filter(context: &Context<'_>) -> (Before, Option<AffinityDomains>) {
    let own = affinity(context.pod);
    let mut prepared = AffinityDomains::default();
    for node in context.snapshot.nodes_with_affinity() {
        for pod in &node.with_affinity {
            prepared.of_existing(context, node, pod, 1);
        }
    }
    if own.required.is_empty() && own.required_anti.is_empty() {
        if prepared.unwelcome.is_empty() {
            return (Before::Skip, None);
        }
    } else {
        for node in context.snapshot.nodes() {
            for pod in &node.pods {
                prepared.of_incoming(context, node, pod, 1);
            }
        }
    }
    (Before::Run, Some(prepared))
}

/// The scores of the nodes by the preferred terms; `None` if no such term concerns a pod.
pub(crate) fn score(context: &Context<'_>, nodes: &[&NodeState]) -> Option<Scores> {
    let own = affinity(context.pod);
    let prefers = !own.preferred.is_empty() || !own.preferred_anti.is_empty();
    if context.settings.ignore_preferred_of_existing && !prefers {
        return None;
    }
    let mut worth = Worth::default();
    if prefers {
        for node in context.snapshot.nodes() {
            for pod in &node.pods {
                worth.of_existing(context, node, pod);
                worth.of_incoming(context, node, pod);
            }
        }
    } else {
        for node in context.snapshot.nodes_with_affinity() {
            for pod in &node.with_affinity {
                worth.of_existing(context, node, pod);
            }
        }
    }
    if worth.keys.is_empty() {
        return None;
    }
    let raw = each(nodes, |node| {
        worth
            .keys
            .iter()
            .filter_map(|key| {
                let value = node.node.labels.get(*key)?;
                worth.domains.get(&(*key, value))
            })
            .sum()
    });
    let least = raw.iter().copied().min().unwrap_or_default();
    let most = raw.iter().copied().max().unwrap_or_default();
    let normal = raw
        .iter()
        .map(|score| share(score - least, most - least))
        .collect();
    Some(Scores { raw, normal })
}

#[derive(Default)]
struct Worth {
    domains: Domains,
    /// The labels of all domains.
    keys: Vec<Symbol>,
}

impl Worth {
    fn add(&mut self, node: &NodeState, key: Symbol, worth: i64) {
        if let Some(value) = node.node.labels.get(key) {
            *self.domains.entry((key, value)).or_default() += worth;
            if !self.keys.contains(&key) {
                self.keys.push(key);
            }
        }
    }

    fn of_existing(&mut self, context: &Context<'_>, node: &NodeState, pod: &Pod) {
        let theirs = affinity(pod);
        let incoming = context.pod;
        let hard = context.settings.hard_affinity_weight;
        if hard > 0 {
            for term in theirs.required {
                if selects(context, TermOwner::Existing, term, incoming) {
                    self.add(node, term.topology_key, hard);
                }
            }
        }
        for (list, sign) in [(theirs.preferred, 1), (theirs.preferred_anti, -1)] {
            for Weighted { weight, term } in list {
                if selects(context, TermOwner::Existing, term, incoming) {
                    self.add(node, term.topology_key, sign * weight);
                }
            }
        }
    }

    fn of_incoming(&mut self, context: &Context<'_>, node: &NodeState, pod: &Pod) {
        let own = affinity(context.pod);
        for (list, sign) in [(own.preferred, 1), (own.preferred_anti, -1)] {
            for Weighted { weight, term } in list {
                if selects(context, TermOwner::Incoming, term, pod) {
                    self.add(node, term.topology_key, sign * weight);
                }
            }
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "kube-scheduler computes with the same floats, and scores have to agree with it"
)]
fn share(part: i64, whole: i64) -> i64 {
    if whole <= 0 {
        return 0;
    }
    (MOST_SCORE as f64 * (part as f64 / whole as f64)) as i64
}
