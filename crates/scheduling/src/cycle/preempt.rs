//! Preemption for a pod that fits nowhere: finds the node on which evicting pods of a lower priority makes room.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Cycle;
use super::filter::State;
use super::message::{count, summary};
use crate::model::Pod;
use crate::names::Symbol;
use crate::plugin::{Plugin, Point};
use crate::plugins::Context;
use crate::plugins::preemption::{
    Victims, by_budget, by_importance, choose as choose_victims, wanted,
};
use crate::record::PostFilter;
use crate::snapshot::NodeState;
use crate::status::{Code, Rejection};

const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";

/// Why no node has victims.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum NoVictims {
    #[error("not eligible due to preemptionPolicy=Never.")]
    PolicyNever,
    /// An earlier eviction for this pod is still under way.
    #[error("not eligible due to a terminating pod on the nominated node.")]
    AlreadyLeaving,
    /// The number of nodes for each reason.
    #[error("{0}")]
    NowhereHelpful(String),
}

impl Cycle<'_> {
    /// Asks the plugin that makes room, if the profile has one. Returns the pods whose eviction helps, for each node,
    /// or the reason why no eviction helps.
    pub(super) fn post_filter(&mut self) -> (Vec<Victims>, String) {
        let plugins = self.framework.plugins(Point::PostFilter);
        if !plugins.contains(&Plugin::DefaultPreemption) {
            return (Vec::new(), String::new());
        }
        let (candidates, message) = match self.preempt() {
            Ok(candidates) => (candidates, String::new()),
            Err(why) => (Vec::new(), format!("preemption: {why}")),
        };
        if let Some((record, _)) = &mut self.record {
            record.post_filter = Some(PostFilter {
                plugin: Plugin::DefaultPreemption,
                nominated: choose_victims(&candidates).map(|victims| Arc::clone(&victims.node)),
            });
            record.all_nodes = self
                .snapshot
                .nodes()
                .map(|node| Arc::clone(&node.node.name))
                .collect();
        }
        (candidates, message)
    }

    fn preempt(&self) -> Result<Vec<Victims>, NoVictims> {
        let context = self.context();
        self.may_preempt(&context)?;
        let hopeful = self.hopeful();
        let settings = &self.framework.settings;
        let wanted = wanted(
            hopeful.len(),
            settings.least_candidates_percentage,
            settings.least_candidates,
        );
        let mut refusals: BTreeMap<String, usize> = BTreeMap::new();
        let mut refused = 0;
        let (mut harmless, mut harmful) = (Vec::new(), Vec::new());
        for node in hopeful {
            match self.victims_on(&context, node) {
                Ok(victims) if victims.violations == 0 => harmless.push(victims),
                Ok(victims) => harmful.push(victims),
                Err(rejection) => {
                    refused += 1;
                    let names = &self.snapshot.names;
                    count(&mut refusals, names, self.framework.wording, &rejection, 1);
                }
            }
            if !harmless.is_empty() && harmless.len() + harmful.len() >= wanted {
                break;
            }
        }
        harmless.append(&mut harmful);
        if !harmless.is_empty() {
            return Ok(harmless);
        }
        let nodes = self.snapshot.node_count();
        if nodes > refused {
            *refusals.entry(NOT_HELPFUL.to_owned()).or_default() += nodes - refused;
        }
        Err(NoVictims::NowhereHelpful(summary(
            nodes, None, &refusals, "",
        )))
    }

    fn may_preempt(&self, context: &Context<'_>) -> Result<(), NoVictims> {
        let pod = context.pod;
        if pod.never_preempts {
            return Err(NoVictims::PolicyNever);
        }
        if pod.nominated == Symbol::EMPTY {
            return Ok(());
        }
        let Some(node) = self.snapshot.node_of(pod.nominated) else {
            return Ok(());
        };
        let rejection = self
            .rejected
            .iter()
            .find(|(index, _)| *index == node.index)
            .map(|(_, rejection)| rejection)
            .or(self.absent.as_ref());
        if rejection.is_some_and(|rejection| rejection.code == Code::Unresolvable) {
            return Ok(());
        }
        let leaving = |other: &Arc<Pod>| other.priority < pod.priority && other.preempted;
        if node.pods.iter().any(leaving) {
            return Err(NoVictims::AlreadyLeaving);
        }
        Ok(())
    }

    /// The nodes on which eviction may help, by name.
    fn hopeful(&self) -> Vec<&NodeState> {
        let helps = |rejection: &Rejection| rejection.code == Code::Unschedulable;
        let absent = self.absent.as_ref().is_some_and(helps);
        self.snapshot
            .nodes()
            .filter(|node| {
                let of_node = self.rejected.iter().find(|(index, _)| *index == node.index);
                of_node.map_or(absent, |(_, rejection)| helps(rejection))
            })
            .collect()
    }

    /// The fewest and least important pods whose eviction makes room on the node.
    fn victims_on(&self, context: &Context<'_>, node: &NodeState) -> Result<Victims, Rejection> {
        let mut trial = Trial {
            context,
            state: self.state.clone(),
            node: node.clone(),
        };
        let mut lower: Vec<Arc<Pod>> = node
            .pods
            .iter()
            .filter(|other| other.priority < context.pod.priority)
            .cloned()
            .collect();
        if lower.is_empty() {
            return Err(Rejection::unresolvable(
                Plugin::DefaultPreemption,
                "No preemption victims found for incoming pod",
            ));
        }
        for pod in &lower {
            trial.remove(pod);
        }
        trial.fits()?;
        by_importance(&mut lower);
        let (protected, free) = by_budget(context.names(), lower, &self.snapshot.budgets);
        let mixed = !protected.is_empty() && !free.is_empty();
        let mut violations = 0;
        let mut victims = Vec::new();
        let of_protected = protected.len();
        for (at, pod) in protected.into_iter().chain(free).enumerate() {
            trial.add(&pod);
            if trial.fits().is_ok() {
                continue;
            }
            trial.remove(&pod);
            violations += usize::from(at < of_protected);
            victims.push(pod);
        }
        if mixed {
            by_importance(&mut victims);
        }
        if victims.is_empty() {
            // The pod fits on the node as it is, although the filters have just refused it.
            return Err(Rejection::unresolvable(
                Plugin::DefaultPreemption,
                "expected at least one victim pod",
            ));
        }
        Ok(Victims {
            node: Arc::clone(&node.node.name),
            pods: victims,
            violations,
        })
    }
}

/// A node from which pods are removed for a trial.
struct Trial<'a> {
    context: &'a Context<'a>,
    state: State,
    node: NodeState,
}

impl Trial<'_> {
    fn remove(&mut self, pod: &Arc<Pod>) {
        self.node.remove(&pod.key);
        self.state.remove(self.context, &self.node, pod);
    }

    fn add(&mut self, pod: &Arc<Pod>) {
        self.node.add(pod);
        self.state.add(self.context, &self.node, pod);
    }

    fn fits(&self) -> Result<(), Rejection> {
        self.state
            .ask_with_nominated(self.context, &self.node)
            .map_err(|(_, rejection)| rejection)
    }
}
