//! The contents of a node's ComputeNode and ComputeTopology, computed from observations. Values in, values out: no
//! clock, no driver, no API server. Does not decide which devices a pod gets.
//!
//! The node agent fills in [`Observed`] from the driver. The scheduler fills it in for vendors that register their
//! devices on the Node through a device plugin of their own.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Capacity, ComputeNodeSpec, ComputeNodeStatus, ComputeTopologySpec, Device, DeviceCompute,
    DeviceTopology, HcsCondition, Interconnect, Link, LinkType, NodeTopology, Phase,
    TopologyDevice, TopologyGroup, TopologyLink, Vendor, condition, error,
};
use crate::quantity::Quantity;

/// The label of a node's name.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// The label of a node's zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// On a ComputeNode and a ComputeTopology: the vendor of its devices; label.
pub const VENDOR: &str = "vendor";
/// On a ComputeNode and a ComputeTopology: the Kubernetes node that it describes; label.
pub const NODE: &str = "vgpu.io/node";
/// On a ComputeNode and a ComputeTopology: `agent` or `scheduler`, the program that writes it; label.
pub const WRITER: &str = "vgpu.io/written-by";
/// A device with at least this score takes new pods.
pub const HEALTHY: u8 = 60;
/// The longest value of a label.
const MOST_LABEL_LETTERS: usize = 63;

/// The observations of a node and its devices of one vendor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Name of the Kubernetes node.
    pub node: String,
    /// Labels of the Kubernetes node.
    pub labels: BTreeMap<String, String>,
    /// The vendor of the devices.
    pub vendor: Vendor,
    /// The devices, in any order. Their indices differ.
    pub devices: Vec<ObservedDevice>,
    /// Ports of network cards that reach the memory of other nodes.
    pub ports: Vec<ObservedPort>,
    /// Whether the node is cordoned: `spec.unschedulable`.
    pub cordoned: bool,
    /// Why the devices cannot be observed, such as a driver that does not answer. Empty if they can.
    pub problems: Vec<String>,
    /// Whether this comes from the registration of the vendor's device plugin on the Node, and not from our agent.
    pub registered: bool,
}

/// The observations of one device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedDevice {
    /// Position on the node.
    pub index: u32,
    /// The vendor's identifier.
    pub uuid: String,
    /// Model.
    pub model: String,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Memory that may be promised to pods, in bytes.
    pub promised_bytes: u64,
    /// Memory that pods hold, in bytes.
    pub allocated_bytes: u64,
    /// Speed in GFLOPS for 16 and for 32 bits; 0 if unknown.
    pub gflops: [u64; 2],
    /// PCI address with the domain in any spelling; empty if unknown.
    pub bus_id: String,
    /// NUMA node.
    pub numa: u32,
    /// Connections to other devices of the node.
    pub links: Vec<ObservedLink>,
    /// Its health, from 0 to 100.
    pub score: u8,
    /// Why it must not be used; `None` if it may be used.
    pub sick: Option<String>,
    /// Whether an operator has cordoned it.
    pub cordoned: bool,
}

/// A connection of a device to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedLink {
    /// The kind of connection.
    pub kind: LinkType,
    /// Index of the other device.
    pub peer: u32,
    /// The number of such connections.
    pub count: u32,
    /// Bandwidth of all of them, both directions together, in MB/s; 0 if unknown.
    pub mb_s: u32,
    /// Version of NVLink; 0.0 if unknown.
    pub version: (u8, u8),
}

/// A port of a network card that reaches the memory of other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedPort {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// NUMA node; `None` if the kernel does not report it.
    pub numa: Option<u32>,
    /// Bandwidth, both directions together, in MB/s.
    pub mb_s: u32,
}

impl ObservedDevice {
    fn id(&self) -> String {
        self.index.to_string()
    }

    /// Whether it takes new pods.
    fn takes_pods(&self) -> bool {
        self.sick.is_none() && self.score >= HEALTHY && !self.cordoned
    }

    fn is_healthy(&self) -> bool {
        self.sick.is_none() && self.score >= HEALTHY
    }
}

impl Observed {
    fn sorted(&self) -> Vec<&ObservedDevice> {
        let mut devices: Vec<&ObservedDevice> = self.devices.iter().collect();
        devices.sort_by_key(|device| device.index);
        devices
    }

    /// Labels of the objects that describe the node.
    pub fn object_labels(&self, writer: &str) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::from([
            (VENDOR.to_owned(), self.vendor.as_str().to_owned()),
            (WRITER.to_owned(), writer.to_owned()),
        ]);
        if self.node.len() <= MOST_LABEL_LETTERS {
            labels.insert(NODE.to_owned(), self.node.clone());
        }
        if let Some(zone) = self.labels.get(ZONE) {
            labels.insert(ZONE.to_owned(), zone.clone());
        }
        labels
    }
}

