//! A pod as a question to the engine. Never where it goes, and never whether it may ask.

use std::sync::Arc;

use placement::{DevicePolicy, Key, Kind, NodePolicy, Request, Weights};

use crate::hcs::keys as hcs_keys;
use crate::hcs::request as hcs;
use crate::keys;
use crate::object::{Container, Pod};
use crate::quantity::{Amount, Form, shortened};
use crate::vendor::{Role, Vendors};

/// What holds where the pod says nothing, by the scheduler's flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// `binpack` or `spread`.
    pub node_policy: String,
    /// `spread`, `binpack`, `mutex`, `topology-aware`, or a list such as `binpack,numa`.
    pub device_policy: String,
}

/// Those of the reference.
impl Default for Defaults {
    fn default() -> Self {
        Self {
            node_policy: "binpack".to_owned(),
            device_policy: "spread".to_owned(),
        }
    }
}

/// Why a pod's request cannot be understood. It fits nowhere until the pod is written anew.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// An amount that is no amount, or none of this resource.
    #[error("container {container}: {resource}: {problem}")]
    Amount {
        /// Name of the container.
        container: String,
        /// Name of the resource.
        resource: String,
        /// What was read, what is accepted.
        problem: String,
    },
    /// An annotation that says nothing that we know.
    #[error("invalid {key} annotation {value:?}: {problem}")]
    Annotation {
        /// Its key.
        key: String,
        /// What it says.
        value: String,
        /// What is accepted.
        problem: String,
    },
}

/// What the pod's annotations ask for, whatever the vendor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PodRules {
    /// Which cards come first.
    pub(crate) policy: DevicePolicy,
    /// What counts how much in a card's score.
    pub(crate) weights: Weights,
}

/// How many times the containers of a pod may ask for devices. What a question costs grows with it, and every pod of
/// the cluster waits while one is answered.
const MOST_ASKING: usize = 64;

/// What the pod asks for. It asks for nothing when `asks_for_devices` says so.
///
/// # Errors
///
/// When an amount or an annotation cannot be read. Annotations are only judged where the pod asks for a device.
pub fn request(pod: &Pod, vendors: &Vendors, defaults: &Defaults) -> Result<Request, RequestError> {
    let mut rules = PodRules {
        policy: device_policy(
            annotation(pod, keys::DEVICE_POLICY).unwrap_or(&defaults.device_policy),
        ),
        weights: Weights::default(),
    };
    let weights = match annotation(pod, keys::SCORING_WEIGHTS) {
        Some(text) => weights(text),
        None => Ok(Weights::default()),
    };
    if let Ok(weights) = &weights {
        rules.weights = *weights;
    }
    let mut containers = Vec::new();
    let mut asking = 0;
    let mut wishes = Vec::new();
    for (position, (container, kind)) in in_order(pod).enumerate() {
        let mut asks = Vec::new();
        let wish = match vendors.hcs() {
            Some(_) => hcs::asked(container, vendors)?,
            None => None,
        };
        if let Some(wish) = wish {
            wishes.push((position, container, wish));
            asking += 1;
            if asking > MOST_ASKING {
                return Err(too_many(container, hcs_keys::DEVICES));
            }
        }
        // Beside a demand on any vendor, a vendor's own name is only for its device plugin.
        let rows = vendors.named_by(container).filter(|_| wish.is_none());
        for row in rows {
            let Some(ask) = row.ask(container, pod, &rules)? else {
                continue;
            };
            asks.push(ask);
            asking += 1;
            if asking > MOST_ASKING {
                return Err(too_many(
                    container,
                    row.resource(Role::Count).unwrap_or(&row.word),
                ));
            }
        }
        containers.push(placement::Container {
            name: container.name.clone(),
            kind,
            asks,
        });
    }
    let any = match vendors.hcs() {
        Some(hcs) if !wishes.is_empty() => Some(Arc::new(hcs::any_vendor(
            pod, &wishes, vendors, hcs, &rules,
        )?)),
        _ => None,
    };
    let request = Request {
        any,
        pod: identity(pod),
        containers,
        node_policy: node_policy(
            annotation(pod, keys::NODE_POLICY).unwrap_or(&defaults.node_policy),
        ),
    };
    match weights {
        Err(error) if request.asks_for_devices() => Err(error),
        _ => Ok(request),
    }
}

fn too_many(container: &Container, resource: &str) -> RequestError {
    wrong_amount(
        container,
        resource,
        format!(
            "the pod asks for devices more than {MOST_ASKING} times; at most {MOST_ASKING} containers of a pod may, so put the others into a pod of their own"
        ),
    )
}

/// The pod as the engine knows it. A pod without a uid is known by namespace and name.
pub fn identity(pod: &Pod) -> placement::Pod {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    match pod.metadata.uid.as_deref() {
        Some(uid) if !uid.is_empty() => placement::Pod {
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        },
        _ => placement::Pod::named(namespace, name),
    }
}

/// Init containers and sidecars, then the others: the order of every list that goes by container.
pub(crate) fn in_order(pod: &Pod) -> impl Iterator<Item = (&Container, Kind)> {
    let before = pod.spec.init_containers.iter().map(|container| {
        let kind = if container.is_sidecar() {
            Kind::Sidecar
        } else {
            Kind::Init
        };
        (container, kind)
    });
    let beside = pod.spec.containers.iter();
    before.chain(beside.map(|container| (container, Kind::App)))
}

/// The annotation, unless it is empty.
pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    let text = pod.metadata.annotations.as_ref()?.get(key)?.trim();
    (!text.is_empty()).then_some(text)
}

/// The parts of a list with commas, without those that are empty.
pub fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
}

