//! The ResourceSlices of this node: what the scheduler may give of each GPU, and what it may ask about it. Values in,
//! values out.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, CounterSet, Device, DeviceAttribute,
    DeviceCapacity, DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::partitions::{self, Partition};
use super::{CORES, DRIVER, MEMORY, SHARES, device_name};
use crate::inventory::mig::OtherInstance;
use crate::node_gpus::{Health, Inventory, KnownGpu, Wires};

/// Bytes of a MiB, the step in which memory is given.
const MIB: u64 = 1 << 20;
/// A slice has no more devices: the API server's bound where one of them has a taint or consumes counters.
const DEVICES_MOST: usize = 64;
/// A slice has no more sets of counters.
const COUNTER_SETS_MOST: usize = 8;
/// The API server takes no longer strings as an attribute.
const STRING_MOST: usize = 64;
/// The taint of a GPU that must not be used now.
pub(super) const UNHEALTHY: &str = "gpu.vgpu.io/unhealthy";
/// The attribute that only MIG instances have, by which the DeviceClasses tell them from GPUs.
const PROFILE: &str = "profile";

/// Facts of the driver and the kernel about a GPU that the inventory does not have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Major and minor number of its compute capability.
    pub capability: Option<(u32, u32)>,
    /// The PCI root complex to which it is attached, as `pci0000:00`.
    pub pcie_root: Option<String>,
}

/// The facts of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The driver's version, as `550.54.15`.
    pub driver: Option<String>,
    /// By UUID.
    pub gpus: BTreeMap<String, Facts>,
}

/// The GPUs to publish, with their facts.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    /// The node; its name is the pool's.
    pub node: &'a str,
    /// Its GPUs.
    pub inventory: &'a Inventory,
    /// Which of them are sick.
    pub health: &'a Health,
    /// More about them.
    pub facts: &'a NodeFacts,
    /// GPUs of which containers of the device plugin still have shares.
    pub taken: &'a BTreeSet<String>,
    /// GPUs that another DRA driver publishes on this node.
    pub others: &'a Others,
    /// MIG instances that other programs made on this node: what overlaps one is left out.
    pub foreign: &'a [OtherInstance],
    /// Whether the API server keeps taints; without them a sick GPU is left out.
    pub taints: bool,
    /// Whether the API server keeps counters; without them a GPU in MIG mode is left out.
    pub counters: bool,
}

/// The slices, with generation 0: the place of a slice in the list is its number.
#[must_use]
pub fn slices(offer: &Offer<'_>) -> Vec<ResourceSliceSpec> {
    let offered = offer.inventory.gpus.iter();
    let offered: Vec<&KnownGpu> = offered.filter(|gpu| is_offered(gpu, offer)).collect();
    let cut = offered.iter().filter(|gpu| gpu.device.is_mig());
    let whole = offered.iter().filter(|gpu| !gpu.device.is_mig());
    let sets: Vec<CounterSet> = cut.clone().map(|gpu| partitions::counters(gpu)).collect();
    let instances = cut.flat_map(|gpu| partitions::partitions(gpu));
    let instances = instances.filter(|partition| partition.has_room(offer.foreign));
    let devices = whole.map(|gpu| device(gpu, offer));
    let devices: Vec<Device> = devices
        .chain(instances.map(|partition| instance(&partition, offer)))
        .collect();
    let mut chunks: Vec<(&[Device], &[CounterSet])> = devices
        .chunks(DEVICES_MOST)
        .map(|devices| (devices, [].as_slice()))
        .collect();
    // A pool without devices says that the node has none, and not that nothing is known.
    if chunks.is_empty() {
        chunks.push((&[], &[]));
    }
    // A slice has either devices or counters, which hold for the whole pool.
    let sets = sets.chunks(COUNTER_SETS_MOST);
    chunks.extend(sets.map(|sets| ([].as_slice(), sets)));
    let count = i64::try_from(chunks.len()).unwrap_or(i64::MAX);
    let slice = |(devices, sets): (&[Device], &[CounterSet])| ResourceSliceSpec {
        driver: DRIVER.to_owned(),
        node_name: Some(offer.node.to_owned()),
        pool: ResourcePool {
            name: offer.node.to_owned(),
            generation: 0,
            resource_slice_count: count,
        },
        devices: (!devices.is_empty()).then(|| devices.to_vec()),
        shared_counters: (!sets.is_empty()).then(|| sets.to_vec()),
        ..ResourceSliceSpec::default()
    };
    chunks.into_iter().map(slice).collect()
}

