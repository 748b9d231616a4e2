//! A whole cycle: order of filters, choice, ties, preemption, nominated pods, extenders, messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use scheduling::config::Configuration;
use scheduling::cycle::{Extended, Options};
use scheduling::plugin::{Plugin, Point};
use scheduling::profile::Framework;
use scheduling::snapshot::Snapshot;
use serde_json::{Value, json};

use crate::world::{World, node, pod, roomy, set, spec};

fn with_priority(pod: Value, priority: i32) -> Value {
    set(pod, "/spec/priority", json!(priority))
}

fn started(pod: Value, at: &str) -> Value {
    set(pod, "/status", json!({"startTime": at}))
}

#[test]
fn equal_nodes_are_reported_and_the_first_by_name_is_taken() {
    let mut world = World::of(&[roomy("c", ""), roomy("a", ""), roomy("b", "")]);

    let placed = world.run(&spec(json!({}))).0.result.unwrap();

    assert_eq!(&*placed.node, "a");
    let ties: Vec<&str> = placed.ties.iter().map(|tie| &**tie).collect();
    assert_eq!(ties, ["a", "b", "c"]);
    assert_eq!((placed.feasible, placed.evaluated), (3, 3));
}

#[test]
fn single_feasible_node_is_not_scored() {
    let mut world = World::of(&[roomy("a", ""), node("b", "", 1, 1)]);

    let answers = world.run(&pod("new", "", "", 100, 100));

    assert_eq!(answers.record().scored, None);
    assert!(answers.record().pre_score.is_empty());
    assert_eq!(&*answers.0.result.unwrap().node, "a");
}

#[test]
fn message_counts_reasons_and_sorts_them() {
    let mut world = World::of(&[
        node("a", "", 1, 1),
        node("b", "", 1, 1 << 40),
        set(roomy("c", ""), "/spec/unschedulable", json!(true)),
    ]);

    let answers = world.run(&pod("new", "", "", 100, 100));

    assert_eq!(
        answers.message(),
        "0/3 nodes are available: 1 Insufficient memory, 1 node(s) were unschedulable, \
         2 Insufficient cpu. preemption: 0/3 nodes are available: \
         3 Preemption is not helpful for scheduling."
    );
    let failed = answers.0.result.unwrap_err();
    let plugins: Vec<Plugin> = failed.plugins.iter().collect();
    assert_eq!(
        plugins,
        [Plugin::NodeUnschedulable, Plugin::NodeResourcesFit]
    );
    assert_eq!(failed.reasons["Insufficient cpu"], 2);
}

#[test]
fn no_node_at_all_is_said_as_kube_scheduler_says_it() {
    let answers = World::of(&[]).run(&spec(json!({})));

    assert_eq!(answers.message(), "no nodes available to schedule pods");
}

#[test]
fn lowest_pods_are_evicted_where_the_least_harm_is_done() {
    let mut world = World::of(&[
        node("a", "", 1000, 1000),
        node("b", "", 1000, 1000),
        node("c", "", 1000, 1000),
        with_priority(pod("a1", "", "a", 500, 0), 5),
        with_priority(pod("a2", "", "a", 500, 0), 1),
        with_priority(pod("b1", "", "b", 1000, 0), 2),
        with_priority(pod("c1", "", "c", 1000, 0), 100),
    ]);

    let answers = world.run(&with_priority(pod("new", "", "", 400, 0), 10));

    let failed = answers.0.result.as_ref().unwrap_err();
    let victims = failed.preemption.as_ref().unwrap();
    assert_eq!(&*victims.node, "a");
    let names: Vec<&str> = victims.pods.iter().map(|pod| &*pod.key).collect();
    assert_eq!(names, ["default/a2"]);
    assert_eq!(
        failed.message,
        "0/3 nodes are available: 3 Insufficient cpu."
    );
    let rendered = scheduling::annotations::render(answers.record());
    assert_eq!(
        rendered["postfilter-result"],
        r#"{"a":{"DefaultPreemption":"preemption victim"},"b":{},"c":{}}"#
    );
}

#[test]
fn later_started_victims_are_preferred() {
    let low = |name: &str, node: &str, at: &str| {
        started(with_priority(pod(name, "", node, 1000, 0), 1), at)
    };
    let mut world = World::of(&[
        node("a", "", 1000, 1000),
        node("b", "", 1000, 1000),
        low("old", "a", "2026-01-01T00:00:00Z"),
        low("young", "b", "2026-01-02T00:00:00Z"),
    ]);

    let answers = world.run(&with_priority(pod("new", "", "", 400, 0), 10));

    let failed = answers.0.result.unwrap_err();
    assert_eq!(&*failed.preemption.unwrap().node, "b");
}

