//! The change that one run makes to the base: another configuration, more nodes, drained nodes. Values in, values out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use kube_api::keys;
use kube_api::object::Node;
use kube_api::vendor::Vendors;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::super::Refusal;
use super::base::{Base, Happening, fields_mut, text};

/// The most nodes that one comparison adds, so that a typing error does not fill the memory.
pub const MOST_ADDED: u32 = 10_000;

/// Nodes to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    /// The number of copies.
    pub count: u32,
    /// The node to copy; none for the most common kind of node.
    pub like: Option<String>,
}

/// The text does not say which nodes to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected a number from 1 to {MOST_ADDED}, and the node to copy where it matters: 2, 2:gpu-1"
)]
pub struct AddedError;

impl std::str::FromStr for Added {
    type Err = AddedError;

    fn from_str(text: &str) -> Result<Self, AddedError> {
        let (count, like) = match text.split_once(':') {
            Some((count, like)) => (count, Some(like.trim())),
            None => (text, None),
        };
        let count = count.trim().parse().map_err(|_| AddedError)?;
        if count == 0 || count > MOST_ADDED || like.is_some_and(str::is_empty) {
            return Err(AddedError);
        }
        Ok(Self {
            count,
            like: like.map(str::to_owned),
        })
    }
}

/// One column of a comparison.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Variant {
    /// The name of the run.
    pub name: String,
    /// The scheduler configuration, if it differs from the base's.
    pub configuration: Option<Value>,
    /// Nodes to add.
    pub add: Vec<Added>,
    /// Nodes to drain: they take no pods and lose those that they have.
    pub drain: Vec<String>,
}

/// The base with a variant's changes applied.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct World {
    pub(super) happenings: Vec<Happening>,
    pub(super) drained: BTreeSet<String>,
    /// Pods that lost their node.
    pub(super) evicted: u64,
}

impl World {
    /// Applies a variant. With `anew`, every pod loses its node and is placed again, except for pods that were created
    /// for one node.
    pub(super) fn of(
        base: &Base,
        variant: &Variant,
        anew: bool,
        vendors: &Vendors,
    ) -> Result<Self, Refusal> {
        let nodes = base.nodes();
        let drained: BTreeSet<String> = variant.drain.iter().cloned().collect();
        for name in &drained {
            known(base, &nodes, name, "drained")?;
        }
        let mut world = Self {
            happenings: Vec::with_capacity(base.happenings.len()),
            evicted: 0,
            drained,
        };
        let mut taken: BTreeSet<String> = nodes.keys().map(|name| (*name).to_owned()).collect();
        let kind = base.happenings.iter().find(|of| of.is("nodes"));
        for added in &variant.add {
            let like = match &added.like {
                Some(name) => known(base, &nodes, name, "copied")?,
                None => most_common(&nodes, vendors).ok_or_else(|| {
                    Refusal::Impossible(format!("{}: no node to copy", base.name))
                })?,
            };
            let Some(kind) = kind.map(|of| of.kind) else {
                continue;
            };
            for _ in 0..added.count {
                world.happenings.push(Happening {
                    at_ms: 0,
                    kind,
                    object: copy(like, &mut taken),
                    gone: false,
                    lasts_ms: None,
                });
            }
        }
        for happening in &base.happenings {
            world.take(happening, anew, vendors);
        }
        Ok(world)
    }

    fn take(&mut self, happening: &Happening, anew: bool, vendors: &Vendors) {
        let mut happening = happening.clone();
        let node = happening.node().to_owned();
        if happening.is("nodes") && self.drained.contains(happening.name()) {
            if let Some(fields) = happening.object.as_object_mut() {
                let spec = fields.entry("spec").or_insert_with(|| json!({}));
                if !spec.is_object() {
                    *spec = json!({});
                }
                if let Some(spec) = spec.as_object_mut() {
                    spec.insert("unschedulable".into(), true.into());
                }
            }
        } else if happening.is("pods") && !happening.gone && !node.is_empty() {
            let drains = self.drained.contains(&node);
            let bound = is_made_for_its_node(&happening.object);
            if drains && bound {
                return;
            }
            if drains || (anew && !bound) {
                unbind(&mut happening.object, vendors);
            }
            self.evicted += u64::from(drains);
        }
        self.happenings.push(happening);
    }
}

