//! How a GPU is cut into MIG devices: the text of `VGPU_SIM_MIG` and the shapes that it makes. The cut
//! is made with the board and stays; creating and destroying instances is not simulated.
//!
//! `0=1g,1g,3g;1=7g`: a GPU's index, then the size of each MIG device in sevenths of the GPU.

use crate::Board;

/// Sevenths of its multiprocessors that a GPU has for MIG.
pub const SLICES: u32 = 7;
/// Most MIG devices on a GPU.
pub const MAX_INSTANCES: u32 = 7;

/// One MIG device: a GPU instance with one compute instance that fills it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    /// Among the MIG devices of its GPU.
    pub index: u32,
    /// Id of its GPU instance; that of its compute instance is 0.
    pub gpu_instance: u32,
    /// Sevenths of the GPU's multiprocessors.
    pub sevenths: u32,
    /// Memory in bytes.
    pub bytes: u64,
}

impl Instance {
    /// A part of a GPU with `total` bytes; memory comes in eighths, as on the real ones.
    #[must_use]
    pub fn cut(total: u64, index: u32, sevenths: u32) -> Self {
        let eighths = match sevenths {
            1 => 1,
            2 => 2,
            3 | 4 => 4,
            _ => 8,
        };
        Self {
            index,
            // The real ids start at 1 where there are several; 0 is the whole GPU.
            gpu_instance: if sevenths == SLICES { 0 } else { index + 1 },
            sevenths,
            bytes: total / 8 * eighths,
        }
    }

    /// The name of its shape, such as `1g.5gb`.
    #[must_use]
    pub fn shape(&self) -> String {
        format!("{}g.{}gb", self.sevenths, (self.bytes >> 30).max(1))
    }
}

/// Reads how `text` cuts each GPU that it names.
///
/// # Errors
/// With what was read and what is accepted.
pub fn parse(text: &str) -> Result<Vec<(usize, Vec<u32>)>, String> {
    let wrong = || {
        format!(
            "VGPU_SIM_MIG is {text:?}: for each GPU that is cut its index, =, and sizes out of 1g, 2g, \
             3g, 4g, 7g with commas between them, at most 7g together; a semicolon between GPUs"
        )
    };
    let mut cuts: Vec<(usize, Vec<u32>)> = Vec::new();
    for part in text
        .split(';')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (index, list) = part.split_once('=').ok_or_else(wrong)?;
        let index = index.trim().parse().map_err(|_| wrong())?;
        let mut sizes: Vec<u32> = Vec::new();
        for size in list.split(',') {
            let size = size
                .trim()
                .strip_suffix('g')
                .and_then(|size| size.parse().ok());
            sizes.push(
                size.filter(|size| matches!(size, 1..=4 | 7))
                    .ok_or_else(wrong)?,
            );
        }
        if sizes.iter().sum::<u32>() > SLICES || cuts.iter().any(|(known, _)| *known == index) {
            return Err(wrong());
        }
        cuts.push((index, sizes));
    }
    Ok(cuts)
}

impl Board {
    /// The MIG devices of a GPU; none when it is not cut.
    #[must_use]
    pub fn instances(&self, gpu: usize) -> Vec<Instance> {
        let total = self.total_bytes(gpu);
        // The settings were understood when the board was made.
        let cuts = parse(&self.mig()).unwrap_or_default();
        let sizes = cuts
            .into_iter()
            .find(|(index, _)| *index == gpu)
            .map(|(_, sizes)| sizes);
        sizes
            .unwrap_or_default()
            .into_iter()
            .zip(0..)
            .map(|(sevenths, index)| Instance::cut(total, index, sevenths))
            .collect()
    }

    /// The 16 bytes of a MIG device's identity: its GPU's, with its index in the last two.
    #[must_use]
    pub fn instance_uuid_bytes(&self, gpu: usize, index: u32) -> [u8; 16] {
        let mut bytes = self.uuid_bytes(gpu);
        bytes[14] = 0xf0;
        bytes[15] = index as u8;
        bytes
    }

    /// The same as NVML and `CUDA_VISIBLE_DEVICES` write it.
    #[must_use]
    pub fn instance_uuid(&self, gpu: usize, index: u32) -> String {
        let [.., high, low] = self.instance_uuid_bytes(gpu, index);
        let whole = self.uuid(gpu);
        let digits = whole.strip_prefix("GPU-").unwrap_or(&whole);
        let kept = digits.len().saturating_sub(4);
        format!("MIG-{}{high:02x}{low:02x}", &digits[..kept])
    }

    /// The MIG device that `name` names: `MIG-<uuid>`, or as of old `MIG-GPU-<uuid>/<gi>/<ci>`.
    #[must_use]
    pub fn instance_named(&self, name: &str) -> Option<(usize, Instance)> {
        let all = (0..self.gpus()).flat_map(|gpu| {
            self.instances(gpu)
                .into_iter()
                .map(move |instance| (gpu, instance))
        });
        let old = |gpu: usize, instance: &Instance| {
            format!("MIG-{}/{}/0", self.uuid(gpu), instance.gpu_instance)
        };
        all.into_iter().find(|(gpu, instance)| {
            self.instance_uuid(*gpu, instance.index)
                .eq_ignore_ascii_case(name)
                || old(*gpu, instance).eq_ignore_ascii_case(name)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn a_gpu_is_cut_as_the_text_says() {
        assert_eq!(
            parse("0=1g, 1g,3g ;2=7g"),
            Ok(vec![(0, vec![1, 1, 3]), (2, vec![7])])
        );
        assert_eq!(parse(""), Ok(vec![]));
    }

    #[test]
    fn what_no_gpu_can_be_cut_into_is_refused_with_what_was_read() {
        for text in ["1g", "0=", "0=5g", "0=4g,4g", "x=1g", "0=1g;0=2g", "0=1"] {
            assert!(parse(text).unwrap_err().contains(text), "{text}");
        }
    }

    #[test]
    fn memory_comes_in_eighths() {
        let gib = |sevenths| Instance::cut(40 << 30, 0, sevenths).bytes >> 30;

        assert_eq!([1, 2, 3, 4, 7].map(gib), [5, 10, 20, 20, 40]);
        assert_eq!(Instance::cut(40 << 30, 2, 1).shape(), "1g.5gb");
    }

    #[test]
    fn a_mig_device_is_found_by_both_of_its_names() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            mig: "1=2g,1g".to_owned(),
            ..Config::default()
        };
        let board = Board::create(&directory.path().join("board"), &config).unwrap();

        let named = |name: &str| board.instance_named(name).map(|(gpu, it)| (gpu, it.index));
        assert_eq!(named(&board.instance_uuid(1, 1)), Some((1, 1)));
        assert_eq!(named(&format!("MIG-{}/1/0", board.uuid(1))), Some((1, 0)));
        assert_eq!(named(&board.uuid(1)), None);
        assert_eq!(board.instances(0), []);
    }
}
