//! GPUs by ResourceClaims: the stock kube-scheduler shares a GPU between pods, and nothing of ours takes part in it but
//! the driver on the node.

use std::path::Path;

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{Api, ListParams};
use serde_json::json;

use crate::world::{CONTAINERS, NAME, World, run, within};

const MIB: u64 = 1 << 20;
const LABEL: &str = "vgpu.io/dra";
const EXAMPLE: &str = include_str!("../../../examples/pods/dra.yaml");

/// The node's GPUs are given by claims from here on.
async fn by_claims(world: &World) {
    let label = format!("{LABEL}=on");
    world
        .kubectl(&["label", "node", NAME, "--overwrite", &label])
        .unwrap();
    world
        .eventually("all GPUs are devices that can be shared", async || {
            let devices = devices(world).await?;
            (devices.len() == world.board.gpus()).then_some(())
        })
        .await;
}

/// Name, UUID and memory of each device in the node's slices.
async fn devices(world: &World) -> Option<Vec<(String, String, String)>> {
    let slices: Api<ResourceSlice> = Api::all(world.client.clone());
    let slices = slices.list(&ListParams::default()).await.ok()?.items;
    let ours = slices.iter().filter(|it| it.spec.driver == "gpu.vgpu.io");
    let devices = ours.flat_map(|it| it.spec.devices.iter().flatten());
    let device = |it: &k8s_openapi::api::resource::v1::Device| {
        assert_eq!(it.allow_multiple_allocations, Some(true));
        let uuid = it.attributes.as_ref()?.get("uuid")?.string.clone()?;
        let memory = it.capacity.as_ref()?.get("memory")?.value.0.clone();
        Some((it.name.clone(), uuid, memory))
    };
    Some(devices.filter_map(device).collect())
}

/// What claims have on the node's disk.
fn left() -> Vec<String> {
    let names = |folder: &str, beginning: &str| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.starts_with(beginning)).collect()
    };
    let mut all = names(CONTAINERS, "claim-");
    all.extend(names("/var/run/cdi", "vgpu-claim-"));
    all
}

/// The example, with an image that is here and a program that tries what it may.
fn example(words: &[&str]) -> String {
    let image = "image: nvidia/cuda:12.4.1-base-ubuntu22.04";
    let command = r#"command: [sh, -c, "nvidia-smi && sleep 600"]"#;
    assert!(EXAMPLE.contains(image) && EXAMPLE.contains(command));
    let here = "image: localhost/cuda-python:1\n    imagePullPolicy: Never";
    EXAMPLE
        .replace(image, here)
        .replace(command, &format!("args: {}", json!(words)))
        .replace(
            "restartPolicy: Never",
            "restartPolicy: Never\n  terminationGracePeriodSeconds: 0",
        )
}

fn apply(world: &World, text: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    world
        .kubectl(&["apply", "-f", file.path().to_str().unwrap()])
        .unwrap();
}

#[test]
fn two_pods_share_a_gpu_by_claims_and_are_held_to_them() {
    within(async |world| {
        if !world.has_claims() {
            return;
        }
        by_claims(world).await;
        let words = [
            "count",
            "uuids",
            "total",
            "nvml",
            "take=2000",
            "take=2000",
            "take=2000",
            "hold",
        ];
        apply(world, &example(&words));

        let small = world.lines("dra-small", "cuda", words.len()).await;
        let large = world.lines("dra-large", "cuda", words.len()).await;
        world.until_ready("dra-small").await;

        // One GPU, chosen by a scheduler that knows nothing of us.
        assert_eq!(
            (small[0].as_str(), large[0].as_str()),
            ("count 1", "count 1")
        );
        assert_eq!(small[1], large[1], "both are on one GPU");
        for (said, mib) in [(&small, 3000), (&large, 5120)] {
            assert_eq!(said[2], format!("total {}", mib * MIB));
            assert!(
                said[3].starts_with(&format!("nvml {}/", mib * MIB)),
                "{said:?}"
            );
        }
        let (took, refused) = (
            "take=2000 took",
            "take=2000 refused CUDA_ERROR_OUT_OF_MEMORY",
        );
        assert_eq!(small[4..7], [took, refused, refused]);
        assert_eq!(large[4..7], [took, took, refused]);
        let uuid = small[1].strip_prefix("uuids ").unwrap();
        let all = devices(world).await.unwrap();
        let device = all.iter().find(|(_, of, _)| of == uuid).unwrap();
        let claims: Api<ResourceClaim> = Api::default_namespaced(world.client.clone());
        let claims = claims.list(&ListParams::default()).await.unwrap().items;
        let results: Vec<_> = claims
            .iter()
            .filter_map(|it| it.status.as_ref()?.allocation.as_ref()?.devices.as_ref())
            .flat_map(|it| it.results.iter().flatten())
            .collect();
        assert_eq!(results.len(), 2);
        assert!(results.iter().all(|it| it.device == device.0));
        // The exporter knows them by their containers, as it knows the device plugin's.
        let uids = claims.iter().map(|it| it.metadata.uid.clone().unwrap());
        for uid in uids {
            let file = Path::new(CONTAINERS).join(format!("claim-{uid}/container.json"));
            let text = std::fs::read_to_string(file).unwrap();
            assert!(text.contains("\"container\": \"cuda\""), "{text}");
        }
        let gpu = (0..world.board.gpus()).find(|&gpu| world.board.uuid(gpu) == uuid);
        assert_eq!(world.board.processes(gpu.unwrap()).len(), 2);

        println!(
            "each claim was made ready in {:.1} ms",
            prepared_in_ms(world).await
        );
        clear(world, &["dra-small", "dra-large"]).await;
    });
}

