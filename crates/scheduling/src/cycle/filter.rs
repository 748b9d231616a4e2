//! The first half of a cycle: finds the nodes that fit.

use std::sync::Arc;

use super::Cycle;
use crate::model::Pod;
use crate::names::Symbol;
use crate::plugin::{Plugin, PluginSet, Point};
use crate::plugins::{
    Before, Context, fit, gpu, inter_pod, node_affinity, node_name, node_ports, spread, taints,
    unschedulable, volume_binding, volume_limits, volume_restrictions, volume_zone,
};
use crate::record::{Said, Verdict};
use crate::snapshot::{NodeIndex, NodeState};
use crate::status::{Code, Reason, Reasons, Rejection};

/// Names of the nodes to which plugins narrow the search, and those plugins.
pub(super) type Narrowed = (Vec<Symbol>, Vec<Plugin>);

/// The results of the plugins' preparations, made before any node is examined.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    /// The filters that apply to the pod, in their order.
    pub(super) filters: Vec<Plugin>,
    spread: Option<spread::HardConstraints>,
    inter_pod: Option<inter_pod::AffinityDomains>,
    restrictions: Option<volume_restrictions::ExclusiveClaims>,
    pub(super) volumes: Option<volume_binding::ClaimsToBind>,
    zones: Option<volume_zone::ZoneLabels>,
    pub(super) devices: Option<gpu::EngineAnswers>,
}

fn keep<T>(place: &mut Option<T>, (before, prepared): (Before, Option<T>)) -> Before {
    *place = prepared;
    before
}

/// A plugin that has prepared nothing does not apply, so it accepts the node.
fn ask<T>(
    prepared: &Option<T>,
    filter: impl FnOnce(&T) -> Result<(), Rejection>,
) -> Result<(), Rejection> {
    prepared.as_ref().map_or(Ok(()), filter)
}

impl State {
    fn prepare(&mut self, context: &Context<'_>, plugin: Plugin) -> Before {
        match plugin {
            Plugin::NodeAffinity => node_affinity::pre_filter(context),
            Plugin::NodePorts => node_ports::pre_filter(context),
            Plugin::NodeVolumeLimits => volume_limits::pre_filter(context),
            Plugin::VolumeRestrictions => keep(
                &mut self.restrictions,
                volume_restrictions::pre_filter(context),
            ),
            Plugin::VolumeBinding => keep(&mut self.volumes, volume_binding::pre_filter(context)),
            Plugin::VolumeZone => keep(&mut self.zones, volume_zone::pre_filter(context)),
            Plugin::PodTopologySpread => keep(&mut self.spread, spread::pre_filter(context)),
            Plugin::InterPodAffinity => keep(&mut self.inter_pod, inter_pod::pre_filter(context)),
            Plugin::GpuFit => keep(&mut self.devices, gpu::pre_filter(context)),
            _ => Before::Run,
        }
    }

    /// Adds a pod to the node for a trial.
    pub(super) fn add(&mut self, context: &Context<'_>, node: &NodeState, pod: &Arc<Pod>) {
        self.change(context, node, pod, 1);
    }

    /// Removes a pod from the node for a trial.
    pub(super) fn remove(&mut self, context: &Context<'_>, node: &NodeState, pod: &Arc<Pod>) {
        self.change(context, node, pod, -1);
    }

    fn change(&mut self, context: &Context<'_>, node: &NodeState, pod: &Arc<Pod>, by: i64) {
        if let Some(spread) = &mut self.spread {
            spread.change(context, node, pod, by);
        }
        if let Some(inter_pod) = &mut self.inter_pod {
            inter_pod.change(context, node, pod, by);
        }
        if let Some(restrictions) = &mut self.restrictions {
            restrictions.change(context, pod, by);
        }
        if let Some(devices) = &mut self.devices {
            devices.change(pod, by);
        }
    }

    fn ask(
        &self,
        context: &Context<'_>,
        plugin: Plugin,
        node: &NodeState,
    ) -> Result<(), Rejection> {
        match plugin {
            Plugin::NodeUnschedulable => unschedulable::filter(context, node),
            Plugin::NodeName => node_name::filter(context, node),
            Plugin::TaintToleration => taints::filter(context, node),
            Plugin::NodeAffinity => node_affinity::filter(context, node),
            Plugin::NodePorts => node_ports::filter(context, node),
            Plugin::NodeResourcesFit => fit::filter(context, node),
            Plugin::NodeVolumeLimits => volume_limits::filter(context, node),
            Plugin::PodTopologySpread => ask(&self.spread, |spread| spread.filter(node)),
            Plugin::InterPodAffinity => {
                ask(&self.inter_pod, |affinity| affinity.filter(context, node))
            }
            Plugin::VolumeRestrictions => ask(&self.restrictions, |restrictions| {
                restrictions.filter(context, node)
            }),
            Plugin::VolumeBinding => ask(&self.volumes, |volumes| volumes.filter(context, node)),
            Plugin::VolumeZone => ask(&self.zones, |zones| zones.filter(node)),
            Plugin::GpuFit => ask(&self.devices, |devices| devices.filter(context, node)),
            _ => Ok(()),
        }
    }

