use k8s_openapi::api::resource::v1::DeviceCounterConsumption;
use serde_json::{Value, to_value};

use super::*;
use crate::delivery::tests::{GIB, GPUS, inventory};
use crate::node_gpus::Sick;

fn sick() -> Health {
    let fault = Sick {
        reason: String::from("XID 79"),
        since: std::time::UNIX_EPOCH,
        recovers: false,
    };
    Health::from([(GPUS[0].to_owned(), fault)])
}

fn facts() -> NodeFacts {
    let first = Facts {
        capability: Some((9, 0)),
        pcie_root: Some(String::from("pci0000:60")),
    };
    NodeFacts {
        driver: Some(String::from("550.54.15")),
        gpus: BTreeMap::from([(GPUS[0].to_owned(), first)]),
    }
}

/// The devices of the only slice, as they go to the API server.
fn published(
    inventory: &Inventory,
    health: &Health,
    taken: &BTreeSet<String>,
    taints: bool,
) -> Vec<Value> {
    let slices = slices(&Offer {
        node: "n1",
        inventory,
        health,
        facts: &facts(),
        taken,
        others: &Others::new(),
        foreign: &[],
        taints,
        counters: true,
    });
    assert_eq!(slices.len(), 1);
    let slice = to_value(&slices[0]).unwrap();
    assert_eq!(slice["nodeName"], "n1");
    assert_eq!(slice["driver"], DRIVER);
    assert_eq!(slice["pool"]["name"], "n1");
    assert_eq!(slice["pool"]["resourceSliceCount"], 1);
    slice["devices"].as_array().cloned().unwrap_or_default()
}

fn all(inventory: &Inventory) -> Vec<Value> {
    published(inventory, &Health::new(), &BTreeSet::new(), true)
}

#[test]
fn gpu_is_a_device_that_can_be_shared() {
    let mut inventory = inventory(1);
    // Not a whole number of MiB: rounded down, never up.
    inventory.gpus[0].device.memory_bytes = 16 * GIB - 1;

    let devices = all(&inventory);

    assert_eq!(devices.len(), 2);
    let first = &devices[0];
    assert_eq!(first["name"], device_name(GPUS[0]));
    assert_eq!(first["allowMultipleAllocations"], true);
    let memory = &first["capacity"]["memory"];
    assert_eq!(memory["value"], "16383Mi");
    assert_eq!(memory["requestPolicy"]["default"], "16383Mi");
    assert_eq!(
        memory["requestPolicy"]["validRange"],
        serde_json::json!({"min": "1Mi", "step": "1Mi", "max": "16383Mi"})
    );
    let cores = &first["capacity"]["cores"];
    assert_eq!(
        (&cores["value"], &cores["requestPolicy"]["default"]),
        (&"100".into(), &"0".into())
    );
    let shares = &first["capacity"]["shares"];
    assert_eq!(shares["value"], "3");
    assert_eq!(
        shares["requestPolicy"]["validValues"],
        serde_json::json!(["1"])
    );
    assert_eq!(first.get("taints"), None);
}

#[test]
fn more_compute_than_a_gpu_has_is_promised_in_shares_of_one_at_most() {
    let mut inventory = inventory(1);
    inventory.gpus[0].device.cores = 150;

    let cores = all(&inventory)[0]["capacity"]["cores"].clone();

    assert_eq!(cores["value"], "150");
    assert_eq!(cores["requestPolicy"]["validRange"]["max"], "100");
}

