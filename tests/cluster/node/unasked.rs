//! Pods that ask for no GPU, under NVIDIA's runtime: which devices containerd has really given them. And volumes over a
//! parent of the agent's mounts.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::release::{helm, helm_upgrade};
use crate::world::{
    World, gpu_container, gpu_pod, idle_container, is_ready, name, pod_of, share, within,
};

/// A container of an image that asks for all GPUs, as NVIDIA's own do; it only waits.
fn greedy(name: &str) -> Value {
    let mut container = idle_container(name, &json!({}));
    container["image"] = json!("localhost/cuda-baked:1");
    container
}

/// A pod that NVIDIA's runtime starts. With containerd 1.6 that is the node's default runtime.
fn under_nvidia(world: &World, name: &str, containers: &[Value]) -> Value {
    let mut pod = pod_of(name, containers);
    if !world.nvidia_by_default {
        pod["spec"]["runtimeClassName"] = json!("nvidia");
    }
    pod
}

/// Whether the container has been given a GPU's device node.
fn sees_gpus(world: &World, pod: &str, container: &str) -> bool {
    let devices = world.exec(pod, container, &["ls", "/dev"]).unwrap();
    devices.contains("nvidia")
}

#[test]
fn an_image_that_asks_for_all_gpus_gets_none() {
    within(async |world| {
        let mut asks = greedy("asks");
        asks["env"] = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
        let mut pod = under_nvidia(world, "greedy", &[greedy("silent"), asks]);
        pod["spec"]["initContainers"] = json!([greedy("first")]);
        pod["spec"]["initContainers"][0]["command"] = json!(["ls", "/dev"]);
        world.make_pod(pod).await;
        world.until_ready("greedy").await;

        for container in ["silent", "asks"] {
            assert!(!sees_gpus(world, "greedy", container), "{container}");
        }
        let first = world.lines("greedy", "first", 1).await;
        assert!(
            !first.iter().any(|name| name.contains("nvidia")),
            "{first:?}"
        );

        let attached = json!({"spec": {"ephemeralContainers": [greedy("debug")]}});
        drop(
            world
                .pods()
                .patch_subresource(
                    "ephemeralcontainers",
                    "greedy",
                    &PatchParams::default(),
                    &Patch::Strategic(attached),
                )
                .await
                .unwrap(),
        );
        world
            .eventually("the attached container runs", async || {
                world.exec("greedy", "debug", &["ls", "/dev"]).ok()
            })
            .await;
        assert!(!sees_gpus(world, "greedy", "debug"));

        let mut named = under_nvidia(world, "named", &[greedy("c")]);
        named["metadata"]["annotations"] =
            json!({"nvidia.cdi.k8s.io/container.c": "management.nvidia.com/gpu=all"});
        let refused = world.try_pod(named).await.unwrap_err();
        assert!(
            refused.contains("nvidia.cdi.k8s.io/container.c"),
            "{refused}"
        );
    });
}

/// Manifests of vLLM, KServe and Ray set the variable beside the request.
#[test]
fn a_variable_beside_a_request_changes_nothing_of_the_share() {
    within(async |world| {
        let mut pod = gpu_pod("beside", &share(1000), &["count", "total", "hold"]);
        pod["spec"]["containers"][0]["env"] =
            json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
        world.make_pod(pod).await;

        let said = world.said("beside", 3).await;

        assert_eq!(said["count"], "1");
        assert_eq!(said["total"], (1000_u64 << 20).to_string());
    });
}

/// An `emptyDir` at `/etc` of a container with a GPU, and in a second container at `/both`: what the second one renames
/// there takes the agent's mounts out of the first.
fn detachable(name: &str, at: &str) -> Value {
    let mut first = gpu_container("work", &share(1000), &["total", "hold"]);
    let mut second = idle_container("second", &json!({}));
    first["volumeMounts"] = json!([{"name": "both", "mountPath": at}]);
    second["volumeMounts"] = json!([{"name": "both", "mountPath": "/both"}]);
    let mut pod = pod_of(name, &[first, second]);
    pod["spec"]["volumes"] = json!([{"name": "both", "emptyDir": {}}]);
    pod
}

#[test]
fn a_volume_over_a_parent_of_the_agents_mounts_is_refused() {
    within(async |world| {
        for at in ["/", "/etc", "/usr", "/usr/local", "/run"] {
            let refused = world.try_pod(detachable("bad", at)).await.unwrap_err();
            assert!(
                refused.contains("container work") && refused.contains("volumeMounts"),
                "{at}: {refused}"
            );
        }

        world.make_pod(detachable("good", "/etc/app")).await;
        world.until_ready("good").await;
        let moved = world.exec(
            "good",
            "second",
            &["sh", "-c", "echo > /both/ld.so.preload"],
        );
        moved.unwrap();
        assert_eq!(
            world.ask("good", "work", &["total"]),
            [(1000_u64 << 20).to_string()]
        );
    });
}

