//! The node's GPUs on the simulated board: what is read, what the configuration makes of it, what is remembered while
//! the driver is away; and MIG instances, made and removed. Each test is a process of its own, since a board is chosen
//! by the environment.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helpers, too"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_sim::board::Kind;
use cuda_sim::{Board, Config};
use placement::Span;
use vgpu_monitor::inventory::mig::{Mig, MigError};
use vgpu_monitor::inventory::{self, InventorySettings, MigStrategy, Watcher};
use vgpu_monitor::node_gpus::Inventory;

use crate::harness::{alone, built};
use crate::waiting::found;

fn board(home: &Path, mig: &str, topology: &str) -> Board {
    let config = Config {
        memory_bytes: vec![40 << 30; 3],
        mig: mig.to_owned(),
        topology: topology.to_owned(),
        pci: "0000:01:00.0,0000:02:00.0,0000:03:00.0".to_owned(),
        ..Config::default()
    };
    Board::create(&home.join("board"), &config).unwrap()
}

/// With hardly any patience.
fn settings(home: &Path) -> InventorySettings {
    InventorySettings {
        library: Some(built("libnvidia_ml.so")),
        sysfs: home.join("sys"),
        rescan: Duration::from_millis(50),
        patience: Duration::from_millis(200),
        silence: Duration::from_millis(600),
        look: Duration::from_millis(20),
        ..InventorySettings::new("n1", home.join("state"))
    }
}

/// Waits for what is known to be so; its problems and GPUs in the message where it never is.
#[track_caller]
fn until(watcher: &Watcher, what: &str, is_so: impl Fn(&Inventory) -> bool) -> Arc<Inventory> {
    found(what, || {
        let known = watcher.inventories.borrow().clone();
        match known {
            Some(known) if is_so(&known) => Ok(known),
            other => Err(other),
        }
    })
}

fn healthy(inventory: &Inventory) -> Vec<bool> {
    let gpus = inventory.gpus.iter();
    gpus.map(|gpu| gpu.device.healthy).collect()
}

fn says(inventory: &Inventory, part: &str) -> bool {
    inventory.problems.iter().any(|it| it.contains(part))
}