/// The spec of the node's ComputeNode.
pub fn spec(observed: &Observed) -> ComputeNodeSpec {
    let devices = observed.sorted();
    let sum = |of: fn(&ObservedDevice) -> u64| {
        let all = devices.iter().map(|device| of(device));
        all.fold(0_u64, u64::saturating_add)
    };
    let hostname = observed.labels.get(HOSTNAME).unwrap_or(&observed.node);
    let interconnects = interconnects(observed);
    ComputeNodeSpec {
        vendor: observed.vendor,
        node_selector: BTreeMap::from([(HOSTNAME.to_owned(), hostname.clone())]),
        capacity: Capacity {
            vram: bytes(sum(|device| device.memory_bytes)),
            tflops_fp16: tflops(sum(|device| device.gflops[0])),
            tflops_fp32: tflops(sum(|device| device.gflops[1])),
        },
        devices: devices.iter().map(|device| device_of(device)).collect(),
        topology: (!interconnects.is_empty()).then_some(NodeTopology { interconnects }),
    }
}

fn device_of(device: &ObservedDevice) -> Device {
    let allocatable = if device.takes_pods() {
        device.promised_bytes
    } else {
        0
    };
    // Peers with the same kind of connection share one entry.
    let mut by_way: BTreeMap<(LinkType, u32), Vec<u32>> = BTreeMap::new();
    for link in &device.links {
        let peers = by_way.entry((link.kind, link.mb_s)).or_default();
        peers.push(link.peer);
    }
    let links = by_way.into_iter().map(|((kind, mb_s), mut peers)| {
        peers.sort_unstable();
        peers.dedup();
        Link {
            kind,
            peers: peers.iter().map(u32::to_string).collect(),
            bandwidth: bandwidth(mb_s).unwrap_or_else(|| "unknown".to_owned()),
        }
    });
    Device {
        id: device.id(),
        uuid: (!device.uuid.is_empty()).then(|| device.uuid.clone()),
        model: device.model.clone(),
        vram: bytes(device.memory_bytes),
        vram_allocatable: bytes(allocatable),
        vram_allocated: bytes(device.allocated_bytes),
        compute: DeviceCompute {
            fp16: tflops(device.gflops[0]),
            fp32: tflops(device.gflops[1]),
        },
        topology: DeviceTopology {
            bus_id: bus_id(&device.bus_id),
            numa_node: i32::try_from(device.numa).ok(),
            links: links.collect(),
        },
        health_score: i32::from(device.score.min(100)),
    }
}

/// Each kind of connection of the node, with the greatest number between two devices.
fn interconnects(observed: &Observed) -> Vec<Interconnect> {
    let mut most: BTreeMap<LinkType, (u32, (u8, u8))> = BTreeMap::new();
    for link in observed.devices.iter().flat_map(|device| &device.links) {
        let entry = most.entry(link.kind).or_default();
        *entry = (*entry).max((link.mb_s, link.version));
    }
    let mut roce: u32 = 0;
    for port in &observed.ports {
        roce = roce.saturating_add(port.mb_s);
    }
    if !observed.ports.is_empty() {
        most.insert(LinkType::Roce, (roce, (0, 0)));
    }
    most.into_iter()
        .map(|(kind, (mb_s, version))| Interconnect {
            kind,
            bandwidth: bandwidth(mb_s),
            nvlink_version: (kind == LinkType::Nvlink && version != (0, 0))
                .then(|| format!("{}.{}", version.0, version.1)),
        })
        .collect()
}

/// The spec of the node's ComputeTopology.
pub fn topology(observed: &Observed) -> ComputeTopologySpec {
    let devices = observed.sorted();
    let mut links = Vec::new();
    for device in &devices {
        let mut own: Vec<&ObservedLink> = device.links.iter().collect();
        own.sort_by_key(|link| (link.kind, link.peer));
        // Each pair once, from the lower index.
        for link in own.into_iter().filter(|link| link.peer > device.index) {
            links.push(TopologyLink {
                kind: link.kind,
                from: device.id(),
                to: link.peer.to_string(),
                count: i32::try_from(link.count.max(1)).unwrap_or(i32::MAX),
                bandwidth: bandwidth(link.mb_s),
            });
        }
    }
    for port in &observed.ports {
        let near = |device: &&&ObservedDevice| port.numa == Some(device.numa);
        let is_near = devices.iter().any(|device| near(&device));
        for device in devices.iter().filter(|device| !is_near || near(device)) {
            links.push(TopologyLink {
                kind: LinkType::Roce,
                from: device.id(),
                to: port.name.clone(),
                count: 1,
                bandwidth: bandwidth(port.mb_s),
            });
        }
    }
    ComputeTopologySpec {
        node_name: observed.node.clone(),
        devices: devices
            .iter()
            .map(|device| TopologyDevice {
                id: device.id(),
                vendor: observed.vendor,
                model: device.model.clone(),
                bus_id: bus_id(&device.bus_id),
                numa_node: i32::try_from(device.numa).ok(),
            })
            .collect(),
        links,
        groups: groups(&devices),
    }
}

