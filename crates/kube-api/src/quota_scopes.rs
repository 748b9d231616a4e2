//! Which pods a `ResourceQuota` counts: the conditions of the quota, and the properties of a pod. The rules are those of
//! Kubernetes' own quotas (`podMatchesScopeFunc` in `pkg/quota/v1/evaluator/core/pods.go`).

use placement::{PodTraits, QuotaScope};

use crate::object::{Pod, PodAffinity, ResourceNeeds, ResourceQuota, ScopeRequirement};

/// The conditions under which the quota counts a pod, as Kubernetes' own quotas count pods: all of its scopes and all
/// expressions of its selector. A scope that is not about pods, or an unknown one, counts none.
pub fn scopes(quota: &ResourceQuota) -> Vec<QuotaScope> {
    let named = quota.spec.scopes.iter().map(|name| ScopeRequirement {
        scope_name: name.clone(),
        operator: "Exists".to_owned(),
        values: Vec::new(),
    });
    let selected = quota.spec.scope_selector.match_expressions.iter().cloned();
    named.chain(selected).map(scope).collect()
}

fn scope(required: ScopeRequirement) -> QuotaScope {
    match (required.scope_name.as_str(), required.operator.as_str()) {
        // The operator of these counts for nothing: the API server accepts `Exists` alone.
        ("Terminating", _) => QuotaScope::Terminating,
        ("NotTerminating", _) => QuotaScope::NotTerminating,
        ("BestEffort", _) => QuotaScope::BestEffort,
        ("NotBestEffort", _) => QuotaScope::NotBestEffort,
        ("CrossNamespacePodAffinity", _) => QuotaScope::CrossNamespacePodAffinity,
        ("PriorityClass", "Exists") => QuotaScope::HasClass,
        ("PriorityClass", "DoesNotExist") => QuotaScope::HasNoClass,
        ("PriorityClass", "In") => QuotaScope::ClassIn(required.values),
        ("PriorityClass", "NotIn") => QuotaScope::ClassNotIn(required.values),
        _ => QuotaScope::NoPod,
    }
}

/// The properties of the pod by which quotas choose it.
pub fn traits(pod: &Pod) -> PodTraits {
    let affinity = &pod.spec.affinity;
    PodTraits {
        terminating: pod
            .spec
            .active_deadline_seconds
            .is_some_and(|seconds| seconds >= 0),
        best_effort: is_best_effort(pod),
        priority_class: pod.spec.priority_class_name.clone(),
        cross_namespace_affinity: looks_elsewhere(&affinity.pod_affinity)
            || looks_elsewhere(&affinity.pod_anti_affinity),
    }
}

/// Whether no container asks for processors or memory. Where the API server has written the pod's class, that counts.
fn is_best_effort(pod: &Pod) -> bool {
    match pod.status.qos_class.as_str() {
        "" => {}
        class => return class == "BestEffort",
    }
    let asks = |needs: &ResourceNeeds| {
        let all = needs.requests.iter().chain(&needs.limits);
        all.filter(|(name, _)| ["cpu", "memory"].contains(&name.as_str()))
            .any(|(_, quantity)| quantity.parse().is_ok_and(|amount| amount.nano() > 0))
    };
    let containers = || pod.spec.init_containers.iter().chain(&pod.spec.containers);
    !asks(&pod.spec.resources) && !containers().any(|container| asks(&container.resources))
}

