//! A refusal in the form of Kubernetes: code, reason, message, details. Every verb returns it; the HTTP side only
//! prints it.

use serde::Serialize;
use serde_json::{Map, Value, json};

/// Why a verb refused the request, printed as a `Status` object.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    /// The HTTP status.
    pub code: u16,
    /// The reason, for programs.
    pub reason: Reason,
    /// The message for people.
    pub message: String,
    /// `name`, `group`, `kind`, `causes`, `retryAfterSeconds`.
    pub details: Map<String, Value>,
}

/// The reason of a refusal, for programs. Client libraries decide on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "Kubernetes' own words")]
pub enum Reason {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    NotAcceptable,
    Conflict,
    AlreadyExists,
    Expired,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    Invalid,
    TooManyRequests,
    InternalError,
    Timeout,
}

impl Status {
    fn new(code: u16, reason: Reason, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            code,
            reason,
            message,
            details: Map::new(),
        }
    }

    fn about(mut self, group: &str, plural: &str, name: &str) -> Self {
        self.details.insert("name".into(), name.into());
        if !group.is_empty() {
            self.details.insert("group".into(), group.into());
        }
        self.details.insert("kind".into(), plural.into());
        self
    }

    /// The same refusal with one more entry in `details.causes`.
    #[must_use]
    pub fn with_cause(mut self, reason: &str, message: &str, field: &str) -> Self {
        let cause = json!({ "reason": reason, "message": message, "field": field });
        match self.details.get_mut("causes").and_then(Value::as_array_mut) {
            Some(causes) => causes.push(cause),
            None => drop(self.details.insert("causes".into(), json!([cause]))),
        }
        self
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, Reason::BadRequest, message)
    }

    /// 401: no token, or a wrong one.
    pub fn unauthorized() -> Self {
        Self::new(401, Reason::Unauthorized, "Unauthorized")
    }

    /// 403: the request is valid and refused.
    pub fn forbidden(group: &str, plural: &str, name: &str, why: impl std::fmt::Display) -> Self {
        let what = qualified(group, plural);
        Self::new(
            403,
            Reason::Forbidden,
            format!("{what} \"{name}\" is forbidden: {why}"),
        )
        .about(group, plural, name)
    }

    /// 404: no such object.
    pub fn not_found(group: &str, plural: &str, name: &str) -> Self {
        let what = qualified(group, plural);
        Self::new(
            404,
            Reason::NotFound,
            format!("{what} \"{name}\" not found"),
        )
        .about(group, plural, name)
    }

    /// 404: no such resource at all.
    pub fn no_such_path() -> Self {
        Self::new(
            404,
            Reason::NotFound,
            "the server could not find the requested resource",
        )
    }

    /// 405: the resource has no such verb.
    pub fn method_not_allowed() -> Self {
        Self::new(
            405,
            Reason::MethodNotAllowed,
            "the server does not allow this method on the requested resource",
        )
    }

    /// 406: none of the formats that the client accepts.
    pub fn not_acceptable() -> Self {
        Self::new(
            406,
            Reason::NotAcceptable,
            "only the following media types are accepted: application/json",
        )
    }

    /// 409: the object has changed since the client read it.
    pub fn conflict(group: &str, plural: &str, name: &str, why: impl std::fmt::Display) -> Self {
        let what = qualified(group, plural);
        let message = format!("Operation cannot be fulfilled on {what} \"{name}\": {why}");
        Self::new(409, Reason::Conflict, message).about(group, plural, name)
    }

    /// 409: other field managers own fields that an apply would change.
    pub fn apply_conflict(message: impl Into<String>) -> Self {
        Self::new(409, Reason::Conflict, message)
    }

    /// 409: an object with this name exists.
    pub fn already_exists(group: &str, plural: &str, name: &str) -> Self {
        let what = qualified(group, plural);
        Self::new(
            409,
            Reason::AlreadyExists,
            format!("{what} \"{name}\" already exists"),
        )
        .about(group, plural, name)
    }

    /// 410: the version that the client names is too old.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, Reason::Expired, message)
    }

    /// 413: the body is larger than the server accepts.
    pub fn too_large(limit: usize) -> Self {
        Self::new(
            413,
            Reason::RequestEntityTooLarge,
            format!("Request entity too large: limit is {limit}"),
        )
    }

    /// 415: the server does not read the format of the body.
    pub fn unsupported_media_type(given: &str, accepted: &[&str]) -> Self {
        let accepted = accepted.join(", ");
        let message = format!(
            "the body of the request was in an unknown format ({given}) - accepted media types include: {accepted}"
        );
        Self::new(415, Reason::UnsupportedMediaType, message)
    }

    /// 422: the request is valid except for one field.
    pub fn invalid(
        group: &str,
        kind: &str,
        name: &str,
        field: &str,
        why: impl std::fmt::Display,
    ) -> Self {
        let what = qualified(group, kind);
        let message = format!("{what} \"{name}\" is invalid: {field}: {why}");
        Self::new(422, Reason::Invalid, message)
            .about(group, kind, name)
            .with_cause("FieldValueInvalid", &why.to_string(), field)
    }

    /// 429: the request is refused for the moment.
    pub fn too_many_requests(message: impl Into<String>) -> Self {
        Self::new(429, Reason::TooManyRequests, message)
    }

    /// 500: something that the server depends on failed.
    pub fn internal(message: impl std::fmt::Display) -> Self {
        Self::new(
            500,
            Reason::InternalError,
            format!("Internal error occurred: {message}"),
        )
    }

    /// 504: the version that the client asks for does not exist yet.
    pub fn version_too_large(asked: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let mut status = Self::new(504, Reason::Timeout, message);
        status.details.insert("retryAfterSeconds".into(), 1.into());
        status.with_cause("ResourceVersionTooLarge", "Too large resource version", "")
    }

    /// A refusal by an admission hook, with the hook's code.
    pub fn denied(code: u16, message: impl Into<String>) -> Self {
        let reason = match code {
            400 => Reason::BadRequest,
            401 => Reason::Unauthorized,
            404 => Reason::NotFound,
            409 => Reason::Conflict,
            422 => Reason::Invalid,
            429 => Reason::TooManyRequests,
            500 => Reason::InternalError,
            _ => Reason::Forbidden,
        };
        Self::new(
            if (400..600).contains(&code) {
                code
            } else {
                403
            },
            reason,
            message,
        )
    }

    /// The `Status` object.
    pub fn to_value(&self) -> Value {
        let mut object = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if let (Some(object), false) = (object.as_object_mut(), self.details.is_empty()) {
            object.insert("details".into(), Value::Object(self.details.clone()));
        }
        object
    }
}

/// `deployments.apps`, or `pods`.
fn qualified(group: &str, plural: &str) -> String {
    if group.is_empty() {
        plural.to_owned()
    } else {
        format!("{plural}.{group}")
    }
}
