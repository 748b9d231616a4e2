//! `AdmissionReview` of `admission.k8s.io/v1` and `v1beta1`: parsing and answering. Parsing is lenient: null counts as
//! absent, and fields of a newer API server are skipped. Decides nothing.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube_api::shares::written::Written;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use server::TraceContext;

use crate::admit::{Admission, Admitted};
use crate::claims;
use crate::context::{Context, Operation};
use crate::denied::Denied;

/// The kind of webhook that the API server calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebhookKind {
    /// A mutating webhook: the answer may carry a patch.
    Mutate,
    /// A validating webhook: it only allows or denies, after all changes to the object.
    Validate,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// An `AdmissionReview` as JSON, status 200, for every decision.
    Reviewed(String),
    /// The body is not an `AdmissionReview`; status 400, with the reason. There is no uid to answer to.
    Unreadable(String),
    /// The review failed; status 500.
    Failed(String),
}

/// The operation and outcome of a review, for metrics: the routes put it into each response as an extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reviewed {
    /// `CREATE`, `UPDATE`, `DELETE`, `CONNECT` or `unknown`.
    pub operation: &'static str,
    /// `allowed`, `mutated`, `denied`, or `broken` for a body that could not be judged.
    pub outcome: &'static str,
    /// The trace of the pod that it changed, where traces are on.
    pub trace: Option<TraceContext>,
}

/// The newest version, and the one in which a body that names none is answered.
const V1: &str = "admission.k8s.io/v1";
const V1BETA1: &str = "admission.k8s.io/v1beta1";

