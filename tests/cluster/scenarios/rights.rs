//! The rights that the chart gives, tried with tokens of its accounts on a real API server. The chart is installed under
//! another name than the tests' own roles, and without its programs.

use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::core::{ApiResource, GroupVersionKind};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::http::ask_as;
use crate::objects::{Gpus, from, gpu_with, pod};
use crate::programs::Program;
use crate::world::{SYSTEM, World, within};

/// The kinds of the chart's objects that say what an account may do, and their tokens.
const KINDS: [&str; 8] = [
    "ServiceAccount",
    "Secret",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// What keeps an agent to its own node.
const POLICIES: &str = "ValidatingAdmissionPolicy, and the node in a pod's token";

/// The rights that the chart gives; removed when this is dropped.
pub(crate) struct Rights<'a> {
    world: &'a World,
    file: String,
}

impl<'a> Rights<'a> {
    /// Installs the chart's rights as those of the release `own`.
    pub(crate) fn install(world: &'a World, values: &[&str]) -> Self {
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/vgpu");
        let rendered = Command::new(world.bin.join("helm"))
            .args(["template", "own", chart, "--namespace", SYSTEM])
            .args([
                "--kube-version",
                &world.version,
                "--set",
                "fullnameOverride=own",
            ])
            .args(values)
            .output()
            .unwrap();
        assert!(rendered.status.success(), "{rendered:?}");
        let text = String::from_utf8(rendered.stdout).unwrap();
        let objects: Vec<Value> = text
            .split("\n---\n")
            .filter(|text| {
                KINDS
                    .iter()
                    .any(|kind| text.contains(&format!("\nkind: {kind}\n")))
            })
            .map(|text| serde_saphyr::from_str(text).unwrap())
            .collect();
        assert!(objects.len() > 10, "{objects:?}");
        let file = world.log("rights").with_extension("json");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        std::fs::write(&file, list.to_string()).unwrap();
        let file = file.display().to_string();
        let (done, said) = world.kubectl("admin", &["apply", "-f", &file]);
        assert!(done, "{said}");
        Self { world, file }
    }
}

impl Drop for Rights<'_> {
    fn drop(&mut self) {
        self.world
            .kubectl("admin", &["delete", "--ignore-not-found", "-f", &self.file]);
    }
}

/// A client with a token of this account; with `pod`, one that belongs to that pod, as the kubelet asks it.
pub(crate) async fn client_with(world: &World, account: &str, pod: Option<&Pod>) -> Client {
    world.client_with(&token(world, account, pod).await).await
}

/// A token of this account, as [`client_with`] uses it.
pub(crate) async fn token(world: &World, account: &str, pod: Option<&Pod>) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(world.client.clone(), SYSTEM);
    let bound = pod.map(|pod| {
        json!({"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid})
    });
    let request: TokenRequest =
        from(json!({"metadata": {}, "spec": {"audiences": [], "boundObjectRef": bound}}));
    let answer = accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await
        .unwrap();
    answer.status.unwrap().token
}

/// The agent's pod on this node.
async fn agent_on(world: &World, node: &str) -> Pod {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), SYSTEM);
    let agent = json!({
        "metadata": {"generateName": format!("agent-on-{node}-")},
        "spec": {"nodeName": node, "serviceAccountName": "own-monitor",
            "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "plugin", "image": "i"}]},
    });
    pods.create(&PostParams::default(), &from(agent))
        .await
        .unwrap()
}

/// A merge patch of `path` below `/api/v1`: 200, or the code and the message of the refusal.
async fn patch(client: &Client, path: &str, change: &Value) -> (u16, String) {
    let request = http::Request::patch(format!("/api/v1/{path}"))
        .header("content-type", "application/merge-patch+json");
    send(client, request, change).await
}

/// The code of the answer, and what it says.
async fn send(client: &Client, request: http::request::Builder, body: &Value) -> (u16, String) {
    let request = request.body(body.to_string().into_bytes()).unwrap();
    let answer = client.send(request.map(Body::from)).await.unwrap();
    let code = answer.status().as_u16();
    let body = answer.into_body().collect_bytes().await.unwrap();
    (code, String::from_utf8_lossy(&body).into_owned())
}

async fn post(client: &Client, path: &str, object: &Value) -> (u16, String) {
    let request = http::Request::post(path).header("content-type", "application/json");
    send(client, request, object).await
}

