//! Two replicas of the scheduler under a kubelet, as the chart installs them: which of them works, and which must not.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use nix::sys::signal::{Signal, kill};

use crate::agent;
use crate::release::helm_upgrade;
use crate::world::{SYSTEM, World, gpu_pod, is_ready, name, run_of, share, status, within};

/// Changes one value of the installed chart.
fn upgrade(value: &str) {
    helm_upgrade(&["--set-json", value]);
}

async fn schedulers(world: &World) -> Vec<Pod> {
    let label = ListParams::default().labels("app.kubernetes.io/component=scheduler");
    let listed = world.system().list(&label).await;
    listed.map(|pods| pods.items).unwrap_or_default()
}

/// The pod whose kube-scheduler holds the Lease.
async fn holder(world: &World) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), SYSTEM);
    let lease = leases.get("hami-scheduler").await.ok()?;
    let identity = lease.spec?.holder_identity?;
    Some(identity.rsplit_once('_')?.0.to_owned())
}

async fn a_pod_runs(world: &World, name: &str) {
    let words = ["total", "hold"];
    world.make_pod(gpu_pod(name, &share(500), &words)).await;
    world.until_ready(name).await;
    world.remove(name).await;
}

#[test]
fn a_pod_whose_extender_never_starts_takes_no_lease() {
    within(async |world| {
        if world.minor < 29 {
            println!(
                "left out: the extender starts first as a sidecar, which Kubernetes has from 1.29 on"
            );
            return;
        }
        let before: Vec<String> = schedulers(world)
            .await
            .iter()
            .map(|pod| name(pod).to_owned())
            .collect();
        upgrade(r#"scheduler.extender.extraArgs=["--no-such-flag"]"#);
        let is_new = |pod: &&Pod| !before.iter().any(|known| known == name(pod));
        let broken = world
            .eventually("the extender of a new pod fails", async || {
                let pods = schedulers(world).await;
                let new = pods.iter().find(is_new)?;
                let failed = status(new, "vgpu-scheduler")?.restart_count > 0;
                failed.then(|| name(new).to_owned())
            })
            .await;

        // The Lease is free for as long as the kube-scheduler of the whole pod restarts.
        agent::kill_contained("kube-scheduler");
        a_pod_runs(world, "goes-on").await;

        let held = holder(world).await.unwrap();
        assert!(before.contains(&held), "{held} holds the Lease");
        let pod = world.system().get(&broken).await.unwrap();
        assert_eq!(run_of(&pod, "kube-scheduler"), None, "it was started");
        upgrade("scheduler.extender.extraArgs=[]");
        world.is_whole().await;
    });
}

#[test]
fn a_hung_extender_hands_over_to_the_other_replica() {
    within(async |world| {
        upgrade("scheduler.replicas=2");
        world
            .eventually("two replicas are ready", async || {
                let pods = schedulers(world).await;
                (pods.len() == 2 && pods.iter().all(is_ready)).then_some(())
            })
            .await;
        let first = holder(world).await.unwrap();
        let pod = world.system().get(&first).await.unwrap();
        let kube_scheduler = run_of(&pod, "kube-scheduler");

        let hung = agent::process_of(&pod, "vgpu-scheduler");
        kill(hung, Signal::SIGSTOP).unwrap();
        a_pod_runs(world, "handed-over").await;

        // The kubelet has ended the kube-scheduler, or the whole of the pod by now.
        let now = world.system().get(&first).await.unwrap();
        assert_ne!(run_of(&now, "kube-scheduler"), kube_scheduler);
        // The kubelet would wait half a minute for its end.
        if agent::processes("vgpu-scheduler").contains(&hung) {
            kill(hung, Signal::SIGKILL).ok();
        }
        upgrade("scheduler.replicas=1");
        world
            .eventually("one replica is left", async || {
                let pods = schedulers(world).await;
                (pods.len() == 1 && pods.iter().all(is_ready)).then_some(())
            })
            .await;
    });
}
