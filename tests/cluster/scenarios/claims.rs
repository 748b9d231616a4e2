//! Pods whose GPU resources become ResourceClaims: the webhook names templates, the scheduler makes them, and
//! kube-scheduler charges the claims to a GPU of a ResourceSlice. No node gives anything here.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Event, ResourceQuota};
use k8s_openapi::api::resource::v1::{
    DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube_api::keys::NODE_POLICY;
use kube_api::shares::template::{MANAGED_BY, SHAPES};
use serde_json::{Value, json};

use crate::http;
use crate::objects::{Gpus, from, gpu_with, node, pod, uuids};
use crate::programs::{Pair, Program, Tuning, metrics_of, start_webhook};
use crate::webhook::publish;
use crate::world::{SYSTEM, World, within};

const CLASS: &str = "gpu.vgpu.io";

fn templates(world: &World) -> Api<ResourceClaimTemplate> {
    Api::default_namespaced(world.client.clone())
}

/// The GPUs that our driver on the node `node` would publish.
pub(crate) fn slice_of(node: &str, gpus: usize, memory: &str) -> ResourceSlice {
    let step = |most: &str| {
        json!({"value": most, "requestPolicy": {"default": most,
        "validRange": {"min": "1Mi", "step": "1Mi", "max": most}}})
    };
    let cores = json!({"value": "100", "requestPolicy": {"default": "0",
        "validRange": {"min": "0", "step": "1", "max": "100"}}});
    let shares = json!({"value": "10", "requestPolicy": {"default": "1", "validValues": ["1"]}});
    let devices: Vec<Value> = (0..gpus)
        .map(|gpu| {
            json!({"name": format!("gpu-{gpu}"), "allowMultipleAllocations": true,
                "attributes": {"uuid": {"string": format!("GPU-{node}-claims-{gpu}")},
                    "productName": {"string": "NVIDIA H100"}},
                "capacity": {"memory": step(memory), "cores": cores, "shares": shares}})
        })
        .collect();
    from(json!({
        "metadata": {"name": format!("{node}-vgpu")},
        "spec": {"driver": CLASS, "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices},
    }))
}

/// These slices and the class of their devices.
async fn publish_slices(world: &World, all: &[ResourceSlice]) {
    let class: DeviceClass = from(json!({"metadata": {"name": CLASS},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver == \"{CLASS}\"")}}]}}));
    let params = PostParams::default();
    let slices: Api<ResourceSlice> = Api::all(world.client.clone());
    let classes: Api<DeviceClass> = Api::all(world.client.clone());
    for slice in all {
        slices.create(&params, slice).await.unwrap();
    }
    classes.create(&params, &class).await.unwrap();
}

async fn remove_slices(world: &World) {
    let now = DeleteParams::default();
    let slices: Api<ResourceSlice> = Api::all(world.client.clone());
    let classes: Api<DeviceClass> = Api::all(world.client.clone());
    let all = ListParams::default();
    drop(slices.delete_collection(&now, &all).await.unwrap());
    classes.delete(CLASS, &now).await.unwrap();
    drop(
        templates(world)
            .delete_collection(&now, &ListParams::default())
            .await
            .unwrap(),
    );
}

/// The webhook, asked by the API server, which turns resources into claims.
async fn webhook_by_claims(world: &World) -> Program {
    publish(world, SYSTEM, "vgpu-webhook", 9443, &[1]).await;
    let webhook = start_webhook(world, 1, &["--by-claims"]);
    world
        .eventually("the webhook is ready", async || {
            (http::status(metrics_of(1), "/readyz").await == Some(200)).then_some(())
        })
        .await;
    world
        .eventually("the API server asks the webhook", async || {
            let dry = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            let probe = from(pod("probe", gpu_with(1000)));
            let made = world.pods().create(&dry, &probe).await.ok()?;
            made.spec?.resource_claims.map(drop)
        })
        .await;
    webhook
}

/// A node with one GPU of 8 GiB for claims, and the programs that make claims of resources.
async fn one_gpu_by_claims(world: &World) -> (Program, Pair) {
    world.make_nodes(["a"], &Gpus::default()).await;
    publish_slices(world, &[slice_of("a", 1, "8Gi")]).await;
    let pair = Pair::start_with(world, &["--claim-templates"], Tuning::default()).await;
    (webhook_by_claims(world).await, pair)
}