#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[derive(Default)]
struct Review {
    api_version: Option<String>,
    kind: Option<String>,
    request: Option<Request>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Request {
    uid: Option<String>,
    kind: Option<Kind>,
    resource: Option<Resource>,
    sub_resource: Option<String>,
    namespace: Option<String>,
    operation: Option<String>,
    user_info: Option<User>,
    object: Option<Value>,
    old_object: Option<Value>,
    dry_run: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Kind {
    group: Option<String>,
    kind: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Resource {
    group: Option<String>,
    resource: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct User {
    username: Option<String>,
}

impl Request {
    /// The subresource that the review is about, empty for the pod itself; none for another object. The resource
    /// decides, or where it is missing the kind; where both are missing the object is taken for a pod. `bindings` is
    /// the older name of `pods/binding`.
    fn part(&self) -> Option<&str> {
        let core = |group: &Option<String>| group.as_deref().unwrap_or_default().is_empty();
        let resource = self.resource.as_ref().map(|resource| {
            let name = resource.resource.as_deref().unwrap_or_default();
            (name, core(&resource.group))
        });
        let kind = self.kind.as_ref().map(|kind| {
            let name = match kind.kind.as_deref().unwrap_or_default() {
                "Pod" => "pods",
                "Binding" => "bindings",
                other => other,
            };
            (name, core(&kind.group))
        });
        let named = |told: &Option<(&str, bool)>| told.is_some_and(|(name, _)| !name.is_empty());
        match [resource, kind].into_iter().find(named).flatten() {
            None | Some(("pods", true)) => Some(self.sub_resource.as_deref().unwrap_or_default()),
            Some(("bindings", true)) => Some("binding"),
            Some(_) => None,
        }
    }

    /// The kind of the object, if it is one that may name our DRA driver.
    fn claim(&self) -> Option<Written> {
        const GROUP: &str = "resource.k8s.io";
        if !self.sub_resource.as_deref().unwrap_or_default().is_empty() {
            return None;
        }
        let told = match (&self.resource, &self.kind) {
            (Some(Resource { group, resource }), _) if resource.is_some() => (group, resource),
            (_, Some(Kind { group, kind })) => (group, kind),
            _ => return None,
        };
        let (group, name) = (told.0.as_deref()?, told.1.as_deref()?);
        claims::kind(name).filter(|_| group == GROUP)
    }

    fn context<'a>(&'a self, subresource: &'a str) -> Context<'a> {
        Context {
            operation: match self.operation.as_deref() {
                None | Some("" | "CREATE") => Operation::Create,
                Some("UPDATE") => Operation::Update,
                Some(_) => Operation::Other,
            },
            subresource,
            namespace: self.namespace.as_deref().unwrap_or_default(),
            user: self
                .user_info
                .as_ref()
                .and_then(|user| user.username.as_deref())
                .unwrap_or_default(),
            old: self.old_object.as_ref(),
            dry_run: self.dry_run.unwrap_or_default(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Outgoing<'a> {
    kind: &'a str,
    api_version: &'a str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    uid: &'a str,
    allowed: bool,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Status {
    metadata: Empty,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    code: u16,
}

#[derive(Serialize)]
struct Empty {}

impl Admission {
    /// Answers an `AdmissionReview` for a mutating webhook.
    pub fn review(&self, body: &[u8]) -> Answer {
        self.review_at(WebhookKind::Mutate, body)
    }

    /// Answers an `AdmissionReview`.
    pub fn review_at(&self, kind: WebhookKind, body: &[u8]) -> Answer {
        self.count_at(kind, body).0
    }

    /// Answers an `AdmissionReview`, and returns its operation and outcome.
    pub(crate) fn count_at(&self, kind: WebhookKind, body: &[u8]) -> (Answer, Reviewed) {
        let mut reviewed = Reviewed {
            operation: "unknown",
            outcome: "broken",
            trace: None,
        };
        let answer = self.answer_at(kind, body, &mut reviewed);
        (answer, reviewed)
    }

    fn answer_at(&self, kind: WebhookKind, body: &[u8], reviewed: &mut Reviewed) -> Answer {
        // serde would accept a list in place of an object.
        let is_object = body.trim_ascii_start().first() == Some(&b'{');
        let review: Review = match serde_json::from_slice(body) {
            Ok(_) if !is_object => {
                return Answer::Unreadable("the body is not a JSON object".into());
            }
            Ok(review) => review,
            Err(error) => {
                return Answer::Unreadable(format!(
                    "the body is no AdmissionReview of {V1} or {V1BETA1}: {error}"
                ));
            }
        };
        let version = review.api_version.as_deref().unwrap_or_default();
        let (V1 | V1BETA1 | "") = version else {
            return Answer::Unreadable(format!(
                "apiVersion is {version:?}; {V1} and {V1BETA1} are answered"
            ));
        };
        if let Some(kind) = review.kind.as_deref()
            && !matches!(kind, "" | "AdmissionReview")
        {
            return Answer::Unreadable(format!("kind is {kind:?}, not AdmissionReview"));
        }
        let version = if version == V1BETA1 { V1BETA1 } else { V1 };
        let request = review.request.unwrap_or_default();
        let uid = request.uid.as_deref().unwrap_or_default();
        reviewed.operation = match request.operation.as_deref() {
            Some("CREATE") => "CREATE",
            Some("UPDATE") => "UPDATE",
            Some("DELETE") => "DELETE",
            Some("CONNECT") => "CONNECT",
            _ => "unknown",
        };
        let judged = self.asked(kind, &request);
        reviewed.trace = judged.as_ref().ok().and_then(|admitted| admitted.trace);
        reviewed.outcome = match &judged {
            Ok(admitted) if admitted.patch.is_empty() => "allowed",
            Ok(_) => "mutated",
            Err(denied) if denied.code == 400 => "broken",
            Err(_) => "denied",
        };
        if let Err(denied) = &judged {
            tracing::info!(
                uid = ?uid,
                namespace = ?request.namespace.as_deref().unwrap_or_default(),
                user = ?request.context("").user,
                // Names in it come from the object and have not been validated.
                why = ?denied.to_string(),
                "refused"
            );
        }
        match answer(uid, version, judged) {
            Ok(json) => Answer::Reviewed(json),
            Err(error) => Answer::Failed(format!("the answer could not be encoded: {error}")),
        }
    }

    fn asked(&self, kind: WebhookKind, request: &Request) -> Result<Admitted, Denied> {
        if let Some(kind) = request.claim() {
            let context = request.context("");
            return match &request.object {
                Some(object) if context.operation != Operation::Other => {
                    self.claim(kind, object, &context)
                }
                _ => Ok(Admitted::default()),
            };
        }
        let Some(part) = request.part() else {
            return Ok(Admitted::default());
        };
        let context = request.context(part);
        if context.operation == Operation::Other {
            return Ok(Admitted::default());
        }
        let Some(object) = &request.object else {
            return Err(Denied::unreadable(
                "there is no content to decode; request.object must be the pod",
            ));
        };
        match kind {
            WebhookKind::Mutate => self.admit(object, &context),
            WebhookKind::Validate => self
                .validate(object, &context)
                .map(|()| Admitted::default()),
        }
    }
}

fn answer(
    uid: &str,
    version: &str,
    judged: Result<Admitted, Denied>,
) -> serde_json::Result<String> {
    let response = match judged {
        Ok(admitted) => {
            let patch = if admitted.patch.is_empty() {
                None
            } else {
                Some(STANDARD.encode(serde_json::to_vec(&admitted.patch)?))
            };
            Response {
                uid,
                allowed: true,
                patch_type: patch.is_some().then_some("JSONPatch"),
                patch,
                status: Status {
                    metadata: Empty {},
                    message: admitted.message,
                    reason: None,
                    code: 200,
                },
                // `v1beta1` has the field since Kubernetes 1.19; older servers ignore it.
                warnings: admitted.warnings,
            }
        }
        Err(denied) => Response {
            uid,
            allowed: false,
            patch: None,
            patch_type: None,
            status: Status {
                metadata: Empty {},
                message: Some(denied.to_string()),
                reason: Some(denied.reason()),
                code: denied.code,
            },
            warnings: Vec::new(),
        },
    };
    serde_json::to_string(&Outgoing {
        kind: "AdmissionReview",
        api_version: version,
        response,
    })
}
