//! The way of one pod: which nodes fit, what they are worth, which one it gets, or why it gets none. Values in, values
//! out: what is decided is carried out by the caller.
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

/// How a cycle is run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// At which node the search begins, as a place in the order of names. The answer of the cycle before says it
    /// ([`Outcome::next_start`]); 0 at first.
    pub start: usize,
    /// Whether what every plugin says is kept.
    pub record: bool,
}

/// A pod that is on its way.
#[derive(Debug)]
pub struct Cycle<'a> {
    framework: &'a Framework,
    snapshot: &'a Snapshot,
    pod: &'a Arc<Pod>,
    state: State,
    feasible: Vec<NodeIndex>,
    rejected: Vec<(NodeIndex, Rejection)>,
    /// What is said of the nodes that were not looked at.
    absent: Option<Rejection>,
    /// The plugin that refused the pod before any node was looked at.
    refused: Option<Rejection>,
    error: Option<String>,
    start: usize,
    next_start: usize,
    narrowed: Option<Narrowed>,
    /// Whether only the node was looked at that is nominated for the pod.
    shortcut: bool,
    /// Plugins that refused something.
    unschedulable: PluginSet,
    by_extender: bool,
    record: Option<(Record, Texts)>,
}

/// What an extender says of the nodes that it was asked about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extended {
    /// Names of the nodes that fit, in its order.
    pub fit: Vec<String>,
    /// Nodes that do not fit, and why.
    pub failed: BTreeMap<String, String>,
    /// Nodes on which eviction cannot help, and why.
    pub unresolvable: BTreeMap<String, String>,
}

/// What became of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Where it goes, or why nowhere.
    pub result: Result<Placed, Failed>,
    /// Where the next cycle's search begins.
    pub next_start: usize,
    /// What every plugin said, where that was asked for.
    pub record: Option<Record>,
}

/// A pod that has found its node. Nothing is taken there before the caller does it.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// Name of the node.
    pub node: Arc<str>,
    /// Names of all nodes with the best score, the chosen one first. kube-scheduler chooses one of them by chance.
    pub ties: Vec<Arc<str>>,
    /// The best score.
    pub score: i64,
    /// How many nodes were looked at.
    pub evaluated: usize,
    /// How many of them fit.
    pub feasible: usize,
    /// What the placement engine gives the pod there; none for a pod without shared devices.
    pub devices: Option<placement::Placement>,
    /// What has to be done about its volumes; none for a pod without claims.
    pub volumes: Option<VolumeWork>,
}

/// A pod that has found no node.
#[derive(Debug, Clone, PartialEq)]
pub struct Failed {
    /// `Unschedulable`, or `SchedulerError` where a plugin could not tell.
    pub reason: &'static str,
    /// Why, as kube-scheduler writes it into the pod's condition and event.
    pub message: String,
    /// Plugins that refused a node or the pod: an event that concerns one of them is worth another try.
    pub plugins: PluginSet,
    /// Whether an extender refused nodes: every event is worth another try.
    pub by_extender: bool,
    /// Pods whose eviction makes room, and where; none where eviction does not help.
    pub preemption: Option<Victims>,
    /// All that was found to make room, of which `preemption` is the best: extenders may refuse some of it, and
    /// [`choose_victims`] says which of the rest is best.
    pub candidates: Vec<Victims>,
    /// How many nodes there are.
    pub nodes: usize,
    /// Each reason, and how many nodes have it, by text.
    pub reasons: BTreeMap<String, usize>,
}

impl Framework {
    /// Places a pod without extenders.
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

    /// Where an extender has refused the node that is nominated for the pod, which alone was looked at, looks at all
    /// nodes. Returns whether it has done so: extenders are then to be asked again.
    pub fn look_further(&mut self) -> bool {
        if !self.shortcut || !self.feasible.is_empty() {
            return false;
        }
        self.shortcut = false;
        self.search(self.start);
        true
    }

    /// Takes in what an extender says of the nodes that fit.
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

    /// Scores the nodes that fit and chooses the best. `further` are scores of extenders by node name, multiplied with
    /// the extender's weight and by ten, as kube-scheduler adds them.
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
        // Of equal nodes the first by name, wherever the search began.
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
            // The first one that binds is the last one that is asked.
            let bind = self.framework.plugins(Point::Bind);
            record.bind = success(bind.get(..1).unwrap_or_default());
            record.selected = Some(Arc::clone(&placed.node));
        }
        placed
    }
}