#[test]
fn inventory_matches_driver_kernel_and_board() {
    let Some(home) = alone("inventory::inventory_matches_driver_kernel_and_board") else {
        return;
    };
    let board = board(&home, "2=on", "0-1=PIX+NV4,0-2=SYS");
    let device = home.join("sys/bus/pci/devices/0000:02:00.0");
    std::fs::create_dir_all(&device).unwrap();
    std::fs::write(device.join("numa_node"), "1\n").unwrap();

    let watcher = inventory::start(InventorySettings {
        mig_strategy: MigStrategy::Mixed,
        ..settings(&home)
    })
    .unwrap();
    let known = until(&watcher, "read", |known| known.gpus.len() == 3);

    assert_eq!(known.problems, Vec::<String>::new());
    let short = |gpu: &vgpu_monitor::node_gpus::KnownGpu| {
        let device = &gpu.device;
        (
            device.id.clone(),
            device.model.clone(),
            device.memory_bytes >> 30,
            (device.slots, device.numa, gpu.minor),
            device.mode.clone(),
            gpu.pci_bus_id.clone(),
        )
    };
    let name = || "NVIDIA-Simulated GPU".to_owned();
    assert_eq!(
        known.gpus.iter().map(short).collect::<Vec<_>>(),
        [
            (
                board.uuid(0),
                name(),
                40,
                (10, 0, 0),
                "hami-core".into(),
                "00000000:01:00.0".into()
            ),
            (
                board.uuid(1),
                name(),
                40,
                (10, 1, 1),
                "hami-core".into(),
                "00000000:02:00.0".into()
            ),
            (
                board.uuid(2),
                name(),
                40,
                (7, 0, 2),
                "mig".into(),
                "00000000:03:00.0".into()
            ),
        ]
    );
    let wires: Vec<_> = known
        .wires
        .iter()
        .map(|it| (it.gpu.clone(), it.nvlinks.clone(), it.nvlink_mb_s))
        .collect();
    let to = |index| BTreeMap::from([(board.uuid(index), 4)]);
    assert_eq!(
        wires,
        [
            (board.uuid(0), to(1), 50_000),
            (board.uuid(1), to(0), 50_000),
            (board.uuid(2), BTreeMap::new(), 0),
        ]
    );
    let said: Vec<_> = known
        .wires
        .iter()
        .map(|it| (it.nvlink_count, it.pcie_mb_s))
        .collect();
    assert_eq!(said, [(4, 64_000), (4, 64_000), (0, 64_000)]);
    assert_eq!(known.wires[0].nvlink_version, "3.0");
    let profiles = &known.gpus[2].device.mig_profiles;
    let names: Vec<_> = profiles
        .iter()
        .map(|it| (it.name.as_str(), it.cores))
        .collect();
    assert_eq!(
        names,
        [
            ("1g.5gb", 15),
            ("2g.10gb", 29),
            ("3g.20gb", 43),
            ("4g.20gb", 58),
            ("7g.40gb", 100)
        ]
    );
    assert_eq!(
        profiles[2].placements,
        [Span { start: 0, size: 4 }, Span { start: 4, size: 4 }]
    );
    let score = |from: usize, to: usize| {
        let mut pairs = known.pairs.iter();
        let pair = pairs.find(|it| it.from == board.uuid(from) && it.to == board.uuid(to));
        pair.map(|pair| pair.score)
    };
    assert_eq!(
        [
            score(0, 1),
            score(1, 0),
            score(0, 2),
            score(1, 2),
            score(0, 0)
        ],
        [Some(450), Some(450), Some(10), Some(30), None]
    );
}

