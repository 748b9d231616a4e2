//! The GPUs' addresses on the PCI bus: the text of `VGPU_SIM_PCI`, else addresses that this machine has, so that a
//! program that looks for them below `/sys` (NCCL does) finds something there.

use std::fmt;
use std::path::Path;

use crate::setting::BadSetting;

/// The most GPUs on a board.
pub const MAX_GPUS: usize = 16;

/// A place on the PCI bus; its function is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Its domain.
    pub domain: u32,
    /// The bus.
    pub bus: u32,
    /// The device on the bus.
    pub device: u32,
}

impl Address {
    /// Reads `0000:3b:00.0`, with or without domain and function.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let place = text.split_once('.').map_or(text, |(place, _)| place);
        let number = |part: &str| u32::from_str_radix(part, 16).ok();
        let parts: Vec<u32> = place.split(':').map(number).collect::<Option<_>>()?;
        let (domain, bus, device) = match parts[..] {
            [domain, bus, device] => (domain, bus, device),
            [bus, device] => (0, bus, device),
            _ => return None,
        };
        (bus < 256 && device < 32).then_some(Self {
            domain,
            bus,
            device,
        })
    }

    /// The place of a GPU on a machine that shows none.
    #[must_use]
    pub fn default_of(gpu: usize) -> Self {
        Self {
            domain: 0,
            bus: gpu as u32 + 1,
            device: 0,
        }
    }
}

/// As `/sys` and CUDA write it; with `{:#}` as NVML does, with eight digits of the domain.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if f.alternate() { 8 } else { 4 };
        let Self {
            domain,
            bus,
            device,
        } = self;
        write!(f, "{domain:0digits$X}:{bus:02X}:{device:02X}.0")
    }
}

/// Reads addresses separated by commas.
///
/// # Errors
/// With what was read and what is accepted.
pub fn parse(text: &str) -> Result<Vec<Address>, BadSetting> {
    let wrong = || {
        let accepted = "PCI addresses such as 0000:3b:00.0, each once, with commas between them";
        BadSetting::value("VGPU_SIM_PCI", text, accepted)
    };
    let mut all = Vec::new();
    for part in text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let address = Address::parse(part).ok_or_else(wrong)?;
        if all.contains(&address) || all.len() == MAX_GPUS {
            return Err(wrong());
        }
        all.push(address);
    }
    Ok(all)
}

/// The addresses of `count` GPUs: those that the setting names, then those that the machine below `sys` has, then
/// those that no machine has to have.
#[must_use]
pub(crate) fn chosen(set: Vec<Address>, sys: &Path, count: usize) -> Vec<Address> {
    let mut all = set;
    if all.is_empty() {
        all = on_machine(sys);
    }
    all.truncate(count);
    for place in 0.. {
        if all.len() >= count {
            break;
        }
        let address = Address::default_of(place);
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

/// The PCI devices that NCCL would find, in their order.
fn on_machine(sys: &Path) -> Vec<Address> {
    let Ok(entries) = std::fs::read_dir(sys.join("bus/pci/devices")) else {
        return Vec::new();
    };
    let mut found: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".0"))
        .filter(|name| {
            let bus = name.rsplit_once(':').map_or("", |(bus, _)| bus);
            sys.join("class/pci_bus").join(bus).exists()
        })
        .collect();
    found.sort_unstable();
    found
        .iter()
        .filter_map(|name| Address::parse(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(all: &[Address]) -> Vec<String> {
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_are_read_as_the_tools_write_them() {
        let read = parse("0000:3b:00.0, 00000001:AF:1f.0, 5:0").unwrap();

        assert_eq!(
            text(&read),
            ["0000:3B:00.0", "0001:AF:1F.0", "0000:05:00.0"]
        );
        assert_eq!(format!("{:#}", read[1]), "00000001:AF:1F.0");
        for bad in ["bus 3", "0000:3b:00.0,3b:0", "100:0", "1:20"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn gpus_stand_where_the_machine_has_devices() {
        let sys = tempfile::tempdir().unwrap();
        for device in [
            "0000:00:02.0",
            "0000:00:01.0",
            "0000:00:01.1",
            "0000:07:00.0",
        ] {
            std::fs::create_dir_all(sys.path().join("bus/pci/devices").join(device)).unwrap();
        }
        std::fs::create_dir_all(sys.path().join("class/pci_bus/0000:00")).unwrap();

        assert_eq!(
            text(&chosen(Vec::new(), sys.path(), 3)),
            ["0000:00:01.0", "0000:00:02.0", "0000:01:00.0"]
        );
        let set = parse("0000:3b:00.0").unwrap();
        assert_eq!(
            text(&chosen(set, sys.path(), 2)),
            ["0000:3B:00.0", "0000:01:00.0"]
        );
        assert_eq!(
            text(&chosen(Vec::new(), Path::new("/nowhere"), 1)),
            ["0000:01:00.0"]
        );
    }
}
