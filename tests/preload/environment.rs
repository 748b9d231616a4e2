//! Limits from the environment: the peers' variables work, and an invalid value starts nothing.

use cuda_sim::Config;

use crate::support::{CONTEXT, MIB, World};

const REFUSED: &str =
    "ready 800\ntotal 0\nfirst 800\nfree 0 of 0\nsecond 800\nfreed 800\nagain 800\nfreed 800\n";

/// `ready` and the total memory with these variables, on one GPU of 1024 MiB.
#[track_caller]
fn check(variables: &[(&str, &str)], expected: &str) {
    let world = World::without_limits(2);
    let mut program = world.program("direct").linked();
    program = program.env("CUDA_DEVICE_MEMORY_SHARED_CACHE", world.path("shared"));
    for (name, value) in variables {
        program = program.env(name, value.replace("$W", world.path("").to_str().unwrap()));
    }
    let printed = program.prints();
    let head: Vec<_> = printed.lines().take(2).collect();
    assert_eq!(head.join(", "), expected, "{variables:?}\n{}", world.log());
}

#[test]
fn without_a_variable_the_library_changes_nothing() {
    let world = World::without_limits(1);
    let with = world.program("direct").linked().prints();
    assert_eq!(with, world.program("direct").linked().native().prints());
}

#[test]
fn the_peers_sizes_are_read_as_they_are_written() {
    for (text, mebibytes) in [
        ("116m", 116),
        ("116M", 116),
        ("116MiB", 116),
        ("118784k", 116),
        ("121634816", 116),
        ("1g", 1024),
        ("0", 1024),
    ] {
        check(
            &[("CUDA_DEVICE_MEMORY_LIMIT", text)],
            &format!("ready 0, total {mebibytes}"),
        );
    }
}

#[test]
fn a_devices_own_limit_counts_before_the_one_for_all() {
    check(
        &[
            ("CUDA_DEVICE_MEMORY_LIMIT", "200m"),
            ("CUDA_DEVICE_MEMORY_LIMIT_0", "150m"),
        ],
        "ready 0, total 150",
    );
    check(
        &[
            ("CUDA_DEVICE_MEMORY_LIMIT", "200m"),
            ("CUDA_DEVICE_MEMORY_LIMIT_1", "150m"),
        ],
        "ready 0, total 200",
    );
}

#[test]
fn of_two_families_the_smaller_limit_counts() {
    check(
        &[
            ("CUDA_DEVICE_MEMORY_LIMIT", "200m"),
            ("HCS_VRAM_QUOTA", "100m"),
        ],
        "ready 0, total 100",
    );
    check(
        &[
            ("CUDA_DEVICE_MEMORY_LIMIT", "100m"),
            ("HCS_VRAM_QUOTA", "200m"),
        ],
        "ready 0, total 100",
    );
}

#[test]
fn what_is_not_understood_starts_nothing() {
    for (name, text) in [
        ("CUDA_DEVICE_MEMORY_LIMIT", "4 Gigs"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "-1"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "1.5g"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "m"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "99999999999999999999"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "lots"),
        ("HCS_VRAM_QUOTA", "16Gx"),
        ("CUDA_DEVICE_SM_LIMIT", "101"),
        ("CUDA_DEVICE_SM_LIMIT", "half"),
        ("GPU_CORE_UTILIZATION_POLICY", "sometimes"),
        ("CUDA_TASK_PRIORITY", "high"),
        ("VGPU_LIMITS", "$W/missing"),
        ("VGPU_LIMITS", "$W"),
    ] {
        let mut variables = vec![(name, text)];
        if !name.contains("MEMORY") {
            variables.push(("CUDA_DEVICE_MEMORY_LIMIT", "100m"));
        }
        if name == "VGPU_LIMITS" {
            variables.push(("VGPU_REGION", "$W/region"));
        }
        check(&variables, "ready 800, total 0");
    }
}

#[test]
fn a_limits_file_without_its_region_starts_nothing() {
    let world = World::with_room(100 * MIB);
    let program = || world.program("direct").linked();
    assert_eq!(program().without("VGPU_REGION").prints(), REFUSED);
    assert_eq!(
        program().env("VGPU_REGION", world.path("missing")).prints(),
        REFUSED
    );
    assert_eq!(program().env("VGPU_REGION", "/dev/null").prints(), REFUSED);
    assert_eq!(
        program().env("VGPU_REGION", world.path("limits")).prints(),
        REFUSED
    );
}

#[test]
fn a_damaged_limits_file_starts_nothing() {
    let world = World::with_room(100 * MIB);
    let whole = std::fs::read(world.path("limits")).unwrap();
    let damaged: [Vec<u8>; 4] = [
        vec![],
        whole[..whole.len() / 2].to_vec(),
        vec![0; whole.len()],
        whole.iter().map(|byte| byte ^ 0x55).collect(),
    ];
    for bytes in damaged {
        std::fs::write(world.path("limits"), bytes).unwrap();
        assert_eq!(world.program("direct").linked().prints(), REFUSED);
    }
}

