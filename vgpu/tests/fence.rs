//! The driver's own memory limit beside the library's: on the control group that `vgpu run` makes for a command, and on
//! the one that a container's runtime has made.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test that is wrong about its own machine has failed"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Machine, is_root, until};
use crate::containers::{Handmade, hook_by, hook_on};
use crate::program::{Client, OUT_OF_MEMORY, compiled};

const GIB: u64 = 1 << 30;
/// What is added for a context that has not been measured.
const CONTEXT: u64 = 640 << 20;

/// The directory of this process's control group of version 2; `None` if this process may not make groups in it.
fn own_group() -> Option<PathBuf> {
    let skip = |why: &str| {
        println!("skipped: {why}");
        None
    };
    if !is_root() {
        return skip("only root sets a limit of the driver");
    }
    let (groups, mounts) = (
        fs::read_to_string("/proc/self/cgroup").unwrap(),
        fs::read_to_string("/proc/self/mountinfo").unwrap(),
    );
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let mut mounts = mounts.lines().filter(|line| line.contains(" - cgroup2 "));
    let mount = mounts.find_map(|line| line.split(' ').nth(4));
    let (Some(own), Some(mount)) = (own, mount) else {
        return skip("there are no control groups of version 2");
    };
    let own = Path::new(mount).join(own.trim_start_matches('/'));
    let probe = own.join(format!("vgpu-test-{}", std::process::id()));
    if let Err(error) = fs::create_dir(&probe) {
        return skip(&format!("{}: {error}", probe.display()));
    }
    fs::remove_dir(probe).unwrap();
    Some(own)
}

/// What `vgpu top` says of a container's fences: which hold, and the driver's limit.
fn fences(machine: &Machine, name: &str) -> (String, u64, String) {
    let top = machine.top();
    let mut containers = top["containers"].as_array().unwrap().iter();
    let found = containers.find(|one| one["name"] == name).unwrap();
    let device = &found["devices"][0];
    (
        device["fences"].as_str().unwrap().to_owned(),
        device["driver_limit_bytes"].as_u64().unwrap(),
        device["driver_limit_reason"].as_str().unwrap().to_owned(),
    )
}

