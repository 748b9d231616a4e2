//! The leader's part in ComputeNodes: agents that are silent, and devices that no agent describes.

use std::time::{Duration, Instant};

use embedded_cluster::Cluster;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube_api::hcs::observed::{self, Observed, ObservedDevice};
use kube_api::hcs::{ComputeNode, ComputeTopology, LinkType, Phase, Vendor, condition, crd};
use scheduler::compute_nodes::{self, NodeCheckPace};
use scheduler::{Company, Scheduler};
use serde_json::{Value, json};

use crate::support::{Served, node};

const PATIENCE: Duration = Duration::from_secs(30);
const PACE: NodeCheckPace = NodeCheckPace {
    silence: Duration::from_secs(1),
    every: Duration::from_millis(20),
};

struct World {
    served: Served,
    client: kube::Client,
    keeping: tokio::task::JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

impl World {
    async fn start(nodes: Value) -> Self {
        let cluster = Cluster::default();
        cluster.import(&json!({ "nodes": nodes })).unwrap();
        let client = kube::Client::new(cluster.router(), "default");
        let served = Served::replica(&cluster, client.clone(), Company::none()).await;
        for definition in crd::definitions() {
            let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            let (status, answer) = served.send("POST", path, definition.to_string()).await;
            assert_eq!(status, 201, "{answer}");
        }
        let scheduler: Scheduler = served.scheduler.clone();
        Self {
            keeping: tokio::spawn(compute_nodes::keep(client.clone(), scheduler, PACE)),
            served,
            client,
        }
    }

    fn api(&self) -> Api<ComputeNode> {
        Api::all(self.client.clone())
    }

