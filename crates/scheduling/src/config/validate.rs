//! The checks of a configuration's values. The rules are those of kube-scheduler's `apis/config/validation`; the
//! wording is ours.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as core;

use super::args::{Args, ResourceSpec, ShapePoint, StrategyType};
use super::{ConfigError, Configuration, Problem, Profile};
use crate::model::is_extended;
use crate::plugin::{Plugin, Point};

/// Plugins of kube-scheduler that this crate does not have.
const MISSING: [&str; 3] = ["DynamicResources", "GangScheduling", "NodeDeclaredFeatures"];
/// Plugins that kube-scheduler has removed.
const REMOVED: [&str; 4] = [
    "AzureDiskLimits",
    "CinderLimits",
    "EBSLimits",
    "GCEPDLimits",
];

struct Problems(Vec<Problem>);

impl Problems {
    fn push(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        self.0.push(Problem {
            path: path.into(),
            problem: problem.into(),
        });
    }

    fn within(&mut self, path: &str, value: i64, least: i64, most: i64) {
        if value < least || value > most {
            self.push(
                path,
                format!("{value} is out of range; write {least} to {most}"),
            );
        }
    }
}

impl Configuration {
    /// Validates the values.
    ///
    /// # Errors
    ///
    /// Everything that kube-scheduler's validation refuses, and plugins that this scheduler does not have.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut problems = Problems(Vec::new());
        if self.parallelism <= 0 {
            problems.push(
                "parallelism",
                format!("{} is not above 0; write 1 or more", self.parallelism),
            );
        }
        let percentage = i64::from(self.percentage_of_nodes_to_score);
        problems.within("percentageOfNodesToScore", percentage, 0, 100);
        if self.pod_initial_backoff_seconds <= 0 {
            problems.push(
                "podInitialBackoffSeconds",
                format!(
                    "{} is not above 0; write 1 or more",
                    self.pod_initial_backoff_seconds
                ),
            );
        }
        if self.pod_max_backoff_seconds < self.pod_initial_backoff_seconds {
            problems.push(
                "podMaxBackoffSeconds",
                format!(
                    "{} is below podInitialBackoffSeconds; write {} or more",
                    self.pod_max_backoff_seconds, self.pod_initial_backoff_seconds
                ),
            );
        }
        let mut names = BTreeSet::new();
        for (at, profile) in self.profiles.iter().enumerate() {
            let path = format!("profiles[{at}]");
            if profile.scheduler_name.is_empty() {
                problems.push(
                    format!("{path}.schedulerName"),
                    "is empty; give each of several profiles a name",
                );
            } else if !names.insert(&profile.scheduler_name) {
                problems.push(
                    format!("{path}.schedulerName"),
                    format!("{:?} is taken by another profile", profile.scheduler_name),
                );
            }
            profile_problems(&path, profile, &mut problems);
        }
        self.queue_sort(&mut problems);
        self.extender_problems(&mut problems);
        if problems.0.is_empty() {
            Ok(())
        } else {
            Err(ConfigError(problems.0))
        }
    }

    /// All profiles share one queue, so they must sort it in the same way.
    fn queue_sort(&self, problems: &mut Problems) {
        let Some((first, rest)) = self.profiles.split_first() else {
            return;
        };
        let list = |profile: &Profile| {
            profile
                .plugins
                .list(Point::QueueSort)
                .cloned()
                .unwrap_or_default()
        };
        let canon = list(first);
        if canon.enabled.len() > 1 {
            problems.push(
                "profiles[0].plugins.queueSort",
                "enables several plugins; enable one",
            );
        }
        for (at, profile) in (1..).zip(rest) {
            if list(profile) != canon {
                problems.push(
                    format!("profiles[{at}].plugins.queueSort"),
                    "is not the same as in profiles[0]; all profiles share one queue",
                );
            }
        }
    }

    fn extender_problems(&self, problems: &mut Problems) {
        let mut managed = BTreeSet::new();
        let mut binders = 0;
        for (at, extender) in self.extenders.iter().enumerate() {
            let path = format!("extenders[{at}]");
            if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
                problems.push(
                    format!("{path}.weight"),
                    format!(
                        "{} is not above 0; an extender with prioritizeVerb needs 1 or more",
                        extender.weight
                    ),
                );
            }
            binders += usize::from(!extender.bind_verb.is_empty());
            for (at, resource) in extender.managed_resources.iter().enumerate() {
                let path = format!("{path}.managedResources[{at}].name");
                if !is_extended(&resource.name) {
                    problems.push(
                        path,
                        format!(
                            "{:?} is no extended resource; write a name such as example.com/gpu",
                            resource.name
                        ),
                    );
                } else if !managed.insert(&resource.name) {
                    problems.push(path, format!("{:?} stands twice", resource.name));
                }
            }
        }
        if binders > 1 {
            problems.push(
                "extenders",
                format!("{binders} of them have a bindVerb; only one can bind"),
            );
        }
    }
}

