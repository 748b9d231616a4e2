//! Each plugin by itself: a small cluster, a pod, and the plugin's answers about the nodes. The expected numbers were
//! worked out by hand or come from kube-scheduler's own tests.

use scheduling::plugin::Plugin;
use serde_json::{Value, json};

use crate::world::{World, node, pod, roomy, set, spec};

fn taints(node: Value, list: &[(&str, &str, &str)]) -> Value {
    let list: Vec<Value> = list
        .iter()
        .map(|(key, value, effect)| json!({"key": key, "value": value, "effect": effect}))
        .collect();
    set(node, "/spec/taints", json!(list))
}

#[test]
fn cordoned_nodes_take_only_pods_that_tolerate_it() {
    let cordoned = set(roomy("a", ""), "/spec/unschedulable", json!(true));
    let mut world = World::of(&[cordoned, roomy("b", "")]);

    let plain = world.run(&spec(json!({})));
    let tolerant = world.run(&spec(json!({"tolerations": [
        {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]})));

    assert_eq!(
        plain.filtered()["a"],
        "NodeUnschedulable: node(s) were unschedulable"
    );
    assert_eq!(tolerant.fit(), "a b");
}

#[test]
fn named_node_is_the_only_one() {
    let mut world = World::of(&[roomy("a", ""), roomy("b", "")]);

    let answers = world.run(&spec(json!({"nodeName": "b"})));

    assert_eq!(answers.fit(), "b");
    assert_eq!(
        answers.filtered()["a"],
        "NodeName: node(s) didn't match the requested node name"
    );
}

#[test]
fn taints_keep_pods_away_or_make_nodes_worse() {
    let mut world = World::of(&[
        taints(roomy("a", ""), &[("k", "v", "NoSchedule")]),
        taints(roomy("b", ""), &[("k", "w", "NoExecute")]),
        taints(
            roomy("c", ""),
            &[
                ("p", "1", "PreferNoSchedule"),
                ("q", "1", "PreferNoSchedule"),
            ],
        ),
        taints(roomy("d", ""), &[("p", "1", "PreferNoSchedule")]),
        roomy("e", ""),
    ]);
    for (tolerations, fit, scores) in [
        (json!([]), "c d e", "c:2/0 d:1/150 e:0/300"),
        (
            json!([{"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}]),
            "a c d e",
            "a:0/300 c:2/0 d:1/150 e:0/300",
        ),
        (
            json!([{"operator": "Exists"}]),
            "a b c d e",
            "a:0/300 b:0/300 c:0/300 d:0/300 e:0/300",
        ),
        (
            json!([{"key": "p", "operator": "Exists", "effect": "PreferNoSchedule"}]),
            "c d e",
            "c:1/0 d:0/300 e:0/300",
        ),
        // Comparison operators need a feature gate that is off.
        (
            json!([{"key": "k", "operator": "Gt", "value": "1"}]),
            "c d e",
            "c:2/0 d:1/150 e:0/300",
        ),
    ] {
        let answers = world.run(&spec(json!({"tolerations": tolerations})));
        assert_eq!(answers.fit(), fit, "{tolerations}");
        assert_eq!(answers.scores(Plugin::TaintToleration), scores);
    }
}

#[test]
fn node_affinity_and_selectors_choose_nodes() {
    let mut world = World::of(&[
        roomy("a", "disk=ssd,cores=4"),
        roomy("b", "disk=hdd,cores=16"),
        roomy("c", "cores=many"),
    ]);
    let required = |terms: Value| {
        json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    };
    let expression = |key: &str, operator: &str, values: Value| json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
    let field = |operator: &str, values: Value| json!([{"matchFields": [{"key": "metadata.name", "operator": operator, "values": values}]}]);
    for (more, fit) in [
        (json!({"nodeSelector": {"disk": "ssd"}}), "a"),
        (json!({"nodeSelector": {}}), "a b c"),
        (
            required(expression("disk", "In", json!(["ssd", "nvme"]))),
            "a",
        ),
        (required(expression("disk", "NotIn", json!(["ssd"]))), "b c"),
        (required(expression("disk", "Exists", json!([]))), "a b"),
        (required(expression("disk", "DoesNotExist", json!([]))), "c"),
        (required(expression("cores", "Gt", json!(["4"]))), "b"),
        (required(expression("cores", "Lt", json!(["5"]))), "a"),
        (required(expression("cores", "Gt", json!(["x"]))), ""),
        (required(expression("disk", "Like", json!(["s*"]))), ""),
        (required(field("In", json!(["b"]))), "b"),
        (required(field("NotIn", json!(["b"]))), "a c"),
        (required(json!([{}])), ""),
        (required(json!([])), ""),
    ] {
        assert_eq!(world.run(&spec(more.clone())).fit(), fit, "{more}");
    }
    let narrowed = world.run(&spec(required(field("In", json!(["b"])))));
    assert_eq!(
        narrowed.filtered().len(),
        1,
        "other nodes are not looked at"
    );
    let nowhere = world.run(&spec(required(field("In", json!(["z"])))));
    assert_eq!(
        nowhere.message(),
        "0/3 nodes are available: 3 node(s) didn't satisfy plugin(s) [NodeAffinity]. \
         preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    );
}

#[test]
fn preferred_node_affinity_adds_weights() {
    let mut world = World::of(&[roomy("a", "x=1,y=1"), roomy("b", "x=1"), roomy("c", "")]);
    let term = |key: &str, weight: i64| {
        json!({"weight": weight, "preference":
            {"matchExpressions": [{"key": key, "operator": "Exists"}]}})
    };

    let answers = world.run(&spec(json!({"affinity": {"nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [term("x", 5), term("y", 3)]}}})));

    assert_eq!(
        answers.scores(Plugin::NodeAffinity),
        "a:8/200 b:5/124 c:0/0"
    );
}

#[test]
fn added_affinity_of_the_profile_holds_for_every_pod() {
    let profile = json!({"pluginConfig": [{"name": "NodeAffinity", "args": {"addedAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
            [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["x"]}]}]}}}}]});
    let mut world = World::configured(&[roomy("a", "pool=x"), roomy("b", "")], &profile);

    let answers = world.run(&spec(json!({})));

    assert_eq!(answers.fit(), "a");
    assert_eq!(
        answers.filtered()["b"],
        "NodeAffinity: node(s) didn't match scheduler-enforced node affinity"
    );
}

#[test]
fn host_ports_conflict_by_address_and_protocol() {
    let with_port = |pod: Value, ip: &str, protocol: &str, port: u16| {
        set(
            pod,
            "/spec/containers/0/ports",
            json!([{"hostPort": port, "hostIP": ip, "protocol": protocol}]),
        )
    };
    let taken = with_port(pod("p", "", "a", 0, 0), "127.0.0.1", "TCP", 80);
    let mut world = World::of(&[roomy("a", ""), roomy("b", ""), taken]);
    for (ip, protocol, port, fit) in [
        ("127.0.0.1", "TCP", 80, "b"),
        ("", "TCP", 80, "b"),
        ("0.0.0.0", "TCP", 80, "b"),
        ("127.0.0.2", "TCP", 80, "a b"),
        ("127.0.0.1", "UDP", 80, "a b"),
        ("127.0.0.1", "TCP", 81, "a b"),
    ] {
        let pod = with_port(spec(json!({})), ip, protocol, port);
        assert_eq!(world.run(&pod).fit(), fit, "{ip} {protocol} {port}");
    }
}

#[test]
fn resources_have_to_suffice() {
    let mut with_gpu = node("a", "", 1000, 1000);
    with_gpu["status"]["allocatable"]["example.com/gpu"] = json!("1");
    let mut world = World::of(&[with_gpu, pod("p", "", "a", 400, 400)]);
    let asks = |cpu: u64, memory: u64, gpu: u64| {
        let mut pod = pod("new", "", "", cpu, memory);
        pod["spec"]["containers"][0]["resources"]["requests"]["example.com/gpu"] = json!(gpu);
        pod
    };
    for (cpu, memory, gpu, said) in [
        (600, 600, 1, "ok"),
        (601, 600, 1, "NodeResourcesFit: Insufficient cpu"),
        (600, 601, 1, "NodeResourcesFit: Insufficient memory"),
        (
            600,
            600,
            2,
            "NodeResourcesFit: Insufficient example.com/gpu",
        ),
        (
            2000,
            2000,
            0,
            "NodeResourcesFit: Insufficient cpu, Insufficient memory",
        ),
    ] {
        let answers = world.run(&asks(cpu, memory, gpu));
        assert_eq!(answers.filtered()["a"], said, "{cpu} {memory} {gpu}");
    }
    let mut full = World::of(&[
        set(
            node("a", "", 1000, 1000),
            "/status/allocatable/pods",
            json!(1),
        ),
        pod("p", "", "a", 0, 0),
    ]);
    assert_eq!(
        full.run(&spec(json!({}))).filtered()["a"],
        "NodeResourcesFit: Too many pods"
    );
}

#[test]
fn init_containers_sidecars_and_overhead_count_as_in_kubelet() {
    let container = |cpu: u64, sidecar: bool| {
        let mut container = json!({"name": "c", "image": "i",
            "resources": {"requests": {"cpu": format!("{cpu}m")}}});
        if sidecar {
            container["restartPolicy"] = json!("Always");
        }
        container
    };
    let mut world = World::of(&[roomy("a", "")]);
    for (init, apps, more, wanted) in [
        (vec![], vec![container(100, false); 2], json!({}), 200),
        (
            vec![container(500, false)],
            vec![container(100, false)],
            json!({}),
            500,
        ),
        (
            // The second init container runs beside the sidecar.
            vec![container(50, true), container(500, false)],
            vec![container(100, false)],
            json!({}),
            550,
        ),
        (
            vec![container(50, true)],
            vec![container(100, false)],
            json!({}),
            150,
        ),
        (
            vec![],
            vec![container(100, false)],
            json!({"overhead": {"cpu": "10m"}}),
            110,
        ),
        (
            vec![],
            vec![container(100, false)],
            json!({"resources": {"requests": {"cpu": "1"}}}),
            1000,
        ),
    ] {
        let pod = set(
            set(spec(more), "/spec/containers", json!(apps)),
            "/spec/initContainers",
            json!(init),
        );
        let read = world.snapshot.read_pod(&pod).unwrap();
        assert_eq!(read.requests.cpu_milli, wanted, "{pod}");
    }
}

#[test]
fn strategies_score_by_how_full_a_node_gets() {
    // From kube-scheduler's tests: 3000m and 5000 bytes on nodes of 4000m/10000 and 6000m/10000.
    let nodes = [node("a", "", 4000, 10_000), node("b", "", 6000, 10_000)];
    let asking = pod("new", "", "", 3000, 5000);
    let strategy = |kind: &str, more: Value| {
        let mut strategy = json!({"type": kind, "resources":
            [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]});
        strategy
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"pluginConfig": [{"name": "NodeResourcesFit", "args": {"scoringStrategy": strategy}}]})
    };
    let shape = json!({"requestedToCapacityRatio": {"shape":
        [{"utilization": 0, "score": 10}, {"utilization": 100, "score": 0}]}});
    for (profile, scores) in [
        (strategy("LeastAllocated", json!({})), "a:37/37 b:50/50"),
        (strategy("MostAllocated", json!({})), "a:62/62 b:50/50"),
        (
            strategy("RequestedToCapacityRatio", shape),
            "a:38/38 b:50/50",
        ),
    ] {
        let mut world = World::configured(&nodes, &profile);
        let answers = world.run(&asking);
        assert_eq!(answers.scores(Plugin::NodeResourcesFit), scores);
    }
}

#[test]
fn containers_without_requests_get_kube_schedulers_defaults() {
    let mib = 1 << 20;
    let mut world = World::of(&[
        node("a", "", 1000, 1000 * mib),
        node("b", "", 1000, 1000 * mib),
        pod("p", "", "b", 0, 0),
    ]);
    // 100m and 200 MiB each: 90 and 80 percent are free, or 80 and 60 beside such a pod. A request of 0 is a request.
    let answers = world.run(&spec(json!({})));
    assert_eq!(answers.scores(Plugin::NodeResourcesFit), "a:85/85 b:85/85");
    let silent = set(
        spec(json!({"nodeName": "b"})),
        "/metadata/name",
        json!("silent"),
    );
    let silent = world.snapshot.read_pod(&silent).unwrap();
    world.snapshot.assign(silent.into(), "b");
    let answers = world.run(&spec(json!({})));
    assert_eq!(answers.scores(Plugin::NodeResourcesFit), "a:85/85 b:70/70");
}

#[test]
fn even_use_of_resources_is_better() {
    // From kube-scheduler's tests: 3000m and 5000 bytes make 75 and 50 percent, or 50 and 50.
    let mut world = World::of(&[node("a", "", 4000, 10_000), node("b", "", 6000, 10_000)]);

    let answers = world.run(&pod("new", "", "", 3000, 5000));
    let nothing = world.run(&spec(json!({})));

    assert_eq!(
        answers.scores(Plugin::NodeResourcesBalancedAllocation),
        "a:87/87 b:100/100"
    );
    assert_eq!(nothing.scores(Plugin::NodeResourcesBalancedAllocation), "");
}

#[test]
fn ignored_resources_are_left_to_others() {
    let asking = |name: &str| {
        let mut pod = spec(json!({}));
        pod["spec"]["containers"][0]["resources"] = json!({"requests": {name: "1"}});
        pod
    };
    let profile = json!({"pluginConfig": [{"name": "NodeResourcesFit", "args":
        {"ignoredResources": ["example.com/a"], "ignoredResourceGroups": ["other.com"]}}]});
    let mut world = World::configured(&[roomy("n", "")], &profile);

    assert_eq!(world.run(&asking("example.com/a")).fit(), "n");
    assert_eq!(world.run(&asking("other.com/b")).fit(), "n");
    assert_eq!(world.run(&asking("example.com/b")).fit(), "");
}

#[test]
fn images_on_a_node_make_it_better() {
    // From kube-scheduler's tests: 40 MiB on one of two nodes and 300 MiB on both against 250 MiB on one.
    let mib = 1_u64 << 20;
    let with = |node: Value, images: &[(&str, u64)]| {
        let images: Vec<Value> = images
            .iter()
            .map(|(name, size)| json!({"names": [name], "sizeBytes": size * mib}))
            .collect();
        set(node, "/status/images", json!(images))
    };
    let mut world = World::of(&[
        with(
            roomy("a", ""),
            &[("gcr.io/40:latest", 40), ("gcr.io/300:v1", 300)],
        ),
        with(roomy("b", ""), &[("gcr.io/250:latest", 250)]),
    ]);
    let pod = set(
        spec(json!({})),
        "/spec/containers",
        json!([{"name": "1", "image": "gcr.io/40"}, {"name": "2", "image": "gcr.io/250"}]),
    );

    let answers = world.run(&pod);

    // Half of 40 MiB is below the least size that counts; half of 250 MiB is 102 of 1977 MiB above it.
    assert_eq!(answers.scores(Plugin::ImageLocality), "a:0/0 b:5/5");
}

fn constraint(key: &str, skew: i64, when: &str, more: Value) -> Value {
    let mut constraint = json!({"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"app": "a"}}});
    constraint
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!({"topologySpreadConstraints": [constraint]})
}

#[test]
fn hard_spread_refuses_full_domains() {
    let mut world = World::of(&[
        roomy("a", "zone=1"),
        roomy("b", "zone=1,pool=x"),
        taints(roomy("c", "zone=2"), &[("t", "", "NoSchedule")]),
        roomy("d", ""),
        pod("p1", "app=a", "a", 0, 0),
        pod("p2", "app=a", "b", 0, 0),
        pod("p3", "app=a", "c", 0, 0),
        pod("p4", "app=other", "c", 0, 0),
        set(
            pod("p5", "app=a", "a", 0, 0),
            "/metadata/namespace",
            json!("elsewhere"),
        ),
    ]);
    let no = "PodTopologySpread: node(s) didn't match pod topology spread constraints";
    for (more, of_a) in [
        (json!({}), no.to_owned()),
        (json!({"maxSkew": 2}), "ok".to_owned()),
        // Without the tainted node, zone 1 is the only domain.
        (json!({"nodeTaintsPolicy": "Honor"}), "ok".to_owned()),
        // A missing third domain counts as empty.
        (json!({"minDomains": 3, "maxSkew": 2}), no.to_owned()),
        (json!({"matchLabelKeys": ["app"]}), no.to_owned()),
    ] {
        let answers = world.run(&spec(constraint("zone", 1, "DoNotSchedule", more.clone())));
        assert_eq!(answers.filtered()["a"], of_a, "{more}");
        assert_eq!(
            answers.filtered()["d"],
            format!("{no} (missing required label)")
        );
    }
}

#[test]
fn node_affinity_decides_which_nodes_are_domains() {
    let mut world = World::of(&[
        roomy("a", "zone=1,pool=x"),
        roomy("b", "zone=2"),
        pod("p", "app=a", "a", 0, 0),
    ]);
    let mut pod = constraint("zone", 1, "DoNotSchedule", json!({}));
    pod["nodeSelector"] = json!({"pool": "x"});

    let honoured = world.run(&spec(pod.clone()));
    pod["topologySpreadConstraints"][0]["nodeAffinityPolicy"] = json!("Ignore");
    let ignored = world.run(&spec(pod));

    assert_eq!(honoured.fit(), "a");
    assert_eq!(ignored.fit(), "");
}

#[test]
fn soft_spread_prefers_empty_domains() {
    let mut world = World::of(&[
        roomy("a", "zone=1"),
        roomy("b", "zone=2"),
        roomy("c", ""),
        pod("p1", "app=a", "a", 0, 0),
        pod("p2", "app=a", "a", 0, 0),
    ]);

    let answers = world.run(&spec(constraint("zone", 1, "ScheduleAnyway", json!({}))));

    // Two domains have a weight of ln(4); two pods give 2.77, rounded to 3. A node without the label scores 0.
    assert_eq!(
        answers.scores(Plugin::PodTopologySpread),
        "a:3/0 b:0/200 c:0/0"
    );
}

#[test]
fn system_defaults_spread_pods_of_a_service() {
    let service = json!({"kind": "Service", "metadata": {"name": "s", "namespace": "default"},
        "spec": {"selector": {"app": "a"}}});
    let objects = [
        roomy(
            "a",
            "kubernetes.io/hostname=a,topology.kubernetes.io/zone=1",
        ),
        roomy(
            "b",
            "kubernetes.io/hostname=b,topology.kubernetes.io/zone=2",
        ),
        pod("p", "app=a", "a", 0, 0),
    ];
    let alone = World::of(&objects).run(&spec(json!({})));
    let served = World::of(&[&objects[..], &[service]].concat()).run(&spec(json!({})));

    assert_eq!(alone.scores(Plugin::PodTopologySpread), "");
    // ln(4) + 2 by host and ln(4) + 4 by zone give 8.77, against 6 without any pod.
    assert_eq!(served.scores(Plugin::PodTopologySpread), "a:9/132 b:6/200");
}

#[test]
fn default_constraints_of_the_profile_can_refuse_nodes() {
    let service = json!({"kind": "Service", "metadata": {"name": "s", "namespace": "default"},
        "spec": {"selector": {"app": "a"}}});
    let profile = json!({"pluginConfig": [{"name": "PodTopologySpread", "args": {
        "defaultingType": "List", "defaultConstraints":
            [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}}]});
    let objects = [
        service,
        roomy("a", "zone=1"),
        roomy("b", "zone=2"),
        pod("p", "app=a", "a", 0, 0),
    ];

    let answers = World::configured(&objects, &profile).run(&spec(json!({})));

    assert_eq!(answers.fit(), "b");
}

fn affinity(kind: &str, when: &str, more: Value) -> Value {
    let mut term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}});
    term.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let field = format!("{when}DuringSchedulingIgnoredDuringExecution");
    let list = match when {
        "preferred" => json!([{"weight": 5, "podAffinityTerm": term}]),
        _ => json!([term]),
    };
    json!({"affinity": {kind: {field: list}}})
}

#[test]
fn required_pod_affinity_wants_a_domain_with_such_a_pod() {
    let nodes = [roomy("a", "zone=1"), roomy("b", "zone=2"), roomy("c", "")];
    let no = "InterPodAffinity: node(s) didn't match pod affinity rules";
    let near = affinity("podAffinity", "required", json!({}));

    let mut empty = World::of(&nodes);
    let first = empty.run(&spec(near.clone()));
    let mut one = World::of(&[&nodes[..], &[pod("p", "app=a", "a", 0, 0)]].concat());
    let second = one.run(&spec(near.clone()));
    let other = one.run(&set(spec(near), "/metadata/namespace", json!("elsewhere")));

    assert_eq!(first.fit(), "a b", "the first of its kind begins anywhere");
    assert_eq!(second.fit(), "a");
    assert_eq!(second.filtered()["c"], no);
    assert_eq!(other.fit(), "a b", "pods of another namespace do not count");
}

#[test]
fn namespaces_are_chosen_by_name_or_by_label() {
    let namespace = |name: &str, labels: Value| json!({"kind": "Namespace", "metadata": {"name": name, "labels": labels}});
    let mut world = World::of(&[
        namespace("default", json!({})),
        namespace("team", json!({"kind": "team"})),
        roomy("a", "zone=1"),
        roomy("b", "zone=2"),
        set(
            pod("p", "app=a", "a", 0, 0),
            "/metadata/namespace",
            json!("team"),
        ),
    ]);
    for (more, fit) in [
        (json!({}), "a b"),
        (json!({"namespaces": ["team"]}), "b"),
        (json!({"namespaceSelector": {}}), "b"),
        (
            json!({"namespaceSelector": {"matchLabels": {"kind": "team"}}}),
            "b",
        ),
        (
            json!({"namespaceSelector": {"matchLabels": {"kind": "x"}}}),
            "a b",
        ),
        (
            json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "team"}}}),
            "b",
        ),
        (
            json!({"namespaces": ["team"], "mismatchLabelKeys": ["app"]}),
            "a b",
        ),
        (
            json!({"namespaces": ["team"], "matchLabelKeys": ["app"]}),
            "b",
        ),
    ] {
        let far = affinity("podAntiAffinity", "required", more.clone());
        assert_eq!(world.run(&spec(far)).fit(), fit, "{more}");
    }
}

