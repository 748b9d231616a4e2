//! The driver's figures of the GPUs, before any configuration: identity, memory, place, MIG shapes, and how they reach
//! each other. Never what is promised of a GPU, and never a decision.

mod wires;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use placement::{MigProfile, PairScore, Span};
use serde::{Deserialize, Serialize};
use supervisor::gpu::partition;

use crate::node_gpus::{Nic, Wires};

/// All that the driver said at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// By index.
    #[serde(rename = "cards")]
    pub gpus: Vec<Physical>,
    /// How the GPUs reach each other, both ways.
    pub pairs: Vec<Pair>,
    /// By which wires each GPU reaches others. Absent in what an older agent remembered.
    #[serde(default)]
    pub wires: Vec<Wires>,
    /// Network cards that reach other nodes' memory.
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// A sentence for each GPU of which nothing is known.
    pub problems: Vec<String>,
}

/// A GPU, as the driver has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Physical {
    /// `GPU-…`.
    pub uuid: String,
    /// As `nvidia-smi` counts.
    pub index: u32,
    /// Its model.
    pub name: String,
    /// Its memory; `None` if the driver does not say, as on machines that share it with the processor.
    pub memory_bytes: Option<u64>,
    /// `00000000:65:00.0`.
    pub pci_bus_id: String,
    /// The number in `/dev/nvidiaN`.
    pub minor: u32,
    /// NUMA node; 0 where there is none.
    pub numa: u32,
    /// Whether it is in MIG mode; `None` if it has none.
    pub mig: Option<bool>,
    /// The MIG shapes that it can be cut into.
    pub profiles: Vec<Shape>,
    /// Why the driver does not answer for it: the other fields are from its last answer.
    pub fault: Option<String>,
}

/// A shape of MIG instances.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    /// `1g.10gb`.
    pub name: String,
    /// Slices of compute.
    pub slices: u32,
    /// How many fit on the GPU.
    pub most: u32,
    /// Memory of one, MiB.
    pub memory_mib: u64,
    /// First slice and number of slices of memory.
    pub placements: Vec<(u32, u32)>,
}

/// How well one GPU reaches another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// UUID.
    pub from: String,
    /// UUID.
    pub to: String,
    /// Sum over the links, as the reference counts them.
    pub score: i32,
}

/// NVLinks that a GPU has at most.
const LINKS: u32 = 18;

/// Asks the driver for everything. A GPU that does not answer is the one of `before`, with its fault.
///
/// # Errors
/// The driver answers nothing at all.
pub fn read(nvml: &Nvml, sysfs: &Path, before: Option<&Reading>) -> Result<Reading, NvmlError> {
    let count = nvml.device_count()?;
    let mut reading = Reading::default();
    let mut devices = Vec::new();
    for index in 0..count {
        let answer = nvml
            .device_by_index(index)
            .and_then(|device| Ok((gpu(&device, index, sysfs)?, device)));
        match answer {
            Ok((gpu, device)) => {
                devices.push((gpu.uuid.clone(), gpu.pci_bus_id.clone(), device));
                reading.gpus.push(gpu);
            }
            // The driver as a whole: nothing is known of any GPU.
            Err(
                error @ (NvmlError::Uninitialized
                | NvmlError::DriverNotLoaded
                | NvmlError::LibRmVersionMismatch),
            ) => return Err(error),
            Err(error) => {
                let known = before.into_iter().flat_map(|before| &before.gpus);
                match known.into_iter().find(|gpu| gpu.index == index) {
                    Some(gpu) => reading.gpus.push(Physical {
                        fault: Some(error.to_string()),
                        ..gpu.clone()
                    }),
                    None => reading.problems.push(format!(
                        "GPU {index}: {error}; nothing is known of it, so it is not offered"
                    )),
                }
            }
        }
    }
    drop_moved(&mut reading);
    let ends: Vec<Ends> = devices
        .iter()
        .map(|(.., device)| ends(device, &devices))
        .collect();
    reading.pairs = pairs(&devices, &ends);
    reading.wires = wires::of_gpus(&devices, &ends);
    reading.nics = wires::nics(sysfs);
    let known = before.into_iter().flat_map(|before| &before.wires);
    for wires in known {
        let here = reading.gpus.iter().any(|gpu| gpu.uuid == wires.gpu);
        // The earlier links of a GPU that does not answer.
        if here && !reading.wires.iter().any(|it| it.gpu == wires.gpu) {
            reading.wires.push(wires.clone());
        }
    }
    let known = before.into_iter().flat_map(|before| &before.pairs);
    for pair in known {
        let here = |uuid: &str| reading.gpus.iter().any(|gpu| gpu.uuid == uuid);
        let asked = |uuid: &str| devices.iter().any(|(known, ..)| known == uuid);
        // The earlier scores of pairs with a GPU that does not answer.
        if here(&pair.from) && here(&pair.to) && !(asked(&pair.from) && asked(&pair.to)) {
            reading.pairs.push(pair.clone());
        }
    }
    Ok(reading)
}