fn profile_problems(path: &str, profile: &Profile, problems: &mut Problems) {
    if let Some(percentage) = profile.percentage_of_nodes_to_score {
        let path = format!("{path}.percentageOfNodesToScore");
        problems.within(&path, i64::from(percentage), 0, 100);
    }
    for point in Point::ALL {
        let Some(list) = profile.plugins.list(point) else {
            continue;
        };
        let mut seen = BTreeSet::new();
        for (at, entry) in list.enabled.iter().enumerate() {
            let path = format!("{path}.plugins.{}.enabled[{at}]", point.key());
            if let Some(plugin) = known(&path, &entry.name, problems) {
                if !plugin.points().contains(&point) {
                    problems.push(
                        path.clone(),
                        format!("plugin {plugin} does not work at {}", point.key()),
                    );
                }
                if !seen.insert(plugin) {
                    problems.push(path.clone(), format!("plugin {plugin} stands twice"));
                }
            }
            weight(&path, entry.weight, problems);
        }
    }
    let mut seen = BTreeSet::new();
    for (at, entry) in profile.plugins.multi_point.enabled.iter().enumerate() {
        let path = format!("{path}.plugins.multiPoint.enabled[{at}]");
        if let Some(plugin) = known(&path, &entry.name, problems)
            && !seen.insert(plugin)
        {
            problems.push(path.clone(), format!("plugin {plugin} stands twice"));
        }
        weight(&path, entry.weight, problems);
    }
    for (at, config) in profile.plugin_config.iter().enumerate() {
        let path = format!("{path}.pluginConfig[{at}].args");
        args_problems(&path, &config.args, problems);
    }
    let sorts = profile.plugins.expand(Point::QueueSort);
    let binds = profile.plugins.expand(Point::Bind);
    if sorts.len() != 1 {
        problems.push(
            format!("{path}.plugins.queueSort"),
            format!("{} plugins sort the queue; enable exactly one", sorts.len()),
        );
    }
    if binds.is_empty() {
        problems.push(
            format!("{path}.plugins.bind"),
            "no plugin binds; enable DefaultBinder",
        );
    }
}

fn weight(path: &str, weight: Option<i32>, problems: &mut Problems) {
    if weight.is_some_and(|weight| weight < 0) {
        problems.push(format!("{path}.weight"), "is negative; write 1 or more");
    }
}

fn known(path: &str, name: &str, problems: &mut Problems) -> Option<Plugin> {
    let plugin = Plugin::named(name);
    if plugin.is_none() {
        let problem = if REMOVED.contains(&name) {
            format!("plugin {name} was removed from kube-scheduler; use NodeVolumeLimits")
        } else if MISSING.contains(&name) {
            format!(
                "plugin {name} of kube-scheduler is not among those of this scheduler; disable it"
            )
        } else {
            let names: Vec<&str> = Plugin::ALL.iter().map(|plugin| plugin.name()).collect();
            format!(
                "there is no plugin {name:?}; there are {}",
                names.join(", ")
            )
        };
        problems.push(path, problem);
    }
    plugin
}