#[test]
fn disruption_budgets_are_broken_last() {
    let budget = json!({"kind": "PodDisruptionBudget",
        "metadata": {"name": "keep", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "kept"}}},
        "status": {"disruptionsAllowed": 0}});
    let objects = [
        node("a", "", 1000, 1000),
        with_priority(pod("kept", "app=kept", "a", 500, 0), 1),
        with_priority(pod("free", "app=free", "a", 500, 0), 2),
        budget,
    ];

    let one = World::of(&objects).run(&with_priority(pod("new", "", "", 500, 0), 10));
    let both = World::of(&objects).run(&with_priority(pod("new", "", "", 1000, 0), 10));

    let victims = one.0.result.unwrap_err().preemption.unwrap();
    assert_eq!(&*victims.pods[0].key, "default/free");
    assert_eq!((victims.pods.len(), victims.violations), (1, 0));
    let victims = both.0.result.unwrap_err().preemption.unwrap();
    assert_eq!((victims.pods.len(), victims.violations), (2, 1));
}

#[test]
fn pods_that_never_preempt_say_so() {
    let mut world = World::of(&[node("a", "", 1000, 1000), pod("low", "", "a", 1000, 0)]);
    let new = with_priority(pod("new", "", "", 1000, 0), 10);

    let never = world.run(&set(new, "/spec/preemptionPolicy", json!("Never")));
    let equal = world.run(&pod("new", "", "", 1000, 0));

    assert_eq!(
        never.message(),
        "0/1 nodes are available: 1 Insufficient cpu. \
         preemption: not eligible due to preemptionPolicy=Never."
    );
    assert_eq!(
        equal.message(),
        "0/1 nodes are available: 1 Insufficient cpu. \
         preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    );
}

#[test]
fn anti_affinity_is_cured_by_eviction() {
    let far = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}]}});
    let mut world = World::of(&[
        roomy("n", "zone=1"),
        with_priority(pod("p", "app=a", "n", 0, 0), 1),
    ]);

    let answers = world.run(&with_priority(spec(json!({"affinity": far})), 10));

    let victims = answers.0.result.unwrap_err().preemption.unwrap();
    assert_eq!(&*victims.pods[0].key, "default/p");
}

#[test]
fn nominated_pods_keep_their_room_from_lower_ones() {
    let mut world = World::of(&[node("a", "", 1000, 1000)]);
    let waiting = with_priority(pod("waiting", "", "", 800, 0), 5);
    let waiting = Arc::new(world.snapshot.read_pod(&waiting).unwrap());
    world.snapshot.nominate(waiting, "a");

    let lower = world.run(&with_priority(pod("new", "", "", 500, 0), 1));
    let higher = world.run(&with_priority(pod("new", "", "", 500, 0), 9));
    world.snapshot.clear_nomination("default/waiting");
    let free = world.run(&with_priority(pod("new", "", "", 500, 0), 1));

    assert_eq!(lower.fit(), "");
    assert_eq!(higher.fit(), "a");
    assert_eq!(free.fit(), "a");
}

#[test]
fn nominated_node_is_tried_first() {
    let mut world = World::of(&[roomy("a", ""), roomy("b", ""), node("c", "", 1, 1)]);
    let nominated = |node: &str| {
        set(
            pod("new", "", "", 100, 100),
            "/status",
            json!({"nominatedNodeName": node}),
        )
    };

    let there = world.run(&nominated("b"));
    let full = world.run(&nominated("c"));

    assert_eq!(there.filtered().len(), 1);
    assert_eq!(&*there.0.result.unwrap().node, "b");
    assert_eq!(&*full.0.result.unwrap().node, "a");
}

#[test]
fn search_ends_with_enough_nodes_and_goes_on_where_it_ended() {
    let mut snapshot = Snapshot::new();
    for at in 0..400 {
        let node = snapshot
            .read_node(&roomy(&format!("n{at:03}"), ""))
            .unwrap();
        snapshot.set_node(node);
    }
    let framework = Framework::all(&Configuration::default(), snapshot.names_mut()).remove(0);
    let pod = Arc::new(snapshot.read_pod(&spec(json!({}))).unwrap());
    let mut options = Options::default();
    let mut found = Vec::new();
    for _ in 0..3 {
        let outcome = framework.schedule(&snapshot, &pod, options);
        options.start = outcome.next_start;
        let placed = outcome.result.unwrap();
        found.push((placed.feasible, placed.node.to_string(), options.start));
    }

    // 50 - 400/125 percent of 400 nodes are 188.
    assert_eq!(
        found,
        [
            (188, "n000".to_owned(), 188),
            (188, "n188".to_owned(), 376),
            (188, "n000".to_owned(), 164),
        ]
    );
}