/// Whether a rule looks at pods of other namespaces.
fn looks_elsewhere(affinity: &PodAffinity) -> bool {
    let preferred = affinity.preferred.iter();
    let terms = preferred.map(|term| &term.pod_affinity_term);
    affinity
        .required
        .iter()
        .chain(terms)
        .any(|term| !term.namespaces.is_empty() || term.namespace_selector.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({ "spec": spec })).unwrap()
    }

    fn counted(quota: Value, pod: &Pod) -> bool {
        let quota: ResourceQuota = serde_json::from_value(json!({ "spec": quota })).unwrap();
        placement::counts(&scopes(&quota), &traits(pod))
    }

    /// A selector of one expression.
    fn selector(scope: &str, operator: &str, values: &[&str]) -> Value {
        json!({"scopeSelector": {"matchExpressions": [
            {"scopeName": scope, "operator": operator, "values": values}]}})
    }

    #[test]
    fn expressions_count_the_pods_that_kubernetes_counts() {
        let containers = json!([{"name": "c", "resources": {"requests": {"cpu": "1"}}}]);
        let class =
            |class: &str| pod(json!({"priorityClassName": class, "containers": containers}));
        let (low, high, none) = (
            class("low"),
            class("high"),
            pod(json!({"containers": containers})),
        );
        for (scope, operator, values, expected) in [
            ("PriorityClass", "In", &["low"][..], [true, false, false]),
            ("PriorityClass", "In", &["low", "high"], [true, true, false]),
            // As with labels, a missing class is none of the values.
            ("PriorityClass", "NotIn", &["low"], [false, true, true]),
            ("PriorityClass", "Exists", &[], [true, true, false]),
            ("PriorityClass", "DoesNotExist", &[], [false, false, true]),
            ("PriorityClass", "Like", &["low"], [false, false, false]),
            ("NotTerminating", "Exists", &[], [true, true, true]),
            ("Terminating", "Exists", &[], [false, false, false]),
            ("NotBestEffort", "Exists", &[], [true, true, true]),
            (
                "CrossNamespacePodAffinity",
                "Exists",
                &[],
                [false, false, false],
            ),
            (
                "VolumeAttributesClass",
                "Exists",
                &[],
                [false, false, false],
            ),
        ] {
            let quota = selector(scope, operator, values);
            let found = [&low, &high, &none].map(|pod| counted(quota.clone(), pod));
            assert_eq!(found, expected, "{scope} {operator} {values:?}");
        }
    }

    #[test]
    fn scopes_and_expressions_must_all_hold() {
        let quota = |class: &str| {
            let mut quota = selector("PriorityClass", "In", &[class]);
            quota["scopes"] = json!(["NotTerminating"]);
            quota
        };
        let lasting = pod(json!({"priorityClassName": "low"}));
        let ending = pod(json!({"priorityClassName": "low", "activeDeadlineSeconds": 0}));

        assert!(counted(quota("low"), &lasting));
        assert!(!counted(quota("high"), &lasting));
        assert!(!counted(quota("low"), &ending));
        assert!(counted(json!({"scopes": ["Terminating"]}), &ending));
        // Without conditions a quota counts all pods.
        assert!(counted(
            json!({"scopes": null, "scopeSelector": null}),
            &ending
        ));
    }

    #[test]
    fn processors_and_memory_alone_decide_about_best_effort() {
        let of = |resources: Value| json!({"containers": [{"name": "c", "resources": resources}]});
        let init = json!({"initContainers": [{"name": "i", "resources": {"limits": {"memory": "1Mi"}}}],
            "containers": [{"name": "c"}]});
        for (spec, expected) in [
            (of(json!({})), true),
            (of(json!({"limits": {"nvidia.com/gpu": "1"}})), true),
            (
                of(json!({"requests": {"cpu": "0"}, "limits": {"memory": 0}})),
                true,
            ),
            (of(json!({"requests": {"ephemeral-storage": "1Gi"}})), true),
            (of(json!({"requests": {"cpu": "1m"}})), false),
            (of(json!({"limits": {"memory": "1Gi"}})), false),
            (init, false),
            (
                json!({"resources": {"requests": {"cpu": "1"}}, "containers": [{"name": "c"}]}),
                false,
            ),
        ] {
            assert_eq!(traits(&pod(spec.clone())).best_effort, expected, "{spec}");
        }
        // The API server's own word counts.
        let mut told = pod(of(json!({"requests": {"cpu": "1m"}})));
        told.status.qos_class = "BestEffort".to_owned();
        assert!(traits(&told).best_effort);
    }

    #[test]
    fn affinity_crosses_namespaces_by_name_or_selector() {
        let term = |namespaces: Value, selector: Value| json!({"topologyKey": "zone", "namespaces": namespaces, "namespaceSelector": selector});
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        for (affinity, expected) in [
            (json!(null), false),
            (
                json!({"nodeAffinity": {required: {"nodeSelectorTerms": []}}}),
                false,
            ),
            (
                json!({"podAffinity": {required: [term(json!(null), json!(null))]}}),
                false,
            ),
            (
                json!({"podAffinity": {required: [term(json!([]), json!(null))]}}),
                false,
            ),
            (
                json!({"podAffinity": {required: [term(json!(["other"]), json!(null))]}}),
                true,
            ),
            (
                json!({"podAntiAffinity": {required: [term(json!([]), json!({}))]}}),
                true,
            ),
            (
                json!({"podAffinity": {preferred: [
                {"weight": 1, "podAffinityTerm": term(json!(["other"]), json!(null))}]}}),
                true,
            ),
            (
                json!({"podAntiAffinity": {preferred: [
                {"weight": 1, "podAffinityTerm": term(json!(null), json!(null))}]}}),
                false,
            ),
        ] {
            let pod = pod(json!({"affinity": affinity}));
            assert_eq!(
                traits(&pod).cross_namespace_affinity,
                expected,
                "{affinity}"
            );
        }
    }
}
