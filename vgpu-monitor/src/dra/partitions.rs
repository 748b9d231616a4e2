//! The MIG instances that a GPU in MIG mode can be cut into, as devices that share counters: the scheduler chooses a
//! profile and a position, and the GPU's counters keep two instances from lying on one slice. Values in, values out.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{Counter, CounterSet, DeviceCounterConsumption};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use placement::{MigProfile, Span};

use super::device_name;
use crate::inventory::mig::OtherInstance;
use crate::node_gpus::{Inventory, KnownGpu};

/// Letters of a DNS label.
const LABEL_MOST: usize = 63;
/// The counter of the GPU's slices of compute.
const COMPUTE_SLICES: &str = "compute-slices";
/// The counter of the GPU's media extensions: profiles whose name ends with `+me` take them, and a GPU has them once.
const MEDIA_EXTENSIONS: &str = "media-extensions";

/// An instance that can be made: a profile at one of its positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition<'a> {
    /// The GPU.
    pub gpu: &'a KnownGpu,
    /// The profile.
    pub profile: &'a MigProfile,
    /// The memory slices on which it lies.
    pub span: Span,
}

/// What a device of this node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meant<'a> {
    /// A GPU, which several claims share.
    Gpu(&'a KnownGpu),
    /// A MIG instance, which belongs to one claim.
    Instance(Partition<'a>),
}

/// The instances that this GPU can be cut into, the smallest first: a scheduler that takes the first device that is
/// large enough wastes the least. A GPU that is not in MIG mode has none.
#[must_use]
pub fn partitions(gpu: &KnownGpu) -> Vec<Partition<'_>> {
    if !gpu.device.is_mig() {
        return Vec::new();
    }
    let mut profiles: Vec<&MigProfile> = gpu.device.mig_profiles.iter().collect();
    profiles.sort_by_key(|it| (it.memory_bytes, it.slices, it.name.as_str()));
    let all = profiles.into_iter().flat_map(|profile| {
        let at = |span: &Span| Partition {
            gpu,
            profile,
            span: *span,
        };
        profile.placements.iter().map(at)
    });
    all.collect()
}

/// The devices that this GPU may be published as, by name.
#[must_use]
pub fn device_names(gpu: &KnownGpu) -> Vec<String> {
    if gpu.device.is_mig() {
        return partitions(gpu).iter().map(Partition::name).collect();
    }
    vec![device_name(&gpu.device.id)]
}

/// What the device of this name is; `None` if this node has none of that name.
#[must_use]
pub fn meant<'a>(device: &str, inventory: &'a Inventory) -> Option<Meant<'a>> {
    for gpu in &inventory.gpus {
        let mut instances = partitions(gpu).into_iter();
        if let Some(found) = instances.find(|it| it.name() == device) {
            return Some(Meant::Instance(found));
        }
        if !gpu.device.is_mig() && device_name(&gpu.device.id) == device {
            return Some(Meant::Gpu(gpu));
        }
    }
    None
}

/// The counters of a GPU in MIG mode: each memory slice once, its slices of compute, and its media extensions.
#[must_use]
pub fn counters(gpu: &KnownGpu) -> CounterSet {
    let profiles = || gpu.device.mig_profiles.iter();
    let spans = profiles().flat_map(|profile| &profile.placements);
    let memory = spans.map(|span| span.start + span.size).max().unwrap_or(0);
    let compute = profiles().map(|profile| profile.slices).max().unwrap_or(0);
    let mut counters: BTreeMap<String, Counter> = (0..memory).map(memory_slice).collect();
    counters.insert(COMPUTE_SLICES.to_owned(), counter(compute));
    if profiles().any(|profile| takes_media(&profile.name)) {
        counters.insert(MEDIA_EXTENSIONS.to_owned(), counter(1));
    }
    CounterSet {
        name: device_name(&gpu.device.id),
        counters,
    }
}

