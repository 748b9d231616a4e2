//! The fields of a pod that only the scheduler and the node agents write: annotations that say what the pod holds, and
//! the label of its node. Finds out which of them another user wrote, changed or removed. The values are not read.
//! Annotations by which a container runtime gives devices (CDI) are treated in the same way, but any user may remove
//! them.

use std::collections::HashSet;

use kube_api::vendor::Vendors;
use kube_api::{assigner, keys};
use serde_json::{Map, Value};

use crate::denied::Denied;

/// The keys that a tenant must not write.
#[derive(Debug)]
pub(crate) struct Reserved {
    annotations: HashSet<String>,
}

impl Reserved {
    pub(crate) fn of(vendors: &Vendors) -> Self {
        Self {
            annotations: annotations(vendors).into_iter().collect(),
        }
    }

    fn annotation(&self, key: &str) -> bool {
        self.annotations.contains(key)
            || key.starts_with(keys::VISIBLE_DEVICES_PREFIX)
            || is_cdi(key)
    }

    /// Checks that every reserved key is the same in `new` as in `old`. `ours` says which annotations admission itself
    /// sets.
    pub(crate) fn check(
        &self,
        old: Option<&Value>,
        new: &Value,
        ours: impl Fn(&str, &str) -> bool,
    ) -> Result<(), Denied> {
        let is_made = old.is_none();
        let annotation = |key: &str| self.annotation(key);
        let label = |key: &str| key == keys::VGPU_NODE;
        let field = |name: &str| (entries(old, name), entries(Some(new), name));
        for (name, reserved) in [
            ("annotations", &annotation as &dyn Fn(&str) -> bool),
            ("labels", &label),
        ] {
            let (old, new) = field(name);
            let before = |key: &str| old.and_then(|old| old.get(key));
            for (key, value) in new.into_iter().flatten() {
                if !reserved(key) || before(key) == Some(value) {
                    continue;
                }
                if value
                    .as_str()
                    .is_some_and(|value| ours(key, value) || is_assignment(key, value))
                {
                    continue;
                }
                return Err(Denied::pod(
                    format!("metadata.{name}[{key}]"),
                    match (before(key), is_made) {
                        _ if is_cdi(key) => {
                            "a container runtime gives the CDI devices in it without asking the scheduler; remove it, \
                             and ask for devices under resources.limits"
                        }
                        (None, true) => {
                            "only the scheduler and the node agents write it, it says what a pod was given; remove it \
                             from the pod (and from the template or the backup that it was made of)"
                        }
                        _ => {
                            "only the scheduler and the node agents write it, it says what the pod was given; leave it \
                             as it is"
                        }
                    },
                ));
            }
            for key in old.into_iter().flat_map(Map::keys) {
                if reserved(key) && !is_cdi(key) && !new.is_some_and(|new| new.contains_key(key)) {
                    return Err(Denied::pod(
                        format!("metadata.{name}[{key}]"),
                        "only the scheduler and the node agents take it away, it says what the pod holds; leave it as \
                         it is, or delete the pod",
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The common part of the keys of CDI's annotations: `cdi.k8s.io/NAME`, and `nvidia.cdi.k8s.io/…` of NVIDIA's toolkit.
pub(crate) const CDI: &str = "cdi.k8s.io/";

fn is_cdi(key: &str) -> bool {
    key.contains(CDI)
}

/// Whether it says which GPUs the assigner gave the pod. It is written by the assigner's webhook, under the account of
/// the pod's author, and gives no device.
fn is_assignment(key: &str, value: &str) -> bool {
    key == assigner::CDI_ASSIGNMENT && assigner::is_cdi_assignment(value)
}

/// The names of all reserved annotations, sorted, for the webhook's configuration.
pub(crate) fn annotations(vendors: &Vendors) -> Vec<String> {
    let mut annotations: Vec<String> = vendors
        .allocation_keys()
        .chain(keys::ALLOCATION)
        .map(str::to_owned)
        .collect();
    annotations.sort_unstable();
    annotations.dedup();
    annotations
}

fn entries<'v>(object: Option<&'v Value>, name: &str) -> Option<&'v Map<String, Value>> {
    object?.get("metadata")?.get(name)?.as_object()
}
