//! A profile that is ready to run: plugins by extension point, weights, and arguments with numbered texts. The
//! configuration was checked when it was read.

use std::sync::Arc;

use crate::config::{self, Args, Configuration, StrategyType};
use crate::model::{self, Labels, NodeSelector, Pod, Preferred, Spread, is_scalar};
use crate::names::{Names, Symbol};
use crate::plugin::{Plugin, Point};
use crate::status::Wording;

/// A resource that a score uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    Cpu,
    Memory,
    Ephemeral,
    Scalar(Symbol),
    /// A name that no node offers.
    Unknown,
}

impl Counted {
    fn named(names: &mut Names, name: &str) -> Self {
        match name {
            "cpu" => Self::Cpu,
            "memory" => Self::Memory,
            "ephemeral-storage" => Self::Ephemeral,
            name if is_scalar(name) => Self::Scalar(names.intern(name)),
            _ => Self::Unknown,
        }
    }
}

/// The scoring method of `NodeResourcesFit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Strategy {
    Least,
    Most,
    /// By a curve: points of utilisation in percent and score up to 100.
    Ratio(Box<[(i64, i64)]>),
}

/// The arguments of all plugins.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) ignored: Box<[Symbol]>,
    pub(crate) ignored_groups: Box<[String]>,
    pub(crate) strategy: Strategy,
    pub(crate) fit: Box<[(Counted, i64)]>,
    pub(crate) balanced: Box<[Counted]>,
    pub(crate) hard_affinity_weight: i64,
    pub(crate) ignore_preferred_of_existing: bool,
    pub(crate) added_nodes: Option<NodeSelector>,
    pub(crate) added_preferred: Option<Box<[Preferred]>>,
    pub(crate) default_spread: Box<[Spread]>,
    pub(crate) system_spread: bool,
    pub(crate) least_candidates_percentage: i64,
    pub(crate) least_candidates: i64,
    /// Whether `placement` is used.
    pub(crate) engine_fits: bool,
}

/// A profile that is ready to place pods of one snapshot.
#[derive(Debug, Clone)]
pub struct Framework {
    pub(crate) name: Arc<str>,
    /// The search ends when this percentage of the nodes fits; 0 derives it from the number of nodes.
    pub(crate) percentage: i32,
    pub(crate) wording: Wording,
    pub(crate) settings: Settings,
    pub(crate) scores: Vec<(Plugin, i64)>,
    /// Whether an extender filters, so that the search does not end at the first node that fits.
    pub(crate) extender_filters: bool,
    points: [Vec<Plugin>; Point::ALL.len()],
}

impl Framework {
    /// Prepares every profile of a configuration. `names` is the table of the snapshot that the profiles will be used
    /// with.
    pub fn all(configuration: &Configuration, names: &mut Names) -> Vec<Self> {
        configuration
            .profiles
            .iter()
            .map(|profile| Self::new(configuration, profile, names))
            .collect()
    }

    fn new(configuration: &Configuration, profile: &config::Profile, names: &mut Names) -> Self {
        let mut settings = settings(profile, names);
        let managed = configuration
            .extenders
            .iter()
            .flat_map(|extender| &extender.managed_resources)
            .filter(|resource| resource.ignored_by_scheduler);
        // NodeResourcesFit ignores resources that an extender manages and marks as ignored by the scheduler.
        let mut ignored = settings.ignored.into_vec();
        ignored.extend(managed.map(|resource| names.intern(&resource.name)));
        settings.ignored = ignored.into();
        let plugins = &profile.plugins;
        Self {
            name: profile.scheduler_name.as_str().into(),
            percentage: profile
                .percentage_of_nodes_to_score
                .unwrap_or(configuration.percentage_of_nodes_to_score),
            wording: Wording::default(),
            settings,
            scores: plugins
                .expand(Point::Score)
                .into_iter()
                .map(|plugin| (plugin, plugins.weight(plugin)))
                .collect(),
            extender_filters: configuration
                .extenders
                .iter()
                .any(|extender| !extender.filter_verb.is_empty()),
            points: Point::ALL.map(|point| plugins.expand(point)),
        }
    }

    /// The same profile with the reasons of this version.
    #[must_use]
    pub fn with_wording(mut self, wording: Wording) -> Self {
        self.wording = wording;
        self
    }

    /// The name that pods have in `spec.schedulerName`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version whose reasons it uses.
    pub fn wording(&self) -> Wording {
        self.wording
    }

    /// The plugins at the extension point, in their order.
    pub fn plugins(&self, point: Point) -> &[Plugin] {
        Point::ALL
            .iter()
            .zip(&self.points)
            .find(|(of, _)| **of == point)
            .map_or(&[], |(_, plugins)| plugins.as_slice())
    }

