//! `/bind`: a pod's devices are written together with its binding, in one call, so that there is no half-written state.
//! Also writes them at filter time where a program reads them then. The node and devices were chosen by the filter;
//! only a pod without a reservation is fitted here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube_api::allocation::{self, Written};
use kube_api::assigner::{Claim, pod_claim};
use kube_api::extender::ExtenderBindingArgs;
use kube_api::keys;
use kube_api::object::{Node, Pod};
use placement::{Misfit, Placement};
use serde_json::{Value, json};

use crate::events::Kind;
use crate::leases::guards::{GIVE_UP_AFTER, Guard, Guarded, Known, NotGuarded};
use crate::ledger::{Begun, identity, uid_of};
use crate::{DEFAULT_NAMESPACE, Scheduler};

/// The field manager of our writes.
const FIELD_MANAGER: &str = "vgpu-scheduler";

/// The vendor whose GPUs can also be requested by label.
const NVIDIA: &str = "NVIDIA";

/// Whether the outcome of a binding is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It happened, or never will.
    Settled,
    /// It may have happened, or may yet happen.
    InDoubt,
}

/// The outcome of a call that writes.
enum Sent {
    Done,
    /// It did not happen, and will not.
    Refused {
        code: u16,
        text: String,
    },
    /// It may have happened, or may yet happen.
    Unknown(String),
}

impl Scheduler {
    /// Binds the pod to the node with its devices there; a pod without a reservation is fitted first. The binding
    /// continues to its end even if the caller stops waiting.
    ///
    /// # Errors
    ///
    /// Why the pod is not bound, in a sentence for its events.
    pub async fn bind(&self, mut args: ExtenderBindingArgs) -> Result<(), String> {
        if args.pod_namespace.is_empty() {
            args.pod_namespace = DEFAULT_NAMESPACE.to_owned();
        }
        let scheduler = self.clone();
        let about = args.clone();
        // In a task of its own, so that a caller that gives up does not leave a half-finished binding.
        let task = tokio::spawn(async move { scheduler.bind_to_its_end(&args).await });
        let result = match task.await {
            Ok(result) => result,
            Err(error) => Err(format!("the binding broke off: {error}")),
        };
        let (namespace, name, node) = (&about.pod_namespace, &about.pod_name, &about.node);
        let pod = (namespace.as_str(), name.as_str(), about.pod_uid.as_str());
        match &result {
            Ok(()) => {
                tracing::info!(%namespace, pod = %name, %node, "bound");
                self.0.events.pod(
                    pod,
                    Kind::Normal,
                    "BindingSucceed",
                    format!("Successfully binding node [{node}] to {namespace}/{name}"),
                );
            }
            Err(problem) => {
                tracing::warn!(%namespace, pod = %name, %node, problem, "not bound");
                self.0
                    .events
                    .pod(pod, Kind::Warning, "BindingFailed", problem.clone());
            }
        }
        result
    }

    async fn bind_to_its_end(&self, args: &ExtenderBindingArgs) -> Result<(), String> {
        let uid = self.known_uid(args);
        let begun = self.change(|ledger, now| ledger.begin_bind(&uid, &args.node, now));
        let begun = match begun {
            Begun::NotReserved => self.begin_anew(args, &uid).await?,
            begun => begun,
        };
        match begun {
            Begun::Go { pod, placement } => {
                let uid = uid_of(&pod);
                self.bind_guarded(args, &uid, &pod, &placement).await
            }
            // The pod asks for no devices.
            Begun::NotReserved => self.bind_plainly(args).await,
            Begun::Done => Ok(()),
            Begun::OverQuota(why) => Err(why),
            Begun::UnderWay => Err("the pod is being bound by an earlier call; try again".into()),
            Begun::Elsewhere { node } => Err(format!(
                "the pod is bound to node {node}, or its binding to there may still happen"
            )),
        }
    }

    /// The uid under which the ledger knows the pod.
    fn known_uid(&self, args: &ExtenderBindingArgs) -> Arc<str> {
        let fallback = format!("{}/{}", args.pod_namespace, args.pod_name);
        self.with_ledger(|ledger| {
            if !args.pod_uid.is_empty() && ledger.knows_pod(&args.pod_uid) {
                args.pod_uid.as_str().into()
            } else if ledger.knows_pod(&fallback) || args.pod_uid.is_empty() {
                fallback.into()
            } else {
                args.pod_uid.as_str().into()
            }
        })
    }

