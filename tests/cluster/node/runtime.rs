//! A container runtime that drops what the agent answers: the node gets no pod, and says why.

use std::fs;

use crate::agent;
use crate::doctor;
use crate::world::{NAME, World, gpu_pod, is_ready, run_of, share, within};

/// containerd's configuration, where the agent reads it.
const CONFIG: &str = "/etc/containerd/config.toml";
/// The CRI plugin's table in it.
const TABLE: &str = "[plugins.\"io.containerd.grpc.v1.cri\"]\n";

/// Writes a file back, also after a failed test: the next ones go on with the node.
struct WrittenBack<'a>(&'a str);

impl Drop for WrittenBack<'_> {
    fn drop(&mut self) {
        drop(fs::write(CONFIG, self.0));
    }
}

/// Whether the agent offers GPUs to the kubelet.
async fn until_offered(world: &World, what: &str, offered: bool) {
    world
        .eventually(what, async || {
            (world.slots().await.is_some_and(|slots| slots > 0) == offered).then_some(())
        })
        .await;
}

#[test]
fn node_without_cdi_gets_no_pod_until_it_has_it() {
    within(async |world| {
        let before = fs::read_to_string(CONFIG).unwrap();
        let on = "enable_cdi = true\n";
        let off = before
            .replace(on, "")
            .replace(TABLE, &format!("{TABLE}  enable_cdi = false\n"));
        assert_ne!(off, before);
        if !world.by_cdi {
            println!("left out: this node's containers get their GPUs by mounts");
            return;
        }
        world
            .make_pod(gpu_pod("old", &share(1000), &["count", "hold"]))
            .await;
        let old = world.until_ready("old").await;
        let process = agent::process_of(&old, "work");

        let back = WrittenBack(&before);
        fs::write(CONFIG, off).unwrap();

        until_offered(world, "the node offers no GPU", false).await;
        let pod = gpu_pod("new", &share(1000), &["count", "hold"]);
        world.make_pod(pod).await;
        world
            .eventually("the node says why", async || {
                let said = world.events_of(NAME).await;
                said.iter()
                    .any(|event| event.contains("CDI switched off"))
                    .then_some(())
            })
            .await;
        if let Some(failed) = doctor::node_failures() {
            assert!(
                failed
                    .iter()
                    .any(|line| line.contains("VGPU-N08") && line.contains("serves no pod")),
                "{failed:?}"
            );
        }
        // The pod that runs is unharmed, and the new one waits for the scheduler.
        assert!(agent::lives(process));
        let waiting = world.pods().get("new").await.unwrap();
        assert_eq!(waiting.spec.unwrap().node_name, None);

        drop(back);

        until_offered(world, "the node offers its GPUs again", true).await;
        world.until("new", "runs", is_ready).await;
        let still = world.until_ready("old").await;
        assert_eq!(run_of(&still, "work"), run_of(&old, "work"));
        assert!(agent::lives(process));
    });
}