fn args_problems(path: &str, args: &Args, problems: &mut Problems) {
    match args {
        Args::Preemption(args) => {
            let percentage = i64::from(args.args.min_candidate_nodes_percentage);
            let absolute = args.args.min_candidate_nodes_absolute;
            problems.within(
                &format!("{path}.minCandidateNodesPercentage"),
                percentage,
                0,
                100,
            );
            if absolute < 0 {
                problems.push(
                    format!("{path}.minCandidateNodesAbsolute"),
                    format!("{absolute} is negative; write 0 or more"),
                );
            }
            if percentage == 0 && absolute == 0 {
                problems.push(
                    path,
                    "minCandidateNodesPercentage and minCandidateNodesAbsolute are both 0; write one of them",
                );
            }
        }
        Args::InterPod(args) => {
            let weight = i64::from(args.args.hard_pod_affinity_weight);
            problems.within(&format!("{path}.hardPodAffinityWeight"), weight, 0, 100);
        }
        Args::NodeAffinity(args) => {
            if let Some(affinity) = &args.args.added_affinity {
                added_affinity(&format!("{path}.addedAffinity"), affinity, problems);
            }
        }
        Args::Balanced(args) => {
            let mut seen = BTreeSet::new();
            for (at, resource) in args.args.resources.iter().enumerate() {
                let path = format!("{path}.resources[{at}]");
                if !seen.insert(&resource.name) {
                    problems.push(
                        format!("{path}.name"),
                        format!("{:?} stands twice", resource.name),
                    );
                }
                if resource.weight != 1 {
                    problems.push(
                        format!("{path}.weight"),
                        format!("{} cannot be used; it has to be 1", resource.weight),
                    );
                }
            }
        }
        Args::Fit(args) => {
            let args = &args.args;
            for (at, group) in args.ignored_resource_groups.iter().enumerate() {
                if group.contains('/') {
                    problems.push(
                        format!("{path}.ignoredResourceGroups[{at}]"),
                        format!("{group:?} has a /; write only what stands before it"),
                    );
                }
            }
            let strategy = &args.scoring_strategy;
            let path = format!("{path}.scoringStrategy");
            if !StrategyType::ALL
                .iter()
                .any(|kind| kind.name() == strategy.kind)
            {
                problems.push(
                    format!("{path}.type"),
                    format!(
                        "there is no strategy {:?}; there are LeastAllocated, MostAllocated and RequestedToCapacityRatio",
                        strategy.kind
                    ),
                );
            }
            weights(&format!("{path}.resources"), &strategy.resources, problems);
            if let Some(ratio) = &strategy.requested_to_capacity_ratio {
                shape(&format!("{path}.shape"), &ratio.shape, problems);
            } else if strategy.kind == StrategyType::RequestedToCapacityRatio.name() {
                problems.push(
                    format!("{path}.requestedToCapacityRatio"),
                    "is missing; the strategy RequestedToCapacityRatio needs a shape",
                );
            }
        }
        Args::Spread(args) => spread(
            path,
            &args.args.defaulting_type,
            &args.args.default_constraints,
            problems,
        ),
        Args::VolumeBinding(args) => {
            if args.args.bind_timeout_seconds < 0 {
                problems.push(
                    format!("{path}.bindTimeoutSeconds"),
                    "is negative; write 0 or more",
                );
            }
            if args.args.shape.is_some() {
                problems.push(
                    format!("{path}.shape"),
                    "needs the feature StorageCapacityScoring, which is off; remove it",
                );
            }
        }
    }
}