#[test]
fn the_log_says_what_was_read_and_what_is_accepted() {
    let world = World::without_limits(1);
    world
        .program("direct")
        .linked()
        .env("CUDA_DEVICE_MEMORY_LIMIT", "4 Gigs")
        .prints();
    let log = world.log();
    assert!(
        log.contains("CUDA_DEVICE_MEMORY_LIMIT") && log.contains("4 Gigs"),
        "{log}"
    );
}

#[test]
fn nothing_is_printed_and_nothing_is_written_without_a_log() {
    let world = World::with_room(100 * MIB);
    world
        .program("direct")
        .linked()
        .without("VGPU_LOG")
        .prints();
    assert_eq!(world.log(), "");
}

#[test]
fn each_visible_device_has_the_limit_of_its_own_gpu() {
    let limits = [100 * MIB, 200 * MIB, 300 * MIB];
    let world = World::with_limits(&limits);
    let uuid = |gpu| world.board().uuid(gpu);
    for (visible, expected) in [
        ("0".to_owned(), 100),
        ("2".to_owned(), 300),
        ("1,0".to_owned(), 200),
        (uuid(1), 200),
        (uuid(2)[..12].to_owned(), 300),
        (format!("{},{}", uuid(2), uuid(0)), 300),
    ] {
        let printed = world
            .program("direct")
            .linked()
            .env("CUDA_VISIBLE_DEVICES", &visible)
            .prints();
        assert_eq!(
            printed.lines().nth(1),
            Some(format!("total {expected}").as_str()),
            "{visible}"
        );
    }
}

/// Three GPUs with limits of 100, 200 and 300 MiB that the peers' variables give by index: the output of a program of
/// `visible.c` after these steps. It also runs on a machine without NVML, unless a UUID is named.
#[track_caller]
fn sees(variable: Option<&str>, steps: &[&str], expected: &str) {
    for without_nvml in [false, true] {
        let world = World::without_limits(3);
        let named = |text: &str| {
            (0..3).fold(text.to_owned(), |text, gpu| {
                text.replace(&format!("$U{gpu}"), &world.board().uuid(gpu))
            })
        };
        let mut program = world.program("visible").linked();
        for (gpu, size) in ["100m", "200m", "300m"].iter().enumerate() {
            program = program.env(&format!("CUDA_DEVICE_MEMORY_LIMIT_{gpu}"), size);
        }
        program = program.env("CUDA_DEVICE_MEMORY_SHARED_CACHE", world.path("shared"));
        if let Some(list) = variable {
            program = program.env("CUDA_VISIBLE_DEVICES", named(list));
        }
        for step in steps {
            program = program.arg(named(step));
        }
        if without_nvml {
            if steps
                .iter()
                .chain(&variable)
                .any(|text| text.contains("$U"))
            {
                continue;
            }
            for name in ["sim/libnvidia-ml.so", "sim/libnvidia-ml.so.1"] {
                std::fs::remove_file(world.path(name)).unwrap();
            }
        }
        let printed = program.prints();
        let how = if without_nvml { "without" } else { "with" };
        let log = world.log();
        assert_eq!(
            printed.trim(),
            expected,
            "{variable:?} {steps:?}, {how} NVML\n{log}"
        );
    }
}

#[test]
fn limits_by_index_stay_with_their_gpus() {
    sees(None, &["init", "totals"], "100 200 300");
    sees(Some("2"), &["init", "totals"], "300");
    sees(Some("2,0"), &["init", "totals"], "300 100");
    sees(Some("1,7,0"), &["init", "totals"], "200");
    sees(Some("1,0,1"), &["init", "totals"], "init 100");
    sees(Some("$U2,$U1"), &["init", "totals"], "300 200");
    sees(Some(" 1 , 2"), &["init", "totals"], "200 300");
}

#[test]
fn a_variable_that_changes_after_init_moves_no_limit() {
    sees(None, &["init", "set=2", "totals"], "100 200 300");
    sees(None, &["init", "set=2,1,0", "totals"], "100 200 300");
    sees(Some("1,2"), &["init", "set=0", "totals"], "200 300");
    sees(Some("1,2"), &["init", "set=", "totals"], "200 300");
    sees(Some("$U2"), &["init", "set=$U0", "totals"], "300");
}

#[test]
fn a_variable_that_is_set_before_init_counts() {
    sees(None, &["ask", "set=2,0", "init", "totals"], "300 100");
    sees(
        Some("0"),
        &["ask", "set=1", "init", "set=0", "totals"],
        "200",
    );
    sees(
        Some("0"),
        &["set=", "init", "set=2", "totals"],
        "100 200 300",
    );
}

