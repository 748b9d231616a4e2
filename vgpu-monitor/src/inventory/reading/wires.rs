//! Bandwidths of NVLink, PCIe and RoCE. Owns the tables from a version to a bandwidth. Never how well two GPUs suit each
//! other: that is the score of a pair.

use std::path::Path;

use nvml_wrapper::Device;

use super::Ends;
use crate::node_gpus::{Nic, Wires};

/// Version and bandwidth of one NVLink in MB/s, both directions together, by NVML's number
/// (`nvmlNvlinkVersion_enum`): 20 GB/s each way for 1.0, 25 from 2.0 to 4.0, 50 for 5.0.
fn nvlink(version: u32) -> (&'static str, u32) {
    match version {
        1 => ("1.0", 40_000),
        2 => ("2.0", 50_000),
        3 => ("2.2", 50_000),
        4 => ("3.0", 50_000),
        5 => ("3.1", 50_000),
        6 => ("4.0", 50_000),
        7 => ("5.0", 100_000),
        _ => ("", 0),
    }
}

/// Bandwidth of a PCIe slot in MB/s, both directions together, as vendors round it: 250 MB/s a lane and direction for
/// generation 1, and twice as much for each later one.
fn pcie_mb_s(generation: u32, lanes: u32) -> u32 {
    match generation {
        1..=7 => (500_u32 << (generation - 1)).saturating_mul(lanes.min(32)),
        _ => 0,
    }
}

/// The wires of the GPUs that answer.
pub(super) fn of_gpus(devices: &[(String, String, Device<'_>)], ends: &[Ends]) -> Vec<Wires> {
    let each = devices.iter().zip(ends);
    each.map(|((uuid, _, device), own)| {
        let others = devices.iter().zip(ends).filter(|((id, ..), _)| id != uuid);
        let nvlinks = others.filter_map(|((id, address, _), other)| {
            let links = u32::try_from(own.between(address, other)).unwrap_or(0);
            (links > 0).then(|| (id.clone(), links))
        });
        let (nvlink_version, nvlink_mb_s) = nvlink(own.version);
        // A GPU that does not say has no bandwidth here, and is offered all the same.
        let generation = device.max_pcie_link_gen().unwrap_or(0);
        let lanes = device.max_pcie_link_width().unwrap_or(0);
        Wires {
            gpu: uuid.clone(),
            nvlinks: nvlinks.collect(),
            nvlink_count: u32::try_from(own.to.values().sum::<i32>() + own.switch).unwrap_or(0),
            nvlink_version: nvlink_version.to_owned(),
            nvlink_mb_s,
            pcie_mb_s: pcie_mb_s(generation, lanes),
        }
    })
    .collect()
}

/// The ports of network cards that carry RDMA over Ethernet and are up, by name and port.
pub(super) fn nics(sysfs: &Path) -> Vec<Nic> {
    let mut nics = Vec::new();
    let folder = |path: &Path| -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(path).into_iter().flatten();
        entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect()
    };
    let name = |path: &Path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    for device in folder(&sysfs.join("class/infiniband")) {
        let numa = std::fs::read_to_string(device.join("device/numa_node")).unwrap_or_default();
        for port in folder(&device.join("ports")) {
            let read = |file: &str| std::fs::read_to_string(port.join(file)).unwrap_or_default();
            let up = read("state").trim().ends_with("ACTIVE");
            if !up || read("link_layer").trim() != "Ethernet" {
                continue;
            }
            if let (Ok(number), Some(mb_s)) = (name(&port).parse(), rate_mb_s(&read("rate"))) {
                nics.push(Nic {
                    name: name(&device),
                    port: number,
                    // -1 is "none".
                    numa: numa.trim().parse().ok(),
                    mb_s,
                });
            }
        }
    }
    nics.sort_by(|one, other| (&one.name, one.port).cmp(&(&other.name, other.port)));
    nics
}

/// MB/s, both directions together, of a rate as the kernel writes it: `100 Gb/sec (4X EDR)`, `2.5 Gb/sec (1X SDR)`.
fn rate_mb_s(text: &str) -> Option<u32> {
    let number = text.trim().strip_suffix(')').unwrap_or(text.trim());
    let number = number.split_once(" Gb/sec")?.0;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let tenths = whole.parse::<u32>().ok()?.checked_mul(10)?;
    let tenths = tenths.checked_add(part.get(..1)?.parse().ok()?)?;
    // A tenth of a gigabit a second is 12.5 MB/s, and each direction has it.
    (tenths > 0).then(|| tenths.saturating_mul(25))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_match_the_vendors_figures() {
        // A100: 12 links of 3.0 are 600 GB/s. H100: 18 of 4.0 are 900. B200: 18 of 5.0 are 1800.
        assert_eq!(12 * nvlink(4).1, 600_000);
        assert_eq!(18 * nvlink(6).1, 900_000);
        assert_eq!(18 * nvlink(7).1, 1_800_000);
        assert_eq!(nvlink(99), ("", 0));
        assert_eq!(pcie_mb_s(3, 16), 32_000);
        assert_eq!(pcie_mb_s(4, 16), 64_000);
        assert_eq!(pcie_mb_s(5, 16), 128_000);
        assert_eq!(pcie_mb_s(0, 16), 0);
        assert_eq!(pcie_mb_s(4_000_000, 16), 0);
        assert_eq!(rate_mb_s("100 Gb/sec (4X EDR)\n"), Some(25_000));
        assert_eq!(rate_mb_s("2.5 Gb/sec (1X SDR)\n"), Some(625));
        assert_eq!(rate_mb_s("0 Gb/sec (4X SDR)"), None);
        assert_eq!(rate_mb_s("fast"), None);
    }

    #[test]
    fn roce_counts_only_active_ethernet_ports() {
        let root = tempfile::tempdir().unwrap();
        for (device, layer, state, rate) in [
            ("mlx5_1", "Ethernet", "4: ACTIVE", "200 Gb/sec (4X HDR)"),
            ("mlx5_0", "Ethernet", "4: ACTIVE", "100 Gb/sec (4X EDR)"),
            ("mlx5_2", "Ethernet", "1: DOWN", "100 Gb/sec (4X EDR)"),
            ("mlx5_3", "InfiniBand", "4: ACTIVE", "400 Gb/sec (4X NDR)"),
            ("mlx5_4", "Ethernet", "4: ACTIVE", ""),
        ] {
            let port = root
                .path()
                .join("class/infiniband")
                .join(device)
                .join("ports/1");
            std::fs::create_dir_all(&port).unwrap();
            std::fs::write(port.join("link_layer"), format!("{layer}\n")).unwrap();
            std::fs::write(port.join("state"), format!("{state}\n")).unwrap();
            std::fs::write(port.join("rate"), format!("{rate}\n")).unwrap();
        }

        let found: Vec<(String, u32)> = nics(root.path())
            .into_iter()
            .map(|nic| (nic.name, nic.mb_s))
            .collect();

        assert_eq!(
            found,
            [("mlx5_0".to_owned(), 25_000), ("mlx5_1".to_owned(), 50_000)]
        );
        assert_eq!(nics(&root.path().join("nothing")), []);
    }
}
