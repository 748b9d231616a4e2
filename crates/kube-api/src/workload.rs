//! The workload that a pod belongs to, and its team, for accounts of what they use. Values in, values out.
//!
//! The workload is the pod's controller as its owner reference names it, except that pods of one Deployment or of one
//! CronJob belong together although each rollout and each run has a controller of its own.

use crate::object::Pod;

/// The label that distinguishes a ReplicaSet of a Deployment from its other ones.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// The shortest number of minutes since 1970 that a CronJob puts behind the names of its Jobs: since 1989.
const MINUTES_DIGITS: usize = 8;

/// The kind of a pod's workload in lower case (`deployment`, `job`, `statefulset`, `pod`), and its name.
///
/// Only the pod itself is read: the controller's own controller is known by the names that Kubernetes gives.
pub fn of(pod: &Pod) -> (String, String) {
    let owners = pod.metadata.owner_references.iter().flatten();
    let Some(owner) = owners
        .into_iter()
        .find(|owner| owner.controller == Some(true))
    else {
        let name = pod.metadata.name.clone().unwrap_or_default();
        return ("pod".to_owned(), name);
    };
    match owner.kind.as_str() {
        "ReplicaSet" => {
            let labels = pod.metadata.labels.as_ref();
            let hash = labels.and_then(|labels| labels.get(TEMPLATE_HASH));
            let deployment = hash.and_then(|hash| without_suffix(&owner.name, hash));
            match deployment {
                Some(name) => ("deployment".to_owned(), name.to_owned()),
                None => ("replicaset".to_owned(), owner.name.clone()),
            }
        }
        "Job" => match owner.name.rsplit_once('-') {
            Some((cron_job, minutes)) if !cron_job.is_empty() && is_minutes(minutes) => {
                ("cronjob".to_owned(), cron_job.to_owned())
            }
            _ => ("job".to_owned(), owner.name.clone()),
        },
        kind => (kind.to_lowercase(), owner.name.clone()),
    }
}

/// The value of the pod's label of this name; empty where the pod has none.
pub fn team(pod: &Pod, label: &str) -> String {
    let labels = pod.metadata.labels.as_ref();
    let team = labels.and_then(|labels| labels.get(label));
    team.cloned().unwrap_or_default()
}

fn without_suffix<'a>(name: &'a str, hash: &str) -> Option<&'a str> {
    let name = name.strip_suffix(hash)?.strip_suffix('-')?;
    (!hash.is_empty() && !name.is_empty()).then_some(name)
}

fn is_minutes(text: &str) -> bool {
    text.len() >= MINUTES_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(owner: &serde_json::Value, labels: &serde_json::Value) -> Pod {
        let metadata =
            json!({"name": "p", "namespace": "n", "ownerReferences": owner, "labels": labels});
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn check(kind: &str, name: &str, hash: &str, expected: (&str, &str)) {
        let owner = json!([
            {"apiVersion": "v1", "kind": "Other", "name": "other", "uid": "1"},
            {"apiVersion": "v1", "kind": kind, "name": name, "uid": "2", "controller": true},
        ]);
        let found = of(&pod(&owner, &json!({"pod-template-hash": hash})));
        assert_eq!((found.0.as_str(), found.1.as_str()), expected);
    }

    #[test]
    fn rollouts_and_runs_belong_to_one_workload() {
        check(
            "ReplicaSet",
            "web-5d4f8c7b9",
            "5d4f8c7b9",
            ("deployment", "web"),
        );
        check("ReplicaSet", "web", "", ("replicaset", "web"));
        check(
            "ReplicaSet",
            "5d4f8c7b9",
            "5d4f8c7b9",
            ("replicaset", "5d4f8c7b9"),
        );
        check("Job", "nightly-29394720", "", ("cronjob", "nightly"));
        check("Job", "run-42", "", ("job", "run-42"));
        check("Job", "29394720", "", ("job", "29394720"));
        check("StatefulSet", "vllm", "", ("statefulset", "vllm"));
        check("RayCluster", "ray-a1", "", ("raycluster", "ray-a1"));
    }

    #[test]
    fn a_pod_without_a_controller_is_its_own_workload() {
        let owner = json!([{"apiVersion": "v1", "kind": "Job", "name": "x", "uid": "1"}]);
        assert_eq!(
            of(&pod(&owner, &json!(null))),
            ("pod".to_owned(), "p".to_owned())
        );
        assert_eq!(
            of(&pod(&json!(null), &json!(null))),
            ("pod".to_owned(), "p".to_owned())
        );
    }

    #[test]
    fn the_team_is_the_value_of_a_label() {
        let pod = pod(&json!(null), &json!({"team": "vision"}));
        assert_eq!(team(&pod, "team"), "vision");
        assert_eq!(team(&pod, "cost-center"), "");
    }
}
