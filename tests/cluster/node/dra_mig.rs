//! MIG instances by ResourceClaims: kube-scheduler chooses profile and position by the counters of the GPU's slices, and
//! the driver on the node makes the instance when a claim is made ready, and removes it afterwards.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{Api, ListParams};
use serde_json::json;

use crate::agent::{self, Stopped};
use crate::dra;
use crate::release::{helm, helm_upgrade};
use crate::world::{BY_CLAIMS, NAME, World, run_of, within};

const MIB: u64 = 1 << 20;
/// The GPU of the node that is in MIG mode in these cases. It has 16 GiB, in eight slices.
const GPU: usize = 5;
/// The feature gate of counters.
const GATE: &str = "DRAPartitionableDevices";

/// A GPU in MIG mode, and the product installed for it, for as long as this value lives.
struct MigMode<'w>(&'w World);

impl<'w> MigMode<'w> {
    /// `None`, with the reason printed, where claims of MIG instances cannot be.
    fn on(world: &'w World) -> Option<Self> {
        if !world.has_claims() {
            return None;
        }
        if world.minor < 35 {
            println!("left out: counters in slices of their own came with Kubernetes 1.35");
            return None;
        }
        world.board.set_mig_mode(GPU, true).unwrap();
        let mode = Self(world);
        let strategy = "devicePlugin.migStrategy=mixed";
        helm_upgrade(&["--set", strategy, "--wait"]);
        Some(mode)
    }
}

impl Drop for MigMode<'_> {
    fn drop(&mut self) {
        let board = &self.0.board;
        // A case that failed may have left some.
        for instance in board.gpu_instances(GPU) {
            board.destroy_compute_instance(GPU, instance.index).ok();
            board.destroy_gpu_instance(GPU, instance.index).ok();
        }
        board.set_mig_mode(GPU, false).ok();
        if !std::thread::panicking() {
            helm(&["rollback", "vgpu", "--wait"]);
        }
    }
}

/// The API server with another value of the feature gate, until this value is dropped.
struct Gate<'w>(&'w World);

impl<'w> Gate<'w> {
    fn off(world: &'w World) -> Self {
        restart_api_server(world, "true", "false");
        Self(world)
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        restart_api_server(self.0, "false", "true");
    }
}

/// Starts the API server again, with the gate set otherwise.
fn restart_api_server(world: &World, from: &str, to: &str) {
    let mut server = Stopped::kill("kube-apiserver", &world.run.join("logs"));
    let (from, to) = (format!("{GATE}={from}"), format!("{GATE}={to}"));
    server.replace_in_arguments(&from, &to);
    server.start();
    // No answer is an answer as well: kubectl waits for no server.
    while world.kubectl(&["get", "--raw", "/readyz"]).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// Profiles (empty: a whole GPU) of the devices in our slices, by name.
async fn published(world: &World) -> Option<Vec<(String, String)>> {
    let slices: Api<ResourceSlice> = Api::all(world.client.clone());
    let slices = slices.list(&ListParams::default()).await.ok()?.items;
    let ours = slices.iter().filter(|it| it.spec.driver == "gpu.vgpu.io");
    let devices = ours.flat_map(|it| it.spec.devices.iter().flatten());
    let device = |it: &k8s_openapi::api::resource::v1::Device| {
        let profile = it.attributes.as_ref().and_then(|all| all.get("profile"));
        let profile = profile.and_then(|it| it.string.clone());
        (it.name.clone(), profile.unwrap_or_default())
    };
    Some(devices.map(device).collect())
}

/// The node gives by claims: its whole GPUs, and instances of the one in MIG mode if `instances` says so.
async fn by_claims(world: &World, instances: bool) {
    world.label(BY_CLAIMS, Some("on")).await;
    world
        .eventually("the slices are published", async || {
            let devices = published(world).await?;
            let whole = devices.iter().filter(|(_, profile)| profile.is_empty());
            let has_instances = devices.iter().any(|(_, profile)| profile == "3g.8gb");
            (whole.count() == world.board.gpus() - 1 && has_instances == instances).then_some(())
        })
        .await;
}

/// A template of claims for an instance of this profile.
fn make_template(world: &World, name: &str, profile: &str) {
    let cel = format!("device.attributes[\"gpu.vgpu.io\"].profile == \"{profile}\"");
    let exactly =
        json!({"deviceClassName": "mig.vgpu.io", "selectors": [{"cel": {"expression": cel}}]});
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    });
    dra::apply(world, &template.to_string());
}

/// First slice and sevenths of each instance of the GPU.
fn cut(world: &World) -> BTreeSet<(u32, u32)> {
    let there = world.board.gpu_instances(GPU);
    there.iter().map(|it| (it.start, it.sevenths)).collect()
}

/// The driver removes the instances of a claim after its files.
async fn no_instance_is_left(world: &World) {
    world
        .eventually("no MIG instance outlives its claim", async || {
            cut(world).is_empty().then_some(())
        })
        .await;
}

fn is_unschedulable(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|it| it.conditions.as_ref());
    conditions.into_iter().flatten().any(|it| {
        it.type_ == "PodScheduled"
            && it.reason.as_deref() == Some("Unschedulable")
            && it.message.as_deref().unwrap_or_default().contains("claim")
    })
}

/// How often each event of the node with this reason was said.
async fn said_of(world: &World, reason: &str) -> Vec<i32> {
    let events: Api<Event> = Api::all(world.client.clone());
    let of = ListParams::default().fields(&format!("involvedObject.name={NAME},reason={reason}"));
    let found = events.list(&of).await.unwrap().items;
    found.iter().map(|event| event.count.unwrap_or(1)).collect()
}

