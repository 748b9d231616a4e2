//! The assigner's `AdmissionReview`s: what a pod asks for by label, and the changes to a pod that gets GPUs. The answer
//! is always a review; a refusal is inside it. No write to the API server happens here.

use std::collections::BTreeSet;
use std::sync::Arc;

use admission::Patch;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use json_patch::PatchOperation;
use kube_api::assigner::{
    CDI_ASSIGNMENT, Claim, Finalize, GPU_NODE, GPU_UUID, LABELLED, NotUsing, RESERVATION_ID, State,
    cdi_assignment, count, pod_claim, wanted,
};
use kube_api::hcs_quota::{Charge, Counted};
use kube_api::object::Pod;
use kube_api::request::list;
use kube_api::vendor::Role;
use serde_json::{Map, Value, json};

use super::{Assigner, NotReserved, Pin, nodes};
use crate::ledger::{ClaimAsk, Ledger, NotClaimed};

/// The vendor whose GPUs can be requested by label.
const NVIDIA: &str = "NVIDIA";

/// A review as it came.
struct Review {
    uid: String,
    dry_run: bool,
    /// Whether it is about the creation of a pod.
    makes_pod: bool,
    namespace: String,
    object: Value,
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
struct Reply {
    allowed: bool,
    code: u16,
    message: String,
    patch: Vec<PatchOperation>,
}

impl Reply {
    fn passed(message: &str) -> Self {
        Self {
            allowed: true,
            code: 200,
            message: message.to_owned(),
            patch: Vec::new(),
        }
    }

    fn refused(code: u16, message: impl Into<String>) -> Self {
        Self {
            allowed: false,
            code,
            message: message.into(),
            patch: Vec::new(),
        }
    }

    /// The body of the answer.
    fn review(&self, uid: &str) -> Value {
        let mut status = Map::from_iter([("code".to_owned(), json!(self.code))]);
        if !self.message.is_empty() {
            status.insert("message".to_owned(), json!(self.message));
        }
        if let Some(reason) = reason(self.code) {
            status.insert("reason".to_owned(), json!(reason));
        }
        let mut response = Map::from_iter([
            ("uid".to_owned(), json!(uid)),
            ("allowed".to_owned(), json!(self.allowed)),
            ("status".to_owned(), Value::Object(status)),
        ]);
        if !self.patch.is_empty() {
            let patch = serde_json::to_vec(&self.patch).unwrap_or_default();
            response.insert("patchType".to_owned(), json!("JSONPatch"));
            response.insert("patch".to_owned(), json!(STANDARD.encode(patch)));
        }
        json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": response,
        })
    }
}

/// A name that cannot be guessed, for a review without the uid that an API server gives it.
fn unique() -> String {
    use std::hash::{BuildHasher, RandomState};

    let (high, low) = (
        RandomState::new().hash_one(0),
        RandomState::new().hash_one(1),
    );
    format!("{high:016x}{low:016x}")
}

/// Kubernetes' name for the code.
fn reason(code: u16) -> Option<&'static str> {
    Some(match code {
        400 => "BadRequest",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        _ => return None,
    })
}

