//! Requests of hcs.io from admission to binding, on the embedded cluster.

use std::sync::Arc;

use kube_api::config::DeviceConfig;
use kube_api::config::Hcs;
use kube_api::vendor::{Switches, Vendors};
use scheduler::metrics::SnapshotSource as _;
use serde_json::{Value, json};

use crate::support::{Served, until};

/// All vendors, with requests of hcs.io switched on.
pub(crate) fn vendors(change: impl FnOnce(&mut Hcs)) -> Arc<Vendors> {
    let mut hcs = Hcs::default();
    change(&mut hcs);
    let config = DeviceConfig {
        hcs: Some(hcs),
        ..DeviceConfig::standard()
    };
    let switches = Switches {
        ascend: true,
        iluvatar: true,
    };
    Arc::new(Vendors::new(config, switches).unwrap())
}

/// A node with `count` devices of a vendor.
pub(crate) fn node(
    name: &str,
    key: &str,
    model: &str,
    count: usize,
    gib: u64,
    healthy: bool,
) -> Value {
    let register: Vec<Value> = (0..count)
        .map(|at| {
            json!({
                "id": format!("{name}-{at}"), "index": at, "count": 10, "devmem": gib << 10, "devcore": 100,
                "type": model, "mode": "hami-core", "health": healthy,
            })
        })
        .collect();
    json!({ "metadata": { "name": name, "annotations": { key: Value::from(register).to_string() } } })
}

const NVIDIA: &str = "hami.io/node-nvidia-register";
pub(crate) const HYGON: &str = "hami.io/node-dcu-register";
const ASCEND: &str = "hami.io/node-register-Ascend910B3";

fn three_vendors() -> Value {
    json!({ "nodes": [
        node("a100", NVIDIA, "NVIDIA A100-SXM4-80GB", 2, 80, true),
        node("k100", HYGON, "K100-64GB", 2, 64, true),
        node("ascend", ASCEND, "Ascend910B3", 2, 64, true),
        node("t4", NVIDIA, "Tesla T4", 4, 15, true),
    ] })
}

fn pod(name: &str, annotations: Value, resources: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "annotations": annotations },
        "spec": {
            "schedulerName": "hami-scheduler",
            "containers": [{ "name": "trainer", "image": "pytorch:2.0", "resources": resources }],
        },
    })
}

const NODES: [&str; 4] = ["a100", "k100", "ascend", "t4"];

/// Makes the pod over the API, as a person does: admission looks at it.
async fn create(served: &Served, pod: &Value) -> Result<Value, String> {
    let path = "/api/v1/namespaces/default/pods";
    let (status, answer) = served.send("POST", path, pod.to_string()).await;
    match status {
        201 => Ok(answer),
        _ => Err(answer["message"].as_str().unwrap_or_default().to_owned()),
    }
}

/// Creates, filters and binds it; the pod as it is then, or why not.
async fn run(served: &Served, pod: &Value) -> Result<Value, String> {
    let made = create(served, pod).await?;
    let node = served
        .filter(&made, &NODES)
        .await
        .map_err(|answer| answer.to_string())?;
    let problem = served.bind(&made, &node).await;
    assert_eq!(problem, "");
    Ok(served.pod(made["metadata"]["name"].as_str().unwrap()).await)
}

fn annotation<'p>(pod: &'p Value, key: &str) -> &'p str {
    pod["metadata"]["annotations"][key].as_str().unwrap_or("")
}

