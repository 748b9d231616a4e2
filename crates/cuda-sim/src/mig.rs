//! How a GPU is divided into MIG devices: the text of `VGPU_SIM_MIG` with which a board begins, the profiles, and their
//! placements. Instances are created and destroyed on the board like real ones, and MIG mode is switched there.
//!
//! `0=1g,1g,3g;1=7g;2=on`: a GPU's index, then the size of each MIG device in sevenths of the GPU, or that it is in MIG
//! mode and not divided yet.

use crate::Board;
use crate::setting::BadSetting;

/// Sevenths of its multiprocessors that a GPU has for MIG.
pub const SLICES: u32 = 7;
/// Eighths of its memory that a GPU has for MIG.
pub const MEMORY_SLICES: u32 = 8;
/// Most MIG devices on a GPU.
pub const MAX_INSTANCES: u32 = 7;

/// The sizes in sevenths that an instance can have.
pub const SIZES: [u32; 5] = [1, 2, 3, 4, 7];

/// Why an instance is not made or destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceRefused {
    /// The GPU is not in MIG mode.
    Off,
    /// There is no room.
    NoRoom,
    /// An instance of that size cannot be placed there.
    Misplaced,
    /// There is no such instance.
    Unknown,
    /// A process works on it, or it has a compute instance.
    InUse,
}

/// One GPU instance; with its compute instance, which fills it, a MIG device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    /// Among the instances of its GPU; stays while it lives.
    pub index: u32,
    /// Id of its GPU instance; that of its compute instance is 0.
    pub gpu_instance: u32,
    /// Sevenths of the GPU's multiprocessors.
    pub sevenths: u32,
    /// Memory in bytes.
    pub bytes: u64,
    /// The eighth of the GPU's memory at which it begins.
    pub start: u32,
    /// Whether it has its compute instance.
    pub compute: bool,
}

/// Eighths of the memory of an instance with this many sevenths.
#[must_use]
pub fn eighths(sevenths: u32) -> u32 {
    match sevenths {
        1 => 1,
        2 => 2,
        3 | 4 => 4,
        _ => MEMORY_SLICES,
    }
}

/// The eighths at which an instance with this many sevenths can begin, as on an A100.
#[must_use]
pub fn starts(sevenths: u32) -> &'static [u32] {
    match sevenths {
        1 => &[0, 1, 2, 3, 4, 5, 6],
        2 => &[0, 2, 4],
        3 => &[0, 4],
        4 | 7 => &[0],
        _ => &[],
    }
}

impl Instance {
    /// A part of a GPU with `total` bytes; memory comes in eighths, as on the real ones.
    #[must_use]
    pub fn cut(total: u64, index: u32, sevenths: u32) -> Self {
        Self {
            index,
            // The real ids start at 1 if there are several; 0 is the whole GPU.
            gpu_instance: if sevenths == SLICES { 0 } else { index + 1 },
            sevenths,
            bytes: total / u64::from(MEMORY_SLICES) * u64::from(eighths(sevenths)),
            start: 0,
            compute: true,
        }
    }

    /// The name of its shape, such as `1g.5gb`.
    #[must_use]
    pub fn shape(&self) -> String {
        format!("{}g.{}gb", self.sevenths, (self.bytes >> 30).max(1))
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct InstanceSlot {
    /// 0 is no instance.
    sevenths: u32,
    start: u32,
    compute: u32,
    reserved: u32,
}

/// How a GPU is divided, in the board's memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    on: u64,
    parts: [InstanceSlot; MAX_INSTANCES as usize],
}

impl Cut {
    /// A GPU that is not in MIG mode.
    pub(crate) const NONE: Self = Self {
        on: 0,
        parts: [InstanceSlot {
            sevenths: 0,
            start: 0,
            compute: 0,
            reserved: 0,
        }; MAX_INSTANCES as usize],
    };

    /// A GPU in MIG mode without an instance.
    pub(crate) const EMPTY: Self = Self {
        on: 1,
        ..Self::NONE
    };

