//! Bodies to values and back. Keys in any case, as Go reads them.

use std::collections::BTreeMap;
use std::fmt;

use kube_api::extender::{ExtenderArgs, ExtenderBindingArgs, ExtenderPreemptionArgs, Victims};
use kube_api::object::Pod;
use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// An object's fields, their names in lower case. Of two fields of one name the last counts.
struct Fields(BTreeMap<String, Box<RawValue>>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_unit<E: Error>(self) -> Result<Fields, E> {
                Ok(Fields(BTreeMap::new()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    fields.insert(key.to_ascii_lowercase(), value);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl Fields {
    fn read(body: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(body)
            .map_err(|error| format!("the request's body cannot be read: {error}"))
    }

    /// The field; the default where it is not there or null.
    fn take<T: DeserializeOwned + Default>(&mut self, name: &str) -> Result<T, String> {
        let Some(value) = self.0.remove(name) else {
            return Ok(T::default());
        };
        serde_json::from_str::<Option<T>>(value.get())
            .map(Option::unwrap_or_default)
            .map_err(|error| format!("the request's body cannot be read: {name}: {error}"))
    }
}

pub(super) fn filter_args(body: &[u8]) -> Result<ExtenderArgs, String> {
    let mut fields = Fields::read(body)?;
    let nodes: Option<Fields> = fields.take("nodes")?;
    let nodes = match nodes {
        Some(mut list) => Some(list.take::<Vec<Box<RawValue>>>("items")?),
        None => None,
    };
    Ok(ExtenderArgs {
        pod: fields.take::<Option<Pod>>("pod")?,
        nodes,
        node_names: fields.take("nodenames")?,
    })
}

pub(super) fn binding_args(body: &[u8]) -> Result<ExtenderBindingArgs, String> {
    let mut fields = Fields::read(body)?;
    Ok(ExtenderBindingArgs {
        pod_name: fields.take("podname")?,
        pod_namespace: fields.take("podnamespace")?,
        pod_uid: fields.take("poduid")?,
        node: fields.take("node")?,
    })
}

pub(super) fn preemption_args(body: &[u8]) -> Result<ExtenderPreemptionArgs, String> {
    let mut fields = Fields::read(body)?;
    let pod = fields.take::<Option<Pod>>("pod")?;
    let mut victims = BTreeMap::new();
    let named: BTreeMap<String, Fields> = fields.take("nodenametometavictims")?;
    let whole: BTreeMap<String, Fields> = fields.take("nodenametovictims")?;
    for (node, mut of) in whole.into_iter().chain(named) {
        let pods: Vec<Fields> = of.take("pods")?;
        let mut uids = Vec::with_capacity(pods.len());
        for mut pod in pods {
            let uid: String = pod.take("uid")?;
            let mut metadata: Fields = pod
                .take::<Option<Fields>>("metadata")?
                .unwrap_or(Fields(BTreeMap::new()));
            let inner: String = metadata.take("uid")?;
            uids.push(if uid.is_empty() { inner } else { uid });
        }
        let num_pdb_violations = of.take("numpdbviolations")?;
        victims.insert(
            node,
            Victims {
                uids,
                num_pdb_violations,
            },
        );
    }
    Ok(ExtenderPreemptionArgs { pod, victims })
}

/// Answer to `POST /preempt`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct PreemptionResult {
    node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

#[derive(Serialize)]
struct MetaVictims {
    #[serde(rename = "Pods")]
    pods: Vec<MetaPod>,
    #[serde(rename = "NumPDBViolations")]
    num_pdb_violations: i64,
}

#[derive(Serialize)]
struct MetaPod {
    #[serde(rename = "UID")]
    uid: String,
}

pub(super) fn preemption_result(victims: BTreeMap<String, Victims>) -> PreemptionResult {
    PreemptionResult {
        node_name_to_meta_victims: victims
            .into_iter()
            .map(|(node, victims)| {
                let of = MetaVictims {
                    pods: victims
                        .uids
                        .into_iter()
                        .map(|uid| MetaPod { uid })
                        .collect(),
                    num_pdb_violations: victims.num_pdb_violations,
                };
                (node, of)
            })
            .collect(),
    }
}
