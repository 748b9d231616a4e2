//! `vgpu set`, `top` and `oom` on containers that run. The test's own process plays the program:
//! it joins the container's region and charges it, as the library does.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test that is wrong about its own machine has failed"
)]

use crate::common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use common::{Machine, Running};
use expect_test::expect;
use nix::time::{ClockId, clock_gettime};
use vgpu_abi::region::{Kind, Region};

/// One process, which ends at once when it is asked to.
const LOOP: &str = "echo ready; exec sleep 600";

/// A container of this name with 4 GiB of GPU 0 and 8 GiB of GPU 1.
fn container(machine: &Machine, name: &str) -> (Running, Region) {
    let running = machine.start(&["--gpumem", "0=4Gi,1=8Gi", "--name", name], LOOP);
    let region = Region::open(&machine.containers().join(name).join("region")).unwrap();
    (running, region)
}

fn charge(region: &Region, device: usize, mib: u64, kind: Kind) {
    let charge = region.reserve(device, mib << 20, 0).unwrap();
    region.confirm(charge, kind);
}

/// Asks for more than there is, as the library does for a program.
fn be_refused(region: &Region, device: usize, mib: u64, limit_mib: u64) {
    let refusal = region
        .reserve(device, mib << 20, limit_mib << 20)
        .unwrap_err();
    region.record_oom("cuMemAlloc_v2", device, &refusal, 1_795_271_523_000_000_000);
}

/// Waits until the arbiter has examined every container, so that its observations are always there.
fn be_seen(machine: &Machine) {
    common::until("the arbiter has looked", || {
        let top = machine.top();
        let containers = top["containers"].as_array().unwrap();
        containers.iter().all(|container| {
            let devices = container["devices"].as_array().unwrap();
            let is_seen = |d: &serde_json::Value| {
                d["granted_percent"].is_number() && d["used_percent"].is_number()
            };
            devices.iter().all(is_seen)
        })
    });
}

/// The machine's monotonic clock, nanoseconds.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    u64::try_from(std::time::Duration::from(now).as_nanos()).unwrap()
}

/// The text without the parts that differ in each run, and so without the width of the columns.
fn steady(text: &str) -> String {
    let me = std::process::id().to_string();
    let name = fs::read_to_string("/proc/self/comm").unwrap();
    let uid = format!("uid {}", nix::unistd::geteuid());
    let mut out = String::new();
    for line in text.lines() {
        let line = line
            .replace(&me, "PID")
            .replace(name.trim(), "PROGRAM")
            .replace(&uid, "uid ME");
        let line = match line.strip_prefix("vgpu top  ") {
            Some(rest) => format!("vgpu top  TIME{}", &rest[20..]),
            None => line,
        };
        let indent = line.len() - line.trim_start().len();
        out.push_str(&line[..indent.min(2)]);
        let cells: Vec<_> = line
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect();
        out.push_str(&cells.join("  "));
        out.push('\n');
    }
    out
}