    /// A GPU in MIG mode with MIG devices of these sizes.
    pub(crate) fn into(sizes: &[u32]) -> Result<Self, InstanceRefused> {
        let mut cut = Self::EMPTY;
        // Large ones first, because they have few placements; small ones are placed high to stay out of their way.
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(sizes[at]));
        for at in order {
            let places = starts(sizes[at]);
            let mut places: Vec<u32> = places.to_vec();
            if matches!(sizes[at], 1 | 3) {
                places.reverse();
            }
            let free = places
                .into_iter()
                .find(|&start| cut.is_free(sizes[at], start));
            cut.parts[at] = InstanceSlot {
                sevenths: sizes[at],
                start: free.ok_or(InstanceRefused::NoRoom)?,
                compute: 1,
                reserved: 0,
            };
        }
        Ok(cut)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on != 0
    }

    fn is_free(&self, sevenths: u32, start: u32) -> bool {
        let end = start + eighths(sevenths);
        end <= MEMORY_SLICES
            && self.parts.iter().all(|part| {
                part.sevenths == 0
                    || end <= part.start
                    || part.start + eighths(part.sevenths) <= start
            })
    }

    pub(crate) fn instance(&self, total: u64, index: u32) -> Option<Instance> {
        let part = self.parts.get(index as usize)?;
        (part.sevenths > 0).then(|| Instance {
            start: part.start,
            compute: part.compute != 0,
            ..Instance::cut(total, index, part.sevenths)
        })
    }

    pub(crate) fn instances(&self, total: u64) -> Vec<Instance> {
        (0..MAX_INSTANCES)
            .filter_map(|index| self.instance(total, index))
            .collect()
    }

    pub(crate) fn create(
        &mut self,
        sevenths: u32,
        start: Option<u32>,
    ) -> Result<u32, InstanceRefused> {
        if !self.is_on() {
            return Err(InstanceRefused::Off);
        }
        let places = starts(sevenths);
        let start = match start {
            Some(start) if !places.contains(&start) => return Err(InstanceRefused::Misplaced),
            Some(start) => Some(start).filter(|&start| self.is_free(sevenths, start)),
            None => places
                .iter()
                .copied()
                .find(|&start| self.is_free(sevenths, start)),
        };
        let start = start.ok_or(InstanceRefused::NoRoom)?;
        let index = self.parts.iter().position(|part| part.sevenths == 0);
        let index = index.ok_or(InstanceRefused::NoRoom)?;
        self.parts[index] = InstanceSlot {
            sevenths,
            start,
            compute: 0,
            reserved: 0,
        };
        Ok(index as u32)
    }

    pub(crate) fn set_compute(&mut self, index: u32, compute: bool) -> Result<(), InstanceRefused> {
        let part = self.parts.get_mut(index as usize);
        let part = part
            .filter(|part| part.sevenths > 0)
            .ok_or(InstanceRefused::Unknown)?;
        match (part.compute != 0, compute) {
            (true, true) => return Err(InstanceRefused::NoRoom),
            (false, false) => return Err(InstanceRefused::Unknown),
            _ => part.compute = u32::from(compute),
        }
        Ok(())
    }

    pub(crate) fn destroy(&mut self, index: u32) -> Result<(), InstanceRefused> {
        let part = self.parts.get_mut(index as usize);
        let part = part
            .filter(|part| part.sevenths > 0)
            .ok_or(InstanceRefused::Unknown)?;
        if part.compute != 0 {
            return Err(InstanceRefused::InUse);
        }
        part.sevenths = 0;
        Ok(())
    }
}