/// What the lists under these keys name together.
pub(crate) fn listed(pod: &Pod, keys: &[String]) -> Vec<String> {
    keys.iter()
        .filter_map(|key| annotation(pod, key))
        .flat_map(list)
        .map(str::to_owned)
        .collect()
}

/// Words as Go's `strconv.ParseBool` knows them.
pub(crate) fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Unknown words are `binpack`, as in the reference.
fn node_policy(word: &str) -> NodePolicy {
    match word {
        "spread" => NodePolicy::Spread,
        _ => NodePolicy::Binpack,
    }
}

/// Unknown words are `spread`, as in the reference.
fn device_policy(word: &str) -> DevicePolicy {
    if word.contains(',') {
        return DevicePolicy::Chain(
            list(word)
                .map(|word| match word {
                    "binpack" => Key::Binpack,
                    "numa" => Key::Numa,
                    "mutex" => Key::FewestContainers,
                    _ => Key::Spread,
                })
                .collect(),
        );
    }
    match word {
        "binpack" => DevicePolicy::Binpack,
        "mutex" => DevicePolicy::Mutex,
        "topology-aware" => DevicePolicy::TopologyAware,
        _ => DevicePolicy::Spread,
    }
}

/// `slot=1,core=1,memory=3`. The texts of the errors are those that users of the reference know.
fn weights(text: &str) -> Result<Weights, RequestError> {
    let wrong = |problem: String| RequestError::Annotation {
        key: keys::SCORING_WEIGHTS.to_owned(),
        value: shortened(text),
        problem,
    };
    let (mut slots, mut cores, mut memory) = (None, None, None);
    for part in list(text) {
        let Some((name, number)) = part.split_once('=') else {
            return Err(wrong(format!(
                "{:?} is no weight; write name=number",
                shortened(part)
            )));
        };
        let place = match name.trim() {
            "slot" => &mut slots,
            "core" => &mut cores,
            "memory" => &mut memory,
            other => {
                return Err(wrong(format!(
                    "unknown weight {:?}; accepted are slot, core and memory",
                    shortened(other)
                )));
            }
        };
        let Ok(number) = number.trim().parse::<u32>() else {
            return Err(wrong(format!(
                "{:?} is no weight; write a whole number of 0 or more",
                shortened(number)
            )));
        };
        if place.replace(number).is_some() {
            return Err(wrong(format!("weight {} is given twice", name.trim())));
        }
    }
    match (slots, cores, memory) {
        (Some(0), Some(0), Some(0)) => {
            Err(wrong("at least one weight must be positive".to_owned()))
        }
        (Some(slots), Some(cores), Some(memory)) => Ok(Weights {
            slots,
            cores,
            memory,
        }),
        _ => Err(wrong("expected slot, core, and memory weights".to_owned())),
    }
}

/// The amount of a resource, as it is written.
pub(crate) fn amount(
    container: &Container,
    resource: Option<&str>,
) -> Result<Option<Amount>, RequestError> {
    let Some(resource) = resource else {
        return Ok(None);
    };
    let Some(quantity) = container.amount(resource) else {
        return Ok(None);
    };
    quantity
        .parse()
        .map(Some)
        .map_err(|error| wrong_amount(container, resource, error.to_string()))
}

/// The whole amount of a resource.
pub(crate) fn whole(
    container: &Container,
    resource: Option<&str>,
) -> Result<Option<i64>, RequestError> {
    let Some(amount) = amount(container, resource)? else {
        return Ok(None);
    };
    match amount.whole().and_then(|whole| i64::try_from(whole).ok()) {
        Some(whole) => Ok(Some(whole)),
        None => {
            let resource = resource.unwrap_or_default();
            let written = written(container, resource);
            Err(wrong_amount(
                container,
                resource,
                format!("{written} is no whole number; write one such as 1"),
            ))
        }
    }
}

/// The amount of a memory resource in MiB: what has a binary suffix means those bytes, all else counts units.
pub(crate) fn mebibytes(
    container: &Container,
    resource: Option<&str>,
    unit_mib: u64,
) -> Result<Option<u64>, RequestError> {
    const MIB: i128 = 1 << 20;
    const MOST_MIB: i128 = i32::MAX as i128;
    let Some(amount) = amount(container, resource)? else {
        return Ok(None);
    };
    let resource = resource.unwrap_or_default();
    let wrong = |problem: &str| {
        let written = written(container, resource);
        Err(wrong_amount(
            container,
            resource,
            format!("{written} {problem}"),
        ))
    };
    if amount.is_negative() {
        return wrong("is below 0; write 0 for the whole card, or a number of MiB");
    }
    let Some(whole) = amount.whole() else {
        return wrong("is no whole number; write a number of MiB such as 3000, or 16Gi");
    };
    let mib = match amount.form {
        Form::Binary if whole % MIB == 0 => whole / MIB,
        Form::Binary => return wrong("is no whole number of MiB; write one such as 16Gi or 512Mi"),
        Form::Decimal => whole.saturating_mul(i128::from(unit_mib)),
    };
    match u64::try_from(mib) {
        Ok(mib) if i128::from(mib) <= MOST_MIB => Ok(Some(mib)),
        _ => wrong(
            "is more than 2147483647 MiB, the most of one card; a number without a suffix counts MiB, so write 16Gi for 16 GiB",
        ),
    }
}

fn written(container: &Container, resource: &str) -> String {
    container
        .amount(resource)
        .map(|quantity| shortened(&quantity.0))
        .unwrap_or_default()
}

pub(crate) fn wrong_amount(container: &Container, resource: &str, problem: String) -> RequestError {
    RequestError::Amount {
        container: container.name.clone(),
        resource: resource.to_owned(),
        problem,
    }
}