#[test]
fn claim_is_shared_by_containers_and_outlives_the_agent() {
    within(async |world| {
        if !world.has_claims() {
            return;
        }
        by_claims(world).await;
        apply(world, &example(&["total", "hold"]));
        world.until_ready("dra-large").await;
        // Two containers with the same claim.
        let container = |name: &str| {
            json!({
                "name": name, "image": "localhost/cuda-python:1", "imagePullPolicy": "Never",
                "args": ["total", "take=1000", "hold"], "resources": {"claims": [{"name": "share"}]},
            })
        };
        let pod = |name: &str| {
            json!({
                "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "resourceClaims": [{"name": "share", "resourceClaimTemplateName": "small-share"}],
                    "containers": [container("one"), container("two")],
                },
            })
        };
        world.make_pod(pod("both")).await;
        for name in ["one", "two"] {
            let said = world.lines("both", name, 2).await[..2].to_vec();
            assert_eq!(
                said,
                [
                    format!("total {}", 3000 * MIB),
                    String::from("take=1000 took")
                ]
            );
        }
        // What one container has, the other one cannot get.
        let more = world.ask("both", "one", &["take=900", "take=900"]);
        assert_eq!(more[1], "refused CUDA_ERROR_OUT_OF_MEMORY");
        let files = || {
            let mut files: Vec<String> = left();
            files.sort();
            files
        };
        let before = files();

        let selector = "app.kubernetes.io/component=dra";
        let system = crate::world::SYSTEM;
        world
            .kubectl(&["delete", "pod", "-n", system, "-l", selector, "--wait=true"])
            .unwrap();
        // The kubelet asks until there is a driver again.
        world.make_pod(pod("later")).await;
        let said = world.lines("later", "two", 2).await;
        assert_eq!(said[1], "take=1000 took");

        let after = files();
        assert!(
            before.iter().all(|name| after.contains(name)),
            "{before:?} {after:?}"
        );
        assert_eq!(
            world.ask("both", "two", &["total", "take=2500"]),
            [
                (3000 * MIB).to_string(),
                String::from("refused CUDA_ERROR_OUT_OF_MEMORY")
            ]
        );
        clear(world, &["dra-small", "dra-large", "both", "later"]).await;
    });
}

/// The pods go, and all that their claims had on the node.
async fn clear(world: &World, pods: &[&str]) {
    for pod in pods {
        world.remove(pod).await;
    }
    world
        .eventually("nothing of the claims is left", async || {
            left().is_empty().then_some(())
        })
        .await;
}

/// The mean of the driver's own measurement.
async fn prepared_in_ms(world: &World) -> f64 {
    let label = ListParams::default().labels("app.kubernetes.io/component=dra");
    let pods = world.system().list(&label).await.unwrap().items;
    let address = pods[0].status.as_ref().unwrap().pod_ip.clone().unwrap();
    let url = format!("http://{address}:31992/metrics");
    let text = run(std::process::Command::new("curl").args(["-sSf", &url])).unwrap();
    let value = |name: &str| -> f64 {
        let is_it = |line: &&str| {
            line.starts_with(name) && line.contains("\"prepare\"") && line.contains("\"ok\"")
        };
        let line = text.lines().find(is_it).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    1000.0 * value("vgpu_dra_call_seconds_sum") / value("vgpu_dra_call_seconds_count")
}
