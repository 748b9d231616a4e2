//! The position of a container in a pod, to read it both typed and as it came. Judges no content.

use kube_api::object::{Container, Pod};
use serde_json::Value;

/// The position of a container in a pod.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub(crate) list: &'static str,
    pub(crate) index: usize,
}

impl At {
    const APP: &'static str = "containers";
    const INIT: &'static str = "initContainers";
    pub(crate) const EPHEMERAL: &'static str = "ephemeralContainers";

    pub(crate) fn of(pod: &Pod) -> impl Iterator<Item = (Self, &Container)> {
        let init = pod.spec.init_containers.iter().enumerate();
        let app = pod.spec.containers.iter().enumerate();
        let at = |list| move |(index, container)| (Self { list, index }, container);
        init.map(at(Self::INIT)).chain(app.map(at(Self::APP)))
    }

    /// The container as JSON, as it came.
    pub(crate) fn value(self, object: &Value) -> &Value {
        object
            .get("spec")
            .and_then(|spec| spec.get(self.list))
            .and_then(|list| list.get(self.index))
            .unwrap_or(&Value::Null)
    }

    pub(crate) fn mut_in(self, pod: &mut Pod) -> Option<&mut Container> {
        match self.list {
            Self::INIT => pod.spec.init_containers.get_mut(self.index),
            _ => pod.spec.containers.get_mut(self.index),
        }
    }
}
