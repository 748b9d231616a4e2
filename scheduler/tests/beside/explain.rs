use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use expect_test::{Expect, expect};
use futures_util::future::BoxFuture;
use http::{Request, StatusCode};
use kube_api::object::{Node, Pod, ResourceQuota};
use kube_api::request::Defaults;
use scheduler::explain::{AnswerDetail, PodUnread, Verdict, View, ViewSource, explain, routes};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::beside::support::VENDORS;

fn device(id: &str, index: u32, mib: u64, model: &str) -> Value {
    json!({ "id": id, "index": index, "count": 10, "devmem": mib, "devcore": 100, "type": model, "mode": "hami-core", "health": true })
}

fn node(name: &str, devices: &[Value]) -> Value {
    let register = Value::from(devices.to_vec()).to_string();
    json!({ "metadata": {
        "name": name,
        "labels": { "gpu": "on" },
        "annotations": { "hami.io/node-nvidia-register": register },
    } })
}

fn pod(name: &str, limits: Value) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "ml", "uid": name },
        "spec": {
            "schedulerName": "hami-scheduler",
            "containers": [{ "name": "main", "resources": { "limits": limits } }],
        },
    })
}

fn running(name: &str, node: &str, allocated: &str) -> Value {
    let mut pod = pod(name, json!({ "nvidia.com/gpu": "1" }));
    pod["metadata"]["annotations"] = json!({
        "hami.io/vgpu-node": node,
        "hami.io/vgpu-devices-allocated": allocated,
    });
    pod["spec"]["nodeName"] = json!(node);
    pod
}

fn view(nodes: &[Value], pods: &[Value], quotas: &[Value]) -> View {
    fn typed<T: serde::de::DeserializeOwned>(objects: &[Value]) -> Vec<T> {
        let typed = |object: &Value| serde_json::from_value(object.clone()).unwrap();
        objects.iter().map(typed).collect()
    }
    let mut view = View::of(
        typed::<Node>(nodes),
        &typed::<Pod>(pods),
        typed::<ResourceQuota>(quotas),
        Arc::clone(&VENDORS),
        Defaults::default(),
    );
    view.scheduler_name = "hami-scheduler".to_owned();
    view
}

fn check(view: &View, pod: &Value, verdict: Verdict, expected: Expect) {
    let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
    let explained = explain(view, &pod, AnswerDetail::default());
    expected.assert_eq(&explained.to_string());
    assert_eq!(explained.verdict, verdict);
    // The answer survives a round trip through JSON.
    let json = serde_json::to_string(&explained).unwrap();
    let back: scheduler::explain::Explained = serde_json::from_str(&json).unwrap();
    assert_eq!(back, explained);
}

fn two_nodes() -> View {
    let a100 = |id: &str, index| device(id, index, 16384, "NVIDIA A100");
    let mut closed = node("n3", &[a100("GPU-5", 0), a100("GPU-6", 1)]);
    closed["spec"]["unschedulable"] = json!(true);
    let cpu = json!({ "metadata": { "name": "n4" }, "spec": { "taints": [{ "key": "team", "value": "web", "effect": "NoSchedule" }] } });
    let mut broken = node("n5", &[]);
    broken["metadata"]["annotations"]["hami.io/node-nvidia-register"] = json!("[{]");
    view(
        &[
            node("n1", &[a100("GPU-1", 0), a100("GPU-2", 1)]),
            node("n2", &[device("GPU-3", 0, 81920, "NVIDIA H100")]),
            closed,
            cpu,
            broken,
        ],
        &[running("old", "n1", "GPU-1,NVIDIA,10000,30:;")],
        &[],
    )
}

