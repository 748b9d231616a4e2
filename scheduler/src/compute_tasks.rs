//! ComputeTasks: creates a pod for each, creates it again as often as the task allows, and reports the outcome.
//! [`next`] derives the next action from the task and its pod; the rest of this file carries it out, while this replica
//! answers. Pods of other owners are never changed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube_api::hcs::{
    API_VERSION, ComputeTask, ComputeTaskStatus, TaskDevice, TaskPhase, Vendor, keys,
};
use kube_api::keys as api_keys;
use kube_api::object::Pod;
use serde_json::{Map, Value, json};

use crate::Scheduler;
use crate::calls::within;

/// The wait after a check that failed.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The wait before a failed watch restarts. In a cluster without the definition every watch fails.
const PAUSE: Duration = Duration::from_secs(5);
/// The longest name of a pod that fits into its containers' host names.
const MOST_NAME_LETTERS: usize = 63;

/// The next action for a task.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// Create this pod, and then write this status.
    Make(Box<Value>, Box<ComputeTaskStatus>),
    /// Write this status.
    Report(Box<ComputeTaskStatus>),
    /// Do nothing.
    Wait,
}

/// The pod of a task's attempt: present, absent, or a pod of the same name that is not the task's.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptPod {
    /// There is no pod with that name.
    None,
    /// The task's.
    Own(Box<Pod>),
    /// Another owner's.
    Foreign,
}

/// The name of an attempt's pod; attempts count from 1.
pub fn pod_name(task: &str, attempt: i32) -> String {
    let end = format!("-{attempt}");
    let room = MOST_NAME_LETTERS - end.len();
    let cut = task.get(..room).unwrap_or(task);
    format!("{}{end}", cut.trim_end_matches(['-', '.']))
}

/// The attempt that is running or comes next.
pub fn attempt(task: &ComputeTask) -> i32 {
    let status = task.status.as_ref();
    status
        .and_then(|status| status.attempts)
        .unwrap_or(0)
        .max(1)
}

/// Whether the task has ended, so that no further work is due for it.
pub fn is_over(task: &ComputeTask) -> bool {
    let phase = task.status.as_ref().and_then(|status| status.phase);
    matches!(phase, Some(TaskPhase::Succeeded | TaskPhase::Failed))
}

/// The next action, given the pod of the current attempt. `now` is in RFC 3339.
pub fn next(task: &ComputeTask, found: &AttemptPod, now: &str) -> Next {
    if is_over(task) || task.metadata.deletion_timestamp.is_some() {
        return Next::Wait;
    }
    let before = task.status.clone().unwrap_or_default();
    let attempt = attempt(task);
    let was_made = before.attempts.unwrap_or(0) >= attempt;
    let status = match found {
        AttemptPod::Foreign => failed(
            &before,
            now,
            "NameTaken",
            format!(
                "a pod of another owner has the name {}; delete it, or make the task under another name",
                pod_name(task.metadata.name.as_deref().unwrap_or_default(), attempt)
            ),
        ),
        AttemptPod::None if was_made => {
            let why = "the pod was deleted before it ended".to_owned();
            return after_failure(task, &before, attempt, now, "PodDeleted", why);
        }
        AttemptPod::None => return make(task, &before, attempt, now),
        AttemptPod::Own(pod) => match pod.status.phase.as_str() {
            "Succeeded" => ComputeTaskStatus {
                phase: Some(TaskPhase::Succeeded),
                reason: Some("PodSucceeded".to_owned()),
                message: None,
                completion_time: Some(now.to_owned()),
                ..of_pod(&before, pod, attempt)
            },
            "Failed" => {
                let status = of_pod(&before, pod, attempt);
                let why = format!(
                    "pod {} failed",
                    pod.metadata.name.as_deref().unwrap_or_default()
                );
                return after_failure(task, &status, attempt, now, "PodFailed", why);
            }
            phase => {
                let (phase, reason, message) = match phase {
                    "Running" => (TaskPhase::Running, "PodRunning".to_owned(), None),
                    _ if !pod.spec.node_name.is_empty() => {
                        (TaskPhase::Scheduled, "PodScheduled".to_owned(), None)
                    }
                    _ => {
                        let (reason, message) = why_unscheduled(pod);
                        (TaskPhase::Pending, reason, message)
                    }
                };
                ComputeTaskStatus {
                    phase: Some(phase),
                    reason: Some(reason),
                    message,
                    start_time: before.start_time.clone().or(Some(now.to_owned())),
                    ..of_pod(&before, pod, attempt)
                }
            }
        },
    };
    let status = ComputeTaskStatus {
        observed_generation: task.metadata.generation,
        ..status
    };
    if status == before {
        Next::Wait
    } else {
        Next::Report(Box::new(status))
    }
}