#[tokio::test]
async fn a_pod_that_asks_for_vram_lands_on_the_right_vendor() {
    let served = Served::of(three_vendors(), vendors(|_| ())).await;
    let wants = json!({ "requests": { "ai.compute/vram": "16Gi" } });

    let prefer = |vendor: &str| json!({ "hcs.io/vendor-preference": vendor });
    let nvidia = run(&served, &pod("nvidia", prefer("nvidia"), wants.clone()))
        .await
        .unwrap();
    let hygon = run(&served, &pod("hygon", prefer("hygon"), wants.clone()))
        .await
        .unwrap();
    let any = run(&served, &pod("any", json!({}), wants)).await.unwrap();

    assert_eq!(nvidia["spec"]["nodeName"], "a100");
    assert_eq!(annotation(&nvidia, "hcs.io/assigned-vendor"), "nvidia");
    assert_eq!(annotation(&nvidia, "hcs.io/assigned-node"), "a100");
    assert_eq!(annotation(&nvidia, "hcs.io/assigned-devices"), "1");
    assert_eq!(annotation(&nvidia, "hcs.io/scheduling-score"), "80");
    // The memory limit that the node agent enforces.
    assert_eq!(
        annotation(&nvidia, "hami.io/vgpu-devices-allocated"),
        "a100-1,NVIDIA,16384,0:;"
    );
    // Two 910B3 score as high as two A100, whose node is fuller by now.
    assert_eq!(annotation(&any, "hcs.io/assigned-vendor"), "nvidia");
    assert_eq!(hygon["spec"]["nodeName"], "k100");
    assert_eq!(annotation(&hygon, "hcs.io/assigned-vendor"), "hygon");
}

#[tokio::test]
async fn prioritize_spreads_the_nodes_scores_over_ten_points() {
    let served = Served::of(three_vendors(), vendors(|_| ())).await;
    let wants = json!({ "limits": { "ai.compute/vram": "32Gi" } });
    let made = create(&served, &pod("a", json!({}), wants)).await.unwrap();

    let answer = served
        .post("/prioritize", &json!({ "Pod": made, "NodeNames": NODES }))
        .await;

    let score = |node: &str| {
        let mut all = answer.as_array().unwrap().iter();
        let of = all.find(|of| of["Host"] == node).unwrap();
        of["Score"].as_i64().unwrap()
    };
    // Two A100 and two 910B3 have the highest score, two K100 the lowest.
    assert_eq!(NODES.map(score), [10, 0, 10, 1], "{answer}");
}

#[tokio::test]
async fn tflops_become_the_share_of_the_device_that_gives_them() {
    let served = Served::of(three_vendors(), vendors(|_| ())).await;
    let wants = json!({
        "requests": { "ai.compute/vram": "16Gi", "ai.compute/tflops-fp16": "100" },
        "limits": { "ai.compute/vram": "32Gi", "ai.compute/tflops-fp16": "200" },
    });

    let made = run(
        &served,
        &pod("a", json!({ "hcs.io/vendor-preference": "nvidia" }), wants),
    )
    .await
    .unwrap();

    // 100 of the 312 TFLOPS of an A100.
    assert!(annotation(&made, "hami.io/vgpu-devices-allocated").ends_with(",NVIDIA,16384,33:;"));
    let resources = &made["spec"]["containers"][0]["resources"];
    assert_eq!(
        resources["limits"],
        json!({
            "ai.compute/vram": "16Gi", "ai.compute/tflops-fp16": "100", "nvidia.com/gpu": "1",
        })
    );
    assert_eq!(
        annotation(&made, "hcs.io/burst-limits"),
        r#"{"trainer":{"ai.compute/tflops-fp16":"200","ai.compute/vram":"32Gi"}}"#
    );
}

#[tokio::test]
async fn another_vendor_is_taken_only_where_the_pod_allows_it() {
    let served = Served::of(three_vendors(), vendors(|_| ())).await;
    let wants = json!({ "limits": { "ai.compute/vram": "100Gi", "ai.compute/devices": "2" } });
    let mlu = |allow: &str| json!({ "hcs.io/vendor-preference": "cambricon", "hcs.io/allow-downgrade": allow });

    let strict = run(&served, &pod("strict", mlu("false"), wants.clone())).await;
    let free = run(&served, &pod("free", mlu("true"), wants))
        .await
        .unwrap();

    assert!(strict.unwrap_err().contains("VendorNotSupported: "));
    assert_eq!(annotation(&free, "hcs.io/assigned-vendor"), "huawei");
    assert_eq!(
        annotation(&free, "hcs.io/assigned-devices").len(),
        "0,1".len()
    );
}

