//! The registered size of each GPU: the driver's figures and the configuration's, put together. Values in, values out;
//! never a driver, a file or a clock.

use kube_api::config::{MigAllowed, OperatingMode};
use placement::Device;

use super::reading::{Physical, Reading};
use super::rules::{MigStrategy, Rules};
use crate::node_gpus::{Inventory, KnownGpu};

/// The vendor's word in annotations.
const VENDOR: &str = "NVIDIA";
const MIB: u64 = 1 << 20;
/// More MiB than a register annotation can say.
const MOST_MIB: u64 = 2_147_483_647;

/// The GPUs as they are registered. A GPU that cannot be used as the configuration wants it is there, and is not
/// healthy, with a sentence that says what to do.
pub fn promise(reading: &Reading, rules: &Rules) -> Inventory {
    let mut inventory = Inventory {
        problems: reading.problems.clone(),
        ..Inventory::default()
    };
    for physical in &reading.gpus {
        let filtered = rules.filter.uuid.contains(&physical.uuid)
            || rules.filter.index.contains(&physical.index);
        if filtered {
            continue;
        }
        match gpu(physical, rules, &mut inventory.problems) {
            Ok(gpu) => inventory.gpus.push(gpu),
            Err(problem) => inventory.problems.push(problem.to_string()),
        }
    }
    if rules.nvidia.enable_numa_topology {
        inventory.numa = common_numa(&inventory.gpus);
    }
    let offered = |uuid: &str| inventory.gpus.iter().any(|gpu| gpu.device.id == uuid);
    inventory.pairs = reading
        .pairs
        .iter()
        .filter(|pair| offered(&pair.from) && offered(&pair.to))
        .map(Into::into)
        .collect();
    inventory.wires = reading
        .wires
        .iter()
        .filter(|wires| offered(&wires.gpu))
        .cloned()
        .map(|mut wires| {
            wires.nvlinks.retain(|uuid, _| offered(uuid));
            wires
        })
        .collect();
    inventory.nics.clone_from(&reading.nics);
    inventory
}

/// The NUMA node of all these GPUs, if they have one in common. A slot is no particular GPU: with several nodes it is the
/// scheduler that chooses one, after the kubelet has asked for the slot's.
fn common_numa(gpus: &[KnownGpu]) -> Option<u32> {
    let first = gpus.first()?.device.numa;
    gpus.iter()
        .all(|gpu| gpu.device.numa == first)
        .then_some(first)
}

/// The driver does not report the GPU's memory, and the configuration does not give it.
#[derive(Debug, thiserror::Error)]
#[error(
    "GPU {index} ({uuid}): the driver does not say how much memory it has; set preConfiguredDeviceMemory to offer it"
)]
struct UnknownMemory {
    index: u32,
    uuid: String,
}