/// The node of this name.
fn known<'a>(
    base: &Base,
    nodes: &BTreeMap<&str, &'a Value>,
    name: &str,
    to_be: &str,
) -> Result<&'a Value, Refusal> {
    if let Some(node) = nodes.get(name) {
        return Ok(node);
    }
    let mut names = String::new();
    for (at, name) in nodes.keys().take(5).enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        write!(names, "{comma}{name}").unwrap_or_default();
    }
    if nodes.len() > 5 {
        write!(names, " and {} more", nodes.len() - 5).unwrap_or_default();
    }
    Err(Refusal::Impossible(format!(
        "{} has no node {name:?} that could be {to_be}; its nodes are {names}",
        base.name
    )))
}

/// Whether the pod was created for its node, and so disappears with it: by a daemon set, or by the kubelet from a file.
fn is_made_for_its_node(pod: &Value) -> bool {
    let owners = pod.pointer("/metadata/ownerReferences");
    let owners = owners.and_then(Value::as_array).into_iter().flatten();
    let daemon = owners
        .into_iter()
        .any(|owner| text(owner, "/kind") == "DaemonSet");
    let mirror = pod
        .pointer("/metadata/annotations/kubernetes.io~1config.mirror")
        .is_some();
    // The controller of daemon sets names a pod's node in this way. Owners may be missing, because an import from a
    // real cluster leaves them out.
    let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let terms = pod.pointer(terms).and_then(Value::as_array);
    let named = terms.into_iter().flatten().any(|term| {
        let fields = term.get("matchFields").and_then(Value::as_array);
        let mut fields = fields.into_iter().flatten();
        fields.any(|field| text(field, "/key") == "metadata.name")
    });
    daemon || mirror || named
}

/// The pod as its controller would create it again.
pub(super) fn unbind(pod: &mut Value, vendors: &Vendors) {
    if let Some(fields) = pod.as_object_mut() {
        fields.remove("status");
    }
    if let Some(spec) = fields_mut(pod, "/spec") {
        spec.remove("nodeName");
    }
    let written: BTreeSet<&str> = vendors.allocation_keys().chain(keys::ALLOCATION).collect();
    for path in ["/metadata/annotations", "/metadata/labels"] {
        if let Some(entries) = fields_mut(pod, path) {
            entries.retain(|key, _| !written.contains(key.as_str()));
        }
    }
}

/// A node of the most common kind: nodes of a kind have the same amounts, GPUs and taints. Of a kind's nodes the first
/// by name; of equally common kinds the one whose first node comes first. Cordoned nodes are ignored if there are
/// others.
fn most_common<'a>(nodes: &BTreeMap<&str, &'a Value>, vendors: &Vendors) -> Option<&'a Value> {
    let cordoned = |node: &Value| node.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
    let all_cordoned = nodes.values().all(|node| cordoned(node));
    let mut kinds: BTreeMap<String, (usize, &str, &'a Value)> = BTreeMap::new();
    for (name, node) in nodes {
        if all_cordoned || !cordoned(node) {
            let kind = kinds.entry(shape(node, vendors)).or_insert((0, name, node));
            kind.0 += 1;
        }
    }
    let most = kinds
        .into_values()
        .max_by(|one, other| one.0.cmp(&other.0).then(other.1.cmp(one.1)));
    most.map(|(_, _, node)| node)
}

/// The properties that two nodes of a kind have in common.
fn shape(node: &Value, vendors: &Vendors) -> String {
    let devices: Vec<_> = match Node::deserialize(node) {
        Ok(node) => kube_api::node::report(&node, vendors)
            .node
            .devices
            .into_iter()
            .map(|device| {
                (
                    device.vendor,
                    device.model,
                    device.memory_bytes,
                    device.cores,
                )
            })
            .collect(),
        Err(_) => Vec::new(),
    };
    let part = |path: &str| node.pointer(path).map(Value::to_string);
    format!(
        "{:?} {:?} {devices:?}",
        part("/status/allocatable").or_else(|| part("/status/capacity")),
        taints(node),
    )
}