    /// Reads the pod from the API server and fits it on the node.
    async fn begin_anew(&self, args: &ExtenderBindingArgs, uid: &str) -> Result<Begun, String> {
        let pod = match self.read_pod(args).await? {
            Some(pod) => pod,
            None => {
                self.change(|ledger, _| ledger.undo(uid));
                return Err(format!("pod \"{}\" not found", args.pod_name));
            }
        };
        let there = uid_of(&pod);
        if !args.pod_uid.is_empty() && *args.pod_uid != *there {
            self.change(|ledger, _| ledger.undo(&args.pod_uid));
            return Err(format!(
                "pod \"{}\" not found: the pod of that name has uid {there}, not {}",
                args.pod_name, args.pod_uid
            ));
        }
        if !pod.spec.node_name.is_empty() {
            let node = &pod.spec.node_name;
            self.change(|ledger, now| ledger.set_pod(&pod, now));
            return if *node == args.node {
                Ok(Begun::Done)
            } else {
                Ok(Begun::Elsewhere {
                    node: node.as_str().into(),
                })
            };
        }
        let request = self.request(&pod).map_err(|problem| problem.to_string())?;
        if !request.asks_for_devices() {
            return Ok(Begun::NotReserved);
        }
        if !self.with_ledger(|ledger| ledger.knows_node(&args.node)) {
            self.change(|ledger, _| ledger.undo(uid));
            return Err(format!("node \"{}\" not found", args.node));
        }
        let pod = Arc::new(pod);
        self.change(|ledger, now| ledger.begin_bind_anew(&request, &pod, &args.node, now))
            .map_err(|misfit: Misfit| {
                let node = &args.node;
                format!("node {node} does not fit any more: {}", misfit.summary())
            })
    }

    async fn bind_plainly(&self, args: &ExtenderBindingArgs) -> Result<(), String> {
        // The API server binds a pod to a node that does not exist. A node outside the selector does exist.
        if !self.with_ledger(|ledger| ledger.knows_node(&args.node)) {
            let nodes: Api<Node> = Api::all(self.0.client.clone());
            let call = nodes.get_opt(&args.node);
            if let Ok(Ok(None)) = tokio::time::timeout(self.0.settings.kube_timeout, call).await {
                return Err(format!("node \"{}\" not found", args.node));
            }
        }
        let binding = binding(args, &args.pod_uid, &Written::default());
        match self.send_binding(args, &binding).await {
            Sent::Done => Ok(()),
            Sent::Refused { text, .. } | Sent::Unknown(text) => Err(text),
        }
    }

    /// Binds the pod while no assigner can give its GPUs.
    async fn bind_guarded(
        &self,
        args: &ExtenderBindingArgs,
        uid: &str,
        pod: &Pod,
        placement: &Placement,
    ) -> Result<(), String> {
        let guard = match self.guard(pod, placement).await {
            Ok(guard) => guard,
            Err(why) => {
                self.change(|ledger, now| {
                    if let NotGuarded::Reserved(claim) = &why {
                        ledger.set_claim((**claim).clone(), Duration::ZERO, now);
                    }
                    ledger.bind_refused(uid);
                });
                return Err(why.to_string());
            }
        };
        let (result, outcome) = if guard.as_ref().is_none_or(Guard::holds) {
            self.write_binding(args, uid, pod, placement).await
        } else {
            self.change(|ledger, _| ledger.bind_refused(uid));
            let text = "the API server took too long to write the Leases of the pod's GPUs";
            (Err(text.to_owned()), Outcome::Settled)
        };
        if let Some(guard) = guard {
            let scheduler = self.clone();
            tokio::spawn(async move {
                if let Some(guards) = &scheduler.0.guards {
                    guards.give_back(guard, outcome == Outcome::Settled).await;
                }
            });
        }
        result
    }

    /// Keeps the pod's GPUs from assigners; none where reservations by label do not count.
    async fn guard(&self, pod: &Pod, placement: &Placement) -> Result<Option<Guard>, NotGuarded> {
        let Some(guards) = &self.0.guards else {
            return Ok(None);
        };
        let grants = placement.containers.iter().flat_map(|one| &one.grants);
        let gpus: BTreeSet<String> = grants
            .filter(|grant| grant.vendor.as_str() == NVIDIA)
            .map(|grant| grant.device.to_string())
            .collect();
        let gpus: Vec<String> = gpus.into_iter().collect();
        let of = identity(pod);
        let guarded = Guarded {
            uid: of.uid,
            namespace: of.namespace,
            claim: pod_claim(pod),
        };
        let guard = guards.take(&gpus, &guarded, self).await?;
        self.change(|ledger, now| {
            for claim in &guard.renewed {
                ledger.set_claim(claim.clone(), Duration::ZERO, now);
            }
        });
        Ok(Some(guard))
    }

