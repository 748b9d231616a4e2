//! Configurations: merging, defaults and refusals.

use scheduling::config::Configuration;
use scheduling::names::Names;
use scheduling::plugin::{Plugin, Point};
use scheduling::profile::Framework;
use serde_json::{Value, json};

fn read(profile: Value) -> Configuration {
    Configuration::read(&json!({"profiles": [profile]})).unwrap()
}

/// Plugins at the point, with a space between them.
fn plugins(profile: Value, point: Point) -> String {
    let configuration = read(profile);
    let names: Vec<&str> = configuration.profiles[0]
        .plugins
        .expand(point)
        .into_iter()
        .map(Plugin::name)
        .collect();
    names.join(" ")
}

fn weight(profile: Value, plugin: Plugin) -> Option<i64> {
    let framework = Framework::all(&read(profile), &mut Names::default()).remove(0);
    framework
        .weights()
        .iter()
        .find(|(other, _)| *other == plugin)
        .map(|(_, weight)| *weight)
}

#[test]
fn default_plugins_work_in_kube_schedulers_order() {
    assert_eq!(
        plugins(json!({}), Point::Filter),
        "NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit \
         VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread \
         InterPodAffinity"
    );
    assert_eq!(
        plugins(json!({}), Point::PreFilter),
        "NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions NodeVolumeLimits \
         VolumeBinding VolumeZone PodTopologySpread InterPodAffinity"
    );
    assert_eq!(
        plugins(json!({}), Point::Score),
        "TaintToleration NodeAffinity NodeResourcesFit VolumeBinding PodTopologySpread \
         InterPodAffinity NodeResourcesBalancedAllocation ImageLocality"
    );
}

#[test]
fn sets_of_a_profile_change_the_default_ones() {
    let enable = |name: &str| json!([{"name": name}]);
    for (profile, point, wanted) in [
        // Disabled everywhere.
        (
            json!({"plugins": {"multiPoint": {"disabled": enable("ImageLocality")}}}),
            Point::Score,
            "TaintToleration NodeAffinity NodeResourcesFit VolumeBinding PodTopologySpread \
             InterPodAffinity NodeResourcesBalancedAllocation",
        ),
        // Disabled at one point only.
        (
            json!({"plugins": {"filter": {"disabled": enable("NodeName")}}}),
            Point::Filter,
            "NodeUnschedulable TaintToleration NodeAffinity NodePorts NodeResourcesFit \
             VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread \
             InterPodAffinity",
        ),
        // All but what the point names.
        (
            json!({"plugins": {"score": {"disabled": enable("*"), "enabled": enable("NodeAffinity")}}}),
            Point::Score,
            "NodeAffinity",
        ),
        // A plugin listed at the point and at multiPoint comes first.
        (
            json!({"plugins": {"score": {"enabled": [{"name": "ImageLocality", "weight": 9}]}}}),
            Point::Score,
            "ImageLocality TaintToleration NodeAffinity NodeResourcesFit VolumeBinding \
             PodTopologySpread InterPodAffinity NodeResourcesBalancedAllocation",
        ),
        // A plugin that is enabled again takes the default's position; a new one comes last.
        (
            json!({"plugins": {"multiPoint": {"enabled":
                [{"name": "NodeResourcesFit", "weight": 10}, {"name": "GpuScore"}]}}}),
            Point::Score,
            "TaintToleration NodeAffinity NodeResourcesFit VolumeBinding PodTopologySpread \
             InterPodAffinity NodeResourcesBalancedAllocation ImageLocality GpuScore",
        ),
    ] {
        assert_eq!(plugins(profile.clone(), point), wanted, "{profile}");
    }
}

#[test]
fn weight_at_score_goes_before_weight_everywhere() {
    let both = json!({"plugins": {
        "score": {"enabled": [{"name": "NodeAffinity", "weight": 7}]},
        "multiPoint": {"enabled": [{"name": "NodeAffinity", "weight": 5}]},
    }});
    let everywhere =
        json!({"plugins": {"multiPoint": {"enabled": [{"name": "NodeAffinity", "weight": 5}]}}});
    let nothing = json!({"plugins": {"multiPoint": {"enabled": [{"name": "NodeAffinity"}]}}});

    assert_eq!(weight(json!({}), Plugin::NodeAffinity), Some(2));
    assert_eq!(weight(both, Plugin::NodeAffinity), Some(7));
    assert_eq!(weight(everywhere, Plugin::NodeAffinity), Some(5));
    assert_eq!(weight(nothing, Plugin::NodeAffinity), Some(1));
}

