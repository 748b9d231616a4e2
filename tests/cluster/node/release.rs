//! The chart: upgraded, rolled back and removed while pods with GPUs run, and installed where Pod Security is strict.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::world::{World, gpu_container, gpu_pod, is_ready, pod_of, run, run_of, share, within};

/// The library as a container has it.
const LIBRARY: &str = "/usr/local/vgpu/libvgpu.so";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn helm(words: &[&str]) -> String {
    run(Command::new("helm")
        .current_dir(repository())
        .args(words)
        .args(["--namespace", "vgpu-system"]))
    .unwrap_or_else(|error| panic!("helm {words:?}: {error}"))
}

/// Installs the chart again, with its values so far and these words of `helm upgrade`. helm does not load the API's
/// schemas each time: the step `chart` compares the rendered chart with them.
pub(crate) fn helm_upgrade(words: &[&str]) {
    let usual = [
        "upgrade",
        "vgpu",
        "charts/vgpu",
        "--reset-then-reuse-values",
        "--disable-openapi-validation",
    ];
    helm(&[&usual[..], words].concat());
}

fn ctr(words: &[&str]) -> String {
    run(Command::new("ctr")
        .args(["--namespace", "k8s.io"])
        .args(words))
    .unwrap_or_else(|error| panic!("ctr {words:?}: {error}"))
}

/// How long the library is that a container has, which tells the two of this test apart.
fn library(world: &World, pod: &str) -> u64 {
    let said = world.exec(pod, "work", &["ls", "-l", LIBRARY]).unwrap();
    let size = said.split_whitespace().nth(4);
    size.and_then(|size| size.parse().ok())
        .unwrap_or_else(|| panic!("{said}"))
}

/// An image of the agent that differs from the installed one in its library alone.
fn next_image(folder: &Path) -> u64 {
    let installed = std::fs::read_dir("/var/lib/vgpu/lib").unwrap();
    let installed = installed
        .map(|version| version.unwrap().path().join("libvgpu.so"))
        .find(|file| file.is_file());
    // Bytes after an ELF file's sections are never read.
    let mut bytes = std::fs::read(installed.expect("the agent has installed its library")).unwrap();
    bytes.extend_from_slice(b"next");
    let next = folder.join("libvgpu.so");
    std::fs::write(&next, &bytes).unwrap();
    let images = std::env::var_os("VGPU_IMAGES").expect("VGPU_IMAGES");
    let image = folder.join("next.tar");
    run(Command::new(repository().join("images/mkimage"))
        .arg("localhost/vgpu-monitor:next")
        .arg(&image)
        .arg("--base")
        .arg(Path::new(&images).join("vgpu-monitor.tar"))
        .arg("--file")
        .arg(format!("{}:/usr/lib/vgpu/libvgpu.so", next.display())))
    .unwrap();
    ctr(&["images", "import", image.to_str().unwrap()]);
    bytes.len() as u64
}

#[test]
fn upgrade_keeps_the_library_of_running_pods() {
    within(async |world| {
        let folder = tempfile::tempdir().unwrap();
        let words = ["total", "take=500", "hold"];
        world
            .make_pod(gpu_pod("before", &share(2000), &words))
            .await;
        world.said("before", words.len()).await;
        let begun = run_of(&world.until_ready("before").await, "work").unwrap();
        let first = library(world, "before");
        let next = next_image(folder.path());
        assert_ne!(first, next);

        helm_upgrade(&["--set", "devicePlugin.image.tag=next", "--wait"]);
        world.is_whole().await;

        let after = world.until_ready("before").await;
        assert_eq!(run_of(&after, "work").unwrap(), begun, "it was restarted");
        assert_eq!(library(world, "before"), first);
        assert_eq!(
            world.ask("before", "work", &["total", "take=1600"]),
            [
                (2000_u64 << 20).to_string(),
                "refused CUDA_ERROR_OUT_OF_MEMORY".to_owned()
            ],
            "its limit holds"
        );
        world.make_pod(gpu_pod("after", &share(2000), &words)).await;
        world.said("after", words.len()).await;
        assert_eq!(library(world, "after"), next);

        // A container that restarts keeps the library of its pod's start.
        ctr(&[
            "task",
            "kill",
            "--signal",
            "KILL",
            begun.trim_start_matches("containerd://"),
        ]);
        let again = world
            .until("before", "runs again", |pod| {
                is_ready(pod) && run_of(pod, "work").is_some_and(|run| run != begun)
            })
            .await;
        assert_eq!(library(world, "before"), first);

        helm(&["rollback", "vgpu", "--wait"]);
        world.is_whole().await;
        let back = world.until_ready("before").await;
        assert_eq!(run_of(&back, "work"), run_of(&again, "work"));
        assert_eq!(library(world, "after"), next);
    });
}

