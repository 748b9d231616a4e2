//! The webhook behind a Service, called by a real API server: the pods that it refuses and those that it never does,
//! its certificates, and several replicas.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::{Endpoints, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::http;
use crate::objects::{ALLOCATED, Gpus, annotation, from, gpu_with, pod, whole};
use crate::programs::{Pair, Program, metrics_of, start_webhook};
use crate::world::{SYSTEM, World, within};

/// The Service of the webhook, with these replicas behind it.
async fn serve(world: &World, replicas: &[u16]) {
    publish(world, SYSTEM, "vgpu-webhook", 9443, replicas).await;
}

/// A Service whose port 443 is this port of these replicas, as kubelets and the endpoint controller would write it.
pub(crate) async fn publish(
    world: &World,
    namespace: &str,
    name: &str,
    port: u16,
    replicas: &[u16],
) {
    let services: Api<Service> = Api::namespaced(world.client.clone(), namespace);
    let slices: Api<EndpointSlice> = Api::namespaced(world.client.clone(), namespace);
    let apply = PatchParams::apply("test").force();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]}});
    services
        .patch(name, &apply, &Patch::Apply(service))
        .await
        .unwrap();
    let endpoints: Vec<Value> = replicas
        .iter()
        .map(|replica| json!({"addresses": [format!("10.99.0.{replica}")], "conditions": {"ready": true}}))
        .collect();
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}], "endpoints": endpoints});
    slices
        .patch(name, &apply, &Patch::Apply(slice))
        .await
        .unwrap();
    if world.minor() < 35 {
        publish_for_older(world, namespace, name, port, replicas).await;
    }
}

/// The same for an API server that looks for a webhook's endpoints in an object of their own, and knows no slices of them.
async fn publish_for_older(
    world: &World,
    namespace: &str,
    name: &str,
    port: u16,
    replicas: &[u16],
) {
    let addresses: Vec<Value> = replicas
        .iter()
        .map(|replica| json!({"ip": format!("10.99.0.{replica}")}))
        .collect();
    let ports = json!([{"name": "https", "port": port, "protocol": "TCP"}]);
    let subsets = if addresses.is_empty() {
        json!([])
    } else {
        json!([{"addresses": addresses, "ports": ports}])
    };
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "subsets": subsets,
        "metadata": {"name": name, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}}});
    let api: Api<Endpoints> = Api::namespaced(world.client.clone(), namespace);
    api.patch(
        name,
        &PatchParams::apply("test").force(),
        &Patch::Apply(endpoints),
    )
    .await
    .unwrap();
}

async fn ready(world: &World, replica: u16) {
    world
        .eventually(&format!("webhook {replica} is ready"), async || {
            (http::status(metrics_of(replica), "/readyz").await == Some(200)).then_some(())
        })
        .await;
}

/// One replica, ready and asked by the API server.
async fn one(world: &World) -> Program {
    one_with(world, &[]).await
}

/// The same with more arguments.
pub(crate) async fn one_with(world: &World, more: &[&str]) -> Program {
    serve(world, &[1]).await;
    let webhook = start_webhook(world, 1, more);
    ready(world, 1).await;
    until_asked(world).await;
    webhook
}

/// The API server learns of a new configuration by a watch, and of endpoints by another.
async fn until_asked(world: &World) {
    world
        .eventually("the API server asks the webhook", async || {
            let made = try_make(world, &ours("probe")).await.ok()?;
            (made.spec?.scheduler_name.as_deref() == Some("hami-scheduler")).then_some(())
        })
        .await;
}

/// A pod with a GPU, as a user writes it.
fn ours(name: &str) -> Value {
    let mut pod = pod(name, gpu_with(1000));
    pod["spec"].as_object_mut().unwrap().remove("schedulerName");
    pod
}

/// The object that the API server would store; nothing is stored.
async fn try_make(world: &World, pod: &Value) -> Result<Pod, kube::Error> {
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    world.pods().create(&dry, &from(pod.clone())).await
}