#[test]
fn a_forked_child_counts_its_own_variable() {
    sees(
        None,
        &["ask", "fork", "set=2", "init", "set=1", "totals"],
        "300",
    );
    sees(Some("1"), &["fork", "init", "set=0", "totals"], "200");
}

#[test]
fn limits_by_index_in_a_file_stay_with_their_gpus() {
    use vgpu_abi::limits::{DeviceLimit, Limits, LimitsFile};
    let limits = [100, 200, 300].map(|mebibytes| DeviceLimit {
        memory_bytes: mebibytes * MIB,
        ..DeviceLimit::default()
    });
    for (visible, steps, expected) in [
        ("0,1,2", ["init", "totals", "set="], "100 200 300"),
        ("2,0", ["init", "totals", "set="], "300 100"),
        ("1", ["init", "set=0", "totals"], "200"),
    ] {
        let world = World::with_limits(&[MIB, MIB, MIB]);
        std::fs::remove_file(world.path("limits")).unwrap();
        let unnamed = Limits {
            devices: limits.to_vec(),
            ..Limits::default()
        };
        LimitsFile::create(&world.path("limits"), &unnamed).unwrap();
        let mut program = world.program("visible").linked();
        for step in steps {
            program = program.arg(step);
        }
        let printed = program.env("CUDA_VISIBLE_DEVICES", visible).prints();
        assert_eq!(printed.trim(), expected, "{visible} {steps:?}");
    }
}

/// As under MPS, where a locality domain is a device of the driver and not one of NVML's.
#[test]
fn a_part_of_a_gpu_has_the_limit_of_its_gpu() {
    let world = World::with_limits(&[100 * MIB, 200 * MIB]);
    crate::guest::with_odd_driver(&world);
    for (visible, expected) in [("0,1", "100 200"), ("1", "200")] {
        let program = world.program("visible").linked().arg("init").arg("totals");
        let program = program.env("ODD_REAL", world.path("libreal.so"));
        let program = program.env("CUDA_VISIBLE_DEVICES", visible);
        assert_eq!(program.env("ODD_UUID", "1").prints().trim(), expected);
    }
}

/// As under MPS, where a program sees both locality domains of a GPU.
#[test]
fn parts_of_a_gpu_have_primary_contexts_of_their_own() {
    // NVML's figures of processes are for whole GPUs, and these devices are two parts of one.
    let config = Config {
        nvml: "no-processes".to_owned(),
        ..Config::default()
    };
    let world = World::with_limits_on(&config, &[200 * MIB + 2 * CONTEXT, 0]);
    crate::guest::with_odd_driver(&world);
    let program = world.program("primaries").linked();
    let program = program.env("ODD_REAL", world.path("libreal.so"));
    let mut program = program.env("ODD_UUID", "1").env("ODD_BUS", "1").start();
    let held = || world.board().used_bytes(0) + world.board().used_bytes(1);
    for step in [
        "init",
        "retain 0",
        "alloc 0 60",
        "retain 1",
        "alloc 1 80",
        "release 0",
        "retain 0",
        "alloc 0 100",
        "reset 1",
        "retain 1",
        "alloc 1 90",
        "release 1",
        "release 0",
    ] {
        let op = step.split(' ').next().unwrap();
        assert_eq!(program.step(step), format!("{op} 0"), "{}", world.log());
        assert_eq!(world.booked(0), held(), "{step}");
    }
}

/// From 13.0 on, both calls that name a device name the MIG instance, and none its GPU.
#[test]
fn a_mig_instance_has_the_limit_of_its_gpu_by_either_version() {
    for driver_version in [12_040, 13_000] {
        let config = Config {
            driver_version,
            mig: "1=3g,3g".to_owned(),
            ..Config::default()
        };
        let world = World::with_limits_on(&config, &[100 * MIB, 200 * MIB]);
        let board = world.board();
        let part = board.instance_uuid(1, board.instances(1)[0].index);
        let program = world.program("visible").linked().arg("init").arg("totals");
        let printed = program.env("CUDA_VISIBLE_DEVICES", part).prints();
        assert_eq!(printed.trim(), "200", "{driver_version}\n{}", world.log());
    }
}

#[test]
fn device_without_a_limit_in_the_file_is_hidden() {
    let world = World::with_limits(&[100 * MIB]);
    let other = World::without_limits(2);
    // The limits of one world's GPU, on a board that has other GPUs.
    let printed = world
        .program("direct")
        .linked()
        .env("VGPU_SIM_BOARD", other.path("board"))
        .run();
    assert!(!printed.stdout.contains("first 0"), "{printed:?}");
}