fn failed(
    before: &ComputeTaskStatus,
    now: &str,
    reason: &str,
    message: String,
) -> ComputeTaskStatus {
    ComputeTaskStatus {
        phase: Some(TaskPhase::Failed),
        reason: Some(reason.to_owned()),
        message: Some(message),
        completion_time: Some(now.to_owned()),
        ..before.clone()
    }
}

/// Another attempt if the task has retries left, else the end.
fn after_failure(
    task: &ComputeTask,
    before: &ComputeTaskStatus,
    attempt: i32,
    now: &str,
    reason: &str,
    message: String,
) -> Next {
    if attempt <= task.spec.retries.unwrap_or(0) {
        return make(task, before, attempt.saturating_add(1), now);
    }
    Next::Report(Box::new(ComputeTaskStatus {
        attempts: Some(attempt),
        observed_generation: task.metadata.generation,
        ..failed(before, now, reason, message)
    }))
}

fn make(task: &ComputeTask, before: &ComputeTaskStatus, attempt: i32, now: &str) -> Next {
    let pod = match pod_of(task, attempt) {
        Ok(pod) => pod,
        Err(problem) => {
            return Next::Report(Box::new(failed(
                before,
                now,
                "TemplateInvalid",
                problem.to_string(),
            )));
        }
    };
    let status = ComputeTaskStatus {
        phase: Some(TaskPhase::Pending),
        pod: pod
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .map(str::to_owned),
        attempts: Some(attempt),
        start_time: before.start_time.clone().or(Some(now.to_owned())),
        reason: Some("PodMade".to_owned()),
        observed_generation: task.metadata.generation,
        ..ComputeTaskStatus::default()
    };
    Next::Make(Box::new(pod), Box::new(status))
}

/// The status that follows from the pod.
fn of_pod(before: &ComputeTaskStatus, pod: &Pod, attempt: i32) -> ComputeTaskStatus {
    let annotation = |key: &str| {
        let annotations = pod.metadata.annotations.as_ref()?;
        annotations.get(key).filter(|text| !text.is_empty())
    };
    let devices = annotation(keys::ASSIGNED_DEVICES).map(|text| {
        let ids = text.split(',');
        ids.map(|id| TaskDevice { id: id.to_owned() }).collect()
    });
    ComputeTaskStatus {
        pod: pod.metadata.name.clone(),
        attempts: Some(attempt),
        node: Some(pod.spec.node_name.clone()).filter(|node| !node.is_empty()),
        vendor: annotation(keys::ASSIGNED_VENDOR).and_then(|word| Vendor::parse(word)),
        devices: devices.unwrap_or_default(),
        start_time: before.start_time.clone(),
        ..ComputeTaskStatus::default()
    }
}

fn why_unscheduled(pod: &Pod) -> (String, Option<String>) {
    let scheduled = pod.status.conditions.iter();
    let refused = scheduled
        .filter(|condition| condition.kind == "PodScheduled" && condition.status == "False")
        .find(|condition| !condition.reason.is_empty());
    match refused {
        Some(condition) => (
            condition.reason.clone(),
            Some(condition.message.clone()).filter(|text| !text.is_empty()),
        ),
        None => ("PodPending".to_owned(), None),
    }
}

/// Why a task's template is no pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum TemplateError {
    #[error("template.spec.containers is empty; name at least one container")]
    NoContainer,
    /// A field of the first container.
    #[error("template.spec.containers[0].{0} is no object")]
    NoObject(&'static str),
}

