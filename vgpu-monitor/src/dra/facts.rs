//! Facts of the driver and the kernel about the GPUs that the inventory does not have, for the attributes of devices.
//! A driver that hangs holds up no other part: the slices are published without it, and again when it has answered.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvml_wrapper::Nvml;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::slices::{Facts, NodeFacts, bus_id};
use crate::node_gpus::{Inventories, Inventory};

/// Reads the facts whenever the GPUs change. Needs a running tokio.
#[must_use]
pub fn start(mut inventories: Inventories, sysfs: PathBuf) -> watch::Receiver<Arc<NodeFacts>> {
    let (send, receive) = watch::channel(Arc::default());
    tokio::spawn(async move {
        inventories.mark_changed();
        let mut known = Vec::new();
        while inventories.changed().await.is_ok() {
            let Some(inventory) = inventories.borrow_and_update().clone() else {
                continue;
            };
            let uuids: Vec<String> = inventory
                .gpus
                .iter()
                .map(|it| it.device.id.clone())
                .collect();
            if uuids == known {
                continue;
            }
            let sysfs = sysfs.clone();
            let read = spawn_blocking(move || read(&inventory, &sysfs)).await;
            if let Ok(facts) = read {
                known = uuids;
                send.send_replace(Arc::new(facts));
            }
        }
    });
    receive
}

fn read(inventory: &Inventory, sysfs: &Path) -> NodeFacts {
    let nvml = Nvml::init().ok();
    let capability = |uuid: &str| {
        let device = nvml.as_ref()?.device_by_uuid(uuid).ok()?;
        let found = device.cuda_compute_capability().ok()?;
        let (major, minor) = (u32::try_from(found.major), u32::try_from(found.minor));
        Some((major.ok()?, minor.ok()?))
    };
    let gpus: BTreeMap<String, Facts> = inventory
        .gpus
        .iter()
        .map(|gpu| {
            let facts = Facts {
                capability: capability(&gpu.device.id),
                pcie_root: pcie_root(sysfs, &gpu.pci_bus_id),
            };
            (gpu.device.id.clone(), facts)
        })
        .collect();
    NodeFacts {
        driver: nvml
            .as_ref()
            .and_then(|nvml| nvml.sys_driver_version().ok()),
        gpus,
    }
}

/// The root complex of a PCI device: the first part of its path below /sys/devices.
fn pcie_root(sysfs: &Path, address: &str) -> Option<String> {
    let link = sysfs.join("bus/pci/devices").join(bus_id(address)?);
    let real = std::fs::canonicalize(link).ok()?;
    let mut parts = real.iter().filter_map(|part| part.to_str());
    parts.find(|part| is_root(part)).map(str::to_owned)
}

/// `pci0000:00`.
fn is_root(part: &str) -> bool {
    let Some((domain, bus)) = part.strip_prefix("pci").and_then(|it| it.split_once(':')) else {
        return false;
    };
    let hex = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_hexdigit());
    hex(domain) && hex(bus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_complex_comes_from_the_kernel() {
        let root = tempfile::tempdir().unwrap();
        let sysfs = root.path();
        let real = sysfs.join("devices/pci0000:60/0000:60:01.0/0000:65:00.0");
        std::fs::create_dir_all(&real).unwrap();
        std::fs::create_dir_all(sysfs.join("bus/pci/devices")).unwrap();
        let link = sysfs.join("bus/pci/devices/0000:65:00.0");
        std::os::unix::fs::symlink(real, link).unwrap();

        let root = pcie_root(sysfs, "00000000:65:00.0");
        assert_eq!(root.as_deref(), Some("pci0000:60"));
        assert_eq!(pcie_root(sysfs, "00000000:66:00.0"), None);
        assert_eq!(pcie_root(sysfs, ""), None);
    }
}
