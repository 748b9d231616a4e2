//! GPUs by ResourceClaims: the stock kube-scheduler shares a GPU between pods, and nothing of ours takes part in it but
//! the driver on the node.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use futures_util::future::join_all;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{Api, ListParams};
use kube_api::quantity::Quantity;
use serde_json::{Value, json};

use crate::agent::{self, Stopped};
use crate::world::{
    BY_CLAIMS, CONTAINERS, World, gpu_container, pod_of, run, run_of, status, within_claims,
};

const MIB: u64 = 1 << 20;
/// The records of claims that are ready, and the one file in which earlier releases had them.
const RECORDS: &str = "/var/lib/vgpu/claims";
const EARLIER_RECORDS: &str = "/var/lib/vgpu/claims.json";
const EXAMPLE: &str = include_str!("../../../examples/pods/dra.yaml");

/// The node's GPUs are given by claims from here on.
pub(crate) async fn by_claims(world: &World) {
    world.label(BY_CLAIMS, Some("on")).await;
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

/// What claims have on the node's disk, sorted.
pub(crate) fn left() -> Vec<String> {
    let names = |folder: &str, beginning: &str| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.starts_with(beginning)).collect()
    };
    let mut all = names(CONTAINERS, "claim-");
    all.extend(names("/var/run/cdi", "vgpu-claim-"));
    all.sort();
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

/// The spec of a claim for this many MiB of a GPU.
fn share_of(memory_mib: u64) -> Value {
    let capacity = json!({"requests": {"memory": format!("{memory_mib}Mi")}});
    let exactly = json!({"deviceClassName": "gpu.vgpu.io", "capacity": capacity});
    json!({"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}})
}

/// A template: each pod that names it has a claim of its own for this many MiB.
pub(crate) fn make_template(world: &World, name: &str, memory_mib: u64) {
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
        "spec": {"spec": share_of(memory_mib)},
    });
    apply(world, &template.to_string());
}

/// A pod of one container, with the claim or the template that `source` names.
pub(crate) fn claim_pod(name: &str, mut container: Value, source: Value) -> Value {
    container["resources"] = json!({"claims": [{"name": "share"}]});
    let mut pod = pod_of(name, &[container]);
    pod["spec"]["resourceClaims"] = json!([source]);
    pod["spec"]["resourceClaims"][0]["name"] = json!("share");
    pod
}

/// A pod that executes these words with a claim of its own.
pub(crate) fn own_claim_pod(name: &str, template: &str, words: &[&str]) -> Value {
    let container = gpu_container("work", &json!({}), words);
    claim_pod(
        name,
        container,
        json!({"resourceClaimTemplateName": template}),
    )
}

/// Asserts that `count` claims have a GPU, and that no GPU is charged for more memory than it has.
pub(crate) async fn nothing_is_charged_twice(world: &World, count: usize) {
    let bytes = |text: &str| Quantity::from(text).parse().unwrap().whole().unwrap();
    let claims: Api<ResourceClaim> = Api::default_namespaced(world.client.clone());
    let claims = claims.list(&ListParams::default()).await.unwrap().items;
    let mut charged: BTreeMap<String, i128> = BTreeMap::new();
    let mut allocated = 0;
    for claim in &claims {
        let allocation = claim.status.as_ref().and_then(|it| it.allocation.as_ref());
        let devices = allocation.and_then(|it| it.devices.as_ref());
        for result in devices
            .and_then(|it| it.results.as_ref())
            .into_iter()
            .flatten()
        {
            let memory = &result.consumed_capacity.as_ref().unwrap()["memory"];
            *charged.entry(result.device.clone()).or_default() += bytes(&memory.0);
            allocated += 1;
        }
    }
    assert_eq!(allocated, count);
    for (name, _, memory) in devices(world).await.unwrap() {
        let charged = charged.get(&name).copied().unwrap_or_default();
        assert!(charged <= bytes(&memory), "{name}: {charged} of {memory}");
    }
}

pub(crate) fn apply(world: &World, text: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    world
        .kubectl(&["apply", "-f", file.path().to_str().unwrap()])
        .unwrap();
}