#[test]
fn removing_and_reinstalling_the_chart_keeps_running_pods() {
    within(async |world| {
        let folder = tempfile::tempdir().unwrap();
        let values = folder.path().join("values.yaml");
        std::fs::write(
            &values,
            helm(&["get", "values", "vgpu", "--output", "yaml"]),
        )
        .unwrap();
        let words = ["total", "take=500", "hold"];
        world.make_pod(gpu_pod("stays", &share(2000), &words)).await;
        world.said("stays", words.len()).await;
        let begun = run_of(&world.until_ready("stays").await, "work");

        helm(&["uninstall", "vgpu", "--wait"]);

        world
            .eventually("no webhook refuses pods any more", async || {
                let left = world.kubectl(&[
                    "get",
                    "mutatingwebhookconfigurations,validatingwebhookconfigurations",
                    "--output",
                    "name",
                ]);
                left.ok()?.trim().is_empty().then_some(())
            })
            .await;
        world
            .eventually("the node has no slots any more", async || {
                (world.slots().await? == 0).then_some(())
            })
            .await;
        let alone = world.until_ready("stays").await;
        assert_eq!(run_of(&alone, "work"), begun);
        let held = world.ask("stays", "work", &["take=1600"]);
        assert_eq!(
            held,
            ["refused CUDA_ERROR_OUT_OF_MEMORY"],
            "its limit holds"
        );
        world
            .eventually("the product's pods are gone", async || {
                let pods = world.kubectl(&["get", "pods", "-n", "vgpu-system", "-o", "name"]);
                pods.ok()?.trim().is_empty().then_some(())
            })
            .await;

        let values = values.to_str().unwrap();
        helm(&[
            "install",
            "vgpu",
            "charts/vgpu",
            "--values",
            values,
            "--wait",
        ]);
        world.is_whole().await;

        let back = world.until_ready("stays").await;
        assert_eq!(run_of(&back, "work"), begun);
        world.make_pod(gpu_pod("new", &share(2000), &words)).await;
        let said = world.said("new", words.len()).await;
        assert_eq!(said["take=500"], "took");
    });
}

#[test]
fn pod_security_admits_pods_with_gpus_but_not_the_agent() {
    within(async |world| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pod.json");
        let file = file.to_str().unwrap();
        for level in ["baseline", "restricted"] {
            let label = format!("pod-security.kubernetes.io/enforce={level}");
            world.kubectl(&["create", "namespace", level]).unwrap();
            world
                .kubectl(&["label", "namespace", level, &label])
                .unwrap();
            let mut pod = pod_of(
                "work",
                &[gpu_container("work", &share(1000), &["total", "hold"])],
            );
            pod["apiVersion"] = "v1".into();
            pod["kind"] = "Pod".into();
            pod["metadata"]["namespace"] = level.into();
            if level == "restricted" {
                pod["spec"]["securityContext"] = json!({
                    "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"},
                });
                pod["spec"]["containers"][0]["securityContext"] = json!({
                    "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
                });
            }
            std::fs::write(file, pod.to_string()).unwrap();
            // An account comes with its namespace by and by.
            world
                .eventually("the namespace takes pods", async || {
                    world.kubectl(&["create", "-f", file]).ok()
                })
                .await;
            let said = world
                .eventually("it says what it has", async || {
                    let said = world.kubectl(&["logs", "-n", level, "work"]).ok()?;
                    said.contains("hold").then_some(said)
                })
                .await;
            assert!(
                said.contains(&format!("total {}", 1000_u64 << 20)),
                "{level}: {said}"
            );
        }
        // The API server names the objects that the agent itself needs, and docs/install.md names all of them.
        let agent = world.kubectl(&[
            "get",
            "daemonset",
            "-n",
            "vgpu-system",
            "vgpu-monitor",
            "-o",
            "json",
        ]);
        let agent: Value = serde_json::from_str(&agent.unwrap()).unwrap();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "agent", "namespace": "baseline"},
            "spec": agent["spec"]["template"]["spec"],
        });
        let mut pod = pod;
        pod["spec"]["serviceAccountName"] = "default".into();
        // The fields that our own webhook would refuse first.
        for container in pod["spec"]["containers"].as_array_mut().unwrap() {
            container["env"] = json!([]);
            let mounts = container["volumeMounts"].as_array_mut().unwrap();
            mounts.retain(|mount| mount["name"] != "all-gpus");
        }
        std::fs::write(file, pod.to_string()).unwrap();
        let refused = world.kubectl(&["create", "--dry-run=server", "-f", file]);
        let refused = refused.unwrap_err();
        assert!(refused.contains("host namespaces"), "{refused}");
        assert!(!refused.contains("privileged (container"), "{refused}");
        for level in ["baseline", "restricted"] {
            world
                .kubectl(&["delete", "namespace", level, "--wait=false"])
                .unwrap();
        }
        world
            .eventually("the namespaces are gone", async || {
                let left = world.kubectl(&["get", "namespaces", "-o", "name"]).ok()?;
                (!left.contains("baseline") && !left.contains("restricted")).then_some(())
            })
            .await;
    });
}