/// The pod of an attempt: the template with the task's request on its first container.
fn pod_of(task: &ComputeTask, attempt: i32) -> Result<Value, TemplateError> {
    let name = task.metadata.name.as_deref().unwrap_or_default();
    let spec = &task.spec;
    let mut pod_spec = spec.template.spec.clone();
    let container = pod_spec
        .pointer_mut("/containers/0")
        .and_then(Value::as_object_mut)
        .ok_or(TemplateError::NoContainer)?;
    let amounts = [
        (keys::VRAM, &spec.resources.vram),
        (keys::TFLOPS_FP16, &spec.resources.tflops_fp16),
        (keys::TFLOPS_FP32, &spec.resources.tflops_fp32),
        (keys::DEVICES, &spec.resources.devices),
    ];
    let resources = container
        .entry("resources")
        .or_insert_with(|| json!({}))
        .as_object_mut()
        .ok_or(TemplateError::NoObject("resources"))?;
    let limits = resources
        .entry("limits")
        .or_insert_with(|| json!({}))
        .as_object_mut()
        .ok_or(TemplateError::NoObject("resources.limits"))?;
    for (name, amount) in amounts {
        if let Some(amount) = amount {
            limits.insert(name.to_owned(), json!(amount.0));
        }
    }
    if let Some(pod_spec) = pod_spec.as_object_mut() {
        pod_spec
            .entry("restartPolicy")
            .or_insert_with(|| json!("Never"));
    }
    let template = spec.template.metadata.clone().unwrap_or_default();
    let mut annotations = template.annotations;
    for (key, value) in [
        (keys::VENDOR_PREFERENCE, spec.vendor_preference.clone()),
        (
            keys::ALLOW_DOWNGRADE,
            spec.allow_downgrade.map(|allow| allow.to_string()),
        ),
        (keys::TOPOLOGY_PREFERENCE, spec.topology_preference.clone()),
    ] {
        if let Some(value) = value {
            annotations.insert(key.to_owned(), value);
        }
    }
    let mut labels = template.labels;
    // A label value may be shorter than a name.
    if name.len() <= MOST_NAME_LETTERS {
        labels.insert(keys::TASK.to_owned(), name.to_owned());
    }
    labels.insert(keys::TASK_ATTEMPT.to_owned(), attempt.to_string());
    let owner = OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: "ComputeTask".to_owned(),
        name: name.to_owned(),
        uid: task.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(name, attempt),
            "namespace": task.metadata.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner],
        },
        "spec": pod_spec,
    }))
}

fn is_own(pod: &Pod, task: &ComputeTask) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    let uid = task.metadata.uid.as_deref().unwrap_or_default();
    owners.into_iter().any(|owner| owner.uid == uid)
}

/// Namespace and name of a task.
type TaskName = (String, String);

/// The tasks that there are, and those to look at.
#[derive(Debug, Default)]
struct Tasks {
    known: HashMap<TaskName, ComputeTask>,
    due: BTreeSet<TaskName>,
}

impl Tasks {
    fn set(&mut self, task: ComputeTask) {
        let name = name_of(&task);
        self.due.insert(name.clone());
        self.known.insert(name, task);
    }

    fn remove(&mut self, task: &ComputeTask) {
        self.known.remove(&name_of(task));
    }

    /// Processes a change of a task's pod: created, changed or deleted.
    fn note_pod(&mut self, pod: &Pod) {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let owners = pod.metadata.owner_references.iter().flatten();
        let owners = owners.filter(|owner| owner.kind == "ComputeTask");
        self.due
            .extend(owners.map(|owner| (namespace.clone(), owner.name.clone())));
    }

    fn look_at_all(&mut self) {
        self.due.extend(self.known.keys().cloned());
    }

    /// The tasks to look at that are not over.
    fn take_due(&mut self) -> Vec<ComputeTask> {
        let due = std::mem::take(&mut self.due);
        let tasks = due.iter().filter_map(|name| self.known.get(name));
        tasks.filter(|task| !is_over(task)).cloned().collect()
    }

