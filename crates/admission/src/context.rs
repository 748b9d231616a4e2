//! The operation on an object, and the user that requests it.

use serde_json::Value;

/// The operation on an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Operation {
    /// The object is created.
    #[default]
    Create,
    /// The object is changed.
    Update,
    /// Deletion, connection, or an operation of a newer API server.
    Other,
}

/// The facts of a review besides the object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Context<'a> {
    /// The operation.
    pub operation: Operation,
    /// `status`, `ephemeralcontainers`, `binding` or another; empty for the pod itself.
    pub subresource: &'a str,
    /// The namespace of the request. A pod that is being created may leave its own out.
    pub namespace: &'a str,
    /// The user that requests it (`system:serviceaccount:team-a:default`).
    pub user: &'a str,
    /// The object before the operation; `None` if it is created.
    pub old: Option<&'a Value>,
    /// Whether the API server will discard the result. The answer is the same, because admission
    /// keeps nothing.
    pub dry_run: bool,
}
