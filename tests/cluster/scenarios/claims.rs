//! Pods whose GPU resources become ResourceClaims: the webhook names templates, the scheduler makes them, and
//! kube-scheduler charges the claims to a GPU of a ResourceSlice. No node gives anything here.

use k8s_openapi::api::resource::v1::{
    DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice,
};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube_api::shares::template::{MANAGED_BY, SHAPES};
use serde_json::{Value, json};

use crate::http;
use crate::objects::{Gpus, from, gpu_with, pod, uuids};
use crate::programs::{Pair, Program, Tuning, metrics_of, start_webhook};
use crate::webhook::publish;
use crate::world::{SYSTEM, World, within};

const CLASS: &str = "gpu.vgpu.io";

fn templates(world: &World) -> Api<ResourceClaimTemplate> {
    Api::default_namespaced(world.client.clone())
}

/// A GPU of 8 GiB that our driver on the node would publish, and its class.
async fn publish_gpu(world: &World) {
    let step = |most: &str| {
        json!({"value": most, "requestPolicy": {"default": most,
        "validRange": {"min": "1Mi", "step": "1Mi", "max": most}}})
    };
    let cores = json!({"value": "100", "requestPolicy": {"default": "0",
        "validRange": {"min": "0", "step": "1", "max": "100"}}});
    let shares = json!({"value": "10", "requestPolicy": {"default": "1", "validValues": ["1"]}});
    let slice: ResourceSlice = from(json!({
        "metadata": {"name": "a-vgpu"},
        "spec": {"driver": CLASS, "nodeName": "a", "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "allowMultipleAllocations": true,
                "attributes": {"uuid": {"string": "GPU-claims-0"}, "productName": {"string": "NVIDIA H100"}},
                "capacity": {"memory": step("8Gi"), "cores": cores, "shares": shares}}]},
    }));
    let class: DeviceClass = from(json!({"metadata": {"name": CLASS},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver == \"{CLASS}\"")}}]}}));
    let params = PostParams::default();
    let slices: Api<ResourceSlice> = Api::all(world.client.clone());
    let classes: Api<DeviceClass> = Api::all(world.client.clone());
    slices.create(&params, &slice).await.unwrap();
    classes.create(&params, &class).await.unwrap();
}

async fn remove_gpu(world: &World) {
    let now = DeleteParams::default();
    let slices: Api<ResourceSlice> = Api::all(world.client.clone());
    let classes: Api<DeviceClass> = Api::all(world.client.clone());
    slices.delete("a-vgpu", &now).await.unwrap();
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
        world.make_nodes(["a"], &Gpus::default()).await;
        publish_gpu(world).await;
        let _pair = Pair::start_with(world, &["--claim-templates"], Tuning::default()).await;
        let _webhook = webhook_by_claims(world).await;

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
        remove_gpu(world).await;
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

/// A pod that uses the claim of its name.
fn pod_with_claim(name: &str) -> Value {
    let mut pod = pod(name, json!({}));
    pod["spec"]["resourceClaims"] = json!([{"name": "part", "resourceClaimName": name}]);
    pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "part"}]});
    pod
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
