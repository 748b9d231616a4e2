//! The client examples with a real scheduler and nothing in between: they must print what their READMEs show.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test: a panic is its answer"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::conformance::{http, program};

use program::Program;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/client")
}

fn scheduler() -> Program {
    let state = std::fs::read(examples().join("state.json")).unwrap();
    Program::start(&serde_json::from_slice(&state).unwrap(), None, &[]).unwrap()
}

/// The command's output; the command must succeed.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Whether the program exists; prints a note if it does not.
fn is_here(program: &str) -> bool {
    let here = Command::new(program).arg("--version").output().is_ok();
    if !here {
        eprintln!("skipped: {program} is not installed (scripts/setup installs it)");
    }
    here
}

/// Checks that the example's pod is bound to the printed node, with the printed devices.
fn is_bound(scheduler: &Program, printed: &str) {
    let path = "/api/v1/namespaces/default/pods/example";
    let answer = http::send(scheduler.address, "GET", path, "", b"").unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let pod = answer.json();
    let node = pod["spec"]["nodeName"].as_str().unwrap();
    assert!(printed.contains(&format!("bound to {node}\n")), "{printed}");
    let held = &pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"];
    let device = held.as_str().unwrap().split(',').next().unwrap();
    assert!(printed.contains(&format!(" of {device}\n")), "{printed}");
}

/// The block of a README with the example's output.
fn shown(language: &str) -> String {
    let readme = std::fs::read_to_string(examples().join(language).join("README.md")).unwrap();
    let (_, block) = readme.split_once("```text\n").unwrap();
    block.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_python_example_prints_what_its_readme_shows() {
    if !is_here("python3") {
        return;
    }
    let scheduler = scheduler();
    let printed = printed(
        Command::new("python3")
            .arg("-B")
            .arg(examples().join("python/example.py"))
            .arg(format!("--url=http://{}", scheduler.address)),
    );
    is_bound(&scheduler, &printed);
    assert_eq!(printed, shown("python"));
}

#[test]
fn the_java_example_prints_what_its_readme_shows() {
    if !is_here("javac") || !is_here("java") {
        return;
    }
    let scheduler = scheduler();
    let classes = tempfile::tempdir().unwrap();
    let sources = ["Json.java", "VgpuClient.java", "Example.java"];
    printed(
        Command::new("javac")
            .args(["-Xlint:all", "-Werror", "-d"])
            .arg(classes.path())
            .args(sources.map(|source| examples().join("java").join(source))),
    );
    let printed = printed(
        Command::new("java")
            .arg("-cp")
            .arg(classes.path())
            .arg("Example")
            .arg(format!("http://{}", scheduler.address)),
    );
    is_bound(&scheduler, &printed);
    assert_eq!(printed, shown("java"));
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/lib/demo")
}

#[test]
fn the_cluster_demo_places_pods_and_finds_nothing_wrong() {
    if !is_here("python3") {
        return;
    }
    let printed = printed(
        Command::new("python3")
            .arg("-B")
            .arg(demo().join("cluster.py"))
            .args(["--scheduler", env!("CARGO_BIN_EXE_vgpu-scheduler")])
            .args(["--nodes", "10", "--pods", "150"]),
    );
    for part in [
        "Placed ",
        "Utilisation",
        "Fragmentation",
        "Refused by the webhook",
        "GET /explain of one of them",
        ": 0 violations",
    ] {
        assert!(printed.contains(part), "{part} is not in\n{printed}");
    }
}

/// The result of the demo's check for a hand-made state.
fn checked(state: &str) -> (Option<i32>, String) {
    let state = serde_json::from_str(state).unwrap();
    let scheduler = Program::start(&state, None, &[]).unwrap();
    let output = Command::new("python3")
        .arg("-B")
        .arg(demo().join("cluster_check.py"))
        .arg(format!("--url=http://{}", scheduler.address))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), printed)
}

#[test]
fn the_demos_check_finds_overcommit_and_missing_devices() {
    if !is_here("python3") {
        return;
    }
    let node = r#"{"metadata":{"name":"n","annotations":{"hami.io/node-nvidia-register":
        "GPU-0,10,1000,100,NVIDIA,0,true:"}},"status":{"allocatable":{"nvidia.com/gpu":"10"}}}"#
        .replace('\n', " ");
    let pod = |name: &str, held: &str| {
        format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"default","annotations":{{{held}}}}},
            "spec":{{"nodeName":"n","containers":[{{"name":"c","image":"x","resources":
            {{"limits":{{"nvidia.com/gpu":"1","nvidia.com/gpumem":"600"}}}}}}]}},
            "status":{{"phase":"Running"}}}}"#
        )
    };
    let held = r#""hami.io/vgpu-node":"n","hami.io/vgpu-time":"1700000000",
        "hami.io/vgpu-devices-allocated":"GPU-0,NVIDIA,600,0:;""#;
    let state = |pods: &[String]| format!(r#"{{"nodes":[{node}],"pods":[{}]}}"#, pods.join(","));

    let (code, printed) = checked(&state(&[pod("a", held)]));
    assert_eq!(code, Some(0), "{printed}");
    let (code, printed) = checked(&state(&[pod("a", held), pod("b", held)]));
    assert_eq!(code, Some(1), "{printed}");
    let over = "GPU GPU-0 of n has 1000 MiB, and 1200 are promised";
    assert!(printed.contains(over), "{printed}");
    let (code, printed) = checked(&state(&[pod("a", "")]));
    assert_eq!(code, Some(1), "{printed}");
    let bare = "pod default/a runs on n and its devices lie on None";
    assert!(printed.contains(bare), "{printed}");
}

#[test]
fn the_clients_report_a_scheduler_that_does_not_answer() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    if !is_here("python3") {
        return;
    }
    let output = Command::new("python3")
        .arg("-B")
        .arg(examples().join("python/example.py"))
        .arg(format!("--url=http://{closed}"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains(&format!("no scheduler at http://{closed}")),
        "{said}"
    );
}