/// Sets of devices that all reach each other by NVLink or HCCS. Each group starts with the lowest free device and
/// takes every device that all its members reach.
fn groups(devices: &[&ObservedDevice]) -> Vec<TopologyGroup> {
    let mut groups = Vec::new();
    for kind in [LinkType::Nvlink, LinkType::Hccs] {
        let joined: BTreeSet<(u32, u32)> = devices
            .iter()
            .flat_map(|device| device.links.iter().map(|link| (device.index, link)))
            .filter(|(_, link)| link.kind == kind)
            .map(|(from, link)| (from, link.peer))
            .collect();
        let mut grouped: BTreeSet<u32> = BTreeSet::new();
        for device in devices {
            if grouped.contains(&device.index) {
                continue;
            }
            let mut group = vec![device.index];
            for other in devices.iter().filter(|it| it.index > device.index) {
                let reaches = |member: &u32| {
                    joined.contains(&(*member, other.index))
                        && joined.contains(&(other.index, *member))
                };
                if !grouped.contains(&other.index) && group.iter().all(reaches) {
                    group.push(other.index);
                }
            }
            if group.len() > 1 {
                grouped.extend(&group);
                groups.push(TopologyGroup {
                    kind,
                    devices: group.iter().map(u32::to_string).collect(),
                });
            }
        }
    }
    groups
}

/// The status of the node's ComputeNode, as its writer reports it at `now` (RFC 3339). A condition keeps the time of
/// `before` while its status stays the same.
pub fn status(
    observed: &Observed,
    before: Option<&ComputeNodeStatus>,
    now: &str,
) -> ComputeNodeStatus {
    let devices = observed.sorted();
    let sick: Vec<String> = devices
        .iter()
        .filter(|device| !device.is_healthy())
        .map(|device| {
            let why = device.sick.as_deref().unwrap_or("its health score is low");
            format!("device {}: {why}", device.index)
        })
        .collect();
    let healthy = devices.iter().filter(|device| device.is_healthy()).count();
    let open = devices.iter().filter(|device| device.takes_pods()).count();
    let problems = observed.problems.join("; ");

    let ready = if devices.is_empty() {
        said(false, "NoDevice", or(&problems, "the node has no device"))
    } else if healthy == 0 {
        let why = or(&problems, "no device of the node is healthy");
        said(false, error::DEVICE_UNHEALTHY, why)
    } else {
        said(true, "NodeReady", format!("{healthy} devices are healthy"))
    };
    let hardware = if devices.is_empty() {
        said(false, "NoDevice", or(&problems, "the node has no device"))
    } else if sick.is_empty() {
        said(true, "AllDevicesHealthy", String::new())
    } else {
        said(false, error::DEVICE_UNHEALTHY, sick.join("; "))
    };
    let schedulable = if observed.cordoned {
        let why = "the node is cordoned; kubectl uncordon takes that back".to_owned();
        said(false, "NodeCordoned", why)
    } else if !ready.0 {
        said(false, ready.1, ready.2.clone())
    } else if open == 0 {
        let why = "every healthy device is cordoned (annotation hami.io/device-cordon)".to_owned();
        said(false, "DevicesCordoned", why)
    } else {
        said(true, "NodeSchedulable", format!("{open} devices take pods"))
    };
    let agent = if observed.registered {
        let why = "the devices are registered on the Node by their vendor's device plugin";
        said(true, "DevicesRegistered", why.to_owned())
    } else {
        said(true, "AgentReports", String::new())
    };
    let phase = match (ready.0, observed.cordoned) {
        (false, _) => Phase::NotReady,
        (true, true) => Phase::Draining,
        (true, false) => Phase::Ready,
    };
    let all = [
        (condition::READY, ready),
        (condition::HARDWARE_HEALTHY, hardware),
        (condition::AGENT_CONNECTED, agent),
        (condition::SCHEDULABLE, schedulable),
    ];
    let allocated = devices.iter().map(|device| device.allocated_bytes);
    ComputeNodeStatus {
        phase: Some(phase),
        conditions: all
            .into_iter()
            .map(|(kind, said)| conditioned(kind, said, before, now))
            .collect(),
        last_heartbeat: Some(now.to_owned()),
        vram_allocated: Some(bytes(allocated.fold(0, u64::saturating_add))),
    }
}