/// The taints that express a node's purpose, not its condition.
fn taints(node: &Value) -> Vec<Value> {
    let taints = node.pointer("/spec/taints").and_then(Value::as_array);
    let taints = taints.into_iter().flatten();
    taints
        .filter(|taint| {
            let key = text(taint, "/key");
            !key.starts_with("node.kubernetes.io/")
                && !key.starts_with("node.cloudprovider.kubernetes.io/")
        })
        .cloned()
        .collect()
}

/// A new node like this one, ready and not cordoned.
fn copy(like: &Value, taken: &mut BTreeSet<String>) -> Value {
    let origin = text(like, "/metadata/name");
    let mut number = 1_u32;
    let name = loop {
        let name = format!("{origin}-copy-{number}");
        if taken.insert(name.clone()) {
            break name;
        }
        number += 1;
    };
    let mut node = like.clone();
    if let Some(metadata) = fields_mut(&mut node, "/metadata") {
        metadata.retain(|field, _| matches!(field.as_str(), "labels" | "annotations"));
        metadata.insert("name".into(), name.as_str().into());
    }
    if let Some(labels) = fields_mut(&mut node, "/metadata/labels")
        && labels.contains_key("kubernetes.io/hostname")
    {
        labels.insert("kubernetes.io/hostname".into(), name.into());
    }
    let kept = taints(like);
    if let Some(spec) = fields_mut(&mut node, "/spec") {
        spec.retain(|field, _| field == "taints");
        spec.insert("taints".into(), kept.into());
    }
    if let Some(status) = fields_mut(&mut node, "/status") {
        status.retain(|field, _| {
            matches!(
                field.as_str(),
                "allocatable" | "capacity" | "images" | "nodeInfo"
            )
        });
    }
    node
}

#[cfg(test)]
mod tests {
    use kube_api::config::DeviceConfig;
    use kube_api::vendor::Switches;

    use super::super::super::import::Import;
    use super::*;

    fn vendors() -> Vendors {
        let switches = Switches {
            ascend: true,
            iluvatar: true,
        };
        Vendors::new(DeviceConfig::standard(), switches).unwrap()
    }

    fn node(name: &str, cpu: &str) -> Value {
        json!({
            "metadata": { "name": name, "uid": "u", "labels": { "kubernetes.io/hostname": name, "pool": "a" } },
            "spec": { "providerID": "x", "taints": [{ "key": "gpu", "effect": "NoSchedule" }] },
            "status": { "allocatable": { "cpu": cpu }, "addresses": [{ "address": name }] },
        })
    }

    fn pod(name: &str, node: &str) -> Value {
        json!({
            "metadata": { "name": name, "annotations": {
                "hami.io/vgpu-node": node, "hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,10,1:;", "a": "b",
            } },
            "spec": { "nodeName": node, "containers": [] },
            "status": { "phase": "Running" },
        })
    }

    fn base(nodes: Vec<Value>, pods: Vec<Value>) -> Base {
        let import = Import::read(json!({ "nodes": nodes, "pods": pods })).unwrap();
        Base::of_export("base.yaml", import)
    }

    fn world(base: &Base, variant: &Variant) -> Result<World, Refusal> {
        World::of(base, variant, false, &vendors())
    }

    #[test]
    fn only_a_number_and_a_node_can_be_added() {
        let read = |text: &str| text.parse::<Added>();

        assert_eq!(
            read("2"),
            Ok(Added {
                count: 2,
                like: None
            })
        );
        assert_eq!(
            read("3:gpu-1"),
            Ok(Added {
                count: 3,
                like: Some("gpu-1".into())
            })
        );
        for wrong in ["0", "", "-1", "two", "2:", ":n", "99999999", "10001", "1.5"] {
            assert_eq!(read(wrong), Err(AddedError), "{wrong}");
        }
        assert!(AddedError.to_string().contains("1 to 10000"));
    }

