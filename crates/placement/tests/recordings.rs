//! The engine's answers, compared with recordings of the reference. Each difference is listed here with its reason,
//! and a listed case that does not differ fails.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test: a panic is its answer"
)]

use std::collections::BTreeMap;

use placement::{
    Among, Ask, Cluster, Compute, Container, Device, DevicePolicy, Grant, Granted, Instance, Key,
    Kind, Memory, MigProfile, Node, NodePolicy, PairScore, Placement, Pod, Quota, Request,
    Selection, Span, Vendor, Weights,
};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// The case, our answer (one line for each question), and the reason.
const DIFFERENT: &[(&str, &[&str], &str)] = &[
    (
        "010",
        &["n1 GPU-00000001-0000-0000-0000-000000000000=16384,0"],
        "16Gi is 16,384 MiB; the reference drops the request and places the pod anywhere",
    ),
    (
        "043",
        &["n1 GPU-00000000-0000-0000-0000-000000000000=50000,0"],
        "a pod without a node holds nothing, whatever its annotations say",
    ),
    (
        "054",
        &["n1: 1/1 CardInsufficientMemory"],
        "a sidecar runs beside the app: both shares count together",
    ),
    (
        "068",
        &["n1 GPU-00000000-0000-0000-0000-000000000000=10000,0"],
        "a device's score includes the request, so binpack takes the device that the request fills more",
    ),
    (
        "107",
        &["n1 GPU-00000000-0000-0000-0000-000000000000=80384,100 7g.80gb@0+8"],
        "the whole of a device in MIG mode is its largest profile",
    ),
    (
        "244",
        &[
            "n1 GPU-00000000-0000-0000-0000-000000000000=50000,0",
            "GPU-00000000-0000-0000-0000-000000000000=1,50000,0",
            "n1: 1/1 CardInsufficientMemory",
        ],
        "a container keeps its place in the list, so the app's share stays when init containers are over",
    ),
    (
        "258",
        &[
            "n1 GPU-00000000-0000-0000-0000-000000000000=100,0",
            "n1: 1/1 ExclusiveDeviceAllocateConflict",
            "n1 GPU-00000000-0000-0000-0000-000000000000=100,50",
            "n1: 1/1 CardInsufficientCore",
            "n1: 1/1 CardInsufficientCore",
        ],
        "a share is never negative",
    ),
];

