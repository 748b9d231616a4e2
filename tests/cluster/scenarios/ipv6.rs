//! The product without IPv4: it finds the API server at `[::1]`, and is found there by kube-scheduler and by the API
//! server.

use std::net::{Ipv6Addr, SocketAddr, TcpListener};

use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::http;
use crate::objects::{ALLOCATED, Gpus, annotation, from, gpu_with, pod};
use crate::programs::{ONE_BY_IPV6, Pair, Program, Tuning, kubeconfig, metrics_of};
use crate::world::{SYSTEM, World, within};

/// A webhook that the API server finds by its address, without a Service.
async fn start_webhook(world: &World) -> Program {
    let ip = Ipv6Addr::LOCALHOST;
    let kubeconfig = kubeconfig(world, "vgpu-webhook", ip.into());
    let reviews = SocketAddr::from((ip, 9443));
    let metrics = SocketAddr::from((ip, metrics_of(1)));
    let arguments = [
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--namespace={SYSTEM}"),
        format!("--http_bind={reviews}"),
        format!("--metrics-bind-address={metrics}"),
        format!("--webhook-url=https://{reviews}"),
        "--shutdown-delay=1".to_owned(),
    ];
    let webhook = Program::start(world, "one", world.ours.join("vgpu-webhook"), arguments);
    world
        .eventually("the webhook is ready", async || {
            let answer = http::ask_at(metrics, "GET", "/readyz", None).await?;
            (answer.0 == 200).then_some(())
        })
        .await;
    webhook
}

#[test]
fn a_pod_is_admitted_and_bound_by_ipv6_alone() {
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        println!("skipped: this kernel has no IPv6");
        return;
    }
    within(async |world| {
        world.make_nodes(["a"], &Gpus::default()).await;
        let mut pair = Pair::start_at(world, ONE_BY_IPV6, &[], Tuning::default());
        let _webhook = start_webhook(world).await;
        pair.answers(world).await;
        // As a user writes it: the scheduler's name is the webhook's addition.
        let mut asked = pod("p", gpu_with(3000));
        asked["spec"]
            .as_object_mut()
            .unwrap()
            .remove("schedulerName");

        // The API server learns of a new configuration by a watch.
        world
            .eventually("the API server asks the webhook", async || {
                let dry = PostParams {
                    dry_run: true,
                    ..PostParams::default()
                };
                let made = world.pods().create(&dry, &from(asked.clone())).await.ok()?;
                (made.spec?.scheduler_name.as_deref() == Some("hami-scheduler")).then_some(())
            })
            .await;
        world.make_pod(asked).await;
        let placed = world.until_placed("p").await;
        let given = annotation(&placed, ALLOCATED).unwrap();
        assert!(given.ends_with(",NVIDIA,3000,0:;"), "{given}");

        // What the webhook refuses is refused over IPv6, too: an allocation that is not the scheduler's.
        let forged = json!({"metadata": {"annotations": {ALLOCATED: "GPU-a-0,NVIDIA,1,0:;"}}});
        let refusal = world
            .pods()
            .patch_status("p", &PatchParams::default(), &Patch::Merge(forged))
            .await
            .unwrap_err()
            .to_string();
        assert!(refusal.contains(ALLOCATED), "{refusal}");
    });
}
