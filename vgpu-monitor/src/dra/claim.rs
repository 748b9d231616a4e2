//! Reads the shares that a ResourceClaim gives on this node out of its allocation: values in, values out. Reads the
//! amounts that the scheduler charged (`consumedCapacity`), and never what the claim asked for.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim,
};
use kube_api::quantity::{Form, Quantity};
use placement::Span;
use serde::{Deserialize, Serialize};
use vgpu_abi::limits::Policy;

use super::partitions::{self, Meant, Partition};
use super::{CORES, DRIVER, MEMORY};
use crate::node_gpus::Inventory;

mod error;

pub use error::{ClaimError, PartError, ShareError};
pub use kube_api::shares::parameters::{Parameters, PolicyWord, Source};

/// The claim that the kubelet asks about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ResourceClaim {}/{}", self.namespace, self.name)
    }
}

/// A share of one GPU that a request of a claim was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The request, as containers name it.
    pub request: String,
    /// The device's name in its pool.
    pub device: String,
    /// Tells apart the shares of one device.
    pub share_id: Option<String>,
    /// UUID of the GPU.
    pub gpu: String,
    /// Memory limit in bytes.
    pub memory_bytes: u64,
    /// The GPU's memory as the driver has it.
    pub physical_bytes: u64,
    /// Percent of the GPU's compute; 0 is no cap.
    pub cores: u32,
    /// The parameters in the claim's and the class's configuration.
    pub parameters: Parameters,
    /// The MIG instance that is the share; `None` for a share of a whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstancePlace>,
}

/// A MIG instance, whether it is made yet or not.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InstancePlace {
    /// Name of the profile (`3g.40gb`).
    pub profile: String,
    /// The first of its memory slices.
    pub start: u32,
    /// How many memory slices it has.
    pub size: u32,
}

impl InstancePlace {
    /// The memory slices on which it lies.
    #[must_use]
    pub fn span(&self) -> Span {
        Span {
            start: self.start,
            size: self.size,
        }
    }
}

/// The policy as the container's limits have it.
#[must_use]
pub fn policy(word: PolicyWord) -> Policy {
    match word {
        PolicyWord::Default => Policy::Default,
        PolicyWord::Force => Policy::Force,
        PolicyWord::Floor => Policy::Floor,
        PolicyWord::Disable => Policy::Disable,
    }
}

/// The shares of this driver's devices on this node that the claim was given, in the order of its allocation.
///
/// # Errors
/// The claim is another one, has no allocation of this driver, or one that cannot be held.
pub fn shares(
    claim: &ResourceClaim,
    asked: &Asked,
    pool: &str,
    inventory: &Inventory,
) -> Result<Vec<Share>, ClaimError> {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    if uid != asked.uid {
        return Err(ClaimError::OtherUid {
            asked: asked.clone(),
            found: uid.to_owned(),
        });
    }
    let allocation = claim.status.as_ref().and_then(|it| it.allocation.as_ref());
    let Some(devices) = allocation.and_then(|allocation| allocation.devices.as_ref()) else {
        return Err(ClaimError::NoAllocation(asked.clone()));
    };
    let results = devices.results.as_deref().unwrap_or_default();
    let ours: Vec<_> = results.iter().filter(|it| it.driver == DRIVER).collect();
    if ours.is_empty() {
        let others: BTreeSet<&str> = results.iter().map(|it| it.driver.as_str()).collect();
        return Err(ClaimError::NoneOfOurs {
            asked: asked.clone(),
            others: others.into_iter().map(str::to_owned).collect(),
        });
    }
    let config = devices.config.as_deref().unwrap_or_default();
    ours.into_iter()
        .map(|result| {
            share(result, config, pool, inventory).map_err(|why| ClaimError::Share {
                asked: asked.clone(),
                request: result.request.clone(),
                why: Box::new(why),
            })
        })
        .collect()
}

fn share(
    result: &DeviceRequestAllocationResult,
    config: &[DeviceAllocationConfiguration],
    pool: &str,
    inventory: &Inventory,
) -> Result<Share, ShareError> {
    let DeviceRequestAllocationResult {
        request, device, ..
    } = result;
    if result.pool != pool {
        return Err(ShareError::OtherPool {
            device: device.clone(),
            found: result.pool.clone(),
            ours: pool.to_owned(),
        });
    }
    if result.admin_access == Some(true) {
        return Err(ShareError::AdminAccess);
    }
    let gpu = match meant(device, inventory)? {
        Meant::Gpu(gpu) => gpu,
        Meant::Instance(partition) => return whole_instance(result, &partition, config),
    };
    let consumed = result
        .consumed_capacity
        .as_ref()
        .filter(|it| !it.is_empty());
    let Some(consumed) = consumed else {
        return Err(ShareError::NothingConsumed {
            device: device.clone(),
        });
    };
    let amount = |name: &str| {
        let found = consumed
            .get(name)
            .or_else(|| consumed.get(&format!("{DRIVER}/{name}")));
        found
            .map(|amount| amount.0.as_str())
            .ok_or_else(|| ShareError::NotConsumed {
                capacity: name.to_owned(),
                known: consumed.keys().cloned().collect(),
            })
    };
    let cores = cores(amount(CORES)?)?;
    Ok(Share {
        request: base(request).to_owned(),
        device: device.clone(),
        share_id: result.share_id.clone(),
        gpu: gpu.device.id.clone(),
        memory_bytes: memory(amount(MEMORY)?)?,
        physical_bytes: gpu.physical_bytes,
        cores,
        parameters: parameters(request, config, Some(cores))?,
        instance: None,
    })
}

