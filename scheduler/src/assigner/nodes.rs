//! The nodes that a pod may run on, by its own rules and the nodes' state: a GPU on another node would be useless to
//! it. Checks what admission can know: `spec.nodeName`, the node selector, required node affinity, taints, and cordons.
//! Devices, CPU and memory are checked by the placement engine and kube-scheduler.

use std::sync::Arc;

use kube_api::object::{Node, Taint};
use serde_json::Value;

/// The nodes that the pod may run on; `None` if it may run on all.
pub(super) fn open<'a>(
    pod: &Value,
    nodes: impl Iterator<Item = (&'a Arc<str>, &'a Arc<Node>)>,
) -> Option<Vec<Arc<str>>> {
    let mut closed = false;
    let mut open = Vec::new();
    for (name, node) in nodes {
        if may_run(pod, name, node) {
            open.push(Arc::clone(name));
        } else {
            closed = true;
        }
    }
    closed.then_some(open)
}

fn may_run(pod: &Value, name: &str, node: &Node) -> bool {
    let spec = pod.get("spec");
    let wanted = spec
        .and_then(|spec| spec.get("nodeName"))
        .and_then(Value::as_str);
    if let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) {
        return wanted == name;
    }
    let label = |key: &str| {
        let labels = node.metadata.labels.as_ref();
        labels
            .and_then(|labels| labels.get(key))
            .map(String::as_str)
    };
    let selector = spec.and_then(|spec| spec.get("nodeSelector"));
    let selector = selector.and_then(Value::as_object);
    let mut selected = selector.into_iter().flatten();
    if !selected.all(|(key, value)| label(key) == value.as_str()) {
        return false;
    }
    let terms = pod.pointer(
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
    );
    if let Some(terms) = terms.and_then(Value::as_array)
        && !terms.iter().any(|term| matches(term, name, &label))
    {
        return false;
    }
    let tolerations = spec
        .and_then(|spec| spec.get("tolerations"))
        .and_then(Value::as_array);
    let tolerated = |taint: &Taint| {
        let mut tolerations = tolerations.into_iter().flatten();
        tolerations.any(|toleration| tolerates(toleration, taint))
    };
    let cordon = Taint {
        key: "node.kubernetes.io/unschedulable".into(),
        value: String::new(),
        effect: "NoSchedule".into(),
    };
    (!node.spec.unschedulable || tolerated(&cordon))
        && node
            .spec
            .taints
            .iter()
            .filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
            .all(tolerated)
}

/// Whether a term of a required affinity matches the node. A term without rules matches none.
fn matches<'a>(term: &Value, name: &'a str, label: &impl Fn(&str) -> Option<&'a str>) -> bool {
    let rules = |field: &str| {
        let rules = term.get(field).and_then(Value::as_array);
        rules.map(Vec::as_slice).unwrap_or_default()
    };
    let (expressions, fields) = (rules("matchExpressions"), rules("matchFields"));
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let key = |rule: &Value| {
        rule.get("key")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    expressions
        .iter()
        .all(|rule| holds(rule, label(&key(rule))))
        && fields
            .iter()
            .all(|rule| holds(rule, (key(rule) == "metadata.name").then_some(name)))
}

fn holds(rule: &Value, value: Option<&str>) -> bool {
    let values = rule.get("values").and_then(Value::as_array);
    let values: Vec<&str> = values
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let bound = number(values.first().copied());
    match rule
        .get("operator")
        .and_then(Value::as_str)
        .unwrap_or_default()
    {
        "In" => value.is_some_and(|value| values.contains(&value)),
        "NotIn" => value.is_none_or(|value| !values.contains(&value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number(value)
            .zip(bound)
            .is_some_and(|(value, bound)| value > bound),
        "Lt" => number(value)
            .zip(bound)
            .is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

fn tolerates(toleration: &Value, taint: &Taint) -> bool {
    let text = |field: &str| {
        toleration
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let effect = text("effect");
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    let key = text("key");
    match text("operator") {
        "Exists" => key.is_empty() || key == taint.key,
        "" | "Equal" => key == taint.key && text("value") == taint.value,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(spec: Value, expected: &[&str]) {
        let nodes = [
            json!({"metadata": {"name": "a", "labels": {"zone": "x", "gen": "3"}}}),
            json!({"metadata": {"name": "b", "labels": {"zone": "y"}}}),
            json!({"metadata": {"name": "c"}, "spec": {"unschedulable": true}}),
            json!({"metadata": {"name": "d"}, "spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}}),
        ];
        let nodes: Vec<(Arc<str>, Arc<Node>)> = nodes
            .into_iter()
            .map(|node| {
                let name = node["metadata"]["name"].as_str().unwrap().into();
                (name, Arc::new(serde_json::from_value(node).unwrap()))
            })
            .collect();
        let pod = json!({ "spec": spec });

        let open = open(&pod, nodes.iter().map(|(name, node)| (name, node)));

        let open = open.unwrap();
        assert_eq!(
            open.iter().map(|name| &**name).collect::<Vec<_>>(),
            expected
        );
    }

    fn required(terms: Value) -> Value {
        let required = json!({ "nodeSelectorTerms": terms });
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
    }

    #[test]
    fn cordoned_and_tainted_nodes_are_closed() {
        check(json!({}), &["a", "b"]);
        check(
            json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]}),
            &["a", "b", "d"],
        );
    }

    #[test]
    fn selectors_and_required_affinity_close_nodes() {
        check(json!({"nodeSelector": {"zone": "y"}}), &["b"]);
        check(json!({"nodeName": "c"}), &["c"]);
        let rule = |operator: &str, values: Value| json!([{"matchExpressions": [{"key": "gen", "operator": operator, "values": values}]}]);
        check(required(rule("Gt", json!(["2"]))), &["a"]);
        check(required(rule("DoesNotExist", json!([]))), &["b"]);
        check(
            required(
                json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]),
            ),
            &["b"],
        );
        check(required(json!([{}])), &[]);
    }
}