fn added_affinity(path: &str, affinity: &core::NodeAffinity, problems: &mut Problems) {
    let mut names = crate::names::Names::default();
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref();
    if let Some(required) = required {
        let selector = crate::model::node_selector(&mut names, required);
        if selector.terms.is_empty() {
            problems.push(
                format!("{path}.requiredDuringSchedulingIgnoredDuringExecution"),
                "has no term; write at least one",
            );
        }
        for (at, term) in selector.terms.iter().enumerate() {
            if term.broken {
                problems.push(
                    format!("{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[{at}]"),
                    "has an expression that Kubernetes cannot read",
                );
            }
        }
    }
    let preferred = affinity
        .preferred_during_scheduling_ignored_during_execution
        .iter()
        .flatten();
    for (at, term) in preferred.enumerate() {
        let read = crate::model::preferred(&mut names, std::slice::from_ref(term));
        if read.iter().any(|preferred| preferred.term.broken) {
            problems.push(
                format!("{path}.preferredDuringSchedulingIgnoredDuringExecution[{at}]"),
                "has an expression that Kubernetes cannot read",
            );
        }
    }
}

fn weights(path: &str, resources: &[ResourceSpec], problems: &mut Problems) {
    for (at, resource) in resources.iter().enumerate() {
        problems.within(&format!("{path}[{at}].weight"), resource.weight, 1, 100);
    }
}

fn shape(path: &str, shape: &[ShapePoint], problems: &mut Problems) {
    if shape.is_empty() {
        problems.push(path, "has no point; write at least one");
    }
    for (at, pair) in shape.windows(2).enumerate() {
        if let [before, after] = pair
            && before.utilization >= after.utilization
        {
            problems.push(
                format!("{path}[{}].utilization", at + 1),
                format!(
                    "{} is not above the point before it; sort the points by utilization",
                    after.utilization
                ),
            );
            break;
        }
    }
    for (at, point) in shape.iter().enumerate() {
        let utilization = i64::from(point.utilization);
        problems.within(&format!("{path}[{at}].utilization"), utilization, 0, 100);
        problems.within(
            &format!("{path}[{at}].score"),
            i64::from(point.score),
            0,
            10,
        );
    }
}

fn spread(
    path: &str,
    kind: &str,
    constraints: &[core::TopologySpreadConstraint],
    problems: &mut Problems,
) {
    if !matches!(kind, "System" | "List") {
        problems.push(
            format!("{path}.defaultingType"),
            format!("there is no defaulting type {kind:?}; there are System and List"),
        );
    }
    if kind == "System" && !constraints.is_empty() {
        problems.push(
            format!("{path}.defaultingType"),
            "is System, which takes no defaultConstraints; write List",
        );
    }
    let mut seen = BTreeSet::new();
    for (at, constraint) in constraints.iter().enumerate() {
        let path = format!("{path}.defaultConstraints[{at}]");
        if constraint.max_skew <= 0 {
            problems.push(
                format!("{path}.maxSkew"),
                format!("{} is not above 0; write 1 or more", constraint.max_skew),
            );
        }
        if constraint.topology_key.is_empty() {
            problems.push(format!("{path}.topologyKey"), "is empty; name a label");
        }
        if !matches!(
            constraint.when_unsatisfiable.as_str(),
            "DoNotSchedule" | "ScheduleAnyway"
        ) {
            problems.push(
                format!("{path}.whenUnsatisfiable"),
                format!(
                    "{:?} is unknown; write DoNotSchedule or ScheduleAnyway",
                    constraint.when_unsatisfiable
                ),
            );
        }
        if constraint.label_selector.is_some() {
            problems.push(
                format!("{path}.labelSelector"),
                "is not allowed; the selector follows from the pod",
            );
        }
        if !seen.insert((&constraint.topology_key, &constraint.when_unsatisfiable)) {
            problems.push(
                path,
                "stands twice with this topologyKey and whenUnsatisfiable",
            );
        }
    }
}
