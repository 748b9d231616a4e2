//! The subject and the options of a verb. Does nothing itself.

use std::sync::Arc;

use crate::object::Stored;
use crate::resource::{Resource, Version};
use crate::selector::Selector;
use crate::status::Status;

/// The properties of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// A watch that is this many changes of its resource behind gets 410.
    pub remembered_changes: usize,
    /// The largest body that is accepted, in bytes.
    pub body_limit: usize,
    /// Whether a deleted pod with a node waits for the node to release it, as with a kubelet. If false, it is removed
    /// at once.
    pub graceful_deletion: bool,
    /// Whether any amount of a resource is accepted, even if an API server would refuse it.
    pub any_amount: bool,
    /// How often a watch that asked for bookmarks gets one.
    pub bookmark_every: std::time::Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            remembered_changes: 10_000,
            body_limit: 64 << 20,
            graceful_deletion: false,
            any_amount: false,
            bookmark_every: std::time::Duration::from_secs(60),
        }
    }
}

/// The object, or the objects, that a verb is about.
#[derive(Debug, Clone)]
pub struct Target {
    /// The resource.
    pub resource: Arc<Resource>,
    /// The version in which the caller reads and writes.
    pub version: String,
    /// Empty for all namespaces, or for a resource without them.
    pub namespace: String,
    /// Empty for a collection.
    pub name: String,
    /// The part of the object.
    pub part: Part,
}

/// The part of an object that a write may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Part {
    /// All but the status, if the status is a subresource.
    #[default]
    Whole,
    /// The `status` subresource.
    Status,
    /// A pod's `ephemeralcontainers` subresource.
    EphemeralContainers,
    /// A pod's `resize` subresource.
    Resize,
    /// A namespace's `finalize` subresource.
    Finalize,
    /// Written by our own verbs, such as a binding: every field may change.
    Internal,
}

impl Part {
    pub(crate) fn subresource(self) -> &'static str {
        match self {
            Self::Whole | Self::Internal => "",
            Self::Status => "status",
            Self::EphemeralContainers => "ephemeralcontainers",
            Self::Resize => "resize",
            Self::Finalize => "finalize",
        }
    }
}

impl Target {
    /// One object, by its stored version.
    pub fn object(resource: &Arc<Resource>, namespace: &str, name: &str) -> Self {
        let version = resource
            .versions
            .first()
            .map_or_else(String::new, |version| version.name.clone());
        Self {
            resource: resource.clone(),
            version,
            namespace: if resource.namespaced {
                namespace.to_owned()
            } else {
                String::new()
            },
            name: name.to_owned(),
            part: Part::Whole,
        }
    }

    /// All objects of a namespace, or of all namespaces if it is empty.
    pub fn collection(resource: &Arc<Resource>, namespace: &str) -> Self {
        Self::object(resource, namespace, "")
    }

    /// The same target with this part.
    #[must_use]
    pub fn part(mut self, part: Part) -> Self {
        self.part = part;
        self
    }

    pub(crate) fn key(&self) -> String {
        self.resource.key(&self.namespace, &self.name)
    }

    pub(crate) fn prefix(&self) -> String {
        if self.namespace.is_empty() {
            String::new()
        } else {
            format!("{}/", self.namespace)
        }
    }

    pub(crate) fn served(&self) -> Result<&Version, Status> {
        self.resource
            .version(&self.version)
            .ok_or_else(Status::no_such_path)
    }

    pub(crate) fn not_found(&self) -> Status {
        Status::not_found(&self.resource.group, &self.resource.plural, &self.name)
    }

    pub(crate) fn conflict(&self, why: impl std::fmt::Display) -> Status {
        Status::conflict(&self.resource.group, &self.resource.plural, &self.name, why)
    }

    pub(crate) fn invalid(&self, field: &str, why: impl std::fmt::Display) -> Status {
        Status::invalid(
            &self.resource.group,
            &self.resource.kind,
            &self.name,
            field,
            why,
        )
    }

    pub(crate) fn forbidden(&self, why: impl std::fmt::Display) -> Status {
        Status::forbidden(&self.resource.group, &self.resource.plural, &self.name, why)
    }
}

/// The author and the options of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Whether everything is done except the write.
    pub dry_run: bool,
    /// The name that owns the changed fields.
    pub field_manager: String,
    /// Whether an apply takes fields from other owners.
    pub force: bool,
    /// `userInfo.username` for admission hooks.
    pub user: String,
    /// `userInfo.groups` for admission hooks.
    pub groups: Vec<String>,
}

impl Default for Write {
    fn default() -> Self {
        Self {
            dry_run: false,
            field_manager: "unknown".into(),
            force: false,
            user: "system:admin".into(),
            groups: vec!["system:masters".into(), "system:authenticated".into()],
        }
    }
}

/// The options of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Selects the objects.
    pub selector: Selector,
    /// The maximum number of objects; 0 means all.
    pub limit: usize,
    /// The position at which the last page ended.
    pub continue_token: String,
    /// The version, and whether it must be exactly that one.
    pub version: Option<(u64, bool)>,
}

/// A list, and the position of the next page.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    /// The objects, by namespace and name.
    pub items: Vec<Arc<Stored>>,
    /// The version of this state.
    pub resource_version: u64,
    /// Empty on the last page.
    pub continue_token: String,
    /// The number of objects after this page; known only without a selector.
    pub remaining: Option<usize>,
}

/// The result of a deletion.
#[derive(Debug, Clone)]
pub enum Deleted {
    /// The object is gone; this was its last state.
    Gone(Arc<Stored>),
    /// The object will be gone when its finalizers, or its node, release it.
    Marked(Arc<Stored>),
}

/// The preconditions and options of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// `preconditions.uid`.
    pub uid: Option<String>,
    /// `preconditions.resourceVersion`.
    pub resource_version: Option<String>,
    /// `gracePeriodSeconds`.
    pub grace_seconds: Option<i64>,
}