#[tokio::test]
async fn a_pod_that_fits_nowhere_is_told_in_the_documented_words() {
    let mut state = three_vendors();
    let sick = node("k100", HYGON, "K100-64GB", 2, 64, false);
    state["nodes"][1] = sick;
    state["nodes"][2] = json!({ "metadata": { "name": "ascend" } });
    let served = Served::of(state, vendors(|_| ())).await;
    let wants = json!({ "limits": { "ai.compute/vram": "100Gi", "ai.compute/devices": "1" } });
    let made = create(&served, &pod("a", json!({}), wants)).await.unwrap();

    let answer = served.filter(&made, &NODES).await.unwrap_err();

    let why = |node: &str| {
        let all = answer["FailedNodes"][node].as_str();
        let all = all.or(answer["FailedAndUnresolvableNodes"][node].as_str());
        all.unwrap_or_default()
            .split(':')
            .next()
            .unwrap()
            .to_owned()
    };
    assert_eq!(why("a100"), "InsufficientVRAM");
    assert_eq!(why("k100"), "DeviceUnhealthy");
    assert_eq!(why("ascend"), "AgentNotConnected");
}

#[tokio::test]
async fn bad_requests_are_refused_and_touch_no_other_pod() {
    let served = Served::of(three_vendors(), vendors(|_| ())).await;
    let plain = json!({});
    for (annotations, resources, expected) in [
        (
            json!({ "hcs.io/vendor-preference": "amd" }),
            json!({ "limits": { "ai.compute/vram": "1Gi" } }),
            "VendorNotSupported",
        ),
        (
            json!({ "hcs.io/allow-downgrade": "maybe" }),
            json!({ "limits": { "ai.compute/vram": "1Gi" } }),
            "accepted are \"true\" and \"false\"",
        ),
        (
            json!({ "hcs.io/topology-preference": "ring" }),
            json!({ "limits": { "ai.compute/vram": "1Gi" } }),
            "accepted are high-bandwidth and low-latency",
        ),
        (
            plain.clone(),
            json!({ "limits": { "ai.compute/tflops-fp16": "0.5" } }),
            "is no whole number",
        ),
        (
            plain.clone(),
            json!({ "limits": { "ai.compute/vram": "100Pi" } }),
            "is out of range",
        ),
        (
            plain.clone(),
            json!({ "limits": { "ai.compute/vram": "-1" } }),
            "is below 0",
        ),
        (
            plain.clone(),
            json!({ "limits": { "ai.compute/devices": "65" } }),
            "is out of range",
        ),
        (
            plain.clone(),
            json!({ "limits": { "ai.compute/vram": "1Gi" }, "requests": { "ai.compute/vram": "2Gi" } }),
            "is below the request",
        ),
        (
            plain.clone(),
            json!({ "limits": { "nvidia.com/gpu": "2", "huawei.com/ascend": "2" } }),
            "conflicting vendor-specific resources requested",
        ),
        (
            json!({ "hcs.io/assigned-devices": "0" }),
            json!({ "limits": { "ai.compute/vram": "1Gi" } }),
            "only the scheduler",
        ),
    ] {
        let refused = create(&served, &pod("bad", annotations, resources.clone())).await;
        let text = refused.unwrap_err();
        assert!(text.contains(expected), "{resources}: {text}");
    }

    let wants = json!({ "limits": { "nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000" } });
    assert!(run(&served, &pod("other", plain, wants)).await.is_ok());
}

#[tokio::test]
async fn a_vendors_own_name_asks_for_its_whole_devices() {
    let served = Served::of(three_vendors(), vendors(|_| ())).await;
    let wants = json!({ "limits": { "huawei.com/ascend": "2" } });

    let made = run(&served, &pod("a", json!({}), wants)).await.unwrap();

    assert_eq!(made["spec"]["nodeName"], "ascend");
    assert_eq!(annotation(&made, "hcs.io/assigned-vendor"), "huawei");
}