fn gpu(
    physical: &Physical,
    rules: &Rules,
    problems: &mut Vec<String>,
) -> Result<KnownGpu, UnknownMemory> {
    let Physical { index, uuid, .. } = physical;
    let here = |problem: &str| format!("GPU {index} ({uuid}): {problem}");
    let nvidia = &rules.nvidia;
    let configured = Some(nvidia.pre_configured_device_memory).filter(|mib| *mib > 0);
    let physical_bytes = physical
        .memory_bytes
        .or(configured.map(|mib| mib.saturating_mul(MIB)))
        .ok_or_else(|| UnknownMemory {
            index: *index,
            uuid: uuid.clone(),
        })?;
    let mut device = Device::new(VENDOR, uuid, &model(&physical.name), 0);
    device.index = *index;
    device.numa = physical.numa;
    let (mode, wrong) = mode(physical, rules);
    mode.as_str().clone_into(&mut device.mode);
    if let Some(fault) = &physical.fault {
        device.healthy = false;
        problems.push(here(&format!("the driver does not answer for it: {fault}")));
    }
    if let Some(wrong) = wrong {
        device.healthy = false;
        problems.push(here(wrong));
    }
    if mode == OperatingMode::Mig {
        let allowed = allowed(&rules.nvidia.mig_profile_allowlist, &physical.name);
        let offered = physical.profiles.iter().filter(|shape| {
            allowed.is_none_or(|allowed| allowed.profiles.contains(&shape.name))
                && !shape.placements.is_empty()
        });
        device.mig_profiles = offered.clone().map(|shape| shape.profile()).collect();
        device.slots = offered.map(|shape| shape.most).max().unwrap_or(0);
        // Neither scaling holds: an instance is what the GPU makes of it.
        device.memory_bytes = physical_bytes;
        device.cores = 100;
        if device.mig_profiles.is_empty() && device.healthy {
            device.healthy = false;
            problems.push(here(
                "is in MIG mode, and none of its profiles is offered; migProfileAllowlist names others than it has",
            ));
        }
    } else {
        let mib = configured.unwrap_or(physical_bytes / MIB);
        device.slots = nvidia.device_split_count;
        device.memory_bytes = scaled(mib, nvidia.device_memory_scaling, MOST_MIB) * MIB;
        device.cores =
            u32::try_from(scaled(100, nvidia.device_core_scaling, MOST_MIB)).unwrap_or(u32::MAX);
    }
    Ok(KnownGpu {
        device,
        physical_bytes,
        pci_bus_id: physical.pci_bus_id.clone(),
        minor: physical.minor,
    })
}

/// How the GPU is shared, and what is wrong with that.
fn mode(physical: &Physical, rules: &Rules) -> (OperatingMode, Option<&'static str>) {
    let wants_mig = rules.mode == Some(OperatingMode::Mig);
    let shared = match rules.mode {
        Some(OperatingMode::Mps) => OperatingMode::Mps,
        _ => OperatingMode::HamiCore,
    };
    match physical.mig {
        Some(true) if wants_mig || rules.strategy == MigStrategy::Mixed => {
            (OperatingMode::Mig, None)
        }
        Some(true) => (
            shared,
            Some(
                "is in MIG mode, and GPUs in that mode are not offered here; say operatingmode mig or migstrategy \
                 mixed for this node, or switch the mode off (nvidia-smi -mig 0)",
            ),
        ),
        Some(false) if wants_mig => (
            OperatingMode::Mig,
            Some(
                "this node's operatingmode is mig, and it is not in MIG mode; switch it on (nvidia-smi -mig 1) while \
                 nothing runs on it",
            ),
        ),
        // A GPU that cannot be cut is shared in software beside those that can.
        Some(false) | None => (shared, None),
    }
}

/// The model as the reference writes it: with its maker's name in front, once.
fn model(name: &str) -> String {
    if name.starts_with(VENDOR) {
        name.to_owned()
    } else {
        format!("{VENDOR}-{name}")
    }
}

/// The first entry of the allow-list that has a part of the model's name; nothing allows all.
fn allowed<'a>(list: &'a [MigAllowed], name: &str) -> Option<&'a MigAllowed> {
    list.iter().find(|entry| {
        let mut models = entry.models.iter();
        models.any(|model| !model.is_empty() && name.contains(model.as_str()))
    })
}

/// A whole number times a factor, rounded down, and never more than `most`.
fn scaled(number: u64, factor: f64, most: u64) -> u64 {
    #[expect(clippy::cast_precision_loss, reason = "numbers of MiB, far below 2^53")]
    let product = (number as f64 * factor).min(most as f64).max(0.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to most"
    )]
    let whole = product as u64;
    whole
}

#[cfg(test)]
mod tests {
    use super::super::reading::{Pair, Shape};
    use super::*;
    use kube_api::node::{RegisterFormat, Registered, decode, encode};

