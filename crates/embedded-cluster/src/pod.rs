//! Pods: their defaults, and the verbs that only pods have: binding, eviction, ephemeral containers, resize.

use serde_json::{Value, json};

use crate::check::must_be_objects;
use crate::cluster::Cluster;
use crate::compact::Compact;
use crate::managed::How;
use crate::object::{Stored, default_to, meta, set, set_condition, unset};
use crate::selector::Selector;
use crate::status::Status;
use crate::target::{DeleteOptions, Deleted, ListOptions, Part, Target, Write};
use std::sync::Arc;

pub(crate) const CONTAINER_LISTS: [&str; 3] =
    ["containers", "initContainers", "ephemeralContainers"];

pub(crate) fn prepare_create(
    cluster: &Cluster,
    target: &Target,
    pod: &mut Value,
) -> Result<(), Status> {
    must_be_objects(target, pod, &["spec"])?;
    default_spec(cluster, target, pod)?;
    set(pod, &["status", "phase"], "Pending".into());
    let class = quality_of_service(&pod["spec"]);
    set(pod, &["status", "qosClass"], class.into());
    Ok(())
}

/// A pod that existed before the cluster may name a priority class that does not exist.
pub(crate) fn default_planted(
    cluster: &Cluster,
    target: &Target,
    pod: &mut Value,
) -> Result<(), Status> {
    must_be_objects(target, pod, &["spec"])?;
    let mut whole = pod.clone();
    match default_spec(cluster, target, &mut whole) {
        Ok(()) => *pod = whole,
        Err(status) => {
            tracing::debug!(%status, pod = target.name, "its priority stays as it is");
            default_but_priority(pod);
        }
    }
    Ok(())
}

/// The defaults of Kubernetes, as far as schedulers, webhooks and users need them.
pub(crate) fn default_spec(
    cluster: &Cluster,
    target: &Target,
    pod: &mut Value,
) -> Result<(), Status> {
    default_but_priority(pod);
    default_priority(cluster, target, pod)
}

pub(crate) fn default_but_priority(pod: &mut Value) {
    default_to(pod, &["spec", "restartPolicy"], || "Always".into());
    default_to(pod, &["spec", "dnsPolicy"], || "ClusterFirst".into());
    default_to(pod, &["spec", "schedulerName"], || {
        "default-scheduler".into()
    });
    default_to(pod, &["spec", "serviceAccountName"], || "default".into());
    default_to(pod, &["spec", "terminationGracePeriodSeconds"], || {
        30.into()
    });
    default_to(pod, &["spec", "enableServiceLinks"], || true.into());
    default_to(pod, &["spec", "securityContext"], || json!({}));
    default_containers(pod);
}

fn default_containers(pod: &mut Value) {
    for list in CONTAINER_LISTS {
        for container in pod["spec"]
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if !container.is_object() {
                continue;
            }
            default_to(container, &["terminationMessagePath"], || {
                "/dev/termination-log".into()
            });
            default_to(container, &["terminationMessagePolicy"], || "File".into());
            let image = container["image"].as_str().unwrap_or_default();
            let moving = image.ends_with(":latest")
                || !image
                    .rsplit('/')
                    .next()
                    .is_some_and(|name| name.contains([':', '@']));
            default_to(container, &["imagePullPolicy"], || {
                if moving { "Always" } else { "IfNotPresent" }.into()
            });
            default_to(container, &["resources"], || json!({}));
            // A limit without a request is the request.
            if let Value::Object(limits) = container["resources"]["limits"].clone() {
                for (name, quantity) in limits {
                    default_to(container, &["resources", "requests", &name], || quantity);
                }
            }
            for port in container
                .get_mut("ports")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                if port.is_object() {
                    default_to(port, &["protocol"], || "TCP".into());
                }
            }
        }
    }
}

