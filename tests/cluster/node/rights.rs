//! What the token of the agent that runs here is good for, on the API server that its policies are installed in.

use std::fs;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::client::Body;
use kube::config::{AuthInfo, Config, KubeConfigOptions, Kubeconfig};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::agent;
use crate::world::{NAME, SYSTEM, World, idle_container, name, pod_of, within};

/// Where a container finds the token of its pod's account.
const TOKEN: &str = "var/run/secrets/kubernetes.io/serviceaccount/token";
/// A Node that no kubelet keeps.
const OTHER: &str = "another";

/// The agent's pod on this node.
async fn agent_pod(world: &World) -> Pod {
    let label = ListParams::default().labels("app.kubernetes.io/component=agent");
    let pods = world.system().list(&label).await.unwrap().items;
    let mut live = pods.into_iter().filter(|pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        pod.metadata.deletion_timestamp.is_none() && node == Some(NAME)
    });
    live.next().expect("the agent runs on this node")
}

/// Where a process's container has tokens: the mounts with a file of that name.
fn tokens(process: Pid) -> Vec<String> {
    let mounts = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap();
    let points = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|point| format!("/proc/{process}/root{point}/token"));
    points.filter(|file| fs::metadata(file).is_ok()).collect()
}

async fn client_with(world: &World, token: &str) -> Client {
    let file = Kubeconfig::read_from(world.run.join("admin.kubeconfig")).unwrap();
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .unwrap();
    config.auth_info = AuthInfo {
        token: Some(token.to_owned().into()),
        ..Default::default()
    };
    Client::try_from(config).unwrap()
}

/// A merge patch of this path: the answer's code, and what it says.
async fn patch(client: &Client, path: &str, change: &Value) -> (u16, String) {
    patch_as(client, path, "application/merge-patch+json", change).await
}

/// Applies a Lease of this name, whether there is one or not, as the agent does.
async fn apply_lease(client: &Client, name: &str) -> (u16, String) {
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {"holderIdentity": "the agent"}});
    let path = lease_path(name) + "?fieldManager=test&force=true";
    patch_as(client, &path, "application/apply-patch+yaml", &lease).await
}

async fn patch_as(client: &Client, path: &str, kind: &str, change: &Value) -> (u16, String) {
    let request = http::Request::patch(path)
        .header("content-type", kind)
        .body(Body::from(change.to_string().into_bytes()))
        .unwrap();
    let answer = client.send(request).await.unwrap();
    let code = answer.status().as_u16();
    let body = answer.into_body().collect_bytes().await.unwrap();
    (code, String::from_utf8_lossy(&body).into_owned())
}

fn annotate(key: &str, value: &Value) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

fn lease_path(lease: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{lease}")
}

/// A Node of another machine; removed when this is dropped.
struct Other<'a>(&'a World);

impl<'a> Other<'a> {
    async fn make(world: &'a World) -> Self {
        let nodes: Api<Node> = Api::all(world.client.clone());
        drop(nodes.delete(OTHER, &DeleteParams::default()).await);
        let node = json!({"metadata": {"name": OTHER}, "spec": {"unschedulable": true}});
        let node = serde_json::from_value(node).unwrap();
        drop(nodes.create(&PostParams::default(), &node).await.unwrap());
        Self(world)
    }
}

impl Drop for Other<'_> {
    fn drop(&mut self) {
        let words = ["delete", "node", OTHER, "--ignore-not-found"];
        drop(self.0.kubectl(&words));
    }
}

#[test]
fn the_running_agents_token_is_good_for_its_own_node_alone() {
    within(async |world| {
        let version = world.client.apiserver_version().await.unwrap();
        let minor: String = version.minor.chars().filter(char::is_ascii_digit).collect();
        if minor.parse::<u32>().unwrap() < 30 {
            println!(
                "left out: Kubernetes 1.{minor} has no ValidatingAdmissionPolicies, so an agent is not kept to its node"
            );
            return;
        }
        let agent = agent_pod(world).await;
        let plugin = agent::process_of(&agent, "plugin");
        let token = fs::read_to_string(format!("/proc/{plugin}/root/{TOKEN}")).unwrap();
        let client = client_with(world, token.trim()).await;
        let _other = Other::make(world).await;
        world
            .make_pod(pod_of("held", &[idle_container("work", &json!({}))]))
            .await;
        world.until_ready("held").await;
        let mine = format!("/api/v1/nodes/{NAME}/status");
        let other = format!("/api/v1/nodes/{OTHER}/status");
        let held = "/api/v1/namespaces/default/pods/held";

        // The API server learns of a policy by a watch.
        let mut tries = 0;
        world
            .eventually("the API server knows the policies", async || {
                tries += 1;
                let probe = annotate("example.com/probe", &json!(tries.to_string()));
                let node = patch(&client, &mine, &probe).await.0;
                let pod = patch(&client, &format!("{held}/status"), &probe).await.0;
                let lease = apply_lease(&client, "hami-scheduler").await.0;
                ([node, pod, lease] == [403; 3]).then_some(())
            })
            .await;

        let change = json!({"spec": {"activeDeadlineSeconds": 1}});
        let attached =
            json!({"spec": {"ephemeralContainers": [idle_container("debug", &json!({}))]}});
        let score = annotate("hami.io/node-nvidia-score", &json!("[]"));
        let register = annotate("hami.io/node-nvidia-register", &json!(""));
        let agents_pod = format!("/api/v1/namespaces/{SYSTEM}/pods/{}", name(&agent));
        for (path, change) in [
            (held.to_owned(), &change),
            (agents_pod, &change),
            (format!("{held}/ephemeralcontainers"), &attached),
            (other.clone(), &score),
            (other, &register),
            (format!("/api/v1/nodes/{OTHER}"), &score),
            (
                format!("/api/v1/nodes/{NAME}"),
                &json!({"spec": {"unschedulable": true}}),
            ),
        ] {
            let (code, said) = patch(&client, &path, change).await;
            assert_eq!(code, 403, "{path} {change}: {said}");
        }
        for lease in ["hami-scheduler", &format!("vgpu-agent-{OTHER}")] {
            let (code, said) = apply_lease(&client, lease).await;
            assert_eq!(code, 403, "{lease}: {said}");
        }

        // What the agent does itself. The annotation is put back as it was.
        let nodes: Api<Node> = Api::all(world.client.clone());
        let before = nodes.get(NAME).await.unwrap().metadata.annotations;
        let before = json!(before.unwrap_or_default().get("hami.io/node-nvidia-score"));
        for value in [json!("[]"), json!("[[]]"), before] {
            let change = annotate("hami.io/node-nvidia-score", &value);
            let (code, said) = patch(&client, &mine, &change).await;
            assert_eq!(code, 200, "{change}: {said}");
        }
        let own = lease_path(&format!("vgpu-agent-{NAME}"));
        for value in [json!(1), json!(null)] {
            let change = json!({"spec": {"leaseTransitions": value}});
            let (code, said) = patch(&client, &own, &change).await;
            assert_eq!(code, 200, "{change}: {said}");
        }

        // The container that every process of the node is visible to has no token at all.
        let exporter = agent::process_of(&agent, "exporter");
        assert_eq!(tokens(plugin).len(), 1, "{:?}", tokens(plugin));
        assert_eq!(tokens(exporter), Vec::<String>::new());
        let file = format!("/proc/{exporter}/root/{TOKEN}");
        let missing = fs::metadata(file).unwrap_err();
        assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
    });
}