#[test]
fn two_pods_share_a_gpu_by_claims_and_are_held_to_them() {
    within_claims(async |world| {
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
    within_claims(async |world| {
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
        let before = left();

        let selector = "app.kubernetes.io/component=dra";
        let system = crate::world::SYSTEM;
        world
            .kubectl(&["delete", "pod", "-n", system, "-l", selector, "--wait=true"])
            .unwrap();
        // The kubelet asks until there is a driver again.
        world.make_pod(pod("later")).await;
        let said = world.lines("later", "two", 2).await;
        assert_eq!(said[1], "take=1000 took");

        let after = left();
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

#[test]
fn claim_of_two_pods_has_one_limit_and_outlives_the_first() {
    within_claims(async |world| {
        if !world.has_claims() {
            return;
        }
        by_claims(world).await;
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "common"},
            "spec": share_of(3000),
        });
        apply(world, &claim.to_string());
        for name in ["first", "second"] {
            let container = gpu_container("work", &json!({}), &["total", "take=1000", "hold"]);
            let source = json!({"resourceClaimName": "common"});
            world.make_pod(claim_pod(name, container, source)).await;
            let said = world.lines(name, "work", 3).await;
            let total = format!("total {}", 3000 * MIB);
            assert_eq!(said[..2], [total, String::from("take=1000 took")], "{name}");
        }
        nothing_is_charged_twice(world, 1).await;
        // Each of the three processes has a context of 300 MiB besides.
        let more = world.ask("second", "work", &["take=500"]);
        assert_eq!(more, ["refused CUDA_ERROR_OUT_OF_MEMORY"]);
        let second = world.until_ready("second").await;
        let process = agent::process_of(&second, "work");
        let files = left();

        world.remove("first").await;

        assert!(agent::lives(process));
        // A request waits for a dead process's memory, though not for a node that is slow to see its end.
        world
            .eventually("the memory of the first pod is the second's", async || {
                let said = world.ask("second", "work", &["take=500"]);
                (said == ["took"]).then_some(())
            })
            .await;
        let now = world.until_ready("second").await;
        assert_eq!(run_of(&now, "work"), run_of(&second, "work"));
        assert_eq!(left(), files, "the claim has lost something on the node");
        clear(world, &["second"]).await;
    });
}

#[test]
fn driver_killed_while_ten_pods_start_gives_each_its_claim() {
    within_claims(async |world| {
        if !world.has_claims() {
            return;
        }
        by_claims(world).await;
        make_template(world, "ten", 700);
        let names: Vec<String> = (0..10).map(|index| format!("ten-{index}")).collect();
        let pod = |name: &String| world.make_pod(own_claim_pod(name, "ten", &["total", "hold"]));
        join_all(names.iter().map(pod)).await;
        while left().is_empty() {
            tokio::task::yield_now().await;
        }

        agent::kill_contained("vgpu-monitor");

        println!("killed when {} files of claims were there", left().len());
        for name in &names {
            let said = world.lines(name, "work", 2).await;
            assert_eq!(said[0], format!("total {}", 700 * MIB), "{name}");
        }
        nothing_is_charged_twice(world, names.len()).await;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        clear(world, &names).await;
    });
}

#[test]
fn kubelet_killed_beside_a_claim() {
    within_claims(async |world| {
        if !world.has_claims() {
            return;
        }
        by_claims(world).await;
        make_template(world, "own", 2000);
        let words = ["take=1000", "hold"];
        world
            .make_pod(own_claim_pod("witness", "own", &words))
            .await;
        world.lines("witness", "work", words.len()).await;
        let before = world.until_ready("witness").await;
        let process = agent::process_of(&before, "work");

        let kubelet = Stopped::kill("kubelet", &world.run.join("logs"));
        let words = ["total", "hold"];
        world
            .make_pod(own_claim_pod("meanwhile", "own", &words))
            .await;
        kubelet.start();

        let said = world.lines("meanwhile", "work", words.len()).await;
        assert_eq!(said[0], format!("total {}", 2000 * MIB));
        assert!(agent::lives(process));
        let now = world.until_ready("witness").await;
        assert_eq!(run_of(&now, "work"), run_of(&before, "work"));
        assert_eq!(status(&now, "work").unwrap().restart_count, 0);
        // Of its 2000 MiB, the program takes 1000, and the contexts of the two processes 600.
        let more = world.ask("witness", "work", &["take=300", "take=101"]);
        assert_eq!(more, ["took", "refused CUDA_ERROR_OUT_OF_MEMORY"]);
        nothing_is_charged_twice(world, 2).await;
        clear(world, &["witness", "meanwhile"]).await;
    });
}

/// Writes the claims' records as the releases did that had one file for all of them.
fn write_as_earlier_releases_did() {
    let mut claims = serde_json::Map::new();
    for entry in std::fs::read_dir(RECORDS).unwrap().flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap();
        let mut record: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
        record.remove("version").unwrap();
        let uid = record.remove("uid").unwrap();
        claims.insert(uid.as_str().unwrap().to_owned(), Value::Object(record));
        std::fs::remove_file(entry.path()).unwrap();
    }
    let all = json!({"version": 1, "claims": claims});
    std::fs::write(EARLIER_RECORDS, all.to_string()).unwrap();
}

#[test]
fn upgrade_of_the_driver_keeps_claims_of_an_earlier_release() {
    within_claims(async |world| {
        if !world.has_claims() {
            return;
        }
        by_claims(world).await;
        make_template(world, "own", 2000);
        let words = ["take=1000", "hold"];
        world.make_pod(own_claim_pod("old", "own", &words)).await;
        world.lines("old", "work", words.len()).await;
        let before = world.until_ready("old").await;
        let (process, files) = (agent::process_of(&before, "work"), left());
        write_as_earlier_releases_did();

        // The same driver with another library in its image is another version.
        let images = PathBuf::from(std::env::var_os("VGPU_IMAGES").unwrap());
        run(Command::new("ctr")
            .args(["--namespace", "k8s.io", "images", "import"])
            .arg(images.join("next.tar")))
        .unwrap();
        let (system, daemons) = (crate::world::SYSTEM, "daemonset/vgpu-monitor-dra");
        let image = "dra=localhost/vgpu-monitor:next";
        world
            .kubectl(&["set", "image", "-n", system, daemons, image])
            .unwrap();
        let rollout = ["rollout", "status", "-n", system, daemons, "--timeout=180s"];
        world.kubectl(&rollout).unwrap();

        world
            .eventually("the record is taken over", async || {
                (!Path::new(EARLIER_RECORDS).exists()).then_some(())
            })
            .await;
        assert_eq!(std::fs::read_dir(RECORDS).unwrap().count(), 1);
        // A new pod gets its claim, and the old one has what it had.
        let words = ["total", "hold"];
        world.make_pod(own_claim_pod("new", "own", &words)).await;
        let said = world.lines("new", "work", words.len()).await;
        assert_eq!(said[0], format!("total {}", 2000 * MIB));
        assert!(agent::lives(process));
        let now = world.until_ready("old").await;
        assert_eq!(run_of(&now, "work"), run_of(&before, "work"));
        assert_eq!(status(&now, "work").unwrap().restart_count, 0);
        let there = left();
        assert!(files.iter().all(|name| there.contains(name)), "{there:?}");
        // Of its 2000 MiB, the program takes 1000, and the contexts of the two processes 600.
        let more = world.ask("old", "work", &["take=300", "take=101"]);
        assert_eq!(more, ["took", "refused CUDA_ERROR_OUT_OF_MEMORY"]);
        nothing_is_charged_twice(world, 2).await;
        clear(world, &["old", "new"]).await;
        world
            .eventually("no record is left", async || {
                let left = std::fs::read_dir(RECORDS).unwrap().count();
                (left == 0).then_some(())
            })
            .await;
        // Helm refuses to change an image that another program has set to another value.
        world
            .kubectl(&["rollout", "undo", "-n", system, daemons])
            .unwrap();
        world.kubectl(&rollout).unwrap();
    });
}

/// The pods go, and all that their claims had on the node.
pub(crate) async fn clear(world: &World, pods: &[&str]) {
    let remove = |pod| world.remove(pod);
    join_all(pods.iter().copied().map(remove)).await;
    world
        .eventually("nothing of the claims is left", async || {
            left().is_empty().then_some(())
        })
        .await;
}

/// The driver's own measurement of the claims that it has made ready.
async fn prepared(world: &World) -> Vec<String> {
    let label = ListParams::default().labels("app.kubernetes.io/component=dra");
    let pods = world.system().list(&label).await.unwrap().items;
    let address = pods[0].status.as_ref().unwrap().pod_ip.clone().unwrap();
    let url = format!("http://{address}:31992/metrics");
    let text = run(Command::new("curl").args(["-sSf", &url])).unwrap();
    let is_it = |line: &&str| {
        let of = "vgpu_dra_call_seconds";
        line.starts_with(of) && line.contains("\"prepare\"") && line.contains("\"ok\"")
    };
    text.lines().filter(is_it).map(str::to_owned).collect()
}

/// The last word of a series, which is its value.
fn value(line: &str) -> f64 {
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Its mean.
async fn prepared_in_ms(world: &World) -> f64 {
    let lines = prepared(world).await;
    let of = |part: &str| value(lines.iter().find(|line| line.contains(part)).unwrap());
    1000.0 * of("_sum{") / of("_count{")
}

/// The bounds, in milliseconds, between which its median is.
pub(crate) async fn median_of_prepare(world: &World) -> (f64, f64) {
    let mut buckets: Vec<(f64, f64)> = Vec::new();
    for line in prepared(world).await {
        let Some((_, rest)) = line.split_once("le=\"") else {
            continue;
        };
        let bound = rest.split('"').next().unwrap();
        let bound = bound.parse().unwrap_or(f64::INFINITY);
        buckets.push((1000.0 * bound, value(&line)));
    }
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = buckets.last().unwrap().1 / 2.0;
    let at = buckets
        .iter()
        .position(|(_, count)| *count >= half)
        .unwrap();
    let below = if at == 0 { 0.0 } else { buckets[at - 1].0 };
    (below, buckets[at].0)
}