impl Review {
    fn read(body: &[u8]) -> Result<Self, (String, Reply)> {
        let refused = |uid: String, why: String| (uid, Reply::refused(400, why));
        let review: Value = serde_json::from_slice(body)
            .map_err(|problem| refused(String::new(), format!("the body is no JSON: {problem}")))?;
        let text = |pointer: &str| {
            let text = review.pointer(pointer).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let uid = text("/request/uid");
        let kind = text("/kind");
        if kind != "AdmissionReview" {
            return Err(refused(uid, format!("Unexpected request kind: {kind}")));
        }
        let group = text("/request/resource/group") + &text("/request/kind/group");
        let is_pod = matches!(text("/request/kind/kind").as_str(), "" | "Pod")
            && matches!(text("/request/resource/resource").as_str(), "" | "pods")
            && group.is_empty();
        let makes = matches!(text("/request/operation").as_str(), "" | "CREATE");
        let object = review.pointer("/request/object").cloned();
        let object = object.unwrap_or_default();
        let namespace = text("/request/namespace");
        let namespace = if namespace.is_empty() {
            text("/request/object/metadata/namespace")
        } else {
            namespace
        };
        let dry_run = review.pointer("/request/dryRun").and_then(Value::as_bool);
        Ok(Self {
            dry_run: dry_run.unwrap_or_default(),
            makes_pod: is_pod && makes && text("/request/subResource").is_empty(),
            namespace: if namespace.is_empty() {
                "default".to_owned()
            } else {
                namespace
            },
            object,
            uid,
        })
    }
}

impl Assigner {
    /// Answers an `AdmissionReview` for a mutating webhook: a pod that asks by label gets GPUs, or is refused.
    pub async fn mutate(&self, body: &[u8]) -> Value {
        let (uid, reply) = match Review::read(body) {
            Ok(review) => {
                let reply = self.judge_pod(&review).await;
                (review.uid, reply)
            }
            Err((uid, reply)) => (uid, reply),
        };
        let meters = &self.0.meters;
        meters.reviewed(match (reply.allowed, reply.code) {
            (true, _) if reply.patch.is_empty() => "passed",
            (true, _) => "reserved",
            (false, 500..) => "failed",
            (false, _) => "refused",
        });
        reply.review(&uid)
    }

    /// The admission of a pod that is created in an embedded cluster: returns the changed pod.
    ///
    /// # Errors
    ///
    /// The code and text of a refusal.
    pub async fn admit(
        &self,
        object: &Value,
        namespace: &str,
        dry_run: bool,
    ) -> Result<Value, (u16, String)> {
        let review = Review {
            uid: unique(),
            dry_run,
            makes_pod: true,
            namespace: namespace.to_owned(),
            object: object.clone(),
        };
        let reply = self.judge_pod(&review).await;
        if !reply.allowed {
            return Err((reply.code, reply.message));
        }
        let mut object = review.object;
        match json_patch::patch(&mut object, &reply.patch) {
            Ok(()) => Ok(object),
            Err(problem) => Err((500, problem.to_string())),
        }
    }

    async fn judge_pod(&self, review: &Review) -> Reply {
        if review.dry_run {
            return Reply::passed("dry-run: no mutation");
        }
        if !review.makes_pod {
            return Reply::passed("");
        }
        let refused = |code, reason, text: String| {
            self.0.meters.refused(reason);
            Reply::refused(code, text)
        };
        let pod: Pod = match serde_json::from_value(review.object.clone()) {
            Ok(pod) => pod,
            Err(problem) => {
                let text = format!("request.object is no pod: {problem}");
                return refused(400, "unreadable", text);
            }
        };
        let Some(labels) = wanted(&pod) else {
            if pod_claim(&pod).is_some() {
                let text = format!(
                    "metadata.annotations[{RESERVATION_ID}]: only the device assigner writes it, for pods with fudo.org/gpu labels; remove it from the pod, or add the labels"
                );
                return refused(403, "forged", text);
            }
            return Reply::passed("");
        };
        if review.uid.is_empty() {
            let text = "request.uid is missing: it names the reservation";
            return refused(400, "unreadable", text.to_owned());
        }
        if let Some(why) = self.unready() {
            let text =
                format!("the device assigner does not know the cluster yet: {why}; try again");
            return refused(503, "not_ready", text);
        }
        self.0.claim_ledger.catch_up().await;
        if self.is_assigned(&pod, &review.namespace) {
            return Reply::passed("");
        }
        let ask = self.ask(review, &pod, labels);
        match self.reserve(ask).await {
            Ok(claims) => {
                let patch = self.changed(&review.object, &pod, &claims);
                tracing::info!(
                    namespace = review.namespace,
                    pod = name_of(&pod),
                    reservation = review.uid,
                    gpus = claims.len(),
                    "reserved"
                );
                Reply {
                    patch,
                    ..Reply::passed("")
                }
            }
            Err(why) => {
                let (namespace, name) = (&review.namespace, name_of(&pod));
                tracing::info!(namespace, pod = name, %why, "no GPU");
                let about = format!("for pod {namespace}/{name}: {why}");
                match why {
                    NotReserved::None(NotClaimed::Another(_)) => refused(409, "another", about),
                    NotReserved::None(ref none) => {
                        let text = format!("no GPUs with requested labels free {about}");
                        refused(429, reason_word(none), text)
                    }
                    NotReserved::Overrun => {
                        let text = format!("no GPUs with requested labels free {about}");
                        refused(429, "overrun", text)
                    }
                    NotReserved::NotWritten(_) => {
                        refused(503, "not_written", format!("no GPUs reserved {about}"))
                    }
                }
            }
        }
    }

