//! HAMi's node lock, `hami.io/mutex.lock`. Read only: vgpu neither takes the lock nor waits for it.

use k8s_openapi::jiff::Timestamp;

use crate::quantity::shortened;

/// The holder of a node's lock, and the time at which it was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeLock {
    /// When it was taken.
    pub time: Timestamp,
    /// Namespace and name of the pod; none in the form of older releases, which is only a time.
    pub owner: Option<(String, String)>,
}

/// Why the value of a lock cannot be read. The reference then refuses to bind to the node; ours ignores the lock.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// The first part is not a time.
    #[error("{0:?} is no time such as 2026-06-14T15:05:03Z")]
    Time(String),
    /// It is neither a time nor a time with namespace and pod.
    #[error("{value:?} has {parts} parts; a lock is a time, or time,namespace,pod")]
    Parts {
        /// The value.
        value: String,
        /// The number of its parts.
        parts: usize,
    },
}

/// Reads the value of a lock.
///
/// # Errors
///
/// It is neither a time (RFC 3339) nor `time,namespace,pod`.
pub fn parse(value: &str) -> Result<NodeLock, LockError> {
    let parts: Vec<&str> = value.split(',').collect();
    let (time, owner) = match parts.as_slice() {
        [time] => (time, None),
        [time, namespace, pod] => (time, Some(((*namespace).to_owned(), (*pod).to_owned()))),
        _ => {
            return Err(LockError::Parts {
                value: shortened(value),
                parts: parts.len(),
            });
        }
    };
    // jiff is more lenient than RFC 3339: it also accepts a space in place of the T, and further fields in brackets.
    let strict = time.contains('T') && !time.contains(['[', ' ']);
    match time.parse() {
        Ok(time) if strict => Ok(NodeLock { time, owner }),
        _ => Err(LockError::Time(shortened(time))),
    }
}
