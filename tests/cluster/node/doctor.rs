//! The results of `vgpu doctor` for a healthy cluster, node and container, and for a common fault.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::agent;
use crate::world::{World, gpu_pod, share, within};

/// The command, built beside the tests.
fn vgpu() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.parent().and_then(Path::parent).unwrap();
    folder.join("vgpu")
}

/// The failed checks, with their observations.
fn failures(arguments: &[&str]) -> Vec<String> {
    let output = Command::new(vgpu())
        .arg("doctor")
        .args(arguments)
        .arg("--json")
        .output()
        .unwrap();
    let document: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let rows = document["checks"].as_array().unwrap().iter();
    let failed: Vec<String> = rows
        .filter(|row| row["verdict"] == "fail")
        .map(|row| format!("{}: {}", row["id"], row["evidence"]))
        .collect();
    assert_eq!(output.status.code(), Some(i32::from(!failed.is_empty())));
    failed
}

/// The failed checks of the node; nothing where the command is not built.
pub(crate) fn node_failures() -> Option<Vec<String>> {
    vgpu().exists().then(|| failures(&["node"]))
}

/// A process of a container that has limits, as the node numbers it.
fn limited_process() -> Option<String> {
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    entries
        .map(|entry| entry.path())
        .find(|process| process.join("root/etc/vgpu/limits").exists())
        .and_then(|process| Some(process.file_name()?.to_str()?.to_owned()))
}

/// Waits until it finds nothing: the remains of other tests are removed over time.
async fn until_well(world: &World, what: &str, arguments: &[&str]) {
    world
        .eventually(what, async || {
            let failed = failures(arguments);
            if !failed.is_empty() {
                println!("{what}, not yet: {failed:?}");
            }
            failed.is_empty().then_some(())
        })
        .await;
}

#[test]
fn doctor_passes_a_healthy_node_and_names_a_missing_label() {
    within(async |world| {
        if !vgpu().exists() {
            println!("left out: {} is not built", vgpu().display());
            return;
        }
        world
            .make_pod(gpu_pod("patient", &share(1000), &["count", "hold"]))
            .await;
        world.until_ready("patient").await;

        until_well(world, "the cluster is well", &["cluster"]).await;
        until_well(world, "the node is well", &["node"]).await;
        let process = limited_process().unwrap();
        until_well(
            world,
            "the container is well",
            &["container", "--pid", &process],
        )
        .await;

        world.label("gpu", None).await;
        let failed = failures(&["cluster"]);
        // The next test must not take the agent that is about to end for the one that comes.
        agent::is_gone(world).await;
        world.label("gpu", Some("on")).await;
        assert!(
            failed
                .iter()
                .any(|failed| failed.contains("VGPU-K03") && failed.contains("gpu=on")),
            "{failed:?}"
        );
    });
}
