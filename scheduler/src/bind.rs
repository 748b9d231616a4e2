//! `/bind`: a pod's devices are written together with its binding, in one call, so that there is no half-written state.
//! Also writes them at filter time if another program reads them then. The node and devices were chosen by the filter;
//! only a pod without a reservation is placed here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Status;
use kube_api::allocation::{self, BindingMarks};
use kube_api::assigner::{Claim, pod_claim};
use kube_api::extender::ExtenderBindingArgs;
use kube_api::keys;
use kube_api::object::{Node, Pod};
use kube_api::request::RequestError;
use placement::{Misfit, Placement};
use serde_json::{Value, json};
use tokio::task::JoinError;

use crate::calls::{CallError, within};
use crate::events::Kind;
use crate::leases::guards::{GIVE_UP_AFTER, Guard, Guarded, LeaseKnowledge, NotGuarded};
use crate::ledger::{Begun, identity, uid_of};
use crate::{DEFAULT_NAMESPACE, Scheduler};

/// The field manager of our writes.
const FIELD_MANAGER: &str = "vgpu-scheduler";

/// The vendor whose GPUs can also be requested by label.
const NVIDIA: &str = "NVIDIA";

/// Why a pod is not bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// There is no pod of that name.
    #[error("pod \"{0}\" not found")]
    NoPod(String),
    /// The pod of that name is another one.
    #[error("pod \"{name}\" not found: the pod of that name has uid {there}, not {asked}")]
    OtherPod {
        /// The name.
        name: String,
        /// The uid of the pod that has the name.
        there: Arc<str>,
        /// The uid in the question.
        asked: String,
    },
    /// There is no node of that name.
    #[error("node \"{0}\" not found")]
    NoNode(String),
    /// An earlier call still binds the pod.
    #[error("the pod is being bound by an earlier call; try again")]
    UnderWay,
    /// The pod has another node.
    #[error("the pod is bound to node {node}, or its binding to there may still happen")]
    Elsewhere {
        /// The node that the pod is bound to.
        node: Arc<str>,
    },
    /// The namespace's ComputeQuota leaves too little.
    #[error("{0}")]
    OverQuota(String),
    /// The pod's request cannot be read.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The node's devices cannot take the pod.
    #[error("node {node} does not fit any more: {}", misfit.summary())]
    NoFit {
        /// The node.
        node: String,
        /// The reason per device.
        misfit: Misfit,
    },
    /// An assigner has one of the GPUs, or may get it.
    #[error(transparent)]
    NotGuarded(#[from] NotGuarded),
    /// The Leases of the pod's GPUs may run out before the binding is written.
    #[error("the API server took too long to write the Leases of the pod's GPUs")]
    GuardTooOld,
    /// The pod cannot be read.
    #[error("the pod cannot be read: {0}")]
    PodUnread(CallError),
    /// The API server refused the binding.
    #[error("{0}")]
    Refused(String),
    /// The API server refused the binding because the pod has changed. An earlier call, whose answer was lost, may have
    /// bound it.
    #[error("{refusal}; the pod cannot be read: {unread}")]
    Conflict {
        /// The API server's message.
        refusal: String,
        /// Why it is not known whether the pod is bound.
        unread: CallError,
    },
    /// The binding may have happened, or may yet happen.
    #[error("it is not known whether the binding happened: {0}")]
    Unanswered(String),
    /// A defect in our code.
    #[error("the binding broke off: {0}")]
    BrokeOff(#[from] JoinError),
}

impl BindError {
    /// Whether the binding may have happened, or may yet happen.
    fn leaves_doubt(&self) -> bool {
        matches!(self, Self::Unanswered(_) | Self::Conflict { .. })
    }
}

/// Why a pod's devices are not written before its binding.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The API server's message, or the reason why there is none.
    #[error("{0}")]
    Failed(String),
    /// A defect in our code.
    #[error("the annotations could not be written: {0}")]
    BrokeOff(#[from] JoinError),
}

/// The outcome of a call that writes.
enum WriteOutcome {
    Done,
    /// It did not happen, and will not.
    Refused(Box<Status>),
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
    pub async fn bind(&self, mut args: ExtenderBindingArgs) -> Result<(), BindError> {
        if args.pod_namespace.is_empty() {
            args.pod_namespace = DEFAULT_NAMESPACE.to_owned();
        }
        let scheduler = self.clone();
        let about = args.clone();
        // In a task of its own, so that a caller that gives up does not leave a half-finished binding.
        let task = tokio::spawn(async move { scheduler.bind_to_its_end(&args).await });
        let result = match task.await {
            Ok(result) => result,
            Err(error) => Err(error.into()),
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
                tracing::warn!(%namespace, pod = %name, %node, %problem, "not bound");
                self.0
                    .events
                    .pod(pod, Kind::Warning, "BindingFailed", problem.to_string());
            }
        }
        result
    }

    async fn bind_to_its_end(&self, args: &ExtenderBindingArgs) -> Result<(), BindError> {
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
            Begun::OverQuota(why) => Err(BindError::OverQuota(why)),
            Begun::UnderWay => Err(BindError::UnderWay),
            Begun::Elsewhere { node } => Err(BindError::Elsewhere { node }),
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
    async fn begin_anew(&self, args: &ExtenderBindingArgs, uid: &str) -> Result<Begun, BindError> {
        let pod = match self.read_pod(args).await.map_err(BindError::PodUnread)? {
            Some(pod) => pod,
            None => {
                self.change(|ledger, _| ledger.undo(uid));
                return Err(BindError::NoPod(args.pod_name.clone()));
            }
        };
        let there = uid_of(&pod);
        if !args.pod_uid.is_empty() && *args.pod_uid != *there {
            self.change(|ledger, _| ledger.undo(&args.pod_uid));
            return Err(BindError::OtherPod {
                name: args.pod_name.clone(),
                there,
                asked: args.pod_uid.clone(),
            });
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
        let request = self.request(&pod)?;
        if !request.asks_for_devices() {
            return Ok(Begun::NotReserved);
        }
        if !self.with_ledger(|ledger| ledger.knows_node(&args.node)) {
            self.change(|ledger, _| ledger.undo(uid));
            return Err(BindError::NoNode(args.node.clone()));
        }
        let pod = Arc::new(pod);
        self.change(|ledger, now| ledger.begin_bind_anew(&request, &pod, &args.node, now))
            .map_err(|misfit| BindError::NoFit {
                node: args.node.clone(),
                misfit,
            })
    }

    async fn bind_plainly(&self, args: &ExtenderBindingArgs) -> Result<(), BindError> {
        // The API server binds a pod to a node that does not exist. A node outside the selector does exist.
        if !self.with_ledger(|ledger| ledger.knows_node(&args.node)) {
            let nodes: Api<Node> = Api::all(self.0.client.clone());
            let call = nodes.get_opt(&args.node);
            if let Ok(Ok(None)) = tokio::time::timeout(self.0.settings.kube_timeout, call).await {
                return Err(BindError::NoNode(args.node.clone()));
            }
        }
        let binding = binding(args, &args.pod_uid, &BindingMarks::default());
        match self.send_binding(args, &binding).await {
            WriteOutcome::Done => Ok(()),
            WriteOutcome::Refused(status) => Err(BindError::Refused(status.message)),
            WriteOutcome::Unknown(why) => Err(BindError::Unanswered(why)),
        }
    }

    /// Binds the pod while no assigner can give its GPUs.
    async fn bind_guarded(
        &self,
        args: &ExtenderBindingArgs,
        uid: &str,
        pod: &Pod,
        placement: &Placement,
    ) -> Result<(), BindError> {
        let guard = match self.guard(pod, placement).await {
            Ok(guard) => guard,
            Err(why) => {
                self.change(|ledger, now| {
                    if let NotGuarded::Reserved(claim) = &why {
                        ledger.set_claim((**claim).clone(), Duration::ZERO, now);
                    }
                    ledger.bind_refused(uid);
                });
                return Err(why.into());
            }
        };
        let result = if guard.as_ref().is_none_or(Guard::holds) {
            self.write_binding(args, uid, pod, placement).await
        } else {
            self.change(|ledger, _| ledger.bind_refused(uid));
            Err(BindError::GuardTooOld)
        };
        if let Some(guard) = guard {
            let scheduler = self.clone();
            let settled = !result.as_ref().is_err_and(BindError::leaves_doubt);
            tokio::spawn(async move {
                if let Some(guards) = &scheduler.0.guards {
                    guards.give_back(guard, settled).await;
                }
            });
        }
        result
    }

    /// Keeps the pod's GPUs from assigners; `None` if reservations by label do not count.
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
    ) -> Result<(), BindError> {
        let written = self.written_at_bind(pod, placement);
        let given = pod.metadata.uid.as_deref().unwrap_or(&args.pod_uid);
        let sent = self
            .send_binding(args, &binding(args, given, &written))
            .await;
        match sent {
            WriteOutcome::Done => {
                self.change(|ledger, now| ledger.bound(uid, now));
                Ok(())
            }
            WriteOutcome::Refused(status) if status.code == 409 => {
                self.after_conflict(args, uid, &written, status.message)
                    .await
            }
            WriteOutcome::Refused(status) => {
                self.change(|ledger, _| ledger.bind_refused(uid));
                Err(if status.code == 404 && !status.is_not_found() {
                    BindError::NoPod(args.pod_name.clone())
                } else {
                    BindError::Refused(status.message)
                })
            }
            WriteOutcome::Unknown(why) => {
                self.change(|ledger, now| ledger.bind_in_doubt(uid, now));
                Err(BindError::Unanswered(why))
            }
        }
    }

    /// After a conflict, checks whether an earlier call, whose answer was lost, bound the pod.
    async fn after_conflict(
        &self,
        args: &ExtenderBindingArgs,
        uid: &str,
        written: &BindingMarks,
        refusal: String,
    ) -> Result<(), BindError> {
        let pod = match self.read_pod(args).await {
            Ok(Some(pod)) if *uid_of(&pod) == *uid => pod,
            // Another pod has the name, or none: this pod is gone.
            Ok(_) => {
                self.change(|ledger, _| ledger.bind_refused(uid));
                return Err(BindError::Refused(refusal));
            }
            Err(unread) => {
                self.change(|ledger, now| ledger.bind_in_doubt(uid, now));
                return Err(BindError::Conflict { refusal, unread });
            }
        };
        if pod.spec.node_name.is_empty() {
            self.change(|ledger, _| ledger.bind_refused(uid));
            return Err(BindError::Refused(refusal));
        }
        if pod.spec.node_name == args.node && carries(&pod, written) {
            self.change(|ledger, now| ledger.bound(uid, now));
            return Ok(());
        }
        self.change(|ledger, now| ledger.bound_otherwise(&pod, now));
        Err(BindError::Refused(refusal))
    }

    async fn read_pod(&self, args: &ExtenderBindingArgs) -> Result<Option<Pod>, CallError> {
        let pods: Api<Pod> = Api::namespaced(self.0.client.clone(), &args.pod_namespace);
        within(self.0.settings.kube_timeout, pods.get_opt(&args.pod_name)).await
    }

    fn written(&self, pod: &Pod, placement: &Placement) -> BindingMarks {
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
    fn written_at_bind(&self, pod: &Pod, placement: &Placement) -> BindingMarks {
        let mut written = self.written(pod, placement);
        let time = Timestamp::now().as_second().to_string();
        written.annotations.extend([
            (keys::BIND_PHASE.to_owned(), "allocating".to_owned()),
            (keys::BIND_TIME.to_owned(), time),
        ]);
        written
    }

    async fn send_binding(&self, args: &ExtenderBindingArgs, binding: &Value) -> WriteOutcome {
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
        judge(within(patience, call).await)
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
    ) -> Result<(), WriteError> {
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
            judge(within(patience, call).await)
        });
        match call.await? {
            WriteOutcome::Done => Ok(()),
            WriteOutcome::Refused(status) => Err(WriteError::Failed(status.message)),
            WriteOutcome::Unknown(why) => Err(WriteError::Failed(why)),
        }
    }
}

impl LeaseKnowledge for Scheduler {
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

fn judge<T>(result: Result<T, CallError>) -> WriteOutcome {
    match result {
        Ok(_) => WriteOutcome::Done,
        // A write that the server refuses has not happened. After an internal error of the server it may have.
        Err(CallError::Failed(kube::Error::Api(status)))
            if (400..500).contains(&status.code) && status.code != 408 =>
        {
            WriteOutcome::Refused(status)
        }
        // The write happened, and the server's answer has a form that is not needed here.
        Err(CallError::Failed(kube::Error::SerdeError(_))) => WriteOutcome::Done,
        Err(error) => WriteOutcome::Unknown(error.to_string()),
    }
}

fn binding(args: &ExtenderBindingArgs, uid: &str, written: &BindingMarks) -> Value {
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
fn carries(pod: &Pod, written: &BindingMarks) -> bool {
    let empty = std::collections::BTreeMap::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&empty);
    written
        .annotations
        .iter()
        .filter(|(key, _)| !key.contains("time"))
        .all(|(key, value)| annotations.get(key) == Some(value))
}