#[test]
fn extenders_refuse_and_score_between_the_halves() {
    let mut snapshot = Snapshot::new();
    for name in ["a", "b", "c"] {
        let node = snapshot.read_node(&roomy(name, "")).unwrap();
        snapshot.set_node(node);
    }
    let framework = Framework::all(&Configuration::default(), snapshot.names_mut()).remove(0);
    let pod = Arc::new(snapshot.read_pod(&spec(json!({}))).unwrap());
    let mut cycle = framework.begin(&snapshot, &pod, Options::default());
    let asked: Vec<&str> = cycle.feasible().map(|node| &*node.node().name).collect();
    assert_eq!(asked, ["a", "b", "c"]);

    cycle.extend(&Extended {
        fit: vec!["b".to_owned(), "c".to_owned()],
        failed: BTreeMap::from([("a".to_owned(), "no gpu memory".to_owned())]),
        unresolvable: BTreeMap::new(),
    });
    let placed = cycle.finish(&BTreeMap::from([("c".to_owned(), 50)]));

    assert_eq!(&*placed.result.unwrap().node, "c");
    let mut cycle = framework.begin(&snapshot, &pod, Options::default());
    cycle.extend(&Extended {
        failed: ["a", "b", "c"]
            .map(|name| (name.to_owned(), "no gpu memory".to_owned()))
            .into(),
        ..Extended::default()
    });
    let failed = cycle.finish(&BTreeMap::new()).result.unwrap_err();
    assert!(failed.by_extender);
    assert_eq!(
        failed.message,
        "0/3 nodes are available: 3 no gpu memory. preemption: 0/3 nodes are available: \
         3 No preemption victims found for incoming pod."
    );
}

#[test]
fn extender_that_refuses_the_nominated_node_leaves_the_others() {
    let mut snapshot = Snapshot::new();
    for name in ["a", "b"] {
        let node = snapshot.read_node(&roomy(name, "")).unwrap();
        snapshot.set_node(node);
    }
    let framework = Framework::all(&Configuration::default(), snapshot.names_mut()).remove(0);
    let nominated = set(
        spec(json!({})),
        "/status",
        json!({"nominatedNodeName": "b"}),
    );
    let pod = Arc::new(snapshot.read_pod(&nominated).unwrap());
    let mut cycle = framework.begin(&snapshot, &pod, Options::default());
    assert_eq!(cycle.feasible().count(), 1);
    assert!(!cycle.look_further(), "there is a node");

    cycle.extend(&Extended::default());

    assert!(cycle.look_further());
    assert_eq!(cycle.feasible().count(), 2);
}

#[test]
fn gates_are_reported_by_name() {
    let mut snapshot = Snapshot::new();
    let framework = Framework::all(&Configuration::default(), snapshot.names_mut()).remove(0);
    let gated = spec(json!({"schedulingGates": [{"name": "a"}, {"name": "b"}]}));
    let gated = snapshot.read_pod(&gated).unwrap();

    assert_eq!(
        framework.gate(&gated).as_deref(),
        Some("waiting for scheduling gates: [a b]")
    );
    assert_eq!(
        framework.plugins(Point::PreEnqueue),
        [Plugin::SchedulingGates]
    );
}

#[test]
fn pods_get_the_priority_of_their_class() {
    let class = |name: &str, value: i64, more: Value| {
        let mut class =
            json!({"kind": "PriorityClass", "metadata": {"name": name}, "value": value});
        class
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        class
    };
    let mut world = World::of(&[
        class("high", 1000, json!({"preemptionPolicy": "Never"})),
        class("normal", 7, json!({"globalDefault": true})),
    ]);

    let mut read = |more: Value| world.snapshot.read_pod(&spec(more)).unwrap();

    let high = read(json!({"priorityClassName": "high"}));
    assert_eq!((high.priority, high.never_preempts), (1000, true));
    assert_eq!(read(json!({})).priority, 7);
    assert_eq!(
        read(json!({"priorityClassName": "high", "priority": 3})).priority,
        3
    );
}

#[test]
fn unreadable_objects_say_what_and_where() {
    let mut snapshot = Snapshot::new();
    let broken = pod("p", "", "", 0, 0);
    let broken = set(
        broken,
        "/spec/containers/0/resources/requests/cpu",
        json!("many"),
    );

    let amount = snapshot.read_pod(&broken).unwrap_err();
    let shape = snapshot
        .read_pod(&json!({"metadata": {"name": "p"}, "spec": {"containers": 3}}))
        .unwrap_err();
    let nameless = snapshot.read_node(&json!({})).unwrap_err();

    assert_eq!(
        amount.to_string(),
        "pod default/p: container main: requests.cpu: \"many\" is no amount; \
         write a number such as 3000, 3k, 16Gi or 500m"
    );
    assert!(
        shape.to_string().starts_with("pod p: invalid type"),
        "{shape}"
    );
    assert_eq!(
        nameless.to_string(),
        "a node has no metadata.name; give it one"
    );
}
