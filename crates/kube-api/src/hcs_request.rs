//! A pod's `ai.compute/*` amounts as a request to the engine: the demand over all its devices, the accepted vendors,
//! and the resulting ask for each vendor. Does not decide which device it gets.

use std::sync::Arc;

use placement::exchange::Maker;
use placement::{
    AnyVendor, Ask, Compute, Demand, DevicePolicy, Family, Memory, Vendor as Word, Wish,
};

use crate::config::{ANY, Hcs};
use crate::fields::{PodRules, RequestError, annotation, wrong_amount};
use crate::hcs::rules::{Rules, maker_of};
use crate::hcs::{error, keys};
use crate::object::{Container, Pod, ResourceNeeds};
use crate::quantity::{MIB, Quantity, shortened};
use crate::vendor::{Role, Row, Vendors};

/// The most devices of one container.
pub const MOST_DEVICES: u32 = 64;
/// The most devices over which a demand is split if the container names no number.
const MOST_CHOSEN: u32 = 16;
/// The most memory of one container, in bytes.
const MOST_BYTES: i128 = 1 << 46;
/// The most compute of one container, in GFLOPS.
const MOST_GFLOPS: i128 = 1_000_000_000;

/// The pod's preferences about vendors and connections, from its annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preferences {
    /// The preferred vendor; `None` if all are equal.
    pub vendor: Option<Maker>,
    /// Whether other vendors are accepted.
    pub downgrade: bool,
    /// How several devices should be connected.
    pub topology: Topology,
}

/// How several devices of a container should be connected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Topology {
    /// In any way.
    #[default]
    Any,
    /// Connected by the fastest links.
    HighBandwidth,
    /// On one NUMA node.
    LowLatency,
}

impl Preferences {
    /// Whether this vendor is accepted, and its order: 0 comes first.
    pub fn tier(&self, maker: Maker) -> Option<u32> {
        match self.vendor {
            None => Some(0),
            Some(preferred) if preferred == maker => Some(0),
            Some(_) => self.downgrade.then_some(1),
        }
    }
}

/// The preferences in the pod's annotations.
///
/// # Errors
///
/// An annotation has a value that the API does not know.
pub fn preferences(pod: &Pod, config: &Hcs) -> Result<Preferences, RequestError> {
    let wrong = |key: &str, value: &str, problem: String| RequestError::Annotation {
        key: key.to_owned(),
        value: shortened(value),
        problem,
    };
    let word = annotation(pod, keys::VENDOR_PREFERENCE).unwrap_or(&config.default_vendor);
    let vendor = match word {
        ANY | "" => None,
        word => Some(Maker::parse(word).ok_or_else(|| {
            wrong(
                keys::VENDOR_PREFERENCE,
                word,
                format!(
                    "{}: accepted are nvidia, huawei, hygon, cambricon and any",
                    error::VENDOR_NOT_SUPPORTED
                ),
            )
        })?),
    };
    let downgrade = switch(pod, keys::ALLOW_DOWNGRADE)?.unwrap_or(config.allow_downgrade);
    let topology = match annotation(pod, keys::TOPOLOGY_PREFERENCE) {
        None => Topology::Any,
        Some("high-bandwidth") => Topology::HighBandwidth,
        Some("low-latency") => Topology::LowLatency,
        Some(other) => {
            return Err(wrong(
                keys::TOPOLOGY_PREFERENCE,
                other,
                "accepted are high-bandwidth and low-latency".to_owned(),
            ));
        }
    };
    Ok(Preferences {
        vendor,
        downgrade,
        topology,
    })
}

/// An annotation that is `true` or `false`.
///
/// # Errors
///
/// The annotation has another value.
pub fn switch(pod: &Pod, key: &str) -> Result<Option<bool>, RequestError> {
    match annotation(pod, key) {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(other) => Err(RequestError::Annotation {
            key: key.to_owned(),
            value: shortened(other),
            problem: "accepted are \"true\" and \"false\"".to_owned(),
        }),
    }
}

/// Whether the container names an abstract resource.
pub fn is_abstract(container: &Container) -> bool {
    keys::RESOURCES
        .iter()
        .any(|name| amount_of(container, name).is_some())
}

/// The request, else the limit, because the limit may be a burst above the request.
fn amount_of<'a>(container: &'a Container, name: &str) -> Option<&'a Quantity> {
    let needs = &container.resources;
    needs.requests.get(name).or_else(|| needs.limits.get(name))
}

/// Names of whole devices that are not in the device configuration, each with its vendor.
const ALIASES: [(&str, Maker); 4] = [
    (keys::HUAWEI_ASCEND, Maker::Huawei),
    (keys::HUAWEI_NPU, Maker::Huawei),
    (keys::HYGON_DCU, Maker::Hygon),
    (keys::CAMBRICON_MLU, Maker::Cambricon),
];

