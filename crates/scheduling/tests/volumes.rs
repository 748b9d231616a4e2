//! Claims and volumes: which nodes they allow, and the work to be done when the pod is bound.

use scheduling::cycle::VolumeWork;
use serde_json::{Value, json};

use crate::world::{World, roomy, set, spec};

fn class(name: &str, mode: &str, provisioner: &str) -> Value {
    json!({"kind": "StorageClass", "metadata": {"name": name}, "provisioner": provisioner,
        "volumeBindingMode": mode})
}

fn claim(name: &str, class: &str, volume: &str, gib: u64) -> Value {
    let mut claim = json!({"kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": format!("{gib}Gi")}}}});
    if !volume.is_empty() {
        claim["spec"]["volumeName"] = json!(volume);
        claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
    }
    claim
}

/// A volume that nodes with the label `at` equal to `disk` reach; all nodes if `disk` is empty.
fn volume(name: &str, class: &str, at: &str, gib: u64) -> Value {
    let mut volume = json!({"kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "capacity": {"storage": format!("{gib}Gi")}},
        "status": {"phase": "Available"}});
    if !at.is_empty() {
        volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms":
            [{"matchExpressions": [{"key": "at", "operator": "In", "values": [at]}]}]}});
    }
    volume
}

fn mounting(claims: &[&str]) -> Value {
    let volumes: Vec<Value> = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    spec(json!({"volumes": volumes}))
}

fn nodes() -> Vec<Value> {
    vec![roomy("a", "at=a"), roomy("b", "at=b")]
}

#[test]
fn bound_claims_keep_the_pod_where_their_volume_is() {
    let mut objects = nodes();
    objects.extend([
        claim("c", "", "v", 1),
        volume("v", "", "a", 1),
        claim("lost", "", "gone", 1),
    ]);
    let mut world = World::of(&objects);

    let answers = world.run(&mounting(&["c"]));
    let lost = world.run(&mounting(&["lost"]));

    assert_eq!(answers.fit(), "a");
    assert_eq!(
        answers.filtered()["b"],
        "VolumeBinding: node(s) didn't match PersistentVolume's node affinity"
    );
    assert_eq!(
        lost.message().split('.').next().unwrap(),
        "0/2 nodes are available: persistentvolume \"gone\" not found"
    );
}