    /// Why the pod may not enter the queue; `None` if it may. Gates count only where `SchedulingGates` is enabled.
    pub fn gate(&self, pod: &Pod) -> Option<String> {
        let asked = self.plugins(Point::PreEnqueue);
        if pod.gates.is_empty() || !asked.contains(&Plugin::SchedulingGates) {
            return None;
        }
        let gates: Vec<&str> = pod.gates.iter().map(|gate| &**gate).collect();
        Some(format!(
            "waiting for scheduling gates: [{}]",
            gates.join(" ")
        ))
    }

    /// The plugins that score, with the weights of their scores.
    pub fn weights(&self) -> &[(Plugin, i64)] {
        &self.scores
    }
}

fn settings(profile: &config::Profile, names: &mut Names) -> Settings {
    let mut settings = Settings {
        ignored: Box::new([]),
        ignored_groups: Box::new([]),
        strategy: Strategy::Least,
        fit: Box::new([]),
        balanced: Box::new([]),
        hard_affinity_weight: 1,
        ignore_preferred_of_existing: false,
        added_nodes: None,
        added_preferred: None,
        default_spread: system_spread(),
        system_spread: true,
        least_candidates_percentage: 10,
        least_candidates: 100,
        engine_fits: profile
            .plugins
            .expand(Point::Filter)
            .contains(&Plugin::GpuFit),
    };
    for config in &profile.plugin_config {
        match &config.args {
            Args::Preemption(args) => {
                settings.least_candidates_percentage =
                    i64::from(args.args.min_candidate_nodes_percentage);
                settings.least_candidates = i64::from(args.args.min_candidate_nodes_absolute);
            }
            Args::InterPod(args) => {
                settings.hard_affinity_weight = i64::from(args.args.hard_pod_affinity_weight);
                settings.ignore_preferred_of_existing =
                    args.args.ignore_preferred_terms_of_existing_pods;
            }
            Args::NodeAffinity(args) => {
                let Some(affinity) = &args.args.added_affinity else {
                    continue;
                };
                settings.added_nodes = affinity
                    .required_during_scheduling_ignored_during_execution
                    .as_ref()
                    .map(|written| model::node_selector(names, written));
                settings.added_preferred = affinity
                    .preferred_during_scheduling_ignored_during_execution
                    .as_deref()
                    .filter(|written| !written.is_empty())
                    .map(|written| model::preferred(names, written));
            }
            Args::Balanced(args) => {
                settings.balanced = args
                    .args
                    .resources
                    .iter()
                    .map(|resource| Counted::named(names, &resource.name))
                    .collect();
            }
            Args::Fit(args) => fit(&mut settings, &args.args, names),
            Args::Spread(args) => {
                if args.args.defaulting_type != "System" {
                    settings.system_spread = false;
                    // Constraints that were validated can be read.
                    settings.default_spread = args
                        .args
                        .default_constraints
                        .iter()
                        .filter_map(|written| {
                            model::spread(names, written, &Labels::default()).ok()
                        })
                        .collect();
                }
            }
            // Binding takes no time here, so its arguments are not needed.
            Args::VolumeBinding(_) => {}
        }
    }
    settings
}

/// kube-scheduler's default constraints for pods that have none: by host with a skew of 3, by zone with a skew of 5.
fn system_spread() -> Box<[Spread]> {
    [(Symbol::HOSTNAME, 3), (Symbol::ZONE, 5)]
        .map(|(topology_key, max_skew)| Spread {
            max_skew,
            topology_key,
            hard: false,
            selector: model::Selector::Nothing,
            min_domains: 1,
            honor_affinity: true,
            honor_taints: false,
        })
        .into()
}

fn fit(settings: &mut Settings, args: &config::FitArgs, names: &mut Names) {
    settings.ignored = args
        .ignored_resources
        .iter()
        .map(|name| names.intern(name))
        .collect();
    settings.ignored_groups = args.ignored_resource_groups.clone().into();
    let strategy = &args.scoring_strategy;
    settings.fit = strategy
        .resources
        .iter()
        .map(|resource| (Counted::named(names, &resource.name), resource.weight))
        .collect();
    let kind = StrategyType::ALL
        .into_iter()
        .find(|kind| kind.name() == strategy.kind);
    settings.strategy = match (kind, &strategy.requested_to_capacity_ratio) {
        (Some(StrategyType::MostAllocated), _) => Strategy::Most,
        (Some(StrategyType::RequestedToCapacityRatio), Some(ratio)) => Strategy::Ratio(
            ratio
                .shape
                .iter()
                // Scores in the configuration go up to 10, scores of plugins up to 100.
                .map(|point| (i64::from(point.utilization), i64::from(point.score) * 10))
                .collect(),
        ),
        _ => Strategy::Least,
    };
}