    async fn until(
        &self,
        name: &str,
        what: &str,
        is_so: impl Fn(&ComputeNode) -> bool,
    ) -> ComputeNode {
        let begun = Instant::now();
        loop {
            let stands = self.api().get_opt(name).await.unwrap();
            if let Some(stands) = stands.clone().filter(|it| it.status.is_some() && is_so(it)) {
                return stands;
            }
            assert!(begun.elapsed() < PATIENCE, "never {what}: {stands:#?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The report of one of our agents at this time of the agent's clock.
    async fn report(&self, name: &str, time: &str) {
        let observed = Observed {
            node: name.to_owned(),
            labels: Default::default(),
            vendor: Vendor::Nvidia,
            devices: vec![ObservedDevice {
                uuid: "GPU-1".to_owned(),
                memory_bytes: 80 << 30,
                promised_bytes: 80 << 30,
                score: 100,
                ..ObservedDevice::default()
            }],
            ports: Vec::new(),
            cordoned: false,
            problems: Vec::new(),
            registered: false,
        };
        let mut fresh = ComputeNode::new(name, observed::spec(&observed));
        fresh.metadata.labels = Some(observed.object_labels("agent"));
        let api = self.api();
        if api.get_opt(name).await.unwrap().is_none() {
            api.create(&PostParams::default(), &fresh).await.unwrap();
        } else {
            let labels = Patch::Merge(json!({ "metadata": { "labels": fresh.metadata.labels } }));
            api.patch(name, &PatchParams::default(), &labels)
                .await
                .unwrap();
        }
        let status = observed::status(&observed, None, time);
        let patch = Patch::Merge(json!({ "status": status }));
        api.patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
}

fn phase(node: &ComputeNode) -> Option<Phase> {
    node.status.as_ref().and_then(|status| status.phase)
}

fn said(node: &ComputeNode, kind: &str) -> (String, String) {
    let conditions = node.status.clone().unwrap().conditions;
    let found = conditions.into_iter().find(|it| it.kind == kind).unwrap();
    (found.status, found.reason)
}

fn pair(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[tokio::test]
async fn silent_agents_are_not_connected() {
    let world = World::start(json!([])).await;
    // Its clock is years behind: that is no silence.
    let (mut before, mut judged) = (Instant::now(), 0);
    for second in 0..8 {
        let now = Instant::now();
        world
            .report("alive", &format!("2019-01-01T00:00:0{second}Z"))
            .await;
        if second == 0 {
            world.report("dead", "2026-01-01T00:00:00Z").await;
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
        let alive = world.api().get("alive").await.unwrap();
        // If the machine held this test up for longer than the silence, the agent was silent.
        if before.elapsed() < PACE.silence {
            assert_eq!(phase(&alive), Some(Phase::Ready));
            judged += 1;
        }
        before = now;
    }
    assert!(judged > 0, "this machine is too busy to tell");

    let dead = world
        .until("dead", "not ready", |it| phase(it) == Some(Phase::NotReady))
        .await;
    for kind in [
        condition::READY,
        condition::AGENT_CONNECTED,
        condition::SCHEDULABLE,
    ] {
        assert_eq!(said(&dead, kind), pair("False", "AgentNotConnected"));
    }
    // The agent's report of the hardware stays, and so does its last heartbeat.
    assert_eq!(
        said(&dead, condition::HARDWARE_HEALTHY),
        pair("True", "AllDevicesHealthy")
    );
    let status = dead.status.unwrap();
    assert_eq!(status.last_heartbeat.unwrap(), "2026-01-01T00:00:00Z");

    world.report("dead", "2026-01-01T01:00:00Z").await;
    let back = world.api().get("dead").await.unwrap();
    assert_eq!(phase(&back), Some(Phase::Ready));
}

#[tokio::test]
async fn devices_that_no_agent_describes_are_described() {
    let chip = |at: u32, group: u32| {
        json!({
            "id": format!("NPU-{at}"), "index": at, "count": 4, "devmem": 65536, "devcore": 20,
            "type": "Ascend910B3", "numa": at / 2, "health": at != 3,
            "custominfo": { "NetworkID": group },
        })
    };
    let chips: Vec<Value> = (0..4).map(|at| chip(at, at / 2)).collect();
    let huawei = json!({ "metadata": { "name": "npu", "annotations": {
        "hami.io/node-register-Ascend910B3": Value::from(chips).to_string(),
    } } });
    let world = World::start(
        json!([huawei, node("gpu", 1, 10, 81920), { "metadata": { "name": "none" } }]),
    )
    .await;

    let stands = world
        .until("npu", "described", |it| it.spec.devices.len() == 4)
        .await;
    assert_eq!(stands.spec.vendor, Vendor::Huawei);
    assert_eq!(stands.spec.capacity.vram.0, "256Gi");
    assert_eq!(
        stands.metadata.labels.unwrap()["vgpu.io/written-by"],
        "scheduler"
    );
    let status = stands.status.clone().unwrap();
    assert_eq!(status.phase, Some(Phase::Ready));
    let conditions = status.conditions;
    let by = |kind: &str| {
        conditions
            .iter()
            .find(|it| it.kind == kind)
            .unwrap()
            .reason
            .clone()
    };
    assert_eq!(by(condition::AGENT_CONNECTED), "DevicesRegistered");
    assert_eq!(by(condition::HARDWARE_HEALTHY), "DeviceUnhealthy");
    let topologies: Api<ComputeTopology> = Api::all(world.client.clone());
    let drawn = topologies.get("npu").await.unwrap().spec;
    let groups: Vec<_> = drawn
        .groups
        .iter()
        .map(|it| (it.kind, it.devices.clone()))
        .collect();
    let group = |one: &str, other: &str| (LinkType::Hccs, vec![one.to_owned(), other.to_owned()]);
    assert_eq!(groups, [group("0", "1"), group("2", "3")]);

    // An agent of ours begins to report: from then on the object is its own.
    world
        .until("gpu", "described", |it| it.spec.devices.len() == 1)
        .await;
    world.report("gpu", "2026-01-01T00:00:00Z").await;
    world
        .until("gpu", "the agent's, and silent", |it| {
            phase(it) == Some(Phase::NotReady)
        })
        .await;
    assert!(world.api().get_opt("none").await.unwrap().is_none());

    let bare =
        json!({ "metadata": { "annotations": { "hami.io/node-register-Ascend910B3": null } } });
    let (answer, _) = world.served.patch("/api/v1/nodes/npu", &bare).await;
    assert_eq!(answer, 200);
    let begun = Instant::now();
    while world.api().get_opt("npu").await.unwrap().is_some() {
        assert!(begun.elapsed() < PATIENCE, "never deleted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