/// The driver numbers its GPUs again when one has fallen off: what is remembered under an index may be a GPU that has
/// answered under another, and each is there once.
fn drop_moved(reading: &mut Reading) {
    let answered = reading.gpus.iter().filter(|gpu| gpu.fault.is_none());
    let answered: BTreeSet<String> = answered.map(|gpu| gpu.uuid.clone()).collect();
    let (kept, moved): (Vec<_>, Vec<_>) = std::mem::take(&mut reading.gpus)
        .into_iter()
        .partition(|gpu| gpu.fault.is_none() || !answered.contains(&gpu.uuid));
    reading.gpus = kept;
    for gpu in moved {
        reading.problems.push(format!(
            "GPU {}: {}; nothing is known of it, so it is not offered",
            gpu.index,
            gpu.fault.unwrap_or_default()
        ));
    }
}

fn gpu(device: &Device<'_>, index: u32, sysfs: &Path) -> Result<Physical, NvmlError> {
    let pci_bus_id = device.pci_info()?.bus_id;
    let mig = match device.mig_mode() {
        Ok(mode) => Some(mode.current == 1),
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => None,
        Err(error) => return Err(error),
    };
    let profiles = match mig {
        Some(true) => partition::profiles(device)?,
        _ => Vec::new(),
    };
    Ok(Physical {
        uuid: device.uuid()?,
        index,
        name: device.name()?,
        memory_bytes: match device.memory_info() {
            Ok(memory) => Some(memory.total).filter(|bytes| *bytes > 0),
            Err(NvmlError::NotSupported) => None,
            Err(error) => return Err(error),
        },
        minor: device.minor_number()?,
        numa: numa_node(sysfs, &pci_bus_id),
        pci_bus_id,
        mig,
        profiles: profiles
            .into_iter()
            .map(|profile| Shape {
                name: profile.name,
                slices: profile.slices,
                most: profile.most,
                memory_mib: profile.memory_mib,
                placements: profile.placements,
            })
            .collect(),
        fault: None,
    })
}

/// The NUMA node that the kernel reports for a PCI device; 0 if it reports none.
fn numa_node(sysfs: &Path, pci_bus_id: &str) -> u32 {
    // NVML writes the domain with eight digits, the kernel with four.
    let (domain, rest) = pci_bus_id.split_once(':').unwrap_or(("0", pci_bus_id));
    let domain = u32::from_str_radix(domain, 16).unwrap_or(0);
    let name = format!("{domain:04x}:{}", rest.to_ascii_lowercase());
    let path = sysfs.join("bus/pci/devices").join(name).join("numa_node");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // -1 is "none".
    text.trim().parse().unwrap_or(0)
}

/// The other ends of a GPU's NVLinks.
#[derive(Debug, Default)]
struct Ends {
    /// Links by the PCI address at the other end.
    to: BTreeMap<String, i32>,
    /// Links to something of NVIDIA that is no GPU of this node: a switch.
    switch: i32,
    /// Version of the first link that works, as NVML numbers them; 0 for none.
    version: u32,
}

impl Ends {
    /// NVLinks to the GPU at this PCI address whose ends are `other`.
    fn between(&self, address: &str, other: &Self) -> i32 {
        let direct = self.to.get(&address.to_ascii_lowercase()).copied();
        direct.unwrap_or(0) + self.switch.min(other.switch)
    }
}

fn ends(device: &Device<'_>, gpus: &[(String, String, Device<'_>)]) -> Ends {
    let mut ends = Ends::default();
    for link in 0..LINKS {
        let link = device.link_wrapper_for(link);
        // An error means a GPU without links, or without this link.
        if !link.is_active().unwrap_or(false) {
            continue;
        }
        if ends.version == 0 {
            ends.version = link.version().unwrap_or(0);
        }
        let Ok(remote) = link.remote_pci_info() else {
            continue;
        };
        let address = remote.bus_id.to_ascii_lowercase();
        if gpus.iter().any(|(_, known, _)| same(known, &address)) {
            *ends.to.entry(address).or_default() += 1;
        } else if remote.pci_device_id & 0xffff == NVIDIA {
            ends.switch += 1;
        }
    }
    ends
}