#[test]
fn claims_that_are_missing_or_not_bound_refuse_the_pod() {
    let mut objects = nodes();
    objects.extend([
        class("now", "Immediate", "csi.example"),
        claim("waiting", "now", "", 1),
        set(
            claim("dying", "now", "", 1),
            "/metadata/deletionTimestamp",
            json!("2026-01-01T00:00:00Z"),
        ),
    ]);
    let mut world = World::of(&objects);
    for (name, why) in [
        ("none", "persistentvolumeclaim \"none\" not found"),
        (
            "waiting",
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        ("dying", "persistentvolumeclaim \"dying\" is being deleted"),
    ] {
        let answers = world.run(&mounting(&[name]));
        assert_eq!(
            answers.message(),
            format!(
                "0/2 nodes are available: {why}. preemption: 0/2 nodes are available: \
                 2 Preemption is not helpful for scheduling."
            )
        );
    }
}

#[test]
fn waiting_claims_get_the_smallest_volume_that_the_node_reaches() {
    let mut objects = nodes();
    objects.extend([
        class(
            "wait",
            "WaitForFirstConsumer",
            "kubernetes.io/no-provisioner",
        ),
        claim("c", "wait", "", 5),
        volume("small", "wait", "a", 4),
        volume("large", "wait", "a", 50),
        volume("medium", "wait", "a", 10),
        volume("other-class", "x", "a", 5),
        set(
            volume("taken", "wait", "a", 6),
            "/status/phase",
            json!("Bound"),
        ),
    ]);
    let mut world = World::of(&objects);

    let answers = world.run(&mounting(&["c"]));

    assert_eq!(
        answers.filtered()["b"],
        "VolumeBinding: node(s) didn't find available persistent volumes to bind"
    );
    let placed = answers.0.result.unwrap();
    assert_eq!(&*placed.node, "a");
    assert_eq!(
        placed.volumes.unwrap(),
        VolumeWork {
            bind: vec![("c".into(), "medium".into())],
            provision: vec![],
        }
    );
}

#[test]
fn two_claims_get_two_volumes() {
    let mut objects = nodes();
    objects.extend([
        class(
            "wait",
            "WaitForFirstConsumer",
            "kubernetes.io/no-provisioner",
        ),
        claim("big", "wait", "", 8),
        claim("little", "wait", "", 1),
        volume("v1", "wait", "a", 5),
        volume("v2", "wait", "a", 10),
        volume("v3", "wait", "b", 10),
    ]);
    let mut world = World::of(&objects);

    let answers = world.run(&mounting(&["big", "little"]));

    assert_eq!(
        answers.fit(),
        "a",
        "one volume is not enough for two claims"
    );
    let work = answers.0.result.unwrap().volumes.unwrap();
    assert_eq!(
        work.bind,
        [("little".into(), "v1".into()), ("big".into(), "v2".into())]
    );
}

#[test]
fn provisioners_make_volumes_where_their_class_allows_it() {
    let everywhere = class("any", "WaitForFirstConsumer", "csi.example");
    let only_b = set(
        class("b", "WaitForFirstConsumer", "csi.example"),
        "/allowedTopologies",
        json!([{"matchLabelExpressions": [{"key": "at", "values": ["b"]}]}]),
    );
    let selected = set(
        claim("told", "any", "", 1),
        "/metadata/annotations",
        json!({"volume.kubernetes.io/selected-node": "a"}),
    );
    let mut objects = nodes();
    objects.extend([
        everywhere,
        only_b,
        claim("c", "any", "", 1),
        claim("d", "b", "", 1),
        selected,
    ]);
    let mut world = World::of(&objects);
    for (name, fit) in [("c", "a b"), ("d", "b"), ("told", "a")] {
        let answers = world.run(&mounting(&[name]));
        assert_eq!(answers.fit(), fit, "{name}");
        let work = answers.0.result.unwrap().volumes.unwrap();
        assert_eq!(work.provision, [name.into()]);
    }
}

#[test]
fn zones_of_volumes_are_zones_of_nodes() {
    let zoned =
        |name: &str, zone: &str| roomy(name, &format!("topology.kubernetes.io/zone={zone}"));
    let labelled = set(
        volume("v", "", "", 1),
        "/metadata/labels",
        json!({"failure-domain.beta.kubernetes.io/zone": "z1__z2"}),
    );
    let mut world = World::of(&[
        zoned("a", "z1"),
        zoned("b", "z2"),
        zoned("c", "z3"),
        roomy("d", ""),
        claim("c", "", "v", 1),
        labelled,
    ]);

    let answers = world.run(&mounting(&["c"]));

    assert_eq!(answers.fit(), "a b d");
    assert_eq!(
        answers.filtered()["c"],
        "VolumeZone: node(s) had no available volume zone"
    );
}

#[test]
fn drivers_take_so_many_volumes_on_a_node() {
    let csi = |name: &str| {
        set(
            volume(name, "", "", 1),
            "/spec/csi",
            json!({"driver": "csi.example", "volumeHandle": name}),
        )
    };
    let limits = json!({"kind": "CSINode", "metadata": {"name": "a"}, "spec": {"drivers":
        [{"name": "csi.example", "nodeID": "a", "allocatable": {"count": 1}}]}});
    let running = set(mounting(&["c1"]), "/spec/nodeName", json!("a"));
    let mut objects = nodes();
    objects.extend([
        limits,
        csi("v1"),
        csi("v2"),
        claim("c1", "", "v1", 1),
        claim("c2", "", "v2", 1),
        set(running, "/metadata/name", json!("running")),
    ]);
    let mut world = World::of(&objects);

    let another = world.run(&mounting(&["c2"]));
    let same = world.run(&mounting(&["c1"]));

    assert_eq!(
        another.filtered()["a"],
        "NodeVolumeLimits: node(s) exceed max volume count"
    );
    assert_eq!(
        same.fit(),
        "a b",
        "a volume that is there already counts once"
    );
}

#[test]
fn disks_and_claims_that_cannot_be_shared() {
    let disk = |read_only: bool| {
        spec(json!({"volumes": [{"name": "d", "gcePersistentDisk":
            {"pdName": "disk", "readOnly": read_only}}]}))
    };
    let on_a = |pod: Value, name: &str| {
        set(
            set(pod, "/spec/nodeName", json!("a")),
            "/metadata/name",
            json!(name),
        )
    };
    let alone = set(
        claim("alone", "", "v", 1),
        "/spec/accessModes",
        json!(["ReadWriteOncePod"]),
    );
    let mut objects = nodes();
    objects.extend([
        on_a(disk(true), "reader"),
        on_a(mounting(&["alone"]), "owner"),
        alone,
        volume("v", "", "", 1),
    ]);
    let mut world = World::of(&objects);

    assert_eq!(world.run(&disk(true)).fit(), "a b");
    let writer = world.run(&disk(false));
    assert_eq!(
        writer.filtered()["a"],
        "VolumeRestrictions: node(s) had no available disk"
    );
    let second = world.run(&mounting(&["alone"]));
    assert_eq!(
        second.fit(),
        "",
        "no node helps while another pod mounts it"
    );
    assert!(
        second.filtered()["b"].contains("ReadWriteOncePod access mode already in-use"),
        "{:?}",
        second.filtered()
    );
}