#[test]
fn changed_configuration_applies_and_a_bad_one_is_ignored() {
    let Some(home) = alone("inventory::changed_configuration_applies_and_a_bad_one_is_ignored")
    else {
        return;
    };
    board(&home, "", "");
    // As a ConfigMap is mounted: the file is a link into a folder that is a link, which is swapped.
    let mount = home.join("config");
    std::fs::create_dir_all(&mount).unwrap();
    let swap = |version: &str, text: &str| {
        let folder = mount.join(format!("..{version}"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.json"), text).unwrap();
        let fresh = mount.join("..data_tmp");
        std::os::unix::fs::symlink(folder, &fresh).unwrap();
        std::fs::rename(fresh, mount.join("..data")).unwrap();
    };
    std::os::unix::fs::symlink("..data/config.json", mount.join("config.json")).unwrap();
    let entry = |rest: &str| format!(r#"{{"nodeconfig":[{{"name":"n1",{rest}}}]}}"#);
    swap("1", &entry(r#""devicesplitcount":"many""#));
    let watcher = inventory::start(InventorySettings {
        node_config: Some(mount.join("config.json")),
        ..settings(&home)
    })
    .unwrap();

    // Nothing good was ever read: nothing is offered that might be wrong.
    until(&watcher, "refused", |known| {
        known.gpus.is_empty() && says(known, "no GPU is offered until it is cured")
    });
    swap("2", &entry(r#""devicesplitcount":4"#));
    let known = until(&watcher, "offered", |known| known.gpus.len() == 3);
    assert_eq!(known.gpus[0].device.slots, 4);
    assert_eq!(known.problems, Vec::<String>::new());

    swap(
        "3",
        &entry(r#""filterdevices":{"index":[0]},"devicememoryscaling":2"#),
    );
    let known = until(&watcher, "filtered", |known| known.gpus.len() == 2);
    assert_eq!(known.gpus[0].device.index, 1);
    assert_eq!(known.gpus[0].device.memory_bytes, 80 << 30);
    assert_eq!(known.gpus[0].physical_bytes, 40 << 30);
    assert_eq!(
        watcher
            .rules
            .borrow()
            .as_ref()
            .map(|rules| rules.filter.index.clone()),
        Some(vec![0])
    );

    swap("4", r#"{"nodeconfig": 3}"#);
    let kept = until(&watcher, "told", |known| {
        says(known, "keeping the previous configuration")
    });
    assert_eq!(kept.gpus, known.gpus);
    // No entry at all is no mistake.
    std::fs::remove_file(mount.join("config.json")).unwrap();
    until(&watcher, "as everywhere", |known| {
        known.gpus.len() == 3 && known.gpus[0].device.slots == 10 && known.problems.is_empty()
    });
}

#[test]
fn last_inventory_survives_driver_outage_and_restart() {
    let Some(home) = alone("inventory::last_inventory_survives_driver_outage_and_restart") else {
        return;
    };
    let board = board(&home, "", "0-1=NV2");
    let watcher = inventory::start(settings(&home)).unwrap();
    let first = until(&watcher, "read", |known| known.gpus.len() == 3);

    board.trouble("lost:1").unwrap();
    let known = until(&watcher, "lost", |known| {
        healthy(known) == [true, false, true]
    });
    assert!(says(&known, &format!("GPU 1 ({})", board.uuid(1))));
    assert_eq!(known.pairs.len(), first.pairs.len());
    board.trouble("reset:1").unwrap();
    until(&watcher, "found again", |known| *known == *first);

    // It hangs: first that is said, then its GPUs are out of use, and no caller waits for it.
    board.trouble("driver=hangs").unwrap();
    let known = until(&watcher, "silent", |known| {
        says(known, "does not answer in time")
    });
    assert_eq!(healthy(&known), [true; 3]);
    until(&watcher, "given up", |known| {
        says(known, "hangs") && healthy(known) == [false; 3]
    });
    // An agent that starts now knows its GPUs from before.
    let next = inventory::start(InventorySettings {
        silence: Duration::from_secs(600),
        ..settings(&home)
    })
    .unwrap();
    let known = until(&next, "remembered", |known| known.gpus.len() == 3);
    assert_eq!(healthy(&known), [true; 3]);
    drop(next);
    board.trouble("driver=well").unwrap();
    until(&watcher, "awake", |known| *known == *first);

    // It is replaced or gone: an answer, and no GPU can be used.
    board.trouble("driver=unloaded").unwrap();
    until(&watcher, "gone", |known| {
        healthy(known) == [false; 3] && says(known, "no GPU can be used")
    });
    board.trouble("driver=well").unwrap();
    until(&watcher, "back", |known| *known == *first);
    // A memory that is damaged is none.
    drop(watcher);
    std::fs::write(home.join("state/inventory.json"), "{\"form\":1,").unwrap();
    let watcher = inventory::start(settings(&home)).unwrap();
    until(&watcher, "read anew", |known| *known == *first);
}

fn span(start: u32, size: u32) -> Span {
    Span { start, size }
}

fn start(home: &Path) -> Mig {
    Mig::start(&home.join("state"), Some(built("libnvidia_ml.so"))).unwrap()
}

#[test]
fn instances_are_created_in_place_and_removed_when_idle() {
    let Some(home) = alone("inventory::instances_are_created_in_place_and_removed_when_idle")
    else {
        return;
    };
    let board = board(&home, "0=on", "");
    let mig = start(&home);
    let gpu = board.uuid(0);

    let made = mig.make(&gpu, "3g.20gb", span(4, 4)).unwrap();
    assert_eq!(made.memory_bytes, 20 << 30);
    assert_eq!((made.gpu_instance, made.compute_instance), (1, 0));
    let (_, there) = board.instance_named(&made.uuid).unwrap();
    assert_eq!((there.sevenths, there.start), (3, 4));
    // Asked again, it is the same one.
    assert_eq!(mig.make(&gpu, "3g.20gb", span(4, 4)).unwrap(), made);
    assert_eq!(board.gpu_instances(0).len(), 1);
    assert_eq!(mig.list().unwrap(), std::slice::from_ref(&made));

    // An impossible request is refused, and leaves nothing behind.
    let text = |gpu: &str, profile: &str, at| mig.make(gpu, profile, at).unwrap_err().to_string();
    let whole = text(&gpu, "7g.40gb", span(0, 8));
    assert!(
        whole.contains("overlaps 3g.20gb at slice 4 (made for a container before)"),
        "{whole}"
    );
    assert!(text(&gpu, "5g.20gb", span(0, 4)).contains("it has 1g.5gb, 2g.10gb"));
    assert!(text(&gpu, "2g.10gb", span(1, 2)).contains("it can at 0, 2, 4"));
    assert!(text(&board.uuid(1), "1g.5gb", span(0, 1)).contains("nvidia-smi -mig 1"));
    assert!(text("GPU-unknown", "1g.5gb", span(0, 1)).contains("finding the GPU"));
    assert_eq!(board.gpu_instances(0).len(), 1);

    // A process keeps its instance.
    let member = board.join().unwrap();
    board.settle(member, there.index);
    board.take(member, 0, 4096, Kind::Overhead).unwrap();
    let error = mig.unmake(&made.uuid).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "MIG instance {} is in use by process {}",
            made.uuid,
            std::process::id()
        )
    );
    board.leave(member);
    mig.unmake(&made.uuid).unwrap();
    assert_eq!(board.gpu_instances(0), []);
    assert_eq!(mig.list().unwrap(), []);
    // Removing an instance that is gone succeeds.
    mig.unmake(&made.uuid).unwrap();
    // The room is free for another shape.
    mig.make(&gpu, "7g.40gb", span(0, 8)).unwrap();
}

#[test]
fn foreign_instances_are_used_and_never_removed() {
    let Some(home) = alone("inventory::foreign_instances_are_used_and_never_removed") else {
        return;
    };
    let board = board(&home, "0=3g,1g", "");
    let mig = start(&home);
    let gpu = board.uuid(0);
    let before = board.gpu_instances(0);

    let adopted = mig.make(&gpu, "3g.20gb", span(4, 4)).unwrap();
    assert_eq!(adopted.uuid, board.instance_uuid(0, 0));
    let error = mig.make(&gpu, "2g.10gb", span(2, 2)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("1g.5gb at slice 3 (created by another program)"),
        "{error}"
    );
    mig.unmake(&adopted.uuid).unwrap();
    assert_eq!(mig.keep_only(&BTreeSet::new(), Instant::now()), Ok(vec![]));

    assert_eq!(board.gpu_instances(0), before);
}

#[test]
fn restart_keeps_held_instances_and_clears_half_made_ones() {
    let Some(home) = alone("inventory::restart_keeps_held_instances_and_clears_half_made_ones")
    else {
        return;
    };
    let board = board(&home, "0=on;1=on", "");
    let mig = start(&home);
    let gpu = board.uuid(0);
    let looked = Instant::now();
    let held = mig.make(&gpu, "2g.10gb", span(0, 2)).unwrap();
    let gone = mig.make(&gpu, "2g.10gb", span(2, 2)).unwrap();
    // Answers gathered before the instances were requested do not say which pod holds them.
    assert_eq!(mig.keep_only(&BTreeSet::new(), looked), Ok(vec![]));
    assert_eq!(mig.list().unwrap().len(), 2);
    drop(mig);

    // Killed between the two steps of making one, and after the last step of removing one.
    let journal = home.join("state/mig.json");
    let mut kept: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&journal).unwrap()).unwrap();
    let instances = kept["instances"].as_array_mut().unwrap();
    let mut half = instances[0].clone();
    half["start"] = 4.into();
    half["step"] = "making".into();
    half["uuid"] = serde_json::Value::Null;
    let mut ghost = half.clone();
    ghost["card"] = board.uuid(1).into();
    ghost["step"] = "removing".into();
    instances.extend([half, ghost]);
    std::fs::write(&journal, kept.to_string()).unwrap();
    board.create_gpu_instance(0, 2, Some(4)).unwrap();

    let mig = start(&home);
    let living = BTreeSet::from([(gpu.clone(), span(0, 2))]);
    assert_eq!(mig.keep_only(&living, Instant::now()), Ok(vec![]));
    assert_eq!(mig.list().unwrap(), std::slice::from_ref(&held));
    assert_eq!(board.gpu_instances(0).len(), 1);
    assert!(board.instance_named(&gone.uuid).is_none());

    // The same, and this time the container's next start finishes it.
    drop(mig);
    let mut kept: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&journal).unwrap()).unwrap();
    kept["instances"][0]["step"] = "making".into();
    kept["instances"][0]["uuid"] = serde_json::Value::Null;
    std::fs::write(&journal, kept.to_string()).unwrap();
    let (_, there) = board.instance_named(&held.uuid).unwrap();
    board.destroy_compute_instance(0, there.index).unwrap();
    let mig = start(&home);
    assert_eq!(mig.make(&gpu, "2g.10gb", span(0, 2)).unwrap(), held);
    mig.unmake(&held.uuid).unwrap();
    assert_eq!(board.gpu_instances(0), []);

    // The machine was restarted: GPUs come without instances, and the next start makes them again.
    let again = mig.make(&gpu, "2g.10gb", span(0, 2)).unwrap();
    let (_, there) = board.instance_named(&again.uuid).unwrap();
    board.destroy_compute_instance(0, there.index).unwrap();
    board.destroy_gpu_instance(0, there.index).unwrap();
    drop(mig);
    let mig = start(&home);
    assert_eq!(mig.list().unwrap(), []);
    assert!(mig.make(&gpu, "1g.5gb", span(1, 1)).is_ok());
    drop(mig);

    // A journal that cannot be read is a person's affair; it is neither guessed at nor written over.
    let there = board.gpu_instances(0);
    std::fs::write(&journal, "{").unwrap();
    let mig = start(&home);
    let error = mig.make(&gpu, "1g.5gb", span(4, 1)).unwrap_err();
    assert!(error.to_string().contains("mig.json"), "{error}");
    assert!(mig.keep_only(&BTreeSet::new(), Instant::now()).is_err());
    assert_eq!(board.gpu_instances(0), there);
    assert_eq!(std::fs::read_to_string(&journal).unwrap(), "{");
}

#[test]
fn failed_instance_creation_leaves_nothing_behind() {
    let Some(home) = alone("inventory::failed_instance_creation_leaves_nothing_behind") else {
        return;
    };
    let config = Config {
        memory_bytes: vec![40 << 30],
        mig: "0=on".to_owned(),
        faults: "fail:nvmlGpuInstanceCreateComputeInstance=23@1".to_owned(),
        ..Config::default()
    };
    let board = Board::create(&home.join("board"), &config).unwrap();
    let mig = start(&home);

    let error = mig.make(&board.uuid(0), "1g.5gb", span(0, 1)).unwrap_err();
    assert!(
        matches!(&error, MigError::Driver { step, .. } if step.contains("compute")),
        "{error}"
    );
    assert_eq!(board.gpu_instances(0), []);
    assert_eq!(mig.list().unwrap(), []);
    mig.make(&board.uuid(0), "1g.5gb", span(0, 1)).unwrap();

    // A full disk: what cannot be written down is not made.
    let state = home.join("state");
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::write(&state, "").unwrap();
    let error = mig.make(&board.uuid(0), "1g.5gb", span(1, 1)).unwrap_err();
    assert!(matches!(error, MigError::Journal { .. }), "{error}");
    assert_eq!(board.gpu_instances(0).len(), 1);
}