    /// Whether an earlier call has given the pod its GPUs: the API server calls again when another webhook has changed
    /// the pod.
    fn is_assigned(&self, pod: &Pod, namespace: &str) -> bool {
        let Some(said) = pod_claim(pod) else {
            return false;
        };
        self.change(|ledger, _| {
            let held = ledger.claimed_by(&said.reservation);
            !held.is_empty()
                && held.iter().all(|held| {
                    held.claim.state == State::Proposed
                        && !held.lapsed
                        && held.claim.namespace == namespace
                        && said.gpus.contains(&held.claim.gpu)
                        && ledger.claimant(&held.claim).is_none()
                })
        })
    }

    fn ask(&self, review: &Review, pod: &Pod, labels: BTreeSet<String>) -> ClaimAsk {
        self.change(|ledger, _| {
            let words = NvidiaNames::of(ledger);
            let listed = |keys: &[String]| -> BTreeSet<String> {
                let annotations = pod.metadata.annotations.as_ref();
                keys.iter()
                    .filter_map(|key| annotations?.get(key))
                    .flat_map(|text| list(text))
                    .map(str::to_owned)
                    .collect()
            };
            ClaimAsk {
                // The review's uid, and not the pod's own, because the author of a pod may set that.
                reservation: review.uid.clone(),
                namespace: review.namespace.clone(),
                labels,
                count: count(pod, &words.resource),
                nodes: nodes::open(&review.object, ledger.nodes()),
                only: listed(&words.use_ids),
                not: listed(&words.nouse_ids),
                anew: false,
                counted: Counted::new(pod, Charge::default()),
            }
        })
    }

    /// The changes to the pod.
    fn changed(&self, object: &Value, pod: &Pod, claims: &[Claim]) -> Vec<PatchOperation> {
        let (node, registered, words) = self.change(|ledger, _| {
            let first = claims.first().and_then(|claim| ledger.gpu(&claim.gpu));
            let node: Arc<str> = first.map_or_else(|| "".into(), |(node, _)| Arc::clone(node));
            let vendor = first.map(|(_, view)| view.device().vendor.as_str() != LABELLED);
            (node, vendor.unwrap_or_default(), NvidiaNames::of(ledger))
        });
        let gpus: Vec<&str> = claims.iter().map(|claim| claim.gpu.as_str()).collect();
        let reservation = claims
            .first()
            .map(|claim| claim.reservation.as_str())
            .unwrap_or_default();
        let mut patch = Patch::of(object);
        let mut annotate = |key: &str, value: &str| {
            patch.set(&["metadata", "annotations", key], json!(value));
        };
        annotate(GPU_UUID, &gpus.join(","));
        annotate(GPU_NODE, &node);
        annotate(RESERVATION_ID, reservation);
        annotate(CDI_ASSIGNMENT, &cdi_assignment(gpus.iter().copied()));
        match self.0.settings.pin {
            Pin::NodeName => patch.set(&["spec", "nodeName"], json!(&*node)),
            Pin::Affinity => {
                if registered && let Some(key) = words.use_ids.first() {
                    annotate(key, &gpus.join(","));
                }
                pin(object, &node, &mut patch);
                let asks = |container: &kube_api::object::Container| {
                    container.amount(&words.resource).is_some()
                };
                let mut all = pod.spec.containers.iter().chain(&pod.spec.init_containers);
                // The scheduler confirms only devices that a container asks for.
                if registered && !all.any(asks) {
                    let path = [
                        "spec",
                        "containers",
                        "0",
                        "resources",
                        "limits",
                        &words.resource,
                    ];
                    patch.set(&path, json!(claims.len().to_string()));
                }
            }
        }
        patch.into_operations()
    }

