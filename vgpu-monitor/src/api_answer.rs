//! How a question to the API server ended. Never asks one.

use tokio::time::error::Elapsed;

/// How a question ended without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Without {
    /// There is none of this name.
    Gone,
    /// The API server says no.
    Refused(String),
    /// No answer.
    Away(String),
}

/// The answer to a question with a time limit.
pub(crate) fn ended<T>(answer: Result<kube::Result<T>, Elapsed>) -> Result<T, Without> {
    match answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(match status.code {
            404 => Without::Gone,
            429 | 500.. => Without::Away(status.message.clone()),
            _ => Without::Refused(status.message.clone()),
        }),
        Ok(Err(error)) => Err(Without::Away(error.to_string())),
        Err(_) => Err(Without::Away(String::from("no answer in time"))),
    }
}
