//! The rights that the accounts of the parts need. [`super::gather`] asks the API server about them.

/// A right that a part needs.
pub(super) struct Right {
    pub(super) verb: &'static str,
    pub(super) group: &'static str,
    pub(super) resource: &'static str,
    /// In the installation's namespace only.
    pub(super) at_home: bool,
}

impl Right {
    pub(super) fn shown(&self, home: &str) -> String {
        let group = if self.group.is_empty() {
            String::new()
        } else {
            format!(".{}", self.group)
        };
        let place = if self.at_home {
            format!(" in {home}")
        } else {
            String::new()
        };
        format!("{} {}{group}{place}", self.verb, self.resource)
    }
}

const fn anywhere(verb: &'static str, resource: &'static str) -> Right {
    Right {
        verb,
        group: "",
        resource,
        at_home: false,
    }
}

const fn lease(verb: &'static str) -> Right {
    Right {
        verb,
        group: "coordination.k8s.io",
        resource: "leases",
        at_home: true,
    }
}

/// The rights that each part needs. Rights that RBAC limits to names are left out, because a review without a name is
/// denied.
pub(super) const RIGHTS: [(&str, &[Right]); 3] = [
    (
        "agent",
        &[
            anywhere("get", "pods"),
            anywhere("list", "pods"),
            anywhere("watch", "pods"),
            anywhere("patch", "pods/status"),
            anywhere("get", "nodes"),
            anywhere("patch", "nodes/status"),
            anywhere("create", "events"),
            anywhere("patch", "events"),
            lease("create"),
        ],
    ),
    (
        "scheduler",
        &[
            anywhere("list", "pods"),
            anywhere("watch", "pods"),
            anywhere("patch", "pods"),
            anywhere("create", "pods/binding"),
            anywhere("list", "nodes"),
            anywhere("watch", "nodes"),
            anywhere("patch", "nodes"),
            anywhere("list", "resourcequotas"),
            anywhere("watch", "resourcequotas"),
            anywhere("create", "events"),
            lease("create"),
        ],
    ),
    (
        "webhook",
        &[
            Right {
                verb: "create",
                group: "",
                resource: "secrets",
                at_home: true,
            },
            lease("create"),
        ],
    ),
];