#[test]
fn mig_instance_lives_as_long_as_its_claim() {
    within(async |world| {
        let Some(_mode) = MigMode::on(world) else {
            return;
        };
        // An administrator's own instance, as nvidia-smi mig -cgi makes it, lies in the second half.
        let board = &world.board;
        let foreign = board.create_gpu_instance(GPU, 1, Some(6)).unwrap();
        board.create_compute_instance(GPU, foreign.index).unwrap();
        by_claims(world, true).await;
        let devices = published(world).await.unwrap();
        let has = |end: &str| devices.iter().any(|(name, _)| name.ends_with(end));
        assert!(has("-3g-8gb-0") && has("-1g-2gb-6"), "{devices:?}");
        assert!(!has("-3g-8gb-4") && !has("-7g-16gb-0"), "{devices:?}");
        make_template(world, "half", "3g.8gb");
        let words = ["count", "mig", "total", "take=4000", "take=4000", "hold"];
        let mut uuids = BTreeSet::new();
        for name in ["one", "two"] {
            world
                .make_pod(dra::own_claim_pod(name, "half", &words))
                .await;
            if name == "two" {
                world
                    .until(name, "waits for slices", is_unschedulable)
                    .await;
                assert_eq!(cut(world), BTreeSet::from([(0, 3), (6, 1)]));
                board.destroy_compute_instance(GPU, foreign.index).unwrap();
                board.destroy_gpu_instance(GPU, foreign.index).unwrap();
            }
            let said = world.lines(name, "work", words.len()).await;
            assert_eq!(said[0], "count 1", "{name}");
            assert_eq!(said[2], format!("total {}", 8192 * MIB), "{name}");
            // An instance of 8 GiB, of which a context takes 300 MiB.
            let refused = "take=4000 refused CUDA_ERROR_OUT_OF_MEMORY";
            assert_eq!(said[3..5], ["take=4000 took", refused], "{name}");
            uuids.insert(said[1].strip_prefix("mig ").unwrap().to_owned());
        }

        // Each container sees its own instance and no other, and both lie beside each other.
        let there = world.board.instances(GPU);
        let there = there
            .iter()
            .map(|it| world.board.instance_uuid(GPU, it.index));
        assert_eq!(uuids, there.collect());
        assert_eq!(cut(world), BTreeSet::from([(0, 3), (4, 3)]));
        assert_eq!(board.processes(GPU).len(), 2);

        // A third one finds no slices, until a claim gives its own back.
        world
            .make_pod(dra::own_claim_pod("three", "half", &words))
            .await;
        world
            .until("three", "waits for slices", is_unschedulable)
            .await;
        let first = world.until_ready("one").await;
        world.remove("two").await;
        let said = world.lines("three", "work", words.len()).await;
        assert_eq!(said[2], format!("total {}", 8192 * MIB));
        assert_eq!(cut(world), BTreeSet::from([(0, 3), (4, 3)]));

        // A smaller one takes the place of a half.
        make_template(world, "small", "1g.2gb");
        world.remove("three").await;
        world
            .make_pod(dra::own_claim_pod("small", "small", &["total", "hold"]))
            .await;
        let said = world.lines("small", "work", 2).await;
        assert_eq!(said[0], format!("total {}", 2048 * MIB));
        let sizes: Vec<u32> = cut(world).iter().map(|(_, sevenths)| *sevenths).collect();
        assert!(sizes.contains(&1) && sizes.contains(&3), "{:?}", cut(world));
        assert_eq!(
            run_of(&world.until_ready("one").await, "work"),
            run_of(&first, "work")
        );

        dra::clear(world, &["one", "small"]).await;
        no_instance_is_left(world).await;
    });
}

#[test]
fn without_the_gate_the_node_says_once_that_mig_is_not_offered() {
    within(async |world| {
        let Some(_mode) = MigMode::on(world) else {
            return;
        };
        if world.minor > 35 {
            println!("left out: the API server of this version has the gate without being told");
            return;
        }
        let before = agent::processes("kube-apiserver");
        let gate = Gate::off(world);
        assert_ne!(agent::processes("kube-apiserver"), before);

        by_claims(world, false).await;

        let text = world
            .eventually("the node has the event", async || {
                let all = world.events_of(NAME).await;
                all.into_iter().find(|it| it.starts_with("MigNotOffered"))
            })
            .await;
        assert!(text.contains(GATE), "{text}");
        let slices = world
            .kubectl(&["get", "resourceslices", "-o", "yaml"])
            .unwrap();
        assert!(!slices.contains("Counters"), "{slices}");
        // The other GPUs are given as always.
        dra::make_template(world, "own", 2000);
        let words = ["total", "hold"];
        world
            .make_pod(dra::own_claim_pod("beside", "own", &words))
            .await;
        let said = world.lines("beside", "work", words.len()).await;
        assert_eq!(said[0], format!("total {}", 2000 * MIB));
        // The driver looks again, as it does every 30 s, and says nothing more.
        let all = ["delete", "resourceslices", "--all"];
        world.kubectl(&all).unwrap();
        by_claims(world, false).await;
        assert_eq!(said_of(world, "MigNotOffered").await, [1]);

        drop(gate);

        by_claims(world, true).await;
        world
            .eventually("the node says that MIG is offered", async || {
                (said_of(world, "MigOffered").await == [1]).then_some(())
            })
            .await;
        assert_eq!(said_of(world, "MigNotOffered").await, [1]);
        make_template(world, "half", "3g.8gb");
        world
            .make_pod(dra::own_claim_pod("half", "half", &words))
            .await;
        let said = world.lines("half", "work", words.len()).await;
        assert_eq!(said[0], format!("total {}", 8192 * MIB));
        dra::clear(world, &["beside", "half"]).await;
        no_instance_is_left(world).await;
    });
}
