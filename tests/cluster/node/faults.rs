//! Every part killed in the middle: containers that run are unharmed, nothing is given twice, nothing is left behind.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use nix::unistd::Pid;
use serde_json::json;

use crate::agent::{self, Stopped};
use crate::world::{World, devices, gpu_pod, is_ready, run_of, share, status, within};

/// A container that holds memory of a GPU while something happens around it.
struct Witness {
    name: String,
    process: Pid,
    run: Option<String>,
    used: u64,
}

impl Witness {
    async fn start(world: &World, name: &str) -> Self {
        let words = ["take=1000", "hold"];
        world.make_pod(gpu_pod(name, &share(2000), &words)).await;
        let pod = world.until_ready(name).await;
        world.lines(name, "work", words.len()).await;
        Self {
            name: name.to_owned(),
            process: agent::process_of(&pod, "work"),
            run: run_of(&pod, "work"),
            used: used(world),
        }
    }

    /// It runs as it ran, and its limit holds.
    async fn is_unharmed(&self, world: &World) {
        assert!(agent::lives(self.process), "{} was killed", self.name);
        let pod = world.until_ready(&self.name).await;
        assert_eq!(run_of(&pod, "work"), self.run);
        assert_eq!(status(&pod, "work").unwrap().restart_count, 0);
        assert!(used(world) >= self.used, "its memory is gone");
        // Of its 2000 MiB, the program takes 1000, and the contexts of the two processes 600.
        let said = world.ask(&self.name, "work", &["take=300", "take=101"]);
        assert_eq!(said, ["took", "refused CUDA_ERROR_OUT_OF_MEMORY"]);
    }
}

fn used(world: &World) -> u64 {
    (0..world.board.gpus())
        .map(|gpu| world.board.used_bytes(gpu))
        .sum()
}

/// No GPU is promised beyond its memory, and every pod with a GPU has its promised share.
async fn nothing_is_given_twice(world: &World) {
    let mut promised: BTreeMap<String, u64> = BTreeMap::new();
    let pods = world.pods().list(&ListParams::default()).await.unwrap();
    for pod in pods.items.iter().filter(|pod| !has_ended(pod)) {
        for (uuid, memory) in devices(pod) {
            *promised.entry(uuid).or_default() += memory;
        }
    }
    for gpu in 0..world.board.gpus() {
        let promised = promised.get(&world.board.uuid(gpu)).copied();
        let total = world.board.total_bytes(gpu) >> 20;
        assert!(
            promised.unwrap_or_default() <= total,
            "GPU {gpu}: {promised:?} of {total} MiB"
        );
    }
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

/// A pod that is asked for now runs, with its share.
async fn a_new_pod_runs(world: &World, name: &str) {
    let words = ["total", "hold"];
    world.make_pod(gpu_pod(name, &share(1500), &words)).await;
    let said = world.said(name, words.len()).await;
    assert_eq!(said["total"], (1500_u64 << 20).to_string());
    nothing_is_given_twice(world).await;
}

/// A pod that reached the kubelet while no plugin was there runs, or the kubelet has refused it for good: that is the
/// kubelet's own way, and the pod's owner (a Deployment, a Job) makes another.
async fn is_judged(world: &World, name: &str) {
    world
        .until(name, "runs, or is refused by the kubelet", |pod| {
            let status = pod.status.as_ref();
            let refused = status.and_then(|status| status.reason.as_deref());
            is_ready(pod) || refused == Some("UnexpectedAdmissionError")
        })
        .await;
    nothing_is_given_twice(world).await;
}

#[test]
fn the_agent_killed() {
    within(async |world| {
        let witness = Witness::start(world, "witness").await;

        let before = agent_run(world).await;
        agent::kill_contained("vgpu-monitor");
        // Asked for while no plugin serves the kubelet.
        world
            .make_pod(gpu_pod("meanwhile", &share(1500), &["total", "hold"]))
            .await;
        is_judged(world, "meanwhile").await;
        world
            .eventually("the agent serves the kubelet again", async || {
                let (run, ready) = agent_run(world).await?;
                (ready && Some(run) != before.clone().map(|before| before.0)).then_some(())
            })
            .await;
        a_new_pod_runs(world, "afterwards").await;

        witness.is_unharmed(world).await;
    });
}

#[test]
fn the_plugin_killed_behind_its_front() {
    within(async |world| {
        let witness = Witness::start(world, "witness").await;
        let before = agent_run(world).await.unwrap().0;
        let slots = world.slots().await;

        for number in 0..4 {
            agent::kill_plugin();
            // Asked for while no plugin answers: the kubelet refuses none of them.
            let name = format!("meanwhile-{number}");
            world
                .make_pod(gpu_pod(&name, &share(300), &["total", "hold"]))
                .await;
            while agent::plugins() == 0 {
                assert_eq!(world.slots().await, slots);
            }
            world.until_ready(&name).await;
            assert_eq!(world.slots().await, slots);
        }

        a_new_pod_runs(world, "afterwards").await;
        let (run, ready) = agent_run(world).await.unwrap();
        assert!(
            ready && run == before,
            "the agent's container was restarted"
        );
        witness.is_unharmed(world).await;
    });
}

/// The present run of the agent's plugin, and whether its pod is ready: it is then registered with the kubelet.
async fn agent_run(world: &World) -> Option<(String, bool)> {
    let label = ListParams::default().labels("app.kubernetes.io/component=agent");
    let pods = world.system().list(&label).await.ok()?.items;
    let pod = pods.first()?;
    Some((run_of(pod, "plugin")?, is_ready(pod)))
}

#[test]
fn the_scheduler_and_the_webhook_killed() {
    within(async |world| {
        let witness = Witness::start(world, "witness").await;

        agent::kill_contained("vgpu-scheduler");
        a_new_pod_runs(world, "without-scheduler").await;
        agent::kill_contained("kube-scheduler");
        a_new_pod_runs(world, "without-kube-scheduler").await;
        agent::kill_contained("vgpu-webhook");
        // While it is away a pod that asks for GPUs is refused, and a plain pod is made.
        let plain = json!({
            "metadata": {"name": "plain", "namespace": "default"},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [
                {"name": "work", "image": "localhost/base:1", "imagePullPolicy": "Never", "command": ["sleep", "100000"]}]},
        });
        world.make_pod(plain).await;
        let asked = gpu_pod("without-webhook", &share(1500), &["total", "hold"]);
        world
            .eventually("the webhook is back", async || {
                world.try_pod(asked.clone()).await.ok()
            })
            .await;
        world.until_ready("without-webhook").await;

        witness.is_unharmed(world).await;
        nothing_is_given_twice(world).await;
    });
}

