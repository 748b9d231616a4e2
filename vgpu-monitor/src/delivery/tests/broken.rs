//! The full disk, and the agent that is killed. Both happen to processes of their own.

use super::repair::is_whole;
use super::*;
use crate::steps;

/// A node whose disk has room for this many KiB: a file system in a name space of this command's own.
#[test]
fn full_disk_is_reported_and_leaves_nothing_half_made() {
    let node = NodeDir::new();
    std::fs::create_dir_all(node.path("var/lib/vgpu")).unwrap();
    let script =
        "mount -t tmpfs -o size=5m none \"$VGPU_TEST_NODE/var/lib/vgpu\" && exec \"$0\" \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.args(["-rm", "sh", "-c", script]);
    command.arg(std::env::current_exe().unwrap());
    command.args([
        "delivery::tests::broken::child_on_a_full_disk",
        "--exact",
        "--ignored",
        "--nocapture",
    ]);
    command.env("VGPU_TEST_NODE", node.path(""));
    let ended = command.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    if said.contains("unshare failed") || said.contains("permission denied") {
        // A machine without name spaces for users.
        return;
    }
    assert!(
        ended.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&ended.stdout)
    );
}

#[test]
#[ignore = "a part of full_disk_is_reported_and_leaves_nothing_half_made"]
fn child_on_a_full_disk() {
    let root = PathBuf::from(std::env::var_os("VGPU_TEST_NODE").unwrap());
    let gpus = watch::Sender::new(Some(Arc::new(inventory(1))));
    let mounts = Delivery::new(settings(&root, Manner::Mounts, gpus.subscribe())).unwrap();
    let cdi = Delivery::new(settings(&root, Manner::Cdi, gpus.subscribe())).unwrap();

    let errors = [
        mounts.allot().map(drop).unwrap_err().to_string(),
        cdi.give(&name("a"), &given("train", GIB))
            .unwrap_err()
            .to_string(),
    ];

    for error in errors {
        assert!(
            error.contains("/region: no space left on the disk"),
            "{error}"
        );
    }
    assert_eq!(files::names(cdi.root()).unwrap(), [""; 0]);
    assert!(!root.join("var/run/cdi").exists());
    assert_eq!(cdi.known().unwrap(), []);
}

/// The steps of an agent's life, killed at each of them by the step's number.
#[test]
fn next_agent_repairs_after_a_kill_at_any_step() {
    let mut steps = 0;
    loop {
        let node = NodeDir::new();
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args([
            "delivery::tests::broken::child_that_is_killed",
            "--exact",
            "--ignored",
        ]);
        command
            .env("VGPU_TEST_NODE", node.path(""))
            .env("VGPU_TEST_STEP", steps.to_string());
        let ended = command.output().unwrap();
        let what = format!("killed at step {steps}");

        // Whatever a runtime can read is complete.
        for text in ["a", "b"] {
            if node.spec(&name(text)).exists() {
                is_whole_enough(&node, &name(text), &what);
            }
        }
        let delivery = node.delivery(Manner::Cdi);
        delivery
            .give(&name("a"), &given("train", 4 * GIB))
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        is_whole(&node, &name("a"), &what);
        delivery.remove(&name("b")).unwrap();
        for known in delivery.known().unwrap() {
            if known != name("a") {
                // Allotted, and not given yet.
                delivery.remove(&known).unwrap();
            }
        }
        delivery
            .tidy()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(files::names(delivery.root()).unwrap(), ["a"], "{what}");
        let inside = files::names(&delivery.root().join("a")).unwrap();
        assert_eq!(
            inside,
            ["container.json", "doorbell", "limits", "region", "targets"],
            "{what}"
        );
        assert_eq!(
            files::names(&node.path("var/run/cdi")).unwrap(),
            ["vgpu-a.json"],
            "{what}"
        );
        assert_eq!(node.libraries(), [delivery.library()], "{what}");

        if ended.status.success() {
            break;
        }
        steps += 1;
        assert!(steps < 200, "{}", String::from_utf8_lossy(&ended.stderr));
    }
    assert!(steps > 40, "only {steps} steps were tried");
}

/// Host-owned files are never half. A region that its container has spoilt is whole before that is started again.
fn is_whole_enough(node: &NodeDir, name: &Name, what: &str) {
    assert_eq!(node.limits(name).devices.len(), 1, "{what}");
    let path = node.container(name, "");
    let instance = supervisor::instance::Instance::open(&path)
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let labels = instance
        .labels()
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(!labels.pod.is_empty(), "{what}");
    TargetsFile::open(&node.container(name, "targets"))
        .unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[test]
#[ignore = "a part of next_agent_repairs_after_a_kill_at_any_step"]
fn child_that_is_killed() {
    let root = PathBuf::from(std::env::var_os("VGPU_TEST_NODE").unwrap());
    let step: i64 = std::env::var("VGPU_TEST_STEP").unwrap().parse().unwrap();
    let gpus = watch::Sender::new(Some(Arc::new(inventory(1))));
    // A careful administrator's umask must not close a container's own files to it.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    steps::arm(step);
    let cdi = Delivery::new(settings(&root, Manner::Cdi, gpus.subscribe())).unwrap();
    cdi.give(&name("a"), &given("train", 3 * GIB)).unwrap();
    cdi.give(&name("a"), &given("train", 4 * GIB)).unwrap();
    // Spoilt by its container, and made anew.
    std::fs::write(root.join("var/lib/vgpu/containers/a/region"), "").unwrap();
    cdi.give(&name("a"), &given("train", 4 * GIB)).unwrap();
    cdi.give(&name("b"), &given("other", GIB)).unwrap();
    cdi.remove(&name("b")).unwrap();
    let mounts = Delivery::new(settings(&root, Manner::Mounts, gpus.subscribe())).unwrap();
    let (mounted, _) = mounts.allot().unwrap();
    mounts.give(&mounted, &given("third", GIB)).unwrap();
    mounts.remove(&mounted).unwrap();
}