async fn delete(client: &Client, path: &str) -> (u16, String) {
    let request = http::Request::delete(path).header("content-type", "application/json");
    send(client, request, &json!({})).await
}

/// Applies an object as a program would, whether it exists or not.
async fn apply(client: &Client, namespace: Option<&str>, object: &Value) -> u16 {
    let (group, version) = object["apiVersion"]
        .as_str()
        .unwrap()
        .split_once('/')
        .unwrap();
    let kind = GroupVersionKind::gvk(group, version, object["kind"].as_str().unwrap());
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let name = object["metadata"]["name"].as_str().unwrap();
    let answer = api
        .patch(
            name,
            &PatchParams::apply("test").force(),
            &Patch::Apply(object),
        )
        .await;
    code(answer)
}

fn code<T>(answer: kube::Result<T>) -> u16 {
    match answer {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
    }
}

fn annotate(key: &str, value: Value) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

#[test]
fn an_agent_that_reports_capacity_writes_its_resources_alone() {
    within(async |world| {
        if !world.has(30, POLICIES) {
            return;
        }
        world.make_nodes(["mine", "other"], &Gpus::default()).await;
        let report = |amount: Value| {
            json!({"metadata": {"annotations": {"vgpu.io/reported-capacity": "nvidia.com/gpucores,nvidia.com/gpumem"}},
                "status": {"capacity": {"nvidia.com/gpumem": amount, "nvidia.com/gpucores": amount},
                    "allocatable": {"nvidia.com/gpumem": amount, "nvidia.com/gpucores": amount}}})
        };
        let (mine, other) = ("nodes/mine/status", "nodes/other/status");
        let sizes = async || {
            let status = world.nodes().get("mine").await.unwrap().status.unwrap();
            let amount = |of: Option<std::collections::BTreeMap<String, Quantity>>| {
                of.unwrap_or_default()
                    .remove("nvidia.com/gpumem")
                    .map(|it| it.0)
            };
            (amount(status.capacity), amount(status.allocatable))
        };
        for reports in [true, false] {
            let value = format!("devicePlugin.reportCapacity={reports}");
            let rights = Rights::install(world, &["--set", &value]);
            let agent = agent_on(world, "mine").await;
            let client = client_with(world, "own-monitor", Some(&agent)).await;
            let mut tries = 0;
            world
                .eventually("the API server knows the policies", async || {
                    tries += 1;
                    let probe = annotate("example.com/probe", json!(tries.to_string()));
                    let amount =
                        json!({"status": {"capacity": {"nvidia.com/gpucores": tries.to_string()}}});
                    let refused = patch(&client, mine, &probe).await.0 == 403;
                    let capacity = patch(&client, mine, &amount).await.0;
                    (refused && capacity == if reports { 200 } else { 403 }).then_some(())
                })
                .await;

            if reports {
                let (code, said) = patch(&client, mine, &report(json!("81920"))).await;
                assert_eq!(code, 200, "{said}");
                let stands = sizes().await;
                assert_eq!(stands, (Some("81920".to_owned()), Some("81920".to_owned())));
            }
            for change in [
                json!({"status": {"capacity": {"nvidia.com/gpu": "1000"}}}),
                json!({"status": {"allocatable": {"cpu": "1000"}}}),
                json!({"status": {"capacity": {"cpu": null}}}),
                json!({"status": {"capacity": {"nvidia.com/gpumem": "1"}, "nodeInfo": {"kubeletVersion": "v9"}}}),
                json!({"status": {"capacity": {"nvidia.com/gpumem": "1"}, "phase": "Running"}}),
            ] {
                let (code, said) = patch(&client, mine, &change).await;
                assert_eq!(code, 403, "{reports} {change}: {said}");
            }
            let (code, said) = patch(&client, other, &report(json!("81920"))).await;
            assert_eq!(code, 403, "{said}");
            if !reports {
                // What the agent before has reported goes.
                let (code, said) = patch(&client, mine, &report(json!(null))).await;
                assert_eq!(code, 200, "{said}");
                assert_eq!(sizes().await, (None, None));
            }
            drop(rights);
        }
    });
}

