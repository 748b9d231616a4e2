//! The request and response bodies of a kube-scheduler extender. Keys are read in any case and written in upper case.
//! Does not decide any answer.
//!
//! The types follow `k8s.io/kube-scheduler/extender/v1`. As in Go's decoder, null means absent and unknown keys are
//! ignored.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, IgnoredAny, MapAccess};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::object::Pod;

/// `POST /filter` and `POST /prioritize`.
#[derive(Debug, Default)]
pub struct ExtenderArgs {
    /// The pod that needs a node.
    pub pod: Option<Pod>,
    /// Whole nodes as they were sent; `None` if names are given.
    pub nodes: Option<Vec<Box<RawValue>>>,
    /// Names of nodes, from a caller that relies on our own cache of nodes.
    pub node_names: Option<Vec<String>>,
}

/// Answer to `POST /filter`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderFilterResult {
    /// `{"items": [...]}` if the request had whole nodes.
    pub nodes: Option<NodeList>,
    /// Names if the request had names.
    pub node_names: Option<Vec<String>>,
    /// Reasons by node, for nodes on which evicting pods may help.
    pub failed_nodes: Option<BTreeMap<String, String>>,
    /// Reasons by node, for nodes on which evicting pods cannot help.
    pub failed_and_unresolvable_nodes: Option<BTreeMap<String, String>>,
    /// Empty, or why the request could not be answered.
    pub error: String,
}

/// Whole nodes as they were sent.
#[derive(Debug, Default, Serialize)]
pub struct NodeList {
    /// The nodes.
    pub items: Vec<Box<RawValue>>,
}

/// `POST /bind`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExtenderBindingArgs {
    /// Name of the pod.
    pub pod_name: String,
    /// Its namespace.
    pub pod_namespace: String,
    /// Its uid.
    pub pod_uid: String,
    /// The chosen node.
    pub node: String,
}

/// Answer to `POST /bind`, and to a body that cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderBindingResult {
    /// Empty, or why the pod was not bound.
    pub error: String,
}

/// One entry of the answer to `POST /prioritize`: 0 to 10, more is better.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostPriority {
    /// Name of the node.
    pub host: String,
    /// 0 to 10.
    pub score: i64,
}

/// `POST /preempt`.
#[derive(Debug, Default)]
pub struct ExtenderPreemptionArgs {
    /// The pod that needs a node.
    pub pod: Option<Pod>,
    /// By node, the uids of the pods that would be evicted, and the number of disruption budgets that this breaks.
    /// Whole pods (`NodeNameToVictims`) are read as their uids; if a node is in both, `NodeNameToMetaVictims` is
    /// used.
    pub victims: BTreeMap<String, Victims>,
}

/// The pods that would be evicted from a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Victims {
    /// Uids, in the order given.
    pub uids: Vec<String>,
    /// The number of disruption budgets that this breaks.
    pub num_pdb_violations: i64,
}

/// Answer to `POST /preempt`: the nodes on which evicting these pods makes room.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderPreemptionResult {
    /// The pods to evict, by node.
    pub node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

/// The pods to evict from a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MetaVictims {
    /// The pods.
    #[serde(rename = "Pods")]
    pub pods: Vec<MetaPod>,
    /// The number of disruption budgets that this breaks.
    #[serde(rename = "NumPDBViolations")]
    pub num_pdb_violations: i64,
}

/// A pod by its uid.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MetaPod {
    /// The uid.
    #[serde(rename = "UID")]
    pub uid: String,
}

impl From<&Victims> for MetaVictims {
    fn from(victims: &Victims) -> Self {
        Self {
            pods: victims
                .uids
                .iter()
                .map(|uid| MetaPod { uid: uid.clone() })
                .collect(),
            num_pdb_violations: victims.num_pdb_violations,
        }
    }
}

/// An object whose keys are read in any case.
trait AnyCase: Default {
    /// The expected value, for error messages.
    const EXPECTED: &'static str;

    /// Reads the value of this key (in lower case) and returns true; returns false for an unknown key, without
    /// reading.
    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error>;
}