#[test]
fn attributes_are_in_the_forms_that_selectors_compare() {
    let mut inventory = inventory(1);
    inventory.gpus[0].device.model = "é".repeat(40);
    inventory.gpus[0].device.numa = 1;
    let wires = |gpu: &str, to: &str| Wires {
        gpu: gpu.to_owned(),
        nvlinks: BTreeMap::from([(to.to_owned(), 4)]),
        ..Wires::default()
    };
    inventory.wires = vec![wires(GPUS[0], GPUS[1]), wires(GPUS[1], GPUS[0])];

    let devices = all(&inventory);

    let first = &devices[0]["attributes"];
    assert_eq!(first["uuid"]["string"], GPUS[0]);
    assert_eq!(first["productName"]["string"], "é".repeat(32));
    assert_eq!(first["cudaComputeCapability"]["version"], "9.0.0");
    assert_eq!(first["driverVersion"]["version"], "550.54.15");
    assert_eq!(first["numa"]["int"], 1);
    assert_eq!(first["nvlinkGroup"]["int"], 0);
    assert_eq!(
        first["resource.kubernetes.io/pcieRoot"]["string"],
        "pci0000:60"
    );
    assert_eq!(
        first["resource.kubernetes.io/pciBusID"]["string"],
        "0000:65:00.0"
    );
    let second = &devices[1]["attributes"];
    assert_eq!(second["nvlinkGroup"]["int"], 0);
    assert_eq!(second.get("cudaComputeCapability"), None);
    assert_eq!(second.get("resource.kubernetes.io/pcieRoot"), None);
}

#[test]
fn drivers_version_is_a_semantic_version() {
    for (text, expected) in [
        ("550.54.15", Some("550.54.15")),
        ("610.05", Some("610.5.0")),
        ("1", Some("1.0.0")),
        ("550.54.15-grid", None),
        ("", None),
    ] {
        assert_eq!(semver(text).as_deref(), expected, "{text}");
    }
}

#[test]
fn sick_gpu_is_tainted_or_left_out() {
    let (inventory, nothing) = (inventory(1), BTreeSet::new());

    let tainted = published(&inventory, &sick(), &nothing, true);
    assert_eq!(
        tainted[0]["taints"],
        serde_json::json!([{"key": UNHEALTHY, "effect": "NoSchedule"}])
    );
    assert_eq!(tainted[1].get("taints"), None);

    let left = published(&inventory, &sick(), &nothing, false);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0]["name"], device_name(GPUS[1]));
}

#[test]
fn gpus_of_the_device_plugin_are_left_out() {
    let inventory = inventory(1);
    let taken = BTreeSet::from([GPUS[0].to_owned()]);
    let left = published(&inventory, &Health::new(), &taken, true);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0]["name"], device_name(GPUS[1]));
}

/// The slices of a node whose second GPU is in MIG mode, as they go to the API server.
fn with_mig(counters: bool, health: &Health) -> Vec<Value> {
    let slices = slices(&Offer {
        node: "n1",
        inventory: &partitions::tests::with_mig(),
        health,
        facts: &facts(),
        taken: &BTreeSet::new(),
        others: &Others::new(),
        foreign: &[],
        taints: true,
        counters,
    });
    slices
        .iter()
        .map(|slice| to_value(slice).unwrap())
        .collect()
}

#[test]
fn gpu_in_mig_mode_is_its_instances_and_their_counters() {
    let all = with_mig(true, &Health::new());

    // Devices and counters lie in different slices of one pool.
    assert_eq!(all.len(), 2);
    assert!(all.iter().all(|it| it["pool"]["resourceSliceCount"] == 2));
    assert_eq!(all[0].get("sharedCounters"), None);
    assert_eq!(all[1].get("devices"), None);
    let devices = all[0]["devices"].as_array().unwrap();
    // The other GPU as a whole, then 7 + 7 + 3 + 1 + 2 + 1 instances, the smallest first.
    assert_eq!(devices.len(), 1 + 21);
    assert_eq!(devices[0]["name"], device_name(GPUS[0]));
    assert_eq!(devices[0].get("consumesCounters"), None);
    let gpu = device_name(GPUS[1]);
    assert_eq!(devices[1]["name"], format!("{gpu}-1g-5gb-0"));
    let last = &devices[21];
    assert_eq!(last["name"], format!("{gpu}-7g-40gb-0"));
    // An instance belongs to one claim, which gets all of it.
    assert_eq!(last.get("allowMultipleAllocations"), None);
    assert_eq!(
        last["capacity"],
        serde_json::json!({"memory": {"value": "40960Mi"}, "cores": {"value": "100"}})
    );
    assert_eq!(last["attributes"]["profile"]["string"], "7g.40gb");
    assert_eq!(last["attributes"]["uuid"]["string"], GPUS[1]);
    let set = &all[1]["sharedCounters"][0];
    assert_eq!(set["name"], gpu);
    // All that there is of the GPU.
    assert_eq!(last["consumesCounters"][0]["counterSet"], gpu);
    let consumed = &last["consumesCounters"][0]["counters"];
    for name in ["memory-slice-0", "memory-slice-7", "compute-slices"] {
        assert_eq!(consumed[name], set["counters"][name], "{name}");
    }
}