    /// Asks the filters in their order until one refuses. The number says how many accepted before it.
    fn ask_all(&self, context: &Context<'_>, node: &NodeState) -> Result<(), (u32, Rejection)> {
        for (passed, plugin) in (0..).zip(&self.filters) {
            if let Err(rejection) = self.ask(context, *plugin, node) {
                return Err((passed, rejection));
            }
        }
        Ok(())
    }

    /// As [`State::ask_all`], first as if the pods of the same or a higher priority that are nominated for the node
    /// ran there, and then without them.
    pub(super) fn ask_with_nominated(
        &self,
        context: &Context<'_>,
        node: &NodeState,
    ) -> Result<(), (u32, Rejection)> {
        let pod = context.pod;
        let nominated = context.snapshot.nominated(node.node.symbol);
        let mut others = nominated
            .iter()
            .filter(|other| other.priority >= pod.priority && other.uid != pod.uid)
            .peekable();
        if others.peek().is_some() {
            let (mut state, mut full) = (self.clone(), node.clone());
            for other in others {
                full.add(other);
                state.add(context, &full, other);
            }
            state.ask_all(context, &full)?;
        }
        self.ask_all(context, node)
    }
}

/// kube-scheduler searches for at least this number of nodes that fit.
const LEAST_NODES: usize = 100;
/// If the percentage is derived from the number of nodes, it is at least this.
const LEAST_PERCENTAGE: usize = 5;

/// How many nodes that fit end the search in a cluster of `nodes` nodes.
pub(super) fn enough(percentage: i32, nodes: usize) -> usize {
    if nodes < LEAST_NODES {
        return nodes;
    }
    let percentage = match usize::try_from(percentage).unwrap_or_default() {
        0 => 50_usize.saturating_sub(nodes / 125).max(LEAST_PERCENTAGE),
        percentage => percentage,
    };
    (nodes * percentage / 100).max(LEAST_NODES)
}