fn default_priority(cluster: &Cluster, target: &Target, pod: &mut Value) -> Result<(), Status> {
    let classes = cluster.resource("scheduling.k8s.io", "priorityclasses")?;
    let name = pod["spec"]["priorityClassName"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let class = if name.is_empty() {
        let listed = cluster.list(&Target::collection(&classes, ""), &ListOptions::default())?;
        listed
            .items
            .iter()
            .map(|class| class.value())
            .find(|class| class["globalDefault"] == Value::Bool(true))
    } else {
        match cluster.find(&Target::object(&classes, "", &name)) {
            Some(class) => Some(class.value()),
            None => {
                return Err(
                    target.forbidden(format!("no PriorityClass with name {name} was found"))
                );
            }
        }
    };
    if let (true, Some(class)) = (name.is_empty(), &class) {
        set(
            pod,
            &["spec", "priorityClassName"],
            meta(class, "name").into(),
        );
    }
    let class = class.unwrap_or_else(|| json!({ "value": 0 }));
    let priority = class["value"].as_i64().unwrap_or(0);
    if pod["spec"]["priority"]
        .as_i64()
        .is_some_and(|given| given != priority)
    {
        return Err(target.forbidden(format!(
            "the integer value of priority ({}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name",
            pod["spec"]["priority"]
        )));
    }
    set(pod, &["spec", "priority"], priority.into());
    let policy = class["preemptionPolicy"]
        .as_str()
        .unwrap_or("PreemptLowerPriority")
        .to_owned();
    default_to(pod, &["spec", "preemptionPolicy"], || policy.into());
    Ok(())
}

fn quality_of_service(spec: &Value) -> &'static str {
    let containers = || {
        CONTAINER_LISTS
            .iter()
            .take(2)
            .flat_map(|list| spec[*list].as_array().into_iter().flatten())
    };
    let asks = |container: &Value, what: &str| {
        container["resources"][what]
            .as_object()
            .is_some_and(|map| map.contains_key("cpu") || map.contains_key("memory"))
    };
    if !containers().any(|container| asks(container, "limits") || asks(container, "requests")) {
        return "BestEffort";
    }
    let fixed = |container: &Value| {
        let (limits, requests) = (
            &container["resources"]["limits"],
            &container["resources"]["requests"],
        );
        ["cpu", "memory"]
            .iter()
            .all(|name| !limits[*name].is_null() && limits[*name] == requests[*name])
    };
    if containers().all(fixed) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

pub(crate) fn validate(target: &Target, pod: &Value) -> Result<(), Status> {
    must_be_objects(target, pod, &["spec", "status"])?;
    let spec = &pod["spec"];
    for list in CONTAINER_LISTS {
        let containers = match &spec[list] {
            Value::Null => &[][..],
            Value::Array(containers) => containers,
            _ => return Err(Status::bad_request(format!("spec.{list} is not a list"))),
        };
        for (at, container) in containers.iter().enumerate() {
            if !container.is_object() {
                return Err(Status::bad_request(format!(
                    "spec.{list}[{at}] is not an object"
                )));
            }
            let name = container["name"].as_str().unwrap_or_default();
            if name.is_empty() {
                return Err(target.invalid(&format!("spec.{list}[{at}].name"), "Required value"));
            }
            if containers
                .iter()
                .take(at)
                .any(|other| other["name"] == name)
            {
                return Err(target.invalid(
                    &format!("spec.{list}[{at}].name"),
                    format!("Duplicate value: \"{name}\""),
                ));
            }
        }
    }
    if spec["containers"].as_array().is_none_or(Vec::is_empty) {
        return Err(target.invalid("spec.containers", "Required value"));
    }
    Ok(())
}

pub(crate) fn validate_update(target: &Target, old: &Value, new: &Value) -> Result<(), Status> {
    if target.part != Part::Whole || old["spec"] == new["spec"] {
        return Ok(());
    }
    let (mut before, mut after) = (old["spec"].clone(), new["spec"].clone());
    for spec in [&mut before, &mut after] {
        for field in [
            "activeDeadlineSeconds",
            "tolerations",
            "terminationGracePeriodSeconds",
        ] {
            unset(spec, &[field]);
        }
        for list in ["containers", "initContainers"] {
            for container in spec
                .get_mut(list)
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                unset(container, &["image"]);
                unset(container, &["imagePullPolicy"]);
            }
        }
    }
    let gated = |spec: &Value| {
        spec["schedulingGates"]
            .as_array()
            .is_some_and(|gates| !gates.is_empty())
    };
    if gated(&before) {
        // A pod with scheduling gates may lose gates, and its node selection may be narrowed.
        for spec in [&mut before, &mut after] {
            for field in ["schedulingGates", "nodeSelector", "affinity"] {
                unset(spec, &[field]);
            }
        }
    }
    if before == after {
        return Ok(());
    }
    let why = "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,\
               `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
               tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
    Err(target.invalid("spec", why))
}