#[test]
fn the_agents_token_is_good_for_its_own_node_and_the_annotations_it_writes_alone() {
    within(async |world| {
        if !world.has(30, POLICIES) {
            return;
        }
        let _rights = Rights::install(world, &[]);
        world.make_nodes(["mine", "other"], &Gpus::default()).await;
        let mut held = pod("held", json!({}));
        held["spec"]["nodeName"] = json!("mine");
        held["metadata"]["annotations"] = json!({"hami.io/vgpu-devices-to-allocate": "GPU-1,NVIDIA,1000,10:;",
            "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1000,10:;"});
        world.make_pod(held).await;
        let mut far = pod("far", json!({}));
        far["spec"]["nodeName"] = json!("other");
        world.make_pod(far).await;
        let agent = agent_on(world, "mine").await;
        let client = client_with(world, "own-monitor", Some(&agent)).await;
        let (mine, held) = ("nodes/mine/status", "namespaces/default/pods/held/status");
        let (other, far) = ("nodes/other/status", "namespaces/default/pods/far/status");

        // The API server learns of a policy by a watch. A change that changes nothing is always taken.
        let mut tries = 0;
        world
            .eventually("the API server knows the policies", async || {
                tries += 1;
                let probe = annotate("example.com/probe", json!(tries.to_string()));
                let nodes = patch(&client, mine, &probe).await.0;
                let pods = patch(&client, held, &probe).await.0;
                let lease = apply(&client, Some(SYSTEM), &lease("probe", "mine")).await;
                ([nodes, pods, lease] == [403; 3]).then_some(())
            })
            .await;

        for (path, change) in [
            (
                mine,
                annotate(
                    "hami.io/node-nvidia-register",
                    json!("GPU-9,10,16384,100,NVIDIA A,0,true:"),
                ),
            ),
            (mine, annotate("hami.io/node-nvidia-score", json!("[]"))),
            (mine, annotate("hami.io/node-nvidia-score", json!(null))),
            (
                mine,
                annotate(
                    "hami.io/node-handshake-nvidia",
                    json!("Reported 2024-01-23 04:30:04"),
                ),
            ),
            (held, annotate("hami.io/bind-phase", json!("success"))),
            (
                held,
                annotate("hami.io/vgpu-devices-to-allocate", json!(";")),
            ),
            (held, annotate("hami.io/vgpu-mig-allocations", json!("[]"))),
        ] {
            let (code, said) = patch(&client, path, &change).await;
            assert_eq!(code, 200, "{path} {change}: {said}");
        }
        let before = (
            world.nodes().get("mine").await.unwrap(),
            world.pods().get("held").await.unwrap(),
        );
        let owner = json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Namespace", "name": "none",
            "uid": "00000000-0000-0000-0000-000000000000"}]}});
        for (path, change) in [
            // Their specs, straight and through the status.
            ("nodes/mine", json!({"spec": {"unschedulable": true}})),
            (
                "nodes/mine",
                annotate("hami.io/node-nvidia-score", json!("[]")),
            ),
            (
                "namespaces/default/pods/held",
                json!({"spec": {"activeDeadlineSeconds": 1}}),
            ),
            (
                "namespaces/default/pods/held",
                annotate("hami.io/bind-phase", json!("failed")),
            ),
            // Keys that kubelets and controllers write there.
            (
                mine,
                json!({"status": {"capacity": {"nvidia.com/gpu": "1000"}}}),
            ),
            // What it reports only with devicePlugin.reportCapacity.
            (
                mine,
                json!({"status": {"capacity": {"nvidia.com/gpumem": "1000"}}}),
            ),
            (
                mine,
                json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
            ),
            (mine, json!({"metadata": {"finalizers": ["example.com/f"]}})),
            (mine, owner.clone()),
            (held, json!({"status": {"phase": "Failed"}})),
            (held, json!({"metadata": {"labels": {"app": "other"}}})),
            (held, json!({"metadata": {"finalizers": ["example.com/f"]}})),
            // Other programs' annotations, and those by which the scheduler gives.
            (mine, annotate("hami.io/device-cordon", json!("GPU-1"))),
            (mine, annotate("vgpu.io/capacity-freed", json!("1"))),
            (
                held,
                annotate(
                    "hami.io/vgpu-devices-allocated",
                    json!("GPU-2,NVIDIA,80000,100:;"),
                ),
            ),
            (
                held,
                annotate(
                    "hami.io/vgpu-devices-to-allocate",
                    json!("GPU-2,NVIDIA,80000,100:;"),
                ),
            ),
            (
                held,
                annotate("hami.io/vgpu-devices-allocated", json!(null)),
            ),
            // Objects that are not on its node.
            (other, annotate("hami.io/node-nvidia-register", json!(""))),
            (far, annotate("hami.io/bind-phase", json!("success"))),
        ] {
            let (code, said) = patch(&client, path, &change).await;
            assert_eq!(code, 403, "{path} {change}: {said}");
        }
        // The API server takes a spec through the status, and leaves the spec as it was.
        patch(&client, mine, &json!({"spec": {"unschedulable": true}})).await;
        patch(
            &client,
            held,
            &json!({"spec": {"activeDeadlineSeconds": 1}}),
        )
        .await;
        patch(&client, held, &owner).await;
        let after = (
            world.nodes().get("mine").await.unwrap(),
            world.pods().get("held").await.unwrap(),
        );
        assert_eq!(after.0.spec, before.0.spec);
        assert_eq!(after.0.metadata.annotations, before.0.metadata.annotations);
        assert_eq!(after.1.spec, before.1.spec);
        assert_eq!(after.1.metadata.annotations, before.1.metadata.annotations);
        assert_eq!(after.1.metadata.owner_references, None);

        for (name, holder, expected) in [
            ("vgpu-agent-mine", "mine", 200),
            ("vgpu-agent-mine", "mine", 200),
            ("vgpu-agent-other", "mine", 403),
            ("vgpu-agent-other", "other", 403),
            ("hami-scheduler", "mine", 403),
        ] {
            let code = apply(&client, Some(SYSTEM), &lease(name, holder)).await;
            assert_eq!(code, expected, "Lease {name} held by {holder}");
        }
        let code = apply(&client, Some("default"), &lease("vgpu-agent-mine", "mine")).await;
        assert_eq!(code, 403, "a Lease in another namespace");

        for (component, kind, name, expected) in [
            ("vgpu-monitor", "Node", "mine", 201),
            ("vgpu-monitor", "Pod", "held", 201),
            ("vgpu-monitor", "Node", "other", 403),
            ("vgpu-monitor", "Secret", "held", 403),
            ("kubelet", "Pod", "held", 403),
        ] {
            let event = json!({"metadata": {"generateName": "e"}, "source": {"component": component}, "reason": "R",
                "involvedObject": {"kind": kind, "name": name, "namespace": if kind == "Node" { "" } else { "default" }}});
            let request = http::Request::post("/api/v1/namespaces/default/events")
                .header("content-type", "application/json")
                .body(Body::from(event.to_string().into_bytes()))
                .unwrap();
            let code = client.send(request).await.unwrap().status();
            assert_eq!(
                code, expected,
                "an event of {component} about {kind} {name}"
            );
        }

        // A token of the same account that no kubelet asked for a pod names no node.
        let stray = client_with(world, "own-monitor", None).await;
        let (code, said) = patch(
            &stray,
            mine,
            &annotate("hami.io/node-nvidia-score", json!("[]")),
        )
        .await;
        assert_eq!(code, 403, "{said}");
        assert!(said.contains("names no node"), "{said}");
    });
}