/// The memory that each claim was charged, sorted.
async fn charged(world: &World) -> Vec<String> {
    let claims: Api<ResourceClaim> = Api::default_namespaced(world.client.clone());
    let claims = claims.list(&ListParams::default()).await.unwrap().items;
    let mut all: Vec<String> = claims
        .iter()
        .filter_map(|claim| claim.status.as_ref()?.allocation.as_ref()?.devices.as_ref())
        .flat_map(|devices| devices.results.iter().flatten())
        .filter_map(|result| Some(result.consumed_capacity.as_ref()?.get("memory")?.0.clone()))
        .collect();
    all.sort();
    all
}

#[test]
fn resources_become_claims_that_share_a_gpu() {
    within(async |world| {
        if !world.has(34, "devices that claims share") {
            return;
        }
        let _programs = one_gpu_by_claims(world).await;

        for name in ["p", "q"] {
            world.make_pod(pod(name, gpu_with(3000))).await;
        }
        let placed = [world.until_placed("p").await, world.until_placed("q").await];

        assert_eq!(charged(world).await, ["3000Mi", "3000Mi"]);
        assert!(uuids(&placed).is_empty(), "the extender gave a GPU");
        let made = templates(world)
            .list(&ListParams::default())
            .await
            .unwrap()
            .items;
        let [template] = &made[..] else {
            panic!("{made:?}");
        };
        let (label, program) = MANAGED_BY;
        assert_eq!(
            template.metadata.labels.as_ref().unwrap()[label],
            program,
            "{template:?}"
        );

        // What is left of the GPU is less.
        world.make_pod(pod("r", gpu_with(3000))).await;
        world.until_refused("r").await;
        world.remove_pod("p").await;
        world.until_placed("r").await;
        for name in ["q", "r"] {
            world.remove_pod(name).await;
        }
        remove_slices(world).await;
    });
}

/// When the object was made, in seconds.
fn made_at(metadata: &ObjectMeta) -> i64 {
    metadata.creation_timestamp.as_ref().unwrap().0.as_second()
}

/// How often kube-controller-manager has found no template for the pod.
async fn vain_looks(world: &World, name: &str) -> i32 {
    let events: Api<Event> = Api::default_namespaced(world.client.clone());
    let of_pod = format!("involvedObject.name={name},reason=FailedResourceClaimCreation");
    let params = ListParams::default().fields(&of_pod);
    let events = events.list(&params).await.unwrap().items;
    events.iter().filter_map(|event| event.count).sum()
}

#[test]
fn claim_is_made_soon_when_its_template_comes_late() {
    within(async |world| {
        if !world.has(34, "devices that claims share") {
            return;
        }
        let _programs = one_gpu_by_claims(world).await;
        let quotas: Api<ResourceQuota> = Api::default_namespaced(world.client.clone());
        let none: ResourceQuota = from(json!({"metadata": {"name": "none"},
            "spec": {"hard": {"count/resourceclaimtemplates.resource.k8s.io": "0"}}}));
        quotas.create(&PostParams::default(), &none).await.unwrap();
        world
            .eventually("the quota counts", async || {
                let quota = quotas.get("none").await.unwrap();
                quota.status?.hard.map(drop)
            })
            .await;
        world.make_pod(pod("p", gpu_with(3000))).await;
        // Its pause is 20 s from then on.
        world
            .eventually("kube-controller-manager looked 13 times", async || {
                (vain_looks(world, "p").await >= 13).then_some(())
            })
            .await;

        let (now, every) = (DeleteParams::default(), ListParams::default());
        quotas.delete("none", &now).await.unwrap();
        let began = std::time::Instant::now();
        let pod = world.until_placed("p").await;

        println!(
            "measured: a pod whose template could be made late had a node {:.1} s after that",
            began.elapsed().as_secs_f64()
        );
        // kube-controller-manager looks again because the scheduler has changed the pod, unless it happened to look
        // before that, or watches templates, as 1.37 does.
        let conditions = pod.status.unwrap().conditions.unwrap();
        let was_nudged = conditions
            .iter()
            .any(|it| it.type_ == "vgpu.io/ClaimTemplates");
        let template = &templates(world).list(&every).await.unwrap().items[0];
        let claims: Api<ResourceClaim> = Api::default_namespaced(world.client.clone());
        let claim = &claims.list(&every).await.unwrap().items[0];
        let (made, claimed) = (made_at(&template.metadata), made_at(&claim.metadata));
        assert!(
            was_nudged || claimed - made <= 5,
            "{conditions:?}, template of {made} s, claim of {claimed} s"
        );
        world.remove_pod("p").await;
        remove_slices(world).await;
    });
}