    /// How many are in which phase. A task without a status waits.
    fn by_phase(&self) -> BTreeMap<&'static str, u64> {
        let mut phases = BTreeMap::from(PHASES.map(|phase| (word(phase), 0)));
        for task in self.known.values() {
            let phase = task.status.as_ref().and_then(|status| status.phase);
            *phases
                .entry(word(phase.unwrap_or(TaskPhase::Pending)))
                .or_default() += 1;
        }
        phases
    }
}

const PHASES: [TaskPhase; 5] = [
    TaskPhase::Pending,
    TaskPhase::Scheduled,
    TaskPhase::Running,
    TaskPhase::Succeeded,
    TaskPhase::Failed,
];

fn word(phase: TaskPhase) -> &'static str {
    match phase {
        TaskPhase::Pending => "Pending",
        TaskPhase::Scheduled => "Scheduled",
        TaskPhase::Running => "Running",
        TaskPhase::Succeeded => "Succeeded",
        TaskPhase::Failed => "Failed",
    }
}

fn name_of(task: &ComputeTask) -> TaskName {
    (
        task.metadata.namespace.clone().unwrap_or_default(),
        task.metadata.name.clone().unwrap_or_default(),
    )
}

impl Scheduler {
    /// Checks each ComputeTask when it or its pod changes, while this replica answers, until the future is dropped.
    pub(crate) async fn run_compute_tasks(self) {
        let client = || self.0.client.clone();
        let mut tasks = std::pin::pin!(watcher(
            Api::<ComputeTask>::all(client()),
            watcher::Config::default()
        ));
        let pods = watcher::Config::default().labels(keys::TASK_ATTEMPT);
        let mut pods = std::pin::pin!(watcher(Api::<Pod>::all(client()), pods));
        let mut all = Tasks::default();
        let mut coming = Vec::new();
        let mut answered = false;
        let mut told = false;
        loop {
            let error = tokio::select! {
                event = tasks.next() => match event {
                    Some(Ok(event)) => {
                        match event {
                            Event::Init => coming.clear(),
                            Event::InitApply(task) => coming.push(task),
                            Event::InitDone => {
                                told = false;
                                all.known.clear();
                                coming.drain(..).for_each(|task| all.set(task));
                            }
                            Event::Apply(task) => all.set(task),
                            Event::Delete(task) => all.remove(&task),
                        }
                        *self.0.compute_tasks.lock() = Some(all.by_phase());
                        None
                    }
                    Some(Err(error)) => Some(error),
                    None => return,
                },
                event = pods.next() => match event {
                    Some(Ok(Event::Apply(pod) | Event::InitApply(pod) | Event::Delete(pod))) => {
                        all.note_pod(&pod);
                        None
                    }
                    // A pod that was deleted meanwhile is in no list.
                    Some(Ok(Event::InitDone)) => {
                        all.look_at_all();
                        None
                    }
                    Some(Ok(Event::Init)) => None,
                    Some(Err(error)) => Some(error),
                    None => return,
                },
                // Failed writes are tried again, and another replica may have stopped answering.
                () = tokio::time::sleep(LOOK_EVERY) => None,
            };
            if let Some(error) = error {
                if !told {
                    tracing::warn!(%error, "cannot read ComputeTasks; trying again");
                    told = true;
                }
                tokio::time::sleep(PAUSE).await;
            }
            let answers = self.answers().is_ok();
            if answers && !answered {
                all.look_at_all();
            }
            answered = answers;
            if answers {
                self.look_at_compute_tasks(&mut all).await;
            } else {
                // All tasks are checked when this replica answers again.
                all.due.clear();
            }
        }
    }

    async fn look_at_compute_tasks(&self, all: &mut Tasks) {
        let patience = self.0.settings.kube_timeout;
        for task in all.take_due() {
            let name = name_of(&task);
            match within(patience, self.run_compute_task(&task)).await {
                Ok(None) => {}
                // The watch may deliver the pod before it delivers this change of the task.
                Ok(Some(status)) => {
                    if let Some(known) = all.known.get_mut(&name) {
                        known.status = Some(status);
                    }
                }
                Err(error) => {
                    let (namespace, task) = &name;
                    tracing::warn!(
                        namespace,
                        task,
                        %error,
                        "a ComputeTask waits for the next look"
                    );
                    all.due.insert(name);
                }
            }
        }
    }

