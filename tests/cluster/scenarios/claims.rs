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