/// Creates a pod in a namespace whose label exempts it from the webhook.
pub(crate) async fn make_exempt(world: &World, mut pod: Value) {
    world.kubectl(&["create", "namespace", "lax"]).ok();
    let label = "hami.io/webhook=ignore";
    world
        .kubectl(&["label", "--overwrite", "namespace", "lax", label])
        .unwrap();
    pod["metadata"]["namespace"] = json!("lax");
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "lax");
    world
        .eventually("the namespace has its account", async || {
            let pod = serde_json::from_value(pod.clone()).unwrap();
            pods.create(&Default::default(), &pod).await.ok()
        })
        .await;
    let name = pod["metadata"]["name"].as_str().unwrap();
    world
        .eventually("the exempt pod runs", async || {
            let pod = pods.get_opt(name).await.ok()??;
            is_ready(&pod).then_some(())
        })
        .await;
}

fn exempt_sees_gpus(world: &World, pod: &str) -> bool {
    let devices = world.kubectl(&["exec", "-n", "lax", pod, "--", "ls", "/dev"]);
    devices.unwrap().contains("nvidia")
}

/// NVIDIA's runtime ignores the variable in unprivileged containers, until this is dropped: also when a test fails, since
/// the next one needs GPUs.
struct Switches(PathBuf);

impl Switches {
    fn set() -> Self {
        let folder = Path::new("/etc/nvidia-container-runtime");
        std::fs::create_dir_all(folder).unwrap();
        let file = folder.join("config.toml");
        let switches = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n\
                        accept-nvidia-visible-devices-as-volume-mounts = true\n";
        std::fs::write(&file, switches).unwrap();
        Self(file)
    }
}

impl Drop for Switches {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// The agent, which NVIDIA's runtime shows all GPUs, is an unprivileged container itself.
#[test]
fn nvidias_own_switch_takes_the_gpus_from_tenants_and_not_from_the_agent() {
    within(async |world| {
        if !world.by_cdi {
            println!(
                "left out: without CDI, pods get their GPUs by the variable that the switch turns off"
            );
            return;
        }
        let switches = Switches::set();
        let label = ListParams::default().labels("app.kubernetes.io/component=agent");
        let agents = world.system().list(&label).await.unwrap().items;
        for agent in &agents {
            let words = ["delete", "pod", "-n", "vgpu-system", name(agent), "--wait"];
            world.kubectl(&words).unwrap();
        }
        world.is_whole().await;

        world
            .make_pod(gpu_pod("shares", &share(1000), &["total", "hold"]))
            .await;
        let said = world.said("shares", 2).await;
        assert_eq!(said["total"], (1000_u64 << 20).to_string());
        make_exempt(world, under_nvidia(world, "greedy", &[greedy("c")])).await;
        assert!(!exempt_sees_gpus(world, "greedy"));
        drop(switches);
    });
}

#[test]
fn the_profile_for_several_tenants_closes_what_the_defaults_leave_open() {
    within(async |world| {
        let mut asks = under_nvidia(world, "before", &[greedy("c")]);
        asks["spec"]["containers"][0]["command"] = json!(["gpu", "take=1000", "hold"]);
        asks["metadata"]["labels"] = json!({"app": "before"});
        make_exempt(world, asks).await;
        let words = [
            "create",
            "poddisruptionbudget",
            "mine",
            "-n",
            "lax",
            "--selector=app=before",
            "--min-available=1",
        ];
        world.kubectl(&words).unwrap();
        assert!(
            exempt_sees_gpus(world, "before"),
            "the label exempts no pod, so this tests nothing"
        );

        let mut upgrade = vec![
            "--values",
            "charts/vgpu/profiles/multi-tenant.yaml",
            "--set",
            "devicePlugin.monitor.evictGraceSeconds=0",
            "--wait",
        ];
        // Without it the chart refuses the profile where the API server cannot keep an agent to its node.
        if world.minor < 30 {
            upgrade.extend(["--set", "devicePlugin.acceptUnconfined=true"]);
        }
        helm_upgrade(&upgrade);
        world.is_whole().await;
        until_label_counts(world, false).await;

        let pods: Api<Pod> = Api::namespaced(world.client.clone(), "lax");
        world
            .eventually(
                "the pod from before is deleted in spite of its budget",
                async || match pods.get_opt("before").await.ok()? {
                    None => Some(()),
                    Some(pod) => pod.metadata.deletion_timestamp.map(drop),
                },
            )
            .await;
        make_exempt(world, under_nvidia(world, "after", &[greedy("c")])).await;
        assert!(!exempt_sees_gpus(world, "after"));
        // Without a runtime class, too.
        make_exempt(world, pod_of("bare", &[greedy("c")])).await;
        let pod = pods.get("bare").await.unwrap();
        let spec = json!(pod.spec);
        assert_eq!(
            spec["containers"][0]["env"],
            json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])
        );
        let refused = world.try_pod(detachable("bad", "/etc")).await.unwrap_err();
        assert!(refused.contains("volumeMounts[/etc]"), "{refused}");

        helm(&["rollback", "vgpu", "--wait"]);
        world.is_whole().await;
        until_label_counts(world, true).await;
    });
}

/// The webhook's new replica writes its configuration once the old one has given up its Lease.
async fn until_label_counts(world: &World, counts: bool) {
    world
        .eventually("the configuration is the new replica's", async || {
            let words = ["get", "mutatingwebhookconfigurations", "vgpu-webhook"];
            let text = world.kubectl(&[&words[..], &["--output", "json"]].concat());
            (text.ok()?.contains("hami.io/webhook") == counts).then_some(())
        })
        .await;
}
