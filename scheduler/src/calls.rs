//! One call of the API server with a time limit. The callers decide what a call without a result means.

use std::time::Duration;

/// Why a call of the API server has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server refused the call, or could not be reached.
    #[error(transparent)]
    Failed(#[from] kube::Error),
    /// The time limit has passed.
    #[error("no answer from the API server within {} s", .0.as_secs_f64())]
    NoAnswer(Duration),
}

/// The result of the call, or an error after `patience`.
pub(crate) async fn within<T>(
    patience: Duration,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(patience, call).await {
        Ok(result) => Ok(result?),
        Err(_elapsed) => Err(CallError::NoAnswer(patience)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn late_answer_names_the_time_limit() {
        let never = std::future::pending::<kube::Result<()>>();

        let error = within(Duration::from_millis(2500), never).await;

        let text = "no answer from the API server within 2.5 s";
        assert_eq!(error.unwrap_err().to_string(), text);
    }
}
