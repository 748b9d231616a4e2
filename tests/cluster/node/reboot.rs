//! A reboot of the node, as far as processes and files can have one: every process of the node's programs and pods is
//! gone, nothing is left of what lies in memory, and the kernel names another boot.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::agent::{self, Stopped};
use crate::dra;
use crate::world::{NAME, World, gpu_container, is_ready, run, run_of, uid, within_claims};

const MIB: u64 = 1 << 20;
/// Where the kernel names the boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// What lies in memory on a node, and is filled by programs that start.
const IN_MEMORY: [&str; 3] = ["/run/containerd", "/run/netns", "/run/vgpu-agent"];
/// The folder of CDI descriptions, of which the driver's installation writes its own again at each boot.
const CDI: &str = "/run/cdi";

/// A node without power.
struct Down {
    containerd: Stopped,
    kubelet: Stopped,
}

impl Down {
    /// Takes the power away.
    fn now(world: &World) -> Self {
        let logs = world.run.join("logs");
        let kubelet = Stopped::kill("kubelet", &logs);
        let containerd = Stopped::kill("containerd", &logs);
        for shim in agent::processes("containerd-shim-runc-v2") {
            kill(shim, Signal::SIGKILL).ok();
        }
        let contained = agent::contained();
        assert!(!contained.is_empty(), "no container runs");
        for pid in &contained {
            kill(*pid, Signal::SIGKILL).ok();
        }
        while contained.iter().any(|pid: &Pid| agent::lives(*pid)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        remove_control_groups(Path::new("/sys/fs/cgroup"));
        for folder in IN_MEMORY {
            unmount_below(folder);
            empty(Path::new(folder), |_| true);
        }
        empty(Path::new(CDI), |name| name.starts_with("vgpu-"));
        // Volumes of pods in memory: tokens, ConfigMaps.
        unmount_below("/var/lib/kubelet/pods");
        another_boot(&world.run);
        Self {
            containerd,
            kubelet,
        }
    }

    /// Switches the node on.
    fn start(self) {
        self.containerd.start();
        self.kubelet.start_until_it_stays();
    }
}

/// Unmounts what is mounted below a folder, and not the folder's own mount. The last mounts go first.
fn unmount_below(folder: &str) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let below = format!("{folder}/");
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let points: Vec<&str> = points.filter(|point| point.starts_with(&below)).collect();
    for point in points.iter().rev() {
        drop(run(Command::new("umount").args(["--lazy", point])));
    }
}

/// Removes the control groups of pods. A kubelet that starts and finds groups of dead containers asks containerd for each
/// of them, and waits three seconds for the answer that there is no such container.
fn remove_control_groups(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        // The controllers of version 1 have links for one another.
        if !entry.file_type().unwrap().is_dir() {
            continue;
        }
        let path = entry.path();
        remove_control_groups(&path);
        if path.components().any(|part| part.as_os_str() == "kubepods") {
            while fs::remove_dir(&path).is_err() && path.exists() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn empty(folder: &Path, is_gone: impl Fn(&str) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(&is_gone) {
            continue;
        }
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            fs::remove_dir_all(&path).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
    }
}

/// The kubelet reads it when it starts, and reports it in the Node's status.
fn another_boot(folder: &Path) {
    let file = folder.join("boot_id");
    let text = fs::read_to_string(BOOT).unwrap();
    let (first, rest) = text.split_at(1);
    let other = if first == "0" { "1" } else { "0" };
    fs::write(&file, format!("{other}{rest}")).unwrap();
    run(Command::new("mount").arg("--bind").arg(&file).arg(BOOT)).unwrap();
}

async fn boot(world: &World) -> Option<String> {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let node = nodes.get(NAME).await.ok()?;
    Some(node.status?.node_info?.boot_id)
}

#[test]
fn claims_of_a_rebooted_node_hold_again() {
    within_claims(async |world| {
        if !world.has_claims() {
            return;
        }
        dra::by_claims(world).await;
        dra::make_template(world, "own", 2000);
        let words = ["total", "take=1000", "hold"];
        for name in ["witness", "gone"] {
            let pod = dra::own_claim_pod(name, "own", &words);
            world.make_pod(pod).await;
            world.lines(name, "work", words.len()).await;
        }
        let before = world.until_ready("witness").await;
        let files = dra::left();
        let first_boot = boot(world).await.unwrap();

        let node = Down::now(world);
        assert!(
            dra::left().len() < files.len(),
            "the CDI files are in memory"
        );
        // One pod is taken away by force meanwhile: the kubelet never ends its claim.
        world
            .kubectl(&["delete", "pod", "gone", "--force", "--grace-period=0"])
            .unwrap();
        node.start();

        world
            .eventually("the node reports another boot", async || {
                (boot(world).await? != first_boot).then_some(())
            })
            .await;
        // Its container runs again, by the kubelet's own word: before 1.37, the kubelet lists the devices of a claim twice
        // after its restart, and with ResourceHealthStatus the API server refuses every later status of the pod.
        world
            .eventually("the container has its limit again", async || {
                let said = world.exec("witness", "work", &["gpu", "total"]).ok()?;
                (said.trim() == format!("total {}", 2000 * MIB)).then_some(())
            })
            .await;
        // Of its 2000 MiB, the program takes 1000, and the contexts of the two processes 600.
        world
            .eventually("the program has its memory again", async || {
                let said = world.exec("witness", "work", &["gpu", "free"]).ok()?;
                (said.trim() == format!("free {}", 400 * MIB)).then_some(())
            })
            .await;
        let more = world.ask("witness", "work", &["take=300", "take=101"]);
        assert_eq!(more, ["took", "refused CUDA_ERROR_OUT_OF_MEMORY"]);
        let now = world.pods().get("witness").await.unwrap();
        assert_eq!(uid(&now), uid(&before), "it is another pod");
        if world.minor >= 37 {
            world
                .until("witness", "runs again", |pod| {
                    is_ready(pod) && run_of(pod, "work") != run_of(&before, "work")
                })
                .await;
        }
        // The records of the earlier boot do no harm: that of the pod that is gone is cleared, and a new pod has its share.
        let container = gpu_container("work", &json!({}), &["total", "hold"]);
        let source = json!({"resourceClaimTemplateName": "own"});
        world
            .make_pod(dra::claim_pod("later", container, source))
            .await;
        let said = world.lines("later", "work", 2).await;
        assert_eq!(said[0], format!("total {}", 2000 * MIB));
        dra::nothing_is_charged_twice(world, 2).await;
        world
            .eventually("the claim of the pod that is gone is cleared", async || {
                let claims = dra::left();
                // A directory and a CDI file for each of the two pods.
                (claims.len() == 4).then_some(())
            })
            .await;
        world
            .kubectl(&["delete", "pod", "witness", "--force", "--grace-period=0"])
            .unwrap();
        dra::clear(world, &["later"]).await;
    });
}