#[tokio::test]
async fn what_pods_hold_is_read_again_by_the_next_scheduler() {
    let state = json!({ "nodes": [node("a100", NVIDIA, "NVIDIA A100-SXM4-80GB", 1, 80, true)] });
    let served = Served::of(state, vendors(|_| ())).await;
    let wants = json!({ "limits": { "ai.compute/vram": "50Gi" } });
    run(&served, &pod("first", json!({}), wants.clone()))
        .await
        .unwrap();

    let next = Served::of(served.cluster.export(), vendors(|_| ())).await;

    assert_eq!(next.held(), ["first@a100"]);
    assert!(run(&next, &pod("second", json!({}), wants)).await.is_err());
}

#[tokio::test]
async fn without_the_section_nothing_of_it_is_read() {
    let served = Served::start(three_vendors()).await;
    let wants = json!({ "limits": { "ai.compute/vram": "16Gi" } });
    let made = pod("a", json!({}), wants);

    let answer = served
        .post("/filter", &json!({ "Pod": made, "NodeNames": NODES }))
        .await;

    assert_eq!(answer["NodeNames"], json!(NODES));
}

/// A cluster with the kinds of the group, and these quotas in namespace default.
async fn with_quotas(served: &Served, quotas: &[Value]) {
    for definition in kube_api::hcs::crd::definitions() {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let (status, answer) = served.send("POST", path, definition.to_string()).await;
        assert_eq!(status, 201, "{answer}");
    }
    let path = "/apis/hcs.io/v1alpha1/namespaces/default/computequotas";
    for quota in quotas {
        let (status, answer) = served.send("POST", path, quota.to_string()).await;
        assert_eq!(status, 201, "{answer}");
    }
    let known = || {
        served
            .scheduler
            .with_ledger(|ledger| ledger.compute_quotas().len())
    };
    for _ in 0..2000 {
        if known() == quotas.len() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the quotas are not read");
}

fn quota(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "hcs.io/v1alpha1", "kind": "ComputeQuota",
        "metadata": { "name": name, "namespace": "default" }, "spec": spec,
    })
}