#[test]
fn without_counters_a_gpu_in_mig_mode_is_left_out() {
    let all = with_mig(false, &Health::new());

    assert_eq!(all.len(), 1);
    let devices = all[0]["devices"].as_array().unwrap();
    let names: Vec<&Value> = devices.iter().map(|device| &device["name"]).collect();
    assert_eq!(names, [&device_name(GPUS[0])]);
}

#[test]
fn instances_of_a_sick_gpu_are_tainted() {
    let fault = sick().remove(GPUS[0]).unwrap();
    let all = with_mig(true, &Health::from([(GPUS[1].to_owned(), fault)]));

    let devices = all[0]["devices"].as_array().unwrap();
    assert_eq!(devices[0].get("taints"), None);
    let tainted = |device: &Value| device["taints"][0]["key"] == UNHEALTHY;
    assert!(devices[1..].iter().all(tainted));
}

#[test]
fn counters_that_the_api_server_drops_are_noticed() {
    let with = |counters: bool| {
        let mut spec = ResourceSliceSpec::default();
        let consumes = DeviceCounterConsumption::default();
        spec.devices = Some(vec![Device {
            consumes_counters: counters.then(|| vec![consumes]),
            ..Device::default()
        }]);
        spec
    };
    assert!(dropped(&with(true), &with(false)).counters);
    assert!(!dropped(&with(true), &with(true)).counters);
    let sets = ResourceSliceSpec {
        shared_counters: Some(vec![CounterSet::default()]),
        ..ResourceSliceSpec::default()
    };
    assert!(dropped(&sets, &ResourceSliceSpec::default()).counters);
    assert!(!dropped(&sets, &sets).counters);
}

#[test]
fn pool_of_many_gpus_has_several_slices() {
    let mut inventory = inventory(1);
    let one = inventory.gpus[0].clone();
    inventory.gpus = (0..130)
        .map(|index| {
            let mut gpu = one.clone();
            gpu.device.id = format!("GPU-{index}");
            gpu
        })
        .collect();

    let slices = slices(&Offer {
        node: "n1",
        inventory: &inventory,
        health: &Health::new(),
        facts: &NodeFacts::default(),
        taken: &BTreeSet::new(),
        others: &Others::new(),
        foreign: &[],
        taints: true,
        counters: true,
    });

    let counts = slices.iter().map(|it| it.devices.as_ref().unwrap().len());
    assert_eq!(counts.collect::<Vec<_>>(), [64, 64, 2]);
    assert!(slices.iter().all(|it| it.pool.resource_slice_count == 3));
}

#[test]
fn slices_of_eight_gpus_are_small() {
    let mut inventory = inventory(1);
    let one = inventory.gpus[0].clone();
    inventory.gpus = vec![one; 8];

    let devices = all(&inventory);

    let bytes = serde_json::to_vec(&devices).unwrap().len();
    assert!(bytes <= 40_000, "{bytes}");
}