/// Whether any of a GPU is to be given.
fn is_offered(gpu: &KnownGpu, offer: &Offer<'_>) -> bool {
    let device = &gpu.device;
    if device.memory_bytes < MIB || device.slots == 0 {
        return false;
    }
    // Without counters two instances could be given the same slices.
    if device.is_mig() && !offer.counters {
        return false;
    }
    if offer.taken.contains(&device.id) || offer.others.contains_key(&device.id) {
        return false;
    }
    offer.taints || !is_sick(gpu, offer)
}

fn is_sick(gpu: &KnownGpu, offer: &Offer<'_>) -> bool {
    let device = &gpu.device;
    offer.health.get(&device.id).is_some() || !device.healthy || device.cordoned
}

fn taints(gpu: &KnownGpu, offer: &Offer<'_>) -> Option<Vec<DeviceTaint>> {
    let taint = DeviceTaint {
        key: UNHEALTHY.to_owned(),
        effect: String::from("NoSchedule"),
        ..DeviceTaint::default()
    };
    is_sick(gpu, offer).then(|| vec![taint])
}

/// A GPU as a device that several claims share.
fn device(gpu: &KnownGpu, offer: &Offer<'_>) -> Device {
    let device = &gpu.device;
    let memory = device.memory_bytes / MIB;
    Device {
        name: device_name(&device.id),
        allow_multiple_allocations: Some(true),
        attributes: Some(attributes(gpu, offer)),
        capacity: Some(capacity(memory, device.cores, device.slots)),
        taints: taints(gpu, offer),
        ..Device::default()
    }
}

/// A MIG instance that can be made, as a device that one claim gets as a whole.
fn instance(partition: &Partition<'_>, offer: &Offer<'_>) -> Device {
    let Partition { gpu, profile, .. } = partition;
    let amount = |text: String| DeviceCapacity {
        value: Quantity(text),
        request_policy: None,
    };
    let mut attributes = attributes(gpu, offer);
    attributes.insert(PROFILE.to_owned(), string(&profile.name));
    Device {
        name: partition.name(),
        attributes: Some(attributes),
        capacity: Some(BTreeMap::from([
            (
                MEMORY.to_owned(),
                amount(format!("{}Mi", profile.memory_bytes / MIB)),
            ),
            (CORES.to_owned(), amount(profile.cores.to_string())),
        ])),
        consumes_counters: Some(vec![partition.consumes()]),
        taints: taints(gpu, offer),
        ..Device::default()
    }
}

/// The amounts that may be charged to a GPU, and how a request is rounded to them.
fn capacity(memory_mib: u64, cores: u32, slots: u32) -> BTreeMap<String, DeviceCapacity> {
    let quantity = |text: String| Quantity(text);
    // Rounded down to whole MiB: nothing that is charged is more than there is.
    let memory = format!("{memory_mib}Mi");
    let range = |min: &str, step: &str, max: String| CapacityRequestPolicyRange {
        min: quantity(min.to_owned()),
        step: Some(quantity(step.to_owned())),
        max: Some(quantity(max)),
    };
    // A vendor that counts no cores sets no bound on them.
    let cores = if cores == 0 { 100 } else { cores };
    BTreeMap::from([
        (
            MEMORY.to_owned(),
            DeviceCapacity {
                value: quantity(memory.clone()),
                request_policy: Some(CapacityRequestPolicy {
                    // A claim that names none takes all.
                    default: Some(quantity(memory.clone())),
                    valid_range: Some(range("1Mi", "1Mi", memory)),
                    valid_values: None,
                }),
            },
        ),
        (
            CORES.to_owned(),
            DeviceCapacity {
                value: quantity(cores.to_string()),
                request_policy: Some(CapacityRequestPolicy {
                    // A claim that names none has no limit on compute time, and no part of it either.
                    default: Some(quantity(String::from("0"))),
                    valid_range: Some(range("0", "1", cores.min(100).to_string())),
                    valid_values: None,
                }),
            },
        ),
        (
            SHARES.to_owned(),
            DeviceCapacity {
                value: quantity(slots.to_string()),
                request_policy: Some(CapacityRequestPolicy {
                    default: Some(quantity(String::from("1"))),
                    valid_range: None,
                    valid_values: Some(vec![quantity(String::from("1"))]),
                }),
            },
        ),
    ])
}