#[test]
fn the_engine_answers_as_the_reference_but_for_the_listed_cases() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/hami");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect();
    files.sort();
    let mut wrong = Vec::new();
    let mut met = Vec::new();
    for file in files {
        let case: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let id = case["id"].as_str().unwrap();
        if !asks_the_engine_alone(id, &case) {
            continue;
        }
        let ours = answers(&case);
        let theirs: Vec<Vec<String>> = match case["expect"]["alternatives"].as_array() {
            Some(alternatives) => alternatives
                .iter()
                .map(|alternative| recorded(&case, &alternative["steps"]))
                .collect(),
            None => vec![recorded(&case, &case["expect"]["steps"])],
        };
        let same = theirs.contains(&ours);
        match DIFFERENT
            .iter()
            .find(|(listed, _, _)| id.starts_with(listed))
        {
            Some((listed, expected, why)) => {
                met.push(*listed);
                if same {
                    wrong.push(format!("{id} is listed ({why}) and does not differ"));
                } else if ours != *expected {
                    wrong.push(format!(
                        "{id} is listed with\n  {expected:?}\nand ours answers\n  {ours:?}"
                    ));
                }
            }
            None if same => {}
            None => wrong.push(format!("{id}\n  ours   {ours:?}\n  theirs {theirs:?}")),
        }
    }
    for (listed, _, _) in DIFFERENT {
        if !met.contains(listed) {
            wrong.push(format!("{listed} is listed and there is no such case"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether the case is only about the fit, of a vendor that this test reads. `scheduler/tests/conformance.rs` asks
/// the whole program all of them.
fn asks_the_engine_alone(id: &str, case: &Value) -> bool {
    match case["tags"][0].as_str().unwrap() {
        "reg" | "wire" | "bind" | "webhook" | "codec" => false,
        "vendor" => ["222", "224", "239", "240"]
            .iter()
            .any(|number| id.starts_with(number)),
        _ => true,
    }
}

/// Our answer to each question of the case.
fn answers(case: &Value) -> Vec<String> {
    let config = case["deviceConfigFile"].as_str().unwrap();
    let mut cluster = Cluster::new();
    for node in array(&case["cluster"]["nodes"]) {
        if let Some(node) = node_of(node) {
            cluster.set_node(node).unwrap();
        }
    }
    for quota in array(&case["cluster"]["resourceQuotas"]) {
        let hard = &quota["spec"]["hard"];
        let number = |key: &str| hard[key].as_str().map(|text| text.parse::<u64>().unwrap());
        cluster.set_quota(
            quota["metadata"]["namespace"].as_str().unwrap(),
            quota["metadata"]["name"].as_str().unwrap_or("quota"),
            &[],
            &[(
                Vendor::new("NVIDIA"),
                Quota {
                    memory_bytes: number("limits.nvidia.com/gpumem").map(|mib| mib * MIB),
                    cores: number("limits.nvidia.com/gpucores")
                        .map(|cores| u32::try_from(cores).unwrap()),
                    devices: None,
                },
            )],
        );
    }
    for pod in array(&case["cluster"]["pods"]) {
        let phase = pod["status"]["phase"].as_str().unwrap();
        if phase == "Succeeded" || phase == "Failed" || pod["spec"]["nodeName"].is_null() {
            continue;
        }
        if let Some(placement) = placement_of(pod) {
            cluster.reserve(pod_of(pod), placement);
        }
    }
    let mut lines = Vec::new();
    for step in array(&case["steps"]) {
        match step["op"].as_str().unwrap() {
            "filter" => {
                let asked = &step["request"];
                let names: Vec<&str> = array(&asked["NodeNames"])
                    .iter()
                    .map(|name| name.as_str().unwrap())
                    .collect();
                let request = match request_of(&asked["Pod"], config, &case["args"]) {
                    Ok(request) => request,
                    Err(error) => {
                        lines.push(error.to_owned());
                        continue;
                    }
                };
                if !request.asks_for_devices() {
                    lines.push("no devices".to_owned());
                    continue;
                }
                match cluster.place(&request, Among::Names(&names)) {
                    Ok(placement) => {
                        lines.push(text_of(&placement));
                        cluster.reserve(request.pod, placement);
                    }
                    Err(misfits) => lines.push(
                        misfits
                            .iter()
                            .map(|misfit| format!("{}: {}", misfit.node, misfit.misfit.summary()))
                            .collect::<Vec<_>>()
                            .join(" | "),
                    ),
                }
            }
            "updatePod" => {
                let pod = &step["pod"];
                let over = !array(&pod["status"]["initContainerStatuses"]).is_empty();
                if over {
                    let uid = format!("uid-{}", pod["metadata"]["name"].as_str().unwrap());
                    cluster.initialised(&uid);
                }
            }
            "usage" => lines.push(
                cluster
                    .nodes()
                    .flat_map(|node| node.devices().collect::<Vec<_>>())
                    .map(|device| {
                        let used = device.used();
                        let mib = used.memory_bytes / MIB;
                        format!("{}={},{},{}", device.id(), used.slots, mib, used.cores)
                    })
                    .collect::<Vec<_>>()
                    .join(" "),
            ),
            _ => {}
        }
    }
    lines
}

/// The reference's answers, in the same words.
fn recorded(case: &Value, steps: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let mut before: BTreeMap<&str, String> = BTreeMap::new();
    for (step, result) in array(&case["steps"]).iter().zip(array(steps)) {
        match step["op"].as_str().unwrap() {
            "filter" => {
                let pod = step["request"]["Pod"]["metadata"]["name"].as_str().unwrap();
                let response = &result["response"];
                let error = response["Error"].as_str().unwrap();
                if !error.is_empty() {
                    lines.push(error.to_owned());
                } else if let Some(failed) = response["FailedNodes"].as_object() {
                    lines.push(
                        failed
                            .iter()
                            .map(|(node, reason)| format!("{node}: {}", reason.as_str().unwrap()))
                            .collect::<Vec<_>>()
                            .join(" | "),
                    );
                } else if result["podAnnotationsPatched"].is_null() {
                    // Not patched because nothing changed, or because it is not our pod.
                    lines.push(before.get(pod).cloned().unwrap_or("no devices".to_owned()));
                } else {
                    let written = &result["podAnnotationsPatched"];
                    let mut text = written["hami.io/vgpu-node"].as_str().unwrap().to_owned();
                    for (key, value) in written.as_object().unwrap() {
                        if key.ends_with("devices-allocated") {
                            for container in value.as_str().unwrap().split_terminator(';') {
                                for device in container.split_terminator(':') {
                                    let fields: Vec<&str> = device.split(',').collect();
                                    text += &format!(" {}={},{}", fields[0], fields[2], fields[3]);
                                }
                            }
                        }
                    }
                    if let Some(mig) = written["hami.io/vgpu-mig-allocations"].as_str() {
                        let mig: Value = serde_json::from_str(mig).unwrap();
                        for instance in array(&mig) {
                            let span = &instance["placement"];
                            text += &format!(
                                " {}@{}+{}",
                                instance["profile"].as_str().unwrap(),
                                span["start"],
                                span["size"]
                            );
                        }
                    }
                    before.insert(pod, text.clone());
                    lines.push(text);
                }
            }
            "usage" => lines.push(
                result["usage"]
                    .as_object()
                    .unwrap()
                    .values()
                    .flat_map(array)
                    .map(|device| {
                        format!(
                            "{}={},{},{}",
                            device["id"].as_str().unwrap(),
                            device["used"],
                            device["usedmem"],
                            device["usedcores"]
                        )
                    })
                    .collect::<Vec<_>>()
                    .join(" "),
            ),
            _ => {}
        }
    }
    lines
}

fn text_of(placement: &Placement) -> String {
    let mut text = placement.node.to_string();
    let grants: Vec<&Grant> = placement
        .containers
        .iter()
        .flat_map(|granted| &granted.grants)
        .collect();
    // The reference writes one annotation for each vendor.
    let mut vendors: Vec<&Vendor> = grants.iter().map(|grant| &grant.vendor).collect();
    vendors.sort();
    vendors.dedup();
    for vendor in vendors {
        for grant in grants.iter().filter(|grant| grant.vendor == *vendor) {
            let mib = grant.memory_bytes / MIB;
            text += &format!(" {}={},{}", grant.device, mib, grant.cores);
        }
    }
    for instance in grants.iter().filter_map(|grant| grant.instance.as_ref()) {
        let (profile, span) = (&instance.profile, instance.span);
        text += &format!(" {profile}@{}+{}", span.start, span.size);
    }
    text
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn unsigned(value: &Value) -> u32 {
    value
        .as_u64()
        .map_or(0, |number| u32::try_from(number).unwrap())
}

fn node_of(node: &Value) -> Option<Node> {
    let annotations = &node["metadata"]["annotations"];
    let cordoned = annotations["hami.io/device-cordon"].as_str().unwrap_or("");
    let mut devices = Vec::new();
    for (key, vendor) in [
        ("hami.io/node-nvidia-register", "NVIDIA"),
        ("hami.io/node-register-Ascend910B3", "Ascend910B3"),
    ] {
        let Some(text) = annotations[key].as_str() else {
            continue;
        };
        let listed: Value = serde_json::from_str(text).ok()?;
        for device in array(&listed) {
            let id = device["id"].as_str().unwrap();
            let model = device["type"].as_str().unwrap();
            // The reference finds a vendor's device by a part of its model's name.
            let matches = model.to_lowercase().contains(&vendor.to_lowercase());
            devices.push(Device {
                vendor: Vendor::new(if matches { vendor } else { "unknown" }),
                index: unsigned(&device["index"]),
                slots: unsigned(&device["count"]),
                cores: unsigned(&device["devcore"]),
                numa: unsigned(&device["numa"]),
                healthy: device["health"].as_bool().unwrap_or(false),
                cordoned: cordoned.split(',').any(|uuid| uuid.trim() == id),
                mode: device["mode"].as_str().unwrap_or("hami-core").to_owned(),
                mig_profiles: array(&device["migProfiles"])
                    .iter()
                    .map(|profile| MigProfile {
                        name: profile["name"].as_str().unwrap().to_owned(),
                        memory_bytes: profile["memoryMB"].as_u64().unwrap() * MIB,
                        cores: unsigned(&profile["core"]),
                        slices: unsigned(&profile["sliceCount"]),
                        placements: array(&profile["placements"]).iter().map(span_of).collect(),
                    })
                    .collect(),
                ..Device::new(vendor, id, model, device["devmem"].as_u64().unwrap() * MIB)
            });
        }
    }
    if let Some(text) = annotations["hami.io/node-dcu-register"].as_str() {
        for (index, device) in text.split_terminator(':').enumerate() {
            let fields: Vec<&str> = device.split(',').collect();
            devices.push(Device {
                index: u32::try_from(index).unwrap(),
                slots: fields[1].parse().unwrap(),
                cores: fields[3].parse().unwrap(),
                ..Device::new(
                    "DCU",
                    fields[0],
                    fields[4],
                    fields[2].parse::<u64>().unwrap() * MIB,
                )
            });
        }
    }
    let mut pairs = Vec::new();
    if let Some(text) = annotations["hami.io/node-nvidia-score"].as_str() {
        let scores: Value = serde_json::from_str(text).ok()?;
        for row in array(&scores) {
            for (to, score) in row["score"].as_object().unwrap() {
                pairs.push(PairScore {
                    from: row["uuid"].as_str().unwrap().to_owned(),
                    to: to.clone(),
                    score: i32::try_from(score.as_i64().unwrap()).unwrap(),
                });
            }
        }
    }
    Some(Node {
        name: node["metadata"]["name"].as_str().unwrap().to_owned(),
        devices,
        pairs,
    })
}

fn span_of(value: &Value) -> Span {
    Span {
        start: unsigned(&value["start"]),
        size: unsigned(&value["size"]),
    }
}

fn pod_of(pod: &Value) -> Pod {
    let metadata = &pod["metadata"];
    Pod {
        uid: metadata["uid"].as_str().unwrap().to_owned(),
        namespace: metadata["namespace"].as_str().unwrap().to_owned(),
        name: metadata["name"].as_str().unwrap().to_owned(),
        ..Pod::default()
    }
}

/// The devices that a running pod holds by its annotations; `None` if they cannot be read.
fn placement_of(pod: &Value) -> Option<Placement> {
    let annotations = &pod["metadata"]["annotations"];
    let text = annotations["hami.io/vgpu-devices-allocated"].as_str()?;
    let mut containers = Vec::new();
    for container in text.split_terminator(';') {
        let mut granted = Granted::default();
        for device in container.split_terminator(':') {
            let fields: Vec<&str> = device.split(',').collect();
            granted.grants.push(Grant::new(
                Vendor::new("NVIDIA"),
                fields[0],
                fields.get(2)?.parse::<u64>().ok()? * MIB,
                fields.get(3)?.parse().ok()?,
            ));
        }
        containers.push(granted);
    }
    if let Some(mig) = annotations["hami.io/vgpu-mig-allocations"].as_str() {
        let mig: Value = serde_json::from_str(mig).ok()?;
        for instance in array(&mig) {
            let at = |key: &str| usize::try_from(unsigned(&instance[key])).unwrap();
            containers[at("containerIndex")].grants[at("deviceIndex")].instance = Some(Instance {
                profile: instance["profile"].as_str()?.into(),
                span: span_of(&instance["placement"]),
            });
        }
    }
    Some(Placement {
        node: annotations["hami.io/vgpu-node"].as_str()?.into(),
        containers,
    })
}

/// The pod's request, as the reference reads it under this configuration.
fn request_of(pod: &Value, config: &str, args: &Value) -> Result<Request, &'static str> {
    let annotations = &pod["metadata"]["annotations"];
    let text = |key: &str| annotations[key].as_str();
    let weights = match text("hami.io/device-scoring-weights") {
        None => Weights::default(),
        Some("slot=1,core=1,memory=3") => Weights {
            slots: 1,
            cores: 1,
            memory: 3,
        },
        Some("slot=1,core=1") => {
            return Err(
                "calcScore failed invalid hami.io/device-scoring-weights annotation \"slot=1,core=1\": expected slot, core, and memory weights for pod p",
            );
        }
        Some(_) => {
            return Err(
                "calcScore failed invalid hami.io/device-scoring-weights annotation \"slot=0,core=0,memory=0\": at least one weight must be positive for pod p",
            );
        }
    };
    let policy = match text("hami.io/gpu-scheduler-policy").or(args["gpuSchedulerPolicy"].as_str())
    {
        Some("binpack") => DevicePolicy::Binpack,
        Some("mutex") => DevicePolicy::Mutex,
        Some("topology-aware") => DevicePolicy::TopologyAware,
        Some(chain) if chain.contains(',') => DevicePolicy::Chain(
            chain
                .split(',')
                .map(|word| match word {
                    "binpack" => Key::Binpack,
                    "numa" => Key::Numa,
                    _ => Key::Spread,
                })
                .collect(),
        ),
        _ => DevicePolicy::Spread,
    };
    let list = |key: &str| -> Vec<String> {
        text(key)
            .unwrap_or("")
            .split(',')
            .map(|part| part.trim().to_owned())
            .filter(|part| !part.is_empty())
            .collect()
    };
    let select = Selection {
        models: Vec::new(),
        use_types: list("nvidia.com/use-gputype"),
        nouse_types: list("nvidia.com/nouse-gputype"),
        use_ids: list("nvidia.com/use-gpuuuid"),
        nouse_ids: list("nvidia.com/nouse-gpuuuid"),
        mode: text("nvidia.com/vgpu-mode").map(str::to_owned),
        tags: Vec::new(),
    };
    let mut containers = Vec::new();
    let init = array(&pod["spec"]["initContainers"]).iter().map(|spec| {
        let always = spec["restartPolicy"].as_str() == Some("Always");
        (spec, if always { Kind::Sidecar } else { Kind::Init })
    });
    let app = array(&pod["spec"]["containers"])
        .iter()
        .map(|spec| (spec, Kind::App));
    for (spec, kind) in init.chain(app) {
        let limits = &spec["resources"]["limits"];
        let number = |key: &str| -> Option<i64> {
            let text = limits[key].as_str()?;
            match text.strip_suffix("Gi") {
                Some(gib) => Some(gib.parse::<i64>().unwrap() * 1024),
                None => Some(text.parse().unwrap()),
            }
        };
        let mut asks = Vec::new();
        if let Some(count) = number("nvidia.com/gpu").and_then(|count| u32::try_from(count).ok()) {
            let factor = if config.contains("memfactor1024") {
                1024
            } else {
                1
            };
            let memory = match (
                number("nvidia.com/gpumem"),
                number("nvidia.com/gpumem-percentage"),
            ) {
                (Some(mib), _) if mib > 0 => {
                    Memory::Bytes(u64::try_from(mib).unwrap() * factor * MIB)
                }
                (_, Some(percent)) if percent > 0 => {
                    Memory::Percent(u32::try_from(percent).unwrap())
                }
                _ if config.contains("defmem5000") => Memory::Bytes(5000 * MIB),
                _ => Memory::Percent(100),
            };
            let default = if config.contains("defcores30") { 30 } else { 0 };
            let cores = number("nvidia.com/gpucores").unwrap_or(default);
            asks.push(Ask {
                compute: Compute::Units(u32::try_from(cores.clamp(0, 100)).unwrap()),
                numa_bind: text("nvidia.com/numa-bind") == Some("true"),
                policy: policy.clone(),
                weights,
                select: select.clone(),
                ..Ask::new("NVIDIA", count, memory)
            });
        }
        for (vendor, count, memory, cores, default) in [
            (
                "DCU",
                "hygon.com/dcunum",
                "hygon.com/dcumem",
                "hygon.com/dcucores",
                100,
            ),
            (
                "Ascend910B3",
                "huawei.com/Ascend910B3",
                "huawei.com/Ascend910B3-memory",
                "-",
                0,
            ),
        ] {
            if let Some(count) = number(count) {
                let mib = u64::try_from(number(memory).unwrap()).unwrap();
                asks.push(Ask {
                    compute: Compute::Units(
                        u32::try_from(number(cores).unwrap_or(default)).unwrap(),
                    ),
                    ..Ask::new(
                        vendor,
                        u32::try_from(count).unwrap(),
                        Memory::Bytes(mib * MIB),
                    )
                });
            }
        }
        containers.push(Container {
            name: spec["name"].as_str().unwrap().to_owned(),
            kind,
            asks,
        });
    }
    let node_policy =
        match text("hami.io/node-scheduler-policy").or(args["nodeSchedulerPolicy"].as_str()) {
            Some("spread") => NodePolicy::Spread,
            _ => NodePolicy::Binpack,
        };
    Ok(Request {
        pod: pod_of(pod),
        containers,
        node_policy,
        any: None,
    })
}