impl Partition<'_> {
    /// The device's name: that of the GPU, the profile, and the first memory slice.
    #[must_use]
    pub fn name(&self) -> String {
        let profile = self.profile.name.to_ascii_lowercase();
        let plain = |char: char| {
            if char.is_ascii_alphanumeric() {
                char
            } else {
                '-'
            }
        };
        let profile: String = profile.chars().map(plain).collect();
        let end = format!("-{profile}-{}", self.span.start);
        let mut name = device_name(&self.gpu.device.id);
        name.truncate(LABEL_MOST.saturating_sub(end.len()));
        name + &end
    }

    /// Whether it can be made, or found there as it is, beside the instances that other programs have made on the node.
    #[must_use]
    pub fn has_room(&self, others: &[OtherInstance]) -> bool {
        let mut there = others.iter().filter(|it| it.gpu == self.gpu.device.id);
        there.all(|other| {
            let is_it =
                other.is_whole && other.span == self.span && other.profile == self.profile.name;
            let both_media = takes_media(&other.profile) && takes_media(&self.profile.name);
            let is_in_the_way = other.span.overlaps(self.span) || both_media;
            is_it || !is_in_the_way
        })
    }

    /// What it takes of the GPU's counters.
    #[must_use]
    pub fn consumes(&self) -> DeviceCounterConsumption {
        let Span { start, size } = self.span;
        let mut counters: BTreeMap<String, Counter> =
            (start..start + size).map(memory_slice).collect();
        counters.insert(COMPUTE_SLICES.to_owned(), counter(self.profile.slices));
        if takes_media(&self.profile.name) {
            counters.insert(MEDIA_EXTENSIONS.to_owned(), counter(1));
        }
        DeviceCounterConsumption {
            counter_set: device_name(&self.gpu.device.id),
            counters,
        }
    }
}

fn takes_media(profile: &str) -> bool {
    profile.contains("+me")
}

fn memory_slice(at: u32) -> (String, Counter) {
    (format!("memory-slice-{at}"), counter(1))
}

