//! The question of a cluster autoscaler: would this pod fit an existing node, or one that does not exist yet?

use std::process::Command;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::agent;
use crate::world::{NAME, World, gpu_pod, run, share, within};

/// Asks the extender where kube-scheduler asks it: on loopback, in the network of their pod.
fn filter(world: &World, pod: &Value, nodes: &[Value]) -> Value {
    let body =
        json!({"Pod": pod, "Nodes": {"kind": "NodeList", "apiVersion": "v1", "items": nodes}});
    let file = world.run.join("filter.json");
    std::fs::write(&file, body.to_string()).unwrap();
    let [process] = agent::processes("vgpu-scheduler")[..] else {
        panic!("vgpu-scheduler runs elsewhere");
    };
    let answer = run(Command::new("nsenter").args([
        "--target",
        &process.to_string(),
        "--net",
        "curl",
        "-sSf",
        "-H",
        "content-type: application/json",
        "--data",
        &format!("@{}", file.display()),
        "http://127.0.0.1:8080/filter",
    ]));
    serde_json::from_str(&answer.unwrap()).unwrap()
}

fn names(answer: &Value) -> Vec<&str> {
    let named = answer["NodeNames"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    let items = answer["Nodes"]["items"].as_array().into_iter().flatten();
    named
        .chain(items.filter_map(|node| node["metadata"]["name"].as_str()))
        .collect()
}

#[test]
fn autoscaler_learns_whether_a_hypothetical_node_would_fit() {
    within(async |world| {
        let nodes: Api<Node> = Api::all(world.client.clone());
        let own = serde_json::to_value(nodes.get(NAME).await.unwrap()).unwrap();
        // The copy of a node of the group with which an autoscaler asks about one more node; and, if the group has no
        // node, the template that its operator wrote.
        let mut copy = own.clone();
        copy["metadata"]["name"] = json!("template-1");
        let mut bare = copy.clone();
        bare["metadata"]["name"] = json!("template-without-gpus");
        bare["metadata"]["annotations"] = json!({});
        let question = |memory: u64| {
            let mut pod = gpu_pod("asked", &share(memory), &["hold"]);
            pod["metadata"]["uid"] = json!(format!("00000000-0000-4000-8000-{memory:012}"));
            pod["spec"]["schedulerName"] = json!("hami-scheduler");
            pod
        };

        let fits = filter(world, &question(9000), &[copy.clone()]);
        let misfits = filter(world, &question(99_000), &[copy.clone()]);
        let empty = filter(world, &question(9000), &[bare]);

        assert_eq!(names(&fits), ["template-1"], "{fits}");
        assert!(names(&misfits).is_empty(), "{misfits}");
        assert!(names(&empty).is_empty(), "{empty}");
        let pods: Api<Pod> = Api::default_namespaced(world.client.clone());
        assert!(
            pods.list(&ListParams::default())
                .await
                .unwrap()
                .items
                .is_empty()
        );
        // A question reserves nothing that a pod could miss: all of the node is still to be had.
        let whole =
            json!({"nvidia.com/gpu": world.board.gpus(), "nvidia.com/gpumem-percentage": 100});
        world
            .make_pod(gpu_pod("all", &whole, &["count", "hold"]))
            .await;
        let said = world.said("all", 2).await;
        assert_eq!(said["count"], world.board.gpus().to_string());
    });
}