/// Copies the resources of containers with the same name, and nothing else.
pub(crate) fn resize(pod: &mut Value, wanted: &Value, list: &str) {
    for container in pod["spec"]
        .get_mut(list)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let twin = wanted
            .as_array()
            .into_iter()
            .flatten()
            .find(|twin| twin["name"] == container["name"]);
        if let Some(resources) = twin.and_then(|twin| twin.get("resources")) {
            set(container, &["resources"], resources.clone());
        }
    }
}

/// How long a deletion waits for the node. Only a pod that runs on a node waits at all.
pub(crate) fn grace_seconds(
    cluster: &Cluster,
    target: &Target,
    pod: &Value,
    options: &DeleteOptions,
) -> i64 {
    if !target.resource.is_core("pods") || !cluster.0.options.graceful_deletion {
        return 0;
    }
    let done = matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    );
    if done
        || pod["spec"]["nodeName"]
            .as_str()
            .unwrap_or_default()
            .is_empty()
    {
        return 0;
    }
    let own = pod["spec"]["terminationGracePeriodSeconds"]
        .as_i64()
        .unwrap_or(30);
    options.grace_seconds.unwrap_or(own).max(0)
}

impl Cluster {
    /// Binds a pod to a node, and merges the binding's annotations and labels into the pod, in one step. 409 if the pod
    /// has a node, has another uid than the binding names, or has scheduling gates.
    pub async fn bind(
        &self,
        target: &Target,
        binding: Value,
        write: &Write,
    ) -> Result<Arc<Stored>, Status> {
        self.bind_with(target, binding, write, |_, _| Ok(())).await
    }

    /// As [`Cluster::bind`], with a further change of the pod in the same step, as in [`Cluster::change`].
    pub async fn bind_with(
        &self,
        target: &Target,
        binding: Value,
        write: &Write,
        change: impl Fn(&mut Value, &mut Option<Arc<dyn Compact>>) -> Result<(), Status>,
    ) -> Result<Arc<Stored>, Status> {
        let binding = self
            .admit_connect(target, "binding", binding, write)
            .await?;
        let named = meta(&binding, "name");
        if !named.is_empty() && named != target.name {
            return Err(Status::bad_request(
                "name in URL does not match name in Binding object",
            ));
        }
        let kind = binding["target"]["kind"].as_str().unwrap_or_default();
        if !matches!(kind, "" | "Node") {
            return Err(Status::invalid(
                "",
                "Binding",
                &target.name,
                "target.kind",
                format!("Unsupported value: \"{kind}\": supported values: \"Node\""),
            ));
        }
        let node = binding["target"]["name"].as_str().unwrap_or_default();
        if node.is_empty() {
            return Err(Status::invalid(
                "",
                "Binding",
                &target.name,
                "target.name",
                "Required value",
            ));
        }
        let refused = |why: String| Status::conflict("", "pods/binding", &target.name, why);
        let inner = target.clone().part(Part::Internal);
        self.change(&inner, write, |pod, beside| {
            let name = &target.name;
            let (uid, there) = (meta(&binding, "uid"), meta(pod, "uid"));
            if !uid.is_empty() && uid != there {
                return Err(refused(format!(
                    "Precondition failed: UID in precondition: {uid}, UID in object meta: {there}"
                )));
            }
            if !meta(pod, "deletionTimestamp").is_empty() {
                return Err(refused(format!(
                    "pod {name} is being deleted, cannot be assigned to a host"
                )));
            }
            let present = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            if !present.is_empty() {
                return Err(refused(format!(
                    "pod {name} is already assigned to node \"{present}\""
                )));
            }
            if pod["spec"]["schedulingGates"]
                .as_array()
                .is_some_and(|gates| !gates.is_empty())
            {
                return Err(refused(format!(
                    "pod {name} has non-empty .spec.schedulingGates"
                )));
            }
            set(pod, &["spec", "nodeName"], node.into());
            for texts in ["annotations", "labels"] {
                for (key, value) in binding["metadata"][texts].as_object().into_iter().flatten() {
                    set(pod, &["metadata", texts, key], value.clone());
                }
            }
            set_condition(pod, "PodScheduled", "True", "", "");
            change(pod, beside)
        })
    }

