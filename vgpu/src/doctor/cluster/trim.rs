//! Removes from the API server's objects what the checks do not need. Other tenants' secrets are never kept: of their
//! pods no arguments, and only the variables that the checks name.

use serde_json::Value;

use super::ClusterFacts;
use super::objects::{is_ours, text};

/// Variables of other tenants' containers that are kept.
const VARIABLES: [&str; 4] = [
    "CUDA_DISABLE_CONTROL",
    "LD_AUDIT",
    "LD_PRELOAD",
    "NVIDIA_VISIBLE_DEVICES",
];

impl ClusterFacts {
    /// Removes what the checks do not need.
    pub(super) fn trim(&mut self) {
        for pod in &mut self.pods {
            let ours = is_ours(pod);
            slim_metadata(pod);
            keep(pod, "/spec", &POD_SPEC);
            keep(
                pod,
                "/status",
                &[
                    "phase",
                    "conditions",
                    "containerStatuses",
                    "initContainerStatuses",
                ],
            );
            for list in ["/spec/containers", "/spec/initContainers"] {
                slim_containers(pod.pointer_mut(list), ours);
            }
        }
        for node in &mut self.nodes {
            slim_metadata(node);
            keep(node, "/spec", &["unschedulable", "taints"]);
            keep(
                node,
                "/status",
                &["allocatable", "capacity", "conditions", "nodeInfo"],
            );
        }
        for object in self.daemonsets.iter_mut().chain(&mut self.deployments) {
            slim_metadata(object);
            for list in [
                "/spec/template/spec/containers",
                "/spec/template/spec/initContainers",
            ] {
                slim_containers(object.pointer_mut(list), false);
            }
            keep(
                object,
                "/spec/template/spec",
                &[
                    "containers",
                    "initContainers",
                    "nodeSelector",
                    "hostNetwork",
                ],
            );
        }
        self.configmaps.retain(|map| {
            items_of(map, "/data").any(|(key, text)| {
                ["device-config.yaml", "config.json"].contains(&key)
                    || text.contains("KubeSchedulerConfiguration")
            })
        });
        for object in &mut self.computenodes {
            keep(object, "/spec", &["vendor"]);
            keep(object, "/status", &["phase", "lastHeartbeat"]);
        }
        for object in &mut self.slices {
            keep(object, "/spec", &["driver", "pool", "devices"]);
        }
        let others = self
            .namespaces
            .iter_mut()
            .chain(&mut self.services)
            .chain(&mut self.quotas)
            .chain(&mut self.leases)
            .chain(&mut self.configmaps)
            .chain(&mut self.mutating)
            .chain(&mut self.validating)
            .chain(&mut self.slices)
            .chain(&mut self.computenodes);
        others.for_each(slim_metadata);
    }
}

const POD_SPEC: [&str; 8] = [
    "nodeName",
    "schedulerName",
    "serviceAccountName",
    "hostPID",
    "hostNetwork",
    "containers",
    "initContainers",
    "runtimeClassName",
];

/// Key and text of an object's fields.
fn items_of<'a>(object: &'a Value, path: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let fields = object.pointer(path).and_then(Value::as_object);
    fields
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
}

fn slim_metadata(object: &mut Value) {
    keep(
        object,
        "/metadata",
        &[
            "name",
            "namespace",
            "uid",
            "labels",
            "annotations",
            "creationTimestamp",
            "deletionTimestamp",
        ],
    );
    if let Some(annotations) = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

fn slim_containers(containers: Option<&mut Value>, ours: bool) {
    let containers = containers.and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten() {
        let mut fields = vec![
            "name",
            "image",
            "resources",
            "restartPolicy",
            "ports",
            "env",
            "securityContext",
        ];
        if ours {
            fields.extend(["command", "args"]);
        }
        keep(container, "", &fields);
        if let Some(variables) = container.get_mut("env").and_then(Value::as_array_mut) {
            variables.retain(|variable| VARIABLES.contains(&text(variable, "/name")));
        }
    }
}

/// Keeps only these fields of the object at the path.
fn keep(object: &mut Value, path: &str, fields: &[&str]) {
    if let Some(found) = object.pointer_mut(path).and_then(Value::as_object_mut) {
        found.retain(|key, _| fields.contains(&key.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_of_other_programs_pods_are_dropped() {
        let mut facts = ClusterFacts {
            pods: vec![json!({
                "metadata": { "name": "p", "managedFields": [1], "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "hush" } },
                "spec": { "volumes": [], "containers": [{ "name": "c", "args": ["--password=hush"],
                    "env": [{ "name": "TOKEN", "value": "hush" }, { "name": "LD_PRELOAD", "value": "/x.so" }] }] },
            })],
            configmaps: vec![json!({ "metadata": { "name": "m" }, "data": { "a": "hush" } })],
            ..ClusterFacts::default()
        };
        facts.trim();
        let kept = serde_json::to_string(&facts).unwrap();
        assert!(!kept.contains("hush") && kept.contains("/x.so"), "{kept}");
    }
}