/// The UUID of the simulated GPU 0.
fn uuid(machine: &Machine) -> String {
    machine.top()["gpus"][0]["uuid"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn command_without_the_library_stays_below_the_limit_of_the_driver() {
    let machine = Machine::with_driver("13.4");
    let (Some(own), Some(program)) = (own_group(), compiled(&machine)) else {
        return;
    };
    let name = format!("train-{}", std::process::id());
    let words = [
        "run",
        "--gpumem",
        "4Gi",
        "--name",
        &name,
        "--",
        "env",
        "-u",
        "LD_PRELOAD",
    ];
    let mut command = machine.vgpu(words);
    let mut client = Client::start(command.arg(&program));

    assert_eq!(client.ask("alloc 5000"), OUT_OF_MEMORY);
    assert_eq!(client.ask("alloc 4000"), "ok");
    let both = |bytes| ("both".to_owned(), bytes, String::new());
    assert_eq!(fences(&machine, &name), both(4 * GIB + CONTEXT));
    let group = own.join(format!("vgpu.{name}"));
    assert!(group.is_dir());

    let set = machine.run(&["set", &name, "--gpumem", "6Gi"]);
    assert_eq!((set.code, set.err.as_str()), (Some(0), ""));
    assert_eq!(fences(&machine, &name), both(6 * GIB + CONTEXT));
    assert_eq!(client.ask("alloc 2000"), "ok");
    assert_eq!(client.ask("alloc 1000"), OUT_OF_MEMORY);
    client.end();
    assert!(!group.exists());
    assert_eq!(machine.names(), [""; 0]);
}

#[test]
fn limit_of_the_driver_follows_the_measured_context() {
    let machine = Machine::with_driver("13.4");
    let (Some(_), Some(program)) = (own_group(), compiled(&machine)) else {
        return;
    };
    let name = format!("learns-{}", std::process::id());
    let words = ["run", "--gpumem", "4Gi", "--name", &name, "--"];
    let mut command = machine.vgpu(words);
    let mut client = Client::start(command.arg(&program).env("VGPU_SIM_CONTEXT", "437Mi"));

    // The library's limit comes first.
    assert_eq!(client.ask("alloc 4000"), OUT_OF_MEMORY);
    until("the limit has room for the measured context", || {
        fences(&machine, &name).1 == 4 * GIB + (437 << 20)
    });
    client.end();
}

#[test]
fn older_driver_leaves_one_fence_and_no_group() {
    let machine = Machine::new();
    let (Some(own), Some(program)) = (own_group(), compiled(&machine)) else {
        return;
    };
    let name = format!("older-{}", std::process::id());
    let words = ["run", "--gpumem", "4Gi", "--name", &name, "--"];
    let client = Client::start(machine.vgpu(words).arg(&program));

    assert_eq!(
        fences(&machine, &name),
        ("library".to_owned(), 0, String::new())
    );
    assert!(!own.join(format!("vgpu.{name}")).exists());
    client.end();
}

/// A control group for one test, with a process in it.
struct Group(PathBuf);

impl Group {
    fn of(own: &Path, name: &str, pid: u32) -> Self {
        let group = own.join(format!("vgpu-test-{name}-{}", std::process::id()));
        fs::create_dir(&group).unwrap();
        fs::write(group.join("cgroup.procs"), pid.to_string()).unwrap();
        Self(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its process may need a moment to end.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn hook_limits_the_group_of_the_container() {
    let machine = Machine::with_driver("13.4");
    let Some(own) = own_group() else {
        return;
    };
    let uuid = uuid(&machine);
    let container = Handmade::on(&machine, "web", &["VGPU_MEMORY=4Gi"], &uuid);
    let group = Group::of(&own, "web", container.process.id());
    let ended = hook_on(&machine, "create", &container.state(), &uuid);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));

    let both = ("both".to_owned(), 4 * GIB + CONTEXT, String::new());
    assert_eq!(fences(&machine, "web"), both);
    let file = machine.containers().join("web/fence.json");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(group.0.to_str().unwrap()), "{text}");

    // A host process that serves the board finds the group of a container that has no second fence yet.
    fs::remove_file(&file).unwrap();
    assert_eq!(fences(&machine, "web").0, "library");
    let server = machine.start(&["--gpumem", "1Gi"], "echo ready; exec sleep 600");
    until("the container's fence is set again", || {
        fences(&machine, "web") == both
    });
    server.stop();
    drop(container);
    drop(group);
    machine.top();
    assert!(!file.exists());
}

#[test]
fn hook_does_not_start_nvml_of_an_older_driver() {
    let machine = Machine::new();
    if own_group().is_none() {
        return;
    }
    let uuid = uuid(&machine);
    let container = Handmade::on(&machine, "web", &["VGPU_MEMORY=4Gi"], &uuid);
    // An NVML without limits for groups that ends a program when it is started.
    let driver = machine.path("older-driver");
    fs::create_dir(&driver).unwrap();
    let source = driver.join("nvml.c");
    let functions = ["nvmlInit_v2", "nvmlInitWithFlags"]
        .map(|name| format!("int {name}(void) {{ __builtin_trap(); }}\n"));
    fs::write(&source, functions.concat()).unwrap();
    let mut compiler = Command::new("cc");
    let library = driver.join("libnvidia-ml.so.1");
    compiler
        .args(["-shared", "-fPIC", "-o"])
        .arg(library)
        .arg(source);
    if !compiler.status().is_ok_and(|status| status.success()) {
        println!("skipped: no C compiler");
        return;
    }

    let mut command = machine.vgpu(["oci-hook", "create"]);
    command.env("LD_LIBRARY_PATH", &driver);
    let ended = hook_by(&mut command, "create", &container.state(), &uuid);

    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    assert_eq!(fences(&machine, "web").0, "library");
}

#[test]
fn group_that_other_programs_share_is_not_limited() {
    let machine = Machine::with_driver("13.4");
    if own_group().is_none() {
        return;
    }
    let uuid = uuid(&machine);
    let container = Handmade::on(&machine, "web", &["VGPU_MEMORY=4Gi"], &uuid);

    let ended = hook_on(&machine, "create", &container.state(), &uuid);

    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    let (fences, bytes, reason) = fences(&machine, "web");
    assert_eq!((fences.as_str(), bytes), ("library", 0));
    assert!(reason.contains("no control group of version 2"), "{reason}");
}