/// NVIDIA's number among the makers of PCI devices.
const NVIDIA: u32 = 0x10de;

fn same(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}

/// A pair's score is the sum over the ways between two GPUs: one over PCIe, and each NVLink.
fn pairs(devices: &[(String, String, Device<'_>)], ends: &[Ends]) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for (at, (from, _, device)) in devices.iter().enumerate() {
        for (to_at, (to, to_bus, other)) in devices.iter().enumerate() {
            if at == to_at {
                continue;
            }
            let pcie = device.nvml().topology_common_ancestor(device, other);
            let links = match (ends.get(at), ends.get(to_at)) {
                (Some(one), Some(other)) => one.between(to_bus, other),
                _ => 0,
            };
            pairs.push(Pair {
                from: from.clone(),
                to: to.clone(),
                score: pcie.map_or(0, |level| pcie_score(&level)) + NVLINK * links,
            });
        }
    }
    pairs
}

/// The score of one NVLink.
const NVLINK: i32 = 100;

/// The score of the way over PCIe, as the reference has it: the shorter, the more.
fn pcie_score(level: &TopologyLevel) -> i32 {
    match level {
        TopologyLevel::Internal => 60,
        TopologyLevel::Single => 50,
        TopologyLevel::Multiple => 40,
        TopologyLevel::HostBridge => 30,
        TopologyLevel::Node => 20,
        TopologyLevel::System => 10,
    }
}

impl Shape {
    /// As `placement` has it. Compute is the shape's part of seven slices, rounded up, as the reference counts it.
    pub(super) fn profile(&self) -> MigProfile {
        MigProfile {
            name: self.name.clone(),
            memory_bytes: self.memory_mib << 20,
            cores: (self.slices * 100).div_ceil(7).min(100),
            slices: self.slices,
            placements: self
                .placements
                .iter()
                .map(|&(start, size)| Span { start, size })
                .collect(),
        }
    }
}

impl From<&Pair> for PairScore {
    fn from(pair: &Pair) -> Self {
        Self {
            from: pair.from.clone(),
            to: pair.to.clone(),
            score: pair.score,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renumbered_gpu_is_listed_once() {
        let gpu = |index: u32, uuid: &str, fault: Option<&str>| Physical {
            uuid: uuid.to_owned(),
            index,
            name: String::from("NVIDIA A"),
            memory_bytes: Some(16 << 30),
            pci_bus_id: String::new(),
            minor: index,
            numa: 0,
            mig: None,
            profiles: Vec::new(),
            fault: fault.map(str::to_owned),
        };
        // GPU-a fell off, the numbers moved, and the GPU that is now number 1 does not answer; nor does
        // number 2.
        let mut reading = Reading {
            gpus: vec![
                gpu(0, "GPU-b", None),
                gpu(1, "GPU-b", Some("GPU is lost")),
                gpu(2, "GPU-c", Some("GPU is lost")),
            ],
            ..Reading::default()
        };

        drop_moved(&mut reading);

        let left: Vec<&str> = reading.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        assert_eq!(left, ["GPU-b", "GPU-c"]);
        assert_eq!(reading.gpus[0].fault, None);
        assert_eq!(
            reading.problems,
            ["GPU 1: GPU is lost; nothing is known of it, so it is not offered"]
        );
    }

    #[test]
    fn numa_node_comes_from_the_kernel() {
        let root = tempfile::tempdir().unwrap();
        for (device, node) in [("0000:65:00.0", "1"), ("0001:0a:00.0", "-1")] {
            let folder = root.path().join("bus/pci/devices").join(device);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("numa_node"), format!("{node}\n")).unwrap();
        }

        assert_eq!(numa_node(root.path(), "00000000:65:00.0"), 1);
        assert_eq!(numa_node(root.path(), "00000001:0A:00.0"), 0);
        assert_eq!(numa_node(root.path(), "00000000:66:00.0"), 0);
        assert_eq!(numa_node(root.path(), ""), 0);
    }

    #[test]
    fn profile_compute_is_its_sevenths_rounded_up() {
        let cores = |slices| {
            let shape = Shape {
                name: String::new(),
                slices,
                most: 1,
                memory_mib: 9728,
                placements: vec![(0, 1)],
            };
            shape.profile().cores
        };

        assert_eq!([1, 2, 3, 4, 7].map(cores), [15, 29, 43, 58, 100]);
    }
}
