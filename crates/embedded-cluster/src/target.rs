//! What a verb is about and how it is asked for. Never does anything.

use std::sync::Arc;

use crate::object::Stored;
use crate::resource::{Resource, Version};
use crate::selector::Selector;
use crate::status::Status;

/// What a cluster is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How many changes of each resource a watch can be behind before it is told 410.
    pub remembered_changes: usize,
    /// The largest body that is read, in bytes.
    pub body_limit: usize,
    /// Whether a deleted pod that has a node waits for its node to let it go, as where a kubelet runs. Without, it is
    /// gone at once.
    pub graceful_deletion: bool,
    /// Whether amounts of resources are taken as they are written, also where an API server refuses them.
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

/// Which object, or which objects, a verb is about.
#[derive(Debug, Clone)]
pub struct Target {
    /// The resource.
    pub resource: Arc<Resource>,
    /// The version in whose words the caller speaks.
    pub version: String,
    /// Empty for all namespaces, or for a resource without them.
    pub namespace: String,
    /// Empty for a collection.
    pub name: String,
    /// Which part of the object.
    pub part: Part,
}

/// The part of an object that a write may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Part {
    /// All but the status, where the status is a subresource.
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
    /// The product of our own verbs, such as a binding: every field may change.
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

    /// All objects of a namespace, or of all when it is empty.
    pub fn collection(resource: &Arc<Resource>, namespace: &str) -> Self {
        Self::object(resource, namespace, "")
    }

    /// The same object, and that part of it.
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
    /// Everything happens but the write.
    pub dry_run: bool,
    /// The name under which changed fields are owned.
    pub field_manager: String,
    /// Whether an apply takes fields from their owners.
    pub force: bool,
    /// `userInfo.username` that admission hooks see.
    pub user: String,
    /// `userInfo.groups` that admission hooks see.
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

/// Which objects a list gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// What they must be.
    pub selector: Selector,
    /// How many at most; 0 is all.
    pub limit: usize,
    /// Where the last page ended.
    pub continue_token: String,
    /// The version, and whether exactly that one is meant.
    pub version: Option<(u64, bool)>,
}

/// A list, and where the next page begins.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    /// The objects, by namespace and name.
    pub items: Vec<Arc<Stored>>,
    /// The version of which this is the state.
    pub resource_version: u64,
    /// Empty on the last page.
    pub continue_token: String,
    /// How many come after this page; known only where nothing is selected.
    pub remaining: Option<usize>,
}

/// What became of an object that was deleted.
#[derive(Debug, Clone)]
pub enum Deleted {
    /// It is gone; this is how it was last.
    Gone(Arc<Stored>),
    /// It goes when its finalizers, or its node, let it go.
    Marked(Arc<Stored>),
}

/// What must hold for a deletion, and how it goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// `preconditions.uid`.
    pub uid: Option<String>,
    /// `preconditions.resourceVersion`.
    pub resource_version: Option<String>,
    /// `gracePeriodSeconds`.
    pub grace_seconds: Option<i64>,
}