/// The share of a claim that has an instance: all of it. Its compute is bounded by the hardware, and not by a cap.
fn whole_instance(
    result: &DeviceRequestAllocationResult,
    partition: &Partition<'_>,
    config: &[DeviceAllocationConfiguration],
) -> Result<Share, ShareError> {
    let Partition { gpu, profile, span } = partition;
    Ok(Share {
        request: base(&result.request).to_owned(),
        device: result.device.clone(),
        share_id: result.share_id.clone(),
        gpu: gpu.device.id.clone(),
        memory_bytes: profile.memory_bytes,
        physical_bytes: profile.memory_bytes,
        cores: 0,
        parameters: parameters(&result.request, config, None)?,
        instance: Some(InstancePlace {
            profile: profile.name.clone(),
            start: span.start,
            size: span.size,
        }),
    })
}

/// What a device's name means.
fn meant<'a>(device: &str, inventory: &'a Inventory) -> Result<Meant<'a>, ShareError> {
    partitions::meant(device, inventory).ok_or_else(|| ShareError::NotHere {
        device: device.to_owned(),
        known: inventory
            .gpus
            .iter()
            .flat_map(partitions::device_names)
            .collect(),
    })
}

/// Bytes of a GPU's memory.
fn memory(text: &str) -> Result<u64, ShareError> {
    let bytes = whole(text).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| ShareError::Memory(text.to_owned()))
}

/// Percent of a GPU's compute.
fn cores(text: &str) -> Result<u32, ShareError> {
    let percent = whole(text).and_then(|percent| u32::try_from(percent).ok());
    percent
        .filter(|percent| *percent <= 100)
        .ok_or_else(|| ShareError::Cores(text.to_owned()))
}

fn whole(text: &str) -> Option<u64> {
    let amount = Quantity::from(text).parse().ok()?;
    // Both forms are bytes here: a driver's capacity has no unit of its own.
    let (Form::Decimal | Form::Binary) = amount.form;
    u64::try_from(amount.whole()?).ok()
}

/// A request as containers name it: without the alternative that was chosen.
fn base(request: &str) -> &str {
    request.split_once('/').map_or(request, |(base, _)| base)
}

/// The parameters of a request: those of the class first, then the claim's. `cores` is the cap that was charged; a MIG
/// instance has none.
fn parameters(
    request: &str,
    config: &[DeviceAllocationConfiguration],
    cores: Option<u32>,
) -> Result<Parameters, ShareError> {
    let mut all = Parameters::default();
    let mut floor_of = Source::Class;
    for entry in config {
        let Some(opaque) = entry.opaque.as_ref().filter(|it| it.driver == DRIVER) else {
            continue;
        };
        let requests = entry.requests.as_deref().unwrap_or_default();
        let is_meant = |named: &String| *named == request || *named == base(request);
        if !(requests.is_empty() || requests.iter().any(is_meant)) {
            continue;
        }
        let (of, source) = match entry.source.as_str() {
            "FromClass" => ("the DeviceClass", Source::Class),
            _ => ("the claim", Source::Claim),
        };
        all = all
            .changed_by(&opaque.parameters.0, source)
            .map_err(|why| ShareError::Parameters { of, why })?;
        if opaque.parameters.0.get("floor").is_some() {
            floor_of = source;
        }
    }
    let judged = match (floor_of, cores) {
        (Source::Class, cores) => Ok(all.lowered_to_cap(cores.unwrap_or(0))),
        (Source::Claim, Some(cores)) => all.under_cap(cores),
        (Source::Claim, None) => all.of_instance(),
    };
    let of = "the claim";
    judged.map_err(|why| ShareError::Parameters { of, why })
}

/// How a container uses a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// The pod.
    pub pod: String,
    /// The container.
    pub container: String,
    /// The claim's name.
    pub claim: String,
    /// The request that it names; nothing is all of them.
    pub request: Option<String>,
}

