//! The quota check at creation: a pod whose explicit sizes exceed what its namespace has left is refused before it
//! exists. This only gives its author an early error; the scheduler's ledger enforces the quota. Keeps no count.

use kube_api::object::Pod;
use kube_api::vendor::{Role, Vendors};
use placement::{Compute, Kind, Memory, PodTraits, Quota, Request, Vendor};

use crate::denied::Denied;

/// Knows what namespaces have left of their quotas.
pub trait Quotas: Send + Sync {
    /// The amounts of the vendor's devices that a pod with these properties may still take in the namespace; a missing
    /// value means no limit.
    fn left(&self, namespace: &str, traits: &PodTraits, vendor: &Vendor) -> Quota;

    /// Why a ComputeQuota of the namespace does not allow the pod's amounts of `ai.compute/*`; `None` if it does.
    fn exceeded(&self, namespace: &str, pod: &Pod) -> Option<String> {
        let _ = (namespace, pod);
        None
    }
}

/// The amounts that a pod asks for by number. Shares of a GPU whose size is not known yet count as 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Asked {
    memory_bytes: u64,
    cores: u64,
    devices: u64,
}

impl Asked {
    /// Containers that run side by side add up; of containers that run one after the other the largest counts. Never
    /// more than the placement engine will charge.
    fn of(request: &Request, vendor: &Vendor) -> Self {
        let (mut beside, mut before) = (Self::default(), Self::default());
        for container in &request.containers {
            for ask in container.asks.iter().filter(|ask| ask.vendor == *vendor) {
                let devices = u64::from(ask.count);
                let asked = Self {
                    memory_bytes: match ask.memory {
                        Memory::Bytes(bytes) => bytes.saturating_mul(devices),
                        Memory::Percent(_) => 0,
                    },
                    cores: match ask.compute {
                        Compute::Units(units) => u64::from(units).saturating_mul(devices),
                        _ => 0,
                    },
                    devices,
                };
                if container.kind == Kind::Init {
                    before = before.with(asked, u64::max);
                } else {
                    beside = beside.with(asked, u64::saturating_add);
                }
            }
        }
        beside.with(before, u64::max)
    }

    fn with(self, other: Self, each: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            memory_bytes: each(self.memory_bytes, other.memory_bytes),
            cores: each(self.cores, other.cores),
            devices: each(self.devices, other.devices),
        }
    }
}

/// Refuses a pod that asks for more than is left.
pub(crate) fn check(
    request: &Request,
    pod: &Pod,
    namespace: &str,
    vendors: &Vendors,
    quotas: &dyn Quotas,
) -> Result<(), Denied> {
    const MIB: u64 = 1 << 20;
    let mut seen: Vec<&Vendor> = Vec::new();
    for ask in request.containers.iter().flat_map(|one| &one.asks) {
        if seen.contains(&&ask.vendor) {
            continue;
        }
        seen.push(&ask.vendor);
        let asked = Asked::of(request, &ask.vendor);
        let left = quotas.left(namespace, &request.pod.traits, &ask.vendor);
        let refused = |role: Role, asked: String, left: String| {
            let resource = vendors
                .resources()
                .find(|(_, row, its)| row.word == ask.vendor.as_str() && *its == role)
                .map_or(ask.vendor.as_str(), |(name, _, _)| name);
            let containers: Vec<&str> = pod
                .spec
                .init_containers
                .iter()
                .chain(&pod.spec.containers)
                .filter(|container| container.amount(resource).is_some())
                .map(|container| container.name.as_str())
                .collect();
            Denied::pod(
                format!("resources.limits[{resource}]"),
                format!(
                    "exceeding resource quota: the pod asks for {asked} (containers {}), namespace {namespace} has \
                     {left} left; ask for less, or let the namespace's ResourceQuota allow more (limits.{resource})",
                    containers.join(", "),
                ),
            )
        };
        if let Some(room) = left.memory_bytes
            && asked.memory_bytes > room
        {
            let mib = |bytes: u64| format!("{} MiB", bytes / MIB);
            return Err(refused(
                Role::Memory,
                mib(asked.memory_bytes.next_multiple_of(MIB)),
                mib(room),
            ));
        }
        if let Some(room) = left.cores.map(u64::from)
            && asked.cores > room
        {
            let cores = |cores: u64| format!("{cores} cores");
            return Err(refused(Role::Cores, cores(asked.cores), cores(room)));
        }
        if let Some(room) = left.devices.map(u64::from)
            && asked.devices > room
        {
            let devices = |devices: u64| format!("{devices} devices");
            return Err(refused(Role::Count, devices(asked.devices), devices(room)));
        }
    }
    Ok(())
}