fn string(text: &str) -> DeviceAttribute {
    let fits = text.char_indices().map(|(at, char)| at + char.len_utf8());
    let end = fits.take_while(|end| *end <= STRING_MOST).last();
    DeviceAttribute {
        string: Some(text[..end.unwrap_or(0)].to_owned()),
        ..DeviceAttribute::default()
    }
}

fn attributes(gpu: &KnownGpu, offer: &Offer<'_>) -> BTreeMap<String, DeviceAttribute> {
    let version = |text: String| DeviceAttribute {
        version: Some(text),
        ..DeviceAttribute::default()
    };
    let int = |number: i64| DeviceAttribute {
        int: Some(number),
        ..DeviceAttribute::default()
    };
    let device = &gpu.device;
    let mut all = BTreeMap::from([
        (String::from("uuid"), string(&device.id)),
        (String::from("productName"), string(&device.model)),
        (String::from("index"), int(device.index.into())),
        (String::from("numa"), int(device.numa.into())),
    ]);
    let mut put = |name: &str, value: Option<DeviceAttribute>| {
        all.extend(value.map(|value| (name.to_owned(), value)));
    };
    let facts = offer.facts.gpus.get(&device.id);
    let capability = facts.and_then(|facts| facts.capability);
    put(
        "cudaComputeCapability",
        capability.map(|(major, minor)| version(format!("{major}.{minor}.0"))),
    );
    let driver = offer.facts.driver.as_deref().and_then(semver);
    put("driverVersion", driver.map(version));
    let root = facts.and_then(|facts| facts.pcie_root.as_deref());
    put("resource.kubernetes.io/pcieRoot", root.map(string));
    let bus = bus_id(&gpu.pci_bus_id);
    put(
        "resource.kubernetes.io/pciBusID",
        bus.as_deref().map(string),
    );
    let group = nvlink_group(&device.id, offer.inventory);
    put("nvlinkGroup", group.map(|index| int(index.into())));
    all
}

/// A driver's version as semantic versions are written: three numbers without leading zeros.
fn semver(text: &str) -> Option<String> {
    let mut parts = text.trim().splitn(3, '.');
    let mut number = || match parts.next() {
        None => Some(0),
        Some(part) => part.parse::<u64>().ok(),
    };
    let (major, minor, patch) = (number()?, number()?, number()?);
    Some(format!("{major}.{minor}.{patch}"))
}

/// A PCI address as the kernel writes it. NVML writes the domain with eight digits.
pub(super) fn bus_id(text: &str) -> Option<String> {
    let (domain, rest) = text.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    Some(format!("{domain:04x}:{}", rest.to_ascii_lowercase()))
}

/// The lowest number among the GPUs that this one reaches by NVLinks, its own among them; nothing without NVLinks.
fn nvlink_group(uuid: &str, inventory: &Inventory) -> Option<u32> {
    let links = |of: &str| -> Vec<String> {
        let wires = |wires: &&Wires| wires.gpu == of;
        let found = inventory.wires.iter().find(wires);
        let ends = found.map(|wires| wires.nvlinks.keys().cloned().collect());
        ends.unwrap_or_default()
    };
    let mut group = BTreeSet::from([uuid.to_owned()]);
    let mut next = links(uuid);
    if next.is_empty() {
        return None;
    }
    while let Some(gpu) = next.pop() {
        if group.insert(gpu.clone()) {
            next.extend(links(&gpu));
        }
    }
    let indices = inventory
        .gpus
        .iter()
        .filter(|it| group.contains(&it.device.id));
    indices.map(|gpu| gpu.device.index).min()
}

/// Whether two specifications say the same, whatever their generations are.
#[must_use]
pub fn same(one: &ResourceSliceSpec, other: &ResourceSliceSpec) -> bool {
    let plain = |spec: &ResourceSliceSpec| {
        let mut spec = spec.clone();
        spec.pool.generation = 0;
        for device in spec.devices.iter_mut().flatten() {
            for taint in device.taints.iter_mut().flatten() {
                // The API server writes it.
                taint.time_added = None;
            }
            for capacity in device.capacity.iter_mut().flat_map(BTreeMap::values_mut) {
                amounts(capacity);
            }
        }
        spec
    };
    plain(one) == plain(other)
}