    /// Deletes a pod if the disruption budgets that select it allow it; else 429.
    pub async fn evict(
        &self,
        target: &Target,
        eviction: &Value,
        write: &Write,
    ) -> Result<Deleted, Status> {
        let pod = self.get(target)?;
        let options = delete_options(&eviction["deleteOptions"]);
        self.admit_connect(target, "eviction", eviction.clone(), write)
            .await?;
        let budgets = self.resource("policy", "poddisruptionbudgets")?;
        let budgets = self.list(
            &Target::collection(&budgets, &target.namespace),
            &ListOptions::default(),
        )?;
        let selecting: Vec<Value> = budgets
            .items
            .iter()
            .map(|budget| budget.value())
            .filter(|budget| budget["spec"]["selector"].is_object())
            .filter(|budget| pod.matches(&Selector::from_object(&budget["spec"]["selector"])))
            .collect();
        let running = |pod: &Value| {
            !matches!(
                pod["status"]["phase"].as_str(),
                Some("Succeeded" | "Failed" | "Pending")
            )
        };
        if let (true, [budget, rest @ ..]) = (running(&pod.bare()), selecting.as_slice()) {
            if !rest.is_empty() {
                return Err(Status::internal(
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                ));
            }
            self.spend_budget(target, budget, write).await?;
        }
        self.delete(target, &options, write).await
    }

    async fn spend_budget(
        &self,
        target: &Target,
        budget: &Value,
        write: &Write,
    ) -> Result<(), Status> {
        let refused = || {
            let mut status = Status::too_many_requests(
                "Cannot evict pod as it would violate the pod's disruption budget.",
            );
            status.details.insert("retryAfterSeconds".into(), 10.into());
            let name = meta(budget, "name");
            status.with_cause(
                "DisruptionBudget",
                &format!("The disruption budget {name} does not allow another disruption now"),
                "",
            )
        };
        let Some(allowed) = budget["status"]["disruptionsAllowed"].as_i64() else {
            // No controller keeps the status up to date, so the pods are counted here.
            let pods = self.list(
                &Target::collection(&target.resource, &target.namespace),
                &ListOptions {
                    selector: Selector::from_object(&budget["spec"]["selector"]),
                    ..ListOptions::default()
                },
            )?;
            let all = i64::try_from(pods.items.len()).unwrap_or(i64::MAX);
            let healthy = pods
                .items
                .iter()
                .map(|pod| pod.bare())
                .filter(|pod| pod["status"]["phase"] == "Running")
                .count();
            let healthy = i64::try_from(healthy).unwrap_or(i64::MAX);
            let least = match (
                &budget["spec"]["minAvailable"],
                &budget["spec"]["maxUnavailable"],
            ) {
                (Value::Null, Value::Null) => 0,
                (Value::Null, most) => all - share(most, all),
                (least, _) => share(least, all),
            };
            return if healthy > least {
                Ok(())
            } else {
                Err(refused())
            };
        };
        if allowed <= 0 {
            return Err(refused());
        }
        let budgets = self.resource("policy", "poddisruptionbudgets")?;
        let spent =
            Target::object(&budgets, &target.namespace, meta(budget, "name")).part(Part::Internal);
        self.modify(&spent, write, How::Update, |budget| {
            let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
            if allowed <= 0 {
                return Err(refused());
            }
            let mut spent = budget.clone();
            set(
                &mut spent,
                &["status", "disruptionsAllowed"],
                (allowed - 1).into(),
            );
            Ok(spent)
        })
        .await
        .map(drop)
    }
}

/// A number, or a percentage of `all`, rounded up.
fn share(value: &Value, all: i64) -> i64 {
    match value {
        Value::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            all.saturating_mul(percent.clamp(0, 100)).saturating_add(99) / 100
        }
        value => value.as_i64().unwrap_or(0),
    }
}

/// From a `DeleteOptions` object.
pub(crate) fn delete_options(object: &Value) -> DeleteOptions {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    DeleteOptions {
        uid: text(&object["preconditions"]["uid"]),
        resource_version: text(&object["preconditions"]["resourceVersion"]),
        grace_seconds: object["gracePeriodSeconds"].as_i64(),
    }
}