#[test]
fn anti_affinity_holds_in_both_directions() {
    let far = affinity("podAntiAffinity", "required", json!({}));
    let shy = set(
        pod("p", "app=other", "a", 0, 0),
        "/spec/affinity",
        far["affinity"].clone(),
    );
    let mut world = World::of(&[
        roomy("a", "zone=1"),
        roomy("b", "zone=2"),
        shy,
        pod("q", "app=a", "b", 0, 0),
    ]);

    let plain = world.run(&spec(json!({})));
    let both = world.run(&spec(far));

    assert_eq!(
        plain.filtered()["a"],
        "InterPodAffinity: node(s) didn't satisfy existing pods anti-affinity rules"
    );
    assert_eq!(plain.fit(), "b");
    assert_eq!(
        both.filtered()["b"],
        "InterPodAffinity: node(s) didn't match pod anti-affinity rules"
    );
}

#[test]
fn preferred_pod_affinity_and_hard_terms_of_others_score() {
    let near = affinity("podAffinity", "required", json!({}));
    let magnet = set(
        pod("p", "app=x", "b", 0, 0),
        "/spec/affinity",
        near["affinity"].clone(),
    );
    let objects = [
        roomy("a", "zone=1"),
        roomy("b", "zone=2"),
        roomy("c", "zone=3"),
        pod("q", "app=a", "a", 0, 0),
        magnet,
    ];

    let preferred = World::of(&objects).run(&spec(affinity("podAffinity", "preferred", json!({}))));
    let plain = World::of(&objects).run(&spec(json!({})));
    let away = World::of(&objects).run(&spec(affinity("podAntiAffinity", "preferred", json!({}))));

    assert_eq!(
        preferred.scores(Plugin::InterPodAffinity),
        "a:5/200 b:1/40 c:0/0"
    );
    assert_eq!(
        plain.scores(Plugin::InterPodAffinity),
        "a:0/0 b:1/200 c:0/0"
    );
    assert_eq!(
        away.scores(Plugin::InterPodAffinity),
        "a:-5/0 b:1/200 c:0/166"
    );
}

#[test]
fn terms_of_others_can_be_ignored() {
    let near = affinity("podAffinity", "preferred", json!({}));
    let magnet = set(
        pod("p", "app=x", "a", 0, 0),
        "/spec/affinity",
        near["affinity"].clone(),
    );
    let objects = [roomy("a", "zone=1"), roomy("b", "zone=2"), magnet];
    let profile = json!({"pluginConfig": [{"name": "InterPodAffinity", "args":
        {"ignorePreferredTermsOfExistingPods": true}}]});

    let heeded = World::of(&objects).run(&spec(json!({})));
    let ignored = World::configured(&objects, &profile).run(&spec(json!({})));

    assert_eq!(heeded.scores(Plugin::InterPodAffinity), "a:5/200 b:0/0");
    assert_eq!(ignored.scores(Plugin::InterPodAffinity), "");
}