fn pod_path(pod: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{pod}")
}

/// Asks for the eviction of a pod; `query` is that of the request.
async fn evict(client: &Client, pod: &str, query: &str) -> (u16, String) {
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}});
    let path = format!("{}/eviction{query}", pod_path(pod));
    post(client, &path, &eviction).await
}

/// The API server tells a policy nothing of the pod of an eviction, and all of the pod of a deletion.
#[test]
fn an_agent_that_evicts_deletes_pods_of_its_own_node_alone() {
    within(async |world| {
        if !world.has(30, POLICIES) {
            return;
        }
        let values = "devicePlugin.monitor.attest=evict,devicePlugin.monitor.evictDryRun=false";
        let _rights = Rights::install(world, &["--set", values]);
        world.make_nodes(["mine", "other"], &Gpus::default()).await;
        let on = |name: &str, node: &str| {
            let mut pod = pod(name, json!({}));
            pod["spec"]["nodeName"] = json!(node);
            pod
        };
        for (name, node) in [("held", "mine"), ("far", "other")] {
            world.make_pod(on(name, node)).await;
        }
        world.make_pod(pod("waiting", json!({}))).await;
        let agent = agent_on(world, "mine").await;
        let client = client_with(world, "own-monitor", Some(&agent)).await;

        // A pod that may end before the API server knows the policies.
        world
            .eventually("the API server knows the policies", async || {
                let probe = from(on("probe", "other"));
                drop(world.pods().create(&PostParams::default(), &probe).await);
                let evicted = evict(&client, "probe", "").await.0;
                let deleted = delete(&client, &pod_path("probe")).await.0;
                ([evicted, deleted] == [403; 2]).then_some(())
            })
            .await;

        for pod in ["held", "far"] {
            let (code, said) = evict(&client, pod, "").await;
            assert_eq!(code, 403, "{pod}: {said}");
            assert!(said.contains("dry run"), "{said}");
            let (code, said) = evict(&client, pod, "?dryRun=All").await;
            assert_eq!(code, 201, "{pod}: {said}");
            let stays = world.pods().get(pod).await.unwrap();
            assert_eq!(stays.metadata.deletion_timestamp, None, "{pod}");
        }
        for (pod, expected) in [("far", 403), ("waiting", 403), ("held", 200)] {
            let (code, said) = delete(&client, &pod_path(pod)).await;
            assert_eq!(code, expected, "{pod}: {said}");
        }
        let (code, said) = delete(&client, "/api/v1/namespaces/default/pods").await;
        assert_eq!(code, 403, "all pods: {said}");

        // A token that names no node asks for nothing.
        let stray = client_with(world, "own-monitor", None).await;
        let (code, said) = evict(&stray, "far", "?dryRun=All").await;
        assert_eq!(code, 403, "{said}");
        assert!(said.contains("names no node"), "{said}");
    });
}

