//! Decides where one pod goes: which nodes fit, how they score, which one the pod gets, or why it gets none. Values
//! in, values out: the caller carries out the decision.
//!
//! A cycle has two halves, so that a caller can ask extenders between them: [`Framework::begin`] filters,
//! [`Cycle::finish`] scores and chooses. [`Framework::schedule`] does both.

mod filter;
mod message;
mod preempt;
mod score;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::Pod;
use crate::plugin::{Plugin, PluginSet, Point};
use crate::plugins::Context;
use crate::profile::Framework;
use crate::record::{Record, Said, Texts};
use crate::snapshot::{NodeIndex, NodeState, Snapshot};
use crate::status::{Code, Reason, Reasons, Rejection};

use filter::{Narrowed, State};

pub use crate::plugins::preemption::{Victims, choose as choose_victims};
pub use crate::plugins::volume_binding::VolumeWork;

/// How to run a cycle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// The node at which the search begins, as an index into the nodes sorted by name. The previous cycle returns it
    /// ([`Outcome::next_start`]); 0 for the first cycle.
    pub start: usize,
    /// Whether to keep the answer of every plugin.
    pub record: bool,
}

/// A pod between the two halves of its cycle.
#[derive(Debug)]
pub struct Cycle<'a> {
    framework: &'a Framework,
    snapshot: &'a Snapshot,
    pod: &'a Arc<Pod>,
    state: State,
    feasible: Vec<NodeIndex>,
    rejected: Vec<(NodeIndex, Rejection)>,
    /// The reason recorded for nodes that were not examined.
    absent: Option<Rejection>,
    /// The refusal of a plugin before any node was examined.
    refused: Option<Rejection>,
    error: Option<String>,
    start: usize,
    next_start: usize,
    narrowed: Option<Narrowed>,
    /// Whether only the node nominated for the pod was examined.
    shortcut: bool,
    /// The plugins that refused the pod or a node.
    unschedulable: PluginSet,
    by_extender: bool,
    record: Option<(Record, Texts)>,
}

/// An extender's answer about the nodes that it was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extended {
    /// Names of the nodes that fit, in the extender's order.
    pub fit: Vec<String>,
    /// Nodes that do not fit, and why.
    pub failed: BTreeMap<String, String>,
    /// Nodes on which eviction cannot help, and why.
    pub unresolvable: BTreeMap<String, String>,
}

/// The result of a cycle.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The pod's node, or why it has none.
    pub result: Result<Placed, Failed>,
    /// Where the next cycle's search begins.
    pub next_start: usize,
    /// The answers of every plugin, if they were asked for.
    pub record: Option<Record>,
}

/// A pod that has found its node. Nothing is reserved there until the caller does so.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// Name of the node.
    pub node: Arc<str>,
    /// Names of all nodes with the best score, the chosen one first. kube-scheduler chooses one of them at random.
    pub ties: Vec<Arc<str>>,
    /// The best score.
    pub score: i64,
    /// How many nodes were examined.
    pub evaluated: usize,
    /// How many of them fit.
    pub feasible: usize,
    /// The devices that the placement engine gives the pod there; none for a pod without shared devices.
    pub devices: Option<placement::Placement>,
    /// The work to be done for its volumes; none for a pod without claims.
    pub volumes: Option<VolumeWork>,
}

/// A pod that has found no node.
#[derive(Debug, Clone, PartialEq)]
pub struct Failed {
    /// `Unschedulable`, or `SchedulerError` if a plugin could not decide.
    pub reason: &'static str,
    /// The message, as kube-scheduler writes it into the pod's condition and event.
    pub message: String,
    /// The plugins that refused the pod or a node. An event that concerns one of them makes another try worthwhile.
    pub plugins: PluginSet,
    /// Whether an extender refused nodes. Every event then makes another try worthwhile.
    pub by_extender: bool,
    /// The pods whose eviction makes room, and their node; `None` if eviction does not help.
    pub preemption: Option<Victims>,
    /// All the candidates for eviction, of which `preemption` is the best. Extenders may refuse some of them;
    /// [`choose_victims`] chooses the best of the rest.
    pub candidates: Vec<Victims>,
    /// The number of nodes in the cluster.
    pub nodes: usize,
    /// The number of nodes for each reason, by the reason's text.
    pub reasons: BTreeMap<String, usize>,
}

impl Framework {
    /// Runs a whole cycle without extenders.
    pub fn schedule(&self, snapshot: &Snapshot, pod: &Arc<Pod>, options: Options) -> Outcome {
        self.begin(snapshot, pod, options).finish(&BTreeMap::new())
    }

    /// Finds the nodes that fit.
    pub fn begin<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        pod: &'a Arc<Pod>,
        options: Options,
    ) -> Cycle<'a> {
        let mut cycle = Cycle {
            framework: self,
            snapshot,
            pod,
            state: State::default(),
            feasible: Vec::new(),
            rejected: Vec::new(),
            absent: None,
            refused: None,
            error: None,
            start: options.start,
            next_start: options.start,
            narrowed: None,
            shortcut: false,
            unschedulable: PluginSet::default(),
            by_extender: false,
            record: options
                .record
                .then(|| (Record::default(), Texts::default())),
        };
        cycle.filter(options.start);
        cycle
    }
}