impl Cycle<'_> {
    pub(super) fn filter(&mut self, start: usize) {
        let only = match self.pre_filter() {
            Ok(only) => only,
            Err(rejection) => {
                if rejection.code == Code::Error {
                    let plugin = rejection.plugin.map_or("", Plugin::name);
                    self.error = Some(format!(
                        "running PreFilter plugin \"{plugin}\": {}",
                        self.text(&rejection)
                    ));
                } else {
                    self.unschedulable.extend_with(&rejection);
                    self.absent = Some(rejection.clone());
                    self.refused = Some(rejection);
                }
                return;
            }
        };
        let context = self.context();
        // Filters that do not apply to the pod are not asked.
        let asked = self.framework.plugins(Point::Filter);
        let skipped = self.state.filters.clone();
        self.state.filters = asked
            .iter()
            .copied()
            .filter(|plugin| !skipped.contains(plugin))
            .collect();
        if let Some((record, _)) = &mut self.record {
            record.filters.clone_from(&self.state.filters);
        }
        self.narrowed = only;
        if self.pod.nominated != Symbol::EMPTY
            && let Some(node) = self.snapshot.node_of(self.pod.nominated)
        {
            self.look(&context, &[node.index], 0, 1);
            if !self.feasible.is_empty() {
                self.shortcut = true;
                return;
            }
        }
        self.search(start);
    }

    /// Examines all candidate nodes.
    pub(super) fn search(&mut self, start: usize) {
        let context = self.context();
        let nodes: Vec<NodeIndex>;
        let among: &[NodeIndex] = match &self.narrowed {
            None => self.snapshot.order(),
            Some((names, plugins)) => {
                let named: Vec<NodeIndex> = names
                    .iter()
                    .filter_map(|name| self.snapshot.node_of(*name))
                    .map(NodeState::index)
                    .collect();
                nodes = self
                    .snapshot
                    .order()
                    .iter()
                    .copied()
                    .filter(|index| named.contains(index))
                    .collect();
                let plugins: Vec<&str> = plugins.iter().map(Plugin::name_of).collect();
                self.absent = Some(Rejection {
                    plugin: None,
                    code: Code::Unresolvable,
                    reasons: Reasons::One(Reason::Text(
                        format!("node(s) didn't satisfy plugin(s) [{}]", plugins.join(" ")).into(),
                    )),
                });
                &nodes
            }
        };
        let scores = !self.framework.weights().is_empty() || self.framework.extender_filters;
        let wanted = if scores {
            enough(self.framework.percentage, among.len())
        } else {
            1
        };
        self.rejected.clear();
        self.look(&context, among, start, wanted);
        let all = self.snapshot.node_count().max(1);
        self.next_start = (start + self.feasible.len() + self.rejected.len()) % all;
    }

    /// Asks the plugins before any node is examined. Returns the nodes to which they narrow the search, and those
    /// plugins.
    fn pre_filter(&mut self) -> Result<Option<Narrowed>, Rejection> {
        let context = self.context();
        let mut only: Option<Vec<Symbol>> = None;
        let mut narrowing: Vec<Plugin> = Vec::new();
        let mut refused = None;
        for plugin in self.framework.plugins(Point::PreFilter) {
            let answer = self.state.prepare(&context, *plugin);
            if let Some((record, _)) = &mut self.record {
                let said = match &answer {
                    Before::Run | Before::Only(_) => Said::Success,
                    Before::Skip => Said::Skipped,
                    Before::Refuse(rejection) => Said::No(
                        rejection
                            .message(&self.snapshot.names, self.framework.wording)
                            .into(),
                    ),
                };
                record.pre_filter.push((*plugin, said));
            }
            match answer {
                Before::Run => {}
                Before::Skip => self.state.filters.push(*plugin),
                Before::Refuse(rejection) => {
                    // A later plugin may still decide that eviction cannot help.
                    if rejection.code != Code::Unschedulable {
                        return Err(rejection);
                    }
                    refused = Some(rejection);
                }
                Before::Only(mut names) => {
                    narrowing.push(*plugin);
                    narrowing.sort_unstable_by_key(|plugin| plugin.name());
                    names.sort_unstable_by(|a, b| {
                        context.names().text(*a).cmp(context.names().text(*b))
                    });
                    if let Some((record, _)) = &mut self.record {
                        let texts = names.iter().map(|name| context.names().text(*name).into());
                        record.only.push((*plugin, texts.collect()));
                    }
                    let names = match only {
                        None => names,
                        Some(before) => before
                            .into_iter()
                            .filter(|name| names.contains(name))
                            .collect(),
                    };
                    if names.is_empty() {
                        return Err(nowhere(&narrowing));
                    }
                    only = Some(names);
                }
            }
        }
        match refused {
            Some(rejection) => Err(rejection),
            None => Ok(only.map(|names| (names, narrowing))),
        }
    }

    /// Examines nodes until enough of them fit.
    fn look(&mut self, context: &Context<'_>, among: &[NodeIndex], start: usize, wanted: usize) {
        let start = start % among.len().max(1);
        let (before, after) = among.split_at_checked(start).unwrap_or((&[], among));
        let asked = !self.state.filters.is_empty();
        for index in after.iter().chain(before) {
            let Some(node) = self.snapshot.node(*index) else {
                continue;
            };
            let answer = if asked {
                self.state.ask_with_nominated(context, node)
            } else {
                Ok(())
            };
            if self.record.is_some() && asked {
                self.note(node, answer.as_ref().err());
            }
            match answer {
                Ok(()) => self.feasible.push(*index),
                Err((_, rejection)) if rejection.code == Code::Error => {
                    let plugin = rejection.plugin.map_or("", Plugin::name);
                    self.error = Some(format!(
                        "running \"{plugin}\" filter plugin: {}",
                        self.text(&rejection)
                    ));
                    return;
                }
                Err((_, rejection)) => {
                    self.unschedulable.extend_with(&rejection);
                    self.rejected.push((*index, rejection));
                }
            }
            if self.feasible.len() >= wanted {
                return;
            }
        }
    }

    fn note(&mut self, node: &NodeState, refused: Option<&(u32, Rejection)>) {
        let text = refused.map(|(_, rejection)| self.text(rejection));
        let Some((record, texts)) = &mut self.record else {
            return;
        };
        let verdict = match (refused, text) {
            (Some((passed, _)), Some(text)) => Verdict {
                passed: *passed,
                refused: Some(texts.number(record, text)),
            },
            _ => Verdict {
                passed: u32::try_from(record.filters.len()).unwrap_or(u32::MAX),
                refused: None,
            },
        };
        record.nodes.push((Arc::clone(&node.node.name), verdict));
    }
}

/// The refusal when plugins narrow the search to no node.
fn nowhere(plugins: &[Plugin]) -> Rejection {
    let text = match plugins {
        [one] => format!("node(s) didn't satisfy plugin {one}"),
        many => {
            let names: Vec<&str> = many.iter().map(Plugin::name_of).collect();
            format!(
                "node(s) didn't satisfy plugin(s) [{}] simultaneously",
                names.join(" ")
            )
        }
    };
    Rejection {
        plugin: None,
        code: Code::Unresolvable,
        reasons: Reasons::One(Reason::Text(text.into())),
    }
}

impl PluginSet {
    fn extend_with(&mut self, rejection: &Rejection) {
        if let Some(plugin) = rejection.plugin {
            self.insert(plugin);
        }
    }
}

impl Plugin {
    fn name_of(&self) -> &'static str {
        self.name()
    }
}