fn counter(value: u32) -> Counter {
    Counter {
        value: Quantity(value.to_string()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::delivery::tests::{GIB, inventory};

    /// The node's inventory with its second GPU in MIG mode, as an A100 of 40 GB is cut.
    pub(in crate::dra) fn with_mig() -> Inventory {
        let profile = |name: &str, gib: u64, slices: u32, starts: &[u32], size: u32| MigProfile {
            name: name.to_owned(),
            memory_bytes: gib * GIB,
            cores: (slices * 100).div_ceil(7),
            slices,
            placements: starts.iter().map(|&start| Span { start, size }).collect(),
        };
        let mut inventory = inventory(1);
        let device = &mut inventory.gpus[1].device;
        device.mode = String::from("mig");
        device.slots = 7;
        device.mig_profiles = vec![
            profile("7g.40gb", 40, 7, &[0], 8),
            profile("4g.20gb", 20, 4, &[0], 4),
            profile("3g.20gb", 20, 3, &[0, 4], 4),
            profile("2g.10gb", 10, 2, &[0, 2, 4], 2),
            profile("1g.5gb", 5, 1, &[0, 1, 2, 3, 4, 5, 6], 1),
            profile("1g.5gb+me", 5, 1, &[0, 1, 2, 3, 4, 5, 6], 1),
        ];
        inventory
    }

    /// Whether the counters of the GPU let all of these be given at once.
    fn fit(gpu: &KnownGpu, chosen: &[(&str, u32)]) -> bool {
        let number = |counter: &Counter| counter.value.0.parse::<u32>().unwrap();
        let set = counters(gpu);
        let mut left: BTreeMap<String, u32> = set
            .counters
            .iter()
            .map(|(name, counter)| (name.clone(), number(counter)))
            .collect();
        let all = partitions(gpu);
        chosen.iter().all(|(profile, start)| {
            let one = all
                .iter()
                .find(|it| it.profile.name == *profile && it.span.start == *start)
                .unwrap();
            let taken = one.consumes();
            assert_eq!(taken.counter_set, set.name);
            taken.counters.iter().all(|(name, counter)| {
                let left = left.get_mut(name).unwrap();
                let rest = left.checked_sub(number(counter));
                *left = rest.unwrap_or(*left);
                rest.is_some()
            })
        })
    }

    #[test]
    fn counters_admit_what_the_driver_can_cut_and_nothing_else() {
        let inventory = with_mig();
        let gpu = &inventory.gpus[1];

        assert!(fit(gpu, &[("3g.20gb", 0), ("3g.20gb", 4)]));
        assert!(fit(gpu, &[("4g.20gb", 0), ("3g.20gb", 4)]));
        assert!(fit(gpu, &[("2g.10gb", 0), ("1g.5gb", 2), ("3g.20gb", 4)]));
        let seven: Vec<(&str, u32)> = (0..7).map(|start| ("1g.5gb", start)).collect();
        assert!(fit(gpu, &seven));
        // One on the slice of another, the whole beside a part, and the media extensions twice.
        assert!(!fit(gpu, &[("2g.10gb", 2), ("1g.5gb", 3)]));
        assert!(!fit(gpu, &[("1g.5gb", 6), ("7g.40gb", 0)]));
        assert!(!fit(gpu, &[("1g.5gb+me", 0), ("1g.5gb+me", 1)]));
    }

    /// Profile and first slice of the instances that fit beside this one of another program.
    fn beside(profile: &str, start: u32, size: u32, is_whole: bool) -> Vec<(String, u32)> {
        let inventory = with_mig();
        let others = [OtherInstance {
            gpu: inventory.gpus[1].device.id.clone(),
            profile: profile.to_owned(),
            span: Span { start, size },
            is_whole,
        }];
        let all = partitions(&inventory.gpus[1]).into_iter();
        let fitting = all.filter(|it| it.has_room(&others));
        fitting
            .map(|it| (it.profile.name.clone(), it.span.start))
            .collect()
    }

    #[test]
    fn instance_of_another_program_leaves_room_beside_it_and_is_given_as_it_is() {
        let names = |found: Vec<(String, u32)>| -> Vec<String> {
            let names = found
                .iter()
                .map(|(profile, start)| format!("{profile}@{start}"));
            names.collect()
        };
        assert_eq!(
            names(beside("3g.20gb", 4, 4, true)),
            [
                "1g.5gb@0",
                "1g.5gb@1",
                "1g.5gb@2",
                "1g.5gb@3",
                "1g.5gb+me@0",
                "1g.5gb+me@1",
                "1g.5gb+me@2",
                "1g.5gb+me@3",
                "2g.10gb@0",
                "2g.10gb@2",
                "3g.20gb@0",
                "3g.20gb@4",
                "4g.20gb@0",
            ]
        );
        // One that is divided further is no claim's. A profile that is not offered is in the way as well.
        assert!(!beside("3g.20gb", 4, 4, false).contains(&("3g.20gb".into(), 4)));
        assert_eq!(names(beside("profile 47", 1, 7, true)).len(), 2);
        // A GPU has its media extensions once.
        let media = beside("1g.5gb+me", 6, 1, true);
        let is_media = |(profile, _): &&(String, u32)| profile.contains("+me");
        assert_eq!(
            media.iter().filter(is_media).collect::<Vec<_>>(),
            [&("1g.5gb+me".to_owned(), 6)]
        );
        assert!(!media.contains(&("1g.5gb".into(), 6)));
        // An instance of another GPU is in the way of none here.
        let inventory = with_mig();
        let other = OtherInstance {
            gpu: inventory.gpus[0].device.id.clone(),
            profile: String::from("7g.40gb"),
            span: Span { start: 0, size: 8 },
            is_whole: true,
        };
        let all = partitions(&inventory.gpus[1]);
        let others = [other];
        assert!(all.iter().all(|it| it.has_room(&others)));
    }

    #[test]
    fn device_of_an_instance_is_found_by_its_name() {
        let inventory = with_mig();
        let gpu = &inventory.gpus[1];
        let whole = device_name(&gpu.device.id);
        let name = format!("{whole}-3g-20gb-4");

        let Some(Meant::Instance(found)) = meant(&name, &inventory) else {
            panic!("no instance");
        };

        assert_eq!(found.profile.name, "3g.20gb");
        assert_eq!(found.span, Span { start: 4, size: 4 });
        // The GPU itself is not to be given as long as it is cut, and the other one not to be cut.
        assert_eq!(meant(&whole, &inventory), None);
        let other = &inventory.gpus[0];
        let other_name = device_name(&other.device.id);
        assert_eq!(meant(&other_name, &inventory), Some(Meant::Gpu(other)));
        assert_eq!(meant(&format!("{other_name}-3g-20gb-4"), &inventory), None);
        assert_eq!(device_names(other), [other_name]);
        assert_eq!(device_names(gpu).len(), 21);
    }

    #[test]
    fn names_of_instances_are_different_dns_labels() {
        let mut inventory = with_mig();
        inventory.gpus[1].device.id = format!("GPU-{}", "a".repeat(80));
        let names = device_names(&inventory.gpus[1]);

        let different: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len());
        assert!(names.iter().all(|name| name.len() <= LABEL_MOST));
        assert_eq!(names[0].rsplit_once("-1g-5gb-").unwrap().1, "0");
    }
}
