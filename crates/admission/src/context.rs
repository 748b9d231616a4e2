//! What is done to an object, and by whom.

use serde_json::Value;

/// What is done to an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Operation {
    /// It is made.
    #[default]
    Create,
    /// It is changed.
    Update,
    /// Deleted, connected to, or what a newer API server has.
    Other,
}

/// What a review says beside the object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Context<'a> {
    /// What is done.
    pub operation: Operation,
    /// `status`, `ephemeralcontainers`, `binding` or another; empty for the pod itself.
    pub subresource: &'a str,
    /// The namespace of the request. A pod that is being made may not say it itself.
    pub namespace: &'a str,
    /// Who does it (`system:serviceaccount:team-a:default`).
    pub user: &'a str,
    /// The object as it is; none when it is made.
    pub old: Option<&'a Value>,
    /// Whether nothing will be written. The answer is the same: admission keeps nothing.
    pub dry_run: bool,
}