#[test]
fn arguments_are_filled_in() {
    let configuration = read(json!({"pluginConfig": [
        {"name": "NodeResourcesFit", "args": {"scoringStrategy":
            {"type": "MostAllocated", "resources": [{"name": "example.com/gpu"}]}}}]}));

    let printed = serde_json::to_value(&configuration.profiles[0].plugin_config).unwrap();

    assert_eq!(
        printed[0],
        json!({"name": "NodeResourcesFit", "args": {
            "kind": "NodeResourcesFitArgs",
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "scoringStrategy": {"type": "MostAllocated",
                "resources": [{"name": "example.com/gpu", "weight": 1}]}}})
    );
    assert_eq!(printed.as_array().unwrap().len(), 7);
}

#[test]
fn printed_configuration_reads_the_same() {
    let written = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "parallelism": 4,
        "percentageOfNodesToScore": 30,
        "profiles": [
            {"schedulerName": "one", "plugins": {"score": {"enabled": [{"name": "ImageLocality", "weight": 3}]}}},
            {"schedulerName": "two", "percentageOfNodesToScore": 100, "pluginConfig":
                [{"name": "PodTopologySpread", "args": {"defaultingType": "List", "defaultConstraints":
                    [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]}}]},
        ],
        "extenders": [{"urlPrefix": "http://127.0.0.1:1/", "filterVerb": "filter", "weight": 1,
            "enableHTTPS": false, "httpTimeout": "5s",
            "managedResources": [{"name": "example.com/gpu", "ignoredByScheduler": true}]}],
    });

    let configuration = Configuration::read(&written).unwrap();
    let printed = serde_json::to_value(&configuration).unwrap();

    assert_eq!(Configuration::read(&printed).unwrap(), configuration);
    assert_eq!(
        configuration.extenders[0].managed_resources[0].name,
        "example.com/gpu"
    );
}