fn any_case<'de, D: Deserializer<'de>, T: AnyCase>(deserializer: D) -> Result<T, D::Error> {
    struct Visitor<T>(PhantomData<T>);

    impl<'de, T: AnyCase> de::Visitor<'de> for Visitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(T::EXPECTED)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
            let mut value = T::default();
            while let Some(mut key) = map.next_key::<String>()? {
                key.make_ascii_lowercase();
                if !value.take(&key, &mut map)? {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(value)
        }

        fn visit_unit<E: de::Error>(self) -> Result<T, E> {
            Ok(T::default())
        }
    }

    deserializer.deserialize_any(Visitor(PhantomData))
}

macro_rules! any_case {
    ($($kind:ty),+) => {$(
        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                any_case(deserializer)
            }
        }
    )+};
}

any_case!(
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderPreemptionArgs,
    Items,
    Victims,
    Victim,
    VictimMetadata
);

/// Reads null as the default.
fn value<'de, A: MapAccess<'de>, T: Deserialize<'de> + Default>(
    map: &mut A,
) -> Result<T, A::Error> {
    Ok(map.next_value::<Option<T>>()?.unwrap_or_default())
}

impl AnyCase for ExtenderArgs {
    const EXPECTED: &'static str = "an object with Pod and NodeNames or Nodes";

    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "pod" => self.pod = map.next_value()?,
            "nodes" => {
                self.nodes = map.next_value::<Option<Items>>()?.map(|list| list.items);
            }
            "nodenames" => {
                self.node_names = map
                    .next_value::<Option<Vec<Option<String>>>>()?
                    .map(|names| names.into_iter().map(Option::unwrap_or_default).collect());
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Nodes as they were sent.
#[derive(Default)]
struct Items {
    items: Vec<Box<RawValue>>,
}

impl AnyCase for Items {
    const EXPECTED: &'static str = "a list of nodes under items";

    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "items" => self.items = value(map)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl AnyCase for ExtenderBindingArgs {
    const EXPECTED: &'static str = "an object with PodName, PodNamespace, PodUID and Node";

    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "podname" => self.pod_name = value(map)?,
            "podnamespace" => self.pod_namespace = value(map)?,
            "poduid" => self.pod_uid = value(map)?,
            "node" => self.node = value(map)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl AnyCase for ExtenderPreemptionArgs {
    const EXPECTED: &'static str =
        "an object with Pod and NodeNameToMetaVictims or NodeNameToVictims";

    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "pod" => self.pod = map.next_value()?,
            "nodenametometavictims" => {
                let named: BTreeMap<String, Option<Victims>> = value(map)?;
                self.victims.extend(named.into_iter().map(or_no_victims));
            }
            "nodenametovictims" => {
                let whole: BTreeMap<String, Option<Victims>> = value(map)?;
                for (node, victims) in whole.into_iter().map(or_no_victims) {
                    self.victims.entry(node).or_insert(victims);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn or_no_victims((node, victims): (String, Option<Victims>)) -> (String, Victims) {
    (node, victims.unwrap_or_default())
}

impl AnyCase for Victims {
    const EXPECTED: &'static str = "an object with Pods and NumPDBViolations";

    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "pods" => {
                let pods: Vec<Option<Victim>> = value(map)?;
                self.uids = pods.into_iter().flatten().map(|pod| pod.uid).collect();
            }
            "numpdbviolations" => self.num_pdb_violations = value(map)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// A pod of which only the uid is read, whether it is a whole pod or only a uid.
#[derive(Default)]
struct Victim {
    uid: String,
}

impl AnyCase for Victim {
    const EXPECTED: &'static str = "a pod";

    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "uid" => self.uid = value(map)?,
            "metadata" => self.uid = value::<A, VictimMetadata>(map)?.uid,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[derive(Default)]
struct VictimMetadata {
    uid: String,
}

impl AnyCase for VictimMetadata {
    const EXPECTED: &'static str = "a pod's metadata";

    fn take<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "uid" => self.uid = value(map)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}