impl<'a> Cycle<'a> {
    fn context(&self) -> Context<'a> {
        Context {
            snapshot: self.snapshot,
            pod: self.pod,
            settings: &self.framework.settings,
        }
    }

    fn text(&self, rejection: &Rejection) -> String {
        rejection.message(&self.snapshot.names, self.framework.wording)
    }

    /// The nodes that fit, in the order in which they were found.
    pub fn feasible(&self) -> impl Iterator<Item = &'a NodeState> {
        let snapshot = self.snapshot;
        self.feasible
            .iter()
            .filter_map(move |index| snapshot.node(*index))
    }

    /// Examines all nodes if only the pod's nominated node was examined and an extender has refused it. Returns
    /// whether it did so: the extenders must then be asked again.
    pub fn look_further(&mut self) -> bool {
        if !self.shortcut || !self.feasible.is_empty() {
            return false;
        }
        self.shortcut = false;
        self.search(self.start);
        true
    }

    /// Applies an extender's answer to the nodes that fit.
    pub fn extend(&mut self, extended: &Extended) {
        let before = self.feasible.len();
        let fit: Vec<NodeIndex> = extended
            .fit
            .iter()
            .filter_map(|name| self.snapshot.node_named(name))
            .map(NodeState::index)
            .filter(|index| self.feasible.contains(index))
            .collect();
        self.feasible = fit;
        let mut refuse = |names: &BTreeMap<String, String>, code: Code| {
            for (name, why) in names {
                if code == Code::Unschedulable && extended.unresolvable.contains_key(name) {
                    continue;
                }
                if let Some(node) = self.snapshot.node_named(name) {
                    self.rejected.retain(|(index, _)| *index != node.index);
                    let rejection = Rejection {
                        plugin: None,
                        code,
                        reasons: Reasons::One(Reason::Text(why.as_str().into())),
                    };
                    self.rejected.push((node.index, rejection));
                }
            }
        };
        refuse(&extended.unresolvable, Code::Unresolvable);
        refuse(&extended.failed, Code::Unschedulable);
        self.by_extender |= self.feasible.len() != before;
    }

    /// Scores the nodes that fit and chooses the best. `further` holds the extenders' scores by node name, already
    /// multiplied by the extender's weight and by ten, as kube-scheduler adds them.
    pub fn finish(mut self, further: &BTreeMap<String, i64>) -> Outcome {
        let result = if self.error.is_some() || self.feasible.is_empty() {
            Err(self.fail())
        } else {
            Ok(self.choose(further))
        };
        Outcome {
            result,
            next_start: self.next_start,
            record: self.record.map(|(record, _)| record),
        }
    }

    fn placement(&self, node: &str) -> Option<placement::Placement> {
        let node = self.snapshot.node_named(node)?;
        let devices = self.state.devices.as_ref()?;
        devices.place(&self.context(), node).ok().flatten()
    }

    fn volume_work(&self, node: &str) -> Option<VolumeWork> {
        let node = self.snapshot.node_named(node)?;
        let volumes = self.state.volumes.as_ref()?;
        Some(volumes.work(&self.context(), node))
    }

    fn choose(&mut self, further: &BTreeMap<String, i64>) -> Placed {
        let nodes: Vec<&NodeState> = self.feasible().collect();
        let totals = match nodes.as_slice() {
            [_] => vec![0],
            many => {
                let mut totals = self.score(many);
                for (total, node) in totals.iter_mut().zip(many) {
                    *total += further.get(&*node.node.name).copied().unwrap_or_default();
                }
                totals
            }
        };
        let best = totals.iter().copied().max().unwrap_or_default();
        // Among equal nodes the first by name is chosen, wherever the search began.
        let mut ties: Vec<Arc<str>> = nodes
            .iter()
            .zip(&totals)
            .filter(|(_, total)| **total == best)
            .map(|(node, _)| Arc::clone(&node.node.name))
            .collect();
        ties.sort_unstable();
        let node = ties.first().map_or_else(|| "".into(), Arc::clone);
        let placed = Placed {
            ties,
            score: best,
            evaluated: nodes.len() + self.rejected.len(),
            feasible: nodes.len(),
            devices: self.placement(&node),
            volumes: self.volume_work(&node),
            node,
        };
        if let Some((record, _)) = &mut self.record {
            let success = |plugins: &[Plugin]| -> Vec<(Plugin, Said)> {
                plugins
                    .iter()
                    .map(|plugin| (*plugin, Said::Success))
                    .collect()
            };
            record.reserve = success(self.framework.plugins(Point::Reserve));
            record.pre_bind = success(self.framework.plugins(Point::PreBind));
            // The first plugin that binds ends the list: no later one is asked.
            let bind = self.framework.plugins(Point::Bind);
            record.bind = success(bind.get(..1).unwrap_or_default());
            record.selected = Some(Arc::clone(&placed.node));
        }
        placed
    }
}