#[test]
fn claims_and_pods_that_lie_are_refused_when_they_are_written() {
    within(async |world| {
        if !world.has(34, "devices that claims share") {
            return;
        }
        let _webhook = webhook_by_claims(world).await;
        let tenant = world.client_of("tenant").await;
        let templates: Api<ResourceClaimTemplate> = Api::default_namespaced(tenant.clone());
        let template = |name: &str, priority: u32| -> ResourceClaimTemplate {
            from(
                json!({"metadata": {"name": name}, "spec": {"spec": {"devices": {
                "requests": [{"name": "gpu", "exactly": {"deviceClassName": CLASS}}],
                "config": [{"opaque": {"driver": CLASS, "parameters": {"apiVersion": "gpu.vgpu.io/v1",
                    "kind": "ShareParameters", "priority": priority}}}]}}}}),
            )
        };
        let refused = async |template: &ResourceClaimTemplate| {
            let answer = templates.create(&PostParams::default(), template).await;
            answer.unwrap_err().to_string()
        };

        let why = refused(&template("share", 10)).await;
        assert!(
            why.contains(
                "spec.spec.devices.config[0].opaque.parameters: the parameters have the priority 10"
            ),
            "{why}"
        );
        let why = refused(&template("vgpu-share-1xall-100c-0000000000", 1)).await;
        assert!(
            why.contains("names that begin with vgpu-share- are those of the templates that vgpu's scheduler makes"),
            "{why}"
        );
        templates
            .create(&PostParams::default(), &template("share", 9))
            .await
            .unwrap();
        templates
            .delete("share", &DeleteParams::default())
            .await
            .unwrap();

        let mut forged = pod("forged", json!({}));
        let name = "vgpu-share-1x1mi-0c-0000000000";
        let shapes: Value = json!({name: {"count": 1, "memoryMib": 8192, "cores": 0}});
        forged["metadata"]["annotations"] = json!({SHAPES: shapes.to_string()});
        forged["spec"]["resourceClaims"] =
            json!([{"name": "vgpu-0", "resourceClaimTemplateName": name}]);
        let why = world
            .pods()
            .create(&PostParams::default(), &from(forged))
            .await
            .unwrap_err()
            .to_string();
        assert!(
            why.contains("metadata.annotations[vgpu.io/shares]"),
            "{why}"
        );
    });
}

/// Claims of MIG instances from our class, each with the profile that it asks for.
fn claim_of_profile(name: &str, profile: &str) -> ResourceClaim {
    let expression = format!("device.attributes[\"{CLASS}\"].profile == \"{profile}\"");
    from(json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "mig.vgpu.io",
            "selectors": [{"cel": {"expression": expression}}]}}]}},
    }))
}

/// A pod whose container uses a claim: `field` and `value` say which claim, or which template of claims.
fn pod_of(name: &str, field: &str, value: &str) -> Value {
    let mut pod = pod(name, json!({}));
    pod["spec"]["resourceClaims"] = json!([{"name": "gpu", field: value}]);
    pod["spec"]["containers"][0]["resources"]["claims"] = json!([{"name": "gpu"}]);
    pod
}

/// A pod that uses the claim of its name.
fn pod_with_claim(name: &str) -> Value {
    pod_of(name, "resourceClaimName", name)
}