#[test]
fn an_agent_describes_its_own_node_alone_in_hcs_io() {
    within(async |world| {
        if !world.has(30, POLICIES) {
            return;
        }
        crate::hcs::define(world);
        let _rights = Rights::install(world, &["--set", "hcs.enabled=true"]);
        world.make_nodes(["mine", "other"], &Gpus::default()).await;
        let agent = agent_on(world, "mine").await;
        let client = client_with(world, "own-monitor", Some(&agent)).await;
        let all = "/apis/hcs.io/v1alpha1";
        let example: Value =
            serde_saphyr::from_str(include_str!("../../../examples/hcs/compute-node.yaml"))
                .unwrap();
        let described = |name: &str| {
            let mut node = example.clone();
            node["metadata"] = json!({"name": name});
            let topology = json!({"apiVersion": "hcs.io/v1alpha1", "kind": "ComputeTopology",
                "metadata": {"name": name}, "spec": {"nodeName": name, "devices": []}});
            [
                (format!("{all}/computenodes"), node),
                (format!("{all}/computetopologies"), topology),
            ]
        };

        world
            .eventually("the API server knows the policy", async || {
                let mut refused = 0;
                for (path, object) in described("other") {
                    let path = format!("{path}?dryRun=All");
                    refused += u8::from(post(&client, &path, &object).await.0 == 403);
                }
                (refused == 2).then_some(())
            })
            .await;

        for (path, object) in described("mine") {
            let (code, said) = post(&client, &path, &object).await;
            assert_eq!(code, 201, "{path}: {said}");
        }
        for (path, object) in described("other") {
            let (code, said) = post(&client, &path, &object).await;
            assert_eq!(code, 403, "{path}: {said}");
            let (code, said) = post(&world.client, &path, &object).await;
            assert_eq!(code, 201, "{path}: {said}");
        }
        for (name, expected) in [("mine", 200), ("other", 403)] {
            for (path, _) in described(name) {
                for part in ["", "/status"] {
                    let path = format!("{path}/{name}{part}");
                    let read = http::Request::get(&path).body(Body::empty()).unwrap();
                    let read = world.client.send(read).await.unwrap();
                    let read = read.into_body().collect_bytes().await.unwrap();
                    let object: Value = serde_json::from_slice(&read).unwrap();
                    let write =
                        http::Request::put(&path).header("content-type", "application/json");
                    let (code, said) = send(&client, write, &object).await;
                    assert_eq!(code, expected, "{path}: {said}");
                }
            }
        }
        for name in ["mine", "other"] {
            for (path, _) in described(name) {
                let (code, said) = delete(&world.client, &format!("{path}/{name}")).await;
                assert_eq!(code, 200, "{said}");
            }
        }
    });
}

