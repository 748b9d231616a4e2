//! ComputeQuotas and GPUs that are reserved by label: a reserved GPU counts as a whole, once, from the reservation on.

use std::sync::Arc;

use kube_api::config::{DeviceConfig, Hcs};
use kube_api::object::Pod;
use kube_api::vendor::{Switches, Vendors};
use scheduler::assigner::AssignerSettings;
use scheduler::explain::{AnswerDetail, Verdict, ViewSource, explain};
use serde_json::{Value, json};

use super::support::{Combined, labelled, wants};
use crate::support::until;

/// Two GPUs of 40,000 MiB with the label `x`, and this quota in namespace default.
async fn with_quota(spec: Value) -> Combined {
    let config = DeviceConfig {
        hcs: Some(Hcs::default()),
        ..DeviceConfig::standard()
    };
    let switches = Switches {
        ascend: false,
        iluvatar: false,
    };
    let vendors = Arc::new(Vendors::new(config, switches).unwrap());
    let nodes = [labelled("a", &[&["x"], &["x"]])];
    let combined = Combined::of(&nodes, AssignerSettings::default(), vendors).await;
    for definition in kube_api::hcs::crd::definitions() {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let (status, answer) =
            Combined::ask(&combined.router, "POST", path, definition.to_string()).await;
        assert_eq!(status, 201, "{answer}");
    }
    let quota = json!({"apiVersion": "hcs.io/v1alpha1", "kind": "ComputeQuota",
        "metadata": {"name": "q", "namespace": "default"}, "spec": spec});
    let path = "/apis/hcs.io/v1alpha1/namespaces/default/computequotas";
    let (status, answer) = Combined::ask(&combined.router, "POST", path, quota.to_string()).await;
    assert_eq!(status, 201, "{answer}");
    let scheduler = &combined.scheduler;
    until(|| scheduler.with_ledger(|ledger| ledger.compute_quotas().len() == 1)).await;
    combined
}

/// The expected status of the quota.
fn used(combined: &Combined) -> Value {
    let quotas = combined
        .scheduler
        .with_ledger(scheduler::ledger::Ledger::compute_quotas);
    json!(quotas.first().unwrap().2.used)
}

#[tokio::test]
async fn a_gpu_reserved_by_label_counts_as_a_whole_and_once() {
    let combined = with_quota(json!({"hard": {"vram": "40000Mi", "devices": "1"}})).await;

    let (status, first) = combined.make(&wants("first", &["x"], 1)).await;
    assert_eq!(status, 201, "{first}");
    let all = json!({"vram": "40000Mi", "devices": "1"});
    assert_eq!(used(&combined), all);
    let (status, second) = combined.make(&wants("second", &["x"], 1)).await;

    assert_eq!(status, 429, "{second}");
    let said = second["message"].as_str().unwrap();
    let why = "no GPUs with requested labels free for pod default/second: exceeded quota: ComputeQuota q allows 40000 MiB \
               of vram in namespace default, its pods hold 40000 MiB, and this pod asks for 40000 MiB";
    assert!(said.contains(why), "{said}");
    // The pod is placed on its reserved GPU, and its charge does not grow.
    assert_eq!(combined.filter(&first, &["a"]).await, Ok("a".to_owned()));
    assert_eq!(used(&combined), all);
    assert_eq!(combined.bind(&first, "a").await, "");
    assert_eq!(used(&combined), all);
    // It ends, and both its share and the reservation are gone.
    let path = "/api/v1/namespaces/default/pods/first?gracePeriodSeconds=0";
    Combined::ask(&combined.router, "DELETE", path, "").await;
    // A question waits until the ledger has seen it.
    let share = json!({"metadata": {"name": "share", "uid": "share"}, "spec": {"containers": [
        {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "9"}}}]}});
    assert!(combined.filter(&share, &["a"]).await.is_err());
    combined.assigner.tend().await;
    assert_eq!(used(&combined), json!({"vram": "0", "devices": "0"}));
    assert_eq!(combined.make(&wants("third", &["x"], 1)).await.0, 201);
}

#[tokio::test]
async fn a_reservation_counts_where_the_quota_selects_its_pod() {
    let spec = json!({"hard": {"devices": "0"}, "selector": {"matchLabels": {"team": "a"}}});
    let combined = with_quota(spec).await;
    let mut selected = wants("selected", &["x"], 1);
    selected["metadata"]["labels"]["team"] = json!("a");

    assert_eq!(combined.make(&selected).await.0, 429);
    assert_eq!(combined.make(&wants("other", &["x"], 1)).await.0, 201);
    assert_eq!(used(&combined), json!({"devices": "0"}));
}

#[tokio::test]
async fn explain_does_not_count_a_pods_own_reservation() {
    let combined = with_quota(json!({"hard": {"devices": "1"}})).await;
    combined.make(&wants("first", &["x"], 1)).await;
    let first = combined.scheduler.pod("default", "first").await;
    let explained =
        |pod: &Pod| explain(&combined.scheduler.view(pod), pod, AnswerDetail::default());

    let said = explained(&first.unwrap().unwrap());
    assert_eq!(said.verdict, Verdict::Fits, "{said}");

    let mut share = json!({"metadata": {"name": "share", "namespace": "default", "uid": "share"},
        "spec": {"schedulerName": "hami-scheduler", "containers": [{"name": "c", "image": "i",
        "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}}}]}});
    let typed = |pod: &Value| serde_json::from_value::<Pod>(pod.clone()).unwrap();
    let said = explained(&typed(&share));
    assert_eq!(said.verdict, Verdict::DoesNotFit, "{said}");
    assert!(
        said.summary.contains("ComputeQuota q allows 1 of devices"),
        "{said}"
    );
    share["metadata"]["namespace"] = json!("another");
    assert_eq!(explained(&typed(&share)).verdict, Verdict::Fits);

    // No advice is to delete a reservation as if it were a pod.
    share["metadata"]["annotations"] = json!({"nvidia.com/use-gpuuuid": "a-gpu-0,a-gpu-1"});
    share["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = json!("2");
    let said = explained(&typed(&share));
    assert_eq!(said.verdict, Verdict::DoesNotFit, "{said}");
    assert!(!said.to_string().contains("claim:"), "{said}");
}
