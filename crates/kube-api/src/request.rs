//! Reads a pod as a [`Request`]. Decides neither where it goes nor whether it may ask.

use std::sync::Arc;

use placement::{DevicePolicy, Key, NodePolicy, Request, Weights};

use crate::fields::{PodRules, annotation, in_order, wrong_amount};
use crate::hcs::keys as hcs_keys;
use crate::hcs_request as hcs;
use crate::keys;
use crate::object::{Container, Pod};
use crate::quantity::shortened;
use crate::vendor::{Role, Vendors};

pub use crate::fields::{RequestError, identity, list};

/// The policies of pods that name none, from the scheduler's flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// `binpack` or `spread`.
    pub node_policy: String,
    /// `spread`, `binpack`, `mutex`, `topology-aware`, or a list such as `binpack,numa`.
    pub device_policy: String,
}

/// HAMi's defaults.
impl Default for Defaults {
    fn default() -> Self {
        Self {
            node_policy: "binpack".to_owned(),
            device_policy: "spread".to_owned(),
        }
    }
}

/// The most asks for devices that a pod may have. The cost of a request grows with them, and all pods of the cluster
/// wait while one is answered.
const MOST_ASKING: usize = 64;

/// The pod's request, which may ask for no devices ([`Request::asks_for_devices`]).
///
/// # Errors
///
/// An amount or an annotation cannot be read. Annotations are only checked if the pod asks for a device.
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
        // If a container asks for any vendor, a vendor's own resource is only for its device plugin.
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

/// Unknown words mean `binpack`, as in HAMi.
fn node_policy(word: &str) -> NodePolicy {
    match word {
        "spread" => NodePolicy::Spread,
        _ => NodePolicy::Binpack,
    }
}

/// Unknown words mean `spread`, as in HAMi.
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

/// Parses `slot=1,core=1,memory=3`. The error texts are HAMi's.
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