/// Reads how `text` cuts each GPU that it names.
///
/// # Errors
/// With what was read and what is accepted.
pub fn parse(text: &str) -> Result<Vec<(usize, Vec<u32>)>, BadSetting> {
    let wrong = || {
        let accepted = "for each GPU that is cut its index, =, and sizes out of 1g, 2g, \
             3g, 4g, 7g with commas between them that have room beside each other, at most 7g together, or \
             on for a GPU that is not cut yet; a semicolon between GPUs";
        BadSetting::value("VGPU_SIM_MIG", text, accepted)
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
        let is_whole = list.trim() == "on";
        for size in list.split(',').filter(|_| !is_whole) {
            let size = size
                .trim()
                .strip_suffix('g')
                .and_then(|size| size.parse().ok());
            sizes.push(
                size.filter(|size| matches!(size, 1..=4 | 7))
                    .ok_or_else(wrong)?,
            );
        }
        let known = cuts.iter().any(|(known, _)| *known == index);
        if known || sizes.iter().sum::<u32>() > SLICES || Cut::into(&sizes).is_err() {
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
        let mut instances = self.gpu_instances(gpu);
        instances.retain(|instance| instance.compute);
        instances
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
            parse("0=1g, 1g,3g ;2=7g;3=on"),
            Ok(vec![(0, vec![1, 1, 3]), (2, vec![7]), (3, vec![])])
        );
        assert_eq!(parse(""), Ok(vec![]));
    }

    #[test]
    fn what_no_gpu_can_be_cut_into_is_refused_with_what_was_read() {
        for text in [
            "1g",
            "0=",
            "0=5g",
            "0=4g,4g",
            "x=1g",
            "0=1g;0=2g",
            "0=1",
            "0=3g,3g,1g",
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
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

    #[test]
    fn a_mig_instance_needs_room_and_ends_only_when_idle() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            mig: "0=on".to_owned(),
            ..Config::default()
        };
        let path = directory.path().join("board");
        let board = Board::create(&path, &config).unwrap();

        let low = board.create_gpu_instance(0, 3, Some(0)).unwrap();
        assert_eq!(
            board.create_gpu_instance(0, 2, Some(2)),
            Err(InstanceRefused::NoRoom)
        );
        assert_eq!(
            board.create_gpu_instance(0, 2, Some(3)),
            Err(InstanceRefused::Misplaced)
        );
        assert_eq!(
            board.create_gpu_instance(0, 7, None),
            Err(InstanceRefused::NoRoom)
        );
        assert_eq!(
            board.create_gpu_instance(1, 1, None),
            Err(InstanceRefused::Off)
        );
        assert_eq!(board.create_gpu_instance(0, 2, None).unwrap().start, 4);
        assert_eq!(board.instances(0), []);

        // Another process sees the instances that one process makes.
        let other = Board::open(&path).unwrap();
        other.create_compute_instance(0, low.index).unwrap();
        assert_eq!(
            board.instance_named(&board.instance_uuid(0, low.index)),
            Some((
                0,
                Instance {
                    compute: true,
                    ..low
                }
            ))
        );
        assert_eq!(
            other.destroy_gpu_instance(0, low.index),
            Err(InstanceRefused::InUse)
        );

        let me = board.join().unwrap();
        board.settle(me, low.index);
        board
            .take(me, 0, 4096, crate::board::Kind::Overhead)
            .unwrap();
        assert_eq!(
            other.destroy_compute_instance(0, low.index),
            Err(InstanceRefused::InUse)
        );
        board.leave(me);
        other.destroy_compute_instance(0, low.index).unwrap();
        other.destroy_gpu_instance(0, low.index).unwrap();
        assert_eq!(board.gpu_instances(0).len(), 1);
    }

    #[test]
    fn mig_mode_is_switched_while_the_gpu_is_idle() {
        let directory = tempfile::tempdir().unwrap();
        let board = Board::create(&directory.path().join("board"), &Config::default()).unwrap();
        let me = board.join().unwrap();
        let kind = crate::board::Kind::Overhead;
        board.take(me, 1, 4096, kind).unwrap();
        assert_eq!(board.set_mig_mode(1, true), Err(InstanceRefused::InUse));
        board.leave(me);
        board.set_mig_mode(1, true).unwrap();
        assert!(board.is_mig(1) && !board.is_mig(0));

        let part = board.create_gpu_instance(1, 1, None).unwrap();
        assert_eq!(board.set_mig_mode(1, false), Err(InstanceRefused::InUse));
        board.destroy_gpu_instance(1, part.index).unwrap();
        board.set_mig_mode(1, false).unwrap();
        assert!(!board.is_mig(1));
        assert_eq!(board.set_mig_mode(9, true), Err(InstanceRefused::Unknown));
    }
}