#[tokio::test]
async fn racing_pods_cannot_exceed_a_quota() {
    let served = Served::of(three_vendors(), vendors(|_| ())).await;
    with_quotas(
        &served,
        &[quota("q", json!({ "hard": { "vram": "64Gi" } }))],
    )
    .await;
    let wants = json!({ "limits": { "ai.compute/vram": "16Gi" } });
    // Made while nothing is used yet, so admission lets all of them in.
    let mut pods = Vec::new();
    for at in 0..10 {
        let one = pod(&format!("p{at}"), json!({}), wants.clone());
        pods.push(create(&served, &one).await.unwrap());
    }

    let asked = pods.iter().map(|pod| served.filter(pod, &NODES));
    let answers = futures_util::future::join_all(asked).await;

    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 4);
    let refusals: Vec<String> = answers
        .iter()
        .filter_map(|answer| answer.as_ref().err())
        .map(Value::to_string)
        .collect();
    assert!(refusals[0].contains("exceeded quota: ComputeQuota q allows 65536 MiB of vram"));
    // And at admission from here on.
    let late = create(&served, &pod("late", json!({}), wants)).await;
    assert!(late.unwrap_err().contains("exceeded quota: ComputeQuota q"));
    // The status reports it.
    let path = "/apis/hcs.io/v1alpha1/namespaces/default/computequotas/q";
    for _ in 0..500 {
        if served.get(path).await["status"]["used"]["vram"] == "64Gi" {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("{}", served.get(path).await);
}

#[tokio::test]
async fn a_quota_counts_the_pods_that_its_scopes_and_selector_take() {
    let served = Served::of(three_vendors(), vendors(|_| ())).await;
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": { "name": "high" }, "value": 1000,
    });
    let path = "/apis/scheduling.k8s.io/v1/priorityclasses";
    served.send("POST", path, class.to_string()).await;
    let none = json!({ "vram": "0" });
    with_quotas(
        &served,
        &[
            quota(
                "class",
                json!({ "hard": none, "scopes": [{ "priority": "high" }] }),
            ),
            quota("ending", json!({ "hard": none, "scopes": ["Terminating"] })),
            quota(
                "team",
                json!({ "hard": none, "selector": { "matchLabels": { "team": "a" } } }),
            ),
        ],
    )
    .await;
    let wants = json!({ "limits": { "ai.compute/vram": "1Gi" } });
    let made = |name: &str, change: &dyn Fn(&mut Value)| {
        let mut one = pod(name, json!({}), wants.clone());
        change(&mut one);
        one
    };

    let plain = made("plain", &|_| ());
    let ending = made("ending", &|pod| {
        pod["spec"]["activeDeadlineSeconds"] = json!(60)
    });
    let team = made("team", &|pod| {
        pod["metadata"]["labels"] = json!({ "team": "a" })
    });
    let high = made("high", &|pod| {
        pod["spec"]["priorityClassName"] = json!("high")
    });

    assert!(create(&served, &plain).await.is_ok());
    for (pod, quota) in [(ending, "ending"), (team, "team"), (high, "class")] {
        let refused = create(&served, &pod).await.unwrap_err();
        assert!(
            refused.contains(&format!("ComputeQuota {quota} ")),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn a_task_runs_as_a_pod_and_says_what_became_of_it() {
    let served = Served::of(three_vendors(), vendors(|_| ())).await;
    with_quotas(&served, &[]).await;
    let path = "/apis/hcs.io/v1alpha1/namespaces/default/computetasks";
    let task = json!({
        "apiVersion": "hcs.io/v1alpha1", "kind": "ComputeTask",
        "metadata": { "name": "train", "namespace": "default" },
        "spec": {
            "resources": { "vram": "16Gi" },
            "vendorPreference": "nvidia",
            "template": { "metadata": { "labels": { "hami.io/webhook": "ignore" } }, "spec": { "containers": [{ "name": "c", "image": "pytorch:2.0" }] } },
        },
    });
    let (status, answer) = served.send("POST", path, task.to_string()).await;
    assert_eq!(status, 201, "{answer}");

    let mut made = Value::Null;
    for _ in 0..500 {
        made = served.pod("train-1").await;
        if made["kind"] == "Pod" {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(
        made["kind"], "Pod",
        "the task has no pod after 10 s: {made}"
    );
    assert_eq!(made["metadata"]["labels"]["hami.io/webhook"], Value::Null);
    let node = served.filter(&made, &NODES).await.unwrap();
    assert_eq!(served.bind(&made, &node).await, "");

    for _ in 0..500 {
        let task = served.get(&format!("{path}/train")).await;
        if task["status"]["phase"] == "Scheduled" {
            assert_eq!(task["status"]["node"], "a100");
            assert_eq!(task["status"]["vendor"], "nvidia");
            let scheduled = || {
                let tasks = served.scheduler.snapshot().compute_tasks;
                tasks.is_some_and(|phases| phases["Scheduled"] == 1 && phases["Pending"] == 0)
            };
            until(scheduled).await;
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("{}", served.get(&format!("{path}/train")).await);
}

#[tokio::test]
async fn the_documented_examples_apply_unchanged() {
    let served = Served::of(three_vendors(), vendors(|_| ())).await;
    with_quotas(&served, &[]).await;
    for (path, text) in [
        (
            "computenodes",
            include_str!("../../examples/hcs/compute-node.yaml"),
        ),
        (
            "namespaces/default/computequotas",
            include_str!("../../examples/hcs/compute-quota.yaml"),
        ),
        (
            "namespaces/default/computetasks",
            include_str!("../../examples/hcs/compute-task.yaml"),
        ),
    ] {
        let mut object: Value = serde_saphyr::from_str(text).unwrap();
        if object["metadata"]["namespace"].is_string() {
            object["metadata"]["namespace"] = "default".into();
        }
        let path = format!("/apis/hcs.io/v1alpha1/{path}");
        let (status, answer) = served.send("POST", &path, object.to_string()).await;
        assert_eq!(status, 201, "{answer}");
    }
    for text in [
        include_str!("../../examples/hcs/vram.yaml"),
        include_str!("../../examples/hcs/burst.yaml"),
    ] {
        let mut example: Value = serde_saphyr::from_str(text).unwrap();
        example["metadata"]["namespace"] = "default".into();
        run(&served, &example).await.unwrap();
    }
}