/// Whether requests of hcs.io use this resource: the abstract names, and vendors' names that are not in the device
/// configuration.
pub fn is_resource(name: &str, vendors: &Vendors) -> bool {
    vendors.hcs().is_some()
        && (keys::RESOURCES.contains(&name)
            || (ALIASES.iter().any(|(alias, _)| *alias == name)
                && vendors.of_resource(name).is_none()))
}

/// All names that requests of hcs.io use; empty if such requests are not read.
pub fn names(vendors: &Vendors) -> impl Iterator<Item = &str> {
    let aliases = ALIASES.iter().map(|(name, _): &(&str, _)| *name);
    let names = keys::RESOURCES.into_iter().chain(aliases);
    names.filter(|name| is_resource(name, vendors))
}

/// The request of one container, all empty if it uses no name of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// The demand over all its devices.
    pub demand: Demand,
    /// The only accepted vendor, if the container uses a vendor's own name.
    pub only: Option<Maker>,
}

/// The container's request.
///
/// # Errors
///
/// An amount cannot be read or is out of range, or vendors contradict each other.
pub fn asked(container: &Container, vendors: &Vendors) -> Result<Option<Asked>, RequestError> {
    let read = |name: &str| -> Result<Option<i128>, RequestError> {
        let Some(quantity) = amount_of(container, name) else {
            return Ok(None);
        };
        let amount = quantity
            .parse()
            .map_err(|problem| wrong_amount(container, name, problem.to_string()))?;
        if amount.is_negative() {
            let problem = format!("{quantity} is below 0; write 0 or more");
            return Err(wrong_amount(container, name, problem));
        }
        let whole = amount.whole().ok_or_else(|| {
            let problem = format!(
                "{quantity} is no whole number, and Kubernetes takes only whole numbers of {name}; round it up"
            );
            wrong_amount(container, name, problem)
        })?;
        Ok(Some(whole))
    };
    let within = |name: &str, most: i128, unit: &str| -> Result<u64, RequestError> {
        match read(name)? {
            None => Ok(0),
            Some(amount) if amount <= most => Ok(u64::try_from(amount).unwrap_or(0)),
            Some(amount) => Err(wrong_amount(
                container,
                name,
                format!(
                    "{amount} is out of range; at most {most} {unit} are given to one container"
                ),
            )),
        }
    };
    let mut only = None;
    let mut devices = within(keys::DEVICES, i128::from(MOST_DEVICES), "devices")?;
    for (name, maker) in ALIASES {
        if vendors.of_resource(name).is_some() {
            continue;
        }
        let count = within(name, i128::from(MOST_DEVICES), "devices")?;
        if count == 0 {
            continue;
        }
        if only.is_some_and(|only| only != maker) {
            return Err(wrong_amount(
                container,
                name,
                "conflicting vendor-specific resources requested; name one vendor, or ai.compute/devices for any"
                    .to_owned(),
            ));
        }
        only = Some(maker);
        devices = devices.max(count);
    }
    if only.is_none() && !is_abstract(container) {
        return Ok(None);
    }
    if only.is_some()
        && let Some((name, _)) = vendor_names(container, vendors)
            .find(|(_, maker)| !is_abstract(container) && Some(*maker) != only)
    {
        return Err(wrong_amount(
            container,
            name,
            "conflicting vendor-specific resources requested; name one vendor, or ai.compute/devices for any"
                .to_owned(),
        ));
    }
    let demand = Demand {
        memory_bytes: within(keys::VRAM, MOST_BYTES, "bytes")?,
        fp16: within(keys::TFLOPS_FP16, MOST_GFLOPS / 1000, "TFLOPS")?.saturating_mul(1000),
        fp32: within(keys::TFLOPS_FP32, MOST_GFLOPS / 1000, "TFLOPS")?.saturating_mul(1000),
        devices: u32::try_from(devices).unwrap_or(MOST_DEVICES),
    };
    Ok((demand != Demand::default()).then_some(Asked { demand, only }))
}

/// The resources by which the container counts devices of the API's vendors, as the device configuration names them.
fn vendor_names<'a>(
    container: &'a Container,
    vendors: &'a Vendors,
) -> impl Iterator<Item = (&'a str, Maker)> {
    let needs = &container.resources;
    needs
        .limits
        .iter()
        .chain(&needs.requests)
        .filter(|(_, amount)| amount.parse().is_ok_and(|amount| !amount.is_zero()))
        .filter_map(|(name, _)| {
            let (row, role) = vendors.of_resource(name)?;
            Some((name.as_str(), maker_of(&row.word)?)).filter(|_| role == Role::Count)
        })
}