/// The status of a ComputeNode that its writer has not reported for `silent_s` seconds: not ready and not connected.
/// The rest of its last report stays.
pub fn disconnected(before: &ComputeNodeStatus, silent_s: u64, now: &str) -> ComputeNodeStatus {
    let why = format!("the node's agent has not reported for {silent_s} s");
    let mut after = before.clone();
    after.phase = Some(Phase::NotReady);
    let gone = || said(false, error::AGENT_NOT_CONNECTED, why.clone());
    for kind in [
        condition::READY,
        condition::AGENT_CONNECTED,
        condition::SCHEDULABLE,
    ] {
        let fresh = conditioned(kind, gone(), Some(before), now);
        match after.conditions.iter_mut().find(|it| it.kind == kind) {
            Some(old) => *old = fresh,
            None => after.conditions.push(fresh),
        }
    }
    after
}

/// Whether the status already says that its writer is silent.
pub fn is_disconnected(status: &ComputeNodeStatus) -> bool {
    let mut conditions = status.conditions.iter();
    let agent = conditions.find(|it| it.kind == condition::AGENT_CONNECTED);
    status.phase == Some(Phase::NotReady) && agent.is_some_and(|it| it.status == "False")
}

/// Whether both are equal except for their times.
pub fn same_but_heartbeat(one: &ComputeNodeStatus, other: &ComputeNodeStatus) -> bool {
    let timeless = |status: &ComputeNodeStatus| ComputeNodeStatus {
        last_heartbeat: None,
        ..status.clone()
    };
    timeless(one) == timeless(other)
}

/// The name of the object for a node's devices of one vendor: the node's own name for the first of its vendors in the
/// order of [`Vendor::ALL`], with the vendor appended for the others.
pub fn name(node: &str, vendor: Vendor, first: Vendor) -> String {
    if vendor == first {
        node.to_owned()
    } else {
        format!("{node}-{vendor}")
    }
}

/// Whether the condition holds, the reason in one word, and the message.
type Said = (bool, &'static str, String);

fn said(holds: bool, reason: &'static str, message: String) -> Said {
    (holds, reason, message)
}

fn or(said: &str, otherwise: &str) -> String {
    if said.is_empty() { otherwise } else { said }.to_owned()
}

/// The longest message; a node of a thousand sick devices names only the first ones.
const MOST_MESSAGE: usize = 1024;

fn conditioned(
    kind: &str,
    (holds, reason, message): Said,
    before: Option<&ComputeNodeStatus>,
    now: &str,
) -> HcsCondition {
    let status = if holds { "True" } else { "False" };
    let mut conditions = before.into_iter().flat_map(|before| &before.conditions);
    let same = conditions.find(|it| it.kind == kind && it.status == status);
    let since = same.and_then(|it| it.last_transition_time.clone());
    HcsCondition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.chars().take(MOST_MESSAGE).collect(),
        last_transition_time: Some(since.unwrap_or_else(|| now.to_owned())),
        observed_generation: None,
    }
}

/// Bytes, with the largest suffix that leaves a whole number.
pub fn bytes(bytes: u64) -> Quantity {
    let (gib, mib) = (1 << 30, 1 << 20);
    Quantity(if bytes > 0 && bytes.is_multiple_of(gib) {
        format!("{}Gi", bytes / gib)
    } else if bytes > 0 && bytes.is_multiple_of(mib) {
        format!("{}Mi", bytes / mib)
    } else {
        bytes.to_string()
    })
}

/// GFLOPS as TFLOPS, with the necessary decimals.
pub fn tflops(gflops: u64) -> Quantity {
    Quantity(thousandths(gflops))
}

/// `600GB/s`; none for 0.
fn bandwidth(mb_s: u32) -> Option<String> {
    (mb_s > 0).then(|| format!("{}GB/s", thousandths(mb_s.into())))
}

/// Thousandths as a decimal number without trailing zeros.
fn thousandths(number: u64) -> String {
    let (whole, part) = (number / 1000, number % 1000);
    if part == 0 {
        return whole.to_string();
    }
    let part = format!("{part:03}");
    format!("{whole}.{}", part.trim_end_matches('0'))
}

/// A PCI address in the kernel's form. NVML's domain has eight digits.
fn bus_id(written: &str) -> String {
    let lower = written.to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 && rest.contains(':') => {
            let (zeros, short) = domain.split_at(domain.len() - 4);
            if zeros.bytes().all(|digit| digit == b'0') {
                format!("{short}:{rest}")
            } else {
                lower
            }
        }
        _ => lower,
    }
}

#[cfg(test)]
mod tests;