#[test]
fn the_api_server_killed() {
    within(async |world| {
        let witness = Witness::start(world, "witness").await;

        let server = Stopped::kill("kube-apiserver", &world.run.join("logs"));
        // A container that crashes now is started again: the agent serves the same directory from its own memory.
        let said = world.board.used_bytes(0);
        assert!(said <= world.board.total_bytes(0));
        assert!(agent::lives(witness.process));
        server.start();
        world
            .eventually("the API server answers", async || {
                world.pods().list(&ListParams::default()).await.ok()
            })
            .await;
        world.is_whole().await;
        a_new_pod_runs(world, "afterwards").await;

        witness.is_unharmed(world).await;
    });
}

#[test]
fn the_kubelet_killed() {
    within(async |world| {
        let witness = Witness::start(world, "witness").await;

        let kubelet = Stopped::kill("kubelet", &world.run.join("logs"));
        assert!(agent::lives(witness.process));
        let pending = gpu_pod("meanwhile", &share(1500), &["total", "hold"]);
        world.make_pod(pending).await;
        kubelet.start();
        world.is_whole().await;
        is_judged(world, "meanwhile").await;
        a_new_pod_runs(world, "afterwards").await;

        witness.is_unharmed(world).await;
    });
}

#[test]
fn container_that_crashed_without_the_agent_runs_again_with_it() {
    within(async |world| {
        let words = ["total", "take=1000", "hold"];
        world
            .make_pod(gpu_pod("crashed", &share(2000), &words))
            .await;
        let pod = world.until_ready("crashed").await;
        world.lines("crashed", "work", words.len()).await;
        let before = agent::given("crashed");

        // No node has this label: the agent's pod goes, and stays away.
        world.label("gpu", None).await;
        agent::is_gone(world).await;
        agent::kill_container(&pod, "work");
        world
            .until("crashed", "has crashed", |pod| !is_ready(pod))
            .await;
        world.label("gpu", Some("on")).await;

        world
            .until("crashed", "runs again", |pod| {
                is_ready(pod) && status(pod, "work").is_some_and(|state| state.restart_count > 0)
            })
            .await;
        let said = world.said("crashed", words.len()).await;
        assert_eq!(said["total"], (2000_u64 << 20).to_string());
        assert_eq!(said["take=1000"], "took");
        assert_eq!(agent::given("crashed"), before);
        world.is_whole().await;
    });
}
