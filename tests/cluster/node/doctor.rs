//! What `vgpu doctor` says of a cluster, a node and a container in which all is well, and of a fault that people make.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::world::{World, gpu_pod, share, within};

/// The command, built beside the tests.
fn vgpu() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.parent().and_then(Path::parent).unwrap();
    folder.join("vgpu")
}

/// The checks that failed, with what was seen.
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

/// A process of a container that has limits, as the node numbers it.
fn limited_process() -> Option<String> {
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    entries
        .map(|entry| entry.path())
        .find(|process| process.join("root/etc/vgpu/limits").exists())
        .and_then(|process| Some(process.file_name()?.to_str()?.to_owned()))
}

/// Waits until it finds nothing: what other tests have left is cleared away by and by.
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
fn the_doctor_finds_nothing_wrong_where_all_is_well_and_names_a_label_that_is_gone() {
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

        let node = crate::world::NAME;
        world.kubectl(&["label", "node", node, "gpu-"]).unwrap();
        let failed = failures(&["cluster"]);
        world.kubectl(&["label", "node", node, "gpu=on"]).unwrap();
        assert!(
            failed
                .iter()
                .any(|failed| failed.contains("VGPU-K03") && failed.contains("gpu=on")),
            "{failed:?}"
        );
    });
}
