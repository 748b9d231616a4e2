//! The rights of tenants: forged annotations, GPUs past their limits, restricted namespaces.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::unasked::make_exempt;
use crate::world::{devices, gpu_pod, run_of, share, within};

const MIB: u64 = 1 << 20;

#[test]
fn edited_annotations_change_nothing_of_a_running_container() {
    within(async |world| {
        let words = ["total", "hold"];
        world
            .make_pod(gpu_pod("edited", &share(2000), &words))
            .await;
        let pod = world.until_ready("edited").await;
        let given = devices(&pod);
        world
            .kubectl(&[
                "create",
                "rolebinding",
                "tenant-edits",
                "--clusterrole=edit",
                "--user=tenant",
                "-n",
                "default",
            ])
            .ok();
        let tenant: Api<Pod> = Api::default_namespaced(world.client_of("tenant").await);

        let more = format!("{},NVIDIA,16000,0:;", given[0].0);
        for (key, value) in [
            ("hami.io/vgpu-devices-allocated", more.as_str()),
            ("hami.io/vgpu-devices-to-allocate", more.as_str()),
            ("hami.io/bind-phase", "allocating"),
            ("hami.io/vgpu-node", "another"),
        ] {
            let edit = json!({"metadata": {"annotations": {key: value}}});
            let answer = tenant
                .patch("edited", &PatchParams::default(), &Patch::Merge(edit))
                .await;
            let refused = answer.expect_err(key).to_string();
            assert!(refused.contains(key), "{refused}");
        }
        // Annotations that are not the scheduler's belong to the user.
        let own = json!({"metadata": {"annotations": {"example.com/note": "mine"}}});
        drop(
            tenant
                .patch("edited", &PatchParams::default(), &Patch::Merge(own))
                .await
                .unwrap(),
        );

        let pod = world.until_ready("edited").await;
        assert_eq!(devices(&pod), given);
        crate::agent::kill_container(&pod, "work");
        let before = run_of(&pod, "work");
        let pod = world
            .until("edited", "is started again", |pod| {
                run_of(pod, "work") != before && crate::world::is_ready(pod)
            })
            .await;
        assert_eq!(devices(&pod), given);
        let said = world.said("edited", words.len()).await;
        assert_eq!(said["total"], (2000 * MIB).to_string());
    });
}

#[test]
fn a_namespace_with_pod_security_baseline_takes_pods_with_gpus() {
    within(async |world| {
        let enforce = "pod-security.kubernetes.io/enforce=baseline";
        world.kubectl(&["create", "namespace", "strict"]).ok();
        world
            .kubectl(&["label", "--overwrite", "namespace", "strict", enforce])
            .unwrap();
        let mut pod = gpu_pod(
            "strict",
            &share(1000),
            &["total", "take=100", "wait=1", "take=700", "hold"],
        );
        pod["metadata"]["namespace"] = json!("strict");
        let pods: Api<Pod> = Api::namespaced(world.client.clone(), "strict");
        world
            .eventually("the namespace has its account", async || {
                let pod = serde_json::from_value(pod.clone()).unwrap();
                pods.create(&Default::default(), &pod).await.ok()
            })
            .await;

        let said = world
            .eventually("it has said what it sees", async || {
                let text = world.kubectl(&["logs", "-n", "strict", "strict"]).ok()?;
                text.contains("hold").then_some(text)
            })
            .await;

        assert!(said.contains(&format!("total {}", 1000 * MIB)), "{said}");
        // Its context takes a part of the share: the whole share is more than it may take.
        assert!(
            said.contains("take=700 refused CUDA_ERROR_OUT_OF_MEMORY"),
            "{said}"
        );
        // The level `baseline` forbids the same as before.
        let mut bad = gpu_pod("bad", &share(1000), &["hold"]);
        bad["metadata"]["namespace"] = json!("strict");
        bad["spec"]["hostPID"] = json!(true);
        let bad = serde_json::from_value(bad).unwrap();
        let refused = pods.create(&Default::default(), &bad).await.unwrap_err();
        assert!(
            refused.to_string().contains("hostPID")
                || refused.to_string().contains("host namespaces"),
            "{refused}"
        );
    });
}

#[test]
fn a_process_that_holds_a_gpu_past_its_limits_is_reported() {
    within(async |world| {
        // Its namespace's label exempts the pod from the webhook, and not from attestation. Its image asks for all GPUs.
        let mut baked = gpu_pod("baked", &json!({}), &["count", "take=1000", "hold"]);
        baked["spec"]["containers"][0]["image"] = json!("localhost/cuda-baked:1");
        if !world.nvidia_by_default {
            baked["spec"]["runtimeClassName"] = json!("nvidia");
        }
        make_exempt(world, baked).await;
        let said = world
            .eventually("it has said what it sees", async || {
                let text = world.kubectl(&["logs", "-n", "lax", "baked"]).ok()?;
                text.contains("hold").then_some(text)
            })
            .await;
        let count = format!("count {}", world.board.gpus());
        assert!(said.contains(&count), "{said}");

        let line = world
            .eventually("the exporter counts it", async || {
                let text = world.metrics(31993).await?;
                let line = text.lines().find(|line| {
                    line.starts_with("vgpu_node_unmanaged_processes{") && line.contains("baked")
                })?;
                Some(line.to_owned())
            })
            .await;
        println!("{line}");
        world
            .eventually("an event says so", async || {
                let events = world.events_of("baked").await;
                events
                    .into_iter()
                    .find(|event| event.contains("GPU") && !event.starts_with("Failed"))
            })
            .await;
    });
}
