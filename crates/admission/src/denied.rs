//! A refusal, with the text for the author of the pod.

use std::borrow::Cow;
use std::fmt;

use kube_api::request::RequestError;
use kube_api::vendor::Rejection;

/// Why an object is refused. As text: `container c0: env[LD_AUDIT]: what is wrong; what to do`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// The container, where the refusal is about one.
    pub container: Option<String>,
    /// The field of the container, or of the object.
    pub field: String,
    /// The value that was read, why it is refused, and what to do.
    pub problem: String,
    /// The HTTP code that the API server passes on: 403, or 400 for a body that is not an object of
    /// the expected kind.
    pub code: u16,
}

impl Denied {
    pub(crate) fn pod(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            container: None,
            field: field.into(),
            problem: problem.into(),
            code: 403,
        }
    }

    pub(crate) fn container(
        container: &str,
        field: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        Self {
            container: Some(container.to_owned()),
            ..Self::pod(field, problem)
        }
    }

    pub(crate) fn unreadable(problem: impl Into<String>) -> Self {
        Self {
            code: 400,
            ..Self::pod("object", problem)
        }
    }

    /// `Forbidden` or `BadRequest`, as Kubernetes names the code.
    pub fn reason(&self) -> &'static str {
        match self.code {
            400 => "BadRequest",
            _ => "Forbidden",
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(container) = &self.container {
            write!(f, "container {}: ", shortened(container, MOST_OF_A_NAME))?;
        }
        let field = shortened(&self.field, MOST_OF_A_NAME);
        write!(f, "{field}: {}", shortened(&self.problem, MOST_OF_A_TEXT))
    }
}

/// A name may be as long as the object, because the API server has not validated it yet.
const MOST_OF_A_NAME: usize = 400;
const MOST_OF_A_TEXT: usize = 2000;

fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default())),
    }
}

impl std::error::Error for Denied {}

impl From<Rejection> for Denied {
    fn from(rejection: Rejection) -> Self {
        Self::container(&rejection.container, rejection.field, rejection.problem)
    }
}

impl From<RequestError> for Denied {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Amount {
                container,
                resource,
                problem,
            } => Self::container(&container, format!("resources.limits[{resource}]"), problem),
            RequestError::Annotation { ref key, .. } => {
                Self::pod(format!("metadata.annotations[{key}]"), error.to_string())
            }
        }
    }
}