#[test]
fn what_cannot_be_used_is_named_with_its_place() {
    let profile = |profile: Value| json!({"profiles": [profile]});
    let args = |name: &str, args: Value| json!({"profiles": [{"pluginConfig": [{"name": name, "args": args}]}]});
    let enabled = |point: &str, name: &str| json!({"profiles": [{"plugins": {point: {"enabled": [{"name": name}]}}}]});
    for (written, place) in [
        (json!([]), "configuration: "),
        (json!({"kind": "Pod"}), "kind: "),
        (json!({"apiVersion": "v1"}), "apiVersion: "),
        (json!({"speed": 1}), "configuration: unknown field `speed`"),
        (json!({"parallelism": "x"}), "configuration: invalid type"),
        (json!({"parallelism": 0}), "parallelism: 0"),
        (
            json!({"percentageOfNodesToScore": 101}),
            "percentageOfNodesToScore: 101",
        ),
        (
            json!({"podInitialBackoffSeconds": 0}),
            "podInitialBackoffSeconds: 0",
        ),
        (
            json!({"podMaxBackoffSeconds": 0}),
            "podMaxBackoffSeconds: 0",
        ),
        (json!({"profiles": {}}), "profiles: "),
        (
            profile(json!({"name": "x"})),
            "profiles[0]: unknown field `name`",
        ),
        (
            json!({"profiles": [{}, {}]}),
            "profiles[0].schedulerName: is empty",
        ),
        (
            json!({"profiles": [{"schedulerName": "a"}, {"schedulerName": "a"}]}),
            "profiles[1].schedulerName: \"a\"",
        ),
        (
            profile(json!({"plugins": {"sort": {}}})),
            "profiles[0].plugins.sort: ",
        ),
        (
            enabled("filter", "Nope"),
            "profiles[0].plugins.filter.enabled[0]: there is no plugin \"Nope\"",
        ),
        (
            enabled("multiPoint", "DynamicResources"),
            "plugin DynamicResources of kube-scheduler is not among",
        ),
        (
            enabled("multiPoint", "EBSLimits"),
            "plugin EBSLimits was removed",
        ),
        (
            enabled("filter", "ImageLocality"),
            "plugin ImageLocality does not work at filter",
        ),
        (
            profile(json!({"plugins": {"multiPoint": {"disabled": [{"name": "*"}]}}})),
            "profiles[0].plugins.queueSort: 0 plugins",
        ),
        (
            profile(json!({"plugins": {"bind": {"disabled": [{"name": "*"}]}}})),
            "profiles[0].plugins.bind: no plugin",
        ),
        (
            args("NodeName", json!({})),
            "plugin NodeName takes no arguments",
        ),
        (
            args("InterPodAffinity", json!({"weight": 1})),
            "profiles[0].pluginConfig[0].args: unknown field",
        ),
        (
            args("InterPodAffinity", json!({"kind": "X"})),
            "profiles[0].pluginConfig[0].args.kind: ",
        ),
        (
            args("InterPodAffinity", json!({"hardPodAffinityWeight": 101})),
            "hardPodAffinityWeight: 101",
        ),
        (
            args(
                "NodeResourcesFit",
                json!({"scoringStrategy": {"type": "Best"}}),
            ),
            "scoringStrategy.type: ",
        ),
        (
            args(
                "NodeResourcesFit",
                json!({"scoringStrategy": {"type": "MostAllocated",
                "resources": [{"name": "cpu", "weight": 101}]}}),
            ),
            "scoringStrategy.resources[0].weight: 101",
        ),
        (
            args(
                "NodeResourcesFit",
                json!({"scoringStrategy": {"type": "RequestedToCapacityRatio"}}),
            ),
            "requestedToCapacityRatio: is missing",
        ),
        (
            args(
                "NodeResourcesFit",
                json!({"scoringStrategy": {"type": "RequestedToCapacityRatio",
                "requestedToCapacityRatio": {"shape": [{"utilization": 5, "score": 1}, {"utilization": 5, "score": 1}]}}}),
            ),
            "shape[1].utilization: 5",
        ),
        (
            args(
                "NodeResourcesFit",
                json!({"ignoredResourceGroups": ["a/b"]}),
            ),
            "ignoredResourceGroups[0]: ",
        ),
        (
            args(
                "NodeResourcesBalancedAllocation",
                json!({"resources": [{"name": "cpu", "weight": 2}]}),
            ),
            "resources[0].weight: 2",
        ),
        (
            args(
                "DefaultPreemption",
                json!({"minCandidateNodesPercentage": 101}),
            ),
            "minCandidateNodesPercentage: 101",
        ),
        (
            args(
                "PodTopologySpread",
                json!({"defaultConstraints":
                [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}]}),
            ),
            "defaultingType: is System",
        ),
        (
            args("VolumeBinding", json!({"bindTimeoutSeconds": -1})),
            "bindTimeoutSeconds: is negative",
        ),
        (
            args("VolumeBinding", json!({"shape": []})),
            "shape: needs the feature",
        ),
        (
            args(
                "NodeAffinity",
                json!({"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Like"}]}]}}}),
            ),
            "nodeSelectorTerms[0]: ",
        ),
        (
            json!({"extenders": [{"prioritizeVerb": "p"}]}),
            "extenders[0].weight: 0",
        ),
        (
            json!({"extenders": [{"bindVerb": "b"}, {"bindVerb": "b"}]}),
            "extenders: 2 of them",
        ),
        (
            json!({"extenders": [{"managedResources": [{"name": "cpu"}]}]}),
            "extenders[0].managedResources[0].name: ",
        ),
    ] {
        let said = Configuration::read(&written).unwrap_err().to_string();
        assert!(said.contains(place), "{written}: {said}");
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let said = Configuration::read(&json!({"parallelism": 0, "percentageOfNodesToScore": -1}))
        .unwrap_err();

    assert_eq!(said.0.len(), 2, "{said}");
}