    #[test]
    fn the_most_common_kind_of_node_is_copied() {
        let base = base(
            vec![node("a", "96"), node("b", "8"), node("c", "8")],
            vec![],
        );
        let variant = Variant {
            add: vec!["2".parse().unwrap(), "1:a".parse().unwrap()],
            ..Variant::default()
        };

        let world = world(&base, &variant).unwrap();

        let added = &world.happenings[..3];
        let names: Vec<_> = added.iter().map(Happening::name).collect();
        assert_eq!(names, ["b-copy-1", "b-copy-2", "a-copy-1"]);
        let copy = &added[0].object;
        assert_eq!(
            copy["metadata"]["labels"]["kubernetes.io/hostname"],
            "b-copy-1"
        );
        assert_eq!(copy["metadata"]["labels"]["pool"], "a");
        assert!(copy["metadata"].get("uid").is_none());
        assert_eq!(copy["spec"]["taints"][0]["key"], "gpu");
        assert!(copy["spec"].get("providerID").is_none());
        assert!(copy["status"].get("addresses").is_none());
    }

    #[test]
    fn a_copy_of_a_sick_node_is_well() {
        let mut sick = node("n", "8");
        sick["spec"]["unschedulable"] = true.into();
        sick["spec"]["taints"] =
            json!([{ "key": "node.kubernetes.io/not-ready" }, { "key": "gpu" }]);

        let copied = copy(&sick, &mut BTreeSet::new());

        assert_eq!(copied["spec"], json!({ "taints": [{ "key": "gpu" }] }));
        let only = BTreeMap::from([("n", &sick)]);
        assert!(most_common(&only, &vendors()).is_some());
    }

    #[test]
    fn a_drained_node_is_cordoned_and_its_pods_wait() {
        let mut daemon = pod("daemon", "n1");
        daemon["metadata"]["ownerReferences"] = json!([{ "kind": "DaemonSet" }]);
        let base = base(
            vec![node("n1", "8"), node("n2", "8")],
            vec![pod("p", "n1"), pod("stays", "n2"), daemon],
        );
        let variant = Variant {
            drain: vec!["n1".into()],
            ..Variant::default()
        };

        let world = world(&base, &variant).unwrap();

        assert_eq!(world.evicted, 1);
        let of = |name: &str| {
            let found = world.happenings.iter().find(|of| of.name() == name);
            found.map(|of| of.object.clone())
        };
        assert_eq!(of("n1").unwrap()["spec"]["unschedulable"], true);
        let evicted = of("p").unwrap();
        assert!(evicted["spec"].get("nodeName").is_none());
        assert_eq!(evicted["metadata"]["annotations"], json!({ "a": "b" }));
        assert_eq!(of("stays").unwrap()["spec"]["nodeName"], "n2");
        assert_eq!(of("daemon"), None, "it goes with its node");
    }

    #[test]
    fn placed_anew_all_pods_wait_but_those_of_daemon_sets() {
        let mut daemon = pod("daemon", "n1");
        daemon["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!({ "nodeSelectorTerms": [{ "matchFields": [{ "key": "metadata.name" }] }] });
        let base = base(vec![node("n1", "8")], vec![pod("p", "n1"), daemon]);

        let world = World::of(&base, &Variant::default(), true, &vendors()).unwrap();

        let nodes: Vec<_> = world.happenings.iter().map(Happening::node).collect();
        assert_eq!(nodes, ["", "", "n1"]);
        assert_eq!(world.evicted, 0);
    }

    #[test]
    fn a_node_that_is_not_there_is_named_with_those_that_are() {
        let nodes = (0..7).map(|at| node(&format!("n{at}"), "8")).collect();
        let base = base(nodes, vec![]);
        let drain = Variant {
            drain: vec!["n9".into()],
            ..Variant::default()
        };
        let add = Variant {
            add: vec!["1:gpu".parse().unwrap()],
            ..Variant::default()
        };

        assert_eq!(
            world(&base, &drain).unwrap_err().to_string(),
            "base.yaml has no node \"n9\" that could be drained; its nodes are n0, n1, n2, n3, n4 and 2 more"
        );
        assert!(
            world(&base, &add)
                .unwrap_err()
                .to_string()
                .contains("\"gpu\" that could be copied")
        );
    }
}