#[test]
fn fields_that_the_api_server_drops_are_noticed() {
    let offer = Offer {
        node: "n1",
        inventory: &inventory(1),
        health: &sick(),
        facts: &NodeFacts::default(),
        taken: &BTreeSet::new(),
        others: &Others::new(),
        foreign: &[],
        taints: true,
        counters: true,
    };
    let sent = slices(&offer).remove(0);
    let mut kept = sent.clone();
    assert_eq!(dropped(&sent, &kept), Dropped::default());

    for device in kept.devices.iter_mut().flatten() {
        device.taints = None;
    }
    let taints = Dropped {
        taints: true,
        ..Dropped::default()
    };
    assert_eq!(dropped(&sent, &kept), taints);

    for device in kept.devices.iter_mut().flatten() {
        device.allow_multiple_allocations = None;
    }
    assert!(dropped(&sent, &kept).sharing);
    assert!(!same(&sent, &kept));
}

#[test]
fn amounts_are_compared_and_not_their_texts() {
    let inventory = inventory(1);
    let offer = Offer {
        node: "n1",
        inventory: &inventory,
        health: &Health::new(),
        facts: &NodeFacts::default(),
        taken: &BTreeSet::new(),
        others: &Others::new(),
        foreign: &[],
        taints: true,
        counters: true,
    };
    let sent = slices(&offer).remove(0);
    let text = serde_json::to_string(&sent).unwrap();
    assert!(text.contains("16384Mi"), "{text}");

    // As the API server writes it.
    let kept = serde_json::from_str(&text.replace("16384Mi", "16Gi")).unwrap();
    assert!(same(&sent, &kept));

    let other = serde_json::from_str(&text.replace("16384Mi", "15Gi")).unwrap();
    assert!(!same(&sent, &other));
}

/// A slice of another driver with one device.
fn others_slice(driver: &str, device: &str, attributes: &Value) -> ResourceSlice {
    let slice = serde_json::json!({
        "metadata": {"name": format!("n1-{driver}")},
        "spec": {
            "driver": driver, "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": device, "attributes": attributes}],
        },
    });
    serde_json::from_value(slice).unwrap()
}

#[test]
fn gpu_of_another_driver_is_found_by_uuid_or_address() {
    let mut inventory = inventory(1);
    inventory.gpus[1].pci_bus_id = String::from("00000000:66:00.0");
    let find = |attributes: Value| {
        let there = [others_slice("gpu.nvidia.com", "gpu-0", &attributes)];
        let found = others(&there, &inventory);
        found.into_keys().collect::<Vec<_>>()
    };
    let text = |key: &str, value: &str| serde_json::json!({key: {"string": value}});

    assert_eq!(find(text("uuid", GPUS[0])), [GPUS[0]]);
    assert_eq!(find(text("gpu.nvidia.com/uuid", GPUS[1])), [GPUS[1]]);
    assert_eq!(find(text("parentUUID", GPUS[0])), [GPUS[0]]);
    let address = "resource.kubernetes.io/pciBusID";
    assert_eq!(find(text(address, "0000:66:00.0")), [GPUS[1]]);
    assert_eq!(find(text(address, "00000000:65:00.0")), [GPUS[0]]);
    assert_eq!(find(text(address, "0000:67:00.0")), [""; 0]);
    assert_eq!(find(text("productName", GPUS[0])), [""; 0]);
    assert_eq!(find(serde_json::json!({"uuid": {"int": 7}})), [""; 0]);
    let ours = [others_slice(DRIVER, "gpu-0", &text("uuid", GPUS[0]))];
    assert_eq!(others(&ours, &inventory), Others::new());
}

#[test]
fn unknown_address_of_a_gpu_is_no_other_devices() {
    let mut inventory = inventory(1);
    inventory.gpus[0].pci_bus_id = String::new();
    let attributes = serde_json::json!({"pciBusID": {"string": ""}});
    let there = [others_slice("net.example.com", "nic-0", &attributes)];

    assert_eq!(others(&there, &inventory), Others::new());
}