#[test]
fn an_agent_writes_resource_slices_of_its_own_node_and_driver_alone() {
    within(async |world| {
        if !world.has(34, "claims that share a device") {
            return;
        }
        let _rights = Rights::install(world, &["--set", "dra.enabled=true"]);
        world.make_nodes(["mine", "other"], &Gpus::default()).await;
        let agent = agent_on(world, "mine").await;
        let client = client_with(world, "own-monitor", Some(&agent)).await;
        let all = "/apis/resource.k8s.io/v1/resourceslices";
        let slice = |name: &str, node: &str, pool: &str, driver: &str| {
            json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
                "spec": {"driver": driver, "nodeName": node, "devices": [],
                    "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}}})
        };
        let own = slice("own", "mine", "mine", "gpu.vgpu.io");
        let foreign = [
            slice("far", "other", "other", "gpu.vgpu.io"),
            slice("pool", "mine", "other", "gpu.vgpu.io"),
            slice("driver", "mine", "mine", "gpu.nvidia.com"),
        ];

        let tried = format!("{all}?dryRun=All");
        world
            .eventually("the API server knows the policy", async || {
                (post(&client, &tried, &foreign[0]).await.0 == 403).then_some(())
            })
            .await;

        for slice in &foreign {
            let (code, said) = post(&client, all, slice).await;
            assert_eq!(code, 403, "{slice}: {said}");
            let (code, said) = post(&world.client, all, slice).await;
            assert_eq!(code, 201, "{slice}: {said}");
            let path = format!("{all}/{}", slice["metadata"]["name"].as_str().unwrap());
            let (code, said) = delete(&client, &path).await;
            assert_eq!(code, 403, "{path}: {said}");
            let (code, said) = delete(&world.client, &path).await;
            assert_eq!(code, 200, "{path}: {said}");
        }
        let (code, said) = post(&client, all, &own).await;
        assert_eq!(code, 201, "{said}");
        let (code, said) = delete(&client, &format!("{all}/own")).await;
        assert_eq!(code, 200, "{said}");
    });
}

fn lease(name: &str, holder: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 120}})
}

#[test]
fn the_webhooks_token_is_good_for_its_own_configurations_alone() {
    within(async |world| {
        let _rights = Rights::install(world, &[]);
        let client = client_with(world, "own-webhook", None).await;
        for kind in [
            "MutatingWebhookConfiguration",
            "ValidatingWebhookConfiguration",
        ] {
            let configuration = |name: &str| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "webhooks": []});
            // Made, and changed.
            for _ in 0..2 {
                assert_eq!(
                    apply(&client, None, &configuration("own-webhook")).await,
                    200,
                    "{kind}"
                );
            }
            let code = apply(&client, None, &configuration("another")).await;
            assert_eq!(code, 403, "{kind} of another name");

            let plural = format!("{}s", kind.to_lowercase());
            let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}");
            let request = http::Request::post(path)
                .header("content-type", "application/json")
                .body(Body::from(configuration("posted").to_string().into_bytes()))
                .unwrap();
            let code = client.send(request).await.unwrap().status();
            assert_eq!(code, 403, "{kind} by POST");
        }
    });
}

/// Where the scheduler of these tests serves `/metrics` and `/explain`.
const METRICS: u16 = 9395;

/// The scheduler, with the account and the rights that the chart gives it.
async fn start_scheduler(world: &World) -> Program {
    let token = token(world, "own-scheduler", None).await;
    let admin = std::fs::read_to_string(world.run.join("admin.kubeconfig")).unwrap();
    let file = world.log("own").with_extension("kubeconfig");
    let lines = admin.lines().map(|line| match line.find("token: ") {
        Some(at) => format!("{}token: {token}}}}}]\n", &line[..at]),
        None => format!("{line}\n"),
    });
    std::fs::write(&file, lines.collect::<String>()).unwrap();
    let arguments = [
        format!("--kubeconfig={}", file.display()),
        "--http_bind=127.0.0.1:8080".to_owned(),
        "--leader-elect=false".to_owned(),
        format!("--metrics-bind-address=0.0.0.0:{METRICS}"),
    ];
    let program = world.ours.join("vgpu-scheduler");
    let scheduler = Program::start(world, "one", program, arguments);
    world
        .eventually("the scheduler is ready", async || {
            let answer = ask_as(METRICS, "/readyz", None).await?;
            (answer.0 == 200).then_some(())
        })
        .await;
    scheduler
}

