//! From a label to a GPU that a pod holds, and back.

use scheduler::assigner::{AssignerSettings, Pin};
use serde_json::json;

use super::support::{Combined, finalize_body, labelled, patched, wants};

#[tokio::test]
async fn a_pod_asks_by_label_and_is_finalized_by_the_documented_call() {
    let combined = Combined::start(&[
        labelled("a", &[&["v100"], &["fast", "v100"]]),
        labelled("b", &[&["v100"]]),
    ])
    .await;

    let (status, pod) = combined.make(&wants("example", &["fast"], 1)).await;

    assert_eq!(status, 201, "{pod}");
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["keep"], "me");
    assert_eq!(annotations["fudo.org/gpu.uuid"], "a-gpu-1");
    assert_eq!(annotations["fudo.org/gpu.node"], "a");
    assert_eq!(
        annotations["cdi.k8s.io/gpu-assignment"],
        "nvidia.com/gpu=UUID=a-gpu-1"
    );
    assert_eq!(annotations["nvidia.com/use-gpuuuid"], "a-gpu-1");
    let pinned = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    assert_eq!(
        pod.pointer(pinned).unwrap(),
        &json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}])
    );
    let reservation = annotations["fudo.org/gpu.reservation-id"].as_str().unwrap();
    assert_eq!(
        combined.leases().await,
        [format!("a-gpu-1 proposal {reservation}")]
    );

    // The scheduler confirms it, and gives it to no other pod.
    let other = json!({"metadata": {"name": "other", "namespace": "default", "uid": "other",
        "annotations": {"nvidia.com/use-gpuuuid": "a-gpu-1"}}, "spec": {"schedulerName": "hami-scheduler", "containers": [
        {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"}}}]}});
    assert!(combined.filter(&other, &["a", "b"]).await.is_err());
    assert_eq!(combined.filter(&pod, &["a", "b"]).await, Ok("a".to_owned()));
    assert_eq!(combined.bind(&pod, "a").await, "");

    let body = finalize_body(&pod);
    for _ in 0..2 {
        let answer = combined.finalize(&body).await;
        assert_eq!(answer, (200, json!({"status": "ok"})));
    }
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    assert_eq!(combined.leases().await, [format!("a-gpu-1 active {uid}")]);
    let devices = combined.get("/devices").await;
    assert_eq!(
        devices["a-gpu-1"],
        json!({"node": "a",
            "labels": ["fudo.org/gpu.a100", "fudo.org/gpu.fast", "fudo.org/gpu.nvidia", "fudo.org/gpu.v100", "fudo.org/gpu.vram-40g"],
            "assignment": {"exists?": true, "namespace": "default", "uid": uid, "name": "example",
                "reservation-id": reservation, "state": "active"}})
    );
    let free = &devices["a-gpu-0"];
    assert_eq!(free["node"], "a", "{devices}");
    assert!(free.get("assignment").is_none(), "{free}");
    assert!(combined.filter(&other, &["a", "b"]).await.is_err());
}

#[tokio::test]
async fn several_gpus_are_given_on_one_node_or_not_at_all() {
    let combined = Combined::start(&[
        labelled("a", &[&["x"]]),
        labelled("b", &[&["x"], &["x"], &["y"]]),
    ])
    .await;

    let pair = combined.make(&wants("pair", &["x"], 2)).await.1;
    let (status, refused) = combined.make(&wants("more", &["x"], 2)).await;

    let annotations = &pair["metadata"]["annotations"];
    assert_eq!(annotations["fudo.org/gpu.node"], "b");
    let mut gpus: Vec<&str> = annotations["fudo.org/gpu.uuid"]
        .as_str()
        .unwrap()
        .split(',')
        .collect();
    gpus.sort_unstable();
    assert_eq!(gpus, ["b-gpu-0", "b-gpu-1"]);
    assert_eq!(status, 429, "{refused}");
    let said = refused["message"].as_str().unwrap();
    assert!(
        said.contains("no GPUs with requested labels free for pod default/more: 3 devices match, of which 2 reserved by label"),
        "{said}"
    );
    assert_eq!(combined.leases().await.len(), 2);
    // Naming one of them finalizes both.
    let mut body = finalize_body(&pair);
    body["gpu-uuid"] = "b-gpu-0".into();
    assert_eq!(combined.finalize(&body).await.0, 200);
    assert!(
        combined
            .leases()
            .await
            .iter()
            .all(|lease| lease.contains(" active "))
    );
}

#[tokio::test]
async fn a_pod_that_ends_gives_its_gpu_back() {
    let combined = Combined::start(&[labelled("a", &[&["x"]])]).await;
    let pod = combined.make(&wants("first", &["x"], 1)).await.1;
    combined.finalize(&finalize_body(&pod)).await;

    let path = "/api/v1/namespaces/default/pods/first?gracePeriodSeconds=0";
    Combined::ask(&combined.router, "DELETE", path, "").await;
    // A question waits until the ledger has seen it.
    let share = json!({"metadata": {"name": "share", "uid": "share"}, "spec": {"containers": [
        {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "9"}}}]}});
    assert!(combined.filter(&share, &["a"]).await.is_err());
    combined.assigner.tend().await;

    assert_eq!(combined.leases().await, Vec::<String>::new());
}

#[tokio::test]
async fn an_unfinalized_pod_keeps_its_gpu() {
    let combined = Combined::start(&[labelled("a", &[&["x"]])]).await;
    let pod = combined.make(&wants("first", &["x"], 1)).await.1;
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    combined.mutate("later", &wants("second", &["x"], 1)).await;

    combined.assigner.tend().await;

    assert_eq!(combined.leases().await, [format!("a-gpu-0 active {uid}")]);
    let again = combined.finalize(&finalize_body(&pod)).await;
    assert_eq!(again, (200, json!({"status": "ok"})));
}

#[tokio::test]
async fn node_name_pins_a_pod_as_the_reference_does() {
    let settings = AssignerSettings { pin: Pin::NodeName };
    let combined = Combined::pinning(&[labelled("a", &[&["x"]])], settings).await;

    let answer = combined.mutate("u", &wants("first", &["x"], 1)).await;

    let pod = patched(&wants("first", &["x"], 1), &answer);
    assert_eq!(pod["spec"]["nodeName"], "a");
    assert_eq!(pod["spec"].get("affinity"), None);
    assert_eq!(
        pod["metadata"]["annotations"],
        json!({"keep": "me", "fudo.org/gpu.uuid": "a-gpu-0", "fudo.org/gpu.node": "a",
            "fudo.org/gpu.reservation-id": "u", "cdi.k8s.io/gpu-assignment": "nvidia.com/gpu=UUID=a-gpu-0"})
    );
}

#[tokio::test]
async fn a_pod_without_a_count_gets_one_confirmed_gpu() {
    let combined = Combined::start(&[labelled("a", &[&["x"]])]).await;
    let mut pod = wants("first", &["assign"], 1);
    pod["spec"]["containers"][0]
        .as_object_mut()
        .unwrap()
        .remove("resources");

    let pod = combined.make(&pod).await.1;

    let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits["nvidia.com/gpu"], "1");
    assert_eq!(combined.filter(&pod, &["a"]).await, Ok("a".to_owned()));
}

#[tokio::test]
async fn a_gpu_that_the_extender_gave_is_not_given_by_label() {
    let combined = Combined::start(&[labelled("a", &[&["x"], &["y"]])]).await;
    let share = json!({"metadata": {"name": "share", "namespace": "default", "uid": "share",
        "annotations": {"nvidia.com/use-gpuuuid": "a-gpu-0"}}, "spec": {"schedulerName": "hami-scheduler", "containers": [
        {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"}}}]}});
    assert_eq!(combined.filter(&share, &["a"]).await, Ok("a".to_owned()));

    let refused = combined.mutate("u", &wants("whole", &["x"], 1)).await;

    assert_eq!(refused["status"]["code"], 429);
    let said = refused["status"]["message"].as_str().unwrap();
    assert!(
        said.ends_with(
            "1 device matches, of which 0 reserved by label, 1 used by other pods, 0 out of service"
        ),
        "{said}"
    );
    assert_eq!(combined.leases().await, Vec::<String>::new());
}

#[tokio::test]
async fn devices_named_only_by_the_annotation_are_not_shared() {
    let mut node = json!({"metadata": {"name": "plain", "annotations": {}}});
    node["metadata"]["annotations"]["fudo.org/gpu.device.labels"] =
        super::support::labels(&json!({"GPU-1": ["fudo.org/gpu.x"]})).into();
    let combined = Combined::start(&[node]).await;

    let given = combined.mutate("u", &wants("whole", &["x"], 1)).await;
    let refused = combined.mutate("v", &wants("next", &["x"], 1)).await;

    assert_eq!(given["allowed"], true, "{given}");
    assert_eq!(refused["status"]["code"], 429, "{refused}");
    assert_eq!(
        combined.get("/devices").await["GPU-1"]["labels"],
        json!(["fudo.org/gpu.x"])
    );
}

#[tokio::test]
async fn a_pod_goes_only_where_its_own_rules_let_it() {
    let mut there = labelled("b", &[&["x"]]);
    there["metadata"]["labels"] = json!({"zone": "z"});
    let combined = Combined::start(&[labelled("a", &[&["x"]]), there]).await;
    let mut pod = wants("zoned", &["x"], 1);
    pod["spec"]["nodeSelector"] = json!({"zone": "z"});

    let given = combined.make(&pod).await.1;
    pod["spec"]["nodeSelector"] = json!({"zone": "q"});
    pod["metadata"]["name"] = "nowhere".into();
    let (status, refused) = combined.make(&pod).await;

    assert_eq!(given["metadata"]["annotations"]["fudo.org/gpu.node"], "b");
    assert_eq!(status, 429);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("none is on a node"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_pod_that_asks_for_no_gpu_is_left_alone() {
    let combined = Combined::start(&[labelled("a", &[&["x"]])]).await;
    let plain = json!({"metadata": {"name": "p", "labels": {"app": "x", "fudo.org/other": "y"}}, "spec": {"containers": [{"name": "c"}]}});

    let answer = combined.mutate("u", &plain).await;

    assert_eq!(answer["allowed"], true);
    assert_eq!(answer.get("patch"), None);
    assert_eq!(combined.leases().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_review_that_comes_twice_reserves_once() {
    let combined = Combined::start(&[labelled("a", &[&["x"], &["x"]])]).await;
    let pod = wants("p", &["x"], 1);

    let (first, second) = tokio::join!(combined.mutate("u", &pod), combined.mutate("u", &pod));

    assert_eq!(first["patch"], second["patch"]);
    assert!(first["patch"].is_string());
    assert_eq!(combined.leases().await.len(), 1);
    // After another webhook changed the pod, it is asked about again.
    let patched = patched(&pod, &first);
    let again = combined.mutate("another", &patched).await;
    assert_eq!(
        (again["allowed"].clone(), again.get("patch")),
        (json!(true), None)
    );
    assert_eq!(combined.leases().await.len(), 1);
}
