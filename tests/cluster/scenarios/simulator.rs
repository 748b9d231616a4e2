//! The simulator with a real cluster: the objects that it imports, follows and records, and that it writes nothing
//! there.

use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::http;
use crate::objects::{from, node};
use crate::programs::Program;
use crate::world::{World, within};

fn start(world: &World, host: &str, more: &[&str]) -> Program {
    let kubeconfig = world.run.join("admin.kubeconfig").display().to_string();
    let arguments = [
        "simulator",
        "--kubernetes-bind=off",
        "--kubeconfig",
        &kubeconfig,
    ];
    let all = arguments.iter().chain(more).copied();
    Program::start(world, host, world.ours.join("vgpu-scheduler"), all)
}

/// The simulator's export, once it answers.
async fn export() -> Option<Value> {
    let (status, body) = http::ask(1212, "GET", "/api/v1/export", None).await?;
    (status == 200).then(|| serde_json::from_str(&body).unwrap())
}

fn names(export: &Value, key: &str) -> Vec<String> {
    let objects = export[key].as_array().into_iter().flatten();
    objects
        .map(|object| object["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

fn plain_node(name: &str) -> Node {
    let room = json!({ "cpu": "4", "memory": "8Gi", "pods": "110" });
    from(
        json!({ "metadata": { "name": name, "annotations": { "kwok.x-k8s.io/node": "fake" } },
        "status": { "allocatable": room, "capacity": room } }),
    )
}

fn plain_pod(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "containers": [
        { "name": "c", "image": "i", "resources": { "requests": { "cpu": "100m" } } }] } })
}

#[test]
fn a_real_cluster_is_imported_followed_and_recorded() {
    within(async |world: &World| {
        let made = PostParams::default();
        world
            .nodes()
            .create(&made, &plain_node("sim-a"))
            .await
            .unwrap();
        world.make_pod(plain_pod("waits")).await;
        let mut runs = plain_pod("runs");
        runs["spec"]["nodeName"] = "sim-a".into();
        world.make_pod(runs).await;
        let file = world.log("recording");
        let file = file.to_str().unwrap();

        let mut program = start(
            world,
            "simulator",
            &[
                "--import-from-cluster",
                "--sync-from-cluster",
                "--record-cluster",
                file,
            ],
        );

        world
            .eventually("the pod that waits there has a node here", async || {
                let export = export().await?;
                let pods = export["pods"].as_array()?.iter();
                let on = |name: &str| {
                    pods.clone()
                        .find(|pod| pod["metadata"]["name"] == name)
                        .map(|pod| pod["spec"]["nodeName"].clone())
                };
                (on("waits")? == "sim-a" && on("runs")? == "sim-a").then_some(())
            })
            .await;
        let there = world.pods().get("waits").await.unwrap();
        assert!(
            node(&there).is_none(),
            "the simulator has written to the real cluster"
        );
        world
            .nodes()
            .create(&made, &plain_node("sim-b"))
            .await
            .unwrap();
        // The recorder has a watch of its own, which may begin later than the import's.
        world
            .eventually("the pod is in the recording", async || {
                let text = std::fs::read_to_string(file).ok()?;
                text.contains(r#""name":"waits""#).then_some(())
            })
            .await;
        let at_once = DeleteParams::default().grace_period(0);
        drop(world.pods().delete("waits", &at_once).await.unwrap());
        world
            .eventually("a change there is seen here", async || {
                let export = export().await?;
                let same = names(&export, "nodes") == ["sim-a", "sim-b"]
                    && names(&export, "pods") == ["runs"];
                same.then_some(())
            })
            .await;
        world
            .eventually("the deletion is in the recording", async || {
                let text = std::fs::read_to_string(file).ok()?;
                text.contains(r#""event":"Delete""#).then_some(())
            })
            .await;
        program.assert_runs();
        program.terminate();

        let replay = start(world, "replay", &["--replay", file]);
        world
            .eventually("the recording is replayed", async || {
                let export = export().await?;
                let same = names(&export, "nodes") == ["sim-a", "sim-b"]
                    && names(&export, "pods") == ["runs"];
                same.then_some(())
            })
            .await;
        drop(replay);
    });
}