/// Refuses a container that counts devices of several of the API's vendors by their own names.
///
/// # Errors
///
/// The container does.
pub fn refuse_conflict(container: &Container, vendors: &Vendors) -> Result<(), RequestError> {
    if is_abstract(container) {
        return Ok(());
    }
    let mut named = vendor_names(container, vendors);
    let Some((_, first)) = named.next() else {
        return Ok(());
    };
    match named.find(|(_, maker)| *maker != first) {
        None => Ok(()),
        Some((name, _)) => Err(wrong_amount(
            container,
            name,
            "conflicting vendor-specific resources requested; name one vendor, or ai.compute/devices for any"
                .to_owned(),
        )),
    }
}

/// The combined request for any vendor of the containers at these positions.
pub(crate) fn any_vendor(
    pod: &Pod,
    asked: &[(usize, &Container, Asked)],
    vendors: &Vendors,
    rules: &Rules,
    pod_rules: &PodRules,
) -> Result<AnyVendor, RequestError> {
    let preferences = preferences(pod, &rules.config)?;
    let mut only: Option<Maker> = None;
    for (_, container, one) in asked {
        match (only, one.only) {
            (Some(before), Some(maker)) if before != maker => {
                return Err(wrong_amount(
                    container,
                    keys::DEVICES,
                    "conflicting vendor-specific resources requested: all containers of a pod get devices of one vendor; put the others into a pod of their own"
                        .to_owned(),
                ));
            }
            (_, Some(maker)) => only = Some(maker),
            _ => {}
        }
    }
    let mut families = Vec::new();
    for row in vendors.iter() {
        let Some(maker) = maker_of(&row.word) else {
            continue;
        };
        let tier = match only {
            Some(only) => (only == maker).then_some(0),
            None => preferences.tier(maker),
        };
        let Some(tier) = tier else {
            continue;
        };
        families.push(Family {
            maker,
            vendor: Word::new(&row.word),
            tier,
            asks: asked
                .iter()
                .map(|(_, container, one)| {
                    asks(row, container, pod, pod_rules, one.demand, preferences)
                })
                .collect(),
        });
    }
    Ok(AnyVendor {
        wishes: asked
            .iter()
            .map(|(container, _, one)| Wish {
                container: *container,
                demand: one.demand,
            })
            .collect(),
        families,
        near: preferences.topology == Topology::LowLatency,
        table: Arc::clone(&rules.table),
    })
}

/// The asks to the family with 1, 2, 3, ... devices, including the vendor's own rules.
fn asks(
    row: &Row,
    container: &Container,
    pod: &Pod,
    rules: &PodRules,
    demand: Demand,
    preferences: Preferences,
) -> Vec<Ask> {
    let most = if demand.devices > 0 {
        demand.devices
    } else {
        MOST_CHOSEN
    };
    (1..=most)
        .map(|count| {
            let parts = u64::from(count);
            let unit = row.memory_unit_mib.max(1);
            let mib = demand
                .memory_bytes
                .div_ceil(parts)
                .div_ceil(MIB)
                .next_multiple_of(unit);
            let spoken = in_vendor_words(row, container, count, mib);
            let asked = row.ask(&spoken, pod, rules).ok().flatten();
            let mut ask = asked.unwrap_or_else(|| {
                let memory = match mib {
                    0 => Memory::Percent(100),
                    mib => Memory::Bytes(mib * MIB),
                };
                Ask {
                    policy: rules.policy.clone(),
                    weights: rules.weights,
                    ..Ask::new(&row.word, count, memory)
                }
            });
            if demand.fp16 > 0 || demand.fp32 > 0 {
                ask.compute = Compute::Gflops {
                    fp16: demand.fp16.div_ceil(parts),
                    fp32: demand.fp32.div_ceil(parts),
                };
            }
            if preferences.topology == Topology::HighBandwidth {
                ask.policy = DevicePolicy::TopologyAware;
            }
            ask
        })
        .collect()
}

/// The container as if it had used the vendor's own names.
fn in_vendor_words(row: &Row, container: &Container, count: u32, mib: u64) -> Container {
    let mut needs = ResourceNeeds::default();
    if let Some(name) = row.resource(Role::Count) {
        needs
            .limits
            .insert(name.to_owned(), Quantity::from(u64::from(count)));
    }
    if let Some(name) = row.resource(Role::Memory)
        && mib > 0
    {
        let amount = Quantity(format!("{mib}Mi"));
        needs.limits.insert(name.to_owned(), amount);
    }
    Container {
        name: container.name.clone(),
        resources: needs,
        ..Container::default()
    }
}