/// Writes amounts in one form: the API server answers 16Gi where 16384Mi was sent.
fn amounts(capacity: &mut DeviceCapacity) {
    let plain = |amount: &mut Quantity| {
        let parsed = kube_api::quantity::Quantity::from(amount.0.as_str()).parse();
        if let Some(whole) = parsed.ok().and_then(|amount| amount.whole()) {
            amount.0 = whole.to_string();
        }
    };
    plain(&mut capacity.value);
    if let Some(policy) = &mut capacity.request_policy {
        let range = policy.valid_range.iter_mut();
        let range = range.flat_map(|it| [Some(&mut it.min), it.step.as_mut(), it.max.as_mut()]);
        let values = policy.valid_values.iter_mut().flatten().map(Some);
        let default = std::iter::once(policy.default.as_mut());
        for amount in range.chain(values).chain(default).flatten() {
            plain(amount);
        }
    }
}

/// Devices of other DRA drivers that are GPUs of this node, by the GPU's UUID.
pub type Others = BTreeMap<String, OtherDevice>;

/// A device of another DRA driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherDevice {
    /// The driver.
    pub driver: String,
    /// Its pool.
    pub pool: String,
    /// The device in the pool.
    pub device: String,
}

/// Finds this node's GPUs among the devices of other drivers: by the UUID of the GPU, or of the GPU that a MIG instance is
/// cut out of, or by the PCI address. The first device of a GPU stands for all.
#[must_use]
pub fn others(there: &[ResourceSlice], inventory: &Inventory) -> Others {
    let mut found = Others::new();
    for slice in there.iter().filter(|slice| slice.spec.driver != DRIVER) {
        for device in slice.spec.devices.iter().flatten() {
            let attributes = device.attributes.iter().flatten();
            let texts: Vec<(String, &str)> = attributes
                .filter_map(|(key, value)| {
                    // An attribute of the driver's own domain may be named with the domain or without it.
                    let name = key.rsplit('/').next().unwrap_or_default();
                    Some((name.to_ascii_lowercase(), value.string.as_deref()?))
                })
                .collect();
            let is_it = |gpu: &&KnownGpu| {
                let address = bus_id(&gpu.pci_bus_id);
                texts.iter().any(|(name, text)| match name.as_str() {
                    "uuid" | "parentuuid" => *text == gpu.device.id,
                    "pcibusid" | "pciaddress" => address.is_some() && bus_id(text) == address,
                    _ => false,
                })
            };
            for gpu in inventory.gpus.iter().filter(is_it) {
                found
                    .entry(gpu.device.id.clone())
                    .or_insert_with(|| OtherDevice {
                        driver: slice.spec.driver.clone(),
                        pool: slice.spec.pool.name.clone(),
                        device: device.name.clone(),
                    });
            }
        }
    }
    found
}

/// The fields that an API server dropped of a slice, because a feature gate is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// A device cannot be shared (`DRAConsumableCapacity`).
    pub sharing: bool,
    /// A device cannot be tainted (`DRADeviceTaints`).
    pub taints: bool,
    /// A device consumes no counters (`DRAPartitionableDevices`).
    pub counters: bool,
}

/// Compares what was sent with what the API server has kept.
#[must_use]
pub fn dropped(sent: &ResourceSliceSpec, kept: &ResourceSliceSpec) -> Dropped {
    let any =
        |spec: &ResourceSliceSpec, has: fn(&Device) -> bool| spec.devices.iter().flatten().any(has);
    let shared: fn(&Device) -> bool = |device| device.allow_multiple_allocations == Some(true);
    let counted: fn(&Device) -> bool =
        |device| device.consumes_counters.iter().flatten().next().is_some();
    let sets = |spec: &ResourceSliceSpec| spec.shared_counters.as_ref().map_or(0, Vec::len);
    let tainted: fn(&Device) -> bool = |device| device.taints.iter().flatten().next().is_some();
    Dropped {
        sharing: any(sent, shared) && !any(kept, shared),
        taints: any(sent, tainted) && !any(kept, tainted),
        counters: any(sent, counted) && !any(kept, counted) || sets(kept) < sets(sent),
    }
}

#[cfg(test)]
mod tests;