    /// Answers an `AdmissionReview` that finalizes the reservation of its pod.
    pub async fn finalize_review(&self, body: &[u8]) -> Value {
        let review = match Review::read(body) {
            Ok(review) => review,
            Err((uid, reply)) => return reply.review(&uid),
        };
        let reply = self.finalize_pod(&review).await;
        self.0.meters.asked_to_finalize(word(reply.code));
        reply.review(&review.uid)
    }

    async fn finalize_pod(&self, review: &Review) -> Reply {
        if review.dry_run {
            return Reply::passed("dry-run: nothing finalized");
        }
        let pod: Pod = match serde_json::from_value(review.object.clone()) {
            Ok(pod) => pod,
            Err(problem) => {
                return Reply::refused(400, format!("request.object is no pod: {problem}"));
            }
        };
        // A pod that asks for nothing by label has nothing to finalize.
        if wanted(&pod).is_none() && pod_claim(&pod).is_none() {
            return Reply::passed("the pod carries no reservation");
        }
        let asked = match Finalize::of_pod(&pod) {
            Ok(asked) => asked,
            Err(why @ (NotUsing::Missing(_) | NotUsing::Another { .. })) => {
                return Reply::refused(400, why.to_string());
            }
        };
        match self.finalize(asked).await {
            Ok(()) => Reply::passed("reservation finalized"),
            Err(why) => Reply::refused(why.code(), why.to_string()),
        }
    }
}

/// The outcome of a finalize request, as a metric label.
pub(crate) fn word(code: u16) -> &'static str {
    match code {
        200 => "ok",
        404 => "unknown",
        409 => "another",
        503 => "unanswered",
        _ => "bad_request",
    }
}

fn reason_word(none: &NotClaimed) -> &'static str {
    match none {
        NotClaimed::Another(_) => "another",
        NotClaimed::UnknownLabel { .. } => "unknown_label",
        NotClaimed::NoDevice(_) => "no_device",
        NotClaimed::NoNode { .. } => "no_node",
        NotClaimed::OverQuota(_) => "quota",
        NotClaimed::Busy { .. } => "busy",
    }
}

fn name_of(pod: &Pod) -> &str {
    let metadata = &pod.metadata;
    let name = metadata.name.as_deref().filter(|name| !name.is_empty());
    name.or(metadata.generate_name.as_deref())
        .unwrap_or_default()
}

/// The configured names of NVIDIA's resource and annotations.
struct NvidiaNames {
    resource: String,
    use_ids: Vec<String>,
    nouse_ids: Vec<String>,
}

impl NvidiaNames {
    fn of(ledger: &Ledger) -> Self {
        let row = ledger.vendors().get(NVIDIA);
        let resource = row.and_then(|row| row.resource(Role::Count));
        Self {
            resource: resource.unwrap_or("nvidia.com/gpu").to_owned(),
            use_ids: row.map(|row| row.keys.use_ids.clone()).unwrap_or_default(),
            nouse_ids: row
                .map(|row| row.keys.nouse_ids.clone())
                .unwrap_or_default(),
        }
    }
}

/// Restricts the pod to this node, besides its own requirements: terms are alternatives, so the node is added to each.
fn pin(object: &Value, node: &str, patch: &mut Patch<'_>) {
    const REQUIRED: [&str; 4] = [
        "spec",
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
    ];
    let rule = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
    let path: Vec<&str> = REQUIRED.into_iter().chain(["nodeSelectorTerms"]).collect();
    let terms = object.pointer(&format!("/{}", path.join("/")));
    let terms = terms
        .and_then(Value::as_array)
        .filter(|terms| !terms.is_empty());
    let terms: Vec<Value> = match terms {
        None => vec![json!({ "matchFields": [rule] })],
        Some(terms) => terms
            .iter()
            .map(|term| {
                let mut term = term.clone();
                if let Some(term) = term.as_object_mut()
                    && !term.get("matchFields").is_some_and(Value::is_array)
                {
                    term.insert("matchFields".to_owned(), json!([]));
                }
                if let Some(fields) = term.get_mut("matchFields").and_then(Value::as_array_mut)
                    && !fields.contains(&rule)
                {
                    fields.push(rule.clone());
                }
                term
            })
            .collect(),
    };
    patch.set(&path, Value::Array(terms));
}