#[test]
fn set_changes_the_limit_while_the_program_runs() {
    let machine = Machine::new();
    let (running, region) = container(&machine, "train");
    charge(&region, 0, 3 << 10, Kind::Buffer);
    let limits = |machine: &Machine| {
        let top = machine.top();
        let devices = top["containers"][0]["devices"].as_array().unwrap().clone();
        let gib = |d: &serde_json::Value| d["limit_bytes"].as_u64().unwrap() >> 20;
        devices.iter().map(gib).collect::<Vec<_>>()
    };
    assert_eq!(limits(&machine), [4096, 8192]);

    let one = machine.run(&["set", "train", "--gpumem", "0=6Gi"]);
    expect![[r#"
        train GPU 0: limit 4Gi -> 6Gi, used 3Gi
        train GPU 1: limit 8Gi -> 8Gi, used 0
    "#]]
    .assert_eq(&one.out);
    assert_eq!(limits(&machine), [6144, 8192]);

    let both = machine.run(&["set", "train", "--gpumem", "8Gi"]);
    expect![[r#"
        train GPU 0: limit 6Gi -> 8Gi, used 3Gi
        train GPU 1: limit 8Gi -> 8Gi, used 0
    "#]]
    .assert_eq(&both.out);
    assert_eq!(limits(&machine), [8192, 8192]);
    running.stop();
}

#[test]
fn limit_below_the_use_shows_as_pending_shrink() {
    let machine = Machine::new();
    let (running, region) = container(&machine, "train");
    charge(&region, 0, 3 << 10, Kind::Buffer);

    let set = machine.run(&["set", "train", "--gpumem", "0=2Gi"]);

    assert_eq!(set.code, Some(0));
    expect![[r#"
        train GPU 0: limit 4Gi -> 2Gi, used 3Gi; pending-shrink: new allocations are refused until 1Gi is freed
        train GPU 1: limit 8Gi -> 8Gi, used 0
    "#]]
    .assert_eq(&set.out);
    let state = |machine: &Machine| {
        let top = machine.top();
        let device = &top["containers"][0]["devices"][0];
        (
            top["containers"][0]["state"].clone(),
            device["pending_shrink"].clone(),
        )
    };
    assert_eq!(state(&machine), ("pending-shrink".into(), true.into()));
    region.release(0, 2 << 30, Kind::Buffer);
    assert_eq!(state(&machine), ("running".into(), false.into()));
    running.stop();
}

#[test]
fn set_says_no_to_what_cannot_be() {
    let machine = Machine::new();
    let (running, _region) = container(&machine, "train");
    let (other, _region) = container(&machine, "serve");
    let check = |words: &[&str], code: i32, says: &str| {
        let ended = machine.run(&[&["set"], words].concat());
        assert_eq!(
            (ended.code, ended.out.as_str()),
            (Some(code), ""),
            "{words:?} {ended:?}"
        );
        assert!(ended.err.contains(says), "{words:?}: {}", ended.err);
    };

    check(
        &["trian", "--gpumem", "1Gi"],
        1,
        "no container is called \"trian\"; running: serve, train",
    );
    check(
        &["x/train", "--gpumem", "1Gi"],
        2,
        "accepted: NAME or UID/NAME",
    );
    check(&["train"], 2, "no limit given");
    check(
        &["train", "--gpumem", "17Gi"],
        2,
        "17Gi is more than GPU 0 has: 16Gi",
    );
    check(
        &["train", "--gpumem", "2=1Gi"],
        2,
        "the container has no GPU 2; it has: 0 (GPU-",
    );
    check(&["train", "--gpumem", "0"], 2, "has no unit");
    check(
        &["train", "--gpumem", "1Gi", "--board", "/nonexistent"],
        1,
        "none is running",
    );
    running.stop();
    other.stop();
}

#[test]
fn set_in_a_container_or_on_a_nested_one_can_only_lower() {
    let machine = Machine::new();
    let outer = machine.start(&["--gpumem", "4Gi", "--name", "outer"], LOOP);
    let limits = machine.containers().join("outer/limits");
    let mut command = machine.vgpu([
        "run", "--gpumem", "2Gi", "--name", "inner", "--", "sh", "-c", LOOP,
    ]);
    let inner = Running::start(command.env("VGPU_LIMITS", &limits));
    let inside = |words: &[&str]| common::ended(machine.vgpu(words).env("VGPU_LIMITS", &limits));

    let raised = inside(&["set", "outer", "--gpumem", "8Gi"]);
    assert_eq!(raised.code, Some(2));
    assert!(
        raised
            .err
            .contains("inside a container limits can only be lowered"),
        "{}",
        raised.err
    );
    // From outside, too, the inner one stays within the outer one.
    let raised = machine.run(&["set", "inner", "--gpumem", "5Gi"]);
    assert_eq!(raised.code, Some(2));
    assert!(
        raised.err.contains("more than the outer limit of 4Gi"),
        "{}",
        raised.err
    );
    assert_eq!(
        machine.run(&["set", "inner", "--gpumem", "3Gi"]).code,
        Some(0)
    );
    assert_eq!(inside(&["set", "outer", "--gpumem", "3Gi"]).code, Some(0));
    inner.stop();
    outer.stop();
}

#[test]
fn top_shows_who_uses_what() {
    let machine = Machine::new();
    let (running, region) = container(&machine, "train");
    charge(&region, 0, 3 << 10, Kind::Buffer);
    charge(&region, 0, 300, Kind::Context);
    charge(&region, 1, 1 << 10, Kind::Buffer);
    be_refused(&region, 0, 1 << 10, 4 << 10);
    let (other, _region) = container(&machine, "serve");
    be_seen(&machine);

    let top = machine.run(&["top", "--once"]);

    expect![[r#"
        vgpu top  TIME, 2 containers, 1 process

        GPU  MODEL  MEMORY  LIMITS  COMPUTE  FLOORS
        0  Simulated GPU  0 / 16Gi  0%  [----------------]  8Gi  0%  0%
        1  Simulated GPU  0 / 16Gi  0%  [----------------]  16Gi  0%  0%

        CONTAINER  PRIO  GPU  MEMORY  USED  GRANTED  ASKED  WAITING  THROTTLED  LAUNCHES  LAST  OOMS  STATE
        serve  1  0  0 / 4Gi  0%  [----------]  0%  100%  none  0%  0ms  0  –  0  running
          1  0 / 8Gi  0%  [----------]  0%  100%  none  0%  0ms  0  –  running
        train  1  0  3.29Gi / 4Gi  82%  [########--]  0%  100%  none  0%  0ms  0  –  1  running
          1  1Gi / 8Gi  12%  [#---------]  0%  100%  none  0%  0ms  0  –  running
          PID PROGRAM  0  3.29Gi  82%  [########--]  –  0ms  0  –
          1  1Gi  12%  [#---------]  –  0ms  0  –
    "#]]
    .assert_eq(&steady(&top.out));
    // Without a terminal, the same.
    let live = machine.run(&["top"]);
    assert_eq!(steady(&live.out), steady(&top.out));
    assert!(!live.out.contains('\u{1b}'));
    running.stop();
    other.stop();
}

#[test]
fn top_names_the_process_whose_kernel_never_ends() {
    let machine = Machine::new();
    let (running, region) = container(&machine, "endless");
    let (other, _region) = container(&machine, "honest");
    charge(&region, 1, 1 << 10, Kind::Buffer);
    // What the library writes: a launch is in flight that ought to have ended at some moment.
    let in_flight = |expected_by_ns: u64, progress_ns: u64| {
        let compute = region.compute(1).unwrap();
        let own = compute.own();
        own.launches.store(1, Relaxed);
        own.expected_by_ns.store(expected_by_ns, Relaxed);
        own.progress_ns.store(progress_ns, Relaxed);
        own.in_flight_ns.store(1_000_000, Relaxed);
    };
    let table = || steady(&machine.run(&["top", "--once"]).out);
    let is_overdue = || {
        let table = table();
        assert!(
            table.contains("endless") && table.contains("honest"),
            "{table}"
        );
        table.contains("overdue")
    };
    let now_ns = monotonic_ns();

    in_flight(now_ns + 10_000_000_000, 0);
    assert!(!is_overdue());
    // Other work of the process has just ended.
    in_flight(now_ns - 10_000_000_000, monotonic_ns());
    assert!(!is_overdue());
    in_flight(monotonic_ns() - 10_000_000_000, 1);

    let top = table();
    let note = "! endless: a kernel of process PID (PROGRAM) on GPU 1 should have ended ";
    assert!(top.contains(note), "{top}");
    let row = top.lines().find(|line| line.contains("  overdue "));
    assert!(
        row.is_some_and(|row| row.starts_with("  1  1Gi") || row.starts_with("  PID PROGRAM")),
        "{top}"
    );
    assert!(!top.contains("! honest"), "{top}");
    let json = machine.top();
    let of = |name: &str| {
        let containers = json["containers"].as_array().unwrap();
        let container = containers.iter().find(|c| c["name"] == name).unwrap();
        container["processes"].clone()
    };
    let overdue_ns = of("endless")[0]["devices"][1]["overdue_ns"].as_u64();
    assert!(overdue_ns.is_some_and(|ns| ns >= 10_000_000_000), "{json}");
    assert!(of("endless")[0]["devices"][0]["overdue_ns"].is_null());
    assert_eq!(of("honest"), serde_json::json!([]));
    running.stop();
    other.stop();
}

#[test]
fn top_shows_how_long_launches_waited_if_it_is_asked() {
    let machine = Machine::new();
    let (running, region) = container(&machine, "train");
    let (other, _region) = container(&machine, "serve");
    // Causes in the order of the words: the cap, the arbiter's grant, work in flight, a launch of unknown cost.
    region.count_wait(0, [0, 0, 50_000, 0]);
    region.count_wait(0, [2_000_000, 3_000_000, 0, 0]);
    region.count_wait(1, [0, 0, 0, 12_000_000_000]);
    be_seen(&machine);

    let top = steady(&machine.run(&["top", "--once", "--waits"]).out);

    let waits = top.find("WAITS OF").map(|at| &top[at..]);
    expect![[r#"
        WAITS OF  GPU  ENDED  <=100us  <=1ms  <=10ms  <=100ms  <=1s  <=10s  >10s  CAP  GRANT  IN FLIGHT  UNKNOWN COST
        serve  0  0  0  0  0  0  0  0  0  0ms  0ms  0ms  0ms
          1  0  0  0  0  0  0  0  0  0ms  0ms  0ms  0ms
        train  0  2  1  0  1  0  0  0  0  2ms  3ms  0ms  0ms
          1  1  0  0  0  0  0  0  1  0ms  0ms  0ms  12.0s
    "#]]
    .assert_eq(waits.unwrap_or(&top));
    let without = machine.run(&["top", "--once"]).out;
    assert!(!without.contains("WAITS OF"), "{without}");
    running.stop();
    other.stop();
}

#[test]
fn top_without_containers_says_how_to_start_one() {
    let machine = Machine::new();

    let top = machine.run(&["top", "--once"]);

    expect![[r#"
        vgpu top  TIME, 0 containers, 0 processes

        GPU  MODEL  MEMORY  LIMITS  COMPUTE  FLOORS
        0  Simulated GPU  0 / 16Gi  0%  [----------------]  0  0%  0%
        1  Simulated GPU  0 / 16Gi  0%  [----------------]  0  0%  0%

        No containers. Start one: vgpu run --gpumem 4Gi -- COMMAND
    "#]]
    .assert_eq(&steady(&top.out));
}

#[test]
fn the_json_of_top_is_a_promise() {
    let machine = Machine::new();
    let (running, region) = container(&machine, "train");
    charge(&region, 0, 3 << 10, Kind::Buffer);
    charge(&region, 0, 300, Kind::Context);
    be_refused(&region, 0, 1 << 10, 4 << 10);
    be_seen(&machine);

    let mut top = machine.top();

    let container = &mut top["containers"][0];
    assert_eq!(container["processes"][0]["host_pid"], std::process::id());
    for key in ["created_unix", "runner_pid", "path", "owner_uid"] {
        assert!(!container[key].is_null(), "{key}");
        container[key] = "…".into();
    }
    container["processes"][0]["pid"] = "…".into();
    container["processes"][0]["host_pid"] = "…".into();
    container["processes"][0]["joined_unix"] = "…".into();
    container["processes"][0]["name"] = "…".into();
    let second = container["devices"].as_array_mut().unwrap().pop().unwrap();
    assert_eq!(second["index"], 1);
    container["processes"][0]["devices"]
        .as_array_mut()
        .unwrap()
        .pop();
    container["devices"][0]["uuid"] = "…".into();
    let lengths = container["devices"][0]["waits_by_length"].take();
    assert_eq!(lengths.as_array().unwrap().len(), 7);
    container["devices"][0]["waits_by_length"] = "…".into();
    container["command"] = "…".into();
    top["gpus"].as_array_mut().unwrap().pop();
    top["gpus"][0]["uuid"] = "…".into();
    top["time_unix"] = "…".into();
    expect![[r#"
        {
          "broken": [],
          "containers": [
            {
              "claim": null,
              "command": "…",
              "container": "train",
              "created_unix": "…",
              "devices": [
                {
                  "buffer_bytes": 3221225472,
                  "busy_ns": 0,
                  "cap_percent": null,
                  "contended": false,
                  "context_bytes": 314572800,
                  "copies": 0,
                  "copy_bytes": 0,
                  "credit_ns": 0,
                  "driver_limit_bytes": 0,
                  "driver_limit_reason": "",
                  "ended_bytes": 0,
                  "fences": "library",
                  "floor_percent": 0,
                  "gpu": 0,
                  "granted_percent": 100.0,
                  "graph_launches": 0,
                  "host_functions": 0,
                  "index": 0,
                  "last_launch_ago_ns": null,
                  "launches": 0,
                  "limit_bytes": 4294967296,
                  "module_bytes": 0,
                  "overdue_ns": null,
                  "oversubscribed_bytes": 0,
                  "pending_bytes": 0,
                  "pending_shrink": false,
                  "physical_bytes": 17179869184,
                  "resident_bytes": 0,
                  "shared_bytes": 0,
                  "throttled_ns": 0,
                  "throttled_percent": 0.0,
                  "unaccounted_bytes": 0,
                  "unknown_launches": 0,
                  "used_bytes": 3535798272,
                  "used_percent": 0.0,
                  "utilization_percent": null,
                  "uuid": "…",
                  "waited_ns": {
                    "cap": 0,
                    "grant": 0,
                    "in_flight": 0,
                    "unknown_cost": 0
                  },
                  "waiting": false,
                  "waits": 0,
                  "waits_by_length": "…",
                  "waits_for_turn": false
                }
              ],
              "hook_calls": {
                "alloc": 0,
                "capture": 0,
                "context": 0,
                "dispatch": 0,
                "launch": 0,
                "pass": 0,
                "report": 0,
                "sync": 0,
                "visibility": 0
              },
              "limits_generation": 1,
              "name": "train",
              "namespace": "",
              "nested": false,
              "ooms": 1,
              "owner_uid": "…",
              "path": "…",
              "pod": "",
              "pod_uid": "",
              "policy": "default",
              "priority": 1,
              "processes": [
                {
                  "devices": [
                    {
                      "buffer_bytes": 3221225472,
                      "busy_ns": 0,
                      "context_bytes": 314572800,
                      "copies": 0,
                      "copy_bytes": 0,
                      "graph_launches": 0,
                      "host_functions": 0,
                      "index": 0,
                      "last_launch_ago_ns": null,
                      "launches": 0,
                      "module_bytes": 0,
                      "overdue_ns": null,
                      "oversubscribed_bytes": 0,
                      "pending_bytes": 0,
                      "throttled_ns": 0,
                      "unknown_launches": 0,
                      "used_bytes": 3535798272,
                      "utilization_percent": null,
                      "waiting": false,
                      "waits": 0
                    }
                  ],
                  "host_pid": "…",
                  "joined_unix": "…",
                  "name": "…",
                  "pid": "…"
                }
              ],
              "refused": 1,
              "runner_pid": "…",
              "state": "running",
              "unaccounted_bytes": 0,
              "waits_ran_out": 0,
              "workload": {
                "kind": "",
                "name": "",
                "team": ""
              }
            }
          ],
          "gpu_error": null,
          "gpu_faults": [],
          "gpus": [
            {
              "floors_percent": 0,
              "index": 0,
              "limits_bytes": 4294967296,
              "memory_bytes": 17179869184,
              "name": "Simulated GPU",
              "used_bytes": 0,
              "utilization_percent": 0,
              "uuid": "…"
            }
          ],
          "time_unix": "…",
          "unreadable": [],
          "version": 1
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&top).unwrap());
    running.stop();
}

#[test]
fn oom_says_what_was_refused_who_held_it_and_what_would_fit() {
    let machine = Machine::new();
    let (running, region) = container(&machine, "train");
    let nothing = machine.run(&["oom"]);
    assert_eq!(nothing.out, "Nothing was refused in: train\n");
    charge(&region, 1, 7 << 10, Kind::Buffer);
    be_refused(&region, 1, 2 << 10, 8 << 10);
    // The same refusal again is shown once.
    be_refused(&region, 1, 2 << 10, 8 << 10);
    be_refused(&region, 1, 2 << 10, 8 << 10);
    be_refused(&region, 1, 20 << 10, 8 << 10);

    let all = machine.run(&["oom"]);
    let one = machine.run(&["oom", "train"]);
    let json = machine.run(&["oom", "train", "--json"]);

    let report = steady(&one.out);
    expect![[r#"
        2026-11-21 14:32:03Z  train  cuMemAlloc_v2 of process PID: 2Gi on GPU 1, more than is left of the limit
          and 2 more times until 2026-11-21 14:32:03Z
          limit 8Gi, used 7Gi
          held by process PID PROGRAM: 7Gi
          would fit with a limit of at least 9Gi: vgpu set train --gpumem 1=9Gi

        2026-11-21 14:32:03Z  train  cuMemAlloc_v2 of process PID: 20Gi on GPU 1, more than is left of the limit
          limit 8Gi, used 7Gi
          held by process PID PROGRAM: 7Gi
          would fit with a limit of at least 27Gi, which is more than the GPU has (16Gi)

    "#]].assert_eq(&report);
    assert_eq!(all.out, one.out);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let record = &json["records"][0];
    assert_eq!(json["version"], 1);
    assert_eq!(record["call"], "cuMemAlloc_v2");
    assert_eq!(record["asked_bytes"], 2_u64 << 30);
    assert_eq!(record["limit_bytes"], 8_u64 << 30);
    assert_eq!(record["used_bytes"], 7_u64 << 30);
    assert_eq!(record["unaccounted_bytes"], 0);
    assert_eq!(record["would_fit_bytes"], 9_u64 << 30);
    assert_eq!(record["holders"][0]["pid"], std::process::id());
    assert_eq!(record["reason"], "full");
    assert_eq!(record["gpu"], 1);
    // The advice works.
    let advice = one
        .out
        .lines()
        .find_map(|line| line.split_once(": vgpu "))
        .unwrap()
        .1;
    let words: Vec<_> = advice.split(' ').collect();
    assert_eq!(machine.run(&words).code, Some(0), "{advice}");
    running.stop();
    assert_eq!(machine.run(&["oom"]).out, "No containers are running.\n");
    assert_eq!(machine.run(&["oom", "train"]).code, Some(1));
}

#[test]
fn broken_container_is_reported_and_hides_no_other() {
    let machine = Machine::new();
    let (running, _region) = container(&machine, "train");
    let broken = |name: &str, break_it: fn(&Path)| {
        let dir = machine.containers().join(name);
        fs::create_dir(&dir).unwrap();
        for file in ["limits", "targets", "region", "container.json"] {
            fs::copy(
                machine.containers().join("train").join(file),
                dir.join(file),
            )
            .unwrap();
        }
        break_it(&dir);
    };
    // Something alive in each of them, or they would be cleared away as ended.
    let mut keepers = Vec::new();
    for (name, break_it) in [
        (
            "b-empty-region",
            (|dir| fs::write(dir.join("region"), "").unwrap()) as fn(&Path),
        ),
        ("b-fifo", |dir| {
            fs::remove_file(dir.join("region")).unwrap();
            nix::unistd::mkfifo(&dir.join("region"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        }),
        ("b-label", |dir| {
            fs::write(dir.join("container.json"), "{\"name\": 7}").unwrap()
        }),
        ("b-limits", |dir| {
            fs::write(dir.join("limits"), vec![0_u8; 12288]).unwrap()
        }),
        ("b-link", |dir| {
            fs::remove_file(dir.join("region")).unwrap();
            symlink("/dev/zero", dir.join("region")).unwrap();
        }),
        ("b-writable", |dir| {
            fs::set_permissions(dir.join("limits"), PermissionsExt::from_mode(0o666)).unwrap();
        }),
    ] {
        broken(name, break_it);
        let mut keeper = machine.command("sleep");
        keeper.arg("30").env(
            "VGPU_LIMITS",
            machine.containers().join(name).join("limits"),
        );
        keepers.push(keeper.spawn().unwrap());
    }

    let top = machine.top();
    let table = machine.run(&["top", "--once"]);

    assert_eq!(top["containers"].as_array().unwrap().len(), 1);
    let region = size_of::<vgpu_abi::layout::RegionLayout>().to_string();
    let told: Vec<_> = top["broken"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| {
            let path = b["path"].as_str().unwrap();
            let dir = machine.containers();
            let dir = dir.to_str().unwrap();
            format!(
                "{}: {}",
                path.rsplit('/').next().unwrap(),
                b["reason"]
                    .as_str()
                    .unwrap()
                    .replace(dir, "DIR")
                    .replace(&region, "REGION")
            )
        })
        .collect();
    expect![[r#"
        b-empty-region: region: file of 0 bytes, but a usage region has REGION; stop its container and remove the file
        b-fifo: region: not a regular file, but a directory, link, pipe, socket or device; stop its container and remove the file
        b-label: DIR/b-label/container.json is not a label file: invalid type: integer `7`, expected a string at line 1 column 10
        b-limits: limits: limits file that was never finished; stop its container and remove the file
        b-link: region: not a regular file, but a directory, link, pipe, socket or device; stop its container and remove the file
        b-writable: DIR/b-writable/limits belongs to uid ME with mode 666; it must belong to uid ME or root, and no other user may write it
    "#]].assert_eq(&steady(&told.join("\n")));
    assert!(
        table.out.contains("! ") && table.out.contains("b-fifo"),
        "{}",
        table.out
    );
    for mut keeper in keepers {
        keeper.kill().unwrap();
        keeper.wait().unwrap();
    }
    running.stop();
}

#[test]
fn a_name_that_a_program_made_up_cannot_move_the_cursor() {
    let machine = Machine::new();
    let (running, _region) = container(&machine, "train");
    let labels = machine.containers().join("train/container.json");
    let text = fs::read_to_string(&labels).unwrap();
    let hostile = text.replace(
        "\"name\": \"train\"",
        "\"name\": \"\\u001b[2Jx\\u202ey\\nz\"",
    );
    assert_ne!(text, hostile);
    fs::write(&labels, hostile).unwrap();

    let table = machine.run(&["top", "--once"]);

    assert!(table.out.contains("?[2Jx?y?z"), "{}", table.out);
    assert!(!table.out.contains('\u{1b}') && !table.out.contains('\u{202e}'));
    running.stop();
}

#[test]
fn top_names_the_claim_of_a_container() {
    let machine = Machine::new();
    let (running, _region) = container(&machine, "train");
    let labels = machine.containers().join("train/container.json");
    let text = fs::read_to_string(&labels).unwrap();
    let mut written: serde_json::Value = serde_json::from_str(&text).unwrap();
    written["claim"] = serde_json::json!({"name": "share", "uid": "u-share", "pods": ["p1"]});
    fs::write(&labels, written.to_string()).unwrap();

    let top = machine.top();

    let claim = serde_json::json!({"name": "share", "uid": "u-share"});
    assert_eq!(top["containers"][0]["claim"], claim);
    running.stop();
}

#[test]
fn completions_and_version_and_help_are_there() {
    let machine = Machine::new();

    for shell in ["bash", "zsh", "fish"] {
        let script = machine.run(&["completions", shell]);
        assert_eq!(script.code, Some(0));
        for word in [
            "gpumem",
            "gpucores",
            "policy",
            "floor",
            "priority",
            "oversubscribe",
            "disable",
        ] {
            assert!(script.out.contains(word), "{shell}: {word}");
        }
    }
    let version = machine.run(&["version"]);
    assert!(
        version
            .out
            .starts_with(&format!("vgpu {} (limits ", env!("CARGO_PKG_VERSION")))
    );
    for command in ["run", "set", "top", "oom", "sim"] {
        let help = machine.run(&[command, "--help"]);
        assert!(help.out.contains("Examples:\n"), "{command}");
        let is_about_limits = ["run", "set"].contains(&command);
        assert_eq!(help.out.contains("--gpucores"), is_about_limits);
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let machine = Machine::new();
    let script = format!(
        "{vgpu} top --once | true; {vgpu} completions bash | head -n 1 >/dev/null; echo ${{PIPESTATUS[0]}}",
        vgpu = common::VGPU
    );

    let ended = common::ended(machine.command("bash").args(["-c", &script]));

    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("0\n", ""));
}

#[test]
fn set_changes_compute_limits_and_says_from_what_to_what() {
    let machine = Machine::new();
    let (running, _region) = container(&machine, "train");
    let set = |flags: &str| {
        let flags: Vec<_> = flags.split(' ').collect();
        let ended = machine.run(&[&["set", "train"], flags.as_slice()].concat());
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{flags:?}");
        ended.out
    };

    // The first cap is forced, as it is at the start; later ones leave the policy alone.
    expect![[r#"
        train GPU 0: compute none -> 30% force
        train GPU 1: compute none -> 30% force
    "#]]
    .assert_eq(&set("--gpucores 30"));
    expect![[r#"
        train GPU 0: compute 30% force -> 30% default
        train GPU 1: compute 30% force -> 30% default
    "#]]
    .assert_eq(&set("--policy default"));
    expect![[r#"
        train GPU 0: compute 30% default -> 30% default
        train GPU 1: compute 30% default -> 50% default
    "#]]
    .assert_eq(&set("--gpucores 1=50"));
    // A floor brings its policy, and any other policy takes it away again.
    expect![[r#"
        train GPU 0: compute 30% default -> 20-30% floor
        train GPU 1: compute 50% default -> 50% floor
    "#]]
    .assert_eq(&set("--floor 0=20"));
    expect![[r#"
        train GPU 0: compute 20-30% floor -> 20-100% floor
        train GPU 1: compute 50% floor -> none
    "#]]
    .assert_eq(&set("--gpucores 100"));
    expect![[r#"
        train GPU 0: compute 20-100% floor -> none
        train GPU 1: compute none -> none
    "#]]
    .assert_eq(&set("--policy force"));
    expect![[r#"
        train: priority 1 -> 0
    "#]]
    .assert_eq(&set("--priority 0"));
    // Memory beyond the limit comes and goes without the limit.
    expect![[r#"
        train GPU 0: limit 4Gi -> 4Gi, used 0
        train GPU 1: limit 8Gi -> 10Gi (8Gi of the GPU), used 0
    "#]]
    .assert_eq(&set("--oversubscribe 1=2Gi"));
    expect![[r#"
        train GPU 0: limit 4Gi -> 3Gi, used 0
        train GPU 1: limit 10Gi (8Gi of the GPU) -> 5Gi (3Gi of the GPU), used 0
    "#]]
    .assert_eq(&set("--gpumem 3Gi"));
    expect![[r#"
        train GPU 0: limit 3Gi -> 3Gi, used 0
        train GPU 1: limit 5Gi (3Gi of the GPU) -> 3Gi, used 0
    "#]]
    .assert_eq(&set("--oversubscribe none"));
    let top = machine.top();
    assert_eq!(top["containers"][0]["priority"], 0);
    assert_eq!(top["containers"][0]["policy"], "force");
    running.stop();
}

#[test]
fn set_says_no_to_compute_limits_that_cannot_be() {
    let machine = Machine::new();
    let (running, _region) = container(&machine, "train");
    let check = |flags: &str, says: &str| {
        let flags: Vec<_> = flags.split(' ').collect();
        let ended = machine.run(&[&["set", "train"], flags.as_slice()].concat());
        assert_eq!(
            (ended.code, ended.out.as_str()),
            (Some(2), ""),
            "{flags:?} {ended:?}"
        );
        assert!(ended.err.contains(says), "{flags:?}: {}", ended.err);
    };
    let generation = || machine.top()["containers"][0]["limits_generation"].clone();
    let before = generation();

    check(
        "--gpucores 2=30",
        "the container has no GPU 2; it has: 0 (GPU-",
    );
    check(
        "--policy force",
        "and the container has none; add --gpucores",
    );
    check("--policy floor", "add --floor, such as --floor 20");
    check("--gpucores 20 --floor 30", "above its cap of 20 %");
    check(
        "--gpumem 16Gi --oversubscribe 8Ti",
        "give at most 8Ti together",
    );
    assert_eq!(generation(), before);
    assert_eq!(
        machine.run(&["set", "train", "--gpucores", "20"]).code,
        Some(0)
    );
    check(
        "--floor 30",
        "give --floor 20 or less, or --gpucores 30 or more",
    );
    assert_eq!(
        machine.run(&["set", "train", "--floor", "20"]).code,
        Some(0)
    );
    check(
        "--gpucores 10",
        "give --floor 10 or less, or --gpucores 20 or more",
    );

    // One without a memory limit has nothing that more could come on top of.
    let free = machine.start(&["--gpucores", "30", "--name", "free"], LOOP);
    let refused = machine.run(&["set", "free", "--oversubscribe", "1Gi"]);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused
            .err
            .contains("GPU 0 has no memory limit; add --gpumem"),
        "{}",
        refused.err
    );
    free.stop();
    running.stop();
}

#[test]
fn set_inside_a_container_can_only_lower_compute_limits() {
    let machine = Machine::new();
    let flags = ["--gpucores", "50", "--priority", "4", "--name", "outer"];
    let outer = machine.start(&flags, LOOP);
    let limits = machine.containers().join("outer/limits");
    let inside = |flags: &str| {
        let words: Vec<_> = ["set", "outer"]
            .into_iter()
            .chain(flags.split(' '))
            .collect();
        common::ended(machine.vgpu(words).env("VGPU_LIMITS", &limits))
    };

    for (flags, says) in [
        ("--gpucores 51", "more than the outer limit of 50 %"),
        ("--gpucores 100", "more than the outer limit of 50 %"),
        ("--policy disable", "would lift the outer cap"),
        ("--floor 1", "the outer limits guarantee nothing of it"),
        ("--priority 3", "above the outer priority of 4"),
    ] {
        let refused = inside(flags);
        assert_eq!(
            (refused.code, refused.out.as_str()),
            (Some(2), ""),
            "{flags}"
        );
        assert!(refused.err.contains(says), "{flags}: {}", refused.err);
    }
    assert_eq!(inside("--gpucores 40 --priority 5").code, Some(0));
    // From outside they can be raised.
    let raised = machine.run(&["set", "outer", "--gpucores", "60", "--priority", "0"]);
    assert_eq!(raised.code, Some(0), "{}", raised.err);
    outer.stop();
}

#[test]
fn changes_that_are_made_at_once_all_count() {
    let machine = Machine::new();
    let (running, _region) = container(&machine, "train");
    let flags = [
        "--gpumem=0=2Gi",
        "--gpumem=1=3Gi",
        "--gpucores=40",
        "--priority=7",
        "--floor=0=10",
        "--oversubscribe=1=1Gi",
    ];

    let children: Vec<_> = flags
        .iter()
        .map(|flag| {
            let mut command = machine.vgpu(["set", "train", flag]);
            command.stdout(std::process::Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }

    let top = machine.top();
    let container = &top["containers"][0];
    let of = |device: usize, key: &str| container["devices"][device][key].as_u64().unwrap();
    assert_eq!(container["priority"], 7);
    assert_eq!(
        (of(0, "limit_bytes"), of(1, "limit_bytes")),
        (2 << 30, 4 << 30)
    );
    assert_eq!((of(0, "cap_percent"), of(0, "floor_percent")), (40, 10));
    assert_eq!(container["policy"], "floor");
    running.stop();
}

#[test]
fn advice_for_a_paged_container_asks_for_no_more_device_memory() {
    let machine = Machine::new();
    let flags = [
        "--gpumem",
        "0=4Gi",
        "--oversubscribe",
        "4Gi",
        "--name",
        "paged",
    ];
    let running = machine.start(&flags, LOOP);
    let region = Region::open(&machine.containers().join("paged/region")).unwrap();
    charge(&region, 0, 7 << 10, Kind::Buffer);
    be_refused(&region, 0, 12 << 10, 8 << 10);

    let oom = machine.run(&["oom", "paged"]);

    let advice = oom
        .out
        .lines()
        .find_map(|line| line.split_once(": vgpu "))
        .unwrap()
        .1;
    assert_eq!(advice, "set paged --oversubscribe 15Gi");
    let words: Vec<_> = advice.split(' ').collect();
    let set = machine.run(&words);
    assert_eq!(set.code, Some(0), "{}", set.err);
    assert_eq!(
        machine.top()["containers"][0]["devices"][0]["limit_bytes"],
        19_u64 << 30
    );
    // Memory that can be on the host is not part of the GPU's promises.
    assert_eq!(machine.top()["gpus"][0]["limits_bytes"], 4_u64 << 30);
    running.stop();
}