/// The slices that our driver publishes of a GPU in MIG mode, as far as these profiles go.
fn mig_slices() -> [ResourceSlice; 2] {
    let pool = json!({"name": "a", "generation": 1, "resourceSliceCount": 2});
    let counters = |slices: std::ops::Range<u32>, compute: u32| {
        let mut all = json!({"compute-slices": {"value": compute.to_string()}});
        for slice in slices {
            all[format!("memory-slice-{slice}")] = json!({"value": "1"});
        }
        all
    };
    let device = |name: &str,
                  profile: &str,
                  gib: u32,
                  slices: std::ops::Range<u32>,
                  compute: u32| {
        json!({"name": name,
            "attributes": {"uuid": {"string": "GPU-mig-0"}, "profile": {"string": profile}},
            "capacity": {"memory": {"value": format!("{gib}Gi")}},
            "consumesCounters": [{"counterSet": "gpu-mig-0", "counters": counters(slices, compute)}]})
    };
    let devices = json!([
        device("gpu-mig-0-3g-20gb-0", "3g.20gb", 20, 0..4, 3),
        device("gpu-mig-0-3g-20gb-4", "3g.20gb", 20, 4..8, 3),
        device("gpu-mig-0-7g-40gb-0", "7g.40gb", 40, 0..8, 7),
    ]);
    let slice = |name: &str, field: &str, content: Value| -> ResourceSlice {
        from(json!({"metadata": {"name": name},
            "spec": {"driver": CLASS, "nodeName": "a", "pool": pool, field: content}}))
    };
    let sets = json!([{"name": "gpu-mig-0", "counters": counters(0..8, 7)}]);
    [
        slice("a-mig-devices", "devices", devices),
        slice("a-mig-counters", "sharedCounters", sets),
    ]
}

#[test]
fn mig_instances_of_a_gpu_exclude_each_other() {
    within(async |world| {
        if !world.has(35, "counters that devices share") {
            return;
        }
        world.make_nodes(["a"], &Gpus::default()).await;
        let params = PostParams::default();
        let slices: Api<ResourceSlice> = Api::all(world.client.clone());
        for slice in mig_slices() {
            let kept = slices.create(&params, &slice).await.unwrap();
            assert_eq!(kept.spec, slice.spec, "the API server drops counters");
        }
        let classes: Api<DeviceClass> = Api::all(world.client.clone());
        for (name, not) in [(CLASS, "!"), ("mig.vgpu.io", "")] {
            let expression = format!(
                "device.driver == \"{CLASS}\" && {not}has(device.attributes[\"{CLASS}\"].profile)"
            );
            let class = json!({"metadata": {"name": name},
                "spec": {"selectors": [{"cel": {"expression": expression}}]}});
            classes.create(&params, &from(class)).await.unwrap();
        }
        let _pair = Pair::start_with(world, &[], Tuning::default()).await;
        let claims: Api<ResourceClaim> = Api::default_namespaced(world.client.clone());
        let make = async |name: &str, claim: &ResourceClaim| {
            claims.create(&params, claim).await.unwrap();
            world.make_pod(pod_with_claim(name)).await;
        };

        make("one", &claim_of_profile("one", "3g.20gb")).await;
        make("two", &claim_of_profile("two", "3g.20gb")).await;
        world.until_placed("one").await;
        world.until_placed("two").await;

        let mut given = Vec::new();
        for name in ["one", "two"] {
            let status = claims.get(name).await.unwrap().status.unwrap();
            let results = status.allocation.unwrap().devices.unwrap().results.unwrap();
            assert_eq!(results[0].consumed_capacity, None);
            given.push(results[0].device.clone());
        }
        given.sort();
        assert_eq!(given, ["gpu-mig-0-3g-20gb-0", "gpu-mig-0-3g-20gb-4"]);
        // No third one, not the whole, and no share of a GPU that is cut.
        make("three", &claim_of_profile("three", "3g.20gb")).await;
        make("whole", &claim_of_profile("whole", "7g.40gb")).await;
        let share = json!({"metadata": {"name": "share", "namespace": "default"}, "spec": {"devices": {
            "requests": [{"name": "gpu", "exactly": {"deviceClassName": CLASS}}]}}});
        make("share", &from(share)).await;
        for name in ["three", "whole", "share"] {
            world.until_refused(name).await;
        }
        for name in ["three", "share", "one", "two"] {
            world.remove_pod(name).await;
            claims.delete(name, &DeleteParams::default()).await.unwrap();
        }
        world.until_placed("whole").await;

        world.remove_pod("whole").await;
        claims
            .delete("whole", &DeleteParams::default())
            .await
            .unwrap();
        for slice in mig_slices() {
            let name = slice.metadata.name.unwrap();
            slices
                .delete(&name, &DeleteParams::default())
                .await
                .unwrap();
        }
        for name in [CLASS, "mig.vgpu.io"] {
            classes
                .delete(name, &DeleteParams::default())
                .await
                .unwrap();
        }
    });
}