    async fn write_binding(
        &self,
        args: &ExtenderBindingArgs,
        uid: &str,
        pod: &Pod,
        placement: &Placement,
    ) -> (Result<(), String>, Outcome) {
        let written = self.written_at_bind(pod, placement);
        let given = pod.metadata.uid.as_deref().unwrap_or(&args.pod_uid);
        let sent = self
            .send_binding(args, &binding(args, given, &written))
            .await;
        match sent {
            Sent::Done => {
                self.change(|ledger, now| ledger.bound(uid, now));
                (Ok(()), Outcome::Settled)
            }
            Sent::Refused { code: 409, text } => {
                self.after_conflict(args, uid, &written, text).await
            }
            Sent::Refused { code: 404, text } => {
                self.change(|ledger, _| ledger.bind_refused(uid));
                let why = if text.contains("not found") {
                    text
                } else {
                    format!("pod \"{}\" not found", args.pod_name)
                };
                (Err(why), Outcome::Settled)
            }
            Sent::Refused { text, .. } => {
                self.change(|ledger, _| ledger.bind_refused(uid));
                (Err(text), Outcome::Settled)
            }
            Sent::Unknown(text) => {
                self.change(|ledger, now| ledger.bind_in_doubt(uid, now));
                let why = format!("it is not known whether the binding happened: {text}");
                (Err(why), Outcome::InDoubt)
            }
        }
    }

    /// After a conflict, checks whether an earlier call, whose answer was lost, bound the pod.
    async fn after_conflict(
        &self,
        args: &ExtenderBindingArgs,
        uid: &str,
        written: &Written,
        text: String,
    ) -> (Result<(), String>, Outcome) {
        let pod = match self.read_pod(args).await {
            Ok(Some(pod)) if *uid_of(&pod) == *uid => pod,
            // Another pod has the name, or none: this pod is gone.
            Ok(_) => {
                self.change(|ledger, _| ledger.bind_refused(uid));
                return (Err(text), Outcome::Settled);
            }
            Err(problem) => {
                self.change(|ledger, now| ledger.bind_in_doubt(uid, now));
                return (Err(format!("{text}; {problem}")), Outcome::InDoubt);
            }
        };
        if pod.spec.node_name.is_empty() {
            self.change(|ledger, _| ledger.bind_refused(uid));
            return (Err(text), Outcome::Settled);
        }
        if pod.spec.node_name == args.node && carries(&pod, written) {
            self.change(|ledger, now| ledger.bound(uid, now));
            return (Ok(()), Outcome::Settled);
        }
        self.change(|ledger, now| ledger.bound_otherwise(&pod, now));
        (Err(text), Outcome::Settled)
    }

    async fn read_pod(&self, args: &ExtenderBindingArgs) -> Result<Option<Pod>, String> {
        let pods: Api<Pod> = Api::namespaced(self.0.client.clone(), &args.pod_namespace);
        match tokio::time::timeout(self.0.settings.kube_timeout, pods.get_opt(&args.pod_name)).await
        {
            Ok(Ok(pod)) => Ok(pod),
            Ok(Err(error)) => Err(format!("the pod cannot be read: {error}")),
            Err(_) => Err(format!(
                "the pod cannot be read: no answer from the API server within {} s",
                self.0.settings.kube_timeout.as_secs()
            )),
        }
    }

    fn written(&self, pod: &Pod, placement: &Placement) -> Written {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.with_ledger(|ledger| {
            let node = ledger.cluster().node(&placement.node);
            let mut written = allocation::write(pod, placement, node, &self.0.vendors, now);
            if self.0.vendors.hcs().is_some()
                && let Ok(request) = self.request(pod)
                && let Some(any) = &request.any
            {
                let score = ledger.cluster().score_of_any(any, placement);
                let results = kube_api::hcs::results::annotations(any, placement, node, score);
                written.annotations.extend(results);
            }
            written
        })
    }