    /// Does the work that is due for the task. Returns the status that it has written.
    async fn run_compute_task(
        &self,
        task: &ComputeTask,
    ) -> Result<Option<ComputeTaskStatus>, kube::Error> {
        let namespace = task.metadata.namespace.as_deref().unwrap_or_default();
        let name = task.metadata.name.as_deref().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.0.client.clone(), namespace);
        let now = jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string();
        let found = match pods.get_opt(&pod_name(name, attempt(task))).await {
            Ok(None) => AttemptPod::None,
            Ok(Some(pod)) if is_own(&pod, task) => AttemptPod::Own(Box::new(pod)),
            Ok(Some(_)) => AttemptPod::Foreign,
            Err(error) => return Err(error),
        };
        let status = match next(task, &found, &now) {
            Next::Wait => return Ok(None),
            Next::Report(status) => status,
            Next::Make(mut pod, status) => {
                self.without_reserved(&mut pod);
                let made = self.make_task_pod(namespace, &pod).await;
                match made {
                    Ok(()) => status,
                    // Our own pod of an earlier check, whose status was not written: the next check sees it.
                    Err(kube::Error::Api(refusal)) if refusal.code == 409 => status,
                    Err(kube::Error::Api(refusal)) if (400..500).contains(&refusal.code) => {
                        let before = task.status.clone().unwrap_or_default();
                        let why = refusal.message.clone();
                        Box::new(failed(&before, &now, "PodRefused", why))
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        self.write_compute_task(namespace, name, &status).await?;
        Ok(Some(*status))
    }

    /// Removes from a pod what admission accepts from the scheduler's account but not from a tenant: annotations that
    /// say what the pod holds, and the label that exempts it from the webhook.
    fn without_reserved(&self, pod: &mut Value) {
        let reserved: HashSet<&str> = self.0.vendors.allocation_keys().collect();
        let is_reserved = |key: &str| {
            reserved.contains(key)
                || key.starts_with(api_keys::VISIBLE_DEVICES_PREFIX)
                || [api_keys::VGPU_NODE, api_keys::WEBHOOK].contains(&key)
        };
        for field in ["/metadata/annotations", "/metadata/labels"] {
            if let Some(entries) = pod.pointer_mut(field).and_then(Value::as_object_mut) {
                entries.retain(|key, _| !is_reserved(key));
            }
        }
    }

    async fn make_task_pod(&self, namespace: &str, pod: &Value) -> Result<(), kube::Error> {
        let body = serde_json::to_vec(pod).map_err(kube::Error::SerdeError)?;
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let request = kube::core::Request::new(path)
            .create(&PostParams::default(), body)
            .map_err(kube::Error::BuildRequest)?;
        self.0.client.request::<Value>(request).await.map(drop)
    }

    async fn write_compute_task(
        &self,
        namespace: &str,
        name: &str,
        status: &ComputeTaskStatus,
    ) -> Result<(), kube::Error> {
        let tasks: Api<ComputeTask> = Api::namespaced(self.0.client.clone(), namespace);
        // A merge patch removes only fields that are null, so missing fields of the status are set to null.
        let mut value: Map<String, Value> = [
            "pod",
            "node",
            "vendor",
            "devices",
            "reason",
            "message",
            "completionTime",
        ]
        .map(|field| (field.to_owned(), Value::Null))
        .into_iter()
        .collect();
        if let Ok(Value::Object(fields)) = serde_json::to_value(status) {
            value.extend(fields);
        }
        let patch = Patch::Merge(json!({ "status": value }));
        let params = PatchParams::default();
        let call = tasks.patch_status(name, &params, &patch);
        call.await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use kube_api::hcs::{Amounts, ComputeTaskSpec, PodTemplate};
    use kube_api::quantity::Quantity;

    use super::*;

    const NOW: &str = "2026-01-21T10:00:00Z";

    fn task(retries: i32) -> ComputeTask {
        let mut task = ComputeTask::new(
            "train",
            ComputeTaskSpec {
                resources: Amounts {
                    vram: Some(Quantity::from("16Gi")),
                    ..Amounts::default()
                },
                vendor_preference: Some("nvidia".to_owned()),
                retries: Some(retries),
                template: PodTemplate {
                    spec: json!({ "containers": [{ "name": "c", "image": "i" }] }),
                    ..PodTemplate::default()
                },
                ..ComputeTaskSpec::default()
            },
        );
        task.metadata.uid = Some("uid".to_owned());
        task.metadata.namespace = Some("default".to_owned());
        task
    }

    fn after(task: &ComputeTask, status: ComputeTaskStatus) -> ComputeTask {
        task.clone().with_status(status)
    }

    fn pod(phase: &str, node: &str) -> AttemptPod {
        AttemptPod::Own(Box::new(
            serde_json::from_value(json!({
                "metadata": { "name": "train-1", "annotations": {
                    "hcs.io/assigned-vendor": "nvidia", "hcs.io/assigned-devices": "0,1",
                } },
                "spec": { "nodeName": node },
                "status": { "phase": phase },
            }))
            .unwrap(),
        ))
    }

    fn report(next: Next) -> ComputeTaskStatus {
        match next {
            Next::Report(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn made(next: Next) -> (Value, ComputeTaskStatus) {
        match next {
            Next::Make(pod, status) => (*pod, *status),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_pod_has_the_tasks_request() {
        let (pod, status) = made(next(&task(0), &AttemptPod::None, NOW));

        assert_eq!(pod["metadata"]["name"], "train-1");
        assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], "uid");
        assert_eq!(
            pod["metadata"]["annotations"]["hcs.io/vendor-preference"],
            "nvidia"
        );
        let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
        assert_eq!(limits["ai.compute/vram"], "16Gi");
        assert_eq!(pod["spec"]["restartPolicy"], "Never");
        assert_eq!(status.attempts, Some(1));
    }

    #[test]
    fn the_status_follows_the_pod() {
        let (_, status) = made(next(&task(0), &AttemptPod::None, NOW));
        let task = after(&task(0), status);

        let running = report(next(&task, &pod("Running", "n"), NOW));
        assert_eq!(running.phase, Some(TaskPhase::Running));
        assert_eq!(running.vendor, Some(Vendor::Nvidia));
        assert_eq!(running.devices.len(), 2);
        let task = after(&task, running);
        assert_eq!(next(&task, &pod("Running", "n"), NOW), Next::Wait);

        let done = report(next(&task, &pod("Succeeded", "n"), NOW));
        assert_eq!(done.phase, Some(TaskPhase::Succeeded));
        assert_eq!(
            next(&after(&task, done), &AttemptPod::None, NOW),
            Next::Wait
        );
    }

    #[test]
    fn a_failed_pod_is_made_again_as_often_as_allowed() {
        let (_, status) = made(next(&task(1), &AttemptPod::None, NOW));
        let first = after(&task(1), status);

        let (pod_again, status) = made(next(&first, &pod("Failed", "n"), NOW));
        assert_eq!(pod_again["metadata"]["name"], "train-2");
        let second = after(&first, status);

        let end = report(next(&second, &pod("Failed", "n"), NOW));
        assert_eq!(end.phase, Some(TaskPhase::Failed));
        assert_eq!(end.reason.as_deref(), Some("PodFailed"));
    }

    #[test]
    fn a_pod_that_is_deleted_counts_as_failed() {
        let (_, status) = made(next(&task(0), &AttemptPod::None, NOW));

        let end = report(next(&after(&task(0), status), &AttemptPod::None, NOW));

        assert_eq!(end.reason.as_deref(), Some("PodDeleted"));
    }

    #[test]
    fn a_pod_of_another_owner_is_left_alone() {
        let end = report(next(&task(3), &AttemptPod::Foreign, NOW));

        assert_eq!(end.reason.as_deref(), Some("NameTaken"));
    }

    #[test]
    fn a_long_name_is_cut_for_the_pod() {
        let name = pod_name(&"t".repeat(100), 12);

        assert_eq!(name.len(), 63);
        assert!(name.ends_with("-12"));
    }
}