/// A template of claims for `count` different GPUs with this memory of each, and this percentage of compute.
async fn make_template(world: &World, name: &str, count: u32, memory: &str, cores: u32) {
    let template: ResourceClaimTemplate = from(
        json!({"metadata": {"name": name}, "spec": {"spec": {"devices": {
        "requests": [{"name": "gpu", "exactly": {"deviceClassName": CLASS, "count": count,
            "capacity": {"requests": {"memory": memory, "cores": cores.to_string()}}}}],
        "constraints": [{"requests": ["gpu"], "distinctAttribute": "gpu.vgpu.io/uuid"}]}}}}),
    );
    templates(world)
        .create(&PostParams::default(), &template)
        .await
        .unwrap();
}

/// A pod with a claim from this template.
fn pod_with(name: &str, template: &str) -> Value {
    pod_of(name, "resourceClaimTemplateName", template)
}

#[test]
fn policy_decides_between_nodes_for_pods_with_claims() {
    within(async |world| {
        if !world.has(34, "devices that claims share") {
            return;
        }
        world.make_nodes(["a", "b"], &Gpus::default()).await;
        let slices = ["a", "b"].map(|node| slice_of(node, 1, "8Gi"));
        publish_slices(world, &slices).await;
        make_template(world, "share", 1, "1Gi", 10).await;
        let tuning = Tuning {
            claims: true,
            ..Tuning::default()
        };
        let _pair = Pair::start_with(world, &[], tuning).await;
        // kube-scheduler by itself takes the node whose processors are less used.
        let mut old = pod_with("old", "share");
        old["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "b"});
        old["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "64"});
        world.make_pod(old).await;
        world.until_placed("old").await;

        let with = |name: &str, policy: &str| {
            let mut pod = pod_with(name, "share");
            pod["metadata"]["annotations"] = json!({NODE_POLICY: policy});
            pod
        };
        let packed = ["p0", "p1", "p2", "p3"];
        let all = packed.map(|name| with(name, "binpack")).to_vec();
        world.make_pods(all).await;
        for name in packed {
            let pod = world.until_placed(name).await;
            assert_eq!(node(&pod), Some("b"), "{name}");
        }
        world.make_pod(with("s", "spread")).await;
        assert_eq!(node(&world.until_placed("s").await), Some("a"));

        for name in packed.into_iter().chain(["old", "s"]) {
            world.remove_pod(name).await;
        }
        remove_slices(world).await;
    });
}

/// The sizes of a mix of pods, how many there are, and the processors of each: shares of one GPU, and pods with all GPUs
/// of a node. A node has 128 processors.
const MIX: [(&str, usize, u32); 3] = [("quarter", 20, 8), ("half", 8, 16), ("four", 3, 120)];

/// What became of a mix of pods.
#[derive(Debug, Default)]
struct Placed {
    /// The pods that found room, by their size.
    pods: BTreeMap<&'static str, usize>,
    /// The GPUs and the nodes that shares use.
    shared: [usize; 2],
}

/// Places the mix in this order; it is always the same for the number.
async fn place_mix(world: &World, order: usize, processors: bool) -> Placed {
    let claims: Api<ResourceClaim> = Api::default_namespaced(world.client.clone());
    let mut pods: Vec<(String, &'static str, u32)> = Vec::new();
    for (size, count, cpu) in MIX {
        pods.extend((0..count).map(|index| (format!("{size}-{order}-{index}"), size, cpu)));
    }
    let mut seed = order + 1;
    for at in (1..pods.len()).rev() {
        seed = (seed * 1_103_515_245 + 12345) % (1 << 31);
        pods.swap(at, (seed >> 8) % (at + 1));
    }
    for (name, size, cpu) in &pods {
        let mut pod = pod_with(name, size);
        if processors {
            pod["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": cpu.to_string()});
        }
        world.make_pod(pod).await;
    }
    let mut placed = Placed::default();
    for (name, size, _) in &pods {
        let found = world.eventually("the pod is placed or refused", async || {
            let pod = world.pods().get(name).await.unwrap();
            let why = world.refusal(name).await;
            let refused = why.is_some_and(|why| why.contains("nodes are available"));
            (node(&pod).is_some() || refused).then_some(node(&pod).is_some())
        });
        *placed.pods.entry(size).or_default() += usize::from(found.await);
    }
    let every = ListParams::default();
    let all = claims.list(&every).await.unwrap().items;
    let results = all
        .iter()
        .filter(|claim| !claim.metadata.name.as_deref().unwrap().starts_with("four"))
        .filter_map(|claim| claim.status.as_ref()?.allocation.as_ref()?.devices.as_ref())
        .flat_map(|devices| devices.results.iter().flatten());
    let gpus: BTreeSet<(&str, &str)> = results
        .map(|result| (result.pool.as_str(), result.device.as_str()))
        .collect();
    let nodes: BTreeSet<&str> = gpus.iter().map(|(node, _)| *node).collect();
    placed.shared = [gpus.len(), nodes.len()];
    for (name, _, _) in &pods {
        world.remove_pod(name).await;
    }
    world
        .eventually("the claims are gone with their pods", async || {
            let left = claims.list(&every).await.unwrap().items;
            left.is_empty().then_some(())
        })
        .await;
    placed
}

/// What decides between the nodes with room for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decides {
    KubeScheduler,
    /// The extender, by this policy.
    Score(&'static str),
}

/// Prints what becomes of the mix on 6 nodes of 4 GPUs, in the first of these orders.
fn mix_of_pods(decides: Decides, orders: usize, processors: bool) {
    within(async |world| {
        if !world.has(34, "devices that claims share") {
            return;
        }
        let nodes: Vec<String> = (0..6).map(|index| format!("n{index}")).collect();
        world.make_nodes(&nodes, &Gpus::default()).await;
        let slices = nodes.iter().map(|node| slice_of(node, 4, "80Gi"));
        publish_slices(world, &slices.collect::<Vec<_>>()).await;
        make_template(world, "quarter", 1, "20Gi", 25).await;
        make_template(world, "half", 1, "40Gi", 50).await;
        make_template(world, "four", 4, "80Gi", 100).await;
        let (claims, policy) = match decides {
            Decides::KubeScheduler => (false, "binpack"),
            Decides::Score(policy) => (true, policy),
        };
        let tuning = Tuning {
            claims,
            ..Tuning::default()
        };
        let argument = format!("--node-scheduler-policy={policy}");
        let _pair = Pair::start_with(world, &[&argument], tuning).await;

        for order in 0..orders {
            let placed = place_mix(world, order, processors).await;
            let of = |(size, count, _)| format!("{} of {count} {size}", placed.pods[size]);
            let [gpus, nodes] = placed.shared;
            println!(
                "measured: {decides:?}, pods with processors {processors}, order {order}: {} placed; shares on {gpus} \
                 GPUs and {nodes} nodes",
                MIX.map(of).join(", ")
            );
            // The shares fill 9 GPUs, and the other 15 are three whole nodes and three GPUs.
            if decides == Decides::Score("binpack") {
                let all =
                    |(size, count, _): &(&'static str, usize, u32)| placed.pods[size] == *count;
                assert!(MIX.iter().all(all), "{placed:?}");
            }
        }
        remove_slices(world).await;
    });
}

#[test]
fn mix_of_pods_is_packed() {
    mix_of_pods(Decides::Score("binpack"), 1, true);
}

#[test]
#[ignore = "measures for four minutes: scripts/cluster test mix_of_pods --include-ignored"]
fn mix_of_pods_is_measured() {
    for decides in [
        Decides::KubeScheduler,
        Decides::Score("binpack"),
        Decides::Score("spread"),
    ] {
        for processors in [false, true] {
            mix_of_pods(decides, 5, processors);
        }
    }
}