/// The API server, stopped; it goes on when this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn api_server(world: &World) -> Self {
        let file = world.run.join("pids/kube-apiserver");
        let number = std::fs::read_to_string(file).unwrap();
        let pid = Pid::from_raw(number.trim().parse().unwrap());
        kill(pid, Signal::SIGSTOP).unwrap();
        // On a busy machine its threads go on until the one that takes the signal gets a processor.
        while !is_stopped(pid) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Self(pid)
    }
}

/// Whether every thread of the process is stopped.
fn is_stopped(pid: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_none_or(|(_, fields)| fields.starts_with('T'))
    })
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.0, Signal::SIGCONT).ok();
    }
}

#[test]
fn metrics_and_explain_are_for_accounts_with_the_right() {
    within(async |world| {
        let rights = Rights::install(world, &["--set", "prometheus.enabled=true"]);
        world.make_nodes(["a"], &Gpus::default()).await;
        world.make_pod(pod("asked", gpu_with(1000))).await;
        let _scheduler = start_scheduler(world).await;
        // As Prometheus gets it: the Secret that the ServiceMonitor names.
        let secrets: Api<Secret> = Api::namespaced(world.client.clone(), SYSTEM);
        let prometheus = world
            .eventually(
                "the API server has put the token into the Secret",
                async || {
                    let token = secrets
                        .get("own-metrics")
                        .await
                        .unwrap()
                        .data?
                        .remove("token")?;
                    String::from_utf8(token.0).ok()
                },
            )
            .await;
        let (bound, said) = world.kubectl(
            "admin",
            &[
                "create",
                "clusterrolebinding",
                "own-reader",
                "--clusterrole=own-explain",
                "--user=reader-of-explain",
                &format!("--serviceaccount={SYSTEM}:own-webhook"),
            ],
        );
        assert!(bound, "{said}");
        let reader = token(world, "own-webhook", None).await;
        let without = token(world, "own-monitor", None).await;
        // Another signature.
        let (claims, signature) = without.rsplit_once('.').unwrap();
        let forged: String = signature.chars().rev().collect();
        let forged = format!("{claims}.{forged}");
        let explain = "/explain?pod=default/asked";

        for (path, token, code, says) in [
            ("/metrics", Some(&prometheus), 200, "vgpu_"),
            (
                explain,
                Some(&prometheus),
                403,
                "own-metrics may not read /explain",
            ),
            (explain, Some(&reader), 200, "\"verdict\""),
            ("/metrics", Some(&reader), 403, "nonResourceURLs [/metrics]"),
            (
                "/metrics",
                Some(&without),
                403,
                "own-monitor may not read /metrics",
            ),
            (
                explain,
                Some(&without),
                403,
                "own-monitor may not read /explain",
            ),
            ("/metrics", Some(&forged), 401, "does not know this token"),
            (explain, Some(&forged), 401, "does not know this token"),
            ("/metrics", None, 401, "asks for a token"),
            (explain, None, 401, "asks for a token"),
            ("/healthz", None, 200, ""),
        ] {
            let (status, said) = ask_as(METRICS, path, token.map(String::as_str))
                .await
                .unwrap();
            assert_eq!(status, code, "{path}: {said}");
            assert!(said.contains(says), "{path}: {said}");
        }
        // In the scheduler's own pod no token is asked for: kube-scheduler beside it has none.
        let (status, said) = ask_as(8080, "/metrics", None).await.unwrap();
        assert_eq!(status, 200, "{said}");

        // A token that was never asked about, while the API server is silent: neither let in nor left waiting.
        let late = token(world, "own-metrics", None).await;
        let stopped = Stopped::api_server(world);
        let answer = ask_as(METRICS, "/metrics", Some(&late)).await;
        drop(stopped);
        let (status, said) = answer.unwrap();
        assert_eq!(status, 503, "{said}");
        assert!(said.contains("no answer from the API server"), "{said}");
        world
            .eventually("it is let in again", async || {
                let answer = ask_as(METRICS, "/metrics", Some(&late)).await?;
                (answer.0 == 200).then_some(())
            })
            .await;
        world.kubectl("admin", &["delete", "clusterrolebinding", "own-reader"]);
        drop(rights);
    });
}
