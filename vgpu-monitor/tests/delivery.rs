//! A program in the directory that the node agent made for its container: it sees the files that its CDI description
//! mounts, under their paths on the host.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use vgpu_abi::limits::Policy;
use vgpu_monitor::collect::{LeftoverCollector, LifeSources, LivingPod, SourceError};
use vgpu_monitor::delivery::{Delivery, DeliverySettings, Given, GivenDevice, Manner, Name};
use vgpu_monitor::node_gpus::{Inventory, KnownGpu};

use crate::support::{CONTEXT, GPU_BYTES, MIB, Running, World, built};

/// A node with the world's one GPU, promised `scale` times over.
fn node(world: &World, scale: u64) -> Delivery {
    let uuid = world.board().uuid(0);
    let device = placement::Device {
        id: uuid.clone(),
        index: 0,
        vendor: placement::Vendor::new("NVIDIA"),
        model: String::from("simulated"),
        slots: 4,
        memory_bytes: GPU_BYTES * scale,
        cores: 100,
        numa: 0,
        group: None,
        healthy: true,
        cordoned: false,
        given_out: false,
        mode: String::new(),
        mig_profiles: Vec::new(),
        tags: Vec::new(),
        gflops: [0, 0],
        module: None,
        core_step: 0,
        appraisal: None,
    };
    let gpu = KnownGpu {
        device,
        physical_bytes: GPU_BYTES,
        pci_bus_id: String::new(),
        minor: 0,
    };
    let inventory = Inventory {
        gpus: vec![gpu],
        ..Inventory::default()
    };
    let vendor = format!(
        "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n- name: {uuid}\n  containerEdits:\n    \
         deviceNodes:\n    - path: /dev/nvidia0\n"
    );
    std::fs::create_dir_all(world.path("cdi")).unwrap();
    std::fs::write(world.path("cdi/nvidia.yaml"), vendor).unwrap();
    let (_, gpus) = watch::channel(Some(Arc::new(inventory)));
    Delivery::new(DeliverySettings {
        state_dir: world.path("state"),
        cdi_dir: world.path("cdi"),
        vendor_cdi_dirs: vec![world.path("cdi")],
        library: built("libvgpu.so"),
        ..DeliverySettings::new(Manner::Cdi, gpus)
    })
    .unwrap()
}

fn given(world: &World, memory_bytes: u64) -> Given {
    Given {
        namespace: String::from("research"),
        pod: String::from("train"),
        pod_uid: String::from("uid"),
        container: String::from("main"),
        kind: placement::Kind::App,
        devices: vec![GivenDevice {
            uuid: world.board().uuid(0),
            memory_bytes,
            physical_bytes: GPU_BYTES,
            cores: 0,
            floor: 0,
            oversubscribe_bytes: 0,
            instance: None,
        }],
        priority: 1,
        policy: Policy::Force,
        workload: supervisor::instance::Workload::default(),
        traceparent: None,
        claim: None,
    }
}

/// A program in the container of this name.
fn start(world: &World, name: &Name) -> Running {
    let spec = std::fs::read(world.path("cdi").join(format!("vgpu-{name}.json"))).unwrap();
    let spec: serde_json::Value = serde_json::from_slice(&spec).unwrap();
    let mounts = spec["devices"][0]["containerEdits"]["mounts"]
        .as_array()
        .unwrap();
    let host = |place: &str| -> PathBuf {
        let mut mounts = mounts
            .iter()
            .filter(|mount| mount["containerPath"] == place);
        mounts.next().unwrap()["hostPath"].as_str().unwrap().into()
    };
    let preload = std::fs::read_to_string(host("/etc/ld.so.preload")).unwrap();
    let mut program = world
        .program("oversubscribe")
        .linked()
        .env("LD_PRELOAD", host(preload.trim()))
        .env("VGPU_LIMITS", host("/etc/vgpu").join("limits"))
        .env("VGPU_REGION", host("/run/vgpu/region"))
        .start();
    assert_eq!(program.step("ready"), "ready 0", "{}", world.log());
    program
}

/// A kubelet and an API server to which every pod is gone.
struct Gone;

impl LifeSources for Gone {
    async fn in_use(&self) -> Result<BTreeSet<Name>, SourceError> {
        Ok(BTreeSet::new())
    }

    async fn pods(&self) -> Result<Vec<LivingPod>, SourceError> {
        Ok(Vec::new())
    }

    fn uncut(&self, _: Option<supervisor::instance::Labels>, _: &str) {}
}

#[test]
fn program_sees_its_share_and_its_directory_is_removed_after() {
    let world = World::without_limits(1);
    let delivery = Arc::new(node(&world, 1));
    let (name, _) = delivery.allot().unwrap();
    delivery
        .give(&name, &given(&world, 64 * MIB + CONTEXT))
        .unwrap();

    let mut program = start(&world, &name);
    assert_eq!(program.step("alloc 40"), "alloc 0", "{}", world.log());
    assert_eq!(program.step("alloc 40"), "alloc 2");
    // A restarted agent gives more while it runs.
    node(&world, 1)
        .give(&name, &given(&world, 100 * MIB + CONTEXT))
        .unwrap();
    assert_eq!(program.step("alloc 40"), "alloc 0", "{}", world.log());
    assert_eq!(program.step("alloc 40"), "alloc 2");

    // Gone as the two see it, and yet alive.
    let collector = LeftoverCollector::new(Arc::clone(&delivery), Gone).with_grace(Duration::ZERO);
    let look = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(collector.look()).unwrap().removed
    };
    assert_eq!(look(), []);
    program.kill();
    assert_eq!(look(), std::slice::from_ref(&name));
    assert!(!world.path("state/containers").join(&name.0).exists());
    assert!(!world.path("cdi").join(format!("vgpu-{name}.json")).exists());
}

#[test]
fn on_a_twice_promised_gpu_half_a_share_is_device_memory() {
    let world = World::without_limits(1);
    let delivery = node(&world, 2);
    let (name, _) = delivery.allot().unwrap();
    delivery
        .give(&name, &given(&world, 2 * (50 * MIB + CONTEXT)))
        .unwrap();

    let mut program = start(&world, &name);

    for (step, answer) in [
        ("alloc 40", "alloc 0"),
        ("is_managed", "is_managed 0"),
        ("alloc 40", "alloc 0"),
        ("is_managed", "is_managed 1"),
        ("alloc 60", "alloc 2"),
    ] {
        assert_eq!(program.step(step), answer, "{step}: {}", world.log());
    }
}