    /// The fields written with the binding: HAMi's device plugin finds its pod by the phase and the time.
    fn written_at_bind(&self, pod: &Pod, placement: &Placement) -> Written {
        let mut written = self.written(pod, placement);
        let time = Timestamp::now().as_second().to_string();
        written.annotations.extend([
            (keys::BIND_PHASE.to_owned(), "allocating".to_owned()),
            (keys::BIND_TIME.to_owned(), time),
        ]);
        written
    }

    async fn send_binding(&self, args: &ExtenderBindingArgs, binding: &Value) -> Sent {
        let pods: Api<Pod> = Api::namespaced(self.0.client.clone(), &args.pod_namespace);
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PostParams::default()
        };
        let call = pods.create_subresource::<_, Value>("binding", &args.pod_name, &params, binding);
        let patience = match self.0.guards {
            Some(_) => self.0.settings.kube_timeout.min(GIVE_UP_AFTER),
            None => self.0.settings.kube_timeout,
        };
        judge(tokio::time::timeout(patience, call).await)
    }

    /// Writes a pod's devices to its annotations and labels before it is bound.
    ///
    /// # Errors
    ///
    /// Why they may not be written.
    pub(crate) async fn write_at_filter(
        &self,
        pod: &Arc<Pod>,
        placement: &Placement,
    ) -> Result<(), String> {
        let written = self.written(pod, placement);
        let namespace = match pod.metadata.namespace.as_deref() {
            Some(namespace) if !namespace.is_empty() => namespace,
            _ => DEFAULT_NAMESPACE,
        };
        let name = pod.metadata.name.clone().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.0.client.clone(), namespace);
        let mut metadata = json!({
            "annotations": written.annotations,
            "labels": written.labels,
        });
        if let (Some(uid), Some(metadata)) = (&pod.metadata.uid, metadata.as_object_mut()) {
            // The uid makes sure that no other pod of the same name is changed.
            metadata.insert("uid".into(), uid.as_str().into());
        }
        let patch = json!({ "metadata": metadata });
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let patience = self.0.settings.kube_timeout;
        // In a task, so that the write finishes even if the caller gives up.
        let call = tokio::spawn(async move {
            let patch = Patch::Merge(patch);
            let call = pods.patch(&name, &params, &patch);
            judge(tokio::time::timeout(patience, call).await)
        });
        match call.await {
            Ok(Sent::Done) => Ok(()),
            Ok(Sent::Refused { text, .. } | Sent::Unknown(text)) => Err(text),
            Err(error) => Err(format!("the annotations could not be written: {error}")),
        }
    }
}

impl Known for Scheduler {
    fn has_run_out(&self, claim: &Claim) -> bool {
        self.change(|ledger, now| {
            ledger.expire(now);
            let held = ledger.claim(&claim.gpu);
            held.is_some_and(|held| held.lapsed && held.claim.version == claim.version)
        })
    }

    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }
}

fn judge<T>(result: Result<kube::Result<T>, tokio::time::error::Elapsed>) -> Sent {
    match result {
        Ok(Ok(_)) => Sent::Done,
        // A write that the server refuses has not happened. After an internal error of the server it may have.
        Ok(Err(kube::Error::Api(status)))
            if (400..500).contains(&status.code) && status.code != 408 =>
        {
            Sent::Refused {
                code: status.code,
                text: status.message.clone(),
            }
        }
        // The write happened, and the server's answer has a form that is not needed here.
        Ok(Err(kube::Error::SerdeError(_))) => Sent::Done,
        Ok(Err(error)) => Sent::Unknown(error.to_string()),
        Err(elapsed) => Sent::Unknown(format!("no answer from the API server: {elapsed}")),
    }
}

fn binding(args: &ExtenderBindingArgs, uid: &str, written: &Written) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": args.pod_name,
            "namespace": args.pod_namespace,
            // The uid makes sure that no other pod of that name is bound; null where the caller sent none.
            "uid": Some(uid).filter(|uid| !uid.is_empty()),
            "annotations": written.annotations,
            "labels": written.labels,
        },
        "target": { "apiVersion": "v1", "kind": "Node", "name": args.node },
    })
}

/// Whether the pod has everything that was to be written, apart from times.
fn carries(pod: &Pod, written: &Written) -> bool {
    let empty = std::collections::BTreeMap::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&empty);
    written
        .annotations
        .iter()
        .filter(|(key, _)| !key.contains("time"))
        .all(|(key, value)| annotations.get(key) == Some(value))
}