/// Pods that do not concern us, of all shapes: each omits or sets a field that a condition might read.
fn plain_pods() -> Vec<Value> {
    let shapes = [
        json!({"containers": [{"name": "c", "image": "i"}]}),
        json!({"containers": [{"name": "c", "image": "i", "env": []}], "initContainers": []}),
        json!({"containers": [{"name": "c", "image": "i", "env": [{"name": "A"}, {"name": "B", "value": ""},
            {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}]}),
        json!({"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}, "requests": {"memory": "1Gi"}}}]}),
        json!({"containers": [{"name": "c", "image": "i", "resources": {"limits": {"example.com/gpu": 1}}}]}),
        json!({"containers": [{"name": "c", "image": "i"}], "initContainers": [{"name": "i", "image": "i"},
            {"name": "s", "image": "i", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}]}),
        json!({"containers": [{"name": "c", "image": "i", "securityContext": {"privileged": true},
            "envFrom": [{"configMapRef": {"name": "m"}}], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "emptyDir": {}}], "hostPID": true, "hostNetwork": true}),
        json!({"containers": [{"name": "c", "image": "i"}], "schedulerName": "another-scheduler", "nodeName": "n",
            "resources": {"limits": {"cpu": "2"}}}),
        json!({"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": "example.com/gate"}],
            "priority": 0, "overhead": {}, "tolerations": [{"operator": "Exists"}]}),
    ];
    let metadata = [
        json!({}),
        json!({"annotations": {}, "labels": {}}),
        json!({"annotations": {"example.com/a": "b"}, "labels": {"app": "c"}, "finalizers": ["example.com/f"]}),
    ];
    let mut pods = Vec::new();
    for spec in &shapes {
        for (index, metadata) in metadata.iter().enumerate() {
            let mut pod = json!({"metadata": metadata, "spec": spec});
            // Its volume has another name each time.
            pod["spec"]["automountServiceAccountToken"] = json!(false);
            pod["metadata"]["name"] = json!(format!("plain-{}-{index}", pods.len()));
            pods.push(pod);
        }
    }
    pods
}

#[test]
fn plain_pods_pass_unchanged_and_a_dead_webhook_stops_only_ours() {
    within(async |world| {
        let corpus = plain_pods();
        let mut before = Vec::new();
        for pod in &corpus {
            before.push(
                try_make(world, pod)
                    .await
                    .map(|pod| json!(pod.spec))
                    .map_err(|error| error.to_string()),
            );
        }
        let mut webhook = one(world).await;
        for alive in [true, false] {
            if !alive {
                webhook.kill();
            }
            for (pod, before) in corpus.iter().zip(&before) {
                let now = try_make(world, pod)
                    .await
                    .map(|pod| json!(pod.spec))
                    .map_err(|error| error.to_string());
                assert_eq!(&now, before, "alive: {alive}, {pod}");
            }
        }
        assert!(
            before.iter().filter(|made| made.is_ok()).count() >= 20,
            "{before:?}"
        );

        let refused = try_make(world, &ours("p")).await.unwrap_err().to_string();
        assert!(refused.contains("failed calling webhook"), "{refused}");
        // A plain pod that keeps running while the webhook is dead can also be changed.
        world.make_pod(corpus[0].clone()).await;
        let change = Patch::Merge(
            json!({"metadata": {"labels": {"a": "b"}, "annotations": {"example.com/c": "d"}}}),
        );
        world
            .pods()
            .patch("plain-0-0", &PatchParams::default(), &change)
            .await
            .unwrap();
    });
}

#[test]
fn a_pod_with_a_gpu_comes_out_complete_and_is_placed() {
    within(async |world| {
        world.make_nodes(["a"], &Gpus::default()).await;
        let _webhook = one(world).await;
        let _pair = Pair::start(world).await;
        let mut asked = ours("p");
        asked["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = json!("16Gi");
        asked["spec"]["containers"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "beside", "image": "i"}));

        world.make_pod(asked).await;

        let placed = world.until_placed("p").await;
        let spec = json!(placed.spec);
        assert_eq!(
            spec["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"],
            json!("16384")
        );
        let silent = json!({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"});
        assert!(
            spec["containers"][1]["env"]
                .as_array()
                .unwrap()
                .contains(&silent),
            "{spec}"
        );
        // Our scheduler may write fields that the webhook refuses from all others.
        assert!(
            annotation(&placed, ALLOCATED)
                .unwrap()
                .contains(",NVIDIA,16384,"),
            "{:?}",
            placed.metadata.annotations
        );
    });
}

#[test]
fn kubectl_shows_what_is_wrong_where_and_what_to_do() {
    within(async |world| {
        let _webhook = one(world).await;
        let set = |name: &str, value: &str| {
            let mut pod = ours("p");
            pod["spec"]["containers"][0]["env"] = json!([{"name": name, "value": value}]);
            pod
        };
        let mut pod_of_gpumem = ours("p");
        pod_of_gpumem["spec"]["containers"][0]["resources"]["limits"] =
            json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": "1500m"});
        let mut forged = ours("p");
        forged["metadata"]["annotations"] = json!({ALLOCATED: "GPU-a-0,NVIDIA,1,0:;"});
        let mut named = pod("p", json!({}));
        named["metadata"]["annotations"] =
            json!({"nvidia.cdi.k8s.io/container.work": "management.nvidia.com/gpu=all"});
        let mut over_etc = ours("p");
        over_etc["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
        over_etc["spec"]["containers"][0]["volumeMounts"] =
            json!([{"name": "v", "mountPath": "/etc"}]);
        let mut privileged = ours("p");
        privileged["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
        let cases = [
            (
                set("CUDA_DISABLE_CONTROL", "true"),
                vec!["container work", "CUDA_DISABLE_CONTROL"],
            ),
            (
                set("LD_AUDIT", "/evil.so"),
                vec!["container work", "LD_AUDIT"],
            ),
            (named, vec!["nvidia.cdi.k8s.io/container.work"]),
            (over_etc, vec!["container work", "volumeMounts[/etc]"]),
            (forged, vec![ALLOCATED]),
            (privileged, vec!["container work", "privileged"]),
        ];
        for (pod, words) in cases {
            let file = world.log("pod").with_extension("json");
            let mut whole = pod.clone();
            whole["apiVersion"] = json!("v1");
            whole["kind"] = json!("Pod");
            std::fs::write(&file, whole.to_string()).unwrap();

            let (went_well, said) =
                world.kubectl("tenant", &["create", "--filename", file.to_str().unwrap()]);

            println!("  kubectl: {}", said.trim());
            assert!(!went_well, "{said}");
            assert!(said.lines().count() <= 2 && said.len() < 700, "{said}");
            for word in words {
                assert!(said.contains(word), "{word} is missing: {said}");
            }
        }
    });
}

#[test]
fn a_tenant_cannot_change_what_a_placed_pod_was_given() {
    within(async |world| {
        world.make_nodes(["a"], &Gpus::default()).await;
        let _webhook = one(world).await;
        let _pair = Pair::start(world).await;
        world.make_pod(ours("p")).await;
        let placed = world.until_placed("p").await;
        let tenant: Api<Pod> = Api::default_namespaced(world.client_of("tenant").await);
        let forged = json!({"metadata": {"annotations": {ALLOCATED: "GPU-a-0,NVIDIA,1,0:;"}}});
        let merge = Patch::Merge(forged);
        let params = PatchParams::default();

        let refused = tenant
            .patch("p", &params, &merge)
            .await
            .unwrap_err()
            .to_string();
        assert!(refused.contains(ALLOCATED), "{refused}");
        // Kubelets may write a pod's status; annotations come with it.
        let refused = world
            .pods()
            .patch_status("p", &params, &merge)
            .await
            .unwrap_err()
            .to_string();
        assert!(refused.contains(ALLOCATED), "{refused}");
        // All else of the pod stays the tenant's.
        let own = Patch::Merge(
            json!({"metadata": {"labels": {"mine": "yes"}, "annotations": {"example.com/a": "b"}}}),
        );
        tenant.patch("p", &params, &own).await.unwrap();
        let ephemeral = json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "i",
            "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]}});
        let patch = Patch::Strategic(ephemeral);
        let attached = world
            .pods()
            .patch_subresource("ephemeralcontainers", "p", &params, &patch)
            .await
            .unwrap();
        let env = json!(attached.spec)["ephemeralContainers"][0]["env"].clone();
        assert_eq!(
            env,
            json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])
        );
        let now = world.pods().get("p").await.unwrap();
        assert_eq!(annotation(&now, ALLOCATED), annotation(&placed, ALLOCATED));
    });
}

#[test]
fn no_pod_is_refused_while_replicas_rotate_and_one_leaves() {
    within(async |world| {
        serve(world, &[1, 2]).await;
        // The authority is replaced after 10 s.
        let brief = [
            "--ca-lifetime=15s",
            "--certificate-lifetime=8s",
            "--ca-settle=1s",
            "--ca-overlap=10s",
        ];
        let mut first = start_webhook(world, 1, &brief);
        let mut second = start_webhook(world, 2, &brief);
        ready(world, 1).await;
        ready(world, 2).await;
        until_asked(world).await;
        let secrets: Api<Secret> = Api::namespaced(world.client.clone(), SYSTEM);
        let authority =
            async || secrets.get("vgpu-webhook-ca").await.unwrap().data.unwrap()["ca.crt"].clone();
        let before = authority().await;

        let mut asked = 0;
        let mut rotated = 0;
        let mut last = before;
        while rotated < 2 {
            first.assert_runs();
            second.assert_runs();
            try_make(world, &ours("p")).await.unwrap_or_else(|error| {
                panic!("after {asked} pods and {rotated} rotations: {error}")
            });
            asked += 1;
            let now = authority().await;
            if now != last {
                rotated += 1;
                last = now;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }

        // As a rollout ends one: it is no endpoint any more, then it stops.
        serve(world, &[2]).await;
        first.terminate();
        for _ in 0..20 {
            try_make(world, &ours("p")).await.unwrap();
            asked += 1;
        }
        println!("  {asked} pods were admitted over {rotated} rotations");
    });
}

#[test]
fn deleted_or_broken_objects_are_restored() {
    within(async |world| {
        let _webhook = one(world).await;
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(world.client.clone());
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(world.client.clone());
        let secrets: Api<Secret> = Api::namespaced(world.client.clone(), SYSTEM);

        mutating
            .delete("vgpu-webhook", &DeleteParams::default())
            .await
            .unwrap();
        world
            .eventually("the configuration is back", async || {
                mutating.get_opt("vgpu-webhook").await.unwrap().map(drop)
            })
            .await;
        until_asked(world).await;

        let wrong = Patch::Json::<()>(from(
            json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"},
            {"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]),
        ));
        validating
            .patch("vgpu-webhook", &PatchParams::default(), &wrong)
            .await
            .unwrap();
        world
            .eventually("the configuration is as it was", async || {
                let now = validating.get("vgpu-webhook").await.unwrap().webhooks?;
                let first = now.first()?;
                (first.failure_policy.as_deref() == Some("Fail")
                    && first.client_config.ca_bundle.is_some())
                .then_some(())
            })
            .await;

        secrets
            .delete("vgpu-webhook-ca", &DeleteParams::default())
            .await
            .unwrap();
        for _ in 0..30 {
            try_make(world, &ours("p")).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        world
            .eventually("there is a new authority", async || {
                secrets.get_opt("vgpu-webhook-ca").await.unwrap().map(drop)
            })
            .await;
        try_make(world, &pod("whole", whole(1))).await.unwrap();
    });
}