#[test]
fn a_pod_that_fits_nowhere_gets_all_reasons_and_advice() {
    let asks = pod(
        "train",
        json!({ "nvidia.com/gpu": "2", "nvidia.com/gpumem": "9000", "nvidia.com/gpucores": "30" }),
    );
    check(
        &two_nodes(),
        &asks,
        Verdict::DoesNotFit,
        expect![[r#"
        ml/train does not fit on any of 5 nodes
          asks for 2 NVIDIA in container main: memory 9000 MiB, cores 30

        It would fit with any one of these:
          container main asks for 6384 MiB instead of 9000 (2616 less): on n1
              container main: nvidia.com/gpumem: 6384 (is 9000)
          container main asks for 1 instead of 2 NVIDIA: on n1
              container main: nvidia.com/gpu: 1 (is 2)
          ml/old leaves: on n1
              kubectl delete pod -n ml old
          node n3 is opened for new pods again: on n3
              kubectl uncordon n3

        Why not:
               2 nodes node unregistered                  n4, n5
               1 node  AllocatedCardsInsufficientRequest  n1
               1 node  CardInsufficientMemory             n1
               1 node  NodeInsufficientDevice             n2
               1 node  node unschedulable                 n3

        n3: node unschedulable
          is closed for new pods (kubectl cordon): kube-scheduler leaves it out
          would do if node n3 is opened for new pods again
              kubectl uncordon n3

        n1: 1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory
          GPU-1  NVIDIA A100  6384 of 16384 MiB free, asked 9000 (2616 MiB short)
          GPU-2  NVIDIA A100  suitable, but too few of them
          would do if container main asks for 6384 MiB instead of 9000 (2616 less)
              container main: nvidia.com/gpumem: 6384 (is 9000)
          would do if container main asks for 1 instead of 2 NVIDIA
              container main: nvidia.com/gpu: 1 (is 2)
          would do if ml/old leaves
              kubectl delete pod -n ml old

        n2: NodeInsufficientDevice
          has 1 NVIDIA devices, asked 2
          would do if container main asks for 1 instead of 2 NVIDIA
              container main: nvidia.com/gpu: 1 (is 2)

        n4: node unregistered
          has no annotation hami.io/node-nvidia-register: no agent has reported NVIDIA devices here
          lacks the label gpu=on, by which the agent is put on nodes: kubectl label node n4 gpu=on
          has the taint team=web:NoSchedule: only pods that tolerate it come here

        n5: node unregistered
          annotation hami.io/node-nvidia-register: no list of devices: key must be a string at line 1 column 3
    "#]],
    );
}

#[test]
fn a_placed_pod_hears_where_it_is() {
    let view = two_nodes();
    let old = running("old", "n1", "GPU-1,NVIDIA,10000,30:;");
    check(
        &view,
        &old,
        Verdict::Placed,
        expect![[r#"
        ml/old is on n1
          asks for 1 NVIDIA in container main: memory whole device, cores none promised
          main: GPU-1 on n1: 10000 MiB, cores 30
    "#]],
    );
    let mut over = old.clone();
    over["status"] = json!({ "phase": "Succeeded" });
    check(
        &view,
        &over,
        Verdict::Finished,
        expect![[r#"
        ml/old is over (Succeeded): it holds nothing
    "#]],
    );
    let mut foreign = pod("foreign", json!({ "nvidia.com/gpu": "1" }));
    foreign["spec"]["nodeName"] = json!("n1");
    foreign["spec"]["schedulerName"] = json!("default-scheduler");
    check(
        &view,
        &foreign,
        Verdict::Missed,
        expect![[r#"
        ml/foreign runs on n1 without devices
          asks for 1 NVIDIA in container main: memory whole device, cores none promised
          note: nothing says which devices it has: it was bound by another program than this scheduler (schedulerName is "default-scheduler")
    "#]],
    );
}

#[test]
fn a_pod_that_is_no_question_hears_why() {
    let view = two_nodes();
    let limits = |limits: Value| pod("p", limits);
    check(
        &view,
        &limits(json!({ "cpu": "1" })),
        Verdict::NotOurs,
        expect![[r#"
            ml/p asks for no device that vgpu gives: kube-scheduler places it without asking here
        "#]],
    );
    check(
        &view,
        &limits(json!({ "nvidia.com/gpumen": "9000" })),
        Verdict::DoesNotFit,
        expect![[r#"
            ml/p does not fit: no node has nvidia.com/gpumen
              note: container main asks for nvidia.com/gpumen, which no node has; did you mean nvidia.com/gpumem?
        "#]],
    );
    check(
        &view,
        &limits(json!({ "nvidia.com/gpumem": "9000" })),
        Verdict::Missed,
        expect![[r#"
            ml/p says how much of a device it wants, and not how many (nvidia.com/gpu)
              note: container main has nvidia.com/gpumem and no nvidia.com/gpu: the webhook puts the count there, and has not seen this pod
        "#]],
    );
    check(
        &view,
        &limits(json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "1.5Gi " })),
        Verdict::Unreadable,
        expect![[r#"
            ml/p cannot be understood: container main: nvidia.com/gpumem: "1.5Gi " is no amount; write a number such as 3000, 3k, 16Gi or 500m
              note: it fits on no node until that is corrected: a pod's spec cannot be changed, so delete it and create it again
        "#]],
    );
    let mut missed = limits(json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000" }));
    missed["spec"]["schedulerName"] = json!("default-scheduler");
    check(
        &view,
        &missed,
        Verdict::Missed,
        expect![[r#"
        ml/p is not the scheduler's; it would fit on n1
          asks for 1 NVIDIA in container main: memory 1000 MiB, cores none promised
          main: GPU-2 on n1: 1000 MiB, cores 0
          note: its schedulerName is "default-scheduler", not "hami-scheduler": the webhook did not see it (it was away, the namespace is exempt, or the label hami.io/webhook is "ignore"), so no scheduler that knows shares of devices places it; create it again
    "#]],
    );
}

#[test]
fn rules_quotas_and_cordons_are_named_with_what_to_write() {
    let mut cordoned = node("n1", &[device("GPU-1", 0, 16384, "NVIDIA A100")]);
    cordoned["metadata"]["annotations"]["hami.io/device-cordon"] = json!("GPU-9,GPU-1");
    let quota = json!({
        "metadata": { "name": "gpu", "namespace": "ml" },
        "spec": { "hard": { "limits.nvidia.com/gpumem": "8000" } },
    });
    let view_of = |nodes: &[Value]| view(nodes, &[], std::slice::from_ref(&quota));
    let mut asks = pod(
        "p",
        json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000" }),
    );
    check(
        &view_of(&[cordoned]),
        &asks,
        Verdict::DoesNotFit,
        expect![[r#"
            ml/p does not fit on the only node
              asks for 1 NVIDIA in container main: memory 1000 MiB, cores none promised

            It would fit with any one of these:
              GPU-1 is uncordoned: on n1
                  kubectl annotate --overwrite node n1 hami.io/device-cordon=GPU-9

            Why not:
                   1 node  CardCordoned  n1

            n1: 1/1 CardCordoned
              GPU-1  NVIDIA A100  cordoned
        "#]],
    );
    asks["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = json!("10Gi");
    check(
        &view_of(&[node("n1", &[device("GPU-1", 0, 16384, "NVIDIA A100")])]),
        &asks,
        Verdict::DoesNotFit,
        expect![[r#"
            ml/p does not fit on the only node
              asks for 1 NVIDIA in container main: memory 10240 MiB, cores none promised

            It would fit with any one of these:
              container main asks for 8000 MiB instead of 10240 (2240 less): on n1
                  container main: nvidia.com/gpumem: 8000 (is 10Gi)
              namespace ml may take 2240 MiB of NVIDIA more: on n1
                  quota gpu in ml: limits.nvidia.com/gpumem: 10240 (is 8000)

            Why not:
                   1 node  ResourceQuotaNotFit  n1

            n1: 1/1 ResourceQuotaNotFit
              GPU-1  NVIDIA A100  the namespace's quota leaves 8000 MiB, asked 10240
        "#]],
    );
    asks["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = json!("100");
    asks["metadata"]["annotations"] = json!({ "nvidia.com/use-gputype": "H100" });
    check(
        &view_of(&[node("n1", &[device("GPU-1", 0, 16384, "NVIDIA A100")])]),
        &asks,
        Verdict::DoesNotFit,
        expect![[r#"
            ml/p does not fit on the only node
              asks for 1 NVIDIA in container main: memory 100 MiB, cores none promised; models H100

            It would fit with any one of these:
              the type rules allow NVIDIA A100: on n1
                  annotation nvidia.com/use-gputype: H100,NVIDIA A100

            Why not:
                   1 node  CardTypeMismatch  n1

            n1: 1/1 CardTypeMismatch
              GPU-1  NVIDIA A100  model excluded by the type rules
        "#]],
    );
}

#[test]
fn thousands_of_nodes_are_summarised_by_reason() {
    let nodes: Vec<Value> = (0..2000)
        .map(|number| {
            let id = format!("GPU-{number}");
            node(
                &format!("n{number:04}"),
                &[device(&id, 0, 8000 + number, "T4")],
            )
        })
        .collect();
    let asks = pod(
        "p",
        json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000" }),
    );
    let asks: Pod = serde_json::from_value(asks).unwrap();
    let view = view(&nodes, &[], &[]);

    let patient = AnswerDetail {
        patience: Duration::MAX,
        ..AnswerDetail::default()
    };
    let explained = explain(&view, &asks, patient);

    assert_eq!(explained.nodes_in_question, 2000);
    assert_eq!((explained.nodes.len(), explained.nodes_left_out), (5, 1995));
    let [reason] = &explained.reasons[..] else {
        panic!("one reason")
    };
    assert_eq!((reason.nodes, reason.first.len()), (2000, 5));
    // The most that any node has.
    assert_eq!(
        explained.advice[0].text,
        "container main asks for 9999 MiB instead of 20000 (10001 less)"
    );
    assert_eq!(explain(&view, &asks, AnswerDetail::all()).nodes.len(), 2000);
}

#[test]
fn a_pod_of_sixty_containers_gets_partial_advice() {
    let nodes: Vec<Value> = (0..50)
        .map(|number| {
            let devices: Vec<Value> = (0..8)
                .map(|index| device(&format!("GPU-{number}-{index}"), index, 24000, "T4"))
                .collect();
            node(&format!("n{number:04}"), &devices)
        })
        .collect();
    let mut asks = pod("p", json!({}));
    let limits = json!({ "nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000" });
    asks["spec"]["containers"] = (0..60)
        .map(|number| json!({ "name": format!("c{number}"), "resources": { "limits": limits } }))
        .collect();
    let asks: Pod = serde_json::from_value(asks).unwrap();
    let hasty = AnswerDetail {
        patience: Duration::from_millis(50),
        ..AnswerDetail::default()
    };

    let explained = explain(&view(&nodes, &[], &[]), &asks, hasty);

    assert_eq!(explained.verdict, Verdict::DoesNotFit);
    let last = explained.notes.last().unwrap();
    assert!(last.contains("there may be more"), "{:?}", explained.notes);
}

struct Fixed(View);

impl ViewSource for Fixed {
    fn pod<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Pod>, PodUnread>> {
        Box::pin(async move {
            match (namespace, name) {
                ("ml", "p") => {
                    let asks = pod("p", json!({ "nvidia.com/gpu": "9" }));
                    Ok(Some(serde_json::from_value(asks).unwrap()))
                }
                (_, "away") => Err(PodUnread::NotSynced("pods".to_owned())),
                _ => Ok(None),
            }
        })
    }

    fn view(&self, _: &Pod) -> View {
        self.0.clone()
    }
}

#[tokio::test]
async fn the_route_answers_in_json_or_text_and_reports_errors() {
    let router = routes(Arc::new(Fixed(two_nodes())));
    let get = async |uri: &str, accept: &str| {
        let request = Request::get(uri).header("accept", accept);
        let request = request.body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };

    let (status, body) = get("/explain?pod=ml/p&all=true", "*/*").await;
    let explained: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, StatusCode::OK);
    assert_eq!(explained["verdict"], "does-not-fit");
    assert_eq!(explained["nodesInQuestion"], 5);
    assert_eq!(explained["nodes"].as_array().unwrap().len(), 5);
    assert_eq!(
        explained["advice"][0]["changes"][0]["edits"][0],
        json!({ "edit": "set-resource", "container": "main", "resource": "nvidia.com/gpu", "from": "9", "to": "1" })
    );
    let (status, body) = get("/explain?pod=ml/p", "text/plain").await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        body.starts_with("ml/p does not fit on any of 5 nodes\n"),
        "{body}"
    );

    for (uri, expected, text) in [
        ("/explain", 400, "which pod?"),
        ("/explain?pod=", 400, "which pod?"),
        ("/explain?pod=a/b/c", 400, "which pod?"),
        ("/explain?pod=ml/", 400, "which pod?"),
        (
            "/explain?pod=p",
            404,
            "there is no pod p in namespace default",
        ),
        (
            "/explain?pod=ml/away",
            503,
            "pods not read from the API server yet",
        ),
    ] {
        let (status, body) = get(uri, "*/*").await;
        assert_eq!(status.as_u16(), expected, "{uri}");
        let error: Value = serde_json::from_str(&body).unwrap();
        assert!(
            error["Error"].as_str().unwrap().contains(text),
            "{uri}: {body}"
        );
    }
}