/// A pod, as far as it is about claims.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodClaims {
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    init_containers: Vec<Container>,
    containers: Vec<Container>,
    resource_claims: Vec<PodClaim>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodClaim {
    name: String,
    resource_claim_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
    resources: Resources,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    claims: Vec<ContainerClaim>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerClaim {
    name: String,
    request: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    resource_claim_statuses: Vec<PodClaim>,
    extended_resource_claim_status: Option<Extended>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Extended {
    resource_claim_name: String,
    request_mappings: Vec<Mapping>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Mapping {
    container_name: String,
    request_name: String,
}

impl PodClaims {
    /// Which container of this pod uses which claim.
    #[must_use]
    pub fn uses(&self, pod: &str) -> Vec<Use> {
        let named = |list: &[PodClaim], name: &str| {
            let found = list.iter().find(|claim| claim.name == name)?;
            found.resource_claim_name.clone()
        };
        let mut uses = Vec::new();
        for container in self
            .spec
            .init_containers
            .iter()
            .chain(&self.spec.containers)
        {
            for claim in &container.resources.claims {
                let of = named(&self.spec.resource_claims, &claim.name)
                    .or_else(|| named(&self.status.resource_claim_statuses, &claim.name));
                let request = claim.request.clone().filter(|request| !request.is_empty());
                uses.extend(of.map(|of| Use {
                    pod: pod.to_owned(),
                    container: container.name.clone(),
                    claim: of,
                    request,
                }));
            }
        }
        if let Some(extended) = &self.status.extended_resource_claim_status {
            uses.extend(extended.request_mappings.iter().map(|mapping| Use {
                pod: pod.to_owned(),
                container: mapping.container_name.clone(),
                claim: extended.resource_claim_name.clone(),
                request: Some(mapping.request_name.clone()),
            }));
        }
        uses
    }
}

/// A part of a claim: what one container uses, or several use together. Its shares have one directory with limits and
/// usage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its shares.
    pub shares: Vec<Share>,
    /// The containers that use it, as far as they are known.
    pub containers: Vec<String>,
}

/// Divides a claim's shares by the requests that containers use together. A claim of whose containers nothing is known
/// is one part.
///
/// # Errors
/// A part has one GPU twice, or parameters that contradict each other.
pub fn parts(shares: Vec<Share>, uses: &[Use]) -> Result<Vec<Part>, PartError> {
    let requests: BTreeSet<&str> = shares.iter().map(|share| share.request.as_str()).collect();
    // The requests of each container; without any all of them.
    let mut together: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for one in uses {
        let container = (one.pod.as_str(), one.container.as_str());
        let of = together.entry(container).or_default();
        match one.request.as_deref().map(base) {
            Some(request) => of.extend(requests.get(request)),
            None => of.extend(&requests),
        }
    }
    if together.is_empty() {
        together.insert(("", ""), requests.clone());
    }
    // The first request of each part names it.
    let mut part_of: BTreeMap<&str, &str> = requests.iter().map(|it| (*it, *it)).collect();
    for set in together.values() {
        let parts: BTreeSet<&str> = set
            .iter()
            .filter_map(|it| part_of.get(it).copied())
            .collect();
        let Some(first) = parts.first().copied() else {
            continue;
        };
        for part in part_of.values_mut().filter(|part| parts.contains(*part)) {
            *part = first;
        }
    }
    let mut names: Vec<&str> = Vec::new();
    let order: Vec<String> = shares.iter().map(|share| share.request.clone()).collect();
    for request in &order {
        if let Some(name) = part_of.get(request.as_str())
            && !names.contains(name)
        {
            names.push(name);
        }
    }
    let part = |name: &&str| {
        let is_of = |request: &str| part_of.get(request) == Some(name);
        let containers = together
            .iter()
            .filter(|((_, name), set)| !name.is_empty() && set.iter().any(|it| is_of(it)));
        let containers: BTreeSet<&str> = containers.map(|((_, name), _)| *name).collect();
        let part = Part {
            containers: containers.into_iter().map(str::to_owned).collect(),
            shares: shares
                .iter()
                .filter(|it| is_of(&it.request))
                .cloned()
                .collect(),
        };
        check(&part)?;
        Ok(part)
    };
    names.iter().map(part).collect()
}

fn check(part: &Part) -> Result<(), PartError> {
    let mut gpus: BTreeMap<_, &str> = BTreeMap::new();
    for share in &part.shares {
        let device = (share.gpu.as_str(), share.instance.as_ref());
        if let Some(other) = gpus.insert(device, &share.request) {
            return Err(PartError::SameGpu {
                gpu: share.gpu.clone(),
                first: other.to_owned(),
                second: share.request.clone(),
            });
        }
    }
    let mut shares = part.shares.iter();
    let Some(first) = shares.next() else {
        return Ok(());
    };
    match shares.find(|share| share.parameters != first.parameters) {
        Some(other) => Err(PartError::OtherParameters {
            first: first.request.clone(),
            second: other.request.clone(),
        }),
        None => Ok(()),
    }
}

/// The claims of this driver that a container would get together: a container can have only one.
#[must_use]
pub fn crowded(uses: &[Use], is_ours: impl Fn(&str) -> bool) -> Option<(String, Vec<String>)> {
    let mut by_container: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for one in uses.iter().filter(|one| is_ours(&one.claim)) {
        by_container
            .entry((&one.pod, &one.container))
            .or_default()
            .insert(&one.claim);
    }
    let ((_, container), claims) = by_container.iter().find(|(_, claims)| claims.len() > 1)?;
    let claims = claims.iter().map(|it| (*it).to_owned()).collect();
    Some(((*container).to_owned(), claims))
}

#[cfg(test)]
mod tests;
