//! GPUs that another driver gives out by ResourceClaims, as a real API server keeps them.

use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use serde_json::json;

use crate::objects::{Gpus, from, pod, whole};
use crate::programs::Pair;
use crate::world::{World, within};

fn api(world: &World, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("resource.k8s.io", "v1", kind));
    match kind {
        "ResourceSlice" => Api::all_with(world.client.clone(), &resource),
        _ => Api::default_namespaced_with(world.client.clone(), &resource),
    }
}

#[test]
fn a_gpu_of_a_resource_claim_takes_no_pod_until_the_claim_is_gone() {
    within(async |world| {
        if !world.has(34, "resource.k8s.io/v1") {
            return;
        }
        let one = Gpus {
            count: 1,
            ..Gpus::default()
        };
        world.make_nodes(["a"], &one).await;
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "a-gpus"},
            "spec": {"driver": "gpu.nvidia.com", "nodeName": "a",
                "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-a-0"}}}]},
        });
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "all"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
        });
        let status = json!({"status": {"allocation": {"devices": {"results": [
            {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "a", "device": "gpu-0"}]}}}});
        let (slices, claims) = (api(world, "ResourceSlice"), api(world, "ResourceClaim"));
        slices
            .create(&PostParams::default(), &from(slice))
            .await
            .unwrap();
        claims
            .create(&PostParams::default(), &from(claim))
            .await
            .unwrap();
        let (params, patch) = (PatchParams::default(), Patch::Merge(&status));
        claims.patch_status("all", &params, &patch).await.unwrap();
        let _pair = Pair::start(world).await;

        world.make_pod(pod("p", whole(1))).await;
        world.until_refused("p").await;
        world
            .eventually("the Node's event names the claim", async || {
                let events = world.events_of("a").await;
                events
                    .iter()
                    .any(|event| event.contains("GPU-a-0") && event.contains("default/all"))
                    .then_some(())
            })
            .await;

        claims
            .delete("all", &DeleteParams::default())
            .await
            .unwrap();
        world.until_placed("p").await;
        slices
            .delete("a-gpus", &DeleteParams::default())
            .await
            .unwrap();
    });
}