    fn rules(node_config: &str) -> Rules {
        let list = r"{models: [A100], profiles: [1g.10gb, 3g.40gb]}";
        let device =
            format!("nvidia: {{resourceCountName: nvidia.com/gpu, migProfileAllowlist: [{list}]}}");
        let node = format!(r#"{{"nodeconfig":[{{"name":"n1"{node_config}}}]}}"#);
        Rules::parse(Some(&device), Some(&node), "n1", MigStrategy::None).unwrap()
    }

    fn physical(index: u32) -> Physical {
        Physical {
            uuid: format!("GPU-{index}"),
            index,
            name: "Tesla V100".to_owned(),
            memory_bytes: Some((16_384 << 20) + 4096),
            pci_bus_id: "00000000:65:00.0".to_owned(),
            minor: index,
            numa: 1,
            mig: None,
            profiles: Vec::new(),
            fault: None,
        }
    }

    fn a100(index: u32, mig: bool) -> Physical {
        let shape = |name: &str, slices, most, memory_mib, placements: &[(u32, u32)]| Shape {
            name: name.to_owned(),
            slices,
            most,
            memory_mib,
            placements: placements.to_vec(),
        };
        Physical {
            name: "NVIDIA A100-SXM4-80GB".to_owned(),
            memory_bytes: Some(81_920 << 20),
            mig: Some(mig),
            profiles: if mig {
                vec![
                    shape("1g.10gb", 1, 7, 9728, &[(0, 1), (1, 1)]),
                    shape("2g.20gb", 2, 3, 19_968, &[(0, 2)]),
                    shape("3g.40gb", 3, 2, 40_192, &[(0, 4), (4, 4)]),
                ]
            } else {
                Vec::new()
            },
            ..physical(index)
        }
    }

    fn promised(gpus: Vec<Physical>, node_config: &str) -> Inventory {
        let reading = Reading {
            gpus,
            ..Reading::default()
        };
        promise(&reading, &rules(node_config))
    }

    /// A GPU in short: slots:MiB:cores:model:mode:healthy.
    fn said(inventory: &Inventory) -> Vec<String> {
        let short = |gpu: &KnownGpu| {
            let device = &gpu.device;
            format!(
                "{}:{}:{}:{}:{}:{}",
                device.slots,
                device.memory_bytes / MIB,
                device.cores,
                device.model,
                device.mode,
                device.healthy
            )
        };
        inventory.gpus.iter().map(short).collect()
    }

    #[test]
    fn numa_node_is_named_where_it_is_wanted_and_all_gpus_have_it() {
        let at = |index, numa| Physical {
            numa,
            ..physical(index)
        };
        let wanted = r#","enablenumatopology":true"#;
        for (gpus, node_config, expected) in [
            (vec![at(0, 1), at(1, 1)], wanted, Some(1)),
            (vec![at(0, 1), at(1, 1)], "", None),
            (vec![at(0, 1), at(1, 0)], wanted, None),
            (vec![], wanted, None),
        ] {
            assert_eq!(promised(gpus, node_config).numa, expected);
        }
    }

    #[test]
    fn promise_follows_the_nodes_configuration() {
        for (node_config, expected) in [
            ("", "10:16384:100:NVIDIA-Tesla V100:hami-core:true"),
            (
                r#","devicesplitcount":4,"devicememoryscaling":1.5,"devicecorescaling":2"#,
                "4:24576:200:NVIDIA-Tesla V100:hami-core:true",
            ),
            (
                r#","preconfigureddevicememory":8000,"devicememoryscaling":0.5,"operatingmode":"mps""#,
                "10:4000:100:NVIDIA-Tesla V100:mps:true",
            ),
            (
                r#","devicememoryscaling":1e300"#,
                "10:2147483647:100:NVIDIA-Tesla V100:hami-core:true",
            ),
        ] {
            assert_eq!(said(&promised(vec![physical(0)], node_config)), [expected]);
        }
    }

    #[test]
    fn filtered_gpus_and_their_pairs_are_left_out() {
        let pair = |from: &str, to: &str| Pair {
            from: from.to_owned(),
            to: to.to_owned(),
            score: 100,
        };
        let reading = Reading {
            gpus: (0..4).map(physical).collect(),
            pairs: vec![
                pair("GPU-0", "GPU-3"),
                pair("GPU-0", "GPU-1"),
                pair("GPU-2", "GPU-3"),
            ],
            ..Reading::default()
        };

        let inventory = promise(
            &reading,
            &rules(r#","filterdevices":{"uuid":["GPU-1"],"index":[2]}"#),
        );

        let ids: Vec<_> = inventory.gpus.iter().map(|gpu| &gpu.device.id).collect();
        assert_eq!(ids, ["GPU-0", "GPU-3"]);
        assert_eq!(inventory.pairs.len(), 1);
        // A list that skips an index still says which GPU is which.
        let registered: Vec<Registered> = inventory
            .gpus
            .iter()
            .map(|gpu| Registered::from(&gpu.device))
            .collect();
        let again = decode(&encode(&registered, RegisterFormat::Auto)).unwrap();
        assert_eq!(again, registered);
    }

    #[test]
    fn gpu_is_sick_unless_mig_mode_matches_the_configuration() {
        for (gpu, node_config, expected, problem) in [
            (
                a100(0, true),
                r#","migstrategy":"mixed""#,
                "7:81920:100:NVIDIA A100-SXM4-80GB:mig:true",
                "",
            ),
            (
                a100(0, true),
                r#","operatingmode":"mig","devicememoryscaling":2"#,
                "7:81920:100:NVIDIA A100-SXM4-80GB:mig:true",
                "",
            ),
            (
                a100(0, true),
                "",
                "10:81920:100:NVIDIA A100-SXM4-80GB:hami-core:false",
                "nvidia-smi -mig 0",
            ),
            (
                a100(0, false),
                r#","operatingmode":"mig""#,
                "0:81920:100:NVIDIA A100-SXM4-80GB:mig:false",
                "nvidia-smi -mig 1",
            ),
            (
                a100(0, false),
                r#","migstrategy":"mixed""#,
                "10:81920:100:NVIDIA A100-SXM4-80GB:hami-core:true",
                "",
            ),
            (
                physical(0),
                r#","operatingmode":"mig""#,
                "10:16384:100:NVIDIA-Tesla V100:hami-core:true",
                "",
            ),
        ] {
            let inventory = promised(vec![gpu], node_config);
            assert_eq!(said(&inventory), [expected]);
            assert_eq!(inventory.problems.is_empty(), problem.is_empty());
            assert!(inventory.problems.concat().contains(problem));
        }
    }

    #[test]
    fn only_allowed_profiles_are_offered_and_round_trip() {
        let inventory = promised(vec![a100(0, true)], r#","operatingmode":"mig""#);
        let device = &inventory.gpus[0].device;

        let names: Vec<_> = device.mig_profiles.iter().map(|it| &it.name).collect();
        assert_eq!(names, ["1g.10gb", "3g.40gb"]);
        let registered = [Registered::from(device)];
        let text = encode(&registered, RegisterFormat::Auto);
        assert!(text.contains(r#""sliceCount":1,"placements":[{"start":0,"size":1}"#));
        assert_eq!(decode(&text).unwrap(), registered);
    }

    #[test]
    fn gpu_with_missing_facts_is_sick() {
        let lost = Physical {
            fault: Some("GPU is lost".to_owned()),
            ..physical(0)
        };
        let shared = Physical {
            memory_bytes: None,
            ..physical(1)
        };

        let inventory = promised(vec![lost.clone(), shared.clone()], "");
        assert_eq!(
            said(&inventory),
            ["10:16384:100:NVIDIA-Tesla V100:hami-core:false"]
        );
        assert!(inventory.problems[0].contains("GPU is lost"));
        assert!(inventory.problems[1].contains("preConfiguredDeviceMemory"));

        let inventory = promised(vec![shared], r#","preconfigureddevicememory":8000"#);
        assert_eq!(inventory.gpus[0].physical_bytes, 8000 << 20);
    }
}
